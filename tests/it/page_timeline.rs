//! The timeline: what it draws, its pages, and its size.

use std::collections::BTreeMap;

use duly::{NewTask, RunStatus, Timestamp};

use crate::fixtures::{TestDb, minutes};
use crate::page_run::{Served, request};

const HOUR: i64 = 3_600_000;

/// Tasks whose rows are written by SQL, and a page on them. No run is due.
pub(crate) fn served(sql: &str) -> Served {
    let db = TestDb::new();
    drop(db.client());
    db.plain().execute_batch(&format!("PRAGMA ignore_check_constraints = ON; BEGIN; {sql}; COMMIT;")).unwrap();
    Served::new(db, false)
}

fn now() -> i64 {
    Timestamp::now().as_millis()
}

pub(crate) fn task(id: i64, name: &str) -> String {
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

/// Runs of task 1 every `period`, the newest a period ago; those whose number is divisible by `dead` are dead.
pub(crate) fn runs(count: i64, period: i64, dead: i64) -> String {
    let now = now();
    format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
         SELECT 1, 'work', {now} - i * {period}, 'schedule', iif(i % {dead} = 0, 'dead', 'succeeded'), {now} - i * {period},
                1, {now} - i * {period}, {now} - i * {period} + 1000, 1000 FROM n;"
    )
}

#[test]
fn a_bar_says_how_many_runs_have_each_status_and_stands_for_no_other_time() {
    // Twelve hours of a run every three minutes, one of which is dead.
    let served = served(&(task(1, "sync") + &runs(230, 180_000, 150)));
    let page = served.text("/timeline?span=day");
    let plot = page.split("class=\"legend\"").next().unwrap();
    assert_eq!(plot.matches("class=\"dead\"").count(), 1, "{plot}");
    assert!(bars(&page, "succeeded") > 100, "{plot}");
    let bar = plot.split("<a ").find(|bar| bar.contains("class=\"dead\"")).unwrap();
    let width: f64 = bar.split("width=\"").nth(1).unwrap().split('%').next().unwrap().parse().unwrap();
    assert!(width < 1.0, "{bar}");
    assert!(
        page.contains("<td>1 dead, 229 succeeded</td>") || page.contains("<td>229 succeeded, 1 dead</td>"),
        "{page}"
    );
}

/// How many runs of each status the bars of a page say that they stand for.
fn drawn(page: &str) -> BTreeMap<String, usize> {
    let plot = page.split("class=\"legend\"").next().expect("a page");
    let titles = plot.split("<a ").filter_map(|bar| bar.split_once("<title>")?.1.split_once("</title>"));
    let mut drawn = BTreeMap::new();
    for (title, _) in titles {
        // `dead 03:10, took 1s`, or `2 dead, 38 succeeded, 03:10 – 03:17`.
        for part in title.split(", ") {
            let (first, rest) = part.split_once(' ').unwrap_or((part, ""));
            let (status, count) = first.parse().map_or((first, 1), |count| (rest, count));
            if RunStatus::parse(status).is_some() {
                *drawn.entry(status.to_owned()).or_default() += count;
            }
        }
    }
    drawn
}

#[test]
fn every_run_is_counted_and_drawn_however_many_are_in_the_window() {
    // 5000 runs in a day, 34 of which are dead. Beside them, as many that were requested, and a lane with few runs.
    let now = now();
    let mut sql = task(1, "sync") + &task(2, "requests") + &task(3, "other") + &runs(5000, 15_000, 147);
    sql +=
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
         SELECT 2, handler, scheduled_for, 'manual', iif(status = 'dead', 'cancelled', status), run_at, attempt, started_at, finished_at, duration_ms
           FROM task_runs ORDER BY scheduled_for;
         UPDATE task_runs SET status = 'missed' WHERE task_id = 1 AND id % 1000 = 999;";
    sql += &run(3, now - HOUR, 60_000, "succeeded", "schedule");
    let served = served(&sql);
    let page = served.text("/timeline?span=day");
    assert!(page.contains("<td>4961 succeeded, 34 dead, 5 missed</td>"), "{page}");
    assert!(page.contains("<td>4966 succeeded, 34 cancelled</td>"), "{page}");
    assert!(!page.contains("class=\"sampled\"") && !page.contains("sample"), "{page}");
    let expected = [("cancelled", 34), ("dead", 34), ("missed", 5), ("succeeded", 4961 + 4966 + 1)];
    assert_eq!(drawn(&page), expected.map(|(status, count)| (status.to_owned(), count)).into());
}

/// Rows of a task with more runs in a window than are read one by one, beside runs at its edges and runs that reach into it.
fn at_the_edges(task: i64, origin: &str, (from, until): (i64, i64)) -> String {
    let mut runs = vec![(from - 2 * HOUR, None, "queued"), (from - 120_000, Some(from + HOUR / 3), "dead")];
    runs.extend((0..30).map(|i| from - 100_000 + i * 1000).chain([from - 1]).map(|at| (at, Some(at), "succeeded")));
    runs.extend((0..720).map(|i| from + i * 5000).chain([until - 1, until]).map(|at| (at, Some(at), "succeeded")));
    let row = |(at, end, status): &(i64, Option<i64>, &str)| {
        let end = end.map_or("NULL, NULL, 0".to_owned(), |end| format!("{at}, {end}, 1"));
        format!("({task}, 'work', {at}, '{origin}', '{status}', {at}, {end})")
    };
    let rows = runs.iter().map(row).collect::<Vec<_>>().join(", ");
    format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, started_at, finished_at, attempt) VALUES {rows};"
    )
}

#[test]
fn each_store_counts_the_runs_within_a_window_and_draws_those_that_reach_into_it() {
    let until = now() - 3 * HOUR;
    let window = (until - HOUR, until);
    let (scheduled, requested) = (at_the_edges(1, "schedule", window), at_the_edges(2, "manual", window));
    let sql = task(1, "scheduled") + &task(2, "requested") + &scheduled + &requested;
    let path = format!("/timeline?span=hour&until={}", Timestamp::from_millis(until));
    let expected = BTreeMap::from([("queued", 2), ("dead", 2), ("succeeded", 2 * 721)].map(|(s, n)| (s.to_owned(), n)));
    let page = served(&sql).text(&path);
    assert_eq!(drawn(&page), expected, "{page}");
    assert!(!page.contains("class=\"sampled\""), "{page}");
    #[cfg(feature = "postgres")]
    {
        let Some(address) = crate::postgres::database() else { return };
        drop(duly::Client::open(&address).expect("tables"));
        let mut session = crate::fixtures::on_server::session(&address);
        let trusted = "SET duly.store = 'on'; SET session_replication_role = 'replica';";
        session.batch_execute(&format!("{trusted} {sql}")).expect("rows");
        let home = tempfile::tempdir().expect("a folder");
        let builder = duly::Scheduler::builder(&address).state_folder(home.path());
        let scheduler = builder.page(duly::page::Page::on("127.0.0.1:0")).start().expect("a scheduler");
        let page = request(scheduler.page_address().expect("an address"), &path, "*/*").text;
        assert_eq!(drawn(&page), expected, "{page}");
    }
}

#[test]
fn many_runs_of_many_tasks_stay_within_the_size_and_none_is_left_out() {
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
        assert!(!page.contains("class=\"sampled\""), "{span}");
        assert!(page.len() < 200_000, "{span}: {}", page.len());
        // Fifty lanes with a run each ten minutes, a twelfth of the window is the future.
        let (count, hours) = (drawn(&page).values().sum::<usize>(), [("hour", 1), ("day", 24), ("week", 168)]);
        let hours = hours.iter().find(|(name, _)| *name == span).unwrap().1;
        let expected = 50 * (hours * 6 * 11 / 12).min(1000);
        assert!(count.abs_diff(expected) <= 50 * 2, "{span}: {count} of {expected}");
    }
}
