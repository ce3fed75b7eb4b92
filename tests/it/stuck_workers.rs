//! Handlers that do not return after their time limit: new workers replace those that they block.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::ManualClock;
use duly::{AttemptOutcome, BoxError, Builder, Context, Error, Event, NewTask, RunStatus, Scheduler};

use crate::fixtures::{
    NOON, TestDb, at, eventually, held, is_of_sqlite, listen, once, overdue, patience, receive, seconds, turns_pass,
};

/// A task whose handler ignores requests, with a time limit of 20 ms.
fn hanging_task(name: &str) -> NewTask {
    overdue(name).handler("hang").at_most_once().timeout(Duration::from_millis(20)).priority(0)
}

/// Starts a scheduler whose handler `hang` reports that it has begun, and returns when a message is sent or the sender
/// dropped.
fn with_hanging(db: &TestDb) -> (Builder, Receiver<i64>, crossbeam_channel::Sender<()>) {
    let (begun, begins) = channel();
    // Several wait at it at once.
    let (open, gate) = crossbeam_channel::unbounded();
    let begun = Mutex::new(begun);
    let hang = move |run: &Context| {
        let _ = begun.lock().unwrap().send(run.run_id());
        let _ = held(&gate);
        Err::<(), _>("it hung")
    };
    (Scheduler::builder(db.address()).poll(Duration::from_millis(50)).handler("hang", hang), begins, open)
}

#[test]
fn a_healthy_task_misses_nothing_beside_a_hanging_one() {
    let db = TestDb::new();
    let (builder, begins, open) = with_hanging(&db);
    let (observer, events) = listen();
    let beat = |_: &Context| Ok::<_, Error>(());
    let scheduler = builder.workers(1).handler("beat", beat).observe(observer).start().unwrap();
    scheduler.add(hanging_task("hangs")).unwrap();
    let run = receive(&begins, "a start");
    scheduler.add(NewTask::interval("beat", seconds(1)).handler("beat")).unwrap();
    let beats = "SELECT count(*) FROM task_runs WHERE handler = 'beat' AND status = 'succeeded'";
    eventually("it has beaten three times", || db.number::<u32>(beats) >= 3);
    let other =
        "SELECT count(*) FROM task_runs WHERE handler = 'beat' AND status <> 'succeeded' AND status <> 'running'";
    assert_eq!(db.ask(other), "0");
    let held = |event: &Event| matches!(event, Event::WorkerHeld { claim } if claim.run_id == run);
    assert_eq!(events.try_iter().filter(held).count(), 1);
    assert_eq!(db.run(run).status, RunStatus::Running, "it holds its run, and its key");

    open.send(()).unwrap();
    eventually("the end of the attempt is recorded", || db.run(run).status == RunStatus::Dead);
    assert_eq!(scheduler.attempts(run).unwrap()[0].outcome, AttemptOutcome::TimedOut);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn at_most_the_configured_number_of_workers_is_replaced() {
    let db = TestDb::new();
    let (builder, begins, open) = with_hanging(&db);
    let scheduler = builder.workers(2).handler("work", |_: &Context| Ok::<_, Error>(())).start().unwrap();
    scheduler.add_all((0..6).map(|number| hanging_task(&format!("hangs-{number}")))).unwrap();
    for _ in 0..4 {
        receive(&begins, "a start");
    }
    scheduler.add(overdue("work").at_most_once()).unwrap();
    // As many turns as it takes to give back what no worker begins within half a second.
    turns_pass(&scheduler, 12);
    assert!(begins.try_recv().is_err(), "two workers, and two in their place");
    assert_eq!(db.count(RunStatus::Running), 4, "no claim without a worker");
    open.send(()).unwrap();
    receive(&begins, "a start");
    drop(open);
    eventually("all have ended", || {
        db.ask("SELECT count(*) FROM task_runs WHERE finished_at IS NOT NULL AND status <> 'running'") == "7"
    });
    assert_eq!(db.ask("SELECT status FROM task_runs WHERE handler = 'work'"), "succeeded");
    let timed_out = db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'timed_out'");
    assert!(timed_out.parse::<u32>().unwrap() >= 4, "{timed_out}");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn the_number_of_workers_is_restored_when_blocked_ones_return() {
    let db = TestDb::new();
    let (builder, begins, open) = with_hanging(&db);
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (at_once.clone(), most.clone());
    let work = move |run: &Context| {
        let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(now, Ordering::SeqCst);
        // Long enough to overlap with another.
        run.wait_cancelled(Duration::from_millis(2));
        counted.fetch_sub(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    };
    let scheduler = builder.workers(2).handler("work", work).start().unwrap();
    scheduler.add_all((0..2).map(|number| hanging_task(&format!("hangs-{number}")))).unwrap();
    (0..2).for_each(|_| _ = receive(&begins, "a start"));
    let succeeded =
        |count: &str| db.ask("SELECT count(*) FROM task_runs WHERE handler = 'work' AND status = 'succeeded'") == count;
    scheduler.add_all((0..20).map(|number| overdue(&format!("during-{number}")).at_most_once())).unwrap();
    eventually("others work in their place", || succeeded("20"));
    drop(open);
    let ended = "SELECT count(*) FROM task_attempts WHERE outcome = 'timed_out'";
    eventually("those that were held have returned", || db.ask(ended) == "2");
    scheduler.add_all((0..100).map(|number| overdue(&format!("after-{number}")).at_most_once())).unwrap();
    eventually("all are done", || succeeded("120"));
    assert_eq!((at_once.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 2));
    db.assert_sound();
}

#[test]
fn a_handler_that_stops_on_request_is_not_replaced() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let stops_on_request = |run: &Context| if run.wait_cancelled(patience()) { Err("out of time") } else { Ok(()) };
    let scheduler = Scheduler::builder(db.address())
        .workers(1)
        .handler("hang", stops_on_request)
        .observe(observer)
        .start()
        .unwrap();
    scheduler.add(hanging_task("stops")).unwrap();
    eventually("it has ended", || db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'timed_out'") == "1");
    scheduler.shutdown(patience()).unwrap();
    assert!(!events.try_iter().any(|event| matches!(event, Event::WorkerHeld { .. })));
}

/// A run that no worker has begun is given back half a second after it was handed over, not after its turn began.
#[test]
fn a_slow_turn_gives_back_nothing_that_it_has_just_handed_over() {
    if is_of_sqlite("on a server, the time of the server decides what is due") {
        return;
    }
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let (open, gate) = crossbeam_channel::unbounded::<()>();
    let (begun, begins) = crossbeam_channel::unbounded();
    let work = move |run: &Context| {
        begun.send(run.run_id())?;
        Ok::<_, BoxError>(held(&gate)?)
    };
    // The loop emits the event in its turn, which then seems to take a second.
    let slow = clock.clone();
    let observer = move |event: &Event| {
        if matches!(event, Event::Finished { .. }) {
            slow.advance(seconds(1));
        }
    };
    let builder = Scheduler::builder(db.address()).poll(Duration::from_millis(50)).workers(1).clock(clock);
    let scheduler = builder.handler("work", work).observe(observer).start().unwrap();
    scheduler.add_all(["a", "b", "c", "d"].map(once)).unwrap();
    receive(&begins, "a start");
    // After its end, the others are claimed in one turn: one begins, two wait.
    open.send(()).unwrap();
    receive(&begins, "a start");
    assert_eq!(db.count(RunStatus::Running), 3);
    turns_pass(&scheduler, 2);
    assert_eq!(db.count(RunStatus::Running), 3);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'released'"), "0");
    (0..3).for_each(|_| open.send(()).unwrap());
    eventually("they end", || db.count(RunStatus::Succeeded) == 4);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}
