//! Rows of a handler and the end of its run, committed in one transaction of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use duly::testing::Stepper;
use duly::{BoxError, Client, Context, Error, NewTask, RunStatus};
use postgres::Transaction;

use crate::fixtures::on_server::{OnServer, session};
use crate::fixtures::{NOON, TestDb, at, once};
use crate::postgres::database;

const END: &str = "2027-03-14T12:05:00Z";

/// A schema with a table of the application, which `shop` names with the schema.
struct Shop {
    server: OnServer,
    address: String,
}

impl Shop {
    fn new() -> Option<Self> {
        let address = database()?;
        drop(Client::open(&address).expect("a client"));
        let server = OnServer::at(address.clone());
        server.execute("CREATE TABLE sold (run bigint PRIMARY KEY, what text)").expect("a table");
        Some(Shop { server, address })
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {}.sold (run, what) VALUES ($1, $2)", self.server.schema())
    }

    fn run<T: serde::Serialize + 'static>(
        &self,
        handler: impl Fn(&Context) -> Result<T, BoxError> + Send + Sync + 'static,
    ) -> Stepper {
        let mut stepper =
            Stepper::builder(&self.address, at(NOON)).handler("work", handler).start().expect("a stepper");
        stepper.client().add(once("subject")).expect("a task");
        stepper.run_until(at(END)).expect("the end");
        stepper
    }

    fn ask(&self, query: &str) -> String {
        let copy = self.server.copy();
        copy.query_row(query, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// The status of the run, its attempts and result, and what is sold.
    fn found(&self) -> String {
        self.ask(
            "SELECT r.status || ' ' || r.attempt || ' ' || ifnull(r.result, '-') || ' '
                    || ifnull((SELECT group_concat(what) FROM sold), '-') FROM task_runs r WHERE r.id = 1",
        )
    }
}

fn sell(tx: &mut Transaction<'_>, insert: &str, run: &Context) -> Result<u32, BoxError> {
    tx.execute(insert, &[&run.run_id(), &"tea"])?;
    Ok(7)
}

#[test]
fn rows_and_outcome_are_committed_together() {
    let Some(shop) = Shop::new() else { return };
    let (insert, address) = (shop.insert(), shop.address.clone());
    let stepper = shop.run(move |run| {
        run.progress("half way");
        run.finish_in_postgres(|tx| {
            let answer = sell(tx, &insert, run)?;
            // The settings are those of the application, and no other session sees the row, or waits.
            let mark: String = tx.query_one("SELECT current_setting('duly.store', true)", &[])?.try_get(0)?;
            assert_eq!(mark, "");
            let found = session(&address)
                .query_one("SELECT (SELECT count(*) FROM sold) || (SELECT status FROM task_runs WHERE id = 1)", &[])?;
            assert_eq!(found.try_get::<_, String>(0)?, "0running");
            Client::open(&address)?.add(NewTask::manual("beside").handler("work"))?;
            Ok(answer)
        })
    });
    assert_eq!(shop.found(), "succeeded 1 7 tea");
    let run = stepper.client().run(1).expect("a look").expect("a run");
    assert_eq!((run.progress.as_deref(), run.locked_by, run.error), (Some("half way"), None, None));
    assert!(stepper.client().task("beside").expect("a look").is_some());
    assert_eq!(stepper.client().doctor().expect("findings"), []);
}

#[test]
fn rows_and_outcome_are_committed_although_what_follows_is_refused() {
    let Some(shop) = Shop::new() else { return };
    let insert = shop.insert();
    let handler = move |run: &Context| run.finish_in_postgres(|tx| sell(tx, &insert, run));
    let mut stepper = Stepper::builder(&shop.address, at(NOON)).handler("work", handler).start().expect("a stepper");
    stepper.client().add(once("subject").on_success("tell")).expect("a task");
    stepper.client().add(NewTask::manual("tell").handler("other")).expect("a task");
    let refuses = "CREATE TRIGGER no BEFORE INSERT ON task_runs WHEN NEW.origin = 'on_success'
                   BEGIN SELECT RAISE(ABORT, 'not in my db'); END";
    shop.server.execute(refuses).expect("a trigger");
    stepper.run_until(at(END)).expect("the end");
    assert_eq!(shop.found(), "succeeded 1 7 tea");
    let told = "SELECT group_concat(detail) FROM scheduler_events WHERE kind = 'not_followed'";
    let told = shop.ask(told);
    assert!(told.starts_with("the on_success task \"tell\" cannot run: not in my db"), "{told}");
}

#[test]
fn what_fails_within_undoes_the_rows_and_is_retried() {
    let Some(shop) = Shop::new() else { return };
    let (insert, calls) = (shop.insert(), Arc::new(AtomicUsize::new(0)));
    let called = calls.clone();
    drop(shop.run(move |run| {
        run.finish_in_postgres(|tx| {
            let answer = sell(tx, &insert, run)?;
            match called.fetch_add(1, Ordering::SeqCst) {
                0 => Err("no change".into()),
                // PostgreSQL has failed the transaction, and the closure says nothing of it.
                1 => {
                    assert!(tx.execute(&insert, &[&run.run_id(), &"tea"]).is_err());
                    Ok(answer)
                }
                2 => {
                    tx.batch_execute("ROLLBACK")?;
                    Ok(answer)
                }
                _ => Ok(answer),
            }
        })
    }));
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(shop.found(), "succeeded 4 7 tea");
    let errors = "SELECT group_concat(error, '; ') FROM (SELECT error FROM task_attempts ORDER BY attempt)";
    let errors = shop.ask(errors);
    assert!(errors.starts_with("no change; ") && errors.contains("leave BEGIN and COMMIT to duly"), "{errors}");
}

#[test]
fn a_run_that_another_owner_has_taken_is_not_finished() {
    for before in [true, false] {
        let Some(shop) = Shop::new() else { return };
        let (insert, other) = (shop.insert(), OnServer::at(shop.address.clone()));
        let (called, (send, ends)) = (Arc::new(AtomicUsize::new(0)), channel());
        let calls = called.clone();
        drop(shop.run(move |run| {
            let take = || other.execute("UPDATE task_runs SET locked_by = 'another' WHERE id = 1");
            if before {
                take()?;
            }
            let ended = run.finish_in_postgres(|tx| {
                calls.fetch_add(1, Ordering::SeqCst);
                let answer = sell(tx, &insert, run)?;
                if !before {
                    take()?;
                }
                Ok(answer)
            });
            let refused = ended.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
            send.send(matches!(refused, Some(Error::Superseded { .. }))).expect("a test that waits");
            ended
        }));
        assert!(ends.try_iter().all(|is_superseded| is_superseded));
        assert_eq!(called.load(Ordering::SeqCst) > 0, !before);
        // The other owner is dead, and the next attempt is superseded too.
        let found = shop.found();
        assert!(!found.starts_with("succeeded") && found.ends_with(" - -"), "{found}");
    }
}

#[test]
fn a_run_is_finished_once_and_in_the_database_of_its_task() {
    let Some(shop) = Shop::new() else { return };
    let insert = shop.insert();
    drop(shop.run(move |run| {
        let refused = run.finish(|_| Ok(())).expect_err("a server");
        assert!(refused.to_string().contains("use `finish_in_postgres`"), "{refused}");
        let within = |_: &mut Transaction<'_>| Ok(());
        let answer = run.finish_in_postgres(|tx| {
            assert!(run.finish_in_postgres(within).is_err(), "it is being finished");
            sell(tx, &insert, run)
        })?;
        let again = run.finish_in_postgres(within).expect_err("its end is stored");
        assert!(again.to_string().contains("it is finished already"), "{again}");
        Ok(answer)
    }));
    assert_eq!(shop.found(), "succeeded 1 7 tea");

    let db = TestDb::new();
    let mut stepper = db
        .builder(NOON)
        .handler("work", |run: &Context| -> Result<(), BoxError> {
            let refused = run.finish_in_postgres(|_| Ok(())).expect_err("a file");
            assert!(refused.to_string().contains("use `finish`"), "{refused}");
            Ok(())
        })
        .start()
        .expect("a stepper");
    stepper.client().add(once("subject")).expect("a task");
    stepper.run_until(at(END)).expect("the end");
    assert_eq!(db.run(1).status, RunStatus::Succeeded);
}

#[test]
fn a_task_that_the_application_adds_within_exists_if_the_run_succeeds() {
    let Some(shop) = Shop::new() else { return };
    let (insert, client) = (shop.insert(), Client::open(&shop.address).expect("a client"));
    let stepper = shop.run(move |run| {
        run.finish_in_postgres(|tx| {
            let next = NewTask::manual("next").handler("elsewhere").payload(run.attempt());
            client.add_in_postgres(tx, next)?;
            // What the application writes by SQL is checked and planned.
            tx.batch_execute(&format!(
                "INSERT INTO {}.scheduled_tasks (name, handler, schedule_type, schedule_value)
                 VALUES ('by-sql-{}', 'elsewhere', 'cron', '@daily')",
                insert.split(['.', ' ']).nth(2).expect("a schema"),
                run.attempt()
            ))?;
            if run.attempt() == 1 { Err("no change".into()) } else { sell(tx, &insert, run) }
        })
    });
    assert_eq!(shop.found(), "succeeded 2 7 tea");
    let names = stepper.client().names().expect("names");
    assert_eq!(names, ["by-sql-2", "next", "subject"]);
    let next = stepper.client().task("next").expect("a look").expect("a task");
    assert_eq!(next.definition.payload, "2");
    assert!(stepper.client().task("by-sql-2").expect("a look").expect("a task").next_run.is_some());
}
