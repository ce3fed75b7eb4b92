//! The observers of a scheduler: application code, of which no panic reaches the scheduler.

use std::fmt;
use std::sync::Arc;

use crate::host::panics;
use crate::model::event::{Event, Observer};
use crate::model::one_line::OneLine;

/// All observers of a scheduler.
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn notify(&self, event: &Event) {
        for observer in &self.0 {
            // An observer is the user's code: its panic must not stop the loop.
            if let Err(panic) = panics::contained(|| observer.observe(event)) {
                log::error!("an observer panicked: {}; the other observers still receive the event", OneLine(&panic));
            }
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|observer| panics::dispose("an observer", observer));
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.len()).finish()
    }
}
