//! A server for one test, which may crash it.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use crate::postgres::server::{Guard, programs, start};

/// Nothing happens in the server but what the test does. It has room for few locks: looking through them takes less time.
const SETTINGS: &str =
    "-c autovacuum=off -c checkpoint_timeout=1h -c max_connections=60 -c max_locks_per_transaction=64";

pub(crate) struct OwnServer {
    /// The folder of its socket.
    pub(crate) folder: PathBuf,
    guard: Guard,
}

impl OwnServer {
    /// `None` where PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let (folder, guard) = start(&programs()?, SETTINGS)?;
        Some(OwnServer { folder, guard })
    }

    /// Ends all processes of the server as a crash does, and starts it again. What it has committed stays: the machine goes on.
    pub(crate) fn crash(&mut self) {
        let answer = self.guard.order("crash");
        assert_eq!(answer, "up again: 0\n", "the server in {} does not start again", self.folder.display());
    }
}

impl Guard {
    /// Sends a line to the script, and returns its answer.
    pub(crate) fn order(&mut self, line: &str) -> String {
        writeln!(self.process.stdin.as_mut().expect("its input"), "{line}").expect("a guard");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("its answer");
        answer
    }
}

/// Returns whether a server can be started here.
pub(crate) fn is_installed() -> bool {
    cfg!(unix) && programs().is_some()
}
