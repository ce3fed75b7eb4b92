//! Which rows an operation may read or change: those that it names, and those that its rules look at from there.

use crate::store::fault::Fault;
use crate::store::postgres::tables::TABLES;
use crate::store::postgres::workbench::Workbench;

/// The rows that an operation needs.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// All rows of all tables.
    Everything,
}

impl Reach {
    pub(crate) fn everything() -> Self {
        Reach::Everything
    }

    /// Reads the rows into the workbench, within the open transaction.
    pub(crate) fn read(&self, bench: &mut Workbench) -> Result<(), Fault> {
        match self {
            Reach::Everything => TABLES.into_iter().try_for_each(|table| bench.read(table, "", &[]).map(|_| ())),
        }
    }
}
