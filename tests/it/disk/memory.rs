//! SQLite's heap is full. Its limit holds for a whole process, and cannot be raised again: so a process of its own sets one, and
//! fills the heap with statements that nobody runs, until they are dropped.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use duly::testing::Stepper;
use duly::{Claim, Context, Error, Event, NewTask, Outcome, RunStatus, Scheduler};
use rusqlite::{Connection, Statement};

use crate::disk::all;
use crate::fixtures::{TestDb, at, seconds};

const NOON: &str = "2027-03-14T12:00:00Z";
/// Enough for all that is done here, and soon filled.
const HEAP: i64 = 24 * 1024 * 1024;

/// Statements that hold memory, the largest first.
struct Ballast<'a>(Vec<Statement<'a>>);

impl<'a> Ballast<'a> {
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
        Ballast(held)
    }

    /// Gives a little back.
    fn yield_some(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

/// The heap of this process has a limit from now on.
fn limit() {
    let connection = Connection::open_in_memory().expect("a connection");
    let limit = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let set = connection.query_row(&format!("PRAGMA hard_heap_limit = {HEAP}"), [], limit).expect("a limit");
    assert_eq!(set, HEAP);
}

/// Has a test of this file carried out in a process of its own. Whether this is that process.
fn alone(test: &str) -> bool {
    const INSIDE: &str = "DULY_LITTLE_MEMORY";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let this = std::env::current_exe().expect("this program");
    let arguments = [&format!("disk::memory::{test}"), "--exact", "--nocapture"];
    let status = Command::new(this).args(arguments).env(INSIDE, "1").status().expect("a process");
    assert!(status.success(), "{test}, alone: {status}");
    false
}

fn listen() -> (impl Fn(&Event) + Send + Sync + 'static, Receiver<Event>) {
    let (told, hears) = channel();
    (move |event: &Event| drop(told.send(event.clone())), hears)
}

/// Takes one turn, with more memory at each try. Answers with what it claimed, and at how many tries it was refused.
fn squeezed(stepper: &mut Stepper, smallest: usize) -> (Vec<Arc<Claim>>, usize) {
    let connection = Connection::open_in_memory().expect("a connection");
    let mut ballast = Ballast::fill(&connection, smallest);
    for refused in 0.. {
        let claims = stepper.step().expect("a step");
        if !claims.is_empty() {
            return (claims, refused);
        }
        assert!(ballast.yield_some(), "it stands still with all of its memory");
        stepper.clock().advance(stepper.sleeps());
    }
    unreachable!("the ballast has an end");
}

/// A turn that claims, and one that settles one run and claims another: each is carried out whole, or not at all.
#[test]
fn wherever_memory_ends_a_turn_is_taken_whole_or_not_at_all() {
    if !alone("wherever_memory_ends_a_turn_is_taken_whole_or_not_at_all") {
        return;
    }
    limit();
    let mut refused = 0;
    // Each round begins at another point, since what is given back differs in size.
    for smallest in if all() { vec![1, 16, 64, 256, 512, 1024, 2048, 4096] } else { vec![64, 1024] } {
        let db = TestDb::new();
        let (observer, hears) = listen();
        let mut stepper = db.builder(NOON).accept("work").workers(1).observe(observer).start().expect("a stepper");
        let once = |name: &str| NewTask::once(name, at(NOON)).handler("work").payload("y".repeat(3000));
        stepper.client().add_all([once("first"), once("second"), once("third")]).expect("tasks");
        // No statement of a turn has been prepared yet.
        let (first, tries) = squeezed(&mut stepper, smallest);
        refused += tries;
        let result = format!("{:?}", "z".repeat(20_000));
        stepper.finish(&first[0], Outcome::Succeeded { result: Some(result.clone()) });
        let (second, more) = squeezed(&mut stepper, smallest);
        refused += more;
        let said: Vec<Event> = hears.try_iter().collect();
        let states = said.iter().filter(|event| matches!(event, Event::Degraded { .. } | Event::Recovered));
        let expected = 2 * (usize::from(tries > 0) + usize::from(more > 0));
        assert_eq!(states.count(), expected, "two lines, however many tries: {said:?}");
        let enough = |event: &Event| !matches!(event, Event::Degraded { reason } if !reason.contains("memory"));
        assert!(said.iter().all(enough), "{said:?}");
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
    println!("{refused} turns refused for want of memory");
    assert!(refused > 10, "the heap was never full");
}

/// The scheduler with its threads: a handler returns while no turn can be taken.
#[test]
fn what_ends_while_there_is_no_memory_is_written_down_when_there_is() {
    if !alone("what_ends_while_there_is_no_memory_is_written_down_when_there_is") {
        return;
    }
    limit();
    let db = TestDb::new();
    let (observer, hears) = listen();
    let (begun, begins) = channel();
    let (gate, opened) = channel::<()>();
    let (begun, opened) = (std::sync::Mutex::new(begun), std::sync::Mutex::new(opened));
    let scheduler = Scheduler::builder(db.file())
        .observe(observer)
        .handler("work", move |_: &Context| {
            let _ = begun.lock().unwrap().send(());
            let _ = opened.lock().unwrap().recv_timeout(seconds(60));
            Ok::<_, Error>("y".repeat(20_000))
        })
        .start()
        .expect("a scheduler");
    scheduler.add(NewTask::once("long", at("2020-01-01T00:00:00Z")).handler("work")).expect("a task");
    begins.recv_timeout(seconds(60)).expect("it begins");
    let connection = Connection::open_in_memory().expect("a connection");
    let ballast = Ballast::fill(&connection, 16);
    gate.send(()).expect("a handler that waits");
    let hear = |what: &str| {
        let found = match hears.recv_timeout(seconds(60)).unwrap_or_else(|_| panic!("waited in vain for {what}")) {
            Event::Started { .. } => "the start",
            Event::Degraded { .. } => "the refusal",
            Event::Recovered => "its end",
            Event::Finished { .. } => "the outcome",
            event => panic!("{event:?}"),
        };
        assert_eq!(found, what);
    };
    ["the start", "the refusal"].into_iter().for_each(hear);
    drop(ballast);
    ["its end", "the outcome"].into_iter().for_each(hear);
    assert_eq!(scheduler.shutdown(seconds(60)).expect("an end in order").unfinished, 0);
    assert_eq!(db.ask("SELECT status || attempt || length(result) FROM task_runs"), "succeeded120002");
    db.assert_sound();
}
