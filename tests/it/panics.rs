//! Handlers, observers and their values that panic in every place in which code of the application runs: no worker is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use duly::{
    BoxError, Builder, Clock, Context, Event, Handler, Limits, NewTask, Now, ProblemKind, RunStatus, Scheduler,
    SystemClock,
};
use serde::{Serialize, Serializer};

use crate::fixtures::{TestDb, at, eventually, seconds};

/// A panic payload that panics when it is dropped, with a payload that does the same.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

/// Panics when it is dropped.
#[derive(Debug)]
struct Brittle;

impl Drop for Brittle {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

impl std::fmt::Display for Brittle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is brittle")
    }
}

impl std::error::Error for Brittle {}

impl Serialize for Brittle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// An error or a result that cannot be told.
#[derive(Debug)]
struct Mute;

impl std::fmt::Display for Mute {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::panic::panic_any(Bomb)
    }
}

impl std::error::Error for Mute {}

impl Serialize for Mute {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        std::panic::panic_any(Bomb)
    }
}

/// A handler that has no time limit to tell.
struct Timeless;

impl Handler for Timeless {
    fn run(&self, _: &Context) -> Result<Option<String>, BoxError> {
        Ok(None)
    }

    fn default_timeout(&self) -> Option<std::time::Duration> {
        std::panic::panic_any(Bomb)
    }
}

fn now(name: &str, handler: &str) -> NewTask {
    NewTask::once(name, at("2020-01-01T00:00:00Z")).handler(handler).at_most_once()
}

/// A scheduler of one worker, and a handler `work` that harms nothing.
fn of_one(db: &TestDb) -> Builder {
    Scheduler::builder(db.file()).workers(1).handler("work", |_: &Context| Ok::<_, BoxError>(()))
}

fn ends(scheduler: &Scheduler, task: &str) -> duly::Run {
    let newest = || scheduler.history(task, 1).unwrap().pop().filter(|run| run.status.is_final());
    eventually(&format!("{task} has ended"), || newest().is_some());
    newest().unwrap()
}

/// The worker is at work after all that.
fn assert_works(scheduler: &Scheduler, name: &str) {
    scheduler.add(now(name, "work")).unwrap();
    assert_eq!(ends(scheduler, name).status, RunStatus::Succeeded);
}

#[test]
fn no_panic_of_a_handler_costs_a_worker() {
    let db = TestDb::new();
    let scheduler = of_one(&db)
        .handler("payload", |_: &Context| -> Result<(), BoxError> { std::panic::panic_any(Bomb) })
        .handler("error told", |_: &Context| Err::<(), _>(Mute))
        .handler("error dropped", |_: &Context| Err::<(), _>(Brittle))
        .handler("result told", |_: &Context| Ok::<_, BoxError>(Mute))
        .handler("result dropped", |_: &Context| Ok::<_, BoxError>(Brittle))
        .handler("effect", |run: &Context| run.effect::<()>("deed", || std::panic::panic_any(Bomb)))
        .handler("finish", |run: &Context| run.finish::<()>(|_| std::panic::panic_any(Bomb)))
        .handler_type("limit", Timeless)
        .start()
        .unwrap();
    for handler in ["payload", "error told", "result told", "effect", "finish", "limit"] {
        let task = handler.replace(' ', "-");
        scheduler.add(now(&task, handler)).unwrap();
        let run = ends(&scheduler, &task);
        let expected = (RunStatus::Dead, Some("the handler panicked: without a message"));
        assert_eq!((run.status, run.error.as_deref()), expected, "{handler}");
    }
    // What the handler answered stands, though the answer cannot be dropped.
    scheduler.add(now("error", "error dropped")).unwrap();
    assert_eq!(ends(&scheduler, "error").error.as_deref(), Some("it is brittle"));
    scheduler.add(now("result", "result dropped")).unwrap();
    assert_eq!(ends(&scheduler, "result").status, RunStatus::Succeeded);
    assert_works(&scheduler, "next");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'worker_ended'"), "0");
    assert_eq!(scheduler.shutdown(seconds(30)).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn no_panic_of_an_observer_costs_a_worker_or_the_loop() {
    let db = TestDb::new();
    let scheduler = of_one(&db).observe(|_: &Event| std::panic::panic_any(Bomb)).start().unwrap();
    assert_works(&scheduler, "first");
    assert_works(&scheduler, "second");
    assert_eq!(scheduler.shutdown(seconds(30)).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn what_handlers_and_observers_hold_may_panic_when_the_scheduler_leaves() {
    let db = TestDb::new();
    let (held, seen) = (Arc::new(Brittle), Arc::new(Brittle));
    let scheduler = Scheduler::builder(db.file())
        .handler("work", move |_: &Context| Ok::<_, BoxError>(held.to_string()))
        .observe(move |_: &Event| drop(seen.to_string()))
        .start()
        .unwrap();
    assert_works(&scheduler, "only");
    assert_eq!(scheduler.shutdown(seconds(30)).unwrap().unfinished, 0);
    db.assert_sound();
}

/// A clock that panics when a worker asks it for the `n`th time.
struct Faulty {
    clock: SystemClock,
    asked: Arc<AtomicUsize>,
}

impl Clock for Faulty {
    fn now(&self) -> Now {
        let of_a_worker = std::thread::current().name().is_some_and(|name| name.starts_with("duly-worker-"));
        if of_a_worker && self.asked.load(Ordering::SeqCst) > 0 && self.asked.fetch_sub(1, Ordering::SeqCst) == 1 {
            panic!("the clock is broken");
        }
        self.clock.now()
    }
}

/// A worker asks its clock before it enters the handler, where the handler begins, and after it has returned.
#[test]
fn a_worker_that_ends_all_the_same_is_replaced_and_its_run_settled() {
    for nth in [1, 3] {
        let db = TestDb::new();
        let asked = Arc::new(AtomicUsize::new(0));
        let clock = Faulty { clock: SystemClock::new(), asked: asked.clone() };
        let (told, hears) = std::sync::mpsc::channel();
        let scheduler =
            of_one(&db).clock(clock).observe(move |event: &Event| drop(told.send(event.clone()))).start().unwrap();
        assert_works(&scheduler, "before");
        asked.store(nth, Ordering::SeqCst);
        scheduler.add(now("unlucky", "work")).unwrap();
        let run = ends(&scheduler, "unlucky");
        let error = "the worker ended before the attempt did: the clock is broken";
        assert_eq!((run.status, run.error.as_deref()), (RunStatus::Dead, Some(error)), "{nth}");
        assert_works(&scheduler, "after");
        assert_works(&scheduler, "later");
        let rows = "SELECT run_id, detail LIKE '%: the clock is broken' FROM scheduler_events
                     WHERE kind = 'worker_ended'";
        eventually("it is recorded", || db.rows(rows) == [format!("{}|1", run.id)]);
        let ended = |event: &Event| matches!(event, Event::WorkerEnded { run: Some(ended), .. } if *ended == run.id);
        assert_eq!(hears.try_iter().filter(ended).count(), 1);
        let problems = scheduler.check(&Limits::default()).unwrap();
        let found: Vec<_> = problems.iter().filter(|problem| problem.kind == ProblemKind::WorkerEnded).collect();
        assert!(found.len() == 1 && found[0].to_string().contains("the clock is broken"), "{problems:?}");
        let client = scheduler.client().clone();
        assert_eq!(scheduler.shutdown(seconds(30)).unwrap().unfinished, 0);
        // It was a worker of that scheduler.
        let problems = client.check(&Limits::default()).unwrap();
        assert!(problems.iter().all(|problem| problem.kind != ProblemKind::WorkerEnded), "{problems:?}");
        db.assert_sound();
    }
}
