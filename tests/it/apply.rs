//! `apply` makes the tasks of a manifest match it, or none if one is refused; `import` applies as many tasks as it can.

use duly::{Applied, Apply, Client, Done, ImportItem, NewTask, Outcome, Progress, TaskStatus};

use crate::fixtures::{TestDb, advance_and_step, at, minutes, number};

const PRUNE: Apply = Apply { prune: true, dry_run: false, adopt: false };

fn hourly(name: &str) -> NewTask {
    NewTask::interval(name, minutes(60)).handler("work")
}

fn changes(applied: &[Applied]) -> Vec<(&str, &str)> {
    let word = |applied: &Applied| match &applied.done {
        Done::Created => "created",
        Done::Unchanged => "unchanged",
        Done::Replaced { .. } => "replaced",
        Done::Removed => "removed",
        Done::Paused => "paused",
        Done::Left => "left",
        Done::Refused { .. } => "refused",
        _ => "something else",
    };
    applied.iter().map(|applied| (&*applied.name, word(applied))).collect()
}

#[test]
fn applying_again_changes_nothing_and_an_edit_changes_only_its_fields() {
    let (db, client) = TestDb::with_client();
    client.add(hourly("by-hand")).unwrap();
    let tasks = || ["a", "b"].map(hourly);
    assert_eq!(changes(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "created"), ("b", "created")]);
    let before = db.tasks();
    assert_eq!(changes(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(db.tasks(), before);

    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), hourly("b")], PRUNE).unwrap();
    let fields = vec![("timeout_ms", String::new(), "60000".to_owned()), ("priority", "1".to_owned(), "0".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
    assert_eq!(changes(&applied), [("a", "replaced"), ("b", "unchanged")]);
    let rows = db.tasks();
    assert_eq!((&rows[0], &rows[2]), (&before[0], &before[2]), "the other tasks are unchanged");
    // Another notation of the same interval is the same schedule.
    let also = NewTask::scheduled("b", duly::ScheduleKind::Interval, "60m").handler("work");
    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), also], PRUNE).unwrap();
    assert_eq!(changes(&applied), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(db.tasks(), rows);
}

#[test]
fn a_dry_run_reports_the_same_changes_and_writes_nothing() {
    let (db, client) = TestDb::with_client();
    client.apply("m", ["a", "b"].map(hourly), PRUNE).unwrap();
    let before = db.tasks();
    let manifest = || [hourly("a").priority(0), hourly("c")];
    let dry = client.apply("m", manifest(), Apply { dry_run: true, ..PRUNE }).unwrap();
    assert_eq!(changes(&dry), [("a", "replaced"), ("c", "created"), ("b", "removed")]);
    assert_eq!(db.tasks(), before);
    let written = client.apply("m", manifest(), PRUNE).unwrap();
    assert_eq!(changes(&written), changes(&dry));
    assert_eq!(client.names().unwrap(), ["a", "c"]);
}

#[test]
fn prune_removes_only_tasks_that_the_manifest_no_longer_declares() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(hourly("by-hand")).unwrap();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    let due = NewTask::interval("busy", minutes(10)).handler("work");
    client.apply("m", [due, hourly("idle")], PRUNE).unwrap();
    let claims = advance_and_step(&mut stepper, minutes(10));
    assert_eq!(claims.len(), 1);

    let left = client.apply("m", [], Apply::default()).unwrap();
    assert_eq!(changes(&left), [("busy", "left"), ("idle", "left")]);
    let first = client.apply("m", [], PRUNE).unwrap();
    assert_eq!(changes(&first), [("busy", "paused"), ("idle", "removed")]);
    assert_eq!(client.task("busy").unwrap().unwrap().status, TaskStatus::Paused);
    stepper.finish(&claims[0], Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(changes(&client.apply("m", [], PRUNE).unwrap()), [("busy", "removed")]);
    assert_eq!(client.names().unwrap(), ["by-hand", "theirs"]);
    db.assert_sound();
}

#[test]
fn a_task_paused_by_prune_is_resumed_when_declared_again_unless_the_user_paused_it() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let manifest = || ["by-us", "by-hand"].map(|name| NewTask::interval(name, minutes(10)).handler("work"));
    client.apply("m", manifest(), PRUNE).unwrap();
    let claims = advance_and_step(&mut stepper, minutes(10));
    assert_eq!(claims.len(), 2);
    client.pause("by-hand").unwrap();
    assert_eq!(changes(&client.apply("m", [], PRUNE).unwrap()), [("by-hand", "paused"), ("by-us", "paused")]);
    let again = client.apply("m", manifest(), PRUNE).unwrap();
    let fields = vec![("status", "paused".to_owned(), "active".to_owned())];
    assert_eq!((&again[0].done, &again[1].done), (&Done::Replaced { fields }, &Done::Unchanged));
    assert_eq!(again[0].next_run, Some(at("2027-03-14T12:20:00Z")));
    assert_eq!(
        changes(&client.apply("m", manifest(), PRUNE).unwrap()),
        [("by-us", "unchanged"), ("by-hand", "unchanged")]
    );

    // A later pause by the user is kept.
    client.pause("by-us").unwrap();
    assert_eq!(changes(&client.apply("m", manifest(), PRUNE).unwrap())[0], ("by-us", "unchanged"));
    assert!(client.tasks().unwrap().iter().all(|task| task.status == TaskStatus::Paused));
    for claim in &claims {
        stepper.finish(claim, Outcome::succeeded());
    }
    stepper.step().unwrap();
    db.assert_sound();
}

#[test]
fn a_task_paused_by_prune_is_resumed_after_its_events_have_expired() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let names = ["by-us", "by-person", "by-sql", "edited"];
    let manifest = || names.map(|name| NewTask::interval(name, minutes(10)).handler("work"));
    client.apply("m", manifest(), PRUNE).unwrap();
    let claims = advance_and_step(&mut stepper, minutes(10));
    assert_eq!(claims.len(), 4);
    assert!(client.apply("m", [], PRUNE).unwrap().iter().all(|applied| applied.done == Done::Paused));
    // Resumed, then paused again: by the user, and by SQL.
    client.resume("by-person").unwrap();
    client.pause("by-person").unwrap();
    for status in ["active", "paused"] {
        let set = format!("UPDATE scheduled_tasks SET status = '{status}' WHERE name = 'by-sql'");
        db.execute(&set);
    }
    // An edit of the schedule does not change why it is paused.
    let edit = "UPDATE scheduled_tasks SET schedule_value = '20m' WHERE name = 'edited'";
    db.execute(edit);
    for claim in &claims {
        stepper.finish(claim, Outcome::succeeded());
    }
    stepper.step().unwrap();
    // Retention has deleted the events of the pauses.
    advance_and_step(&mut stepper, minutes(60 * 24 * 31));
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'paused'"), "0");

    let applied = client.apply("m", manifest(), PRUNE).unwrap();
    let next: Vec<_> = applied.iter().map(|applied| (&*applied.name, applied.next_run.is_some())).collect();
    assert_eq!(next, [("by-us", true), ("by-person", false), ("by-sql", false), ("edited", true)]);
    let status = db.rows("SELECT name || ' ' || status FROM scheduled_tasks ORDER BY id");
    assert_eq!(status, ["by-us active", "by-person paused", "by-sql paused", "edited active"]);
    db.assert_sound();
}

#[test]
fn one_invalid_task_prevents_the_whole_apply() {
    let (db, client) = TestDb::with_client();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    client.add(hourly("by-hand")).unwrap();
    let before = db.tasks();
    let refused = |client: &Client, bad: Vec<NewTask>| {
        let tasks = [hourly("good"), hourly("by-hand")].into_iter().chain(bad);
        let error = client.apply("m", tasks, PRUNE).unwrap_err().to_string();
        assert_eq!(db.tasks(), before, "{error}");
        error
    };
    let zone = NewTask::cron("bad", "0 7 * * *").time_zone("Mars/Olympus").handler("work");
    let error = refused(&client, vec![zone]);
    assert!(error.starts_with("cannot apply task \"bad\": invalid ") && error.contains("Mars/Olympus"), "{error}");
    let error = refused(&client, vec![hourly("good").priority(3)]);
    assert_eq!(error, "cannot apply task \"good\": the manifest declares it twice");
    let error = refused(&client, vec![hourly("theirs")]);
    assert_eq!(
        error,
        "cannot apply task \"theirs\": other declares it too: take it out of one of them, or use --adopt if that was moved here"
    );

    // The manifest takes over a task that was added by hand.
    let applied = client.apply("m", [hourly("by-hand")], PRUNE).unwrap();
    let fields = vec![("managed_by", String::new(), "m".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
}

fn imported(client: &Client, tasks: Vec<ImportItem>, how: Apply) -> Vec<Applied> {
    let advance = Progress::default();
    let applied = client.import_watched("crontab", tasks, how, &advance).unwrap();
    assert_eq!((advance.done(), advance.total()), (applied.len() as u64, applied.len() as u64));
    applied
}

fn reason(applied: &Applied) -> &str {
    match &applied.done {
        Done::Refused { reason } => reason,
        other => panic!("{}: {other:?}", applied.name),
    }
}

#[test]
fn import_refuses_single_tasks_and_leaves_tasks_of_other_sources_alone() {
    let (db, client) = TestDb::with_client();
    client.add(hourly("by-hand")).unwrap();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    let others = db.tasks();
    let tasks = || -> Vec<ImportItem> {
        let bad = NewTask::cron("bad", "0 7 * *").handler("work");
        let never = NewTask::cron("never", "0 12 * * *").ends_at(at("2020-01-01T00:00:00Z")).handler("work");
        let large = hourly("large").payload("x".repeat(300_000));
        let own = hourly("theirs").priority(0);
        let tasks = [hourly("a"), bad, never, large, hourly("by-hand").priority(0), own, hourly("a"), hourly("b")];
        tasks.map(ImportItem::from).into()
    };
    let dry = imported(&client, tasks(), Apply { dry_run: true, ..PRUNE });
    assert_eq!(db.tasks(), others);
    let first = imported(&client, tasks(), PRUNE);
    assert_eq!(changes(&dry), changes(&first));
    let words: Vec<_> = changes(&first).into_iter().map(|(name, word)| format!("{name} {word}")).collect();
    assert_eq!(
        words,
        [
            "a created",
            "bad refused",
            "never refused",
            "large refused",
            "by-hand refused",
            "theirs refused",
            "b created",
            "a refused"
        ]
    );
    for (number, says) in [
        (1, "expected 5 fields"),
        (2, "it names no occurrence from now on"),
        (3, "invalid payload: expected at most"),
        (4, "a task of this name was added by hand"),
        (5, "other declares it too"),
        (7, "declares it twice"),
    ] {
        assert!(reason(&first[number]).contains(says), "{first:?}");
    }
    let rows = db.tasks();
    assert_eq!((rows.len(), &rows[..2]), (4, &others[..]), "what is refused leaves no row");
    imported(&client, tasks(), PRUNE);
    assert_eq!(db.tasks(), rows, "importing again changes nothing");

    // A task that is refused now keeps its row; one that the source no longer has is removed.
    let applied = imported(&client, vec![ImportItem::refused("a", "unread"), hourly("b").into()], PRUNE);
    assert_eq!((changes(&applied), reason(&applied[1])), (vec![("b", "unchanged"), ("a", "refused")], "unread"));
    assert_eq!(db.tasks(), rows);
    let later = vec![ImportItem::from(NewTask::cron("a", "0 7 * *").handler("work"))];
    let applied = imported(&client, later, PRUNE);
    assert_eq!(changes(&applied), [("a", "refused"), ("b", "removed")]);
    let rows = db.tasks();
    assert_eq!((rows.len(), &rows[..2]), (3, &others[..]));
}

#[test]
fn import_keeps_paused_tasks_paused_and_starts_no_run() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let past = || NewTask::once("past", at("2027-03-01T12:00:00Z")).handler("work");
    let tasks = || [past(), hourly("rests")].map(|task| ImportItem { paused: true, ..task.into() }).into();
    assert_eq!(changes(&imported(&client, tasks(), PRUNE)), [("past", "created"), ("rests", "created")]);
    assert!(advance_and_step(&mut stepper, minutes(200)).is_empty());
    assert_eq!(db.runs(), []);
    assert_eq!(db.ask("SELECT group_concat(status || planned) FROM scheduled_tasks"), "paused1,paused1");
    client.resume("past").unwrap();
    // Importing again does not pause a task that was resumed here.
    assert_eq!(changes(&imported(&client, tasks(), PRUNE)), [("past", "unchanged"), ("rests", "unchanged")]);
    let claims = stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["past"]);
    db.assert_sound();
}

/// A moved manifest takes over the tasks that it declares, and no others.
#[test]
fn tasks_of_another_manifest_are_adopted_only_with_adopt() {
    let (db, client) = TestDb::with_client();
    client.apply("old/tasks.toml", ["a", "b", "c"].map(hourly), PRUNE).unwrap();
    let before = db.tasks();
    let error = client.apply("new/tasks.toml", ["a", "b"].map(hourly), PRUNE).unwrap_err().to_string();
    assert!(error.contains("old/tasks.toml declares it too") && error.contains("--adopt"), "{error}");
    assert_eq!(db.tasks(), before);
    let adopt = Apply { adopt: true, ..PRUNE };
    let dry = client.apply("new/tasks.toml", ["a", "b"].map(hourly), Apply { dry_run: true, ..adopt }).unwrap();
    assert_eq!(db.tasks(), before);
    let adopted = client.apply("new/tasks.toml", ["a", "b"].map(hourly), adopt).unwrap();
    assert_eq!(changes(&adopted), [("a", "replaced"), ("b", "replaced")]);
    assert_eq!(adopted, dry);
    let fields = vec![("managed_by", "old/tasks.toml".to_owned(), "new/tasks.toml".to_owned())];
    assert_eq!(adopted[0].done, Done::Replaced { fields });
    // The next occurrences are unchanged, and the old manifest keeps its other task.
    assert_eq!(client.task("a").unwrap().unwrap().next_run, dry[0].next_run);
    assert_eq!(db.tasks()[2], before[2]);
    assert_eq!(
        changes(&client.apply("new/tasks.toml", ["a", "b"].map(hourly), PRUNE).unwrap()),
        [("a", "unchanged"), ("b", "unchanged")]
    );
}

/// Most tasks of one transaction.
const PART: usize = 500;

fn many(tasks: usize) -> impl Iterator<Item = NewTask> {
    (0..tasks).map(|number| hourly(&format!("t:{number:06}")))
}

#[test]
fn many_tasks_are_checked_first_and_then_applied_in_parts() {
    let (db, client) = TestDb::with_client();
    let count = || db.number::<usize>("SELECT count(*) FROM scheduled_tasks");
    let all = number("DULY_TASKS", 3 * PART);
    // One that is refused, in the last part.
    let with_bad = many(all - 1).chain([NewTask::cron("bad", "61 * * * *").handler("work")]);
    client.apply("m", with_bad, PRUNE).unwrap_err();
    assert_eq!(count(), 0);
    let applied = client.apply("m", many(all), PRUNE).unwrap();
    assert_eq!((applied.len(), count()), (all, all));
    // The removal of those that are no longer declared follows, in parts too.
    let applied = client.apply("m", many(PART / 2), PRUNE).unwrap();
    let removed = applied.iter().filter(|applied| applied.done == Done::Removed).count();
    assert_eq!((applied.len(), removed, count()), (all, all - PART / 2, PART / 2));
    db.assert_sound();
}

#[test]
fn what_was_applied_before_a_fault_stays_and_the_next_apply_does_the_rest() {
    let (db, client) = TestDb::with_client();
    // The check does not meet it: each of its parts is rolled back, and the next one begins with the same id.
    db.execute(
        "CREATE TRIGGER refuse AFTER INSERT ON scheduled_tasks WHEN NEW.id > 1200 BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    let progress = Progress::default();
    let error = client.apply_watched("m", many(3 * PART), PRUNE, &progress).unwrap_err();
    assert!(error.to_string().contains("not now"), "{error}");
    assert_eq!((progress.done(), progress.total()), (2 * PART as u64, 3 * PART as u64));
    assert_eq!(client.names().unwrap().len(), 2 * PART);
    db.execute("DROP TRIGGER refuse");
    let applied = client.apply("m", many(3 * PART), PRUNE).unwrap();
    let (before, rest) = applied.split_at(2 * PART);
    assert!(before.iter().all(|applied| applied.done == Done::Unchanged));
    assert!(rest.iter().all(|applied| applied.done == Done::Created) && rest.len() == PART);
    db.assert_sound();
}
