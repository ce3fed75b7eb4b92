//! Damage that bypasses SQLite while a scheduler is running: the log removed or replaced, the file emptied, cut or copied over.
//! The scheduler stops with exit code 4 within seconds and writes nothing into a file that is no longer its own. Changes that
//! SQLite itself makes to the file are no damage.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use duly::{Client, Error, Event, NewTask, RunStatus, Scheduler};

use crate::evidence::tool_works;
use crate::fixtures::{NOON, TestDb, eventually, far_future, seconds, wait_for_status};
use crate::sidecar::{Gate, Sidecar, at_once, group_size, shell, wait_for_line};

const OVERWRITTEN: &str =
    "another database, or an older copy, was written over it while it was open: stop every program";

/// Runs a program, which must succeed.
fn run(program: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) {
    let done = Command::new(program).args(arguments.iter().map(AsRef::as_ref)).output().expect(program);
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

fn sqlite_shell(file: &Path, command: &str) {
    run("sqlite3", &[&"-cmd", &".timeout 5000", &file, &command]);
}

/// Returns the path of a file that SQLite keeps beside the database.
fn companion(db: &TestDb, name: &str) -> PathBuf {
    db.file().with_file_name(format!("agent.db{name}"))
}

/// Recorded runs, in a file whose log was not checkpointed since.
const RUNS: usize = 20;

/// Starts a scheduler that has recorded [`RUNS`] runs, most of them only in the log, and runs a command.
fn start_with_command(db: &TestDb) -> (Sidecar, Gate, String) {
    let gate = Gate::new(db, "gate");
    let client = db.client();
    (0..RUNS).for_each(|run| drop(client.add(shell(&format!("fine-{run}"), "true")).unwrap()));
    let home = db.home().display();
    client.add(shell("long", &format!("echo $$ >{home}/group; read line <{home}/gate"))).unwrap();
    drop(client);
    let sidecar = Sidecar::start(db, &["--lease", "1s"]);
    let group = wait_for_line(db, "group");
    eventually("all is recorded", || db.count(RunStatus::Succeeded) == RUNS);
    // By now the scheduler has examined the file with this log. What the log does not hold is read from the file.
    wait_for_heartbeats(db, 3);
    (sidecar, gate, group)
}

/// Does something while the scheduler is stopped. It would see a file that `cp` has emptied and not yet written.
fn unseen(sidecar: &Sidecar, harm: impl FnOnce()) {
    sidecar.signal("STOP");
    harm();
    sidecar.signal("CONT");
}

/// Damages the file of a scheduler that runs a command. Asserts that it stops with exit code 4, logs one error with these
/// words, and leaves no command. Returns the log.
fn assert_stops(what: &str, says: &str, db: &TestDb, harm: impl FnOnce(&TestDb)) -> String {
    let (mut sidecar, _gate, group) = start_with_command(db);
    unseen(&sidecar, || harm(db));
    assert_eq!(sidecar.end().code(), Some(4), "{what}: {}", sidecar.log());
    let log = sidecar.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{what}: {log}") };
    assert!(error.starts_with("error: cannot use ") && error.contains(says), "{what}: {log}");
    assert_eq!(group_size(&group), 0, "{what}: no process is left");
    log
}

#[test]
fn a_removed_log_stops_the_scheduler_and_loses_no_record() {
    at_once(["-wal", "-shm"], |name| {
        let db = TestDb::new();
        let says = format!(
            "agent.db{name}, which is part of it, was removed while it was open: stop every program that uses the database, and \
             run duly doctor before you start again; when the last program closes the database, what it held is written back"
        );
        assert_stops(name, &says, &db, |db| std::fs::remove_file(companion(db, name)).unwrap());
        assert_eq!(db.count(RunStatus::Succeeded), RUNS, "{name}");
        db.assert_sound();
    });
}

#[test]
fn a_replaced_log_stops_the_scheduler_and_nothing_is_written() {
    let db = TestDb::new();
    let mut before = Vec::new();
    assert_stops("replaced", "agent.db-wal, which is part of it, was replaced while it was open", &db, |db| {
        let (log, other) = (companion(db, "-wal"), db.home().join("other"));
        std::fs::write(&other, "").unwrap();
        before = std::fs::read(db.file()).unwrap();
        std::fs::rename(other, log).unwrap();
    });
    assert!(std::fs::read(db.file()).unwrap() == before, "nothing was written");
    assert!(companion(&db, "-wal").exists(), "nothing was removed");
}

#[test]
fn an_emptied_or_truncated_file_stops_the_scheduler_and_stays_unchanged() {
    let cuts = [(0, "it was emptied while it was open"), (8192, "it was cut short while it was open")];
    at_once(cuts, |(length, says)| {
        let db = TestDb::new();
        let log = assert_stops("cut", says, &db, |db| {
            std::fs::OpenOptions::new().write(true).open(db.file()).unwrap().set_len(length).unwrap();
        });
        assert_eq!(std::fs::metadata(db.file()).unwrap().len(), length, "nothing was written into it");
        assert!(log.contains("the database cannot be written"), "{log}");
        assert!(!companion(&db, "-wal").exists() && companion(&db, "-wal-aside-1").exists(), "{log}");
    });
}

/// Copies the file that `make` made over the database. Asserts that the scheduler stops and that the copy stays unchanged.
fn assert_stops_when_copied_over(what: &str, make: impl FnOnce(&TestDb, &Path)) {
    let db = TestDb::new();
    let copy = db.home().join("backup.db");
    db.client().add(far_future("kept").handler("command")).unwrap();
    make(&db, &copy);
    let log = assert_stops(what, OVERWRITTEN, &db, |db| run("cp", &[&copy, &db.file()]));
    assert!(std::fs::read(db.file()).unwrap() == std::fs::read(&copy).unwrap(), "{what}: nothing was written into it");
    assert!(log.contains("belongs to the file as it was: it was renamed"), "{what}: {log}");
    // The file holds the copy, and no page of the former database.
    assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks"), "kept", "{what}");
    db.assert_sound();
}

#[test]
fn an_overwritten_file_stops_the_scheduler() {
    type Make = fn(&TestDb, &Path);
    let mut cases: Vec<(&str, Make)> = vec![
        ("the file alone, from before", |db, copy| run("cp", &[&db.file(), &copy])),
        ("duly backup", |db, copy| drop(db.client().backup(copy).unwrap())),
        ("VACUUM INTO", |db, copy| {
            db.plain().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        }),
        ("another database of duly", |_, copy| {
            let other = Client::open(copy).unwrap();
            other.add(far_future("kept").handler("command")).unwrap();
        }),
    ];
    if tool_works("sqlite3", &["--version"]) {
        cases.push((".backup", |db, copy| sqlite_shell(db.file(), &format!(".backup {}", copy.display()))));
    }
    at_once(cases, |(what, make)| assert_stops_when_copied_over(what, make));
}

/// The copy was made while the scheduler ran, and is a little older than the file.
#[test]
fn a_recent_copy_over_the_file_stops_an_idle_scheduler() {
    let db = TestDb::new();
    db.client().add(far_future("far").handler("command")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let copy = db.home().join("backup.db");
    let checkpoint = || db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    checkpoint();
    run("cp", &[&db.file(), &copy]);
    wait_for_heartbeats(&db, 2);
    checkpoint();
    unseen(&sidecar, || run("cp", &[&copy, &db.file()]));
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    assert!(sidecar.log().contains(OVERWRITTEN), "{}", sidecar.log());
}

/// While a reader prevents the first examination of the file, the examination is repeated.
#[test]
fn a_copy_over_the_file_ends_a_scheduler_that_started_beside_a_reader() {
    let db = TestDb::new();
    db.client().add(far_future("far").handler("command")).unwrap();
    let copy = db.home().join("backup.db");
    run("cp", &[&db.file(), &copy]);
    let reader = db.plain();
    let snapshot = reader.unchecked_transaction().unwrap();
    snapshot.query_row("SELECT count(*) FROM scheduled_tasks", [], |_| Ok(())).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    eventually("it is registered", || db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'stamp'") == "1");
    wait_for_heartbeats(&db, 1);
    drop(snapshot);
    wait_for_heartbeats(&db, 2);
    unseen(&sidecar, || run("cp", &[&copy, &db.file()]));
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    assert!(sidecar.log().contains(OVERWRITTEN), "{}", sidecar.log());
}

/// Waits for `more` recorded heartbeats, between which the scheduler examines the file.
fn wait_for_heartbeats(db: &TestDb, more: i64) {
    let count = || {
        let stamp = db.ask("SELECT substr(value, 38) FROM scheduler_meta WHERE key = 'stamp'");
        stamp.parse::<i64>().unwrap_or_else(|_| panic!("{stamp}"))
    };
    let begun = count();
    eventually("heartbeats are recorded", || count() >= begun + more);
}

#[test]
fn changes_by_sqlite_are_no_damage() {
    let (db, client) = TestDb::with_client();
    client
        .add(NewTask::interval("often", seconds(1)).handler("command").payload(serde_json::json!({ "argv": ["true"] })))
        .unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let plain = db.plain();
    let checkpoint = || plain.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut changes = 0;
    let mut assert_continues = |what: &str| {
        // Once while the change is in the log, once after a checkpoint.
        wait_for_heartbeats(&db, 2);
        checkpoint();
        wait_for_heartbeats(&db, 2);
        changes += 1;
        let name = format!("after-{changes}");
        client.add(shell(&name, "true")).unwrap_or_else(|error| panic!("{what}: {error}"));
        wait_for_status(&client, &name, RunStatus::Succeeded);
    };
    let copy = db.home().join("copy.db");
    client.add(far_future("early").handler("command")).unwrap();
    client.backup(&copy).unwrap();
    assert_continues("a backup");
    for statement in [
        "PRAGMA wal_checkpoint(PASSIVE)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "CREATE TABLE notes (text); INSERT INTO notes SELECT hex(zeroblob(100000)); DELETE FROM notes",
        "VACUUM",
        "PRAGMA auto_vacuum = FULL; VACUUM",
        "INSERT INTO notes SELECT hex(zeroblob(100000)); DELETE FROM notes",
        "DROP TABLE notes",
        "ANALYZE",
    ] {
        let other = db.plain();
        other.execute_batch(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        drop(other);
        assert_continues(statement);
    }
    let mut second = Sidecar::start(&db, &["--lease", "1s"]);
    wait_for_heartbeats(&db, 2);
    second.terminate();
    assert_continues("a second scheduler");
    run("touch", &[&db.file()]);
    run("cp", &[&db.file(), &db.home().join("read.db")]);
    assert_continues("other programs that read it");
    if tool_works("sqlite3", &["--version"]) {
        let backup = db.home().join("backup.db");
        sqlite_shell(db.file(), &format!(".backup {}", backup.display()));
        assert_continues(".backup");
        // An older state of the same database, and one with another history: `.restore` writes both in a transaction.
        for (name, from) in [("its own", &backup), ("another", &copy)] {
            sqlite_shell(db.file(), &format!(".restore {}", from.display()));
            eventually("it is restored", || db.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'early'") == "1");
            checkpoint();
            eventually("it is stamped", || db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'stamp'") == "1");
            assert_continues(&format!("restore {name}"));
        }
    }
    let log = sidecar.log();
    assert!(!log.contains("cannot be written") && !log.contains("while it was open"), "{log}");
    sidecar.terminate();
    db.assert_sound();
}

/// Without file descriptors the file cannot be examined: that is no evidence of damage.
#[test]
fn a_failed_examination_stops_nothing() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    wait_for_heartbeats(&db, 1);
    let limit = |files: &str| run("prlimit", &[&"--pid", &sidecar.pid().to_string(), &format!("--nofile={files}:")]);
    limit("1");
    for _ in 0..3 {
        db.plain().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        wait_for_heartbeats(&db, 2);
    }
    assert!(!sidecar.log().contains("while it was open"), "{}", sidecar.log());
    limit("1024");
    client.add(shell("fine", "true")).unwrap();
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    sidecar.terminate();
    db.assert_sound();
}

/// The client of the scheduler returns the error too.
#[test]
fn an_embedded_scheduler_stops_with_the_same_error() {
    let db = TestDb::new();
    let copy = db.home().join("backup.db");
    db.client().add(far_future("far")).unwrap();
    let start = || Scheduler::builder(db.file()).lease(seconds(1)).poll(Duration::from_millis(20)).start().unwrap();
    start().shutdown(seconds(1)).unwrap();
    run("cp", &[&db.file(), &copy]);
    let scheduler = start();
    let client = scheduler.client().clone();
    wait_for_heartbeats(&db, 3);
    // In one write: `cp` empties the file first, and the scheduler, which is this process, may see that.
    let older = std::fs::read(&copy).unwrap();
    let live = std::fs::OpenOptions::new().write(true).open(db.file()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&live, &older, 0).unwrap();
    live.set_len(older.len() as u64).unwrap();
    eventually("it has stopped", || scheduler.has_stopped());
    let ended = scheduler.shutdown(seconds(1)).unwrap_err();
    for error in [client.task("far").expect_err(&format!("the scheduler ended: {ended}")), ended] {
        let Error::UnusableDatabase { path, reason } = error else { panic!("{error:?}") };
        assert!(path == db.file() && reason.starts_with(OVERWRITTEN), "{reason}");
    }
    drop(client);
    assert!(std::fs::read(db.file()).unwrap() == std::fs::read(&copy).unwrap());
    // The same process may open the file again.
    let again = Scheduler::builder(db.file()).start().unwrap();
    assert!(again.task("far").unwrap().is_some());
    again.shutdown(seconds(1)).unwrap();
    db.assert_sound();
}

/// Damage is examined again: it must last for some seconds, during which nothing is written.
#[test]
fn temporary_damage_is_reported_and_nothing_is_written_during_it() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    let clock = stepper.clock().clone();
    stepper.step().unwrap();
    db.plain().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let whole = std::fs::read(db.file()).unwrap();
    // SQLite has cached the pages that a turn reads, also those that the file then lacks.
    clock.advance(seconds(20));
    stepper.step().unwrap();
    let open = std::fs::OpenOptions::new().write(true).open(db.file()).unwrap();
    open.set_len(4096).unwrap();
    clock.advance(seconds(1));
    for _ in 0..3 {
        stepper.step().unwrap();
        clock.advance(Duration::from_millis(400));
    }
    std::fs::write(db.file(), &whole).unwrap();
    clock.advance(seconds(20));
    stepper.step().unwrap();
    let is_reported = |event: &Event| matches!(event, Event::Degraded { .. } | Event::Recovered);
    let events: Vec<Event> = events.try_iter().filter(is_reported).collect();
    let [Event::Degraded { reason }, Event::Recovered] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("it was cut short while it was open"), "{reason}");
    open.set_len(4096).unwrap();
    let error = (0..10).find_map(|_| {
        clock.advance(seconds(20));
        stepper.step().err()
    });
    assert!(error.expect("an end").to_string().contains("it was cut short"));
    // Restores the file; closing it has released only a lock of this test.
    std::fs::write(db.file(), whole).unwrap();
}
