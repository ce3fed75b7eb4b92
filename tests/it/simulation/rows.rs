//! What the tables hold, read through a connection of its own after everything that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use duly::{Misfire, Origin, Overlap, RunStatus};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row};

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
    pub(crate) expires: Option<i64>,
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
    /// Those that are not final.
    unfinished: BTreeMap<i64, Rc<RunRow>>,
    /// The newest sign of life of any owner.
    pub(crate) seen_at: Option<i64>,
}

impl Tables {
    pub(crate) fn named(&self, name: &str) -> Option<&TaskRow> {
        self.tasks.values().map(Rc::as_ref).find(|task| task.name == name)
    }

    /// Runs that are not final.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &RunRow> {
        self.unfinished.values().map(Rc::as_ref)
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
           on_dead, pause_after_failures, failure_count, expires_ms
      FROM scheduled_tasks";

/// The columns of `task_runs` that are looked at.
const RUNS: &str = "
    SELECT id, task_id, handler, scheduled_for, origin, retry_of, status, run_at, expires_at, blocked, attempt, forgiven,
           priority, concurrency_key, locked_by, locked_until, started_at, finished_at, error, result, cancel_requested,
           occurrences, last_scheduled_for
      FROM task_runs";
/// Looks of which one reads every row: there are hundreds, and a step may change a few of them.
const WHOLE: u32 = 32;

/// A run before and after, as far as there was one.
pub(crate) type Changed = (Option<Rc<RunRow>>, Option<Rc<RunRow>>);

/// What a look has found to differ from the one before.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) tasks: BTreeMap<i64, Option<Rc<TaskRow>>>,
    pub(crate) runs: Vec<Changed>,
}

impl Tables {
    /// Takes over what has changed.
    pub(crate) fn follow(&mut self, changes: &Changes, after: &Tables) {
        for (id, task) in &changes.tasks {
            match task {
                Some(task) => self.tasks.insert(*id, task.clone()),
                None => self.tasks.remove(id),
            };
        }
        for (before, after) in &changes.runs {
            self.put(before.as_deref().map(|run| run.id), after.clone());
        }
        self.seen_at = after.seen_at;
    }

    fn put(&mut self, gone: Option<i64>, run: Option<Rc<RunRow>>) {
        match (gone, run) {
            (_, Some(run)) => {
                if run.status.is_final() {
                    self.unfinished.remove(&run.id);
                } else {
                    self.unfinished.insert(run.id, run.clone());
                }
                self.runs.insert(run.id, run);
            }
            (Some(id), None) => {
                self.unfinished.remove(&id);
                self.runs.remove(&id);
            }
            (None, None) => {}
        }
    }
}

/// A connection that only looks.
pub(crate) struct Look {
    connection: Connection,
    pub(crate) tables: Tables,
    /// Of each task the newest occurrence that has a row, and that row: it grows, if it is a skip.
    newest: BTreeMap<i64, (i64, i64)>,
    version: Option<i64>,
    looks: u32,
    run: i64,
    attempt: i64,
    event: i64,
}

impl Look {
    pub(crate) fn new(connection: Connection) -> Self {
        let (tables, newest) = (Tables::default(), BTreeMap::new());
        Look { connection, tables, newest, version: None, looks: 0, run: 0, attempt: 0, event: 0 }
    }

    /// What has changed since the last look, if anybody has committed. A row that nothing may change any more is looked at
    /// now and then only.
    pub(crate) fn again(&mut self) -> Option<(Changes, News)> {
        let version = self.ask("PRAGMA data_version");
        if self.version == Some(version) {
            return None;
        }
        self.version = Some(version);
        self.looks += 1;
        // One snapshot: locks cost more than the rows.
        self.connection.execute_batch("BEGIN").expect("a snapshot");
        let mut changes = Changes::default();
        self.look_at_tasks(&mut changes);
        self.look_at_runs(&mut changes);
        self.tables.seen_at = self.ask("SELECT max(seen_at) FROM scheduler_instances");
        let attempts = "SELECT run_id, attempt, outcome, id FROM task_attempts WHERE id > ?1 ORDER BY id";
        let attempts = self.all(attempts, [self.attempt], |row| (at(row, 3), (at(row, 0), at(row, 1), at(row, 2))));
        self.attempt = attempts.last().map_or(self.attempt, |(id, _)| *id);
        let events = "SELECT kind, run_id, detail, id FROM scheduler_events WHERE id > ?1 ORDER BY id";
        let events = self.all(events, [self.event], |row| (at(row, 3), (at(row, 0), at(row, 1), at(row, 2))));
        self.event = events.last().map_or(self.event, |(id, _)| *id);
        self.connection.execute_batch("COMMIT").expect("its end");
        let (attempts, events) =
            (attempts.into_iter().map(|(_, row)| row).collect(), events.into_iter().map(|(_, row)| row).collect());
        Some((changes, News { attempts, events }))
    }

    fn look_at_tasks(&mut self, changes: &mut Changes) {
        let rows = self.all(TASKS, [], task);
        let ids: BTreeSet<i64> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            if self.tables.tasks.get(&row.id).is_none_or(|known| **known != row) {
                changes.tasks.insert(row.id, Some(Rc::new(row)));
            }
        }
        changes.tasks.extend(self.tables.tasks.keys().filter(|id| !ids.contains(id)).map(|id| (*id, None)));
        for (id, row) in &changes.tasks {
            match row {
                Some(row) => self.tables.tasks.insert(*id, row.clone()),
                None => self.tables.tasks.remove(id),
            };
        }
    }

    fn look_at_runs(&mut self, changes: &mut Changes) {
        let mut rows = self.all(&format!("{RUNS} WHERE id > ?1"), [self.run], run);
        let known = if self.looks.is_multiple_of(WHOLE) {
            self.all(&format!("{RUNS} WHERE id <= ?1"), [self.run], run)
        } else {
            let one = format!("{RUNS} WHERE id = ?1");
            let mut one = self.connection.prepare_cached(&one).expect("a statement");
            let may_change = self.tables.unfinished.keys().copied().chain(self.newest.values().map(|(_, id)| *id));
            may_change.filter_map(|id| one.query_row([id], |row| Ok(run(row))).optional().expect("a run")).collect()
        };
        rows.extend(known);
        for row in rows {
            let before = self.tables.runs.get(&row.id).cloned();
            if before.as_deref() != Some(&row) {
                self.changed(changes, before, Some(Rc::new(row)));
            }
        }
        let count: i64 = self.ask("SELECT count(*) FROM task_runs");
        if self.tables.runs.len() != usize::try_from(count).expect("a count") {
            let left: BTreeSet<i64> = self.all("SELECT id FROM task_runs", [], |row| at(row, 0)).into_iter().collect();
            let gone: Vec<_> = self.tables.runs.values().filter(|row| !left.contains(&row.id)).cloned().collect();
            for row in gone {
                self.changed(changes, Some(row), None);
            }
        }
        changes
            .runs
            .sort_by_key(|(before, after)| (after.is_none(), after.as_ref().or(before.as_ref()).map(|run| run.id)));
    }

    fn changed(&mut self, changes: &mut Changes, before: Option<Rc<RunRow>>, after: Option<Rc<RunRow>>) {
        self.tables.put(before.as_deref().map(|run| run.id), after.clone());
        let begins = |row: &RunRow| Some((row.scheduled_for, row.id)).filter(|_| row.is_scheduled());
        match (&before, &after) {
            (_, Some(row)) => {
                self.run = self.run.max(row.id);
                if let Some(begins) = begins(row) {
                    let newest = self.newest.entry(row.task).or_insert(begins);
                    *newest = begins.max(*newest);
                }
            }
            (Some(row), None) if self.newest.get(&row.task).is_some_and(|(_, id)| *id == row.id) => {
                let left = self.tables.runs.values().filter(|run| run.task == row.task);
                let newest = left.filter_map(|run| begins(run)).max();
                self.newest.remove(&row.task);
                self.newest.extend(newest.map(|newest| (row.task, newest)));
            }
            _ => {}
        }
        changes.runs.push((before, after));
    }

    /// The run whose death an `on_dead` run tells of.
    pub(crate) fn dead_run_of(&self, run: i64) -> i64 {
        self.ask(&format!("SELECT ifnull(json_extract(payload, '$.id'), 0) FROM task_runs WHERE id = {run}"))
    }

    /// The one value of a query.
    pub(crate) fn ask<T: FromSql>(&self, query: &str) -> T {
        let mut statement = self.connection.prepare_cached(query).expect(query);
        statement.query_row([], |row| row.get(0)).expect(query)
    }

    pub(crate) fn all<T>(&self, query: &str, given: impl rusqlite::Params, read: impl Fn(&Row<'_>) -> T) -> Vec<T> {
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
        expires: at(row, 22),
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
