//! Looks recorded events up.

use crate::client::Client;
use crate::error::Result;
use crate::model::recorded::{EventFilter, RecordedEvent};

impl Client {
    /// Returns the newest recorded events that match a filter, newest first. Pages: the next one begins
    /// [before](EventFilter::before) the id of the last event.
    ///
    /// ```
    /// use duly::{Client, EventFilter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.pause("digest")?;
    /// client.resume("digest")?;
    /// let newest = client.events(&EventFilter::newest(1).of("digest"))?;
    /// assert_eq!(newest[0].kind, "resumed");
    /// let next = client.events(&EventFilter::newest(1).of("digest").before(newest[0].id))?;
    /// assert_eq!((next[0].kind.as_str(), next[0].detail.as_deref()), ("paused", Some("user")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`](crate::Error::UnknownTask) if the filter names a task that does not exist.
    pub fn events(&self, filter: &EventFilter) -> Result<Vec<RecordedEvent>> {
        self.store().events(filter)
    }
}
