//! The file is removed, replaced or damaged while a command runs; or is damaged, foreign, newer or read-only before it is
//! opened. The program reports it in one sentence and exits with 4; it creates nothing again, and repairs nothing.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use duly::NewTask;
use rusqlite::Connection;

use crate::disk::tools::{SmallDisk, may_mount};
use crate::disk::{all, probe};
use crate::fixtures::{TestDb, eventually, far_future};
use crate::sidecar::{Gate, Sidecar, at_once, group_size, shell, wait_for_line};

const PAGE: u64 = 4096;

/// Overwrites a page of the file.
fn damage(file: &Path, page: u64, with: u8) {
    let file = OpenOptions::new().write(true).open(file).expect("the file");
    file.write_all_at(&[with; PAGE as usize], (page - 1) * PAGE).expect("a page");
}

/// Returns the first page of a table or an index.
fn root(db: &TestDb, name: &str) -> u64 {
    let page = db.ask(&format!("SELECT rootpage FROM sqlite_master WHERE name = '{name}'"));
    page.parse().unwrap_or_else(|_| panic!("{name}: {page}"))
}

/// Replaces the file by another.
fn replace(db: &TestDb, with: impl FnOnce(&Path)) {
    let other = db.home().join("other.db");
    with(&other);
    std::fs::rename(other, db.file()).expect("in its place");
}

fn foreign(file: &Path) {
    let plain = Connection::open(file).expect("a file");
    plain.execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('buy milk')").expect("a table");
}

/// Does `harm` while the program runs a command: it exits by itself, with this word in its one error.
fn assert_program_exits(what: &str, word: &str, harm: impl FnOnce(&TestDb)) {
    let db = TestDb::new();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    let client = db.client();
    client.add(probe(&db, "long", &format!("echo $$ >{home}/group; read line <{home}/gate"))).unwrap();
    // Never due: the damage can also be found in a row that is not running.
    client.add(far_future("far").handler("command")).unwrap();
    drop(client);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let group = wait_for_line(&db, "group");
    let file_length = |db: &TestDb| std::fs::read(db.file()).map_or(0, |bytes| bytes.len());
    harm(&db);
    let left = file_length(&db);
    let (status, log) = (sidecar.end(), sidecar.log());
    assert_eq!((status.code(), status.signal()), (Some(4), None), "{what}: {log}");
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{what}: {log}") };
    assert!(error.contains("cannot use ") && error.contains(word), "{what}: {log}");
    assert!(!log.contains("panicked") && log.lines().last() == Some(error), "{what}: {log}");
    assert!(log.matches("cannot be written").count() <= 1, "{what}: {log}");
    assert_eq!(group_size(&group), 0, "{what}: the command is still running");
    assert_eq!(file_length(&db), left, "{what}: a file was created");
    gate.open();
}

#[test]
fn the_program_exits_when_its_file_is_removed_or_replaced() {
    type Harm = fn(&TestDb);
    let cases: [(&str, &str, Harm); 5] = [
        ("removed", "it was removed", |db| std::fs::remove_file(db.file()).expect("gone")),
        ("moved", "it was removed", |db| std::fs::rename(db.file(), db.home().join("moved.db")).expect("moved")),
        ("a copy", "it was replaced", |db| {
            replace(db, |other| assert!(std::fs::copy(db.file(), other).expect("a copy") > 0));
        }),
        ("foreign", "it was replaced", |db| replace(db, foreign)),
        ("no database", "it was replaced", |db| {
            replace(db, |other| std::fs::write(other, "buy milk\n").expect("a file"));
        }),
    ];
    at_once(cases, |(what, word, harm)| assert_program_exits(what, word, harm));
}

/// Every turn reads this page. The error comes after some seconds: a disk may be unreadable for a moment.
#[test]
fn the_program_exits_when_its_file_becomes_corrupt() {
    let names = ["sqlite_schema", "task_runs", "scheduler_meta", "scheduler_instances", "task_runs_running"];
    at_once(names.into_iter().take(if all() { names.len() } else { 2 }), |name| {
        assert_program_exits(name, "it is ", |db| {
            let plain = db.plain();
            plain.execute_batch("CREATE TABLE notes (text)").expect("a table of another program");
            let page = if name == "sqlite_schema" { 1 } else { root(db, name) };
            // The scheduler commits nothing meanwhile: this connection would read the damaged page, too.
            let log = db.home().join("agent.db-wal");
            eventually("all is in the file", || {
                plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); BEGIN IMMEDIATE").expect("the lock");
                let is_empty = std::fs::metadata(&log).expect("a log").len() == 0;
                is_empty || plain.execute_batch("ROLLBACK").is_err()
            });
            damage(db.file(), page, 0xa5);
            // A commit of another connection: the scheduler's page cache is no longer valid.
            plain.execute_batch("INSERT INTO notes VALUES ('buy milk'); COMMIT").expect("a commit");
        });
    });
}

/// Only retention reads these pages, at heartbeats without other work: turns in between succeed.
#[test]
fn a_busy_program_exits_on_a_corrupt_history_page() {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::cron("old", "@yearly").handler("command")).unwrap();
    let busy = NewTask::interval("busy", Duration::from_millis(50)).handler("command");
    client.add(busy.payload(serde_json::json!({ "argv": ["true"] }))).unwrap();
    drop(client);
    let plain = db.plain();
    let runs = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
                INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at, output)
                SELECT 1, 'command', 1700000000000 + i, 'manual', 'succeeded', 1700000000000, 1700000000000,
                       'old ' || hex(zeroblob(200)) FROM n;
                PRAGMA wal_checkpoint(TRUNCATE)";
    plain.execute_batch(runs).expect("old runs");
    drop(plain);
    let bytes = std::fs::read(db.file()).expect("the file");
    let old = bytes.chunks(PAGE as usize).zip(1..).filter(|(page, _)| page.windows(6).any(|text| text == b"old 00"));
    old.skip(2).take(20).for_each(|(_, page)| damage(db.file(), page, 0xa5));
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    let log = sidecar.log();
    assert!(log.ends_with("it is corrupt: restore a backup; duly repairs nothing\n"), "{log}");
    assert!(log.matches("cannot be written").count() <= 6, "{log}");
}

/// Statements that were prepared before the change, and those prepared after it.
#[test]
fn the_program_exits_when_its_tables_are_changed() {
    let changes = [
        "ALTER TABLE scheduled_tasks RENAME COLUMN jitter_ms TO jitter",
        "DROP TABLE scheduler_meta",
        "DROP INDEX task_runs_running",
    ];
    at_once(changes, |change| {
        assert_program_exits(change, "its tables are not as duly made them (no such ", |db| {
            let plain = db.plain();
            plain.execute_batch(change).expect("another program's change");
            plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in the file");
        });
    });
}

/// Returns output and exit code of a command. It has a minute.
fn exit_and_output(file: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60"])
        .arg(env!("CARGO_BIN_EXE_duly"))
        .arg("--db")
        .arg(file)
        .args(arguments)
        .output()
        .expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

const LOOKS: [&[&str]; 7] =
    [&["list"], &["status"], &["check"], &["history"], &["doctor"], &["show", "task-1"], &["trigger", "task-2"]];

#[test]
fn a_corrupt_page_is_reported_or_not_needed() {
    let (db, client) = TestDb::with_client();
    for number in 1..=40 {
        let payload = serde_json::json!({ "argv": ["true"], "env": { "PADDING": "x".repeat(700) } });
        let task = NewTask::cron(format!("task-{number}"), "@yearly").handler("command").payload(payload);
        client.add(task).unwrap();
    }
    for number in 1..=12 {
        client.add(shell(&format!("once-{number}"), "exit 1").at_most_once()).unwrap();
    }
    drop(client);
    assert_eq!(exit_and_output(db.file(), &["run", "--until-idle"]).0, 0);
    let plain = db.plain();
    plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in the file");
    let pages: u64 = db.number("PRAGMA page_count");
    let roots = db.rows("SELECT rootpage FROM sqlite_master WHERE rootpage > 0 ORDER BY 1");
    drop(plain);
    let whole = std::fs::read(db.file()).expect("the file");
    let tried: Vec<u64> = match all() {
        true => (1..=pages).collect(),
        false => {
            vec![1, 2, root(&db, "scheduled_tasks"), root(&db, "task_runs"), root(&db, "task_runs_running")]
        }
    };
    let (mut reported, mut needed_by_run) = (0, 0);
    for page in &tried {
        for with in if all() { vec![0xff, 0x00] } else { vec![0xff] } {
            let what = format!("page {page} is {with:#04x}");
            // It takes some seconds to report it.
            let run = [["run", "--until-idle", "--drain", "1s"].as_slice()].into_iter().filter(|_| with == 0xff);
            for arguments in LOOKS.into_iter().chain(run) {
                std::fs::write(db.file(), &whole).expect("the whole file");
                ["-wal", "-shm"].iter().for_each(|end| {
                    let _ = std::fs::remove_file(format!("{}{end}", db.file().display()));
                });
                damage(db.file(), *page, with);
                let (code, out, err) = exit_and_output(db.file(), arguments);
                assert!(matches!(code, 0 | 1 | 4), "{what}: {arguments:?}: exit {code}: {out}{err}");
                assert!(!err.contains("panicked"), "{what}: {arguments:?}: {err}");
                let errors = err.lines().filter(|line| line.starts_with("error: ")).count();
                assert!(errors <= 1, "{what}: {arguments:?}: {err}");
                reported += usize::from(code == 4);
                needed_by_run += usize::from(code == 4 && arguments[0] == "run");
                let root = roots.contains(&page.to_string()) || *page == 1;
                if arguments == ["doctor"] && root {
                    assert!(code == 4 || (code == 1 && !out.is_empty()), "{what}: doctor: exit {code}: {out}{err}");
                }
            }
        }
    }
    println!("{} of {pages} pages, {reported} times reported, {needed_by_run} times by run", tried.len());
    assert!(reported > 5 && needed_by_run > 1);
}

type Make = fn(&Path);

#[test]
fn a_foreign_file_is_not_changed() {
    let db = TestDb::new();
    let newer: Make = |file| {
        drop(duly::Client::open(file).expect("a client"));
        let plain = Connection::open(file).expect("a connection");
        plain.execute_batch("UPDATE scheduler_meta SET value = '99' WHERE key = 'schema_version'").expect("newer");
    };
    let files: [(&str, &str, Make); 5] = [
        ("foreign", "it holds no tables of duly", foreign),
        ("no database", "it is not an SQLite database", |file| {
            std::fs::write(file, "buy milk\n".repeat(1000)).expect("a file");
        }),
        ("newer", "its tables are of version 99", newer),
        ("nothing", "it holds no tables of duly", |file| std::fs::write(file, "").expect("a file")),
        ("a folder", "it is a folder", |file| std::fs::create_dir(file).expect("a folder")),
    ];
    for (number, (what, reason, make)) in files.into_iter().enumerate() {
        let file = db.home().join(format!("{number}.db"));
        make(&file);
        let before = std::fs::read(&file).ok();
        for arguments in LOOKS.into_iter().chain([["run"].as_slice(), &["run", "--until-idle"], &["prune"]]) {
            let (code, out, err) = exit_and_output(&file, arguments);
            assert_eq!((code, out.as_str()), (4, ""), "{what}: {arguments:?}: {err}");
            assert!(err.starts_with("error: cannot use ") && err.contains(reason), "{what}: {arguments:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{what}: {arguments:?}: {err}");
            assert!(std::fs::read(&file).ok() == before, "{what}: {arguments:?}: it has changed");
        }
    }
}

#[test]
fn nothing_starts_on_a_read_only_disk() {
    let instead = "another test uses a file without write permission";
    if !may_mount("disk::damaged_file::nothing_starts_on_a_read_only_disk", instead) {
        return;
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    db.client().add(probe(&db, "due", "true")).unwrap();
    disk.seal();
    for arguments in LOOKS.into_iter().chain([["run"].as_slice(), &["run", "--until-idle"]]) {
        let (code, out, err) = exit_and_output(db.file(), arguments);
        assert_eq!((code, out.as_str()), (4, ""), "{arguments:?}: {err}");
        assert!(err.contains("it is read-only") && err.lines().count() == 1, "{arguments:?}: {err}");
    }
    assert!(!db.home().join("starts").exists());
}
