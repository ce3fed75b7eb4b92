//! What becomes of a due task: from the task, its unfinished runs and now to the runs to open, what was skipped or missed,
//! and the next occurrence. Pure; the store applies the answer inside the transaction that also claims.
//!
//! Bounded however long the gap: late occurrences are counted by arithmetic, or up to [`COUNT_LIMIT`] and then "at least".

use std::iter;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::run::{Origin, RunStatus};
use crate::model::task::{Definition, Misfire, Overlap};
use crate::schedule::Schedule;

/// Occurrences that are counted one by one; a longer gap is told as "at least" so many.
pub(crate) const COUNT_LIMIT: u64 = 10_000;
/// Occurrences within the grace that one resolution looks at; the rest stays due for the next turn.
const LOOK_LIMIT: usize = 10_000;
/// Runs that one resolution opens; the rest stays due for the next turn.
const OPEN_LIMIT: usize = 200;

/// What the rules need to know of a task.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) next_run: Timestamp,
    pub(crate) resolved_until: Option<Timestamp>,
    pub(crate) active_since: Timestamp,
    pub(crate) starts_at: Option<Timestamp>,
    pub(crate) ends_at: Option<Timestamp>,
    pub(crate) overlap: Overlap,
    pub(crate) misfire: Misfire,
    pub(crate) grace: Duration,
    pub(crate) catch_up_limit: usize,
}

impl Plan {
    /// The rules' view of a task whose schedule has been checked.
    pub(crate) fn new(
        task: &Definition,
        schedule: Schedule,
        next_run: Timestamp,
        resolved_until: Option<Timestamp>,
        active_since: Timestamp,
    ) -> Plan {
        Plan {
            schedule,
            next_run,
            resolved_until,
            active_since,
            starts_at: task.starts_at,
            ends_at: task.ends_at,
            overlap: task.overlap,
            misfire: task.misfire,
            grace: task.misfire_grace,
            catch_up_limit: usize::try_from(task.catch_up_limit).unwrap_or(usize::MAX),
        }
    }

    /// Returns the instants before and after which the task has no occurrence.
    pub(crate) fn bounds(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.starts_at, self.ends_at)
    }
}

/// A run of the task that is not final.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    pub(crate) id: i64,
    pub(crate) origin: Origin,
    pub(crate) status: RunStatus,
    pub(crate) scheduled_for: Timestamp,
}

/// Several occurrences that are told in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) count: u64,
    /// Whether `count` is all of them, or all that were counted.
    pub(crate) exact: bool,
}

/// One thing to write, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Open {
        scheduled_for: Timestamp,
        origin: Origin,
    },
    Skip(Span),
    Miss(Span),
    /// Missed too: there was no other turn to look at them.
    Cut(Span),
    /// The waiting scheduled runs of the task become cancelled, those just opened too.
    CancelWaiting,
    /// A running run is asked to stop.
    Stop {
        run: i64,
    },
}

/// What becomes of that part of a very long list which one resolution does not look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It stays due, for the next turn.
    Later,
    /// There will be none: the task is about to change. It is told in one row.
    Cut,
}

/// When the task is due again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    At(Timestamp),
    /// A delay that counts from the end of a run which is not over.
    AfterTheRun,
    /// A manual task: only a request opens a run.
    OnRequest,
    /// No occurrence is left.
    Never,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolution {
    pub(crate) steps: Vec<Step>,
    pub(crate) next: Next,
    pub(crate) resolved_until: Option<Timestamp>,
}

/// The first occurrence after `after` that lies within the task's bounds.
pub(crate) fn occurrence_after(plan: &Plan, after: Timestamp) -> Option<Timestamp> {
    let after = match plan.starts_at {
        Some(starts) => after.max(starts.minus(Duration::from_millis(1))),
        None => after,
    };
    plan.schedule.next_after(after).filter(|next| plan.ends_at.is_none_or(|ends| *next <= ends))
}

/// Returns when a delay is over that is counted from an instant. `bounds`: `starts_at` and `ends_at` of the task.
pub(crate) fn delayed(bounds: (Option<Timestamp>, Option<Timestamp>), from: Timestamp, delay: Duration) -> Next {
    let (starts_at, ends_at) = bounds;
    let counted = from.plus(delay).min(Timestamp::MAX);
    let next = starts_at.map_or(counted, |starts| counted.max(starts));
    if ends_at.is_none_or(|ends| next <= ends) { Next::At(next) } else { Next::Never }
}

/// When a task is due that has just been added, edited or resumed. `unfinished`: whether a run of it is.
pub(crate) fn first(plan: &Plan, unfinished: bool) -> Next {
    let next = match &plan.schedule {
        Schedule::Delay(_) if unfinished => return Next::AfterTheRun,
        Schedule::Delay(delay) => return delayed(plan.bounds(), plan.active_since, *delay),
        Schedule::Manual => return Next::OnRequest,
        // A past instant counts too, unless it was resolved: it is due at once.
        Schedule::Once(at) => Some(*at)
            .filter(|at| plan.resolved_until.is_none_or(|until| *at > until))
            .filter(|at| plan.starts_at.is_none_or(|starts| *at >= starts))
            .filter(|at| plan.ends_at.is_none_or(|ends| *at <= ends)),
        _ => {
            occurrence_after(plan, plan.resolved_until.map_or(plan.active_since, |until| until.max(plan.active_since)))
        }
    };
    next.map_or(Next::Never, Next::At)
}

/// Decides about everything that is due at `now`. Of a very long list, about the oldest part one by one; if the rest is for
/// later, the answer's `next` is then still due.
pub(crate) fn resolve(plan: &Plan, unfinished: &[Unfinished], now: Timestamp, rest: Rest) -> Resolution {
    let mut work = Work {
        plan,
        running: unfinished
            .iter()
            .filter(|run| run.status == RunStatus::Running && run.origin.is_scheduled())
            .map(|run| run.id)
            .collect(),
        unfinished: unfinished.len(),
        waiting: count(unfinished, |run| run.status != RunStatus::Running && run.origin.is_scheduled()),
        queued: count(unfinished, |run| run.status == RunStatus::Queued && run.origin.is_scheduled()),
        opened: 0,
        steps: Vec::new(),
        resolved_until: plan.resolved_until,
    };
    // What somebody set, or an edit left behind, may lie before the newest occurrence that was resolved.
    let mut due = match plan.resolved_until {
        Some(until) if plan.next_run <= until => match plan.schedule {
            Schedule::Delay(_) if !unfinished.is_empty() => None,
            _ => occurrence_after(plan, until.max(plan.active_since)),
        },
        _ => Some(plan.next_run),
    };
    // Lateness counts from the later of the occurrence and active_since: nothing is late that has not been active so long.
    let late_before = now.minus(plan.grace);
    if let Some(oldest) = due
        && oldest < late_before
        && plan.active_since < late_before
    {
        due = work.misfire(oldest, late_before, now);
    }
    let mut looked = 0;
    while let Some(occurrence) = due.filter(|at| *at <= now) {
        if looked == LOOK_LIMIT || work.opened >= OPEN_LIMIT {
            if rest == Rest::Cut {
                due = work.cut(occurrence, now);
            }
            break;
        }
        looked += 1;
        work.admit(occurrence, Origin::Schedule);
        due = work.after(occurrence);
    }
    let next = match (&plan.schedule, due) {
        (Schedule::Delay(_), None) if work.unfinished > 0 => Next::AfterTheRun,
        (Schedule::Delay(delay), None) => delayed(plan.bounds(), now, *delay),
        // Somebody had set next_run, and that is resolved.
        (Schedule::Manual, None) => Next::OnRequest,
        (_, due) => due.map_or(Next::Never, Next::At),
    };
    Resolution { steps: work.steps, next, resolved_until: work.resolved_until }
}

fn count(unfinished: &[Unfinished], which: impl Fn(&Unfinished) -> bool) -> usize {
    unfinished.iter().filter(|run| which(run)).count()
}

struct Work<'a> {
    plan: &'a Plan,
    /// Scheduled runs that are running, and have not been asked to stop.
    running: Vec<i64>,
    unfinished: usize,
    waiting: usize,
    queued: usize,
    opened: usize,
    steps: Vec<Step>,
    resolved_until: Option<Timestamp>,
}

impl Work<'_> {
    /// The occurrence after one that is due. A delay has none: the next is counted when the run is over.
    fn after(&self, occurrence: Timestamp) -> Option<Timestamp> {
        match self.plan.schedule {
            Schedule::Delay(_) => None,
            _ => occurrence_after(self.plan, occurrence),
        }
    }

    /// The last occurrence before an instant, if that is not before `oldest`, which need not be on the schedule's own grid.
    fn before(&self, instant: Timestamp, oldest: Timestamp) -> Option<Timestamp> {
        let past_the_end = self.plan.ends_at.map(|ends| ends.plus(Duration::from_millis(1)));
        let instant = past_the_end.map_or(instant, |end| instant.min(end));
        match self.plan.schedule.previous_before(instant) {
            // The oldest may have been set by hand to before the start: between the two there is nothing.
            Some(previous) if previous > oldest && self.plan.starts_at.is_none_or(|starts| previous >= starts) => {
                Some(previous)
            }
            _ => (oldest < instant).then_some(oldest),
        }
    }

    /// Decides about what was due before `late_before`, and answers with the first occurrence from there on.
    fn misfire(&mut self, oldest: Timestamp, late_before: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let newest = self.before(late_before, oldest).unwrap_or(oldest);
        let following = self.after(newest);
        let one_is_in_time = following.is_some_and(|at| at <= now);
        match self.plan.misfire {
            Misfire::RunOnce if !one_is_in_time => {
                if let Some(last) = self.before(newest, oldest) {
                    self.miss(oldest, last);
                }
                self.admit(newest, Origin::CatchUp);
            }
            Misfire::RunOnce | Misfire::Skip => self.miss(oldest, newest),
            Misfire::RunAll => {
                let mut room = self.room_for_late(following, now);
                let mut kept = Vec::new();
                let mut older = Some(newest);
                while room > 0
                    && let Some(late) = older
                {
                    kept.push(late);
                    older = self.before(late, oldest);
                    room -= 1;
                }
                if let Some(last) = older {
                    self.miss(oldest, last);
                }
                for occurrence in kept.into_iter().rev() {
                    self.admit(occurrence, Origin::CatchUp);
                }
            }
        }
        following
    }

    /// How many late occurrences get runs under `run_all`: the catch-up limit, less the occurrences within the grace, from
    /// `timely` on, which are newer. Under `buffer_all` the limit also counts the runs that wait already.
    fn room_for_late(&self, timely: Option<Timestamp>, now: Timestamp) -> usize {
        let waiting = if self.plan.overlap == Overlap::BufferAll { self.waiting } else { 0 };
        let room = self.plan.catch_up_limit.saturating_sub(waiting);
        let timely = iter::successors(timely, |at| self.after(*at)).take_while(|at| *at <= now);
        room - timely.take(room).count()
    }

    /// Tells the rest of a list in one row, and answers with the first occurrence after now.
    fn cut(&mut self, oldest: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let newest = self.before(now.plus(Duration::from_millis(1)), oldest).unwrap_or(oldest);
        let span = self.span(oldest, newest);
        self.steps.push(Step::Cut(span));
        self.after(newest)
    }

    fn miss(&mut self, first: Timestamp, last: Timestamp) {
        let span = self.span(first, last);
        self.steps.push(Step::Miss(span));
    }

    /// The occurrences from one to another, which are resolved with that.
    fn span(&mut self, first: Timestamp, last: Timestamp) -> Span {
        // The first may have been set by hand and lie off the schedule's grid, so it is counted for itself.
        let further = match self.after(first) {
            Some(second) if second <= last => Some(self.plan.schedule.count_between(second, last, COUNT_LIMIT - 1)),
            _ => None,
        };
        let (count, exact) = further.map_or((1, true), |further| (1 + further.n, further.exact));
        self.resolved(last);
        Span { first, last, count, exact }
    }

    /// Opens a run for one occurrence, or skips it, as the overlap policy says.
    fn admit(&mut self, occurrence: Timestamp, origin: Origin) {
        self.resolved(occurrence);
        let room = match self.plan.overlap {
            Overlap::Skip => self.unfinished == 0,
            Overlap::BufferOne => self.queued == 0,
            Overlap::BufferAll => self.waiting < self.plan.catch_up_limit,
            Overlap::Allow | Overlap::CancelRunning => true,
        };
        if !room {
            match self.steps.last_mut() {
                Some(Step::Skip(span)) => (span.last, span.count) = (occurrence, span.count + 1),
                _ => self.steps.push(Step::Skip(Span { first: occurrence, last: occurrence, count: 1, exact: true })),
            }
            return;
        }
        if self.plan.overlap == Overlap::CancelRunning {
            if self.waiting > 0 {
                self.steps.push(Step::CancelWaiting);
                self.unfinished -= self.waiting;
                (self.waiting, self.queued) = (0, 0);
            }
            self.steps.extend(self.running.drain(..).map(|run| Step::Stop { run }));
        }
        self.steps.push(Step::Open { scheduled_for: occurrence, origin });
        self.opened += 1;
        self.unfinished += 1;
        self.waiting += 1;
        self.queued += 1;
    }

    fn resolved(&mut self, occurrence: Timestamp) {
        self.resolved_until = self.resolved_until.max(Some(occurrence));
    }
}
