//! The loop: it joins the poller and the pool, which do not know each other, and waits for time, a wake, an outcome or an order
//! with one `select!`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, select};

use crate::clock::{Clock, Now, Timestamp};
#[cfg(feature = "postgres")]
use crate::engine::keeper::Keeper;
use crate::engine::lanes::Lanes;
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::host::fault_points;
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome};
use crate::model::settings::Settings;
use crate::model::vitals::Vitals;
use crate::store::turn_io::{MAX_OUTCOMES, Slots};
use crate::worker::attempt::{Notice, StopReason};
use crate::worker::pool::{Pool, QUEUE, Returned};
use crate::worker::progress::Waiting;

/// Claims that wait this long for a worker are returned to the queue.
const UNSTARTED: Duration = Duration::from_millis(500);
/// How long the next outcome of short runs is waited for, to be written with those before it.
const GATHER: Duration = Duration::from_millis(1);
/// How long outcomes are gathered in all.
const GATHER_ALL: Duration = Duration::from_millis(10);
/// How long the workers may need for what is read ahead beyond four times what has finished.
const BRIEF: Duration = Duration::from_millis(10);
/// How long handlers may take to stop before the scheduler registers again under another id.
#[cfg(feature = "postgres")]
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// An order to the poller thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Claim nothing more; end when no run is running.
    Drain,
    /// As `Drain`; when no worker and no executor has a run, as `Cut`. For a sender that blocks the runtime on which async handlers
    /// have to return.
    DrainWorkers,
    /// As `Drain`, and ask the running handlers to stop.
    Interrupt,
    /// As `Interrupt`, and report how many runs are unfinished.
    Cut,
    /// Report if the clock is behind this time, from which tasks count.
    CompareClock(Timestamp),
}

/// The state of the poller thread.
pub(crate) struct EventLoop {
    pub(crate) poller: Poller,
    pub(crate) pool: Pool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) wake: Sender<()>,
    pub(crate) woken: Receiver<()>,
    pub(crate) orders: Receiver<Order>,
    pub(crate) drain: Drain,
    pub(crate) report: Sender<usize>,
    pub(crate) vitals: Arc<Vitals>,
    /// Runs that were handed to the workers and whose outcome has not returned.
    pub(crate) in_flight: usize,
    /// When claims were handed over and how many at a time; the oldest that may still be un-started first.
    pub(crate) handed: VecDeque<(Duration, usize)>,
    /// When the loop next looks for attempts that were read ahead and still run: once every poll interval.
    pub(crate) next_look: Duration,
    /// Reports of running attempts that are not due to be written yet.
    pub(crate) reports: Waiting,
    pub(crate) lanes: Lanes,
    /// What the application has set as wrong, until the poller has it.
    pub(crate) problems: Arc<Mutex<Option<Vec<String>>>>,
    /// On a server: what extends the lease.
    #[cfg(feature = "postgres")]
    pub(crate) keeper: Option<Keeper>,
    /// Since when the server has another history than that of the claims.
    #[cfg(feature = "postgres")]
    pub(crate) lost_since: Option<Duration>,
}

/// How the scheduler drains.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Whether nothing more is claimed or begun.
    begun: bool,
    /// Whether async handlers are cut when nothing else has a run and no other outcome is left to write.
    cuts_async: bool,
}

/// Records the end of the loop when it is dropped, after a panic, too.
struct EndMark(Arc<Vitals>);

impl Drop for EndMark {
    fn drop(&mut self) {
        self.0.loop_ended();
    }
}

/// The waits for outcomes that are written together.
#[derive(Default)]
struct Gathering {
    /// When they end, by the monotonic clock.
    until: Option<Duration>,
}

impl Gathering {
    /// Returns how long to wait for the next outcome.
    fn wait(&mut self, now: Duration) -> Duration {
        let until = *self.until.get_or_insert(now.saturating_add(GATHER_ALL));
        until.saturating_sub(now).min(GATHER)
    }
}

/// Returns how many runs to read ahead. `finished`: how many attempts that had begun the workers have just finished; `busy`: the sum of
/// their durations.
///
/// No other process can take a claim that waits un-started, so what has finished is the limit: four times that. It is up to sixteen
/// times, if at this pace the workers need no longer than [`BRIEF`] for all of them.
fn read_ahead(finished: usize, busy: Duration, workers: usize) -> usize {
    let of_each = busy.as_nanos() / finished.max(1) as u128;
    let within = BRIEF.as_nanos() * workers as u128 / of_each.max(1);
    (finished * 4).max((finished * 16).min(usize::try_from(within).unwrap_or(usize::MAX))).min(QUEUE)
}

impl EventLoop {
    /// Takes turns until it drains and no run is running.
    ///
    /// # Errors
    /// The error that stopped the loop. The running handlers are then asked to stop, because their outcomes cannot be recorded, and
    /// what has not begun does not begin.
    pub(crate) fn run(mut self) -> Result<()> {
        let _mark = EndMark(self.vitals.clone());
        let drained = self.turn_until_drained();
        if drained.is_err() {
            self.pool.abandon(self.clock.now());
            return drained;
        }
        #[cfg(feature = "postgres")]
        drop(self.keeper.take());
        self.poller.stop(self.clock.now())?;
        self.pool.join();
        Ok(())
    }

    fn turn_until_drained(&mut self) -> Result<()> {
        let mut finished: Vec<Finished> = Vec::new();
        // What was claimed in a turn during which an order to drain arrived: it does not begin.
        let mut unbegun: Vec<Arc<Claim>> = Vec::new();
        // Of the finished attempts those of the workers: the measure for reading ahead.
        let mut of_workers = Returned::default();
        loop {
            let now = self.clock.now();
            let draining = self.drain.begun;
            // Recalled claims have not finished.
            let ended = finished.len();
            if draining || self.unstarted_since().is_some_and(|since| now.monotonic >= since + UNSTARTED) {
                let recalled = self.pool.recall(now);
                self.in_flight -= recalled.len();
                finished.extend(recalled);
            }
            let released = |claim| Finished::new(claim, Outcome::Released, now, now);
            finished.extend(unbegun.drain(..).map(released));
            finished.extend(self.pool.check_lanes(now, draining));
            if !draining {
                self.pool.replace_ended(now.monotonic);
                let held = self.pool.replace_held(now.monotonic);
                held.into_iter().for_each(|claim| self.poller.emit(&Event::WorkerHeld { claim }));
            }
            self.reports.take(now.monotonic, MAX_OUTCOMES).into_iter().for_each(|report| self.poller.report(report));
            if now.monotonic >= self.next_look {
                self.next_look = now.monotonic.saturating_add(self.settings.poll);
                let late = self.pool.attempts().take_late(now.monotonic);
                late.into_iter().for_each(|report| self.poller.report(report));
            }
            if let Some(problems) = self.problems.lock().unwrap_or_else(PoisonError::into_inner).take() {
                self.poller.set_problems(&problems, now);
            }
            let slots = self.slots(std::mem::take(&mut of_workers), now.monotonic);
            let slots = if self.keeps_lease(now, finished.len()) { slots } else { Slots::default() };
            let slots = (!draining).then_some(slots);
            if ended > 0 {
                fault_points::reach("ended");
            }
            let mut turn = self.poller.turn(now, std::mem::take(&mut finished), slots)?;
            self.vitals.turn_ended(self.clock.now(), turn.refused);
            if ended > 0 {
                fault_points::reach("settled");
            }
            if ended > 0 || !turn.claims.is_empty() {
                log::debug!(
                    "turn: {ended} attempts ended, {} runs claimed; {} in flight",
                    turn.claims.len(),
                    self.in_flight
                );
            } else {
                log::trace!("turn: nothing to record or to claim; {} in flight", self.in_flight);
            }
            self.drain.begun |= turn.leaves;
            // More may be claimed at once.
            let again = self.lanes.claimed(turn.claims.len());
            if !turn.claims.is_empty() {
                fault_points::reach("claimed");
                // The turn may have claimed what was added after an order to drain.
                self.take_orders();
            }
            let draining = self.drain.begun;
            if draining {
                unbegun.append(&mut turn.claims);
            }
            let mut on_workers = 0;
            for claim in turn.claims {
                let lane = self.lanes.beside(&claim.handler);
                on_workers += usize::from(lane.is_none());
                self.pool.submit(claim, lane);
            }
            if on_workers > 0 {
                // Not `now`: the turn may have taken longer than `UNSTARTED`.
                self.handed.push_back((self.clock.now().monotonic, on_workers));
                self.in_flight += on_workers;
            }
            turn.stop.into_iter().for_each(|run| self.pool.stop(run));
            for orphan in turn.orphans {
                let wake = self.wake.clone();
                let lane = self.lanes.beside(orphan.handler());
                self.pool.end(orphan, lane, move || {
                    let _ = wake.try_send(());
                });
            }
            if draining && self.running() == 0 && self.poller.unsettled() == 0 {
                return Ok(());
            }
            if !unbegun.is_empty() || (draining && self.poller.writes_on()) {
                // A report on unfinished runs does not count what was taken back.
                continue;
            }
            let only_async = self.in_flight + self.pool.beside_runtime() == 0;
            if self.drain.cuts_async && only_async && self.poller.unsettled() <= self.pool.beside() {
                self.drain.cuts_async = false;
                self.cut();
            }

            let replace = self.pool.next_replacement().filter(|_| !draining).unwrap_or(Duration::MAX);
            let reports = self.reports.next().unwrap_or(Duration::MAX);
            let give_back = self.unstarted_since().map_or(Duration::MAX, |since| since + UNSTARTED);
            // A turn in each poll interval, also while it waits to retry a refused write: a watchdog counts turns.
            let latest = now.monotonic.saturating_add(self.settings.poll);
            // A turn may take long. What it left due may start when a worker is free.
            let earliest = self.clock.now().monotonic.saturating_add(turn.rest);
            let wake_at = if again && !draining { Duration::ZERO } else { turn.wake_at.min(latest).max(earliest) };
            let check = self.pool.next_check(now.monotonic).unwrap_or(Duration::MAX);
            select! {
                recv(self.pool.finished()) -> one => {
                    finished.extend(one);
                    self.gather(&mut finished);
                    of_workers = self.pool.returned(&finished);
                    self.in_flight -= of_workers.all;
                }
                recv(self.pool.notices()) -> notice => {
                    // What a thousand handlers report at once is written together.
                    let more: Vec<Notice> = self.pool.notices().try_iter().take(MAX_OUTCOMES).collect();
                    notice.into_iter().chain(more).for_each(|notice| self.note(notice, &mut finished));
                }
                recv(self.woken) -> _ => {}
                recv(self.orders) -> order => self.obey(order.ok()),
                default(self.clock.until(wake_at.min(give_back).min(replace).min(reports).min(check))) => {}
            }
            // Of all that has arrived, `select!` takes any. An order that came before the first turn is obeyed after it: that turn recovers
            // the runs of dead owners.
            self.take_orders();
        }
    }

    /// Obeys the orders that have arrived, up to the first that makes it drain. What follows that, as an order to report what is unfinished,
    /// is obeyed after a turn that records what has been taken back.
    fn take_orders(&mut self) {
        while !self.drain.begun {
            match self.orders.try_recv() {
                Ok(order) => self.obey(Some(order)),
                Err(TryRecvError::Disconnected) => self.obey(None),
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// `None`: all senders are gone, because the scheduler was dropped.
    fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::CompareClock(newest)) => return self.poller.compare_clock(Some(newest), self.clock.now()),
            Some(Order::Drain) => {}
            Some(Order::DrainWorkers) => self.drain.cuts_async = true,
            Some(Order::Interrupt) => self.pool.stop_all(StopReason::Shutdown),
            Some(Order::Cut) => self.cut(),
            None => self.orders = crossbeam_channel::never(),
        }
        self.drain.begun = true;
    }

    /// Acts on what the keeper of the lease reports. `returned`: attempts that have ended and whose ends the poller has not got yet. Returns
    /// whether attempts may begin.
    #[cfg(feature = "postgres")]
    fn keeps_lease(&mut self, now: Now, returned: usize) -> bool {
        let Some(keeper) = &self.keeper else { return true };
        if keeper.must_stop() {
            self.pool.stop_all(StopReason::LeaseLost);
        }
        if keeper.must_look_up() {
            self.poller.look_up_claims(now);
        }
        if keeper.must_register() {
            // The attempts were asked to stop. This waits for them, but for a handler that does not return at most `STOP_LIMIT`: until the
            // owner is registered, nothing starts.
            let since = *self.lost_since.get_or_insert(now.monotonic);
            let running = self.running();
            if running == 0 || now.monotonic >= since + STOP_LIMIT {
                let sent = keeper.now();
                let again = self
                    .poller
                    .register_again(now, running + returned)
                    .and_then(|()| self.poller.take_session().map_or(Ok(()), |session| keeper.restart(session, sent)));
                match again {
                    Ok(()) => self.lost_since = None,
                    Err(error) => log::debug!("cannot register again: {error}; retrying"),
                }
            }
        }
        keeper.may_start()
    }

    #[cfg(not(feature = "postgres"))]
    fn keeps_lease(&mut self, _now: Now, _returned: usize) -> bool {
        true
    }

    /// Asks the running handlers to stop, and reports how many runs are unfinished.
    fn cut(&mut self) {
        self.pool.stop_all(StopReason::Shutdown);
        // An outcome that is not recorded counts as unfinished, though its handler has returned.
        let _ = self.report.try_send(self.running().max(self.poller.unsettled()));
    }

    /// Takes a notice of a worker.
    fn note(&mut self, notice: Notice, finished: &mut Vec<Finished>) {
        match notice {
            Notice::Report(report) => self.poller.report(report),
            Notice::Reports(reports) => self.reports.add(reports),
            Notice::WorkerEnded(worker) => {
                self.pool.ended(&worker);
                let ended = worker.finished(self.clock.now());
                self.in_flight -= usize::from(ended.is_some());
                finished.extend(ended);
                self.poller.worker_ended(worker);
            }
        }
    }

    /// Returns how many attempts are handed over and have not returned.
    fn running(&self) -> usize {
        self.in_flight + self.pool.beside()
    }

    /// Returns how many runs may be claimed.
    fn slots(&mut self, of_workers: Returned, now: Duration) -> Slots {
        // A worker that a handler holds past its limit keeps its run; another worker replaces it.
        let workers = self.pool.workers();
        let ahead = read_ahead(of_workers.begun, of_workers.took, workers);
        let room = (workers + ahead).saturating_sub(self.in_flight);
        let slots = Slots { room, idle: workers.saturating_sub(self.in_flight) };
        if self.lanes.update(self.pool.lane_handlers()) {
            self.poller.set_handlers(self.lanes.all());
        }
        let choice = self.lanes.choose(slots, &self.pool.free_beside(now));
        choice.handlers.iter().for_each(|handlers| self.poller.claim_for(handlers));
        choice.slots
    }

    /// Returns when the oldest claim was handed over that no worker has begun.
    fn unstarted_since(&mut self) -> Option<Duration> {
        let mut begun = self.handed.iter().map(|(_, claims)| claims).sum::<usize>() - self.pool.unstarted();
        while let Some((_, claims)) = self.handed.front_mut() {
            if *claims > begun {
                *claims -= begun;
                break;
            }
            begun -= *claims;
            self.handed.pop_front();
        }
        self.handed.front().map(|(since, _)| *since)
    }

    /// Takes what else has finished. While claims wait un-started, which shows that runs are short, also waits a moment for
    /// more outcomes: written together, they cost a tenth of what they cost one by one.
    fn gather(&self, finished: &mut Vec<Finished>) {
        let mut gathering = Gathering::default();
        while finished.len() < self.poller.most_outcomes() {
            let next = match self.pool.finished().try_recv() {
                Err(TryRecvError::Empty) if self.pool.unstarted() > 0 => {
                    self.pool.finished().recv_timeout(gathering.wait(self.clock.now().monotonic)).ok()
                }
                next => next.ok(),
            };
            let Some(next) = next else { break };
            finished.push(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{GATHER, GATHER_ALL, Gathering, read_ahead};
    use crate::worker::pool::QUEUE;

    #[test]
    fn outcomes_that_come_one_by_one_are_not_gathered_for_long() {
        let (mut gathering, begun) = (Gathering::default(), Duration::from_secs(5));
        let mut now = begun;
        // Each comes as late as it may.
        for _ in 0..500 {
            let wait = gathering.wait(now);
            assert!(wait <= GATHER);
            now += wait;
        }
        assert_eq!(now, begun + GATHER_ALL);
    }

    #[test]
    fn as_much_is_read_ahead_as_what_finished_shows_to_be_short() {
        let cases = [
            // Nothing has finished.
            (0, Duration::ZERO, 0),
            // No-ops.
            (2, Duration::from_micros(20), 32),
            (100, Duration::from_millis(1), QUEUE),
            // Two workers end 20 such attempts in 10 ms.
            (4, Duration::from_millis(4), 20),
            // Four times what has finished, however long it took.
            (2, Duration::from_secs(600), 8),
        ];
        for (finished, busy, ahead) in cases {
            assert_eq!(read_ahead(finished, busy, 2), ahead, "{finished} in {busy:?}");
        }
    }
}
