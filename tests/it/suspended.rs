//! Schedulers that are suspended, or whose state the kernel cannot report: a live one keeps its runs, a dead one loses them.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::time::Duration;

use duly::{Client, Limits, ProblemKind, RunStatus};

use crate::fixtures::{TestDb, eventually, wait_for_status};
use crate::sidecar::{Gate, Sidecar, shell, wait_for_line, wait_for_process_record};

const LEASE: [&str; 2] = ["--lease", "2s"];

/// A scheduler with a command that waits at the gate `gate`, and a second one without work.
struct Pair {
    // First, so that they end while the database exists.
    owner: Sidecar,
    other: Sidecar,
    client: Client,
    gate: Gate,
    db: TestDb,
}

impl Pair {
    fn new() -> Self {
        let (db, client) = TestDb::with_client();
        let gate = Gate::new(&db, "gate");
        let home = db.home().display();
        let line = format!("echo $DULY_ATTEMPT >>{home}/starts; read line <{home}/gate; echo passed");
        client.add(shell("long", &line)).unwrap();
        let owner = Sidecar::start(&db, &LEASE);
        assert_eq!(wait_for_line(&db, "starts"), "1");
        wait_for_process_record(&db);
        let other = Sidecar::start(&db, &LEASE);
        Pair { owner, other, client, gate, db }
    }

    fn starts(&self) -> String {
        wait_for_line(&self.db, "starts")
    }

    fn now(&self) -> u64 {
        self.db.number::<u64>("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")
    }

    fn locked_until(&self) -> u64 {
        self.db.number::<u64>("SELECT locked_until FROM task_runs")
    }

    /// Waits until the second scheduler has taken two full turns.
    fn wait_for_turns_of_other(&self) {
        let pid = self.other.pid();
        let seen = || self.db.number::<u64>(&format!("SELECT seen_at FROM scheduler_instances WHERE pid = {pid}"));
        for _ in 0..2 {
            let before = seen();
            eventually("the other has taken a full turn", || seen() > before);
        }
    }

    fn stop(&self) {
        stop(&self.owner, &self.db);
    }

    fn lock_file(&self) -> PathBuf {
        let owner = self.db.ask("SELECT locked_by FROM task_runs");
        self.db.lock_folder().join(owner)
    }
}

/// Stops a scheduler while it holds no write lock: no other process could write otherwise.
fn stop(scheduler: &Sidecar, db: &TestDb) {
    let connection = db.plain();
    // A scheduler that is stopped keeps the lock: to wait for it would be a stall of its own.
    connection.busy_timeout(Duration::ZERO).unwrap();
    scheduler.signal("STOP");
    while connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_err() {
        scheduler.signal("CONT");
        scheduler.signal("STOP");
    }
}

#[test]
fn a_command_that_ended_while_its_scheduler_was_stopped_has_ended_then() {
    const LIMIT: u64 = 4000;
    let (db, client) = TestDb::with_client();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    let line = format!("echo $DULY_ATTEMPT >>{home}/starts; read line <{home}/gate");
    client.add(shell("short", &line).timeout(Duration::from_millis(LIMIT))).unwrap();
    let mut scheduler = Sidecar::start(&db, &[]);
    assert_eq!(wait_for_line(&db, "starts"), "1");
    wait_for_process_record(&db);
    stop(&scheduler, &db);
    gate.open();
    let now = || db.number::<u64>("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)");
    let of_guard = db.lock_folder().join(format!("{}.guard", db.ask("SELECT locked_by FROM task_runs")));
    let is_noted = || std::fs::read_to_string(&of_guard).is_ok_and(|text| text.contains("\nended "));
    eventually("the guard notes the end of the command", is_noted);
    let noted = now();
    let limit = db.number::<u64>("SELECT started_at FROM task_runs") + LIMIT;
    eventually("the time limit has passed", || now() > limit.max(noted) + 1000);

    scheduler.signal("CONT");
    let run = wait_for_status(&client, "short", RunStatus::Succeeded);
    let ended = u64::try_from(run.finished_at.unwrap().as_millis()).unwrap();
    assert!(ended <= noted + 1, "it ended at {ended}, by {noted}");
    let took = db.number::<u64>("SELECT duration_ms FROM task_runs");
    assert!(took <= noted + LIMIT - limit + 1, "it took {took} ms");
    assert_eq!(run.error.is_some(), took >= LIMIT, "{took} ms: {:?}", run.error);
    // It was stopped as well, and had its time to end when that was over.
    assert!(!scheduler.log().contains("another worker replaces"), "{}", scheduler.log());
    scheduler.terminate();
    db.assert_sound();
}

#[test]
fn an_owner_stopped_past_its_lease_is_reported_and_keeps_its_runs() {
    let mut pair = Pair::new();
    pair.stop();
    let until = pair.locked_until();
    eventually("its lease has run out", || pair.now() > until);
    pair.wait_for_turns_of_other();
    let problems = pair.client.check(&Limits::default()).unwrap();
    let kinds: Vec<_> = problems.iter().map(|problem| (problem.kind, problem.run)).collect();
    assert_eq!(kinds, [(ProblemKind::Stuck, Some(1))], "{problems:?}");
    assert!(problems[0].to_string().contains("is alive, and is stopped or cannot write"), "{}", problems[0]);
    assert_eq!(pair.db.rows("SELECT id, name, past FROM stuck_runs"), ["1|long|lease"]);
    let recorded = "SELECT count(*) FROM scheduler_events WHERE kind = 'owner_stalled'";
    eventually("the stall is recorded", || pair.db.ask(recorded) == "1");
    let line = format!("(pid {} on ", pair.owner.pid());
    let lines = |sidecar: &Sidecar| {
        sidecar.log().lines().filter(|logged| logged.contains(&line) && logged.contains("is alive and stalled")).count()
    };
    eventually("it is in the log", || lines(&pair.other) == 1);
    pair.wait_for_turns_of_other();
    // The next scheduler finds it recorded.
    pair.other.terminate();
    pair.other = Sidecar::start(&pair.db, &LEASE);
    (0..4).for_each(|_| pair.wait_for_turns_of_other());
    assert_eq!((pair.db.ask(recorded).as_str(), lines(&pair.other)), ("1", 0));

    // The command ends while its owner is stopped. The other scheduler runs everything else.
    pair.gate.open();
    pair.client.add(shell("beside", "true")).unwrap();
    wait_for_status(&pair.client, "beside", RunStatus::Succeeded);
    pair.wait_for_turns_of_other();
    assert_eq!(pair.db.rows("SELECT status, attempt FROM task_runs WHERE id = 1"), ["running|1"]);

    pair.owner.signal("CONT");
    let run = wait_for_status(&pair.client, "long", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref(), pair.starts().as_str()), (1, Some("passed\n"), "1"));
    assert!(
        pair.client.attempts(run.id).unwrap().is_empty() && pair.client.check(&Limits::default()).unwrap().is_empty()
    );
    // It reports the end of its stall once, and how long that lasted. On a busy machine a process stalls by itself as well.
    let owner = pair.db.ask("SELECT substr(detail, 1, 42) FROM scheduler_events WHERE kind = 'owner_stalled'");
    let id = owner.split(':').next().unwrap_or_default();
    let ended =
        format!("SELECT detail FROM scheduler_events WHERE kind = 'stall_ended' AND detail LIKE 'owner {id} goes on%'");
    let is_logged_once = |detail: &String| pair.owner.log().matches(detail.as_str()).count() == 1;
    eventually("the end of the stall is recorded", || !pair.db.rows(&ended).is_empty());
    assert!(pair.db.rows(&ended).iter().all(is_logged_once), "{:?}\n{}", pair.db.rows(&ended), pair.owner.log());
    pair.owner.terminate();
    pair.other.terminate();
    pair.db.assert_sound();
}

#[test]
fn an_owner_without_its_lock_file_loses_its_runs_only_a_lease_after_its_death() {
    let mut pair = Pair::new();
    let lock = pair.lock_file();
    // Another program removes the lock file; each time the owner creates it again.
    for _ in 0..4 {
        std::fs::remove_file(&lock).unwrap();
        eventually("the file is there again", || lock.exists());
    }
    pair.wait_for_turns_of_other();
    assert_eq!(pair.db.rows("SELECT status, attempt FROM task_runs"), ["running|1"]);

    // It dies without a lock file: nothing proves its death. Stopped first, so that it cannot create it again.
    pair.stop();
    std::fs::remove_file(&lock).unwrap();
    let until = pair.locked_until();
    pair.owner.kill();
    let lost = || pair.db.ask("SELECT max(finished_at) FROM task_attempts WHERE outcome = 'lost'");
    eventually("its run is recovered", || lost() != "NULL");
    // Its lease was last extended two seconds before `until`, and the other scheduler has seen it no earlier.
    let lost: u64 = lost().parse().unwrap();
    assert!(lost + 50 >= until, "after its lease, not {} ms before", until.saturating_sub(lost));
    eventually("it is begun again", || pair.starts() == "1\n2");
    pair.gate.open();
    assert_eq!(wait_for_status(&pair.client, "long", RunStatus::Succeeded).attempt, 2);
    assert_eq!(pair.db.rows("SELECT attempt, outcome FROM task_attempts"), ["1|lost"]);
    pair.other.terminate();
    pair.db.assert_sound();
}
