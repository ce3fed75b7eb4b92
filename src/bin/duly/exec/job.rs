//! Windows: the processes of a command, in a job object. What a process of a job starts is in the job too, and cannot leave it.
//!
//! The scheduler is in a job of its own, which the system ends with the last handle of it, and only this process has one: however the
//! scheduler ends, the system ends all that it has started.

use std::io;
use std::os::windows::io::AsRawHandle;
use std::os::windows::process::CommandExt;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, OnceLock};

use process_wrap::std::{ChildWrapper, CommandWrap, CommandWrapper, JobObject};
use win32job::{ExtendedLimitInfo, Job};

/// As on Unix a command has a session of its own, it has no part in the console: no key of the user, and no window.
const FLAGS: u32 = CREATE_SUSPENDED | CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW;
const CREATE_SUSPENDED: u32 = 0x4;
const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

/// A job that the system ends when the value is dropped, or when this process ends.
#[derive(Debug)]
pub(crate) struct EndingJob(Job);

impl EndingJob {
    fn new() -> io::Result<Self> {
        Job::create_with_limit_info(ExtendedLimitInfo::new().limit_kill_on_job_close())
            .map(EndingJob)
            .map_err(io::Error::other)
    }
}

/// Puts this process into a job: when it ends, however it ends, the system ends all that it starts from now on. Idempotent.
///
/// # Errors
/// If the system refuses it, as in a job of another program that forbids it.
pub(crate) fn end_with_this_process() -> io::Result<()> {
    // Never dropped: that would end this process.
    static JOB: OnceLock<EndingJob> = OnceLock::new();
    if JOB.get().is_some() {
        return Ok(());
    }
    let job = EndingJob::new()?;
    job.0.assign_current_process().map_err(io::Error::other)?;
    if let Err(second) = JOB.set(job) {
        std::mem::forget(second);
    }
    Ok(())
}

/// A process and all that it has started.
#[derive(Debug)]
pub(crate) struct JobChild {
    child: Box<dyn ChildWrapper>,
    job: Arc<EndingJob>,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
}

/// Windows reaps by itself: nothing needs to be registered.
#[derive(Debug)]
pub(crate) struct Own;

/// Starts a process in a job of its own. It runs once it is in the job.
pub(crate) fn start(command: &mut Command) -> io::Result<(JobChild, Own)> {
    let job = Arc::new(EndingJob::new()?);
    let mut wrap = CommandWrap::from(std::mem::replace(command, Command::new("")));
    // In this order: `JobObject` resumes the process, and sets flags that the last one completes.
    let started = wrap.wrap(Assigned(job.clone())).wrap(JobObject).wrap(Flagged).spawn();
    *command = wrap.into_command();
    let mut child = started?;
    let (stdin, stdout, stderr) = (child.stdin().take(), child.stdout().take(), child.stderr().take());
    Ok((JobChild { child, job, stdin, stdout, stderr }, Own))
}

impl JobChild {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the process itself.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.inner_mut().wait()
    }

    /// Ends all processes of the job.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.start_kill()
    }

    /// Returns the processes of the job. An error is no evidence that there are none.
    pub(crate) fn members(&self) -> io::Result<Vec<u32>> {
        let pids = self.job.0.query_process_id_list().map_err(io::Error::other)?;
        Ok(pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect())
    }

    /// Whether no process of the job is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.members().is_ok_and(|members| members.is_empty())
    }
}

/// Puts a process, which is suspended, into a job that can list its members.
#[derive(Debug)]
struct Assigned(Arc<EndingJob>);

impl CommandWrapper for Assigned {
    fn wrap_child(&mut self, mut child: Box<dyn ChildWrapper>, _: &CommandWrap) -> io::Result<Box<dyn ChildWrapper>> {
        let handle = child.process_handle().map(|handle| handle.as_raw_handle() as isize);
        let assigned = handle.ok_or_else(|| io::Error::other("the process has no handle"));
        match assigned.and_then(|handle| self.0.0.assign_process(handle).map_err(io::Error::other)) {
            Ok(()) => Ok(child),
            Err(error) => {
                child.kill()?;
                Err(error)
            }
        }
    }
}

/// Starts a process with [`FLAGS`].
#[derive(Debug)]
struct Flagged;

impl CommandWrapper for Flagged {
    fn pre_spawn(&mut self, command: &mut Command, _: &CommandWrap) -> io::Result<()> {
        command.creation_flags(FLAGS);
        Ok(())
    }
}
