//! Actors: changes that are recorded with who makes them, and what is selected by who added it.

use duly::{Change, Client, Error, EventFilter, Filter, NewRun, NewTask, RunStatus, TaskStatus};

use crate::fixtures::TestDb;

fn task(name: &str) -> NewTask {
    NewTask::cron(name, "0 7 * * *").handler("work")
}

/// The details of the recorded actions, oldest first.
fn trail(client: &Client) -> Vec<String> {
    let events = client.events(&EventFilter::newest(99).kind("action")).unwrap();
    events.into_iter().rev().filter_map(|event| event.detail).collect()
}

#[test]
fn each_change_is_recorded_with_who_made_it_and_what_changes_nothing_is_not() {
    let (db, client) = TestDb::with_client();
    let (anna, bob) = (client.actor("mcp:anna", "1").unwrap(), client.actor("mcp:bob", "2").unwrap());
    assert_eq!(anna.add(task("t")).unwrap().change, Change::Created);
    // Another actor adds the same: it stays that of the first.
    assert_eq!(bob.add(task("t")).unwrap().change, Change::Unchanged);
    assert!(matches!(bob.add(task("t").priority(0)), Err(Error::TaskDiffers { field: "priority", .. })));
    assert_eq!(bob.replace(task("t").priority(0)).unwrap().change, Change::Replaced);
    let stored = || client.task("t").unwrap().unwrap();
    assert_eq!(stored().definition.managed_by.as_deref(), Some("mcp:anna"));
    let run = bob.trigger_run(NewRun::of("t").payload(7).key("k")).unwrap();
    let again = anna.trigger_run(NewRun::of("t").payload(7).key("k")).unwrap();
    assert!(run.is_new && !again.is_new && run.run_id == again.run_id);
    anna.pause("t").unwrap();
    assert_eq!((stored().status, stored().paused_by.as_deref()), (TaskStatus::Paused, Some("mcp:anna session 1")));
    bob.resume("t").unwrap();
    anna.cancel(run.run_id).unwrap();
    assert_eq!(client.run(run.run_id).unwrap().unwrap().status, RunStatus::Cancelled);
    let retry = bob.retry(run.run_id).unwrap();
    let events = client.events(&EventFilter::newest(1).kind("action")).unwrap();
    assert_eq!((events[0].task.as_deref(), events[0].run), (Some("t"), Some(retry)));
    assert_eq!(
        trail(&client),
        [
            "mcp:anna session 1: add",
            "mcp:bob session 2: replace",
            "mcp:bob session 2: trigger",
            "mcp:anna session 1: pause",
            "mcp:bob session 2: resume",
            "mcp:anna session 1: cancel",
            "mcp:bob session 2: retry",
        ]
    );
    // The events of a task go with it, except that of its removal.
    bob.remove("t").unwrap();
    assert_eq!(trail(&client), ["mcp:bob session 2: remove t"]);
    assert!(matches!(bob.remove("t"), Err(Error::UnknownTask { .. })));
    assert_eq!(trail(&client).len(), 1);
    db.assert_sound();
}

#[test]
fn what_no_actor_added_is_not_replaced_by_one() {
    let (db, client) = TestDb::with_client();
    client.add(task("by-hand")).unwrap();
    let anna = client.actor("mcp:anna", "1").unwrap();
    let error = anna.replace(task("by-hand").priority(0)).unwrap_err();
    assert_eq!(error.to_string(), "cannot replace task \"by-hand\": it was added by hand");
    // The same task is no change, and does not become that of the actor.
    assert_eq!(anna.add(task("by-hand")).unwrap().change, Change::Unchanged);
    assert_eq!(client.task("by-hand").unwrap().unwrap().definition.managed_by, None);
    let error = anna.remove("by-hand").unwrap_err();
    assert_eq!(error.to_string(), "cannot remove task \"by-hand\": it was added by hand");
    client.pause("by-hand").unwrap();
    assert_eq!(anna.resume("by-hand").unwrap_err().to_string(), "cannot resume task \"by-hand\": user paused it");
    client.resume("by-hand").unwrap();
    for name in ["anna", "mcp:", "mcp:a b", "page:anna", "mcp:a:b"] {
        assert!(matches!(client.actor(name, "1"), Err(Error::InvalidTask { field: "managed_by", .. })), "{name}");
    }
    assert!(client.actor("mcp:anna", "a\nb").is_err());
    assert!(trail(&client).is_empty());
    db.assert_sound();
}

#[test]
fn operations_on_many_select_by_who_added_a_task() {
    let (db, client) = TestDb::with_client();
    client.add(task("by-hand")).unwrap();
    client.actor("mcp:anna", "1").unwrap().add(task("a")).unwrap();
    client.actor("mcp:bob", "2").unwrap().add(task("b")).unwrap();
    for name in ["by-hand", "a", "b"] {
        client.trigger(name).unwrap();
    }
    assert_eq!(client.cancel_matching(&Filter::new().added_by("mcp:anna")).unwrap().changed, 1);
    assert_eq!(
        client.retry_matching(&Filter::new().status(RunStatus::Cancelled).added_by("mcp:bob")).unwrap().changed,
        0
    );
    assert_eq!(
        client.retry_matching(&Filter::new().status(RunStatus::Cancelled).added_by("mcp:a*")).unwrap().changed,
        1
    );
    assert_eq!(client.pause_matching(&Filter::new().added_by("mcp:*").name("a")).unwrap().changed, 1);
    assert_eq!(client.remove_matching(&Filter::new().added_by("mcp:?nna")).unwrap().changed, 1);
    assert_eq!(client.remove_matching(&Filter::new().added_by("*")).unwrap().changed, 1);
    assert_eq!(client.names().unwrap(), ["by-hand"]);
    db.assert_sound();
}
