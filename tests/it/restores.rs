//! A copy that is restored through SQLite while schedulers and clients use the file: nothing of the history before is mistaken for the
//! rows of the copy, no id is given out twice, and what still runs keeps its task from starting.
#![cfg(target_os = "linux")]

mod held;
mod leftover;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Context, Event, NewTask, Outcome, Overlap, RunStatus, Scheduler};

use crate::evidence::tool_works;
use crate::fixtures::{
    NOON, TestDb, advance_and_step, claim, eventually, far_future, held, minutes, overdue, receive, seconds, skip,
    step, succeed, wait_for_status,
};
use crate::sidecar::{Gate, Sidecar, group_size, wait_for_line};

/// Copies a database, or restores a copy, with SQLite's own function for that.
fn sqlite_shell(file: &Path, command: &str) {
    let done = Command::new("sqlite3").args(["-bail", "-cmd", ".timeout 20000"]).arg(file).arg(command).output();
    let done = done.expect("sqlite3");
    assert!(done.status.success() && done.stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

pub(crate) fn back_up(db: &TestDb, name: &str) -> PathBuf {
    let copy = db.home().join(name);
    sqlite_shell(db.file(), &format!(".backup {}", copy.display()));
    copy
}

pub(crate) fn restore(db: &TestDb, copy: &Path) {
    sqlite_shell(db.file(), &format!(".restore {}", copy.display()));
}

/// Whether SQLite's shell is here, which restores.
pub(crate) fn can_restore() -> bool {
    let can = tool_works("sqlite3", &["--version"]);
    if !can {
        skip("no sqlite3");
    }
    can
}

/// Asserts that one event tells of this number of new histories, and that `doctor` finds nothing.
fn assert_restored(db: &TestDb, times: usize) {
    let events: usize = db.number("SELECT count(*) FROM scheduler_events WHERE kind = 'restored'");
    assert_eq!(events, times, "{:#?}", db.rows("SELECT detail FROM scheduler_events WHERE kind = 'restored'"));
    db.assert_sound();
}

#[test]
fn the_end_of_a_command_ends_no_run_of_another_task() {
    if !can_restore() {
        return;
    }
    let (db, client) = TestDb::with_client();
    let (mut gate, home) = (Gate::new(&db, "gate"), db.home().display().to_string());
    // It ignores the request to stop, and fails.
    let line = format!("trap '' TERM; echo $$ >{home}/old; sleep 3; exit 7");
    client.add(manual_shell("old", &line)).unwrap();
    let line = format!("echo $DULY_RUN_ID >>{home}/new; read line <{home}/gate");
    client.add(manual_shell("new", &line).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "3s"]);
    let copy = back_up(&db, "copy.db");
    let before = client.trigger("old").unwrap();
    let group = wait_for_line(&db, "old");
    restore(&db, &copy);
    let run = client.trigger("new").unwrap();
    assert!(run > before, "run {run} after {before}");
    assert_eq!(wait_for_line(&db, "new"), run.to_string());
    eventually("the command of before has ended", || group_size(&group) == 0);
    eventually("what it held is free", || db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'held'") == "0");
    gate.open();
    let ended = wait_for_status(&client, "new", RunStatus::Succeeded);
    assert_eq!((ended.id, ended.attempt), (run, 1));
    assert_eq!(db.lines("new").len(), 1, "it started once");
    assert_eq!(db.ask("SELECT count(*) FROM task_runs"), "1");
    assert!(sidecar.log().contains("the database was restored from a copy"), "{}", sidecar.log());
    sidecar.terminate();
    assert_restored(&db, 1);
    assert_eq!(db.lock_files(), [""; 0], "nothing is left");
}

fn manual_shell(name: &str, line: &str) -> NewTask {
    NewTask::manual(name).handler("command").payload(serde_json::json!({ "argv": ["sh", "-c", line] }))
}

#[test]
fn a_run_that_was_running_in_the_copy_does_not_stay_so() {
    if !can_restore() {
        return;
    }
    let (db, client) = TestDb::with_client();
    let mut gate = Gate::new(&db, "gate");
    let line = format!("test -e {0}/free || read line <{0}/gate", db.home().display());
    let task = NewTask::interval("often", seconds(1)).handler("command");
    let retry = duly::RetryPolicy { backoff: Duration::from_millis(100), ..duly::RetryPolicy::default() };
    client.add(task.payload(serde_json::json!({ "argv": ["sh", "-c", line] })).retry(retry)).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    eventually("it runs", || db.count(RunStatus::Running) == 1);
    let copy = back_up(&db, "copy.db");
    gate.open();
    eventually("it has ended", || db.count(RunStatus::Succeeded) == 1);
    restore(&db, &copy);
    std::fs::write(db.home().join("free"), "").unwrap();
    eventually("it runs on", || db.count(RunStatus::Succeeded) > 2);
    sidecar.terminate();
    assert_restored(&db, 1);
}

/// Two schedulers on one file with one clock, and a copy from before their first run; `None` where nothing can be restored.
fn two(tasks: impl IntoIterator<Item = NewTask>) -> Option<(TestDb, [Stepper; 2], PathBuf)> {
    if !can_restore() {
        return None;
    }
    let db = TestDb::new();
    let first = db.stepper(NOON);
    let second = db.builder(NOON).clock(first.clock()).accept("work").start().expect("a stepper");
    tasks.into_iter().for_each(|task| drop(first.client().add(task).expect("a task")));
    let copy = back_up(&db, "copy.db");
    Some((db, [first, second], copy))
}

/// A task that is due each minute, and runs beside itself.
fn each_minute(name: &str) -> NewTask {
    NewTask::interval(name, minutes(1)).handler("work").overlap(Overlap::Allow)
}

#[test]
fn a_task_that_still_runs_starts_in_no_scheduler_and_others_go_on() {
    let tasks = ["subject", "other"].map(each_minute);
    let keyed = ["holder", "waiter"].map(|name| NewTask::manual(name).handler("work").concurrency_key("shared"));
    let Some((db, [mut first, mut second], copy)) = two(tasks.into_iter().chain(keyed)) else { return };
    first.client().trigger("holder").unwrap();
    let begun = advance_and_step(&mut first, minutes(1));
    assert_eq!(begun.len(), 3);
    begun.iter().for_each(|claim| first.begin(claim));
    let other = begun.iter().find(|claim| claim.task == "other").unwrap();
    succeed(&mut first, other);
    restore(&db, &copy);
    second.client().trigger("waiter").unwrap();
    // The second sees the change first. What the slots show may have ended already.
    assert_eq!(step(&mut second, 0).len(), 0);
    assert_eq!(first.step().unwrap().iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["other"]);
    let names = |stepper: &mut Stepper| {
        let claims = advance_and_step(stepper, minutes(1));
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        claims.iter().map(|claim| claim.task.clone()).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(names(&mut second), ["other"]);
    }
    let mut left: Vec<_> = begun.iter().filter(|claim| claim.task != "other").cloned().collect();
    assert_eq!(first.stopped().len(), 2, "they are asked to stop");
    // Their outcomes are not recorded.
    left.sort_by_key(|claim| claim.task.clone());
    for (claim, free) in left.iter().zip(["waiter", "subject"]) {
        let at_once: Vec<_> = succeed(&mut first, claim).iter().map(|claim| claim.task.clone()).collect();
        let started: Vec<_> = [at_once, names(&mut first), names(&mut second)].concat();
        assert!(started.iter().any(|task| task == free), "{free}: {started:?}");
    }
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'superseded'"), "0");
    assert_restored(&db, 1);
    drop((first, second));
}

#[test]
fn each_scheduler_that_finds_a_restore_alone_notices_the_same_one() {
    // Without a heartbeat since: the stamp is the same, and what was claimed and ended shows it.
    for ended in [false, true] {
        let Some((db, [mut first, mut second], copy)) = two([overdue("subject").handler("work")]) else { return };
        let claim = claim(&mut first);
        first.begin(&claim);
        if ended {
            succeed(&mut first, &claim);
        }
        restore(&db, &copy);
        let owners = [first.owner().to_owned(), second.owner().to_owned()];
        second.clock().advance(seconds(1));
        let again = [first.step().unwrap(), second.step().unwrap()].concat();
        assert!(first.owner() != owners[0] && second.owner() != owners[1], "both go on under another id");
        let mut freed = Vec::new();
        if !ended {
            assert!(again.is_empty(), "it runs");
            freed = succeed(&mut first, &claim);
        }
        second.clock().advance(seconds(1));
        let again = [again, freed, first.step().unwrap(), second.step().unwrap()].concat();
        let [again] = &again[..] else { panic!("{again:?}") };
        assert!(again.run_id > claim.run_id && again.attempt == 1);
        assert_restored(&db, 1);
    }
}

/// Its process knows it, although no turn has seen it.
#[test]
fn an_id_that_a_client_gave_out_last_is_not_given_out_again() {
    if !can_restore() {
        return;
    }
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::manual("subject").handler("work")).unwrap();
    stepper.step().unwrap();
    let copy = back_up(&db, "copy.db");
    let lost = stepper.client().trigger("subject").unwrap();
    restore(&db, &copy);
    let run = db.client().trigger("subject").unwrap();
    assert!(run > lost, "run {run} after {lost}");
    stepper.step().unwrap();
    assert_restored(&db, 1);
}

/// The first task is added by a transaction, the next one by one statement.
#[test]
fn an_id_that_one_statement_gave_out_is_not_given_out_again() {
    if !can_restore() {
        return;
    }
    let (db, client) = TestDb::with_client();
    client.add(far_future("first")).unwrap();
    let copy = back_up(&db, "copy.db");
    client.add(far_future("lost")).unwrap();
    let lost: i64 = db.number("SELECT max(id) FROM scheduled_tasks");
    restore(&db, &copy);
    db.client().add(far_future("second")).unwrap();
    let id: i64 = db.number("SELECT max(id) FROM scheduled_tasks");
    assert!(id > lost, "task {id} after {lost}");
    db.assert_sound();
}

#[test]
fn a_copy_made_during_an_attempt_loses_the_attempt_and_nothing_else() {
    if !can_restore() {
        return;
    }
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(overdue("subject").handler("work")).unwrap();
    client.add(overdue("once").handler("work").at_most_once()).unwrap();
    let claims = step(&mut stepper, 2);
    claims.iter().for_each(|claim| stepper.begin(claim));
    let copy = back_up(&db, "copy.db");
    claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
    stepper.step().unwrap();
    assert_eq!(db.count(RunStatus::Succeeded), 2);
    restore(&db, &copy);
    stepper.clock().advance(seconds(1));
    stepper.step().unwrap();
    stepper.step().unwrap();
    assert_eq!(db.states(), ["subject|failed|1", "once|dead|1"]);
    let error = "SELECT DISTINCT error FROM task_attempts WHERE outcome = 'lost'";
    assert_eq!(db.ask(error), "the database was restored from a copy that was made while it ran");
    let again = advance_and_step(&mut stepper, minutes(1));
    assert_eq!(again.iter().map(|claim| (claim.run_id, claim.attempt)).collect::<Vec<_>>(), [(claims[0].run_id, 2)]);
    succeed(&mut stepper, &again[0]);
    assert_restored(&db, 1);
}

#[test]
fn a_closure_of_before_can_neither_finish_nor_perform_an_effect() {
    if !can_restore() {
        return;
    }
    let db = TestDb::new();
    let (begun, has_begun) = crossbeam_channel::bounded(4);
    let (go, goes) = crossbeam_channel::bounded::<()>(4);
    let (said, answers) = crossbeam_channel::bounded(4);
    let work = move |run: &Context| {
        // Opens the connection before the restore.
        let early = run.effect("early", || Ok(1)).is_ok();
        begun.send(run.run_id()).unwrap();
        held(&goes).unwrap();
        let late = run.effect("late", || Ok(2)).map_err(|error| error.to_string());
        let finished = run.finish(|_| Ok(())).is_ok();
        said.send((early, late, finished)).unwrap();
        Ok::<_, duly::Error>(())
    };
    let scheduler =
        Scheduler::builder(db.file()).poll(Duration::from_millis(20)).handler("work", work).start().unwrap();
    scheduler.add(NewTask::manual("subject").handler("work")).unwrap();
    let before = back_up(&db, "copy.db");
    scheduler.trigger("subject").unwrap();
    receive(&has_begun, "its begin");
    restore(&db, &before);
    eventually("it is noticed", || db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'restored'") == "1");
    go.send(()).unwrap();
    let (early, late, finished) = receive(&answers, "its answer");
    assert!(early && !finished && late.clone().is_err_and(|error| error.contains("restored from a copy")), "{late:?}");
    let run = scheduler.trigger("subject").unwrap();
    assert_eq!(receive(&has_begun, "the begin of the next"), run);
    go.send(()).unwrap();
    assert_eq!(receive(&answers, "the answer of the next"), (true, Ok(2), true));
    wait_for_status(scheduler.client(), "subject", RunStatus::Succeeded);
    scheduler.shutdown(seconds(5)).unwrap();
    assert_eq!(db.ask("SELECT group_concat(run_id) FROM task_effects"), format!("{run},{run}"));
    assert_restored(&db, 1);
}

#[test]
fn what_is_no_restore_begins_no_history() {
    let (db, mut stepper) = TestDb::with_stepper();
    let client = stepper.client().clone();
    client.add(overdue("subject").handler("work")).unwrap();
    let claim = claim(&mut stepper);
    stepper.begin(&claim);
    let history = db.ask("SELECT value FROM scheduler_meta WHERE key = 'history'");
    let owner = stepper.owner().to_owned();
    for statement in ["VACUUM", "CREATE TABLE notes (text)", "ANALYZE", "DROP TABLE notes"] {
        db.plain().execute_batch(statement).unwrap();
        client.add(far_future(&format!("after-{}", statement.len())).handler("work")).unwrap();
        advance_and_step(&mut stepper, seconds(30));
    }
    assert_eq!(stepper.owner(), owner);
    succeed(&mut stepper, &claim);
    assert_eq!(db.ask("SELECT value FROM scheduler_meta WHERE key = 'history'"), history);
    assert_restored(&db, 0);
    // A database beside which are the lock files and the record of another one, which was at its path before.
    let other = TestDb::new();
    run("cp", &["-r", db.lock_folder().to_str().unwrap(), other.lock_folder().to_str().unwrap()]);
    stepper.crash();
    let (mut stepper, events) = other.stepper_with_events(NOON);
    stepper.client().add(overdue("new").handler("work")).unwrap();
    assert_eq!(stepper.step().unwrap()[0].run_id, 1);
    assert!(!events.try_iter().any(|event| matches!(event, Event::Restored { .. })));
    assert_restored(&other, 0);
}

/// Runs a program, which must succeed.
fn run(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().expect(program).success(), "{program} {arguments:?}");
}

/// Makes `tick`, and enough tasks that the log holds only a part of the pages.
fn with_tasks(db: &TestDb) -> duly::Client {
    let client = db.client();
    client
        .add(NewTask::interval("tick", seconds(1)).handler("command").payload(serde_json::json!({ "argv": ["true"] })))
        .unwrap();
    let payload = serde_json::json!({ "argv": ["true"], "stdin": "z".repeat(3000) });
    client.add_all((0..150).map(|at| NewTask::manual(format!("m{at}")).handler("command").payload(&payload))).unwrap();
    client
}

/// Makes a copy, and then changes that only the log holds.
fn copied(db: &TestDb, client: &duly::Client) -> PathBuf {
    db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let copy = db.home().join("copy.db");
    client.backup(&copy).unwrap();
    (0..150).step_by(9).for_each(|at| client.remove(&format!("m{at}")).unwrap());
    client.add(NewTask::manual("after-the-copy").handler("command")).unwrap();
    copy
}

/// A killed scheduler has left a log with changes that only it holds. Returns the database, and a copy that was made before them.
fn with_a_log_that_is_left() -> (TestDb, PathBuf) {
    let db = TestDb::new();
    let client = with_tasks(&db);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let copy = copied(&db, &client);
    drop(client);
    sidecar.kill();
    (db, copy)
}

/// Starts a scheduler on a restored copy, and asserts that the copy is what it has.
fn assert_starts_on_the_copy(db: &TestDb) {
    let mut sidecar = Sidecar::start(db, &["--lease", "1s"]);
    let runs = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
    let before = db.number::<usize>(runs);
    eventually("it runs", || db.number::<usize>(runs) > before);
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE name LIKE 'm%'"), "150");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'after-the-copy'"), "0");
    assert_eq!(db.ask("PRAGMA integrity_check"), "ok");
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn a_copy_that_is_moved_over_the_file_of_a_living_scheduler_is_used_at_the_next_start() {
    let db = TestDb::new();
    let client = with_tasks(&db);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let copy = copied(&db, &client);
    drop(client);
    std::fs::rename(&copy, db.file()).unwrap();
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    let says =
        "it was replaced by another file while it was open, and its log was renamed agent.db-wal-aside-1: start again";
    assert!(sidecar.log().lines().last().is_some_and(|line| line.ends_with(says)), "{}", sidecar.log());
    // As it says.
    assert_starts_on_the_copy(&db);
    assert!(db.home().join("agent.db-wal-aside-1").exists());
}

#[test]
fn a_log_that_is_left_is_applied_to_its_own_file() {
    let (db, _) = with_a_log_that_is_left();
    assert!(std::fs::metadata(db.home().join("agent.db-wal")).unwrap().len() > 0);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'after-the-copy'"), "1");
    sidecar.terminate();
    assert!(!db.home().join("agent.db-wal-aside-1").exists());
    assert_restored(&db, 0);
}
