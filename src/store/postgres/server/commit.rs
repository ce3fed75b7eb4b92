//! Commits whose answer was lost: the server is asked for their outcome.

use std::time::Duration;

use crate::store::fault::{Class, Fault};
use crate::store::postgres::connect::Haste;
use crate::store::postgres::outcome::{Number, Outcome};
use crate::store::postgres::server::{Server, gone};
use crate::store::postgres::session::{self, last, text};

/// How often the outcome of a commit is asked for, and the waits between: about 20 s, which a restart of the server takes at most.
const QUESTIONS: u32 = 26;
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const HASTE: Haste = Haste { limit: Some(Duration::from_secs(2)) };

impl Server {
    /// Asks what has become of a transaction whose commit was not answered.
    pub(super) fn ask_outcome(&mut self, number: &Number) -> Result<(), Fault> {
        let mut wait = FIRST_WAIT;
        let mut trouble = None;
        for _ in 0..QUESTIONS {
            match self.outcome(number) {
                Ok(Some(Outcome::Committed)) => return Ok(()),
                Ok(Some(Outcome::Undone)) => {
                    self.repeat = true;
                    let text = "the connection broke during a commit, and the server has undone the transaction";
                    return Err(Fault::Store(Class::Busy, text.into()));
                }
                Ok(None) => trouble = None,
                Err(fault @ Fault::Store(Class::Lost, _)) => return Err(fault),
                Err(fault) => trouble = Some(fault),
            }
            std::thread::sleep(wait);
            wait = LONGEST_WAIT.min(wait * 2);
        }
        let trouble = trouble.map_or_else(|| "it is still in progress".to_owned(), |fault| fault.to_string());
        Err(number.lost(&trouble))
    }

    /// Returns what has become of a transaction; `None` while the server has not noticed that its client is gone.
    fn outcome(&mut self, number: &Number) -> Result<Option<Outcome>, Fault> {
        if self.link.is_none() {
            self.reconnect(HASTE)?;
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
