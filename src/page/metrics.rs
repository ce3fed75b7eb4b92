//! The observer that counts for `/metrics`: atomics by handler, and by task if that is asked for.
//!
//! An observer runs on the scheduler's own thread. It does no I/O, and shares one lock with a scrape, which holds it while it copies
//! a few hundred pointers.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::clock::{Clock, millis};
use crate::model::event::{Event, Observer};
use crate::model::run::{Claim, RunStatus};

/// Most handlers and tasks that have series of their own. The rest share one.
const MAX_HANDLERS: usize = 100;
const MAX_TASKS: usize = 10_000;
/// The label of all others, and of tasks that are due once: names of such tasks are seldom used again.
pub(super) const OTHER: &str = "other";
/// Most series that a scrape copies under the lock.
const COPIED: usize = 256;

/// The ends of a run, as in the tables.
pub(super) const RUN_OUTCOMES: [&str; 5] = ["succeeded", "dead", "cancelled", "skipped", "missed"];
/// The ends of an attempt.
pub(super) const ATTEMPT_OUTCOMES: [&str; 9] =
    ["succeeded", "failed", "cancelled", "snoozed", "skipped", "interrupted", "released", "lost", "superseded"];

/// The upper bounds of the buckets of all histograms, in milliseconds: 5 ms to a day.
pub(super) const BOUNDS: [u64; 15] =
    [5, 25, 100, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000, 86_400_000];

/// Counts the events of one scheduler. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Metrics {
    counts: Arc<Counts>,
    clock: Arc<dyn Clock>,
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// What is counted.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) handlers: Named<OfHandler>,
    /// `None` unless it is asked for.
    pub(super) tasks: Option<Named<OfTask>>,
    pub(super) skipped: AtomicU64,
    pub(super) missed: AtomicU64,
    pub(super) clock_steps: AtomicU64,
    /// Whether the last write was refused.
    pub(super) is_degraded: AtomicBool,
}

/// The counts of one handler.
#[derive(Debug, Default)]
pub(super) struct OfHandler {
    pub(super) runs: [AtomicU64; RUN_OUTCOMES.len()],
    pub(super) attempts: [AtomicU64; ATTEMPT_OUTCOMES.len()],
    pub(super) retries: AtomicU64,
    pub(super) recovered: AtomicU64,
    pub(super) lateness: Histogram,
    pub(super) duration: Histogram,
}

/// The counts of one task.
#[derive(Debug, Default)]
pub(super) struct OfTask {
    pub(super) runs: [AtomicU64; RUN_OUTCOMES.len()],
    pub(super) attempts: [AtomicU64; ATTEMPT_OUTCOMES.len()],
    pub(super) busy_millis: AtomicU64,
}

/// Durations, counted by the bucket that they fall into; the last is for those above all bounds.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    pub(super) buckets: [AtomicU64; BOUNDS.len() + 1],
    pub(super) sum_millis: AtomicU64,
}

impl Histogram {
    fn observe(&self, duration: Duration) {
        let millis = millis(duration).unsigned_abs();
        let bucket = BOUNDS.partition_point(|bound| *bound < millis);
        add(&self.buckets[bucket], 1);
        add(&self.sum_millis, millis);
    }
}

fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl Metrics {
    /// `handlers`: those of the scheduler, whose series begin at zero.
    pub(super) fn new(clock: Arc<dyn Clock>, handlers: &BTreeSet<String>, per_task: bool) -> Self {
        let counts = Counts {
            handlers: Named::new(MAX_HANDLERS),
            tasks: per_task.then(|| Named::new(MAX_TASKS)),
            skipped: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            clock_steps: AtomicU64::new(0),
            is_degraded: AtomicBool::new(false),
        };
        handlers.iter().for_each(|handler| drop(counts.handlers.get(handler)));
        Metrics { counts: Arc::new(counts), clock }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event) {
        let counts = &*self.counts;
        match event {
            Event::Started { claim } => {
                let of = counts.handlers.get(&claim.handler);
                // Of a later attempt, the backoff would count as lateness, or a time for which a handler snoozed.
                if claim.attempt == 1 {
                    of.lateness.observe(self.clock.now().wall.since(claim.scheduled_for));
                }
                if claim.counted() > 1 {
                    add(&of.retries, 1);
                }
            }
            Event::Finished { claim, status, took, .. } => {
                let outcome = match status {
                    RunStatus::Succeeded => "succeeded",
                    RunStatus::Cancelled => "cancelled",
                    RunStatus::Skipped => "skipped",
                    RunStatus::Queued => "released",
                    _ => "failed",
                };
                let took = (*status != RunStatus::Queued).then_some(*took);
                counts.attempt_ended(claim, outcome, took);
                counts.run_ended(&claim.handler, counts.task(claim), *status);
            }
            Event::Snoozed { claim, took, .. } => counts.attempt_ended(claim, "snoozed", Some(*took)),
            Event::Interrupted { claim, took, .. } => counts.attempt_ended(claim, "interrupted", Some(*took)),
            Event::Superseded { claim } => counts.attempt_ended(claim, "superseded", None),
            Event::Lost { task, handler, status, .. } => {
                let (of, task) = (counts.handlers.get(handler), counts.known_task(task));
                let outcome = if *status == RunStatus::Queued { "released" } else { "lost" };
                add(&of.recovered, 1);
                count(&of.attempts, &ATTEMPT_OUTCOMES, outcome);
                task.iter().for_each(|task| count(&task.attempts, &ATTEMPT_OUTCOMES, outcome));
                counts.run_ended(handler, task, *status);
            }
            Event::Cancelled { task, handler, .. } => {
                counts.run_ended(handler, counts.known_task(task), RunStatus::Cancelled);
            }
            Event::Expired { task, handler, .. } => {
                counts.run_ended(handler, counts.known_task(task), RunStatus::Missed);
            }
            Event::PassedOver { status: RunStatus::Skipped, count, .. } => add(&counts.skipped, *count),
            Event::PassedOver { count, .. } => add(&counts.missed, *count),
            Event::ClockStepped { .. } | Event::ClockWasWrong { .. } => add(&counts.clock_steps, 1),
            Event::Degraded { .. } => counts.is_degraded.store(true, Ordering::Relaxed),
            Event::Recovered => counts.is_degraded.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Counts {
    fn attempt_ended(&self, claim: &Claim, outcome: &str, took: Option<Duration>) {
        let (of, task) = (self.handlers.get(&claim.handler), self.task(claim));
        count(&of.attempts, &ATTEMPT_OUTCOMES, outcome);
        took.iter().for_each(|took| of.duration.observe(*took));
        if let Some(task) = task {
            count(&task.attempts, &ATTEMPT_OUTCOMES, outcome);
            add(&task.busy_millis, took.map_or(0, |took| millis(took).unsigned_abs()));
        }
    }

    /// Counts a run if its status is final.
    fn run_ended(&self, handler: &str, task: Option<Arc<OfTask>>, status: RunStatus) {
        if status.is_final() {
            count(&self.handlers.get(handler).runs, &RUN_OUTCOMES, status.as_str());
            task.iter().for_each(|task| count(&task.runs, &RUN_OUTCOMES, status.as_str()));
        }
    }

    /// Returns the counts of the task of an attempt, if tasks are counted.
    fn task(&self, claim: &Claim) -> Option<Arc<OfTask>> {
        let tasks = self.tasks.as_ref()?;
        Some(tasks.get(if claim.recurring { &claim.task } else { OTHER }))
    }

    /// As [`Counts::task`], for an event that does not show whether the task is due once: it counts by name if its name is known.
    fn known_task(&self, task: &str) -> Option<Arc<OfTask>> {
        let tasks = self.tasks.as_ref()?;
        Some(tasks.known(task).unwrap_or_else(|| tasks.get(OTHER)))
    }
}

fn count<const N: usize>(counts: &[AtomicU64; N], outcomes: &[&str; N], outcome: &str) {
    if let Some(at) = outcomes.iter().position(|one| *one == outcome) {
        add(&counts[at], 1);
    }
}

/// Values by name, at most a limit of them and one for all others. None is ever removed, so that no series goes back to zero.
#[derive(Debug)]
pub(super) struct Named<T> {
    limit: usize,
    values: RwLock<Values<T>>,
}

/// In the order in which they were made, and where each is in that order.
#[derive(Debug)]
struct Values<T> {
    all: Vec<(Arc<str>, Arc<T>)>,
    places: HashMap<Arc<str>, usize>,
}

impl<T: Default> Named<T> {
    fn new(limit: usize) -> Self {
        Named { limit, values: RwLock::new(Values { all: Vec::new(), places: HashMap::new() }) }
    }

    /// Returns the value of a name, and makes it unless the limit is reached.
    fn get(&self, name: &str) -> Arc<T> {
        let name = label(name);
        if let Some(known) = self.known(&name) {
            return known;
        }
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = values.all.len() >= self.limit && !values.places.contains_key(&*name);
        let name: Arc<str> = if is_full { OTHER.into() } else { (&*name).into() };
        if let Some(place) = values.places.get(&name) {
            return values.all[*place].1.clone();
        }
        let (place, value) = (values.all.len(), Arc::<T>::default());
        values.places.insert(name.clone(), place);
        values.all.push((name, value.clone()));
        value
    }

    /// Returns the value of a name that has one.
    fn known(&self, name: &str) -> Option<Arc<T>> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        values.places.get(&*label(name)).map(|place| values.all[*place].1.clone())
    }

    /// Returns all values with their names, which are valid labels.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<T>)> {
        let mut all = Vec::new();
        loop {
            let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
            let (from, end) = (all.len(), values.all.len());
            if from == end {
                return all;
            }
            all.extend_from_slice(&values.all[from..end.min(from + COPIED)]);
        }
    }
}

/// Returns a name without control characters, which some readers of the text format do not accept.
fn label(name: &str) -> Cow<'_, str> {
    if !name.contains(char::is_control) {
        return name.into();
    }
    let one = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    name.chars().map(one).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::{ATTEMPT_OUTCOMES, BOUNDS, Histogram, MAX_HANDLERS, Metrics, Named, OfTask};
    use crate::clock::{SystemClock, Timestamp};
    use crate::model::event::{Event, Observer};
    use crate::model::run::Claim;

    #[test]
    fn an_interruption_is_no_failure() {
        let metrics = Metrics::new(Arc::new(SystemClock::new()), &BTreeSet::new(), true);
        let (next_attempt, reason) = (Timestamp::from_millis(1_805_025_600_000), "cut short".to_owned());
        let claim = Arc::new(Claim::described(1, 1, "t".to_owned(), "work".to_owned(), next_attempt));
        metrics.observe(&Event::Interrupted { claim, reason, took: Duration::ZERO, next_attempt });
        let of = metrics.counts().handlers.get("work");
        let counted = ATTEMPT_OUTCOMES.iter().zip(&of.attempts).filter(|(_, count)| count.load(Ordering::Relaxed) > 0);
        assert_eq!(counted.map(|(outcome, _)| *outcome).collect::<Vec<_>>(), ["interrupted"]);
    }

    #[test]
    fn names_beyond_the_limit_share_one_value_and_known_names_keep_theirs() {
        let named = Named::<OfTask>::new(MAX_HANDLERS);
        for number in 0..10_000 {
            named.get(&format!("h{number}")).busy_millis.fetch_add(1, Ordering::Relaxed);
        }
        named.get("h7").busy_millis.fetch_add(1, Ordering::Relaxed);
        let all = named.all();
        assert_eq!(all.len(), MAX_HANDLERS + 1);
        let of = |name: &str| {
            all.iter().find(|(one, _)| &**one == name).map(|(_, of)| of.busy_millis.load(Ordering::Relaxed))
        };
        assert_eq!((of("h7"), of("h99"), of("h100"), of("other")), (Some(2), Some(1), None, Some(9_900)));
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for millis in [0, 5, 6, 86_400_000, 86_400_001] {
            histogram.observe(Duration::from_millis(millis));
        }
        histogram.observe(Duration::from_micros(5_900));
        let counts: Vec<u64> = histogram.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[14], counts[15]), (3, 1, 1, 1), "cut to whole milliseconds");
        assert!(BOUNDS.is_sorted());
    }
}
