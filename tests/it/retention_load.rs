//! Retention makes progress at any rate of additions, and a scheduler that is restarted again and again leaves few rows.

use std::time::Duration;

use duly::{Clock, NewTask, Retention};

use crate::fixtures::{NOON, TestDb, advance_and_step, minutes, work_off};

/// More completed tasks are added in each minute than one batch of retention reads.
#[test]
fn expired_history_is_deleted_at_any_rate_of_additions() {
    const NEW: i64 = 6_000;
    let db = TestDb::brief();
    let keep = Retention { runs: minutes(4), events: minutes(4), least_runs: 0, ..Retention::default() };
    let mut stepper = db.builder(NOON).accept("work").retention(keep).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::interval("oldest", Duration::from_secs(86_400)).handler("work")).unwrap();
    client.pause("oldest").unwrap();
    for _ in 0..5 {
        client.trigger("oldest").unwrap();
        work_off(&mut stepper);
    }
    let mut added = 0;
    let mut minute = || {
        let now = stepper.clock().now().wall.as_millis();
        let add = format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NEW})
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, planned, active_since,
                                          created_at, updated_at)
             SELECT 'new:' || ({added} + i), 'work', 'once', '2027-03-14T12:00:00Z', 'completed', 1, {now}, {now}, {now}
               FROM n"
        );
        db.execute(&add);
        added += NEW;
        advance_and_step(&mut stepper, minutes(1));
        let left = |table: &str| db.ask(&format!("SELECT count(*) FROM {table} WHERE task_id = 1"));
        (left("task_runs"), left("scheduler_events"))
    };
    for _ in 0..3 {
        assert_eq!(minute(), ("5".to_owned(), "1".to_owned()), "all of it is young");
    }
    let left: Vec<_> = (0..8).map(|_| minute()).collect();
    assert_eq!(left.last(), Some(&("0".to_owned(), "0".to_owned())), "runs and events by minute: {left:?}");
    let kept = db.ask("SELECT count(*) FROM scheduled_tasks WHERE schedule_type = 'once'");
    assert_eq!(kept, added.to_string(), "what ended a minute ago stays");
}

/// A program that crashes as soon as it has started, and is started again.
#[test]
fn a_crash_loop_leaves_a_bounded_number_of_instances() {
    let db = TestDb::brief();
    let mut alive = db.builder(NOON).accept("other").start().expect("a stepper");
    alive.step().unwrap();
    let client = alive.client().clone();
    client.add(NewTask::interval("subject", Duration::from_secs(86_400)).handler("absent")).unwrap();
    alive.step().unwrap();
    let by_sql = "INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
                  VALUES ('holder', 'h', 1, '0', 4, 60000, 1700000000000, 1700000000000, 1700000000000),
                         ('stopped', 'h', 1, '0', 4, 60000, 1800000000000, 1800000000000, 1800000000000);
                  INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, locked_by, locked_until)
                  SELECT id, handler, created_at, 'manual', 'running', created_at, 1, 'holder', created_at
                    FROM scheduled_tasks";
    db.execute(by_sql);
    let (mut crashed, mut last) = (None, String::new());
    let mut time = crate::fixtures::at(NOON);
    for _ in 0..150 {
        time = time.plus(Duration::from_secs(1));
        let builder = duly::testing::Stepper::builder(db.address(), time).client(&client).accept("work");
        let builder = match crashed.take() {
            Some(crashed) => builder.after(crashed),
            None => builder,
        };
        let mut stepper = builder.start().unwrap();
        // The first turn of each finds the one before it dead.
        stepper.step().unwrap();
        last = stepper.owner().to_owned();
        crashed = Some(stepper.crash());
    }
    let ids = db.rows("SELECT id FROM scheduler_instances");
    assert!((50..=110).contains(&ids.len()), "{} instances are kept", ids.len());
    let has = |id: &str| ids.iter().any(|kept| kept == id);
    assert!(has(alive.owner()) && has(&last), "what is alive, and the newest");
    assert!(has("holder"), "the owner of a running run");
    assert!(!has("stopped"), "the oldest that has stopped");
    db.assert_sound();
}
