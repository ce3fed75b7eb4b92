//! `list`: lists the tasks, with their next and last runs.

use std::collections::HashMap;
use std::path::Path;

use duly::text::database_name::may_exist;
use duly::{Client, Error, ListedTask, NamePattern, Recent, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp};

use crate::cli::args::ListArgs;
use crate::cli::failure::Failure;
use crate::cli::nearest;
use crate::commands::run_status::{next_retries, retry, run_tone};
use crate::output::printer::{Each, Printer};
use crate::output::sparkline::spark;
use crate::output::table::{Cell, Table, Tone};
use crate::output::times::{Times, shown_zone};
use crate::output::units::count_of;

/// Number of runs in the sparkline of a task.
const RECENT: usize = ListedTask::RECENT;
/// The same in a narrow table.
const FEW: usize = 5;

pub(crate) fn list(client: &Client, args: &ListArgs, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (mut tasks, recent) = (client.tasks()?, client.recent(RECENT)?);
    let recent_of = |task: &Task| recent.get(&task.id).map_or(&[][..], Vec::as_slice);
    let has_tasks = !tasks.is_empty();
    check_names(&tasks, args)?;
    tasks.retain(|task| is_wanted(task, args));
    let found = tasks.len();
    // In JSON, every task is listed unless a filter is given.
    if !printer.json && !args.all && args.status.is_none() && args.added_by.is_none() && args.patterns.is_empty() {
        tasks.retain(|task| !is_over(task, recent_of(task)));
    }
    let hidden = found - tasks.len();
    tasks.truncate(args.number.unwrap_or(usize::MAX));
    if printer.json {
        let listed = tasks.iter().map(|task| ListedTask { task, recent: recent_of(task) });
        return Ok(printer.document(&Each(listed))?);
    }
    let has_failed = tasks.iter().any(|task| task.last_status == Some(RunStatus::Failed));
    let retries = if has_failed { next_retries(client)? } else { HashMap::new() };
    let next = printer.title("NEXT");
    let by = args.added_by.is_some().then_some("ADDED BY");
    let (is_roomy, is_for_programs) = (printer.layout.is_roomy(), printer.layout.is_for_programs);
    let ended = printer.title("ENDED");
    let runs = if is_for_programs { ["LAST", &ended] } else { ["RUNS", "LAST"] };
    let header: Vec<&str> = ["NAME", "SCHEDULE", "STATUS", &next].into_iter().chain(runs).chain(by).collect();
    let mut table = Table::list(&header, &[0, 1]);
    for task in &tasks {
        let recent = recent_of(task);
        let newest = if is_roomy { recent } else { &recent[recent.len().saturating_sub(FEW)..] };
        let by = by.map(|_| Cell::new(task.definition.managed_by.as_deref().unwrap_or_default(), Tone::Faint));
        let runs = if is_for_programs {
            // What is shown on a terminal as a sparkline and an age.
            let ended = task.last_finished.map(|at| printer.when(at)).unwrap_or_default();
            [Cell::from(task.last_status.map_or("", |status| status.as_str())), Cell::from(ended)]
        } else {
            let last = last(task, retries.get(task.name()).copied(), &printer.times);
            [Cell::new(&spark(newest, printer.heights), recent_tone(newest)), last]
        };
        let cells = [
            Cell::from(task.name()),
            Cell::from(if is_roomy { schedule(task) } else { short_schedule(task) }),
            Cell::new(&status(task, printer.layout.width.is_none() && !is_for_programs), task_tone(task.status)),
            Cell::from(task.next_run.map_or_else(|| no_next(task).0.to_owned(), |next| printer.when(next))),
        ];
        table.row(cells.into_iter().chain(runs).chain(by));
    }
    let none = match (has_tasks, hidden) {
        (false, _) => "no tasks: add one with duly add",
        (true, 0) => "no such tasks",
        (true, _) => "no other tasks",
    };
    printer.table(table, none)?;
    if hidden > 0 {
        printer.say(format!("not listed: {}; see duly list --all", count_of(hidden, "completed one-time task")))?;
    }
    Ok(())
}

/// Whether the task is a completed one-time task that needs no attention: its newest run is final and not dead.
fn is_over(task: &Task, recent: &[Recent]) -> bool {
    let is_calm = |run: &Recent| run.status.is_final() && run.status != RunStatus::Dead;
    let is_once = task.definition.schedule_type == ScheduleKind::Once;
    task.status == TaskStatus::Completed && is_once && recent.last().is_none_or(is_calm)
}

/// Whether the filters accept the task.
fn is_wanted(task: &Task, args: &ListArgs) -> bool {
    (args.patterns.is_empty() || args.patterns.iter().any(|pattern| pattern.matches(task.name())))
        && args.status.is_none_or(|status| task.status == status)
        && args.handler.as_ref().is_none_or(|handler| task.definition.handler == *handler)
        && args
            .added_by
            .as_ref()
            .is_none_or(|pattern| task.definition.managed_by.as_ref().is_some_and(|manager| pattern.matches(manager)))
}

/// Fails if a name without wildcards, or the handler, belongs to no task.
fn check_names(tasks: &[Task], args: &ListArgs) -> Result<(), Failure> {
    for name in args.patterns.iter().filter(|pattern| pattern.is_name()).map(NamePattern::as_str) {
        if !tasks.iter().any(|task| task.name() == name) {
            return Err(Error::UnknownTask { name: name.to_owned() }.into());
        }
    }
    let handlers = || tasks.iter().map(|task| task.definition.handler.as_str());
    match &args.handler {
        Some(handler) if !tasks.is_empty() && !handlers().any(|one| one == handler) => {
            let hint = nearest::hint(handler, handlers());
            Err(Failure::Refused(format!("no task has the handler {handler:?}{hint}")))
        }
        _ => Ok(()),
    }
}

/// Prints only the names, one on each line, for scripts and completions. A missing file has no names and is no failure.
pub(crate) fn names(file: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let names = if may_exist(file) { Client::open_existing(file)?.names()? } else { Vec::new() };
    if printer.json {
        return Ok(printer.document(&names)?);
    }
    Ok(names.iter().try_for_each(|name| printer.line(name))?)
}

/// The colour of a sparkline: that of the newest run.
pub(crate) fn recent_tone(recent: &[Recent]) -> Tone {
    recent.last().map_or(Tone::Plain, |run| run_tone(run.status))
}

/// The schedule as a short text: `0 7 * * * (Europe/Rome)`, `every 15m`, `once`.
fn short_schedule(task: &Task) -> String {
    let whole = schedule(task);
    match task.definition.schedule_type {
        ScheduleKind::Cron => whole.strip_prefix("cron ").unwrap_or(&whole).to_owned(),
        ScheduleKind::Calendar => whole.strip_prefix("calendar ").unwrap_or(&whole).to_owned(),
        ScheduleKind::Interval => format!("every {}", task.definition.schedule_value),
        ScheduleKind::Delay => format!("after {}", task.definition.schedule_value),
        other => other.to_string(),
    }
}

/// The schedule as text: `cron 0 7 * * * (Europe/Rome)`.
pub(crate) fn schedule(task: &Task) -> String {
    let definition = &task.definition;
    if definition.schedule_type == ScheduleKind::Manual {
        return definition.schedule_type.to_string();
    }
    let zone = match shown_zone(&definition.time_zone) {
        "UTC" => String::new(),
        zone => format!(" ({zone})"),
    };
    format!("{} {}{zone}", definition.schedule_type, definition.schedule_value)
}

/// The status of a task. `with_reason`: and what paused it.
fn status(task: &Task, with_reason: bool) -> String {
    let by = task.paused_by.as_ref().filter(|_| with_reason).map(|by| format!(" ({by})")).unwrap_or_default();
    format!("{}{by}", task.status)
}

/// The next run of a task, or why there is none yet.
pub(crate) fn next(task: &Task, times: &Times) -> String {
    task.next_run.map_or_else(|| no_next(task).1.to_owned(), |next| times.both(next))
}

/// Why a task has no next run, in one or two words and in full.
fn no_next(task: &Task) -> (&'static str, &'static str) {
    match (task.status, task.definition.schedule_type) {
        (TaskStatus::Active, ScheduleKind::Manual) => ("when triggered", "when triggered"),
        (TaskStatus::Active, _) if !task.planned => ("not computed", "not computed: no scheduler has read it yet"),
        (TaskStatus::Active, _) => ("after this run", "after the current run"),
        _ => ("-", "-"),
    }
}

/// The status and the end of the last run. `next`: the next attempt, if a run has failed and it is known.
fn last(task: &Task, next: Option<Timestamp>, times: &Times) -> Cell {
    match (task.last_status, task.last_finished, next) {
        (Some(status @ RunStatus::Failed), _, Some(at)) => {
            Cell::new(&format!("failed, {}", retry(at, times.now)), run_tone(status))
        }
        (Some(status), Some(at), _) => Cell::new(&format!("{status} {}", times.roughly(at)), run_tone(status)),
        (Some(status), None, _) => Cell::new(status.as_str(), run_tone(status)),
        (None, ..) => Cell::new("-", Tone::Faint),
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
