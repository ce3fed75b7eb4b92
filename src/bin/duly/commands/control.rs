//! What a person does to tasks and runs: `trigger`, `pause`, `resume`, `cancel`, `remove`.

use std::time::Duration;

use duly::{Cancel, Client, Error, NewRun, Run, RunStatus, Triggered};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::json::{RunRow, TaskRow};
use crate::output::printer::Printer;
use crate::output::times::took;

/// How often somebody who waits for a run looks at it. It is another process's: nobody tells.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn trigger(
    client: &Client,
    name: &str,
    run: NewRun,
    wait: bool,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let Triggered { run_id: id, is_new, .. } = client.trigger_run(run)?;
    printer.say(match is_new {
        true => format!("run {id} of {name} is queued"),
        false => {
            format!("run {id} of {name} was requested with this key before, and is {}", self::run(client, id)?.status)
        }
    })?;
    if !wait {
        return if printer.json { document(&self::run(client, id)?, printer) } else { Ok(()) };
    }
    printer.flush()?;
    let run = over(client, id)?;
    if printer.json {
        document(&run, printer)?;
    }
    let length = run.duration.map(|length| format!(" after {}", took(length))).unwrap_or_default();
    if run.status == RunStatus::Succeeded {
        return Ok(printer.say(format!("run {id} of {name} succeeded{length}"))?);
    }
    let reason = run.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    Err(Failure::Unsuccessful(format!("run {id} of {name} is {}{length}{reason}", run.status)))
}

pub(crate) fn retry(client: &Client, id: i64, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let new = client.retry(id)?;
    printer.say(format!("run {new} is queued, for run {id}"))?;
    if printer.json { document(&run(client, new)?, printer) } else { Ok(()) }
}

/// Waits until a run is final.
fn over(client: &Client, id: i64) -> Result<Run, Failure> {
    loop {
        let run = run(client, id)?;
        if run.status.is_final() {
            return Ok(run);
        }
        std::thread::sleep(LOOK);
    }
}

fn run(client: &Client, id: i64) -> Result<Run, Failure> {
    Ok(client.run(id)?.ok_or(Error::UnknownRun { id })?)
}

fn document(run: &Run, printer: &mut Printer<'_>) -> Result<(), Failure> {
    Ok(printer.document(&RunRow::from(run))?)
}

pub(crate) fn pause(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    client.pause(name)?;
    printer.say(format!("{name} is paused"))?;
    stands(client, name, printer)
}

pub(crate) fn resume(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    client.resume(name)?;
    let next = client.task(name)?.and_then(|task| task.next_run);
    let next = next.map(|next| format!(", next {}", printer.times.both(next))).unwrap_or_default();
    printer.say(format!("{name} counts again{next}"))?;
    stands(client, name, printer)
}

/// The task's row, for those who want a document.
fn stands(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match client.task(name)? {
        Some(task) if printer.json => Ok(printer.document(&TaskRow::from(&task))?),
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Cancelled<'a> {
    name: &'a str,
    cancelled: usize,
}

/// The run that a number names; `None`: a task's name, which begins with a letter.
fn run_number(which: &str) -> Result<Option<i64>, Failure> {
    let expected = || format!("cannot cancel {which:?}: expected the number of a run, or the name of a task");
    let is_number = which.starts_with(|letter: char| letter.is_ascii_digit());
    is_number.then(|| which.parse().map_err(|_| Failure::Refused(expected()))).transpose()
}

pub(crate) fn cancel(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if let Some(id) = run_number(which)? {
        let said = match client.cancel(id)? {
            Cancel::Asked => format!("run {id} is running: it has been asked to stop"),
            _ => format!("run {id} is cancelled"),
        };
        printer.say(said)?;
        return if printer.json { document(&run(client, id)?, printer) } else { Ok(()) };
    }
    let cancelled = client.cancel_all(which)?;
    if printer.json {
        return Ok(printer.document(&Cancelled { name: which, cancelled })?);
    }
    Ok(printer.say(match cancelled {
        0 => format!("{which} has no unfinished run"),
        1 => format!("1 run of {which} is cancelled, or asked to stop"),
        several => format!("{several} runs of {which} are cancelled, or asked to stop"),
    })?)
}

#[derive(Serialize)]
struct Declared<'a> {
    name: &'a str,
    declared_gone: usize,
}

pub(crate) fn declare_gone(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if let Some(id) = run_number(which)? {
        client.declare_gone(id)?;
        printer.say(format!(
            "the command of run {id} is declared gone: the next turn of a scheduler ends the run as cancelled"
        ))?;
        return if printer.json { document(&run(client, id)?, printer) } else { Ok(()) };
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
}

pub(crate) fn remove(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    client.remove(name)?;
    if printer.json {
        return Ok(printer.document(&Removed { name, removed: true })?);
    }
    Ok(printer.say(format!("{name} is removed, and its history with it"))?)
}
