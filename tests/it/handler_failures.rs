//! What a handler may answer besides an error: snooze, cancel, give up on a payload; and how long it waits after a failure. Beside
//! each run, a twin with the same schedule that fails plainly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duly::testing::{Stepper, StepperBuilder};
use duly::{
    BoxError, Clock, Context, Error, Event, FailedAttempt, Failure, FailureKind, NewTask, Outcome, Retry, RetryPolicy,
    RunStatus, Scheduler,
};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, eventually, finish, listen, minutes, seconds,
};

const RUN: &str =
    "SELECT r.status, r.attempt, r.forgiven, ifnull(r.error, '-'), strftime('%H:%M:%S', r.run_at / 1000, 'unixepoch')
  FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = ";

fn run(db: &TestDb, task: &str) -> String {
    db.rows(&format!("{RUN} '{task}' ORDER BY r.id DESC LIMIT 1")).join("")
}

fn attempts(db: &TestDb, task: &str) -> String {
    db.ask(&format!(
        "SELECT ifnull(group_concat(outcome), '-') FROM task_attempts WHERE run_id IN
           (SELECT r.id FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = '{task}')"
    ))
}

fn task_row(db: &TestDb, task: &str) -> String {
    db.rows(&format!(
        "SELECT status, ifnull(last_status, '-'), ifnull(last_error, '-'), failure_count FROM scheduled_tasks WHERE name = '{task}'"
    ))
    .join("")
}

fn subject(name: &str) -> NewTask {
    NewTask::cron(name, "0 * * * *").handler(name).on_dead("alarm").pause_after_failures(1)
}

/// A stepper at noon with the tasks `subject`, handled by `handler`, its twin, and `alarm`.
fn stepper(
    db: &TestDb,
    shape: impl Fn(NewTask) -> NewTask,
    handler: impl Fn(&Context) -> Result<(), BoxError> + Send + Sync + 'static,
) -> Stepper {
    let plain = |_: &Context| Err::<(), _>("no luck");
    let builder = db.builder("2027-03-14T11:59:00Z").handler("subject", handler).handler("twin", plain).accept("alarm");
    let mut stepper = builder.start().unwrap();
    for name in ["subject", "twin"] {
        stepper.client().add(shape(subject(name))).unwrap();
    }
    stepper.client().add(NewTask::manual("alarm").handler("alarm")).unwrap();
    stepper.run_until(at(NOON)).unwrap();
    stepper
}

#[test]
fn a_snoozed_run_is_retried_after_the_wait_and_the_attempt_does_not_count() {
    let db = TestDb::new();
    let handler = |run: &Context| match run.attempt() {
        1 => Err(Failure::snooze(minutes(10)).into()),
        2 => Err(Failure::snooze_because(minutes(20), "the file has not arrived").into()),
        _ => Ok(()),
    };
    let mut stepper = stepper(&db, |task| task.max_attempts(2), handler);
    assert_eq!(run(&db, "subject"), "failed|1|1|snoozed|12:10:00");
    assert_eq!(task_row(&db, "subject"), "active|failed|snoozed|0");
    assert!(run(&db, "twin").starts_with("failed|1|0|no luck|12:00:"), "{}", run(&db, "twin"));
    stepper.run_until(at(NOON) + minutes(10)).unwrap();
    assert_eq!(run(&db, "subject"), "failed|2|2|snoozed: the file has not arrived|12:30:00");
    stepper.run_until(at(NOON) + minutes(30)).unwrap();
    assert_eq!(run(&db, "subject"), "succeeded|3|2|-|12:30:00");
    assert_eq!((attempts(&db, "subject"), attempts(&db, "twin")), ("snoozed,snoozed".into(), "failed,failed".into()));
    assert!(run(&db, "twin").starts_with("dead|2|0|"));
    assert_eq!(task_row(&db, "subject"), "active|succeeded|-|0");
    db.assert_sound();
}

#[test]
fn a_snoozed_run_of_a_task_that_may_start_only_once_is_dead() {
    let db = TestDb::new();
    let _stepper = stepper(&db, NewTask::at_most_once, |_| Err(Failure::snooze(seconds(1)).into()));
    assert!(run(&db, "subject").starts_with("dead|1|0|snoozed|"), "{}", run(&db, "subject"));
    assert_eq!(attempts(&db, "subject"), "failed");
    db.assert_sound();
}

#[test]
fn a_snoozed_run_does_not_expire_even_if_it_is_returned_to_the_queue() {
    let (db, mut stepper) = TestDb::with_stepper();
    let task = |name: &str| NewTask::once(name, at(NOON)).handler("work").expires(minutes(1));
    stepper.client().add(task("snoozed")).unwrap();
    let first = claim(&mut stepper);
    let error = "snoozed".to_owned();
    stepper.finish(&first, Outcome::Failed { how: FailureKind::Failed, error, retry: Retry::Snooze(minutes(2)) });
    let second = claim_after(&mut stepper, minutes(2));
    assert_eq!((second.task.as_str(), second.attempt), ("snoozed", 2));
    stepper.finish(&second, Outcome::Released);
    stepper.settle().unwrap();
    assert!(run(&db, "snoozed").starts_with("queued|2|2|"), "{}", run(&db, "snoozed"));
    let third = claim_after(&mut stepper, minutes(2));
    assert_eq!((third.task.as_str(), third.attempt), ("snoozed", 3));
    stepper.finish(&third, Outcome::Released);
    stepper.settle().unwrap();
    stepper.crash();
    // A run of which no attempt has begun still expires after it was returned.
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    stepper.client().add(task("never")).unwrap();
    let first = claim(&mut stepper);
    stepper.finish(&first, Outcome::Released);
    stepper.settle().unwrap();
    assert!(advance_and_step(&mut stepper, minutes(2)).is_empty());
    assert!(run(&db, "never").starts_with("missed|1|1|"), "{}", run(&db, "never"));
}

#[test]
fn a_snoozed_run_that_is_cancelled_while_it_waits_is_cancelled_in_its_task_too() {
    let db = TestDb::new();
    let mut stepper = stepper(&db, |task| task, |_| Err(Failure::snooze(minutes(10)).into()));
    let client = stepper.client().clone();
    assert_eq!(client.cancel_all("subject").unwrap(), 1);
    stepper.step().unwrap();
    assert_eq!(task_row(&db, "subject"), "active|cancelled|snoozed|0");
    assert_eq!(task_row(&db, "twin"), "active|failed|no luck|0");
    let error = db.ask("SELECT error FROM task_runs WHERE status = 'cancelled'");
    assert_eq!(error, "cancelled while it waited for its next attempt", "it had begun");
    db.assert_sound();
}

#[test]
fn effects_and_the_idempotency_key_survive_a_snooze() {
    let db = TestDb::new();
    let (calls, keys) = (Arc::new(AtomicU32::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (counted, seen) = (calls.clone(), keys.clone());
    let handler = move |run: &Context| {
        seen.lock().unwrap().push(run.idempotency_key());
        run.effect("send", || Ok(counted.fetch_add(1, Ordering::Relaxed)))?;
        if run.attempt() < 3 { Err(Failure::snooze(seconds(5)).into()) } else { Ok(()) }
    };
    let mut stepper = stepper(&db, |task| task, handler);
    stepper.run_until(at(NOON) + seconds(10)).unwrap();
    assert!(run(&db, "subject").starts_with("succeeded|3|2|"));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(*keys.lock().unwrap(), vec!["subject/2027-03-14T12:00:00.000Z"; 3]);
    db.assert_sound();
}

#[test]
fn a_run_that_its_handler_cancels_is_neither_dead_nor_retried_and_frees_its_key() {
    let db = TestDb::new();
    let shape = |task: NewTask| task.at_most_once();
    let handler = |_: &Context| Err(Failure::cancel("the customer has left").into());
    let mut stepper = stepper(&db, shape, handler);
    assert!(run(&db, "subject").starts_with("cancelled|1|0|the customer has left|"), "{}", run(&db, "subject"));
    assert_eq!((attempts(&db, "subject"), attempts(&db, "twin")), ("cancelled".into(), "failed".into()));
    assert_eq!(task_row(&db, "subject"), "active|cancelled|the customer has left|0");
    // The twin died: it is paused, and has raised the alarm, once.
    assert!(task_row(&db, "twin").starts_with("paused|dead|no luck|1"));
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE origin = 'on_dead'"), "1");
    let runs = stepper.run_until(at(NOON) + minutes(60)).unwrap();
    assert!(runs.iter().any(|run| run.claim.task == "subject"), "the next occurrence runs");
    db.assert_sound();
}

#[test]
fn what_waits_for_a_cancelled_run_continues() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(4).start().unwrap();
    let keyed = |name: &str| NewTask::once(name, at(NOON)).handler("work").concurrency_key("k");
    stepper.client().add(keyed("first")).unwrap();
    stepper.client().add(keyed("second")).unwrap();
    let first = claim(&mut stepper);
    let error = "no".to_owned();
    stepper.finish(&first, Outcome::Failed { how: FailureKind::Failed, error, retry: Retry::Cancel });
    assert_eq!(claim(&mut stepper).task, "second");
    assert!(run(&db, "first").starts_with("cancelled|1|0|no|"));
    db.assert_sound();
}

#[test]
fn a_late_snooze_or_cancel_is_a_time_out_with_the_same_consequence() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().unwrap();
    for (name, retry, expected) in [
        ("snoozes", Retry::Snooze(minutes(3)), "failed|1|1|it took longer than 1s: late|12:03:02"),
        ("cancels", Retry::Cancel, "cancelled|1|0|it took longer than 1s: late|12:00:02"),
    ] {
        let due = stepper.clock().now().wall;
        stepper.client().add(NewTask::once(name, due).handler("work").timeout(seconds(1))).unwrap();
        let claim = claim(&mut stepper);
        stepper.clock().advance(seconds(2));
        stepper.finish(&claim, Outcome::Failed { how: FailureKind::Failed, error: "late".into(), retry });
        stepper.settle().unwrap();
        assert_eq!((run(&db, name).as_str(), attempts(&db, name).as_str()), (expected, "timed_out"));
    }
}

#[test]
fn a_snooze_is_reported_as_information_with_the_next_attempt() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let snooze = |_: &Context| Err::<(), _>(Failure::snooze_because(minutes(10), "too early"));
    let mut stepper = db.builder(NOON).handler("work", snooze).observe(observer).start().unwrap();
    stepper.client().add(NewTask::once("t", at(NOON)).handler("work")).unwrap();
    stepper.run_until(at(NOON)).unwrap();
    let events: Vec<Event> = events.try_iter().collect();
    assert!(!events.iter().any(|event| matches!(event, Event::Finished { .. })));
    let event = events.iter().find(|event| matches!(event, Event::Snoozed { .. })).expect("the event");
    assert_eq!(event.level(), log::Level::Info);
    let expected = "run 1 of \"t\" was postponed by its handler after 0s: snoozed: too early; next attempt at 2027-03-14T12:10:00.000Z";
    assert_eq!(event.to_string(), expected);
    assert!(db.printed(&["history", "--wide"]).contains("snoozed: too early"));
    assert_eq!(db.ask("SELECT count(*) FROM failing_tasks"), "0");
}

/// A backoff that differs from every one of the task.
fn linear(failed: &FailedAttempt<'_>) -> Option<Duration> {
    (!failed.error.contains("disk")).then(|| minutes(7) * failed.failures)
}

fn at_noon(db: &TestDb, builder: impl Fn(StepperBuilder) -> StepperBuilder) -> Stepper {
    builder(db.builder(NOON).accept("mail").accept("other").workers(9)).start().unwrap()
}

fn failed(how: FailureKind, error: &str, retry: Retry) -> Outcome {
    Outcome::Failed { how, error: error.into(), retry }
}

#[test]
fn a_custom_backoff_decides_after_errors_panics_and_time_outs_unless_the_handler_does() {
    use FailureKind::{Failed, Panicked, TimedOut};
    let (plain, hour) = (Retry::Backoff, Retry::After(minutes(60)));
    for (handler, outcome, expected) in [
        ("mail", failed(Failed, "no", plain), "failed|1|0|no|12:07:00"),
        ("mail", failed(Panicked, "no", plain), "failed|1|0|no|12:07:00"),
        ("mail", failed(TimedOut, "no", plain), "failed|1|0|no|12:07:00"),
        ("mail", failed(Failed, "disk", plain), "failed|1|0|disk|12:30:00"),
        ("mail", failed(Failed, "no", hour), "failed|1|0|no|13:00:00"),
        ("mail", failed(Failed, "no", Retry::Snooze(minutes(1))), "failed|1|1|no|12:01:00"),
        ("mail", failed(Failed, "no", Retry::GiveUp), "dead|1|0|no|12:00:00"),
        ("other", failed(Failed, "no", plain), "failed|1|0|no|12:30:00"),
    ] {
        let db = TestDb::new();
        let mut stepper = at_noon(&db, |builder| builder.backoff("mail", linear).seed(1));
        let retry = RetryPolicy { backoff: minutes(30), max_backoff: minutes(30), ..RetryPolicy::default() };
        stepper.client().add(NewTask::once("t", at(NOON)).handler(handler).retry(retry)).unwrap();
        let claim = claim(&mut stepper);
        stepper.finish(&claim, outcome.clone());
        stepper.settle().unwrap();
        let found = run(&db, "t");
        if expected.ends_with("12:30:00") {
            // That of the task: random in its upper half.
            let (head, time) = found.rsplit_once('|').unwrap();
            assert!(expected.starts_with(head) && ("12:15:00"..="12:30:00").contains(&time), "{outcome:?}: {found}");
        } else {
            assert_eq!(found, expected, "{handler} {outcome:?}");
        }
    }
}

#[test]
fn a_custom_backoff_counts_failures_and_does_not_prolong_the_last_attempt() {
    let db = TestDb::new();
    let seen = Arc::new(AtomicU32::new(0));
    let calls = seen.clone();
    let count = move |failed: &FailedAttempt<'_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        linear(failed)
    };
    let fails = |run: &Context| {
        // The second attempt does not count.
        if run.attempt() == 2 { Err(BoxError::from(Failure::snooze(minutes(1)))) } else { Err::<(), _>("no".into()) }
    };
    let mut stepper = db.builder(NOON).handler("mail", fails).backoff("mail", count).start().unwrap();
    stepper.client().add(NewTask::once("t", at(NOON)).handler("mail").max_attempts(3)).unwrap();
    for (after, expected) in [
        (0, "failed|1|0|no|12:07:00"),
        (7, "failed|2|1|snoozed|12:08:00"),
        (8, "failed|3|1|no|12:22:00"),
        (22, "dead|4|1|no|12:22:00"),
    ] {
        stepper.run_until(at(NOON) + minutes(after)).unwrap();
        assert_eq!(run(&db, "t"), expected);
    }
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[test]
fn a_backoff_that_panics_leaves_that_of_the_task_and_a_lost_attempt_does_not_call_it() {
    let db = TestDb::new();
    let retry = RetryPolicy { backoff: seconds(30), ..RetryPolicy::default() };
    let panics = |_: &FailedAttempt<'_>| -> Option<Duration> { panic!("no clock") };
    let (observer, events) = listen();
    let mut stepper =
        db.builder(NOON).accept("mail").accept("other").backoff("mail", panics).observe(observer).start().unwrap();
    stepper.client().add(NewTask::once("t", at(NOON)).handler("mail").retry(retry)).unwrap();
    let first = claim(&mut stepper);
    stepper.finish(&first, Outcome::failed("no"));
    let second = claim_after(&mut stepper, seconds(30));
    assert_eq!(second.attempt, 2);
    // The row and the event say it.
    let says = "no; its backoff panicked: no clock; that of the task applies";
    assert_eq!(db.ask("SELECT error FROM task_attempts"), says);
    let told = |event: Event| matches!(event, Event::Finished { error: Some(error), .. } if error == says);
    assert!(events.try_iter().any(told));
    stepper.crash();
    let mut heir = db.builder("2027-03-14T12:01:00Z").accept("mail").backoff("mail", |_| Some(minutes(500)));
    heir = heir.seed(7);
    let mut heir = heir.start().unwrap();
    heir.step().unwrap();
    let found = run(&db, "t");
    assert!(found.starts_with("failed|2|0|the scheduler that ran it died|12:0"), "{found}");
}

#[test]
fn a_backoff_of_an_unknown_handler_or_a_second_one_is_refused() {
    let db = TestDb::new();
    let builder = || Scheduler::builder(db.address()).handler("mail", |_| Ok::<_, Error>(()));
    let refused = |builder: duly::Builder| builder.start().unwrap_err().to_string();
    let error = refused(builder().backoff("mial", linear));
    assert!(error.contains("expected the name of a registered handler, found \"mial\""), "{error}");
    let error = refused(builder().backoff("mail", linear).backoff("mail", linear));
    assert!(error.contains("that of \"mail\" is set twice"), "{error}");
    assert!(db.is_on_server() || !db.file().exists(), "a refused scheduler creates nothing");
}

#[test]
fn the_backoff_of_a_handler_type_applies_on_worker_threads_too() {
    struct Mailer;
    impl duly::Handler for Mailer {
        fn run(&self, _: &Context) -> Result<Option<String>, BoxError> {
            panic!("no network")
        }
        fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
            (failed.how == FailureKind::Panicked).then_some(seconds(5000))
        }
    }
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address()).handler_type("mail", Mailer).start().unwrap();
    scheduler.add(NewTask::manual("t").handler("mail")).unwrap();
    let id = scheduler.trigger("t").unwrap();
    eventually("it has failed", || scheduler.run(id).unwrap().unwrap().status == RunStatus::Failed);
    let run = scheduler.run(id).unwrap().unwrap();
    assert_eq!(run.run_at, run.finished_at.unwrap() + seconds(5000));
}

#[test]
fn a_payload_that_the_handler_cannot_read_is_dead_at_once_and_names_the_field() {
    #[derive(serde::Deserialize)]
    struct Mail {
        to: Vec<Address>,
    }
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only its form matters")]
    struct Address {
        host: String,
    }
    let db = TestDb::new();
    let own = |run: &Context| run.payload::<Mail>().map(|_| ()).map_err(|_| "an error of its own");
    let builder = db.builder(NOON).handler("mail", |run: &Context| run.payload::<Mail>().map(|_| ()));
    let boxed = |run: &Context| -> Result<bool, BoxError> { Ok(run.payload::<Mail>()?.to.is_empty()) };
    let mut stepper = builder.handler("boxed", boxed).handler("own", own).start().unwrap();
    let bad = serde_json::json!({"to": [{"host": "a"}, {"host": 5}]});
    for name in ["mail", "boxed", "own"] {
        stepper.client().add(NewTask::once(name, at(NOON)).handler(name).payload(&bad)).unwrap();
    }
    stepper.client().add(NewTask::once("root", at(NOON)).handler("mail").payload(5)).unwrap();
    stepper.run_until(at(NOON)).unwrap();
    for name in ["mail", "boxed"] {
        let found = run(&db, name);
        let expected = format!(
            "dead|1|0|the payload of task \"{name}\" is not what its handler expects: to[1].host: invalid type: integer `5`"
        );
        assert!(found.starts_with(&expected), "{found}");
    }
    assert!(run(&db, "own").starts_with("failed|1|0|an error of its own|"));
    assert!(run(&db, "root").contains("expects: invalid type: integer `5`"), "{}", run(&db, "root"));
}

#[test]
fn what_the_closures_of_effect_and_finish_answer_is_the_answer_of_the_handler() {
    let db = TestDb::new();
    let leftover = format!("CREATE TABLE {} (id bigint)", db.table("leftover"));
    let handler = move |run: &Context| {
        let ready = run.attempt() > 1;
        run.effect("send", || if ready { Ok(1) } else { Err(Failure::snooze(seconds(5)).into()) })?;
        finish(run, &leftover, || Err::<(), _>(Failure::cancel("not needed any more").into()))
    };
    let mut stepper = stepper(&db, |task| task, handler);
    assert_eq!(run(&db, "subject"), "failed|1|1|snoozed|12:00:05");
    assert_eq!(db.ask("SELECT count(*) FROM task_effects"), "0", "the intent of a refused effect is removed");
    stepper.run_until(at(NOON) + seconds(5)).unwrap();
    assert!(run(&db, "subject").starts_with("cancelled|2|1|not needed any more|"), "{}", run(&db, "subject"));
    assert_eq!(db.rows("SELECT key, state, value FROM task_effects"), ["send|done|1"]);
    assert_eq!(db.try_execute("CREATE TABLE leftover (id bigint)").err(), None, "finish is rolled back");
    assert_eq!(attempts(&db, "subject"), "snoozed,cancelled");
    db.assert_sound();
}

#[test]
fn a_skipped_run_is_no_failure_and_nothing_follows_it() {
    let db = TestDb::new();
    let handler = |run: &Context| match run.scheduled_for() {
        noon if noon == at(NOON) => Err(Failure::skip("nothing new").into()),
        _ => Ok(()),
    };
    let mut stepper = stepper(&db, |task| task.max_attempts(1).on_end("alarm"), handler);
    assert_eq!(run(&db, "subject"), "skipped|1|1|nothing new|12:00:00");
    assert_eq!(
        (attempts(&db, "subject"), task_row(&db, "subject")),
        ("skipped".into(), "active|skipped|nothing new|0".into())
    );
    // The twin has died: its task is paused, and followed twice. Nothing follows the skip.
    assert_eq!(task_row(&db, "twin"), "paused|dead|no luck|1");
    assert_eq!(
        db.ask(
            "SELECT group_concat(DISTINCT json_extract(payload, '$.task')) FROM task_runs WHERE payload IS NOT NULL"
        ),
        "twin"
    );
    // The occurrences that are passed over behind a run have a row of their own: a skip of the handler stands for one.
    stepper.run_until(at(NOON) + minutes(60)).unwrap();
    assert_eq!(run(&db, "subject"), "succeeded|1|0|-|13:00:00");
    assert_eq!(task_row(&db, "subject"), "active|succeeded|-|0");
    db.assert_sound();
}

/// Occurrences that are skipped behind a run do not join the row of a run that its handler skipped.
#[test]
fn a_skip_of_a_handler_stands_for_one_occurrence() {
    let db = TestDb::new();
    let mut stepper = db.builder("2027-03-14T11:59:30Z").accept("work").start().unwrap();
    stepper.client().add(NewTask::cron("subject", "* * * * *").handler("work")).unwrap();
    let first = claim_after(&mut stepper, seconds(30));
    let outcome = Outcome::Failed { how: FailureKind::Failed, error: "nothing new".into(), retry: Retry::Skip };
    stepper.finish(&first, outcome);
    stepper.step().unwrap();
    stepper.client().trigger("subject").unwrap();
    claim(&mut stepper);
    for _ in 0..2 {
        assert!(advance_and_step(&mut stepper, minutes(1)).is_empty(), "the run by hand goes on");
    }
    let rows =
        db.rows("SELECT status, occurrences, attempt FROM task_runs WHERE origin = 'schedule' ORDER BY scheduled_for");
    assert_eq!(rows, ["skipped|1|1", "skipped|2|0"]);
}
