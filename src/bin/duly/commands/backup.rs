//! `backup`: copies the database, which may be in use.

use std::path::Path;

use duly::Client;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::bytes;

#[derive(Serialize)]
struct Document {
    file: String,
    file_bytes: u64,
    running: usize,
}

pub(crate) fn backup(client: &Client, file: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let backup = printer.watched("copying", |progress| client.backup_watched(file, progress))?;
    let (file, file_bytes, running) = (backup.path.display().to_string(), backup.bytes, backup.running);
    if printer.json {
        return Ok(printer.document(&Document { file, file_bytes, running })?);
    }
    printer.say(format!("copied to {file}, {}", bytes(file_bytes)))?;
    if running > 0 {
        printer.say(format!(
            "runs that were running: {running}; a scheduler on the copy counts them as lost after its lease"
        ))?;
    }
    printer.say("before you start a scheduler on the copy, stop the one on the original: else each task runs twice")?;
    Ok(())
}
