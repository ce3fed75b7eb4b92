//! Every statement of the store fits the schema, and the hot ones use an index: with no rows, with many, and with any
//! statistics of ANALYZE.

use duly::NewTask;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

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

/// The complete expected plans of the hot statements.
const HOT: &[(&str, &[&str])] = &[
    (
        "recorded::NEWEST",
        &["SEARCH e USING INTEGER PRIMARY KEY (rowid<?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"],
    ),
    (
        "recorded::NEWEST_OF_KIND",
        &[
            "SEARCH e USING INDEX scheduler_events_of_kind (kind=? AND rowid<?)",
            "SEARCH t USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
        ],
    ),
    (
        "recorded::NEWEST_OF_TASK",
        &[
            "SEARCH e USING INDEX scheduler_events_of_task (task_id=? AND rowid<?)",
            "SEARCH t USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
        ],
    ),
    ("manual::REQUESTED", &["SEARCH task_runs USING INDEX task_runs_requested (task_id=? AND request_key=?)"]),
    ("due::DUE_LIST", &["SEARCH scheduled_tasks USING INDEX scheduled_tasks_due (priority=? AND next_run<?)"]),
    (
        "due::NEXT_DUE",
        &[
            "SCAN CONSTANT ROW",
            "SCALAR SUBQUERY 1",
            "SEARCH scheduled_tasks USING INDEX scheduled_tasks_due (priority=? AND next_run>?)",
            "SCALAR SUBQUERY 2",
            "SEARCH scheduled_tasks USING INDEX scheduled_tasks_due (priority=? AND next_run>?)",
            "SCALAR SUBQUERY 3",
            "SEARCH scheduled_tasks USING INDEX scheduled_tasks_due (priority=? AND next_run>?)",
            "SCALAR SUBQUERY 4",
            "SEARCH scheduled_tasks USING INDEX scheduled_tasks_due (priority=? AND next_run>?)",
        ],
    ),
    (
        "due::DUE",
        &[
            "SCAN rarray VIRTUAL TABLE INDEX 1:",
            "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
            "CORRELATED SCALAR SUBQUERY 1",
            "SEARCH r USING INDEX task_runs_unfinished (task_id=?)",
        ],
    ),
    ("claim::CLAIMABLE", &["SEARCH task_runs USING INDEX task_runs_claimable (handler=? AND priority=? AND run_at<?)"]),
    (
        "claim::ANY_CLAIMABLE",
        &["SCAN CONSTANT ROW", "SCALAR SUBQUERY 1", "SEARCH task_runs USING INDEX task_runs_claimable (handler>?)"],
    ),
    (
        "claim::NEXT_CLAIMABLE",
        &[
            "SCAN CONSTANT ROW",
            "SCALAR SUBQUERY 1",
            "SEARCH task_runs USING INDEX task_runs_claimable (handler=? AND priority=?)",
            "SCALAR SUBQUERY 2",
            "SEARCH task_runs USING INDEX task_runs_claimable (handler=? AND priority=?)",
            "SCALAR SUBQUERY 3",
            "SEARCH task_runs USING INDEX task_runs_claimable (handler=? AND priority=?)",
            "SCALAR SUBQUERY 4",
            "SEARCH task_runs USING INDEX task_runs_claimable (handler=? AND priority=?)",
        ],
    ),
    (
        "open::UNFINISHED",
        &[
            "COMPOUND QUERY",
            "LEFT-MOST SUBQUERY",
            "CO-ROUTINE (subquery-1)",
            "SEARCH task_runs USING INDEX task_runs_unfinished (task_id=? AND <expr>=?)",
            "SCAN (subquery-1)",
            "UNION ALL",
            "CO-ROUTINE (subquery-3)",
            "SEARCH task_runs USING INDEX task_runs_unfinished (task_id=? AND <expr>>?)",
            "SCAN (subquery-3)",
        ],
    ),
    (
        "runs::CLAIM",
        &[
            "SEARCH task_runs USING INTEGER PRIMARY KEY (rowid=?)",
            "CORRELATED SCALAR SUBQUERY 1",
            "SEARCH k USING INDEX task_runs_running (concurrency_key=?)",
        ],
    ),
    ("runs::SUCCEED", &["SEARCH task_runs USING INTEGER PRIMARY KEY (rowid=?)"]),
    ("runs::SUCCEED_SPAN", &["SEARCH task_runs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
    ("once::COMPLETE_SPAN", &["SEARCH scheduled_tasks USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
    (
        "runs::FAIL",
        &[
            "SEARCH task_runs USING INTEGER PRIMARY KEY (rowid=?)",
            "CORRELATED SCALAR SUBQUERY 1",
            "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
        ],
    ),
    (
        "runs::GROW_SKIP",
        &[
            "SEARCH task_runs USING INTEGER PRIMARY KEY (rowid=?)",
            "SCALAR SUBQUERY 1",
            "SEARCH task_runs USING INDEX task_runs_one_per_occurrence (task_id=? AND <expr>=?)",
        ],
    ),
    // This index holds only running runs: at most as many as all owners have workers.
    ("owners::EXTEND", &["SCAN task_runs USING INDEX task_runs_running"]),
    ("owners::STILL_CLAIMED", &["SCAN task_runs USING INDEX task_runs_running"]),
    ("owners::ASKED_TO_STOP", &["SCAN task_runs USING INDEX task_runs_running"]),
    ("owners::WATCHED", &["SCAN task_runs USING INDEX task_runs_running"]),
    ("owners::OTHERS", &["SCAN task_runs USING INDEX task_runs_running", "USE TEMP B-TREE FOR GROUP BY"]),
    ("settle::EXPIRING", &["SEARCH task_runs USING INDEX task_runs_expiring (expires_at>? AND expires_at<?)"]),
    // Whatever the history, monitors read unfinished and recent dead runs.
    ("queue::RUNNING", &["SCAN task_runs USING INDEX task_runs_running", "USE TEMP B-TREE FOR GROUP BY"]),
    ("queue::WAITING", &["SCAN task_runs USING INDEX task_runs_waiting", "USE TEMP B-TREE FOR GROUP BY"]),
    ("queue::LIMITED", &["SEARCH task_runs USING INDEX task_runs_claimable (handler=?)"]),
    (
        "health::DEAD",
        &[
            "SEARCH r USING INDEX task_runs_dead (finished_at>?)",
            "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
            "CORRELATED SCALAR SUBQUERY 1",
            "SEARCH s USING INDEX task_runs_one_per_occurrence (task_id=? AND <expr>=? AND scheduled_for>?)",
            "CORRELATED SCALAR SUBQUERY 2",
            "SEARCH s USING INDEX task_runs_one_per_occurrence (task_id=? AND <expr>>?)",
            "USE TEMP B-TREE FOR GROUP BY",
            "USE TEMP B-TREE FOR ORDER BY",
        ],
    ),
    ("settle::NEXT_EXPIRY", &["SEARCH task_runs USING INDEX task_runs_expiring (expires_at>?)"]),
    // Of each task only the displayed runs are read.
    (
        "history::RECENT",
        &[
            "SCAN t USING INDEX sqlite_autoindex_scheduled_tasks_1",
            "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
            "CORRELATED LIST SUBQUERY 4",
            "COMPOUND QUERY",
            "LEFT-MOST SUBQUERY",
            "CO-ROUTINE (subquery-1)",
            "SEARCH n USING INDEX task_runs_one_per_occurrence (task_id=? AND <expr>=?)",
            "SCAN (subquery-1)",
            "UNION ALL",
            "CO-ROUTINE (subquery-3)",
            "SEARCH n USING INDEX task_runs_one_per_occurrence (task_id=? AND <expr>>?)",
            "SCAN (subquery-3)",
        ],
    ),
    ("settle::KEEP_LAST", &["SEARCH scheduled_tasks USING INTEGER PRIMARY KEY (rowid=?)"]),
    ("schema::STORED", &["SEARCH scheduler_meta USING PRIMARY KEY (key=?)"]),
    ("tasks::BY_NAME", &["SEARCH scheduled_tasks USING INDEX sqlite_autoindex_scheduled_tasks_1 (name=?)"]),
    ("tasks::UNPLANNED", &["SEARCH scheduled_tasks USING INDEX scheduled_tasks_unplanned (planned=?)"]),
    (
        "blocked::ANY_BLOCKED",
        &["SCAN CONSTANT ROW", "SCALAR SUBQUERY 1", "SEARCH task_runs USING INDEX task_runs_waiting (blocked>?)"],
    ),
    (
        "blocked::KEY_IS_FREE",
        &[
            "SCAN CONSTANT ROW",
            "SCALAR SUBQUERY 1",
            "SEARCH task_runs USING INDEX task_runs_running (concurrency_key=?)",
            "SCALAR SUBQUERY 2",
            "SEARCH task_runs USING INDEX task_runs_waiting (blocked=? AND concurrency_key=?)",
            "SCALAR SUBQUERY 3",
            "SEARCH task_runs USING INDEX task_runs_waiting (blocked=? AND concurrency_key=?)",
        ],
    ),
    (
        "blocked::HOLDS_KEY",
        &[
            "SCAN CONSTANT ROW",
            "SCALAR SUBQUERY 1",
            "SEARCH task_runs USING INDEX task_runs_running (concurrency_key=?)",
        ],
    ),
    ("blocked::PAUSE", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id=?)"]),
    ("blocked::RESUME", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id=?)"]),
    ("settle::CANCELLING", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id=?)"]),
    ("open::WAITING", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id=? AND <expr>=?)"]),
    ("blocked::OLDEST_SCHEDULED", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id=? AND <expr>=?)"]),
    ("blocked::NEXT_KEY", &["SEARCH task_runs USING INDEX task_runs_waiting (blocked=? AND concurrency_key>?)"]),
    (
        "matching::UNFINISHED",
        &["SEARCH r USING INDEX task_runs_unfinished (task_id<?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"],
    ),
    (
        "matching::FINAL",
        &["SEARCH r USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"],
    ),
    (
        "matching::TASKS",
        &[
            "SEARCH t USING INDEX sqlite_autoindex_scheduled_tasks_1 (name>?)",
            "CORRELATED SCALAR SUBQUERY 1",
            "SEARCH r USING INDEX task_runs_one_per_occurrence (task_id=?)",
        ],
    ),
    ("matching::RETRY", &["SEARCH task_runs USING INDEX task_runs_retried (task_id=? AND retry_of=?)"]),
    ("blocked::NEXT_TASK", &["SEARCH task_runs USING INDEX task_runs_unfinished (task_id>?)"]),
];

/// Statements that may scan a table or sort: look-ups for a user, or tables with few rows.
const MAY_SCAN: &[&str] = &[
    // Conditions that last: at most a few for each task, and none without alarms.
    "alarms::CLAIM_BEGAN",
    "alarms::CLAIM_ENDED",
    "alarms::DELIVERED",
    "alarms::DELIVERED_END",
    "alarms::ENDED_SINCE",
    "alarms::ITEMS",
    // With statistics of no schedulers; retention keeps a hundred.
    "alarms::LOST",
    "alarms::PENDING",
    "alarms::REPLACED",
    "alarms::TOTAL",
    "alarms::UNCLAIM",
    "bulk::TABLE_AND_TRIGGERS",
    "census::TASKS",
    "census::UNFINISHED",
    "census::OVERDUE",
    "census::FAILING",
    "census::NEXT",
    "health::INSTANCES",
    "health::PROBLEMS",
    "history::NEWEST",
    "history::NEWEST_OF_TASK",
    "history::RECENT",
    "history::ALL_RUNS",
    "history::SIZES",
    "ids::RESERVE",
    "owners::HAS_SESSIONS",
    "replan::LAST_RUNS",
    "health::ENDED_WORKERS",
    "prune::OLD_EVENTS",
    "task_pages::TASKS",
    "task_pages::MARKS",
    "task_pages::RUNS",
    "tasks::ALL",
    "tasks::NAMES",
    "tasks::MANAGED_BY",
    "owners::NOT_STOPPED",
    "owners::NOT_ENDED",
    "migration::NOT_STOPPED",
    "owners::STOP_ALL",
    "owners::NEWEST_SEEN",
    "prune::INSTANCES",
    "due::DUE",
    "once::COMPLETE_ALL",
    "once::START_ALL",
    "invariants::RUNS_WITHOUT_TASK",
    "invariants::ATTEMPTS_WITHOUT_RUN",
    "invariants::FEW_ROWS",
    "invariants::WAITING",
    "invariants::OCCURRENCES_TWICE",
    "invariants::KEYS_TWICE",
    "invariants::TASKS_WITHOUT_NEXT",
    "invariants::TASKS_WITH_A_NEXT",
    "invariants::MANUAL_COMPLETED",
    "invariants::FREE_TWICE",
    "invariants::ATTEMPTS_BEYOND",
    "invariants::OWNERLESS",
    "invariants::REOPENED",
    "invariants::OCCURRENCES_MISCOUNTED",
    "invariants::TASK_TEXT",
    "invariants::RUN_TEXT",
    "invariants::LIVE_TASK_TEXT",
    "health::ZONES",
    "health::OVERDUE",
    "health::UNREPORTED",
    "health::FAILING",
    "health::INVALID",
    "health::WAITING",
    "health::ANY_WORK",
    "health::COUNTED_BEYOND",
    "replan::LOCAL_TASKS",
    "replan::ENDED",
    "replan::TASKS",
    "replan::WAITING",
    "replan::ALL_TASKS",
    "replan::LATER",
    "replan::INSTANCES",
    "replan::STARTS",
    "invariants::STARTS_WITHOUT_LIMIT",
    "limits::ANY",
    "limits::RATES",
    "limit_requests::KEYS",
    "limit_requests::HANDLERS",
    "limit_requests::MANAGED",
    // Retention keeps a hundred.
    "schedulers::STOPPED",
    // Lists of at most as many runs as may start behind a key.
    "blocked::BLOCK_ALL_OTHERS",
    "blocked::UNBLOCK_ALL",
    // The index of runs that wait.
    "queue::WAITING",
];
const MAY_SORT: &[&str] = &[
    "alarms::PENDING",
    "census::TASKS",
    "census::UNFINISHED",
    "census::FAILING",
    "census::NEXT",
    "health::INSTANCES",
    "history::NEWEST_OF_TASK",
    "history::LAST_OF_ONCE",
    "owners::OTHERS",
    "task_pages::TASKS",
    "task_pages::MARKS",
    "task_pages::RUNS",
    "invariants::OCCURRENCES_TWICE",
    "invariants::KEYS_TWICE",
    "invariants::FREE_TWICE",
    "invariants::REOPENED",
    "health::OVERDUE",
    "health::UNREPORTED",
    "health::FAILING",
    "health::DEAD",
    "health::STUCK",
    "prune::INSTANCES",
    "health::INVALID",
    "health::ZONES",
    "blocked::FIRST_WAITING",
    "blocked::KEYS_OF_TASK",
    "limit_requests::MANAGED",
    "schedulers::STOPPED",
    "queue::RUNNING",
    "queue::WAITING",
];

/// Writes by SQL, and how often their triggers search the unfinished runs of the task: never its final runs.
const TRIGGERS: &[(&str, usize)] = &[
    ("UPDATE scheduled_tasks SET status = 'paused' WHERE id = 1", 3),
    ("UPDATE scheduled_tasks SET handler = 'other' WHERE id = 1", 1),
    ("DELETE FROM scheduled_tasks WHERE id = 1", 3),
];

fn check(connection: &Connection, when: &str) {
    let statements = statements();
    for (name, expected) in HOT {
        let text = statements.get(*name).unwrap_or_else(|| panic!("{name} is not among the store's statements"));
        assert_eq!(plan(connection, name, text), *expected, "{name}, {when}");
    }
    for (name, text) in &statements {
        for step in plan(connection, name, text) {
            let scans = step.starts_with("SCAN ")
                && !step.starts_with("SCAN CONSTANT ROW")
                && !step.starts_with("SCAN (subquery")
                && !step.ends_with("USING INDEX task_runs_running");
            assert!(!scans || MAY_SCAN.contains(&name.as_str()), "{name}, {when}: {step}");
            let sorts = step.contains("TEMP B-TREE");
            assert!(!sorts || MAY_SORT.contains(&name.as_str()), "{name}, {when}: {step}");
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
    for name in MAY_SCAN.iter().chain(MAY_SORT) {
        assert!(statements.contains_key(*name), "{name} is no statement any more: take it off the list");
    }
}

#[test]
fn hot_statements_use_their_index() {
    let (_db, connection) = planner();
    check(&connection, "no rows");
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
