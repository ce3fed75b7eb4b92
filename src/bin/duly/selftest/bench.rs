//! The double run, on this disk: a task that takes longer than the poll interval is run by a naive poll loop and by two
//! schedulers. The loop must run it twice: otherwise the result of the schedulers proves nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::output::units::count_of;
use crate::selftest::naive::Naive;
use crate::selftest::report::Check;
use crate::selftest::scenario::{self, Scenario};
use crate::selftest::tasks::BENCH;
use crate::selftest::wait::{CheckError, Timer, failed};

/// Poll interval of the loop; that of the schedulers is the same.
const POLL: Duration = Duration::from_millis(50);
/// Delay of the first occurrence.
const SOON: Duration = Duration::from_millis(100);

/// Runs the loop and the schedulers for `length`.
pub(crate) fn bench(folder: &Path, length: Duration, timer: &Timer) -> Result<Vec<Check>, CheckError> {
    let mut scenario = Scenario::create(folder)?;
    let from = timer.wall().plus(SOON);
    let to = from.plus(length);
    scenario.start(vec![(BENCH.task(from, to), BENCH.expectation(from, to))])?;
    let (every, takes) = (Duration::from_millis(BENCH.every), Duration::from_millis(BENCH.takes));
    let in_loop = |error| failed("cannot use the table of the loop")(error);
    let mut naive = Naive::new(folder, from, every, takes).map_err(in_loop)?;
    while timer.wall() < to {
        naive.poll(timer.wall()).map_err(in_loop)?;
        scenario.check_alive()?;
        timer.sleep(POLL)?;
    }
    scenario.finish(timer)?;
    let (faults, counts) = scenario.check()?;
    let occurrences: BTreeSet<_> = naive.started.iter().collect();
    let (starts, due) = (count_of(counts.starts, "start"), count_of(counts.occurrences - counts.skipped, "occurrence"));
    let found = format!("the same task, two schedulers: {starts} of {due}");
    Ok(vec![doubled(naive.started.len(), occurrences.len()), scenario::verdict("duly", &faults, found)])
}

/// The check of the loop, from its numbers of starts and occurrences.
pub(crate) fn doubled(starts: usize, occurrences: usize) -> Check {
    let found = format!(
        "a task that takes {} ms, polled every {} ms: {} of {}, {} too many",
        BENCH.takes,
        POLL.as_millis(),
        count_of(starts, "start"),
        count_of(occurrences, "occurrence"),
        starts - occurrences
    );
    if starts > occurrences {
        return Check::good("naive loop", found);
    }
    let advice = "the naive loop should have run the task twice: repeat the test with more time (--for 1m)";
    Check::bad("naive loop", found, advice)
}

#[cfg(test)]
mod tests {
    use super::doubled;
    use crate::selftest::report::Verdict;

    #[test]
    fn a_loop_without_double_runs_fails_the_check() {
        let seen = doubled(14, 2);
        let found = "a task that takes 350 ms, polled every 50 ms: 14 starts of 2 occurrences, 12 too many";
        assert_eq!((seen.verdict, seen.found.as_str()), (Verdict::Good, found));
        assert_eq!([doubled(2, 2).verdict, doubled(0, 0).verdict], [Verdict::Bad; 2]);
    }
}
