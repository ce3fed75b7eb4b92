//! The naive poll loop, on its own table: it selects what is due, starts it, and advances `next_run` when the run has ended. The
//! implementation is careful; the fault is in the design.

use std::path::Path;
use std::time::Duration;

use duly::Timestamp;
use rusqlite::{Connection, Result};

/// A loop with one task, as in a program with one thread. A started run ends by itself.
pub(crate) struct Naive {
    connection: Connection,
    every: Duration,
    takes: Duration,
    /// The ends of the running runs.
    ends: Vec<Timestamp>,
    /// The occurrences that were started.
    pub(crate) started: Vec<Timestamp>,
}

impl Naive {
    /// Creates the table, with a task that is due at `first`.
    pub(crate) fn new(folder: &Path, first: Timestamp, every: Duration, takes: Duration) -> Result<Naive> {
        let connection = Connection::open(folder.join("naive.db"))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch("CREATE TABLE tasks (id INTEGER PRIMARY KEY, next_run INTEGER NOT NULL)")?;
        connection.execute("INSERT INTO tasks (next_run) VALUES (?1)", [first.as_millis()])?;
        Ok(Naive { connection, every, takes, ends: Vec::new(), started: Vec::new() })
    }

    /// Polls once.
    pub(crate) fn poll(&mut self, now: Timestamp) -> Result<()> {
        let running = self.ends.len();
        self.ends.retain(|end| *end > now);
        for _ in self.ends.len()..running {
            // The next occurrence after now.
            self.connection.execute(
                "UPDATE tasks SET next_run = next_run + ?1 * (1 + max(0, ?2 - next_run) / ?1) WHERE next_run <= ?2",
                [i64::try_from(self.every.as_millis()).unwrap_or(i64::MAX), now.as_millis()],
            )?;
        }
        let mut due = self.connection.prepare_cached("SELECT next_run FROM tasks WHERE next_run <= ?1")?;
        for at in due.query_map([now.as_millis()], |row| row.get(0))? {
            self.started.push(Timestamp::from_millis(at?));
            self.ends.push(now.plus(self.takes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Naive;
    use duly::Timestamp;
    use std::time::Duration;

    #[test]
    fn it_starts_a_running_task_at_each_poll_and_advances_afterwards() {
        let home = tempfile::tempdir().unwrap();
        let first: Timestamp = "2027-03-14T12:00:00Z".parse().unwrap();
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut naive = Naive::new(home.path(), first, minute, 3 * second).unwrap();
        for poll in 0..70 {
            naive.poll(first.plus(poll * second)).unwrap();
        }
        let next = first.plus(minute);
        assert_eq!(naive.started, [first, first, first, next, next, next]);
    }
}
