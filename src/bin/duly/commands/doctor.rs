//! `doctor`: checks the integrity of the database.

use std::path::Path;

use duly::Client;
use duly::text::database_name::is_address;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::count_of;

#[derive(Serialize)]
struct Row<'a> {
    rule: &'a str,
    found: &'a str,
}

pub(crate) fn doctor(db: &Path, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let findings = client.doctor()?;
    if printer.json {
        let rows = findings.iter().map(|one| Row { rule: one.rule, found: &one.found });
        printer.document(&rows.collect::<Vec<_>>())?;
    } else {
        findings.iter().try_for_each(|finding| printer.line(finding))?;
    }
    if findings.is_empty() {
        let intact = if is_address(db) { "sequences" } else { "pages, indexes" };
        return Ok(printer.say(format!("no damage found: {intact} and the rules of duly are intact"))?);
    }
    let count = count_of(findings.len(), "finding");
    let copy = if is_address(db) { "a dump of the schema" } else { "a copy of the file" };
    let advice = format!("stop the scheduler, keep {copy}, restore a backup, and report it; duly repairs nothing");
    Err(Failure::Unsuccessful(format!("the database is damaged ({count}): {advice}")))
}
