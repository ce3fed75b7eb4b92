//! Folders that other users may write, or that are another user's. A lock file there proves nothing: a scheduler refuses the folder
//! of the lock files. Observers go on, and `check` has a line. And databases of another user, which root does not carry out.
#![cfg(target_os = "linux")]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use duly::testing::Stepper;
use duly::{Context, Error, Limits, NewTask, ProblemKind, Scheduler};

use crate::fixtures::{TestDb, at, eventually, seconds};
use crate::sidecar::Sidecar;

const NOON: &str = "2027-03-14T12:00:00Z";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A db with a database and a folder of lock files, after this was done to them.
fn spoilt(harm: impl FnOnce(&TestDb, &Path)) -> TestDb {
    let db = TestDb::new();
    db.client().add(NewTask::cron("task", "@yearly").handler("work")).unwrap();
    let owners = db.home().join("agent.db-owners");
    std::fs::create_dir(&owners).unwrap();
    set_mode(&owners, 0o700);
    harm(&db, &owners);
    db
}

/// No scheduler starts beside such a folder; a client works, and `check` has a line.
fn is_refused(db: &TestDb, found: &str, advice: &str) {
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
fn a_folder_of_lock_files_that_is_not_ours_is_refused() {
    for mode in [0o770, 0o720, 0o702, 0o777, 0o1777] {
        let db = spoilt(|_, owners| set_mode(owners, mode));
        is_refused(&db, "agent.db-owners, and so decide which scheduler counts as dead", "chmod go-w it");
    }
    let makes = "duly makes the folder itself";
    let db = spoilt(|_, owners| {
        std::fs::remove_dir(owners).unwrap();
        std::fs::write(owners, "").unwrap();
    });
    is_refused(&db, "agent.db-owners is not a folder", &format!("move it away; {makes}"));
    // What a link leads to is not swept: a file there is not the lock of a scheduler that died.
    let db = spoilt(|db, owners| {
        std::fs::rename(owners, db.home().join("private")).unwrap();
        std::fs::write(db.home().join("private").join("notes"), "mine").unwrap();
        symlink(db.home().join("private"), owners).unwrap();
    });
    is_refused(&db, "agent.db-owners is a symbolic link", &format!("remove the link; {makes}"));
    assert_eq!(std::fs::read_to_string(db.home().join("private").join("notes")).unwrap(), "mine");
    // Beside that, what a scheduler makes itself, and what others may read, is accepted.
    for mode in [0o700, 0o750, 0o755] {
        let db = spoilt(|_, owners| set_mode(owners, mode));
        drop(db.stepper(NOON));
        let problems = db.client().check(&Limits::default()).unwrap();
        assert_eq!(problems, [], "{mode:o}");
    }
}

#[test]
fn a_folder_of_lock_files_of_another_user_is_refused() {
    let db = spoilt(|_, _| {});
    let owners = db.home().join("agent.db-owners");
    if std::fs::metadata(&owners).unwrap().uid() != 0 || chown(&owners, Some(4242), None).is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "not root");
        return println!("skipped: only root may give a folder away");
    }
    let advice = "run duly as user 4242, or remove the folder while no scheduler runs";
    is_refused(&db, "agent.db-owners belongs to user 4242, expected user 0", advice);
    assert!(lines(&db, ProblemKind::FileMode).len() == 1);
}

/// What `check` finds of a kind.
fn lines(db: &TestDb, kind: ProblemKind) -> Vec<String> {
    let problems = db.client().check(&Limits::default()).unwrap();
    problems.iter().filter(|problem| problem.kind == kind).map(ToString::to_string).collect()
}

/// Whether this process may give a file away; if not, that is printed.
fn is_root(db: &TestDb) -> bool {
    let is_root = std::fs::metadata(db.file()).unwrap().uid() == 0 && chown(db.file(), Some(NOBODY), None).is_ok();
    assert!(is_root || std::env::var("DULY_CI").as_deref() != Ok("1"), "not root");
    if is_root {
        chown(db.file(), Some(0), None).unwrap();
    } else {
        println!("skipped: only root may give a file away");
    }
    is_root
}

const NOBODY: u32 = 65534;

/// `duly run --until-idle`, as this user.
fn run_as(db: &TestDb, user: u32) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
    command.arg("--db").arg(db.file()).args(["run", "--until-idle"]).uid(user);
    let output = command.output().expect("duly");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn root_carries_out_no_database_of_another_user() {
    let db = spoilt(|_, owners| std::fs::remove_dir(owners).unwrap());
    if !is_root(&db) {
        return;
    }
    assert_eq!((run_as(&db, 0).0, lines(&db, ProblemKind::FileMode)), (Some(0), vec![]), "its own");
    let rows = "SELECT count(*) FROM scheduler_instances";
    assert_eq!(db.ask(rows), "1");
    let owners = db.home().join("agent.db-owners");
    std::fs::remove_dir(&owners).unwrap();
    chown(db.file(), Some(NOBODY), None).unwrap();
    let found = format!("{} belongs to user 65534, and its commands would run as root", db.file().display());
    let advice = "start the scheduler as that user (sudo -u '#65534' duly run), or give the file to root (chown root)";
    let (code, log) = run_as(&db, 0);
    assert!(code == Some(4) && log.contains(&format!("{found}: {advice}")), "{code:?} {log}");
    let started = Scheduler::builder(db.file()).handler("command", |_: &Context| Ok::<_, Error>(())).start().map(drop);
    let Err(Error::UnusableDatabase { reason, .. }) = started else { panic!("{started:?}") };
    assert_eq!(reason, format!("{found}: {advice}"));
    assert!(Stepper::builder(db.file(), at(NOON)).start().is_err());
    assert_eq!(db.ask(rows), "1");
    // Root may look and ask; what it asks for runs as the owner. `check` says what would be refused.
    db.client().trigger("task").unwrap();
    assert_eq!(lines(&db, ProblemKind::FileMode), [format!("file_mode: {found}: {advice}")]);
    assert!(!owners.exists());

    // The owner's own scheduler is at work: nothing is wrong with it.
    chown(db.home(), Some(NOBODY), None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
    let mut scheduler =
        command.arg("--db").arg(db.file()).arg("run").uid(NOBODY).stderr(Stdio::null()).spawn().unwrap();
    eventually("it is registered", || {
        db.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL") == "1"
    });
    assert_eq!(lines(&db, ProblemKind::FileMode), [""; 0]);
    scheduler.kill().unwrap();
    scheduler.wait().unwrap();
}

#[test]
fn a_folder_of_another_user_who_may_replace_the_database_is_reported() {
    let db = spoilt(|_, _| {});
    if !is_root(&db) {
        return;
    }
    let found = format!("user {NOBODY} owns the folder {}, and so may replace the database", db.home().display());
    let line =
        format!("file_mode: {found}: give the folder to the owner of the database (chown), or move the database");
    chown(db.home(), Some(NOBODY), None).unwrap();
    assert_eq!(lines(&db, ProblemKind::FileMode), [line]);
    let (code, log) = run_as(&db, 0);
    assert!(code == Some(0) && log.contains(&found), "{code:?} {log}");
    // Not where it is the owner of the database, or root.
    chown(db.home(), Some(0), None).unwrap();
    assert_eq!((run_as(&db, 0).1.contains("owns the folder"), lines(&db, ProblemKind::FileMode)), (false, vec![]));
}

#[test]
fn a_folder_that_is_put_in_the_place_of_ours_is_not_written_to() {
    let db = spoilt(|_, _| {});
    let mut stepper = db.stepper(NOON);
    let (owners, other) = (db.home().join("agent.db-owners"), db.home().join("other"));
    std::fs::rename(&owners, db.home().join("away")).unwrap();
    std::fs::create_dir(&other).unwrap();
    symlink(&other, &owners).unwrap();
    stepper.clock().advance(seconds(20));
    stepper.step().expect("a turn");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0, "a lock file was made there");
    // Where there is none, it is made again.
    std::fs::remove_file(&owners).unwrap();
    stepper.clock().advance(seconds(20));
    stepper.step().expect("a turn");
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
        sidecar.leave();
        assert_eq!(sidecar.log().matches(&found).count(), times, "{mode:o}: {}", sidecar.log());
    }
}
