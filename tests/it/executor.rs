//! Executors: attempts that run outside of the scheduler's threads, here in the hands of the test.

#[cfg(target_os = "linux")]
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use duly::executor::{Delegated, EffectState, Executor, Orphan, Waker};
use duly::{BoxError, Builder, Context, Error, Failure, Limits, ProblemKind, RunStatus, Scheduler, StopReason};

use crate::fixtures::{
    TestDb, eventually, eventually_counts, joined, overdue, patience, problems, retry_soon, seconds, wait_for_status,
};

type EndOrphan = Box<dyn Fn(&Orphan) + Send + Sync>;

/// Keeps the attempts that it takes until the test ends them.
#[derive(Default)]
struct Hands {
    limit: usize,
    names: Mutex<Arc<BTreeSet<String>>>,
    waker: OnceLock<Waker>,
    held: Mutex<BTreeMap<(i64, u32), Delegated>>,
    /// The most that it held at once.
    most: AtomicUsize,
    stops: Mutex<Vec<(i64, u32, StopReason)>>,
    orphans: Mutex<Vec<Orphan>>,
    /// Receives each request to stop, if set.
    stopped: OnceLock<Sender<StopReason>>,
    /// Ends an orphan, if set.
    end: OnceLock<EndOrphan>,
}

impl Executor for Hands {
    fn attach(&self, waker: Waker) {
        assert!(self.waker.set(waker).is_ok(), "attached twice");
    }

    fn handlers(&self) -> Arc<BTreeSet<String>> {
        self.names.lock().unwrap().clone()
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.held.lock().unwrap().len())
    }

    fn start(&self, attempt: Delegated) {
        let id = (attempt.context().run_id(), attempt.context().attempt());
        let mut held = self.held.lock().unwrap();
        assert!(held.insert(id, attempt).is_none(), "{id:?} was handed over twice");
        self.most.fetch_max(held.len(), Ordering::SeqCst);
    }

    fn stop(&self, run: i64, attempt: u32, reason: StopReason) {
        self.stops.lock().unwrap().push((run, attempt, reason));
        self.stopped.get().iter().for_each(|stopped| _ = stopped.send(reason));
    }

    fn end_orphan(&self, orphan: &Orphan) {
        self.orphans.lock().unwrap().push(orphan.clone());
        self.end.get().iter().for_each(|end| end(orphan));
    }
}

impl Hands {
    fn new(limit: usize, names: &[&str]) -> Arc<Self> {
        let hands = Hands { limit, ..Hands::default() };
        hands.set_names(names);
        Arc::new(hands)
    }

    fn set_names(&self, names: &[&str]) {
        *self.names.lock().unwrap() = Arc::new(names.iter().map(|name| (*name).to_owned()).collect());
        self.waker.get().iter().for_each(|waker| waker.wake());
    }

    fn holds(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Waits for an attempt, and takes it.
    fn take(&self) -> Delegated {
        let mut taken = None;
        eventually("an attempt is handed over", || {
            taken = self.held.lock().unwrap().pop_first();
            taken.is_some()
        });
        taken.unwrap().1
    }

    fn stops(&self) -> Vec<(i64, u32, StopReason)> {
        self.stops.lock().unwrap().clone()
    }
}

fn builder(db: &TestDb, executors: &[&Arc<Hands>]) -> Builder {
    let builder = Scheduler::builder(db.address()).workers(2).poll(Duration::from_millis(50));
    executors.iter().fold(builder, |builder, executor| builder.executor((*executor).clone()))
}

fn failed(error: &str) -> Result<Option<String>, BoxError> {
    Err(error.into())
}

#[test]
fn outcomes_are_those_of_handlers() {
    let (db, hands) = (TestDb::new(), Hands::new(1, &["mail"]));
    let scheduler = builder(&db, &[&hands]).backoff("work", |_| None).handler("work", |_: &Context| Ok::<_, Error>(()));
    let scheduler = scheduler.start().unwrap();
    let ended = |name: &str, end: &dyn Fn(Delegated)| {
        scheduler.add(retry_soon(overdue(name).handler("mail").payload(7), 2)).unwrap();
        end(hands.take());
        wait_for_status(&scheduler, name, if name == "dead" { RunStatus::Dead } else { RunStatus::Succeeded })
    };
    let run = ended("result", &|attempt| {
        assert_eq!((attempt.context().task(), attempt.context().payload::<u32>().unwrap()), ("result", 7));
        attempt.context().progress("half way");
        attempt.end(Ok(Some("[1]".into())));
    });
    assert_eq!((run.result.as_deref(), run.progress.as_deref(), run.attempt), (Some("[1]"), Some("half way"), 1));
    let run = ended("retried", &|attempt| {
        attempt.end(failed("no route to host"));
        hands.take().end(Ok(None));
    });
    assert_eq!((run.attempt, run.forgiven), (2, 0));
    let run = ended("dead", &|attempt| attempt.end(Err(Failure::give_up("no address").into())));
    assert_eq!((run.attempt, run.error.as_deref()), (1, Some("no address")));
    let run = ended("dropped", &|attempt| {
        drop(attempt);
        hands.take().end(Ok(None));
    });
    assert_eq!((run.attempt, run.forgiven), (2, 0));
    let error = "SELECT error FROM task_attempts WHERE run_id = ";
    assert_eq!(db.ask(&format!("{error}{}", run.id)), "the executor dropped it before it ended");
    let run = ended("released", &|attempt| {
        attempt.release();
        hands.take().end(Ok(None));
    });
    assert_eq!((run.attempt, run.forgiven), (2, 1), "the first attempt does not count");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert!(!db.lock_folder().exists() || db.lock_files().is_empty(), "{:?}", db.lock_files());
    db.assert_sound();
}

#[test]
fn handlers_may_appear_and_each_name_has_one_place() {
    let db = TestDb::new();
    let (first, second) = (Hands::new(4, &[]), Hands::new(4, &["mail", "work"]));
    let scheduler = builder(&db, &[&first, &second]).poll(seconds(60));
    let scheduler = scheduler.handler("work", |_: &Context| Ok::<_, Error>("here")).start().unwrap();
    scheduler.add(overdue("late").handler("chat")).unwrap();
    scheduler.add(overdue("own").handler("work")).unwrap();
    assert_eq!(wait_for_status(&scheduler, "own", RunStatus::Succeeded).result.as_deref(), Some("\"here\""));
    assert!(scheduler.is_idle().unwrap(), "nothing here has a handler for the task that is left");
    first.set_names(&["chat", "mail"]);
    let late = first.take();
    assert_eq!(late.context().task(), "late");
    assert!(!scheduler.is_idle().unwrap());
    scheduler.add(overdue("mail").handler("mail")).unwrap();
    first.take().end(Ok(None));
    wait_for_status(&scheduler, "mail", RunStatus::Succeeded);
    // A name that is given up belongs to the next that has it; what runs goes on.
    first.set_names(&[]);
    scheduler.add(overdue("again").handler("mail")).unwrap();
    second.take().end(Ok(None));
    wait_for_status(&scheduler, "again", RunStatus::Succeeded);
    late.end(Ok(None));
    wait_for_status(&scheduler, "late", RunStatus::Succeeded);
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn an_attempt_is_asked_to_stop_once_with_the_first_reason() {
    let (db, hands) = (TestDb::new(), Hands::new(4, &["mail"]));
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    let task = |name: &str| overdue(name).handler("mail").at_most_once();
    scheduler.add(task("slow").timeout(Duration::from_millis(20))).unwrap();
    let slow = hands.take();
    assert!(slow.context().deadline().is_some());
    eventually("its time is up", || hands.stops() == [(1, 1, StopReason::TimeUp)]);
    scheduler.cancel(1).unwrap();
    scheduler.add(task("late").timeout(Duration::from_millis(20))).unwrap();
    let late = hands.take();
    eventually("its time is up, too", || hands.stops().len() == 2);
    scheduler.add(task("cancelled")).unwrap();
    let cancelled = hands.take();
    scheduler.cancel(3).unwrap();
    eventually("the user's request arrives", || hands.stops().contains(&(3, 1, StopReason::Asked)));
    assert_eq!(cancelled.context().stop_reason(), Some(StopReason::Asked));
    assert_eq!(hands.stops().len(), 3, "the first reason stands: {:?}", hands.stops());
    slow.end(failed("gave up"));
    late.end(Ok(None));
    cancelled.end(failed("stopped"));
    wait_for_status(&scheduler, "late", RunStatus::Succeeded);
    wait_for_status(&scheduler, "cancelled", RunStatus::Cancelled);
    wait_for_status(&scheduler, "slow", RunStatus::Cancelled);
    let errors =
        db.rows("SELECT r.id, a.outcome, a.error FROM task_attempts a JOIN task_runs r ON r.id = a.run_id ORDER BY 1");
    assert_eq!(errors[0], "1|timed_out|it took longer than 20ms: gave up");
    assert!(db.run(2).error.unwrap().starts_with("it ended late"));
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn a_shutdown_interrupts_what_is_dropped_then() {
    let (db, hands) = (TestDb::new(), Hands::new(4, &["mail"]));
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    scheduler.add_all(["dropped", "ended"].map(|name| overdue(name).handler("mail"))).unwrap();
    let attempts = [hands.take(), hands.take()];
    // The attempts are not ended within the deadline.
    assert_eq!(scheduler.shutdown(Duration::from_millis(10)).unwrap().unfinished, 2);
    assert_eq!(hands.stops().iter().map(|(.., reason)| *reason).collect::<Vec<_>>(), [StopReason::Shutdown; 2]);
    let [dropped, ended] = attempts;
    drop(dropped);
    ended.end(Ok(None));
    eventually("the scheduler has stopped", || db.registered_schedulers() == 0);
    assert_eq!(db.states(), ["dropped|failed|1", "ended|succeeded|1"]);
    assert_eq!((db.run(1).forgiven, db.outcomes()), (1, vec!["1|failed".to_owned()]));
    assert!(hands.waker.get().unwrap().share_input().is_err(), "its scheduler has ended");
    db.assert_sound();
}

#[test]
fn an_executor_that_panics_ends_no_loop() {
    struct Panics;
    impl Executor for Panics {
        fn attach(&self, _: Waker) {
            panic!("attach");
        }
        fn handlers(&self) -> Arc<BTreeSet<String>> {
            Arc::new(["mail".to_owned()].into())
        }
        fn free(&self) -> usize {
            usize::MAX
        }
        fn start(&self, attempt: Delegated) {
            panic!("start of {}", attempt.context().task());
        }
        fn stop(&self, _: i64, _: u32, _: StopReason) {
            panic!("stop");
        }
    }
    let db = TestDb::new();
    let scheduler = builder(&db, &[]).executor(Arc::new(Panics)).start().unwrap();
    // More than the loop may have under way: it never waits for itself.
    scheduler
        .add_all((0..1500).map(|number| overdue(&format!("task:{number}")).handler("mail").at_most_once()))
        .unwrap();
    eventually_counts("all have failed", 1500, || db.count(RunStatus::Dead));
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn a_caller_that_asks_for_idleness_meets_no_panic_of_an_executor() {
    struct Panics;
    impl Executor for Panics {
        fn attach(&self, _: Waker) {}
        fn handlers(&self) -> Arc<BTreeSet<String>> {
            panic!("handlers");
        }
        fn free(&self) -> usize {
            0
        }
        fn start(&self, _: Delegated) {}
        fn stop(&self, _: i64, _: u32, _: StopReason) {}
    }
    let (db, hands) = (TestDb::new(), Hands::new(1, &["mail"]));
    let scheduler = builder(&db, &[&hands]).executor(Arc::new(Panics)).start().unwrap();
    assert!(scheduler.is_idle().unwrap());
    scheduler.add(overdue("mail").handler("mail")).unwrap();
    let attempt = hands.take();
    assert!(!scheduler.is_idle().unwrap(), "the handlers of the other executor count");
    attempt.end(Ok(None));
    drop(scheduler);
    db.assert_sound();
}

/// Only async handlers need the thread that waits for the end of the scheduler.
#[cfg(feature = "tokio")]
#[test]
fn a_drop_on_the_only_thread_of_a_runtime_waits_for_executors() {
    let (db, hands) = (TestDb::new(), Hands::new(1, &["mail"]));
    let (sender, stopped) = std::sync::mpsc::channel();
    assert!(hands.stopped.set(sender).is_ok());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let scheduler = builder(&db, &[&hands]).start().unwrap();
        scheduler.add(overdue("mail").handler("mail")).unwrap();
        let attempt = hands.take();
        let ends = std::thread::spawn(move || {
            let asked = stopped.recv_timeout(Duration::from_millis(300));
            attempt.end(Ok(None));
            asked
        });
        drop(scheduler);
        assert!(joined(ends, "the attempt").unwrap().is_err(), "it was asked to stop at once");
    });
    assert_eq!(db.states(), ["mail|succeeded|1"]);
    db.assert_sound();
}

#[test]
fn effects_are_performed_once_or_are_in_doubt() {
    let (db, hands) = (TestDb::new(), Hands::new(4, &["pay"]));
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    scheduler.add(retry_soon(overdue("pay").handler("pay"), 10)).unwrap();
    let kinds =
        |error: BoxError| match error.downcast_ref::<Failure>().and_then(|one| one.error().downcast_ref::<Error>()) {
            Some(Error::Refused { reason, .. }) => format!("refused: {reason}"),
            Some(Error::InvalidEffect { .. }) => "invalid".to_owned(),
            _ => error.to_string(),
        };
    let first = hands.take();
    assert_eq!(first.begin_effect("charge").unwrap(), EffectState::Begin);
    assert_eq!(kinds(first.begin_effect("charge").unwrap_err()), "refused: this attempt is at it already");
    // Without a space that one of the stores removes or adds.
    first.record_effect("charge", r#"["receipt"]"#).unwrap();
    assert_eq!(first.begin_effect("charge").unwrap(), EffectState::Done(r#"["receipt"]"#.into()));
    assert_eq!(kinds(first.record_effect("other", "1").unwrap_err()), "refused: this attempt has not begun it");
    assert_eq!(kinds(first.undo_effect("other").unwrap_err()), "refused: this attempt has not begun it");
    for key in ["", &"k".repeat(201)] {
        assert!(kinds(first.begin_effect(key).unwrap_err()).starts_with("refused: expected a key of 1 to 200 bytes"));
    }
    assert_eq!(first.begin_effect("ship").unwrap(), EffectState::Begin);
    assert_eq!(first.begin_effect("undone").unwrap(), EffectState::Begin);
    first.undo_effect("undone").unwrap();
    assert_eq!(first.begin_effect("large").unwrap(), EffectState::Begin);
    assert_eq!(kinds(first.record_effect("large", &format!("\"{}\"", "x".repeat(256 * 1024))).unwrap_err()), "invalid");
    assert_eq!(first.begin_effect("text").unwrap(), EffectState::Begin);
    assert_eq!(kinds(first.record_effect("text", "no JSON").unwrap_err()), "invalid");
    let copy = first.context().clone();
    first.end(failed("the printer is out of paper"));
    assert!(copy.effect("late", || Ok(())).is_err(), "its attempt has ended");

    let second = hands.take();
    assert_eq!(second.context().attempt(), 2);
    assert_eq!(second.begin_effect("charge").unwrap(), EffectState::Done(r#"["receipt"]"#.into()));
    for doubtful in ["ship", "large", "text"] {
        assert_eq!(second.begin_effect(doubtful).unwrap(), EffectState::InDoubt, "{doubtful}");
    }
    assert_eq!(second.begin_effect("undone").unwrap(), EffectState::Begin);
    second.record_effect("ship", "null").unwrap();
    assert_eq!(second.begin_effect("ship").unwrap(), EffectState::Done("null".into()));
    // Another scheduler has taken the run: nothing is begun any more.
    db.execute("UPDATE task_runs SET attempt = 3");
    let superseded = second.begin_effect("refund").unwrap_err();
    assert!(matches!(superseded.downcast_ref::<Error>(), Some(Error::Superseded { .. })), "{superseded}");
    drop((second, scheduler));
}

#[test]
fn problems_of_the_application_are_checked_while_its_scheduler_lives() {
    let (db, hands) = (TestDb::new(), Hands::new(1, &["mail"]));
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    let client = db.client();
    assert_eq!(problems(&client), [""; 0]);
    scheduler.set_problems(vec!["the worker \"mail\" was started ten times in a row\nin vain".into(), "x".repeat(400)]);
    eventually("they are stored", || problems(&client).len() == 2);
    let found = client.check(&Limits::default()).unwrap();
    assert_eq!(found[0].kind, ProblemKind::Worker);
    assert!(
        found[0].found.ends_with("reports: the worker \"mail\" was started ten times in a row in vain"),
        "{found:?}"
    );
    assert!(found[0].advice.starts_with("see the log of this scheduler"), "{found:?}");
    assert!(found[1].found.ends_with(&format!(": {}", "x".repeat(300))), "{found:?}");
    scheduler.set_problems((0..30).map(|number| number.to_string()).collect());
    eventually("the newest count, at most 20", || problems(&client).len() == 20);
    scheduler.set_problems(Vec::new());
    eventually("there are none", || problems(&client).is_empty());
    assert_eq!(db.ask("SELECT count(problems) FROM scheduler_instances"), "0");

    // Its runs wait because it is full, not because no scheduler has their handler.
    scheduler.add_all(["one", "two"].map(|name| overdue(name).handler("mail"))).unwrap();
    eventually("one is handed over", || hands.holds() == 1);
    let at_once = Limits { overdue: Duration::ZERO, ..Limits::default() };
    eventually("the other waits", || !client.check(&at_once).unwrap().is_empty());
    let found = client.check(&at_once).unwrap();
    assert_eq!(found[0].kind, ProblemKind::Overdue, "{found:?}");
    assert!(found[0].advice.contains("all workers busy"), "{found:?}");

    scheduler.set_problems(vec!["it is broken".into()]);
    eventually("it is stored", || db.ask("SELECT problems FROM scheduler_instances") == r#"["it is broken"]"#);
    hands.take().end(Ok(None));
    hands.take().end(Ok(None));
    drop(scheduler);
    assert_eq!(problems(&client), [""; 0], "the scheduler has ended");
    db.assert_sound();
}
