//! Commits. One whose answer was lost: the server is asked for its outcome.

use std::time::Duration;

use crate::clock::since_boot;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::connect::Haste;
use crate::store::postgres::fault;
use crate::store::postgres::outcome::{Number, Outcome};
use crate::store::postgres::server::{Access, Server, gone, odd};
use crate::store::postgres::session::{self, last, text};

/// How long the outcome of a commit is asked for: a restart of the server takes at most as long.
const LONGEST: Duration = Duration::from_secs(20);
/// The waits between two questions.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long a connection and each answer may take.
const HASTE: Duration = Duration::from_secs(2);

impl Server {
    /// Commits. If the answer is lost, asks the server whether it has committed.
    pub(crate) fn commit(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.take() else { return Err(odd("that no transaction is open")) };
        let Some(link) = self.link.as_mut().filter(|_| !open.failed) else {
            self.open = Some(open);
            self.roll_back();
            return Err(Fault::Store(
                Class::Other,
                "a statement of the transaction has failed: nothing is committed".into(),
            ));
        };
        self.round_trips += 1;
        let Err(error) = link.client.batch_execute("COMMIT") else {
            self.was_silent = false;
            return Ok(());
        };
        if !fault::ends_connection(&error) && !link.client.is_closed() {
            self.repeat = fault::is_repeatable(&error);
            return Err(error.into());
        }
        self.lose(&error);
        match open.number {
            None if open.access == Access::Read => Ok(()),
            None => Err(error.into()),
            Some(number) => self.ask_outcome(&number),
        }
    }

    /// Asks what has become of a transaction whose commit was not answered. A server may begin sessions and then say nothing, so the time
    /// is limited and not the number of questions.
    pub(super) fn ask_outcome(&mut self, number: &Number) -> Result<(), Fault> {
        let given = self.limit.set(HASTE);
        let outcome = self.ask_until(number, since_boot() + LONGEST);
        self.limit.set(given);
        match outcome? {
            Outcome::Committed => Ok(()),
            Outcome::Undone => {
                self.repeat = true;
                let text = "the connection broke during a commit, and the server has undone the transaction";
                Err(Fault::Store(Class::Busy, text.into()))
            }
        }
    }

    fn ask_until(&mut self, number: &Number, until: Duration) -> Result<Outcome, Fault> {
        let mut wait = FIRST_WAIT;
        loop {
            let trouble = match self.outcome(number) {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => "it is still in progress, as while it waits for a synchronous standby".to_owned(),
                Err(fault @ Fault::Store(Class::Lost, _)) => return Err(fault),
                Err(fault) => fault.to_string(),
            };
            // A question without the time for its answer would lose a connection that works.
            if since_boot() + wait + HASTE > until {
                return Err(number.lost(&trouble));
            }
            std::thread::sleep(wait);
            wait = LONGEST_WAIT.min(wait * 2);
        }
    }

    /// Returns what has become of a transaction; `None` while the server has not noticed that its client is gone.
    fn outcome(&mut self, number: &Number) -> Result<Option<Outcome>, Fault> {
        if self.link.is_none() {
            self.reconnect(Haste { limit: Some(HASTE) })?;
        }
        let Some(link) = &mut self.link else { return Err(gone()) };
        let question = number.question(&link.session, &self.address.quoted_schema())?;
        self.round_trips += 1;
        let answer = match link.client.simple_query(&question) {
            // The number was not given yet: the server has crashed, and has not stored that it was given.
            Err(error) if error.code().is_some_and(|code| code.code() == "22023") => return Ok(Some(Outcome::Undone)),
            answer => answer.map_err(|error| self.failed(error))?,
        };
        let (row, Some(link)) = (last(&answer), &self.link) else { return Err(gone()) };
        number.outcome(&link.session, text(row, 0), session::number(row, 1))
    }
}
