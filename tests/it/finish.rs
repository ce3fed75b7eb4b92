//! `finish` commits the outcome of a handler together with rows of the application: both are stored, or neither.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::command::CommandContext;
use duly::testing::Stepper;
use duly::{BoxError, Context, Error, Event, NewTask, RunStatus, Scheduler};

use crate::fixtures::{NOON, TestDb, at, claim, eventually, held, listen, once, overdue, patience, seconds};

const SOON: &str = "2027-03-14T12:00:05Z";
const END: &str = "2027-03-14T12:05:00Z";

/// A database with a table of the application.
fn database_with_sales() -> TestDb {
    let db = TestDb::new();
    drop(db.client());
    db.plain().execute_batch("CREATE TABLE sold (run INTEGER, what TEXT) STRICT").unwrap();
    db
}

/// A stepper with this handler for `work`, one task of it, and a bystander.
fn stepper_with<T: serde::Serialize + 'static>(
    db: &TestDb,
    handler: impl Fn(&Context) -> Result<T, BoxError> + Send + Sync + 'static,
) -> (Stepper, Vec<String>) {
    let stepper = db.builder(NOON).handler("work", handler).start().unwrap();
    let bystander = db.add_bystander(&stepper);
    stepper.client().add(once("subject")).unwrap();
    (stepper, bystander)
}

fn record_sale(run: &Context, what: &str) -> Result<usize, BoxError> {
    run.finish(|tx| Ok(tx.execute("INSERT INTO sold (run, what) VALUES (?1, ?2)", (run.run_id(), what))?))
}

fn subject_runs(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT r.status, r.attempt, r.result, r.error FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
          WHERE t.name = 'subject' ORDER BY r.id",
    )
}

fn sales(db: &TestDb) -> Vec<String> {
    db.rows("SELECT what FROM sold ORDER BY rowid")
}

#[test]
fn rows_and_outcome_are_committed_although_what_follows_is_refused() {
    let db = database_with_sales();
    let mut stepper = db.builder(NOON).handler("work", |run: &Context| record_sale(run, "tea")).start().unwrap();
    stepper.client().add(once("subject").on_success("tell")).unwrap();
    stepper.client().add(NewTask::manual("tell").handler("other")).unwrap();
    db.execute(
        "CREATE TRIGGER no BEFORE INSERT ON task_runs WHEN NEW.origin = 'on_success'
         BEGIN SELECT RAISE(ABORT, 'not in my db'); END",
    );
    stepper.run_until(at(END)).unwrap();
    assert_eq!((subject_runs(&db), sales(&db)), (vec!["succeeded|1|1|-".to_owned()], vec!["tea".to_owned()]));
    let told = "SELECT detail FROM scheduler_events WHERE kind = 'not_followed'";
    assert_eq!(db.rows(told), ["the on_success task \"tell\" cannot run: not in my db"]);
}

#[test]
fn rows_and_outcome_are_committed_together_and_reported_once() {
    let db = database_with_sales();
    let (observer, events) = listen();
    let file = db.file().to_owned();
    let mut stepper = db
        .builder(NOON)
        .handler("work", move |run: &Context| {
            run.progress("half way");
            CommandContext::of(run).record_output("printed");
            run.finish(|tx| {
                tx.execute("INSERT INTO sold (run, what) VALUES (?1, 'tea')", [run.run_id()])?;
                // No other connection sees the row or the outcome yet.
                let plain = rusqlite::Connection::open(&file)?;
                let seen = "SELECT (SELECT count(*) FROM sold) || (SELECT status FROM task_runs WHERE id = 2)";
                assert_eq!(plain.query_row(seen, [], |row| row.get::<_, String>(0))?, "0running");
                Ok(vec![1, 2])
            })
        })
        .observe(observer)
        .start()
        .unwrap();
    let bystander = db.add_bystander(&stepper);
    stepper.client().add(NewTask::delay("subject", seconds(3600)).handler("work")).unwrap();
    stepper.client().trigger("subject").unwrap();
    stepper.run_until(at("2027-03-14T12:00:02Z")).unwrap();

    assert_eq!(subject_runs(&db), ["succeeded|1|[1,2]|-"]);
    assert_eq!(sales(&db), ["tea"]);
    let row =
        "SELECT output || progress || (finished_at IS NOT NULL) || (locked_by IS NULL) FROM task_runs WHERE id = 2";
    assert_eq!(db.ask(row), "printedhalf way11");
    // The delay counts from the end of the run.
    let task = db.client().task("subject").unwrap().unwrap();
    assert_eq!(task.last_status, Some(RunStatus::Succeeded));
    let ended = db.run(2).finished_at.unwrap();
    assert_eq!(task.next_run, Some(ended.plus(seconds(3600))));
    assert_eq!(events.try_iter().filter(|event| matches!(event, Event::Finished { .. })).count(), 1);
    db.assert_bystander(&bystander);
    stepper.stop().unwrap();
    assert_eq!(db.lock_files(), [""; 0], "the owner has no run any more");
    db.assert_sound();
}

#[test]
fn runs_that_wait_for_a_finished_run_start() {
    let db = database_with_sales();
    let (mut stepper, bystander) = stepper_with(&db, |run| record_sale(run, run.task()));
    for name in ["a", "b", "c"] {
        stepper.client().add(once(name).concurrency_key("till")).unwrap();
    }
    let done = stepper.run_until(at(SOON)).unwrap();
    assert_eq!(done.len(), 4);
    let mut sold = sales(&db);
    sold.sort();
    assert_eq!(sold, ["a", "b", "c", "subject"]);
    assert_eq!(stepper.running().len(), 0);
    db.assert_bystander(&bystander);
    db.assert_sound();
}

/// A handler, its run after the first attempt and at the end, and what is sold at the end.
type Case =
    (&'static str, fn(&Context) -> Result<usize, BoxError>, &'static str, &'static str, &'static [&'static str]);

#[test]
fn nothing_is_committed_partially() {
    let cases: [Case; 9] = [
        (
            "the closure fails, and the handler returns the error",
            |run| {
                run.finish(|tx| {
                    tx.execute("INSERT INTO sold VALUES (1, 'half')", [])?;
                    if run.attempt() == 1 { Err("no change".into()) } else { Ok(7) }
                })
            },
            "failed|1|-|no change",
            "succeeded|2|7|-",
            &["half"],
        ),
        (
            "the closure fails, and the handler makes another end",
            |run| {
                let failed = run.finish(|tx| {
                    tx.execute("INSERT INTO sold VALUES (1, 'half')", [])?;
                    Err::<(), _>("no change".into())
                });
                assert_eq!(failed.unwrap_err().to_string(), "no change");
                record_sale(run, "whole")
            },
            "succeeded|1|1|-",
            "succeeded|1|1|-",
            &["whole"],
        ),
        (
            "SQLite refuses a row",
            |run| run.finish(|tx| Ok(tx.execute("INSERT INTO sold VALUES ('no number', 'x')", [])?)),
            "failed|1|-|cannot store TEXT value in INTEGER column sold.run",
            "dead|5|-|cannot store TEXT value in INTEGER column sold.run",
            &[],
        ),
        (
            "the closure panics",
            |run| {
                run.finish(|tx| {
                    tx.execute("INSERT INTO sold VALUES (1, 'half')", [])?;
                    assert!(run.attempt() > 1, "dropped the till");
                    Ok(0)
                })
            },
            "failed|1|-|the handler panicked: dropped the till",
            "succeeded|2|0|-",
            &["half"],
        ),
        (
            "the handler fails after its end",
            |run| {
                record_sale(run, "tea")?;
                Err("too late to say so".into())
            },
            "succeeded|1|1|-",
            "succeeded|1|1|-",
            &["tea"],
        ),
        (
            "the handler panics after its end, and says something else",
            |run| {
                record_sale(run, "tea")?;
                CommandContext::of(run).record_output("too late to say so");
                panic!("too late to say so")
            },
            "succeeded|1|1|-",
            "succeeded|1|1|-",
            &["tea"],
        ),
        (
            "a second end",
            |run| {
                record_sale(run, "tea")?;
                let refused = record_sale(run, "more tea").unwrap_err().to_string();
                assert_eq!(refused, "cannot finish run 2 of \"subject\": it is finished already");
                Ok(3)
            },
            "succeeded|1|1|-",
            "succeeded|1|1|-",
            &["tea"],
        ),
        (
            "a finish within a finish",
            |run| run.finish(|_| record_sale(run, "tea")),
            "failed|1|-|cannot finish run 2 of \"subject\": it is being finished already",
            "dead|5|-|cannot finish run 2 of \"subject\": it is being finished already",
            &[],
        ),
        (
            "the closure ends the transaction by itself",
            |run| run.finish(|tx| Ok(tx.execute_batch("ROLLBACK").map(|()| 0)?)),
            "failed|1|-|cannot finish run 2 of \"subject\": its transaction was ended within: leave BEGIN and COMMIT to duly",
            "dead|5|-|cannot finish run 2 of \"subject\": its transaction was ended within: leave BEGIN and COMMIT to duly",
            &[],
        ),
    ];
    for (what, handler, first, at_last, rows) in cases {
        let db = database_with_sales();
        let (mut stepper, bystander) = stepper_with(&db, handler);
        stepper.run_until(at(SOON)).unwrap();
        assert_eq!(subject_runs(&db), [first], "{what}");
        stepper.run_until(at(END)).unwrap();
        assert_eq!(subject_runs(&db), [at_last], "{what}");
        assert_eq!(sales(&db), rows, "{what}");
        assert!(db.runs().iter().all(|run| run.output.is_none()), "{what}");
        db.assert_bystander(&bystander);
        db.assert_sound();
    }
}

#[test]
fn a_superseded_attempt_commits_nothing() {
    for (taken, says) in [
        ("UPDATE task_runs SET locked_by = 'another' WHERE id = 2", "no longer belongs to attempt 1"),
        ("UPDATE task_runs SET attempt = 2 WHERE id = 2", "no longer belongs to attempt 1"),
    ] {
        let db = database_with_sales();
        let file = db.file().to_owned();
        let (mut stepper, bystander) = stepper_with(&db, move |run| {
            rusqlite::Connection::open(&file).unwrap().execute(taken, []).unwrap();
            let refused = record_sale(run, "tea").unwrap_err();
            assert!(refused.to_string().contains(says), "{refused}");
            assert!(matches!(refused.downcast_ref::<Error>(), Some(Error::Superseded { run: 2, .. })));
            Err::<(), _>(refused)
        });
        stepper.run_until(at(SOON)).unwrap();
        assert!(sales(&db).is_empty(), "{says}");
        assert_eq!(db.outcomes(), ["1|superseded"]);
        db.assert_bystander(&bystander);
    }
}

#[test]
fn a_claim_lost_within_the_closure_discards_its_rows() {
    let db = database_with_sales();
    let (mut stepper, bystander) = stepper_with(&db, |run| {
        let refused = run.finish(|tx| {
            tx.execute("INSERT INTO sold VALUES (1, 'half')", [])?;
            Ok(tx.execute("UPDATE task_runs SET locked_by = 'another' WHERE id = 2", [])?)
        });
        assert!(matches!(refused.unwrap_err().downcast_ref::<Error>(), Some(Error::Superseded { .. })));
        record_sale(run, "tea")
    });
    stepper.run_until(at(SOON)).unwrap();
    assert_eq!((subject_runs(&db), sales(&db)), (vec!["succeeded|1|1|-".to_owned()], vec!["tea".to_owned()]));
    db.assert_bystander(&bystander);
}

// ------------------------------------------------------------------------------------------- on_connect --

#[test]
fn each_worker_prepares_one_connection_and_keeps_the_required_pragmas() {
    let db = database_with_sales();
    let prepared = Arc::new(AtomicUsize::new(0));
    let count = prepared.clone();
    let scheduler = Scheduler::builder(db.file())
        .workers(2)
        .on_connect(move |connection| {
            count.fetch_add(1, Ordering::Relaxed);
            connection.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA synchronous = OFF")?;
            Ok(connection.execute_batch("CREATE TEMP TABLE till (what TEXT)")?)
        })
        .handler("work", |run: &Context| {
            run.finish(|tx| {
                tx.execute("INSERT INTO till VALUES (?1)", [run.task()])?;
                let pragmas = ["foreign_keys", "synchronous", "trusted_schema"];
                let read = |name| tx.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
                Ok(pragmas.map(read).into_iter().collect::<Result<Vec<_>, _>>()?)
            })
        })
        .handler("idle", |_: &Context| Ok::<_, BoxError>(()))
        .start()
        .unwrap();
    scheduler.add(overdue("idle").handler("idle")).unwrap();
    let succeeded = |count: &str| db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'") == count;
    eventually("the idle one is done", || succeeded("1"));
    assert_eq!(prepared.load(Ordering::Relaxed), 0, "opened when it is needed");
    for n in 0..20 {
        scheduler.add(overdue(&format!("t{n}"))).unwrap();
    }
    eventually("all are done", || succeeded("21"));
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    assert!((1..=2).contains(&prepared.load(Ordering::Relaxed)), "{prepared:?}");
    assert_eq!(db.rows("SELECT DISTINCT result FROM task_runs WHERE handler = 'work'"), ["[1,2,0]"]);
    db.assert_sound();
}

#[test]
fn a_connection_that_cannot_be_prepared_fails_the_attempt_which_is_retried() {
    for (broken, says) in [
        ("SELECT no_such_function()", "no such function: no_such_function"),
        ("BEGIN", "it was left within a transaction: commit what it begins"),
    ] {
        let db = database_with_sales();
        let tries = AtomicUsize::new(0);
        let mut stepper = db
            .builder(NOON)
            .handler("work", |run: &Context| record_sale(run, "tea"))
            .on_connect(move |connection| match tries.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(connection.execute_batch(broken)?),
                _ => Ok(()),
            })
            .start()
            .unwrap();
        stepper.client().add(once("subject")).unwrap();
        stepper.run_until(at(SOON)).unwrap();
        let error = db.runs().remove(0).error.unwrap();
        assert!(error.starts_with("cannot prepare a worker's connection (on_connect): "), "{error}");
        assert!(error.contains(says), "{error}");
        stepper.run_until(at(END)).unwrap();
        assert_eq!((subject_runs(&db), sales(&db)), (vec!["succeeded|2|1|-".to_owned()], vec!["tea".to_owned()]));
    }
}

// -------------------------------------------------------------------------------------- the real scheduler --

#[test]
fn the_event_loop_does_not_record_a_finished_run_again() {
    let db = database_with_sales();
    let (observer, events) = listen();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let scheduler = Scheduler::builder(db.file())
        .workers(1)
        .poll(Duration::from_millis(50))
        // Heartbeats come between the end of the run and the return of its handler.
        .lease(seconds(1))
        .handler("work", move |run: &Context| {
            record_sale(run, run.task())?;
            held(&*gate.lock().unwrap())?;
            Ok::<_, BoxError>("something else")
        })
        .observe(observer)
        .start()
        .unwrap();
    scheduler.add(overdue("subject")).unwrap();
    eventually("the run is over", || subject_runs(&db) == ["succeeded|1|1|-"]);
    let seen = db.ask("SELECT seen_at FROM scheduler_instances");
    eventually("a heartbeat", || db.ask("SELECT seen_at FROM scheduler_instances") != seen);
    let row = db.rows("SELECT * FROM task_runs");
    open.send(()).unwrap();
    // The drain ends: nothing is left to settle.
    scheduler.drain();
    eventually("the scheduler has stopped", || scheduler.has_stopped());
    assert_eq!(db.rows("SELECT * FROM task_runs"), row);
    assert_eq!(db.outcomes(), [""; 0]);
    let ends: Vec<_> = events.try_iter().filter(|event| matches!(event, Event::Finished { .. })).collect();
    assert!(matches!(&ends[..], [Event::Finished { status: RunStatus::Succeeded, error: None, .. }]), "{ends:?}");
    db.assert_sound();
}

/// The path may lead elsewhere by then: it was relative, or a link.
#[cfg(unix)]
#[test]
fn a_worker_writes_the_file_that_its_scheduler_has_open() {
    let db = TestDb::new();
    let folders = ["a", "b"].map(|name| db.home().join(name));
    folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let link = db.home().join("current");
    std::os::unix::fs::symlink(&folders[0], &link).unwrap();
    let builder = Stepper::builder(link.join("agent.db"), at(NOON));
    let mut stepper = builder.handler("work", |run: &Context| run.finish(|_| Ok(5))).start().unwrap();
    stepper.client().add(once("subject")).unwrap();
    let claim = claim(&mut stepper);
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&folders[1], &link).unwrap();
    stepper.carry_out(&claim);
    stepper.step().unwrap();
    assert_eq!(stepper.client().history("subject", 1).unwrap()[0].status, RunStatus::Succeeded);
    assert!(!folders[1].join("agent.db").exists());
}

/// A write of a client would wait for the lock that its own thread holds.
#[test]
fn a_client_that_writes_in_the_closure_of_finish_is_refused_at_once() {
    let db = database_with_sales();
    let client = db.client();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let errors = refused.clone();
    let handler = move |run: &Context| {
        run.finish(|tx| {
            let mut errors = errors.lock().unwrap();
            errors.push(client.add(once("inner")).unwrap_err().to_string());
            errors.push(client.trigger("subject").unwrap_err().to_string());
            assert_eq!(
                client.task("subject")?.map(|task| task.name().to_owned()).as_deref(),
                Some("subject"),
                "it may read"
            );
            client.add_in(tx, once("inner"))?;
            Ok(())
        })
    };
    let (mut stepper, _) = stepper_with(&db, handler);
    stepper.run_until(at(SOON)).unwrap();
    assert_eq!(subject_runs(&db), ["succeeded|1|-|-"]);
    let errors = refused.lock().unwrap();
    let reason = "this thread holds the write lock of the database, in the closure of `finish`: add tasks there with \
                  `Client::add_in`, and do everything else before or after it";
    assert_eq!(errors[..2], [format!("cannot add a task: {reason}"), format!("cannot trigger a task: {reason}")]);
    assert!(stepper.client().task("inner").unwrap().is_some());
    // The place is free again: this thread writes.
    stepper.client().add(once("after")).unwrap();
    db.assert_sound();
}

#[test]
fn a_write_beside_an_own_transaction_says_how_to_add_within_it() {
    let db = database_with_sales();
    let stepper = db.builder(NOON).busy_timeout(Duration::ZERO).start().unwrap();
    let mut plain = db.plain();
    let tx = plain.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let error = stepper.client().add(once("inner")).unwrap_err().to_string();
    let expected = "cannot add a task: database is locked: another connection has an open transaction that writes (if it is one of \
                    this thread, add tasks within it)";
    assert_eq!(error, expected);
    stepper.client().add_in(&tx, once("inner")).unwrap();
    tx.commit().unwrap();
}
