//! The status page, metrics and JSON over HTTP, beside a scheduler (feature `page`).
//!
//! One thread serves them, with a connection of its own that reads only. Nothing of the scheduler waits for it. The address is one of the
//! loopback interface; a request that a browser sends for another site is refused.
//!
//! | path | contents |
//! |---|---|
//! | `/`, `/tasks/NAME`, `/runs/ID`, `/timeline`, `/schedulers`, `/events` | pages |
//! | `/api/` | the same as JSON |
//! | `/metrics`, `/healthz`, `/livez` | metrics of Prometheus, and health checks |
//!
//! ```
//! use duly::{Scheduler, page::Page};
//! # let home = tempfile::tempdir()?;
//! # let file = home.path().join("agent.db");
//! let scheduler = Scheduler::builder(&file).page(Page::on("127.0.0.1:0")).start()?;
//! println!("http://{}/", scheduler.page_address().ok_or("no page")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [The page](https://docs.rs/crate/duly/latest/source/docs/page.md) describes each path, the buttons, and how to publish it;
//! [metrics](https://docs.rs/crate/duly/latest/source/docs/metrics.md) lists the metrics.

mod actions;
mod address;
mod answer;
mod api;
mod changes;
mod connection;
#[cfg(test)]
mod cost;
mod exposition;
mod guard;
mod html;
mod kept;
mod limits;
mod metrics;
mod monitor;
mod options;
mod routes;
mod server;
mod state;
#[cfg(test)]
mod tests;

pub use options::Page;
pub(crate) use server::Server;
