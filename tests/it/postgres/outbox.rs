//! Tasks that an application adds in a transaction of its own on the server.

use duly::{Change, Client, Error, NewTask};
use postgres::NoTls;

use crate::fixtures::{NOON, TestDb, at};
use crate::postgres::database;

fn task(name: &str) -> NewTask {
    NewTask::once(name, at(NOON)).handler("ship").payload([1, 2]).priority(0)
}

#[test]
fn a_task_that_is_added_in_a_transaction_exists_if_that_commits() {
    let Some(address) = database() else { return };
    let client = Client::open(&address).unwrap();
    let (server, schema) = address.split_once("?schema=").unwrap();
    let socket = server.split_once('@').unwrap().1.split_once('/').unwrap();
    let host = socket.0.replace("%2F", "/");
    let connect =
        || postgres::Client::connect(&format!("host={host} user=postgres dbname={}", socket.1), NoTls).unwrap();
    if !host.starts_with('/') {
        return;
    }
    let mut shop = connect();
    shop.batch_execute(&format!("CREATE TABLE {schema}.orders (id bigint PRIMARY KEY)")).unwrap();
    let order = format!("INSERT INTO {schema}.orders (id) VALUES (7)");

    let mut tx = shop.transaction().unwrap();
    tx.execute(&order, &[]).unwrap();
    assert_eq!(client.add_in_postgres(&mut tx, task("ship:7")).unwrap().change, Change::Created);
    assert!(client.task("ship:7").unwrap().is_none(), "it is not committed");
    tx.rollback().unwrap();
    assert!(client.task("ship:7").unwrap().is_none());

    let mut tx = shop.transaction().unwrap();
    tx.execute(&order, &[]).unwrap();
    let added = client.add_in_postgres(&mut tx, task("ship:7")).unwrap();
    assert_eq!(client.add_in_postgres(&mut tx, task("ship:7")).unwrap().change, Change::Unchanged);
    // A refusal leaves the transaction as it was.
    let differs = client.add_in_postgres(&mut tx, task("ship:7").priority(3));
    assert!(matches!(differs, Err(Error::TaskDiffers { .. })), "{differs:?}");
    // What the application writes itself is still another program's.
    let mark: String = tx.query_one("SELECT coalesce(current_setting('duly.store', true), '')", &[]).unwrap().get(0);
    assert_eq!(mark, "");
    tx.commit().unwrap();
    let stored = client.task("ship:7").unwrap().unwrap();
    assert_eq!((stored.next_run, stored.definition.priority), (added.next_run, 0));
    assert_eq!(client.add(task("ship:7")).unwrap().change, Change::Unchanged);

    // A file is another database.
    let (_db, of_file) = TestDb::with_client();
    let mut tx = shop.transaction().unwrap();
    let refused = of_file.add_in_postgres(&mut tx, task("ship:8"));
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}
