//! The size of the tables while tasks come and go: it stays bounded, with the settings that the tables have.
//!
//! `DULY_MINUTES=30` takes as long, with 100,000 runs of history; `DULY_STORAGE=default` takes the settings of the server instead.
#![cfg(unix)]

use std::time::Duration;

use duly::{Client, Context, Error, NewTask, Retention, Scheduler};
use postgres::Client as Session;

use crate::fixtures::on_server::session;
use crate::fixtures::{eventually, patience, skip};
use crate::postgres::server::{address, programs, start};

/// Tasks that fall due in a second, besides the recurring ones, of which each runs once a second.
const RATE: u64 = 150;
const RECURRING: u64 = 20;

/// A test of this length, or of seconds.
struct Length {
    rounds: u64,
    round: Duration,
    /// Rounds from one line of figures to the next.
    shown: u64,
    history: i64,
    settings: &'static str,
}

const SHORT: Length = Length {
    rounds: 8,
    round: Duration::from_secs(1),
    shown: 1,
    history: 20_000,
    settings: "-c autovacuum_naptime=1s",
};

fn length() -> Length {
    let Ok(minutes) = std::env::var("DULY_MINUTES") else { return SHORT };
    let minutes: u64 = minutes.parse().expect("a number of minutes");
    Length { rounds: minutes * 3, round: Duration::from_secs(20), shown: 3, history: 100_000, settings: "" }
}

/// Runs that stay, of tasks that are never due.
const HISTORY: &str = "
    SET duly.store = 'on';
    SET session_replication_role = 'replica';
    INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, planned)
    SELECT 'past:' || i, 'other', 'manual', '', 1 FROM generate_series(1, RUNS / 25) i;
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, started_at, finished_at)
    SELECT i % (RUNS / 25) + 1, 'other', duly_statement_time() - i, 'manual', 'succeeded', duly_statement_time() - i, 1,
           '#' || i % (RUNS / 25) + 1, duly_statement_time() - i, duly_statement_time() - i + 5
      FROM generate_series(1, RUNS) i;
    ANALYZE";

/// The settings that the tables would have without those of schema.postgres.sql.
const DEFAULTS: &str = "
    ALTER TABLE scheduled_tasks RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay, autovacuum_analyze_scale_factor);
    ALTER TABLE task_runs RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay, autovacuum_analyze_scale_factor)";

/// Bytes of both tables, of their other indexes, and of those of what is unfinished; rows and dead rows; vacuums; WAL.
const FIGURES: &str = "
    WITH hot AS (
        SELECT indexrelid FROM pg_index
         WHERE indpred IS NOT NULL AND indrelid IN ('task_runs'::regclass, 'scheduled_tasks'::regclass)
           AND indexrelid NOT IN ('task_runs_dead'::regclass, 'task_runs_requested'::regclass, 'task_runs_retried'::regclass))
    SELECT pg_table_size('task_runs') + pg_table_size('scheduled_tasks'),
           pg_indexes_size('task_runs') + pg_indexes_size('scheduled_tasks')
               - (SELECT sum(pg_relation_size(indexrelid)) FROM hot)::bigint,
           (SELECT sum(pg_relation_size(indexrelid)) FROM hot)::bigint,
           sum(n_live_tup)::bigint, sum(n_dead_tup)::bigint, sum(autovacuum_count)::bigint,
           (pg_current_wal_lsn() - '0/0')::bigint
      FROM pg_stat_user_tables WHERE relid IN ('task_runs'::regclass, 'scheduled_tasks'::regclass)";

#[derive(Clone, Copy)]
struct Figures {
    tables: i64,
    indexes: i64,
    hot: i64,
    live: i64,
    dead: i64,
    vacuums: i64,
    wal: i64,
}

fn figures(session: &mut Session) -> Figures {
    let row = session.query_one(FIGURES, &[]).expect("figures");
    let [tables, indexes, hot, live, dead, vacuums, wal] = std::array::from_fn(|at| row.get(at));
    Figures { tables, indexes, hot, live, dead, vacuums, wal }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn the_tables_stay_bounded_while_tasks_come_and_go() {
    let Some(programs) = programs() else { return skip("no PostgreSQL") };
    let length = length();
    let Some((folder, _guard)) = start(&programs, length.settings) else { return };
    let address = address(&folder);
    let home = tempfile::tempdir().expect("a folder");
    let client = Client::open(&address).expect("a client");
    let mut other = session(&address);
    other.batch_execute(&HISTORY.replace("RUNS", &length.history.to_string())).expect("a history");
    let as_shipped = std::env::var("DULY_STORAGE").is_err();
    if !as_shipped {
        other.batch_execute(DEFAULTS).expect("settings");
    }
    // Rows go after three rounds.
    let kept = length.round * 3;
    let keep = Retention { once: kept, runs: kept, least_runs: 100, most_runs: 200, ..Retention::default() };
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .workers(8)
        .retention(keep)
        .handler("noop", |_: &Context| Ok::<_, Error>(()))
        .start()
        .expect("a scheduler");
    let each = Duration::from_secs(1);
    client
        .add_all((0..RECURRING).map(|i| NewTask::interval(format!("each:{i}"), each).handler("noop")))
        .expect("tasks");
    let (rounds, seconds) = (length.rounds, length.round.as_secs());
    let mut seen: Vec<Figures> = vec![figures(&mut other)];
    println!("| after | runs | tables | other indexes | indexes of the unfinished | dead rows | vacuums | WAL |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for round in 0..rounds {
        let now = client.now();
        let tasks = RATE * seconds;
        let due = |i: u64| now + length.round.mul_f64(i as f64 / tasks as f64);
        client
            .add_all((0..tasks).map(|i| NewTask::once(format!("t:{round}:{i}"), due(i)).handler("noop")))
            .expect("tasks");
        let done = "SELECT NOT EXISTS (SELECT FROM scheduled_tasks WHERE status = 'active' AND planned = 1 AND schedule_type = 'once')";
        eventually("the round is over", || client.now() >= now + length.round);
        eventually("the tasks of the round are done", || other.query_one(done, &[]).expect("an answer").get(0));
        seen.push(figures(&mut other));
        if (round + 1) % length.shown == 0 {
            show((round + 1) * seconds, seen[0], seen[seen.len() - 1]);
        }
    }
    scheduler.shutdown(patience()).expect("an end");
    if as_shipped {
        judge(&seen, length.history);
    }
}

fn show(after: u64, first: Figures, now: Figures) {
    let kib = |bytes: i64| bytes / 1024;
    let Figures { tables, indexes, hot, live, dead, vacuums, wal } = now;
    println!(
        "| {after} s | {} | {live} rows, {} KiB | {} KiB | {} KiB | {dead} | {vacuums} | {} KiB |",
        after * (RATE + RECURRING),
        kib(tables),
        kib(indexes),
        kib(hot),
        kib(wal - first.wal)
    );
}

/// A row takes about 300 bytes with its indexes. What is unfinished is the same at all times.
fn judge(seen: &[Figures], history: i64) {
    let most = |part: &[Figures], of: fn(&Figures) -> i64| part.iter().map(of).max().expect("figures");
    let (all, rows) = (most(seen, |f| f.tables + f.indexes + f.hot), most(seen, |f| f.live));
    assert!(all <= rows * 450, "{all} bytes for at most {rows} rows");
    let (early, late) = seen.split_at(seen.len() / 2);
    let (early, late) = (most(early, |f| f.hot), most(late, |f| f.hot));
    assert!(late <= early * 2, "the indexes of what is unfinished grew from {early} to {late} bytes");
    // A hundredth of the rows, and what two naps of autovacuum leave behind.
    let bound = history / 50 + 120 * 6 * (RATE + RECURRING) as i64;
    let dead = most(seen, |f| f.dead);
    assert!(dead <= bound, "{dead} dead rows, expected at most {bound}");
}
