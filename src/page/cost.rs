//! Tests: the cost of each page in steps of SQLite's virtual machine, which does not grow with the history, and its size. Unlike time,
//! the number of steps is the same on every machine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::model::new_task::NewTask;
use crate::model::vitals::Vitals;
use crate::page::html::links;
use crate::page::{Page, Server};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::{Durability, Missing};

const NOON: i64 = 1_805_025_600_000;
const TASKS: usize = 1_000;
/// The largest page.
const MOST_BYTES: usize = 200_000;
/// A fifth more than the largest page takes. More than half of it is `check`, which reads each task once for every page. A million
/// steps take about 20 ms, and a page may take 50 ms.
const MOST_STEPS: u64 = 280_000;
/// As [`MOST_STEPS`], of a page of runs of which none matches.
const MOST_STEPS_OF_A_WALK: u64 = 1_260_000;

/// The pages of the task with the longest name and of the run with the longest texts, and those that the bench measures too.
const OF_ROWS: [&str; 2] = ["/tasks/{task}", "/runs/{run}"];
const PATHS: &str = include_str!("../../benches/page/paths.txt");

/// A file, and the page over it.
struct Site {
    steps: Arc<AtomicU64>,
    clock: ManualClock,
    server: Server,
    agent: ureq::Agent,
    task: String,
    run: i64,
    home: tempfile::TempDir,
}

/// The answer to a request, and its cost.
#[derive(Debug)]
struct Cost {
    status: u16,
    bytes: usize,
    steps: u64,
}

impl Site {
    /// Creates a file with this number of runs.
    fn new(runs: usize) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("t.db");
        let open = |missing| SqliteStore::open(&file, missing, Durability::MayRepeatAfterPowerLoss).expect("a store");
        let mut store = open(Missing::Create);
        store.fill(TASKS, runs, NOON);
        let steps = store.count_steps();
        let own_clock = ManualClock::new(Timestamp::from_millis(NOON));
        let clock: Arc<dyn Clock> = Arc::new(own_clock.clone());
        let writer = Client::new(Box::new(open(Missing::Refuse)), clock.clone(), None);
        let task = writer.names().expect("tasks").swap_remove(0);
        let run = writer.newest_runs(1).expect("runs")[0].id;
        let listening = Page::on("127.0.0.1:0").actions().listen(&mut Vec::new(), &clock, &BTreeSet::new());
        let vitals = Arc::new(Vitals::new(clock.now(), Duration::from_secs(1)));
        let server = listening.expect("an address").serve(Box::new(store), writer, vitals).expect("a page");
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        Site { steps, clock: own_clock, server, agent, task, run, home }
    }

    /// Requests a path a second after the last request: what is kept is read again.
    fn get(&self, path: &str) -> Cost {
        self.clock.advance(Duration::from_secs(1));
        self.get_at_once(path).0
    }

    /// Requests a path, and returns the cost and the text.
    fn get_at_once(&self, path: &str) -> (Cost, String) {
        let path = path.replace("/tasks/{task}", &links::task(&self.task)).replace("{run}", &self.run.to_string());
        let address: SocketAddr = self.server.address();
        let before = self.steps.load(Ordering::Relaxed);
        let mut answer = self.agent.get(format!("http://{address}{path}")).call().expect("an answer");
        let text = answer.body_mut().read_to_string().expect("a body");
        let steps = self.steps.load(Ordering::Relaxed) - before;
        (Cost { status: answer.status().as_u16(), bytes: text.len(), steps }, text)
    }
}

#[test]
fn the_cost_and_the_size_of_a_page_do_not_grow_with_the_history() {
    let [less, more] = [10_000, 100_000].map(Site::new);
    let mut wrong = Vec::new();
    for path in OF_ROWS.into_iter().chain(PATHS.lines()) {
        let (few, many) = (less.get(path), more.get(path));
        println!("{path}: {} and {} steps, {} and {} bytes", few.steps, many.steps, few.bytes, many.bytes);
        // It counts, or looks at, at most 50 000 runs.
        let is_walk = path.starts_with("/timeline") || path.starts_with("/runs?error");
        let most = if path.starts_with("/runs?error") { MOST_STEPS_OF_A_WALK } else { MOST_STEPS };
        let grows = !is_walk && many.steps > few.steps + few.steps / 4 + 200;
        // `/healthz` answers 503: the rows have problems.
        let fails = many.status != if path == "/healthz" { 503 } else { 200 };
        // The API answers with whole rows, however long their texts are.
        let is_long = many.bytes > MOST_BYTES && !path.starts_with("/api/");
        if fails || grows || many.steps > most || is_long {
            wrong.push(format!("{path}: {few:?} with few runs, {many:?} with many"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// More than an answer with two tasks takes, and much less than a look at all tasks.
const MOST_FOR_TWO: u64 = 2_500;

#[test]
fn the_cost_of_a_page_of_tasks_does_not_depend_on_the_number_of_tasks() {
    let site = Site::new(10_000);
    for path in ["/api/tasks?limit=2", "/api/tasks?limit=2&after=team-9%2Freport-9", "/api/tasks?limit=2&name=team-9*"]
    {
        let cost = site.get(path);
        println!("{path}: {} steps", cost.steps);
        assert!(cost.status == 200 && cost.steps < MOST_FOR_TWO, "{path}: {cost:?}");
    }
}

#[test]
fn pages_share_the_problems_of_a_second_until_the_data_changes() {
    let site = Site::new(10_000);
    let (first, text) = site.get_at_once("/events");
    let (second, again) = site.get_at_once("/events");
    assert!(second.steps < first.steps / 20 && again == text, "{first:?}, {second:?}");
    // The clock does not move: the change alone shows the new problem.
    let store = SqliteStore::open(&site.home.path().join("t.db"), Missing::Refuse, Durability::MayRepeatAfterPowerLoss);
    let other = Client::new(Box::new(store.expect("a store")), Arc::new(site.clock.clone()), None);
    other.add(NewTask::manual("unreported").handler("work").on_dead("no-such-task")).expect("a task");
    let (third, text) = site.get_at_once("/events");
    assert!(third.steps > first.steps / 2 && text != again, "{first:?}, {third:?}");
}
