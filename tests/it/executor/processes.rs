//! Executors whose attempts run in processes that outlive their scheduler.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use duly::executor::Orphan;
use duly::{Event, RunStatus, Scheduler};

use crate::executor::{Hands, builder};
use crate::fixtures::{
    Process, TestDb, end, eventually, listen, minutes, overdue, patience, retry_soon, seconds, set_mode, test_process,
    wait_for_status,
};

/// The variable that holds the database of another process.
const FILE: &str = "DULY_TEST_EXECUTOR_FILE";
const PIDS: &str = "DULY_TEST_EXECUTOR_PIDS";

/// A process that inherits a shared file and leads a group, which the scheduler's death does not end.
fn spawn(file: File) -> Child {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000").stdin(Stdio::from(file)).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    sleep.spawn().expect("a worker")
}

/// Not a test by itself: a scheduler with two workers, one of which has a run.
#[test]
fn scheduler_entry() {
    let (Some(file), Some(pids)) = (std::env::var_os(FILE), std::env::var_os(PIDS)) else { return };
    let file_of_pids = PathBuf::from(pids);
    let hands = Hands::new(2, &["mail"]);
    let _scheduler = Scheduler::builder(file).executor(hands.clone()).start().expect("a scheduler");
    let waker = hands.waker.get().expect("a waker");
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (input, inherited) = waker.share_input().expect("a file");
        let worker = spawn(inherited);
        input.record_process(worker.id());
        workers.push((input, worker));
    }
    let attempts = [hands.take(), hands.take()];
    for attempt in &attempts {
        attempt.use_input(&workers[0].0).expect("a link");
        attempt.use_input(&workers[0].0).expect("the same link again");
    }
    let pids = format!("{} {}", workers[0].1.id(), workers[1].1.id());
    std::fs::write(file_of_pids.with_extension("new"), pids).expect("the pids");
    std::fs::rename(file_of_pids.with_extension("new"), file_of_pids).expect("the pids");
    std::io::stdin().read_line(&mut String::new()).expect("the end of the standard input");
    for (_, mut worker) in workers {
        end(&mut worker);
    }
}

/// Kills a scheduler. Returns the pids of its worker that has runs, and of the other one; both live.
fn leave_workers(db: &TestDb) -> (String, String) {
    let file = db.home().join("pids");
    let mut entry = test_process("executor::processes::scheduler_entry");
    let killed = Process::spawn(entry.env(FILE, db.address()).env(PIDS, &file));
    eventually("its workers run", || file.exists());
    let pids = std::fs::read_to_string(file).unwrap();
    killed.kill();
    pids.split_once(' ').map(|(busy, idle)| (busy.to_owned(), idle.to_owned())).unwrap()
}

fn kill(group: &str) {
    crate::sidecar::signal("KILL", &format!("-{group}"));
}

#[test]
fn runs_wait_for_a_worker_that_outlives_its_scheduler_and_idle_workers_are_ended() {
    let db = TestDb::new();
    let client = db.client();
    for name in ["one", "two"] {
        client.add(retry_soon(overdue(name).handler("mail"), 3)).unwrap();
    }
    let (busy, idle) = leave_workers(&db);
    let files = |suffix: &str| db.lock_files().iter().filter(|name| name.ends_with(suffix)).count();
    assert_eq!((files(".worker"), files("-1") + files("-2")), (2, 2));

    let hands = Hands::new(2, &["mail"]);
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    let orphans = |hands: &Arc<Hands>| hands.orphans.lock().unwrap().clone();
    let of_runs = |orphans: &[Orphan]| orphans.iter().filter(|orphan| orphan.run_id() > 0).count();
    eventually("both workers are to be ended, and the busy one for its runs", || {
        let found = orphans(&hands);
        of_runs(&found) > 0 && found.len() - of_runs(&found) == 2
    });
    assert_eq!(hands.holds(), 0, "the runs wait");
    let group = |pid: &str| Some(pid.parse::<u32>().unwrap());
    for orphan in orphans(&hands) {
        let expected = if orphan.run_id() > 0 { [group(&busy); 2] } else { [group(&busy), group(&idle)] };
        assert!(expected.contains(&orphan.group()) && !orphan.is_gone(), "{orphan:?}");
        assert_eq!(orphan.handler(), if orphan.run_id() > 0 { "mail" } else { "" });
    }
    kill(&idle);
    kill(&busy);
    eventually("all of them are gone", || orphans(&hands).iter().all(|orphan| orphan.is_gone()));
    let again = [hands.take(), hands.take()];
    assert!(again.iter().all(|attempt| attempt.context().attempt() == 2), "the attempts had begun");
    again.into_iter().for_each(|attempt| attempt.end(Ok(None)));
    for name in ["one", "two"] {
        wait_for_status(&scheduler, name, RunStatus::Succeeded);
    }
    drop(scheduler);
    assert_eq!(files(".worker"), 0, "{:?}", db.lock_files());
    // The files of the dead workers are removed at the next start.
    drop(builder(&db, &[]).start().unwrap());
    assert_eq!(db.lock_files(), [""; 0]);
    db.assert_sound();
}

#[test]
fn runs_continue_as_soon_as_their_worker_was_ended_at_the_start() {
    let db = TestDb::new();
    let client = db.client();
    for name in ["one", "two"] {
        client.add(retry_soon(overdue(name).handler("mail"), 3)).unwrap();
    }
    leave_workers(&db);
    let hands = Hands::new(2, &["mail"]);
    let is_found = Arc::new(AtomicUsize::new(0));
    let found = is_found.clone();
    // A turn has found the runs: their worker is being ended already.
    let end = move |orphan: &Orphan| {
        eventually("a turn waits for both runs", || found.load(Ordering::SeqCst) == 2);
        orphan.group().iter().for_each(|group| kill(&group.to_string()));
        eventually("the worker is gone", || orphan.is_gone());
    };
    assert!(hands.end.set(Box::new(end)).is_ok());
    let finds = move |event: &Event| {
        _ = matches!(event, Event::Orphaned { .. }).then(|| is_found.fetch_add(1, Ordering::SeqCst))
    };
    // No poll and no heartbeat hastens it.
    let scheduler = builder(&db, &[&hands]).poll(minutes(30)).lease(minutes(120)).observe(finds).start().unwrap();
    for _ in 0..2 {
        hands.take().end(Ok(None));
    }
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn a_file_for_a_worker_needs_a_private_folder_and_hides_no_loss_of_the_lock_file() {
    let (db, hands, (observer, events)) = (TestDb::new(), Hands::new(2, &["mail"]), listen());
    let scheduler = builder(&db, &[&hands]).poll(seconds(1)).observe(observer).start().unwrap();
    let waker = hands.waker.get().unwrap();
    std::fs::remove_dir_all(db.lock_folder()).unwrap();
    let shared = waker.share_input().expect("a file in a new folder");
    let is_recreated = |event: &Event| matches!(event, Event::LockFileRecreated);
    eventually("the scheduler reports that its lock file was missing", || {
        events.try_iter().any(|one| is_recreated(&one))
    });
    drop(shared);
    set_mode(&db.lock_folder(), 0o777);
    let refused = waker.share_input().map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("other users"), "{refused}");
    set_mode(&db.lock_folder(), 0o700);
    drop(scheduler);
    db.assert_sound();
}

#[test]
fn a_run_that_ends_leaves_the_file_of_its_worker_and_no_link() {
    let (db, hands) = (TestDb::new(), Hands::new(2, &["mail"]));
    let scheduler = builder(&db, &[&hands]).start().unwrap();
    let (input, file) = hands.waker.get().unwrap().share_input().unwrap();
    scheduler.add_all(["ended", "released"].map(|name| overdue(name).handler("mail"))).unwrap();
    let links = || db.lock_files().iter().filter(|name| name.ends_with(".worker")).count();
    let (ended, released) = (hands.take(), hands.take());
    ended.use_input(&input).unwrap();
    released.use_input(&input).unwrap();
    assert_eq!(links(), 2);
    ended.end(Ok(None));
    released.release();
    let again = hands.take();
    eventually("the links are removed", || links() == 0);
    assert_eq!(again.context().attempt(), 2);
    again.end(Ok(None));
    let shared = || db.lock_files().iter().filter(|name| name.starts_with("worker-")).count();
    assert_eq!(shared(), 1);
    // Another scheduler leaves the file of a living owner, also if nothing holds it.
    drop(builder(&db, &[]).start().unwrap());
    file.unlock().unwrap();
    drop(builder(&db, &[]).start().unwrap());
    assert_eq!(shared(), 1);
    drop(input);
    assert_eq!(shared(), 0);
    assert!(scheduler.shutdown(patience()).is_ok());
    db.assert_sound();
}
