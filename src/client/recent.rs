//! `Client::names` and `Client::recent`: what every task is called, and how its last runs went, at a glance.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::{Client, MAX_LISTED};
use crate::error::Result;
use crate::model::run::{Run, RunStatus};
use crate::store::sqlite::{history, tasks};

/// How a run went, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recent {
    /// Where it stands.
    pub status: RunStatus,
    /// How long its newest attempt took, if one began and ended.
    pub duration: Option<Duration>,
}

impl From<&Run> for Recent {
    fn from(run: &Run) -> Self {
        Recent { status: run.status, duration: run.duration }
    }
}

impl Client {
    /// The names of all tasks, in order. Quicker than [`Client::tasks`], for somebody who is still typing one.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        self.read("list names", |tx, _| Ok(tasks::names(tx, MAX_LISTED)?))
    }

    /// The last runs of every task that has some, by the task's id, oldest first; of each at most so many. However long a
    /// history is, only these are read.
    ///
    /// ```
    /// use duly::{Client, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.cancel(client.trigger("digest")?)?;
    /// client.trigger("digest")?;
    /// let (recent, digest) = (client.recent(20)?, &client.tasks()?[0]);
    /// let statuses: Vec<RunStatus> = recent[&digest.id].iter().map(|run| run.status).collect();
    /// assert_eq!(statuses, [RunStatus::Cancelled, RunStatus::Queued]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn recent(&self, of_each: usize) -> Result<BTreeMap<i64, Vec<Recent>>> {
        let rows = self.read("read the last runs", |tx, _| Ok(history::recent(tx, of_each)?))?;
        let mut by_task: BTreeMap<i64, Vec<(i64, Recent)>> = BTreeMap::new();
        for row in rows {
            by_task.entry(row.task).or_default().push((row.run, Recent { status: row.status, duration: row.duration }));
        }
        let newest = |mut runs: Vec<(i64, Recent)>| {
            // Ids are given in the order in which runs were opened.
            runs.sort_unstable_by_key(|(id, _)| *id);
            runs.drain(..runs.len().saturating_sub(of_each));
            runs.into_iter().map(|(_, run)| run).collect()
        };
        Ok(by_task.into_iter().map(|(task, runs)| (task, newest(runs))).collect())
    }
}
