//! Tests: the cost of a turn with up to a hundred thousand runs that cannot start, in steps of SQLite's virtual machine. Unlike
//! time, the number of steps is the same on every machine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::model::bulk::{BulkAction, BulkPass, BulkReport};
use crate::model::filter::Filter;
use crate::model::finished::Finished;
use crate::model::health::Limits;
use crate::model::report::{Pass, Pruned};
use crate::model::run::{Claim, Outcome};
use crate::model::settings::Retention;
use crate::rules::retention;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::sqlite::{health, history, invariants, matching, prune, task_changes, turn};
use crate::store::turn_io::{Done, MAX_ITEMS, Registration, Slots, Work};

const NOON: i64 = 1_805_025_600_000;
const MINUTE: i64 = 60_000;

/// The two numbers of additional rows: few, and many, which `DULY_CROWD` sets.
fn crowds() -> [i64; 2] {
    [2_000, std::env::var("DULY_CROWD").map_or(10_000, |crowd| crowd.parse().expect("a number"))]
}

/// A store, and the input of the turns on it.
struct Site {
    store: SqliteStore,
    handlers: BTreeSet<String>,
    steps: Arc<AtomicU64>,
    now: i64,
    claimed: Vec<Arc<Claim>>,
    room: usize,
    _home: tempfile::TempDir,
}

impl Site {
    /// Creates a file with these rows, and a healthy task every minute whose handler is `work`.
    fn new(rows: &str, crowd: i64) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("t.db");
        let mut store =
            SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).expect("a store");
        let fill = format!(
            "CREATE TEMP TABLE n AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {crowd})
                                      SELECT i FROM n;
             INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run,
                                          planned)
             VALUES (1, 'healthy', 'work', 'interval', '1m', {NOON}, {NOON}, {NOON}, 1);
             {rows}"
        );
        store.write("fill", |tx, _| Ok(tx.execute_batch(&fill)?)).expect("rows");
        let steps = store.count_steps();
        let handlers = ["work".to_owned()].into();
        Site { store, handlers, steps, now: NOON, claimed: Vec::new(), room: 4, _home: home }
    }

    /// Runs a turn. Returns its result and its cost.
    fn turn(&mut self, full: bool, finished: &[Finished]) -> (Done, u64) {
        let now = Timestamp::from_millis(self.now);
        let work = Work {
            seen: None,
            now,
            monotonic: Duration::ZERO,
            halted: None,
            owner: "an-owner",
            registration: &Registration {
                owner: "an-owner".to_owned(),
                host: "here".to_owned(),
                workers: 4,
                lease: Duration::from_secs(60),
                zone_data: String::new(),
                problems: None,
            },
            handlers: &self.handlers,
            until: Timestamp::from_millis(self.now + MINUTE),
            finished,
            reports: &[],
            ended: &[],
            dead: &[],
            claimed: &BTreeMap::new(),
            former: &[],
            strays: &[],
            stalled: &[],
            database: Path::new("t.db"),
            doubts: &HashMap::new(),
            doubted: &HashSet::new(),
            rewind: None,
            stepped: 0,
            clock_events: &[],
            newer: false,
            draining: false,
            full,
            slots: Slots { room: self.room, idle: self.room },
            // Retention has its own limits and its own test.
            prune: None,
            most: MAX_ITEMS,
            derived: MAX_ITEMS / 2,
            ahead: 32,
        };
        let before = self.steps.load(Ordering::Relaxed);
        let done = turn::turn(&mut self.store, &work).expect("a turn");
        (done, self.steps.load(Ordering::Relaxed) - before)
    }

    /// Returns the cost of each turn of three minutes: a task due; nothing to do; a full turn; runs ended.
    fn minutes(&mut self) -> Vec<(&'static str, u64)> {
        let mut costs = Vec::new();
        for _ in 0..3 {
            let (done, cost) = self.turn(false, &[]);
            costs.push(("resolves and claims", cost));
            self.claimed.extend(done.claims);
            let (done, cost) = self.turn(false, &[]);
            costs.push(("finds nothing to do", cost));
            self.claimed.extend(done.claims);
            let (done, cost) = self.turn(true, &[]);
            costs.push(("is a full turn", cost));
            self.claimed.extend(done.claims);
            let ended = self.ended();
            assert!(!ended.is_empty(), "the healthy task runs every minute");
            let (done, cost) = self.turn(false, &ended);
            costs.push(("settles, and claims the next run", cost));
            self.claimed.extend(done.claims);
            self.now += MINUTE;
        }
        costs
    }

    /// Returns a success for each claimed run.
    fn ended(&mut self) -> Vec<Finished> {
        let now = Now { wall: Timestamp::from_millis(self.now), monotonic: Duration::ZERO };
        self.claimed.drain(..).map(|claim| Finished::new(claim, Outcome::succeeded(), now, now)).collect()
    }

    /// Executes runs of the task `crowded` until at least `most` are done, or none is left. Returns their ids, in order.
    fn drain(&mut self, most: usize) -> Vec<i64> {
        let mut done = Vec::new();
        self.room = 200;
        while done.len() < most {
            let ended = self.ended();
            let crowd = ended.iter().filter(|finished| finished.claim.task == "crowded");
            done.extend(crowd.map(|finished| finished.claim.run_id));
            let (turn, _) = self.turn(false, &ended);
            if ended.is_empty() && turn.claims.is_empty() {
                break;
            }
            self.claimed.extend(turn.claims);
        }
        done
    }
}

/// Asserts that each turn costs the same with few rows as with many, except for a level or two of a B-tree. Returns the site with
/// many.
fn assert_level(rows: &str) -> Site {
    assert_sites_level(crowds().map(|crowd| Site::new(rows, crowd)))
}

/// As [`assert_level`], for these two sites.
fn assert_sites_level([mut less, mut more]: [Site; 2]) -> Site {
    let (few, many) = (less.minutes(), more.minutes());
    for ((what, few), (_, many)) in few.iter().zip(&many) {
        println!("{what}: {few} steps with few rows, {many} with many");
    }
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        assert!(many <= few + few / 4 + 100, "a turn that {what}: {few} steps with few rows, {many} with many");
    }
    more
}

/// Asserts that at least `least` runs are done, oldest first.
fn assert_in_order(runs: &[i64], least: i64) {
    assert!(runs.is_sorted() && runs.len() as i64 >= least, "{} runs: {:?}", runs.len(), &runs[..runs.len().min(20)]);
}

/// Manual runs of one task, all with one key, of which one runs at a time.
const BEHIND_A_KEY: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run, planned)
    VALUES (2, 'crowded', 'work', 'interval', '1m', 1805025600000, 1805025600000, 1805025600000, 1);
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, blocked)
    SELECT 2, 'work', 1805000000000 + i, 'manual', 'queued', 1805000000000 + i, '#2', iif(i = 1, NULL, 'key') FROM n";

#[test]
fn runs_behind_one_key_cost_a_turn_nothing_and_drain_in_order() {
    // They run one at a time: a few hundred are enough.
    assert_in_order(&assert_level(BEHIND_A_KEY).drain(500), 500);
}

/// The second site has five times the rows of the first.
#[test]
fn the_cost_of_check_and_doctor_grows_no_faster_than_the_runs_behind_a_key() {
    let costs = [2_000, 10_000].map(|crowd| {
        let mut site = Site::new(BEHIND_A_KEY, crowd);
        let now = Timestamp::from_millis(site.now + 60 * MINUTE);
        let before = site.steps.load(Ordering::Relaxed);
        let found = health::health(&mut site.store, &Limits::default(), now).expect("facts");
        assert!(found.blocked.is_empty(), "{:?}", found.blocked);
        site.store.read("check the rules", |tx, _| Ok(invariants::broken(tx, 1)?)).expect("rules");
        site.steps.load(Ordering::Relaxed) - before
    });
    assert!(costs[1] < 7 * costs[0], "{costs:?} steps");
}

/// Runs that may start, but for an attempt of before a restore.
const HELD_BACK: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned, overlap)
    VALUES (2, 'crowded', 'work', 'manual', '', 1805025600000, 1805025600000, 1, 'allow');
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
    SELECT 2, 'work', 1805000000000 + i, 'manual', 'queued', 1805000000000 + i / 1000 FROM n;
    INSERT INTO scheduler_meta (key, value)
    VALUES ('held', '{\"an-earlier\":{\"by\":null,\"attempts\":[{\"run\":1,\"attempt\":1,\"task\":2,\"key\":null}]}}')";

#[test]
fn runs_that_are_held_back_after_a_restore_are_passed_over_in_parts() {
    let costs = crowds().map(|crowd| {
        let mut site = Site::new(HELD_BACK, crowd);
        let (mut turns, mut dearest) = (0, 0);
        loop {
            let (done, cost) = site.turn(false, &[]);
            (turns, dearest) = (turns + 1, cost.max(dearest));
            if done.claims.iter().any(|claim| claim.task == "healthy") {
                break;
            }
            assert!(done.more_due && done.claims.is_empty(), "turn {turns}");
        }
        assert!(turns <= crowd / turn::SWEEP as i64 + 2, "{turns} turns");
        dearest
    });
    assert!(costs[1] <= costs[0] + costs[0] / 4 + 100, "{costs:?} steps");
}

/// As [`BEHIND_A_KEY`], but each run belongs to a separate task.
const OF_MANY_TASKS: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned, status,
                                 concurrency_key)
    SELECT i + 1, 'crowded-' || i, 'work', 'once', '2027-03-14T11:00:00Z', 1805022000000, 1805022000000, 1, 'completed', 'shared'
      FROM n;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, blocked)
    SELECT i + 1, 'work', 1805000000000 + i, 'schedule', 'queued', 1805000000000 + i, 'shared', iif(i = 1, NULL, 'key') FROM n";

#[test]
fn runs_of_many_tasks_behind_one_key_cost_a_turn_nothing() {
    assert_level(OF_MANY_TASKS);
}

/// As [`OF_MANY_TASKS`], with a limit that is reached.
const BEHIND_A_LIMIT: &str = "
    INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('shared', 3);
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned, overlap)
    VALUES (2, 'crowded', 'work', 'manual', '', 1805025600000, 1805025600000, 1, 'allow');
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, blocked, attempt,
                           locked_by, locked_until, slot)
    SELECT 2, 'work', 1805000000000 + i, 'manual', iif(i <= 3, 'running', 'queued'), 1805000000000 + i, 'shared',
           iif(i <= 3, NULL, 'key'), i <= 3, iif(i <= 3, 'another', NULL), iif(i <= 3, 1805000000000, NULL),
           iif(i <= 3, i - 1, 0)
      FROM n";

#[test]
fn runs_behind_the_limit_of_a_key_cost_a_turn_nothing() {
    assert_level(BEHIND_A_LIMIT);
}

/// Runs of a handler that has reached its rate.
const BEHIND_A_RATE: &str = "
    INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('limited', 2, 86400000);
    INSERT INTO rate_limit_starts (subject, number, started_at)
    VALUES ('handler:limited', 1, 1805025600000), ('handler:limited', 2, 1805025600000);
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned, overlap)
    VALUES (2, 'crowded', 'limited', 'manual', '', 1805025600000, 1805025600000, 1, 'allow');
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
    SELECT 2, 'limited', 1805000000000 + i, 'manual', 'queued', 1805000000000 + i FROM n";

#[test]
fn runs_behind_the_rate_of_a_handler_cost_a_turn_nothing_and_drain_in_order_once_it_is_lifted() {
    let mut site = assert_sites_level(crowds().map(|crowd| {
        let mut site = Site::new(BEHIND_A_RATE, crowd);
        site.handlers.insert("limited".to_owned());
        site
    }));
    site.store.write("lift", |tx, _| Ok(tx.execute_batch("DELETE FROM rate_limits")?)).expect("no limit");
    assert_in_order(&site.drain(usize::MAX), crowds()[1]);
}

/// No scheduler has the handler, and the task continues to open runs.
const WITHOUT_A_HANDLER: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run, planned,
                                 overlap)
    VALUES (2, 'crowded', 'absent', 'interval', '1m', 1805025600000, 1805025600000, 1805025600000, 1, 'allow');
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
    SELECT 2, 'absent', 1805000000000 + i, 'schedule', 'queued', 1805000000000 + i FROM n";

#[test]
fn runs_without_a_handler_cost_a_turn_nothing_and_drain_in_order_once_it_is_registered() {
    let mut site = assert_level(WITHOUT_A_HANDLER);
    site.handlers.insert("absent".to_owned());
    assert_in_order(&site.drain(usize::MAX), crowds()[1]);
}

const OF_A_PAUSED_TASK: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned, overlap,
                                 status)
    VALUES (2, 'crowded', 'work', 'interval', '1m', 1805025600000, 1805025600000, 1, 'allow', 'paused');
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, blocked)
    SELECT 2, 'work', 1805000000000 + i, 'schedule', 'queued', 1805000000000 + i, 'paused' FROM n";

#[test]
fn runs_of_a_paused_task_cost_a_turn_nothing_and_drain_in_order_when_it_is_resumed() {
    let mut site = assert_level(OF_A_PAUSED_TASK);
    let now = Timestamp::from_millis(site.now);
    site.store
        .write("resume", |tx, schedules| task_changes::resume(tx, schedules, "crowded", now))
        .expect("a resumption");
    assert_in_order(&site.drain(usize::MAX), crowds()[1]);
}

const NOT_DUE_FOR_LONG: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run, planned)
    SELECT i + 1, 'crowded-' || i, 'work', 'once', '3000-01-01T00:00:00Z', 1805025600000, 1805025600000, 32503680000000, 1 FROM n";

#[test]
fn tasks_that_are_not_due_for_long_cost_a_turn_nothing() {
    assert_level(NOT_DUE_FOR_LONG);
}

/// Expired manual runs, of which every seventh is a retry of the one before it.
const EXPIRED: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run, planned)
    VALUES (2, 'crowded', 'work', 'interval', '1m', 1805025600000, 1805025600000, 1805025600000, 1);
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at, retry_of)
    SELECT 2, 'work', 1700000000000 + i, 'manual', 'succeeded', 1700000000000 + i, 1700000000000 + i, iif(i % 7 = 0, i - 1, NULL)
      FROM n";

#[test]
fn a_batch_of_retention_costs_the_same_with_few_rows_as_with_many() {
    let costs = crowds().map(|crowd| {
        let mut site = Site::new(EXPIRED, crowd);
        let keep = Retention { most_runs: 100, ..Retention::default() };
        let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
        let before = site.steps.load(Ordering::Relaxed);
        let now = Timestamp::from_millis(site.now);
        let more = site
            .store
            .write("prune", |tx, _| prune::batch(tx, &retention::Limits::new(&keep, now), &mut pass, 200, &mut pruned));
        assert!(more.expect("a batch") && pruned.runs == 200, "{pruned:?}");
        site.steps.load(Ordering::Relaxed) - before
    });
    assert!(costs[1] <= costs[0] + costs[0] / 4 + 100, "{costs:?} steps");
}

/// Dead runs of 300 tasks, and a run of each other task that may start.
const DEAD_BESIDE_CLAIMABLE: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, planned)
    SELECT i + 1, 'crowded-' || i, 'work', 'manual', '', 1805025600000, 1805025600000, 1 FROM n;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at, concurrency_key)
    SELECT i + 1, 'work', 1805000000000 + i, 'manual', iif(i > 300, 'queued', 'dead'), 1805000000000 + i,
           iif(i > 300, NULL, 1805000000000), '#' || (i + 1) FROM n";

#[test]
fn the_cost_of_many_retries_does_not_depend_on_the_runs_that_may_start() {
    let costs = crowds().map(|crowd| {
        let mut site = Site::new(DEAD_BESIDE_CLAIMABLE, crowd);
        let now = Timestamp::from_millis(site.now);
        let selection = Filter::all().selection(BulkAction::Retry, now).expect("a selection");
        let (mut pass, mut report) = (BulkPass::default(), BulkReport::default());
        let before = site.steps.load(Ordering::Relaxed);
        while !pass.is_over() {
            matching::change(&mut site.store, &selection, &mut pass, &mut report, now).expect("a batch");
        }
        assert_eq!((report.changed, report.left_count()), (300, 0));
        site.steps.load(Ordering::Relaxed) - before
    });
    // All runs are read once to find the dead ones.
    let [few, many] = crowds().map(|crowd| crowd as u64);
    assert!(costs[1] <= costs[0] + 8 * (many - few), "{costs:?} steps");
}

/// Final runs of one task.
const LONG_HISTORY: &str = "
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
    SELECT 1, 'work', 1700000000000 + i, 'schedule', 'succeeded', 1700000000000 + i, 1700000000000 + i FROM n";

#[test]
fn the_last_runs_cost_the_same_after_a_long_history_as_after_a_short_one() {
    let costs = crowds().map(|crowd| {
        let mut site = Site::new(LONG_HISTORY, crowd);
        let before = site.steps.load(Ordering::Relaxed);
        assert_eq!(history::recent(&mut site.store, 10).expect("runs")[&1].len(), 10);
        site.steps.load(Ordering::Relaxed) - before
    });
    assert!(costs[1] <= costs[0] + costs[0] / 4 + 100, "{costs:?} steps");
}

/// A final run of each of many tasks.
const MANY_TASKS: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, active_since, created_at, next_run, planned)
    SELECT i + 1, 'crowded-' || i, 'work', 'interval', '1m', 1805025600000, 1805025600000, 1805025600000, 1 FROM n;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
    SELECT i + 1, 'work', 1700000000000 + i, 'schedule', 'succeeded', 1700000000000 + i, 1700000000000 + i FROM n";

#[test]
fn the_last_runs_of_all_tasks_are_read_once() {
    let [crowd, _] = crowds();
    let mut site = Site::new(MANY_TASKS, crowd);
    let before = site.steps.load(Ordering::Relaxed);
    assert_eq!(history::recent(&mut site.store, 10).expect("runs").len() as i64, crowd);
    let cost = site.steps.load(Ordering::Relaxed) - before;
    assert!(cost < 16 * crowd.unsigned_abs(), "{cost} steps for {crowd} runs");
}
