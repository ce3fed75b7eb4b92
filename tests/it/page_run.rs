//! The page of a run: each reason why a run waits, hostile text, and its size.

use std::net::SocketAddr;

use duly::page::Page;
use duly::{
    BoxError, Client, Context, Failure, Limit, LimitOn, Misfire, NewTask, Overlap, Retention, RunStatus, Scheduler,
    Timestamp,
};

use crate::fixtures::{TestDb, eventually, minutes, seconds};

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) kind: String,
    pub(crate) link: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) cookie: Option<String>,
    pub(crate) text: String,
}

pub(crate) fn request(address: SocketAddr, path: &str, accept: &str) -> Answer {
    request_with(address, path, &[("accept", accept)])
}

/// Follows no redirection.
fn request_with(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().new_agent();
    let request = agent.get(format!("http://{address}{path}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let mut answer = request.call().expect("an answer");
    let header = |name| answer.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    let (code, kind, link) = (answer.status().as_u16(), header("content-type").unwrap_or_default(), header("link"));
    let (location, cookie) = (header("location"), header("set-cookie"));
    Answer {
        code,
        kind,
        link,
        location,
        cookie,
        text: answer.body_mut().with_config().limit(50 << 20).read_to_string().expect("a text"),
    }
}

/// A scheduler with a page.
pub(crate) struct Served {
    pub(crate) db: TestDb,
    pub(crate) scheduler: Scheduler,
    address: SocketAddr,
}

impl Served {
    /// Starts it with one worker and the handler `work`, which waits until its run is cancelled, except for tasks whose name begins
    /// with `fails`. A scheduler that has no handler starts nothing.
    pub(crate) fn new(db: TestDb, has_handler: bool) -> Self {
        Self::of(db, has_handler, Page::on("127.0.0.1:0"))
    }

    /// As [`Served::new`] without a handler, with actions.
    pub(crate) fn acting(db: TestDb) -> Self {
        Self::of(db, false, Page::on("127.0.0.1:0").actions())
    }

    fn of(db: TestDb, has_handler: bool, page: Page) -> Self {
        let mut builder = Scheduler::builder(db.address()).workers(1).page(page);
        // Also of rows that are older than the test.
        builder = builder.retention(Retention { least_runs: 100_000, most_runs: 100_000, ..Retention::default() });
        if has_handler {
            builder = builder.handler("work", |run: &Context| {
                if run.task().starts_with("fails") {
                    return Err(BoxError::from(Failure::retry_after(minutes(60), "<b>no</b>\u{1b}[2J\u{202e}")));
                }
                run.wait_cancelled(seconds(120));
                Ok(())
            });
        }
        let scheduler = builder.start().expect("a scheduler");
        let address = scheduler.page_address().expect("an address");
        Served { db, scheduler, address }
    }

    pub(crate) fn client(&self) -> &Client {
        self.scheduler.client()
    }

    pub(crate) fn answer(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        request_with(self.address, path, headers)
    }

    /// Waits until the scheduler has planned all tasks.
    pub(crate) fn await_plans(&self) {
        eventually("all tasks are planned", || {
            self.db.number::<i64>("SELECT count(*) FROM scheduled_tasks WHERE planned = 0") == 0
        });
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let answer = request(self.address, path, "*/*");
        (answer.code, answer.text)
    }

    /// Posts a form.
    pub(crate) fn post(&self, path: &str, form: &str) -> (u16, String) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let request = agent.post(format!("http://{}{path}", self.address));
        let mut answer = request.content_type("application/x-www-form-urlencoded").send(form).expect("an answer");
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("a text"))
    }

    /// The text of a page that exists.
    pub(crate) fn text(&self, path: &str) -> String {
        let (status, text) = self.get(path);
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.len() < 200_000, "{path} has {} bytes", text.len());
        text
    }

    /// Waits until the page of a run holds a text, and returns the page.
    fn shows(&self, run: i64, text: &str) -> String {
        let path = format!("/runs/{run}");
        let mut page = String::new();
        eventually(&format!("the page of run {run} shows {text}"), || {
            page = self.text(&path);
            page.contains(text)
        });
        page
    }
}

fn manual(name: &str) -> NewTask {
    NewTask::manual(name).handler("work")
}

const WAITS: &str = "What it waits for";

#[test]
fn a_run_says_which_run_holds_its_key_or_its_worker() {
    let served = Served::new(TestDb::new(), true);
    let client = served.client();
    client.add(manual("holder").concurrency_key("smtp")).unwrap();
    client.add(manual("behind").concurrency_key("smtp")).unwrap();
    client.add(manual("other")).unwrap();
    let holder = client.trigger("holder").unwrap();
    let page = served.shows(holder, "Runs on");
    assert!(!page.contains(WAITS), "a running run waits for nothing");
    let behind = client.trigger("behind").unwrap();
    let page = served.shows(behind, "The key");
    assert!(page.contains("is in use</strong> (at most 1 run at once)"), "{page}");
    assert!(page.contains(&format!("<a href=\"/runs/{holder}\">run {holder}</a>")), "{page}");
    let other = client.trigger("other").unwrap();
    let page = served.shows(other, "All workers are busy");
    assert!(
        page.contains(&format!("<a href=\"/runs/{holder}\">run {holder}</a>")) && !page.contains("The key"),
        "{page}"
    );
    client.cancel_all("holder").unwrap();
}

#[test]
fn a_run_says_that_its_time_or_a_rate_is_not_reached() {
    let served = Served::new(TestDb::new(), true);
    let client = served.client();
    client.add(manual("fails")).unwrap();
    client.set_limit(Limit::rate("work", 1, minutes(60))).unwrap();
    let first = client.trigger("fails").unwrap();
    let page = served.shows(first, "Its next attempt");
    // Its error is text, whatever it holds.
    assert!(page.contains("&lt;b&gt;no&lt;/b&gt;\\u{1b}[2J\\u{202e}") && !page.contains("<b>no"), "{page}");
    let second = client.trigger("fails").unwrap();
    let page = served.shows(second, "The rate limit of the handler");
    assert!(!page.contains("Its next attempt") && !page.contains("Its time"), "{page}");
    client.remove_limit(&LimitOn::Handler("work".into())).unwrap();
    served.shows(second, "Its next attempt");
}

#[test]
fn a_run_says_that_no_scheduler_has_its_handler_that_its_task_rests_or_that_an_older_run_goes_first() {
    let db = TestDb::new();
    let stepper = db.stepper(&(Timestamp::now() - minutes(5)).to_string());
    for name in ["orders", "rests"] {
        let task = NewTask::interval(name, minutes(1)).handler("elsewhere").overlap(Overlap::BufferAll);
        stepper.client().add(task.misfire(Misfire::RunAll, minutes(60))).unwrap();
    }
    stepper.stop().unwrap();
    let client = db.client();
    let served = Served::new(db, false);
    let runs = |task: &str| {
        let mut runs = client.history(task, 100).unwrap();
        runs.reverse();
        runs
    };
    eventually("runs are open", || runs("orders").len() > 2 && runs("rests").len() > 2);
    client.pause("rests").unwrap();
    let (orders, rests) = (runs("orders"), runs("rests"));
    let oldest = &orders[0];
    assert_eq!(oldest.status, RunStatus::Queued);
    let page = served.shows(oldest.id, "No scheduler has the handler");
    assert!(page.contains("elsewhere") && !page.contains("An earlier run"), "{page}");
    let page = served.shows(orders[1].id, "An earlier run of the task is unfinished");
    assert!(page.contains(&format!("<a href=\"/runs/{0}\">run {0}</a>", oldest.id)), "{page}");
    let page = served.shows(rests[1].id, "Its task is paused");
    assert!(page.contains("(user)") && !page.contains("An earlier run"), "{page}");
    // A run that just became due starts at the next turn, as far as the page knows.
    client.add(manual("fresh").handler("elsewhere")).unwrap();
    served.shows(client.trigger("fresh").unwrap(), "It starts at the next turn");
}

#[test]
fn an_unknown_run_has_a_page_with_the_status_404() {
    let served = Served::new(TestDb::new(), false);
    for path in ["/runs/1", "/runs/-1", "/runs/9223372036854775807"] {
        let (status, text) = served.get(path);
        assert_eq!(status, 404, "{path}");
        assert!(text.contains("<h1>No such run</h1>"), "{path}: {text}");
    }
    assert!((400..500).contains(&served.get("/runs/x").0));
}

#[test]
fn the_page_stays_small_and_shows_the_end_of_an_output() {
    let served = Served::new(TestDb::new(), false);
    let client = served.client();
    client.add(manual("large").handler("elsewhere")).unwrap();
    let run = client.trigger("large").unwrap();
    let plain = served.db.plain();
    for text in ["x'3c'", "x'1b'", "x'22'", "x'c3a9'"] {
        // The longest texts that the tables accept, in every place, and a hundred attempts.
        plain
            .execute_batch(&format!(
                "DELETE FROM task_attempts;
                 UPDATE task_runs SET status = 'dead', attempt = 101, finished_at = 1805025600000, started_at = 1805025600000,
                        error = replace(hex(zeroblob(32768)), '00', CAST({text} AS TEXT)),
                        output = replace(hex(zeroblob(65536)), '00', CAST({text} AS TEXT)) || 'the <end>',
                        progress = replace(hex(zeroblob(32768)), '00', CAST({text} AS TEXT)),
                        result = json_quote(replace(hex(zeroblob(65536)), '00', 'é'))
                  WHERE id = {run};
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                 INSERT INTO task_attempts (run_id, attempt, outcome, error, output, locked_by, finished_at)
                 SELECT {run}, i, 'failed', replace(hex(zeroblob(8192)), '00', CAST({text} AS TEXT)),
                        replace(hex(zeroblob(8192)), '00', CAST({text} AS TEXT)), CAST(x'ff3c623e' AS TEXT), 1805025600000 FROM n;"
            ))
            .unwrap();
        let page = served.text(&format!("/runs/{run}"));
        assert!(page.contains("the &lt;end&gt;") && page.contains("Cut: the last"), "{text}");
        assert!(
            page.contains(&format!("duly logs {run}")) && page.contains("Attempt 101") && page.contains("Attempt 100")
        );
        assert!(!page.contains("<end>") && !page.contains('\u{1b}'));
    }
}

#[test]
fn a_task_or_key_that_is_not_utf8_breaks_no_page() {
    let served = Served::new(TestDb::new(), false);
    let client = served.client();
    client.add(manual("good").handler("elsewhere").concurrency_key("k")).unwrap();
    let run = client.trigger("good").unwrap();
    served
        .db
        .plain()
        .execute_batch(
            "PRAGMA ignore_check_constraints = ON;
             UPDATE task_runs SET concurrency_key = CAST(x'ff' AS TEXT), progress = CAST(x'fe' AS TEXT), blocked = 'no <such> reason';
             INSERT INTO scheduler_events (at, kind, detail) VALUES (9223372036854775807, CAST(x'ff' AS TEXT), '<i>');
             INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
             VALUES ('<u>', CAST(x'ff' AS TEXT), -1, '<s>', -1, 0, -9223372036854775807, 9223372036854775807, 1);",
        )
        .unwrap();
    let page = served.text(&format!("/runs/{run}"));
    assert!(page.contains("\u{fffd}"), "{page}");
    for path in ["/events", "/schedulers", "/timeline", "/timeline?span=week"] {
        let page = served.text(path);
        assert!(!page.contains("<i>") && !page.contains("<u>") && !page.contains("<s>"), "{path}: {page}");
    }
}

#[test]
fn an_output_is_searched_and_downloaded() {
    let (db, client) = TestDb::with_client();
    client.add(manual("digest")).expect("a task");
    db.execute(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, output)
         VALUES (1, 'work', 1800000000000, 'manual', 'dead', 1800000000000, 1, 1800000000000, 1800000001000,
                 'one' || char(10) || 'ERROR: <no>' || char(10) || 'three' || char(10) || 'an error' || char(10)),
                (1, 'work', 1800000000001, 'manual', 'succeeded', 1800000000001, 1, 1800000000000, 1800000001000, NULL)",
    );
    let served = Served::new(db, false);
    let page = served.text("/runs/1");
    assert!(page.contains(">one\nERROR: &lt;no&gt;\nthree\nan error\n</pre>"), "{page}");
    assert!(page.contains("<a href=\"/runs/1/output/1\" download>Download</a>"), "{page}");
    let found = served.text("/runs/1?find=+error+");
    assert!(found.contains(">    2  ERROR: &lt;no&gt;\n    4  an error\n</pre>"), "{found}");
    assert!(found.contains("Lines with this text: 2 of 4 lines.") && found.contains("value=\"error\""), "{found}");
    assert!(!served.text("/runs/2").contains("Find in output"), "it has none");
    let file = request(served.address, "/runs/1/output/1", "*/*");
    assert_eq!(
        (file.code, &*file.kind, &*file.text),
        (200, "text/plain; charset=utf-8", "one\nERROR: <no>\nthree\nan error\n")
    );
    for path in ["/runs/1/output/2", "/runs/2/output/1", "/runs/3/output/1", "/runs/1/output/x"] {
        assert_eq!(served.get(path).0, 404, "{path}");
    }
}
