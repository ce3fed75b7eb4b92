//! The timeline: what it draws, its pages, and its size.

use duly::{NewTask, Timestamp};

use crate::fixtures::{TestDb, minutes};
use crate::page_run::Served;

const HOUR: i64 = 3_600_000;

/// Tasks whose rows are written by SQL, and a page on them. No run is due.
fn served(sql: &str) -> Served {
    let db = TestDb::new();
    drop(db.client());
    db.plain().execute_batch(&format!("PRAGMA ignore_check_constraints = ON; BEGIN; {sql}; COMMIT;")).unwrap();
    Served::new(db, false)
}

fn now() -> i64 {
    Timestamp::now().as_millis()
}

fn task(id: i64, name: &str) -> String {
    format!(
        "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, planned) VALUES ({id}, '{name}', 'work', 'manual', '', 1);"
    )
}

/// A final run that took `length` from `at`.
fn run(task: i64, at: i64, length: i64, status: &str, origin: &str) -> String {
    let end = at + length;
    format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
         VALUES ({task}, 'work', {at}, '{origin}', '{status}', {at}, 1, {at}, {end}, {length});"
    )
}

/// The number of bars of a status.
fn bars(page: &str, status: &str) -> usize {
    let plot = page.split("class=\"legend\"").next().expect("a page");
    plot.matches(&format!("<rect class=\"{status}\"")).count()
}

#[test]
fn runs_of_each_origin_are_drawn_within_the_window_and_not_outside() {
    let now = now();
    let mut sql = task(1, "digest") + &task(2, "idle") + &task(3, "requests");
    sql += &run(1, now - HOUR / 2, 60_000, "succeeded", "schedule");
    sql += &run(1, now - HOUR / 4, 60_000, "dead", "catch_up");
    // It began two hours ago, and ended in the window.
    sql += &run(1, now - 2 * HOUR, HOUR + 600_000, "cancelled", "schedule");
    sql += &run(2, now - 3 * HOUR, 60_000, "succeeded", "schedule");
    // The older of these requests is before the window.
    sql += &run(3, now - 5 * HOUR, 1000, "dead", "manual");
    sql += &run(3, now - HOUR / 3, 1000, "succeeded", "manual");
    let served = served(&sql);
    served.client().add(NewTask::interval("soon", minutes(2)).handler("work")).unwrap();
    let page = served.text("/timeline?span=hour");
    assert_eq!(["succeeded", "dead", "cancelled"].map(|status| bars(&page, status)), [2, 1, 1], "{page}");
    assert!(page.contains("class=\"ahead\"") && page.contains("class=\"now\"") && page.contains(">soon</a>"));
    assert!(!page.contains(">idle</a>"), "a task without a run in the window has no lane");
    assert!(page.contains("<title>succeeded ") && page.contains(", took 1m</title>"), "{page}");
    let day = served.text("/timeline?span=day");
    assert_eq!(bars(&day, "dead"), 2);
    assert!(day.contains(">idle</a>"));
    // A window in the past shows the older requests, and no line for now.
    let until = Timestamp::from_millis(now - 4 * HOUR - HOUR / 2).to_string();
    let past = served.text(&format!("/timeline?span=hour&until={until}"));
    assert_eq!((bars(&past, "dead"), bars(&past, "succeeded")), (1, 0), "{past}");
    assert!(!past.contains("class=\"now\"") && past.contains(">Now</a>"));
    // Only the tasks that match.
    let filtered = served.text("/timeline?span=hour&task=req*");
    assert!(filtered.contains(">requests</a>") && !filtered.contains(">digest</a>"));
    assert!(!served.text("/timeline?task=nothing").contains("<rect"), "an empty window has no plot");
    for odd in [
        "span=year",
        "until=x",
        "until=9999-12-31T23:59:59Z",
        "until=0001-01-01T00:00:00Z",
        "after=zzz",
        "task=%3Cb%3E",
    ] {
        assert!(!served.text(&format!("/timeline?{odd}")).contains("<b>"), "{odd}");
    }
}

#[test]
fn lanes_have_pages_and_every_task_is_on_one_of_them() {
    let now = now();
    let mut sql = String::new();
    for id in 1..=120 {
        sql += &task(id, &format!("task-{id:03}"));
        sql += &run(id, now - 600_000, 1000, "succeeded", "schedule");
    }
    let served = served(&sql);
    let mut path = "/timeline?span=hour".to_owned();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let page = served.text(&path);
        let names: Vec<&str> = page.split("href=\"/tasks/").skip(1).map(|rest| &rest[..8]).collect();
        seen.extend(names.iter().map(|name| (*name).to_owned()));
        let next = page.split("rel=\"next\" href=\"").nth(1);
        path = next.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&")).unwrap_or_default();
    }
    assert_eq!(path, "", "the third page is the last");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 120);
}

#[test]
fn many_runs_of_many_tasks_stay_within_the_size_and_what_is_left_out_is_stated() {
    let now = now();
    let mut sql = String::new();
    for id in 1..=60 {
        let name = format!("{}{id:03}", "n".repeat(190));
        sql += &task(id, &name);
    }
    // A run each ten minutes for a week, each third of them not succeeded.
    sql += &format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
         SELECT t.id, 'work', {now} - i * 600000, 'schedule', iif(i % 3 = 0, 'dead', iif(i % 5 = 0, 'missed', 'succeeded')), {now} - i * 600000,
                1, {now} - i * 600000, {now} - i * 600000 + 100000, 100000 FROM n, scheduled_tasks t;"
    );
    let served = served(&sql);
    for span in ["hour", "day", "week"] {
        let page = served.text(&format!("/timeline?span={span}"));
        assert_eq!(page.contains("class=\"sampled\""), span == "week", "{span}");
        assert_eq!(page.contains("Hatched: more than"), span == "week", "{span}");
    }
}
