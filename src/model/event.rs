//! What happened, as a value. The log, counters and tests all observe these events. The poller emits them, except the start of
//! an attempt, which its worker emits, and what a client of the same scheduler cancels.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Timestamp, millis};
use crate::host::orphan::Orphan;
use crate::host::panics;
use crate::model::run::{Claim, RunStatus};

/// What happened. Its `Display` is the log line, on one line whatever the names and errors contain.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A worker begins an attempt.
    Started {
        /// The attempt.
        claim: Arc<Claim>,
    },
    /// An attempt came to an end, and that is recorded.
    Finished {
        /// The attempt.
        claim: Arc<Claim>,
        /// Where the run stands now.
        status: RunStatus,
        /// What it failed of.
        error: Option<String>,
        /// How long the handler took.
        took: Duration,
        /// When it is tried again.
        next_attempt: Option<Timestamp>,
        /// When the task is due next. `None` if it is not, if nobody can say yet, and for tasks that are due once.
        next_due: Option<Timestamp>,
    },
    /// A handler whose time is up, and that was asked to stop, does not return: another worker has taken the place of the one
    /// that it holds. When the handler returns an error, the attempt is recorded as timed out.
    WorkerHeld {
        /// The attempt.
        claim: Arc<Claim>,
    },
    /// A worker thread ended, which no handler can cause: by a fault of duly, of the [`Clock`](crate::Clock) or of the logger that
    /// it was given. Another worker takes its place, and its run is settled as failed.
    WorkerEnded {
        /// The run that it carried out, if it did.
        run: Option<i64>,
        /// The message of the panic.
        error: String,
    },
    /// An attempt came to an end when another owner had already taken the run: its result changed nothing.
    Superseded {
        /// The attempt.
        claim: Arc<Claim>,
    },
    /// An attempt's owner died; its run was recovered. `Queued`: the attempt had not begun, and does not count.
    Lost {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// Which attempt was lost.
        attempt: u32,
        /// Where the run stands now.
        status: RunStatus,
        /// When it is tried again.
        next_attempt: Option<Timestamp>,
    },
    /// An owner is dead, and nothing of it is left to recover.
    OwnerLost {
        /// Its id.
        owner: String,
    },
    /// The command of a dead owner's run is still at work. The run waits until it is gone.
    Orphaned {
        /// The command.
        orphan: Orphan,
    },
    /// The owner of a run died, and it cannot be known whether its command is gone. The run waits until it can, or until a
    /// user [declares](crate::Client::declare_gone) it gone.
    OrphanUnknown {
        /// The command.
        orphan: Orphan,
        /// Why it cannot be known.
        reason: String,
    },
    /// The command of a dead owner's run is gone, but for a process that left its group and holds its input. The run is
    /// recovered.
    LeftGroup {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// Which attempt.
        attempt: u32,
    },
    /// Occurrences were not opened: skipped or missed.
    PassedOver {
        /// The name of the task.
        task: String,
        /// `Skipped` or `Missed`.
        status: RunStatus,
        /// The oldest of them.
        first: Timestamp,
        /// The newest of them.
        last: Timestamp,
        /// How many.
        count: u64,
        /// Whether `count` is all of them, or as far as was counted.
        exact: bool,
    },
    /// A waiting run was cancelled.
    Cancelled {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// Whether an attempt of it had begun: it waited for the next one.
        began: bool,
    },
    /// A waiting run expired before an attempt began.
    Expired {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
    },
    /// A dead run was to be told to another task, and could not be.
    NotTold {
        /// The dead run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The task that it names in `on_dead`.
        on_dead: String,
        /// Why not.
        reason: String,
    },
    /// An owner is alive and has not extended its lease for longer than the lease. Its runs are not taken over.
    OwnerStalled {
        /// Its id.
        owner: String,
        /// Its process.
        pid: u32,
        /// The machine that it runs on.
        host: String,
        /// When its lease ended.
        until: Timestamp,
    },
    /// So many runs of a task in a row are dead that it was paused.
    Paused {
        /// The name of the task.
        task: String,
        /// How many.
        failures: u32,
    },
    /// A row that someone else wrote cannot be used.
    Invalid {
        /// The name of the task.
        task: String,
        /// What is wrong with it.
        reason: String,
    },
    /// One item could not be written and was set aside; the others were.
    SetAside {
        /// What it was: `task "digest"`, `the outcome of run 7`.
        item: String,
        /// What SQLite said.
        reason: String,
    },
    /// The machine's wall clock has stepped, or the machine has slept.
    ClockStepped {
        /// What it would have shown.
        expected: Timestamp,
        /// What it shows.
        found: Timestamp,
    },
    /// The clock is hours behind what it had shown before: it was wrong then, and all schedules count from now.
    ClockWasWrong {
        /// What it had shown.
        believed: Timestamp,
        /// What it shows.
        found: Timestamp,
    },
    /// The time zones are not those of the last start: local times that lie ahead have been planned anew.
    ZoneDataChanged {
        /// Which data it was.
        before: String,
        /// Which it is.
        now: String,
    },
    /// The machine's clock has not been set since it was started. Nothing is done until it is.
    ClockNotSet,
    /// The machine's clock was not set, and is.
    ClockSet {
        /// What it shows.
        found: Timestamp,
    },
    /// At the start of a scheduler its clock is behind the newest time that the file holds, and schedules wait for that time.
    ClockBehind {
        /// That time.
        newest: Timestamp,
        /// What the clock shows.
        found: Timestamp,
    },
    /// This owner's lock file had been removed or overwritten, and was made again.
    LockMadeAgain,
    /// The database refuses to be written; nothing starts until it accepts again.
    Degraded {
        /// What it said.
        reason: String,
    },
    /// The database accepts writing again.
    Recovered,
    /// A newer duly has brought the tables to its own version. Nothing more starts; when what runs has come to its end and is
    /// written down, the scheduler stops.
    Outlived {
        /// Which version was found, and what to do about it.
        reason: String,
        /// How many runs are yet to end.
        at_work: usize,
    },
}

/// Receives events. [`Event::Started`] comes from the worker that begins the attempt; [`Event::Cancelled`], for a run that a client
/// of this scheduler cancels, from the thread that calls [`Client::cancel`](crate::Client::cancel); every other event from the
/// scheduler's own thread. Each of them waits until the observer returns: it should be quick.
pub trait Observer: Send + Sync + 'static {
    /// Called with each event, after what it reports was committed.
    fn observe(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

/// All who are told.
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn tell(&self, event: &Event) {
        for observer in &self.0 {
            // An observer is the user's code: its panic must not stop the loop.
            if let Err(panic) = panics::contained(|| observer.observe(event)) {
                log::error!("an observer panicked: {}; the others receive the event all the same", OneLine(&panic));
            }
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|observer| panics::dispose("an observer", observer));
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.len()).finish()
    }
}

impl Event {
    /// How loudly the log should say it.
    pub fn level(&self) -> log::Level {
        match self {
            Event::Started { .. } | Event::Recovered | Event::Cancelled { .. } | Event::ClockSet { .. } => {
                log::Level::Info
            }
            Event::Finished { status: RunStatus::Dead, .. }
            | Event::Degraded { .. }
            | Event::SetAside { .. }
            | Event::WorkerEnded { .. }
            | Event::Outlived { .. } => log::Level::Error,
            Event::Finished { error: Some(_), .. } => log::Level::Warn,
            Event::Finished { .. } | Event::PassedOver { status: RunStatus::Skipped, .. } => log::Level::Info,
            _ => log::Level::Warn,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { claim } => write!(
                f,
                "run {} of {:?} started (attempt {} of {})",
                claim.run_id,
                claim.task,
                claim.counted(),
                claim.retry.max_attempts
            ),
            Event::Finished { claim, status, error, took, next_attempt, next_due } => {
                write!(f, "run {} of {:?} ", claim.run_id, claim.task)?;
                if *status == RunStatus::Queued {
                    return f.write_str("was given back before it was started");
                }
                write!(f, "{status} after {}", humantime::format_duration(coarse(*took)))?;
                if let Some(error) = error {
                    let (attempt, of) = (claim.counted(), claim.retry.max_attempts);
                    write!(f, " (attempt {attempt} of {of}): {}", OneLine(error))?;
                }
                match next_due {
                    Some(at) if next_attempt.is_none() => write!(f, "; due again at {at}"),
                    _ => what_next(f, *status, *next_attempt),
                }
            }
            Event::WorkerHeld { claim } => write!(
                f,
                "run {} of {:?} does not stop though its time is up; another worker takes the place of the one it holds",
                claim.run_id, claim.task
            ),
            Event::WorkerEnded { run, error } => {
                f.write_str("a worker ended")?;
                run.map_or(Ok(()), |run| write!(f, " while it carried out run {run}"))?;
                write!(f, ": {}; another takes its place", OneLine(error))
            }
            Event::Superseded { claim } => write!(
                f,
                "run {} of {:?}: attempt {} ended after another owner had taken the run; its result is kept with the \
                 attempts",
                claim.run_id, claim.task, claim.attempt
            ),
            Event::Lost { run, task, attempt, status: RunStatus::Queued, .. } => {
                write!(f, "run {run} of {task:?}: the owner of attempt {attempt} died before it began; queued again")
            }
            Event::Lost { run, task, attempt, status, next_attempt } => {
                write!(f, "run {run} of {task:?}: the owner of attempt {attempt} died; {status}")?;
                what_next(f, *status, *next_attempt)
            }
            Event::Orphaned { orphan } => write!(
                f,
                "run {} of {:?}: the owner of attempt {} died, and its command is still at work; the run waits for it",
                orphan.run_id(),
                orphan.task(),
                orphan.attempt()
            ),
            Event::OrphanUnknown { orphan, reason } => {
                let run = orphan.run_id();
                write!(
                    f,
                    "run {run} of {:?}: the owner of attempt {} died, and whether its command is gone cannot be known: {}; \
                     the run waits; if it is gone: duly cancel {run} --gone",
                    orphan.task(),
                    orphan.attempt(),
                    OneLine(reason)
                )
            }
            Event::LeftGroup { run, task, attempt } => write!(
                f,
                "run {run} of {task:?}: the command of attempt {attempt} is gone; a process that left its group holds its input"
            ),
            Event::OwnerStalled { owner, pid, host, until } => write!(
                f,
                "owner {owner} (pid {pid} on {}) is alive and stalled: its lease ended at {until}; its runs are not taken over; \
                 let it continue, or end it",
                OneLine(host)
            ),
            Event::OwnerLost { owner } => write!(f, "owner {owner} is dead; its runs are recovered"),
            Event::PassedOver { task, status, first, last, count, exact } => {
                let least = if *exact { "" } else { "at least " };
                let verb = if *status == RunStatus::Skipped { "skipped" } else { "missed" };
                match count {
                    1 => write!(f, "{verb} the occurrence of {task:?} at {first}"),
                    _ => write!(f, "{verb} {least}{count} occurrences of {task:?} from {first} to {last}"),
                }
            }
            Event::Cancelled { run, task, began: true } => {
                write!(f, "run {run} of {task:?} was cancelled while it waited for its next attempt")
            }
            Event::Cancelled { run, task, began: false } => {
                write!(f, "run {run} of {task:?} was cancelled before it began")
            }
            Event::Expired { run, task } => write!(f, "run {run} of {task:?} expired before it began; missed"),
            Event::NotTold { run, task, on_dead, reason } => {
                write!(f, "run {run} of {task:?} is dead, and {on_dead:?} is not told: {}", OneLine(reason))
            }
            Event::Paused { task, failures } => {
                write!(f, "paused {task:?}: {failures} dead runs in a row; it rests until it is resumed")
            }
            Event::Invalid { task, reason } => {
                write!(f, "task {task:?} is invalid: {}; it rests until it is changed", OneLine(reason))
            }
            Event::SetAside { item, reason } => write!(f, "set aside {item}: {}", OneLine(reason)),
            Event::ClockStepped { expected, found } if found > expected => {
                write!(f, "the clock went forward from {expected} to {found}: what fell meanwhile was missed")
            }
            Event::ClockStepped { expected, found } => {
                write!(f, "the clock went back from {expected} to {found}: what was done until then is not done again")
            }
            Event::ClockWasWrong { believed, found } => {
                write!(f, "the clock had shown {believed} and shows {found}: all schedules count from now")
            }
            Event::ZoneDataChanged { before, now } => {
                write!(f, "the time zones were {}, and are {now}: local times are planned anew", OneLine(before))
            }
            Event::ClockNotSet => f.write_str("the clock of this machine is not set: nothing is done until it is"),
            Event::ClockSet { found } => write!(f, "the clock of this machine is set: it shows {found}"),
            Event::ClockBehind { newest, found } => write!(
                f,
                "the clock shows {found} at the start, and the file holds {newest}: what counts from that time waits for it"
            ),
            Event::LockMadeAgain => {
                f.write_str("the lock file of this owner had been removed or overwritten; made again")
            }
            Event::Degraded { reason } => {
                write!(f, "the database cannot be written: {}; nothing starts until it can, retrying", OneLine(reason))
            }
            Event::Recovered => f.write_str("the database can be written again"),
            Event::Outlived { reason, at_work } => {
                write!(f, "{}; nothing more starts; runs whose end is waited for: {at_work}", OneLine(reason))
            }
        }
    }
}

/// Milliseconds, or seconds where they say enough.
fn coarse(took: Duration) -> Duration {
    let millis = millis(took).unsigned_abs();
    Duration::from_millis(if millis < 10_000 { millis } else { millis / 1000 * 1000 })
}

fn what_next(f: &mut fmt::Formatter<'_>, status: RunStatus, next_attempt: Option<Timestamp>) -> fmt::Result {
    match (status, next_attempt) {
        (_, Some(at)) => write!(f, "; next attempt at {at}"),
        (RunStatus::Dead, None) => f.write_str("; no attempt is left"),
        _ => Ok(()),
    }
}

/// Text that may hold anything, with control characters escaped.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            // U+2028 and its like break lines or turn text around as control characters do.
            if c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
                write!(f, "{}", c.escape_default())
            } else {
                f.write_char(c)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Event;
    use crate::model::run::RunStatus;

    #[test]
    fn a_line_says_what_happens_next_and_stays_one_line() {
        let lost = Event::Lost {
            run: 81,
            task: "digest".into(),
            attempt: 2,
            status: RunStatus::Failed,
            next_attempt: Some("2027-03-14T07:02:00Z".parse().unwrap()),
        };
        let expected =
            "run 81 of \"digest\": the owner of attempt 2 died; failed; next attempt at 2027-03-14T07:02:00.000Z";
        assert_eq!(lost.to_string(), expected);
        let hostile = Event::Invalid { task: "a\nb".into(), reason: "x\u{1b}[2J\r\nfake: line\u{2028}".into() };
        assert!(!hostile.to_string().contains(|c: char| c.is_control() || c == '\u{2028}'), "{hostile}");
    }
}
