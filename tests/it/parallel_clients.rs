//! Twenty programs at once that trigger, cancel, pause, resume and edit the same few tasks, while a scheduler runs them.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{NewTask, RetryPolicy};
use rusqlite::Connection;

use crate::fixtures::{TestDb, eventually, number, seconds};
use crate::sidecar::Sidecar;

/// Number of changers that use the program, and of those that use SQL.
const PROGRAMS: usize = 16;
const WRITERS: usize = 4;

/// Changes of each of them, unless `DULY_ROUNDS` is set.
const CHANGES: usize = 20;
const TASKS: usize = 4;

/// Documented errors of a request that comes at the wrong moment.
const DOCUMENTED: [&str; 2] = [": it is over: ", "there is no run "];

/// A task whose command records its start and end, and whether another run of its task is running.
fn probe(db: &TestDb) -> String {
    let home = db.home().display();
    format!(
        "me=\"$DULY_RUN_ID $DULY_ATTEMPT\"; exec 9>>{home}/lock-$DULY_TASK
         flock -n 9 || echo \"overlap $me\" >>{home}/log
         echo \"start $me\" >>{home}/log; sleep 0.01; echo \"end $me\" >>{home}/log"
    )
}

/// Makes one change with the program. Returns its error unless it is documented.
fn change_by_program(db: &TestDb, random: &mut fastrand::Rng) -> Option<String> {
    let name = format!("task-{}", random.usize(..TASKS));
    let every = ["1s", "2s", "3s"][random.usize(..3)];
    let line = probe(db);
    let edit = ["add", &name, "--replace", "--every", every, "--max-attempts", "3", "--", "sh", "-c", &line];
    let run = random.u8(1..40).to_string();
    let words: &[&str] = match random.u8(..6) {
        0 => &["trigger", &name],
        1 => &["cancel", &name],
        2 => &["pause", &name],
        3 => &["resume", &name],
        4 => &["cancel", &run],
        _ => &edit,
    };
    let done = db.duly(words).output().expect("duly");
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    let expected = match done.status.code() {
        Some(0) => output.is_empty(),
        Some(1) => DOCUMENTED.iter().any(|words| output.contains(words)),
        _ => false,
    };
    (!expected).then(|| format!("{words:?}: {}: {output}", done.status))
}

/// Makes one change by SQL that schema.sql allows.
fn change_by_sql(plain: &Connection, random: &mut fastrand::Rng) -> Option<String> {
    let change = match random.u8(..5) {
        0 => "UPDATE scheduled_tasks SET status = 'paused' WHERE id = ?1 AND status = 'active'",
        1 => "UPDATE scheduled_tasks SET status = 'active' WHERE id = ?1 AND status = 'paused'",
        2 => {
            "UPDATE scheduled_tasks SET next_run = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) WHERE id = ?1"
        }
        3 => {
            "UPDATE task_runs SET cancel_requested = 1
               WHERE task_id = ?1 AND (status = 'queued' OR status = 'running' OR status = 'failed')"
        }
        _ => "UPDATE scheduled_tasks SET schedule_value = '2s', priority = (priority + 1) % 4 WHERE id = ?1",
    };
    plain.execute(change, [random.i64(1..=TASKS as i64)]).err().map(|error| format!("{change}: {error}"))
}

#[test]
fn parallel_changes_break_no_rule_and_start_no_attempt_twice() {
    let (db, client) = TestDb::with_client();
    for task in 0..TASKS {
        let payload = serde_json::json!({ "argv": ["sh", "-c", probe(&db)] });
        let task = NewTask::interval(format!("task-{task}"), seconds(1)).handler("command").payload(payload);
        client.add(task.retry(RetryPolicy { max_attempts: 3, ..RetryPolicy::default() })).expect("a task");
    }
    let mut sidecar = Sidecar::start(&db, &["--workers", "8"]);
    let changes = number("DULY_ROUNDS", CHANGES);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let errors: Vec<String> = std::thread::scope(|scope| {
        let db = &db;
        let changers = (0..PROGRAMS + WRITERS).map(|number| {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
                let plain = db.plain();
                plain.busy_timeout(Duration::from_secs(30)).expect("patience");
                let one = |random: &mut fastrand::Rng| {
                    if number < PROGRAMS { change_by_program(db, random) } else { change_by_sql(&plain, random) }
                };
                (0..changes).filter_map(|_| one(&mut random)).collect::<Vec<_>>()
            })
        });
        let changers: Vec<_> = changers.collect();
        changers.into_iter().flat_map(|changer| changer.join().expect("no panic")).collect()
    });
    // SQLite admits writers in no order: on a slow disk one may wait the whole five seconds and fail.
    let (locked, others): (Vec<_>, Vec<_>) = errors.iter().partition(|text| text.contains("database is locked"));
    assert!(others.is_empty(), "{others:#?}");
    assert!(locked.len() <= 1 + changes * PROGRAMS / 100, "{locked:#?}");

    for task in 0..TASKS {
        client.pause(&format!("task-{task}")).expect("a pause");
    }
    // Runs of paused tasks wait; no other run is left.
    let unfinished = "SELECT count(*) FROM task_runs
                       WHERE status IN ('queued', 'running', 'failed') AND blocked IS NOT 'paused'";
    eventually("nothing is left to do", || db.ask(unfinished) == "0");
    sidecar.terminate();
    db.assert_sound();
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'set_aside' OR kind = 'invalid'"), "0");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE status <> 'paused'"), "0");
    // The scheduler may wait in vain as rarely as a program.
    let log = sidecar.log();
    let refused = log.lines().filter(|line| line.contains("cannot be written"));
    let (locked, others): (Vec<_>, Vec<_>) = refused.partition(|line| line.contains(": database is locked;"));
    assert!(others.is_empty() && locked.len() <= 1 + changes / 100, "{log}");

    let text = std::fs::read_to_string(db.home().join("log")).expect("what the commands wrote");
    assert!(!text.contains("overlap"), "two runs of a task at once");
    let starts: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("start ")).collect();
    let once: BTreeSet<&str> = starts.iter().copied().collect();
    assert_eq!(once.len(), starts.len(), "an attempt was begun twice");
    let recorded = db.rows(
        "SELECT id || ' ' || attempt FROM task_runs WHERE status = 'succeeded'
         UNION SELECT run_id || ' ' || attempt FROM task_attempts WHERE outcome <> 'released'",
    );
    let recorded: BTreeSet<&str> = recorded.iter().map(String::as_str).collect();
    let unrecorded: Vec<_> = once.difference(&recorded).collect();
    assert!(unrecorded.is_empty(), "begun and not recorded: {unrecorded:?}");
    assert_eq!(
        db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'cancelled' AND outcome <> 'released'"),
        "0"
    );
    println!("{} starts, {} of them cancelled", starts.len(), db.ask("SELECT count(*) FROM task_attempts"));
    assert!(starts.len() > TASKS, "too few starts");
}
