//! Adds tasks inside a transaction of the application: a transactional outbox.

use rusqlite::Transaction;

use crate::client::Client;
#[cfg(feature = "postgres")]
use crate::error::Error;
use crate::error::Result;
use crate::model::new_task::NewTask;
use crate::model::request::{Added, Existing};
#[cfg(feature = "postgres")]
use crate::store::place;
use crate::store::sqlite::add::add_in;
use crate::worker::handler::Context;

impl Client {
    /// Adds a task inside a transaction of the application, on the application's own connection to the same file: an outbox. The
    /// task exists if that transaction commits, and only then. Begin the transaction as `IMMEDIATE`: SQLite refuses a write in a
    /// transaction that has read first if another program wrote in between.
    ///
    /// A scheduler sees the task within its poll interval after the commit; [`Client::wake`] makes it check immediately.
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
    /// As [`Client::add`]; the transaction is then as it was before. [`Error::Refused`](crate::Error::Refused) if it is on
    /// another file.
    pub fn add_in(&self, tx: &Transaction<'_>, task: NewTask) -> Result<Added> {
        let (now, file, existing) = (self.now(), self.path_in_place()?, Existing::refuse(&task));
        add_in(tx, &file, task.into_definition(now)?, existing, now)
    }

    /// As [`Client::add_in`], for a database on a server: adds a task inside a transaction of the application, on the application's own
    /// connection to the same database. What the application does afterwards in that transaction is not affected.
    ///
    /// ```no_run
    /// use duly::postgres::NoTls;
    /// use duly::{Client, NewTask};
    /// let client = Client::open("postgres://shop@db.example/shop")?;
    /// let mut shop = duly::postgres::Client::connect("host=db.example user=shop", NoTls)?;
    /// let mut tx = shop.transaction()?;
    /// tx.execute("INSERT INTO orders (id, what) VALUES (7, 'tea')", &[])?;
    /// client.add_in_postgres(&mut tx, NewTask::once("ship:7", client.now()).handler("ship").payload(7))?;
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`]; the transaction is then as it was before. [`Error::Refused`](crate::Error::Refused) if it is on another
    /// database.
    #[cfg(feature = "postgres")]
    pub fn add_in_postgres(&self, tx: &mut postgres::Transaction<'_>, task: NewTask) -> Result<Added> {
        let (now, existing) = (self.now(), Existing::refuse(&task));
        let task = task.into_definition(now)?;
        let refused = || Error::Refused {
            request: format!("add task {:?} in a transaction of PostgreSQL", task.name),
            reason: "the tasks are in a file: begin the transaction there, and use add_in".to_owned(),
        };
        place::add_in(&mut **self.store(), tx, &task, existing, now).unwrap_or_else(|| Err(refused()))
    }
}

impl Context {
    /// Adds a task within the transaction of [`Context::finish`]: it exists if the run succeeds, and only then. As
    /// [`Client::add_in`](crate::Client::add_in).
    ///
    /// ```
    /// # use duly::{BoxError, Context, NewTask};
    /// fn step_one(run: &Context) -> Result<(), BoxError> {
    ///     // The next step is due immediately. Its name makes it unique, even if this step needs several attempts.
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
        let (now, existing) = (self.now().wall, Existing::refuse(&task));
        // Not through the worker's connection, which `finish` has locked.
        add_in(tx, self.file(), task.into_definition(now)?, existing, now)
    }
}
