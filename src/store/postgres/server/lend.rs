//! A transaction in which an application writes rows of its own before duly writes in it.

use std::time::Duration;

use postgres::{Error, Transaction};

use crate::error::BoxError;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::address::LONG;
use crate::store::postgres::client::Client;
use crate::store::postgres::server::{Access, Server, gone};
use crate::store::postgres::session::{last, number, text};

/// What the application writes is another program's, with the settings of its role. The number of the transaction shows whether the
/// application ended it.
const AS_APPLICATION: &str = "
    SET LOCAL search_path = DEFAULT; SET LOCAL statement_timeout = DEFAULT; SET LOCAL lock_timeout = DEFAULT;
    SET LOCAL idle_in_transaction_session_timeout = DEFAULT; SET LOCAL duly.store = '';
    SELECT pg_current_xact_id()::text, (SELECT setting FROM pg_settings WHERE name = 'statement_timeout')";

impl Server {
    /// Begins a transaction that writes. Calls `f` in it, and takes the lock of the schema only then: other sessions do not wait for `f`.
    /// If `f` fails, the transaction is undone.
    pub(crate) fn begin_with<T>(
        &mut self,
        f: impl FnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<Result<T, BoxError>, Fault> {
        self.roll_back();
        self.repeat = false;
        self.ensure_session(Access::Write)?;
        let Some(link) = &mut self.link else { return Err(gone()) };
        self.round_trips += 2;
        let given = self.limit.set(self.address.answer_limit());
        let lent = lend(&mut link.client, f, |statement| _ = self.limit.set(self.address.answer_limit_for(statement)));
        self.limit.set(given);
        let (answer, id) = match lent.map_err(|error| self.failed(error))? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let settings = self.terms.for_transaction(&self.address);
        let locked = self.begin_by(Access::Write, settings, Some(self.terms.lock_timeout));
        let number = self.open.as_ref().and_then(|open| open.number.as_ref());
        if locked.as_ref().is_ok_and(Option::is_some) && number.is_some_and(|number| number.id == id) {
            self.transactions += 1;
            return Ok(Ok(answer));
        }
        self.roll_back();
        locked?;
        let text = "its transaction was ended within, or the schema was made anew: leave BEGIN and COMMIT to duly";
        Err(Fault::Store(Class::Other, text.into()))
    }
}

/// Returns the answer of `f`, and the number of the transaction, which stays open. A failure of `f` ends it. `limit`: takes how long a
/// statement of the application may take.
fn lend<T>(
    client: &mut Client,
    f: impl FnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    limit: impl FnOnce(Duration),
) -> Result<Result<(T, String), BoxError>, Error> {
    let mut tx = client.transaction()?;
    let told = tx.simple_query(AS_APPLICATION)?;
    let (id, statement) = (text(last(&told), 0).to_owned(), number(last(&told), 1));
    // 0: the role has set no limit, and the server works for as long as it takes.
    limit(if statement > 0 { Duration::from_millis(statement.unsigned_abs()) } else { LONG });
    Ok(match f(&mut tx) {
        Ok(answer) => {
            // It would undo the transaction.
            std::mem::forget(tx);
            Ok((answer, id))
        }
        Err(error) => {
            // A connection that cannot answer has no transaction any more.
            let _ = tx.rollback();
            Err(error)
        }
    })
}
