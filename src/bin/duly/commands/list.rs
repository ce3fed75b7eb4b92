//! `list`: lists the tasks, with their next and last runs.

use std::collections::HashMap;
use std::path::Path;

use duly::{Client, Recent, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::commands::run_status::{next_retries, retry, run_tone};
use crate::output::json::{RecentRow, TaskRow};
use crate::output::printer::{Each, Printer};
use crate::output::sparkline::spark;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;

/// Number of runs in the sparkline of a task.
const RECENT: usize = 10;

#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    task: TaskRow<'a>,
    recent: Vec<RecentRow>,
}

pub(crate) fn list(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (tasks, recent) = (client.tasks()?, client.recent(RECENT)?);
    let recent_of = |task: &Task| recent.get(&task.id).map_or(&[][..], Vec::as_slice);
    if printer.json {
        let listed = tasks.iter().map(|task| {
            let recent = recent_of(task).iter().map(RecentRow::from).collect();
            Listed { task: TaskRow::from(task), recent }
        });
        return Ok(printer.document(&Each(listed))?);
    }
    let has_failed = tasks.iter().any(|task| task.last_status == Some(RunStatus::Failed));
    let retries = if has_failed { next_retries(client)? } else { HashMap::new() };
    let mut table = Table::new(&["NAME", "SCHEDULE", "STATUS", "NEXT", "RUNS", "LAST"]);
    for task in &tasks {
        let recent = recent_of(task);
        table.row([
            Cell::from(task.name()),
            Cell::from(schedule(task)),
            Cell::new(&status(task), task_tone(task.status)),
            Cell::from(next(task, &printer.times)),
            Cell::new(&spark(recent, printer.heights), recent_tone(recent)),
            last(task, retries.get(task.name()).copied(), &printer.times),
        ]);
    }
    printer.table(table, "no tasks: add one with duly add")?;
    Ok(())
}

/// Prints only the names, one on each line, for scripts and completions. A missing file has no names and is no failure.
pub(crate) fn names(file: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let names = if file.exists() { Client::open_existing(file)?.names()? } else { Vec::new() };
    if printer.json {
        return Ok(printer.document(&names)?);
    }
    Ok(names.iter().try_for_each(|name| printer.line(name))?)
}

/// The colour of a sparkline: that of the newest run.
pub(crate) fn recent_tone(recent: &[Recent]) -> Tone {
    recent.last().map_or(Tone::Plain, |run| run_tone(run.status))
}

/// The schedule as text: `cron 0 7 * * * (Europe/Rome)`.
pub(crate) fn schedule(task: &Task) -> String {
    let definition = &task.definition;
    if definition.schedule_type == ScheduleKind::Manual {
        return definition.schedule_type.to_string();
    }
    let zone = if definition.time_zone == "UTC" { String::new() } else { format!(" ({})", definition.time_zone) };
    format!("{} {}{zone}", definition.schedule_type, definition.schedule_value)
}

/// The status of a task, with what paused it.
fn status(task: &Task) -> String {
    let by = task.paused_by.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
    format!("{}{by}", task.status)
}

/// The next run of a task, or why there is none yet.
pub(crate) fn next(task: &Task, times: &Times) -> String {
    match (task.next_run, task.status) {
        (Some(next), _) => times.both(next),
        (None, TaskStatus::Active) if task.definition.schedule_type == ScheduleKind::Manual => {
            "when triggered".to_owned()
        }
        (None, TaskStatus::Active) if !task.planned => "not computed: no scheduler has read it yet".to_owned(),
        (None, TaskStatus::Active) => "after the current run".to_owned(),
        (None, _) => "-".to_owned(),
    }
}

/// The status and the end of the last run. `next`: the next attempt, if a run has failed and it is known.
fn last(task: &Task, next: Option<Timestamp>, times: &Times) -> Cell {
    match (task.last_status, task.last_finished) {
        (Some(status @ RunStatus::Failed), _) if let Some(at) = next => {
            Cell::new(&format!("failed, {}", retry(at, times.now)), run_tone(status))
        }
        (Some(status), Some(at)) => Cell::new(&format!("{status} {}", times.relative(at)), run_tone(status)),
        (Some(status), None) => Cell::new(status.as_str(), run_tone(status)),
        (None, _) => Cell::new("-", Tone::Faint),
    }
}

/// The colour of a task's status.
pub(crate) fn task_tone(status: TaskStatus) -> Tone {
    match status {
        TaskStatus::Active => Tone::Plain,
        TaskStatus::Paused => Tone::Odd,
        TaskStatus::Invalid => Tone::Bad,
        _ => Tone::Faint,
    }
}
