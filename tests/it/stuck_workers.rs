//! Handlers that do not return after their time limit: new workers replace those that they block.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{AttemptOutcome, Builder, Context, Error, Event, NewTask, RunStatus, Scheduler};

use crate::fixtures::{TestDb, eventually, held, listen, overdue, patience, receive, turns_pass, wait_for_status};

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
    for name in ["beat-1", "beat-2", "beat-3"] {
        scheduler.add(overdue(name).handler("beat").at_most_once()).unwrap();
        wait_for_status(&scheduler, name, RunStatus::Succeeded);
    }
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
fn at_most_the_configured_number_of_workers_is_replaced_until_blocked_ones_return() {
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
    let final_runs = "SELECT count(*) FROM task_runs WHERE finished_at IS NOT NULL AND status <> 'running'";
    eventually("all have ended", || db.ask(final_runs) == "7");
    assert_eq!(db.ask("SELECT status FROM task_runs WHERE handler = 'work'"), "succeeded");
    assert!(db.number::<u32>("SELECT count(*) FROM task_attempts WHERE outcome = 'timed_out'") >= 4);
    scheduler.add_all((0..50).map(|number| overdue(&format!("after-{number}")).at_most_once())).unwrap();
    eventually("all are done", || db.ask(final_runs) == "57");
    assert_eq!((at_once.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 2), "two workers again");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}
