//! Crashed schedulers, step by step: no run is lost, started twice or stuck. `kills` has real processes.

use duly::{Clock, Outcome};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, minutes, once, seconds};

#[test]
fn an_at_most_once_run_is_dead_after_a_crash_between_claim_and_start() {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(once("pay").at_most_once()).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let owner = first.owner().to_owned();
    first.crash();

    let mut next = db.stepper(NOON);
    assert!(next.step().unwrap().is_empty(), "it may have started: it must not start again");
    assert_eq!(db.states(), ["pay|dead|1"], "recovered in the first turn");
    assert_eq!(db.rows("SELECT attempt, outcome, locked_by FROM task_attempts"), [format!("1|lost|{owner}")]);
    for _ in 0..48 {
        assert!(advance_and_step(&mut next, minutes(30)).is_empty());
    }
    assert_eq!(db.lock_files(), [next.owner()], "the dead owner's lock file is removed with its last run");
    db.assert_sound();
}

#[test]
fn a_run_is_retried_after_a_crash_between_claim_and_start() {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(once("post")).unwrap();
    assert_eq!(first.step().unwrap()[0].attempt, 1);
    first.crash();

    let (mut next, events) = db.stepper_with_events(NOON);
    assert!(next.step().unwrap().is_empty(), "it waits for its backoff");
    assert_eq!(db.states(), ["post|failed|1"], "recovered in the first turn");
    let died = "the owner of attempt 1 died; failed; next attempt at";
    assert!(events.try_iter().any(|event| event.to_string().contains(died)));
    let claims = advance_and_step(&mut next, seconds(10));
    assert_eq!((claims.len(), claims[0].attempt), (1, 2));
    next.finish(&claims[0], Outcome::succeeded());
    next.step().unwrap();
    assert_eq!(db.states(), ["post|succeeded|2"]);
    db.assert_sound();
}

#[test]
fn every_crash_costs_one_attempt_until_none_is_left() {
    let db = TestDb::new();
    db.stepper(NOON).client().add(once("post")).unwrap();
    let mut now = at(NOON);
    for attempt in 1..=5 {
        let mut owner = db.stepper(&now.to_string());
        owner.step().unwrap();
        advance_and_step(&mut owner, minutes(10));
        assert_eq!(owner.running().iter().map(|claim| claim.attempt).collect::<Vec<_>>(), [attempt]);
        now = owner.clock().now().wall;
        owner.crash();
    }
    db.stepper(&now.to_string()).step().unwrap();
    assert_eq!(db.states(), ["post|dead|5"]);
    assert_eq!(db.outcomes(), ["1|lost", "2|lost", "3|lost", "4|lost", "5|lost"]);
    db.assert_sound();
}

#[test]
fn a_live_owner_keeps_its_runs_whatever_the_wall_clock_does() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    owner.client().add(once("long")).unwrap();
    let claims = owner.step().unwrap();
    let until = db.run(claims[0].run_id).locked_until;

    // The owner is stalled for ten years, long past its lease: its run is not taken over.
    for wall in ["2027-03-14T13:00:00Z", "2027-03-14T09:00:00Z", "2037-03-14T12:00:00Z", "2020-01-01T00:00:00Z", NOON] {
        observer.clock().set_wall(at(wall));
        for _ in 0..3 {
            assert!(observer.step().unwrap().is_empty(), "{wall}");
            observer.clock().advance(minutes(5));
        }
    }
    assert_eq!(db.run(claims[0].run_id).locked_until, until);
    owner.finish(&claims[0], Outcome::succeeded());
    owner.step().unwrap();
    assert_eq!(db.states(), ["long|succeeded|1"]);
    assert_eq!(db.outcomes(), [""; 0]);
    db.assert_sound();
}

#[test]
fn an_owner_without_a_lock_file_counts_as_alive_for_a_full_lease() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    let clock = owner.clock().clone();
    owner.client().add(once("long")).unwrap();
    owner.step().unwrap();
    observer.step().unwrap();
    let remove = |name: &str| std::fs::remove_file(db.lock_folder().join(name)).unwrap();

    // The lock file is removed every minute; the owner recreates it at each heartbeat.
    for second in 0..600 {
        clock.advance(seconds(1));
        if second % 60 == 0 {
            remove(owner.owner());
        }
        owner.step().unwrap();
        assert!(observer.step().unwrap().is_empty(), "second {second}");
    }
    assert_eq!(db.states(), ["long|running|1"]);

    // It dies without a file: the only evidence is a lease without a heartbeat, by the monotonic clock.
    remove(owner.owner());
    owner.crash();
    observer.step().unwrap();
    clock.set_wall(at("2028-01-01T00:00:00Z"));
    for second in 0..60 {
        assert!(observer.step().unwrap().is_empty(), "second {second}");
        assert_eq!(db.states(), ["long|running|1"], "second {second}");
        clock.advance(seconds(1));
    }
    for _ in 0..40 {
        clock.advance(seconds(1));
        observer.step().unwrap();
    }
    assert_eq!(db.states(), ["long|running|2"], "recovered, and retried after its backoff");
    assert_eq!(db.outcomes(), ["1|lost"]);
    db.assert_sound();
}

#[test]
fn an_owner_that_dies_between_two_turns_is_recovered_at_the_second() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    observer.step().unwrap();
    owner.client().add(once("post")).unwrap();
    owner.step().unwrap();
    owner.crash();

    advance_and_step(&mut observer, seconds(1));
    assert_eq!(db.states(), ["post|failed|1"]);
    db.assert_sound();
}

#[test]
fn a_dead_idle_owner_leaves_no_lock_file() {
    let (db, idle) = TestDb::with_stepper();
    let name = idle.owner().to_owned();
    idle.crash();

    let mut next = db.stepper(NOON);
    for _ in 0..3 {
        next.step().unwrap();
        next.clock().advance(seconds(20));
    }
    assert_eq!(db.lock_files(), [next.owner()]);
    let stopped = "SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL";
    assert_eq!(db.rows(stopped), [name], "it is recorded as stopped");
    next.stop().unwrap();
    assert!(db.lock_files().is_empty());
}
