//! Attempt slots: the lock file of a dead scheduler shows which of its claimed attempts had begun.
#![cfg(target_os = "linux")]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Context, Error, Event, NewTask, Outcome, RetryPolicy, Scheduler};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, eventually, held, is_of_sqlite, once, seconds};

/// Each run with its status, its attempts, its forgiven attempts, and the outcomes recorded in `task_attempts`.
fn runs(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.status, r.attempt, r.forgiven,
                (SELECT group_concat(a.outcome || ': ' || a.error) FROM task_attempts a WHERE a.run_id = r.id)
           FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY t.name",
    )
}

const LOST: &str = "lost: the scheduler that ran it died";
const RELEASED: &str = "released: the scheduler that had claimed it died before it began";

/// A scheduler with one worker has claimed three runs, begun the first, and died.
fn killed_with_one_begun() -> (TestDb, PathBuf) {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").workers(1).start().unwrap();
    for name in ["a-begun", "b-ahead", "c-ahead"] {
        first.client().add(once(name)).unwrap();
    }
    let claims = first.step_ahead(2).unwrap();
    assert_eq!(claims.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["a-begun", "b-ahead", "c-ahead"]);
    let began: Vec<bool> = db.runs().iter().map(|run| run.started_at.is_some()).collect();
    assert_eq!(began, [true, false, false], "a claimed run has not started");
    let lock = db.lock_file(&first);
    first.crash();
    (db, lock)
}

#[test]
fn claimed_runs_that_never_began_are_released_without_counting_an_attempt() {
    let (db, lock) = killed_with_one_begun();
    let mut next = db.stepper(NOON);
    let claims = next.step().unwrap();
    assert_eq!(claims.len(), 2, "what never began starts at once");
    assert_eq!(
        runs(&db),
        [
            format!("a-begun|failed|1|0|{LOST}"),
            format!("b-ahead|running|2|1|{RELEASED}"),
            format!("c-ahead|running|2|1|{RELEASED}"),
        ]
    );
    assert!(!lock.exists(), "nothing is left to recover");
    db.assert_sound();
}

#[test]
fn an_at_most_once_run_is_released_if_it_never_began_and_dead_if_it_did() {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").workers(2).start().unwrap();
    first.client().add(once("begun").at_most_once()).unwrap();
    first.client().add(once("claimed").at_most_once()).unwrap();
    let claims = first.claim(0).unwrap();
    let begun = claims.iter().find(|claim| claim.task == "begun").unwrap();
    first.begin(begun);
    first.crash();
    let mut next = db.stepper(NOON);
    assert_eq!(next.step().unwrap().len(), 1);
    let expected = [format!("begun|dead|1|0|{LOST}"), format!("claimed|running|2|1|{RELEASED}")];
    assert_eq!(runs(&db), expected);
    // An unrecorded outcome does not count: the attempt has begun.
    let claim = next.running()[0].clone();
    next.finish(&claim, Outcome::succeeded());
    next.crash();
    db.stepper(NOON).step().unwrap();
    let expected = [format!("begun|dead|1|0|{LOST}"), format!("claimed|dead|2|1|{RELEASED},{LOST}")];
    assert_eq!(runs(&db), expected);
}

#[test]
fn a_run_that_never_began_and_is_to_be_cancelled_is_cancelled_on_recovery() {
    let (db, _) = killed_with_one_begun();
    let client = db.client();
    let ahead = client.history("b-ahead", 1).unwrap()[0].id;
    assert_eq!(client.cancel(ahead).unwrap(), duly::Cancel::Asked);
    db.stepper(NOON).step().unwrap();
    assert_eq!(runs(&db)[1], format!("b-ahead|cancelled|1|1|{RELEASED}"));
    assert_eq!(runs(&db)[2], format!("c-ahead|running|2|1|{RELEASED}"));
}

/// What is recovered if the slots cannot be read: each attempt counts, but on a server only those whose row shows that they began.
fn unknown(db: &TestDb) -> Vec<String> {
    let forgiven = u32::from(db.is_on_server());
    [("a-begun", 0), ("b-ahead", forgiven), ("c-ahead", forgiven)]
        .map(|(name, forgiven)| format!("{name}|failed|1|{forgiven}|{LOST}"))
        .to_vec()
}

#[test]
fn unreadable_slots_do_not_show_what_never_began() {
    let recover = |db: &TestDb| {
        let mut next = db.stepper(NOON);
        next.step().unwrap();
        if db.is_on_server() && runs(db)[0].contains("|running|1|") {
            // There a file of another boot proves no death: the lease must have passed.
            next.clock().advance(Duration::from_secs(62));
            next.step().unwrap();
        }
    };
    let other_boot: &[u8] = b"00000000";
    for (what, place, bytes) in [
        ("of another boot of the machine", 20, other_boot),
        ("of another format", 3, b"another"),
        ("with a garbled slot", 256 + 5, b"x"),
    ] {
        let (db, lock) = killed_with_one_begun();
        OpenOptions::new().write(true).open(&lock).unwrap().write_all_at(bytes, place).unwrap();
        recover(&db);
        assert_eq!(runs(&db), unknown(&db), "{what}");
    }
    let (db, lock) = killed_with_one_begun();
    OpenOptions::new().write(true).open(&lock).unwrap().set_len(0).unwrap();
    recover(&db);
    assert_eq!(runs(&db), unknown(&db));
}

/// On a server, where a host is lost with its slots, an attempt does not count if its row does not show that it began: once for each run.
#[test]
fn an_attempt_of_a_lost_host_that_its_row_does_not_show_to_have_begun_is_forgiven_once() {
    let db = TestDb::new();
    if !db.is_on_server() {
        return;
    }
    let policy = RetryPolicy { max_attempts: 2, backoff: seconds(1), ..RetryPolicy::default() };
    let client = db.client();
    for name in ["b-ahead", "c-reported"] {
        client.add(once(name).retry(policy)).unwrap();
    }
    let mut now = at(NOON);
    let mut of_round = |round: u32| {
        let mut host = db.builder(&now.to_string()).accept("work").workers(1).start().unwrap();
        // Its only worker is busy with another run.
        client.add(NewTask::once(format!("a-begun-{round}"), now).handler("work").priority(0).at_most_once()).unwrap();
        let claims = host.step_ahead(2).unwrap();
        if round == 1 {
            let reports = claims.iter().find(|claim| claim.task == "c-reported").unwrap();
            db.execute(&format!("UPDATE task_runs SET progress = '1 of 2' WHERE id = {}", reports.run_id));
        }
        db.hide(&host);
        host.crash();
        let mut next = db.stepper(&now.to_string());
        next.step().unwrap();
        next.clock().advance(seconds(62));
        next.step().unwrap();
        now = next.now().wall + seconds(60);
        next.stop().unwrap();
        let ahead = runs(&db).into_iter().filter(|run| !run.starts_with("a-begun"));
        ahead.map(|run| run.split('|').take(4).collect::<Vec<_>>().join("|")).collect::<Vec<_>>()
    };
    assert_eq!(of_round(1), ["b-ahead|failed|1|1", "c-reported|failed|1|0"]);
    assert_eq!(of_round(2), ["b-ahead|failed|2|1", "c-reported|failed|2|1"]);
    assert_eq!(of_round(3), ["b-ahead|dead|3|1", "c-reported|dead|3|1"]);
    db.assert_sound();
}

#[test]
fn a_recreated_lock_file_keeps_its_slots_and_leaks_no_descriptor() {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").workers(1).poll(seconds(1)).lease(seconds(3600)).start().unwrap();
    first.client().add(once("a-begun").at_most_once()).unwrap();
    first.client().add(once("b-ahead")).unwrap();
    assert_eq!(first.step_ahead(1).unwrap().len(), 2);
    let lock = db.lock_file(&first);
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files
            .filter(|file| {
                std::fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|path| path.starts_with(db.home()))
            })
            .count()
    };
    let before = open();
    for _ in 0..20 {
        std::fs::remove_file(&lock).unwrap();
        first.clock().advance(Duration::from_millis(999));
        first.step_ahead(0).unwrap();
        assert!(!lock.exists(), "it is checked once every poll interval");
        first.clock().advance(Duration::from_millis(1));
        first.step_ahead(0).unwrap();
        assert!(lock.exists());
    }
    assert_eq!(open(), before, "each new file replaces the handle of the one before");
    first.crash();
    db.stepper(NOON).step().unwrap();
    assert_eq!(runs(&db)[0], format!("a-begun|dead|1|0|{LOST}"));
    assert_eq!(runs(&db)[1], format!("b-ahead|running|2|1|{RELEASED}"));
}

#[test]
fn an_attempt_with_an_input_file_or_a_recorded_process_counts_as_begun() {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").workers(3).start().unwrap();
    for name in ["a-input", "b-recorded", "c-claimed"] {
        first.client().add(once(name).at_most_once()).unwrap();
    }
    // No slot shows that they began, as in a lock file restored from an older copy.
    assert_eq!(first.claim(0).unwrap().len(), 3);
    first.crash();
    std::fs::write(db.input_file(), "").unwrap();
    db.execute("UPDATE task_runs SET process = '{\"pid\":2000000000,\"started\":1}' WHERE id = 2");
    db.stepper(NOON).step().unwrap();
    let expected = [
        format!("a-input|dead|1|0|{LOST}"),
        format!("b-recorded|dead|1|0|{LOST}"),
        format!("c-claimed|running|2|1|{RELEASED}"),
    ];
    assert_eq!(runs(&db), expected);
}

#[test]
fn a_scheduler_whose_database_was_moved_recreates_no_lock_file() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").poll(seconds(1)).lease(seconds(3600)).start().unwrap();
    first.client().add(once("first").at_most_once()).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let elsewhere = db.home().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for file in ["agent.db", "agent.db-wal", "agent.db-shm", "agent.db-owners"] {
        std::fs::rename(db.home().join(file), elsewhere.join(file)).unwrap();
    }
    first.clock().advance(seconds(1));
    let error = first.step().unwrap_err().to_string();
    assert!(error.contains("removed or moved"), "{error}");
    assert!(!db.lock_folder().exists());
    // The first scheduler still holds its lock: its runs are not taken over.
    let mut second = Stepper::builder(elsewhere.join("agent.db"), at(NOON)).accept("work").start().unwrap();
    second.step().unwrap();
    let status = |second: &Stepper| second.client().history("first", 1).unwrap()[0].status;
    assert_eq!(status(&second), duly::RunStatus::Running);
    first.crash();
    advance_and_step(&mut second, seconds(1));
    assert_eq!(status(&second), duly::RunStatus::Dead);
}

/// The event and `started_at` are written when a worker starts the run.
#[test]
fn a_start_is_reported_when_a_worker_starts_the_run() {
    let db = TestDb::new();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let recorded = starts.clone();
    let (gate, opened) = crossbeam_channel::bounded::<()>(0);
    let scheduler = Scheduler::builder(db.address())
        .workers(1)
        .poll(Duration::from_millis(10))
        .observe(move |event: &Event| {
            if let Event::Started { claim } = event {
                recorded.lock().unwrap().push(claim.task.clone());
            }
        })
        .handler("short", |_: &Context| Ok::<_, Error>(()))
        .handler("long", move |_: &Context| held(&opened).map_err(duly::BoxError::from))
        .start()
        .unwrap();
    // Short runs make it read ahead: the second long run is claimed while the first holds the worker.
    let due = at("2020-01-01T00:00:00Z");
    for number in 0..40 {
        scheduler.add(NewTask::once(format!("short-{number}"), due).handler("short")).unwrap();
    }
    for name in ["long-1", "long-2"] {
        scheduler.add(NewTask::once(name, due).handler("long")).unwrap();
    }
    let started = |name: &str| starts.lock().unwrap().iter().any(|task| task == name);
    eventually("the first has begun", || started("long-1") || started("long-2"));
    let (first, second) = if started("long-1") { ("long-1", "long-2") } else { ("long-2", "long-1") };
    let began = |name: &str| {
        db.ask(&format!(
            "SELECT count(r.started_at) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
              WHERE t.name = '{name}'"
        ))
    };
    eventually("its row says so", || began(first) == "1");
    assert!(!started(second) && began(second) != "1", "one worker, one start");
    gate.send_timeout((), seconds(60)).unwrap();
    eventually("the second has begun", || started(second));
    eventually("its row says so", || began(second) == "1");
    gate.send_timeout((), seconds(60)).unwrap();
    assert_eq!(scheduler.shutdown(seconds(60)).unwrap().unfinished, 0);
}
