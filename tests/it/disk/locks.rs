//! A writer that holds the lock for hours, and a reader that holds an old snapshot, step by step on a manual clock.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, Event, NewTask, Outcome, RunStatus};

use crate::disk::tools::{Strace, may_attach, skip_without};
use crate::disk::{REFUSES, count_outages, probe, starts};
use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, eventually, listen, minutes, once, seconds, wait_for_status,
};
use crate::sidecar::{Sidecar, shell, wait_for_line, with_gate};

/// Starts a stepper that does not wait for locks. Returns it with its events.
fn stepper_without_waiting(db: &TestDb) -> (Stepper, Receiver<Event>) {
    let (observer, events) = listen();
    let builder = db.builder(NOON).accept("work").busy_timeout(Duration::ZERO).observe(observer);
    (builder.start().expect("a stepper"), events)
}

/// Advances as the loop would, and returns the number of steps.
fn advance_by(stepper: &mut Stepper, time: Duration) -> u32 {
    let end = stepper.clock().now().wall.plus(time);
    let mut steps = 0;
    loop {
        assert!(stepper.step().expect("a step").is_empty(), "nothing starts");
        steps += 1;
        let left = end.since(stepper.clock().now().wall);
        let sleeps = stepper.sleeps();
        assert!(!sleeps.is_zero() || steps < 10_000, "it spins");
        if sleeps >= left {
            stepper.clock().advance(left);
            return steps;
        }
        stepper.clock().advance(sleeps);
    }
}

#[test]
fn an_hour_long_write_lock_causes_two_events_and_loses_no_outcome() {
    let db = TestDb::new();
    let (mut stepper, events) = stepper_without_waiting(&db);
    stepper.client().add(once("long")).unwrap();
    let claims = stepper.step().unwrap();
    stepper.client().add(NewTask::interval("minutely", minutes(1)).starts_at(at(NOON)).handler("work")).unwrap();
    let writer = db.plain();
    writer.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    events.try_iter().for_each(drop);
    stepper.finish(&claims[0], Outcome::Succeeded { result: Some("7".to_owned()) });
    let steps = advance_by(&mut stepper, minutes(60));
    assert!((700..800).contains(&steps), "every five seconds: {steps}");
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [Event::Degraded { reason }] if reason.contains("locked")), "{reported:?}");
    assert_eq!(db.ask("SELECT group_concat(status || attempt) FROM task_runs"), "running1");
    writer.execute_batch("ROLLBACK").expect("the lock is free");

    let after = advance_and_step(&mut stepper, seconds(5));
    assert_eq!(after.iter().map(|claim| claim.task.as_str()).collect::<Vec<_>>(), ["minutely"]);
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(reported[0], Event::Recovered), "{reported:?}");
    assert!(
        !reported[1..].iter().any(|event| matches!(event, Event::Recovered | Event::Degraded { .. })),
        "{reported:?}"
    );
    let run = stepper.client().history("long", 1).unwrap().remove(0);
    assert_eq!((run.status, run.attempt, run.result.as_deref()), (RunStatus::Succeeded, 1, Some("7")));
    let missed = "SELECT status || ' ' || occurrences FROM task_runs WHERE status = 'missed'";
    assert_eq!(db.ask(missed), "missed 59");
    stepper.finish(&after[0], Outcome::succeeded());
    stepper.step().unwrap();
    db.assert_sound();
}

const INSERT: &str = "
    INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
    VALUES ('by-hand', 'work', 'null', 'once', '2030-01-01T00:00:00Z')";

/// A row inserted by SQL has no due time yet: whether it can be planned shows only in another try.
#[test]
fn a_failed_turn_is_retried_without_new_changes() {
    let db = TestDb::new();
    let (mut stepper, events) = stepper_without_waiting(&db);
    stepper.step().unwrap();
    let plain = db.plain();
    plain.execute_batch(INSERT).expect("a row");
    plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    stepper.step().unwrap();
    plain.execute_batch("ROLLBACK").expect("the lock is free");
    assert_eq!(stepper.sleeps(), Duration::from_millis(100));
    advance_and_step(&mut stepper, Duration::from_millis(100));
    assert!(stepper.sleeps() > Duration::ZERO, "it spins");
    assert_eq!(db.ask("SELECT planned FROM scheduled_tasks"), "1");
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [Event::Degraded { .. }, Event::Recovered]), "{reported:?}");
}

/// The row to be written may be deleted meanwhile: recovery is reported all the same.
#[test]
fn recovery_is_reported_with_nothing_left_to_write() {
    let db = TestDb::new();
    let (mut stepper, events) = stepper_without_waiting(&db);
    stepper.step().unwrap();
    let plain = db.plain();
    plain.execute_batch(INSERT).expect("a row");
    plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    stepper.step().unwrap();
    plain.execute_batch("DELETE FROM scheduled_tasks; COMMIT").expect("no task is left");
    assert!(advance_and_step(&mut stepper, Duration::from_millis(100)).is_empty());
    assert!(stepper.sleeps() > Duration::ZERO, "it spins");
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [Event::Degraded { .. }, Event::Recovered]), "{reported:?}");
}

/// The log cannot be reused while a snapshot is held, and grows. No run waits, and the log is truncated when the reader
/// ends.
#[test]
fn a_day_long_snapshot_delays_no_run() {
    let db = TestDb::new();
    let (mut stepper, events) = stepper_without_waiting(&db);
    let text = "x".repeat(200_000);
    let task = NewTask::interval("hourly", minutes(15)).handler("work").payload(text.clone());
    stepper.client().add(task).unwrap();
    let reader = db.plain();
    reader.execute_batch("BEGIN; SELECT count(*) FROM task_runs").expect("a snapshot");
    let log = || std::fs::metadata(db.home().join("agent.db-wal")).expect("a log").len();
    for _ in 0..96 {
        let claims = advance_and_step(&mut stepper, minutes(15));
        assert_eq!(claims.len(), 1);
        stepper.finish(&claims[0], Outcome::Succeeded { result: Some(format!("{text:?}")) });
        stepper.step().unwrap();
    }
    let grown = log();
    assert!(grown > 16 * 1024 * 1024, "{grown} bytes");
    assert_eq!(
        reader.query_row("SELECT count(*) FROM task_runs", [], |row| row.get(0)),
        Ok(0),
        "still the old snapshot"
    );
    reader.execute_batch("ROLLBACK").expect("no reader");
    advance_and_step(&mut stepper, seconds(20));
    assert_eq!(log(), 0, "it is cut");
    let odd = |event: &Event| matches!(event, Event::Degraded { .. } | Event::Recovered | Event::SetAside { .. });
    assert_eq!(events.try_iter().filter(odd).count(), 0);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), "96");
    db.assert_sound();
}

/// A log that cannot be truncated, and a lock file that cannot be kept, are reported once and not at each heartbeat.
#[test]
fn a_failing_checkpoint_or_lock_file_is_reported_once() {
    if !may_attach() {
        return skip_without("strace", "not tried");
    }
    let db = TestDb::new();
    drop(db.client());
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    eventually("its lock file exists", || db.lock_folder().exists());
    let seen = || db.number::<i64>("SELECT max(seen_at) FROM scheduler_instances");
    let three_heartbeats = || {
        for _ in 0..3 {
            let before = seen();
            eventually("a heartbeat", || seen() > before);
        }
    };
    // A file in the place of the folder.
    let folder = db.lock_folder();
    std::fs::rename(&folder, db.home().join("away")).expect("away");
    std::fs::write(&folder, "").expect("a file in its place");
    three_heartbeats();
    let cannot = "the lock file of this scheduler cannot be kept, so it starts nothing";
    assert_eq!(sidecar.log().matches(cannot).count(), 1, "{}", sidecar.log());
    std::fs::remove_file(&folder).expect("out of the way");
    three_heartbeats();
    assert!(sidecar.log().contains("had been removed or overwritten; it is recreated"), "{}", sidecar.log());
    assert_eq!(sidecar.log().matches(cannot).count(), 2, "once more when it is over: {}", sidecar.log());

    // The log is long, and the database file cannot be written.
    let strace = Strace::attach(&db, sidecar.pid(), "ftruncate", "EIO");
    let reader = db.plain();
    reader.execute_batch("BEGIN; SELECT count(*) FROM task_runs").expect("a snapshot");
    let photos = "CREATE TABLE photos (photo);
                  WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20)
                  INSERT INTO photos SELECT zeroblob(1000000) FROM n";
    db.plain().execute_batch(photos).expect("photos");
    reader.execute_batch("ROLLBACK").expect("no reader");
    eventually("it is tried thrice", || strace.failures() >= 3);
    let stays = "the log stays long";
    assert_eq!(sidecar.log().matches(stays).count(), 1, "{}", sidecar.log());
    drop(strace);
    eventually("it is cut", || sidecar.log().matches(stays).count() == 2);
    assert!(!sidecar.log().contains(REFUSES), "{}", sidecar.log());
    sidecar.terminate();
    db.assert_sound();
}

/// A failed stat of the file does not prove that the file is gone.
#[test]
fn a_failing_stat_does_not_count_as_a_removed_file() {
    if !may_attach() {
        return skip_without("strace", "not tried");
    }
    let (db, client, mut gate) = with_gate();
    let home = db.home().display();
    client.add(probe(&db, "long", &format!("echo at work >{home}/at-work; read line <{home}/gate"))).unwrap();
    client.add(shell("other", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s", "--until-idle"]);
    wait_for_line(&db, "at-work");
    wait_for_status(&client, "other", RunStatus::Succeeded);
    let strace = Strace::attach(&db, sidecar.pid(), "statx,newfstatat", "EIO");
    eventually("it is refused", || sidecar.log().contains(REFUSES));
    eventually("it cannot check for unfinished runs", || strace.failures_of(sidecar.pid()) > 0);
    gate.open();
    drop(strace);
    assert_eq!(wait_for_status(&client, "long", RunStatus::Succeeded).attempt, 1);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(starts(&db).len(), 1);
    assert_eq!(count_outages(&sidecar.log()), 1, "{}", sidecar.log());
    db.assert_sound();
}

/// All outcomes are recorded before: the next scheduler finds by the lock file that this one has ended.
#[test]
fn a_scheduler_that_cannot_deregister_exits_with_success() {
    if !may_attach() {
        return skip_without("strace", "not tried");
    }
    let (db, client) = TestDb::with_client();
    client.add(probe(&db, "short", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1h"]);
    wait_for_status(&client, "short", RunStatus::Succeeded);
    let strace = Strace::attach(&db, sidecar.pid(), "pwrite64", "EIO");
    sidecar.terminate();
    drop(strace);
    let log = sidecar.log();
    assert!(
        log.contains("cannot record the shutdown: disk I/O error; the next scheduler counts this one as dead"),
        "{log}"
    );
    let owners = || db.lock_files().len();
    let registered = || db.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL");
    assert_eq!((owners(), registered().as_str()), (2, "1"), "its lock file and that of its guard remain");
    let mut next = Sidecar::spawn(&db, &["--until-idle", "--lease", "1h"]);
    assert_eq!(next.end().code(), Some(0), "{}", next.log());
    assert_eq!((owners(), registered().as_str(), starts(&db).len()), (0, "0", 1));
    db.assert_sound();
}
