//! Limits across processes: the checker counts the runs of each key that execute, and keeps its own log of the starts of each
//! handler, key and task. Users set, change and remove limits of keys and handlers; some tasks have limits of their own.

use std::collections::{BTreeMap, BTreeSet};

use duly::{NewTask, StartRate, WhenLimited};

use crate::simulation::actions::seconds;
use crate::simulation::history::{Action, Check};
use crate::simulation::rows::{RunRow, TaskRow};
use crate::simulation::scenario::{HANDLERS, Scenario};

pub(crate) const KEYS: [&str; 3] = ["chat", "disk", "mail"];

/// A rate limit: at most `starts` in any `per` milliseconds.
#[derive(Clone, Copy, Debug)]
struct Rate {
    starts: usize,
    per: i64,
}

/// What the checker knows of limits.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    running: BTreeMap<String, usize>,
    rates: BTreeMap<String, Rate>,
    /// By `handler:`, `key:` or `task:` and the name: the wall times of the limited starts, in the order of their turns.
    starts: BTreeMap<String, Vec<i64>>,
    /// How many of them were before the limit last changed: a window that begins before that is not checked.
    before_change: BTreeMap<String, usize>,
    /// By subject: how many of them this step has added.
    of_step: BTreeMap<String, usize>,
}

impl Rate {
    /// Returns how many starts are free now after these: each is compared with the one `starts` before it.
    fn left(&self, starts: &[i64], now: i64) -> usize {
        let is_free =
            |next: &usize| (starts.len() + next).checked_sub(self.starts).is_none_or(|at| starts[at] + self.per <= now);
        (0..self.starts).take_while(is_free).count()
    }
}

impl Limits {
    /// Returns how many runs with this key may run at once.
    pub(crate) fn running(&self, key: &str) -> usize {
        self.running.get(key).copied().unwrap_or(1)
    }

    /// Returns what a start of a run counts for.
    fn rates(&self, run: &RunRow, task: &TaskRow) -> Vec<(String, Rate)> {
        self.rates_of(&run.handler, run.key.as_deref(), task)
    }

    fn rates_of(&self, handler: &str, key: Option<&str>, task: &TaskRow) -> Vec<(String, Rate)> {
        let key = key.map(|key| format!("key:{key}"));
        let known = [Some(format!("handler:{handler}")), key].into_iter().flatten();
        let known = known.filter_map(|subject| Some((subject.clone(), *self.rates.get(&subject)?)));
        let of_task = task.max_starts.as_deref().map(|text| text.parse::<StartRate>().expect("a rate"));
        let of_task = of_task.map(|StartRate { starts, per }| Rate {
            starts: starts as usize,
            per: i64::try_from(per.as_millis()).expect("milliseconds"),
        });
        known.chain(of_task.map(|rate| (format!("task:{}", task.name), rate))).collect()
    }

    pub(crate) fn has_rate(&self, run: &RunRow, task: &TaskRow) -> bool {
        !self.rates(run, task).is_empty()
    }

    /// Records that an attempt starts, and checks every window with it.
    pub(crate) fn started(&mut self, run: &RunRow, task: &TaskRow, now: i64) -> Check {
        self.rates(run, task).into_iter().try_for_each(|(subject, rate)| self.started_of(&subject, rate, now))
    }

    fn started_of(&mut self, subject: &str, rate: Rate, now: i64) -> Check {
        *self.of_step.entry(subject.to_owned()).or_default() += 1;
        let starts = self.starts.entry(subject.to_owned()).or_default();
        starts.push(now);
        let mut since = starts[self.before_change.get(subject).copied().unwrap_or_default()..].to_vec();
        since.sort_unstable();
        // Starts before a wrong clock was found to be wrong may all count as starts of one moment.
        let mut windows =
            since.windows(rate.starts + 1).filter(|window| (window[0]..=window[rate.starts]).contains(&now));
        match windows.find(|window| window[rate.starts] - window[0] < rate.per) {
            Some(window) => Err(format!("{subject:?} started at {window:?}, and its limit is {rate:?}")),
            None => Ok(()),
        }
    }

    /// Returns when the next start of a run is allowed at the latest: the scheduler may have forgotten starts before a change.
    pub(crate) fn opens_at(&self, run: &RunRow, task: &TaskRow) -> Option<i64> {
        let opens = self.rates(run, task).into_iter().filter_map(|(subject, rate)| self.opens(&subject, rate));
        opens.max()
    }

    /// Returns when the next start of a handler is allowed at the latest.
    pub(crate) fn handler_opens_at(&self, handler: &str) -> Option<i64> {
        let subject = format!("handler:{handler}");
        self.opens(&subject, *self.rates.get(&subject)?)
    }

    fn opens(&self, subject: &str, rate: Rate) -> Option<i64> {
        let starts = self.starts.get(subject)?;
        Some(starts[starts.len().checked_sub(rate.starts)?] + rate.per)
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        self.of_step.clear();
    }

    /// Returns how many starts were left for the occurrences of a task that skips those beyond its limits, at least and at most: a turn starts
    /// runs before and after it resolves what is due. `None`: it skips none.
    pub(crate) fn left(&self, task: &TaskRow, now: i64) -> Option<(usize, usize)> {
        if task.when_limited == WhenLimited::Wait {
            return None;
        }
        let rates = self.rates_of(&task.handler, task.key.as_deref(), task).into_iter();
        let left = rates.map(|(subject, rate)| {
            let starts = self.starts.get(&subject).map(Vec::as_slice).unwrap_or_default();
            let before = starts.len() - self.of_step.get(&subject).copied().unwrap_or_default();
            // The scheduler may have forgotten starts before a change.
            let known = self.before_change.get(&subject).copied().unwrap_or_default().min(before);
            (rate.left(starts, now), rate.left(&starts[known..before], now))
        });
        left.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
    }

    /// The clock was wrong: a start in the future counts as one of now.
    pub(crate) fn rewind(&mut self, now: i64) {
        self.starts.values_mut().flatten().for_each(|start| *start = now.min(*start));
    }

    fn set_rate(&mut self, subject: &str, rate: Option<Rate>) {
        self.rates.remove(subject);
        self.rates.extend(rate.map(|rate| (subject.to_owned(), rate)));
        let count = self.starts.get(subject).map_or(0, Vec::len);
        self.before_change.insert(subject.to_owned(), count);
        if rate.is_none() {
            self.starts.remove(subject);
            self.before_change.remove(subject);
        }
    }
}

/// Limits the starts of some tasks, without a draw: by their number.
pub(crate) fn limited(task: NewTask, number: i64) -> NewTask {
    match number % 13 {
        2 => task.when_limited(WhenLimited::Skip),
        5 => task.max_starts(2, seconds(600)),
        7 => task.max_starts(2, seconds(300)).when_limited(WhenLimited::Skip),
        9 => task.max_starts(1, seconds(120)),
        _ => task,
    }
}

impl Scenario {
    /// Sets or removes a limit as another program would.
    pub(crate) fn change_limit(&mut self) -> Check {
        if self.write_locked {
            return Ok(());
        }
        if self.once_in(2) { self.change_key_limit() } else { self.change_rate() }
    }

    fn change_key_limit(&mut self) -> Check {
        let key = self.pick(&KEYS);
        if self.once_in(4) {
            let done = self.execute("DELETE FROM concurrency_limits WHERE concurrency_key = ?1", [key]);
            if done.is_ok() {
                self.history.limits.running.remove(key);
                self.history.limits.set_rate(&format!("key:{key}"), None);
            }
            return self.record_sql(done, Action::Nothing, &format!("key {key} has no limit"));
        }
        let running = self.rng.usize(1..=4);
        let text = "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES (?1, ?2)
                    ON CONFLICT (concurrency_key) DO UPDATE SET max_running = excluded.max_running";
        let done = self.execute(text, (key, running as i64));
        if done.is_ok() {
            self.history.limits.running.insert(key.to_owned(), running);
        }
        self.record_sql(done, Action::Nothing, &format!("key {key} is limited to {running}"))?;
        if running > 2 { self.change_rate_of_key(key, running == 3) } else { Ok(()) }
    }

    /// Sets or removes the rate of a key that has a limit.
    fn change_rate_of_key(&mut self, key: &'static str, is_set: bool) -> Check {
        let rate = is_set.then(|| Rate { starts: self.rng.usize(1..=5), per: self.pick(&[2_000, 60_000, 600_000]) });
        let text = "UPDATE concurrency_limits SET max_starts = ?2, per_ms = ?3 WHERE concurrency_key = ?1";
        let done = self.execute(text, (key, rate.map(|rate| rate.starts as i64), rate.map(|rate| rate.per)));
        if done.is_ok() {
            self.history.limits.set_rate(&format!("key:{key}"), rate);
        }
        self.record_sql(done, Action::Nothing, &format!("the starts of key {key} are limited to {rate:?}"))
    }

    fn change_rate(&mut self) -> Check {
        let handler = self.pick(&HANDLERS);
        if self.once_in(3) {
            return self.remove_rate(handler);
        }
        let rate = Rate { starts: self.rng.usize(1..=5), per: self.pick(&[2_000, 60_000, 600_000]) };
        let text = "INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES (?1, ?2, ?3)
                    ON CONFLICT (handler) DO UPDATE SET max_starts = excluded.max_starts, per_ms = excluded.per_ms";
        let done = self.execute(text, (handler, rate.starts as i64, rate.per));
        if done.is_ok() {
            self.history.limits.set_rate(&format!("handler:{handler}"), Some(rate));
        }
        self.record_sql(done, Action::Nothing, &format!("handler {handler} is limited to {rate:?}"))
    }

    fn remove_rate(&mut self, handler: &'static str) -> Check {
        let done = self.execute("DELETE FROM rate_limits WHERE handler = ?1", [handler]);
        if done.is_ok() {
            self.history.limits.set_rate(&format!("handler:{handler}"), None);
        }
        self.record_sql(done, Action::Nothing, &format!("handler {handler} has no limit"))
    }

    /// Removes all limits of starts.
    pub(crate) fn lift_rates(&mut self) -> Check {
        // Retention counts from the edit of a completed task.
        let waiting: BTreeSet<i64> = self.history.tables.unfinished().map(|run| run.task).collect();
        let is_left = |task: &TaskRow| task.status != "completed" || waiting.contains(&task.id);
        while let Some(task) = self.any_task(|task| task.max_starts.is_some() && is_left(task)) {
            let done = self.execute("UPDATE scheduled_tasks SET max_starts = NULL WHERE name = ?1", [&task]);
            let what = format!("the limit of {task} is removed by SQL");
            self.record_sql(done, Action::Edited { task, by_sql: true }, &what)?;
        }
        KEYS.into_iter().try_for_each(|key| self.change_rate_of_key(key, false))?;
        HANDLERS.into_iter().try_for_each(|handler| self.remove_rate(handler))
    }
}
