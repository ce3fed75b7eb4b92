//! Every transition of a run, with the right claim and with a stale one.
//!
//! Each test has a twin: another task's run in the same state, whose row is compared completely, since a guard that is too
//! wide changes the other row.

use std::sync::Arc;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Cancel, Claim, Error, FailureKind, NewTask, Outcome, Overlap, Retry, RetryPolicy};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, minutes, seconds};

pub(crate) const BEFORE: &str = "2027-03-14T11:59:30Z";

/// Two tasks that are due at noon, and a stepper that has claimed both.
pub(crate) struct Pair {
    pub(crate) db: TestDb,
    pub(crate) stepper: Stepper,
    pub(crate) subject: Arc<Claim>,
    pub(crate) twin: Arc<Claim>,
}

fn hourly(name: &str) -> NewTask {
    NewTask::cron(name, "0 * * * *").handler("work")
}

impl Pair {
    pub(crate) fn running(shape: impl Fn(NewTask) -> NewTask) -> Self {
        let db = TestDb::new();
        let mut stepper = db.stepper(BEFORE);
        stepper.client().add(shape(hourly("subject"))).unwrap();
        stepper.client().add(shape(hourly("twin"))).unwrap();
        let mut claims = advance_and_step(&mut stepper, seconds(30));
        claims.sort_by(|a, b| a.task.cmp(&b.task));
        let [subject, twin] = <[_; 2]>::try_from(claims).expect("both are due, and there are workers");
        Pair { db, stepper, subject, twin }
    }

    /// As `running`, after both have failed once.
    fn failed(shape: impl Fn(NewTask) -> NewTask) -> Self {
        let mut pair = Pair::running(shape);
        for claim in [pair.subject.clone(), pair.twin.clone()] {
            pair.stepper.finish(&claim, Outcome::failed("no luck"));
        }
        assert!(pair.stepper.step().unwrap().is_empty(), "the retry is not due yet");
        assert_eq!((pair.subject_status(), pair.row(pair.twin.run_id).contains("|failed|")), ("failed".into(), true));
        pair
    }

    pub(crate) fn row(&self, run: i64) -> String {
        row(&self.db, run)
    }

    pub(crate) fn subject_status(&self) -> String {
        status(&self.db, self.subject.run_id)
    }

    /// Settles an outcome of the subject. The twin does not change.
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        let twin = self.row(self.twin.run_id);
        self.stepper.finish(&self.subject, outcome);
        self.stepper.step().unwrap();
        assert_eq!(self.row(self.twin.run_id), twin, "the bystander changed");
    }

    pub(crate) fn attempts(&self) -> Vec<String> {
        attempts(&self.db, self.subject.run_id)
    }
}

/// Returns a row as text.
fn row(db: &TestDb, run: i64) -> String {
    db.rows(&format!("SELECT * FROM task_runs WHERE id = {run}")).join("\n")
}

pub(crate) fn status(db: &TestDb, run: i64) -> String {
    db.ask(&format!("SELECT status FROM task_runs WHERE id = {run}"))
}

pub(crate) fn attempts(db: &TestDb, run: i64) -> Vec<String> {
    db.rows(&format!(
        "SELECT attempt, outcome, error, output FROM task_attempts WHERE run_id = {run} ORDER BY attempt, id"
    ))
}

pub(crate) fn as_is(task: NewTask) -> NewTask {
    task
}

fn give_up() -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "hopeless".into(), retry: Retry::GiveUp }
}

pub(crate) fn result(json: &str) -> Outcome {
    Outcome::Succeeded { result: Some(json.to_owned()) }
}

#[test]
fn a_due_occurrence_is_running_queued_skipped_or_missed_once() {
    let db = TestDb::new();
    let mut first = db.builder(BEFORE).accept("work").workers(1).start().unwrap();
    let mut second = db.builder(BEFORE).clock(first.clock()).accept("work").start().unwrap();
    let client = first.client().clone();
    client.add(hourly("a").priority(0)).unwrap();
    client.add(hourly("b").overlap(Overlap::BufferAll)).unwrap();
    assert_eq!(advance_and_step(&mut first, seconds(30)).len(), 1, "one worker");
    assert_eq!((status(&db, 1), status(&db, 2)), ("running".into(), "queued".into()));

    // The other owner finds the occurrences resolved, and takes the queued run: neither gets a second row.
    let taken = second.step().unwrap();
    assert_eq!(taken.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(2, 1)]);
    assert!(second.step().unwrap().is_empty());
    assert_eq!(db.runs().len(), 2);

    // An hour later both still run: one task skips and the other buffers. Then no scheduler runs for three hours.
    let running = "SELECT id, status, attempt, locked_by, started_at FROM task_runs WHERE id <= 2";
    let before = db.rows(running);
    assert!(advance_and_step(&mut first, seconds(3600)).is_empty());
    assert_eq!((status(&db, 3), status(&db, 4)), ("skipped".into(), "queued".into()));
    advance_and_step(&mut first, seconds(3 * 3600 + 1800));
    second.step().unwrap();
    let missed =
        "SELECT scheduled_for, last_scheduled_for, occurrences FROM task_runs WHERE status = 'missed' AND task_id = 1";
    let [from, to] = ["2027-03-14T14:00:00Z", "2027-03-14T15:00:00Z"].map(|text| at(text).as_millis());
    assert_eq!(db.rows(missed), [format!("{from}|{to}|2")]);
    assert_eq!(db.rows(running), before, "what runs, runs on");
    db.assert_sound();
}

#[test]
fn a_success_is_recorded_once() {
    let mut pair = Pair::running(as_is);
    pair.stepper.clock().advance(seconds(5));
    pair.settle(result("[1]"));
    let ended =
        "SELECT status, result, attempt, finished_at - started_at, ifnull(locked_by, locked_until) FROM task_runs
                  WHERE task_id = 1";
    assert_eq!(pair.db.rows(ended), ["succeeded|[1]|1|5000|-"]);
    assert!(pair.attempts().is_empty(), "an attempt that simply succeeded leaves no other trace");

    // The same claim again, with any outcome: the run is final.
    let before = pair.row(pair.subject.run_id);
    for (late, says) in
        [(result("[2]"), "succeeded|[2]"), (give_up(), "hopeless|-"), (Outcome::Released, "given back|-")]
    {
        pair.settle(late);
        assert_eq!(pair.row(pair.subject.run_id), before);
        assert_eq!(pair.attempts().last().unwrap(), &format!("1|superseded|{says}"));
    }
    let streak = "SELECT last_status, failure_count FROM scheduled_tasks WHERE name = 'subject'";
    assert_eq!(pair.db.rows(streak), ["succeeded|0"], "what is late is not of the task's history either");
    pair.db.assert_sound();
}

#[test]
fn a_failed_attempt_waits_longer_each_time_until_the_run_is_dead() {
    let policy = RetryPolicy { max_attempts: 4, backoff: seconds(4), max_backoff: seconds(10) };
    let mut pair = Pair::running(|task| task.retry(policy));
    for (attempt, longest) in [(1, 4_000), (2, 8_000), (3, 10_000)] {
        pair.settle(Outcome::failed(format!("failure {attempt}")));
        assert_eq!(pair.subject_status(), "failed");
        let wait = "SELECT run_at - finished_at FROM task_runs WHERE task_id = 1";
        let wait: u64 = pair.db.number(wait);
        assert!((longest / 2..=longest).contains(&wait), "attempt {attempt}: waits {wait} ms");
        assert_eq!(pair.stepper.sleeps().as_millis().min(1000), u128::from(wait.min(1000)));

        pair.stepper.clock().advance(Duration::from_millis(wait - 1));
        assert!(pair.stepper.step().unwrap().is_empty(), "never before its time");
        pair.stepper.clock().advance(Duration::from_millis(1));
        let claims = pair.stepper.step().unwrap();
        assert_eq!(claims.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(1, attempt + 1)]);
        assert_eq!(claims[0].idempotency_key(), pair.subject.idempotency_key(), "the same for every attempt");
        pair.subject = claims[0].clone();
    }
    pair.settle(Outcome::failed("failure 4"));
    assert_eq!(pair.subject_status(), "dead");
    let error = "SELECT error, attempt, forgiven, ifnull(locked_by, locked_until) FROM task_runs WHERE task_id = 1";
    assert_eq!(pair.db.rows(error), ["failure 4|4|0|-"]);
    assert_eq!(pair.attempts(), [1, 2, 3, 4].map(|attempt| format!("{attempt}|failed|failure {attempt}|-")));
    pair.stepper.clock().advance(minutes(30));
    assert!(pair.stepper.step().unwrap().is_empty(), "dead is final");
    pair.db.assert_sound();
}

#[test]
fn the_handler_may_set_the_time_of_the_retry_or_give_up() {
    let later = |wait| Outcome::Failed { how: FailureKind::TimedOut, error: "busy".into(), retry: Retry::After(wait) };
    let mut pair = Pair::running(as_is);
    pair.settle(later(minutes(7)));
    assert_eq!(pair.db.ask("SELECT run_at - finished_at FROM task_runs WHERE task_id = 1"), "420000");
    assert_eq!(pair.attempts(), ["1|timed_out|busy|-"]);
    pair.stepper.clock().advance(minutes(7));
    pair.subject = pair.stepper.step().unwrap().remove(0);
    pair.settle(give_up());
    assert_eq!(pair.subject_status(), "dead", "with three attempts left");
    // A requested retry does not add an attempt.
    let mut pair = Pair::running(NewTask::at_most_once);
    pair.settle(later(seconds(1)));
    assert_eq!(pair.subject_status(), "dead");
}

#[test]
fn an_at_most_once_run_that_is_interrupted_or_snoozed_does_not_start_again() {
    for retry in [Retry::Interrupted, Retry::Snooze(seconds(1))] {
        let mut pair = Pair::running(NewTask::at_most_once);
        pair.settle(Outcome::Failed { how: FailureKind::Failed, error: "cut short".into(), retry });
        assert_eq!(pair.subject_status(), "dead", "{retry:?}");
        assert_eq!(pair.attempts(), ["1|failed|cut short|-"]);
        pair.stepper.clock().advance(minutes(30));
        assert!(pair.stepper.step().unwrap().is_empty(), "{retry:?}: dead is final");
    }
}

#[test]
fn a_waiting_run_is_cancelled_at_once_and_only_once() {
    let mut pair = Pair::failed(as_is);
    let manual = pair.stepper.client().trigger("subject").unwrap();
    pair.stepper.client().add(NewTask::once("unrelated", at("2027-03-14T12:00:01Z")).handler("elsewhere")).unwrap();
    for (run, was) in [(pair.subject.run_id, "failed"), (manual, "queued")] {
        let twin = pair.row(pair.twin.run_id);
        assert_eq!(status(&pair.db, run), was);
        assert_eq!(pair.stepper.client().cancel(run).unwrap(), Cancel::Done);
        assert_eq!(status(&pair.db, run), "cancelled");
        let cancelled = pair.row(run);
        let again = pair.stepper.client().cancel(run).unwrap_err();
        assert_eq!(again.to_string(), format!("cannot cancel run {run}: it is over: cancelled"));
        pair.stepper.clock().advance(minutes(1));
        pair.stepper.clock().set_wall(at(NOON));
        assert_eq!((pair.row(run), pair.row(pair.twin.run_id)), (cancelled, twin));
    }
    assert!(matches!(pair.stepper.client().cancel(4711), Err(Error::UnknownRun { id: 4711 })));

    // The outcome of a claim that was issued before: it is late, and recorded.
    let before = pair.row(pair.subject.run_id);
    pair.settle(result("1"));
    assert_eq!(pair.row(pair.subject.run_id), before);
    assert_eq!(pair.attempts(), ["1|failed|no luck|-", "1|superseded|succeeded|1"]);
}

#[test]
fn a_cancelled_running_run_ends_by_its_outcome() {
    for (end, becomes, kept) in [
        (result("1"), "succeeded", vec![]),
        (Outcome::failed("stopped"), "cancelled", vec!["1|cancelled|stopped|-"]),
        (give_up(), "cancelled", vec!["1|cancelled|hopeless|-"]),
        (Outcome::Released, "cancelled", vec!["1|released|-|-"]),
    ] {
        let mut pair = Pair::running(as_is);
        let twin = pair.row(pair.twin.run_id);
        assert_eq!(pair.stepper.client().cancel(pair.subject.run_id).unwrap(), Cancel::Asked);
        assert_eq!(pair.subject_status(), "running", "it is its handler's to end it");
        pair.stepper.step().unwrap();
        assert_eq!(pair.stepper.stopped(), [pair.subject.run_id]);
        assert_eq!(pair.row(pair.twin.run_id), twin);
        pair.settle(end.clone());
        assert_eq!(
            (pair.subject_status().as_str(), pair.attempts()),
            (becomes, kept.iter().map(|&s| s.into()).collect()),
            "{end:?}"
        );
        pair.stepper.clock().advance(minutes(30));
        assert!(pair.stepper.step().unwrap().is_empty(), "after {end:?} it is final");
        pair.db.assert_sound();
    }
}

#[test]
fn a_released_attempt_does_not_count_and_the_run_starts_again() {
    let mut pair = Pair::running(NewTask::at_most_once);
    pair.stepper.client().pause("subject").unwrap();
    pair.settle(Outcome::Released);
    let waits = "SELECT status, attempt, forgiven, blocked, started_at, locked_by FROM task_runs WHERE task_id = 1";
    assert_eq!(pair.db.rows(waits), ["queued|1|1|paused|-|-"], "paused while it ran, so it rests");
    assert_eq!(pair.attempts(), ["1|released|-|-"]);
    assert_eq!(pair.db.ask("SELECT last_run FROM scheduled_tasks WHERE name = 'subject'"), "NULL", "it never began");

    pair.stepper.client().resume("subject").unwrap();
    let claims = pair.stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(1, 2)]);
    // Its first claim is stale now, although the same owner holds both.
    let before = pair.row(pair.subject.run_id);
    pair.settle(result("1"));
    assert_eq!(pair.row(pair.subject.run_id), before);
    pair.subject = claims[0].clone();
    pair.settle(Outcome::failed("once was enough"));
    assert_eq!(pair.subject_status(), "dead", "one attempt counted, and one was allowed");
}

/// The handler of the subject is changed while it runs; after any end of the attempt the next one uses the new handler.
#[test]
fn a_further_attempt_uses_the_current_handler_of_the_task() {
    for end in [Some(Outcome::failed("no such model")), Some(Outcome::Released), None] {
        for by_sql in [true, false] {
            let mut pair = Pair::running(as_is);
            if by_sql {
                let change = "UPDATE scheduled_tasks SET handler = 'repaired' WHERE name = 'subject'";
                assert_eq!(pair.db.execute(change), 1);
            } else {
                pair.stepper.client().replace(hourly("subject").handler("repaired")).unwrap();
            }
            match &end {
                Some(outcome) => pair.settle(outcome.clone()),
                None => drop(std::mem::replace(&mut pair.stepper, TestDb::new().stepper(BEFORE))),
            }
            let mut next = pair.db.builder("2027-03-14T12:00:10Z").accept("repaired").start().unwrap();
            next.step().unwrap();
            advance_and_step(&mut next, seconds(10));
            let began: Vec<_> = next.running().iter().map(|claim| (claim.run_id, claim.handler.as_str())).collect();
            assert_eq!(began, [(pair.subject.run_id, "repaired")], "{end:?}, by SQL: {by_sql}");
            pair.db.assert_sound();
        }
    }
}

#[test]
fn a_run_without_an_attempt_in_time_is_missed() {
    let db = TestDb::new();
    let mut stepper = db.builder(BEFORE).accept("work").workers(1).start().unwrap();
    let client = stepper.client().clone();
    client.add(hourly("holds").concurrency_key("chat").expires(minutes(5)).priority(0)).unwrap();
    client.add(hourly("subject").concurrency_key("chat").expires(minutes(5))).unwrap();
    client.add(hourly("twin").concurrency_key("chat").expires(minutes(6))).unwrap();
    let holds = advance_and_step(&mut stepper, seconds(30)).remove(0);
    assert_eq!((holds.task.as_str(), status(&db, 2), status(&db, 3)), ("holds", "queued".into(), "queued".into()));
    let twin = row(&db, 3);

    stepper.clock().set_wall(at("2027-03-14T12:04:59.999Z"));
    stepper.step().unwrap();
    assert_eq!(status(&db, 2), "queued");
    stepper.clock().set_wall(at("2027-03-14T12:05:00Z"));
    stepper.step().unwrap();
    assert_eq!(
        db.rows("SELECT status, attempt, blocked, error FROM task_runs WHERE id = 2"),
        ["missed|0|-|expired before an attempt began"]
    );
    assert_eq!((status(&db, 1), row(&db, 3)), ("running".into(), twin), "a run that has begun does not expire");

    // Retries do not expire: the first attempt began in time.
    stepper.finish(&holds, Outcome::failed("again"));
    let claims = stepper.step().unwrap();
    assert_eq!((claims[0].run_id, status(&db, 1)), (3, "failed".into()));
    stepper.finish(&claims[0], Outcome::Released);
    stepper.clock().set_wall(at("2027-03-14T12:30:00Z"));
    let claims = stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(1, 2)]);
    assert_eq!(status(&db, 3), "missed", "a released run that never started has not begun");
    db.assert_sound();
}

#[test]
fn a_run_that_another_owner_has_claimed_is_not_claimed() {
    let mut pair = Pair::failed(as_is);
    let mut second = pair.db.builder(BEFORE).clock(pair.stepper.clock()).accept("work").start().unwrap();
    pair.stepper.clock().advance(seconds(10));
    let taken = second.step().unwrap();
    assert_eq!(taken.len(), 2);
    let rows = [pair.row(1), pair.row(2)];
    assert!(pair.stepper.step().unwrap().is_empty(), "both are taken");
    assert_eq!([pair.row(1), pair.row(2)], rows);
    // A waiting run with a cancel request is not claimed, though its status is still failed.
    taken.iter().for_each(|claim| second.finish(claim, Outcome::failed("again")));
    second.step().unwrap();
    pair.db.execute("UPDATE task_runs SET cancel_requested = 1 WHERE id = 1");
    pair.stepper.clock().advance(seconds(20));
    let claims = pair.stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(2, 3)]);
    assert_eq!(pair.subject_status(), "cancelled");
}
