//! Actions of the status page.

use crate::client::Client;
use crate::error::Result;
use crate::model::action::Action;

impl Client {
    /// Performs an action, and records it as an event that names `actor`, in one transaction. Returns the run that it opened.
    ///
    /// # Errors
    /// As [`Client::trigger`], [`Client::pause`], [`Client::resume`], [`Client::cancel`] or [`Client::retry`]. Then nothing is
    /// recorded.
    pub(crate) fn act(&self, actor: &str, action: &Action) -> Result<Option<i64>> {
        let acted = self.write(|store, now| store.act(actor, action, now))?;
        self.emit(&acted.events);
        Ok(acted.opened)
    }
}
