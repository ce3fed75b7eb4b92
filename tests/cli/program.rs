//! Tests of the program that need more than a transcript: waiting, closed outputs, file permissions, terminals, shells.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{BoxError, Client, Clock, Context, Failure, NewTask, Outcome, RetryPolicy, Scheduler, SystemClock};
use tempfile::TempDir;

use crate::waits::{eventually, exited, held, patience, receive};

const PROGRAM: &str = env!("CARGO_BIN_EXE_duly");

pub(crate) fn duly(folder: &Path, line: &[&str]) -> Output {
    program(folder, line).output().expect("the program")
}

pub(crate) fn program(folder: &Path, line: &[&str]) -> Command {
    let mut program = Command::new(PROGRAM);
    program.args(line).current_dir(folder).env("TZ", "UTC").env_remove("COLUMNS");
    program
}

/// Exit code, stdout and stderr.
pub(crate) fn result(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("an exit"), text(&output.stdout), text(&output.stderr))
}

pub(crate) fn temp_dir() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn a_run_can_be_waited_for() {
    let home = temp_dir();
    let scheduler = Scheduler::builder(home.path().join("duly.db"))
        .poll(Duration::from_millis(20))
        .handler("work", |run: &Context| match run.payload::<String>().map_err(Failure::give_up)?.as_str() {
            "good" => Ok(()),
            other => Err(Failure::give_up(format!("cannot work on {other}\nat all"))),
        })
        .start()
        .expect("a scheduler");
    let far = "2999-01-01T12:00:00Z".parse().expect("an instant");
    scheduler.add(NewTask::once("t", far).handler("work").payload("good")).expect("a task");

    let (code, out, err) = result(&duly(home.path(), &["trigger", "t", "--wait"]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("run 1 of t is queued\nrun 1 of t succeeded after "), "{out}");

    let bad = ["trigger", "t", "--wait", "--payload", "\"bad\""];
    let (code, out, err) = result(&duly(home.path(), &bad));
    assert_eq!((code, out.as_str()), (1, "run 2 of t is queued\n"));
    let end = ": cannot work on bad\\nat all; see duly logs 2\n";
    assert!(err.starts_with("error: run 2 of t is dead after ") && err.ends_with(end), "{err}");

    let (code, out, err) = result(&duly(home.path(), &[&bad[..], &["--json"]].concat()));
    let document: serde_json::Value = serde_json::from_str(&out).expect("one document");
    assert_eq!((code, &document["status"], &document["payload"]), (1, &"dead".into(), &"bad".into()));
    assert_eq!(err.lines().count(), 1, "{err}");
    scheduler.shutdown(Duration::from_secs(30)).expect("an end");
}

/// Without a scheduler, `trigger --wait` says what it waits for. With one it says nothing, see `a_run_can_be_waited_for`.
#[test]
fn waiting_without_a_scheduler_is_reported() {
    let home = temp_dir();
    assert_eq!(result(&duly(home.path(), &["add", "t", "--manual", "--", "true"])).0, 0);
    let mut waits = program(home.path(), &["trigger", "t", "--wait"]);
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut errors = BufReader::new(waits.stderr.take().expect("a pipe"));
    let (send, first_line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        errors.read_line(&mut line).map(|_| send.send((line, errors)))
    });
    let line = receive(&first_line, "a line").0;
    // The run ends in any case.
    assert_eq!(result(&duly(home.path(), &["-q", "run", "--until-idle"])).0, 0);
    let (code, out, _) = result(&waits.wait_with_output().expect("an end"));
    assert_eq!(line, "warning: no scheduler is alive: run 1 waits until one is started with duly run\n");
    assert!(code == 0 && out.contains("run 1 of t succeeded"), "{out}");
}

/// `remove --cancel` ends a running run before it removes the task; without the option, the task is kept.
#[test]
fn a_task_is_removed_with_its_running_run_only_if_requested() {
    let home = temp_dir();
    let (begin, begun) = std::sync::mpsc::channel();
    let scheduler = Scheduler::builder(home.path().join("duly.db"))
        .poll(Duration::from_millis(20))
        .handler("work", move |run: &Context| {
            begin.send(()).map_err(|_| Failure::give_up("the test has ended"))?;
            run.wait_cancelled(patience());
            Err::<(), _>(Failure::give_up("stopped"))
        })
        .start()
        .expect("a scheduler");
    scheduler.add(NewTask::manual("t").handler("work")).expect("a task");
    scheduler.add(NewTask::manual("other").handler("work")).expect("a task");
    scheduler.trigger("t").expect("a run");
    receive(&begun, "a start");

    let (code, out, err) = result(&duly(home.path(), &["remove", "t"]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("a run of it is running"), "{err}");
    assert!(scheduler.task("t").expect("a task").is_some());
    // A script must not go on as if the task were gone.
    let (code, out, err) = result(&duly(home.path(), &["remove", "--name", "t", "--yes"]));
    assert_eq!((code, err.as_str()), (1, "error: not removed: 1 task\n"));
    assert!(out.starts_with("removed no task\nnot changed: "), "{out}");

    let (code, out, err) = result(&duly(home.path(), &["remove", "t", "--cancel"]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(out, "1 unfinished run of t cancelled; t and its history are removed\n");
    assert!(scheduler.task("t").expect("a look").is_none() && scheduler.task("other").expect("a look").is_some());
    scheduler.shutdown(Duration::from_secs(30)).expect("an end");
}

/// The formats of the log: with JSON each line is an object, also the last one, an error; journald has its own times. `DULY_LOG`
/// and `-v` set the level.
#[test]
fn the_log_has_the_requested_format_and_level() {
    let home = temp_dir();
    let log = |line: &[&str], level: &str| {
        let output = program(home.path(), line).env("DULY_LOG", level).env_remove("JOURNAL_STREAM").output();
        result(&output.expect("the program")).2
    };
    assert_eq!(result(&duly(home.path(), &["add", "t", "--now", "--at-most-once", "--", "false"])).0, 0);
    let text = log(&["run", "--until-idle"], "");
    let time = text.split_once(' ').expect("a line").0;
    assert!(time.len() == "2027-03-14T07:00:00.042Z".len() && time.parse::<duly::Timestamp>().is_ok(), "{text}");
    assert!(text.contains(" [INFO] scheduler started") && !text.contains("[DEBUG]"), "{text}");

    let missing = ["--db", "missing.db", "run"];
    for line in [&["--json", "run", "--until-idle"][..], &[&["--json"][..], &missing].concat()] {
        let json = log(line, "debug");
        for line in json.lines() {
            let object: serde_json::Value = serde_json::from_str(line).expect("an object");
            assert!(object["time"].is_string() && object["message"].is_string(), "{line}");
        }
        let is_run = !json.contains("missing.db");
        assert_eq!(json.contains("\"level\":\"debug\""), is_run, "{json}");
        assert_eq!(json.contains("\"level\":\"error\""), !is_run, "{json}");
    }

    let journald = log(&["run", "--until-idle", "--log-format", "journald"], "warn");
    assert_eq!(journald, "");
    let journald = log(&["-v", "run", "--until-idle", "--log-format", "journald"], "warn");
    assert!(journald.starts_with("<6>scheduler started") && journald.contains("\n<7>"), "{journald}");
    assert!(journald.lines().all(|line| line.starts_with(['<']) && !line.contains("Z [")), "{journald}");
    let error = log(&["run", "--log-format", "journald", "--db", "missing.db"], "");
    assert!(error.starts_with("<3>error: cannot use missing.db"), "{error}");

    let refused = log(&["run", "--until-idle"], "loud");
    let expected = "error: invalid DULY_LOG: expected off, error, warn, info, debug or trace, found \"loud\"\n";
    assert_eq!(refused, expected);
}

/// Standard error is the journal only if `JOURNAL_STREAM` names its device and inode: a child of a service inherits the variable.
#[cfg(unix)]
#[test]
fn the_journal_is_recognized_by_its_stream() {
    use std::os::unix::fs::MetadataExt;
    let home = temp_dir();
    assert_eq!(result(&duly(home.path(), &["add", "t", "--manual", "--", "true"])).0, 0);
    let path = home.path().join("errors");
    for (offset, begin) in [(0, "<6>scheduler started"), (1, "20")] {
        let errors = std::fs::File::create(&path).expect("a file");
        let file = errors.metadata().expect("its inode");
        let stream = format!("{}:{}", file.dev(), file.ino() + offset);
        let mut program = program(home.path(), &["run", "--until-idle"]);
        let status = program.env("JOURNAL_STREAM", stream).env_remove("DULY_LOG").stderr(errors).status();
        assert!(status.expect("the program").success());
        let log = std::fs::read_to_string(&path).expect("the log");
        assert!(log.starts_with(begin), "{offset}: {log}");
    }
}

/// A failed run is printed with its next attempt by every command that lists it; a dead one is not. JSON has its columns.
#[test]
fn a_failed_run_is_printed_with_its_next_attempt() {
    let home = temp_dir();
    let now = SystemClock::new().now().wall;
    let mut stepper = Stepper::builder(home.path().join("duly.db"), now).accept("work").start().expect("a stepper");
    let hour = Duration::from_secs(3600);
    let retry = RetryPolicy { backoff: hour, max_backoff: hour, ..RetryPolicy::default() };
    let task = |name: &str| NewTask::once(name, now).handler("work");
    stepper.client().add_all([task("flaky").retry(retry), task("broken").at_most_once()]).expect("tasks");
    for claim in stepper.step().expect("a turn") {
        stepper.finish(&claim, Outcome::failed("no route to host"));
    }
    stepper.step().expect("a turn");

    let (_, json, _) = result(&duly(home.path(), &["history", "flaky", "--json"]));
    let runs: serde_json::Value = serde_json::from_str(&json).expect("one document");
    assert_eq!((&runs[0]["status"], runs[0]["run_at"].is_string()), (&"failed".into(), true), "{json}");
    let id = runs[0]["id"].to_string();
    // The backoff is 30 to 60 minutes.
    for line in [&["list"][..], &["history"], &["show", "flaky"], &["logs", &id]] {
        let (_, out, _) = result(&program(home.path(), line).env("COLUMNS", "120").output().expect("the program"));
        let retries = out.matches("retry in ").count();
        assert!(retries == 1 && !out.contains("retry is due"), "{line:?}: {out}");
        let broken = out.lines().find(|line| line.contains("broken"));
        assert!(broken.is_none_or(|line| line.contains("dead") && !line.contains("retry")), "{out}");
    }
    let (_, out, _) = result(&duly(home.path(), &["status"]));
    assert!(out.contains("1 failed (retry in "), "{out}");
    let (_, out, _) = result(&duly(home.path(), &["show", "broken"]));
    assert!(!out.contains("retry"), "{out}");

    // The time has passed and no scheduler has started the attempt.
    let plain = rusqlite::Connection::open(home.path().join("duly.db")).expect("a connection");
    plain.execute("UPDATE task_runs SET run_at = ?1 WHERE status = 'failed'", [now.as_millis()]).expect("an update");
    for line in [&["list"][..], &["history"], &["status"]] {
        let (_, out, _) = result(&program(home.path(), line).env("COLUMNS", "120").output().expect("the program"));
        assert!(out.contains("retry is due") && !out.contains("retry in"), "{line:?}: {out}");
    }
}

#[test]
fn a_running_run_shows_its_progress() {
    let home = temp_dir();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let scheduler = Scheduler::builder(home.path().join("duly.db"))
        .handler("work", move |run: &Context| {
            run.effect("fetch", || Ok(120))?;
            run.progress("page 7 of 120\u{1b}[2J, and words without end");
            held(&*gate.lock().expect("a gate")).map(|()| "done").map_err(BoxError::from)
        })
        .start()
        .expect("a scheduler");
    let past = "2020-01-01T12:00:00Z".parse().expect("an instant");
    scheduler.add(NewTask::once("t", past).handler("work")).expect("a task");
    let runs = || scheduler.history("t", 1).expect("runs");
    eventually("it has progress", || runs().first().is_some_and(|run| run.progress.is_some()));
    for line in [&["history"][..], &["show", "t"]] {
        let narrow = program(home.path(), line).env("COLUMNS", "80").output().expect("the program");
        let (code, out, err) = result(&narrow);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("running") && out.contains("page 7 of 120\\u{1b}[2J, and..."), "{out}");
    }
    let words = "page 7 of 120\u{1b}[2J, and words without end";
    for line in [&["history", "--json"][..], &["show", "t", "--json"], &["logs", "1", "--json"]] {
        let (_, out, _) = result(&duly(home.path(), line));
        let document: serde_json::Value = serde_json::from_str(&out).expect("one document");
        let run = document.get(0).or(document.get("runs").and_then(|runs| runs.get(0))).unwrap_or(&document);
        assert_eq!(run["progress"], words, "{line:?}: {out}");
    }
    open.send(()).expect("a handler that waits");
    scheduler.shutdown(Duration::from_secs(30)).expect("an end");
    let (_, out, _) = result(&duly(home.path(), &["logs", "1"]));
    assert!(out.contains("page 7 of 120\\u{1b}[2J, and words without end"), "{out}");
    assert!(out.contains("result") && out.contains("\"done\""), "{out}");
    assert!(out.contains("fetch: done"), "{out}");
    let (_, out, _) = result(&duly(home.path(), &["history"]));
    assert!(out.contains("succeeded ") && !out.contains("page 7"), "{out}");

    // An effect in doubt.
    let plain = rusqlite::Connection::open(home.path().join("duly.db")).expect("a connection");
    plain.execute_batch("UPDATE task_effects SET state = 'intent', created_at = 1805000000000").expect("an update");
    let (_, out, _) = result(&duly(home.path(), &["logs", "1"]));
    assert!(out.contains("fetch: in doubt, started 2027-03-14 04:53:20"), "{out}");
    let (_, out, _) = result(&duly(home.path(), &["logs", "1", "--json"]));
    let document: serde_json::Value = serde_json::from_str(&out).expect("one document");
    let effect = serde_json::json!([{
        "key": "fetch", "run_id": 1, "state": "intent", "value": 120, "created_at": "2027-03-14T04:53:20.000Z",
        "done_at": document["effects"][0]["done_at"],
    }]);
    assert_eq!(document["effects"], effect, "{out}");
}

#[test]
fn an_output_that_is_closed_early_is_no_failure() {
    let home = temp_dir();
    let client = Client::open(home.path().join("duly.db")).expect("a client");
    let far = "2999-01-01T12:00:00Z".parse().expect("an instant");
    // More than a pipe holds.
    client.add_all((0..2000).map(|n| NewTask::once(format!("task-{n}"), far).handler("work"))).expect("tasks");
    for line in [&["list"][..], &["list", "--json"], &["--help"]] {
        let mut program = Command::new(PROGRAM);
        program.args(line).current_dir(home.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().expect("the program");
        drop(child.stdout.take());
        assert_eq!(result(&child.wait_with_output().expect("an end")), (0, String::new(), String::new()), "{line:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let home = temp_dir();
    drop(Client::open(home.path().join("duly.db")).expect("a client"));
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let mut program = Command::new(PROGRAM);
    program.args(["list"]).current_dir(home.path()).stdout(full).stderr(Stdio::piped());
    let (code, _, err) = result(&program.output().expect("the program"));
    assert_eq!((code, err.as_str()), (1, "error: cannot print: No space left on device (os error 28)\n"));
}

/// Serial lines, and programs that make a terminal for another, often give it no size.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_of_unknown_width_gets_whole_lines() {
    if Command::new("script").arg("--version").output().is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "script is missing");
        return println!("skipped: no script");
    }
    let home = temp_dir();
    assert_eq!(result(&duly(home.path(), &["add", "t", "--cron", "@daily", "--", "true"])).0, 0);
    let mut terminal = Command::new("script");
    let line = format!("stty rows 0 cols 0; '{PROGRAM}' list");
    terminal.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").current_dir(home.path());
    let (code, out, err) = result(&terminal.stdin(Stdio::null()).output().expect("script"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("NAME  SCHEDULE     STATUS") && out.contains("t     cron @daily  active"), "{out}");
}

/// On a terminal no line is wider than it: cells of a list are shortened, and long last cells of other tables are wrapped.
#[cfg(target_os = "linux")]
#[test]
fn no_line_of_a_table_is_wider_than_the_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "script is missing");
        return println!("skipped: no script");
    }
    let home = temp_dir();
    super::seed::fill(&home.path().join("duly.db"));
    for columns in [50, 80, 120] {
        for line in ["list --all", "history", "show hourly", "logs 6", "status", "next '0 12 * * *' --from 2011-12-29"]
        {
            let mut terminal = Command::new("script");
            let line = format!("stty rows 24 cols {columns}; '{PROGRAM}' {line}");
            terminal.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").current_dir(home.path());
            let (code, out, _) = result(&terminal.stdin(Stdio::null()).output().expect("script"));
            assert!(code == 0 && out.lines().all(|line| line.chars().count() <= columns), "{columns} {line}: {out}");
            // The reason is complete, on more than one line in a narrow terminal.
            let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(!line.ends_with("logs 6") || words.contains("was unfinished (overlap policy)"), "{out}");
        }
    }
}

/// Another process holds the write lock, so that applying a manifest takes time: a bar is drawn on the terminal and erased. With
/// --quiet, with --json and without a terminal no bar is drawn.
#[cfg(target_os = "linux")]
#[test]
fn long_work_shows_a_progress_bar_on_a_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "script is missing");
        return println!("skipped: no script");
    }
    let home = temp_dir();
    drop(Client::open(home.path().join("duly.db")).expect("a client"));
    std::fs::write(home.path().join("t.toml"), "[[task]]\nname = \"t\"\nevery = \"1h\"\ncommand = [\"true\"]\n")
        .expect("a file");
    let other = rusqlite::Connection::open(home.path().join("duly.db")).expect("a connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    let typescript = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    let apply = |name: &str, line: &str| {
        let mut terminal = Command::new("script");
        terminal.args(["-qefc", &line.replace("duly", &format!("'{PROGRAM}'")), name]).env("TERM", "xterm");
        terminal.current_dir(home.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        terminal.spawn().expect("script")
    };
    let without = [
        apply("quiet", "duly -q apply t.toml"),
        apply("json", "duly --json apply t.toml"),
        apply("piped", "duly apply t.toml 2>errors"),
    ];
    let shown = apply("shown", "duly apply t.toml >output");
    eventually("a bar is shown", || typescript("shown").contains("applying ["));
    other.execute_batch("ROLLBACK").expect("an end");
    for mut child in without.into_iter().chain([shown]) {
        assert!(exited(&mut child, "the program").success());
    }
    for name in ["quiet", "json", "piped", "errors", "output"] {
        assert!(!typescript(name).contains("applying"), "{name}: {:?}", typescript(name));
    }
    let shown = typescript("shown");
    let bar = shown.split('\r').find(|line| line.contains("applying")).expect("a bar");
    assert!(bar.contains("[........................................]   0%"), "{shown:?}");
    // What `script` writes of its own stands on lines that begin with its name.
    let left = shown.lines().filter(|line| !line.starts_with("Script ")).collect::<String>();
    assert!(left.ends_with("\r\u{1b}[K"), "{left:?}");
}

/// Runs the program as a user who is not root, because file modes do not bind root. `None`: not possible here.
#[cfg(unix)]
fn as_nobody(home: &Path, files: &[&Path], line: &[&str]) -> Option<Output> {
    use std::os::unix::fs::{MetadataExt, chown};
    if std::fs::metadata(home).expect("a folder").uid() != 0 {
        return Some(duly(home, line));
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "setpriv is missing");
        println!("skipped: no setpriv");
        return None;
    }
    for path in files {
        chown(path, Some(65_534), Some(65_534)).expect("another owner");
    }
    let mut dropped = Command::new("setpriv");
    dropped.args(["--reuid=65534", "--regid=65534", "--clear-groups", PROGRAM]).args(line);
    Some(dropped.current_dir(home).output().expect("the program"))
}

#[cfg(unix)]
#[test]
fn files_without_permission_are_named_and_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for (permission, says) in [(0o444, "it is read-only"), (0o000, "")] {
        let home = temp_dir();
        let file = home.path().join("duly.db");
        drop(Client::open(&file).expect("a client"));
        mode(&file, permission);
        let Some(output) = as_nobody(home.path(), &[home.path(), &file], &["list"]) else { return };
        let (code, out, err) = result(&output);
        assert_eq!((code, out.as_str()), (4, ""), "{err}");
        assert!(err.starts_with("error: cannot use ") && err.contains("duly.db: ") && err.contains(says), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let home = temp_dir();
    mode(home.path(), 0o500);
    let line = ["add", "t", "--every", "1h", "--", "true"];
    let Some(output) = as_nobody(home.path(), &[home.path()], &line) else { return };
    let (code, out, err) = result(&output);
    assert_eq!((code, out.as_str(), err.lines().count()), (4, "", 1), "{err}");
    mode(home.path(), 0o700);
}

/// Each shell that is here reads its script; bash completes with it.
#[test]
fn shells_read_their_completions() {
    let home = temp_dir();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, err) = result(&duly(home.path(), &["completions", shell]));
        assert_eq!((code, err.as_str()), (0, ""), "{shell}");
        assert!(script.contains("until-idle") && script.contains("doctor"), "{shell}");
        let file = home.path().join(shell);
        std::fs::write(&file, script).expect("a script");
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(output) if ["bash", "zsh", "fish"].contains(&shell) => {
                assert_eq!(result(&output), (0, String::new(), String::new()), "{shell}");
            }
            _ => println!("skipped: no {shell}"),
        }
    }
    let line = "source ./bash; COMP_WORDS=(duly do); COMP_CWORD=1; _duly duly do duly; echo ${COMPREPLY[@]}";
    if let Ok(output) = Command::new("bash").args(["-c", line]).current_dir(home.path()).output() {
        assert_eq!(result(&output), (0, "doctor\n".to_owned(), String::new()));
    }
    assert_eq!(std::fs::read_dir(home.path()).expect("a folder").count(), 5, "no database is made");
}

/// The line of `docs/deployment.md` installs completions for later shells.
#[test]
fn the_line_of_the_page_installs_completions() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/deployment.md")).expect("the page");
    let row = page.lines().find_map(|line| line.strip_prefix("| bash | `")).expect("a row for bash");
    let install = row.split('`').next().expect("a command");
    let home = temp_dir();
    let folder = Path::new(PROGRAM).parent().expect("a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", &format!("{install}; source ~/.bashrc; complete -p duly")]);
    match shell.env("HOME", home.path()).env("PATH", path).current_dir(home.path()).output() {
        Ok(output) => {
            let (code, out, err) = result(&output);
            assert_eq!((code, err.as_str()), (0, ""));
            assert!(out.ends_with(" duly\n"), "{out}");
        }
        Err(_) => println!("skipped: no bash"),
    }
}

/// The lines of `docs/deployment.md` install the manual pages beside the program.
#[cfg(unix)]
#[test]
fn the_lines_of_the_page_install_the_manual() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/deployment.md")).expect("the page");
    let section = page.split_once("## Manual pages").expect("a section").1;
    let lines = section.split("```").nth(1).and_then(|block| block.strip_prefix("sh\n")).expect("commands");
    let home = temp_dir();
    std::fs::create_dir(home.path().join("bin")).expect("a folder");
    std::os::unix::fs::symlink(PROGRAM, home.path().join("bin/duly")).expect("a link");
    let path = format!("{}:{}", home.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-euc", lines]).env("PATH", &path).current_dir(home.path());
    assert_eq!(result(&shell.output().expect("sh")), (0, String::new(), String::new()));
    let written = std::fs::read_to_string(home.path().join("share/man/man1/duly-logs.1")).expect("a page");
    assert!(written.contains(".TH duly-logs 1"), "{written}");
    match Command::new("man").args(["-w", "duly-logs"]).env("PATH", path).env_remove("MANPATH").output() {
        Ok(found) => assert!(result(&found).1.ends_with("/share/man/man1/duly-logs.1\n"), "{found:?}"),
        Err(_) => println!("skipped: no man"),
    }
}

/// Names of tasks are completed by shells as they are: in the file that the line names, and with the letters at which bash
/// breaks words. What a shell does with them after that is its own.
#[test]
fn shells_complete_names_of_tasks() {
    let home = temp_dir();
    let far = "2999-01-01T12:00:00Z".parse().expect("an instant");
    for (file, names) in [("duly.db", &["other"][..]), ("my.db", &["anna", "a@b", "digest:anna", "digest:bruno"])] {
        let client = Client::open(home.path().join(file)).expect("a client");
        client.add_all(names.iter().map(|name| NewTask::once(*name, far).handler("work"))).expect("tasks");
    }
    for shell in ["bash", "zsh", "fish"] {
        let (_, script, _) = result(&duly(home.path(), &["completions", shell]));
        std::fs::write(home.path().join(shell), script).expect("a script");
    }
    let folder = Path::new(PROGRAM).parent().expect("a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    // What is typed, and its last word as bash breaks it.
    let bash = r#"
        source ./bash
        COMP_LINE="$1" COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"; [[ "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _duly_names duly "$2" "${COMP_WORDS[COMP_CWORD-1]}"
        printf "%s\n" "${COMPREPLY[@]}""#;
    let zsh = r#"compdef() { : }; source ./zsh; LBUFFER=$1; compadd() { print -l -- $names }; _duly_names"#;
    let fish = r#"source ./fish; complete -C $argv[1]"#;
    for (shell, options, line, typed, word, found) in [
        ("bash", "--norc", bash, "duly show ", "", "other\n"),
        ("bash", "--norc", bash, "duly --db my.db pause d", "d", "digest:anna\ndigest:bruno\n"),
        ("bash", "--norc", bash, "duly --db=my.db cancel digest:a", "a", "anna\n"),
        ("bash", "--norc", bash, "duly -q next --tz UTC --db my.db a@", "", "b\n"),
        ("bash", "--norc", bash, "duly add new --db my.db --on-dead an", "an", "anna\n"),
        // A name that is there, a value of another kind, a command of none, and no file: whatever stood there before.
        ("bash", "--norc", bash, "duly show other --j", "--j", "--json\n"),
        ("bash", "--norc", bash, "duly history --status dea", "dea", "dead\n"),
        ("bash", "--norc", bash, "duly doct", "doct", "doctor\n"),
        ("bash", "--norc", bash, "duly --db none.db show --d", "--d", "--db\n"),
        ("zsh", "-f", zsh, "duly show ", "", "other\n"),
        ("zsh", "-f", zsh, "duly --db=my.db show d", "", "a@b\nanna\ndigest:anna\ndigest:bruno\n"),
        ("fish", "--no-config", fish, "duly show ", "", "other\n"),
        ("fish", "--no-config", fish, "duly --db my.db resume digest:a", "", "digest:anna\n"),
        ("fish", "--no-config", fish, "duly add new --db=my.db --on-dead a@", "", "a@b\n"),
    ] {
        let mut asked = Command::new(shell);
        asked.args([options, "-c", line]).args((shell != "fish").then_some(shell)).args([typed, word]);
        asked.current_dir(home.path()).env("PATH", &path).env("HOME", home.path()).env("XDG_CONFIG_HOME", home.path());
        match asked.env_remove("DULY_DB").output() {
            Ok(output) => assert_eq!(result(&output), (0, found.to_owned(), String::new()), "{shell}: {typed}"),
            Err(_) => println!("skipped: no {shell}"),
        }
    }
    assert!(!home.path().join("none.db").exists());
}

/// Every command has its page, and troff finds nothing wrong with it.
#[test]
fn manual_pages_are_read() {
    let home = temp_dir();
    let (_, help, _) = result(&duly(home.path(), &["--help"]));
    let names = help.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  ")).map(|(name, _)| name);
    let names: Vec<&str> =
        names.filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase())).collect();
    assert!(names.len() > 15 && names.contains(&"man"), "{names:?}");
    for name in names {
        let (code, page, err) = result(&duly(home.path(), &["man", name]));
        assert_eq!((code, err.as_str()), (0, ""), "{name}");
        assert!(page.contains(&format!(".TH duly-{name} 1")) && page.contains("\"duly 0."), "{page}");
        std::fs::write(home.path().join("page.1"), page).expect("a page");
        let mut reader = Command::new("man");
        let output =
            reader.args(["--warnings", "-l", "page.1"]).env("MANPAGER", "cat").current_dir(home.path()).output();
        match output.map(|output| result(&output)) {
            Ok((0, text, err)) => assert!(err.is_empty() && !text.is_empty(), "{name}: {err}"),
            _ => println!("skipped: no man"),
        }
    }
    let (_, page, _) = result(&duly(home.path(), &["man", "next"]));
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(at(".SH SYNOPSIS\nduly next [OPTIONS] <NAME|EXPR>\n") < at(".SH ARGUMENTS"), "{page}");
    assert!(at(".SH ARGUMENTS") < at("<\\fINAME|EXPR\\fR>") && at("<\\fINAME|EXPR\\fR>") < at(".SH OPTIONS"), "{page}");
    assert!(at(".SH OPTIONS") < at("\\fB\\-\\-tz\\fR \\fI<ZONE>\\fR"), "{page}");
}

#[test]
fn a_time_of_the_machine_is_stored_by_name() {
    let home = temp_dir();
    let line = ["add", "t", "--cron", "@daily", "--tz", "local", "--handler", "work", "--json"];
    let mut program = Command::new(PROGRAM);
    let output = program.args(line).current_dir(home.path()).env("TZ", "Asia/Tokyo").output().expect("the program");
    let (code, out, err) = result(&output);
    let document: serde_json::Value = serde_json::from_str(&out).expect("one document");
    assert_eq!((code, err.as_str(), &document["time_zone"]), (0, "", &"Asia/Tokyo".into()));
    assert_eq!(document["occurrences"].as_array().map(Vec::len), Some(3));
}
