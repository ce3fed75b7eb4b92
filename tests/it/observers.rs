//! Observers receive what happens. Code of the application that does not return delays no shutdown beyond its deadline.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use duly::{Cancel, Clock, Context, Error, Event, NewTask, Now, Scheduler, SystemClock};

use crate::fixtures::{NOON, TestDb, eventually, is_of_sqlite, once, patience, receive};

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
    let runs = [runs[0], runs[2], runs[1]];
    assert_eq!(*reported.lock().unwrap(), runs, "the last one first");
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

/// A gate at which code of the application waits until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<(bool, bool)>, Condvar)>);

impl Gate {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    pub(crate) fn close(&self) {
        self.set(|(closed, _)| *closed = true);
    }

    pub(crate) fn open(&self) {
        self.set(|(closed, _)| *closed = false);
    }

    fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.1 |= state.0;
        changed.notify_all();
        drop(changed.wait_timeout_while(state, patience(), |(closed, _)| *closed).unwrap());
    }

    /// Waits until a thread has arrived at the closed gate.
    pub(crate) fn holds_one(&self) {
        let (state, changed) = &*self.0;
        let waited = changed.wait_timeout_while(state.lock().unwrap(), patience(), |(_, held)| !*held).unwrap();
        assert!(waited.0.1, "no thread has arrived");
    }
}

#[test]
fn an_observer_that_waits_holds_up_neither_runs_nor_a_shutdown() {
    let (db, gate) = (TestDb::new(), Gate::default());
    gate.close();
    let (at_observer, (sender, ends)) = (gate.clone(), channel());
    let scheduler = Scheduler::builder(db.address())
        .observe(move |_: &Event| at_observer.pass())
        .handler("work", move |_: &Context| sender.send(()))
        .start()
        .unwrap();
    scheduler.add(NewTask::manual("works").handler("work")).unwrap();
    scheduler.trigger("works").unwrap();
    gate.holds_one();
    scheduler.trigger("works").unwrap();
    for _ in 0..2 {
        receive(&ends, "the end of a run");
    }
    let ending = scheduler.ending();
    assert_eq!(scheduler.shutdown(Duration::from_millis(500)).unwrap().unfinished, 0);
    assert_eq!(ending.wait(), Ok(()), "the loop has ended, and the observer has not");
    gate.open();
}

/// A clock at which the loop waits.
pub(crate) struct Held<C>(pub(crate) C, pub(crate) Gate);

impl<C: Clock> Clock for Held<C> {
    fn now(&self) -> Now {
        if std::thread::current().name() == Some("duly-poller") {
            self.1.pass();
        }
        self.0.now()
    }

    fn until(&self, at: Duration) -> Duration {
        self.0.until(at)
    }
}

#[test]
fn a_shutdown_returns_at_its_deadline_while_code_of_the_application_holds_the_loop() {
    let (db, gate, (sender, begins)) = (TestDb::new(), Gate::default(), channel());
    let scheduler = Scheduler::builder(db.address())
        .clock(Held(SystemClock::new(), gate.clone()))
        .handler("work", move |run: &Context| {
            sender.send(()).unwrap();
            run.wait_cancelled(patience());
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    scheduler.add(NewTask::manual("works").handler("work")).unwrap();
    scheduler.trigger("works").unwrap();
    receive(&begins, "a start");
    gate.close();
    scheduler.wake();
    gate.holds_one();
    let ending = scheduler.ending();
    assert_eq!(scheduler.shutdown(Duration::from_millis(1)).unwrap().unfinished, 1);
    assert_eq!(ending.wait_timeout(Duration::ZERO), None, "it goes on when it can");
    gate.open();
    assert_eq!(ending.wait_timeout(patience()), Some(Ok(())));
}

#[test]
fn a_scheduler_that_stops_by_itself_is_an_event_and_can_be_waited_for() {
    if is_of_sqlite("it removes the file") {
        return;
    }
    let (db, (sender, events)) = (TestDb::new(), channel());
    let observer = move |event: &Event| {
        if let Event::Stopped { reason } = event {
            sender.send(reason.clone()).unwrap();
        }
    };
    let scheduler = Scheduler::builder(db.address()).observe(observer).start().unwrap();
    let ending = scheduler.ending();
    std::fs::remove_file(db.file()).unwrap();
    scheduler.wake();
    let reason = ending.wait_timeout(patience()).expect("it stops").unwrap_err();
    assert!(reason.contains("it was removed"), "{reason}");
    assert_eq!(receive(&events, "the event"), reason);
    assert_eq!(scheduler.wait().unwrap_err().to_string(), reason);
}

/// The loop has taken the outcome, and waits for the lock: the attempt is neither running nor stored.
#[test]
fn a_shutdown_names_an_attempt_whose_outcome_waits_for_the_lock_of_another_program() {
    if is_of_sqlite("another program holds the lock of the file") {
        return;
    }
    let (db, (begun, begins), (open, gate)) = (TestDb::new(), channel(), channel::<()>());
    let gate = Mutex::new(gate);
    let scheduler = Scheduler::builder(db.address())
        .handler("work", move |_: &Context| {
            begun.send(())?;
            gate.lock().unwrap().recv_timeout(patience())?;
            Ok::<_, duly::BoxError>(())
        })
        .start()
        .unwrap();
    scheduler.add(NewTask::manual("waits").handler("work")).unwrap();
    let run = scheduler.client().trigger("waits").unwrap();
    receive(&begins, "the attempt begins");
    let other = db.plain();
    eventually("the lock is free", || other.execute_batch("BEGIN IMMEDIATE").is_ok());
    open.send(()).unwrap();
    let shutdown = scheduler.shutdown(Duration::from_millis(300)).unwrap();
    let named: Vec<_> = shutdown.attempts.iter().map(|claim| (claim.run_id, claim.task.as_str())).collect();
    assert_eq!((shutdown.unfinished, named), (1, vec![(run, "waits")]));
    other.execute_batch("ROLLBACK").unwrap();
    eventually("the outcome is stored", || db.client().run(run).unwrap().is_some_and(|run| run.status.is_final()));
}
