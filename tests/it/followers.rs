//! Runs that follow others: `on_success`, `on_end` and `on_missed` open a run of other tasks once, in the transaction in which a run ends
//! or occurrences are missed, and nothing of that keeps the end from being stored. `on_dead` has tests of its own.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{Client, Error, Event, FailureKind, Misfire, NewRun, NewTask, Origin, Outcome, Overlap, Retry, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{
    NOON, TestDb, at, claim, claim_after, finish_all, listen, minutes, once, step, succeed, work_off,
};

/// A task that becomes due only by a trigger, or because it follows another one.
fn on_demand(name: &str) -> NewTask {
    NewTask::manual(name).handler("work")
}

fn with_tasks(names: &[&str]) -> (TestDb, Stepper, Client) {
    let db = TestDb::new();
    let stepper = db.builder(NOON).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    for name in names {
        client.add(on_demand(name)).expect("a task");
    }
    (db, stepper, client)
}

fn give_up() -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "no luck".into(), retry: Retry::GiveUp }
}

/// The runs that follow others: task, origin, status and idempotency key.
fn followers(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.origin, r.status, r.request_key FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
          WHERE r.request_key IS NOT NULL ORDER BY r.id",
    )
}

#[test]
fn each_end_opens_a_run_of_each_task_that_waits_for_it() {
    let (db, mut stepper, client) = with_tasks(&["post", "audit", "clean", "alarm"]);
    let fetch =
        on_demand("fetch").payload(["feed"]).on_success("post, audit").on_end("clean,audit").on_dead("alarm,audit");
    client.add(fetch).expect("a task");
    let bystander = db.add_bystander(&stepper);

    let run = client.trigger("fetch").expect("a run");
    let fetched = claim(&mut stepper);
    stepper.finish(&fetched, Outcome::Succeeded { result: Some(r#"{"new":[1, 2]}"#.into()) });
    let claims = stepper.step().expect("a step");
    let first = |origin: &str| format!("{origin}|running|#{run}/1");
    let expected = [format!("post|{}", first("on_success")), format!("audit|{}", first("on_success"))];
    let expected = [expected[0].clone(), expected[1].clone(), format!("clean|{}", first("on_end"))];
    assert_eq!(followers(&db), expected, "a task that is named twice runs once");
    let says: Value = serde_json::from_str(&claims[0].payload).expect("JSON");
    assert_eq!(
        (&says["id"], &says["task"], &says["status"], &says["payload"], &says["result"], &says["finished_at"]),
        (
            &run.into(),
            &"fetch".into(),
            &"succeeded".into(),
            &json!(["feed"]),
            &json!({"new": [1, 2]}),
            &"2027-03-14T12:00:00.000Z".into()
        )
    );
    finish_all(&mut stepper, &Outcome::succeeded());
    step(&mut stepper, 0);

    let dead = client.trigger("fetch").expect("a run");
    let claimed = claim(&mut stepper);
    stepper.finish(&claimed, give_up());
    stepper.step().expect("a step");
    let opened: Vec<String> = followers(&db).into_iter().filter(|run| run.ends_with(&format!("#{dead}/1"))).collect();
    let tasks: Vec<&str> = opened.iter().map(|run| run.split("|running").next().unwrap_or_default()).collect();
    assert_eq!(tasks, ["alarm|on_dead", "audit|on_dead", "clean|on_end"]);
    db.assert_bystander(&bystander);
    db.assert_sound();
}

/// What went wrong stands at the end of a log.
#[cfg(unix)]
#[test]
fn the_payload_has_the_end_of_a_long_output() {
    let db = TestDb::new();
    let duly = |arguments: &[&str]| {
        let status = db.duly(arguments).stdout(std::process::Stdio::null()).status().expect("the program");
        assert!(status.success(), "duly {arguments:?}");
    };
    duly(&["add", "tell", "--manual", "--", "true"]);
    let long = "yes été | head -n 4000; echo the last line";
    duly(&["add", "fetch", "--manual", "--on-success", "tell", "--", "sh", "-c", long]);
    duly(&["trigger", "fetch"]);
    duly(&["run", "--until-idle"]);
    let payload = db.ask("SELECT payload FROM task_runs WHERE origin = 'on_success'");
    let payload: Value = serde_json::from_str(&payload).expect("JSON");
    let output = payload["output"].as_str().expect("a text");
    assert!(output.starts_with("...") && output.ends_with("été\nthe last line\n"), "{output}");
    assert!((16_380..=16_387).contains(&output.len()), "{}", output.len());
}

#[test]
fn a_cancelled_run_is_followed_if_an_attempt_had_begun() {
    let (db, mut stepper, client) = with_tasks(&["clean"]);
    client.add(on_demand("work").on_success("nowhere").on_end("clean")).expect("a task");
    let count = || db.count_rows("task_runs WHERE origin = 'on_end'");

    // Before it began.
    let run = client.trigger("work").expect("a run");
    client.cancel(run).expect("a cancellation");
    assert_eq!((db.run(run).status, count()), (RunStatus::Cancelled, 0));
    // While it waits for its next attempt.
    let run = client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    stepper.finish(&claimed, Outcome::failed("again"));
    step(&mut stepper, 0);
    client.cancel(run).expect("a cancellation");
    assert_eq!((db.run(run).status, count()), (RunStatus::Cancelled, 1));
    finish_next(&mut stepper);
    // As SQL requests it.
    let run = client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    stepper.finish(&claimed, Outcome::failed("again"));
    step(&mut stepper, 0);
    db.execute(&format!("UPDATE task_runs SET cancel_requested = 1 WHERE id = {run}"));
    finish_next(&mut stepper);
    assert_eq!((db.run(run).status, count()), (RunStatus::Cancelled, 2));
    // While it runs.
    let run = client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    client.cancel(run).expect("a request");
    stepper.finish(&claimed, Outcome::failed("stopped"));
    finish_next(&mut stepper);
    assert_eq!((db.run(run).status, count()), (RunStatus::Cancelled, 3));
    // An attempt that failed is not the end.
    client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    stepper.finish(&claimed, Outcome::failed("again"));
    step(&mut stepper, 0);
    assert_eq!(count(), 3);
    db.assert_sound();
}

/// Starts the next run, and lets it succeed.
fn finish_next(stepper: &mut Stepper) {
    let claimed = claim(stepper);
    assert!(succeed(stepper, &claimed).is_empty());
}

#[test]
fn a_run_that_a_newer_occurrence_cancels_is_followed_if_it_had_begun() {
    let (db, mut stepper, client) = with_tasks(&["clean"]);
    let task = NewTask::interval("work", minutes(1)).handler("work").overlap(Overlap::CancelRunning).on_end("clean");
    client.add(task).expect("a task");
    let first = claim_after(&mut stepper, minutes(1));
    stepper.finish(
        &first,
        Outcome::Failed { how: FailureKind::Failed, error: "again".into(), retry: Retry::After(minutes(9)) },
    );
    step(&mut stepper, 0);
    stepper.clock().advance(minutes(1));
    stepper.step().expect("a step");
    assert_eq!(db.run(first.run_id).status, RunStatus::Cancelled);
    assert_eq!(db.count_rows("task_runs WHERE origin = 'on_end'"), 1);
    db.assert_sound();
}

#[test]
fn a_late_outcome_of_a_run_that_was_taken_over_is_followed_by_nothing() {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").start().expect("a stepper");
    first.client().add(on_demand("next")).expect("a task");
    first.client().add(on_demand("work").on_success("next").on_end("next")).expect("a task");
    let run = first.client().trigger("work").expect("a run");
    let claimed = claim(&mut first);
    // Another attempt has been claimed since.
    db.execute(&format!("UPDATE task_runs SET attempt = 2, started_at = NULL WHERE id = {run}"));
    first.finish(&claimed, Outcome::succeeded());
    step(&mut first, 0);
    assert_eq!(db.rows("SELECT outcome FROM task_attempts"), ["superseded"]);
    assert_eq!(db.runs().len(), 1, "no run follows");
}

#[test]
fn a_run_that_is_lost_for_good_is_followed_by_its_end() {
    let db = TestDb::new();
    let mut first = db.builder(NOON).accept("work").start().expect("a stepper");
    first.client().add(on_demand("clean")).expect("a task");
    first.client().add(on_demand("work").at_most_once().on_success("clean").on_end("clean")).expect("a task");
    first.client().trigger("work").expect("a run");
    claim(&mut first);
    first.crash();
    let mut second = db.builder(NOON).accept("work").start().expect("a stepper");
    assert_eq!(claim(&mut second).origin, Origin::OnEnd);
    assert_eq!(db.runs().len(), 2);
    db.assert_sound();
}

#[test]
fn a_batch_of_jobs_is_followed_one_by_one() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(40).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(on_demand("count").overlap(Overlap::Allow)).expect("a task");
    let jobs = (0..30).map(|n| once(&format!("job-{n}")));
    let jobs = jobs.enumerate().map(|(n, job)| if n % 3 == 0 { job.on_success("count") } else { job });
    client.add_all(jobs).expect("tasks");
    stepper.clock().advance(minutes(1));
    let claims = stepper.step().expect("a step");
    assert_eq!(claims.len(), 30);
    finish_all(&mut stepper, &Outcome::succeeded());
    stepper.step().expect("a step");
    let parents = "SELECT count(*), count(DISTINCT r.request_key) FROM task_runs r WHERE r.origin = 'on_success'";
    assert_eq!(db.rows(parents), ["10|10"]);
    let wrong = "SELECT count(*) FROM task_runs p JOIN scheduled_tasks t ON t.id = p.task_id
                  WHERE (t.on_success IS NOT NULL)
                        <> EXISTS (SELECT 1 FROM task_runs c WHERE c.request_key = '#' || p.id || '/1') AND t.name <> 'count'";
    assert_eq!(db.ask(wrong), "0");
    db.assert_sound();
}

#[test]
fn circles_are_refused_where_they_are_closed() {
    let (db, _stepper, client) = with_tasks(&["c"]);
    let refused = |result: Result<_, Error>| match result {
        Err(Error::InvalidTask { field, found, .. }) => format!("{field}: {found}"),
        Err(other) => other.to_string(),
        Ok(_) => "added".to_owned(),
    };
    client.add(on_demand("a").on_success("b, x")).expect("a task");
    client.add(on_demand("b").on_end("c")).expect("a task");
    assert_eq!(refused(client.replace(on_demand("c").on_success("a"))), "on_success: c -> a -> b -> c");
    assert_eq!(refused(client.add(on_demand("self").on_end("self"))), "on_end: self -> self");
    let both = [on_demand("one").on_success("two"), on_demand("two").on_success("one")];
    assert!(refused(client.add_all(both).map(|mut added| added.remove(0))).contains("one -> two -> one"));
    // Another one after a failure is a retry, and what on_dead opens is reported by no other.
    assert_eq!(refused(client.replace(on_demand("c").on_dead("a"))), "added");
    assert_eq!(client.task("one").expect("an answer"), None, "nothing of a refused batch is stored");
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE on_success IS NOT NULL"), "1");
    let many = (0..5).map(|n| format!("t{n}")).collect::<Vec<_>>().join(",");
    assert_eq!(refused(client.add(on_demand("many").on_missed(many))), "on_missed: 5 names");
    assert_eq!(refused(client.add(on_demand("gap").on_success("a,,b"))), "on_success: a, , b");
}

#[test]
fn a_circle_of_sql_ends_at_its_limit() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let mut stepper = db.builder(NOON).accept("work").observe(observer).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(on_demand("ping").on_success("pong")).expect("a task");
    client.add(on_demand("pong")).expect("a task");
    db.execute("UPDATE scheduled_tasks SET on_success = 'ping' WHERE name = 'pong'");
    client.trigger("ping").expect("a run");
    stepper.step().expect("a step");
    for _ in 0..150 {
        finish_all(&mut stepper, &Outcome::succeeded());
        stepper.step().expect("a step");
    }
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), "101");
    let reasons: Vec<String> = events
        .try_iter()
        .filter_map(|event| match event {
            Event::NotFollowed { task, target, origin: Origin::OnSuccess, reason, .. } => {
                Some(format!("{task} {target} {reason}"))
            }
            _ => None,
        })
        .collect();
    assert_eq!(reasons, ["ping pong 100 runs have followed one after another, the most"]);
    let recorded = db.rows("SELECT detail FROM scheduler_events WHERE kind = 'not_followed'");
    assert_eq!(
        recorded,
        ["the on_success task \"pong\" cannot run: 100 runs have followed one after another, the most"]
    );
}

#[test]
fn what_cannot_follow_keeps_no_end_from_being_stored() {
    let (db, mut stepper, client) = with_tasks(&["next"]);
    client.add(on_demand("work").on_success("missing, next")).expect("a task");
    let run = client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    assert_eq!(succeed(&mut stepper, &claimed).len(), 1, "the others follow");
    let events = "SELECT detail FROM scheduler_events WHERE kind = 'not_followed'";
    assert_eq!(db.rows(events), ["the on_success task \"missing\" cannot run: there is no such task"]);
    assert_eq!(db.run(run).status, RunStatus::Succeeded);
    finish_all(&mut stepper, &Outcome::succeeded());
    step(&mut stepper, 0);
    db.execute(
        "CREATE TRIGGER no BEFORE INSERT ON task_runs WHEN NEW.origin = 'on_success'
         BEGIN SELECT RAISE(ABORT, 'not in my db'); END",
    );
    let run = client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    assert!(succeed(&mut stepper, &claimed).is_empty());
    assert_eq!(db.run(run).status, RunStatus::Succeeded);
    assert!(db.count_rows("scheduler_events WHERE detail LIKE '%\"next\" cannot run: not in my db%'") == 1);
    let key = client.trigger_run(NewRun::of("next").key("#7/1")).unwrap_err();
    assert!(key.to_string().contains("does not begin with #"), "{key}");
}

#[test]
fn one_run_follows_each_row_of_missed_occurrences() {
    let (db, mut stepper, client) = with_tasks(&["tell"]);
    let hourly = |name: &str, misfire| {
        let task = NewTask::interval(name, minutes(60)).handler("work").starts_at(at(NOON));
        task.misfire(misfire, Duration::from_secs(60)).on_missed("tell")
    };
    client.add(hourly("skips", Misfire::Skip)).expect("a task");
    client.add(hourly("catches", Misfire::RunOnce)).expect("a task");
    let bystander = db.add_bystander(&stepper);
    stepper.clock().advance(minutes(200));
    let claims = stepper.step().expect("a step");
    let told: Vec<_> = claims.iter().filter(|claim| claim.origin == Origin::OnMissed).collect();
    assert_eq!(told.len(), 1);
    let says: Value = serde_json::from_str(&told[0].payload).expect("JSON");
    let row: i64 = db.number(
        "SELECT r.id FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                               WHERE r.status = 'missed' AND t.name = 'skips'",
    );
    let expected = json!(["skips", row, "missed", "2027-03-14T13:00:00.000Z", "2027-03-14T15:00:00.000Z", 3, true]);
    let keys = ["task", "id", "status", "from", "to", "count", "exact"].map(|key| says[key].clone());
    assert_eq!(json!(keys), expected);
    assert_eq!(followers(&db), [format!("tell|on_missed|running|#{row}/1")]);
    finish_all(&mut stepper, &Outcome::succeeded());
    step(&mut stepper, 0);

    // What a change resolves is missed as well.
    stepper.clock().advance(minutes(200));
    client.pause("skips").expect("a pause");
    assert_eq!(db.count_rows("task_runs WHERE origin = 'on_missed'"), 2);
    db.assert_bystander(&bystander);
    db.assert_sound();
}

/// A run that was requested since the last look could be claimed first, so two turns pass.
fn pass_expiry(stepper: &mut Stepper) {
    for _ in 0..2 {
        stepper.clock().advance(minutes(2));
        step(stepper, 0);
    }
}

#[test]
fn a_run_that_expires_is_followed_and_one_that_tells_of_it_is_not() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("other").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(on_demand("tell").expires(minutes(1)).on_missed("tell")).expect("a task");
    client.add(on_demand("work").expires(minutes(1)).on_missed("tell")).expect("a task");
    let run = client.trigger_run(NewRun::of("work").payload(json!({"to": "anna"}))).expect("a run").run_id;
    step(&mut stepper, 0);
    pass_expiry(&mut stepper);
    assert_eq!(followers(&db), [format!("tell|on_missed|queued|#{run}/1")]);
    let says: Value =
        serde_json::from_str(&db.ask("SELECT payload FROM task_runs WHERE origin = 'on_missed'")).expect("JSON");
    assert_eq!(
        (&says["from"], &says["to"], &says["count"]),
        (&"2027-03-14T12:00:00.000Z".into(), &says["from"], &1.into())
    );
    assert_eq!(says["payload"], json!({"to": "anna"}));
    pass_expiry(&mut stepper);
    assert_eq!(followers(&db), [format!("tell|on_missed|missed|#{run}/1")]);
    db.assert_sound();
}

#[test]
fn the_columns_are_stored_compared_and_written_by_sql() {
    let (db, mut stepper, client) = with_tasks(&["b"]);
    let task = || on_demand("a").on_success("b").on_end("c,d").on_missed("e");
    client.add(task()).expect("a task");
    assert_eq!(client.add(task()).expect("unchanged").change, duly::Change::Unchanged);
    assert!(matches!(
        client.add(on_demand("a").on_success("b").on_missed("e")),
        Err(Error::TaskDiffers { field: "on_end", .. })
    ));
    let json = serde_json::to_value(client.task("a").expect("an answer")).expect("JSON");
    assert_eq!((&json["on_success"], &json["on_end"], &json["on_missed"]), (&"b".into(), &"c, d".into(), &"e".into()));
    db.execute("UPDATE scheduled_tasks SET on_success = NULL, on_end = 'b', on_missed = NULL WHERE name = 'a'");
    client.trigger("a").expect("a run");
    let claimed = claim(&mut stepper);
    assert_eq!(succeed(&mut stepper, &claimed)[0].origin, Origin::OnEnd);
    db.try_execute("UPDATE scheduled_tasks SET on_success = '' WHERE name = 'a'").unwrap_err();
}

/// A `delay` task that misses what is late.
fn delayed(name: &str) -> NewTask {
    NewTask::delay(name, minutes(60)).handler("work").misfire(Misfire::Skip, Duration::from_secs(60))
}

#[test]
fn a_chain_of_late_tasks_is_worked_off_as_far_as_a_chain_may_get() {
    let (db, mut stepper, client) = with_tasks(&["last"]);
    for n in (0..150).rev() {
        let next = if n == 149 { "last".to_owned() } else { format!("d{}", n + 1) };
        client.add(delayed(&format!("d{n}")).on_missed(next)).expect("a task");
    }
    stepper.clock().advance(minutes(200));
    client.pause("d0").expect("a pause");
    let opened =
        db.rows("SELECT count(*), count(CASE WHEN r.request_key LIKE '%/100' THEN 1 END) FROM task_runs r WHERE origin = 'on_missed'");
    assert_eq!(opened, ["100|1"], "each one follows from the one before");
    assert_eq!(db.count_rows("scheduler_events WHERE kind = 'not_followed' AND detail LIKE '%, the most'"), 1);
    stepper.step().expect("a step");
    db.assert_sound();
}

#[test]
fn a_late_task_that_follows_is_resolved_once() {
    let (db, mut stepper, client) = with_tasks(&[]);
    client.add(delayed("second").overlap(Overlap::CancelRunning)).expect("a task");
    client.add(delayed("first").on_missed("second")).expect("a task");
    stepper.clock().advance(minutes(200));
    stepper.step().expect("a step");
    assert_eq!(db.count_rows("task_runs WHERE status = 'skipped' OR cancel_requested = 1"), 0);
    let second = "SELECT r.origin FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE t.name = 'second' AND r.status <> 'missed'";
    assert_eq!(db.rows(second), ["on_missed"]);
    db.assert_sound();
}

#[test]
fn of_more_names_than_add_accepts_the_first_follow() {
    let names: Vec<String> = (0..9).map(|n| format!("t{n}")).collect();
    let (db, mut stepper, client) = with_tasks(&names.iter().map(String::as_str).collect::<Vec<_>>());
    client.add(on_demand("work")).expect("a task");
    db.execute(&format!("UPDATE scheduled_tasks SET on_success = ',,{}' WHERE name = 'work'", names.join(",")));
    client.trigger("work").expect("a run");
    let claimed = claim(&mut stepper);
    assert_eq!(succeed(&mut stepper, &claimed).len(), 4, "empty names do not count");
    let left_out = "scheduler_events WHERE kind = 'not_followed' AND detail LIKE '%\"t4\"%more than 4 tasks%'";
    assert_eq!(db.count_rows(left_out), 1);
    db.assert_sound();
}

/// Has the database refuse the runs of a task, as an application may.
fn refuse_runs_of(db: &TestDb, task: &str) {
    let id: i64 = db.number(&format!("SELECT id FROM scheduled_tasks WHERE name = '{task}'"));
    db.execute(&format!(
        "CREATE TRIGGER no BEFORE INSERT ON task_runs WHEN NEW.task_id = {id}
         BEGIN SELECT RAISE(ABORT, 'not in my db'); END"
    ));
}

/// A run of the task that waits for its second attempt.
fn waiting(stepper: &mut Stepper, task: &str) -> i64 {
    let run = stepper.client().trigger(task).expect("a run");
    let claimed = claim(stepper);
    stepper.finish(&claimed, Outcome::failed("again"));
    step(stepper, 0);
    run
}

#[test]
fn a_request_is_carried_out_although_what_follows_is_refused() {
    let (db, mut stepper, client) = with_tasks(&["clean", "sweep"]);
    for (task, next) in [("one", "clean"), ("two", "sweep"), ("three", "clean")] {
        client.add(on_demand(task).on_end(next)).expect("a task");
    }
    client.add(delayed("late").on_missed("clean")).expect("a task");
    let refused = || {
        db.count_rows(
            "scheduler_events WHERE kind = 'not_followed' AND detail LIKE '%\"clean\" cannot run: not in my db%'",
        )
    };
    let alone = waiting(&mut stepper, "three");
    refuse_runs_of(&db, "clean");

    client.cancel(alone).expect("a cancellation");
    assert_eq!((db.run(alone).status, refused()), (RunStatus::Cancelled, 1));
    // Of many, only the run that is refused is left out.
    let (one, two) = (waiting(&mut stepper, "one"), waiting(&mut stepper, "two"));
    let both = duly::Filter::new().handler("work");
    assert_eq!(client.cancel_matching(&both).expect("cancellations").changed, 2);
    assert_eq!((db.run(one).status, db.run(two).status, refused()), (RunStatus::Cancelled, RunStatus::Cancelled, 2));
    assert_eq!(followers(&db), [format!("sweep|on_end|queued|#{two}/1")]);
    // What a change resolves.
    stepper.clock().advance(minutes(200));
    client.pause("late").expect("a pause");
    assert_eq!((db.count_rows("task_runs WHERE status = 'missed'"), refused()), (1, 3));
    // Nothing of that lasts.
    db.execute("DROP TRIGGER no");
    work_off(&mut stepper);
    let last = waiting(&mut stepper, "three");
    client.cancel(last).expect("a cancellation");
    assert_eq!(db.count_rows(&format!("task_runs WHERE request_key = '#{last}/1'")), 1);
    db.assert_sound();
}

#[test]
fn details_of_a_run_name_what_it_follows_and_what_follows_it() {
    let (_db, mut stepper, client) = with_tasks(&["post", "clean"]);
    client.add(on_demand("fetch").on_success("post").on_end("clean")).expect("a task");
    let run = client.trigger("fetch").expect("a run");
    assert_eq!(client.run_details(run).expect("details").followers, []);
    let claimed = claim(&mut stepper);
    succeed(&mut stepper, &claimed);
    let details = client.run_details(run).expect("details");
    let followers: Vec<_> = details.followers.iter().map(|run| (run.task.as_str(), run.origin, run.status)).collect();
    assert_eq!(
        followers,
        [("post", Origin::OnSuccess, RunStatus::Running), ("clean", Origin::OnEnd, RunStatus::Running)]
    );
    assert_eq!(details.follows, None);
    let follower = client.run_details(details.followers[0].id).expect("details");
    assert_eq!((follower.follows, follower.followers.len()), (Some(run), 0));
}
