//! Reads the recorded events.

use rusqlite::{Row, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::recorded::{EventFilter, RecordedEvent};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{row, tasks};

/// By id, which is the order of their transactions. CROSS JOIN: the events are read in this order, never the tasks.
const NEWEST: &str = "
    SELECT e.id, e.at, e.kind, t.name, e.run_id, e.detail
      FROM scheduler_events e NOT INDEXED LEFT JOIN scheduled_tasks t ON t.id = e.task_id
     WHERE e.id < :before
     ORDER BY e.id DESC LIMIT :limit";

const NEWEST_OF_KIND: &str = "
    SELECT e.id, e.at, e.kind, t.name, e.run_id, e.detail
      FROM scheduler_events e INDEXED BY scheduler_events_of_kind LEFT JOIN scheduled_tasks t ON t.id = e.task_id
     WHERE e.kind = :kind AND e.id < :before
     ORDER BY e.id DESC LIMIT :limit";

const NEWEST_OF_TASK: &str = "
    SELECT e.id, e.at, e.kind, t.name, e.run_id, e.detail
      FROM scheduler_events e INDEXED BY scheduler_events_of_task LEFT JOIN scheduled_tasks t ON t.id = e.task_id
     WHERE e.task_id = :task AND e.id < :before AND (:kind IS NULL OR e.kind = :kind)
     ORDER BY e.id DESC LIMIT :limit";

/// Returns the newest recorded events that match, newest first.
pub(super) fn events(store: &mut SqliteStore, filter: &EventFilter) -> Result<Vec<RecordedEvent>> {
    let EventFilter { kind, task, before, limit } = filter;
    let (before, limit) = (before.unwrap_or(i64::MAX), i64::try_from(*limit).unwrap_or(i64::MAX));
    store.read("read the events", |tx, _| {
        if let Some(task) = task.as_deref().map(|name| tasks::expect(tx, name)).transpose()? {
            let params = named_params! { ":task": task.id, ":kind": kind, ":before": before, ":limit": limit };
            return Ok(row::all(tx, NEWEST_OF_TASK, params, read)?);
        }
        let params = named_params! { ":before": before, ":limit": limit };
        Ok(match kind {
            Some(kind) => {
                let params = named_params! { ":kind": kind, ":before": before, ":limit": limit };
                row::all(tx, NEWEST_OF_KIND, params, read)?
            }
            None => row::all(tx, NEWEST, params, read)?,
        })
    })
}

/// The years 0 to 9999, which text can hold. No table checks the time of an event.
const TIMES: (Timestamp, Timestamp) =
    (Timestamp::from_millis(-62_167_219_200_000), Timestamp::from_millis(253_402_300_799_999));

fn read(row: &Row<'_>) -> rusqlite::Result<RecordedEvent> {
    Ok(RecordedEvent {
        id: row.get(0)?,
        at: row.get::<_, Timestamp>(1)?.clamp(TIMES.0, TIMES.1),
        kind: row::shown(row, 2)?,
        task: row::shown_if_any(row, 3)?,
        run: row.get(4)?,
        detail: row::shown_if_any(row, 5)?,
    })
}
