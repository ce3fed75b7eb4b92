//! `apply`: makes the tasks match a manifest, and prints the changes.

use std::path::Path;

use duly::{Applied, Apply, Client, Done, Error, Progress, Timestamp};
use serde::Serialize;

use crate::cli::args::ApplyArgs;
use crate::cli::failure::Failure;
use crate::manifest::{self, Manifest};
use crate::output::printer::{Each, Printer};
use crate::output::table::{Cell, Table, Tone};
use crate::output::units::count_of;

/// Most characters of a value that is printed.
const MAX_VALUE: usize = 60;

/// The change of a task, as JSON.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    name: &'a str,
    change: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field<'a>>,
    next_run: Option<Timestamp>,
}

#[derive(Serialize)]
struct Field<'a> {
    field: &'static str,
    stored: &'a str,
    given: &'a str,
}

pub(crate) fn apply(db: &Path, args: &ApplyArgs, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let ApplyArgs { file, prune, allow_empty, adopt, dry_run } = args;
    let options = Apply { prune: *prune, dry_run: *dry_run, adopt: *adopt };
    let manifest = printer.watched("reading", |_| manifest::read(file)).map_err(Failure::Refused)?;
    if options.prune && !allow_empty && manifest.tasks.is_empty() {
        let refusal = "declares no task, and --prune would remove all tasks that it declared before: add --allow-empty to do that";
        return Err(Failure::Refused(format!("{} {refusal}", file.display())));
    }
    let workers: Vec<String> = manifest.workers.iter().map(|worker| worker.name.clone()).collect();
    let client = if options.dry_run { Client::open_existing(db)? } else { Client::open_own(db)? };
    let applied = printer.watched("applying", |progress| apply_manifest(&client, manifest, options, progress))?;
    if printer.json {
        return Ok(printer.document(&Each(applied.iter().map(row)))?);
    }
    if printer.quiet {
        return Ok(());
    }
    let table = table(&applied, printer);
    printer.table(table, "the manifest declares no task")?;
    let prefix = if options.dry_run { DRY_RUN } else { "" };
    printer.say(format!("{prefix}{}", summary(&applied)))?;
    if !workers.is_empty() {
        let (count, names) = (count_of(workers.len(), "worker"), workers.join(", "));
        printer
            .say(format!("{count} checked, not started ({names}): duly run --tasks {} starts them", file.display()))?;
    }
    Ok(())
}

/// Begins the summary of a dry run.
pub(crate) const DRY_RUN: &str = "dry run, nothing was written; would be: ";

/// The change of each task as a table, with the fields that differ.
pub(crate) fn table(applied: &[Applied], printer: &Printer<'_>) -> Table {
    let mut table = Table::default();
    for one in applied {
        let (word, tone) = change(&one.done);
        let next = one.next_run.map(|next| printer.times.both(next)).unwrap_or_default();
        table.row([Cell::new(word, tone), Cell::from(one.name.as_str()), Cell::from(next)]);
        if let Done::Replaced { fields } = &one.done {
            for (field, stored, given) in fields {
                let change = format!("{field}: {} -> {}", value(stored), value(given));
                table.row([Cell::from(""), Cell::new(&change, Tone::Faint)]);
            }
        }
    }
    table
}

pub(crate) fn apply_manifest(
    client: &Client,
    manifest: Manifest,
    options: Apply,
    progress: &Progress,
) -> Result<Vec<Applied>, Failure> {
    let Manifest { name, tasks, limits, .. } = manifest;
    client.apply_with_limits(&name, tasks, limits, options, progress).map_err(|error| partly(error, progress))
}

/// Adds to an error how many tasks are applied all the same.
pub(crate) fn partly(error: Error, progress: &Progress) -> Failure {
    match (progress.done(), progress.total()) {
        (0, _) => Failure::Duly(error),
        (done, total) => Failure::Advised(
            error,
            format!("; {done} of {total} tasks are done and stay so: repeat the command to do the rest"),
        ),
    }
}

/// Counts the changes: `2 added, 1 unchanged`.
pub(crate) fn summary(applied: &[Applied]) -> String {
    let labels = [
        ("added", "added"),
        ("changed", "changed"),
        ("unchanged", "unchanged"),
        ("removed", "removed"),
        ("paused", "paused while a run is running (apply again to remove)"),
        ("left", "left, no longer declared (--prune removes)"),
    ];
    let counts = labels.map(|(word, label)| (applied.iter().filter(|one| change(&one.done).0 == word).count(), label));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, label)| format!("{count} {label}")).collect();
    if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") }
}

fn change(done: &Done) -> (&'static str, Tone) {
    match done {
        Done::Created => ("added", Tone::Good),
        Done::Replaced { .. } => ("changed", Tone::Odd),
        Done::Removed => ("removed", Tone::Bad),
        Done::Paused => ("paused", Tone::Bad),
        Done::Left => ("left", Tone::Faint),
        Done::Refused { .. } => ("refused", Tone::Bad),
        _ => ("unchanged", Tone::Faint),
    }
}

/// The change of a task, as JSON.
pub(crate) fn row(applied: &Applied) -> Row<'_> {
    let fields = match &applied.done {
        Done::Replaced { fields } => fields.as_slice(),
        _ => &[],
    };
    let fields = fields.iter().map(|(field, stored, given)| Field { field, stored, given }).collect();
    Row { name: &applied.name, change: change(&applied.done).0, fields, next_run: applied.next_run }
}

/// A value, shortened to one readable piece.
fn value(value: &str) -> String {
    match value.char_indices().nth(MAX_VALUE) {
        _ if value.is_empty() => "(none)".to_owned(),
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
