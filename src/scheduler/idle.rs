//! Whether a scheduler has work.

use crate::error::Result;
use crate::scheduler::Scheduler;
use crate::worker::executor_lane;

impl Scheduler {
    /// Whether nothing is left to do now: no task is due, no run is running anywhere in the file, and none that this
    /// scheduler has a handler for may start or waits for another try. Runs of paused tasks do not count.
    ///
    /// ```
    /// use duly::{NewTask, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file).start()?;
    /// scheduler.add(NewTask::manual("export").handler("export"))?;
    /// scheduler.trigger("export")?;
    /// // A run waits, but for another scheduler: this one has no such handler.
    /// assert!(scheduler.is_idle()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn is_idle(&self) -> Result<bool> {
        self.idleness()()
    }

    /// Returns what asks [`Scheduler::is_idle`], for another thread: the database may not answer.
    #[doc(hidden)]
    pub fn idleness(&self) -> impl FnOnce() -> Result<bool> + Send + 'static {
        let (client, mut handlers, executors) = (self.client.clone(), self.handlers.clone(), self.executors.clone());
        move || {
            for of_executor in executors.iter().filter_map(|executor| executor_lane::handlers_of(&**executor)) {
                handlers.extend(of_executor.iter().cloned());
            }
            client.is_idle(&handlers)
        }
    }
}
