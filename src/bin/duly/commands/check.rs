//! `check`: prints one line for each problem, for monitoring; nothing if there is none.

use duly::{Client, Limits};

use crate::cli::failure::Failure;
use crate::output::printer::Printer;
use crate::output::units::count_of;

pub(crate) fn check(client: &Client, limits: &Limits, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let problems = client.check(limits)?;
    if printer.json {
        printer.document(&problems)?;
    } else {
        problems.iter().try_for_each(|problem| printer.line(problem))?;
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::Unsuccessful(count_of(count, "problem"))),
    }
}
