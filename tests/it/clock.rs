//! A wall clock that steps: a step forward counts as downtime, a small step back is waited out, a large one replans everything.

use std::sync::mpsc::Receiver;

use duly::testing::Stepper;
use duly::{Event, Limits, NewTask, Outcome, ProblemKind, RetryPolicy, RunStatus, zone_data};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, claim, minutes, once, seconds, step, work_off};

/// The clock events since the last call.
fn clock_events(events: &Receiver<Event>) -> Vec<String> {
    let about =
        |event: &Event| matches!(event, Event::ClockStepped { .. } | Event::ClockWasWrong { .. } | Event::ClockNotSet);
    events.try_iter().filter(about).map(|event| event.to_string()).collect()
}

#[test]
fn a_step_forward_counts_as_downtime_and_is_reported_once() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    let before = db.add_bystander(&stepper);
    stepper.client().add(NewTask::cron("t", "0 * * * *").handler("work")).expect("a task");
    work_off(&mut stepper);
    stepper.clock().set_wall(at("2027-03-14T15:30:00Z"));
    work_off(&mut stepper);
    let expected = "the clock moved forward from 2027-03-14T12:00:00.000Z to 2027-03-14T15:30:00.000Z; occurrences in between \
                    are resolved as after downtime";
    assert_eq!(clock_events(&events), [expected]);
    db.assert_history(
        "t",
        &["2027-03-14 13:00:00 schedule missed x2 to 2027-03-14 14:00:00", "2027-03-14 15:00:00 catch_up succeeded"],
    );
    work_off(&mut stepper);
    stepper.clock().advance(minutes(30));
    work_off(&mut stepper);
    assert_eq!(clock_events(&events), Vec::<String>::new());
    assert_eq!(db.next("t"), "2027-03-14 17:00:00 active");
    db.assert_bystander(&before);
    db.assert_sound();
}

#[test]
fn a_small_step_back_is_waited_out() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.client().add(NewTask::cron("t", "*/30 * * * *").handler("work")).expect("a task");
    work_off(&mut stepper);
    stepper.clock().advance(minutes(30));
    work_off(&mut stepper);
    let before = db.tasks();
    stepper.clock().set_wall(at("2027-03-14T09:30:00Z"));
    for _ in 0..3 {
        work_off(&mut stepper);
        stepper.clock().advance(minutes(60));
    }
    assert_eq!(clock_events(&events).len(), 1);
    assert_eq!(db.tasks(), before, "unchanged three hours later");
    stepper.clock().advance(minutes(30));
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 12:30:00 schedule succeeded", "2027-03-14 13:00:00 schedule succeeded"]);
    db.assert_sound();
}

/// Adds tasks of each kind under a clock that shows 2031.
fn planned_in_2031(db: &TestDb) -> (Stepper, Vec<String>) {
    let right = db.stepper("2027-03-14T11:00:00Z");
    let bystander = db.add_bystander(&right);
    right.stop().expect("it leaves");
    let mut wrong = db.stepper("2031-05-01T12:00:00Z");
    let client = wrong.client().clone();
    let never = RetryPolicy { backoff: seconds(3600), ..RetryPolicy::default() };
    let tasks = [
        NewTask::cron("cron", "0 * * * *"),
        NewTask::interval("interval", minutes(20)),
        NewTask::delay("delay", minutes(10)),
        NewTask::once("once", at("2027-03-15T12:00:00Z")),
        NewTask::once("later", at("2032-01-01T00:00:00Z")),
        NewTask::once("retried", at("2031-01-01T00:00:00Z")).retry(never),
    ];
    client.add_all(tasks.map(|task| task.handler("work"))).expect("tasks");
    for claim in wrong.step().expect("a step") {
        let failed = claim.task == "retried";
        wrong.finish(&claim, if failed { Outcome::failed("no") } else { Outcome::succeeded() });
    }
    for claim in advance_and_step(&mut wrong, minutes(10)) {
        wrong.finish(&claim, Outcome::succeeded());
    }
    wrong.step().expect("a step");
    assert_eq!(db.next("delay"), "2031-05-01 12:20:00 active");
    (wrong, bystander)
}

/// Asserts that every task is planned from now on and no finished occurrence runs again.
fn assert_replanned(db: &TestDb, stepper: &mut Stepper) {
    let next = |name: &str| db.next(name);
    assert_eq!(next("cron"), "2027-03-14 13:00:00 active");
    assert_eq!(next("interval"), "2027-03-14 12:20:00 active");
    assert_eq!(next("delay"), "2027-03-14 12:10:00 active");
    assert_eq!(next("once"), "- completed", "its instant had passed by that clock: it has run");
    assert_eq!(next("later"), "2032-01-01 00:00:00 active");
    let retried = format!("SELECT run_at - {} FROM task_runs WHERE status = 'failed'", at(NOON).as_millis());
    let waits: i64 = db.number(&retried);
    assert!((1_800_000..=3_600_000).contains(&waits), "its backoff from now, as it was drawn: {waits}");
    stepper.clock().advance(minutes(60));
    let mut ran: Vec<String> = work_off(stepper).iter().map(|claim| claim.task.clone()).collect();
    ran.sort();
    ran.dedup();
    assert_eq!(ran, ["cron", "delay", "interval", "retried"]);
    db.assert_sound();
}

#[test]
fn a_large_step_back_replans_everything_from_now() {
    let db = TestDb::new();
    let (mut stepper, bystander) = planned_in_2031(&db);
    stepper.clock().set_wall(at(NOON));
    step(&mut stepper, 0);
    assert_replanned(&db, &mut stepper);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'clock_back'"), "1");
    db.assert_bystander(&bystander);
}

#[test]
fn a_completed_task_with_a_next_run_runs_after_a_step_back() {
    let (db, mut stepper) = TestDb::with_stepper();
    for name in ["again", "other"] {
        stepper.client().add(once(name)).expect("a task");
    }
    work_off(&mut stepper);
    let next = at("2027-03-12T12:00:00Z").as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {next} WHERE name = 'again'"));
    stepper.clock().set_wall(at("2027-03-12T12:00:10Z"));
    let ran: Vec<String> = work_off(&mut stepper).iter().map(|claim| claim.task.clone()).collect();
    assert_eq!(ran, ["again"]);
    assert_eq!(db.count(RunStatus::Succeeded), 3);
    db.assert_sound();
}

#[test]
fn a_start_compares_the_clock_with_the_database() {
    let db = TestDb::new();
    let (wrong, bystander) = planned_in_2031(&db);
    wrong.stop().expect("it leaves");
    let (mut right, events) = db.stepper_with_events(NOON);
    step(&mut right, 0);
    let lines = clock_events(&events);
    assert!(lines.len() == 1 && lines[0].starts_with("the clock had shown 2031-05-01T12:1"), "{lines:?}");
    assert_replanned(&db, &mut right);
    right.stop().expect("it leaves");
    // The next start finds the clock right and misses occurrences as after any downtime.
    let (mut next, events) = db.stepper_with_events("2027-03-14T15:30:00Z");
    work_off(&mut next);
    assert_eq!(clock_events(&events), Vec::<String>::new());
    let missed = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE name = 'cron' AND r.status = 'missed'";
    assert_eq!(db.ask(missed), "1");
    db.assert_bystander(&bystander);
}

#[test]
fn a_start_before_the_clock_is_set_waits_for_it() {
    for today in [NOON, "2038-01-19T03:14:08Z", "2106-02-07T06:28:16Z"] {
        let db = TestDb::new();
        db.client().add(NewTask::interval("t", minutes(1)).handler("work")).expect("a task");
        let (mut stepper, events) = db.stepper_with_events("1970-01-01T00:00:10Z");
        let before = db.tasks();
        for _ in 0..30 {
            step(&mut stepper, 0);
            assert_eq!(stepper.sleeps(), seconds(1));
            stepper.clock().advance(seconds(1));
        }
        assert_eq!(clock_events(&events), ["the clock of this machine is not set: nothing is done until it is"]);
        assert_eq!(db.tasks(), before);
        let client = stepper.client();
        let added = client.add(NewTask::interval("u", minutes(1)).handler("work")).map(|_| ());
        for error in
            [client.pause("t"), added].map(|result| result.expect_err("no table accepts that time").to_string())
        {
            assert!(
                error.contains("the clock of this machine shows 1970-01-01T00:00:40.000Z: set it first"),
                "{error}"
            );
        }

        stepper.clock().set_wall(at(today));
        let first = claim(&mut stepper);
        // The clock is unset again during the run: the outcome is recorded when it is set.
        stepper.clock().set_wall(at("1970-01-01T00:00:10Z"));
        stepper.finish(&first, Outcome::succeeded());
        step(&mut stepper, 0);
        stepper.clock().set_wall(at(today).plus(seconds(30)));
        stepper.step().expect("a step");
        let status = format!("SELECT status FROM task_runs WHERE id = {}", first.run_id);
        assert_eq!(db.ask(&status), "succeeded");
        db.assert_sound();
    }
}

/// As if all tasks had been planned by other rules of their zones, and within the same release.
const OTHER_RULES: &str = "UPDATE scheduler_meta SET value = 'other' WHERE key LIKE 'zone_rules:%'";

#[test]
fn changed_rules_of_a_zone_replan_its_local_times_once() {
    let db = TestDb::new();
    let (mut first, _) = db.stepper_with_events(NOON);
    let cron = |name: &str, zone: &str| NewTask::cron(name, "0 18 * * *").time_zone(zone).handler("work");
    let local = NewTask::scheduled("local", duly::ScheduleKind::Once, "2027-03-15 18:00").time_zone("Europe/Rome");
    let instant = NewTask::once("instant", at("2027-03-15T18:00:00Z")).time_zone("Europe/Rome");
    let other_zone = cron("oslo", "Europe/Oslo");
    let tasks =
        [cron("rome", "Europe/Rome"), cron("utc", "UTC"), local.handler("work"), instant.handler("work"), other_zone];
    first.client().add_all(tasks).expect("tasks");
    first.client().add_all([cron("due", "Europe/Rome"), cron("set", "Europe/Rome")]).expect("tasks");
    work_off(&mut first);
    first.stop().expect("it leaves");
    // As other rules would plan them: an hour later.
    db.execute("UPDATE scheduled_tasks SET next_run = next_run + 3600000 WHERE name <> 'due'");
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 21600000 WHERE name = 'due'");
    // No rules can have planned this: a user has set it.
    db.execute("UPDATE scheduled_tasks SET next_run = next_run + 355 WHERE name = 'set'");
    let set = db.ask("SELECT next_run FROM scheduled_tasks WHERE name = 'set'");
    db.execute(&format!("{OTHER_RULES} AND key <> 'zone_rules:Europe/Oslo'"));

    let (mut second, events) = db.stepper_with_events(NOON);
    let changed = events.try_iter().find(|event| matches!(event, Event::ZoneDataChanged { .. })).expect("an event");
    let data = zone_data();
    let expected = format!(
        "the time zone data changed from {data} to {data}: other rules for Europe/Rome; local times are recomputed"
    );
    assert_eq!(changed.to_string(), expected);
    let due = claim(&mut second);
    assert_eq!((&*due.task, due.scheduled_for), ("due", at("2027-03-14T11:00:00Z")), "resolved as it was planned");
    assert_eq!(db.next("rome"), "2027-03-14 17:00:00 active");
    assert_eq!(db.ask("SELECT next_run FROM scheduled_tasks WHERE name = 'set'"), set, "as a user has set it");
    assert_eq!(db.next("utc"), "2027-03-14 19:00:00 active", "it has no other zone");
    assert_eq!(db.next("oslo"), "2027-03-14 18:00:00 active", "its zone has the rules by which it was planned");
    assert_eq!(db.next("local"), "2027-03-15 17:00:00 active");
    assert_eq!(db.next("instant"), "2027-03-15 19:00:00 active", "nor for an instant");
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'zone_data'"), "1");
    second.stop().expect("it leaves");
    let (_third, events) = db.stepper_with_events(NOON);
    assert!(!events.try_iter().any(|event| matches!(event, Event::ZoneDataChanged { .. })), "once");
}

/// The daily task was planned by data in which Rome was an hour ahead of, or behind, what it is now.
#[test]
fn new_zone_data_repeats_no_run_of_today_and_skips_none() {
    let db = TestDb::new();
    let (mut first, _) = db.stepper_with_events(NOON);
    let daily =
        |name: &str, hour: u32| NewTask::cron(name, format!("0 {hour} * * *")).time_zone("Europe/Rome").handler("work");
    // 13:30 in Rome is 12:30Z in winter.
    let half = NewTask::cron("twice", "30 13,19 * * *").time_zone("Europe/Rome").handler("work");
    let tasks = [daily("ran", 13), daily("far", 12), daily("earlier", 14), half, daily("first", 14)];
    first.client().add_all(tasks).expect("tasks");
    work_off(&mut first);
    first.stop().expect("it leaves");
    let planned = |name: &str, resolved: &str, next: &str| {
        let (resolved, next) = (at(resolved).as_millis(), at(next).as_millis());
        db.execute(&format!(
            "UPDATE scheduled_tasks SET resolved_until = {resolved}, next_run = {next} WHERE name = '{name}'"
        ));
    };
    planned("ran", "2027-03-14T11:00:00Z", "2027-03-15T11:00:00Z");
    // The file of Rome was that of Tokyo.
    planned("far", "2027-03-14T03:00:00Z", "2027-03-15T03:00:00Z");
    planned("earlier", "2027-03-13T14:00:00Z", "2027-03-14T14:00:00Z");
    planned("twice", "2027-03-14T11:30:00Z", "2027-03-14T17:30:00Z");
    db.execute(OTHER_RULES);

    let (mut second, _) = db.stepper_with_events("2027-03-14T11:45:00Z");
    assert!(second.step().expect("a step").is_empty());
    assert_eq!(db.next("ran"), "2027-03-15 12:00:00 active", "not today at 12:00 again");
    assert_eq!(db.next("far"), "2027-03-15 11:00:00 active", "not today at 11:00 again");
    assert_eq!(db.next("earlier"), "2027-03-14 13:00:00 active", "it has not run today");
    assert_eq!(db.next("twice"), "2027-03-14 18:30:00 active", "half past one has run today, half past seven has not");
    assert_eq!(db.next("first"), "2027-03-14 13:00:00 active");
    db.assert_sound();
}

/// A client with other zone data than the schedulers computes no occurrence for them, and one that was there before them neither.
#[test]
fn a_client_with_other_zone_data_leaves_local_times_to_the_schedulers() {
    let db = TestDb::new();
    let (mut stepper, _) = db.stepper_with_events(NOON);
    let client = stepper.client().clone();
    let cron = |name: &str, zone: &str| NewTask::cron(name, "0 18 * * *").time_zone(zone).handler("work");
    client.add_all([cron("edited", "UTC"), cron("resumed", "Europe/Rome")]).expect("tasks");
    client.pause("resumed").expect("a pause");
    stepper.step().expect("a step");
    let mine = db.ask("SELECT value FROM scheduler_meta WHERE key = 'zone_rules:Europe/Rome'");
    db.execute(OTHER_RULES);
    assert_eq!(client.add(cron("added", "Europe/Rome")).expect("a task").next_run, None, "not by this data");
    client.add(cron("utc", "Etc/UTC")).expect("a task");
    client.replace(cron("edited", "Europe/Rome")).expect("a task");
    client.resume("resumed").expect("a resume");
    for name in ["added", "edited", "resumed"] {
        assert_eq!(db.next(name), "- active", "{name}");
    }
    assert_eq!(db.next("utc"), "2027-03-14 18:00:00 active");
    stepper.step().expect("a step");
    for name in ["added", "edited", "resumed"] {
        assert_eq!(db.next(name), "2027-03-14 17:00:00 active", "{name}");
    }
    // With the rules of schedulers, a client plans, though there is a scheduler with others.
    db.execute(&format!("UPDATE scheduler_meta SET value = '{mine} other' WHERE key = 'zone_rules:Europe/Rome'"));
    client.add(cron("same", "Europe/Rome")).expect("a task");
    assert_eq!(db.next("same"), "2027-03-14 17:00:00 active");
    db.assert_sound();
}

#[test]
fn what_clients_planned_before_the_first_scheduler_is_planned_by_its_zone_data() {
    let db = TestDb::new();
    let client = db.client();
    let [noon, instant] = [("noon", "2038-07-01T12:00:00"), ("instant", "2038-07-01T12:00:00Z")].map(|(name, at)| {
        NewTask::scheduled(name, duly::ScheduleKind::Once, at).time_zone("Europe/Rome").handler("work")
    });
    client.add_all([noon, instant]).expect("tasks");
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 3600000");
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.step().expect("a step");
    assert_eq!(db.next("noon"), "2038-07-01 10:00:00 active");
    assert_eq!(db.next("instant"), "2038-07-01 11:00:00 active", "it has no local time");
    assert!(!events.try_iter().any(|event| matches!(event, Event::ZoneDataChanged { .. })), "no data has changed");
}

/// Two schedulers with different zone data: who finds a task due looks whether it is, by its own data.
#[test]
fn a_plan_of_a_scheduler_with_other_zone_data_is_checked_when_it_is_due() {
    let db = TestDb::new();
    let (mut stepper, _) = db.stepper_with_events(NOON);
    let (other, _) = db.stepper_with_events(NOON);
    let cron = |name: &str, zone: &str| NewTask::cron(name, "0 14 * * *").time_zone(zone).handler("work");
    let tasks = [cron("too-early", "Europe/Rome"), cron("too-late", "Europe/Rome"), cron("by-sql", "UTC")];
    stepper.client().add_all(tasks).expect("tasks");
    stepper.step().expect("a step");
    // As the other one records it, if it has other rules.
    let rules = format!("value || ' other@{}'", other.owner());
    db.execute(&format!("UPDATE scheduler_meta SET value = {rules} WHERE key = 'zone_rules:Europe/Rome'"));
    let plan = |name: &str, next: &str| {
        let next = at(next).as_millis();
        db.execute(&format!("UPDATE scheduled_tasks SET next_run = {next} WHERE name = '{name}'"));
    };
    plan("too-early", NOON);
    plan("by-sql", NOON);
    let started = |stepper: &mut Stepper| {
        let claims = stepper.step().expect("a step").into_iter();
        let claims: Vec<_> = claims.map(|claim| (claim.task.clone(), claim.scheduled_for)).collect();
        claims
    };
    let noon = at(NOON);
    assert_eq!(started(&mut stepper), [("by-sql".into(), noon)], "SQL runs what has no local time");
    assert_eq!(db.next("too-early"), "2027-03-14 13:00:00 active");
    db.assert_history("too-early", &[]);
    // By the other data, two in the afternoon has not come; by this, it has been.
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    plan("too-late", "2027-03-14T13:00:01Z");
    stepper.clock().set_wall(at("2027-03-14T13:00:01Z"));
    let mut found = started(&mut stepper);
    found.sort();
    assert_eq!(found, [("too-early".into(), noon.plus(minutes(60))), ("too-late".into(), noon.plus(minutes(60)))]);
    // Without a scheduler with other data, SQL has set the time.
    other.stop().expect("it leaves");
    stepper.clock().advance(seconds(60));
    work_off(&mut stepper);
    stepper.client().add(cron("moved", "Europe/Rome")).expect("a task");
    plan("moved", "2027-03-14T13:00:01Z");
    let moved = started(&mut stepper);
    assert_eq!(moved, [("moved".into(), at("2027-03-14T13:00:01Z"))]);
}

/// Another scheduler with other rules has started last. The plans stay its own until it ends, and `check` says so.
#[test]
fn schedulers_with_other_rules_do_not_plan_to_and_fro() {
    let db = TestDb::new();
    let (mut stepper, _) = db.stepper_with_events(NOON);
    let ((mut third, _), (other, _)) = (db.stepper_with_events(NOON), db.stepper_with_events(NOON));
    let client = stepper.client().clone();
    client.add(NewTask::cron("noon", "0 12 * * *").time_zone("Europe/Rome").handler("work")).expect("a task");
    work_off(&mut stepper);
    let rules = || db.ask("SELECT value FROM scheduler_meta WHERE key = 'zone_rules:Europe/Rome'");
    let warnings = || {
        let found = client.check(&Limits::default()).expect("a check").into_iter();
        found.filter(|one| one.kind == ProblemKind::ZoneData).map(|one| one.found).collect::<Vec<_>>()
    };
    let mine = rules();
    assert_eq!(warnings(), Vec::<String>::new());
    db.execute(OTHER_RULES);
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 3600000");
    let planned = db.rows("SELECT * FROM scheduled_tasks");
    for _ in 0..5 {
        for scheduler in [&mut stepper, &mut third] {
            scheduler.clock().advance(minutes(1));
            step(scheduler, 0);
            assert!(scheduler.sleeps() > seconds(0), "turns without end");
            assert!(rules().contains(&format!(" {mine}@{}", scheduler.owner())), "{}", rules());
        }
        assert!(rules().starts_with("other ") && rules().matches('@').count() == 2, "{}", rules());
        assert_eq!(db.rows("SELECT * FROM scheduled_tasks"), planned);
    }
    assert_eq!(warnings(), ["noon was planned by other rules of Europe/Rome than those of this process"]);
    // The third one still runs, and has the rules of this one.
    other.stop().expect("it leaves");
    stepper.clock().advance(minutes(1));
    work_off(&mut stepper);
    assert_eq!((rules(), db.next("noon")), (mine.clone(), "2027-03-15 11:00:00 active".to_owned()));
    // One that had other rules is killed: what it has planned is planned again.
    db.execute("UPDATE scheduler_meta SET value = value || ' other@gone' WHERE key = 'zone_rules:Europe/Rome'");
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 3600000");
    stepper.clock().advance(minutes(1));
    work_off(&mut stepper);
    assert_eq!((rules(), db.next("noon")), (mine, "2027-03-15 11:00:00 active".to_owned()));
    assert_eq!(warnings(), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn an_unplanned_past_instant_runs_after_the_clock_is_corrected() {
    let db = TestDb::new();
    let (mut stepper, _) = db.stepper_with_events(NOON);
    let bystander = db.add_bystander(&stepper);
    stepper.clock().set_wall(at("2031-05-01T12:00:00Z"));
    step(&mut stepper, 0);
    let past = NewTask::once("past", at("2027-03-14T11:00:00Z"));
    stepper.client().add(past.handler("work")).expect("a task");
    stepper.clock().set_wall(at(NOON));
    assert_eq!(claim(&mut stepper).scheduled_for, at("2027-03-14T11:00:00Z"));
    step(&mut stepper, 0);
    assert_eq!(db.next("past"), "- completed");
    db.assert_sound();
    db.assert_bystander(&bystander);
}

#[test]
fn tasks_completed_under_a_wrong_clock_become_active_again() {
    let db = TestDb::new();
    let (mut stepper, _) = db.stepper_with_events(NOON);
    let bystander = db.add_bystander(&stepper);
    let until = |task: NewTask| task.ends_at(at("2027-03-14T14:30:00Z")).handler("work");
    let tasks = [
        until(NewTask::cron("cron", "0 * * * *")),
        until(NewTask::interval("interval", minutes(60))),
        until(NewTask::delay("delay", minutes(60))),
        until(NewTask::cron("over", "5 12 * * *")),
        NewTask::once("once", at("2027-03-14T13:00:00Z")).handler("work"),
    ];
    stepper.client().add_all(tasks).expect("tasks");
    stepper.clock().set_wall(at("2031-05-01T12:00:00Z"));
    work_off(&mut stepper);
    let ended = "SELECT count(*) FROM scheduled_tasks WHERE status = 'completed'";
    assert_eq!(db.ask(ended), "5");
    stepper.clock().set_wall(at("2027-03-14T12:10:00Z"));
    step(&mut stepper, 0);
    assert_eq!(db.next("cron"), "2027-03-14 13:00:00 active");
    assert_eq!(db.next("interval"), "2027-03-14 13:00:00 active");
    assert_eq!(db.next("delay"), "2027-03-14 13:10:00 active");
    assert_eq!(db.next("over"), "- completed");
    assert_eq!(db.next("once"), "- completed", "it has run");
    db.assert_sound();
    db.assert_bystander(&bystander);
}

#[test]
fn the_second_scheduler_to_see_a_step_back_skips_no_occurrence() {
    let db = TestDb::new();
    let (mut one, _) = db.stepper_with_events("2031-05-01T12:00:00Z");
    let (mut other, _) = db.stepper_with_events("2031-05-01T12:00:00Z");
    one.client().add(NewTask::cron("t", "0 * * * *").handler("work")).expect("a task");
    work_off(&mut one);
    work_off(&mut other);
    one.clock().set_wall(at("2027-03-14T12:59:59Z"));
    step(&mut one, 0);
    assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
    other.clock().set_wall(at("2027-03-14T13:00:01Z"));
    assert_eq!(claim(&mut other).scheduled_for, at("2027-03-14T13:00:00Z"));
    db.assert_sound();
}
