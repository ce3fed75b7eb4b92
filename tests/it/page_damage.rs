//! Rows that no version of duly writes: no page fails because of the row of another task or run.

use crate::fixtures::TestDb;
use crate::page_run::Served;

/// Two tasks with runs, attempts, effects and events, and a stopped scheduler.
const ROWS: &str = include_str!("page_damage/rows.sql");

/// What another program wrote, a statement in each line.
const DAMAGE: &str = include_str!("page_damage/damage.sql");

/// Pages that also show other tasks and runs.
const PAGES: &str = "
    / /?completed=1 /tasks/good /runs/1 /runs/3 /runs/7 /timeline?span=week /schedulers /events /metrics /api/status
    /api/tasks /api/check /api/limits /api/events";
/// Pages of the damaged rows: an error that names the value is an answer.
const OWN: &str = "
    /tasks/bad /runs/4 /runs/6 /runs/8 /events?task=bad /api/tasks/bad /api/runs /api/runs/6 /api/runs/8 /healthz";

#[test]
fn a_row_that_cannot_be_read_fails_no_page_of_others() {
    let mut failed = Vec::new();
    for damage in DAMAGE.lines() {
        let db = TestDb::new();
        drop(db.client());
        db.plain().execute_batch(ROWS).expect("rows");
        let served = Served::new(db, false);
        let connection = served.db.plain();
        connection.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF").expect("settings");
        connection.execute_batch(damage).unwrap_or_else(|error| panic!("{damage}: {error}"));
        for path in PAGES.split_whitespace() {
            let (status, text) = served.get(path);
            if status != 200 || text.contains("The problems could not be read") {
                failed.push(format!("{status} {path} after {damage}: {text}"));
            }
        }
        for path in OWN.split_whitespace() {
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
