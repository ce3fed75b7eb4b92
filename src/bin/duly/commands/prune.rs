//! `prune`: deletes expired history.

use duly::{Client, Pruned, Retention};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::count_of;

#[derive(Serialize)]
struct Document {
    dry_run: bool,
    tasks: usize,
    runs: usize,
    events: usize,
    instances: usize,
}

pub(crate) fn prune(client: &Client, keep: Retention, dry_run: bool, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let pruned = if dry_run {
        printer.watched("counting", |progress| client.would_prune_watched(keep, progress))?
    } else {
        printer.watched("pruning", |progress| client.prune_watched(keep, progress))?
    };
    if printer.json {
        let Pruned { tasks, runs, events, instances, .. } = pruned;
        return Ok(printer.document(&Document { dry_run, tasks, runs, events, instances })?);
    }
    let summary = summary(&pruned);
    Ok(printer.say(match (summary.is_empty(), dry_run) {
        (true, _) => "nothing has expired".to_owned(),
        (false, true) => format!("dry run, nothing was deleted; would be: {summary}"),
        (false, false) => format!("deleted: {summary}"),
    })?)
}

/// Counts what was deleted: `2 completed one-time tasks, 310 runs`.
fn summary(pruned: &Pruned) -> String {
    let counts = [
        (pruned.tasks, "completed one-time task"),
        (pruned.runs, "run"),
        (pruned.events, "event"),
        (pruned.instances, "stopped scheduler"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, name)| count_of(*count, name)).collect::<Vec<_>>().join(", ")
}
