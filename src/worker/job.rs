//! Typed jobs: the name of a handler and the type of its payload, declared once for adding and for handling.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "tokio")]
use std::sync::Arc;

use crate::error::BoxError;
use crate::model::new_task::NewTask;
use crate::worker::backoff::FailedAttempt;
use crate::worker::failure::Failure;
#[cfg(feature = "tokio")]
use crate::worker::handler::FutureHandler;
use crate::worker::handler::{Context, Handler, store_result};

/// The name of a job and the type of its payload: all that a program needs that adds tasks for it. A program that runs them
/// implements [`Job`], or `AsyncJob`, for the same type.
///
/// ```
/// use duly::{Client, JobKind};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// /// A program that only adds mails needs no handler.
/// struct Mail;
///
/// impl JobKind for Mail {
///     const NAME: &'static str = "mail";
///     type Payload = String;
/// }
///
/// let client = Client::open(&file)?;
/// client.enqueue::<Mail>(&"anna@example.org".to_owned())?;
/// assert_eq!(client.tasks()?[0].definition.payload, r#""anna@example.org""#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait JobKind {
    /// The name of the handler.
    const NAME: &'static str;
    /// The payload. Deserialization decides which older payloads are still accepted: add fields with `#[serde(default)]`.
    type Payload: Serialize + DeserializeOwned;
}

/// A job: a handler whose name and payload type are those of the tasks that are added for it. Register it with
/// [`Builder::job`](crate::Builder::job); add tasks with [`NewTask::job`] or [`Client::enqueue`](crate::Client::enqueue).
///
/// A payload that is not a [`JobKind::Payload`], which another program or an older version may have written, makes its run dead at
/// once: repeating cannot help. The error names the field.
///
/// ```
/// use duly::{Client, Context, Failure, Job, JobKind, NewTask, RunStatus, testing::Stepper};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Mail {
///     to: String,
///     copies: u8,
/// }
///
/// struct SendMail {
///     from: String,
/// }
///
/// impl JobKind for SendMail {
///     const NAME: &'static str = "mail";
///     type Payload = Mail;
/// }
///
/// impl Job for SendMail {
///     type Output = String;
///     type Error = Failure;
///
///     fn run(&self, _: &Context, mail: Mail) -> Result<String, Failure> {
///         Ok(format!("{} copies from {} to {}", mail.copies, self.from, mail.to))
///     }
/// }
///
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).job(SendMail { from: "me".into() }).start()?;
/// let client = stepper.client().clone();
/// client.enqueue::<SendMail>(&Mail { to: "anna".into(), copies: 2 })?;
/// client.add(NewTask::cron("weekly", "0 7 * * 1").job::<SendMail>(&Mail { to: "bruno".into(), copies: 1 }))?;
/// // An edge: a program without the type adds what is no mail.
/// client.add(NewTask::once("odd", noon).handler("mail").payload(serde_json::json!({"to": "carla", "copies": 300})))?;
/// stepper.run_until(noon)?;
/// let runs = client.newest_runs(2)?;
/// assert_eq!(runs[1].result.as_deref(), Some(r#""2 copies from me to anna""#));
/// assert_eq!((runs[0].status, runs[0].attempt), (RunStatus::Dead, 1));
/// assert!(runs[0].error.as_ref().unwrap().contains("copies: invalid value: integer `300`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Job: JobKind + Send + Sync + 'static {
    /// What it returns; stored as the result of the run.
    type Output: Serialize;
    /// Its error. A [`Failure`] says what follows; after any other error, the run is retried.
    type Error: Into<BoxError>;

    /// Runs one attempt.
    ///
    /// # Errors
    /// As [`Handler::run`].
    fn run(&self, context: &Context, payload: Self::Payload) -> Result<Self::Output, Self::Error>;

    /// As [`Handler::backoff`].
    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        let _ = failed;
        None
    }

    /// As [`Handler::default_timeout`].
    fn default_timeout(&self) -> Option<Duration> {
        None
    }
}

/// A [`Job`] whose attempts are futures on the application's runtime. Register it with
/// [`Builder::async_job`](crate::Builder::async_job), which describes how they run.
///
/// ```
/// use duly::{AsyncJob, BoxError, Context, JobKind, Scheduler};
///
/// struct Double;
///
/// impl JobKind for Double {
///     const NAME: &'static str = "double";
///     type Payload = i64;
/// }
///
/// impl AsyncJob for Double {
///     type Output = i64;
///     type Error = BoxError;
///
///     async fn run(&self, _: Context, payload: i64) -> Result<i64, BoxError> {
///         tokio::task::yield_now().await;
///         payload.checked_mul(2).ok_or_else(|| "too large".into())
///     }
/// }
///
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let runtime = tokio::runtime::Runtime::new()?;
/// let scheduler = Scheduler::builder(&file).runtime(runtime.handle().clone()).async_job(Double).start()?;
/// let name = scheduler.enqueue::<Double>(&21)?.name;
/// # while scheduler.history(&name, 1)?.first().is_none_or(|run| !run.status.is_final()) { std::thread::yield_now() }
/// assert_eq!(scheduler.history(&name, 1)?[0].result.as_deref(), Some("42"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tokio")]
pub trait AsyncJob: JobKind + Send + Sync + 'static {
    /// As [`Job::Output`].
    type Output: Serialize;
    /// As [`Job::Error`].
    type Error: Into<BoxError>;

    /// Runs one attempt. Implement it as an `async fn`.
    ///
    /// # Errors
    /// As [`Handler::run`].
    fn run(
        &self,
        context: Context,
        payload: Self::Payload,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// As [`Handler::backoff`].
    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        let _ = failed;
        None
    }
}

/// The handler that a job is.
pub(crate) struct JobHandler<J>(pub(crate) J);

impl<J: Job> Handler for JobHandler<J> {
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        let payload = context.payload().map_err(Failure::give_up)?;
        store_result(self.0.run(context, payload).map_err(Into::into)?)
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.0.default_timeout()
    }

    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        self.0.backoff(failed)
    }
}

/// Returns the async handler that a job is.
#[cfg(feature = "tokio")]
pub(crate) fn future_handler<J: AsyncJob>(job: J) -> FutureHandler {
    let job = Arc::new(job);
    let own = job.clone();
    let run = move |context: Context| -> crate::worker::handler::HandlerFuture {
        let job = job.clone();
        Box::pin(async move {
            let payload = context.payload().map_err(Failure::give_up)?;
            store_result(job.run(context, payload).await.map_err(Into::into)?)
        })
    };
    FutureHandler { run: Arc::new(run), backoff: Some(Arc::new(move |failed: &FailedAttempt<'_>| own.backoff(failed))) }
}

impl NewTask {
    /// Sets the handler and the payload, which are those of a [`Job`].
    #[must_use]
    pub fn job<J: JobKind>(self, payload: &J::Payload) -> Self {
        self.handler(J::NAME).payload(payload)
    }
}
