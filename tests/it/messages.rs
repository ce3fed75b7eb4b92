//! Messages about the past match what happened: why a run was cancelled, why a task is paused, what a command left behind.

use std::sync::mpsc::channel;

use duly::testing::Stepper;
use duly::{Event, ImportItem, NewTask, Outcome, Retry, RetryPolicy, RunStatus};

use crate::fixtures::{NOON, TestDb, claim, claim_after, minutes, once, problems, seconds, step, step_after, work_off};

#[test]
fn the_reason_of_a_cancellation_shows_whether_an_attempt_began() {
    const BEFORE: &str = "cancelled before it began";
    const BETWEEN: &str = "cancelled while it waited for its next attempt";
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    let client = stepper.client().clone();
    let interrupted =
        Outcome::Failed { how: duly::FailureKind::Failed, error: "cut short".into(), retry: Retry::Interrupted };
    let cases = [
        ("failed", Some(Outcome::failed("no luck")), BETWEEN),
        // An interrupted attempt does not count, but it began.
        ("interrupted", Some(interrupted), BETWEEN),
        // Claimed, and released before it began.
        ("released", Some(Outcome::Released), BEFORE),
        ("queued", None, BEFORE),
    ];
    let mut run = 0;
    for (name, outcome, reason) in cases {
        for by_sql in [false, true] {
            let name = format!("{name}-{by_sql}");
            run += 1;
            client.add(once(&name)).unwrap();
            if let Some(outcome) = &outcome {
                let claims = stepper.claim(0).unwrap();
                assert_eq!((claims.len(), claims[0].run_id), (1, run));
                stepper.finish(&claims[0], outcome.clone());
                stepper.settle().unwrap();
            } else {
                client.pause(&name).unwrap();
                assert_eq!(db.run(run).status, RunStatus::Queued);
            }
            if by_sql {
                let ask = format!("UPDATE task_runs SET cancel_requested = 1 WHERE id = {run}");
                db.plain().execute_batch(&ask).unwrap();
                work_off(&mut stepper);
                let event = format!("run {run} of {name:?} was {reason}");
                assert!(events.try_iter().any(|found| found.to_string() == event), "{event}");
            } else {
                client.cancel(run).unwrap();
            }
            let found = db.run(run);
            assert_eq!((found.status, found.error.as_deref()), (RunStatus::Cancelled, Some(reason)), "{name}");
            let logs = db.printed(&["logs", &run.to_string()]);
            assert!(logs.contains(&format!("reason         {reason}\n")), "{logs}");
        }
    }
    assert!(db.printed(&["logs", "1"]).contains("error: no luck"));
    db.assert_sound();
}

#[test]
fn check_does_not_advise_to_pause_a_paused_task() {
    let (_db, mut stepper, client) = TestDb::with_stepper_and_client();
    let minutely = |name: &str| NewTask::interval(name, minutes(1)).handler("work").at_most_once();
    client.add(minutely("paused").pause_after_failures(2)).unwrap();
    client.add(minutely("active")).unwrap();
    for _ in 0..2 {
        for claim in step_after(&mut stepper, minutes(1), 2) {
            stepper.finish(&claim, Outcome::failed("no luck"));
        }
        step(&mut stepper, 0);
    }
    let mut lines = problems(&client);
    lines.sort();
    let expected = [
        "failing: active is dead 2 times in a row: no luck: see duly history active, and repair or pause it",
        "failing: paused is dead 2 times in a row, and is paused: no luck: see duly history paused, and repair it, then duly \
         resume paused",
    ];
    assert_eq!(lines, expected);
}

fn paused_by(db: &TestDb) -> Vec<String> {
    db.rows("SELECT name, status, paused_by FROM scheduled_tasks ORDER BY id")
}

#[test]
fn the_reason_of_a_pause_is_shown_until_the_task_is_resumed() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let daily = |name: &str| NewTask::cron(name, "0 7 * * *").handler("work");
    for name in ["active", "user", "sql", "reason"] {
        client.add(daily(name)).unwrap();
    }
    client.pause("user").unwrap();
    db.plain()
        .execute_batch(
            "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'sql';
             UPDATE scheduled_tasks SET status = 'paused', paused_by = 'anna: until friday' WHERE name = 'reason';
             INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status)
             VALUES ('inserted', 'work', 'cron', '0 7 * * *', 'paused');",
        )
        .unwrap();
    let imported = ImportItem { paused: true, ..daily("imported").into() };
    client.import("elsewhere", vec![imported], duly::Apply::default()).unwrap();
    client.add(NewTask::interval("fails", minutes(1)).handler("work").at_most_once().pause_after_failures(1)).unwrap();
    let run = claim_after(&mut stepper, minutes(1));
    stepper.finish(&run, Outcome::failed("no luck"));
    step(&mut stepper, 0);
    let reasons = [
        ("user", "user"),
        ("sql", "sql"),
        ("reason", "anna: until friday"),
        ("inserted", "sql"),
        ("imported", "import: it was paused where it is from"),
        ("fails", "pause_after_failures: 1 dead run in a row"),
    ];
    let rows: Vec<String> = reasons.iter().map(|(name, by)| format!("{name}|paused|{by}")).collect();
    assert_eq!(paused_by(&db), [&["active|active|-".to_owned()], &*rows].concat());
    let list = db.printed(&["list", "--wide"]);
    for (name, by) in reasons {
        let is_listed = |line: &str| line.starts_with(&format!("{name} ")) && line.contains(&format!("paused ({by})"));
        assert!(list.lines().any(is_listed), "{list}");
        assert!(db.printed(&["show", name]).contains(&format!("paused by       {by}\n")));
        assert!(db.printed(&["show", name, "--json"]).contains(&format!("\"paused_by\": \"{by}\"")));
    }
    assert!(!db.printed(&["show", "active"]).contains("paused by"));

    // An edit by a client or by SQL resumes no task and keeps the reason.
    client.replace(daily("user").priority(0)).unwrap();
    db.plain().execute_batch("UPDATE scheduled_tasks SET schedule_value = '0 8 * * *' WHERE name = 'sql'").unwrap();
    work_off(&mut stepper);
    assert_eq!(paused_by(&db), [&["active|active|-".to_owned()], &*rows].concat());
    for (name, _) in &reasons[..3] {
        client.resume(name).unwrap();
    }
    db.plain().execute_batch("UPDATE scheduled_tasks SET status = 'active' WHERE status = 'paused'").unwrap();
    work_off(&mut stepper);
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE paused_by IS NOT NULL OR status <> 'active'"), "0");
    db.assert_sound();
}

#[test]
fn logs_of_a_retry_name_the_run_that_it_retries() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("subject").at_most_once()).unwrap();
    let run = claim(&mut stepper);
    stepper.finish(&run, Outcome::failed("no luck"));
    step(&mut stepper, 0);
    let retry = client.retry(run.run_id).unwrap();
    let logs = |run: i64| db.printed(&["logs", &run.to_string()]);
    assert!(logs(retry).contains(&format!("retry of       run {}\n", run.run_id)), "{}", logs(retry));
    assert!(!logs(run.run_id).contains("retry of"));
}

/// A scheduler beside others, and the stalled owners that it reports.
fn peer(db: &TestDb, clock: &Stepper) -> (Stepper, std::sync::mpsc::Receiver<String>) {
    let (sender, stalls) = channel();
    let observer = move |event: &Event| {
        if let Event::OwnerStalled { owner, .. } = event {
            sender.send(owner.clone()).unwrap();
        }
    };
    (db.builder(NOON).clock(clock.clock()).observe(observer).start().unwrap(), stalls)
}

#[test]
fn a_stalled_owner_is_reported_once_by_each_of_its_peers_and_recorded_once() {
    let db = TestDb::new();
    let mut stalls = db.builder(NOON).accept("work").workers(1).start().unwrap();
    let mut healthy = db.builder(NOON).clock(stalls.clock()).accept("work").workers(1).start().unwrap();
    for name in ["subject", "twin"] {
        stalls.client().add(once(name)).unwrap();
    }
    let first = claim(&mut stalls).run_id;
    claim(&mut healthy);
    let name = db.run(first).locked_by.unwrap();
    let (mut one, one_reports) = peer(&db, &stalls);
    let (mut other, other_reports) = peer(&db, &stalls);
    let rows = || db.rows("SELECT substr(detail, 1, 36) FROM scheduler_events WHERE kind = 'owner_stalled'");
    let clock = stalls.clock().clone();
    let mut pass = |peers: &mut [&mut Stepper], seconds_in_all: u64| {
        for _ in 0..seconds_in_all / 10 {
            clock.advance(seconds(10));
            healthy.step().unwrap();
            peers.iter_mut().for_each(|peer| assert!(peer.step().unwrap().is_empty()));
        }
    };
    // Its lease is 60 s, plus the time of a heartbeat, since its peers may have been stopped together with it.
    pass(&mut [&mut one, &mut other], 80);
    assert!(rows().is_empty() && one_reports.try_recv().is_err());
    pass(&mut [&mut one, &mut other], 120);
    assert_eq!(rows(), [name.as_str()]);
    assert_eq!(one_reports.try_iter().collect::<Vec<_>>(), [name.as_str()]);
    assert_eq!(other_reports.try_iter().collect::<Vec<_>>(), [name.as_str()]);
    assert_eq!(db.run(first).status, RunStatus::Running, "not taken over");

    // A peer that starts later finds it recorded.
    other.stop().unwrap();
    let (mut later, later_reports) = peer(&db, &stalls);
    pass(&mut [&mut one, &mut later], 200);
    assert!(rows().len() == 1 && one_reports.try_recv().is_err() && later_reports.try_recv().is_err());

    // It continues, and stalls again.
    stalls.step().unwrap();
    pass(&mut [&mut one, &mut later], 60);
    assert_eq!(rows().len(), 1);
    pass(&mut [&mut one, &mut later], 60);
    assert_eq!(rows(), [name.as_str(), name.as_str()]);
    assert_eq!(one_reports.try_iter().collect::<Vec<_>>(), [name.as_str()]);
    assert_eq!(later_reports.try_iter().collect::<Vec<_>>(), [name.as_str()]);
    db.assert_sound();
}

#[test]
#[cfg(target_os = "linux")]
fn processes_that_a_command_left_and_duly_ended_are_in_its_logs() {
    use crate::fixtures::wait_for_status;
    use crate::sidecar::{Sidecar, shell, wait_for_line};
    let (db, client) = TestDb::with_client();
    let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let line =
        |name: &str, exit: &str| format!("sleep 1000 & echo $! >{}; exec {exit}", db.home().join(name).display());
    client.add(shell("succeeds", &line("succeeds", "true"))).unwrap();
    client.add(shell("fails", &line("fails", "false")).retry(once)).unwrap();
    client.add(shell("tidy", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    for (name, status, label, error) in
        [("succeeds", RunStatus::Succeeded, "remark", ""), ("fails", RunStatus::Dead, "error", "exit code 1; ")]
    {
        let run = wait_for_status(&client, name, status);
        let error =
            format!("{error}ended remaining processes of the command: sleep (pid {})", wait_for_line(&db, name));
        assert_eq!(run.error.as_deref(), Some(&*error));
        let logs = db.printed(&["logs", &run.id.to_string()]);
        assert!(logs.contains(&format!("\n{label}: {error}\n")), "{logs}");
    }
    assert_eq!(wait_for_status(&client, "tidy", RunStatus::Succeeded).error, None);
    sidecar.terminate();
}
