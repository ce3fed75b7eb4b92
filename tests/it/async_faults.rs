//! Async handlers where something goes wrong beside them: dropped effects, a killed process, a lost database, a panicking clock, a
//! runtime dropped by a panic; and what a crowd of them costs the loop.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{
    BoxError, Client, Context, Error, Limits, NewTask, ProblemKind, RunStatus, Scheduler, StopReason, SystemClock,
};
use tokio::sync::{Notify, Semaphore};

use crate::async_handlers::{LeapingClock, all_final, builder, ended, runtime, waiting};
use crate::fixtures::{
    TestDb, eventually, eventually_async, eventually_counts, held, joined, overdue, patience, receive, retry_soon,
    seconds, test_process, wait_for_status,
};
use crate::panics::FaultyClock;

fn error(db: &TestDb, task: &str) -> String {
    db.ask(&format!("SELECT error FROM task_runs JOIN scheduled_tasks t ON t.id = task_id WHERE t.name = '{task}'"))
}

/// The time limit of a run that was asked to stop before does not cut the ten seconds short in which it may return.
#[test]
fn a_cancelled_attempt_is_not_dropped_at_its_time_limit() {
    let (db, runtime) = (TestDb::new(), runtime());
    let (asked, asks) = channel();
    let (asked, go) = (Mutex::new(asked), Arc::new(Semaphore::new(0)));
    let goes = go.clone();
    let tidy = move |run: Context| {
        let (asked, goes) = (asked.lock().unwrap().clone(), goes.clone());
        async move {
            asked.send(()).unwrap();
            run.cancelled().await;
            asked.send(()).unwrap();
            let _tidied = goes.acquire().await;
            Err::<(), BoxError>("tidied up".into())
        }
    };
    let (builder, _begins) = waiting(builder(&db, &runtime));
    let scheduler = builder.async_handler("tidy", tidy).start().unwrap();
    let limited = |name, handler| overdue(name).handler(handler).timeout(seconds(1)).at_most_once();
    scheduler.add(limited("cancelled", "tidy")).unwrap();
    receive(&asks, "a request");
    scheduler.cancel(scheduler.history("cancelled", 1).unwrap()[0].id).unwrap();
    receive(&asks, "a request");
    // Its time limit begins later.
    scheduler.add(limited("later", "wait")).unwrap();
    wait_for_status(&scheduler, "later", RunStatus::Dead);
    go.add_permits(1);
    wait_for_status(&scheduler, "cancelled", RunStatus::Cancelled);
    assert_eq!(error(&db, "cancelled"), "it took longer than 1s: tidied up");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

/// Another owner counted this one as dead and recovered the run; then this one claims it again.
#[test]
fn an_attempt_that_was_superseded_is_asked_to_stop_and_dropped() {
    let (db, runtime, clock) = (TestDb::new(), runtime(), LeapingClock::new());
    let alive = Arc::new(());
    let (begun, begins) = channel();
    let (begun, held) = (Mutex::new(begun), alive.clone());
    let hang = move |run: Context| {
        begun.lock().unwrap().send(run.attempt()).unwrap();
        let held = (run.attempt() == 1).then(|| held.clone());
        async move {
            if held.is_some() {
                std::future::pending::<()>().await;
            }
            Ok::<_, Error>(())
        }
    };
    let scheduler = builder(&db, &runtime).clock(clock.clone()).async_handler("hang", hang).start().unwrap();
    scheduler.add(overdue("hangs").handler("hang")).unwrap();
    assert_eq!(receive(&begins, "a start"), 1);
    let recover = "UPDATE task_runs SET status = 'failed', locked_by = NULL, locked_until = NULL, finished_at = run_at";
    db.plain().execute_batch(recover).unwrap();
    assert_eq!(receive(&begins, "a start"), 2);
    assert_eq!(Arc::strong_count(&alive), 3, "the first still runs");
    clock.eventually(&scheduler, "the first is dropped", || Arc::strong_count(&alive) == 2);
    eventually("its late outcome is kept", || ended(&db) == ["hangs|succeeded|-|superseded"]);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

/// Polls a future once, and drops it.
async fn poll_once<T>(future: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = future => panic!("it has to wait"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn an_effect_that_is_dropped_before_it_is_performed_is_not_in_doubt() {
    let (db, runtime) = (TestDb::new(), runtime());
    let performed = Arc::new(AtomicU32::new(0));
    let (file, counted) = (db.file().to_owned(), performed.clone());
    let pay = move |run: Context| {
        let (file, counted) = (file.clone(), counted.clone());
        async move {
            let charge = || async { Ok(1 + counted.fetch_add(1, Ordering::SeqCst)) };
            // The intent cannot be written while another connection writes.
            let other = rusqlite::Connection::open(file)?;
            other.execute_batch("BEGIN IMMEDIATE")?;
            poll_once(run.effect_async("charge", charge)).await;
            other.execute_batch("COMMIT")?;
            drop(other);
            run.effect_async("charge", charge).await
        }
    };
    let scheduler = builder(&db, &runtime).async_handler("pay", pay).start().unwrap();
    scheduler.add(overdue("rent").handler("pay").at_most_once()).unwrap();
    eventually("it has ended", || all_final(&db, 1));
    assert_eq!((ended(&db), performed.load(Ordering::SeqCst)), (vec!["rent|succeeded|1|-".to_owned()], 1));
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn the_value_of_a_performed_effect_is_stored_although_what_waits_for_it_is_dropped() {
    let (db, runtime) = (TestDb::new(), runtime());
    let performed = Arc::new(AtomicU32::new(0));
    let (holds, held) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let (counted, hold, is_held) = (performed.clone(), holds.clone(), held.clone());
    let pay = move |run: Context| {
        let (counted, hold, is_held, open) = (counted.clone(), hold.clone(), is_held.clone(), open.clone());
        async move {
            let attempt = run.attempt();
            let charge = || async {
                if attempt == 1 {
                    hold.notify_one();
                    is_held.notified().await;
                }
                Ok(1 + counted.fetch_add(1, Ordering::SeqCst))
            };
            let effect = run.effect_async("charge", charge);
            if attempt > 1 {
                return effect.await;
            }
            // Dropped when it has been performed, while its value waits to be stored behind the other handler.
            let is_performed = async {
                eventually_async("it is performed", || counted.load(Ordering::SeqCst) > 0).await;
            };
            tokio::select! {
                biased;
                _ = effect => panic!("it has to wait"),
                () = is_performed => {}
            }
            tokio::task::spawn_blocking(move || open.send(())).await??;
            Err("asked again".into())
        }
    };
    let hold = move |run: Context| {
        let (holds, held, gate) = (holds.clone(), held.clone(), gate.clone());
        async move {
            holds.notified().await;
            run.finish_async(move |_| {
                held.notify_one();
                crate::fixtures::held(&gate)?;
                Ok(())
            })
            .await
        }
    };
    let scheduler = builder(&db, &runtime).async_handler("pay", pay).async_handler("hold", hold).start().unwrap();
    scheduler.add_all([retry_soon(overdue("rent").handler("pay"), 3), overdue("holds").handler("hold")]).unwrap();
    eventually("both have ended", || all_final(&db, 2));
    assert_eq!(ended(&db), ["holds|succeeded|-|-", "rent|succeeded|1|failed"]);
    assert_eq!(performed.load(Ordering::SeqCst), 1);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

/// The attempt reads the clock before it begins, where the handler begins, and after it has returned.
#[test]
fn a_panic_beside_the_handler_ends_its_attempt() {
    for nth in 1..=3 {
        let db = TestDb::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("faulty").build().unwrap();
        let calls_left = Arc::new(AtomicUsize::new(nth));
        let clock = FaultyClock { clock: SystemClock::new(), threads: "faulty", calls_left: calls_left.clone() };
        let ok = |_: Context| async { Ok::<_, Error>(()) };
        let scheduler = builder(&db, &runtime).clock(clock).async_handler("ok", ok).start().unwrap();
        scheduler.add(overdue("unlucky").handler("ok").at_most_once()).unwrap();
        wait_for_status(&scheduler, "unlucky", RunStatus::Dead);
        assert_eq!(error(&db, "unlucky"), "the attempt ended before its handler did: the clock is broken", "{nth}");
        assert_eq!(calls_left.load(Ordering::SeqCst), 0);
        scheduler.add(overdue("after").handler("ok")).unwrap();
        wait_for_status(&scheduler, "after", RunStatus::Succeeded);
        // When an attempt that had not begun would have been taken back.
        scheduler.add(NewTask::once_in("later", Duration::from_millis(700)).handler("ok")).unwrap();
        wait_for_status(&scheduler, "later", RunStatus::Succeeded);
        assert_eq!(db.ask("SELECT count(*) FROM task_attempts"), "1", "{nth}");
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        db.assert_sound();
    }
}

#[test]
fn a_runtime_that_is_dropped_by_a_panic_has_shut_down() {
    let db = TestDb::new();
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (builder, begins) = waiting(builder(&db, &own));
    let scheduler = builder.start().unwrap();
    scheduler.add(overdue("runs").handler("wait").at_most_once()).unwrap();
    let application = std::thread::spawn(move || {
        own.block_on(async {
            eventually_async("it runs", || begins.try_recv().is_ok()).await;
            panic!("of the application");
        })
    });
    assert!(joined(application, "the application").is_err());
    eventually("the attempt has ended", || all_final(&db, 1));
    assert_eq!(ended(&db), ["runs|dead|-|failed"]);
    assert_eq!(error(&db, "runs"), "the runtime dropped it before it returned: it has shut down");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

/// Async handlers cannot return while their only thread waits for them. The closure that runs beside them is waited for.
#[test]
fn a_drop_on_the_only_thread_of_the_runtime_does_not_wait_for_async_handlers() {
    let db = TestDb::new();
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (builder, begins) = waiting(builder(&db, &own));
    let (began, closure_began) = channel();
    let work = move |run: &Context| {
        began.send(()).map_err(BoxError::from)?;
        // Not asked to stop: the drop waits.
        Ok::<_, BoxError>(run.wait_cancelled(Duration::from_millis(300)))
    };
    own.block_on(async {
        let scheduler = builder.handler("work", work).start().unwrap();
        scheduler.add(overdue("waits").handler("wait")).unwrap();
        eventually_async("it runs", || begins.try_recv().is_ok()).await;
        scheduler.add(overdue("works")).unwrap();
        receive(&closure_began, "a start");
        let before = std::time::Instant::now();
        drop(scheduler);
        // The drop of a scheduler waits for 30 s: here the time is the subject.
        assert!(before.elapsed() < patience() / 3, "{:?}", before.elapsed());
        assert_eq!(ended(&db), ["waits|running|-|-", "works|succeeded|false|-"]);
        eventually_async("it has ended", || ended(&db)[0] == "waits|failed|-|failed").await;
    });
    assert_eq!(error(&db, "waits"), "Some(Shutdown)");
    db.assert_sound();
}

/// So does a shutdown there. On a thread for blocking calls, beside which the runtime goes on, it waits for them.
#[test]
fn a_blocking_shutdown_on_the_only_thread_of_the_runtime_returns_before_its_deadline() {
    for beside in [false, true] {
        let db = TestDb::new();
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (builder, begins) = waiting(builder(&db, &own));
        own.block_on(async {
            let scheduler = builder.start().unwrap();
            let client = scheduler.client().clone();
            client.add(overdue("waits").handler("wait")).unwrap();
            eventually_async("it runs", || begins.try_recv().is_ok()).await;
            if beside {
                let run = client.history("waits", 1).unwrap()[0].id;
                let ends = tokio::task::spawn_blocking(move || scheduler.shutdown(patience()));
                // Its drain is seen before the handler is asked to stop, by another than the shutdown.
                client.cancel(run).unwrap();
                assert_eq!(ends.await.unwrap().unwrap().unfinished, 0);
                assert_eq!(ended(&db), ["waits|cancelled|-|cancelled"]);
                return;
            }
            let before = std::time::Instant::now();
            assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 1);
            // The deadline is the subject.
            assert!(before.elapsed() < patience() / 3, "{:?}", before.elapsed());
            eventually_async("it has ended", || ended(&db)[0] == "waits|failed|-|failed").await;
            assert_eq!(error(&db, "waits"), "Some(Shutdown)");
        });
        db.assert_sound();
    }
}

/// A handler that ends its scheduler does not wait for itself, on a runtime with other threads either.
#[test]
fn an_async_handler_that_ends_its_own_scheduler_does_not_wait_for_itself() {
    for awaits in [true, false] {
        let (db, runtime, own) = (TestDb::new(), runtime(), Arc::new(Mutex::new(None::<Scheduler>)));
        let (sender, ends) = channel();
        let (taken, sender) = (own.clone(), Arc::new(Mutex::new(sender)));
        let quit = move |_: Context| {
            let (taken, sender) = (taken.clone(), sender.clone());
            async move {
                tokio::task::yield_now().await;
                let scheduler = taken.lock().unwrap().take().expect("the scheduler");
                let before = std::time::Instant::now();
                if awaits {
                    assert_eq!(scheduler.shutdown_async(patience()).await?.unfinished, 1);
                } else {
                    drop(scheduler);
                }
                sender.lock().unwrap().send(before.elapsed()).map_err(BoxError::from)
            }
        };
        let scheduler = builder(&db, &runtime).async_handler("quit", quit).start().unwrap();
        let (client, ending) = (scheduler.client().clone(), scheduler.ending());
        own.lock().unwrap().replace(scheduler);
        client.add(overdue("quits").handler("quit").at_most_once()).unwrap();
        let took = receive(&ends, "its end");
        assert!(took < patience() / 3, "{took:?}");
        assert_eq!(ending.wait_timeout(patience()), Some(Ok(())));
        assert_eq!(ended(&db), ["quits|succeeded|-|-"]);
    }
}

/// A scheduler that stopped by itself can record no outcome: what it has claimed is left to the next.
#[test]
fn what_has_not_begun_does_not_begin_when_the_database_is_gone() {
    let db = TestDb::new();
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (builder, begins) = waiting(builder(&db, &idle));
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let begun = Arc::new(Mutex::new(BTreeSet::new()));
    let (known, from, to) = (begun.clone(), db.file().to_owned(), db.home().join("moved.db"));
    let hold = move |run: &Context| {
        known.lock().unwrap().insert(run.task().to_owned());
        if run.task() == "b-holds" {
            std::fs::rename(&from, &to)?;
            let _ = held(&gate);
        }
        Ok::<_, BoxError>(())
    };
    let scheduler = builder.workers(1).poll(Duration::from_millis(10)).handler("hold", hold).start().unwrap();
    // When the first has ended, the second begins and the third is read ahead.
    let closures = ["a-short", "b-holds", "c-ahead"].map(|name| overdue(name).handler("hold"));
    scheduler.add_all(closures.into_iter().chain([overdue("async").handler("wait")])).unwrap();
    eventually("the scheduler has stopped", || scheduler.has_stopped());
    assert!(scheduler.wait().unwrap_err().to_string().contains("agent.db"));
    drop(open);
    // Everything that a thread or the runtime still had to begin would begin now.
    idle.block_on(async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    assert!(begins.try_recv().is_err(), "the async handler has begun");
    eventually("the workers have ended", || Arc::strong_count(&begun) == 1);
    assert_eq!(*begun.lock().unwrap(), BTreeSet::from(["a-short".to_owned(), "b-holds".to_owned()]));
}

/// Two attempts that may start once are claimed together. The first kills the process while it is polled for the first time; the
/// runtime has no other thread, so the second was claimed and has not begun.
#[test]
#[cfg(unix)]
fn of_a_killed_process_the_attempts_that_had_not_begun_are_released() {
    use std::os::unix::process::ExitStatusExt;
    const FOLDER: &str = "DULY_ASYNC_KILLED";
    const NAME: &str = "async_faults::of_a_killed_process_the_attempts_that_had_not_begun_are_released";
    let tasks = ["a", "b"];
    if let Some(folder) = std::env::var_os(FOLDER) {
        let file = std::path::Path::new(&folder).join("agent.db");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let die = |_: Context| async {
                let _ = crate::sidecar::kill(&["-9", &std::process::id().to_string()]).status();
                std::future::pending::<Result<(), Error>>().await
            };
            let _scheduler = Scheduler::builder(&file).async_handler("die", die).start().unwrap();
            std::future::pending::<()>().await;
        });
    }
    let db = TestDb::new();
    db.client().add_all(tasks.map(|task| overdue(task).handler("die").at_most_once())).unwrap();
    let status = test_process(NAME).env(FOLDER, db.home()).stderr(std::process::Stdio::null()).status().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(db.states(), ["a|running|1", "b|running|1"]);
    let runtime = runtime();
    let live = |_: Context| async { Ok::<_, Error>(()) };
    let scheduler = builder(&db, &runtime).async_handler("die", live).start().unwrap();
    eventually("both have ended", || all_final(&db, 2));
    let mut ends = ended(&db);
    ends.iter_mut().for_each(|end| drop(end.drain(..2)));
    ends.sort();
    assert_eq!(ends, ["dead|-|lost", "succeeded|-|released"]);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn what_a_crowd_reports_at_once_is_written_together() {
    const CROWD: usize = 300;
    let (db, runtime) = (TestDb::new(), runtime());
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (goes, begins) = (go.clone(), begun.clone());
    let report = move |run: Context| {
        let (goes, begins) = (goes.clone(), begins.clone());
        async move {
            let going = goes.notified();
            tokio::pin!(going);
            going.as_mut().enable();
            begins.fetch_add(1, Ordering::SeqCst);
            going.await;
            run.progress("half");
            run.cancelled().await;
            Ok::<_, Error>(())
        }
    };
    let scheduler = builder(&db, &runtime).poll(seconds(10)).async_handler("report", report).start().unwrap();
    scheduler.add_all((0..CROWD).map(|n| overdue(&format!("reports-{n}")).handler("report"))).unwrap();
    eventually_counts("all have begun", CROWD, || begun.load(Ordering::SeqCst));
    let before = scheduler.turns();
    go.notify_waiters();
    let reported = "SELECT count(*) FROM task_runs WHERE progress = 'half'";
    eventually_counts("all have reported", CROWD, || db.number(reported));
    let turns = scheduler.turns() - before;
    assert!(turns <= CROWD as u64 / 3, "{turns} turns");
    scheduler.interrupt();
    eventually("it has stopped", || scheduler.has_stopped());
}

#[test]
fn a_client_that_is_awaited_outside_of_a_runtime_says_so() {
    let db = TestDb::new();
    let client = duly::AsyncClient::from(db.client());
    let mut call = std::pin::pin!(client.tasks());
    let polled = call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert!(error.to_string().contains("no reactor running"), "{error}");
}

/// What `check` finds if nothing may wait: the kinds and texts.
fn found(client: &Client) -> Vec<(ProblemKind, String)> {
    let strict = Limits { overdue: Duration::ZERO, ..Limits::default() };
    client.check(&strict).unwrap().into_iter().map(|one| (one.kind, format!("{}: {}", one.found, one.advice))).collect()
}

#[test]
fn a_runtime_that_has_shut_down_is_a_problem_at_once() {
    let (db, own) = (TestDb::new(), runtime());
    let (builder, _begins) = waiting(builder(&db, &own));
    let scheduler = builder.start().unwrap();
    own.shutdown_background();
    scheduler.add(overdue("waits").handler("wait").at_most_once()).unwrap();
    let is_named = || found(&scheduler).iter().any(|(kind, _)| *kind == ProblemKind::Worker);
    eventually("it is a problem", is_named);
    // What the application reports stands beside it.
    scheduler.set_problems(vec!["the mail server is full".to_owned()]);
    eventually("both are problems", || found(&scheduler).len() == 3);
    scheduler.set_problems(Vec::new());
    eventually("it is left", || found(&scheduler).len() == 2);
    let found = found(&scheduler);
    assert!(
        found[1].1.contains("reports: the runtime of the async handlers has shut down: this scheduler"),
        "{found:?}"
    );
    let (kind, waits) = &found[0];
    assert_eq!(*kind, ProblemKind::Overdue, "{waits}");
    assert!(
        waits.ends_with("a scheduler that is alive reports why it starts nothing: remove the cause, and restart it"),
        "{waits}"
    );
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[test]
fn a_runtime_that_polls_nothing_for_ten_seconds_is_a_problem_until_it_polls() {
    let (db, clock) = (TestDb::new(), LeapingClock::new());
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (builder, begins) = waiting(builder(&db, &idle));
    let scheduler = builder.clock(clock.clone()).start().unwrap();
    scheduler.add(overdue("waits").handler("wait")).unwrap();
    let is_named = || found(&scheduler).iter().any(|(_, text)| text.contains("polls nothing"));
    clock.eventually(&scheduler, "it is a problem", is_named);
    idle.block_on(async {
        eventually_async("it begins", || begins.try_recv().is_ok()).await;
        eventually_async("it is none", || !is_named()).await;
        scheduler.interrupt();
        eventually_async("the scheduler has stopped", || scheduler.has_stopped()).await;
    });
}

/// The closure of `finish_async` runs while the attempt fails. The copy of its context reads that the attempt is over.
#[test]
fn what_finish_commits_after_its_future_was_dropped_is_the_end_of_the_attempt() {
    for commits in [true, false] {
        let (db, runtime) = (TestDb::new(), runtime());
        let (open, gate) = crossbeam_channel::bounded::<()>(0);
        let copy = Arc::new(Mutex::new(None));
        let kept = copy.clone();
        let pay = move |run: Context| {
            let (gate, kept) = (gate.clone(), kept.clone());
            async move {
                let begun = Arc::new(Notify::new());
                let begins = begun.clone();
                let finish = run.finish_async(move |_| {
                    begins.notify_one();
                    held(&gate)?;
                    if commits { Ok(7) } else { Err("no rows".into()) }
                });
                tokio::select! {
                    biased;
                    _ = finish => panic!("it has to wait"),
                    () = begun.notified() => {}
                }
                kept.lock().unwrap().replace(run.clone());
                Err::<i64, BoxError>("not awaited".into())
            }
        };
        let scheduler = builder(&db, &runtime).async_handler("pay", pay).start().unwrap();
        scheduler.add(overdue("rent").handler("pay").at_most_once()).unwrap();
        let is_over = || copy.lock().unwrap().as_ref().and_then(Context::stop_reason) == Some(StopReason::Over);
        eventually("the attempt has ended", is_over);
        open.send(()).unwrap();
        let run = copy.lock().unwrap().take().unwrap();
        runtime.block_on(run.cancelled());
        eventually("it is recorded", || all_final(&db, 1));
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        assert_eq!(ended(&db), [if commits { "rent|succeeded|7|-" } else { "rent|dead|-|failed" }]);
        assert!(run.finish(|_| Ok(8)).unwrap_err().to_string().ends_with("its attempt has ended"));
        db.assert_sound();
    }
}
