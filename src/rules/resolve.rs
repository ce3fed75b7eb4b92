//! Resolves a due task: decides from the task, its unfinished runs and the current time which runs to open, which
//! occurrences are skipped or missed, and when the task is due next. Pure; the store applies the decision in the transaction
//! that also claims.
//!
//! The work is bounded for a gap of any length: late occurrences are counted by arithmetic, or one by one up to
//! [`COUNT_LIMIT`].

use std::iter;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::run::{Origin, RunStatus};
use crate::model::task::{Definition, Misfire, Overlap};
use crate::schedule::{Closed, Schedule, Windows};

/// Most occurrences that are counted one by one. The count of a longer gap is a lower bound.
pub(crate) const COUNT_LIMIT: u64 = 10_000;
/// Most occurrences within the grace that one resolution examines; the rest stays due for the next turn.
const LOOK_LIMIT: usize = 10_000;
/// Runs after which a resolution stops; the rest stays due for the next turn.
const OPEN_LIMIT: usize = 200;
/// Most periods of a gap that one resolution records, each in a row; the rest stays due for the next turn. If no later turn can resolve them,
/// [`LOOK_LIMIT`].
const PERIOD_LIMIT: usize = 100;
const MILLISECOND: Duration = Duration::from_millis(1);

/// What the rules need of a task.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) next_run: Timestamp,
    pub(crate) resolved_until: Option<Timestamp>,
    pub(crate) active_since: Timestamp,
    pub(crate) starts_at: Option<Timestamp>,
    pub(crate) ends_at: Option<Timestamp>,
    /// When an occurrence is run; `None`: whenever it is.
    pub(crate) windows: Option<Box<Windows>>,
    /// How many starts its limits leave, if it skips what falls due beyond them.
    pub(crate) starts_left: Option<usize>,
    pub(crate) overlap: Overlap,
    pub(crate) misfire: Misfire,
    pub(crate) grace: Duration,
    pub(crate) catch_up_limit: usize,
}

impl Plan {
    /// Creates the plan of a task whose definition has been checked.
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
            windows: task.windows().ok().flatten().map(Box::new),
            starts_left: None,
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

    /// Returns the rule by which an occurrence at this instant is skipped. One whose local time the clock skips is judged by that time, and
    /// not by the end of the gap, at which it is run.
    pub(crate) fn closed(&self, at: Timestamp) -> Option<Closed> {
        let windows = self.windows.as_ref()?;
        let mut closed = windows.closed(at);
        for local in self.schedule.gathered(at) {
            closed = windows.closed_at(local);
            if closed.is_none() {
                break;
            }
        }
        closed
    }

    /// Returns whether the windows judge an occurrence at this instant by other local times than that which the clock shows.
    fn is_behind_gap(&self, at: Timestamp) -> bool {
        self.windows.is_some() && self.schedule.gathered(at).next().is_some()
    }

    /// Returns an instant up to which the windows say the same as for this occurrence.
    fn end_of_period(&self, at: Timestamp) -> Timestamp {
        match &self.windows {
            Some(_) if self.is_behind_gap(at) => at.plus(MILLISECOND),
            Some(windows) => windows.end(at),
            None => Timestamp::MAX,
        }
    }

    /// Returns an instant from which on the windows say the same as for this occurrence.
    fn begin_of_period(&self, at: Timestamp) -> Timestamp {
        let begin = self.windows.as_ref().map_or(Timestamp::MIN, |windows| windows.begin(at));
        if begin < at && self.is_behind_gap(begin) { begin.plus(MILLISECOND) } else { begin }
    }

    /// Returns the misfire policy for occurrences that are resolved at `now`: nothing catches up at a time at which nothing is to run, or
    /// while no start is left.
    pub(crate) fn misfire_at(&self, now: Timestamp) -> Misfire {
        if self.closed(now).is_some() || self.starts_left == Some(0) { Misfire::Skip } else { self.misfire }
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

/// Consecutive occurrences that are recorded in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) count: u64,
    /// Whether `count` is exact. If not, it is a lower bound.
    pub(crate) exact: bool,
}

impl Span {
    fn of(occurrence: Timestamp) -> Self {
        Span { first: occurrence, last: occurrence, count: 1, exact: true }
    }

    /// Includes later occurrences.
    pub(crate) fn extend(&mut self, later: Span) {
        (self.last, self.count, self.exact) = (later.last, self.count + later.count, self.exact && later.exact);
    }
}

/// One change to write. Steps are applied in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Open {
        scheduled_for: Timestamp,
        origin: Origin,
    },
    /// The overlap policy forbids a run.
    Skip(Span),
    /// A window or a date excludes them.
    Close(Span, Closed),
    /// No start is left for them.
    Limit(Span),
    Miss(Span),
    /// Also missed: no later turn can examine them one by one.
    Cut(Span),
    /// Cancels the waiting scheduled runs of the task, including those that earlier steps opened.
    CancelWaiting,
    /// Requests a running run to stop.
    Stop {
        run: i64,
    },
}

/// What happens to the due occurrences that one resolution does not examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// They stay due for the next turn.
    Later,
    /// They are recorded as missed in one row: the task is about to change, so no later turn can resolve them.
    Cut,
}

/// When a task is due next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    At(Timestamp),
    /// A delay that counts from the end of an unfinished run.
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

/// Returns the first occurrence after `after` within the task's bounds.
pub(crate) fn occurrence_after(plan: &Plan, after: Timestamp) -> Option<Timestamp> {
    let after = match plan.starts_at {
        Some(starts) => after.max(starts.minus(MILLISECOND)),
        None => after,
    };
    plan.schedule.next_after(after).filter(|next| plan.ends_at.is_none_or(|ends| *next <= ends))
}

/// The largest shift of a zone by which a time of the day counts as the same. Countries choose another zone by an hour or two; a wrong file
/// may be that of any zone.
const LARGEST_SHIFT: Duration = Duration::from_secs(26 * 3600);

/// Returns when a task is due by this schedule that other zone data has planned for `plan.next_run`.
///
/// Other data has the same local times at other instants. An occurrence soon after the last resolved one, and nearer to that than to
/// the planned one, is the one that is resolved: a daily task that has run today does not run again on the same date.
///
/// ```text
/// resolved 14:00Z today, planned 14:00Z tomorrow     07:00 in Vancouver, by the data before
/// now 07:00 is 15:00Z                                tomorrow at 15:00Z, not today
/// ```
///
/// A `next_run` that no rules of a zone can have planned was set by a user, and stays: rules differ by whole minutes, and a cron line has whole
/// seconds.
pub(crate) fn planned_anew(plan: &Plan) -> Option<Timestamp> {
    let is_set = |next: Timestamp| !plan.next_run.as_millis().abs_diff(next.as_millis()).is_multiple_of(1000);
    by_new_rules(plan).map(|next| if is_set(next) { plan.next_run } else { next })
}

fn by_new_rules(plan: &Plan) -> Option<Timestamp> {
    let resolved = plan.resolved_until.map(|until| {
        let same = (plan.next_run.since(until) / 2).min(LARGEST_SHIFT);
        until.max(until.plus(same).minus(MILLISECOND))
    });
    occurrence_after(plan, resolved.map_or(plan.active_since, |resolved| resolved.max(plan.active_since)))
}

/// Returns when a delay that counts from an instant is over. `bounds`: `starts_at` and `ends_at` of the task.
pub(crate) fn delayed(bounds: (Option<Timestamp>, Option<Timestamp>), from: Timestamp, delay: Duration) -> Next {
    let (starts_at, ends_at) = bounds;
    let counted = from.plus(delay).min(Timestamp::MAX);
    let next = starts_at.map_or(counted, |starts| counted.max(starts));
    if ends_at.is_none_or(|ends| next <= ends) { Next::At(next) } else { Next::Never }
}

/// Returns when a task is due that has just been added, edited or resumed. `unfinished`: whether the task has an unfinished
/// run.
pub(crate) fn first(plan: &Plan, unfinished: bool) -> Next {
    let next = match &plan.schedule {
        Schedule::Delay(_) if unfinished => return Next::AfterTheRun,
        Schedule::Delay(delay) => return delayed(plan.bounds(), plan.active_since, *delay),
        Schedule::Manual => return Next::OnRequest,
        // A past instant is due immediately, unless it was resolved.
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

/// Refuses a plan of whose occurrences from `first` on the windows exclude all.
pub(crate) fn check_any_is_open(plan: &Plan, first: Timestamp) -> Result<()> {
    let Some(windows) = &plan.windows else { return Ok(()) };
    let mut next = Some(first);
    for _ in 0..LOOK_LIMIT {
        let Some(occurrence) = next else { break };
        if plan.closed(occurrence).is_none() {
            return Ok(());
        }
        next = occurrence_after(plan, plan.end_of_period(occurrence).minus(MILLISECOND));
    }
    // The times of the day exclude all of these. A later occurrence is open only if the dates say something else of it.
    if next.is_some_and(|reached| windows.have_dates_after(reached)) {
        return Ok(());
    }
    plan.closed(first).map_or(Ok(()), |closed| Err(windows.exclude_all(closed)))
}

/// Resolves every occurrence that is due at `now`. If there are more than the limits of one resolution allow, `rest` decides
/// about the newer ones; with [`Rest::Later`] the returned `next` is still due.
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
    // A next_run that SQL set, or that an edit left, may be older than the newest resolved occurrence.
    let mut due = match plan.resolved_until {
        Some(until) if plan.next_run <= until => match plan.schedule {
            Schedule::Delay(_) if !unfinished.is_empty() => None,
            _ => occurrence_after(plan, until.max(plan.active_since)),
        },
        _ => Some(plan.next_run),
    };
    if let Some(oldest) = due
        && work.is_late(oldest, now)
    {
        let periods = if rest == Rest::Cut { LOOK_LIMIT } else { PERIOD_LIMIT };
        due = work.misfire(oldest, work.within_periods(periods, oldest, now.minus(plan.grace)), now);
    }
    let mut looked = 0;
    while let Some(occurrence) = due.filter(|at| *at <= now) {
        // Late ones are left if their gap has too many periods.
        if work.is_late(occurrence, now) || looked == LOOK_LIMIT || work.opened >= OPEN_LIMIT {
            if rest == Rest::Cut {
                due = work.cut(occurrence, now);
            }
            break;
        }
        looked += 1;
        match plan.closed(occurrence) {
            None if work.room_for_starts() == 0 => work.limit(occurrence),
            None => work.admit(occurrence, Origin::Schedule),
            Some(closed) => work.close(occurrence, closed),
        }
        due = work.after(occurrence);
    }
    let next = match (&plan.schedule, due) {
        (Schedule::Delay(_), None) if work.unfinished > 0 => Next::AfterTheRun,
        (Schedule::Delay(delay), None) => delayed(plan.bounds(), now, *delay),
        // SQL had set next_run; that occurrence is resolved.
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
    /// Running scheduled runs that no step has requested to stop.
    running: Vec<i64>,
    unfinished: usize,
    waiting: usize,
    queued: usize,
    opened: usize,
    steps: Vec<Step>,
    resolved_until: Option<Timestamp>,
}

impl Work<'_> {
    /// Lateness counts from the later of the occurrence and active_since: nothing is late within the grace after active_since.
    fn is_late(&self, occurrence: Timestamp, now: Timestamp) -> bool {
        occurrence.max(self.plan.active_since) < now.minus(self.plan.grace)
    }

    /// Returns the occurrence after one that is due. A delay has none: it counts from the end of the run.
    fn after(&self, occurrence: Timestamp) -> Option<Timestamp> {
        match self.plan.schedule {
            Schedule::Delay(_) => None,
            _ => occurrence_after(self.plan, occurrence),
        }
    }

    /// Returns the last occurrence before an instant, but none before `oldest`, which need not be an instant of the
    /// schedule.
    fn before(&self, instant: Timestamp, oldest: Timestamp) -> Option<Timestamp> {
        let past_the_end = self.plan.ends_at.map(|ends| ends.plus(MILLISECOND));
        let instant = past_the_end.map_or(instant, |end| instant.min(end));
        match self.plan.schedule.previous_before(instant) {
            // SQL may have set the oldest to before starts_at: there is no occurrence between the two.
            Some(previous) if previous > oldest && self.plan.starts_at.is_none_or(|starts| previous >= starts) => {
                Some(previous)
            }
            _ => (oldest < instant).then_some(oldest),
        }
    }

    /// Returns this occurrence, or the last before it, that no window excludes. None is before `oldest`.
    fn open_until(&self, mut occurrence: Timestamp, oldest: Timestamp) -> Option<Timestamp> {
        for _ in 0..LOOK_LIMIT {
            if self.plan.closed(occurrence).is_none() {
                return Some(occurrence);
            }
            occurrence = self.before(self.plan.begin_of_period(occurrence), oldest)?;
        }
        None
    }

    /// Returns this occurrence, or the first after it, that no window excludes.
    fn open_from(&self, mut occurrence: Timestamp) -> Option<Timestamp> {
        for _ in 0..LOOK_LIMIT {
            if self.plan.closed(occurrence).is_none() {
                return Some(occurrence);
            }
            occurrence = self.after(self.plan.end_of_period(occurrence).minus(MILLISECOND))?;
        }
        None
    }

    /// Returns the occurrences from `first` to `now` that no window excludes.
    fn timely(&self, first: Option<Timestamp>, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        let first = first.and_then(|first| self.open_from(first));
        iter::successors(first, |at| self.open_from(self.after(*at)?)).take_while(move |at| *at <= now)
    }

    /// Applies the misfire policy to the occurrences before `late_before`. Returns the first occurrence after them.
    fn misfire(&mut self, oldest: Timestamp, late_before: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let newest = self.before(late_before, oldest).unwrap_or(oldest);
        let following = self.after(newest);
        let room = match self.plan.misfire_at(now) {
            Misfire::RunOnce => usize::from(self.timely(following, now).next().is_none()),
            Misfire::Skip => 0,
            Misfire::RunAll => self.room_for_late(following, now),
        };
        let room = room.min(self.room_for_starts());
        let older = |at: &Timestamp| self.open_until(self.before(*at, oldest)?, oldest);
        let kept: Vec<Timestamp> = iter::successors(self.open_until(newest, oldest), older).take(room).collect();
        let mut first = Some(oldest);
        for occurrence in kept.into_iter().rev() {
            if let Some(first) = first
                && let Some(last) = self.before(occurrence, first)
            {
                self.pass(first, last);
            }
            self.admit(occurrence, Origin::CatchUp);
            first = self.after(occurrence);
        }
        if let Some(first) = first.filter(|first| *first <= newest) {
            self.pass(first, newest);
        }
        following
    }

    /// Returns how many late occurrences get runs under `run_all`: the catch-up limit minus the newer occurrences within the
    /// grace, from `timely` on. Under `buffer_all` the limit also counts the runs that already wait.
    fn room_for_late(&self, timely: Option<Timestamp>, now: Timestamp) -> usize {
        let waiting = if self.plan.overlap == Overlap::BufferAll { self.waiting } else { 0 };
        let room = self.plan.catch_up_limit.saturating_sub(waiting);
        room - self.timely(timely, now).take(room).count()
    }

    /// Returns how many runs may still be opened, as far as limits of starts decide.
    fn room_for_starts(&self) -> usize {
        self.plan.starts_left.map_or(usize::MAX, |left| left.saturating_sub(self.opened))
    }

    /// Records the remaining due occurrences as one span. Returns the first occurrence after `now`.
    fn cut(&mut self, oldest: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let newest = self.before(now.plus(MILLISECOND), oldest).unwrap_or(oldest);
        let span = self.span(oldest, newest);
        self.steps.push(Step::Cut(span));
        self.after(newest)
    }

    /// Records occurrences that are not run, in one span for each period: those that a window excludes as skipped, all others as missed.
    fn pass(&mut self, first: Timestamp, last: Timestamp) {
        let mut from = Some(first);
        while let Some(occurrence) = from.filter(|at| *at <= last) {
            let end = last.plus(MILLISECOND).min(self.plan.end_of_period(occurrence));
            let newest = self.before(end, occurrence).unwrap_or(occurrence);
            let part = self.span(occurrence, newest);
            match (self.plan.closed(occurrence), self.steps.last_mut()) {
                (Some(closed), Some(Step::Close(span, rule))) if *rule == closed => span.extend(part),
                (Some(closed), _) => self.steps.push(Step::Close(part, closed)),
                // At midnight, or at a change of the clock, the windows may exclude nothing before and after.
                (None, Some(Step::Miss(span))) => span.extend(part),
                (None, _) => self.steps.push(Step::Miss(part)),
            }
            from = self.after(newest);
        }
    }

    /// Returns `end`, or the occurrence before it that begins one period more than `most`.
    fn within_periods(&self, most: usize, oldest: Timestamp, end: Timestamp) -> Timestamp {
        if self.plan.windows.is_none() {
            return end;
        }
        let mut occurrence = oldest;
        for _ in 0..most {
            match self.after(self.plan.end_of_period(occurrence).minus(MILLISECOND)) {
                Some(next) if next < end => occurrence = next,
                _ => return end,
            }
        }
        occurrence
    }

    /// Skips an occurrence that a window excludes.
    fn close(&mut self, occurrence: Timestamp, closed: Closed) {
        self.resolved(occurrence);
        match self.steps.last_mut() {
            Some(Step::Close(span, rule)) if *rule == closed => (span.last, span.count) = (occurrence, span.count + 1),
            _ => self
                .steps
                .push(Step::Close(Span { first: occurrence, last: occurrence, count: 1, exact: true }, closed)),
        }
    }

    /// Skips an occurrence for which no start is left.
    fn limit(&mut self, occurrence: Timestamp) {
        self.resolved(occurrence);
        match self.steps.last_mut() {
            Some(Step::Limit(span)) => span.extend(Span::of(occurrence)),
            _ => self.steps.push(Step::Limit(Span::of(occurrence))),
        }
    }

    /// Returns the span from one occurrence to another, and marks both and those in between as resolved.
    fn span(&mut self, first: Timestamp, last: Timestamp) -> Span {
        // SQL may have set the first to an instant that the schedule does not name, so it is counted separately.
        let further = match self.after(first) {
            Some(second) if second <= last => Some(self.plan.schedule.count_between(second, last, COUNT_LIMIT - 1)),
            _ => None,
        };
        let (count, exact) = further.map_or((1, true), |further| (1 + further.n, further.exact));
        self.resolved(last);
        Span { first, last, count, exact }
    }

    /// Opens a run for one occurrence, or skips it if the overlap policy forbids a run.
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
                Some(Step::Skip(span)) => span.extend(Span::of(occurrence)),
                _ => self.steps.push(Step::Skip(Span::of(occurrence))),
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
