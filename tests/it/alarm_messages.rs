//! Which messages about alarms are due, by a manual clock: grouped, claimed by one sender, and the last one states how things are.

use std::time::Duration;

use duly::{AlarmKind, AlarmMessage, AlarmPace, AlarmState, AlarmTurn, Client, Limits, NewTask, Outcome, RunStatus};

use crate::fixtures::{NOON, TestDb, at, finish_all, minutes, seconds};

fn update(client: &Client) -> bool {
    client.update_alarms(&["test"], &Limits::default(), at(NOON), None).expect("a look")
}

#[track_caller]
fn claimed(client: &Client, pace: &AlarmPace) -> AlarmMessage {
    claimed_after(client, pace, None)
}

/// `refused`: the kind of the message before, which was not delivered.
#[track_caller]
fn claimed_after(client: &Client, pace: &AlarmPace, refused: Option<AlarmKind>) -> AlarmMessage {
    match client.claim_alarm("test", pace, refused).expect("a claim") {
        AlarmTurn::Deliver(message) => *message,
        other => panic!("nothing to deliver: {other:?}"),
    }
}

/// The rows and claims behind the messages, by a manual clock.
#[test]
fn a_hundred_dead_runs_are_one_message() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(100).start().expect("a stepper");
    let (client, clock, pace) = (stepper.client().clone(), stepper.clock().clone(), AlarmPace::default());
    let names: Vec<String> = (0..99).map(|number| format!("task-{number:02}")).collect();
    for name in &names {
        client.add(NewTask::manual(name).handler("work").at_most_once()).expect("a task");
        client.trigger(name).expect("a run");
    }
    client.trigger("task-00").expect("another run");
    for _ in 0..3 {
        stepper.step().expect("a step");
        finish_all(&mut stepper, &Outcome::failed("no route\nto host"));
    }
    assert_eq!(db.count(RunStatus::Dead), 100);
    assert!(update(&client), "what began may be over");
    assert!(!update(&client));
    assert_eq!(client.claim_alarm("test", &pace, None).expect("a claim"), AlarmTurn::Wait(seconds(10)));
    // A copy reports nothing that its original reports.
    let copy = db.home().join("copy.db");
    client.backup(&copy).expect("a copy");
    let copied = Client::open_existing(&copy).expect("a client");
    assert_eq!(copied.claim_alarm("test", &pace, None).expect("a claim"), AlarmTurn::Idle);
    clock.advance(seconds(10));
    let message = claimed(&client, &pace);
    assert_eq!((message.kind, message.state, message.count), (AlarmKind::Dead, AlarmState::Began, 100));
    assert_eq!(message.items.len(), AlarmMessage::MAX_ITEMS);
    let twice = message.items.iter().find(|item| item.task.as_deref() == Some("task-00")).expect("the first task");
    assert_eq!((twice.count, twice.run), (2, Some(client.history("task-00", 1).expect("a history")[0].id)));
    assert!(message.items[1].found.ends_with("is dead: no route\\nto host"), "{:?}", message.items[1]);

    // Another sender waits for the lease, and then delivers the same message.
    let other = db.builder(NOON).clock(&clock).accept("none").start().expect("a stepper");
    assert_eq!(other.client().claim_alarm("test", &pace, None).expect("a claim"), AlarmTurn::Wait(minutes(1)));
    clock.advance(minutes(1));
    let again = claimed(other.client(), &pace);
    assert_eq!((&again.id, again.count), (&message.id, 100));
    assert!(!client.alarm_delivered(&message).expect("an answer"), "its claim has ended");
    assert!(other.client().alarm_not_delivered(&again).expect("an answer"));
    assert!(client.alarm_delivered(&claimed(&client, &pace)).expect("an answer"));
    assert_eq!(client.claim_alarm("test", &pace, None).expect("a claim"), AlarmTurn::Idle);
    let reader = db.client();
    let version = reader.data_version().expect("a version");
    assert!(!update(&client));
    assert_eq!(reader.data_version().expect("a version"), version, "a look without a change writes nothing");

    // The next messages keep their distance; the end of what another success ended, and another death.
    client.trigger("task-01").expect("a run");
    stepper.step().expect("a step");
    finish_all(&mut stepper, &Outcome::succeeded());
    client.trigger("task-02").expect("a run");
    stepper.step().expect("a step");
    finish_all(&mut stepper, &Outcome::failed("again"));
    stepper.step().expect("a step");
    update(&client);
    clock.advance(seconds(20));
    assert_eq!(client.claim_alarm("test", &pace, None).expect("a claim"), AlarmTurn::Wait(seconds(40)));
    clock.advance(seconds(40));
    let first = claimed(&client, &pace);
    client.alarm_delivered(&first).expect("an answer");
    clock.advance(minutes(1));
    let second = claimed(&client, &pace);
    client.alarm_delivered(&second).expect("an answer");
    let mut both: Vec<(AlarmState, u64, Option<String>)> =
        [first, second].map(|message| (message.state, message.count, message.items[0].task.clone())).to_vec();
    both.sort_by_key(|(state, ..)| state.as_str());
    let task = |name: &str| Some(name.to_owned());
    assert_eq!(both, [(AlarmState::Began, 1, task("task-02")), (AlarmState::Ended, 1, task("task-01"))]);
    db.assert_sound();
}

/// Returns all messages that may be delivered now.
fn deliver_all(client: &Client) -> Vec<(AlarmKind, AlarmState, u64)> {
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let mut messages = Vec::new();
    while let AlarmTurn::Deliver(message) = client.claim_alarm("test", &pace, None).expect("a claim") {
        assert!(client.alarm_delivered(&message).expect("a record"));
        messages.push((message.kind, message.state, message.count));
    }
    messages
}

/// The last message about a task states how it is, however slow the receiver is.
#[test]
fn a_task_that_died_again_is_not_reported_as_over() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::manual("digest").handler("work").at_most_once()).expect("a task");
    update(&client);
    let mut finish = |outcome: Outcome| {
        client.trigger("digest").expect("a run");
        stepper.step().expect("a step");
        finish_all(&mut stepper, &outcome);
        stepper.step().expect("a step");
        while update(&client) {}
    };
    let (dead, began, ended) = (AlarmKind::Dead, AlarmState::Began, AlarmState::Ended);
    // Before the first message.
    finish(Outcome::failed("no route"));
    finish(Outcome::succeeded());
    finish(Outcome::failed("no route"));
    assert_eq!(deliver_all(&client), [(dead, began, 2)]);
    // Before the message about the end.
    finish(Outcome::succeeded());
    finish(Outcome::failed("no route"));
    assert_eq!(deliver_all(&client), [(dead, began, 1)]);
    // While the message about the end is delivered.
    finish(Outcome::succeeded());
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let message = claimed(&client, &pace);
    assert_eq!(message.state, ended);
    finish(Outcome::failed("no route"));
    assert!(client.alarm_delivered(&message).expect("a record"));
    assert_eq!(deliver_all(&client), [(dead, began, 1)]);
    finish(Outcome::succeeded());
    assert_eq!(deliver_all(&client), [(dead, ended, 1)]);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarms"), "0");
    db.assert_sound();
}

/// The first look after the machine was off sees work that the first turn is about to start.
#[test]
fn overdue_work_that_starts_at_once_is_not_reported() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::interval("digest", minutes(5)).handler("work")).expect("a task");
    for lasts in [false, true] {
        stepper.clock().advance(minutes(60));
        update(&client);
        assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarms WHERE kind = 'overdue'"), "1");
        if lasts {
            stepper.clock().advance(minutes(1));
        }
        stepper.step().expect("a step");
        finish_all(&mut stepper, &Outcome::succeeded());
        stepper.step().expect("a step");
        update(&client);
        let both = [(AlarmKind::Overdue, AlarmState::Began, 1), (AlarmKind::Overdue, AlarmState::Ended, 1)];
        assert_eq!(deliver_all(&client), if lasts { &both[..] } else { &[] });
    }
}

#[test]
fn an_alarm_ends_and_begins_after_the_clock_was_set_back() {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    let invalid = || {
        client.add(NewTask::manual("digest").handler("work")).expect("a task");
        db.plain()
            .execute_batch("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = 'odd'")
            .expect("a row");
        update(&client);
    };
    invalid();
    assert_eq!(deliver_all(&client), [(AlarmKind::Invalid, AlarmState::Began, 1)]);
    stepper.clock().set_wall(at("2027-03-14T09:00:00Z"));
    client.remove("digest").expect("a removal");
    update(&client);
    // Its end is not delivered yet.
    stepper.clock().set_wall(at("2027-03-14T06:00:00Z"));
    invalid();
    assert_eq!(deliver_all(&client), [(AlarmKind::Invalid, AlarmState::Began, 1)]);
    client.remove("digest").expect("a removal");
    update(&client);
    assert_eq!(deliver_all(&client), [(AlarmKind::Invalid, AlarmState::Ended, 1)]);
}

/// A receiver may refuse one message for ever.
#[test]
fn a_message_that_is_refused_holds_back_no_other_kind() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    update(&client);
    for name in ["digest", "broken"] {
        client.add(NewTask::manual(name).handler("work").at_most_once()).expect("a task");
    }
    client.trigger("digest").expect("a run");
    stepper.step().expect("a step");
    finish_all(&mut stepper, &Outcome::failed("no route"));
    stepper.step().expect("a step");
    db.plain()
        .execute(
            "UPDATE scheduled_tasks SET schedule_type = 'cron', schedule_value = '61 3 * * *' WHERE name = 'broken'",
            [],
        )
        .expect("a row of another program");
    stepper.step().expect("a step");
    while update(&client) {}
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let message = claimed_after(&client, &pace, kinds.last().copied());
        kinds.push(message.kind);
        assert!(client.alarm_not_delivered(&message).expect("a record"));
    }
    // Each in its turn, again and again.
    assert_ne!(kinds[0], kinds[1]);
    assert_eq!(kinds[..2], kinds[2..4]);
    assert_eq!(kinds[0], kinds[4]);
    // Without a refusal the oldest goes first.
    assert_eq!(claimed(&client, &pace).kind, AlarmKind::Dead);
}
