//! `AsyncClient`: a client that can be awaited. Each call runs on a thread for blocking calls.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::client::runs::NewRun;
use crate::error::{BoxError, Error, Result};
use crate::model::bulk::BulkReport;
use crate::model::filter::Filter;
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::new_task::NewTask;
use crate::model::report::Status;
use crate::model::request::{Added, Applied, Apply, Cancel, Change, Triggered};
use crate::model::run::{Attempt, Effect, Run, RunFilter};
use crate::model::task::Task;
use crate::worker::job::JobKind;

/// A [`Client`] for async code: no call blocks a thread of the runtime. Cheap to clone. Its methods must be awaited within a tokio
/// runtime. A call that has begun is made to its end, also if its future is dropped; one that waits for an earlier call is not made
/// then. It works without a scheduler, and after the shutdown of the scheduler that it came from.
///
/// ```
/// use duly::{AsyncClient, Change, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let client = AsyncClient::from(Client::open(&file)?);
/// let added = client.add(NewTask::cron("digest", "0 7 * * *").handler("digest")).await?;
/// assert_eq!(added.change, Change::Created);
/// let run = client.trigger("digest").await?;
/// client.cancel(run).await?;
/// // Every other method of `Client`:
/// assert_eq!(client.call(|client| client.names()).await?, ["digest"]);
/// # Ok::<(), duly::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    client: Client,
    /// A client makes one call at a time: further ones wait without a thread.
    gate: Arc<Semaphore>,
}

impl From<Client> for AsyncClient {
    fn from(client: Client) -> Self {
        AsyncClient { client, gate: Arc::new(Semaphore::new(1)) }
    }
}

/// Methods that pass their arguments on.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        #[doc = concat!("As [`Client::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// As that method; [`Error::Store`] if the runtime shuts down before the call.
        pub async fn $name(&self, $($argument: $type),*) -> Result<$answer> {
            self.call(move |client| client.$name($($argument),*)).await
        }
    )*};
}

/// Methods that keep a copy of their first argument.
macro_rules! calls_by_reference {
    ($($name:ident($first:ident: $borrowed:ty $(, $argument:ident: $type:ty)*) -> $answer:ty;)*) => {$(
        #[doc = concat!("As [`Client::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// As that method; [`Error::Store`] if the runtime shuts down before the call.
        pub async fn $name(&self, $first: &$borrowed $(, $argument: $type)*) -> Result<$answer> {
            let $first = $first.to_owned();
            self.call(move |client| client.$name(&$first $(, $argument)*)).await
        }
    )*};
}

impl AsyncClient {
    /// Returns the client that it calls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Calls any method of [`Client`].
    ///
    /// ```
    /// use duly::{AsyncClient, Client, Limits};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let client = AsyncClient::from(Client::open(&file)?);
    /// let problems = client.call(|client| client.check(&Limits::default())).await?;
    /// assert!(problems.is_empty());
    /// # Ok::<(), duly::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `f`; [`Error::Store`] outside of a tokio runtime, or if the runtime shuts down before the call.
    pub async fn call<T: Send + 'static>(&self, f: impl FnOnce(&Client) -> Result<T> + Send + 'static) -> Result<T> {
        let lost = |error: BoxError| Error::store("call the client", error);
        let turn = self.gate.clone().acquire_owned().await.map_err(|error| lost(error.into()))?;
        // Else `spawn_blocking` panics.
        tokio::runtime::Handle::try_current().map_err(|error| lost(error.into()))?;
        let client = self.client.clone();
        let call = move || {
            let _turn = turn;
            f(&client)
        };
        match tokio::task::spawn_blocking(call).await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(lost(error.into())),
            },
        }
    }

    calls! {
        add(task: NewTask) -> Added;
        add_if_absent(task: NewTask) -> Added;
        replace(task: NewTask) -> Added;
        tasks() -> Vec<Task>;
        trigger_run(run: NewRun) -> Triggered;
        run(run: i64) -> Option<Run>;
        newest_runs(limit: usize) -> Vec<Run>;
        cancel(run: i64) -> Cancel;
        retry(run: i64) -> i64;
        attempts(run: i64) -> Vec<Attempt>;
        effects(run: i64) -> Vec<Effect>;
        status() -> Status;
        set_limit(limit: Limit) -> Change;
        limits() -> Vec<LimitState>;
    }

    calls_by_reference! {
        task(name: str) -> Option<Task>;
        pause(name: str) -> ();
        resume(name: str) -> ();
        remove(name: str) -> ();
        remove_limit(on: LimitOn) -> bool;
        trigger(name: str) -> i64;
        cancel_all(name: str) -> usize;
        history(name: str, limit: usize) -> Vec<Run>;
        runs(filter: RunFilter) -> Vec<Run>;
        cancel_matching(filter: Filter) -> BulkReport;
        retry_matching(filter: Filter) -> BulkReport;
        remove_matching(filter: Filter) -> BulkReport;
        pause_matching(filter: Filter) -> BulkReport;
        resume_matching(filter: Filter) -> BulkReport;
    }

    /// As [`Client::enqueue`].
    ///
    /// # Errors
    /// As that method; [`Error::Store`] if the runtime shuts down before the call.
    pub fn enqueue<J: JobKind>(&self, payload: &J::Payload) -> impl Future<Output = Result<Added>> + Send {
        self.add(NewTask::enqueue(J::NAME, self.client.now()).payload(payload))
    }

    /// As [`Client::add_all`].
    ///
    /// # Errors
    /// As that method; [`Error::Store`] if the runtime shuts down before the call.
    pub async fn add_all(&self, tasks: impl IntoIterator<Item = NewTask>) -> Result<Vec<Added>> {
        let tasks: Vec<NewTask> = tasks.into_iter().collect();
        self.call(move |client| client.add_all(tasks)).await
    }

    /// As [`Client::apply`].
    ///
    /// # Errors
    /// As that method; [`Error::Store`] if the runtime shuts down before the call.
    pub async fn apply(
        &self,
        manifest: &str,
        tasks: impl IntoIterator<Item = NewTask>,
        how: Apply,
    ) -> Result<Vec<Applied>> {
        let (manifest, tasks) = (manifest.to_owned(), tasks.into_iter().collect::<Vec<_>>());
        self.call(move |client| client.apply(&manifest, tasks, how)).await
    }

    /// As [`Client::trigger_with`].
    ///
    /// # Errors
    /// As that method; [`Error::Store`] if the runtime shuts down before the call.
    pub async fn trigger_with(&self, name: &str, payload: impl Serialize) -> Result<i64> {
        self.trigger_run(NewRun::of(name).payload(payload)).await.map(|run| run.run_id)
    }
}
