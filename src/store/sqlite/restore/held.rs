//! What attempts of an earlier history hold back, while they may still run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use rusqlite::{OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host::attempt_slots::{BegunAttempts, ClaimedAttempt};
use crate::host::halting::{self, Laggard};
use crate::host::orphan::{self, Presence};
use crate::host::owner_lock::{self, Standing};
use crate::store::fault::Fault;
use crate::store::sqlite::restore::seen::{self, is_ahead, set};
use crate::store::sqlite::row;
use crate::store::turn_io::{Lost, Work};

/// The row `held` of `scheduler_meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// The owners of an earlier history that may still have attempts, by the id that they had then.
    Known(BTreeMap<String, FormerOwner>),
    /// The row is damaged: anything may run, until a user declares it gone. The row is left as it is.
    Damaged,
}

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
    /// What an owner may run is not known: nothing starts.
    pub(crate) everything: bool,
}

impl Holds {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && !self.everything
    }
}

const HELD: &str = "SELECT value FROM scheduler_meta WHERE key = 'held'";

const HAS_STOPPED: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_instances WHERE id = :owner AND stopped_at IS NOT NULL)";

impl Default for HeldBack {
    fn default() -> Self {
        HeldBack::Known(BTreeMap::new())
    }
}

impl HeldBack {
    pub(crate) fn parse(row: &str) -> Self {
        serde_json::from_str(row).map_or(HeldBack::Damaged, HeldBack::Known)
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
        let mut owners = former.collect();
        forget_ended(&mut owners);
        HeldBack::Known(owners)
    }

    /// Halts a living owner whose claims may be of an earlier history. Adds what it has begun of such.
    pub(crate) fn doubt(
        &mut self,
        tx: &Transaction<'_>,
        database: &Path,
        owner: String,
        newest_run: i64,
    ) -> rusqlite::Result<()> {
        let mut attempts = None;
        if let Some(begun) = halting::halt(database, &owner) {
            let ahead = attempts.insert(Vec::new());
            for claimed in begun.into_values() {
                if is_ahead(tx, claimed.id(), newest_run)? {
                    ahead.push(claimed);
                }
            }
        }
        if let HeldBack::Known(owners) = self {
            owners.insert(owner, FormerOwner { by: None, attempts });
        }
        self.store(tx)
    }

    /// Returns whether an owner is among them, by the id that it had.
    pub(crate) fn names(&self, owner: &str) -> bool {
        self.owners().any(|named| named == owner)
    }

    pub(super) fn store(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        let HeldBack::Known(owners) = self else { return Ok(()) };
        let row = (!owners.is_empty()).then(|| serde_json::to_string(owners).unwrap_or_default());
        set(tx, "held", row.as_deref())
    }

    /// Stores which attempts of its earlier ids the owner of this turn still has, and removes those of dead owners that are gone. Returns
    /// what starts nothing now.
    pub(crate) fn update(mut self, tx: &Transaction<'_>, work: &Work<'_>) -> rusqlite::Result<Holds> {
        let before = self.clone();
        let HeldBack::Known(owners) = &mut self else { return Ok(Holds { everything: true, ..Holds::default() }) };
        // It has compared its claims with the rows.
        owners.remove(work.owner);
        for owner in work.former {
            let left = work.strays.iter().filter(|stray| stray.owner == *owner).map(|stray| stray.claimed).collect();
            owners.insert(owner.clone(), FormerOwner { by: Some(work.owner.to_owned()), attempts: Some(left) });
        }
        for (owner, former) in owners.iter_mut().filter(|(owner, _)| !work.former.contains(owner)) {
            former.forget_gone(tx, work.database, owner)?;
        }
        forget_ended(owners);
        let mut holds = Holds::default();
        for former in owners.values() {
            holds.everything |= former.attempts.is_none();
            let attempts = || former.attempts.iter().flatten();
            holds.tasks.extend(attempts().map(|claimed| claimed.task));
            holds.keys.extend(attempts().filter_map(|claimed| claimed.key));
        }
        if self != before {
            self.store(tx)?;
        }
        Ok(holds)
    }

    fn known(&self) -> impl Iterator<Item = (&String, &FormerOwner)> {
        let known = if let HeldBack::Known(owners) = self { Some(owners) } else { None };
        known.into_iter().flatten()
    }

    /// Returns each owner, by the id under which it goes on, if it does; and what it may still run.
    pub(crate) fn former(&self) -> impl Iterator<Item = (&str, Goes, Option<&[ClaimedAttempt]>)> {
        self.known().map(|(owner, former)| {
            let (owner, goes) = former.by.as_ref().map_or((owner, Goes::Unseen), |by| (by, Goes::On));
            (owner.as_str(), goes, former.attempts.as_deref())
        })
    }

    /// Returns all owners, by the id that they had.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &String> {
        self.known().map(|(owner, _)| owner)
    }

    /// Removes the attempts that a user has declared gone; and if there are none and `or_unknown` says so, the owners that are not alive
    /// and of which it is not known what they may run, or what a damaged row has said. Returns what each was. Fails if an owner of an
    /// attempt is alive; for a damaged row, if an owner is alive that may have begun an attempt of before.
    pub(crate) fn declare_gone(
        mut self,
        tx: &Transaction<'_>,
        database: &Path,
        is_meant: impl Fn(&ClaimedAttempt) -> bool,
        or_unknown: bool,
    ) -> Result<Vec<String>, Fault> {
        let refused = |reason: String| {
            Fault::from(Error::Refused { request: "declare what was begun before the restore gone".to_owned(), reason })
        };
        let HeldBack::Known(owners) = &mut self else {
            if !or_unknown {
                return Ok(Vec::new());
            }
            let behind = halting::behind(database, "", seen::cookie(tx)?);
            let behind = behind.map_err(|error| Error::store("look for schedulers", error))?;
            if let Some(Laggard { owner, .. }) = behind.first() {
                return Err(refused(format!(
                    "scheduler {owner} is alive, or may be, and has not compared the file with what it runs: let it go on, or end it"
                )));
            }
            set(tx, "held", None)?;
            return Ok(vec!["what any scheduler had begun".to_owned()]);
        };
        let mut gone = Vec::new();
        for (owner, former) in owners.iter_mut() {
            let Some(attempts) = former.attempts.as_mut().filter(|attempts| attempts.iter().any(&is_meant)) else {
                continue;
            };
            let mut ids = std::iter::once(owner).chain(&former.by);
            if ids.any(|owner| owner_lock::is_alive(database, owner)) {
                return Err(refused("its scheduler is alive, and has asked it to stop: end that process".to_owned()));
            }
            let meant = attempts.extract_if(.., |claimed| is_meant(claimed));
            gone.extend(meant.map(|ClaimedAttempt { run, attempt, .. }| format!("attempt {attempt} of run {run}")));
        }
        if gone.is_empty() && or_unknown {
            let alive = |owner: &String| owner_lock::is_alive(database, owner);
            owners.retain(|owner, former| {
                let stays = former.attempts.is_some() || alive(owner) || former.by.as_ref().is_some_and(alive);
                if !stays {
                    gone.push(format!("what scheduler {owner} had begun"));
                }
                stays
            });
        }
        forget_ended(owners);
        if !gone.is_empty() {
            self.store(tx)?;
        }
        Ok(gone)
    }
}

/// Removes the owners of which nothing is left.
fn forget_ended(owners: &mut BTreeMap<String, FormerOwner>) {
    owners.retain(|_, former| former.attempts.as_ref().is_none_or(|attempts| !attempts.is_empty()));
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
        self.attempts =
            known.map(|known| known.into_iter().filter(|claimed| may_run(*claimed, database, Some(owner))).collect());
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

/// Returns whether the command of an attempt of a dead owner is not known to be gone. `owner`: its id, if it is known.
pub(crate) fn may_run(claimed: ClaimedAttempt, database: &Path, owner: Option<&str>) -> bool {
    let ClaimedAttempt { run, attempt, task: task_id, .. } = claimed;
    let (task, handler, process) = (String::new(), String::new(), None);
    let lost = Lost { run, attempt, task_id, task, handler, process };
    matches!(lost.orphan(database, owner).presence(), Presence::Alive | Presence::Unknown(_))
}

/// Returns whether a command that is in no slot may run.
fn any_unaccounted(database: &Path) -> bool {
    let begun: HashSet<_> = owner_lock::begun(database).into_iter().flat_map(|(_, begun)| begun.into_keys()).collect();
    let unaccounted = orphan::inputs(database).into_iter().filter(|attempt| !begun.contains(attempt));
    let claimed = |(run, attempt)| ClaimedAttempt { run, attempt, task: 0, key: None };
    unaccounted.map(claimed).any(|claimed| may_run(claimed, database, None))
}

fn has_stopped(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached(HAS_STOPPED)?.query_row(named_params! { ":owner": owner }, |row| row.get(0))
}
