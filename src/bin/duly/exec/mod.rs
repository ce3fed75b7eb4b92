//! The handler `command`: runs a program without a shell. Processes of its process group do not outlive the run.

pub(crate) mod children;
pub(crate) mod environment;
pub(crate) mod guard;
#[cfg(windows)]
pub(crate) mod job;
pub(crate) mod leader;
pub(crate) mod machine;
pub(crate) mod orphans;
pub(crate) mod payload;
pub(crate) mod pipes;
pub(crate) mod system;
pub(crate) mod text;
pub(crate) mod user;

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use duly::command::{CommandContext, Orphan, name_of_attempt};
use duly::{BoxError, Clock, Context, Failure, Handler, Origin, Retry, StopReason, SystemClock};

use crate::exec::environment::Environment;
use crate::exec::guard::process::since_boot;
use crate::exec::guard::{Guard, Watched};
use crate::exec::payload::{PAYLOAD_FILE, Payload, dead_run};
use crate::exec::pipes::{Drain, Prepared};
use crate::exec::system::{Group, KILL, TERM};
use crate::exec::user::Account;
use crate::output::forward::{Forward, Stream};

/// Default timeout of an attempt.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time for which other processes of the group may outlive the command.
const LEFTOVER: Duration = Duration::from_secs(2);
/// Time for which to wait for the end of the pipes when the group is empty: a process that left the group may hold them.
const PIPES: Duration = Duration::from_millis(500);
/// Interval at which the output of a running command is reported. A command that ends earlier costs no write for it.
const REPORT: Duration = Duration::from_secs(1);
/// Longest time that a gate may take.
const GATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The effect that records that the gate has said yes.
const GATE: &str = "only_if";
/// First and longest poll interval for the end of a command, which may not coincide with the end of its pipes.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Time between two looks at a command after which the guard is asked when it ended.
const UNSEEN: Duration = Duration::from_millis(500);

/// The handler of commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    clock: SystemClock,
    running: Arc<AtomicUsize>,
    was_cut_short: Arc<AtomicBool>,
    environment: Environment,
    /// Where the lines that commands print are copied to.
    forward: Option<Forward>,
    guard: Guard,
}

impl Commands {
    /// Returns the handler. Its commands inherit this environment, the lines that they print are copied to `forward`, and `guard`
    /// ends them if this process is killed.
    pub(crate) fn new(environment: Environment, forward: Option<Forward>, guard: Guard) -> Self {
        Commands { environment, forward, guard, ..Commands::default() }
    }

    /// Returns the number of running commands.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Whether a command was ended because the scheduler stopped.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.was_cut_short.load(Ordering::SeqCst)
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }

    /// Waits until the group is empty, and ends it if necessary. Returns the reason if the command was ended before it had
    /// ended by itself. `closed` receives a message when a pipe is closed. `watched` is told when the group is gone.
    fn wait_for_end(
        &self,
        context: &Context,
        part: Part,
        group: &mut Group,
        drains: &[Drain; 2],
        closed: &Receiver<()>,
        watched: Option<&Watched>,
    ) -> Option<StopReason> {
        let command = CommandContext::of(context);
        let until = (part == Part::Gate).then(|| self.now() + GATE_TIMEOUT);
        let (mut report_at, mut reported) = (self.now() + REPORT, 0);
        let mut stage = Stage::Running;
        let mut reason = None;
        let mut poll = POLL.0;
        // When the command was looked at last.
        let mut seen = self.now();
        loop {
            // Read before the state of the command: a command that ended while this process was stopped or the machine was
            // suspended has ended by itself, even if its timeout has passed when that is noticed.
            let is_late = until.is_some_and(|until| self.now() >= until);
            let stop = context.stop_reason().or(is_late.then_some(StopReason::TimeUp));
            let ended = group.has_ended();
            if ended && part == Part::Command {
                let cause = cause(reason, context.stop_reason());
                match earlier_end(self.now().saturating_sub(seen), watched) {
                    Some(ago) => command.record_earlier_end(cause, ago),
                    None => command.record_end(cause),
                }
            }
            seen = self.now();
            if ended && group.is_gone() {
                watched.into_iter().for_each(Watched::end);
                return reason;
            }
            let now = self.now();
            if now >= report_at && part == Part::Command {
                report_at = now + REPORT;
                let total = drains.iter().map(Drain::total).sum();
                if total != reported {
                    reported = total;
                    let [stdout, stderr] = drains.each_ref().map(Drain::so_far);
                    command.report_output(text::join(stdout, &stderr));
                }
            }
            let next = match stage {
                Stage::Running if ended => Stage::Leftover { until: now + LEFTOVER },
                Stage::Running if stop.is_some() => {
                    reason = stop;
                    group.terminate();
                    Stage::Terminated { until: now + TERM }
                }
                Stage::Leftover { until } if now >= until || stop.is_some() => {
                    if let Some(left) = group.left() {
                        command.record_remark(format!("ended remaining processes of the {part}: {left}"));
                    }
                    group.terminate();
                    Stage::Terminated { until: now + TERM }
                }
                Stage::Terminated { until } if now >= until => {
                    group.kill();
                    Stage::Killed { until: now + KILL }
                }
                Stage::Killed { until } if now >= until && ended => {
                    let (run, task, left) = (context.run_id(), context.task(), group.left().unwrap_or_default());
                    let remark = format!("remaining processes of the {part} could not be ended: {left}");
                    log::warn!("run {run} of {task:?}: {remark}");
                    command.record_remark(remark);
                    return reason;
                }
                stage => stage,
            };
            poll = if next == stage { (poll * 2).min(POLL.1) } else { POLL.0 };
            stage = next;
            if closed.recv_timeout(poll).is_ok() {
                // A closed pipe announces the end of the command.
                poll = POLL.0;
            }
        }
    }

    /// Waits up to [`PIPES`] for the end of the pipes, and returns what was printed on stdout and stderr.
    fn collect_output(&self, [stdout, stderr]: [Drain; 2], closed: &Receiver<()>) -> [String; 2] {
        let until = self.now() + PIPES;
        while !(stdout.has_ended() && stderr.has_ended()) {
            let left = until.saturating_sub(self.now());
            if left.is_zero() || closed.recv_timeout(left).is_err() {
                break;
            }
        }
        [stdout.into_text(), stderr.into_text()]
    }
}

/// Returns how long ago a command ended whose end was not looked for during this time, if its guard has seen that meanwhile: this
/// process was stopped.
fn earlier_end(unseen: Duration, watched: Option<&Watched>) -> Option<Duration> {
    let at = watched.filter(|_| unseen >= UNSEEN)?.ended_at()?;
    Some(since_boot().saturating_sub(at).min(unseen))
}

/// Returns the request to stop that has ended a command; `None`: it ended by itself. At the end of the lease the guard ends commands also
/// while this process does not run, and so has not passed the request on.
fn cause(passed_on: Option<StopReason>, requested: Option<StopReason>) -> Option<StopReason> {
    passed_on.or(requested.filter(|reason| *reason == StopReason::LeaseLost))
}

/// The stages of the end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// The command has ended; other processes of its group have not.
    Leftover {
        until: Duration,
    },
    /// The group was sent SIGTERM.
    Terminated {
        until: Duration,
    },
    /// The group was sent SIGKILL.
    Killed {
        until: Duration,
    },
}

impl Handler for Commands {
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        let payload = Payload::parse(context.task_payload_json()).map_err(Failure::give_up)?;
        if let Some(name) = payload.missing_variable(|name| std::env::var_os(name).is_some()) {
            let error =
                format!("env_from: the environment of the scheduler has no variable {name:?}; set it and restart it");
            return Err(Failure::give_up(error).into());
        }
        self.check_stop(context)?;
        let _running = Running::begin(&self.running);
        if !payload.only_if.is_empty() && context.origin() != Origin::Manual {
            self.pass_gate(context, &payload)?;
            // It took its time.
            self.check_stop(context)?;
        }
        let ended = self.run_to_end(context, &payload, Part::Command)?;
        ended.record(context);
        match (ended.stopped, system::failure(ended.status)) {
            (Some(reason), how) => Err(self.stopped(reason, Part::Command, how.as_deref().unwrap_or("exit code 0"))),
            (None, Some(how)) => match ended.status.code().map(|code| payload.after_exit(code)) {
                Some(Retry::Skip) => Err(Failure::skip(ended.with_reason(&how)).into()),
                Some(Retry::GiveUp) => Err(Failure::give_up(ended.with_error(&how)).into()),
                _ => Err(ended.with_error(&how).into()),
            },
            (None, None) => Ok(None),
        }
    }

    fn end_orphan(&self, orphan: &Orphan) {
        orphans::end(orphan, "command");
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(COMMAND_TIMEOUT)
    }
}

impl Commands {
    /// Refuses if the attempt was asked to stop, or its time is up.
    fn check_stop(&self, context: &Context) -> Result<(), BoxError> {
        let reason = context.stop_reason();
        reason.map_or(Ok(()), |reason| Err(self.stopped(reason, Part::Command, "it was not started")))
    }

    /// Asks the gate whether the run is worth starting, unless it has said yes in an attempt before. An error says what follows if it does
    /// not say yes.
    fn pass_gate(&self, context: &Context, payload: &Payload) -> Result<(), BoxError> {
        let mut said = None;
        let ask = || match self.ask_gate(context, payload) {
            Ok(()) => Ok(()),
            Err(error) => {
                said = Some(error);
                Err("the gate did not say yes".into())
            }
        };
        // In doubt it is asked again: a gate has no effect.
        let passed = context.effect_or(GATE, || Ok(None), ask);
        passed.map_err(|error| match said {
            Some(said) => said,
            // The stored effect is not that of a gate: it stays so.
            None if error.is::<Failure>() => error,
            // Its answer cannot be recorded now. Nothing was started.
            None => Failure::not_started(error).into(),
        })
    }

    fn ask_gate(&self, context: &Context, payload: &Payload) -> Result<(), BoxError> {
        let gate = Payload { argv: payload.only_if.clone(), ..payload.clone() };
        let ended = self.run_to_end(context, &gate, Part::Gate)?;
        let how = match (ended.stopped, system::failure(ended.status)) {
            (None, None) => return Ok(()),
            (_, how) => how.unwrap_or_else(|| "exit code 0".to_owned()),
        };
        ended.record(context);
        match (ended.stopped, ended.status.code()) {
            (Some(StopReason::TimeUp), _) if context.stop_reason().is_none() => {
                let limit = humantime::format_duration(GATE_TIMEOUT);
                Err(format!("the gate took longer than {limit}: {how}").into())
            }
            (Some(reason), _) => Err(self.stopped(reason, Part::Gate, &how)),
            (None, Some(1)) => Err(Failure::skip(ended.with_reason("gate")).into()),
            (None, _) => Err(format!("the gate failed: {}", ended.with_error(&how)).into()),
        }
    }

    /// Starts a gate or a command, and waits for its end.
    fn run_to_end(&self, context: &Context, payload: &Payload, part: Part) -> Result<Ended, BoxError> {
        let (sender, closed) = channel();
        // Before the process: one that cannot be read would be killed in the middle of its work.
        let of_stdout = self.drain(context, Stream::Stdout, &sender)?;
        let of_stderr = self.drain(context, Stream::Stderr, &sender)?;
        let command = CommandContext::of(context);
        let variables = identity(context).map(|(name, value)| format!("{name}={value}"));
        let name = name_of_attempt(context.run_id(), context.attempt());
        // What the guard records of a gate is not about the command.
        let name = if part == Part::Gate { format!("{name}-gate") } else { name };
        let watched = self.guard.announce(Some(name), variables.into(), TERM);
        let started = start(context, payload, self.environment, part);
        let mut group = started.inspect_err(|_| watched.iter().for_each(Watched::end))?;
        // Before the process is recorded: the guard knows every recorded command.
        watched.iter().for_each(|watched| watched.identify(group.id()));
        if part == Part::Command {
            command.record_guarded_process(group.id(), watched.as_ref().and_then(Watched::group));
        }
        let drains = match group.pipes() {
            (Some(stdout), Some(stderr)) => [of_stdout.read(stdout), of_stderr.read(stderr)],
            _ => return Err("the command has no pipes".into()),
        };
        let stopped = self.wait_for_end(context, part, &mut group, &drains, &closed, watched.as_ref());
        let printed = self.collect_output(drains, &closed);
        Ok(Ended { stopped, printed, status: group.end()? })
    }

    /// Prepares to read a stream of the command.
    fn drain<R: Read + Send + 'static>(
        &self,
        context: &Context,
        stream: Stream,
        closed: &Sender<()>,
    ) -> Result<Prepared<R>, BoxError> {
        let lines = self.forward.as_ref().map(|to| to.lines(stream, context.task(), context.run_id()));
        Drain::start(stream, lines, closed.clone()).map_err(|error| {
            let error = format!("cannot start a thread that reads the output of the command: {error}");
            Failure::not_started(error).into()
        })
    }

    /// The error of a command that was ended or not started. The library judges whether it is an interruption.
    fn stopped(&self, reason: StopReason, part: Part, how: &str) -> BoxError {
        match reason {
            StopReason::Shutdown => {
                self.was_cut_short.store(true, Ordering::SeqCst);
                format!("the scheduler stopped before the {part} had ended: {how}").into()
            }
            StopReason::LeaseLost => format!("the server did not answer before the lease ended: {how}").into(),
            // The library puts the timeout before it.
            StopReason::TimeUp if part == Part::Gate => format!("gate: {how}").into(),
            StopReason::TimeUp => how.into(),
            _ => format!("it was asked to stop: {how}").into(),
        }
    }
}

/// What of an attempt a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It is not recorded with the run: a record would describe it, and not the command that follows.
    Gate,
    Command,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Gate => "gate",
            Part::Command => "command",
        })
    }
}

/// The end of a gate or a command.
struct Ended {
    /// The request to stop that has ended it.
    stopped: Option<StopReason>,
    /// On stdout and stderr.
    printed: [String; 2],
    status: ExitStatus,
}

impl Ended {
    /// Keeps what it printed, and its exit code.
    fn record(&self, context: &Context) {
        let command = CommandContext::of(context);
        let [stdout, stderr] = &self.printed;
        if !(stdout.is_empty() && stderr.is_empty()) {
            command.record_output(text::join(stdout.clone(), stderr));
        }
        if let Some(code) = self.status.code() {
            command.record_exit_code(code);
        }
    }

    /// `how: the last line of stderr`.
    fn with_error(&self, how: &str) -> String {
        text::with_last_line(how, &[&self.printed[1]])
    }

    /// `how: the last line of stdout`, or of stderr if stdout is empty.
    fn with_reason(&self, how: &str) -> String {
        text::with_last_line(how, &[&self.printed[0], &self.printed[1]])
    }
}

/// Counts a running command until it is dropped.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Running(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts the command. Only the command holds its input file, whose lock shows other schedulers that it is alive.
/// A gate has no input, and is no evidence that its attempt goes on: it may be asked again.
fn start(context: &Context, payload: &Payload, environment: Environment, part: Part) -> Result<Group, BoxError> {
    let account = payload.user.as_deref().map(Account::of_task).transpose()?;
    let own = context.run_payload_json();
    // The folder of these files is duly's: no task is at fault.
    let not_made = |file: &str, error: io::Error| {
        Failure::not_started(format!("cannot create the {file} file of the command: {error}"))
    };
    let input = match part {
        Part::Gate => None,
        Part::Command => {
            let content = if payload.stdin.is_empty() { own.unwrap_or_default() } else { &payload.stdin };
            let input = CommandContext::of(context).input(content.as_bytes());
            // Also if the command replaces its standard input, it holds the lock.
            let input = input.and_then(|input| Ok((input.try_clone()?, input)));
            Some(input.map_err(|error| not_made("input", error))?)
        }
    };
    let file = CommandContext::of(context).payload_file().map_err(|error| not_made("payload", error))?;
    let mut command = plain_command(payload);
    // The environment of root may hold secrets.
    let environment = if account.is_some() { Environment::Clean } else { environment };
    environment.apply(&mut command, payload);
    command
        .envs(account.iter().flat_map(Account::variables))
        .envs(&payload.env)
        // The starter of another user's command sets it.
        .envs(file.as_ref().filter(|_| account.is_none()).map(|file| (PAYLOAD_FILE, file)))
        .envs(own.and_then(dead_run).into_iter().flatten())
        .envs(identity(context))
        .env("DULY_SCHEDULED_FOR", context.scheduled_for().to_string())
        .env("DULY_ORIGIN", context.origin().to_string());
    if let Some(account) = &account {
        command = account.starter(&command, payload, file.as_deref());
        command.envs(identity(context));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = match input {
        Some((locked, input)) => Group::start_with(command.stdin(input), locked),
        None => Group::start(&mut command),
    };
    let gate = if part == Part::Gate { "gate: " } else { "" };
    started.map_err(|error| not_started(format!("{gate}{}", refused(payload, &error)), &error))
}

/// The variables that show the attempt to which a process belongs.
fn identity(context: &Context) -> [(&'static str, String); 4] {
    [
        ("DULY_TASK", context.task().to_owned()),
        ("DULY_RUN_ID", context.run_id().to_string()),
        ("DULY_ATTEMPT", context.attempt().to_string()),
        ("DULY_IDEMPOTENCY_KEY", context.idempotency_key().to_string()),
    ]
}

/// The error of a command that was not started. For want of resources, that is no attempt.
fn not_started(reason: String, error: &io::Error) -> BoxError {
    if system::is_shortage(error) { Failure::not_started(reason).into() } else { reason.into() }
}

fn plain_command(payload: &Payload) -> Command {
    let mut command = system::command(&payload.argv);
    if let Some(folder) = &payload.cwd {
        command.current_dir(folder);
    }
    command
}

fn refused(payload: &Payload, error: &io::Error) -> String {
    let program = &payload.argv[0];
    if let Some(user) = &payload.user {
        return format!("cannot start {program:?} as user {user:?}: cannot start duly by /proc/self/exe: {error}");
    }
    cannot_start(program, payload.cwd.as_deref().map(Path::new), error)
}

/// Describes why a program was not started.
pub(crate) fn cannot_start(program: &str, cwd: Option<&Path>, error: &io::Error) -> String {
    if let Some(folder) = cwd.filter(|folder| !folder.is_dir()) {
        return format!("cannot start {program:?}: its cwd {folder:?} is not a folder that exists");
    }
    match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            // The system reports a missing interpreter of a script in the same way.
            format!("cannot start {program:?}: the program, or the interpreter that it names, does not exist")
        }
        io::ErrorKind::NotFound => format!("cannot start {program:?}: there is no such program on the PATH"),
        io::ErrorKind::PermissionDenied => format!("cannot start {program:?}: it is not executable for this user"),
        _ => format!("cannot start {program:?}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use duly::StopReason;

    use crate::exec::cause;

    #[test]
    fn a_command_that_ended_as_the_lease_was_lost_may_have_been_ended_by_the_guard() {
        assert_eq!(cause(None, Some(StopReason::LeaseLost)), Some(StopReason::LeaseLost));
        assert_eq!(cause(None, Some(StopReason::Shutdown)), None, "it ended by itself");
        assert_eq!(cause(Some(StopReason::TimeUp), Some(StopReason::TimeUp)), Some(StopReason::TimeUp));
        assert_eq!(cause(None, None), None);
    }
}
