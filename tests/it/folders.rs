//! Folders that other users may write or own. Lock files there prove nothing: a scheduler refuses such a folder, clients work, and
//! `check` reports it. Root refuses to run a database of another user.
#![cfg(target_os = "linux")]

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use duly::testing::Stepper;
use duly::{Context, Error, Limits, NewTask, ProblemKind, Scheduler};

use crate::fixtures::{NOON, Process, TestDb, advance_and_step, at, eventually, problems, seconds, set_mode, skip};
use crate::sidecar::Sidecar;

/// Returns a database with a folder of lock files, after `harm` has changed the folder.
fn database_with_folder(harm: impl FnOnce(&TestDb, &Path)) -> TestDb {
    let db = TestDb::new();
    db.client().add(NewTask::cron("task", "@yearly").handler("work")).unwrap();
    let owners = db.lock_folder();
    std::fs::create_dir(&owners).unwrap();
    set_mode(&owners, 0o700);
    harm(&db, &owners);
    db
}

/// Asserts that no scheduler starts with such a folder, a client works, and `check` reports it.
fn assert_refused(db: &TestDb, found: &str, advice: &str) {
    let starts = [
        Scheduler::builder(db.file()).start().map(drop).err(),
        Stepper::builder(db.file(), at(NOON)).start().map(drop).err(),
    ];
    for error in starts {
        match error {
            Some(Error::UnusableDatabase { path, reason }) if path == db.file() => {
                assert!(reason.contains(found) && reason.ends_with(&format!(": {advice}")), "{reason}");
            }
            other => panic!("{found}: {other:?}"),
        }
    }
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_instances"), "0", "{found}");
    let client = db.client();
    assert_eq!(client.status().unwrap().instances, [], "{found}");
    client.trigger("task").unwrap();
    let mut problems = client.check(&Limits::default()).unwrap();
    problems.retain(|problem| problem.kind == ProblemKind::FileMode);
    assert!(
        matches!(&problems[..], [one] if one.found.contains(found) && one.advice == advice),
        "{found}: {problems:?}"
    );
}

#[test]
fn an_unsafe_folder_of_lock_files_is_refused() {
    for mode in [0o770, 0o720, 0o702, 0o777, 0o1777] {
        let db = database_with_folder(|_, owners| set_mode(owners, mode));
        assert_refused(&db, "agent.db-owners, and so decide which scheduler counts as dead", "chmod go-w it");
    }
    let makes = "duly makes the folder itself";
    let db = database_with_folder(|_, owners| {
        std::fs::remove_dir(owners).unwrap();
        std::fs::write(owners, "").unwrap();
    });
    assert_refused(&db, "agent.db-owners is not a folder", &format!("move it away; {makes}"));
    // The target of a link is not swept: a file there is not the lock of a dead scheduler.
    let db = database_with_folder(|db, owners| {
        std::fs::rename(owners, db.home().join("private")).unwrap();
        std::fs::write(db.home().join("private").join("notes"), "mine").unwrap();
        symlink(db.home().join("private"), owners).unwrap();
    });
    assert_refused(&db, "agent.db-owners is a symbolic link", &format!("remove the link; {makes}"));
    assert_eq!(std::fs::read_to_string(db.home().join("private").join("notes")).unwrap(), "mine");
    // The mode that a scheduler sets, and read access for others, are accepted.
    for mode in [0o700, 0o750, 0o755] {
        let db = database_with_folder(|_, owners| set_mode(owners, mode));
        drop(db.stepper(NOON));
        let problems = db.client().check(&Limits::default()).unwrap();
        assert_eq!(problems, [], "{mode:o}");
    }
}

#[test]
fn a_folder_of_lock_files_of_another_user_is_refused() {
    let db = database_with_folder(|_, _| {});
    let owners = db.lock_folder();
    if std::fs::metadata(&owners).unwrap().uid() != 0 || chown(&owners, Some(4242), None).is_err() {
        return skip("only root may give a folder away");
    }
    let advice = "run duly as user 4242, or remove the folder while no scheduler runs";
    assert_refused(&db, "agent.db-owners belongs to user 4242, expected user 0", advice);
    assert!(file_mode_problems(&db).len() == 1);
}

/// Returns the problems of file modes and owners that `check` reports.
fn file_mode_problems(db: &TestDb) -> Vec<String> {
    problems(&db.client()).into_iter().filter(|line| line.starts_with("file_mode: ")).collect()
}

/// Whether this process may give a file away. Prints `skipped` if not.
fn is_root(db: &TestDb) -> bool {
    let is_root = std::fs::metadata(db.file()).unwrap().uid() == 0 && chown(db.file(), Some(OTHER_USER), None).is_ok();
    if is_root {
        chown(db.file(), Some(0), None).unwrap();
    } else {
        skip("only root may give a file away");
    }
    is_root
}

const OTHER_USER: u32 = 65534;

/// Runs `duly run --until-idle` as a user.
fn run_as(db: &TestDb, user: u32) -> (Option<i32>, String) {
    let output = db.duly(&["run", "--until-idle"]).uid(user).output().expect("duly");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn root_refuses_to_run_a_database_of_another_user() {
    let db = database_with_folder(|_, owners| std::fs::remove_dir(owners).unwrap());
    if !is_root(&db) {
        return;
    }
    assert_eq!((run_as(&db, 0).0, file_mode_problems(&db)), (Some(0), vec![]), "its own");
    let rows = "SELECT count(*) FROM scheduler_instances";
    assert_eq!(db.ask(rows), "1");
    let owners = db.lock_folder();
    std::fs::remove_dir_all(&owners).unwrap();
    chown(db.file(), Some(OTHER_USER), None).unwrap();
    let found = format!("{} belongs to user 65534, and its commands would run as root", db.file().display());
    let advice = "start the scheduler as that user (sudo -u '#65534' duly run), or give the file to root (chown root)";
    let (code, log) = run_as(&db, 0);
    assert!(code == Some(4) && log.contains(&format!("{found}: {advice}")), "{code:?} {log}");
    let started = Scheduler::builder(db.file()).handler("command", |_: &Context| Ok::<_, Error>(())).start().map(drop);
    let Err(Error::UnusableDatabase { reason, .. }) = started else { panic!("{started:?}") };
    assert_eq!(reason, format!("{found}: {advice}"));
    assert!(Stepper::builder(db.file(), at(NOON)).start().is_err());
    assert_eq!(db.ask(rows), "1");
    // Root may read and trigger; the run starts as the owner. `check` reports the refusal.
    db.client().trigger("task").unwrap();
    assert_eq!(file_mode_problems(&db), [format!("file_mode: {found}: {advice}")]);
    assert!(!owners.exists());

    // A scheduler of the owner is running: there is no problem.
    chown(db.home(), Some(OTHER_USER), None).unwrap();
    let scheduler = Process::spawn(db.duly(&["run"]).uid(OTHER_USER).stderr(Stdio::null()));
    eventually("it is registered", || db.registered_schedulers() == 1);
    assert_eq!(file_mode_problems(&db), [""; 0]);
    scheduler.kill();
}

/// Neither root nor the owner: the message names both users, and whose the file or its folder is.
#[test]
fn a_user_who_may_not_use_a_database_reads_whose_it_is() {
    const READER: u32 = 4242;
    let db = database_with_folder(|_, _| {});
    if !is_root(&db) {
        return;
    }
    let list = || {
        let output = db.duly(&["list"]).current_dir("/").uid(READER).output().expect("duly");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    chown(db.file(), Some(OTHER_USER), None).unwrap();
    let whose = |path: &Path| format!("{} belongs to user {OTHER_USER}", path.display());
    let (advice, reader) = (format!("run duly as that user (sudo -u '#{OTHER_USER}' duly ..)"), "this is user 4242");
    set_mode(db.home(), 0o755);
    for mode in [0o600, 0o644] {
        set_mode(db.file(), mode);
        let (code, said) = list();
        assert_eq!(code, Some(4), "{said}");
        assert!(
            said.contains(&whose(db.file())) && said.contains(reader) && said.contains(&advice),
            "{mode:o}: {said}"
        );
    }
    // In a folder that it cannot enter, the owner of the folder is what is known.
    chown(db.home(), Some(OTHER_USER), None).unwrap();
    set_mode(db.home(), 0o700);
    let (code, said) = list();
    assert!(code == Some(4) && said.contains(&whose(db.home())) && said.contains(reader), "{said}");
    set_mode(db.home(), 0o755);
}

#[test]
fn a_folder_of_another_user_who_may_replace_the_database_is_reported() {
    let db = database_with_folder(|_, _| {});
    if !is_root(&db) {
        return;
    }
    let found = format!("user {OTHER_USER} owns the folder {}, and so may replace the database", db.home().display());
    let line =
        format!("file_mode: {found}: give the folder to the owner of the database (chown), or move the database");
    chown(db.home(), Some(OTHER_USER), None).unwrap();
    assert_eq!(file_mode_problems(&db), [line]);
    let (code, log) = run_as(&db, 0);
    assert!(code == Some(0) && log.contains(&found), "{code:?} {log}");
    // Not if that user is root or the owner of the database.
    chown(db.home(), Some(0), None).unwrap();
    assert_eq!((run_as(&db, 0).1.contains("owns the folder"), file_mode_problems(&db)), (false, vec![]));
}

/// SQLite restores pages from these files when it opens the database: their owner would decide what root runs.
#[test]
fn root_refuses_a_log_of_another_user_beside_its_database() {
    let db = database_with_folder(|_, _| {});
    if !is_root(&db) {
        return;
    }
    for suffix in ["-wal", "-shm", "-journal"] {
        let log = format!("{}{suffix}", db.file().display());
        std::fs::write(&log, "").unwrap();
        let list = || db.duly(&["list"]).output().unwrap();
        chown(&log, Some(OTHER_USER), None).unwrap();
        let (code, said) = run_as(&db, 0);
        assert!(code == Some(4) && said.contains(&format!("{log} belongs to user {OTHER_USER}")), "{code:?} {said}");
        assert_eq!(list().status.code(), Some(4), "{suffix}");
        // The group may write the database itself.
        set_mode(db.file(), 0o660);
        assert_eq!(list().status.code(), Some(0), "{suffix}");
        set_mode(db.file(), 0o600);
        std::fs::write(&log, "").unwrap();
        chown(&log, Some(0), None).unwrap();
        assert_eq!(list().status.code(), Some(0), "{suffix}");
        let _ = std::fs::remove_file(&log);
    }
}

#[test]
fn a_replaced_folder_of_lock_files_is_not_written_to() {
    let db = database_with_folder(|_, _| {});
    let mut stepper = db.stepper(NOON);
    let (owners, other) = (db.lock_folder(), db.home().join("other"));
    std::fs::rename(&owners, db.home().join("away")).unwrap();
    std::fs::create_dir(&other).unwrap();
    symlink(&other, &owners).unwrap();
    advance_and_step(&mut stepper, seconds(20));
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0, "no lock file is made there");
    // A missing folder is made again.
    std::fs::remove_file(&owners).unwrap();
    advance_and_step(&mut stepper, seconds(20));
    assert!(owners.join(stepper.owner()).exists());
}

#[test]
fn a_folder_in_which_anyone_may_replace_the_database_is_reported() {
    let db = TestDb::with_folder("data");
    let folder = db.file().parent().unwrap();
    let found = format!("anyone may write the folder {}, and so replace the database", folder.display());
    for (mode, is_reported) in [(0o777, true), (0o733, true), (0o1777, false), (0o775, false), (0o755, false)] {
        set_mode(folder, mode);
        drop(db.client());
        let problems = db.client().check(&Limits::default()).unwrap();
        let lines: Vec<&str> = problems.iter().map(|problem| problem.found.as_str()).collect();
        assert_eq!(lines, if is_reported { vec![found.as_str()] } else { vec![] }, "{mode:o}");
    }
    for (mode, times) in [(0o777, 1), (0o1777, 0)] {
        set_mode(folder, mode);
        let mut sidecar = Sidecar::start(&db, &[]);
        sidecar.terminate();
        assert_eq!(sidecar.log().matches(&found).count(), times, "{mode:o}: {}", sidecar.log());
    }
}
