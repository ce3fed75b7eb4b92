//! One call fails, the n-th of its kind in each thread: from the start of the program on, for n = 1, 2, .. until none is left.

use std::process::Command;

use crate::disk::tools::{can_limit, has_strace, injected, limit_files, orders, without};
use crate::disk::{REFUSES, all, assert_all_told, probe, refusals, starts};
use crate::fixtures::{TestDb, eventually};
use crate::sidecar::Sidecar;

/// Which calls are tried where not all are.
const SOME: [u32; 5] = [1, 4, 9, 16, 25];
/// More calls of one kind than a scenario can have.
const MOST: u32 = 500;

/// Calls by which SQLite writes, and what they fail with. By default the first three are tried.
const WRITES: [(&str, &str); 5] =
    [("pwrite64", "EIO"), ("fsync", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO"), ("ftruncate", "EIO")];
/// Calls by which SQLite, and duly itself, open the file, read it and look at it; by default the first. Locks are not among
/// them: an unlock that failed, which no local disk does, would leave SQLite locked out by itself.
const READS: [(&str, &str); 3] = [("pread64", "EIO"), ("statx,newfstatat", "EIO"), ("openat", "EMFILE")];

/// A db with three tasks that are due: one that succeeds, one that may start only once, one that fails first.
fn db() -> TestDb {
    let db = TestDb::new();
    let client = db.client();
    client.add(probe(&db, "fine", "echo fine")).unwrap();
    client.add(probe(&db, "once", "true").at_most_once()).unwrap();
    client.add(probe(&db, "second-try", "test $DULY_ATTEMPT -gt 1")).unwrap();
    db
}

/// All has been done, and what may start only once has not started twice.
fn assert_done(db: &TestDb, what: &str) {
    assert_all_told(db, what);
    let ends = db.rows(
        "SELECT t.name, r.status, r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY 1",
    );
    assert_eq!(ends, ["fine|succeeded|1", "once|succeeded|1", "second-try|succeeded|2"], "{what}");
    assert_eq!(starts(db).len(), 4, "{what}");
}

/// Has the calls of one kind fail one after another. Answers for how many there was something to fail.
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
    assert!(!all(), "{calls}: there is no end of them");
    failed
}

#[test]
fn whichever_write_or_sync_fails_the_work_is_done_and_told() {
    runs_under(&WRITES, 3, &SOME);
}

#[test]
fn whichever_read_or_look_fails_the_work_is_done_and_told() {
    // Those of the start come first.
    runs_under(&READS, 1, &[1, 16, 40, 48, 56]);
}

/// `duly run` under strace. Where it could not start, the next one can; where it could, it has done all there was.
fn runs_under(faults: &[(&str, &str)], kinds: usize, some: &[u32]) {
    if !has_strace() {
        return without("strace", "files that may not grow are tried in its place, in another test");
    }
    let options = ["--until-idle", "--lease", "10m"];
    let (mut refused, mut outlived) = (0, 0);
    for &(calls, error) in &faults[..if all() { faults.len() } else { kinds }] {
        let failed = each(calls, error, some, |what, when| {
            let db = db();
            let log = db.home().join("strace");
            let orders = orders(&db, &log, calls, error, when);
            let orders: Vec<&str> = orders.iter().map(String::as_str).collect();
            let mut first = Sidecar::spawn_within(&db, &options, "strace", &orders);
            let (status, said) = (first.end(), first.log());
            match status.code() {
                Some(0) => {
                    refusals(&said);
                    outlived += usize::from(injected(&log) > 0);
                }
                Some(1 | 4) => {
                    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
                    assert!(errors.len() == 1 && said.ends_with(&format!("{}\n", errors[0])), "{what}: {said}");
                    assert_eq!(starts(&db), [], "{what}: only a start may fail: {said}");
                    refused += 1;
                }
                code => panic!("{what}: exit {code:?}: {said}"),
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
    println!("{refused} starts refused, {outlived} faults outlived");
    assert!(refused > 0 && outlived > 0, "both kinds of places are met");
}

/// `duly add` where there is no file yet: its tables are made whole, or not at all.
#[test]
fn whichever_write_fails_a_new_file_is_whole_or_can_be_made_again() {
    if !has_strace() {
        return without("strace", "not tried");
    }
    // How a call fails makes no difference here.
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
            let orders = orders(&db, &log, calls, error, when);
            let duly = env!("CARGO_BIN_EXE_duly");
            let (code, said) = add(Command::new("strace").args(orders).arg(duly));
            assert!(matches!(code, Some(0 | 1 | 4)), "{what}: exit {code:?}: {said}");
            assert_eq!(code == Some(0), said.is_empty(), "{what}: {said}");
            assert!(said.lines().count() <= 1 && !said.contains("panicked"), "{what}: {said}");
            assert_eq!(add(&mut Command::new(duly)), (Some(0), String::new()), "{what}: the same again");
            assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks"), "task", "{what}");
            db.assert_sound();
            injected(&log) > 0
        });
        println!("{calls}, {error}: {failed} places");
    }
}

/// The same without strace: beyond some size no file may grow, the log first, until the limit is lifted.
#[test]
fn wherever_a_file_may_grow_no_more_the_work_is_done_when_it_may() {
    if !can_limit() {
        return without("prlimit", "not tried");
    }
    let options = ["--until-idle", "--lease", "10m"];
    let mut refused = 0;
    for kilobytes in if all() { (4..100).step_by(4).collect::<Vec<u32>>() } else { vec![8, 36, 44, 52] } {
        let (db, what) = (db(), format!("{kilobytes} KiB"));
        let limit = format!("ulimit -S -f {}; trap '' XFSZ; exec \"$@\"", kilobytes * 2);
        let mut first = Sidecar::spawn_within(&db, &options, "sh", &["-c", &limit, "sh"]);
        eventually("it is done, or stands still", || {
            let log = first.log();
            [REFUSES, "error: ", "scheduler stopped"].iter().any(|word| log.contains(word))
        });
        if first.log().contains(REFUSES) {
            limit_files(first.pid(), None);
            refused += 1;
        }
        let (status, said) = (first.end(), first.log());
        if status.code() != Some(0) {
            assert!(matches!(status.code(), Some(1 | 4)), "{what}: {status}: {said}");
            assert_eq!(starts(&db), [], "{what}: only a start may fail: {said}");
            let mut second = Sidecar::spawn(&db, &options);
            assert_eq!(second.end().code(), Some(0), "{what}: {}", second.log());
        }
        refusals(&said);
        assert_done(&db, &what);
    }
    println!("{refused} limits met at work");
    assert!(refused > 1, "no limit was met");
}
