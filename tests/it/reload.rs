//! `duly run --tasks`: SIGHUP applies the manifest again; an invalid manifest does not stop the scheduler.
#![cfg(target_os = "linux")]

use std::path::PathBuf;

use duly::RunStatus;

use crate::fixtures::{TestDb, eventually, set_mode};
use crate::sidecar::{Gate, Sidecar, shell, wait_for_line};

/// Writes a manifest with these tasks.
fn declare(db: &TestDb, tasks: &[(&str, &str)]) -> PathBuf {
    let path = db.home().join("tasks.toml");
    let task = |(name, line): &(&str, &str)| format!("[[task]]\nname = \"{name}\"\n{line}\ncommand = [\"true\"]\n");
    std::fs::write(&path, tasks.iter().map(task).collect::<String>()).expect("a manifest");
    path
}

fn tasks(db: &TestDb) -> Vec<String> {
    db.rows("SELECT name, schedule_value, next_run FROM scheduled_tasks ORDER BY id")
}

#[test]
fn a_manifest_is_applied_again_and_a_broken_one_changes_nothing() {
    let db = TestDb::new();
    let far = r#"at = "2999-01-01T00:00:00Z""#;
    let file = declare(&db, &[("stays", far), ("edited", r#"cron = "0 7 1 1 *""#), ("goes", far)]);
    drop(db.client());
    let mut sidecar = Sidecar::start(&db, &["--tasks", file.to_str().expect("a name")]);
    eventually("all are planned", || tasks(&db).iter().all(|row| !row.ends_with('-')));
    let before = tasks(&db);

    declare(&db, &[("stays", far), ("edited", r#"cron = "0 8 1 1 *""#), ("new", r#"every = "1s""#)]);
    sidecar.signal("HUP");
    eventually("it is applied", || {
        sidecar.log().contains("1 added, 1 changed, 1 unchanged, 1 left, no longer declared")
    });
    // The scheduler is woken at once and continues.
    let succeeded = || db.count(RunStatus::Succeeded);
    eventually("the new one runs", || succeeded() != 0);
    let after = tasks(&db);
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]), "what is the same, and what is not declared, stays");
    assert!(after[1].starts_with("edited|0 8 1 1 *|") && after[1] != before[1], "{after:?}");

    for (broken, says) in [
        (
            "[[task]]\nname = \"stays\"\nevry = \"1m\"\n",
            "task \"stays\": unknown key \"evry\": did you mean \"every\"?",
        ),
        ("[[task]\n", "line 1: "),
        ("[[task]]\nname = \"stays\"\ncron = \"0 7 30 2 *\"\ncommand = [\"true\"]\n", "cannot apply task \"stays\": "),
    ] {
        std::fs::write(&file, broken).expect("a manifest");
        let logged = sidecar.log().len();
        sidecar.signal("HUP");
        eventually("it is refused", || sidecar.log()[logged..].contains("SIGHUP: no task was changed: "));
        let log = sidecar.log();
        let line = log[logged..].lines().find(|line| line.contains("SIGHUP")).expect("a line");
        assert!(line.contains("[ERROR]") && line.contains(says), "{line}");
        let (rows, before) = (tasks(&db), succeeded());
        assert_eq!(rows[..3], after[..3]);
        eventually("tasks continue to run", || succeeded() != before);
    }
    std::fs::remove_file(&file).expect("no manifest");
    let logged = sidecar.log().len();
    sidecar.signal("HUP");
    eventually("the missing file is reported", || sidecar.log()[logged..].contains("tasks.toml: No such file"));
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn without_a_manifest_sighup_is_only_logged_and_does_not_end_the_drain() {
    let db = TestDb::new();
    let mut gate = Gate::new(&db, "gate");
    let path = db.home().join("gate");
    let line = format!("echo begun >{0}.begun; read line <{0}", path.display());
    db.client().add(shell("long", &line)).expect("a task");
    let mut sidecar = Sidecar::start(&db, &["--drain", "1h"]);
    wait_for_line(&db, "gate.begun");
    sidecar.signal("HUP");
    eventually("it is reported", || sidecar.log().contains("SIGHUP: ignored, because --tasks was not given"));
    // During the drain, SIGHUP is no second request to stop.
    sidecar.signal("TERM");
    eventually("the signal is logged", || sidecar.log().contains("SIGTERM: no more runs are started"));
    sidecar.signal("HUP");
    gate.open();
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(db.ask("SELECT status || attempt FROM task_runs"), "succeeded1");
}

/// The manifest, the scheduler and its client each open the file: its mode is reported once.
#[test]
fn a_group_writable_file_is_reported_once() {
    let db = TestDb::new();
    let file = declare(&db, &[("far", r#"at = "2999-01-01T00:00:00Z""#)]);
    drop(db.client());
    set_mode(db.file(), 0o660);
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle", "--tasks", file.to_str().expect("a name")]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let warnings = sidecar.log().lines().filter(|line| line.contains("[WARN]") && line.contains("its group")).count();
    assert_eq!(warnings, 1, "{}", sidecar.log());
}
