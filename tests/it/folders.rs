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

use crate::house::{House, at, eventually, seconds};
use crate::sidecar::Sidecar;

const NOON: &str = "2027-03-14T12:00:00Z";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A house with a database and a folder of lock files, after this was done to them.
fn spoilt(harm: impl FnOnce(&House, &Path)) -> House {
    let house = House::new();
    house.client().add(NewTask::cron("task", "@yearly").handler("work")).unwrap();
    let owners = house.home().join("agent.db-owners");
    std::fs::create_dir(&owners).unwrap();
    set_mode(&owners, 0o700);
    harm(&house, &owners);
    house
}

/// No scheduler starts beside such a folder; a client works, and `check` has a line.
fn is_refused(house: &House, found: &str, advice: &str) {
    let starts = [
        Scheduler::builder(house.file()).start().map(drop).err(),
        Stepper::builder(house.file(), at(NOON)).start().map(drop).err(),
    ];
    for error in starts {
        match error {
            Some(Error::UnusableDatabase { path, reason }) if path == house.file() => {
                assert!(reason.contains(found) && reason.ends_with(&format!(": {advice}")), "{reason}");
            }
            other => panic!("{found}: {other:?}"),
        }
    }
    assert_eq!(house.ask("SELECT count(*) FROM scheduler_instances"), "0", "{found}");
    let client = house.client();
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
        let house = spoilt(|_, owners| set_mode(owners, mode));
        is_refused(&house, "agent.db-owners, and so decide which scheduler counts as dead", "chmod go-w it");
    }
    let makes = "duly makes the folder itself";
    let house = spoilt(|_, owners| {
        std::fs::remove_dir(owners).unwrap();
        std::fs::write(owners, "").unwrap();
    });
    is_refused(&house, "agent.db-owners is not a folder", &format!("move it away; {makes}"));
    // What a link leads to is not swept: a file there is not the lock of a scheduler that died.
    let house = spoilt(|house, owners| {
        std::fs::rename(owners, house.home().join("private")).unwrap();
        std::fs::write(house.home().join("private").join("notes"), "mine").unwrap();
        symlink(house.home().join("private"), owners).unwrap();
    });
    is_refused(&house, "agent.db-owners is a symbolic link", &format!("remove the link; {makes}"));
    assert_eq!(std::fs::read_to_string(house.home().join("private").join("notes")).unwrap(), "mine");
    // Beside that, what a scheduler makes itself, and what others may read, is accepted.
    for mode in [0o700, 0o750, 0o755] {
        let house = spoilt(|_, owners| set_mode(owners, mode));
        drop(house.stepper(NOON));
        let problems = house.client().check(&Limits::default()).unwrap();
        assert_eq!(problems, [], "{mode:o}");
    }
}

#[test]
fn a_folder_of_lock_files_of_another_user_is_refused() {
    let house = spoilt(|_, _| {});
    let owners = house.home().join("agent.db-owners");
    if std::fs::metadata(&owners).unwrap().uid() != 0 || chown(&owners, Some(4242), None).is_err() {
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "not root");
        return println!("skipped: only root may give a folder away");
    }
    let advice = "run duly as user 4242, or remove the folder while no scheduler runs";
    is_refused(&house, "agent.db-owners belongs to user 4242, expected user 0", advice);
    assert!(lines(&house, ProblemKind::FileMode).len() == 1);
}

/// What `check` finds of a kind.
fn lines(house: &House, kind: ProblemKind) -> Vec<String> {
    let problems = house.client().check(&Limits::default()).unwrap();
    problems.iter().filter(|problem| problem.kind == kind).map(ToString::to_string).collect()
}

/// Whether this process may give a file away; if not, that is printed.
fn is_root(house: &House) -> bool {
    let is_root =
        std::fs::metadata(house.file()).unwrap().uid() == 0 && chown(house.file(), Some(NOBODY), None).is_ok();
    assert!(is_root || std::env::var("DULY_CI").as_deref() != Ok("1"), "not root");
    if is_root {
        chown(house.file(), Some(0), None).unwrap();
    } else {
        println!("skipped: only root may give a file away");
    }
    is_root
}

const NOBODY: u32 = 65534;

/// `duly run --until-idle`, as this user.
fn run_as(house: &House, user: u32) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
    command.arg("--db").arg(house.file()).args(["run", "--until-idle"]).uid(user);
    let output = command.output().expect("duly");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn root_carries_out_no_database_of_another_user() {
    let house = spoilt(|_, owners| std::fs::remove_dir(owners).unwrap());
    if !is_root(&house) {
        return;
    }
    assert_eq!((run_as(&house, 0).0, lines(&house, ProblemKind::FileMode)), (Some(0), vec![]), "its own");
    let rows = "SELECT count(*) FROM scheduler_instances";
    assert_eq!(house.ask(rows), "1");
    let owners = house.home().join("agent.db-owners");
    std::fs::remove_dir(&owners).unwrap();
    chown(house.file(), Some(NOBODY), None).unwrap();
    let found = format!("{} belongs to user 65534, and its commands would run as root", house.file().display());
    let advice = "start the scheduler as that user (sudo -u '#65534' duly run), or give the file to root (chown root)";
    let (code, log) = run_as(&house, 0);
    assert!(code == Some(4) && log.contains(&format!("{found}: {advice}")), "{code:?} {log}");
    let started =
        Scheduler::builder(house.file()).handler("command", |_: &Context| Ok::<_, Error>(())).start().map(drop);
    let Err(Error::UnusableDatabase { reason, .. }) = started else { panic!("{started:?}") };
    assert_eq!(reason, format!("{found}: {advice}"));
    assert!(Stepper::builder(house.file(), at(NOON)).start().is_err());
    assert_eq!(house.ask(rows), "1");
    // Root may look and ask; what it asks for runs as the owner. `check` says what would be refused.
    house.client().trigger("task").unwrap();
    assert_eq!(lines(&house, ProblemKind::FileMode), [format!("file_mode: {found}: {advice}")]);
    assert!(!owners.exists());

    // The owner's own scheduler is at work: nothing is wrong with it.
    chown(house.home(), Some(NOBODY), None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
    let mut scheduler =
        command.arg("--db").arg(house.file()).arg("run").uid(NOBODY).stderr(Stdio::null()).spawn().unwrap();
    eventually("it is registered", || {
        house.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL") == "1"
    });
    assert_eq!(lines(&house, ProblemKind::FileMode), [""; 0]);
    scheduler.kill().unwrap();
    scheduler.wait().unwrap();
}

#[test]
fn a_folder_of_another_user_who_may_replace_the_database_is_reported() {
    let house = spoilt(|_, _| {});
    if !is_root(&house) {
        return;
    }
    let found = format!("user {NOBODY} owns the folder {}, and so may replace the database", house.home().display());
    let line =
        format!("file_mode: {found}: give the folder to the owner of the database (chown), or move the database");
    chown(house.home(), Some(NOBODY), None).unwrap();
    assert_eq!(lines(&house, ProblemKind::FileMode), [line]);
    let (code, log) = run_as(&house, 0);
    assert!(code == Some(0) && log.contains(&found), "{code:?} {log}");
    // Not where it is the owner of the database, or root.
    chown(house.home(), Some(0), None).unwrap();
    assert_eq!(
        (run_as(&house, 0).1.contains("owns the folder"), lines(&house, ProblemKind::FileMode)),
        (false, vec![])
    );
}

#[test]
fn a_folder_that_is_put_in_the_place_of_ours_is_not_written_to() {
    let house = spoilt(|_, _| {});
    let mut stepper = house.stepper(NOON);
    let (owners, other) = (house.home().join("agent.db-owners"), house.home().join("other"));
    std::fs::rename(&owners, house.home().join("away")).unwrap();
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
    let house = House::with_folder("data");
    let folder = house.file().parent().unwrap();
    let found = format!("anyone may write the folder {}, and so replace the database", folder.display());
    for (mode, is_reported) in [(0o777, true), (0o733, true), (0o1777, false), (0o775, false), (0o755, false)] {
        set_mode(folder, mode);
        drop(house.client());
        let problems = house.client().check(&Limits::default()).unwrap();
        let lines: Vec<&str> = problems.iter().map(|problem| problem.found.as_str()).collect();
        assert_eq!(lines, if is_reported { vec![found.as_str()] } else { vec![] }, "{mode:o}");
    }
    for (mode, times) in [(0o777, 1), (0o1777, 0)] {
        set_mode(folder, mode);
        let mut sidecar = Sidecar::start(&house, &[]);
        sidecar.leave();
        assert_eq!(sidecar.log().matches(&found).count(), times, "{mode:o}: {}", sidecar.log());
    }
}
