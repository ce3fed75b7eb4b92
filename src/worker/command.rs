//! For handlers that start a process.
//!
//! A scheduler that is killed leaves the processes of its handlers running. A handler that gives its process the input file of
//! [`CommandContext::input`], and records it with [`CommandContext::record_process`], lets the next scheduler see whether
//! the process still runs: until it is gone, its run waits, and [`Handler::end_orphan`](crate::Handler::end_orphan) may end it. A
//! handler that starts no process needs nothing of this module.
//!
//! ```
//! use std::process::{Command, Stdio};
//!
//! use duly::command::CommandContext;
//! use duly::{BoxError, Context};
//!
//! fn convert(run: &Context) -> Result<(), BoxError> {
//!     let command = CommandContext::of(run);
//!     let mut convert = Command::new("convert");
//!     convert.stdin(command.input(b"")?).stdout(Stdio::piped());
//!     #[cfg(unix)]
//!     std::os::unix::process::CommandExt::process_group(&mut convert, 0);
//!     let child = convert.spawn()?;
//!     command.record_process(child.id());
//!     let ended = child.wait_with_output()?;
//!     command.record_output(String::from_utf8_lossy(&ended.stdout));
//!     if let Some(code) = ended.status.code() {
//!         command.record_exit_code(code);
//!     }
//!     if ended.status.success() { Ok(()) } else { Err(ended.status.to_string().into()) }
//! }
//! ```

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::excerpt;
use crate::host::fault_points;
#[doc(hidden)]
pub use crate::host::guard_lock::{GuardLock, GuardPlace, GuardedGroup, name_of_attempt, record_ended, record_gone};
pub use crate::host::orphan::Orphan;
use crate::host::orphan::{self, Input, PayloadFile};
#[doc(hidden)]
pub use crate::host::process::{Leader, was_started_with};
pub use crate::host::process::{Process, every_process, processes};
use crate::model::finished::{Report, ReportKind};
use crate::worker::attempt::{Notice, StopReason, WorkEnd};
use crate::worker::handler::{Context, MAX_PROGRESS_BYTES};

/// Most bytes that are kept of an attempt's output.
pub const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// What a handler that starts a process reports beside its result.
///
/// ```
/// use duly::command::CommandContext;
/// use duly::testing::Stepper;
/// use duly::{Context, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let work = |run: &Context| {
///     let command = CommandContext::of(run);
///     command.record_output("3 files");
///     command.record_exit_code(2);
///     // Recorded beside the outcome, and no outcome by itself: the handler decides what an exit code means.
///     Ok::<_, duly::Error>(())
/// };
/// let mut stepper = Stepper::builder(&file, noon).handler("convert", work).start()?;
/// stepper.client().add(NewTask::once("convert", noon).handler("convert"))?;
/// stepper.run_until(noon)?;
/// let run = &stepper.client().history("convert", 1)?[0];
/// assert_eq!((run.status, run.exit_code, run.output.as_deref()), (duly::RunStatus::Succeeded, Some(2), Some("3 files")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CommandContext<'a>(&'a Context);

impl<'a> CommandContext<'a> {
    /// Returns that of an attempt.
    pub fn of(context: &'a Context) -> Self {
        CommandContext(context)
    }

    /// Creates the file for the standard input of a command, with this content. The file is locked, and the lock lives as long
    /// as the command: if this process is killed, other schedulers see that the command still runs. Pass it to the command and
    /// keep no copy; to one that replaces its standard input, on a further descriptor as well. It is removed when the end of the attempt is recorded.
    ///
    /// # Errors
    /// If the file cannot be created in the folder beside the database; or there is no scheduler, only a stepper.
    pub fn input(self, content: &[u8]) -> io::Result<File> {
        let Some(link) = self.0.link() else { return Err(io::ErrorKind::Unsupported.into()) };
        let make = || Input::create(link.alive.folder(), self.0.run_id(), self.0.attempt(), content);
        // A folder that was removed is created again.
        let (input, file) = make().or_else(|_| link.alive.keep().and_then(|_| make()))?;
        self.0.reported().input = Some(input);
        Ok(file)
    }

    /// Returns the path of a file that holds [`Context::run_payload_json`], for a command to read; `None` if the run has no
    /// payload of its own. Only its owner may read it. It is created in the folder beside the database, and removed when the
    /// handler returns, or when the run is recovered if this process is killed.
    ///
    /// # Errors
    /// As [`CommandContext::input`].
    pub fn payload_file(self) -> io::Result<Option<PathBuf>> {
        let Some(payload) = self.0.run_payload_json() else { return Ok(None) };
        let Some(link) = self.0.link() else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut reported = self.0.reported();
        if reported.payload.is_none() {
            let (run, attempt) = (self.0.run_id(), self.0.attempt());
            reported.payload = Some(PayloadFile::create(link.alive.folder(), run, attempt, payload.as_bytes())?);
        }
        Ok(reported.payload.as_ref().map(|file| file.path().to_owned()))
    }

    /// Records which process the handler started, so that a scheduler that recovers this run can distinguish it from any
    /// other with its number. It must lead a process group of its own, have its input from [`CommandContext::input`], and not
    /// have been waited for. Where the system does not distinguish processes, only its input is recorded.
    pub fn record_process(self, pid: u32) {
        self.record_guarded_process(pid, None);
    }

    /// As [`CommandContext::record_process`], with what a guard knows the process group as.
    #[doc(hidden)]
    pub fn record_guarded_process(self, pid: u32, guard: Option<GuardedGroup>) {
        let Some(link) = self.0.link() else { return };
        fault_points::reach("spawned");
        let input = self.0.reported().input.as_ref().and_then(Input::identity);
        let record = orphan::record_of(pid, input, self.0.file(), guard);
        if let Some(process) = record {
            let (run, attempt, kind) = (self.0.run_id(), self.0.attempt(), ReportKind::Process(process));
            let owner = self.0.claim().owner.clone();
            // The loop lives as long as its workers.
            let _ = link.notices.send(Notice::Report(Report { run, attempt, owner, kind }));
        }
    }

    /// Keeps output with the run and, if it fails, with the attempt: up to [`MAX_OUTPUT_BYTES`] of it. The last call counts.
    pub fn record_output(self, output: impl AsRef<str>) {
        self.0.reported().output = Some(excerpt(output.as_ref(), MAX_OUTPUT_BYTES));
    }

    /// Reports what the command has printed so far, for users who look at the run while it runs: the whole text, up to
    /// [`MAX_OUTPUT_BYTES`] of it, kept as by [`CommandContext::record_output`]. The newest report is stored with the run at most
    /// once a second, and each time the whole text is written: limit it.
    pub fn report_output(self, so_far: impl AsRef<str>) {
        let output = excerpt(so_far.as_ref(), MAX_OUTPUT_BYTES);
        let before = self.0.reported().output.replace(output.clone());
        if before.is_none_or(|before| before != output) {
            self.0.report(|latest| latest.output(output));
        }
    }

    /// Keeps the exit code of a command.
    pub fn record_exit_code(self, code: i32) {
        self.0.reported().exit_code = Some(code);
    }

    /// Records a remark beside the outcome, for users: up to [`MAX_PROGRESS_BYTES`] in the column `error` of the run, after the
    /// error of an attempt that fails. The last call counts.
    ///
    /// ```
    /// use duly::command::CommandContext;
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = |run: &Context| {
    ///     CommandContext::of(run).record_remark("two files were skipped");
    ///     Ok::<_, duly::Error>(())
    /// };
    /// let mut stepper = Stepper::builder(&file, noon).handler("convert", work).start()?;
    /// stepper.client().add(NewTask::once("convert", noon).handler("convert"))?;
    /// stepper.run_until(noon)?;
    /// // A run that has succeeded has it in the column `error`.
    /// assert_eq!(stepper.client().history("convert", 1)?[0].error.as_deref(), Some("two files were skipped"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_remark(self, remark: impl AsRef<str>) {
        self.0.reported().remark = Some(excerpt(remark.as_ref(), MAX_PROGRESS_BYTES));
    }

    /// Records that the command has ended. What the handler does afterwards, such as cleaning up, does not count against its time
    /// limit. `stop`: the request to stop that the handler had passed on to the command, if it had: only then an error is an
    /// interruption. The first call counts; without one, the work ends when the handler returns.
    pub fn record_end(self, stop: Option<StopReason>) {
        let end = WorkEnd { is_late: self.0.time_is_up(), stop, at: None };
        self.0.reported().work_end.get_or_insert(end);
    }

    /// As [`CommandContext::record_end`], for a command that ended `ago`, while this process was stopped: then the attempt ended.
    #[doc(hidden)]
    pub fn record_earlier_end(self, stop: Option<StopReason>, ago: Duration) {
        let at = self.0.now().before(ago);
        let end =
            WorkEnd { is_late: self.0.deadline.is_some_and(|(limit, _)| limit <= at.monotonic), stop, at: Some(at) };
        self.0.reported().work_end.get_or_insert(end);
    }
}
