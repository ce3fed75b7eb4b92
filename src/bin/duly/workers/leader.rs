//! The standard output of a worker's process, until that process has ended: what its children write afterwards is not of the worker.

use std::io::{self, Read};
use std::process::ChildStdout;

/// Ends with what the pipe holds when the process is found to have ended.
pub(crate) struct LeaderOutput {
    stdout: ChildStdout,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    leader: Option<std::os::fd::OwnedFd>,
    /// Set when the process has ended: bytes that were in the pipe and are not read yet.
    left: Option<u64>,
}

impl LeaderOutput {
    /// `pid`: the process, which has not been waited for. Where the system does not report its end by a descriptor, the output lasts as
    /// long as any process has it.
    pub(crate) fn new(stdout: ChildStdout, pid: u32) -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::process::{Pid, PidfdFlags, pidfd_open};
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let leader = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            LeaderOutput { stdout, leader, left: None }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = pid;
            LeaderOutput { stdout, left: None }
        }
    }

    /// Waits until there is something to read, or the process has ended.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn wait(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        let (Some(leader), None) = (&self.leader, self.left) else { return Ok(()) };
        let mut ready = [PollFd::new(leader, PollFlags::IN), PollFd::new(&self.stdout, PollFlags::IN)];
        while let Err(error) = poll(&mut ready, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        if !ready[0].revents().is_empty() {
            self.left = Some(rustix::io::ioctl_fionread(&self.stdout)?);
        }
        Ok(())
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn wait(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for LeaderOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        let Some(left) = &mut self.left else { return self.stdout.read(buffer) };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.stdout.read(&mut buffer[..most])?;
        *left -= read as u64;
        Ok(read)
    }
}
