//! Reads what the pages `tasks` and `task` show.

use crate::client::Client;
use crate::error::Result;
use crate::model::task_pages::{RunLine, RunQuery, TaskPage, TaskQuery};

impl Client {
    /// Returns a page of tasks, with their last runs. Reads no other task completely.
    pub(crate) fn task_page(&self, query: &TaskQuery) -> Result<TaskPage> {
        self.store().task_page(query)
    }

    /// Returns a page of the runs of a task, newest first, and whether there are older ones.
    pub(crate) fn run_page(&self, query: &RunQuery) -> Result<(Vec<RunLine>, bool)> {
        self.store().run_page(query)
    }
}
