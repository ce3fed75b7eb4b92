//! Operations on all runs or tasks that a filter selects: batches of 500, repeated after a crash, beside a scheduler, and with rows
//! that cannot be changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::{
    BulkAction, BulkReport, Client, Context, Event, Failure, Filter, NewTask, RunStatus, Scheduler, TaskStatus,
};

use crate::fixtures::{
    NOON, TestDb, at, claim, eventually_counts, far_future, is_of_sqlite, once, patience, seconds, skip, step, succeed,
};

/// One more than a transaction changes.
const MANY: usize = 501;

/// A text that is not UTF-8, and that no check of the tables can refuse.
const NOT_UTF8: &str = "CAST(x'636166b0' AS TEXT)";

fn manual(name: &str) -> NewTask {
    NewTask::manual(name).handler("work")
}

/// Adds a manual task and triggers it.
fn add_and_trigger(client: &Client, task: NewTask, runs: usize) {
    let name = client.add(task).expect("a task").name;
    for _ in 0..runs {
        client.trigger(&name).expect("a run");
    }
}

/// Adds final runs of a task, in the order of their ids, scheduled at the milliseconds after noon.
fn add_final(db: &TestDb, task: &str, status: &str, runs: usize) {
    let noon = at(NOON).as_millis();
    let (attempt, json) = (u8::from(status == "succeeded"), if db.is_on_server() { "::jsonb" } else { "" });
    db.execute(&format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at, payload,
                                    attempt)
             SELECT t.id, t.handler, {noon} + i, 'manual', '{status}', {noon} + i, {noon} + i, ('{{\"n\":' || i || '}}'){json}, {attempt}
               FROM n JOIN scheduled_tasks t ON t.name = '{task}'"
        ));
}

fn changed(report: &BulkReport) -> (usize, usize, usize) {
    (report.changed, report.asked, report.left_count())
}

/// The reasons for which items were left, with their numbers.
fn reasons(report: &BulkReport) -> Vec<String> {
    report.left.iter().map(|left| format!("{} {}", left.count, left.reason)).collect()
}

/// Asserts that each dead run of `origin` manual has this number of retries.
#[track_caller]
fn assert_retried_once(db: &TestDb, runs: usize) {
    let retries = "SELECT count(*) || ' ' || count(DISTINCT retry_of) FROM task_runs WHERE retry_of IS NOT NULL";
    assert_eq!(db.ask(retries), format!("{runs} {runs}"));
}

#[test]
fn cancel_reaches_every_batch_and_leaves_what_does_not_match() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    add_and_trigger(&client, manual("mail-running"), 1);
    claim(&mut stepper);
    add_and_trigger(&client, manual("mail"), MANY);
    add_and_trigger(&client, manual("mail-dead"), 0);
    add_final(&db, "mail-dead", "dead", 1);
    add_and_trigger(&client, manual("male"), 1);
    add_and_trigger(&client, manual("mail-other").handler("other"), 1);
    let before = ["mail-dead", "male", "mail-other"].map(|task| db.rows_of(task));

    let filter = Filter::new().handler("work").name("mail*");
    let counted = client.count_matching(BulkAction::Cancel, &filter).expect("a count");
    assert_eq!(db.count(RunStatus::Cancelled), 0, "to count changes nothing");
    let report = client.cancel_matching(&filter).expect("a report");
    assert_eq!(changed(&report), (MANY + 1, 1, 0));
    assert_eq!(report, counted);
    assert_eq!(db.count(RunStatus::Cancelled), MANY);
    assert_eq!(db.rows("SELECT id FROM task_runs WHERE cancel_requested = 1"), ["1"]);
    assert_eq!(["mail-dead", "male", "mail-other"].map(|task| db.rows_of(task)), before);

    let again = client.cancel_matching(&filter.status(RunStatus::Queued)).expect("a report");
    assert_eq!(again, BulkReport::default(), "nothing matches");
    db.assert_sound();
}

/// If the first run of a key ended first, a scheduler could start the next one between two batches.
#[test]
fn the_run_that_may_start_is_cancelled_last() {
    let db = TestDb::new();
    let (stepper, events) = db.stepper_with_events(NOON);
    add_and_trigger(stepper.client(), manual("mail"), MANY);
    stepper.client().cancel_matching(&Filter::new().name("mail")).expect("a report");
    let cancelled = events.try_iter().filter_map(|event| match event {
        Event::Cancelled { run, .. } => Some(run),
        _ => None,
    });
    assert_eq!(cancelled.collect::<Vec<_>>(), (1..=MANY as i64).rev().collect::<Vec<_>>());
}

#[test]
fn retry_opens_one_run_for_each_dead_one_however_often_it_is_repeated() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client
        .add_all([manual("a").overlap(duly::Overlap::Allow), manual("b"), manual("other").handler("other")])
        .expect("tasks");
    add_final(&db, "a", "dead", MANY);
    add_final(&db, "b", "dead", 2);
    add_final(&db, "b", "cancelled", 1);
    add_final(&db, "b", "succeeded", 1);
    add_final(&db, "other", "dead", 1);
    let before = db.rows_of("other");

    let dead = Filter::new().handler("work");
    let counted = client.count_matching(BulkAction::Retry, &dead).expect("a count");
    let report = client.retry_matching(&dead).expect("a report");
    assert_eq!(changed(&report), (MANY + 2, 0, 0), "neither cancelled nor succeeded runs");
    assert_eq!(report, counted);
    assert_retried_once(&db, MANY + 2);
    let wrong = "SELECT count(*) FROM task_runs n JOIN task_runs o ON o.id = n.retry_of
                  WHERE n.payload IS NOT o.payload OR n.origin <> 'manual' OR o.status <> 'dead' OR n.task_id <> o.task_id";
    assert_eq!(db.ask(wrong), "0");
    assert_eq!(db.rows_of("other"), before);

    // Retries that succeeded count too, and those of the same key still start one after the other.
    let first = step(&mut stepper, 4).remove(0);
    assert_eq!(first.idempotency_key(), "a/run-1");
    succeed(&mut stepper, &first);
    let again = client.retry_matching(&dead).expect("a report");
    assert_eq!((again.changed, reasons(&again)), (0, vec![format!("{} it was retried before", MANY + 2)]));
    assert_eq!(again.left[0].examples.len(), 10);

    let cancelled = client.retry_matching(&dead.status(RunStatus::Cancelled)).expect("a report");
    assert_eq!(cancelled.changed, 1);
    db.assert_sound();
}

/// A retry that dies while the command works must not be retried by the same command.
#[test]
fn beside_a_scheduler_whose_retries_die_at_once_each_run_is_retried_once() {
    let (db, client) = TestDb::with_client();
    client.add(manual("a").overlap(duly::Overlap::Allow).at_most_once()).expect("a task");
    add_final(&db, "a", "dead", 3 * MANY);
    let started = Arc::new(AtomicUsize::new(0));
    let counter = started.clone();
    let scheduler = Scheduler::builder(db.address())
        .poll(Duration::from_millis(10))
        .handler("work", move |_: &Context| -> Result<(), Failure> {
            counter.fetch_add(1, Ordering::SeqCst);
            Err(Failure::give_up("no"))
        })
        .start()
        .expect("a scheduler");
    let report = client.retry_matching(&Filter::all()).expect("a report");
    assert_eq!(report.changed, 3 * MANY);
    eventually_counts("retries that have started", 3 * MANY, || started.load(Ordering::SeqCst));
    scheduler.shutdown(patience()).expect("an end");
    assert_eq!(db.count(RunStatus::Dead), 6 * MANY);
    assert_retried_once(&db, 3 * MANY);

    // Now the retries are dead runs, and the runs that they retried are left.
    let again = client.retry_matching(&Filter::all()).expect("a report");
    assert_eq!(changed(&again), (3 * MANY, 0, 3 * MANY));
    db.assert_sound();
}

#[test]
fn remove_reaches_every_batch_and_leaves_tasks_with_a_running_run() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    add_and_trigger(&client, manual("old-running"), 1);
    claim(&mut stepper);
    client.add_all((0..MANY).map(|number| far_future(&format!("old-{number}")))).expect("tasks");
    client.add_all([manual("new"), manual("old").handler("other"), manual("old-paused")]).expect("tasks");
    client.pause("old-paused").expect("a pause");
    let kept = ["new", "old", "old-paused", "old-running"];
    let before = kept.map(|task| db.rows_of(task));

    let filter = Filter::new().name("old*").handler("work").task_status(TaskStatus::Active);
    let counted = client.count_matching(BulkAction::Remove, &filter).expect("a count");
    let report = client.remove_matching(&filter).expect("a report");
    assert_eq!(report, counted);
    assert_eq!((report.changed, reasons(&report)), (MANY, vec!["1 a run of it is running".to_owned()]));
    assert_eq!(report.examples[0].to_string(), "old-0");
    assert_eq!(report.left[0].examples[0].to_string(), "old-running");
    assert_eq!(client.names().expect("names"), kept);
    assert_eq!(kept.map(|task| db.rows_of(task)), before);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'removed'"), MANY.to_string());
    db.assert_sound();
}

#[test]
fn pause_and_resume_reach_every_batch_and_only_tasks_that_they_can_change() {
    let (db, _stepper, client) = TestDb::with_stepper_and_client();
    client.add_all((0..MANY).map(|number| far_future(&format!("a-{number}")))).expect("tasks");
    client.add_all([far_future("b"), far_future("a-other").handler("other")]).expect("tasks");
    client.pause("a-7").expect("a pause");
    let filter = Filter::new().name("a-*").handler("work");
    assert_eq!(client.pause_matching(&filter).expect("a report").changed, MANY - 1);
    assert_eq!(client.pause_matching(&filter).expect("a report"), BulkReport::default());
    let status = "SELECT status || ' ' || count(*) FROM scheduled_tasks GROUP BY status ORDER BY status";
    assert_eq!(db.rows(status), ["active 2".to_owned(), format!("paused {MANY}")]);
    assert_eq!(client.resume_matching(&filter).expect("a report").changed, MANY);
    assert_eq!(db.rows(status), [format!("active {}", MANY + 2)]);
    db.assert_sound();
}

#[test]
fn a_pattern_has_no_other_wildcards_than_star_and_question_mark() {
    let (_db, _stepper, client) = TestDb::with_stepper_and_client();
    let names = ["a-b", "a.b", "aXb", "a_b", "ab", "a-b-c", "A-b"];
    client.add_all(names.map(manual)).expect("tasks");
    for (pattern, matching) in [
        ("a?b", "a-b, a.b, aXb, a_b"),
        ("a*b", "a-b, a.b, aXb, a_b, ab"),
        ("a.b", "a.b"),
        ("a_b", "a_b"),
        ("a-b", "a-b"),
        ("a-b*", "a-b, a-b-c"),
        ("?-b", "A-b, a-b"),
        ("*c", "a-b-c"),
        ("a[-X]b", ""),
        ("a[^z]b", ""),
        ("a%", ""),
        ("a\\*", ""),
        ("*", "A-b, a-b, a-b-c, a.b, aXb, a_b, ab"),
        ("", ""),
    ] {
        let report = client.count_matching(BulkAction::Remove, &Filter::new().name(pattern)).expect("a count");
        let mut found: Vec<String> = report.examples.iter().map(ToString::to_string).collect();
        found.sort_unstable();
        assert_eq!(found.join(", "), matching, "{pattern}");
    }
    assert_eq!(client.remove_matching(&Filter::new().name("a?b")).expect("a report").changed, 4);
    assert_eq!(client.names().expect("names"), ["A-b", "a-b-c", "ab"]);
}

#[test]
fn the_age_of_a_run_is_that_of_its_occurrence_and_of_a_task_since_it_changed_or_ran() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(manual("m")).expect("a task");
    add_final(&db, "m", "dead", 3);
    let limit = Filter::new().before(at(NOON).plus(Duration::from_millis(2)));
    assert_eq!(client.count_matching(BulkAction::Retry, &limit).expect("a count").changed, 2);
    stepper.clock().advance(Duration::from_millis(10));
    let old = Filter::new().older_than(Duration::from_millis(9));
    assert_eq!(client.count_matching(BulkAction::Retry, &old).expect("a count").changed, 1);

    // A one-time task of a day ago that has just run is not old.
    client.add(once("ran")).expect("a task");
    stepper.clock().advance(seconds(100));
    let run = claim(&mut stepper);
    client.add(far_future("new")).expect("a task");
    stepper.clock().advance(seconds(50));
    succeed(&mut stepper, &run);
    let names = |age| {
        let report =
            client.count_matching(BulkAction::Remove, &Filter::new().older_than(seconds(age))).expect("a count");
        report.examples.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(150), ["m"]);
    assert_eq!(names(51), ["m"]);
    assert_eq!(names(50), ["m", "new"]);
    assert_eq!(names(0), ["m", "new", "ran"]);
}

#[test]
fn rows_that_cannot_be_read_or_changed_cost_only_themselves() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let (db, _stepper, client) = TestDb::with_stepper_and_client();
    client.add_all(["a", "b", "c", "d", "ignored", "refused"].map(manual)).expect("tasks");
    for task in ["a", "b", "c"] {
        add_final(&db, task, "dead", 1);
        client.trigger(task).expect("a run");
    }
    let plain = db.plain();
    plain
        .execute_batch(&format!(
            "UPDATE scheduled_tasks SET payload = '\"' || {NOT_UTF8} || '\"' WHERE name = 'b';
             UPDATE task_runs SET handler = {NOT_UTF8} WHERE task_id = 3;
             CREATE TRIGGER keeps BEFORE DELETE ON scheduled_tasks WHEN OLD.name = 'ignored' BEGIN SELECT RAISE(IGNORE); END;
             CREATE TRIGGER refuses BEFORE DELETE ON scheduled_tasks WHEN OLD.name = 'refused'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END;
             CREATE TRIGGER no_retry BEFORE INSERT ON task_runs WHEN NEW.retry_of IS NOT NULL AND NEW.task_id = 1
             BEGIN SELECT RAISE(ABORT, 'no retry'); END"
        ))
        .expect("other programs");

    let report = client.retry_matching(&Filter::all()).expect("a report");
    assert_eq!(report.examples.iter().map(ToString::to_string).collect::<Vec<_>>(), ["run 5 of c"]);
    assert_eq!(reasons(&report), ["1 no retry", "1 its task is invalid"]);
    assert_eq!(client.cancel_matching(&Filter::all()).expect("a report").changed, 4);
    let report = client.remove_matching(&Filter::all()).expect("a report");
    assert_eq!(
        (report.changed, reasons(&report)),
        (4, vec!["1 a trigger of the database keeps it".to_owned(), "1 not this one".to_owned()])
    );
    assert_eq!(client.names().expect("names"), ["ignored", "refused"]);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'removed'"), "4", "only what is gone");
    client.remove("ignored").expect_err("its trigger keeps it");

    // Of more runs than one transaction deletes, none goes: no transaction repeats that.
    add_final(&db, "ignored", "dead", 501);
    db.execute("CREATE TRIGGER keeps_runs BEFORE DELETE ON task_runs BEGIN SELECT RAISE(IGNORE); END");
    let error = client.remove("ignored").expect_err("its runs are kept").to_string();
    assert!(error.ends_with("a trigger of the database keeps it"), "{error}");
    assert_eq!(client.remove_matching(&Filter::new().name("ignored")).expect("a report").left.len(), 1);
}

#[test]
fn a_filter_without_a_condition_is_refused_and_one_that_matches_nothing_changes_nothing() {
    let (db, _stepper, client) = TestDb::with_stepper_and_client();
    add_and_trigger(&client, manual("a"), 1);
    add_final(&db, "a", "dead", 1);
    let before = db.rows_of("a");
    for action in BulkAction::ALL {
        let refused = client.change_matching(*action, &Filter::new()).unwrap_err().to_string();
        assert!(refused.contains("it has no condition; Filter::all() selects everything"), "{refused}");
        for filter in [Filter::new().handler("b"), Filter::new().name("b*"), Filter::new().older_than(seconds(1))] {
            assert_eq!(client.change_matching(*action, &filter).expect("a report"), BulkReport::default());
        }
    }
    assert_eq!(db.rows_of("a"), before);
}

#[test]
fn a_transaction_is_bounded_by_the_rows_that_it_changes() {
    let (db, stepper) = TestDb::with_stepper();
    let client = stepper.client();
    for task in ["a", "b", "c"] {
        client.add(manual(task)).expect("a task");
        add_final(&db, task, "succeeded", 6000);
    }
    assert_eq!(client.remove_matching(&Filter::new().name("?")).expect("a report").changed, 3);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs"), "0");
    db.assert_sound();
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_a_change_of_all_that_match_is_confirmed() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    if Command::new("script").arg("--version").output().is_err() {
        return skip("no script");
    }
    let (db, client) = TestDb::with_client();
    client.add_all(["mail-a", "mail-b", "other"].map(manual)).expect("tasks");
    let answered = |answer: &str| {
        let address = db.address().display();
        let line = format!("'{}' --db '{address}' remove --name 'mail-*'", env!("CARGO_BIN_EXE_duly"));
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).current_dir(db.home()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut terminal = terminal.spawn().expect("script");
        terminal.stdin.take().expect("a pipe").write_all(answer.as_bytes()).expect("an answer");
        String::from_utf8(terminal.wait_with_output().expect("an end").stdout).expect("UTF-8")
    };
    let printed = answered("n\n");
    assert!(printed.contains("would remove 2 tasks and their history: mail-a, mail-b"), "{printed}");
    assert!(printed.contains("remove 2 tasks and their history? [y/N] "), "{printed}");
    assert!(printed.contains("error: not confirmed: nothing was changed"), "{printed}");
    assert_eq!(client.names().expect("names"), ["mail-a", "mail-b", "other"]);
    let printed = answered("y\n");
    assert!(printed.contains("removed 2 tasks and their history"), "{printed}");
    assert_eq!(client.names().expect("names"), ["other"]);
}

#[cfg(feature = "faults")]
mod with_faults {
    use duly::{Filter, RunStatus};

    use super::{MANY, TestDb, add_and_trigger, add_final, assert_retried_once, manual};

    /// Runs a command that is killed at this point.
    fn killed(db: &TestDb, point: &str, arguments: &[&str]) {
        let mut program = db.duly(arguments);
        let output = program.env("DULY_FAULTS", format!("{point}=kill")).output().expect("the program");
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }

    #[test]
    fn a_retry_that_was_killed_and_is_repeated_retries_no_run_twice() {
        for (point, before) in [("matching", 0), ("matched", 500)] {
            let (db, client) = TestDb::with_client();
            client.add(manual("a")).expect("a task");
            add_final(&db, "a", "dead", MANY);
            killed(&db, point, &["retry", "--handler", "work", "--yes"]);
            assert_retried_once(&db, before);
            let printed = db.printed(&["retry", "--handler", "work", "--yes"]);
            assert!(printed.starts_with(&format!("retried {} run", MANY - before)), "{printed}");
            assert_retried_once(&db, MANY);
            db.assert_sound();
        }
    }

    #[test]
    fn a_cancellation_and_a_removal_that_were_killed_continue_when_they_are_repeated() {
        let (db, client) = TestDb::with_client();
        add_and_trigger(&client, manual("a"), MANY);
        killed(&db, "matched", &["cancel", "--name", "a", "--yes"]);
        assert_eq!((db.count(RunStatus::Cancelled), db.count(RunStatus::Queued)), (500, 1));
        db.assert_sound();
        assert_eq!(client.cancel_matching(&Filter::new().name("a")).expect("a report").changed, 1);

        client.add_all((0..MANY).map(|number| manual(&format!("b-{number}")))).expect("tasks");
        killed(&db, "matched", &["remove", "--name", "b-*", "--yes"]);
        assert_eq!(client.names().expect("names").len(), 2);
        assert_eq!(client.remove_matching(&Filter::new().name("b-*")).expect("a report").changed, 1);
        assert_eq!(client.names().expect("names"), ["a"]);
        db.assert_sound();
    }
}
