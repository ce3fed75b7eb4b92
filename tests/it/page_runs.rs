//! The page of the runs of all tasks, on both stores: its conditions, its pages, and what is done with all that match.

use duly::NewTask;

use crate::fixtures::{TestDb, at};
use crate::page_run::Served;

const NOON: &str = "2026-03-14T12:00:00Z";

/// A database of each store that this machine has.
fn stores() -> Vec<TestDb> {
    #[cfg(feature = "postgres")]
    let server = TestDb::on_server();
    #[cfg(not(feature = "postgres"))]
    let server = None;
    [Some(TestDb::new()), server].into_iter().flatten().collect()
}

/// The ids of the runs on a page, in its order.
pub(crate) fn ids(page: &str) -> Vec<i64> {
    let rows = page.split("<a class=\"nowrap\" href=\"/runs/").skip(1);
    rows.map(|rest| rest.split('"').next().expect("the end of the link").parse().expect("an id")).collect()
}

fn next(page: &str) -> Option<String> {
    let link = page.split("rel=\"next\" href=\"").nth(1)?;
    Some(link.split('"').next()?.replace("&amp;", "&"))
}

/// Adds runs by SQL, with an occurrence in each minute from noon on. Of each one: task, status, error.
fn add_runs(db: &TestDb, runs: &[(&str, &str, &str)]) {
    for (place, (task, status, error)) in runs.iter().enumerate() {
        let occurrence = at(NOON).as_millis() + 60_000 * i64::try_from(place).expect("a number");
        let began = !["skipped", "missed"].contains(status);
        let (attempt, started) = if began { (1, format!("{}", occurrence + 250)) } else { (0, "NULL".to_owned()) };
        db.execute(&format!(
            "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at,
                                    duration_ms, error)
             SELECT id, handler, {occurrence}, 'schedule', '{status}', {occurrence}, {attempt}, {started},
                    {occurrence} + 1250, NULL, '{error}' FROM scheduled_tasks WHERE name = '{task}'"
        ));
    }
}

/// Three tasks, nine final runs and three that wait.
fn sample(db: &TestDb) {
    let client = db.client();
    for (name, handler) in [("backup/a", "tar"), ("backup/b", "tar"), ("mail", "smtp")] {
        client.add(NewTask::manual(name).handler(handler)).expect("a task");
    }
    add_runs(
        db,
        &[
            ("backup/a", "succeeded", ""),
            ("backup/a", "dead", "exit code 1: Disk full"),
            ("mail", "dead", "Traceback:\n  in send\nConnectionError: <refused>"),
            ("mail", "skipped", "an earlier run is unfinished"),
            ("backup/b", "missed", "too late"),
            ("backup/b", "cancelled", ""),
            ("mail", "succeeded", ""),
            ("backup/b", "dead", "exit code 2: disk is read-only"),
            ("backup/a", "succeeded", ""),
        ],
    );
    for name in ["backup/a", "mail", "backup/b"] {
        client.trigger(name).expect("a run");
    }
}

#[test]
fn runs_of_all_tasks_are_shown_newest_first_by_every_condition() {
    for db in stores() {
        sample(&db);
        let served = Served::new(db, false);
        for (query, expected) in [
            ("", &[12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1][..]),
            ("?status=dead", &[8, 3, 2]),
            ("?status=unfinished", &[12, 11, 10]),
            ("?status=queued", &[12, 11, 10]),
            ("?status=running", &[]),
            ("?status=skipped", &[4]),
            ("?status=missed", &[5]),
            ("?task=backup%2Fa", &[10, 9, 2, 1]),
            ("?task=backup%2F*", &[12, 10, 9, 8, 6, 5, 2, 1]),
            ("?task=backup%2F*&status=dead", &[8, 2]),
            ("?task=backup%2Fa&status=dead", &[2]),
            ("?handler=smtp", &[11, 7, 4, 3]),
            ("?handler=smtp&status=unfinished", &[11]),
            ("?error=DISK", &[8, 2]),
            ("?error=%25", &[]),
            ("?since=2026-03-14T12%3A02%3A00Z&until=2026-03-14T12%3A04%3A00Z", &[5, 4, 3]),
            ("?until=2026-03-14T12%3A01%3A00Z", &[2, 1]),
            ("?since=2026-03-14T12%3A01%3A00Z&status=dead&before=8", &[3, 2]),
            ("?before=4", &[3, 2, 1]),
            ("?task=mail&before=7", &[4, 3]),
            ("?since=1h&status=dead", &[]),
        ] {
            let page = served.text(&format!("/runs{query}"));
            assert_eq!(ids(&page), expected, "{query} on {:?}", served.db.address());
            assert_eq!(next(&page), None, "{query}");
        }
        let page = served.text("/runs");
        for words in [
            "exit code 1: Disk full",
            // The last line of several.
            ">ConnectionError: &lt;refused&gt;<",
            "<a href=\"/tasks/backup%2Fa\">backup/a</a> · tar",
            "<a href=\"/runs\" aria-current=\"page\">Runs</a>",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("all that match") && !page.contains("Traceback"), "the page only reads: {page}");
        let unknown = served.text("/runs?task=backup");
        assert!(unknown.contains("No task is named") && ids(&unknown).is_empty(), "{unknown}");
        assert!(served.text("/runs?status=running").contains("No such runs"));
        let task = served.text("/tasks/backup%2Fa");
        assert_eq!(ids(&task), [10, 9, 2, 1], "the same table");
        assert!(task.contains("href=\"/runs?task=backup%2Fa\""), "{task}");
        assert!(served.text("/").contains("href=\"/runs?status=unfinished\">3</a>"));
    }
}

#[test]
fn pages_of_runs_begin_after_the_last_run_of_the_page_before() {
    for db in stores() {
        let client = db.client();
        for name in ["often", "other"] {
            client.add(NewTask::manual(name).handler("work")).expect("a task");
        }
        let runs: Vec<_> = (0..141).map(|n| (if n % 2 == 0 { "other" } else { "often" }, "succeeded", "")).collect();
        add_runs(&db, &runs);
        let first = client.trigger("often").expect("a run");
        let served = Served::new(db, false);
        for (path, expected, expected_pages) in [
            ("/runs", (1..=first).collect::<Vec<_>>(), 3),
            ("/runs?task=often", (1..=first).filter(|run| run % 2 == 0).collect(), 2),
            ("/runs?task=oft%2A", (1..=first).filter(|run| run % 2 == 0).collect(), 2),
        ] {
            let (mut path, mut seen, mut pages) = (Some(path.to_owned()), Vec::new(), 0);
            while let Some(next_path) = path {
                let page = served.text(&next_path);
                assert!(ids(&page).len() <= 50 && page.contains("← Newest") == (pages > 0), "{next_path}");
                seen.extend(ids(&page));
                path = next(&page);
                pages += 1;
            }
            seen.reverse();
            assert_eq!((seen, pages), (expected, expected_pages));
        }
        // A run that was opened since moves no page.
        let second = next(&served.text("/runs")).expect("a second page");
        let before = ids(&served.text(&second));
        served.client().trigger("other").expect("a run");
        assert_eq!(ids(&served.text(&second)), before);
    }
}

#[test]
fn a_page_looks_at_a_limited_number_of_runs_and_offers_to_continue() {
    let db = TestDb::new();
    let client = db.client();
    client.add(NewTask::manual("rare").handler("work")).expect("a task");
    client.add(NewTask::manual("often").handler("work")).expect("a task");
    add_runs(&db, &[("rare", "skipped", "no"), ("rare", "dead", "no")]);
    db.execute(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at)
         SELECT t.id, 'work', {noon} + i, 'schedule', 'succeeded', {noon} + i, 1, {noon} + i, {noon} + i
           FROM n CROSS JOIN scheduled_tasks t WHERE t.name = 'often'",
        noon = at(NOON).as_millis() + 3_600_000,
    ));
    let served = Served::new(db, false);
    for query in
        ["?status=skipped", "?error=NO&status=skipped", "?handler=work&status=skipped", "?task=ra*&status=skipped"]
    {
        let page = served.text(&format!("/runs{query}"));
        assert!(ids(&page).is_empty() && page.contains("Looked at 50000 runs, of which 0 match."), "{query}: {page}");
        let next = next(&page).unwrap_or_else(|| panic!("{query}: {page}"));
        assert!(next.ends_with("&before=10003"), "{next}");
        let page = served.text(&next);
        assert!(ids(&page) == [1] && !page.contains("Looked at") && !page.contains("rel=\"next\""), "{query}: {page}");
    }
    // An index has these, and those of one task.
    assert_eq!(ids(&served.text("/runs?status=dead")), [2]);
    assert_eq!(ids(&served.text("/runs?status=skipped&task=rare")), [1]);
    // What was opened before a run that began earlier was due earlier.
    let page = served.text("/runs?status=skipped&since=2026-03-14T13%3A00%3A30Z");
    assert!(page.contains("No such runs") && next(&page).is_none(), "{page}");
}

#[test]
fn a_value_that_cannot_be_used_is_named_with_its_field() {
    let (db, _) = TestDb::with_client();
    let served = Served::new(db, false);
    for (query, reason) in [
        ("status=gone", "invalid status: expected unfinished, queued, running, failed, succeeded, dead"),
        ("since=yesterday", "invalid since \"yesterday\": expected an instant as in 2027-03-14T12:00:00Z"),
        ("until=2027-02-30", "invalid until \"2027-02-30\": "),
        ("until=3", ", a date, or a duration before now such as 24h"),
        ("before=x", "invalid before: expected the number of a run, found \"x\""),
    ] {
        let (status, page) = served.get(&format!("/runs?task=%3Cb%3E&{query}"));
        let page = page.replace("&quot;", "\"");
        assert!(status == 400 && page.contains(reason), "{query}: {status} {page}");
        assert!(page.contains("name=\"task\" value=\"&lt;b&gt;\"") && page.contains("role=\"alert\""), "{page}");
    }
}

/// The hidden fields of the form of a page, as they are posted.
fn form(page: &str) -> String {
    let form = page.split("<form class=\"action\"").nth(1).expect("a form").split("</form>").next().expect("its end");
    let field = |field: &str| {
        field
            .split_once("\" value=\"")
            .map(|(name, value)| format!("{name}={}", &value[..value.find('"').expect("an end")]))
    };
    form.split("name=\"").skip(1).filter_map(field).collect::<Vec<_>>().join("&")
}

#[test]
fn all_dead_runs_that_match_are_retried_once_they_are_confirmed() {
    for db in stores() {
        sample(&db);
        let served = Served::acting(db);
        let path = "/runs/retry?status=dead&error=disk";
        assert!(
            served.text("/runs?status=dead&error=disk").contains(&format!("href=\"{}\"", path.replace('&', "&amp;")))
        );
        assert!(!served.text("/runs?error=disk").contains("all that match"), "a status decides what can be done");
        let page = served.text(path);
        assert!(
            page.contains("Retry 2 runs?") && page.contains("would retry 2 runs: run 2 of backup/a, run 8 of backup/b"),
            "{page}"
        );
        assert!(
            served.db.rows("SELECT id FROM task_runs WHERE retry_of IS NOT NULL").is_empty(),
            "nothing is done yet"
        );
        let form = form(&page);
        // What was opened since was not counted.
        let late = served.client().trigger("mail").expect("a run");
        served.db.execute(&format!(
            "UPDATE task_runs SET status = 'dead', blocked = NULL, finished_at = {}, error = 'disk' WHERE id = {late}",
            at(NOON).as_millis()
        ));
        let token = form.split('&').next().expect("a token");
        for (form, status) in [("", 403), ("newest=12", 403), (token, 409)] {
            let (code, text) = served.post(path, form);
            assert_eq!(code, status, "{form}: {text}");
        }
        let (code, text) = served.post("/runs/retry?status=queued", &form);
        assert!(code == 409 && text.contains("expected dead"), "{code} {text}");
        let (code, text) = served.post(path, &form);
        assert!(code == 200 && text.contains("Done: retried 2 runs."), "{code} {text}");
        let retried = "SELECT retry_of FROM task_runs WHERE retry_of IS NOT NULL ORDER BY id";
        assert_eq!(served.db.rows(retried), ["2", "8"]);
        let events = "SELECT run_id - (SELECT min(id) FROM task_runs WHERE retry_of IS NOT NULL), detail
                        FROM scheduler_events WHERE kind = 'action' ORDER BY id";
        assert_eq!(served.db.rows(events), ["0|page: retry", "1|page: retry"]);
        let (code, text) = served.post(path, &form);
        assert!(code == 200 && text.contains("retried no run") && text.contains("it was retried before"), "{text}");
        assert!(served.text(path).contains("Retry 1 run?"), "the run that was not counted");
        assert_eq!(served.db.rows(retried), ["2", "8"]);
    }
}

#[test]
fn all_unfinished_runs_that_match_are_cancelled_once_they_are_confirmed() {
    for db in stores() {
        sample(&db);
        let served = Served::acting(db);
        let path = "/runs/cancel?status=unfinished&handler=tar";
        let page = served.text(path);
        assert!(page.contains("Cancel 2 runs?"), "{page}");
        let (code, text) = served.post(path, &form(&page));
        assert!(code == 200 && text.contains("Done: cancelled 2 runs."), "{code} {text}");
        let of_tar = "SELECT id, status FROM task_runs WHERE id > 9 ORDER BY id";
        assert_eq!(served.db.rows(of_tar), ["10|cancelled", "11|queued", "12|cancelled"]);
        assert!(served.text(path).contains("Cancel 0 runs?"));
        assert_eq!(served.get("/runs/cancel?status=dead").0, 400);
        assert_eq!(served.get("/runs/cancel").0, 400);
    }
    let served = Served::new(TestDb::new(), false);
    assert_eq!((served.get("/runs/cancel").0, served.post("/runs/cancel?status=queued", "token=0").0), (404, 405));
}
