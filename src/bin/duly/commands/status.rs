//! `status`: prints schedulers, due and failing tasks, unfinished runs, and the files or the server.

use duly::{Client, Instance, RunStatus, Status};

use crate::cli::failure::Failure;
use crate::commands::limit::{is_reached, use_of};
use crate::commands::run_status::{MAX_RETRIES, next_retries, retry};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::units::{bytes, count_of};

pub(crate) fn status(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let status = client.status()?;
    if printer.json {
        return Ok(printer.document(&status)?);
    }
    let failed = count(&status.runs, &RunStatus::Failed);
    let is_known = failed > 0 && failed <= MAX_RETRIES as u64;
    let retries = if is_known { next_retries(client)? } else { Default::default() };
    let next = retries.into_values().min().map(|at| retry(at, printer.times.now));
    print(&status, next.as_deref(), printer)
}

/// `retry`: the first retry of a failed run, if it is known.
fn print(status: &Status, retry: Option<&str>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut table = Table::default();
    let mut line = |what: &str, text: &str, tone| table.row([Cell::new(what, Tone::Faint), Cell::new(text, tone)]);
    if status.instances.is_empty() {
        line("schedulers", "none is running: start one with duly run", Tone::Bad);
    }
    for (number, one) in status.instances.iter().enumerate() {
        let (text, tone) = scheduler(one, printer);
        line(if number == 0 { "schedulers" } else { "" }, &text, tone);
    }
    line("tasks", &counts(status.tasks.iter().map(|(status, n)| (status.to_string(), *n))), Tone::Plain);
    if let Some(wait) = &status.clock {
        line("clock", &wait.to_string(), Tone::Bad);
    }
    if status.due > 0 {
        let tone = if status.overdue > 0 { Tone::Bad } else { Tone::Plain };
        line("due", &format!("{} now, {} for more than 5 min", status.due, status.overdue), tone);
    }
    if !status.failing.is_empty() {
        line("failing", &status.failing.join(", "), Tone::Bad);
    }
    let word = |status: &RunStatus| match retry.filter(|_| *status == RunStatus::Failed) {
        Some(retry) => format!("failed ({retry})"),
        None => status.to_string(),
    };
    let blocked = (status.blocked > 0).then(|| ("blocked".to_owned(), status.blocked));
    line("runs", &counts(status.runs.iter().map(|(status, n)| (word(status), *n)).chain(blocked)), Tone::Plain);
    for (number, state) in status.limits.iter().enumerate() {
        let tone = if is_reached(state) { Tone::Odd } else { Tone::Plain };
        let text = format!("{}: {}", state.limit.on(), use_of(state, printer));
        line(if number == 0 { "limits" } else { "" }, &text, tone);
    }
    let next = status.next.as_ref().map(|(name, at)| format!("{name} {}", printer.times.both(*at)));
    line("next", next.as_deref().unwrap_or("-"), Tone::Plain);
    let database = status.path.display();
    match &status.server {
        Some(server) => line("server", &format!("{database}, {server}"), Tone::Plain),
        None => {
            let file = bytes(status.file_bytes.unwrap_or_default());
            let log = status.log_bytes.filter(|size| *size > 0);
            let log = log.map(|size| format!("; write-ahead log {}", bytes(size))).unwrap_or_default();
            line("file", &format!("{database}, {file}{log}"), Tone::Plain);
            line("SQLite", &status.sqlite, Tone::Plain);
        }
    }
    line("time zones", &status.zone_data, Tone::Plain);
    Ok(printer.table(table, "")?)
}

fn scheduler(one: &Instance, printer: &Printer<'_>) -> (String, Tone) {
    let (state, tone) = match one.alive {
        Some(true) if one.degraded => ("alive, cannot write the database", Tone::Bad),
        Some(true) => ("alive", Tone::Good),
        Some(false) => ("dead, its runs are not yet recovered", Tone::Bad),
        None => ("unknown whether it is alive", Tone::Odd),
    };
    let seen = printer.times.relative(one.seen_at);
    let doubt = one.doubt.as_ref().map(|doubt| format!("; {doubt}")).unwrap_or_default();
    let workers = count_of(one.workers, "worker");
    let text = format!("{state}: pid {} on {}, {workers}, seen {seen}{doubt}", one.pid, one.host);
    (text, tone)
}

/// Joins counts: `2 active, 1 paused`.
fn counts(counts: impl Iterator<Item = (String, u64)>) -> String {
    let counts: Vec<String> = counts.map(|(word, count)| format!("{count} {word}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn count<T: PartialEq>(counts: &[(T, u64)], word: &T) -> u64 {
    counts.iter().find(|(one, _)| one == word).map_or(0, |(_, count)| *count)
}
