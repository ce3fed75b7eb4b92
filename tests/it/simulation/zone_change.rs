//! New zone data: a scheduler that starts with other zone data records one event, and neither loses nor repeats an occurrence that became
//! due meanwhile. The tests of `clock` show that it plans all future runs again.

use crate::simulation::history::Check;
use crate::simulation::scenario::Scenario;

/// As if the last scheduler had used an older edition.
const OLDER: &str = "UPDATE scheduler_meta SET value = '2024a' WHERE key = 'zone_data'";
const ZONE_EVENTS: &str = "SELECT count(*) FROM scheduler_events WHERE kind = 'zone_data'";
impl Scenario {
    /// Renews the system's zone data, and starts a scheduler.
    pub(crate) fn change_zone_data(&mut self) -> Check {
        if self.write_locked {
            return Ok(());
        }
        self.execute(OLDER, []).expect("another edition");
        let (events, schedulers) = (self.count(ZONE_EVENTS, [])?, self.schedulers.len());
        self.start_scheduler()?;
        if self.schedulers.len() == schedulers {
            return Ok(());
        }
        self.fault("zone data changed");
        match self.count(ZONE_EVENTS, [])? - events {
            1 => Ok(()),
            events => Err(format!("zone data changed: {events} events")),
        }
    }

    fn count(&self, query: &str, given: impl rusqlite::Params) -> Check<i64> {
        let read = |tables: &rusqlite::Connection| tables.query_row(query, given, |row| row.get(0));
        self.database.shell.read(read).map_err(|error| error.to_string())
    }
}
