//! Panics of handlers, observers and their values, wherever code of the application runs: no worker is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use duly::{
    AttemptOutcome, BoxError, Builder, Clock, Context, Event, Handler, Limits, NewTask, Now, ProblemKind, RunStatus,
    Scheduler, SystemClock,
};
use serde::{Serialize, Serializer};

use crate::fixtures::{TestDb, eventually, listen, overdue, patience, wait_for_status};

/// A panic payload that panics when it is dropped, with a payload that does the same.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        std::panic::panic_any(PanicsOnDrop);
    }
}

#[derive(Debug)]
struct PanicsOnDropOnce;

impl Drop for PanicsOnDropOnce {
    fn drop(&mut self) {
        std::panic::panic_any(PanicsOnDrop);
    }
}

impl std::fmt::Display for PanicsOnDropOnce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is brittle")
    }
}

impl std::error::Error for PanicsOnDropOnce {}

impl Serialize for PanicsOnDropOnce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// An error or a result that panics when it is displayed or serialized.
#[derive(Debug)]
struct PanicsWhenShown;

impl std::fmt::Display for PanicsWhenShown {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::panic::panic_any(PanicsOnDrop)
    }
}

impl std::error::Error for PanicsWhenShown {}

impl Serialize for PanicsWhenShown {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        std::panic::panic_any(PanicsOnDrop)
    }
}

/// A handler whose `default_timeout` panics.
struct PanicsInTimeout;

impl Handler for PanicsInTimeout {
    fn run(&self, _: &Context) -> Result<Option<String>, BoxError> {
        Ok(None)
    }

    fn default_timeout(&self) -> Option<std::time::Duration> {
        std::panic::panic_any(PanicsOnDrop)
    }
}

fn due(name: &str, handler: &str) -> NewTask {
    overdue(name).handler(handler).at_most_once()
}

/// Starts a scheduler with one worker, and a handler `work` that succeeds.
fn one_worker(db: &TestDb) -> Builder {
    Scheduler::builder(db.address()).workers(1).handler("work", |_: &Context| Ok::<_, BoxError>(()))
}

/// Checks that the worker still runs attempts.
fn assert_works(scheduler: &Scheduler, name: &str) {
    scheduler.add(due(name, "work")).unwrap();
    wait_for_status(scheduler, name, RunStatus::Succeeded);
}

#[test]
fn a_panic_of_a_handler_loses_no_worker() {
    let db = TestDb::new();
    let scheduler = one_worker(&db)
        .handler("message", |_: &Context| -> Result<(), BoxError> { panic!("no such chat") })
        .handler("payload", |_: &Context| -> Result<(), BoxError> { std::panic::panic_any(PanicsOnDrop) })
        .handler("error displayed", |_: &Context| Err::<(), _>(PanicsWhenShown))
        .handler("error dropped", |_: &Context| Err::<(), _>(PanicsOnDropOnce))
        .handler("result serialized", |_: &Context| Ok::<_, BoxError>(PanicsWhenShown))
        .handler("result dropped", |_: &Context| Ok::<_, BoxError>(PanicsOnDropOnce))
        .handler("effect", |run: &Context| run.effect::<()>("pay", || std::panic::panic_any(PanicsOnDrop)))
        .handler("finish", |run: &Context| run.finish::<()>(|_| std::panic::panic_any(PanicsOnDrop)))
        .handler_type("limit", PanicsInTimeout)
        .start()
        .unwrap();
    for handler in ["message", "payload", "error displayed", "result serialized", "effect", "finish", "limit"] {
        let task = handler.replace(' ', "-");
        scheduler.add(due(&task, handler)).unwrap();
        let run = wait_for_status(&scheduler, &task, RunStatus::Dead);
        let message = if handler == "message" { "no such chat" } else { "without a message" };
        assert_eq!(run.error, Some(format!("the handler panicked: {message}")), "{handler}");
        assert_eq!(scheduler.attempts(run.id).unwrap()[0].outcome, AttemptOutcome::Panicked, "{handler}");
    }
    // The handler's result is recorded, although the value cannot be dropped.
    scheduler.add(due("error", "error dropped")).unwrap();
    assert_eq!(wait_for_status(&scheduler, "error", RunStatus::Dead).error.as_deref(), Some("it is brittle"));
    scheduler.add(due("result", "result dropped")).unwrap();
    wait_for_status(&scheduler, "result", RunStatus::Succeeded);
    assert_works(&scheduler, "next");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'worker_ended'"), "0");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn a_panic_of_an_observer_loses_no_worker_and_not_the_loop() {
    let db = TestDb::new();
    let scheduler = one_worker(&db).observe(|_: &Event| std::panic::panic_any(PanicsOnDrop)).start().unwrap();
    assert_works(&scheduler, "first");
    assert_works(&scheduler, "second");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn values_of_handlers_may_panic_when_dropped_at_shutdown() {
    let db = TestDb::new();
    let (held, seen) = (Arc::new(PanicsOnDropOnce), Arc::new(PanicsOnDropOnce));
    let scheduler = Scheduler::builder(db.address())
        .handler("work", move |_: &Context| Ok::<_, BoxError>(held.to_string()))
        .observe(move |_: &Event| drop(seen.to_string()))
        .start()
        .unwrap();
    assert_works(&scheduler, "only");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

/// A clock that panics when a thread whose name begins so reads it for the `n`th time.
pub(crate) struct FaultyClock {
    pub(crate) clock: SystemClock,
    pub(crate) threads: &'static str,
    pub(crate) calls_left: Arc<AtomicUsize>,
}

impl Clock for FaultyClock {
    fn now(&self) -> Now {
        let is_read = std::thread::current().name().is_some_and(|name| name.starts_with(self.threads));
        if is_read && self.calls_left.load(Ordering::SeqCst) > 0 && self.calls_left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            panic!("the clock is broken");
        }
        self.clock.now()
    }
}

/// A worker reads its clock before it enters the handler, where the handler begins, and after it has returned.
#[test]
fn a_worker_that_panics_is_replaced_and_its_run_settled() {
    for nth in [1, 3] {
        let db = TestDb::new();
        let calls_left = Arc::new(AtomicUsize::new(0));
        let clock = FaultyClock { clock: SystemClock::new(), threads: "duly-worker-", calls_left: calls_left.clone() };
        let (observer, events) = listen();
        let scheduler = one_worker(&db).clock(clock).observe(observer).start().unwrap();
        assert_works(&scheduler, "before");
        calls_left.store(nth, Ordering::SeqCst);
        scheduler.add(due("unlucky", "work")).unwrap();
        let run = wait_for_status(&scheduler, "unlucky", RunStatus::Dead);
        let error = "the worker ended before the attempt did: the clock is broken";
        assert_eq!(run.error.as_deref(), Some(error), "{nth}");
        assert_works(&scheduler, "after");
        assert_works(&scheduler, "later");
        let rows = "SELECT run_id, detail LIKE '%: the clock is broken' FROM scheduler_events
                     WHERE kind = 'worker_ended'";
        eventually("it is recorded", || db.rows(rows) == [format!("{}|1", run.id)]);
        let ended = |event: &Event| matches!(event, Event::WorkerEnded { run: Some(ended), .. } if *ended == run.id);
        assert_eq!(events.try_iter().filter(ended).count(), 1);
        let problems = scheduler.check(&Limits::default()).unwrap();
        let found: Vec<_> = problems.iter().filter(|problem| problem.kind == ProblemKind::WorkerEnded).collect();
        assert!(found.len() == 1 && found[0].to_string().contains("the clock is broken"), "{problems:?}");
        let client = scheduler.client().clone();
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        // It was a worker of that scheduler.
        let problems = client.check(&Limits::default()).unwrap();
        assert!(problems.iter().all(|problem| problem.kind != ProblemKind::WorkerEnded), "{problems:?}");
        db.assert_sound();
    }
}
