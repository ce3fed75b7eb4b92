//! The double run, on this disk: a task that takes longer than a poll, for the poll loop that people write, and for two
//! schedulers beside it. The loop must double it, or what is said of the schedulers is worth nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::selftest::naive::Naive;
use crate::selftest::report::{Check, so_many};
use crate::selftest::scenario::{self, Stage};
use crate::selftest::tasks::BENCH;
use crate::selftest::wait::{Halt, Patience, failed};

/// How often the loop looks; as often as the schedulers do.
const POLL: Duration = Duration::from_millis(50);
/// When the first occurrence is due.
const SOON: Duration = Duration::from_millis(100);

/// Lets both work for so long.
pub(crate) fn bench(folder: &Path, length: Duration, patience: &Patience) -> Result<Vec<Check>, Halt> {
    let from = patience.wall().plus(SOON);
    let to = from.plus(length);
    let mut stage = Stage::set(folder, vec![(BENCH.task(from, to), BENCH.promise(from, to))])?;
    let (every, takes) = (Duration::from_millis(BENCH.every), Duration::from_millis(BENCH.takes));
    let in_loop = |error| failed("cannot keep a table beside")(error);
    let mut naive = Naive::new(folder, from, every, takes).map_err(in_loop)?;
    while patience.wall() < to {
        naive.poll(patience.wall()).map_err(in_loop)?;
        stage.live()?;
        patience.rest(POLL)?;
    }
    stage.quiet(patience)?;
    let (faults, sums) = stage.judged()?;
    let occurrences: BTreeSet<_> = naive.started.iter().collect();
    let began = (sums.occurrences - sums.skipped, so_many(sums.starts, "start"));
    let found = format!("the same task, two schedulers: {} of {}", began.1, so_many(began.0, "occurrence"));
    Ok(vec![doubled(naive.started.len(), occurrences.len()), scenario::verdict("duly", &faults, found)])
}

/// What it means that the loop started so much.
pub(crate) fn doubled(starts: usize, occurrences: usize) -> Check {
    let found = format!(
        "a task that takes {} ms, polled every {} ms: {} of {}, {} too many",
        BENCH.takes,
        POLL.as_millis(),
        so_many(starts, "start"),
        so_many(occurrences, "occurrence"),
        starts - occurrences
    );
    if starts > occurrences {
        return Check::good("naive loop", found);
    }
    let advice = "the bench saw no double run where there must be some: give it more time (--for 1m)";
    Check::bad("naive loop", found, advice)
}

#[cfg(test)]
mod tests {
    use super::doubled;
    use crate::selftest::report::Verdict;

    #[test]
    fn a_bench_that_sees_no_double_proves_nothing() {
        let seen = doubled(14, 2);
        let found = "a task that takes 350 ms, polled every 50 ms: 14 starts of 2 occurrences, 12 too many";
        assert_eq!((seen.verdict, seen.found.as_str()), (Verdict::Good, found));
        assert_eq!([doubled(2, 2).verdict, doubled(0, 0).verdict], [Verdict::Bad; 2]);
    }
}
