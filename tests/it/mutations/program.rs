//! The program as a process, with mutated command lines, files and databases. It exits by itself, with a documented code;
//! its error is one line, and its output contains no terminal control sequence.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rusqlite::Connection;

use crate::fixtures::{TestDb, eventually};
use crate::mutations::file::Bytes;
use crate::mutations::mutator::{Mutator, each};

/// Runs the program in a folder, for a minute at most.
fn run(home: &Path, arguments: &[String]) -> Output {
    let (out, err) = (home.join("out"), home.join("err"));
    let file = |path: &Path| std::fs::File::create(path).expect("a file");
    let mut child = Command::new(env!("CARGO_BIN_EXE_duly"))
        .args(arguments)
        .current_dir(home)
        .env_remove("DULY_DB")
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err))
        .spawn()
        .expect("the program");
    let mut status = None;
    eventually("the program has ended", || {
        status = child.try_wait().expect("its status");
        status.is_some()
    });
    let read = |path: &Path| std::fs::read(path).expect("its output");
    Output { status: status.expect("a status"), stdout: read(&out), stderr: read(&err) }
}

/// Checks output and exit code of the program.
fn check_exit(output: &Output, arguments: &[String]) -> i32 {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1 | 2 | 4)), "{arguments:?}: {:?}\n{err}", output.status);
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    let acts =
        |letter: char| (letter.is_control() && !"\n\t".contains(letter)) || "\u{202e}\u{200e}\u{feff}".contains(letter);
    assert!(!out.contains(acts) && !err.contains(acts), "{arguments:?}: {out:?}\n{err:?}");
    match code {
        // A check with findings, and a report of missing runs, exit with 1 too, and print elsewhere.
        Some(1 | 4) if !err.is_empty() => {
            let last = err.lines().last().unwrap_or_default();
            assert!(last.starts_with("error: ") && last.len() < 3000, "{arguments:?}: {err}");
        }
        Some(2) => assert!(err.starts_with("error: ") || err.contains("Usage:"), "{arguments:?}: {err}"),
        _ => {}
    }
    let broken = ["malformed", "not a database", "is corrupt", "not an SQLite"].iter().any(|word| err.contains(word));
    assert!(
        !broken || code == Some(4) || arguments.iter().any(|word| word == "nanoclaw"),
        "{arguments:?}: {code:?} {err}"
    );
    code.unwrap_or(-1)
}

/// Command lines in the form of [`words`].
fn lines() -> Vec<&'static str> {
    include_str!("program/lines.txt").lines().collect()
}

/// Splits a line into words; text between bars is one word.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('|').enumerate();
    parts
        .flat_map(|(at, part)| if at == 0 { part.split(' ').collect() } else { vec![part] })
        .map(str::to_owned)
        .collect()
}

#[test]
fn mutated_command_lines_exit_with_a_documented_code() {
    let template = Bytes::of_a_crash();
    each(60, |mutator| {
        let db = template.written();
        let mut line = words(mutator.choice(&lines()));
        for _ in 0..mutator.random.usize(..3) {
            let at = mutator.random.usize(..line.len());
            match mutator.random.u8(..4) {
                0 => drop(line.remove(at)),
                1 => line.insert(at, words(mutator.choice(&lines())).remove(0)),
                _ => line[at] = mutator.text(&[&line[at].clone(), "--", "-n", "--json", "7"]),
            }
            if line.is_empty() {
                break;
            }
        }
        // No argument of a process can hold it.
        line.iter_mut().for_each(|word| word.retain(|letter| letter != '\0'));
        // It would run until it is stopped, or wait for a run that no scheduler executes.
        line.retain(|word| word != "run" && !word.starts_with("--w"));
        let line = [vec!["--db".to_owned(), "agent.db".to_owned()], line].concat();
        mutator.note(&line);
        check_exit(&run(db.home(), &line), &line);
        db.assert_sound();
    });
}

const MANIFEST: &str = "[defaults]\ntime_zone = \"Europe/Rome\"\n[[task]]\nname = \"a\"\ncron = \"0 6 * * *\"\n\
    command = [\"./report.sh\", \"--yesterday\"]\ntimeout = \"10m\"\n[[task]]\nname = \"b\"\nevery = \"1h\"\nhandler = \"h\"\n\
    payload = { a = [1, 2.5, true], b = \"x\" }\nstarts_at = 2027-03-14T07:00:00Z\n";
const CRONTAB: &str = "SHELL=/bin/bash\nMAILTO=\"\"\n# comment\n*/5 * * * * /usr/bin/true\n@daily cat%one%two\n\
    CRON_TZ=Europe/Rome\n0 2 * * 1-5 backup.sh >/dev/null 2>&1\n30 1 L * * date +\\%F\n";

#[test]
fn mutated_input_files_exit_with_a_documented_code() {
    each(40, |mutator| {
        let db = TestDb::brief();
        let (text, line) = if mutator.random.bool() {
            (mutator.bytes(&[MANIFEST]), ["apply", "given", "--prune"])
        } else {
            (mutator.bytes(&[CRONTAB]), ["import", "crontab", "given"])
        };
        std::fs::write(db.home().join("given"), text).expect("a file");
        let line: Vec<String> = ["--db", "agent.db"].iter().chain(&line).map(|word| (*word).to_owned()).collect();
        let (first, json) = (run(db.home(), &line), [line.clone(), vec!["--json".into()]].concat());
        let first = check_exit(&first, &line);
        // Idempotent: a repetition ends in the same way.
        let rows = |db: &TestDb| db.file().exists().then(|| db.rows("SELECT * FROM scheduled_tasks ORDER BY id"));
        let before = rows(&db);
        assert_eq!((check_exit(&run(db.home(), &json), &json), rows(&db)), (first, before));
        if db.file().exists() {
            db.assert_sound();
        }
    });
}

/// NanoClaw's table, whose columns accept any type; and its file with changed bytes.
#[test]
fn mutated_imports_exit_with_a_documented_code() {
    let kinds = ["cron", "interval", "once", "", "CRON"];
    let values = ["0 9 * * *", "300000", "2027-03-14T12:00:00.000Z", "2027-03-14T12:00:00", "9223372036854775807", ""];
    let times = ["2027-03-14T12:00:00.000Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now", ""];
    each(25, |mutator| {
        let db = TestDb::brief();
        let other = db.home().join("messages.db");
        let table = Connection::open(&other).expect("a database");
        table
            .execute_batch(
                "CREATE TABLE scheduled_tasks (id, group_folder, chat_jid, prompt, schedule_type, schedule_value, next_run,
                 last_run, status, created_at, context_mode)",
            )
            .expect("a table");
        for number in 0..5 {
            let mut column = |seeds: &[&str]| match mutator.random.u8(..8) {
                0 => "NULL".to_owned(),
                1 => ["0", "-1", "1e300", "x'ff00'", "9223372036854775807"][mutator.random.usize(..5)].to_owned(),
                2 | 3 => format!("'{}'", mutator.text(seeds).replace(['\'', '\0'], "''")),
                _ => format!("'{}'", mutator.choice(seeds)),
            };
            let id = format!("task-{number}");
            let row = [
                column(&[&id]),
                column(&["main"]),
                column(&["1@g.us"]),
                column(&["say hello"]),
                column(&kinds),
                column(&values),
                column(&times),
                column(&times),
                column(&["active", "paused", "completed"]),
                column(&times),
                column(&["group"]),
            ];
            table.execute_batch(&format!("INSERT INTO scheduled_tasks VALUES ({})", row.join(", "))).expect("a row");
        }
        drop(table);
        if mutator.random.u8(..3) == 0 {
            let mut bytes = std::fs::read(&other).expect("a file");
            for _ in 0..mutator.random.usize(1..20) {
                let at = mutator.random.usize(..bytes.len());
                bytes[at] ^= 1 << mutator.random.u8(..8);
            }
            std::fs::write(&other, bytes).expect("a file");
        }
        let line = words("--db agent.db import nanoclaw messages.db --tz Europe/Rome -- node x.js");
        let first = check_exit(&run(db.home(), &line), &line);
        assert_eq!(check_exit(&run(db.home(), &line), &line), first);
        if db.file().exists() {
            db.assert_sound();
        }
    });
}

#[test]
fn mutated_databases_exit_with_a_documented_code() {
    let whole = Bytes::of_a_crash();
    each(25, |mutator: &mut Mutator| {
        let db = whole.changed(mutator).written();
        for line in [
            "list --json",
            "status",
            "doctor",
            "check",
            "history",
            "show cron",
            "logs 1",
            "trigger on-dead",
            "backup b.db",
        ] {
            let line = words(&format!("--db agent.db {line}"));
            mutator.note(&line);
            check_exit(&run(db.home(), &line), &line);
        }
    });
}

/// A pipe without a writer: opening it would block for ever.
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_blocking() {
    let db = TestDb::new();
    assert!(Command::new("mkfifo").arg(db.home().join("pipe")).status().expect("mkfifo").success());
    for (line, code, says) in [
        ("--db pipe list", 4, "cannot use pipe: it is a pipe, a socket or a device: expected a file"),
        ("--db pipe add t --now -- true", 4, "cannot use pipe: it is a pipe, a socket or a device: expected a file"),
        (
            "apply pipe",
            1,
            "pipe: expected a regular file, because its path is stored with its tasks, found a pipe, a socket or a device",
        ),
        ("import nanoclaw pipe -- node", 1, "pipe: expected NanoClaw's database, found a pipe, a socket or a device"),
    ] {
        let line = words(line);
        let output = run(db.home(), &line);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((check_exit(&output, &line), message), (code, format!("error: {says}\n")));
    }
}
