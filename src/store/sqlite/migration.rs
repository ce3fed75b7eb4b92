//! Migrates the tables from one version to the next: in one transaction, and only while no other scheduler uses them.
//!
//! A scheduler of the older version would continue with statements for other tables. If one does start, each of its
//! transactions checks the version first: it claims nothing more, and shuts down.

use std::path::Path;

use rusqlite::{Transaction, named_params};

use crate::host::owner_lock::{Standing, standing};
use crate::store::fault::Fault;
use crate::store::sqlite::schema::{self, Contents, unusable};

/// One step: from a version to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The version that it starts from.
    pub(crate) from: i64,
    /// The changes. Columns of outcomes keep their meaning: a scheduler of the version before may still have outcomes to write.
    pub(crate) sql: &'static str,
}

/// A version of the tables, and the steps to it from older ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    pub(crate) version: i64,
    /// Oldest first, without a gap, up to `version`.
    pub(crate) steps: &'static [Step],
}

impl Tables {
    /// The version of this program. No older one was released.
    pub(crate) const CURRENT: Tables = Tables { version: schema::VERSION, steps: &[] };
}

const SET_VERSION: &str = "UPDATE scheduler_meta SET value = :version WHERE key = 'schema_version'";

/// Migrates tables of an older version, inside the caller's transaction.
pub(crate) fn migrate(tx: &Transaction<'_>, path: &Path, found: i64, to: &Tables) -> Result<(), Fault> {
    let Some(begin) = to.steps.iter().position(|step| step.from == found) else {
        let reason =
            format!("its tables are of version {found}, and this duly cannot migrate them to version {}", to.version);
        return Err(unusable(path, reason));
    };
    refuse_beside_others(tx, path, found, to.version)?;
    for step in &to.steps[begin..] {
        tx.execute_batch(step.sql)?;
    }
    tx.execute(SET_VERSION, named_params! { ":version": to.version.to_string() })?;
    // The result must equal the tables of a new file.
    match schema::examine(tx, path, to.version)? {
        Contents::Ours(version) if version == to.version => Ok(()),
        other => Err(unusable(path, format!("its tables are {other:?} after their migration to {}", to.version))),
    }
}

const NOT_STOPPED: &str = "
    SELECT i.id, i.host, i.pid, i.version,
           EXISTS (SELECT 1 FROM task_runs r WHERE r.status = 'running' AND r.locked_by = i.id)
      FROM scheduler_instances i WHERE i.stopped_at IS NULL";

/// Fails while a scheduler uses the tables, or one that is not proved dead has runs. A scheduler that idles without a lock file
/// is most likely dead, and detects the new version if it is not.
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
                format!("a scheduler uses them ({who}): stop it, and start this program again")
            }
            Standing::Missing if !row.get(4)? => continue,
            Standing::Missing => format!(
                "a scheduler that may be alive has runs ({who}): stop it; if it is dead, let duly {version} recover them first"
            ),
            Standing::Unknown(why) => format!("whether a scheduler is alive cannot be known ({who}): {why}"),
        };
        let reason = format!("its tables are to be migrated from version {found} to {to}, and {reason}");
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
    const BROKEN: Step = Step { from: 2, sql: "UPDATE scheduled_tasks SET colour = 'red'; UPDATE no_table SET x = 1" };
    const TWO: Tables = Tables { version: 2, steps: &[TO_TWO] };
    const THREE: Tables = Tables { version: 3, steps: &[TO_TWO, TO_THREE] };
    const NEVER: Tables = Tables { version: 3, steps: &[TO_TWO, BROKEN] };

    struct Site {
        _home: tempfile::TempDir,
        file: PathBuf,
    }

    impl Site {
        /// Creates a file of version 1 with one task, and a running run of this owner.
        fn new(owner: Option<&str>) -> (Self, SqliteStore) {
            let home = tempfile::tempdir().unwrap();
            let site = Site { file: home.path().join("t.db"), _home: home };
            let mut store = site.open(&Tables::CURRENT).unwrap();
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
            (site, store)
        }

        fn open(&self, tables: &Tables) -> Result<SqliteStore, Error> {
            SqliteStore::open_as(&self.file, Missing::Create, Durability::Full, tables)
        }

        /// Asserts that opening fails with this message and changes nothing.
        fn refuses(&self, tables: &Tables, expected: &str) {
            let error = self.open(tables).unwrap_err();
            assert!(matches!(error, Error::UnusableDatabase { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(self.query("SELECT value FROM scheduler_meta WHERE key = 'schema_version'"), "1");
            assert_eq!(
                self.query("SELECT count(*) FROM pragma_table_info('scheduled_tasks') WHERE name = 'colour'"),
                "0"
            );
        }

        fn query(&self, query: &str) -> String {
            let plain = rusqlite::Connection::open(&self.file).unwrap();
            plain.query_row(&format!("SELECT CAST(({query}) AS TEXT)"), [], |row| row.get(0)).unwrap()
        }
    }

    /// Registers an owner, as a scheduler does.
    fn register(store: &mut SqliteStore, path: &Path, owner: &str) -> OwnerLock {
        let lock = OwnerLock::take(path, owner).unwrap();
        let (owner, host) = (owner.to_owned(), "here".to_owned());
        let new = Registration {
            owner,
            host,
            workers: 4,
            lease: Duration::from_secs(60),
            zone_data: String::new(),
            problems: None,
        };
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
    fn an_older_file_is_migrated_and_older_programs_that_have_it_open_get_an_error() {
        for (tables, colour) in [(TWO, "none"), (THREE, "blue")] {
            let (site, mut old) = Site::new(None);
            let mut new = site.open(&tables).unwrap();
            assert_eq!(site.query("SELECT ifnull(colour, 'none') FROM scheduled_tasks"), colour);
            new.write("paint", |tx, _| Ok(tx.execute("UPDATE scheduled_tasks SET colour = 'red'", [])?)).unwrap();
            drop(site.open(&tables).unwrap());

            let expected = format!("its tables are of version {}, written by a newer duly", tables.version);
            let read = old.read("look", |_, _| Ok(())).unwrap_err();
            let written = old.write("change", |_, _| Ok(())).unwrap_err();
            let rehearsed = old.rehearse("try", |_, _| Ok(())).unwrap_err();
            for error in [read, written, rehearsed, site.open(&Tables::CURRENT).unwrap_err()] {
                assert!(
                    matches!(error, Error::UnusableDatabase { .. }) && error.to_string().contains(&expected),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_migrated_while_another_owner_is_alive() {
        let (site, mut old) = Site::new(None);
        let lock = register(&mut old, &site.file, "an-owner");
        let process = format!("(process {} on here, duly {})", std::process::id(), env!("CARGO_PKG_VERSION"));
        site.refuses(&TWO, &format!("from version 1 to 2, and a scheduler uses them {process}: stop it"));
        drop(lock);
        drop(site.open(&TWO).unwrap());
    }

    #[test]
    fn without_a_lock_file_only_an_owner_with_runs_counts_as_alive() {
        let (site, mut old) = Site::new(Some("an-owner"));
        register(&mut old, &site.file, "an-owner").retire();
        site.refuses(&TWO, "a scheduler that may be alive has runs (process ");
        old.write("end", |tx, _| Ok(tx.execute("UPDATE task_runs SET locked_by = 'another'", [])?)).unwrap();
        drop(site.open(&TWO).unwrap());
    }

    #[test]
    fn a_step_that_fails_takes_the_others_with_it() {
        let (site, _old) = Site::new(None);
        site.refuses(&NEVER, "no such table: no_table");
    }

    #[test]
    fn a_version_that_no_step_begins_with_is_refused() {
        let (site, _old) = Site::new(None);
        site.refuses(&Tables { version: 2, steps: &[] }, "cannot migrate them to version 2");
        let plain = rusqlite::Connection::open(&site.file).unwrap();
        plain.execute("UPDATE scheduler_meta SET value = '0' WHERE key = 'schema_version'", []).unwrap();
        let error = site.open(&Tables::CURRENT).unwrap_err();
        assert!(
            error.to_string().contains("its tables are of version 0, and this duly cannot migrate them"),
            "{error}"
        );
    }
}
