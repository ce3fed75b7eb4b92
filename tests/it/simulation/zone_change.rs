//! New zone data: a scheduler that starts with other rules of a zone records one event, and neither loses nor repeats an occurrence that became
//! due meanwhile. The tests of `clock` show that it plans all future runs again.

use crate::simulation::history::Check;
use crate::simulation::scenario::Scenario;

/// As if the last scheduler had had other rules of each zone.
const OTHER: &str = "UPDATE scheduler_meta SET value = 'other' WHERE key LIKE 'zone_rules:%'";
const IN_USE: &str = "SELECT count(*) FROM scheduled_tasks WHERE schedule_type IN ('cron', 'calendar', 'once')
                         AND EXISTS (SELECT 1 FROM scheduler_meta WHERE key = 'zone_rules:' || time_zone)";
const ZONE_EVENTS: &str = "SELECT count(*) FROM scheduler_events WHERE kind = 'zone_data'";
impl Scenario {
    /// Renews the system's zone data, and starts a scheduler.
    pub(crate) fn change_zone_data(&mut self) -> Check {
        if self.write_locked {
            return Ok(());
        }
        self.execute(OTHER, []).expect("other rules");
        let (events, schedulers) = (self.count(ZONE_EVENTS, [])?, self.schedulers.len());
        let in_use = self.count(IN_USE, [])?.min(1);
        self.start_scheduler()?;
        if self.schedulers.len() == schedulers {
            return Ok(());
        }
        self.fault("zone data changed");
        match self.count(ZONE_EVENTS, [])? - events {
            events if events == in_use => Ok(()),
            events => Err(format!("zone data changed: {events} events")),
        }
    }

    fn count(&self, query: &str, given: impl rusqlite::Params) -> Check<i64> {
        let read = |tables: &rusqlite::Connection| tables.query_row(query, given, |row| row.get(0));
        self.database.shell.read(read).map_err(|error| error.to_string())
    }
}
