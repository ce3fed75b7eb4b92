//! What a process writes, until that process has ended: what its children write afterwards is not of the worker.

use std::io::{self, Read};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use std::os::fd::AsFd as Pipe;

/// A pipe that is only read: its process is not watched.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) trait Pipe {}
#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl<T> Pipe for T {}

/// Ends with what the pipe holds when the process is found to have ended.
pub(crate) struct LeaderOutput<R> {
    output: R,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    leader: Option<std::os::fd::OwnedFd>,
    /// Set when the process has ended: bytes that were in the pipe and are not read yet.
    left: Option<u64>,
}

impl<R: Read + Pipe> LeaderOutput<R> {
    /// `pid`: the process, which has not been waited for, or the parent of this one. Where the system does not report its end by a
    /// descriptor, the output lasts as long as any process has it.
    pub(crate) fn new(output: R, pid: u32) -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::process::{Pid, PidfdFlags, pidfd_open};
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let leader = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            LeaderOutput { output, leader, left: None }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = pid;
            LeaderOutput { output, left: None }
        }
    }

    /// Waits until there is something to read, or the process has ended.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn wait(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        let (Some(leader), None) = (&self.leader, self.left) else { return Ok(()) };
        let mut ready = [PollFd::new(leader, PollFlags::IN), PollFd::new(&self.output, PollFlags::IN)];
        while let Err(error) = poll(&mut ready, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        if !ready[0].revents().is_empty() {
            self.left = Some(rustix::io::ioctl_fionread(&self.output)?);
        }
        Ok(())
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn wait(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<R: Read + Pipe> Read for LeaderOutput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        let Some(left) = &mut self.left else { return self.output.read(buffer) };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.output.read(&mut buffer[..most])?;
        *left -= read as u64;
        Ok(read)
    }
}

/// Returns standard input, without a buffer.
pub(crate) fn own_input() -> io::Result<impl Read + Pipe + Send + 'static> {
    #[cfg(unix)]
    return std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned().map(std::fs::File::from);
    #[cfg(not(unix))]
    Ok(io::stdin())
}

/// Locks the file that is the standard input of this process.
pub(crate) fn lock_own_input() -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let file = io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
        // Closing it does not unlock it: the parent has the same open file.
        file.and_then(|file| file.lock())
    }
    #[cfg(not(unix))]
    Err(io::ErrorKind::Unsupported.into())
}
