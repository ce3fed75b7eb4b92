//! `duly import crontab`: the tasks, and the entries that cannot be imported. Also helpers to run the program.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::fixtures::TestDb;

/// The program in the folder of `db`, with the zone Europe/Rome.
fn program(db: &TestDb, line: &[&str]) -> Command {
    let mut duly = db.duly(line);
    duly.env("TZ", "Europe/Rome");
    duly
}

/// Runs the program. A partial import is accepted.
pub(crate) fn duly(db: &TestDb, line: &[&str]) -> Output {
    let mut line = line.to_vec();
    if line[0] == "import" {
        line.insert(2, "--partial");
    }
    program(db, &line).output().expect("the program")
}

/// Returns the standard output of a run that must have succeeded.
pub(crate) fn stdout_of(output: Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.is_empty(), "{}: {err}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub(crate) fn document(db: &TestDb, line: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(duly(db, &[line, &["--json"]].concat()))).expect("one document")
}

pub(crate) fn write(db: &TestDb, name: &str, text: &str) -> PathBuf {
    let path = db.home().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

pub(crate) fn entries(document: &Value, list: &str) -> Vec<String> {
    let place = |said: &Value| {
        let of = |key: &str| said[key].as_str().map(str::to_owned);
        let place = of("id").unwrap_or_else(|| said["line"].to_string());
        format!("{place}: {}", of("reason").or(of("change")).expect("a word"))
    };
    document[list].as_array().expect("a list").iter().map(place).collect()
}

/// The crontab of a server, with entries of each kind. `crontab_weeks` compares it with cron.
pub(crate) const CRONTAB: &str = include_str!("import/crontab");

#[test]
fn valid_entries_are_imported_and_a_second_import_changes_nothing() {
    let db = TestDb::new();
    db.client().add(duly::NewTask::cron("by-hand", "@daily").handler("work")).unwrap();
    let file = write(&db, "crontab", CRONTAB);
    let line = ["import", "crontab", "crontab"];
    let first = document(&db, &line);
    assert_eq!(first["source"].as_str(), std::fs::canonicalize(&file).unwrap().to_str());
    assert_eq!(
        entries(&first, "refused"),
        [
            "4: duly sends no mail: see duly logs for output, duly check for problems, and --on-dead to run a task",
            "25: @reboot names no time: run the command when the program starts instead",
            "26: \"0~30\" is a random time: write a fixed time, or spread starts with --jitter",
            "27: minute: expected a step after * or a range, as in 5-59/10, found \"5/10\"",
            "28: minute: expected a range that rises, as in 22-59,0-2, found \"22-2\"",
            "29: no moment before the year 4000 matches it",
            // The command is read as the fifth field.
            "30: expected five fields of times, or one such as @daily, and a command",
        ]
    );
    let came = (8..=24).chain(32..=33).map(|line| format!("{line}: added"));
    assert_eq!(entries(&first, "tasks"), came.collect::<Vec<_>>());
    let settings = "SELECT DISTINCT handler, overlap, misfire, max_attempts, timeout_ms, status FROM scheduled_tasks
                   WHERE managed_by IS NOT NULL";
    assert_eq!(db.rows(settings), ["command|allow|skip|1|0|active"]);
    let zones = "SELECT time_zone, count(*) FROM scheduled_tasks WHERE managed_by IS NOT NULL GROUP BY 1";
    assert_eq!(db.rows(zones), ["America/New_York|2", "Europe/Rome|17"]);

    let rows = db.tasks();
    let second = document(&db, &line);
    assert!(entries(&second, "tasks").iter().all(|place| place.ends_with(": unchanged")), "{second}");
    assert_eq!(second["refused"], first["refused"]);
    assert_eq!(db.tasks(), rows);
    db.assert_sound();
}

/// Returns the payload of the task whose name contains a word.
fn payload(db: &TestDb, word: &str) -> Value {
    let text = db.ask(&format!("SELECT payload FROM scheduled_tasks WHERE name GLOB '*:{word}-*'"));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_command_gets_the_shell_the_input_the_variables_and_the_home_that_the_crontab_names() {
    let db = TestDb::new();
    write(&db, "crontab", CRONTAB);
    stdout_of(duly(&db, &["import", "crontab", "crontab"]));
    let mail = payload(&db, "mail");
    let argv = ["/bin/bash", "-c", "mail -s \"$GREETING\" anna"].map(Value::from);
    assert_eq!(mail["argv"].as_array().unwrap()[..], argv);
    assert_eq!(mail["stdin"], "Dear Anna,\n\nit is 100% done.\n");
    assert_eq!(mail["env"]["GREETING"], "  hello  ");
    assert_eq!(mail["env"]["PATH"], "/usr/local/sbin:/usr/local/bin:/usr/bin:/bin");
    assert_eq!(mail["env"].as_object().unwrap().len(), 3, "neither MAILTO nor CRON_TZ: {mail}");
    let home = db.rows("SELECT DISTINCT json_extract(payload, '$.cwd') FROM scheduled_tasks");
    assert!(home.len() == 1 && home[0].starts_with('/'), "{home:?}");

    // A variable applies to the entries below it.
    let text = "@daily before\nHOME=/srv\nSHELL=/bin/dash\n@daily after\nTZ=Asia/Tokyo\n@daily last\n";
    write(&db, "other", text);
    let document = document(&db, &["import", "crontab", "other"]);
    assert_eq!(payload(&db, "before")["argv"][0], "/bin/sh");
    let after = payload(&db, "after");
    assert_eq!((&after["argv"][0], &after["cwd"]), (&"/bin/dash".into(), &"/srv".into()));
    assert_eq!((&after["env"]["TZ"], &payload(&db, "last")["env"]["TZ"]), (&Value::Null, &"Asia/Tokyo".into()));
    let zone = "SELECT time_zone FROM scheduled_tasks WHERE name GLOB '*:last-*'";
    assert_eq!(db.ask(zone), "Europe/Rome", "as with cron, TZ is the commands' affair");
    let remark = "5: passed to the commands only, as under cron; their schedules are in Europe/Rome";
    assert_eq!(entries(&document, "remarks"), [remark]);
}

/// Imports a crontab of one entry, and returns what its command prints. `HERE` stands for the folder.
#[cfg(target_os = "linux")]
pub(crate) fn output_of_imported(source: &str, crontab: &str) -> String {
    let db = TestDb::new();
    let here = std::fs::canonicalize(db.home()).unwrap().display().to_string();
    write(&db, "crontab", &crontab.replace("HERE", &here));
    stdout_of(duly(&db, &["import", source, "crontab"]));
    stdout_of(duly(&db, &["trigger", &db.ask("SELECT name FROM scheduled_tasks")]));
    assert!(duly(&db, &["run", "--until-idle"]).status.success());
    db.ask("SELECT output FROM task_runs").replace(&here, "HERE")
}

#[cfg(target_os = "linux")]
#[test]
fn imported_tasks_run_as_under_cron() {
    let crontab = "SHELL=/bin/bash\nHOME=HERE\nWORD=a b\n@daily echo \"$0 $WORD $PWD\"; cat%in%put\n";
    assert_eq!(output_of_imported("crontab", crontab), "/bin/bash a b HERE\nin\nput\n");
}

#[test]
fn entries_may_be_moved_and_inserted_and_only_prune_removes_tasks() {
    let db = TestDb::new();
    let line = ["import", "crontab", "crontab"];
    write(&db, "crontab", "0 1 * * * a\n0 2 * * * a\n0 1 * * * a\n@daily b\n");
    document(&db, &line);
    let rows = db.tasks();
    assert_eq!(rows.len(), 4, "a line that stands there twice runs twice");
    let names = db.rows("SELECT name FROM scheduled_tasks ORDER BY id");
    assert_eq!(names[2], format!("{}-2", names[0]));

    write(&db, "crontab", "# moved\n@daily b\n0 2 * * * a\n0 3 * * * a\n0 1 * * * a\n0 1 * * * a\n");
    let words = entries(&document(&db, &line), "tasks");
    assert_eq!(words, ["2: unchanged", "3: unchanged", "4: added", "5: unchanged", "6: unchanged"]);
    assert_eq!(db.tasks()[..4], rows, "and their next occurrences with them");

    write(&db, "crontab", "PATH=/bin\n0 2 * * * a\n");
    let dry = document(&db, &["import", "crontab", "crontab", "--prune", "--dry-run"]);
    assert_eq!(db.tasks()[..4], rows);
    let change = |task: &Value| task["change"].as_str().unwrap_or_default().to_owned();
    let changes = |document: &Value| document["tasks"].as_array().unwrap().iter().map(change).collect::<Vec<_>>();
    assert_eq!(changes(&dry), ["changed", "removed", "removed", "removed", "removed"]);
    assert_eq!(dry["tasks"][0]["fields"][0]["field"], "payload", "{dry}");
    assert_eq!(changes(&document(&db, &line)), ["changed", "left", "left", "left", "left"]);
    assert_eq!(changes(&document(&db, &[&line[..], &["--prune"]].concat()))[0], "unchanged");
    assert_eq!(db.rows("SELECT name FROM scheduled_tasks"), [names[1].clone()]);
}

#[test]
fn standard_input_is_a_source_of_its_own() {
    let db = TestDb::new();
    let import = |text: &str, prefix: &str| {
        let mut child = program(&db, &["import", "crontab", "-", "--prune", "--prefix", prefix]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        stdout_of(child.wait_with_output().unwrap())
    };
    assert!(import("@daily a\n", "one").ends_with("1 added\n"));
    assert!(import("@daily b\n", "two").ends_with("1 added\n"));
    let said = import("@daily c\r\n@daily \u{e4}", "one");
    assert!(said.ends_with("2 added, 1 removed\n"), "{said}");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE name GLOB 'two:b-*'"), "1");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE instr(payload, char(13))"), "0");
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_of_a_shell_is_like_standard_input() {
    let db = TestDb::new();
    let piped = |line: &[&str]| {
        let mut child = program(&db, line);
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // A program that refuses the pipe may end before it is written to.
        let _ = child.stdin.take().unwrap().write_all(b"@daily a\n");
        child.wait_with_output().unwrap()
    };
    let import = |file: &str| stdout_of(piped(&["import", "crontab", file]));
    // As in bash: <(crontab -l).
    assert!(import("/dev/fd/0").ends_with("1 added\n"));
    assert!(import("-").ends_with("1 unchanged\n"), "the same source");
    let refused = piped(&["apply", "/dev/fd/0"]);
    let why = "error: /dev/fd/0: expected a regular file, because its path is stored with its tasks, found a pipe, a socket or a device\n";
    assert_eq!((refused.status.code(), String::from_utf8_lossy(&refused.stderr).as_ref()), (Some(1), why));
}

#[test]
fn invalid_utf8_affects_one_line_only() {
    let db = TestDb::new();
    std::fs::write(db.home().join("crontab"), b"# caf\xe9\n@daily a\n@daily caf\xe9\n@daily b\0c\n@daily d").unwrap();
    let document = document(&db, &["import", "crontab", "crontab"]);
    assert_eq!(entries(&document, "tasks"), ["2: added", "5: added"]);
    assert_eq!(
        entries(&document, "refused"),
        [
            "3: expected UTF-8, found an invalid byte at offset 10",
            "4: argv[2]: a NUL character cannot be passed to a command"
        ]
    );
}

#[test]
fn an_invalid_variable_affects_its_own_line_only() {
    let db = TestDb::new();
    write(&db, "crontab", "\"A=B\" = c\nN=a\0b\nHOME=/\0\nKEPT=1\n@daily a\n");
    let document = document(&db, &["import", "crontab", "crontab"]);
    assert_eq!(entries(&document, "tasks"), ["5: added"]);
    let nul = "a NUL character cannot be passed to a command";
    assert_eq!(
        entries(&document, "refused"),
        ["1: expected the name of a variable, found \"A=B\"".to_owned(), format!("2: {nul}"), format!("3: {nul}")]
    );
    assert_eq!(payload(&db, "a")["env"], serde_json::json!({ "KEPT": "1" }));
}

#[test]
fn a_dry_run_leaves_nothing_behind() {
    let db = TestDb::new();
    write(&db, "crontab", CRONTAB);
    let said = stdout_of(duly(&db, &["import", "crontab", "crontab", "--dry-run"]));
    assert!(said.ends_with("dry run, nothing was written; would be: 19 added; 7 not imported\n"), "{said}");
    let left: Vec<_> = db.home().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["crontab"]);
    // A file of another program is not changed.
    rusqlite::Connection::open(db.file()).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    let before = std::fs::read(db.file()).unwrap();
    let refused = duly(&db, &["import", "crontab", "crontab", "--dry-run"]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(4) && err.ends_with(": it holds no tables of duly\n"), "{err}");
    assert_eq!(std::fs::read(db.file()).unwrap(), before);
}

/// An empty crontab, for example because `crontab -l` failed, removes no task without --allow-empty.
#[test]
fn an_empty_crontab_prunes_only_with_allow_empty() {
    let db = TestDb::new();
    write(&db, "crontab", "0 3 * * * backup\n30 3 * * * rotate\n");
    stdout_of(duly(&db, &["import", "crontab", "crontab"]));
    let before = db.tasks();
    for text in ["", "# nothing but a comment\n\n"] {
        write(&db, "crontab", text);
        for more in [&["--prune"][..], &["--prune", "--dry-run"]] {
            let refused = duly(&db, &[&["import", "crontab", "crontab"], more].concat());
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{error}");
            assert!(error.contains("crontab: it contains no task") && error.contains("--allow-empty"), "{error}");
        }
        assert_eq!(db.tasks(), before);
    }
    // Without --prune nothing is removed; an invalid entry that may have been imported before keeps its task.
    stdout_of(duly(&db, &["import", "crontab", "crontab"]));
    assert_eq!(db.tasks(), before);
    stdout_of(duly(&db, &["import", "crontab", "crontab", "--prune", "--allow-empty"]));
    assert_eq!(db.tasks(), [""; 0]);
}

/// Entries that cannot be imported cause exit code 1, after the others were imported.
#[test]
fn a_partial_import_is_a_failure_without_partial() {
    let db = TestDb::new();
    write(&db, "crontab", "0 3 * * * backup\n0 25 * * * typo\n");
    let run = |more: &[&str]| program(&db, &[&["import", "crontab", "crontab"], more].concat()).output().unwrap();
    let dry = run(&["--dry-run"]);
    let error = String::from_utf8_lossy(&dry.stderr).into_owned();
    assert_eq!(dry.status.code(), Some(1), "{error}");
    assert_eq!(
        error,
        "error: 1 not imported, the others would be imported: correct the source, or accept this with --partial\n"
    );
    let applied = run(&[]);
    let error = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert_eq!(applied.status.code(), Some(1), "{error}");
    assert_eq!(
        error,
        "error: 1 not imported, the others were imported: correct the source, or accept this with --partial\n"
    );
    assert_eq!(db.tasks().len(), 1);
    let json = run(&["--json"]);
    assert_eq!(json.status.code(), Some(1));
    assert_eq!(entries(&serde_json::from_slice(&json.stdout).unwrap(), "refused").len(), 1);
    assert_eq!(run(&["--partial"]).status.code(), Some(0));
    write(&db, "crontab", "0 3 * * * backup\n");
    assert_eq!(run(&[]).status.code(), Some(0), "all of it came");
}

#[test]
fn a_moved_crontab_takes_over_its_tasks_with_adopt() {
    let db = TestDb::new();
    write(&db, "crontab", "0 3 * * * backup\n");
    stdout_of(duly(&db, &["import", "crontab", "crontab"]));
    std::fs::rename(db.home().join("crontab"), db.home().join("moved")).unwrap();
    let refused = duly(&db, &["import", "crontab", "moved"]);
    assert!(String::from_utf8_lossy(&refused.stdout).contains("use --adopt"), "{refused:?}");
    let adopted = document(&db, &["import", "crontab", "moved", "--adopt"]);
    assert_eq!(adopted["tasks"][0]["change"], "changed");
    assert_eq!(adopted["tasks"][0]["fields"][0]["field"], "managed_by");
    assert_eq!(document(&db, &["import", "crontab", "moved"])["tasks"][0]["change"], "unchanged");
}
