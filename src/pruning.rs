//! `Client::prune`: retention by hand.

use crate::client::Client;
use crate::error::Result;
use crate::settings::Retention;
use crate::store::pruning;
use crate::store::work::MAX_ITEMS;

pub use crate::store::pruning::Pruned;

impl Client {
    /// Removes at once what is long over, as a running scheduler does little by little; in many short transactions, so that
    /// nobody waits for it. Answers with how much that was.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if less than the least is to be kept at most; or if the
    /// database cannot be written. What went before stays gone.
    pub fn prune(&self, keep: Retention) -> Result<Pruned> {
        keep.check()?;
        let (mut after, mut pruned) = (0, Pruned::default());
        loop {
            let (began, before) = (after, pruned);
            let now = self.now();
            (after, pruned) = self.write("prune", |tx, _| {
                let (mut after, mut pruned) = (began, before);
                pruning::batch(tx, &keep, now, &mut after, MAX_ITEMS, &mut pruned)?;
                Ok((after, pruned))
            })?;
            if after == 0 && pruned == before {
                return Ok(pruned);
            }
        }
    }
}
