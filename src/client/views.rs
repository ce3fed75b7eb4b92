//! Reads what the pages of one run, of the timeline and of the schedulers show.

use crate::client::Client;
use crate::error::Result;
use crate::model::views::{RunView, SchedulerView, Timeline, Window};

impl Client {
    /// Returns a run with all that belongs to it, and why it has not started.
    pub(crate) fn run_view(&self, run: i64) -> Result<Option<RunView>> {
        self.store().run_view(run, self.now())
    }

    /// Returns the runs of each task within a window.
    pub(crate) fn timeline(&self, window: &Window) -> Result<Timeline> {
        self.store().timeline(window, self.now())
    }

    /// Returns the schedulers that have not stopped in order, then the newest of those that have.
    pub(crate) fn schedulers(&self) -> Result<Vec<SchedulerView>> {
        self.store().schedulers()
    }
}
