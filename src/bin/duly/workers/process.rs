//! The process of a worker: its start, and the end of its process group.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use duly::text::database_name::is_address;
use duly::{Clock, SystemClock};

use crate::exec::cannot_start;
use crate::exec::environment::Environment;
use crate::exec::guard::Guard;
use crate::exec::system::{Group, KILL, is_shortage};
use crate::workers::options::WorkerOptions;

/// First and longest poll interval for the end of the group.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Where all workers run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The absolute path of the database, or its address.
    pub(crate) database: PathBuf,
    pub(crate) environment: Environment,
    pub(crate) guard: Guard,
}

impl Place {
    /// Returns the place of the workers of a database.
    ///
    /// # Errors
    /// If the current directory is not known.
    pub(crate) fn new(file: &Path, environment: Environment, guard: Guard) -> Result<Self, String> {
        let absolute = || std::path::absolute(file).map_err(|error| format!("the path of the database: {error}"));
        let database = if is_address(file) { file.to_owned() } else { absolute()? };
        Ok(Place { database, environment, guard })
    }
}

/// A process that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) group: Group,
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// Why a process was not started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    pub(crate) how: String,
    /// It was for want of resources: the worker itself may be in order.
    pub(crate) is_shortage: bool,
}

/// Returns the variables by which the processes of a copy are known.
pub(crate) fn variables(options: &WorkerOptions, copy: u32) -> [(&'static str, String); 2] {
    [("DULY_WORKER", options.name.clone()), ("DULY_WORKER_COPY", copy.to_string())]
}

/// Starts a process, which leads a session and a group of its own and inherits the locked file.
///
/// # Errors
/// Why it was not started.
pub(crate) fn start(options: &WorkerOptions, copy: u32, place: &Place, locked: &File) -> Result<Started, NotStarted> {
    let is_own = |how: &str| NotStarted { how: how.to_owned(), is_shortage: false };
    let (program, arguments) = options.argv.split_first().ok_or_else(|| is_own("it has no command"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(folder) = &options.cwd {
        command.current_dir(folder);
    }
    place.environment.apply_to_worker(&mut command);
    command
        .envs(&options.env)
        .env("DULY_DB", &place.database)
        .envs(variables(options, copy))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = locked.try_clone().and_then(|locked| Group::start_with(&mut command, locked));
    let mut group = started.map_err(|error| NotStarted {
        how: cannot_start(program, options.cwd.as_deref(), &error),
        is_shortage: is_shortage(&error),
    })?;
    let (stdout, stderr) = group.pipes();
    let (Some(stdin), Some(stdout), Some(stderr)) = (group.input(), stdout, stderr) else {
        return Err(is_own("the worker has no pipes"));
    };
    Ok(Started { group, stdin, stdout, stderr })
}

/// Waits until the group is empty: sends SIGTERM after `grace` and SIGKILL after `term`. Returns `false` if its leader has ended, and
/// a process of the group is left that cannot be ended.
pub(crate) fn end(group: &mut Group, grace: Duration, term: Duration) -> bool {
    let clock = SystemClock::new();
    let mut until = clock.now().monotonic + grace;
    let (mut signals, mut poll) = (0, POLL.0);
    while !group.is_gone() {
        let now = clock.now().monotonic;
        if now >= until {
            match signals {
                0 => group.terminate(),
                1 => group.kill(),
                // While the leader lives, its attempts may still be at work.
                _ if group.has_ended() => return false,
                _ => {}
            }
            signals += 1;
            until = now + if signals == 1 { term } else { KILL };
            poll = POLL.0;
        }
        thread::sleep(poll.min(until.saturating_sub(now)));
        poll = (poll * 2).min(POLL.1);
    }
    true
}
