//! Time limits depend on how and when the work ended: a success that is noticed late is a success, an error that comes late
//! is a timeout, and child processes of a command do not count against its limit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::ManualClock;
use duly::{AttemptOutcome, Context, Event, Failure, Outcome, RunStatus, Scheduler};

use crate::fixtures::{NOON, TestDb, at, eventually, finish, listen, overdue, patience, seconds};

fn run_outcomes(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.status, r.error, a.outcome FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
           LEFT JOIN task_attempts a ON a.run_id = r.id ORDER BY t.name",
    )
}

#[test]
fn a_late_ok_is_a_success_and_a_late_error_a_timeout() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let scheduler = Scheduler::builder(db.address())
        .observe(observer)
        .handler("work", |run: &Context| {
            assert!(run.task() == "quick" || run.deadline().is_some() && run.wait_cancelled(patience()));
            if run.task() == "error" { Err(Failure::give_up("half is sent")) } else { Ok(5) }
        })
        .start()
        .unwrap();
    let limit = Duration::from_millis(50);
    scheduler
        .add_all([
            overdue("ok").at_most_once().timeout(limit),
            // Four attempts are left, but the handler has given up.
            overdue("error").timeout(limit),
            overdue("quick").at_most_once().timeout(seconds(60)),
        ])
        .unwrap();
    eventually("all have ended", || db.count(RunStatus::Succeeded) + db.count(RunStatus::Dead) == 3);
    scheduler.shutdown(patience()).unwrap();
    assert_eq!(
        run_outcomes(&db),
        [
            "error|dead|it took longer than 50ms: half is sent|timed_out",
            "ok|succeeded|it ended late: it took longer than 50ms|-",
            "quick|succeeded|-|-"
        ]
    );
    assert_eq!(db.ask("SELECT result FROM task_runs WHERE error LIKE 'it ended late%'"), "5");
    let events: Vec<Event> = events.try_iter().collect();
    let is_end_of = |event: &&Event, task: &str| matches!(event, Event::Finished { claim, .. } if claim.task == task);
    let event = |task: &str| events.iter().find(|event| is_end_of(event, task)).expect("an event");
    let line = event("ok").to_string();
    assert!(line.ends_with("(attempt 1 of 1): it ended late: it took longer than 50ms"), "{line}");
    assert_eq!((event("ok").level(), event("quick").level()), (log::Level::Warn, log::Level::Info));
    let held = |event: &Event| matches!(event, Event::WorkerHeld { .. });
    assert!(!events.iter().any(held), "handlers that stop on request hold no worker");
}

/// Rows written with `finish` are committed after the limit too: it is the same success.
#[test]
fn finish_after_the_time_limit_commits_and_is_reported_as_late() {
    let db = TestDb::new();
    let clock = Arc::new(Mutex::new(None::<ManualClock>));
    let handler_clock = clock.clone();
    let mut stepper = db
        .builder(NOON)
        .handler("work", move |run: &Context| {
            handler_clock.lock().unwrap().as_ref().unwrap().advance(seconds(61));
            finish(run, "", || Ok(7))
        })
        .start()
        .unwrap();
    *clock.lock().unwrap() = Some(stepper.clock().clone());
    stepper.client().add(overdue("late").at_most_once().timeout(seconds(60))).unwrap();
    stepper.client().add(overdue("unlimited").at_most_once().timeout(seconds(0))).unwrap();
    stepper.run_until(at("2027-03-14T13:00:00Z")).unwrap();
    assert_eq!(
        run_outcomes(&db),
        ["late|succeeded|it ended late: it took longer than 1m|-", "unlimited|succeeded|-|-"]
    );
}

/// After a request to stop, a success is a success, and any other end cancels the run, at any time.
#[test]
fn a_cancelled_run_that_ends_late_keeps_its_success() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add_all(["error", "ok"].map(|name| overdue(name).at_most_once().timeout(seconds(5)))).unwrap();
    let claims = stepper.step().unwrap();
    stepper.clock().advance(seconds(6));
    for claim in &claims {
        client.cancel(claim.run_id).unwrap();
        let outcome = if claim.task == "ok" { Outcome::succeeded() } else { Outcome::failed("stopped") };
        stepper.finish(claim, outcome);
    }
    stepper.step().unwrap();
    assert_eq!(
        run_outcomes(&db),
        [
            "error|cancelled|it took longer than 5s: stopped|timed_out",
            "ok|succeeded|it ended late: it took longer than 5s|-"
        ]
    );
}

#[cfg(target_os = "linux")]
mod commands {
    use super::*;
    use crate::fixtures::wait_for_status;
    use crate::sidecar::{Sidecar, shell, wait_for_line, with_gate};

    /// The scheduler is stopped while its command succeeds, for longer than the command's limit. What counts is when
    /// the command ended.
    #[test]
    fn a_command_that_succeeds_while_its_scheduler_is_stopped_has_succeeded() {
        let (db, client, mut gate) = with_gate();
        let home = db.home().display();
        let line = format!("echo $$ >{home}/pid; read line <{home}/gate; echo done");
        client.add(shell("long", &line).timeout(seconds(2)).at_most_once()).unwrap();
        let mut sidecar = Sidecar::start(&db, &[]);
        let pid = wait_for_line(&db, "pid");
        sidecar.signal("STOP");
        gate.open();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        eventually("the command has ended", || state().contains(") Z "));
        let began = std::time::Instant::now();
        // The wall clock is the subject: the limit of a command counts by the clock of the system.
        eventually("its time is up", || began.elapsed() > seconds(3));
        sidecar.signal("CONT");
        let run = wait_for_status(&client, "long", RunStatus::Succeeded);
        let is_late = db.ask("SELECT duration_ms >= 2000 FROM task_runs") == "1";
        assert_eq!(run.error.as_deref(), is_late.then_some("it ended late: it took longer than 2s"));
        assert_eq!((run.output.as_deref(), run.exit_code, run.attempt), (Some("done\n"), Some(0), 1));
        sidecar.terminate();
    }

    /// Children that a command leaves are waited for past its limit; the command itself ended in time.
    #[test]
    fn child_processes_of_a_command_do_not_count_against_its_limit() {
        let (db, client) = TestDb::with_client();
        let limited = |name: &str, line: &str| shell(name, line).timeout(seconds(1)).at_most_once();
        client.add(limited("good", "sleep 1000 & exit 0")).unwrap();
        client.add(limited("bad", "sleep 1000 & exit 3")).unwrap();
        // Ended at its time limit: no exit code is a success then.
        client.add(limited("obeys", "trap 'exit 0' TERM; sleep 1000 & wait")).unwrap();
        let mut sidecar = Sidecar::start(&db, &[]);
        let good = wait_for_status(&client, "good", RunStatus::Succeeded);
        let remark = good.error.expect("what it left is named");
        assert!(remark.starts_with("ended remaining processes of the command: sleep (pid "), "{remark}");
        assert_eq!(good.exit_code, Some(0));
        for (name, outcome, error) in [
            ("bad", AttemptOutcome::Failed, "exit code 3; ended remaining processes of the command: sleep (pid "),
            ("obeys", AttemptOutcome::TimedOut, "it took longer than 1s: exit code 0"),
        ] {
            let run = wait_for_status(&client, name, RunStatus::Dead);
            let attempt = &client.attempts(run.id).unwrap()[0];
            assert_eq!(attempt.outcome, outcome, "{name}");
            assert!(attempt.error.as_deref().is_some_and(|found| found.starts_with(error)), "{name}: {attempt:?}");
        }
        sidecar.terminate();
    }
}
