//! Nobody who is frozen holds the lock of the schema.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crate::store::postgres::holder::Holder;
use crate::store::postgres::server::{Access, CLASS, Server};
use crate::store::postgres::server_tests::{add, schema, wait_for_waiter};
use crate::store::postgres::testing::shared;

/// A session whose answers nobody reads.
fn raw_session(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let words = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    stream.write_all(&(words.len() as u32 + 4).to_be_bytes()).unwrap();
    stream.write_all(words).unwrap();
    stream
}

fn send(stream: &mut TcpStream, kind: u8, text: &str) {
    stream.write_all(&[kind]).unwrap();
    stream.write_all(&(text.len() as u32 + 5).to_be_bytes()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(b"\0").unwrap();
}

fn wait_until(other: &mut postgres::Client, count: &str) {
    crate::waits::eventually(count, || other.query(count, &[]).unwrap()[0].get::<_, i64>(0) > 0);
}

#[test]
fn a_frozen_holder_is_ended() {
    let Some(postgres) = shared() else { return };
    let address = schema(postgres, postgres.port, "frozen");
    let mut server = Server::connect(&address).unwrap();
    add(&mut server);
    server.commit().unwrap();
    let lock = format!("SELECT pg_advisory_xact_lock({CLASS}, oid::int) FROM pg_namespace WHERE nspname = 'frozen'");
    // No timeout is set for it.
    let mut idle = postgres.other();
    idle.batch_execute(&format!("BEGIN; {lock}")).unwrap();
    server.begin(Access::Write).unwrap();
    server.roll_back();
    assert!(idle.batch_execute("SELECT 1").is_err(), "it was ended");
    // One that does not read its answer, which is more than the sockets hold.
    let mut unread = raw_session(postgres.port);
    send(&mut unread, b'Q', &format!("BEGIN; {lock}; SELECT repeat('x', 1000) FROM generate_series(1, 100000)"));
    wait_until(&mut postgres.other(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'");
    server.begin(Access::Write).unwrap();
    server.roll_back();
    drop(unread);
    // A holder that works keeps the lock.
    let mut busy = postgres.other();
    busy.batch_execute(&format!("BEGIN; {lock}")).unwrap();
    server.set_lock_timeout(Duration::from_millis(50)).unwrap();
    let fault = server.begin(Access::Write).unwrap_err();
    assert!(fault.is_busy() && fault.to_string().contains("55P03"), "{fault}");
    busy.batch_execute("ROLLBACK").unwrap();
    server.begin(Access::Write).unwrap();
}

#[test]
fn a_holder_that_stops_behind_a_waiter_is_ended_as_soon_as_it_may_be() {
    let Some(postgres) = shared() else { return };
    let address = schema(postgres, postgres.port, "behind");
    let lock = format!("SELECT pg_advisory_xact_lock({CLASS}, oid::int) FROM pg_namespace WHERE nspname = 'behind'");
    let limit = Duration::from_secs(3);
    // A round counts if the holder has stopped soon after the waiter came: the machine may be busy.
    let counts = (0..20).any(|_| {
        let mut holder = postgres.other();
        holder.batch_execute(&format!("BEGIN; {lock}")).unwrap();
        std::thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                let mut waiter = Server::connect(&address).unwrap();
                waiter.find_schema().unwrap();
                // If it waited once, it would come three seconds after it began, which the holder has stopped after.
                waiter.set_stillness(limit);
                waiter.set_lock_timeout(limit).unwrap();
                waiter.begin(Access::Write).map(|_| ())
            });
            let mut other = Server::connect(&address).unwrap();
            wait_for_waiter(&mut other);
            let stops = "SELECT (extract(epoch FROM clock_timestamp() - a.query_start) * 1000)::bigint FROM pg_locks l
                         JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND NOT l.granted
                         AND l.objid = (SELECT oid FROM pg_namespace WHERE nspname = 'behind')";
            let after: Option<i64> = holder.query_opt(stops, &[]).unwrap().map(|row| row.get(0));
            let soon = after.is_some_and(|after| after < 500);
            let begun = waiter.join().unwrap();
            if soon {
                begun.unwrap();
                assert!(holder.batch_execute("SELECT 1").is_err(), "it was ended");
            }
            soon
        })
    });
    assert!(counts, "in no round the holder has stopped in time");
}

#[test]
fn a_holder_that_works_is_not_ended_however_old_its_transaction_is() {
    let Some(postgres) = shared() else { return };
    let mut server = Server::connect(&schema(postgres, postgres.port, "working")).unwrap();
    server.find_schema().unwrap();
    let limit = Duration::from_secs(1);
    let lock = format!("SELECT pg_advisory_xact_lock({CLASS}, oid::int) FROM pg_namespace WHERE nspname = 'working'");
    let mut holder = postgres.other();
    let pid: i32 = holder.query("SELECT pg_backend_pid()", &[]).unwrap()[0].get(0);
    let old = |column: &str| {
        let since = format!("{column} < clock_timestamp() - interval '{} ms'", limit.as_millis());
        wait_until(
            &mut postgres.other(),
            &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND {since}"),
        );
    };
    holder.batch_execute("BEGIN").unwrap();
    old("xact_start");
    // As the end of a run with rows of a handler, which takes the lock last.
    holder.batch_execute(&lock).unwrap();
    let day = Duration::from_secs(86_400);
    assert!(
        matches!(server.look_at_holder(day), Holder::Still(still) if still < day),
        "it waits for its client since a moment"
    );
    holder.batch_execute("SET LOCAL application_name = 'duly migrate'").unwrap();
    old("state_change");
    assert_eq!(server.look_at_holder(limit), Holder::Works, "its client works on a file");
    holder.batch_execute("SET LOCAL application_name = 'other'").unwrap();
    let stop = holder.cancel_token();
    std::thread::scope(|threads| {
        let works = threads.spawn(|| holder.batch_execute("SAVEPOINT s; SELECT pg_sleep(600)"));
        wait_until(
            &mut postgres.other(),
            &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"),
        );
        assert_eq!(server.look_at_holder(Duration::ZERO), Holder::Works, "a statement is running");
        stop.cancel_query(postgres::NoTls).unwrap();
        works.join().unwrap().unwrap_err();
    });
    holder.batch_execute("ROLLBACK TO s").unwrap();
    old("state_change");
    assert_eq!(server.look_at_holder(limit), Holder::Ended, "it does nothing");
    assert!(holder.batch_execute("SELECT 1").is_err());
}
