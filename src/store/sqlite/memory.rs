//! What a scheduler's connection keeps from turn to turn.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::model::report::Pass;
use crate::store::sqlite::blocked::Round;
use crate::store::sqlite::claim::PassedRuns;
use crate::store::sqlite::replan::Misplanned;
use crate::store::sqlite::restore::held::Holds;
use crate::store::turn_io::Item;

/// What goes on from turn to turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Items that could not be written. Only full turns try them again; each is reported once.
    pub(crate) aside: HashSet<Item>,
    /// Of those, the tasks whose time zone this machine does not know, and the zone: with another zone they are tried at once.
    pub(crate) zoneless: HashMap<i64, String>,
    /// Marked tasks of which a run could not be written: once the others are, a full turn begins again with the first.
    pub(crate) refused: HashSet<i64>,
    /// The items that the current full turn tries again.
    pub(crate) retried: HashSet<Item>,
    /// Of the wall clock, what could not be written yet.
    pub(crate) clock: Unwritten,
    pub(crate) random: fastrand::Rng,
    /// Counts the tasks that were resolved, and the runs that were claimed: every eighth is chosen by age.
    pub(crate) resolved: u64,
    pub(crate) claimed: u64,
    /// Whether the schema has changed, and another owner may not have compared its claims since.
    pub(crate) comparing: bool,
    /// Since when nothing starts meanwhile, by the monotonic clock. Other changes of the schema do not move it.
    pub(crate) comparing_since: Option<Duration>,
    /// What attempts of an earlier history hold back, as the last turn found it.
    pub(crate) holds: Holds,
    /// How far the runs are passed over that they hold back. Empty: the next turn begins with the first.
    pub(crate) passed: PassedRuns,
    pub(crate) round: Round,
    /// The last task that was checked for a missing `next_run`.
    pub(crate) planless: i64,
    /// How far retention has come.
    pub(crate) pruned: Pass,
    /// Whether the last batch of retention found damage. A turn without a batch cannot show that it is gone.
    pub(crate) damaged: bool,
    /// Whether the turn writes its items one by one, because it could not write them together.
    pub(crate) apart: bool,
}

/// What a turn has to write because the wall clock was wrong, and could not write of some rows. Full turns try again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unwritten {
    /// As the tables told last: another scheduler may have written a part since.
    pub(crate) planned: Misplanned,
    /// Running runs of this owner, and by how much their start moves.
    pub(crate) starts: BTreeMap<i64, i64>,
}

/// What a turn changes of its [`Memory`], and only its commit makes true.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    clock: Unwritten,
    counts: (u64, u64),
    comparing: (bool, Option<Duration>),
}

impl Memory {
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Memory { random, ..Memory::default() }
    }

    pub(crate) fn before(&self) -> Before {
        let (counts, comparing) = ((self.resolved, self.claimed), (self.comparing, self.comparing_since));
        Before { clock: self.clock.clone(), counts, comparing }
    }

    /// The turn is rolled back.
    pub(crate) fn undo(&mut self, to: Before) {
        self.clock = to.clock;
        (self.resolved, self.claimed) = to.counts;
        (self.comparing, self.comparing_since) = to.comparing;
    }
}
