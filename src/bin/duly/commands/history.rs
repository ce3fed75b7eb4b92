//! `history`: lists the newest runs that match a filter.

use duly::{Client, Run, RunFilter, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::cli::values::duration;
use crate::cli::zone::day_or_instant;
use crate::commands::run_status::{run_tone, status};
use crate::output::json::RunRow;
use crate::output::printer::{Each, Printer};
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;
use crate::output::units::short_duration;

/// Most characters of an error and of a progress report in the table; `logs` prints all.
const MAX_ERROR: usize = 60;
const MAX_PROGRESS: usize = 30;

pub(crate) fn history(
    client: &Client,
    name: Option<&str>,
    status: Option<RunStatus>,
    since: Option<&str>,
    number: usize,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let mut filter = RunFilter::newest(number);
    if let Some(name) = name {
        filter = filter.of(name);
    }
    if let Some(status) = status {
        filter = filter.status(status);
    }
    if let Some(text) = since {
        filter = filter.since(parse_since(text, &printer.times)?);
    }
    let runs = client.runs(&filter)?;
    if printer.json {
        return Ok(printer.document(&Each(runs.iter().map(RunRow::from)))?);
    }
    printer.table(table(&runs, &printer.times), "no such runs")?;
    Ok(())
}

/// Parses `--since`: a date, a local time, an instant, or a duration before now.
fn parse_since(text: &str, times: &Times) -> Result<Timestamp, Failure> {
    if let Ok(duration) = duration(text) {
        return Ok(times.now.minus(duration));
    }
    day_or_instant(text, &times.zone).map_err(|reason| {
        let or = if reason.starts_with("expected") { ", or a duration before now, such as 2h" } else { "" };
        Failure::Refused(format!("invalid --since {text:?}: {reason}{or}"))
    })
}

/// Runs as a table.
pub(crate) fn table(runs: &[Run], times: &Times) -> Table {
    let mut table = Table::new(&["RUN", "TASK", "SCHEDULED FOR", "ORIGIN", "STATUS", "ATTEMPT", "TOOK", "ERROR"]);
    for run in runs {
        table.row([
            Cell::from(run.id.to_string()),
            Cell::from(run.task.as_str()),
            Cell::from(times.both(run.scheduled_for)),
            Cell::from(run.origin.as_str()),
            Cell::new(&status_with_progress(run, times.now), run_tone(run.status)),
            Cell::from(if run.attempt == 0 { "-".to_owned() } else { run.attempt.to_string() }),
            Cell::from(run.duration.map_or_else(|| "-".to_owned(), short_duration)),
            Cell::new(&shortened(run.error.as_deref().unwrap_or_default(), MAX_ERROR), Tone::Faint),
        ]);
    }
    table
}

/// The status of a run, with its progress while it is running.
fn status_with_progress(run: &Run, now: Timestamp) -> String {
    match &run.progress {
        Some(progress) if run.status == RunStatus::Running => {
            format!("{} ({})", status(run, now), shortened(progress, MAX_PROGRESS))
        }
        _ => status(run, now),
    }
}

fn shortened(text: &str, limit: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(limit) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None if line.len() < text.trim_end().len() => format!("{line} ..."),
        None => line.to_owned(),
    }
}
