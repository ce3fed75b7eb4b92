//! A child process of the selftest. It does not outlive its handle.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::exec::machine;
use crate::selftest::child::{ROLE, Role};
use crate::selftest::wait::{CheckError, Timer, failed};

/// Time limit for the end of a child whose input was closed.
const END_LIMIT: Duration = Duration::from_secs(60);
/// File with the standard error of the children of a check.
const LOG: &str = "log";

/// A child process.
pub(crate) struct Process {
    role: Role,
    folder: PathBuf,
    child: Child,
    /// The child exits when this is closed.
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts a child in the folder of a check.
    pub(crate) fn start(role: Role, folder: &Path) -> Result<Self, CheckError> {
        let cannot = failed("cannot start a process");
        let log = OpenOptions::new().create(true).append(true).open(folder.join(LOG)).map_err(&cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(&cannot)?);
        command.arg("selftest").env(ROLE, role.name()).current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        machine::own_group(&mut command);
        let mut child = command.spawn().map_err(&cannot)?;
        let input = child.stdin.take();
        Ok(Process { role, folder: folder.to_owned(), child, input })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if the child has ended.
    fn exit_status(&mut self) -> Result<Option<ExitStatus>, CheckError> {
        self.child.try_wait().map_err(failed("cannot wait for a process"))
    }

    /// Fails if the child has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), CheckError> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => Err(CheckError::Failed(self.describe_end(status))),
        }
    }

    /// Closes the input of the child, waits for its end, and fails if it failed.
    pub(crate) fn end(mut self, timer: &Timer) -> Result<(), CheckError> {
        drop(self.input.take());
        let mut found = None;
        let what = format!("the child process {:?} had ended", self.role.name());
        timer.wait_until(&what, END_LIMIT, || {
            found = self.exit_status()?;
            Ok(found.is_some())
        })?;
        match found {
            Some(status) if !status.success() => Err(CheckError::Failed(self.describe_end(status))),
            _ => Ok(()),
        }
    }

    /// Kills the child with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<(), CheckError> {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.map(|_| ()).map_err(failed("cannot kill a process"))
    }

    /// Describes the end of the child, with the last line of its log.
    fn describe_end(&self, status: ExitStatus) -> String {
        let log = std::fs::read_to_string(self.folder.join(LOG)).unwrap_or_default();
        let last = log.lines().last().unwrap_or("its log is empty").trim_start_matches("error: ");
        format!("the child process {:?} ended by itself, {status}: {last}", self.role.name())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
