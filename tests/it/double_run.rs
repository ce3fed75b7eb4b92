//! The loops of `examples/double_run.rs` double or lose runs, each by an exact count, and duly does not.
//!
//! If a loop stopped doubling, the bench would prove nothing about duly.

use std::process::Command;
use std::time::Duration;

use duly::{Outcome, RunStatus};

use crate::fixtures::{TestDb, example, minutes, seconds};

#[path = "../../examples/double_run/mod.rs"]
mod bench;

use bench::day::{Day, clock};
use bench::journal::{Journal, Judgement, Verdict, What};
use bench::loops::{Deduplicate, ExpiringKey, LockTable, Loop, MoveAfter, MoveBefore, StatusColumn};

const STATUS: StatusColumn = StatusColumn { stuck_after: Duration::from_secs(600) };
const LOCK: LockTable = LockTable { stale_after: Duration::from_secs(600) };
const KEY: ExpiringKey = ExpiringKey { expires_after: Duration::from_secs(300) };
const FREE: Deduplicate = Deduplicate { at_once: usize::MAX };
const ONE_AT_A_TIME: Deduplicate = Deduplicate { at_once: 1 };

/// The main facts of the page.
const HEADLINE: [&str; 3] = [
    "Naive loop:    five starts for one occurrence.",
    "One-line fix:  a lost run.",
    "duly:          one start, and recovered after the crash.",
];

fn journal_of(naive: &dyn Loop, day: Day) -> Journal {
    bench::process::live(&day, naive).unwrap_or_else(|error| panic!("{} on {day}: {error}", naive.name()))
}

fn judgement_of(naive: &dyn Loop, day: Day) -> Judgement {
    journal_of(naive, day).judge()
}

/// A day without a crash: `starts` starts, all but one of them duplicates, all finished.
fn with_duplicates(starts: usize, at_once: usize) -> Judgement {
    Judgement { starts, doubled: starts - 1, at_once, ended: starts, died: 0, waited: None }
}

fn started_once() -> Judgement {
    Judgement { starts: 1, doubled: 0, at_once: 1, ended: 1, died: 0, waited: None }
}

/// When each start and each end happened.
fn times(journal: &Journal) -> (Vec<String>, Vec<String>) {
    let of = |wanted: fn(&What) -> bool| {
        journal.entries.iter().filter(|entry| wanted(&entry.what)).map(|entry| clock(entry.at)).collect()
    };
    (of(|what| matches!(what, What::Started(_))), of(|what| matches!(what, What::Ended(_))))
}

#[test]
fn a_next_run_that_moves_after_the_run_is_due_at_every_poll_until_then() {
    let journal = journal_of(&MoveAfter, Day::quiet());
    let (starts, ends) = times(&journal);
    assert_eq!(starts, ["13:00", "13:01", "13:02", "13:03", "13:04"]);
    assert_eq!(ends, ["13:05", "13:06", "13:07", "13:08", "13:09"]);
    assert_eq!(journal.judge(), with_duplicates(5, 5));
}

#[test]
fn deduplication_of_pending_jobs_does_not_see_running_ones() {
    assert_eq!(judgement_of(&FREE, Day::quiet()), with_duplicates(5, 5));
    // A job is pending only where runs wait for each other: then the check reduces five starts to two.
    let journal = journal_of(&ONE_AT_A_TIME, Day::quiet());
    assert_eq!(times(&journal).0, ["13:00", "13:05"]);
    assert_eq!(journal.judge(), with_duplicates(2, 1));
}

#[test]
fn moving_next_run_first_loses_a_killed_run_and_doubles_a_single_one() {
    let lost = judgement_of(&MoveBefore, Day::killed());
    assert_eq!(lost, Judgement { starts: 1, doubled: 0, at_once: 1, ended: 0, died: 1, waited: None });
    assert_eq!(lost.verdict(), Verdict::Lost);
    assert_eq!(judgement_of(&MoveBefore, Day::once()), with_duplicates(5, 5));
}

#[test]
fn a_stale_lock_timeout_is_too_short_for_a_slow_run_and_too_long_for_a_killed_one() {
    let journal = journal_of(&STATUS, Day::slow(minutes(12)));
    assert_eq!(times(&journal).0, ["13:00", "13:10"]);
    assert_eq!(journal.judge(), with_duplicates(2, 2));

    let late = judgement_of(&STATUS, Day::killed());
    assert_eq!(late, Judgement { starts: 2, doubled: 0, at_once: 1, ended: 1, died: 1, waited: Some(minutes(7)) });
    assert_eq!(late.verdict(), Verdict::Late);
    // The two other loops make the same guess.
    assert_eq!(judgement_of(&LOCK, Day::slow(minutes(12))), with_duplicates(2, 2));
    assert_eq!(judgement_of(&LOCK, Day::killed()), late);
    assert_eq!(judgement_of(&KEY, Day::slow(minutes(6))), with_duplicates(2, 2));
    assert_eq!(judgement_of(&KEY, Day::killed()).verdict(), Verdict::Late);
}

#[test]
fn a_free_lock_does_not_show_whether_the_work_is_done() {
    for naive in [&STATUS as &dyn Loop, &LOCK, &KEY] {
        let journal = journal_of(naive, Day::stalled());
        assert_eq!(times(&journal).0, ["13:00", "13:02"], "{}", naive.name());
        assert_eq!(journal.judge(), with_duplicates(2, 1), "{}", naive.name());
    }
}

/// The bench is fair: each remedy works in the case that it is meant for.
#[test]
fn every_remedy_holds_on_a_quiet_day() {
    for naive in [&MoveBefore as &dyn Loop, &STATUS, &LOCK, &KEY] {
        assert_eq!(judgement_of(naive, Day::quiet()), started_once(), "{}", naive.name());
    }
    for naive in [&MoveAfter as &dyn Loop, &FREE, &ONE_AT_A_TIME] {
        assert_eq!(
            judgement_of(naive, Day::slow(seconds(59))),
            started_once(),
            "{}: shorter than a poll",
            naive.name()
        );
    }
}

/// duly starts the occurrence of a day without a crash once.
#[track_caller]
fn assert_starts_once(day: &Day) {
    let db = TestDb::new();
    let journal = bench::duly_day::live_in(day, db.file()).unwrap_or_else(|error| panic!("{day}: {error}"));
    assert_eq!(journal.judge(), started_once(), "{day}");
    assert_eq!(times(&journal).0, ["13:00"], "{day}");
    assert_eq!(db.states(), ["carousel|succeeded|1"], "{day}");
    assert_eq!(db.outcomes(), [""; 0], "{day}");
    db.assert_sound();
}

// A test each: together they would be the last to end.
#[test]
fn duly_starts_an_occurrence_once_on_a_quiet_day() {
    assert_starts_once(&Day::quiet());
}

#[test]
fn duly_starts_a_once_task_once() {
    assert_starts_once(&Day::once());
}

#[test]
fn duly_starts_an_occurrence_once_whose_run_takes_longer_than_five_polls() {
    assert_starts_once(&Day::slow(minutes(6)));
}

#[test]
fn duly_starts_an_occurrence_once_whose_run_takes_longer_than_a_lock_of_ten_minutes() {
    assert_starts_once(&Day::slow(minutes(12)));
}

#[test]
fn duly_starts_an_occurrence_once_although_a_process_stalls() {
    assert_starts_once(&Day::stalled());
}

#[test]
fn duly_retries_a_killed_run_when_a_scheduler_is_back() {
    let db = TestDb::new();
    let judgement = bench::duly_day::live_in(&Day::killed(), db.file()).expect("a day").judge();
    let waited = judgement.waited.expect("a second start");
    assert_eq!(judgement, Judgement { starts: 2, doubled: 0, at_once: 1, ended: 1, died: 1, waited: Some(waited) });
    // The only wait is the first backoff.
    assert!(waited <= seconds(10), "{waited:?}");
    assert_eq!(judgement.verdict(), Verdict::Recovered);
    assert_eq!(db.states(), ["carousel|succeeded|2"]);
    assert_eq!(db.outcomes(), ["1|lost"]);
    db.assert_sound();
}

/// A lock expires under a stalled process; a lease of duly does not, because its owner is alive.
#[test]
fn duly_does_not_take_over_the_run_of_a_stalled_process() {
    let db = TestDb::new();
    let mut slow = db.stepper("2026-03-14T12:59:00Z");
    slow.client().add(duly::NewTask::cron("carousel", bench::day::CRON).handler("work")).expect("a task");
    let clock = slow.clock().clone();
    let mut other = db.builder("2026-03-14T12:59:00Z").clock(&clock).accept("work").start().expect("a stepper");

    clock.advance(minutes(1));
    let claims = slow.step().expect("a turn");
    assert_eq!(claims.len(), 1);
    for _ in 0..60 {
        clock.advance(minutes(1));
        assert!(other.step().expect("a turn").is_empty());
    }
    slow.finish(&claims[0], Outcome::succeeded());
    slow.step().expect("a turn");
    let runs = db.client().history("carousel", 10).expect("the history");
    assert_eq!((runs.len(), runs[0].status, runs[0].attempt), (1, RunStatus::Succeeded, 1));
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if the example changed"]
fn the_page_fits_a_terminal_and_shows_the_main_facts() {
    let page = bench::report::page().expect("a page");
    for fact in HEADLINE {
        assert!(page.lines().any(|line| line.trim() == fact), "{fact:?} is not in\n{page}");
    }
    for line in page.lines() {
        assert!(line.chars().count() <= 100 && !line.ends_with(' '), "{line:?}");
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if the example changed"]
fn the_example_prints_the_headline() {
    let Some(example) = example("double_run") else { return };
    let output = Command::new(example).output().expect("the example");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stderr.is_empty(), "{:?}\n{stderr}", output.status);
    for fact in HEADLINE {
        assert!(stdout.lines().any(|line| line.trim() == fact), "{fact:?} is not in\n{stdout}");
    }
}

/// The example compares each count with what it expects, and fails if one differs.
#[cfg(feature = "postgres")]
#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if the example changed"]
fn on_several_hosts_each_guard_has_its_day_and_duly_starts_once_on_all() {
    let Some(server) = crate::postgres::server() else {
        crate::fixtures::skip("no PostgreSQL");
        return;
    };
    let Some(example) = example("double_run") else { return };
    let output = Command::new(example).args(["--postgres", server]).output().expect("the example");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stderr.is_empty(), "{:?}\n{stdout}{stderr}", output.status);
    // The table of the documentation is the page's.
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guards.md")).expect("the page");
    let rows: Vec<&str> = stdout.lines().filter(|line| line.starts_with("  ")).map(str::trim_end).collect();
    assert!(rows.len() > 25, "{stdout}");
    for row in rows {
        assert!(docs.contains(row.trim_start()), "{row:?} is not in docs/guards.md");
    }
}

#[test]
fn the_example_refuses_what_it_does_not_know() {
    let Some(example) = example("double_run") else { return };
    let output = Command::new(example).arg("--mysql").output().expect("the example");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
}
