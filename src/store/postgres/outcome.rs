//! What has become of a transaction whose commit was not answered.

use crate::store::fault::{Class, Fault};
use crate::store::postgres::session::{Session, Timeline};

/// The number of a transaction, and where it was given.
#[derive(Clone, Debug)]
pub(crate) struct Number {
    pub(crate) id: String,
    pub(crate) timeline: Timeline,
    /// See [`Session::since`].
    pub(crate) since: String,
}

pub(crate) enum Outcome {
    Committed,
    Undone,
}

/// The first number that the server gives after the recovery from a crash: the checkpoint at its end names it.
const GIVEN_AGAIN: &str =
    "(SELECT split_part(next_xid, ':', 1)::bigint * 4294967296 + split_part(next_xid, ':', 2)::bigint
                             FROM pg_control_checkpoint())";

impl Number {
    /// Returns the question for the session. Fails where the number means another transaction, or none: see SPEC S11.6.
    pub(crate) fn question(&self, session: &Session) -> Result<String, Fault> {
        let id = &self.id;
        if session.timeline != self.timeline {
            return Err(
                self.lost(&format!("it was begun on {}, and the server continues {}", self.timeline, session.timeline))
            );
        }
        let status = format!("coalesce(pg_xact_status('{id}'::xid8), 'forgotten')");
        // After a crash, the server gives the numbers again of which the disk knows nothing.
        let crashed = session.since != self.since;
        Ok(match crashed {
            false => format!("SELECT {status}"),
            true => format!("SELECT CASE WHEN {id} >= {GIVEN_AGAIN} THEN 'aborted' ELSE {status} END"),
        })
    }

    /// Reads the answer; `None` while the server has not noticed that its client is gone.
    pub(crate) fn outcome(&self, status: &str) -> Result<Option<Outcome>, Fault> {
        match status {
            "committed" => Ok(Some(Outcome::Committed)),
            "aborted" => Ok(Some(Outcome::Undone)),
            "in progress" => Ok(None),
            other => Err(self.lost(&format!("the server says that it is {other:?}"))),
        }
    }

    /// The fault of an outcome that cannot be known.
    pub(crate) fn lost(&self, reason: &str) -> Fault {
        let text = format!(
            "the connection broke during the commit of transaction {}, and whether it was committed is unknown: {reason}",
            self.id
        );
        Fault::Store(Class::Lost, text.into())
    }
}
