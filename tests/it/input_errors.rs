//! Invalid input is refused where it is entered, with a message that names it; an invalid row is checked again when it changes.

use std::process::Output;
use std::time::Duration;

use duly::{Apply, Change, Client, Done, Error, NewRun, NewTask, RetryPolicy, TaskStatus};

use crate::fixtures::{NOON, TestDb, exited, minutes, seconds};
use crate::import::stdout_of;

fn duly(db: &TestDb, line: &[&str]) -> Output {
    db.duly(line).env("TZ", "Europe/Rome").output().expect("the program")
}

/// Returns the standard error of a command, which must fail with this code.
#[track_caller]
fn refusal(output: Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    error
}

/// JSON that is valid by its grammar and that no handler can read.
fn unreadable() -> [(String, &'static str); 3] {
    let deep = "[".repeat(200) + &"]".repeat(200);
    [(r#""\ud800""#.into(), "hex escape"), ("1e999".into(), "number out of range"), (deep, "recursion limit exceeded")]
}

#[test]
fn a_payload_that_no_handler_can_read_is_refused() {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::cron("t", "@daily").handler("work")).expect("a task");
    let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).expect("JSON by its grammar");
    for (payload, why) in unreadable() {
        let task = || NewTask::cron("bad", "@daily").handler("work").payload(raw(&payload));
        let refused = |error: Error| {
            assert!(matches!(error, Error::InvalidTask { field: "payload", .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        };
        refused(client.add(task()).expect_err("a payload"));
        refused(client.trigger_with("t", raw(&payload)).expect_err("a payload"));
        assert!(client.apply("m", [task()], Apply::default()).expect_err("a payload").to_string().contains(why));
        let typed = ["add", "bad", "--now", "--handler", "work", "--payload", &payload];
        assert!(refusal(duly(&db, &typed), 2).contains("expected JSON that a handler can read"));
    }
    assert_eq!(db.tasks().len(), 1);
    // As deep as serde_json reads, and similar texts that can be read.
    for payload in ["[".repeat(127) + &"]".repeat(127), r#""\ud83d\ude00""#.into(), "1e308".into()] {
        client.replace(NewTask::cron("good", "@daily").handler("work").payload(raw(&payload))).expect("a task");
    }
    // A row written by SQL becomes invalid, with the reason.
    let sql = "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
               VALUES ('sql', 'work', '1e999', 'cron', '@daily')";
    db.plain().execute(sql, []).expect("a row");
    db.stepper(NOON).step().expect("a step");
    assert!(db.ask("SELECT status || invalid_reason FROM scheduled_tasks WHERE name = 'sql'").contains("out of range"));
}

/// serde_json writes such a number as `null`, and the handler would read that.
#[test]
fn a_payload_with_a_number_that_json_cannot_hold_is_refused() {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::manual("t").handler("work").payload((1.5, None::<f64>))).expect("a task");
    for number in [f64::NAN, f64::INFINITY] {
        let task = NewTask::manual("bad").handler("work").payload(vec![1.0, number]);
        let says =
            format!("invalid payload: expected a value that JSON can hold, found \"{number} is no number of JSON\"");
        assert_eq!(client.add(task.clone()).expect_err("a number").to_string(), says);
        assert_eq!(client.trigger_with("t", number).expect_err("a number").to_string(), says);
        assert_eq!(client.trigger_run(NewRun::of("t").payload(Some(number))).expect_err("a number").to_string(), says);
        assert!(serde_json::to_string(&task).is_err());
    }
    assert_eq!(db.rows("SELECT name, payload FROM scheduled_tasks"), ["t|[1.5,null]"]);
    assert_eq!(db.number::<u32>("SELECT count(*) FROM task_runs"), 0);
}

#[test]
fn at_most_once_wins_whatever_the_order() {
    let (db, client) = TestDb::with_client();
    let policy = RetryPolicy { backoff: seconds(2), ..RetryPolicy::default() };
    let task = |name: &str| NewTask::manual(name).handler("work");
    let tasks = [
        task("after").retry(policy).at_most_once(),
        task("before").at_most_once().retry(policy),
        task("both").at_most_once().max_attempts(3).retry(policy).max_attempts(4),
        task("never").max_attempts(3).retry(policy),
    ];
    client.add_all(tasks).expect("tasks");
    let stored = db.rows("SELECT name, max_attempts, backoff_ms FROM scheduled_tasks ORDER BY name");
    assert_eq!(stored, ["after|1|2000", "before|1|2000", "both|1|2000", "never|5|2000"]);
}

/// Each would silently do less than it says.
#[test]
fn a_backoff_above_its_cap_and_a_jitter_above_the_interval_are_refused() {
    let (db, client) = TestDb::with_client();
    let policy = |backoff, max_backoff| RetryPolicy { max_attempts: 5, backoff, max_backoff };
    let task = |name: &str| NewTask::every(name, minutes(1)).handler("work");
    let refused = |task: NewTask| {
        let error = client.add(task.clone()).expect_err("a setting").to_string();
        assert_eq!(client.replace(task).expect_err("a setting").to_string(), error);
        error
    };
    let hours = RetryPolicy { backoff: minutes(120), ..RetryPolicy::default() };
    let says = "invalid backoff_ms: expected at most its cap (backoff_cap_ms), 1h, found \"2h\"";
    assert_eq!(refused(task("bad").retry(hours)), says);
    let says = "invalid jitter_ms: expected at most the interval, 1m, found \"1m 1s\"";
    assert_eq!(refused(task("bad").jitter(seconds(61))), says);
    let typed = ["add", "bad", "--every", "1m", "--jitter", "61s", "--backoff", "2h", "--", "true"];
    assert!(refusal(duly(&db, &typed), 2).contains("expected at most its cap"));
    // At the limit; a cap alone; and a jitter where no interval is known.
    client.add(task("equal").retry(policy(minutes(5), minutes(5))).jitter(minutes(1))).expect("a task");
    client.add(task("cap").retry(RetryPolicy { max_backoff: seconds(5), ..RetryPolicy::default() })).expect("a task");
    client.add(NewTask::cron("cron", "* * * * *").handler("work").jitter(minutes(5))).expect("a task");
    // What another program wrote goes on.
    let sql = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, jitter_ms, backoff_ms)
               VALUES ('sql', 'work', 'interval', '1m', 61000, 7200000)";
    db.plain().execute(sql, []).expect("a row");
    db.stepper(NOON).step().expect("a step");
    assert_eq!(db.rows("SELECT DISTINCT status FROM scheduled_tasks"), ["active"]);
}

#[test]
fn a_timeout_below_a_millisecond_is_rounded_up() {
    let (db, client) = TestDb::with_client();
    let task = |timeout| NewTask::cron("t", "@daily").handler("work").timeout(timeout);
    client.add(task(Duration::from_nanos(1))).expect("a task");
    assert_eq!(db.ask("SELECT timeout_ms FROM scheduled_tasks"), "1");
    client.replace(task(Duration::ZERO)).expect("a task");
    assert_eq!(db.ask("SELECT timeout_ms FROM scheduled_tasks"), "0");
}

#[test]
fn a_negative_value_names_its_field() {
    let db = TestDb::new();
    for (line, code, says) in [
        (&["add", "t", "--cron", "-1 * * * *", "--", "true"][..], 2, "minute: expected 0-59, found \"-1\""),
        (&["add", "t", "--every", "-5s", "--", "true"], 2, "'-5s' for '--every <DUR>'"),
        (&["add", "t", "--in", "-5s", "--", "true"], 2, "'-5s' for '--in <DUR>'"),
        (&["add", "t", "--now", "--timeout", "-1s", "--", "true"], 2, "'-1s' for '--timeout <DUR>'"),
        (&["add", "t", "--now", "--priority", "-1", "--", "true"], 2, "'-1' for '--priority <N>'"),
        (&["add", "t", "--at", "-1", "--", "true"], 2, "invalid --at \"-1\": expected an instant"),
        (&["run", "--workers", "-1"], 2, "'-1' for '--workers <N>'"),
        (&["next", "@daily", "-n", "-1"], 2, "'-1' for '--number <N>'"),
    ] {
        let error = refusal(duly(&db, line), code);
        assert!(error.contains(says), "{line:?}: {error}");
    }
    assert!(!db.file().exists());
    // An option after a value is still an option.
    stdout_of(duly(&db, &["add", "t", "--every", "5s", "--timeout", "1m", "--", "true"]));
}

#[test]
fn a_tz_rule_is_no_local_zone() {
    let db = TestDb::new();
    let with_rule = |line: &[&str]| db.duly(line).env("TZ", "EST5EDT4").output().expect("the program");
    for line in
        [&["add", "t", "--cron", "@daily", "--tz", "local", "--", "true"][..], &["next", "@daily", "--tz", "local"]]
    {
        let error = refusal(with_rule(line), 2);
        assert!(error.contains("error: --tz local: TZ=\"EST5EDT4\" is not the name of a time zone"), "{error}");
    }
    assert!(!db.file().exists());
    let added = with_rule(&["add", "t", "--cron", "@daily", "--", "true"]);
    let said = String::from_utf8_lossy(&added.stderr);
    assert!(
        added.status.success() && said.starts_with("warning: TZ=\"EST5EDT4\" is not the name of a time zone"),
        "{said}"
    );
}

#[test]
fn next_accepts_dates_and_reads_local_times_in_the_given_zone() {
    let db = TestDb::new();
    let first = |line: &[&str]| {
        let line = [&["next", "0 7 * * *", "-n", "1", "--json"], line].concat();
        let rows: serde_json::Value = serde_json::from_str(&stdout_of(duly(&db, &line))).expect("JSON");
        rows[0]["scheduled_for"].as_str().expect("an instant").to_owned()
    };
    assert_eq!(first(&["--from", "2027-03-27"]), "2027-03-27T07:00:00.000Z");
    // Midnight and seven in Tokyo are 15:00 and 22:00 in UTC, the day before.
    let tokyo = |from| first(&["--tz", "Asia/Tokyo", "--from", from]);
    assert_eq!(tokyo("2027-03-27"), "2027-03-26T22:00:00.000Z");
    assert_eq!(tokyo("2027-03-27 06:59"), "2027-03-26T22:00:00.000Z");
    assert_eq!(tokyo("2027-03-27T07:00"), "2027-03-27T22:00:00.000Z");
    assert_eq!(tokyo("2027-03-26T21:59:00Z"), "2027-03-26T22:00:00.000Z");
    let error = refusal(duly(&db, &["next", "@daily", "--from", "soon"]), 2);
    assert!(error.contains("invalid --from \"soon\"") && error.contains("or a date"), "{error}");
}

/// A list that is longer than memory begins at once, and ends when its reader closes the pipe.
#[cfg(target_os = "linux")]
#[test]
fn next_prints_a_long_list_without_collecting_it() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let db = TestDb::new();
    for (json, first) in [(&[][..], "LOCAL"), (&["--json"], "[")] {
        let line = [&["next", "* * * * *", "-n", "100000000", "--from", "2027-03-27"], json].concat();
        let mut child = db.duly(&line).stdout(Stdio::piped()).spawn().expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.next().expect("a line").expect("text").starts_with(first));
        assert_eq!(lines.by_ref().take(20_000).count(), 20_000);
        drop(lines);
        assert!(exited(&mut child, "the program").success());
    }
    // The pages form one array, without a repeated or missing occurrence.
    let text = stdout_of(duly(&db, &["next", "* * * * *", "-n", "2500", "--from", "2027-03-27", "--json"]));
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let instants: Vec<duly::Timestamp> =
        rows.iter().map(|row| row["scheduled_for"].as_str().expect("text").parse().expect("an instant")).collect();
    assert_eq!(instants.len(), 2500);
    assert!(instants.is_sorted_by(|a, b| b.as_millis() - a.as_millis() == 60_000));
    assert!(
        text.starts_with("[\n  {\n    \"scheduled_for\": \"2027-") && text.ends_with("\"skipped\": null\n  }\n]\n")
    );
    let lines = stdout_of(duly(&db, &["next", "* * * * *", "-n", "2500", "--from", "2027-03-27"]));
    assert_eq!(lines.lines().count(), 2501);
    // A schedule that ends before the number is reached ends the list.
    stdout_of(duly(&db, &["add", "once", "--at", "2999-01-01T00:00:00Z", "--", "true"]));
    assert_eq!(stdout_of(duly(&db, &["next", "once", "-n", "5000"])).lines().count(), 2);
}

/// Damage to the mark of duly's tables is reported as damage, without the advice to rename them.
#[test]
fn damaged_marks_are_reported_as_damage() {
    for damage in [
        "DROP TABLE scheduler_meta",
        "DELETE FROM scheduler_meta",
        "UPDATE scheduler_meta SET value = 'x' WHERE key = 'schema_version'",
        "UPDATE scheduler_meta SET value = '-1' WHERE key = 'schema_version'",
        "DELETE FROM scheduler_meta WHERE key = 'schema_version'",
        "UPDATE scheduler_meta SET value = 'other' WHERE key = 'program'",
        "DROP TABLE scheduler_meta; CREATE TABLE scheduler_meta (other)",
    ] {
        let db = TestDb::new();
        drop(db.client());
        db.plain().execute_batch(damage).expect("damage");
        let error = refusal(duly(&db, &["list"]), 4);
        assert!(!error.contains("rename") && !error.contains("not duly's"), "{damage}: {error}");
        assert!(error.contains("scheduler_meta is damaged") && error.contains("backup"), "{damage}: {error}");
    }
    // A table of another program is reported as such.
    let db = TestDb::new();
    rusqlite::Connection::open(db.file()).unwrap().execute_batch("CREATE TABLE scheduled_tasks (id, other)").unwrap();
    let error = refusal(duly(&db, &["list"]), 4);
    assert!(error.contains("is not duly's") && error.contains("rename that table"), "{error}");
}

/// Adds an invalid row that is usable now, as after an update of the zone data or of duly, and one that is not.
fn invalid(db: &TestDb) -> Client {
    let client = db.client();
    client.add(NewTask::cron("t", "@daily").handler("work")).expect("a task");
    client.add(NewTask::cron("bad", "@daily").handler("work")).expect("a task");
    let invalid =
        "UPDATE scheduled_tasks SET status = 'invalid', next_run = NULL, planned = 1, invalid_reason = 'it was so'";
    db.plain().execute(invalid, []).expect("an update");
    db.plain()
        .execute_batch("UPDATE scheduled_tasks SET schedule_value = 'soon' WHERE name = 'bad'")
        .expect("an update");
    db.plain().execute(&format!("{invalid} WHERE name = 'bad'"), []).expect("an update");
    client
}

#[test]
fn an_invalid_row_is_checked_again_on_change() {
    let is_active = |client: &Client| {
        let task = client.task("t").expect("a look").expect("a task");
        (task.status, task.next_run.is_some(), task.invalid_reason) == (TaskStatus::Active, true, None)
    };
    let task = || NewTask::cron("t", "@daily").handler("work");

    let db = TestDb::new();
    let client = invalid(&db);
    client.resume("t").expect("a resume");
    assert!(is_active(&client));
    let error = client.resume("bad").expect_err("it still is").to_string();
    assert!(error.contains("expected 5 fields"), "what is wrong now: {error}");

    let db = TestDb::new();
    let client = invalid(&db);
    let added = client.add(task()).expect("an add");
    assert_eq!((added.change, added.next_run.is_some()), (Change::Replaced, true));
    assert!(is_active(&client));
    assert_eq!(client.add(task()).expect("an add").change, Change::Unchanged);

    let db = TestDb::new();
    let client = invalid(&db);
    db.plain().execute("UPDATE scheduled_tasks SET managed_by = 'm' WHERE name = 't'", []).expect("an update");
    let set = "UPDATE scheduled_tasks SET planned = 1 WHERE name = 't'";
    db.plain().execute(set, []).expect("an update");
    let applied = client.apply("m", [task()], Apply::default()).expect("an apply");
    let fields = vec![("status", "invalid".to_owned(), "active".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
    assert!(is_active(&client));
    assert_eq!(client.apply("m", [task()], Apply::default()).expect("an apply")[0].done, Done::Unchanged);
    db.assert_sound();
}
