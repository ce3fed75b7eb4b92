//! What a poller is given between its turns: handlers, and what its application reports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::engine::poller::Poller;
use crate::engine::start_backoff::StartBackoff;
use crate::error::excerpt;
use crate::model::event::Event;
use crate::model::finished::{Finished, Report, WorkerEnded};
use crate::model::health::CANNOT_START;
use crate::rules::turn_size::TurnSize;
use crate::store::turn_io::{Done, MAX_ITEMS, Slots};

/// Longest reason why nothing starts that is stored for others, in bytes.
const MAX_PROBLEM_BYTES: usize = 500;

/// What keeps attempts from starting, and what the application reports as wrong.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    pub(super) starts: StartBackoff,
    /// For others to read.
    cannot_start: Option<String>,
    /// What keeps a lane beside the workers from starting attempts.
    of_lane: Option<&'static str>,
    reported: Vec<String>,
}

impl Troubles {
    pub(super) fn claimed(&mut self, claims: usize, now: Now) {
        if claims > 0 {
            self.starts.claimed(now.monotonic);
        }
    }
}

impl Poller {
    /// Returns how many outcomes a turn takes at most.
    pub(crate) fn most_outcomes(&self) -> usize {
        let most = (self.store.most_outcomes() * self.size.items() / MAX_ITEMS).max(1);
        self.limit.map_or(most, |limit| limit.min(most))
    }

    /// Returns the slots, less those that correspond to outcomes for which the turn has no room.
    pub(super) fn less_what_is_unwritten(&self, slots: Slots) -> Slots {
        slots.less(self.outbox.len().saturating_sub(self.most_outcomes()))
    }

    /// Reports that this scheduler did nothing for a time, if that was longer than its lease: others may have reported it as stalled. The
    /// next turn records it.
    pub(crate) fn went_on(&mut self, lasted: Duration, now: Now) {
        if lasted > self.settings.lease {
            let event = Event::StallEnded { owner: self.owner().to_owned(), lasted };
            self.clock.keep("stall_ended", now.wall, event.to_string());
            self.next_heartbeat = now.monotonic;
            self.emit(&event);
        }
    }

    /// Takes smaller turns after those that held the lock of a file for long.
    pub(crate) fn adapt_size(&mut self) {
        self.adapts = true;
    }

    /// A turn was committed: the size of the next one follows from it.
    pub(super) fn measure(&mut self, done: &Done) {
        if self.adapts {
            self.size.wrote(done.items, done.held);
        }
        #[cfg(feature = "postgres")]
        if self.store.as_file().is_none() {
            self.size.committed();
        }
    }

    /// A turn has compared what this owner and others run with the rows.
    pub(super) fn compared(&mut self, now: Now, done: &mut Done) {
        self.former.written(&self.lock);
        done.cookie.iter().for_each(|cookie| self.lock.compared(*cookie));
        self.former.look_again = done.holds.then(|| now.monotonic + self.settings.poll);
        let not_compared = done.not_compared.take().map_or(Ok(()), Err);
        self.log_once.log("after a change of the tables nothing starts, since lock files cannot be read", not_compared);
    }

    /// Has turns write fewer outcomes, and derive fewer runs of changed tasks, than the store allows, for tests.
    pub(crate) fn limit_outcomes(&mut self, most: usize) {
        self.limit = Some(most);
    }

    /// Has turns write at most this many items, for tests.
    pub(crate) fn limit_items(&mut self, most: usize) {
        self.size = TurnSize::at_most(most);
    }

    /// Sets the handlers whose runs this owner can start, and whose orphans it can end.
    pub(crate) fn set_handlers(&mut self, handlers: BTreeSet<String>) {
        if self.handlers != handlers {
            self.handlers = handlers;
            self.horizon.forget();
        }
    }

    /// Sets what the application of this owner reports as wrong. The next turn records it.
    pub(crate) fn set_problems(&mut self, problems: Vec<String>, now: Now) {
        self.troubles.reported = problems;
        self.record_problems(now);
    }

    /// Sets what keeps a lane beside the workers from starting attempts. The next turn records it.
    pub(crate) fn set_lane_trouble(&mut self, trouble: Option<&'static str>, now: Now) {
        if self.troubles.of_lane != trouble {
            self.troubles.of_lane = trouble;
            self.record_problems(now);
        }
    }

    /// Records in the next turn what the application reports as wrong, after what keeps this owner from starting attempts.
    fn record_problems(&mut self, now: Now) {
        let Troubles { cannot_start, of_lane, reported, .. } = &self.troubles;
        let own = cannot_start.as_deref().into_iter().chain(*of_lane);
        let all: Vec<&str> = own.chain(reported.iter().map(String::as_str)).collect();
        self.registration.problems = serde_json::to_string(&all).ok().filter(|_| !all.is_empty());
        self.next_heartbeat = now.monotonic;
    }

    /// Returns the slots that may be used: after an attempt could not be started for want of resources, none, and later one.
    pub(super) fn admit(&mut self, slots: Option<Slots>, finished: &[Finished], now: Now) -> Option<Slots> {
        if self.troubles.starts.is_over(now.monotonic) {
            self.troubles.cannot_start = None;
            self.record_problems(now);
            self.emit(&Event::StartsAgain);
        }
        for reason in finished.iter().filter_map(|finished| finished.not_started.as_ref()) {
            if self.troubles.starts.failed(now.monotonic) {
                self.troubles.cannot_start = Some(format!("{CANNOT_START}{}", excerpt(reason, MAX_PROBLEM_BYTES)));
                self.record_problems(now);
                self.emit(&Event::CannotStart { reason: reason.clone() });
            }
        }
        slots.map(|slots| self.troubles.starts.admit(now.monotonic, slots))
    }

    /// Limits the claims of the following turns to these handlers.
    pub(crate) fn claim_for(&mut self, handlers: &Arc<BTreeSet<String>>) {
        if !Arc::ptr_eq(&self.claiming, handlers) {
            self.claiming = handlers.clone();
            self.horizon.forget();
        }
    }

    /// Keeps a worker's report for the next turn to write.
    pub(crate) fn report(&mut self, report: Report) {
        // Not of a claim under an earlier id: this owner may have claimed the same attempt again.
        if report.owner.as_deref().is_none_or(|owner| owner == self.registration.owner) {
            report.join(&mut self.reports);
        }
    }

    /// Keeps that a worker ended for the next turn to record.
    pub(crate) fn worker_ended(&mut self, worker: WorkerEnded) {
        let run = worker.at_work.claim.as_ref().map(|claim| claim.run_id);
        self.emit(&Event::WorkerEnded { run, error: worker.error.clone() });
        self.ended.push(worker);
    }
}
