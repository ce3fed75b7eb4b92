//! `next`: prints the next occurrences of a task or a cron expression, or the effect of an outage.

use std::path::Path;
use std::time::Duration;

use duly::{Client, Error, NewTask, Outage, Projection, RunStatus, Task, TaskStatus, Timestamp, Upcoming, Zone};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::zone::{self, day_or_instant};
use crate::commands::list;
use crate::commands::run_status::run_tone;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};

/// Occurrences that are computed and printed together.
const PAGE: usize = 1000;

/// Arguments of `next`.
pub(crate) struct Query<'a> {
    pub(crate) what: &'a str,
    pub(crate) zone: Option<&'a str>,
    pub(crate) from: Option<&'a str>,
    pub(crate) number: usize,
    pub(crate) if_down: Option<Duration>,
}

enum Subject {
    Stored(Box<Task>),
    Expression(Box<NewTask>),
}

#[derive(Serialize)]
struct ProjectionRow {
    status: &'static str,
    origin: &'static str,
    scheduled_for: Timestamp,
    last_scheduled_for: Timestamp,
    occurrences: u64,
    at_least: bool,
}

#[derive(Serialize)]
struct Document {
    projections: Vec<ProjectionRow>,
    next_run: Option<Timestamp>,
}

pub(crate) fn next(db: &Path, query: &Query<'_>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let zone = query.zone.map(zone::from_option).transpose()?;
    let subject = subject(db, query, zone.as_ref())?;
    let from = match query.from {
        None => None,
        Some(text) => Some(
            day_or_instant(text, zone.as_ref().unwrap_or(&printer.times.zone))
                .map_err(|reason| Failure::Usage(format!("invalid --from {text:?}: {reason}")))?,
        ),
    };
    let since = from.unwrap_or(printer.times.now);
    match query.if_down {
        None => print_occurrences(&subject, from, query.number, printer),
        Some(down) => print_outage(&outage(&subject, since, since.plus(down))?, printer),
    }
}

/// Finds the task, or parses the cron expression or calendar interval: a name contains no space and does not begin with `@`.
fn subject(db: &Path, query: &Query<'_>, zone: Option<&Zone>) -> Result<Subject, Failure> {
    if query.what.starts_with('@') || query.what.contains(char::is_whitespace) {
        let zone = zone.map_or("UTC", Zone::name);
        let is_interval = query.what.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("every "));
        let task = if is_interval { NewTask::calendar("line", query.what) } else { NewTask::cron("line", query.what) };
        let task = task.time_zone(zone).handler("command");
        return Ok(Subject::Expression(Box::new(task)));
    }
    if zone.is_some() {
        let reason = "--tz applies to a cron expression only: a task has its own zone";
        return Err(Failure::Usage(reason.into()));
    }
    let name = query.what;
    let task = Client::open_existing(db)?.task(name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() })?;
    Ok(Subject::Stored(Box::new(task)))
}

fn upcoming(subject: &Subject, from: Timestamp, limit: usize) -> Result<Vec<Upcoming>, Error> {
    match subject {
        Subject::Stored(task) => task.upcoming(from, limit),
        Subject::Expression(task) => task.upcoming(from, limit),
    }
}

fn outage(subject: &Subject, since: Timestamp, until: Timestamp) -> Result<Outage, Error> {
    match subject {
        Subject::Stored(task) => task.outage(since, until),
        Subject::Expression(task) => task.outage(since, until),
    }
}

/// Prints the occurrences page by page: all of them may not fit into memory.
///
/// For a task without `from`: its next run, as in `list` and `show`, and the following ones. With `from`: the occurrences of
/// its schedule from then on, whatever its status.
fn print_occurrences(
    subject: &Subject,
    from: Option<Timestamp>,
    number: usize,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let mut page = match (subject, from) {
        (Subject::Stored(task), None) => task.ahead(number.min(PAGE))?,
        _ => upcoming(subject, from.unwrap_or(printer.times.now), number.min(PAGE))?,
    };
    let none = match subject {
        Subject::Stored(task) if from.is_none() && task.status == TaskStatus::Active => {
            format!("no further occurrence is known; next run: {}", list::next(task, &printer.times))
        }
        Subject::Stored(task) if from.is_none() => format!("no further occurrence: the task is {}", task.status),
        _ => "no further occurrence".to_owned(),
    };
    let (mut left, mut is_first) = (number - page.len(), true);
    let is_empty = page.is_empty();
    if printer.json {
        printer.list_begins()?;
    }
    loop {
        let last = page.last().map(|one| one.at);
        print(&page, is_first, &none, printer)?;
        is_first = false;
        let Some(last) = last.filter(|_| left > 0 && page.len() == PAGE) else { break };
        page = match upcoming(subject, last, left.min(PAGE)) {
            Ok(page) if !page.is_empty() => page,
            _ => break,
        };
        left -= page.len();
    }
    if printer.json {
        printer.list_ends(is_empty)?;
    }
    Ok(())
}

fn print(page: &[Upcoming], is_first: bool, none: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.json {
        for (place, one) in page.iter().enumerate() {
            printer.item(one, is_first && place == 0)?;
        }
        return Ok(());
    }
    let mut table = if is_first { Table::new(&["LOCAL", "UTC", "", ""]) } else { Table::default() };
    for one in page {
        table.row([
            Cell::from(one.local.as_str()),
            Cell::from(one.at.to_string().replace(".000Z", "Z")),
            Cell::new(&printer.times.relative(one.at), Tone::Faint),
            Cell::new(&remark(one), Tone::Odd),
        ]);
    }
    Ok(printer.table(table, none)?)
}

fn remark(one: &Upcoming) -> String {
    let skipped = one.skipped.as_ref().map(|reason| format!("skipped: {reason}"));
    one.note.map(|note| note.to_string()).into_iter().chain(skipped).collect::<Vec<_>>().join("; ")
}

fn print_outage(outage: &Outage, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.json {
        let projections = outage.projections.iter().map(row).collect();
        return Ok(printer.document(&Document { projections, next_run: outage.next })?);
    }
    let mut table = Table::default();
    for projection in &outage.projections {
        let (what, tone) = match projection.status {
            RunStatus::Queued => ("run", Tone::Good),
            status => (status.as_str(), run_tone(status)),
        };
        let least = if projection.exact { "" } else { "at least " };
        let when = if projection.count == 1 {
            printer.times.zoned(projection.first)
        } else {
            let (first, last) = (printer.times.local(projection.first), printer.times.zoned(projection.last));
            format!("{first} to {last} ({least}{} occurrences)", projection.count)
        };
        table.row([Cell::new(what, tone), Cell::from(when)]);
    }
    let next = outage.next.map_or_else(|| "-".to_owned(), |next| printer.times.zoned(next));
    table.row([Cell::new("next", Tone::Faint), Cell::new(&next, Tone::Faint)]);
    Ok(printer.table(table, "")?)
}

fn row(projection: &Projection) -> ProjectionRow {
    ProjectionRow {
        status: projection.status.as_str(),
        origin: projection.origin.as_str(),
        scheduled_for: projection.first,
        last_scheduled_for: projection.last,
        occurrences: projection.count,
        at_least: !projection.exact,
    }
}
