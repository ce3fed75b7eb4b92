//! Each operation does the same with the rows that its reach reads as with all rows, on random tables, in a constant number of
//! round trips.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use postgres::{Client, NoTls};

use crate::clock::{Now, Timestamp};
use crate::error::Result;
use crate::model::alarm::Look;
use crate::model::bulk::{BulkAction, BulkPass, BulkReport};
use crate::model::filter::Selection;
use crate::model::finished::Finished;
use crate::model::health::Limits;
use crate::model::limit::{Limit, LimitOn};
use crate::model::new_task::NewTask;
use crate::model::recorded::EventFilter;
use crate::model::report::{Pass, Pruned};
use crate::model::request::{Existing, Runs};
use crate::model::retry::RetryPolicy;
use crate::model::run::{Claim, Origin, Outcome, RunFilter, RunStatus};
use crate::model::settings::Retention;
use crate::store::Store;
use crate::store::postgres::address::Address;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::tables::TABLES;
use crate::store::postgres::{PostgresStore, Time, testing};
use crate::store::sqlite::file::Missing;
use crate::store::sqlite::finish;

pub(super) const NOW: i64 = 1_805_025_600_000;
const HANDLERS: [&str; 3] = ["alpha", "beta", "command"];
const KEYS: [&str; 3] = ["k", "limited", "wide"];

/// A schema on the server of the tests, and a session with it.
pub(super) struct Database {
    schema: String,
    pub(super) client: Client,
    pub(super) store: PostgresStore,
}

impl Database {
    /// Returns `None` without a server.
    pub(super) fn new(name: &str) -> Option<Database> {
        let shared = testing::shared();
        if testing::skipped(shared.is_none(), "PostgreSQL") {
            return None;
        }
        let server = shared?.url();
        let schema = format!("reach_{name}_{}", std::process::id());
        let mut client = Client::connect(&server, NoTls).expect("a server");
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).expect("no schema");
        let address = Address::parse(&server).expect("an address").in_schema(&schema);
        let store = PostgresStore::open(&address, Missing::Create, Time::Given).expect("a store");
        client.batch_execute(&format!("SET search_path = {schema}; SET duly.store = 'on'")).expect("the schema");
        Some(Database { schema, client, store })
    }

    /// Writes the rows of another database into this one.
    fn copy(&mut self, from: &Database) {
        for table in TABLES {
            let of = &from.schema;
            let numbered = !self.client.query("SELECT to_regclass($1)::text", &[&format!("{table}_id_seq")]).unwrap()
                [0]
            .get::<_, Option<String>>(0)
            .is_none_or(|name| name.is_empty());
            self.client
                .batch_execute(&format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM {of}.{table}"))
                .expect(table);
            if numbered {
                self.client
                    .batch_execute(&format!(
                        "SELECT setval('{table}_id_seq', last_value, is_called) FROM {of}.{table}_id_seq"
                    ))
                    .expect(table);
            }
        }
    }

    /// Returns all rows as text.
    fn rows(&mut self) -> Vec<String> {
        let mut rows = Vec::new();
        for table in TABLES {
            let statement = format!("SELECT '{table} ' || to_jsonb(t)::text FROM {table} t ORDER BY 1");
            rows.extend(self.client.query(&statement, &[]).expect(table).iter().map(|row| row.get::<_, String>(0)));
        }
        rows
    }

    fn ids(&mut self, statement: &str) -> Vec<i64> {
        self.client.query(statement, &[]).expect(statement).iter().map(|row| row.get(0)).collect()
    }

    fn names(&mut self) -> Vec<String> {
        let found = self.client.query("SELECT name FROM scheduled_tasks ORDER BY id", &[]).expect("names");
        found.iter().map(|row| row.get(0)).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema));
    }
}

/// Writes random tasks, runs, attempts, effects, limits and schedulers, also such as only another program writes.
fn populate(client: &mut Client, random: &mut fastrand::Rng, tasks: usize, runs: usize) {
    let mut statements = String::new();
    let mut add = |statement: String| {
        statements.push_str(&statement);
        statements.push_str(";\n");
    };
    let or_null = |random: &mut fastrand::Rng, text: String| if random.bool() { text } else { "NULL".to_owned() };
    for owner in 0..4 {
        let stopped = if owner == 3 { format!("{}", NOW - 5000) } else { "NULL".to_owned() };
        add(format!(
            "INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
             VALUES ('owner-{owner}', 'host', {owner}, '1', 4, 60000, {}, {}, {stopped})",
            NOW - 1_000_000,
            NOW - 1000 * owner
        ));
    }
    add("INSERT INTO concurrency_limits VALUES ('limited', 2, 3, 600000, NULL), ('wide', 40, NULL, NULL, 'manifest')"
        .to_owned());
    add("INSERT INTO rate_limits VALUES ('beta', 2, 60000, NULL)".to_owned());
    add("INSERT INTO rate_limit_starts SELECT 'handler:beta', n, 1805025570000 FROM generate_series(1, 3) n".to_owned());
    for task in 0..tasks {
        let (kind, value) = [
            ("cron", "*/5 * * * *"),
            ("interval", "15m"),
            ("delay", "10m"),
            ("once", "2027-03-14T12:00:00Z"),
            ("manual", ""),
            ("cron", "no line"),
        ][if random.u8(..10) == 0 { 5 } else { random.usize(..5) }];
        let status = ["active", "active", "active", "paused", "completed", "invalid"][random.usize(..6)];
        let planned = i64::from(random.u8(..6) > 0);
        let next = if status == "active" && kind != "manual" || random.u8(..8) == 0 {
            let at = NOW + random.i64(-20..20) * 60_000;
            or_null(random, at.to_string())
        } else {
            "NULL".to_owned()
        };
        let overlap = ["skip", "buffer_one", "buffer_all", "allow", "cancel_running"][random.usize(..5)];
        let key = random.usize(..3);
        let key = or_null(random, format!("'{}'", KEYS[key]));
        let mut follower = || {
            let names = [(); 2].map(|()| format!("task-{}", random.usize(..tasks + 1)));
            or_null(random, format!("'{}'", names[..1 + names[1].len() % 2].join(", ")))
        };
        let (on_dead, on_success, on_end, on_missed) = (follower(), follower(), follower(), follower());
        let until = (NOW - random.i64(0..40) * 60_000).to_string();
        let until = or_null(random, until);
        let expires = or_null(random, "600000".to_owned());
        let managed = ["NULL", "NULL", "'manifest'"][random.usize(..3)];
        let limited = ["NULL, 'wait'", "'2/1h', 'wait'", "'2/1h', 'skip'", "NULL, 'skip'"][random.usize(..4)];
        add(format!(
            "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, status, next_run, planned,
                resolved_until, active_since, overlap, priority, concurrency_key, on_dead, on_success, on_end, on_missed, managed_by, created_at, updated_at,
                failure_count, last_run, last_status, max_attempts, expires_ms, paused_by, max_starts, when_limited)
             VALUES ('task-{task}', '{}', '{{\"n\": {task}}}', '{kind}', '{value}', '{status}', {next}, {planned},
                {until}, {}, '{overlap}', {}, {key}, {on_dead}, {on_success}, {on_end}, {on_missed}, {managed}, {}, {}, {}, {}, 'failed', 3, {}, {}, {limited})",
            HANDLERS[random.usize(..3)],
            NOW - 4_000_000,
            random.i64(0..4),
            NOW - 5_000_000,
            NOW - random.i64(0..4_000_000),
            random.i64(0..4),
            NOW - 100_000,
            expires,
            if status == "paused" { "'user'" } else { "NULL" },
        ));
    }
    for run in 1..=runs {
        let task = 1 + random.usize(..tasks);
        let scheduled = NOW + random.i64(-60..10) * 60_000;
        let origin = ["schedule", "schedule", "manual", "catch_up", "on_dead", "on_missed"][random.usize(..6)];
        // The runs of some tasks are one queue: many of one handler and priority wait for a key that nothing holds.
        let is_queue = task <= tasks / 4;
        let status = ["queued", "queued", "failed", "running", "succeeded", "dead", "cancelled", "skipped", "missed"]
            [random.usize(..9)];
        let status = if is_queue && status == "running" { "queued" } else { status };
        let waits = status == "queued" || status == "failed";
        let blocked = ["NULL", "'key'", "'paused'", "'order'", "'starts'"][if waits { random.usize(..5) } else { 0 }];
        let blocked = if is_queue && waits { "'key'" } else { blocked };
        let (by, locked) = if status == "running" {
            (format!("'owner-{}'", random.usize(..5)), (NOW + random.i64(-2..2) * 60_000).to_string())
        } else {
            ("NULL".to_owned(), "NULL".to_owned())
        };
        let attempt = if status == "queued" { random.i64(0..2) } else { random.i64(1..4) };
        let finished = match status {
            "running" | "queued" => "NULL".to_owned(),
            _ => (NOW + random.i64(-4000..2) * 1000).to_string(),
        };
        let key = match random.u8(..4) {
            _ if is_queue => "'queue'".to_owned(),
            0 => "NULL".to_owned(),
            1 => format!("'#{task}'"),
            _ => format!("'{}'", KEYS[random.usize(..3)]),
        };
        let retry = if run > 5 && random.u8(..5) == 0 { random.usize(1..run).to_string() } else { "NULL".to_owned() };
        let request =
            if origin == "manual" && random.bool() { format!("'r{}'", random.u8(..4)) } else { "NULL".into() };
        add(format!(
            "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, retry_of, request_key, status, run_at, expires_at,
                blocked, attempt, forgiven, priority, concurrency_key, payload, locked_by, locked_until, slot, started_at,
                finished_at, duration_ms, error, cancel_requested, output)
             VALUES ({task}, '{}', {scheduled}, '{origin}', {retry}, {request}, '{status}', {}, {}, {blocked}, {attempt}, {},
                {}, {key}, {}, {by}, {locked}, {}, {}, {finished}, 5, 'text', {}, 'printed') ON CONFLICT DO NOTHING",
            HANDLERS[if is_queue { 0 } else { random.usize(..3) }],
            scheduled.min(NOW + random.i64(-5..5) * 60_000),
            or_null(random, (scheduled + 600_000).to_string()),
            random.i64(0..=attempt.min(1)),
            if is_queue { 1 } else { random.i64(0..4) },
            or_null(random, format!("'{{\"run\": {run}}}'")),
            random.i64(0..3),
            if attempt > 0 { (scheduled - 1000).to_string() } else { "NULL".to_owned() },
            i64::from(random.u8(..6) == 0),
        ));
        if random.u8(..3) == 0 {
            let outcome = ["failed", "released", "lost", "superseded"][random.usize(..4)];
            add(format!(
                "INSERT INTO task_attempts (run_id, attempt, outcome, error, locked_by, started_at, finished_at, final)
                 SELECT id, 1, '{outcome}', 'e', 'owner-0', {scheduled}, {}, {} FROM task_runs ORDER BY id DESC LIMIT 1",
                NOW - random.i64(0..100_000),
                i64::from(status == "dead")
            ));
        }
        if random.u8(..4) == 0 {
            let state = ["intent", "done"][random.usize(..2)];
            add(format!(
                "INSERT INTO task_effects (key, run_id, state, value, created_at)
                 SELECT 'e', id, '{state}', '1', {NOW} FROM task_runs ORDER BY id DESC LIMIT 1 ON CONFLICT DO NOTHING"
            ));
        }
    }
    for event in 0..6 {
        let kinds = [("owner_lost", "missed"), ("worker_ended", "caught_up"), ("edited", "skipped")];
        let ((kind, notice), owner, run) = (kinds[event % 3], event % 4, random.usize(..20));
        add(format!(
            "INSERT INTO scheduler_events (at, kind, task_id, run_id, detail)
             VALUES ({NOW} - {event}000, '{kind}', {event} + 1, NULL, 'owner-{owner}: x');
             INSERT INTO scheduler_events (at, kind, task_id, run_id, detail) SELECT {NOW} - {event}000, '{notice}', task_id, id, 'x' FROM task_runs ORDER BY id LIMIT 1 OFFSET {run}"
        ));
    }
    client.batch_execute(&statements).unwrap_or_else(|error| panic!("{error:?}\n{statements}"));
}

/// Performs an operation with all rows on one database, and with its reach on the other, and compares answers and rows.
fn compare<T: Debug>(all: &mut Database, some: &mut Database, what: &str, f: impl Fn(&mut PostgresStore) -> Result<T>) {
    all.store.reads_all = true;
    let (expected, found) = (f(&mut all.store), f(&mut some.store));
    let text = |answer: &Result<T>, schema: &str| format!("{answer:#?}").replace(schema, "SCHEMA");
    let (expected, found) = (text(&expected, &all.schema), text(&found, &some.schema));
    assert!(expected == found, "{what}\nexpected {expected}\nfound {found}");
    let (expected, found) = (all.rows(), some.rows());
    if expected != found {
        let missing: Vec<_> = expected.iter().filter(|row| !found.contains(row)).collect();
        let extra: Vec<_> = found.iter().filter(|row| !expected.contains(row)).collect();
        panic!("{what}\nexpected {missing:#?}\nfound {extra:#?}");
    }
}

/// A request that reads too little, here one that reads a run and its task, is repeated with what its rules look at.
#[test]
fn a_request_that_goes_further_than_foreseen_is_repeated_with_more_rows() {
    let Some(mut database) = Database::new("further") else { return };
    database
        .client
        .batch_execute(&format!(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, planned, concurrency_key)
             VALUES ('a', 'alpha', 'manual', '', 1, 'k');
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, blocked)
             SELECT 1, 'alpha', {NOW}, 'manual', 'queued', {NOW}, 'k', CASE WHEN n > 1 THEN 'key' END FROM generate_series(1, 3) n"
        ))
        .expect("rows");
    let mut tries = 0;
    let now = Timestamp::from_millis(NOW);
    let cancelled = database.store.change(now, Request::Gone { run: 1 }, |memory, now| {
        tries += 1;
        Store::cancel(memory, 1, now)
    });
    cancelled.expect("a cancellation");
    let rows =
        "SELECT id FROM task_runs WHERE (id = 1) = (status = 'cancelled') AND (id < 3) = (blocked IS NULL) ORDER BY id";
    assert_eq!((tries, database.ids(rows)), (2, vec![1, 2, 3]));
}

/// Performs one random operation that writes.
fn write(all: &mut Database, some: &mut Database, random: &mut fastrand::Rng, seed: &str) {
    let names = all.names();
    let name = if names.is_empty() || random.u8(..20) == 0 { "unknown" } else { &names[random.usize(..names.len())] };
    let runs = all.ids("SELECT id FROM task_runs ORDER BY id");
    let run = if runs.is_empty() || random.u8(..20) == 0 { 99_999 } else { runs[random.usize(..runs.len())] };
    let now = Timestamp::from_millis(NOW + random.i64(-60_000..600_000));
    let held = all.client.query(
        "SELECT r.id, r.attempt, coalesce(r.locked_by, 'nobody'), r.task_id FROM task_runs r
          WHERE r.id = $1 OR r.status = 'running' ORDER BY (r.id = $1)::int * $2, r.id LIMIT 1",
        &[&run, &random.i32(-1..2)],
    );
    let held = held.expect("a run");
    let claim = held.first().map(|row| claim(row.get(0), row.get::<_, i64>(1) as u32, row.get(3)));
    let owner: String = held.first().map_or("nobody".to_owned(), |row| row.get(2));
    let existing = [Existing::Keep, Existing::Replace, Existing::Refuse][random.usize(..3)];
    let value = random.u8(1..60);
    let task = |name: &str| {
        let task = NewTask::cron(name, format!("{value} * * * *")).handler("alpha").concurrency_key("k");
        task.into_definition(now).expect("a definition")
    };
    let what = |operation: &str| format!("{seed}: {operation}: task {name}, run {run}, at {now}");
    match random.u8(..19) {
        0 => compare(all, some, &what("trigger"), |store| store.trigger(name, None, None, now)),
        1 => compare(all, some, &what("trigger with key"), |store| store.trigger(name, Some("[1]"), Some("r1"), now)),
        2..=4 => compare(all, some, &what("cancel"), |store| store.cancel(run, now)),
        5 | 6 => compare(all, some, &what("retry"), |store| store.retry(run, now)),
        7 => compare(all, some, &what("pause"), |store| store.pause(name, now)),
        8 => compare(all, some, &what("resume"), |store| store.resume(name, now)),
        9 => compare(all, some, &what("remove"), |store| store.remove(name, now)),
        10 => compare(all, some, &what("add"), |store| store.add(task(name), existing, now)),
        11 => compare(all, some, &what("add all"), |store| {
            store.add_all(vec![(task("new"), Existing::Keep), (task(name), existing)], now)
        }),
        12 => compare(all, some, &what("gone"), |store| store.declare_gone(Runs::One(run), now)),
        13 => compare(all, some, &what("all gone"), |store| store.declare_gone(Runs::OfTask(name), now)),
        14 => {
            let limit =
                Limit::key(KEYS[random.usize(..3)], 2).with_rate(u32::from(value % 4 + 1), Duration::from_secs(9));
            compare(all, some, &what("set a limit"), |store| store.set_limit(&limit));
        }
        15 => {
            let on = if random.bool() { LimitOn::Key("limited".into()) } else { LimitOn::Handler("beta".into()) };
            compare(all, some, &what("remove a limit"), |store| store.remove_limit(&on));
        }
        16 => {
            let (action, status) = [
                (BulkAction::Cancel, None),
                (BulkAction::Retry, Some("dead")),
                (BulkAction::Pause, Some("active")),
                (BulkAction::Resume, Some("paused")),
                (BulkAction::Remove, None),
            ][random.usize(..5)];
            let mut ago = |millis| random.bool().then(|| Timestamp::from_millis(NOW - millis));
            let (before, since) = (ago(600_000), ago(900_000));
            let task = (action == BulkAction::Cancel && random.bool()).then(|| random.i64(1..9));
            let name = task.is_none().then(|| format!("task-{}*", random.u8(1..9)).into());
            let (error, actor) = (random.bool().then(|| "tex".to_owned()), random.bool().then_some("page"));
            let selection = Selection { name, status, before, since, error, task, actor, ..Selection::all(action) };
            let started = (BulkPass::default(), BulkReport::default());
            compare(all, some, &what(&format!("count {selection:?}")), |store| {
                let (mut pass, mut report) = started.clone();
                while !pass.is_over() {
                    store.count_matching(&selection, &mut pass, &mut report)?;
                }
                Ok(report)
            });
            compare(all, some, &what(&format!("change {selection:?}")), |store| {
                let ((mut pass, mut report), mut events) = (started.clone(), Vec::new());
                while !pass.is_over() {
                    events.extend(store.change_matching(&selection, &mut pass, &mut report, now)?);
                }
                Ok((events, report))
            });
        }
        17 => {
            let Some(claim) = claim else { return };
            compare(all, some, &what("begin an effect"), |store| store.begin_effect(&owner, &claim, "e", now));
            compare(all, some, &what("check a claim"), |store| store.check_claim(&owner, &claim));
            compare(all, some, &what("undo an effect"), |store| store.undo_effect(&owner, &claim, "e"));
            compare(all, some, &what("record an effect"), |store| store.record_effect(&claim, "e", "[2]", now));
        }
        _ => {
            let Some(claim) = claim else { return };
            compare(all, some, &what("finish"), |store| finish(store, &owner, &claim, now));
            compare(all, some, &what("stop"), |store| store.stop("owner-1", now));
        }
    }
}

/// Returns a retention by which some of the random runs have expired.
fn retention(random: &mut fastrand::Rng) -> Retention {
    let mut minutes = || Duration::from_secs(60 * random.u64(0..70));
    let (once, runs, events) = (minutes(), minutes(), minutes());
    Retention { once, runs, events, least_runs: random.u32(0..4), most_runs: random.u32(1..12) }
}

/// Performs each look-up.
fn read(all: &mut Database, some: &mut Database, random: &mut fastrand::Rng, seed: &str) {
    let (names, runs) = (all.names(), all.ids("SELECT id FROM task_runs ORDER BY id"));
    let name = if names.is_empty() { "unknown" } else { &names[random.usize(..names.len())] };
    let run = if runs.is_empty() { 1 } else { runs[random.usize(..runs.len())] };
    let now = Timestamp::from_millis(NOW + random.i64(-60_000..600_000));
    let what = |operation: &str| format!("{seed}: {operation}: task {name}, run {run}, at {now}");
    compare(all, some, &what("task"), |store| store.task(name));
    compare(all, some, &what("tasks"), |store| store.tasks());
    compare(all, some, &what("names"), |store| store.names());
    let limit = random.usize(1..5);
    compare(all, some, &what("last runs"), |store| store.recent(limit));
    compare(all, some, &what("run"), |store| store.run(run));
    let status = [None, Some(RunStatus::Queued), Some(RunStatus::Dead)][random.usize(..3)];
    let filter = RunFilter { task: None, status, since: None, before: Some(run), limit: random.usize(1..20) };
    compare(all, some, &what("runs"), |store| store.runs(&filter));
    let filter = filter.of(name).since(Timestamp::from_millis(NOW - 1_000_000));
    compare(all, some, &what("runs of a task"), |store| store.runs(&filter));
    compare(all, some, &what("attempts"), |store| store.attempts(run));
    compare(all, some, &what("effects"), |store| store.effects(run, now));
    let handlers = BTreeSet::from([HANDLERS[random.usize(..3)].to_owned()]);
    compare(all, some, &what("is idle"), |store| store.is_idle(&handlers, now));
    compare(all, some, &what("status"), |store| store.status(now));
    compare(all, some, &what("limits"), |store| store.limits(now));
    let limits = Limits { caught_up: random.bool(), ..Limits::default() };
    compare(all, some, &what("health"), |store| store.health(&limits, now));
    let keep = retention(random);
    compare(all, some, &what(&format!("count what {keep:?} deletes")), |store| {
        let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
        let newest = store.would_prune(&keep, &mut pass, &mut pruned, now)?;
        Ok((newest, pass, pruned))
    });
    let events = EventFilter { kind: None, task: None, before: None, limit: random.usize(1..9) };
    compare(all, some, &what("events"), |store| store.events(&events));
    let events = EventFilter { kind: Some("edited".into()), task: Some(name.to_owned()), ..events };
    compare(all, some, &what("events of a task"), |store| store.events(&events));
    let early = Timestamp::from_millis(NOW - random.i64(0..6_000_000));
    compare(all, some, &what("beyond"), |store| store.counted_beyond(early));
    compare(all, some, &what("owners"), |store| {
        let known = store.known_owners()?;
        Ok((known.not_ended.into_iter().collect::<BTreeSet<_>>(), known.running.into_iter().collect::<BTreeSet<_>>()))
    });
    compare(all, some, &what("claimed"), |store| Ok(store.claimed_by("owner-1")?.into_iter().collect::<BTreeSet<_>>()));
    let look = Look {
        channels: &["one", "two"],
        at: now,
        since: early,
        conditions: Vec::new(),
        complete: Vec::new(),
        caught_up: random.bool(),
        outage: None,
    };
    compare(all, some, &what("alarms"), |store| store.update_alarms(&look, now));
    #[cfg(feature = "page")]
    read_pages(all, some, random, (name, run, now), seed);
}

#[cfg(feature = "page")]
fn read_pages(
    all: &mut Database,
    some: &mut Database,
    random: &mut fastrand::Rng,
    (name, run, now): (&str, i64, Timestamp),
    seed: &str,
) {
    use crate::model::task_pages::{RunQuery, TaskQuery};
    use crate::model::views::Window;
    let what = |operation: &str| format!("{seed}: {operation}: task {name}, run {run}, at {now}");
    compare(all, some, &what("schedulers"), |store| store.schedulers());
    compare(all, some, &what("queue"), |store| store.queue(now));
    compare(all, some, &what("page of a run"), |store| store.run_view(run, now));
    let query = RunQuery::random(random, Timestamp::from_millis(NOW));
    compare(all, some, &what(&format!("{query:?}")), |store| store.run_page(&query));
    let query = TaskQuery::random(random, name);
    compare(all, some, &what(&format!("{query:?}")), |store| store.task_page(&query));
    let until = NOW + random.i64(-20..10) * 60_000;
    let window = Window {
        from: Timestamp::from_millis(until - random.i64(1..30) * 60_000),
        until: Timestamp::from_millis(until),
        pattern: random.bool().then(|| "task-?".into()),
        after: random.bool().then(|| name.to_owned()),
        lanes: random.usize(1..6),
        runs: random.usize(1..6),
        part: Duration::from_secs(random.u64(1..200)),
        counted: if random.bool() { random.usize(1..20) } else { 1000 },
        // The server reads those of the lanes alone: a smaller limit is another one.
        dead: 1000,
    };
    compare(all, some, &what(&format!("{window:?}")), |store| store.timeline(&window, now));
}

fn claim(run_id: i64, attempt: u32, task_id: i64) -> Claim {
    Claim {
        run_id,
        attempt,
        task: "task".into(),
        handler: "alpha".into(),
        payload: "null".into(),
        task_payload: None,
        scheduled_for: Timestamp::from_millis(NOW),
        origin: Origin::Manual,
        claimed_at: Timestamp::from_millis(NOW),
        timeout: None,
        task_id,
        forgiven: 0,
        interrupted: 0,
        retry: RetryPolicy::default(),
        concurrency_key: Some("k".into()),
        first: None,
        recurring: true,
        read_ahead: false,
        begins_by: None,
        owner: None,
    }
}

/// Ends a run as succeeded.
fn finish(store: &mut PostgresStore, owner: &str, claim: &Claim, now: Timestamp) -> Result<String> {
    let reach = Request::Finish { run: claim.run_id, key: claim.concurrency_key.clone() };
    store.change(now, reach, |memory, now| {
        let at = Now { wall: now, monotonic: Duration::ZERO };
        let finished = Finished::new(Arc::new(claim.clone()), Outcome::Succeeded { result: None }, at, at);
        let done = finish::finish(memory, owner, claim, |_| Ok(finished));
        Ok(format!("{:?}", done.map_err(|error| error.to_string())))
    })
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn an_operation_needs_no_row_that_its_reach_leaves_out() {
    let cases = std::env::var("DULY_REACH_CASES").map_or(1, |cases| cases.parse().expect("a number"));
    let first = std::env::var("DULY_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    for seed in first..first + cases {
        let mut random = fastrand::Rng::with_seed(seed);
        let (Some(mut all), Some(mut some)) = (Database::new("all"), Database::new("some")) else { return };
        populate(&mut all.client, &mut random, 12, 150);
        some.copy(&all);
        let seed = format!("DULY_SEED={seed} DULY_REACH_CASES=1");
        for step in 0..60 {
            let step = format!("{seed}, step {step}");
            write(&mut all, &mut some, &mut random, &step);
            if random.u8(..3) == 0 {
                read(&mut all, &mut some, &mut random, &step);
            }
        }
        let (keep, now) = (retention(&mut random), Timestamp::from_millis(NOW));
        compare(&mut all, &mut some, &format!("{seed}: prune by {keep:?}"), |store| {
            let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
            let newest = store.prune(&keep, &mut pass, &mut pruned, now)?;
            Ok((newest, pass, pruned))
        });
    }
}

/// Returns the round trips of an operation, the second time.
fn trips<T: Debug>(database: &mut Database, f: impl Fn(&mut PostgresStore) -> Result<T>) -> u64 {
    let before = database.store.bench.lock().rows.server.round_trips();
    let _ = f(&mut database.store);
    database.store.bench.lock().rows.server.round_trips() - before
}

#[test]
fn an_operation_takes_as_many_round_trips_for_any_number_of_rows() {
    let mut counted = Vec::new();
    // Of a task with more runs, a removal deletes a part.
    for runs in [10, 700] {
        let Some(mut database) = Database::new("trips") else { return };
        populate_alike(&mut database.client, runs);
        let now = Timestamp::from_millis(NOW);
        let handlers: BTreeSet<String> = HANDLERS.iter().map(|&one| one.to_owned()).collect();
        counted.push([
            ("trigger", trips(&mut database, |store| store.trigger("task-0", None, None, now))),
            ("cancel", trips(&mut database, |store| store.cancel(3, now))),
            ("pause", trips(&mut database, |store| store.pause("task-0", now))),
            ("resume", trips(&mut database, |store| store.resume("task-0", now))),
            ("retry", trips(&mut database, |store| store.retry(3, now))),
            ("task", trips(&mut database, |store| store.task("task-0"))),
            ("run", trips(&mut database, |store| store.run(3))),
            ("status", trips(&mut database, |store| store.status(now))),
            ("is idle", trips(&mut database, |store| store.is_idle(&handlers, now))),
            ("remove", trips(&mut database, |store| store.remove("task-0", now))),
        ]);
    }
    assert_eq!(counted[0], counted[1]);
    assert!(counted[0].iter().all(|(_, trips)| *trips < 25), "{:?}", counted[0]);
}

/// Writes runs of one task that wait for one key.
fn populate_alike(client: &mut Client, runs: i64) {
    let rows = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, planned, next_run, concurrency_key)
         SELECT 'task-' || n, 'alpha', 'interval', '1h', 1, {NOW} + 60000, 'k' FROM generate_series(0, 20) n;
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, blocked, concurrency_key, priority)
         SELECT 1 + (n % 3) / 2, 'alpha', {NOW} - n, 'manual', 'queued', {NOW}, CASE WHEN n > 1 THEN 'key' END, 'k', n % 4 FROM generate_series(1, {runs}) n;"
    );
    client.batch_execute(&rows).expect("rows");
}
