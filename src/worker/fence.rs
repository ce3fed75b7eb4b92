//! Self-fencing: an owner on a server that could not extend its lease in time stops by itself, before another owner may recover its
//! runs. The timer that decides does no I/O: a server that does not answer cannot delay it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long before the end of the lease attempts are asked to stop, and their processes are killed.
const STOP: Duration = Duration::from_secs(15);
const KILL: Duration = Duration::from_secs(5);

/// How often the timer looks at the clock, which goes on while the machine is suspended; a wait does not.
const LOOK: Duration = Duration::from_secs(1);

/// A clock that counts the time in which the machine is suspended.
pub(crate) type Uptime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Receives when attempts are to be asked to stop, and when their processes must be dead: see [`Fence::extend`].
pub(crate) type OnLease = dyn Fn(Duration, Duration) + Send + Sync;

/// What an owner may do, by the time that is left of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Everything.
    Current,
    /// Begin no attempt.
    Holding,
    /// Attempts are asked to stop.
    Stopping,
    /// Processes of attempts are killed. Other owners may take over after this.
    Over,
}

/// Returns the stage at a time, and when the next one begins. `end`: the end of the lease as its owner counts it.
pub(crate) fn stage(end: Duration, lease: Duration, now: Duration) -> (Stage, Option<Duration>) {
    // A short lease leaves some seconds between a heartbeat that is late and the end of starts.
    let hold = (lease / 2).min(Duration::from_secs(30)).max(STOP + Duration::from_secs(3));
    let begins = [(Stage::Holding, hold), (Stage::Stopping, STOP), (Stage::Over, KILL)];
    let begins = begins.map(|(stage, before)| (stage, end.saturating_sub(before)));
    let stage = begins.iter().rev().find(|(_, at)| *at <= now).map_or(Stage::Current, |(stage, _)| *stage);
    (stage, begins.iter().find(|(_, at)| *at > now).map(|(_, at)| *at))
}

/// The end of an owner's lease, as the owner counts it. Shared by the thread of the heartbeat, the workers and the timer.
pub(crate) struct Fence {
    uptime: Uptime,
    lease: Duration,
    state: Mutex<State>,
    changed: Condvar,
    on_lease: Option<Arc<OnLease>>,
}

#[derive(Debug)]
struct State {
    end: Duration,
    /// No timer is needed any more.
    closed: bool,
}

impl Fence {
    /// `since`: before the lease was written first.
    pub(crate) fn new(uptime: Uptime, lease: Duration, since: Duration, on_lease: Option<Arc<OnLease>>) -> Self {
        let state = Mutex::new(State { end: end(since, lease), closed: false });
        let fence = Fence { uptime, lease, state, changed: Condvar::new(), on_lease };
        fence.announce();
        fence
    }

    /// Returns the time, for [`Fence::extend`].
    pub(crate) fn now(&self) -> Duration {
        (self.uptime)()
    }

    /// The server has extended the lease. `sent`: before the request was sent.
    pub(crate) fn extend(&self, sent: Duration) {
        let mut state = self.state();
        state.end = state.end.max(end(sent, self.lease));
        drop(state);
        self.changed.notify_all();
        self.announce();
    }

    fn announce(&self) {
        if let Some(on_lease) = &self.on_lease {
            let end = self.state().end;
            on_lease(end.saturating_sub(STOP), end.saturating_sub(KILL));
        }
    }

    /// The claims are lost: the lease ends now.
    pub(crate) fn end(&self) {
        self.state().end = Duration::ZERO;
        self.changed.notify_all();
        if let Some(on_lease) = &self.on_lease {
            let now = self.now();
            on_lease(now, now.saturating_add(STOP - KILL));
        }
    }

    /// A new lease begins, under another id.
    pub(crate) fn restart(&self, since: Duration) {
        self.state().end = end(since, self.lease);
        self.changed.notify_all();
        self.announce();
    }

    pub(crate) fn stage(&self) -> Stage {
        let end = self.state().end;
        stage(end, self.lease, self.now()).0
    }

    /// Returns whether an attempt may begin.
    pub(crate) fn may_start(&self) -> bool {
        self.stage() == Stage::Current
    }

    /// Ends the timer.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Starts the timer. `entered` is called at each change of the stage, and must not block.
    pub(crate) fn watch(self: &Arc<Self>, entered: impl Fn(Stage) + Send + 'static) -> std::io::Result<()> {
        let fence = self.clone();
        let timer = move || {
            let mut before = Stage::Current;
            while let Some(stage) = fence.next(before) {
                entered(stage);
                before = stage;
            }
        };
        thread::Builder::new().name("duly-lease".into()).spawn(timer).map(drop)
    }

    /// Waits for another stage. `None`: the timer ends.
    fn next(&self, before: Stage) -> Option<Stage> {
        let mut state = self.state();
        while !state.closed {
            let now = self.now();
            let (stage, next) = stage(state.end, self.lease, now);
            if stage != before {
                return Some(stage);
            }
            let wait = next.map_or(LOOK, |at| at.saturating_sub(now).min(LOOK));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's end of a lease is later than this, however long the request took: it counts from when it was received. A hundredth is
/// left for clocks of different speed.
fn end(sent: Duration, lease: Duration) -> Duration {
    sent.saturating_add(lease.mul_f64(0.99))
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("lease", &self.lease).field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::{Fence, Stage, stage};
    use crate::waits::{Arrivals, patience, receive};

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn an_owner_stops_in_time_before_its_lease_ends() {
        let at = |lease, now| stage(seconds(100), seconds(lease), seconds(now));
        assert_eq!(at(60, 69), (Stage::Current, Some(seconds(70))));
        assert_eq!(at(60, 70), (Stage::Holding, Some(seconds(85))));
        assert_eq!(at(60, 85), (Stage::Stopping, Some(seconds(95))));
        assert_eq!(at(60, 95), (Stage::Over, None));
        assert_eq!(at(60, 1000), (Stage::Over, None));
        // The shortest lease holds starts for 18 s at its end, a long one for 30 s.
        assert_eq!(at(30, 81), (Stage::Current, Some(seconds(82))));
        assert_eq!(at(3600, 69), (Stage::Current, Some(seconds(70))));
    }

    #[test]
    fn a_heartbeat_counts_from_when_it_was_sent_and_never_shortens() {
        let time = Arc::new(AtomicU64::new(1000));
        let clock = time.clone();
        let uptime = Arc::new(move || seconds(clock.load(Ordering::SeqCst)));
        let (announce, announced) = mpsc::channel();
        let on_lease = Arc::new(move |term, kill| announce.send((term, kill)).expect("a test that waits"));
        let fence = Arc::new(Fence::new(uptime, seconds(60), seconds(1000), Some(on_lease)));
        let (sender, stages) = mpsc::channel();
        fence.watch(move |stage| sender.send(stage).expect("a test that waits")).expect("a thread");
        let next = || receive(&stages, "the next stage");
        assert!(fence.may_start());
        let millis = Duration::from_millis;
        assert_eq!(receive(&announced, "the first lease"), (millis(1_044_400), millis(1_054_400)));
        time.store(1030, Ordering::SeqCst);
        assert_eq!(next(), Stage::Holding);
        assert!(!fence.may_start());
        // An answer to a request of long ago.
        fence.extend(seconds(980));
        assert_eq!(receive(&announced, "the same lease"), (millis(1_044_400), millis(1_054_400)));
        time.store(1045, Ordering::SeqCst);
        assert_eq!(next(), Stage::Stopping);
        fence.extend(seconds(1044));
        assert_eq!(next(), Stage::Current);
        assert!(fence.may_start());
        // The machine was suspended.
        time.store(5000, Ordering::SeqCst);
        assert!(!fence.may_start());
        assert_eq!(next(), Stage::Over);
        fence.restart(seconds(5000));
        assert_eq!(next(), Stage::Current);
        assert_eq!(announced.try_iter().last(), Some((millis(5_044_400), millis(5_054_400))));
        fence.end();
        assert_eq!(next(), Stage::Over);
        assert_eq!(announced.try_iter().last(), Some((seconds(5000), seconds(5010))), "a guard is told as well");
        fence.close();
        assert_eq!(stages.within(patience()), Err(false), "the timer has ended");
    }
}
