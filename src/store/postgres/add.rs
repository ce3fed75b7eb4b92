//! Adds tasks whose names are free, of which almost all are: one statement inserts two hundred of them.
//!
//! The rules are those of every other way to add a task, and the columns are the same. What they need not are the rows of other tasks, the
//! tables in memory and the lock of the schema: a new task has no run, so that nothing waits for it and it waits for nothing. A turn
//! sees the task or does not, as one that another program has inserted. Only a turn that plans again what a wrong clock had planned must see
//! every task of that time: it waits for these transactions, see [`Server::await_additions`].
//!
//! If one of the names is taken, or the statement fails for any other reason, nothing is written, and the tasks are added as every
//! other change is made: that compares the tasks of a name, and words what is wrong.

use std::collections::HashSet;
use std::sync::LazyLock;

use postgres::types::ToSql;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::column::ColumnValue;
use crate::model::request::{Added, Change, Existing};
use crate::model::task::{Definition, TaskStatus};
use crate::schedule::has_fixed_meaning;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::postgres::outcome::Proof;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::server::Server;
use crate::store::postgres::{PostgresStore, json};
use crate::store::sqlite::add::planned;
use crate::store::sqlite::migration::Tables;

/// Tasks of one statement. The server ends a transaction whose client says nothing for four seconds: on a busy machine, to plan a thousand
/// may take longer. Few in unit tests, which so add them by several statements.
pub(super) const PART: usize = if cfg!(test) { 3 } else { 200 };

impl PostgresStore {
    pub(super) fn add_task(&mut self, task: &Definition, existing: Existing, now: Timestamp) -> Result<Added> {
        if let Some(added) = self.add_if_new(&[(task, existing)], "add a task", now)?.and_then(|mut added| added.pop())
        {
            return Ok(added);
        }
        let (leading, replaces) = (leading([task]), existing == Existing::Replace);
        let reach = Request::Add { names: vec![task.name.clone()], leading, replaces };
        let added = self.change(now, reach, |memory, now| Store::add(memory, task.clone(), existing, now))?;
        self.adds_new = added.change == Change::Created;
        Ok(added)
    }

    pub(super) fn add_tasks(&mut self, tasks: &[(Definition, Existing)], now: Timestamp) -> Result<Vec<Added>> {
        let new: Vec<_> = tasks.iter().map(|(task, existing)| (task, *existing)).collect();
        if let Some(added) = self.add_if_new(&new, "add tasks", now)? {
            return Ok(added);
        }
        let reach = Request::Add {
            names: tasks.iter().map(|(task, _)| task.name.clone()).collect(),
            leading: leading(tasks.iter().map(|(task, _)| task)),
            replaces: tasks.iter().any(|(_, existing)| *existing == Existing::Replace),
        };
        let added = self.change(now, reach, |memory, now| Store::add_all(memory, tasks.to_vec(), now))?;
        self.adds_new = added.iter().all(|added| added.change == Change::Created);
        Ok(added)
    }

    /// Adds tasks in one transaction, two hundred by a statement. `None`: nothing was written, and they must be added in the other way.
    fn add_if_new(
        &mut self,
        tasks: &[(&Definition, Existing)],
        doing: &'static str,
        given: Timestamp,
    ) -> Result<Option<Vec<Added>>> {
        // A caller that adds the same tasks at each start is served better by a look first.
        let may_be_new = self.adds_new && tasks.iter().all(|(_, existing)| *existing != Existing::Replace);
        #[cfg(test)]
        let may_be_new = may_be_new && !self.reads_all;
        let names: HashSet<&str> = tasks.iter().map(|(task, _)| &*task.name).collect();
        // To find out whether they lead back to themselves, other tasks are read.
        let is_refused = names.is_empty() || names.len() < tasks.len() || tasks.iter().any(|(task, _)| task.leads_on());
        if !may_be_new
            || is_refused
            || tasks.iter().any(|(task, _)| is_unstorable(task) || !has_fixed_meaning(&task.time_zone))
        {
            return Ok(None);
        }
        self.adds_new = false;
        let before = self.clock.as_ref().map(|clock| clock.before());
        let Some(begun) = self.lock().rows.server.begin_adding() else { return Ok(None) };
        let now = self.time_of(before, begun, given);
        let (mut added, mut inserted) = (Vec::with_capacity(tasks.len()), Ok(true));
        for part in tasks.chunks(PART) {
            let planned = self.plan(part, now, &mut added);
            inserted = planned.map_or(Ok(false), |new| new.insert(&mut self.lock().rows.server, now));
            if !matches!(inserted, Ok(true)) {
                break;
            }
        }
        if let Ok(true) = inserted {
            inserted = self.lock().rows.server.commit().map(|()| true);
        }
        self.end();
        match inserted {
            Ok(true) => {
                self.adds_new = true;
                Ok(Some(added))
            }
            // Whether they are stored is unknown.
            Err(fault) if fault.is_lost() => Err(self.memory.error(fault, doing)),
            Ok(false) | Err(_) => Ok(None),
        }
    }

    /// Plans new tasks, and notes what became of them.
    fn plan<'t>(
        &mut self,
        tasks: &[(&'t Definition, Existing)],
        now: Timestamp,
        added: &mut Vec<Added>,
    ) -> Result<NewTasks<'t>> {
        let mut new = NewTasks::none();
        for (task, _) in tasks {
            let schedule = task.check(now, self.memory.schedules())?;
            let (status, next_run) = planned(task, schedule, now)?;
            new.push(task, status, next_run);
            added.push(Added { name: task.name.clone(), change: Change::Created, next_run });
        }
        Ok(new)
    }
}

/// Returns the columns `on_success` and `on_end` of tasks, which name the tasks that they lead to.
pub(super) fn leading<'t>(tasks: impl IntoIterator<Item = &'t Definition>) -> Vec<String> {
    tasks.into_iter().flat_map(|task| [&task.on_success, &task.on_end]).flatten().cloned().collect()
}

/// Returns whether the server cannot store a task as it is given. The tables in memory refuse it, and say so.
fn is_unstorable(task: &Definition) -> bool {
    let is_refused = |value| matches!(value, ColumnValue::Text(text) if text.contains('\0'));
    task.values().into_iter().any(is_refused) || json::fault_of("payload", task.payload.as_bytes()).is_some()
}

/// Returns the columns of [`NewTasks`], the name first: whether they hold text, and whether they may hold NULL.
fn columns() -> impl Iterator<Item = (&'static str, bool, bool)> {
    let given = Definition::COLUMNS.iter().zip(Definition::KINDS);
    let given = given.map(|(name, (is_text, is_optional))| (*name, *is_text, *is_optional));
    given.chain([("status", true, false), ("next_run", false, true)])
}
const COLUMNS: usize = Definition::COLUMNS.len() + 2;

/// New tasks, by columns. Of each, one of both lists is filled.
struct NewTasks<'a> {
    texts: [Vec<Option<&'a str>>; COLUMNS],
    numbers: [Vec<Option<i64>>; COLUMNS],
}

impl<'a> NewTasks<'a> {
    fn none() -> Self {
        NewTasks { texts: [const { Vec::new() }; COLUMNS], numbers: [const { Vec::new() }; COLUMNS] }
    }

    fn push(&mut self, task: &'a Definition, status: TaskStatus, next_run: Option<Timestamp>) {
        let others = [ColumnValue::Text(status.as_str()), next_run.map_or(ColumnValue::Null, ColumnValue::Time)];
        for (place, (value, (_, is_text, _))) in task.values().into_iter().chain(others).zip(columns()).enumerate() {
            match value {
                ColumnValue::Text(text) => self.texts[place].push(Some(text)),
                ColumnValue::Number(number) => self.numbers[place].push(Some(number)),
                ColumnValue::Time(at) => self.numbers[place].push(Some(at.as_millis())),
                ColumnValue::Null if is_text => self.texts[place].push(None),
                ColumnValue::Null => self.numbers[place].push(None),
            }
        }
    }

    /// Inserts the tasks in the open transaction. Returns false if not all can be inserted.
    fn insert(&self, server: &mut Server, now: Timestamp) -> Result<bool, Fault> {
        let (now, version) = (now.as_millis(), Tables::CURRENT.version.to_string());
        let schema = server.address().schema().to_owned();
        let texts: Vec<_> = self.texts.iter().zip(columns()).map(|(column, (.., null))| short(column, !null)).collect();
        let numbers: Vec<_> =
            self.numbers.iter().zip(columns()).map(|(column, (.., null))| short(column, !null)).collect();
        let columns = columns().enumerate().map(|(at, (_, is_text, _))| match is_text {
            true => &texts[at] as &(dyn ToSql + Sync),
            false => &numbers[at],
        });
        let others: [&(dyn ToSql + Sync); 3] = [&now, &version, &schema];
        let params: Vec<_> = columns.chain(others).collect();
        let row = &server.query(&INSERT, &params)?[0];
        let (rows, number, timeline, schema): (i64, String, String, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        let name = self.texts[0].first().copied().flatten().unwrap_or_default();
        let condition = format!("t.name = '{name}' AND t.created_at = {now}");
        let proof = Proof { table: "scheduled_tasks", condition };
        let all = usize::try_from(rows) == Ok(self.texts[0].len());
        Ok(all && server.note_additions((number, timeline), schema, proof))
    }
}

/// Returns what is sent of a column. Most columns hold the same value in all rows of a batch: then it is sent once.
fn short<T: PartialEq>(column: &[Option<T>], is_filled: bool) -> &[Option<T>] {
    match column {
        [first, others @ ..] if (is_filled || first.is_none()) && others.iter().all(|other| other == first) => {
            &column[..1]
        }
        _ => column,
    }
}

/// Inserts all of the tasks, or none if one of their names is taken or the tables are of another version.
///
/// `unnest` is in the list of the SELECT: in FROM, the server would store each of the arrays once more. `ON CONFLICT` would take a
/// third longer, use up numbers, and leave dead rows where only some of the names are taken.
static INSERT: LazyLock<String> = LazyLock::new(|| {
    let (mut names, mut arrays, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for ((name, is_text, is_optional), place) in columns().zip(1..) {
        let of = if is_text { "text" } else { "bigint" };
        names.push(name);
        arrays.push(format!("unnest(${place}::{of}[]) AS {name}"));
        // An array that is sent short holds the value of all rows; if it may hold NULL, it is short only where all are NULL.
        let value = if !is_optional { format!("coalesce(o.{name}, ${place}[1])") } else { format!("o.{name}") };
        values.push(if name == "payload" { format!("{value}::jsonb") } else { value });
    }
    let (names, arrays, values) = (names.join(", "), arrays.join(", "), values.join(", "));
    let now = COLUMNS + 1;
    let (version, schema) = (now + 1, now + 2);
    format!(
        "WITH added AS (
             INSERT INTO scheduled_tasks ({names}, planned, active_since, created_at, updated_at)
             SELECT {values}, 1, ${now}::bigint, ${now}, ${now} FROM (SELECT {arrays}) o
              WHERE (SELECT value FROM scheduler_meta WHERE key = 'schema_version') IS NOT DISTINCT FROM ${version}::text
                AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE name = ANY ($1::text[]))
             RETURNING 1)
         SELECT count(*), pg_current_xact_id()::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
                coalesce((SELECT oid::bigint FROM pg_namespace WHERE nspname = ${schema}::text), 0) FROM added"
    )
});
