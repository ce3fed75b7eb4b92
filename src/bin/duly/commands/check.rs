//! `check`: prints one line for each problem, for monitoring; nothing if there is none.

use duly::{Client, Limits};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::count_of;

#[derive(Serialize)]
struct Row<'a> {
    kind: &'a str,
    task: Option<&'a str>,
    run: Option<i64>,
    found: &'a str,
    advice: &'a str,
}

pub(crate) fn check(client: &Client, limits: &Limits, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let problems = client.check(limits)?;
    if printer.json {
        let rows = problems.iter().map(|one| Row {
            kind: one.kind.as_str(),
            task: one.task.as_deref(),
            run: one.run,
            found: &one.found,
            advice: &one.advice,
        });
        printer.document(&rows.collect::<Vec<_>>())?;
    } else {
        problems.iter().try_for_each(|problem| printer.line(problem))?;
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::Unsuccessful(count_of(count, "problem"))),
    }
}
