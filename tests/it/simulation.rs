//! Simulates days of virtual time from a seed: owners die, clocks step, the file is busy. After every step a checker with
//! its own model compares the tables with what may have happened, in the manner of Jepsen's test of Chronos.
//!
//! A failing seed prints itself and the command that repeats it. `DULY_SEED=7` runs one seed, `DULY_SEEDS=2000` that many,
//! and `DULY_FROM=500` starts with that one. `DULY_STORE=postgres` runs them on PostgreSQL, each thread on a server of its own.

mod actions;
mod attempts;
mod calendar;
mod claim_order;
mod databases;
mod drain;
mod effects;
mod event_loop;
mod expiry;
mod faults;
mod hidden_processes;
mod history;
mod interruptions;
mod limits;
mod marks_seen;
#[cfg(feature = "postgres")]
mod network;
mod newer_version;
mod notices;
mod observer;
mod occurrences;
mod on_dead;
#[cfg(feature = "postgres")]
mod on_server;
mod policies;
mod restores;
mod retention;
mod rows;
mod scenario;
#[cfg(feature = "postgres")]
mod server_faults;
#[cfg(feature = "postgres")]
mod server_time;
mod shell;
mod snapshot_reader;
mod starts;
mod transitions;
mod unusable_rows;
mod zone_change;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::simulation::databases::{Database, Kind};
use crate::simulation::history::{Action, Check};
use crate::simulation::scenario::{Scenario, humantime_of};

/// Minimum number of turns of a seed, of turns with faults, of those if a turn writes a few items, and of faults.
const TURNS: u64 = 200;
const FAULT_TURNS: u64 = 150;
const SMALL_FAULT_TURNS: u64 = 500;
const FAULTS: u64 = 3;
/// Seeds of an ordinary test run, and those of them on a server.
const SEEDS: u64 = 5;
#[cfg(feature = "postgres")]
const SEEDS_ON_SERVER: u64 = 1;
/// A run of this many seeds fails unless it has met each kind of open mark and, on a server, each kind of fault of the server.
const MANY_SEEDS: u64 = 400;

/// The result of one seed, or the sum over many.
#[derive(Debug, Default, PartialEq)]
struct Summary {
    turns: u64,
    passed: Duration,
    faults: BTreeMap<&'static str, u64>,
    /// Steps after which a mark of each kind was open.
    marks: BTreeMap<&'static str, u64>,
    fingerprint: u64,
}

/// Runs one seed in `database`, which the next seed reuses. The error is the complete report.
fn run_seed(kind: Kind, seed: u64, database: &mut Option<Database>) -> Result<Summary, String> {
    let mut scenario = Scenario::new(seed, database.take().unwrap_or_else(|| Database::new(kind)));
    // A panic of duly's own assertions is reported with its seed too.
    let lived = catch_unwind(AssertUnwindSafe(|| run_turns(&mut scenario))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        Err(words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned())).unwrap_or_default())
    });
    match lived {
        Ok(()) => {
            let (passed, fingerprint) = (scenario.now().monotonic, scenario.fingerprint());
            let (turns, faults) = (scenario.turns, std::mem::take(&mut scenario.faults));
            let marks = std::mem::take(&mut scenario.marks_seen);
            *database = scenario.into_database();
            Ok(Summary { turns, passed, faults, marks, fingerprint })
        }
        Err(broken) => Err(scenario.failure_report(&broken)),
    }
}

fn run_turns(scenario: &mut Scenario) -> Check {
    for _ in 0..scenario.rng.u32(2..6) {
        scenario.add()?;
    }
    scenario.start_scheduler()?;
    let turns = if scenario.has_small_turns() { SMALL_FAULT_TURNS } else { FAULT_TURNS };
    while scenario.turns < turns || scenario.faults.values().sum::<u64>() < FAULTS {
        match scenario.rng.u32(..100) {
            0..76 => scenario.pass_and_turn()?,
            76..94 => scenario.random_action()?,
            94..99 => scenario.inject_fault()?,
            _ => scenario.start_scheduler()?,
        }
        if scenario.once_in(200) {
            scenario.check_doctor()?;
        }
    }
    scenario.finish_without_faults()?;
    scenario.check_retention_at_end()?;
    // The phase without faults mostly takes more turns than are left.
    while scenario.turns < TURNS {
        scenario.start_if_none_alive()?;
        scenario.pass_and_turn()?;
    }
    scenario.check_all_ledger_rows()?;
    scenario.check_doctor()?;
    scenario.upgrade_tables()?;
    scenario.history.observer.force_full_read();
    scenario.record(&Action::Nothing, "it ends")
}

fn add(sum: &mut BTreeMap<&'static str, u64>, counts: BTreeMap<&'static str, u64>) {
    counts.into_iter().for_each(|(kind, times)| *sum.entry(kind).or_default() += times);
}

/// Runs seeds on as many threads as there are processors. Stops at the first that fails.
fn run_seeds(kind: Kind, seeds: std::ops::Range<u64>) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let (sum, failed) = (Mutex::new(Summary::default()), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut database = None;
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    match run_seed(kind, seed, &mut database) {
                        Ok(summary) => {
                            let mut sum = sum.lock().expect("a sum");
                            sum.turns += summary.turns;
                            sum.passed += summary.passed;
                            add(&mut sum.faults, summary.faults);
                            add(&mut sum.marks, summary.marks);
                        }
                        Err(report) => {
                            stop.store(true, Ordering::Relaxed);
                            failed.lock().expect("a failure").get_or_insert(report);
                        }
                    }
                }
            });
        }
    });
    if let Some(report) = failed.into_inner().expect("a failure") {
        panic!("{report}");
    }
    sum.into_inner().expect("a sum")
}

fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

fn check_seeds(kind: Kind, seeds: std::ops::Range<u64>) {
    let count = seeds.end - seeds.start;
    let summary = run_seeds(kind, seeds);
    println!("{count} seeds, {} turns, {} of virtual time", summary.turns, humantime_of(summary.passed));
    for (what, times) in summary.faults.iter().chain(&summary.marks) {
        println!("{times:>9} {what}");
    }
    assert!(summary.turns >= TURNS * count && summary.faults.values().sum::<u64>() >= FAULTS * count);
    if count >= MANY_SEEDS {
        let never = marks_seen::ALL.iter().find(|mark| !summary.marks.contains_key(**mark));
        assert_eq!(never, None, "a kind of mark that was never open in {count} seeds");
    }
    #[cfg(feature = "postgres")]
    if kind == Kind::Server && count >= MANY_SEEDS {
        let never = server_faults::ALL.iter().find(|fault| !summary.faults.contains_key(**fault));
        assert_eq!(never, None, "a kind of fault that did not occur in {count} seeds");
    }
}

/// Returns the store that is asked for.
fn kind() -> Kind {
    #[cfg(feature = "postgres")]
    if std::env::var("DULY_STORE").as_deref() == Ok("postgres") {
        return Kind::Server;
    }
    Kind::File
}

fn check_determinism(kind: Kind) {
    let mut database = None;
    let mut run_seed = |seed| run_seed(kind, seed, &mut database).unwrap_or_else(|report| panic!("{report}"));
    let summary = run_seed(7);
    // Another seed in between, in the same database.
    run_seed(8);
    assert_eq!(run_seed(7), summary);
}

#[test]
fn every_occurrence_is_resolved_once_under_faults() {
    let seeds = match (env_number("DULY_SEED"), env_number("DULY_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => {
            let from = env_number("DULY_FROM").unwrap_or_default();
            from..from + seeds.unwrap_or(SEEDS)
        }
    };
    check_seeds(kind(), seeds);
}

#[test]
fn a_seed_is_deterministic_in_a_reused_database() {
    check_determinism(kind());
}

/// Else the lock file that the first one left would say of the second one that it is dead and has begun nothing.
#[test]
fn a_scheduler_has_another_id_than_one_that_could_not_start() {
    let mut scenario = Scenario::new(1, Database::new(kind()));
    scenario.database.shell.lock().expect("the write lock");
    scenario.write_locked = true;
    scenario.start(&["work"]).expect("a start that is refused");
    assert!(scenario.history.owners.is_empty());
    let folders = scenario.database.hosts.iter().map(|host| std::fs::read_dir(&host.locks));
    let files = folders.flat_map(|files| files.into_iter().flatten().flatten());
    let left: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    assert_ne!(left, [""; 0], "a scheduler takes its lock before it registers");
    scenario.release_write_lock();
    scenario.start(&["work"]).expect("a start");
    assert!(!left.contains(&scenario.history.owners[0].name), "{left:?}");
}

#[cfg(feature = "postgres")]
#[test]
fn some_seeds_hold_on_postgres() {
    if !crate::postgres::is_installed() {
        return crate::fixtures::skip("no PostgreSQL");
    }
    if kind() == Kind::File {
        check_seeds(Kind::Server, 0..SEEDS_ON_SERVER);
    }
}
