//! When the next turn is due.

use std::time::Duration;

use crate::clock::Now;
use crate::engine::poller::{Input, Poller, Turn};
use crate::store::turn_io::{Done, Slots};

/// How soon a turn looks again at tasks that it left due because no worker was free.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Poller {
    /// Returns when the next turn is due after this one at the latest, and how long after it the next one begins at the earliest.
    pub(super) fn next_after(&mut self, now: Now, input: &Input, done: &Done) -> (Duration, Duration) {
        self.behind_since = if done.more_due { self.behind_since.or(Some(now.monotonic)) } else { None };
        let left = Slots { room: input.slots.room.saturating_sub(done.claims.len()), ..input.slots };
        // The turn decided by the server's time, which may be behind the time that this owner knows.
        let now = Now { wall: done.decided_at.map_or(now.wall, |at| at.min(now.wall)), ..now };
        // What could have been written and was not waits for an idle worker or a full turn, not for time: it must not keep the
        // loop spinning.
        let later = now.wall.plus(self.settings.poll);
        self.horizon.put_off(now.wall, later, done.claims.is_empty(), input.slots.idle > 0);
        let wake_at = if done.more_lost { now.monotonic } else { self.wake_at(now, left) };
        // All that is left waits for a worker, and none is free.
        let is_crowded =
            left.room == 0 && !done.more_unplanned && !done.more_lost && !self.has_reports() && !input.behind;
        match (done.more_due, is_crowded) {
            (false, _) => (wake_at, Duration::ZERO),
            (true, true) => (wake_at.min(now.monotonic + LOOK_AGAIN), LOOK_AGAIN),
            (true, false) => (wake_at.min(now.monotonic), Duration::ZERO),
        }
    }

    /// Returns the answer of a turn that did nothing.
    pub(super) fn idle_turn(&self, now: Now, slots: Slots) -> Turn {
        Turn { wake_at: self.wake_at(now, slots), ..Turn::default() }
    }

    /// As [`Poller::idle_turn`], after which something fell due, and no worker is free.
    pub(super) fn crowded_turn(&mut self, now: Now, slots: Slots) -> Turn {
        self.behind_since = Some(now.monotonic);
        Turn { rest: LOOK_AGAIN, ..self.idle_turn(now, slots) }
    }

    /// Returns when the next turn is due at the latest.
    fn wake_at(&self, now: Now, slots: Slots) -> Duration {
        if let Some(at) = self.refused.until() {
            return at;
        }
        if self.has_reports() {
            return now.monotonic;
        }
        let heartbeat = now.monotonic.saturating_add(self.settings.poll).min(self.next_heartbeat);
        if self.draining {
            return heartbeat;
        }
        let wait = self.horizon.wait(now.wall, slots);
        let starts = self.troubles.starts.next().filter(|at| *at > now.monotonic).unwrap_or(heartbeat);
        now.monotonic.saturating_add(wait).min(heartbeat).min(starts).min(self.retention_timer.wake_at(now))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rusqlite::Connection;

    use super::LOOK_AGAIN;
    use crate::engine::poller::testing::{NOON, poller};
    use crate::engine::poller::{Poller, Turn};
    use crate::model::finished::Finished;
    use crate::model::run::{Claim, Outcome};
    use crate::store::turn_io::{Done, MAX_ITEMS, MAX_OUTCOMES, Slots};

    const AT_ONCE: (Duration, Duration) = (NOON.monotonic, Duration::ZERO);

    /// Inserts this many tasks, which are due if they are planned.
    fn insert(other: &Connection, tasks: usize, planned: bool) {
        let (tasks, next) = (i64::try_from(tasks).unwrap(), planned.then_some(NOON.wall.as_millis()));
        let insert = "
            WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
            INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
            SELECT 't' || hex(randomblob(8)), 'work', 'once', '2027-03-14T12:00:00Z', ?2, ?3 FROM n";
        other.execute(insert, (tasks, next, planned)).unwrap();
    }

    fn turn(poller: &mut Poller, finished: Vec<Finished>, room: usize) -> Turn {
        poller.turn(NOON, finished, Some(Slots { room, idle: room })).unwrap()
    }

    fn ended(claims: &[Arc<Claim>]) -> Vec<Finished> {
        claims.iter().map(|claim| Finished::new(claim.clone(), Outcome::succeeded(), NOON, NOON)).collect()
    }

    #[test]
    fn outcomes_that_wait_are_written_at_once_although_no_worker_is_free() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
        insert(&other, MAX_OUTCOMES + 50, true);
        let claims = turn(&mut poller, Vec::new(), 400).claims;
        assert_eq!(claims.len(), MAX_OUTCOMES + 50);
        insert(&other, 300, true);
        let Turn { wake_at, rest, .. } = turn(&mut poller, ended(&claims), 0);
        assert_eq!((wake_at, rest, poller.unsettled()), (AT_ONCE.0, AT_ONCE.1, 50));
        let Turn { wake_at, rest, .. } = turn(&mut poller, Vec::new(), 0);
        assert_eq!((wake_at, rest, poller.unsettled()), (NOON.monotonic + LOOK_AGAIN, LOOK_AGAIN, 0), "more is due");
    }

    #[test]
    fn rows_that_are_to_be_planned_do_not_wait_for_a_worker() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
        // A full turn, which has an item of its own.
        turn(&mut poller, Vec::new(), 0);
        insert(&other, MAX_ITEMS + 100, false);
        let Turn { wake_at, rest, .. } = turn(&mut poller, Vec::new(), 0);
        assert_eq!((wake_at, rest), AT_ONCE);
        let unplanned =
            || other.query_row("SELECT count(*) FROM scheduled_tasks WHERE planned = 0", [], |row| row.get(0));
        assert_eq!(unplanned(), Ok(100));
        turn(&mut poller, Vec::new(), 0);
        assert_eq!(unplanned(), Ok(0));
    }

    #[test]
    fn a_turn_that_has_not_looked_ahead_is_followed_by_a_look_at_once() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
        // A full turn. The next one is a poll interval away.
        turn(&mut poller, Vec::new(), 1);
        let version = || other.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
        let input = poller.input(NOON, Slots { room: 1, idle: 1 }, false);
        // As a server answers that has started something.
        let answer = || Done { look_follows: true, ..Done::default() };
        let Turn { wake_at, rest, .. } = poller.apply(NOON, &input, answer()).unwrap();
        assert_eq!((wake_at, rest), AT_ONCE);
        let before = version();
        let Turn { wake_at, .. } = turn(&mut poller, Vec::new(), 1);
        assert!(wake_at > NOON.monotonic, "it has seen that nothing is due");
        assert_eq!(version(), before, "nothing was written");
        poller.apply(NOON, &input, answer()).unwrap();
        insert(&other, 1, true);
        assert_eq!(turn(&mut poller, Vec::new(), 1).claims.len(), 1, "it has seen what is due");
    }

    #[test]
    fn outcomes_that_a_turn_defers_are_given_to_the_next_one() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
        insert(&other, 3, true);
        let claims = turn(&mut poller, Vec::new(), 3).claims;
        poller.outbox.extend(ended(&claims));
        let input = poller.input(NOON, Slots::default(), false);
        assert_eq!(input.outcomes, 3);
        // As a turn answers that has written the second.
        let done = Done { deferred: [0, 2].into(), more_due: true, ..Done::default() };
        let Turn { wake_at, rest, .. } = poller.apply(NOON, &input, done).unwrap();
        assert_eq!((wake_at, rest), AT_ONCE);
        let waiting: Vec<&Arc<Claim>> = poller.outbox.iter().map(|finished| &finished.claim).collect();
        assert_eq!((waiting, poller.unsettled()), (vec![&claims[0], &claims[2]], 2));
        turn(&mut poller, Vec::new(), 0);
        assert_eq!((poller.outbox.len(), poller.unsettled()), (0, 0));
    }
}
