//! Reads what the pages `tasks` and `task` show.

use crate::client::Client;
use crate::error::Result;
use crate::model::task_pages::{RunPage, RunQuery, TaskPage, TaskQuery};

impl Client {
    /// Returns a page of tasks, with their last runs. Reads no other task completely.
    pub(crate) fn task_page(&self, query: &TaskQuery) -> Result<TaskPage> {
        self.store().task_page(query)
    }

    /// Returns a page of runs, newest first.
    pub(crate) fn run_page(&self, query: &RunQuery) -> Result<RunPage> {
        self.store().run_page(query)
    }
}
