//! The metrics: their names, types, units and labels, and the two text formats that scrapers read.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::health::Queue;
use crate::model::report::Status;
use crate::model::task::TaskStatus;
use crate::model::vitals::Vitals;
use crate::page::metrics::{ATTEMPT_OUTCOMES, BOUNDS, Counts, Histogram, OfHandler, RUN_OUTCOMES};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    /// The format of Prometheus before OpenMetrics, which every scraper reads.
    Classic,
}

impl Format {
    /// Returns the format to answer in. `accept`: the header of the request.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Classic }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Labels = Vec<(&'static str, String)>;
/// No value has one.
type NoExemplar<'a> = Option<&'a Exemplar<Labels, f64>>;

#[derive(Debug)]
enum Value {
    Counter(u64),
    CounterOfSeconds(f64),
    Gauge(f64),
    Histogram { sum: f64, count: u64, buckets: Vec<(f64, u64)> },
    Info,
}

/// All series of one name.
#[derive(Debug)]
struct Family {
    /// Without unit and suffix.
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    samples: Vec<(Labels, Value)>,
}

impl Family {
    fn kind(&self) -> MetricType {
        match self.samples.first() {
            Some((_, Value::Counter(_) | Value::CounterOfSeconds(_))) => MetricType::Counter,
            Some((_, Value::Gauge(_))) => MetricType::Gauge,
            Some((_, Value::Histogram { .. })) => MetricType::Histogram,
            Some((_, Value::Info)) => MetricType::Info,
            None => MetricType::Unknown,
        }
    }

    /// Returns the name as OpenMetrics has it in its metadata.
    fn full_name(&self) -> String {
        self.unit.as_ref().map_or_else(|| self.name.to_owned(), |unit| format!("{}_{}", self.name, unit.as_str()))
    }
}

/// The values of one scrape.
#[derive(Debug, Default)]
pub(super) struct Sheet(Vec<Family>);

impl Sheet {
    fn add(&mut self, name: &'static str, help: &'static str, samples: Vec<(Labels, Value)>) {
        self.add_with_unit(name, None, help, samples);
    }

    fn add_with_unit(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        help: &'static str,
        samples: Vec<(Labels, Value)>,
    ) {
        // A family without series has no metadata either.
        if !samples.is_empty() {
            self.0.push(Family { name, unit, help, samples });
        }
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, vec![(Vec::new(), Value::Gauge(value as f64))]);
    }

    fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        of: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        let sample = |(value, count): (&str, u64)| (vec![(label, value.to_owned())], Value::Gauge(count as f64));
        self.add(name, help, of.into_iter().map(sample).collect());
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, vec![(Vec::new(), Value::Counter(value))]);
    }

    /// Adds what the events of this scheduler have counted.
    pub(super) fn add_counts(&mut self, counts: &Counts) {
        let handlers = counts.handlers.all();
        let outcomes = |label: &'static str, name: &str, all: &[AtomicU64], outcomes: &[&'static str]| {
            let labels = |outcome: &str| vec![(label, name.to_owned()), ("outcome", outcome.to_owned())];
            let samples = all.iter().zip(outcomes);
            samples.map(|(count, outcome)| (labels(outcome), Value::Counter(load(count)))).collect::<Vec<_>>()
        };
        let runs = handlers.iter().flat_map(|(name, of)| outcomes("handler", name, &of.runs, &RUN_OUTCOMES));
        self.add("duly_runs_finished", "Runs that became final on this scheduler, by status", runs.collect());
        let attempts =
            handlers.iter().flat_map(|(name, of)| outcomes("handler", name, &of.attempts, &ATTEMPT_OUTCOMES));
        self.add("duly_attempts", "Attempts that ended, by outcome", attempts.collect());
        let by_handler = |value: &dyn Fn(&OfHandler) -> Value| {
            handlers.iter().map(|(name, of)| (vec![("handler", name.to_string())], value(of))).collect::<Vec<_>>()
        };
        let retries = by_handler(&|of| Value::Counter(load(&of.retries)));
        self.add("duly_retries", "Attempts that began after an earlier attempt of their run that counts", retries);
        let recovered = by_handler(&|of| Value::Counter(load(&of.recovered)));
        self.add("duly_runs_recovered", "Runs that this scheduler recovered from schedulers that died", recovered);
        self.add_with_unit(
            "duly_run_lateness",
            Some(Unit::Seconds),
            "Time from the occurrence of a run, or from the request of a manual run, to the start of its first attempt",
            by_handler(&|of| histogram(&of.lateness)),
        );
        self.add_with_unit(
            "duly_attempt_duration",
            Some(Unit::Seconds),
            "Time for which the handler of an attempt worked",
            by_handler(&|of| histogram(&of.duration)),
        );
        self.counter(
            "duly_occurrences_skipped",
            "Occurrences for which no run was opened because of the overlap policy of the task",
            load(&counts.skipped),
        );
        self.counter(
            "duly_occurrences_missed",
            "Occurrences for which no run was opened because they were resolved too late",
            load(&counts.missed),
        );
        self.counter("duly_clock_steps", "Steps of the wall clock", load(&counts.clock_steps));
        let is_degraded = counts.is_degraded.load(Ordering::Relaxed);
        self.gauge("duly_degraded", "1 while the database refuses the writes of this scheduler", is_degraded.into());
        let Some(tasks) = counts.tasks.as_ref().map(|tasks| tasks.all()) else { return };
        let runs = tasks.iter().flat_map(|(name, of)| outcomes("task", name, &of.runs, &RUN_OUTCOMES));
        self.add("duly_task_runs_finished", "Runs of a task that became final, by status", runs.collect());
        let attempts = tasks.iter().flat_map(|(name, of)| outcomes("task", name, &of.attempts, &ATTEMPT_OUTCOMES));
        self.add("duly_task_attempts", "Attempts of a task that ended, by outcome", attempts.collect());
        let busy = tasks.iter().map(|(name, of)| {
            (vec![("task", name.to_string())], Value::CounterOfSeconds(seconds(load(&of.busy_millis))))
        });
        let help = "Time for which the handler of a task worked";
        self.add_with_unit("duly_task_work", Some(Unit::Seconds), help, busy.collect());
    }

    /// Adds the turns of this scheduler.
    pub(super) fn add_turns(&mut self, vitals: &Vitals) {
        self.counter("duly_turns", "Turns that ended", vitals.turns());
        let help = "Turns that wrote nothing because another connection held the lock of the database";
        self.counter("duly_busy_turns", help, vitals.busy_turns());
        let help = "Turns that wrote nothing because the database refused, busy turns included";
        self.counter("duly_degraded_turns", help, vitals.refused_turns());
        let last = vec![(Vec::new(), Value::Gauge(vitals.last_turn().as_millis() as f64 / 1000.0))];
        let help = "When the last turn ended, by the scheduler's clock, since the Unix epoch";
        self.add_with_unit("duly_last_turn_timestamp", Some(Unit::Seconds), help, last);
    }

    /// Adds the versions.
    pub(super) fn add_build(&mut self, sqlite: &str) {
        let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("sqlite", sqlite.to_owned())];
        self.add("duly_build", "The version of duly and of SQLite", vec![(labels, Value::Info)]);
    }

    /// Adds what was read from the tables.
    pub(super) fn add_tables(&mut self, status: &Status, queue: &Queue, now: Timestamp) {
        let tasks = |one: &TaskStatus| status.tasks.iter().find(|(of, _)| of == one).map_or(0, |(_, count)| *count);
        let by_status = TaskStatus::ALL.iter().map(|one| (one.as_str(), tasks(one)));
        self.gauges("duly_tasks", "Tasks by status", "status", by_status);
        self.gauge("duly_tasks_due", "Tasks that are due, including those that are overdue", status.due);
        let help = "Tasks that have been due for more than five minutes, or as long without a due time since they were written";
        self.gauge("duly_tasks_overdue", help, status.overdue);
        let running = queue.running.iter().map(|(_, count)| count).sum();
        let runs = [("queued", queue.queued), ("running", running), ("failed", queue.failed)];
        self.gauges("duly_runs", "Runs that are not final, by status", "status", runs);
        let help = "Queued and failed runs by what they wait for";
        self.gauges("duly_runs_waiting", help, "reason", queue.waiting.iter().copied());
        let oldest = queue.oldest_due.map_or(0.0, |at| now.since(at).as_secs_f64());
        self.add_with_unit(
            "duly_oldest_due_age",
            Some(Unit::Seconds),
            "Age of the oldest task that is due, or run that nothing blocks and that is not started; 0 if there is none",
            vec![(Vec::new(), Value::Gauge(oldest))],
        );
        self.add_schedulers(status, queue);
        let help = "1 while schedules wait for the wall clock: it is not set, or behind the time that they count from";
        self.gauge("duly_clock_waiting", help, status.clock.is_some().into());
        for (name, help, bytes) in [
            ("duly_database_size", "Size of the database file", status.file_bytes),
            ("duly_wal_size", "Size of the write-ahead log", status.log_bytes),
        ] {
            // A server has neither.
            let Some(bytes) = bytes else { continue };
            self.add_with_unit(name, Some(Unit::Bytes), help, vec![(Vec::new(), Value::Gauge(bytes as f64))]);
        }
    }

    fn add_schedulers(&mut self, status: &Status, queue: &Queue) {
        let count = |alive: Option<bool>| status.instances.iter().filter(|one| one.alive == alive).count() as u64;
        let states = [("alive", count(Some(true))), ("dead", count(Some(false))), ("unknown", count(None))];
        self.gauges("duly_schedulers", "Schedulers of this database that have not stopped in order", "state", states);
        let degraded = status.instances.iter().filter(|one| one.degraded).count() as u64;
        let help = "Schedulers that have not been able to write the database for ten seconds or longer";
        self.gauge("duly_schedulers_degraded", help, degraded);
        let (mut workers, mut busy) = (0, 0);
        for one in status.instances.iter().filter(|one| one.alive == Some(true)) {
            let running = queue.running.iter().find(|(owner, _)| *owner == one.id).map_or(0, |(_, count)| *count);
            workers += u64::from(one.workers);
            busy += running.min(one.workers.into());
        }
        self.gauge("duly_workers", "Runs that the schedulers that are alive execute at once, at most", workers);
        let help = "Runs that the schedulers that are alive execute or have claimed, without those claimed ahead";
        self.gauge("duly_workers_busy", help, busy);
    }

    /// Adds the number of problems of each kind.
    pub(super) fn add_problems(&mut self, kinds: impl IntoIterator<Item = (&'static str, u64)>) {
        self.gauges(
            "duly_problems",
            "Problems that duly check finds, by kind, at most a hundred of each",
            "kind",
            kinds,
        );
    }

    /// Adds whether the database could be read for this scrape.
    pub(super) fn add_readable(&mut self, is_readable: bool) {
        let help = "1 if the database could be read for this scrape; otherwise metrics of the tables are missing";
        self.gauge("duly_database_readable", help, is_readable.into());
    }

    /// Writes all values.
    pub(super) fn text(self, format: Format) -> Result<String> {
        let kinds: HashMap<String, MetricType> = self.0.iter().map(|one| (one.full_name(), one.kind())).collect();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).map_err(|error| Error::store("write the metrics", error))?;
        Ok(if format == Format::Classic { classic(&text, &kinds) } else { text })
    }
}

impl Collector for Sheet {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in &self.0 {
            let mut encoder =
                encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), family.kind())?;
            for (labels, value) in &family.samples {
                if let Value::Info = value {
                    encoder.encode_info(labels)?;
                    continue;
                }
                if labels.is_empty() {
                    encode_value(&mut encoder, value)?;
                } else {
                    encode_value(&mut encoder.encode_family(labels)?, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_value(encoder: &mut prometheus_client::encoding::MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Counter(count) => encoder.encode_counter(count, None as NoExemplar<'_>),
        Value::CounterOfSeconds(seconds) => encoder.encode_counter(seconds, None as NoExemplar<'_>),
        Value::Gauge(value) => encoder.encode_gauge(value),
        Value::Histogram { sum, count, buckets } => encoder.encode_histogram::<Labels>(*sum, *count, buckets, None),
        Value::Info => Ok(()),
    }
}

/// Rewrites the metadata for the classic format: it names a counter with its suffix, and has no units, no infos and no end mark.
fn classic(text: &str, kinds: &HashMap<String, MetricType>) -> String {
    let mut classic = String::with_capacity(text.len());
    for line in text.lines() {
        let metadata = line.strip_prefix("# ").map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
        match metadata.as_deref() {
            None => classic.push_str(line),
            Some([word @ ("HELP" | "TYPE"), name, rest]) => {
                let (suffix, kind) = match kinds.get(*name) {
                    Some(MetricType::Counter) => ("_total", *rest),
                    Some(MetricType::Info) => ("_info", if *word == "TYPE" { "gauge" } else { *rest }),
                    _ => ("", *rest),
                };
                classic.push_str(&format!("# {word} {name}{suffix} {kind}"));
            }
            Some(_) => continue,
        }
        classic.push('\n');
    }
    classic
}

fn histogram(of: &Histogram) -> Value {
    let bounds = BOUNDS.iter().map(|millis| seconds(*millis)).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(of.buckets.iter().map(load)).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    Value::Histogram { sum: seconds(load(&of.sum_millis)), count, buckets }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}
