//! Limits across processes: the running runs of a key, and the starts of a handler.

use std::sync::Arc;
use std::time::Duration;

use duly::testing::{ManualClock, Stepper};
use duly::{
    Applied, Apply, Change, Claim, Client, Done, Limit, LimitOn, NewTask, Outcome, Overlap, Progress, RetryPolicy,
};

use crate::fixtures::{TestDb, at, is_of_sqlite, minutes, seconds};
use crate::sql::programs;

const NOON: &str = "2027-03-14T12:00:00Z";

fn limit_key(db: &TestDb, key: &str, running: i64) {
    db.execute(&format!(
        "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('{key}', {running})
         ON CONFLICT (concurrency_key) DO UPDATE SET max_running = excluded.max_running"
    ));
}

fn limit_rate(db: &TestDb, handler: &str, starts: i64, per_ms: i64) {
    db.execute(&format!(
        "INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('{handler}', {starts}, {per_ms})
         ON CONFLICT (handler) DO UPDATE SET max_starts = excluded.max_starts, per_ms = excluded.per_ms"
    ));
}

/// Tasks that are due once at noon.
fn due_at_noon(stepper: &Stepper, count: usize, shape: impl Fn(NewTask) -> NewTask) {
    let tasks = (0..count).map(|number| shape(NewTask::once(format!("task-{number:03}"), at(NOON)).handler("work")));
    stepper.client().add_all(tasks).unwrap();
}

fn with_key(task: NewTask) -> NewTask {
    task.concurrency_key("smtp")
}

fn succeed(stepper: &mut Stepper, claims: &[Arc<Claim>]) {
    claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
}

fn with_workers(workers: usize) -> (TestDb, Stepper) {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("work").workers(workers).start().unwrap();
    (db, stepper)
}

/// A scheduler that shares the clock of another.
fn beside(db: &TestDb, clock: &ManualClock, workers: usize) -> Stepper {
    db.builder(NOON).clock(clock).accept("work").accept("post").workers(workers).start().unwrap()
}

#[test]
fn as_many_runs_of_a_key_start_in_one_turn_as_its_limit_allows() {
    // A limit above the number of runs that wait unblocked at one time, too.
    for (limit, count) in [(1, 5), (3, 10), (100, 150)] {
        let (db, mut stepper) = with_workers(200);
        limit_key(&db, "smtp", limit);
        due_at_noon(&stepper, count, with_key);
        due_at_noon_aside(&stepper);
        let claims = stepper.step().unwrap();
        let limited = |claim: &&Arc<Claim>| claim.task.starts_with("task");
        assert_eq!(claims.iter().filter(limited).count() as i64, limit, "limit {limit}");
        assert_eq!(claims.len() as i64, limit + 1, "one of another key, which has no limit");
        let slots = "SELECT count(DISTINCT slot) || ' ' || max(slot) FROM task_runs
                      WHERE status = 'running' AND concurrency_key = 'smtp'";
        assert_eq!(db.ask(slots), format!("{limit} {}", limit - 1));
        let claims: Vec<_> = claims.iter().filter(limited).cloned().collect();
        assert!(stepper.step().unwrap().is_empty());
        succeed(&mut stepper, &claims[..1]);
        assert_eq!(stepper.step().unwrap().len(), 1, "the slot of the run that ended is taken again");
        succeed(&mut stepper, &claims[1..]);
        stepper.step().unwrap();
        db.assert_sound();
    }
}

fn due_at_noon_aside(stepper: &Stepper) {
    for name in ["aside", "behind"] {
        let task = NewTask::once(name, at(NOON)).handler("work").concurrency_key("aside");
        stepper.client().add(task).unwrap();
    }
}

#[test]
fn two_schedulers_share_the_slots_of_a_key_and_a_crash_frees_them() {
    let db = TestDb::new();
    let mut one = db.builder(NOON).accept("work").workers(2).start().unwrap();
    let mut two = beside(&db, &one.clock().clone(), 8);
    limit_key(&db, "smtp", 3);
    due_at_noon(&one, 6, with_key);
    assert_eq!(one.step().unwrap().len(), 2);
    assert_eq!(two.step().unwrap().len(), 1);
    one.crash();
    let recovered = two.step().unwrap();
    assert_eq!(recovered.len(), 2, "the slots of the dead scheduler are free");
    assert_eq!(db.number::<i64>("SELECT count(*) FROM task_runs WHERE status = 'running'"), 3);
    db.assert_sound();
}

#[test]
fn a_changed_limit_takes_effect_in_the_next_turn_and_a_lower_one_ends_nothing() {
    for program in programs() {
        let (db, mut stepper) = with_workers(20);
        due_at_noon(&stepper, 12, with_key);
        let mut claims = stepper.step().unwrap();
        assert_eq!(claims.len(), 1, "no limit: one at a time");
        program.execute(&db, "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('smtp', 4)");
        claims.extend(stepper.step().unwrap());
        assert_eq!(claims.len(), 4, "{program:?}");
        program.execute(&db, "UPDATE concurrency_limits SET max_running = 2 WHERE concurrency_key = 'smtp'");
        assert!(stepper.step().unwrap().is_empty());
        assert_eq!(db.number::<i64>("SELECT count(*) FROM task_runs WHERE status = 'running'"), 4, "nothing is ended");
        succeed(&mut stepper, &claims.split_off(2));
        assert!(stepper.step().unwrap().is_empty(), "two still run, and two may");
        succeed(&mut stepper, &claims.split_off(1));
        claims.extend(stepper.step().unwrap());
        assert_eq!(claims.len(), 2);
        program.execute(&db, "DELETE FROM concurrency_limits");
        succeed(&mut stepper, &claims.split_off(1));
        assert!(stepper.step().unwrap().is_empty(), "no limit: one at a time");
        succeed(&mut stepper, &claims);
        assert_eq!(stepper.step().unwrap().len(), 1);
        db.assert_sound();
    }
}

#[test]
fn a_key_whose_limit_is_removed_waits_for_the_runs_in_its_other_slots() {
    let (db, mut stepper) = with_workers(20);
    limit_key(&db, "smtp", 3);
    due_at_noon(&stepper, 5, with_key);
    let claims = stepper.step().unwrap();
    stepper.client().remove_limit(&LimitOn::Key("smtp".to_owned())).unwrap();
    // Slot 0 is free, slots 1 and 2 are not. A task that becomes due does not take slot 0 either.
    for ended in &claims {
        let late = NewTask::once(format!("late-{}", ended.run_id), at(NOON)).handler("work");
        stepper.client().add(with_key(late)).unwrap();
        succeed(&mut stepper, std::slice::from_ref(ended));
        let started = stepper.step().unwrap().len();
        assert_eq!(started, usize::from(ended.run_id == claims[2].run_id), "after {}", ended.task);
    }
    db.assert_sound();
}

#[test]
fn slots_are_free_for_every_handler_and_pauses_and_removals_free_the_next() {
    let (db, mut stepper) = with_workers(9);
    limit_key(&db, "smtp", 2);
    let of = |name: &str, handler: &str| {
        NewTask::manual(name).handler(handler).concurrency_key("smtp").overlap(Overlap::Allow)
    };
    for (name, handler) in [("absent", "absent"), ("first", "work"), ("second", "work")] {
        stepper.client().add(of(name, handler)).unwrap();
        for _ in 0..3 {
            stepper.client().trigger(name).unwrap();
        }
    }
    let free = "SELECT count(*) FROM task_runs WHERE blocked IS NULL AND status = 'queued' AND handler = ";
    assert_eq!((db.number::<i64>(&format!("{free}'absent'")), db.number::<i64>(&format!("{free}'work'"))), (2, 2));
    db.execute("DELETE FROM scheduled_tasks WHERE name = 'first'");
    let claims = stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| claim.task.as_str()).collect::<Vec<_>>(), ["second", "second"]);
    assert_eq!(db.number::<i64>("SELECT count(*) FROM task_runs WHERE blocked IS NULL AND status = 'queued'"), 0);
    db.assert_sound();
}

#[test]
fn the_database_refuses_a_second_run_in_a_slot_and_limits_out_of_range() {
    let (db, mut stepper) = with_workers(9);
    limit_key(&db, "smtp", 2);
    limit_rate(&db, "post", 2, 1_000);
    due_at_noon(&stepper, 2, with_key);
    assert_eq!(stepper.step().unwrap().len(), 2);
    for (sql, says) in [
        ("UPDATE task_runs SET slot = 0", "UNIQUE constraint failed: task_runs.concurrency_key, task_runs.slot"),
        ("INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('#1', 2)", "CHECK constraint failed"),
        ("UPDATE concurrency_limits SET max_running = 0", "CHECK constraint failed"),
        ("UPDATE concurrency_limits SET max_running = 1001", "CHECK constraint failed"),
        ("UPDATE concurrency_limits SET concurrency_key = 'other'", "the key of a limit cannot be changed"),
        ("UPDATE rate_limits SET handler = 'work'", "the handler of a limit cannot be changed"),
        ("INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 0, 1)", "CHECK constraint failed"),
        ("INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 10001, 1)", "CHECK constraint failed"),
        ("INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 1, 0)", "CHECK constraint failed"),
    ] {
        let error = db.try_execute(sql).unwrap_err();
        let says = if db.is_on_server() { says.split(" constraint").next().unwrap() } else { says };
        assert!(error.to_lowercase().contains(&says.to_lowercase()), "{sql}: {error}");
    }
}

#[test]
fn a_handler_starts_no_more_often_than_its_rate_whatever_the_number_of_schedulers() {
    let db = TestDb::new();
    let mut one = db.builder(NOON).accept("work").workers(8).start().unwrap();
    let clock = one.clock().clone();
    let mut two = beside(&db, &clock, 8);
    limit_rate(&db, "work", 3, 60_000);
    due_at_noon(&one, 10, |task| task);
    one.client().add(NewTask::once("other", at(NOON)).handler("post")).unwrap();
    let mut claims = one.step().unwrap();
    assert_eq!(claims.len(), 3, "the others of the turn are queued");
    assert!(one.sleeps() <= minutes(1));
    let others = two.step().unwrap();
    assert_eq!(others.iter().map(|claim| claim.handler.as_str()).collect::<Vec<_>>(), ["post"]);
    // A retry is a start, too.
    one.finish(&claims.remove(0), Outcome::failed("it failed"));
    assert!(one.step().unwrap().is_empty());
    clock.advance(seconds(59));
    assert!(one.step().unwrap().is_empty() && two.step().unwrap().is_empty());
    assert!(one.sleeps() <= seconds(1), "{:?}", one.sleeps());
    clock.advance(seconds(1));
    assert_eq!((two.step().unwrap().len(), one.step().unwrap().len()), (3, 0));
    // A killed scheduler takes no start back.
    two.crash();
    assert!(one.step().unwrap().is_empty());
    db.assert_sound();
}

#[test]
fn starts_one_by_one_form_a_sliding_window() {
    let (db, mut stepper) = with_workers(9);
    limit_rate(&db, "work", 2, 10_000);
    let task = NewTask::interval("often", seconds(1)).handler("work").overlap(Overlap::BufferAll);
    stepper.client().add(task.retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })).unwrap();
    let mut started = Vec::new();
    for second in 0..45 {
        for claim in stepper.step().unwrap() {
            started.push(second);
            stepper.finish(&claim, Outcome::succeeded());
        }
        stepper.clock().advance(seconds(1));
    }
    assert!(started.len() >= 8, "{started:?}");
    assert!(started.windows(3).all(|window| window[2] - window[0] >= 10), "{started:?}");
    db.assert_sound();
}

#[test]
fn behind_a_rate_every_eighth_start_is_chosen_by_age() {
    // One worker lists two runs in each turn, four list eight.
    for workers in 1..=4 {
        let (db, mut stepper) = with_workers(workers);
        limit_rate(&db, "work", 1, 1_000);
        due_at_noon(&stepper, 40, |task| task.priority(0));
        for number in 0..8 {
            let task = NewTask::once(format!("old-{number}"), at("2027-03-14T11:59:00Z")).handler("work").priority(3);
            stepper.client().add(task).unwrap();
        }
        let mut started = Vec::new();
        for _ in 0..25 {
            let claims = stepper.step().unwrap();
            started.extend(claims.iter().map(|claim| claim.task.clone()));
            succeed(&mut stepper, &claims);
            stepper.clock().advance(seconds(1));
        }
        assert_eq!(started.len(), 25);
        let old = started.iter().filter(|task| task.starts_with("old")).count();
        assert_eq!(old, 3, "{workers} workers: {started:?}");
        db.assert_sound();
    }
}

#[test]
fn a_changed_rate_keeps_the_starts_that_it_still_counts() {
    for program in programs() {
        let (db, mut stepper) = with_workers(20);
        program.execute(&db, "INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 3, 60000)");
        due_at_noon(&stepper, 20, |task| task);
        assert_eq!(stepper.step().unwrap().len(), 3);
        program.execute(&db, "UPDATE rate_limits SET max_starts = 5");
        assert_eq!(stepper.step().unwrap().len(), 2, "{program:?}: three of the five were before the change");
        program.execute(&db, "UPDATE rate_limits SET max_starts = 2");
        stepper.clock().advance(seconds(59));
        assert!(stepper.step().unwrap().is_empty());
        stepper.clock().advance(seconds(1));
        assert_eq!(stepper.step().unwrap().len(), 2);
        assert_eq!(db.number::<i64>("SELECT count(*) FROM rate_limit_starts"), 2, "older starts are forgotten");
        program.execute(&db, "DELETE FROM rate_limits");
        assert_eq!(db.number::<i64>("SELECT count(*) FROM rate_limit_starts"), 0);
        assert_eq!(stepper.step().unwrap().len(), 13, "as many as there are idle workers");
        db.assert_sound();
    }
}

#[test]
fn a_start_by_a_wrong_clock_does_not_count_beyond_the_return_of_the_clock() {
    let db = TestDb::new();
    let mut stepper = db.builder("2031-01-01T00:00:00Z").accept("work").workers(9).start().unwrap();
    limit_rate(&db, "work", 2, 60_000);
    due_at_noon(&stepper, 6, |task| task);
    assert_eq!(stepper.step().unwrap().len(), 2);
    // The clock was years ahead: what has waited is due at noon, and the starts count as starts of now.
    stepper.clock().set_wall(at(NOON));
    assert!(stepper.step().unwrap().is_empty());
    stepper.clock().advance(minutes(1));
    assert_eq!(stepper.step().unwrap().len(), 2);
    db.assert_sound();
}

#[test]
fn a_run_with_a_rate_that_is_read_ahead_counts_from_the_latest_time_at_which_it_may_begin() {
    let (db, mut stepper) = with_workers(1);
    limit_rate(&db, "work", 3, 1_000);
    due_at_noon(&stepper, 6, |task| task);
    let claims = stepper.step_ahead(4).unwrap();
    assert_eq!(claims.len(), 3, "its rate limits what is read ahead");
    claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
    stepper.clock().advance(Duration::from_millis(1_000));
    let first = stepper.step_ahead(4).unwrap();
    assert_eq!(first.len(), 1, "only the first began at noon");
    stepper.finish(&first[0], Outcome::succeeded());
    stepper.clock().advance(Duration::from_millis(199));
    assert!(stepper.step_ahead(4).unwrap().is_empty());
    stepper.clock().advance(Duration::from_millis(1));
    assert_eq!(stepper.step_ahead(4).unwrap().len(), 2);
}

#[test]
fn a_run_with_a_rate_of_a_short_time_is_not_read_ahead() {
    let (db, mut stepper) = with_workers(1);
    limit_rate(&db, "work", 100, 999);
    due_at_noon(&stepper, 6, |task| task);
    assert_eq!(stepper.step_ahead(4).unwrap().len(), 1);
    assert!(stepper.step_ahead(4).unwrap().is_empty());
}

#[test]
fn garbled_rows_of_limits_stop_nothing() {
    if is_of_sqlite("it changes settings or tables of SQLite") {
        return;
    }
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").accept("post").workers(9).start().unwrap();
    due_at_noon(&stepper, 3, |task| task);
    stepper.client().add(NewTask::once("other", at(NOON)).handler("post")).unwrap();
    db.execute("PRAGMA ignore_check_constraints = ON;
             INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES (CAST(x'ff61' AS TEXT), -4), ('#1', 9);
             INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES (CAST(x'ff61' AS TEXT), -1, -1), ('work', -7, -9);
             INSERT INTO rate_limit_starts VALUES ('handler:work', 9223372036854775806, 5), (CAST(x'ff61' AS TEXT), 1, 2);");
    let claims = stepper.step().unwrap();
    assert!(claims.iter().any(|claim| claim.task == "other"), "{claims:?}");
}

#[test]
fn a_garbled_limit_of_a_key_keeps_no_outcome_from_being_stored() {
    if is_of_sqlite("it changes settings or tables of SQLite") {
        return;
    }
    let (db, mut stepper) = with_workers(9);
    limit_key(&db, "smtp", 2);
    due_at_noon(&stepper, 3, with_key);
    let claims = stepper.step().unwrap();
    db.execute(
        "PRAGMA ignore_check_constraints = ON;
             UPDATE concurrency_limits SET max_running = -9223372036854775808;",
    );
    succeed(&mut stepper, &claims[..1]);
    assert!(stepper.step().unwrap().is_empty(), "such a key starts nothing");
    assert_eq!(db.number::<i64>("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), 1);
}

#[test]
fn a_client_sets_lists_and_removes_limits() {
    let (db, mut stepper) = with_workers(9);
    let client = stepper.client().clone();
    let (key, rate) = (Limit::key("smtp", 2), Limit::rate("work", 5, minutes(1)));
    assert_eq!(client.set_limit(rate.clone()).unwrap(), Change::Created);
    assert_eq!(client.set_limit(Limit::key("smtp", 9)).unwrap(), Change::Created);
    assert_eq!(client.set_limit(key.clone()).unwrap(), Change::Replaced);
    assert_eq!(client.set_limit(key.clone()).unwrap(), Change::Unchanged);
    due_at_noon(&stepper, 4, with_key);
    for name in ["a", "b", "c", "d"] {
        client.add(NewTask::once(name, at(NOON)).handler("work")).unwrap();
    }
    assert_eq!(stepper.step().unwrap().len(), 5);
    let limits = client.limits().unwrap();
    assert_eq!(limits.iter().map(|state| state.limit.clone()).collect::<Vec<_>>(), [key.clone(), rate.clone()]);
    let running =
        db.number::<u64>("SELECT count(*) FROM task_runs WHERE status = 'running' AND concurrency_key = 'smtp'");
    assert_eq!((limits[0].used, limits[0].waiting, limits[0].next_start), (running, 4 - running, None));
    assert_eq!((limits[1].used, limits[1].next_start), (5, Some(at("2027-03-14T12:01:00Z"))));
    for on in [key.on(), rate.on()] {
        assert!(client.remove_limit(&on).unwrap() && !client.remove_limit(&on).unwrap(), "{on}");
    }
    assert!(client.limits().unwrap().is_empty());
    for (limit, says) in [
        (Limit::key("#1", 2), "invalid concurrency_key: expected a key that does not begin with #"),
        (Limit::key("smtp", 1001), "invalid max_running: expected 1 to 1000, found \"1001\""),
        (Limit::rate("work", 0, minutes(1)), "invalid max_starts: expected 1 to 10000, found \"0\""),
        (Limit::rate("", 1, minutes(1)), "invalid handler: expected 1 to 200 bytes"),
    ] {
        let error = client.set_limit(limit).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    db.assert_sound();
}

fn apply(client: &Client, manifest: &str, limits: &[Limit], how: Apply) -> duly::Result<Vec<Applied>> {
    client.apply_with_limits(manifest, [], limits.iter().cloned(), how, &Progress::default())
}

#[test]
fn a_manifest_declares_limits() {
    let (db, client) = TestDb::with_client();
    let dry = Apply { dry_run: true, ..Apply::default() };
    let prune = Apply { prune: true, ..Apply::default() };
    let (key, rate) = (Limit::key("smtp", 3), Limit::rate("mail", 100, minutes(1)));
    let done = |applied: Vec<Applied>| applied.into_iter().map(|one| (one.name, one.done)).collect::<Vec<_>>();
    let both = [key.clone(), rate.clone()];
    let names = |done: Done| [("key smtp".to_owned(), done.clone()), ("handler mail".to_owned(), done)];
    assert_eq!(done(apply(&client, "a.toml", &both, dry).unwrap()), names(Done::Created));
    assert!(client.limits().unwrap().is_empty(), "a dry run writes nothing");
    assert_eq!(done(apply(&client, "a.toml", &both, Apply::default()).unwrap()), names(Done::Created));
    assert_eq!(done(apply(&client, "a.toml", &both, Apply::default()).unwrap()), names(Done::Unchanged));
    let changed = [Limit::key("smtp", 4), Limit::rate("mail", 100, minutes(2))];
    let field = |name, stored: &str, given: &str| Done::Replaced { fields: vec![(name, stored.into(), given.into())] };
    assert_eq!(
        done(apply(&client, "a.toml", &changed, Apply::default()).unwrap()),
        [
            ("key smtp".to_owned(), field("max_running", "3", "4")),
            ("handler mail".to_owned(), field("per_ms", "60000", "120000"))
        ]
    );
    // A limit that was set by hand, or by another manifest.
    client.set_limit(Limit::key("disk", 2)).unwrap();
    let error = apply(&client, "b.toml", &[key], Apply::default()).unwrap_err().to_string();
    assert!(error.contains("cannot apply the limit on key smtp: a.toml declares it too"), "{error}");
    let twice = [rate.clone(), rate];
    let error = apply(&client, "a.toml", &twice, Apply::default()).unwrap_err().to_string();
    assert!(error.ends_with("the manifest declares it twice"), "{error}");
    let error = apply(&client, "a.toml", &[Limit::key("smtp", 0)], Apply::default()).unwrap_err().to_string();
    assert!(error.contains("the limit on key smtp: invalid max_running"), "{error}");
    assert_eq!(done(apply(&client, "a.toml", &changed[..1], Apply::default()).unwrap())[1].1, Done::Left);
    assert_eq!(done(apply(&client, "a.toml", &[], prune).unwrap()), names(Done::Removed));
    let left = client.limits().unwrap();
    assert_eq!(left.iter().map(|state| state.limit.on()).collect::<Vec<_>>(), [LimitOn::Key("disk".to_owned())]);
    db.assert_sound();
}
