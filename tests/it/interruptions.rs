//! What a shutdown interrupts: an error that a handler returns after the request to stop is no failure, three interruptions in a row are
//! forgiven, and no run starts again and again. Commands and workers in other languages: `sidecar`, `workers_run`.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::command::CommandContext;
use duly::executor::{Delegated, Executor, Waker};
use duly::testing::Stepper;
use duly::{
    BoxError, Builder, Claim, Context, Event, Failure, FailureKind, Limits, NewTask, Outcome, ProblemKind, Retry,
    RunStatus, Scheduler, StopReason,
};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, eventually, held, minutes, overdue, patience, problems,
    receive, retry_soon, seconds,
};

/// The status of each run by task, its attempts, those that are forgiven, and its interruptions in a row.
const RUNS: &str = "SELECT t.name, r.status, r.attempt, r.forgiven, r.interrupted
  FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY t.name";

fn builder(db: &TestDb) -> Builder {
    Scheduler::builder(db.address()).workers(8).poll(Duration::from_millis(50))
}

/// Starts a scheduler, waits until `count` attempts have begun, shuts it down without patience, and waits for its end.
fn interrupt(db: &TestDb, count: usize, with: impl FnOnce(Builder, Sender<()>) -> Builder) {
    let (begun, begins) = channel();
    let scheduler = with(builder(db), begun).start().unwrap();
    (0..count).for_each(|_| receive(&begins, "a start"));
    scheduler.shutdown(Duration::ZERO).unwrap();
    eventually("the scheduler has stopped", || db.registered_schedulers() == 0);
}

/// Interrupts the run of one task until it is final, and asserts which interruptions count.
fn assert_bounded(what: &str, with: impl Fn(Builder, Sender<()>) -> Builder) {
    let db = TestDb::new();
    db.client().add(retry_soon(overdue("t"), 2)).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 8 && !db.states().iter().any(|state| state.starts_with("t|dead")) {
        interrupt(&db, 1, &with);
        seen.extend(db.rows(RUNS));
    }
    let expected = ["t|failed|1|1|1", "t|failed|2|2|2", "t|failed|3|3|3", "t|failed|4|3|4", "t|dead|5|3|5"];
    assert_eq!(seen, expected, "{what}");
    db.assert_sound();
}

/// As the documentation shows it.
fn obey(run: &Context) -> Result<(), BoxError> {
    if run.wait_cancelled(patience()) { Err("stopped".into()) } else { Ok(()) }
}

#[test]
fn a_closure_that_obeys_is_forgiven_three_times_in_a_row() {
    assert_bounded("a closure", |builder, begun| {
        let begun = Mutex::new(begun);
        builder.handler("work", move |run: &Context| {
            begun.lock().unwrap().send(())?;
            obey(run)
        })
    });
}

#[cfg(feature = "tokio")]
#[test]
fn an_async_handler_that_obeys_is_forgiven_three_times_in_a_row() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    assert_bounded("an async handler", |builder, begun| {
        let begun = Mutex::new(begun);
        builder.runtime(runtime.handle().clone()).async_handler("work", move |run: Context| {
            let sent = begun.lock().unwrap().send(());
            async move {
                sent?;
                run.cancelled().await;
                Err::<(), BoxError>("asked to stop".into())
            }
        })
    });
}

/// Ends each attempt with an error when it is asked to stop.
struct Obedient {
    begun: Mutex<Sender<()>>,
    held: Mutex<Option<Delegated>>,
    /// Whether it ends the attempt, and does not just drop it.
    ends: bool,
}

impl Executor for Obedient {
    fn attach(&self, _: Waker) {}

    fn handlers(&self) -> Arc<BTreeSet<String>> {
        Arc::new(BTreeSet::from(["work".to_owned()]))
    }

    fn free(&self) -> usize {
        usize::from(self.held.lock().unwrap().is_none())
    }

    fn start(&self, attempt: Delegated) {
        *self.held.lock().unwrap() = Some(attempt);
        self.begun.lock().unwrap().send(()).unwrap();
    }

    fn stop(&self, _: i64, _: u32, _: StopReason) {
        let attempt = self.held.lock().unwrap().take().unwrap();
        if self.ends {
            attempt.end(Err("asked to stop".into()));
        }
    }
}

#[test]
fn an_executor_that_obeys_is_forgiven_three_times_in_a_row() {
    for ends in [true, false] {
        assert_bounded("an executor", |builder, begun| {
            builder.executor(Arc::new(Obedient { begun: Mutex::new(begun), held: Mutex::default(), ends }))
        });
    }
}

#[test]
fn what_a_handler_decides_after_the_request_to_stop_stands() {
    let db = TestDb::new();
    let names = ["cancels", "delays", "gives-up", "obeys", "panics", "snoozes", "succeeds"];
    db.client().add_all(names.map(|name| retry_soon(overdue(name), 2))).unwrap();
    db.client().add_all([overdue("once").at_most_once()]).unwrap();
    interrupt(&db, 8, |builder, begun| {
        let begun = Mutex::new(begun);
        builder.handler("work", move |run: &Context| -> Result<(), BoxError> {
            begun.lock().unwrap().send(())?;
            let Err(error) = obey(run) else { return Ok(()) };
            match run.task() {
                "cancels" => Err(Failure::cancel("not needed").into()),
                "delays" => Err(Failure::retry_after(minutes(60), error).into()),
                "gives-up" => Err(Failure::give_up(error).into()),
                "panics" => panic!("a bug"),
                "snoozes" => Err(Failure::snooze(minutes(60)).into()),
                "succeeds" => Ok(()),
                _ => Err(error),
            }
        })
    });
    let expected = [
        "cancels|cancelled|1|0|0",
        "delays|failed|1|1|1",
        "gives-up|dead|1|0|0",
        "obeys|failed|1|1|1",
        "once|dead|1|0|1",
        "panics|failed|1|0|0",
        "snoozes|failed|1|1|0",
        "succeeds|succeeded|1|0|0",
    ];
    assert_eq!(db.rows(RUNS), expected);
    let waits = "SELECT t.name, r.run_at - r.finished_at FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                  WHERE r.status = 'failed' AND r.run_at >= r.finished_at + 3600000 ORDER BY t.name";
    assert_eq!(db.rows(waits), ["snoozes|3600000"], "an interruption waits the backoff of the task");
    db.assert_sound();
}

/// A closure that ignored its time limit has timed out, whatever followed.
#[test]
fn an_attempt_that_had_exceeded_its_time_limit_before_has_timed_out() {
    let db = TestDb::new();
    db.client().add(retry_soon(overdue("late"), 2).timeout(Duration::from_millis(10))).unwrap();
    db.client().add(retry_soon(overdue("in-time"), 2)).unwrap();
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    interrupt(&db, 2, |builder, begun| {
        let begun = Mutex::new(begun);
        builder.handler("work", move |run: &Context| -> Result<(), BoxError> {
            if run.task() == "late" {
                eventually("its time is up", || run.stop_reason() == Some(StopReason::TimeUp));
                begun.lock().unwrap().send(())?;
                let _ = held(&*gate.lock().unwrap());
                return Err("late".into());
            }
            begun.lock().unwrap().send(())?;
            let ended = obey(run);
            open.send(())?;
            ended
        })
    });
    assert_eq!(db.rows(RUNS), ["in-time|failed|1|1|1", "late|failed|1|0|0"]);
    assert_eq!(db.ask("SELECT outcome FROM task_attempts WHERE error LIKE '%late'"), "timed_out");
}

/// As that of a command that fails by itself, whose remaining processes are waited for, or which has not been looked at since.
#[test]
fn an_attempt_whose_work_had_ended_before_the_request_to_stop_has_failed() {
    let db = TestDb::new();
    db.client().add_all(["before", "by-itself", "stopped"].map(|name| retry_soon(overdue(name), 2))).unwrap();
    interrupt(&db, 3, |builder, begun| {
        let begun = Mutex::new(begun);
        builder.handler("work", move |run: &Context| {
            let ended_before = run.task() == "before";
            if ended_before {
                CommandContext::of(run).record_end(None);
            }
            begun.lock().unwrap().send(())?;
            let obeyed = obey(run);
            // Noticed after the request, of which the command knew nothing, or everything.
            let passed_on = run.stop_reason().filter(|_| run.task() == "stopped");
            CommandContext::of(run).record_end(passed_on);
            obeyed
        })
    });
    assert_eq!(db.rows(RUNS), ["before|failed|1|0|0", "by-itself|failed|1|0|0", "stopped|failed|1|1|1"]);
}

fn failed(retry: Retry) -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "cut short".to_owned(), retry }
}

/// Ends an attempt, and returns the state of its run and the seconds until the next attempt.
fn end(stepper: &mut Stepper, claim: &Arc<Claim>, outcome: Outcome) -> (String, u64) {
    stepper.finish(claim, outcome);
    stepper.settle().unwrap();
    let run = stepper.client().run(claim.run_id).unwrap().unwrap();
    let wait = run.run_at.since(stepper.now().wall).as_secs();
    (format!("{}|{}|{}|{}", run.status, run.attempt, run.forgiven, run.interrupted), wait)
}

#[test]
fn interruptions_in_a_row_wait_longer_and_are_reported() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::once("t", at(NOON)).handler("work").max_attempts(3)).unwrap();
    let named = |db: &TestDb| problems(&db.client()).iter().filter(|line| line.starts_with("interrupted: ")).count();
    let mut attempt = claim(&mut stepper);
    for (n, full) in [(1, 10), (2, 20)] {
        let (state, wait) = end(&mut stepper, &attempt, failed(Retry::Interrupted));
        assert_eq!(state, format!("failed|{n}|{n}|{n}"));
        assert!((full / 2..=full).contains(&wait), "{wait}");
        assert_eq!(named(&db), usize::from(n > 1));
        attempt = claim_after(&mut stepper, minutes(1));
    }
    assert_eq!(named(&db), 1, "while it runs, too");
    let found = stepper.client().check(&Limits::default()).unwrap();
    let problem = found.iter().find(|problem| problem.kind == ProblemKind::Interrupted).unwrap();
    assert_eq!(problem.run, Some(attempt.run_id));
    let found = "run 1 of t was interrupted 2 times in a row (by shutdowns, lost leases or its own handler)";
    assert_eq!(problem.found, found);
    // The return of an attempt that had not begun does not change it.
    assert_eq!(end(&mut stepper, &attempt, Outcome::Released).0, "queued|3|3|2");
    attempt = claim_after(&mut stepper, minutes(1));
    // An attempt that ended otherwise begins the count anew, and the attempts that count are those that failed.
    let (state, wait) = end(&mut stepper, &attempt, failed(Retry::Backoff));
    assert_eq!(state, "failed|4|3|0");
    assert!((5..=10).contains(&wait), "{wait}");
    assert_eq!(named(&db), 0);
    attempt = claim_after(&mut stepper, minutes(1));
    assert_eq!(end(&mut stepper, &attempt, failed(Retry::Interrupted)).0, "failed|5|4|1");
    // As does one that was lost with its scheduler, which counts.
    claim_after(&mut stepper, minutes(1));
    let mut stepper = stepper.restart().unwrap();
    stepper.step().unwrap();
    assert_eq!(db.rows(RUNS), ["t|failed|6|4|0"]);
    attempt = claim_after(&mut stepper, minutes(1));
    assert_eq!(end(&mut stepper, &attempt, Outcome::succeeded()).0, "succeeded|7|4|0");
    db.assert_sound();
}

#[test]
fn an_interruption_is_reported_as_that_and_not_as_a_failure() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.client().add(NewTask::once("t", at(NOON)).handler("work").max_attempts(3)).unwrap();
    let attempt = claim(&mut stepper);
    end(&mut stepper, &attempt, failed(Retry::Interrupted));
    let events: Vec<Event> = events.try_iter().collect();
    assert!(!events.iter().any(|event| matches!(event, Event::Finished { .. })), "{events:?}");
    let event = events.iter().find(|event| matches!(event, Event::Interrupted { .. })).expect("the event");
    assert_eq!(event.level(), log::Level::Warn);
    let text = event.to_string();
    assert!(text.starts_with("run 1 of \"t\" was interrupted after 0s: cut short; next attempt at "), "{text}");
}

/// Neither starts again within the second.
#[test]
fn a_handler_that_says_it_was_interrupted_or_snoozes_for_no_time_is_no_busy_loop() {
    for retry in [Retry::Interrupted, Retry::Snooze(Duration::ZERO)] {
        let (db, mut stepper) = TestDb::with_stepper();
        stepper.client().add(NewTask::once("t", at(NOON)).handler("work").max_attempts(2)).unwrap();
        let first = claim(&mut stepper);
        stepper.finish(&first, failed(retry));
        assert!(stepper.step().unwrap().is_empty(), "{retry:?}");
        assert_eq!((db.run(1).status, db.run(1).forgiven), (RunStatus::Failed, 1));
        assert!(advance_and_step(&mut stepper, Duration::from_millis(999)).is_empty(), "{retry:?}");
        claim_after(&mut stepper, seconds(10));
        db.assert_sound();
    }
}

#[test]
fn a_failure_that_says_interrupted_is_bounded_as_well() {
    let db = TestDb::new();
    let handler = |run: &Context| match run.attempt() {
        ..20 => Err(Failure::interrupted("the tool was updated")),
        _ => Ok(()),
    };
    let mut stepper = db.builder(NOON).handler("work", handler).accept("other").start().unwrap();
    stepper.client().add(NewTask::once("t", at(NOON)).handler("work").max_attempts(2)).unwrap();
    stepper.run_until(at(NOON) + minutes(60)).unwrap();
    assert_eq!(db.rows(RUNS), ["t|dead|5|3|5"]);
    db.assert_sound();
}
