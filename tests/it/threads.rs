//! The scheduler with its threads: handlers that fail, panic, hang, or are running at shutdown.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{
    AttemptOutcome, BoxError, Cancel, Clock, Context, Error, Event, Failure, Misfire, NewTask, Now, RetryPolicy,
    RunStatus, Scheduler, SystemClock,
};

use crate::fixtures::{
    REFUSE, TestDb, at, eventually, eventually_counts, held, is_of_sqlite, joined, listen, overdue, patience, receive,
    receive_until, seconds, wait_for_status,
};

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
fn a_panic_is_a_failed_attempt_and_the_worker_continues() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let scheduler = Scheduler::builder(db.address())
        .workers(1)
        .observe(observer)
        .handler("work", |run: &Context| match run.task() {
            "bad" => panic!("no such chat"),
            _ => Ok::<_, Error>(()),
        })
        .start()
        .unwrap();
    scheduler.add(overdue("bad").at_most_once()).unwrap();
    scheduler.add(overdue("good").priority(3)).unwrap();
    let ended = |task: &str| loop {
        match receive(&events, "an event") {
            Event::Finished { claim, status, .. } if claim.task == task => return status,
            _ => {}
        }
    };
    assert_eq!(ended("bad"), RunStatus::Dead);
    assert_eq!(ended("good"), RunStatus::Succeeded);
    let attempts = scheduler.attempts(scheduler.history("bad", 1).unwrap()[0].id).unwrap();
    assert_eq!(attempts[0].outcome, AttemptOutcome::Panicked);
    assert!(attempts[0].error.as_ref().unwrap().contains("no such chat"));
}

/// An error whose `Display` panics.
#[derive(Debug)]
struct PanicsWhenDisplayed;

impl std::fmt::Display for PanicsWhenDisplayed {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words for it")
    }
}

impl std::error::Error for PanicsWhenDisplayed {}

#[test]
fn an_error_that_panics_when_displayed_is_a_panic_of_the_handler() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address())
        .workers(1)
        .handler("work", |run: &Context| if run.task() == "bad" { Err(PanicsWhenDisplayed) } else { Ok(()) })
        .start()
        .unwrap();
    scheduler.add(overdue("bad").at_most_once()).unwrap();
    scheduler.add(overdue("good").priority(3)).unwrap();
    wait_for_status(&scheduler, "good", RunStatus::Succeeded);
    let bad = wait_for_status(&scheduler, "bad", RunStatus::Dead);
    let attempts = scheduler.attempts(bad.id).unwrap();
    assert_eq!(attempts[0].outcome, AttemptOutcome::Panicked);
    assert!(attempts[0].error.as_ref().unwrap().contains("no words for it"));
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
fn a_failure_after_a_cancel_request_is_a_cancellation() {
    let db = TestDb::new();
    let (begun, begins) = channel();
    let begun = Mutex::new(begun);
    let scheduler = Scheduler::builder(db.address())
        .handler("work", move |run: &Context| {
            let _ = begun.lock().unwrap().send(run.run_id());
            if run.wait_cancelled(patience()) { Err("stopped") } else { Ok(()) }
        })
        .start()
        .unwrap();
    scheduler.add(overdue("long")).unwrap();
    let run = receive(&begins, "a start");
    assert_eq!(scheduler.cancel(run).unwrap(), Cancel::Asked);
    eventually("the run is cancelled", || db.run(run).status == RunStatus::Cancelled);
    assert!(matches!(scheduler.cancel(run), Err(Error::Refused { .. })), "a final run cannot be cancelled");
}

#[test]
fn a_handler_past_its_limit_is_asked_to_stop_and_recorded_when_it_returns() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address())
        .handler("work", |run: &Context| {
            assert!(run.deadline().is_some());
            if run.wait_cancelled(patience()) { Err(Failure::give_up("half is sent")) } else { Ok(()) }
        })
        .start()
        .unwrap();
    let limit = Duration::from_millis(50);
    // Four attempts are left, but the handler has given up.
    scheduler.add(overdue("slow").timeout(limit)).unwrap();
    let slow = wait_for_status(&scheduler, "slow", RunStatus::Dead);
    let attempts = scheduler.attempts(slow.id).unwrap();
    assert_eq!(attempts[0].outcome, AttemptOutcome::TimedOut);
    assert_eq!(attempts[0].error.as_deref(), Some("it took longer than 50ms: half is sent"));
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
fn a_handler_that_returns_after_the_deadline_still_records_its_outcome() {
    let db = TestDb::new();
    let (handler, begins, gate) = gated_handler();
    let scheduler = Scheduler::builder(db.address()).handler("work", handler).start().unwrap();
    let client = scheduler.client().clone();
    client.add(overdue("long")).unwrap();
    let run = receive(&begins, "a start");
    assert_eq!(scheduler.shutdown(Duration::ZERO).unwrap().unfinished, 1);
    assert_eq!(db.run(run).status, RunStatus::Running);

    // No other scheduler takes the run: its owner is alive as long as its worker is.
    let mut other = db.builder("2027-01-01T00:00:00Z").accept("work").start().unwrap();
    assert!(other.step().unwrap().is_empty());
    gate.send(()).unwrap();
    eventually("the outcome is stored", || db.run(run).status == RunStatus::Succeeded);
    assert!(client.attempts(run).unwrap().is_empty(), "it was one attempt");
}

#[test]
fn a_shutdown_counts_an_outcome_that_could_not_be_recorded() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let builder = Scheduler::builder(db.address()).lease(db.short_lease()).observe(observer);
    let scheduler = builder.handler("work", |_: &Context| Ok::<_, Error>(())).start().unwrap();
    let client = scheduler.client().clone();
    db.execute(REFUSE);
    client.add(overdue("short")).unwrap();
    receive_until(&events, "the event", |event| matches!(event, Event::SetAside { .. }));
    assert_eq!(scheduler.shutdown(Duration::ZERO).unwrap().unfinished, 1, "its handler has returned");
    assert_eq!(db.count(RunStatus::Running), 1);

    db.execute("DROP TRIGGER refuse");
    wait_for_status(&client, "short", RunStatus::Succeeded);
}

/// The machine's clock, or one that is not set.
struct LosingClock {
    clock: SystemClock,
    is_lost: Arc<AtomicBool>,
}

impl Clock for LosingClock {
    fn now(&self) -> Now {
        let now = self.clock.now();
        if self.is_lost.load(Ordering::SeqCst) { Now { wall: at("1970-01-01T00:00:10Z"), ..now } } else { now }
    }
}

#[test]
fn a_shutdown_does_not_wait_for_the_clock_to_be_set() {
    if is_of_sqlite("the time of day is the server's") {
        return;
    }
    let db = TestDb::new();
    let (is_lost, (observer, events)) = (Arc::new(AtomicBool::new(false)), listen());
    let clock = LosingClock { clock: SystemClock::new(), is_lost: is_lost.clone() };
    let builder = Scheduler::builder(db.address()).clock(clock).observe(observer);
    let lost = is_lost.clone();
    let handler = move |_: &Context| {
        lost.store(true, Ordering::SeqCst);
        Ok::<_, Error>(())
    };
    let scheduler = builder.handler("work", handler).start().unwrap();
    let client = scheduler.client().clone();
    client.add(overdue("short")).unwrap();
    receive_until(&events, "the outcome waits", |event| matches!(event, Event::ClockNotSet));
    let (report, reported) = channel();
    std::thread::spawn(move || report.send(scheduler.shutdown(Duration::ZERO).unwrap().unfinished));
    assert_eq!(receive(&reported, "a message"), 1);
    is_lost.store(false, Ordering::SeqCst);
    wait_for_status(&client, "short", RunStatus::Succeeded);
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
fn an_observer_that_panics_stops_nothing() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.address())
        .observe(|_: &Event| panic!("an observer's own fault"))
        .handler("work", |_: &Context| Ok::<_, Error>(()))
        .start()
        .unwrap();
    for name in ["one", "two"] {
        scheduler.add(overdue(name)).unwrap();
        wait_for_status(&scheduler, name, RunStatus::Succeeded);
    }
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

/// Returns how many of two hundred short runs begin before one that may start only once, with the largest read-ahead.
fn count_begun_before(once: NewTask) -> Option<usize> {
    let db = TestDb::new();
    let (work, begins, open) = gated_handler();
    let scheduler = Scheduler::builder(db.address()).workers(2).handler("work", work).start().unwrap();
    scheduler.add_all((0..200).map(|number| overdue(&format!("bulk-{number}")))).unwrap();
    let next = || receive(&begins, "a start");
    let more = || {
        open.send(()).unwrap();
        next()
    };
    let _ = [next(), next(), more(), more(), more()];
    scheduler.add(once.at_most_once()).unwrap();
    let is_once = |run: i64| scheduler.run(run).unwrap().is_some_and(|run| run.task == "once");
    let before = (0..150).find(|_| is_once(more()));
    drop(open);
    before
}

#[test]
fn a_run_that_may_start_only_once_is_not_starved_by_read_ahead() {
    let urgent = count_begun_before(overdue("once").priority(0));
    assert!(urgent.is_some_and(|before| before < 20), "more than were read ahead when it came: {urgent:?}");
    let oldest = count_begun_before(NewTask::once("once", at("2019-01-01T00:00:00Z")).handler("work").priority(3));
    assert!(oldest.is_some_and(|before| before < 40), "it is the oldest, and every eighth goes by age: {oldest:?}");
}

#[test]
fn the_number_of_turns_grows_unless_the_loop_is_blocked() {
    let (db, client) = TestDb::with_client();
    let (begun, started) = channel();
    let (release, blocked) = channel::<()>();
    let blocked = Mutex::new(blocked);
    let scheduler = Scheduler::builder(db.address())
        .poll(Duration::from_millis(10))
        .handler("work", |_: &Context| Ok::<_, BoxError>(()))
        .observe(move |event: &Event| {
            if matches!(event, Event::Finished { .. }) {
                let _ = begun.send(());
                let _ = held(&*blocked.lock().expect("a lock"));
            }
        })
        .start()
        .expect("a scheduler");
    let grows = || {
        let before = scheduler.turns();
        eventually("a turn", || scheduler.turns() > before + 2);
    };
    grows();
    client.add(overdue("now")).expect("a task");
    receive(&started, "the event");
    let before = scheduler.turns();
    // Ten poll intervals, in which nothing happens: there is no event to wait for.
    assert!(started.recv_timeout(Duration::from_millis(100)).is_err());
    assert_eq!(scheduler.turns(), before, "the loop waits for the observer");
    drop(release);
    grows();
    scheduler.drain();
    eventually("it stops", || scheduler.has_stopped());
    let last = scheduler.turns();
    assert!(last > before);
}

#[test]
fn a_shutdown_without_patience_returns_after_the_end_of_the_loop_if_nothing_runs() {
    let db = TestDb::new();
    for _ in 0..30 {
        let scheduler = Scheduler::builder(db.address()).start().unwrap();
        assert_eq!(scheduler.shutdown(Duration::ZERO).unwrap().unfinished, 0);
        assert_eq!(db.number::<u32>("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), 0);
    }
}

#[test]
fn a_scheduler_that_drains_at_once_has_found_what_is_dead_before() {
    if is_of_sqlite("by the lock file, the first turn finds it") {
        return;
    }
    let db = TestDb::new();
    for _ in 0..30 {
        db.stepper("2026-01-01T00:00:00Z").crash();
        let scheduler = Scheduler::builder(db.address()).start().unwrap();
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        assert_eq!(db.number::<u32>("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), 0);
    }
}

/// Starts a scheduler that claims `runs` in its first turn. An observer holds that turn until the returned sender is used; the receiver shows
/// which runs have begun.
fn held_while_it_claims(db: &TestDb, runs: usize) -> (Scheduler, Sender<()>, Receiver<()>) {
    let (in_turn, turns) = channel();
    let (go_on, waits) = channel::<()>();
    let waits = Mutex::new(waits);
    let (begun, begins) = channel();
    let missed = NewTask::once("missed", at("2020-01-01T00:00:00Z")).misfire(Misfire::Skip, Duration::ZERO);
    let client = db.client();
    client.add(missed.handler("work")).unwrap();
    client.add_all((0..runs).map(|n| overdue(&format!("claimed-{n}")).handler("work"))).unwrap();
    let scheduler = Scheduler::builder(db.address())
        .workers(runs + 1)
        .handler("work", move |_: &Context| begun.send(()).map_err(BoxError::from))
        .observe(move |event: &Event| {
            if matches!(event, Event::PassedOver { .. }) {
                in_turn.send(()).unwrap();
                let _ = held(&*waits.lock().unwrap());
            }
        })
        .start()
        .unwrap();
    receive(&turns, "a turn");
    assert_eq!(db.count(RunStatus::Running), runs, "they are recorded as claimed");
    (scheduler, go_on, begins)
}

/// With twenty runs, a worker would begin one before the loop could take it back.
#[test]
fn what_a_turn_has_claimed_when_a_drain_begins_is_given_back() {
    let db = TestDb::new();
    let (scheduler, go_on, begins) = held_while_it_claims(&db, 20);
    scheduler.drain();
    go_on.send(()).unwrap();
    eventually("it has stopped", || scheduler.has_stopped());
    assert!(begins.try_recv().is_err(), "nothing has begun");
    let given_back = "SELECT count(*) FROM task_runs WHERE status = 'queued' AND (attempt, forgiven) = (1, 1)";
    assert_eq!(db.number::<u32>(given_back), 20, "they wait for the next scheduler");
    db.assert_sound();
}

/// A turn records the end of 250 attempts at most: the order to stop waiting arrives while the claims are given back in two turns.
#[test]
fn a_shutdown_without_patience_does_not_count_runs_that_have_not_begun() {
    for _ in 0..5 {
        let db = TestDb::new();
        let (scheduler, go_on, begins) = held_while_it_claims(&db, 255);
        // Before the turn ends, so that no worker begins any of them.
        scheduler.drain();
        go_on.send(()).unwrap();
        assert_eq!(scheduler.shutdown(Duration::ZERO).unwrap().unfinished, 0);
        eventually("all are given back", || db.count(RunStatus::Queued) == 255);
        assert!(begins.try_recv().is_err(), "nothing has begun");
        db.assert_sound();
    }
}

/// The retries of a refused write wait 0.1 s, then twice as long each time, up to 5 s: the sixth wait begins after 3.1 s.
#[test]
#[cfg(unix)]
fn turns_continue_in_each_poll_interval_while_a_refused_write_is_retried() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let (observer, events) = listen();
    let scheduler = Scheduler::builder(db.address())
        .poll(Duration::from_millis(10))
        .lease(seconds(1))
        .observe(observer)
        .start()
        .unwrap();
    let alias = db.home().join("alias.db");
    std::fs::hard_link(db.file(), &alias).unwrap();
    receive_until(&events, "the event", |event| matches!(event, Event::Degraded { .. }));
    // Seven seconds of turns. If each turn waited for a retry, it would be an hour.
    let before = scheduler.turns();
    eventually_counts("turns end", 700, || (scheduler.turns() - before) as usize);
    assert!(!events.try_iter().any(|event| matches!(event, Event::Recovered)), "the write is still refused");
    std::fs::remove_file(&alias).unwrap();
    receive_until(&events, "the event", |event| matches!(event, Event::Recovered));
    scheduler.shutdown(patience()).unwrap();
}
