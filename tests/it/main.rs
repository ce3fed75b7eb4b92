//! The one test binary. Each module asks one kind of question; what it needs of the world is in `house`.

/// The harness: a folder that goes away, a stepper, a plain connection, a wait with a deadline. No test of its own.
mod house;
/// The real scheduler with its threads, and how it leaves.
mod threads;
