//! Rows that no version of duly writes: no page fails because of the row of another task or run.

use crate::fixtures::TestDb;
use crate::page_run::Served;

/// Two tasks with runs, attempts, effects and events, and a stopped scheduler.
const ROWS: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, next_run, planned, status)
    VALUES (1, 'good', 'work', 'cron', '0 7 * * *', unixepoch() * 1000 + 3600000, 1, 'active'),
           (2, 'bad', 'work', 'cron', '0 7 * * *', unixepoch() * 1000 + 3600000, 1, 'active');
    INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
    SELECT id, 1 + (id > 3), 'work', unixepoch() * 1000 - 600000 + id, 'manual', iif(id % 3 = 0, 'dead', 'succeeded'),
           unixepoch() * 1000 - 600000, 1, unixepoch() * 1000 - 600000, unixepoch() * 1000 - 500000, 100000
      FROM (SELECT 1 AS id UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6);
    INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at)
    SELECT id, id - 6, 'work', unixepoch() * 1000, 'manual', 'queued', unixepoch() * 1000 + 3600000
      FROM (SELECT 7 AS id UNION SELECT 8);
    INSERT INTO task_attempts (run_id, attempt, outcome, final, locked_by, finished_at)
    SELECT id, 1, 'failed', 1, 'owner', 1805025600000 FROM task_runs WHERE status = 'dead';
    INSERT INTO task_effects (key, run_id, state, created_at) SELECT 'post', id, 'intent', 1805025600000 FROM task_runs WHERE status = 'dead';
    INSERT INTO scheduler_events (id, at, kind, task_id) VALUES (1000, 1805025600000, 'edited', 1), (1001, 1805025600000, 'edited', 2);
    INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
    VALUES ('stopped', 'host', 1, '1', 1, 60000, 1805025600000, 1805025600000, 1805025600000);";

/// What another program wrote.
const DAMAGE: &[&str] = &[
    "UPDATE task_runs SET status = 'odd' WHERE id = 6",
    "UPDATE task_runs SET status = CAST(x'ff' AS TEXT) WHERE id = 6",
    "UPDATE task_runs SET status = 'odd' WHERE id = 8",
    "UPDATE task_runs SET origin = 'odd' WHERE id > 3 AND id <> 7",
    "UPDATE task_runs SET origin = 'odd', status = 'odd', retry_of = 3 WHERE id = 6",
    "UPDATE task_runs SET status = 'odd', retry_of = 3, task_id = 1 WHERE id = 6",
    "UPDATE task_runs SET scheduled_for = -9223372036854775808, run_at = -1, started_at = -1, finished_at = 9223372036854775807 WHERE id IN (6, 8)",
    "UPDATE task_runs SET scheduled_for = 9223372036854775807, run_at = 9223372036854775807, duration_ms = -9223372036854775808 WHERE id IN (6, 8)",
    "UPDATE task_runs SET attempt = -1, forgiven = 9223372036854775807, occurrences = -5, last_scheduled_for = -1 WHERE id = 6",
    "UPDATE task_runs SET attempt = 9223372036854775807, occurrences = 9223372036854775807, exit_code = 9223372036854775807 WHERE id = 6",
    "UPDATE task_runs SET priority = 99, slot = -1 WHERE id IN (6, 8)",
    "UPDATE task_runs SET blocked = 'odd', concurrency_key = CAST(x'ff00' AS TEXT) WHERE id = 8",
    "UPDATE task_runs SET handler = CAST(x'fffe' AS TEXT), error = CAST(x'fffe00' AS TEXT), output = CAST(x'c328' AS TEXT), payload = '{', result = '[', progress = CAST(x'ff' AS TEXT) WHERE id = 6",
    "UPDATE task_runs SET cancel_requested = 7 WHERE id IN (6, 8)",
    "UPDATE task_runs SET status = 'running', locked_by = 'unknown-owner', locked_until = 1805025600000 WHERE id = 8",
    "UPDATE task_runs SET status = 'running' WHERE id = 8",
    "UPDATE task_runs SET task_id = 77 WHERE id = 6",
    "UPDATE scheduled_tasks SET status = 'odd' WHERE id = 2",
    "UPDATE scheduled_tasks SET schedule_type = 'odd' WHERE id = 2",
    "UPDATE scheduled_tasks SET schedule_value = '* * * *', time_zone = 'Mars' WHERE id = 2",
    "UPDATE scheduled_tasks SET overlap = 'odd' WHERE id = 2",
    "UPDATE scheduled_tasks SET misfire = 'odd' WHERE id = 2",
    "UPDATE scheduled_tasks SET catch_up_limit = -1 WHERE id = 2",
    "UPDATE scheduled_tasks SET max_attempts = 9223372036854775807, priority = -1 WHERE id = 2",
    "UPDATE scheduled_tasks SET next_run = -9223372036854775808, created_at = 9223372036854775807, last_run = -1, starts_at = -5, ends_at = 9223372036854775807 WHERE id = 2",
    "UPDATE scheduled_tasks SET misfire_grace_ms = -1, jitter_ms = 9223372036854775807, timeout_ms = -3, backoff_ms = -1, expires_ms = 9223372036854775807 WHERE id = 2",
    "UPDATE scheduled_tasks SET payload = 'x', handler = 'command' WHERE id = 2",
    "UPDATE scheduled_tasks SET payload = CAST(x'ff' AS TEXT), handler = CAST(x'ff' AS TEXT), on_dead = CAST(x'ff' AS TEXT), managed_by = CAST(x'ff' AS TEXT), last_error = CAST(x'ff' AS TEXT) WHERE id = 2",
    "UPDATE scheduled_tasks SET last_status = 'odd', failure_count = -7, last_duration_ms = -1 WHERE id = 2",
    "UPDATE scheduled_tasks SET name = CAST(x'ff2fc3a9' AS TEXT) WHERE id = 2",
    "UPDATE scheduled_tasks SET name = 'a' || char(0) || '/../?#%<b>' WHERE id = 2",
    "UPDATE scheduled_tasks SET name = '' WHERE id = 2",
    "UPDATE task_attempts SET outcome = 'odd', attempt = -1 WHERE run_id = 6",
    "UPDATE task_attempts SET error = CAST(x'ff' AS TEXT), locked_by = CAST(x'ff' AS TEXT), started_at = -1, duration_ms = -1 WHERE run_id = 6",
    "UPDATE task_effects SET state = 'odd' WHERE run_id = 6",
    "UPDATE task_effects SET key = CAST(x'ff' AS TEXT), value = CAST(x'ff' AS TEXT), created_at = -1, done_at = 9223372036854775807 WHERE run_id = 6",
    "UPDATE scheduler_events SET at = -9223372036854775808, kind = CAST(x'ff' AS TEXT), detail = CAST(x'ff' AS TEXT), task_id = 77, run_id = -1 WHERE id = 1001",
    "UPDATE scheduler_instances SET pid = -1, workers = -1, lease_ms = -1, started_at = -1, seen_at = 9223372036854775807, stopped_at = -9223372036854775808 WHERE id = 'stopped'",
    "UPDATE scheduler_instances SET stopped_at = NULL, host = CAST(x'ff' AS TEXT), id = '../../etc' WHERE id = 'stopped'",
    "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('k', -1), (CAST(x'ff' AS TEXT), 9223372036854775807)",
    "INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', -1, -1), (CAST(x'ff' AS TEXT), 9223372036854775807, 9223372036854775807)",
];

/// Pages that also show other tasks and runs.
const PAGES: &[&str] = &[
    "/",
    "/?completed=1",
    "/tasks/good",
    "/runs/1",
    "/runs/3",
    "/runs/7",
    "/timeline?span=week",
    "/schedulers",
    "/events",
    "/metrics",
    "/api/status",
    "/api/tasks",
    "/api/check",
    "/api/limits",
    "/api/events",
];
/// Pages of the damaged rows: an error that names the value is an answer.
const OWN: &[&str] = &[
    "/tasks/bad",
    "/runs/4",
    "/runs/6",
    "/runs/8",
    "/events?task=bad",
    "/api/tasks/bad",
    "/api/runs",
    "/api/runs/6",
    "/api/runs/8",
    "/healthz",
];

#[test]
fn a_row_that_cannot_be_read_fails_no_page_of_others() {
    let mut failed = Vec::new();
    for damage in DAMAGE {
        let db = TestDb::new();
        drop(db.client());
        db.plain().execute_batch(ROWS).expect("rows");
        let served = Served::new(db, false);
        let connection = served.db.plain();
        connection.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF").expect("settings");
        connection.execute_batch(damage).unwrap_or_else(|error| panic!("{damage}: {error}"));
        for path in PAGES {
            let (status, text) = served.get(path);
            if status != 200 || text.contains("The problems could not be read") {
                failed.push(format!("{status} {path} after {damage}: {text}"));
            }
        }
        for path in OWN {
            let (status, text) = served.get(path);
            if status == 500 {
                failed.push(format!("{status} {path} after {damage}: {text}"));
            }
        }
        let list = served.db.duly(&["list", "--json"]).output().expect("the program");
        let listed: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap_or_default();
        if listed.as_array().is_none_or(|tasks| !list.status.success() || tasks.len() != 2) {
            failed.push(format!("duly list after {damage}: {list:?}"));
        }
        let tasks = served.text("/");
        assert!(
            tasks.contains("href=\"/tasks/good\"") && tasks.matches("<th class=\"full\"").count() == 2,
            "{damage}: {tasks}"
        );
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
