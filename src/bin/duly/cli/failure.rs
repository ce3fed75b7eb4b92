//! The failure of a command, and its exit code.

use std::fmt;
use std::io;

use duly::Error;

/// The failure of a command. `Display` is the line that is printed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Duly(Error),
    /// An error of the library, and what the user can do.
    Advised(Error, String),
    /// The output could not be written.
    Output(io::Error),
    /// The arguments contradict each other, or cannot be used on this machine.
    Refused(String),
    /// An option cannot be used.
    Usage(String),
    /// The command ran and its result is negative: a run that failed, a problem that was found.
    Unsuccessful(String),
    /// The command has no result.
    Undecided(String),
}

impl Failure {
    /// Returns the exit code of the program.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            // The reader closed the output early, as `head` does: no failure.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Duly(Error::UnusableDatabase { .. }) | Failure::Advised(Error::UnusableDatabase { .. }, _) => 4,
            Failure::Usage(_) => 2,
            Failure::Undecided(_) => 5,
            _ => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Duly(error) => error.fmt(f),
            Failure::Advised(error, advice) => write!(f, "{error}{advice}"),
            Failure::Output(error) => write!(f, "cannot print: {error}"),
            Failure::Refused(text) | Failure::Usage(text) | Failure::Unsuccessful(text) | Failure::Undecided(text) => {
                f.write_str(text)
            }
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
