//! The checker. It records every action and the beginning and end of every attempt; after each step it reads the tables and
//! checks every change.
//!
//! It shares no code with what it checks. Its model of a task or an attempt follows from the recorded actions, and is
//! compared with the rows: the occurrences in `occurrences`, the runs and their attempts in `transitions`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use duly::{Claim, FailureKind, Now, Outcome, Retention, RunStatus};

use crate::simulation::claim_order::Order;
use crate::simulation::limits::Limits;
use crate::simulation::observer::{NewRows, Observer};
use crate::simulation::occurrences::TaskModel;
use crate::simulation::rows::{RunRow, Tables};

/// `Err`: the violation, in a sentence.
pub(crate) type Check<T = ()> = Result<T, String>;

/// How long a scheduler sleeps at most that leaves something to do, and has no idle worker.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// An action. One that failed is `Nothing`.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Nothing that may change a task or a run.
    Nothing,
    /// A turn of an owner's loop.
    Turn(Turn),
    /// By the client or by SQL, to the task of this name.
    Added(String),
    /// The task's definition. With `by_sql` no due occurrence was resolved before.
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
    NextRunSet(String),
    /// One run of a task, or several.
    Cancelled(String),
    /// A user has pruned the history.
    Pruned,
    /// A handler has finished its run together with rows of its own, and perhaps has added a task.
    Finished {
        owner: usize,
        run: i64,
        attempt: u32,
        added: Option<String>,
    },
}

impl Action {
    /// Returns the name of the task that the action changes.
    pub(crate) fn task(&self) -> Option<&str> {
        match self {
            Action::Nothing | Action::Turn(_) | Action::Pruned => None,
            Action::Finished { added, .. } => added.as_deref(),
            Action::Edited { task, .. } | Action::Paused { task, .. } | Action::Resumed { task, .. } => Some(task),
            Action::Added(task)
            | Action::Triggered(task)
            | Action::Removed(task)
            | Action::NextRunSet(task)
            | Action::Cancelled(task) => Some(task),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) owner: usize,
    pub(crate) claims: Vec<Arc<Claim>>,
    /// For which it claims.
    pub(crate) handlers: Arc<BTreeSet<String>>,
    /// The engine is degraded: writing has failed, and it may write nothing for a while.
    pub(crate) refused: bool,
    /// How long it sleeps after this turn, and how many of its workers are idle.
    pub(crate) sleeps: Duration,
    pub(crate) idle: usize,
    /// How many claims could begin at once; those beyond are read ahead.
    pub(crate) free: usize,
    /// It drains: it records outcomes and extends leases, and nothing else.
    pub(crate) draining: bool,
    /// Something falls due in this very millisecond, and the owner takes the time for one that is earlier.
    pub(crate) behind: bool,
    /// It writes a few items, and the next one follows at once if it leaves any.
    pub(crate) is_small: bool,
    /// How many outcomes it writes at most, if not as many as the store allows.
    pub(crate) most_outcomes: Option<usize>,
}

impl Turn {
    /// Whether this turn must process all that is due.
    pub(crate) fn sees_to_all(&self) -> bool {
        let leaves_some = self.is_small && self.sleeps <= LOOK_AGAIN;
        !(self.refused || self.draining || self.behind || leaves_some)
    }
}

/// An owner (a scheduler), as the checker knows it.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) handlers: Vec<&'static str>,
    /// The machine it runs on: another one does not see its lock file.
    pub(crate) host: usize,
    pub(crate) lock: PathBuf,
    /// Its process exists, running or suspended.
    pub(crate) is_alive: bool,
    /// Whether its lock file existed when it died.
    pub(crate) left_lock_file: bool,
    pub(crate) lease: Duration,
    /// When each value of its lease was written, by the monotonic clock.
    pub(crate) leases: BTreeMap<i64, Duration>,
    /// The latest wall time that it knows: read when it started, or seen at its turns.
    pub(crate) clock_known: i64,
    /// The latest wall time that it certainly knows: written by it, or read when it started.
    pub(crate) written: i64,
    /// Its last turn that was not refused, and when it then saw a clock step of a day or more.
    pub(crate) full_turn_at: Now,
    pub(crate) step_seen_at: Option<Duration>,
    /// When it may first have seen such a step, in a refused turn.
    pub(crate) possible_step_at: Option<Duration>,
    /// Its last turn of any kind, and whether since `full_turn_at` the clock stepped by a day or more between two turns.
    pub(crate) turned_at: Now,
    pub(crate) large_step_between_turns: bool,
    pub(crate) may_have_seen_step: bool,
    pub(crate) order: Order,
    /// When it last read the tables, and the earliest `next_run` of an active task then.
    pub(crate) seen: Option<(i64, Option<i64>)>,
}

/// A claimed attempt.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) owner: usize,
    pub(crate) key: Option<String>,
    /// As the task had them when it was claimed: attempts, backoff, cap.
    pub(crate) policy: (u32, i64, i64),
    /// Whether the task counted consecutive deaths then: a one-time task does not.
    pub(crate) recurring: bool,
    pub(crate) limit: Option<Duration>,
    /// The latest wall time at which it may begin.
    pub(crate) begins_by: Option<i64>,
    /// When a worker began it, by the monotonic clock.
    pub(crate) began: Option<Duration>,
    /// What its handler has returned.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) took: Option<Duration>,
    /// The wall time at which it returned.
    pub(crate) returned: Option<i64>,
    /// Whether its loop has taken its end.
    pub(crate) arrived: bool,
    /// Its owner was alive and was declared dead, as the contract allows: no lock file, and an expired lease.
    pub(crate) taken_over: bool,
}

impl Attempt {
    /// Returns how long it took, as the tables record it.
    pub(crate) fn millis(&self) -> Option<i64> {
        self.took.map(|took| i64::try_from(took.as_millis()).expect("a duration"))
    }

    /// Whether it exceeded its time limit.
    pub(crate) fn is_late(&self) -> bool {
        self.limit.zip(self.took).is_some_and(|(limit, took)| took >= limit)
    }
}

pub(crate) struct History {
    pub(crate) owners: Vec<Owner>,
    pub(crate) keep: Retention,
    /// Names of the tasks with a text that is not UTF-8.
    pub(crate) corrupt: BTreeSet<String>,
    pub(crate) attempts: BTreeMap<(i64, u32), Attempt>,
    /// Attempts whose end is not yet known to be recorded.
    pub(crate) open: BTreeSet<(i64, u32)>,
    /// Attempts of a run that were released or interrupted, and do not count.
    pub(crate) forgiven: BTreeMap<i64, u32>,
    /// How many interruptions of a run there were since an attempt ended otherwise.
    pub(crate) interrupted: BTreeMap<i64, u32>,
    /// The largest `max_attempts` that a task has had.
    pub(crate) most_attempts: BTreeMap<i64, u32>,
    pub(crate) models: BTreeMap<i64, TaskModel>,
    /// Attempts whose command cannot be observed, and that no user has declared gone.
    pub(crate) hidden: BTreeSet<(i64, u32)>,
    /// Runs that could not be written at some time, and whether they still cannot.
    pub(crate) unwritable: BTreeMap<i64, bool>,
    /// Tasks whose payload was not UTF-8 at some time: claims of their runs may have been set aside.
    pub(crate) unreadable: BTreeSet<i64>,
    /// By task and idempotency key: the run that a request has opened.
    pub(crate) requested: BTreeMap<(i64, &'static str), i64>,
    pub(crate) limits: Limits,
    /// When the clock was found wrong, until a turn has left nothing of what follows from that.
    pub(crate) rewinding: Option<i64>,
    pub(crate) tables: Tables,
    pub(crate) observer: Observer,
}

/// One step, with the rows before and after it.
pub(crate) struct Step<'a> {
    pub(crate) action: &'a Action,
    pub(crate) now: i64,
    pub(crate) keep: Retention,
    pub(crate) before: &'a Tables,
    pub(crate) after: &'a Tables,
    pub(crate) fresh: &'a NewRows,
    /// Runs whose rows are new, changed or deleted.
    pub(crate) changed: Vec<(Option<&'a RunRow>, Option<&'a RunRow>)>,
    pub(crate) died: Vec<&'a RunRow>,
}

impl Step<'_> {
    pub(crate) fn turn(&self) -> Option<&Turn> {
        match self.action {
            Action::Turn(turn) => Some(turn),
            _ => None,
        }
    }

    /// Returns the owner that records the end of an attempt in this step.
    pub(crate) fn settling_owner(&self, run: i64, attempt: u32) -> Option<usize> {
        match self.action {
            Action::Turn(turn) => Some(turn.owner),
            Action::Finished { owner, run: id, attempt: number, .. } if (*id, *number) == (run, attempt) => {
                Some(*owner)
            }
            _ => None,
        }
    }

    /// Whether the wall clock was found to have been wrong.
    pub(crate) fn rewound(&self) -> bool {
        self.fresh.events.iter().any(|(kind, _, _)| kind == "clock_wrong")
    }
}

impl History {
    pub(crate) fn new(observer: Observer, keep: Retention) -> Self {
        History {
            owners: Vec::new(),
            keep,
            corrupt: BTreeSet::new(),
            attempts: BTreeMap::new(),
            open: BTreeSet::new(),
            forgiven: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            most_attempts: BTreeMap::new(),
            models: BTreeMap::new(),
            hidden: BTreeSet::new(),
            unwritable: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            requested: BTreeMap::new(),
            limits: Limits::default(),
            rewinding: None,
            tables: Tables::default(),
            observer,
        }
    }

    /// Returns the attempts of a run that have rows in the application's table.
    pub(crate) fn ledger_of(&self, run: i64) -> Vec<u32> {
        self.observer.rows("SELECT attempt FROM ledger WHERE run = ?1", [run], |row| row.get(0).expect("a column"))
    }

    pub(crate) fn ledger_rows(&self) -> usize {
        usize::try_from(self.observer.value::<i64>("SELECT count(*) FROM ledger")).expect("a count")
    }

    /// Records that a handler has returned. An error after the time limit is a timeout.
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

    /// The loop takes the end of an attempt: its next turn records that.
    pub(crate) fn arrived(&mut self, claim: &Claim) {
        self.attempts.get_mut(&(claim.run_id, claim.attempt)).expect("an attempt").arrived = true;
    }

    /// The loop gives an attempt back, unless its worker has done so.
    pub(crate) fn given_back(&mut self, claim: &Claim, at: Now) {
        if self.attempts[&(claim.run_id, claim.attempt)].outcome.is_none() {
            self.delivered(claim, Outcome::Released, at);
            self.arrived(claim);
        }
    }

    pub(crate) fn began(&mut self, claim: &Claim, now: Duration) {
        self.attempts.get_mut(&(claim.run_id, claim.attempt)).expect("an attempt").began = Some(now);
    }

    /// Whether a run's row is at this attempt.
    pub(crate) fn is_running(&self, (run, attempt): &(i64, u32)) -> bool {
        let row = self.tables.runs.get(run);
        row.is_some_and(|row| row.status == RunStatus::Running && row.attempt == *attempt)
    }

    /// Records that an owner's process has ended, with all its attempts.
    pub(crate) fn died(&mut self, owner: usize) {
        let owner = &mut self.owners[owner];
        (owner.is_alive, owner.left_lock_file) = (false, owner.lock.exists());
    }

    /// Reads what an action has changed. Returns the changes for the log, and whether they are allowed.
    pub(crate) fn observe(&mut self, action: &Action, now: Now) -> (String, Check) {
        let (changes, fresh) = self.observer.read_changes().unwrap_or_default();
        let changed =
            changes.runs.iter().map(|(before, after)| (before.as_deref(), after.as_deref())).collect::<Vec<_>>();
        let newly_dead = |(before, after): &(Option<&RunRow>, Option<&RunRow>)| {
            after.is_some_and(|run| run.status == RunStatus::Dead) && before.is_none_or(|run| !run.status.is_final())
        };
        let died = changed.iter().filter(|pair| newly_dead(pair)).filter_map(|pair| pair.1).collect();
        let wall = now.wall.as_millis();
        let (mut before, after) = (std::mem::take(&mut self.tables), std::mem::take(&mut self.observer.tables));
        let step =
            Step { action, now: wall, keep: self.keep, before: &before, after: &after, fresh: &fresh, changed, died };
        if let Some(turn) = step.turn() {
            self.owners[turn.owner].observe_clock(now, turn.refused);
        }
        let checked = match self.observer.wrote_without_lock(&changes, &before) {
            true => Err("rows were changed while another session held the lock of the schema".to_owned()),
            false => self.check(&step, now.monotonic),
        };
        let line = describe(&step);
        before.apply(&changes, &after);
        (self.tables, self.observer.tables) = (before, after);
        (line, checked)
    }

    fn check(&mut self, step: &Step<'_>, monotonic: Duration) -> Check {
        let believes = |turn: &Turn| self.owners[turn.owner].clock_known;
        if step.rewound() && step.turn().map_or(0, believes) - step.now <= 3 * 3_600_000 {
            return Err("the clock was declared wrong after a step back of at most three hours".to_owned());
        }
        if let Some(turn) = step.turn().filter(|turn| !turn.refused) {
            let written = &mut self.owners[turn.owner].written;
            let is_wrong = *written - step.now > 3 * 3_600_000;
            // Unless another owner has seen it before.
            if is_wrong && !step.rewound() && step.before.seen_at.is_some_and(|seen| seen > step.now) {
                return Err(format!("owner {} has not noticed that the clock is far behind {written}", turn.owner));
            }
            let says_so = step.after.seen_at == Some(step.now) && step.before.seen_at != step.after.seen_at;
            *written = if is_wrong || says_so { step.now } else { *written };
        }
        if let Some(turn) = step.turn() {
            let clock_known = &mut self.owners[turn.owner].clock_known;
            *clock_known = if step.rewound() { step.now } else { step.now.max(*clock_known) };
        }
        if step.rewound() {
            self.limits.rewind(step.now);
            self.rewinding = Some(step.now);
        }
        self.limits.begin_step();
        self.check_transitions(step, monotonic)?;
        self.check_occurrences(step)?;
        self.check_wakes(step)?;
        self.check_nothing_waits(step)?;
        self.rewinding = self.rewinding.filter(|_| !step.turn().is_some_and(Turn::sees_to_all));
        if let Some(turn) = step.turn().filter(|turn| !turn.refused) {
            let planned = step.after.tasks.values().filter(|task| task.is_active() && task.planned);
            self.owners[turn.owner].seen = Some((step.now, planned.filter_map(|task| task.next_run).min()));
        }
        Ok(())
    }
}

/// Describes the changes in one line of the log.
fn describe(step: &Step<'_>) -> String {
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
    for (kind, run, detail) in &step.fresh.events {
        if kind != "owner_lost" {
            let _ = write!(line, "; event {kind} {run:?} {}", detail.as_deref().unwrap_or_default());
        }
    }
    line
}
