//! What fails beside the work and is tried again at each heartbeat: told when it begins to fail, and when it no longer does.

use std::collections::BTreeSet;
use std::fmt::Display;

/// What fails at present, by what it comes to.
#[derive(Debug, Default)]
pub(crate) struct LogOnce {
    standing: BTreeSet<&'static str>,
}

impl LogOnce {
    /// Takes how a try went, and says so if the last one had gone otherwise.
    pub(crate) fn judge<T>(&mut self, what: &'static str, tried: Result<T, impl Display>) -> Option<T> {
        match tried {
            Ok(done) => {
                if self.standing.remove(what) {
                    log::info!("{what}: not any more");
                }
                Some(done)
            }
            Err(error) => {
                if self.standing.insert(what) {
                    log::warn!("{what}: {error}; tried again at each heartbeat");
                }
                None
            }
        }
    }
}
