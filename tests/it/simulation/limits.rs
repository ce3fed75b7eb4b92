//! Limits across processes: the checker counts the runs of each key that execute, and keeps its own log of the starts of each
//! handler. Users set, change and remove limits.

use std::collections::BTreeMap;

use crate::simulation::history::{Action, Check};
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
    /// The wall times of the limited starts of each handler, in the order of their turns.
    starts: BTreeMap<String, Vec<i64>>,
    /// How many of them were before the limit last changed: a window that begins before that is not checked.
    before_change: BTreeMap<String, usize>,
}

impl Limits {
    /// Returns how many runs with this key may run at once.
    pub(crate) fn running(&self, key: &str) -> usize {
        self.running.get(key).copied().unwrap_or(1)
    }

    pub(crate) fn has_rate(&self, handler: &str) -> bool {
        self.rates.contains_key(handler)
    }

    /// Records that an attempt of a handler starts, and checks every window with it.
    pub(crate) fn started(&mut self, handler: &str, now: i64) -> Check {
        let Some(rate) = self.rates.get(handler) else { return Ok(()) };
        let starts = self.starts.entry(handler.to_owned()).or_default();
        starts.push(now);
        let mut since = starts[self.before_change.get(handler).copied().unwrap_or_default()..].to_vec();
        since.sort_unstable();
        // Starts before a wrong clock was found to be wrong may all count as starts of one moment.
        let mut windows =
            since.windows(rate.starts + 1).filter(|window| (window[0]..=window[rate.starts]).contains(&now));
        match windows.find(|window| window[rate.starts] - window[0] < rate.per) {
            Some(window) => Err(format!("handler {handler:?} started at {window:?}, and its limit is {rate:?}")),
            None => Ok(()),
        }
    }

    /// Returns when the next start of a handler is allowed at the latest: the scheduler may have forgotten starts before a change.
    pub(crate) fn opens_at(&self, handler: &str) -> Option<i64> {
        let (rate, starts) = (self.rates.get(handler)?, self.starts.get(handler)?);
        Some(starts[starts.len().checked_sub(rate.starts)?] + rate.per)
    }

    /// The clock was wrong: a start in the future counts as one of now.
    pub(crate) fn rewind(&mut self, now: i64) {
        self.starts.values_mut().flatten().for_each(|start| *start = now.min(*start));
    }

    fn set_rate(&mut self, handler: &str, rate: Option<Rate>) {
        self.rates.remove(handler);
        self.rates.extend(rate.map(|rate| (handler.to_owned(), rate)));
        let count = self.starts.get(handler).map_or(0, Vec::len);
        self.before_change.insert(handler.to_owned(), count);
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
        self.record_sql(done, Action::Nothing, &format!("key {key} is limited to {running}"))
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
            self.history.limits.set_rate(handler, Some(rate));
        }
        self.record_sql(done, Action::Nothing, &format!("handler {handler} is limited to {rate:?}"))
    }

    fn remove_rate(&mut self, handler: &'static str) -> Check {
        let done = self.execute("DELETE FROM rate_limits WHERE handler = ?1", [handler]);
        if done.is_ok() {
            self.history.limits.set_rate(handler, None);
            self.history.limits.starts.remove(handler);
            self.history.limits.before_change.remove(handler);
        }
        self.record_sql(done, Action::Nothing, &format!("handler {handler} has no limit"))
    }

    /// Removes all rate limits.
    pub(crate) fn lift_rates(&mut self) -> Check {
        HANDLERS.into_iter().try_for_each(|handler| self.remove_rate(handler))
    }
}
