//! `run_all` after an outage: which occurrences get runs, how the limit counts, and the reason recorded for the others.

use duly::{Error, Misfire, NewTask, Overlap, RunStatus};

use crate::fixtures::{TestDb, advance_and_step, minutes, seconds, work_off};
use crate::misfire::{DOWN, after_an_outage, assert_after_outage};

/// The reason of the first run with a status.
fn reason(db: &TestDb, status: RunStatus) -> String {
    db.runs().into_iter().find(|run| run.status == status).and_then(|run| run.error).expect("a reason")
}

#[test]
fn run_all_runs_the_newest_oldest_first_and_misses_the_rest() {
    let daily = |limit| {
        let task = NewTask::cron("t", "0 7 * * *").overlap(Overlap::BufferAll);
        task.misfire(Misfire::RunAll, minutes(1)).catch_up_limit(limit)
    };
    let db = TestDb::new();
    let mut stepper = db.stepper(DOWN);
    stepper.client().add(daily(3).handler("work")).expect("a task");
    stepper.step().expect("a step");
    stepper.crash();
    let mut stepper = db.stepper("2027-03-21T12:00:00Z");
    let days: Vec<String> = work_off(&mut stepper).iter().map(|claim| claim.scheduled_for.to_string()).collect();
    assert_eq!(days, ["2027-03-19T07:00:00.000Z", "2027-03-20T07:00:00.000Z", "2027-03-21T07:00:00.000Z"]);
    db.assert_history(
        "t",
        &[
            "2027-03-15 07:00:00 schedule missed x4 to 2027-03-18 07:00:00",
            "2027-03-19 07:00:00 catch_up succeeded",
            "2027-03-20 07:00:00 catch_up succeeded",
            "2027-03-21 07:00:00 catch_up succeeded",
        ],
    );
    // As many occurrences as the limit, fewer, and one more.
    let three = [
        "2027-03-15 07:00:00 catch_up succeeded",
        "2027-03-16 07:00:00 catch_up succeeded",
        "2027-03-17 07:00:00 catch_up succeeded",
    ];
    assert_after_outage(daily(3), "2027-03-17T12:00:00Z", &three, "2027-03-18 07:00:00 active");
    assert_after_outage(daily(200), "2027-03-17T12:00:00Z", &three, "2027-03-18 07:00:00 active");
    assert_after_outage(
        daily(2),
        "2027-03-17T12:00:00Z",
        &["2027-03-15 07:00:00 schedule missed", three[1], three[2]],
        "2027-03-18 07:00:00 active",
    );
    // The newest occurrence is within the grace, and counts.
    for overlap in [Overlap::BufferAll, Overlap::Allow] {
        assert_after_outage(
            daily(2).overlap(overlap),
            "2027-03-17T07:00:30Z",
            &["2027-03-15 07:00:00 schedule missed", three[1], "2027-03-17 07:00:00 schedule succeeded"],
            "2027-03-18 07:00:00 active",
        );
    }
    assert_after_outage(
        daily(1),
        "2027-03-17T07:00:30Z",
        &["2027-03-15 07:00:00 schedule missed x2 to 2027-03-16 07:00:00", "2027-03-17 07:00:00 schedule succeeded"],
        "2027-03-18 07:00:00 active",
    );
}

/// Down for three days: the newest occurrence is within the grace, counts towards the limit and runs; the reason of the
/// others names the limit.
#[test]
fn run_all_keeps_the_newest_and_names_the_limit() {
    let hourly = || NewTask::cron("t", "0 * * * *").misfire(Misfire::RunAll, minutes(1)).catch_up_limit(10);
    for overlap in [Overlap::BufferAll, Overlap::Allow] {
        let db = TestDb::new();
        after_an_outage(&db, hourly().overlap(overlap), "2027-03-17T12:00:30Z");
        let rows = db.history("t");
        assert_eq!(rows.len(), 11, "{overlap}: {rows:#?}");
        assert_eq!(rows[0], "2027-03-14 13:00:00 schedule missed x62 to 2027-03-17 02:00:00", "{overlap}");
        assert_eq!(rows[1], "2027-03-17 03:00:00 catch_up succeeded", "{overlap}");
        assert_eq!(rows[10], "2027-03-17 12:00:00 schedule succeeded", "{overlap}");
        let reason = reason(&db, RunStatus::Missed);
        assert!(reason.contains("catch_up_limit 10"), "{overlap}: {reason}");
    }
    // Under run_once no limit is involved.
    let db = TestDb::new();
    after_an_outage(&db, hourly().misfire(Misfire::RunOnce, minutes(1)), "2027-03-17T12:00:30Z");
    let reason = reason(&db, RunStatus::Missed);
    assert_eq!(reason, "resolved later than the grace of the task (misfire policy)");
}

/// Runs that waited before the outage count towards the limit under `buffer_all`; the newest occurrences get the rest of it.
#[test]
fn run_all_counts_runs_that_waited_before_the_outage() {
    let hourly = |overlap| {
        let task = NewTask::cron("t", "0 * * * *").handler("elsewhere").overlap(overlap);
        task.misfire(Misfire::RunAll, minutes(1)).catch_up_limit(3)
    };
    let waited = "2027-03-14 13:00:00 schedule queued";
    let newest = ["2027-03-17 11:00:00 catch_up queued", "2027-03-17 12:00:00 schedule queued"];
    let all = [
        (
            Overlap::BufferAll,
            vec![waited, "2027-03-14 14:00:00 schedule missed x69 to 2027-03-17 10:00:00", newest[0], newest[1]],
        ),
        (
            Overlap::Allow,
            vec![
                waited,
                "2027-03-14 14:00:00 schedule missed x68 to 2027-03-17 09:00:00",
                "2027-03-17 10:00:00 catch_up queued",
                newest[0],
                newest[1],
            ],
        ),
    ];
    for (overlap, expected) in all {
        let db = TestDb::new();
        let mut stepper = db.stepper(DOWN);
        stepper.client().add(hourly(overlap)).expect("a task");
        advance_and_step(&mut stepper, minutes(60));
        db.assert_history("t", &[waited]);
        stepper.crash();
        let mut stepper = db.stepper("2027-03-17T12:00:30Z");
        stepper.step().expect("a step");
        db.assert_history("t", &expected);
        // The reason names the full buffer.
        advance_and_step(&mut stepper, minutes(60));
        if overlap == Overlap::BufferAll {
            let reason = reason(&db, RunStatus::Skipped);
            assert!(reason.contains("3 runs") && reason.contains("catch_up_limit"), "{reason}");
        }
        db.assert_sound();
    }
}

#[test]
fn run_all_is_bounded_and_needs_an_overlap_policy_that_lets_runs_wait() {
    let db = TestDb::new();
    let all = || NewTask::cron("t", "* * * * * *").handler("work").misfire(Misfire::RunAll, seconds(0));
    let stepper = db.stepper(DOWN);
    for overlap in [Overlap::Skip, Overlap::BufferOne, Overlap::CancelRunning] {
        let error = stepper.client().add(all().overlap(overlap)).expect_err("run_all cannot wait");
        assert!(matches!(error, Error::InvalidTask { field: "overlap", .. }), "{error}");
    }
    drop(stepper);
    let stepper = after_an_outage(&db, all().overlap(Overlap::Allow).catch_up_limit(200), "2037-03-14T12:00:00Z");
    let rows = db.history("t");
    // The occurrence of this very second is on time.
    assert_eq!(rows.len(), 1 + 200);
    assert_eq!(rows[0], "2027-03-14 12:00:01 schedule missed x10000 to 2037-03-14 11:56:40 at least");
    assert_eq!(rows[1], "2037-03-14 11:56:41 catch_up succeeded");
    assert_eq!(rows[199], "2037-03-14 11:59:59 catch_up succeeded");
    assert_eq!(rows[200], "2037-03-14 12:00:00 schedule succeeded");
    drop(stepper);
}
