//! The tasks of the schedulers (short, slow, overlapping, failing), with what is expected of each. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{NewTask, Overlap, RetryPolicy, Timestamp};

use crate::selftest::checker::Expectation;
use crate::selftest::child::{HANDLER, Work};

/// An interval task.
pub(crate) struct Grid {
    pub(crate) name: &'static str,
    pub(crate) every: u64,
    pub(crate) takes: u64,
    pub(crate) overlap: Overlap,
    pub(crate) fails_first: bool,
    pub(crate) at_most_once: bool,
}

const PLAIN: Grid =
    Grid { name: "", every: 0, takes: 0, overlap: Overlap::Skip, fails_first: false, at_most_once: false };

/// One task of each kind.
pub(crate) const GRIDS: [Grid; 7] = [
    Grid { name: "short", every: 250, takes: 5, ..PLAIN },
    Grid { name: "slow", every: 500, takes: 700, ..PLAIN },
    Grid { name: "buffered", every: 400, takes: 150, overlap: Overlap::BufferAll, ..PLAIN },
    Grid { name: "beside-itself", every: 600, takes: 800, overlap: Overlap::Allow, ..PLAIN },
    Grid { name: "replaced", every: 700, takes: 900, overlap: Overlap::CancelRunning, ..PLAIN },
    Grid { name: "frail", every: 300, takes: 10, fails_first: true, ..PLAIN },
    Grid { name: "at-most-once", every: 200, takes: 20, at_most_once: true, ..PLAIN },
];

/// A task whose runs take longer than the poll interval.
pub(crate) const BENCH: Grid = Grid { name: "bench", every: 500, takes: 350, ..PLAIN };

impl Grid {
    pub(crate) fn task(&self, from: Timestamp, to: Timestamp) -> NewTask {
        let work = Work { millis: self.takes, fails_first: self.fails_first };
        let task = NewTask::interval(self.name, Duration::from_millis(self.every)).starts_at(from).ends_at(to);
        let task = soon(task.handler(HANDLER).payload(work).overlap(self.overlap));
        if self.at_most_once { task.at_most_once() } else { task }
    }

    pub(crate) fn expectation(&self, from: Timestamp, to: Timestamp) -> Expectation {
        let every = Duration::from_millis(self.every);
        let instants = std::iter::successors(Some(from), |at| Some(at.plus(every))).take_while(|at| *at <= to);
        Expectation {
            task: self.name.to_owned(),
            due: Some(instants.collect::<BTreeSet<_>>()),
            at_most_once: self.at_most_once,
            alone: self.overlap != Overlap::Allow,
        }
    }
}

/// A cron task that is due every second.
pub(crate) fn tick(from: Timestamp, to: Timestamp) -> (NewTask, Expectation) {
    const TICK: &str = "tick";
    let work = Work { millis: 10, ..Work::default() };
    let task = NewTask::cron(TICK, "* * * * * *").starts_at(from).ends_at(to).handler(HANDLER).payload(work);
    let seconds = from.as_millis().div_euclid(1000) + i64::from(from.as_millis() % 1000 != 0);
    let due = (seconds..=to.as_millis().div_euclid(1000)).map(|second| Timestamp::from_millis(second * 1000));
    let expected = Expectation { task: TICK.to_owned(), due: Some(due.collect()), at_most_once: false, alone: true };
    (soon(task.overlap(Overlap::BufferAll)), expected)
}

/// The task that only runs when it is triggered.
pub(crate) const MANUAL: &str = "manual";

pub(crate) fn manual() -> (NewTask, Expectation) {
    // It is never due during the test.
    let task = NewTask::once(MANUAL, Timestamp::MAX).handler(HANDLER).payload(Work { millis: 30, ..Work::default() });
    let due = Some(BTreeSet::new());
    (soon(task), Expectation { task: MANUAL.to_owned(), due, at_most_once: false, alone: true })
}

/// Sets a short backoff and enough attempts for all kills.
fn soon(task: NewTask) -> NewTask {
    let (backoff, max_backoff) = (Duration::from_millis(10), Duration::from_millis(100));
    task.retry(RetryPolicy { max_attempts: 100_000, backoff, max_backoff })
}
