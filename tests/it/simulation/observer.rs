//! A connection that reads the tables after every step, and returns what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rusqlite::types::FromSql;
use rusqlite::{OptionalExtension, Row};

use crate::simulation::rows::{Changes, RunRow, Tables, at, run, task_of};
use crate::simulation::shell::Shell;

/// A recorded attempt: its run, number, outcome and duration.
pub(crate) type Kept = (i64, u32, String, Option<i64>);

/// New rows of the append-only tables.
#[derive(Debug, Default)]
pub(crate) struct NewRows {
    /// Run, attempt, outcome and duration.
    pub(crate) attempts: Vec<Kept>,
    /// Kind, run and detail.
    pub(crate) events: Vec<(String, Option<i64>, Option<String>)>,
}

const TASKS: &str = "
    SELECT id, name, handler, schedule_type, schedule_value, time_zone, starts_at, ends_at, status, next_run, planned,
           active_since, overlap, misfire, misfire_grace_ms, catch_up_limit, max_attempts, backoff_ms, backoff_cap_ms,
           on_dead, pause_after_failures, failure_count, expires_ms, jitter_ms, priority, concurrency_key,
           on_success, on_end, on_missed, only_between, except_on, max_starts,
           when_limited
      FROM scheduled_tasks";

/// The columns of `task_runs` that are compared.
const RUNS: &str = "
    SELECT id, task_id, handler, scheduled_for, origin, retry_of, status, run_at, expires_at, blocked, attempt, forgiven,
           priority, concurrency_key, locked_by, locked_until, started_at, finished_at, error, result, cancel_requested,
           occurrences, last_scheduled_for, duration_ms, interrupted,
           (started_at IS NOT NULL OR process IS NOT NULL OR progress IS NOT NULL OR output IS NOT NULL)
      FROM task_runs";
/// The newest heartbeat, the largest ids, and the number of runs.
const COUNTERS: &str = "
    SELECT (SELECT max(seen_at) FROM scheduler_instances), (SELECT ifnull(max(id), 0) FROM task_attempts),
           (SELECT ifnull(max(id), 0) FROM scheduler_events), (SELECT ifnull(max(id), 0) FROM task_runs),
           (SELECT count(*) FROM task_runs)";
/// One of this many reads compares every row: there are hundreds, and a step may change a few of them.
const FULL_READ_EVERY: u32 = 32;

/// A read-only connection, and the tables as it last read them.
pub(crate) struct Observer {
    shell: Shell,
    pub(crate) tables: Tables,
    /// By task: its newest occurrence that has a row, and the row, which grows if it is a skip.
    newest: BTreeMap<i64, (i64, i64)>,
    version: Option<i64>,
    reads: u32,
    run: i64,
    attempt: i64,
    event: i64,
}

impl Observer {
    pub(crate) fn is_on_server(&self) -> bool {
        self.shell.is_on_server()
    }

    pub(crate) fn new(shell: Shell) -> Self {
        let (tables, newest) = (Tables::default(), BTreeMap::new());
        Observer { shell, tables, newest, version: None, reads: 0, run: 0, attempt: 0, event: 0 }
    }

    /// Returns whether the server has a session of an owner.
    pub(crate) fn has_session(&self, owner: &str) -> bool {
        self.shell.has_session(owner)
    }

    /// Returns whether something was written that needs the lock of the schema, although another session held it, and still holds it.
    /// `before`: the rows before that. A new task needs no lock.
    pub(crate) fn wrote_without_lock(&self, changes: &Changes, before: &Tables) -> bool {
        let are_new = changes.tasks.keys().all(|id| !before.tasks.contains_key(id));
        self.shell.is_locked() && !(are_new && changes.runs.is_empty())
    }

    /// Connects again after the server was restarted.
    #[cfg(feature = "postgres")]
    pub(crate) fn reconnect(&self) {
        self.shell.reconnect();
    }

    /// Forgets all that it has read.
    pub(crate) fn reset(self) -> Self {
        Observer::new(self.shell)
    }

    /// Has the next read compare every row, whether or not anything was committed.
    pub(crate) fn force_full_read(&mut self) {
        (self.reads, self.version) = (FULL_READ_EVERY - 1, None);
    }

    /// Returns what has changed since the last read, if anything was committed. Rows that may not change any more are
    /// compared only in a full read.
    pub(crate) fn read_changes(&mut self) -> Option<(Changes, NewRows)> {
        if !self.shell.is_on_server() {
            let version = self.value("PRAGMA data_version");
            if self.version == Some(version) {
                return None;
            }
            self.version = Some(version);
        }
        self.reads += 1;
        // One snapshot: locks cost more than the rows.
        self.shell.begin_snapshot();
        let mut changes = Changes::default();
        let ends = self
            .rows(COUNTERS, [], |row| (at::<Option<i64>>(row, 0), [at(row, 1), at(row, 2), at(row, 3), at(row, 4)]));
        let (seen_at, [attempt, event, run, count]): (_, [i64; 4]) = ends[0];
        self.tables.seen_at = seen_at;
        self.read_tasks(&mut changes);
        self.read_runs(&mut changes, run, count);
        let mut fresh = NewRows::default();
        if attempt > self.attempt {
            let query = "SELECT run_id, attempt, outcome, duration_ms FROM task_attempts WHERE id > ?1 ORDER BY id";
            fresh.attempts = self.rows(query, [self.attempt], |row| (at(row, 0), at(row, 1), at(row, 2), at(row, 3)));
            self.attempt = attempt;
        }
        if event > self.event {
            let query = "SELECT kind, run_id, detail FROM scheduler_events WHERE id > ?1 ORDER BY id";
            fresh.events = self.rows(query, [self.event], |row| (at(row, 0), at(row, 1), at(row, 2)));
            self.event = event;
        }
        self.shell.end_snapshot();
        Some((changes, fresh))
    }

    fn read_tasks(&mut self, changes: &mut Changes) {
        let rows = self.rows(TASKS, [], |row| task_of(row, &self.tables));
        let ids: BTreeSet<i64> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            if self.tables.tasks.get(&row.id).is_none_or(|known| !Rc::ptr_eq(known, &row)) {
                changes.tasks.insert(row.id, Some(row));
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

    fn read_runs(&mut self, changes: &mut Changes, newest: i64, count: i64) {
        let mut rows = Vec::new();
        if newest > self.run {
            rows = self.rows(&format!("{RUNS} WHERE id > ?1"), [self.run], run);
        }
        let differs = |row: &Row<'_>| {
            let known = self.tables.runs.get(&at(row, 0));
            known.is_none_or(|known| !known.is(row)).then(|| run(row))
        };
        if self.reads.is_multiple_of(FULL_READ_EVERY) {
            rows.extend(self.rows(&format!("{RUNS} WHERE id <= ?1"), [self.run], differs).into_iter().flatten());
        } else {
            let one = format!("{RUNS} WHERE id = ?1");
            let mut one = self.shell.tables().prepare_cached(&one).expect("a statement");
            let unfinished = &self.tables.unfinished;
            let newest = self.newest.values().map(|(_, id)| *id).filter(|id| !unfinished.contains_key(id));
            let may_change = unfinished.keys().copied().chain(newest);
            let differs = |id| one.query_row([id], |row| Ok(differs(row))).optional().expect("a run").flatten();
            rows.extend(may_change.filter_map(differs));
        }
        for row in rows {
            let before = self.tables.runs.get(&row.id).cloned();
            self.changed(changes, before, Some(Rc::new(row)));
        }
        if self.tables.runs.len() != usize::try_from(count).expect("a count") {
            let left: BTreeSet<i64> = self.rows("SELECT id FROM task_runs", [], |row| at(row, 0)).into_iter().collect();
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

    /// Returns the run that another one follows, by its payload and by its idempotency key; and how many runs led to it.
    pub(crate) fn followed_by(&self, run: i64) -> (i64, i64, u32) {
        let by_payload =
            self.value(&format!("SELECT ifnull(json_extract(payload, '$.id'), 0) FROM task_runs WHERE id = {run}"));
        let key: String = self.value(&format!("SELECT ifnull(request_key, '') FROM task_runs WHERE id = {run}"));
        let link = key.strip_prefix('#').and_then(|key| key.split_once('/'));
        let (parent, length) = link.unwrap_or(("0", "0"));
        (by_payload, parent.parse().unwrap_or_default(), length.parse().unwrap_or_default())
    }

    /// Whether an attempt of a run has begun, as its attempts show.
    pub(crate) fn shows_an_attempt(&self, run: i64) -> bool {
        self.value(&format!(
            "SELECT EXISTS (SELECT 1 FROM task_attempts WHERE run_id = {run} AND outcome <> 'released')"
        ))
    }

    pub(crate) fn value<T: FromSql>(&self, query: &str) -> T {
        let mut statement = self.shell.tables().prepare_cached(query).expect(query);
        statement.query_row([], |row| row.get(0)).expect(query)
    }

    pub(crate) fn rows<T>(&self, query: &str, given: impl rusqlite::Params, read: impl Fn(&Row<'_>) -> T) -> Vec<T> {
        let mut statement = self.shell.tables().prepare_cached(query).expect(query);
        let rows = statement.query_map(given, |row| Ok(read(row))).expect(query);
        rows.collect::<Result<_, _>>().expect(query)
    }
}
