//! Running runs whose owner is not registered: another program wrote them, or deleted the owner's row. `check` and `doctor`
//! name each with its owner; once the lease has not changed for its whole length, a scheduler recovers them as lost.

use crate::fixtures::{NOON, TestDb, advance_and_step, findings, once, problems, seconds, step, step_after, succeed};

#[test]
fn a_run_of_an_unregistered_owner_is_named_and_recovered() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("ours")).expect("a task");
    client.add(once("theirs")).expect("a task");
    let ours = step(&mut stepper, 2).remove(0);
    assert_eq!((problems(&client), findings(&client)), (vec![], vec![]));
    let take = "UPDATE task_runs SET locked_by = 'my-script', locked_until = 64060588800000 WHERE id = 2";
    db.execute(take);
    let rule = "each running run has a registered owner: run 2 of task theirs is running for owner my-script";
    assert_eq!(findings(&client), [rule]);
    let (lacks, when) = if db.is_on_server() {
        ("session", "passed and not changed for a full lease")
    } else {
        ("lock file", "not changed for a full lease")
    };
    let line = format!(
        "unknown_owner: run 2 of theirs is running for owner my-script, which is not registered and has no {lacks}: \
         a scheduler recovers it when its lease has {when} (duly run); only schedulers may claim runs"
    );
    assert_eq!(problems(&client), [line.as_str()]);
    // With its lease in the past it is one problem, not two.
    db.execute("UPDATE task_runs SET locked_until = started_at WHERE id = 2");
    assert_eq!(problems(&client), [line]);

    // Its lease is first seen in its present value after 14 s.
    for _ in 0..6 {
        assert_eq!(db.ask("SELECT status || locked_by FROM task_runs WHERE id = 2"), "runningmy-script", "too early");
        advance_and_step(&mut stepper, seconds(14));
    }
    assert_eq!(db.run(2).status, duly::RunStatus::Failed);
    assert_eq!(db.rows("SELECT run_id, outcome, locked_by FROM task_attempts"), ["2|lost|my-script"]);
    assert_eq!((problems(&client), findings(&client)), (vec![], vec![]));
    succeed(&mut stepper, &ours);
    assert_eq!(db.run(1).status, duly::RunStatus::Succeeded);
}

#[test]
fn a_scheduler_whose_row_was_deleted_is_named_while_alive_and_when_dead() {
    let db = TestDb::new();
    let (mut stepper, mut other) = (db.stepper(NOON), db.stepper(NOON));
    let client = other.client().clone();
    client.add(once("ours")).expect("a task");
    step(&mut stepper, 1);
    step(&mut other, 0);
    let owner = stepper.owner().to_owned();
    let remove = format!("DELETE FROM scheduler_instances WHERE id = '{owner}'");
    db.execute(&remove);
    let begin = format!("unknown_owner: run 1 of ours is running for owner {owner}, which is not registered");
    let advice = "its row was removed while it was running; it registers again at its next heartbeat";
    assert_eq!(problems(&client), [format!("{begin} and is alive: {advice}")]);
    stepper.crash();
    // Only its row shows on which machine its lock file proves something.
    let found = problems(&client);
    let end =
        if db.is_on_server() { "has no session: a scheduler recovers it when" } else { "is dead: the next turn of a" };
    assert!(found.len() == 1 && found[0].starts_with(&format!("{begin} and {end} ")), "{found:?}");
    advance_and_step(&mut other, seconds(1));
    if db.is_on_server() {
        advance_and_step(&mut other, seconds(60));
    }
    assert_eq!((problems(&client), findings(&client)), (vec![], vec![]));
}

#[test]
fn a_scheduler_whose_row_was_deleted_registers_again_at_its_next_heartbeat() {
    let db = TestDb::new();
    let (mut stepper, mut other) = (db.stepper(NOON), db.stepper(NOON));
    let client = other.client().clone();
    client.add(once("ours")).expect("a task");
    let ours = step(&mut stepper, 1).remove(0);
    step(&mut other, 0);
    let rows = "SELECT id, host, pid, workers, lease_ms, stopped_at FROM scheduler_instances ORDER BY id";
    let before = db.rows(rows);
    let remove = format!("DELETE FROM scheduler_instances WHERE id = '{}'", stepper.owner());
    db.execute(&remove);
    for scheduler in [&mut stepper, &mut other] {
        step_after(scheduler, seconds(30), 0);
    }
    assert_eq!(db.rows(rows), before);
    assert_eq!((problems(&client), findings(&client)), (vec![], vec![]));
    succeed(&mut stepper, &ours);
}
