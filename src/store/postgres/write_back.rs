//! Writes what a transaction changed: at most two statements, whatever the number of rows and tables.
//!
//! The first deletes rows and ends what leaves its slot, the second changes the other runs and inserts rows. The parts of one
//! statement see each other's rows only in unique indexes, and a run that leaves its slot makes room there for another one. Tasks
//! are changed by the first of the statements that there are: they are locked before runs, as other programs' triggers do.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use postgres::types::ToSql;

use crate::store::fault::{Class, Fault};
use crate::store::postgres::outcome::Proof;
use crate::store::postgres::server::Server;
use crate::store::postgres::sheets::{Cell, Difference, OWN, Row};
use crate::store::postgres::tables::{Kind, Table};

const TASKS: &str = "scheduled_tasks";

impl Difference<'_> {
    pub(super) fn table(&self) -> &Table {
        &self.sheet.table
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.table().columns.iter().position(|column| column.name == name)
    }

    /// Returns the column of the end of a lease.
    fn lease(&self) -> Option<usize> {
        let leases = [("task_runs", "locked_until"), ("scheduler_instances", "seen_at")];
        leases.iter().find(|(table, _)| *table == self.table().name).and_then(|(_, column)| self.column(column))
    }

    /// Returns whether a change extends a lease and does nothing else.
    fn is_lease(&self, (row, cells): &(&Row, Vec<Cell>)) -> bool {
        let mut changed = (0..cells.len()).filter(|at| row.cells[*at] != cells[*at]);
        let first = changed.next();
        first.is_some() && first == self.lease() && changed.next().is_none()
    }

    /// Returns the changed rows, before and after, by the positions of some columns.
    pub(super) fn changes<'s, const N: usize>(
        &'s self,
        columns: [&str; N],
    ) -> impl Iterator<Item = ([&'s Cell; N], [&'s Cell; N])> {
        let at = columns.map(|name| self.column(name).unwrap_or_default());
        self.changed.iter().map(move |(row, cells)| (at.map(|at| &row.cells[at]), at.map(|at| &cells[at])))
    }

    /// Returns whether a new row has this text.
    pub(super) fn adds(&self, column: &str, text: &str) -> bool {
        let at = self.column(column).unwrap_or_default();
        self.new.iter().any(|cells| matches!(&cells[at], Cell::Text(found) if found == text))
    }

    /// Returns one line per row.
    pub(super) fn describe(&self) -> impl Iterator<Item = String> {
        let name = self.table().name;
        let gone = self.gone.iter().map(move |row| format!("{name}: gone {:?}", row.cells));
        let new = self.new.iter().map(move |cells| format!("{name}: new {cells:?}"));
        let changed = self.changed.iter().map(move |(row, cells)| {
            let columns = self.table().columns.iter().enumerate();
            let differing = columns.filter(|(at, _)| row.cells[*at] != cells[*at]);
            let differing: Vec<String> = differing
                .map(|(at, column)| format!("{} {:?} -> {:?}", column.name, row.cells[at], cells[at]))
                .collect();
            format!("{name}: changed {:?}: {}", cells.first(), differing.join(", "))
        });
        gone.chain(new).chain(changed)
    }
}

/// How other programs were in the way.
pub(super) struct Collisions<'a> {
    /// Whether another transaction has changed what this one read: it must be repeated.
    pub(super) collided: &'a mut bool,
    /// How many numbers the new rows of a table need, if another program was given one of those that SQLite chose.
    pub(super) lacking: &'a mut HashMap<&'static str, i64>,
}

/// Writes the differences. Returns the columns that updates of each table set from now on.
///
/// Fails if another transaction has changed a row since it was read, or was given a number that SQLite chose: all is repeated.
pub(super) fn write(
    server: &mut Server,
    differences: &[Difference<'_>],
    collisions: &mut Collisions<'_>,
) -> Result<Vec<BTreeSet<usize>>, Fault> {
    let (mut first, mut second) = (Statement::default(), Statement::default());
    // What refers to a row is deleted before it.
    for difference in differences.iter().rev().filter(|difference| !difference.gone.is_empty()) {
        let belongings = BELONGINGS.iter().find(|(of, _)| *of == difference.table().name);
        if let Some((_, belongings)) = belongings {
            std::mem::take(&mut first).run(server, collisions)?;
            let ids = Array::of(Kind::Integer, difference.gone.iter().map(|row| &row.cells[difference.table().key[0]]));
            belongings.iter().try_for_each(|statement| server.execute(statement, &[ids.param()]).map(|_| ()))?;
        }
        first.delete(difference);
        if belongings.is_some() {
            std::mem::take(&mut first).run(server, collisions)?;
        }
    }
    let mut updated = Vec::with_capacity(differences.len());
    let parted: Vec<_> = differences.iter().map(Difference::leaving).collect();
    let relied_on = relied_on(differences);
    let is_first = !first.parts.is_empty() || parted.iter().any(|(leaving, _)| !leaving.is_empty());
    if is_first { &mut first } else { &mut second }.rely_on(differences, &relied_on);
    for (difference, (leaving, others)) in differences.iter().zip(parted) {
        let columns = set_by_updates(difference);
        let (leases, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|change| difference.is_lease(change));
        first.update(difference, &leaving, &columns);
        second.extend(difference, &leases);
        let of_others = if is_first && difference.table().name == TASKS { &mut first } else { &mut second };
        of_others.update(difference, &others, &columns);
        second.insert(difference);
        updated.push(columns);
    }
    first.run(server, collisions)?;
    second.run(server, collisions)?;
    Ok(updated)
}

/// Runs `f` within a savepoint of the open transaction. If it fails with a fault of an item, only its own changes are undone, and the
/// transaction can go on. What the transaction would check at its end is checked within the savepoint.
pub(super) fn apart<T>(server: &mut Server, f: impl FnOnce(&mut Server) -> Result<T, Fault>) -> Result<T, Fault> {
    server.batch("SET CONSTRAINTS ALL IMMEDIATE; SAVEPOINT item")?;
    match f(server) {
        Ok(answer) => server.batch("RELEASE item").map(|()| answer),
        Err(fault) if fault.is_about_the_item() || fault.is_too_long() => {
            // With the lock of the schema, no second row of other programs is waited for.
            let wait = if fault.is_about_a_lock() { "; SET LOCAL lock_timeout = 2" } else { "" };
            let undone = server.batch(&format!("ROLLBACK TO item; RELEASE item{wait}"));
            if fault.is_too_long() && undone.is_err() {
                return Err(fault);
            }
            undone?;
            server.continue_after_fault();
            Err(fault)
        }
        Err(fault) => Err(fault),
    }
}

/// Returns a row that the open transaction has written by these differences, without its long texts.
pub(super) fn proof(differences: &[Difference<'_>]) -> Option<Proof> {
    let written = |difference: &Difference<'_>| {
        let changed = difference.changed.iter().map(|(_, cells)| cells);
        let cells = difference.new.iter().chain(changed).next()?;
        let Table { name, columns, .. } = difference.table();
        let told = columns.iter().zip(cells).filter_map(|(column, cell)| match (cell, column.kind) {
            (Cell::Integer(number), _) => Some(format!("t.{} = {number}", column.name)),
            (Cell::Text(text), Kind::Text) if text.len() <= 200 && !text.contains('\\') => {
                Some(format!("t.{} = '{}'", column.name, text.replace('\'', "''")))
            }
            (Cell::Null, _) => Some(format!("t.{} IS NULL", column.name)),
            (Cell::Text(_), _) => None,
        });
        Some(Proof { table: name, condition: told.collect::<Vec<_>>().join(" AND ") })
    };
    // Runs before all: no other transaction writes the same attempt.
    let runs = differences.iter().filter(|difference| difference.table().name == "task_runs");
    runs.chain(differences).find_map(written)
}

/// A row as it was read, and its values now.
type Changed<'a> = (&'a Row, Vec<Cell>);

impl<'a> Difference<'a> {
    /// Returns the changed rows that may leave a place in a unique index, and the others.
    fn leaving(&self) -> (Vec<&Changed<'a>>, Vec<&Changed<'a>>) {
        let (owner, name) = (self.column("locked_by"), self.column("name"));
        self.changed.iter().partition(|(row, cells)| match (self.table().name, owner, name) {
            ("task_runs", Some(at), _) => row.cells[at] != Cell::Null && cells[at] == Cell::Null,
            (TASKS, _, Some(at)) => row.cells[at] != cells[at],
            _ => true,
        })
    }
}

/// Returns the tasks that were only read, and for which a run waits from now on: whether it may start was derived from the task.
///
/// A change of the task by another program reaches the runs that wait then. So it must either be known to this transaction, or wait
/// for its end.
fn relied_on<'a>(differences: &[Difference<'a>]) -> Vec<&'a Row> {
    let of = |name| differences.iter().find(|difference| difference.table().name == name);
    let (Some(tasks), Some(runs)) = (of(TASKS), of("task_runs")) else { return Vec::new() };
    let (Some(task), Some(status)) = (runs.column("task_id"), runs.column("status")) else { return Vec::new() };
    let waits =
        |cells: &[Cell]| matches!(&cells[status], Cell::Text(status) if status == "queued" || status == "failed");
    let changed = runs.changed.iter().filter(|(row, cells)| waits(cells) && !waits(&row.cells));
    let waiting = changed.map(|(_, cells)| cells).chain(runs.new.iter().filter(|cells| waits(cells)));
    let waiting: BTreeSet<&Cell> = waiting.map(|cells| &cells[task]).collect();
    let written: BTreeSet<&Cell> =
        tasks.changed.iter().map(|(row, _)| *row).chain(tasks.gone.iter().copied()).map(|row| &row.cells[0]).collect();
    let read = waiting.difference(&written).filter_map(|task| tasks.sheet.stored(&vec![(*task).clone()]));
    read.filter(|row| row.written_by != OWN).collect()
}

/// What belongs to a row of a table and is deleted with it, whether it was read or not. The triggers of the tables do the same for
/// other programs.
const BELONGINGS: [(&str, &[&str]); 2] = [
    (
        TASKS,
        &[
            "DELETE FROM task_attempts a WHERE a.run_id = ANY (ARRAY(SELECT r.id FROM task_runs r WHERE r.task_id = ANY ($1)))",
            "DELETE FROM task_effects e WHERE e.run_id = ANY (ARRAY(SELECT r.id FROM task_runs r WHERE r.task_id = ANY ($1)))",
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

fn set_by_updates(difference: &Difference<'_>) -> BTreeSet<usize> {
    let mut columns = difference.sheet.updated.clone();
    for at in 0..difference.table().columns.len() {
        if difference.changed.iter().any(|(row, cells)| row.cells[at] != cells[at]) {
            columns.insert(at);
        }
    }
    columns
}

/// A column of rows, as an array for the server.
#[derive(Debug)]
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

    const fn name_of_type(&self) -> &'static str {
        match self {
            Array::Integers(_) => "bigint[]",
            Array::Texts(_) => "text[]",
        }
    }
}

/// A value of a column, from the column `from`.
fn value(kind: Kind, from: &str) -> String {
    if kind == Kind::Json { format!("{from}::jsonb") } else { from.to_owned() }
}

/// A statement with a part for each table and kind of change.
#[derive(Debug, Default)]
struct Statement {
    parts: Vec<String>,
    arrays: Vec<Array>,
    /// An array of expressions for each part: the number of rows that it wrote; if it numbered them, the first and the last number.
    answers: Vec<String>,
    expected: Vec<Expected>,
}

#[derive(Debug)]
struct Expected {
    table: &'static str,
    rows: usize,
    numbers: Option<(i64, i64)>,
    /// Whether the rows are written, and not only locked.
    written: bool,
    /// Of rows that exist: a statement that counts those that are as they were read, and the arrays that it takes.
    unchanged: Option<(String, Range<usize>)>,
}

impl Statement {
    /// Adds arrays as parameters. Returns the call of `unnest` that makes rows of them.
    fn rows(&mut self, arrays: Vec<Array>, names: &[String]) -> String {
        let first = self.arrays.len() + 1;
        let places = arrays.iter().zip(first..).map(|(array, at)| format!("${at}::{}", array.name_of_type()));
        let places: Vec<String> = places.collect();
        self.arrays.extend(arrays);
        format!("unnest({}) AS o({})", places.join(", "), names.join(", "))
    }

    fn add(&mut self, part: &str, table: &'static str, rows: usize) {
        let name = format!("part{}", self.parts.len());
        self.parts.push(format!("{name} AS ({part} RETURNING 1)"));
        self.answers.push(format!("ARRAY[(SELECT count(*) FROM {name})]"));
        self.expected.push(Expected { table, rows, numbers: None, written: true, unchanged: None });
    }

    /// Adds arrays that name rows as they were read, and others. Returns the call of `unnest` that makes rows of them, and what
    /// [`Expected::unchanged`] is then.
    fn rows_as_read(
        &mut self,
        table: &Table,
        arrays: Vec<Array>,
        names: &[String],
    ) -> (String, (String, Range<usize>)) {
        let (first, named) = (self.arrays.len(), table.key.len() + 1);
        let rows = self.rows(arrays, names);
        let places = self.arrays[first..first + named].iter().zip(1..);
        let places: Vec<String> = places.map(|(array, at)| format!("${at}::{}", array.name_of_type())).collect();
        let (places, names) = (places.join(", "), names[..named].join(", "));
        let (name, same) = (table.name, same(table));
        let count = format!("SELECT count(*) FROM {name} t JOIN unnest({places}) AS o({names}) ON {same}");
        (rows, (count, first..first + named))
    }

    fn is_as_it_was(&mut self, unchanged: (String, Range<usize>)) {
        if let Some(expected) = self.expected.last_mut() {
            expected.unchanged = Some(unchanged);
        }
    }

    /// Requires that tasks are as they were read, and keeps other programs from changing them before the end of the transaction.
    fn rely_on(&mut self, differences: &[Difference<'_>], tasks: &[&Row]) {
        let table = differences.iter().map(Difference::table).find(|table| table.name == TASKS);
        let Some(table) = table.filter(|_| !tasks.is_empty()) else { return };
        let ids = Array::of(Kind::Integer, tasks.iter().map(|row| &row.cells[table.key[0]]));
        let written_by = Array::Integers(tasks.iter().map(|row| Some(row.written_by)).collect());
        let names = [table.columns[table.key[0]].name.clone(), "written_by_".to_owned()];
        let rows = self.rows(vec![ids, written_by], &names);
        let name = format!("part{}", self.parts.len());
        self.parts.push(format!(
            "{name} AS MATERIALIZED (SELECT 1 FROM {} t JOIN {rows} ON {} FOR SHARE OF t)",
            table.name,
            same(table)
        ));
        self.answers.push(format!("ARRAY[(SELECT count(*) FROM {name})]"));
        self.expected.push(Expected {
            table: table.name,
            rows: tasks.len(),
            numbers: None,
            written: false,
            unchanged: None,
        });
    }

    fn delete(&mut self, difference: &Difference<'_>) {
        let gone = &difference.gone;
        if gone.is_empty() {
            return;
        }
        let Table { name, columns, key, .. } = difference.table();
        let mut arrays: Vec<Array> =
            key.iter().map(|at| Array::of(columns[*at].kind, gone.iter().map(|row| &row.cells[*at]))).collect();
        arrays.push(Array::Integers(gone.iter().map(|row| Some(row.written_by)).collect()));
        let mut names: Vec<String> = key.iter().map(|at| columns[*at].name.clone()).collect();
        names.push("written_by_".to_owned());
        let (rows, unchanged) = self.rows_as_read(difference.table(), arrays, &names);
        let same = same(difference.table());
        self.add(&format!("DELETE FROM {name} t USING {rows} WHERE {same}"), name, gone.len());
        self.is_as_it_was(unchanged);
    }

    fn update(&mut self, difference: &Difference<'_>, changed: &[&(&Row, Vec<Cell>)], set: &BTreeSet<usize>) {
        if changed.is_empty() {
            return;
        }
        let Table { name, columns, key, .. } = difference.table();
        let mut arrays: Vec<Array> =
            key.iter().map(|at| Array::of(columns[*at].kind, changed.iter().map(|(row, _)| &row.cells[*at]))).collect();
        arrays.push(Array::Integers(changed.iter().map(|(row, _)| Some(row.written_by)).collect()));
        arrays.extend(set.iter().map(|at| Array::of(columns[*at].kind, changed.iter().map(|(_, cells)| &cells[*at]))));
        let mut names: Vec<String> = key.iter().map(|at| columns[*at].name.clone()).collect();
        names.push("written_by_".to_owned());
        names.extend(set.iter().map(|at| format!("new_{}", columns[*at].name)));
        let (rows, unchanged) = self.rows_as_read(difference.table(), arrays, &names);
        let values: Vec<String> = set
            .iter()
            .map(|at| {
                let column = &columns[*at];
                format!("{0} = {1}", column.name, value(column.kind, &format!("o.new_{}", column.name)))
            })
            .collect();
        let same = same(difference.table());
        let part = format!("UPDATE {name} t SET {} FROM {rows} WHERE {same}", values.join(", "));
        self.add(&part, name, changed.len());
        self.is_as_it_was(unchanged);
    }

    /// Extends leases. A row that another transaction has locked or changed since it was read is left to the next heartbeat, as is
    /// the lease of the owner itself, which counts for all of its runs.
    fn extend(&mut self, difference: &Difference<'_>, changed: &[&(&Row, Vec<Cell>)]) {
        let Some(at) = difference.lease().filter(|_| !changed.is_empty()) else { return };
        let Table { name, columns, key, .. } = difference.table();
        let (id, end) = (&columns[key[0]], &columns[at]);
        let arrays = vec![
            Array::of(id.kind, changed.iter().map(|(row, _)| &row.cells[key[0]])),
            Array::Integers(changed.iter().map(|(row, _)| Some(row.written_by)).collect()),
            Array::of(end.kind, changed.iter().map(|(_, cells)| &cells[at])),
        ];
        let rows = self.rows(arrays, &[id.name.clone(), "written_by_".to_owned(), "ends".to_owned()]);
        let (id, end, same) = (&id.name, &end.name, same(difference.table()));
        let free = format!("free{}", self.parts.len());
        self.parts.push(format!(
            "{free} AS MATERIALIZED (SELECT o.* FROM {rows} JOIN {name} t ON t.{id} = o.{id} FOR NO KEY UPDATE OF t SKIP LOCKED)"
        ));
        self.parts.push(format!("extended{free} AS (UPDATE {name} t SET {end} = o.ends FROM {free} o WHERE {same})"));
        // A statement that answers nothing would not be one.
        self.answers.push("ARRAY[0]::bigint[]".to_owned());
        self.expected.push(Expected { table: name, rows: 0, numbers: None, written: false, unchanged: None });
    }

    /// The server assigns the numbers of new rows, unless they were reserved. They are taken in order, and compared with those that
    /// SQLite chose, which leaves out those of rows that it has undone.
    fn insert(&mut self, difference: &Difference<'_>) {
        let mut new: Vec<&Vec<Cell>> = difference.new.iter().collect();
        if new.is_empty() {
            return;
        }
        let Table { name, columns, key, numbered } = difference.table();
        let number = |cells: &Vec<Cell>| if let Cell::Integer(number) = cells[key[0]] { number } else { 0 };
        if *numbered {
            new.sort_unstable_by_key(|cells| number(cells));
        }
        let arrays: Vec<Array> =
            (0..columns.len()).map(|at| Array::of(columns[at].kind, new.iter().map(|cells| &cells[at]))).collect();
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let rows = self.rows(arrays, &names);
        let values: Vec<String> =
            columns.iter().map(|column| value(column.kind, &format!("o.{}", column.name))).collect();
        let overriding = if *numbered { "OVERRIDING SYSTEM VALUE " } else { "" };
        let (names, values) = (names.join(", "), values.join(", "));
        self.add(&format!("INSERT INTO {name} ({names}) {overriding}SELECT {values} FROM {rows}"), name, new.len());
        let (before, reserved) = (difference.sheet.last, &difference.sheet.reserved);
        let (first, last) = (new.first().map_or(0, |first| number(first)), new.last().map_or(0, |last| number(last)));
        if !numbered || (reserved.contains(&first) && reserved.contains(&last)) {
            return;
        }
        self.arrays.push(Array::Integers(vec![Some(last - before)]));
        let (taken, count) = (format!("taken{}", self.parts.len()), self.arrays.len());
        self.parts.push(format!(
            "{taken} AS MATERIALIZED (SELECT nextval('{name}_id_seq') AS number FROM generate_series(1, (${count}::bigint[])[1]))"
        ));
        if let (Some(answer), Some(expected)) = (self.answers.last_mut(), self.expected.last_mut()) {
            let count = answer.trim_start_matches("ARRAY[").trim_end_matches(']').to_owned();
            *answer = format!(
                "ARRAY[{count}, (SELECT min(number) FROM {taken}), (SELECT max(number) FROM {taken})]::bigint[]"
            );
            expected.numbers = Some((before + 1, last));
        }
    }

    fn run(self, server: &mut Server, collisions: &mut Collisions<'_>) -> Result<(), Fault> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let statement = format!("WITH {}\nSELECT {}", self.parts.join(",\n"), self.answers.join(", "));
        let params: Vec<_> = self.arrays.iter().map(Array::param).collect();
        let rows = server.query(&statement, &params);
        if rows.as_ref().is_err_and(Fault::is_about_the_id) {
            let numbers = self.expected.iter().filter_map(|expected| Some((expected.table, expected.numbers?)));
            collisions.lacking.extend(numbers.map(|(table, (first, last))| (table, last - first + 1)));
        }
        let rows = rows?;
        for (at, expected) in self.expected.iter().enumerate() {
            let answer: Vec<i64> = rows[0].try_get(at)?;
            let written = answer.first().map_or(0, |rows| usize::try_from(*rows).unwrap_or_default());
            let numbered = expected.numbers.is_none_or(|(first, last)| answer.get(1..) == Some(&[first, last]));
            let name = expected.table;
            if let (false, Some((first, last))) = (numbered, expected.numbers) {
                collisions.lacking.insert(expected.table, last - first + 1);
            }
            if !numbered || (written != expected.rows && !self.are_ignored(server, expected, written)?) {
                *collisions.collided = true;
                let text = format!("another program changed rows of {name} at the same time");
                return Err(Fault::Store(Class::Busy, text.into()));
            }
            if written != expected.rows {
                let text = format!("a trigger on {name} ignores the row: it returns NULL");
                return Err(Fault::Store(Class::Item, text.into()));
            }
        }
        Ok(())
    }
}

impl Statement {
    /// Returns whether the rows that were not written are there and as they were: then a trigger of another program has left them out.
    fn are_ignored(&self, server: &mut Server, expected: &Expected, written: usize) -> Result<bool, Fault> {
        let Some((count, arrays)) = &expected.unchanged else { return Ok(expected.written) };
        let params: Vec<_> = self.arrays[arrays.clone()].iter().map(Array::param).collect();
        let unchanged: i64 = server.query(count, &params)?[0].try_get(0)?;
        Ok(usize::try_from(unchanged).is_ok_and(|unchanged| written + unchanged >= expected.rows))
    }
}

/// The condition that a row of the table is the one that was read: its key, and the transaction that wrote it.
fn same(table: &Table) -> String {
    let keys = table.key.iter().map(|at| format!("t.{0} = o.{0}", table.columns[*at].name));
    let keys = keys.collect::<Vec<_>>().join(" AND ");
    format!("{keys} AND (t.xmin::text::bigint = o.written_by_ OR o.written_by_ = {OWN})")
}
