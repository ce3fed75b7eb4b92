//! Look-ups of recorded events: newest first, by task and kind, in pages.

use duly::{Error, EventFilter, NewTask, RecordedEvent};

use crate::fixtures::{NOON, TestDb, at, is_of_sqlite};

/// Events as `kind task run detail`.
fn shown(events: &[RecordedEvent]) -> Vec<String> {
    let word = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let one = |event: &RecordedEvent| {
        let run = event.run.map_or("-".to_owned(), |run| run.to_string());
        format!("{} {} {run} {}", event.kind, word(event.task.as_deref()), word(event.detail.as_deref()))
    };
    events.iter().map(one).collect()
}

#[test]
fn recorded_events_are_found_newest_first_by_task_and_kind_in_pages() {
    if is_of_sqlite("it writes text that is not UTF-8") {
        return;
    }
    let (db, _stepper, client) = TestDb::with_stepper_and_client();
    for name in ["digest", "report"] {
        client.add(NewTask::cron(name, "0 7 * * *").handler("work")).unwrap();
        client.pause(name).unwrap();
    }
    client.resume("digest").unwrap();
    client.remove("report").unwrap();
    let all = client.events(&EventFilter::newest(9)).unwrap();
    let kinds: Vec<String> = shown(&all).iter().map(|one| one.split_inclusive(' ').take(4).collect()).collect();
    assert_eq!(kinds, ["removed - - report", "resumed digest - occurrences ", "paused digest - user"]);
    assert!(all.iter().all(|event| event.at == at(NOON)));
    assert_eq!(client.events(&EventFilter::newest(1).before(all[0].id)).unwrap(), all[1..2]);
    assert_eq!(client.events(&EventFilter::newest(9).before(all[2].id)).unwrap(), []);
    assert_eq!(client.events(&EventFilter::newest(9).kind("paused")).unwrap(), all[2..]);
    assert_eq!(client.events(&EventFilter::newest(9).of("digest").kind("resumed")).unwrap(), all[1..2]);
    assert_eq!(client.events(&EventFilter::newest(9).of("digest").before(all[1].id)).unwrap(), all[2..]);
    assert_eq!(client.events(&EventFilter::newest(9).kind("Paused")).unwrap(), []);
    assert!(matches!(client.events(&EventFilter::newest(9).of("report")), Err(Error::UnknownTask { .. })));

    let json = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Vec<RecordedEvent>>(&json).unwrap(), all);

    // Text that is not UTF-8, and an instant that no calendar has: the other events are still read.
    db.execute(
        "INSERT INTO scheduler_events (at, kind, run_id, detail)
             VALUES (9223372036854775807, CAST(x'ff' AS TEXT), 7, CAST(x'61ff62' AS TEXT))",
    );
    let all = client.events(&EventFilter::newest(9)).unwrap();
    assert_eq!(shown(&all)[..2], ["\u{fffd} - 7 a\u{fffd}b", "removed - - report"]);
}
