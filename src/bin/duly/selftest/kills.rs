//! Two schedulers on one file, one or the other killed at random and started again, and what became of their work.

use std::path::Path;
use std::time::Duration;

use crate::selftest::report::{Check, so_many};
use crate::selftest::scenario::{self, Stage};
use crate::selftest::tasks::{self, GRIDS};
use crate::selftest::wait::{Halt, Patience, failed};

/// How long both may be at work between two kills.
const BETWEEN: (u64, u64) = (50, 600);
/// How long one that was killed stays away, at most.
const AWAY: u64 = 200;
/// Of so many kills one is of both.
const BOTH: u8 = 4;
/// Most requests by hand between two kills.
const REQUESTS: u8 = 3;
/// When the first occurrences are due.
const SOON: Duration = Duration::from_millis(100);

/// Kills for so long, waits until all is quiet, and compares.
pub(crate) fn kills(folder: &Path, seed: u64, length: Duration, patience: &Patience) -> Result<Vec<Check>, Halt> {
    let mut random = fastrand::Rng::with_seed(seed);
    let from = patience.wall().plus(SOON);
    let to = from.plus(length);
    let grids = GRIDS.iter().map(|grid| (grid.task(from, to), grid.promise(from, to)));
    let mut stage = Stage::set(folder, grids.chain([tasks::tick(from, to), tasks::asked()]).collect())?;
    let (begin, mut killed, mut requests) = (patience.passed(), 0_usize, 0_usize);
    while patience.passed() - begin < length {
        patience.rest(Duration::from_millis(random.u64(BETWEEN.0..BETWEEN.1)))?;
        for _ in 0..random.u8(..=REQUESTS) {
            stage.client.trigger(tasks::ASKED).map_err(failed("cannot ask for a run"))?;
            requests += 1;
        }
        let both: &[usize] = &[0, 1];
        let which = if random.u8(..BOTH) == 0 { both } else { std::slice::from_ref(&both[random.usize(..2)]) };
        stage.kill(which, Duration::from_millis(random.u64(..AWAY)), patience)?;
        killed += which.len();
    }
    stage.quiet(patience)?;
    let (faults, sums) = stage.judged()?;
    let found = format!(
        "two schedulers, killed {} in {} s: {}, {requests} of them by hand, {} skipped as overlapping; {}, {} lost with its process",
        so_many(killed, "time"),
        length.as_secs(),
        so_many(sums.occurrences, "occurrence"),
        sums.skipped,
        so_many(sums.starts, "start"),
        so_many(sums.lost, "attempt"),
    );
    let findings = stage.client.doctor().map_err(failed("cannot read the database"))?;
    let doctor = match findings.first() {
        None => Check::good("doctor", "every page, every index, every rule of its file is sound"),
        Some(first) => {
            Check::bad("doctor", format!("{}: {first}", so_many(findings.len(), "finding")), scenario::REPORT)
        }
    };
    Ok(vec![scenario::verdict("kills", &faults, found), doctor])
}
