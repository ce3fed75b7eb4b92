//! The command that receives alarms: JSON on standard input, and variables. It has its own process group and a time limit. It does not
//! outlive the scheduler: at the end of `duly run` it is ended, and if the scheduler is killed, by the guard.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use duly::AlarmMessage;

use crate::alarms::message;
use crate::alarms::stop::Stop;
use crate::exec::guard::{Guard, Watched};
use crate::exec::pipes::Drain;
use crate::exec::system::{self, Group};
use crate::output::escape;
use crate::output::forward::Stream;

/// Time limit of the command.
const LIMIT: Duration = Duration::from_secs(30);
/// Time for which other processes of its group may outlive it.
const LEFTOVER: Duration = Duration::from_secs(2);
/// Time between SIGTERM and SIGKILL.
const TERM: Duration = Duration::from_secs(2);
/// Poll interval for the end of the command.
const POLL: Duration = Duration::from_millis(20);
/// Most characters of its standard error that a message quotes.
const QUOTED: usize = 200;

/// Runs the command with a message. Exit code 0 means that it was delivered.
pub(crate) fn run(
    (argv, guard): (&[String], &Guard),
    message: &AlarmMessage,
    json: String,
    stop: &Stop,
) -> Result<(), String> {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .env("DULY_ALARM_ID", &message.id)
        .env("DULY_ALARM_KIND", message.kind.as_str())
        .env("DULY_ALARM_STATE", message.state.as_str())
        .env("DULY_ALARM_COUNT", message.count.to_string())
        .env("DULY_ALARM_TEXT", message::text(message).replace('\0', " "))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let watched = guard.announce(None, vec![format!("DULY_ALARM_ID={}", message.id)], TERM);
    let mut group = Group::start(&mut command).map_err(|error| {
        watched.iter().for_each(Watched::end);
        format!("cannot start {:?}: {error}", escape::one_line(&argv[0]))
    })?;
    watched.iter().for_each(|watched| watched.identify(group.id()));
    if let Some(mut input) = group.input() {
        // The command may not read it. The thread ends when the pipe is closed.
        let write = move || drop(input.write_all(json.as_bytes()));
        let thread = thread::Builder::new().name("duly-alarm-input".to_owned()).spawn(write);
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    let (sender, closed) = channel();
    let prepared = Drain::start(Stream::Stderr, None, sender);
    let errors = prepared.map(|drain| group.pipes().1.map(|stderr| drain.read(stderr)));
    let errors = errors.map_err(|error| format!("cannot start a thread: {error}"))?;
    let was_ended = wait_for_end(&mut group, stop);
    if group.is_gone() {
        watched.iter().for_each(Watched::end);
    }
    let _ = closed.recv_timeout(POLL);
    let printed = errors.map(Drain::into_text).unwrap_or_default();
    let status = group.end().map_err(|error| format!("its exit code is not known: {error}"))?;
    let reason = match (was_ended, system::failure(status)) {
        (false, None) => return Ok(()),
        (true, _) => "it did not end in time, and was ended".to_owned(),
        (false, Some(how)) => how,
    };
    let printed: String = printed.trim().chars().take(QUOTED).collect();
    Err(if printed.is_empty() { reason } else { format!("{reason}: {}", escape::one_line(&printed)) })
}

/// Waits until the group is empty, and ends it if necessary. Returns whether the command did not end by itself.
fn wait_for_end(group: &mut Group, stop: &Stop) -> bool {
    let now = || stop.now().monotonic;
    let mut until = now() + LIMIT;
    let (mut was_ended, mut leaves, mut signalled) = (false, false, false);
    loop {
        if group.is_gone() {
            return was_ended;
        }
        if group.has_ended() && !leaves {
            leaves = true;
            until = until.min(now() + LEFTOVER);
        }
        let limit = stop.deadline().map_or(until, |deadline| deadline.min(until));
        if now() >= limit {
            was_ended |= !group.has_ended();
            if signalled || stop.deadline().is_some_and(|deadline| now() >= deadline) {
                group.kill();
                // A process that cannot be killed is left.
                if group.has_ended() {
                    return was_ended;
                }
            } else {
                group.terminate();
                (signalled, until) = (true, now() + TERM);
            }
        }
        thread::sleep(POLL);
    }
}
