//! `migrate`: copies the database from a file to a server, or back.

use std::path::Path;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;

pub(crate) fn migrate(from: &Path, to: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let migrated = printer.watched("migrating", |progress| duly::migrate(from, to, progress))?;
    if printer.json {
        return Ok(printer.document(&migrated)?);
    }
    let duly::Migrated { tasks, runs, others, replaced, .. } = migrated;
    printer.say(format!("migrated {tasks} tasks, {runs} runs and {others} other rows; the copy was compared with the source, and is equal"))?;
    if replaced > 0 {
        printer.say(format!(
            "texts with U+FFFD in place of what PostgreSQL cannot store (U+0000, malformed UTF-8, halves of surrogate pairs): {replaced}"
        ))?;
    }
    printer.say("start schedulers on the target only: one on the source would run each task once more")?;
    Ok(())
}
