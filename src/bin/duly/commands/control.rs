//! Commands that change tasks and runs: `trigger`, `retry`, `pause`, `resume`, `cancel`, `remove`.

use std::time::Duration;

use duly::{
    BulkAction, Client, Clock, Error, Filter, Limits, NewRun, Problem, ProblemKind, Run, RunStatus, SystemClock,
    Triggered,
};
use serde::Serialize;

use crate::cli::change_args::{Cancel, Remove, Retry, Tasks};
use crate::cli::failure::Failure;
use crate::commands::matching;
use crate::commands::run_status::{ended, status};
use crate::output::printer::Printer;
use crate::output::units::count_of;

/// Interval at which `trigger --wait` reads the run, which another process executes.
const POLL: Duration = Duration::from_millis(100);
/// Time after which `trigger --wait` says why its run has not begun.
const BEGINS_WITHIN: Duration = Duration::from_secs(4);
/// Longest time for which `remove --cancel` waits for running commands.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn trigger(
    client: &Client,
    name: &str,
    run: NewRun,
    wait: bool,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let Triggered { run_id: id, is_new, .. } = client.trigger_run(run)?;
    let message = if is_new {
        format!("run {id} of {name} is queued")
    } else {
        let status = status(&find_run(client, id)?, printer.times.now);
        format!("run {id} of {name} was started with this key before; status: {status}")
    };
    printer.say(message)?;
    if !wait {
        return if printer.json { print_run(&find_run(client, id)?, printer) } else { Ok(()) };
    }
    printer.flush()?;
    if !find_run(client, id)?.status.is_final() && no_scheduler(client)? {
        printer.warn(format!("no scheduler is alive: run {id} waits until one is started with duly run"));
    }
    let run = wait_until_final(client, id, printer)?;
    if printer.json {
        print_run(&run, printer)?;
    }
    match ended(&run) {
        Ok(succeeded) => Ok(printer.say(succeeded)?),
        Err(reason) => Err(Failure::Unsuccessful(format!("{reason}; see duly logs {id}"))),
    }
}

pub(crate) fn retry(client: &Client, args: &Retry, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Some(id) = args.run else {
        let filter = matching::filter(&args.matching, printer)?;
        let filter = args.status.into_iter().fold(filter, Filter::status);
        return matching::change(client, BulkAction::Retry, &filter, &args.matching, printer);
    };
    let new = client.retry(id)?;
    printer.say(format!("run {new} is queued, as a retry of run {id}"))?;
    if printer.json { print_run(&find_run(client, new)?, printer) } else { Ok(()) }
}

/// Whether every scheduler is known to be dead, or there is none.
pub(crate) fn no_scheduler(client: &Client) -> Result<bool, Failure> {
    Ok(client.status()?.instances.iter().all(|one| one.alive == Some(false)))
}

/// Waits until a run has ended. If it does not begin, says once what `check` finds: a handler that no scheduler has, or what keeps all of them.
fn wait_until_final(client: &Client, id: i64, printer: &mut Printer<'_>) -> Result<Run, Failure> {
    let clock = SystemClock::new();
    let mut ask = Some(clock.now().monotonic + BEGINS_WITHIN);
    loop {
        let run = find_run(client, id)?;
        if run.status.is_final() {
            return Ok(run);
        }
        if ask.is_some_and(|ask| clock.now().monotonic >= ask) {
            ask = None;
            if run.status == RunStatus::Queued {
                let limits = Limits { overdue: BEGINS_WITHIN / 2, ..Limits::default() };
                let handler = client.task(&run.task)?.map(|task| format!("handler {} ", task.definition.handler));
                let keeps = |problem: &Problem| match problem.kind {
                    ProblemKind::Degraded | ProblemKind::Clock => true,
                    ProblemKind::UnknownHandler | ProblemKind::Overdue => {
                        handler.as_ref().is_some_and(|handler| problem.found.contains(handler))
                    }
                    _ => false,
                };
                let found = client.check(&limits)?.into_iter().filter(keeps);
                found.for_each(|problem| printer.warn(format!("run {id} has not begun: {problem}")));
            }
        }
        std::thread::sleep(POLL);
    }
}

pub(crate) fn find_run(client: &Client, id: i64) -> Result<Run, Failure> {
    Ok(client.run(id)?.ok_or(Error::UnknownRun { id })?)
}

fn print_run(run: &Run, printer: &mut Printer<'_>) -> Result<(), Failure> {
    Ok(printer.document(run)?)
}

pub(crate) fn pause(client: &Client, args: &Tasks, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Some(name) = &args.name else {
        let filter = matching::filter(&args.matching, printer)?;
        return matching::change(client, BulkAction::Pause, &filter, &args.matching, printer);
    };
    client.pause(name)?;
    printer.say(format!("{name} is paused"))?;
    print_task(client, name, printer)
}

pub(crate) fn resume(client: &Client, args: &Tasks, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Some(name) = &args.name else {
        let filter = matching::filter(&args.matching, printer)?;
        return matching::change(client, BulkAction::Resume, &filter, &args.matching, printer);
    };
    client.resume(name)?;
    let next = client.task(name)?.and_then(|task| task.next_run);
    let next = next.map(|next| format!(", next {}", printer.times.both(next))).unwrap_or_default();
    printer.say(format!("{name} is active{next}"))?;
    print_task(client, name, printer)
}

/// Prints the row of the task if JSON is requested.
fn print_task(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match client.task(name)? {
        Some(task) if printer.json => Ok(printer.document(&task)?),
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Cancelled<'a> {
    name: &'a str,
    cancelled: usize,
}

/// Parses the number of a run; `None`: the text is the name of a task, which begins with a letter. `doing`: the request.
pub(crate) fn run_number(doing: &str, which: &str) -> Result<Option<i64>, Failure> {
    let expected = || format!("cannot {doing} {which:?}: expected the number of a run, or the name of a task");
    let is_number = which.starts_with(|letter: char| letter.is_ascii_digit());
    is_number.then(|| which.parse().map_err(|_| Failure::Usage(expected()))).transpose()
}

pub(crate) fn cancel(client: &Client, args: &Cancel, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match &args.which {
        Some(which) if args.gone => declare_gone(client, which, printer),
        Some(which) => cancel_one(client, which, printer),
        None => {
            let filter = matching::filter(&args.matching, printer)?;
            let filter = args.status.into_iter().fold(filter, Filter::status);
            matching::change(client, BulkAction::Cancel, &filter, &args.matching, printer)
        }
    }
}

/// Cancels a run, or all unfinished runs of a task.
fn cancel_one(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if let Some(id) = run_number("cancel", which)? {
        printer.say(match client.cancel(id)? {
            duly::Cancel::Asked => format!("run {id} is running and was asked to stop"),
            _ => format!("run {id} is cancelled"),
        })?;
        return if printer.json { print_run(&find_run(client, id)?, printer) } else { Ok(()) };
    }
    let cancelled = client.cancel_all(which)?;
    if printer.json {
        return Ok(printer.document(&Cancelled { name: which, cancelled })?);
    }
    Ok(printer.say(match cancelled {
        0 => format!("{which} has no unfinished run"),
        1 => format!("1 run of {which} is cancelled or was asked to stop"),
        several => format!("{several} runs of {which} are cancelled or were asked to stop"),
    })?)
}

#[derive(Serialize)]
struct Declared<'a> {
    name: &'a str,
    declared_gone: usize,
}

fn declare_gone(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if let Some(id) = run_number("cancel", which)? {
        client.declare_gone(id)?;
        let run = client.run(id)?;
        printer.say(match run.as_ref().map(|run| run.status) {
            Some(RunStatus::Running) => {
                format!("the command of run {id} is declared gone: a scheduler will record the run as cancelled")
            }
            Some(status) if !status.is_final() => {
                format!("what was begun before the restore is declared gone: it holds run {id} back no more")
            }
            _ => format!("the command of run {id}, begun before the restore, is declared gone"),
        })?;
        return run.filter(|_| printer.json).map_or(Ok(()), |run| print_run(&run, printer));
    }
    let declared_gone = client.declare_all_gone(which)?;
    if printer.json {
        return Ok(printer.document(&Declared { name: which, declared_gone })?);
    }
    Ok(printer.say(match declared_gone {
        0 => format!("{which} has no running run whose scheduler is dead"),
        1 => format!("1 run of {which}: its command is declared gone"),
        several => format!("{several} runs of {which}: their commands are declared gone"),
    })?)
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<usize>,
}

pub(crate) fn remove(client: &Client, args: &Remove, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match &args.name {
        Some(name) if args.cancel => cancel_and_remove(client, name, printer),
        Some(name) => remove_one(client, name, printer),
        None => {
            let filter = matching::filter(&args.matching, printer)?;
            let filter = args.status.into_iter().fold(filter, Filter::task_status);
            matching::change(client, BulkAction::Remove, &filter, &args.matching, printer)
        }
    }
}

fn remove_one(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    client.remove(name)?;
    if printer.json {
        return Ok(printer.document(&Removed { name, removed: true, cancelled: None })?);
    }
    Ok(printer.say(format!("{name} and its history are removed"))?)
}

/// Cancels the unfinished runs of a task, waits for those that are running, and removes the task. Runs that start meanwhile are
/// cancelled too.
fn cancel_and_remove(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let cancelled = client.cancel_all(name)?;
    let clock = SystemClock::new();
    // A running run of a dead scheduler does not end until another scheduler recovers it.
    let limit = if no_scheduler(client)? { Duration::ZERO } else { CANCEL_LIMIT };
    let until = clock.now().monotonic + limit;
    loop {
        match client.remove(name) {
            Ok(()) => break,
            Err(error @ Error::Refused { .. }) if clock.now().monotonic >= until => {
                let reason = if limit.is_zero() { "no scheduler is alive to end it" } else { "it has not ended yet" };
                return Err(Failure::Advised(error, format!("; it was asked to stop, but {reason}")));
            }
            Err(Error::Refused { .. }) => std::thread::sleep(POLL),
            Err(error) => return Err(error.into()),
        }
        client.cancel_all(name)?;
    }
    if printer.json {
        return Ok(printer.document(&Removed { name, removed: true, cancelled: Some(cancelled) })?);
    }
    let runs = count_of(cancelled, "unfinished run");
    Ok(printer.say(format!("{runs} of {name} cancelled; {name} and its history are removed"))?)
}
