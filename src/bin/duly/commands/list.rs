//! `list`: the tasks, and when each is due.

use std::path::Path;

use duly::{Client, Recent, RunStatus, ScheduleKind, Task, TaskStatus};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::json::{RecentRow, TaskRow};
use crate::output::printer::Printer;
use crate::output::sparkline::spark;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;

/// So many runs of a task are shown as a line.
const RECENT: usize = 10;

#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    task: TaskRow<'a>,
    recent: Vec<RecentRow>,
}

pub(crate) fn list(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (tasks, mut recent) = (client.tasks()?, client.recent(RECENT)?);
    let mut recent_of = |task: &Task| recent.remove(&task.id).unwrap_or_default();
    if printer.json {
        let listed = tasks.iter().map(|task| {
            let recent = recent_of(task).iter().map(RecentRow::from).collect();
            Listed { task: TaskRow::from(task), recent }
        });
        return Ok(printer.document(&listed.collect::<Vec<_>>())?);
    }
    let mut table = Table::new(&["NAME", "SCHEDULE", "STATUS", "NEXT", "RUNS", "LAST"]);
    for task in &tasks {
        let recent = recent_of(task);
        table.row([
            Cell::from(task.name()),
            Cell::from(schedule(task)),
            Cell::new(&status(task), task_tone(task.status)),
            Cell::from(next(task, &printer.times)),
            Cell::new(&spark(&recent, printer.heights), recent_tone(&recent)),
            last(task, &printer.times),
        ]);
    }
    printer.table(table, "no tasks: see duly add --help")?;
    Ok(())
}

/// The names alone, a line each, for scripts and shells. Where there is no file there are none, which is no failure: somebody
/// is about to make it.
pub(crate) fn names(file: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let names = if file.exists() { Client::open_existing(file)?.names()? } else { Vec::new() };
    if printer.json {
        return Ok(printer.document(&names)?);
    }
    Ok(names.iter().try_for_each(|name| printer.line(name))?)
}

/// The colour of a line of runs: that of the newest.
pub(crate) fn recent_tone(recent: &[Recent]) -> Tone {
    recent.last().map_or(Tone::Plain, |run| run_tone(run.status))
}

/// A schedule as people say it: `cron 0 7 * * * (Europe/Rome)`.
pub(crate) fn schedule(task: &Task) -> String {
    let said = &task.definition;
    if said.schedule_type == ScheduleKind::Manual {
        return said.schedule_type.to_string();
    }
    let zone = if said.time_zone == "UTC" { String::new() } else { format!(" ({})", said.time_zone) };
    format!("{} {}{zone}", said.schedule_type, said.schedule_value)
}

/// The status of a task, and of a paused one who paused it, and why.
fn status(task: &Task) -> String {
    let by = task.paused_by.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
    format!("{}{by}", task.status)
}

/// When a task is due, or why nobody can say.
pub(crate) fn next(task: &Task, times: &Times) -> String {
    match (task.next_run, task.status) {
        (Some(next), _) => times.both(next),
        (None, TaskStatus::Active) if task.definition.schedule_type == ScheduleKind::Manual => {
            "when triggered".to_owned()
        }
        (None, TaskStatus::Active) if !task.planned => "as soon as a scheduler has looked at it".to_owned(),
        (None, TaskStatus::Active) => "after its run".to_owned(),
        (None, _) => "-".to_owned(),
    }
}

fn last(task: &Task, times: &Times) -> Cell {
    match (task.last_status, task.last_finished) {
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

/// The colour of a run's status.
pub(crate) fn run_tone(status: RunStatus) -> Tone {
    match status {
        RunStatus::Succeeded => Tone::Good,
        RunStatus::Dead => Tone::Bad,
        RunStatus::Failed | RunStatus::Missed | RunStatus::Skipped => Tone::Odd,
        RunStatus::Cancelled => Tone::Faint,
        _ => Tone::Plain,
    }
}
