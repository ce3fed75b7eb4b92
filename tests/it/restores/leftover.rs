//! What a scheduler finds at its start beside a file: the log of another file, and a record of a file that is no longer there.

use std::path::Path;

use duly::NewTask;
use serde_json::{Value, json};

use crate::fixtures::{NOON, TestDb, claim, eventually, overdue, seconds, skip, succeed};
use crate::restores::{
    assert_restored, assert_starts_on_the_copy, back_up, can_restore, copied, restore, run, with_a_log_that_is_left,
    with_tasks,
};
use crate::sidecar::Sidecar;

fn record(db: &TestDb) -> Value {
    let text = std::fs::read(db.lock_folder().join("history.json")).expect("a record");
    serde_json::from_slice(&text).expect("JSON")
}

/// Changes the record as another program would.
fn set_record(db: &TestDb, change: impl FnOnce(&mut Value)) {
    let mut record = record(db);
    change(&mut record);
    std::fs::write(db.lock_folder().join("history.json"), record.to_string()).expect("a record");
}

fn history(db: &TestDb) -> String {
    db.ask("SELECT value FROM scheduler_meta WHERE key = 'history'")
}

/// Whether the system reports when a file was created.
fn reports_births(path: &Path) -> bool {
    let reports = path.metadata().expect("a file").created().is_ok();
    if !reports {
        skip("no time of creation of files");
    }
    reports
}

#[test]
fn a_log_that_a_killed_scheduler_left_is_not_applied_to_the_file_that_replaces_its_own() {
    let db = TestDb::new();
    let client = with_tasks(&db);
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let copy = copied(&db, &client);
    // A heartbeat has seen the log.
    let stamp = || db.ask("SELECT value FROM scheduler_meta WHERE key = 'stamp'");
    let before = stamp();
    eventually("a heartbeat", || stamp() != before && record(&db)["stamp"] == stamp().as_str());
    drop(client);
    sidecar.kill();
    std::fs::rename(&copy, db.file()).unwrap();
    if !reports_births(db.file()) {
        return;
    }
    db.printed(&["list"]);
    assert!(db.home().join("agent.db-wal-aside-1").exists());
    assert_starts_on_the_copy(&db);
}

#[test]
fn a_log_of_which_nothing_shows_whose_it_is_is_not_applied() {
    let (db, copy) = with_a_log_that_is_left();
    if !reports_births(db.file()) {
        return;
    }
    // It has begun anew since the last heartbeat.
    set_record(&db, |record| {
        let salt = &mut record["log"]["generation"]["salts"][0];
        *salt = json!(if *salt == 1 { 2 } else { 1 });
    });
    std::fs::rename(&copy, db.file()).unwrap();
    let refused = db.duly(&["list"]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(4) && error.contains("whose changes it holds is not known"), "{error}");
    // As it says.
    std::fs::remove_file(db.home().join("agent.db-wal")).unwrap();
    std::fs::remove_file(db.home().join("agent.db-shm")).unwrap();
    assert_starts_on_the_copy(&db);
}

#[test]
fn copies_of_all_files_are_opened_with_their_log() {
    let (db, _) = with_a_log_that_is_left();
    let other = TestDb::new();
    for name in ["agent.db", "agent.db-wal", "agent.db-owners"] {
        run("cp", &["-r", db.home().join(name).to_str().unwrap(), other.home().to_str().unwrap()]);
    }
    assert_eq!(other.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'after-the-copy'"), "1");
    let mut sidecar = Sidecar::start(&other, &["--lease", "1s"]);
    sidecar.terminate();
    assert_eq!(other.ask("SELECT count(*) FROM scheduled_tasks WHERE name = 'after-the-copy'"), "1");
    assert!(!other.home().join("agent.db-wal-aside-1").exists());
}

#[test]
fn commits_that_a_crash_of_the_machine_lost_are_no_restore_and_their_ids_are_not_given_out_again() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(overdue("subject").handler("work")).unwrap();
    let claim = claim(&mut stepper);
    succeed(&mut stepper, &claim);
    let history_before = history(&db);
    stepper.crash();
    set_record(&db, |record| {
        record["boot"] = json!("another");
        record["ids"]["task_runs"] = json!(70);
    });
    let mut stepper = db.stepper(NOON);
    let run = stepper.client().trigger("subject").unwrap();
    assert!(run > 70, "run {run}");
    stepper.step().unwrap();
    assert_eq!(history(&db), history_before);
    let detail = db.ask("SELECT detail FROM scheduler_events WHERE kind = 'restored'");
    let says = "the last commits were lost when the machine went down, or a copy was put in place then: task_runs had the id 70";
    assert_eq!(detail, says);
    stepper.crash();
    // Once.
    let mut stepper = db.stepper(NOON);
    let next = stepper.client().trigger("subject").unwrap();
    assert_eq!(next, run + 1);
    stepper.step().unwrap();
    assert_restored(&db, 1);
}

#[test]
fn a_file_that_a_copy_of_the_same_state_replaces_goes_on() {
    for how in ["duly", ".backup", "VACUUM INTO"] {
        if how != "duly" && !can_restore() {
            continue;
        }
        let (db, mut stepper) = TestDb::with_stepper();
        stepper.client().add(overdue("subject").handler("work")).unwrap();
        let claim = claim(&mut stepper);
        succeed(&mut stepper, &claim);
        stepper.stop().unwrap();
        let copy = db.home().join("copy.db");
        match how {
            "duly" => drop(db.client().backup(&copy).unwrap()),
            ".backup" => drop(back_up(&db, "copy.db")),
            _ => db.plain().execute_batch(&format!("VACUUM INTO '{}'", copy.display())).unwrap(),
        }
        let history_before = history(&db);
        std::fs::rename(&copy, db.file()).unwrap();
        let stepper = db.stepper(NOON);
        assert_eq!(
            (history(&db), stepper.client().trigger("subject").unwrap()),
            (history_before, claim.run_id + 1),
            "{how}"
        );
        assert_restored(&db, 0);
    }
}

#[test]
fn a_new_file_is_not_mistaken_for_the_one_that_had_its_inode() {
    let old = TestDb::new();
    let mut stepper = old.stepper(NOON);
    stepper.client().add(overdue("subject").handler("work")).unwrap();
    stepper.step().unwrap();
    stepper.crash();
    let db = TestDb::new();
    let client = db.client();
    if !reports_births(db.file()) {
        return;
    }
    client.add(NewTask::manual("new").handler("work")).unwrap();
    drop(client);
    // As if its inode had been used again.
    let inode = std::os::unix::fs::MetadataExt::ino(&db.file().metadata().unwrap());
    run("cp", &["-r", old.lock_folder().to_str().unwrap(), db.lock_folder().to_str().unwrap()]);
    set_record(&db, |record| record["file"]["inode"] = json!(inode));
    let history_before = history(&db);
    let stepper = db.stepper(NOON);
    assert_eq!(stepper.client().trigger("new").unwrap(), 1);
    assert_eq!(history(&db), history_before);
    assert_restored(&db, 0);
}

#[test]
fn a_history_without_an_id_is_not_named() {
    if !can_restore() {
        return;
    }
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(overdue("subject").handler("work")).unwrap();
    db.plain().execute("DELETE FROM scheduler_meta WHERE key = 'history'", []).unwrap();
    let copy = back_up(&db, "copy.db");
    let claims = stepper.step();
    restore(&db, &copy);
    stepper.clock().advance(seconds(30));
    stepper.step().unwrap();
    drop(claims);
    let detail = db.rows("SELECT detail FROM scheduler_events WHERE kind = 'restored' ORDER BY id");
    assert!(detail.iter().all(|detail| !detail.contains("after :")) && !detail.is_empty(), "{detail:?}");
}
