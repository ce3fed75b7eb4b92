//! Times and dates at which occurrences are skipped: `only_between`, `only_on`, `except_on`.

use duly::{Error, Misfire, NewTask, Overlap};

use crate::fixtures::{TestDb, at, minutes, seconds, work_off};
use crate::misfire::{after_an_outage, assert_after_outage};

fn hours(hours: u64) -> std::time::Duration {
    minutes(60 * hours)
}

fn hourly() -> NewTask {
    NewTask::cron("t", "0 * * * *").only_between("09:00-17:30")
}

/// Lives through a time, by steps of `every`, and finishes all runs.
fn live(db: &TestDb, task: NewTask, from: &str, steps: u32, every: std::time::Duration) {
    let mut stepper = db.stepper(from);
    stepper.client().add(task.handler("work")).expect("a task");
    let before = db.add_bystander(&stepper);
    for _ in 0..steps {
        stepper.clock().advance(every);
        work_off(&mut stepper);
    }
    db.assert_bystander(&before);
    db.assert_sound();
}

#[test]
fn occurrences_outside_are_skipped_in_one_row_for_each_period() {
    let db = TestDb::new();
    live(&db, hourly(), "2027-03-14T15:00:00Z", 20, hours(1));
    db.assert_history(
        "t",
        &[
            "2027-03-14 16:00:00 schedule succeeded",
            "2027-03-14 17:00:00 schedule succeeded",
            "2027-03-14 18:00:00 schedule skipped x15 to 2027-03-15 08:00:00",
            "2027-03-15 09:00:00 schedule succeeded",
            "2027-03-15 10:00:00 schedule succeeded",
            "2027-03-15 11:00:00 schedule succeeded",
        ],
    );
    let reason = "SELECT DISTINCT error FROM task_runs WHERE status = 'skipped'";
    assert_eq!(db.rows(reason), ["outside of 09:00-17:30 (only_between)"]);
    // The task asks for these skips: no event reports them.
    assert_eq!(db.number::<u32>("SELECT count(*) FROM scheduler_events WHERE kind = 'skipped'"), 0);
}

#[test]
fn each_rule_has_a_row_of_its_own_with_its_reason() {
    let db = TestDb::new();
    let task = NewTask::interval("t", hours(6)).starts_at(at("2027-12-24T00:00:00Z")).time_zone("Europe/Rome");
    let task = task.only_between("06:00-20:00").except_on("holidays: 2027-12-25..2027-12-26; 2027-12-27");
    live(&db, task, "2027-12-23T18:00:00Z", 17, hours(6));
    let runs = "SELECT strftime('%d %H', scheduled_for / 1000, 'unixepoch') || ' ' || status || ' ' || occurrences || ' '
                       || ifnull(error, '') FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = 't')
                 ORDER BY scheduled_for";
    assert_eq!(
        db.rows(runs),
        [
            // 01:00, 07:00, 13:00 and 19:00 in Rome.
            "24 00 skipped 1 outside of 06:00-20:00 (only_between)",
            "24 06 succeeded 1 ",
            "24 12 succeeded 1 ",
            "24 18 succeeded 1 ",
            "25 00 skipped 8 on holidays: 2027-12-25..2027-12-26 (except_on)",
            "27 00 skipped 4 on 2027-12-27 (except_on)",
            "28 00 skipped 1 outside of 06:00-20:00 (only_between)",
        ]
    );
}

/// The reason of each skip is its own, even beside the other.
#[test]
fn a_skip_by_the_overlap_policy_has_a_row_of_its_own() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-14T16:50:00Z");
    let task = NewTask::interval("t", minutes(10)).starts_at(at("2027-03-14T17:00:00Z")).only_between("09:00-17:30");
    stepper.client().add(task.handler("work")).expect("a task");
    // The run of 17:00 goes on until 17:55.
    for _ in 0..6 {
        stepper.clock().advance(minutes(10));
        stepper.step().expect("a step");
    }
    let rows = "SELECT strftime('%H:%M', scheduled_for / 1000, 'unixepoch') || ' ' || status || ' ' || occurrences || ' ' || ifnull(error, '')
                  FROM task_runs ORDER BY scheduled_for";
    assert_eq!(
        db.rows(rows),
        [
            "17:00 running 1 ",
            "17:10 skipped 2 an earlier run of the task was unfinished (overlap policy)",
            "17:30 skipped 3 outside of 09:00-17:30 (only_between)",
        ]
    );
    db.assert_sound();
}

#[test]
fn after_an_outage_the_newest_that_is_not_excluded_catches_up() {
    // The scheduler is down from 12:00, and back in the morning.
    let missed = "2027-03-14 13:00:00 schedule missed x5 to 2027-03-14 17:00:00";
    let night = "2027-03-14 18:00:00 schedule skipped x15 to 2027-03-15 08:00:00";
    assert_after_outage(
        hourly(),
        "2027-03-15T10:20:00Z",
        &[missed, night, "2027-03-15 09:00:00 schedule missed", "2027-03-15 10:00:00 catch_up succeeded"],
        "2027-03-15 11:00:00 active",
    );
    // One in time takes the place of all that are late.
    assert_after_outage(
        hourly().misfire(Misfire::RunOnce, minutes(15)),
        "2027-03-15T09:00:00Z",
        &[missed, night, "2027-03-15 09:00:00 schedule succeeded"],
        "2027-03-15 10:00:00 active",
    );
    // At night nothing catches up.
    assert_after_outage(
        hourly(),
        "2027-03-14T20:20:00Z",
        &[missed, "2027-03-14 18:00:00 schedule skipped x3 to 2027-03-14 20:00:00"],
        "2027-03-14 21:00:00 active",
    );
    let all = hourly().overlap(Overlap::Allow).misfire(Misfire::RunAll, seconds(10)).catch_up_limit(3);
    assert_after_outage(
        all,
        "2027-03-15T10:20:00Z",
        &[
            "2027-03-14 13:00:00 schedule missed x4 to 2027-03-14 16:00:00",
            "2027-03-14 17:00:00 catch_up succeeded",
            night,
            "2027-03-15 09:00:00 catch_up succeeded",
            "2027-03-15 10:00:00 catch_up succeeded",
        ],
        "2027-03-15 11:00:00 active",
    );
}

#[test]
fn a_missed_occurrence_of_the_day_is_told_of_if_nothing_catches_up_at_night() {
    let db = TestDb::new();
    after_an_outage(&db, hourly().on_missed("tell"), "2027-03-14T20:20:00Z");
    let told = "SELECT kind || ' ' || detail FROM scheduler_events WHERE kind IN ('missed', 'caught_up', 'skipped')";
    let reason = "resolved later than the grace of the task (misfire policy): nothing catches up at a time that the task excludes \
                  (only_between, only_on, except_on)";
    let told = db.rows(told);
    assert!(told.len() == 1 && told[0].starts_with("missed 5 occurrences") && told[0].ends_with(reason), "{told:?}");
}

/// Each day has its row, and one run tells of all of them.
#[test]
fn what_was_missed_in_several_periods_is_one_report() {
    let db = TestDb::new();
    db.client().add(NewTask::manual("tell").handler("work")).expect("a task");
    let task = hourly().misfire(Misfire::Skip, seconds(60)).on_missed("tell");
    after_an_outage(&db, task, "2027-03-28T12:30:00Z");
    assert_eq!(db.number::<u32>("SELECT count(*) FROM task_runs WHERE status = 'missed'"), 15);
    let told =
        "SELECT payload ->> 'from', payload ->> 'to', payload ->> 'count' FROM task_runs WHERE origin = 'on_missed'";
    assert_eq!(db.rows(told), ["2027-03-14T13:00:00.000Z|2027-03-28T12:00:00.000Z|126"]);
    let missed = db.number::<u64>("SELECT sum(occurrences) FROM task_runs WHERE status = 'missed'");
    assert_eq!(missed, 126);
}

/// A gap of three years has more periods than one turn records.
#[test]
fn a_long_outage_is_recorded_period_by_period() {
    let db = TestDb::new();
    after_an_outage(&db, hourly(), "2030-03-14T12:00:30Z");
    let rows = "SELECT status, count(*), sum(occurrences) FROM task_runs WHERE task_id = 1 GROUP BY status";
    let days = 3 * 365 + 1;
    let expected = [
        format!("missed|{}|{}", days + 1, 9 * days - 1),
        format!("skipped|{days}|{}", 15 * days),
        "succeeded|1|1".to_owned(),
    ];
    assert_eq!(db.rows(rows), expected);
    let overlaps = "SELECT count(*) FROM task_runs a JOIN task_runs b
                     ON a.task_id = b.task_id AND a.scheduled_for < b.scheduled_for AND a.last_scheduled_for >= b.scheduled_for";
    assert_eq!(db.number::<u32>(overlaps), 0, "each occurrence is in one row");
}

/// Nothing is resolved later with the windows of before, so the edit itself records all that was due.
#[test]
fn an_edit_after_a_long_outage_records_what_was_excluded_as_skipped() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-14T12:00:00Z");
    stepper.client().add(hourly().handler("work")).expect("a task");
    stepper.step().expect("a step");
    let before = db.add_bystander(&stepper);
    // Back at noon: more periods than one turn records.
    stepper.clock().set_wall(at("2028-03-13T12:00:30Z"));
    stepper.client().replace(NewTask::cron("t", "0 12 * * *").handler("work")).expect("another schedule");
    let rows = "SELECT status, count(*), sum(occurrences) FROM task_runs WHERE task_id = 1 GROUP BY status";
    assert_eq!(db.rows(rows), ["missed|366|3284", "queued|1|1", "skipped|365|5475"]);
    db.assert_bystander(&before);
    db.assert_sound();
}

/// 02:30 does not exist in the night, so its occurrence is at 03:00, outside of the window that it is in on every other day.
#[test]
fn an_occurrence_whose_time_the_clock_skips_is_judged_by_that_time() {
    let db = TestDb::new();
    let nightly = || NewTask::cron("t", "30 2 * * *").time_zone("Europe/Rome").only_between("02:00-03:00");
    live(&db, nightly(), "2027-03-26T12:00:00Z", 144, minutes(30));
    db.assert_history(
        "t",
        &[
            "2027-03-27 01:30:00 schedule succeeded",
            "2027-03-28 01:00:00 schedule succeeded",
            "2027-03-29 00:30:00 schedule succeeded",
        ],
    );
    // One of several that occur together, of which one is within; and only those around it are excluded.
    let often = NewTask::cron("t", "0,15,30,45 1,2,3 * * *").time_zone("Europe/Rome");
    let skipped = |task: NewTask| {
        let ahead = task.handler("work").upcoming(at("2027-03-28T00:20:00Z"), 4).unwrap();
        ahead.iter().map(|one| format!("{} {}", &one.local[11..16], one.skipped.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(skipped(often.only_between("02:30-03:00")), ["01:30 true", "01:45 true", "03:00 false", "03:15 true"]);
    // The whole day is skipped.
    let daily = NewTask::cron("t", "0 9 * * *").time_zone("Pacific/Apia").except_on("2011-12-30").handler("work");
    let ahead = daily.upcoming(at("2011-12-29T00:00:00Z"), 3).unwrap();
    let ahead: Vec<_> = ahead.iter().map(|one| (&one.local[..16], one.skipped.is_some())).collect();
    assert_eq!(ahead, [("2011-12-29T09:00", false), ("2011-12-31T00:00", true), ("2011-12-31T09:00", false)]);
}

/// The occurrence at the end of the gap is the only one of its night that catches up, and the only one that is missed.
#[test]
fn after_an_outage_over_a_skipped_hour_its_occurrence_is_not_taken_for_one_of_the_period_around_it() {
    let task = NewTask::cron("t", "0,30 1,2,3,4 * * *").time_zone("Europe/Rome").only_between("02:00-03:00");
    let rows = |until| {
        let outage = task.clone().handler("work").outage(at("2027-03-28T00:10:00Z"), at(until)).unwrap();
        let brief =
            |one: &duly::Projection| format!("{} {} x{}", one.status, &one.first.to_string()[11..16], one.count);
        outage.projections.iter().map(brief).collect::<Vec<_>>()
    };
    // By day, at an excluded time, nothing catches up. In the next night something does.
    assert_eq!(rows("2027-03-28T12:00:00Z"), ["skipped 00:30 x1", "missed 01:00 x1", "skipped 01:30 x3"]);
    let later = ["skipped 00:30 x1", "missed 01:00 x1", "skipped 01:30 x5", "queued 00:00 x1"];
    assert_eq!(rows("2027-03-29T00:00:30Z"), later);
}

#[test]
fn by_sql_they_apply_at_once_and_what_is_no_time_makes_the_task_invalid() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-14T12:30:00Z");
    stepper.client().add(NewTask::cron("t", "0 * * * *").handler("work")).expect("a task");
    stepper.step().expect("a step");
    db.execute("UPDATE scheduled_tasks SET only_between = '09:00-12:45' WHERE name = 't'");
    stepper.clock().advance(hours(1));
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 13:00:00 schedule skipped"]);
    db.execute("UPDATE scheduled_tasks SET only_between = '9 to 5' WHERE name = 't'");
    work_off(&mut stepper);
    let invalid = "SELECT status || ': ' || invalid_reason FROM scheduled_tasks WHERE name = 't'";
    let reason = "invalid: invalid only_between: expected times of 24 hours such as 09:00-17:30, or 22:00-06:00 over midnight, separated by \
                  commas, found \"9 to 5\"";
    assert_eq!(db.rows(invalid), [reason]);
    db.execute("UPDATE scheduled_tasks SET only_between = NULL WHERE name = 't'");
    stepper.clock().advance(hours(1));
    work_off(&mut stepper);
    assert_eq!(db.rows("SELECT status FROM scheduled_tasks WHERE name = 't'"), ["active"]);
    db.assert_sound();
}

#[test]
fn they_are_stored_compared_and_refused_where_nothing_is_chosen() {
    let db = TestDb::new();
    let client = db.client();
    let task = || hourly().only_on("2027-01-01..2027-12-31").except_on("2027-12-25").handler("work");
    client.add(task()).unwrap();
    let stored = client.task("t").unwrap().expect("the task").definition;
    let texts = [stored.only_between.as_deref(), stored.only_on.as_deref(), stored.except_on.as_deref()];
    assert_eq!(texts, [Some("09:00-17:30"), Some("2027-01-01..2027-12-31"), Some("2027-12-25")]);
    let other = client.add(task().except_on("2027-12-26")).unwrap_err().to_string();
    assert_eq!(other, r#"task "t" exists with another except_on: stored "2027-12-25", given "2027-12-26""#);
    for task in [NewTask::manual("a"), NewTask::delay("a", hours(1)), NewTask::once("a", at("2027-03-14T12:00:00Z"))] {
        match client.add(task.handler("work").only_on("2027-01-01")) {
            Err(Error::InvalidTask { field: "schedule_type", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// As a schedule that names no occurrence is.
#[test]
fn a_task_all_of_whose_occurrences_are_excluded_is_refused() {
    let db = TestDb::new();
    let client = db.stepper("2027-03-14T12:00:00Z").client().clone();
    let noon = || NewTask::cron("t", "0 12 * * *").handler("work");
    for (task, column) in [
        (noon().only_between("09:00-10:00"), "only_between"),
        (noon().only_on("2020-01-01, 2026-12-31"), "only_on"),
        (noon().only_on("2028-01-01").except_on("new-year: 2028-01-01"), "only_on"),
        (noon().ends_at(at("2027-03-20T00:00:00Z")).except_on("2027-03-14..2027-03-31"), "except_on"),
    ] {
        let refused = client.add(task.clone()).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("invalid {column}: expected a rule that leaves an occurrence")),
            "{refused}"
        );
        assert_eq!(task.upcoming(at("2027-03-14T12:00:00Z"), 1).unwrap_err().to_string(), refused);
    }
    assert!(db.tasks().is_empty());
    // It is enough that one will be run, however far away.
    let hours =
        "00:00-00:10, 01:00-01:10, 02:00-02:10, 03:00-03:10, 04:00-04:10, 05:00-05:10, 06:00-06:10, 07:00-07:10";
    let often = NewTask::cron("far", "*/5 * * * *").handler("work").only_between(hours).only_on("2044-02-29");
    client.add(often).unwrap();
    client.add(noon().only_on("2028-02-29")).unwrap();
    let edited =
        client.replace(noon().only_on("2027-03-15").ends_at(at("2028-01-01T00:00:00Z")).only_between("13:00-14:00"));
    assert!(edited.unwrap_err().to_string().starts_with("invalid only_between"));
    // The dates of a stored task may run out: its other fields can still be edited.
    db.execute("UPDATE scheduled_tasks SET only_on = '2020-01-01' WHERE name = 't'");
    client.replace(noon().only_on("2020-01-01").timeout(seconds(5))).unwrap();
}
