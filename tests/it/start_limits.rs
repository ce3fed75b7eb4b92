//! Limits of starts of a key and of a task: what waits, what is skipped, and what starts when a start is free again.

use std::sync::Arc;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{
    AlarmPace, AlarmTurn, Change, Claim, Done, Limit, Limits, Misfire, NewTask, Outcome, Overlap, ProblemKind,
    RetryPolicy, WhenLimited,
};

use crate::fixtures::{TestDb, at, is_of_sqlite, minutes, seconds, work_off};

const NOON: &str = "2027-03-14T12:00:00Z";

fn with_workers(workers: usize) -> (TestDb, Stepper) {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("work").accept("post").workers(workers).start().unwrap();
    (db, stepper)
}

fn names(claims: &[Arc<Claim>]) -> Vec<&str> {
    let mut names: Vec<&str> = claims.iter().map(|claim| claim.task.as_str()).collect();
    names.sort_unstable();
    names
}

fn succeed(stepper: &mut Stepper, claims: &[Arc<Claim>]) {
    claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
}

fn step_after(stepper: &mut Stepper, time: Duration) -> Vec<Arc<Claim>> {
    stepper.clock().advance(time);
    stepper.step().unwrap()
}

fn blocked(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT coalesce(blocked, 'free') || ' ' || count(*) FROM task_runs WHERE status IN ('queued', 'failed')
          GROUP BY blocked ORDER BY 1",
    )
}

fn counted(db: &TestDb) -> Vec<String> {
    db.rows("SELECT subject || ' ' || count(*) FROM rate_limit_starts GROUP BY subject ORDER BY 1")
}

fn closed(db: &TestDb) -> Vec<String> {
    db.rows("SELECT subject FROM rate_limit_openings ORDER BY 1")
}

/// A task whose runs may run beside each other.
fn asked(name: &str, starts: u32, per: Duration) -> NewTask {
    NewTask::manual(name).handler("work").overlap(Overlap::Allow).max_starts(starts, per)
}

fn trigger(stepper: &Stepper, task: &str, times: usize) {
    for _ in 0..times {
        stepper.client().trigger(task).unwrap();
    }
}

#[test]
fn a_key_starts_as_many_runs_in_a_time_as_its_rate_says_of_any_handler() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().set_limit(Limit::key("smtp", 5).with_rate(2, minutes(1))).unwrap();
    let task = |number: usize| {
        let handler = if number.is_multiple_of(2) { "work" } else { "post" };
        NewTask::once(format!("task-{number}"), at(NOON)).handler(handler).concurrency_key("smtp")
    };
    stepper.client().add_all((0..5).map(task)).unwrap();
    stepper.client().add(NewTask::once("aside", at(NOON)).handler("work")).unwrap();
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 3, "two with the key, and one of another: {:?}", names(&claims));
    assert_eq!((blocked(&db), closed(&db)), (vec!["key 3".into()], vec!["key:smtp".into()]));
    succeed(&mut stepper, &claims);
    assert!(step_after(&mut stepper, seconds(30)).is_empty(), "slots are free, and no start is");
    assert!(stepper.sleeps() <= seconds(30), "it wakes when the next start is free: {:?}", stepper.sleeps());
    let claims = step_after(&mut stepper, seconds(30));
    assert_eq!(claims.len(), 2);
    succeed(&mut stepper, &claims);
    assert_eq!(step_after(&mut stepper, minutes(1)).len(), 1);
    assert_eq!(counted(&db), ["key:smtp 2"], "only the newest are kept");
    db.assert_sound();
}

#[test]
fn a_key_in_use_waits_for_its_slot_and_for_its_start() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().set_limit(Limit::key("smtp", 1).with_rate(9, minutes(1))).unwrap();
    let task =
        |number: usize| NewTask::once(format!("task-{number}"), at(NOON)).handler("work").concurrency_key("smtp");
    stepper.client().add_all((0..3).map(task)).unwrap();
    let claims = stepper.step().unwrap();
    assert_eq!((claims.len(), closed(&db).len()), (1, 0), "one slot");
    succeed(&mut stepper, &claims);
    assert_eq!(stepper.step().unwrap().len(), 1);
    db.assert_sound();
}

#[test]
fn a_task_starts_as_often_in_a_time_as_it_may_and_only_as_many_runs_are_released() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(asked("ask", 2, minutes(60))).unwrap();
    trigger(&stepper, "ask", 6);
    let claims = stepper.step().unwrap();
    assert_eq!((claims.len(), blocked(&db)), (2, vec!["starts 4".into()]));
    succeed(&mut stepper, &claims);
    let written = "SELECT sum(length(coalesce(blocked, '')) * id) FROM task_runs";
    let before = db.ask(written);
    assert!(step_after(&mut stepper, minutes(59)).is_empty());
    assert_eq!(db.ask(written), before, "a turn does not look at what waits");
    let sleeps = stepper.sleeps();
    assert!(sleeps <= minutes(1), "it wakes when the next start is free: {sleeps:?}");
    assert_eq!(step_after(&mut stepper, minutes(1)).len(), 2);
    assert_eq!(blocked(&db), ["starts 2"]);
    assert_eq!(step_after(&mut stepper, minutes(60)).len(), 2);
    assert_eq!(counted(&db), ["task:1 2"]);
    db.assert_sound();
}

#[test]
fn the_window_slides_exactly() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(asked("ask", 3, minutes(10))).unwrap();
    let mut started = Vec::new();
    for minute in 0..60 {
        trigger(&stepper, "ask", 1);
        let claims = stepper.step().unwrap();
        started.extend(claims.iter().map(|_| minute));
        succeed(&mut stepper, &claims);
        stepper.clock().advance(minutes(1));
    }
    let most = (0..60).map(|from| started.iter().filter(|at| (from..from + 10).contains(*at)).count()).max();
    assert_eq!((most, started.len()), (Some(3), 18), "{started:?}");
    assert_eq!(started[..9], [0, 1, 2, 10, 11, 12, 20, 21, 22]);
    db.assert_sound();
}

#[test]
fn the_most_urgent_are_released_first_and_a_cancelled_one_leaves_its_start_to_another() {
    let (db, mut stepper) = with_workers(1);
    stepper.client().add(asked("ask", 1, minutes(10))).unwrap();
    stepper.client().add(NewTask::manual("busy").handler("post")).unwrap();
    trigger(&stepper, "ask", 1);
    let first = stepper.step().unwrap();
    succeed(&mut stepper, &first);
    trigger(&stepper, "ask", 3);
    stepper.step().unwrap();
    assert_eq!(blocked(&db), ["starts 3"]);
    trigger(&stepper, "busy", 1);
    let busy = stepper.step().unwrap();
    assert!(step_after(&mut stepper, minutes(10)).is_empty(), "no worker is free");
    assert_eq!(blocked(&db), ["free 1", "starts 2"]);
    let released: i64 = db.number("SELECT id FROM task_runs WHERE status = 'queued' AND blocked IS NULL");
    let waiting: i64 = db.number("SELECT min(id) FROM task_runs WHERE blocked = 'starts'");
    assert!(released < waiting, "the one that was due first");
    stepper.client().cancel(released).unwrap();
    assert_eq!(blocked(&db), ["free 1", "starts 1"]);
    succeed(&mut stepper, &busy);
    let claims = stepper.step().unwrap();
    assert_eq!(claims[0].run_id, waiting);
    assert_eq!(blocked(&db), ["starts 1"]);
    db.assert_sound();
}

#[test]
fn a_run_that_waits_for_a_start_leaves_its_key_to_others() {
    let (db, mut stepper) = with_workers(9);
    let limited =
        NewTask::manual("limited").handler("work").concurrency_key("k").max_starts(1, minutes(10)).priority(0);
    stepper.client().add(limited).unwrap();
    stepper.client().add(NewTask::manual("other").handler("work").concurrency_key("k")).unwrap();
    trigger(&stepper, "limited", 3);
    trigger(&stepper, "other", 1);
    let claims = stepper.step().unwrap();
    assert_eq!(names(&claims), ["limited"]);
    succeed(&mut stepper, &claims);
    let mut started = stepper.step().unwrap();
    if started.is_empty() {
        // On a server, what may start in the place of those that wait is known to the next turn.
        started = stepper.step().unwrap();
    }
    assert_eq!(names(&started), ["other"]);
    succeed(&mut stepper, &started);
    assert_eq!(names(&step_after(&mut stepper, minutes(10))), ["limited"]);
    db.assert_sound();
}

#[test]
fn retries_count_as_starts_and_wait_for_one() {
    let (db, mut stepper) = with_workers(9);
    let soon = RetryPolicy { max_attempts: 9, backoff: seconds(1), max_backoff: seconds(1) };
    stepper.client().add(asked("ask", 2, minutes(10)).retry(soon)).unwrap();
    trigger(&stepper, "ask", 1);
    let mut attempts = Vec::new();
    for second in 0..1200 {
        for claim in stepper.step().unwrap() {
            attempts.push(second);
            stepper.finish(&claim, Outcome::failed("no"));
        }
        stepper.clock().advance(seconds(1));
    }
    assert_eq!(attempts.len(), 4, "{attempts:?}");
    assert!(attempts[2] >= 600 && attempts[3] < 610, "{attempts:?}");
    db.assert_sound();
}

#[test]
fn a_start_counts_although_the_scheduler_dies_before_it_begins() {
    let (db, mut stepper) = with_workers(1);
    stepper.client().add(asked("ask", 1, minutes(10))).unwrap();
    trigger(&stepper, "ask", 2);
    assert_eq!(stepper.step().unwrap().len(), 1);
    stepper.crash();
    let mut other = db.builder("2027-03-14T12:05:00Z").accept("work").workers(9).start().unwrap();
    assert!(other.step().unwrap().is_empty());
    other.clock().set_wall(at("2027-03-14T12:10:00Z"));
    assert_eq!(other.step().unwrap().len(), 1);
    db.assert_sound();
}

#[test]
fn what_is_read_ahead_counts_from_the_latest_time_at_which_it_may_begin() {
    let (db, mut stepper) = with_workers(1);
    stepper.client().add(asked("ask", 3, seconds(1))).unwrap();
    trigger(&stepper, "ask", 6);
    let claims = stepper.step_ahead(4).unwrap();
    assert_eq!(claims.len(), 3, "its limit limits what is read ahead");
    succeed(&mut stepper, &claims);
    stepper.clock().advance(seconds(1));
    let first = stepper.step_ahead(4).unwrap();
    assert_eq!(first.len(), 1, "only the first began at noon");
    succeed(&mut stepper, &first);
    stepper.clock().advance(Duration::from_millis(200));
    assert_eq!(stepper.step_ahead(4).unwrap().len(), 2);
    db.assert_sound();
}

#[test]
fn every_kind_of_schedule_may_have_a_limit() {
    let (db, mut stepper) = with_workers(9);
    let limited = |task: NewTask| task.handler("work").max_starts(1, minutes(10));
    let tasks = [
        NewTask::once("once", at(NOON)),
        NewTask::interval("interval", minutes(1)),
        NewTask::cron("cron", "* * * * *"),
        NewTask::delay("delay", minutes(1)),
    ];
    stepper.client().add_all(tasks.map(limited)).unwrap();
    for _ in 0..30 {
        work_off(&mut stepper);
        stepper.clock().advance(minutes(1));
    }
    work_off(&mut stepper);
    let starts = "SELECT t.name || ' ' || count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE r.attempt > 0 GROUP BY t.name ORDER BY t.name";
    assert_eq!(db.rows(starts), ["cron 3", "delay 3", "interval 3", "once 1"]);
    db.assert_sound();
}

fn hourly(name: &str) -> NewTask {
    NewTask::cron(name, "0 * * * *").handler("work").when_limited(WhenLimited::Skip)
}

/// Lives through hours, and finishes all runs.
fn live(stepper: &mut Stepper, hours: usize) {
    for _ in 0..hours {
        stepper.clock().advance(minutes(60));
        work_off(stepper);
    }
}

#[test]
fn occurrences_beyond_the_limit_are_skipped_in_one_row_and_no_event_counts_them_as_overlap() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(hourly("t").max_starts(2, minutes(600))).unwrap();
    let before = db.add_bystander(&stepper);
    live(&mut stepper, 13);
    db.assert_history(
        "t",
        &[
            "2027-03-14 13:00:00 schedule succeeded",
            "2027-03-14 14:00:00 schedule succeeded",
            "2027-03-14 15:00:00 schedule skipped x8 to 2027-03-14 22:00:00",
            "2027-03-14 23:00:00 schedule succeeded",
            "2027-03-15 00:00:00 schedule succeeded",
            "2027-03-15 01:00:00 schedule skipped",
        ],
    );
    let reason = "SELECT DISTINCT error FROM task_runs WHERE status = 'skipped'";
    assert_eq!(db.rows(reason), ["no start was left: at most 2 of the task in 10h (when_limited)"]);
    assert_eq!(db.number::<u32>("SELECT count(*) FROM scheduler_events WHERE kind = 'skipped'"), 0);
    db.assert_bystander(&before);
    db.assert_sound();
}

#[test]
fn the_limits_of_a_key_and_of_a_handler_skip_too() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().set_limit(Limit::key("k", 3).with_rate(1, minutes(600))).unwrap();
    stepper.client().set_limit(Limit::rate("post", 1, minutes(600))).unwrap();
    stepper.client().add(hourly("with-key").concurrency_key("k")).unwrap();
    stepper.client().add(hourly("posts").handler("post")).unwrap();
    stepper.client().add(hourly("free")).unwrap();
    live(&mut stepper, 3);
    let skipped = "SELECT t.name || ' x' || r.occurrences || ' ' || r.error FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                    WHERE r.status = 'skipped' ORDER BY t.name";
    assert_eq!(
        db.rows(skipped),
        [
            "posts x2 no start was left: at most 1 of the handler post in 10h (when_limited)",
            "with-key x2 no start was left: at most 1 of the key k in 10h (when_limited)",
        ]
    );
    db.assert_sound();
}

#[test]
fn a_request_waits_although_occurrences_are_skipped() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(hourly("t").max_starts(1, minutes(120))).unwrap();
    live(&mut stepper, 1);
    let run = stepper.client().trigger("t").unwrap();
    work_off(&mut stepper);
    assert_eq!(db.run(run).status, duly::RunStatus::Queued);
    live(&mut stepper, 1);
    assert_eq!(db.run(run).status, duly::RunStatus::Queued, "the occurrence of 14:00 was skipped");
    live(&mut stepper, 1);
    assert_eq!(db.run(run).status, duly::RunStatus::Succeeded);
    db.assert_sound();
}

#[test]
fn one_resolution_opens_no_more_runs_than_starts_are_left() {
    let (db, mut stepper) = with_workers(9);
    let task =
        NewTask::interval("t", seconds(10)).handler("work").overlap(Overlap::Allow).when_limited(WhenLimited::Skip);
    stepper.client().add(task.max_starts(2, minutes(600))).unwrap();
    assert_eq!(step_after(&mut stepper, seconds(50)).len(), 2);
    db.assert_history(
        "t",
        &[
            "2027-03-14 12:00:10 schedule running",
            "2027-03-14 12:00:20 schedule running",
            "2027-03-14 12:00:30 schedule skipped x3 to 2027-03-14 12:00:50",
        ],
    );
    db.assert_sound();
}

#[test]
fn nothing_catches_up_while_no_start_is_left() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(hourly("t").max_starts(1, minutes(600)).misfire(Misfire::RunOnce, minutes(1))).unwrap();
    live(&mut stepper, 1);
    stepper.clock().advance(minutes(150));
    work_off(&mut stepper);
    db.assert_history(
        "t",
        &["2027-03-14 13:00:00 schedule succeeded", "2027-03-14 14:00:00 schedule missed x2 to 2027-03-14 15:00:00"],
    );
    let reason = "resolved later than the grace of the task (misfire policy): nothing catches up while no start is left (when_limited)";
    assert_eq!(db.ask("SELECT error FROM task_runs WHERE status = 'missed'"), reason);
    db.assert_sound();
}

#[test]
fn another_limit_applies_at_once_to_what_waits() {
    for change in [
        "UPDATE scheduled_tasks SET max_starts = '3/1h' WHERE name = 'ask'",
        "UPDATE scheduled_tasks SET max_starts = '1/1ms' WHERE name = 'ask'",
        "UPDATE scheduled_tasks SET max_starts = NULL WHERE name = 'ask'",
    ] {
        let (db, mut stepper) = with_workers(9);
        stepper.client().add(asked("ask", 1, minutes(60))).unwrap();
        trigger(&stepper, "ask", 2);
        assert_eq!(stepper.step().unwrap().len(), 1);
        stepper.clock().advance(seconds(1));
        db.execute(change);
        let mut claims = stepper.step().unwrap();
        if claims.is_empty() {
            claims = stepper.step().unwrap();
        }
        assert_eq!(claims.len(), 1, "{change}");
        db.assert_sound();
    }
}

#[test]
fn a_lower_limit_counts_the_starts_that_are_known() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(asked("ask", 5, minutes(60))).unwrap();
    stepper.client().set_limit(Limit::key("k", 9).with_rate(5, minutes(60))).unwrap();
    stepper
        .client()
        .add(NewTask::manual("keyed").handler("work").overlap(Overlap::Allow).concurrency_key("k"))
        .unwrap();
    trigger(&stepper, "ask", 3);
    trigger(&stepper, "keyed", 3);
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 6);
    succeed(&mut stepper, &claims);
    db.execute("UPDATE scheduled_tasks SET max_starts = '2/1h' WHERE name = 'ask'");
    assert_eq!(stepper.client().set_limit(Limit::key("k", 9).with_rate(2, minutes(60))).unwrap(), Change::Replaced);
    trigger(&stepper, "ask", 1);
    trigger(&stepper, "keyed", 1);
    assert!(stepper.step().unwrap().is_empty() && stepper.step().unwrap().is_empty());
    assert_eq!(step_after(&mut stepper, minutes(60)).len(), 2);
    db.assert_sound();
}

#[test]
fn starts_are_forgotten_with_their_limit_or_their_task() {
    let (db, mut stepper) = with_workers(9);
    let client = stepper.client().clone();
    client.add(asked("ask", 1, minutes(60))).unwrap();
    client.add(asked("gone", 1, minutes(60))).unwrap();
    client.set_limit(Limit::key("k", 2).with_rate(1, minutes(60))).unwrap();
    client.add(NewTask::manual("keyed").handler("work").concurrency_key("k").overlap(Overlap::Allow)).unwrap();
    for task in ["ask", "gone", "keyed"] {
        trigger(&stepper, task, 2);
    }
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 3);
    succeed(&mut stepper, &claims);
    stepper.step().unwrap();
    assert_eq!(closed(&db), ["key:k", "task:1", "task:2"]);
    // What does not change the rate forgets nothing.
    client.set_limit(Limit::key("k", 3).with_rate(1, minutes(60))).unwrap();
    assert_eq!(counted(&db), ["key:k 1", "task:1 1", "task:2 1"]);
    client.remove("gone").unwrap();
    client.set_limit(Limit::key("k", 3)).unwrap();
    db.execute("UPDATE scheduled_tasks SET max_starts = NULL WHERE name = 'ask'");
    assert_eq!((counted(&db), closed(&db)), (Vec::new(), Vec::new()));
    let mut started = stepper.step().unwrap();
    started.extend(stepper.step().unwrap());
    assert_eq!(names(&started), ["ask", "keyed"]);
    db.assert_sound();
}

#[test]
fn a_clock_that_was_wrong_holds_nothing_back() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(asked("ask", 1, minutes(10))).unwrap();
    stepper.clock().set_wall(at("2028-03-14T12:00:00Z"));
    stepper.step().unwrap();
    trigger(&stepper, "ask", 2);
    assert_eq!(stepper.step().unwrap().len(), 1);
    stepper.clock().set_wall(at("2027-03-14T12:00:05Z"));
    for _ in 0..4 {
        assert!(stepper.step().unwrap().is_empty());
    }
    assert_eq!(step_after(&mut stepper, minutes(10)).len(), 1);
    db.assert_sound();
}

#[test]
fn a_text_that_is_no_rate_makes_the_task_invalid_until_it_is_repaired() {
    let (db, mut stepper) = with_workers(9);
    stepper.client().add(hourly("t")).unwrap();
    db.execute("UPDATE scheduled_tasks SET max_starts = '4/day' WHERE name = 't'");
    stepper.step().unwrap();
    let reason = "SELECT status || ' ' || invalid_reason FROM scheduled_tasks WHERE name = 't'";
    let says = "invalid invalid max_starts: expected 1 to 10000 starts and a time, as in 4/1d, found \"4/day\"";
    assert_eq!(db.ask(reason), says);
    db.execute("UPDATE scheduled_tasks SET max_starts = '4/1d' WHERE name = 't'");
    stepper.step().unwrap();
    live(&mut stepper, 2);
    assert_eq!(db.number::<u32>("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), 2);
    let error = stepper.client().add(asked("u", 0, minutes(1))).unwrap_err().to_string();
    assert!(error.contains("max_starts: expected 1 to 10000 starts"), "{error}");
    db.assert_sound();
}

fn told(db: &TestDb) -> Vec<String> {
    db.rows("SELECT detail FROM scheduler_events WHERE kind = 'limited' ORDER BY id")
}

#[test]
fn an_alarm_and_a_check_tell_once_of_a_task_without_a_start_until_one_of_its_runs_starts() {
    let (db, mut stepper) = with_workers(9);
    let client = stepper.client().clone();
    client.add(asked("ask", 1, minutes(60))).unwrap();
    client.add(hourly("skips").max_starts(1, minutes(150))).unwrap();
    let limits = Limits::default();
    let problems = || -> Vec<String> {
        let found = client.check(&limits).unwrap().into_iter().filter(|one| one.kind == ProblemKind::Limited);
        found.map(|one| one.found).collect()
    };
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let delivered = || -> Vec<String> {
        while client.update_alarms(&["mail"], &limits, at(NOON), None).unwrap() {}
        let mut found = Vec::new();
        while let AlarmTurn::Deliver(message) = client.claim_alarm("mail", &pace, None).unwrap() {
            assert!(client.alarm_delivered(&message).unwrap());
            let of =
                message.items.iter().map(|item| item.task.clone().unwrap_or_default()).collect::<Vec<_>>().join(" ");
            found.push(format!("{} {} {of}", message.kind, message.state));
        }
        found
    };
    assert_eq!((problems(), delivered()), (Vec::new(), Vec::new()));
    trigger(&stepper, "ask", 3);
    work_off(&mut stepper);
    assert_eq!(problems(), ["ask: run 2 waits for a start until 2027-03-14T13:00:00.000Z (max_starts)"]);
    assert_eq!(delivered(), ["limited began ask"]);
    // 13:00: one of the two that wait starts, and the other one goes on waiting. 14:00: it starts, and an occurrence is skipped.
    live(&mut stepper, 1);
    assert_eq!((told(&db).len(), delivered()), (1, vec!["limited ended ask".to_owned()]));
    live(&mut stepper, 1);
    let skipped =
        "the occurrence of 2027-03-14T14:00:00.000Z: no start was left: at most 1 of the task in 2h 30m (when_limited)";
    assert_eq!(told(&db)[1..], [skipped]);
    assert_eq!(delivered(), ["limited began skips"]);
    live(&mut stepper, 1);
    assert_eq!((told(&db).len(), delivered().len()), (2, 0), "the row grows");
    live(&mut stepper, 1);
    assert_eq!(delivered(), ["limited ended skips"]);
    assert_eq!(problems(), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn an_actor_neither_escapes_nor_forgets_a_limit() {
    let (db, stepper) = with_workers(1);
    let client = stepper.client();
    let actor = client.actor("mcp:anna", "1").unwrap();
    let task = || NewTask::cron("t", "0 * * * *").handler("work");
    actor.add(task()).unwrap();
    db.execute("UPDATE scheduled_tasks SET max_starts = '2/1d', when_limited = 'skip' WHERE name = 't'");
    assert_eq!(actor.add(task()).unwrap().0, Done::Unchanged);
    actor.replace(task().priority(0)).unwrap();
    let stored = client.task("t").unwrap().unwrap().definition;
    assert_eq!(
        (stored.priority, stored.max_starts.as_deref(), stored.when_limited),
        (0, Some("2/1d"), WhenLimited::Skip)
    );
    let error = actor.remove("t").unwrap_err().to_string();
    assert!(error.contains("its starts are limited (max_starts)"), "{error}");
    client.remove("t").unwrap();
}

#[test]
fn a_text_that_is_no_limit_holds_up_no_other_task() {
    let (db, mut stepper) = with_workers(8);
    for task in ["bad", "good"] {
        stepper.client().add(asked(task, 1, minutes(1))).unwrap();
        trigger(&stepper, task, 2);
    }
    let claims = step_after(&mut stepper, seconds(1));
    assert_eq!(names(&claims), ["bad", "good"]);
    succeed(&mut stepper, &claims);
    db.execute("UPDATE scheduled_tasks SET max_starts = '0/1h' WHERE name = 'bad'");
    step_after(&mut stepper, seconds(1));
    assert_eq!(db.rows("SELECT status FROM scheduled_tasks WHERE name = 'bad'"), ["invalid"]);
    assert_eq!(names(&step_after(&mut stepper, minutes(1))), ["good"]);
    db.execute("UPDATE scheduled_tasks SET max_starts = '5/1h' WHERE name = 'bad'");
    assert_eq!(names(&step_after(&mut stepper, minutes(1))), ["bad"]);
    db.assert_sound();
}

#[test]
fn starts_that_are_forgotten_by_sql_and_limits_that_are_replaced_are_examined_at_once() {
    let (db, mut stepper) = with_workers(8);
    stepper.client().add(asked("task", 1, minutes(60))).unwrap();
    stepper.client().add(NewTask::manual("key").handler("work").overlap(Overlap::Allow).concurrency_key("k")).unwrap();
    db.execute(
        "INSERT INTO concurrency_limits (concurrency_key, max_running, max_starts, per_ms) VALUES ('k', 5, 1, 3600000)",
    );
    ["task", "key"].iter().for_each(|task| trigger(&stepper, task, 3));
    assert_eq!(names(&step_after(&mut stepper, seconds(1))), ["key", "task"]);
    assert!(step_after(&mut stepper, seconds(1)).is_empty());
    db.execute("DELETE FROM rate_limit_starts");
    db.execute("UPDATE rate_limit_openings SET opens_at = 1000000000000");
    assert_eq!(names(&step_after(&mut stepper, seconds(1))), ["key", "task"]);
    assert!(step_after(&mut stepper, seconds(1)).is_empty());
    if !is_of_sqlite("PostgreSQL has no REPLACE") {
        db.execute("INSERT OR REPLACE INTO concurrency_limits (concurrency_key, max_running) VALUES ('k', 5)");
        assert_eq!(names(&step_after(&mut stepper, seconds(1))), ["key"]);
    }
    db.assert_sound();
}

#[test]
fn what_falls_due_behind_a_run_that_waits_for_a_start_is_not_told_of_as_runs_that_take_long() {
    let (db, mut stepper) = with_workers(8);
    stepper.client().add(NewTask::interval("t", minutes(1)).handler("work").max_starts(1, minutes(60))).unwrap();
    let claims = step_after(&mut stepper, minutes(1));
    assert_eq!(names(&claims), ["t"]);
    succeed(&mut stepper, &claims);
    (0..12).for_each(|_| assert!(step_after(&mut stepper, minutes(1)).is_empty()));
    let skipped = "SELECT occurrences || ' ' || error FROM task_runs WHERE status = 'skipped'";
    let reason =
        "an earlier run of the task was waiting for a start, of which its limits had left none (overlap policy)";
    assert_eq!(db.rows(skipped), [format!("11 {reason}")]);
    let problems = stepper.client().check(&Limits::default()).unwrap();
    assert!(problems.len() == 1 && problems[0].kind == ProblemKind::Limited, "{problems:?}");
    db.assert_sound();
}
