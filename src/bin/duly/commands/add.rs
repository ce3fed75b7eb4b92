//! `add`: adds a task, and prints its next occurrences.

use std::path::Path;
use std::time::Duration;

use duly::text::database_name::may_exist;
use duly::{Added, Change, Client, NewTask, ScheduleKind, Task, Timestamp, Zone};
use serde::Serialize;

use crate::cli::add_args::{Add, Policies};
use crate::cli::command_line::words;
use crate::cli::failure::Failure;
use crate::cli::values::reason;
use crate::cli::zone;
use crate::commands::list;
use crate::exec::{environment, payload as command, system, user};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};

/// Number of occurrences that are printed.
const OCCURRENCES: usize = 3;

#[derive(Serialize)]
struct Document<'a> {
    change: &'static str,
    #[serde(flatten)]
    task: &'a Task,
    occurrences: &'a [Timestamp],
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

pub(crate) fn add(db: &Path, add: &Add, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let task = new_task(add)?;
    if !may_exist(db) {
        // An invalid task creates no file. In an existing file, an unchanged task needs no further occurrence.
        task.occurrences(printer.times.now, 0)?;
    }
    let client = Client::open_own(db)?;
    printer.times.now = client.now();
    let added = match (add.replace, add.if_absent) {
        (true, _) => client.replace(task)?,
        (_, true) => client.add_if_absent(task)?,
        _ => client.add(task)?,
    };
    report(&client, &added, add.at.is_some(), printer)?;
    warn_of_missing(add, printer);
    if let Some(target) = &add.policies.on_dead
        && client.task(target)?.is_none()
    {
        let name = &added.name;
        printer.warn(format!("there is no task {target:?}: dead runs of {name:?} start nothing until you add it"));
    }
    Ok(())
}

/// Warns of what the command needs and this machine does not have. It is no error: the task may run elsewhere, or later.
fn warn_of_missing(add: &Add, printer: &mut Printer<'_>) {
    if let Some(folder) = add.cwd.as_deref().filter(|folder| !folder.is_dir()) {
        printer.warn(format!(
            "--cwd: there is no folder {}: runs of {:?} fail until there is",
            folder.display(),
            add.name
        ));
    }
    if let Some(user) = add.user.as_deref().filter(|user| user::exists(user) == Some(false)) {
        printer.warn(format!(
            "--user: there is no user {user:?} on this machine: runs of {:?} fail until there is",
            add.name
        ));
    }
}

const IN_THE_PAST: &str = "its time is in the past, so it is due now";

/// Prints what was added. `has_instant`: the schedule is `--at`.
fn report(client: &Client, added: &Added, has_instant: bool, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (change, message) = match added.change {
        Change::Created => ("created", format!("added {}", added.name)),
        Change::Replaced => ("replaced", format!("replaced {}", added.name)),
        _ => ("unchanged", format!("{} exists already and is unchanged", added.name)),
    };
    // Another process may have removed the task since.
    let Some(task) = client.task(&added.name)? else { return Ok(printer.say(message)?) };
    let next = next_occurrences(&task, OCCURRENCES)?;
    let past =
        has_instant && added.change != Change::Unchanged && task.next_run.is_some_and(|at| at < printer.times.now);
    if printer.json {
        let note = past.then_some(IN_THE_PAST);
        return Ok(printer.document(&Document { change, task: &task, occurrences: &next, note })?);
    }
    if printer.quiet {
        return Ok(());
    }
    printer.say(message)?;
    if past {
        printer.say(format!("note: {IN_THE_PAST}"))?;
    }
    if let Some(words) = task.understood() {
        printer.say(format!("runs {words}"))?;
    }
    let table = occurrence_table(&task, &next, printer);
    let none = match task.definition.schedule_type {
        ScheduleKind::Manual => "it has no schedule: start it with duly trigger".to_owned(),
        // Its schedulers have other zone data.
        _ if !task.planned => format!("next run: {}", list::next(&task, &printer.times)),
        _ => "no further occurrence".to_owned(),
    };
    printer.table(table, &none)?;
    Ok(())
}

/// Returns the next occurrences of a task; none while it is paused, completed or invalid.
pub(crate) fn next_occurrences(task: &Task, limit: usize) -> Result<Vec<Timestamp>, Failure> {
    Ok(task.ahead(limit)?.into_iter().map(|upcoming| upcoming.at).collect())
}

/// Occurrences as a table: local time, distance from now, and the time in the zone of the task where it differs.
pub(crate) fn occurrence_table(task: &Task, occurrences: &[Timestamp], printer: &Printer<'_>) -> Table {
    let mut table = Table::default();
    // An interval or a delay does not depend on the zone.
    let uses_zone =
        matches!(task.definition.schedule_type, ScheduleKind::Cron | ScheduleKind::Calendar | ScheduleKind::Once);
    let zone = Zone::named(&task.definition.time_zone).ok().filter(|_| uses_zone);
    for (index, at) in occurrences.iter().enumerate() {
        let in_zone = zone.as_ref().and_then(|zone| printer.times.elsewhere(zone, *at));
        table.row([
            Cell::new(if index == 0 { "next" } else { "" }, Tone::Faint),
            Cell::from(printer.times.zoned(*at)),
            Cell::from(printer.times.relative(*at)),
            Cell::new(&in_zone.unwrap_or_default(), Tone::Faint),
            Cell::new(&skipped(task, *at).unwrap_or_default(), Tone::Odd),
        ]);
    }
    table
}

/// Returns why an occurrence will be skipped.
fn skipped(task: &Task, at: Timestamp) -> Option<String> {
    let found = task.upcoming(at.minus(Duration::from_millis(1)), 1).ok()?;
    let reason = found.into_iter().find(|one| one.at == at)?.skipped?;
    Some(format!("skipped: {reason}"))
}

fn new_task(add: &Add) -> Result<NewTask, Failure> {
    let zone = zone::from_option(&add.tz)?;
    let schedules = [
        (ScheduleKind::Cron, &add.cron),
        (ScheduleKind::Calendar, &add.on),
        (ScheduleKind::Interval, &add.every),
        (ScheduleKind::Delay, &add.after),
        (ScheduleKind::Once, &add.at),
    ];
    let task = match schedules.into_iter().find_map(|(kind, value)| Some((kind, value.as_ref()?))) {
        Some((kind, value)) => NewTask::scheduled(&add.name, kind, value),
        None if add.manual => NewTask::manual(&add.name),
        None => NewTask::once_in(&add.name, add.within.unwrap_or_default()),
    };
    let task = with_policies(task.time_zone(zone.name()), &add.policies, &zone)?;
    if let Some(handler) = &add.handler {
        if handler == "command" {
            let payload = add.payload.as_ref().map_or("null", |payload| payload.get());
            command::Payload::parse(payload).map_err(|reason| Failure::Usage(format!("--payload: {reason}")))?;
        }
        let task = task.handler(handler);
        return Ok(match &add.payload {
            Some(payload) => task.payload(payload),
            None => task,
        });
    }
    let argv = match &add.shell {
        Some(line) => system::shell(line.clone()),
        None => add.argv.clone(),
    };
    if argv.first().is_some_and(|program| program.is_empty()) {
        return Err(Failure::Usage("the command is empty: expected -- PROGRAM [ARGUMENTS]".into()));
    }
    if let Some((name, _)) = add.env.iter().find(|(name, _)| environment::sets(name)) {
        return Err(Failure::Usage(format!("invalid --env {name:?}: duly sets this variable itself, for each run")));
    }
    let payload = command::Payload {
        argv,
        cwd: Some(working_directory(add)?),
        user: add.user.clone(),
        env: add.env.iter().cloned().collect(),
        env_from: add.env_from.clone(),
        stdin: add.stdin.clone().unwrap_or_default(),
        only_if: add.only_if.as_deref().map(gate).transpose()?.unwrap_or_default(),
        give_up_exit_codes: add.give_up_exit_codes.clone(),
        skip_exit_codes: add.skip_exit_codes.clone(),
    };
    Ok(task.handler("command").payload(payload.checked().map_err(Failure::Usage)?))
}

/// Returns the program and the arguments of a gate.
fn gate(line: &str) -> Result<Vec<String>, Failure> {
    let argv = words(line)
        .and_then(|argv| if argv.is_empty() { Err("expected a command, found none".to_owned()) } else { Ok(argv) });
    argv.map_err(|reason| Failure::Usage(format!("--only-if: {reason}")))
}

/// Returns the absolute working directory of the command: the scheduler has another one.
fn working_directory(add: &Add) -> Result<String, Failure> {
    let given = add.cwd.as_deref().unwrap_or(Path::new("."));
    let unusable = |reason: String| Failure::Usage(format!("--cwd {}: {reason}", given.display()));
    let here =
        std::env::current_dir().map_err(|error| unusable(format!("the current directory does not exist ({error})")))?;
    let folder = if add.cwd.is_some() { here.join(given) } else { here };
    folder.into_os_string().into_string().map_err(|_| unusable("expected a name in UTF-8".into()))
}

fn with_policies(mut task: NewTask, given: &Policies, zone: &Zone) -> Result<NewTask, Failure> {
    let instant = |option: &str, text: &Option<String>| -> Result<Option<Timestamp>, Failure> {
        let read = text.as_deref().map(|text| {
            zone.instant(text).map_err(|error| Failure::Usage(format!("invalid {option} {text:?}: {}", reason(error))))
        });
        read.transpose()
    };
    if let Some(at) = instant("--starts-at", &given.starts_at)? {
        task = task.starts_at(at);
    }
    if let Some(at) = instant("--ends-at", &given.ends_at)? {
        task = task.ends_at(at);
    }
    Ok(given.set(task))
}
