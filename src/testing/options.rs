//! What a [`StepperBuilder`] sets beside the handlers.

#[cfg(feature = "postgres")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::clock::ManualClock;
use crate::model::event::Observer;
use crate::model::settings::{Retention, settings_methods};
use crate::testing::{Crashed, StepperBuilder};

impl StepperBuilder {
    /// Uses, and moves, the clock of another stepper.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let first = Stepper::builder(&file, noon).start()?;
    /// let second = Stepper::builder(&file, noon).clock(first.clock()).start()?;
    /// first.clock().advance(std::time::Duration::from_secs(60));
    /// assert_eq!(second.now().wall, noon + std::time::Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(mut self, clock: &ManualClock) -> Self {
        self.clock = clock.clone();
        self
    }

    settings_methods!();

    /// Uses the connection of a stepper that has crashed. The new owner remembers nothing of the old one, but need not prepare
    /// the statements again, which is much of the cost of a test of many crashes. A connection to another file is refused at
    /// start.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let (file, noon) = (home.path().join("agent.db"), "2027-03-14T12:00:00Z".parse()?);
    /// let mut first = Stepper::builder(&file, noon).accept("post").start()?;
    /// first.client().add(NewTask::once("post", noon).handler("post"))?;
    /// let (lost, clock) = (first.step()?, first.clock().clone());
    /// let mut second = Stepper::builder(&file, noon).clock(&clock).accept("post").after(first.crash()).start()?;
    /// // The run is recovered, and its retry waits for the backoff.
    /// second.step()?;
    /// clock.advance(std::time::Duration::from_secs(600));
    /// let again = second.step()?;
    /// assert_eq!((again[0].run_id, again[0].attempt), (lost[0].run_id, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn after(mut self, crashed: Crashed) -> Self {
        self.after = Some(crashed);
        self
    }

    /// Sets the seed of all chance, including the owner's id, so that the same seed gives the same test: two owners of one file
    /// need two seeds, or the second is refused. Default: a unique id, and 0 for the rest.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let first = Stepper::builder(&file, noon).seed(7).start()?;
    /// // The same seed draws the same id, and that owner is alive.
    /// assert!(Stepper::builder(&file, noon).seed(7).start().is_err());
    /// assert_ne!(Stepper::builder(&file, noon).seed(8).start()?.owner(), first.owner());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets how long, in real time, a write waits for another connection's; zero: a busy database is an error at once. Default
    /// 5 s, as for a scheduler.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = Some(busy_timeout);
        self
    }

    /// Adds an observer, which receives all events.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// As [`Builder::state_folder`](crate::Builder::state_folder). Default: a folder of this user for tests, among the temporary files.
    #[cfg(feature = "postgres")]
    pub fn state_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.state = Some(folder.as_ref().to_owned());
        self
    }

    /// Takes the time of day from the server, as a scheduler does. The clock of the stepper then only measures durations, and may show
    /// another time of day, as that of a machine may.
    #[cfg(feature = "postgres")]
    pub fn server_time(mut self) -> Self {
        self.follows_server = true;
        self
    }

    /// Returns this client, of the same file and clock, from [`Stepper::client`](crate::testing::Stepper::client) instead of opening
    /// another connection: for tests that start thousands of owners.
    pub fn client(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// Sets the runtime of the async handlers. Default: one of the thread of the test. With one that starts with paused time
    /// (`start_paused` of tokio), a handler that sleeps takes no time. A second call changes nothing.
    #[cfg(feature = "tokio")]
    pub fn runtime(self, runtime: tokio::runtime::Runtime) -> Self {
        let _ = self.runtime.set(runtime);
        self
    }
}
