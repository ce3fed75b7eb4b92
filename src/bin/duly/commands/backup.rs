//! `backup`: the whole file, copied while it is in use.

use std::path::Path;

use duly::Client;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::sizes::bytes;

#[derive(Serialize)]
struct Document {
    file: String,
    file_bytes: u64,
    running: usize,
}

pub(crate) fn backup(client: &Client, file: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let made = printer.watched("copying", |advance| client.backup_watched(file, advance))?;
    let (file, file_bytes, running) = (made.path.display().to_string(), made.bytes, made.running);
    if printer.json {
        return Ok(printer.document(&Document { file, file_bytes, running })?);
    }
    printer.say(format!("copied to {file}, {}", bytes(file_bytes)))?;
    if running > 0 {
        printer
            .say(format!("runs at work: {running}; a scheduler on the copy takes them for lost, after its lease"))?;
    }
    printer.say("a scheduler on the copy is a second one: stop the first before you start it, or all runs twice")?;
    Ok(())
}
