//! A clock was ahead and is found wrong: rows that cannot be written then are planned anew as soon as they can, also by another scheduler.

use duly::testing::Stepper;
use duly::{Limit, NewTask, Outcome, Overlap, RetryPolicy};

use crate::fixtures::{NOON, TestDb, at, claim, minutes, number, once, seconds, step};
use crate::marks;

#[test]
fn a_row_that_cannot_be_planned_anew_stops_no_other() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-17T12:00:00Z");
    let client = stepper.client().clone();
    for task in ["held", "free"] {
        client.add(NewTask::interval(task, minutes(10)).handler("nowhere")).expect("a task");
    }
    step(&mut stepper, 0);
    let refuses = "CREATE TRIGGER no BEFORE UPDATE ON scheduled_tasks WHEN NEW.name = 'held'
                   BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.execute(refuses);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    assert_eq!(
        (db.next("free").as_str(), db.next("held").as_str()),
        ("2027-03-14 12:10:00 active", "2027-03-17 12:10:00 active")
    );
    for _ in 0..3 {
        stepper.clock().advance(minutes(1));
        step(&mut stepper, 0);
    }
    let aside = db.rows("SELECT detail FROM scheduler_events WHERE kind = 'set_aside'");
    assert!(aside.len() == 1 && aside[0].starts_with("task \"held\": not now"), "{aside:?}");
    db.execute("DROP TRIGGER no");
    stepper.clock().advance(minutes(1));
    step(&mut stepper, 0);
    // From the time at which the clock was found wrong.
    assert_eq!(db.next("held"), "2027-03-14 12:10:00 active");
    assert_eq!(db.number::<i64>("SELECT count(*) FROM scheduler_events WHERE kind = 'clock_wrong'"), 1);
}

/// A clock that was three days ahead is found wrong, when a task and a waiting run cannot be written. Another task can.
fn refused_after_a_step_back(db: &TestDb, stepper: &mut Stepper) {
    let client = stepper.client().clone();
    for task in ["held", "free"] {
        client.add(NewTask::interval(task, minutes(10)).handler("nowhere")).expect("a task");
    }
    let retry = RetryPolicy { max_attempts: 9, backoff: minutes(60), max_backoff: minutes(600) };
    client.add(once("waits").retry(retry)).expect("a task");
    let failing = claim(stepper);
    stepper.finish(&failing, Outcome::failed("no"));
    step(stepper, 0);
    db.execute(
        "CREATE TRIGGER no BEFORE UPDATE ON scheduled_tasks WHEN NEW.name = 'held'
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    db.execute(
        "CREATE TRIGGER neither BEFORE UPDATE ON task_runs WHEN NEW.status = 'failed'
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    stepper.clock().set_wall(at(NOON));
    step(stepper, 0);
    assert_eq!(
        (db.next("free").as_str(), db.next("held").as_str()),
        ("2027-03-14 12:10:00 active", "2027-03-17 12:10:00 active")
    );
    assert_eq!(misplanned(db), 1);
}

/// From the time at which the clock was found wrong.
fn assert_waits_its_backoff(db: &TestDb) {
    let runs = db.runs();
    let run = runs.iter().find(|run| run.task == "waits").expect("a run");
    let wait = run.run_at.since(at(NOON));
    assert!((minutes(30)..=minutes(60)).contains(&wait), "{wait:?}");
}

fn misplanned(db: &TestDb) -> usize {
    db.rows("SELECT value FROM scheduler_meta WHERE key = 'misplanned'").len()
}

#[test]
fn a_row_that_could_not_be_planned_anew_is_not_forgotten_by_a_restart() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-17T12:00:00Z");
    refused_after_a_step_back(&db, &mut stepper);
    stepper.clock().advance(minutes(11));
    let mut stepper = stepper.restart().expect("another owner");
    step(&mut stepper, 0);
    // Its occurrence of 12:10 is resolved, and is not again.
    let free = || {
        db.rows("SELECT concat_ws(' ', next_run, resolved_until, created_at) FROM scheduled_tasks WHERE name = 'free'")
    };
    let before = free();
    assert_eq!(db.next("free"), "2027-03-14 12:20:00 active");
    assert_eq!(db.next("held"), "2027-03-17 12:10:00 active");
    db.execute("DROP TRIGGER no");
    db.execute("DROP TRIGGER neither");
    stepper.clock().advance(minutes(1));
    step(&mut stepper, 0);
    // From the time at which the clock was found wrong: an occurrence of that time is not lost.
    assert_eq!(db.next("held"), "2027-03-14 12:20:00 active");
    assert_eq!(
        db.runs().iter().filter(|run| run.task == "held").map(|run| run.scheduled_for).collect::<Vec<_>>().last(),
        Some(&at("2027-03-14T12:10:00Z"))
    );
    assert_waits_its_backoff(&db);
    assert_eq!((free(), misplanned(&db)), (before, 0));
}

#[test]
fn a_row_that_a_scheduler_could_not_plan_anew_before_it_died_is_planned_by_another() {
    let db = TestDb::new();
    let mut other = db.stepper("2027-03-17T12:00:00Z");
    let mut stepper = db.stepper("2027-03-17T12:00:00Z");
    refused_after_a_step_back(&db, &mut stepper);
    stepper.crash();
    db.execute("DROP TRIGGER no");
    db.execute("DROP TRIGGER neither");
    other.clock().set_wall(at(NOON));
    // It reads of them, and plans them at the next heartbeat at the latest.
    step(&mut other, 0);
    other.clock().advance(minutes(1));
    step(&mut other, 0);
    assert_eq!(db.next("held"), "2027-03-14 12:10:00 active");
    assert_waits_its_backoff(&db);
    assert_eq!(misplanned(&db), 0);
}

#[test]
fn a_start_that_a_wrong_clock_has_recorded_holds_back_until_it_is_set_back_and_no_longer() {
    let db = TestDb::new();
    let ahead = "2027-03-17T12:00:00Z";
    let mut stepper = db.builder(ahead).accept("work").workers(2).start().expect("a stepper");
    let client = stepper.client().clone();
    client.set_limit(Limit::rate("work", 2, minutes(10))).expect("a limit");
    client.add(NewTask::manual("job").handler("work").overlap(Overlap::Allow)).expect("a task");
    for _ in 1..=3 {
        client.trigger("job").expect("a run");
    }
    for claim in step(&mut stepper, 2) {
        stepper.finish(&claim, Outcome::succeeded());
    }
    step(&mut stepper, 0);
    db.execute(
        "CREATE TRIGGER no BEFORE UPDATE ON rate_limit_starts WHEN NEW.number = 1 BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    let starts = || {
        db.ask("SELECT group_concat(started_at / 60000, ' ') FROM (SELECT * FROM rate_limit_starts ORDER BY number)")
    };
    let minute = |time: &str| at(time).as_millis() / 60_000;
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    assert_eq!(starts(), format!("{} {}", minute(ahead), minute(NOON)));
    let aside = db.rows("SELECT detail FROM scheduler_events WHERE kind = 'set_aside'");
    assert!(aside.len() == 1 && aside[0].starts_with("the starts of rate limits"), "{aside:?}");
    // The limit is refused rather than exceeded, and nothing else waits for it.
    stepper.clock().advance(minutes(11));
    step(&mut stepper, 0);
    assert_eq!(db.ask("SELECT group_concat(key) FROM scheduler_meta WHERE key LIKE 'clock%'"), "clock_mark_starts");
    // Another scheduler goes on, and counts from the time at which the clock was found wrong.
    db.execute("DROP TRIGGER no");
    let mut stepper = stepper.restart().expect("another owner");
    step(&mut stepper, 1);
    assert_eq!(starts(), format!("{} {}", minute(NOON), minute("2027-03-14T12:11:00Z")));
    assert_eq!(db.number::<i64>("SELECT count(*) FROM scheduler_meta WHERE key LIKE 'clock%'"), 0);
}

/// Most rows that one transaction changes: each of 250 tasks up to three times while it is planned, and other 250 tasks once.
const MOST: usize = 1_000;

#[test]
fn what_a_wrong_clock_has_planned_is_planned_again_in_parts() {
    let (tasks, runs) = (number("DULY_WAITING", 20_000), number("DULY_WAITING", 20_000));
    let db = TestDb::new();
    let ahead = at(NOON).plus(minutes(3 * 24 * 60));
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::manual("crowd").handler("nowhere").overlap(Overlap::Allow)).expect("a task");
    client.add(NewTask::interval("last", minutes(10)).handler("nowhere")).expect("a task");
    db.execute(&format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned, resolved_until, active_since,
                                      created_at, updated_at)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {tasks})
         SELECT 't' || i, 'nowhere', 'interval', '10m', {0} + 600000, 1, {0}, {0}, {0}, {0} FROM n",
        ahead.as_millis()
    ));
    // Each has waited a minute, by the wrong clock.
    db.execute(&format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
         SELECT 1, 'nowhere', {0} + i, CASE WHEN i % 3 = 0 THEN 'schedule' ELSE 'on_dead' END, 'queued', {0} + i + 60000 FROM n",
        ahead.as_millis()
    ));
    db.execute(&format!(
        "INSERT INTO rate_limits (handler, max_starts, per_ms)
         WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {runs} / 5000)
         SELECT 'limited ' || i, 10000, 60000 FROM n"
    ));
    db.execute(&format!(
        "INSERT INTO rate_limit_starts (subject, number, started_at)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
         SELECT 'handler:limited ' || (i / 5000), i % 5000 + 1, {} FROM n",
        ahead.as_millis()
    ));
    // The mark comes to it at last.
    client.add(NewTask::interval("rests", minutes(10)).handler("nowhere")).expect("a task");
    client.pause("rests").expect("a pause");
    stepper.clock().set_wall(ahead);
    step(&mut stepper, 0);
    marks::count_changes(&db);
    stepper.clock().set_wall(at(NOON));
    let late = "SELECT (SELECT count(*) FROM rate_limit_starts WHERE started_at > {0}) || ' ' ||
                       (SELECT count(*) FROM scheduled_tasks WHERE created_at > {0} + 3600000) || ' ' ||
                       (SELECT count(*) FROM task_runs WHERE run_at > {0} + 600000 AND status = 'queued')";
    let late = late.replace("{0}", &at(NOON).as_millis().to_string());
    let late_starts = format!("rate_limit_starts WHERE started_at > {}", at(NOON).as_millis());
    // First the starts of rate limits, which hold their handlers back until then.
    for turn in 1.. {
        step(&mut stepper, 0);
        let found = marks::changes(&db);
        assert!(found <= MOST, "turn {turn} has changed {found} rows");
        if db.count_rows(&late_starts) == 0 {
            assert!(turn > runs / 500, "{turn} turns");
            break;
        }
        assert!(turn <= runs / 100, "turns without end");
    }
    for turn in 1.. {
        step(&mut stepper, 0);
        let found = marks::changes(&db);
        assert!(found <= MOST, "turn {turn} has changed {found} rows");
        match turn {
            // What is added meanwhile, or resumed, is planned by the clock as it is.
            3 => {
                stepper.clock().advance(minutes(15));
                client.add(NewTask::interval("new", minutes(10)).handler("nowhere")).expect("a task");
                client.resume("rests").expect("a resumption");
                client.pause("last").expect("a pause");
                client.resume("last").expect("a resumption");
                marks::changes(&db);
                assert_ne!(db.ask(&late), "0 0 0", "the test looks too late");
            }
            // Another scheduler goes on where this one was.
            6 => {
                stepper.crash();
                stepper = db.builder("2027-03-14T12:15:00Z").accept("none").start().expect("a stepper");
                marks::changes(&db);
            }
            _ if stepper.sleeps() > seconds(0) => break,
            _ => {}
        }
        assert!(turn < 2 * (tasks + runs) / 100, "turns without end");
    }
    assert_eq!(db.ask(&late), "0 0 0");
    let clock_mark = "SELECT count(*) FROM scheduler_meta WHERE key LIKE 'clock%' OR key = 'misplanned'";
    assert_eq!(db.ask(clock_mark), "0");
    // Others are planned from the time at which the clock was found wrong: 12:10 is resolved.
    assert_eq!(db.next("new"), "2027-03-14 12:25:00 active");
    for task in ["new", "rests"] {
        db.assert_history(task, &[]);
    }
    assert_eq!(db.next("last"), "2027-03-14 12:20:00 active");
    assert_eq!(db.next("t1"), "2027-03-14 12:20:00 active");
    let by_the_wrong_clock =
        ["2027-03-14 12:10:00 schedule missed x431 to 2027-03-17 11:50:00", "2027-03-17 12:00:00 schedule queued"];
    db.assert_history("last", &by_the_wrong_clock);
    db.execute("DELETE FROM scheduler_events WHERE kind = 'touched'");
    db.assert_sound();
}

#[test]
fn a_task_that_is_paused_before_it_is_planned_again_keeps_what_it_has_resolved() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    // The mark comes to it in a second turn.
    db.execute(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
         SELECT 't' || i, 'nowhere', 'manual', '' FROM n",
    );
    for task in ["last", "other"] {
        client.add(NewTask::interval(task, minutes(10)).handler("nowhere")).expect("a task");
    }
    while stepper.sleeps() == seconds(0) {
        step(&mut stepper, 0);
    }
    stepper.clock().advance(minutes(10));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(NOON).plus(minutes(3 * 24 * 60)));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    assert_eq!(db.next("last"), "2027-03-17 12:10:00 active");
    stepper.clock().advance(minutes(25));
    client.pause("last").expect("a pause");
    assert_eq!(db.next("last"), "- paused");
    step(&mut stepper, 0);
    let by_the_wrong_clock = [
        "2027-03-14 12:10:00 schedule queued",
        "2027-03-14 12:20:00 schedule missed x430 to 2027-03-17 11:50:00",
        "2027-03-17 12:00:00 schedule skipped",
    ];
    for task in ["last", "other"] {
        db.assert_history(task, &by_the_wrong_clock);
    }
    db.assert_sound();
}
