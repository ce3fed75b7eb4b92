//! A status page that is open during the simulation: a connection that keeps a snapshot for many turns and reads the views.
//! It sees one consistent moment of the file, in which every rule holds.

use std::collections::BTreeSet;

use duly::{RunStatus, Timestamp};
use rusqlite::Row;

use crate::simulation::history::Check;
use crate::simulation::rows::Tables;
use crate::simulation::scenario::Scenario;
use crate::simulation::shell::Shell;
use crate::store_sql::constants;

/// The rules, each a query that finds violations. They are evaluated in this connection's snapshot.
const RULES: &str = include_str!("../../../src/store/sqlite/invariants.rs");
/// Later than every due time.
const LATE: &str = "9223372036854775807";
/// A task is overdue after this many milliseconds.
const OVERDUE: i64 = 300_000;

pub(crate) struct Reader {
    shell: Shell,
    /// The tables when its snapshot began.
    began: Option<Tables>,
}

impl Reader {
    pub(crate) fn new(shell: Shell) -> Self {
        Reader { shell, began: None }
    }

    /// Connects again after the server was restarted.
    #[cfg(feature = "postgres")]
    pub(crate) fn reconnect(&self) {
        self.shell.reconnect();
    }

    fn begin(&mut self, tables: &Tables) {
        self.shell.begin_snapshot();
        self.began = Some(tables.clone());
    }

    /// Ends the snapshot without reading.
    pub(crate) fn close(&mut self) {
        if self.began.take().is_some() {
            self.shell.end_snapshot();
        }
    }

    /// Reads all that the page shows, and ends the snapshot.
    fn end(&mut self, now: i64) -> Check {
        let Some(tables) = self.began.take() else { return Ok(()) };
        let checked =
            self.check_history(&tables).and_then(|()| self.check_views(&tables, now)).and_then(|()| self.check_rules());
        self.shell.end_snapshot();
        checked
    }

    fn rows<T: Ord>(&self, query: &str, read: impl Fn(&Row<'_>) -> rusqlite::Result<T>) -> BTreeSet<T> {
        let mut statement = self.shell.tables().prepare_cached(query).expect(query);
        let rows = statement.query_map([], |row| read(row)).expect(query);
        rows.collect::<Result<_, _>>().expect(query)
    }

    fn check_history(&self, tables: &Tables) -> Check {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?));
        let found = self.rows("SELECT id, status, attempt FROM task_runs", read);
        let expected = tables.runs.values().map(|run| (run.id, run.status.to_string(), run.attempt)).collect();
        same("runs", &found, &expected)
    }

    fn check_views(&self, tables: &Tables, now: i64) -> Check {
        let read = |row: &Row<'_>| {
            let next: Option<String> = row.get(2)?;
            let next = next.map(|next| next.parse::<Timestamp>().expect("an instant").as_millis());
            Ok((row.get(0)?, row.get(1)?, next, row.get(3)?))
        };
        let found = self.rows("SELECT name, status, next_run, failure_count FROM task_overview", read);
        let of = |task: &crate::simulation::rows::TaskRow| {
            (task.name.clone(), task.status.clone(), task.next_run, task.failures)
        };
        same("task_overview", &found, &tables.tasks.values().map(|task| of(task)).collect())?;

        let name = |row: &Row<'_>| row.get::<_, String>(0);
        let found = self.rows("SELECT name FROM failing_tasks", name);
        let failing = tables.tasks.values().filter(|task| task.failures >= 2).map(|task| task.name.clone());
        same("failing_tasks", &found, &failing.collect())?;

        // The connection's clock is a little ahead of the scenario's. How long an unplanned row has waited is not recorded.
        let planned = tables.tasks.values().filter(|task| task.is_active() && task.planned);
        let overdue = planned.filter(|task| task.next_run.is_some_and(|next| next <= now - OVERDUE));
        let overdue: BTreeSet<String> = overdue.map(|task| task.name.clone()).collect();
        let mut found = self.rows("SELECT name FROM overdue_tasks", name);
        found.retain(|name| tables.named(name).is_some_and(|task| task.planned));
        same("overdue_tasks", &found, &overdue)?;

        let found = self.rows("SELECT id FROM stuck_runs WHERE past = 'lease'", |row| row.get(0));
        let running = tables.runs.values().filter(|run| run.status == RunStatus::Running);
        let past = running.filter(|run| run.lease.is_some_and(|lease| lease <= now));
        same("stuck_runs", &found, &past.map(|run| run.id).collect())
    }

    /// Each rule holds in this snapshot, whatever was committed since.
    fn check_rules(&self) -> Check {
        let texts = constants(RULES).into_iter().map(|(_, text)| text);
        for text in texts.filter(|text| text.trim_start().starts_with("SELECT") && text.contains(":limit")) {
            let broken = self.rows(&text.replace(":limit", "5").replace(":before", LATE), |row| {
                Ok(format!("{:?}", row.get_ref(0)?))
            });
            if !broken.is_empty() {
                return Err(format!("a rule is broken in a reader's snapshot: {broken:?}, by {text}"));
            }
        }
        Ok(())
    }
}

fn same<T: Ord + std::fmt::Debug>(what: &str, found: &BTreeSet<T>, expected: &BTreeSet<T>) -> Check {
    if found == expected {
        return Ok(());
    }
    let (more, less): (Vec<_>, Vec<_>) = (found.difference(expected).collect(), expected.difference(found).collect());
    Err(format!("a reader of {what} sees {more:?} in excess, and misses {less:?}"))
}

impl Scenario {
    /// Begins a snapshot, or, turns later, reads all in it and ends it.
    pub(crate) fn step_reader(&mut self) -> Check {
        let now = self.wall();
        if self.database.reader.began.is_some() {
            return self.database.reader.end(now);
        }
        self.database.reader.begin(&self.history.tables);
        if self.once_in(3) { self.database.reader.end(now) } else { Ok(()) }
    }
}
