//! Effects, which are performed once however often their run is retried, and ends that are committed together with a handler's
//! rows. An effect in the outside world is recorded before and after it is performed; if the process dies between, it is in
//! doubt, and the doubt is reported, never guessed away. Rows in the same file are committed with the outcome, so there is no
//! doubt about them.

use std::time::Duration;

use rusqlite::Transaction;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{BoxError, Error, Result, excerpt};
use crate::model::finished::{Finished, Recorded};
use crate::model::run::Outcome;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::finish::finish;
use crate::store::turn_io::Begun;
use crate::worker::at_work::{AtWork, Beginning, OVER, wrote};
use crate::worker::attempt::OwnEnd;
use crate::worker::effect_steps::Step;
use crate::worker::failure::Failure;
#[cfg(feature = "tokio")]
use crate::worker::handler::Turn;
use crate::worker::handler::{Context, as_result};

/// Longest value of an effect, as JSON.
pub const MAX_EFFECT_VALUE_BYTES: usize = 256 * 1024;

/// How often it is tried to record that an effect was performed, and the first wait between two tries.
const RECORD: (u32, Duration) = (5, Duration::from_millis(100));

impl Context {
    /// Performs an effect once, however often this run is retried, and returns its value. The key names it within the run; a
    /// [retry](crate::Client::retry) of a dead run knows the effects of that run.
    ///
    /// The intent is committed first; then `f` is called, outside of any transaction; then its value is stored. An attempt that
    /// finds the value returns it and calls nothing. If `f` fails, the effect was not performed, and the next attempt may
    /// perform it. If the process is killed between, if `f` panics, or if its value cannot be stored until the end of the attempt is
    /// stored, the effect is *in doubt*:
    /// the next attempt that reaches it fails with [`Error::InDoubt`] and the run is dead, for a user to look, unless the
    /// handler can find out: [`Context::effect_or`].
    ///
    /// ```
    /// # use duly::{BoxError, Context, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let mut stepper = duly::testing::Stepper::builder(home.path().join("agent.db"), "2027-03-14T13:00:00Z".parse()?)
    /// .handler("invoice", |run: &Context| {
    ///     let receipt: String = run.effect("charge", || Ok(charge("5 EUR", &run.idempotency_key())?))?;
    ///     if run.attempt() == 1 {
    ///         return Err(BoxError::from("the printer is out of paper"));
    ///     }
    ///     // The second attempt: nothing was charged again.
    ///     assert_eq!(receipt, "receipt 1");
    ///     Ok(())
    /// })
    /// # .start()?;
    /// # static CHARGED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    /// # fn charge(_: &str, _: &str) -> std::io::Result<String> {
    /// #     Ok(format!("receipt {}", 1 + CHARGED.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
    /// # }
    /// # stepper.client().add(NewTask::once("invoice", "2027-03-14T13:00:00Z".parse()?).handler("invoice"))?;
    /// # assert_eq!(stepper.run_until("2027-03-14T14:00:00Z".parse()?)?.len(), 2);
    /// # assert_eq!(stepper.client().history("invoice", 1)?[0].status, duly::RunStatus::Succeeded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `f`. [`Error::InDoubt`] in a [`Failure`] that gives up. [`Error::Superseded`] if another owner has taken
    /// the run: nothing is begun then. [`Error::Refused`], giving up, if the key is empty or too long, or the attempt is
    /// performing this effect already; [`Error::InvalidEffect`], giving up, if the value cannot be stored or is not of the type
    /// that is asked for.
    pub fn effect<T>(&self, key: &str, f: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError>
    where
        T: Serialize + DeserializeOwned,
    {
        self.effect_or(key, || Err(self.in_doubt(key).into()), f)
    }

    /// As [`Context::effect`], for an effect of which the outside world can say whether it was performed. In doubt, `look_up`
    /// is called: `Some` is the value of an effect that was performed; after `None` it is performed now. If `look_up` fails,
    /// the effect stays in doubt, and the next attempt looks again.
    ///
    /// ```
    /// # use duly::{BoxError, Context};
    /// # struct Chat;
    /// # impl Chat {
    /// #     fn find(&self, _: &str) -> Result<Option<u64>, std::fmt::Error> { Ok(None) }
    /// #     fn post(&self, _: &str, _: &str) -> Result<u64, std::fmt::Error> { Ok(7) }
    /// # }
    /// fn announce(run: &Context, chat: &Chat) -> Result<u64, BoxError> {
    ///     // The chat keeps the key with the message, so that it can be found by it.
    ///     let key = run.idempotency_key();
    ///     run.effect_or("post", || Ok(chat.find(&key)?), || Ok(chat.post(&key, "five pictures")?))
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Context::effect`], except [`Error::InDoubt`]; and the error of `look_up`.
    pub fn effect_or<T>(
        &self,
        key: &str,
        look_up: impl FnOnce() -> Result<Option<T>, BoxError>,
        f: impl FnOnce() -> Result<T, BoxError>,
    ) -> Result<T, BoxError>
    where
        T: Serialize + DeserializeOwned,
    {
        let at_work = AtWork::begin(self, key)?;
        match self.begin_effect(key)? {
            Begun::Done(value) => return self.read(key, &value),
            Begun::InDoubt => {
                if let Some(found) = look_up()? {
                    return self.record(key, found);
                }
                // The claim may have been superseded while `look_up` ran.
                self.connection().check(self.claim())?;
            }
            Begun::Now => {}
        }
        at_work.performs()?;
        match f() {
            Ok(value) => self.record(key, value),
            Err(error) => {
                self.reported().effects.set(key, Step::NotPerformed);
                self.undo_effect(key);
                Err(error)
            }
        }
    }

    /// As [`Context::effect`], for async handlers: `f` returns a future, and no thread of the runtime is blocked while the database
    /// is written. It may be dropped, as by `select!` or at the end of its attempt: if `f` was not called, the effect was not
    /// performed; when the future of `f` has returned, its value is stored anyway; between, the effect is in doubt.
    ///
    /// ```
    /// use duly::{BoxError, Context};
    /// # async fn send(_: &str) -> Result<String, BoxError> { Ok("accepted".to_owned()) }
    /// async fn mail(run: Context) -> Result<String, BoxError> {
    ///     let address: String = run.payload()?;
    ///     // A retry of the run finds the value, and sends nothing.
    ///     run.effect_async("send", || send(&address)).await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Context::effect`].
    #[cfg(feature = "tokio")]
    pub async fn effect_async<T, F>(&self, key: &str, f: impl FnOnce() -> F + Send) -> Result<T, BoxError>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, BoxError>> + Send,
    {
        let look_up = || async { Err(self.in_doubt(key).into()) };
        self.effect_or_async(key, look_up, f).await
    }

    /// As [`Context::effect_or`], for async handlers.
    ///
    /// # Errors
    /// As [`Context::effect_or`].
    #[cfg(feature = "tokio")]
    pub async fn effect_or_async<T, L, F>(
        &self,
        key: &str,
        look_up: impl FnOnce() -> L + Send,
        f: impl FnOnce() -> F + Send,
    ) -> Result<T, BoxError>
    where
        T: Serialize + DeserializeOwned + Send,
        L: Future<Output = Result<Option<T>, BoxError>> + Send,
        F: Future<Output = Result<T, BoxError>> + Send,
    {
        let at_work = AtWork::begin(self, key)?;
        let own_key = || key.to_owned();
        let name = own_key();
        let begin = move |context: &Context, turn| {
            let begun = context.begin_effect(&name);
            let unused = matches!(begun, Ok(Begun::Now)).then(|| (context.clone(), name));
            (begun, Intent { unused, turn: Some(turn) })
        };
        let (begun, intent) = self.blocking(begin).await?;
        let performed = match begun? {
            Begun::Done(value) => return self.read(key, &value),
            Begun::InDoubt => {
                drop(intent);
                let found = look_up().await?;
                if found.is_none() {
                    // The claim may have been superseded while `look_up` ran.
                    self.blocking(|context, _turn| context.connection().check(context.claim())).await??;
                }
                found
            }
            Begun::Now => {
                intent.used();
                None
            }
        };
        let value = match performed {
            Some(value) => value,
            None => {
                at_work.performs()?;
                match f().await {
                    Ok(value) => value,
                    Err(error) => {
                        let name = own_key();
                        self.reported().effects.set(key, Step::NotPerformed);
                        self.blocking_surely(move |context, _turn| context.undo_effect(&name)).await?;
                        return Err(error);
                    }
                }
            }
        };
        let (name, json) = (own_key(), self.as_value(key, &value)?);
        self.reported().effects.set(key, Step::Performed(json.clone()));
        match self.blocking_surely(move |context, _turn| context.record_value(&name, &json)).await?? {
            None => Ok(value),
            Some(known) => self.read(key, &known),
        }
    }

    /// As [`Context::finish`], for async handlers: `f` is called on a thread for blocking calls. Once it is called it is not
    /// interrupted, also if the attempt is dropped meanwhile: the end of the attempt waits for it, and what it commits is that end.
    ///
    /// ```
    /// use duly::{BoxError, Context};
    /// async fn import(run: Context) -> Result<usize, BoxError> {
    ///     let rows = vec!["a", "b"];
    ///     run.finish_async(move |tx| {
    ///         for row in &rows {
    ///             tx.execute("INSERT INTO imported (row) VALUES (?1)", [row])?;
    ///         }
    ///         Ok(rows.len())
    ///     })
    ///     .await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Context::finish`].
    #[cfg(feature = "tokio")]
    pub async fn finish_async<T: Serialize + Send + 'static>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError> + Send + 'static,
    ) -> Result<T, BoxError> {
        self.blocking(move |context, _turn| context.finish(f)).await?
    }

    fn in_doubt(&self, key: &str) -> Failure {
        let claim = self.claim();
        let (task, run, first) = (claim.task.clone(), claim.run_id, claim.first_id());
        Failure::give_up(Error::InDoubt { task, run, first, key: key.to_owned() })
    }

    fn begin_effect(&self, key: &str) -> Result<Begun> {
        let now = self.now().wall;
        self.connection().write(self.claim(), |store, owner| {
            let mut beginning = Beginning::new(self, key)?;
            let begun = store.begin_effect(owner, self.claim(), key, now)?;
            // An earlier call of this attempt may have left the intent: then it is known what became of the effect.
            let known = std::mem::take(&mut beginning.then);
            Ok(match (known, begun) {
                (Step::NotPerformed | Step::Intended, Begun::InDoubt) | (_, Begun::Now) => {
                    beginning.then = Step::Intended;
                    Begun::Now
                }
                (Step::Performed(value), Begun::InDoubt) => {
                    beginning.then = Step::Performed(value.clone());
                    Begun::Done(value)
                }
                (_, begun) => begun,
            })
        })
    }

    /// Begins an effect that is performed elsewhere. One that is to be performed, or is in doubt, is at work until
    /// [`Context::record_effect_apart`] or [`Context::undo_effect_apart`].
    pub(crate) fn begin_effect_apart(&self, key: &str) -> Result<Begun, BoxError> {
        let at_work = AtWork::begin(self, key)?;
        let begun = self.begin_effect(key)?;
        if !matches!(begun, Begun::Done(_)) {
            at_work.performs()?;
            at_work.keep();
        }
        Ok(begun)
    }

    /// Stores the value of an effect that was performed elsewhere.
    pub(crate) fn record_effect_apart(&self, key: &str, json: &str) -> Result<(), BoxError> {
        let _at_work = AtWork::resume(self, key)?;
        let value: &serde_json::value::RawValue = serde_json::from_str(json).map_err(|error| {
            let reason = format!("found {}: {error}; it was done, and is in doubt", excerpt(json, 80));
            Failure::give_up(self.invalid(key, reason))
        })?;
        let json = self.as_value(key, &value)?;
        self.reported().effects.set(key, Step::Performed(json.clone()));
        self.record_value(key, &json)?;
        Ok(())
    }

    /// Deletes the intent of an effect that was not performed elsewhere.
    pub(crate) fn undo_effect_apart(&self, key: &str) -> Result<(), BoxError> {
        let _at_work = AtWork::resume(self, key)?;
        self.reported().effects.set(key, Step::NotPerformed);
        Ok(self.delete_intent(key)?)
    }

    /// Deletes the intent of an effect that was not performed, unless another call of the attempt has taken the effect up meanwhile, or
    /// the end of the attempt deletes it.
    fn delete_intent(&self, key: &str) -> Result<()> {
        self.connection().write(self.claim(), |store, owner| {
            if self.reported().effects.step(key) == Step::NotPerformed {
                store.undo_effect(owner, self.claim(), key)?;
                self.reported().effects.set(key, Step::Open);
            }
            Ok(())
        })
    }

    /// Deletes the intent of an effect that was not performed. If that fails, the end of the attempt deletes it.
    fn undo_effect(&self, key: &str) {
        if let Err(error) = self.delete_intent(key) {
            let run = self.run_id();
            log::warn!(
                "effect {key:?} of run {run} was not performed; its intent is deleted with the end of the attempt: {error}"
            );
        }
    }

    /// Stores the value of an effect that was performed.
    fn record<T: Serialize + DeserializeOwned>(&self, key: &str, value: T) -> Result<T, BoxError> {
        let json = self.as_value(key, &value)?;
        self.reported().effects.set(key, Step::Performed(json.clone()));
        match self.record_value(key, &json)? {
            None => Ok(value),
            Some(known) => self.read(key, &known),
        }
    }

    /// Returns the value of an effect as it is stored.
    fn as_value(&self, key: &str, value: &impl Serialize) -> Result<String, Failure> {
        let invalid = |reason: String| {
            let reason = format!("{reason}; it was done, and is in doubt, since that cannot be written down");
            Failure::give_up(self.invalid(key, reason))
        };
        let json = serde_json::to_string(value).map_err(|error| invalid(error.to_string()))?;
        if json.len() > MAX_EFFECT_VALUE_BYTES {
            let found = json.len();
            return Err(invalid(format!("expected at most {MAX_EFFECT_VALUE_BYTES} bytes of JSON, found {found}")));
        }
        Ok(json)
    }

    /// Stores the value of an effect. Returns the value that another attempt has stored before, if there is one.
    fn record_value(&self, key: &str, json: &str) -> Result<Option<String>> {
        // The effect was performed: a busy database is retried a few times.
        let (mut tries, mut wait) = RECORD;
        loop {
            let now = self.now().wall;
            let recorded =
                self.connection().write(self.claim(), |store, _| store.record_effect(self.claim(), key, json, now));
            match recorded {
                Err(Error::Store { .. }) if tries > 1 => {
                    self.wait_cancelled(wait);
                    (tries, wait) = (tries - 1, wait * 2);
                }
                recorded => {
                    // A value that could not be stored is stored with the end of the attempt.
                    if !matches!(recorded, Err(Error::Store { .. })) {
                        self.reported().effects.set(key, Step::Open);
                    }
                    return recorded;
                }
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, key: &str, value: &str) -> Result<T, BoxError> {
        let read = serde_json::from_str(value);
        Ok(read
            .map_err(|error| Failure::give_up(self.invalid(key, format!("found {}: {error}", excerpt(value, 80)))))?)
    }

    fn invalid(&self, key: &str, reason: String) -> Error {
        Error::InvalidEffect { task: self.task().to_owned(), run: self.run_id(), key: key.to_owned(), reason }
    }

    /// Ends this run as succeeded, together with rows of the handler: what `f` writes and the outcome are committed in one
    /// transaction, or neither is. Returns what `f` returned, which is stored as the run's result. Afterwards the run is over:
    /// what the handler returns changes nothing more, so call this last.
    ///
    /// `f` writes to the same file as the scheduler, on a connection of its worker that
    /// [`Builder::on_connect`](crate::Builder::on_connect) can prepare. No other connection can write meanwhile: do slow work
    /// before, and add tasks with [`Context::add_in`], because a [`Client`](crate::Client) would wait in vain for the lock. If
    /// `f` fails, nothing is written and the attempt continues: return the error to have it retried.
    ///
    /// ```
    /// use duly::{BoxError, Context, NewTask, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # fn fetch() -> Result<Vec<String>, std::fmt::Error> { Ok(vec!["a".into(), "b".into()]) }
    /// let scheduler = Scheduler::builder(&file)
    ///     .handler("import", |run: &Context| {
    ///         let rows = fetch()?;
    ///         run.finish(|tx| {
    ///             for row in &rows {
    ///                 tx.execute("INSERT INTO imported (row) VALUES (?1)", [row])?;
    ///             }
    ///             Ok(rows.len())
    ///         })
    ///     })
    ///     .start()?;
    /// # duly::rusqlite::Connection::open(&file)?.execute_batch("CREATE TABLE imported (row TEXT) STRICT")?;
    /// # let run = { scheduler.add(NewTask::cron("import", "0 0 1 1 *").handler("import"))?; scheduler.trigger("import")? };
    /// # while !scheduler.run(run)?.unwrap().status.is_final() { std::thread::yield_now() }
    /// # assert_eq!(scheduler.run(run)?.unwrap().result.as_deref(), Some("2"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `f`. [`Error::Superseded`] if another owner has taken the run. [`Error::Refused`] if the run is finished
    /// already, or `f` ended the transaction, or the database is on a server: see
    /// `Context::finish_in_postgres`, with the feature `postgres`. In every case nothing of `f` was written, unless it committed by
    /// itself.
    pub fn finish<T: Serialize>(&self, f: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>) -> Result<T, BoxError> {
        let writing = Writing::begin(self)?;
        let mut ended = None;
        let settle = |tx: &Transaction<'_>| {
            let returned = f(tx)?;
            let finished = self.succeeded(&returned)?;
            ended = Some((returned, finished.clone()));
            Ok(finished)
        };
        let recorded = self.connection().write(self.claim(), |store, owner| {
            match store.as_any().downcast_mut::<SqliteStore>() {
                Some(store) => finish(store, owner, self.claim(), settle),
                None => Err(writing.refused("its database is on a server: use `finish_in_postgres`").into()),
            }
        })?;
        writing.written(recorded, ended)
    }

    /// Returns the end of an attempt whose handler has returned this, now.
    pub(crate) fn succeeded(&self, returned: &impl Serialize) -> Result<Finished, BoxError> {
        let outcome = Outcome::Succeeded { result: as_result(returned)? };
        let exceeded = self.exceeded();
        let reported = self.reported();
        let (output, exit_code) = (reported.output.clone(), reported.exit_code);
        let progress = reported.latest.as_ref().and_then(|latest| latest.newest_progress());
        let finished = Finished::new(self.claim().clone(), outcome, self.began(), self.now());
        let finished = finished.exceeding(exceeded).with_remark(reported.remark.clone());
        Ok(Finished { output, exit_code, progress, ..finished })
    }
}

/// An intent that was committed for an async handler. If it is dropped before the effect is begun, it is deleted: what waited for
/// it was dropped, and nothing was performed.
#[cfg(feature = "tokio")]
struct Intent {
    unused: Option<(Context, String)>,
    /// Kept until the intent is deleted: a second try of the same attempt comes after that.
    turn: Option<Turn>,
}

#[cfg(feature = "tokio")]
impl Intent {
    /// The effect is about to be performed.
    fn used(mut self) {
        self.unused = None;
    }
}

#[cfg(feature = "tokio")]
impl Drop for Intent {
    fn drop(&mut self) {
        let Some((context, key)) = self.unused.take() else { return };
        let turn = self.turn.take();
        // Without a runtime the end of the attempt deletes the intent.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || {
                context.undo_effect(&key);
                drop(turn);
            });
        }
    }
}

/// The right to record a run's end, which one call has at a time; given up when it is dropped.
pub(crate) struct Writing<'a> {
    context: &'a Context,
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(context: &'a Context) -> Result<Self> {
        let writing = Writing { context };
        let mut reported = context.reported();
        let reason = match reported.end {
            OwnEnd::NotYet => {
                reported.end = OwnEnd::Writing;
                drop(reported);
                return Ok(writing);
            }
            OwnEnd::Writing => "it is being finished already",
            OwnEnd::Written(_) => "it is finished already",
            OwnEnd::Over | OwnEnd::Ending => OVER,
        };
        drop(reported);
        let refused = writing.refused(reason);
        // The right belongs to another call.
        std::mem::forget(writing);
        Err(refused)
    }

    /// Notes the end that is stored, and returns what the handler returned.
    pub(crate) fn written<T>(self, recorded: Recorded, ended: Option<(T, Finished)>) -> Result<T, BoxError> {
        let Some((answer, finished)) = ended else { return Err(self.refused("nothing was written").into()) };
        self.context.reported().end = OwnEnd::Written(Box::new(Finished { recorded: Some(recorded), ..finished }));
        Ok(answer)
    }

    pub(crate) fn refused(&self, reason: &str) -> Error {
        let request = format!("finish run {} of {:?}", self.context.run_id(), self.context.task());
        Error::Refused { request, reason: reason.to_owned() }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut reported = self.context.reported();
        match reported.end {
            OwnEnd::Writing => reported.end = OwnEnd::NotYet,
            OwnEnd::Ending => reported.end = OwnEnd::Over,
            OwnEnd::NotYet | OwnEnd::Written(_) | OwnEnd::Over => {}
        }
        wrote(reported);
    }
}
