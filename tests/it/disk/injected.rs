//! One call fails, the n-th of its kind in each thread since the start of the program, for n = 1, 2, .. until no call is
//! left.

use std::process::Command;

use crate::disk::tools::{arguments, can_limit, has_strace, injected, limit_files, skip_without};
use crate::disk::{REFUSES, all, assert_consistent, count_outages, probe, starts};
use crate::fixtures::{TestDb, eventually};
use crate::sidecar::Sidecar;

/// The calls that are tried by default.
const SOME: [u32; 5] = [1, 4, 9, 16, 25];
/// More calls of one kind than a scenario can have.
const MOST: u32 = 500;

/// Calls by which SQLite writes, and their errors. By default the first three are tried.
const WRITES: [(&str, &str); 5] =
    [("pwrite64", "EIO"), ("fsync", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO"), ("ftruncate", "EIO")];
/// Calls by which SQLite and duly open, read and stat the file; by default the first. Locks are not among them: a failed
/// unlock, which no local disk produces, would leave SQLite locked out by itself.
const READS: [(&str, &str); 3] = [("pread64", "EIO"), ("statx,newfstatat", "EIO"), ("openat", "EMFILE")];

/// Creates a database with three due tasks: one succeeds, one may start only once, one fails first.
fn db() -> TestDb {
    let (db, client) = TestDb::with_client();
    client.add(probe(&db, "fine", "echo fine")).unwrap();
    client.add(probe(&db, "once", "true").at_most_once()).unwrap();
    client.add(probe(&db, "second-try", "test $DULY_ATTEMPT -gt 1")).unwrap();
    db
}

/// Checks that all is done, and that the task that may start only once has not started twice.
fn assert_done(db: &TestDb, what: &str) {
    assert_consistent(db, what);
    let ends = db.rows(
        "SELECT t.name, r.status, r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY 1",
    );
    assert_eq!(ends, ["fine|succeeded|1", "once|succeeded|1", "second-try|succeeded|2"], "{what}");
    assert_eq!(starts(db).len(), 4, "{what}");
}

/// Makes the calls of one kind fail one after another. Returns how many of them had something to fail.
pub(crate) fn each(calls: &str, error: &str, some: &[u32], mut scenario: impl FnMut(&str, &str) -> bool) -> u32 {
    let mut failed = 0;
    let every = 1..MOST;
    let numbers: Vec<u32> = if all() { every.collect() } else { some.to_vec() };
    for number in numbers {
        if !scenario(&format!("{calls} {number}: {error}"), &format!(":when={number}")) {
            return failed;
        }
        failed += 1;
    }
    assert!(!all(), "{calls}: too many calls");
    failed
}

#[test]
fn after_any_failed_write_all_runs_finish() {
    check_runs(&WRITES, 3, &SOME);
}

#[test]
fn after_any_failed_read_all_runs_finish() {
    // The calls of the start come first.
    check_runs(&READS, 1, &[1, 16, 40, 48, 56]);
}

/// Runs `duly run` under strace. If it could not start, the next one can; if it could, it has finished all runs.
fn check_runs(faults: &[(&str, &str)], kinds: usize, some: &[u32]) {
    if !has_strace() {
        return skip_without("strace", "another test uses a file size limit");
    }
    let options = ["--until-idle", "--lease", "10m"];
    let (mut refused, mut survived) = (0, 0);
    for &(calls, error) in &faults[..if all() { faults.len() } else { kinds }] {
        let failed = each(calls, error, some, |what, when| {
            let db = db();
            let log = db.home().join("strace");
            let arguments = arguments(&db, &log, calls, error, when);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut first = Sidecar::spawn_within(&db, &options, "strace", &arguments);
            let (status, stderr) = (first.end(), first.log());
            match status.code() {
                Some(0) => {
                    count_outages(&stderr);
                    survived += usize::from(injected(&log) > 0);
                }
                Some(1 | 4) => {
                    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
                    assert!(errors.len() == 1 && stderr.ends_with(&format!("{}\n", errors[0])), "{what}: {stderr}");
                    assert_eq!(starts(&db), [], "{what}: only a start may fail: {stderr}");
                    refused += 1;
                }
                code => panic!("{what}: exit {code:?}: {stderr}"),
            }
            if status.code() != Some(0) {
                let mut second = Sidecar::spawn(&db, &options);
                assert_eq!(second.end().code(), Some(0), "{what}: {}", second.log());
            }
            assert_done(&db, what);
            injected(&log) > 0
        });
        println!("{calls}, {error}: {failed} places");
        assert!(failed > 0 || calls == "fdatasync", "nothing was tried");
    }
    println!("{refused} starts refused, {survived} faults survived");
    assert!(refused > 0 && survived > 0, "both kinds of places");
}

/// `duly add` without a file: the tables are created completely, or not at all.
#[test]
fn after_any_failed_write_a_new_file_is_complete_or_can_be_created_again() {
    if !has_strace() {
        return skip_without("strace", "not tried");
    }
    // The kind of the error makes no difference here.
    let faults = WRITES.into_iter().chain(READS).filter(|(_, error)| *error != "ENOSPC");
    for (calls, error) in faults.take(if all() { usize::MAX } else { 2 }) {
        let failed = each(calls, error, &SOME[..3], |what, when| {
            let db = TestDb::new();
            let log = db.home().join("strace");
            let add = |program: &mut Command| {
                let task = ["add", "task", "--at", "3999-01-01T00:00:00Z", "--", "true"];
                let output = program.arg("--db").arg(db.file()).args(task).output().expect("a program");
                (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
            };
            let arguments = arguments(&db, &log, calls, error, when);
            let duly = env!("CARGO_BIN_EXE_duly");
            let (code, stderr) = add(Command::new("strace").args(arguments).arg(duly));
            assert!(matches!(code, Some(0 | 1 | 4)), "{what}: exit {code:?}: {stderr}");
            assert_eq!(code == Some(0), stderr.is_empty(), "{what}: {stderr}");
            assert!(stderr.lines().count() <= 1 && !stderr.contains("panicked"), "{what}: {stderr}");
            assert_eq!(add(&mut Command::new(duly)), (Some(0), String::new()), "{what}: the same again");
            assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks"), "task", "{what}");
            db.assert_sound();
            injected(&log) > 0
        });
        println!("{calls}, {error}: {failed} places");
    }
}

/// The same without strace: beyond some size no file may grow, first the log, until the limit is lifted.
#[test]
fn at_any_file_size_limit_all_runs_finish_once_it_is_lifted() {
    if !can_limit() {
        return skip_without("prlimit", "not tried");
    }
    let options = ["--until-idle", "--lease", "10m"];
    let mut refused = 0;
    for kilobytes in if all() { (4..100).step_by(4).collect::<Vec<u32>>() } else { vec![8, 36, 44, 52] } {
        let (db, what) = (db(), format!("{kilobytes} KiB"));
        let limit = format!("ulimit -S -f {}; trap '' XFSZ; exec \"$@\"", kilobytes * 2);
        let mut first = Sidecar::spawn_within(&db, &options, "sh", &["-c", &limit, "sh"]);
        eventually("it is done, or is blocked", || {
            let log = first.log();
            [REFUSES, "error: ", "scheduler stopped"].iter().any(|word| log.contains(word))
        });
        if first.log().contains(REFUSES) {
            limit_files(first.pid(), None);
            refused += 1;
        }
        let (status, stderr) = (first.end(), first.log());
        if status.code() != Some(0) {
            assert!(matches!(status.code(), Some(1 | 4)), "{what}: {status}: {stderr}");
            assert_eq!(starts(&db), [], "{what}: only a start may fail: {stderr}");
            let mut second = Sidecar::spawn(&db, &options);
            assert_eq!(second.end().code(), Some(0), "{what}: {}", second.log());
        }
        count_outages(&stderr);
        assert_done(&db, &what);
    }
    println!("{refused} limits exceeded by a running scheduler");
    assert!(refused > 1, "no limit was met");
}
