//! The rows of one transaction: read from the server by tables, spread in the tables of SQLite, and compared after the operation.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use postgres::types::ToSql;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Rows, Transaction, params_from_iter};

use crate::error::Error;
use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::postgres::tables::{Column, Kind, TABLES, Table};
use crate::store::postgres::text::storable;

/// How often numbers are taken one by one before others are skipped.
const RESERVATIONS: usize = 10;
/// Numbers that are skipped: far more than others take during one statement.
const SKIPPED: i64 = 10_000;

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) written_by: i64,
}

/// Of a row that the open transaction itself has written: no other one can change it.
pub(super) const OWN: i64 = 0;

/// What is known of one table.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) table: Table,
    /// By primary key.
    rows: HashMap<Vec<Cell>, Row>,
    /// What the open transaction has written of them before its end. `None`: deleted.
    written: HashMap<Vec<Cell>, Option<Row>>,
    /// The number after which the server assigns the next, of a numbered table.
    pub(super) last: i64,
    /// Numbers of new rows that the server has assigned before.
    pub(super) reserved: Range<i64>,
    /// The columns that an update has ever changed. All updates set them: otherwise almost every update would be another statement.
    pub(super) updated: BTreeSet<usize>,
}

impl Sheet {
    fn key(&self, cells: &[Cell]) -> Vec<Cell> {
        self.table.key.iter().map(|at| cells[*at].clone()).collect()
    }

    /// Returns a row as the open transaction sees it on the server.
    pub(super) fn stored(&self, key: &Vec<Cell>) -> Option<&Row> {
        self.written.get(key).map_or_else(|| self.rows.get(key), Option::as_ref)
    }

    /// Returns whether the open transaction has written a part of its changes.
    pub(super) fn is_partly_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Notes that changes were written.
    pub(super) fn note(&mut self, written: Written) {
        let Written { gone, changed } = written;
        for cells in gone {
            self.written.insert(self.key(&cells), None);
        }
        for cells in changed {
            if let (true, Cell::Integer(number)) = (self.table.numbered, &cells[self.table.key[0]]) {
                self.last = self.last.max(*number);
            }
            self.written.insert(self.key(&cells), Some(Row { cells, written_by: OWN }));
        }
    }
}

/// The rows that were deleted, and those that were changed or inserted.
#[derive(Debug)]
pub(super) struct Written {
    gone: Vec<Vec<Cell>>,
    changed: Vec<Vec<Cell>>,
}

/// What differs between the rows of a table that were read and those that the operation left.
pub(super) struct Difference<'a> {
    pub(super) sheet: &'a Sheet,
    pub(super) gone: Vec<&'a Row>,
    pub(super) changed: Vec<(&'a Row, Vec<Cell>)>,
    pub(super) new: Vec<Vec<Cell>>,
}

impl Difference<'_> {
    pub(super) fn is_none(&self) -> bool {
        self.gone.is_empty() && self.changed.is_empty() && self.new.is_empty()
    }

    /// Returns what is on the server after this was written.
    pub(super) fn into_written(self) -> Written {
        let gone = self.gone.into_iter().map(|row| row.cells.clone()).collect();
        Written { gone, changed: self.changed.into_iter().map(|(_, cells)| cells).chain(self.new).collect() }
    }
}

/// The session with the server, and the rows that were read in its open transaction.
#[derive(Debug)]
pub(crate) struct Sheets {
    pub(crate) server: Server,
    pub(super) sheets: Vec<Sheet>,
    /// The keys behind which all was read that a request may look at.
    pub(super) keys: HashSet<String>,
}

impl Sheets {
    pub(super) fn new(server: Server, memory: &rusqlite::Connection) -> rusqlite::Result<Self> {
        let sheet = |name| {
            let (rows, written) = (HashMap::new(), HashMap::new());
            Ok(Sheet {
                table: Table::read(memory, name)?,
                rows,
                written,
                last: 0,
                reserved: 0..0,
                updated: BTreeSet::new(),
            })
        };
        let sheets = TABLES.into_iter().map(sheet).collect::<rusqlite::Result<_>>()?;
        Ok(Sheets { server, sheets, keys: HashSet::new() })
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        for sheet in &mut self.sheets {
            sheet.rows.clear();
            sheet.written.clear();
            sheet.reserved = 0..0;
        }
    }

    /// Reads rows of a table that satisfy a condition. Rows that were read before stay as they were.
    pub(crate) fn read(
        &mut self,
        table: &str,
        condition: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<usize, Fault> {
        self.read_without(&[], table, condition, params)
    }

    /// As [`Sheets::read`], for an operation that writes none of these rows, with NULL in some columns.
    pub(crate) fn read_without(
        &mut self,
        left_out: &[&str],
        table: &str,
        condition: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<usize, Fault> {
        let Sheets { server, sheets, .. } = self;
        let Some(sheet) = sheets.iter_mut().find(|sheet| sheet.table.name == table) else {
            return Err(Error::store("read from the server", format!("no table {table}")).into());
        };
        let columns: Vec<String> = sheet
            .table
            .columns
            .iter()
            .map(|column| match column.kind {
                _ if left_out.contains(&column.name.as_str()) => "NULL::text".to_owned(),
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

    /// Reads all rows of all tables.
    pub(crate) fn read_everything(&mut self) -> Result<(), Fault> {
        self.read_numbers()?;
        TABLES.into_iter().try_for_each(|table| self.read(table, "", &[]).map(|_| ()))
    }

    /// Returns the values of a column of the rows that were read.
    pub(crate) fn column(&self, table: &str, column: &str) -> Vec<Cell> {
        let Some(sheet) = self.sheets.iter().find(|sheet| sheet.table.name == table) else { return Vec::new() };
        let Some(at) = sheet.table.columns.iter().position(|c| c.name == column) else { return Vec::new() };
        sheet.rows.values().map(|row| row.cells[at].clone()).collect()
    }

    /// As [`Sheets::read`], of several tables in one statement. `instead`: an expression in place of a column; `numbers`: whether the
    /// numbers after which the server assigns the next are read too.
    pub(crate) fn read_together(
        &mut self,
        parts: &[(&'static str, &str)],
        instead: Option<((&str, &str), &str)>,
        numbers: bool,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Fault> {
        let numbers = numbers.then(|| format!("SELECT -1, ARRAY[{}]::text[], 0", self.numbers()));
        let Sheets { server, sheets, .. } = self;
        let mut statements = Vec::new();
        for (table, condition) in parts {
            let Some(at) = sheets.iter().position(|sheet| sheet.table.name == *table) else {
                return Err(Error::store("read from the server", format!("no table {table}")).into());
            };
            let value = |column: &Column| match instead {
                Some((of, expression)) if of == (*table, column.name.as_str()) => expression.to_owned(),
                _ => format!("t.{}::text", column.name),
            };
            let columns: Vec<String> = sheets[at].table.columns.iter().map(value).collect();
            let columns = columns.join(", ");
            statements.push(format!("SELECT {at}, ARRAY[{columns}], t.xmin::text::bigint FROM {table} t {condition}"));
        }
        statements.extend(numbers);
        for row in server.query(&statements.join("\nUNION ALL\n"), params)? {
            let at: i32 = row.try_get(0)?;
            let values: Vec<Option<String>> = row.try_get(1)?;
            let Some(sheet) = usize::try_from(at).ok().and_then(|at| sheets.get_mut(at)) else {
                let numbered = sheets.iter_mut().filter(|sheet| sheet.table.numbered);
                for (sheet, number) in numbered.zip(values) {
                    sheet.last = number.and_then(|number| number.parse().ok()).unwrap_or_default();
                }
                continue;
            };
            let cells = sheet.table.columns.iter().zip(values).map(|(column, value)| match (column.kind, value) {
                (_, None) => Cell::Null,
                (Kind::Integer, Some(value)) => value.parse().map_or(Cell::Null, Cell::Integer),
                (Kind::Text | Kind::Json, Some(value)) => Cell::Text(value),
            });
            let cells: Vec<Cell> = cells.collect();
            let written_by = row.try_get(2)?;
            sheet.rows.entry(sheet.key(&cells)).or_insert(Row { cells, written_by });
        }
        Ok(())
    }

    /// Returns the expressions of a statement that reads the numbers after which the server assigns the next.
    pub(crate) fn numbers(&self) -> String {
        let numbered = self.sheets.iter().filter(|sheet| sheet.table.numbered);
        let last = numbered.map(|sheet| {
            let name = sheet.table.name;
            format!("(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {name}_id_seq)")
        });
        last.collect::<Vec<_>>().join(", ")
    }

    /// Takes what the expressions of [`Sheets::numbers`] returned, from this column on.
    pub(crate) fn take_numbers(&mut self, row: &postgres::Row, first: usize) -> Result<(), Fault> {
        let numbered = self.sheets.iter_mut().filter(|sheet| sheet.table.numbered);
        numbered.zip(first..).try_for_each(|(sheet, column)| {
            sheet.last = row.try_get(column)?;
            Ok(())
        })
    }

    pub(crate) fn read_numbers(&mut self) -> Result<(), Fault> {
        let statement = format!("SELECT {}", self.numbers());
        let rows = self.server.query(&statement, &[])?;
        self.take_numbers(&rows[0], 0)
    }

    /// Takes numbers that follow each other for the new rows of a table. Other programs that add many rows would otherwise be given
    /// one of them each time before the transaction has written its rows.
    pub(super) fn reserve(&mut self, table: &str, count: i64) -> Result<(), Fault> {
        let Sheets { server, sheets, .. } = self;
        let Some(sheet) = sheets.iter_mut().find(|sheet| sheet.table.name == table) else { return Ok(()) };
        let take = format!(
            "SELECT min(number), max(number)
               FROM (SELECT nextval('{table}_id_seq') AS number FROM generate_series(1, $1::bigint)) AS taken"
        );
        for _ in 0..RESERVATIONS {
            let row = &server.query(&take, &[&count])?[0];
            let (first, last): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            if last - first + 1 == count {
                (sheet.last, sheet.reserved) = (first - 1, first..last + 1);
                return Ok(());
            }
        }
        // Others take numbers between these. Those beyond the next thousands can only be theirs after this statement.
        let skip = format!("SELECT setval('{table}_id_seq', last_value + $1 + $2) FROM {table}_id_seq");
        let last: i64 = server.query(&skip, &[&SKIPPED, &count])?[0].try_get(0)?;
        (sheet.last, sheet.reserved) = (last - count, last - count + 1..last + 1);
        Ok(())
    }

    /// Has the tables number new rows from those on that the server assigns next.
    pub(super) fn spread_numbers(&self, tables: &Transaction<'_>) -> Result<(), Fault> {
        for sheet in self.sheets.iter().filter(|sheet| sheet.table.numbered) {
            let name = sheet.table.name;
            tables.prepare_cached("DELETE FROM sqlite_sequence WHERE name = ?1")?.execute([name])?;
            tables
                .prepare_cached("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)")?
                .execute(rusqlite::params![name, sheet.last])?;
        }
        Ok(())
    }

    /// Writes the rows that were read into the tables.
    pub(super) fn spread(&self, tables: &Transaction<'_>) -> Result<(), Fault> {
        self.spread_numbers(tables)?;
        for sheet in &self.sheets {
            let Table { name, columns, .. } = &sheet.table;
            if sheet.rows.is_empty() {
                continue;
            }
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            let places = vec!["?"; names.len()].join(", ");
            let mut insert =
                tables.prepare_cached(&format!("INSERT INTO {name} ({}) VALUES ({places})", names.join(", ")))?;
            // In the order of the table and of most indexes, which is faster.
            let mut rows: Vec<&Row> = sheet.rows.values().collect();
            if sheet.table.numbered {
                let key = sheet.table.key[0];
                rows.sort_unstable_by(|one, other| one.cells[key].cmp(&other.cells[key]));
            }
            for row in rows {
                insert.execute(params_from_iter(&row.cells))?;
            }
        }
        Ok(())
    }
}

/// Compares the rows of a table with those that were read.
pub(super) fn difference<'a>(tables: &Transaction<'_>, sheet: &'a Sheet) -> rusqlite::Result<Difference<'a>> {
    let mut before: HashMap<&Vec<Cell>, &Row> = sheet.rows.iter().collect();
    let (mut changed, mut new) = (Vec::new(), Vec::new());
    for cells in all(tables, &sheet.table)? {
        match before.remove(&sheet.key(&cells)) {
            Some(row) if row.cells == cells => {}
            Some(row) => changed.push((row, cells)),
            None => new.push(cells),
        }
    }
    Ok(Difference { sheet, gone: before.into_values().collect(), changed, new })
}

/// Compares the rows of a table with those that the open transaction sees on the server. `touched`: the numbers of the rows that may
/// differ, of a numbered table.
pub(super) fn pending<'a>(
    tables: &Transaction<'_>,
    sheet: &'a Sheet,
    touched: &BTreeSet<i64>,
) -> rusqlite::Result<Difference<'a>> {
    let mut difference = Difference { sheet, gone: Vec::new(), changed: Vec::new(), new: Vec::new() };
    let mut compare = |key: &Vec<Cell>, cells: Option<Vec<Cell>>| match (sheet.stored(key), cells) {
        (Some(row), Some(cells)) if row.cells == cells => {}
        (Some(row), Some(cells)) => difference.changed.push((row, cells)),
        (Some(row), None) => difference.gone.push(row),
        (None, Some(cells)) => difference.new.push(cells),
        (None, None) => {}
    };
    if sheet.table.numbered {
        let names: Vec<&str> = sheet.table.columns.iter().map(|column| column.name.as_str()).collect();
        let statement = format!("SELECT {} FROM {} WHERE id = ?1", names.join(", "), sheet.table.name);
        let mut statement = tables.prepare_cached(&statement)?;
        for id in touched {
            compare(&vec![Cell::Integer(*id)], cells_of(&mut statement.query([id])?)?.pop());
        }
        return Ok(difference);
    }
    let mut now: HashMap<Vec<Cell>, Vec<Cell>> =
        all(tables, &sheet.table)?.into_iter().map(|cells| (sheet.key(&cells), cells)).collect();
    let known: HashSet<&Vec<Cell>> = sheet.rows.keys().chain(sheet.written.keys()).collect();
    for key in known {
        compare(key, now.remove(key));
    }
    difference.new.extend(now.into_values());
    Ok(difference)
}

/// Reads all rows of a table.
pub(super) fn all(tables: &Transaction<'_>, table: &Table) -> rusqlite::Result<Vec<Vec<Cell>>> {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let mut statement = tables.prepare_cached(&format!("SELECT {} FROM {}", names.join(", "), table.name))?;
    cells_of(&mut statement.query([])?)
}

fn cells_of(rows: &mut Rows<'_>) -> rusqlite::Result<Vec<Vec<Cell>>> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut cells = Vec::with_capacity(row.as_ref().column_count());
        for at in 0..row.as_ref().column_count() {
            cells.push(match row.get_ref(at)? {
                ValueRef::Integer(number) => Cell::Integer(number),
                ValueRef::Text(text) => Cell::Text(storable(String::from_utf8_lossy(text))),
                ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Cell::Null,
            });
        }
        found.push(cells);
    }
    Ok(found)
}
