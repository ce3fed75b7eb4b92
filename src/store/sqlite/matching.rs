//! Changes all runs or tasks that a filter selects, in batches. Each item is changed by the rules and the statements of the request
//! for one.
//!
//! A snapshot selects a batch of ids, without a lock for which a scheduler would wait. A transaction then reads each of them again
//! and changes it: what no longer matches is no longer selected.

use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row, Rows, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::fault_points;
use crate::model::bulk::{BulkAction, BulkItem, BulkPass, BulkReport, Position, Verdict};
use crate::model::event::Event;
use crate::model::filter::Selection;
use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::open::{self, Change, Written};
use crate::store::sqlite::requests;
use crate::store::sqlite::row::{self, Raw};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::tasks::{Removal, Removed};
use crate::store::sqlite::{followers, owners, runs, settle, task_changes, tasks};
use crate::store::turn_io::MAX_ITEMS;

/// A transaction ends after it has changed this many rows.
const MAX_ROWS: u64 = 5_000;
/// Most rows that one snapshot reads. A long one would prevent the log from being cut.
pub(crate) const MAX_READ: usize = 20_000;
/// Most ids of runs that one snapshot covers, whether their runs match or not.
pub(crate) const MAX_IDS: i64 = 200_000;

/// Changes a batch of what a filter selects, adds it to `report`, and moves `pass` on. Returns the events.
pub(super) fn change(
    store: &mut SqliteStore,
    selection: &Selection,
    pass: &mut BulkPass,
    report: &mut BulkReport,
    now: Timestamp,
) -> Result<Vec<Event>> {
    if pass.selected.is_empty() {
        store.read("select by a filter", |tx, _| select(tx, selection, pass))?;
    }
    if pass.selected.is_empty() {
        return Ok(Vec::new());
    }
    let (done, events, counted) = store.write("change what a filter selects", |tx, schedules| {
        let (mut counted, before) = (report.clone(), tx.total_changes());
        let written = Written { followed: followers::any(tx)?, ..Written::default() };
        let removal = Removal::default();
        let mut change = BulkChange { tx, schedules, selection, now, written, removal, is_part: false };
        let mut done = 0;
        for id in pass.selected.iter().take(pass.most.unwrap_or(usize::MAX)) {
            let item = change.item(*id)?;
            if change.is_part {
                break;
            }
            if let Some((item, verdict)) = item {
                counted.count(item, verdict);
            }
            done += 1;
            if tx.total_changes() - before >= MAX_ROWS || change.written.followers >= MAX_ITEMS {
                break;
            }
        }
        let events = change.written.events;
        fault_points::reach("matching");
        Ok((done, events, counted))
    })?;
    pass.held = store.held();
    *report = counted;
    pass.selected.drain(..done);
    fault_points::reach("matched");
    Ok(events)
}

/// As [`change`], and changes nothing.
pub(super) fn count(
    store: &mut SqliteStore,
    selection: &Selection,
    pass: &mut BulkPass,
    report: &mut BulkReport,
) -> Result<()> {
    store.read("select by a filter", |tx, _| {
        if pass.selected.is_empty() {
            select(tx, selection, pass)?;
        }
        for id in pass.selected.drain(..) {
            match judge(tx, selection, id) {
                Ok(Some(Judged { item, verdict, .. })) => report.count(item, verdict),
                Ok(None) => {}
                Err(fault) if fault.is_about_the_item() => report.count(unread(selection, id), left(&fault)),
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    })
}

/// Unfinished runs, the last of each task first: those that wait behind a run of their key end before it. Otherwise the end of one
/// batch would let the first run of the next one start.
const UNFINISHED: &str = sql! {"
    SELECT r.id, t.name, r.handler, t.managed_by, r.task_id, {unscheduled_id:r}, r.scheduled_for
      FROM task_runs r INDEXED BY task_runs_unfinished
     CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = r.task_id
     WHERE {unfinished:r} AND r.task_id <= :task
       AND (r.task_id < :task OR {unscheduled_id:r} < :unscheduled
            OR ({unscheduled_id:r} = :unscheduled AND r.scheduled_for < :at))
       AND r.id <= :until AND (:status IS NULL OR r.status = :status)
       AND (:before IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) <= :before)
       AND (:since IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) >= :since)
       AND (:error IS NULL OR instr(lower(r.error), :error) > 0)
     ORDER BY r.task_id DESC, {unscheduled_id:r} DESC, r.scheduled_for DESC"};

/// Dead runs, in the order in which they died.
const DEAD: &str = "
    SELECT r.id, t.name, r.handler, t.managed_by, r.finished_at
      FROM task_runs r INDEXED BY task_runs_dead CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = r.task_id
     WHERE r.finished_at >= :at AND (r.finished_at > :at OR r.id > :after) AND r.id <= :until AND r.status = 'dead'
       AND (:before IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) <= :before)
       AND (:since IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) >= :since)
       AND (:error IS NULL OR instr(lower(r.error), :error) > 0)
     ORDER BY r.finished_at, r.id";

/// Other final runs, oldest first: no index has their status.
const FINAL: &str = "
    SELECT r.id, t.name, r.handler, t.managed_by
      FROM task_runs r NOT INDEXED CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = r.task_id
     WHERE r.id > :after AND r.id <= :until AND r.status = :status
       AND (:before IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) <= :before)
       AND (:since IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) >= :since)
       AND (:error IS NULL OR instr(lower(r.error), :error) > 0)
     ORDER BY r.id";

/// Tasks from a name on. Of a recurring task, its row has the end of the last run. A task that is being removed for `:reason` was selected
/// before.
const TASKS: &str = sql! {"
    SELECT t.id, t.name, t.handler, t.managed_by FROM scheduled_tasks t
     WHERE t.name >= :name AND t.id <= :until
       AND (t.invalid_reason = :reason
            OR ((:status IS NULL OR t.status = :status OR (:pauses AND {paused_by_an_actor:t}))
                AND (:before IS NULL
                     OR (t.updated_at <= :before AND ifnull(t.last_finished, 0) <= :before
                         AND NOT EXISTS (SELECT 1 FROM task_runs r
                                          WHERE t.schedule_type = 'once' AND r.task_id = t.id AND r.finished_at > :before)))))
     ORDER BY t.name"};

/// Returns whether tasks are paused, also those that an actor has paused: the pause becomes that of the user.
pub(crate) fn pauses(selection: &Selection) -> bool {
    selection.action == BulkAction::Pause
}

/// Returns why a task is invalid that an earlier transaction of the operation has begun to remove.
pub(crate) fn reason(selection: &Selection) -> Option<&'static str> {
    (selection.action == BulkAction::Remove).then_some(tasks::BEING_REMOVED)
}

const NEWEST_RUN: &str = "SELECT ifnull(max(id), 0) FROM task_runs";
const NEWEST_TASK: &str = "SELECT ifnull(max(id), 0) FROM scheduled_tasks";

/// Selects the next ids, at most [`MAX_ITEMS`]. The selection is fixed at the first call: what is added later has a higher id.
fn select(tx: &Transaction<'_>, selection: &Selection, pass: &mut BulkPass) -> Result<(), Fault> {
    let is_about_runs = selection.action.is_about_runs();
    let until = match pass.until {
        Some(until) => until,
        None => {
            let newest = if is_about_runs { NEWEST_RUN } else { NEWEST_TASK };
            *pass.until.insert(tx.prepare_cached(newest)?.query_row([], |row| row.get(0))?)
        }
    };
    let Selection { status, before, since, error, .. } = selection;
    match selection.action {
        BulkAction::Cancel => {
            let (task, unscheduled, at) = match &pass.position {
                Some(Position::Unfinished { task, unscheduled, at }) => (*task, *unscheduled, *at),
                _ => (selection.task.unwrap_or(i64::MAX), i64::MAX, i64::MAX),
            };
            let mut statement = tx.prepare_cached(UNFINISHED)?;
            let rows = statement.query(named_params! {
                ":task": task, ":unscheduled": unscheduled, ":at": at, ":until": until, ":status": status,
                ":before": before, ":since": since, ":error": error,
            })?;
            let position = |row: &Row<'_>| {
                Ok(Position::Unfinished { task: row.get(4)?, unscheduled: row.get(5)?, at: row.get(6)? })
            };
            pass.is_read = read(rows, selection, pass, position)?;
        }
        BulkAction::Retry if *status == Some(RunStatus::Dead.as_str()) => {
            let (at, after) = if let Some(Position::Dead { at, run }) = pass.position { (at, run) } else { (0, 0) };
            let mut statement = tx.prepare_cached(DEAD)?;
            let rows = statement.query(named_params! {
                ":at": at, ":after": after, ":until": until, ":before": before, ":since": since, ":error": error,
            })?;
            let position = |row: &Row<'_>| Ok(Position::Dead { at: row.get(4)?, run: row.get(0)? });
            pass.is_read = read(rows, selection, pass, position)?;
        }
        BulkAction::Retry => {
            let after = if let Some(Position::Run(run)) = pass.position { run } else { 0 };
            let last = until.min(after.saturating_add(MAX_IDS));
            let mut statement = tx.prepare_cached(FINAL)?;
            let rows = statement.query(named_params! {
                ":after": after, ":until": last, ":status": status, ":before": before, ":since": since, ":error": error,
            })?;
            if read(rows, selection, pass, |row| Ok(Position::Run(row.get(0)?)))? {
                pass.position = Some(Position::Run(last));
                pass.is_read = last == until;
            }
        }
        BulkAction::Remove | BulkAction::Pause | BulkAction::Resume => {
            let from = match &pass.position {
                // The text that follows the last name.
                Some(Position::Name(name)) => [name, &b"\0"[..]].concat(),
                _ => selection.name.as_ref().map_or("", |pattern| pattern.prefix()).as_bytes().to_vec(),
            };
            let mut statement = tx.prepare_cached(TASKS)?;
            let rows = statement.query(named_params! {
                ":name": row::raw(&from), ":until": until, ":status": status, ":before": before,
                ":reason": reason(selection), ":pauses": pauses(selection),
            })?;
            pass.is_read = read(rows, selection, pass, |row| Ok(Position::Name(row.get::<_, Raw>(1)?.0)))?;
        }
    }
    Ok(())
}

/// Reads rows that begin with an id, a name, a handler and who added the task, until [`MAX_ITEMS`] match. Returns whether it has read all.
fn read(
    mut rows: Rows<'_>,
    selection: &Selection,
    pass: &mut BulkPass,
    position: impl Fn(&Row<'_>) -> rusqlite::Result<Position>,
) -> rusqlite::Result<bool> {
    let by_name = !selection.action.is_about_runs();
    let prefix = selection.name.as_ref().filter(|_| by_name).map_or("", |pattern| pattern.prefix());
    let mut count = 0;
    while pass.selected.len() < MAX_ITEMS && count < MAX_READ {
        let Some(row) = rows.next()? else { return Ok(true) };
        let (name, handler) = (text(row, 1)?, text(row, 2)?);
        if by_name && !name.starts_with(prefix.as_bytes()) {
            return Ok(true);
        }
        let position = position(row)?;
        if matches!(position, Position::Unfinished { task, .. } if selection.task.is_some_and(|wanted| wanted != task))
        {
            return Ok(true);
        }
        pass.position = Some(position);
        if selection.accepts(&String::from_utf8_lossy(name), handler, text_if_any(row, 3)?) {
            pass.selected.push(row.get(0)?);
        }
        count += 1;
    }
    Ok(false)
}

/// Returns a text, whether or not it is UTF-8.
fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a [u8]> {
    match row.get_ref(column)? {
        ValueRef::Text(text) => Ok(text),
        _ => Ok(b""),
    }
}

/// Returns a text, whether or not it is UTF-8; `None` for NULL.
fn text_if_any<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Option<&'a [u8]>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => text(row, column).map(Some),
    }
}

const ONE_RUN: &str = "
    SELECT t.name, r.handler, r.status, r.task_id, r.payload, t.managed_by
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id = :id AND (:status IS NULL OR r.status = :status)";

const ONE_TASK: &str = sql! {"
    SELECT t.name, t.handler, t.managed_by FROM scheduled_tasks t
     WHERE t.id = :id AND (:status IS NULL OR t.status = :status OR t.invalid_reason = :reason
                           OR (:pauses AND {paused_by_an_actor:t}))"};

const RETRY: &str = "SELECT max(id) FROM task_runs WHERE task_id = :task AND retry_of = :run";

/// A matching run or task, and what becomes of it by the rules that need no write.
struct Judged {
    item: BulkItem,
    verdict: Verdict,
    task: i64,
    /// The run's own payload.
    payload: Option<String>,
}

/// Reads a selected run or task. Returns `None` if it no longer matches.
fn judge(tx: &Transaction<'_>, selection: &Selection, id: i64) -> Result<Option<Judged>, Fault> {
    let params = named_params! { ":id": id, ":status": selection.status };
    if !selection.action.is_about_runs() {
        let (reason, pauses) = (reason(selection), pauses(selection));
        let params = named_params! { ":id": id, ":status": selection.status, ":reason": reason, ":pauses": pauses };
        let read = |row: &Row<'_>| {
            let name = row::shown(row, 0)?;
            let is_accepted = selection.accepts(&name, text(row, 1)?, text_if_any(row, 2)?);
            Ok((name, is_accepted))
        };
        let found = tx.prepare_cached(ONE_TASK)?.query_row(params, read).optional()?;
        let Some((name, true)) = found else { return Ok(None) };
        let verdict = match selection.action {
            BulkAction::Remove if open::any_running(tx, id)? => Verdict::Left("a run of it is running".to_owned()),
            _ => Verdict::Changed,
        };
        return Ok(Some(Judged { item: BulkItem { task: name, run: None }, verdict, task: id, payload: None }));
    }
    let read = |row: &Row<'_>| {
        let (name, status): (_, RunStatus) = (row::shown(row, 0)?, row.get(2)?);
        let accepted = selection.accepts(&name, text(row, 1)?, text_if_any(row, 5)?);
        let payload = if selection.action == BulkAction::Retry { row::shown_if_any(row, 4)? } else { None };
        Ok((name, status, row.get(3)?, payload, accepted))
    };
    let found = tx.prepare_cached(ONE_RUN)?.query_row(params, read).optional()?;
    let Some((name, status, task, payload, true)) = found else { return Ok(None) };
    let verdict = match (selection.action, status) {
        (BulkAction::Cancel, RunStatus::Running) => Verdict::Asked,
        (BulkAction::Cancel, status) if status.is_final() => return Ok(None),
        (BulkAction::Cancel, _) => Verdict::Changed,
        // Unlike the request for one run, a retry that has ended counts too: a repeated operation retries no run twice.
        _ => match tx
            .prepare_cached(RETRY)?
            .query_row(named_params! { ":task": task, ":run": id }, |row| row.get::<_, Option<i64>>(0))?
        {
            Some(_) => Verdict::Left("it was retried before".to_owned()),
            None if tasks::by_id(tx, task)?.is_none_or(|task| task.status == TaskStatus::Invalid) => {
                Verdict::Left("its task is invalid".to_owned())
            }
            None => Verdict::Changed,
        },
    };
    Ok(Some(Judged { item: BulkItem { task: name, run: Some(id) }, verdict, task, payload }))
}

/// Returns the item of a row that cannot be read.
fn unread(selection: &Selection, id: i64) -> BulkItem {
    let is_run = selection.action.is_about_runs();
    BulkItem { task: if is_run { "?".to_owned() } else { format!("? (id {id})") }, run: is_run.then_some(id) }
}

fn left(fault: &Fault) -> Verdict {
    Verdict::Left(match fault {
        Fault::Request(Error::Refused { reason, .. }) => reason.clone(),
        fault => fault.to_string(),
    })
}

/// A transaction that changes selected runs or tasks.
struct BulkChange<'a, 'c> {
    tx: &'a Transaction<'c>,
    schedules: &'a mut Schedules,
    selection: &'a Selection,
    now: Timestamp,
    written: Written,
    removal: Removal,
    /// The last item was removed in part: the next transaction goes on with it.
    is_part: bool,
}

impl BulkChange<'_, '_> {
    /// Changes one item, or leaves it as it is. A row that cannot be read or changed costs only itself.
    fn item(&mut self, id: i64) -> Result<Option<(BulkItem, Verdict)>, Fault> {
        let judged = match judge(self.tx, self.selection, id) {
            Ok(judged) => judged,
            Err(fault) if fault.is_about_the_item() => return Ok(Some((unread(self.selection, id), left(&fault)))),
            Err(fault) => return Err(fault),
        };
        let Some(Judged { item, verdict, task, payload }) = judged else { return Ok(None) };
        if let Verdict::Left(_) = verdict {
            return Ok(Some((item, verdict)));
        }
        let events = self.written.events.len();
        self.tx.prepare_cached("SAVEPOINT item")?.execute([])?;
        let verdict = match self.apply(id, task, &item.task, payload.as_deref()) {
            Ok(None) => verdict,
            Ok(Some(reason)) => Verdict::Left(reason.to_owned()),
            Err(fault) if fault.is_about_the_item() => {
                self.tx.prepare_cached("ROLLBACK TO item")?.execute([])?;
                self.written.events.truncate(events);
                self.written.passed.clear();
                left(&fault)
            }
            Err(fault) => return Err(fault),
        };
        self.tx.prepare_cached("RELEASE item")?.execute([])?;
        Ok(Some((item, verdict)))
    }

    /// Changes a run or a task that may be changed. Returns why it was left as it is, if it was.
    fn apply(&mut self, id: i64, task: i64, name: &str, payload: Option<&str>) -> Result<Option<&'static str>, Fault> {
        let (tx, now) = (self.tx, self.now);
        match self.selection.action {
            BulkAction::Cancel => {
                let mut cx = Change { tx, now, schedules: self.schedules, written: &mut self.written };
                if !settle::cancel_waiting(&mut cx, id)? {
                    runs::ask_to_stop(tx, id)?;
                }
                followers::follow_all(&mut cx)?;
                self.record(task, id)?;
            }
            BulkAction::Retry => {
                let Some(stored) = tasks::by_id(tx, task)? else { return Ok(Some("its task is gone")) };
                let opened = requests::open_retry(tx, self.schedules, stored, (id, payload), now)?;
                self.record(task, opened)?;
            }
            BulkAction::Remove => match self.removal.task(tx, id, name, now)? {
                Removed::All => {}
                Removed::Part => self.is_part = true,
                Removed::Kept => return Ok(Some(tasks::KEPT)),
            },
            BulkAction::Pause => task_changes::pause(tx, self.schedules, name, None, now)?,
            BulkAction::Resume => task_changes::resume(tx, self.schedules, name, now)?,
        }
        Ok(None)
    }

    /// Records a change of a run as an action, if the selection names who acts.
    fn record(&self, task: i64, run: i64) -> rusqlite::Result<()> {
        let Some(actor) = self.selection.actor else { return Ok(()) };
        let detail = format!("{actor}: {}", self.selection.action);
        owners::record(self.tx, self.now, "action", Some(task), Some(run), Some(&detail))
    }
}
