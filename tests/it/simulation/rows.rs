//! What the tables hold, read through a connection of its own after everything that happens.

use std::collections::BTreeMap;
use std::rc::Rc;

use duly::{Misfire, Origin, Overlap, RunStatus};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};

/// A row of `scheduled_tasks`, as far as it says what is promised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) handler: String,
    pub(crate) kind: String,
    pub(crate) value: String,
    pub(crate) zone: String,
    pub(crate) starts: Option<i64>,
    pub(crate) ends: Option<i64>,
    pub(crate) status: String,
    pub(crate) next_run: Option<i64>,
    pub(crate) planned: bool,
    pub(crate) active_since: i64,
    pub(crate) overlap: Overlap,
    pub(crate) misfire: Misfire,
    pub(crate) grace: i64,
    pub(crate) limit: usize,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: i64,
    pub(crate) cap: i64,
    pub(crate) on_dead: Option<String>,
    pub(crate) pause_after: Option<u32>,
    pub(crate) failures: u32,
}

impl TaskRow {
    pub(crate) fn is_active(&self) -> bool {
        self.status == "active"
    }

    /// Whether runs of it that nobody asked for by hand may not start.
    pub(crate) fn rests(&self) -> bool {
        self.status == "paused" || self.status == "invalid"
    }

    /// What its occurrences follow from.
    pub(crate) fn schedule(&self) -> (&str, &str, &str, Option<i64>, Option<i64>) {
        (&self.kind, &self.value, &self.zone, self.starts, self.ends)
    }
}

/// A row of `task_runs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRow {
    pub(crate) id: i64,
    pub(crate) task: i64,
    pub(crate) handler: String,
    pub(crate) scheduled_for: i64,
    pub(crate) origin: Origin,
    pub(crate) retry_of: Option<i64>,
    pub(crate) status: RunStatus,
    pub(crate) run_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) blocked: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) forgiven: u32,
    pub(crate) priority: u8,
    pub(crate) key: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) lease: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) cancel_requested: bool,
    pub(crate) occurrences: i64,
    pub(crate) last: Option<i64>,
}

impl RunRow {
    pub(crate) fn is_scheduled(&self) -> bool {
        matches!(self.origin, Origin::Schedule | Origin::CatchUp)
    }

    /// The newest occurrence that it stands for.
    pub(crate) fn newest(&self) -> i64 {
        self.last.unwrap_or(self.scheduled_for)
    }

    /// What it waits for, in short.
    pub(crate) fn brief(&self) -> String {
        let (blocked, key) = (self.blocked.as_deref().unwrap_or("-"), self.key.as_deref().unwrap_or("-"));
        let Self { id, task, handler, origin, status, run_at, priority, .. } = self;
        let asked = if self.cancel_requested { " asked to stop" } else { "" };
        let (attempt, forgiven) = (self.attempt, self.forgiven);
        let expires = self.expires_at.map_or_else(String::new, |at| format!(" expires {at}"));
        format!(
            "{id} of {task} {handler} {origin} {status} #{attempt}-{forgiven} at {run_at} p{priority} key {key} blocked \
             {blocked}{asked}{expires}"
        )
    }

    /// Attempts that count.
    pub(crate) fn counted(&self) -> u32 {
        self.attempt - self.forgiven
    }
}

/// The tables at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) tasks: BTreeMap<i64, Rc<TaskRow>>,
    pub(crate) runs: BTreeMap<i64, Rc<RunRow>>,
    /// The newest sign of life of any owner.
    pub(crate) seen_at: Option<i64>,
}

impl Tables {
    pub(crate) fn named(&self, name: &str) -> Option<&TaskRow> {
        self.tasks.values().map(Rc::as_ref).find(|task| task.name == name)
    }

    /// Runs that are not final.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &RunRow> {
        self.runs.values().map(Rc::as_ref).filter(|run| !run.status.is_final())
    }
}

/// What the last look has not seen of the tables that only grow.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Run, attempt and outcome.
    pub(crate) attempts: Vec<(i64, u32, String)>,
    /// Kind, run and detail.
    pub(crate) events: Vec<(String, Option<i64>, Option<String>)>,
}

const TASKS: &str = "
    SELECT id, name, handler, schedule_type, schedule_value, time_zone, starts_at, ends_at, status, next_run, planned,
           active_since, overlap, misfire, misfire_grace_ms, catch_up_limit, max_attempts, backoff_ms, backoff_cap_ms,
           on_dead, pause_after_failures, failure_count
      FROM scheduled_tasks";

/// The columns of `task_runs` that are looked at.
const COLUMNS: [&str; 23] = [
    "id",
    "task_id",
    "handler",
    "scheduled_for",
    "origin",
    "retry_of",
    "status",
    "run_at",
    "expires_at",
    "blocked",
    "attempt",
    "forgiven",
    "priority",
    "concurrency_key",
    "locked_by",
    "locked_until",
    "started_at",
    "finished_at",
    "error",
    "result",
    "cancel_requested",
    "occurrences",
    "last_scheduled_for",
];

/// Every row is held against what it was, by SQLite itself: there are hundreds, and a step changes a few.
struct Statements {
    make: String,
    changed: String,
    keep: String,
}

impl Statements {
    fn new() -> Self {
        let columns = COLUMNS.join(", ");
        let of = |table: &str| COLUMNS.map(|column| format!("{table}.{column}")).join(", ");
        let differ = COLUMNS[1..].iter().map(|column| format!("r.{column} IS NOT s.{column}")).collect::<Vec<_>>();
        Statements {
            make: format!("CREATE TEMP TABLE seen (id INTEGER PRIMARY KEY, {})", COLUMNS[1..].join(", ")),
            changed: format!(
                "SELECT {} FROM main.task_runs r LEFT JOIN temp.seen s ON s.id = r.id WHERE s.id IS NULL OR {}",
                of("r"),
                differ.join(" OR ")
            ),
            keep: format!(
                "INSERT OR REPLACE INTO temp.seen ({columns}) SELECT {columns} FROM main.task_runs WHERE id = ?1"
            ),
        }
    }
}

/// A connection that only looks.
pub(crate) struct Look {
    connection: Connection,
    statements: Statements,
    tables: Tables,
    version: Option<i64>,
    attempt: i64,
    event: i64,
}

impl Look {
    pub(crate) fn new(connection: Connection) -> Self {
        let statements = Statements::new();
        connection.execute_batch(&statements.make).expect("a table of its own");
        Look { connection, statements, tables: Tables::default(), version: None, attempt: 0, event: 0 }
    }

    /// The tables as they are now, if anybody has committed since the last look.
    pub(crate) fn again(&mut self) -> Option<(Tables, News)> {
        let version = self.ask("PRAGMA data_version");
        if self.version == Some(version) {
            return None;
        }
        self.version = Some(version);
        for row in self.all(TASKS, [], task) {
            if self.tables.tasks.get(&row.id).is_none_or(|known| **known != row) {
                self.tables.tasks.insert(row.id, Rc::new(row));
            }
        }
        self.forget_the_gone();
        for row in self.all(&self.statements.changed, [], run) {
            self.connection
                .prepare_cached(&self.statements.keep)
                .expect("a statement")
                .execute([row.id])
                .expect("a copy");
            self.tables.runs.insert(row.id, Rc::new(row));
        }
        self.tables.seen_at = self.ask("SELECT max(seen_at) FROM scheduler_instances");
        let attempts = "SELECT run_id, attempt, outcome, id FROM task_attempts WHERE id > ?1 ORDER BY id";
        let attempts = self.all(attempts, [self.attempt], |row| (at(row, 3), (at(row, 0), at(row, 1), at(row, 2))));
        self.attempt = attempts.last().map_or(self.attempt, |(id, _)| *id);
        let events = "SELECT kind, run_id, detail, id FROM scheduler_events WHERE id > ?1 ORDER BY id";
        let events = self.all(events, [self.event], |row| (at(row, 3), (at(row, 0), at(row, 1), at(row, 2))));
        self.event = events.last().map_or(self.event, |(id, _)| *id);
        let (attempts, events) =
            (attempts.into_iter().map(|(_, row)| row).collect(), events.into_iter().map(|(_, row)| row).collect());
        Some((self.tables.clone(), News { attempts, events }))
    }

    /// Takes note of tasks and runs that were removed.
    fn forget_the_gone(&mut self) {
        let tasks: i64 = self.ask("SELECT count(*) FROM scheduled_tasks");
        let seen = "SELECT count(*) FROM temp.seen WHERE id IN (SELECT id FROM main.task_runs)";
        let gone = self.tables.tasks.len() != usize::try_from(tasks).expect("a count")
            || self.tables.runs.len() != usize::try_from(self.ask::<i64>(seen)).expect("a count");
        if gone {
            let ids = |query| self.all(query, [], |row| at::<i64>(row, 0));
            let (tasks, runs) = (ids("SELECT id FROM scheduled_tasks"), ids("SELECT id FROM main.task_runs"));
            self.tables.tasks.retain(|id, _| tasks.contains(id));
            self.tables.runs.retain(|id, _| runs.contains(id));
            let forget = "DELETE FROM temp.seen WHERE id NOT IN (SELECT id FROM main.task_runs)";
            self.connection.execute(forget, []).expect("a removal");
        }
    }

    /// The one value of a query.
    pub(crate) fn ask<T: FromSql>(&self, query: &str) -> T {
        let mut statement = self.connection.prepare_cached(query).expect(query);
        statement.query_row([], |row| row.get(0)).expect(query)
    }

    fn all<T>(&self, query: &str, given: impl rusqlite::Params, read: impl Fn(&Row<'_>) -> T) -> Vec<T> {
        let mut statement = self.connection.prepare_cached(query).expect(query);
        let rows = statement.query_map(given, |row| Ok(read(row))).expect(query);
        rows.collect::<Result<_, _>>().expect(query)
    }
}

fn at<T: FromSql>(row: &Row<'_>, column: usize) -> T {
    row.get(column).expect("a column")
}

/// A column that is spelled as text.
fn word<T>(row: &Row<'_>, column: usize, parse: impl Fn(&str) -> Option<T>) -> T {
    parse(row.get_ref(column).expect("a column").as_str().expect("text")).expect("a word of the tables")
}

fn task(row: &Row<'_>) -> TaskRow {
    TaskRow {
        id: at(row, 0),
        name: at(row, 1),
        handler: at(row, 2),
        kind: at(row, 3),
        value: at(row, 4),
        zone: at(row, 5),
        starts: at(row, 6),
        ends: at(row, 7),
        status: at(row, 8),
        next_run: at(row, 9),
        planned: at(row, 10),
        active_since: at(row, 11),
        overlap: word(row, 12, Overlap::parse),
        misfire: word(row, 13, Misfire::parse),
        grace: at(row, 14),
        limit: at::<u32>(row, 15) as usize,
        max_attempts: at(row, 16),
        backoff: at(row, 17),
        cap: at(row, 18),
        on_dead: at(row, 19),
        pause_after: at(row, 20),
        failures: at(row, 21),
    }
}

fn run(row: &Row<'_>) -> RunRow {
    RunRow {
        id: at(row, 0),
        task: at(row, 1),
        handler: at(row, 2),
        scheduled_for: at(row, 3),
        origin: word(row, 4, Origin::parse),
        retry_of: at(row, 5),
        status: word(row, 6, RunStatus::parse),
        run_at: at(row, 7),
        expires_at: at(row, 8),
        blocked: at(row, 9),
        attempt: at(row, 10),
        forgiven: at(row, 11),
        priority: at(row, 12),
        key: at(row, 13),
        owner: at(row, 14),
        lease: at(row, 15),
        started_at: at(row, 16),
        finished_at: at(row, 17),
        error: at(row, 18),
        result: at(row, 19),
        cancel_requested: at(row, 20),
        occurrences: at(row, 21),
        last: at(row, 22),
    }
}
