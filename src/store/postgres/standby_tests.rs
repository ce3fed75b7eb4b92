//! Standbys, and servers that refuse writes, serve look-ups only, until a server accepts writes.

use crate::clock::Timestamp;
use crate::error::Error;
use crate::model::health::Limits;
use crate::model::new_task::NewTask;
use crate::model::request::Existing;
use crate::model::run::RunFilter;
use crate::store::Store;
use crate::store::postgres::address::Address;
use crate::store::postgres::server::Server;
use crate::store::postgres::testing::{TestServer, shared};
use crate::store::postgres::{PostgresStore, Time, owners};
use crate::store::sqlite::file::Missing;
use crate::store::turn_io::Session;

#[test]
fn a_standby_and_a_server_that_refuses_writes_serve_look_ups_only() {
    let Some(mut postgres) = TestServer::start("") else { return };
    let address = Address::parse(&postgres.url()).unwrap();
    let task = |name: &str| NewTask::manual(name).handler("work").into_definition(Timestamp::MIN).unwrap();
    let mut before = PostgresStore::open(&address, Missing::Create, Time::OfServer).unwrap();
    before.add(task("kept"), Existing::Refuse, Timestamp::MIN).unwrap();
    for round in ["standby", "read-only"] {
        postgres.down("fast");
        let signal = postgres.home().join("data/standby.signal");
        if round == "standby" {
            std::fs::write(signal, "").unwrap();
        } else {
            std::fs::remove_file(signal).unwrap();
            postgres.configure("default_transaction_read_only = on");
        }
        postgres.up();
        let fault = Server::connect(&address).unwrap_err();
        assert!(fault.to_string().contains("name the primary"), "{round}: {fault}");
        // It may be promoted, or the name may lead to another server soon.
        let both = format!("postgres://postgres@127.0.0.1:{0},localhost:{0}/postgres", postgres.port);
        for address in [&address, &Address::parse(&both).unwrap()] {
            let refused = PostgresStore::check_for_scheduler(address).unwrap_err();
            assert!(refused.is_unreachable(), "{round}: {refused:?}");
        }

        let mut store = PostgresStore::open(&address, Missing::Refuse, Time::OfServer).unwrap();
        for store in [&mut store, &mut before] {
            assert_eq!(store.tasks().unwrap().len(), 1, "{round}");
            assert!(store.task("kept").unwrap().is_some() && store.runs(&RunFilter::newest(5)).unwrap().is_empty());
            let status = store.status(Timestamp::MIN).unwrap();
            assert!(status.server.is_some_and(|server| server.starts_with("PostgreSQL")));
            store.health(&Limits::default(), Timestamp::MIN).unwrap();
            assert!(store.doctor().unwrap().is_empty());
            // The second one, too, finds no session that serves.
            for _ in 0..2 {
                let refused = store.add(task("new"), Existing::Refuse, Timestamp::MIN).unwrap_err();
                assert!(refused.is_unreachable(), "{round}: {refused:?}");
                assert!(refused.to_string().contains("name the primary"), "{round}: {refused}");
            }
            assert_eq!(store.tasks().unwrap().len(), 1, "{round}");
        }
        let mut looks = Server::connect_to_look(&address).unwrap();
        let lent = looks.begin_with(|_| Ok(())).unwrap_err();
        assert!(lent.is_about_a_read_only_server(), "{round}: {lent:?}");
        // A standby shows no locks of sessions: what cannot be seen counts as held.
        let session = owners::sessions(&mut looks, &["gone".to_owned()], None).unwrap()["gone"];
        assert_eq!(matches!(session, Session::Free { .. }), round == "read-only", "{session:?}");
        let other = Address::parse(&format!("{}?schema=other", postgres.url())).unwrap();
        let none = PostgresStore::open(&other, Missing::Create, Time::OfServer).map(drop).unwrap_err();
        assert!(none.is_unreachable(), "{round}: {none}");
    }
    // What was a standby accepts writes again, and the same session finds that out.
    postgres.down("fast");
    postgres.configure("default_transaction_read_only = off");
    postgres.up();
    before.add(task("new"), Existing::Refuse, Timestamp::MIN).unwrap();
    assert_eq!(before.tasks().unwrap().len(), 2);
    // The server begins to refuse writes, and accepts them again, within one session.
    for (refuses, added) in [("on", false), ("off", true)] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {refuses}");
        let mut other = postgres.other();
        other.batch_execute("SET default_transaction_read_only = off").unwrap();
        other.batch_execute(&set).unwrap();
        other.batch_execute("SELECT pg_reload_conf()").unwrap();
        let is_set = || {
            let shown = before.lock().rows.server.query("SHOW default_transaction_read_only", &[]);
            shown.is_ok_and(|rows| rows[0].get::<_, String>(0) == refuses)
        };
        crate::waits::eventually("the setting", is_set);
        let added_now = before.add(task("later"), Existing::Refuse, Timestamp::MIN);
        assert!(added_now.as_ref().map_or_else(Error::is_unreachable, |_| added), "{refuses}: {added_now:?}");
    }
    assert_eq!(before.tasks().unwrap().len(), 3);
}

#[test]
fn look_ups_return_to_the_primary() {
    let (Some(mut one), Some(mut other)) = (TestServer::start(""), TestServer::start("")) else { return };
    drop(PostgresStore::open(&Address::parse(&other.url()).unwrap(), Missing::Create, Time::OfServer).unwrap());
    other.down("fast");
    other.configure("default_transaction_read_only = on");
    other.up();
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", one.port, other.port);
    let address = Address::parse(&both).unwrap();
    let task = |name: &str| NewTask::manual(name).handler("work").into_definition(Timestamp::MIN).unwrap();
    let mut store = PostgresStore::open(&address, Missing::Create, Time::OfServer).unwrap();
    let mut own = PostgresStore::open(&address, Missing::Refuse, Time::OfServer).unwrap();
    own.require_primary();
    for store in [&mut store, &mut own] {
        store.add(task("kept"), Existing::Keep, Timestamp::MIN).unwrap();
        assert_eq!(store.tasks().unwrap().len(), 1);
    }
    one.down("fast");
    assert!(store.tasks().unwrap().is_empty(), "the other server serves");
    // A scheduler reads nothing that may be old.
    assert!(own.tasks().unwrap_err().is_unreachable());
    assert!(store.add(task("new"), Existing::Refuse, Timestamp::MIN).unwrap_err().is_unreachable());
    store.lock().rows.server.search_now();
    assert!(store.tasks().unwrap().is_empty(), "the other server serves still");
    one.up();
    store.lock().rows.server.search_now();
    for store in [&mut store, &mut own] {
        assert_eq!(store.tasks().unwrap().len(), 1);
    }
    for (store, name) in [(&mut store, "new"), (&mut own, "newer")] {
        store.add(task(name), Existing::Refuse, Timestamp::MIN).unwrap();
    }
}

#[test]
fn what_only_a_person_can_end_is_final() {
    let Some(postgres) = shared() else { return };
    let port = postgres.port;
    for (hosts, is_final) in [
        (format!("127.0.0.1:{port}"), true),
        (format!("127.0.0.1:{port},localhost:{port}"), true),
        // One of them may come back, and serve.
        (format!("127.0.0.1:{port},127.0.0.1:1"), false),
    ] {
        let address = format!("postgres://postgres@{hosts}/none");
        let refused = PostgresStore::check_for_scheduler(&Address::parse(&address).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("3D000"), "{refused}");
        assert_eq!(matches!(refused, Error::UnusableDatabase { .. }), is_final, "{refused:?}");
        assert_ne!(refused.is_unreachable(), is_final, "{refused:?}");
    }
}
