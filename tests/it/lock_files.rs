//! Lock files that are removed, replaced or overwritten while their owner lives, and a folder of lock files that becomes unsafe:
//! no owner counts as dead because of that, nothing starts that could not be recovered, and no attempt is used up.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{Context, Error, NewTask, RunStatus, Scheduler};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, eventually, once, overdue, patience, seconds, set_mode, wait_for_status,
};
use crate::run_transitions::{Pair, as_is};
use crate::sidecar::{Sidecar, shell, signal, wait_for_line, wait_for_process_record, with_gate};

fn task(name: &str) -> NewTask {
    once(name).at_most_once()
}

/// The status, attempts and forgiven attempts of each run.
fn runs(db: &TestDb) -> Vec<String> {
    db.runs().iter().map(|run| format!("{}|{}|{}", run.status, run.attempt, run.forgiven)).collect()
}

/// Returns a scheduler that has begun a run.
fn with_begun_run() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").poll(seconds(1)).lease(seconds(60)).start().unwrap();
    first.client().add(task("first")).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    (db, first)
}

fn second_scheduler(db: &TestDb, first: &Stepper) -> Stepper {
    db.builder(NOON).clock(first.clock()).accept("work").poll(seconds(1)).lease(seconds(60)).start().unwrap()
}

// --------------------------------------------------------------------------------------------------------- unsafe folders --

#[test]
fn nothing_is_claimed_while_other_users_may_write_the_folder() {
    let (db, mut first) = with_begun_run();
    first.client().add(task("second")).unwrap();
    set_mode(&db.lock_folder(), 0o777);
    for _ in 0..3 {
        assert!(advance_and_step(&mut first, seconds(1)).is_empty());
    }
    assert_eq!(runs(&db), ["running|1|0", "queued|0|0"], "the due run is queued");
    set_mode(&db.lock_folder(), 0o700);
    assert_eq!(advance_and_step(&mut first, seconds(1)).len(), 1);
    assert_eq!(runs(&db), ["running|1|0", "running|1|0"]);
}

#[test]
fn a_run_claimed_before_the_folder_became_unsafe_is_released() {
    let db = TestDb::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = calls.clone();
    // The poller checks the folder only at the start.
    let scheduler = Scheduler::builder(db.file())
        .poll(seconds(3600))
        .handler("work", move |_: &Context| {
            counts.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    scheduler.add(overdue("before").at_most_once()).unwrap();
    wait_for_status(&scheduler, "before", RunStatus::Succeeded);
    // A worker checks the folder again after 100 ms of the system: no event announces it.
    let began = Instant::now();
    eventually("the check is outdated", || began.elapsed() > Duration::from_millis(200));
    set_mode(&db.lock_folder(), 0o777);
    scheduler.add(overdue("after").at_most_once()).unwrap();
    eventually("it is released", || runs(&db).get(1).is_some_and(|run| !run.ends_with("|0") || !run.contains("ing|")));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    set_mode(&db.lock_folder(), 0o700);
    wait_for_status(&scheduler, "after", RunStatus::Succeeded);
    let run = db.run(2);
    assert_eq!(run.attempt - run.forgiven, 1);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[test]
fn an_at_most_once_command_waits_for_a_safe_folder() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &[]);
    set_mode(&db.lock_folder(), 0o777);
    client.add(shell("post", "echo passed").at_most_once()).unwrap();
    let says = "the lock file of this scheduler cannot be kept, so it starts nothing: other users may write ";
    eventually("it is reported", || sidecar.log().contains(says));
    set_mode(&db.lock_folder(), 0o700);
    let run = wait_for_status(&client, "post", RunStatus::Succeeded);
    assert_eq!(run.output.as_deref(), Some("passed\n"));
    // A removed folder is made again.
    std::fs::remove_dir_all(db.lock_folder()).unwrap();
    client.add(shell("again", "echo passed").at_most_once()).unwrap();
    wait_for_status(&client, "again", RunStatus::Succeeded);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'released'"), "0");
    assert_eq!(sidecar.log().matches(says).count(), 1, "once: {}", sidecar.log());
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn what_is_no_lock_file_stops_and_fills_no_scheduler() {
    type Replace = fn(&std::path::Path);
    let replacements: [Replace; 3] = [
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        |path| std::fs::File::create(path).unwrap().set_len(8 << 30).unwrap(),
    ];
    for replace in replacements {
        let (db, client, mut gate) = with_gate();
        let mut first = Sidecar::start(&db, &["--lease", "3s"]);
        client.add(shell("long", &format!("echo up >{0}/up; read line <{0}/gate", db.home().display()))).unwrap();
        wait_for_line(&db, "up");
        let lock = db.lock_folder().join(db.ask("SELECT id FROM scheduler_instances"));
        first.kill_with_guard();
        std::fs::remove_file(&lock).unwrap();
        replace(&lock);
        // Far more than it needs, and less than the file has.
        let mut second = Sidecar::spawn_within(&db, &["--lease", "3s"], "prlimit", &["--as=4000000000"]);
        client.add(shell("other", "true")).unwrap();
        wait_for_status(&client, "other", RunStatus::Succeeded);
        gate.open();
        wait_for_status(&client, "long", RunStatus::Failed);
        second.terminate();
    }
}

// ----------------------------------------------------------------------------------------------------------------- copies --

#[test]
fn a_copy_of_a_lock_file_in_its_place_is_no_evidence_of_death() {
    for dies_before_it_is_seen in [false, true] {
        let (db, mut first) = with_begun_run();
        let (lock, backup) = (db.lock_file(&first), db.home().join("backup"));
        std::fs::copy(&lock, &backup).unwrap();
        std::fs::remove_file(&lock).unwrap();
        std::fs::copy(&backup, &lock).unwrap();
        let mut second = second_scheduler(&db, &first);
        second.step().unwrap();
        assert_eq!(runs(&db), ["running|1|0"]);
        let is_alive = |of: &Stepper, owner: &str| {
            of.client().status().unwrap().instances.into_iter().find(|one| one.id == owner).unwrap().alive
        };
        assert_eq!(is_alive(&second, first.owner()), None);
        let clock = first.clock().clone();
        let mut waits = seconds(60);
        if !dies_before_it_is_seen {
            clock.advance(seconds(1));
            first.step().unwrap();
            assert_eq!(is_alive(&second, first.owner()), Some(true), "the owner has created its own again");
            waits = seconds(1);
        }
        first.crash();
        clock.advance(waits - Duration::from_millis(500));
        second.step().unwrap();
        assert_eq!(runs(&db), [if dies_before_it_is_seen { "running|1|0" } else { "dead|1|0" }]);
        clock.advance(seconds(1));
        second.step().unwrap();
        assert_eq!(runs(&db), ["dead|1|0"]);
    }
}

#[test]
fn in_a_copy_of_the_folder_the_original_owners_count_as_dead_at_once() {
    let (db, mut first) = with_begun_run();
    first.client().add(task("ahead")).unwrap();
    assert_eq!(first.claim(0).unwrap().len(), 1);
    let other = TestDb::new();
    for name in ["agent.db", "agent.db-wal", "agent.db-owners"] {
        let copied = Command::new("cp").arg("-a").arg(db.home().join(name)).arg(other.home()).status().unwrap();
        assert!(copied.success(), "{name}");
    }
    let mut second = second_scheduler(&other, &first);
    assert_eq!(second.step().unwrap().len(), 0);
    // File and database were not copied at the same moment: an attempt without a slot is unknown and counts as begun.
    assert_eq!(runs(&other), ["dead|1|0", "dead|1|0"]);
    assert_eq!(runs(&db), ["running|1|0", "running|1|0"]);
    first.step().unwrap();
}

#[test]
fn a_lock_file_that_is_overwritten_is_written_again() {
    let (db, mut first) = with_begun_run();
    let lock = db.lock_file(&first);
    let older = std::fs::read(&lock).unwrap();
    first.client().add(task("second")).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    // The content from before the second run began.
    std::fs::write(&lock, &older).unwrap();
    // At the first check the slot of the second run may not be written yet.
    for _ in 0..2 {
        advance_and_step(&mut first, seconds(1));
    }
    first.crash();
    db.stepper(NOON).step().unwrap();
    assert_eq!(runs(&db), ["dead|1|0", "dead|1|0"], "both had begun");
    db.assert_sound();
}

// ----------------------------------------------------------------------------------------------------------- cancel --gone --

#[test]
fn a_command_is_not_declared_gone_while_its_scheduler_is_within_its_lease() {
    let pair = Pair::running(as_is);
    let (db, client, clock) = (&pair.db, pair.stepper.client(), pair.stepper.clock());
    let run = pair.subject.run_id;
    std::fs::remove_file(db.lock_file(&pair.stepper)).unwrap();
    let refused = || client.declare_gone(run).map_err(|error| error.to_string());
    let reason = "its scheduler has no lock file that can be read, and its lease is not over: wait for that";
    let expected = Err(format!("cannot declare the command of run {run} gone: {reason}"));
    assert_eq!(refused(), expected);
    assert_eq!(client.declare_all_gone("subject").unwrap(), 0);
    clock.advance(Duration::from_millis(59_999));
    assert_eq!(refused(), expected);
    clock.advance(Duration::from_millis(1));
    assert_eq!(refused(), Ok(()));
    // Evidence that the owner is dead, or no evidence that it is alive.
    for edit in ["boot_id = 'another'", "seen_at = seen_at + 3600000", "stopped_at = seen_at"] {
        let pair = Pair::running(as_is);
        std::fs::remove_file(pair.db.lock_file(&pair.stepper)).unwrap();
        pair.db.plain().execute(&format!("UPDATE scheduler_instances SET {edit}"), []).unwrap();
        assert_eq!(
            pair.stepper.client().declare_gone(pair.subject.run_id).map_err(|e| e.to_string()),
            Ok(()),
            "{edit}"
        );
    }
}

// --------------------------------------------------------------------------------------------------------- recovering owner --

#[test]
fn check_names_the_stopped_scheduler_that_must_recover_a_run() {
    let (db, client, _gate) = with_gate();
    let home = db.home().display();
    let line = format!("trap '' TERM; echo $$ >{home}/group; read line <{home}/gate");
    client.add(shell("post", &line).at_most_once()).unwrap();
    let mut first = Sidecar::start(&db, &["--lease", "1s"]);
    let group = wait_for_line(&db, "group");
    wait_for_process_record(&db);
    let mut successor = Sidecar::start(&db, &["--lease", "1s"]);
    first.kill_with_guard();
    eventually("it recovers the run", || successor.log().contains("ending the orphan command of a dead scheduler"));
    successor.signal("STOP");
    let check = || String::from_utf8(db.duly(&["check"]).output().unwrap().stdout).unwrap();
    let pid = successor.pid();
    let expected = [
        "stuck: run 1 of post waits: its scheduler is dead, and the scheduler that recovers its runs is alive and makes no \
         progress (pid "
            .to_owned(),
        format!(": let the process with pid {pid} go on, or end it"),
    ];
    eventually("check names it", || expected.iter().all(|part| check().contains(part)));
    successor.signal("CONT");
    signal("KILL", &format!("-{group}"));
    wait_for_status(&client, "post", RunStatus::Dead);
    successor.terminate();
    db.assert_sound();
}

// ----------------------------------------------------------------------------------------------------------- abandoned files --

#[test]
fn an_idle_scheduler_that_died_without_a_lock_file_is_stopped_after_its_lease() {
    let db = TestDb::new();
    let start = |clock: Option<&duly::testing::ManualClock>| {
        let builder = db.builder(NOON).accept("work").poll(seconds(1)).lease(seconds(60));
        clock.map_or(db.builder(NOON).accept("work").lease(seconds(60)), |clock| builder.clock(clock)).start().unwrap()
    };
    let mut observer = start(None);
    observer.step().unwrap();
    let clock = observer.clock().clone();
    let (mut idle, mut lives) = (start(Some(&clock)), start(Some(&clock)));
    for one in [&mut idle, &mut lives] {
        one.step().unwrap();
        std::fs::remove_file(db.lock_file(one)).unwrap();
    }
    let (dead, alive) = (idle.owner().to_owned(), lives.owner().to_owned());
    idle.crash();
    let stopped =
        |owner: &str| db.ask(&format!("SELECT stopped_at IS NOT NULL FROM scheduler_instances WHERE id = '{owner}'"));
    let mut elapsed = 0;
    while stopped(&dead) == "0" && elapsed < 200 {
        clock.advance(seconds(20));
        elapsed += 20;
        lives.step().unwrap();
        // A live scheduler without its file is known by its heartbeats.
        std::fs::remove_file(db.lock_file(&lives)).unwrap();
        observer.step().unwrap();
    }
    assert_eq!(
        (stopped(&dead).as_str(), stopped(&alive).as_str(), elapsed),
        ("1", "0", 80),
        "after 60 s, at a heartbeat"
    );
    assert_eq!(db.rows("SELECT detail FROM scheduler_events WHERE kind = 'owner_lost'"), [dead]);
    db.assert_sound();
}

#[test]
fn files_of_dead_schedulers_are_removed_at_the_next_start() {
    let db = TestDb::new();
    drop(db.stepper(NOON));
    let folder = db.lock_folder();
    let long_ago = std::time::SystemTime::now() - seconds(2 * 3600);
    let make = |name: &str, is_old: bool| {
        let file = std::fs::File::create_new(folder.join(name)).unwrap();
        if is_old {
            file.set_modified(long_ago).unwrap();
        }
        file
    };
    let [old, young, held] = ["1d", "2d", "3d"].map(|id| format!("{id}-owner.new"));
    drop((make(&old, true), make(&young, false)));
    let locked = make(&held, true);
    locked.lock().unwrap();
    // The payload of a finished attempt, and that of an attempt whose command holds its input.
    drop((make("run-8-1.payload", false), make("run-9-1.payload", false)));
    let input = make("run-9-1", false);
    input.lock().unwrap();
    let scheduler = Scheduler::builder(db.file()).start().unwrap();
    let exists = |name: &str| folder.join(name).exists();
    assert_eq!([&old, &young, &held].map(|name| exists(name)), [false, true, true]);
    assert_eq!(["run-8-1.payload", "run-9-1.payload", "run-9-1"].map(exists), [false, true, true]);
    drop(scheduler);
}

/// The scheduler that recorded its end died before it removed the file.
#[test]
fn the_lock_file_of_an_owner_that_is_recorded_as_stopped_is_removed_at_the_next_start() {
    let (db, first) = with_begun_run();
    let ended = db.lock_folder().join("ended");
    drop(first);
    db.plain()
        .execute_batch(
            "INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
             SELECT 'ended', host, pid, version, workers, lease_ms, started_at, seen_at, seen_at FROM scheduler_instances;
             UPDATE scheduler_instances SET stopped_at = seen_at",
        )
        .unwrap();
    std::fs::write(&ended, "").unwrap();
    let second = Scheduler::builder(db.file()).handler("work", |_: &Context| Ok::<_, Error>(())).start().unwrap();
    assert!(!ended.exists());
    // The lock of an owner with a running run is the proof by which the run is recovered, long before its lease ends.
    wait_for_status(&second, "first", RunStatus::Dead);
}

/// The file of a guard that was still at work when the runs of its scheduler were recovered.
#[test]
fn the_file_of_a_guard_of_an_owner_that_has_ended_is_removed_by_a_full_turn() {
    let (db, mut first) = with_begun_run();
    let (of_ended, of_registered) = (db.lock_folder().join("ended.guard"), db.lock_folder().join("second.guard"));
    std::fs::write(&of_ended, "").unwrap();
    std::fs::write(&of_registered, "").unwrap();
    db.plain()
        .execute_batch(
            "INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at)
             SELECT 'second', host, pid, version, workers, lease_ms, started_at, seen_at FROM scheduler_instances",
        )
        .expect("an owner that has not stopped");
    advance_and_step(&mut first, seconds(20));
    assert_eq!((of_ended.exists(), of_registered.exists()), (false, true));
}
