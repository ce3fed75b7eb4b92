//! `cancel`, `retry`, `remove`, `pause` and `resume` of all that a filter selects.

use std::io::{self, IsTerminal};

use duly::{BulkAction, BulkItem, BulkReport, Client, Error, Filter};
use serde::Serialize;

use crate::cli::change_args::Matching;
use crate::cli::failure::Failure;
use crate::commands::history::day_or_age;
use crate::output::printer::Printer;
use crate::output::units::{count_of, first_of};

/// Most examples in a line.
const SHOWN: usize = 3;

#[derive(Serialize)]
struct Document<'a> {
    action: BulkAction,
    dry_run: bool,
    #[serde(flatten)]
    report: &'a BulkReport,
}

/// Returns the filter without a status.
pub(crate) fn filter(args: &Matching, printer: &Printer<'_>) -> Result<Filter, Failure> {
    let mut filter = if args.all { Filter::all() } else { Filter::new() };
    if let Some(handler) = &args.handler {
        filter = filter.handler(handler);
    }
    if let Some(pattern) = &args.pattern {
        filter = filter.name(pattern.as_str());
    }
    if let Some(pattern) = &args.added_by {
        filter = filter.added_by(pattern.as_str());
    }
    if let Some(text) = &args.older_than {
        filter = filter.before(day_or_age("--older-than", text, &printer.times)?);
    }
    Ok(filter)
}

/// Prints what would change, or changes it once it is confirmed.
pub(crate) fn change(
    client: &Client,
    action: BulkAction,
    filter: &Filter,
    args: &Matching,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    if args.dry_run || !args.yes {
        let report = client.count_matching(action, filter)?;
        if args.dry_run && printer.json {
            return Ok(printer.document(&Document { action, dry_run: true, report: &report })?);
        }
        if args.dry_run {
            printer.line(format!("dry run, nothing was changed; {}", would(action, &report)))?;
            return print_left(action, &report, printer);
        }
        if !ask(action, &report, printer)? {
            return Ok(());
        }
    }
    let report = client.change_matching(action, filter).map_err(|error| partly(error, client, action, filter))?;
    if printer.json {
        return Ok(printer.document(&Document { action, dry_run: false, report: &report })?);
    }
    printer.say(done(action, &report))?;
    print_left(action, &report, printer)
}

/// Adds to an error how many are left.
fn partly(error: Error, client: &Client, action: BulkAction, filter: &Filter) -> Failure {
    match client.count_matching(action, filter) {
        Ok(left) if left.changed > 0 => {
            let left = counted(action, left.changed);
            Failure::Advised(error, format!("; {left} are left: repeat the command to do the rest"))
        }
        _ => Failure::Duly(error),
    }
}

/// Prints what would change and asks the user. Returns `false` if nothing would change. Fails without a confirmation.
fn ask(action: BulkAction, report: &BulkReport, printer: &mut Printer<'_>) -> Result<bool, Failure> {
    // Cells are wrapped exactly if the output is a terminal.
    if printer.json || !io::stdin().is_terminal() || !printer.layout.wraps {
        let advice = "without a terminal or with --json, --yes confirms it, and --dry-run only shows it";
        return Err(Failure::Refused(format!("not confirmed: {}; {advice}", would(action, report))));
    }
    if report.changed == 0 {
        printer.say(would(action, report))?;
        print_left(action, report, printer)?;
        return Ok(false);
    }
    printer.line(would(action, report))?;
    print_left(action, report, printer)?;
    write!(printer.out, "{action} {}? [y/N] ", counted(action, report.changed))?;
    printer.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(true);
    }
    Err(Failure::Unsuccessful("not confirmed: nothing was changed".to_owned()))
}

/// What would be done: `would cancel 310 runs, of which 2 are running: run 1 of a, run 2 of b, run 3 of c and 307 more`.
fn would(action: BulkAction, report: &BulkReport) -> String {
    if report.changed == 0 {
        return format!("would {action} no {}", action.noun());
    }
    let running = running(report).map(|are| format!(", of which {are}")).unwrap_or_default();
    let examples = examples(&report.examples, report.changed);
    format!("would {action} {}{running}: {examples}", counted(action, report.changed))
}

/// What was done.
fn done(action: BulkAction, report: &BulkReport) -> String {
    let done = match action {
        BulkAction::Cancel => "cancelled",
        BulkAction::Retry => "retried",
        BulkAction::Remove => "removed",
        BulkAction::Pause => "paused",
        _ => "resumed",
    };
    match (report.changed, running(report)) {
        (0, _) => format!("{done} no {}", action.noun()),
        (changed, None) => format!("{done} {}", counted(action, changed)),
        (changed, Some(are)) => format!("{done} {}, of which {are} and asked to stop", counted(action, changed)),
    }
}

/// The number of runs or tasks, with what else goes: `2 tasks and their history`.
fn counted(action: BulkAction, count: usize) -> String {
    let history = match (action, count) {
        (BulkAction::Remove, 1) => " and its history",
        (BulkAction::Remove, _) => " and their history",
        _ => "",
    };
    format!("{}{history}", count_of(count, action.noun()))
}

/// How many of the runs are running.
fn running(report: &BulkReport) -> Option<String> {
    match report.asked {
        0 => None,
        1 => Some("1 is running".to_owned()),
        several => Some(format!("{several} are running")),
    }
}

/// Prints what is left as it is, a line for each reason.
fn print_left(action: BulkAction, report: &BulkReport, printer: &mut Printer<'_>) -> Result<(), Failure> {
    for left in &report.left {
        let (count, examples) = (count_of(left.count, action.noun()), examples(&left.examples, left.count));
        printer.line(format!("not changed: {count}: {}: {examples}", left.reason))?;
    }
    Ok(())
}

/// A few of the items.
fn examples(items: &[BulkItem], count: usize) -> String {
    first_of(items.iter().map(ToString::to_string), SHOWN, count)
}
