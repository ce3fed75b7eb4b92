//! Workers: long-lived programs whose functions are handlers. See docs/workers.md.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Most workers that `duly run` starts.
pub(crate) const MAX_WORKERS: usize = 64;
/// Most processes of one worker.
pub(crate) const MAX_COPIES: u32 = 64;
/// Most bytes of the name of a worker.
const MAX_NAME: usize = 200;

/// A worker that is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerOptions {
    pub(crate) name: String,
    /// The program and its arguments; never empty.
    pub(crate) argv: Vec<String>,
    /// The working directory; `None`: that of `duly run`.
    pub(crate) cwd: Option<PathBuf>,
    /// Variables that are added to the environment.
    pub(crate) env: BTreeMap<String, String>,
    /// The number of its processes, 1 to [`MAX_COPIES`].
    pub(crate) copies: u32,
}

/// Whether the name of a worker is valid, as that of a task.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_allowed)
}

/// What the name of a worker must be, for messages.
pub(crate) const EXPECTED_NAME: &str = "a letter, then up to 199 letters, digits or . _ : / @ -";
