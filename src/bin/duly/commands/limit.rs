//! `limit`: lists, sets and removes limits on keys and handlers.

use duly::{Change, Client, Limit, LimitOn, LimitState, StartRate, duration_text};

use serde_json::json;

use crate::cli::failure::Failure;
use crate::cli::limit_args::{Action, Limits};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};

pub(crate) fn limit(client: &Client, limits: &Limits, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match &limits.action {
        None => list(client, printer),
        Some(Action::Set(set)) => {
            let on = set.on();
            let before = client.limits()?.into_iter().map(|state| state.limit).find(|limit| limit.on() == on);
            let limit = set.limit(before.as_ref()).map_err(Failure::Refused)?;
            let done = match client.set_limit(limit)? {
                Change::Created => "is set",
                Change::Unchanged => "is unchanged",
                _ => "is changed",
            };
            printer.say(format!("the limit on {on} {done}"))?;
            print_one(client, &on, printer)
        }
        Some(Action::Remove(on)) => {
            let on = on.on();
            if !client.remove_limit(&on)? {
                return Err(Failure::Refused(format!("{on} has no limit")));
            }
            if printer.json {
                let (key, handler) = match &on {
                    LimitOn::Key(key) => (Some(key), None),
                    LimitOn::Handler(handler) => (None, Some(handler)),
                    _ => (None, None),
                };
                return Ok(printer.document(&json!({ "concurrency_key": key, "handler": handler, "removed": true }))?);
            }
            Ok(printer.say(format!("the limit on {on} is removed"))?)
        }
    }
}

/// Prints a limit if JSON is requested.
fn print_one(client: &Client, on: &LimitOn, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match client.limits()?.iter().find(|state| state.limit.on() == *on) {
        Some(state) if printer.json => Ok(printer.document(state)?),
        _ => Ok(()),
    }
}

fn list(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let limits = client.limits()?;
    if printer.json {
        return Ok(printer.document(&limits)?);
    }
    let mut table = Table::default();
    for state in &limits {
        let on = state.limit.on().to_string();
        let managed_by = state.managed_by.as_deref().unwrap_or_default();
        let tone = if is_reached(state) { Tone::Odd } else { Tone::Plain };
        table.row([Cell::from(on), Cell::new(&use_of(state, printer), tone), Cell::new(managed_by, Tone::Faint)]);
    }
    Ok(printer.table(table, "there are no limits: each concurrency key runs one run at a time")?)
}

/// Whether the next run has to wait for the limit.
pub(crate) fn is_reached(state: &LimitState) -> bool {
    match state.limit {
        Limit::Key { running, .. } if state.used >= u64::from(running) => true,
        _ => state.next_start.is_some(),
    }
}

/// A limit and its use, in words: `3 of 3 running, 5 waiting`, `1 of 3 running, 4 of 20 starts in 1d, 0 waiting`.
pub(crate) fn use_of(state: &LimitState, printer: &Printer<'_>) -> String {
    let (used, waiting) = (state.used, state.waiting);
    let next = state.next_start.map(|at| format!(", next start {}", printer.times.relative(at))).unwrap_or_default();
    match &state.limit {
        Limit::Key { running, rate, .. } => {
            let starts = |rate: &StartRate| {
                format!(", {} of {} starts in {}", state.started, rate.starts, duration_text(rate.per))
            };
            let starts = rate.as_ref().map(starts).unwrap_or_default();
            format!("{used} of {running} running{starts}, {waiting} waiting{next}")
        }
        Limit::Rate { starts, per, .. } => {
            format!("{used} of {starts} starts in {}, {waiting} waiting{next}", duration_text(*per))
        }
        _ => String::new(),
    }
}
