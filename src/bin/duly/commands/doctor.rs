//! `doctor`: checks the integrity of the database.

use duly::Client;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::count_of;

#[derive(Serialize)]
struct Row<'a> {
    rule: &'a str,
    found: &'a str,
}

pub(crate) fn doctor(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let findings = client.doctor()?;
    if printer.json {
        let rows = findings.iter().map(|one| Row { rule: one.rule, found: &one.found });
        printer.document(&rows.collect::<Vec<_>>())?;
    } else {
        findings.iter().try_for_each(|finding| printer.line(finding))?;
    }
    if findings.is_empty() {
        return Ok(printer.say("no damage found: pages, indexes and the rules of duly are intact")?);
    }
    let count = count_of(findings.len(), "finding");
    let advice = "stop the scheduler, keep a copy of the file, restore a backup, and report it; duly repairs nothing";
    Err(Failure::Unsuccessful(format!("the database is damaged ({count}): {advice}")))
}
