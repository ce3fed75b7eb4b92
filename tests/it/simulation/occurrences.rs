//! Occurrences: each that becomes due while its task is active has exactly one row (run, skip or miss), and each row has an
//! occurrence.

use duly::{Origin, RunStatus};

use crate::simulation::calendar::Calendar;
use crate::simulation::history::{Action, Check, History, Step, Turn};
use crate::simulation::policies;
use crate::simulation::rows::{RunRow, TaskRow};

/// The expected schedule state of a task.
#[derive(Clone)]
pub(crate) struct TaskModel {
    calendar: Calendar,
    created: i64,
    since: i64,
    /// The newest occurrence that has a row, or that was passed over for good.
    until: Option<i64>,
    /// The next occurrence that must have a row.
    next: Option<i64>,
    /// The clock was wrong once: occurrences with a row from that time are passed over.
    pub(crate) rewound: bool,
    /// Since then the row may still be as the wrong clock has left it: turns of a few items take several to plan all tasks again.
    pub(crate) awaits: bool,
    /// `next_run` was set to this by SQL, and no scheduler has resolved it.
    sql_next: Option<i64>,
    /// When it was completed.
    pub(crate) completed_at: Option<i64>,
    /// How many starts its limits leave in this step, at least and at most.
    starts_left: Option<(usize, usize)>,
}

impl TaskModel {
    fn new(row: &TaskRow, now: i64) -> Self {
        let calendar = Calendar::of(row, now);
        let new = TaskModel {
            calendar,
            created: now,
            since: now,
            until: None,
            next: None,
            rewound: false,
            awaits: false,
            sql_next: None,
            completed_at: None,
            starts_left: None,
        };
        let next = new.first(row);
        TaskModel { next, ..new }
    }

    /// Returns the first occurrence after an instant, within the task's bounds.
    fn after(&self, row: &TaskRow, at: i64) -> Option<i64> {
        let at = row.starts.map_or(at, |starts| at.max(starts - 1));
        self.calendar.after(at).filter(|next| row.ends.is_none_or(|ends| *next <= ends))
    }

    /// Returns the occurrence after one that was resolved.
    fn following(&self, row: &TaskRow, at: i64) -> Option<i64> {
        match self.calendar {
            // It has one occurrence, wherever an edit has moved it.
            Calendar::Once(_) | Calendar::Delay(_) => None,
            _ => self.after(row, at),
        }
    }

    /// Returns the first occurrence of a task that counts from `since`.
    fn first(&self, row: &TaskRow) -> Option<i64> {
        match self.calendar {
            Calendar::Once(at) => Some(at)
                .filter(|at| self.until.is_none_or(|until| *at > until))
                .filter(|at| row.starts.is_none_or(|starts| *at >= starts))
                .filter(|at| row.ends.is_none_or(|ends| *at <= ends)),
            Calendar::Delay(_) => row.next_run,
            _ => self.after(row, self.until.map_or(self.since, |until| until.max(self.since))),
        }
    }

    fn due(&self, row: &TaskRow, now: i64) -> Vec<i64> {
        std::iter::successors(self.next, |at| self.following(row, *at)).take_while(|at| *at <= now).collect()
    }
}

impl History {
    pub(crate) fn check_occurrences(&mut self, step: &Step<'_>) -> Check {
        self.models.retain(|task, _| step.after.tasks.contains_key(task));
        for (id, after) in &step.after.tasks {
            let before = step.before.tasks.get(id);
            let subject = step.action.task() == Some(&after.name);
            let most = self.most_attempts.entry(*id).or_default();
            *most = (*most).max(after.max_attempts);
            let quiet = !subject && before == Some(after) && step.changed.iter().all(|pair| task_of(pair) != *id);
            let model = match before {
                Some(_) => self.models.get(id).expect("a model"),
                None if subject => self.models.entry(*id).or_insert_with(|| TaskModel::new(after, step.now)),
                None => return Err(format!("task {:?} was added by no action", after.name)),
            };
            let due = step.turn().is_some() && model.next.is_some_and(|next| next <= step.now);
            let is_done = model.awaits && step.turn().is_some_and(Turn::sees_to_all);
            if quiet && !due && !is_done && !step.rewound() {
                continue;
            }
            let mut model = model.clone();
            model.starts_left = self.limits.left(before.unwrap_or(after), step.now);
            model.apply(step, before.unwrap_or(after), after, subject).map_err(|broken| {
                format!("task {:?} ({} {}): {broken}\n  {before:?}\n  {after:?}", after.name, after.kind, after.value)
            })?;
            self.models.insert(*id, model);
        }
        Ok(())
    }

    /// Whether an occurrence of a task is due and has no row.
    pub(crate) fn has_due_occurrence(&self, task: i64, now: i64) -> bool {
        self.models.get(&task).and_then(|model| model.next).is_some_and(|next| next <= now)
    }
}

fn task_of(pair: &(Option<&RunRow>, Option<&RunRow>)) -> i64 {
    pair.1.or(pair.0).map_or(0, |run| run.task)
}

impl TaskModel {
    fn apply(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, subject: bool) -> Check {
        let is_new = !step.before.tasks.contains_key(&after.id);
        let until = self.until;
        if step.rewound() {
            self.rewind(before, step.now);
        }
        let by_sql = by_sql(step.action);
        let moved = before.schedule() != after.schedule();
        let status_changed = before.status != after.status && matches!(&*after.status, "active" | "paused");
        if subject && (by_sql && (moved || status_changed) || matches!(step.action, Action::NextRunSet(_))) {
            self.check_change_by_sql(step, before)?;
        } else {
            let delayed = before.kind == "delay" && matches!(step.action, Action::Triggered(_));
            let must = match step.action {
                // The rows may be written and deleted in one turn, and what has a row from a wrong clock is passed over.
                Action::Turn(turn) => {
                    // A row that waits to be planned, since the clock was wrong, was not resolved.
                    let is_over = after.planned
                        && before.next_run != after.next_run
                        && after.next_run.is_none_or(|at| at > step.now);
                    let passes_over = step.fresh.events.iter().any(|(kind, _, _)| kind == "passed_over");
                    turn.sees_to_all() || is_over && (passes_over || step.is_full(before.id))
                }
                Action::Edited { .. } => subject && moved,
                Action::Paused { .. } => subject,
                _ => subject && delayed,
            };
            let active = !before.is_halted() || step.rewound() && after.is_active();
            self.resolve(step, before, must && active && !is_new)?;
        }
        if !is_new {
            self.change(step, before, after, subject, moved)?;
        }
        if after.status != "completed" {
            self.completed_at = None;
        } else if before.status != "completed" || is_new || self.until > until {
            // Also if it had been completed, and ran again because its next_run was set. A completion time from a wrong
            // clock is discarded.
            self.completed_at = self.completed_at.filter(|_| !self.rewound).max(Some(step.now));
        }
        self.compare(step, before, after)
    }

    /// The clock was wrong: the schedule counts from now.
    fn rewind(&mut self, row: &TaskRow, now: i64) {
        // A task that is completed by the right clock stays so, even if its next_run was set since.
        let is_completed = row.status == "completed" && row.ends.is_some_and(|ends| ends <= now);
        let stays_completed = is_completed && self.until.max(Some(self.since)).max(Some(self.created)) <= Some(now);
        self.created = self.created.min(now);
        self.calendar = Calendar::of(row, self.created);
        self.since = self.since.min(now);
        (self.rewound, self.awaits) = (true, true);
        match self.calendar {
            Calendar::Once(_) => {
                let sql_next = self.sql_next.filter(|at| row.next_run == Some(*at));
                self.until = self.until.map(|until| until.min(now).min(sql_next.map_or(now, |at| at - 1)));
                self.next = sql_next.or(self.next);
            }
            _ if stays_completed => {}
            _ if row.is_active() || row.status == "completed" => {
                self.until = Some(now);
                self.next = self.after(row, now);
            }
            _ => self.until = self.until.map(|until| until.min(now)),
        }
    }

    /// A change by SQL records at most one missed occurrence, if one was due.
    fn check_change_by_sql(&mut self, step: &Step<'_>, before: &TaskRow) -> Check {
        let is_set = matches!(step.action, Action::NextRunSet(_));
        // A next_run that was set in an invalid task is resolved if the task is repaired before a scheduler sees it.
        let next =
            if matches!(self.calendar, Calendar::Invalid | Calendar::Unknown) { self.sql_next } else { self.next };
        let due = next.filter(|at| *at <= step.now && !before.is_halted() && !(is_set && before.kind == "once"));
        let due = due.filter(|at| self.until.is_none_or(|until| *at > until) && before.next_run == Some(*at));
        let due = due.filter(|at| !is_set || *at < step.now);
        let had_a_row = due.is_some_and(|at| has_a_row(step, before.id, at));
        let rows = rows(step, before.id);
        match (due, &rows[..]) {
            (None, []) => {}
            // A row that waits to be planned, since the clock was wrong, shows a later occurrence as resolved.
            (Some(at), []) if had_a_row || self.awaits => self.until = self.until.max(Some(at)),
            (Some(at), [row]) if row.0.scheduled_for == at && row.0.status == RunStatus::Missed && row.1 == 1 => {
                self.until = self.until.max(Some(at));
            }
            _ => return Err(format!("changed by SQL while {due:?} was due, and recorded as {rows:?}")),
        }
        Ok(())
    }

    /// All due occurrences become rows, or none.
    fn resolve(&mut self, step: &Step<'_>, before: &TaskRow, must: bool) -> Check {
        let rows = rows(step, before.id);
        if let (Calendar::Delay(delay), None, [(row, _), ..]) = (&self.calendar, self.next, &rows[..]) {
            // Its last run ended in this step, or a scheduler saw it for the first time, and it was due at once.
            self.next = Some(row.scheduled_for).filter(|at| self.counts(step, before, *delay, *at));
        }
        let due = self.due(before, step.now);
        if rows.is_empty() && (!must || due.is_empty()) {
            return Ok(());
        }
        if due.is_empty() {
            return Err(format!("nothing is due, and rows were written: {rows:?}"));
        }
        // A delay that was planned long after the clock was wrong counts from what has a row from that time.
        let is_delayed = matches!((&self.calendar, &rows[..]), (Calendar::Delay(delay), [(row, _)])
            if self.counts(step, before, *delay, row.scheduled_for)
                || before.next_run.is_some_and(|resolved| resolved + delay == row.scheduled_for));
        let checked = if self.rewound && is_delayed {
            Ok(())
        } else if self.rewound {
            covered(step, before.id, &due, &rows)
        } else {
            policies::check(step, before, self.since, self.starts_left, &due, &rows)
        };
        // Of too many rows one may have been written and pruned in one turn.
        if checked.is_err() && !step.is_full(before.id) {
            return checked;
        }
        let newest = due.last().copied().max(rows.last().filter(|_| is_delayed).map(|(row, _)| row.scheduled_for));
        self.until = self.until.max(newest);
        self.next = newest.and_then(|newest| self.following(before, newest));
        self.sql_next = None;
        Ok(())
    }

    /// Applies what the action, or the task's own policy, has changed in the schedule.
    fn change(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, subject: bool, moved: bool) -> Check {
        let restarted = match step.action {
            Action::Edited { .. } => subject && moved,
            Action::Paused { .. } => subject && before.status != "paused",
            Action::Resumed { .. } => subject && before.status == "paused",
            _ => false,
        };
        // A wrong clock may have completed it: it becomes active, and a dead run pauses it in the same turn.
        let was_active = before.is_active() || (self.awaits && before.status == "completed");
        let by_itself = step.turn().is_some() && was_active && after.status == "paused";
        if by_itself && after.pause_after.is_none() {
            return Err("paused without a reason".to_owned());
        }
        if restarted || by_itself {
            // Strictly later: the program recognises its own change by it.
            let last = if self.awaits { self.since } else { before.active_since };
            self.since = if step.now > last { step.now } else { last + 1 };
            if by_sql(step.action) {
                self.since = step.now;
            }
            self.calendar = Calendar::of(after, self.created);
            self.next = if after.status == "paused" { None } else { self.first(after) };
        }
        if subject && matches!(step.action, Action::NextRunSet(_)) && !before.is_halted() {
            self.sql_next = Some(step.now);
            self.next = match self.calendar {
                // It becomes invalid, and does not run.
                Calendar::Invalid | Calendar::Unknown => None,
                Calendar::Delay(_) => self.sql_next.filter(|at| self.until.is_none_or(|until| *at > until)),
                // No occurrence is resolved twice, and those within a pause are passed over.
                _ if self.until.is_some_and(|until| step.now <= until) => self.first(after),
                _ => self.sql_next,
            };
        }
        Ok(())
    }

    /// Compares the model with the row, once a scheduler has seen the row.
    fn compare(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow) -> Check {
        let planned = |row: &TaskRow| (row.status.clone(), row.next_run, row.planned, row.active_since);
        let awaited = std::mem::take(&mut self.awaits);
        // The end of a run may plan it before, as the wrong clock has left it.
        let by_the_end = matches!(self.calendar, Calendar::Delay(_)) && before.next_run.is_none();
        let is_left = planned(before) == planned(after) || after.active_since > step.now || by_the_end;
        if awaited && !step.turn().is_some_and(Turn::sees_to_all) && is_left {
            self.awaits = true;
            return Ok(());
        }
        let is_invalid = matches!(self.calendar, Calendar::Invalid);
        if is_invalid
            && step.turn().is_some_and(|turn| turn.sees_to_all())
            && matches!(&*after.status, "active" | "completed")
        {
            return Err("the row is invalid, and a turn did not mark it".to_owned());
        }
        if after.status == "invalid" && !is_invalid {
            return Err("a valid task was marked invalid".to_owned());
        }
        // With new zone data a local time in the future, here because the clock went back, is planned again.
        let lies_ahead = self.sql_next.is_some_and(|at| at > step.now) && self.next == self.sql_next;
        if lies_ahead && !after.planned && after.next_run.is_none() && after.zone != "UTC" {
            self.sql_next = None;
            self.next = self.first(after);
        }
        if after.status == "invalid" || !after.planned {
            // A task that the wrong clock has completed counts from now; a small turn leaves its plan to the next one.
            self.awaits = awaited && after.status != "invalid";
            if matches!(self.calendar, Calendar::Delay(_)) {
                let is_new = |at: &i64| self.until.is_none_or(|until| *at > until);
                self.next = after.next_run.filter(is_new).filter(|_| !after.is_halted());
            }
            return Ok(());
        }
        if after.active_since != self.since && !awaited {
            return Err(format!("it counts from {}, expected {}", after.active_since, self.since));
        }
        self.since = after.active_since;
        if let Calendar::Delay(delay) = self.calendar {
            return self.compare_delay(step, before, after, delay);
        }
        if awaited && self.next != after.next_run && self.have_rows_until(step, after) {
            self.next = after.next_run;
        }
        let expected = match self.calendar {
            _ if self.next.is_some() || after.status == "paused" => &after.status,
            Calendar::Manual => "active",
            _ => "completed",
        };
        let wrongly_over = after.status == "completed" && self.next.is_some();
        let waits_to_be_seen = self.sql_next.is_some_and(|at| after.next_run == Some(at));
        if !waits_to_be_seen {
            self.sql_next = None;
        }
        if (after.next_run != self.next && !waits_to_be_seen) || after.status != expected || wrongly_over {
            return Err(format!("it is {} and due at {:?}, expected {:?}", after.status, after.next_run, self.next));
        }
        Ok(())
    }

    /// Whether all occurrences before `next_run` have rows of the wrong clock. A turn takes them for resolved if it plans the task when the
    /// right clock shows a later time: no scheduler ran meanwhile.
    fn have_rows_until(&self, step: &Step<'_>, row: &TaskRow) -> bool {
        let has_a_row = |at: i64| {
            let is = |run: &RunRow| run.task == row.id && run.is_scheduled();
            step.before.runs.values().any(|run| is(run) && (run.scheduled_for..=run.newest()).contains(&at))
        };
        let mut at = self.next;
        while let Some(one) = at.filter(|at| Some(*at) < row.next_run && has_a_row(*at)) {
            at = self.following(row, one);
        }
        at.is_some() && at == row.next_run
    }

    /// A delay counts from the end of a run, or from when it was resolved, resumed or edited; it is unknown while a run is
    /// unfinished.
    fn compare_delay(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, delay: i64) -> Check {
        self.next = after.next_run.filter(|at| self.until.is_none_or(|until| *at > until));
        if !after.is_active() {
            return if after.next_run.is_none() { Ok(()) } else { Err("it is due and inactive".to_owned()) };
        }
        let unfinished = step.after.unfinished().find(|run| run.task == after.id);
        let Some(next) = after.next_run else {
            let waits = unfinished.map(|_| ());
            return waits.ok_or_else(|| "it waits for the end of a run, and there is none".to_owned());
        };
        if before.next_run == Some(next) && before.is_active() {
            return Ok(());
        }
        if let Some(run) = unfinished.filter(|_| self.sql_next.is_none()) {
            return Err(format!("it is due at {next} though run {} is unfinished", run.id));
        }
        if step.turn().is_some_and(|turn| turn.sees_to_all()) && next <= step.now {
            return Err(format!("it was due at {next}, and a turn did not resolve it"));
        }
        if self.counts(step, after, delay, next) || self.sql_next == Some(next) {
            return Ok(());
        }
        Err(format!("it is due at {next}, which is not {delay} ms after the end of a run, a resume or an edit"))
    }

    /// Whether a delay may count to `next`: from the end of a run, or from a moment without an unfinished run.
    fn counts(&self, step: &Step<'_>, row: &TaskRow, delay: i64, next: i64) -> bool {
        let ends = step.after.runs.values().filter(|run| run.task == row.id).filter_map(|run| run.finished_at);
        let bound = |at: i64| row.starts.map_or(at, |starts| at.max(starts));
        ends.chain([step.now, row.active_since, self.since]).chain(self.until).any(|from| bound(from + delay) == next)
    }
}

fn by_sql(action: &Action) -> bool {
    matches!(
        action,
        Action::Edited { by_sql: true, .. }
            | Action::Paused { by_sql: true, .. }
            | Action::Resumed { by_sql: true, .. }
    )
}

/// Whether a scheduled run's row begins with this occurrence.
fn has_a_row(step: &Step<'_>, task: i64, at: i64) -> bool {
    let is = |run: &RunRow| run.task == task && run.is_scheduled() && run.scheduled_for == at;
    step.before.runs.values().any(|run| is(run))
}

/// Returns the rows written for a task's schedule, oldest first, each with the number of occurrences added to it. A row that
/// has grown comes first, since only the newest row does.
pub(crate) fn rows<'a>(step: &Step<'a>, task: i64) -> Vec<(&'a RunRow, i64)> {
    let mut rows = Vec::new();
    for (before, after) in &step.changed {
        let Some(after) = after.filter(|run| run.task == task && run.is_scheduled()) else { continue };
        match before {
            None => rows.push((after.scheduled_for, (after, after.occurrences))),
            Some(before) if after.occurrences > before.occurrences => {
                rows.push((i64::MIN, (after, after.occurrences - before.occurrences)));
            }
            _ => {}
        }
    }
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// After the clock was wrong: each due occurrence has a row, old or new, and each new row has a due occurrence.
fn covered(step: &Step<'_>, task: i64, due: &[i64], new: &[(&RunRow, i64)]) -> Check {
    let old: Vec<&RunRow> =
        step.before.runs.values().map(AsRef::as_ref).filter(|run| run.task == task && run.is_scheduled()).collect();
    for at in due {
        let spans = |run: &&&RunRow| (run.scheduled_for..=run.newest()).contains(at);
        // Of a row that has grown only the added part is new.
        let begins = |run: &RunRow, count: i64| match step.before.runs.contains_key(&run.id) {
            false => run.scheduled_for,
            true => {
                let newest = due.partition_point(|at| *at <= run.newest());
                due[newest.saturating_sub(usize::try_from(count).expect("a count"))]
            }
        };
        let new = new.iter().filter(|(run, count)| (begins(run, *count)..=run.newest()).contains(at)).count();
        let old = old.iter().filter(spans).count();
        if new > 1 || new + old == 0 {
            return Err(format!("the occurrence {at} has {new} new rows, and had {old}"));
        }
    }
    for (run, _) in new {
        if run.origin != Origin::Manual && (!due.contains(&run.newest()) || run.scheduled_for > run.newest()) {
            return Err(format!("run {} is of no occurrence: {run:?}", run.id));
        }
    }
    Ok(())
}
