//! The rows that one transaction needs, in the tables of an SQLite database in memory: the operations of the SQLite store work on
//! them there, and what they change is written back by sets.
//!
//! So both stores have one implementation of every rule. [`crate::store::postgres::reach`] says which rows an operation may read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postgres::types::ToSql;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Transaction, params_from_iter};

use crate::error::Error;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::reach::Reach;
use crate::store::postgres::server::Server;
use crate::store::postgres::tables::{Kind, TABLES, Table};
use crate::store::sqlite::connection::Backing;

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    Null,
    Integer(i64),
    Text(String),
}

impl rusqlite::ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Integer(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

/// A row as it was read from the server, and the transaction that wrote it there: if another one writes it before this
/// transaction does, all is repeated.
#[derive(Clone, Debug)]
struct Row {
    cells: Vec<Cell>,
    written_by: i64,
}

/// What is known of one table.
#[derive(Debug)]
struct Sheet {
    table: Table,
    /// By primary key.
    rows: HashMap<Vec<Cell>, Row>,
    /// The number after which the server assigns the next, of a numbered table.
    last: i64,
}

impl Sheet {
    fn key(&self, cells: &[Cell]) -> Vec<Cell> {
        self.table.key.iter().map(|at| cells[*at].clone()).collect()
    }
}

/// The server's side of a store in memory.
#[derive(Debug)]
pub(crate) struct Workbench {
    pub(crate) server: Server,
    /// The rows that the operation needs; `None` before they were read.
    pub(crate) reach: Option<Reach>,
    sheets: Vec<Sheet>,
    /// Whether the rows of the open transaction are in `sheets`.
    filled: bool,
    /// Whether another transaction changed what this one read: it must be repeated.
    pub(crate) collided: bool,
}

impl Workbench {
    pub(crate) fn new(server: Server, memory: &rusqlite::Connection) -> rusqlite::Result<Self> {
        let sheet = |name| Ok(Sheet { table: Table::read(memory, name)?, rows: HashMap::new(), last: 0 });
        let sheets = TABLES.into_iter().map(sheet).collect::<rusqlite::Result<_>>()?;
        Ok(Workbench { server, reach: None, sheets, filled: false, collided: false })
    }

    /// Prepares for an operation that reads these rows. The transaction is open.
    pub(crate) fn aim(&mut self, reach: Reach) {
        (self.reach, self.filled, self.collided) = (Some(reach), false, false);
        self.sheets.iter_mut().for_each(|sheet| sheet.rows.clear());
    }

    /// Ends the transaction, if the operation has not committed.
    pub(crate) fn end(&mut self) {
        self.collided |= self.server.take_repeat();
        self.server.roll_back();
        self.reach = None;
    }

    /// Reads rows of a table that satisfy a condition. Rows that were read before stay as they were.
    pub(crate) fn read(
        &mut self,
        table: &str,
        condition: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<usize, Fault> {
        let Workbench { server, sheets, .. } = self;
        let Some(sheet) = sheets.iter_mut().find(|sheet| sheet.table.name == table) else {
            return Err(Error::store("read from the server", format!("no table {table}")).into());
        };
        let columns: Vec<String> = sheet
            .table
            .columns
            .iter()
            .map(|column| match column.kind {
                Kind::Json => format!("t.{}::text", column.name),
                Kind::Integer | Kind::Text => format!("t.{}", column.name),
            })
            .collect();
        let statement = format!("SELECT {}, t.xmin::text::bigint FROM {table} t {condition}", columns.join(", "));
        let found = server.query(&statement, params)?;
        for row in &found {
            let mut cells = Vec::with_capacity(columns.len());
            for (at, column) in sheet.table.columns.iter().enumerate() {
                cells.push(match column.kind {
                    Kind::Integer => row.try_get::<_, Option<i64>>(at)?.map_or(Cell::Null, Cell::Integer),
                    Kind::Text | Kind::Json => row.try_get::<_, Option<String>>(at)?.map_or(Cell::Null, Cell::Text),
                });
            }
            let key = sheet.key(&cells);
            let written_by = row.try_get(columns.len())?;
            sheet.rows.entry(key).or_insert(Row { cells, written_by });
        }
        Ok(found.len())
    }

    /// Returns the values of a column of the rows that were read.
    pub(crate) fn column(&self, table: &str, column: &str) -> Vec<Cell> {
        let Some(sheet) = self.sheets.iter().find(|sheet| sheet.table.name == table) else { return Vec::new() };
        let Some(at) = sheet.table.columns.iter().position(|c| c.name == column) else { return Vec::new() };
        sheet.rows.values().map(|row| row.cells[at].clone()).collect()
    }

    /// Reads the numbers after which the server assigns the next.
    fn read_numbers(&mut self) -> Result<(), Fault> {
        let Workbench { server, sheets, .. } = self;
        let numbered: Vec<usize> = (0..sheets.len()).filter(|at| sheets[*at].table.numbered).collect();
        let last = numbered.iter().map(|at| {
            let name = sheets[*at].table.name;
            format!("(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {name}_id_seq)")
        });
        let statement = format!("SELECT {}", last.collect::<Vec<_>>().join(", "));
        let rows = server.query(&statement, &[])?;
        for (at, sheet) in numbered.into_iter().enumerate() {
            sheets[sheet].last = rows[0].try_get(at)?;
        }
        Ok(())
    }

    /// Writes the rows that were read into the tables.
    fn spread(&self, tables: &Transaction<'_>) -> Result<(), Fault> {
        for sheet in &self.sheets {
            let Table { name, columns, numbered, .. } = &sheet.table;
            if *numbered {
                tables.prepare_cached("DELETE FROM sqlite_sequence WHERE name = ?1")?.execute([name])?;
                tables
                    .prepare_cached("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)")?
                    .execute(rusqlite::params![name, sheet.last])?;
            }
            if sheet.rows.is_empty() {
                continue;
            }
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            let places = vec!["?"; names.len()].join(", ");
            let mut insert =
                tables.prepare_cached(&format!("INSERT INTO {name} ({}) VALUES ({places})", names.join(", ")))?;
            for row in sheet.rows.values() {
                insert.execute(params_from_iter(&row.cells))?;
            }
        }
        Ok(())
    }

    /// Writes what differs from the rows that were read.
    fn write_back(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let Workbench { server, sheets, collided, .. } = self;
        let mut differences = Vec::new();
        for sheet in &*sheets {
            let mut before: HashMap<&Vec<Cell>, &Row> = sheet.rows.iter().collect();
            let (mut changed, mut new) = (Vec::new(), Vec::new());
            for cells in all(tables, &sheet.table)? {
                match before.remove(&sheet.key(&cells)) {
                    Some(row) if row.cells == cells => {}
                    Some(row) => changed.push((row, cells)),
                    None => new.push(cells),
                }
            }
            differences.push((sheet, before.into_values().collect::<Vec<_>>(), changed, new));
        }
        // What refers to a row is deleted before it.
        for (sheet, gone, ..) in differences.iter().rev() {
            Changes { server, sheet, collided }.delete(gone)?;
        }
        for (sheet, _, changed, new) in differences {
            let mut written = Changes { server, sheet, collided };
            // A run that leaves its slot makes room for another, in the unique index too.
            let leaves = |row: &Row, cells: &[Cell]| {
                let status = sheet.table.columns.iter().position(|column| column.name == "locked_by");
                status.is_some_and(|at| row.cells[at] != Cell::Null && cells[at] == Cell::Null)
            };
            let (leaving, others): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(row, cells)| leaves(row, cells));
            written.update(&leaving)?;
            written.update(&others)?;
            written.insert(new)?;
        }
        Ok(())
    }
}

/// What belongs to a row of a table and is deleted with it, whether it was read or not. The triggers of the tables do the same for
/// other programs.
const BELONGINGS: [(&str, &[&str]); 2] = [
    (
        "scheduled_tasks",
        &[
            "DELETE FROM task_attempts a USING task_runs r WHERE r.task_id = ANY ($1) AND a.run_id = r.id",
            "DELETE FROM task_effects e USING task_runs r WHERE r.task_id = ANY ($1) AND e.run_id = r.id",
            "DELETE FROM task_runs r WHERE r.task_id = ANY ($1)",
            "DELETE FROM scheduler_events e WHERE e.task_id = ANY ($1)",
        ],
    ),
    (
        "task_runs",
        &[
            "DELETE FROM task_attempts a WHERE a.run_id = ANY ($1)",
            "DELETE FROM task_effects e WHERE e.run_id = ANY ($1)",
        ],
    ),
];

/// Reads all rows of a table.
fn all(tables: &Transaction<'_>, table: &Table) -> rusqlite::Result<Vec<Vec<Cell>>> {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let mut statement = tables.prepare_cached(&format!("SELECT {} FROM {}", names.join(", "), table.name))?;
    let rows = statement.query_map([], |row| {
        (0..names.len())
            .map(|at| {
                Ok(match row.get_ref(at)? {
                    ValueRef::Integer(number) => Cell::Integer(number),
                    ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
                    ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Cell::Null,
                })
            })
            .collect()
    })?;
    rows.collect()
}

/// A column of rows, as an array for the server.
enum Array {
    Integers(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
}

impl Array {
    fn of<'a>(kind: Kind, cells: impl Iterator<Item = &'a Cell>) -> Self {
        match kind {
            Kind::Integer => Array::Integers(
                cells.map(|cell| if let Cell::Integer(number) = cell { Some(*number) } else { None }).collect(),
            ),
            Kind::Text | Kind::Json => Array::Texts(
                cells.map(|cell| if let Cell::Text(text) = cell { Some(text.clone()) } else { None }).collect(),
            ),
        }
    }

    fn param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Array::Integers(numbers) => numbers,
            Array::Texts(texts) => texts,
        }
    }
}

const fn array_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "bigint[]",
        Kind::Text | Kind::Json => "text[]",
    }
}

/// What a transaction changed in one table.
struct Changes<'a> {
    server: &'a mut Server,
    sheet: &'a Sheet,
    collided: &'a mut bool,
}

impl Changes<'_> {
    /// Fails if another transaction has changed a row since it was read.
    fn expect(&mut self, written: u64, expected: usize) -> Result<(), Fault> {
        if usize::try_from(written).is_ok_and(|written| written == expected) {
            return Ok(());
        }
        *self.collided = true;
        let name = self.sheet.table.name;
        Err(Fault::Store(Class::Busy, format!("another program changed rows of {name} at the same time").into()))
    }

    /// The condition that a row of the table is the one that was read: its key, and the transaction that wrote it.
    fn same(&self) -> String {
        let columns = &self.sheet.table.columns;
        let keys = self.sheet.table.key.iter().map(|at| format!("t.{0} = o.{0}", columns[*at].name));
        format!("{} AND t.xmin::text::bigint = o.written_by_", keys.collect::<Vec<_>>().join(" AND "))
    }

    fn delete(&mut self, gone: &[&Row]) -> Result<(), Fault> {
        if gone.is_empty() {
            return Ok(());
        }
        let Table { name, columns, key, .. } = &self.sheet.table;
        let mut arrays: Vec<Array> =
            key.iter().map(|at| Array::of(columns[*at].kind, gone.iter().map(|row| &row.cells[*at]))).collect();
        for statement in BELONGINGS.iter().filter(|(of, _)| of == name).flat_map(|(_, statements)| *statements) {
            self.server.execute(statement, &[arrays[0].param()])?;
        }
        arrays.push(Array::Integers(gone.iter().map(|row| Some(row.written_by)).collect()));
        let mut names: Vec<&str> = key.iter().map(|at| columns[*at].name.as_str()).collect();
        names.push("written_by_");
        let kinds = key.iter().map(|at| columns[*at].kind).chain([Kind::Integer]);
        let places: Vec<String> = kinds.zip(1..).map(|(kind, at)| format!("${at}::{}", array_type(kind))).collect();
        let statement = format!(
            "DELETE FROM {name} t USING unnest({}) AS o({}) WHERE {}",
            places.join(", "),
            names.join(", "),
            self.same()
        );
        let params: Vec<_> = arrays.iter().map(Array::param).collect();
        let written = self.server.execute(&statement, &params)?;
        self.expect(written, gone.len())
    }

    fn update(&mut self, changed: &[(&Row, Vec<Cell>)]) -> Result<(), Fault> {
        let Table { name, columns, key, .. } = &self.sheet.table;
        let differs = |at: usize| changed.iter().any(|(row, cells)| row.cells[at] != cells[at]);
        let set: Vec<usize> = (0..columns.len()).filter(|at| differs(*at)).collect();
        if set.is_empty() {
            return Ok(());
        }
        let mut arrays: Vec<Array> =
            key.iter().map(|at| Array::of(columns[*at].kind, changed.iter().map(|(row, _)| &row.cells[*at]))).collect();
        arrays.push(Array::Integers(changed.iter().map(|(row, _)| Some(row.written_by)).collect()));
        arrays.extend(set.iter().map(|at| Array::of(columns[*at].kind, changed.iter().map(|(_, cells)| &cells[*at]))));
        let mut names: Vec<String> = key.iter().map(|at| columns[*at].name.clone()).collect();
        names.push("written_by_".to_owned());
        names.extend(set.iter().map(|at| format!("new_{}", columns[*at].name)));
        let kinds =
            key.iter().map(|at| columns[*at].kind).chain([Kind::Integer]).chain(set.iter().map(|at| columns[*at].kind));
        let places: Vec<String> = kinds.zip(1..).map(|(kind, at)| format!("${at}::{}", array_type(kind))).collect();
        let values = set.iter().map(|at| match columns[*at].kind {
            Kind::Json => format!("{0} = o.new_{0}::jsonb", columns[*at].name),
            Kind::Integer | Kind::Text => format!("{0} = o.new_{0}", columns[*at].name),
        });
        let statement = format!(
            "UPDATE {name} t SET {} FROM unnest({}) AS o({}) WHERE {}",
            values.collect::<Vec<_>>().join(", "),
            places.join(", "),
            names.join(", "),
            self.same()
        );
        let params: Vec<_> = arrays.iter().map(Array::param).collect();
        let written = self.server.execute(&statement, &params)?;
        self.expect(written, changed.len())
    }

    /// Inserts rows. The server assigns their numbers: if another program was given one of those that SQLite chose, all is repeated.
    fn insert(&mut self, mut new: Vec<Vec<Cell>>) -> Result<(), Fault> {
        if new.is_empty() {
            return Ok(());
        }
        let Table { name, columns, key, numbered } = &self.sheet.table;
        let number = |cells: &Vec<Cell>| if let Cell::Integer(number) = cells[key[0]] { number } else { 0 };
        if *numbered {
            new.sort_unstable_by_key(number);
        }
        let arrays: Vec<Array> =
            (0..columns.len()).map(|at| Array::of(columns[at].kind, new.iter().map(|cells| &cells[at]))).collect();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let places: Vec<String> =
            columns.iter().zip(1..).map(|(column, at)| format!("${at}::{}", array_type(column.kind))).collect();
        let values: Vec<String> = columns
            .iter()
            .map(|column| match column.kind {
                Kind::Json => format!("o.{}::jsonb", column.name),
                Kind::Integer | Kind::Text => format!("o.{}", column.name),
            })
            .collect();
        let chosen = if *numbered { format!("nextval('{name}_id_seq')") } else { "0".to_owned() };
        // The numbers are taken first, in order, and compared with those that SQLite chose.
        let statement = format!(
            "WITH taken AS MATERIALIZED (SELECT {chosen} AS number FROM generate_series(1, cardinality($1)))
             , added AS (INSERT INTO {name} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM unnest({}) AS o({}) RETURNING 1)
             SELECT min(number)::bigint, max(number)::bigint, (SELECT count(*) FROM added) FROM taken",
            names.join(", "),
            values.join(", "),
            places.join(", "),
            names.join(", ")
        );
        let statement = if *numbered { statement } else { statement.replace("OVERRIDING SYSTEM VALUE ", "") };
        let params: Vec<_> = arrays.iter().map(Array::param).collect();
        let rows = self.server.query(&statement, &params)?;
        let (first, last): (i64, i64) = (rows[0].try_get(0)?, rows[0].try_get(1)?);
        let written: i64 = rows[0].try_get(2)?;
        self.expect(written.unsigned_abs(), new.len())?;
        if *numbered && (Some(first), Some(last)) != (new.first().map(number), new.last().map(number)) {
            self.expect(0, new.len())?;
        }
        Ok(())
    }
}

/// A workbench that the store in memory and the store of the server share.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Workbench>>);

impl Shared {
    pub(crate) fn new(workbench: Workbench) -> Self {
        Shared(Arc::new(Mutex::new(workbench)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Workbench> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backing for Shared {
    fn fill(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let mut bench = self.lock();
        if !bench.filled {
            bench.read_numbers()?;
            if let Some(reach) = bench.reach.take() {
                let read = reach.read(&mut bench);
                bench.reach = Some(reach);
                read?;
            }
            bench.filled = true;
        }
        bench.spread(tables)
    }

    fn commit(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let mut bench = self.lock();
        bench.write_back(tables)?;
        bench.server.commit()
    }
}
