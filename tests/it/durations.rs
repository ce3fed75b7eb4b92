//! The duration of an attempt is measured by the monotonic clock, whatever the wall clock does; an unknown one is not recorded.

use std::time::Duration;

use duly::{Event, NewTask, Outcome, RetryPolicy, RunStatus};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, minutes, once, seconds};

const BEFORE: &str = "2027-03-14T11:59:00Z";
const BACK: &str = "2027-03-14T11:00:00Z";

const RUNS: &str = "
    SELECT t.name, r.status, r.duration_ms FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY r.id";
const ATTEMPTS: &str = "SELECT attempt, outcome, duration_ms FROM task_attempts ORDER BY id";
const OVERVIEW: &str = "SELECT name, last_duration_ms FROM task_overview ORDER BY name";

#[test]
fn a_step_of_the_clock_changes_no_duration() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(BEFORE);
    let client = stepper.client().clone();
    client
        .add_all([
            once("good").at_most_once(),
            once("bad").at_most_once(),
            NewTask::interval("grid", minutes(1)).starts_at(at(NOON)).handler("work"),
        ])
        .unwrap();
    let claims = advance_and_step(&mut stepper, minutes(1));
    assert_eq!(claims.len(), 3);
    stepper.clock().advance(Duration::from_millis(20_005));
    stepper.clock().set_wall(at(BACK));
    for claim in &claims {
        let outcome = if claim.task == "bad" { Outcome::failed("no luck") } else { Outcome::succeeded() };
        stepper.finish(claim, outcome);
    }
    stepper.settle().unwrap();
    let measured = Duration::from_millis(20_005);
    assert_eq!(db.rows(OVERVIEW), ["bad|20005", "good|20005", "grid|20005"]);
    assert_eq!(db.rows(RUNS).iter().filter(|row| row.ends_with("|20005")).count(), 3, "{:?}", db.rows(RUNS));
    assert_eq!(db.rows(ATTEMPTS), ["1|failed|20005"]);
    for task in client.tasks().unwrap() {
        assert_eq!(task.last_duration, Some(measured), "{}", task.name());
        let run = &client.history(task.name(), 1).unwrap()[0];
        assert_eq!((run.duration, client.recent(1).unwrap()[&task.id][0].duration), (Some(measured), Some(measured)));
    }
    let took = |event| if let Event::Finished { took, .. } = event { Some(took) } else { None };
    assert_eq!(events.try_iter().filter_map(took).collect::<Vec<_>>(), [measured; 3]);
    // `started_at` and `finished_at` keep the wall time of their moment.
    assert!(db.runs().iter().all(|run| run.finished_at < run.started_at));
    db.assert_sound();
}

#[test]
fn a_retried_run_has_the_duration_of_its_newest_attempt() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let policy = RetryPolicy { max_attempts: 3, backoff: minutes(10), max_backoff: minutes(10) };
    client.add(once("stubborn").retry(policy)).unwrap();
    let mut fail = |took: u64, wait: u64| {
        let claims = stepper.step().unwrap();
        assert_eq!(db.rows(RUNS), ["stubborn|running|-"], "no duration while it runs");
        stepper.clock().advance(seconds(took));
        stepper.finish(&claims[0], Outcome::failed("busy"));
        stepper.step().unwrap();
        assert_eq!(db.rows(RUNS), [format!("stubborn|failed|{}", took * 1000)]);
        stepper.clock().advance(minutes(wait));
    };
    fail(3, 11);
    fail(2, 5);
    assert_eq!(db.rows(ATTEMPTS), ["1|failed|3000", "2|failed|2000"]);
    // It is cancelled after a wait of five minutes, which is no part of its newest attempt.
    client.cancel(1).unwrap();
    assert_eq!(db.rows(RUNS), ["stubborn|cancelled|2000"]);
    assert_eq!(db.rows(OVERVIEW), ["stubborn|2000"]);
    let recent = client.recent(5).unwrap();
    let recent = recent.values().next().unwrap();
    assert_eq!((recent[0].status, recent[0].duration), (RunStatus::Cancelled, Some(seconds(2))));
}

#[test]
fn an_unknown_duration_is_not_recorded() {
    let db = TestDb::new();
    let mut stepper = db.stepper(BEFORE);
    let grid = NewTask::interval("grid", minutes(1)).starts_at(at(NOON)).handler("work").at_most_once();
    stepper.client().add_all([once("once").at_most_once(), grid]).unwrap();
    assert_eq!(advance_and_step(&mut stepper, minutes(1)).len(), 2);
    stepper.clock().advance(seconds(9));
    stepper.crash();
    let mut next = db.stepper("2027-03-14T12:00:10Z");
    next.step().unwrap();
    assert_eq!(db.rows(ATTEMPTS), ["1|lost|-", "1|lost|-"]);
    assert_eq!(db.rows(OVERVIEW), ["grid|-", "once|-"]);
    assert!(db.rows(RUNS).iter().all(|row| row.ends_with("|dead|-")), "{:?}", db.rows(RUNS));
    // The table refuses a negative duration.
    assert!(db.try_execute("UPDATE task_runs SET duration_ms = -1").is_err());
}

/// A run is stuck when its time limit has passed by the monotonic clock.
#[test]
fn a_step_of_the_clock_makes_no_run_stuck_and_hides_none() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("slow").at_most_once().timeout(minutes(3))).unwrap();
    stepper.step().unwrap();
    let stuck = || {
        client.check(&duly::Limits::default()).unwrap().iter().any(|problem| problem.kind == duly::ProblemKind::Stuck)
    };
    stepper.clock().advance(minutes(1));
    stepper.clock().set_wall(at("2027-03-14T14:00:00Z"));
    stepper.step().unwrap();
    assert!(!stuck(), "it has been running for a minute");
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    stepper.step().unwrap();
    advance_and_step(&mut stepper, minutes(3));
    assert!(stuck(), "it has been running for four minutes");
    assert_eq!(db.run(1).started_at, Some(at("2027-03-14T12:59:00Z")));
}
