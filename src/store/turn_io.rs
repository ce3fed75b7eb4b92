//! The values that cross the interface of a store: what a scheduler registers, what a turn is given, and what it returns.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::host::attempt_slots::{BegunAttempts, ClaimedAttempt};
use crate::host::orphan::{Orphan, Presence};
#[cfg(feature = "postgres")]
use crate::host::owner_lock::DeadOwner;
use crate::host::owner_lock::{OwnerLock, Standing, standing};
use crate::model::event::Event;
use crate::model::finished::{Finished, Report, WorkerEnded};
use crate::model::retry::RetryPolicy;
use crate::model::run::Claim;
use crate::rules::retention_timer::Part;
/// Most items that one turn writes.
pub(crate) use crate::rules::turn_size::MAX_ITEMS;

/// Most of them that are outcomes.
pub(crate) const MAX_OUTCOMES: usize = MAX_ITEMS / 2;

/// An owner, whose lock is held.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) owner: String,
    pub(crate) host: String,
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
    /// The version of this process's zone data.
    pub(crate) zone_data: String,
    /// What its application reports as wrong: a JSON array of texts.
    pub(crate) problems: Option<String>,
}

/// What a scheduler finds when it registers.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Other owners that have running runs.
    pub(crate) others: Vec<Other>,
    /// Other owners that did not shut down, with running runs or without; each with the time of its last heartbeat.
    pub(crate) not_stopped: Vec<Other>,
    /// The schema cookie of a file: this owner has no claims that differ from the rows.
    pub(crate) cookie: Option<i64>,
    /// The newest heartbeat of any owner before this one.
    pub(crate) newest_seen: Option<Timestamp>,
    /// The event, if local times were planned by other rules: they are planned anew.
    pub(crate) zone_data_changed: Option<Event>,
}

/// The owners and attempts that the tables know: files of others are left over.
#[derive(Debug)]
pub(crate) struct KnownOwners {
    /// Every registered owner that is not known to have stopped, or has running runs.
    pub(crate) not_ended: HashSet<String>,
    /// Every running run, with the number of its attempt; and what was begun before the file was restored, and may still run.
    pub(crate) running: HashSet<(i64, u32)>,
    /// Whether there are no others: what a scheduler had begun before a restore may be unknown.
    pub(crate) all: bool,
}

/// Another owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Other {
    pub(crate) owner: String,
    /// The newest end of its lease; without running runs, its last heartbeat.
    pub(crate) until: Timestamp,
    /// The length of its lease; zero if it is not registered.
    pub(crate) lease: Duration,
    pub(crate) session: Session,
}

/// What the session of an owner shows. An error while looking counts as held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Session {
    /// Nothing: the store is a file, and owners have no sessions.
    #[default]
    None,
    /// It holds its lock, or held it when it was looked at: the owner is alive.
    Held {
        /// It registered in this boot of this machine, so that its lock file here can prove its death.
        here: bool,
    },
    /// Its lock is free. A network that fails frees it too.
    Free {
        /// As above.
        here: bool,
        /// Its lease has passed by the clock of the server.
        passed: bool,
    },
}

impl Session {
    pub(crate) fn is_held(self) -> bool {
        matches!(self, Session::Held { .. })
    }

    /// Returns the standing of an owner by its lock file. On a server, a file whose lock is free may be a copy of another host's, or
    /// shared with one: unless its owner is known to be of this boot of this machine, the file is as none. The lock of the session is
    /// tried again before anything is recovered.
    pub(crate) fn standing(self, database: &Path, owner: &str) -> Standing {
        match standing(database, owner) {
            #[cfg(feature = "postgres")]
            Standing::Dead(dead) if !self.trusts(&dead) => Standing::Missing,
            standing => standing,
        }
    }

    #[cfg(feature = "postgres")]
    fn trusts(self, dead: &DeadOwner) -> bool {
        match self {
            Session::None => true,
            Session::Held { here } | Session::Free { here, .. } => here && dead.is_of_this_boot(),
        }
    }
}

/// An owner that counts as dead.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) owner: String,
    pub(crate) proof: Proof,
    /// How long it has been known to be dead.
    pub(crate) dead_for: Duration,
}

/// Why an owner counts as dead.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// This owner acquired its lock. The attempts that its workers had begun, if its slots say so.
    Lock(Option<Arc<BegunAttempts>>),
    /// Its lease has kept this value. The process that saw it may have slept since, while the owner did not: it is checked again.
    Lease(Option<Timestamp>),
    /// It has no running run, and this was its last heartbeat.
    Silence(Timestamp),
    /// It is an earlier id of the owner that takes the turn, whose claims the database lacked when it was restored. What may still run of
    /// it is among [`Work::strays`].
    Restored,
}

/// An attempt that an owner has begun, or may begin, under an earlier id, of which the database knew nothing when it was restored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stray {
    /// The earlier id.
    pub(crate) owner: String,
    pub(crate) claimed: ClaimedAttempt,
}

impl Dead {
    /// Returns whether this attempt never began. An attempt of which that cannot be known counts as begun.
    pub(crate) fn never_began(&self, lost: &Lost) -> bool {
        match &self.proof {
            Proof::Lock(Some(begun)) => !begun.contains_key(&(lost.run, lost.attempt)),
            Proof::Lock(None) | Proof::Lease(_) | Proof::Silence(_) | Proof::Restored => false,
        }
    }

    /// Returns whether its slots say which attempts its workers had begun.
    pub(crate) fn shows_its_slots(&self) -> bool {
        matches!(self.proof, Proof::Lock(Some(_)))
    }
}

/// An owner that is alive and did not extend its lease in time.
#[derive(Clone, Debug)]
pub(crate) struct Stalled {
    pub(crate) owner: String,
    /// The end of its lease.
    pub(crate) until: Timestamp,
}

/// A run whose owner is dead.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) task_id: i64,
    pub(crate) task: String,
    pub(crate) handler: String,
    /// What was recorded of its command.
    pub(crate) process: Option<String>,
}

impl Lost {
    /// Returns the command of the run. `database`: the file that the lock and input files are beside. `owner`: its scheduler.
    pub(crate) fn orphan(&self, database: &Path, owner: Option<&str>) -> Orphan {
        let Lost { run, attempt, task, handler, process, .. } = self;
        Orphan::new(database, *run, *attempt, task.clone(), handler.clone(), process.as_deref()).started_by(owner)
    }
}

/// Returns whether a command is still running. `doubt`: why that could not be known a moment ago. `dead_for`: as in [`Dead`].
pub(crate) fn presence(orphan: &Orphan, doubt: Option<&str>, dead_for: Duration) -> Presence {
    match doubt {
        Some(reason) if !orphan.is_declared_gone() => Presence::Unknown(reason.to_owned()),
        _ => orphan.presence_after_death(dead_for),
    }
}

/// A lost run whose command is not known to be gone.
#[derive(Clone, Debug)]
pub(crate) struct Orphaned {
    pub(crate) owner: String,
    pub(crate) lost: Lost,
    /// Why it cannot be known whether its command is gone; `None` if it lives.
    pub(crate) doubt: Option<String>,
}

/// A row of `scheduler_events` about the wall clock, or about a stall of this owner.
#[derive(Clone, Debug)]
pub(crate) struct ClockEvent {
    pub(crate) at: Timestamp,
    pub(crate) kind: &'static str,
    pub(crate) detail: String,
}

/// What the look before a turn saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// When that was.
    pub(crate) at: Timestamp,
    /// The earliest `next_run` of all tasks at that time.
    pub(crate) next_due: Option<Timestamp>,
}

impl Seen {
    /// Returns whether a due task was written, or made due, since that look. Otherwise the turn at `next_due` would have come
    /// before.
    pub(crate) fn is_new(&self, next_run: Timestamp) -> bool {
        self.next_due.is_none_or(|next| next_run < next)
    }
}

/// How many runs may still be claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// All of them.
    pub(crate) room: usize,
    /// Workers that would start one at once. The rest of the room is reading ahead.
    pub(crate) idle: usize,
}

impl Slots {
    /// Returns whether a run of this policy may be claimed. A run that may start only once is never read ahead: if its owner died,
    /// it would look like one that did start.
    pub(crate) fn admits(&self, retry: &RetryPolicy) -> bool {
        self.room > 0 && (self.idle > 0 || retry.max_attempts > 1)
    }

    /// Returns when the next claim begins: now, or `None` if it is read ahead.
    pub(crate) fn started(&self, now: Timestamp) -> Option<Timestamp> {
        (self.idle > 0).then_some(now)
    }

    /// Returns the slots, less those for reading ahead that correspond to outcomes which are left unwritten: if this process dies, they are
    /// repeated as well.
    pub(crate) fn less(self, unwritten: usize) -> Slots {
        Slots { room: self.room.saturating_sub(unwritten).max(self.idle.min(self.room)), ..self }
    }

    /// Takes one slot. Returns whether the run is read ahead.
    pub(crate) fn take(&mut self) -> bool {
        let read_ahead = self.idle == 0;
        self.room = self.room.saturating_sub(1);
        self.idle = self.idle.saturating_sub(1);
        read_ahead
    }
}

/// The input of a turn.
pub(crate) struct Work<'a> {
    pub(crate) now: Timestamp,
    /// The time of the monotonic clock.
    pub(crate) monotonic: Duration,
    pub(crate) owner: &'a str,
    /// The owner's lock, if it is halted: it resumes in the turn if the claims are those of the rows.
    pub(crate) halted: Option<&'a OwnerLock>,
    /// Of the owner.
    pub(crate) registration: &'a Registration,
    pub(crate) handlers: &'a BTreeSet<String>,
    /// The end of the owner's lease.
    pub(crate) until: Timestamp,
    /// At most [`Store::most_outcomes`](crate::store::Store::most_outcomes).
    pub(crate) finished: &'a [Finished],
    pub(crate) reports: &'a [Report],
    /// Workers of this owner that ended.
    pub(crate) ended: &'a [WorkerEnded],
    /// Owners that are proved dead.
    pub(crate) dead: &'a [Dead],
    /// The attempts that the owner has claimed and not settled, by run.
    pub(crate) claimed: &'a BTreeMap<i64, ClaimedAttempt>,
    /// The earlier ids of the owner, whose attempts are lost because the database was restored.
    pub(crate) former: &'a [String],
    /// Their attempts that have not returned.
    pub(crate) strays: &'a [Stray],
    /// Owners that live and are stalled, which this owner has not reported.
    pub(crate) stalled: &'a [Stalled],
    /// The file that the lock and input files of owners are beside.
    pub(crate) database: &'a Path,
    /// Lost attempts of which it could not be known a moment ago whether their command is gone, and why. The kernel is not asked
    /// about them again.
    pub(crate) doubts: &'a HashMap<(i64, u32), String>,
    /// Lost attempts of which it has been recorded that this cannot be known.
    pub(crate) doubted: &'a HashSet<(i64, u32)>,
    /// What the clock had shown, if it was far ahead until now. Where the rows are stored elsewhere, such a turn does nothing else.
    pub(crate) rewind: Option<Timestamp>,
    /// By how many milliseconds the wall clock has stepped.
    pub(crate) stepped: i64,
    /// Events of the wall clock that are not recorded yet.
    pub(crate) clock_events: &'a [ClockEvent],
    /// Whether the tables are of a newer version: the turn writes outcomes and the lease only, as far as these tables accept them.
    pub(crate) newer: bool,
    /// Whether the owner drains: it takes on no work.
    pub(crate) draining: bool,
    /// `None`: this is the first turn, and what was written before it may have waited for any time.
    pub(crate) seen: Option<Seen>,
    /// Whether the turn extends leases and looks at all rows.
    pub(crate) full: bool,
    pub(crate) slots: Slots,
    /// What retention deletes in this turn.
    pub(crate) prune: Option<Part>,
    /// Most items that the turn writes: at most [`MAX_ITEMS`], fewer after turns that took too long. If it is one, what exceeds a time
    /// limit of a server is set aside.
    pub(crate) most: usize,
    /// Most runs of changed tasks that the turn derives again, and most tasks that it has planned again.
    pub(crate) derived: usize,
    /// Most due tasks that are resolved although no worker is free for them.
    pub(crate) ahead: usize,
}

/// One thing that a turn writes: whole, or it is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Outcome(i64),
    Report(i64),
    Lost(i64),
    Expiry(i64),
    Task(i64),
    Claim(i64),
    /// The time of a waiting run that a wrong clock has planned; a waiting run of a task that was changed.
    Wait(i64),
    /// The waiting runs of a task that was changed.
    Mark(i64),
    /// How far tasks and runs are planned again that a wrong clock had planned.
    ClockMark,
    /// How far starts of rate limits are set back that a wrong clock had recorded.
    ClockStarts,
    /// The keys and tasks that may start again.
    Openings,
    /// The start of a running run, which moves with a step of the clock.
    Start(i64),
    Sweep,
    Prune,
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Item::Outcome(run) => write!(f, "the outcome of run {run}"),
            Item::Report(run) => write!(f, "a report on run {run}"),
            Item::Lost(run) => write!(f, "the lost run {run}"),
            Item::Expiry(run) => write!(f, "the expiry of run {run}"),
            Item::Task(task) => write!(f, "task {task}"),
            Item::Claim(run) => write!(f, "the claim of run {run}"),
            Item::Wait(run) => write!(f, "the wait of run {run}"),
            Item::Mark(task) => write!(f, "the waiting runs of task {task}"),
            Item::ClockMark => f.write_str("the tasks and runs that a wrong clock had planned"),
            Item::ClockStarts => f.write_str("the starts of rate limits that a wrong clock had recorded"),
            Item::Openings => f.write_str("the keys and tasks that may start again"),
            Item::Start(run) => write!(f, "the start of run {run}"),
            Item::Prune => f.write_str("the deletion of expired history"),
            Item::Sweep => f.write_str("the check of waiting runs"),
        }
    }
}

#[cfg(feature = "postgres")]
impl Work<'_> {
    /// Returns how many items a turn may write at most beside its outcomes. Those that are stored already take no place if nothing
    /// follows from them.
    pub(crate) fn budget(&self) -> usize {
        self.most.saturating_sub(self.finished.iter().filter(|finished| !finished.stored).count())
    }
}

/// What a turn did and saw.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Runs that it claimed. They are committed and may start.
    pub(crate) claims: Vec<Arc<Claim>>,
    pub(crate) events: Vec<Event>,
    /// Own runs that a user has asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Other owners that have running runs.
    pub(crate) others: Vec<Other>,
    /// Runs of theirs whose command a user has declared gone.
    pub(crate) declared_gone: Vec<i64>,
    /// In a full turn: other owners that did not shut down, with running runs or without; each with the time of its last
    /// heartbeat.
    pub(crate) not_stopped: Vec<Other>,
    /// Runs of dead owners that must wait for their command to end.
    pub(crate) orphaned: Vec<Orphaned>,
    /// Whether a dead owner had more runs than this turn could look at.
    pub(crate) more_lost: bool,
    /// Dead owners of which a run could not be recovered: it was set aside.
    pub(crate) resting: HashSet<String>,
    /// Outcomes that were set aside: they are neither written nor lost.
    pub(crate) unwritten: Vec<Finished>,
    /// The places of outcomes, among those that were given, that are left to the next turn.
    pub(crate) deferred: BTreeSet<usize>,
    /// Dead owners of which nothing is left to recover.
    pub(crate) recovered: Vec<String>,
    /// How many own runs had their lease extended, in a full turn.
    pub(crate) extended: Option<usize>,
    /// Whether more is due than was resolved, or rows without a due time are to be looked at.
    pub(crate) more_due: bool,
    /// The schema cookie of a file, for which the claims of the owner were compared with the rows.
    pub(crate) cookie: Option<i64>,
    /// Whether attempts of an earlier history hold something back, or may: whether they still run is looked at again after a poll interval.
    pub(crate) holds: bool,
    /// Why it is not known what other owners have compared: nothing starts.
    pub(crate) not_compared: Option<std::io::Error>,
    /// Whether rows without a due time, or runs that have expired, are left: they wait for no worker.
    pub(crate) more_unplanned: bool,
    /// Whether the turn has not read what is due next, other owners and what is to stop, so that its claims start sooner. The poller looks
    /// at once; if another turn comes first, that one does.
    pub(crate) look_follows: bool,
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) next_claimable: Option<Timestamp>,
    pub(crate) next_expiry: Option<Timestamp>,
    /// When a key or a task that has no start left may have one again.
    pub(crate) next_opening: Option<Timestamp>,
    /// Whether retention, if it took part, has more to delete.
    pub(crate) pruned: Option<bool>,
    /// Whether the last batch of retention found damage. A turn without a batch cannot show that it is gone.
    pub(crate) damaged: bool,
    /// The data version of the snapshot that the turn saw.
    pub(crate) data_version: i64,
    /// How many items a turn on a file has written, and for how long it held the lock before its commit.
    pub(crate) items: usize,
    pub(crate) held: Duration,
    /// The server's time by which the turn decided what is due; `None` if that is the time that was given.
    pub(crate) decided_at: Option<Timestamp>,
}

/// What an attempt finds of an effect that it wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Nothing. The intent is committed: the handler may perform the effect.
    Now,
    /// It was performed, with this value: JSON.
    Done(String),
    /// It was begun before, and whether it was performed is not known.
    InDoubt,
}
