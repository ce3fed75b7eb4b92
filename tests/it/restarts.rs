//! A day with restarts: each occurrence once, to the millisecond; interrupted runs are recovered.

use duly::{Context, Error, NewTask, Overlap};

use crate::fixtures::{NOON, TestDb, at, claim_after, minutes, seconds, succeed, work_off};

/// A run that expires before it begins is missed, at most a poll interval later.
#[test]
fn a_catch_up_that_has_expired_is_missed() {
    let missed = "2027-03-14 13:00:00 schedule missed x2 to 2027-03-14 14:00:00";
    let cases = [
        (10, "2027-03-14T15:10:00Z", "2027-03-14 15:00:00 catch_up missed"),
        (10, "2027-03-14T15:09:59.999Z", "2027-03-14 15:00:00 catch_up succeeded"),
        (1, "2027-03-14T15:30:00Z", "2027-03-14 15:00:00 catch_up missed"),
    ];
    for (expires, up, run) in cases {
        let (db, mut stepper) = TestDb::with_stepper();
        let task = NewTask::cron("t", "0 * * * *").handler("work").expires(minutes(expires));
        stepper.client().add(task).expect("a task");
        stepper.step().expect("a step");
        stepper.crash();
        let mut stepper = db.stepper(up);
        work_off(&mut stepper);
        stepper.clock().advance(seconds(1));
        assert!(work_off(&mut stepper).is_empty());
        db.assert_history("t", &[missed, run]);
        assert_eq!(db.next("t"), "2027-03-14 16:00:00 active");
    }
}

/// One task of each kind through a day, with a crash at noon and a stop in the evening: each occurrence once.
#[test]
fn each_occurrence_of_a_day_with_two_restarts_runs_once() {
    let db = TestDb::new();
    let begin = |now: &str| {
        let ok = |_: &Context| Ok::<_, Error>(());
        // No other program writes: no polls are needed between occurrences.
        db.builder(now).handler("work", ok).poll(minutes(10)).lease(minutes(30)).start().expect("a stepper")
    };
    let mut stepper = begin("2027-03-14T00:00:00Z");
    let tasks = [
        NewTask::cron("minutely", "* * * * *"),
        NewTask::cron("daily", "0 7 * * *"),
        NewTask::interval("grid", minutes(90)),
        NewTask::delay("delay", minutes(300)),
        NewTask::once("once", at("2027-03-14T18:00:00Z")),
    ];
    for task in tasks {
        stepper.client().add(task.handler("work")).expect("a task");
    }
    let before = db.add_bystander(&stepper);
    let mut done = stepper.run_until(at(NOON)).expect("a morning");
    stepper.crash();
    let mut stepper = begin("2027-03-14T12:00:00Z");
    done.extend(stepper.run_until(at("2027-03-14T20:00:20Z")).expect("an afternoon"));
    stepper.stop().expect("an orderly end");
    let mut stepper = begin("2027-03-14T20:00:40Z");
    done.extend(stepper.run_until(at("2027-03-15T00:00:00Z")).expect("an evening"));

    let ran: Vec<&str> = done.iter().map(|run| run.claim.task.as_str()).collect();
    let times = |name: &str| ran.iter().filter(|task| **task == name).count();
    let names = ["minutely", "daily", "grid", "delay", "once"];
    assert_eq!(names.map(times), [1440, 1, 16, 4, 1]);
    assert!(done.iter().all(|run| run.started_at == run.claim.scheduled_for), "each to the millisecond");
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status <> 'succeeded' AND handler = 'work'"), "0");
    let four = ["05", "10", "15", "20"].map(|hour| format!("2027-03-14 {hour}:00:00 schedule succeeded"));
    db.assert_history("delay", &four.each_ref().map(String::as_str));
    assert_eq!(
        names.map(|name| db.next(name))[1..],
        ["2027-03-15 07:00:00 active", "2027-03-15 01:30:00 active", "2027-03-15 01:00:00 active", "- completed"]
    );
    db.assert_bystander(&before);
    db.assert_sound();
}

/// An interrupted run is recovered beside what became due meanwhile, and comes first.
#[test]
fn an_interrupted_run_is_recovered_before_later_occurrences() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-14T11:59:00Z");
    let task = NewTask::cron("t", "0 * * * *").handler("work").overlap(Overlap::BufferAll);
    stepper.client().add(task).expect("a task");
    claim_after(&mut stepper, minutes(1));
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T15:30:00Z");
    for _ in 0..2 {
        assert!(stepper.step().expect("a step").is_empty(), "the lost attempt is tried again after its backoff");
    }
    db.assert_history(
        "t",
        &[
            "2027-03-14 12:00:00 schedule failed",
            "2027-03-14 13:00:00 schedule missed x2 to 2027-03-14 14:00:00",
            "2027-03-14 15:00:00 catch_up queued",
        ],
    );
    let lost = claim_after(&mut stepper, seconds(10));
    assert_eq!((lost.attempt, lost.scheduled_for), (2, at(NOON)));
    let late = succeed(&mut stepper, &lost);
    assert_eq!(late.len(), 1, "the one behind it starts in the turn that settles it");
    succeed(&mut stepper, &late[0]);
    db.assert_history(
        "t",
        &[
            "2027-03-14 12:00:00 schedule succeeded",
            "2027-03-14 13:00:00 schedule missed x2 to 2027-03-14 14:00:00",
            "2027-03-14 15:00:00 catch_up succeeded",
        ],
    );
    db.assert_sound();
}

#[test]
fn a_new_owner_on_a_dead_owners_connection_recovers_its_runs() {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(NewTask::interval("subject", minutes(10)).handler("work")).unwrap();
    let lost = claim_after(&mut first, minutes(10));
    let clock = first.clock().clone();
    let crashed = first.crash();

    let mut second = db.builder(NOON).accept("work").clock(&clock).after(crashed).start().expect("a stepper");
    assert_eq!(second.transactions(), 1, "it counts its own: it has registered");
    assert!(second.step().unwrap().is_empty(), "the run waits for its next attempt");
    assert_eq!(db.ask("SELECT outcome FROM task_attempts"), "lost");
    let again = claim_after(&mut second, minutes(1));
    assert_eq!((again.run_id, again.attempt), (lost.run_id, 2));
    succeed(&mut second, &again);
    db.assert_sound();

    let elsewhere = TestDb::new();
    let refused = elsewhere.builder(NOON).accept("work").after(second.crash()).start().err();
    assert!(matches!(refused, Some(Error::InvalidConfig { field: "after", .. })), "{refused:?}");
}
