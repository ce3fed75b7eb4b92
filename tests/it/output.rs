//! Output of commands: it is stored while they run, `duly logs --follow` prints it once, `duly run --forward-output` copies it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use duly::{AttemptOutcome, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{Process, TestDb, eventually, far_future, retry_soon, wait_for_status};
use crate::sidecar::{Gate, Sidecar, shell, with_gate};

/// Waits until the stored output of a run contains a text, and returns the output.
fn wait_for_output(db: &TestDb, run: i64, text: &str) -> String {
    let mut output = None;
    eventually(&format!("the output of run {run} contains {text:?}"), || {
        output = db.runs().into_iter().find(|one| one.id == run).and_then(|run| run.output);
        output.as_ref().is_some_and(|output| output.contains(text))
    });
    output.expect("output")
}

/// The standard output and standard error of a process, as files.
struct Printed {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Printed {
    fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).expect("standard output")
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).expect("standard error")
    }
}

/// Starts `duly`, with its output in files.
fn start(db: &TestDb, name: &str, arguments: &[&str]) -> (Process, Printed) {
    let [stdout, stderr] = ["out", "err"].map(|stream| db.home().join(format!("{name}.{stream}")));
    let [out, err] = [&stdout, &stderr].map(|path| File::create_new(path).expect("a file"));
    let process = Process::spawn(db.duly(arguments).stdin(Stdio::null()).stdout(out).stderr(err));
    (process, Printed { stdout, stderr })
}

#[test]
fn logs_shows_what_a_running_command_has_printed() {
    let (db, client, mut gate) = with_gate();
    let line = format!("cd {}; echo first; echo oops >&2; read go <gate; echo second", db.home().display());
    client.add(shell("work", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "oops");
    assert_eq!(db.run(1).output.as_deref(), Some("first\n--- stderr ---\noops\n"));
    for which in ["1", "work"] {
        let logs = db.printed(&["logs", which]);
        assert!(logs.contains("attempt 1: running") && logs.contains("\nfirst\n--- stderr ---\noops\n"), "{logs}");
    }
    gate.open();
    let run = wait_for_status(&client, "work", RunStatus::Succeeded);
    assert_eq!(run.output.as_deref(), Some("first\nsecond\n--- stderr ---\noops\n"));
    sidecar.terminate();
    db.assert_sound();
}

/// Output that has not changed is not written, and that of a short command only at its end.
#[test]
fn only_new_output_is_written_at_most_once_a_second() {
    let (db, client, mut gate) = with_gate();
    db.plain()
        .execute_batch(
            "CREATE TABLE writes (run INTEGER);
             CREATE TRIGGER count_writes AFTER UPDATE OF output ON task_runs WHEN new.output IS NOT NULL
             BEGIN INSERT INTO writes VALUES (new.id); END",
        )
        .unwrap();
    let home = db.home().display();
    client.add(shell("quiet", &format!("cd {home}; echo once; read go <gate"))).unwrap();
    client.add(shell("ticks", "for n in $(seq 40); do echo $n; sleep 0.1; done")).unwrap();
    client.add(shell("short", "echo short")).unwrap();
    let writes = |task: &str| -> usize {
        db.number(&format!(
            "SELECT count(*) FROM writes w JOIN task_runs r ON r.id = w.run JOIN scheduled_tasks t ON t.id = r.task_id
              WHERE t.name = '{task}'"
        ))
    };
    let mut sidecar = Sidecar::start(&db, &[]);
    let ticks = wait_for_status(&client, "ticks", RunStatus::Succeeded);
    wait_for_status(&client, "short", RunStatus::Succeeded);
    // The last one is the end.
    let most = 1 + ticks.duration.expect("a duration").as_secs() as usize;
    assert!((3..=most).contains(&writes("ticks")), "{} of {most}", writes("ticks"));
    assert_eq!((writes("quiet"), writes("short")), (1, 1));
    gate.open();
    wait_for_status(&client, "quiet", RunStatus::Succeeded);
    sidecar.terminate();
}

#[test]
fn a_killed_scheduler_leaves_what_it_reported() {
    let (db, client, _gate) = with_gate();
    let line = format!("cd {}; echo before the kill; read go <gate", db.home().display());
    client.add(shell("work", &line).at_most_once()).unwrap();
    let mut killed = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "before the kill");
    killed.kill();
    let mut next = Sidecar::start(&db, &["--lease", "1s"]);
    wait_for_status(&client, "work", RunStatus::Dead);
    let attempts = client.attempts(1).unwrap();
    assert_eq!((attempts[0].outcome, attempts[0].output.as_deref()), (AttemptOutcome::Lost, Some("before the kill\n")));
    next.terminate();
    db.assert_sound();
}

/// A retry begins with no output; the attempt before it keeps its own.
#[test]
fn each_attempt_has_its_own_output() {
    let (db, client, mut gate) = with_gate();
    let line = format!("cd {}; echo \"try $DULY_ATTEMPT\"; read go <gate; [ $DULY_ATTEMPT = 2 ]", db.home().display());
    client.add(retry_soon(shell("work", &line), 2)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "try 1");
    gate.open();
    assert_eq!(wait_for_output(&db, 1, "try 2"), "try 2\n");
    assert_eq!(client.attempts(1).unwrap()[0].output.as_deref(), Some("try 1\n"));
    gate.open();
    wait_for_status(&client, "work", RunStatus::Succeeded);
    sidecar.terminate();
}

#[test]
fn ten_megabytes_of_a_running_command_stay_small() {
    let (db, client, mut gate) = with_gate();
    let line = format!(
        "cd {}; echo begins; read go <gate; yes 'a line of the flood' | head -c 10000000; read go <gate",
        db.home().display()
    );
    client.add(shell("flood", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--forward-output"]);
    wait_for_output(&db, 1, "begins");
    let peak = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let before = peak();
    gate.open();
    let output = wait_for_output(&db, 1, "[... 10000007 bytes in all");
    assert!(output.len() < 65 * 1024, "{}", output.len());
    let logs = db.printed(&["logs", "1"]);
    assert!(logs.contains("10000007 bytes in all"), "{logs}");
    let sizes = [db.file().to_owned(), db.file().with_extension("db-wal")]
        .map(|path| std::fs::metadata(path).map_or(0, |file| file.len()));
    assert!(sizes.iter().sum::<u64>() < 8 * 1024 * 1024, "{sizes:?}");
    // The growth: how large the program is depends on how it was compiled.
    assert!(peak() < before + 8_000, "{before} kB, then {} kB", peak());
    gate.open();
    wait_for_status(&client, "flood", RunStatus::Succeeded);
    sidecar.terminate();
}

/// Started before the run, and through two attempts.
#[test]
fn follow_prints_each_attempt_once_until_the_run_has_ended() {
    let (db, client, mut gate) = with_gate();
    let line = format!(
        "cd {}; echo \"try $DULY_ATTEMPT\"; printf half; read go <gate; echo ' a line'; echo oops >&2; read go <gate;
         echo more; [ $DULY_ATTEMPT = 2 ]",
        db.home().display()
    );
    client.add(retry_soon(shell("work", &line), 2)).unwrap();
    client.trigger("work").unwrap();
    let (mut follower, printed) = start(&db, "follow", &["logs", "work", "--follow"]);
    eventually("it waits for the run", || printed.stdout() == "run 1 of work is queued\n");
    let warning = "warning: no scheduler is alive: run 1 waits until one is started with duly run\n";
    eventually("it warns", || printed.stderr() == warning);
    let mut sidecar = Sidecar::start(&db, &[]);
    for attempt in 1..=2 {
        let begin = format!("try {attempt}\nhalf");
        eventually("the first part is printed", || printed.stdout().ends_with(&begin));
        assert!(!follower.has_ended());
        gate.open();
        eventually("the second part is printed", || printed.stdout().ends_with("half a line\n--- stderr ---\noops\n"));
        gate.open();
    }
    assert_eq!(follower.exit_code(), Some(0), "{}", printed.stderr());
    let text = printed.stdout();
    let mut lines: Vec<&str> = text.lines().collect();
    let end = lines.pop().unwrap();
    assert!(end.starts_with("run 1 of work succeeded after "), "{text}");
    let failed = lines.remove(7);
    assert!(failed.starts_with("attempt 1 of run 1 of work: failed after "), "{text}");
    assert!(failed.contains(": exit code 1"), "{text}");
    let attempt = ["half a line", "--- stderr ---", "oops", "--- stdout ---", "more"];
    let expected =
        [&["run 1 of work is queued", "try 1"], &attempt[..], &["attempt 2 of run 1 of work", "try 2"], &attempt];
    assert_eq!(lines, expected.concat(), "{text}");
    sidecar.terminate();

    // A run that has ended is printed whole, quietly only its output.
    let output = db.printed(&["-q", "logs", "-f", "1"]);
    let attempts = ["try 1", "try 2"].map(|first| format!("{first}\nhalf a line\nmore\n--- stderr ---\noops\n"));
    assert_eq!(output, attempts.concat());
    let document: Value = serde_json::from_str(&db.printed(&["logs", "-f", "1", "--json"])).unwrap();
    assert_eq!((&document["status"], &document["attempt"]), (&json!("succeeded"), &json!(2)));
}

#[test]
fn follow_fails_with_its_run_and_names_what_it_left_out() {
    let (db, client, mut gate) = with_gate();
    let line = format!(
        "cd {}; echo begin; read go <gate; yes 1234567 | head -c 800000; echo end; read go <gate; exit 3",
        db.home().display()
    );
    client.add(shell("work", &line).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "begin");
    let (mut follower, printed) = start(&db, "follow", &["logs", "-f", "1"]);
    eventually("the first part is printed", || printed.stdout().ends_with("begin\n"));
    gate.open();
    eventually("the end is printed", || printed.stdout().ends_with("\nend\n"));
    gate.open();
    assert_eq!(follower.exit_code(), Some(1));
    let error = printed.stderr();
    assert!(error.starts_with("error: run 1 of work is dead after ") && error.ends_with(": exit code 3\n"), "{error}");
    let text = printed.stdout();
    let (_, gap) = text.split_once("\n... ").expect("a gap");
    let (omitted, _) = gap.split_once(" bytes omitted ...\n").expect("a number of bytes");
    let omitted: usize = omitted.parse().unwrap();
    let ours = text.matches("1234567\n").count() * 8;
    assert!(text.contains("begin\n1234567\n") && text.len() < 80_000);
    // The end that is kept begins within a line.
    assert!((800_000..800_016).contains(&(omitted + ours + 8)), "{omitted} and {ours}");
    sidecar.terminate();
}

#[test]
fn follow_ends_when_the_database_or_its_reader_is_gone() {
    let (db, client) = TestDb::with_client();
    client.add(far_future("work").handler("command").payload(json!({ "argv": ["true"] }))).unwrap();
    let refused = db.duly(&["logs", "work"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "error: work has no run yet\n");
    client.trigger("work").unwrap();
    let (mut follower, printed) = start(&db, "follow", &["logs", "-f", "1"]);
    let mut unread = Process::spawn(db.duly(&["-q", "logs", "-f", "1"]).stdout(Stdio::piped()).stderr(Stdio::null()));
    drop(unread.0.stdout.take());
    eventually("it waits for the run", || printed.stdout().contains("is queued"));
    assert!(!unread.has_ended());
    // Its output has no reader: as with other commands, no failure.
    client.cancel(1).unwrap();
    assert_eq!(follower.exit_code(), Some(1));
    assert!(printed.stderr().ends_with("error: run 1 of work is cancelled: cancelled before it began\n"));
    assert_eq!(unread.exit_code(), Some(1), "nothing was printed");

    client.trigger("work").unwrap();
    let mut unread = Process::spawn(db.duly(&["logs", "-f", "2"]).stdout(Stdio::piped()).stderr(Stdio::null()));
    drop(unread.0.stdout.take());
    let (mut follower, printed) = start(&db, "gone", &["logs", "-f", "2"]);
    eventually("it waits for the run", || printed.stdout().contains("is queued"));
    assert_eq!(unread.exit_code(), Some(0), "the first line could not be printed");
    std::fs::rename(db.file(), db.home().join("elsewhere")).unwrap();
    assert_eq!(follower.exit_code(), Some(4), "{}", printed.stderr());
    std::fs::rename(db.home().join("elsewhere"), db.file()).unwrap();
}

/// What is printed before the first word on standard error is not printed again after it.
#[test]
fn follow_prints_a_line_once_when_standard_error_begins_after_it() {
    let (db, client, mut gate) = with_gate();
    let line =
        format!("cd {}; echo first; read go <gate; echo oops >&2; read go <gate; echo second", db.home().display());
    client.add(shell("work", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "first");
    let (mut follower, printed) = start(&db, "follow", &["-q", "logs", "-f", "1"]);
    eventually("the first line is printed", || printed.stdout() == "first\n");
    gate.open();
    eventually("the error is printed", || printed.stdout().ends_with("oops\n"));
    gate.open();
    assert_eq!(follower.exit_code(), Some(0), "{}", printed.stderr());
    assert_eq!(printed.stdout(), "first\n--- stderr ---\noops\n--- stdout ---\nsecond\n");
    sidecar.terminate();
}

#[test]
fn follow_names_what_it_left_out_under_the_heading_of_its_stream() {
    let (db, client, mut gate) = with_gate();
    let line = format!(
        "cd {}; yes 1234567 | head -c 100000; echo oops >&2; read go <gate; yes 1234567 | head -c 800000; echo end",
        db.home().display()
    );
    client.add(shell("work", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_output(&db, 1, "oops");
    let (mut follower, printed) = start(&db, "follow", &["logs", "-f", "1"]);
    eventually("the error is printed", || printed.stdout().ends_with("--- stderr ---\noops\n"));
    gate.open();
    assert_eq!(follower.exit_code(), Some(0), "{}", printed.stderr());
    let text = printed.stdout();
    let (_, after) = text.split_once("oops\n").expect("the error");
    assert!(after.starts_with("--- stdout ---\n") && after.contains(" bytes omitted ...\n"), "{}", &after[..200]);
    sidecar.terminate();
}

/// The last line has no end, and a process that left the group of the command holds the pipe.
#[test]
fn the_last_line_of_a_command_is_forwarded_although_its_pipe_stays_open() {
    let (db, client, mut gate) = with_gate();
    let line = format!("cd {}; setsid sh -c 'read go <gate; echo late' & echo begin; printf end", db.home().display());
    client.add(shell("work", &line)).unwrap();
    let (mut duly, printed) = start(&db, "run", &["run", "--until-idle", "--forward-output"]);
    assert_eq!(duly.exit_code(), Some(0), "{}", printed.stderr());
    gate.open();
    assert_eq!(db.run(1).output.as_deref(), Some("begin\nend"));
    assert_eq!(printed.stdout(), "work: begin\nwork: end\n");
}

/// Two commands that print at the same time, on both streams.
#[test]
fn forwarded_lines_are_whole_and_name_their_task() {
    const LINES: usize = 2000;
    let (db, client) = TestDb::with_client();
    let filling = "x".repeat(90);
    let mut gates = ["a", "b"].map(|name| (name, Gate::new(&db, name)));
    for (name, _) in &gates {
        let line = format!(
            "cd {}; read go <{name}; seq -f '%g {filling}' {LINES}; seq -f '%g {filling}' {LINES} >&2; printf '\\033[2Jend'",
            db.home().display()
        );
        client.add(shell(name, &line)).unwrap();
    }
    let (mut duly, printed) = start(&db, "run", &["run", "--poll", "50ms", "--until-idle", "--forward-output"]);
    eventually("both run", || db.count(RunStatus::Running) == 2);
    gates.iter_mut().for_each(|(_, gate)| gate.open());
    assert_eq!(duly.exit_code(), Some(0), "{}", printed.stderr());
    let expected = |name| (1..=LINES).map(|n| format!("{name}: {n} {filling}")).collect::<Vec<_>>();
    let (stdout, stderr) = (printed.stdout(), printed.stderr());
    for (name, _) in &gates {
        let prefix = format!("{name}: ");
        let end = format!("{name}: \\u{{1b}}[2Jend");
        let of =
            |text: &str| text.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect::<Vec<_>>();
        assert!(of(&stdout) == [expected(name), vec![end]].concat(), "{name}: {stdout}");
        assert!(of(&stderr) == expected(name), "{name}: {stderr}");
    }
    assert_eq!(stdout.lines().count(), 2 * (LINES + 1));
    let log = stderr.lines().filter(|line| !line.starts_with("a: ") && !line.starts_with("b: "));
    assert!(log.clone().all(|line| line.contains(" [INFO] ")), "{:?}", log.collect::<Vec<_>>());
}

#[test]
fn with_a_json_log_each_forwarded_line_is_an_object() {
    let (db, client) = TestDb::with_client();
    client.add(shell("work", "echo 'say \"it\"'; echo oops >&2")).unwrap();
    let (mut duly, printed) = start(&db, "run", &["run", "--until-idle", "--forward-output", "--log-format", "json"]);
    assert_eq!(duly.exit_code(), Some(0), "{}", printed.stderr());
    let object = |stream: &str, line: &str| json!({ "task": "work", "run": 1, "stream": stream, "line": line });
    let parsed = |text: &str| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(parsed(&printed.stdout()), [object("stdout", "say \"it\"")]);
    let stderr = parsed(&printed.stderr());
    assert_eq!(stderr.iter().filter(|line| **line == object("stderr", "oops")).count(), 1);
    assert!(stderr.iter().all(|line| line.get("stream").is_some() != line.get("level").is_some()), "{stderr:?}");
    // Without the option nothing is copied.
    client.trigger("work").unwrap();
    let (mut duly, printed) = start(&db, "plain", &["run", "--until-idle"]);
    assert_eq!(duly.exit_code(), Some(0));
    assert!(printed.stdout().is_empty() && !printed.stderr().contains("oops"));
}
