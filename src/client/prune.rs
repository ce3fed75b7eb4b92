//! `Client::prune`: retention by hand.

use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::error::Result;
use crate::model::progress_meter::Progress;
use crate::model::settings::Retention;
use crate::store::sqlite::prune::{self, Pass};
use crate::store::turn_io::MAX_ITEMS;

pub use crate::store::sqlite::prune::Pruned;

/// SQLite looks that often, at least, whether a lock is free.
const LONGEST_REST: Duration = Duration::from_millis(100);

impl Client {
    /// Removes at once what is long over, as a running scheduler does little by little; in many short transactions, with a
    /// rest after each, so that nobody waits for long. Answers with how much that was.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if less than the least is to be kept at most; or if the
    /// database cannot be written. What went before stays gone.
    pub fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.prune_watched(keep, &Progress::default())
    }

    /// As [`Client::prune`], with somebody looking on: tasks that were looked at, by their ids.
    ///
    /// # Errors
    /// As [`Client::prune`].
    pub fn prune_watched(&self, keep: Retention, advance: &Progress) -> Result<Pruned> {
        keep.check()?;
        let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
        let mut at_begin = None;
        loop {
            if pass.after() == 0 {
                // A pass that found nothing is the last: what a batch had no room for is met by the next pass.
                if at_begin == Some(pruned) {
                    advance.complete();
                    return Ok(pruned);
                }
                at_begin = Some(pruned);
            }
            let (began, before) = (pass, pruned);
            let (now, begin) = (self.now(), self.monotonic());
            let last;
            (pass, pruned, last) = self.write("prune", |tx, _| {
                let (mut pass, mut pruned) = (began, before);
                prune::batch(tx, &keep, now, &mut pass, MAX_ITEMS, &mut pruned)?;
                Ok((pass, pruned, prune::last_task(tx)?))
            })?;
            // The last pass finds nothing, and is quick: it does not begin the count anew.
            advance.total_is(last.unsigned_abs());
            advance.reach(advance.done().max(pass.after().unsigned_abs()));
            // A writer that waits for the lock only looks now and then: without a pause it would find it taken again, until
            // it gives up.
            thread::sleep((self.monotonic().saturating_sub(begin) * 2).min(LONGEST_REST));
        }
    }

    /// How much [`Client::prune`] would remove now. Nothing is written, and nobody waits.
    ///
    /// ```
    /// use duly::{Client, NewTask, Retention};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.trigger("digest").and_then(|run| client.cancel(run))?;
    /// let keep = Retention { least_runs: 0, most_runs: 1, ..Retention::default() };
    /// // It is young, and not too many.
    /// assert_eq!(client.would_prune(keep)?.runs, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::prune`]; or if the database cannot be read.
    pub fn would_prune(&self, keep: Retention) -> Result<Pruned> {
        self.would_prune_watched(keep, &Progress::default())
    }

    /// As [`Client::would_prune`], with somebody looking on.
    ///
    /// # Errors
    /// As [`Client::would_prune`].
    pub fn would_prune_watched(&self, keep: Retention, advance: &Progress) -> Result<Pruned> {
        keep.check()?;
        let now = self.now();
        let mut after = 0;
        let mut pruned = self.read("count what is over", |tx, _| {
            advance.total_is(prune::last_task(tx)?.unsigned_abs());
            Ok(prune::beside_tasks(tx, &keep, now)?)
        })?;
        loop {
            // A snapshot for each batch: one for all would keep the log from being cut.
            let began = after;
            let (end, tasks, runs) =
                self.read("count what is over", |tx, _| Ok(prune::would_go(tx, &keep, now, began, MAX_ITEMS)?))?;
            (pruned.tasks, pruned.runs) = (pruned.tasks + tasks, pruned.runs + runs);
            let Some(end) = end else {
                advance.complete();
                return Ok(pruned);
            };
            after = end;
            advance.reach(after.unsigned_abs());
        }
    }
}
