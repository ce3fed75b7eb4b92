//! Manifests: tasks that are to be as one file says, all in one transaction; and tasks brought over as far as they can come.

use duly::{Applied, Apply, Client, Done, ImportItem, NewTask, Outcome, Progress, TaskStatus};

use crate::fixtures::{TestDb, at, minutes};

const NOON: &str = "2027-03-14T12:00:00Z";
const PRUNE: Apply = Apply { prune: true, dry_run: false, adopt: false };

fn hourly(name: &str) -> NewTask {
    NewTask::interval(name, minutes(60)).handler("work")
}

fn done(applied: &[Applied]) -> Vec<(&str, &str)> {
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

fn all(db: &TestDb) -> Vec<String> {
    db.rows("SELECT * FROM scheduled_tasks ORDER BY id")
}

#[test]
fn a_second_time_changes_nothing_and_another_text_what_differs() {
    let db = TestDb::new();
    let client = db.client();
    client.add(hourly("by-hand")).unwrap();
    let tasks = || ["a", "b"].map(hourly);
    assert_eq!(done(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "created"), ("b", "created")]);
    let before = all(&db);
    assert_eq!(done(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(all(&db), before);

    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), hourly("b")], PRUNE).unwrap();
    let fields = vec![("timeout_ms", String::new(), "60000".to_owned()), ("priority", "1".to_owned(), "0".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
    assert_eq!(done(&applied), [("a", "replaced"), ("b", "unchanged")]);
    let rows = all(&db);
    assert_eq!((&rows[0], &rows[2]), (&before[0], &before[2]), "the others stay as they were");
    // The same instant written otherwise is the same schedule.
    let also = NewTask::scheduled("b", duly::ScheduleKind::Interval, "60m").handler("work");
    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), also], PRUNE).unwrap();
    assert_eq!(done(&applied), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(all(&db), rows);
}

#[test]
fn a_rehearsal_tells_the_same_and_writes_nothing() {
    let db = TestDb::new();
    let client = db.client();
    client.apply("m", ["a", "b"].map(hourly), PRUNE).unwrap();
    let before = all(&db);
    let manifest = || [hourly("a").priority(0), hourly("c")];
    let dry = client.apply("m", manifest(), Apply { dry_run: true, ..PRUNE }).unwrap();
    assert_eq!(done(&dry), [("a", "replaced"), ("c", "created"), ("b", "removed")]);
    assert_eq!(all(&db), before);
    let wet = client.apply("m", manifest(), PRUNE).unwrap();
    assert_eq!(done(&wet), done(&dry));
    assert_eq!(db.rows("SELECT name FROM scheduled_tasks ORDER BY 1"), ["a", "c"]);
}

#[test]
fn what_is_no_longer_declared_goes_only_if_asked_and_only_what_was_declared() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(hourly("by-hand")).unwrap();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    let due = NewTask::interval("busy", minutes(10)).handler("work");
    client.apply("m", [due, hourly("idle")], PRUNE).unwrap();
    stepper.clock().advance(minutes(10));
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 1);

    let left = client.apply("m", [], Apply::default()).unwrap();
    assert_eq!(done(&left), [("busy", "left"), ("idle", "left")]);
    let first = client.apply("m", [], PRUNE).unwrap();
    assert_eq!(done(&first), [("busy", "paused"), ("idle", "removed")]);
    assert_eq!(client.task("busy").unwrap().unwrap().status, TaskStatus::Paused);
    stepper.finish(&claims[0], Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(done(&client.apply("m", [], PRUNE).unwrap()), [("busy", "removed")]);
    assert_eq!(db.rows("SELECT name FROM scheduled_tasks ORDER BY 1"), ["by-hand", "theirs"]);
    db.assert_sound();
}

#[test]
fn what_was_to_go_and_is_declared_again_is_active_but_not_what_a_person_paused() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let manifest = || ["by-us", "by-hand"].map(|name| NewTask::interval(name, minutes(10)).handler("work"));
    client.apply("m", manifest(), PRUNE).unwrap();
    stepper.clock().advance(minutes(10));
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 2);
    client.pause("by-hand").unwrap();
    assert_eq!(done(&client.apply("m", [], PRUNE).unwrap()), [("by-hand", "paused"), ("by-us", "paused")]);
    let again = client.apply("m", manifest(), PRUNE).unwrap();
    let fields = vec![("status", "paused".to_owned(), "active".to_owned())];
    assert_eq!((&again[0].done, &again[1].done), (&Done::Replaced { fields }, &Done::Unchanged));
    assert_eq!(again[0].next_run, Some(at("2027-03-14T12:20:00Z")));
    assert_eq!(
        done(&client.apply("m", manifest(), PRUNE).unwrap()),
        [("by-us", "unchanged"), ("by-hand", "unchanged")]
    );

    // A person who pauses it later means it.
    client.pause("by-us").unwrap();
    assert_eq!(done(&client.apply("m", manifest(), PRUNE).unwrap())[0], ("by-us", "unchanged"));
    assert_eq!(db.rows("SELECT DISTINCT status FROM scheduled_tasks"), ["paused"]);
    for claim in &claims {
        stepper.finish(claim, Outcome::succeeded());
    }
    stepper.step().unwrap();
    db.assert_sound();
}

#[test]
fn what_was_to_go_and_is_declared_again_is_active_however_long_that_took() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let names = ["by-us", "by-person", "by-sql", "edited"];
    let manifest = || names.map(|name| NewTask::interval(name, minutes(10)).handler("work"));
    client.apply("m", manifest(), PRUNE).unwrap();
    stepper.clock().advance(minutes(10));
    let claims = stepper.step().unwrap();
    assert_eq!(claims.len(), 4);
    assert!(client.apply("m", [], PRUNE).unwrap().iter().all(|applied| applied.done == Done::Paused));
    // Resumed, and paused again by somebody else.
    client.resume("by-person").unwrap();
    client.pause("by-person").unwrap();
    for status in ["active", "paused"] {
        let set = format!("UPDATE scheduled_tasks SET status = '{status}' WHERE name = 'by-sql'");
        db.plain().execute_batch(&set).unwrap();
    }
    // An edit of the schedule does not change why it is paused.
    let edit = "UPDATE scheduled_tasks SET schedule_value = '20m' WHERE name = 'edited'";
    db.plain().execute_batch(edit).unwrap();
    for claim in &claims {
        stepper.finish(claim, Outcome::succeeded());
    }
    stepper.step().unwrap();
    // Retention has deleted the events that tell of the pauses.
    stepper.clock().advance(minutes(60 * 24 * 31));
    stepper.step().unwrap();
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'paused'"), "0");

    let applied = client.apply("m", manifest(), PRUNE).unwrap();
    let next: Vec<_> = applied.iter().map(|applied| (&*applied.name, applied.next_run.is_some())).collect();
    assert_eq!(next, [("by-us", true), ("by-person", false), ("by-sql", false), ("edited", true)]);
    let status = db.rows("SELECT name || ' ' || status FROM scheduled_tasks ORDER BY id");
    assert_eq!(status, ["by-us active", "by-person paused", "by-sql paused", "edited active"]);
    db.assert_sound();
}

#[test]
fn one_bad_task_and_nothing_is_applied() {
    let db = TestDb::new();
    let client = db.client();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    client.add(hourly("by-hand")).unwrap();
    let before = all(&db);
    let refused = |client: &Client, bad: Vec<NewTask>| {
        let tasks = [hourly("good"), hourly("by-hand")].into_iter().chain(bad);
        let error = client.apply("m", tasks, PRUNE).unwrap_err().to_string();
        assert_eq!(all(&db), before, "{error}");
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

    // What was added by hand becomes the manifest's.
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
fn what_cannot_be_brought_over_keeps_nothing_back_and_what_is_not_the_sources_stays() {
    let db = TestDb::new();
    let client = db.client();
    client.add(hourly("by-hand")).unwrap();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    let others = all(&db);
    let tasks = || -> Vec<ImportItem> {
        let bad = NewTask::cron("bad", "0 7 * *").handler("work");
        let never = NewTask::cron("never", "0 12 * * *").ends_at(at("2020-01-01T00:00:00Z")).handler("work");
        let large = hourly("large").payload("x".repeat(300_000));
        let own = hourly("theirs").priority(0);
        let tasks = [hourly("a"), bad, never, large, hourly("by-hand").priority(0), own, hourly("a"), hourly("b")];
        tasks.map(ImportItem::from).into()
    };
    let dry = imported(&client, tasks(), Apply { dry_run: true, ..PRUNE });
    assert_eq!(all(&db), others);
    let first = imported(&client, tasks(), PRUNE);
    assert_eq!(done(&dry), done(&first));
    let words: Vec<_> = done(&first).into_iter().map(|(name, word)| format!("{name} {word}")).collect();
    assert_eq!(
        words,
        [
            "a created",
            "bad refused",
            "never refused",
            "large refused",
            "by-hand refused",
            "theirs refused",
            "a refused",
            "b created"
        ]
    );
    for (number, says) in [
        (1, "expected 5 fields"),
        (2, "it names no occurrence from now on"),
        (3, "invalid payload: expected at most"),
        (4, "a task of this name was added by hand"),
        (5, "other declares it too"),
        (6, "declares it twice"),
    ] {
        assert!(reason(&first[number]).contains(says), "{first:?}");
    }
    let rows = all(&db);
    assert_eq!((rows.len(), &rows[..2]), (4, &others[..]), "what is refused leaves no row");
    imported(&client, tasks(), PRUNE);
    assert_eq!(all(&db), rows, "and a second time changes nothing");

    // One that is refused now stays as it was accepted before, whoever refuses it; one that is gone goes.
    let applied = imported(&client, vec![ImportItem::refused("a", "unread"), hourly("b").into()], PRUNE);
    assert_eq!((done(&applied), reason(&applied[1])), (vec![("b", "unchanged"), ("a", "refused")], "unread"));
    assert_eq!(all(&db), rows);
    let later = vec![ImportItem::from(NewTask::cron("a", "0 7 * *").handler("work"))];
    let applied = imported(&client, later, PRUNE);
    assert_eq!(done(&applied), [("a", "refused"), ("b", "removed")]);
    let rows = all(&db);
    assert_eq!((rows.len(), &rows[..2]), (3, &others[..]));
}

#[test]
fn what_rested_there_rests_here_and_is_not_begun_by_being_brought() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    let past = || NewTask::once("past", at("2027-03-01T12:00:00Z")).handler("work");
    let tasks = || [past(), hourly("rests")].map(|task| ImportItem { paused: true, ..task.into() }).into();
    assert_eq!(done(&imported(&client, tasks(), PRUNE)), [("past", "created"), ("rests", "created")]);
    stepper.clock().advance(minutes(200));
    assert!(stepper.step().unwrap().is_empty());
    assert_eq!(db.ask("SELECT count(*) FROM task_runs"), "0");
    assert_eq!(db.ask("SELECT group_concat(status || planned) FROM scheduled_tasks"), "paused1,paused1");
    client.resume("past").unwrap();
    // What was resumed here is not put to rest again by the source.
    assert_eq!(done(&imported(&client, tasks(), PRUNE)), [("past", "unchanged"), ("rests", "unchanged")]);
    let claims = stepper.step().unwrap();
    assert_eq!(claims.iter().map(|claim| &*claim.task).collect::<Vec<_>>(), ["past"]);
    db.assert_sound();
}

/// A manifest that was moved takes over what it declares, and nothing else.
#[test]
fn what_another_manifest_declared_is_adopted_only_if_asked() {
    let db = TestDb::new();
    let client = db.client();
    client.apply("old/tasks.toml", ["a", "b", "c"].map(hourly), PRUNE).unwrap();
    let before = all(&db);
    let error = client.apply("new/tasks.toml", ["a", "b"].map(hourly), PRUNE).unwrap_err().to_string();
    assert!(error.contains("old/tasks.toml declares it too") && error.contains("--adopt"), "{error}");
    assert_eq!(all(&db), before);
    let adopt = Apply { adopt: true, ..PRUNE };
    let dry = client.apply("new/tasks.toml", ["a", "b"].map(hourly), Apply { dry_run: true, ..adopt }).unwrap();
    assert_eq!(all(&db), before);
    let adopted = client.apply("new/tasks.toml", ["a", "b"].map(hourly), adopt).unwrap();
    assert_eq!(done(&adopted), [("a", "replaced"), ("b", "replaced")]);
    assert_eq!(adopted, dry);
    let fields = vec![("managed_by", "old/tasks.toml".to_owned(), "new/tasks.toml".to_owned())];
    assert_eq!(adopted[0].done, Done::Replaced { fields });
    // The occurrences stay where they were, and what the old one declared beside them is still its own.
    assert_eq!(client.task("a").unwrap().unwrap().next_run, dry[0].next_run);
    assert_eq!(all(&db)[2], before[2]);
    assert_eq!(
        done(&client.apply("new/tasks.toml", ["a", "b"].map(hourly), PRUNE).unwrap()),
        [("a", "unchanged"), ("b", "unchanged")]
    );
}
