//! Carries out runs: worker threads, handlers, effects, the connection that a worker records its intents with.

pub(crate) mod attempt;
pub(crate) mod connection;
pub(crate) mod effects;
pub(crate) mod handler;
pub(crate) mod pool;
pub(crate) mod progress;
