//! A large batch of new tasks is added without the CHECKs and triggers of the tables. What they refuse is refused all the same, an
//! application's own triggers fire, and everything written afterwards is checked again.

use duly::{NewTask, RetryPolicy, Timestamp};
use serde_json::json;

use crate::fixtures::{NOON, TestDb, at, far_future, minutes, once, seconds};

/// As many tasks as a large batch has at least.
const LARGE: usize = 1000;

fn batch(prefix: &str) -> Vec<NewTask> {
    (0..LARGE).map(|n| far_future(&format!("{prefix}:{n}"))).collect()
}

/// A change of a valid task.
type Variant = Box<dyn Fn(NewTask) -> NewTask>;

/// Definitions at and beyond each limit of the tables.
fn variants() -> Vec<Variant> {
    let long = |letters: usize| "x".repeat(letters);
    let mut variants: Vec<Variant> = Vec::new();
    for text in ["", "#own", "a\0b", "\u{FFFD}", "ä", " ", "a'b\"c", &long(200), &long(201), &"ä".repeat(200)] {
        let text = text.to_owned();
        let (handler, key, dead, zone) = (text.clone(), text.clone(), text.clone(), text.clone());
        variants.push(Box::new(move |task| task.handler(handler.clone())));
        variants.push(Box::new(move |task| task.concurrency_key(key.clone())));
        variants.push(Box::new(move |task| task.on_dead(dead.clone())));
        variants.push(Box::new(move |task| task.time_zone(zone.clone())));
        variants.push(Box::new(move |task| task.payload(json!({ "text": text.clone() }))));
    }
    for letters in [262_140, 262_142, 262_143, 300_000] {
        variants.push(Box::new(move |task| task.payload("x".repeat(letters))));
    }
    variants.push(Box::new(|task| task.payload(f64::NAN)));
    variants.push(Box::new(|task| {
        (0..200)
            .fold(json!(1), |nested, _| json!([nested]))
            .to_string()
            .parse::<serde_json::Value>()
            .map_or(task.clone(), |nested| task.clone().payload(nested))
    }));
    for millis in [-1, 0, 5, 999_999_999_999, 1_000_000_000_000, 64_060_588_800_000, 64_060_588_800_001, i64::MAX] {
        let at = Timestamp::from_millis(millis);
        variants.push(Box::new(move |task| task.starts_at(at)));
        variants.push(Box::new(move |task| task.ends_at(at)));
    }
    variants.push(Box::new(|task| task.starts_at("2030-01-02T00:00:00Z".parse().expect("a time")).ends_at(at(NOON))));
    for millis in [0, 1, 86_400_000, 86_400_001, 315_576_000_000, 315_576_000_001, u64::MAX] {
        let length = std::time::Duration::from_millis(millis);
        variants.push(Box::new(move |task| task.expires(length)));
        variants.push(Box::new(move |task| task.timeout(length)));
        variants.push(Box::new(move |task| task.jitter(length)));
        variants.push(Box::new(move |task| task.misfire(duly::Misfire::Skip, length)));
        variants.push(Box::new(move |task| task.retry(RetryPolicy { backoff: length, ..RetryPolicy::default() })));
        variants.push(Box::new(move |task| task.retry(RetryPolicy { max_backoff: length, ..RetryPolicy::default() })));
    }
    for number in [0, 1, 3, 4, 200, 201, 1_000_000, 1_000_001, u32::MAX] {
        variants.push(Box::new(move |task| task.catch_up_limit(number)));
        variants.push(Box::new(move |task| task.pause_after_failures(number)));
        variants.push(Box::new(move |task| task.priority(u8::try_from(number).unwrap_or(u8::MAX))));
        variants.push(Box::new(move |task| task.retry(RetryPolicy { max_attempts: number, ..RetryPolicy::default() })));
    }
    variants.push(Box::new(|task| task.misfire(duly::Misfire::RunAll, seconds(60))));
    for text in ["", "09:00-17:30", "9 to 5", "2027-12-24..2027-12-26", "holidays: 2027-12-25; 2028-01-01"] {
        variants.push(Box::new(move |task| task.only_between(text)));
        variants.push(Box::new(move |task| task.only_on(text)));
        variants.push(Box::new(move |task| task.except_on(text)));
    }
    variants
}

#[test]
fn a_large_batch_refuses_what_the_tables_refuse() {
    let (one_db, one) = TestDb::with_client();
    let (many_db, many) = TestDb::with_client();
    let named = [
        String::new(),
        "1a".into(),
        "a b".into(),
        "a\0b".into(),
        "ä".into(),
        "a".repeat(200),
        "a".repeat(201),
        "a/b@c-d.e:f".into(),
    ];
    let valued =
        [String::new(), "x".into(), "0 7 * * *\0".into(), "\u{FFFD}".into(), "9".repeat(257), "0 7 * * *".into()];
    let mut tasks: Vec<NewTask> =
        named.into_iter().map(|name| NewTask::interval(name, minutes(5)).handler("work")).collect();
    tasks.extend(
        valued.into_iter().enumerate().map(|(n, value)| NewTask::cron(format!("value:{n}"), value).handler("work")),
    );
    tasks.extend(
        variants()
            .iter()
            .enumerate()
            .map(|(n, change)| change(NewTask::cron(format!("v:{n}"), "0 7 * * *").handler("work"))),
    );
    let (mut accepted, mut refused) = (batch("b"), 0);
    for task in tasks {
        match one.add(task.clone()) {
            Ok(_) => accepted.push(task),
            Err(alone) => {
                let mut batch = batch("b");
                batch.push(task);
                assert_eq!(many.add_all(batch).expect_err("refused").to_string(), alone.to_string());
                refused += 1;
            }
        }
    }
    assert!(accepted.len() > LARGE + 40 && refused > 40, "{} accepted, {refused} refused", accepted.len());
    many.add_all(accepted).expect("each was accepted alone");
    // Also evaluates each CHECK of each row.
    for db in [&one_db, &many_db] {
        assert_eq!(db.ask("PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn an_applications_triggers_fire_in_a_large_batch() {
    let (db, client) = TestDb::with_client();
    client.add_all(batch("before")).expect("tasks");
    db.plain()
        .execute_batch(
            "CREATE TABLE audit (name TEXT);
             CREATE TRIGGER audited AFTER INSERT ON SCHEDULED_TASKS BEGIN INSERT INTO audit VALUES (NEW.name); END;",
        )
        .expect("a trigger");
    client.add_all(batch("after")).expect("tasks");
    assert_eq!(db.number::<usize>("SELECT count(*) FROM audit WHERE name GLOB 'after:*'"), LARGE);
    db.plain().execute_batch("DROP TRIGGER audited").expect("no trigger");
    client.add_all(batch("then")).expect("tasks");
    assert_eq!(db.number::<usize>("SELECT count(*) FROM audit"), LARGE);
    assert_eq!(db.tasks().len(), 3 * LARGE);
}

#[test]
fn an_applications_check_holds_in_a_large_batch() {
    let (db, client) = TestDb::with_client();
    let column =
        "ALTER TABLE scheduled_tasks ADD COLUMN tenant TEXT CHECK (tenant IS NOT NULL OR name NOT GLOB 'of:*')";
    db.plain().execute_batch(column).expect("a column");
    client.add_all(batch("free")).expect("tasks");
    assert!(client.add(far_future("of:tenant")).is_err());
    let mut tasks = batch("more");
    tasks.push(far_future("of:tenant"));
    assert!(client.add_all(tasks).is_err());
    assert_eq!(db.tasks().len(), LARGE);
}

#[test]
fn checks_and_triggers_are_in_force_after_a_large_batch_and_after_one_that_failed() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("waits").handler("missing")).expect("a task");
    assert!(stepper.step().expect("a turn").is_empty());
    for (round, fails) in [(0, false), (1, true)] {
        let mut tasks = batch(&format!("round{round}"));
        if fails {
            tasks.push(NewTask::cron("bad", "61 * * * *").handler("work"));
        }
        assert_eq!(client.add_all(tasks).is_err(), fails);
        // The trigger scheduled_tasks_repaired carries the handler to the run that waits.
        let handler = format!("missing:{round}");
        client.replace(once("waits").handler(&handler)).expect("a change");
        assert_eq!(db.ask("SELECT handler FROM task_runs"), handler);
    }
    // A stored name within the batch, and a batch in which every name is stored.
    let mut tasks = batch("other");
    tasks.push(far_future("round0:7"));
    client.add_all(tasks).expect("tasks");
    client.add_all(batch("other")).expect("tasks");
    client.replace(once("waits").handler("missing:2")).expect("a change");
    assert_eq!(db.ask("SELECT handler FROM task_runs"), "missing:2");
    db.assert_sound();
}
