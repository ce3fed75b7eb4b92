//! Copies all rows of a file into an empty schema, or of a schema into an empty file, and compares both before the commit.
//!
//! Rows are streamed: at most a few are in memory, for each may hold a megabyte.

use postgres::Row;
use rusqlite::types::ValueRef;
use rusqlite::{Transaction, params_from_iter};

use crate::error::{Error, Result};
use crate::model::json_value::same_value;
use crate::model::progress_meter::Progress;
use crate::model::report::Migrated;
use crate::store::fault::Fault;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::client::outside_of_runtimes;
use crate::store::postgres::server::{Access, Server};
use crate::store::postgres::sheets::Cell;
use crate::store::postgres::tables::{Kind, TABLES, Table};
use crate::store::postgres::{holder, json, text};
use crate::store::sqlite::connection::SqliteStore;

const DOING: &str = "migrate";

/// Rows after which progress is reported.
const STEP: u64 = 1_000;

/// Bytes that are written to the server at once, about.
const CHUNK: usize = 1024 * 1024;

/// Whether duly has made the payload of a run: it describes another run. So does that of each run that retries it.
const DESCRIBES_ANOTHER: &str = "
    origin LIKE 'on\\_%' ESCAPE '\\' OR retry_of IS NOT NULL AND EXISTS (
        WITH RECURSIVE retried (id, retry_of, origin) AS (
            SELECT r.id, r.retry_of, r.origin FROM task_runs r WHERE r.id = task_runs.retry_of
             UNION
            SELECT r.id, r.retry_of, r.origin FROM task_runs r JOIN retried ON r.id = retried.retry_of)
        SELECT 1 FROM retried WHERE origin LIKE 'on\\_%' ESCAPE '\\')";

/// The rows of `scheduler_meta` that belong to the tasks. The others describe the tables.
const META: &str = "(key LIKE 'zone%' OR key LIKE 'clock%' OR key = 'misplanned')";

/// The copy may take longer than a turn, and no scheduler is running. Programs that write by SQL wait until it has ended; an autovacuum of
/// the tables is cancelled after a second. Before an ANALYZE the server has no statistics of the new rows, and would sort all of them on
/// disk instead of reading an index.
const SETTINGS: &str = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
                        SET LOCAL lock_timeout = '30s'; SET LOCAL enable_sort = off";

/// Where the rows are copied from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToFile,
}

/// Copies all rows in one transaction of the side that is written. `progress` counts rows, each twice: copied and compared.
pub(crate) fn migrate(
    file: &mut SqliteStore,
    server: &mut PostgresStore,
    direction: Direction,
    progress: &Progress,
) -> Result<Migrated> {
    // The rows are streamed.
    outside_of_runtimes(move || {
        let mut bench = server.lock();
        let server = &mut bench.rows.server;
        server.set_answer_limit(server.address().long_answer_limit());
        let migrated = match direction {
            Direction::ToServer => file.rehearse(DOING, |tx, _| {
                let migrated = Move::begin(tx, server, direction, progress)?.copy()?;
                server.commit()?;
                Ok(migrated)
            }),
            Direction::ToFile => file.write(DOING, |tx, _| Move::begin(tx, server, direction, progress)?.copy()),
        };
        server.roll_back();
        if direction == Direction::ToServer && migrated.is_ok() {
            analyze(server);
        }
        migrated
    })
}

/// Collects statistics of the new rows: autovacuum would do so minutes later. A role that does not own the tables may not do it.
fn analyze(server: &mut Server) {
    if let Err(fault) = server.batch(&format!("SET statement_timeout = 0; ANALYZE {}", TABLES.join(", "))) {
        log::warn!("cannot run ANALYZE after the migration: {fault}");
    }
}

struct Move<'a> {
    file: &'a Transaction<'a>,
    server: &'a mut Server,
    direction: Direction,
    progress: &'a Progress,
    done: u64,
}

impl<'a> Move<'a> {
    /// Holds off every writer of both sides, and refuses what cannot be copied.
    fn begin(
        file: &'a Transaction<'a>,
        server: &'a mut Server,
        direction: Direction,
        progress: &'a Progress,
    ) -> Result<Self, Fault> {
        server.begin(Access::Write)?;
        server.batch(&format!("{SETTINGS}; SET LOCAL application_name = '{}'", holder::MIGRATES))?;
        server.batch(&format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", TABLES.join(", ")))?;
        let mut this = Move { file, server, direction, progress, done: 0 };
        this.refuse_live_source()?;
        this.refuse_full_target()?;
        let rows = TABLES.iter().try_fold(0, |sum, table| Ok::<_, Fault>(sum + this.count(direction, table)?))?;
        progress.set_total(u64::try_from(rows * 2).unwrap_or_default());
        Ok(this)
    }

    fn copy(mut self) -> Result<Migrated, Fault> {
        let mut migrated = Migrated::default();
        let tables = TABLES.map(|name| Table::read(self.file, name));
        let tables = tables.into_iter().collect::<Result<Vec<_>, _>>()?;
        for table in &tables {
            match self.direction {
                Direction::ToServer => migrated.replaced += self.fill_server(table)?,
                Direction::ToFile => self.fill_file(table)?,
            }
            let rows = self.compare(table)?;
            match table.name {
                "scheduled_tasks" => migrated.tasks = rows,
                "task_runs" => migrated.runs = rows,
                "scheduler_meta" => {}
                _ => migrated.others += rows,
            }
        }
        // Last: a rollback does not reset a sequence.
        tables.iter().filter(|table| table.numbered).try_for_each(|table| self.continue_numbers(table))?;
        self.progress.complete();
        Ok(migrated)
    }

    /// A number from the source, or from the target.
    fn ask(&mut self, of: Direction, statement: &str) -> Result<i64, Fault> {
        match of {
            Direction::ToServer => Ok(self.file.query_row(statement, [], |row| row.get(0))?),
            Direction::ToFile => Ok(self.server.query(statement, &[])?[0].try_get(0)?),
        }
    }

    fn count(&mut self, of: Direction, table: &str) -> Result<i64, Fault> {
        self.ask(of, &format!("SELECT count(*) FROM {table}"))
    }

    /// A scheduler that has not recorded its end may live, and a run that is running may have a process.
    fn refuse_live_source(&mut self) -> Result<(), Fault> {
        let advice = "stop the schedulers of the source; if one was killed, `duly run --until-idle` recovers what it left, and stops";
        let live = self.ask(self.direction, "SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL")?;
        if live > 0 {
            return Err(refused(format!("schedulers that have not stopped: {live}: {advice}")));
        }
        let running = self.ask(self.direction, "SELECT count(*) FROM task_runs WHERE locked_by IS NOT NULL")?;
        if running > 0 {
            return Err(refused(format!("runs that are running: {running}: {advice}")));
        }
        Ok(())
    }

    fn refuse_full_target(&mut self) -> Result<(), Fault> {
        let target = match self.direction {
            Direction::ToServer => Direction::ToFile,
            Direction::ToFile => Direction::ToServer,
        };
        for table in TABLES.into_iter().filter(|table| *table != "scheduler_meta") {
            let rows = self.count(target, table)?;
            if rows > 0 {
                return Err(refused(format!("the target has {rows} rows in {table}: expected a new database")));
            }
        }
        Ok(())
    }

    /// Returns how many texts it stored with U+FFFD in place of what the server cannot store.
    fn fill_server(&mut self, table: &Table) -> Result<u64, Fault> {
        let (name, columns) = (table.name, names(table));
        let mut selection = self.file.prepare(&selection(table, ""))?;
        let mut rows = selection.query([])?;
        let statement = format!("COPY {name} ({columns}) FROM STDIN");
        let (mut lines, mut replaced) = (String::new(), 0);
        while let Some(row) = rows.next()? {
            for (at, cell) in cells_of_file(table, row, &mut replaced)?.iter().enumerate() {
                if at > 0 {
                    lines.push('\t');
                }
                write_cell(cell, &mut lines);
            }
            lines.push('\n');
            self.done += 1;
            if lines.len() >= CHUNK {
                self.server.copy_in(&statement, &lines)?;
                lines.clear();
                self.progress.set_done(self.done);
            }
        }
        self.server.copy_in(&statement, &lines)?;
        self.progress.set_done(self.done);
        Ok(replaced)
    }

    fn fill_file(&mut self, table: &Table) -> Result<(), Fault> {
        let (name, columns) = (table.name, names(table));
        let places = vec!["?"; table.columns.len()].join(", ");
        let mut insert = self.file.prepare(&format!("INSERT INTO {name} ({columns}) VALUES ({places})"))?;
        let (mut done, progress) = (self.done, self.progress);
        self.server.stream(&selection_of_server(table), |row| {
            insert.execute(params_from_iter(&cells_of_server(table, row)?))?;
            done += 1;
            if done % STEP == 0 {
                progress.set_done(done);
            }
            Ok(())
        })?;
        self.done = done;
        progress.set_done(done);
        Ok(())
    }

    /// Lets the ids that the target assigns continue after those of the source.
    fn continue_numbers(&mut self, table: &Table) -> Result<(), Fault> {
        let name = table.name;
        match self.direction {
            Direction::ToServer => {
                let last = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?1), 0)";
                let last: i64 = self.file.query_row(last, [name], |row| row.get(0))?;
                let set = "SELECT setval($1::text::regclass, greatest($2::bigint, 1), $2::bigint > 0)";
                self.server.query(set, &[&format!("{name}_id_seq"), &last])?;
            }
            Direction::ToFile => {
                let last = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {name}_id_seq");
                let last: i64 = self.server.query(&last, &[])?[0].try_get(0)?;
                self.file.execute("DELETE FROM sqlite_sequence WHERE name = ?1", [name])?;
                self.file.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)", (name, last))?;
            }
        }
        Ok(())
    }

    /// Compares a table of both sides, JSON by value. Returns the number of its rows.
    fn compare(&mut self, table: &Table) -> Result<u64, Fault> {
        let order = table.key.iter().map(|at| table.columns[*at].name.as_str()).collect::<Vec<_>>().join(", ");
        let mut statement = self.file.prepare(&selection(table, &format!("ORDER BY {order}")))?;
        let mut in_file = statement.query([])?;
        let (mut count, begin, progress) = (0, self.done, self.progress);
        self.server.stream(&selection_of_server(table), |row| {
            let other = cells_of_server(table, row)?;
            let Some(row) = in_file.next()? else { return Err(differ(table, &other)) };
            let one = cells_of_file(table, row, &mut 0)?;
            let same = one.iter().zip(&other).zip(&table.columns).all(|((one, other), column)| {
                one == other
                    || matches!((column.kind, one, other), (Kind::Json, Cell::Text(one), Cell::Text(other)) if same_value(one, other))
            });
            if !same {
                return Err(differ(table, &one));
            }
            count += 1;
            if count % STEP == 0 {
                progress.set_done(begin + count);
            }
            Ok(())
        })?;
        if let Some(row) = in_file.next()? {
            return Err(differ(table, &cells_of_file(table, row, &mut 0)?));
        }
        self.done += count;
        progress.set_done(self.done);
        Ok(count)
    }
}

/// The statement that reads a table of the server, in the order of its key.
fn selection_of_server(table: &Table) -> String {
    let columns = table.columns.iter().map(|column| match column.kind {
        Kind::Json => format!("{}::text", column.name),
        Kind::Integer | Kind::Text => column.name.clone(),
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let key = table.key.iter().map(|at| match table.columns[*at].kind {
        Kind::Integer => table.columns[*at].name.clone(),
        Kind::Text | Kind::Json => format!("{} COLLATE \"C\"", table.columns[*at].name),
    });
    let key = key.collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {} {} ORDER BY {key}", table.name, condition(table))
}

fn cells_of_server(table: &Table, row: &Row) -> Result<Vec<Cell>, Fault> {
    let cells = table.columns.iter().enumerate().map(|(at, column)| {
        Ok(match column.kind {
            Kind::Integer => row.try_get::<_, Option<i64>>(at)?.map_or(Cell::Null, Cell::Integer),
            Kind::Text | Kind::Json => row.try_get::<_, Option<String>>(at)?.map_or(Cell::Null, Cell::Text),
        })
    });
    cells.collect()
}

fn names(table: &Table) -> String {
    table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn condition(table: &Table) -> String {
    if table.name == "scheduler_meta" { format!("WHERE {META}") } else { String::new() }
}

/// The statement that reads a table of the file. A last column says whether duly has made the payload.
fn selection(table: &Table, order: &str) -> String {
    let is_made = if table.name == "task_runs" { DESCRIBES_ANOTHER } else { "0" };
    format!("SELECT {}, {is_made} FROM {} {} {order}", names(table), table.name, condition(table))
}

/// The values of a row of the file as the server stores them. Texts and JSON that a user did not give have U+FFFD in place of what the
/// server cannot store, and are counted. Refuses other such values.
fn cells_of_file(table: &Table, row: &rusqlite::Row<'_>, replaced: &mut u64) -> Result<Vec<Cell>, Fault> {
    let mut cells = Vec::with_capacity(table.columns.len());
    for (at, column) in table.columns.iter().enumerate() {
        let cell = match (row.get_ref(at)?, column.kind) {
            (ValueRef::Null, _) => Ok(Cell::Null),
            (ValueRef::Integer(number), Kind::Integer) => Ok(Cell::Integer(number)),
            (ValueRef::Text(given), Kind::Text) if !text::is_name(table.name, &column.name) => {
                let stored = text::storable(String::from_utf8_lossy(given));
                *replaced += u64::from(stored.as_bytes() != given);
                Ok(Cell::Text(stored))
            }
            (ValueRef::Text(given), Kind::Text | Kind::Json) => match std::str::from_utf8(given) {
                Ok(valid) if valid.contains('\0') => Err("holds the character U+0000".to_owned()),
                Ok(valid) if column.kind == Kind::Json => {
                    let is_given = column.name == "payload" && !row.get::<_, bool>(table.columns.len())?;
                    let stored = if is_given { Some(valid.to_owned()) } else { json::storable(valid) };
                    match stored {
                        None => {
                            Err("has keys of one object that differ only in U+0000 or in halves of surrogate pairs"
                                .to_owned())
                        }
                        Some(stored) => {
                            *replaced += u64::from(stored != valid);
                            json::fault_of(&column.name, stored.as_bytes()).map_or(Ok(Cell::Text(stored)), Err)
                        }
                    }
                }
                Ok(valid) => Ok(Cell::Text(valid.to_owned())),
                Err(_) => Err("is not UTF-8".to_owned()),
            },
            (other, _) => Err(format!("has the type {:?}", other.data_type())),
        };
        match cell {
            Ok(cell) => cells.push(cell),
            Err(reason) => {
                let (row, name) = (described(table, &cells), &column.name);
                let advice = "which PostgreSQL cannot store: correct it, or remove its row";
                return Err(refused(format!("{row}: {name} {reason}, {advice}")));
            }
        }
    }
    Ok(cells)
}

/// The table and the first columns of a row.
fn described(table: &Table, cells: &[Cell]) -> String {
    let first = table.columns.iter().zip(cells).take(2).map(|(column, cell)| match cell {
        Cell::Null => format!("{} NULL", column.name),
        Cell::Integer(number) => format!("{} {number}", column.name),
        Cell::Text(text) => format!("{} {text:?}", column.name),
    });
    format!("{}, row with {}", table.name, first.collect::<Vec<_>>().join(", "))
}

/// Writes a value as `COPY` reads it in its text format.
fn write_cell(cell: &Cell, to: &mut String) {
    match cell {
        Cell::Null => to.push_str("\\N"),
        Cell::Integer(number) => to.push_str(&number.to_string()),
        Cell::Text(text) => text.chars().for_each(|c| match c {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            c => to.push(c),
        }),
    }
}

fn refused(reason: String) -> Fault {
    Error::Refused { request: DOING.to_owned(), reason }.into()
}

fn differ(table: &Table, cells: &[Cell]) -> Fault {
    refused(format!("the copy differs from the source: {}; nothing was changed", described(table, cells)))
}
