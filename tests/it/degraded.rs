//! A scheduler that cannot write its database for ten seconds records that in its lock file, and `check` reports it until the
//! database can be written.

use std::time::Duration;

use duly::{Event, NewTask};

use crate::fixtures::{NOON, TestDb, advance_and_step, listen, problems, seconds};

#[test]
fn a_database_that_cannot_be_written_for_ten_seconds_is_reported_while_it_lasts() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let reports = || events.try_iter().filter(|event| matches!(event, Event::Degraded { .. })).count();
    let builder = db.builder(NOON).accept("work").busy_timeout(Duration::ZERO);
    let mut stepper = builder.observe(observer).start().expect("a stepper");
    // Another scheduler has nothing to write.
    let neighbour = db.builder(NOON).clock(stepper.clock()).accept("none").start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::interval("tick", seconds(1)).handler("work")).expect("a task");
    stepper.step().expect("a turn");
    let mut pass = |time: u64| {
        let _claims = advance_and_step(&mut stepper, seconds(time));
        // The run of the task never ends.
        problems(&client).into_iter().filter(|line| !line.starts_with("skipped: ")).collect::<Vec<_>>()
    };
    assert_eq!(pass(30), [""; 0]);

    let writer = db.plain();
    writer.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert_eq!(pass(1), [""; 0]);
    assert_eq!(pass(9), [""; 0], "nine seconds are not ten");
    let lines = pass(1);
    let pid = std::process::id();
    assert!(
        lines.len() == 1 && lines[0].starts_with(&format!("degraded: the scheduler with pid {pid} on ")),
        "{lines:?}"
    );
    let rest = " has not been able to write the database for ten seconds or longer: see its log for the cause; nothing starts \
                until it can write again";
    assert!(lines[0].ends_with(rest), "{lines:?}");
    assert!(client.status().expect("a status").instances.iter().filter(|one| one.degraded).count() == 1);
    // Also when its lease has passed, there is one reason: its run is not shown as stuck.
    for _ in 0..12 {
        assert_eq!(pass(6), lines, "it lasts");
    }
    // A recreated lock file holds the same.
    std::fs::remove_dir_all(db.lock_folder()).expect("the lock files");
    assert_eq!(pass(6), lines);
    assert_eq!(reports(), 1, "it is logged once");

    writer.execute_batch("ROLLBACK").expect("the lock is free");
    // Nothing runs for what was due meanwhile.
    let missed = pass(6);
    assert!(missed.len() == 1 && missed[0].starts_with("missed: tick missed "), "{missed:?}");
    // The next outage is reported after ten seconds again.
    writer.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert_eq!(pass(1), missed);
    assert_eq!(pass(9), missed);
    assert_eq!(reports(), 1);
    drop(neighbour);
}

/// On a full disk the lock file can still be overwritten in place.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_while_it_lasts() {
    use crate::disk::tools::{SmallDisk, may_mount};
    use crate::fixtures::eventually;
    use crate::sidecar::Sidecar;

    if !may_mount("degraded::a_full_disk_is_reported_while_it_lasts", "a lock is tried, in another test") {
        return;
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    let client = db.client();
    let tick = serde_json::json!({ "argv": ["true"] });
    client.add(NewTask::interval("tick", seconds(1)).handler("command").payload(tick)).expect("a task");
    let mut sidecar = Sidecar::start(&db, &[]);
    eventually("it ticks", || db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'") != "0");
    assert_eq!(problems(&client), [""; 0]);
    disk.fill(&db);
    let line = format!("degraded: the scheduler with pid {} on ", sidecar.pid());
    eventually("check reports it", || problems(&client).iter().any(|found| found.starts_with(&line)));
    disk.clear();
    eventually("check reports it no longer", || problems(&client).is_empty());
    assert_eq!(sidecar.log().matches("the database cannot be written").count(), 1, "{}", sidecar.log());
    client.pause("tick").expect("a pause");
    sidecar.terminate();
}
