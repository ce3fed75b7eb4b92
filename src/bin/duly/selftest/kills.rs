//! Two schedulers on one file, killed at random and started again; the checker compares their work with the tables.

use std::path::Path;
use std::time::Duration;

use crate::output::units::count_of;
use crate::selftest::report::Check;
use crate::selftest::scenario::{self, Scenario};
use crate::selftest::tasks::{self, GRIDS};
use crate::selftest::wait::{CheckError, Timer, failed};

/// Bounds of the time between two kills, in milliseconds.
const BETWEEN: (u64, u64) = (50, 600);
/// Longest time until a killed scheduler is started again, in milliseconds.
const RESTART: u64 = 200;
/// One of this number of kills hits both schedulers.
const BOTH: u8 = 4;
/// Most manual runs between two kills.
const REQUESTS: u8 = 3;
/// Delay of the first occurrences.
const SOON: Duration = Duration::from_millis(100);

/// Kills schedulers for `length`, waits until all work is done, and checks the result.
pub(crate) fn kills(folder: &Path, seed: u64, length: Duration, timer: &Timer) -> Result<Vec<Check>, CheckError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scenario = Scenario::create(folder)?;
    let from = timer.wall().plus(SOON);
    let to = from.plus(length);
    let grids = GRIDS.iter().map(|grid| (grid.task(from, to), grid.expectation(from, to)));
    scenario.start(grids.chain([tasks::tick(from, to), tasks::manual()]).collect())?;
    let (begin, mut killed, mut requests) = (timer.elapsed(), 0_usize, 0_usize);
    while timer.elapsed() - begin < length {
        timer.sleep(Duration::from_millis(random.u64(BETWEEN.0..BETWEEN.1)))?;
        for _ in 0..random.u8(..=REQUESTS) {
            scenario.client.trigger(tasks::MANUAL).map_err(failed("cannot trigger a run"))?;
            requests += 1;
        }
        let both: &[usize] = &[0, 1];
        let which = if random.u8(..BOTH) == 0 { both } else { std::slice::from_ref(&both[random.usize(..2)]) };
        scenario.kill(which, Duration::from_millis(random.u64(..RESTART)), timer)?;
        killed += which.len();
    }
    scenario.finish(timer)?;
    let (faults, counts) = scenario.check()?;
    let found = format!(
        "two schedulers, killed {} in {} s: {}, {requests} of them manual, {} skipped (overlap); {}, {} lost by a kill",
        count_of(killed, "time"),
        length.as_secs(),
        count_of(counts.occurrences, "occurrence"),
        counts.skipped,
        count_of(counts.starts, "start"),
        count_of(counts.lost, "attempt"),
    );
    let findings = scenario.client.doctor().map_err(failed("cannot read the database"))?;
    let doctor = match findings.first() {
        None => Check::good("doctor", "the database of this check is intact"),
        Some(first) => {
            Check::bad("doctor", format!("{}: {first}", count_of(findings.len(), "finding")), scenario::REPORT)
        }
    };
    Ok(vec![scenario::verdict("kills", &faults, found), doctor])
}
