//! Manifests: tasks that are to be as one file says, all in one transaction.

use duly::{Applied, Apply, Client, Done, NewTask, Outcome, TaskStatus};

use crate::house::{House, minutes};

const NOON: &str = "2027-03-14T12:00:00Z";
const PRUNE: Apply = Apply { prune: true, dry_run: false };

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
        _ => "something else",
    };
    applied.iter().map(|applied| (&*applied.name, word(applied))).collect()
}

fn all(house: &House) -> Vec<String> {
    house.rows("SELECT * FROM scheduled_tasks ORDER BY id")
}

#[test]
fn a_second_time_changes_nothing_and_another_text_what_differs() {
    let house = House::new();
    let client = house.client();
    client.add(hourly("by-hand")).unwrap();
    let tasks = || ["a", "b"].map(hourly);
    assert_eq!(done(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "created"), ("b", "created")]);
    let before = all(&house);
    assert_eq!(done(&client.apply("m", tasks(), PRUNE).unwrap()), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(all(&house), before);

    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), hourly("b")], PRUNE).unwrap();
    let fields = vec![("timeout_ms", String::new(), "60000".to_owned()), ("priority", "1".to_owned(), "0".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
    assert_eq!(done(&applied), [("a", "replaced"), ("b", "unchanged")]);
    let rows = all(&house);
    assert_eq!((&rows[0], &rows[2]), (&before[0], &before[2]), "the others stay as they were");
    // The same instant written otherwise is the same schedule.
    let also = NewTask::scheduled("b", duly::ScheduleKind::Interval, "60m").handler("work");
    let applied = client.apply("m", [hourly("a").priority(0).timeout(minutes(1)), also], PRUNE).unwrap();
    assert_eq!(done(&applied), [("a", "unchanged"), ("b", "unchanged")]);
    assert_eq!(all(&house), rows);
}

#[test]
fn a_rehearsal_tells_the_same_and_writes_nothing() {
    let house = House::new();
    let client = house.client();
    client.apply("m", ["a", "b"].map(hourly), PRUNE).unwrap();
    let before = all(&house);
    let manifest = || [hourly("a").priority(0), hourly("c")];
    let dry = client.apply("m", manifest(), Apply { dry_run: true, ..PRUNE }).unwrap();
    assert_eq!(done(&dry), [("a", "replaced"), ("c", "created"), ("b", "removed")]);
    assert_eq!(all(&house), before);
    let wet = client.apply("m", manifest(), PRUNE).unwrap();
    assert_eq!(done(&wet), done(&dry));
    assert_eq!(house.rows("SELECT name FROM scheduled_tasks ORDER BY 1"), ["a", "c"]);
}

#[test]
fn what_is_no_longer_declared_goes_only_if_asked_and_only_what_was_declared() {
    let house = House::new();
    let mut stepper = house.stepper(NOON);
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
    assert_eq!(house.rows("SELECT name FROM scheduled_tasks ORDER BY 1"), ["by-hand", "theirs"]);
    house.assert_sound();
}

#[test]
fn one_bad_task_and_nothing_is_applied() {
    let house = House::new();
    let client = house.client();
    client.apply("other", [hourly("theirs")], PRUNE).unwrap();
    client.add(hourly("by-hand")).unwrap();
    let before = all(&house);
    let refused = |client: &Client, bad: Vec<NewTask>| {
        let tasks = [hourly("good"), hourly("by-hand")].into_iter().chain(bad);
        let error = client.apply("m", tasks, PRUNE).unwrap_err().to_string();
        assert_eq!(all(&house), before, "{error}");
        error
    };
    let zone = NewTask::cron("bad", "0 7 * * *").time_zone("Mars/Olympus").handler("work");
    let error = refused(&client, vec![zone]);
    assert!(error.starts_with("cannot apply task \"bad\": invalid ") && error.contains("Mars/Olympus"), "{error}");
    let error = refused(&client, vec![hourly("good").priority(3)]);
    assert_eq!(error, "cannot apply task \"good\": the manifest declares it twice");
    let error = refused(&client, vec![hourly("theirs")]);
    assert_eq!(error, "cannot apply task \"theirs\": other declares it too: take it out of one of them");

    // What was added by hand becomes the manifest's.
    let applied = client.apply("m", [hourly("by-hand")], PRUNE).unwrap();
    let fields = vec![("managed_by", String::new(), "m".to_owned())];
    assert_eq!(applied[0].done, Done::Replaced { fields });
}
