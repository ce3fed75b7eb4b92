//! Tasks that are added inside a transaction of the application's own: there if it commits, and only then.

use std::path::Path;

use rusqlite::Transaction;

use crate::client::Client;
use crate::client::add::{Added, Existing, put};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::platform;
use crate::model::new_task::NewTask;
use crate::store::sqlite::add::Adder;
use crate::store::sqlite::connection;
use crate::worker::handler::Context;

impl Client {
    /// Adds a task inside a transaction of the application's own, on its own connection to the same file: an outbox. The
    /// task is there if that transaction commits, and only then. Best begun as `IMMEDIATE`: one that has read before it
    /// writes is refused by SQLite if another program wrote between.
    ///
    /// A scheduler sees the task within its poll interval after the commit; [`Client::wake`] hastens it.
    ///
    /// ```
    /// use duly::rusqlite::{Connection, TransactionBehavior};
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("shop.db");
    /// let client = Client::open(&file)?;
    /// let mut shop = Connection::open(&file)?;
    /// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT) STRICT")?;
    ///
    /// let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO orders (id, what) VALUES (7, 'tea')", [])?;
    /// client.add_in(&tx, NewTask::once("ship:7", "2027-03-14T12:00:00Z".parse()?).handler("ship").payload(7))?;
    /// drop(tx);
    /// assert!(client.task("ship:7")?.is_none(), "the order was not committed, and nothing is shipped");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`]; the transaction is then as it was before. [`Error::Refused`] if it is on another file.
    pub fn add_in(&self, tx: &Transaction<'_>, task: NewTask) -> Result<Added> {
        put_in(tx, &self.in_place()?, task, self.now())
    }
}

impl Context {
    /// Adds a task within the transaction of [`Context::finish`]: it is there if the run succeeds, and only then. As
    /// [`Client::add_in`](crate::Client::add_in).
    ///
    /// ```
    /// # use duly::{BoxError, Context, NewTask};
    /// fn step_one(run: &Context) -> Result<(), BoxError> {
    ///     // The next step is due at once, and there is one of it however often this one is tried.
    ///     let next = NewTask::once(format!("step-two:{}", run.run_id()), run.scheduled_for()).handler("step-two");
    ///     run.finish(|tx| {
    ///         run.add_in(tx, next)?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Client::add_in`](crate::Client::add_in).
    pub fn add_in(&self, tx: &Transaction<'_>, task: NewTask) -> Result<Added> {
        // Not by the desk, which `finish` holds.
        put_in(tx, self.file(), task, self.now().wall)
    }
}

/// Adds a task inside a transaction of the application's, which must be on this file. If it cannot be added, the transaction
/// is as it was.
pub(crate) fn put_in(tx: &Transaction<'_>, file: &Path, task: NewTask, now: Timestamp) -> Result<Added> {
    let (existing, task) = (Existing::refuse(&task), task.into_definition(now)?);
    let refused = |reason| Error::Refused { request: format!("add task {:?} in a transaction", task.name), reason };
    let found = tx.path().unwrap_or_default();
    if !is_same(Path::new(found), file) {
        let found = if found.is_empty() { "a database in memory" } else { found };
        let file = file.display();
        return Err(refused(format!(
            "it is on {found}, and the tasks are in {file}: begin it on a connection to that file"
        )));
    }
    if tx.is_autocommit() {
        return Err(refused("it has ended".to_owned()));
    }
    if now < Timestamp::MIN {
        return Err(refused(format!("the clock of this machine shows {now}: set it first")));
    }
    connection::within(tx, file, "add a task in a transaction", |schedules| {
        put(tx, &mut Adder::new(tx)?, schedules, task, existing, now)
    })
}

/// Whether two paths name one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().and_then(|metadata| platform::identity(&metadata));
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}
