//! Damage that bypasses SQLite while a scheduler is at work: the log removed or replaced, the file emptied, cut or copied over. The
//! scheduler stops with exit code 4 within seconds, and writes nothing into a file that is not its own any more. What SQLite does
//! to the file by itself, in any program, is no damage.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use duly::{Client, Error, Event, NewTask, RunStatus, Scheduler};

use crate::fixtures::{TestDb, at, eventually, seconds};
use crate::sidecar::{Gate, Sidecar, group_size, shell, stands, told};

const NOON: &str = "2027-03-14T12:00:00Z";
const OVERWRITTEN: &str =
    "another database, or an older copy, was written over it while it was open: stop every program";

/// Runs a program, which must succeed.
fn run(program: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) {
    let done = Command::new(program).args(arguments.iter().map(AsRef::as_ref)).output().expect(program);
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Whether the `sqlite3` shell is there.
fn may_ask_the_shell() -> bool {
    let may = Command::new("sqlite3").arg("--version").output().is_ok();
    assert!(may || std::env::var("DULY_CI").as_deref() != Ok("1"), "sqlite3 is missing");
    if !may {
        println!("skipped: no sqlite3");
    }
    may
}

fn shell_says(file: &Path, command: &str) {
    run("sqlite3", &[&"-cmd", &".timeout 5000", &file, &command]);
}

fn beside(db: &TestDb, name: &str) -> PathBuf {
    db.file().with_file_name(format!("agent.db{name}"))
}

/// Runs that are recorded, in a file whose log nobody has written back since.
const RUNS: usize = 20;

/// A db with a scheduler that has recorded [`RUNS`] runs, most of them in the log alone, and has a command at work.
fn at_work(db: &TestDb) -> (Sidecar, Gate, String) {
    let gate = Gate::new(db, "gate");
    let client = db.client();
    (0..RUNS).for_each(|run| drop(client.add(shell(&format!("fine-{run}"), "true")).unwrap()));
    let home = db.home().display();
    client.add(shell("long", &format!("echo $$ >{home}/group; read line <{home}/gate"))).unwrap();
    drop(client);
    let sidecar = Sidecar::start(db, &["--lease", "1s"]);
    let group = told(db, "group");
    let succeeded = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
    eventually("all is recorded", || db.ask(succeeded) == RUNS.to_string());
    (sidecar, gate, group)
}

/// Does this to the file of a scheduler that is at work: it stops with exit code 4 and these words in its one error, and leaves no
/// command.
fn stops(what: &str, says: &str, db: &TestDb, harm: impl FnOnce(&TestDb)) -> String {
    let (mut sidecar, _gate, group) = at_work(db);
    harm(db);
    assert_eq!(sidecar.end().code(), Some(4), "{what}: {}", sidecar.log());
    let log = sidecar.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{what}: {log}") };
    assert!(error.starts_with("error: cannot use ") && error.contains(says), "{what}: {log}");
    assert_eq!(group_size(&group), 0, "{what}: nothing is left at work");
    log
}

#[test]
fn a_log_that_is_removed_ends_the_scheduler_and_nothing_recorded_is_lost() {
    for name in ["-wal", "-shm"] {
        let db = TestDb::new();
        let says = format!(
            "agent.db{name}, which is part of it, was removed while it was open: stop every program that uses the database, and \
             run duly doctor before you start again; when the last program closes the database, what it held is written back"
        );
        stops(name, &says, &db, |db| std::fs::remove_file(beside(db, name)).unwrap());
        let succeeded = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
        assert_eq!(db.ask(succeeded), RUNS.to_string(), "{name}");
        db.assert_sound();
    }
}

#[test]
fn a_log_that_is_replaced_ends_the_scheduler_and_is_not_written_past() {
    let db = TestDb::new();
    let mut before = Vec::new();
    stops("replaced", "agent.db-wal, which is part of it, was replaced while it was open", &db, |db| {
        let (log, other) = (beside(db, "-wal"), db.home().join("other"));
        std::fs::write(&other, "").unwrap();
        before = std::fs::read(db.file()).unwrap();
        std::fs::rename(other, log).unwrap();
    });
    assert!(std::fs::read(db.file()).unwrap() == before, "nothing was written");
    assert!(beside(&db, "-wal").exists(), "nothing was removed");
}

#[test]
fn a_file_that_is_emptied_or_cut_ends_the_scheduler_and_stays_as_it_is() {
    for (length, says) in [(0, "it was emptied while it was open"), (8192, "it was cut short while it was open")] {
        let db = TestDb::new();
        let log = stops("cut", says, &db, |db| {
            std::fs::OpenOptions::new().write(true).open(db.file()).unwrap().set_len(length).unwrap();
        });
        assert_eq!(std::fs::metadata(db.file()).unwrap().len(), length, "nothing was written into it");
        assert!(log.contains("the database cannot be written"), "{log}");
        assert!(!beside(&db, "-wal").exists() && beside(&db, "-wal-aside-1").exists(), "{log}");
    }
}

/// What there was before the scheduler was started, and what a copy of it holds afterwards.
fn copied_over(what: &str, make: impl FnOnce(&TestDb, &Path)) {
    let db = TestDb::new();
    let copy = db.home().join("backup.db");
    db.client().add(NewTask::once("kept", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    make(&db, &copy);
    let log = stops(what, OVERWRITTEN, &db, |db| run("cp", &[&copy, &db.file()]));
    assert!(std::fs::read(db.file()).unwrap() == std::fs::read(&copy).unwrap(), "{what}: nothing was written into it");
    assert!(log.contains("belongs to the file as it was: it was renamed"), "{what}: {log}");
    // Whoever opens it finds the copy, and no page of what was there before.
    assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks"), "kept", "{what}");
    db.assert_sound();
}

#[test]
fn a_copy_of_the_file_over_it_ends_the_scheduler() {
    copied_over("the file alone, from before", |db, copy| run("cp", &[&db.file(), &copy]));
    copied_over("duly backup", |db, copy| drop(db.client().backup(copy).unwrap()));
    copied_over("VACUUM INTO", |db, copy| {
        db.plain().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    });
    copied_over("another database of duly", |_, copy| {
        let other = Client::open(copy).unwrap();
        other.add(NewTask::once("kept", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    });
    if may_ask_the_shell() {
        copied_over(".backup", |db, copy| shell_says(db.file(), &format!(".backup {}", copy.display())));
    }
}

/// A copy from while the scheduler is at work, a little older than the file.
#[test]
fn a_recent_copy_over_the_file_ends_an_idle_scheduler() {
    let db = TestDb::new();
    db.client().add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let copy = db.home().join("backup.db");
    let written_back = || db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    written_back();
    run("cp", &[&db.file(), &copy]);
    beats(&db, 2);
    written_back();
    run("cp", &[&copy, &db.file()]);
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    assert!(sidecar.log().contains(OVERWRITTEN), "{}", sidecar.log());
}

/// A reader keeps the first look from seeing a sound file: the look is repeated until it succeeds.
#[test]
fn a_copy_over_the_file_ends_a_scheduler_that_started_beside_a_reader() {
    let db = TestDb::new();
    db.client().add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    let copy = db.home().join("backup.db");
    run("cp", &[&db.file(), &copy]);
    let reader = db.plain();
    let snapshot = reader.unchecked_transaction().unwrap();
    snapshot.query_row("SELECT count(*) FROM scheduled_tasks", [], |_| Ok(())).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    eventually("it is registered", || db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'stamp'") == "1");
    beats(&db, 1);
    drop(snapshot);
    beats(&db, 2);
    run("cp", &[&copy, &db.file()]);
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    assert!(sidecar.log().contains(OVERWRITTEN), "{}", sidecar.log());
}

/// Waits until the scheduler has recorded so many more heartbeats. It has looked at the file in between.
fn beats(db: &TestDb, more: i64) {
    let count = || {
        let stamp = db.ask("SELECT substr(value, 38) FROM scheduler_meta WHERE key = 'stamp'");
        stamp.parse::<i64>().unwrap_or_else(|_| panic!("{stamp}"))
    };
    let begun = count();
    eventually("heartbeats are recorded", || count() >= begun + more);
}

#[test]
fn what_sqlite_does_to_the_file_is_no_damage() {
    let db = TestDb::new();
    let client = db.client();
    client
        .add(
            NewTask::interval("often", Duration::from_millis(200))
                .handler("command")
                .payload(serde_json::json!({ "argv": ["true"] })),
        )
        .unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let plain = db.plain();
    let written_back = || plain.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut acts = 0;
    let mut goes_on = |what: &str| {
        // Once while it is in the log, once when it is in the file.
        beats(&db, 2);
        written_back();
        beats(&db, 2);
        acts += 1;
        let name = format!("after-{acts}");
        client.add(shell(&name, "true")).unwrap_or_else(|error| panic!("{what}: {error}"));
        stands(&client, &name, RunStatus::Succeeded);
    };
    let copy = db.home().join("copy.db");
    client.add(NewTask::once("early", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    client.backup(&copy).unwrap();
    goes_on("a backup");
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
        goes_on(statement);
    }
    let mut second = Sidecar::start(&db, &["--lease", "1s"]);
    beats(&db, 2);
    second.leave();
    goes_on("a second scheduler");
    run("touch", &[&db.file()]);
    run("cp", &[&db.file(), &db.home().join("read.db")]);
    goes_on("other programs that read it");
    if may_ask_the_shell() {
        let backup = db.home().join("backup.db");
        shell_says(db.file(), &format!(".backup {}", backup.display()));
        goes_on(".backup");
        // An older state of the same database, and one of another lineage: both come in as a transaction.
        for (name, from) in [("its own", &backup), ("another", &copy)] {
            shell_says(db.file(), &format!(".restore {}", from.display()));
            eventually("it is restored", || db.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'early'") == "1");
            written_back();
            eventually("it is stamped", || db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'stamp'") == "1");
            goes_on(&format!("restore {name}"));
        }
    }
    let log = sidecar.log();
    assert!(!log.contains("cannot be written") && !log.contains("while it was open"), "{log}");
    sidecar.leave();
    db.assert_sound();
}

/// Nothing can be opened to look: that is no evidence.
#[test]
fn a_look_that_fails_stops_nothing() {
    let db = TestDb::new();
    let client = db.client();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    beats(&db, 1);
    let limit = |files: &str| run("prlimit", &[&"--pid", &sidecar.pid().to_string(), &format!("--nofile={files}:")]);
    limit("1");
    for _ in 0..3 {
        db.plain().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        beats(&db, 2);
    }
    assert!(!sidecar.log().contains("while it was open"), "{}", sidecar.log());
    limit("1024");
    client.add(shell("fine", "true")).unwrap();
    stands(&client, "fine", RunStatus::Succeeded);
    sidecar.leave();
    db.assert_sound();
}

/// In a program of its own the same error ends the scheduler, and its client has it too.
#[test]
fn a_scheduler_within_a_program_stops_with_the_same_error() {
    let db = TestDb::new();
    let copy = db.home().join("backup.db");
    db.client().add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("work")).unwrap();
    let start = || Scheduler::builder(db.file()).lease(seconds(1)).poll(Duration::from_millis(20)).start().unwrap();
    start().shutdown(seconds(1)).unwrap();
    run("cp", &[&db.file(), &copy]);
    let scheduler = start();
    let client = scheduler.client().clone();
    beats(&db, 3);
    run("cp", &[&copy, &db.file()]);
    eventually("it has stopped", || scheduler.has_stopped());
    let ended = scheduler.shutdown(seconds(1)).unwrap_err();
    for error in [client.task("far").expect_err(&format!("the scheduler ended: {ended}")), ended] {
        let Error::UnusableDatabase { path, reason } = error else { panic!("{error:?}") };
        assert!(path == db.file() && reason.starts_with(OVERWRITTEN), "{reason}");
    }
    drop(client);
    assert!(std::fs::read(db.file()).unwrap() == std::fs::read(&copy).unwrap());
    // It may be opened again in the same program.
    let again = Scheduler::builder(db.file()).start().unwrap();
    assert!(again.task("far").unwrap().is_some());
    again.shutdown(seconds(1)).unwrap();
    db.assert_sound();
}

/// What a disk returned once is examined again: the finding must last for some seconds, in which nothing is written.
#[test]
fn damage_that_passes_is_told_and_nothing_is_written_meanwhile() {
    let db = TestDb::new();
    let events = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = events.clone();
    let watch = move |event: &Event| {
        if matches!(event, Event::Degraded { .. } | Event::Recovered) {
            tell.lock().unwrap().push(event.clone());
        }
    };
    let mut stepper = db.builder(NOON).accept("work").observe(watch).start().unwrap();
    let clock = stepper.clock().clone();
    stepper.step().unwrap();
    db.plain().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let whole = std::fs::read(db.file()).unwrap();
    // What a turn reads is in memory: SQLite keeps the pages that it finds missing, too.
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
    {
        let events = events.lock().unwrap();
        let [Event::Degraded { reason }, Event::Recovered] = &events[..] else { panic!("{events:?}") };
        assert!(reason.contains("it was cut short while it was open"), "{reason}");
    }
    open.set_len(4096).unwrap();
    let error = (0..10).find_map(|_| {
        clock.advance(seconds(20));
        stepper.step().err()
    });
    assert!(error.expect("an end").to_string().contains("it was cut short"));
    // The file of the test ends as it was; the lock that closing it dropped is the test's own.
    std::fs::write(db.file(), whole).unwrap();
}
