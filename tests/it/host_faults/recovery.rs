//! How long it takes after a fault until work goes on, by kind of fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::host_faults::Kind;

/// A fault, and what has not recovered from it yet.
pub(crate) struct Recovery {
    kind: Kind,
    since: Instant,
    /// The runs and attempts that were running on the host.
    claims: BTreeSet<String>,
    /// A task that was added with the fault, for any host.
    probe: Option<String>,
    /// Whether no other fault has lasted meanwhile.
    alone: bool,
}

/// The times of one kind.
#[derive(Default)]
struct Times {
    faults: usize,
    settled: Vec<Duration>,
    next: Vec<Duration>,
    /// Of these, the times during which no other fault lasted.
    next_alone: Vec<Duration>,
}

/// The times of all kinds, and what is still waited for.
#[derive(Default)]
pub(crate) struct Recoveries {
    pending: Vec<Recovery>,
    times: BTreeMap<Kind, Times>,
}

impl Recoveries {
    /// A fault begins: `claims` were running on its host, and `probe` is added for any host. `alone`: no other fault lasts.
    pub(crate) fn begin(&mut self, kind: Kind, since: Instant, claims: BTreeSet<String>, probe: String, alone: bool) {
        self.times.entry(kind).or_default().faults += 1;
        let alone = alone && self.pending.is_empty();
        self.pending.iter_mut().for_each(|one| one.alone = false);
        self.pending.push(Recovery { kind, since, claims, probe: Some(probe), alone });
    }

    /// Whether nothing is waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.is_empty()
    }

    /// Compares with what is running, and which tasks have a run that has ended.
    pub(crate) fn observe(&mut self, running: &BTreeSet<String>, ended: &BTreeSet<String>) {
        for one in &mut self.pending {
            let times = self.times.entry(one.kind).or_default();
            if !one.claims.is_empty() && one.claims.is_disjoint(running) {
                one.claims.clear();
                times.settled.push(one.since.elapsed());
            }
            if one.probe.take_if(|probe| ended.contains(probe)).is_some() {
                times.next.push(one.since.elapsed());
                if one.alone {
                    times.next_alone.push(one.since.elapsed());
                }
            }
        }
        self.pending.retain(|one| !one.claims.is_empty() || one.probe.is_some());
    }

    /// Prints a line for each kind.
    pub(crate) fn print(&mut self) {
        let columns = ["runs of the host settled", "a run that any host may take", "the same, without other faults"];
        println!("{:<14} {:>5}  {:<29}  {:<29}  {}", "fault", "count", columns[0], columns[1], columns[2]);
        for (kind, times) in &mut self.times {
            let (settled, next, count) =
                (summary(&mut times.settled), summary(&mut times.next), times.next_alone.len());
            let (kind, alone) = (format!("{kind:?}"), summary(&mut times.next_alone));
            println!("{kind:<14} {:>5}  {settled:<29}  {next:<29}  {count:>3}: {alone}", times.faults);
        }
    }
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return "-".to_owned() };
    let median = times[times.len() / 2];
    format!("median {:>5.2} s, at most {:>5.2} s", median.as_secs_f64(), longest.as_secs_f64())
}
