//! Actions of a scheduler's own client are reported to the scheduler's observers, as its own actions are.

use std::sync::{Arc, Mutex};

use duly::{Cancel, Context, Error, Event, NewTask, Scheduler};

use crate::fixtures::{NOON, TestDb, eventually, once};

/// Returns an observer that records the runs cancelled before they began.
fn cancellation_observer() -> (impl Fn(&Event) + Send + Sync + 'static, Arc<Mutex<Vec<i64>>>) {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let copy = reported.clone();
    let observer = move |event: &Event| {
        if let Event::Cancelled { run, task, .. } = event {
            assert_eq!(task, "waits");
            copy.lock().unwrap().push(*run);
        }
    };
    (observer, reported)
}

#[test]
fn a_waiting_run_that_a_client_cancels_is_reported_once() {
    let db = TestDb::new();
    let (observer, reported) = cancellation_observer();
    let mut stepper = db.builder(NOON).accept("work").observe(observer).start().unwrap();
    let client = stepper.client().clone();
    client.add_all(["waits", "works"].map(|name| NewTask::manual(name).handler("absent"))).unwrap();
    let runs: Vec<i64> = (0..3).map(|_| client.trigger("waits").unwrap()).collect();
    assert_eq!(client.cancel(runs[0]).unwrap(), Cancel::Done);
    assert_eq!(*reported.lock().unwrap(), runs[..1], "what a client cancels");
    assert!(matches!(client.cancel(runs[0]), Err(Error::Refused { .. })), "it is final");
    assert_eq!(client.cancel_all("waits").unwrap(), 2);
    assert_eq!(*reported.lock().unwrap(), runs);
    stepper.step().unwrap();
    assert_eq!(*reported.lock().unwrap(), runs, "once");

    // A running run is asked to stop, and is not reported as cancelled before it began.
    client.add(once("runs")).unwrap();
    let run = stepper.step().unwrap().remove(0);
    assert_eq!(client.cancel(run.run_id).unwrap(), Cancel::Asked);
    // The client of another process has no observers.
    let other = client.trigger("works").unwrap();
    assert_eq!(db.client().cancel(other).unwrap(), Cancel::Done);
    assert_eq!(*reported.lock().unwrap(), runs);
}

#[test]
fn a_running_scheduler_reports_what_its_client_cancels() {
    let db = TestDb::new();
    let (observer, reported) = cancellation_observer();
    let scheduler = Scheduler::builder(db.address())
        .observe(observer)
        .handler("work", |_: &Context| Ok::<_, Error>(()))
        .start()
        .unwrap();
    scheduler.add(NewTask::manual("waits").handler("absent")).unwrap();
    let run = scheduler.trigger("waits").unwrap();
    assert_eq!(scheduler.client().clone().cancel(run).unwrap(), Cancel::Done);
    eventually("the observer receives it", || *reported.lock().unwrap() == [run]);
}
