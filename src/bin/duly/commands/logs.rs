//! `logs`: prints the attempts of a run, with their errors and output.

use std::time::Duration;

use duly::{Attempt, Client, EffectState, Follower, Run, RunDetails, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::commands::control::run_number;
use crate::commands::run_status::{run_tone, status};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;
use crate::output::units::short_duration;

/// Most runs of a task among which [`find`] looks for one that was begun.
const SEARCHED: usize = 20;

/// Returns the id of a run, given its number or the name of its task: of the newest runs the first that was begun.
pub(crate) fn find(client: &Client, which: &str) -> Result<i64, Failure> {
    if let Some(id) = run_number("show", which)? {
        return Ok(id);
    }
    let newest = client.history(which, SEARCHED)?;
    let has_output = |run: &&Run| run.attempt > 0 || !matches!(run.status, RunStatus::Skipped | RunStatus::Missed);
    let run = newest.iter().find(has_output).or(newest.first());
    run.map(|run| run.id).ok_or_else(|| Failure::Refused(format!("{which} has no run yet")))
}

pub(crate) fn logs(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    print_run(client, find(client, which)?, printer)
}

/// Prints a run with its attempts.
pub(crate) fn print_run(client: &Client, id: i64, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let details = client.run_details(id)?;
    if printer.json {
        return Ok(printer.document(&details)?);
    }
    printer.table(summary(&details, &printer.times), "")?;
    let RunDetails { run, attempts, .. } = details;
    for attempt in &attempts {
        print_recorded(attempt, printer)?;
    }
    if !attempts.iter().any(|attempt| attempt.attempt == run.attempt) {
        print_newest(&run, printer)?;
    }
    Ok(())
}

fn summary(details: &RunDetails, times: &Times) -> Table {
    let RunDetails { run, attempts, effects, follows, followers, .. } = details;
    let mut table = Table::default();
    let mut row = |name: &str, value: Option<String>, tone: Tone| {
        if let Some(value) = value {
            table.row([Cell::new(name, Tone::Faint), Cell::new(&value, tone)]);
        }
    };
    let waits = matches!(run.status, RunStatus::Queued | RunStatus::Failed);
    row("run", Some(format!("{} of {}", run.id, run.task)), Tone::Plain);
    row("status", Some(status(run, times.now)), run_tone(run.status));
    row("scheduled for", Some(times.both(run.scheduled_for)), Tone::Plain);
    row("up to", run.last_scheduled_for.map(|last| times.both(last)), Tone::Plain);
    row("origin", Some(run.origin.to_string()), Tone::Plain);
    row("retry of", run.retry_of.map(|first| format!("run {first}")), Tone::Plain);
    row("follows", follows.map(|parent| format!("run {parent}")), Tone::Plain);
    row("not before", waits.then(|| times.both(run.run_at)), Tone::Plain);
    row("expires", waits.then_some(run.expires_at).flatten().map(|at| times.both(at)), Tone::Plain);
    row("asked to stop", run.cancel_requested.then(|| "yes".to_owned()), Tone::Odd);
    // Why there was no attempt or no further one. The error of an attempt is printed with the attempt.
    let mut newest = attempts.iter().filter(|attempt| attempt.attempt == run.attempt).peekable();
    let of_the_run =
        run.status.is_final() && newest.peek().is_some() && newest.all(|attempt| attempt.error != run.error);
    row("reason", run.error.clone().filter(|_| run.attempt == 0 || of_the_run), Tone::Plain);
    row("progress", run.progress.clone(), Tone::Plain);
    row("result", run.result.clone(), Tone::Plain);
    for effect in effects {
        let started = times.zoned(effect.created_at);
        let (state, tone) = match effect.state {
            EffectState::Done => ("done".to_owned(), Tone::Plain),
            // The attempt may be executing it now.
            _ if run.status == RunStatus::Running => (format!("started {started}"), Tone::Plain),
            _ => (format!("in doubt, started {started}"), Tone::Bad),
        };
        row("effect", Some(format!("{}: {state}", effect.key)), tone);
    }
    for Follower { id, task, status, .. } in followers {
        row("followed by", Some(format!("run {id} of {task}: {status}")), run_tone(*status));
    }
    table
}

fn print_recorded(attempt: &Attempt, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let ended = format!("{}{}", attempt.outcome, span(attempt.started_at, attempt.duration, &printer.times));
    let error = attempt.error.as_ref().map(|error| format!("error: {error}"));
    print_attempt(attempt.attempt, &ended, attempt.exit_code, error, attempt.output.as_deref(), printer)
}

/// Prints the newest attempt, which the row of the run describes while it is running and after it succeeded.
fn print_newest(run: &Run, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if run.attempt == 0 {
        return Ok(());
    }
    let state = format!("{}{}", run.status, span(run.started_at, run.duration, &printer.times));
    let label = if run.status == RunStatus::Succeeded { "remark" } else { "error" };
    let error = run.error.as_ref().map(|error| format!("{label}: {error}"));
    print_attempt(run.attempt, &state, run.exit_code, error, run.output.as_deref(), printer)
}

fn print_attempt(
    number: u32,
    state: &str,
    exit_code: Option<i32>,
    error: Option<String>,
    output: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let code = exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    printer.line("")?;
    printer.line(format!("attempt {number}: {state}{code}"))?;
    if let Some(error) = error {
        printer.line(error)?;
    }
    Ok(printer.block(output.unwrap_or_default())?)
}

/// The start and the duration of an attempt, if they are known.
fn span(started: Option<Timestamp>, duration: Option<Duration>, times: &Times) -> String {
    let started = started.map(|started| format!(", started {}", times.zoned(started)));
    let duration = duration.map(|duration| format!(", took {}", short_duration(duration)));
    started.into_iter().chain(duration).collect()
}
