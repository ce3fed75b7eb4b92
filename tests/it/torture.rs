//! All faults at once, for the time in `DULY_TORTURE` (`60s`, or a number of seconds): real schedulers of both kinds on one
//! file are killed, stopped past their lease, drained, and run with a wrong clock; the write lock is held for seconds, the
//! disk is busy, tasks are edited by SQL, triggered and cancelled. When the faults end, all due work must be done in bounded
//! time, and the handlers' own journal is compared with the tables.
//!
//! `DULY_SEED` repeats the choices; their timing depends on the machine.
#![cfg(target_os = "linux")]

mod processes;
mod scenario;
mod tasks;

use std::time::{Duration, Instant};

use crate::evidence::{UNSHARE, tool_works};
use crate::fixtures::number;
use crate::torture::scenario::Scenario;

/// The default length.
const LENGTH: Duration = Duration::from_secs(5);

fn length() -> Duration {
    let Ok(text) = std::env::var("DULY_TORTURE") else { return LENGTH };
    let seconds = text.parse().map(Duration::from_secs).map_err(|_| ());
    seconds.unwrap_or_else(|()| duly::parse_duration(&text).expect("DULY_TORTURE is a length of time: 60s, or seconds"))
}

#[test]
fn every_occurrence_is_recorded_once_and_all_work_finishes_under_faults() {
    torture(false);
}

/// The schedulers of commands do not see each other's processes. Some are killed with their namespace, others alone.
#[test]
fn schedulers_in_two_pid_namespaces_start_nothing_beside_a_running_attempt() {
    if tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        torture(true);
    }
}

fn torture(namespaced: bool) {
    let length = length();
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("{length:?}, DULY_SEED={seed}");
    let mut scenario = Scenario::begin(seed, length, namespaced);
    let begin = Instant::now();
    while begin.elapsed() < length {
        scenario.advance();
        scenario.take_action();
        std::thread::sleep(scenario.millis(20, 150));
    }
    scenario.end_faults();
    let settled = scenario.wait_until_done();
    scenario.shut_down();
    let sums = scenario.check();
    println!("{}\n{sums:?}, all done {} ms after the last fault", scenario.counts, settled.as_millis());
    assert!(sums.starts > 0, "no attempt has started");
}
