//! The look for alarms, and the ping while there are none. Each has a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use duly::{Client, Limits, Timestamp};

use crate::alarms::outage::Outages;
use crate::alarms::stop::Stop;
use crate::alarms::url::Url;
use crate::output::escape;

/// Looks for alarms.
pub(crate) struct Watch {
    pub(crate) client: Client,
    pub(crate) outages: Arc<Outages>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) interval: Duration,
    pub(crate) limits: Limits,
    /// A new channel begins with what was recorded since then.
    pub(crate) since: Timestamp,
}

impl Watch {
    /// Looks until it must stop, and once more then.
    pub(crate) fn run(self) {
        let mut failed = false;
        loop {
            failed = self.look(failed);
            if self.stop.deadline().is_some() {
                return self.stop.looked();
            }
            if self.stop.wait(self.interval) {
                self.look(failed);
                return self.stop.looked();
            }
        }
    }

    /// Looks once. Returns whether it failed. `failed`: whether the look before did.
    pub(crate) fn look(&self, failed: bool) -> bool {
        loop {
            let looked = self
                .outages
                .store(|channels, outage| self.client.update_alarms(channels, &self.limits, self.since, outage));
            match looked {
                Ok(true) if self.stop.deadline().is_none_or(|deadline| self.stop.now().monotonic < deadline) => {}
                Ok(_) => {
                    if failed {
                        log::info!("alarms are recorded again");
                    }
                    return false;
                }
                Err(error) => {
                    let error = escape::one_line(&error.to_string());
                    if !failed {
                        let next = duly::duration_text(self.interval);
                        log::warn!("alarms cannot be recorded: {error}; next attempt in {next}");
                    }
                    let now = self.stop.now();
                    self.outages.failed(&error, now.wall, now.monotonic);
                    return true;
                }
            }
        }
    }
}

/// Requests a URL while `check` finds nothing, until it must stop.
pub(crate) fn ping(client: &Client, url: &Url, (interval, limits): (Duration, &Limits), stop: &Stop) {
    let mut failing = false;
    loop {
        match client.check(limits) {
            Ok(problems) if problems.is_empty() => match url.get() {
                Ok(()) => {
                    if failing {
                        log::info!("ping {}: answered again", url.shown());
                    }
                    failing = false;
                }
                Err(error) => {
                    if !failing {
                        let next = duly::duration_text(interval);
                        log::warn!("ping {}: {error}; next attempt in {next}, and so on", url.shown());
                    }
                    failing = true;
                }
            },
            Ok(problems) => {
                log::debug!("ping {}: not sent: {}", url.shown(), escape::one_line(&problems[0].to_string()))
            }
            Err(error) => log::debug!("ping {}: not sent: {}", url.shown(), escape::one_line(&error.to_string())),
        }
        if stop.wait(interval) {
            return;
        }
    }
}
