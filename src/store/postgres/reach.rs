//! Which rows an operation may read or change: those that it names, and those that its rules look at from there.

mod around;
pub(crate) mod client;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use crate::store::fault::Fault;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::reach::view::View;
use crate::store::postgres::tables::TABLES;
use crate::store::postgres::workbench::Workbench;

/// The rows that an operation needs.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// All rows of all tables.
    Everything,
    /// Those of a request of a client or a worker.
    Client(Request),
    /// Those of a look-up.
    View(View),
}

impl Reach {
    pub(crate) fn everything() -> Self {
        Reach::Everything
    }

    /// Reads the rows into the workbench, within the open transaction.
    pub(crate) fn read(&self, bench: &mut Workbench) -> Result<(), Fault> {
        match self {
            Reach::Client(request) => request.read(bench),
            Reach::View(view) => view.read(bench),
            Reach::Everything => TABLES.into_iter().try_for_each(|table| bench.read(table, "", &[]).map(|_| ())),
        }
    }
}

impl From<Request> for Reach {
    fn from(request: Request) -> Self {
        Reach::Client(request)
    }
}

impl From<View> for Reach {
    fn from(view: View) -> Self {
        Reach::View(view)
    }
}
