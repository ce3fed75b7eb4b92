//! Effects of async handlers that are dropped at random moments, while their clean-up waits for a thread and the runtime is shut down: no
//! effect is in doubt whose closure was not called, or had returned. `DULY_ROUNDS` sets how many are dropped, `DULY_SEED` the moments.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{BoxError, Context, RetryPolicy, Scheduler};

use crate::async_handlers::all_final;
use crate::fixtures::{TestDb, eventually, number, overdue, patience};

const ROUNDS: usize = 400;
const RUNS: u32 = 150;

#[derive(Default)]
struct World {
    called: Mutex<BTreeSet<i64>>,
    returned: Mutex<BTreeSet<i64>>,
    performed: AtomicUsize,
    dropped: AtomicUsize,
    /// Whether a runtime has been shut down: nothing is dropped any more.
    is_calm: AtomicBool,
}

/// A runtime with one thread for blocking calls, which other work delays.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.spawn(async {
        loop {
            let _ = tokio::task::spawn_blocking(|| std::thread::park_timeout(Duration::from_micros(300))).await;
        }
    });
    runtime
}

fn start(db: &TestDb, runtime: &tokio::runtime::Runtime, world: &Arc<World>, seed: u64) -> Scheduler {
    let world = world.clone();
    let pay = move |run: Context| {
        let world = world.clone();
        async move {
            let id = run.run_id();
            let of_attempt = seed ^ (u64::from(run.attempt()) << 32) ^ u64::try_from(id)?;
            let mut random = fastrand::Rng::with_seed(of_attempt);
            let longest = 1 << random.u32(1..19);
            let (moment, pauses) = (Duration::from_micros(random.u64(0..longest)), random.u32(0..20));
            let charge = || async {
                world.called.lock().unwrap().insert(id);
                for _ in 0..pauses {
                    tokio::task::yield_now().await;
                }
                world.returned.lock().unwrap().insert(id);
                world.performed.fetch_add(1, Ordering::SeqCst);
                Ok(id)
            };
            let effect = run.effect_async("charge", charge);
            if world.is_calm.load(Ordering::SeqCst) || run.attempt() > 5 {
                return effect.await;
            }
            tokio::select! {
                _ = effect => {}
                () = tokio::time::sleep(moment) => {
                    world.dropped.fetch_add(1, Ordering::SeqCst);
                }
            }
            Err::<i64, BoxError>("again".into())
        }
    };
    let builder = Scheduler::builder(db.address()).poll(Duration::from_millis(50)).runtime(runtime.handle().clone());
    builder.async_handler("pay", pay).start().unwrap()
}

#[test]
fn no_dropped_effect_is_in_doubt_whose_closure_was_not_called() {
    let (rounds, seed) = (number("DULY_ROUNDS", ROUNDS), number("DULY_SEED", fastrand::u64(..)));
    println!("DULY_SEED={seed}, {rounds} dropped effects");
    let (mut dropped, mut in_doubt, mut epoch) = (0, 0, 0);
    while dropped < rounds {
        epoch += 1;
        let (db, world) = (TestDb::new(), Arc::new(World::default()));
        let first = runtime();
        let scheduler = start(&db, &first, &world, seed ^ (epoch << 48));
        let soon =
            RetryPolicy { max_attempts: 20, backoff: Duration::from_millis(1), max_backoff: Duration::from_millis(9) };
        scheduler.add_all((0..RUNS).map(|n| overdue(&format!("pays-{n}")).handler("pay").retry(soon))).unwrap();
        let moment = usize::try_from(fastrand::Rng::with_seed(seed ^ epoch).u32(1..2 * RUNS)).unwrap();
        eventually("effects were dropped, or all have ended", || {
            world.dropped.load(Ordering::SeqCst) >= moment || all_final(&db, RUNS)
        });
        first.shutdown_background();
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        world.is_calm.store(true, Ordering::SeqCst);
        let second = runtime();
        let scheduler = start(&db, &second, &world, seed);
        eventually("all have ended", || all_final(&db, RUNS));
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
        let doubtful: BTreeSet<i64> = db
            .rows("SELECT id FROM task_runs WHERE status <> 'succeeded'")
            .iter()
            .map(|id| id.parse().unwrap())
            .collect();
        let (called, returned) = (world.called.lock().unwrap(), world.returned.lock().unwrap());
        let others: Vec<_> = doubtful.iter().filter(|id| !called.contains(id) || returned.contains(id)).collect();
        let errors = db.rows("SELECT id, error FROM task_runs WHERE status <> 'succeeded' LIMIT 3");
        assert!(others.is_empty(), "of {doubtful:?} in doubt: {others:?}, {errors:?}");
        assert_eq!(world.performed.load(Ordering::SeqCst), returned.len(), "an effect was performed twice");
        (dropped, in_doubt) = (dropped + world.dropped.load(Ordering::SeqCst), in_doubt + doubtful.len());
    }
    println!("{dropped} dropped, {in_doubt} in doubt, {epoch} runtimes shut down");
}
