//! Copies restored at random under two schedulers that start 30 commands a second: no attempt runs twice within a history, no task beside
//! itself, and each output is that of the attempt that has it. `DULY_ROUNDS` sets the number of restores.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use duly::{NewTask, RetryPolicy};
use serde_json::json;

use crate::fixtures::{TestDb, eventually, number};
use crate::restores::{back_up, can_restore, restore};
use crate::sidecar::Sidecar;

/// Tasks of 5 runs a second each.
const TASKS: usize = 6;
const ROUNDS: usize = 3;

/// Notes its begin, and whether it runs beside itself. Its output is what identifies it.
const LINE: &str = r#"trap 'rmdir "$0/at-$DULY_TASK"; exit 1' TERM
    mkdir "$0/at-$DULY_TASK" || echo "$DULY_TASK: run $DULY_RUN_ID" >>"$0/overlaps"
    echo "$DULY_RUN_ID $DULY_ATTEMPT $DULY_TASK" >>"$0/journal"
    sleep 0.02
    echo "$DULY_TASK $DULY_RUN_ID $DULY_ATTEMPT"
    rmdir "$0/at-$DULY_TASK""#;

#[test]
fn restores_at_random_repeat_nothing_within_a_history() {
    if !can_restore() {
        return;
    }
    let mut random = fastrand::Rng::with_seed(number("DULY_SEED", fastrand::u64(..)));
    println!("DULY_SEED={}", random.get_seed());
    let (db, client) = TestDb::with_client();
    let journal = OpenOptions::new().append(true).create(true).open(db.home().join("journal"));
    let mut journal = journal.expect("the journal");
    let home = db.home().to_str().expect("a path").to_owned();
    for at in 0..TASKS {
        let retry = RetryPolicy { backoff: Duration::from_millis(100), ..RetryPolicy::default() };
        let task = NewTask::interval(format!("task-{at}"), Duration::from_millis(200)).handler("command").retry(retry);
        let task = if at % 2 == 0 { task.at_most_once() } else { task };
        client.add(task.payload(json!({ "argv": ["sh", "-c", LINE, home] }))).expect("a task");
    }
    drop(client);
    let schedulers = || Sidecar::start(&db, &["--lease", "3s", "--workers", "4"]);
    let (mut first, mut second) = (schedulers(), schedulers());
    let lines = || std::fs::read_to_string(db.home().join("journal")).unwrap_or_default();
    let more = |least: usize| {
        let enough = lines().lines().count() + least;
        eventually("enough has begun", || lines().lines().count() >= enough);
    };
    let mut copies = Vec::new();
    for round in 0..number("DULY_ROUNDS", ROUNDS) {
        more(random.usize(1..40));
        copies.push(back_up(&db, &format!("copy-{round}")));
        more(random.usize(1..40));
        journal.write_all(b"restore\n").expect("a line");
        restore(&db, &copies[random.usize(..copies.len())]);
        journal.write_all(b"restore\n").expect("a line");
    }
    more(60);
    first.terminate();
    second.terminate();
    assert_eq!(db.lines("overlaps"), [""; 0], "a task ran beside itself");
    // Odd during a restore: what begins then may be of either history.
    let mut phase = 0;
    let (mut begun, mut ids) = (HashMap::new(), HashMap::new());
    for line in lines().lines() {
        if line == "restore" {
            phase += 1;
            continue;
        }
        let [run, attempt, task] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let (run, task) = (run.to_owned(), task.to_owned());
        if let Some(before) = begun.insert((run.clone(), attempt.to_owned()), phase) {
            assert!(before < phase || phase % 2 == 1, "attempt {attempt} of run {run} began twice in a history");
        }
        assert_eq!(ids.entry(run).or_insert_with(|| task.clone()), &task, "an id was given out twice");
    }
    let foreign = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                    WHERE r.status = 'succeeded' AND trim(r.output, char(10)) <> t.name || ' ' || r.id || ' ' || r.attempt";
    assert_eq!(db.ask(foreign), "0", "the outcome of another attempt");
    assert_ne!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), "0");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_meta WHERE key = 'held'"), "0", "no task is held for ever");
    db.assert_sound();
}
