//! `history`: lists the newest runs that match a filter.

use duly::{Client, Run, RunFilter, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::cli::values::duration;
use crate::cli::zone::day_or_instant;
use crate::commands::run_status::{blocked, retry, run_tone, short_error};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;
use crate::output::units::short_duration;

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
        filter = filter.since(day_or_age("--since", text, &printer.times)?);
    }
    let runs = client.runs(&filter)?;
    if printer.json {
        return Ok(printer.document(&runs)?);
    }
    let table = table(&runs, printer);
    printer.table(table, "no such runs")?;
    Ok(())
}

/// Parses the value of an option: a date, a local time, an instant, or a duration before now.
pub(crate) fn day_or_age(option: &str, text: &str, times: &Times) -> Result<Timestamp, Failure> {
    if let Ok(duration) = duration(text) {
        return Ok(times.now.minus(duration));
    }
    day_or_instant(text, &times.zone).map_err(|reason| {
        let or = if reason.starts_with("expected") { ", or a duration before now, such as 2h" } else { "" };
        Failure::Usage(format!("invalid {option} {text:?}: {reason}{or}"))
    })
}

/// Runs as a table. A narrow one has no origin.
pub(crate) fn table(runs: &[Run], printer: &Printer<'_>) -> Table {
    let is_roomy = printer.layout.is_roomy();
    let origin = |word| is_roomy.then_some(word).into_iter();
    let scheduled = printer.title("SCHEDULED");
    let header = ["RUN", "TASK", &scheduled].into_iter().chain(origin("ORIGIN"));
    let header: Vec<&str> = header.chain(["STATUS", "TRY", "TOOK", "NOTE"]).collect();
    let mut table = Table::list(&header, &[1]);
    for run in runs {
        let cells = [
            Cell::from(run.id.to_string()),
            Cell::from(run.task.as_str()),
            Cell::from(printer.when(run.scheduled_for)),
        ];
        let rest = [
            Cell::new(run.status.as_str(), run_tone(run.status)),
            Cell::from(if run.attempt == 0 { "-".to_owned() } else { run.attempt.to_string() }),
            Cell::from(run.duration.map_or_else(|| "-".to_owned(), short_duration)),
            Cell::new(&note(run, printer.times.now), Tone::Faint),
        ];
        table.row(cells.into_iter().chain(origin(run.origin.as_str()).map(Cell::from)).chain(rest));
    }
    table
}

/// Why a run waits, its next attempt, its progress, its error, and the number of its occurrences; `logs` prints each in full.
fn note(run: &Run, now: Timestamp) -> String {
    let progress = run.progress.as_deref().filter(|_| run.status == RunStatus::Running);
    let parts = [
        run.blocked.as_deref().map(blocked).map(str::to_owned),
        (run.status == RunStatus::Failed && run.blocked.is_none()).then(|| retry(run.run_at, now)),
        progress.map(|progress| short_error(progress).into_owned()),
        run.error.as_deref().map(|error| short_error(error).into_owned()),
        (run.occurrences != 1).then(|| format!("{} occurrences", run.occurrences)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
