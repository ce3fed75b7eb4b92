//! The weeks of a clock change: an imported crontab starts what Debian's cron starts. The expected starts come from a model of
//! cron in this file, which wakes every minute as cron does; it and the reader of its lines use no code of duly.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use duly::{Context, Timestamp};

use crate::fixtures::{TestDb, at, minutes};
use crate::import::{CRONTAB, document, write};
use crate::mutations::cron::Line;

/// Returns the number of starts by cron for each line and minute of UTC; `offset` is that of the wall clock, in minutes. As in
/// cron's main loop, after a step forward of up to three hours fixed lines catch up, and after a step back they wait until the
/// clock has passed its former time.
fn cron(lines: &BTreeMap<u64, Line>, from: i64, until: i64, offset: impl Fn(i64) -> i64) -> BTreeMap<(u64, i64), u32> {
    let mut starts = BTreeMap::new();
    let mut seen = from - 1 + offset(from - 1);
    for minute in from..until {
        let shown = minute + offset(minute);
        let mut find = |clock: i64, star: bool, fixed: bool| {
            for (number, line) in lines {
                if (if line.follows_the_clock() { star } else { fixed }) && line.names(clock) {
                    *starts.entry((*number, minute)).or_insert(0) += 1;
                }
            }
        };
        match shown - seen {
            1..=5 => {
                for clock in seen + 1..=shown {
                    find(clock, true, true);
                }
                seen = shown;
            }
            6..=180 => {
                find(shown, true, false);
                for clock in seen + 1..=shown {
                    find(clock, false, true);
                }
                seen = shown;
            }
            -179..=0 => find(shown, true, false),
            _ => {
                find(shown, true, true);
                seen = shown;
            }
        }
    }
    starts
}

/// The times of a line of a crontab, without its command.
fn first_fields(line: &str) -> String {
    let count = if line.starts_with('@') { 1 } else { 5 };
    line.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}

fn minute(text: &str) -> i64 {
    at(text).as_millis() / 60_000
}

/// Asserts that the imported file starts what cron starts in a week, and returns cron's starts. Cron catches up all missed minutes
/// of a line within one minute; here an instant has one run.
fn week(from: &str, until: &str, rome: impl Fn(i64) -> i64) -> BTreeMap<(u64, i64), u32> {
    let db = TestDb::brief();
    write(&db, "crontab", CRONTAB);
    let imported = document(&db, &["import", "crontab", "crontab"]);
    let number = |task: &serde_json::Value| (task["name"].as_str().unwrap().to_owned(), task["line"].as_u64().unwrap());
    let numbers: BTreeMap<String, u64> = imported["tasks"].as_array().unwrap().iter().map(number).collect();

    // Earlier occurrences are missed, as by a cron that did not run.
    let before = Timestamp::from_millis(at(from).as_millis() - 600_000);
    let handler = |_: &Context| Ok::<_, Infallible>(());
    let builder = db.builder(&before.to_string()).handler("command", handler);
    // No other process uses the file: no polls are needed between occurrences.
    let mut stepper = builder.poll(minutes(60)).lease(minutes(600)).start().unwrap();
    stepper.run_until(Timestamp::from_millis(at(until).as_millis() - 1)).unwrap();
    let started = db.rows(&format!(
        "SELECT t.name, r.scheduled_for, r.started_at - r.scheduled_for, r.status
           FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE r.scheduled_for >= {}",
        at(from).as_millis()
    ));
    let mut ours = BTreeSet::new();
    for row in &started {
        let cells: Vec<&str> = row.split('|').collect();
        assert_eq!(cells[2..], ["0", "succeeded"], "on time: {row}");
        let millis: i64 = cells[1].parse().unwrap();
        assert!(ours.insert((numbers[cells[0]], millis / 60_000)) && millis % 60_000 == 0, "{row}");
    }
    db.assert_sound();

    let text: Vec<&str> = CRONTAB.lines().collect();
    let read = |line: &str| Line::read(line.trim_start_matches('-')).expect("a line");
    let line = |number: &u64| (*number, read(&first_fields(text[usize::try_from(*number).unwrap() - 1])));
    // Lines below CRON_TZ follow New York, whose clock changes in neither week.
    let (rest, new_york): (BTreeMap<_, _>, BTreeMap<_, _>) =
        numbers.values().map(line).partition(|(number, _)| *number < 31);
    assert_eq!((rest.len(), new_york.len()), (17, 2));
    let mut theirs = cron(&rest, minute(from), minute(until), rome);
    theirs.extend(cron(&new_york, minute(from), minute(until), |_| -240));
    let once: BTreeSet<(u64, i64)> = theirs.keys().copied().collect();
    let differ: Vec<_> = ours.symmetric_difference(&once).collect();
    assert!(differ.is_empty(), "line and minute of UTC: {differ:?}");
    theirs
}

#[test]
fn an_imported_crontab_matches_cron_in_the_week_of_a_skipped_hour() {
    let change = minute("2037-03-29T01:00:00Z");
    let starts = week("2037-03-23T00:00:00Z", "2037-03-30T00:00:00Z", |at| if at < change { 60 } else { 120 });
    let at_three: Vec<_> =
        starts.iter().filter(|((_, at), _)| *at == change).map(|((line, _), n)| (*line, *n)).collect();
    // Lines that follow the clock (poll, reindex, hourly), and lines fixed in the skipped hour: cron then starts backup.sh twice
    // and sync four times, once for each of their minutes.
    assert_eq!(at_three, [(8, 1), (13, 2), (14, 1), (15, 4), (16, 1), (22, 1)]);
    assert!(starts.len() > 2_000, "{}", starts.len());
    let lines: BTreeSet<u64> = starts.keys().map(|(line, _)| *line).collect();
    let others = (8..=11).chain(13..=24).chain(32..=33);
    assert_eq!(lines, others.collect(), "each but the first of the month");
}

#[test]
fn an_imported_crontab_matches_cron_in_the_week_of_a_repeated_hour() {
    let change = minute("2037-10-25T01:00:00Z");
    let starts = week("2037-10-19T00:00:00Z", "2037-10-26T00:00:00Z", |at| if at < change { 120 } else { 60 });
    let on = |line: u64| starts.keys().filter(|(number, at)| *number == line && (at - change).abs() <= 60).count();
    assert_eq!([on(8), on(13), on(14), on(15), on(22)], [25, 2, 1, 4, 3], "the first pass for what is fixed");
    assert!(starts.values().all(|count| *count == 1));
}
