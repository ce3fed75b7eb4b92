//! The rows that one transaction needs, in the tables of an SQLite database in memory: the operations of the SQLite store work on
//! them there, and what they change is written back by sets.
//!
//! So both stores have one implementation of every rule. [`crate::store::postgres::reach`] says which rows an operation may read.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Transaction;
use rusqlite::hooks::Action;

use crate::store::fault::{Class, Fault};
use crate::store::postgres::look_ahead::{LookAhead, Seen};
use crate::store::postgres::reach::FOLLOWERS;
use crate::store::postgres::reach::Reach;
use crate::store::postgres::refusals::{self, Refusals};
use crate::store::postgres::server::Server;
use crate::store::postgres::sheets::{Difference, Sheet, Sheets, Written, difference, pending};
use crate::store::postgres::write_back::{self, Collisions};
use crate::store::sqlite::connection::{Backing, Whose};
use crate::store::sqlite::owners;
use crate::store::turn_io::Session;

/// The tables of many rows. Of each change of a row SQLite tells its number: no statement deletes all rows of them, of which it would not.
const NOTED: [&str; 2] = ["scheduled_tasks", "task_runs"];

/// The server's side of a store in memory.
#[derive(Debug)]
pub(crate) struct Workbench {
    pub(crate) rows: Sheets,
    /// The rows that the operation needs; `None` before they were read.
    pub(crate) reach: Option<Reach>,
    /// Whether the rows of the open transaction are in `rows`.
    filled: bool,
    /// Whether another transaction changed what this one read: it must be repeated.
    pub(crate) collided: bool,
    /// What is asked of the server after the changes are written, before they are committed.
    pub(crate) ask: Option<LookAhead>,
    /// The answer.
    pub(crate) seen: Option<Seen>,
    /// What the sessions of owners show, for operations that tell who is alive.
    pub(crate) sessions: HashMap<String, Session>,
    /// Tests: whether nothing is written, and what is, or would be.
    pub(crate) dry: bool,
    pub(crate) record: Option<Vec<String>>,
    refusals: Refusals,
    /// Why the operation opens no run that follows another: the server refused one.
    pub(crate) unfollowed: Option<String>,
    /// Why the server has refused what the operation wrote, if it opened such a run.
    pub(crate) refused_followers: Option<String>,
    /// Whether the transaction has other changes than those of the operation: what is refused of these is undone alone.
    pub(crate) is_shared: bool,
    touched: Touched,
    /// How many numbers the next operation takes before it begins, by table: see [`Collisions::lacking`].
    lacking: HashMap<&'static str, i64>,
}

impl Workbench {
    pub(crate) fn new(server: Server, memory: &mut rusqlite::Connection, refusals: Refusals) -> rusqlite::Result<Self> {
        let rows = Sheets::new(server, memory)?;
        owners::create_sessions(memory)?;
        Ok(Workbench {
            rows,
            sessions: HashMap::new(),
            reach: None,
            filled: false,
            collided: false,
            ask: None,
            seen: None,
            dry: false,
            record: None,
            refusals,
            unfollowed: None,
            refused_followers: None,
            is_shared: false,
            touched: Touched::on(memory)?,
            lacking: HashMap::new(),
        })
    }

    /// Prepares for an operation that reads these rows. The transaction is open.
    pub(crate) fn aim(&mut self, reach: Reach) {
        (self.reach, self.filled, self.collided) = (Some(reach), false, false);
        (self.ask, self.seen) = (None, None);
        (self.unfollowed, self.refused_followers, self.is_shared) = (None, None, false);
        self.rows.clear();
    }

    /// Ends the transaction, if the operation has not committed.
    pub(crate) fn end(&mut self) {
        self.collided |= self.rows.server.take_repeat();
        self.rows.server.roll_back();
        (self.reach, self.ask) = (None, None);
    }

    /// Reads the rows that the operation needs.
    fn read_reach(&mut self) -> Result<(), Fault> {
        let Some(mut reach) = self.reach.take() else { return Ok(()) };
        let read = reach.read(&mut self.rows);
        self.reach = Some(reach);
        read?;
        std::mem::take(&mut self.lacking).into_iter().try_for_each(|(table, count)| self.rows.reserve(table, count))
    }

    /// Writes what differs from the rows that were read, and asks what is to be asked after that.
    fn write_back(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let Workbench {
            rows,
            collided,
            reach,
            ask,
            seen,
            dry,
            record,
            refused_followers,
            is_shared,
            touched,
            lacking,
            ..
        } = self;
        let Sheets { server, sheets, keys } = rows;
        let touched = touched.take();
        let none = BTreeSet::new();
        let differences = sheets.iter().map(|sheet| match touched.get(sheet.table.name).unwrap_or(&none) {
            touched if NOTED.contains(&sheet.table.name) && !sheet.is_partly_written() => {
                pending(tables, sheet, touched)
            }
            _ => difference(tables, sheet),
        });
        let differences = differences.collect::<rusqlite::Result<Vec<_>>>()?;
        if let Some(record) = record {
            *record = differences.iter().flat_map(Difference::describe).collect();
            record.sort_unstable();
        }
        if *dry {
            return Ok(());
        }
        // Rules that looked further than they could see begin again.
        if reach.as_mut().is_some_and(|reach| !reach.was_enough(&differences, keys)) {
            *collided = true;
            return Err(Fault::Store(Class::Busy, "the operation needs more rows".into()));
        }
        let mut collisions = Collisions { collided, lacking };
        if sheets.iter().any(Sheet::is_partly_written) {
            drop(differences);
            write_pending(server, sheets, tables, &touched, &mut collisions, Whose::OfAll)?;
        } else {
            let opens = |origin: &&str| differences.iter().any(|difference| difference.adds("origin", origin));
            let follow = FOLLOWERS.iter().any(opens);
            let updated = if follow && *is_shared {
                write_back::apart(server, |server| write_back::write(server, &differences, &mut collisions))
            } else {
                write_back::write(server, &differences, &mut collisions)
            };
            let is_refused = |fault: &Fault| matches!(fault, Fault::Store(Class::Item, _));
            *refused_followers =
                updated.as_ref().err().filter(|fault| follow && is_refused(fault)).map(Fault::to_string);
            let updated = updated?;
            if let Some(proof) = write_back::proof(&differences) {
                server.note_proof(proof);
            }
            drop(differences);
            for (sheet, updated) in sheets.iter_mut().zip(updated) {
                sheet.updated = updated;
            }
        }
        if let Some(ask) = ask {
            *seen = Some(ask.ask(server)?);
        }
        Ok(())
    }
}

/// Writes what was changed since the last write.
fn write_pending(
    server: &mut Server,
    sheets: &mut [Sheet],
    tables: &Transaction<'_>,
    touched: &HashMap<String, BTreeSet<i64>>,
    collisions: &mut Collisions<'_>,
    whose: Whose,
) -> Result<(), Fault> {
    let none = BTreeSet::new();
    let of = |sheet: &Sheet| touched.get(sheet.table.name).unwrap_or(&none);
    let pending = sheets.iter().map(|sheet| pending(tables, sheet, of(sheet)));
    let pending = pending.collect::<rusqlite::Result<Vec<_>>>()?;
    if pending.iter().all(Difference::is_none) {
        return Ok(());
    }
    let updated = match whose {
        Whose::OfItem => write_back::apart(server, |server| write_back::write(server, &pending, collisions)),
        Whose::OfAll => write_back::write(server, &pending, collisions),
    }?;
    let written: Vec<Written> = pending.into_iter().map(Difference::into_written).collect();
    for ((sheet, updated), written) in sheets.iter_mut().zip(updated).zip(written) {
        sheet.updated = updated;
        sheet.note(written);
    }
    Ok(())
}

/// The numbers of the rows that SQLite has changed, by table.
#[derive(Clone, Debug, Default)]
struct Touched(Arc<Mutex<HashMap<String, BTreeSet<i64>>>>);

impl Touched {
    /// Notes what is changed on a connection from now on.
    fn on(memory: &mut rusqlite::Connection) -> rusqlite::Result<Self> {
        let touched = Touched::default();
        let noted = touched.clone();
        memory.update_hook(Some(move |_: Action, _: &str, table: &str, row: i64| {
            let mut noted = noted.0.lock().unwrap_or_else(PoisonError::into_inner);
            match noted.get_mut(table) {
                Some(rows) => _ = rows.insert(row),
                None => _ = noted.insert(table.to_owned(), BTreeSet::from([row])),
            }
        }))?;
        Ok(touched)
    }

    fn take(&self) -> HashMap<String, BTreeSet<i64>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes again what is not written yet.
    fn put(&self, touched: HashMap<String, BTreeSet<i64>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = touched;
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
            bench.read_reach()?;
            bench.filled = true;
        }
        owners::show_sessions(tables, &bench.sessions)?;
        bench.refusals.without(|| bench.rows.spread(tables))?;
        bench.unfollowed.as_ref().map_or(Ok(()), |reason| refusals::refuse_followers(tables, reason))?;
        bench.touched.take();
        Ok(())
    }

    fn commit(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let mut bench = self.lock();
        bench.write_back(tables)?;
        if bench.dry { Ok(()) } else { bench.rows.server.commit() }
    }

    fn write(&mut self, tables: &Transaction<'_>, whose: Whose) -> Result<(), Fault> {
        let mut bench = self.lock();
        if bench.dry {
            return Ok(());
        }
        let Workbench { rows: Sheets { server, sheets, .. }, collided, touched, lacking, .. } = &mut *bench;
        let rows = touched.take();
        let written = write_pending(server, sheets, tables, &rows, &mut Collisions { collided, lacking }, whose);
        if written.is_err() {
            touched.put(rows);
        }
        written
    }

    fn undone(&mut self, tables: &Transaction<'_>) -> Result<(), Fault> {
        let mut bench = self.lock();
        if bench.dry {
            return Ok(());
        }
        // The server gives no number twice, and a rollback gives none back.
        bench.rows.read_numbers()?;
        bench.rows.spread_numbers(tables)
    }
}
