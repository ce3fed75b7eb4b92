//! Why a command failed, and what the program exits with then.

use std::fmt;
use std::io;

use duly::Error;

/// Why a command failed. Its `Display` is the line that is printed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library refused, or could not.
    Duly(Error),
    /// What was to be printed could not be.
    Output(io::Error),
    /// What was typed makes no sense beside the rest, or on this machine.
    Refused(String),
    /// The run that was waited for did not succeed.
    Unsuccessful(String),
}

impl Failure {
    /// What the program exits with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            // Whoever read the output has read enough.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Duly(Error::UnusableDatabase { .. }) => 4,
            // A setting that was typed.
            Failure::Duly(Error::InvalidConfig { .. }) => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Duly(error) => error.fmt(f),
            Failure::Output(error) => write!(f, "cannot print: {error}"),
            Failure::Refused(text) | Failure::Unsuccessful(text) => f.write_str(text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Duly(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}
