//! Large manifests: `apply` is killed in the middle, and one of many tasks is edited.

use duly::{Apply, Done, NewTask};

use crate::fixtures::{TestDb, advance_and_step, minutes};

const PRUNE: Apply = Apply { prune: true, dry_run: false, adopt: false };

/// The program is killed with uncommitted rows in the WAL: the database contains none of them.
#[cfg(target_os = "linux")]
#[test]
fn an_apply_that_is_killed_has_applied_whole_parts_and_the_next_one_does_the_rest() {
    use crate::fixtures::{Process, eventually};
    use std::process::Stdio;

    // More than SQLite keeps in memory, so that the WAL grows before the commit.
    let word = "w".repeat(3000);
    let task =
        |n: usize| format!("[[task]]\nname = \"task-{n:05}\"\nevery = \"1h\"\ncommand = [\"echo\", \"{word}\"]\n");
    let (small, large) = ((0..3).map(task).collect::<String>(), (1..1500).map(task).collect::<String>());
    for attempt in 0.. {
        assert!(attempt < 20, "it was always quicker");
        let db = TestDb::new();
        db.client().add(NewTask::interval("by-hand", minutes(60)).handler("work")).unwrap();
        let manifest = db.home().join("tasks.toml");
        let apply = || Process::spawn(db.duly(&["-q", "apply", "--prune", "tasks.toml"]).stdin(Stdio::null()));
        std::fs::write(&manifest, &small).unwrap();
        assert_eq!(apply().exit_code(), Some(0));
        let before = db.tasks();
        std::fs::write(&manifest, &large).unwrap();
        // An open reader prevents the last close from removing the WAL.
        let _reader = db.client();
        let log = || std::fs::metadata(db.home().join("agent.db-wal")).map_or(0, |metadata| metadata.len());
        let mut killed = apply();
        eventually("it is in the middle", || log() > 1 << 20 || killed.has_ended());
        killed.0.kill().expect("it can be killed");
        let was_killed = killed.exit_code().is_none();
        let after = db.tasks();
        db.assert_sound();
        // The task that was added by hand, the small manifest, and parts of 500 tasks, of which the first has two of the small one.
        assert!([4, 502, 1002, 1500].contains(&after.len()), "{} tasks", after.len());
        if !was_killed || after.len() == 1500 {
            continue;
        }
        assert_eq!(apply().exit_code(), Some(0));
        let rows = db.tasks();
        assert_eq!((rows.len(), &rows[0], &rows[1..3]), (1500, &before[0], &before[2..4]), "and moves nothing else");
        return;
    }
}

#[test]
fn an_edit_changes_one_task_and_names_the_field() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    let many = |minute: u32| {
        (0..50).map(move |n| {
            let line = if n == 17 { format!("{minute} 7 * * *") } else { format!("{n} 8 * * *") };
            NewTask::cron(format!("task-{n:02}"), line).handler("work")
        })
    };
    client.apply("m", many(5), PRUNE).unwrap();
    advance_and_step(&mut stepper, minutes(5));
    let before = db.tasks();
    let applied = client.apply("m", many(6), PRUNE).unwrap();
    let fields = vec![("schedule_value", "5 7 * * *".to_owned(), "6 7 * * *".to_owned())];
    for (place, one) in applied.iter().enumerate() {
        let done = if place == 17 { Done::Replaced { fields: fields.clone() } } else { Done::Unchanged };
        assert_eq!(one.done, done, "{}", one.name);
    }
    let after = db.tasks();
    let moved: Vec<usize> = (0..50).filter(|place| before[*place] != after[*place]).collect();
    assert_eq!(moved, [17], "the others keep their next run, and all else");
    assert_eq!(db.next("task-17"), "2027-03-15 07:06:00 active");
}

/// An empty manifest removes no task without --allow-empty.
#[test]
fn an_empty_manifest_prunes_only_with_allow_empty() {
    let db = TestDb::new();
    let manifest = db.home().join("tasks.toml");
    let apply = |more: &[&str]| db.duly(&[&["apply", "tasks.toml"], more].concat()).output().expect("the program");
    std::fs::write(&manifest, "[[task]]\nname = \"one\"\nevery = \"1h\"\ncommand = [\"true\"]\n").unwrap();
    assert!(apply(&["--prune"]).status.success());
    let before = db.tasks();
    for text in ["", "[defaults]\nmax_attempts = 3\n"] {
        std::fs::write(&manifest, text).unwrap();
        for more in [&["--prune"][..], &["--prune", "--dry-run"]] {
            let refused = apply(more);
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{error}");
            assert!(error.contains("tasks.toml declares no task") && error.contains("--allow-empty"), "{error}");
            assert_eq!(db.tasks(), before);
        }
    }
    assert!(apply(&[]).status.success(), "without --prune nothing is removed");
    assert_eq!(db.tasks(), before);
    assert!(apply(&["--prune", "--allow-empty", "--dry-run"]).status.success());
    assert_eq!(db.tasks(), before);
    assert!(apply(&["--prune", "--allow-empty"]).status.success());
    assert_eq!(db.tasks(), [""; 0]);
}
