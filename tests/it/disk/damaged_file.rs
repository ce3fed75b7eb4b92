//! The file itself: taken away, replaced or damaged while a command is at work; damaged, foreign, newer or read-only before it is
//! opened. The program says so in one sentence and exits with 4; it makes nothing again, and repairs nothing.

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
use crate::fixtures::{TestDb, at};
use crate::sidecar::{Gate, Sidecar, group_size, shell, told};

const PAGE: u64 = 4096;

/// Writes over a page of the file, behind SQLite's back.
fn damage(file: &Path, page: u64, with: u8) {
    let file = OpenOptions::new().write(true).open(file).expect("the file");
    file.write_all_at(&[with; PAGE as usize], (page - 1) * PAGE).expect("a page");
}

/// The first page of a table or an index.
fn root(db: &TestDb, name: &str) -> u64 {
    let page = db.ask(&format!("SELECT rootpage FROM sqlite_master WHERE name = '{name}'"));
    page.parse().unwrap_or_else(|_| panic!("{name}: {page}"))
}

/// Puts something else in the place of the file.
fn replace(db: &TestDb, with: impl FnOnce(&Path)) {
    let other = db.home().join("other.db");
    with(&other);
    std::fs::rename(other, db.file()).expect("in its place");
}

fn foreign(file: &Path) {
    let plain = Connection::open(file).expect("a file");
    plain.execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('buy milk')").expect("a table");
}

/// Does this while the program is at work on a command: it ends by itself, with this word in its one sentence.
fn ends_the_program(what: &str, word: &str, harm: impl FnOnce(&TestDb)) {
    let db = TestDb::new();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    let client = db.client();
    client.add(probe(&db, "long", &format!("echo $$ >{home}/group; read line <{home}/gate"))).unwrap();
    // Never due: what is there to be found damaged is not only what is at work.
    client.add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    drop(client);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let group = told(&db, "group");
    let there = |db: &TestDb| std::fs::read(db.file()).map_or(0, |bytes| bytes.len());
    harm(&db);
    let left = there(&db);
    let (status, log) = (sidecar.end(), sidecar.log());
    assert_eq!((status.code(), status.signal()), (Some(4), None), "{what}: {log}");
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{what}: {log}") };
    assert!(error.contains("cannot use ") && error.contains(word), "{what}: {log}");
    assert!(!log.contains("panicked") && log.lines().last() == Some(error), "{what}: {log}");
    assert!(log.matches("cannot be written").count() <= 1, "{what}: {log}");
    assert_eq!(group_size(&group), 0, "{what}: nobody is left to see to it");
    assert_eq!(there(&db), left, "{what}: nothing was made again");
    gate.open();
}

#[test]
fn a_file_that_is_taken_away_or_replaced_ends_the_program() {
    ends_the_program("removed", "it was removed", |db| std::fs::remove_file(db.file()).expect("gone"));
    ends_the_program("moved", "it was removed", |db| {
        std::fs::rename(db.file(), db.home().join("moved.db")).expect("moved");
    });
    ends_the_program("a copy", "it was replaced", |db| {
        replace(db, |other| assert!(std::fs::copy(db.file(), other).expect("a copy") > 0));
    });
    ends_the_program("foreign", "it was replaced", |db| replace(db, foreign));
    ends_the_program("no database", "it was replaced", |db| {
        replace(db, |other| std::fs::write(other, "buy milk\n").expect("a file"));
    });
}

/// What each turn reads. It is told when it has been so for some seconds, since a disk that cannot be read just now looks alike.
#[test]
fn a_file_that_becomes_corrupt_ends_the_program() {
    let names = ["sqlite_schema", "task_runs", "scheduler_meta", "scheduler_instances", "task_runs_running"];
    for name in names.into_iter().take(if all() { names.len() } else { 2 }) {
        ends_the_program(name, "it is ", |db| {
            let plain = db.plain();
            plain.execute_batch("CREATE TABLE notes (text)").expect("a table of another program");
            let page = if name == "sqlite_schema" { 1 } else { root(db, name) };
            plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in the file");
            damage(db.file(), page, 0xa5);
            // A commit of another connection: what the scheduler has kept of the file in memory is not the newest any more.
            plain.execute_batch("INSERT INTO notes VALUES ('buy milk')").expect("a commit");
        });
    }
}

/// What nobody reads but retention, at heartbeats at which nothing else is to be done: turns in between succeed.
#[test]
fn a_corrupt_page_of_old_runs_ends_a_busy_program_too() {
    let db = TestDb::new();
    let client = db.client();
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

/// Statements that were prepared before, and those that are prepared then.
#[test]
fn a_file_whose_tables_are_changed_ends_the_program() {
    for change in [
        "ALTER TABLE scheduled_tasks RENAME COLUMN jitter_ms TO jitter",
        "DROP TABLE scheduler_meta",
        "DROP INDEX task_runs_running",
    ] {
        ends_the_program(change, "its tables are not as duly made them (no such ", |db| {
            let plain = db.plain();
            plain.execute_batch(change).expect("another program's change");
            plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in the file");
        });
    }
}

/// What a command of the program says and exits with. It has a minute.
fn says(file: &Path, arguments: &[&str]) -> (i32, String, String) {
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
fn a_page_that_is_corrupt_is_told_or_not_needed_and_nobody_panics_or_hangs() {
    let db = TestDb::new();
    let client = db.client();
    for number in 1..=40 {
        let payload = serde_json::json!({ "argv": ["true"], "env": { "PADDING": "x".repeat(700) } });
        let task = NewTask::cron(format!("task-{number}"), "@yearly").handler("command").payload(payload);
        client.add(task).unwrap();
    }
    for number in 1..=12 {
        client.add(shell(&format!("once-{number}"), "exit 1").at_most_once()).unwrap();
    }
    drop(client);
    assert_eq!(says(db.file(), &["run", "--until-idle"]).0, 0);
    let plain = db.plain();
    plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("all is in the file");
    let pages: u64 = db.ask("PRAGMA page_count").parse().expect("a number");
    let roots = db.rows("SELECT rootpage FROM sqlite_master WHERE rootpage > 0 ORDER BY 1");
    drop(plain);
    let whole = std::fs::read(db.file()).expect("the file");
    let tried: Vec<u64> = match all() {
        true => (1..=pages).collect(),
        false => {
            vec![1, 2, root(&db, "scheduled_tasks"), root(&db, "task_runs"), root(&db, "task_runs_running")]
        }
    };
    let (mut told, mut needed_by_run) = (0, 0);
    for page in &tried {
        for with in if all() { vec![0xff, 0x00] } else { vec![0xff] } {
            let what = format!("page {page} is {with:#04x}");
            // It takes some seconds to believe it.
            let run = [["run", "--until-idle", "--drain", "1s"].as_slice()].into_iter().filter(|_| with == 0xff);
            for arguments in LOOKS.into_iter().chain(run) {
                std::fs::write(db.file(), &whole).expect("the whole file");
                ["-wal", "-shm"].iter().for_each(|end| {
                    let _ = std::fs::remove_file(format!("{}{end}", db.file().display()));
                });
                damage(db.file(), *page, with);
                let (code, out, err) = says(db.file(), arguments);
                assert!(matches!(code, 0 | 1 | 4), "{what}: {arguments:?}: exit {code}: {out}{err}");
                assert!(!err.contains("panicked"), "{what}: {arguments:?}: {err}");
                let errors = err.lines().filter(|line| line.starts_with("error: ")).count();
                assert!(errors <= 1, "{what}: {arguments:?}: {err}");
                told += usize::from(code == 4);
                needed_by_run += usize::from(code == 4 && arguments[0] == "run");
                let root = roots.contains(&page.to_string()) || *page == 1;
                if arguments == ["doctor"] && root {
                    assert!(code == 4 || (code == 1 && !out.is_empty()), "{what}: doctor: exit {code}: {out}{err}");
                }
            }
        }
    }
    println!("{} of {pages} pages, {told} times told, {needed_by_run} times by run", tried.len());
    assert!(told > 5 && needed_by_run > 1);
}

/// Makes a file of some kind.
type Make = fn(&Path);

#[test]
fn a_file_that_is_not_ours_is_left_as_it_is() {
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
            let (code, out, err) = says(&file, arguments);
            assert_eq!((code, out.as_str()), (4, ""), "{what}: {arguments:?}: {err}");
            assert!(err.starts_with("error: cannot use ") && err.contains(reason), "{what}: {arguments:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{what}: {arguments:?}: {err}");
            assert!(std::fs::read(&file).ok() == before, "{what}: {arguments:?}: it has changed");
        }
    }
}

#[test]
fn on_a_disk_that_is_read_only_nothing_starts() {
    let instead = "a file that its user may not write is tried, in another test";
    if !may_mount("disk::file::on_a_disk_that_is_read_only_nothing_starts", instead) {
        return;
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    db.client().add(probe(&db, "due", "true")).unwrap();
    disk.seal();
    for arguments in LOOKS.into_iter().chain([["run"].as_slice(), &["run", "--until-idle"]]) {
        let (code, out, err) = says(db.file(), arguments);
        assert_eq!((code, out.as_str()), (4, ""), "{arguments:?}: {err}");
        assert!(err.contains("it is read-only") && err.lines().count() == 1, "{arguments:?}: {err}");
    }
    assert!(!db.home().join("starts").exists());
}
