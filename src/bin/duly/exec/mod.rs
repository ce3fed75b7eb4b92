//! The handler `command`: a program as a task. No shell stands between, and nothing that it started outlives its run, but
//! for what leaves its process group.

pub(crate) mod children;
pub(crate) mod payload;
mod pipes;
mod system;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use duly::{BoxError, Clock, Context, Failure, Handler, Orphan, Process, StopReason, SystemClock};

use crate::exec::payload::{DEAD_RUN, Payload, dead_run};
use crate::exec::pipes::Drain;
use crate::exec::system::Group;

/// Longest an attempt may take where the task does not say.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// How long what a command started may live on after it.
const LEFTOVER: Duration = Duration::from_secs(2);
/// How long a group that was asked to end may take.
const TERM: Duration = Duration::from_secs(10);
/// How long the kernel may take to end it.
const KILL: Duration = Duration::from_secs(5);
/// How long a pipe may stay open when nothing is left of the group: a process that left it may hold it for ever.
const PIPES: Duration = Duration::from_millis(500);
/// How soon, and how seldom at last, it is looked whether a command has ended that keeps its pipes open or closed them long
/// before.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Carries out commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    clock: SystemClock,
    at_work: Arc<AtomicUsize>,
    was_cut_short: Arc<AtomicBool>,
}

impl Commands {
    /// How many commands have not been seen to the end.
    pub(crate) fn at_work(&self) -> usize {
        self.at_work.load(Ordering::SeqCst)
    }

    /// Whether one was ended because the scheduler left.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.was_cut_short.load(Ordering::SeqCst)
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }

    /// Waits until nothing is left of the group, and ends it if it must. Answers why it did so before the command had ended
    /// by itself.
    fn see_out(&self, context: &Context, group: &mut Group, hears: &Receiver<()>) -> Option<StopReason> {
        let mut stage = Stage::AtWork;
        let mut cut = None;
        let mut look = LOOK.0;
        loop {
            // Looked at before the command is: a command that ended while this process was stopped, or the machine slept, has
            // ended by itself, although its time is up when that is noticed.
            let asked = context.stop_reason();
            let ended = group.has_ended();
            if ended {
                context.record_end();
            }
            if ended && group.is_gone() {
                return cut;
            }
            let now = self.now();
            let next = match stage {
                Stage::AtWork if ended => Stage::Leftover { until: now + LEFTOVER },
                Stage::AtWork if asked.is_some() => {
                    cut = asked;
                    group.terminate();
                    Stage::Asked { until: now + TERM }
                }
                Stage::Leftover { until } if now >= until || asked.is_some() => {
                    if let Some(left) = group.left() {
                        context.record_remark(format!("what it left was ended: {left}"));
                    }
                    group.terminate();
                    Stage::Asked { until: now + TERM }
                }
                Stage::Asked { until } if now >= until => {
                    group.kill();
                    Stage::Killed { until: now + KILL }
                }
                Stage::Killed { until } if now >= until && ended => {
                    let (run, task, left) = (context.run_id(), context.task(), group.left().unwrap_or_default());
                    context.record_remark(format!("what it left cannot be ended, and is left alone: {left}"));
                    log::warn!("run {run} of {task:?}: what its command started cannot be ended; left alone");
                    return cut;
                }
                stage => stage,
            };
            look = if next == stage { (look * 2).min(LOOK.1) } else { LOOK.0 };
            stage = next;
            if hears.recv_timeout(look).is_ok() {
                // A pipe was closed: it is about to end.
                look = LOOK.0;
            }
        }
    }

    /// Waits a moment for the end of the pipes, and answers with what came out of them.
    fn printed(&self, [stdout, stderr]: [Drain; 2], hears: &Receiver<()>) -> String {
        let until = self.now() + PIPES;
        while !(stdout.has_ended() && stderr.has_ended()) {
            let left = until.saturating_sub(self.now());
            if left.is_zero() || hears.recv_timeout(left).is_err() {
                break;
            }
        }
        pipes::join(stdout.text(), &stderr.text())
    }
}

/// How far a command is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    AtWork,
    /// It has ended, and something that it started has not.
    Leftover {
        until: Duration,
    },
    /// All of it was asked to end.
    Asked {
        until: Duration,
    },
    Killed {
        until: Duration,
    },
}

impl Handler for Commands {
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        let payload = Payload::parse(context.task_payload_json()).map_err(Failure::give_up)?;
        if let Some(name) = payload.missing_variable(|name| std::env::var_os(name).is_some()) {
            let error = format!("env_from: the environment of the scheduler has no variable {name:?}");
            return Err(Failure::give_up(error).into());
        }
        if let Some(reason) = context.stop_reason() {
            return Err(self.stopped(reason, "it was not started"));
        }
        let _at_work = AtWork::begin(&self.at_work);
        let mut group = start(context, &payload)?;
        context.record_process(group.id());
        let (told, hears) = channel();
        let drains = drain(&mut group, &told)?;
        let cut = self.see_out(context, &mut group, &hears);
        let output = self.printed(drains, &hears);
        if !output.is_empty() {
            context.record_output(output);
        }
        let status = group.end()?;
        if let Some(code) = status.code() {
            context.record_exit_code(code);
        }
        match (cut, system::failure(status)) {
            (Some(reason), how) => Err(self.stopped(reason, how.as_deref().unwrap_or("exit code 0"))),
            (None, Some(how)) => Err(how.into()),
            (None, None) => Ok(None),
        }
    }

    fn end_orphan(&self, orphan: &Orphan) {
        let Some(group) = orphan.group() else { return };
        // Its leader may end before the others. As long as one of those that were seen beside it lives, the number is theirs.
        let seen = system::members(group).unwrap_or_default();
        let (run, task) = (orphan.run_id(), orphan.task());
        log::info!("run {run} of {task:?}: ending the command that a dead scheduler left");
        system::terminate(group);
        if self.waits_until_gone(orphan, TERM) {
            return;
        }
        let is_left = |member: &Process| seen.iter().any(|one| (one.pid, one.started) == (member.pid, member.started));
        if orphan.group() == Some(group) || system::members(group).is_ok_and(|members| members.iter().any(is_left)) {
            system::kill(group);
        }
        if !self.waits_until_gone(orphan, KILL) {
            log::warn!(
                "run {run} of {task:?}: the command that a dead scheduler left cannot be ended; the run waits for it"
            );
        }
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }
}

impl Commands {
    /// What is said of a command that was ended, or not even begun.
    fn stopped(&self, reason: StopReason, how: &str) -> BoxError {
        match reason {
            StopReason::Shutdown => {
                self.was_cut_short.store(true, Ordering::SeqCst);
                Failure::interrupted(format!("the scheduler left before the command had ended: {how}")).into()
            }
            // That its time was up is said before it.
            StopReason::TimeUp => how.into(),
            _ => format!("it was asked to stop: {how}").into(),
        }
    }

    fn waits_until_gone(&self, orphan: &Orphan, limit: Duration) -> bool {
        let until = self.now() + limit;
        while !orphan.is_gone() {
            if self.now() >= until {
                return false;
            }
            thread::sleep(LOOK.1);
        }
        true
    }
}

/// Counts one command for as long as it lives.
struct AtWork<'a>(&'a AtomicUsize);

impl<'a> AtWork<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        AtWork(count)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Names the file that holds the payload of the run itself.
const PAYLOAD_FILE: &str = "DULY_PAYLOAD_FILE";

/// Starts the command. Its standard input, which also tells others that it is at work, is held by nobody else.
fn start(context: &Context, payload: &Payload) -> Result<Group, BoxError> {
    let own = context.run_payload_json();
    let input = if payload.stdin.is_empty() { own.unwrap_or_default() } else { &payload.stdin };
    let input = context
        .command_input(input.as_bytes())
        .map_err(|error| format!("cannot make the standard input of the command: {error}"))?;
    let file = context.payload_file().map_err(|error| format!("cannot make the file of the payload: {error}"))?;
    let mut command = Command::new(&payload.argv[0]);
    // A scheduler may itself have been started by a command: what is said of that run is not said of this one.
    for name in [PAYLOAD_FILE].iter().chain(&DEAD_RUN) {
        command.env_remove(name);
    }
    command
        .args(&payload.argv[1..])
        .envs(&payload.env)
        .envs(file.map(|file| (PAYLOAD_FILE, file)))
        .envs(own.and_then(dead_run).into_iter().flatten())
        .env("DULY_TASK", context.task())
        .env("DULY_RUN_ID", context.run_id().to_string())
        .env("DULY_ATTEMPT", context.attempt().to_string())
        .env("DULY_SCHEDULED_FOR", context.scheduled_for().to_string())
        .env("DULY_ORIGIN", context.origin().to_string())
        .env("DULY_IDEMPOTENCY_KEY", context.idempotency_key())
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(folder) = &payload.cwd {
        command.current_dir(folder);
    }
    Group::start(&mut command).map_err(|error| cannot_start(payload, &error).into())
}

fn cannot_start(payload: &Payload, error: &io::Error) -> String {
    let program = &payload.argv[0];
    if let Some(folder) = payload.cwd.as_deref().filter(|folder| !Path::new(folder).is_dir()) {
        return format!("cannot start {program:?}: its cwd {folder:?} is not a folder that exists");
    }
    match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            // A script whose interpreter is missing is told apart by nothing else.
            format!("cannot start {program:?}: there is no such program, or not the interpreter that it names")
        }
        io::ErrorKind::NotFound => format!("cannot start {program:?}: there is no such program on the PATH"),
        io::ErrorKind::PermissionDenied => format!("cannot start {program:?}: it is not executable for this user"),
        _ => format!("cannot start {program:?}: {error}"),
    }
}

/// Begins to read what the command prints.
fn drain(group: &mut Group, told: &Sender<()>) -> Result<[Drain; 2], BoxError> {
    let (Some(stdout), Some(stderr)) = group.pipes() else { return Err("the command has no pipes".into()) };
    let drains = Drain::start("stdout", stdout, told.clone())
        .and_then(|drain| Ok([drain, Drain::start("stderr", stderr, told.clone())?]));
    drains.map_err(|error| format!("cannot start a thread that reads what the command prints: {error}").into())
}
