//! The shell of the loop: it owns the poller, the pool and the channels, waits with one `select!`, and carries out what
//! [`LoopState`] decides. It decides nothing.

mod carry_out;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, select};

use crate::clock::Clock;
#[cfg(feature = "postgres")]
use crate::engine::keeper::Keeper;
use crate::engine::loop_state::{Act, LoopState, Order};
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::model::ended::Shutdown;
use crate::model::event::Event;
use crate::model::run::Claim;
use crate::model::vitals::Vitals;
use crate::store::turn_io::MAX_OUTCOMES;
use crate::worker::attempt::{Notice, StopReason};
use crate::worker::pool::Pool;
use crate::worker::progress::Waiting;

/// The poller thread.
pub(crate) struct EventLoop {
    pub(crate) state: LoopState,
    pub(crate) poller: Poller,
    pub(crate) pool: Pool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wake: Sender<()>,
    pub(crate) woken: Receiver<()>,
    pub(crate) orders: Receiver<Order>,
    pub(crate) unfinished: Sender<Shutdown>,
    pub(crate) vitals: Arc<Vitals>,
    /// The attempts whose outcomes the poller has taken and not stored.
    pub(crate) taken: Vec<Arc<Claim>>,
    /// Reports of running attempts that are not due to be written yet.
    pub(crate) reports: Waiting,
    /// What the application has set as wrong, until the poller has it.
    pub(crate) problems: Arc<Mutex<Option<Vec<String>>>>,
    /// On a server: what extends the lease.
    #[cfg(feature = "postgres")]
    pub(crate) keeper: Option<Keeper>,
}

/// Records the end of the loop when it is dropped, after a panic, too.
struct EndMark(Arc<Vitals>);

impl Drop for EndMark {
    fn drop(&mut self) {
        self.0.loop_ended();
    }
}

impl EventLoop {
    /// Takes turns until it drains and no run is running.
    ///
    /// # Errors
    /// The error that stopped the loop. The running handlers are then asked to stop, because their outcomes cannot be recorded, and
    /// what has not begun does not begin.
    pub(crate) fn run(mut self) -> Result<()> {
        let _mark = EndMark(self.vitals.clone());
        self.poller.adapt_size();
        if let Err(error) = self.turn_until_drained() {
            self.poller.emit(&Event::Stopped { reason: error.to_string() });
            self.pool.abandon(self.clock.now());
            return Err(error);
        }
        #[cfg(feature = "postgres")]
        drop(self.keeper.take());
        self.poller.stop(self.clock.now())?;
        self.pool.join();
        Ok(())
    }

    fn turn_until_drained(&mut self) -> Result<()> {
        let mut sight = self.sight();
        loop {
            match self.state.next(&sight) {
                Act::Prepare(prepare) => self.prepare(prepare, sight.now),
                Act::Register(attempts) => self.register(attempts, self.state.began()),
                Act::Turn(next) => self.turn(next)?,
                Act::ReadOrder => {
                    match self.orders.try_recv() {
                        Err(TryRecvError::Empty) => self.state.no_order(),
                        order => self.ordered(order.ok()),
                    }
                    // Pool and poller are as they were.
                    continue;
                }
                Act::CarryOut(given) => self.carry_out(given),
                Act::CompareClock(newest) => self.poller.compare_clock(Some(newest), sight.now),
                Act::StopAll => self.pool.stop_all(StopReason::Shutdown),
                Act::Report(unfinished) => {
                    let known = Shutdown::new(self.pool.attempts().handed_over().claims());
                    let _ = self.unfinished.try_send(Shutdown { unfinished, ..known });
                }
                Act::Wait(until) => self.wait(until),
                Act::End => return Ok(()),
            }
            let before = sight.now.monotonic;
            sight = self.sight();
            self.poller.went_on(sight.now.monotonic.saturating_sub(before), sight.now);
        }
    }

    fn wait(&mut self, until: Duration) {
        select! {
            recv(self.pool.finished()) -> one => one.into_iter().for_each(|one| self.gather(one)),
            recv(self.pool.notices()) -> notice => {
                // What a thousand handlers report at once is written together.
                let more: Vec<Notice> = self.pool.notices().try_iter().take(MAX_OUTCOMES).collect();
                notice.into_iter().chain(more).for_each(|notice| self.note(notice));
            }
            recv(self.woken) -> _ => {}
            recv(self.orders) -> order => self.ordered(order.ok()),
            default(self.clock.until(until)) => {}
        }
    }

    /// `None`: all senders are gone, because the scheduler was dropped.
    fn ordered(&mut self, order: Option<Order>) {
        if order.is_none() {
            self.orders = crossbeam_channel::never();
        }
        self.state.ordered(order.unwrap_or(Order::Drain));
    }
}
