//! Proves that tasks which are inserted by many in a statement are those that every other way adds, and that this way is taken.

use std::fmt::Debug;
use std::time::Duration;

use postgres::Client;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::new_task::NewTask;
use crate::model::request::{Change, Existing};
use crate::model::task::{Definition, Misfire, Overlap};
use crate::store::Store;
use crate::store::postgres::add::PART;
use crate::store::postgres::address::Address;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::server::CLASS;
use crate::store::postgres::testing::{AtCommit, Proxy, TestServer, shared};
use crate::store::postgres::{PostgresStore, Time};
use crate::store::sqlite::file::Missing;

const NOW: i64 = 1_805_025_600_000;
const HOUR: i64 = 3_600_000;

fn now() -> Timestamp {
    Timestamp::from_millis(NOW)
}

/// A schema, a session of another program with it, and a store.
struct Database {
    schema: String,
    other: Client,
    store: PostgresStore,
}

impl Database {
    fn new(server: &TestServer, schema: &str) -> Database {
        Database::before(server, server.port, schema)
    }

    /// A database whose store connects to this port.
    fn before(server: &TestServer, port: u16, schema: &str) -> Database {
        let address = Address::parse(&server.url_at(port)).unwrap().in_schema(schema);
        let store = PostgresStore::open(&address, Missing::Create, Time::Given).unwrap();
        let mut other = server.other();
        other.batch_execute(&format!("SET search_path = {schema}")).unwrap();
        Database { schema: schema.to_owned(), other, store }
    }

    /// The rows, with names in place of the ids of tasks: numbers that an undone transaction has taken are not given again, and the ways to
    /// add take them differently.
    fn rows(&mut self) -> Vec<String> {
        let rows = "SELECT (to_jsonb(t) - 'id')::text FROM scheduled_tasks t UNION ALL
                    SELECT (to_jsonb(e) - 'task_id' || jsonb_build_object('task', t.name))::text
                      FROM scheduler_events e LEFT JOIN scheduled_tasks t ON t.id = e.task_id
                     ORDER BY 1";
        self.other.query(rows, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    }

    fn round_trips(&mut self) -> u64 {
        self.store.bench.lock().rows.server.round_trips()
    }
}

/// A database whose tasks are added in the usual way, and one whose tasks are inserted in their own way if they can be.
struct Pair {
    usual: Database,
    one: Database,
}

impl Pair {
    fn new(server: &TestServer, name: &str) -> Pair {
        let mut usual = Database::new(server, &format!("{name}_usual"));
        usual.store.reads_all = true;
        Pair { usual, one: Database::new(server, name) }
    }

    fn execute(&mut self, statements: &str) {
        for database in [&mut self.usual, &mut self.one] {
            database.other.batch_execute(statements).unwrap();
        }
    }

    /// Does the same on both, and compares what it returns and what it leaves. Returns that, and whether it took one statement.
    fn both<T: Debug>(&mut self, f: impl Fn(&mut PostgresStore) -> Result<T>) -> (String, bool) {
        let Pair { usual, one } = self;
        one.store.adds_new = true;
        let before = one.round_trips();
        let answer = f(&mut one.store);
        // A request that is refused may take as many in the usual way.
        let alone = answer.is_ok() && one.round_trips() - before == 3;
        let found = format!("{answer:?}");
        let expected = format!("{:?}", f(&mut usual.store)).replace(&usual.schema, &one.schema);
        assert_eq!(found, expected);
        let (expected, found) = (usual.rows(), one.rows());
        assert!(expected == found, "expected {expected:#?}\nfound {found:#?}");
        (found.join("\n"), alone)
    }
}

fn definition(task: NewTask) -> Definition {
    task.into_definition(now()).unwrap()
}

/// A random definition, a few of which are refused.
fn random_task(random: &mut fastrand::Rng, name: &str) -> Definition {
    let at = |random: &mut fastrand::Rng| Timestamp::from_millis(NOW + random.i64(-HOUR..24 * HOUR));
    let kind = random.u8(..8);
    let mut task = match kind {
        0 => NewTask::cron(name, "*/5 8-18 * * mon-fri"),
        1 => NewTask::cron(name, "30 2 * * *").time_zone("Europe/Paris"),
        2 => NewTask::interval(name, Duration::from_secs(90)),
        3 => NewTask::delay(name, Duration::from_secs(600)),
        4 => NewTask::manual(name),
        5 => NewTask::cron(name, "no line"),
        _ => NewTask::once(name, at(random)),
    };
    task = task.handler(["work", "mail é", "x'y\\z"][random.usize(..3)]);
    let some = |random: &mut fastrand::Rng| random.u8(..4) == 0;
    if some(random) {
        task = task.starts_at(at(random));
    }
    if some(random) {
        task = task.ends_at(at(random));
    }
    if kind < 3 && some(random) {
        task = task.only_between("09:00-17:30").except_on("holidays é: 2027-12-24..2027-12-26");
    }
    if some(random) {
        task = task.payload(serde_json::json!({"b": [1, 2.50, "é\n"], "a": name, "n": null}));
    }
    if some(random) {
        let (overlap, misfire) = [
            (Overlap::BufferAll, Misfire::RunAll),
            (Overlap::Allow, Misfire::Skip),
            (Overlap::CancelRunning, Misfire::RunOnce),
            (Overlap::Skip, Misfire::RunAll),
        ][random.usize(..4)];
        task = task.overlap(overlap).misfire(misfire, Duration::from_secs(random.u64(..100)));
    }
    if some(random) {
        task = task.expires(Duration::from_secs(60)).jitter(Duration::from_secs(random.u64(..62)));
    }
    if some(random) {
        task = task.max_attempts(random.u32(1..9)).timeout(Duration::from_millis(random.u64(..5)));
    }
    if some(random) {
        task = task.priority(random.u8(..4)).catch_up_limit(random.u32(1..9)).pause_after_failures(3);
    }
    if some(random) {
        task = task.concurrency_key(["k", "#1"][usize::from(random.u8(..20) == 0)]).on_dead("clean");
        task = match random.usize(..3) {
            0 => task,
            1 => task.on_missed("clean"),
            _ => task.on_success("clean").on_end("x, y"),
        };
    }
    let mut task = definition(task);
    if some(random) {
        task.managed_by = Some("manifest".to_owned());
    }
    task
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn the_rows_are_those_of_every_other_way() {
    let Some(server) = shared() else { return };
    let mut pair = Pair::new(server, "add_rows");
    let mut random = fastrand::Rng::with_seed(7);
    const ADDS: usize = 400;
    let (mut by_one_statement, mut number) = (0, 0);
    for _ in 0..ADDS {
        let count = if random.bool() { 1 } else { random.usize(2..5) };
        let tasks: Vec<(Definition, Existing)> = (0..count)
            .map(|_| {
                // Some of the names are taken.
                number += usize::from(random.u8(..8) > 0);
                let existing = match random.u8(..20) {
                    0 => Existing::Replace,
                    1..10 => Existing::Keep,
                    10..15 => Existing::RefuseOtherWork,
                    _ => Existing::Refuse,
                };
                (random_task(&mut random, &format!("task-{number}")), existing)
            })
            .collect();
        let (_, alone) = match &tasks[..] {
            [(task, existing)] => pair.both(|store| store.add(task.clone(), *existing, now())),
            tasks => pair.both(|store| store.add_all(tasks.to_vec(), now())),
        };
        by_one_statement += usize::from(alone);
    }
    let rows = pair.one.rows().len();
    assert!(
        4 * by_one_statement > ADDS && 2 * rows > ADDS,
        "{by_one_statement} of {ADDS} by one statement, {rows} rows"
    );
}

#[test]
fn what_cannot_be_added_is_refused_as_in_every_other_way() {
    let Some(server) = shared() else { return };
    let mut pair = Pair::new(server, "add_refused");
    let task = |name: &str| definition(NewTask::manual(name).handler("work"));
    let (first, alone) = pair.both(|store| store.add(task("first"), Existing::Refuse, now()));
    assert!(alone, "{first}");
    let with = |change: fn(&mut Definition)| {
        let mut changed = task("changed");
        change(&mut changed);
        changed
    };
    let long: fn(&mut Definition) = |task| task.payload = format!("[{}]", vec!["1"; 200_000].join(","));
    let faulty: [fn(&mut Definition); 12] = [
        |task| (task.name, task.handler) = ("first".to_owned(), "other".to_owned()),
        |task| task.name = "a\0".to_owned(),
        |task| task.name = "no name".to_owned(),
        |task| task.handler = "a\0".to_owned(),
        |task| task.concurrency_key = Some("a\0".to_owned()),
        |task| task.managed_by = Some("a\0".to_owned()),
        |task| task.payload = r#""\u0000""#.to_owned(),
        |task| task.payload = r#""\ud800""#.to_owned(),
        |task| task.payload = "1e200000".to_owned(),
        |task| task.payload = "{".to_owned(),
        |task| task.priority = 7,
        long,
    ];
    for fault in faulty {
        let faulty = with(fault);
        for existing in [Existing::Keep, Existing::Refuse] {
            let (_, alone) = pair.both(|store| store.add(faulty.clone(), existing, now()));
            assert!(!alone, "{:?}", faulty.name);
            let (_, alone) =
                pair.both(|store| store.add_all(vec![(task("second"), existing), (faulty.clone(), existing)], now()));
            assert!(!alone, "{:?}", faulty.name);
            pair.execute("DELETE FROM scheduled_tasks WHERE name = 'second'");
        }
    }
    pair.both(|store| store.add_all(vec![(task("twice"), Existing::Refuse), (task("twice"), Existing::Refuse)], now()));
    pair.both(|store| store.add_all(Vec::new(), now()));
}

#[test]
fn other_programs_may_refuse_a_row_or_leave_it_out() {
    let Some(server) = shared() else { return };
    let mut pair = Pair::new(server, "add_triggers");
    let task = |name: &str| definition(NewTask::manual(name).handler("work"));
    for body in ["RETURN NULL", "RAISE EXCEPTION 'not here'", "PERFORM 1 / 0"] {
        pair.execute(&format!(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN IF NEW.name = 'b' THEN {body}; END IF; NEW.handler := 'changed'; RETURN NEW; END $$;
             CREATE TRIGGER no BEFORE INSERT ON scheduled_tasks FOR EACH ROW EXECUTE FUNCTION no()"
        ));
        let batch = || vec![(task("a"), Existing::Refuse), (task("b"), Existing::Refuse)];
        for tries in 0..2 {
            let (_, alone) = pair.both(|store| store.add_all(batch(), now()));
            assert!(!alone, "{body} {tries}");
        }
        let (_, alone) = pair.both(|store| store.add(task(&format!("c{}", body.len())), Existing::Refuse, now()));
        assert!(alone, "{body}");
        pair.execute("DROP FUNCTION no() CASCADE");
    }
    pair.execute("CREATE UNIQUE INDEX one_of_each ON scheduled_tasks (created_at) WHERE name >= 'd'");
    let (_, alone) = pair.both(|store| store.add(task("d"), Existing::Refuse, now()));
    assert!(alone);
    let (_, alone) = pair.both(|store| store.add(task("e"), Existing::Refuse, now()));
    assert!(!alone);
}

#[test]
fn tables_of_a_newer_version_are_left_as_they_are() {
    let Some(server) = shared() else { return };
    let mut pair = Pair::new(server, "add_newer");
    pair.execute("UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'");
    let task = || definition(NewTask::manual("one").handler("work"));
    let (rows, alone) = pair.both(|store| store.add(task(), Existing::Keep, now()));
    assert!(rows.is_empty() && !alone, "{rows}");
}

#[test]
fn adding_takes_two_round_trips_and_one_for_each_statement_and_no_lock_of_the_schema() {
    let Some(server) = shared() else { return };
    let mut database = Database::new(server, "add_beside");
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({CLASS}, 'add_beside'::regnamespace::oid::int)");
    database.other.batch_execute(&lock).unwrap();
    database.store.set_busy_timeout(Duration::from_millis(20)).unwrap();
    let task = |name: String| definition(NewTask::once(name, now()).handler("work"));
    let mut trips = Vec::new();
    for round in 0..3 {
        let before = database.round_trips();
        database.store.add(task(format!("one-{round}")), Existing::Refuse, now()).unwrap();
        let after = database.round_trips();
        let tasks = (0..100).map(|n| (task(format!("some-{round}-{n}")), Existing::Refuse));
        database.store.add_all(tasks.collect(), now()).unwrap();
        trips.push((after - before, database.round_trips() - after));
    }
    assert_eq!(trips, [(3, 2 + 100_u64.div_ceil(PART as u64)); 3]);
    let refused = database.store.add(task("one-0".to_owned()), Existing::Replace, now());
    assert!(refused.is_err(), "it waits for the lock: {refused:?}");
    database.other.batch_execute("COMMIT").unwrap();
    assert_eq!(database.rows().len(), 303);
}

#[test]
fn a_task_that_another_transaction_is_about_to_add_is_compared_with_it() {
    let Some(server) = shared() else { return };
    let mut database = Database::new(server, "add_race");
    let task = || definition(NewTask::manual("one").handler("work"));
    database.other.batch_execute("BEGIN; INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('one', 'work', 'manual', '')").unwrap();
    let mut watch = server.other();
    std::thread::scope(|threads| {
        let store = &mut database.store;
        let added = threads.spawn(move || store.add(task(), Existing::Refuse, now()));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%add%' AND state = 'active'";
        crate::waits::eventually("it waits for the other", || {
            assert!(!added.is_finished());
            watch.query_one(waits, &[]).unwrap().get::<_, i64>(0) > 0
        });
        database.other.batch_execute("COMMIT").unwrap();
        assert_eq!(added.join().unwrap().unwrap().change, Change::Unchanged);
    });
    assert_eq!(database.rows().len(), 1);
}

#[test]
fn a_lost_answer_is_asked_for() {
    let Some(server) = shared() else { return };
    let proxy = Proxy::before(server.port);
    let mut database = Database::before(server, proxy.port, "add_lost");
    let cuts = [AtCommit::CutAfter, AtCommit::CutAtOnce, AtCommit::CutBefore, AtCommit::Pass];
    for (round, cut) in cuts.into_iter().enumerate() {
        let tasks =
            (0..3).map(|n| (definition(NewTask::manual(format!("t{round}-{n}")).handler("work")), Existing::Refuse));
        proxy.at_next_commit(cut);
        let added = database.store.add_all(tasks.collect(), now()).unwrap();
        assert!(added.iter().all(|added| added.change == Change::Created), "{cut:?}: {added:?}");
    }
    assert_eq!(database.rows().len(), 12);
}

#[test]
fn what_a_wrong_clock_had_planned_is_planned_again_after_it_is_committed() {
    let Some(server) = shared() else { return };
    let mut database = Database::new(server, "add_rewound");
    let mut adding = Database::new(server, "add_rewound");
    let rewind = |store: &mut PostgresStore| {
        store.change(now(), Request::Rewind { now: NOW }, |memory, _| Store::record_clock_events(memory, &[]))
    };
    rewind(&mut database.store).unwrap();
    let begun = adding.store.bench.lock().rows.server.begin_adding();
    assert!(begun.is_some());
    database.store.set_busy_timeout(Duration::from_millis(100)).unwrap();
    let held = rewind(&mut database.store).unwrap_err();
    assert!(held.to_string().contains("lock"), "{held}");
    adding.store.end();
    rewind(&mut database.store).unwrap();
    // And none is added while it is planned.
    adding
        .other
        .batch_execute(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({CLASS} + 2, 'add_rewound'::regnamespace::oid::int)"
        ))
        .unwrap();
    adding.store.set_busy_timeout(Duration::from_millis(20)).unwrap();
    assert!(adding.store.bench.lock().rows.server.begin_adding().is_none());
}
