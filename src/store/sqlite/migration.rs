//! From one version of the tables to the next: in one transaction, and only while nobody else is at work on them.
//!
//! A scheduler of the older version that is still there would go on with statements that were written for other tables.
//! Should one slip in all the same, every transaction of its looks at the version first: it claims nothing more, and leaves.

use std::path::Path;

use rusqlite::{Transaction, named_params};

use crate::host::owner_lock::{Standing, standing};
use crate::store::fault::Fault;
use crate::store::sqlite::schema::{self, Contents, unusable};

/// One step: from a version to the one after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The version that it begins with.
    pub(crate) from: i64,
    /// What changes. Columns that outcomes are written to stay what they are: a scheduler of the version before may still
    /// have some to write.
    pub(crate) sql: &'static str,
}

/// A version of the tables, and how those of older ones become such.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    pub(crate) version: i64,
    /// Oldest first, without a gap, up to `version`.
    pub(crate) steps: &'static [Step],
}

impl Tables {
    /// What this program works on. Nothing older was ever released.
    pub(crate) const CURRENT: Tables = Tables { version: schema::VERSION, steps: &[] };
}

const SET_VERSION: &str = "UPDATE scheduler_meta SET value = :version WHERE key = 'schema_version'";

/// Brings tables of an older version to this one, inside the caller's transaction.
pub(crate) fn migrate(tx: &Transaction<'_>, path: &Path, found: i64, to: &Tables) -> Result<(), Fault> {
    let Some(begin) = to.steps.iter().position(|step| step.from == found) else {
        let reason = format!(
            "its tables are of version {found}, and this duly knows no way from there to version {}",
            to.version
        );
        return Err(unusable(path, reason));
    };
    refuse_beside_others(tx, path, found, to.version)?;
    for step in &to.steps[begin..] {
        tx.execute_batch(step.sql)?;
    }
    tx.execute(SET_VERSION, named_params! { ":version": to.version.to_string() })?;
    // What the steps have made must be what a new file has.
    match schema::examine(tx, path, to.version)? {
        Contents::Ours(version) if version == to.version => Ok(()),
        other => Err(unusable(path, format!("its tables are {other:?} after they were brought to {}", to.version))),
    }
}

const NOT_STOPPED: &str = "
    SELECT i.id, i.host, i.pid, i.version,
           EXISTS (SELECT 1 FROM task_runs r WHERE r.status = 'running' AND r.locked_by = i.id)
      FROM scheduler_instances i WHERE i.stopped_at IS NULL";

/// Fails while a scheduler is at work on the tables, or one whose death nothing proves has runs. One that idles without a
/// lock file is most likely dead, and finds out if it is not.
fn refuse_beside_others(tx: &Transaction<'_>, path: &Path, found: i64, to: i64) -> Result<(), Fault> {
    let mut statement = tx.prepare(NOT_STOPPED)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, host, pid, version): (String, String, i64, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let who = format!("process {pid} on {host}, duly {version}");
        let reason = match standing(path, &id) {
            Standing::Dead(_) | Standing::TakenOver(_) => continue,
            Standing::Alive { .. } => {
                format!("a scheduler is at work on them ({who}): stop it, and start this program again")
            }
            Standing::Missing if !row.get(4)? => continue,
            Standing::Missing => format!(
                "a scheduler that may be alive has runs ({who}): stop it; if it is dead, let duly {version} recover them first"
            ),
            Standing::Unknown(why) => format!("whether a scheduler is alive cannot be known ({who}): {why}"),
        };
        let reason = format!("its tables are to be brought from version {found} to {to}, and {reason}");
        return Err(unusable(path, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{Step, Tables};
    use crate::clock::Timestamp;
    use crate::error::Error;
    use crate::host::owner_lock::OwnerLock;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};
    use crate::store::sqlite::{owners, schema};
    use crate::store::turn_io::Registration;

    const TO_TWO: Step = Step { from: 1, sql: "ALTER TABLE scheduled_tasks ADD COLUMN colour TEXT" };
    const TO_THREE: Step = Step { from: 2, sql: "UPDATE scheduled_tasks SET colour = 'blue'" };
    const BROKEN: Step = Step { from: 2, sql: "UPDATE scheduled_tasks SET colour = 'red'; UPDATE nobody SET x = 1" };
    const TWO: Tables = Tables { version: 2, steps: &[TO_TWO] };
    const THREE: Tables = Tables { version: 3, steps: &[TO_TWO, TO_THREE] };
    const NEVER: Tables = Tables { version: 3, steps: &[TO_TWO, BROKEN] };

    struct House {
        _home: tempfile::TempDir,
        file: PathBuf,
    }

    impl House {
        /// A file of version 1 with one task, and a run of its that has this owner.
        fn new(owner: Option<&str>) -> (Self, SqliteStore) {
            let home = tempfile::tempdir().unwrap();
            let house = House { file: home.path().join("t.db"), _home: home };
            let mut store = house.open(&Tables::CURRENT).unwrap();
            let task = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                        VALUES ('t', 'work', 'cron', '@daily')";
            let run =
                "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, locked_by,
                                              locked_until, started_at)
                       VALUES (1, 'work', 1805000000000, 'schedule', 'running', 1805000000000, 1, ?1, 1805000000000,
                               1805000000000)";
            store
                .write("fill", |tx, _| {
                    tx.execute(task, [])?;
                    if let Some(owner) = owner {
                        tx.execute(run, [owner])?;
                    }
                    Ok(())
                })
                .unwrap();
            (house, store)
        }

        fn open(&self, tables: &Tables) -> Result<SqliteStore, Error> {
            SqliteStore::open_as(&self.file, Missing::Create, Durability::Full, tables)
        }

        /// Whoever tries is told this, and nothing has changed.
        fn refuses(&self, tables: &Tables, told: &str) {
            let error = self.open(tables).unwrap_err();
            assert!(matches!(error, Error::UnusableDatabase { .. }), "{error}");
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(self.ask("SELECT value FROM scheduler_meta WHERE key = 'schema_version'"), "1");
            assert_eq!(
                self.ask("SELECT count(*) FROM pragma_table_info('scheduled_tasks') WHERE name = 'colour'"),
                "0"
            );
        }

        fn ask(&self, query: &str) -> String {
            let plain = rusqlite::Connection::open(&self.file).unwrap();
            plain.query_row(&format!("SELECT CAST(({query}) AS TEXT)"), [], |row| row.get(0)).unwrap()
        }
    }

    /// As a scheduler registers.
    fn register(store: &mut SqliteStore, path: &Path, owner: &str) -> OwnerLock {
        let lock = OwnerLock::take(path, owner).unwrap();
        let (owner, host) = (owner.to_owned(), "here".to_owned());
        let new = Registration { owner, host, workers: 4, lease: Duration::from_secs(60), zone_data: String::new() };
        let now = Timestamp::from_millis(1_805_000_000_000);
        store.write("register", |tx, _| Ok(owners::register(tx, &new, now)?)).unwrap();
        lock
    }

    #[test]
    fn the_steps_lead_from_version_to_version_up_to_this_one() {
        let Tables { version, steps } = Tables::CURRENT;
        let froms: Vec<i64> = steps.iter().map(|step| step.from).collect();
        assert_eq!(froms, (1..version).collect::<Vec<_>>(), "from the first that was released, without a gap");
        assert_eq!(version, schema::VERSION);
    }

    #[test]
    fn a_file_of_an_older_version_is_brought_up_and_whoever_has_it_open_is_told() {
        for (tables, colour) in [(TWO, "none"), (THREE, "blue")] {
            let (house, mut old) = House::new(None);
            let mut new = house.open(&tables).unwrap();
            assert_eq!(house.ask("SELECT ifnull(colour, 'none') FROM scheduled_tasks"), colour);
            new.write("paint", |tx, _| Ok(tx.execute("UPDATE scheduled_tasks SET colour = 'red'", [])?)).unwrap();
            drop(house.open(&tables).unwrap());

            let told = format!("its tables are of version {}, written by a newer duly", tables.version);
            let read = old.read("look", |_, _| Ok(())).unwrap_err();
            let written = old.write("change", |_, _| Ok(())).unwrap_err();
            let rehearsed = old.rehearse("try", |_, _| Ok(())).unwrap_err();
            for error in [read, written, rehearsed, house.open(&Tables::CURRENT).unwrap_err()] {
                assert!(
                    matches!(error, Error::UnusableDatabase { .. }) && error.to_string().contains(&told),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_changed_while_another_owner_lives() {
        let (house, mut old) = House::new(None);
        let lock = register(&mut old, &house.file, "an-owner");
        let who = format!("(process {} on here, duly {})", std::process::id(), env!("CARGO_PKG_VERSION"));
        house.refuses(&TWO, &format!("from version 1 to 2, and a scheduler is at work on them {who}: stop it"));
        drop(lock);
        drop(house.open(&TWO).unwrap());
    }

    #[test]
    fn without_a_lock_file_only_an_owner_with_runs_is_believed() {
        let (house, mut old) = House::new(Some("an-owner"));
        register(&mut old, &house.file, "an-owner").retire();
        house.refuses(&TWO, "a scheduler that may be alive has runs (process ");
        old.write("end", |tx, _| Ok(tx.execute("UPDATE task_runs SET locked_by = 'another'", [])?)).unwrap();
        drop(house.open(&TWO).unwrap());
    }

    #[test]
    fn a_step_that_fails_takes_the_others_with_it() {
        let (house, _old) = House::new(None);
        house.refuses(&NEVER, "no such table: nobody");
    }

    #[test]
    fn a_version_that_no_step_begins_with_is_refused() {
        let (house, _old) = House::new(None);
        house.refuses(&Tables { version: 2, steps: &[] }, "knows no way from there to version 2");
        let plain = rusqlite::Connection::open(&house.file).unwrap();
        plain.execute("UPDATE scheduler_meta SET value = '0' WHERE key = 'schema_version'", []).unwrap();
        let error = house.open(&Tables::CURRENT).unwrap_err();
        assert!(error.to_string().contains("its tables are of version 0, and this duly knows no way"), "{error}");
    }
}
