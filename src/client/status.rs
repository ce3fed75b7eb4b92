//! Overviews: the status of the database, the names of its tasks, their last runs.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::error::Result;
#[cfg(feature = "page")]
use crate::model::health::Queue;
use crate::model::report::{Recent, Status};

impl Client {
    /// Returns the state of the database and its schedulers. Reads every task once.
    ///
    /// ```
    /// use duly::{Client, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// let status = client.status()?;
    /// assert_eq!(status.tasks, [(TaskStatus::Active, 1)]);
    /// assert_eq!(status.next.map(|(name, _)| name).as_deref(), Some("digest"));
    /// // No scheduler is running: the task will be due, and wait.
    /// assert!(status.instances.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn status(&self) -> Result<Status> {
        self.store().status(self.now())
    }

    /// Counts the unfinished runs.
    #[cfg(feature = "page")]
    pub(crate) fn queue(&self) -> Result<Queue> {
        self.store().queue(self.now())
    }

    /// Returns the names of all tasks, in order. Faster than [`Client::tasks`]; meant for shell completion.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("b").handler("work"))?;
    /// client.add(NewTask::manual("a").handler("work"))?;
    /// assert_eq!(client.names()?, ["a", "b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        self.store().names()
    }

    /// Returns the last runs of every task that has runs, by the id of the task, oldest first; at most `of_each` of one task.
    /// However long a history is, only these runs are read.
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
        self.store().recent(of_each)
    }
}
