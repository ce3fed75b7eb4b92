//! What a run reports: its progress and its result.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use duly::command::CommandContext;
use duly::{BoxError, Context, Event, MAX_RESULT_BYTES, NewTask, Scheduler};

use crate::fixtures::{NOON, TestDb, at, eventually, finish, held, once, overdue, patience, receive, seconds};

const SOON: &str = "2027-03-14T12:00:05Z";

fn progress(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.status, r.progress FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY t.name",
    )
}

#[test]
fn the_last_progress_is_kept_after_every_outcome() {
    let db = TestDb::new();
    let mut stepper = db
        .builder(NOON)
        .handler("work", |run: &Context| {
            for n in 1..=1000 {
                run.progress(format!("{n} of 1000"));
            }
            match run.task() {
                "fails" if run.attempt() == 1 => Err(BoxError::from("no luck")),
                "fails" => Ok(()),
                "finishes" => finish(run, "", || Ok(())),
                "long" => {
                    run.progress("é".repeat(1000));
                    Ok(())
                }
                "panics" => panic!("the pan is hot"),
                _ => Ok(()),
            }
        })
        .handler("mute", |_: &Context| Ok::<_, BoxError>(()))
        .start()
        .unwrap();
    for name in ["fails", "finishes", "long", "panics", "returns"] {
        stepper.client().add(once(name)).unwrap();
    }
    stepper.client().add(NewTask::once("mute", at(NOON)).handler("mute")).unwrap();
    stepper.run_until(at(SOON)).unwrap();
    let long = format!("long|succeeded|{}...", "é".repeat(512));
    assert_eq!(
        progress(&db),
        [
            "fails|failed|1000 of 1000",
            "finishes|succeeded|1000 of 1000",
            &long,
            "mute|succeeded|-",
            "panics|failed|1000 of 1000",
            "returns|succeeded|1000 of 1000",
        ]
    );
    db.assert_sound();
}

#[test]
fn progress_is_written_at_most_once_a_second_with_the_newest_text() {
    let db = TestDb::new();
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let scheduler = Scheduler::builder(db.address())
        .workers(2)
        // Only the progress wakes the loop.
        .poll(seconds(600))
        .handler("work", move |run: &Context| {
            let gate = gate.lock().unwrap();
            run.progress("begun");
            held(&*gate)?;
            for n in 0..10_000 {
                run.progress(format!("step {n}"));
            }
            held(&*gate)?;
            Ok::<_, BoxError>(())
        })
        .start()
        .unwrap();
    scheduler.add(overdue("words")).unwrap();
    eventually("the first words are shown", || progress(&db) == ["words|running|begun"]);
    // Each write of the progress leaves a trace.
    db.execute(
        "CREATE TABLE written (words TEXT) STRICT;
             CREATE TRIGGER words_written AFTER UPDATE OF progress ON task_runs WHEN NEW.status = 'running'
             BEGIN INSERT INTO written VALUES (NEW.progress); END",
    );
    let begin = std::time::Instant::now();
    open.send(()).unwrap();
    eventually("the newest words are shown", || progress(&db) == ["words|running|step 9999"]);
    let written = db.rows("SELECT words FROM written");
    // One at once, and one for each second that it took, which on a busy machine may be more than one.
    assert!(written.len() as u64 <= 2 + begin.elapsed().as_secs(), "{written:?}");
    open.send(()).unwrap();
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert_eq!(progress(&db), ["words|succeeded|step 9999"]);
    db.assert_sound();
}

#[test]
fn an_attempt_starts_without_progress_and_a_superseded_one_writes_none() {
    let db = TestDb::new();
    let (other, client) = (db.other_program(), db.client());
    let mut stepper = db
        .builder(NOON)
        .handler("work", move |run: &Context| {
            if run.attempt() == 1 {
                run.progress("first");
                return Err(BoxError::from("no luck"));
            }
            assert_eq!(client.run(run.run_id())?.and_then(|run| run.progress), None);
            run.progress("second");
            Ok(other.execute("UPDATE task_runs SET locked_by = 'another'")?)
        })
        .start()
        .unwrap();
    stepper.client().add(once("words")).unwrap();
    stepper.run_until(at(SOON)).unwrap();
    assert_eq!(progress(&db), ["words|failed|first"]);
    stepper.run_until(at("2027-03-14T12:00:30Z")).unwrap();
    assert_eq!(progress(&db), ["words|running|-"]);
    assert_eq!(db.ask("SELECT outcome FROM task_attempts WHERE attempt = 2"), "superseded");
}

/// Reports are fenced: that of an attempt whose run another owner holds changes nothing. Beside it, one that is stored.
#[test]
fn output_of_a_superseded_attempt_is_not_stored() {
    let db = TestDb::new();
    let (sender, contexts) = channel();
    let (open, gate) = channel::<()>();
    let (sender, gate) = (Mutex::new(sender), Mutex::new(gate));
    let scheduler = Scheduler::builder(db.address())
        .workers(2)
        .handler("work", move |run: &Context| {
            sender.lock().unwrap().send(run.clone())?;
            held(&*gate.lock().unwrap())?;
            Ok::<_, BoxError>(())
        })
        .start()
        .unwrap();
    ["kept", "taken"].iter().for_each(|name| drop(scheduler.add(overdue(name)).unwrap()));
    let mut running: Vec<Context> = (0..2).map(|_| receive(&contexts, "a run")).collect();
    running.sort_by(|one, other| one.task().cmp(other.task()));
    let [kept, taken] = &running[..] else { panic!("two runs") };
    let output = |run: &Context| db.run(run.run_id()).output.unwrap_or_default();
    CommandContext::of(taken).report_output("mine");
    eventually("the first output is stored", || output(taken) == "mine");
    let run = taken.run_id();
    db.execute(&format!("UPDATE task_runs SET locked_by = 'another', output = 'theirs' WHERE id = {run}"));
    CommandContext::of(taken).report_output("stale");
    // The second report is due a second after the first, and so after the stale one.
    for text in ["first", "second"] {
        CommandContext::of(kept).report_output(text);
        eventually("output is stored", || output(kept) == text);
    }
    assert_eq!(output(taken), "theirs");
    open.send(()).unwrap();
    open.send(()).unwrap();
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert_eq!((output(kept), output(taken)), ("second".to_owned(), "theirs".to_owned()));
}

#[test]
fn a_result_that_is_too_long_is_reported_and_the_run_succeeds() {
    let db = TestDb::new();
    let (sender, receiver) = channel();
    let mut stepper = db
        .builder(NOON)
        .handler("work", |run: &Context| {
            // Two of them are the quotes of JSON.
            let text = "x".repeat(MAX_RESULT_BYTES - 2 + usize::from(run.task() != "fits"));
            if run.task() == "finishes" { finish(run, "", || Ok(text.clone())) } else { Ok(text) }
        })
        .observe(move |event: &Event| drop(sender.send(event.to_string())))
        .start()
        .unwrap();
    for name in ["finishes", "fits", "returns"] {
        stepper.client().add(once(name)).unwrap();
    }
    stepper.run_until(at("2027-03-14T12:05:00Z")).unwrap();
    let rows = db.rows(
        "SELECT t.name, r.status, r.attempt, length(r.result), r.error
           FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY t.name",
    );
    let remark = "its result is not kept: expected at most 262144 bytes of JSON, found 262145";
    let [finishes, returns] = ["finishes", "returns"].map(|name| format!("{name}|succeeded|1|-|{remark}"));
    assert_eq!(rows, [finishes, "fits|succeeded|1|262144|-".to_owned(), returns]);
    assert_eq!(receiver.try_iter().filter(|line| line.contains(remark)).count(), 2, "and the log says so");
    db.assert_sound();
}

#[test]
fn a_result_that_is_no_json_is_reported_and_the_run_is_not_repeated() {
    let db = TestDb::new();
    let mut stepper = db
        .builder(NOON)
        .handler("pairs", |_: &Context| Ok::<_, BoxError>(BTreeMap::from([((1, 2), 3)])))
        .handler("weigh", |_: &Context| Ok::<_, BoxError>(Some(f64::NAN)))
        .start()
        .unwrap();
    stepper.client().add_all(["pairs", "weigh"].map(|name| once(name).handler(name))).unwrap();
    assert_eq!(stepper.run_until(at("2027-03-14T12:30:00Z")).unwrap().len(), 2, "one attempt each");
    let errors = ["key must be a string", "NaN is no number of JSON"]
        .map(|error| format!("dead|1|what it returned cannot be stored: {error}"));
    assert_eq!(db.rows("SELECT status, attempt, error FROM task_runs ORDER BY id"), errors);
    db.assert_sound();
}
