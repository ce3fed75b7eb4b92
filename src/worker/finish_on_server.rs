//! `finish` for a database on a server: the rows of the handler and the end of its run are committed in one transaction of PostgreSQL.

use postgres::Transaction;
use serde::Serialize;

use crate::error::{BoxError, Result};
use crate::store::place;
use crate::worker::effects::Writing;
use crate::worker::handler::Context;

impl Context {
    /// As [`Context::finish`], for a database on a server: what `f` writes and the outcome are committed in one transaction of
    /// PostgreSQL, or neither is.
    ///
    /// `f` writes on a connection of its worker to the same database, with the role and the settings of the address that the scheduler
    /// was given; `search_path` is that of the role. Other schedulers do not wait for `f`, as long as it does not write to duly's tables.
    /// To add tasks in the transaction use [`Client::add_in_postgres`](crate::Client::add_in_postgres). If `f` fails, nothing is
    /// written and the attempt continues: return the error to have it retried.
    ///
    /// A statement whose answer takes longer than `statement_timeout` of the role, and six seconds, fails, and ends the connection;
    /// without that setting ten minutes count. `Transaction::cancel_token` cannot be used.
    ///
    /// ```no_run
    /// use duly::{BoxError, Context, Scheduler};
    /// # fn fetch() -> Result<Vec<String>, std::fmt::Error> { Ok(vec!["a".into(), "b".into()]) }
    /// let scheduler = Scheduler::builder("postgres://shop@db.example/shop")
    ///     .handler("import", |run: &Context| {
    ///         let rows = fetch()?;
    ///         run.finish_in_postgres(|tx| {
    ///             for row in &rows {
    ///                 tx.execute("INSERT INTO imported (row) VALUES ($1)", &[row])?;
    ///             }
    ///             Ok(rows.len())
    ///         })
    ///     })
    ///     .start()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `f`. [`Error::Superseded`](crate::Error::Superseded) if another owner has taken the run, also while `f` ran.
    /// [`Error::Refused`](crate::Error::Refused) if the run is finished already, or the database is a file.
    /// [`Error::Store`](crate::Error::Store) if the transaction could not be committed, because `f` ended it, or another program
    /// changed the run at the same time. In every case nothing of `f` was written, unless it committed by itself.
    pub fn finish_in_postgres<T: Serialize>(
        &self,
        f: impl FnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let writing = Writing::begin(self)?;
        let mut ended = None;
        let settle = |tx: &mut Transaction<'_>| {
            let returned = f(tx)?;
            let finished = self.succeeded(&returned)?;
            ended = Some((returned, finished.clone()));
            Ok(finished)
        };
        let recorded = self.connection().write_beside_others(self.claim(), |store, owner| {
            let reason = "its database is a file: use `finish`";
            place::finish(store, owner, self.claim(), settle).unwrap_or_else(|| Err(writing.refused(reason).into()))
        })?;
        writing.written(recorded, ended)
    }

    /// As [`Context::finish_in_postgres`], for async handlers: `f` is called on a thread for blocking calls. Once it is called it is
    /// not interrupted, also if the attempt is dropped meanwhile: the end of the attempt waits for it, and what it commits is that end.
    ///
    /// # Errors
    /// As [`Context::finish_in_postgres`].
    #[cfg(feature = "tokio")]
    pub async fn finish_in_postgres_async<T: Serialize + Send + 'static>(
        &self,
        f: impl FnOnce(&mut Transaction<'_>) -> Result<T, BoxError> + Send + 'static,
    ) -> Result<T, BoxError> {
        self.blocking(move |context, _turn| context.finish_in_postgres(f)).await?
    }
}
