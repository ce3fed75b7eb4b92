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
}

/// The times of one kind.
#[derive(Default)]
struct Times {
    faults: usize,
    settled: Vec<Duration>,
    next: Vec<Duration>,
}

/// The times of all kinds, and what is still waited for.
#[derive(Default)]
pub(crate) struct Recoveries {
    pending: Vec<Recovery>,
    times: BTreeMap<Kind, Times>,
}

impl Recoveries {
    /// A fault begins: `claims` were running on its host, and `probe` is added for any host.
    pub(crate) fn begin(&mut self, kind: Kind, since: Instant, claims: BTreeSet<String>, probe: String) {
        self.times.entry(kind).or_default().faults += 1;
        self.pending.push(Recovery { kind, since, claims, probe: Some(probe) });
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
            }
        }
        self.pending.retain(|one| !one.claims.is_empty() || one.probe.is_some());
    }

    /// Prints a line for each kind.
    pub(crate) fn print(&mut self) {
        println!("{:<18} {:>6}  {:<29}  a run that any host may take", "fault", "count", "runs of the host settled");
        for (kind, times) in &mut self.times {
            let (settled, next) = (summary(&mut times.settled), summary(&mut times.next));
            println!("{:<18} {:>6}  {settled:<29}  {next}", format!("{kind:?}"), times.faults);
        }
    }
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return "-".to_owned() };
    let median = times[times.len() / 2];
    format!("median {:>5.2} s, at most {:>5.2} s", median.as_secs_f64(), longest.as_secs_f64())
}
