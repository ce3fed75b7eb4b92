//! The occurrences: each that falls due while its task is active has one row, run, skip or miss; none has two, and no row is
//! without one.

use duly::{Origin, RunStatus};

use crate::simulation::calendar::Calendar;
use crate::simulation::history::{Check, Deed, History, Step};
use crate::simulation::policies;
use crate::simulation::rows::{RunRow, TaskRow};

/// What is believed of a task.
#[derive(Clone)]
pub(crate) struct Promise {
    calendar: Calendar,
    created: i64,
    since: i64,
    /// The newest occurrence that has a row, or that was passed over for good.
    until: Option<i64>,
    /// The next occurrence that must have one.
    next: Option<i64>,
    /// The clock was wrong once: what has a row from then is passed over.
    pub(crate) rewound: bool,
    /// Somebody has set `next_run` to this, and no scheduler has resolved it.
    by_hand: Option<i64>,
    /// Since when it is completed.
    pub(crate) over_since: Option<i64>,
}

impl Promise {
    fn new(row: &TaskRow, now: i64) -> Self {
        let calendar = Calendar::of(row, now);
        let (until, next, by_hand, over_since) = (None, None, None, None);
        let new = Promise { calendar, created: now, since: now, until, next, rewound: false, by_hand, over_since };
        let next = new.first(row);
        Promise { next, ..new }
    }

    /// The first occurrence after an instant, within the task's bounds.
    fn after(&self, row: &TaskRow, at: i64) -> Option<i64> {
        let at = row.starts.map_or(at, |starts| at.max(starts - 1));
        self.calendar.after(at).filter(|next| row.ends.is_none_or(|ends| *next <= ends))
    }

    /// The occurrence that follows one that has been met.
    fn following(&self, row: &TaskRow, at: i64) -> Option<i64> {
        match self.calendar {
            // Wherever somebody has moved it, there is one.
            Calendar::Once(_) | Calendar::Delay(_) => None,
            _ => self.after(row, at),
        }
    }

    /// The first occurrence of a task that counts from `since`.
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

    /// All that is due, oldest first.
    fn due(&self, row: &TaskRow, now: i64) -> Vec<i64> {
        std::iter::successors(self.next, |at| self.following(row, *at)).take_while(|at| *at <= now).collect()
    }
}

impl History {
    pub(crate) fn check_promises(&mut self, step: &Step<'_>) -> Check {
        self.promises.retain(|task, _| step.after.tasks.contains_key(task));
        for (id, after) in &step.after.tasks {
            let before = step.before.tasks.get(id);
            let subject = step.deed.task() == Some(&after.name);
            let most = self.most_attempts.entry(*id).or_default();
            *most = (*most).max(after.max_attempts);
            let quiet = !subject && before == Some(after) && step.changed.iter().all(|pair| task_of(pair) != *id);
            let promise = match before {
                Some(_) => self.promises.get(id).expect("a promise"),
                None if subject => self.promises.entry(*id).or_insert_with(|| Promise::new(after, step.now)),
                None => return Err(format!("task {:?} has come from nowhere", after.name)),
            };
            let due = step.turn().is_some() && promise.next.is_some_and(|next| next <= step.now);
            if quiet && !due && !step.rewound() {
                continue;
            }
            let mut promise = promise.clone();
            promise.live_through(step, before.unwrap_or(after), after, subject).map_err(|broken| {
                format!("task {:?} ({} {}): {broken}\n  {before:?}\n  {after:?}", after.name, after.kind, after.value)
            })?;
            self.promises.insert(*id, promise);
        }
        Ok(())
    }

    /// Whether an occurrence of a task is due that has no row.
    pub(crate) fn owes(&self, task: i64, now: i64) -> bool {
        self.promises.get(&task).and_then(|promise| promise.next).is_some_and(|next| next <= now)
    }
}

fn task_of(pair: &(Option<&RunRow>, Option<&RunRow>)) -> i64 {
    pair.1.or(pair.0).map_or(0, |run| run.task)
}

impl Promise {
    fn live_through(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, subject: bool) -> Check {
        let is_new = !step.before.tasks.contains_key(&after.id);
        let until = self.until;
        if step.rewound() {
            self.rewind(before, step.now);
        }
        let by_sql = matches!(
            step.deed,
            Deed::Edited { by_sql: true, .. } | Deed::Paused { by_sql: true, .. } | Deed::Resumed { by_sql: true, .. }
        );
        let moved = before.schedule() != after.schedule();
        let turned = before.status != after.status && matches!(&*after.status, "active" | "paused");
        if subject && (by_sql && (moved || turned) || matches!(step.deed, Deed::Hastened(_))) {
            self.told_by_trigger(step, before)?;
        } else {
            let delayed = before.kind == "delay" && matches!(step.deed, Deed::Triggered(_));
            let must = match step.deed {
                Deed::Turn(turn) => turn.sees_to_all(),
                Deed::Edited { .. } => subject && moved,
                Deed::Paused { .. } => subject,
                _ => subject && delayed,
            };
            let active = !before.rests() || step.rewound() && after.is_active();
            self.resolve(step, before, must && active && !is_new)?;
        }
        if !is_new {
            self.change(step, before, after, subject, moved)?;
        }
        if after.status != "completed" {
            self.over_since = None;
        } else if before.status != "completed" || is_new || self.until > until {
            // Also of one that had been over, and ran again for somebody who set its next_run.
            // What a wrong clock showed when it was over first counts no more.
            self.over_since = self.over_since.filter(|_| !self.rewound).max(Some(step.now));
        }
        self.compare(step, before, after)
    }

    /// The clock was wrong: the schedule counts from now.
    fn rewind(&mut self, row: &TaskRow, now: i64) {
        // What was over by the right clock stays as it is, also if a user has set its next_run since.
        let is_over = row.status == "completed" && row.ends.is_some_and(|ends| ends <= now);
        let stands = is_over && self.until.max(Some(self.since)).max(Some(self.created)) <= Some(now);
        self.created = self.created.min(now);
        self.calendar = Calendar::of(row, self.created);
        self.since = self.since.min(now);
        self.rewound = true;
        match self.calendar {
            Calendar::Once(_) => {
                let by_hand = self.by_hand.filter(|at| row.next_run == Some(*at));
                self.until = self.until.map(|until| until.min(now).min(by_hand.map_or(now, |at| at - 1)));
                self.next = by_hand.or(self.next);
            }
            _ if stands => {}
            _ if row.is_active() || row.status == "completed" => {
                self.until = Some(now);
                self.next = self.after(row, now);
            }
            _ => self.until = self.until.map(|until| until.min(now)),
        }
    }

    /// A change by SQL tells of one occurrence, if one was due.
    fn told_by_trigger(&mut self, step: &Step<'_>, before: &TaskRow) -> Check {
        let hastened = matches!(step.deed, Deed::Hastened(_));
        // What somebody has set beside nonsense is told, should sense come before a scheduler.
        let next =
            if matches!(self.calendar, Calendar::Nonsense | Calendar::Unknown) { self.by_hand } else { self.next };
        let due = next.filter(|at| *at <= step.now && !before.rests() && !(hastened && before.kind == "once"));
        let due = due.filter(|at| self.until.is_none_or(|until| *at > until) && before.next_run == Some(*at));
        let due = due.filter(|at| !hastened || *at < step.now);
        let had_a_row = due.is_some_and(|at| has_a_row(step, before.id, at));
        let rows = rows(step, before.id);
        match (due, &rows[..]) {
            (None, []) => {}
            (Some(at), []) if had_a_row => self.until = self.until.max(Some(at)),
            (Some(at), [row]) if row.0.scheduled_for == at && row.0.status == RunStatus::Missed && row.1 == 1 => {
                self.until = self.until.max(Some(at));
            }
            _ => return Err(format!("changed by SQL while {due:?} was due, and told by {rows:?}")),
        }
        Ok(())
    }

    /// What is due becomes rows, all of it or nothing.
    fn resolve(&mut self, step: &Step<'_>, before: &TaskRow, must: bool) -> Check {
        let rows = rows(step, before.id);
        if let (Calendar::Delay(delay), None, [(row, _), ..]) = (&self.calendar, self.next, &rows[..]) {
            // Its last run was over only now, or a scheduler has only now looked at it, and it was due at once.
            self.next = Some(row.scheduled_for).filter(|at| self.counts(step, before, *delay, *at));
        }
        let due = self.due(before, step.now);
        if rows.is_empty() && (!must || due.is_empty()) {
            return Ok(());
        }
        if due.is_empty() {
            return Err(format!("nothing is due, and rows were made of it: {rows:?}"));
        }
        let judged = if self.rewound {
            covered(step, before.id, &due, &rows)
        } else {
            policies::check(step, before, self.since, &due, &rows)
        };
        // Of too many rows one may have been made and removed in one turn.
        if judged.is_err() && !step.is_full(before.id) {
            return judged;
        }
        let newest = due.last().copied();
        self.until = self.until.max(newest);
        self.next = newest.and_then(|newest| self.following(before, newest));
        self.by_hand = None;
        Ok(())
    }

    /// What the deed, or the task's own policy, has made of the schedule.
    fn change(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, subject: bool, moved: bool) -> Check {
        let restarted = match step.deed {
            Deed::Edited { .. } => subject && moved,
            Deed::Paused { .. } => subject && before.status != "paused",
            Deed::Resumed { .. } => subject && before.status == "paused",
            _ => false,
        };
        let by_itself = step.turn().is_some() && before.is_active() && after.status == "paused";
        if by_itself && after.pause_after.is_none() {
            return Err("paused by nobody".to_owned());
        }
        if restarted || by_itself {
            // Never back: by its having moved the program tells its own change.
            self.since = if step.now > before.active_since { step.now } else { before.active_since + 1 };
            if by_sql(step.deed) {
                self.since = step.now;
            }
            self.calendar = Calendar::of(after, self.created);
            self.next = if after.status == "paused" { None } else { self.first(after) };
        }
        if subject && matches!(step.deed, Deed::Hastened(_)) && !before.rests() {
            self.by_hand = Some(step.now);
            self.next = match self.calendar {
                // It is told to be invalid, and does not run.
                Calendar::Nonsense | Calendar::Unknown => None,
                Calendar::Delay(_) => self.by_hand.filter(|at| self.until.is_none_or(|until| *at > until)),
                // No occurrence is resolved twice, and what fell in a pause is over.
                _ if self.until.is_some_and(|until| step.now <= until) => self.first(after),
                _ => self.by_hand,
            };
        }
        Ok(())
    }

    /// What is believed is what the row says, as soon as a scheduler has looked at it.
    fn compare(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow) -> Check {
        let is_nonsense = matches!(self.calendar, Calendar::Nonsense);
        if is_nonsense
            && step.turn().is_some_and(|turn| turn.sees_to_all())
            && matches!(&*after.status, "active" | "completed")
        {
            return Err("it cannot be used, and a turn left it so".to_owned());
        }
        if after.status == "invalid" && !is_nonsense {
            return Err("it is invalid, and nothing is wrong with it".to_owned());
        }
        // Zone data was renewed: a local time that lies ahead, here since the clock went back, is planned anew.
        let lies_ahead = self.by_hand.is_some_and(|at| at > step.now) && self.next == self.by_hand;
        if lies_ahead && !after.planned && after.next_run.is_none() && after.zone != "UTC" {
            self.by_hand = None;
            self.next = self.first(after);
        }
        if after.status == "invalid" || !after.planned {
            if matches!(self.calendar, Calendar::Delay(_)) {
                let is_new = |at: &i64| self.until.is_none_or(|until| *at > until);
                self.next = after.next_run.filter(is_new).filter(|_| !after.rests());
            }
            return Ok(());
        }
        if after.active_since != self.since && !step.rewound() {
            return Err(format!("it counts from {}, expected {}", after.active_since, self.since));
        }
        self.since = after.active_since;
        if let Calendar::Delay(delay) = self.calendar {
            return self.compare_delay(step, before, after, delay);
        }
        let expected = match self.calendar {
            _ if self.next.is_some() || after.status == "paused" => &after.status,
            Calendar::Manual => "active",
            _ => "completed",
        };
        let wrongly_over = after.status == "completed" && self.next.is_some();
        let waits_to_be_seen = self.by_hand.is_some_and(|at| after.next_run == Some(at));
        if !waits_to_be_seen {
            self.by_hand = None;
        }
        if (after.next_run != self.next && !waits_to_be_seen) || after.status != expected || wrongly_over {
            return Err(format!("it is {} and due at {:?}, expected {:?}", after.status, after.next_run, self.next));
        }
        Ok(())
    }

    /// A delay counts from the end of a run, or from when it was resolved, resumed or edited; while a run is unfinished
    /// nobody knows.
    fn compare_delay(&mut self, step: &Step<'_>, before: &TaskRow, after: &TaskRow, delay: i64) -> Check {
        self.next = after.next_run.filter(|at| self.until.is_none_or(|until| *at > until));
        if !after.is_active() {
            return if after.next_run.is_none() { Ok(()) } else { Err("it rests and is due".to_owned()) };
        }
        let unfinished = step.after.unfinished().find(|run| run.task == after.id);
        let Some(next) = after.next_run else {
            let waits = unfinished.map(|_| ());
            return waits.ok_or_else(|| "it waits for the end of a run, and there is none".to_owned());
        };
        if before.next_run == Some(next) && before.is_active() {
            return Ok(());
        }
        if let Some(run) = unfinished.filter(|_| self.by_hand.is_none()) {
            return Err(format!("it is due at {next} though run {} is unfinished", run.id));
        }
        if step.turn().is_some_and(|turn| turn.sees_to_all()) && next <= step.now {
            return Err(format!("it was due at {next}, and a turn left it so"));
        }
        if self.counts(step, after, delay, next) || self.by_hand == Some(next) {
            return Ok(());
        }
        Err(format!("it is due at {next}, which is {delay} ms after nothing that has happened"))
    }

    /// Whether a delay could be counted so: from the end of a run, or from a moment at which nothing was unfinished.
    fn counts(&self, step: &Step<'_>, row: &TaskRow, delay: i64, next: i64) -> bool {
        let ends = step.after.runs.values().filter(|run| run.task == row.id).filter_map(|run| run.finished_at);
        let bound = |at: i64| row.starts.map_or(at, |starts| at.max(starts));
        ends.chain([step.now, row.active_since, self.since]).chain(self.until).any(|from| bound(from + delay) == next)
    }
}

fn by_sql(deed: &Deed) -> bool {
    matches!(
        deed,
        Deed::Edited { by_sql: true, .. } | Deed::Paused { by_sql: true, .. } | Deed::Resumed { by_sql: true, .. }
    )
}

/// Whether a row of a scheduled run begins with this occurrence.
fn has_a_row(step: &Step<'_>, task: i64, at: i64) -> bool {
    let is = |run: &RunRow| run.task == task && run.is_scheduled() && run.scheduled_for == at;
    step.before.runs.values().any(|run| is(run))
}

/// What was written of a task's schedule, oldest first: the row, and how many occurrences it stands for that it did not
/// stand for before. A row that has grown comes first, since only the newest does.
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

/// After the clock was wrong: each occurrence that is due has a row, old or new, and no new row is of another.
fn covered(step: &Step<'_>, task: i64, due: &[i64], new: &[(&RunRow, i64)]) -> Check {
    let old: Vec<&RunRow> =
        step.before.runs.values().map(AsRef::as_ref).filter(|run| run.task == task && run.is_scheduled()).collect();
    for at in due {
        let spans = |run: &&&RunRow| (run.scheduled_for..=run.newest()).contains(at);
        // A row that has grown is new where it was not before.
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
