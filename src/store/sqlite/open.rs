//! Applies the resolution of a due task in the turn's transaction: opens its runs, records skipped and missed occurrences,
//! and advances the task.
//!
//! A run that may start is opened and claimed in one statement if a worker is free. Otherwise it is queued.

mod reasons;

use std::collections::{BTreeSet, VecDeque};
use std::iter;
use std::sync::Arc;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::model::run::{Claim, Origin, RunStatus};
use crate::model::task::{MAX_CATCH_UP, Overlap, TaskStatus, WhenLimited};
use crate::rules::notice::Notice;
use crate::rules::placement::{Reason, Waiting};
use crate::rules::resolve::{self, Next, Plan, Rest, Span, Step, Unfinished};
use crate::schedule::{Closed, Schedule, ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::due::Due;
use crate::store::sqlite::first_claim::{UNNUMBERED, first_claim, is_plain, opening};
use crate::store::sqlite::first_look;
use crate::store::sqlite::limits::{self, InForce, Place, Subjects};
use crate::store::sqlite::open::reasons::{AWAITS_START, CUT, described, miss_reason, skip_reason};
use crate::store::sqlite::pass_over::{PassedOver, PassedRow, pass_over};
use crate::store::sqlite::row::Raw;
use crate::store::sqlite::runs::{self, Claimer, Wrote};
use crate::store::sqlite::sql::{number, sql};
use crate::store::sqlite::{blocked, limited, owners};
use crate::store::turn_io::{Seen, Slots};

/// What a transaction has written. The poller passes it on after the commit.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) claims: Vec<Arc<Claim>>,
    pub(crate) events: Vec<Event>,
    /// Resolved `once` tasks, for `once::finish`.
    pub(crate) once: Once,
    /// Whether a task was resolved only in part and is still due.
    pub(crate) more: bool,
    /// How many runs were opened that had already expired. A turn of few items may leave them among those that wait.
    pub(crate) expired: usize,
    /// Whether a blocked run was written; see [`blocked::any_blocked`].
    pub(crate) blocked: bool,
    /// How many runs were not claimed because they were not yet written as their task is now; and how many of these the list of runs
    /// that may start shows as they are.
    pub(crate) renewed: usize,
    pub(crate) listed: usize,
    /// The limits that the claims obey.
    pub(crate) limits: InForce,
    /// Whether a delay task may wait for the end of a run; see [`delays::any`].
    pub(crate) delayed: bool,
    /// Whether a task may follow the end of a run that is not dead; see `followers::any`.
    pub(crate) followed: bool,
    /// Whether a run that follows was opened or refused; why none is opened.
    pub(crate) tried_follower: bool,
    pub(crate) follower_refused: Option<String>,
    /// What other runs may follow, for `followers::follow_one`.
    pub(crate) passed: VecDeque<Passed>,
    /// How many items the runs that follow others count as.
    pub(crate) followers: usize,
    /// How many runs were not claimed because no start of their task was left.
    pub(crate) postponed: usize,
    /// How many runs were released that had waited for a start of their task.
    pub(crate) released: usize,
}

/// What the resolution of a task has passed over or cancelled, and other runs may follow.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) what: PassedBy,
    /// How many runs have led to the resolution, one after another. 0: it was due.
    pub(crate) length: u32,
}

#[derive(Debug)]
pub(crate) enum PassedBy {
    /// The id of the row, the id, the name and the handler of the task, and why nothing runs.
    Missed { row: i64, task: i64, name: String, handler: String, span: Span, reason: String },
    /// A run of which an attempt had begun.
    Cancelled { run: i64 },
}

impl Written {
    /// Includes what the resolution of a task has written beside this. `length`: how many runs have led to it.
    pub(crate) fn include(&mut self, aside: Written, length: u32) {
        let Written { events, more, expired, blocked, passed, .. } = aside;
        self.events.extend(events);
        self.more |= more;
        self.expired += expired;
        self.blocked |= blocked;
        self.passed.extend(passed.into_iter().map(|passed| Passed { length, ..passed }));
    }

    /// Returns whether a run that was renewed may have to be claimed before the others of the list.
    pub(crate) fn relists(&self) -> bool {
        self.renewed > self.listed
    }
}

/// Resolved `once` tasks that `once::finish` must still write.
#[derive(Debug, Default)]
pub(crate) struct Once {
    /// Indexes of the claims whose run is not opened yet. Such a run starts at its task's one occurrence, has no jitter, no
    /// expiry and no shared concurrency key, so the claim is complete except for the id of the run.
    pub(crate) starting: Vec<usize>,
    /// Ids of the tasks whose occurrence is resolved.
    pub(crate) completed: Vec<i64>,
}

/// A transaction that changes runs, with what its functions need.
pub(crate) struct Change<'a> {
    pub(crate) tx: &'a Transaction<'a>,
    pub(crate) now: Timestamp,
    pub(crate) schedules: &'a mut Schedules,
    pub(crate) written: &'a mut Written,
}

/// Most scheduled runs that a resolution reads: more than any policy lets wait.
const MAX_LOOKED_AT: i64 = number("looked_at");
const _: () = assert!(MAX_LOOKED_AT == 2 * MAX_CATCH_UP as i64);

// INDEXED BY: after an ANALYZE SQLite would choose the index that also holds all final runs. Of the runs that are not
// scheduled it matters only whether there is one.
const UNFINISHED: &str = sql! {"
    SELECT * FROM (SELECT id, origin, status, scheduled_for FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} = 0
     ORDER BY scheduled_for LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT id, origin, status, scheduled_for FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} > 0 LIMIT 1)"};

/// Returns the unfinished runs of a task that its overlap policy needs. Bounded, as any number of runs may wait.
fn unfinished(tx: &Transaction<'_>, task: i64, overlap: Overlap) -> rusqlite::Result<Vec<Unfinished>> {
    let limit = match overlap {
        Overlap::Allow | Overlap::Skip => 1,
        Overlap::BufferOne | Overlap::BufferAll | Overlap::CancelRunning => MAX_LOOKED_AT,
    };
    let mut statement = tx.prepare_cached(UNFINISHED)?;
    let rows = statement.query_map(named_params! { ":task": task, ":limit": limit }, |row| {
        let (id, origin, status) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Unfinished { id, origin, status, scheduled_for: row.get(3)? })
    })?;
    rows.collect()
}

const WAITING: &str = sql! {"
    SELECT id, concurrency_key FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {waiting} AND {unscheduled_id} = 0
     ORDER BY scheduled_for LIMIT {looked_at}"};

const ANY_UNFINISHED: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM task_runs
                    WHERE task_id = :task AND {unfinished})"};

pub(crate) fn any_unfinished(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_UNFINISHED)?.query_row(named_params! { ":task": task }, |row| row.get(0))
}

const ANY_RUNNING: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND task_id = :task)";

/// Returns whether a run of the task is running.
pub(crate) fn any_running(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_RUNNING)?.query_row(named_params! { ":task": task }, |row| row.get(0))
}

/// Resolves the due occurrences of one task and advances it to its next occurrence. After the last task the caller must call
/// `once::finish`.
///
/// `seen`: what the poll before this turn saw. `claimer`: claims the opened runs that may start.
pub(crate) fn resolve_due(
    cx: &mut Change<'_>,
    due: &Due,
    seen: Option<Seen>,
    rest: Rest,
    claimer: Option<(&Claimer<'_>, &mut Slots)>,
) -> Result<(), Fault> {
    let (tx, now, id) = (cx.tx, cx.now, due.id);
    let unfinished = if due.any_unfinished { unfinished(tx, id, due.plan.overlap)? } else { Vec::new() };
    let limited = (due.when_limited == WhenLimited::Skip).then(|| limited::limited(tx, &cx.written.limits, due, now));
    let limited = limited.transpose()?;
    let limited_plan = limited.as_ref().map(|of| Plan { starts_left: of.left, ..due.plan.clone() });
    let plan = limited_plan.as_ref().unwrap_or(&due.plan);
    let resolution = resolve::resolve(plan, &unfinished, now, rest);
    let is_new = seen.is_some_and(|seen| seen.is_new(due.plan.next_run));
    // A run that has expired before it is opened runs in the place of no other.
    let can_run = |at: Timestamp| is_new || due.expires_at(at).is_none_or(|at| at > now);
    let mut opener = Opener {
        due,
        plan,
        limited: limited.map(|of| of.reason),
        is_new,
        opens: resolution
            .steps
            .iter()
            .any(|step| matches!(*step, Step::Open { scheduled_for, .. } if can_run(scheduled_for)))
            || matches!(resolution.next, Next::At(at) if at <= now),
        claimer: None,
        unfinished: unfinished.len(),
        was_held: !unfinished.is_empty(),
        none_has_begun: !unfinished.is_empty() && unfinished.iter().all(|run| run.status == RunStatus::Queued),
        scheduled: unfinished.iter().filter(|run| run.origin.is_scheduled()).count(),
        newest: unfinished.iter().filter(|run| run.origin.is_scheduled()).map(|run| run.scheduled_for).max(),
        cx,
    };
    // A run that a later step cancels must not start before that step.
    let cancelled = resolution.steps.iter().rposition(|step| *step == Step::CancelWaiting).unwrap_or(0);
    let (before, after) = resolution.steps.split_at(cancelled);
    before.iter().try_for_each(|step| opener.apply(step))?;
    opener.claimer = claimer;
    after.iter().try_for_each(|step| opener.apply(step))?;
    let unfinished = opener.unfinished;
    let next = match (&due.plan.schedule, resolution.next) {
        // The occurrence already has a row, from a clock that was wrong: there is no run for the delay to wait for.
        (Schedule::Delay(delay), Next::AfterTheRun) if unfinished == 0 => {
            resolve::delayed(due.plan.bounds(), now, *delay)
        }
        (_, next) => next,
    };
    // `once::finish` writes these together, unless SQL set next_run to another instant than the resolved one.
    let as_planned = resolution.resolved_until == due.plan.resolved_until.max(Some(due.plan.next_run));
    if due.kind == ScheduleKind::Once && next == Next::Never && as_planned {
        cx.written.once.completed.push(id);
        return Ok(());
    }
    cx.written.more |= matches!(next, Next::At(at) if at <= now);
    advance(tx, id, next, resolution.resolved_until, now)?;
    Ok(())
}

const ADVANCE: &str = "
    UPDATE scheduled_tasks SET next_run = :next, resolved_until = :until WHERE id = :task";

const COMPLETE: &str = "
    UPDATE scheduled_tasks
       SET next_run = NULL, resolved_until = :until, status = 'completed', updated_at = :now WHERE id = :task";

fn advance(
    tx: &Transaction<'_>,
    task: i64,
    next: Next,
    until: Option<Timestamp>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let next = match next {
        Next::At(at) => Some(at),
        Next::AfterTheRun | Next::OnRequest => None,
        Next::Never => {
            tx.prepare_cached(COMPLETE)?.execute(named_params! { ":task": task, ":until": until, ":now": now })?;
            return Ok(());
        }
    };
    tx.prepare_cached(ADVANCE)?.execute(named_params! { ":task": task, ":next": next, ":until": until })?;
    Ok(())
}

/// Why occurrences are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The overlap policy or the misfire policy.
    Policy,
    /// A rule of the task's windows.
    Window(Closed),
    /// A limit of starts.
    Limit,
}

/// Applies the steps of the resolution of one task.
struct Opener<'a, 'c> {
    cx: &'c mut Change<'a>,
    due: &'c Due,
    /// The plan by which it is resolved.
    plan: &'c Plan,
    /// Why an occurrence is skipped for which no start is left.
    limited: Option<String>,
    /// Whether the task was written, or made due, since the last poll.
    is_new: bool,
    /// Whether a run is opened that has not expired, or occurrences are left that the next turn resolves.
    opens: bool,
    claimer: Option<(&'c Claimer<'c>, &'c mut Slots)>,
    /// Number of unfinished runs of the task.
    unfinished: usize,
    /// Whether there were some before anything is opened.
    was_held: bool,
    /// Whether all of these wait for their first attempt.
    none_has_begun: bool,
    /// Number of unfinished runs that are scheduled.
    scheduled: usize,
    /// The newest occurrence of an unfinished scheduled run.
    newest: Option<Timestamp>,
}

impl Opener<'_, '_> {
    fn apply(&mut self, step: &Step) -> Result<(), Fault> {
        match *step {
            Step::Open { scheduled_for, origin } => self.open(scheduled_for, origin),
            Step::Skip(span) => self.skip(&span),
            Step::Close(span, closed) => self.close(&span, closed),
            Step::Limit(span) => self.limit(&span),
            Step::Miss(span) => {
                let (plan, now) = (self.plan, self.cx.now);
                let notice = Notice::of_misfire(plan.misfire_at(now), self.opens);
                self.miss(&span, &miss_reason(self.due, plan, now), notice)
            }
            Step::Cut(span) => self.miss(&span, CUT, Notice::Missed),
            Step::CancelWaiting => self.cancel_waiting(),
            Step::Stop { run } => Ok(runs::ask_to_stop(self.cx.tx, run).map(|_| ())?),
        }
    }

    fn open(&mut self, scheduled_for: Timestamp, origin: Origin) -> Result<(), Fault> {
        let mut run = opening(self.due, scheduled_for, origin);
        if self.is_new {
            run.expires_at = run.expires_at.map(|at| first_look::at_first_look(at, self.cx.now));
        }
        let (has_older, overlap) = (self.scheduled > 0, self.due.plan.overlap);
        let starting = self.due.starting();
        let starts_are_used = self.cx.written.limits.is_closed(self.cx.tx, &starting, self.cx.now)?;
        let mut facts =
            Waiting { origin, status: TaskStatus::Active, overlap, has_older, starts_are_used, key_is_taken: false };
        let mut slot = 0;
        let mut subjects = Subjects::new();
        if facts.reason().is_none() {
            facts.key_is_taken = match run.key {
                None => false,
                // The task's own key is free if no run of the task is unfinished.
                Some(key) if key.starts_with('#') => self.unfinished > 0,
                Some(key) => match self.cx.written.limits.place_of_new(self.cx.tx, Some(key), self.cx.now)? {
                    Place::Alone => !blocked::key_is_free(self.cx.tx, key)?,
                    Place::Slot(free) => {
                        slot = free;
                        false
                    }
                    Place::Full => true,
                },
            };
        }
        let blocked = facts.reason();
        if blocked.is_none() && self.claimer.is_some() {
            subjects = self.cx.written.limits.subjects(self.cx.tx, &starting)?;
        }
        let may_start = blocked.is_none()
            && run.run_at <= self.cx.now
            && run.expires_at.is_none_or(|at| at > self.cx.now)
            && self.claimer.as_ref().is_some_and(|(claimer, slots)| {
                slots.admits(&self.due.retry)
                    && limits::admit(&subjects, slots)
                    && claimer.handlers.contains(run.handler)
            })
            && self.cx.written.limits.is_open(self.cx.tx, run.handler, self.cx.now)?;
        let opened = match &mut self.claimer {
            // Its row follows from its task alone: `once::finish` starts such runs together.
            Some((_, slots)) if may_start && is_plain(self.due, &run) => {
                let begins_by = self.cx.written.limits.record_start(self.cx.tx, &subjects, slots, self.cx.now)?;
                let read_ahead = slots.take();
                self.cx.written.once.starting.push(self.cx.written.claims.len());
                let claim = first_claim(self.due, UNNUMBERED, scheduled_for, origin, self.cx.now);
                let claim = Claim { read_ahead, begins_by, ..claim };
                self.cx.written.claims.push(Arc::new(claim));
                Some(UNNUMBERED)
            }
            Some((claimer, slots)) if may_start => {
                let started = slots.started(self.cx.now);
                let id = runs::start(self.cx.tx, &run, claimer, slot, started)?;
                if let Some(id) = id {
                    let begins_by = self.cx.written.limits.record_start(self.cx.tx, &subjects, slots, self.cx.now)?;
                    let read_ahead = slots.take();
                    let claim = first_claim(self.due, id, scheduled_for, origin, self.cx.now);
                    let claim = Claim { read_ahead, begins_by, ..claim };
                    self.cx.written.claims.push(Arc::new(claim));
                }
                id
            }
            _ => {
                let id = runs::open(self.cx.tx, &run, blocked)?;
                self.cx.written.blocked |= blocked.is_some();
                if let (Some(Reason::Starts), Some(run)) = (blocked, id) {
                    limited::record_wait(self.cx.tx, self.due.id, run, self.cx.now)?;
                }
                self.cx.written.expired += usize::from(run.expires_at.is_some_and(|at| at <= self.cx.now));
                if let (Some(Reason::Key), Some(key)) = (blocked, run.key) {
                    blocked::derive_key(self.cx.tx, key, self.cx.now)?;
                }
                id
            }
        };
        if opened.is_none() {
            return Ok(already(self.cx.tx, self.due.id, scheduled_for, self.cx.now)?);
        }
        self.unfinished += 1;
        self.scheduled += 1;
        if self.newest.is_some_and(|newest| newest > scheduled_for) {
            // A clock that was wrong has opened runs of later occurrences: this run must start before them.
            self.cx.written.blocked = true;
            blocked::mark(self.cx.tx, self.due.id)?;
        }
        Ok(())
    }

    fn skip(&mut self, span: &Span) -> Result<(), Fault> {
        let awaits_start = self.none_has_begun
            && limited::limited(self.cx.tx, &self.cx.written.limits, self.due, self.cx.now)?.left == Some(0);
        let reason = if awaits_start { AWAITS_START.to_owned() } else { skip_reason(self.due, self.none_has_begun) };
        let Some((span, passed)) = self.pass_over(RunStatus::Skipped, span, &reason, By::Policy)? else {
            return Ok(());
        };
        // Behind a run of the same resolution they are skipped because that is late, and behind one that waits for a start because of the
        // limit: not because runs take long.
        if !self.was_held || awaits_start {
            return Ok(());
        }
        match Notice::of_skips(passed.occurrences.saturating_sub(span.count), passed.occurrences) {
            Some(notice) => self.notice(notice, passed.run, &format!("{} in a row: {reason}", passed.occurrences)),
            None => Ok(()),
        }
    }

    /// Records no event: the task asks for these skips.
    fn close(&mut self, span: &Span, closed: Closed) -> Result<(), Fault> {
        let reason = self.due.plan.windows.as_ref().map(|windows| windows.reason(closed)).unwrap_or_default();
        self.pass_over(RunStatus::Skipped, span, &reason, By::Window(closed)).map(|_| ())
    }

    /// Records the skip of occurrences for which no start was left.
    fn limit(&mut self, span: &Span) -> Result<(), Fault> {
        let reason = self.limited.clone().unwrap_or_default();
        let Some((span, row)) = self.pass_over(RunStatus::Skipped, span, &reason, By::Limit)? else { return Ok(()) };
        // One event for each row.
        if row.occurrences > span.count {
            return Ok(());
        }
        self.notice(Notice::Limited, row.run, &format!("{}: {reason}", described(&span)))
    }

    fn miss(&mut self, span: &Span, reason: &str, notice: Notice) -> Result<(), Fault> {
        let Some((span, PassedRow { run, .. })) = self.pass_over(RunStatus::Missed, span, reason, By::Policy)? else {
            return Ok(());
        };
        if notice == Notice::Missed && self.cx.written.followed {
            self.follow_missed(run, span, reason);
        }
        self.notice(notice, run, &format!("{}: {reason}", described(&span)))
    }

    /// Has tasks follow missed occurrences. Those of one resolution are one report, of the newest row, however many periods they are in.
    fn follow_missed(&mut self, row: i64, span: Span, reason: &str) {
        if let Some(Passed { what: PassedBy::Missed { row: newest, task, span: all, .. }, .. }) =
            self.cx.written.passed.back_mut()
            && *task == self.due.id
        {
            *newest = row;
            all.extend(span);
            return;
        }
        let (task, name, handler) = (self.due.id, self.due.name.clone(), self.due.handler.clone());
        let what = PassedBy::Missed { row, task, name, handler, span, reason: reason.to_owned() };
        self.cx.written.passed.push_back(Passed { what, length: 0 });
    }

    fn notice(&self, notice: Notice, row: i64, detail: &str) -> Result<(), Fault> {
        Ok(owners::record(self.cx.tx, self.cx.now, notice.kind(), Some(self.due.id), Some(row), Some(detail))?)
    }

    /// Records a span of occurrences that are not run, all by this rule of the task's windows or all by another one. Returns the part of it
    /// that had no row before, and its row.
    fn pass_over(
        &mut self,
        status: RunStatus,
        span: &Span,
        reason: &str,
        by: By,
    ) -> Result<Option<(Span, PassedRow)>, Fault> {
        let closed = if let By::Window(closed) = by { Some(closed) } else { None };
        let least = if span.exact { String::new() } else { format!("at least {}: ", span.count) };
        let reason = format!("{least}{reason}");
        let mut row = PassedOver {
            task: self.due.id,
            handler: &self.due.handler,
            priority: self.due.priority,
            status,
            span: *span,
            reason: &reason,
            is_asked_for: by != By::Policy,
        };
        // After a clock that was wrong the oldest occurrences may have rows. Those after them form a shorter span.
        let passed = loop {
            if let Some(passed) = pass_over(self.cx.tx, &row, self.cx.now)? {
                break passed;
            }
            let Span { first, last, count, .. } = row.span;
            already(self.cx.tx, self.due.id, first, self.cx.now)?;
            let after = |at: &Timestamp| resolve::occurrence_after(&self.due.plan, *at).filter(|next| *next <= last);
            let mut later = iter::successors(after(&first), after).filter(|at| self.due.plan.closed(*at) == closed);
            let Some(first) = later.next().filter(|_| count > 1) else { return Ok(None) };
            row.span = Span { first, count: count - 1, ..row.span };
        };
        let span = row.span;
        self.cx.written.events.push(Event::PassedOver {
            task: self.due.name.clone(),
            status,
            first: span.first,
            last: span.last,
            count: span.count,
            exact: span.exact,
        });
        Ok(Some((span, passed)))
    }

    fn cancel_waiting(&mut self) -> Result<(), Fault> {
        let mut statement = self.cx.tx.prepare_cached(WAITING)?;
        let waiting =
            statement.query_map(named_params! { ":task": self.due.id }, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let waiting = waiting.collect::<Result<Vec<(i64, Option<Raw>)>, _>>()?;
        let keys: BTreeSet<Vec<u8>> = waiting.iter().filter_map(|(_, key)| Some(key.as_ref()?.0.clone())).collect();
        for (run, _) in waiting {
            let (reason, began) =
                ("a newer occurrence took its place (overlap policy)", runs::has_begun(self.cx.tx, run)?);
            if runs::cancel_waiting(self.cx.tx, run, reason, self.cx.now)? == Wrote::Done {
                runs::last_cancelled(self.cx.tx, self.due.id, run)?;
                let (task, handler) = (self.due.name.clone(), self.due.handler.clone());
                self.cx.written.events.push(Event::Cancelled { run, task, handler, began });
                if began && self.cx.written.followed {
                    self.cx.written.passed.push_back(Passed { what: PassedBy::Cancelled { run }, length: 0 });
                }
            }
        }
        let left = unfinished(self.cx.tx, self.due.id, self.due.plan.overlap)?;
        self.unfinished = left.len();
        self.scheduled = left.iter().filter(|run| run.origin.is_scheduled()).count();
        Ok(keys.iter().try_for_each(|key| blocked::derive_key(self.cx.tx, key, self.cx.now))?)
    }
}

/// Records an event for an occurrence that already has a row: it gets no second row and is no error.
pub(crate) fn already(
    tx: &Transaction<'_>,
    task: i64,
    scheduled_for: Timestamp,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let detail = format!("the occurrence of {scheduled_for} has a run already");
    owners::record(tx, now, "passed_over", Some(task), None, Some(&detail))
}
