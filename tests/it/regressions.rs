//! Faults found by the simulation, each as a small test.

use duly::testing::Stepper;
use duly::{FailureKind, Misfire, NewTask, Outcome, Overlap, Retry, RetryPolicy};

use crate::fixtures::{NOON, TestDb, at, claim, claim_after, minutes, once, seconds, step, step_after, succeed};

fn time_of_day(time: &str) -> String {
    format!("2027-03-14T{time}:00Z")
}

/// Sets the clock to a time of the day, and takes a step.
fn step_at(stepper: &mut Stepper, time: &str, claims: usize) {
    stepper.clock().set_wall(at(&time_of_day(time)));
    step(stepper, claims);
}

#[test]
fn an_interrupted_run_continues_after_its_expiry() {
    let (_db, mut owner) = TestDb::with_stepper();
    owner.client().add(once("post").expires(seconds(20))).unwrap();
    let first = claim(&mut owner);
    let error = "cut short".to_owned();
    owner.finish(&first, Outcome::Failed { how: FailureKind::Failed, error, retry: Retry::Interrupted });
    owner.settle().unwrap();
    assert_eq!(claim_after(&mut owner, minutes(1)).attempt, 2, "it had begun in time");
}

#[test]
fn an_occurrence_with_a_row_does_not_hide_later_missed_ones() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("12:59"));
    let hourly = NewTask::cron("hourly", "0 * * * *").handler("work").misfire(Misfire::Skip, seconds(60));
    owner.client().add(hourly).unwrap();
    let first = claim_after(&mut owner, minutes(1));
    succeed(&mut owner, &first);
    step_at(&mut owner, "16:30", 0);
    // The clock was wrong, and is corrected; then no scheduler runs for hours.
    step_at(&mut owner, "12:30", 0);
    step_at(&mut owner, "19:30", 0);
    let day = "2027-03-14";
    db.assert_history(
        "hourly",
        &[
            &format!("{day} 13:00:00 schedule succeeded"),
            &format!("{day} 14:00:00 schedule missed x3 to {day} 16:00:00"),
            &format!("{day} 15:00:00 schedule missed x5 to {day} 19:00:00"),
        ],
    );
}

#[test]
fn a_run_behind_a_key_starts_when_due_before_a_later_one() {
    let (_db, mut owner) = TestDb::with_stepper();
    let retry = RetryPolicy { backoff: minutes(10), ..RetryPolicy::default() };
    let keyed = |name: &str, due| NewTask::once(name, due).handler("work").concurrency_key("chat").retry(retry);
    owner.client().add(keyed("first", at(NOON))).unwrap();
    owner.client().add(keyed("second", at(NOON).plus(seconds(10)))).unwrap();
    let first = claim(&mut owner);
    owner.finish(&first, Outcome::failed("offline"));
    step(&mut owner, 0);
    assert_eq!(claim_after(&mut owner, seconds(10)).task, "second");
}

#[test]
fn an_observer_that_slept_does_not_judge_by_an_old_lease() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    owner.client().add(once("long")).unwrap();
    claim(&mut owner);
    step(&mut observer, 0);
    // The observer does not step; the owner extends its lease. Then its lock file is removed.
    for _ in 0..15 {
        step_after(&mut owner, seconds(20), 0);
    }
    db.hide(&owner);
    step(&mut observer, 0);
    assert_eq!(db.ask("SELECT status || attempt FROM task_runs"), "running1", "its lease has changed");
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts"), "0");
    // An owner without a lock file is dead once its lease has not changed for a whole lease.
    step_after(&mut observer, seconds(61), 0);
    assert_eq!(db.ask("SELECT status || attempt FROM task_runs"), "failed1");
}

#[test]
fn a_run_opened_by_a_wrong_clock_waits_for_older_occurrences() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("19:30"));
    owner.client().add(NewTask::cron("hourly", "0 * * * *").handler("absent").overlap(Overlap::BufferAll)).unwrap();
    step_at(&mut owner, "20:00", 0);
    step_at(&mut owner, "12:30", 0);
    step_at(&mut owner, "13:00", 0);
    // The next turn derives the runs again.
    step_at(&mut owner, "13:00", 0);
    let waiting = "SELECT strftime('%H:%M', scheduled_for / 1000, 'unixepoch'), blocked FROM task_runs ORDER BY 1";
    assert_eq!(db.rows(waiting), ["13:00|-", "20:00|order"]);
    db.assert_sound();
}

#[test]
fn a_cancel_by_sql_survives_a_pause_or_edit_of_the_task() {
    let (db, mut owner) = TestDb::with_stepper();
    let hourly = |handler: &str| NewTask::cron("hourly", "0 * * * *").handler("absent").payload(handler);
    for change in ["pause", "resume", "replace"] {
        let _ = owner.client().remove("hourly");
        owner.client().add(hourly("before")).unwrap();
        if change == "resume" {
            owner.client().pause("hourly").unwrap();
        }
        let run = owner.client().trigger("hourly").unwrap();
        step(&mut owner, 0);
        db.execute("UPDATE task_runs SET cancel_requested = 1");
        match change {
            "pause" => owner.client().pause("hourly").unwrap(),
            "resume" => owner.client().resume("hourly").unwrap(),
            _ => _ = owner.client().replace(NewTask::cron("hourly", "30 * * * *").handler("absent")).unwrap(),
        }
        step(&mut owner, 0);
        assert_eq!(db.run(run).status, duly::RunStatus::Cancelled, "{change}");
    }
}

#[test]
fn a_delay_continues_if_its_occurrence_has_a_row() {
    let (db, mut owner) = TestDb::with_stepper();
    owner.client().add(NewTask::delay("hourly", minutes(60)).handler("work")).unwrap();
    for _ in 0..4 {
        let one = claim_after(&mut owner, minutes(60));
        succeed(&mut owner, &one);
    }
    // The clock was wrong by more than four hours. Resolved occurrences stay resolved, and the task continues.
    step_at(&mut owner, "11:00", 0);
    let one = claim_after(&mut owner, minutes(60));
    succeed(&mut owner, &one);
    step_after(&mut owner, minutes(60), 0);
    assert_eq!(db.next("hourly"), "2027-03-14 14:00:00 active");
    db.assert_sound();
}

#[test]
fn a_row_of_skips_does_not_shrink_when_the_clock_is_corrected() {
    let db = TestDb::new();
    let mut owner = db.stepper("2027-03-14T19:30:00Z");
    owner.client().add(NewTask::cron("hourly", "0 * * * *").handler("work")).unwrap();
    step_at(&mut owner, "20:00", 1);
    for time in ["21:00", "22:00", "23:00"] {
        step_at(&mut owner, time, 0);
    }
    for time in ["2027-03-15T00:00:00Z", "2027-03-15T01:00:00Z"] {
        owner.clock().set_wall(at(time));
        step(&mut owner, 0);
    }
    let skips =
        "SELECT scheduled_for, last_scheduled_for, occurrences FROM task_runs WHERE status = 'skipped' ORDER BY id";
    let before = db.rows(skips);
    step_at(&mut owner, "21:30", 0);
    step_at(&mut owner, "22:00", 0);
    assert_eq!(db.rows(skips)[0], before[0]);
}

#[test]
fn next_run_set_to_now_does_not_start_a_delay_before_starts_at() {
    let (db, mut owner) = TestDb::with_stepper();
    let delay = NewTask::delay("late", minutes(10)).handler("work").misfire(Misfire::Skip, seconds(0));
    owner.client().add(delay.starts_at(at(&time_of_day("15:00")))).unwrap();
    let now = at(NOON).as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {now}"));
    step_at(&mut owner, "12:30", 0);
    db.assert_history("late", &["2027-03-14 12:00:00 schedule missed"]);
    assert_eq!(db.next("late"), "2027-03-14 15:00:00 active");
}

/// Sets `next_run` of a task by SQL.
fn set_next_run(db: &TestDb, name: &str, time: &str) {
    let next = at(&time_of_day(time)).as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {next} WHERE name = '{name}'"));
}

#[test]
fn occurrences_in_a_pause_stay_passed_over_when_next_run_is_set_back() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("11:59"));
    owner.client().add(NewTask::cron("hourly", "0 * * * *").handler("work")).unwrap();
    step_at(&mut owner, "12:00", 1);
    owner.client().pause("hourly").unwrap();
    owner.clock().set_wall(at(&time_of_day("13:30")));
    owner.client().resume("hourly").unwrap();
    // The clock is two hours behind, and a user sets next_run to now: that occurrence is resolved already.
    set_next_run(&db, "hourly", "11:30");
    step_at(&mut owner, "11:30", 0);
    assert_eq!(db.next("hourly"), "2027-03-14 14:00:00 active");
}

#[test]
fn a_one_time_task_is_not_completed_by_setting_next_run_back() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("11:59"));
    owner.client().add(NewTask::cron("task", "0 * * * *").handler("work")).unwrap();
    step_at(&mut owner, "12:00", 1);
    owner.client().replace(NewTask::once("task", at(&time_of_day("15:00"))).handler("work")).unwrap();
    set_next_run(&db, "task", "12:00");
    owner.step().unwrap();
    assert_eq!(db.next("task"), "2027-03-14 15:00:00 active");
    owner.clock().set_wall(at(&time_of_day("15:00")));
    set_next_run(&db, "task", "12:00");
    step(&mut owner, 0);
    let until = db.ask("SELECT resolved_until FROM scheduled_tasks");
    assert_eq!(until, at(&time_of_day("15:00")).as_millis().to_string(), "what was resolved is known without its row");
}

#[test]
fn a_run_released_after_a_clock_correction_starts_at_once() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("20:00"));
    owner.client().add(NewTask::once("post", at(&time_of_day("20:00"))).handler("work")).unwrap();
    let one = claim(&mut owner);
    step_at(&mut owner, "09:00", 0);
    owner.finish(&one, Outcome::Released);
    assert_eq!(claim(&mut owner).attempt, 2);
}

#[test]
fn due_occurrences_are_resolved_before_a_pause_despite_a_cancel_by_sql() {
    let db = TestDb::new();
    let mut owner = db.stepper(&time_of_day("11:59"));
    let task = NewTask::cron("hourly", "0 * * * *").handler("absent").overlap(Overlap::BufferAll);
    owner.client().add(task).unwrap();
    step_at(&mut owner, "12:00", 0);
    owner.clock().set_wall(at(&time_of_day("13:00")));
    db.execute("UPDATE task_runs SET cancel_requested = 1");
    owner.client().pause("hourly").unwrap();
    step(&mut owner, 0);
    let rows = ["2027-03-14 12:00:00 schedule cancelled", "2027-03-14 13:00:00 schedule queued"];
    db.assert_history("hourly", &rows);
}

#[test]
fn no_occurrence_is_resolved_between_a_set_next_run_and_starts_at() {
    let (db, mut owner) = TestDb::with_stepper();
    let task = NewTask::cron("late", "*/10 * * * *").handler("work").misfire(Misfire::RunOnce, seconds(0));
    owner.client().add(task.starts_at(at(&time_of_day("15:00")))).unwrap();
    set_next_run(&db, "late", "12:05");
    step_at(&mut owner, "12:35", 1);
    db.assert_history("late", &["2027-03-14 12:05:00 catch_up running"]);
    assert_eq!(db.next("late"), "2027-03-14 15:00:00 active");
}

#[test]
fn a_run_started_beside_a_resolved_occurrence_is_recorded_as_started() {
    let db = TestDb::new();
    let mut owner = db.stepper("2030-01-01T00:00:00Z");
    let task = |name: &str| NewTask::once(name, at(&time_of_day("12:00"))).handler("work");
    owner.client().add(task("second")).unwrap();
    let one = claim(&mut owner);
    owner.finish(&one, Outcome::succeeded());
    step(&mut owner, 0);
    // The clock was wrong, and a user runs the task again: its occurrence has a row.
    step_at(&mut owner, "11:00", 0);
    owner.client().replace(task("second").starts_at(at(&time_of_day("11:30")))).unwrap();
    owner.client().add_all(["first", "third"].map(task)).unwrap();
    db.execute("UPDATE scheduled_tasks SET priority = 0 WHERE name = 'first'");
    owner.clock().set_wall(at(&time_of_day("12:00")));
    let started: Vec<i64> = owner.step().unwrap().iter().map(|claim| claim.run_id).collect();
    let running = db.rows("SELECT id FROM task_runs WHERE status = 'running' ORDER BY id");
    assert_eq!(started.iter().map(ToString::to_string).collect::<Vec<_>>(), running);
    assert_eq!(running.len(), 2);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'passed_over'"), "1");
    db.assert_sound();
}

#[test]
fn recording_expired_occurrences_does_not_delay_a_retry() {
    let db = TestDb::new();
    let mut owner = db.builder(NOON).accept("work").poll(minutes(60)).start().unwrap();
    let late = NewTask::cron("late", "0 * * * *").handler("work").expires(minutes(10));
    let retry = RetryPolicy { max_attempts: 2, backoff: seconds(2), max_backoff: seconds(2) };
    owner.client().add(late).unwrap();
    owner.client().add(once("soon").retry(retry)).unwrap();
    let soon = claim(&mut owner);
    owner.clock().set_wall(at(NOON).plus(minutes(100)));
    owner.finish(&soon, Outcome::failed("not yet"));
    step(&mut owner, 0);
    assert!(owner.sleeps() <= seconds(2), "{:?}", owner.sleeps());
    assert_eq!(db.ask("SELECT count(*) || status || count(finished_at) FROM task_runs WHERE task_id = 1"), "1missed1");
    db.assert_sound();
}

#[test]
fn retention_counts_from_the_turn_that_completes_a_task() {
    let (db, mut owner) = TestDb::with_stepper();
    owner.client().add(once("over")).unwrap();
    let run = claim(&mut owner);
    succeed(&mut owner, &run);
    // It is resumed, and no scheduler reads the file for a month; it has no occurrence left.
    db.execute("UPDATE scheduled_tasks SET status = 'active'");
    let start = at(NOON).as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET updated_at = {start}, active_since = {start}"));
    let mut pass = |time| {
        step_after(&mut owner, time, 0);
    };
    let completed_tasks = || db.ask("SELECT count(*) || ifnull(max(status), '') FROM scheduled_tasks");
    pass(minutes(31 * 24 * 60));
    pass(minutes(1));
    assert_eq!(completed_tasks(), "1completed");
    pass(minutes(30 * 24 * 60));
    assert_eq!(completed_tasks(), "0", "thirty days after that");
    db.assert_sound();
}
