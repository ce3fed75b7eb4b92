//! Which rows an operation may read or change: those that it names, and those that its rules look at from there.

mod around;
pub(crate) mod client;
#[cfg(test)]
mod tests;
#[cfg(feature = "page")]
pub(super) mod timeline;
#[cfg(all(test, feature = "page"))]
mod timeline_tests;
mod turn;
pub(crate) mod view;

use std::collections::HashSet;

use crate::store::fault::Fault;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::reach::view::View;
use crate::store::postgres::sheets::{Cell, Difference, Sheets};
use crate::store::postgres::text::refuse;

pub(super) use around::FOLLOWERS;
#[cfg(test)]
pub(crate) use turn::IDS as TURN;
pub(crate) use turn::TurnReach;

/// The rows that an operation needs.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// All rows of all tables.
    Everything,
    /// Those of a request of a client or a worker, and what waits behind further keys: the rules went further than foreseen.
    Client(Request, Vec<String>),
    /// Those of a look-up.
    View(View),
    /// Those of a turn.
    Turn(Box<TurnReach>),
}

impl Reach {
    /// Refuses what no row can hold: the server refuses to look for it.
    pub(super) fn refuse_unstorable(&self) -> Result<(), Fault> {
        match self {
            Reach::Client(request, _) => request.names().into_iter().try_for_each(|(field, name)| refuse(field, name)),
            Reach::View(view) => view.names().into_iter().try_for_each(|(field, name)| refuse(field, name)),
            Reach::Turn(_) | Reach::Everything => Ok(()),
        }
    }

    /// Reads the rows into the workbench, within the open transaction.
    pub(super) fn read(&mut self, bench: &mut Sheets) -> Result<(), Fault> {
        match self {
            Reach::Everything => bench.read_everything(),
            Reach::Turn(turn) => turn.read(bench),
            Reach::Client(request, more_keys) => {
                request.read(bench)?;
                around::read_behind(bench, more_keys.clone())
            }
            Reach::View(view @ View::Alarms { .. }) => {
                bench.read_numbers()?;
                view.read(bench)
            }
            // A look-up assigns no number.
            Reach::View(view) => view.read(bench),
        }
    }

    /// Returns whether the rules looked at no other rows than those that were read. If not, the reach is wider the next time.
    /// `read`: the keys behind which a request has read.
    pub(super) fn was_enough(&mut self, differences: &[Difference<'_>], read: &HashSet<String>) -> bool {
        match self {
            Reach::Turn(turn) => turn.was_enough(differences),
            Reach::Client(_, more_keys) => {
                let unread = differences.iter().flat_map(|difference| unread_keys(difference, read));
                more_keys.extend(unread.collect::<Vec<_>>());
                more_keys.iter().all(|key| read.contains(key))
            }
            Reach::View(_) | Reach::Everything => true,
        }
    }
}

/// Returns the keys of changed runs of which others may start, or may not, and which were not read: which run starts, or may start,
/// depends on the runs of its key.
fn unread_keys(difference: &Difference<'_>, read: &HashSet<String>) -> Vec<String> {
    if difference.table().name != "task_runs" {
        return Vec::new();
    }
    let mut unread = Vec::new();
    for (before, after) in difference.changes(["concurrency_key", "blocked", "locked_by", "status"]) {
        let starts = *before[2] == Cell::Null && *after[2] != Cell::Null;
        if let Cell::Text(key) = after[0]
            && (starts || before[1] != after[1] || before[3] != after[3])
            && !read.contains(key)
        {
            unread.push(key.clone());
        }
    }
    unread
}

impl From<Request> for Reach {
    fn from(request: Request) -> Self {
        Reach::Client(request, Vec::new())
    }
}

impl From<View> for Reach {
    fn from(view: View) -> Self {
        Reach::View(view)
    }
}
