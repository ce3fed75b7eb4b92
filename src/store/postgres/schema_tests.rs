//! Many programs may open an empty schema at once: one creates the tables, and the others wait for it.

use std::time::Duration;

use crate::store::postgres::address::Address;
use crate::store::postgres::schema as tables;
use crate::store::postgres::server::Server;
use crate::store::postgres::testing::shared;
use crate::store::sqlite::file::Missing;

#[test]
fn who_creates_tables_does_not_wait_for_those_who_create_others() {
    let Some(postgres) = shared() else { return };
    let address = |name: &str| Address::parse(&format!("{}?schema={name}", postgres.url_at(postgres.port))).unwrap();
    let mut first = Server::connect(&address("created_first")).unwrap();
    first.begin_without_lock().unwrap();
    tables::create(&mut first).unwrap();
    // The first has not committed.
    let mut second = Server::connect(&address("created_second")).unwrap();
    tables::prepare(&mut second, Missing::Create).unwrap();
    let mut third = Server::connect(&address("created_first")).unwrap();
    third.set_lock_timeout(Duration::from_millis(20)).unwrap();
    let fault = tables::prepare(&mut third, Missing::Create).unwrap_err();
    assert!(fault.is_busy(), "{fault}");
    first.commit().unwrap();
    tables::prepare(&mut third, Missing::Create).unwrap();
}

/// Each looks for a while: if they did so one after another, the last of many would wait too long.
#[test]
fn those_who_wait_for_the_creation_of_tables_look_at_them_together() {
    let Some(postgres) = shared() else { return };
    let address = Address::parse(&format!("{}?schema=created_once", postgres.url_at(postgres.port))).unwrap();
    let begun = || {
        let mut server = Server::connect(&address).unwrap();
        server.begin_without_lock().unwrap();
        server
    };
    let mut creator = begun();
    tables::create(&mut creator).unwrap();
    let (mut first, mut second) = (begun(), begun());
    let waiting = std::thread::spawn(move || {
        tables::create(&mut first).unwrap();
        first
    });
    wait_for_waiters(&mut creator, 1);
    creator.commit().unwrap();
    let first = waiting.join().unwrap();
    // The first has looked, and its transaction is still open.
    second.set_lock_timeout(Duration::from_millis(20)).unwrap();
    tables::create(&mut second).unwrap();
    drop(first);
}

#[test]
fn who_waits_for_a_creation_that_is_rolled_back_creates_the_tables() {
    let Some(postgres) = shared() else { return };
    let address = Address::parse(&format!("{}?schema=created_after_all", postgres.url_at(postgres.port))).unwrap();
    let mut creator = Server::connect(&address).unwrap();
    creator.begin_without_lock().unwrap();
    tables::create(&mut creator).unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || {
                tables::prepare(&mut Server::connect(&address).unwrap(), Missing::Create).unwrap()
            })
        })
        .collect();
    wait_for_waiters(&mut creator, 3);
    creator.roll_back();
    for thread in waiting {
        thread.join().unwrap();
    }
    assert!(tables::exists(&mut Server::connect(&address).unwrap()).unwrap());
}

/// Waits until as many sessions wait for the creation of the tables.
fn wait_for_waiters(creator: &mut Server, expected: i64) {
    let schema = creator.address().schema().to_owned();
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1::int::oid
                 AND objid = hashtext($2)::oid";
    let parameters: [&(dyn postgres::types::ToSql + Sync); 2] = [&tables::CLASS_OF_CREATIONS, &schema];
    crate::waits::eventually("sessions wait", || {
        creator.query(waits, &parameters).unwrap()[0].get::<_, i64>(0) == expected
    });
}
