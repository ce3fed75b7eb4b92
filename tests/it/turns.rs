//! The cost and the order of a turn: it writes nothing while nothing is due, starts urgent runs first, and outcomes never
//! fill a turn so that no run starts.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, Event, NewTask, Outcome, Retention, RunStatus};

use crate::fixtures::{
    NOON, TestDb, at, claim, claim_after, finish_all, is_of_sqlite, listen, minutes, once, patience, seconds, step,
    step_after, succeed,
};

/// Tasks that are due at this instant.
fn due_tasks(count: usize, instant: &str) -> impl Iterator<Item = NewTask> {
    let instant = at(instant);
    (0..count).map(move |number| NewTask::once(format!("due-{number:04}"), instant).handler("work"))
}

/// Steps whenever the scheduler would wake, for this time. Returns the number of steps.
fn run_turns_for(stepper: &mut Stepper, time: Duration) -> u32 {
    let mut left = time;
    let mut turns = 0;
    while left > Duration::ZERO {
        let nap = stepper.sleeps().min(left);
        assert!(nap > Duration::ZERO, "it would spin");
        stepper.clock().advance(nap);
        left -= nap;
        step(stepper, 0);
        turns += 1;
    }
    turns
}

#[test]
fn a_thousand_tasks_that_are_not_due_cost_heartbeats_only() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").lease(seconds(30)).start().expect("a stepper");
    let tasks = (0..1000).map(|number| NewTask::cron(format!("task-{number}"), "0 7 * * *").handler("work"));
    stepper.client().add_all(tasks).expect("a thousand tasks");
    db.execute("CREATE TABLE notes (line TEXT)");
    step(&mut stepper, 0);
    let rows = || db.ask("SELECT total(next_run) || ' ' || total(updated_at) FROM scheduled_tasks");
    let (transactions, before) = (stepper.transactions(), rows());
    let turns = run_turns_for(&mut stepper, minutes(10));
    assert!(turns >= 600, "it looks for changes every second: {turns}");
    let heartbeats = (stepper.transactions() - transactions) / db.transactions_of_a_heartbeat();
    assert_eq!(heartbeats, 600 / 10, "one heartbeat in a third of the lease");
    assert_eq!(rows(), before);

    // A commit of another program to its own table is read, and nothing is written for it.
    let transactions = stepper.transactions();
    db.execute("INSERT INTO notes VALUES ('mine')");
    step(&mut stepper, 0);
    assert_eq!(stepper.transactions(), transactions);
    assert_eq!(run_turns_for(&mut stepper, seconds(9)), 9);
    assert_eq!(stepper.transactions(), transactions);
}

#[test]
fn the_scheduler_wakes_at_the_next_due_time() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").poll(minutes(1)).lease(minutes(60)).start().expect("a stepper");
    stepper.client().add(NewTask::once("soon", at("2027-03-14T12:00:07.250Z")).handler("work")).expect("a task");
    step(&mut stepper, 0);
    assert_eq!(stepper.sleeps(), Duration::from_millis(7_250));
    step_after(&mut stepper, Duration::from_millis(7_249), 0);
    assert_eq!(stepper.sleeps(), Duration::from_millis(1));
    claim_after(&mut stepper, Duration::from_millis(1));
    // On a server, the look ahead follows when the claim was handed over.
    step(&mut stepper, 0);
    assert_eq!(stepper.sleeps(), minutes(1), "nothing more is known of");
}

/// Ends all running attempts, and steps. Returns the names of the started tasks.
fn finish_all_and_step(stepper: &mut Stepper) -> Vec<String> {
    finish_all(stepper, &Outcome::succeeded());
    stepper.step().expect("a step").iter().map(|claim| claim.task.clone()).collect()
}

#[test]
fn urgent_runs_start_first_and_every_eighth_by_age() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().expect("a stepper");
    let at_work = once("at-work");
    stepper.client().add(at_work).expect("a task");
    claim(&mut stepper);
    // The least urgent are the oldest.
    for (priority, name, fell) in [(3_u8, "low", "11:00"), (2, "normal", "11:20"), (1, "high", "11:40")] {
        let instant = at(&format!("2027-03-14T{fell}:00Z"));
        let tasks = (0..10).map(|n| NewTask::once(format!("{name}-{n}"), instant).handler("work").priority(priority));
        stepper.client().add_all(tasks).expect("ten tasks");
    }
    let mut order = String::new();
    for _ in 0..30 {
        let started = finish_all_and_step(&mut stepper);
        assert_eq!(started.len(), 1);
        order.push(started[0].chars().next().expect("a letter"));
    }
    // Two runs go by age; all others go by priority.
    assert_eq!(order, "hhhhhhhhlhhnnnnnlnnnnnllllllll");
    assert_eq!(finish_all_and_step(&mut stepper), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn a_turn_with_many_outcomes_still_starts_due_runs() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(256).start().expect("a stepper");
    stepper.client().add_all(due_tasks(700, NOON)).expect("tasks");
    let first = stepper.step().expect("a step");
    assert_eq!(first.len(), 256);
    first.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
    // At most half of a turn's items are outcomes; the other half is for waiting runs.
    let second = stepper.step().expect("a step");
    assert_eq!(db.count(RunStatus::Succeeded), 250);
    assert!(second.len() >= 200, "{}", second.len());
    assert_eq!(stepper.sleeps(), Duration::ZERO, "six outcomes are yet to be written");
    second.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
    while db.count(RunStatus::Succeeded) != 700 {
        finish_all_and_step(&mut stepper);
    }
    db.assert_sound();
}

#[test]
fn a_database_that_is_locked_delays_and_loses_nothing() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.client().add_all(due_tasks(2, NOON)).expect("tasks");
    let claims = step(&mut stepper, 2);
    let locked = db.plain();
    locked.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    stepper.finish(&claims[0], Outcome::succeeded());
    events.try_iter().for_each(drop);
    step(&mut stepper, 0);
    assert_eq!(stepper.sleeps(), Duration::from_millis(100), "it tries again soon");
    step(&mut stepper, 0);
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [Event::Degraded { reason }] if reason.contains("locked")), "{reported:?}");
    locked.execute_batch("ROLLBACK").expect("the lock is free");

    step_after(&mut stepper, Duration::from_millis(100), 0);
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [Event::Recovered, Event::Finished { .. }]), "{reported:?}");
    let statuses = [&claims[0], &claims[1]]
        .map(|claim| stepper.client().run(claim.run_id).expect("a look-up").expect("a run").status);
    assert_eq!(statuses, [RunStatus::Succeeded, RunStatus::Running]);
    db.assert_sound();
}

#[test]
fn a_long_log_is_truncated_without_waiting_for_readers() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    step(&mut stepper, 0);
    let reader = db.plain();
    reader.execute_batch("BEGIN; SELECT count(*) FROM scheduled_tasks").expect("a reader");
    let writer = db.plain();
    writer
        .execute_batch(
            "CREATE TABLE photos (photo);
             WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20)
             INSERT INTO photos SELECT zeroblob(1000000) FROM n",
        )
        .expect("photos");
    let log = || std::fs::metadata(db.home().join("agent.db-wal")).expect("a log").len();
    stepper.clock().advance(seconds(20));
    let begin = std::time::Instant::now();
    step(&mut stepper, 0);
    // The time is the subject: the busy timeout is five seconds.
    assert!(begin.elapsed() < patience() / 15, "it waited for the reader: {:?}", begin.elapsed());
    assert!(log() > 16 * 1024 * 1024);
    reader.execute_batch("ROLLBACK").expect("no reader");
    step_after(&mut stepper, seconds(20), 0);
    assert_eq!(log(), 0);
}

/// Refuses runs of tasks up to this id, and that these tasks become invalid.
fn refuse_all_of(db: &TestDb, last: usize) {
    let raise = "BEGIN SELECT RAISE(ABORT, 'not in my db'); END";
    let triggers = format!(
        "CREATE TRIGGER no_run BEFORE INSERT ON task_runs WHEN NEW.task_id <= {last} {raise};
         CREATE TRIGGER no_status BEFORE UPDATE OF status ON scheduled_tasks WHEN NEW.id <= {last} {raise};"
    );
    db.execute(&triggers);
}

#[test]
fn rows_that_are_set_aside_delay_no_other() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.client().add_all(due_tasks(40, "2027-03-14T11:00:00Z")).expect("tasks");
    refuse_all_of(&db, 40);
    stepper.client().add(once("last")).expect("a task");
    let began = (0..4).flat_map(|_| stepper.step().expect("a step")).collect::<Vec<_>>();
    assert_eq!(began.iter().map(|claim| claim.task.as_str()).collect::<Vec<_>>(), ["last"]);
    assert!(run_turns_for(&mut stepper, minutes(2)) <= 130, "it looks for changes, and does not spin");
    let aside = || events.try_iter().filter(|event| matches!(event, Event::SetAside { .. })).count();
    assert_eq!(aside(), 40, "each is reported once");
}

#[test]
fn a_run_behind_a_refused_claim_starts_in_the_same_turn() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).workers(1).accept("work").start().expect("a stepper");
    let names = ["refused", "refused-too", "next"];
    for name in names {
        stepper.client().add(NewTask::cron(name, "@yearly").handler("work")).expect("a task");
        stepper.client().trigger(name).expect("a run");
    }
    let triggers = "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN NEW.task_id <= 2
                    BEGIN SELECT RAISE(ABORT, 'not in my db'); END";
    db.execute(triggers);
    assert_eq!(claim(&mut stepper).task, "next");
    db.execute("DROP TRIGGER no");
    db.assert_sound();
}

#[test]
fn a_task_that_was_set_aside_is_on_time_after_its_repair() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(NewTask::interval("minutely", minutes(1)).handler("work")).expect("a task");
    refuse_all_of(&db, 1);
    step(&mut stepper, 0);
    step_after(&mut stepper, minutes(1), 0);
    db.execute("DROP TRIGGER no_run; DROP TRIGGER no_status");
    let late = claim_after(&mut stepper, seconds(20));
    stepper.finish(&late, Outcome::succeeded());
    step(&mut stepper, 0);
    // Between two heartbeats.
    step_after(&mut stepper, seconds(25), 0);
    assert_eq!(claim_after(&mut stepper, seconds(15)).scheduled_for, at("2027-03-14T12:02:00Z"));
}

#[test]
fn a_refused_outcome_is_retried_until_it_is_accepted() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add_all(due_tasks(2, NOON)).expect("tasks");
    let claims = step(&mut stepper, 2);
    let triggers = "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN NEW.task_id = 1
                    BEGIN SELECT RAISE(ABORT, 'not in my db'); END";
    db.execute(triggers);
    claims.iter().for_each(|claim| stepper.finish(claim, Outcome::Succeeded { result: Some("7".to_owned()) }));
    step(&mut stepper, 0);
    let runs = || db.rows("SELECT status, result FROM task_runs ORDER BY id");
    assert_eq!(runs(), ["running|-", "succeeded|7"]);
    assert!(run_turns_for(&mut stepper, minutes(1)) <= 65, "it looks for changes, and does not spin");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'set_aside'"), "1");
    db.execute("DROP TRIGGER no");
    run_turns_for(&mut stepper, seconds(20));
    assert_eq!(runs(), ["succeeded|7", "succeeded|7"]);
    db.assert_sound();
}

#[test]
fn a_failed_read_after_a_committed_turn_loses_no_claim() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let db = TestDb::new();
    let file = db.file().to_owned();
    // In the middle of a turn: its writes are committed, and it has still to read its claims.
    let other_program = move |event: &Event| {
        if matches!(event, Event::Finished { .. }) {
            let plain = rusqlite::Connection::open(&file).expect("a connection");
            plain.execute_batch("ALTER TABLE task_runs RENAME COLUMN locked_by TO meddled").expect("a change");
        }
    };
    let mut stepper = db.builder(NOON).accept("work").workers(2).observe(other_program).start().expect("a stepper");
    stepper.client().add_all(due_tasks(3, NOON)).expect("tasks");
    let claims = step(&mut stepper, 2);
    let taken = "UPDATE task_runs SET status = 'queued', locked_by = NULL, locked_until = NULL, blocked = 'key'";
    db.execute(&format!("{taken} WHERE id = {}", claims[1].run_id));
    stepper.clock().advance(seconds(20));
    stepper.finish(&claims[0], Outcome::succeeded());
    assert_eq!(stepper.step().expect("what was claimed is handed over").len(), 1);
}

#[test]
fn a_failing_retention_does_not_block_outcomes() {
    let db = TestDb::new();
    let keep = Retention { runs: seconds(1), least_runs: 1, ..Retention::default() };
    let mut stepper = db.builder(NOON).accept("work").retention(keep).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::interval("subject", minutes(60)).handler("work")).expect("a task");
    for _ in 0..3 {
        client.trigger("subject").expect("a run");
        let run = claim(&mut stepper);
        succeed(&mut stepper, &run);
    }
    let run = client.trigger("subject").expect("a run");
    let last = claim(&mut stepper);
    let obstacle = "CREATE TRIGGER obstacle BEFORE DELETE ON task_runs BEGIN SELECT abs(-9223372036854775807 - 1); END";
    db.execute(obstacle);
    stepper.clock().advance(seconds(70));
    stepper.finish(&last, Outcome::succeeded());
    for _ in 0..3 {
        stepper.step().expect("a turn");
        stepper.clock().advance(seconds(10));
    }
    let status = format!("SELECT status FROM task_runs WHERE id = {run}");
    assert_eq!((db.ask(&status).as_str(), db.ask("SELECT count(*) FROM task_runs").as_str()), ("succeeded", "4"));
    db.assert_sound();
}

/// What another program does to the third of five running runs, whose outcomes arrive together; the row of that run afterwards,
/// its recorded attempts and the recorded events.
const MEDDLING: [(&str, &str, &str, &str); 9] = [
    ("SELECT 1", "succeeded|1|-", "", ""),
    ("UPDATE task_runs SET cancel_requested = 1 WHERE id = 3", "succeeded|1|-", "", ""),
    ("UPDATE task_runs SET process = '{}', progress = 'half' WHERE id = 3", "succeeded|1|-", "", ""),
    ("UPDATE task_runs SET locked_by = 'another' WHERE id = 3", "running|1|another", "1|superseded", ""),
    ("UPDATE task_runs SET attempt = 2 WHERE id = 3", "running|2|mine", "1|superseded", ""),
    (
        "UPDATE task_runs SET status = 'queued', locked_by = NULL, locked_until = NULL, blocked = 'key' WHERE id = 3",
        "queued|1|-",
        "1|superseded",
        "",
    ),
    ("DELETE FROM task_runs WHERE id = 3", "", "", "late_outcome"),
    (
        "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN OLD.id = 3 BEGIN SELECT RAISE(IGNORE); END",
        "running|1|mine",
        "1|superseded",
        "",
    ),
    (
        "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN OLD.id = 3 BEGIN SELECT RAISE(ABORT, 'no'); END",
        "running|1|mine",
        "",
        "set_aside",
    ),
];

#[test]
fn an_outcome_that_cannot_be_stored_as_it_is_leaves_the_others_that_arrive_with_it() {
    for (meddling, row, attempts, recorded) in MEDDLING {
        let db = TestDb::brief();
        // A server counts the rows that it has written: one that is left out is as one that is refused.
        let left_out = db.is_on_server() && meddling.contains("IGNORE");
        let (attempts, recorded) = if left_out { ("", "set_aside") } else { (attempts, recorded) };
        let (observer, events) = listen();
        let mut stepper = db.builder(NOON).accept("work").workers(5).observe(observer).start().expect("a stepper");
        stepper.client().add_all(due_tasks(5, NOON)).expect("tasks");
        let claims = step(&mut stepper, 5);
        assert_eq!(claims.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        db.execute(meddling);
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        step(&mut stepper, 0);
        let states = format!(
            "SELECT status || '|' || attempt || '|' || replace(ifnull(locked_by, '-'), '{}', 'mine') FROM task_runs",
            stepper.owner()
        );
        assert_eq!(db.rows(&format!("{states} WHERE id = 3")).concat(), row, "{meddling}");
        assert_eq!(db.rows(&format!("{states} WHERE id <> 3")), ["succeeded|1|-"; 4], "{meddling}");
        let rows = |query: &str| db.rows(query).join(", ");
        assert_eq!(rows("SELECT attempt || '|' || outcome FROM task_attempts"), attempts, "{meddling}");
        assert_eq!(rows("SELECT kind FROM scheduler_events"), recorded, "{meddling}");
        let events: Vec<Event> = events.try_iter().collect();
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        let superseded = usize::from(!(attempts.is_empty() && recorded != "late_outcome"));
        assert_eq!(count(|event| matches!(event, Event::Superseded { .. })), superseded, "{meddling}");
        let settled = if row.starts_with("succeeded") { 5 } else { 4 };
        assert_eq!(count(|event| matches!(event, Event::Finished { .. })), settled, "{meddling}");
        // It neither spins nor starts the other runs again.
        // On a server, an attempt of its own that it does not know is released at once.
        let mut at_once = usize::from(db.is_on_server());
        let turns = (0..200).take_while(|_| {
            let nap = stepper.sleeps();
            if nap == Duration::ZERO {
                assert!(at_once > 0, "{meddling}: it would spin");
                at_once -= 1;
            }
            stepper.clock().advance(nap);
            stepper.step().expect("a step");
            stepper.clock().now().wall < at(NOON).plus(minutes(1))
        });
        assert!(turns.count() <= 130, "{meddling}");
        assert_eq!(db.rows(&format!("{states} WHERE id <> 3")), ["succeeded|1|-"; 4], "{meddling}");
        db.execute("DROP TRIGGER IF EXISTS no");
        stepper.clock().advance(seconds(20));
        stepper.step().expect("a step");
        if recorded == "set_aside" {
            assert_eq!(db.rows(&format!("{states} WHERE id = 3")), ["succeeded|1|-"]);
        }
    }
}

/// A trigger of the application leaves one row out of a statement that writes five. A server counts them, and sets that item aside.
#[test]
fn a_row_that_a_trigger_leaves_out_of_a_statement_for_many_harms_itself_only() {
    for (ignored, claimed, kept) in [
        ("INSERT ON task_runs WHEN NEW.task_id = 3", 4, ["completed"; 5]),
        (
            "UPDATE ON scheduled_tasks WHEN OLD.id = 3",
            5,
            ["completed", "completed", "active", "completed", "completed"],
        ),
    ] {
        let db = TestDb::brief();
        let (claimed, mut kept) = if db.is_on_server() { (4, kept) } else { (claimed, kept) };
        if db.is_on_server() && ignored.starts_with("INSERT") {
            kept[2] = "invalid";
        }
        let mut stepper = db.builder(NOON).accept("work").workers(5).start().expect("a stepper");
        stepper.client().add_all(due_tasks(5, NOON)).expect("tasks");
        let trigger = format!("CREATE TRIGGER no BEFORE {ignored} BEGIN SELECT RAISE(IGNORE); END");
        db.execute(&trigger);
        for claim in step(&mut stepper, claimed) {
            assert_eq!(db.run(claim.run_id).task, claim.task);
            stepper.finish(&claim, Outcome::succeeded());
        }
        step(&mut stepper, 0);
        assert!(run_turns_for(&mut stepper, minutes(1)) <= 65, "it looks for changes, and does not spin");
        let runs = db.states();
        assert!(runs.len() == claimed && runs.iter().all(|run| run.ends_with("|succeeded|1")), "{runs:?}");
        assert_eq!(db.rows("SELECT status FROM scheduled_tasks ORDER BY id"), kept);
    }
}
