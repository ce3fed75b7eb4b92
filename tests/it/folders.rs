//! Folders that other users may write, or that are another user's. A lock file there proves nothing: a scheduler refuses the folder
//! of the lock files. Observers go on, and `check` has a line.
#![cfg(target_os = "linux")]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use duly::testing::Stepper;
use duly::{Error, Limits, NewTask, ProblemKind, Scheduler};

use crate::house::{House, at, seconds};
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
    // Root looks at what is another user's altogether: nothing is wrong.
    chown(house.file(), Some(4242), None).unwrap();
    let problems = house.client().check(&Limits::default()).unwrap();
    assert!(problems.iter().all(|problem| problem.kind != ProblemKind::FileMode), "{problems:?}");
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
