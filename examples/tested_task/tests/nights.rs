//! The nights in which something happens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::{Stepper, clock_change_after, fail_first, local_time};
use duly::{AttemptOutcome, BoxError, Context, RunStatus};
use tested_task::{ZONE, backup, task};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The names under which backups were stored, in order.
type Copies = Arc<Mutex<Vec<String>>>;

/// A scheduler with the task, which starts at a local time and whose first copies fail.
fn start(local: &str, failures: u32) -> (tempfile::TempDir, Copies, Stepper) {
    let (home, copies) = (tempfile::tempdir().unwrap(), Copies::default());
    let stored = copies.clone();
    let handler = move |run: &Context| {
        backup(run, |name| {
            stored.lock().unwrap().push(name.to_owned());
            Ok::<_, BoxError>(())
        })
    };
    let at = local_time(local, ZONE).unwrap();
    let builder = Stepper::builder(home.path().join("test.db"), at);
    let stepper = builder.handler("backup", fail_first(failures, handler)).start().unwrap();
    stepper.client().add(task()).unwrap();
    (home, copies, stepper)
}

fn stored(copies: &Copies) -> Vec<String> {
    copies.lock().unwrap().clone()
}

#[test]
fn in_spring_the_skipped_time_runs_after_the_gap() {
    let (_home, copies, mut stepper) = start("2027-03-26 12:00:00", 0);
    stepper.run_for(3 * DAY).unwrap();
    let starts = stepper.local_starts("backup", ZONE).unwrap();
    assert_eq!(starts, ["2027-03-27T02:30:00+01:00", "2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]);
    assert_eq!(stored(&copies), ["backup-2027-03-27", "backup-2027-03-28", "backup-2027-03-29"]);
}

#[test]
fn in_autumn_the_repeated_time_runs_once() {
    let (_home, copies, mut stepper) = start("2027-10-29 12:00:00", 0);
    stepper.run_for(3 * DAY).unwrap();
    let starts = stepper.local_starts("backup", ZONE).unwrap();
    assert_eq!(starts, ["2027-10-30T02:30:00+02:00", "2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]);
    assert_eq!(stored(&copies).len(), 3);
}

/// Whatever the rules of the zone are by then.
#[test]
fn every_night_around_every_change_of_ten_years_has_one_backup() {
    let mut from = local_time("2027-01-01 00:00:00", ZONE).unwrap();
    for _ in 0..20 {
        let Some(change) = clock_change_after(from, ZONE).unwrap() else { break };
        let before = duly::Zone::named(ZONE).unwrap().text_at(change - 2 * DAY);
        let (_home, copies, mut stepper) = start(&format!("{} 12:00:00", &before[..10]), 0);
        stepper.run_for(4 * DAY).unwrap();
        let nights = stored(&copies);
        assert_eq!((nights.len(), BTreeSet::from_iter(&nights).len()), (4, 4), "{nights:?}");
        from = change;
    }
}

#[test]
fn a_year_has_a_backup_for_each_night() {
    let (_home, copies, mut stepper) = start("2027-01-01 00:00:00", 0);
    let runs = stepper.run_until(local_time("2028-01-01 00:00:00", ZONE).unwrap()).unwrap();
    assert_eq!((runs.len(), stored(&copies).len()), (365, 365));
}

#[test]
fn after_an_outage_the_last_night_is_made_up_for_if_it_is_still_morning() {
    let (_home, copies, mut stepper) = start("2027-06-01 12:00:00", 0);
    stepper.run_for(DAY).unwrap();
    // Three nights without power, until nine in the morning.
    let mut stepper = stepper.outage(3 * DAY - 3 * HOUR).unwrap();
    stepper.run_until_idle(HOUR).unwrap();
    assert_eq!(stored(&copies), ["backup-2027-06-02", "backup-2027-06-05"]);
    let missed: Vec<_> = stepper.client().history("backup", 10).unwrap();
    let missed: Vec<_> =
        missed.iter().filter(|run| run.status == RunStatus::Missed).map(|run| run.occurrences).collect();
    assert_eq!(missed, [2], "one row for both");
    // Until three in the afternoon: too late.
    let mut stepper = stepper.outage(DAY + 6 * HOUR).unwrap();
    stepper.run_until_idle(HOUR).unwrap();
    assert_eq!(stored(&copies).len(), 2);
}

#[test]
fn a_crash_during_a_backup_is_retried() {
    let (_home, copies, mut stepper) = start("2027-06-01 12:00:00", 0);
    stepper.clock().advance(15 * HOUR);
    let lost = stepper.step().unwrap()[0].run_id;
    let mut stepper = stepper.restart().unwrap();
    let run = stepper.run_until_over(lost, HOUR).unwrap();
    assert_eq!((run.status, run.attempt), (RunStatus::Succeeded, 2));
    assert_eq!(stepper.client().attempts(lost).unwrap()[0].outcome, AttemptOutcome::Lost);
    assert_eq!(stored(&copies), ["backup-2027-06-02"]);
}

#[test]
fn three_failures_end_a_night_and_not_the_next() {
    let (_home, copies, mut stepper) = start("2027-06-01 12:00:00", 3);
    let runs = stepper.run_until_count("backup", 2, 3 * DAY).unwrap();
    assert_eq!(runs.iter().map(|run| run.status).collect::<Vec<_>>(), [RunStatus::Dead, RunStatus::Succeeded]);
    assert_eq!(stored(&copies), ["backup-2027-06-03"]);
}
