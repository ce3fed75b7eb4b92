//! The scheduler with its threads: handlers that fail, hang, or are running at shutdown. `loop_steps` has orders of events without threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::ManualClock;
use duly::{BoxError, Context, Error, Event, Failure, NewTask, RetryPolicy, RunStatus, Scheduler, SystemClock};

use crate::fixtures::{
    TestDb, at, eventually, eventually_counts, held, is_of_sqlite, joined, listen, overdue, patience, receive,
    retry_soon, seconds, wait_for_status,
};
use crate::observers::{Gate, Held};

/// A handler that reports that it has begun, and returns when it receives a message.
fn gated_handler() -> (impl Fn(&Context) -> Result<(), Error> + Send + Sync, Receiver<i64>, Sender<()>) {
    let (begun, begins) = channel();
    let (open, gate) = channel();
    let (begun, gate) = (Mutex::new(begun), Mutex::new(gate));
    let handler = move |run: &Context| {
        let _ = begun.lock().unwrap().send(run.run_id());
        let _ = held(&*gate.lock().unwrap());
        Ok(())
    };
    (handler, begins, open)
}

#[test]
fn the_result_of_a_handler_decides_the_outcome() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address())
        .handler("work", |run: &Context| match run.task() {
            "gives-up" => Err(BoxError::from(Failure::give_up("gone for good"))),
            "waits" => Err(Failure::retry_after(seconds(7_200), "come back later").into()),
            "fails" => Err("once more".into()),
            _ => Ok(42),
        })
        .start()
        .unwrap();
    for name in ["gives-up", "waits", "fails", "succeeds"] {
        scheduler.add(overdue(name)).unwrap();
    }
    wait_for_status(&scheduler, "gives-up", RunStatus::Dead);
    assert_eq!(wait_for_status(&scheduler, "succeeds", RunStatus::Succeeded).result.as_deref(), Some("42"));
    let waits = wait_for_status(&scheduler, "waits", RunStatus::Failed);
    assert!(waits.run_at.since(waits.finished_at.unwrap()) >= seconds(7_200));
    let fails = wait_for_status(&scheduler, "fails", RunStatus::Failed);
    let wait = fails.run_at.since(fails.started_at.unwrap());
    assert!((seconds(5)..seconds(60)).contains(&wait), "the first backoff is 5 to 10 s: {wait:?}");
}

#[test]
fn a_shutdown_waits_for_running_attempts_and_releases_the_others() {
    let db = TestDb::new();
    let (handler, begins, gate) = gated_handler();
    let scheduler = Scheduler::builder(db.address()).workers(1).handler("work", handler).start().unwrap();
    let client = scheduler.client().clone();
    client.add(overdue("first")).unwrap();
    client.add(overdue("second").priority(3)).unwrap();
    let first = receive(&begins, "a start");
    let shutdown = std::thread::spawn(move || scheduler.shutdown(patience()));
    // What the worker begins before it learns of the shutdown ends at once.
    drop(gate);
    assert_eq!(joined(shutdown, "the shutdown").unwrap().unwrap().unfinished, 0);
    assert_eq!(db.run(first).status, RunStatus::Succeeded);
    assert_eq!(db.count(RunStatus::Running), 0);
    assert_eq!(db.registered_schedulers(), 0);
    assert_eq!(db.lock_files(), [""; 0], "no lock file is left");
    // The attempt that had not begun is left to the next scheduler.
    let next = Scheduler::builder(db.address()).handler("work", |_: &Context| Ok::<_, Error>(())).start().unwrap();
    let ends = "SELECT group_concat(status || ' ' || (attempt - forgiven)) FROM task_runs";
    eventually("both have succeeded", || db.ask(ends) == "succeeded 1,succeeded 1");
    next.shutdown(patience()).unwrap();
    db.assert_sound();
}

#[test]
fn claims_that_no_worker_begins_are_released_and_do_not_count() {
    let db = TestDb::new();
    let (begun, begins) = channel();
    let (open, gate) = channel::<()>();
    let (begun, gate) = (Mutex::new(begun), Mutex::new(gate));
    let (observer, events) = listen();
    // Quick runs let the scheduler read ahead; then one hangs, and the claims that were read ahead wait behind it.
    let scheduler = Scheduler::builder(db.address())
        .workers(1)
        .observe(observer)
        .handler("work", move |run: &Context| {
            if run.task() == "hangs" {
                let _ = begun.lock().unwrap().send(());
                let _ = held(&*gate.lock().unwrap());
            }
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    let quick = |n: usize| overdue(&format!("quick-{n}")).priority(if n < 200 { 1 } else { 3 });
    scheduler.add_all((0..400).map(quick).chain([overdue("hangs").priority(2)])).unwrap();
    receive(&begins, "a start");
    eventually("claims that have not begun are released", || {
        events.try_iter().any(|event| matches!(event, Event::Finished { status: RunStatus::Queued, .. }))
    });
    eventually("only the one that has begun is running", || db.count(RunStatus::Running) == 1);
    open.send(()).unwrap();
    eventually_counts("all have succeeded", 401, || db.count(RunStatus::Succeeded));
    assert_eq!(db.ask("SELECT max(attempt - forgiven) FROM task_runs"), "1", "a released attempt does not count");
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'released'"), "0");
}

#[test]
fn what_was_read_ahead_and_has_a_rate_begins_in_time_or_is_released() {
    if is_of_sqlite("it moves the clock, and the time of a server goes on") {
        return;
    }
    let db = TestDb::new();
    let (clock, calls) = (ManualClock::new(at("2027-03-14T12:00:00Z")), Arc::new(AtomicUsize::new(0)));
    let client = db.client();
    db.execute("INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 100, 3600000)");
    client
        .add_all((0..6).map(|n| NewTask::once(format!("task-{n}"), at("2027-03-14T12:00:00Z")).handler("work")))
        .unwrap();
    // The first is brief, so that others are read ahead with the second, which takes longer than they may wait.
    let works = {
        let (clock, calls) = (clock.clone(), calls.clone());
        move |_: &Context| {
            if calls.fetch_add(1, Ordering::Relaxed) == 1 {
                clock.advance(Duration::from_millis(201));
            }
            Ok::<_, Error>(())
        }
    };
    let scheduler = Scheduler::builder(db.address()).clock(clock).workers(1).handler("work", works).start().unwrap();
    eventually_counts("all have succeeded", 6, || db.count(RunStatus::Succeeded));
    scheduler.shutdown(patience()).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'released'"), "4");
    assert_eq!(db.ask("SELECT count(*) FROM rate_limit_starts"), "10", "a start that was released counts as well");
}

#[test]
fn two_schedulers_in_one_process_share_the_runs() {
    let db = TestDb::new();
    let starts = Arc::new(AtomicUsize::new(0));
    let start = || {
        let starts = starts.clone();
        let handler = move |_: &Context| {
            starts.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>(())
        };
        Scheduler::builder(db.address()).workers(2).handler("work", handler).start().unwrap()
    };
    let (one, other) = (start(), start());
    one.add_all((0..500).map(|n| overdue(&format!("task-{n}")).retry(RetryPolicy::default()))).unwrap();
    eventually_counts("all have succeeded", 500, || db.count(RunStatus::Succeeded));
    drop((one, other));
    assert_eq!(starts.load(Ordering::Relaxed), 500);
    db.assert_sound();
}

#[test]
fn workers_write_one_after_another_without_busy_errors() {
    if is_of_sqlite("its lock is given by chance") {
        return;
    }
    const WORKERS: u32 = 8;
    let (patience, work) = (Duration::from_millis(1500), Duration::from_millis(250));
    assert!(work * (WORKERS - 1) > patience, "the last one would lose it");
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address())
        .workers(WORKERS as usize)
        .on_connect(move |connection| Ok(connection.busy_timeout(patience)?))
        .handler("work", move |run: &Context| {
            run.finish(|_| {
                run.wait_cancelled(work);
                Ok(())
            })
        })
        .start()
        .unwrap();
    scheduler.add_all((0..WORKERS).map(|n| overdue(&format!("t{n}")).at_most_once())).unwrap();
    eventually("all are final", || db.count(RunStatus::Succeeded) + db.count(RunStatus::Dead) == WORKERS as usize);
    assert_eq!(db.rows("SELECT DISTINCT status, error FROM task_runs"), ["succeeded|-"]);
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn handlers_are_asked_to_stop_when_the_file_is_removed() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let (begun, begins) = channel();
    let (sender, receiver) = channel();
    let (begun, sender) = (Mutex::new(begun), Mutex::new(sender));
    let scheduler = Scheduler::builder(db.address())
        .lease(seconds(1))
        .handler("work", move |run: &Context| {
            let _ = begun.lock().unwrap().send(());
            run.wait_cancelled(patience());
            let _ = sender.lock().unwrap().send(run.stop_reason());
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    scheduler.add(overdue("long")).unwrap();
    receive(&begins, "a start");
    std::fs::remove_file(db.file()).unwrap();
    assert_eq!(receive(&receiver, "an event"), Some(duly::StopReason::Shutdown));
    assert!(matches!(scheduler.wait(), Err(Error::UnusableDatabase { .. })));
}

/// What a handler has left behind, such as a thread, waits for the end of its attempt.
#[test]
fn a_copy_of_the_context_of_an_attempt_that_failed_is_asked_to_stop() {
    let db = TestDb::new();
    let (sender, reasons) = channel();
    let sender = Mutex::new(sender);
    let leave = move |run: &Context| {
        let (copy, sender) = (run.clone(), sender.lock().unwrap().clone());
        std::thread::spawn(move || {
            copy.wait_cancelled(patience());
            let _ = sender.send((copy.attempt(), copy.stop_reason()));
        });
        if run.attempt() == 1 { Err(BoxError::from("the thread goes on")) } else { Ok(()) }
    };
    let scheduler = Scheduler::builder(db.address()).handler("work", leave).start().unwrap();
    scheduler.add(retry_soon(overdue("leaves"), 2)).unwrap();
    for attempt in 1..=2 {
        assert_eq!(receive(&reasons, "a reason"), (attempt, Some(duly::StopReason::Over)));
    }
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[test]
fn invalid_settings_are_refused_by_name() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let fine = |_: &Context| Ok::<_, Error>(());
    let refusals = [
        (Scheduler::builder(db.address()).workers(0).start(), "workers"),
        (Scheduler::builder(db.address()).workers(257).start(), "workers"),
        (Scheduler::builder(db.address()).lease(seconds(0)).start(), "lease"),
        (Scheduler::builder(db.address()).poll(seconds(86_400)).start(), "poll"),
        (Scheduler::builder(db.address()).handler("a", fine).handler("a", fine).start(), "handler"),
        (Scheduler::builder(db.address()).handler("", fine).start(), "handler"),
    ];
    for (refused, expected) in refusals {
        match refused {
            Err(Error::InvalidConfig { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert!(!db.file().exists(), "nothing was made for a scheduler that cannot start");
}

#[test]
fn the_number_of_turns_grows_unless_the_loop_is_blocked() {
    let (db, gate) = (TestDb::new(), Gate::default());
    let scheduler = Scheduler::builder(db.address())
        .poll(Duration::from_millis(10))
        .clock(Held(SystemClock::new(), gate.clone()))
        .start()
        .expect("a scheduler");
    let grows = || {
        let before = scheduler.turns();
        eventually("a turn", || scheduler.turns() > before + 2);
    };
    grows();
    gate.close();
    gate.holds_one();
    let before = scheduler.turns();
    // Ten poll intervals, in which nothing happens: there is no event to wait for.
    assert_eq!(scheduler.ending().wait_timeout(Duration::from_millis(100)), None);
    assert_eq!(scheduler.turns(), before, "the loop waits for the clock");
    gate.open();
    grows();
    scheduler.drain();
    eventually("it stops", || scheduler.has_stopped());
    let last = scheduler.turns();
    assert!(last > before);
}

#[test]
fn a_shutdown_without_patience_ends_the_loop_and_leaves_nothing_if_nothing_runs() {
    let db = TestDb::new();
    for _ in 0..10 {
        let scheduler = Scheduler::builder(db.address()).start().unwrap();
        let ending = scheduler.ending();
        assert_eq!(scheduler.shutdown(Duration::ZERO).unwrap().unfinished, 0);
        // A slow database has not recorded it yet.
        assert_eq!(ending.wait_timeout(patience()), Some(Ok(())));
        assert_eq!(db.number::<u32>("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), 0);
    }
}

fn ended_by_drop(scheduler: Scheduler) -> usize {
    drop(scheduler);
    1
}

/// As when a user asks a bot to quit: its handler owns the scheduler.
#[test]
fn a_handler_that_ends_its_own_scheduler_does_not_wait_for_itself() {
    for shuts_down in [true, false] {
        let (db, own) = (TestDb::new(), Arc::new(Mutex::new(None::<Scheduler>)));
        let (sender, ended) = channel();
        let (taken, sender) = (own.clone(), Mutex::new(sender));
        let quit = move |_: &Context| {
            let scheduler = taken.lock().unwrap().take().expect("the scheduler");
            let before = std::time::Instant::now();
            let unfinished =
                if shuts_down { scheduler.shutdown(patience())?.unfinished } else { ended_by_drop(scheduler) };
            sender.lock().unwrap().send((unfinished, before.elapsed())).map_err(BoxError::from)
        };
        let scheduler = Scheduler::builder(db.address()).handler("work", quit).start().unwrap();
        let (client, ending) = (scheduler.client().clone(), scheduler.ending());
        own.lock().unwrap().replace(scheduler);
        client.add(overdue("quits").at_most_once()).unwrap();
        let (unfinished, took) = receive(&ended, "its end");
        // The drop would wait for 30 s: here the time is the subject.
        assert!(unfinished == 1 && took < patience() / 3, "{took:?}");
        assert_eq!(ending.wait_timeout(patience()), Some(Ok(())));
        assert_eq!(db.rows("SELECT status FROM task_runs"), ["succeeded"]);
        db.assert_sound();
    }
}

/// So are its other handlers, which work until they are asked to stop.
#[test]
fn a_handler_that_ends_its_own_scheduler_is_asked_to_stop_at_the_deadline_and_so_are_the_others() {
    let (db, own) = (TestDb::new(), Arc::new(Mutex::new(None::<Scheduler>)));
    let (begun, begins) = channel();
    let (taken, begun) = (own.clone(), Mutex::new(begun));
    let listen = move |run: &Context| {
        begun.lock().unwrap().send(())?;
        Ok::<_, BoxError>(run.wait_cancelled(2 * patience()))
    };
    let quit = move |run: &Context| {
        let scheduler = taken.lock().unwrap().take().expect("the scheduler");
        let unfinished = scheduler.shutdown(Duration::from_millis(10))?.unfinished;
        Ok::<_, BoxError>((unfinished, run.wait_cancelled(2 * patience())))
    };
    let scheduler =
        Scheduler::builder(db.address()).handler("listen", listen).handler("quit", quit).workers(2).start().unwrap();
    let (client, ending) = (scheduler.client().clone(), scheduler.ending());
    own.lock().unwrap().replace(scheduler);
    client.add(overdue("listens").handler("listen")).unwrap();
    receive(&begins, "its begin");
    client.add(overdue("quits").handler("quit")).unwrap();
    assert_eq!(ending.wait_timeout(patience()), Some(Ok(())));
    assert_eq!(
        db.rows("SELECT status || ' ' || result FROM task_runs ORDER BY id"),
        ["succeeded true", "succeeded [2,true]"]
    );
    db.assert_sound();
}
