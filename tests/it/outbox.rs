//! Tasks added inside a transaction of the application, on its own connection: stored if and only if it commits.

use duly::{BoxError, Change, Client, Context, Error, NewTask};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::fixtures::{NOON, TestDb, at, once};

fn shipping_task(order: i64) -> NewTask {
    once(&format!("ship:{order}")).payload(order)
}

/// Returns a database with a table of the application, and the application's connection.
fn database_with_orders() -> (TestDb, Client, Connection) {
    let (db, client) = TestDb::with_client();
    let plain = db.plain();
    plain.execute_batch("CREATE TABLE orders (id INTEGER) STRICT; INSERT INTO orders VALUES (0)").unwrap();
    (db, client, plain)
}

fn begin(plain: &mut Connection) -> Transaction<'_> {
    plain.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

#[test]
fn a_task_is_stored_if_and_only_if_the_transaction_commits() {
    for commits in [true, false] {
        let (db, client, mut plain) = database_with_orders();
        client.add(shipping_task(0)).unwrap();
        let bystander = db.rows("SELECT * FROM scheduled_tasks");
        let tx = begin(&mut plain);
        tx.execute("INSERT INTO orders VALUES (7)", []).unwrap();
        let added = client.add_in(&tx, shipping_task(7)).unwrap();
        assert_eq!((added.name.as_str(), added.change, added.next_run), ("ship:7", Change::Created, Some(at(NOON))));
        assert_eq!(
            client.add_in(&tx, shipping_task(7)).unwrap().change,
            Change::Unchanged,
            "a name is an idempotency key"
        );
        assert!(client.task("ship:7").unwrap().is_none(), "it is not committed yet");
        if commits {
            tx.commit().unwrap()
        } else {
            tx.rollback().unwrap()
        }
        assert_eq!(client.task("ship:7").unwrap().is_some(), commits);
        assert_eq!(db.ask("SELECT count(*) FROM orders WHERE id = 7"), i64::from(commits).to_string());
        assert_eq!(db.rows("SELECT * FROM scheduled_tasks WHERE name = 'ship:0'"), bystander);

        // A scheduler runs it like any other.
        let mut stepper = db.stepper(NOON);
        assert_eq!(stepper.step().unwrap().len(), 1 + usize::from(commits));
    }
}

#[test]
fn a_refused_task_leaves_the_transaction_unchanged() {
    let (db, client, mut plain) = database_with_orders();
    client.add(shipping_task(0)).unwrap();
    let tx = begin(&mut plain);
    tx.execute("INSERT INTO orders VALUES (7)", []).unwrap();
    let refused = |task: NewTask| client.add_in(&tx, task).unwrap_err();
    assert!(matches!(refused(shipping_task(0).priority(3)), Error::TaskDiffers { field: "priority", .. }));
    assert!(matches!(refused(NewTask::cron("x", "every day").handler("work")), Error::InvalidSchedule { .. }));
    assert!(matches!(refused(NewTask::once("no spaces, please", at(NOON)).handler("work")), Error::InvalidTask { .. }));
    // This one is refused by the table, when its row is written.
    let never = NewTask::cron("never", "0 7 * * *").handler("work").ends_at(at("2020-01-01T00:00:00Z"));
    assert!(matches!(refused(never), Error::InvalidSchedule { .. }));
    tx.commit().unwrap();
    assert_eq!(db.rows("SELECT name FROM scheduled_tasks"), ["ship:0"]);
    assert_eq!(db.rows("SELECT id FROM orders"), ["0", "7"], "what the application wrote stays");
}

#[test]
fn a_transaction_on_another_file_is_refused() {
    let (db, client, _plain) = database_with_orders();
    let elsewhere = db.home().join("other.db");
    let mut memory = Connection::open_in_memory().unwrap();
    let mut other = Connection::open(&elsewhere).unwrap();
    other.execute("ATTACH ?1 AS duly", [db.file().to_str()]).unwrap();
    for (connection, found) in [(&mut memory, "it is on a database in memory"), (&mut other, "other.db")] {
        let error = client.add_in(&connection.transaction().unwrap(), shipping_task(7)).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("cannot add task \"ship:7\" in a transaction: it is on "), "{text}");
        assert!(text.contains(found) && text.contains("begin it on a connection to that file"), "{text}");
    }
    // The same file by another path.
    let link = db.home().join("link.db");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(db.file(), &link).unwrap();
        let mut linked = Connection::open(&link).unwrap();
        let tx = begin(&mut linked);
        assert_eq!(client.add_in(&tx, shipping_task(7)).unwrap().change, Change::Created);
    }
    assert!(client.task("ship:7").unwrap().is_none());
}

#[test]
fn no_task_is_added_after_the_transaction_has_ended() {
    let (db, client, mut plain) = database_with_orders();
    for end in ["COMMIT", "ROLLBACK"] {
        let tx = begin(&mut plain);
        tx.execute_batch(end).unwrap();
        let error = client.add_in(&tx, shipping_task(7)).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().ends_with("it has ended"), "{error}");
    }
    assert!(db.rows("SELECT name FROM scheduled_tasks").is_empty(), "the task was stored outside of a transaction");
}

#[test]
fn only_a_finished_run_adds_its_next_task() {
    let (db, _, _plain) = database_with_orders();
    let mut stepper = db
        .builder(NOON)
        .handler("work", |run: &Context| {
            let order: i64 = run.payload()?;
            if order == 9 {
                return Ok(());
            }
            run.finish(|tx| {
                // Due a quarter of an hour after this one, by the same clock.
                let later = run.scheduled_for().plus(std::time::Duration::from_secs(900));
                run.add_in(tx, NewTask::once(format!("bill:{order}"), later).handler("work").payload(9))?;
                tx.execute("INSERT INTO orders VALUES (?1)", [order])?;
                if run.attempt() < 3 { Err(BoxError::from("the printer is out of paper")) } else { Ok(()) }
            })
        })
        .start()
        .unwrap();
    stepper.client().add(shipping_task(7)).unwrap();
    let tasks = |db: &TestDb| db.rows("SELECT name, status FROM scheduled_tasks ORDER BY id");
    stepper.run_until(at("2027-03-14T12:00:15Z")).unwrap();
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts"), "2");
    assert_eq!((tasks(&db).len(), db.ask("SELECT count(*) FROM orders")), (1, "1".to_owned()));
    stepper.run_until(at("2027-03-14T12:14:59Z")).unwrap();
    assert_eq!(tasks(&db), ["ship:7|completed", "bill:7|active"]);
    assert_eq!(db.rows("SELECT id FROM orders"), ["0", "7"]);
    stepper.run_until(at("2027-03-14T12:15:01Z")).unwrap();
    assert_eq!(tasks(&db), ["ship:7|completed", "bill:7|completed"]);
    db.assert_sound();
}
