//! `Client::prune`: applies retention on request.

use crate::client::Client;
use crate::error::Result;
use crate::model::progress_meter::Progress;
use crate::model::report::{Pass, Pruned};
use crate::model::settings::Retention;

impl Client {
    /// Deletes all expired history now, which a running scheduler does little by little. Works in many short transactions with a
    /// pause after each, so that no writer waits for long. Returns how much it deleted.
    ///
    /// ```
    /// use duly::{Client, NewTask, Retention};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// for _ in 0..3 {
    ///     client.trigger("invoice").and_then(|run| client.cancel(run))?;
    /// }
    /// let keep = Retention { least_runs: 0, most_runs: 1, ..Retention::default() };
    /// assert_eq!((client.prune(keep)?.runs, client.prune(keep)?.runs), (2, 0));
    /// assert!(client.prune(Retention { least_runs: 2, ..keep }).is_err(), "at least 2 and at most 1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if `least_runs` is above `most_runs`; or if the database cannot be
    /// written. What was deleted before stays deleted.
    pub fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.prune_watched(keep, &Progress::default())
    }

    /// As [`Client::prune`], and reports its progress: tasks that were examined, by their ids.
    ///
    /// # Errors
    /// As [`Client::prune`].
    pub fn prune_watched(&self, keep: Retention, progress: &Progress) -> Result<Pruned> {
        keep.check()?;
        let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
        let mut at_begin = None;
        loop {
            if pass.after == 0 {
                // A pass that deletes nothing is the last: the next pass deletes what did not fit into a batch.
                if at_begin == Some(pruned) {
                    progress.complete();
                    return Ok(pruned);
                }
                at_begin = Some(pruned);
            }
            let began = self.monotonic();
            let newest = self.write(|store, now| store.prune(&keep, &mut pass, &mut pruned, now))?;
            // The last pass deletes nothing, and is fast: the count does not begin again.
            progress.set_total(newest.unsigned_abs());
            progress.set_done(progress.done().max(pass.after.unsigned_abs()));
            self.rest(began, 2);
        }
    }

    /// Returns how much [`Client::prune`] would delete now. Writes nothing, and blocks no writer.
    ///
    /// ```
    /// use duly::{Client, NewTask, Retention};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.trigger("digest").and_then(|run| client.cancel(run))?;
    /// let keep = Retention { least_runs: 0, most_runs: 1, ..Retention::default() };
    /// // The run is younger than 30 days, and the only one.
    /// assert_eq!(client.would_prune(keep)?.runs, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::prune`]; or if the database cannot be read.
    pub fn would_prune(&self, keep: Retention) -> Result<Pruned> {
        self.would_prune_watched(keep, &Progress::default())
    }

    /// As [`Client::would_prune`], and reports its progress.
    ///
    /// # Errors
    /// As [`Client::would_prune`].
    pub fn would_prune_watched(&self, keep: Retention, progress: &Progress) -> Result<Pruned> {
        keep.check()?;
        let now = self.now();
        let (mut pass, mut pruned) = (Pass::default(), Pruned::default());
        loop {
            // A snapshot for each batch: a single one would prevent the log from being cut.
            let newest = self.store().would_prune(&keep, &mut pass, &mut pruned, now)?;
            progress.set_total(newest.unsigned_abs());
            if pass.after == 0 {
                progress.complete();
                return Ok(pruned);
            }
            progress.set_done(pass.after.unsigned_abs());
        }
    }
}
