//! `/metrics`, `/healthz` and `/livez`: exact counts after a scripted sequence, valid text for any names, bounded numbers of series,
//! answers while the database is locked, and the documents, dashboard and rules that name the metrics.

mod documents;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::page::Page;
use duly::testing::ManualClock;
use duly::{BoxError, Builder, Context, Failure, Misfire, NewTask, Overlap, RetryPolicy, RunStatus, Scheduler};

use crate::fixtures::{NOON, TestDb, at, eventually, held, minutes, overdue, receive, seconds, skip, wait_for_status};
use crate::observers::{Gate, Held};
use crate::page_run::{Answer, request};

const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

fn get(scheduler: &Scheduler, path: &str, accept: &str) -> Answer {
    request(scheduler.page_address().expect("a page"), path, accept)
}

fn scrape(scheduler: &Scheduler) -> String {
    let answer = get(scheduler, "/metrics", "*/*");
    assert_eq!((answer.code, &*answer.kind), (200, "text/plain; version=0.0.4; charset=utf-8"));
    answer.text
}

fn start(db: &TestDb, configure: impl FnOnce(Builder) -> Builder) -> Scheduler {
    let builder = Scheduler::builder(db.file()).poll(Duration::from_millis(50)).page(Page::on("127.0.0.1:0"));
    configure(builder).start().expect("a scheduler")
}

fn succeed(_: &Context) -> Result<(), BoxError> {
    Ok(())
}

/// A name and its labels.
type Series = (String, BTreeMap<String, String>);

/// Reads the text format, and fails on what a strict reader would refuse.
fn samples(text: &str) -> BTreeMap<Series, f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line:?}"));
        let value = value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert_eq!(samples.insert(read_series(series), value), None, "a duplicate: {line:?}");
    }
    samples
}

fn read_series(text: &str) -> Series {
    let end = text.find('{').unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    assert!(name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_word), "{text:?}");
    let mut labels = BTreeMap::new();
    while let Some(after) = rest.strip_prefix(['{', ',']) {
        let (key, after) = after.split_once("=\"").unwrap_or_else(|| panic!("no label: {text:?}"));
        assert!(!key.is_empty() && key.chars().all(is_word), "{text:?}");
        let (mut value, mut chars) = (String::new(), after.chars());
        loop {
            match chars.next().unwrap_or_else(|| panic!("no end: {text:?}")) {
                '"' => break,
                '\\' => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('"' | '\\')) => c,
                    other => panic!("no escape: {other:?} in {text:?}"),
                }),
                c => {
                    assert!(!c.is_control(), "{text:?}");
                    value.push(c);
                }
            }
        }
        assert_eq!(labels.insert(key.to_owned(), value), None, "{text:?}");
        rest = chars.as_str();
    }
    assert!(rest.is_empty() || rest == "}", "{text:?}");
    (name.to_owned(), labels)
}

fn is_word(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// The values that are not 0, as `name{label,label} value`, of the names that begin so.
fn counted(text: &str, prefixes: &[&str]) -> Vec<String> {
    let shown = |((name, labels), value): (Series, f64)| {
        let labels: Vec<String> = labels.into_values().collect();
        format!("{name} {} {value}", labels.join(" "))
    };
    let wanted =
        |series: &(Series, f64)| series.1 != 0.0 && prefixes.iter().any(|prefix| series.0.0.starts_with(prefix));
    samples(text).into_iter().filter(wanted).map(shown).collect()
}

fn value(text: &str, series: &str) -> Option<f64> {
    samples(text).get(&read_series(series)).copied()
}

/// Fails if the value does not come, and shows the scrape.
fn wait_for(scheduler: &Scheduler, series: &str, expected: f64) -> String {
    let mut text = String::new();
    eventually(&format!("{series} is {expected}"), || {
        text = scrape(scheduler);
        value(&text, series) == Some(expected)
    });
    text
}

/// Has one run of each outcome; handlers `work`, `bad`, `flaky`, `patient`, `slow`.
fn scripted(db: &TestDb, clock: &ManualClock, page: Page) -> Scheduler {
    let failed = Mutex::new(0);
    let snoozed = Mutex::new(0);
    let slow = clock.clone();
    let (enter, entered) = channel();
    let (leave, left) = channel::<()>();
    let left = Mutex::new(left);
    let scheduler = Scheduler::builder(db.file())
        .poll(Duration::from_millis(50))
        .clock(clock.clone())
        .page(page)
        .handler("work", succeed)
        .handler("bad", |_: &Context| Err::<(), _>("no"))
        .handler("flaky", move |_: &Context| {
            let mut failed = failed.lock().unwrap();
            *failed += 1;
            if *failed == 1 { Err("once") } else { Ok(()) }
        })
        .handler("patient", move |_: &Context| -> Result<(), Failure> {
            let mut snoozed = snoozed.lock().unwrap();
            *snoozed += 1;
            if *snoozed == 1 { Err(Failure::snooze(minutes(1))) } else { Ok(()) }
        })
        .handler("slow", move |_: &Context| {
            enter.send(())?;
            held(&*left.lock().unwrap())?;
            slow.advance(seconds(7));
            Ok::<_, BoxError>(())
        })
        .start()
        .expect("a scheduler");
    let client = scheduler.client();
    let once = |name: &str, handler: &str| NewTask::once(name, at(NOON)).handler(handler);
    client.add(NewTask::once("late", at("2027-03-14T11:58:30Z")).handler("work")).expect("a task");
    client.add(NewTask::manual("bad").handler("bad").max_attempts(1)).expect("a task");
    client.trigger("bad").expect("a run");
    let policy = RetryPolicy { max_attempts: 3, backoff: seconds(10), max_backoff: seconds(10) };
    client.add(once("flaky", "flaky").retry(policy)).expect("a task");
    client.add(NewTask::manual("patient").handler("patient")).expect("a task");
    client.trigger("patient").expect("a run");
    let missed = NewTask::once("missed", at("2027-03-14T12:10:00Z")).handler("work");
    client.add(missed.misfire(Misfire::Skip, minutes(1))).expect("a task");
    // No scheduler has its handler: one waits until it is cancelled, one until it expires.
    client.add(once("absent", "absent")).expect("a task");
    client.add(once("brief", "absent").expires(seconds(30))).expect("a task");
    client
        .add(NewTask::interval("slow", minutes(1)).handler("slow").starts_at(at(NOON)).overlap(Overlap::Skip))
        .expect("a task");
    wait_for_status(client, "flaky", RunStatus::Failed);
    wait_for_status(client, "patient", RunStatus::Failed);
    let absent = wait_for_status(client, "absent", RunStatus::Queued);
    client.cancel(absent.id).expect("a cancellation");
    clock.advance(seconds(60));
    client.wake();
    receive(&entered, "a start");
    // Before the clock moves again: otherwise the time counts as theirs.
    wait_for_status(client, "flaky", RunStatus::Succeeded);
    wait_for_status(client, "patient", RunStatus::Succeeded);
    // The second occurrence of `slow` finds the first running; the third is not due before the end.
    clock.advance(seconds(60));
    client.wake();
    wait_for_status(client, "slow", RunStatus::Skipped);
    wait_for_status(client, "brief", RunStatus::Missed);
    client.pause("slow").expect("a pause");
    leave.send(()).expect("an end");
    eventually("slow ends", || {
        client.history("slow", 2).expect("a history").iter().any(|run| run.status == RunStatus::Succeeded)
    });
    scheduler
}

#[test]
fn counters_and_histograms_have_exactly_the_values_of_what_happened() {
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let scheduler = scripted(&db, &clock, Page::on("127.0.0.1:0"));
    clock.set_wall(at("2027-03-14T12:31:07Z"));
    scheduler.wake();
    wait_for_status(scheduler.client(), "missed", RunStatus::Missed);
    let text = wait_for(&scheduler, "duly_occurrences_missed_total", 1.0);
    assert_eq!(value(&text, "duly_clock_steps_total"), Some(1.0));
    let counts = ["duly_runs_finished", "duly_attempts", "duly_retries", "duly_runs_recovered", "duly_occurrences"];
    assert_eq!(
        counted(&text, &counts),
        [
            "duly_attempts_total bad failed 1",
            "duly_attempts_total flaky failed 1",
            "duly_attempts_total flaky succeeded 1",
            "duly_attempts_total patient snoozed 1",
            "duly_attempts_total patient succeeded 1",
            "duly_attempts_total slow succeeded 1",
            "duly_attempts_total work succeeded 1",
            "duly_occurrences_missed_total  1",
            "duly_occurrences_skipped_total  1",
            "duly_retries_total flaky 1",
            "duly_runs_finished_total absent cancelled 1",
            "duly_runs_finished_total absent missed 1",
            "duly_runs_finished_total bad dead 1",
            "duly_runs_finished_total flaky succeeded 1",
            "duly_runs_finished_total patient succeeded 1",
            "duly_runs_finished_total slow succeeded 1",
            "duly_runs_finished_total work succeeded 1",
        ],
        "{text}"
    );
    // Lateness of first attempts only: 90 s for `late`, none for the others. Of `slow`, the handler took 67 s.
    let histogram = |name: &str, handler: &str, part: &str| {
        let end = if part == "sum" || part == "count" { String::new() } else { format!(",le=\"{part}\"") };
        let part = if end.is_empty() { part } else { "bucket" };
        value(&text, &format!("{name}_{part}{{handler=\"{handler}\"{end}}}")).expect("a value")
    };
    let lateness = |handler: &str, part: &str| histogram("duly_run_lateness_seconds", handler, part);
    assert_eq!((lateness("work", "60.0"), lateness("work", "300.0"), lateness("work", "sum")), (0.0, 1.0, 90.0));
    assert_eq!((lateness("flaky", "count"), lateness("flaky", "sum"), lateness("flaky", "0.005")), (1.0, 0.0, 1.0));
    assert_eq!((lateness("patient", "count"), lateness("patient", "sum")), (1.0, 0.0));
    let took = |handler: &str, part: &str| histogram("duly_attempt_duration_seconds", handler, part);
    assert_eq!((took("slow", "60.0"), took("slow", "300.0"), took("slow", "+Inf")), (0.0, 1.0, 1.0));
    assert_eq!((took("slow", "sum"), took("flaky", "count"), took("patient", "count")), (67.0, 2.0, 2.0));
    // Series that counted nothing are there, at zero: an alert sees the first increase.
    assert_eq!(value(&text, "duly_runs_finished_total{handler=\"work\",outcome=\"dead\"}"), Some(0.0));
    assert_eq!(value(&text, "duly_tasks_due"), Some(0.0));
    assert_eq!(value(&text, "duly_schedulers{state=\"alive\"}"), Some(1.0));
    assert_eq!((value(&text, "duly_workers"), value(&text, "duly_workers_busy")), (Some(4.0), Some(0.0)));
    assert_eq!(value(&text, "duly_problems{kind=\"dead\"}"), Some(1.0));
    assert_eq!((value(&text, "duly_degraded"), value(&text, "duly_database_readable")), (Some(0.0), Some(1.0)));
    assert!(value(&text, "duly_database_size_bytes") > Some(0.0) && value(&text, "duly_wal_size_bytes") > Some(0.0));
    assert!(!text.contains("duly_task_") && !text.contains("task=\""), "tasks are counted only if asked");
}

#[test]
fn waiting_runs_are_counted_by_what_they_wait_for() {
    let db = TestDb::new();
    let (leave, left) = channel::<()>();
    let left = Mutex::new(left);
    let hold = move |_: &Context| Ok::<_, BoxError>(held(&*left.lock().unwrap())?);
    let scheduler =
        start(&db, |builder| builder.workers(1).handler("hold", hold).handler("bad", |_: &Context| Err::<(), _>("no")));
    let client = scheduler.client();
    client.set_limit(duly::Limit::rate("limited", 1, minutes(600))).expect("a limit");
    let policy = RetryPolicy { max_attempts: 2, backoff: minutes(60), max_backoff: minutes(60) };
    client.add(overdue("bad").handler("bad").retry(policy)).expect("a task");
    wait_for_status(client, "bad", RunStatus::Failed);
    client.add(overdue("held").handler("hold").concurrency_key("one")).expect("a task");
    wait_for_status(client, "held", RunStatus::Running);
    client.add(overdue("keyed").handler("hold").concurrency_key("one")).expect("a task");
    client.add(NewTask::interval("stopped", minutes(600)).handler("absent")).expect("a task");
    db.plain()
        .execute("UPDATE scheduled_tasks SET next_run = active_since WHERE name = 'stopped'", [])
        .expect("due now");
    client.add(overdue("worker").handler("absent")).expect("a task");
    for task in ["keyed", "stopped", "worker"] {
        wait_for_status(client, task, RunStatus::Queued);
    }
    client.pause("stopped").expect("a pause");
    client.add(NewTask::manual("limited").handler("limited")).expect("a task");
    client.trigger("limited").expect("a run");
    // As another scheduler with that handler leaves it.
    db.plain()
        .execute("INSERT INTO rate_limit_starts (subject, number, started_at) SELECT 'handler:limited', 1, max(seen_at) FROM scheduler_instances", [])
        .expect("a start");
    let text = wait_for(&scheduler, "duly_runs_waiting{reason=\"rate\"}", 1.0);
    assert_eq!(
        counted(&text, &["duly_runs_waiting", "duly_workers"]),
        [
            "duly_runs_waiting key 1",
            "duly_runs_waiting paused 1",
            "duly_runs_waiting rate 1",
            "duly_runs_waiting time 1",
            "duly_runs_waiting worker 1",
            "duly_workers  1",
            "duly_workers_busy  1",
        ],
        "{text}"
    );
    let runs = ["queued", "running", "failed"].map(|status| value(&text, &format!("duly_runs{{status=\"{status}\"}}")));
    assert_eq!(runs, [Some(4.0), Some(1.0), Some(1.0)]);
    assert!(value(&text, "duly_oldest_due_age_seconds") >= Some(0.0));
    drop(leave);
}

#[test]
fn the_text_is_valid_for_any_names_in_both_formats() {
    let db = TestDb::new();
    let hostile = ["a\"b\\c", "two\u{2029}lines", "} 1 # {x=\"", "\u{feff}[2J", "λ \u{2028}", "a\\nb"];
    let scheduler = start(&db, |builder| hostile.iter().fold(builder, |builder, name| builder.handler(*name, succeed)));
    scheduler.add(overdue("odd").handler(hostile[0])).expect("a task");
    scheduler.add(overdue("odder").handler(hostile[2])).expect("a task");
    let text = wait_for(&scheduler, "duly_runs_finished_total{handler=\"a\\\"b\\\\c\",outcome=\"succeeded\"}", 1.0);
    let names: BTreeSet<String> =
        samples(&text).into_keys().filter_map(|(_, mut labels)| labels.remove("handler")).collect();
    assert_eq!(names.len(), hostile.len(), "{names:?}");
    check_rules(&text);
    promtool(&["check", "metrics"], &text);

    let open = get(&scheduler, "/metrics", OPEN_METRICS);
    assert_eq!(open.kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.text.ends_with("\n# EOF\n") && open.text.contains("\n# UNIT duly_wal_size_bytes bytes\n"));
    assert!(open.text.contains("# TYPE duly_turns counter\n") && text.contains("# TYPE duly_turns_total counter\n"));
    assert!(open.text.contains("# TYPE duly_build info\n") && text.contains("# TYPE duly_build_info gauge\n"));
    let names = |text: &str| samples(text).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&open.text), names(&text), "the same series in both");
}

/// The rules of Prometheus' guide to names, as promtool checks them.
fn check_rules(text: &str) {
    let mut kinds = BTreeMap::new();
    let mut families: Vec<String> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(!help.is_empty() && !families.iter().any(|one| one == name), "{line}");
                families.push(name.to_owned());
            }
            ["#", "TYPE", name, kind] => {
                assert_eq!(families.last().map(String::as_str), Some(name), "HELP comes before TYPE");
                kinds.insert(name.to_owned(), kind.to_owned());
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                let parts: Vec<&str> = name.split('_').collect();
                assert_eq!(parts[0], "duly", "{line}");
                let not_base =
                    ["milliseconds", "ms", "minutes", "hours", "kilobytes", "megabytes", "mib", "counter", "gauge"];
                assert!(!parts.iter().any(|part| not_base.contains(part)), "{line}");
            }
            _ => {
                let (name, labels) = read_series(line.rsplit_once(' ').expect("a value").0);
                let family = families.last().expect("metadata first");
                let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} is not of {family}"));
                let is_histogram = kinds[family] == "histogram";
                assert!(suffix.is_empty() != is_histogram, "{line}");
                assert!(!is_histogram || ["_sum", "_count", "_bucket"].contains(&suffix), "{line}");
                assert!(labels.keys().all(|label| !["job", "instance", "name"].contains(&&**label)), "{line}");
                if suffix.is_empty() && (name.contains("size") || name.contains("age") || name.contains("timestamp")) {
                    assert!(name.ends_with("_bytes") || name.ends_with("_seconds"), "{line}: no unit");
                }
            }
        }
    }
    samples(text);
}

/// Has promtool examine a text, or a file that the arguments name.
fn promtool(arguments: &[&str], input: &str) {
    let started = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else { return skip("no promtool") };
    promtool.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("an input");
    let output = promtool.wait_with_output().expect("an end");
    let found = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && found.is_empty(), "promtool {arguments:?}: {found}");
}

#[test]
fn handlers_beyond_a_hundred_share_a_series() {
    let db = TestDb::new();
    let names: Vec<String> = (0..150).map(|number| format!("h{number:03}")).collect();
    let scheduler = start(&db, |builder| names.iter().fold(builder, |builder, name| builder.handler(name, succeed)));
    scheduler.add_all([overdue("known").handler("h007"), overdue("beyond").handler("h149")]).expect("tasks");
    let text = wait_for(&scheduler, "duly_runs_finished_total{handler=\"other\",outcome=\"succeeded\"}", 1.0);
    wait_for(&scheduler, "duly_runs_finished_total{handler=\"h007\",outcome=\"succeeded\"}", 1.0);
    let handlers: BTreeSet<String> =
        samples(&text).into_keys().filter_map(|(_, mut labels)| labels.remove("handler")).collect();
    assert_eq!(handlers.len(), 101);
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
}

#[test]
fn tasks_are_counted_one_by_one_only_if_asked() {
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let scheduler = scripted(&db, &clock, Page::on("127.0.0.1:0").metrics_per_task());
    let text = wait_for(&scheduler, "duly_task_runs_finished_total{task=\"slow\",outcome=\"succeeded\"}", 1.0);
    // Tasks that are due once share a series; a run that ended without an attempt counts for its task if the name is known.
    assert_eq!(
        counted(&text, &["duly_task_"]),
        [
            "duly_task_attempts_total failed bad 1",
            "duly_task_attempts_total failed other 1",
            "duly_task_attempts_total snoozed patient 1",
            "duly_task_attempts_total succeeded other 2",
            "duly_task_attempts_total succeeded patient 1",
            "duly_task_attempts_total succeeded slow 1",
            "duly_task_runs_finished_total cancelled other 1",
            "duly_task_runs_finished_total dead bad 1",
            "duly_task_runs_finished_total missed other 1",
            "duly_task_runs_finished_total succeeded other 2",
            "duly_task_runs_finished_total succeeded patient 1",
            "duly_task_runs_finished_total succeeded slow 1",
            "duly_task_work_seconds_total slow 67",
        ],
        "{text}"
    );
    check_rules(&text);
}

#[test]
fn a_locked_database_delays_neither_scrape_nor_liveness() {
    let db = TestDb::new();
    let scheduler = start(&db, |builder| builder.lease(seconds(1)).handler("work", succeed));
    let locked = db.plain();
    locked.execute_batch("BEGIN EXCLUSIVE").expect("a lock");
    // The heartbeat of the scheduler waits five seconds for the lock, in vain.
    eventually("a turn is busy", || {
        let text = scrape(&scheduler);
        assert_eq!(value(&text, "duly_database_readable"), Some(1.0), "readers do not wait for a writer");
        assert_eq!(get(&scheduler, "/livez", "*/*").code, 200);
        value(&text, "duly_busy_turns_total") >= Some(1.0) && value(&text, "duly_degraded") == Some(1.0)
    });
    locked.execute_batch("ROLLBACK").expect("an end");
    let text = wait_for(&scheduler, "duly_degraded", 0.0);
    assert!(value(&text, "duly_degraded_turns_total") >= value(&text, "duly_busy_turns_total"));
}

#[test]
fn without_the_tables_a_scrape_has_what_the_process_counts() {
    let db = TestDb::new();
    let scheduler = start(&db, |builder| builder.handler("work", succeed));
    assert_eq!(
        (get(&scheduler, "/healthz", "*/*").code, get(&scheduler, "/healthz", "*/*").text),
        (200, "ok\n".to_owned())
    );
    // No turn reads this table; what looks for problems does.
    db.plain().execute_batch("ALTER TABLE scheduler_events RENAME TO elsewhere").expect("another name");
    let text = wait_for(&scheduler, "duly_database_readable", 0.0);
    assert_eq!(value(&text, "duly_problems{kind=\"dead\"}"), None);
    assert_eq!(value(&text, "duly_runs_finished_total{handler=\"work\",outcome=\"dead\"}"), Some(0.0));
    let answer = get(&scheduler, "/healthz", "*/*");
    assert!(
        answer.code == 503 && answer.text.contains("cannot be read") && answer.text.lines().count() == 1,
        "{}",
        answer.text
    );
    let json: serde_json::Value =
        serde_json::from_str(&get(&scheduler, "/healthz", "application/json").text).expect("JSON");
    assert!(json["ok"] == false && json["error"].as_str().unwrap().contains("scheduler_events"), "{json}");
    assert_eq!(get(&scheduler, "/livez", "*/*").code, 200);
    db.plain().execute_batch("ALTER TABLE elsewhere RENAME TO scheduler_events").expect("its name");
    wait_for(&scheduler, "duly_database_readable", 1.0);
    eventually("healthy again", || get(&scheduler, "/healthz", "*/*").code == 200);
}

#[test]
fn health_is_refused_with_reasons_until_they_are_gone() {
    let db = TestDb::new();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let work = move |_: &Context| if is_broken.load(Ordering::Relaxed) { Err("the \"disk\"\nis full") } else { Ok(()) };
    let scheduler = start(&db, |builder| builder.handler("work", work));
    scheduler.add(overdue("nightly").max_attempts(1)).expect("a task");
    let dead = wait_for_status(scheduler.client(), "nightly", RunStatus::Dead);
    eventually("the page sees it", || get(&scheduler, "/healthz", "*/*").code == 503);
    let answer = get(&scheduler, "/healthz", "text/plain");
    assert_eq!(answer.kind, "text/plain; charset=utf-8");
    assert!(
        answer.text.starts_with("dead: run 1 of nightly is dead") && answer.text.lines().count() == 1,
        "{}",
        answer.text
    );
    let answer = get(&scheduler, "/healthz", "application/json");
    let json: serde_json::Value = serde_json::from_str(&answer.text).expect("JSON");
    assert_eq!((answer.code, &*answer.kind, &json["problems"][0]["kind"]), (503, "application/json", &"dead".into()));
    broken.store(false, Ordering::Relaxed);
    scheduler.retry(dead.id).expect("a retry");
    eventually("healthy again", || get(&scheduler, "/healthz", "*/*").code == 200);
}

#[test]
fn what_was_read_is_used_for_a_second() {
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let scheduler =
        start(&db, |builder| builder.clock(clock.clone()).handler("work", |_: &Context| Err::<(), _>("no")));
    assert_eq!(get(&scheduler, "/healthz", "*/*").code, 200);
    assert_eq!(value(&scrape(&scheduler), "duly_tasks{status=\"completed\"}"), Some(0.0));
    scheduler.add(NewTask::once("nightly", at(NOON)).handler("work").max_attempts(1)).expect("a task");
    wait_for_status(scheduler.client(), "nightly", RunStatus::Dead);
    clock.advance(Duration::from_millis(999));
    assert_eq!(get(&scheduler, "/healthz", "*/*").code, 200);
    let text = wait_for(&scheduler, "duly_runs_finished_total{handler=\"work\",outcome=\"dead\"}", 1.0);
    assert_eq!(value(&text, "duly_tasks{status=\"completed\"}"), Some(0.0), "counts are new, tables are not");
    clock.advance(Duration::from_millis(1));
    assert_eq!(get(&scheduler, "/healthz", "*/*").code, 503);
    assert_eq!(value(&scrape(&scheduler), "duly_tasks{status=\"completed\"}"), Some(1.0));
}

#[test]
fn liveness_ends_while_the_loop_is_blocked_and_when_it_has_stopped() {
    let (db, clock, gate) = (TestDb::new(), ManualClock::new(at(NOON)), Gate::default());
    let scheduler = start(&db, |builder| builder.clock(Held(clock.clone(), gate.clone())));
    let alive = |scheduler: &Scheduler| get(scheduler, "/livez", "*/*");
    assert_eq!((alive(&scheduler).code, alive(&scheduler).text), (200, "ok\n".to_owned()));
    gate.close();
    scheduler.wake();
    gate.holds_one();
    let before = scheduler.turns();
    clock.advance(seconds(30));
    assert_eq!(alive(&scheduler).code, 200);
    clock.advance(seconds(1));
    let answer = alive(&scheduler);
    assert_eq!((answer.code, &*answer.text), (503, "no turn has ended for 31s; expected one within 30s\n"));
    let health = get(&scheduler, "/healthz", "*/*");
    assert_eq!(scheduler.turns(), before);
    assert!(
        value(&scrape(&scheduler), "duly_turns_total") == Some(before as f64),
        "a scrape does not wait for the loop"
    );
    gate.open();
    assert!(health.code == 503 && health.text.contains(&answer.text), "not alive, and healthy: {}", health.text);
    eventually("it lives again", || alive(&scheduler).code == 200);
    scheduler.drain();
    eventually("it has stopped", || alive(&scheduler).text == "the scheduler has stopped\n");
    assert_eq!(alive(&scheduler).code, 503);
}
