//! Transactions that add tasks and nothing else. They take no lock that a turn holds.

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::postgres::outcome::{Number, Proof};
use crate::store::postgres::server::{Access, CLASS, MILLIS, Open, Server, gone};
use crate::store::postgres::session::{self, last};

/// The class of the locks `(CLASS_OF_ADDITIONS, oid of the schema)`, which these transactions share from before they read the time to
/// their end.
const CLASS_OF_ADDITIONS: i32 = CLASS + 2;

impl Server {
    /// Begins a transaction that adds tasks, and returns the server's time. `None`: it cannot be begun now, and the transaction with the
    /// lock of the schema finds out why.
    pub(crate) fn begin_adding(&mut self) -> Option<Timestamp> {
        self.roll_back();
        self.repeat = false;
        match self.try_begin_adding() {
            Ok(Some(now)) => {
                self.transactions += 1;
                Some(now)
            }
            Ok(None) | Err(_) => {
                self.roll_back();
                None
            }
        }
    }

    /// `None`: another session serves than the one whose settings are known.
    fn try_begin_adding(&mut self) -> Result<Option<Timestamp>, Fault> {
        let key = self.schema();
        if self.search_at.is_some() {
            return Ok(None);
        }
        let Server { link, address, terms, plans, .. } = self;
        let Some(link) = link else { return Err(gone()) };
        let mut begin = format!("{}BEGIN", plans.renew());
        if link.session.pooled {
            begin = format!("{begin}; {}", terms.for_transaction(address));
        }
        // As little as possible, since the server plans this anew each time. The names of tasks are looked up by index.
        let wait = session::millis(terms.lock_timeout.min(session::ROW));
        // No turn waits for this transaction: it may wait longer for another one that adds a task of the same name.
        let for_rows = session::millis(terms.lock_timeout);
        let message = format!(
            "{begin}; SELECT set_config('lock_timeout', '{wait}', true), set_config('enable_seqscan', 'off', true),
                 pg_advisory_xact_lock_shared({CLASS_OF_ADDITIONS}, {key}), set_config('lock_timeout', '{for_rows}', true),
                 {MILLIS}, pg_backend_pid()"
        );
        self.open = Some(Open { access: Access::Write, number: None, has_lock: false, failed: true });
        self.round_trips += 1;
        let answer = link.client.simple_query(&message);
        let answer = answer.map_err(|error| self.failed(error))?;
        let row = last(&answer);
        let (now, backend) = (session::number(row, 4), session::number(row, 5));
        let is_known = self.link.as_ref().is_some_and(|link| link.session.pooled || link.session.backend == backend);
        if is_known {
            self.open = Some(Open { access: Access::Write, number: None, has_lock: false, failed: false });
        }
        Ok(is_known.then_some(Timestamp::from_millis(now)))
    }

    /// Notes the number of the open transaction, the timeline on which the server gave it, and a row that the transaction has written.
    /// Returns false if it must not be committed: the server continues another history than this session keeps to, or the schema was
    /// made anew.
    pub(crate) fn note_additions(&mut self, (id, timeline): (String, String), schema: i64, proof: Proof) -> bool {
        let (Some(link), Some(open)) = (&mut self.link, &mut self.open) else { return false };
        link.session.timeline.id = timeline;
        let (timeline, since) = (link.session.timeline.clone(), link.session.since.clone());
        let is_the_same = self.kept.as_ref().is_none_or(|kept| *kept == timeline) && self.schema == schema;
        open.number = Some(Number { id, timeline, since, proof: Some(proof) });
        is_the_same
    }

    /// Waits until no other transaction adds tasks, and keeps all from it until the end of this one. A batch may take longer than a
    /// row is waited for.
    pub(crate) fn await_additions(&mut self) -> Result<(), Fault> {
        let key = self.schema();
        let most = self.terms.lock_timeout;
        let (long, short) = (session::millis(most), session::millis(most.min(session::ROW)));
        let wait = "SELECT set_config('lock_timeout', $3, true), pg_advisory_xact_lock($1::int, $2::int), set_config('lock_timeout', $4, true)";
        self.query(wait, &[&CLASS_OF_ADDITIONS, &key, &long, &short]).map(|_| ())
    }
}
