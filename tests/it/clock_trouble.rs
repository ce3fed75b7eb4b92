//! Clock trouble is visible: an event for each step, lines of `status` and `check` while schedules wait for the clock, a warning
//! at start. `next` agrees with `list`, and retries planned by a wrong clock wait their backoff.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use duly::testing::Stepper;
use duly::{
    BoxError, Client, Clock, Context, Event, FailureKind, NewTask, Outcome, Retry, RetryPolicy, RunStatus, Scheduler,
    Timestamp,
};
use serde_json::Value;

use crate::fixtures::{
    NOON, TestDb, at, claim, claim_after, eventually, is_of_sqlite, listen, minutes, once, patience, problems, seconds,
    step, step_after, wait_for_status, work_off,
};

const UNSET: &str = "1970-01-01T00:00:40Z";

fn rows(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT kind || ' ' || strftime('%Y-%m-%dT%H:%M:%S', at / 1000, 'unixepoch') || ': ' || detail
           FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id",
    )
}

/// The clock problems of `check`.
fn clock_problems(client: &Client) -> Vec<String> {
    problems(client).into_iter().filter(|line| line.starts_with("clock: ")).collect()
}

#[test]
fn every_step_is_an_event() {
    let (db, mut stepper) = TestDb::with_stepper();
    let bystander = db.add_bystander(&stepper);
    step(&mut stepper, 0);
    // A drift of four seconds is no step.
    stepper.clock().set_wall(at("2027-03-14T12:00:04Z"));
    step(&mut stepper, 0);
    assert_eq!(rows(&db), [""; 0]);

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
    let found = rows(&db);
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
fn a_clock_event_is_recorded_when_the_database_can_be_written() {
    if is_of_sqlite("it opens the file") {
        return;
    }
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
    assert_eq!(rows(&db), [""; 0]);
    other.execute_batch("ROLLBACK").expect("the lock");
    stepper.clock().set_wall(at("2027-03-14T13:00:12Z"));
    step(&mut stepper, 0);
    let kinds: Vec<String> = db.rows("SELECT kind FROM scheduler_events ORDER BY id");
    assert_eq!(kinds, ["clock_forward", "clock_not_set", "clock_set"]);
}

/// Tasks of each kind that were resolved or counted by a clock that is two hours ahead.
fn two_hours_ahead(db: &TestDb, now: Timestamp) -> Stepper {
    let ahead = now.plus(minutes(120));
    let mut stepper = Stepper::builder(db.address(), ahead).accept("work").start().expect("a stepper");
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
fn check_and_status_report_until_when_schedules_wait() {
    let db = TestDb::new();
    let mut stepper = two_hours_ahead(&db, at(NOON));
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    assert_eq!((clock_problems(&client), client.status().expect("a status").clock), (vec![], None));
    // A small step back is not reported.
    clock.set_wall(at("2027-03-14T14:02:57Z"));
    assert_eq!(clock_problems(&client), Vec::<String>::new());

    clock.set_wall(at(NOON));
    work_off(&mut stepper);
    let expected = "clock: waiting for the clock until 2027-03-14T14:03:00.000Z: it shows 2027-03-14T12:00:00.000Z; schedules \
                    and retries that count from a later time: 3: set the clock if it is wrong; if it is right, schedules go on \
                    by themselves at that time";
    assert_eq!(clock_problems(&client), [expected]);
    let wait = client.status().expect("a status").clock.expect("a wait");
    assert_eq!((wait.until, wait.shows, wait.waiting), (at("2027-03-14T14:03:00Z"), at(NOON), Some(3)));
    // The problem lasts exactly as long as the wait, even if the scheduler dies.
    clock.set_wall(at("2027-03-14T14:02:00Z"));
    work_off(&mut stepper);
    assert_eq!(clock_problems(&client).len(), 1);
    stepper.crash();
    assert_eq!(clock_problems(&client).len(), 1);
    clock.set_wall(at("2027-03-14T14:03:00Z"));
    assert_eq!(clock_problems(&client), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn tasks_that_do_not_wait_for_the_clock_are_not_reported() {
    let db = TestDb::new();
    let stepper = db.stepper("2027-03-14T14:00:00Z");
    let client = stepper.client();
    client.add(NewTask::once("once", at("2027-03-14T15:00:00Z")).handler("work")).expect("a task");
    client.add(NewTask::manual("manual").handler("work")).expect("a task");
    client.add(NewTask::cron("paused", "@hourly").handler("work")).expect("a task");
    client.pause("paused").expect("a pause");
    stepper.clock().set_wall(at(NOON));
    assert_eq!(clock_problems(client), Vec::<String>::new());
}

#[test]
fn a_retry_waits_for_the_clock_too() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("t")).expect("a task");
    let failing = claim(&mut stepper);
    stepper.finish(&failing, Outcome::failed("no"));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-03-14T11:00:00Z"));
    step(&mut stepper, 0);
    let lines = clock_problems(&client);
    assert!(lines.len() == 1 && lines[0].contains("until 2027-03-14T12:00:00.000Z"), "{lines:?}");
    // After a large step back the retry is planned again: nothing waits for 12:00.
    stepper.clock().set_wall(at("2027-03-14T08:00:00Z"));
    step(&mut stepper, 0);
    assert_eq!(clock_problems(&client), Vec::<String>::new());
}

#[test]
fn a_clock_that_is_not_set_is_a_problem() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    stepper.clock().set_wall(at(UNSET));
    step(&mut stepper, 0);
    let expected = "clock: waiting for the clock until 2027-03-14T12:00:00.000Z: it is not set, and shows \
                    1970-01-01T00:00:40.000Z; nothing is done: ";
    let lines = clock_problems(&client);
    assert!(lines.len() == 1 && lines[0].starts_with(expected), "{lines:?}");
    assert_eq!(client.status().expect("a status").clock.expect("a wait").waiting, None);
}

/// The JSON that the program prints.
fn json(db: &TestDb, arguments: &[&str]) -> Value {
    let output = db.duly(arguments).output().expect("the program");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{output:?}: {error}"))
}

#[test]
fn the_program_reports_until_when_schedules_wait() {
    let db = TestDb::new();
    let _stepper = two_hours_ahead(&db, Timestamp::from(SystemTime::now()));
    let until = db.ask(
        "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(max(active_since, ifnull(resolved_until, 0))) / 1000.0, 'unixepoch')
           FROM scheduled_tasks WHERE name = 'cron' OR name = 'delay'",
    );
    assert_eq!(db.duly(&["check"]).output().expect("the program").status.code(), Some(1));
    let problem = json(&db, &["check", "--json"])[0].clone();
    assert_eq!(problem["kind"], "clock");
    let found = problem["found"].as_str().expect("a text");
    assert!(found.starts_with(&format!("waiting for the clock until {until}: it shows ")), "{found}");
    assert_eq!(json(&db, &["status", "--json"])["waiting_for_clock_until"], until);
    let text = db.printed(&["status"]);
    let is_reported =
        |line: &str| line.starts_with("clock ") && line.contains(&format!("waiting for the clock until {until}"));
    assert!(text.lines().any(is_reported), "{text}");
}

#[test]
fn a_start_with_a_clock_that_is_behind_is_a_warning() {
    // The file holds a heartbeat or, where retention has removed that, only resolved occurrences.
    for forgotten in [false, true] {
        for (wall, warns) in [("2027-03-14T14:02:57Z", false), ("2027-03-14T13:00:00Z", true), (NOON, true)] {
            let db = TestDb::new();
            let ahead = two_hours_ahead(&db, at(NOON));
            ahead.stop().expect("it leaves");
            if forgotten {
                db.execute("DELETE FROM scheduler_instances");
            }
            let (mut behind, events) = db.stepper_with_events(wall);
            behind.step().expect("a step");
            let expected = format!(
                "the clock shows {} at the start, behind the newest time in the file, 2027-03-14T14:03:00.000Z; schedules \
                 that count from that time wait for it",
                at(wall)
            );
            let warned = |line: &String| line.starts_with("the clock shows");
            let lines: Vec<String> = events.try_iter().map(|event| event.to_string()).filter(warned).collect();
            assert_eq!(lines, if warns { vec![expected.clone()] } else { vec![] });
            let row = format!("clock_behind {}: {expected}", &wall[..19]);
            assert_eq!(rows(&db), if warns { vec![row] } else { vec![] });
        }
    }
}

/// The first turn does not wait for this comparison, which reads all tasks.
#[test]
fn a_scheduler_with_threads_compares_the_clock_with_the_tasks() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    for (ahead, warns) in [(0, false), (86_400_000, true)] {
        let db = TestDb::new();
        let client = Client::open(db.address()).expect("a client");
        client.add(NewTask::cron("digest", "0 7 * * *").handler("work")).expect("a task");
        let change = format!("UPDATE scheduled_tasks SET active_since = active_since + {ahead}");
        db.execute(&change);
        let (observer, events) = listen();
        let scheduler = Scheduler::builder(db.address()).handler("work", |_: &Context| Ok::<_, BoxError>(()));
        let scheduler = scheduler.observe(observer).start().expect("a scheduler");
        let found = || db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'clock_behind'");
        if warns {
            eventually("the clock is recorded as behind", || found() == "1");
        } else {
            client.trigger("digest").expect("a run");
            eventually("a run succeeds", || client.history("digest", 1).unwrap()[0].status == RunStatus::Succeeded);
        }
        scheduler.shutdown(patience()).expect("it stops");
        let lines = events.try_iter().filter(|event| event.to_string().starts_with("the clock shows")).count();
        assert_eq!((lines, found()), if warns { (1, "1".to_owned()) } else { (0, "0".to_owned()) });
    }
}

/// The first turn plans all schedules anew. What was read before it says nothing of the schedules after it.
#[test]
fn a_scheduler_that_finds_the_clock_wrong_does_not_warn_that_schedules_wait() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let (db, client) = TestDb::with_client();
    client.add(NewTask::cron("digest", "0 7 * * *").handler("work")).expect("a task");
    db.execute("UPDATE scheduled_tasks SET active_since = active_since + 86400000;
             INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
             SELECT 'old', 'host', 1, '1', 4, 60000, active_since, active_since, active_since FROM scheduled_tasks;
             INSERT INTO scheduler_meta (key, value) VALUES ('zone_data', 'another');");
    // The first turn waits from before the start has compared the clock until after that.
    let writer = Arc::new(Mutex::new(db.plain()));
    let (sender, events) = channel();
    let of_start = writer.clone();
    let scheduler = Scheduler::builder(db.address())
        .handler("work", |_: &Context| Ok::<_, BoxError>(()))
        .observe(move |event: &Event| drop(sender.send(event.to_string())))
        .guarded(move |_| of_start.lock().expect("a connection").execute_batch("BEGIN IMMEDIATE").expect("the lock"))
        .start()
        .expect("a scheduler");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'clock_wrong'"), "0");
    writer.lock().expect("a connection").execute_batch("COMMIT").expect("an end");
    client.trigger("digest").expect("a run");
    wait_for_status(&client, "digest", RunStatus::Succeeded);
    scheduler.shutdown(patience()).expect("it stops");
    assert_eq!(db.rows("SELECT kind FROM scheduler_events WHERE kind GLOB 'clock*'"), ["clock_wrong"]);
    assert_eq!(events.try_iter().filter(|line| line.starts_with("the clock shows")).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn after_a_large_step_back_schedules_do_not_wait() {
    let db = TestDb::new();
    let ahead = two_hours_ahead(&db, at(NOON));
    let (client, clock) = (ahead.client().clone(), ahead.clock().clone());
    ahead.stop().expect("it leaves");
    clock.set_wall(at("2027-03-14T10:00:00Z"));
    let lines = clock_problems(&client);
    assert!(lines.len() == 1 && lines[0].ends_with("plans all schedules anew: duly run"), "{lines:?}");
    let mut right = db.stepper("2027-03-14T10:00:00Z");
    step(&mut right, 0);
    let kinds = db.rows("SELECT kind FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id");
    assert_eq!(kinds, ["clock_wrong"]);
    assert_eq!(clock_problems(right.client()), [""; 0]);
}

#[test]
fn a_start_with_an_unset_clock_compares_it_once_it_is_set() {
    let db = TestDb::new();
    two_hours_ahead(&db, at(NOON)).stop().expect("it leaves");
    let mut stepper = db.stepper(UNSET);
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    step(&mut stepper, 0);
    let kinds = db.rows("SELECT kind FROM scheduler_events WHERE kind GLOB 'clock*' ORDER BY id");
    assert_eq!(kinds, ["clock_not_set", "clock_set", "clock_behind"]);
}

/// Asserts that `list`, `next` and `show` print the same next occurrence.
#[track_caller]
fn assert_agree(db: &TestDb, task: &str, expected: Option<&str>) {
    let list = json(db, &["list", "--json"]);
    let row = list.as_array().into_iter().flatten().find(|row| row["name"] == task).expect("a row").clone();
    let next = json(db, &["next", task, "-n", "3", "--json"]);
    assert_eq!(row["next_run"], next[0]["scheduled_for"], "{task}: {row} {next}");
    assert_eq!(json(db, &["show", task, "--json"])["occurrences"][0], row["next_run"]);
    if let Some(expected) = expected {
        assert_eq!(row["next_run"], expected);
    }
    let times = |key: &str| next.as_array().into_iter().flatten().map(|one| one[key].to_string()).collect::<Vec<_>>();
    assert!(times("scheduled_for").is_sorted() && times("local").is_sorted(), "{next}");
}

#[test]
fn next_agrees_with_list() {
    let db = TestDb::new();
    // The scheduler's clock is ahead of the program's.
    let stepper = two_hours_ahead(&db, Timestamp::from(SystemTime::now()));
    let client = stepper.client();
    client.add(NewTask::cron("jitter", "* * * * *").jitter(minutes(5)).handler("work")).expect("a task");
    client
        .add(NewTask::interval("later", minutes(1)).starts_at(at("2999-01-01T00:00:30Z")).handler("work"))
        .expect("a task");
    stepper.stop().expect("it leaves");
    // Long overdue; set by hand to a time outside its schedule; completed; not planned yet.
    db.client().add(NewTask::cron("overdue", "@hourly").handler("work")).expect("a task");
    db.client().add(NewTask::cron("by-hand", "@yearly").handler("work")).expect("a task");
    db.client().add(NewTask::once("over", at("2999-01-01T00:00:00Z")).handler("work")).expect("a task");
    db.execute(
        "UPDATE scheduled_tasks SET next_run = 1767225600000 WHERE name = 'overdue';
             UPDATE scheduled_tasks SET next_run = 1767225601234 WHERE name = 'by-hand';
             UPDATE scheduled_tasks SET status = 'completed', next_run = NULL, planned = 1 WHERE name = 'over';
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
             VALUES ('unplanned', 'work', 'cron', '@daily')",
    );
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
    for (task, why) in [
        ("manual", " is known; next run: when triggered"),
        ("paused", ": the task is paused"),
        ("over", ": the task is completed"),
        ("unplanned", " is known; next run: not computed: no scheduler has read it yet"),
    ] {
        assert_agree(&db, task, None);
        assert_eq!(db.printed(&["next", task]).trim(), format!("no further occurrence{why}"));
    }
    // With `--from`, only the schedule counts.
    let from = ["next", "paused", "--from", "2999-01-01T00:30:00Z", "-n", "1", "--json"];
    assert_eq!(json(&db, &from)[0]["scheduled_for"], "2999-01-01T01:00:00.000Z");
}

/// Fifty years ahead, as after a lost leap setting or a GPS week rollover.
const GLITCH: &str = "2077-03-14T12:05:00Z";

fn run_at(db: &TestDb, task: &str) -> Timestamp {
    db.runs().iter().find(|run| run.task == task).expect("a run").run_at
}

/// A retry policy whose first wait is between five and ten minutes.
fn patient() -> RetryPolicy {
    RetryPolicy { max_attempts: 9, backoff: minutes(10), max_backoff: minutes(600) }
}

fn failed(retry: Retry) -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "no".into(), retry }
}

#[test]
fn a_retry_waits_its_backoff_after_a_glitch_and_not_the_maximum() {
    let (_db, mut stepper) = TestDb::with_stepper();
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(GLITCH));
    // The default backoff: ten seconds at first, an hour at most.
    stepper.client().add(once("t")).expect("a task");
    let failing = claim(&mut stepper);
    stepper.finish(&failing, failed(Retry::Backoff));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    assert_eq!(claim_after(&mut stepper, seconds(10)).attempt, 2);
}

#[test]
fn retries_planned_by_a_wrong_clock_wait_their_backoff() {
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

    // A scheduler without their handler runs during the glitch.
    clock.advance(minutes(1));
    let mut stepper = db.builder(NOON).clock(&clock).accept("work").start().expect("a stepper");
    let add = |name: &str| {
        client.add(once(name).retry(patient())).expect("a task");
    };
    add("crossing");
    let crossing = claim(&mut stepper);
    // It ends before the step and is recorded after it.
    stepper.finish(&crossing, Outcome::failed("no"));
    clock.set_wall(at(GLITCH));
    step(&mut stepper, 1).iter().for_each(|claim| {
        assert_eq!(claim.attempt, 2, "its backoff has ended");
        stepper.finish(claim, Outcome::failed("no"));
    });
    ["failed", "asked-then", "ends-later"].into_iter().for_each(add);
    let spread = NewTask::once("spread-then", at(GLITCH)).jitter(minutes(60)).handler("work");
    client.add(spread).expect("a task");
    client.add(NewTask::manual("requested").handler("missing")).expect("a task");
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
    // It ends by the wrong clock and is recorded by the right one.
    stepper.finish(&last.expect("a claim"), Outcome::failed("no"));

    let now = at("2027-03-14T12:04:00Z");
    clock.set_wall(now);
    stepper.step().expect("a step");
    assert_eq!(run_at(&db, "failed"), now.plus(waits), "the drawn backoff, from now");
    assert_eq!(run_at(&db, "crossing"), now.plus(crossed));
    assert_eq!(run_at(&db, "asked-then"), now.plus(minutes(24 * 60)));
    let late = run_at(&db, "ends-later").since(now);
    assert!(late >= minutes(5) && late <= minutes(10), "{late:?}");
    assert_eq!(run_at(&db, "spread-then"), now.plus(spread));
    assert_eq!(run_at(&db, "requested"), now, "nothing to wait for");
    assert_eq!(neighbours.map(|name| run_at(&db, name)), before, "planned by the right clock");
    clock.advance(waits);
    let claims = stepper.step().expect("a step");
    assert!(claims.iter().any(|claim| claim.task == "failed" && claim.attempt == 2));
    db.assert_sound();
}

#[test]
fn a_step_before_the_outcome_is_recorded_does_not_change_the_wait() {
    for (wall, expected) in [("2027-03-14T14:00:00Z", NOON), ("2027-03-14T11:00:00Z", "2027-03-14T11:00:00Z")] {
        let (db, mut stepper) = TestDb::with_stepper();
        stepper.client().add(once("t").retry(patient())).expect("a task");
        let failing = claim(&mut stepper);
        stepper.finish(&failing, failed(Retry::After(minutes(180))));
        stepper.clock().set_wall(at(wall));
        step(&mut stepper, 0);
        assert_eq!(run_at(&db, "t"), at(expected).plus(minutes(180)));
    }
}

#[test]
fn the_last_run_is_the_newest_run_after_a_glitch() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::interval("t", minutes(10)).handler("work").at_most_once()).expect("a task");
    step(&mut stepper, 0);
    stepper.clock().set_wall(at(GLITCH));
    work_off(&mut stepper);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    // The wrong clock has recorded 12:10 as missed.
    step_after(&mut stepper, minutes(10), 0);
    let second = claim_after(&mut stepper, minutes(10));
    stepper.finish(&second, Outcome::failed("no"));
    step(&mut stepper, 0);
    let newest =
        "SELECT last_status || ' ' || strftime('%Y-%m-%d %H:%M', last_run / 1000, 'unixepoch') FROM scheduled_tasks";
    assert_eq!(db.ask(newest), "dead 2027-03-14 12:20");
}
