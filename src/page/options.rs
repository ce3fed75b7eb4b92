//! What is served, and where.

use std::net::SocketAddr;

use crate::error::Result;
use crate::page::address;

/// What a scheduler serves over HTTP, and where: see [`Builder::page`](crate::Builder::page).
///
/// ```
/// use duly::Scheduler;
/// use duly::page::Page;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// // Port 0: the system chooses a free port.
/// let scheduler = Scheduler::builder(&file).page(Page::on("127.0.0.1:0")).start()?;
/// let address = scheduler.page_address().ok_or("no page")?;
/// assert!(address.ip().is_loopback() && address.port() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is served until a scheduler is started with it"]
pub struct Page {
    address: String,
    actions: bool,
    metrics_per_task: bool,
}

impl Page {
    /// Serves the page on this address: an IP address of the loopback interface and a port, or `localhost` and a port.
    ///
    /// ```
    /// use duly::{Error, Scheduler, page::Page};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// // The page has no users: it is served to this machine only.
    /// let error = Scheduler::builder(&file).page(Page::on("0.0.0.0:8629")).start().unwrap_err();
    /// assert!(matches!(error, Error::InvalidConfig { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(address: impl Into<String>) -> Self {
        Page { address: address.into(), actions: false, metrics_per_task: false }
    }

    /// Lets the page trigger, pause, resume, cancel and retry. Default: it only reads.
    ///
    /// ```
    /// use duly::{Scheduler, page::Page};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file).page(Page::on("localhost:0").actions().metrics_per_task()).start()?;
    /// assert!(scheduler.page_address().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn actions(mut self) -> Self {
        self.actions = true;
        self
    }

    /// Adds metrics of each task that is due more than once, for the first 10 000 of them: see docs/metrics.md. Each is then several
    /// time series of its own. Default: runs are counted by handler.
    pub fn metrics_per_task(mut self) -> Self {
        self.metrics_per_task = true;
        self
    }

    pub(crate) fn has_metrics_per_task(&self) -> bool {
        self.metrics_per_task
    }

    pub(crate) fn has_actions(&self) -> bool {
        self.actions
    }

    /// Returns the address as it was given.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if it is no address of the loopback interface.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>> {
        address::loopback(&self.address)
    }
}
