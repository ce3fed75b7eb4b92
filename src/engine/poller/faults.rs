//! What becomes of a turn that was not committed.

use crate::clock::Now;
use crate::engine::poller::{Poller, Turn};
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::vitals::Refused;
use crate::store::fault::Fault;
use crate::store::turn_io::Slots;

impl Poller {
    /// Another program migrated the tables to a newer version: the scheduler claims nothing more, and records what still runs.
    pub(super) fn leave_newer(&mut self, now: Now, error: Error) -> Result<Turn> {
        self.emit(&Event::NewerSchema { reason: error.to_string(), running: self.claimed.len() });
        self.newer = Some(error);
        self.outbox.extend(self.aside.drain(..));
        self.write(now, Slots::default(), true)
    }

    /// Handles a turn that was not committed: reports it once, and retries with backoff. A fault that no retry can end stops the
    /// loop.
    pub(super) fn refuse(&mut self, now: Now, slots: Slots, fault: Fault) -> Result<Turn> {
        self.retention_timer.give_way(now);
        #[cfg(feature = "postgres")]
        if fault.is_lost() {
            // Whether the last turn was committed is unknown: the next one looks up the claims.
            self.next_heartbeat = now.monotonic;
        }
        if fault.is_too_long() {
            self.size.took_too_long();
        }
        let (reason, damaged) = (fault.to_string(), fault.is_damage());
        let refused = Some(if fault.is_busy() { Refused::Busy } else { Refused::Fault });
        let lasts = self.refused.is_damaged(damaged);
        let from_outside = matches!(fault, Fault::Damaged(_));
        // A server that cannot be used now, as while a standby is promoted, may be used again.
        let may_end = !damaged && self.store.as_file().is_none();
        if let error @ Error::UnusableDatabase { .. } = self.store.error(fault, "take a turn")
            && (lasts || !damaged)
            && !may_end
        {
            if from_outside && let Some(file) = self.store.as_file() {
                file.set_log_aside();
            }
            return Err(error);
        }
        if self.refused.happened(now.monotonic) {
            self.emit(&Event::Degraded { reason });
        }
        if self.refused.lasts(now.monotonic) {
            self.lock.degrade();
        }
        Ok(Turn { refused, ..self.idle_turn(now, slots) })
    }
}
