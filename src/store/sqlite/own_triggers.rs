//! Turns of a scheduler fire no triggers, if the file has only those of `schema.sql`.
//!
//! These recognize what other programs write. For what a turn writes their conditions are false, except where it deletes ([`fire`]), and
//! where it passes over an occurrence that is resolved already: there they would only have the task planned again. But any trigger of a
//! table has SQLite read the old row as well, and go through the rows twice: a fifth of the cost of completing a task.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction};

use crate::store::sqlite::schema;

const TRIGGERS: &str = "SELECT sql FROM main.sqlite_schema WHERE type = 'trigger'";

/// Whether the file has no other triggers, for a schema cookie.
#[derive(Debug, Default)]
pub(crate) struct OwnTriggers(Option<(i64, bool)>);

impl OwnTriggers {
    /// Decides for a transaction whether triggers fire. A change of that makes SQLite prepare all statements again.
    pub(crate) fn decide(&mut self, tx: &Transaction<'_>, cookie: i64, is_turn: bool) -> rusqlite::Result<()> {
        if is_turn && self.0.is_none_or(|(known, _)| known != cookie) {
            let mut statement = tx.prepare_cached(TRIGGERS)?;
            // The text of an application's trigger may be no UTF-8.
            let are_own = statement.query_map([], |row| Ok(row.get_ref(0)?.as_str().is_ok_and(schema::creates)))?;
            let are_own = are_own.collect::<rusqlite::Result<Vec<bool>>>()?;
            self.0 = Some((cookie, are_own.into_iter().all(|is_own| is_own)));
        }
        set(tx, !(is_turn && self.0.is_some_and(|(_, are_own)| are_own)))
    }
}

/// Has triggers fire in the rest of a transaction: they delete what belongs to a row.
pub(crate) fn fire(tx: &Connection) -> rusqlite::Result<()> {
    set(tx, true)
}

/// Sets whether triggers fire. TEMP triggers do so in any case, since SQLite 3.35.0 (`SQLITE_DBCONFIG_ENABLE_TRIGGER`).
pub(crate) fn set(connection: &Connection, fire: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, fire).map(drop)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use rusqlite::config::DbConfig;

    use crate::clock::Timestamp;
    use crate::model::report::{Pass, Pruned};
    use crate::model::settings::Retention;
    use crate::rules::retention::Limits;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};
    use crate::store::sqlite::restore::Claims;
    use crate::store::sqlite::{own_triggers, prune};

    #[test]
    fn a_turn_fires_triggers_if_the_file_has_others_and_all_other_transactions_do() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let mut store = SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let other = Connection::open(&file).unwrap();
        let batch = |sql: &str| other.execute_batch(sql).unwrap();
        batch(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('t', 'h', 'manual', '')",
        );
        let claims = Claims::new();
        // Whether the trigger fires that recognizes a pause by SQL.
        let mut fires = |is_turn: bool, deletes: bool| {
            let written = store.try_write_items(is_turn.then_some(("a-1", &claims)), |tx, _, _, _| {
                if deletes {
                    own_triggers::fire(tx)?;
                }
                tx.prepare_cached("UPDATE scheduled_tasks SET status = 'paused'")?.execute([])?;
                let fired = tx.query_row("SELECT paused_by IS NOT NULL FROM scheduled_tasks", [], |row| row.get(0))?;
                tx.execute("UPDATE scheduled_tasks SET status = 'active', paused_by = NULL", [])?;
                Ok(fired)
            });
            written.unwrap_or_else(|fault| panic!("{fault}"))
        };
        assert!(fires(false, false) && !fires(true, false) && fires(false, false) && !fires(true, false));
        assert!(fires(true, true), "it deletes");
        assert!(!fires(true, false));
        batch("CREATE TRIGGER theirs AFTER INSERT ON scheduler_events BEGIN SELECT 1; END");
        assert!(fires(true, false), "an application has added one");
        batch("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, '1', CAST(x'27e927' AS TEXT)) WHERE name = 'theirs';
               PRAGMA writable_schema = OFF; CREATE TABLE changed (id)");
        assert!(fires(true, false), "its text is no UTF-8");
        batch("DROP TRIGGER theirs");
        assert!(!fires(true, false) && fires(false, false));
    }

    /// Each change of that costs as much as a turn.
    #[test]
    fn retention_has_triggers_fire_only_if_something_has_expired() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let mut store = SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let (claims, other) = (Claims::new(), Connection::open(&file).unwrap());
        let mut fires = |rows: &str| {
            other.execute_batch(rows).unwrap();
            let written = store.try_write_items(Some(("a-1", &claims)), |tx, _, _, _| {
                let limits = Limits::new(&Retention::default(), Timestamp::from_millis(1_805_025_600_000));
                prune::batch(tx, &limits, &mut Pass::default(), 100, &mut Pruned::default())?;
                Ok(tx.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)?)
            });
            written.unwrap_or_else(|fault| panic!("{fault}"))
        };
        let with_task = "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, planned)
                         VALUES (1, 't', 'h', 'manual', '', 1)";
        assert!(!fires(with_task), "nothing has expired");
        let old_runs = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 102)
                        INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
                        SELECT 1, 'h', 1700000000000 + i, 'manual', 'succeeded', 1700000000000 + i, 1700000000000 + i FROM n";
        assert!(fires(old_runs));
        assert!(!fires(""), "the rest is kept");
    }
}
