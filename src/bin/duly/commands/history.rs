//! `history`: the newest runs, narrowed if need be.

use duly::{Client, Run, RunFilter, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::cli::values::length;
use crate::cli::zone::day_or_instant;
use crate::commands::list::run_tone;
use crate::output::json::RunRow;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::{Times, took};

/// So much of an error, and of what a run says of its progress, is shown in a table; `logs` has all of it.
const ERROR_SHOWN: usize = 60;
const PROGRESS_SHOWN: usize = 30;

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
        filter = filter.since(instant(text, &printer.times)?);
    }
    let runs = client.runs(&filter)?;
    if printer.json {
        let rows: Vec<RunRow<'_>> = runs.iter().map(RunRow::from).collect();
        return Ok(printer.document(&rows)?);
    }
    printer.table(table(&runs, &printer.times), "no such runs")?;
    Ok(())
}

/// A date, a date and time here, an instant, or how long ago.
fn instant(text: &str, times: &Times) -> Result<Timestamp, Failure> {
    if let Ok(length) = length(text) {
        return Ok(times.now.minus(length));
    }
    day_or_instant(text, &times.zone).map_err(|reason| {
        let or = if reason.starts_with("expected") { ", or how long ago, as in 2h" } else { "" };
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
            Cell::new(&progressing(run), run_tone(run.status)),
            Cell::from(if run.attempt == 0 { "-".to_owned() } else { run.attempt.to_string() }),
            Cell::from(run.duration.map_or_else(|| "-".to_owned(), took)),
            Cell::new(&shortened(run.error.as_deref().unwrap_or_default(), ERROR_SHOWN), Tone::Faint),
        ]);
    }
    table
}

/// Where a run stands, and how far it has come while it is at work.
fn progressing(run: &Run) -> String {
    match &run.progress {
        Some(words) if run.status == RunStatus::Running => {
            format!("{} ({})", status(run), shortened(words, PROGRESS_SHOWN))
        }
        _ => status(run),
    }
}

/// Where a run stands, and why it waits, or for how many occurrences it stands.
pub(crate) fn status(run: &Run) -> String {
    match (&run.blocked, run.occurrences) {
        (Some(reason), _) => format!("{} ({})", run.status, blocked(reason)),
        (None, 1) => run.status.to_string(),
        (None, several) => format!("{} ({several} occurrences)", run.status),
    }
}

fn blocked(reason: &str) -> String {
    match reason {
        "paused" => "its task is paused".to_owned(),
        "order" => "an older run goes first".to_owned(),
        "key" => "its key is held".to_owned(),
        other => other.to_owned(),
    }
}

fn shortened(text: &str, shown: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(shown) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None if line.len() < text.trim_end().len() => format!("{line} ..."),
        None => line.to_owned(),
    }
}
