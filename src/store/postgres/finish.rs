//! The end of a run that is committed in one transaction with rows of its handler.

use postgres::Transaction;

use crate::error::BoxError;
use crate::model::finished::{Finished, Recorded};
use crate::model::run::Claim;
use crate::store::Store;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::reach::Reach;
use crate::store::postgres::reach::client::Request;
use crate::store::sqlite::finish::finish;

impl PostgresStore {
    /// Settles a run in one transaction with what `work` writes, which returns how the attempt ended. Both are committed, or neither.
    pub(crate) fn finish(
        &mut self,
        owner: &str,
        claim: &Claim,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<Finished, BoxError>,
    ) -> Result<Recorded, BoxError> {
        // It is checked once more under the lock: the run may be taken while `work` runs.
        self.check_claim(owner, claim)?;
        let reach = Reach::from(Request::Finish { run: claim.run_id, key: claim.concurrency_key.clone() });
        let finished = {
            let mut bench = self.lock();
            let begun = bench.rows.server.begin_with(work).map_err(|fault| fault.into_error("finish a run"))?;
            bench.aim(reach.clone());
            bench.is_shared = true;
            begun?
        };
        let mut recorded = finish(&mut self.memory, owner, claim, |_| Ok(finished.clone()));
        let refused = self.lock().refused_followers.take();
        if refused.is_some() {
            // What `work` has written stays.
            let mut bench = self.lock();
            bench.aim(reach);
            bench.unfollowed = refused;
            drop(bench);
            recorded = finish(&mut self.memory, owner, claim, |_| Ok(finished));
        }
        self.end();
        recorded
    }
}
