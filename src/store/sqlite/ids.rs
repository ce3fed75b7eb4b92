//! Reserves ids of tasks, a hundred at a time, for a connection that adds many tasks one by one.
//!
//! Otherwise AUTOINCREMENT writes one page for each task, a quarter of what such a commit writes to the log. The counter is
//! raised by all reserved ids before the first of them is used, so that no id is ever assigned twice. Unused ids leave a gap.

use std::ops::Range;

use rusqlite::Connection;

use crate::store::fault::Fault;

const RESERVE: &str = "
    UPDATE sqlite_sequence SET seq = seq + :count
     WHERE name = 'scheduled_tasks' AND seq BETWEEN 0 AND :most RETURNING seq";

/// A connection adds this number of tasks by one statement each before it reserves ids: a program that adds a few leaves no gap.
const UNRESERVED: u32 = 15;
/// The number of ids that it reserves at once.
const RESERVED: i64 = 100;
/// Beyond this id none is reserved: SQLite's last id is 2^63 - 1.
const LAST_RESERVED: i64 = i64::MAX / 2;

/// Ids that no other connection assigns.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    reserved: Range<i64>,
    /// The number of tasks whose id SQLite chose.
    chosen: u32,
}

impl Ids {
    /// Returns the next id, or `None` if SQLite chooses it. Reserving ids is a separate transaction.
    pub(crate) fn next(&mut self, connection: &Connection) -> rusqlite::Result<Option<i64>> {
        if self.reserved.is_empty() && self.chosen >= UNRESERVED {
            let mut reserve = connection.prepare_cached(RESERVE)?;
            // The statement is committed at its end.
            let last = reserve.query_map([RESERVED, LAST_RESERVED], |row| row.get::<_, i64>(0))?.last().transpose()?;
            self.reserved = last.map_or(0..0, |last| last - RESERVED + 1..last + 1);
        }
        Ok((!self.reserved.is_empty()).then_some(self.reserved.start))
    }

    /// Notes whether the task that was to have the next id was added.
    pub(crate) fn note<T>(&mut self, added: &Result<T, Fault>) {
        match added {
            Ok(_) if self.reserved.is_empty() => self.chosen = self.chosen.saturating_add(1),
            Ok(_) => self.reserved.start += 1,
            // Another program has written a row with such an id: there may be more.
            Err(fault) if fault.is_about_the_id() => *self = Ids::default(),
            Err(_) => {}
        }
    }
}
