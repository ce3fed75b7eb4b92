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
        let failed = |error| Error::store("start the thread of the heartbeat", error);
        let news = Arc::<News>::default();
        let (end, ended) = bounded(0);
        let (timer_news, timer_wake) = (news.clone(), wake.clone());
        fence.watch(move |stage| entered(stage, &attempts, &timer_news, &timer_wake)).map_err(failed)?;
        let heart = Heart { session, fence: fence.clone(), news: news.clone(), wake, ended };
        thread::Builder::new().name("duly-heartbeat".into()).spawn(move || heart.run()).map_err(failed)?;
        Ok(Keeper { fence, news, _end: end })
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

    /// Returns whether the owner must register again under another id. This keeper has ended then.
    pub(crate) fn must_register(&self) -> bool {
        self.news.register.load(Ordering::SeqCst)
    }

    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }
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
            attempts.stop_all(StopReason::LeaseLost);
            news.stop.store(true, Ordering::SeqCst);
            log::error!("the lease of this scheduler ends soon, and others may take over: running attempts are stopped");
        }
        Stage::Over => attempts.stop_all(StopReason::LeaseLost),
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
