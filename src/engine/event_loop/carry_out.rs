//! How the shell carries out what the loop has decided, with its pool and its poller.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use crate::clock::Now;
use crate::engine::event_loop::EventLoop;
use crate::engine::loop_state::{Given, NextTurn, Prepare, Sight};
use crate::error::Result;
use crate::host::fault_points;
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::run::Claim;
use crate::store::turn_io::MAX_OUTCOMES;
use crate::worker::attempt::Notice;
#[cfg(feature = "postgres")]
use crate::worker::attempt::StopReason;

impl EventLoop {
    /// Returns what the loop decides by.
    pub(super) fn sight(&self) -> Sight {
        let now = self.clock.now();
        let (may_begin, must_register) = self.lease();
        Sight {
            now,
            workers: self.pool.workers(),
            unstarted: self.pool.unstarted(),
            beside: self.pool.beside(),
            beside_runtime: self.pool.beside_runtime(),
            unsettled: self.poller.unsettled(),
            writes_on: self.poller.writes_on(),
            next_replacement: self.pool.next_replacement(),
            // What a lane may do again since the turn began, the turn has not seen.
            next_check: self.pool.next_check(self.state.began().monotonic).into_iter().chain(self.reports.next()).min(),
            may_begin,
            must_register,
        }
    }

    pub(super) fn prepare(&mut self, Prepare { recalls, draining, looks }: Prepare, now: Now) {
        let recalled = if recalls { self.pool.recall(now) } else { Vec::new() };
        self.state.recalled(recalled, self.pool.check_lanes(now, draining));
        if !draining {
            self.pool.replace_ended(now.monotonic);
            let held = self.pool.replace_held(now.monotonic);
            held.into_iter().for_each(|claim| self.poller.emit(&Event::WorkerHeld { claim }));
        }
        self.reports.take(now.monotonic, MAX_OUTCOMES).into_iter().for_each(|report| self.poller.report(report));
        if looks {
            let late = self.pool.attempts().take_late(now.monotonic);
            late.into_iter().for_each(|report| self.poller.report(report));
        }
        self.poller.set_lane_trouble(self.pool.trouble(now.monotonic), now);
        if let Some(problems) = self.problems.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.poller.set_problems(problems, now);
        }
        self.heed_keeper(now);
        self.state.lanes_are(self.pool.lane_handlers(), self.pool.free_beside(now.monotonic));
    }

    pub(super) fn turn(&mut self, next: NextTurn) -> Result<()> {
        let NextTurn { now, finished, ended, slots, handlers, claims_for } = next;
        handlers.into_iter().for_each(|handlers| self.poller.set_handlers(handlers));
        claims_for.iter().for_each(|handlers| self.poller.claim_for(handlers));
        if ended > 0 {
            fault_points::reach("ended");
        }
        self.taken.extend(finished.iter().map(|finished| finished.claim.clone()));
        let turn = self.poller.turn(now, finished, slots)?;
        self.settle();
        self.vitals.turn_ended(self.clock.now(), turn.refused);
        if ended > 0 {
            fault_points::reach("settled");
        }
        let (claimed, in_flight) = (turn.claims.len(), self.state.in_flight());
        if ended + claimed > 0 {
            log::debug!("turn: {ended} attempts ended, {claimed} runs claimed; {in_flight} in flight");
        } else {
            log::trace!("turn: nothing to record or to claim; {in_flight} in flight");
        }
        if claimed > 0 {
            fault_points::reach("claimed");
        }
        self.state.turned(turn);
        Ok(())
    }

    /// Removes the attempts whose outcomes are stored. The loop does it, not the thread of the attempt: what one thread allocates and
    /// another frees has the two wait for each other. Until then an attempt is unfinished.
    fn settle(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let unwritten: HashSet<(i64, u32)> =
            self.poller.unwritten().map(|claim| (claim.run_id, claim.attempt)).collect();
        let is_unwritten = |claim: &Arc<Claim>| unwritten.contains(&(claim.run_id, claim.attempt));
        let (left, stored): (Vec<_>, Vec<_>) = self.taken.drain(..).partition(is_unwritten);
        self.taken = left;
        self.pool.attempts().settled(stored);
    }

    pub(super) fn carry_out(&mut self, Given { claims, stop, orphans }: Given) {
        claims.into_iter().for_each(|(lane, claim)| self.pool.submit(claim, lane));
        stop.into_iter().for_each(|run| self.pool.stop(run));
        for (lane, orphan) in orphans {
            let wake = self.wake.clone();
            self.pool.end(orphan, lane, move || _ = wake.try_send(()));
        }
    }

    /// Takes what has finished, and what finishes while the loop gathers outcomes.
    pub(super) fn gather(&mut self, first: Finished) {
        self.state.outcome(first);
        while self.state.outcomes().len() < self.poller.most_outcomes() {
            let next = self.pool.finished().try_recv().ok().or_else(|| {
                let wait = self.state.gathers(self.clock.now().monotonic, self.pool.unstarted())?;
                self.pool.finished().recv_timeout(wait).ok()
            });
            let Some(next) = next else { break };
            self.state.outcome(next);
        }
        let returned = self.pool.returned(self.state.outcomes());
        self.state.returned(returned);
    }

    pub(super) fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Report(report) => self.poller.report(report),
            Notice::Reports(reports) => self.reports.add(reports),
            Notice::WorkerEnded(worker) => {
                self.pool.ended(&worker);
                self.state.worker_ended(worker.finished(self.clock.now()));
                self.poller.worker_ended(worker);
            }
        }
    }

    /// Returns whether attempts may begin, and whether the owner must register again.
    #[cfg(feature = "postgres")]
    fn lease(&self) -> (bool, bool) {
        self.keeper.as_ref().map_or((true, false), |keeper| (keeper.may_start(), keeper.must_register()))
    }

    #[cfg(not(feature = "postgres"))]
    fn lease(&self) -> (bool, bool) {
        (true, false)
    }

    /// Does what the keeper of the lease asks for.
    #[cfg(feature = "postgres")]
    fn heed_keeper(&mut self, now: Now) {
        let Some(keeper) = &self.keeper else { return };
        if keeper.must_stop() {
            self.pool.stop_all(StopReason::LeaseLost);
        }
        if keeper.must_look_up() {
            self.poller.look_up_claims(now);
        }
    }

    #[cfg(not(feature = "postgres"))]
    fn heed_keeper(&mut self, _now: Now) {}

    #[cfg(feature = "postgres")]
    pub(super) fn register(&mut self, attempts: usize, now: Now) {
        let Some(keeper) = &self.keeper else { return };
        let sent = keeper.now();
        let again = self
            .poller
            .register_again(now, attempts)
            .and_then(|()| self.poller.take_session().map_or(Ok(()), |session| keeper.restart(session, sent)));
        match again {
            Ok(()) => self.state.registered(),
            Err(error) => log::debug!("cannot register again: {error}; retrying"),
        }
    }

    #[cfg(not(feature = "postgres"))]
    pub(super) fn register(&mut self, _attempts: usize, _now: Now) {}
}
