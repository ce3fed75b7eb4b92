//! Retention: expired history is deleted, in batches or at once; unfinished work and the newest runs of each task stay.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Apply, BoxError, Clock, Context, Done, Error, Failure, FailureKind, NewTask, Outcome, Retention, Retry};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, claim, minutes, seconds, step, succeed, work_off};

fn days(days: u64) -> Duration {
    seconds(days * 86_400)
}

fn task_names(db: &TestDb) -> Vec<String> {
    db.rows("SELECT name FROM scheduled_tasks ORDER BY id")
}

#[test]
fn a_completed_one_time_task_is_deleted_after_thirty_days() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let once = |name: &str| NewTask::once(name, at(NOON)).handler("work");
    client.add_all([once("done"), once("dead"), once("running"), once("again")]).unwrap();
    client.add(NewTask::once("elsewhere", at(NOON)).handler("absent")).unwrap();
    for run in step(&mut stepper, 4) {
        let give_up = Outcome::Failed { how: FailureKind::Failed, error: "no".into(), retry: Retry::GiveUp };
        match run.task.as_str() {
            "running" => {}
            "dead" => stepper.finish(&run, give_up),
            _ => stepper.finish(&run, Outcome::succeeded()),
        }
    }
    step(&mut stepper, 0);
    let bystander = db.add_bystander(&stepper);
    advance_and_step(&mut stepper, days(10));
    client.trigger("again").unwrap();
    let again = claim(&mut stepper);
    succeed(&mut stepper, &again);
    advance_and_step(&mut stepper, days(20) - seconds(1));
    assert_eq!(task_names(&db).len(), 6);
    advance_and_step(&mut stepper, minutes(1));
    assert_eq!(task_names(&db), ["running", "again", "elsewhere", "bystander"]);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts"), "0", "with all that was of them");
    advance_and_step(&mut stepper, days(10));
    assert_eq!(task_names(&db), ["running", "elsewhere", "bystander"]);
    db.assert_bystander(&bystander);
    db.assert_sound();
}

#[test]
fn a_one_time_task_of_a_manifest_does_not_run_again() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let apply =
        || client.apply("tasks.toml", [NewTask::once("once", at(NOON)).handler("work")], Apply::default()).unwrap();
    assert_eq!(apply()[0].done, Done::Created);
    let run = claim(&mut stepper);
    succeed(&mut stepper, &run);
    advance_and_step(&mut stepper, days(40));
    assert_eq!(client.prune(Retention { once: seconds(1), ..Retention::default() }).unwrap().tasks, 0);
    assert_eq!(apply()[0].done, Done::Unchanged);
    assert!(stepper.step().unwrap().is_empty());
    assert_eq!(db.runs().len(), 1);
}

#[test]
fn a_completed_task_with_a_new_next_run_stays_and_runs_again() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add_all(["again", "over"].map(|name| NewTask::once(name, at(NOON)).handler("work"))).unwrap();
    step(&mut stepper, 2).iter().for_each(|run| stepper.finish(run, Outcome::succeeded()));
    step(&mut stepper, 0);
    stepper.clock().advance(days(40));
    let now = stepper.clock().now().wall.as_millis();
    let again = format!("UPDATE scheduled_tasks SET next_run = {now} WHERE name = 'again'");
    db.execute(&again);
    let keep = Retention::default();
    assert_eq!((client.would_prune(keep).unwrap().tasks, client.prune(keep).unwrap().tasks), (1, 1));
    assert_eq!(task_names(&db), ["again"]);
    let again = claim(&mut stepper);
    succeed(&mut stepper, &again);
    advance_and_step(&mut stepper, minutes(2));
    assert_eq!(db.rows("SELECT status, count(*) FROM task_runs"), ["succeeded|2"]);
    db.assert_sound();
}

/// A task with an hourly run for some time, all succeeded.
fn hourly(db: &TestDb, keep: Retention, hours: u64) -> Stepper {
    let mut stepper = db.builder(NOON).accept("work").retention(keep).start().expect("a stepper");
    stepper.client().add(NewTask::interval("subject", minutes(60)).handler("work")).unwrap();
    stepper.step().unwrap();
    for _ in 0..hours {
        stepper.clock().advance(minutes(60));
        work_off(&mut stepper);
    }
    stepper
}

fn count_runs(db: &TestDb) -> String {
    db.ask("SELECT count(*) FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = 'subject')")
}

#[test]
fn old_runs_are_deleted_except_the_newest_of_a_task() {
    let db = TestDb::new();
    let keep = Retention { runs: days(2), least_runs: 10, most_runs: 60, ..Retention::default() };
    let mut stepper = hourly(&db, keep, 58);
    let bystander = db.add_bystander(&stepper);
    let manual = stepper.client().trigger("subject").unwrap();
    let triggered = claim(&mut stepper);
    succeed(&mut stepper, &triggered);
    advance_and_step(&mut stepper, seconds(20));
    let kept: u64 = count_runs(&db).parse().unwrap();
    assert!((48..=50).contains(&kept), "two days, and the triggered runs: {kept}");
    let oldest = "SELECT min(scheduled_for) FROM task_runs WHERE task_id = 1";
    assert_eq!(db.ask(oldest), at("2027-03-14T22:00:00Z").plus(minutes(60)).as_millis().to_string());

    // Paused for a year: the newest ten stay, and waiting runs stay.
    stepper.client().pause("subject").unwrap();
    stepper.clock().set_wall(at("2028-03-20T12:00:00Z"));
    stepper.step().unwrap();
    advance_and_step(&mut stepper, seconds(20));
    assert_eq!(count_runs(&db), kept.to_string(), "a step of the clock: it may be wrong");
    advance_and_step(&mut stepper, days(1));
    assert_eq!(count_runs(&db), "10");
    assert!(stepper.client().run(manual).unwrap().is_some(), "it is of the newest");
    db.assert_bystander(&bystander);
    db.assert_sound();
}

#[test]
fn the_oldest_runs_above_the_limit_are_deleted_at_any_age() {
    let db = TestDb::new();
    let keep = Retention { least_runs: 5, most_runs: 20, ..Retention::default() };
    let mut stepper = hourly(&db, keep, 30);
    advance_and_step(&mut stepper, seconds(20));
    assert_eq!(count_runs(&db), "20");
    assert_eq!(db.ask("SELECT min(id) FROM task_runs"), "11");
    db.assert_sound();
}

#[test]
fn a_kept_retry_keeps_the_run_that_it_retries() {
    let db = TestDb::new();
    let keep = Retention { runs: days(1), least_runs: 0, ..Retention::default() };
    let mut stepper = db.builder(NOON).accept("work").retention(keep).start().unwrap();
    let client = stepper.client().clone();
    client.add(NewTask::interval("subject", days(300)).handler("work")).unwrap();
    let run = client.trigger("subject").unwrap();
    let dead = claim(&mut stepper);
    client.cancel(run).unwrap();
    stepper.finish(&dead, Outcome::failed("no"));
    step(&mut stepper, 0);
    let retry = client.retry(run).unwrap();
    let first = claim(&mut stepper);
    stepper.finish(
        &first,
        Outcome::Failed { how: FailureKind::Failed, error: "later".into(), retry: Retry::After(days(3)) },
    );
    step(&mut stepper, 0);
    for _ in 0..3 {
        advance_and_step(&mut stepper, days(1) - seconds(1));
        stepper.step().unwrap();
    }
    advance_and_step(&mut stepper, minutes(1));
    let second = stepper.running().to_vec().remove(0);
    assert_eq!((second.run_id, second.idempotency_key()), (retry, dead.idempotency_key()));
    succeed(&mut stepper, &second);
    advance_and_step(&mut stepper, days(2));
    // The retry first, and then the run that it retries.
    advance_and_step(&mut stepper, minutes(1));
    assert_eq!(count_runs(&db), "0");
}

#[test]
fn a_chain_of_retries_is_kept_while_its_last_may_be_retried() {
    let db = TestDb::new();
    let keep = Retention { runs: days(2), least_runs: 0, ..Retention::default() };
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, keys) = (calls.clone(), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = keys.clone();
    let handler = move |run: &Context| -> Result<(), BoxError> {
        seen.lock().unwrap().insert(run.idempotency_key());
        run.effect("pay", || Ok(count.fetch_add(1, Ordering::Relaxed)))?;
        Err(Failure::give_up("out of paper").into())
    };
    let mut stepper = db.builder(NOON).handler("work", handler).retention(keep).start().unwrap();
    let client = stepper.client().clone();
    client.add(NewTask::interval("subject", days(300)).handler("work")).unwrap();
    let mut run = client.trigger("subject").unwrap();
    let mut lasts = |time: Duration| {
        stepper.run_until(at(NOON)).unwrap();
        advance_and_step(&mut stepper, time);
    };
    lasts(days(1));
    for _ in 0..4 {
        run = client.retry(run).unwrap();
        lasts(days(1));
    }
    // The first has expired long ago; the last has not.
    assert_eq!(calls.load(Ordering::Relaxed), 1, "what the first has done is known to the last");
    assert_eq!(keys.lock().unwrap().len(), 1, "{keys:?}");
    assert_eq!((client.would_prune(keep).unwrap().runs, client.prune(keep).unwrap().runs), (0, 0));
    (0..5).for_each(|_| lasts(days(2)));
    assert_eq!(count_runs(&db), "0", "and then they go, the last one first");
    db.assert_sound();
}

#[test]
fn a_retry_that_never_runs_keeps_only_its_chain() {
    let db = TestDb::new();
    let keep = Retention { runs: days(1), least_runs: 0, ..Retention::default() };
    let mut stepper = hourly(&db, keep, 5);
    let client = stepper.client().clone();
    let run = client.trigger("subject").unwrap();
    let dead = claim(&mut stepper);
    client.cancel(run).unwrap();
    stepper.finish(&dead, Outcome::failed("no"));
    step(&mut stepper, 0);
    client.pause("subject").unwrap();
    db.execute("UPDATE scheduled_tasks SET handler = 'absent'");
    let retry = client.retry(run).unwrap();
    assert_eq!(count_runs(&db), "7");
    advance_and_step(&mut stepper, days(3));
    assert_eq!(db.rows("SELECT id FROM task_runs ORDER BY id"), [run.to_string(), retry.to_string()]);
    db.assert_sound();
}

#[test]
fn a_scheduler_that_is_never_idle_deletes_history_too() {
    let db = TestDb::new();
    let keep = Retention { runs: seconds(1), least_runs: 1, ..Retention::default() };
    let mut stepper = hourly(&db, keep, 3);
    stepper.clock().advance(seconds(60));
    stepper.client().pause("subject").unwrap();
    let busy = NewTask::delay("busy", seconds(1)).handler("work").starts_at(stepper.clock().now().wall);
    stepper.client().add(busy).unwrap();
    // Every heartbeat has a run to start or to settle.
    let mut turns = 0;
    while count_runs(&db) != "1" {
        for run in stepper.step().unwrap() {
            stepper.finish(&run, Outcome::succeeded());
        }
        assert!(!stepper.running().is_empty() || turns % 2 == 0, "it is busy");
        stepper.clock().advance(seconds(1));
        turns += 1;
        assert!(turns <= 200, "{} runs of the other task are kept", count_runs(&db));
    }
    db.assert_sound();
}

#[test]
fn more_than_one_batch_is_deleted_by_consecutive_batches() {
    let db = TestDb::new();
    let keep = Retention { once: days(1), ..Retention::default() };
    let mut stepper = db.builder(NOON).accept("work").retention(keep).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add_all((0..1200).map(|n| NewTask::once(format!("once-{n:04}"), at(NOON)).handler("work"))).unwrap();
    work_off(&mut stepper);
    let bystander = db.add_bystander(&stepper);
    advance_and_step(&mut stepper, days(2));
    let mut batches = 1;
    while task_names(&db).len() > 1 {
        assert!(stepper.sleeps() <= Duration::from_millis(100), "{:?}", stepper.sleeps());
        let nap = stepper.sleeps();
        advance_and_step(&mut stepper, nap);
        batches += 1;
        assert!(batches <= 15, "{} tasks are left", task_names(&db).len());
    }
    assert!(batches > 2, "each is a small one");
    advance_and_step(&mut stepper, seconds(30));
    assert!(stepper.sleeps() >= seconds(1), "nothing is left to do");
    db.assert_bystander(&bystander);
    db.assert_sound();
}

#[test]
fn old_events_and_stopped_schedulers_are_deleted() {
    let db = TestDb::new();
    db.stepper(NOON).stop().unwrap();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::interval("subject", days(300)).handler("work")).unwrap();
    client.pause("subject").unwrap();
    advance_and_step(&mut stepper, days(20));
    client.resume("subject").unwrap();
    advance_and_step(&mut stepper, days(11));
    assert_eq!(db.rows("SELECT kind FROM scheduler_events WHERE task_id IS NOT NULL"), ["resumed"]);
    assert_eq!(db.rows("SELECT id FROM scheduler_instances"), [stepper.owner()]);
    // One batch follows the other, also without tasks.
    client.remove("subject").unwrap();
    let old = "DELETE FROM scheduler_events;
               WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
               INSERT INTO scheduler_events (at, kind) SELECT 1700000000000, 'paused' FROM n";
    db.execute(old);
    advance_and_step(&mut stepper, minutes(1));
    assert!(stepper.sleeps() <= Duration::from_millis(100), "{:?}", stepper.sleeps());
}

#[test]
fn a_prune_deletes_everything_at_once() {
    let db = TestDb::new();
    let mut stepper = hourly(&db, Retention::default(), 3);
    let client = stepper.client().clone();
    let once = |number: usize| NewTask::once(format!("once-{number:04}"), at(NOON)).handler("work");
    client.add_all((0..600).map(once)).unwrap();
    work_off(&mut stepper);
    let bystander = db.add_bystander(&stepper);
    let none = client.prune(Retention::default()).unwrap();
    assert_eq!((none.tasks, none.runs), (0, 0));
    stepper.clock().advance(minutes(1));
    let keep = Retention { once: seconds(1), runs: seconds(1), least_runs: 1, ..Retention::default() };
    let pruned = client.prune(keep).unwrap();
    assert_eq!((pruned.tasks, pruned.runs), (600, 2));
    assert_eq!(task_names(&db), ["subject", "bystander"]);
    db.assert_bystander(&bystander);
    let nonsense = Retention { least_runs: 2, most_runs: 1, ..Retention::default() };
    assert!(matches!(client.prune(nonsense), Err(Error::InvalidConfig { field: "retention", .. })));
    db.assert_sound();
}

/// Writes thousands of tasks and runs by SQL: every case that retention can meet.
fn with_every_case(db: &TestDb) -> Stepper {
    let mut stepper = hourly(db, Retention::default(), 40);
    let client = stepper.client().clone();
    client.add_all((0..600).map(|n| NewTask::once(format!("once-{n:04}"), at(NOON)).handler("work"))).unwrap();
    client.add(NewTask::interval("many", days(300)).handler("work")).unwrap();
    client.add(NewTask::once("retried", at(NOON)).handler("work")).unwrap();
    client.add_all((0..600).map(|n| NewTask::cron(format!("far-{n:04}"), "@yearly").handler("work"))).unwrap();
    work_off(&mut stepper);
    client.pause("subject").unwrap();
    // A waiting run is the oldest of more than a batch; a completed task has more runs than a batch deletes.
    let insert_runs = |task: &str, count: u32, status: &str, finished: &str| {
        format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
             SELECT t.id, 'absent', t.created_at + i + (SELECT max(id) FROM task_runs), 'manual', '{status}',
                    t.created_at, {finished} FROM n, scheduled_tasks t WHERE t.name = '{task}';"
        )
    };
    let old = "t.created_at";
    db.execute(&insert_runs("many", 1, "queued", "NULL"));
    db.execute(&insert_runs("many", 1300, "cancelled", old));
    db.execute(&insert_runs("many", 30, "dead", "t.created_at + 7776000000"));
    db.execute(&insert_runs("retried", 1200, "dead", old));
    advance_and_step(&mut stepper, minutes(1));
    stepper
}

#[test]
fn a_dry_run_counts_what_the_prune_deletes() {
    let ask = ["scheduled_tasks", "task_runs", "scheduler_events", "scheduler_instances"];
    let all = |db: &TestDb| ask.map(|table| db.rows(&format!("SELECT * FROM {table}")));
    let keeps = [
        Retention::default(),
        Retention { once: seconds(1), runs: days(365), most_runs: 150, ..Retention::default() },
        Retention { once: seconds(1), runs: seconds(1), least_runs: 7, events: seconds(1), ..Retention::default() },
        Retention { once: days(400), runs: seconds(1), least_runs: 0, most_runs: 1, events: days(400) },
    ];
    for keep in keeps {
        let db = TestDb::new();
        let stepper = with_every_case(&db);
        let client = stepper.client();
        let (before, bystander) = (all(&db), db.add_bystander(&stepper));
        let advance = duly::Progress::default();
        let would = client.would_prune_watched(keep, &advance).unwrap();
        assert_eq!(advance.share(), Some(1.0));
        let after = all(&db);
        assert!(before.iter().zip(&after).all(|(before, after)| after.starts_with(before)), "nothing was written");

        let advance = duly::Progress::default();
        let pruned = client.prune_watched(keep, &advance).unwrap();
        assert_eq!((would, advance.share()), (pruned, Some(1.0)), "{keep:?}");
        assert_eq!(client.would_prune(keep).unwrap(), duly::Pruned::default(), "{keep:?}");
        let left = all(&db);
        let count = |rows: &[Vec<String>; 4], table: usize| rows[table].len();
        assert_eq!(count(&after, 0) - count(&left, 0), pruned.tasks, "{keep:?}");
        assert_eq!(count(&after, 2) - count(&left, 2), pruned.events, "{keep:?}");
        let runs = count(&after, 1) - count(&left, 1);
        assert!(runs >= pruned.runs + pruned.tasks.saturating_sub(1), "{keep:?}");
        db.assert_bystander(&bystander);
        db.assert_sound();
    }
}

/// A trigger of the application that ignores deletions must not make `prune` try for ever.
#[test]
fn a_task_that_a_trigger_keeps_is_not_counted_as_deleted() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add_all(["kept", "gone"].map(|name| NewTask::once(name, at(NOON)).handler("work"))).unwrap();
    work_off(&mut stepper);
    db.execute(
        "CREATE TRIGGER keep BEFORE DELETE ON scheduled_tasks WHEN OLD.name = 'kept' BEGIN SELECT RAISE(IGNORE); END",
    );
    stepper.clock().advance(days(2));
    let pruned = stepper.client().prune(Retention { once: seconds(1), ..Retention::default() }).unwrap();
    assert_eq!((pruned.tasks, pruned.runs), (1, 0));
    assert_eq!(stepper.client().names().unwrap(), ["kept"]);
}
