//! What a [`Builder`] sets beside the handlers.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::clock::Clock;
use crate::error::{BoxError, Result};
use crate::host::guard_lock::GuardPlace;
use crate::model::event::Observer;
use crate::model::settings::{Retention, settings_methods};
#[cfg(feature = "page")]
use crate::page::Page;
use crate::scheduler::Builder;
use crate::store::sqlite::file::{Durability, Missing};
use crate::worker::executor::Executor;

impl Builder {
    /// Adds an executor, which runs attempts outside of the threads of this scheduler, with handlers and a limit of its own.
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executors.push(executor);
        self
    }

    /// For `duly run`: calls a function with the place of the lock file of its guard, before the first attempt.
    #[doc(hidden)]
    pub fn guarded(mut self, take: impl FnOnce(GuardPlace) + Send + Sync + 'static) -> Self {
        self.take_guard = Some(Box::new(take));
        self
    }

    settings_methods!();

    /// Refuses a missing file or missing tables. Default: they are created.
    ///
    /// ```
    /// # let home = tempfile::tempdir()?;
    /// let file = home.path().join("agent.bd");
    /// let error = duly::Scheduler::builder(&file).existing().start().unwrap_err();
    /// assert!(matches!(error, duly::Error::UnusableDatabase { .. }) && !file.exists(), "a slip of the pen");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn existing(mut self) -> Self {
        self.missing = Missing::Refuse;
        self
    }

    /// Sets how durable a commit is. Default: fully.
    ///
    /// ```
    /// use duly::{Durability, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file).durability(Durability::MayRepeatAfterPowerLoss).start()?;
    /// scheduler.shutdown(std::time::Duration::ZERO)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Prepares each connection on which handlers write their own rows with [`Context::finish`](crate::Context::finish): registers
    /// functions, sets a busy timeout, creates temporary tables. The settings that duly relies on are set again afterwards. A worker opens its
    /// connection when a handler first needs it; if `prepare` fails then, so does the attempt.
    ///
    /// ```
    /// use duly::{Context, NewTask, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let scheduler = Scheduler::builder(&file)
    ///     .on_connect(|connection| Ok(connection.execute_batch("CREATE TEMP TABLE seen (id INTEGER)")?))
    ///     .handler("look", move |run: &Context| {
    ///         let seen: i64 = run.finish(|tx| Ok(tx.query_row("SELECT count(*) FROM seen", [], |row| row.get(0))?))?;
    /// #       sender.send(seen)?;
    ///         Ok::<_, duly::BoxError>(seen)
    ///     })
    ///     .start()?;
    /// # scheduler.add(NewTask::once("look", "2020-01-01T00:00:00Z".parse()?).handler("look"))?;
    /// # assert_eq!(receiver.recv()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_connect(mut self, prepare: impl Fn(&Connection) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.prepare = Some(Arc::new(prepare));
        self
    }

    /// Sets the source of time. Default: the machine's clock. If the database is on a server, the time of day is the server's, and only
    /// durations are measured by this clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Adds an observer, which receives all events beside the log, on a thread of its own. A shutdown waits until it has them, but not for
    /// longer than its deadline.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use duly::{Event, NewTask, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let (sender, events) = mpsc::channel();
    /// let scheduler = Scheduler::builder(&file)
    ///     .observe(move |event: &Event| _ = sender.send(event.to_string()))
    ///     .start()?;
    /// scheduler.add(NewTask::manual("export").handler("export"))?;
    /// scheduler.cancel(scheduler.trigger("export")?)?;
    /// assert!(events.recv()?.contains(r#"run 1 of "export""#));
    /// // An observer that takes its time holds up no run.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Serves the status page, metrics and JSON over HTTP while the scheduler runs.
    ///
    /// ```
    /// use duly::{Scheduler, page::Page};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file).page(Page::on("127.0.0.1:0")).start()?;
    /// let taken = scheduler.page_address().ok_or("no page")?;
    /// // Another scheduler cannot have the same port, and does not start.
    /// assert!(Scheduler::builder(&file).page(Page::on(taken.to_string())).start().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "page")]
    pub fn page(mut self, page: Page) -> Self {
        self.page = Some(page);
        self
    }

    /// Sets the runtime of the async handlers. Default: the one within which [`Builder::start`] is called. Shut the scheduler down
    /// before the runtime.
    ///
    /// ```
    /// use duly::{Context, Error, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let builder = || Scheduler::builder(&file).async_handler("work", |_: Context| async { Ok::<_, Error>(()) });
    /// // Outside of a runtime, one must be set.
    /// assert!(matches!(builder().start(), Err(Error::InvalidConfig { field: "runtime", .. })));
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// builder().runtime(runtime.handle().clone()).start()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets how many attempts of async handlers run at once, 1 to 10 000, beside those of the [workers](Builder::workers). None is
    /// claimed ahead. Default 1000.
    #[cfg(feature = "tokio")]
    pub fn async_limit(mut self, limit: usize) -> Self {
        self.async_limit = limit;
        self
    }
}
