//! The order in which the connections of this process to one file write: first come, first served. After two seconds of use all of them
//! leave the lock to others for a moment ([`LockPause`]).
//!
//! SQLite gives its lock by chance: a connection that waits for it looks every 100 ms, and a scheduler whose turns follow each other has
//! the lock again before that. Other processes, and connections that duly did not open, are not in the queue: the pause is for them. It is
//! measured by the machine's clock, whatever clock a scheduler has.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use rusqlite::{Connection, ffi};

use crate::clock::{Clock, SystemClock};
use crate::rules::lock_pause::{LockPause, PAUSE};
use crate::store::fault::{Class, Fault};

/// The queue of one file.
#[derive(Default)]
pub(super) struct WriteQueue(Mutex<Waiting>);

struct Waiting {
    /// The thread whose connection has the place of the writer.
    writer: Option<ThreadId>,
    /// The threads of the others, in the order in which they came. One that has given up has dropped its receiver.
    next: VecDeque<(ThreadId, Sender<()>)>,
    pause: LockPause,
    clock: Arc<dyn Clock>,
}

impl Default for Waiting {
    fn default() -> Self {
        let clock = Arc::new(SystemClock::new());
        Waiting { writer: None, next: VecDeque::new(), pause: LockPause::default(), clock }
    }
}

impl fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteQueue").finish_non_exhaustive()
    }
}

/// The place of the writer, which the next connection gets when it is dropped.
#[derive(Debug)]
pub(super) struct WriterPlace {
    queue: Arc<WriteQueue>,
    began: Duration,
    /// How long the connection waits for a lock in all, and how much of that the queue has left for SQLite's.
    limit: Duration,
    left: Duration,
}

/// Why a connection does not get the place of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// Others had it for longer than the connection waits.
    Taken,
    /// This thread has it, with another connection: it would wait for itself.
    OfThisThread,
}

impl From<NoPlace> for Fault {
    fn from(no_place: NoPlace) -> Fault {
        match no_place {
            NoPlace::Taken => {
                let locked = Some("database is locked".to_owned());
                rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), locked).into()
            }
            NoPlace::OfThisThread => Fault::Store(
                Class::Other,
                "this thread holds the write lock of the database, in the closure of `finish`: add tasks there with \
                 `Client::add_in`, and do everything else before or after it"
                    .into(),
            ),
        }
    }
}

impl WriteQueue {
    /// Waits until those have written that have asked before, and for the end of a pause: at most for `limit`, or a pause if that is
    /// longer.
    pub(super) fn wait(self: &Arc<Self>, limit: Duration) -> Result<WriterPlace, NoPlace> {
        let asked = self.now();
        self.become_first(limit.saturating_sub(PAUSE))?;
        let mut place = WriterPlace { queue: self.clone(), began: self.now(), limit, left: limit };
        let (pause, clock) = {
            let waiting = self.waiting();
            (waiting.pause.until(place.began), waiting.clock.clone())
        };
        if let Some(until) = pause {
            thread::sleep(clock.until(until).min(PAUSE));
            place.began = self.now();
        }
        place.left = limit.saturating_sub(place.began.saturating_sub(asked));
        Ok(place)
    }

    /// Waits until the place is this connection's.
    fn become_first(&self, limit: Duration) -> Result<(), NoPlace> {
        let this = thread::current().id();
        let mut waiting = self.waiting();
        match waiting.writer {
            None => {
                waiting.writer = Some(this);
                return Ok(());
            }
            Some(writer) if writer == this => return Err(NoPlace::OfThisThread),
            Some(_) => {}
        }
        let (call, called) = bounded(1);
        waiting.next.push_back((this, call));
        drop(waiting);
        called.recv_timeout(limit).or_else(|_| {
            // The place is given away under this lock: either it was given to this connection meanwhile, or it never will be.
            let _waiting = self.waiting();
            called.try_recv().map_err(|_| NoPlace::Taken)
        })
    }

    fn now(&self) -> Duration {
        self.waiting().clock.now().monotonic
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures by another clock.
    #[cfg(test)]
    pub(super) fn measure_by(&self, clock: Arc<dyn Clock>) {
        self.waiting().clock = clock;
    }
}

impl WriterPlace {
    /// Calls `f`, in which SQLite takes its lock: it waits for that as long as the queue has left.
    pub(super) fn lock<'c, T, E: From<rusqlite::Error>>(
        &self,
        connection: &'c Connection,
        f: impl FnOnce(&'c Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.left == self.limit {
            return f(connection);
        }
        connection.busy_timeout(self.left)?;
        let answer = f(connection);
        connection.busy_timeout(self.limit)?;
        answer
    }

    /// Returns the time by the clock of the queue.
    pub(super) fn now(&self) -> Duration {
        self.queue.now()
    }
}

impl Drop for WriterPlace {
    fn drop(&mut self) {
        let ended = self.now();
        let mut waiting = self.queue.waiting();
        waiting.pause.used(self.began, ended);
        while let Some((thread, next)) = waiting.next.pop_front() {
            if next.try_send(()).is_ok() {
                waiting.writer = Some(thread);
                return;
            }
        }
        waiting.writer = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    use rusqlite::Connection;

    use super::WriteQueue;
    use crate::clock::{Clock, Now, SystemClock, Timestamp};
    use crate::rules::lock_pause::PAUSE;
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
                let own = hurried.try_write(|_, _| Ok(())).unwrap_err();
                assert!(!own.is_busy() && own.to_string().starts_with("this thread holds the write lock"), "{own}");
                let refused = thread::scope(|scope| scope.spawn(|| hurried.try_write(|_, _| Ok(()))).join());
                let refused = refused.unwrap().unwrap_err();
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
        store.queue().waiting().writer.is_none()
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

    /// Shows a time in milliseconds that the test sets. A wait passes at once: meanwhile a writer that has no place in the queue writes.
    struct Waits {
        now: AtomicU64,
        foreign: Mutex<Connection>,
        /// When each wait began.
        at: mpsc::Sender<u64>,
    }

    impl Clock for Waits {
        fn now(&self) -> Now {
            Now { wall: Timestamp::MIN, monotonic: Duration::from_millis(self.now.load(Ordering::Relaxed)) }
        }

        fn until(&self, at: Duration) -> Duration {
            self.foreign.lock().unwrap().execute("INSERT INTO notes VALUES ('x')", []).unwrap();
            let before = self.now.swap(at.as_millis() as u64, Ordering::Relaxed);
            self.at.send(before).unwrap();
            Duration::ZERO
        }
    }

    /// A loop, a client and a handler write one after another, 120 ms each: after two seconds whoever comes next waits, and others find
    /// the lock free for longer than a busy handler waits between two looks.
    #[test]
    fn connections_that_follow_each_other_leave_the_lock_to_others_every_two_seconds() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let open = || SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let mut stores = [open(), open(), open()];
        // One that refuses at once waits for the end of a pause all the same.
        stores[1].set_busy_timeout(Duration::ZERO).unwrap();
        let foreign = Connection::open(&file).unwrap();
        foreign.busy_timeout(Duration::ZERO).unwrap();
        foreign.execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
        let (at, waits) = mpsc::channel();
        let clock = Arc::new(Waits { now: AtomicU64::new(0), foreign: Mutex::new(foreign), at });
        stores[0].measure_by(clock.clone());
        let mut write = |times: usize, took: u64, left: u64| {
            for store in (0..times).map(|n| n % 3) {
                let written = stores[store].try_write(|_, _| Ok(clock.now.fetch_add(took, Ordering::Relaxed)));
                written.unwrap();
                clock.now.fetch_add(left, Ordering::Relaxed);
            }
            waits.try_iter().collect::<Vec<u64>>()
        };
        assert_eq!(write(50, 120, 0), [2_040, 4_190]);
        // Also if it is free half of the time, and never for long.
        assert_eq!(write(201, 10, 10), [6_320, 8_440]);
        clock.now.fetch_add(PAUSE.as_millis() as u64, Ordering::Relaxed);
        assert_eq!(write(201, 10, 50), Vec::<u64>::new(), "mostly free");
    }

    /// What a connection waits in the queue, SQLite does not wait for the lock of others.
    #[test]
    fn the_wait_in_the_queue_is_a_part_of_the_wait_for_the_lock() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let store = SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let timeout =
            |connection: &Connection| connection.query_row("PRAGMA busy_timeout", [], |row| row.get::<_, i64>(0));
        let mut place = store.queue().wait(Duration::from_secs(5)).unwrap();
        assert_eq!(place.lock(&store.connection, timeout).unwrap(), 5_000);
        place.left = Duration::from_secs(2);
        assert_eq!(place.lock(&store.connection, timeout).unwrap(), 2_000);
        assert_eq!(timeout(&store.connection).unwrap(), 5_000, "as before");
    }
}
