//! The checker: told of everything that is done and of every attempt that begins and ends, it looks at the tables after each
//! step, and knows what may have changed in them.
//!
//! It shares no code with what it checks. What it believes of a task or an attempt follows from what was done, and is held
//! against the rows: the occurrences in `occurrences`, the runs and their attempts in `transitions`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use duly::{Claim, FailureKind, Now, Outcome, Retention, RunStatus};

use crate::simulation::claim_order::Order;
use crate::simulation::observer::{Look, News};
use crate::simulation::occurrences::Promise;
use crate::simulation::rows::{RunRow, Tables};

/// What is broken, in a sentence; or nothing.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Something that was done. What failed did nothing.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// Nothing that may change a task or a run.
    Nothing,
    /// A turn of an owner's loop.
    Turn(Turn),
    /// By the client or by SQL, to the task of this name.
    Added(String),
    /// Its definition; `by_sql`: nothing was resolved before.
    Edited {
        task: String,
        by_sql: bool,
    },
    Paused {
        task: String,
        by_sql: bool,
    },
    Resumed {
        task: String,
        by_sql: bool,
    },
    Triggered(String),
    Removed(String),
    /// `next_run = now`, by SQL.
    Hastened(String),
    /// Some runs of a task, or one.
    Cancelled(String),
    /// What is over was removed, by hand.
    Pruned,
    /// A handler has ended its run together with rows of its own, and perhaps with a task that it adds.
    Finished {
        owner: usize,
        run: i64,
        attempt: u32,
        added: Option<String>,
    },
}

impl Deed {
    /// The task that it is about.
    pub(crate) fn task(&self) -> Option<&str> {
        match self {
            Deed::Nothing | Deed::Turn(_) | Deed::Pruned => None,
            Deed::Finished { added, .. } => added.as_deref(),
            Deed::Edited { task, .. } | Deed::Paused { task, .. } | Deed::Resumed { task, .. } => Some(task),
            Deed::Added(task)
            | Deed::Triggered(task)
            | Deed::Removed(task)
            | Deed::Hastened(task)
            | Deed::Cancelled(task) => Some(task),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) owner: usize,
    pub(crate) claims: Vec<Arc<Claim>>,
    /// The database refuses this owner, as far as it knows: it may write nothing for a while.
    pub(crate) refused: bool,
    /// How long it would sleep now, and how many of its workers are idle.
    pub(crate) sleeps: Duration,
    pub(crate) idle: usize,
    /// How many could be begun at once; what was claimed beyond them was read ahead.
    pub(crate) free: usize,
    /// The owner is about to leave: it records outcomes and extends leases, and nothing else.
    pub(crate) draining: bool,
}

impl Turn {
    /// Whether all that is due must be seen to in this turn.
    pub(crate) fn sees_to_all(&self) -> bool {
        !self.refused && !self.draining
    }
}

/// An owner, as the checker knows it.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) handlers: Vec<&'static str>,
    pub(crate) lock: PathBuf,
    /// Its process runs, or is stopped and can go on.
    pub(crate) lives: bool,
    /// Of one that died: its lock file was in its place then.
    pub(crate) left_its_lock: bool,
    pub(crate) lease: Duration,
    /// When each value of its lease was written, by the monotonic clock.
    pub(crate) leases: BTreeMap<i64, Duration>,
    /// The newest wall time that it goes by: read when it started, or shown at its turns.
    pub(crate) believed: i64,
    /// The newest that it has written down, or read when it started: what it goes by for sure.
    pub(crate) written: i64,
    /// When it last looked at the clock, and when it then saw a step of a day or more.
    pub(crate) looked: Now,
    pub(crate) leapt: Option<Duration>,
    /// When it may have seen such a step first, in a turn that was refused.
    pub(crate) glimpsed: Option<Duration>,
    /// At its last turn, refused or not; and whether since it looked for sure one step between two turns was as long.
    pub(crate) glanced: Now,
    pub(crate) in_parts: bool,
    pub(crate) may_have_leapt: bool,
    pub(crate) order: Order,
    /// When it last looked at the tables, and the earliest `next_run` of an active task that it saw.
    pub(crate) seen: Option<(i64, Option<i64>)>,
}

/// An attempt that was handed out.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) owner: usize,
    pub(crate) key: Option<String>,
    /// As the task had them when it was claimed: attempts, backoff, cap.
    pub(crate) policy: (u32, i64, i64),
    /// Whether its task had a streak of deaths to keep then: one that is due once has none.
    pub(crate) recurring: bool,
    /// Its time limit.
    pub(crate) limit: Option<Duration>,
    /// When a worker began it, by the monotonic clock.
    pub(crate) began: Option<Duration>,
    /// Its handler has returned this.
    pub(crate) outcome: Option<Outcome>,
    /// How long that took.
    pub(crate) took: Option<Duration>,
    /// What the wall clock showed when it returned.
    pub(crate) returned: Option<i64>,
    /// Its owner lived, and was taken for dead as the contract allows: no lock file, and a lease that stood still.
    pub(crate) robbed: bool,
}

impl Attempt {
    /// How long it took, as the tables say it.
    pub(crate) fn millis(&self) -> Option<i64> {
        self.took.map(|took| i64::try_from(took.as_millis()).expect("a duration"))
    }

    /// Whether it took longer than it may.
    pub(crate) fn is_late(&self) -> bool {
        self.limit.zip(self.took).is_some_and(|(limit, took)| took >= limit)
    }
}

pub(crate) struct History {
    pub(crate) owners: Vec<Owner>,
    pub(crate) keep: Retention,
    pub(crate) attempts: BTreeMap<(i64, u32), Attempt>,
    /// Those of them whose end is not yet known to be written.
    pub(crate) open: BTreeSet<(i64, u32)>,
    /// Attempts of a run that were given back or cut short, and do not count.
    pub(crate) forgiven: BTreeMap<i64, u32>,
    /// The largest `max_attempts` that the task of a run has had meanwhile.
    pub(crate) most_attempts: BTreeMap<i64, u32>,
    pub(crate) promises: BTreeMap<i64, Promise>,
    /// Attempts whose command cannot be seen, and that no user has declared gone.
    pub(crate) hidden: BTreeSet<(i64, u32)>,
    /// Runs that could not be written at some time, and whether they still cannot.
    pub(crate) stuck: BTreeMap<i64, bool>,
    /// Tasks whose payload was not UTF-8 at some time: the claim of a run of theirs may have been set aside.
    pub(crate) unreadable: BTreeSet<i64>,
    /// By task and key: the run that a request has opened.
    pub(crate) requested: BTreeMap<(i64, &'static str), i64>,
    pub(crate) tables: Tables,
    pub(crate) look: Look,
}

/// One step, as the rules see it.
pub(crate) struct Step<'a> {
    pub(crate) deed: &'a Deed,
    pub(crate) now: i64,
    pub(crate) keep: Retention,
    pub(crate) before: &'a Tables,
    pub(crate) after: &'a Tables,
    pub(crate) news: &'a News,
    /// Runs whose rows are new, changed or gone.
    pub(crate) changed: Vec<(Option<&'a RunRow>, Option<&'a RunRow>)>,
    /// Runs that died in this step.
    pub(crate) died: Vec<&'a RunRow>,
}

impl Step<'_> {
    pub(crate) fn turn(&self) -> Option<&Turn> {
        match self.deed {
            Deed::Turn(turn) => Some(turn),
            _ => None,
        }
    }

    /// The owner that writes down how an attempt ended.
    pub(crate) fn ender(&self, run: i64, attempt: u32) -> Option<usize> {
        match self.deed {
            Deed::Turn(turn) => Some(turn.owner),
            Deed::Finished { owner, run: id, attempt: number, .. } if (*id, *number) == (run, attempt) => Some(*owner),
            _ => None,
        }
    }

    /// Whether the clock was found to have been wrong.
    pub(crate) fn rewound(&self) -> bool {
        self.news.events.iter().any(|(kind, _, _)| kind == "clock_wrong")
    }
}

impl History {
    pub(crate) fn new(look: Look, keep: Retention) -> Self {
        History {
            owners: Vec::new(),
            keep,
            attempts: BTreeMap::new(),
            open: BTreeSet::new(),
            forgiven: BTreeMap::new(),
            most_attempts: BTreeMap::new(),
            promises: BTreeMap::new(),
            hidden: BTreeSet::new(),
            stuck: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            requested: BTreeMap::new(),
            tables: Tables::default(),
            look,
        }
    }

    pub(crate) fn dead_run_of(&self, run: i64) -> i64 {
        self.look.dead_run_of(run)
    }

    /// Rows of the application's own: by which attempts of a run they were written, and how many there are.
    pub(crate) fn ledger_of(&self, run: i64) -> Vec<u32> {
        self.look.all("SELECT attempt FROM ledger WHERE run = ?1", [run], |row| row.get(0).expect("a column"))
    }

    pub(crate) fn ledger(&self) -> usize {
        usize::try_from(self.look.ask::<i64>("SELECT count(*) FROM ledger")).expect("a count")
    }

    /// A handler has returned. An error that comes after the time limit is a timeout.
    pub(crate) fn delivered(&mut self, claim: &Claim, mut outcome: Outcome, at: Now) {
        let now = at.monotonic;
        let attempt = self.attempts.get_mut(&(claim.run_id, claim.attempt)).expect("an attempt");
        if outcome != Outcome::Released {
            attempt.took = Some(now - *attempt.began.get_or_insert(now));
        }
        if let Outcome::Failed { how: how @ FailureKind::Failed, .. } = &mut outcome
            && attempt.is_late()
        {
            *how = FailureKind::TimedOut;
        }
        (attempt.outcome, attempt.returned) = (Some(outcome), Some(at.wall.as_millis()));
    }

    /// A worker begins an attempt.
    pub(crate) fn began(&mut self, claim: &Claim, now: Duration) {
        self.attempts.get_mut(&(claim.run_id, claim.attempt)).expect("an attempt").began = Some(now);
    }

    /// Whether a run is at this attempt, as its row says.
    pub(crate) fn is_running(&self, (run, attempt): &(i64, u32)) -> bool {
        let row = self.tables.runs.get(run);
        row.is_some_and(|row| row.status == RunStatus::Running && row.attempt == *attempt)
    }

    /// The process of an owner is gone, and all that it was at.
    pub(crate) fn died(&mut self, owner: usize) {
        let owner = &mut self.owners[owner];
        (owner.lives, owner.left_its_lock) = (false, owner.lock.exists());
    }

    /// Looks at what a deed has changed. Answers with the changes, for the log, and whether they are right.
    pub(crate) fn observe(&mut self, deed: &Deed, now: Now) -> (String, Check) {
        let (changes, news) = self.look.again().unwrap_or_default();
        let changed =
            changes.runs.iter().map(|(before, after)| (before.as_deref(), after.as_deref())).collect::<Vec<_>>();
        let newly_dead = |(before, after): &(Option<&RunRow>, Option<&RunRow>)| {
            after.is_some_and(|run| run.status == RunStatus::Dead) && before.is_none_or(|run| !run.status.is_final())
        };
        let died = changed.iter().filter(|pair| newly_dead(pair)).filter_map(|pair| pair.1).collect();
        let wall = now.wall.as_millis();
        let (mut before, after) = (std::mem::take(&mut self.tables), std::mem::take(&mut self.look.tables));
        let step =
            Step { deed, now: wall, keep: self.keep, before: &before, after: &after, news: &news, changed, died };
        if let Some(turn) = step.turn() {
            self.owners[turn.owner].look_at_the_clock(now, turn.refused);
        }
        let checked = self.check(&step, now.monotonic);
        let told = told(&step);
        before.follow(&changes, &after);
        (self.tables, self.look.tables) = (before, after);
        (told, checked)
    }

    fn check(&mut self, step: &Step<'_>, monotonic: Duration) -> Check {
        let believes = |turn: &Turn| self.owners[turn.owner].believed;
        if step.rewound() && step.turn().map_or(0, believes) - step.now <= 3 * 3_600_000 {
            return Err("the clock was taken for wrong that had gone back by three hours at most".to_owned());
        }
        if let Some(turn) = step.turn().filter(|turn| !turn.refused) {
            let written = &mut self.owners[turn.owner].written;
            let is_wrong = *written - step.now > 3 * 3_600_000;
            // Unless another has seen it before.
            if is_wrong && !step.rewound() && step.before.seen_at.is_some_and(|seen| seen > step.now) {
                return Err(format!("the clock is far behind {written}, and owner {} does not see it", turn.owner));
            }
            let says_so = step.after.seen_at == Some(step.now) && step.before.seen_at != step.after.seen_at;
            *written = if is_wrong || says_so { step.now } else { *written };
        }
        if let Some(turn) = step.turn() {
            let believed = &mut self.owners[turn.owner].believed;
            *believed = if step.rewound() { step.now } else { step.now.max(*believed) };
        }
        self.check_arrows(step, monotonic)?;
        self.check_promises(step)?;
        self.check_wakes(step)?;
        self.check_nothing_waits(step)?;
        if let Some(turn) = step.turn().filter(|turn| !turn.refused) {
            let planned = step.after.tasks.values().filter(|task| task.is_active() && task.planned);
            self.owners[turn.owner].seen = Some((step.now, planned.filter_map(|task| task.next_run).min()));
        }
        Ok(())
    }
}

/// What changed, as one line of the log.
fn told(step: &Step<'_>) -> String {
    let mut line = String::new();
    for (before, after) in &step.changed {
        let was = before.map_or("-", |run| run.status.as_str());
        let Some(run) = after.or(*before) else { continue };
        let is = after.map_or("gone", |run| run.status.as_str());
        let _ = write!(line, "; run {} of task {}", run.id, run.task);
        let _ = match was == is {
            true => write!(line, " {is}"),
            false => write!(line, " {was} -> {is}"),
        };
        let _ = write!(line, " #{}-{}", run.attempt, run.forgiven);
        if run.occurrences > 1 {
            let _ = write!(line, " x{}", run.occurrences);
        }
        if before.is_none() {
            let _ = write!(line, " {} for {}", run.origin, duly::Timestamp::from_millis(run.scheduled_for));
        }
    }
    for (kind, run, detail) in &step.news.events {
        if kind != "owner_lost" {
            let _ = write!(line, "; event {kind} {run:?} {}", detail.as_deref().unwrap_or_default());
        }
    }
    line
}
