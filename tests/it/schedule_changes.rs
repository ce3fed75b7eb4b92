//! Effects of a pause, a resume, an edit and a clock step on occurrences: none runs twice, none is lost, and an equivalent
//! schedule changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Change, Misfire, NewTask, Outcome, Overlap, ScheduleKind};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, minutes, seconds, step, step_after, succeed, with_task,
    work_off,
};
use crate::sql::{insert, insert_due, names, stages, turn};

/// Returns the events of tasks: kind and detail.
fn events(db: &TestDb) -> Vec<String> {
    db.rows("SELECT kind, detail FROM scheduler_events WHERE task_id IS NOT NULL ORDER BY id")
}

#[test]
fn occurrences_during_a_pause_are_passed_over() {
    for task in [NewTask::cron("t", "* * * * *"), NewTask::interval("t", minutes(1))] {
        let (db, mut stepper) = with_task(task);
        let before = db.add_bystander(&stepper);
        stepper.clock().advance(seconds(90));
        // Due occurrences are resolved before the pause, without a turn; the run waits.
        stepper.client().pause("t").expect("a pause");
        db.assert_history("t", &["2027-03-14 12:01:00 schedule queued"]);
        assert_eq!(db.next("t"), "- paused");
        assert_eq!(db.ask("SELECT blocked FROM task_runs WHERE handler = 'work'"), "paused");
        stepper.client().pause("t").expect("paused already");
        for _ in 0..5 {
            step_after(&mut stepper, minutes(1), 0);
        }
        stepper.crash();
        let mut stepper = db.stepper("2027-03-16T12:00:30Z");
        step(&mut stepper, 0);
        stepper.client().resume("t").expect("a resumption");
        stepper.client().resume("t").expect("resumed already");
        let first = claim(&mut stepper);
        assert_eq!(first.scheduled_for, at("2027-03-14T12:01:00Z"), "the waiting run continues");
        succeed(&mut stepper, &first);
        stepper.clock().advance(seconds(30));
        work_off(&mut stepper);
        db.assert_history("t", &["2027-03-14 12:01:00 schedule succeeded", "2027-03-16 12:01:00 schedule succeeded"]);
        assert_eq!(
            events(&db),
            [
                "paused|user",
                "resumed|occurrences from 2027-03-14T12:01:30.000Z to 2027-03-16T12:00:30.000Z were passed over"
            ]
        );
        db.assert_bystander(&before);
        db.assert_sound();
    }
}

#[test]
fn a_one_time_task_that_became_due_in_a_pause_runs_on_resume() {
    for misfire in [Misfire::RunOnce, Misfire::Skip] {
        let (db, mut stepper) = with_task(NewTask::once("t", at("2027-03-14T12:30:00Z")).misfire(misfire, minutes(1)));
        stepper.client().pause("t").expect("a pause");
        stepper.clock().set_wall(at("2027-03-15T12:00:00Z"));
        step(&mut stepper, 0);
        stepper.client().resume("t").expect("a resumption");
        // Lateness counts from the resume, so it is on time.
        work_off(&mut stepper);
        db.assert_history("t", &["2027-03-14 12:30:00 schedule succeeded"]);
        assert_eq!(db.next("t"), "- completed");
        assert!(stepper.client().resume("t").is_err(), "a completed task has nothing to resume");
    }
}

#[test]
fn a_trigger_does_not_change_a_paused_or_completed_task() {
    let (db, mut stepper) = with_task(NewTask::cron("t", "0 7 * * *"));
    stepper.client().pause("t").expect("a pause");
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 12:00:00 manual succeeded"]);
    assert_eq!(db.next("t"), "- paused");
    let (db, mut stepper) = with_task(NewTask::once("t", at(NOON)));
    work_off(&mut stepper);
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 12:00:00 schedule succeeded", "2027-03-14 12:00:00 manual succeeded"]);
    assert_eq!(db.next("t"), "- completed");
}

/// Due occurrences belong to the old schedule; the new one counts from the edit.
#[test]
fn an_edit_resolves_due_occurrences_by_the_old_schedule() {
    let (db, stepper) = with_task(NewTask::cron("t", "* * * * *").misfire(Misfire::Skip, minutes(1)));
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T12:30:00Z");
    let hourly = || NewTask::cron("t", "45 * * * *").handler("work").misfire(Misfire::RunOnce, minutes(1));
    let answer = stepper.client().replace(hourly()).expect("an edit");
    assert_eq!((answer.change, answer.next_run), (Change::Replaced, Some(at("2027-03-14T12:45:00Z"))));
    let old = [
        "2027-03-14 12:01:00 schedule missed x28 to 2027-03-14 12:28:00",
        "2027-03-14 12:29:00 schedule queued",
        "2027-03-14 12:30:00 schedule skipped",
    ];
    db.assert_history("t", &old);
    assert_eq!(work_off(&mut stepper).len(), 1);
    // No past occurrence is due under the new one, at any later turn.
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T13:50:00Z");
    work_off(&mut stepper);
    let run = old[1].replace("queued", "succeeded");
    let new = ["2027-03-14 12:45:00 schedule missed", "2027-03-14 13:45:00 catch_up succeeded"];
    db.assert_history("t", &[old[0], &run, old[2], new[0], new[1]]);
    db.assert_sound();
}

/// A new task or a change that would never be due is refused; the old task stays unchanged.
#[test]
fn a_change_that_names_no_occurrence_is_refused() {
    let (db, mut stepper) = with_task(NewTask::cron("t", "0 * * * *"));
    let run = claim_after(&mut stepper, minutes(60));
    succeed(&mut stepper, &run);
    let rows = || db.rows("SELECT * FROM scheduled_tasks");
    let before = rows();
    for never in [
        NewTask::cron("t", "0 7 * * *").ends_at(at("2027-03-01T00:00:00Z")),
        NewTask::delay("t", minutes(60)).ends_at(at("2027-03-14T13:30:00Z")),
        // Time counts as passed up to the newest resolved occurrence.
        NewTask::once("t", at("2027-03-14T12:30:00Z")),
    ] {
        let refused = stepper.client().replace(never.handler("work")).expect_err("no occurrence is left").to_string();
        assert!(refused.ends_with("it names no occurrence from now on, within starts_at and ends_at"), "{refused}");
        assert_eq!(rows(), before);
    }
}

/// All occurrences that are due at a change are recorded, in separate rows or in one.
#[test]
fn a_change_records_every_due_occurrence() {
    let wide =
        |overlap| NewTask::interval("t", seconds(1)).misfire(Misfire::RunOnce, minutes(24 * 60)).overlap(overlap);
    let sum = "SELECT sum(occurrences) FROM task_runs WHERE handler = 'work'";
    type Change = fn(&Stepper);
    let changes: [(&str, Change); 2] = [
        ("pause", |stepper| stepper.client().pause("t").expect("a pause")),
        ("edit", |stepper| {
            stepper.client().replace(NewTask::cron("t", "0 7 * * *").handler("work")).expect("an edit");
        }),
    ];
    for (what, change) in changes {
        for overlap in [Overlap::Skip, Overlap::Allow, Overlap::BufferAll] {
            let (db, stepper) = with_task(wide(overlap));
            stepper.crash();
            let stepper = db.stepper("2027-03-14T20:00:00Z");
            change(&stepper);
            assert_eq!(db.ask(sum), "28800", "{what} {overlap}: every second of eight hours");
            let newest = "SELECT max(ifnull(last_scheduled_for, scheduled_for)) FROM task_runs WHERE handler = 'work'";
            assert_eq!(db.ask(newest), at("2027-03-14T20:00:00Z").as_millis().to_string(), "{what} {overlap}");
            db.assert_sound();
        }
    }
}

#[test]
fn an_equivalent_schedule_keeps_the_next_run() {
    let same = [
        (ScheduleKind::Interval, "15m", "900000"),
        (ScheduleKind::Interval, "90m", "1h 30m"),
        (ScheduleKind::Cron, "0 7 * * 1-5", "0 7 * * mon-fri"),
        (ScheduleKind::Cron, "@daily", "0 0 * * *"),
        (ScheduleKind::Delay, "1h", "60m"),
        (ScheduleKind::Once, "2027-03-15T07:00:00Z", "2027-03-15T08:00:00+01:00"),
    ];
    for (kind, old, new) in same {
        let task = |text: &str| NewTask::scheduled("t", kind, text).handler("work");
        let (db, stepper) = TestDb::with_stepper();
        stepper.client().add(task(old)).expect("a task");
        let row = db.rows("SELECT * FROM scheduled_tasks");
        stepper.clock().advance(minutes(7));
        for answer in [stepper.client().add(task(new)), stepper.client().replace(task(new))] {
            assert_eq!(answer.expect("the same task").change, Change::Unchanged, "{old} {new}");
        }
        assert_eq!(db.rows("SELECT * FROM scheduled_tasks"), row, "{old} {new}");
        // Another change in the same edit is made, and the schedule does not move.
        let schedule = "SELECT schedule_value, next_run, active_since, planned, status FROM scheduled_tasks";
        let before_step = db.rows(schedule);
        let answer = stepper.client().replace(task(new).priority(0)).expect("an edit");
        assert_eq!(answer.change, Change::Replaced);
        assert_eq!(db.rows(schedule), before_step, "{old} {new}");
        assert_eq!(db.ask("SELECT priority FROM scheduled_tasks"), "0");
    }
    // A different schedule moves it; the grid of an interval keeps its anchor.
    let (db, stepper) = with_task(NewTask::interval("t", minutes(15)));
    stepper.clock().advance(minutes(7));
    stepper.client().replace(NewTask::interval("t", minutes(20)).handler("work")).expect("an edit");
    assert_eq!(db.next("t"), "2027-03-14 12:20:00 active");
}

/// No occurrence up to the newest resolved one is resolved again after any clock step.
#[test]
fn a_step_back_of_the_clock_runs_nothing_twice() {
    for (name, task) in [
        ("cron", NewTask::cron("t", "* * * * *")),
        ("interval", NewTask::interval("t", minutes(1))),
        ("once", NewTask::once("t", at("2027-03-14T12:02:00Z"))),
    ] {
        let (db, mut stepper) = with_task(task.clone());
        for _ in 0..5 {
            stepper.clock().advance(minutes(1));
            work_off(&mut stepper);
        }
        let rows = db.history("t");
        stepper.clock().set_wall(at("2027-03-14T11:00:00Z"));
        for _ in 0..65 {
            work_off(&mut stepper);
            stepper.clock().advance(minutes(1));
        }
        assert_eq!(db.history("t"), rows, "{name}");
        // An edit of the same schedule, a pause and a restart change nothing about that.
        stepper.clock().set_wall(at("2027-03-14T11:30:00Z"));
        if name != "once" {
            stepper.client().pause("t").expect("a pause");
            stepper.client().resume("t").expect("a resumption");
        }
        let answer = stepper.client().replace(task.handler("work").priority(0)).expect("an edit");
        assert_eq!(answer.change, Change::Replaced);
        stepper.crash();
        let mut stepper = db.stepper("2027-03-14T12:03:00Z");
        work_off(&mut stepper);
        assert_eq!(db.history("t"), rows, "{name}");
        // When time has caught up, it continues.
        stepper.clock().set_wall(at("2027-03-14T12:06:00Z"));
        work_off(&mut stepper);
        let more = if name == "once" { 0 } else { 1 };
        assert_eq!(db.history("t").len(), rows.len() + more, "{name}");
        db.assert_sound();
    }
}

/// Jitter is a fixed part of the given maximum, by the task's name; it moves the start and nothing else.
#[test]
fn jitter_moves_the_start_and_nothing_else() {
    let jittered = |name: &str| NewTask::cron(name, "0 * * * *").handler("work").jitter(minutes(10));
    let part = "SELECT DISTINCT run_at - scheduled_for FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id";
    let mut parts = Vec::new();
    for round in 0..2 {
        let (db, mut stepper) = with_task(jittered("t"));
        assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
        step_after(&mut stepper, minutes(60), 0);
        db.assert_history("t", &["2027-03-14 13:00:00 schedule queued"]);
        assert_eq!(db.next("t"), "2027-03-14 14:00:00 active");
        let millis: u64 = db.number(part);
        assert!((1..600_000).contains(&millis), "{millis}");
        parts.push(millis);
        // Not a moment before, and then at once.
        step_after(&mut stepper, Duration::from_millis(millis - 1), 0);
        let run = claim_after(&mut stepper, Duration::from_millis(1));
        assert_eq!(run.scheduled_for, at("2027-03-14T13:00:00Z"), "round {round}");
        succeed(&mut stepper, &run);
        for _ in 0..4 {
            stepper.clock().advance(minutes(60));
            work_off(&mut stepper);
        }
        assert_eq!(db.rows(part), [millis.to_string()], "the same every time");
    }
    assert_eq!(parts[0], parts[1]);

    // Spread over names; none waits for the whole maximum, and a manual run does not wait.
    let (db, mut stepper) = TestDb::with_stepper();
    for number in 0..200 {
        stepper.client().add(jittered(&format!("t:{number}"))).expect("a task");
    }
    stepper.clock().advance(minutes(60));
    while stepper.sleeps() == Duration::ZERO {
        step(&mut stepper, 0);
    }
    let spread = "SELECT count(DISTINCT run_at) > 150 AND min(run_at - scheduled_for) < 60000
                     AND max(run_at - scheduled_for) BETWEEN 540000 AND 599999 FROM task_runs";
    assert_eq!(db.ask(spread), "1");
    stepper.client().trigger("t:7").expect("a run");
    assert_eq!(claim(&mut stepper).task, "t:7");
}

/// `next_run` is set to now by SQL, or cleared: what was due is recorded, and the schedule continues.
#[test]
fn next_run_set_by_sql_loses_no_occurrence() {
    for (sql, db, mut stepper) in stages() {
        let tasks = [("now", "interval", "7m"), ("anew", "interval", "7m"), ("ahead", "cron", "@yearly")];
        let rows: String = tasks.iter().map(|(name, kind, value)| insert(name, kind, value)).collect();
        sql(&(rows + &insert("delay", "delay", "7m") + &insert_due("once") + &insert("twin", "interval", "7m")));
        let past = "UPDATE scheduled_tasks SET planned = 1, next_run = created_at - 600000";
        sql(&format!("{past} WHERE name IN ('now', 'anew', 'delay', 'once', 'twin')"));
        sql("UPDATE scheduled_tasks SET next_run = created_at WHERE name IN ('now', 'once')");
        sql("UPDATE scheduled_tasks SET next_run = NULL WHERE name IN ('anew', 'ahead', 'delay')");
        let first = turn(&mut stepper);
        first.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        let second = advance_and_step(&mut stepper, minutes(7));
        let sorted = |claims: &[_]| names(claims).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(sorted(&first), ["now", "once", "twin"].map(str::to_owned).into());
        assert_eq!(sorted(&second), ["anew", "delay", "now", "twin"].map(str::to_owned).into());
        let missed_text = "at least 1: the task was changed by SQL before what was due had been resolved";
        let missed = "SELECT t.name, r.error FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                       WHERE r.status = 'missed' AND r.scheduled_for = t.created_at - 600000 ORDER BY t.id";
        assert_eq!(db.rows(missed), ["now", "anew", "delay"].map(|name| format!("{name}|{missed_text}")));
        assert_eq!(db.count(duly::RunStatus::Missed), 3);
        let planned = "SELECT planned, next_run > created_at FROM scheduled_tasks WHERE name = 'ahead'";
        assert_eq!(db.rows(planned), ["1|1"]);
        db.assert_sound();
    }
}

#[test]
fn two_changes_in_one_millisecond_use_one_clock() {
    let task = || NewTask::cron("t", "0 13 * * *").handler("work");
    let (_db, stepper) = with_task(task());
    for priority in [0, 3] {
        stepper.client().replace(task().priority(priority)).expect("a change");
        let changed = stepper.client().task("t").unwrap().expect("a task").updated_at;
        assert!((at(NOON)..=at(NOON).plus(Duration::from_millis(1))).contains(&changed), "{changed}");
    }
}
