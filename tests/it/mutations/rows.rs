//! Rows with unusual values in every column, set by SQL with the tables' CHECKs and without them. What the CHECKs accept is
//! reported, and hides no other row; no reader panics, and no other task misses its run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{AlarmPace, AlarmTurn, Client, Clock, Error, Limits, NewTask, Outcome, Result, TaskStatus};

use crate::fixtures::{NOON, TestDb, advance_and_step, at, minutes};
use crate::mutations::mutator::{Mutator, each_in_time};

/// Values as SQL literals, one in each line.
const VALUES: &str = include_str!("rows/values.sql");

const TABLES: &str = "
    scheduled_tasks task_runs task_attempts task_effects scheduler_instances scheduler_events scheduler_meta
    scheduler_alarms scheduler_alarm_channels";

/// Returns a database with tasks of every kind, runs in every state, and a bystander that is due in a minute.
pub(crate) fn filled_database() -> TestDb {
    let db = TestDb::brief();
    let mut stepper = db.builder(NOON).accept("work").workers(8).seed(7).start().expect("a stepper");
    let (client, now) = (stepper.client(), at(NOON));
    for task in [
        NewTask::cron("cron", "* * * * *").time_zone("Europe/Rome").on_dead("on-dead").at_most_once(),
        NewTask::interval("interval", minutes(2)).concurrency_key("shared"),
        NewTask::delay("delay", minutes(1)).concurrency_key("shared"),
        NewTask::once("once", now.plus(minutes(1))).at_most_once().expires(minutes(60)),
        NewTask::interval("on-dead", minutes(60)).jitter(minutes(2)),
        NewTask::cron("paused", "@hourly"),
        NewTask::manual("manual").on_dead("on-dead"),
    ] {
        client.add(task.handler("work").payload(["hello"])).expect("a task");
    }
    client.pause("paused").expect("a pause");
    for minute in 1..6 {
        advance_and_step(&mut stepper, minutes(1));
        for (place, claim) in stepper.running().to_vec().iter().enumerate() {
            match (minute + place) % 4 {
                0 => stepper.finish(claim, Outcome::succeeded()),
                1 => stepper.finish(claim, Outcome::failed("no route to host")),
                2 => stepper.clock().advance(Duration::from_millis(1)),
                _ => stepper.client().cancel(claim.run_id).map(|_| ()).expect("a request"),
            }
        }
        stepper.step().expect("a turn");
    }
    let client = stepper.client();
    client.trigger("paused").expect("a run");
    client.trigger("on-dead").expect("a run");
    // Alarms that are not delivered, on two channels.
    client.update_alarms(&["mail", "page"], &Limits::default(), now, None).expect("a look");
    let bystander = NewTask::once("bystander", stepper.clock().now().wall.plus(minutes(1))).handler("other");
    client.add(bystander).expect("a task");
    // It dies with running attempts, which the next scheduler recovers.
    stepper.crash();
    db
}

/// Calls every read function, and returns their answers.
pub(crate) fn read_all(file: &Path) -> Vec<(&'static str, Result<usize>)> {
    let client = match Client::open_existing(file) {
        Ok(client) => client,
        Err(error) => return vec![("open", Err(error))],
    };
    let count = |of: Result<Vec<_>>| of.map(|of| of.len());
    let tasks = client.tasks();
    let runs = client.newest_runs(1000);
    let of_tasks = tasks.iter().flatten().map(|task| {
        client.task(task.name())?.map(|task| task.occurrences(at(NOON), 3).map_or(0, |ahead| ahead.len()));
        client.history(task.name(), 1000).map(|runs| runs.len())
    });
    let of_tasks = of_tasks.collect::<Vec<_>>().into_iter().sum();
    let of_runs = runs.iter().flatten().map(|run| {
        client.run(run.id)?;
        // A task that cannot be read has none.
        client.effects(run.id).err().iter().for_each(|error| one_line("effects", error));
        client.attempts(run.id).map(|attempts| attempts.len())
    });
    let of_runs = of_runs.collect::<Vec<_>>().into_iter().sum();
    vec![
        ("tasks", count(tasks.map(|tasks| tasks.into_iter().map(|task| task.id).collect()))),
        ("runs", runs.map(|runs| runs.len())),
        ("each task", of_tasks),
        ("each run", of_runs),
        ("names", client.names().map(|names| names.len())),
        ("recent", client.recent(10).map(|recent| recent.len())),
        ("status", client.status().map(|_| 1)),
        ("check", client.check(&Limits::default()).map(|found| found.len())),
        ("doctor", client.doctor().map(|found| found.len())),
    ]
}

/// Finds and delivers alarms on both channels. Returns the number of messages.
fn deliver_alarms(file: &Path) -> Result<usize> {
    let client = Client::open_existing(file)?;
    let pace = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..AlarmPace::default() };
    let mut delivered = 0;
    // A cursor that is far behind takes some looks.
    for _ in 0..3 {
        client.update_alarms(&["mail", "page"], &Limits::default(), at(NOON), None)?;
        for channel in ["mail", "page"] {
            while let AlarmTurn::Deliver(message) = client.claim_alarm(channel, &pace, None)? {
                assert!(client.alarm_delivered(&message)?);
                delivered += 1;
                assert!(delivered < 100, "{message:?}");
            }
        }
    }
    Ok(delivered)
}

/// Runs a scheduler for some minutes; every attempt succeeds or fails.
pub(crate) fn run_scheduler(file: &Path, seed: u64) -> Result<Vec<String>> {
    let builder = Stepper::builder(file, at("2027-03-14T12:06:30Z")).accept("work").accept("other").accept("command");
    let mut stepper = builder.workers(8).seed(seed).start()?;
    let mut begun = Vec::new();
    for minute in 0..5 {
        for claim in stepper.step()? {
            begun.push(claim.task.clone());
            let outcome = if minute % 2 == 0 { Outcome::succeeded() } else { Outcome::failed("no route to host") };
            stepper.finish(&claim, outcome);
        }
        stepper.step()?;
        stepper.clock().advance(minutes(1));
    }
    stepper.stop()?;
    Ok(begun)
}

/// Copies a file into a database folder of its own.
pub(crate) fn copy_of(template: &Path) -> TestDb {
    let db = TestDb::brief();
    std::fs::copy(template, db.file()).expect("a copy");
    db
}

/// Sets columns of some rows, or of a new row, to unusual values. Returns the statements, if the tables accept them.
fn set_unusual_values(mutator: &mut Mutator, file: &Path, checked: bool) -> Option<&'static str> {
    let plain = rusqlite::Connection::open(file).expect("a plain connection");
    let table = mutator.choice(&TABLES.split_whitespace().collect::<Vec<_>>());
    let columns = format!("SELECT name FROM pragma_table_info('{table}') WHERE name <> 'id'");
    let mut columns: Vec<String> = plain
        .prepare(&columns)
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .expect("the columns");
    mutator.random.shuffle(&mut columns);
    columns.truncate(mutator.random.usize(1..=3));
    let mut sql = String::new();
    if !checked {
        sql += "PRAGMA ignore_check_constraints = 1;";
    }
    let unusual: Vec<&str> = VALUES.lines().collect();
    let values: Vec<&str> = columns.iter().map(|_| mutator.choice(&unusual)).collect();
    if table == "scheduled_tasks" && mutator.random.bool() {
        sql += "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                VALUES ('odd', 'work', 'cron', '* * * * *');";
    }
    let spared = if table == "scheduled_tasks" { "name <> 'bystander'" } else { "1" };
    let some = match mutator.random.u8(..3) {
        0 => "1".to_owned(),
        _ => format!("rowid % 4 = {}", mutator.random.u8(..4)),
    };
    let set: Vec<String> = columns.iter().zip(values).map(|(column, value)| format!("{column} = {value}")).collect();
    sql += &format!("UPDATE {table} SET {} WHERE {spared} AND {some}", set.join(", "));
    mutator.note(&sql);
    plain.execute_batch(&sql).is_ok().then_some(table)
}

#[test]
fn rows_that_the_checks_accept_hide_no_row_and_delay_no_run() {
    let (template, let_in) = (filled_database(), Arc::new(AtomicU64::new(0)));
    let count = let_in.clone();
    each_in_time(60, move |mutator| {
        let db = copy_of(template.file());
        let Some(table) = set_unusual_values(mutator, db.file(), true) else { return };
        count.fetch_add(1, Relaxed);
        let fits = |answer: &Result<_>| match answer {
            Ok(_) => true,
            Err(error) => table == "scheduler_meta" && matches!(error, Error::UnusableDatabase { .. }),
        };
        for seed in 1..3 {
            for (interface, answer) in read_all(db.file()) {
                assert!(fits(&answer), "{interface}: {answer:?}");
            }
            let alarms = deliver_alarms(db.file());
            assert!(fits(&alarms), "{alarms:?}");
            let begun = run_scheduler(db.file(), seed).map(|begun| {
                assert!(seed > 1 || begun.contains(&"bystander".to_owned()), "{begun:?}");
                begun.len()
            });
            assert!(fits(&begun), "{begun:?}");
        }
    });
    assert!(let_in.load(Relaxed) > 10, "{let_in:?} were let in");
}

/// Rows as written with `ignore_check_constraints`, or by a disk that turns a bit: every function returns an answer or an
/// error.
#[test]
fn rows_that_violate_the_checks_are_answered() {
    let template = filled_database();
    each_in_time(20, move |mutator| {
        let db = copy_of(template.file());
        if set_unusual_values(mutator, db.file(), false).is_none() {
            return;
        }
        for seed in 1..3 {
            for (interface, answer) in read_all(db.file()) {
                answer.err().iter().for_each(|error| one_line(interface, error));
            }
            deliver_alarms(db.file()).err().iter().for_each(|error| one_line("alarms", error));
            run_scheduler(db.file(), seed).err().iter().for_each(|error| one_line("work", error));
        }
    });
}

/// Checks that an error is one line.
pub(crate) fn one_line(interface: &str, error: &Error) {
    let message = error.to_string();
    assert!(message.lines().count() == 1 && message.len() < 2000, "{interface}: {message:.3000}");
}

/// A row whose text is not UTF-8 hides no other: it is reported as invalid, and can be repaired or removed.
#[test]
fn a_row_with_invalid_utf8_is_reported_and_can_be_repaired() {
    for column in ["handler", "payload", "time_zone", "concurrency_key", "on_dead", "managed_by"] {
        let (db, mut stepper) = (TestDb::brief(), None);
        for looked_at in [false, true] {
            let client = db.client();
            let bad = NewTask::interval("bad", minutes(1)).handler("work").payload("hello").concurrency_key("key");
            client.replace(bad.clone()).expect("a task");
            client.replace(NewTask::interval("good", minutes(1)).handler("work")).expect("a task");
            let sql =
                format!("UPDATE scheduled_tasks SET {column} = '\"' || CAST(x'b0' AS TEXT) || '\"' WHERE name = 'bad'");
            db.plain().execute_batch(&(sql + "; UPDATE scheduled_tasks SET planned = 0")).expect("a row");
            if looked_at {
                let stepper = stepper.get_or_insert_with(|| db.stepper(NOON));
                stepper.step().expect("a turn");
                let reason = db.ask("SELECT status || ' ' || invalid_reason FROM scheduled_tasks WHERE name = 'bad'");
                assert!(reason.starts_with("invalid ") && reason.contains(column), "{reason}");
            }
            let tasks = client.tasks().expect("the tasks");
            assert_eq!(tasks.iter().map(|task| task.name()).collect::<Vec<_>>(), ["bad", "good"]);
            assert_eq!((tasks[0].status, tasks[1].status), (TaskStatus::Invalid, TaskStatus::Active));
            let reason = tasks[0].invalid_reason.as_deref().unwrap_or_default();
            assert!(reason.contains(column) && reason.lines().count() == 1, "{reason}");
            assert_eq!(client.task("bad").expect("a look-up").as_ref(), Some(&tasks[0]));
            let refused = client.trigger("bad").expect_err("an invalid task").to_string();
            assert!(refused.starts_with("cannot trigger task \"bad\": it is invalid: "), "{refused}");
            // Repaired, or removed.
            client.replace(bad).expect("the repair");
            assert_eq!(client.task("bad").expect("a look-up").map(|task| task.status), Some(TaskStatus::Active));
            db.plain().execute_batch(&format!("UPDATE scheduled_tasks SET {column} = CAST(x'ff' AS TEXT)")).err();
            client.remove("bad").expect("its end");
        }
    }
}
