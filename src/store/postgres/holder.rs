//! The session that holds the lock of the schema, and does nothing.

use std::time::Duration;

use postgres::Row;

use crate::store::fault::Fault;

/// How long the holder may do nothing.
pub(crate) const LIMIT: Duration = Duration::from_secs(4);

/// The name of a session that may keep the lock while it does nothing: its client works on a file meanwhile.
pub(crate) const MIGRATES: &str = "duly migrate";

/// A first look at the holder comes after this wait, and later ones when it may be ended at the earliest: a session that stops waits for
/// its place among the others again, so it stops rarely.
const FIRST_LOOK: Duration = Duration::from_millis(700);

/// The shortest wait between two looks.
const SHORTEST: Duration = Duration::from_millis(5);

/// Ends the session that holds the lock of the schema, if it does nothing: its last statement ended more than `$3` milliseconds ago; or
/// began so long ago, and the client does not read the answer, which no timeout of the server ends. The age of the transaction shows
/// nothing: a long one may have taken the lock just now, and may work. Returns also how long it has done nothing.
pub(crate) const END_FROZEN: &str = "
    WITH holder AS MATERIALIZED (
        SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'this machine') AS host, a.state, a.wait_event,
               CASE WHEN (a.state LIKE 'idle in transaction%' OR a.state = 'active' AND a.wait_event = 'ClientWrite')
                         AND a.application_name <> $4::text
                    THEN floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::bigint END AS still
        FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid::bigint = $1 AND l.objid::bigint = $2)
    SELECT pid, application_name, host, coalesce(state, 'unknown'), coalesce(wait_event, ''),
           CASE WHEN still >= $3::bigint THEN pg_terminate_backend(pid) ELSE false END, still
    FROM holder";

/// What a look at the holder has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It works, or there is none any more.
    Works,
    /// It has done nothing for this long.
    Still(Duration),
    /// It was frozen, and was ended.
    Ended,
}

/// The waits of a transaction for the lock of the schema. A holder that freezes is ended as soon as it may be.
#[derive(Debug)]
pub(crate) struct Waits {
    /// How long to wait altogether for sessions that work.
    total: Duration,
    left: Duration,
    /// How long a holder may do nothing.
    limit: Duration,
    next: Duration,
    ended: bool,
}

impl Waits {
    pub(crate) fn new(total: Duration, limit: Duration) -> Self {
        let next = total.min(FIRST_LOOK);
        Waits { total, left: total - next, limit, next, ended: false }
    }

    /// Returns how long to wait for the lock now, before the next look at its holder.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// Judges by a look at the holder. Returns whether to wait again.
    pub(crate) fn go_on(&mut self, holder: Holder) -> bool {
        if holder == Holder::Ended && !self.ended {
            // The others that wait come first.
            (self.left, self.ended) = (self.total, true);
        }
        let next = match holder {
            Holder::Works | Holder::Ended => self.limit,
            Holder::Still(still) => self.limit.saturating_sub(still).max(SHORTEST),
        };
        // A holder that is about to be ended is worth a little more than the time that was given.
        let is_close = matches!(holder, Holder::Still(_)) && next <= FIRST_LOOK && self.total >= self.limit;
        self.next = if is_close { next } else { next.min(self.left) };
        self.left = self.left.saturating_sub(self.next);
        !self.next.is_zero()
    }
}

/// Returns what a look has shown. Reports a session that was ended.
pub(crate) fn report(rows: &[Row], schema: &str) -> Result<Holder, Fault> {
    let mut holder = Holder::Works;
    for row in rows {
        let (pid, ended, still): (i32, Option<bool>, Option<i64>) = (row.try_get(0)?, row.try_get(5)?, row.try_get(6)?);
        if let Some(still) = still {
            holder = Holder::Still(Duration::from_millis(still.max(0).cast_unsigned()));
        }
        if ended == Some(true) {
            let column = |at: usize| row.try_get::<_, String>(at);
            let (application, host, state, event) = (column(1)?, column(2)?, column(3)?, column(4)?);
            log::warn!(
                "ended session {pid} of {application:?} on {host}: it held the lock of schema {schema:?} for more than 4 s without \
                 working ({state}, {event}); its transaction is undone"
            );
            return Ok(Holder::Ended);
        }
    }
    Ok(holder)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Holder, LIMIT, Waits};

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A holder stops at a time, and its waiter begins at another, both in milliseconds. Returns when it is ended.
    fn ended_at(begins: u64, stops: u64) -> Option<u64> {
        let mut waits = Waits::new(ms(4500), LIMIT);
        let mut now = ms(begins);
        loop {
            now += waits.next();
            let holder = match now.checked_sub(ms(stops)) {
                Some(still) if still >= LIMIT => return u64::try_from(now.as_millis()).ok(),
                Some(still) => Holder::Still(still),
                None => Holder::Works,
            };
            if !waits.go_on(holder) {
                return None;
            }
        }
    }

    #[test]
    fn a_holder_that_freezes_is_ended_within_five_seconds_whenever_its_waiter_came() {
        for begins in (10_000..15_000).step_by(10) {
            let stops = 10_000;
            let at = ended_at(begins, stops).unwrap();
            assert!(at == stops + 4_000 || at == begins + 700, "{begins}: {at}");
        }
        // A waiter that was there before: it gives up at most 5.2 s after it began, and the next one ends the holder.
        for stops in (10_000..14_500).step_by(10) {
            let at = match ended_at(10_000, stops) {
                Some(at) => at,
                None => ended_at(10_000 + 4_500 + 100, stops).unwrap(),
            };
            assert!((stops + 4_000..stops + 4_900).contains(&at), "{stops}: {at}");
        }
    }

    #[test]
    fn who_waits_for_sessions_that_work_does_so_for_the_time_that_was_given() {
        for total in [1, 50, 700, 4_000, 4_500, 30_000] {
            let (mut waits, mut waited) = (Waits::new(ms(total), LIMIT), Duration::ZERO);
            loop {
                waited += waits.next();
                if !waits.go_on(Holder::Works) {
                    break;
                }
            }
            assert_eq!(waited, ms(total));
        }
    }

    #[test]
    fn who_has_ended_a_holder_waits_anew_once() {
        let mut waits = Waits::new(ms(50), LIMIT);
        assert!(waits.go_on(Holder::Ended) && waits.next() == ms(50));
        assert!(!waits.go_on(Holder::Ended));
        let mut short = Waits::new(ms(50), LIMIT);
        assert!(!short.go_on(Holder::Still(ms(3_990))), "no longer than it was given");
    }
}
