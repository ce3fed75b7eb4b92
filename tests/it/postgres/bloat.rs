//! The size of the tables while schedulers work: it stays bounded, with the settings that the tables have.
#![cfg(unix)]

use std::time::{Duration, Instant};

use duly::{Client, Context, Error, NewTask, Retention, Scheduler};

use crate::fixtures::on_server::session;
use crate::fixtures::{eventually, number, skip};
use crate::postgres::server::{address, programs, start};

/// Tasks of each round, and rounds without `DULY_ROUNDS`.
const TASKS: usize = 1_000;
const ROUNDS: usize = 12;

/// The tables with their indexes, and the indexes of what is unfinished, in bytes; dead rows.
const SIZES: &str = "
    SELECT (SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
             WHERE c.relkind = 'r' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())),
           (SELECT sum(pg_relation_size(i.indexrelid))::bigint FROM pg_index i
             WHERE i.indpred IS NOT NULL AND i.indrelid IN ('task_runs'::regclass, 'scheduled_tasks'::regclass)
               AND i.indexrelid NOT IN ('task_runs_dead'::regclass, 'task_runs_requested'::regclass, 'task_runs_retried'::regclass)),
           (SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE relid IN ('task_runs'::regclass, 'scheduled_tasks'::regclass)),
           (SELECT count(*) FROM task_runs),
           (SELECT sum(autovacuum_count)::bigint FROM pg_stat_user_tables
             WHERE relid IN ('task_runs'::regclass, 'scheduled_tasks'::regclass))";

#[test]
fn the_tables_stay_bounded_while_tasks_come_and_go() {
    let Some(programs) = programs() else { return skip("no PostgreSQL") };
    let rounds = number("DULY_ROUNDS", ROUNDS);
    // A short test cannot wait for a minute.
    let settings = if rounds > ROUNDS { "" } else { "-c autovacuum_naptime=1s" };
    let Some((folder, _guard)) = start(&programs, settings) else { return };
    let address = address(&folder);
    let home = tempfile::tempdir().expect("a folder");
    // Retention deletes what has ended at its next pass.
    let keep = Retention { once: Duration::ZERO, runs: Duration::ZERO, least_runs: 0, ..Retention::default() };
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .workers(8)
        .retention(keep)
        .handler("noop", |_: &Context| Ok::<_, Error>(()))
        .start()
        .expect("a scheduler");
    let client = Client::open(&address).expect("a client");
    let mut other = session(&address);
    let begin = Instant::now();
    let mut seen: Vec<(i64, i64)> = Vec::new();
    for round in 0..rounds {
        let now = client.now();
        client
            .add_all((0..TASKS).map(|i| NewTask::once(format!("t:{round}:{i}"), now).handler("noop")))
            .expect("tasks");
        let open = "SELECT count(*) FROM scheduled_tasks WHERE handler = 'noop' AND status = 'active'";
        let running = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running') AND handler = 'noop'";
        eventually("the round is done", || {
            [open, running].iter().all(|text| other.query_one(*text, &[]).expect("a number").get::<_, i64>(0) == 0)
        });
        let row = other.query_one(SIZES, &[]).expect("sizes");
        let (all, hot, dead, runs, vacuums): (i64, i64, i64, i64, Option<i64>) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        if round % (rounds / 12).max(1) == 0 {
            let at = begin.elapsed().as_secs();
            println!(
                "{at} s, round {round}: {} KiB, hot indexes {} KiB, {dead} dead, {runs} runs, {vacuums:?} vacuums",
                all / 1024,
                hot / 1024
            );
        }
        seen.push((all, hot));
    }
    scheduler.shutdown(Duration::from_secs(60)).expect("an end");
    let most = |part: &[(i64, i64)], of: fn(&(i64, i64)) -> i64| part.iter().map(of).max().unwrap_or(0);
    let (early, late) = seen.split_at(rounds / 2);
    let hot = (most(early, |sizes| sizes.1), most(late, |sizes| sizes.1));
    assert!(hot.1 <= hot.0 * 2, "the indexes of what is unfinished grew from {} to {} bytes", hot.0, hot.1);
}
