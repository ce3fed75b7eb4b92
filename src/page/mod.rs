//! The status page, metrics and JSON over HTTP, beside a scheduler (feature `page`).
//!
//! One thread serves them, with a connection of its own that reads only. Nothing of the scheduler waits for it.
#![doc = include_str!("../../docs/page.md")]

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
