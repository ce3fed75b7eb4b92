//! The guard: a process that ends the commands and workers of this scheduler when the scheduler is killed.
//!
//! `duly run` starts this program once more, in the role of the guard ([`process`]), and tells it over a pipe which process groups
//! start and end. The kernel closes the pipe when the scheduler dies, however it dies; the guard then ends what is left, and exits.
//! A group is announced right after its process was started, since only then its identity is known, and before the process is
//! recorded with the run. A scheduler that is killed between the two leaves an orphan process, which the next scheduler ends: the
//! guard only hastens that, and recovery waits for evidence as without it.

mod lines;
pub(crate) mod process;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Child, ChildStdin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use duly::command::Leader;
use duly::{Clock, SystemClock};

use crate::exec::children::Own;
use crate::exec::guard::lines::{Group, Line};
use crate::exec::system;

/// Life after which the end of a guard is reported again, and the longest delay before the next start.
const PROOF: Duration = Duration::from_secs(60);
/// Time for which a full pipe may delay a line.
const WRITE: Duration = Duration::from_secs(1);
/// Delay before the second restart in a row. It doubles.
const BACKOFF: Duration = Duration::from_secs(1);

/// The guard of this process. Cheap to clone. The default one guards nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard(Option<Arc<Mutex<Keeper>>>);

/// A process group that the guard ends if this process is killed. Dropped when the group has ended.
#[derive(Debug)]
pub(crate) struct Watched {
    guard: Arc<Mutex<Keeper>>,
    pid: u32,
}

impl Guard {
    /// Starts the guard. Where processes cannot be distinguished, which is everywhere but on Linux, nothing is guarded. If the guard
    /// cannot be started, that is logged, and tried again by [`Guard::check`].
    pub(crate) fn start() -> Self {
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return Guard::default();
        }
        let guard = Arc::<Mutex<Keeper>>::default();
        lock(&guard).start();
        Guard(Some(guard))
    }

    /// Announces the group that a child leads which was not waited for. `None`: the child cannot be distinguished from other
    /// processes, and is not guarded.
    pub(crate) fn watch(&self, pid: u32, kill_after: Duration, variables: Vec<String>) -> Option<Watched> {
        let guard = self.0.clone()?;
        let group = Group { leader: Leader::identify(pid)?, kill_after, variables };
        let mut keeper = lock(&guard);
        keeper.groups.insert(pid, group.clone());
        keeper.send(&Line::Start(group));
        drop(keeper);
        Some(Watched { guard, pid })
    }

    /// Sets when the guard ends the groups although this process lives: SIGTERM at `term`, SIGKILL at `kill`, both as
    /// [`process::since_boot`]. A later call replaces them.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_deadline(&self, term: Duration, kill: Duration) {
        let Some(guard) = &self.0 else { return };
        let mut keeper = lock(guard);
        keeper.deadline = Some((term, kill));
        keeper.send(&Line::Deadline { term, kill });
    }

    /// Starts the guard again if it has ended. Called at least once a second.
    pub(crate) fn check(&self) {
        if let Some(guard) = &self.0 {
            lock(guard).check();
        }
    }

    /// Ends the guard, before this process does. If groups are left, the guard ends them.
    pub(crate) fn finish(&self) {
        if let Some(guard) = &self.0 {
            lock(guard).finish();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut keeper = lock(&self.guard);
        keeper.groups.remove(&self.pid);
        keeper.send(&Line::End(self.pid));
    }
}

/// What the scheduler knows of its guard.
#[derive(Debug, Default)]
struct Keeper {
    live: Option<Live>,
    /// What a new guard must be told.
    groups: BTreeMap<u32, Group>,
    deadline: Option<(Duration, Duration)>,
    clock: SystemClock,
    /// Guards in a row that have ended early, and the time of the next start.
    failures: u32,
    next_start: Duration,
}

#[derive(Debug)]
struct Live {
    child: Child,
    /// The guard ends the groups when it is closed.
    pipe: ChildStdin,
    started: Duration,
    /// Dropped last: the guard is registered until it was waited for.
    _own: Own,
}

impl Keeper {
    /// Starts the guard and tells it everything.
    fn start(&mut self) {
        match process::start() {
            Ok((child, pipe, own)) => {
                self.live = Some(Live { child, pipe, started: self.now(), _own: own });
                let deadline = self.deadline.map(|(term, kill)| Line::Deadline { term, kill });
                let lines: Vec<Line> = self.groups.values().cloned().map(Line::Start).chain(deadline).collect();
                for line in &lines {
                    self.send(line);
                }
            }
            Err(error) => {
                self.failed(Duration::ZERO, &format!("the guard process cannot be started: {error}; it is tried again"))
            }
        }
    }

    /// Tells the guard.
    fn send(&mut self, line: &Line) {
        let Some(live) = &mut self.live else { return };
        if let Err(error) = write(&mut live.pipe, line.to_text().as_bytes()) {
            self.lost(&error.to_string());
        }
    }

    fn check(&mut self) {
        match self.live.as_mut().map(|live| matches!(live.child.try_wait(), Ok(None))) {
            Some(true) => {}
            Some(false) => self.lost(""),
            None if self.now() >= self.next_start => self.start(),
            None => {}
        }
    }

    /// Ends a guard that has ended or does not read, without closing its pipe before: it would end the groups.
    fn lost(&mut self, error: &str) {
        let Some(mut live) = self.live.take() else { return };
        let how = match live.child.try_wait() {
            Ok(Some(status)) => system::failure(status).unwrap_or_else(|| "exit code 0".to_owned()),
            _ => format!("it does not read: {error}"),
        };
        end(&mut live.child);
        self.failed(
            self.now().saturating_sub(live.started),
            &format!("the guard process ended: {how}; it is started again"),
        );
    }

    /// Starts the next guard at once, or after a delay if several have failed in a row, which is reported once.
    fn failed(&mut self, lived: Duration, what: &str) {
        self.failures = if lived >= PROOF { 1 } else { self.failures.saturating_add(1) };
        let delay = BACKOFF.saturating_mul(1 << self.failures.saturating_sub(2).min(6)).min(PROOF);
        self.next_start = self.now() + if self.failures == 1 { Duration::ZERO } else { delay };
        if self.failures == 1 {
            log::warn!("{what}; without it, commands outlive a scheduler that is killed, until the next one ends them");
        }
    }

    fn finish(&mut self) {
        if let Some(mut live) = self.live.take()
            && self.groups.is_empty()
        {
            end(&mut live.child);
        }
        self.next_start = Duration::MAX;
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }
}

/// Writes a line, which is shorter than what the kernel writes as a whole. A guard that does not read must not stop the scheduler:
/// after [`WRITE`] the write fails.
fn write(pipe: &mut ChildStdin, line: &[u8]) -> io::Result<()> {
    let clock = SystemClock::new();
    loop {
        match pipe.write(line) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && clock.now().monotonic < WRITE => {
                thread::sleep(Duration::from_millis(1));
            }
            written => return written.map(drop),
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _: io::Result<_> = child.wait();
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}
