//! What a poller is given between its turns: handlers, and what its application reports.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::clock::Now;
use crate::engine::poller::Poller;
use crate::model::event::Event;
use crate::model::finished::{Report, WorkerEnded};

impl Poller {
    /// Returns how many outcomes a turn takes at most.
    pub(crate) fn most_outcomes(&self) -> usize {
        let most = self.store.most_outcomes();
        self.limit.map_or(most, |limit| limit.min(most))
    }

    /// Has turns write fewer outcomes than the store allows, for tests.
    pub(crate) fn limit_outcomes(&mut self, most: usize) {
        self.limit = Some(most);
    }

    /// Sets the handlers whose runs this owner can start, and whose orphans it can end.
    pub(crate) fn set_handlers(&mut self, handlers: BTreeSet<String>) {
        if self.handlers != handlers {
            self.handlers = handlers;
            self.horizon.forget();
        }
    }

    /// Sets what the application of this owner reports as wrong. The next turn records it.
    pub(crate) fn set_problems(&mut self, problems: &[String], now: Now) {
        self.registration.problems = serde_json::to_string(problems).ok().filter(|_| !problems.is_empty());
        self.next_heartbeat = now.monotonic;
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
