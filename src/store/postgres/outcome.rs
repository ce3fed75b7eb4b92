//! What has become of a transaction whose commit was not answered.
//!
//! The server tells it by the number of the transaction. After a crash it may give the number again: then only a row that the
//! transaction has written proves that it was committed. Without proof the outcome is unknown, never undone.

use crate::store::fault::{Class, Fault};
use crate::store::postgres::session::{Session, Timeline};

/// The number of a transaction, and where it was given.
#[derive(Clone, Debug)]
pub(crate) struct Number {
    pub(crate) id: String,
    pub(crate) timeline: Timeline,
    /// See [`Session::since`].
    pub(crate) since: String,
    pub(crate) proof: Option<Proof>,
}

/// A row that a transaction wrote, as it wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    pub(crate) table: &'static str,
    /// A condition on the row `t`.
    pub(crate) condition: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    Undone,
}

impl Number {
    /// Returns the question for the session, with the quoted name of the schema: the status of the transaction, and how many rows
    /// prove it. Fails where the number means another transaction, or none: see SPEC S11.6.
    pub(crate) fn question(&self, session: &Session, schema: &str) -> Result<String, Fault> {
        let id = &self.id;
        if session.timeline != self.timeline {
            return Err(
                self.lost(&format!("it was begun on {}, and the server continues {}", self.timeline, session.timeline))
            );
        }
        // A row has the lower half of the number.
        let proof = self.proof.as_ref().map_or_else(
            || "0".to_owned(),
            |Proof { table, condition }| {
                format!(
                    "(SELECT count(*) FROM {schema}.{table} t
                       WHERE {condition} AND t.xmin::text::bigint = {id} % 4294967296)"
                )
            },
        );
        Ok(format!("SELECT coalesce(pg_xact_status('{id}'::xid8), 'forgotten'), {proof}"))
    }

    /// Reads the answer; `None` while the server has not noticed that its client is gone.
    pub(crate) fn outcome(&self, session: &Session, status: &str, proofs: i64) -> Result<Option<Outcome>, Fault> {
        // Statistics begin anew after a crash, or because an administrator resets them.
        let may_have_crashed = session.since != self.since;
        match status {
            "in progress" => Ok(None),
            // Of a transaction that was committed, the number is not given again.
            "aborted" => Ok(Some(Outcome::Undone)),
            "committed" if !may_have_crashed => Ok(Some(Outcome::Committed)),
            "committed" | "forgotten" if proofs > 0 => Ok(Some(Outcome::Committed)),
            "committed" => Err(self.lost("the server may have crashed and given its number again")),
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
