//! SQLite's heap is full. Its limit holds for the whole process and cannot be raised again: a process of its own sets one,
//! and fills the heap with prepared statements until they are dropped.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

use duly::testing::Stepper;
use duly::{Claim, Context, Error, Event, NewTask, Outcome, RunStatus, Scheduler};
use rusqlite::{Connection, Statement};

use crate::disk::all;
use crate::disk::tools::{run_test, this_program};
use crate::fixtures::{NOON, TestDb, at, held, listen, overdue, patience, receive};

/// Enough for everything here, and soon filled.
const HEAP: i64 = 24 * 1024 * 1024;

/// Statements that hold memory, the largest first.
struct HeldMemory<'a>(Vec<Statement<'a>>);

impl<'a> HeldMemory<'a> {
    /// Fills the heap to the last statement that fits.
    fn fill(connection: &'a Connection, smallest: usize) -> Self {
        let mut held = Vec::new();
        let mut size = 64 * 1024;
        while size >= smallest {
            match connection.prepare(&format!("SELECT '{}'", "x".repeat(size))) {
                Ok(statement) => held.push(statement),
                Err(_) => size /= 2,
            }
        }
        assert!(held.len() > 50, "the heap has no limit: {}", held.len());
        HeldMemory(held)
    }

    fn yield_some(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

fn limit() {
    let connection = Connection::open_in_memory().expect("a connection");
    let limit = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let set = connection.query_row(&format!("PRAGMA hard_heap_limit = {HEAP}"), [], limit).expect("a limit");
    assert_eq!(set, HEAP);
}

/// Runs a test of this file in a process of its own. Returns whether this is that process.
fn in_own_process(test: &str) -> bool {
    const INSIDE: &str = "DULY_LITTLE_MEMORY";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    run_test(Command::new(this_program()).env(INSIDE, "1"), &format!("disk::memory::{test}"));
    false
}

/// Takes one turn, with more memory at each try. Returns its claims, and how many tries were refused.
fn step_with_little_memory(stepper: &mut Stepper, smallest: usize) -> (Vec<Arc<Claim>>, usize) {
    let connection = Connection::open_in_memory().expect("a connection");
    let mut held_memory = HeldMemory::fill(&connection, smallest);
    for refused in 0.. {
        let claims = stepper.step().expect("a step");
        if !claims.is_empty() {
            return (claims, refused);
        }
        assert!(held_memory.yield_some(), "it fails with all of its memory");
        stepper.clock().advance(stepper.sleeps());
    }
    unreachable!("the held memory is finite");
}

/// A turn that claims, and one that settles a run and claims another: each is committed completely or not at all.
#[test]
fn a_turn_without_memory_is_atomic() {
    if !in_own_process("a_turn_without_memory_is_atomic") {
        return;
    }
    limit();
    let mut refused = 0;
    // Each round begins at another point, since the released amounts differ.
    for smallest in if all() { vec![1, 16, 64, 256, 512, 1024, 2048, 4096] } else { vec![64, 1024] } {
        let db = TestDb::new();
        let (observer, receiver) = listen();
        let mut stepper = db.builder(NOON).accept("work").workers(1).observe(observer).start().expect("a stepper");
        let once = |name: &str| NewTask::once(name, at(NOON)).handler("work").payload("y".repeat(3000));
        stepper.client().add_all([once("first"), once("second"), once("third")]).expect("tasks");
        // No statement of a turn has been prepared yet.
        let (first, tries) = step_with_little_memory(&mut stepper, smallest);
        refused += tries;
        let result = format!("{:?}", "z".repeat(20_000));
        stepper.finish(&first[0], Outcome::Succeeded { result: Some(result.clone()) });
        let (second, more) = step_with_little_memory(&mut stepper, smallest);
        refused += more;
        let events: Vec<Event> = receiver.try_iter().collect();
        let states = events.iter().filter(|event| matches!(event, Event::Degraded { .. } | Event::Recovered));
        let expected = 2 * (usize::from(tries > 0) + usize::from(more > 0));
        assert_eq!(states.count(), expected, "two lines, however many tries: {events:?}");
        let enough = |event: &Event| !matches!(event, Event::Degraded { reason } if !reason.contains("memory"));
        assert!(events.iter().all(enough), "{events:?}");
        let run = stepper.client().run(first[0].run_id).expect("a look-up").expect("a run");
        assert_eq!((run.status, run.attempt, run.result), (RunStatus::Succeeded, 1, Some(result)));
        stepper.finish(&second[0], Outcome::succeeded());
        let last = stepper.step().expect("a step");
        stepper.finish(&last[0], Outcome::succeeded());
        stepper.step().expect("a step");
        let runs = "SELECT group_concat(status || ' ' || attempt) FROM task_runs";
        assert_eq!(db.ask(runs), "succeeded 1,succeeded 1,succeeded 1");
        db.assert_sound();
    }
    println!("{refused} turns refused without memory");
    assert!(refused > 10, "the heap was never full");
}

/// The scheduler with its threads: a handler returns while no turn can be taken.
#[test]
fn an_outcome_without_memory_is_recorded_later() {
    if !in_own_process("an_outcome_without_memory_is_recorded_later") {
        return;
    }
    limit();
    let db = TestDb::new();
    let (observer, receiver) = listen();
    let (begun, begins) = channel();
    let (gate, opened) = channel::<()>();
    let (begun, opened) = (std::sync::Mutex::new(begun), std::sync::Mutex::new(opened));
    let scheduler = Scheduler::builder(db.file())
        .observe(observer)
        .handler("work", move |_: &Context| {
            let _ = begun.lock().unwrap().send(());
            let _ = held(&*opened.lock().unwrap());
            Ok::<_, Error>("y".repeat(20_000))
        })
        .start()
        .expect("a scheduler");
    scheduler.add(overdue("long")).expect("a task");
    receive(&begins, "it begins");
    let connection = Connection::open_in_memory().expect("a connection");
    let held_memory = HeldMemory::fill(&connection, 16);
    gate.send(()).expect("a handler that waits");
    let assert_next = |what: &str| {
        let found = match receive(&receiver, what) {
            Event::Started { .. } => "the start",
            Event::Degraded { .. } => "the refusal",
            Event::Recovered => "its end",
            Event::Finished { .. } => "the outcome",
            event => panic!("{event:?}"),
        };
        assert_eq!(found, what);
    };
    ["the start", "the refusal"].into_iter().for_each(assert_next);
    drop(held_memory);
    ["its end", "the outcome"].into_iter().for_each(assert_next);
    assert_eq!(scheduler.shutdown(patience()).expect("a shutdown").unfinished, 0);
    assert_eq!(db.ask("SELECT status || attempt || length(result) FROM task_runs"), "succeeded120002");
    db.assert_sound();
}
