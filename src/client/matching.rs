//! Operations on all runs or tasks that a filter selects: cancel, retry, remove, pause, resume.

use crate::client::Client;
use crate::error::Result;
use crate::model::bulk::{BulkAction, BulkPass, BulkReport};
use crate::model::filter::{Filter, Selection};
use crate::rules::turn_size::TurnSize;

impl Client {
    /// Cancels the selected unfinished runs as [`Client::cancel`] does. [`Filter::status`] may be `queued`, `running` or `failed`.
    ///
    /// This and the other operations on many work in short transactions of at most 500 runs or tasks, with a pause after each, so
    /// that no scheduler waits for long. What is added after the start is not selected. If one fails, what was changed before stays
    /// changed; repeating it changes the rest. A row that cannot be changed is left as it is, and reported.
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("mail:anna").handler("mail"))?;
    /// client.trigger("mail:anna")?;
    /// assert!(client.cancel_matching(&Filter::new()).is_err(), "no condition: that would be every run");
    /// assert_eq!(client.cancel_matching(&Filter::new().name("mail:*"))?.changed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) if the filter has no condition, or a status that cannot be cancelled; or if the
    /// database cannot be written.
    pub fn cancel_matching(&self, filter: &Filter) -> Result<BulkReport> {
        self.change_matching(BulkAction::Cancel, filter)
    }

    /// Retries the selected runs as [`Client::retry`] does, in the order in which they ended. [`Filter::status`] may be `dead`, the default, or
    /// `cancelled`.
    ///
    /// Leaves a run that was retried before, whatever became of the retry: repeating this retries no run twice. A retry that died
    /// is a dead run itself, and is retried.
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let client = Client::open(home.path().join("agent.db"))?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// let run = client.trigger("invoice")?;
    /// client.cancel(run)?;
    /// let cancelled = Filter::new().handler("invoice").status(RunStatus::Cancelled);
    /// assert_eq!(client.retry_matching(&cancelled)?.changed, 1);
    /// let again = client.retry_matching(&cancelled)?;
    /// assert_eq!((again.changed, again.left[0].reason.as_str()), (0, "it was retried before"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn retry_matching(&self, filter: &Filter) -> Result<BulkReport> {
        self.change_matching(BulkAction::Retry, filter)
    }

    /// Removes the selected tasks with their history as [`Client::remove`] does. Leaves tasks that have a running run. A task of which a
    /// part of the runs is deleted when this fails is invalid, and says so; repeating this removes it, whatever status the filter names.
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest:anna", "0 7 * * *").handler("digest"))?;
    /// client.add(NewTask::cron("digest:bob", "0 7 * * *").handler("digest"))?;
    /// client.pause("digest:bob")?;
    /// let paused = Filter::new().handler("digest").task_status(TaskStatus::Paused);
    /// assert_eq!(client.remove_matching(&paused)?.changed, 1);
    /// assert_eq!(client.names()?, ["digest:anna"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn remove_matching(&self, filter: &Filter) -> Result<BulkReport> {
        self.change_matching(BulkAction::Remove, filter)
    }

    /// Pauses the selected tasks as [`Client::pause`] does: those that are active, and those that an [`Actor`](crate::Actor) paused.
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest:anna", "0 7 * * *").handler("digest"))?;
    /// let all = Filter::new().handler("digest");
    /// assert_eq!((client.pause_matching(&all)?.changed, client.pause_matching(&all)?.changed), (1, 0));
    /// assert_eq!(client.resume_matching(&all)?.changed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn pause_matching(&self, filter: &Filter) -> Result<BulkReport> {
        self.change_matching(BulkAction::Pause, filter)
    }

    /// Resumes the selected tasks as [`Client::resume`] does. [`Filter::task_status`] may be `paused`, the default, or `invalid`.
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn resume_matching(&self, filter: &Filter) -> Result<BulkReport> {
        self.change_matching(BulkAction::Resume, filter)
    }

    /// Performs one of the operations on many.
    ///
    /// ```
    /// use duly::{BulkAction, Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// let client = Client::open(home.path().join("agent.db"))?;
    /// client.add(NewTask::cron("digest:anna", "0 7 * * *").handler("digest"))?;
    /// let of_digest = Filter::new().handler("digest");
    /// for action in [BulkAction::Pause, BulkAction::Resume, BulkAction::Remove] {
    ///     assert_eq!(client.change_matching(action, &of_digest)?.changed, 1);
    /// }
    /// // A filter without a condition selects nothing: it is refused.
    /// assert!(client.change_matching(BulkAction::Remove, &Filter::new()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn change_matching(&self, action: BulkAction, filter: &Filter) -> Result<BulkReport> {
        self.change_selected(&filter.selection(action, self.now())?, None)
    }

    pub(super) fn remove_in_parts(&self, name: &str) -> Result<()> {
        loop {
            let began = self.monotonic();
            if self.write(|store, now| store.remove(name, now))? {
                return Ok(());
            }
            self.rest(began, 1);
        }
    }

    /// Performs an operation on the runs that a filter selects and that are not newer than one. The change of each run is recorded as an
    /// action of `actor`, in the same transaction.
    #[cfg(feature = "page")]
    pub(crate) fn change_runs(
        &self,
        actor: &'static str,
        action: BulkAction,
        filter: &Filter,
        newest: i64,
    ) -> Result<BulkReport> {
        let selection = filter.selection(action, self.now())?;
        self.change_selected(&Selection { actor: Some(actor), ..selection }, Some(newest))
    }

    /// Changes what is selected. `until`: the newest of it; `None`: the newest of all.
    pub(super) fn change_selected(&self, selection: &Selection, until: Option<i64>) -> Result<BulkReport> {
        let (mut pass, mut report, mut size) =
            (BulkPass { until, ..BulkPass::default() }, BulkReport::default(), TurnSize::default());
        while !pass.is_over() {
            let began = self.monotonic();
            pass.most = Some(size.items());
            let events = self.write(|store, now| store.change_matching(selection, &mut pass, &mut report, now))?;
            self.emit(&events);
            if !pass.is_over() {
                // The last of what a snapshot has selected may be few.
                let items = if pass.selected.is_empty() { 0 } else { size.items() };
                size.wrote(items, pass.held);
                self.rest(began, 1);
            }
        }
        Ok(report)
    }

    /// Returns what [`Client::change_matching`] would do now. Writes nothing, and blocks no writer.
    ///
    /// ```
    /// use duly::{BulkAction, Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// client.trigger("invoice")?;
    /// let all = Filter::new().name("invoice");
    /// assert_eq!(client.count_matching(BulkAction::Cancel, &all)?.changed, 1);
    /// // Nothing is dead: there is nothing to retry.
    /// assert_eq!(client.count_matching(BulkAction::Retry, &all)?.changed, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::cancel_matching`].
    pub fn count_matching(&self, action: BulkAction, filter: &Filter) -> Result<BulkReport> {
        self.count_some(action, filter, usize::MAX).map(|(report, _)| report)
    }

    /// As [`Client::count_matching`], but counts at most `most`. Also returns the position at which it stopped.
    pub(crate) fn count_some(
        &self,
        action: BulkAction,
        filter: &Filter,
        most: usize,
    ) -> Result<(BulkReport, BulkPass)> {
        let selection = filter.selection(action, self.now())?;
        let (mut pass, mut report) = (BulkPass::default(), BulkReport::default());
        while !pass.is_over() && report.changed + report.left_count() < most {
            // A snapshot for each batch: a single one would prevent the log from being cut.
            self.store().count_matching(&selection, &mut pass, &mut report)?;
        }
        Ok((report, pass))
    }
}
