//! A writer that holds the lock for hours, and a reader that holds an old snapshot: by steps, on a clock that moves when it is
//! told to.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, Event, NewTask, Outcome, RunStatus};

use crate::disk::tools::{Strace, may_attach, without};
use crate::disk::{REFUSES, probe, refusals, starts};
use crate::fixtures::{TestDb, at, eventually, minutes, seconds};
use crate::sidecar::{Gate, Sidecar, shell, stands, told};

const NOON: &str = "2027-03-14T12:00:00Z";

/// One that says at once that the database is busy, and what it says.
fn impatient(db: &TestDb) -> (Stepper, Receiver<Event>) {
    let (told, hears) = channel();
    let observer = move |event: &Event| drop(told.send(event.clone()));
    let builder = db.builder(NOON).accept("work").busy_timeout(Duration::ZERO).observe(observer);
    (builder.start().expect("a stepper"), hears)
}

/// Steps through a time as the loop would, and answers with the number of steps.
fn pass(stepper: &mut Stepper, time: Duration) -> u32 {
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
fn a_writer_that_holds_the_lock_for_an_hour_costs_two_lines_and_no_outcome() {
    let db = TestDb::new();
    let (mut stepper, hears) = impatient(&db);
    stepper.client().add(NewTask::once("long", at(NOON)).handler("work")).unwrap();
    let claims = stepper.step().unwrap();
    stepper.client().add(NewTask::interval("minutely", minutes(1)).starts_at(at(NOON)).handler("work")).unwrap();
    let writer = db.plain();
    writer.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    hears.try_iter().for_each(drop);
    stepper.finish(&claims[0], Outcome::Succeeded { result: Some("7".to_owned()) });
    let steps = pass(&mut stepper, minutes(60));
    assert!((700..800).contains(&steps), "every five seconds: {steps}");
    let said: Vec<Event> = hears.try_iter().collect();
    assert!(matches!(&said[..], [Event::Degraded { reason }] if reason.contains("locked")), "{said:?}");
    assert_eq!(db.ask("SELECT group_concat(status || attempt) FROM task_runs"), "running1");
    writer.execute_batch("ROLLBACK").expect("the lock is free");

    stepper.clock().advance(seconds(5));
    let after = stepper.step().unwrap();
    assert_eq!(after.iter().map(|claim| claim.task.as_str()).collect::<Vec<_>>(), ["minutely"]);
    let said: Vec<Event> = hears.try_iter().collect();
    assert!(matches!(said[0], Event::Recovered), "{said:?}");
    assert!(!said[1..].iter().any(|event| matches!(event, Event::Recovered | Event::Degraded { .. })), "{said:?}");
    let run = stepper.client().history("long", 1).unwrap().remove(0);
    assert_eq!((run.status, run.attempt, run.result.as_deref()), (RunStatus::Succeeded, 1, Some("7")));
    let missed = "SELECT status || ' ' || occurrences FROM task_runs WHERE status = 'missed'";
    assert_eq!(db.ask(missed), "missed 59");
    stepper.finish(&after[0], Outcome::succeeded());
    stepper.step().unwrap();
    db.assert_sound();
}

const BY_HAND: &str = "
    INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
    VALUES ('by-hand', 'work', 'null', 'once', '2030-01-01T00:00:00Z')";

/// A row that somebody wrote by SQL is announced by no instant: whether it can be planned, only another try tells.
#[test]
fn what_was_refused_is_tried_again_though_nothing_has_changed_since() {
    let db = TestDb::new();
    let (mut stepper, hears) = impatient(&db);
    stepper.step().unwrap();
    let plain = db.plain();
    plain.execute_batch(BY_HAND).expect("a row");
    plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    stepper.step().unwrap();
    plain.execute_batch("ROLLBACK").expect("the lock is free");
    assert_eq!(stepper.sleeps(), Duration::from_millis(100));
    stepper.clock().advance(Duration::from_millis(100));
    stepper.step().unwrap();
    assert!(stepper.sleeps() > Duration::ZERO, "it spins");
    assert_eq!(db.ask("SELECT planned FROM scheduled_tasks"), "1");
    let said: Vec<Event> = hears.try_iter().collect();
    assert!(matches!(&said[..], [Event::Degraded { .. }, Event::Recovered]), "{said:?}");
}

/// What was to be written may be gone meanwhile: that the database can be written again is said all the same.
#[test]
fn a_refusal_is_over_though_nothing_is_left_to_write() {
    let db = TestDb::new();
    let (mut stepper, hears) = impatient(&db);
    stepper.step().unwrap();
    let plain = db.plain();
    plain.execute_batch(BY_HAND).expect("a row");
    plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    stepper.step().unwrap();
    plain.execute_batch("DELETE FROM scheduled_tasks; COMMIT").expect("no task is left");
    stepper.clock().advance(Duration::from_millis(100));
    assert!(stepper.step().unwrap().is_empty());
    assert!(stepper.sleeps() > Duration::ZERO, "it spins");
    let said: Vec<Event> = hears.try_iter().collect();
    assert!(matches!(&said[..], [Event::Degraded { .. }, Event::Recovered]), "{said:?}");
}

/// With a snapshot held, nothing of the log can be used again: it grows. Nobody waits, and when the reader is gone it is cut.
#[test]
fn a_reader_that_holds_a_snapshot_for_a_day_delays_nobody() {
    let db = TestDb::new();
    let (mut stepper, hears) = impatient(&db);
    let text = "x".repeat(200_000);
    let task = NewTask::interval("hourly", minutes(15)).handler("work").payload(text.clone());
    stepper.client().add(task).unwrap();
    let reader = db.plain();
    reader.execute_batch("BEGIN; SELECT count(*) FROM task_runs").expect("a snapshot");
    let log = || std::fs::metadata(db.home().join("agent.db-wal")).expect("a log").len();
    for _ in 0..96 {
        stepper.clock().advance(minutes(15));
        let claims = stepper.step().unwrap();
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
    stepper.clock().advance(seconds(20));
    stepper.step().unwrap();
    assert_eq!(log(), 0, "it is cut");
    let odd = |event: &Event| matches!(event, Event::Degraded { .. } | Event::Recovered | Event::SetAside { .. });
    assert_eq!(hears.try_iter().filter(odd).count(), 0);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), "96");
    db.assert_sound();
}

/// A log that cannot be cut, and a lock file that cannot be kept, are told once and not at each heartbeat.
#[test]
fn what_fails_beside_the_work_is_told_once() {
    if !may_attach() {
        return without("strace", "not tried");
    }
    let db = TestDb::new();
    drop(db.client());
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    eventually("its lock file is there", || db.home().join("agent.db-owners").exists());
    let seen = || db.ask("SELECT max(seen_at) FROM scheduler_instances").parse::<i64>().expect("a time");
    let three_heartbeats = || {
        for _ in 0..3 {
            let before = seen();
            eventually("a heartbeat", || seen() > before);
        }
    };
    // A file is in the way of the folder.
    let folder = db.home().join("agent.db-owners");
    std::fs::rename(&folder, db.home().join("away")).expect("away");
    std::fs::write(&folder, "").expect("a file in its place");
    three_heartbeats();
    let cannot = "the lock file of this scheduler cannot be kept, so it starts nothing";
    assert_eq!(sidecar.log().matches(cannot).count(), 1, "{}", sidecar.log());
    std::fs::remove_file(&folder).expect("out of the way");
    three_heartbeats();
    assert!(sidecar.log().contains("had been removed or overwritten; made again"), "{}", sidecar.log());
    assert_eq!(sidecar.log().matches(cannot).count(), 2, "once more when it is over: {}", sidecar.log());

    // The log is long, and the file that it belongs to cannot be written.
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
    sidecar.leave();
    db.assert_sound();
}

/// A look at the file that fails is no proof that the file is gone.
#[test]
fn a_file_that_cannot_be_looked_at_for_a_while_is_not_taken_for_removed() {
    if !may_attach() {
        return without("strace", "not tried");
    }
    let db = TestDb::new();
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    client.add(probe(&db, "long", &format!("echo at work >{home}/at-work; read line <{home}/gate"))).unwrap();
    client.add(shell("other", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s", "--until-idle"]);
    told(&db, "at-work");
    stands(&client, "other", RunStatus::Succeeded);
    let strace = Strace::attach(&db, sidecar.pid(), "statx,newfstatat", "EIO");
    eventually("it is refused", || sidecar.log().contains(REFUSES));
    eventually("it cannot see either whether anything is left", || strace.failures_of(sidecar.pid()) > 0);
    gate.open();
    drop(strace);
    assert_eq!(stands(&client, "long", RunStatus::Succeeded).attempt, 1);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(starts(&db).len(), 1);
    assert_eq!(refusals(&sidecar.log()), 1, "{}", sidecar.log());
    db.assert_sound();
}

/// All that had begun is written down by then: that the scheduler leaves, the next one sees as well.
#[test]
fn a_scheduler_that_cannot_write_down_that_it_leaves_has_left_in_order() {
    if !may_attach() {
        return without("strace", "not tried");
    }
    let db = TestDb::new();
    let client = db.client();
    client.add(probe(&db, "short", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1h"]);
    stands(&client, "short", RunStatus::Succeeded);
    let strace = Strace::attach(&db, sidecar.pid(), "pwrite64", "EIO");
    sidecar.leave();
    drop(strace);
    let log = sidecar.log();
    assert!(
        log.contains("cannot record the shutdown: disk I/O error; the next scheduler counts this one as dead"),
        "{log}"
    );
    let owners = || std::fs::read_dir(db.home().join("agent.db-owners")).expect("a folder").count();
    let registered = || db.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL");
    assert_eq!((owners(), registered().as_str()), (1, "1"), "its lock file tells that it is dead");
    let mut next = Sidecar::spawn(&db, &["--until-idle", "--lease", "1h"]);
    assert_eq!(next.end().code(), Some(0), "{}", next.log());
    assert_eq!((owners(), registered().as_str(), starts(&db).len()), (0, "0", 1));
    db.assert_sound();
}
