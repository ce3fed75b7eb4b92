//! Every statement of the store fits the schema, and the hot ones use an index: with no rows, with many, and with any
//! statistics of ANALYZE.

use std::collections::BTreeSet;

use duly::NewTask;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::docs::tree;
use crate::fixtures::{NOON, TestDb, at};
use crate::store_sql::statements;

/// A statement's plan, a line for each step.
type Plan = Vec<String>;

/// Opens a file with duly's tables, with the settings of duly's own connections.
fn planner() -> (TestDb, Connection) {
    let db = TestDb::new();
    db.stepper(NOON).stop().expect("an end");
    let connection = db.plain();
    rusqlite::vtab::array::load_module(&connection).expect("lists of ids");
    // Only the tables in memory of a store on a server have it.
    let sessions =
        "CREATE TEMP TABLE owner_sessions (owner TEXT PRIMARY KEY, session INTEGER NOT NULL) STRICT, WITHOUT ROWID";
    connection.execute_batch(sessions).expect("sessions");
    assert!(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).expect("a setting"));
    (db, connection)
}

fn plan(connection: &Connection, name: &str, text: &str) -> Plan {
    let mut statement = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {text}"))
        .unwrap_or_else(|error| panic!("{name} does not fit the schema: {error}\n{text}"));
    // Nothing is bound: under QPSG a plan does not depend on values.
    let mut rows = statement.raw_query();
    let mut steps = Plan::new();
    while let Some(row) = rows.next().expect("a plan") {
        let step: String = row.get(3).expect("a step");
        // Whether the row is read too differs between versions.
        steps.push(step.replace("COVERING INDEX", "INDEX"));
    }
    steps
}

/// Ten thousand tasks and ten thousand runs, some in each state.
fn fill(connection: &Connection) {
    connection
        .execute_batch(
            "BEGIN;
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, next_run, planned, priority,
                                          active_since)
             SELECT 't:' || i, 'work', 'cron', '0 7 * * *', iif(i % 10 = 0, 'paused', 'active'),
                    iif(i % 10 = 0, NULL, 1805000000000 + i * 1000), i % 50 <> 1, i % 4, 1800000000000 FROM n;
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, expires_at, blocked, priority,
                                    concurrency_key, attempt, locked_by, locked_until, finished_at)
             SELECT 1 + i % 300, 'work:' || i % 5, 1805000000000 + i * 1000, iif(i % 7 = 0, 'manual', 'schedule'),
                    iif(i % 40 = 0, 'running', iif(i % 3 = 0, 'queued', iif(i % 11 = 0, 'failed', 'succeeded'))),
                    1805000000000 + i * 1000, iif(i % 9 = 0, 1806000000000, NULL),
                    iif(i % 40 <> 0 AND i % 3 = 0 AND i % 4 <> 0, iif(i % 2 = 0, 'key', 'order'), NULL), i % 4,
                    '#' || iif(i % 40 = 0, i, i % 300), 1,
                    iif(i % 40 = 0, 'owner', NULL), iif(i % 40 = 0, 1805000060000, NULL),
                    iif(i % 40 = 0 OR i % 3 = 0, NULL, 1805000000001) FROM n;
             COMMIT;",
        )
        .expect("many rows");
}

/// The hot statements with their complete plans: a name, and below it the steps. A name alone is a plan to be written:
/// `DULY_WRITE_PLANS=1 cargo test --test it hot_statements` writes those with no rows, and the test compares all. Monitors read
/// unfinished and recent dead runs, whatever the history. The index `task_runs_running` holds at most as many runs as all owners have
/// workers.
const HOT: &str = "tests/it/query_plans/hot.txt";

/// Statements that may scan a table or sort: look-ups for a user, or tables with few rows. Alarms are conditions that last: at most a
/// few for each task. Retention keeps a hundred schedulers. Behind a key, at most as many runs start as its limit says.
const MAY_SCAN: &str = "
    actions: NAMING
    alarms: CLAIM_BEGAN CLAIM_ENDED DELIVERED DELIVERED_END ENDED_SINCE ITEMS LOST PENDING REPLACED TOTAL
    alarms: UNCLAIM
    blocked: BLOCK_ALL_OTHERS UNBLOCK_ALL
    bulk: TABLE_AND_TRIGGERS
    census: FAILING NEXT OVERDUE TASKS UNFINISHED
    clock_mark: CLOSE_AHEAD
    due: DUE NEXT_OTHER PLAIN
    followers: ANY
    health: ANY_WORK COUNTED_BEYOND ENDED_WORKERS FAILING INSTANCES INTERRUPTED INVALID OVERDUE PROBLEMS
    health: FOLLOWED PASSED_OVER WAITING ZONES ZONE_DATA
    history: ALL_RUNS NEWEST NEWEST_OF_TASK RECENT SIZES
    ids: RESERVE
    invariants: ATTEMPTS_BEYOND ATTEMPTS_WITHOUT_RUN FEW_ROWS FREE_TWICE KEYS_TWICE LIVE_TASK_TEXT
    invariants: MANUAL_COMPLETED OCCURRENCES_MISCOUNTED OCCURRENCES_TWICE OWNERLESS REOPENED RUNS_WITHOUT_TASK
    invariants: RUN_TEXT STARTS_WITHOUT_LIMIT TASKS_WITHOUT_NEXT TASKS_WITH_A_NEXT TASK_TEXT WAITING
    limit_requests: HANDLERS KEYS MANAGED
    limits: ANY RATES
    marks: IS_MARKED KEYS MARKED
    migration: NOT_STOPPED
    once: COMPLETE_ALL START_ALL
    own_triggers: TRIGGERS
    owners: HAS_SESSIONS NEWEST_SEEN NOT_ENDED NOT_STOPPED STOP_ALL
    prune: INSTANCES OLD_EVENTS
    queue: WAITING
    replan: ENDED INSTANCES LAST_RUNS LOCAL_TASKS TASKS WAITING ZONES_IN_USE
    record: IDS
    restore: BEGIN_SEQUENCE RAISE
    schedulers: STOPPED
    seen: IDS SEEN
    starts: ANY_WAITS
    task_pages: FOUND MARKS OF_TASK TASKS UNFINISHED
    tasks: ALL DELETE_RUNS MANAGED_BY NAMES";
const MAY_SORT: &str = "
    alarms: PENDING
    blocked: FIRST_WAITING KEYS_OF_FRONT
    census: FAILING NEXT TASKS UNFINISHED
    health: DEAD FAILING INSTANCES INTERRUPTED INVALID OVERDUE PASSED_OVER STUCK ZONES ZONE_DATA
    history: LAST_OF_ONCE NEWEST_OF_TASK
    invariants: FREE_TWICE KEYS_TWICE OCCURRENCES_TWICE REOPENED
    limit_requests: MANAGED
    marks: KEYS
    owners: OTHERS
    prune: INSTANCES
    queue: RUNNING WAITING
    schedulers: STOPPED
    task_pages: FOUND MARKS OF_TASK TASKS
    timeline: COUNTED";

/// The statements of a list: a module and its constants in each line.
fn listed(list: &str) -> BTreeSet<String> {
    let lines = list.lines().filter_map(|line| line.trim().split_once(": "));
    lines.flat_map(|(module, names)| names.split(' ').map(move |name| format!("{module}::{name}"))).collect()
}

/// Writes by SQL, and how often their triggers search the unfinished runs of the task: never its final runs.
const TRIGGERS: &[(&str, usize)] = &[
    ("UPDATE scheduled_tasks SET status = 'paused' WHERE id = 1", 0),
    ("UPDATE scheduled_tasks SET handler = 'other' WHERE id = 1", 0),
    ("DELETE FROM scheduled_tasks WHERE id = 1", 3),
];

const NO_ROWS: &str = "no rows";

fn check(connection: &Connection, when: &str) {
    let (statements, may_scan, may_sort) = (statements(), listed(MAY_SCAN), listed(MAY_SORT));
    let hot = std::fs::read_to_string(tree().join(HOT)).expect("the plans").replace("\r\n", "\n");
    let mut found = String::new();
    for name in hot.lines().filter(|line| !line.starts_with(' ')) {
        let text = statements.get(name).unwrap_or_else(|| panic!("{name} is not among the store's statements"));
        found.extend([name, "\n"]);
        found.extend(plan(connection, name, text).iter().flat_map(|step| ["    ", step, "\n"]));
    }
    if std::env::var_os("DULY_WRITE_PLANS").is_some() && when == NO_ROWS {
        std::fs::write(tree().join(HOT), &found).expect("the plans");
    } else {
        let differs = hot.lines().zip(found.lines()).find(|(expected, found)| expected != found);
        assert!(hot == found, "{when}: expected and found {differs:?}, in\n{found}");
    }
    for (name, text) in &statements {
        for step in plan(connection, name, text) {
            let scans = step.starts_with("SCAN ")
                && !step.starts_with("SCAN CONSTANT ROW")
                && !step.starts_with("SCAN (subquery")
                && !step.ends_with("USING INDEX task_runs_running");
            assert!(!scans || may_scan.contains(name), "{name}, {when}: {step}");
            let sorts = step.contains("TEMP B-TREE");
            assert!(!sorts || may_sort.contains(name), "{name}, {when}: {step}");
        }
    }
    let set = |on| connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRIGGER_EQP, on).expect("a setting");
    set(true);
    for (write, expected) in TRIGGERS {
        let steps = plan(connection, "a write", write);
        let found = steps.iter().filter(|step| step.ends_with("USING INDEX task_runs_unfinished (task_id=?)")).count();
        assert_eq!(found, *expected, "{write}, {when}: {steps:#?}");
    }
    set(false);
}

#[test]
fn every_statement_fits_the_schema() {
    let (_db, connection) = planner();
    let statements = statements();
    assert!(statements.len() >= 180, "only {} statements were found: {:?}", statements.len(), statements.keys());
    for (name, text) in &statements {
        connection.prepare(text).unwrap_or_else(|error| panic!("{name} does not fit the schema: {error}\n{text}"));
    }
    for name in listed(MAY_SCAN).union(&listed(MAY_SORT)) {
        assert!(statements.contains_key(name), "{name} is no statement any more: take it off the list");
    }
}

#[test]
fn hot_statements_use_their_index() {
    let (_db, connection) = planner();
    check(&connection, NO_ROWS);
    connection.execute_batch("ANALYZE").expect("an analysis");
    check(&connection, "no rows, analysed");
    connection.execute_batch("DELETE FROM sqlite_stat1; ANALYZE sqlite_schema").expect("no analysis");
    fill(&connection);
    check(&connection, "many rows");
    connection.execute_batch("ANALYZE").expect("an analysis");
    check(&connection, "many rows, analysed");
}

/// Statistics of few rows stay while the tables grow.
#[test]
fn statements_for_many_rows_read_no_other_rows_after_an_analysis_of_few() {
    let range = "SEARCH scheduled_tasks USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
    for rows in [3, 10, 50] {
        let (_db, connection) = planner();
        let few = format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
             SELECT 't:' || i, 'work', 'cron', '0 7 * * *', 1805000000000 + i, 1 FROM n;
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, finished_at)
             SELECT id, 'work', next_run, 'schedule', 'succeeded', next_run, 1, next_run FROM scheduled_tasks;
             ANALYZE"
        );
        connection.execute_batch(&few).expect("few rows, analysed");
        let found = |name: &str| plan(&connection, name, &statements()[name]);
        assert_eq!(found("once::COMPLETE_SPAN"), [range]);
        assert_eq!(found("runs::SUCCEED_SPAN"), [range.replace("scheduled_tasks", "task_runs")]);
        assert_eq!(found("once::COMPLETE_ALL")[0], range);
        assert_eq!(found("once::STARTED"), ["SEARCH task_runs USING INTEGER PRIMARY KEY (rowid>?)"]);
        assert_eq!(
            found("history::NEWEST_OF_TASK"),
            [
                "CO-ROUTINE newest",
                "SEARCH n USING INDEX task_runs_one_per_occurrence (task_id=?)",
                "USE TEMP B-TREE FOR ORDER BY",
                "SCAN newest",
                "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
                "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
            ]
        );
    }
}

/// Duly's pragmas are set, and a file that it opened has them.
#[test]
fn the_pragmas_of_duly_are_set_and_stay() {
    let (db, connection) = planner();
    assert_eq!(db.ask("PRAGMA journal_mode"), "wal");
    assert_eq!(db.ask("PRAGMA user_version"), "0", "it may be an application's");
    assert_eq!(db.ask("PRAGMA application_id"), "0");
    // A write by a client reaches a reader at once, and does not change them either.
    let client = db.client();
    client.add(NewTask::once("later", at("2030-01-01T00:00:00Z")).handler("work")).expect("a task");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks"), "1");
    assert_eq!(db.ask("PRAGMA user_version"), "0");
    drop(connection);
}
