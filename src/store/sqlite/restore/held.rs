//! What attempts of an earlier history hold back, while they may still run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use rusqlite::{OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host::attempt_slots::{BegunAttempts, ClaimedAttempt};
use crate::host::orphan::{self, Presence};
use crate::host::owner_lock::{self, Standing};
use crate::store::fault::Fault;
use crate::store::sqlite::restore::seen::{is_ahead, set};
use crate::store::sqlite::row;
use crate::store::turn_io::{Lost, Work};

/// The row `held` of `scheduler_meta`: the owners of an earlier history that may still have attempts, by the id that they had then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct HeldBack(BTreeMap<String, FormerOwner>);

/// What is known of an owner of an earlier history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormerOwner {
    /// The id under which it goes on; `None` until it has found that the file was restored.
    by: Option<String>,
    /// What it may still run; `None`: anything, because its lock file cannot be read.
    attempts: Option<Vec<ClaimedAttempt>>,
}

/// Whether an owner is known to have found that the file was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goes {
    On,
    Unseen,
}

/// What starts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) tasks: BTreeSet<i64>,
    /// Hashes of concurrency keys.
    pub(crate) keys: BTreeSet<u64>,
    /// What a living owner may run is not known: nothing starts.
    pub(crate) everything: bool,
}

impl Holds {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && !self.everything
    }
}

/// The owner in a row that is damaged. It has no lock file and never stops: only a user can declare it gone.
pub(crate) const UNKNOWN: &str = "unknown";

const HELD: &str = "SELECT value FROM scheduler_meta WHERE key = 'held'";

const HAS_STOPPED: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_instances WHERE id = :owner AND stopped_at IS NOT NULL)";

impl HeldBack {
    /// Parses the row. If it is damaged, it is not known what it said: an owner that is not known may run anything.
    pub(crate) fn parse(row: &str) -> Self {
        let unknown = || HeldBack(BTreeMap::from([(UNKNOWN.to_owned(), FormerOwner::default())]));
        serde_json::from_str(row).unwrap_or_else(|_| unknown())
    }

    pub(crate) fn read(tx: &Transaction<'_>) -> rusqlite::Result<Self> {
        let row = tx.prepare_cached(HELD)?.query_row([], |row| row::shown(row, 0)).optional()?;
        Ok(row.as_deref().map(Self::parse).unwrap_or_default())
    }

    /// Returns what the owners of a history that ends had begun.
    pub(super) fn of(begun: &[(String, Option<BegunAttempts>)]) -> Self {
        let former = begun.iter().map(|(owner, begun)| {
            let attempts = begun.as_ref().map(|begun| begun.values().copied().collect());
            (owner.clone(), FormerOwner { by: None, attempts })
        });
        let mut held = HeldBack(former.collect());
        held.forget_ended();
        held
    }

    /// Halts a living owner whose claims may be of an earlier history. Adds what it has begun of such.
    pub(crate) fn doubt(
        &mut self,
        tx: &Transaction<'_>,
        database: &Path,
        owner: String,
        newest_run: i64,
    ) -> rusqlite::Result<()> {
        let ahead = |claimed: ClaimedAttempt| match is_ahead(tx, claimed.id(), newest_run) {
            Ok(is_ahead) => is_ahead.then_some(Ok(claimed)),
            Err(error) => Some(Err(error)),
        };
        let begun = owner_lock::halt(database, &owner);
        let attempts = begun.map(|begun| begun.into_values().filter_map(ahead).collect()).transpose()?;
        self.0.insert(owner, FormerOwner { by: None, attempts });
        self.store(tx)
    }

    fn forget_ended(&mut self) {
        self.0.retain(|_, former| former.attempts.as_ref().is_none_or(|attempts| !attempts.is_empty()));
    }

    pub(super) fn store(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        let row = (!self.0.is_empty()).then(|| serde_json::to_string(&self).unwrap_or_default());
        set(tx, "held", row.as_deref())
    }

    /// Stores which attempts of its earlier ids the owner of this turn still has, and removes those of dead owners that are gone. Returns
    /// what starts nothing now.
    pub(crate) fn update(mut self, tx: &Transaction<'_>, work: &Work<'_>) -> rusqlite::Result<Holds> {
        let before = self.clone();
        // It has compared its claims with the rows.
        self.0.remove(work.owner);
        for owner in work.former {
            let left = work.strays.iter().filter(|stray| stray.owner == *owner).map(|stray| stray.claimed).collect();
            self.0.insert(owner.clone(), FormerOwner { by: Some(work.owner.to_owned()), attempts: Some(left) });
        }
        for (owner, former) in self.0.iter_mut().filter(|(owner, _)| !work.former.contains(owner)) {
            former.forget_gone(tx, work.database, owner)?;
        }
        self.forget_ended();
        if self != before {
            self.store(tx)?;
        }
        let mut holds = Holds::default();
        for former in self.0.values() {
            holds.everything |= former.attempts.is_none();
            let attempts = || former.attempts.iter().flatten();
            holds.tasks.extend(attempts().map(|claimed| claimed.task));
            holds.keys.extend(attempts().filter_map(|claimed| claimed.key));
        }
        Ok(holds)
    }

    /// Returns each owner, by the id under which it goes on, if it does; and what it may still run.
    pub(crate) fn former(&self) -> impl Iterator<Item = (&str, Goes, Option<&[ClaimedAttempt]>)> {
        self.0.iter().map(|(owner, former)| {
            let (owner, goes) = former.by.as_ref().map_or((owner, Goes::Unseen), |by| (by, Goes::On));
            (owner.as_str(), goes, former.attempts.as_deref())
        })
    }

    /// Returns all owners, by the id that they had.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Removes the attempts that a user has declared gone; and if there are none and `or_unknown` says so, the owners that are not alive
    /// and of which it is not known what they may run. Returns what each was. Fails if an owner of an attempt is alive.
    pub(crate) fn declare_gone(
        mut self,
        tx: &Transaction<'_>,
        database: &Path,
        is_meant: impl Fn(&ClaimedAttempt) -> bool,
        or_unknown: bool,
    ) -> Result<Vec<String>, Fault> {
        let mut gone = Vec::new();
        for (owner, former) in &mut self.0 {
            let Some(attempts) = former.attempts.as_mut().filter(|attempts| attempts.iter().any(&is_meant)) else {
                continue;
            };
            let mut ids = std::iter::once(owner).chain(&former.by);
            if ids.any(|owner| owner_lock::is_alive(database, owner)) {
                let request = "declare what was begun before the restore gone".to_owned();
                let reason = "its scheduler is alive, and has asked it to stop: end that process".to_owned();
                return Err(Error::Refused { request, reason }.into());
            }
            let meant = attempts.extract_if(.., |claimed| is_meant(claimed));
            gone.extend(meant.map(|ClaimedAttempt { run, attempt, .. }| format!("attempt {attempt} of run {run}")));
        }
        if gone.is_empty() && or_unknown {
            let alive = |owner: &String| owner_lock::is_alive(database, owner);
            self.0.retain(|owner, former| {
                let stays = former.attempts.is_some() || alive(owner) || former.by.as_ref().is_some_and(alive);
                if !stays {
                    gone.push(format!("what scheduler {owner} had begun"));
                }
                stays
            });
        }
        self.forget_ended();
        if !gone.is_empty() {
            self.store(tx)?;
        }
        Ok(gone)
    }
}

impl FormerOwner {
    /// Forgets what has ended, if the owner is dead. `owner`: the id that it had.
    fn forget_gone(&mut self, tx: &Transaction<'_>, database: &Path, owner: &str) -> rusqlite::Result<()> {
        let begun = match owner_lock::standing(database, owner) {
            Standing::Dead(dead) => dead.begun().map(|begun| begun.values().copied().collect()),
            Standing::TakenOver(_) if self.attempts.is_some() => None,
            // A missing file proves nothing. That its runs were recovered does, or the end of the id under which it goes on.
            Standing::Missing
                if self.by.as_ref().map_or_else(|| has_stopped(tx, owner), |by| is_dead(tx, database, by))? =>
            {
                None
            }
            Standing::Alive { .. } | Standing::TakenOver(_) | Standing::Missing | Standing::Unknown(_) => return Ok(()),
        };
        // Without the slots, the inputs of commands show what may run.
        let known = self.attempts.take().or(begun).or_else(|| (!any_unaccounted(database)).then(Vec::new));
        self.attempts = known.map(|known| known.into_iter().filter(|claimed| may_run(*claimed, database)).collect());
        Ok(())
    }
}

fn is_dead(tx: &Transaction<'_>, database: &Path, owner: &str) -> rusqlite::Result<bool> {
    match owner_lock::standing(database, owner) {
        Standing::Dead(_) | Standing::TakenOver(_) => Ok(true),
        Standing::Missing => has_stopped(tx, owner),
        Standing::Alive { .. } | Standing::Unknown(_) => Ok(false),
    }
}

/// Returns whether the command of an attempt of a dead owner is not known to be gone.
pub(crate) fn may_run(claimed: ClaimedAttempt, database: &Path) -> bool {
    let ClaimedAttempt { run, attempt, task: task_id, .. } = claimed;
    let (task, handler, process) = (String::new(), String::new(), None);
    let lost = Lost { run, attempt, task_id, task, handler, process };
    matches!(lost.orphan(database).presence(), Presence::Alive | Presence::Unknown(_))
}

/// Returns whether a command that is in no slot may run.
fn any_unaccounted(database: &Path) -> bool {
    let begun: HashSet<_> = owner_lock::begun(database).into_iter().flat_map(|(_, begun)| begun.into_keys()).collect();
    let unaccounted = orphan::inputs(database).into_iter().filter(|attempt| !begun.contains(attempt));
    let claimed = |(run, attempt)| ClaimedAttempt { run, attempt, task: 0, key: None };
    unaccounted.map(claimed).any(|claimed| may_run(claimed, database))
}

fn has_stopped(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached(HAS_STOPPED)?.query_row(named_params! { ":owner": owner }, |row| row.get(0))
}
