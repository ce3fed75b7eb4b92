//! A database as it may look after a week: tasks of every kind and state, runs with every end, an outage. All of it is written
//! by schedulers, on a clock of its own, so that it is the same whenever it is built.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duly::command::CommandContext;
use duly::page::Page;
use duly::testing::{ManualClock, Stepper, StepperBuilder};
use duly::{
    BoxError, Client, Clock, Context, Misfire, NewTask, Now, Origin, RunFilter, RunStatus, Scheduler, SystemClock,
    Timestamp,
};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, at, eventually, minutes, seconds};

/// The time that the page shows first: a Wednesday, four days before the clocks of Europe change.
const NOW: &str = "2027-03-24T15:01:20Z";
/// When the first scheduler starts.
const BEGIN: &str = "2027-03-17T14:02:00Z";
/// When it is killed; the second one starts two and a half hours later.
const KILLED: &str = "2027-03-23T11:00:00Z";
/// From here on, the service of `import-orders` refuses connections.
const ORDERS_FAIL: &str = "2027-03-24T11:00:00Z";

/// Text that would run a script in a page that does not escape it. It also reverses the reading direction.
const HOSTILE: &str = "</pre></script><script>window.__hacked = 1</script>\
    <img src=x onerror='window.__hacked = 1'>\"'><svg onload=window.__hacked=1>\u{202e}txet";

/// A scheduler that serves the page of such a database.
pub(crate) struct Sample {
    pub(crate) scheduler: Scheduler,
    pub(crate) client: Client,
    _db: TestDb,
}

impl Sample {
    /// Builds the database with hostile tasks, and starts the scheduler. Two of its runs do not end.
    pub(crate) fn start() -> Self {
        Self::start_with(write_hostile)
    }

    /// As [`Sample::start`], without hostile tasks.
    pub(crate) fn start_pleasant() -> Self {
        Self::start_with(|_| ())
    }

    fn start_with(more: fn(&mut Stepper)) -> Self {
        let db = TestDb::brief();
        write_week(&db, more);
        let clock = Shifted { real: SystemClock::new(), begin: at(NOW) };
        let scheduler = builder_with_handlers(&db).clock(clock).page(Page::on("127.0.0.1:0").actions()).start();
        let scheduler = scheduler.expect("a scheduler");
        let client = scheduler.client().clone();
        let sample = Sample { scheduler, client, _db: db };
        for task in ["sync-photos", "reindex-search"] {
            sample.client.trigger(task).expect("a run");
            eventually("it reports progress", || {
                sample.client.history(task, 1).expect("a history").iter().any(|run| run.progress.is_some())
            });
        }
        for task in ["backup", "legacy-export", "digest"] {
            sample.client.trigger(task).expect("a run");
        }
        eventually("the digest is sent", || sample.newest("digest").1 == RunStatus::Succeeded);
        eventually("a row is found to be invalid", || {
            let task = sample.client.task("broken-import").expect("a look-up").expect("a task");
            task.invalid_reason.is_some()
        });
        sample
    }

    /// Returns the address of a path.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("http://{}{path}", self.scheduler.page_address().expect("an address"))
    }

    /// Returns the id and the status of the newest run of a task.
    pub(crate) fn newest(&self, task: &str) -> (i64, RunStatus) {
        let runs = self.client.history(task, 1).expect("a history");
        let run = runs.first().unwrap_or_else(|| panic!("no run of {task}"));
        (run.id, run.status)
    }

    /// Returns the newest run of a task with a status.
    pub(crate) fn newest_with(&self, task: &str, status: RunStatus) -> i64 {
        let runs = self.client.runs(&RunFilter::newest(1).of(task).status(status)).expect("the runs");
        runs.first().unwrap_or_else(|| panic!("no run of {task} is {status}")).id
    }
}

impl Drop for Sample {
    /// Ends the two runs: a scheduler that is dropped waits for its handlers, up to 30 s.
    fn drop(&mut self) {
        self.scheduler.interrupt();
    }
}

/// The machine's clock, shifted to another year.
struct Shifted {
    real: SystemClock,
    begin: Timestamp,
}

impl Clock for Shifted {
    fn now(&self) -> Now {
        let now = self.real.now();
        Now { wall: self.begin.plus(now.monotonic), ..now }
    }

    fn until(&self, at: Duration) -> Duration {
        self.real.until(at)
    }
}

/// The handlers of a scheduler with threads.
fn builder_with_handlers(db: &TestDb) -> duly::Builder {
    let stay = |progress: &'static str| {
        move |run: &Context| {
            run.progress(progress);
            while !run.wait_cancelled(Duration::from_secs(60)) {}
            Err::<(), _>(BoxError::from("cancelled"))
        }
    };
    let work = |run: &Context| {
        CommandContext::of(run).record_output("sent to 214 readers\n");
        Ok::<_, BoxError>(json!({ "sent": 214 }))
    };
    let builder = Scheduler::builder(db.file()).poll(Duration::from_millis(50)).workers(6);
    let builder = builder.handler("photos", stay("312 of 480 photos")).handler("search", stay("61 %"));
    ["report", "backup", "mail", "orders", "inbox", "notify", HOSTILE]
        .iter()
        .fold(builder, |b, name| b.handler(*name, work))
}

fn tasks() -> Vec<NewTask> {
    let zone = "Europe/Rome";
    vec![
        NewTask::cron("nightly-report", "0 6 * * *").time_zone(zone).handler("report").timeout(minutes(10)),
        NewTask::cron("backup", "30 2 * * *")
            .time_zone(zone)
            .handler("backup")
            .concurrency_key("disk")
            .priority(0)
            .payload(json!({ "target": "s3://example-backups/agent", "keep": 14 })),
        NewTask::cron("reindex-search", "0 4 * * SUN").handler("search").concurrency_key("disk"),
        NewTask::cron("post-carousel", "0 13 * * *")
            .time_zone(zone)
            .handler("post")
            .max_attempts(3)
            .payload(json!({ "account": "@studio", "pictures": 5, "caption": "Spring, five ways" })),
        NewTask::cron("digest", "30 7 * * MON-FRI").time_zone("America/New_York").handler("mail"),
        NewTask::interval("check-inbox", minutes(15)).handler("inbox").misfire(Misfire::Skip, minutes(1)),
        NewTask::interval("sync-photos", Duration::from_secs(6 * 3600)).handler("photos").timeout(minutes(90)),
        NewTask::cron("import-orders", "20 * * * *").handler("orders").max_attempts(2).on_dead("notify-owner"),
        NewTask::manual("notify-owner").handler("notify"),
        NewTask::delay("clean-up", minutes(170)).handler("report").priority(3),
        NewTask::cron("sync-calendar", "*/30 8-18 * * *").handler("calendar"),
        NewTask::cron("legacy-export", "45 23 * * *").handler("report"),
        NewTask::cron("certificates", "0 9 * * MON").handler("report"),
        NewTask::once("renew-domain", at("2027-05-01T08:00:00Z")).handler("mail"),
        NewTask::once("invoice-1042", at("2027-03-22T10:00:00Z")).handler("mail"),
    ]
}

/// Writes the history of a week: two schedulers, of which the first is killed.
fn write_week(db: &TestDb, more: fn(&mut Stepper)) {
    let clock = ManualClock::new(at(BEGIN));
    let mut first = stepper(db, &clock).handler("calendar", work).start().expect("a stepper");
    first.client().add_all(tasks()).expect("the tasks");
    first.run_until(at("2027-03-20T20:00:00Z")).expect("the first days");
    first.client().pause("legacy-export").expect("a pause");
    first.run_until(at(KILLED)).expect("six days");
    first.client().trigger("nightly-report").expect("a run");
    assert_eq!(first.step().expect("a step").len(), 1, "an attempt that is lost");
    first.crash();

    clock.advance(minutes(150));
    let mut second = stepper(db, &clock).start().expect("a stepper");
    second.run_until(at("2027-03-24T12:47:10Z")).expect("a day");
    write_skips(&mut second);
    let client = second.client().clone();
    client.retry(newest_dead(&client, "import-orders")).expect("a retry");
    second.run_until(at("2027-03-24T13:40:00Z")).expect("an hour");
    let unwanted = client.trigger("certificates").expect("a run");
    client.cancel(unwanted).expect("a cancellation");
    more(&mut second);
    second.run_until(at("2027-03-24T14:05:00Z")).expect("the last minutes");
    assert!(second.clock().now().wall < at(NOW), "the runs ended at {}", second.clock().now().wall);
    second.stop().expect("an end");
    let broken = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                  VALUES ('broken-import', 'orders', 'cron', '61 3 * * *')";
    db.plain().execute(broken, []).expect("a row of another program");
}

fn newest_dead(client: &Client, task: &str) -> i64 {
    client.runs(&RunFilter::newest(1).of(task).status(RunStatus::Dead)).expect("the runs")[0].id
}

/// A run that takes longer than its interval: two occurrences are skipped.
fn write_skips(stepper: &mut Stepper) {
    let claims = loop {
        let claims = stepper.step().expect("a step");
        if claims.iter().any(|claim| claim.task == "check-inbox") {
            break claims;
        }
        claims.iter().for_each(|claim| drop(stepper.carry_out(claim)));
        stepper.clock().advance(seconds(1).max(stepper.sleeps()));
    };
    for _ in 0..33 {
        stepper.clock().advance(minutes(1));
        let other = stepper.step().expect("a step");
        other.iter().for_each(|claim| drop(stepper.carry_out(claim)));
    }
    claims.iter().for_each(|claim| drop(stepper.carry_out(claim)));
}

/// Adds tasks and runs whose texts are as hostile as they may be.
fn write_hostile(stepper: &mut Stepper) {
    let longest = format!("w{}", "wide".repeat(49));
    let client = stepper.client().clone();
    for name in ["a/../../etc/passwd", "javascript:alert@1/..//", &longest] {
        let task = NewTask::manual(name)
            .handler(HOSTILE)
            .payload(json!({ "text": HOSTILE, "long": "x".repeat(3000) }))
            .concurrency_key(HOSTILE)
            .on_dead(HOSTILE)
            .max_attempts(1);
        client.add(task).expect("a task");
        client.trigger_with(name, json!({ HOSTILE: "x".repeat(500) })).expect("a run");
    }
}

fn stepper(db: &TestDb, clock: &ManualClock) -> StepperBuilder {
    let builder = db.builder(BEGIN).clock(clock).seed(clock.now().wall.as_millis().unsigned_abs());
    let names = ["report", "backup", "search", "post", "mail", "inbox", "photos", "orders", "notify", HOSTILE];
    names.iter().fold(builder, |builder, name| builder.handler(*name, work))
}

/// Does the work of each handler: takes its time, prints something, fails sometimes.
fn work(run: &Context) -> Result<Value, BoxError> {
    let typical = match run.task() {
        "backup" => minutes(11),
        "reindex-search" => minutes(38),
        "sync-photos" => minutes(22),
        "nightly-report" => seconds(95),
        "check-inbox" => seconds(14),
        _ => seconds(40),
    };
    let mut chance = fastrand::Rng::with_seed(run.run_id().unsigned_abs());
    run.wait_cancelled(typical.mul_f64(0.6 + chance.f64() * 0.9));
    let print = |text: &str| CommandContext::of(run).record_output(text);
    match run.task() {
        "post-carousel" => post(run, &mut chance),
        "import-orders" if run.scheduled_for() >= at(ORDERS_FAIL) && run.origin() != Origin::Manual => {
            print("2027-03-24 connecting to orders.example.net:443\nretrying in 2 s\nretrying in 4 s\n");
            CommandContext::of(run).record_exit_code(75);
            Err("orders.example.net:443: connection refused (os error 111)".into())
        }
        "backup" => {
            print("scanning 18 204 files\n214 changed, 3 new\nuploaded 1.2 GiB in 9 min 41 s\nverified\n");
            Ok(json!({ "files": 18_204, "changed": 217 }))
        }
        _ if run.task().contains("wide") || run.task().contains('/') => {
            // Also what turns a terminal red, which no name may hold.
            print(&format!("{HOSTILE}\u{1b}[31m\n{}\n", "long".repeat(1000)).repeat(10));
            run.progress(HOSTILE);
            run.effect(HOSTILE, || Ok(HOSTILE.to_owned()))?;
            Err(format!("{HOSTILE}\u{1b}[31m{}", "y".repeat(2000)).into())
        }
        _ => {
            print("done\n");
            Ok(Value::Null)
        }
    }
}

/// Posts five pictures; every third time the service fails once, and only what is missing is posted again.
fn post(run: &Context, chance: &mut fastrand::Rng) -> Result<Value, BoxError> {
    let fails = Arc::new(AtomicBool::new(run.attempt() == 1 && chance.u8(..).is_multiple_of(3)));
    for picture in 1..=5 {
        run.wait_cancelled(seconds(3));
        run.effect(&format!("upload-{picture}"), || {
            if picture == 4 && fails.swap(false, Ordering::Relaxed) {
                return Err("502 Bad Gateway: upload of picture 4".into());
            }
            Ok(format!("media-{}", 7100 + picture))
        })?;
    }
    let post: u64 = run.effect("publish", || Ok(88_213))?;
    Ok(json!({ "post": post }))
}
