//! Other names of a database file. Under each name SQLite keeps another log, and two programs do not see each other's transactions:
//! a run would start twice.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use duly::{Client, Event, NewTask, Outcome, RunStatus};

use crate::disk::tools::may_mount;
use crate::fixtures::{NOON, TestDb, at, eventually, listen, once, seconds, step, wait_for_status};
use crate::opening::refusal_of_each_interface;
use crate::sidecar::{Gate, Sidecar, group_size, shell, wait_for_line};

#[test]
fn a_file_with_hard_links_is_refused_under_each_name() {
    let db = TestDb::new();
    drop(db.client());
    let (second, third) = (db.home().join("second.db"), db.home().join("third.db"));
    for (number, link) in [(2, &second), (3, &third)] {
        std::fs::hard_link(db.file(), link).unwrap();
        for name in [db.file(), &second] {
            let says = format!(
                "it has {number} names (hard links), and a log of its own under each: remove all names but one \
                 (find / -xdev -samefile {} lists them)",
                name.display()
            );
            assert_eq!(refusal_of_each_interface(&db, name), says);
        }
    }
    std::fs::remove_file(third).unwrap();
    std::fs::remove_file(second).unwrap();
    drop(db.client());
    // A symbolic link is not a second name.
    let link = db.home().join("link.db");
    std::os::unix::fs::symlink(db.file(), &link).unwrap();
    Client::open_existing(&link).unwrap().add(once("seen")).unwrap();
    assert_eq!(db.ask("SELECT name FROM scheduled_tasks"), "seen");
}

/// The scheduler starts before the second name exists.
#[test]
fn a_run_does_not_start_under_a_second_name() {
    let db = TestDb::new();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    // Only the first start waits at the gate.
    let line = format!("echo $$ >>{home}/starts; test $(wc -l <{home}/starts) -gt 1 || read line <{home}/gate");
    db.client().add(shell("due", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    wait_for_line(&db, "starts");
    let second = db.home().join("second.db");
    std::fs::hard_link(db.file(), &second).unwrap();
    let other =
        Command::new(env!("CARGO_BIN_EXE_duly")).arg("--db").arg(&second).args(["run", "--until-idle"]).output();
    let other = other.expect("the program");
    let error = String::from_utf8_lossy(&other.stderr);
    let starts = std::fs::read_to_string(db.home().join("starts")).unwrap();
    assert_eq!(starts.lines().count(), 1, "it started twice: {error}");
    assert_eq!(other.status.code(), Some(4), "{error}");
    assert!(error.starts_with("error: cannot use ") && error.contains("2 names (hard links)"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    eventually("it is noticed", || sidecar.log().contains("the database cannot be written"));
    gate.open();
    assert_eq!(db.ask("SELECT status FROM task_runs"), "running", "the outcome waits");
    std::fs::remove_file(second).unwrap();
    wait_for_status(&Client::open(db.file()).unwrap(), "due", RunStatus::Succeeded);
    let log = sidecar.log();
    let refusals: Vec<&str> = log.lines().filter(|line| line.contains("hard links")).collect();
    assert!(matches!(&refusals[..], [one] if one.contains("nothing starts until it can, retrying")), "{log}");
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn while_there_is_a_second_name_nothing_starts_and_outcomes_wait() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let is_reported = |event: &Event| matches!(event, Event::Degraded { .. } | Event::Recovered);
    let mut stepper = db.builder(NOON).accept("work").observe(observer).start().unwrap();
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(once("running")).unwrap();
    let running = step(&mut stepper, 1).remove(0);
    client.add(NewTask::once("next", at("2027-03-14T12:00:20Z")).handler("work")).unwrap();
    let second = db.home().join("second.db");
    std::fs::hard_link(db.file(), &second).unwrap();
    stepper.finish(&running, Outcome::succeeded());
    for _ in 0..5 {
        clock.advance(seconds(20));
        assert_eq!(stepper.step().unwrap().len(), 0, "nothing starts");
    }
    // Reads continue, and see what is committed.
    assert_eq!(client.history("running", 1).unwrap()[0].status, RunStatus::Running, "the outcome waits");
    let says = client.add(once("more")).unwrap_err().to_string();
    assert!(
        says.starts_with("cannot share one log with every program that opens the file: it has 2 names (hard links)"),
        "{says}"
    );
    assert!(client.task("more").unwrap().is_none());
    let reported: Vec<Event> = events.try_iter().filter(is_reported).collect();
    assert!(matches!(&reported[..], [Event::Degraded { reason }] if reason.contains("hard links")), "{reported:?}");
    std::fs::remove_file(second).unwrap();
    clock.advance(seconds(20));
    let claims = step(&mut stepper, 1);
    assert_eq!((claims[0].task.as_str(), claims[0].attempt), ("next", 1));
    assert_eq!(client.history("running", 1).unwrap()[0].status, RunStatus::Succeeded);
    assert_eq!(events.try_iter().filter(is_reported).collect::<Vec<_>>(), [Event::Recovered]);
    db.assert_sound();
}

#[test]
fn a_file_that_is_mounted_by_itself_is_refused() {
    let instead = "a unit test reads lines of mountinfo";
    if !may_mount("file_aliases::a_file_that_is_mounted_by_itself_is_refused", instead) {
        return;
    }
    let db = TestDb::new();
    db.client().add(once("seen")).unwrap();
    // mountinfo escapes the blank.
    let folder = db.home().join("my data");
    let inside = folder.join("agent.db");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&inside, "").unwrap();
    let mount = |from: &Path, to: &Path| {
        assert!(Command::new("mount").arg("--bind").args([from, to]).status().unwrap().success(), "a mount");
    };
    mount(db.file(), &inside);
    let says = "it is a mount point of its own, and its log is not that of the file it shows: mount the folder that holds \
                the file";
    assert_eq!(refusal_of_each_interface(&db, &inside), says);
    drop(db.client());
    // A mount of the whole folder is accepted.
    let whole = db.home().join("whole");
    std::fs::create_dir(&whole).unwrap();
    mount(db.home(), &whole);
    assert!(Client::open_existing(whole.join("agent.db")).unwrap().task("seen").unwrap().is_some());
}

/// Moves the file under a scheduler that runs a command. Asserts that it exits with code 4 and this error.
fn ends_when_moved(what: &str, says: &str, harm: impl FnOnce(&TestDb, &Path)) {
    let db = TestDb::with_folder("data");
    let _gate = Gate::new(&db, "gate");
    let home = db.home().display();
    db.client().add(shell("long", &format!("echo $$ >{home}/group; read line <{home}/gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let group = wait_for_line(&db, "group");
    harm(&db, &db.home().join("elsewhere"));
    assert_eq!(sidecar.end().code(), Some(4), "{what}: {}", sidecar.log());
    let log = sidecar.log();
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("error: cannot use ") && last.contains(says), "{what}: {log}");
    assert_eq!(group_size(&group), 0, "{what}: no process is left");
}

#[test]
fn a_moved_file_ends_the_program_also_behind_a_link() {
    let moved = "it was removed or moved while it was open";
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to).expect("a move");
    ends_when_moved("the file", moved, |db, to| rename(db.file(), to));
    ends_when_moved("its folder", moved, |db, to| rename(db.file().parent().expect("a folder"), to));
    ends_when_moved("a link to it", "it was replaced by another file while it was open", |db, to| {
        // In one step: between two, the file is away.
        let link = db.home().join("link");
        std::os::unix::fs::symlink(to, &link).expect("a link");
        std::fs::hard_link(db.file(), to).expect("its other name");
        rename(&link, db.file());
    });
}
