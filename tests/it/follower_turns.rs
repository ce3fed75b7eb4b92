//! How many runs that follow others one turn opens. Each is an item, and one with a long payload is several: what is left ends, and is
//! followed, in the next turn.

use duly::testing::Stepper;
use duly::{NewTask, Outcome, Overlap, RunStatus};

use crate::fixtures::{NOON, TestDb, finish_all, minutes, step};

/// A task whose runs may run beside each other, and are started by no scheduler of the test.
fn apart(name: &str) -> NewTask {
    NewTask::manual(name).handler("other").overlap(Overlap::Allow)
}

/// A database with `ends` running runs of one task, which four others follow.
fn about_to_end(ends: usize) -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(ends).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add_all(["a", "b", "c", "d"].map(apart)).expect("tasks");
    let work = NewTask::manual("work").handler("work").overlap(Overlap::Allow).at_most_once();
    client.add(work.on_end("a,b,c,d")).expect("a task");
    (0..ends).for_each(|_| _ = client.trigger("work").expect("a run"));
    while db.count(RunStatus::Running) < ends {
        stepper.step().expect("a step");
    }
    (db, stepper)
}

/// Takes turns until all is settled. Returns how many runs each of them has opened, and the most bytes of their payloads.
fn opened_by_turns(db: &TestDb, stepper: &mut Stepper, ends: usize) -> (Vec<usize>, usize) {
    let (mut counts, mut most, mut last) = (Vec::new(), 0, 0);
    while db.count(RunStatus::Running) > 0 {
        stepper.step().expect("a step");
        let new = format!("FROM task_runs WHERE origin = 'on_end' AND id > {last}");
        counts.push(db.number(&format!("SELECT count(*) {new}")));
        most = most.max(db.number(&format!("SELECT ifnull(sum(length(payload)), 0) {new}")));
        last = db.number("SELECT ifnull(max(id), 0) FROM task_runs WHERE origin = 'on_end'");
        let halves = "SELECT count(*) FROM (SELECT 1 FROM task_runs WHERE origin = 'on_end' GROUP BY request_key HAVING count(*) <> 4)";
        assert_eq!(db.number::<usize>(halves), 0, "what follows a run is opened with its end");
        assert!(counts.len() <= ends, "{counts:?}");
    }
    let order =
        "SELECT group_concat(parent, ' ') FROM (SELECT DISTINCT CAST(substr(request_key, 2) AS INTEGER) AS parent
                   FROM (SELECT request_key FROM task_runs WHERE origin = 'on_end' ORDER BY id))";
    let parents = db.ask(order);
    let parents: Vec<i64> = parents.split(' ').map(|id| id.parse().expect("an id")).collect();
    assert!(parents.len() == ends && parents.is_sorted(), "{parents:?}");
    assert_eq!(counts.iter().sum::<usize>(), 4 * ends);
    db.assert_sound();
    (counts, most)
}

/// Half of the 500 items of a turn: an end, and one run of each of four tasks.
#[test]
fn ends_and_what_follows_them_spend_half_of_the_items_of_a_turn() {
    let (db, mut stepper) = about_to_end(120);
    finish_all(&mut stepper, &Outcome::succeeded());
    let (counts, _) = opened_by_turns(&db, &mut stepper, 120);
    assert_eq!(counts, [200, 200, 80]);
}

#[test]
fn a_turn_opens_fewer_runs_with_long_payloads() {
    let (db, mut stepper) = about_to_end(20);
    let result = format!("\"{}\"", "x".repeat(47_000));
    finish_all(&mut stepper, &Outcome::Succeeded { result: Some(result) });
    let (counts, most) = opened_by_turns(&db, &mut stepper, 20);
    assert_eq!((counts, most / 1_000_000), (vec![24, 24, 24, 8], 1));
}

#[test]
fn the_recovery_of_many_runs_opens_no_more_at_once() {
    let (db, first) = about_to_end(120);
    first.crash();
    let mut second = db.builder(NOON).accept("work").start().expect("a stepper");
    let (counts, _) = opened_by_turns(&db, &mut second, 120);
    assert_eq!(counts, [400, 80]);
}

#[test]
fn runs_that_expire_are_left_to_the_next_turn_when_what_follows_has_spent_its_items() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("other").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add_all(["a", "b", "c", "d"].map(|name| apart(name).handler("third"))).expect("tasks");
    client.add(apart("work").expires(minutes(1)).on_missed("a,b,c,d").handler("work")).expect("a task");
    (0..240).for_each(|_| _ = client.trigger("work").expect("a run"));
    step(&mut stepper, 0);
    let (mut counts, mut before) = (Vec::new(), 0);
    while before < 960 {
        stepper.clock().advance(minutes(2));
        stepper.step().expect("a step");
        let after = db.count_rows("task_runs WHERE origin = 'on_missed'");
        counts.push(after - before);
        before = after;
        assert!(counts.len() < 20, "{counts:?}");
    }
    assert!(counts.iter().all(|opened| *opened <= 404), "{counts:?}");
    db.assert_sound();
}
