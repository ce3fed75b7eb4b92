//! What attempts of before a restore hold back: what was claimed, begun or not, and for how long nothing starts beside it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use duly::testing::Stepper;
use duly::{Claim, Client, Limits, NewTask, Overlap, Problem, ProblemKind, RunStatus};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, eventually, minutes, seconds, succeed, wait_for_status};
use crate::restores::{assert_restored, back_up, can_restore, each_minute, manual_shell, restore, two};
use crate::sidecar::{Gate, Sidecar, kill_group, shell, wait_for_line};

/// Returns whether the attempt begins.
fn begins(stepper: &mut Stepper, claim: &Arc<Claim>) -> bool {
    catch_unwind(AssertUnwindSafe(|| stepper.begin(claim))).is_ok()
}

fn held(db: &TestDb) -> Vec<Problem> {
    let mut found = db.client().check(&Limits::default()).expect("problems");
    found.retain(|problem| problem.kind == ProblemKind::Held);
    found
}

#[test]
fn what_was_claimed_and_not_begun_does_not_begin_after_a_restore() {
    let Some((db, [mut first, mut second], copy)) = two([each_minute("subject")]) else { return };
    first.clock().advance(minutes(1));
    let claims = first.claim(0).unwrap();
    assert_eq!(claims.len(), 1);
    restore(&db, &copy);
    let before = first.owner().to_owned();
    // Nothing shows the second that the first has it.
    let again = advance_and_step(&mut second, seconds(1));
    assert_eq!(again.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["subject"]);
    assert!(!begins(&mut first, &claims[0]), "it would run beside the attempt of the second");
    first.finish(&claims[0], duly::Outcome::Released);
    first.step().unwrap();
    assert_ne!(first.owner(), before);
    succeed(&mut second, &again[0]);
    // The first goes on.
    let next = advance_and_step(&mut first, minutes(1));
    assert!(begins(&mut first, &next[0]));
    succeed(&mut first, &next[0]);
    assert_restored(&db, 1);
}

#[test]
fn a_claim_of_which_nothing_shows_the_restore_is_compared_by_its_owner_before_others_start_anything() {
    let Some((db, [mut first, mut second], _)) = two([each_minute("subject")]) else { return };
    first.clock().advance(minutes(1));
    // Its run is queued in the copy, and nothing was written since but the claim.
    assert!(first.step().unwrap().len() == 1 && second.step().unwrap().is_empty());
    first.finish(&first.running()[0].clone(), duly::Outcome::succeeded());
    first.settle().unwrap();
    let run = first.client().trigger("subject").unwrap();
    let copy = back_up(&db, "copy.db");
    let claims = first.claim(0).unwrap();
    assert_eq!(claims[0].run_id, run);
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty(), "the first has not compared");
    let before = first.owner().to_owned();
    assert!(first.step().unwrap().is_empty() && !begins(&mut first, &claims[0]));
    assert_ne!(first.owner(), before);
    first.finish(&claims[0], duly::Outcome::Released);
    let again = [first.step().unwrap(), advance_and_step(&mut second, seconds(1))].concat();
    assert_eq!(again.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [run]);
    assert_restored(&db, 1);
}

#[test]
fn after_a_change_of_tables_a_scheduler_waits_at_most_a_lease_for_another_to_compare() {
    let every = NewTask::interval("subject", seconds(5)).handler("work").overlap(Overlap::Allow);
    let Some((db, [mut first, second], _)) = two([every]) else { return };
    assert_eq!(advance_and_step(&mut first, seconds(5)).len(), 1);
    db.plain().execute_batch("CREATE TABLE notes (text)").unwrap();
    assert!(advance_and_step(&mut first, seconds(5)).is_empty());
    // The other one is stopped, for example by SIGSTOP.
    assert!(!advance_and_step(&mut first, seconds(60)).is_empty());
    drop(second);
}

#[test]
fn a_scheduler_is_waited_for_as_long_as_any_other_whatever_its_lease() {
    for lease in [1000, i64::MAX] {
        let Some((db, [mut first, second], _)) = two([each_minute("subject")]) else { return };
        assert_eq!(advance_and_step(&mut first, minutes(1)).len(), 1);
        let set = format!("UPDATE scheduler_instances SET lease_ms = {lease} WHERE id = '{}'", second.owner());
        db.plain().execute_batch(&(set + "; CREATE TABLE notes (text)")).unwrap();
        assert!(advance_and_step(&mut first, minutes(1)).is_empty());
        let found = first.client().check(&Limits::default()).unwrap();
        let names = |problem: &Problem| problem.found.starts_with("nothing starts until the scheduler with pid ");
        // It has missed its heartbeats.
        assert_eq!(found.iter().any(names), lease == 1000, "{found:?}");
        assert!(!advance_and_step(&mut first, minutes(1)).is_empty());
    }
}

#[test]
fn the_key_of_a_running_attempt_is_held_although_the_copy_lacks_its_task() {
    let keyed = |name: &str| NewTask::manual(name).handler("work").concurrency_key("shared");
    let Some((db, [mut first, mut second], copy)) = two([keyed("waiter")]) else { return };
    first.client().add(keyed("newer")).unwrap();
    first.client().trigger("newer").unwrap();
    let claims = advance_and_step(&mut first, minutes(1));
    assert_eq!(claims.len(), 1);
    restore(&db, &copy);
    second.client().trigger("waiter").unwrap();
    assert!(second.step().unwrap().is_empty(), "its key is held");
    assert!(first.step().unwrap().is_empty() && second.step().unwrap().is_empty());
    let started = [succeed(&mut first, &claims[0]), advance_and_step(&mut second, minutes(1))].concat();
    assert_eq!(started.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["waiter"]);
    assert_restored(&db, 1);
}

#[test]
fn a_missing_lock_file_of_an_earlier_id_proves_nothing() {
    let Some((db, [mut first, mut second], copy)) = two([each_minute("subject")]) else { return };
    let claims = advance_and_step(&mut first, minutes(1));
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty());
    let run = claims[0].run_id;
    let before = held(&db);
    let [found] = &before[..] else { panic!("{before:?}") };
    assert_eq!((found.task.as_deref(), found.run), (Some("subject"), Some(run)));
    assert!(found.advice.contains("is alive, and has not noticed the restore"), "{found}");
    let refused = db.client().declare_gone(run).unwrap_err();
    assert!(refused.to_string().contains("its scheduler is alive"), "{refused}");
    std::fs::remove_file(db.lock_file(&first)).unwrap();
    assert!(advance_and_step(&mut second, minutes(1)).is_empty(), "it runs");
    assert!(held(&db)[0].advice.ends_with(&format!("if it is gone: duly cancel {run} --gone")), "{:?}", held(&db));
    // The owner goes on under another id. Its earlier file is missing, and that it lives shows.
    assert!(first.step().unwrap().is_empty() && advance_and_step(&mut second, minutes(1)).is_empty());
    assert!(held(&db)[0].advice.contains("is alive and asks it to stop"), "{:?}", held(&db));
    let started = [succeed(&mut first, &claims[0]), advance_and_step(&mut second, minutes(1))].concat();
    assert!(!started.is_empty() && held(&db).is_empty());
    drop(first);
    assert_restored(&db, 1);
}

#[test]
fn what_a_stopped_scheduler_had_claimed_is_free_when_its_end_is_recorded() {
    let Some((db, [mut first, mut second], copy)) = two([each_minute("subject")]) else { return };
    advance_and_step(&mut first, minutes(1));
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty());
    assert!(first.step().unwrap().is_empty());
    // Under its next id.
    first.crash();
    assert_eq!(advance_and_step(&mut second, minutes(1)).len(), 1);
    assert!(held(&db).is_empty());
    assert_restored(&db, 1);
}

/// A command whose scheduler and guard were killed before a copy was restored that lacks its run. Returns the run, and its process group.
fn orphan_of_before() -> Option<(TestDb, Client, Gate, i64, String)> {
    if !can_restore() {
        return None;
    }
    let (db, client) = TestDb::with_client();
    let (home, gate) = (db.home().display(), Gate::new(&db, "gate"));
    client.add(manual_shell("subject", &format!("echo $$ >>{home}/begun; read line <{home}/gate"))).unwrap();
    let copy = back_up(&db, "copy.db");
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let before = client.trigger("subject").unwrap();
    let group = wait_for_line(&db, "begun");
    sidecar.kill_with_guard();
    restore(&db, &copy);
    Some((db, client, gate, before, group))
}

/// Asserts that a run waits while another task runs.
fn assert_waits(db: &TestDb, run: i64, other: &str) {
    db.client().add(shell(other, "true")).unwrap();
    wait_for_status(&db.client(), other, RunStatus::Succeeded);
    assert_eq!((db.lines("begun").len(), db.run(run).status), (1, RunStatus::Queued));
}

#[test]
fn a_command_of_before_that_a_user_declares_gone_holds_nothing_back() {
    let Some((db, client, mut gate, before, group)) = orphan_of_before() else { return };
    let run = client.trigger("subject").unwrap();
    let mut next = Sidecar::start(&db, &["--lease", "1s"]);
    assert_waits(&db, run, "other");
    let found = held(&db);
    assert_eq!(
        found[0].to_string(),
        format!(
            "held: run {before} of subject was begun before the database was restored, and may still run: its task, and others with \
             its concurrency key, start nothing: its scheduler is dead: end its command, whose environment has \
             DULY_RUN_ID={before}; or, if it is gone: duly cancel {before} --gone"
        )
    );
    db.printed(&["cancel", &before.to_string(), "--gone"]);
    eventually("it starts", || db.lines("begun").len() == 2);
    kill_group(&group);
    gate.open();
    wait_for_status(&client, "subject", RunStatus::Succeeded);
    next.terminate();
    assert!(held(&db).is_empty());
    assert_restored(&db, 1);
}

#[test]
fn what_is_held_back_is_not_looked_for_again_at_once() {
    let Some((db, [mut first, mut second], copy)) = two(["subject", "other"].map(each_minute)) else { return };
    let claims = advance_and_step(&mut first, minutes(1));
    let other = claims.iter().find(|claim| claim.task == "other").unwrap();
    succeed(&mut first, other);
    restore(&db, &copy);
    first.client().trigger("subject").unwrap();
    assert!(first.step().unwrap().iter().all(|claim| claim.task == "other"));
    for _ in 0..3 {
        second.step().unwrap();
        let started = advance_and_step(&mut second, minutes(1));
        assert_eq!(started.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["other"]);
        assert!(second.sleeps() >= seconds(1), "it sleeps {:?}", second.sleeps());
        succeed(&mut second, &started[0]);
        first.step().unwrap();
    }
}

#[test]
fn more_runs_than_a_turn_passes_over_keep_no_other_from_starting() {
    let tasks = ["subject", "other"].map(|name| NewTask::manual(name).handler("work"));
    let Some((db, [mut first, mut second], copy)) = two(tasks) else { return };
    first.client().trigger("subject").unwrap();
    let before = first.step().unwrap();
    restore(&db, &copy);
    let client = second.client().clone();
    for _ in 0..600 {
        client.trigger("subject").unwrap();
    }
    client.trigger("other").unwrap();
    let started = (0..4).map(|_| second.step().unwrap()).find(|started| !started.is_empty()).expect("a start");
    assert_eq!(started.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["other"]);
    assert!(second.sleeps() >= seconds(1), "it sleeps {:?}", second.sleeps());
    // What was passed over starts when nothing holds it back.
    first.step().unwrap();
    let freed = [succeed(&mut first, &before[0]), advance_and_step(&mut second, seconds(1))].concat();
    assert!(!freed.is_empty() && freed.iter().all(|claim| claim.task == "subject"), "{freed:?}");
    assert_restored(&db, 1);
}

#[test]
fn one_declaration_frees_a_run_of_before_and_its_row_in_the_copy() {
    let tasks = ["subject", "other"].map(|name| NewTask::manual(name).handler("work"));
    let Some((db, [mut first, mut second], _)) = two(tasks) else { return };
    let run = first.client().trigger("subject").unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let copy = back_up(&db, "running.db");
    // The copy lacks this one.
    first.client().trigger("other").unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let input = File::create_new(db.lock_folder().join(format!("run-{run}-1"))).unwrap();
    input.lock().unwrap();
    first.crash();
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty());
    assert_eq!(held(&db).iter().map(|problem| problem.run).collect::<Vec<_>>(), [Some(run)]);
    db.client().declare_gone(run).unwrap();
    assert!(held(&db).is_empty());
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'declared_gone'"), "2");
    second.step().unwrap();
    assert_eq!(db.run(run).status, RunStatus::Cancelled);
    assert_restored(&db, 1);
}

#[test]
fn a_damaged_row_of_what_is_held_holds_everything_until_a_user_declares_it_gone() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::manual("subject").handler("work")).unwrap();
    let run = stepper.client().trigger("subject").unwrap();
    db.plain().execute_batch("INSERT INTO scheduler_meta (key, value) VALUES ('held', '{\"a-1\":7}')").unwrap();
    assert!(advance_and_step(&mut stepper, minutes(1)).is_empty() && stepper.step().unwrap().is_empty());
    let found = held(&db);
    assert!(found[0].to_string().contains("is damaged (held in scheduler_meta)"), "{found:?}");
    assert!(found[0].advice.ends_with("--gone, for a run that waits; if none does, trigger one"), "{found:?}");
    assert_eq!(db.client().declare_all_gone("subject").unwrap(), 0, "it may be of another task");
    let said = db.printed(&["cancel", &run.to_string(), "--gone"]);
    assert_eq!(said, format!("what was begun before the restore is declared gone: it holds run {run} back no more\n"));
    assert!(held(&db).is_empty());
    assert_eq!(advance_and_step(&mut stepper, seconds(1)).len(), 1);
    db.assert_sound();
}

#[test]
fn a_damaged_row_is_not_declared_gone_while_a_scheduler_may_run_what_it_said() {
    let Some((db, [mut first, mut second], _)) = two([NewTask::manual("subject").handler("work")]) else { return };
    let run = first.client().trigger("subject").unwrap();
    let damage = "INSERT INTO scheduler_meta (key, value) VALUES ('held', '{\"a-1\":7}'); CREATE TABLE notes (text)";
    db.plain().execute_batch(damage).unwrap();
    for wait in [1, 61] {
        assert!(advance_and_step(&mut first, seconds(wait)).is_empty());
        let refused = db.client().declare_gone(run).unwrap_err().to_string();
        assert!(refused.contains(&format!("scheduler {} is alive", second.owner())), "{refused}");
    }
    assert!(second.step().unwrap().is_empty());
    assert_eq!(db.ask("SELECT value FROM scheduler_meta WHERE key = 'held'"), "{\"a-1\":7}", "it is left as it is");
    db.client().declare_gone(run).unwrap();
    assert!(held(&db).is_empty());
    assert_eq!(advance_and_step(&mut first, seconds(1)).len(), 1);
    db.assert_sound();
}

#[test]
fn what_an_orphan_runs_is_held_although_the_next_scheduler_is_the_first_to_write() {
    let Some((db, client, mut gate, _, group)) = orphan_of_before() else { return };
    let mut next = Sidecar::start(&db, &["--lease", "1s"]);
    let run = client.trigger("subject").unwrap();
    assert_waits(&db, run, "other");
    // Nor does another start remove what shows it.
    next.terminate();
    let mut next = Sidecar::start(&db, &["--lease", "1s"]);
    assert_waits(&db, run, "another");
    kill_group(&group);
    eventually("it starts when the command is gone", || db.lines("begun").len() == 2);
    gate.open();
    wait_for_status(&client, "subject", RunStatus::Succeeded);
    next.terminate();
    assert_restored(&db, 1);
}

#[test]
fn tables_that_change_often_stop_nothing_for_longer_than_a_lease() {
    let every = NewTask::interval("subject", seconds(5)).handler("work").overlap(Overlap::Allow);
    let Some((db, [mut first, mut second], _)) = two([every]) else { return };
    let running = advance_and_step(&mut second, seconds(5));
    assert_eq!(running.len(), 1);
    let mut started = 0;
    for number in 0..16 {
        db.plain().execute_batch(&format!("CREATE TABLE notes_{number} (text)")).unwrap();
        started += advance_and_step(&mut first, seconds(5)).len();
    }
    assert!(started > 0, "the second makes no progress, and has begun what it will");
    // It goes on under its id, with what runs.
    let before = second.owner().to_owned();
    assert!(!succeed(&mut second, &running[0]).is_empty(), "it begins what waits");
    assert_eq!(second.owner(), before);
    assert_eq!(db.client().run(running[0].run_id).unwrap().unwrap().status, RunStatus::Succeeded);
    assert_restored(&db, 0);
}

/// Two schedulers, and a claim of the first. A restore has taken it back, and nothing shows that to the second. `refused`: after how many
/// seconds a task is due whose run cannot be written.
fn claim_that_nothing_shows(refused: u64) -> Option<(TestDb, [Stepper; 2], Arc<Claim>)> {
    let refused = NewTask::once("refused", at(NOON) + seconds(refused)).handler("work");
    let (db, [mut first, mut second], _) = two([NewTask::manual("subject").handler("work"), refused])?;
    db.plain()
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON task_runs
               WHEN NEW.task_id = (SELECT id FROM scheduled_tasks WHERE name = 'refused')
              BEGIN SELECT RAISE(ABORT, 'not today'); END",
        )
        .unwrap();
    assert!(first.step().unwrap().is_empty() && second.step().unwrap().is_empty());
    first.client().trigger("subject").unwrap();
    let ended = first.step().unwrap();
    succeed(&mut first, &ended[0]);
    let run = first.client().trigger("subject").unwrap();
    second.client().check(&Limits::default()).unwrap();
    let copy = back_up(&db, "copy.db");
    let claims = first.claim(0).unwrap();
    assert_eq!(claims[0].run_id, run);
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty(), "the first has not compared");
    Some((db, [first, second], claims[0].clone()))
}

#[test]
fn a_scheduler_that_makes_no_progress_for_a_lease_begins_no_claim_that_it_has_not_compared() {
    let Some((db, [mut first, mut second], claim)) = claim_that_nothing_shows(3600) else { return };
    let again = advance_and_step(&mut second, seconds(61));
    assert_eq!(again.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [claim.run_id]);
    assert!(!begins(&mut first, &claim), "it would run beside the attempt of the second");
    let before = first.owner().to_owned();
    first.finish(&claim, duly::Outcome::Released);
    first.step().unwrap();
    assert_ne!(first.owner(), before);
    succeed(&mut second, &again[0]);
    assert_eq!(db.client().run(claim.run_id).unwrap().unwrap().status, RunStatus::Succeeded);
    db.assert_sound();
}

/// Asserts that the run of a claim of the first, which has begun, is held until it ends, and starts then.
fn assert_held_until_it_ends(db: &TestDb, [mut first, mut second]: [Stepper; 2], claim: &Arc<Claim>) {
    assert_eq!(held(db).iter().map(|problem| problem.run).collect::<Vec<_>>(), [Some(claim.run_id)]);
    assert!(advance_and_step(&mut second, minutes(2)).is_empty(), "it runs");
    assert!(first.step().unwrap().is_empty(), "it runs");
    let again = [succeed(&mut first, claim), advance_and_step(&mut second, minutes(1))].concat();
    assert_eq!(again.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [claim.run_id]);
    assert!(held(db).is_empty());
    db.assert_sound();
}

#[test]
fn what_a_halted_scheduler_had_begun_is_held_although_the_turn_that_halts_it_is_rolled_back() {
    // In the turn that notices the change, or in the one that halts.
    for refused in [1, 30] {
        let Some((db, [mut first, mut second], claim)) = claim_that_nothing_shows(refused) else { return };
        assert!(begins(&mut first, &claim));
        assert!(advance_and_step(&mut second, seconds(61)).is_empty(), "it runs");
        assert_held_until_it_ends(&db, [first, second], &claim);
    }
}

#[test]
fn what_a_halted_scheduler_had_begun_is_held_although_the_one_that_halted_it_has_died() {
    let Some((db, [mut first, mut second], claim)) = claim_that_nothing_shows(3600) else { return };
    assert!(begins(&mut first, &claim));
    // As it is halted by a scheduler that is killed before its commit.
    let file = File::options().write(true).open(db.lock_file(&first)).unwrap();
    file.write_all_at(b"E", 254).unwrap();
    assert!(advance_and_step(&mut second, seconds(1)).is_empty(), "it runs");
    assert_held_until_it_ends(&db, [first, second], &claim);
}

#[test]
fn what_cannot_be_known_of_a_scheduler_without_a_lock_file_is_declared_gone() {
    let Some((db, [mut first, mut second], copy)) = two([each_minute("subject")]) else { return };
    advance_and_step(&mut first, minutes(1));
    std::fs::write(db.lock_file(&first), "damaged").unwrap();
    restore(&db, &copy);
    assert!(advance_and_step(&mut second, seconds(1)).is_empty());
    let run = db.client().trigger("subject").unwrap();
    assert!(held(&db)[0].advice.contains("let that process go on"), "{:?}", held(&db));
    db.client().declare_gone(run).unwrap_err();
    std::fs::remove_file(db.lock_file(&first)).unwrap();
    first.crash();
    assert!(advance_and_step(&mut second, seconds(1)).is_empty());
    assert!(held(&db)[0].advice.contains("has no lock file"), "{:?}", held(&db));
    db.client().declare_gone(run).unwrap();
    assert!(held(&db).is_empty());
    assert!(advance_and_step(&mut second, seconds(1)).iter().any(|claim| claim.run_id == run));
    assert_restored(&db, 1);
}

#[test]
fn a_dead_scheduler_whose_slots_cannot_be_read_holds_everything_while_a_command_holds_its_input() {
    let Some((db, [mut first, mut second], copy)) = two([each_minute("subject")]) else { return };
    let claims = advance_and_step(&mut first, minutes(1));
    let lock_file = db.lock_file(&first);
    first.crash();
    std::fs::write(lock_file, "damaged").unwrap();
    let input = File::create_new(db.lock_folder().join(format!("run-{}-1", claims[0].run_id))).unwrap();
    input.lock().unwrap();
    restore(&db, &copy);
    let record = db.lock_folder().join("history.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let mut known: serde_json::Value = serde_json::from_str(&text).unwrap();
    known["ids"]["task_runs"] = 70.into();
    std::fs::write(&record, known.to_string()).unwrap();
    db.client().trigger("subject").unwrap();
    assert!(advance_and_step(&mut second, minutes(1)).is_empty() && second.step().unwrap().is_empty());
    drop(input);
    assert!(!advance_and_step(&mut second, minutes(1)).is_empty());
    assert_restored(&db, 1);
}

#[test]
fn a_file_that_a_restore_emptied_under_a_living_scheduler_gives_out_no_id_again() {
    if !can_restore() {
        return;
    }
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::manual("subject").handler("work")).unwrap();
    advance_and_step(&mut stepper, minutes(1));
    let empty = TestDb::new();
    drop(empty.client());
    let copy = back_up(&empty, "copy.db");
    restore(&db, &copy);
    db.client().add(NewTask::manual("new").handler("work")).unwrap();
    let id: i64 = db.number("SELECT id FROM scheduled_tasks");
    assert!(id > 1000, "task {id}");
    stepper.step().unwrap();
    assert_restored(&db, 1);
}
