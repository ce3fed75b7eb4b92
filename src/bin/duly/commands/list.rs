//! `list`: the tasks, and when each is due.

use duly::{Client, RunStatus, Task, TaskStatus};

use crate::failure::Failure;
use crate::output::printer::Printer;
use crate::output::rows::TaskRow;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::Times;

pub(crate) fn list(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let tasks = client.tasks()?;
    if printer.json {
        let rows: Vec<TaskRow<'_>> = tasks.iter().map(TaskRow::from).collect();
        return Ok(printer.document(&rows)?);
    }
    let mut table = Table::new(&["NAME", "SCHEDULE", "STATUS", "NEXT", "LAST"]);
    for task in &tasks {
        table.row([
            Cell::from(task.name()),
            Cell::from(schedule(task)),
            Cell::new(task.status.as_str(), task_tone(task.status)),
            Cell::from(next(task, &printer.times)),
            last(task, &printer.times),
        ]);
    }
    printer.table(table, "no tasks: see duly add --help")?;
    Ok(())
}

/// A schedule as people say it: `cron 0 7 * * * (Europe/Rome)`.
pub(crate) fn schedule(task: &Task) -> String {
    let said = &task.definition;
    let zone = if said.time_zone == "UTC" { String::new() } else { format!(" ({})", said.time_zone) };
    format!("{} {}{zone}", said.schedule_type, said.schedule_value)
}

/// When a task is due, or why nobody can say.
pub(crate) fn next(task: &Task, times: &Times) -> String {
    match (task.next_run, task.status) {
        (Some(next), _) => times.both(next),
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
