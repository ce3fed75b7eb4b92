//! A change of a task with very many waiting runs writes a mark. Turns then derive the runs again, in batches, and claims obey the
//! change at once.

use duly::testing::{LoopStep, Looped, Stepper};
use duly::{Apply, Client, Filter, Limit, NewTask, Overlap, TaskStatus};

use crate::fixtures::{NOON, TestDb, at, number, problems, seconds};

/// What one transaction may write: the 500 items of a turn, some of which change a second row.
const MOST: usize = 700;

/// How many runs of marked tasks a turn derives.
const BATCH: usize = 250;

/// Adds the task `crowd` of the handler `work`, and waiting runs of it: every third is scheduled, every third has a key. The last ten are
/// the most urgent, and the last that a mark reaches.
fn crowd(db: &TestDb, client: &Client, runs: usize) {
    client.add(NewTask::manual("crowd").handler("work").overlap(Overlap::Allow)).expect("a task");
    let noon = at(NOON).as_millis();
    db.execute(&format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, concurrency_key, blocked)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
         SELECT 1, 'work', {noon} - {runs} + i, CASE WHEN i % 3 = 0 THEN 'schedule' ELSE 'on_dead' END, 'queued', {noon} - {runs} + i,
                CASE WHEN i > {runs} - 10 THEN 0 ELSE 1 END, CASE WHEN i % 3 = 1 AND i <= {runs} - 10 THEN 'k' END,
                CASE WHEN i % 3 = 1 AND i <= {runs} - 10 AND i > 1 THEN 'key' END FROM n",
    ));
}

/// Counts the changes of rows from now on.
pub(crate) fn count_changes(db: &TestDb) {
    for table in ["scheduled_tasks", "task_runs", "rate_limit_starts"] {
        db.execute(&format!(
            "CREATE TRIGGER touched_{table} AFTER UPDATE ON {table}
             BEGIN INSERT INTO scheduler_events (at, kind) VALUES ({}, 'touched'); END",
            at(NOON).as_millis()
        ));
    }
}

/// Returns how many rows were changed since the last call.
pub(crate) fn changes(db: &TestDb) -> usize {
    db.execute("DELETE FROM scheduler_events WHERE kind = 'touched'")
}

fn marked(db: &TestDb) -> usize {
    db.number("SELECT count(*) FROM scheduled_tasks WHERE marked IS NOT NULL")
}

/// Takes turns until nothing is left to be done at once. Returns how many.
fn derive(stepper: &mut Stepper) -> usize {
    for turns in 1.. {
        assert!(stepper.step().expect("a turn").is_empty());
        if stepper.sleeps() > seconds(0) {
            return turns;
        }
    }
    unreachable!("a turn without end")
}

#[test]
fn each_change_touches_few_rows_and_each_turn_a_batch() {
    let runs = number("DULY_WAITING", 20_000);
    let db = TestDb::new();
    // No scheduler here has the handlers.
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, runs);
    derive(&mut stepper);
    count_changes(&db);
    let task = |handler: &str| NewTask::manual("crowd").handler(handler).overlap(Overlap::Allow);
    let sql = |text: &str| _ = db.execute(text);
    let by_sql: [(&str, &str); 7] = [
        ("pause", "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'crowd'"),
        ("resume", "UPDATE scheduled_tasks SET status = 'active' WHERE name = 'crowd'"),
        ("handler", "UPDATE scheduled_tasks SET handler = 'other' WHERE name = 'crowd'"),
        ("overlap", "UPDATE scheduled_tasks SET overlap = 'skip' WHERE name = 'crowd'"),
        ("overlap back", "UPDATE scheduled_tasks SET overlap = 'allow' WHERE name = 'crowd'"),
        ("one cancel", "UPDATE task_runs SET cancel_requested = 1 WHERE id = 5000"),
        ("limit", "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('k', 3)"),
    ];
    let by_client: [(&str, &dyn Fn()); 5] = [
        ("handler and key", &|| _ = client.replace(task("third").concurrency_key("l")).expect("an edit")),
        ("priority", &|| _ = client.replace(task("third").priority(2)).expect("an edit")),
        ("limit of a key", &|| _ = client.set_limit(Limit::key("k", 2)).expect("a limit")),
        ("pause", &|| client.pause("crowd").expect("a pause")),
        ("resume", &|| client.resume("crowd").expect("a resumption")),
    ];
    let changed = by_sql.iter().map(|(name, text)| (*name, Box::new(move || sql(text)) as Box<dyn Fn()>));
    let changed = changed.chain(by_client.iter().map(|(name, change)| (*name, Box::new(change) as Box<dyn Fn()>)));
    for (name, change) in changed {
        change();
        let found = changes(&db);
        // A request of a client derives the first runs by itself.
        assert!(found <= 40, "{name} has changed {found} rows");
        // The next change replaces the mark.
        for turn in 1..=3 {
            stepper.step().expect("a turn");
            let found = changes(&db);
            assert!(found <= MOST, "turn {turn} after {name} has changed {found} rows");
        }
    }
    let turns = derive(&mut stepper);
    assert!(turns <= runs / BATCH + 3, "{turns} turns");
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE handler <> 'third' AND status = 'queued'"), "0");
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'cancelled'"), "1");
    assert_eq!(marked(&db), 0);
    db.execute("DELETE FROM scheduler_events WHERE kind = 'touched'");
    db.assert_sound();
}

#[test]
fn a_claim_obeys_a_mark() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").accept("other").workers(3).start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 2_000);
    db.execute("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'crowd'");
    for turn in 1..=4 {
        assert!(stepper.step().expect("a turn").is_empty(), "turn {turn} starts a run of a paused task");
    }
    assert_eq!(marked(&db), 1, "the test looks too late");
    derive(&mut stepper);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE blocked IS NOT 'paused'"), "0");
    client.resume("crowd").expect("a resumption");
    db.execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 'crowd'");
    let claims = stepper.step().expect("a turn");
    assert!(claims.iter().all(|claim| claim.handler == "other"), "{claims:#?}");
    assert_eq!((claims.len(), marked(&db)), (3, 1));
}

#[test]
fn a_run_that_is_about_to_be_claimed_is_derived_first() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").accept("other").workers(3).start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 2_000);
    // The most urgent runs are the last that the mark reaches.
    db.execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 'crowd'");
    let claims = stepper.step().expect("a turn");
    let claims = if claims.is_empty() { stepper.step().expect("a turn") } else { claims };
    assert_eq!(claims.len(), 3, "runs start before the mark is worked off");
    assert!(claims.iter().all(|claim| claim.handler == "other" && claim.run_id > 1_990), "{claims:#?}");
    // Of a handler that this process does not have, none starts.
    db.execute("UPDATE scheduled_tasks SET handler = 'elsewhere' WHERE name = 'crowd'");
    claims.iter().for_each(|claim| stepper.finish(claim, duly::Outcome::succeeded()));
    for turn in 1..=4 {
        assert!(stepper.step().expect("a turn").is_empty(), "turn {turn} starts a run by an old handler");
    }
    assert_eq!(marked(&db), 1, "the test looks too late");
}

#[test]
fn a_run_that_is_opened_later_starts_as_the_task_is_now() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("other").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 2_000);
    client.pause("crowd").expect("a pause");
    db.execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 'crowd'");
    // A manual run of a paused task may start.
    let run = client.trigger("crowd").expect("a run");
    let claims = stepper.step().expect("a turn");
    assert_eq!(claims.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [run]);
    assert_eq!(marked(&db), 1, "the test looks too late");
    stepper.finish(&claims[0], duly::Outcome::succeeded());
    derive(&mut stepper);
    db.assert_sound();
}

#[test]
fn another_scheduler_goes_on_where_a_killed_one_was() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 5_000);
    client.pause("crowd").expect("a pause");
    for _ in 1..=10 {
        stepper.step().expect("a turn");
    }
    let left: usize = db.number("SELECT count(*) FROM task_runs WHERE blocked IS NOT 'paused'");
    assert!((1..3_000).contains(&left), "{left} runs are left");
    stepper.crash();
    let mut next = db.builder(NOON).accept("none").start().expect("a stepper");
    let turns = derive(&mut next);
    assert!(turns <= left / BATCH + 3, "{turns} turns for {left} runs");
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE blocked IS NOT 'paused'"), "0");
    assert_eq!(marked(&db), 0);
    db.assert_sound();
}

#[test]
fn a_run_that_cannot_be_written_stops_no_other() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 600);
    db.execute("CREATE TRIGGER refuse BEFORE UPDATE ON task_runs WHEN NEW.id = 300 BEGIN SELECT RAISE(ABORT, 'not this one'); END");
    client.pause("crowd").expect("a pause");
    derive(&mut stepper);
    assert_eq!(db.ask("SELECT min(id) || ' ' || max(id) FROM task_runs WHERE blocked IS NOT 'paused'"), "300 300");
    assert_eq!(marked(&db), 1);
    db.execute("DROP TRIGGER refuse");
    stepper.clock().advance(seconds(20));
    derive(&mut stepper);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE blocked IS NOT 'paused'"), "0");
    assert_eq!(marked(&db), 0);
    db.assert_sound();
}

/// A server whose time limit lets no larger turn pass has such.
#[test]
fn turns_of_one_item_work_off_marks_and_end_what_has_expired() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 40);
    client.add(NewTask::manual("expires").handler("work").expires(seconds(2))).expect("a task");
    let local = |n: usize| NewTask::cron(format!("local:{n}"), "0 7 * * *").time_zone("Europe/Rome").handler("work");
    client.add_all((0..5).map(local)).expect("tasks");
    client.trigger("expires").expect("a run");
    stepper.clock().advance(seconds(1));
    derive(&mut stepper);
    client.pause("crowd").expect("a pause");
    db.execute("INSERT INTO scheduler_meta (key, value) VALUES ('zone_mark:Europe/Rome', '0 0')");
    stepper.clock().advance(seconds(5));
    let mut looped = Looped::new(stepper, Vec::new(), None);
    looped.limit_items(1);
    let mut turns = 0;
    while turns < 200 {
        match looped.step().expect("a step") {
            LoopStep::Waits(until) if until > looped.now().monotonic => break,
            LoopStep::Turned(_) => turns += 1,
            _ => {}
        }
    }
    assert_eq!(marked(&db), 0);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_meta WHERE key LIKE 'zone_mark:%'"), "0");
    assert_eq!(
        db.ask("SELECT r.status FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = 'expires'"),
        "missed"
    );
    db.assert_sound();
}

/// The turn has items left when it comes to what is due, and resolves all of that: the runs that it did not expire are still left.
#[test]
fn what_a_turn_leaves_of_expired_runs_is_ended_by_the_next_at_once() {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::manual("expires").handler("work").overlap(Overlap::Allow).expires(seconds(2))).expect("a task");
    client.add(NewTask::interval("due", seconds(60)).handler("work")).expect("a task");
    let mut looped = Looped::new(stepper, Vec::new(), None);
    looped.limit_items(8);
    let rest = |looped: &mut Looped| {
        while !matches!(looped.step().expect("a step"), LoopStep::Waits(until) if until > looped.now().monotonic) {}
    };
    rest(&mut looped);
    for _ in 0..6 {
        client.trigger("expires").expect("a run");
    }
    looped.clock().advance(seconds(1));
    rest(&mut looped);
    looped.clock().advance(seconds(60));
    rest(&mut looped);
    let count = "SELECT status, count(*) FROM task_runs GROUP BY 1 ORDER BY 1";
    assert_eq!(db.rows(count), ["missed|6", "queued|1"]);
}

#[test]
fn what_a_turn_has_no_item_left_for_is_done_by_the_next_at_once() {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::manual("starts").handler("work")).expect("a task");
    client.trigger("starts").expect("a run");
    let mut looped = Looped::new(stepper, Vec::new(), None);
    // Its first turn is a full one, which has other items.
    looped.limit_items(1);
    loop {
        match looped.step().expect("a step") {
            LoopStep::Waits(until) => assert!(until <= looped.now().monotonic, "it waits, and a run may start"),
            LoopStep::HandedOver(claims) => break assert_eq!(claims.len(), 1),
            _ => {}
        }
    }
}

#[test]
fn local_tasks_are_planned_again_in_parts_and_none_starts_by_the_old_plan() {
    let tasks = number("DULY_WAITING", 20_000) * 3 / 10;
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let local = |n: usize| NewTask::cron(format!("local:{n}"), "0 7 * * *").time_zone("Europe/Rome").handler("work");
    stepper.client().add_all((0..tasks).map(local)).expect("tasks");
    stepper.client().add(NewTask::cron("utc", "0 7 * * *").handler("work")).expect("a task");
    derive(&mut stepper);
    stepper.stop().expect("an end");
    let plan = "SELECT name = 'utc', next_run FROM scheduled_tasks GROUP BY 1, 2 ORDER BY 1, 2";
    let before = db.rows(plan);
    // As if by other rules Rome had been half an hour ahead.
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 1800000 WHERE name <> 'utc'");
    let recorded = db.ask("SELECT value FROM scheduler_meta WHERE key = 'zone_rules:Europe/Rome'");
    let record = |rules: &str| {
        db.execute(&format!("UPDATE scheduler_meta SET value = '{rules}' WHERE key = 'zone_rules:Europe/Rome'"));
    };
    let other = db.stepper(NOON);
    record("other");
    count_changes(&db);
    let mark = "SELECT count(*) FROM scheduler_meta WHERE key = 'zone_mark:Europe/Rome'";
    let mut stepper = db.stepper(NOON);
    let old =
        format!("SELECT count(*) FROM scheduled_tasks WHERE next_run = {}", at("2027-03-15T05:30:00Z").as_millis());
    // A file is planned again from the start on, a server by turns. In a file, a plan is written in two steps.
    assert!(changes(&db) <= 2 * BATCH);
    assert!(db.number::<usize>(&old) >= tasks - BATCH && db.ask(mark) == "1");
    // While another scheduler has planned the zone by other rules, this one leaves the tasks as they are.
    record("other");
    for _ in 1..=2 {
        assert!(stepper.step().expect("a turn").is_empty());
    }
    assert_eq!((changes(&db), db.ask(mark)), (0, "1".to_owned()));
    assert!(stepper.sleeps() > seconds(0), "turns without end");
    other.stop().expect("an end");
    record(&recorded);
    // By the old plan, all of them are due. A request does not resolve them by it either.
    stepper.clock().set_wall(at("2027-03-15T05:31:00Z"));
    let last = format!("local:{}", tasks - 1);
    stepper.client().pause(&last).expect("a pause");
    db.assert_history(&last, &[]);
    stepper.client().resume(&last).expect("a resumption");
    changes(&db);
    for turn in 1.. {
        assert!(stepper.step().expect("a turn").is_empty(), "a task starts as it was planned before");
        let found = changes(&db);
        assert!(found <= 2 * MOST, "turn {turn} has changed {found} rows");
        if stepper.sleeps() > seconds(0) {
            break;
        }
        assert!(turn <= tasks / 50, "turns without end");
    }
    assert_eq!((db.rows(plan), db.ask(mark)), (before, "0".to_owned()));
    db.assert_sound();
}

#[test]
fn what_is_being_marked_is_shown_until_turns_have_written_it() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, 10_600);
    let shown = || client.task_details("crowd").expect("the task").marked_runs;
    assert_eq!(shown(), None);
    db.execute("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'crowd'");
    assert_eq!(shown(), Some(10_001), "more are not counted");
    for _ in 1..=10 {
        stepper.step().expect("a turn");
    }
    let left: usize = db.number("SELECT count(*) FROM task_runs WHERE blocked IS NOT 'paused'");
    assert_eq!(shown(), Some(left));
    // The problem that names the task says it, for monitors.
    db.execute("UPDATE scheduled_tasks SET failure_count = 3, last_error = 'no' WHERE name = 'crowd'");
    let failing = || problems(&client).into_iter().find(|line| line.starts_with("failing: ")).expect("a problem");
    let found = failing();
    assert!(found.contains(&format!("and is paused ({left} waiting runs are being marked): no")), "{found}");
    derive(&mut stepper);
    assert_eq!(shown(), None);
    assert!(failing().contains("and is paused: no"));
}

#[test]
fn all_runs_of_a_task_are_cancelled_in_parts_and_no_other() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, number("DULY_WAITING", 20_000) / 10);
    client.add(NewTask::manual("other").handler("work")).expect("a task");
    let other = client.trigger("other").expect("a run");
    assert_eq!(client.cancel_all("crowd").expect("a cancellation"), number::<usize>("DULY_WAITING", 20_000) / 10);
    assert_eq!(client.cancel_all("crowd").expect("a cancellation"), 0);
    assert_eq!(db.ask("SELECT group_concat(id) FROM task_runs WHERE status = 'queued'"), other.to_string());
    derive(&mut stepper);
    db.assert_sound();
}

#[test]
fn a_task_with_many_runs_is_removed_in_parts_and_none_of_them_starts() {
    let runs = number("DULY_WAITING", 20_000) / 10;
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(3).start().expect("a stepper");
    let client = stepper.client().clone();
    crowd(&db, &client, runs);
    db.execute(
        "UPDATE task_runs SET status = 'succeeded', attempt = 1, finished_at = run_at, blocked = NULL WHERE id % 2 = 0",
    );
    client.add(NewTask::manual("other").handler("work").concurrency_key("k")).expect("a task");
    let other = client.trigger("other").expect("a run");
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON scheduled_tasks BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.execute(refuse);
    client.remove("crowd").expect_err("it is interrupted");
    let left: usize = db.number("SELECT count(*) FROM task_runs WHERE task_id = 1");
    assert!((1..=500).contains(&left), "{left} runs are left");
    assert!(db.ask("SELECT invalid_reason FROM scheduled_tasks WHERE name = 'crowd'").contains("remove it again"));
    let started: Vec<i64> = stepper.step().expect("a turn").iter().map(|claim| claim.run_id).collect();
    assert_eq!(started, [other], "a run of a task starts that is being removed");
    db.execute("DROP TRIGGER refuse");
    client.remove("crowd").expect("a removal");
    assert_eq!(db.ask("SELECT group_concat(id) FROM task_runs"), other.to_string());
    db.assert_sound();
}

#[test]
fn tasks_that_a_filter_selects_or_a_manifest_has_no_longer_are_removed_in_parts() {
    let prune = Apply { prune: true, ..Apply::default() };
    for by_filter in [true, false] {
        let db = TestDb::new();
        let mut stepper = db.builder(NOON).accept("none").start().expect("a stepper");
        let client = stepper.client().clone();
        crowd(&db, &client, 2_000);
        client.apply("m", [NewTask::manual("crowd").handler("work").overlap(Overlap::Allow)], prune).expect("a task");
        client.add(NewTask::manual("other").handler("work")).expect("a task");
        let other = client.trigger("other").expect("a run");
        client.pause("crowd").expect("a pause");
        db.execute("CREATE TRIGGER refuse BEFORE DELETE ON scheduled_tasks BEGIN SELECT RAISE(ABORT, 'not now'); END");
        let paused = Filter::new().task_status(TaskStatus::Paused);
        if by_filter {
            // On a server, what refuses a row refuses the transaction.
            if let Ok(report) = client.remove_matching(&paused) {
                assert_eq!((report.changed, report.left.len()), (0, 1));
            }
        } else {
            client.apply("m", [], prune).expect_err("it is interrupted");
        }
        let left: usize = db.number("SELECT count(*) FROM task_runs WHERE task_id = 1");
        assert!((1..=500).contains(&left), "{left} runs are left");
        assert!(db.ask("SELECT invalid_reason FROM scheduled_tasks WHERE name = 'crowd'").contains("remove it again"));
        db.execute("DROP TRIGGER refuse");
        // The task is not paused any more.
        let removed = match by_filter {
            true => client.remove_matching(&paused).expect("a removal").changed,
            false => client.apply("m", [], prune).expect("a removal").len(),
        };
        assert_eq!((removed, client.names().expect("names")), (1, vec!["other".to_owned()]));
        derive(&mut stepper);
        assert_eq!(db.ask("SELECT group_concat(id) FROM task_runs"), other.to_string());
        db.assert_sound();
    }
}
