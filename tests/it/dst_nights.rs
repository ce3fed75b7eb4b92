//! The program on the nights of a clock change, with a date from libfaketime.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::fixtures::{Process, TestDb, eventually, skip};
use crate::sidecar::signal;

/// The library of Debian's package `faketime`. Without it the tests are skipped, and fail in CI.
pub(crate) fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.exists());
    if found.is_none() {
        skip("no libfaketime");
    }
    found
}

/// The program, started at a fake time that passes at the usual pace. The monotonic clock is the machine's.
fn duly(library: &PathBuf, db: &TestDb, at: &str, arguments: &[&str]) -> Command {
    let mut duly = db.duly(arguments);
    duly.env("LD_PRELOAD", library).env("FAKETIME", format!("@{at}"));
    duly.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    duly
}

/// A scheduler at a fake time.
struct Night(Process);

impl Night {
    fn begin(library: &PathBuf, db: &TestDb, at: &str) -> Self {
        let log = File::create(db.home().join("log")).expect("a log");
        Night(Process::spawn(duly(library, db, at, &["run", "--poll", "50ms"]).stderr(log)))
    }

    fn end(mut self) {
        signal("TERM", &self.0.0.id().to_string());
        assert_eq!(self.0.exit_code(), Some(0));
    }
}

/// A database with tasks in New York that were added on New Year's Day.
fn new_york(library: &PathBuf, tasks: &[(&str, &str)]) -> TestDb {
    let db = TestDb::new();
    for (name, line) in tasks {
        let arguments = ["-q", "add", name, "--cron", line, "--tz", "America/New_York", "--", "true"];
        let mut add = duly(library, &db, "2027-01-01 12:00:00", &arguments);
        assert!(add.stdin(Stdio::null()).status().expect("duly add").success());
    }
    db
}

/// The occurrences of a task since a date, and their statuses.
fn since(db: &TestDb, name: &str, date: &str) -> Vec<String> {
    db.rows(&format!(
        "SELECT strftime('%H:%M', scheduled_for / 1000, 'unixepoch'), r.status
           FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
          WHERE t.name = '{name}' AND scheduled_for >= 1000 * strftime('%s', '{date}') ORDER BY scheduled_for"
    ))
}

#[test]
fn on_the_spring_night_a_skipped_time_runs_once() {
    let Some(library) = library() else { return };
    let db = new_york(&library, &[("skipped", "0,30 2 * * *"), ("half", "30 * * * *"), ("later", "30 3 * * *")]);
    // Two seconds before 02:00 becomes 03:00.
    let night = Night::begin(&library, &db, "2027-03-14 06:59:58");
    eventually("it has run", || since(&db, "skipped", "2027-03-14") == ["07:00|succeeded"]);
    night.end();
    // And two seconds before half past three.
    let night = Night::begin(&library, &db, "2027-03-14 07:29:58");
    eventually("the others have run", || {
        ["half", "later"].iter().all(|name| since(&db, name, "2027-03-14 07:30") == ["07:30|succeeded"])
    });
    night.end();
    assert_eq!(since(&db, "skipped", "2027-03-14"), ["07:00|succeeded"]);
    assert_eq!(since(&db, "half", "2027-03-14 07:00"), ["07:30|succeeded"], "it follows the clock");
    assert_eq!(since(&db, "later", "2027-03-14"), ["07:30|succeeded"]);
    db.assert_sound();
}

#[test]
fn on_the_autumn_night_a_repeated_time_runs_once() {
    let Some(library) = library() else { return };
    let db = new_york(&library, &[("repeated", "0,30 1 * * *"), ("hour", "0 * * * *"), ("half", "30 * * * *")]);
    // Two seconds before 01:30, the first of two.
    let night = Night::begin(&library, &db, "2027-11-07 05:29:58");
    eventually("both have run", || {
        ["repeated", "half"].iter().all(|name| since(&db, name, "2027-11-07 05:30") == ["05:30|succeeded"])
    });
    night.end();
    // Two seconds before 02:00 becomes 01:00.
    let night = Night::begin(&library, &db, "2027-11-07 05:59:58");
    eventually("what follows the clock has run", || since(&db, "hour", "2027-11-07 06:00") == ["06:00|succeeded"]);
    night.end();
    // Two seconds before 01:30, the second of two.
    let night = Night::begin(&library, &db, "2027-11-07 06:29:58");
    eventually("what follows the clock has run again", || {
        since(&db, "half", "2027-11-07 06:00") == ["06:30|succeeded"]
    });
    night.end();
    let once = ["05:00|succeeded", "05:30|succeeded"];
    assert_eq!(since(&db, "repeated", "2027-11-07"), once, "in the first pass; the first of them caught up");
    db.assert_sound();
}

#[test]
fn an_unset_clock_is_a_problem_of_check() {
    let Some(library) = library() else { return };
    let db = new_york(&library, &[("nightly", "30 2 * * *")]);
    for (time, code) in [("2027-01-02 00:00:00", 0), ("1970-01-01 00:01:00", 1)] {
        let check = duly(&library, &db, time, &["check"]).output().expect("the program");
        let status = duly(&library, &db, time, &["status", "--json"]).output().expect("the program");
        let (problems, state) = (String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&status.stdout));
        assert_eq!(check.status.code(), Some(code), "{problems}");
        let waits = "clock: waiting for the clock until 2027-01-01T";
        assert_eq!(
            problems.starts_with(waits) && problems.contains("it is not set, and shows 1970-01-01"),
            code == 1,
            "{problems}"
        );
        assert_eq!(state.contains("\"waiting_for_clock_until\": \"2027-01-01T"), code == 1, "{state}");
    }
}
