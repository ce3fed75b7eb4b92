//! Other writers of the file get their turn: while a scheduler has much to write, it leaves the lock for longer than SQLite's busy handler
//! waits between two looks.

use std::time::Duration;

use duly::testing::{LoopStep, Looped, ManualClock};
use duly::{Event, NewTask};
use rusqlite::Connection;

use crate::fixtures::{NOON, TestDb, at};

const RUNS: usize = 3_000;
/// How long a busy handler waits between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// A scheduler recovers the runs of one that was killed, in turns that take a second each and follow each other.
#[test]
fn a_recovery_leaves_the_lock_to_other_writers_every_two_seconds() {
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let slow = clock.clone();
    let builder = db.builder(NOON).clock(&clock).accept("work").workers(RUNS).observe(move |event: &Event| {
        if matches!(event, Event::Lost { .. }) {
            slow.advance(Duration::from_millis(2));
        }
    });
    let mut killed = builder.start().unwrap();
    killed.client().add_all((0..RUNS).map(|n| NewTask::once(format!("t-{n}"), at(NOON)).handler("work"))).unwrap();
    while killed.running().len() < RUNS {
        killed.step().unwrap();
    }
    let mut stepper = Looped::new(killed.restart().unwrap(), Vec::new(), None);
    let application = Connection::open(db.file()).unwrap();
    application.busy_timeout(Duration::ZERO).unwrap();
    application.execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    let begin = stepper.now().monotonic;
    let (mut pauses, mut since, mut ended) = (0, begin, begin);
    while stepper.now().monotonic < begin + Duration::from_secs(6) {
        let step = stepper.step().unwrap();
        let now = stepper.now().monotonic;
        assert!(now - since <= Duration::from_secs(3), "the turn that was begun ends: {:?}", now - since);
        if matches!(step, LoopStep::Turned(_)) {
            ended = now;
        } else if now > ended {
            assert!(now - ended > LOOK, "{:?}", now - ended);
            application.execute("INSERT INTO notes VALUES ('x')", []).unwrap();
            pauses += 1;
            (since, ended) = (now, now);
        }
    }
    assert!(pauses >= 2, "{pauses}");
}
