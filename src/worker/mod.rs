//! Runs attempts: worker threads, handlers, effects, the connection of a worker.

pub(crate) mod at_work;
pub(crate) mod attempt;
pub(crate) mod backoff;
pub mod command;
pub(crate) mod connection;
pub(crate) mod effect_steps;
pub(crate) mod effects;
pub mod executor;
pub(crate) mod executor_lane;
pub(crate) mod failure;
#[cfg(feature = "postgres")]
pub(crate) mod fence;
#[cfg(feature = "postgres")]
mod finish_on_server;
#[cfg(feature = "tokio")]
pub(crate) mod futures;
pub(crate) mod handed;
pub(crate) mod handler;
pub(crate) mod job;
pub(crate) mod lane;
pub(crate) mod pool;
pub(crate) mod progress;
pub(crate) mod span;
