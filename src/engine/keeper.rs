//! Keeps an owner on a server alive: a thread with the session of the owner sends the heartbeats, so that a long turn delays none, and
//! is notified of changes. Another thread ends the attempts in time when the lease cannot be extended: see [`Fence`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, Result};
use crate::store::{Beat, OwnerSession};
use crate::worker::attempt::StopReason;
use crate::worker::fence::{Fence, Stage};
use crate::worker::handed::Attempts;

/// The time between two heartbeats. A broken connection is noticed after some seconds; two heartbeats are lost until then.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// First and longest wait before a heartbeat that failed is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How soon the thread notices that it is to end.
const LOOK: Duration = Duration::from_millis(500);

/// What the loop has to do. Each is set by a thread of the keeper, and taken by the loop.
#[derive(Debug, Default)]
struct News {
    /// Look up the claims: others may have taken them.
    look_up: AtomicBool,
    /// Ask the attempts beside the workers to stop.
    stop: AtomicBool,
    /// Register again: the server has another history.
    register: AtomicBool,
}

/// Keeps an owner alive until it is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    fence: Arc<Fence>,
    news: Arc<News>,
    wake: Sender<()>,
    ended: Receiver<()>,
    /// Closed when the keeper is dropped.
    _end: Sender<()>,
}

impl Keeper {
    /// Starts the threads. `wake`: of the loop.
    pub(crate) fn start(
        session: Box<dyn OwnerSession>,
        fence: Arc<Fence>,
        attempts: Attempts,
        wake: Sender<()>,
    ) -> Result<Self> {
        let news = Arc::<News>::default();
        let (end, ended) = bounded(0);
        let (timer_news, timer_wake) = (news.clone(), wake.clone());
        fence.watch(move |stage| entered(stage, &attempts, &timer_news, &timer_wake)).map_err(failed)?;
        let keeper = Keeper { fence, news, wake, ended, _end: end };
        keeper.start_heart(session)?;
        Ok(keeper)
    }

    /// Returns whether attempts may begin.
    pub(crate) fn may_start(&self) -> bool {
        self.fence.may_start()
    }

    /// Returns whether claims are to be looked up, once.
    pub(crate) fn must_look_up(&self) -> bool {
        self.news.look_up.swap(false, Ordering::SeqCst)
    }

    /// Returns whether attempts are to be asked to stop, once.
    pub(crate) fn must_stop(&self) -> bool {
        self.news.stop.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the owner must register again under another id. Its heartbeats have ended then.
    pub(crate) fn must_register(&self) -> bool {
        self.news.register.load(Ordering::SeqCst)
    }

    /// The owner has registered again. `since`: before it did.
    pub(crate) fn restart(&self, session: Box<dyn OwnerSession>, since: Duration) -> Result<()> {
        self.news.register.store(false, Ordering::SeqCst);
        self.fence.restart(since);
        self.start_heart(session).inspect_err(|_| {
            self.fence.end();
            self.news.register.store(true, Ordering::SeqCst);
        })
    }

    /// Returns the time by which leases are counted.
    pub(crate) fn now(&self) -> Duration {
        self.fence.now()
    }

    fn start_heart(&self, session: Box<dyn OwnerSession>) -> Result<()> {
        let (fence, news, wake, ended) = (self.fence.clone(), self.news.clone(), self.wake.clone(), self.ended.clone());
        let heart = Heart { session, fence, news, wake, ended };
        thread::Builder::new().name("duly-heartbeat".into()).spawn(move || heart.run()).map(drop).map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::store("start the thread of the heartbeat", error)
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.fence.close();
    }
}

/// Acts on another stage of the lease. On the thread of the timer: no I/O.
fn entered(stage: Stage, attempts: &Attempts, news: &News, wake: &Sender<()>) {
    match stage {
        Stage::Current => log::info!("the lease of this scheduler is extended again"),
        Stage::Holding => log::warn!("the lease of this scheduler could not be extended for long; it starts nothing"),
        Stage::Stopping => {
            log::error!(
                "the lease of this scheduler ends soon, and others may take over: running attempts are stopped"
            );
        }
        Stage::Over => {}
    }
    if stage >= Stage::Stopping {
        attempts.stop_all(StopReason::LeaseLost);
        news.stop.store(true, Ordering::SeqCst);
    }
    let _ = wake.try_send(());
}

/// The state of the thread of the heartbeat.
struct Heart {
    session: Box<dyn OwnerSession>,
    fence: Arc<Fence>,
    news: Arc<News>,
    wake: Sender<()>,
    ended: Receiver<()>,
}

impl Heart {
    fn run(mut self) {
        let mut retry = None;
        loop {
            let sent = self.fence.now();
            let wait = match self.session.heartbeat() {
                Ok(beat) => {
                    if !self.take(&beat, sent, retry.take().is_some()) {
                        return;
                    }
                    None
                }
                Err(fault) => {
                    let wait = retry.map_or(RETRY.0, |wait: Duration| (wait * 2).min(RETRY.1));
                    if retry.replace(wait).is_none() {
                        log::debug!("the heartbeat failed: {fault}; retrying");
                    }
                    Some(wait)
                }
            };
            let goes_on = match wait {
                Some(wait) => !self.ends_within(wait),
                None => self.listen(),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Takes the answer to a heartbeat. Returns whether the session goes on.
    fn take(&self, beat: &Beat, sent: Duration, failed_before: bool) -> bool {
        if beat.promoted {
            log::warn!(
                "the server continues another history (a standby was promoted): commits that it did not receive are lost, and their \
                 runs start again; running attempts are stopped and count as lost; this scheduler registers again"
            );
            // In this order: once `register` is set, the loop may begin a new lease, which must not be ended here.
            self.fence.end();
            self.news.register.store(true, Ordering::SeqCst);
        } else if beat.extended {
            self.fence.extend(sent);
        }
        // What was notified while the session was gone is lost.
        if beat.again || beat.promoted || failed_before || !beat.extended {
            self.news.look_up.store(true, Ordering::SeqCst);
            let _ = self.wake.try_send(());
        }
        !beat.promoted
    }

    /// Waits for notifications until the next heartbeat. Returns whether the session goes on.
    fn listen(&mut self) -> bool {
        let until = self.fence.now().saturating_add(HEARTBEAT);
        loop {
            let left = until.saturating_sub(self.fence.now());
            if self.ends_within(Duration::ZERO) {
                return false;
            }
            match self.session.wait(left.min(LOOK)) {
                Ok(true) => _ = self.wake.try_send(()),
                Ok(false) => {}
                Err(_) => return true,
            }
            if left.is_zero() {
                return true;
            }
        }
    }

    /// Returns whether the keeper is dropped before this time has passed.
    fn ends_within(&self, wait: Duration) -> bool {
        matches!(self.ended.recv_timeout(wait), Err(crossbeam_channel::RecvTimeoutError::Disconnected))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    use super::{Keeper, News};
    use crate::clock::{Clock, SystemClock, Timestamp};
    use crate::host::owner_lock::OwnerLock;
    use crate::model::observers::Observers;
    use crate::model::run::Claim;
    use crate::store::fault::{Class, Fault};
    use crate::store::{Beat, OwnerSession};
    use crate::waits::{patience, receive};
    use crate::worker::attempt::{Link, StopReason};
    use crate::worker::fence::Fence;
    use crate::worker::handed::Attempts;

    /// A session whose answers the test gives.
    #[derive(Debug)]
    struct Given {
        answers: Receiver<Option<Beat>>,
        asked: Sender<()>,
    }

    impl OwnerSession for Given {
        fn heartbeat(&mut self) -> Result<Beat, Fault> {
            let _ = self.asked.send(());
            let lost = || Fault::Store(Class::Other, "no answer".into());
            self.answers.recv().map_err(|_| lost())?.ok_or_else(lost)
        }

        fn wait(&mut self, _limit: Duration) -> Result<bool, Fault> {
            // The next heartbeat follows at once: the test decides when it is answered.
            Err(Fault::Store(Class::Other, "no notification".into()))
        }
    }

    struct Bench {
        time: Arc<AtomicU64>,
        answer: Sender<Option<Beat>>,
        asked: Receiver<()>,
        attempts: Attempts,
        keeper: Keeper,
        woken: Receiver<()>,
        /// For each lease that was announced: whether `register` was set before.
        announced: Receiver<bool>,
        _home: tempfile::TempDir,
    }

    fn claim() -> Arc<Claim> {
        let noon = Timestamp::from_millis(1_805_025_600_000);
        Arc::new(Claim::described(7, 1, "digest".to_owned(), "work".to_owned(), noon))
    }

    const EXTENDED: Beat = Beat { extended: true, again: false, promoted: false };

    fn bench() -> Bench {
        let home = tempfile::tempdir().unwrap();
        let anchor = home.path().join("anchor");
        std::fs::write(&anchor, "").unwrap();
        let alive = Arc::new(OwnerLock::take(&anchor, "a-1").unwrap());
        let link = Link { notices: bounded(1).0, alive };
        let attempts = Attempts::new(Arc::new(SystemClock::new()), Arc::new(Observers(Vec::new())), link);
        let time = Arc::new(AtomicU64::new(1000));
        let clock = time.clone();
        let uptime = Arc::new(move || Duration::from_secs(clock.load(Ordering::SeqCst)));
        let (announce, announced) = unbounded();
        let news = Arc::<OnceLock<Arc<News>>>::default();
        let seen = news.clone();
        let on_lease = Arc::new(move |_, _| {
            let _ = announce.send(seen.get().is_some_and(|news| news.register.load(Ordering::SeqCst)));
        });
        let fence = Fence::new(uptime, Duration::from_secs(60), Duration::from_secs(1000), Some(on_lease));
        let fence = Arc::new(fence);
        let _ = attempts.fence.set(fence.clone());
        let ((answer, answers), (ask, asked), (wake, woken)) = (unbounded(), unbounded(), bounded(1));
        let session = Box::new(Given { answers, asked: ask });
        let keeper = Keeper::start(session, fence, attempts.clone(), wake).unwrap();
        let _ = news.set(keeper.news.clone());
        Bench { time, answer, asked, attempts, keeper, woken, announced, _home: home }
    }

    impl Bench {
        fn at(&self, seconds: u64) {
            self.time.store(1000 + seconds, Ordering::SeqCst);
        }

        fn woken(&self) {
            receive(&self.woken, "a wake");
        }

        /// Answers the next heartbeat.
        fn answers(&self, answer: Option<Beat>) {
            receive(&self.asked, "a heartbeat");
            self.answer.send(answer).unwrap();
        }
    }

    #[test]
    fn an_owner_whose_heartbeats_fail_starts_nothing_and_stops_its_attempts_before_its_lease_ends() {
        let bench = bench();
        let claim = claim();
        let flag = bench.attempts.hand_over(&claim);
        let may_begin = || bench.attempts.begin(&claim, &flag, SystemClock::new().now()).is_some();
        bench.answers(Some(EXTENDED));
        assert!(bench.keeper.may_start() && may_begin());
        // Five seconds later: no answer, and none from then on.
        bench.at(5);
        bench.answers(None);
        bench.at(29);
        assert!(bench.keeper.may_start());
        bench.at(30);
        assert!(!bench.keeper.may_start() && !may_begin(), "thirty seconds before the end");
        bench.woken();
        assert_eq!(flag.raised(), None, "what runs goes on");
        bench.at(45);
        assert!(flag.wait(patience()), "fifteen seconds before the end");
        assert_eq!(flag.raised(), Some(StopReason::LeaseLost));
        // The answer to a heartbeat that was sent at second 5 comes late: it extends nothing that matters.
        assert!(!bench.keeper.may_start());
    }

    #[test]
    fn an_outage_that_ends_in_time_stops_nothing_and_looks_up_the_claims() {
        let bench = bench();
        let flag = bench.attempts.hand_over(&claim());
        bench.answers(Some(EXTENDED));
        bench.at(5);
        for _ in 0..2 {
            bench.answers(None);
        }
        bench.at(25);
        // The heartbeat that follows this one is sent at second 25.
        bench.answers(None);
        bench.answers(Some(Beat { again: true, ..EXTENDED }));
        bench.woken();
        assert!(bench.keeper.must_look_up() && !bench.keeper.must_look_up(), "once");
        bench.at(50);
        assert!(bench.keeper.may_start(), "the lease is extended");
        assert!(flag.raised().is_none() && !bench.keeper.must_stop());
    }

    #[test]
    fn an_attempt_that_had_exceeded_its_time_limit_before_the_lease_was_lost_has_timed_out() {
        let bench = bench();
        let flags = [(7, Duration::ZERO), (8, Duration::MAX)].map(|(run, deadline)| {
            let flag = bench.attempts.hand_over(&Arc::new(Claim { run_id: run, ..(*claim()).clone() }));
            flag.limit_to(deadline);
            flag
        });
        bench.answers(Some(EXTENDED));
        bench.at(50);
        assert!(flags.iter().all(|flag| flag.wait(patience())));
        assert_eq!(flags.map(|flag| flag.raised()), [Some(StopReason::TimeUp), Some(StopReason::LeaseLost)]);
    }

    #[test]
    fn claims_of_another_history_are_lost_at_once() {
        let bench = bench();
        let flag = bench.attempts.hand_over(&claim());
        bench.answers(Some(EXTENDED));
        bench.at(5);
        bench.answers(Some(Beat { promoted: true, ..Beat::default() }));
        assert!(flag.wait(patience()), "its handler is asked to stop");
        while !bench.keeper.must_register() {
            bench.woken();
        }
        assert!(!bench.keeper.may_start());
        let early = bench.announced.try_iter().any(|registers| registers);
        assert!(!early, "the lease ends before the owner registers again, not after: that would end the new one");
        // It registers again, with a session of its own.
        let ((answer, answers), (ask, asked)) = (unbounded(), unbounded());
        bench.keeper.restart(Box::new(Given { answers, asked: ask }), Duration::from_secs(1005)).unwrap();
        answer.send(Some(EXTENDED)).unwrap();
        receive(&asked, "a heartbeat");
        assert!(bench.keeper.may_start() && !bench.keeper.must_register());
    }
}
