//! The serde form of the library's values: that of the program, read back without a difference, and strict.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use duly::{
    Attempt, AttemptOutcome, BoxError, Change, Definition, Effect, EffectState, Event, FailureKind, Limit, LimitState,
    Limits, Misfire, NewTask, Origin, Overlap, Problem, ProblemKind, RetryPolicy, Run, RunStatus, Scheduler, Status,
    Task, TaskStatus, Timestamp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fixtures::{NOON, TestDb, at, listen, seconds};

fn value(of: impl Serialize) -> Value {
    serde_json::to_value(of).expect("JSON")
}

/// A name that must be encoded in a path.
pub(crate) const NAME: &str = "mail:anna@example.org/../x";
/// With a number that no float can hold, and spaces that a parsed value would lose.
const PAYLOAD: &str = r#"{"b": [123456789012345678901234567890, null, "\u001b"], "a": 1}"#;

/// A database with a row of each kind, in each state that can be made.
pub(crate) fn full() -> TestDb {
    let db = TestDb::new();
    let mut stepper = db
        .builder(NOON)
        .handler("work", |run: &duly::Context| {
            run.effect("sent", || Ok([1, 2]))?;
            run.progress("half");
            if run.task() == NAME { Err::<&str, BoxError>("no\nway".into()) } else { Ok("done") }
        })
        .start()
        .unwrap();
    let client = stepper.client().clone();
    let work = |task: NewTask| task.handler("work");
    let every_column = NewTask::interval(NAME, seconds(900))
        .payload(serde_json::value::RawValue::from_string(PAYLOAD.to_owned()).unwrap())
        .time_zone("America/New_York")
        .starts_at(at("2027-03-14T12:00:00.500Z"))
        .ends_at(at("2030-01-01T00:00:00Z"))
        .only_between("00:00-24:00")
        .only_on("2027-01-01..2029-12-31")
        .except_on("2028-12-25")
        .overlap(Overlap::BufferAll)
        .catch_up_limit(9)
        .misfire(Misfire::RunAll, seconds(7))
        .expires(seconds(86_400))
        .retry(RetryPolicy { max_attempts: 2, backoff: seconds(2), max_backoff: seconds(30) })
        .timeout(seconds(5))
        .jitter(seconds(3))
        .priority(0)
        .concurrency_key("mailer")
        .max_starts(1000, seconds(86_400))
        .when_limited(duly::WhenLimited::Skip)
        .on_dead("alarm")
        .pause_after_failures(1);
    let tasks = [
        every_column,
        NewTask::manual("alarm"),
        NewTask::cron("late", "30 2 * * *").time_zone("America/New_York"),
        NewTask::cron("paused", "@daily"),
        NewTask::once("once", at("2027-03-14T12:00:10Z")),
        NewTask::interval("skips", seconds(1)),
        NewTask::interval("broken", seconds(60)),
    ];
    client.add_all(tasks.map(work)).unwrap();
    client.set_limit(Limit::key("mailer", 3)).unwrap();
    client.set_limit(Limit::rate("work", 100, seconds(60))).unwrap();
    let dead = client.trigger_with(NAME, json!("of the run")).unwrap();
    client.cancel(client.trigger("alarm").unwrap()).unwrap();
    stepper.run_until(at(NOON) + seconds(60)).unwrap();
    client.pause("paused").unwrap();
    db.plain()
        .execute_batch(
            "UPDATE scheduled_tasks SET schedule_value = 'nonsense' WHERE name = 'broken';
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at, occurrences,
                                    last_scheduled_for, error)
             SELECT id, 'work', 1805000000000, 'schedule', 'missed', 1805000000000, 1805000000000, 7, 1805000006000, 'late'
               FROM scheduled_tasks WHERE name = 'skips'",
        )
        .unwrap();
    stepper.run_until(at(NOON) + seconds(70)).unwrap();
    client.retry(dead).unwrap();
    client.pause("skips").unwrap();
    stepper.stop().unwrap();
    db
}

/// Asserts that each key of the library's value has the same value in what the program prints. Returns the program's other keys.
fn others(library: &Value, program: &Value) -> Vec<String> {
    let (library, program) = (library.as_object().unwrap(), program.as_object().unwrap());
    for (key, value) in library {
        assert_eq!(Some(value), program.get(key), "{key}");
    }
    program.keys().filter(|key| !library.contains_key(*key)).cloned().collect()
}

#[test]
fn values_have_the_json_that_the_program_prints() {
    let db = full();
    let client = db.client();
    let printed = |arguments: &[&str]| serde_json::from_str::<Value>(&db.printed(arguments)).unwrap();

    let (tasks, list) = (client.tasks().unwrap(), printed(&["list", "--json"]));
    assert_eq!(tasks.len(), list.as_array().unwrap().len());
    for (task, row) in tasks.iter().zip(list.as_array().unwrap()) {
        assert_eq!(others(&value(task), row), ["recent"], "{}", task.name());
    }
    assert_eq!(value(client.newest_runs(20).unwrap()), printed(&["history", "--json"]));
    let mut status = [value(client.status().unwrap()), printed(&["status", "--json"])];
    // The log, the heartbeats and the time may change in between.
    status.iter_mut().for_each(|status| {
        ["file_bytes", "wal_bytes", "schedulers", "clock_shows"].iter().for_each(|key| status[key] = Value::Null)
    });
    assert_eq!(status[0], status[1]);
    assert_eq!(status[0]["tasks"], json!({"active": 2, "paused": 3, "completed": 1, "invalid": 1}));
    // Other problems name the time of the look-up.
    let dead = |problems: Value| problems.as_array().unwrap().iter().find(|one| one["kind"] == "dead").cloned();
    let problems = value(client.check(&Limits::default()).unwrap());
    let checked = db.duly(&["check", "--json"]).output().unwrap().stdout;
    assert!(dead(problems.clone()).is_some());
    assert_eq!(dead(problems), dead(serde_json::from_slice(&checked).unwrap()));
}

/// Writes a value as JSON and reads it back.
fn reread<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).expect("JSON")).expect("the same type")
}

#[test]
fn rows_are_read_back_without_a_difference() {
    let db = full();
    let client = db.client();
    let runs: Vec<Run> = client.newest_runs(200).unwrap();
    assert!(runs.iter().any(|run| run.status == RunStatus::Dead) && runs.iter().any(|run| run.result.is_some()));
    assert_eq!(reread(&runs), runs);
    let attempts: Vec<Attempt> = runs.iter().flat_map(|run| client.attempts(run.id).unwrap()).collect();
    let effects: Vec<Effect> = runs.iter().flat_map(|run| client.effects(run.id).unwrap()).collect();
    assert!(!attempts.is_empty() && !effects.is_empty());
    assert_eq!((reread(&attempts), reread(&effects)), (attempts, effects));
    let tasks: Vec<Task> = client.tasks().unwrap();
    assert_eq!(reread(&tasks), tasks);
    let definitions: Vec<Definition> = tasks.into_iter().map(|task| task.definition).collect();
    assert_eq!(reread(&definitions), definitions);
    let (status, problems) = (client.status().unwrap(), client.check(&Limits::default()).unwrap());
    assert!(!problems.is_empty() && status.tasks.len() == 4 && status.next.is_some());
    assert_eq!((reread(&status), reread(&problems)), (status.clone(), problems));
    // While schedules wait for the clock.
    let shows = at("2027-03-14T11:00:00Z");
    for waiting in [Some(3), None] {
        let mut waits = status.clone();
        waits.clock = Some(clock_wait(shows, waiting));
        assert_eq!(reread(&waits), waits);
    }
}

/// As the status of a file that a clock of another machine has written.
fn clock_wait(shows: Timestamp, waiting: Option<u64>) -> duly::ClockWait {
    let json = json!({"waiting_for_clock_until": at(NOON), "clock_shows": shows, "waiting_for_clock": waiting});
    let (_db, client) = TestDb::with_client();
    let mut status = value(client.status().unwrap());
    status.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    let wait = serde_json::from_value::<Status>(status).unwrap().clock.expect("it waits");
    assert_eq!((wait.shows, wait.until, wait.waiting), (shows, at(NOON), waiting));
    wait
}

#[test]
fn what_the_program_prints_is_read_as_values_of_the_library() {
    let db = full();
    let client = db.client();
    client.set_limit(Limit::key("smtp", 3)).unwrap();
    client.set_limit(Limit::rate("mail", 100, seconds(60))).unwrap();
    // The commands, not `duly check`, which fails while there is a problem.
    let read = |arguments: &[&str]| serde_json::from_str::<Value>(&db.printed(arguments)).unwrap();
    let tasks: Vec<Task> = serde_json::from_str(&db.printed(&["list", "--json"])).unwrap();
    assert_eq!(tasks, client.tasks().unwrap());
    assert!(tasks.iter().any(|task| task.definition.payload.contains("123456789012345678901234567890")));
    let runs: Vec<Run> = serde_json::from_str(&db.printed(&["history", "--json"])).unwrap();
    assert_eq!(runs, client.newest_runs(20).unwrap());
    let status: Status = serde_json::from_value(read(&["status", "--json"])).unwrap();
    let now = client.status().unwrap();
    assert_eq!((status.tasks, status.runs, status.next, status.path), (now.tasks, now.runs, now.next, now.path));
    assert_eq!((status.limits.len(), &status.limits), (4, &now.limits));
    let limits: Vec<LimitState> = serde_json::from_value(read(&["limit", "--json"])).unwrap();
    assert_eq!(limits, now.limits);
    let neither = json!({ "handler": "mail", "max_running": 2, "used": 0, "waiting": 0 });
    let error = serde_json::from_value::<LimitState>(neither).unwrap_err().to_string();
    assert!(error.contains("expected concurrency_key and max_running, or handler, max_starts and per_ms"), "{error}");
    let checked = db.duly(&["check", "--json"]).output().unwrap().stdout;
    let problems: Vec<Problem> = serde_json::from_slice(&checked).unwrap();
    let dead = |problems: &[Problem]| problems.iter().find(|one| one.kind == ProblemKind::Dead).cloned();
    assert!(dead(&problems).is_some());
    assert_eq!(dead(&problems), dead(&client.check(&Limits::default()).unwrap()));

    // Strict where a value is wrong; a column of a newer version is ignored.
    let mut task = value(&tasks[0]);
    task["newer"] = 1.into();
    assert_eq!(serde_json::from_value::<Task>(task.clone()).unwrap(), tasks[0]);
    for (key, wrong, reason) in [
        ("status", json!("resting"), "column status: unknown variant `resting`"),
        ("id", Value::Null, "column id: invalid type: null"),
        ("overlap", json!("Skip"), "unknown variant `Skip`"),
        ("last_duration_ms", json!(-1), "column last_duration_ms: invalid value: integer `-1`"),
    ] {
        let mut task = task.clone();
        task[key] = wrong;
        let error = serde_json::from_value::<Task>(task).unwrap_err().to_string();
        assert!(error.contains(reason), "{key}: {error}");
    }
}

#[test]
fn events_are_read_back_as_far_as_their_json_goes() {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::once("a", at(NOON)).handler("work").payload("secret")).unwrap();
    client.add(NewTask::cron("b", "* * * * *").handler("work").max_attempts(1)).unwrap();
    client.add(NewTask::once("c", at(NOON)).handler("work").max_attempts(9)).unwrap();
    let (observer, events) = listen();
    let answers = |run: &duly::Context| match run.task() {
        "a" if run.attempt() == 1 => Err(duly::Failure::snooze(seconds(1)).into()),
        "b" | "c" => Err(BoxError::from("no")),
        _ => Ok(()),
    };
    let mut stepper = db.builder(NOON).handler("work", answers).observe(observer).start().unwrap();
    stepper.run_until(at(NOON) + seconds(70)).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    let mut lines = Vec::new();
    for event in events.try_iter() {
        let json = value(&event);
        kinds.insert(json["event"].as_str().unwrap().to_owned());
        let read = reread(&event);
        assert_eq!(value(&read), json);
        lines.push(read.to_string());
        assert_eq!(lines.last(), Some(&event.to_string()));
        if let Event::Finished { claim, status, .. } = &read {
            assert_eq!((claim.payload.as_str(), status.is_final()), ("null", claim.task != "c"));
        }
    }
    // The number of the second attempt after a snooze, and the most attempts, are not those of the default.
    for says in ["of \"a\" started (attempt 1 of 5)", "of \"c\" failed after 0s (attempt 1 of 9)"] {
        assert!(lines.iter().any(|line| line.contains(says)), "{says}: {lines:?}");
    }
    for kind in ["started", "finished", "snoozed"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    for json in [
        json!({"event": "clock_not_set"}),
        json!({"event": "passed_over", "task": "a", "status": "missed", "first": at(NOON), "last": at(NOON), "count": 1, "exact": true}),
        json!({"event": "orphan_unknown", "run": 1, "task": "a", "attempt": 2, "handler": "command", "reason": "why"}),
        json!({"event": "degraded", "reason": "disk full"}),
    ] {
        assert_eq!(value(serde_json::from_value::<Event>(json.clone()).unwrap()), json);
    }
    for wrong in
        [json!({"event": "vanished"}), json!({"event": "started", "run": 1, "task": "a", "attempt": 1, "handler": "h"})]
    {
        assert!(serde_json::from_value::<Event>(wrong).is_err());
    }
}

#[test]
fn a_new_task_is_read_from_json() {
    let (_db, client) = TestDb::with_client();
    let built = NewTask::every("poll", seconds(900)).handler("poll").payload([1, 2]).max_attempts(3).jitter(seconds(1));
    assert_eq!(client.add(reread(&built)).unwrap().change, Change::Created);
    assert_eq!(client.add(built).unwrap().change, Change::Unchanged);
    let written = json!({"name": "poll", "handler": "poll", "payload": [1, 2], "schedule_type": "interval", "schedule_value": "15m",
                         "max_attempts": 3, "jitter_ms": 1000});
    assert_eq!(client.add(serde_json::from_value(written).unwrap()).unwrap().change, Change::Unchanged);

    // Both are due in a while after they are added, and the second has a generated name.
    for task in [NewTask::once_in("tea", seconds(180)).handler("ring"), NewTask::enqueue("ring", at(NOON))] {
        let read = reread(&task);
        assert_eq!(value(&read), value(&task));
        assert_eq!(client.add(read).unwrap().change, Change::Created);
    }
    let unprintable = NewTask::manual("bad").payload(std::collections::BTreeMap::from([([1_u8], 1)]));
    assert!(serde_json::to_string(&unprintable).unwrap_err().to_string().contains("key must be a string"));
}

#[test]
fn a_new_task_from_json_is_refused_if_a_key_is_wrong() {
    let refused = |task: Value| serde_json::from_value::<NewTask>(task).expect_err("a wrong key").to_string();
    for (task, reason) in [
        (
            json!({"name": "a", "handler": "a"}),
            "invalid schedule_type: expected cron, calendar, interval, delay, once or manual",
        ),
        (json!({"schedule_type": "weekly"}), "unknown variant `weekly`"),
        (json!({"schedule_type": "manual", "retries": 3}), "unknown field `retries`"),
        (json!({"schedule_type": "manual", "overlap": "Skip"}), "unknown variant `Skip`"),
        (json!({"schedule_type": "manual", "timeout_ms": -1}), "invalid value: integer `-1`"),
        (json!({"schedule_type": "manual", "starts_at": 1_805_025_600_000_i64}), "expected a string"),
        (json!({"schedule_type": "manual", "managed_by": "tasks.toml"}), "invalid managed_by"),
        (json!({"schedule_type": "cron", "schedule_value": "@daily", "due_in_ms": 5}), "invalid due_in_ms"),
    ] {
        let found = refused(task.clone());
        assert!(found.contains(reason), "{task}: {found}");
    }
    let definition = json!({"schedule_type": "once", "due_in_ms": 5});
    assert!(serde_json::from_value::<Definition>(definition).is_err());
}

fn has_one_text_form<T>(all: &[T], parse: fn(&str) -> Option<T>)
where
    T: Copy + Debug + Display + FromStr + PartialEq + Serialize + DeserializeOwned,
{
    for one in all {
        let text = one.to_string();
        assert_eq!((parse(&text), text.parse().ok()), (Some(*one), Some(*one)));
        assert_eq!((value(one), reread(one)), (Value::from(text.as_str()), *one));
        for wrong in [format!(" {text}"), text.to_uppercase(), String::new()] {
            assert!(parse(&wrong).is_none() && wrong.parse::<T>().is_err(), "{wrong:?}");
            assert!(serde_json::from_value::<T>(wrong.into()).is_err());
        }
    }
}

#[test]
fn each_enumeration_has_one_text_form() {
    has_one_text_form(RunStatus::ALL, RunStatus::parse);
    has_one_text_form(TaskStatus::ALL, TaskStatus::parse);
    has_one_text_form(Overlap::ALL, Overlap::parse);
    has_one_text_form(Misfire::ALL, Misfire::parse);
    has_one_text_form(Origin::ALL, Origin::parse);
    has_one_text_form(FailureKind::ALL, FailureKind::parse);
    has_one_text_form(AttemptOutcome::ALL, AttemptOutcome::parse);
    has_one_text_form(EffectState::ALL, EffectState::parse);
    has_one_text_form(ProblemKind::ALL, ProblemKind::parse);
    let error = "Skip".parse::<Overlap>().unwrap_err().to_string();
    assert_eq!(error, r#"invalid overlap: expected skip, buffer_one, buffer_all, allow, cancel_running, found "Skip""#);
}

#[test]
fn an_event_names_its_attempt_and_no_payload() {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::once("a", at(NOON)).handler("work").payload("secret")).unwrap();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.step().unwrap();
    let started = events.try_iter().find(|event| matches!(event, Event::Started { .. })).expect("a start");
    let expected = json!({"event": "started", "run": 1, "task": "a", "attempt": 1, "handler": "work",
                          "scheduled_for": "2027-03-14T12:00:00.000Z", "forgiven": 0, "max_attempts": 5});
    assert_eq!(value(started), expected);
}

#[test]
fn a_builder_shows_its_handlers() {
    let db = TestDb::new();
    let shown = format!("{:?}", Scheduler::builder(db.file()).handler("mail", |_| Ok::<_, duly::Error>(())));
    assert!(shown.starts_with("Builder {") && shown.contains(r#"handlers: {"mail"}"#), "{shown}");
    assert!(format!("{:?}", db.builder(NOON).accept("work")).contains(r#"handlers: {"work"}"#));
}
