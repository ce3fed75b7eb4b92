//! Turns of a poller on real tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::Connection;

use crate::clock::{Clock, ManualClock, Now};
use crate::engine::poller::testing::{NOON, poller, store, with_owner};
use crate::engine::poller::{Poller, Turn};
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::observers::Observers;
use crate::model::run::Outcome;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::turn_io::{MAX_ITEMS, MAX_OUTCOMES, Slots};

fn after(seconds: u64) -> Now {
    let passed = Duration::from_secs(seconds);
    Now { wall: NOON.wall.plus(passed), monotonic: NOON.monotonic + passed }
}

fn turn(poller: &mut Poller, now: Now, room: usize) -> Turn {
    poller.turn(now, Vec::new(), Some(Slots { room, idle: room })).unwrap()
}

#[test]
fn an_idle_owner_without_a_lock_file_is_found_dead_although_turns_come_between_the_heartbeats() {
    let home = tempfile::tempdir().unwrap();
    let database = home.path().join("t.db");
    // Heartbeats count stamps, which begin with an id of this length.
    let mut poller = with_owner("00000000-0000-0000-0000-000000000001", Box::new(store(&database)), &database);
    let other = Connection::open(&database).unwrap();
    let dead = Arc::new(AtomicUsize::new(0));
    let found = dead.clone();
    let count = move |event: &Event| {
        found.fetch_add(usize::from(matches!(event, Event::OwnerLost { .. })), Ordering::Relaxed);
    };
    poller.observers = Arc::new(Observers(vec![Arc::new(count)]));
    let died = "INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at)
                VALUES ('gone', 'h', 1, '0.1.0', 1, 60000, ?1, ?1)";
    other.execute(died, [NOON.wall.as_millis()]).unwrap();
    for seconds in 0..200 {
        // Each turn has something to write.
        let task = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
                    VALUES (?1, 'nowhere', 'once', '2027-03-14T12:00:00Z', ?2, 1)";
        other.execute(task, (format!("t{seconds}"), NOON.wall.as_millis())).unwrap();
        turn(&mut poller, after(seconds), 1);
    }
    assert_eq!(dead.load(Ordering::Relaxed), 1);
}

#[test]
fn the_end_of_an_attempt_ends_no_later_claim_of_its_run() {
    let home = tempfile::tempdir().unwrap();
    let database = home.path().join("t.db");
    let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
    let task = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
                VALUES ('t', 'work', 'once', '2027-03-14T12:00:00Z', ?1, 1)";
    other.execute(task, [NOON.wall.as_millis()]).unwrap();
    let first = turn(&mut poller, NOON, 5).claims.remove(0);
    // Another scheduler counted this one as dead.
    let recovered = "UPDATE task_runs SET status = 'queued', locked_by = NULL, locked_until = NULL, started_at = NULL";
    other.execute(recovered, []).unwrap();
    let second = turn(&mut poller, after(1), 5).claims.remove(0);
    assert_eq!((second.run_id, second.attempt), (first.run_id, 2));
    let ended = Finished::new(first, Outcome::succeeded(), NOON, after(1));
    poller.turn(after(1), vec![ended], Some(Slots::default())).unwrap();
    assert_eq!(poller.unsettled(), 1, "the second attempt");
}

#[cfg(feature = "postgres")]
mod on_server {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use crate::clock::Timestamp;
    use crate::engine::poller::next_turn::LOOK_AGAIN;
    use crate::engine::poller::testing::{NOON, with_owner};
    use crate::engine::poller::tests::{after, turn};
    use crate::engine::poller::{Poller, Turn};
    use crate::model::event::Event;
    use crate::model::observers::Observers;
    use crate::store::postgres::address::Address;
    use crate::store::postgres::testing::TestServer;
    use crate::store::postgres::{PostgresStore, Time};
    use crate::store::sqlite::file::Missing;

    fn on_server(server: &TestServer, home: &Path) -> (Poller, postgres::Client) {
        let address = Address::parse(&server.url()).unwrap();
        let store = PostgresStore::open(&address, Missing::Create, Time::Given).unwrap();
        // Owners are registered beside a file.
        std::fs::write(home.join("t.db"), "").unwrap();
        let mut other = server.other();
        other.batch_execute("SET search_path = duly, pg_temp").unwrap();
        (with_owner("a-1", Box::new(store), &home.join("t.db")), other)
    }

    fn insert(other: &mut postgres::Client, name: &str, at: Timestamp) {
        let task = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
                    VALUES ($1, 'work', 'once', '2027-03-14T12:00:00Z', $2, 1)";
        other.execute(task, &[&name, &at.as_millis()]).unwrap();
    }

    #[test]
    fn a_request_to_stop_is_kept_although_the_look_that_found_it_is_followed_by_a_turn_that_does_not_look() {
        let Some(server) = TestServer::start("") else { return };
        let home = tempfile::tempdir().unwrap();
        let (mut poller, mut other) = on_server(&server, home.path());
        // A full turn, and the first that claims.
        turn(&mut poller, NOON, 5);
        insert(&mut other, "first", NOON.wall);
        let first = turn(&mut poller, NOON, 5).claims[0].run_id;
        turn(&mut poller, NOON, 4);
        other.execute("UPDATE task_runs SET cancel_requested = 1 WHERE id = $1", &[&first]).unwrap();
        insert(&mut other, "second", NOON.wall);
        let Turn { claims, stop, .. } = turn(&mut poller, after(1), 4);
        assert_eq!((claims.len(), stop), (1, vec![first]));
        assert!(poller.horizon.look_follows(), "that turn has not looked");
    }

    /// A trigger of an application takes longer than a statement may.
    #[test]
    fn an_item_that_exceeds_a_time_limit_of_the_server_is_found_by_halving_and_set_aside() {
        let Some(server) = TestServer::start("") else { return };
        let home = tempfile::tempdir().unwrap();
        let (mut poller, mut other) = on_server(&server, home.path());
        let (observed, events) = std::sync::mpsc::channel();
        let observed = Mutex::new(observed);
        let observe = move |event: &Event| {
            if let Event::SetAside { item, reason } = event {
                observed.lock().unwrap().send((item.clone(), reason.clone())).unwrap();
            }
        };
        poller.observers = Arc::new(Observers(vec![Arc::new(observe)]));
        (0..40).for_each(|number| insert(&mut other, &format!("task-{number}"), NOON.wall));
        let slow = "
            CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END $$;
            CREATE TRIGGER slow BEFORE UPDATE ON scheduled_tasks FOR EACH ROW WHEN (NEW.name = 'task-7')
            EXECUTE FUNCTION public.slow()";
        other.batch_execute(slow).unwrap();
        let (mut claimed, mut refused) = (0, 0);
        for number in 0..100 {
            let turn = turn(&mut poller, after(number), 50);
            claimed += turn.claims.len();
            refused += usize::from(turn.refused.is_some());
        }
        assert_eq!(claimed, 39, "all others");
        let (item, reason) = events.try_recv().expect("an event");
        assert!(item.starts_with("task ") && reason.contains("57014"), "{item}: {reason}");
        assert!((1..20).contains(&refused), "{refused} turns are refused");
        other.batch_execute("DROP TRIGGER slow ON scheduled_tasks").unwrap();
        let later: usize = (100..200).map(|number| turn(&mut poller, after(number), 50).claims.len()).sum();
        assert_eq!(later, 1, "it is tried again");
    }

    #[test]
    fn what_falls_due_after_a_turn_waits_for_a_worker_if_none_is_free() {
        let Some(server) = TestServer::start("") else { return };
        let home = tempfile::tempdir().unwrap();
        let (mut poller, mut other) = on_server(&server, home.path());
        turn(&mut poller, NOON, 1);
        insert(&mut other, "first", NOON.wall);
        assert_eq!(turn(&mut poller, NOON, 1).claims.len(), 1);
        insert(&mut other, "second", NOON.wall);
        let runs = |other: &mut postgres::Client| -> i64 {
            other.query_one("SELECT count(*) FROM task_runs", &[]).unwrap().get(0)
        };
        let Turn { claims, rest, wake_at, .. } = turn(&mut poller, NOON, 0);
        assert_eq!((claims.len(), rest, wake_at <= NOON.monotonic + LOOK_AGAIN), (0, LOOK_AGAIN, true));
        assert_eq!(runs(&mut other), 1, "its run is not opened yet");
        turn(&mut poller, NOON, 0);
        assert_eq!(runs(&mut other), 2, "it is recorded though no worker is free");
    }
}

/// A clock by which a second passes between two looks at it.
#[derive(Default)]
struct Slow(AtomicU64);

impl Clock for Slow {
    fn now(&self) -> Now {
        after(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Measures by this clock how long turns hold the lock.
fn measure_by(poller: &mut Poller, clock: Arc<dyn Clock>) {
    poller.store.as_any().downcast_ref::<SqliteStore>().expect("a file").measure_by(clock);
}

#[test]
fn a_turn_that_held_the_lock_for_long_is_followed_by_smaller_ones() {
    let home = tempfile::tempdir().unwrap();
    let database = home.path().join("t.db");
    let (mut poller, other) = (poller(&database), Connection::open(&database).unwrap());
    let due = "
        WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
        INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned)
        SELECT 't' || i, 'work', 'once', '2027-03-14T12:00:00Z', ?1, 1 FROM n";
    other.execute(due, [NOON.wall.as_millis()]).unwrap();
    let claims = |poller: &mut Poller| turn(poller, NOON, MAX_ITEMS).claims.len();
    // The first turn has an item of its own.
    assert_eq!(
        (claims(&mut poller), claims(&mut poller)),
        (MAX_ITEMS - 1, MAX_ITEMS),
        "time that is not measured is not long"
    );
    poller.adapt_size();
    measure_by(&mut poller, Arc::new(Slow::default()));
    assert_eq!((claims(&mut poller), claims(&mut poller), claims(&mut poller)), (500, 250, 125));
    assert_eq!(poller.most_outcomes(), MAX_OUTCOMES * 62 / MAX_ITEMS);
    measure_by(&mut poller, Arc::new(ManualClock::new(NOON.wall)));
    assert_eq!((claims(&mut poller), claims(&mut poller)), (62, 87), "they grow slowly");
}
