//! Lock files that are removed, replaced or overwritten while their owner lives, and a folder of lock files that becomes unsafe:
//! no owner counts as dead for that, nothing starts that could not be recovered, and no attempt is spent.
#![cfg(target_os = "linux")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{Context, Error, NewTask, RunStatus, Scheduler};

use crate::fixtures::{TestDb, at, eventually, seconds};
use crate::run_transitions::{Pair, as_is};
use crate::sidecar::{Gate, Sidecar, shell, signal, stands, told};

const START: &str = "2027-03-14T12:00:00Z";

fn once(name: &str) -> NewTask {
    NewTask::once(name, at(START)).handler("work").at_most_once()
}

fn owners(db: &TestDb) -> PathBuf {
    db.home().join("agent.db-owners")
}

fn lock_file(db: &TestDb, stepper: &Stepper) -> PathBuf {
    owners(db).join(stepper.owner())
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Each run with its status, its attempts and how many of them are forgiven.
fn runs(db: &TestDb) -> Vec<String> {
    db.rows("SELECT status, attempt, forgiven FROM task_runs ORDER BY id")
}

/// A scheduler that has begun a run.
fn at_work() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut first = db.builder(START).accept("work").poll(seconds(1)).lease(seconds(60)).start().unwrap();
    first.client().add(once("first")).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    (db, first)
}

fn beside(db: &TestDb, first: &Stepper) -> Stepper {
    db.builder(START).clock(first.clock()).accept("work").poll(seconds(1)).lease(seconds(60)).start().unwrap()
}

// --------------------------------------------------------------------------------------------------------- unsafe folders --

#[test]
fn nothing_is_claimed_while_other_users_may_write_the_folder() {
    let (db, mut first) = at_work();
    first.client().add(once("second")).unwrap();
    set_mode(&owners(&db), 0o777);
    for _ in 0..3 {
        first.clock().advance(seconds(1));
        assert!(first.step().unwrap().is_empty());
    }
    assert_eq!(runs(&db), ["running|1|0", "queued|0|0"], "what is due is queued");
    set_mode(&owners(&db), 0o700);
    first.clock().advance(seconds(1));
    assert_eq!(first.step().unwrap().len(), 1);
    assert_eq!(runs(&db), ["running|1|0", "running|1|0"]);
}

#[test]
fn what_was_claimed_before_that_was_seen_is_given_back() {
    let db = TestDb::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = calls.clone();
    // It looks at the folder once.
    let scheduler = Scheduler::builder(db.file())
        .poll(seconds(3600))
        .handler("work", move |_: &Context| {
            counts.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    let past = |name: &str| NewTask::once(name, at("2020-01-01T00:00:00Z")).handler("work").at_most_once();
    scheduler.add(past("before")).unwrap();
    stands(&scheduler, "before", RunStatus::Succeeded);
    // A worker looks at the folder again after 100 ms.
    let began = Instant::now();
    eventually("it looks again", || began.elapsed() > Duration::from_millis(200));
    set_mode(&owners(&db), 0o777);
    scheduler.add(past("after")).unwrap();
    eventually("it is given back", || {
        runs(&db).get(1).is_some_and(|run| !run.ends_with("|0") || !run.contains("ing|"))
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    set_mode(&owners(&db), 0o700);
    stands(&scheduler, "after", RunStatus::Succeeded);
    assert_eq!(db.ask("SELECT attempt - forgiven FROM task_runs WHERE id = 2"), "1");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(scheduler.shutdown(seconds(30)).unwrap().unfinished, 0);
}

#[test]
fn a_command_that_may_start_only_once_waits_for_a_safe_folder() {
    let db = TestDb::new();
    let client = db.client();
    let mut sidecar = Sidecar::start(&db, &[]);
    set_mode(&owners(&db), 0o777);
    client.add(shell("post", "echo passed").at_most_once()).unwrap();
    let says = "the lock file of this scheduler cannot be kept, so it starts nothing: other users may write ";
    eventually("it is reported", || sidecar.log().contains(says));
    set_mode(&owners(&db), 0o700);
    let run = stands(&client, "post", RunStatus::Succeeded);
    assert_eq!(run.output.as_deref(), Some("passed\n"));
    // A folder that is removed is made again.
    std::fs::remove_dir_all(owners(&db)).unwrap();
    client.add(shell("again", "echo passed").at_most_once()).unwrap();
    stands(&client, "again", RunStatus::Succeeded);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'released'"), "0");
    assert_eq!(sidecar.log().matches(says).count(), 1, "once: {}", sidecar.log());
    sidecar.leave();
    db.assert_sound();
}

// ----------------------------------------------------------------------------------------------------------------- copies --

#[test]
fn a_copy_in_the_place_of_a_lock_file_is_no_proof_of_death() {
    for dies_before_it_is_seen in [false, true] {
        let (db, mut first) = at_work();
        let (lock, backup) = (lock_file(&db, &first), db.home().join("backup"));
        std::fs::copy(&lock, &backup).unwrap();
        std::fs::remove_file(&lock).unwrap();
        std::fs::copy(&backup, &lock).unwrap();
        let mut second = beside(&db, &first);
        second.step().unwrap();
        assert_eq!(runs(&db), ["running|1|0"]);
        let standing = |of: &Stepper, owner: &str| {
            of.client().status().unwrap().instances.into_iter().find(|one| one.id == owner).unwrap().alive
        };
        assert_eq!(standing(&second, first.owner()), None);
        let clock = first.clock().clone();
        let mut waits = seconds(60);
        if !dies_before_it_is_seen {
            clock.advance(seconds(1));
            first.step().unwrap();
            assert_eq!(standing(&second, first.owner()), Some(true), "the owner has made its own again");
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
fn in_a_copy_of_the_folder_the_original_owners_are_dead_at_once() {
    let (db, mut first) = at_work();
    first.client().add(once("ahead")).unwrap();
    assert_eq!(first.claim(0).unwrap().len(), 1);
    let other = TestDb::new();
    for name in ["agent.db", "agent.db-wal", "agent.db-owners"] {
        let copied = Command::new("cp").arg("-a").arg(db.home().join(name)).arg(other.home()).status().unwrap();
        assert!(copied.success(), "{name}");
    }
    let mut second = beside(&other, &first);
    assert_eq!(second.step().unwrap().len(), 0);
    // The copies of the two were not made at the same moment: what a slot does not say is unknown.
    assert_eq!(runs(&other), ["dead|1|0", "dead|1|0"]);
    assert_eq!(runs(&db), ["running|1|0", "running|1|0"]);
    first.step().unwrap();
}

#[test]
fn a_lock_file_that_is_overwritten_is_written_again() {
    let (db, mut first) = at_work();
    let lock = lock_file(&db, &first);
    let older = std::fs::read(&lock).unwrap();
    first.client().add(once("second")).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    // Into the same file: as it was before the second run began.
    std::fs::write(&lock, &older).unwrap();
    // The first look takes a new slot for one that may not be written yet.
    for _ in 0..2 {
        first.clock().advance(seconds(1));
        first.step().unwrap();
    }
    first.crash();
    db.stepper(START).step().unwrap();
    assert_eq!(runs(&db), ["dead|1|0", "dead|1|0"], "both had begun");
    db.assert_sound();
}

// ----------------------------------------------------------------------------------------------------------- cancel --gone --

#[test]
fn a_command_is_not_declared_gone_while_its_scheduler_is_within_its_lease() {
    let pair = Pair::running(as_is);
    let (db, client, clock) = (&pair.db, pair.stepper.client(), pair.stepper.clock());
    let run = pair.subject.run_id;
    std::fs::remove_file(lock_file(db, &pair.stepper)).unwrap();
    let refused = || client.declare_gone(run).map_err(|error| error.to_string());
    let reason = "its scheduler has no lock file that can be read, and its lease is not over: wait for that";
    let expected = Err(format!("cannot declare the command of run {run} gone: {reason}"));
    assert_eq!(refused(), expected);
    assert_eq!(client.declare_all_gone("subject").unwrap(), 0);
    clock.advance(Duration::from_millis(59_999));
    assert_eq!(refused(), expected);
    clock.advance(Duration::from_millis(1));
    assert_eq!(refused(), Ok(()));
    // What shows that the owner is dead, or says nothing of it.
    for edit in ["boot_id = 'another'", "seen_at = seen_at + 3600000", "stopped_at = seen_at"] {
        let pair = Pair::running(as_is);
        std::fs::remove_file(lock_file(&pair.db, &pair.stepper)).unwrap();
        pair.db.plain().execute(&format!("UPDATE scheduler_instances SET {edit}"), []).unwrap();
        assert_eq!(
            pair.stepper.client().declare_gone(pair.subject.run_id).map_err(|e| e.to_string()),
            Ok(()),
            "{edit}"
        );
    }
}

// --------------------------------------------------------------------------------------------------------------- the heir --

#[test]
fn check_names_the_stopped_scheduler_that_is_to_recover_a_run() {
    let db = TestDb::new();
    let client = db.client();
    let _gate = Gate::new(&db, "gate");
    let home = db.home().display();
    let line = format!("trap '' TERM; echo $$ >{home}/group; read line <{home}/gate");
    client.add(shell("post", &line).at_most_once()).unwrap();
    let mut first = Sidecar::start(&db, &["--lease", "1s"]);
    let group = told(&db, "group");
    eventually("its process is recorded", || db.ask("SELECT process IS NOT NULL FROM task_runs") == "1");
    let mut heir = Sidecar::start(&db, &["--lease", "1s"]);
    first.signal("KILL");
    let _ = first.end();
    eventually("it has the lock", || heir.log().contains("ending the command that a dead scheduler left"));
    heir.signal("STOP");
    let check = || {
        let done = Command::new(env!("CARGO_BIN_EXE_duly")).arg("--db").arg(db.file()).arg("check").output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let pid = heir.pid();
    let expected = [
        "stuck: run 1 of post waits: its scheduler is dead, and the scheduler that recovers its runs is alive and makes no \
         progress (pid "
            .to_owned(),
        format!("): let process {pid} go on, or end it"),
    ];
    eventually("check names it", || expected.iter().all(|part| check().contains(part)));
    heir.signal("CONT");
    signal("KILL", &format!("-{group}"));
    stands(&client, "post", RunStatus::Dead);
    heir.leave();
    db.assert_sound();
}

// ------------------------------------------------------------------------------------------------------------ what is left --

#[test]
fn an_idle_scheduler_that_died_without_a_lock_file_is_found_out_when_its_lease_is_over() {
    let db = TestDb::new();
    let start = |clock: Option<&duly::testing::ManualClock>| {
        let builder = db.builder(START).accept("work").poll(seconds(1)).lease(seconds(60));
        clock.map_or(db.builder(START).accept("work").lease(seconds(60)), |clock| builder.clock(clock)).start().unwrap()
    };
    let mut observer = start(None);
    observer.step().unwrap();
    let clock = observer.clock().clone();
    let (mut idle, mut lives) = (start(Some(&clock)), start(Some(&clock)));
    for one in [&mut idle, &mut lives] {
        one.step().unwrap();
        std::fs::remove_file(lock_file(&db, one)).unwrap();
    }
    let (dead, alive) = (idle.owner().to_owned(), lives.owner().to_owned());
    idle.crash();
    let stopped =
        |owner: &str| db.ask(&format!("SELECT stopped_at IS NOT NULL FROM scheduler_instances WHERE id = '{owner}'"));
    let mut lasted = 0;
    while stopped(&dead) == "0" && lasted < 200 {
        clock.advance(seconds(20));
        lasted += 20;
        lives.step().unwrap();
        // A living one that has lost its file again shows itself by its heartbeats.
        std::fs::remove_file(lock_file(&db, &lives)).unwrap();
        observer.step().unwrap();
    }
    assert_eq!(
        (stopped(&dead).as_str(), stopped(&alive).as_str(), lasted),
        ("1", "0", 80),
        "after 60 s, at a heartbeat"
    );
    assert_eq!(db.rows("SELECT detail FROM scheduler_events WHERE kind = 'owner_lost'"), [dead]);
    db.assert_sound();
}

#[test]
fn what_dead_schedulers_left_in_the_folder_is_swept_at_the_next_start() {
    let db = TestDb::new();
    drop(db.stepper(START));
    let folder = owners(&db);
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
    // The payload of an attempt that is over, and that of one whose command holds its input.
    drop((make("run-8-1.payload", false), make("run-9-1.payload", false)));
    let input = make("run-9-1", false);
    input.lock().unwrap();
    let scheduler = Scheduler::builder(db.file()).start().unwrap();
    let is_there = |name: &str| folder.join(name).exists();
    assert_eq!([&old, &young, &held].map(|name| is_there(name)), [false, true, true]);
    assert_eq!(["run-8-1.payload", "run-9-1.payload", "run-9-1"].map(is_there), [false, true, true]);
    drop(scheduler);
}
