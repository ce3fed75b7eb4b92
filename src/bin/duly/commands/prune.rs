//! `prune`: what is long over goes at once.

use duly::{Client, Pruned, Retention};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;

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
        printer.watched("counting", |advance| client.would_prune_watched(keep, advance))?
    } else {
        printer.watched("pruning", |advance| client.prune_watched(keep, advance))?
    };
    if printer.json {
        let Pruned { tasks, runs, events, instances, .. } = pruned;
        return Ok(printer.document(&Document { dry_run, tasks, runs, events, instances })?);
    }
    let sums = sums(&pruned);
    Ok(printer.say(match (sums.is_empty(), dry_run) {
        (true, _) => "nothing is long over".to_owned(),
        (false, true) => format!("nothing was removed: it would be {sums}"),
        (false, false) => format!("removed: {sums}"),
    })?)
}

/// How many of each: `2 tasks that were due once, 310 runs`.
fn sums(pruned: &Pruned) -> String {
    let counts = [
        (pruned.tasks, "task that was due once", "tasks that were due once"),
        (pruned.runs, "run", "runs"),
        (pruned.events, "event", "events"),
        (pruned.instances, "scheduler that had stopped", "schedulers that had stopped"),
    ];
    let told = counts.iter().filter(|(count, ..)| *count > 0);
    let told = told.map(|(count, one, several)| format!("{count} {}", if *count == 1 { one } else { several }));
    told.collect::<Vec<_>>().join(", ")
}
