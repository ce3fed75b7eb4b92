//! The page of the events: pages by key, filters, hostile text.

use duly::NewTask;

use crate::fixtures::TestDb;
use crate::page_run::Served;

/// The ids of the events on a page, in its order.
fn ids(page: &str) -> Vec<i64> {
    let rows = page.split("<tr id=\"event-").skip(1);
    rows.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

fn next(page: &str) -> Option<String> {
    let link = page.split("rel=\"next\" href=\"").nth(1)?;
    Some(link.split('"').next()?.replace("&amp;", "&"))
}

#[test]
fn events_are_shown_newest_first_in_pages_and_by_task_and_kind() {
    let db = TestDb::new();
    let client = db.client();
    client.add(NewTask::cron("digest", "0 7 * * *").handler("work")).unwrap();
    db.plain()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120)
             INSERT INTO scheduler_events (at, kind, task_id, run_id, detail)
             SELECT 1805025600000 + i, iif(i % 2, 'edited', 'owner_lost'), iif(i % 2, 1, NULL), iif(i % 3, NULL, i), '<b>' || i FROM n;
             INSERT INTO scheduler_events (at, kind, detail) VALUES (1805025600000, 'of <another> version', NULL)",
        )
        .unwrap();
    let served = Served::new(db, false);
    let newest: i64 = served.db.number("SELECT max(id) FROM scheduler_events WHERE kind LIKE 'of %'");
    let first = served.text("/events");
    let own = ids(&first).iter().filter(|id| **id > newest).count();
    let mut seen: Vec<i64> = ids(&first);
    let mut page = first.clone();
    while let Some(path) = next(&page) {
        page = served.text(&path);
        assert!(ids(&page).len() <= 50);
        seen.extend(ids(&page));
    }
    let all: Vec<i64> = (1..=newest + i64::try_from(own).unwrap()).rev().collect();
    assert_eq!(seen, all, "every event is on one page");
    assert!(first.contains("of &lt;another&gt; version") && !first.contains("<b>"));
    assert!(first.contains("href=\"/tasks/digest\"") && first.contains("href=\"/runs/120\""));

    let edited = served.text("/events?kind=edited&task=digest");
    assert_eq!(ids(&edited).len(), 50);
    assert!(ids(&edited).iter().all(|id| id % 2 == 1));
    assert_eq!(next(&edited), Some(format!("/events?kind=edited&task=digest&before={}", ids(&edited)[49])));
    assert!(ids(&served.text("/events?kind=owner_lost&task=digest")).is_empty());
    assert!(served.text("/events?task=none%3Cb%3E").contains("No task is named"));
    assert_eq!(ids(&served.text("/events?before=x&kind=owner_lost")).len(), 50);
    assert!(ids(&served.text("/events?before=-1")).is_empty());
}
