//! Occurrences during an outage: every misfire policy, after outages of an hour, three days and ten years.

use duly::testing::Stepper;
use duly::{Misfire, NewTask, Overlap, Run, RunStatus, ScheduleKind};

use crate::fixtures::{TestDb, at, minutes, seconds, work_off};

/// The time at which tasks are added and the scheduler dies.
pub(crate) const DOWN: &str = "2027-03-14T12:00:00Z";

/// Adds a task, crashes the scheduler, and starts another at `up`, which finishes all due runs.
pub(crate) fn after_an_outage(db: &TestDb, task: NewTask, up: &str) -> Stepper {
    let mut stepper = db.stepper(DOWN);
    stepper.client().add(task.handler("work")).expect("a task");
    let before = db.add_bystander(&stepper);
    assert!(stepper.step().expect("a step").is_empty(), "nothing is due yet");
    stepper.crash();
    let mut stepper = db.stepper(up);
    work_off(&mut stepper);
    db.assert_bystander(&before);
    db.assert_sound();
    // Another turn changes nothing.
    let rows = db.history("t");
    work_off(&mut stepper);
    assert_eq!(db.history("t"), rows);
    stepper
}

#[track_caller]
pub(crate) fn assert_after_outage(task: NewTask, up: &str, expected: &[&str], next: &str) {
    let db = TestDb::new();
    after_an_outage(&db, task, up);
    db.assert_history("t", expected);
    assert_eq!(db.next("t"), next);
}

fn every_minute() -> NewTask {
    NewTask::cron("t", "* * * * *")
}

#[test]
fn run_once_runs_the_newest_and_records_the_others_in_one_row() {
    let late = || every_minute().misfire(Misfire::RunOnce, seconds(10));
    assert_after_outage(
        late(),
        "2027-03-14T13:01:30Z",
        &["2027-03-14 12:01:00 schedule missed x60 to 2027-03-14 13:00:00", "2027-03-14 13:01:00 catch_up succeeded"],
        "2027-03-14 13:02:00 active",
    );
    assert_after_outage(
        late(),
        "2027-03-14T12:01:11Z",
        &["2027-03-14 12:01:00 catch_up succeeded"],
        "2027-03-14 12:02:00 active",
    );
    assert_after_outage(
        late(),
        "2027-03-14T12:02:11Z",
        &["2027-03-14 12:01:00 schedule missed", "2027-03-14 12:02:00 catch_up succeeded"],
        "2027-03-14 12:03:00 active",
    );
    assert_after_outage(
        NewTask::cron("t", "0 7 * * *"),
        "2037-03-14T12:00:00Z",
        &["2027-03-15 07:00:00 schedule missed x3652 to 2037-03-13 07:00:00", "2037-03-14 07:00:00 catch_up succeeded"],
        "2037-03-15 07:00:00 active",
    );
}

/// The default grace is a minute, and an occurrence exactly a minute late is within it. That occurrence is the run of the late
/// ones too, and the next occurrence overlaps it.
#[test]
fn run_once_after_each_outage() {
    let cases = [
        ("2027-03-14T13:01:00Z", "x59 to 2027-03-14 12:59:00", "2027-03-14 13:00:00", "2027-03-14 13:01:00"),
        ("2027-03-17T12:00:00Z", "x4318 to 2027-03-17 11:58:00", "2027-03-17 11:59:00", "2027-03-17 12:00:00"),
    ];
    for (up, missed, run, skipped) in cases {
        let missed = format!("2027-03-14 12:01:00 schedule missed {missed}");
        let rows = [missed, format!("{run} schedule succeeded"), format!("{skipped} schedule skipped")];
        let rows = rows.each_ref().map(String::as_str);
        let db = TestDb::new();
        after_an_outage(&db, every_minute(), up);
        db.assert_history("t", &rows);
        let db = TestDb::new();
        after_an_outage(&db, NewTask::interval("t", minutes(1)), up);
        db.assert_history("t", &rows);
    }
}

#[test]
fn missed_intervals_are_counted_exactly_and_cron_lines_up_to_ten_thousand() {
    let up = "2037-03-14T12:00:00Z";
    let rest = ["2037-03-14 11:59:00 schedule succeeded", "2037-03-14 12:00:00 schedule skipped"];
    let counted = |count: &str| format!("2027-03-14 12:01:00 schedule missed x{count}");
    let cron = counted("10000 to 2037-03-14 11:58:00 at least");
    assert_after_outage(every_minute(), up, &[&cron, rest[0], rest[1]], "2037-03-14 12:01:00 active");
    let grid = counted("5260318 to 2037-03-14 11:58:00");
    assert_after_outage(
        NewTask::interval("t", minutes(1)),
        up,
        &[&grid, rest[0], rest[1]],
        "2037-03-14 12:01:00 active",
    );

    let up = "2027-03-21T10:40:00Z";
    let exactly = counted("10000 to 2027-03-21 10:40:00");
    let task = || every_minute().misfire(Misfire::Skip, seconds(10));
    assert_after_outage(task(), "2027-03-21T10:40:11Z", &[&exactly], "2027-03-21 10:41:00 active");
    let all_but_one = counted("9999 to 2027-03-21 10:39:00");
    assert_after_outage(
        task(),
        up,
        &[&all_but_one, "2027-03-21 10:40:00 schedule succeeded"],
        "2027-03-21 10:41:00 active",
    );
    let more = counted("10000 to 2027-03-21 10:41:00 at least");
    assert_after_outage(task(), "2027-03-21T10:41:11Z", &[&more], "2027-03-21 10:42:00 active");
}

#[test]
fn every_second_after_each_outage() {
    let tail = |day: &str, from: &str, second: &str, to: &str| {
        [format!("{day} {from} schedule succeeded"), format!("{day} {second} schedule skipped x60 to {day} {to}")]
    };
    let cases = [
        ("2027-03-14T13:01:00Z", "3599 to 2027-03-14 12:59:59", ["2027-03-14", "13:00:00", "13:00:01", "13:01:00"]),
        ("2027-03-17T12:00:00Z", "259139 to 2027-03-17 11:58:59", ["2027-03-17", "11:59:00", "11:59:01", "12:00:00"]),
        (
            "2037-03-14T12:00:00Z",
            "315619139 to 2037-03-14 11:58:59",
            ["2037-03-14", "11:59:00", "11:59:01", "12:00:00"],
        ),
    ];
    for (up, missed, [day, from, second, to]) in cases {
        let [run, skipped] = tail(day, from, second, to);
        let counted = format!("2027-03-14 12:00:01 schedule missed x{missed}");
        let db = TestDb::new();
        after_an_outage(&db, NewTask::interval("t", seconds(1)), up);
        db.assert_history("t", &[&counted, &run, &skipped]);

        let (count, last) = missed.split_once(' ').expect("a count and a last");
        let count: u64 = count.parse().expect("a count");
        let at_least = if count > 10_000 { " at least" } else { "" };
        let counted = format!("2027-03-14 12:00:01 schedule missed x{} {last}{at_least}", count.min(10_000));
        let db = TestDb::new();
        after_an_outage(&db, NewTask::cron("t", "* * * * * *"), up);
        db.assert_history("t", &[&counted, &run, &skipped]);
    }
}

#[test]
fn skip_misses_late_occurrences_and_runs_those_within_the_grace() {
    let skip = |grace| move |task: NewTask| task.misfire(Misfire::Skip, seconds(grace));
    assert_after_outage(
        skip(60)(every_minute()),
        "2027-03-14T13:01:00Z",
        &[
            "2027-03-14 12:01:00 schedule missed x59 to 2027-03-14 12:59:00",
            "2027-03-14 13:00:00 schedule succeeded",
            "2027-03-14 13:01:00 schedule skipped",
        ],
        "2027-03-14 13:02:00 active",
    );
    assert_after_outage(
        skip(0)(NewTask::cron("t", "0 7 * * *")),
        "2027-03-17T12:00:00Z",
        &["2027-03-15 07:00:00 schedule missed x3 to 2027-03-17 07:00:00"],
        "2027-03-18 07:00:00 active",
    );
    let once = || NewTask::once("t", at("2027-03-14T12:30:00Z"));
    assert_after_outage(
        skip(60)(once()),
        "2027-03-14T12:31:00.001Z",
        &["2027-03-14 12:30:00 schedule missed"],
        "- completed",
    );
    assert_after_outage(
        skip(60)(once()),
        "2027-03-14T12:31:00Z",
        &["2027-03-14 12:30:00 schedule succeeded"],
        "- completed",
    );
    assert_after_outage(
        skip(0)(once()),
        "2027-03-14T12:30:00Z",
        &["2027-03-14 12:30:00 schedule succeeded"],
        "- completed",
    );
    assert_after_outage(once(), "2037-03-14T12:31:00Z", &["2027-03-14 12:30:00 catch_up succeeded"], "- completed");
    // A missed delay counts from the turn that records it.
    let delay = || NewTask::delay("t", minutes(10));
    assert_after_outage(
        skip(60)(delay()),
        "2027-03-14T13:01:00Z",
        &["2027-03-14 12:10:00 schedule missed"],
        "2027-03-14 13:11:00 active",
    );
    assert_after_outage(
        delay(),
        "2037-03-14T12:00:00Z",
        &["2027-03-14 12:10:00 catch_up succeeded"],
        "2037-03-14 12:10:00 active",
    );
}

/// However wide the grace, a turn resolves at most ten thousand occurrences, and the next turn continues.
#[test]
fn a_grace_with_more_occurrences_than_a_turn_resolves_takes_several_turns() {
    let wide = |task: NewTask| task.misfire(Misfire::Skip, minutes(24 * 60));
    assert_after_outage(
        wide(NewTask::interval("t", seconds(1))),
        "2027-03-14T20:00:00Z",
        // Each first run ends between two turns, so the first occurrence of the next turn overlaps no run.
        &[
            "2027-03-14 12:00:01 schedule succeeded",
            "2027-03-14 12:00:02 schedule skipped x9999 to 2027-03-14 14:46:40",
            "2027-03-14 14:46:41 schedule succeeded",
            "2027-03-14 14:46:42 schedule skipped x9999 to 2027-03-14 17:33:20",
            "2027-03-14 17:33:21 schedule succeeded",
            "2027-03-14 17:33:22 schedule skipped x8799 to 2027-03-14 20:00:00",
        ],
        "2027-03-14 20:00:01 active",
    );
    let db = TestDb::new();
    let task = wide(NewTask::interval("t", seconds(1))).overlap(Overlap::Allow);
    after_an_outage(&db, task, "2027-03-14T12:20:00Z");
    let runs = "SELECT count(*) || ' ' || sum(status = 'succeeded') FROM task_runs WHERE handler = 'work'";
    assert_eq!(db.ask(runs), "1200 1200");
}

#[test]
fn lateness_counts_from_active_since() {
    // An occurrence an hour before the task was added is due at once, and on time.
    let db = TestDb::new();
    let mut stepper = db.stepper(DOWN);
    let past = || NewTask::once("t", at("2027-03-14T11:00:00Z")).handler("work").misfire(Misfire::Skip, minutes(1));
    stepper.client().add(past()).expect("a task");
    assert_eq!(db.next("t"), "2027-03-14 11:00:00 active");
    stepper.clock().advance(minutes(1));
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 11:00:00 schedule succeeded"]);

    let db = TestDb::new();
    let mut stepper = db.stepper(DOWN);
    stepper.client().add(past()).expect("a task");
    stepper.clock().advance(minutes(1) + std::time::Duration::from_millis(1));
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 11:00:00 schedule missed"]);
}

/// Occurrences before `starts_at` and after `ends_at` are never due, however late the end is noticed.
#[test]
fn no_occurrence_is_due_before_starts_at_or_after_ends_at() {
    let (start, end) = (at("2027-03-14T12:10:00Z"), at("2027-03-14T12:20:00Z"));
    let kinds = [
        ("cron", every_minute()),
        ("interval", NewTask::interval("t", minutes(1))),
        ("interval of an older grid", NewTask::scheduled("t", ScheduleKind::Interval, "60000")),
    ];
    for (kind, task) in kinds {
        let task = |misfire| {
            let task = task.clone().starts_at(start).ends_at(end);
            task.overlap(Overlap::BufferAll).misfire(misfire, minutes(1)).catch_up_limit(2)
        };
        let missed = |last: &str, count: u32| format!("2027-03-14 12:10:00 schedule missed x{count} to {last}");
        for up in ["2027-03-14T12:21:30Z", "2027-03-14T13:01:00Z", "2037-03-14T12:00:00Z"] {
            let check = |misfire, expected: &[&str]| {
                let db = TestDb::new();
                after_an_outage(&db, task(misfire), up);
                let found = db.history("t");
                assert!(found == expected, "{kind} {misfire} {up}: {found:#?}");
                assert_eq!(db.next("t"), "- completed", "{kind} {misfire} {up}");
            };
            let run = "2027-03-14 12:20:00 catch_up succeeded";
            check(Misfire::RunOnce, &[&missed("2027-03-14 12:19:00", 10), run]);
            check(Misfire::Skip, &[&missed("2027-03-14 12:20:00", 11)]);
            let before = "2027-03-14 12:19:00 catch_up succeeded";
            check(Misfire::RunAll, &[&missed("2027-03-14 12:18:00", 9), before, run]);
        }
    }
    // An occurrence exactly at the end is not after it, and runs in time.
    assert_after_outage(
        NewTask::cron("t", "*/10 * * * *").ends_at(end).misfire(Misfire::Skip, minutes(1)),
        "2027-03-14T12:20:00Z",
        &["2027-03-14 12:10:00 schedule missed", "2027-03-14 12:20:00 schedule succeeded"],
        "- completed",
    );
}

/// Each policy, outage and interval: one turn records every occurrence, by arithmetic an exact number; for a cron line, which must
/// be is_cron, "at least" from ten thousand on.
#[test]
fn one_turn_records_every_occurrence() {
    let outages =
        [("2027-03-14T13:01:00Z", 3_660), ("2027-03-17T12:00:00Z", 259_200), ("2037-03-14T12:00:00Z", 315_619_200)];
    let policies = [
        (Misfire::RunOnce, Overlap::Skip),
        (Misfire::Skip, Overlap::Skip),
        (Misfire::RunAll, Overlap::BufferAll),
        (Misfire::RunAll, Overlap::Allow),
    ];
    for ((up, length), (misfire, overlap)) in outages.into_iter().flat_map(|up| policies.map(|policy| (up, policy))) {
        for (every, line) in [(60, "* * * * *"), (1, "* * * * * *")] {
            let due = length / every;
            let late = due - 60 / every - 1;
            for task in [NewTask::interval("t", seconds(every)), NewTask::cron("t", line)] {
                let is_cron = format!("{task:?}").contains("schedule_type: Cron");
                let db = TestDb::new();
                let mut stepper = db.stepper(DOWN);
                stepper
                    .client()
                    .add(task.handler("work").misfire(misfire, minutes(1)).overlap(overlap))
                    .expect("a task");
                stepper.step().expect("a step");
                stepper.crash();
                let mut stepper = db.stepper(up);
                let before = stepper.transactions();
                stepper.step().expect("a step");
                assert_eq!(stepper.transactions(), before + 1);
                let what = format!("{misfire} {overlap}, {up}, every {every} s, is_cron {is_cron}");
                let runs = db.runs();
                let (missed_runs, others): (Vec<&Run>, Vec<&Run>) =
                    runs.iter().partition(|run| run.status == RunStatus::Missed);
                let sum = |runs: &[&Run]| runs.iter().map(|run| run.occurrences).sum::<u64>();
                let missed = late - if misfire == Misfire::RunAll { late.min(100 - (due - late)) } else { 0 };
                let at_least = runs.iter().flat_map(|run| &run.error).any(|error| error.starts_with("at least "));
                assert_eq!(at_least, is_cron && missed > 10_000, "{what}");
                let counted = if at_least { 10_000 } else { missed };
                assert_eq!((sum(&missed_runs), sum(&others)), (counted, due - missed), "{what}");
                assert!(runs.len() <= 1 + 100 + 61, "{what}: {}", runs.len());
            }
        }
    }
}
