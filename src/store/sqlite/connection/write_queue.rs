//! The order in which the connections of this process to one file write: first come, first served.
//!
//! SQLite gives its lock by chance: a connection that waits for it looks every 100 ms, and a scheduler whose turns follow each other has
//! the lock again before that. Other processes, and connections that duly did not open, are not in the queue: for them the loop leaves
//! the lock now and then ([`LockPause`](crate::rules::lock_pause::LockPause)).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

/// The queue of one file.
#[derive(Debug, Default)]
pub(super) struct WriteQueue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Whether a connection has the place of the writer.
    taken: bool,
    /// The others, in the order in which they came. One that has given up has dropped its receiver.
    next: VecDeque<Sender<()>>,
}

/// The place of the writer, which the next connection gets when it is dropped.
#[derive(Debug)]
pub(super) struct WriterPlace(Arc<WriteQueue>);

impl WriteQueue {
    /// Waits for the place of the writer, at most for `limit`.
    pub(super) fn wait(self: &Arc<Self>, limit: Duration) -> Option<WriterPlace> {
        let mut waiting = self.waiting();
        if !waiting.taken {
            waiting.taken = true;
            return Some(WriterPlace(self.clone()));
        }
        let (call, called) = bounded(1);
        waiting.next.push_back(call);
        drop(waiting);
        if called.recv_timeout(limit).is_err() {
            // The place is given away under this lock: either it was given to this connection meanwhile, or it never will be.
            let _waiting = self.waiting();
            called.try_recv().ok()?;
        }
        Some(WriterPlace(self.clone()))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WriterPlace {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        while let Some(next) = waiting.next.pop_front() {
            if next.try_send(()).is_ok() {
                return;
            }
        }
        waiting.taken = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::WriteQueue;
    use crate::clock::{Clock, SystemClock};
    use crate::store::fault::Fault;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Waits until this many connections are in the queue.
    fn until_waiting(queue: &WriteQueue, count: usize) {
        let clock = SystemClock::new();
        while queue.waiting().next.len() != count {
            assert!(clock.until(PATIENCE) > Duration::ZERO, "{count} connections wait");
            thread::yield_now();
        }
    }

    /// A turn writes. Then a client asks, another client, the loop for its next turn, and the first client again: each gets the lock
    /// in that order, whoever had it before.
    #[test]
    fn connections_write_in_the_order_in_which_they_ask() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let open = || SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let mut turn = open();
        let queue = turn.queue();
        let (wrote, order) = mpsc::channel();
        let others: Vec<_> = turn
            .try_write(|_, _| {
                let asked = ["client", "another client", "the next turn", "client"].into_iter().enumerate();
                let ask = |(before, who)| {
                    let (mut store, wrote) = (open(), wrote.clone());
                    let write = move || {
                        let written = store.try_write(|_, _| {
                            wrote.send(who).unwrap();
                            Ok(())
                        });
                        written.map_err(|fault| fault.to_string())
                    };
                    let thread = thread::spawn(write);
                    until_waiting(&queue, before + 1);
                    thread
                };
                Ok(asked.map(ask).collect())
            })
            .unwrap();
        let order: Vec<&str> = others.iter().map(|_| order.recv_timeout(PATIENCE).unwrap()).collect();
        assert_eq!(order, ["client", "another client", "the next turn", "client"]);
        others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), Ok(())));
    }

    #[test]
    fn a_connection_that_gives_up_fails_as_sqlite_does_and_keeps_no_other_waiting() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let open = || SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let (mut writer, mut hurried, mut patient) = (open(), open(), open());
        hurried.set_busy_timeout(Duration::ZERO).unwrap();
        let queue = writer.queue();
        let patient = writer
            .try_write(|_, _| {
                let refused = hurried.try_write(|_, _| Ok(())).unwrap_err();
                assert!(refused.is_busy(), "{refused}");
                let thread = thread::spawn(move || patient.try_write(|_, _| Ok(())).map_err(|fault| fault.to_string()));
                // The one that has given up is still listed.
                until_waiting(&queue, 2);
                Ok(thread)
            })
            .unwrap();
        assert_eq!(patient.join().unwrap(), Ok(()));
        assert!(queue_is_free(&writer));
        hurried.try_write(|_, _| Ok(())).unwrap();
    }

    fn queue_is_free(store: &SqliteStore) -> bool {
        !store.queue().waiting().taken
    }

    /// A writer that fails or panics leaves its place.
    #[test]
    fn a_writer_that_fails_leaves_its_place() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let mut store = SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let failed = store.try_write(|tx, _| tx.execute("nonsense", []).map(|_| ()).map_err(Fault::from));
        assert!(failed.is_err());
        assert!(queue_is_free(&store));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = store.try_write(|_, _| -> Result<(), Fault> { panic!("for a test") });
        }));
        assert!(panicked.is_err());
        assert!(queue_is_free(&store));
    }
}
