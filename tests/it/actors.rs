//! Actors: changes that are recorded with who makes them, and what is selected by who added it.

use duly::{Actor, Client, Done, Error, EventFilter, Filter, NewRun, NewTask, RunStatus, TaskStatus};

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
    assert_eq!(anna.add(task("t")).unwrap().0, Done::Created);
    // Another actor adds the same: it stays that of the first.
    assert_eq!(bob.add(task("t")).unwrap().0, Done::Unchanged);
    assert!(matches!(bob.add(task("t").priority(0)), Err(Error::TaskDiffers { field: "priority", .. })));
    assert!(matches!(bob.replace(task("t").priority(0)).unwrap().0, Done::Replaced { .. }));
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
    assert_eq!(anna.add(task("by-hand")).unwrap().0, Done::Unchanged);
    assert_eq!(client.task("by-hand").unwrap().unwrap().definition.managed_by, None);
    let error = anna.remove("by-hand").unwrap_err();
    assert_eq!(error.to_string(), "cannot remove task \"by-hand\": it was added by hand");
    client.pause("by-hand").unwrap();
    let says = "cannot resume task \"by-hand\": user paused it: the user decides";
    assert_eq!(anna.resume("by-hand").unwrap_err().to_string(), says);
    client.resume("by-hand").unwrap();
    for name in ["anna", "mcp:", "mcp:a b", "page:anna", "mcp:a:b"] {
        assert!(matches!(client.actor(name, "1"), Err(Error::InvalidTask { field: "managed_by", .. })), "{name}");
    }
    assert!(client.actor("mcp:anna", "a\nb").is_err());
    assert!(trail(&client).is_empty());
    db.assert_sound();
}

#[test]
fn of_two_actors_that_examined_the_same_state_the_second_changes_nothing() {
    let (db, client) = TestDb::with_client();
    // A connection of its own, as that of another process.
    let other = db.client();
    let (anna, bob) = (client.actor("mcp:anna", "1").unwrap(), other.actor("mcp:bob", "2").unwrap());
    anna.add(task("t")).unwrap();
    anna.add(task("spare")).unwrap();
    let dead = anna.trigger_run(NewRun::of("t")).unwrap().run_id;
    anna.cancel(dead).unwrap();
    assert_eq!(dead, 1);
    type Change = fn(&Actor, i64) -> Result<(), Error>;
    let changes: [(&str, Change); 8] = [
        ("add", |actor, at| actor.add(task(&format!("new-{at}"))).map(|_| ())),
        ("replace", |actor, at| actor.replace(task("t").priority(u8::try_from(at % 7).unwrap())).map(|_| ())),
        ("trigger", |actor, _| actor.trigger_run(NewRun::of("t")).map(|_| ())),
        ("pause", |actor, _| actor.pause("t").map(|_| ())),
        ("resume", |actor, _| actor.resume("t").map(|_| ())),
        ("retry", |actor, _| actor.retry(1).map(|_| ())),
        ("try", |actor, _| actor.clone().rehearsing().add(task("x")).map(|_| ())),
        ("remove", |actor, _| actor.remove("spare")),
    ];
    for (at, (verb, change)) in (1..).zip(changes) {
        let (first, second) = (anna.guarded().unwrap(), bob.guarded().unwrap());
        // Whatever the first does.
        first.trigger_run(NewRun::of("spare")).unwrap();
        let before = (db.tasks(), trail(&client));
        assert!(matches!(change(&second, at), Err(Error::Overtaken)), "{verb}");
        assert_eq!((db.tasks(), trail(&client)), before, "{verb}");
        // It examines again. Its own change counts too: another one needs another look.
        let second = bob.guarded().unwrap();
        change(&second, at).unwrap_or_else(|error| panic!("{verb}: {error}"));
        if verb != "try" {
            assert!(matches!(second.pause("t"), Err(Error::Overtaken)), "{verb}");
        }
    }
    // What is no action overtakes nobody, and who is not guarded is not overtaken.
    let guarded = bob.guarded().unwrap();
    client.add(task("by-hand")).unwrap();
    guarded.pause("t").unwrap();
    bob.resume("t").unwrap();
    db.assert_sound();
}

/// What a model looked at before may be old: these rules are in the transaction of the change.
#[test]
fn what_a_user_paused_or_chained_is_not_for_actors() {
    let (db, client) = TestDb::with_client();
    let anna = client.actor("mcp:anna", "1").unwrap();
    anna.add(task("t")).unwrap();
    let run = anna.trigger_run(NewRun::of("t")).unwrap().run_id;
    anna.cancel(run).unwrap();
    // The pause of an actor becomes that of the user who pauses the task too, alone or with others.
    type Pause = fn(&Client);
    let pauses: [Pause; 2] = [
        |client| client.pause("t").unwrap(),
        |client| {
            let all = Filter::new().added_by("mcp:*");
            assert_eq!(client.count_matching(duly::BulkAction::Pause, &all).unwrap().changed, 1);
            assert_eq!(client.pause_matching(&all).unwrap().changed, 1);
            assert_eq!(client.pause_matching(&all).unwrap().changed, 0, "it is the user's");
        },
    ];
    for pause in pauses {
        anna.pause("t").unwrap();
        pause(&client);
        let paused = client.task("t").unwrap().unwrap();
        assert_eq!((paused.status, paused.paused_by.as_deref()), (TaskStatus::Paused, Some("user")));
        let events = client.events(&EventFilter::newest(1).kind("paused")).unwrap();
        assert_eq!(events[0].detail.as_deref(), Some("user"));
        let before = (db.tasks(), trail(&client));
        for (verb, error) in [
            ("resume", anna.resume("t").unwrap_err()),
            ("trigger", anna.trigger_run(NewRun::of("t")).unwrap_err()),
            ("retry", anna.retry(run).unwrap_err()),
            ("replace", anna.replace(task("t").priority(0)).unwrap_err()),
            ("remove", anna.remove("t").unwrap_err()),
        ] {
            assert!(error.to_string().ends_with("user paused it: the user decides"), "{verb}: {error}");
        }
        assert_eq!((db.tasks(), trail(&client)), before);
        // The same definition is no change.
        assert_eq!(anna.add(task("t")).unwrap().0, Done::Unchanged);
        client.resume("t").unwrap();
    }
    // A task that follows one of the user would have its output.
    let lead = |name: &str| -> [NewTask; 4] {
        let lead = |at: usize| task(&format!("lead-{at}"));
        [lead(0).on_dead(name), lead(1).on_success(name), lead(2).on_end(name), lead(3).on_missed(name)]
    };
    let says = "another task names it in on_dead, on_success, on_end or on_missed";
    for (new, old) in lead("other,alert").into_iter().zip(lead("other,t")) {
        client.add(new).unwrap();
        let before = (db.tasks(), trail(&client));
        for refused in [anna.add(task("alert")), anna.replace(task("alert"))] {
            assert!(refused.unwrap_err().to_string().ends_with(says));
        }
        assert_eq!((db.tasks(), trail(&client)), before);
        client.replace(old).unwrap();
        let before = (db.tasks(), trail(&client));
        assert!(anna.replace(task("t").priority(0)).unwrap_err().to_string().ends_with(says));
        assert!(anna.remove("t").unwrap_err().to_string().ends_with(says));
        assert_eq!((db.tasks(), trail(&client)), before);
        client.remove_matching(&Filter::new().name("lead-*")).unwrap();
    }
    // A part of a name is not the name, and what actors chain is theirs.
    client.add(task("lead").on_dead("alert-2, an-alert")).unwrap();
    anna.add(task("chain").on_dead("alert")).unwrap();
    anna.add(task("alert")).unwrap();
    db.assert_sound();
}

#[test]
fn a_change_can_be_tried_and_noted() {
    let (db, client) = TestDb::with_client();
    client.add(task("by-hand")).unwrap();
    let anna = client.actor("mcp:anna", "1").unwrap();
    let trial = anna.clone().rehearsing();
    assert_eq!(trial.add(task("t")).unwrap().0, Done::Created);
    anna.add(task("t").payload(1)).unwrap();
    assert_eq!(trial.add(task("t").payload(1)).unwrap().0, Done::Unchanged);
    assert!(matches!(trial.add(task("t").payload(2)), Err(Error::TaskDiffers { field: "payload", .. })));
    let given = NewTask::cron("t", "0 8 * * *").handler("work").payload(2);
    let (Done::Replaced { fields }, task_then) = trial.replace(given).unwrap() else { panic!("it differs") };
    assert_eq!(task_then.definition.payload, "2");
    let field = |name, stored: &str, given: &str| (name, stored.to_owned(), given.to_owned());
    let mut fields = fields;
    fields.sort_unstable();
    assert_eq!(fields, [field("payload", "1", "2"), field("schedule_value", "0 7 * * *", "0 8 * * *")]);
    assert!(matches!(trial.replace(task("by-hand").payload(1)), Err(Error::Refused { .. })));
    assert!(matches!(trial.add(NewTask::cron("u", "0 0 30 2 *").handler("work")), Err(Error::InvalidSchedule { .. })));
    // The other changes too.
    let run = client.trigger("t").unwrap();
    client.cancel(run).unwrap();
    let before = (db.tasks(), trail(&client), client.newest_runs(9).unwrap());
    assert_eq!(trial.pause("t").unwrap().status, TaskStatus::Paused);
    assert_eq!(trial.resume("t").unwrap().status, TaskStatus::Active);
    assert!(trial.trigger_run(NewRun::of("t").key("k")).unwrap().is_new);
    assert!(trial.retry(run).is_ok() && trial.remove("t").is_ok());
    assert!(matches!(trial.remove("by-hand"), Err(Error::Refused { .. })));
    assert_eq!((db.tasks(), trail(&client), client.newest_runs(9).unwrap()), before);
    anna.clone().noting("2 starts").unwrap().pause("t").unwrap();
    assert_eq!(trail(&client).last().unwrap(), "mcp:anna session 1, 2 starts: pause");
    assert!(anna.noting("a\nb").is_err());
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
