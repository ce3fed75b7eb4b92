//! `status`: prints schedulers, due and failing tasks, unfinished runs and the files.

use duly::{Client, Instance, LimitState, RunStatus, Status, TaskStatus};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::commands::limit::{is_reached, use_of};
use crate::commands::run_status::{MAX_RETRIES, next_retries, retry};
use crate::output::json::{millis, time};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::units::{bytes, count_of};

#[derive(Serialize)]
struct Document<'a> {
    schedulers: Vec<Scheduler<'a>>,
    tasks: serde_json::Map<String, serde_json::Value>,
    due: u64,
    overdue: u64,
    failing: &'a [String],
    runs: serde_json::Map<String, serde_json::Value>,
    waiting_for_clock_until: Option<String>,
    next_task: Option<&'a str>,
    next_run: Option<String>,
    limits: &'a [LimitState],
    file: String,
    file_bytes: u64,
    wal_bytes: u64,
    sqlite: &'a str,
    zone_data: String,
}

#[derive(Serialize)]
struct Scheduler<'a> {
    id: &'a str,
    host: &'a str,
    boot_id: Option<&'a str>,
    pid: u32,
    version: &'a str,
    workers: u32,
    lease_ms: u64,
    started_at: String,
    seen_at: String,
    alive: Option<bool>,
    doubt: Option<&'a str>,
    degraded: bool,
}

pub(crate) fn status(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let status = client.status()?;
    if printer.json {
        return Ok(printer.document(&document(&status))?);
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
    let sizes = format!("{}, {}; log {}", status.path.display(), bytes(status.file_bytes), bytes(status.log_bytes));
    line("file", &sizes, Tone::Plain);
    line("SQLite", status.sqlite, Tone::Plain);
    line("time zones", &status.zone_data.to_string(), Tone::Plain);
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

fn document(status: &Status) -> Document<'_> {
    // A program finds each status, also with a count of 0.
    let unfinished = RunStatus::ALL.iter().filter(|status| !status.is_final());
    let runs = unfinished.map(|word| (word.as_str(), count(&status.runs, word)));
    let tasks = TaskStatus::ALL.iter().map(|word| (word.as_str(), count(&status.tasks, word)));
    let map =
        |counts: Vec<(&str, u64)>| counts.into_iter().map(|(word, count)| (word.to_owned(), count.into())).collect();
    Document {
        schedulers: status.instances.iter().map(row).collect(),
        tasks: map(tasks.collect()),
        due: status.due,
        overdue: status.overdue,
        failing: &status.failing,
        runs: map(runs.chain([("blocked", status.blocked)]).collect()),
        waiting_for_clock_until: status.clock.as_ref().map(|wait| time(wait.until)),
        next_task: status.next.as_ref().map(|(name, _)| name.as_str()),
        next_run: status.next.as_ref().map(|(_, at)| time(*at)),
        limits: &status.limits,
        file: status.path.display().to_string(),
        file_bytes: status.file_bytes,
        wal_bytes: status.log_bytes,
        sqlite: status.sqlite,
        zone_data: status.zone_data.to_string(),
    }
}

fn count<T: PartialEq>(counts: &[(T, u64)], word: &T) -> u64 {
    counts.iter().find(|(one, _)| one == word).map_or(0, |(_, count)| *count)
}

fn row(one: &Instance) -> Scheduler<'_> {
    Scheduler {
        id: &one.id,
        host: &one.host,
        boot_id: one.boot_id.as_deref(),
        pid: one.pid,
        version: &one.version,
        workers: one.workers,
        lease_ms: millis(one.lease),
        started_at: time(one.started_at),
        seen_at: time(one.seen_at),
        alive: one.alive,
        doubt: one.doubt.as_deref(),
        degraded: one.degraded,
    }
}
