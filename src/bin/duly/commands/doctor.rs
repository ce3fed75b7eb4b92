//! `doctor`: checks the integrity of the database. If it is sound, time zones are named whose tasks other rules have planned: that is no
//! damage.

use std::path::Path;

use duly::text::database_name::is_address;
use duly::{Client, Limits, ProblemKind};
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
    let mut zones = if findings.is_empty() { client.check(&Limits::default())? } else { Vec::new() };
    zones.retain(|problem| problem.kind == ProblemKind::ZoneData);
    if printer.json {
        let rows = findings.iter().map(|one| Row { rule: one.rule, found: &one.found });
        let of_zones = zones.iter().map(|one| Row { rule: one.kind.as_str(), found: &one.found });
        printer.document(&rows.chain(of_zones).collect::<Vec<_>>())?;
    } else {
        findings.iter().try_for_each(|finding| printer.line(finding))?;
        zones.iter().try_for_each(|problem| printer.line(problem))?;
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
