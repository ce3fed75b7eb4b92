//! `show`: prints one task, with its policies, next occurrences and last runs.

use duly::{Client, Task, TaskDetails, Timestamp, duration_text};

use crate::cli::failure::Failure;
use crate::commands::add::occurrence_table;
use crate::commands::history;
use crate::commands::limit::{is_reached, use_of};
use crate::commands::list::{next, recent_tone, schedule, task_tone};
use crate::exec::COMMAND_TIMEOUT;
use crate::exec::payload::Payload;
use crate::output::printer::Printer;
use crate::output::sparkline::spark;
use crate::output::table::{Cell, Table, Tone};
use crate::output::units::being_marked;

pub(crate) fn show(client: &Client, name: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let details = client.task_details(name)?;
    if printer.json {
        return Ok(printer.document(&details)?);
    }
    let TaskDetails { task, occurrences, recent, runs, limits, marked_runs, .. } = details;
    let mut table = summary(&task, marked_runs, printer);
    for state in &limits {
        let tone = if is_reached(state) { Tone::Odd } else { Tone::Plain };
        let text = format!("{}: {}", state.limit.on(), use_of(state, printer));
        table.row([Cell::new("limit", Tone::Faint), Cell::new(&text, tone)]);
    }
    if !recent.is_empty() {
        table.row([
            Cell::new("last runs", Tone::Faint),
            Cell::new(&spark(&recent, printer.heights), recent_tone(&recent)),
        ]);
    }
    printer.table(table, "")?;
    let occurrences = occurrence_table(&task, &occurrences, printer);
    if !occurrences.is_empty() {
        printer.line("")?;
        printer.table(occurrences, "")?;
    }
    printer.line("")?;
    if runs.is_empty() {
        printer.line("no runs yet")?;
    } else {
        let table = history::table(&runs, printer);
        printer.table(table, "")?;
    }
    Ok(())
}

fn summary(task: &Task, marked_runs: Option<usize>, printer: &Printer<'_>) -> Table {
    let (definition, times) = (&task.definition, &printer.times);
    let at = |at: Option<Timestamp>| at.map(|at| times.both(at));
    let retry = definition.retry;
    let attempts = match retry.max_attempts {
        1 => "1: at most once".to_owned(),
        several => {
            format!("{several}, backoff {} to {}", duration_text(retry.backoff), duration_text(retry.max_backoff))
        }
    };
    let timeout = match definition.timeout {
        None if definition.handler == "command" => format!("{} (default)", duration_text(COMMAND_TIMEOUT)),
        None => "default of the handler".to_owned(),
        Some(limit) if limit.is_zero() => "none".to_owned(),
        Some(limit) => duration_text(limit),
    };
    let failures = (task.failure_count > 0).then(|| format!("{} consecutive dead", task.failure_count));
    let mut table = Table::default();
    let mut row = |name: &str, value: Option<String>, tone: Tone| {
        if let Some(value) = value {
            table.row([Cell::new(name, Tone::Faint), Cell::new(&value, tone)]);
        }
    };
    let plain = Tone::Plain;
    row("name", Some(definition.name.clone()), plain);
    let marked = marked_runs.map(|runs| format!("; {}", being_marked(runs))).unwrap_or_default();
    row("status", Some(format!("{}{marked}", task.status)), task_tone(task.status));
    row("invalid", task.invalid_reason.clone(), Tone::Bad);
    row("paused by", task.paused_by.clone(), plain);
    row("schedule", Some(schedule(task)), plain);
    row("in words", task.understood(), plain);
    row("next", task.next_run.is_none().then(|| next(task, times)), plain);
    row("starts at", at(definition.starts_at), plain);
    row("ends at", at(definition.ends_at), plain);
    row("only between", definition.only_between.clone(), plain);
    row("only on", definition.only_on.clone(), plain);
    row("except", definition.except_on.clone(), plain);
    row("handler", Some(definition.handler.clone()), plain);
    action(task).into_iter().for_each(|(name, value)| row(name, Some(value), plain));
    row("overlap", Some(definition.overlap.to_string()), plain);
    row("misfire", Some(format!("{} after {}", definition.misfire, duration_text(definition.misfire_grace))), plain);
    row("catch-up limit", Some(definition.catch_up_limit.to_string()), plain);
    row("expires", definition.expires.map(duration_text), plain);
    row("attempts", Some(attempts), plain);
    row("timeout", Some(timeout), plain);
    row("jitter", (!definition.jitter.is_zero()).then(|| duration_text(definition.jitter)), plain);
    row("priority", Some(definition.priority.to_string()), plain);
    row("key", definition.concurrency_key.clone(), plain);
    row("on dead", definition.on_dead.clone(), plain);
    row("on success", definition.on_success.clone(), plain);
    row("on end", definition.on_end.clone(), plain);
    row("on missed", definition.on_missed.clone(), plain);
    row("pause after", definition.pause_after_failures.map(|runs| format!("{runs} consecutive dead runs")), plain);
    row("managed by", definition.managed_by.clone(), plain);
    row("failures", failures, Tone::Bad);
    row("last error", task.last_error.clone(), Tone::Odd);
    row("created", at(Some(task.created_at)), plain);
    row("updated", (task.updated_at != task.created_at).then(|| times.both(task.updated_at)), plain);
    table
}

/// What the task runs: a command, quoted for a shell, or the payload of a handler.
fn action(task: &Task) -> Vec<(&'static str, String)> {
    let definition = &task.definition;
    let payload = vec![("payload", definition.payload.clone())];
    if definition.handler != "command" {
        return payload;
    }
    Payload::parse(&definition.payload).map_or(payload, |command| command.in_words())
}
