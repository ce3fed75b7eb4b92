//! The statements that the server really runs, as its log shows them: none of those for work reads a large table from end to end, or
//! many of its rows, before an ANALYZE and after one.
#![cfg(unix)]

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duly::{BoxError, Client, Context, Filter, Limits, NewTask, Retention, RunFilter, RunStatus, Scheduler};

use crate::fixtures::on_server::session;
use crate::fixtures::{eventually, eventually_counts, patience, skip};
use crate::postgres::server::{Guard, address, programs, start};

/// Nothing is analysed but by the test. The plans of a parallel scan are of the same tables.
const SETTINGS: &str = "-c autovacuum=off -c jit=off -c max_parallel_workers_per_gather=0 -c max_wal_size=4GB";

/// Every later session logs every plan, with the rows that it read.
const LOGGED: &str = "
    LOAD 'auto_explain';
    ALTER ROLE postgres SET session_preload_libraries = 'auto_explain';
    ALTER ROLE postgres SET auto_explain.log_min_duration = 0;
    ALTER ROLE postgres SET auto_explain.log_analyze = on;
    ALTER ROLE postgres SET auto_explain.log_timing = off;
    ALTER ROLE postgres SET auto_explain.log_nested_statements = on";

/// The number of runs without `DULY_ROWS`. There is one task for ten runs.
const RUNS: i64 = 60_000;

/// Of RUNS runs 2,000 are unfinished, and of TASKS tasks three tenths live. Nothing is due. Foreign keys hold by construction.
const ROWS: &str = include_str!("plans/rows.sql");

/// The owner of some running runs has ended.
const LOST: &str = "
    SET duly.store = 'on';
    UPDATE task_runs SET locked_by = 'lost', locked_until = duly_now() - 60000
     WHERE id IN (SELECT id FROM task_runs WHERE locked_by = 'else' AND status = 'running' ORDER BY id LIMIT 30)";

const LARGE: [&str; 5] = ["scheduled_tasks", "task_runs", "task_attempts", "task_effects", "scheduler_events"];

/// More rows than are unfinished: a step that reads as many goes through a history.
const MOST: u64 = 5_000;

/// A batch of retention looks at 20,000 runs of the next tasks, and those of one more; a plan shows rounded averages.
const OF_RETENTION: [&str; 2] = ["WITH RECURSIVE scanned", "ORDER BY scheduled_for LIMIT t.most"];
const MOST_OF_RETENTION: u64 = 25_000;

/// Statements that read all living tasks: once at a start, and look-ups for a user.
const OF_ALL_TASKS: &[&str] = &["AND greatest(t.active_since, t.resolved_until"];

struct Server {
    folder: PathBuf,
    guard: Guard,
    /// How much of the log was read.
    read: AtomicU64,
}

impl Server {
    /// Returns what the server has logged since the last call.
    fn log(&self) -> String {
        let log = self.unread();
        self.read.fetch_add(log.len() as u64, Ordering::Relaxed);
        String::from_utf8_lossy(&log).into_owned()
    }

    fn unread(&self) -> Vec<u8> {
        let mut log = std::fs::File::open(self.folder.join("log")).expect("a log");
        log.seek(SeekFrom::Start(self.read.load(Ordering::Relaxed))).expect("a log");
        let mut text = Vec::new();
        log.read_to_end(&mut text).expect("a log");
        text
    }
}

/// The statements of a log, each with its plan.
fn plans(log: &str) -> Vec<String> {
    let mut plans = Vec::new();
    for line in log.lines() {
        if line.contains(" LOG:  ") || line.contains(" ERROR:  ") {
            plans.push(String::new());
        }
        if let Some(plan) = plans.last_mut() {
            plan.push_str(line);
            plan.push('\n');
        }
    }
    plans.retain(|plan| plan.contains("  plan:\n"));
    plans
}

fn number(line: &str, after: &str) -> Option<u64> {
    let rest = &line[line.rfind(after)? + after.len()..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

/// Returns why a plan reads too much.
fn fault(plan: &str, of_all_tasks: bool) -> Option<String> {
    let most = if OF_RETENTION.iter().any(|text| plan.contains(text)) { MOST_OF_RETENTION } else { MOST };
    let mut large = false;
    for line in plan.lines() {
        if line.contains("(cost=") {
            let sequence = line.contains("_id_seq");
            large = !sequence && line.contains("Scan") && LARGE.iter().any(|table| names(line, table));
            if large && line.contains("Seq Scan") && !(of_all_tasks && line.contains(" on scheduled_tasks ")) {
                return Some(line.trim().to_owned());
            }
            let read =
                number(line, "(actual rows=").zip(number(line, " loops=")).map_or(0, |(rows, loops)| rows * loops);
            if large && read > most && !of_all_tasks {
                return Some(line.trim().to_owned());
            }
        }
        if large && !of_all_tasks && number(line, "Rows Removed by Filter: ").is_some_and(|rows| rows > most) {
            return Some(line.trim().to_owned());
        }
    }
    None
}

/// Returns whether a line of a plan names this table, or an index of it: a bitmap scan of an index names no table.
fn names(line: &str, table: &str) -> bool {
    [" ", "_"].iter().any(|end| line.contains(&format!(" on {table}{end}")) || line.contains(&format!(" {table}_")))
}

/// Fails if a statement reads too much. Returns how many statements read or write a large table.
fn check(what: &str, log: &str, of_all_tasks: bool) -> usize {
    let mut plans = plans(log);
    for plan in &plans {
        let may = of_all_tasks || OF_ALL_TASKS.iter().any(|text| plan.contains(text));
        if let Some(line) = fault(plan, may) {
            panic!("{what}: {line}\n{plan}");
        }
    }
    plans.retain(|plan| LARGE.iter().any(|table| plan.contains(table)));
    let tenths = |plan: &String| number(plan, " LOG:  duration: ").unwrap_or_default();
    let longest = plans.iter().max_by_key(|plan| tenths(plan));
    let begin =
        longest.map_or("", |plan| plan.as_str()).split_whitespace().skip(4).take(24).collect::<Vec<_>>().join(" ");
    println!("{what}: {} statements read or write a large table, the longest: {begin}", plans.len());
    plans.len()
}

/// More rows than an empty or small table has, whose plan does not matter.
const FEW: u64 = 300;

/// Returns a condition of a plan that compares many rows of a large table, or of a join, with each element of an array: only an index looks
/// an element up.
fn compares_all(plan: &str) -> Option<String> {
    let (mut large, mut rows, mut found) = (false, 0, None);
    for line in plan.lines() {
        if line.contains("(cost=") {
            large = line.contains("Scan") && LARGE.iter().any(|table| names(line, table));
            rows = number(line, "(actual rows=").zip(number(line, " loops=")).map_or(0, |(rows, loops)| rows * loops);
            found = None;
        }
        let (is_filter, is_join) = (line.trim().starts_with("Filter: "), line.trim().starts_with("Join Filter: "));
        if (large && is_filter || is_join) && [" ANY ($", " ALL ($"].iter().any(|array| line.contains(array)) {
            found = Some(line.trim().to_owned());
        }
        let removed =
            ["Rows Removed by Filter: ", "Rows Removed by Join Filter: "].iter().find_map(|of| number(line, of));
        if found.is_some() && rows + removed.unwrap_or_default() > FEW {
            return found;
        }
    }
    None
}

/// More tasks than a statement compares with each other in no time.
const LISTED: usize = 1_500;

/// Every operation that names many tasks or runs.
#[test]
fn statements_with_lists_of_names_use_indexes() {
    let Some(programs) = programs() else { return skip("no PostgreSQL") };
    let Some((folder, guard)) = start(&programs, SETTINGS) else { return };
    let address = address(&folder);
    let server = Server { folder, guard, read: AtomicU64::new(0) };
    let client = Client::open(&address).expect("tables");
    if session(&address).batch_execute(LOGGED).is_err() {
        return skip("no auto_explain");
    }
    drop(client);
    let client = Client::open(&address).expect("a client");
    let declared = || {
        (0..LISTED)
            .map(|i| NewTask::manual(format!("task:{i}")).handler("work").concurrency_key(format!("key:{}", i % 300)))
    };
    let all = Filter::new().name("task:*");
    for (round, when) in [(0, "not analysed"), (1, "analysed")] {
        if round > 0 {
            session(&address).batch_execute("ANALYZE").expect("an analysis");
        }
        server.log();
        for _ in 0..2 {
            client.apply("tasks.toml", declared(), duly::Apply::default()).expect("a manifest");
        }
        let added = (0..LISTED).map(|i| NewTask::manual(format!("added:{i}")).handler("work"));
        client.add_all(added.clone()).expect("tasks");
        client.add_all(added).expect("the same tasks");
        for i in (0..LISTED).step_by(10) {
            client.trigger(&format!("task:{i}")).expect("a run");
        }
        client.pause_matching(&all).expect("pauses");
        client.resume_matching(&all).expect("resumptions");
        client.cancel_matching(&all).expect("cancels");
        client.retry_matching(&all).expect("retries");
        client.cancel_matching(&all).expect("cancels");
        client.status().expect("a status");
        client.check(&Limits::default()).expect("problems");
        let plans = plans(&server.log());
        assert!(plans.len() > 100, "{}", plans.len());
        for plan in &plans {
            if let Some(line) = compares_all(plan) {
                panic!("{when}: {line}\n{plan}");
            }
        }
    }
    drop(server.guard);
}

/// Twenty tasks with many runs, of which the newest have just died: no task has succeeded since.
const DIED: &str = "
    SET duly.store = 'on'; SET session_replication_role = 'replica'; SET synchronous_commit = off;
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, planned)
    SELECT 100 + i, 'task:' || i, 'work', 'manual', '', 1 FROM generate_series(0, 19) i;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at)
    SELECT 100 + i % 20, 'work', t + i, CASE WHEN i % 2 = 0 THEN 'manual' ELSE 'schedule' END,
           CASE WHEN i > 59980 THEN 'dead' ELSE 'succeeded' END, t + i, 1, t + i, t + i
      FROM generate_series(1, 60000) i, (SELECT duly_now() - 70000 AS t) AS t;
    ANALYZE";

#[test]
fn a_check_reads_no_history_to_find_whether_a_task_has_succeeded_since_a_death() {
    let Some(programs) = programs() else { return skip("no PostgreSQL") };
    let Some((folder, guard)) = start(&programs, SETTINGS) else { return };
    let address = address(&folder);
    let server = Server { folder, guard, read: AtomicU64::new(0) };
    drop(Client::open(&address).expect("tables"));
    session(&address).batch_execute(DIED).expect("rows");
    if session(&address).batch_execute(LOGGED).is_err() {
        return skip("no auto_explain");
    }
    let client = Client::open(&address).expect("a client");
    server.log();
    let problems = client.check(&Limits::default()).expect("problems");
    assert_eq!(problems.len(), 20, "{problems:?}");
    let plans = plans(&server.log());
    let plan = plans.iter().find(|plan| plan.contains("FROM task_runs d ")).expect("the statement with the dead runs");
    assert_eq!(fault(plan, true), None, "{plan}");
    drop(server.guard);
}

fn work(run: &Context) -> Result<(), BoxError> {
    match run.run_id() % 5 {
        0 => run.effect("charge", || Ok(1)).map(|_| ()),
        1 => Ok(run.finish_in_postgres(|tx| Ok(tx.execute("SELECT 1", &[]).map(|_| ())?))?),
        2 => Err("no route".into()),
        _ => Ok(()),
    }
}

fn work_of_a_scheduler(address: &str, home: &Path, server: &Server, round: u32, runs: i64) {
    let mut other = session(address);
    other.batch_execute("SET auto_explain.log_min_duration = -1").expect("a setting");
    other.batch_execute(LOST).expect("runs whose owner has ended");
    let scheduler = Scheduler::builder(address)
        .state_folder(home)
        .workers(4)
        .poll(Duration::from_millis(20))
        .retention(Retention { least_runs: if runs > RUNS { 0 } else { 100 }, ..Retention::default() })
        .handler("work", work)
        .start()
        .expect("a scheduler");
    let client = scheduler.client();
    let now = client.now();
    let of = |name: String| NewTask::once(name, now).handler("work").max_attempts(1);
    client.add_all((0..300).map(|i| of(format!("once:{round}:{i}")))).expect("tasks");
    client.add(NewTask::interval(format!("each:{round}"), Duration::from_secs(1)).handler("work")).expect("a task");
    client.add_all((0..20).map(|i| of(format!("key:{round}:{i}")).concurrency_key("mine"))).expect("tasks");
    let mut count = |text: &str| other.query_one(text, &[]).expect("a number").get::<_, i64>(0);
    let rounds = i64::from(round) + 1;
    let ended = format!(
        "SELECT count(*) FROM task_runs WHERE id > {runs} AND handler = 'work' AND status IN ('succeeded', 'dead')"
    );
    let number = usize::try_from(rounds * 320 + 1).expect("a number");
    let reader = std::cell::RefCell::new(&mut count);
    eventually_counts("all runs have ended", number, || {
        usize::try_from((reader.borrow_mut())(&ended)).expect("a count")
    });
    // The oldest run of each task.
    if runs == RUNS {
        let keep = Retention { once: Duration::from_secs(200 * 86_400), least_runs: 9 - round, ..Retention::default() };
        assert!(client.prune(keep).expect("a pass").runs > 0);
    }
    // By silence alone, an owner is dead a minute after it was first seen.
    if runs > RUNS {
        let lost = "SELECT count(*) FROM task_attempts WHERE outcome = 'lost' AND locked_by = 'lost'";
        for _ in 0..2 {
            let end = Instant::now() + Duration::from_secs(50);
            eventually("some of the runs of the lost owner are recovered", || {
                count(lost) == rounds * 30 || Instant::now() > end
            });
        }
        assert_eq!(count(lost), rounds * 30, "the runs of the lost owner are recovered");
    }
    eventually("a heartbeat", || String::from_utf8_lossy(&server.unread()).contains("SET seen_at = greatest"));
    scheduler.shutdown(patience()).expect("an end");
}

/// Uses tasks that retention never removes: they are due again.
fn work_of_a_client(address: &str, round: i64, tasks: i64) {
    let client = Client::open(address).expect("a client");
    let task = |last: i64| format!("task:{}", tasks - 2_100 - 100 * round + last);
    assert!(client.task(&task(7)).expect("a look").is_some());
    let history = client.history(&task(7), 10).expect("a history");
    assert!(!history.is_empty());
    client.newest_runs(10).expect("runs");
    client.runs(&RunFilter::newest(5)).expect("runs");
    client.attempts(history[0].id).expect("attempts");
    client.effects(history[0].id).expect("effects");
    client.run_details(history[0].id).expect("details");
    client.task_details(&task(7)).expect("details");
    client.trigger(&task(7)).expect("a run");
    client.pause(&task(7)).expect("a pause");
    client.resume(&task(7)).expect("a resume");
    client.cancel_all(&task(7)).expect("a cancel");
    let dead = client.history(&task(8), 10).expect("a history");
    let dead = dead.iter().find(|run| run.status == RunStatus::Dead).expect("a dead run");
    client.retry(dead.id).expect("a retry");
    client.remove(&task(9)).expect("a removal");
    client.limits().expect("limits");
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn statements_of_work_go_along_indexes() {
    let Some(programs) = programs() else { return skip("no PostgreSQL") };
    let runs = std::env::var("DULY_ROWS").map_or(RUNS, |rows| rows.parse().expect("a number of runs"));
    let Some((folder, guard)) = start(&programs, SETTINGS) else { return };
    let address = address(&folder);
    let server = Server { folder, guard, read: AtomicU64::new(0) };
    let home = tempfile::tempdir().expect("a folder");
    drop(Client::open(&address).expect("tables"));
    let mut loader = session(&address);
    let begin = Instant::now();
    let rows = ROWS.replace("RUNS", &runs.to_string()).replace("TASKS", &(runs / 10).to_string());
    loader.batch_execute(&rows).expect("rows");
    println!("{runs} runs in {} s", begin.elapsed().as_secs());
    if session(&address).batch_execute(LOGGED).is_err() {
        return skip("no auto_explain");
    }
    for (round, when) in [(0, "not analysed"), (1, "analysed")] {
        if round > 0 {
            loader.batch_execute("ANALYZE").expect("an analysis");
        }
        server.log();
        work_of_a_scheduler(&address, home.path(), &server, round, runs);
        let counted = check(&format!("a scheduler, {when}"), &server.log(), false);
        assert!(counted > 100, "{counted}");
        work_of_a_client(&address, i64::from(round), runs / 10);
        let counted = check(&format!("a client, {when}"), &server.log(), false);
        assert!(counted > 20, "{counted}");
        // What concerns all living tasks reads them, but no history.
        let client = Client::open(&address).expect("a client");
        client.status().expect("a status");
        client.check(&Limits::default()).expect("problems");
        check(&format!("an overview, {when}"), &server.log(), true);
    }
    drop(server.guard);
}
