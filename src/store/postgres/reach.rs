//! Which rows an operation may read or change: those that it names, and those that its rules look at from there.

mod around;
pub(crate) mod client;
#[cfg(test)]
mod tests;
#[cfg(feature = "page")]
mod timeline;
mod turn;
pub(crate) mod view;

use crate::store::fault::Fault;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::reach::view::View;
use crate::store::postgres::sheets::Difference;
use crate::store::postgres::sheets::Sheets;
use crate::store::postgres::text::refuse;

#[cfg(test)]
pub(crate) use turn::IDS as TURN;
pub(crate) use turn::TurnReach;

/// The rows that an operation needs.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// All rows of all tables.
    Everything,
    /// Those of a request of a client or a worker.
    Client(Request),
    /// Those of a look-up.
    View(View),
    /// Those of a turn.
    Turn(Box<TurnReach>),
}

impl Reach {
    /// Refuses what no row can hold: the server refuses to look for it.
    pub(super) fn refuse_unstorable(&self) -> Result<(), Fault> {
        match self {
            Reach::Client(request) => request.names().into_iter().try_for_each(|(field, name)| refuse(field, name)),
            Reach::View(view) => view.names().into_iter().try_for_each(|(field, name)| refuse(field, name)),
            Reach::Turn(_) | Reach::Everything => Ok(()),
        }
    }

    /// Reads the rows into the workbench, within the open transaction.
    pub(super) fn read(&mut self, bench: &mut Sheets) -> Result<(), Fault> {
        match self {
            Reach::Everything => bench.read_everything(),
            Reach::Turn(turn) => turn.read(bench),
            Reach::Client(request) => request.read(bench),
            Reach::View(view @ View::Alarms { .. }) => {
                bench.read_numbers()?;
                view.read(bench)
            }
            // A look-up assigns no number.
            Reach::View(view) => view.read(bench),
        }
    }

    /// Returns whether the rules looked at no other rows than those that were read. If not, the reach is wider the next time.
    pub(super) fn was_enough(&mut self, differences: &[Difference<'_>]) -> bool {
        match self {
            Reach::Turn(turn) => turn.was_enough(differences),
            Reach::Client(_) | Reach::View(_) | Reach::Everything => true,
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
