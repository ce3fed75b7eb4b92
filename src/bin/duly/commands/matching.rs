//! `cancel`, `retry`, `remove`, `pause` and `resume` of all that a filter selects.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use duly::{BulkAction, BulkReport, Client, Error, Filter};
use serde::Serialize;

use crate::cli::change_args::Matching;
use crate::cli::failure::Failure;
use crate::cli::signals;
use crate::commands::history::day_or_age;
use crate::output::printer::Printer;
use crate::output::units::count_of;

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
            printer.line(format!("dry run, nothing was changed; {}", report.would(action)))?;
            return print_left(action, &report, printer);
        }
        if !ask(action, &report, printer)? {
            return Ok(());
        }
    }
    let (other, selected, end) = (client.clone(), filter.clone(), printer.end);
    let interrupted = Arc::new(AtomicBool::new(false));
    let is_interrupted = interrupted.clone();
    // On its own thread, which ends the process: the transaction that is open is rolled back.
    signals::forward(move |_| {
        interrupted.store(true, Ordering::SeqCst);
        let left = other.count_matching(action, &selected).map(|left| action.counted(left.changed));
        let left =
            left.map_or_else(|_| "it is not known how many are left".to_owned(), |left| format!("{left} are left"));
        end(&format!("interrupted: {left}; repeat the command to do the rest"));
        true
    })?;
    let changed = client.change_matching(action, filter);
    // It waited for a lock, and gave up while the other thread counts what is left: one of them reports that.
    while changed.is_err() && is_interrupted.load(Ordering::SeqCst) {
        thread::park();
    }
    let report = changed.map_err(|error| partly(error, client, action, filter))?;
    if printer.json {
        printer.document(&Document { action, dry_run: false, report: &report })?;
        return unfulfilled(action, &report);
    }
    printer.say(report.done(action))?;
    print_left(action, &report, printer)?;
    unfulfilled(action, &report)
}

/// Fails if what matches was not removed: a script must not go on as if it were gone. Other actions leave what needs none.
fn unfulfilled(action: BulkAction, report: &BulkReport) -> Result<(), Failure> {
    match (action, report.left_count()) {
        (BulkAction::Remove, left @ 1..) => {
            Err(Failure::Unsuccessful(format!("not removed: {}", count_of(left, action.noun()))))
        }
        _ => Ok(()),
    }
}

/// Adds to an error how many are left.
fn partly(error: Error, client: &Client, action: BulkAction, filter: &Filter) -> Failure {
    match client.count_matching(action, filter) {
        Ok(left) if left.changed > 0 => {
            let left = action.counted(left.changed);
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
        return Err(Failure::Refused(format!("not confirmed: {}; {advice}", report.would(action))));
    }
    if report.changed == 0 {
        printer.say(report.would(action))?;
        print_left(action, report, printer)?;
        return Ok(false);
    }
    printer.line(report.would(action))?;
    print_left(action, report, printer)?;
    write!(printer.out, "{action} {}? [y/N] ", action.counted(report.changed))?;
    printer.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(true);
    }
    Err(Failure::Unsuccessful("not confirmed: nothing was changed".to_owned()))
}

/// Prints what is left as it is, a line for each reason.
fn print_left(action: BulkAction, report: &BulkReport, printer: &mut Printer<'_>) -> Result<(), Failure> {
    for left in &report.left {
        printer.line(format!("not changed: {}", left.text(action)))?;
    }
    Ok(())
}
