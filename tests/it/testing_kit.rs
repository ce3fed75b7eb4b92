//! The testing kit: time that is quiet is skipped and changes nothing, and what matters is not skipped; each helper does what it
//! says, and reports when it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duly::testing::{Stepper, StepperBuilder, clock_change_after, fail_first, local_time};
use duly::{
    AttemptOutcome, Clock, Context, Error, Finished, Misfire, NewTask, Outcome, Overlap, Retention, RunStatus,
    Timestamp,
};

use crate::fixtures::{NOON, TestDb, at, claim, listen, minutes, overdue, patience, seconds, step};

const YEAR: &str = "2028-03-14T12:00:00Z";

fn ok(_: &Context) -> Result<(), Error> {
    Ok(())
}

fn working(db: &TestDb) -> StepperBuilder {
    db.builder(NOON).handler("work", ok)
}

#[test]
fn a_quiet_year_costs_two_transactions_for_each_run() {
    for (line, runs) in [("0 7 * * *", 366), ("0 9 * * MON", 53)] {
        let db = TestDb::brief();
        let mut stepper = working(&db).start().expect("a stepper");
        stepper.client().add(NewTask::cron("task", line).handler("work")).expect("a task");
        step(&mut stepper, 0);
        let before = stepper.transactions();
        assert_eq!(stepper.run_until(at(YEAR)).expect("a year").len(), runs);
        let transactions = stepper.transactions() - before;
        // Each run is claimed, by a turn that is a heartbeat, and settled; the end of the year is a heartbeat.
        let heartbeat = db.transactions_of_a_heartbeat();
        assert_eq!(transactions, (heartbeat + 1) * runs as u64 + heartbeat, "{line}");
        assert_eq!(stepper.clock().now().wall, at(YEAR));
    }
}

/// As [`Stepper::run_until`], and skips no time.
fn run_each_turn(stepper: &mut Stepper, end: Timestamp) -> Vec<Finished> {
    let mut done = Vec::new();
    loop {
        let claims = stepper.step().expect("a step");
        done.extend(claims.iter().filter_map(|claim| stepper.carry_out(claim)));
        let now = stepper.clock().now().wall;
        match claims.is_empty() {
            true if now >= end => return done,
            true => stepper.clock().advance(stepper.sleeps().min(end.since(now))),
            false => {}
        }
    }
}

/// Each kind of task, retries, an expiry, a dead run that opens another, a pause, and retention: the rows are the same.
#[test]
fn time_that_is_skipped_changes_no_row() {
    let end = at(NOON) + minutes(9 * 60 + 7);
    let rows = |skip: bool| {
        let db = TestDb::brief();
        let short = Retention { runs: minutes(90), once: minutes(90), least_runs: 0, ..Retention::default() };
        let fails = fail_first(3, |_: &Context| Ok::<_, Error>("at last"));
        let builder = working(&db).handler("fails", fails).handler("dies", |_: &Context| Err::<(), _>("never"));
        let mut stepper = builder.retention(short).workers(1).start().expect("a stepper");
        let client = stepper.client().clone();
        let tasks = [
            NewTask::cron("hourly", "0 * * * *").handler("work"),
            NewTask::cron("in-rome", "30 2 * * *").time_zone("Europe/Rome").handler("work"),
            NewTask::interval("grid", minutes(47)).handler("work"),
            NewTask::delay("delay", minutes(31)).handler("fails"),
            NewTask::once("later", at(NOON) + minutes(200)).handler("dies").on_dead("alarm"),
            NewTask::manual("alarm").handler("work"),
            NewTask::cron("elsewhere", "15 * * * *").handler("other").expires(minutes(20)),
            NewTask::cron("paused", "20 * * * *").handler("work"),
        ];
        client.add_all(tasks).expect("tasks");
        client.pause("paused").expect("a pause");
        let done = if skip { stepper.run_until(end).expect("a day") } else { run_each_turn(&mut stepper, end) };
        let ended: Vec<_> = done
            .iter()
            .map(|one| format!("{} {} {} {:?}", one.claim.task, one.claim.attempt, one.started_at, one.outcome))
            .collect();
        let sql = "SELECT t.name, r.status, r.scheduled_for, r.run_at, r.attempt, r.started_at, r.finished_at, r.error, r.occurrences
                     FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY r.id";
        let next = db.rows("SELECT name, next_run, status FROM scheduled_tasks ORDER BY name");
        db.assert_sound();
        (ended, db.rows(sql), next, stepper.transactions())
    };
    let (skipped, full) = (rows(true), rows(false));
    assert_eq!(skipped.0, full.0);
    assert_eq!(skipped.1, full.1);
    assert_eq!(skipped.2, full.2);
    assert!(skipped.0.len() > 40 && skipped.1.len() > 5, "{skipped:?}");
    assert!(skipped.3 * 5 < full.3, "{} transactions, of {}", skipped.3, full.3);
}

/// While a run is running, each heartbeat extends its lease: here, and under another owner.
#[test]
fn time_with_a_running_run_is_not_skipped() {
    let (db, mut stepper) = TestDb::with_stepper();
    let mut other = db.builder(NOON).clock(stepper.clock()).handler("idle", ok).start().expect("another stepper");
    stepper.client().add(overdue("t").handler("work")).expect("a task");
    let long = claim(&mut stepper);
    step(&mut other, 0);
    let before = (stepper.transactions(), other.transactions());
    let heartbeat = db.transactions_of_a_heartbeat();
    other.run_for(minutes(10)).expect("ten minutes");
    let heartbeats = (other.transactions() - before.1) / heartbeat;
    assert!((30..=31).contains(&heartbeats), "another owner has a running run");
    stepper.run_for(minutes(10)).expect("ten minutes");
    let heartbeats = (stepper.transactions() - before.0) / heartbeat;
    assert!((30..=31).contains(&heartbeats), "its lease is extended");
    let run = stepper.client().run(long.run_id).expect("a look").expect("the run");
    assert!(run.locked_until > Some(stepper.clock().now().wall), "{run:?}");
    stepper.finish(&long, Outcome::succeeded());
    step(&mut stepper, 0);
    let before = stepper.transactions();
    stepper.run_for(minutes(10)).expect("ten minutes");
    assert_eq!(stepper.transactions() - before, heartbeat, "nothing runs any more");
}

/// The clock of a quiet stepper is stepped, and tasks are edited by SQL: the next turn sees both.
#[test]
fn edits_and_steps_of_the_clock_between_two_stretches_are_seen() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let mut stepper = working(&db).observe(observer).start().expect("a stepper");
    stepper.client().add(NewTask::cron("t", "0 7 * * *").handler("work")).expect("a task");
    assert_eq!(stepper.run_for(minutes(24 * 60)).expect("a day").len(), 1);
    db.execute("UPDATE scheduled_tasks SET schedule_value = '*/10 * * * *'");
    assert_eq!(stepper.run_for(minutes(60)).expect("an hour").len(), 7, "12:00 to 13:00");
    assert!(events.try_iter().all(|event| !matches!(event, duly::Event::ClockStepped { .. })));
    stepper.clock().set_wall(stepper.clock().now().wall + minutes(180));
    assert_eq!(stepper.run_for(minutes(1)).expect("a minute").len(), 1, "the newest of those that were missed");
    assert!(events.try_iter().any(|event| matches!(event, duly::Event::ClockStepped { .. })));
}

#[test]
fn a_stepper_runs_until_a_run_is_over_or_reports_how_far_it_is() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).handler("work", fail_first(2, ok)).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::manual("t").handler("work")).expect("a task");
    let run = client.trigger("t").expect("a run");
    let error = stepper.run_until_over(run, seconds(1)).expect_err("a retry is left");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot end run {run}: expected that within 1s, found failed, attempt 1")),
        "{text}"
    );
    let over = stepper.run_until_over(run, minutes(60)).expect("the run");
    assert_eq!((over.status, over.attempt), (RunStatus::Succeeded, 3));
    let now = stepper.clock().now();
    assert_eq!(stepper.run_until_over(run, minutes(60)).expect("the run"), over, "it was over");
    assert_eq!(stepper.clock().now(), now, "no time passes for it");
    assert!(matches!(stepper.run_until_over(run + 1, minutes(60)), Err(Error::UnknownRun { .. })));
}

#[test]
fn a_stepper_runs_until_a_task_has_run_so_many_times() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).handler("work", fail_first(1, ok)).start().expect("a stepper");
    stepper.client().add(NewTask::cron("t", "0 * * * *").handler("work")).expect("a task");
    stepper.client().add(NewTask::cron("beside", "*/20 * * * *").handler("work")).expect("a task");
    let runs = stepper.run_until_count("t", 3, minutes(24 * 60)).expect("three runs");
    let hours: Vec<_> = runs.iter().map(|run| run.scheduled_for.to_string()).collect();
    assert_eq!(hours, ["2027-03-14T13:00:00.000Z", "2027-03-14T14:00:00.000Z", "2027-03-14T15:00:00.000Z"]);
    let error = stepper.run_until_count("t", 3, minutes(120)).expect_err("two hours have two occurrences");
    assert_eq!(error.to_string(), "cannot end 3 runs of \"t\": expected that within 2h, found 2 of them");
}

#[test]
fn a_stepper_runs_until_it_is_idle() {
    let db = TestDb::new();
    let mut stepper = working(&db).accept("other").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add_all([overdue("now"), NewTask::cron("tomorrow", "0 0 * * *").handler("work")]).expect("tasks");
    assert_eq!(stepper.run_until_idle(seconds(1)).expect("idle").len(), 1);
    assert_eq!(stepper.clock().now().wall, at(NOON), "nothing waited");
    client.add(overdue("long").handler("other")).expect("a task");
    claim(&mut stepper);
    assert!(matches!(stepper.run_until_idle(minutes(1)), Err(Error::Refused { .. })), "a run is running");
}

#[test]
fn a_restart_keeps_the_configuration_and_recovers_what_was_running() {
    let db = TestDb::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let work = move |_: &Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    };
    let (observer, events) = listen();
    let mut stepper = db.builder(NOON).seed(7).handler("work", work).observe(observer).start().expect("a stepper");
    stepper.client().add(overdue("t")).expect("a task");
    let lost = claim(&mut stepper);
    let owner = stepper.owner().to_owned();
    let mut stepper = stepper.restart().expect("a restart");
    assert_ne!(stepper.owner(), owner);
    let run = stepper.run_until_over(lost.run_id, minutes(60)).expect("the run");
    assert_eq!((run.status, run.attempt, calls.load(Ordering::SeqCst)), (RunStatus::Succeeded, 2, 1));
    assert_eq!(stepper.client().attempts(run.id).expect("attempts")[0].outcome, AttemptOutcome::Lost);
    assert!(events.try_iter().any(|event| matches!(event, duly::Event::OwnerLost { owner: dead } if *dead == owner)));
    // Twice more: each owner needs an id of its own.
    let stepper = stepper.restart().expect("a restart").restart().expect("a restart");
    stepper.stop().expect("an end");
}

#[test]
fn after_an_outage_the_misfire_policy_decides() {
    let db = TestDb::new();
    let mut stepper = working(&db).start().expect("a stepper");
    let tasks = [
        NewTask::cron("newest", "0 * * * *"),
        NewTask::cron("all", "0 * * * *").misfire(Misfire::RunAll, seconds(1)).overlap(Overlap::BufferAll),
        NewTask::cron("none", "0 * * * *").misfire(Misfire::Skip, seconds(1)),
    ];
    stepper.client().add_all(tasks.map(|task| task.handler("work"))).expect("tasks");
    step(&mut stepper, 0);
    let mut stepper = stepper.outage(minutes(3 * 60 + 30)).expect("an outage");
    assert_eq!(stepper.clock().now().wall, at("2027-03-14T15:30:00Z"));
    stepper.run_until_idle(minutes(1)).expect("idle");
    db.assert_history(
        "newest",
        &["2027-03-14 13:00:00 schedule missed x2 to 2027-03-14 14:00:00", "2027-03-14 15:00:00 catch_up succeeded"],
    );
    assert_eq!(db.history("all").len(), 3);
    db.assert_history("none", &["2027-03-14 13:00:00 schedule missed x3 to 2027-03-14 15:00:00"]);
}

#[test]
fn local_starts_show_the_change_of_daylight_saving() {
    let rome = "Europe/Rome";
    let hours = |from: &str, days: u64, line: &str| {
        let db = TestDb::new();
        let noon = local_time(from, rome).expect("a local time");
        let mut stepper = Stepper::builder(db.address(), noon).handler("work", ok).start().expect("a stepper");
        stepper.client().add(NewTask::cron("t", line).time_zone(rome).handler("work")).expect("a task");
        stepper.run_for(minutes(days * 24 * 60)).expect("some days");
        stepper.local_starts("t", rome).expect("local times")
    };
    assert_eq!(
        hours("2027-03-26 12:00:00", 3, "30 2 * * *"),
        ["2027-03-27T02:30:00+01:00", "2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]
    );
    assert_eq!(
        hours("2027-10-29 12:00:00", 3, "30 2 * * *"),
        ["2027-10-30T02:30:00+02:00", "2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]
    );
    let autumn = clock_change_after(at("2027-06-01T00:00:00Z"), rome).expect("a zone");
    assert_eq!(autumn, Some(at("2027-10-31T01:00:00Z")));
    assert!(local_time("2027-03-26", rome).is_err() && local_time("2027-03-26 12:00:00", "Rome").is_err());
    assert!(clock_change_after(at(NOON), "Rome").is_err());
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use duly::{BoxError, Context, EffectState, NewTask, RunStatus};

    use crate::fixtures::{NOON, TestDb, finish_async, minutes, overdue};

    /// The default runtime: results, errors, panics, effects, own rows, and what a handler spawns.
    #[test]
    fn async_handlers_run_under_a_stepper() {
        let db = TestDb::new();
        drop(db.client());
        db.execute("CREATE TABLE sent (address TEXT)");
        let table = db.table("sent");
        let mut stepper = db
            .builder(NOON)
            .async_handler("mail", move |run: Context| {
                let table = table.clone();
                async move {
                    let receipt =
                        run.effect_async("send", || async { Ok::<_, BoxError>("accepted".to_owned()) }).await?;
                    if run.attempt() == 1 {
                        return Err(BoxError::from("the line is down"));
                    }
                    let spawned = tokio::spawn(async { 7 }).await?;
                    let sql = format!("INSERT INTO {table} (address) VALUES ('anna')");
                    finish_async(&run, sql, format!("{receipt} {spawned}")).await
                }
            })
            .async_handler("panics", |_: Context| async move {
                std::panic::panic_any("a bug");
                #[expect(unreachable_code)]
                Ok::<_, BoxError>(())
            })
            .start()
            .expect("a stepper");
        let client = stepper.client().clone();
        client.add(overdue("mail").handler("mail")).expect("a task");
        client.add(NewTask::manual("panics").handler("panics").max_attempts(1)).expect("a task");
        let bug = client.trigger("panics").expect("a run");
        let done = stepper.run_until_idle(minutes(60)).expect("idle");
        assert_eq!(done.len(), 3);
        let mail = &client.history("mail", 1).expect("a run")[0];
        assert_eq!(
            (mail.status, mail.attempt, mail.result.as_deref()),
            (RunStatus::Succeeded, 2, Some(r#""accepted 7""#))
        );
        assert_eq!(db.rows("SELECT address FROM sent"), ["anna"]);
        let effects = client.effects(mail.id).expect("effects");
        assert_eq!((effects.len(), effects[0].state), (1, EffectState::Done));
        let bug = client.run(bug).expect("a look").expect("a run");
        assert_eq!((bug.status, bug.error.as_deref()), (RunStatus::Dead, Some("the handler panicked: a bug")));
    }
}

/// An observer adds a task after the turn has read what is due, so that the turn does not see it.
#[test]
fn what_an_observer_adds_starts_when_it_is_due() {
    let db = TestDb::new();
    let mut stepper = working(&db).start().expect("a stepper");
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(NewTask::cron("hourly", "0 * * * *").handler("work")).expect("a task");
    let follow = move |event: &duly::Event| {
        if let duly::Event::Finished { claim, .. } = event
            && claim.task == "hourly"
        {
            let name = format!("after-{}", claim.run_id);
            client.add(NewTask::once(name, clock.now().wall + minutes(10)).handler("work")).expect("a task");
        }
    };
    let builder = working(&db).clock(stepper.clock()).observe(follow);
    stepper.stop().expect("an end");
    stepper = builder.start().expect("a stepper");
    stepper.run_for(minutes(130)).expect("two hours");
    let starts = "SELECT t.name || strftime(' %H:%M:%S', r.started_at / 1000, 'unixepoch')
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY r.id";
    assert_eq!(db.rows(starts), ["hourly 13:00:00", "after-1 13:10:00", "hourly 14:00:00", "after-3 14:10:00"]);
}

/// A handler that waits takes its time on the clock of the test, up to its time limit, and none of the test.
#[test]
fn a_handler_that_waits_advances_the_clock_up_to_its_time_limit() {
    let db = TestDb::new();
    let waits = |run: &Context| {
        let stop = run.wait_cancelled(minutes(60));
        if stop { Err("asked to stop") } else { Ok(()) }
    };
    let begun = std::time::Instant::now();
    let mut stepper = db.builder(NOON).handler("wait", waits).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(overdue("patient").handler("wait")).expect("a task");
    let patient = stepper.run_until_idle(minutes(120)).expect("idle");
    assert_eq!((patient[0].duration, &patient[0].outcome), (Some(minutes(60)), &Outcome::succeeded()));
    assert_eq!(stepper.clock().now().wall, at(NOON) + minutes(60));
    client.add(overdue("limited").handler("wait").timeout(minutes(5)).at_most_once()).expect("a task");
    let limited = stepper.run_until_idle(minutes(120)).expect("idle");
    assert_eq!(limited[0].duration, Some(minutes(5)));
    let run = &client.history("limited", 1).expect("history")[0];
    let error = run.error.as_deref();
    assert_eq!((run.status, error), (RunStatus::Dead, Some("it took longer than 5m: asked to stop")));
    assert!(begun.elapsed() < patience(), "three hours of the clock of the test");
}

#[cfg(feature = "tokio")]
#[test]
fn a_stepper_runs_an_async_job_with_its_backoff() {
    use std::time::Duration;

    use duly::{AsyncJob, BoxError, FailedAttempt, JobKind};

    struct Half;

    impl JobKind for Half {
        const NAME: &'static str = "half";
        type Payload = u32;
    }

    impl AsyncJob for Half {
        type Output = u32;
        type Error = BoxError;

        async fn run(&self, context: Context, payload: u32) -> Result<u32, BoxError> {
            tokio::task::yield_now().await;
            if context.attempt() == 1 { Err("not yet".into()) } else { Ok(payload / 2) }
        }

        fn backoff(&self, _: &FailedAttempt<'_>) -> Option<Duration> {
            Some(minutes(7))
        }
    }

    let db = TestDb::new();
    let mut stepper = db.builder(NOON).async_job(Half).start().expect("a stepper");
    let name = stepper.client().enqueue::<Half>(&42).expect("a task").name;
    assert_eq!(stepper.run_until_idle(minutes(60)).expect("idle").len(), 2);
    assert_eq!(stepper.clock().now().wall, at(NOON) + minutes(7));
    let run = &stepper.client().history(&name, 1).expect("history")[0];
    assert_eq!((run.status, run.result.as_deref()), (RunStatus::Succeeded, Some("21")));
}
