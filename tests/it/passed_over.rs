//! Alarms and `check` about occurrences that got no run: missed under a policy that runs nothing in their place, expired, or skipped five
//! times in a row.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{
    AlarmKind, AlarmPace, AlarmState, AlarmTurn, Client, Limits, Misfire, NewTask, Outcome, Overlap, ProblemKind,
};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, finish_all, minutes, seconds, work_off};

const MISSED: AlarmKind = AlarmKind::Missed;
const SKIPPED: AlarmKind = AlarmKind::Skipped;
const BEGAN: AlarmState = AlarmState::Began;
const ENDED: AlarmState = AlarmState::Ended;

fn all() -> Limits {
    Limits { caught_up: true, ..Limits::default() }
}

/// Looks for alarms until there are no more.
fn look(client: &Client, limits: &Limits) {
    while client.update_alarms(&["test"], limits, at(NOON), None).expect("a look") {}
}

/// Looks, and returns all messages: kind, state, count, what was found first.
fn messages(client: &Client, limits: &Limits) -> Vec<(AlarmKind, AlarmState, u64, String)> {
    look(client, limits);
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let mut messages = Vec::new();
    while let AlarmTurn::Deliver(message) = client.claim_alarm("test", &pace, None).expect("a claim") {
        assert!(client.alarm_delivered(&message).expect("a record"));
        let found = message.items[0].found.clone();
        messages.push((message.kind, message.state, message.count, found));
    }
    // Other alarms have tests of their own.
    messages.retain(|one| one.0 == MISSED || one.0 == SKIPPED);
    messages
}

/// As [`messages`], kind and state alone.
fn states(client: &Client) -> Vec<(AlarmKind, AlarmState)> {
    messages(client, &Limits::default()).iter().map(|one| (one.0, one.1)).collect()
}

fn problems(client: &Client, limits: &Limits) -> Vec<(ProblemKind, String)> {
    let problems = client.check(limits).expect("problems").into_iter();
    let ours = problems.filter(|one| one.kind == ProblemKind::Missed || one.kind == ProblemKind::Skipped);
    ours.map(|problem| (problem.kind, problem.found)).collect()
}

fn succeed_all(stepper: &mut Stepper) {
    finish_all(stepper, &Outcome::succeeded());
    stepper.step().expect("a step");
}

/// An outage of three hours: the scheduler is killed, and starts again. The occurrence after it succeeds within the same second.
#[test]
fn an_outage_is_reported_although_the_next_occurrence_has_succeeded() {
    let db = TestDb::new();
    let stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let hourly = |name: &str| NewTask::cron(name, "0 * * * *").handler("work");
    client.add(hourly("skips").misfire(Misfire::Skip, minutes(1))).expect("a task");
    client.add(hourly("runs")).expect("a task");
    look(&client, &Limits::default());
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T16:00:10Z");
    let client = stepper.client().clone();
    work_off(&mut stepper);
    let reason = "resolved later than the grace of the task (misfire policy)";
    let span = "2027-03-14T13:00:00.000Z to 2027-03-14T15:00:00.000Z";
    let found = format!("skips missed 3 occurrences from {span}: {reason}");
    assert_eq!(
        messages(&client, &Limits::default()),
        [(MISSED, BEGAN, 3, found.clone()), (MISSED, ENDED, 1, found)],
        "the task that runs once after an outage misses nothing"
    );
    assert_eq!(problems(&client, &Limits::default()), []);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarms"), "0");
    db.assert_sound();
}

/// One look finds the success and what was missed after it.
#[test]
fn an_alarm_goes_on_if_more_was_missed_after_a_success() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::cron("t", "0 * * * *").handler("work").misfire(Misfire::Skip, minutes(1))).expect("a task");
    look(&client, &Limits::default());
    let states = |client: &Client| {
        messages(client, &Limits::default()).into_iter().map(|(_, state, count, _)| (state, count)).collect::<Vec<_>>()
    };
    advance_and_step(&mut stepper, minutes(150));
    assert_eq!(states(&client), [(BEGAN, 2)]);
    advance_and_step(&mut stepper, minutes(30));
    succeed_all(&mut stepper);
    advance_and_step(&mut stepper, minutes(150));
    assert_eq!(states(&client), [(BEGAN, 2)], "16:00 and 17:00 were missed, and nothing has succeeded since");
    assert_eq!(problems(&client, &Limits::default()).len(), 1);
    advance_and_step(&mut stepper, minutes(30));
    succeed_all(&mut stepper);
    assert_eq!(states(&client), [(ENDED, 1)]);
    assert_eq!(problems(&client, &Limits::default()), []);
}

/// The policy would run the newest, but the retry of an earlier run waits.
#[test]
fn what_the_overlap_policy_keeps_from_catching_up_is_missed() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let retry = duly::RetryPolicy { backoff: minutes(600), max_backoff: minutes(600), ..duly::RetryPolicy::default() };
    client.add(NewTask::cron("t", "0 * * * *").handler("work").retry(retry).on_missed("tell")).expect("a task");
    client.add(NewTask::manual("tell").handler("work")).expect("a task");
    look(&client, &Limits::default());
    advance_and_step(&mut stepper, minutes(60));
    finish_all(&mut stepper, &Outcome::failed("no network"));
    stepper.step().expect("a step");
    advance_and_step(&mut stepper, minutes(150));
    db.assert_history(
        "t",
        &[
            "2027-03-14 13:00:00 schedule failed",
            "2027-03-14 14:00:00 schedule missed",
            "2027-03-14 15:00:00 schedule skipped",
        ],
    );
    assert_eq!(
        db.rows("SELECT origin FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = 'tell'"),
        ["on_missed"]
    );
    let told = messages(&client, &Limits::default());
    assert_eq!(told.iter().map(|one| (one.0, one.1)).collect::<Vec<_>>(), [(MISSED, BEGAN)]);
}

/// Who asks for it learns of what a later run has replaced, too.
#[test]
fn caught_up_occurrences_are_reported_to_those_who_ask() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::cron("t", "0 * * * *").handler("work")).expect("a task");
    look(&client, &all());
    stepper.clock().advance(minutes(190));
    stepper.step().expect("a step");
    assert_eq!(messages(&client, &Limits::default()), []);
    assert_eq!(problems(&client, &Limits::default()), []);
    let found = "t missed 2 occurrences from 2027-03-14T13:00:00.000Z to 2027-03-14T14:00:00.000Z: resolved later than the grace of the task \
                 (misfire policy)";
    assert_eq!(problems(&client, &all()), [(ProblemKind::Missed, found.to_owned())]);
    succeed_all(&mut stepper);
    assert_eq!(problems(&client, &all()), []);
}

#[test]
fn a_run_that_expires_is_reported_until_a_later_one_succeeds() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let brief = |name: &str| NewTask::manual(name).handler("work").concurrency_key("door").expires(minutes(5));
    client.add(brief("long")).expect("a task");
    client.add(brief("late")).expect("a task");
    let before = db.add_bystander(&stepper);
    look(&client, &Limits::default());
    client.trigger("long").expect("a run");
    let claims = stepper.step().expect("a step");
    assert_eq!(claims.len(), 1);
    client.trigger("late").expect("a run");
    stepper.step().expect("a step");
    // The turn that sees it for the first time gives it a moment.
    advance_and_step(&mut stepper, minutes(6));
    advance_and_step(&mut stepper, seconds(1));
    let found = "late missed run 3 of 2027-03-14T12:00:00.000Z: expired before an attempt began";
    assert_eq!(messages(&client, &Limits::default()), [(MISSED, BEGAN, 1, found.to_owned())]);
    assert_eq!(problems(&client, &Limits::default()), [(ProblemKind::Missed, found.to_owned())]);
    succeed_all(&mut stepper);
    assert_eq!(messages(&client, &Limits::default()), [], "another task has succeeded");
    client.trigger("late").expect("a run");
    stepper.step().expect("a step");
    succeed_all(&mut stepper);
    assert_eq!(messages(&client, &Limits::default()), [(MISSED, ENDED, 1, found.to_owned())]);
    assert_eq!(problems(&client, &Limits::default()), []);
    db.assert_bystander(&before);
    db.assert_sound();
}

/// A task of every minute whose runs take six and a half: six skips after each run. It is one alarm, which lasts as long as runs are that
/// slow.
#[test]
fn a_task_that_is_skipped_five_times_in_a_row_is_one_alarm() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::cron("slow", "* * * * *").handler("work").overlap(Overlap::Skip)).expect("a task");
    look(&client, &Limits::default());
    let mut told = Vec::new();
    for minute in 1..=30 {
        advance_and_step(&mut stepper, minutes(1));
        told.extend(messages(&client, &Limits::default()).into_iter().map(|(kind, state, ..)| (minute, kind, state)));
        if minute % 7 == 0 {
            succeed_all(&mut stepper);
            told.extend(
                messages(&client, &Limits::default()).into_iter().map(|(kind, state, ..)| (minute, kind, state)),
            );
        }
    }
    let began: Vec<_> = told.iter().filter(|(_, kind, state)| (*kind, *state) == (SKIPPED, BEGAN)).collect();
    assert_eq!(began, [&(6, SKIPPED, BEGAN)], "once, at the fifth skip");
    assert_eq!(told.len(), 1, "it does not end while runs stay slow: {told:?}");
    let listed = problems(&client, &Limits::default());
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].0, ProblemKind::Skipped);
    let reason = "5 in a row: an earlier run of the task was unfinished (overlap policy)";
    assert_eq!(listed[0].1, format!("slow was skipped {reason}"));
    // The run that began after the last skips succeeds.
    succeed_all(&mut stepper);
    advance_and_step(&mut stepper, minutes(1));
    succeed_all(&mut stepper);
    assert_eq!(states(&client), [(SKIPPED, ENDED)]);
    assert_eq!(problems(&client, &Limits::default()), []);
    db.assert_sound();
}

/// The last run of the task waited while others were skipped: its row is older than theirs.
#[test]
fn a_run_that_waited_ends_the_alarm_of_the_skips_before_it_began() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let slow = NewTask::cron("slow", "* * * * *").handler("work").overlap(Overlap::BufferOne);
    client.add(slow.ends_at(at("2027-03-14T12:09:30Z"))).expect("a task");
    look(&client, &Limits::default());
    (1..=10).for_each(|_| drop(advance_and_step(&mut stepper, minutes(1))));
    assert_eq!(states(&client), [(SKIPPED, BEGAN)]);
    // The first run, which held the others back.
    succeed_all(&mut stepper);
    assert_eq!((states(&client), problems(&client, &Limits::default()).len()), (vec![], 1));
    succeed_all(&mut stepper);
    assert_eq!(states(&client), [(SKIPPED, ENDED)]);
    assert_eq!(problems(&client, &Limits::default()), []);
    db.assert_sound();
}

/// The newest occurrence would run in the place of the others, and has expired before it is opened.
#[test]
fn what_an_outage_made_expire_is_missed_with_all_occurrences_before_it() {
    let db = TestDb::new();
    let stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let hourly = |name: &str| NewTask::cron(name, "0 * * * *").handler("work").on_missed("tell");
    client.add(NewTask::manual("tell").handler("work")).expect("a task");
    client.add(hourly("expires").expires(minutes(10))).expect("a task");
    client.add(hourly("lasts").expires(minutes(50))).expect("a task");
    look(&client, &Limits::default());
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T18:30:00Z");
    let client = stepper.client().clone();
    work_off(&mut stepper);
    let told: u64 = messages(&client, &Limits::default()).iter().map(|one| one.2).sum();
    assert_eq!(told, 6, "of the other task the newest occurrence runs in the place of all");
    let counts = db.rows("SELECT json_extract(payload, '$.task'), json_extract(payload, '$.count') FROM task_runs WHERE origin = 'on_missed' ORDER BY 2");
    assert_eq!(counts, ["expires|1", "expires|5"]);
    db.assert_sound();
}

/// A program prints what it likes.
#[test]
fn a_zero_byte_in_an_error_makes_no_task_invalid_and_no_file_damaged() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::once("t", at(NOON)).handler("work").max_attempts(1)).expect("a task");
    stepper.step().expect("a step");
    finish_all(&mut stepper, &Outcome::failed("exit code 1: x\0y"));
    stepper.step().expect("a step");
    let kinds: Vec<_> = client.check(&Limits::default()).expect("problems").iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ProblemKind::Dead]);
    db.assert_sound();
}

#[test]
fn four_skips_in_a_row_are_no_alarm() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::cron("t", "* * * * *").handler("work")).expect("a task");
    look(&client, &Limits::default());
    for minute in 1..=30 {
        advance_and_step(&mut stepper, minutes(1));
        if minute % 5 == 0 {
            succeed_all(&mut stepper);
        }
    }
    assert_eq!(db.number::<u64>("SELECT max(occurrences) FROM task_runs WHERE status = 'skipped'"), 4);
    assert_eq!(messages(&client, &Limits::default()), []);
    assert_eq!(problems(&client, &Limits::default()), []);
}

/// The facts are stored with the rows: a channel that was away finds them, once.
#[test]
fn what_was_missed_while_nobody_looked_is_reported_once() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    for name in ["a", "b"] {
        client
            .add(NewTask::cron(name, "0 * * * *").handler("work").misfire(Misfire::Skip, minutes(1)))
            .expect("a task");
    }
    look(&client, &Limits::default());
    for _ in 0..2 {
        stepper.clock().advance(minutes(150));
        stepper.step().expect("a step");
        succeed_all(&mut stepper);
    }
    client.remove("b").expect("a removal");
    let counts: Vec<_> = messages(&client, &Limits::default()).into_iter().map(|one| (one.0, one.1, one.2)).collect();
    assert_eq!(
        counts,
        [(MISSED, BEGAN, 4), (MISSED, ENDED, 1)],
        "13:00 to 16:00, without those of the task that is gone"
    );
    assert_eq!(messages(&client, &Limits::default()), []);
    stepper.clock().advance(seconds(1));
    assert_eq!(messages(&client, &Limits::default()), []);
}

/// More occurrences are due than a change of the task looks at one by one, and nothing runs for the others.
#[test]
fn what_a_change_cuts_off_is_missed() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let patient = NewTask::interval("t", seconds(1)).handler("work").misfire(Misfire::Skip, minutes(60 * 24 * 9));
    client.add(patient).expect("a task");
    stepper.step().expect("a step");
    look(&client, &Limits::default());
    stepper.clock().advance(minutes(60 * 24 * 3));
    client.pause("t").expect("a pause");
    let found = messages(&client, &Limits::default());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!((found[0].0, found[0].1) == (MISSED, BEGAN) && found[0].2 > 200_000, "{found:?}");
}
