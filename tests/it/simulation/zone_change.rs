//! Other rules for local time: an owner that starts with other zone data than the one before it plans anew what is to come, says
//! so once, and neither loses nor repeats what has come due meanwhile.

use crate::simulation::history::Check;
use crate::simulation::scenario::World;

/// As if the last owner had gone by an older edition.
const OLDER: &str = "UPDATE scheduler_meta SET value = '2024a' WHERE key = 'zone_data'";
const TELLING: &str = "SELECT count(*) FROM scheduler_events WHERE kind = 'zone_data'";
/// Of what is planned by local time, what a scheduler has still to look at.
const PLANNED: &str = "
    SELECT count(*) FROM scheduled_tasks
     WHERE status = 'active' AND schedule_type = 'cron' AND time_zone <> 'UTC' AND planned = 1 AND next_run > ?1";

impl World {
    /// The zone data of the system are renewed, and the next owner starts with them.
    pub(crate) fn change_the_law(&mut self) -> Check {
        if self.held {
            return Ok(());
        }
        self.type_in(OLDER, []).expect("another edition");
        let (told, owners) = (self.count(TELLING, [])?, self.agents.len());
        self.start_one()?;
        if self.agents.len() == owners {
            return Ok(());
        }
        self.fault("other zone data");
        let now = self.wall();
        match (self.count(TELLING, [])? - told, self.count(PLANNED, [now])?) {
            (1, 0) => Ok(()),
            (told, planned) => {
                Err(format!("zone data have changed: told {told} times, and {planned} tasks stay planned"))
            }
        }
    }

    fn count(&self, query: &str, given: impl rusqlite::Params) -> Check<i64> {
        self.stage
            .shell
            .prepare_cached(query)
            .and_then(|mut query| query.query_row(given, |row| row.get(0)))
            .map_err(|error| error.to_string())
    }
}
