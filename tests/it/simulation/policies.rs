//! What becomes of due occurrences: misfire and overlap policies, implemented from the contract.

use std::fmt::Debug;

use chrono::{Datelike, TimeZone, Timelike};
use duly::{Misfire, Origin, Overlap, RunStatus};

use crate::simulation::actions::EXCEPTED_DATES;
use crate::simulation::history::{Check, Step};
use crate::simulation::rows::{RunRow, TaskRow};

/// An expected result of occurrences, before the overlap policy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    /// One row for all of them.
    Miss { first: i64, last: i64, count: i64 },
    /// A run, or a skip if the overlap policy says so.
    Admit { at: i64, late: bool },
    /// A skip, since the task excludes its time.
    Exclude { at: i64 },
}

/// Returns which column of a task excludes an occurrence.
pub(crate) fn excluded(task: &TaskRow, at: i64) -> Option<&'static str> {
    let zone: chrono_tz::Tz = task.only_between.as_ref().and_then(|_| task.zone.parse().ok())?;
    let local = zone.timestamp_millis_opt(at).single().expect("an instant").naive_local();
    let date = (local.year(), local.month(), local.day());
    if task.except_on.is_some() && EXCEPTED_DATES.contains(&date) {
        return Some("except_on");
    }
    let minute = local.hour() * 60 + local.minute();
    let is_within = !(4 * 60 + 30..22 * 60 + 15).contains(&minute) || (9 * 60..13 * 60 + 30).contains(&minute);
    (!is_within).then_some("only_between")
}

/// Whether a row stands for occurrences that its task excludes.
pub(crate) fn is_excluded(row: &RunRow) -> bool {
    row.attempt == 0
        && row.error.as_ref().is_some_and(|error| error.contains("(only_between)") || error.contains("(except_on)"))
}

/// Whether a row stands for occurrences for which no start was left.
pub(crate) fn is_limited(row: &RunRow) -> bool {
    row.attempt == 0 && row.error.as_ref().is_some_and(|error| error.starts_with("no start was left"))
}

/// Checks the rows that were written for the occurrences that are due, for a task that counts from `since`. `starts`: how many its limits leave, at least and at
/// most, if it skips the others.
pub(crate) fn check(
    step: &Step<'_>,
    task: &TaskRow,
    since: i64,
    starts: Option<(usize, usize)>,
    due: &[i64],
    rows: &[(&RunRow, i64)],
) -> Check {
    let db = TestDb::of(step, task);
    let (least, most) = starts.unwrap_or((usize::MAX, usize::MAX));
    let mut checked = Ok(());
    // If the number of waiting runs, or that of starts, is uncertain, one of the possible numbers must fit.
    for (waiting, starts) in (least..=most).flat_map(|starts| (db.waiting.0..=db.waiting.1).map(move |n| (n, starts))) {
        let items = expected(task, since, due, step.now, waiting, starts);
        checked = check_rows(TestDb { starts, ..db.clone() }, task, &items, rows);
        if checked.is_ok() {
            break;
        }
    }
    checked
}

fn expected(task: &TaskRow, since: i64, due: &[i64], now: i64, waiting: usize, starts: usize) -> Vec<Item> {
    let is_late = |at: &i64| (*at).max(since) < now - task.grace;
    let open: Vec<i64> = due.iter().copied().filter(|at| excluded(task, *at).is_none()).collect();
    let (late, timely): (Vec<i64>, Vec<i64>) = open.iter().partition(|at| is_late(at));
    let runs = match task.misfire {
        _ if excluded(task, now).is_some() || starts == 0 => 0,
        Misfire::RunOnce => usize::from(timely.is_empty()),
        // The newest count first: those within the grace. If runs wait for each other, waiting runs count too.
        Misfire::RunAll => {
            let waiting = if task.overlap == Overlap::BufferAll { waiting } else { 0 };
            task.limit.saturating_sub(waiting + timely.len())
        }
        _ => 0,
    };
    let runs = runs.min(starts);
    // Of those that are late, the oldest.
    let newest_missed = late[..late.len().saturating_sub(runs)].last();
    let mut items = Vec::new();
    for at in due {
        match items.last_mut() {
            _ if excluded(task, *at).is_some() => items.push(Item::Exclude { at: *at }),
            Some(Item::Miss { last, count, .. }) if newest_missed >= Some(at) => (*last, *count) = (*at, *count + 1),
            _ if newest_missed >= Some(at) => items.push(Item::Miss { first: *at, last: *at, count: 1 }),
            _ => items.push(Item::Admit { at: *at, late: is_late(at) }),
        }
    }
    items
}

/// Whether the rows are those of the items, in order.
fn check_rows(mut db: TestDb, task: &TaskRow, items: &[Item], rows: &[(&RunRow, i64)]) -> Check {
    let mut left = items;
    for (row, count) in rows {
        // Opened, and expired in the same turn.
        let status = if row.expires_at.is_some() { RunStatus::Queued } else { row.status };
        let taken = match status {
            RunStatus::Skipped => usize::try_from(*count).expect("a count"),
            _ => 1,
        };
        let Some((items, rest)) = left.split_at_checked(taken) else {
            return Err(format!("run {} stands for {count} occurrences, of which {left:?} were due", row.id));
        };
        left = rest;
        let grown = row.occurrences > *count;
        let fits = match (status, items) {
            (RunStatus::Missed, [Item::Miss { first, last, count: missed }]) => {
                row.scheduled_for == *first && row.newest() == *last && count == missed
            }
            (RunStatus::Missed, _) => false,
            (RunStatus::Skipped, [Item::Admit { at: first, .. }, ..]) => {
                let last = items.last();
                let admits = items.iter().all(|item| matches!(item, Item::Admit { .. }));
                let is_last = matches!(last, Some(Item::Admit { at, .. }) if *at == row.newest());
                admits && is_last && (grown || row.scheduled_for == *first)
            }
            (RunStatus::Skipped, [Item::Exclude { at: first }, ..]) => {
                let rule = excluded(task, *first);
                let is_one =
                    items.iter().all(|item| matches!(item, Item::Exclude { at } if excluded(task, *at) == rule));
                let is_last = matches!(items.last(), Some(Item::Exclude { at }) if *at == row.newest());
                let says = rule.is_some_and(|rule| row.error.as_ref().is_some_and(|error| error.contains(rule)));
                is_one && is_last && says && (grown || row.scheduled_for == *first)
            }
            (_, [Item::Admit { at, late }]) => {
                let origin = if *late { Origin::CatchUp } else { Origin::Schedule };
                row.scheduled_for == *at && row.origin == origin
            }
            _ => false,
        };
        if !fits {
            return Err(format!("run {} is {row:?}, expected {items:?} of {:?}", row.id, all(rows)));
        }
        if status == RunStatus::Skipped && is_excluded(row) {
            continue;
        }
        if status == RunStatus::Skipped {
            db.check_skip(task, row)?;
        } else if status != RunStatus::Missed {
            db.check_open(task, row)?;
        }
    }
    if !left.is_empty() {
        return Err(format!("was due and has no row: {left:?}"));
    }
    Ok(())
}

fn all(rows: &[(&RunRow, i64)]) -> impl Debug {
    rows.iter().map(|(row, count)| (row.id, row.scheduled_for, row.status, *count)).collect::<Vec<_>>()
}

/// A number that is uncertain: at least, and at most.
#[derive(Clone, Copy, Debug, Default)]
struct Range(usize, usize);

impl Range {
    fn add(&mut self, certain: bool) {
        self.0 += usize::from(certain);
        self.1 += 1;
    }
}

/// The runs of a task when its occurrences were resolved: a turn records outcomes first.
#[derive(Clone)]
struct TestDb {
    unfinished: Range,
    /// Scheduled runs that are queued, and those that wait, queued or for a retry.
    queued: Range,
    waiting: Range,
    /// How many starts are left for what is opened.
    starts: usize,
    /// Scheduled runs that were not final before and after.
    scheduled: Vec<(i64, RunStatus, bool)>,
}

impl TestDb {
    fn of(step: &Step<'_>, task: &TaskRow) -> Self {
        let none = Range::default();
        let mut db =
            TestDb { unfinished: none, queued: none, waiting: none, starts: usize::MAX, scheduled: Vec::new() };
        // A death may open a run of another task, or pause its own, while outcomes are recorded.
        let exact = step.died.is_empty();
        for before in step.before.unfinished().filter(|run| run.task == task.id) {
            let Some(after) = step.after.runs.get(&before.id) else { continue };
            let cancelled_by_overlap = after.status == RunStatus::Cancelled && task.overlap == Overlap::CancelRunning;
            let ended = after.status.is_final() && !cancelled_by_overlap;
            if ended && exact && step.turn().is_some() {
                continue;
            }
            db.unfinished.add(!ended);
            if !before.is_scheduled() {
                continue;
            }
            db.scheduled.push((after.id, after.status, after.cancel_requested));
            let (queued, waits) = match (before.status, after.status, after.attempt - before.attempt) {
                // A turn resolves the most urgent tasks, claims, and may then resolve others.
                (RunStatus::Queued, RunStatus::Running, _) => (None, None),
                (RunStatus::Failed, RunStatus::Running, _) => (Some(false), None),
                (RunStatus::Queued, ..) => (Some(true), Some(true)),
                (RunStatus::Failed, ..) => (Some(false), Some(true)),
                (_, RunStatus::Running, 0) => (Some(false), Some(false)),
                (_, RunStatus::Queued, _) => (Some(true), Some(true)),
                (_, RunStatus::Failed, _) => (Some(false), Some(true)),
                // Released or interrupted, and claimed again.
                (_, RunStatus::Running, _) => (None, Some(true)),
                _ => (None, None),
            };
            if queued != Some(false) {
                db.queued.add(queued == Some(true) && !ended);
            }
            if waits != Some(false) {
                db.waiting.add(waits == Some(true) && !ended);
            }
        }
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        for _ in new.filter(|run| run.task == task.id && run.follows()) {
            db.unfinished.add(false);
        }
        db
    }

    fn check_skip(&self, task: &TaskRow, row: &RunRow) -> Check {
        if is_limited(row) {
            return match self.starts {
                0 => Ok(()),
                left => Err(format!("run {} was skipped by a limit that leaves {left} starts", row.id)),
            };
        }
        let may_open = match task.overlap {
            Overlap::Skip => self.unfinished.1 == 0,
            Overlap::BufferOne => self.queued.1 == 0,
            Overlap::BufferAll => self.waiting.1 < task.limit,
            _ => true,
        };
        if may_open {
            Err(format!("{} was skipped (run {}) though it could open", row.newest(), row.id))
        } else {
            Ok(())
        }
    }

    fn check_open(&mut self, task: &TaskRow, row: &RunRow) -> Check {
        let Some(left) = self.starts.checked_sub(1) else {
            return Err(format!("run {} was opened though its limits leave no start", row.id));
        };
        self.starts = left;
        let full = match task.overlap {
            Overlap::Skip => self.unfinished.0 > 0,
            Overlap::BufferOne => self.queued.0 > 0,
            Overlap::BufferAll => self.waiting.0 >= task.limit,
            _ => false,
        };
        if full {
            return Err(format!("run {} was opened though overlap {} allows no more", row.id, task.overlap));
        }
        if task.overlap == Overlap::CancelRunning {
            let goes_on = |(_, status, cancelled): &&(i64, RunStatus, bool)| match status {
                RunStatus::Queued | RunStatus::Failed => true,
                RunStatus::Running => !cancelled,
                _ => false,
            };
            if let Some((older, ..)) = self.scheduled.iter().find(goes_on) {
                return Err(format!("run {} was opened, and the older run {older} goes on", row.id));
            }
        } else {
            for range in [&mut self.unfinished, &mut self.queued, &mut self.waiting] {
                range.add(true);
            }
        }
        Ok(())
    }
}
