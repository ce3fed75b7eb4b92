//! Selects what a filter matches: the server finds the rows, and sends what the filter looks at.

use postgres::Row;

use crate::clock::Timestamp;
use crate::model::bulk::{BulkAction, BulkPass, Position};
use crate::model::filter::Selection;
use crate::model::run::RunStatus;
use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::sqlite::matching::{MAX_IDS, MAX_READ, pauses, reason};
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::MAX_ITEMS;

/// As in `matching` of the SQLite store: unfinished runs, the last of each task first.
const UNFINISHED: &str = sql! {"
    SELECT r.id, t.name, r.handler, t.managed_by, r.task_id, {unscheduled_case:r}, r.scheduled_for
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE {unfinished:r}
       AND (r.task_id, {unscheduled_case:r}, r.scheduled_for) < ($1, $2, $3)
       AND r.id <= $4 AND ($5::text IS NULL OR r.status = $5)
       AND ($6::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) <= $6)
       AND ($8::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= $8)
       AND ($9::text IS NULL OR strpos(lower(r.error COLLATE \"C\"), $9) > 0)
     ORDER BY r.task_id DESC, {unscheduled_case:r} DESC, r.scheduled_for DESC LIMIT $7"};

/// As [`UNFINISHED`], of one task. `+ 0`: the server would also search all runs by their ids.
const UNFINISHED_OF_TASK: &str = sql! {"
    SELECT r.id, t.name, r.handler, t.managed_by, t.id, r.unscheduled, r.scheduled_for
      FROM scheduled_tasks t CROSS JOIN LATERAL (
        SELECT n.id, n.handler, {unscheduled_case:n} AS unscheduled, n.scheduled_for FROM task_runs n
         WHERE n.task_id = t.id AND {unfinished:n} AND ({unscheduled_case:n}, n.scheduled_for) < ($2, $3)
           AND n.id + 0 <= $4 AND ($5::text IS NULL OR n.status = $5)
           AND ($6::bigint IS NULL OR coalesce(n.last_scheduled_for, n.scheduled_for) <= $6)
           AND ($8::bigint IS NULL OR coalesce(n.last_scheduled_for, n.scheduled_for) >= $8)
           AND ($9::text IS NULL OR strpos(lower(n.error COLLATE \"C\"), $9) > 0)
         ORDER BY {unscheduled_case:n} DESC, n.scheduled_for DESC LIMIT $7) r
     WHERE t.id = $1
     ORDER BY r.unscheduled DESC, r.scheduled_for DESC"};

/// In the order of the index: before an ANALYZE, the server would read the whole table.
const DEAD: &str = "
    SELECT r.id, t.name, r.handler, t.managed_by, r.finished_at
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'dead' AND (r.finished_at, r.id) > ($1, $2) AND r.id + 0 <= $3
       AND ($4::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) <= $4)
       AND ($6::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= $6)
       AND ($7::text IS NULL OR strpos(lower(r.error COLLATE \"C\"), $7) > 0)
     ORDER BY r.finished_at, r.id LIMIT $5";

const FINAL: &str = "
    SELECT r.id, t.name, r.handler, t.managed_by
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id > $1 AND r.id <= $2 AND r.status = $3
       AND ($4::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) <= $4)
       AND ($6::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= $6)
       AND ($7::text IS NULL OR strpos(lower(r.error COLLATE \"C\"), $7) > 0)
     ORDER BY r.id LIMIT $5";

const TASKS: &str = sql! {"
    SELECT t.id, t.name, t.handler, t.managed_by FROM scheduled_tasks t
     WHERE t.name >= $1 AND ($2::text IS NULL OR t.name > $2) AND t.id <= $3
       AND (t.invalid_reason = $7::text
            OR (($4::text IS NULL OR t.status = $4 OR ($8 AND {paused_by_an_actor:t}))
                AND ($5::bigint IS NULL
                     OR (t.updated_at <= $5 AND coalesce(t.last_finished, 0) <= $5
                         AND NOT EXISTS (SELECT 1 FROM task_runs r
                                          WHERE t.schedule_type = 'once' AND r.task_id = t.id AND r.finished_at > $5)))))
     ORDER BY t.name LIMIT $6"};

const NEWEST_RUN: &str = "SELECT coalesce(max(id), 0) FROM task_runs";
const NEWEST_TASK: &str = "SELECT coalesce(max(id), 0) FROM scheduled_tasks";

/// Selects the next ids, at most [`MAX_ITEMS`]. The selection is fixed at the first call: what is added later has a higher id.
pub(super) fn select(server: &mut Server, selection: &Selection, pass: &mut BulkPass) -> Result<(), Fault> {
    let until = match pass.until {
        Some(until) => until,
        None => {
            let newest = if selection.action.is_about_runs() { NEWEST_RUN } else { NEWEST_TASK };
            *pass.until.insert(server.query(newest, &[])?[0].try_get(0)?)
        }
    };
    let (status, error) = (selection.status, &selection.error);
    let [before, since] = [selection.before, selection.since].map(|at| at.map(Timestamp::as_millis));
    // Of one task, all rows match until the last.
    let most = if selection.task.is_some() { MAX_ITEMS + 1 } else { MAX_READ };
    let limit = most as i64;
    match selection.action {
        BulkAction::Cancel => {
            let (task, unscheduled, at) = match &pass.position {
                Some(Position::Unfinished { task, unscheduled, at }) => (*task, *unscheduled, *at),
                _ => (selection.task.unwrap_or(i64::MAX), i64::MAX, i64::MAX),
            };
            let statement = if selection.task.is_some() { UNFINISHED_OF_TASK } else { UNFINISHED };
            let rows = server
                .query(statement, &[&task, &unscheduled, &at, &until, &status, &before, &limit, &since, error])?;
            let position = |row: &Row| {
                Ok(Position::Unfinished { task: row.try_get(4)?, unscheduled: row.try_get(5)?, at: row.try_get(6)? })
            };
            pass.is_read = read(&rows, most, selection, pass, position)?;
        }
        BulkAction::Retry if status == Some(RunStatus::Dead.as_str()) => {
            let (at, after) = if let Some(Position::Dead { at, run }) = pass.position { (at, run) } else { (0, 0) };
            let rows = server.query(DEAD, &[&at, &after, &until, &before, &limit, &since, error])?;
            let position = |row: &Row| Ok(Position::Dead { at: row.try_get(4)?, run: row.try_get(0)? });
            pass.is_read = read(&rows, most, selection, pass, position)?;
        }
        BulkAction::Retry => {
            let after = if let Some(Position::Run(run)) = pass.position { run } else { 0 };
            let last = until.min(after.saturating_add(MAX_IDS));
            let rows = server.query(FINAL, &[&after, &last, &status, &before, &limit, &since, error])?;
            if read(&rows, most, selection, pass, |row| Ok(Position::Run(row.try_get(0)?)))? {
                pass.position = Some(Position::Run(last));
                pass.is_read = last == until;
            }
        }
        BulkAction::Remove | BulkAction::Pause | BulkAction::Resume => {
            let prefix = selection.name.as_ref().map_or("", |pattern| pattern.prefix());
            let after = match &pass.position {
                Some(Position::Name(name)) => Some(String::from_utf8_lossy(name).into_owned()),
                _ => None,
            };
            let (reason, pauses) = (reason(selection), pauses(selection));
            let rows = server.query(TASKS, &[&prefix, &after, &until, &status, &before, &limit, &reason, &pauses])?;
            let position = |row: &Row| Ok(Position::Name(row.try_get::<_, String>(1)?.into_bytes()));
            pass.is_read = read(&rows, most, selection, pass, position)?;
        }
    }
    Ok(())
}

/// Reads rows that begin with an id, a name, a handler and who added the task, until [`MAX_ITEMS`] match. Returns whether it has read all.
fn read(
    rows: &[Row],
    most: usize,
    selection: &Selection,
    pass: &mut BulkPass,
    position: impl Fn(&Row) -> Result<Position, Fault>,
) -> Result<bool, Fault> {
    let by_name = !selection.action.is_about_runs();
    let prefix = selection.name.as_ref().filter(|_| by_name).map_or("", |pattern| pattern.prefix());
    for row in rows {
        if pass.selected.len() == MAX_ITEMS {
            return Ok(false);
        }
        let (name, handler): (&str, &str) = (row.try_get(1)?, row.try_get(2)?);
        if by_name && !name.starts_with(prefix) {
            return Ok(true);
        }
        pass.position = Some(position(row)?);
        let manager: Option<&str> = row.try_get(3)?;
        if selection.accepts(name, handler.as_bytes(), manager.map(str::as_bytes)) {
            pass.selected.push(row.try_get(0)?);
        }
    }
    Ok(rows.len() < most)
}
