//! Runs that another owner takes over: from a dead owner at once, from a live one never; and late outcomes of the first
//! owner.

use std::time::Duration;

use crossbeam_channel::unbounded;
use duly::testing::Stepper;
use duly::{Cancel, Context, NewTask, Outcome, RunStatus, Scheduler};

use crate::fixtures::{TestDb, at, eventually, minutes, overdue, patience, receive, seconds};
use crate::run_transitions::{BEFORE, Pair, as_is, attempts, result, status};

#[test]
fn the_first_step_recovers_the_runs_of_a_dead_owner() {
    for (shape, cancel, becomes) in [
        (as_is as fn(NewTask) -> NewTask, false, "failed"),
        (NewTask::at_most_once, false, "dead"),
        (as_is, true, "cancelled"),
    ] {
        let Pair { db, stepper, subject, twin } = Pair::running(shape);
        let mut second = db.builder(BEFORE).clock(stepper.clock()).accept("work").workers(0).start().unwrap();
        // A live owner keeps its runs, however long it is silent.
        stepper.clock().advance(minutes(10));
        second.step().unwrap();
        assert_eq!(status(&db, subject.run_id), "running");
        if cancel {
            stepper.client().cancel(subject.run_id).unwrap();
        }
        let dead = stepper.owner().to_owned();
        drop(second);
        let clock = stepper.clock().clone();
        stepper.crash();

        let mut third = db.builder(BEFORE).clock(&clock).accept("work").workers(0).start().unwrap();
        third.step().unwrap();
        assert_eq!(status(&db, subject.run_id), becomes);
        assert_eq!(attempts(&db, subject.run_id), ["1|lost|the scheduler that ran it died|-"]);
        assert_eq!(attempts(&db, twin.run_id).len(), 1);
        let stopped = format!("SELECT stopped_at IS NOT NULL FROM scheduler_instances WHERE id = '{dead}'");
        assert_eq!(db.ask(&stopped), "1");
        // The second, which had nothing to recover, is found dead in the same turn.
        assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'owner_lost'"), "2");
        db.assert_sound();
    }
}

/// Two runs that a second owner has taken over while the first is alive: its lock file is gone, and its lease has not
/// changed for a whole lease by the second's clock. Both runs wait for a retry.
fn after_takeover() -> (Pair, Stepper) {
    let pair = Pair::running(as_is);
    let mut second = pair.db.builder(BEFORE).clock(pair.stepper.clock()).accept("work").start().unwrap();
    second.step().unwrap();
    pair.db.hide(&pair.stepper);
    pair.stepper.clock().advance(seconds(60));
    second.step().unwrap();
    assert_eq!(
        pair.subject_status(),
        "running",
        "a missing file proves nothing until the lease has not changed for its length"
    );
    pair.stepper.clock().advance(Duration::from_millis(1));
    assert!(second.step().unwrap().is_empty());
    assert_eq!(pair.subject_status(), "failed");
    (pair, second)
}

/// Returns the run's row when the late outcome arrives.
#[derive(Clone, Copy, Debug)]
enum Found {
    Waiting,
    Running,
    Over,
}

#[test]
fn the_longer_of_two_leases_counts() {
    for (own, of_the_other) in [(seconds(1), minutes(60)), (minutes(60), seconds(1))] {
        let db = TestDb::new();
        let mut first = db.builder(BEFORE).accept("work").lease(of_the_other).start().unwrap();
        first.client().add(NewTask::once("subject", at(BEFORE)).handler("work")).unwrap();
        assert_eq!(first.step().unwrap().len(), 1);
        let clock = first.clock().clone();
        let mut second = db.builder(BEFORE).clock(&clock).accept("work").lease(own).start().unwrap();
        second.step().unwrap();
        db.hide(&first);
        clock.advance(minutes(60));
        second.step().unwrap();
        assert_eq!(status(&db, 1), "running", "{own:?} and {of_the_other:?}");
        clock.advance(Duration::from_millis(1));
        second.step().unwrap();
        assert_eq!(status(&db, 1), "failed", "{own:?} and {of_the_other:?}");
    }
    let db = TestDb::new();
    let stepper = db.builder(BEFORE).lease(seconds(7)).start().unwrap();
    let instances = stepper.client().status().unwrap().instances;
    assert_eq!((instances[0].lease, instances[0].alive), (seconds(7), Some(true)));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    assert_eq!(instances[0].boot_id.as_deref(), boot.as_deref().map(str::trim));
}

#[test]
fn an_owner_of_unknown_state_keeps_its_runs() {
    let pair = Pair::running(as_is);
    let mut second = pair.db.builder(BEFORE).clock(pair.stepper.clock()).accept("work").start().unwrap();
    second.step().unwrap();
    let lock = pair.db.lock_file(&pair.stepper);
    std::fs::remove_file(&lock).unwrap();
    // A lock file that cannot be opened is not a missing one.
    std::fs::create_dir(&lock).unwrap();
    for _ in 0..10 {
        pair.stepper.clock().advance(minutes(1));
        assert!(second.step().unwrap().is_empty());
    }
    assert_eq!((pair.subject_status().as_str(), pair.attempts().len()), ("running", 0));
    let client = second.client();
    let status = client.status().unwrap();
    let one = status.instances.iter().find(|one| one.id == pair.stepper.owner()).unwrap();
    let doubt = one.doubt.as_deref().unwrap_or_default();
    assert!(one.alive.is_none() && doubt.contains(" cannot be opened: "), "{one:?}");
    let problems = client.check(&duly::Limits::default()).unwrap();
    assert!(
        problems[0].found.ends_with(&format!("whether its scheduler is alive cannot be known: {doubt}")),
        "{problems:?}"
    );
}

#[test]
fn a_late_outcome_changes_no_run_and_is_recorded() {
    for found in [Found::Waiting, Found::Running, Found::Over] {
        for (late, says) in
            [(result("[7]"), "succeeded|[7]"), (Outcome::failed("oh"), "oh|-"), (Outcome::Released, "given back|-")]
        {
            let (mut pair, mut second) = after_takeover();
            if !matches!(found, Found::Waiting) {
                pair.stepper.clock().advance(seconds(10));
                let claims = second.step().unwrap();
                assert!(claims.iter().all(|claim| claim.attempt == 2) && claims.len() == 2);
                if matches!(found, Found::Over) {
                    let own = claims.iter().find(|claim| claim.run_id == pair.subject.run_id).unwrap();
                    second.finish(own, result("[2]"));
                    second.step().unwrap();
                }
            }
            let before = pair.row(pair.subject.run_id);
            pair.settle(late);
            assert_eq!(pair.row(pair.subject.run_id), before, "{found:?}");
            let lost = "1|lost|the scheduler that ran it died|-".to_owned();
            assert_eq!(pair.attempts(), [lost, format!("1|superseded|{says}")], "{found:?}");
            // The first owner learns at its heartbeat that it has lost both.
            let mut stopped = pair.stepper.stopped().to_vec();
            stopped.sort_unstable();
            assert!(stopped.contains(&pair.twin.run_id), "{found:?}: {stopped:?}");
            pair.db.assert_sound();
        }
    }
}

#[test]
fn an_owner_that_returns_before_its_death_is_recorded_keeps_its_runs() {
    let mut pair = Pair::running(as_is);
    let mut second = pair.db.builder(BEFORE).clock(pair.stepper.clock()).accept("work").start().unwrap();
    second.step().unwrap();
    pair.db.hide(&pair.stepper);
    pair.stepper.clock().advance(seconds(61));
    // The second finds the first dead, and cannot record it.
    let broken = "CREATE TRIGGER broken AFTER INSERT ON scheduler_events BEGIN SELECT no_such_function(); END";
    pair.db.execute(broken);
    second.step().unwrap();
    pair.db.execute("DROP TRIGGER broken");

    pair.stepper.step().unwrap();
    pair.stepper.clock().advance(seconds(1));
    second.step().unwrap();
    assert_eq!(pair.subject_status(), "running");
    pair.settle(result("1"));
    assert_eq!(pair.subject_status(), "succeeded");
}

#[test]
fn an_owner_that_was_declared_dead_and_continues_counts_as_alive() {
    let (mut pair, _second) = after_takeover();
    let stopped = format!("SELECT stopped_at IS NULL FROM scheduler_instances WHERE id = '{}'", pair.stepper.owner());
    assert_eq!(pair.db.ask(&stopped), "0");
    pair.stepper.step().unwrap();
    assert_eq!(pair.db.ask(&stopped), "1");
}

#[test]
fn a_late_outcome_of_a_deleted_run_becomes_an_event() {
    let (mut pair, _second) = after_takeover();
    pair.db.execute("DELETE FROM scheduled_tasks WHERE name = 'subject'");
    pair.settle(result("[7]"));
    assert_eq!(pair.db.ask("SELECT count(*) FROM task_attempts WHERE run_id = 1"), "0");
    let events = pair.db.rows("SELECT run_id, detail FROM scheduler_events WHERE kind = 'late_outcome'");
    assert_eq!(events, [r#"1|attempt 1 of run 1 of "subject": succeeded [7]"#]);
    pair.db.assert_sound();
}

#[test]
fn an_attempt_whose_run_its_owner_claims_again_is_asked_to_stop() {
    let db = TestDb::new();
    let (sender, receiver) = unbounded();
    let scheduler = Scheduler::builder(db.address())
        .handler("work", move |run: &Context| {
            let _ = sender.send((run.attempt(), "begins"));
            let stopped = run.wait_cancelled(patience());
            let _ = sender.send((run.attempt(), if stopped { "is stopped" } else { "waits in vain" }));
            Err::<(), _>("half is done")
        })
        .start()
        .unwrap();
    scheduler.add(overdue("long")).unwrap();
    let next = || receive(&receiver, "an event");
    assert_eq!(next(), (1, "begins"));
    // As an owner does that declares this one dead. Then this one claims the run again.
    let recover = "UPDATE task_runs SET status = 'failed', locked_by = NULL, locked_until = NULL, finished_at = run_at";
    db.execute(recover);
    scheduler.wake();
    let mut both = [next(), next()];
    both.sort_unstable();
    assert_eq!(both, [(1, "is stopped"), (2, "begins")]);
    eventually("the first end is kept", || db.ask("SELECT count(*) FROM task_attempts") == "1");
    assert_eq!(scheduler.cancel(1).unwrap(), Cancel::Asked);
    assert_eq!(next(), (2, "is stopped"));
    eventually("the run is over", || db.run(1).status == RunStatus::Cancelled);
    assert_eq!(db.rows("SELECT attempt, outcome FROM task_attempts"), ["1|superseded", "2|cancelled"]);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[test]
fn refused_runs_of_a_dead_owner_hold_up_neither_the_others_nor_the_loop() {
    let db = TestDb::new();
    let mut dead = db.builder(BEFORE).accept("work").workers(600).start().unwrap();
    dead.client().add_all((0..600).map(|number| overdue(&format!("task-{number}")).handler("work"))).unwrap();
    while dead.running().len() < 600 {
        dead.step().unwrap();
    }
    dead.crash();
    // More than a turn writes.
    let refuse = "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN OLD.id <= 550
                  BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.execute(refuse);
    let mut next = db.builder(BEFORE).accept("work").workers(0).start().unwrap();
    for _ in 0..4 {
        next.step().unwrap();
    }
    let running = "SELECT count(*) || ' up to ' || max(id) FROM task_runs WHERE status = 'running'";
    assert_eq!(db.ask(running), "550 up to 550");
    assert!(!next.sleeps().is_zero(), "or it would turn without end");
    db.execute("DROP TRIGGER no");
    for _ in 0..3 {
        next.clock().advance(minutes(1));
        next.step().unwrap();
    }
    assert_eq!(db.count(RunStatus::Running), 0);
    db.assert_sound();
}
