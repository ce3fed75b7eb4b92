//! Proves that a turn with the rows of its reach does what a turn with all rows does, that its number of round trips does not depend
//! on how much it does, and that its statements go along indexes of large tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postgres::Client;

use crate::clock::{Now, Timestamp};
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::model::settings::Retention;
use crate::rules::retention_timer::Part;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::postgres::address::Address;
use crate::store::postgres::plain::{END, WRITE};
use crate::store::postgres::reach::TURN;
use crate::store::postgres::testing::TestServer;
use crate::store::postgres::{PostgresStore, Time};
use crate::store::sqlite::file::Missing;
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::{Dead, Done, MAX_ITEMS, Proof, Registration, Slots, Work};

pub(crate) const NOON: i64 = 1_805_025_600_000;

/// A scheduler that is driven by hand.
pub(crate) struct Owner {
    pub(crate) store: PostgresStore,
    pub(crate) registration: Registration,
    pub(crate) claimed: Vec<Arc<Claim>>,
}

fn handlers() -> BTreeSet<String> {
    ["work", "mail", "slow"].map(str::to_owned).into()
}

/// What varies from turn to turn.
#[derive(Default)]
pub(crate) struct Turn<'a> {
    pub(crate) now: i64,
    pub(crate) finished: &'a [Finished],
    pub(crate) dead: &'a [Dead],
    pub(crate) full: bool,
    pub(crate) room: usize,
    pub(crate) prune: Option<Part>,
    /// What the clock had shown, far ahead.
    pub(crate) rewind: Option<i64>,
}

impl Owner {
    pub(crate) fn new(server: &TestServer, name: &str, rehearses: bool) -> Self {
        let address = Address::parse(&server.url()).expect("an address");
        let mut store = PostgresStore::open(&address, Missing::Create, Time::Given).expect("a store");
        store.rehearses = rehearses;
        let registration = Registration {
            owner: name.to_owned(),
            host: "here".to_owned(),
            workers: 4,
            lease: Duration::from_secs(60),
            zone_data: String::new(),
            problems: None,
        };
        store
            .register(&registration, fastrand::Rng::with_seed(7), Timestamp::from_millis(NOON))
            .expect("a registration");
        Owner { store, registration, claimed: Vec::new() }
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.store.bench.lock().rows.server.round_trips()
    }

    /// Takes a turn, and the look after it.
    pub(crate) fn turn(&mut self, turn: &Turn<'_>) -> Done {
        let done = self.try_turn(turn).expect("a turn");
        let (handlers, now) = (handlers(), Timestamp::from_millis(turn.now));
        let seen = self.store.look(&self.registration.owner, &handlers, None, now);
        let seen = seen.expect("a look").expect("it reads everything");
        if !done.look_follows {
            return done;
        }
        let more_due = done.more_due || seen.more_due || seen.next_due.is_some_and(|at| at <= now);
        let Done { claims, events, deferred, damaged, decided_at, .. } = done;
        Done { claims, events, deferred, damaged, decided_at, more_due, ..seen }
    }

    pub(crate) fn try_turn(&mut self, turn: &Turn<'_>) -> Result<Done, Fault> {
        let (handlers, now) = (handlers(), Timestamp::from_millis(turn.now));
        let work = Work {
            seen: None,
            now,
            monotonic: Duration::ZERO,
            halted: None,
            owner: &self.registration.owner,
            registration: &self.registration,
            handlers: &handlers,
            until: now + Duration::from_secs(60),
            finished: turn.finished,
            reports: &[],
            ended: &[],
            dead: turn.dead,
            claimed: &BTreeMap::new(),
            former: &[],
            strays: &[],
            stalled: &[],
            database: Path::new("none.db"),
            doubts: &HashMap::new(),
            doubted: &HashSet::new(),
            rewind: turn.rewind.map(Timestamp::from_millis),
            stepped: turn.rewind.map_or(0, |believed| turn.now - believed),
            clock_events: &[],
            newer: false,
            draining: false,
            full: turn.full,
            slots: Slots { room: turn.room, idle: turn.room / 2 + 1 },
            prune: turn.prune,
            most: MAX_ITEMS,
            derived: MAX_ITEMS / 2,
            ahead: 32,
        };
        let done = self.store.turn(&work)?;
        self.claimed.extend(done.claims.iter().cloned());
        Ok(done)
    }

    /// Ends the claimed runs, each with one of these outcomes.
    pub(crate) fn ended(&mut self, now: i64, mut outcome: impl FnMut() -> Option<Outcome>) -> Vec<Finished> {
        let now = Now { wall: Timestamp::from_millis(now), monotonic: Duration::ZERO };
        let mut ended = Vec::new();
        for claim in std::mem::take(&mut self.claimed) {
            match outcome() {
                Some(outcome) => ended.push(Finished::new(claim, outcome, now, now)),
                None => self.claimed.push(claim),
            }
        }
        ended
    }
}

/// A server, a scheduler, and another program's session.
pub(crate) fn stage() -> Option<(TestServer, Owner, Client)> {
    let server = TestServer::start("")?;
    let (owner, other) = (Owner::new(&server, "one", false), other(&server));
    Some((server, owner, other))
}

/// Another program's session.
pub(crate) fn other(server: &TestServer) -> Client {
    let mut other = server.other();
    other.batch_execute("SET search_path = duly, pg_temp").expect("a path");
    other
}

fn pick<T: Copy>(random: &mut fastrand::Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// A random task. Its schedules fall due within minutes.
pub(crate) fn task(random: &mut fastrand::Rng, number: usize, now: i64) -> String {
    let kind = pick(random, &["once", "once", "interval", "interval", "cron", "delay", "manual"]);
    let value = match kind {
        "once" => Timestamp::from_millis(now + random.i64(-60_000..180_000)).to_string(),
        "interval" => pick(random, &["1s", "20s", "1m", "broken"]).to_owned(),
        "cron" => pick(random, &["* * * * *", "*/2 * * * *"]).to_owned(),
        "delay" => pick(random, &["1s", "1m"]).to_owned(),
        _ => String::new(),
    };
    let overlap = pick(random, &["skip", "skip", "buffer_one", "buffer_all", "allow", "cancel_running"]);
    let misfire = pick(random, &["run_once", "skip", if overlap == "allow" { "run_all" } else { "run_once" }]);
    let key = pick(random, &["NULL", "NULL", "NULL", "'one'", "'two'", "'three'"]);
    let mut follower = |of: u8| match random.u8(..of) {
        0 => format!("'t{}'", random.usize(..number + 1)),
        1 => format!("'t{}, t{}'", random.usize(..number + 1), random.usize(..number + 1)),
        _ => "NULL".to_owned(),
    };
    let (dead, success, end, missed) = (follower(5), follower(12), follower(12), follower(5));
    let pause = if kind != "once" && random.u8(..5) == 0 { "2" } else { "NULL" };
    let (priority, attempts, expires) =
        (random.u8(..4), 1 + random.u8(..3), pick(random, &["NULL", "NULL", "1000", "60000"]));
    let handler = pick(random, &["work", "mail", "slow", "nowhere"]);
    let has_occurrences = ["cron", "interval", "calendar"].contains(&kind);
    let between = if has_occurrences && random.u8(..4) == 0 { "'11:00-12:02, 12:05-13:00'" } else { "NULL" };
    // Of a crowd that waits for a start, more would expire or be paused together than a turn has read to spare.
    let starts = pick(random, &["NULL", "NULL", "NULL", "'1/40s'", "'2/1m'"]);
    let starts = if expires == "NULL" && overlap != "allow" && overlap != "buffer_all" { starts } else { "NULL" };
    let when = pick(random, &["wait", "wait", "skip"]);
    format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, overlap, misfire, misfire_grace_ms, priority,
                                      concurrency_key, on_dead, on_success, on_end, on_missed, pause_after_failures,
                                      max_attempts, backoff_ms, expires_ms, created_at, active_since, only_between, max_starts, when_limited)
         VALUES ('t{number}', '{handler}', '{kind}', '{value}', '{overlap}', '{misfire}', 30000, {priority}, {key}, {dead}, {success},
                 {end}, {missed}, {pause},
                 {attempts}, 5000, {expires}, {now}, {now}, {between}, {starts}, '{when}')"
    )
}

/// A random write of another program.
pub(crate) fn edit(random: &mut fastrand::Rng, tasks: usize, now: i64) -> String {
    let of = format!("name = 't{}'", random.usize(..tasks));
    let run = format!("(SELECT id FROM task_runs ORDER BY md5(id || '-{}') LIMIT 1)", random.u32(..));
    match random.u8(..17) {
        0 => format!("UPDATE scheduled_tasks SET status = 'paused' WHERE {of}"),
        1 | 2 => format!("UPDATE scheduled_tasks SET status = 'active' WHERE {of}"),
        3 | 4 => format!("UPDATE scheduled_tasks SET next_run = {now} WHERE {of} AND status <> 'invalid'"),
        5 => format!("UPDATE scheduled_tasks SET priority = {} WHERE {of}", random.u8(..4)),
        6 => format!("UPDATE scheduled_tasks SET overlap = 'buffer_one', misfire = 'run_once' WHERE {of}"),
        7 => format!("UPDATE scheduled_tasks SET concurrency_key = 'two' WHERE {of}"),
        8 => format!("UPDATE task_runs SET cancel_requested = 1 WHERE id = {run}"),
        9 => {
            let most = 1 + random.u8(..4);
            format!(
                "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('one', {most})
                 ON CONFLICT (concurrency_key) DO UPDATE SET max_running = {most}"
            )
        }
        10 => "DELETE FROM concurrency_limits".to_owned(),
        11 => {
            let most = 1 + random.u8(..5);
            format!(
                "INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('mail', {most}, 30000)
                 ON CONFLICT (handler) DO UPDATE SET max_starts = {most}"
            )
        }
        12 => {
            let most = 1 + random.u8(..4);
            format!(
                "INSERT INTO concurrency_limits (concurrency_key, max_running, max_starts, per_ms) VALUES ('two', 2, {most}, 40000)
                 ON CONFLICT (concurrency_key) DO UPDATE SET max_starts = {most}, per_ms = 40000"
            )
        }
        13 => format!(
            "UPDATE scheduled_tasks SET max_starts = '{}/40s' WHERE {of} AND expires_ms IS NULL AND overlap NOT IN ('allow', 'buffer_all')",
            1 + random.u8(..3)
        ),
        14 => format!("UPDATE scheduled_tasks SET max_starts = NULL, when_limited = 'skip' WHERE {of}"),
        15 => "UPDATE task_runs SET blocked = 'paused' WHERE status = 'queued' AND id % 5 = 0".to_owned(),
        _ => format!("UPDATE scheduled_tasks SET schedule_value = '30s' WHERE {of} AND schedule_type = 'interval'"),
    }
}

pub(crate) fn outcome(random: &mut fastrand::Rng) -> Option<Outcome> {
    let retry = |retry| Some(Outcome::Failed { how: FailureKind::Failed, error: "no".to_owned(), retry });
    match random.u8(..12) {
        0..=3 => Some(Outcome::succeeded()),
        4 => Some(Outcome::Succeeded { result: Some("{\"a\": 1}".to_owned()) }),
        5 => retry(Retry::Backoff),
        6 => retry(Retry::GiveUp),
        7 => retry(pick(random, &[Retry::Cancel, Retry::Interrupted, Retry::Snooze(Duration::from_secs(3))])),
        8 => Some(Outcome::Released),
        _ => None,
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn a_turn_with_the_rows_of_its_reach_does_what_a_turn_with_all_rows_does() {
    let Some(server) = TestServer::start("") else { return };
    let seeds = std::env::var("DULY_SEEDS").map_or(1, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        let _ = server.other().batch_execute("DROP SCHEMA IF EXISTS duly CASCADE");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut owners = ["one", "two"].map(|name| Owner::new(&server, name, true));
        let mut other = other(&server);
        let (mut now, mut tasks, mut ahead) = (NOON, 0, 0);
        for _ in 0..120 {
            now += random.i64(0..20_000);
            for _ in 0..random.usize(..4) {
                tasks += usize::from(other.batch_execute(&task(&mut random, tasks, now)).is_ok());
            }
            for _ in 0..random.usize(..3) {
                // Some edits break a rule of the tables.
                let _ = other.batch_execute(&edit(&mut random, tasks.max(1), now));
            }
            if random.u8(..3) == 0 {
                // Some runs of one task, which wait for each other. Some tasks are not active.
                let name = format!("t{}", random.usize(..tasks.max(1)));
                for _ in 0..random.usize(1..5) {
                    let _ = owners[0].store.trigger(&name, None, None, Timestamp::from_millis(now));
                }
            }
            let owner = random.usize(..2);
            let dies = random.u8(..12) == 0;
            if dies {
                // As its process would: a session that holds its lock is alive.
                owners[1 - owner].store.session = None;
            }
            let other = owners[1 - owner].registration.owner.clone();
            let gone = Dead { owner: other, proof: Proof::Lock(None), dead_for: Duration::ZERO };
            let finished = owners[owner].ended(now, || outcome(&mut random));
            // A clock that is far ahead for some turns.
            let was_ahead = ahead > 0 && random.u8(..4) == 0;
            let believed = now;
            if was_ahead {
                now -= std::mem::take(&mut ahead) - random.i64(0..60_000);
            } else if ahead == 0 && random.u8(..20) == 0 {
                ahead = random.i64(1..4) * 86_400_000;
                now += ahead;
            }
            let turn = Turn {
                now,
                finished: &finished,
                dead: if dies { std::slice::from_ref(&gone) } else { &[] },
                full: was_ahead || random.u8(..3) == 0,
                room: random.usize(..6),
                prune: None,
                rewind: was_ahead.then_some(believed),
            };
            owners[owner].turn(&turn);
        }
    }
}

#[test]
fn the_round_trips_of_a_turn_do_not_depend_on_how_much_it_does() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let mut now = NOON;
    let mut trips = |owner: &mut Owner, finished: &[Finished], part: Option<Part>| {
        now += 1000;
        let before = owner.round_trips();
        let done = owner.turn(&Turn { now, finished, full: true, room: 500, prune: part, ..Turn::default() });
        // Without the look after it.
        (owner.round_trips() - before - 1, done.claims.len() + finished.len())
    };
    let idle = Part { keep: Retention::default(), if_idle: true };
    let mut counted = vec![trips(&mut owner, &[], None), trips(&mut owner, &[], Some(idle))];
    for tasks in [1, 300, 300, 300] {
        let text = format!(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
             SELECT 't{turn}.' || i, 'work', 'interval', '1h', {NOON}, 1 FROM generate_series(1, {tasks}) i",
            turn = counted.len()
        );
        other.batch_execute(&text).expect("tasks");
        let mut random = fastrand::Rng::with_seed(1);
        // Some of those that fail in the first turn wait again in the last.
        let finished = owner.ended(NOON, || Some(outcome(&mut random).unwrap_or_else(Outcome::succeeded)));
        counted.push(trips(&mut owner, &finished, None));
    }
    eprintln!("round trips and items: {counted:?}");
    assert!(counted.iter().any(|(_, items)| *items >= 400), "{counted:?}");
    assert!(counted.iter().all(|(trips, _)| *trips <= 12), "{counted:?}");
    let most = |least: usize| counted.iter().filter(|(_, items)| *items >= least).map(|(trips, _)| *trips).max();
    assert!(most(0) <= Some(12) && most(250) <= Some(8), "{counted:?}");
}

#[test]
fn a_turn_that_starts_an_occurrence_writes_its_task_and_its_run_together() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    other
        .batch_execute(&format!(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, overlap, expires_ms, next_run, planned, created_at)
             VALUES ('tick', 'work', 'interval', '1h', 'allow', 60000, {NOON}, 1, {NOON})"
        ))
        .expect("a task");
    let mut tick = |hour: i64| {
        let before = owner.round_trips();
        let done = owner.try_turn(&Turn { now: NOON + hour * 3_600_000, room: 5, ..Turn::default() }).expect("a turn");
        assert_eq!(done.claims.len(), 1);
        owner.round_trips() - before
    };
    // Some turns are first tried as plain. The others: begin, two for the rows, one that writes, one that looks ahead, commit.
    let counted: Vec<u64> = (0..6).map(&mut tick).collect();
    assert_eq!(counted.iter().min(), Some(&6), "{counted:?}");
}

/// As many rows as make a scan of a table dearer than its indexes.
const LARGE: &str = "
    SET duly.store = 'on';
    INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, next_run, planned, concurrency_key)
    SELECT 't' || i, 'work', 'interval', '1h', CASE WHEN i % 10 < 7 THEN 'completed' ELSE 'active' END,
           CASE WHEN i % 10 >= 7 AND i % 100 <> 99 THEN 1805025600000 + i * 1000 END, 1, CASE WHEN i % 50 = 0 THEN 'shared' END
      FROM generate_series(1, 10000) i;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, finished_at,
                           locked_by, locked_until, blocked)
    SELECT 1 + i % 10000, 'work', 1805025600000 - i * 1000, 'schedule', s, 1805025600000 - i * 1000,
           CASE WHEN s = 'queued' THEN 0 ELSE 1 END, CASE WHEN b = 'key' THEN 'shared' END,
           CASE WHEN s = 'succeeded' THEN 1805025600000 END, CASE WHEN s = 'running' THEN 'one' END,
           CASE WHEN s = 'running' THEN 1805025700000 END, b
      FROM (SELECT i, CASE WHEN i < 200 THEN 'running' WHEN i < 5000 THEN 'queued' ELSE 'succeeded' END AS s,
                   CASE WHEN i >= 1000 AND i < 3000 THEN 'key' END AS b FROM generate_series(1, 100000) i) AS runs;
    ANALYZE";

#[test]
fn the_statements_of_a_turn_go_along_indexes() {
    let Some(server) = TestServer::start("") else { return };
    drop(Owner::new(&server, "one", false));
    let mut other = other(&server);
    other.batch_execute(LARGE).expect("rows");
    other.batch_execute("SET plan_cache_mode = force_generic_plan; SET jit = off").expect("settings");
    let types = "bigint, text, text[], bigint[], text[], boolean, bigint, bigint, bigint, bigint, boolean, text, bigint, bigint, \
                 bigint, bigint, bigint, bigint[], text[], bigint, text[]";
    other.batch_execute(&format!("PREPARE turn ({types}) AS {TURN}")).expect("a statement");
    let call = "EXECUTE turn (1805025600000, 'one', '{work}', '{1,2,3}', '{}', true, 501, 501, 450, 50, true, '', 0, 500, 0, 500, 50, \
                '{}', '{}', 251, '{}')";
    let look = sql!(file "look_ahead.sql");
    other.batch_execute(&format!("PREPARE look (text, text[], bigint) AS {look}")).expect("a statement");
    for call in [call, "EXECUTE look ('one', '{work}', NULL)"] {
        let plan = other.simple_query(&format!("EXPLAIN {call}")).expect("a plan");
        let lines = plan.iter().filter_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let plan: Vec<String> = lines.collect();
        let large = ["task_runs", "scheduled_tasks", "task_attempts"].map(|table| format!("Seq Scan on {table}"));
        let scanned: Vec<&String> = plan.iter().filter(|line| large.iter().any(|scan| line.contains(scan))).collect();
        assert!(scanned.is_empty(), "{scanned:?}\n{}", plan.join("\n"));
    }
}

/// With few rows, to look through all of them for each one would be cheaper, and a session keeps the plan when there are many.
#[test]
fn rows_are_written_where_they_were_read_however_small_the_tables_are() {
    let Some((_server, _owner, mut other)) = stage() else { return };
    other.batch_execute("INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('t', 'work', 'manual', '')").expect("a task");
    let settings = "ANALYZE; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; \
                    SET enable_mergejoin = off";
    other.batch_execute(settings).expect("settings");
    for (name, text, params, places) in [("write", WRITE, 23, 2), ("finish", END, 8, 1)] {
        other.batch_execute(&format!("PREPARE {name} AS {text}")).expect("a statement");
        let nulls = vec!["NULL"; params].join(", ");
        let rows = other.query(&format!("EXPLAIN EXECUTE {name} ({nulls})"), &[]).expect("a plan");
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let found = plan.iter().filter(|line| line.contains("TID Cond: (ctid = ")).count();
        assert_eq!(found, places, "{name}:\n{}", plan.join("\n"));
    }
}

/// A trigger refuses the deletion of every run, as a revoked privilege does.
const KEEP_RUNS: &str = "
    CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no run is deleted' USING ERRCODE = 'insufficient_privilege'; END $$;
    CREATE TRIGGER keep BEFORE DELETE ON task_runs FOR EACH ROW EXECUTE FUNCTION keep()";

#[test]
fn a_fault_of_retention_discards_nothing_else() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let tasks = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                 VALUES ('often', 'work', 'interval', '1m'), ('last', 'mail', 'interval', '1h')";
    other.batch_execute(tasks).expect("tasks");
    other.batch_execute(KEEP_RUNS).expect("a trigger");
    let keep = Retention { runs: Duration::ZERO, least_runs: 0, most_runs: 1, ..Retention::default() };
    let (mut now, mut all) = (NOON, 0);
    for if_idle in [true, false] {
        for _ in 0..3 {
            now += 3_600_000;
            owner.turn(&Turn { now, full: true, room: 4, ..Turn::default() });
            let ended = owner.ended(now, || Some(Outcome::succeeded()));
            assert!(!ended.is_empty());
            all += ended.len();
            let part = Some(Part { keep, if_idle });
            let done = owner.turn(&Turn { now, finished: &ended, full: true, prune: part, ..Turn::default() });
            let reported = done.events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
            assert_eq!((reported, done.pruned), (ended.len(), None), "what was committed is returned");
        }
    }
    let succeeded = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
    let succeeded: i64 = other.query_one(succeeded, &[]).expect("a number").get(0);
    assert_eq!(usize::try_from(succeeded).ok(), Some(all));
}

#[test]
fn an_outcome_that_is_stored_already_is_not_superseded() {
    let Some(server) = TestServer::start("") else { return };
    let mut owner = Owner::new(&server, "one", true);
    let mut other = other(&server);
    let tasks = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, max_attempts, backoff_ms)
                 SELECT 't' || i, 'work', 'interval', '1h', 1 + i % 3, 1000 FROM generate_series(1, 40) i";
    other.batch_execute(tasks).expect("tasks");
    let mut random = fastrand::Rng::with_seed(3);
    let mut now = NOON + 3_600_000;
    let mut reported = BTreeSet::new();
    for _ in 0..12 {
        now += 10_000;
        owner.turn(&Turn { now, full: true, room: 12, ..Turn::default() });
        let finished = owner.ended(now, || outcome(&mut random));
        // As after a commit whose answer was lost. Some runs are claimed again meanwhile.
        let turn = Turn { now, finished: &finished, full: true, ..Turn::default() };
        let first = owner.turn(&turn);
        now += 2_000;
        owner.turn(&Turn { now, room: random.usize(..12), ..Turn::default() });
        let again = owner.turn(&Turn { now, ..turn });
        let finished_in = |done: &Done| -> BTreeSet<i64> {
            let run = |event: &Event| match event {
                Event::Finished { claim, .. } | Event::Snoozed { claim, .. } | Event::Interrupted { claim, .. } => {
                    Some(claim.run_id)
                }
                _ => None,
            };
            done.events.iter().filter_map(run).collect()
        };
        assert_eq!(finished_in(&again), finished_in(&first));
        assert!(!again.events.iter().any(|event| matches!(event, Event::Superseded { .. })), "{:?}", again.events);
        reported.extend(finished_in(&again));
    }
    assert!(reported.len() > 30, "{reported:?}");
    let superseded = "SELECT count(*) FROM task_attempts WHERE outcome = 'superseded'";
    assert_eq!(other.query_one(superseded, &[]).expect("a number").get::<_, i64>(0), 0);
}
