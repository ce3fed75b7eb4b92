//! Effects are done once, or reported as in doubt. The outside world of these tests is a list of actions.

use std::sync::{Arc, Mutex};

use duly::testing::Stepper;
use duly::{BoxError, Context, Error, Failure, NewTask, Outcome, Retention, RetryPolicy, RunStatus};

use crate::fixtures::{NOON, TestDb, at, finish, once};

const END: &str = "2027-03-14T12:05:00Z";

/// What was done outside, in order.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Vec<String>>>);

impl World {
    fn record(&self, what: &str) -> String {
        let mut done = self.0.lock().unwrap();
        done.push(what.to_owned());
        format!("{what} {}", done.len())
    }

    fn actions(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A stepper with this handler for `work` and one task of it, beside an effect of another run.
fn stepper_with(
    db: &TestDb,
    handler: impl Fn(&Context) -> Result<String, BoxError> + Send + Sync + 'static,
) -> Stepper {
    let stepper = db.builder(NOON).handler("work", handler).start().unwrap();
    stepper.client().add(once("subject")).unwrap();
    let bystander = "INSERT INTO task_effects (key, run_id, state, created_at) VALUES ('pay', 999, 'intent', 1)";
    db.execute(bystander);
    stepper
}

/// Returns the effects of a run, and asserts that the effect of the other run is unchanged.
#[track_caller]
fn effects(db: &TestDb, run: i64) -> Vec<String> {
    let all = db.rows("SELECT run_id, key, state, value FROM task_effects ORDER BY run_id, key");
    assert_eq!(all.last().map(String::as_str), Some("999|pay|intent|-"), "the bystander has changed");
    let of_run = format!("{run}|");
    all.iter().filter_map(|row| row.strip_prefix(&of_run)).map(str::to_owned).collect()
}

fn run_outcome(db: &TestDb, run: i64) -> (RunStatus, Option<String>, Option<String>) {
    let run = db.run(run);
    (run.status, run.result, run.error)
}

#[test]
fn an_effect_is_done_once_however_often_its_run_is_retried() {
    let (db, world) = (TestDb::new(), World::default());
    let outside = world.clone();
    let mut stepper = stepper_with(&db, move |run| {
        let paid: String = run.effect("pay", || Ok(outside.record("paid")))?;
        let sent: String = run.effect("send", || Ok(outside.record("sent")))?;
        match run.run_id() {
            2 => Ok(format!("{paid}, {sent}")),
            _ => Err("out of paper".into()),
        }
    });
    stepper.client().replace(once("subject").retry(RetryPolicy { max_attempts: 3, ..RetryPolicy::default() })).unwrap();
    assert_eq!(stepper.run_until(at(END)).unwrap().len(), 3, "three attempts");
    assert_eq!(world.actions(), ["paid", "sent"]);
    assert_eq!(run_outcome(&db, 1).0, RunStatus::Dead);

    // A manual retry is another run with the same effects, and so is the retry of a retry.
    assert_eq!(stepper.client().retry(1).unwrap(), 2);
    stepper.run_until(at(END)).unwrap();
    assert_eq!(run_outcome(&db, 2).1.as_deref(), Some(r#""paid 1, sent 2""#));
    assert_eq!(world.actions(), ["paid", "sent"]);
    assert_eq!(effects(&db, 1), [r#"pay|done|"paid 1""#, r#"send|done|"sent 2""#], "kept under the first run");

    // Another run of the task has effects of its own.
    stepper.client().trigger("subject").unwrap();
    stepper.run_until(at(END)).unwrap();
    assert_eq!(world.actions(), ["paid", "sent", "paid", "sent"]);
    assert_eq!(effects(&db, 3).len(), 2);
    db.assert_sound();
}

/// How an effect ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Fails,
    GivesUp,
    Panics,
    TooLong,
    NoJson,
}

#[test]
fn a_failed_effect_is_repeated_and_an_unknown_one_is_in_doubt() {
    let doubt = "effect \"pay\" of run 1 of \"subject\" is in doubt";
    for (ends, kept, status, says) in [
        (Ends::Fails, "", RunStatus::Succeeded, ""),
        (Ends::GivesUp, "", RunStatus::Dead, "no such account"),
        (Ends::Panics, "pay|intent|-", RunStatus::Dead, doubt),
        (Ends::TooLong, "pay|intent|-", RunStatus::Dead, "at most 262144 bytes of JSON, found 262147"),
        (Ends::NoJson, "pay|intent|-", RunStatus::Dead, "it was done, and is in doubt"),
    ] {
        let (db, world) = (TestDb::new(), World::default());
        let outside = world.clone();
        let mut stepper = stepper_with(&db, move |run| {
            let first = run.attempt() == 1 && run.run_id() == 1;
            if ends == Ends::NoJson && first {
                let nan = || Ok(std::collections::BTreeMap::from([(outside.record("paid").into_bytes(), 1)]));
                run.effect("pay", nan)?;
            }
            run.effect("pay", || match ends {
                _ if !first => Ok(outside.record("paid")),
                Ends::Fails => Err("the bank is closed".into()),
                Ends::GivesUp => Err(Failure::give_up("no such account").into()),
                Ends::TooLong => Ok("x".repeat(262_145)),
                Ends::Panics | Ends::NoJson => panic!("the bank is on fire"),
            })
        });
        stepper.run_until(at("2027-03-14T12:00:01Z")).unwrap();
        assert_eq!(effects(&db, 1).join(" "), kept, "{ends:?}");
        stepper.run_until(at(END)).unwrap();
        let (found, _, error) = run_outcome(&db, 1);
        assert_eq!(found, status, "{ends:?}: {error:?}");
        assert!(error.clone().unwrap_or_default().contains(says), "{ends:?}: {error:?}");
        assert_eq!(world.actions().len(), usize::from(matches!(ends, Ends::Fails | Ends::NoJson)), "{ends:?}");

        // The user settles the doubt and retries.
        if status == RunStatus::Dead && !kept.is_empty() {
            let was_done = ends == Ends::NoJson;
            let settle = if was_done {
                "UPDATE task_effects SET state = 'done', value = '\"found\"' WHERE run_id = 1 AND key = 'pay'"
            } else {
                "DELETE FROM task_effects WHERE run_id = 1 AND key = 'pay'"
            };
            assert_eq!(db.execute(settle), 1);
            stepper.client().retry(1).unwrap();
            stepper.run_until(at(END)).unwrap();
            let result = if was_done { "\"found\"" } else { "\"paid 1\"" };
            assert_eq!(run_outcome(&db, 2).1.as_deref(), Some(result), "{ends:?}");
            assert_eq!(world.actions(), ["paid"], "{ends:?}");
        }
        db.assert_sound();
    }
}

#[test]
fn the_error_of_a_doubt_names_the_effect_the_run_and_the_remedy() {
    let db = TestDb::new();
    let mut stepper = stepper_with(&db, |run| {
        let failed = run.effect("pay", || Ok(String::new())).unwrap_err();
        let failure = failed.downcast_ref::<Failure>().expect("a failure that gives up");
        let doubt = failure.error().downcast_ref::<Error>().expect("an error of duly");
        assert!(matches!(doubt, Error::InDoubt { run: 2, first: 1, key, .. } if key == "pay"), "{doubt:?}");
        Err(failed)
    });
    let mut dead = db.builder(NOON).accept("nothing").start().unwrap();
    dead.step().unwrap();
    // An attempt of the first run began the effect, and the run is dead.
    let begun = "INSERT INTO task_effects (key, run_id, state, created_at) VALUES ('pay', 1, 'intent', 1)";
    db.execute(begun);
    let claims = stepper.step().unwrap();
    let hopeless = "hopeless".to_owned();
    let (how, retry) = (duly::FailureKind::Failed, duly::Retry::GiveUp);
    stepper.finish(&claims[0], Outcome::Failed { how, error: hopeless, retry });
    stepper.step().unwrap();
    stepper.client().retry(1).unwrap();
    stepper.run_until(at(END)).unwrap();
    let (status, _, error) = run_outcome(&db, 2);
    assert_eq!(status, RunStatus::Dead, "it is not tried again");
    assert_eq!(
        error.unwrap(),
        "effect \"pay\" of run 2 of \"subject\" is in doubt: an attempt began it, and it is unknown whether it was done; \
         check; if it was not done, delete its row of task_effects (run_id 1); if it was, set its state to 'done' and its \
         value; then retry the run; or let the handler check with effect_or"
    );
}

#[test]
fn a_handler_with_a_look_up_settles_the_doubt() {
    for (found, actions, result, doubts) in [
        // Done; not done; after a look-up that fails: done; not done.
        (vec![Ok(Some("receipt 7"))], 0, "receipt 7", 1),
        (vec![Ok(None)], 1, "paid 1", 1),
        (vec![Err("no connection"), Ok(Some("receipt 7"))], 0, "receipt 7", 2),
        (vec![Err("no connection"), Ok(None)], 1, "paid 1", 2),
    ] {
        let (db, world) = (TestDb::new(), World::default());
        let (outside, looks) = (world.clone(), Arc::new(Mutex::new(found.into_iter())));
        let looked = Arc::new(Mutex::new(0));
        let counts = looked.clone();
        let mut stepper = stepper_with(&db, move |run| {
            let look_up = || {
                *counts.lock().unwrap() += 1;
                let found = looks.lock().unwrap().next().expect("another look-up");
                Ok(found.map(|found| found.map(str::to_owned))?)
            };
            run.effect_or("pay", look_up, || {
                assert!(run.attempt() > 1, "the first attempt dies in it");
                Ok(outside.record("paid"))
            })
        });
        stepper.run_until(at(END)).unwrap();
        assert_eq!((world.actions().len(), *looked.lock().unwrap()), (actions, doubts), "{result}");
        assert_eq!(run_outcome(&db, 1).1, Some(format!("\"{result}\"")));
        assert_eq!(effects(&db, 1), [format!("pay|done|\"{result}\"")]);
    }
}

#[test]
fn invalid_uses_of_effects_are_refused_and_not_retried() {
    type Asks = fn(&Context) -> Result<String, BoxError>;
    let cases: [(&str, Asks); 6] = [
        ("expected a key of 1 to 200 bytes, found 0", |run| run.effect("", || Ok(String::new()))),
        ("expected a key of 1 to 200 bytes, found 201", |run| run.effect(&"k".repeat(201), || Ok(String::new()))),
        ("this attempt is at it already", |run| run.effect("pay", || run.effect("pay", || Ok(String::new())))),
        ("do it before `finish`", |run| finish(run, "", || run.effect("pay", || Ok(String::new())))),
        ("its run is finished", |run| {
            finish(run, "", || Ok(()))?;
            let refused = run.effect("pay", || Ok(String::new()));
            assert!(refused.unwrap_err().to_string().contains("its run is finished"));
            Err("do it before `finish`: its run is finished".into())
        }),
        ("the value of effect \"pay\" of run 1 of \"subject\" cannot be used: found \"text\"", |run| {
            run.effect("pay", || Ok("text".to_owned()))?;
            run.effect::<u32>("pay", || unreachable!("it is done"))?;
            Ok(String::new())
        }),
    ];
    for (says, asks) in cases {
        let db = TestDb::new();
        let mut stepper = stepper_with(&db, asks);
        stepper.run_until(at(END)).unwrap();
        let (status, _, error) = run_outcome(&db, 1);
        if says.contains("is finished") {
            assert_eq!((status, error), (RunStatus::Succeeded, None));
            continue;
        }
        assert_eq!(status, RunStatus::Dead, "{says}");
        assert!(error.clone().unwrap().contains(says), "{says}: {error:?}");
        assert_eq!(db.run(1).attempt, 1, "{says}");
        let intents = effects(&db, 1).into_iter().filter(|effect| effect.contains("intent")).count();
        assert_eq!(intents, 0, "{says}: what was refused is not in doubt");
    }
}

#[test]
fn an_effect_that_cannot_be_recorded_is_in_doubt() {
    let (db, world) = (TestDb::new(), World::default());
    let outside = world.clone();
    let mut stepper = stepper_with(&db, move |run| run.effect("pay", || Ok(outside.record("paid"))));
    let full =
        "CREATE TRIGGER disk_full BEFORE UPDATE ON task_effects BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    db.execute(full);
    stepper.run_until(at("2027-03-14T12:00:01Z")).unwrap();
    let error = "cannot record an effect: the disk is full";
    // A server adds its code.
    let (status, result, found) = run_outcome(&db, 1);
    assert_eq!((status, result), (RunStatus::Failed, None));
    assert_eq!(found.map(|found| found.replace(" [SQLSTATE P0001]", "")).as_deref(), Some(error));
    db.execute("DROP TRIGGER disk_full");
    stepper.run_until(at(END)).unwrap();
    let (status, _, error) = run_outcome(&db, 1);
    assert_eq!((status, world.actions().len()), (RunStatus::Dead, 1));
    assert!(error.unwrap().contains("is in doubt"));
}

/// JSON has no such number: a later attempt would read `null`.
#[test]
fn an_effect_whose_value_json_cannot_hold_says_so_at_once() {
    let db = TestDb::new();
    let mut stepper = stepper_with(&db, |run| run.effect("weigh", || Ok(f64::NAN)).map(|weight| weight.to_string()));
    stepper.run_until(at(END)).unwrap();
    let (status, _, error) = run_outcome(&db, 1);
    assert_eq!((status, db.run(1).attempt), (RunStatus::Dead, 1));
    let error = error.unwrap();
    assert!(error.contains("NaN is no number of JSON; it was done, and is in doubt"), "{error}");
}

/// When the run is taken from its owner.
#[derive(Clone, Copy, Debug)]
enum Taken {
    Before,
    InASuccess,
    InAFailure,
    InALookUp,
}

#[test]
fn a_superseded_claim_begins_no_effect() {
    for (taken, actions, kept) in [
        (Taken::Before, 0, vec![]),
        // A success is recorded even without the claim: the next attempt must know. After a failure another attempt may be at it.
        (Taken::InASuccess, 1, vec![r#"pay|done|"paid 1""#]),
        (Taken::InAFailure, 1, vec!["pay|intent|-"]),
        (Taken::InALookUp, 0, vec!["pay|intent|-"]),
    ] {
        let (db, world) = (TestDb::new(), World::default());
        let (other, outside) = (db.other_program(), world.clone());
        let mut stepper = stepper_with(&db, move |run| {
            let take = || {
                other.execute("UPDATE task_runs SET locked_by = 'another' WHERE id = 1").unwrap();
            };
            let done = match taken {
                Taken::Before => {
                    take();
                    run.effect("pay", || Ok(outside.record("paid")))
                }
                Taken::InASuccess | Taken::InAFailure => run.effect("pay", || {
                    take();
                    let paid = outside.record("paid");
                    if matches!(taken, Taken::InAFailure) { Err("and superseded".into()) } else { Ok(paid) }
                }),
                Taken::InALookUp => {
                    let begun =
                        "INSERT INTO task_effects (key, run_id, state, created_at) VALUES ('pay', 1, 'intent', 1)";
                    other.execute(begun).unwrap();
                    let look_up = || {
                        take();
                        Ok(None)
                    };
                    run.effect_or("pay", look_up, || Ok(outside.record("paid")))
                }
            };
            let superseded = done.as_ref().is_err_and(|error| {
                matches!(error.downcast_ref::<Error>(), Some(Error::Superseded { run: 1, attempt: 1, .. }))
            });
            assert_eq!(superseded, matches!(taken, Taken::Before | Taken::InALookUp), "{taken:?}: {done:?}");
            Ok(String::new())
        });
        stepper.run_until(at("2027-03-14T12:00:30Z")).unwrap();
        assert_eq!(world.actions().len(), actions, "{taken:?}");
        assert_eq!(effects(&db, 1), kept, "{taken:?}");
        assert_eq!(db.ask("SELECT outcome || error FROM task_attempts"), "supersededsucceeded", "{taken:?}");
    }
}

#[test]
fn effects_are_kept_as_long_as_a_run_that_retries_theirs() {
    let db = TestDb::new();
    let paid = Arc::new(Mutex::new(0));
    let counts = paid.clone();
    let mut stepper = stepper_with(&db, move |run| {
        run.effect("pay", || {
            *counts.lock().unwrap() += 1;
            Ok("paid".to_owned())
        })?;
        Err(Failure::give_up("out of paper").into())
    });
    stepper.client().replace(NewTask::cron("subject", "0 13 * * *").handler("work")).unwrap();
    stepper.run_until(at(END)).unwrap();
    assert_eq!(stepper.client().effects(1).unwrap().len(), 1);
    // The user retries it a month later, before retention deletes the first run, and once more after that time.
    stepper.clock().set_wall(at("2027-04-12T12:00:00Z"));
    let retry = stepper.client().retry(1).unwrap();
    stepper.run_until(at("2027-04-12T12:00:01Z")).unwrap();
    stepper.clock().set_wall(at("2027-04-14T12:00:00Z"));
    let keep = Retention { least_runs: 0, ..Retention::default() };
    stepper.client().prune(keep).unwrap();
    let again = stepper.client().retry(retry).unwrap();
    let before = *paid.lock().unwrap();
    stepper.run_until(at("2027-04-14T12:00:01Z")).unwrap();
    assert_eq!(*paid.lock().unwrap(), before, "the effect is not repeated");
    assert_eq!(stepper.client().effects(again).unwrap(), stepper.client().effects(1).unwrap());
    assert_eq!(effects(&db, 1), [r#"pay|done|"paid""#]);
    assert!(matches!(stepper.client().effects(99), Err(Error::UnknownRun { id: 99 })));
}

#[test]
fn effects_are_deleted_with_their_run() {
    let db = TestDb::new();
    let mut stepper = stepper_with(&db, |run| run.effect("pay", || Ok("paid".to_owned())));
    stepper.run_until(at(END)).unwrap();
    assert_eq!(effects(&db, 1).len(), 1);
    stepper.client().remove("subject").unwrap();
    assert!(effects(&db, 1).is_empty());
}
