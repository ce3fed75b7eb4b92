//! `apply`: makes the tasks match a manifest, and shows what that changed.

use std::path::Path;

use duly::{Applied, Apply, Client, Done, Progress};
use serde::Serialize;

use crate::cli::args::ApplyArgs;
use crate::cli::failure::Failure;
use crate::manifest::{self, Manifest};
use crate::output::json::time;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};

/// Longest value that is shown of a field that changed.
const SHOWN: usize = 60;

/// What was done to a task, as JSON.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    name: &'a str,
    change: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field<'a>>,
    next_run: Option<String>,
}

#[derive(Serialize)]
struct Field<'a> {
    field: &'static str,
    stored: &'a str,
    given: &'a str,
}

pub(crate) fn apply(db: &Path, asked: &ApplyArgs, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let ApplyArgs { file, prune, allow_empty, adopt, dry_run } = asked;
    let how = Apply { prune: *prune, dry_run: *dry_run, adopt: *adopt };
    let manifest = printer.watched("reading", |_| manifest::read(file)).map_err(Failure::Refused)?;
    if how.prune && !allow_empty && manifest.tasks.is_empty() {
        let refusal =
            "declares no task, and --prune would remove all that it declared before: --allow-empty accepts that";
        return Err(Failure::Refused(format!("{} {refusal}", file.display())));
    }
    let client = if how.dry_run { Client::open_existing(db)? } else { Client::open_own(db)? };
    let applied = printer.watched("applying", |advance| of(&client, manifest, how, advance))?;
    if printer.json {
        return Ok(printer.document(&applied.iter().map(row).collect::<Vec<_>>())?);
    }
    if printer.quiet {
        return Ok(());
    }
    let table = table(&applied, printer);
    printer.table(table, "the manifest declares no task")?;
    let would = if how.dry_run { "nothing was written: this would be " } else { "" };
    printer.say(format!("{would}{}", sums(&applied)))?;
    Ok(())
}

/// What was done to each task, and in what it differs now.
pub(crate) fn table(applied: &[Applied], printer: &Printer<'_>) -> Table {
    let mut table = Table::default();
    for one in applied {
        let (word, tone) = word(&one.done);
        let next = one.next_run.map(|next| printer.times.both(next)).unwrap_or_default();
        table.row([Cell::new(word, tone), Cell::from(one.name.as_str()), Cell::from(next)]);
        if let Done::Replaced { fields } = &one.done {
            for (field, stored, given) in fields {
                let change = format!("{field}: {} became {}", shown(stored), shown(given));
                table.row([Cell::from(""), Cell::new(&change, Tone::Faint)]);
            }
        }
    }
    table
}

/// Applies what was read.
pub(crate) fn of(client: &Client, manifest: Manifest, how: Apply, advance: &Progress) -> Result<Vec<Applied>, Failure> {
    Ok(client.apply_watched(&manifest.name, manifest.tasks, how, advance)?)
}

/// How many of each: `2 added, 1 unchanged`.
pub(crate) fn sums(applied: &[Applied]) -> String {
    let said = ["added", "changed", "unchanged", "removed", "paused until its run has ended", "left, not declared"];
    let count = |wanted: &str| applied.iter().filter(|one| word(&one.done).0 == wanted).count();
    let counts = ["added", "changed", "unchanged", "removed", "paused", "left"].map(count);
    let said = counts.iter().zip(said).filter(|(count, _)| **count > 0);
    let said: Vec<String> = said.map(|(count, said)| format!("{count} {said}")).collect();
    if said.is_empty() { "nothing to do".to_owned() } else { said.join(", ") }
}

fn word(done: &Done) -> (&'static str, Tone) {
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

/// What was done to a task, as JSON.
pub(crate) fn row(applied: &Applied) -> Row<'_> {
    let fields = match &applied.done {
        Done::Replaced { fields } => fields.as_slice(),
        _ => &[],
    };
    let fields = fields.iter().map(|(field, stored, given)| Field { field, stored, given }).collect();
    Row { name: &applied.name, change: word(&applied.done).0, fields, next_run: applied.next_run.map(time) }
}

/// A value, shortened; nothing where there is none.
fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        _ if value.is_empty() => "nothing".to_owned(),
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
