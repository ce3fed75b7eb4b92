//! Trouble with the clock is visible: an event for every step, a line of `status` and a problem of `check` while schedules wait
//! for it, a warning at start; `next` agrees with `list`; and a retry that a wrong clock has counted waits its backoff.

use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use duly::testing::Stepper;
use duly::{Client, Clock, Event, FailureKind, Limits, NewTask, Outcome, Retry, RetryPolicy, Timestamp};
use serde_json::Value;

use crate::fixtures::{TestDb, at, claim, minutes, seconds, step, work_off};

const NOON: &str = "2027-03-14T12:00:00Z";
const UNSET: &str = "1970-01-01T00:00:40Z";

fn events(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT kind || ' ' || strftime('%Y-%m-%dT%H:%M:%S', at / 1000, 'unixepoch') || ': ' || detail
           FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id",
    )
}

/// What `check` says of the clock.
fn checked(client: &Client) -> Vec<String> {
    let found = client.check(&Limits::default()).expect("a look").into_iter();
    found.filter(|one| one.kind.as_str() == "clock").map(|one| one.to_string()).collect()
}

#[test]
fn every_step_is_an_event() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let bystander = db.add_bystander(&stepper);
    step(&mut stepper, 0);
    // Drift is no step.
    stepper.clock().set_wall(at("2027-03-14T12:00:04Z"));
    step(&mut stepper, 0);
    assert_eq!(events(&db), Vec::<String>::new());

    let mut steps_to = |wall: &str| {
        stepper.clock().set_wall(at(wall));
        for _ in 0..3 {
            step(&mut stepper, 0);
        }
    };
    ["2027-03-14T14:00:00Z", "2027-03-14T13:00:00Z", UNSET, "2027-03-14T13:00:10Z"]
        .iter()
        .for_each(|wall| steps_to(wall));
    db.assert_bystander(&bystander);
    steps_to("2027-03-13T13:00:00Z");
    let found = events(&db);
    let expected = [
        "clock_forward 2027-03-14T14:00:00: the clock moved forward from 2027-03-14T12:00:04.000Z to \
         2027-03-14T14:00:00.000Z; occurrences in between are resolved as after downtime",
        "clock_back 2027-03-14T13:00:00: the clock moved back from 2027-03-14T14:00:00.000Z to 2027-03-14T13:00:00.000Z; \
         occurrences that were resolved are not repeated",
        "clock_not_set 2027-03-14T14:00:00: the clock of this machine is not set: nothing is done until it is; it shows \
         1970-01-01T00:00:40.000Z",
        "clock_set 2027-03-14T13:00:10: the clock of this machine is set: it shows 2027-03-14T13:00:10.000Z",
        "clock_forward 2027-03-14T13:00:10: the clock moved forward from 2027-03-14T13:00:00.000Z to \
         2027-03-14T13:00:10.000Z; occurrences in between are resolved as after downtime",
        "clock_back 2027-03-13T13:00:00: the clock moved back from 2027-03-14T13:00:10.000Z to 2027-03-13T13:00:00.000Z; \
         occurrences that were resolved are not repeated",
        "clock_wrong 2027-03-13T13:00:00: the clock had shown 2027-03-14T14:00:00.000Z and shows 2027-03-13T13:00:00.000Z: \
         all schedules count from now",
    ];
    assert!(found == expected, "{found:#?}");
    db.assert_sound();
}

#[test]
fn an_event_waits_until_it_can_be_written() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").busy_timeout(Duration::ZERO).start().expect("a stepper");
    step(&mut stepper, 0);
    let other = db.plain();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    for wall in ["2027-03-14T13:00:00Z", UNSET] {
        stepper.clock().set_wall(at(wall));
        step(&mut stepper, 0);
        stepper.clock().advance(seconds(6));
    }
    assert_eq!(events(&db), Vec::<String>::new());
    other.execute_batch("ROLLBACK").expect("the lock");
    stepper.clock().set_wall(at("2027-03-14T13:00:12Z"));
    step(&mut stepper, 0);
    let kinds: Vec<String> = db.rows("SELECT kind FROM scheduler_events ORDER BY id");
    assert_eq!(kinds, ["clock_forward", "clock_not_set", "clock_set"]);
}

/// Schedules of each kind that were resolved, or that count, by a clock that is two hours ahead.
fn two_hours_ahead(db: &TestDb, now: Timestamp) -> Stepper {
    let ahead = now.plus(minutes(120));
    let mut stepper = Stepper::builder(db.file(), ahead).accept("work").start().expect("a stepper");
    let client = stepper.client();
    client.add(NewTask::cron("cron", "* * * * *").handler("work")).expect("a task");
    client.add(NewTask::interval("interval", minutes(10)).handler("work")).expect("a task");
    client.add(NewTask::delay("delay", minutes(10)).handler("work")).expect("a task");
    client.add(NewTask::once("once", ahead.plus(minutes(5))).handler("work")).expect("a task");
    client.add(NewTask::manual("manual").handler("work")).expect("a task");
    client.add(NewTask::cron("paused", "@hourly").handler("work")).expect("a task");
    client.pause("paused").expect("a pause");
    stepper.clock().advance(minutes(3));
    work_off(&mut stepper);
    stepper
}

#[test]
fn check_and_status_say_until_when_schedules_wait() {
    let db = TestDb::new();
    let mut stepper = two_hours_ahead(&db, at(NOON));
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    assert_eq!((checked(&client), client.status().expect("a status").clock), (vec![], None));
    // A little back is no trouble.
    clock.set_wall(at("2027-03-14T14:02:57Z"));
    assert_eq!(checked(&client), Vec::<String>::new());

    clock.set_wall(at(NOON));
    work_off(&mut stepper);
    let expected = "clock: waiting for the clock until 2027-03-14T14:03:00.000Z: it shows 2027-03-14T12:00:00.000Z; schedules \
                    and retries that count from a later time: 3: set the clock if it is wrong; if it is right, schedules go on \
                    by themselves at that time";
    assert_eq!(checked(&client), [expected]);
    let wait = client.status().expect("a status").clock.expect("a wait");
    assert_eq!((wait.until, wait.shows, wait.waiting), (at("2027-03-14T14:03:00Z"), at(NOON), Some(3)));
    // It is told as long as that lasts, and no longer; a scheduler that dies meanwhile does not end it.
    clock.set_wall(at("2027-03-14T14:02:00Z"));
    work_off(&mut stepper);
    assert_eq!(checked(&client).len(), 1);
    stepper.crash();
    assert_eq!(checked(&client).len(), 1);
    clock.set_wall(at("2027-03-14T14:03:00Z"));
    assert_eq!(checked(&client), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn what_waits_for_no_clock_is_not_told() {
    let db = TestDb::new();
    let stepper = db.stepper("2027-03-14T14:00:00Z");
    let client = stepper.client();
    client.add(NewTask::once("once", at("2027-03-14T15:00:00Z")).handler("work")).expect("a task");
    client.add(NewTask::manual("manual").handler("work")).expect("a task");
    client.add(NewTask::cron("paused", "@hourly").handler("work")).expect("a task");
    client.pause("paused").expect("a pause");
    stepper.clock().set_wall(at(NOON));
    assert_eq!(checked(client), Vec::<String>::new());
}

#[test]
fn a_retry_waits_too() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::once("t", at(NOON)).handler("work")).expect("a task");
    let failing = claim(&mut stepper);
    stepper.finish(&failing, Outcome::failed("no"));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-03-14T11:00:00Z"));
    step(&mut stepper, 0);
    let told = checked(&client);
    assert!(told.len() == 1 && told[0].contains("until 2027-03-14T12:00:00.000Z"), "{told:?}");
    // Far back, and it is counted anew: nothing waits for 12:00.
    stepper.clock().set_wall(at("2027-03-14T08:00:00Z"));
    step(&mut stepper, 0);
    assert_eq!(checked(&client), Vec::<String>::new());
}

#[test]
fn a_clock_that_is_not_set_is_a_problem() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    stepper.clock().set_wall(at(UNSET));
    step(&mut stepper, 0);
    let expected = "clock: waiting for the clock until 2027-03-14T12:00:00.000Z: it is not set, and shows \
                    1970-01-01T00:00:40.000Z; nothing is done: ";
    let told = checked(&client);
    assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
    assert_eq!(client.status().expect("a status").clock.expect("a wait").waiting, None);
}

/// The program, at the machine's time.
fn duly(db: &TestDb, line: &[&str]) -> Output {
    let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
    duly.arg("--db").arg(db.file()).args(line).env("TZ", "UTC").output().expect("the program")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{output:?}: {error}"))
}

#[test]
fn the_program_says_so_too() {
    let db = TestDb::new();
    let _stepper = two_hours_ahead(&db, Timestamp::from(SystemTime::now()));
    let until = db.ask(
        "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(max(active_since, ifnull(resolved_until, 0))) / 1000.0, 'unixepoch')
           FROM scheduled_tasks WHERE name = 'cron' OR name = 'delay'",
    );
    let check = duly(&db, &["check", "--json"]);
    assert_eq!(check.status.code(), Some(1));
    let problem = json(&check)[0].clone();
    assert_eq!(problem["kind"], "clock");
    let found = problem["found"].as_str().expect("a text");
    assert!(found.starts_with(&format!("waiting for the clock until {until}: it shows ")), "{found}");
    assert_eq!(json(&duly(&db, &["status", "--json"]))["waiting_for_clock_until"], until);
    let status = duly(&db, &["status"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    let said =
        |line: &str| line.starts_with("clock ") && line.contains(&format!("waiting for the clock until {until}"));
    assert!(text.lines().any(said), "{text}");
}

#[test]
fn a_start_with_a_clock_that_is_behind_is_a_warning() {
    // What the file holds: a sign of life of a scheduler, or, where retention has removed that, what was resolved.
    for forgotten in [false, true] {
        for (wall, warns) in [("2027-03-14T14:02:57Z", false), ("2027-03-14T13:00:00Z", true), (NOON, true)] {
            let db = TestDb::new();
            let ahead = two_hours_ahead(&db, at(NOON));
            ahead.stop().expect("it leaves");
            if forgotten {
                db.plain().execute_batch("DELETE FROM scheduler_instances").expect("it is forgotten");
            }
            let (told, hears) = channel();
            let observer = move |event: &Event| drop(told.send(event.to_string()));
            let mut behind = db.builder(wall).accept("work").observe(observer).start().expect("a stepper");
            behind.step().expect("a step");
            let expected = format!(
                "the clock shows {} at the start, behind the newest time in the file, 2027-03-14T14:03:00.000Z; schedules \
                 that count from that time wait for it",
                at(wall)
            );
            let warned = |line: &String| line.starts_with("the clock shows");
            let lines: Vec<String> = hears.try_iter().filter(warned).collect();
            assert_eq!(lines, if warns { vec![expected.clone()] } else { vec![] });
            let row = format!("clock_behind {}: {expected}", &wall[..19]);
            assert_eq!(events(&db), if warns { vec![row] } else { vec![] });
        }
    }
}

#[test]
fn behind_a_clock_that_was_wrong_by_hours_schedules_do_not_wait() {
    let db = TestDb::new();
    let ahead = two_hours_ahead(&db, at(NOON));
    let (client, clock) = (ahead.client().clone(), ahead.clock().clone());
    ahead.stop().expect("it leaves");
    clock.set_wall(at("2027-03-14T10:00:00Z"));
    let lines = checked(&client);
    assert!(lines.len() == 1 && lines[0].ends_with("plans all schedules anew: duly run"), "{lines:?}");
    let mut right = db.stepper("2027-03-14T10:00:00Z");
    step(&mut right, 0);
    let kinds = db.rows("SELECT kind FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id");
    assert_eq!(kinds, ["clock_wrong"]);
    assert_eq!(checked(right.client()), [""; 0]);
}

#[test]
fn a_start_before_the_clock_is_set_compares_it_when_it_is() {
    let db = TestDb::new();
    two_hours_ahead(&db, at(NOON)).stop().expect("it leaves");
    let mut stepper = db.stepper(UNSET);
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    step(&mut stepper, 0);
    let kinds = db.rows("SELECT kind FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id");
    assert_eq!(kinds, ["clock_not_set", "clock_set", "clock_behind"]);
}

/// What `list` and `next` of the program say is the first occurrence to come.
#[track_caller]
fn assert_agree(db: &TestDb, task: &str, expected: Option<&str>) {
    let list = json(&duly(db, &["list", "--json"]));
    let row = list.as_array().into_iter().flatten().find(|row| row["name"] == task).expect("a row").clone();
    let next = json(&duly(db, &["next", task, "-n", "3", "--json"]));
    assert_eq!(row["next_run"], next[0]["scheduled_for"], "{task}: {row} {next}");
    assert_eq!(json(&duly(db, &["show", task, "--json"]))["occurrences"][0], row["next_run"]);
    if let Some(expected) = expected {
        assert_eq!(row["next_run"], expected);
    }
    let times = |key: &str| next.as_array().into_iter().flatten().map(|one| one[key].to_string()).collect::<Vec<_>>();
    assert!(times("scheduled_for").is_sorted() && times("local").is_sorted(), "{next}");
}

#[test]
fn next_agrees_with_list() {
    let db = TestDb::new();
    // By a clock that is ahead of the program's.
    let stepper = two_hours_ahead(&db, Timestamp::from(SystemTime::now()));
    let client = stepper.client();
    client.add(NewTask::cron("jitter", "* * * * *").jitter(minutes(5)).handler("work")).expect("a task");
    client
        .add(NewTask::interval("later", minutes(1)).starts_at(at("2999-01-01T00:00:30Z")).handler("work"))
        .expect("a task");
    stepper.stop().expect("it leaves");
    // Overdue for long; set by hand to a time that the schedule does not name; not looked at yet; over.
    db.client().add(NewTask::cron("overdue", "@hourly").handler("work")).expect("a task");
    db.client().add(NewTask::cron("by-hand", "@yearly").handler("work")).expect("a task");
    db.client().add(NewTask::once("over", at("2999-01-01T00:00:00Z")).handler("work")).expect("a task");
    db.plain()
        .execute_batch(
            "UPDATE scheduled_tasks SET next_run = 1767225600000 WHERE name = 'overdue';
             UPDATE scheduled_tasks SET next_run = 1767225601234 WHERE name = 'by-hand';
             UPDATE scheduled_tasks SET status = 'completed', next_run = NULL, planned = 1 WHERE name = 'over';
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
             VALUES ('unplanned', 'work', 'cron', '@daily')",
        )
        .expect("rows");
    for (task, expected) in [
        ("cron", None),
        ("interval", None),
        ("delay", None),
        ("once", None),
        ("jitter", None),
        ("later", Some("2999-01-01T00:00:30.000Z")),
        ("overdue", Some("2026-01-01T00:00:00.000Z")),
        ("by-hand", Some("2026-01-01T00:00:01.234Z")),
    ] {
        assert_agree(&db, task, expected);
    }
    let text = |output: Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    for (task, why) in [
        ("manual", "due when triggered"),
        ("paused", "paused"),
        ("over", "completed"),
        ("unplanned", "due as soon as a scheduler has looked at it"),
    ] {
        assert_agree(&db, task, None);
        assert_eq!(text(duly(&db, &["next", task])), format!("no occurrence is known to come: it is {why}"));
    }
    // What the schedule of a task names from some time on is another question.
    let from = ["next", "paused", "--from", "2999-01-01T00:30:00Z", "-n", "1", "--json"];
    assert_eq!(json(&duly(&db, &from))[0]["scheduled_for"], "2999-01-01T01:00:00.000Z");
}

/// Fifty years, as an unset leap or a GPS roll-over may have it.
const GLITCH: &str = "2077-03-14T12:05:00Z";

fn run_at(db: &TestDb, task: &str) -> Timestamp {
    let run_at =
        format!("SELECT run_at FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = '{task}')");
    Timestamp::from_millis(db.ask(&run_at).parse().expect("a time"))
}

/// A retry policy whose first wait is between five and ten minutes.
fn patient() -> RetryPolicy {
    RetryPolicy { max_attempts: 9, backoff: minutes(10), max_backoff: minutes(600) }
}

fn failed(retry: Retry) -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "no".into(), retry }
}

#[test]
fn a_retry_waits_its_backoff_after_a_glitch_and_not_the_longest() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(GLITCH));
    // Ten seconds at first, an hour at last.
    stepper.client().add(NewTask::once("t", at(NOON)).handler("work")).expect("a task");
    let failing = claim(&mut stepper);
    stepper.finish(&failing, failed(Retry::Backoff));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    stepper.clock().advance(seconds(10));
    assert_eq!(claim(&mut stepper).attempt, 2);
}

#[test]
fn a_retry_that_a_wrong_clock_has_counted_waits_its_backoff() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").accept("other").start().expect("a stepper");
    let client = stepper.client().clone();
    let neighbours = ["backoff", "asked", "spread"];
    for name in neighbours {
        let task = NewTask::once(name, at(NOON)).handler("other").retry(patient());
        let jitter = if name == "spread" { minutes(24 * 60) } else { Duration::ZERO };
        client.add(task.jitter(jitter)).expect("a task");
    }
    for claim in step(&mut stepper, 2) {
        let retry = if claim.task == "asked" { Retry::After(minutes(24 * 60)) } else { Retry::Backoff };
        stepper.finish(&claim, failed(retry));
    }
    step(&mut stepper, 0);
    let before = neighbours.map(|name| run_at(&db, name));
    assert_eq!(before[1], at("2027-03-15T12:00:00Z"));
    let clock = stepper.clock().clone();
    stepper.stop().expect("it leaves");

    // Another scheduler, which has not their handler, lives through the glitch.
    clock.advance(minutes(1));
    let mut stepper = db.builder(NOON).clock(&clock).accept("work").start().expect("a stepper");
    let add = |name: &str| {
        client.add(NewTask::once(name, at(NOON)).handler("work").retry(patient())).expect("a task");
    };
    add("crossing");
    let crossing = claim(&mut stepper);
    // It ends before the step, and is written after it.
    stepper.finish(&crossing, Outcome::failed("no"));
    clock.set_wall(at(GLITCH));
    step(&mut stepper, 1).iter().for_each(|claim| {
        assert_eq!(claim.attempt, 2, "its backoff is long over");
        stepper.finish(claim, Outcome::failed("no"));
    });
    ["failed", "asked-then", "ends-later"].into_iter().for_each(add);
    let spread = NewTask::once("spread-then", at(GLITCH)).jitter(minutes(60)).handler("work");
    client.add(spread).expect("a task");
    client.add(NewTask::manual("requested").handler("nobody")).expect("a task");
    client.trigger("requested").expect("a run");
    let mut last = None;
    for claim in step(&mut stepper, 3) {
        match &*claim.task {
            "ends-later" => last = Some(claim),
            "asked-then" => stepper.finish(&claim, failed(Retry::After(minutes(24 * 60)))),
            _ => stepper.finish(&claim, failed(Retry::Backoff)),
        }
    }
    step(&mut stepper, 0);
    let drawn = |name: &str| run_at(&db, name).since(stepper.clock().now().wall);
    let (waits, crossed, spread) = (drawn("failed"), drawn("crossing"), drawn("spread-then"));
    assert!(waits >= minutes(5) && waits <= minutes(10), "{waits:?}");
    assert!(crossed >= minutes(10) && crossed <= minutes(20), "{crossed:?}");
    // It ends by the wrong clock, and is written by the right one.
    stepper.finish(&last.expect("a claim"), Outcome::failed("no"));

    let now = at("2027-03-14T12:04:00Z");
    clock.set_wall(now);
    stepper.step().expect("a step");
    assert_eq!(run_at(&db, "failed"), now.plus(waits), "what was drawn, from now");
    assert_eq!(run_at(&db, "crossing"), now.plus(crossed));
    assert_eq!(run_at(&db, "asked-then"), now.plus(minutes(24 * 60)));
    let late = run_at(&db, "ends-later").since(now);
    assert!(late >= minutes(5) && late <= minutes(10), "{late:?}");
    assert_eq!(run_at(&db, "spread-then"), now.plus(spread));
    assert_eq!(run_at(&db, "requested"), now, "nothing to wait for");
    assert_eq!(neighbours.map(|name| run_at(&db, name)), before, "the right clock has counted these");
    clock.advance(waits);
    let claims = stepper.step().expect("a step");
    assert!(claims.iter().any(|claim| claim.task == "failed" && claim.attempt == 2));
    db.assert_sound();
}

#[test]
fn a_step_within_an_attempts_end_neither_stretches_nor_cuts_the_wait() {
    for (wall, expected) in [("2027-03-14T14:00:00Z", NOON), ("2027-03-14T11:00:00Z", "2027-03-14T11:00:00Z")] {
        let db = TestDb::new();
        let mut stepper = db.stepper(NOON);
        stepper.client().add(NewTask::once("t", at(NOON)).handler("work").retry(patient())).expect("a task");
        let failing = claim(&mut stepper);
        stepper.finish(&failing, failed(Retry::After(minutes(180))));
        stepper.clock().set_wall(at(wall));
        step(&mut stepper, 0);
        assert_eq!(run_at(&db, "t"), at(expected).plus(minutes(180)));
    }
}

#[test]
fn the_newest_run_is_known_after_a_glitch() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    stepper.client().add(NewTask::interval("t", minutes(10)).handler("work").at_most_once()).expect("a task");
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(GLITCH));
    work_off(&mut stepper);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    // The wrong clock has recorded 12:10 as missed.
    stepper.clock().advance(minutes(10));
    step(&mut stepper, 0);
    stepper.clock().advance(minutes(10));
    let second = claim(&mut stepper);
    stepper.finish(&second, Outcome::failed("no"));
    step(&mut stepper, 0);
    let newest =
        "SELECT last_status || ' ' || strftime('%Y-%m-%d %H:%M', last_run / 1000, 'unixepoch') FROM scheduled_tasks";
    assert_eq!(db.ask(newest), "dead 2027-03-14 12:20");
}
