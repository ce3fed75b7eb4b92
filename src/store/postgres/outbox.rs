//! Adds a task inside a transaction of the application, on the application's own connection to the same database.

use postgres::types::ToSql;
use postgres::{Row, Transaction};
use rusqlite::params_from_iter;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::request::{Added, Existing};
use crate::model::task::Definition;
use crate::store::fault::Fault;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::refusals::Refusals;
use crate::store::postgres::sheets::{Cell, all};
use crate::store::postgres::tables::{Kind, Table};
use crate::store::postgres::text::refuse;
use crate::store::sqlite::{add, file};

const DOING: &str = "add a task in a transaction";

const WHERE: &str = "
    SELECT system_identifier::text, current_database()::text, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
           coalesce(current_setting('duly.store', true), '') FROM pg_control_system()";

impl PostgresStore {
    /// Adds a task inside `tx`. If it cannot be added, the transaction is as it was before.
    pub(crate) fn add_in(
        &mut self,
        tx: &mut Transaction<'_>,
        task: &Definition,
        existing: Existing,
        now: Timestamp,
    ) -> Result<Added> {
        self.try_add_in(tx, task, existing, now).map_err(|fault| fault.into_error(DOING))
    }

    fn try_add_in(
        &mut self,
        tx: &mut Transaction<'_>,
        task: &Definition,
        existing: Existing,
        now: Timestamp,
    ) -> Result<Added, Fault> {
        let (system, database) = self.identity()?;
        let mut within = tx.savepoint("duly_within")?;
        let row = within.query_one(WHERE, &[])?;
        let (found_system, found): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if (&found_system, &found) != (&system, &database) {
            let server = if found_system == system { "" } else { "another server: " };
            let request = format!("add task {:?} in a transaction", task.name);
            let reason = format!(
                "it is on {server}{found}, and the tasks are in {database}: begin it on a connection to that database"
            );
            return Err(Error::Refused { request, reason }.into());
        }
        let now = if self.follows_server() { Timestamp::from_millis(row.try_get(2)?) } else { now };
        // What the application itself writes in this transaction is another program's.
        let before: String = row.try_get(3)?;
        let set = "SELECT set_config('duly.store', $1, true)";
        within.execute(set, &[&"on"])?;
        let added = add_within(&mut within, &self.address().quoted_schema(), task, existing, now)?;
        within.execute(set, &[&before])?;
        within.commit()?;
        Ok(added)
    }
}

/// Compares the task with the stored one of its name, or inserts it. Another transaction may add one of its name meanwhile.
fn add_within(
    tx: &mut Transaction<'_>,
    schema: &str,
    task: &Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    refuse("name", &task.name)?;
    let mut memory = file::in_memory()?;
    Refusals::on(&memory)?;
    let table = Table::read(&memory, "scheduled_tasks")?;
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    loop {
        let columns: Vec<String> = table
            .columns
            .iter()
            .map(|column| match column.kind {
                Kind::Json => format!("{}::text", column.name),
                Kind::Integer | Kind::Text => column.name.clone(),
            })
            .collect();
        let stored = tx.query_opt(
            &format!("SELECT {} FROM {schema}.scheduled_tasks WHERE name = $1", columns.join(", ")),
            &[&task.name],
        )?;
        let local = memory.transaction()?;
        if let Some(stored) = &stored {
            let places = vec!["?"; names.len()].join(", ");
            let insert = format!("INSERT INTO scheduled_tasks ({}) VALUES ({places})", names.join(", "));
            local.execute(&insert, params_from_iter(cells(&table, stored)?))?;
        }
        let added = add::put_alone(&local, task.clone(), existing, now)?;
        if stored.is_some() {
            // It is the same task: what differs was refused.
            return Ok(added);
        }
        let new = all(&local, &table)?;
        local.rollback()?;
        if insert(tx, schema, &table, new.first().map_or(&[], Vec::as_slice))? {
            return Ok(added);
        }
    }
}

fn cells(table: &Table, row: &Row) -> Result<Vec<Cell>, Fault> {
    let cell = |(at, kind): (usize, Kind)| {
        Ok(match kind {
            Kind::Integer => row.try_get::<_, Option<i64>>(at)?.map_or(Cell::Null, Cell::Integer),
            Kind::Text | Kind::Json => row.try_get::<_, Option<String>>(at)?.map_or(Cell::Null, Cell::Text),
        })
    };
    table.columns.iter().map(|column| column.kind).enumerate().map(cell).collect()
}

/// Inserts a task, whose number the server assigns. Returns false if there is one of its name by now.
fn insert(tx: &mut Transaction<'_>, schema: &str, table: &Table, cells: &[Cell]) -> Result<bool, Fault> {
    let given = (0..cells.len()).filter(|at| !table.key.contains(at));
    let (mut names, mut places) = (Vec::new(), Vec::new());
    let mut values: Vec<Box<dyn ToSql + Sync>> = Vec::new();
    for at in given {
        let column = &table.columns[at];
        names.push(column.name.as_str());
        places.push(match column.kind {
            Kind::Integer => format!("${}::bigint", names.len()),
            Kind::Text => format!("${}::text", names.len()),
            Kind::Json => format!("${}::text::jsonb", names.len()),
        });
        values.push(match (&cells[at], column.kind) {
            (Cell::Integer(number), _) => Box::new(Some(*number)),
            (Cell::Text(text), _) => Box::new(Some(text.clone())),
            (Cell::Null, Kind::Integer) => Box::new(None::<i64>),
            (Cell::Null, Kind::Text | Kind::Json) => Box::new(None::<String>),
        });
    }
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value).collect();
    let statement = format!(
        "INSERT INTO {schema}.scheduled_tasks ({}) VALUES ({}) ON CONFLICT (name) DO NOTHING",
        names.join(", "),
        places.join(", ")
    );
    Ok(tx.execute(&statement, &values)? == 1)
}
