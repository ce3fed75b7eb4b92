//! Backups of a file in use: complete, readable by their owner only, and without owners of runs.

use std::collections::BTreeSet;
use std::time::Duration;

use crossbeam_channel::{TryRecvError, bounded};
use duly::testing::Stepper;
use duly::{Client, Context, Error, NewTask, Outcome, RunStatus, Scheduler};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, eventually, minutes, once, patience, seconds};

#[test]
fn a_backup_under_load_holds_everything_that_was_committed_before() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.file())
        .poll(Duration::from_millis(20))
        .handler("work", |_: &Context| Ok::<_, Error>(()))
        .start()
        .expect("a scheduler");
    let far = at("2999-01-01T00:00:00Z");
    scheduler.add(NewTask::once("t", far).handler("work")).expect("a task");
    let (end, over) = bounded::<()>(0);
    std::thread::scope(|scope| {
        // A panic drops it as well: the load must not last for ever.
        let end = end;
        let load = scope.spawn(|| {
            let client = db.client();
            let mut runs = 0;
            while over.try_recv() == Err(TryRecvError::Empty) {
                // On a slow disk other writers may hold the lock for longer than the busy timeout.
                match client.trigger("t") {
                    Ok(_) => runs += 1,
                    Err(error) => assert!(matches!(error, Error::Store { .. }), "{error}"),
                }
            }
            runs
        });
        for number in 0..3 {
            let succeeded = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
            eventually("more has run", || db.number::<i64>(succeeded) > 40 * number);
            let rows = "SELECT id || ' ' || status FROM task_runs";
            let over = &format!("{rows} WHERE status = 'succeeded'");
            let (all, done) = (db.rows("SELECT id FROM task_runs"), db.rows(over));
            let copy = TestDb::new();
            let made = db.client().backup(copy.file()).expect("a copy");
            assert_eq!(made.bytes, std::fs::metadata(copy.file()).expect("a file").len());
            drop(Client::open_existing(copy.file()).expect("it opens"));
            copy.assert_sound();
            let of_the_copy = |rows: &str| BTreeSet::from_iter(copy.rows(rows));
            let (has, has_done) = (of_the_copy("SELECT id FROM task_runs"), of_the_copy(over));
            assert!(all.iter().all(|run| has.contains(run)) && done.iter().all(|run| has_done.contains(run)));
            let files = std::fs::read_dir(copy.home()).expect("a folder").count();
            assert_eq!(files, 1, "nothing is left beside it");
        }
        drop(end);
        assert!(load.join().expect("no panic") > 40);
    });
    scheduler.shutdown(patience()).expect("an end");
}

#[cfg(unix)]
#[test]
fn a_backup_has_mode_600_and_overwrites_nothing() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (db, client) = TestDb::with_client();
    let copy = db.home().join("copy.db");
    client.backup(&copy).expect("a copy");
    assert_eq!(std::fs::metadata(&copy).expect("a file").permissions().mode() & 0o777, 0o600);

    let text = |name: &str| db.home().join(name);
    std::fs::write(text("notes"), "").expect("a file");
    symlink("nowhere", text("link")).expect("a link");
    for (name, says) in [
        ("copy.db", "there is such a file: nothing is overwritten"),
        ("agent.db", "there is such a file"),
        ("notes", "there is such a file"),
        ("link", "there is such a file"),
        ("missing/copy.db", "its folder: No such file"),
        ("..", "expected the name of a file"),
    ] {
        let error = client.backup(text(name)).expect_err(name);
        assert!(matches!(&error, Error::Refused { reason, .. } if reason.starts_with(says)), "{error}");
    }
    assert_eq!(std::fs::read(text("notes")).expect("a file"), b"");
    std::fs::write(text("new.db.part"), "half").expect("a file");
    let error = client.backup(text("new.db")).expect_err("in the way").to_string();
    assert!(error.contains("was cut short: if not, remove") && error.ends_with("new.db.part"), "{error}");
    assert!(!text("new.db").exists() && text("new.db.part").exists() && !text("copy.db.part").exists());
    assert!(!text("nowhere").exists());
}

/// Two schedulers, each on its own file: neither trusts rows about the other's owners.
#[test]
fn runs_at_work_in_the_original_are_lost_in_the_copy_after_a_lease() {
    let (db, copy) = (TestDb::new(), TestDb::new());
    let mut first = db.stepper(NOON);
    let client = first.client().clone();
    client.add(once("again")).expect("a task");
    client.add(once("never").at_most_once()).expect("a task");
    let claims = first.step().expect("a turn");
    assert_eq!(claims.len(), 2);
    // The record of a command, with the pid of this process: it must neither be waited for nor signalled.
    let process = format!("UPDATE task_runs SET process = '{{\"pid\":{}}}'", std::process::id());
    db.plain().execute(&process, []).expect("a record");
    assert_eq!(client.backup(copy.file()).expect("a copy").running, 2);
    assert_eq!((db.registered_schedulers(), copy.registered_schedulers()), (1, 0));
    assert_eq!(copy.ask("SELECT count(process) FROM task_runs"), "0");
    assert_eq!(copy.ask("SELECT kind FROM scheduler_events"), "copied");

    let mut second = Stepper::builder(copy.file(), at(NOON)).accept("work").start().expect("a stepper");
    assert!(second.step().expect("a turn").is_empty(), "unknown within a lease");
    let mut again = advance_and_step(&mut second, minutes(2));
    for _ in 0..20 {
        second.clock().advance(seconds(10));
        again.extend(second.step().expect("a turn"));
    }
    let again: Vec<(&str, u32)> = again.iter().map(|claim| (claim.task.as_str(), claim.attempt)).collect();
    assert_eq!(again, [("again", 2)], "once where it may start again");
    let dead = second.client().history("never", 1).expect("a history");
    assert_eq!(dead[0].status, RunStatus::Dead);
    assert!(!copy.lock_file(&first).exists());

    // The original is not affected.
    claims.iter().for_each(|claim| first.finish(claim, Outcome::succeeded()));
    first.step().expect("a turn");
    assert_eq!(db.states(), ["again|succeeded|1", "never|succeeded|1"]);
    db.assert_sound();
    copy.assert_sound();
}

/// A restore: the copy replaces the file, whose log is removed, and the scheduler dies.
#[test]
fn runs_at_work_in_a_restored_backup_are_recovered_when_their_scheduler_dies() {
    let (db, copy) = (TestDb::new(), TestDb::new());
    let mut first = db.stepper(NOON);
    first.client().add(once("again")).expect("a task");
    assert_eq!(first.step().expect("a turn").len(), 1);
    first.client().backup(copy.file()).expect("a copy");
    std::fs::rename(copy.file(), db.file()).expect("put back");
    for name in ["agent.db-wal", "agent.db-shm"] {
        std::fs::remove_file(db.home().join(name)).expect("a file of the log");
    }
    // The owner is alive and keeps its runs, although the file was replaced.
    let mut second = db.stepper(NOON);
    assert!(advance_and_step(&mut second, minutes(5)).is_empty());
    first.crash();
    let mut claims = Vec::new();
    for _ in 0..20 {
        second.clock().advance(seconds(10));
        claims.extend(second.step().expect("a turn"));
    }
    assert_eq!(claims.len(), 1, "recovered, and tried again");
    db.assert_sound();
}
