//! What a scheduler's own client does is reported to the scheduler's observers, as what the scheduler does by itself.

use std::sync::{Arc, Mutex};

use duly::{Cancel, Context, Error, Event, NewTask, Scheduler};

use crate::fixtures::{TestDb, at, eventually};

const NOON: &str = "2027-03-14T12:00:00Z";

/// An observer that keeps the runs that it heard were cancelled before they began.
fn cancelled() -> (impl Fn(&Event) + Send + Sync + 'static, Arc<Mutex<Vec<i64>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    let observer = move |event: &Event| {
        if let Event::Cancelled { run, task, .. } = event {
            assert_eq!(task, "waits");
            hears.lock().unwrap().push(*run);
        }
    };
    (observer, heard)
}

#[test]
fn a_waiting_run_that_a_client_cancels_is_reported_once() {
    let db = TestDb::new();
    let (observer, heard) = cancelled();
    let mut stepper = db.builder(NOON).accept("work").observe(observer).start().unwrap();
    let client = stepper.client().clone();
    client.add_all(["waits", "works"].map(|name| NewTask::manual(name).handler("nobody"))).unwrap();
    let runs: Vec<i64> = (0..3).map(|_| client.trigger("waits").unwrap()).collect();
    assert_eq!(client.cancel(runs[0]).unwrap(), Cancel::Done);
    assert_eq!(*heard.lock().unwrap(), runs[..1], "what a client cancels");
    assert!(matches!(client.cancel(runs[0]), Err(Error::Refused { .. })), "it is over");
    assert_eq!(client.cancel_all("waits").unwrap(), 2);
    assert_eq!(*heard.lock().unwrap(), runs);
    stepper.step().unwrap();
    assert_eq!(*heard.lock().unwrap(), runs, "once");

    // What runs is asked to stop, and has not been cancelled before it began.
    client.add(NewTask::once("runs", at(NOON)).handler("work")).unwrap();
    let run = stepper.step().unwrap().remove(0);
    assert_eq!(client.cancel(run.run_id).unwrap(), Cancel::Asked);
    // The client of another process has no observers.
    let other = client.trigger("works").unwrap();
    assert_eq!(db.client().cancel(other).unwrap(), Cancel::Done);
    assert_eq!(*heard.lock().unwrap(), runs);
}

#[test]
fn a_running_scheduler_reports_what_its_client_cancels() {
    let db = TestDb::new();
    let (observer, heard) = cancelled();
    let scheduler = Scheduler::builder(db.file())
        .observe(observer)
        .handler("work", |_: &Context| Ok::<_, Error>(()))
        .start()
        .unwrap();
    scheduler.add(NewTask::manual("waits").handler("nobody")).unwrap();
    let run = scheduler.trigger("waits").unwrap();
    assert_eq!(scheduler.client().clone().cancel(run).unwrap(), Cancel::Done);
    eventually("the observer hears of it", || *heard.lock().unwrap() == [run]);
}
