//! What a turn is told and what it answers, what goes on from one to the next, and the items that it is made of.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::host::orphan::Presence;
use crate::model::finished::{Finished, Report, WorkerEnded};
use crate::model::report::Pass;
use crate::rules::retention_timer::Part;
use crate::store::sqlite::blocked::Round;
use crate::store::sqlite::first_look::Seen;
use crate::store::sqlite::open::{Slots, Written};
use crate::store::sqlite::owners::{self, Dead, Lost, Other, Registration, Stalled};

/// Most items that one turn writes.
pub(crate) const MAX_ITEMS: usize = 500;
/// Most of them that are outcomes.
pub(crate) const MAX_OUTCOMES: usize = MAX_ITEMS / 2;

/// A row of `scheduler_events` about the wall clock.
#[derive(Clone, Debug)]
pub(crate) struct ClockEvent {
    pub(crate) at: Timestamp,
    pub(crate) kind: &'static str,
    pub(crate) detail: String,
}

impl ClockEvent {
    pub(crate) fn record(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        owners::record(tx, self.at, self.kind, None, None, Some(&self.detail))
    }
}

/// What a turn is to do.
pub(crate) struct Work<'a> {
    pub(crate) now: Timestamp,
    pub(crate) owner: &'a str,
    /// Of the owner.
    pub(crate) registration: &'a Registration,
    pub(crate) handlers: &'a BTreeSet<String>,
    /// Until when the owner is believed if it is not heard of again.
    pub(crate) until: Timestamp,
    pub(crate) finished: &'a [Finished],
    pub(crate) reports: &'a [Report],
    /// Workers of this owner that ended.
    pub(crate) ended: &'a [WorkerEnded],
    /// Owners that are proved dead.
    pub(crate) dead: &'a [Dead],
    /// Owners that live and are stalled, which this owner has not reported.
    pub(crate) stalled: &'a [Stalled],
    /// Whether the command of a lost run is still at work.
    pub(crate) presence: &'a dyn Fn(&Lost) -> Presence,
    /// Lost attempts of which it has been recorded that this cannot be known.
    pub(crate) doubted: &'a HashSet<(i64, u32)>,
    /// Set after a clock that was far ahead: what it had shown.
    pub(crate) rewind: Option<Timestamp>,
    /// By how many milliseconds the wall clock has stepped.
    pub(crate) stepped: i64,
    /// What is to be recorded of the wall clock.
    pub(crate) clock_events: &'a [ClockEvent],
    /// Whether the tables are of a newer version by now: no more than outcomes and the lease is written, as far as they can be.
    pub(crate) newer: bool,
    /// Whether the owner is about to leave: it takes nothing on.
    pub(crate) draining: bool,
    /// `None`: this is the first turn, and what was written before it may have waited for any time.
    pub(crate) seen: Option<Seen>,
    /// Whether leases are to be extended and the whole looked at.
    pub(crate) full: bool,
    pub(crate) slots: Slots,
    /// What is long over goes.
    pub(crate) prune: Option<Part>,
    /// Most due tasks that are resolved although no worker is free for them.
    pub(crate) ahead: usize,
}

/// One thing that a turn writes: it is written whole, or set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Outcome(i64),
    Report(i64),
    Lost(i64),
    Expiry(i64),
    Task(i64),
    Claim(i64),
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
            Item::Prune => f.write_str("the removal of what is long over"),
            Item::Sweep => f.write_str("the look at what waits"),
        }
    }
}

/// What goes on from turn to turn.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Items that could not be written. They are tried again in full turns only, and told once.
    pub(crate) aside: HashSet<Item>,
    /// Of those, the tasks whose time zone this machine does not know, and the zone: with another they are looked at at once.
    pub(crate) zoneless: HashMap<i64, String>,
    /// What the full turn at hand tries again.
    pub(crate) told: HashSet<Item>,
    pub(crate) random: fastrand::Rng,
    /// Counts what was resolved, and what was claimed, so that every eighth goes by age.
    pub(crate) resolved: u64,
    pub(crate) claimed: u64,
    pub(crate) round: Round,
    /// The task up to which rows that lack a next run were looked at.
    pub(crate) planless: i64,
    /// How far retention has come.
    pub(crate) pruned: Pass,
    /// Whether that batch met damage: a turn without one cannot tell that it is gone.
    pub(crate) damaged: bool,
}

impl Memory {
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Memory { random, ..Memory::default() }
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

/// What a turn did and saw.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) written: Written,
    /// Own runs that somebody has asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Other owners that have running runs.
    pub(crate) others: Vec<Other>,
    /// Runs of theirs whose command a user has declared gone.
    pub(crate) declared_gone: Vec<i64>,
    /// In a full turn: other owners that have not left in order, with running runs or without; each with the time at which it
    /// was last seen.
    pub(crate) not_stopped: Vec<Other>,
    /// Runs of dead owners that must wait for their command to end.
    pub(crate) orphaned: Vec<Orphaned>,
    /// Whether a dead owner had more runs than this turn could look at.
    pub(crate) more_lost: bool,
    /// Dead owners of which a run could not be recovered: it was set aside.
    pub(crate) resting: HashSet<String>,
    /// Outcomes that were set aside: they are neither written nor lost.
    pub(crate) unwritten: Vec<Finished>,
    /// Dead owners of which nothing is left to recover.
    pub(crate) recovered: Vec<String>,
    /// How many own runs had their lease extended, in a full turn.
    pub(crate) extended: Option<usize>,
    /// Whether more is due than was resolved, or more rows are to be looked at than were.
    pub(crate) more_due: bool,
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) next_claimable: Option<Timestamp>,
    pub(crate) next_expiry: Option<Timestamp>,
    /// Whether retention, if it took part, has more to remove.
    pub(crate) pruned: Option<bool>,
    /// Of the snapshot that the turn saw.
    pub(crate) data_version: i64,
}
