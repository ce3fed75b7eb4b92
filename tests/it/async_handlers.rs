//! Async handlers on a tokio runtime: outcomes, panics, time limits, requests to stop, shutdown, a lost runtime, many at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::command::CommandContext;
use duly::{
    AsyncClient, AsyncJob, BoxError, Builder, Client, Clock, Context, Error, FailedAttempt, Failure, JobKind, NewTask,
    Now, Run, RunStatus, Scheduler, SystemClock,
};
use tokio::runtime::Runtime;

use crate::fixtures::{
    Arrivals, TestDb, eventually, eventually_counts, finish_async, held, is_of_sqlite, overdue, patience, receive,
    seconds, turns_pass,
};

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The machine's clock, which a test sets forward instead of waiting for the end of a future that does not stop.
#[derive(Clone)]
pub(crate) struct LeapingClock(Arc<Leaps>);

#[derive(Debug)]
struct Leaps {
    clock: SystemClock,
    stands_at: Option<Now>,
    seconds: AtomicU64,
}

impl LeapingClock {
    pub(crate) fn new() -> Self {
        Self::of(None)
    }

    /// A clock that only moves by its leaps: on a slow machine no time limit passes early.
    fn standing() -> Self {
        Self::of(Some(SystemClock::new().now()))
    }

    fn of(stands_at: Option<Now>) -> Self {
        LeapingClock(Arc::new(Leaps { clock: SystemClock::new(), stands_at, seconds: AtomicU64::new(0) }))
    }

    /// As [`eventually`], and a second passes before each look.
    pub(crate) fn eventually(&self, client: &Client, what: &str, mut holds: impl FnMut() -> bool) {
        eventually(what, || {
            self.leap(client);
            holds()
        });
    }

    fn leap(&self, client: &Client) {
        self.0.seconds.fetch_add(1, Ordering::SeqCst);
        client.wake();
    }
}

impl Clock for LeapingClock {
    fn now(&self) -> Now {
        let Now { wall, monotonic } = self.0.stands_at.unwrap_or_else(|| self.0.clock.now());
        let leaps = seconds(self.0.seconds.load(Ordering::SeqCst));
        Now { wall: wall + leaps, monotonic: monotonic + leaps }
    }
}

/// As [`eventually`], and lets the runtime work meanwhile.
async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(patience(), waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

pub(crate) fn builder(db: &TestDb, runtime: &Runtime) -> Builder {
    Scheduler::builder(db.address()).workers(2).poll(Duration::from_millis(50)).runtime(runtime.handle().clone())
}

/// The status of each run and the outcomes of its unsuccessful attempts, by task.
pub(crate) fn ended(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.status, ifnull(r.result, '-'), ifnull((SELECT group_concat(outcome) FROM task_attempts WHERE run_id = r.id), '-')
           FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY t.name",
    )
}

pub(crate) fn all_final(db: &TestDb, runs: u32) -> bool {
    db.number::<u32>(
        "SELECT count(*) FROM task_runs WHERE finished_at IS NOT NULL AND status NOT IN ('running', 'failed')",
    ) == runs
}

/// A handler that reports that it has begun and waits until it is asked to stop, for at most a minute.
pub(crate) fn waiting(builder: Builder) -> (Builder, Receiver<i64>) {
    let (begun, begins) = channel();
    let begun = Mutex::new(begun);
    let wait = move |run: Context| {
        begun.lock().unwrap().send(run.run_id()).unwrap();
        async move {
            tokio::select! {
                () = run.cancelled() => Err::<(), BoxError>(format!("{:?}", run.stop_reason()).into()),
                () = tokio::time::sleep(seconds(60)) => Ok(()),
            }
        }
    };
    (builder.async_handler("wait", wait), begins)
}

#[test]
fn outcomes_and_panics_are_those_of_closures() {
    let (db, runtime) = (TestDb::new(), runtime());
    let scheduler = builder(&db, &runtime)
        .async_handler("ok", |run: Context| async move {
            tokio::task::yield_now().await;
            Ok::<_, Error>(run.task().len())
        })
        .async_handler("err", |_: Context| async { Err::<(), _>(Failure::give_up("no address")) })
        .async_handler("panics", |_: Context| async {
            tokio::task::yield_now().await;
            if true {
                panic!("in the future");
            }
            Ok::<_, Error>(())
        })
        .async_handler("panics-early", |_: Context| {
            if true {
                panic!("before the future");
            }
            async { Ok::<_, Error>(()) }
        })
        .handler("thread", |_: &Context| Ok::<_, Error>(7))
        .start()
        .unwrap();
    let names = ["ok", "err", "panics", "panics-early", "thread"];
    scheduler.add_all(names.map(|name| overdue(name).handler(name).at_most_once())).unwrap();
    eventually("all have ended", || all_final(&db, 5));
    assert_eq!(
        ended(&db),
        [
            "err|dead|-|failed",
            "ok|succeeded|2|-",
            "panics|dead|-|panicked",
            "panics-early|dead|-|panicked",
            "thread|succeeded|7|-"
        ]
    );
    let error = |task: &str| {
        db.ask(&format!("SELECT error FROM task_runs JOIN scheduled_tasks t ON t.id = task_id WHERE t.name = '{task}'"))
    };
    assert_eq!(error("err"), "no address");
    assert_eq!(error("panics"), "the handler panicked: in the future");
    assert_eq!(error("panics-early"), "the handler panicked: before the future");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn a_missing_runtime_is_an_error_and_the_current_one_is_used() {
    let db = TestDb::new();
    let with = || Scheduler::builder(db.address()).async_handler("ok", |_: Context| async { Ok::<_, Error>(()) });
    let error = with().start().unwrap_err().to_string();
    assert!(error.contains(r#"expected a tokio runtime for the handler "ok""#), "{error}");
    assert!(with().handler("ok", |_: &Context| Ok::<_, Error>(())).start().is_err(), "registered twice");
    let error = with().async_limit(0).start().unwrap_err().to_string();
    assert!(error.contains("expected 1 to 10000, found 0"), "{error}");
    runtime().block_on(async {
        let scheduler = with().start().unwrap();
        let client = AsyncClient::from(scheduler.client().clone());
        client.add(overdue("ok").handler("ok")).await.unwrap();
        let succeeded = |run: &Run| run.status == RunStatus::Succeeded;
        wait_until("it has succeeded", async || client.history("ok", 1).await.unwrap().iter().any(succeeded)).await;
        assert_eq!(scheduler.shutdown_async(patience()).await.unwrap().unfinished, 0);
    });
    db.assert_sound();
}

#[test]
fn a_time_limit_resolves_cancelled_and_then_drops_the_future() {
    let (db, runtime, clock) = (TestDb::new(), runtime(), LeapingClock::standing());
    let (builder, begins) = waiting(builder(&db, &runtime));
    let (held, dropped) = channel::<()>();
    let held = Mutex::new(held);
    let hang = move |_: Context| {
        let held = held.lock().unwrap().clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, Error>(())
        }
    };
    // The handler goes with the scheduler, its sender too.
    let builder = builder.poll(seconds(60)).clock(clock.clone());
    let scheduler = builder.async_handler("hang", hang).start().unwrap();
    let limit = Duration::from_millis(30);
    scheduler.add(overdue("hangs").handler("hang").timeout(limit).at_most_once()).unwrap();
    scheduler.add(overdue("heeds").handler("wait").timeout(limit).at_most_once()).unwrap();
    scheduler.add(overdue("goes-on").handler("wait").timeout(seconds(600)).at_most_once()).unwrap();
    for _ in 0..2 {
        receive(&begins, "a start");
    }
    let of = |task: &str| scheduler.history(task, 1).unwrap().remove(0);
    eventually("all have begun", || of("hangs").status == RunStatus::Running);
    clock.leap(&scheduler);
    eventually("the one that heeds it has ended", || of("heeds").status == RunStatus::Dead);
    assert_eq!(of("heeds").error.as_deref(), Some("it took longer than 30ms: Some(TimeUp)"));
    assert_eq!(
        (of("hangs").status, of("goes-on").status),
        (RunStatus::Running, RunStatus::Running),
        "and the others not"
    );
    clock.eventually(&scheduler, "the one that does not is dropped", || of("hangs").status == RunStatus::Dead);
    let error = "it took longer than 30ms: it was asked to stop, did not return within 10s, and was dropped";
    assert_eq!(of("hangs").error.as_deref(), Some(error));
    assert_eq!(ended(&db)[1..], ["hangs|dead|-|timed_out", "heeds|dead|-|timed_out"]);
    let run = of("goes-on");
    assert_eq!(run.status, RunStatus::Running);
    scheduler.cancel(run.id).unwrap();
    eventually("it is cancelled", || of("goes-on").status == RunStatus::Cancelled);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert_eq!(dropped.within(patience()), Err(false), "nothing of the dropped future is left");
    db.assert_sound();
}

/// One that does not heed the request is unfinished at the deadline; it ends when its future is dropped.
#[test]
fn the_deadline_of_a_shutdown_cuts_a_future() {
    let (db, runtime, clock) = (TestDb::new(), runtime(), LeapingClock::new());
    let (begun, begins) = channel();
    let begun = Mutex::new(begun);
    let hang = move |_: Context| {
        begun.lock().unwrap().send(()).unwrap();
        std::future::pending::<Result<(), Error>>()
    };
    let scheduler = builder(&db, &runtime).clock(clock.clone()).async_handler("hang", hang).start().unwrap();
    let client = scheduler.client().clone();
    client.add(overdue("hangs").handler("hang")).unwrap();
    receive(&begins, "a start");
    assert_eq!(scheduler.shutdown(Duration::from_millis(20)).unwrap().unfinished, 1);
    assert_eq!(ended(&db), ["hangs|running|-|-"]);
    clock.eventually(&client, "its future is dropped", || ended(&db) == ["hangs|failed|-|failed"]);
    assert_eq!(db.ask("SELECT forgiven FROM task_runs"), "1", "interrupted");
    db.assert_sound();
}

#[test]
fn a_lost_runtime_fails_what_runs_and_starts_nothing() {
    let (db, own) = (TestDb::new(), runtime());
    let (builder, begins) = waiting(builder(&db, &own));
    let scheduler = builder.handler("work", |_: &Context| Ok::<_, Error>(())).async_limit(1).start().unwrap();
    scheduler.add(overdue("runs").handler("wait").at_most_once()).unwrap();
    receive(&begins, "a start");
    scheduler.add(overdue("queued").handler("wait").at_most_once()).unwrap();
    own.shutdown_background();
    eventually("the attempt has failed", || ended(&db).contains(&"runs|dead|-|failed".to_owned()));
    let error = "the runtime dropped it before it returned: it has shut down";
    assert_eq!(scheduler.history("runs", 1).unwrap()[0].error.as_deref(), Some(error));
    // Handlers on threads go on, and the queued run waits for another scheduler.
    scheduler.add(overdue("work")).unwrap();
    eventually("a closure runs", || ended(&db).contains(&"work|succeeded|-|-".to_owned()));
    assert_eq!(scheduler.history("queued", 1).unwrap()[0].status, RunStatus::Queued);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);

    let runtime = runtime();
    let (builder, begins) = waiting(self::builder(&db, &runtime));
    let scheduler = builder.start().unwrap();
    receive(&begins, "a start");
    let run = scheduler.history("queued", 1).unwrap()[0].id;
    scheduler.cancel(run).unwrap();
    eventually("it is cancelled", || scheduler.run(run).unwrap().unwrap().status == RunStatus::Cancelled);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn attempts_that_the_runtime_does_not_poll_are_returned_and_start_later() {
    let db = TestDb::new();
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (builder, begins) = waiting(builder(&db, &idle));
    let scheduler = builder.start().unwrap();
    scheduler.add(overdue("waits").handler("wait").at_most_once()).unwrap();
    let returned = "SELECT count(*) FROM task_runs WHERE status = 'queued' AND forgiven = 1 AND attempt = 1";
    eventually("the claim is returned", || db.number::<u32>(returned) == 1);
    assert!(begins.try_recv().is_err());
    idle.block_on(async {
        wait_until("it begins", async || begins.try_recv().is_ok()).await;
        scheduler.interrupt();
        wait_until("the scheduler has stopped", async || scheduler.has_stopped()).await;
    });
    assert_eq!(db.ask("SELECT attempt FROM task_runs"), "2");
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn effects_are_performed_once_and_finish_commits_with_the_outcome() {
    let (db, runtime) = (TestDb::new(), runtime());
    let performed = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (counted, table) = (performed.clone(), db.table("imported"));
    let import = move |run: Context| {
        let (counted, table) = (counted.clone(), table.clone());
        async move {
            let count = || async {
                tokio::task::yield_now().await;
                Ok(1 + counted.fetch_add(1, Ordering::SeqCst))
            };
            let receipt: u32 = run.effect_async("charge", count).await?;
            if run.attempt() == 1 {
                let refused: Result<(), _> = run.effect_async("refused", || async { Err("refused".into()) }).await;
                return Err(BoxError::from(refused.unwrap_err()));
            }
            let late = run.clone();
            let sql = format!("INSERT INTO {table} (receipt) VALUES ({receipt})");
            let answer = finish_async(&run, sql, receipt).await?;
            assert!(late.effect("again", || Ok(())).is_err(), "its run is finished");
            Ok(answer)
        }
    };
    let scheduler = builder(&db, &runtime).async_handler("import", import).start().unwrap();
    db.execute("CREATE TABLE imported (receipt INTEGER) STRICT");
    scheduler.add(crate::fixtures::retry_soon(overdue("import").handler("import"), 5)).unwrap();
    eventually("it has ended", || all_final(&db, 1));
    assert_eq!(ended(&db), ["import|succeeded|1|failed"]);
    assert_eq!(db.rows("SELECT receipt FROM imported"), ["1"]);
    assert_eq!(performed.load(Ordering::SeqCst), 1);
    assert_eq!(scheduler.effects(1).unwrap().len(), 1, "the intent of the failed one is removed");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    db.assert_sound();
}

#[test]
fn a_clone_of_the_context_records_nothing_after_the_attempt() {
    let db = TestDb::new();
    let (sender, contexts) = channel();
    let keep = move |run: &Context| sender.send(run.clone()).map_err(BoxError::from);
    let scheduler = Scheduler::builder(db.address()).handler("keep", keep).start().unwrap();
    scheduler.add(overdue("keep").handler("keep")).unwrap();
    let late = receive(&contexts, "a run");
    eventually("it has ended", || all_final(&db, 1));
    late.progress("late");
    CommandContext::of(&late).record_output("late");
    let refused = late.effect("late", || -> Result<(), BoxError> { panic!("must not be performed") });
    assert!(refused.unwrap_err().to_string().contains("its attempt has ended"));
    let refused = late.finish(|_| -> Result<(), BoxError> { panic!("must not be written") });
    assert!(refused.unwrap_err().to_string().contains("its attempt has ended"));
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert_eq!(db.rows("SELECT status, output, progress FROM task_runs"), ["succeeded|-|-"]);
    db.assert_sound();
}

#[test]
fn closures_and_async_handlers_have_limits_of_their_own() {
    let (db, runtime) = (TestDb::new(), runtime());
    let (builder, begins) = waiting(builder(&db, &runtime));
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let hold = move |_: &Context| {
        let _ = held(&gate);
        Ok::<_, Error>(())
    };
    let scheduler = builder.async_limit(3).handler("hold", hold).start().unwrap();
    let tasks =
        |handler: &'static str| (0..5).map(move |n| overdue(&format!("{handler}-{n}")).handler(handler).at_most_once());
    scheduler.add_all(tasks("hold").chain(tasks("wait")).collect::<Vec<NewTask>>()).unwrap();
    let first: Vec<i64> = (0..3).map(|_| receive(&begins, "a start")).collect();
    let running = |handler: &str| {
        db.number::<u32>(&format!("SELECT count(*) FROM task_runs WHERE status = 'running' AND handler = '{handler}'"))
    };
    eventually("both kinds are at their limit", || running("hold") == 2 && running("wait") == 3);
    turns_pass(&scheduler, 4);
    assert!(begins.try_recv().is_err(), "three at once");
    assert_eq!((running("hold"), running("wait")), (2, 3));
    assert_eq!(db.rows("SELECT sum(attempt), sum(forgiven) FROM task_runs"), ["5|0"], "no claim beyond a limit");
    scheduler.cancel(first[0]).unwrap();
    receive(&begins, "a start");
    assert_eq!(running("hold"), 2);
    drop(open);
    eventually("the closures have ended", || {
        ended(&db).iter().filter(|row| row.starts_with("hold") && row.contains("succeeded")).count() == 5
    });
    assert_eq!(running("wait"), 3);
    scheduler.interrupt();
    eventually("it has stopped", || scheduler.has_stopped());
    drop(scheduler);
    db.assert_sound();
}

/// 10 000 attempts, up to 1 000 at once, need no more threads than the workers and eight.
#[test]
#[cfg(target_os = "linux")]
fn a_thousand_at_once_need_no_thread_each() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    const FOLDER: &str = "DULY_ASYNC_CROWD";
    let Some(folder) = std::env::var_os(FOLDER) else {
        // In a process of its own: the other tests have threads too.
        let db = TestDb::new();
        let name = "async_handlers::a_thousand_at_once_need_no_thread_each";
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let output = test.args(["--exact", name, "--nocapture"]).env(FOLDER, db.home()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        printed.lines().filter(|line| line.contains("threads")).for_each(|line| println!("{line}"));
        assert_eq!(db.rows("SELECT status, count(*) FROM task_runs GROUP BY 1"), ["succeeded|10000"]);
        db.assert_sound();
        return;
    };
    use std::sync::atomic::AtomicU32;
    let of_status = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap()
    };
    // The test itself, and the thread that runs it.
    let before = of_status("Threads:");
    let runtime = runtime();
    let (now, most, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (running, highest, ended) = (now.clone(), most.clone(), done.clone());
    // Closed when enough of them are there.
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let meet = move |_: Context| {
        let (running, highest, ended, waits) = (running.clone(), highest.clone(), ended.clone(), waits.clone());
        async move {
            highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = waits.acquire().await;
            running.fetch_sub(1, Ordering::SeqCst);
            ended.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        }
    };
    let file = std::path::Path::new(&folder).join("agent.db");
    let client = Client::open(&file).unwrap();
    client.add_all((0..10_000).map(|n| overdue(&format!("meets-{n}")).handler("meet"))).unwrap();
    let workers = 4;
    let began = std::time::Instant::now();
    let scheduler = Scheduler::builder(&file)
        .workers(workers)
        .runtime(runtime.handle().clone())
        .async_handler("meet", meet)
        .start()
        .unwrap();
    let threads = std::cell::Cell::new(0);
    let look = || threads.set(threads.get().max(of_status("Threads:") - before));
    eventually_counts("many at once", 500, || most.load(Ordering::SeqCst) as usize);
    look();
    gate.close();
    eventually_counts("all have ended", 10_000, || {
        look();
        done.load(Ordering::SeqCst) as usize
    });
    let threads = threads.get();
    let took = began.elapsed();
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    let (most, rss) = (most.load(Ordering::SeqCst), of_status("VmHWM:"));
    println!("10 000 in {took:?}: at most {most} at once, {threads} threads, {rss} KiB");
    assert!(threads <= workers as u32 + 8, "{threads} threads");
    assert!(most <= 1000, "{most} at once");
}

/// An async job that fails in the way that its payload says.
struct Answers;

impl JobKind for Answers {
    const NAME: &'static str = "answers";
    type Payload = u32;
}

impl AsyncJob for Answers {
    type Output = u32;
    type Error = BoxError;

    async fn run(&self, run: Context, payload: u32) -> Result<u32, BoxError> {
        tokio::task::yield_now().await;
        match (payload, run.attempt()) {
            (1, 1) => Err(Failure::snooze(Duration::from_millis(1)).into()),
            (2, _) => Err(Failure::cancel("not needed any more").into()),
            (3, 1) => Err("no route to host".into()),
            _ => Ok(payload * run.attempt()),
        }
    }

    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        failed.error.contains("route").then_some(Duration::from_millis(1))
    }
}

#[test]
fn an_async_job_is_snoozed_cancelled_and_retried_by_its_own_backoff() {
    let (db, runtime) = (TestDb::new(), runtime());
    let scheduler = builder(&db, &runtime).async_job(Answers).start().unwrap();
    // The backoff of the task is ten seconds and more.
    for payload in [0, 1, 2, 3] {
        scheduler.add(NewTask::manual(format!("t{payload}")).job::<Answers>(&payload)).unwrap();
    }
    scheduler.add(NewTask::manual("text").handler("answers").payload("no number")).unwrap();
    for name in ["t0", "t1", "t2", "t3", "text"] {
        scheduler.trigger(name).unwrap();
    }
    let client = AsyncClient::from(scheduler.client().clone());
    runtime.block_on(client.enqueue::<Answers>(&9)).unwrap();
    runtime.block_on(wait_until("all are over", async || all_final(&db, 6)));
    let enqueued = ended(&db).into_iter().find(|row| row.starts_with("answers-")).expect("the enqueued one");
    assert!(enqueued.ends_with("|succeeded|9|-"), "{enqueued}");
    let rest: Vec<String> = ended(&db).into_iter().filter(|row| !row.starts_with("answers-")).collect();
    let expected = [
        "t0|succeeded|0|-",
        "t1|succeeded|2|snoozed",
        "t2|cancelled|-|cancelled",
        "t3|succeeded|6|failed",
        "text|dead|-|failed",
    ];
    assert_eq!(rest, expected);
    assert_eq!(
        db.ask("SELECT group_concat(forgiven) FROM (SELECT forgiven FROM task_runs ORDER BY id LIMIT 5)"),
        "0,1,0,0,0"
    );
    runtime.block_on(scheduler.shutdown_async(seconds(10))).unwrap();
    db.assert_sound();
}

#[test]
fn a_backoff_of_the_builder_replaces_that_of_an_async_handler() {
    let (db, runtime) = (TestDb::new(), runtime());
    let fails = |_: Context| async { Err::<(), _>("no route to host") };
    let builder = builder(&db, &runtime).async_job(Answers).async_handler("plain", fails);
    let hour = |_: &FailedAttempt<'_>| Some(seconds(3600));
    let scheduler = builder.backoff("answers", hour).backoff("plain", hour).start().unwrap();
    scheduler.add(NewTask::manual("job").job::<Answers>(&3)).unwrap();
    scheduler.add(NewTask::manual("plain").handler("plain")).unwrap();
    for name in ["job", "plain"] {
        let id = scheduler.trigger(name).unwrap();
        eventually("it has failed", || scheduler.run(id).unwrap().unwrap().status == RunStatus::Failed);
        let run = scheduler.run(id).unwrap().unwrap();
        assert_eq!(run.run_at, run.finished_at.unwrap() + seconds(3600), "{name}");
    }
    runtime.block_on(scheduler.shutdown_async(seconds(10))).unwrap();
}
