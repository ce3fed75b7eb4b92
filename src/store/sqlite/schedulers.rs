//! Reads the schedulers: those that have not stopped, and the newest of those that have.

use rusqlite::{Row, Transaction, named_params};

use crate::error::Result;
use crate::model::report::Instance;
use crate::model::views::SchedulerView;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{health, row};

/// Most stopped schedulers that are listed.
const MAX_STOPPED: i64 = 20;

/// Returns the schedulers that have not stopped in order, each with the number of its running runs, then the newest others.
pub(super) fn schedulers(store: &mut SqliteStore) -> Result<Vec<SchedulerView>> {
    let file = store.path().to_owned();
    store.read("list schedulers", |tx, _| {
        let mut found = Vec::new();
        for instance in health::instances(tx, &file)? {
            let running = health::at_work(tx, &instance.id)?;
            found.push(SchedulerView { instance, running, stopped_at: None });
        }
        found.extend(stopped(tx)?);
        Ok(found)
    })
}

const STOPPED: &str = "
    SELECT id, host, pid, version, workers, started_at, seen_at, boot_id, lease_ms, stopped_at FROM scheduler_instances
     WHERE stopped_at IS NOT NULL ORDER BY stopped_at DESC, id LIMIT :limit";

/// Returns the schedulers that have stopped in order, newest first.
fn stopped(tx: &Transaction<'_>) -> rusqlite::Result<Vec<SchedulerView>> {
    let read = |row: &Row<'_>| {
        let instance = Instance {
            id: row::shown(row, 0)?,
            host: row::shown(row, 1)?,
            pid: row::saturating(row, 2)?,
            version: row::shown(row, 3)?,
            workers: row::saturating(row, 4)?,
            started_at: row.get(5)?,
            seen_at: row.get(6)?,
            boot_id: row::shown_if_any(row, 7)?,
            lease: row::millis_at(row, 8)?.unwrap_or_default(),
            alive: Some(false),
            doubt: None,
            degraded: false,
        };
        Ok(SchedulerView { instance, running: 0, stopped_at: row.get(9)? })
    };
    tx.prepare_cached(STOPPED)?.query_map(named_params! { ":limit": MAX_STOPPED }, read)?.collect()
}
