//! A part of the selftest, at work in a process of its own. Whatever happens to whoever holds it, nothing is left of it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::selftest::child::{PART, Part};
use crate::selftest::system;
use crate::selftest::wait::{Halt, Patience, failed};

/// How long a part may take to end when it is to.
const END: Duration = Duration::from_secs(60);
/// What the parts of a check say when they fail.
const LOG: &str = "log";

/// A process.
pub(crate) struct Process {
    part: Part,
    folder: PathBuf,
    child: Child,
    // While it is open, the part stays.
    stay: Option<ChildStdin>,
}

impl Process {
    /// Starts one in the folder of a check.
    pub(crate) fn start(part: Part, folder: &Path) -> Result<Self, Halt> {
        let cannot = failed("cannot start a process");
        let log = OpenOptions::new().create(true).append(true).open(folder.join(LOG)).map_err(&cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(&cannot)?);
        command.arg("selftest").env(PART, part.name()).current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        system::apart(&mut command);
        let mut child = command.spawn().map_err(&cannot)?;
        let stay = child.stdin.take();
        Ok(Process { part, folder: folder.to_owned(), child, stay })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>, Halt> {
        self.child.try_wait().map_err(failed("cannot wait for a process"))
    }

    /// Still at work. One that has ended by itself is a fault.
    pub(crate) fn lives(&mut self) -> Result<(), Halt> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Halt::Failed(self.said(status))),
        }
    }

    /// Lets it come to its end, which must be in order.
    pub(crate) fn end(mut self, patience: &Patience) -> Result<(), Halt> {
        drop(self.stay.take());
        let mut found = None;
        let what = format!("the part {:?} had ended", self.part.name());
        patience.until(&what, END, || {
            found = self.ended()?;
            Ok(found.is_some())
        })?;
        match found {
            Some(status) if !status.success() => Err(Halt::Failed(self.said(status))),
            _ => Ok(()),
        }
    }

    /// Ends it at once, and leaves it no time to do anything about it.
    pub(crate) fn kill(mut self) -> Result<(), Halt> {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.map(|_| ()).map_err(failed("cannot kill a process"))
    }

    /// What the last line of its log says of its end.
    fn said(&self, status: ExitStatus) -> String {
        let log = std::fs::read_to_string(self.folder.join(LOG)).unwrap_or_default();
        let last = log.lines().last().unwrap_or("it said nothing").trim_start_matches("error: ");
        format!("the part {:?} ended by itself, {status}: {last}", self.part.name())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
