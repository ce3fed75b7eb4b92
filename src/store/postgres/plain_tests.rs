//! Proves that a plain turn does what every other turn would do, and that it is taken as one.

use std::sync::Arc;
use std::time::Duration;

use postgres::Client;

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome};
use crate::store::Store as _;
use crate::store::postgres::plain::Tries;
use crate::store::postgres::server::CLASS;
use crate::store::postgres::testing::TestServer;
use crate::store::postgres::turn_tests::{self, NOON, Owner, Turn, edit, outcome, stage, task};
use crate::store::turn_io::{Done, MAX_ITEMS, MAX_OUTCOMES};
use crate::waits::eventually;

const TABLES: [&str; 6] =
    ["scheduled_tasks", "task_runs", "task_attempts", "scheduler_instances", "scheduler_events", "scheduler_meta"];

/// A task that is due, mostly `once` with default policies. `recurring`: in how many of 400 it is another one.
fn due(random: &mut fastrand::Rng, number: usize, now: i64, recurring: u16) -> String {
    let due = now + random.i64(-90_000..10_000);
    let (kind, value) = match random.u16(..400) {
        number if number >= recurring => ("once", "2027-03-14T12:00:00Z"),
        0 => ("interval", "broken"),
        number if number % 2 == 0 => ("interval", ["7s", "5m", "10h"][random.usize(..3)]),
        _ => ("cron", ["* * * * *", "0 * * * *", "0 3 * * *"][random.usize(..3)]),
    };
    let policies = [("skip", "run_once"), ("skip", "skip"), ("buffer_one", "run_once"), ("buffer_all", "run_all")];
    let others = [("allow", "run_once"), ("allow", "run_all"), ("cancel_running", "skip")];
    let all = [policies.as_slice(), others.as_slice()].concat();
    let (overlap, misfire) = all[if random.u8(..20) > 0 { 0 } else { random.usize(..all.len()) }];
    let handler = if random.u16(..400) == 0 { "nowhere" } else { ["work", "mail"][random.usize(..2)] };
    let (priority, attempts, timeout) =
        (random.u8(..4), [1, 3, 5][(random.usize(..800) + 398) / 400], ["NULL", "5000"][random.usize(..2)]);
    let grace = [60_000, 60_000, 30_000][random.usize(..3)];
    let ends = if kind != "once" && random.u8(..5) == 0 { (due + 20_000).to_string() } else { "NULL".to_owned() };
    let expires = if random.u16(..400) == 0 { "1000" } else { "NULL" };
    format!(
        "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, next_run, planned, priority, max_attempts,
                                      overlap, misfire, misfire_grace_ms, timeout_ms, ends_at, expires_ms, created_at, active_since,
                                      updated_at)
         VALUES ('t{number}', '{handler}', '{{\"n\": {number}}}', '{kind}', '{value}', {due}, 1, {priority}, {attempts},
                 '{overlap}', '{misfire}', {grace}, {timeout}, {ends}, {expires}, {due}, {due}, {due})"
    )
}

/// Returns the text without times of the machine's clock, which triggers write for other programs.
fn without_wall(text: &str) -> String {
    let is_wall =
        |word: &str| word.parse().is_ok_and(|time: i64| time > 1_700_000_000_000 && (time - NOON).abs() > 3_600_000);
    let words = text.split_inclusive(|letter: char| !letter.is_ascii_digit());
    words
        .map(
            |word| if is_wall(word.trim_end_matches(|letter: char| !letter.is_ascii_digit())) { "wall " } else { word },
        )
        .collect()
}

/// What a plain turn leaves alone: limits of other keys and handlers, and blocked runs.
const BESIDE: &str = "
    INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('other', 1);
    INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('elsewhere', 1, 30000);
    INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, concurrency_key, planned)
    VALUES ('beside', 'work', 'manual', '', 'paused', 'other', 1) ON CONFLICT DO NOTHING;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, blocked)
    SELECT id, handler, 1805025600000 + i, CASE WHEN i % 3 = 0 THEN 'manual' ELSE 'schedule' END, 'queued', 1805025600000 + i, 'other',
           CASE WHEN i % 3 = 0 THEN 'key' ELSE 'paused' END
      FROM scheduled_tasks, generate_series(1, 6) i WHERE name = 'beside' ON CONFLICT DO NOTHING";

/// How a turn was taken.
#[derive(Debug)]
struct Taken {
    round_trips: u64,
    /// Whether it started a recurring task.
    recurring: bool,
    /// Whether a planned task could not be read: then items are written one by one.
    one_by_one: bool,
}

/// What each turn returned and left in the tables, and how it was taken.
fn play(server: &TestServer, seed: u64, as_every_other: bool) -> (Vec<String>, Vec<Taken>) {
    let _ = server.other().batch_execute("DROP SCHEMA IF EXISTS duly CASCADE");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut owner = Owner::new(server, "one", false);
    owner.store.reads_all = as_every_other;
    let mut other = turn_tests::other(server);
    let (mut now, mut tasks, mut seen, mut taken) = (NOON, 0, Vec::new(), Vec::new());
    for turn in 0..60 {
        // Some turns with such tasks alone, then some with others too.
        let mixed = turn % 20 >= 13;
        let recurring = [0, 12, 60][turn / 20];
        if turn % 20 == 0 {
            let anew = "DELETE FROM scheduled_tasks WHERE id NOT IN (SELECT task_id FROM task_runs WHERE locked_by IS NOT NULL);
                        DELETE FROM concurrency_limits; DELETE FROM rate_limits";
            other.batch_execute(anew).expect("no tasks");
            other.batch_execute(BESIDE).expect("other work");
        }
        now += random.i64(0..20_000);
        for _ in 0..random.usize(..30) {
            tasks += usize::from(other.batch_execute(&due(&mut random, tasks, now, recurring)).is_ok());
        }
        if mixed && random.bool() {
            tasks += usize::from(other.batch_execute(&task(&mut random, tasks, now)).is_ok());
        }
        if mixed && random.bool() {
            let _ = other.batch_execute(&edit(&mut random, tasks.max(1), now));
        }
        if mixed && random.u8(..6) == 0 {
            // Runs of one task, which wait for each other. Some tasks are not active.
            let name = format!("t{}", random.usize(..tasks.max(1)));
            for _ in 0..random.usize(1..4) {
                let _ = owner.store.trigger(&name, None, None, Timestamp::from_millis(now));
            }
        }
        // The ends of recurring runs are not plain, for their tasks keep them: most come in turns of their own.
        let few_end = recurring > 0 && random.u8(..4) > 0;
        let fails = mixed && random.u8(..3) == 0;
        let finished = owner.ended(now, || match random.u8(..8) {
            _ if few_end => None,
            0 => None,
            1 => Some(Outcome::Succeeded { result: Some("{\"b\": [1, 2]}".to_owned()) }),
            2 if fails => outcome(&mut random),
            _ => Some(Outcome::succeeded()),
        });
        let turn = Turn {
            now,
            finished: &finished,
            full: random.u8(..6) == 0,
            room: [0, 3, 40, 100, 100, 300][random.usize(..6)],
            ..Turn::default()
        };
        // Each is tried as plain, also after others that were not. If it owes a look, it looks itself.
        owner.store.plain = Tries::default();
        owner.store.owes_look = random.bool();
        let before = owner.round_trips();
        let mut done = owner.turn(&turn);
        // Without the look after it.
        let round_trips = owner.round_trips() - before - 1;
        let recurring = done.claims.iter().any(|claim| claim.recurring);
        let one_by_one = done.events.iter().any(|event| matches!(event, Event::Invalid { .. }));
        taken.push(Taken { round_trips, recurring, one_by_one });
        done.data_version = 0;
        let rows = TABLES.iter().map(|table| {
            let rows = other.query(&format!("SELECT to_jsonb(t)::text FROM {table} t ORDER BY 1"), &[]).expect("rows");
            rows.iter().map(|row| format!("{table} {}", row.get::<_, String>(0))).collect::<Vec<_>>().join("\n")
        });
        seen.push(without_wall(&format!("{done:#?}\n{}", rows.collect::<Vec<_>>().join("\n"))));
    }
    (seen, taken)
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn a_plain_turn_does_what_every_other_would() {
    let Some(server) = TestServer::start("") else { return };
    let seeds = std::env::var("DULY_SEEDS").map_or(2, |seeds| seeds.parse().expect("a number"));
    let mut all_recurring = 0;
    for seed in 1..=seeds {
        let ((plain, taken), (others, _)) = (play(&server, seed, false), play(&server, seed, true));
        for (turn, (plain, other)) in plain.iter().zip(&others).enumerate() {
            let only = |these: &str, those: &str| {
                these.lines().filter(|line| !those.contains(line)).collect::<Vec<_>>().join("\n")
            };
            assert!(
                plain == other,
                "seed {seed}, turn {turn} of {} round trips\nonly a plain turn:\n{}\nonly another:\n{}",
                taken[turn].round_trips,
                only(plain, other),
                only(other, plain)
            );
        }
        let most = taken.iter().filter(|turn| !turn.one_by_one).map(|turn| turn.round_trips).max();
        let plain: Vec<&Taken> = taken.iter().filter(|turn| turn.round_trips <= 6).collect();
        let recurring = plain.iter().filter(|turn| turn.recurring).count();
        eprintln!(
            "seed {seed}: {} of {} turns were plain, {recurring} with recurring tasks; at most {most:?} round trips",
            plain.len(),
            taken.len()
        );
        assert!(plain.len() >= 5 && most <= Some(12), "{taken:?}");
        all_recurring += recurring;
    }
    assert!(all_recurring > 0);
}

#[test]
fn a_plain_turn_takes_four_round_trips_before_its_runs_start_however_much_it_does_and_whatever_is_beside_it() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    other.batch_execute(BESIDE).expect("other work");
    let mut counted = Vec::new();
    for tasks in [1, 250, 250, 0] {
        insert(&mut other, tasks);
        let finished = succeeded(&mut owner);
        let before = owner.round_trips();
        let done = owner.turn(&Turn { now: NOON, finished: &finished, room: 500, ..Turn::default() });
        let trips = owner.round_trips() - before - 1;
        counted.push((trips, finished.len(), done.claims.len()));
    }
    assert_eq!(counted, [(4, 0, 1), (4, 1, 250), (4, 250, 250), (5, 250, 0)], "without runs, it looks ahead");
}

#[test]
fn the_run_of_a_recurring_task_starts_after_four_round_trips_if_those_before_it_have_ended() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let hour = 3_600_000;
    let tasks = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, overlap, ends_at, next_run, planned, created_at)
         VALUES ('grid', 'work', 'interval', '1h', 'allow', {}, {NOON}, 1, {NOON}),
                ('clock', 'work', 'cron', '0 * * * *', 'skip', NULL, {NOON}, 1, {NOON})",
        NOON + 3 * hour
    );
    other.batch_execute(&tasks).expect("tasks");
    let mut seen = Vec::new();
    for at in (0..5).map(|number| NOON + number * hour) {
        // In the fourth hour the runs of the third are unfinished.
        if at != NOON + 3 * hour {
            let finished = owner.ended(at - 1, || Some(Outcome::succeeded()));
            owner.turn(&Turn { now: at - 1, finished: &finished, ..Turn::default() });
        }
        owner.store.plain = Tries::default();
        let before = owner.round_trips();
        let started = owner.try_turn(&Turn { now: at, room: 5, ..Turn::default() }).expect("a turn").claims.len();
        let trips = owner.round_trips() - before;
        seen.push((started, trips == 4));
    }
    // The grid ends with the fourth hour.
    assert_eq!(seen, [(2, true), (2, true), (2, true), (1, false), (1, true)]);
    let rows = other.query("SELECT name, status, next_run FROM scheduled_tasks ORDER BY id", &[]).expect("tasks");
    let rows: Vec<(String, String, Option<i64>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let expected = [("grid", "completed", None), ("clock", "active", Some(NOON + 5 * hour))];
    assert_eq!(rows, expected.map(|(name, status, next)| (name.to_owned(), status.to_owned(), next)));
}

#[test]
fn of_two_turns_in_a_row_one_looks_ahead() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 5);
    let turn = |owner: &mut Owner| {
        let done = owner.try_turn(&Turn { now: NOON, room: 1, ..Turn::default() }).expect("a turn");
        (done.claims.len(), done.look_follows, done.stop)
    };
    assert_eq!(turn(&mut owner), (1, true, Vec::new()));
    let first = owner.claimed[0].run_id;
    other.execute("UPDATE task_runs SET cancel_requested = 1 WHERE id = $1", &[&first]).expect("a request");
    assert_eq!(turn(&mut owner), (1, false, vec![first]));
    assert_eq!(turn(&mut owner), (1, true, Vec::new()));
    let looked = owner.store.look("one", &["work".to_owned()].into(), None, Timestamp::from_millis(NOON));
    assert_eq!(looked.expect("a look").expect("it reads everything").stop, [first]);
    assert_eq!(turn(&mut owner), (1, true, Vec::new()));
}

#[test]
fn a_task_that_is_added_during_a_turn_is_due_at_once() {
    let Some((server, mut owner, mut other)) = stage() else { return };
    let mut adding = turn_tests::other(&server);
    insert(&mut other, 1);
    owner.store.owes_look = true;
    let add = format!(
        "BEGIN; SELECT 1 FROM scheduled_tasks FOR NO KEY UPDATE;
         INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
         VALUES ('beside', 'work', 'once', '2027-03-14T12:00:00Z', {NOON}, 1)"
    );
    adding.batch_execute(&add).expect("a task");
    let done = std::thread::scope(|scope| {
        let turn = scope.spawn(|| owner.try_turn(&Turn { now: NOON, room: 50, ..Turn::default() }).expect("a turn"));
        // It has read what is due, and waits for the row that it has read.
        eventually("a turn waits for the lock", || {
            count(&mut other, "pg_locks WHERE NOT granted AND locktype = 'transactionid'") > 0
        });
        adding.batch_execute("COMMIT").expect("the end");
        turn.join().expect("a turn")
    });
    assert_eq!((done.claims.len(), done.more_due, done.more_unplanned), (1, true, false));
    let done = owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    assert_eq!((done.claims.len(), done.more_due), (1, false));
}

#[test]
fn a_turn_is_seldom_tried_as_plain_while_none_is_and_soon_once_one_is() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let mut turn = |owner: &mut Owner, now: i64, schedule: &str| {
        let name = format!("t{}", now - NOON);
        let text = format!(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
             VALUES ('{name}', 'work', {schedule}, {now}, 1)"
        );
        other.batch_execute(&text).expect("a task");
        let before = owner.round_trips();
        let done = owner.turn(&Turn { now, room: 500, ..Turn::default() });
        assert_eq!(done.claims.len(), 1);
        owner.round_trips() - before - 1
    };
    let mut at = NOON..;
    let mut turns = |count: usize, schedule: &str| -> Vec<u64> {
        at.by_ref().take(count).map(|now| turn(&mut owner, now, schedule)).collect()
    };
    // The first is tried, then the third, the sixth, the eleventh, the twentieth.
    let others = turns(20, "'delay', '10h'");
    let (least, most) = (others.iter().min().expect("turns"), others.iter().max().expect("turns"));
    let tried: Vec<usize> = (0..20).filter(|turn| others[*turn] > *least).collect();
    assert_eq!((most - least, tried), (1, vec![0, 2, 5, 10, 19]), "{others:?}");
    let once = turns(20, "'once', '2027-03-14T12:00:00Z'");
    assert!(once[8..].iter().all(|trips| *trips == 4), "{once:?}");
}

#[test]
fn the_first_turn_after_rows_without_a_due_time_is_tried_as_plain_and_none_before_it() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let tasks = MAX_ITEMS * 4;
    let text = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
         SELECT 'far' || i, 'work', 'once', '2030-03-14T12:00:00Z' FROM generate_series(1, {tasks}) i"
    );
    other.batch_execute(&text).expect("tasks");
    let turn = |owner: &mut Owner| {
        let before = owner.round_trips();
        let done = owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
        (done.more_unplanned, done.claims.len(), owner.round_trips() - before - 1)
    };
    let planned: Vec<(bool, usize, u64)> = (0..4).map(|_| turn(&mut owner)).collect();
    let (first, second) = (planned[0].2, planned[1].2);
    // The first is tried, and prepares its statements.
    assert_eq!(planned[1..], [(true, 0, second), (true, 0, second), (false, 0, second)], "{planned:?}");
    assert!(first > second, "{planned:?}");
    insert(&mut other, 1);
    assert_eq!(turn(&mut owner), (false, 1, 4));
}

#[test]
fn what_succeeds_while_another_holds_the_lock_ends_at_once_and_the_turn_writes_what_follows() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 2);
    let done = owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let (first, second) = (done.claims[0].clone(), done.claims[1].clone());
    let finished = succeeded(&mut owner);
    assert_eq!(finished.len(), 2);
    let row = format!("SELECT 1 FROM task_runs WHERE id = {} FOR UPDATE", second.run_id);
    let turn = Turn { now: NOON, finished: &finished, room: 50, ..Turn::default() };
    let done = turn_behind_a_lock(&mut owner, &mut other, &row, &turn, |other| {
        let status = |other: &mut Client, run: i64| -> String {
            other.query_one("SELECT status FROM task_runs WHERE id = $1", &[&run]).expect("a run").get(0)
        };
        eventually("its end is stored without the lock", || status(other, first.run_id) == "succeeded");
        assert_eq!(status(other, second.run_id), "running", "its row is locked");
        // The holder of the lock opened this run before it could see the end of the other.
        open_waiting(other, &[first.task_id]);
    });
    let claimed: Vec<i64> = done.claims.iter().map(|claim| claim.task_id).collect();
    assert_eq!(claimed, [first.task_id], "nothing blocks the run that waited");
    assert_eq!(ends(&done), 2, "{:?}", done.events);
    let rows = other.query("SELECT status FROM task_runs ORDER BY id", &[]).expect("runs");
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["succeeded", "succeeded", "running"]);
    assert_eq!(count(&mut other, "task_attempts"), 0, "no outcome was superseded");
}

#[test]
fn ends_that_are_stored_take_no_place_in_a_turn() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 2000);
    let mut counted = Vec::new();
    for holds_lock in [false, false, true] {
        let finished = succeeded(&mut owner);
        let done = std::thread::scope(|scope| {
            let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({CLASS}, 'duly'::regnamespace::oid::int)");
            other.batch_execute(if holds_lock { &lock } else { "BEGIN" }).expect("the lock");
            let turn =
                scope.spawn(|| owner.turn(&Turn { now: NOON, finished: &finished, room: 512, ..Turn::default() }));
            eventually("the ends are stored without the lock", || !holds_lock || running(&mut other) == 0);
            other.batch_execute("COMMIT").expect("the end");
            turn.join().expect("a turn")
        });
        counted.push((finished.len(), done.deferred.len(), done.claims.len()));
        // The next turn is given those that this one left.
        owner
            .claimed
            .extend(finished[finished.len() - done.deferred.len()..].iter().map(|finished| finished.claim.clone()));
    }
    assert_eq!(counted, [(0, 0, 500), (500, 250, 250), (500, 0, 500)]);
    assert_eq!(running(&mut other), 500);
}

/// Inserts this many further `once` tasks, which are due: `t1`, `t2` and so on.
fn insert(other: &mut Client, tasks: usize) {
    let text = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
         SELECT 't' || (SELECT count(*) FROM scheduled_tasks) + i, 'work', 'once', '2027-03-14T12:00:00Z', {NOON}, 1
           FROM generate_series(1, {tasks}) i"
    );
    other.batch_execute(&text).expect("tasks");
}

/// Takes the lock, as a turn of another scheduler, which does nothing more until it commits.
fn take_lock(other: &mut Client) {
    let lock =
        format!("SET duly.store = 'on'; BEGIN; SELECT pg_advisory_xact_lock({CLASS}, 'duly'::regnamespace::oid::int)");
    other.batch_execute(&lock).expect("the lock");
}

/// Opens a second run of these tasks, which waits for the end of the first.
fn open_waiting(other: &mut Client, tasks: &[i64]) {
    let waits = format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, blocked, concurrency_key)
         SELECT t, 'work', {NOON}, 'manual', 'queued', {NOON}, 'key', '#' || t FROM unnest($1::bigint[]) t"
    );
    other.execute(&waits, &[&tasks]).expect("runs that wait");
}

/// Which of them still wait for the first run of their task.
fn waiting(other: &mut Client) -> Vec<i64> {
    let rows = other.query("SELECT task_id FROM task_runs WHERE blocked = 'key' ORDER BY 1", &[]).expect("runs");
    rows.iter().map(|row| row.get(0)).collect()
}

fn ends(done: &Done) -> usize {
    done.events.iter().filter(|event| matches!(event, Event::Finished { .. })).count()
}

fn is_superseded(done: &Done) -> bool {
    done.events.iter().any(|event| matches!(event, Event::Superseded { .. }))
}

/// Takes a turn that waits for the lock, which is held until `meanwhile` has returned. `held`: a statement that locks rows too.
fn turn_behind_a_lock(
    owner: &mut Owner,
    other: &mut Client,
    held: &str,
    turn: &Turn<'_>,
    meanwhile: impl FnOnce(&mut Client),
) -> Done {
    take_lock(other);
    other.batch_execute(held).expect("locks");
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| owner.turn(turn));
        meanwhile(other);
        other.batch_execute("COMMIT").expect("the end");
        turn.join().expect("a turn")
    })
}

/// Succeeds with the claimed runs at noon.
fn succeeded(owner: &mut Owner) -> Vec<Finished> {
    owner.ended(NOON, || Some(Outcome::succeeded()))
}

fn count(other: &mut Client, of: &str) -> i64 {
    other.query_one(&format!("SELECT count(*) FROM {of}"), &[]).expect("a count").get(0)
}

fn running(other: &mut Client) -> i64 {
    count(other, "task_runs WHERE status = 'running'")
}

#[test]
fn a_turn_that_is_not_plain_writes_what_follows_from_stored_ends_as_items() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 1500);
    owner.turn(&Turn { now: NOON, room: 512, ..Turn::default() });
    let finished = succeeded(&mut owner);
    assert_eq!(finished.len(), 500);
    let turn = Turn { now: NOON, finished: &finished, room: 512, ..Turn::default() };
    let done = turn_behind_a_lock(&mut owner, &mut other, "", &turn, |other| {
        eventually("the ends are stored without the lock", || running(other) == 0);
        open_waiting(other, &[finished[0].claim.task_id, finished[499].claim.task_id]);
    });
    // 250 outcomes, and 250 beside them: 32 runs are opened and claimed apart, because one waits and is claimed with them.
    assert_eq!((ends(&done), done.deferred.len(), done.claims.len()), (250, 250, 218));
    assert_eq!(waiting(&mut other), [finished[499].claim.task_id], "the end of its first run is deferred");
    assert_eq!(owner.store.most_outcomes(), MAX_OUTCOMES, "the turn was not plain");

    owner.claimed.clear();
    let done = owner.turn(&Turn { now: NOON, finished: &finished[250..], room: 512, ..Turn::default() });
    assert_eq!((ends(&done), done.deferred.len(), done.claims.len()), (250, 0, 218));
    assert!(waiting(&mut other).is_empty() && owner.store.ended.is_empty());
    assert!(!is_superseded(&done), "{:?}", done.events);
}

#[test]
fn ends_that_are_stored_before_a_turn_fails_are_not_stored_again() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 2);
    owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let finished = succeeded(&mut owner);
    owner.store.set_busy_timeout(Duration::from_millis(100)).expect("a timeout");
    take_lock(&mut other);
    let turn = Turn { now: NOON, finished: &finished, room: 50, ..Turn::default() };
    let fault = owner.try_turn(&turn).expect_err("the lock is held");
    assert!(fault.is_busy(), "{fault}");
    assert_eq!(running(&mut other), 0, "both have ended");
    open_waiting(&mut other, &[finished[1].claim.task_id]);
    other.batch_execute("COMMIT").expect("the end");

    let done = owner.turn(&turn);
    assert_eq!((ends(&done), is_superseded(&done)), (2, false), "{:?}", done.events);
    let claimed: Vec<i64> = done.claims.iter().map(|claim| claim.task_id).collect();
    assert_eq!(claimed, [finished[1].claim.task_id], "what follows from the ends is written");
    assert_eq!((count(&mut other, "task_attempts"), owner.store.ended.len()), (0, 0));
}

#[test]
fn a_new_owner_stores_the_ends_that_a_promoted_server_lacks() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 1);
    owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let mut finished = succeeded(&mut owner);
    owner.store.set_busy_timeout(Duration::from_millis(100)).expect("a timeout");
    take_lock(&mut other);
    owner.try_turn(&Turn { now: NOON, finished: &finished, ..Turn::default() }).expect_err("the lock is held");
    assert_eq!(running(&mut other), 0);
    // As a standby that has got the claim and not the end.
    let undo = format!(
        "UPDATE task_runs SET status = 'running', locked_by = 'one', locked_until = {NOON}, finished_at = NULL,
                              duration_ms = NULL; COMMIT"
    );
    other.batch_execute(&undo).expect("a running run");
    owner.registration.owner = "two".to_owned();
    let (registration, random) = (owner.registration.clone(), fastrand::Rng::with_seed(7));
    owner.store.register(&registration, random, Timestamp::from_millis(NOON)).expect("a registration");
    let claim = Claim { owner: Some("one".into()), ..(*finished[0].claim).clone() };
    finished[0].claim = Arc::new(claim);
    let done = owner.turn(&Turn { now: NOON, finished: &finished, ..Turn::default() });
    assert_eq!((ends(&done), running(&mut other)), (1, 0));
}

#[test]
fn of_two_attempts_of_a_run_only_the_one_that_holds_the_claim_ends_it() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 1);
    owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let mut finished = succeeded(&mut owner);
    // As after a recovery: this owner has claimed the run again, and its first attempt returns too.
    let again = Claim { attempt: 2, ..(*finished[0].claim).clone() };
    finished.push(Finished { claim: Arc::new(again), ..finished[0].clone() });
    other.batch_execute("SET duly.store = 'on'; UPDATE task_runs SET attempt = 2").expect("another attempt");
    let turn = Turn { now: NOON, finished: &finished, ..Turn::default() };
    let done = turn_behind_a_lock(&mut owner, &mut other, "", &turn, |other| {
        eventually("the ends are stored without the lock", || running(other) == 0)
    });
    assert_eq!((ends(&done), is_superseded(&done)), (1, true), "{:?}", done.events);
    let superseded = "SELECT attempt FROM task_attempts WHERE outcome = 'superseded'";
    assert_eq!(other.query_one(superseded, &[]).expect("an attempt").get::<_, i64>(0), 1);
}

#[test]
fn a_turn_takes_more_outcomes_only_after_one_whose_ends_were_stored_before_it() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    insert(&mut other, 3);
    owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let finished = succeeded(&mut owner);
    owner.store.set_busy_timeout(Duration::from_millis(100)).expect("a timeout");
    let mut most = |finished: &[Finished], full: bool, before: &str| {
        take_lock(&mut other);
        other.batch_execute(before).expect("a statement");
        owner.try_turn(&Turn { now: NOON, finished, full, ..Turn::default() }).expect_err("the lock is held");
        other.batch_execute("COMMIT").expect("the end");
        owner.store.most_outcomes()
    };
    let all_rows = "SELECT 1 FROM task_runs FOR UPDATE";
    assert_eq!(most(&finished[..1], false, all_rows), MAX_OUTCOMES, "nothing has ended");
    assert_eq!(most(&finished[..1], false, ""), MAX_ITEMS);
    assert_eq!(most(&[], false, ""), MAX_ITEMS, "a turn without outcomes shows nothing");
    assert_eq!(most(&finished[1..2], true, ""), MAX_OUTCOMES, "no full turn is plain");
    assert_eq!(most(&finished[1..], false, ""), MAX_ITEMS);
    owner.turn(&Turn { now: NOON, finished: &finished, ..Turn::default() });
    assert_eq!(owner.store.most_outcomes(), MAX_ITEMS, "the ends were stored before it");
    insert(&mut other, 1);
    owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let finished = succeeded(&mut owner);
    owner.turn(&Turn { now: NOON, finished: &finished, ..Turn::default() });
    assert_eq!(owner.store.most_outcomes(), MAX_OUTCOMES, "the lock was free");
}

#[test]
fn a_task_that_another_program_changes_meanwhile_is_taken_as_it_is() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    // A trigger of an application changes a row while the turn writes: the turn is repeated as every other.
    insert(&mut other, 3);
    let leave_out = "
        CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF NEW.name = ''t2'' THEN RETURN NULL; END IF; RETURN NEW; END';
        CREATE TRIGGER leave_out BEFORE UPDATE ON scheduled_tasks FOR EACH ROW EXECUTE FUNCTION leave_out()";
    other.batch_execute(leave_out).expect("a trigger");
    let done = owner.turn(&Turn { now: NOON, room: 50, ..Turn::default() });
    let mut started: Vec<&str> = done.claims.iter().map(|claim| &*claim.task).collect();
    started.sort_unstable();
    assert_eq!(started, ["t1", "t3"], "{done:?}");
    assert_eq!(count(&mut other, "task_runs"), 2);
}
