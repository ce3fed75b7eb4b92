//! Look-ups of runs by task, status and time, and what `status`, `task` and `recent` report.

use duly::{Error, NewTask, Origin, Outage, Outcome, Recent, RunFilter, RunStatus};

use crate::fixtures::{NOON, TestDb, at, eventually, minutes, seconds, work_off};

#[test]
fn runs_are_found_by_task_status_and_time() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::cron("hourly", "0 * * * *").handler("work").at_most_once()).unwrap();
    client.add(NewTask::once("now", at(NOON)).handler("work")).unwrap();
    for (hour, outcome) in [("13", Outcome::failed("no")), ("14", Outcome::succeeded())] {
        for claim in stepper.step().unwrap() {
            stepper.finish(&claim, Outcome::succeeded());
        }
        stepper.clock().set_wall(at(&format!("2027-03-14T{hour}:00:00Z")));
        let claims = stepper.step().unwrap();
        stepper.finish(&claims[0], outcome);
        stepper.step().unwrap();
    }
    // No turn for nine hours: eight occurrences are one missed row, from 15:00 to 22:00.
    stepper.clock().set_wall(at("2027-03-14T23:10:00Z"));
    stepper.step().unwrap();

    let found = |filter: &RunFilter| -> Vec<String> {
        let runs = client.runs(filter).unwrap();
        runs.iter()
            .map(|run| format!("{} {} {}", run.task, &run.scheduled_for.to_string()[11..16], run.status))
            .collect()
    };
    let all = ["hourly 23:00 running", "hourly 15:00 missed", "hourly 14:00 succeeded", "hourly 13:00 dead"];
    assert_eq!(found(&RunFilter::newest(9).of("hourly")), all);
    assert_eq!(found(&RunFilter::newest(2).of("hourly")), all[..2]);
    assert_eq!(found(&RunFilter::newest(9))[4], "now 12:00 succeeded");
    assert_eq!(found(&RunFilter::newest(9).status(RunStatus::Succeeded)), [all[2], "now 12:00 succeeded"]);
    assert_eq!(found(&RunFilter::newest(9).status(RunStatus::Cancelled)), Vec::<String>::new());
    // A row of several occurrences is found by the newest of them.
    assert_eq!(found(&RunFilter::newest(9).since(at("2027-03-14T22:00:00Z"))), all[..2]);
    assert_eq!(found(&RunFilter::newest(9).since(at("2027-03-14T22:00:01Z"))), all[..1]);
    let dead = RunFilter::newest(9).of("hourly").status(RunStatus::Dead).since(at("2027-03-14T13:00:00Z"));
    assert_eq!(found(&dead), all[3..]);
    assert!(matches!(client.runs(&RunFilter::newest(9).of("weekly")), Err(Error::UnknownTask { .. })));
    assert_eq!(RunStatus::ALL.len(), 8);
    assert!(Origin::ALL.iter().all(|origin| Origin::parse(origin.as_str()) == Some(*origin)));
}

#[test]
fn a_stored_task_computes_its_next_occurrences() {
    let (db, stepper) = TestDb::with_stepper();
    let client = stepper.client();
    client.add(NewTask::cron("daily", "30 2 * * *").time_zone("Europe/Rome").handler("work")).unwrap();
    client.pause("daily").unwrap();
    let daily = client.task("daily").unwrap().unwrap();
    // The clock in Rome skips half past two on 28 March: the run is due at the change.
    let ahead = daily.occurrences(at("2027-03-27T12:00:00Z"), 2).unwrap();
    assert_eq!(ahead, [at("2027-03-28T01:00:00Z"), at("2027-03-29T00:30:00Z")]);
    client.add(NewTask::delay("after", std::time::Duration::from_secs(60)).handler("work")).unwrap();
    let after = client.task("after").unwrap().unwrap();
    assert_eq!(after.occurrences(at(NOON), 3).unwrap(), [at("2027-03-14T12:01:00Z")]);
    db.execute("UPDATE scheduled_tasks SET schedule_value = 'soon' WHERE name = 'after'");
    let broken = client.task("after").unwrap().unwrap();
    assert!(broken.occurrences(at(NOON), 3).unwrap_err().to_string().starts_with("invalid schedule \"soon\""));
}

#[test]
fn status_shows_which_schedulers_are_alive() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::once("now", at(NOON)).handler("work")).unwrap();
    client.add(NewTask::cron("later", "@daily").handler("work")).unwrap();
    stepper.step().unwrap();
    let status = client.status().unwrap();
    let [one] = &status.instances[..] else { panic!("{status:?}") };
    assert_eq!((one.id.as_str(), one.alive, one.pid), (stepper.owner(), Some(true), std::process::id()));
    assert_eq!((status.runs, status.blocked), (vec![(RunStatus::Running, 1)], 0));
    assert_eq!(status.next, Some(("later".to_owned(), at("2027-03-15T00:00:00Z"))));
    assert!(db.is_on_server() || status.path.ends_with("agent.db"));
    assert_eq!(status.file_bytes > Some(0), !db.is_on_server());
    stepper.crash();
    // A process that another test starts holds a copy of the lock until it executes its program.
    eventually("it is dead", || client.status().unwrap().instances[0].alive == Some(false));
    let mut next = db.stepper("2027-03-14T12:00:01Z");
    next.step().unwrap();
    assert_eq!(client.status().unwrap().instances.len(), 1, "the dead scheduler is recovered");
}

/// The row of such a task stores nothing of its run; the look-up reads it from the run.
#[test]
fn a_task_that_is_due_once_shows_the_result_of_its_run() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    let once = |name: &str| NewTask::once(name, at(NOON)).handler("work").at_most_once();
    client.add_all([once("good"), once("bad"), once("later").handler("missing")]).unwrap();
    for claim in stepper.step().unwrap() {
        stepper.clock().advance(seconds(2));
        let outcome = if claim.task == "bad" { Outcome::failed("no luck") } else { Outcome::succeeded() };
        stepper.finish(&claim, outcome);
    }
    stepper.step().unwrap();
    let last = client.tasks().unwrap().into_iter().map(|task| (task.last_status, task.last_error, task.last_duration));
    let last: Vec<_> = last.collect();
    assert_eq!((last[0].0, last[0].1.as_deref()), (Some(RunStatus::Dead), Some("no luck")));
    assert_eq!((last[1].0, last[1].1.as_deref()), (Some(RunStatus::Succeeded), None));
    assert!(last[..2].iter().all(|(.., took)| took.is_some_and(|took| took >= seconds(2))), "{last:?}");
    assert_eq!(last[2], (None, None, None), "no attempt has begun");
    assert_eq!(client.task("bad").unwrap().unwrap().last_status, Some(RunStatus::Dead));
}

/// What has run does not run again, and a delay counts from the end of its last run.
#[test]
fn the_projection_of_an_outage_begins_at_the_state_of_the_task() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::once("once", at("2027-03-14T12:10:00Z")).handler("work")).unwrap();
    client.add(NewTask::delay("delay", minutes(60)).handler("work")).unwrap();
    stepper.clock().advance(minutes(50));
    work_off(&mut stepper);
    let (down, up) = ("2027-03-14T12:50:00Z", "2027-03-14T13:30:00Z");
    let outage_of = |task: &str| client.task(task).unwrap().unwrap().outage(at(down), at(up)).unwrap();
    let (once, delay) = (outage_of("once"), outage_of("delay"));
    let projections = |outage: &Outage| -> Vec<_> {
        outage
            .projections
            .iter()
            .map(|projection| (projection.first.to_string(), projection.origin, projection.status))
            .collect()
    };
    stepper.crash();
    let mut stepper = db.stepper(up);
    stepper.step().unwrap();
    db.assert_history("once", &["2027-03-14 12:10:00 catch_up succeeded"]);
    assert_eq!((projections(&once), once.next), (vec![], None));
    db.assert_history("delay", &["2027-03-14 13:00:00 catch_up running"]);
    let late = ("2027-03-14T13:00:00.000Z".to_owned(), Origin::CatchUp, RunStatus::Queued);
    assert_eq!((projections(&delay), delay.next), (vec![late], None));
}

#[test]
fn recent_returns_the_last_runs_of_each_task() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    for (name, every) in [("often", 1), ("seldom", 7)] {
        client.add(NewTask::interval(name, minutes(every)).handler("work").at_most_once()).unwrap();
    }
    client.add(NewTask::once("never", at("2999-01-01T00:00:00Z")).handler("work")).unwrap();
    client.add(NewTask::cron("asked", "@yearly").handler("work")).unwrap();
    for minute in 0..30 {
        if minute % 4 == 0 {
            client.trigger("often").unwrap();
            client.trigger("asked").unwrap();
        }
        while let Some(claim) = stepper.step().unwrap().first().cloned() {
            stepper.clock().advance(seconds(minute % 5));
            let outcome = if minute % 3 == 0 { Outcome::failed("no") } else { Outcome::succeeded() };
            stepper.finish(&claim, outcome);
        }
        stepper.clock().advance(minutes(1));
    }
    stepper.step().unwrap();
    assert_eq!(client.names().unwrap(), ["asked", "never", "often", "seldom"]);
    for limit in [1, 5, 12, 1000] {
        let mut recent = client.recent(limit).unwrap();
        for task in client.tasks().unwrap() {
            let runs = client.history(task.name(), limit).unwrap();
            let last: Vec<Recent> = runs.iter().rev().map(Recent::from).collect();
            assert_eq!(recent.remove(&task.id).unwrap_or_default(), last, "{} {limit}", task.name());
            assert_eq!(last.is_empty(), task.name() == "never");
        }
        assert!(recent.is_empty());
    }
    let often = &client.recent(100).unwrap()[&client.task("often").unwrap().unwrap().id];
    let with = |status: RunStatus| often.iter().filter(|run| run.status == status).count();
    assert!(with(RunStatus::Dead) > 3 && with(RunStatus::Succeeded) > 3 && with(RunStatus::Running) == 1, "{often:?}");
    assert!(often.iter().any(|run| run.duration > Some(seconds(2))));
}
