//! Failures beside the work, which are retried: logged when they begin and when they end.

use std::collections::BTreeSet;
use std::fmt::Display;

/// What fails at present, by its consequence.
#[derive(Debug, Default)]
pub(crate) struct LogOnce {
    failing: BTreeSet<&'static str>,
}

impl LogOnce {
    /// Takes the result of an attempt, and logs it if it differs from the last one.
    pub(crate) fn log<T>(&mut self, what: &'static str, result: Result<T, impl Display>) -> Option<T> {
        match result {
            Ok(done) => {
                if self.failing.remove(what) {
                    log::info!("{what}: resolved");
                }
                Some(done)
            }
            Err(error) => {
                if self.failing.insert(what) {
                    log::warn!("{what}: {error}; retried");
                }
                None
            }
        }
    }
}
