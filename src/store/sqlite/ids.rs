//! Ids of tasks, a hundred at a time, for a connection that adds many one by one.
//!
//! Else AUTOINCREMENT writes a page for each, one of four that such a commit puts into the log. The count of ids is raised over all
//! that are reserved before one of them is used, so that none is ever given twice; what was reserved in vain is left out.

use std::ops::Range;

use rusqlite::Connection;

use crate::store::fault::Fault;

const RESERVE: &str = "
    UPDATE sqlite_sequence SET seq = seq + :count
     WHERE name = 'scheduled_tasks' AND seq BETWEEN 0 AND :most RETURNING seq";

/// So many tasks a connection adds by a statement alone before it reserves ids: a program that adds a few leaves no gap.
const UNRESERVED: u32 = 15;
/// So many ids it reserves at once.
const RESERVED: i64 = 100;
/// Beyond it none is reserved: SQLite's last id is 2^63 - 1.
const LAST_RESERVED: i64 = i64::MAX / 2;

/// Ids that nobody else is given.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    reserved: Range<i64>,
    chosen: u32,
}

impl Ids {
    /// The next, or none where SQLite may choose. Reserving is a transaction of its own.
    pub(crate) fn next(&mut self, connection: &Connection) -> rusqlite::Result<Option<i64>> {
        if self.reserved.is_empty() && self.chosen >= UNRESERVED {
            let mut reserve = connection.prepare_cached(RESERVE)?;
            // To the end of the statement, where it is committed.
            let last = reserve.query_map([RESERVED, LAST_RESERVED], |row| row.get::<_, i64>(0))?.last().transpose()?;
            self.reserved = last.map_or(0..0, |last| last - RESERVED + 1..last + 1);
        }
        Ok((!self.reserved.is_empty()).then_some(self.reserved.start))
    }

    /// What became of the task that was to have it.
    pub(crate) fn was_given<T>(&mut self, added: &Result<T, Fault>) {
        match added {
            Ok(_) if self.reserved.is_empty() => self.chosen = self.chosen.saturating_add(1),
            Ok(_) => self.reserved.start += 1,
            // Somebody has written a row with such an id by hand: there may be more.
            Err(fault) if fault.is_about_the_id() => *self = Ids::default(),
            Err(_) => {}
        }
    }
}
