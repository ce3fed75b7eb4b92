//! `duly run` killed at a named point, between what is promised and what is done, and another one after it: what may start
//! only once has started once or never, and all else is recovered. The points are there in builds with the feature `faults`.
#![cfg(target_os = "linux")]

use std::time::Duration;

use duly::{NewTask, RetryPolicy};

use crate::fixtures::TestDb;
use crate::sidecar::{Sidecar, shell};

/// A task whose command writes a line for its start and one for its end. Both go to the end of the file, whole.
fn probe(db: &TestDb) -> NewTask {
    let log = db.home().join("log");
    let log = log.display();
    let line = format!("echo start $DULY_ATTEMPT >>{log}; echo end $DULY_ATTEMPT >>{log}");
    soon(shell("probe", &line))
}

/// Tried again as soon as may be.
fn soon(task: NewTask) -> NewTask {
    task.retry(RetryPolicy { backoff: Duration::from_millis(20), ..RetryPolicy::default() })
}

/// What the commands wrote.
fn said(db: &TestDb) -> Vec<String> {
    let text = std::fs::read_to_string(db.home().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// How the run stands, and how attempts of it ended that did not succeed.
fn stand(db: &TestDb) -> String {
    db.ask("SELECT status || ' ' || attempt || ifnull((SELECT ', ' || group_concat(outcome) FROM task_attempts), '') FROM task_runs")
}

/// The program, to be killed at this point.
fn doomed(db: &TestDb, point: &str, options: &[&str]) -> Sidecar {
    Sidecar::spawn_with(db, options, &[("DULY_FAULTS", &format!("{point}=kill"))])
}

#[cfg(feature = "faults")]
mod with_faults {
    use std::os::unix::process::ExitStatusExt;

    use duly::RunStatus;

    use super::{TestDb, doomed, probe, said, soon, stand};
    use crate::fixtures::eventually;
    use crate::sidecar::{Gate, Sidecar, shell, stands, told};

    const KILL: Option<i32> = Some(9);

    /// A db in which the program was killed at this point, with the probe to be carried out; then another did what was
    /// left. Its lease is ten minutes: nobody waited that out.
    fn killed_at(point: &str, at_most_once: bool) -> TestDb {
        let db = TestDb::new();
        let task = probe(&db);
        db.client().add(if at_most_once { task.at_most_once() } else { task }).unwrap();
        let lease = ["--until-idle", "--lease", "10m"];
        let mut first = doomed(&db, point, &lease);
        assert_eq!(first.end().signal(), KILL, "{point}: {}", first.log());
        let mut second = Sidecar::spawn(&db, &lease);
        assert_eq!(second.end().code(), Some(0), "{point}: {}", second.log());
        assert_eq!(std::fs::read_dir(db.home().join("agent.db-owners")).unwrap().count(), 0, "{point}");
        db.assert_sound();
        db
    }

    fn once(point: &str) -> (String, Vec<String>) {
        let db = killed_at(point, true);
        (stand(&db), said(&db))
    }

    fn five_times(point: &str) -> (String, Vec<String>) {
        let db = killed_at(point, false);
        (stand(&db), said(&db))
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn before_a_claim_is_committed_nothing_has_happened() {
        let simply = ("succeeded 1".to_owned(), lines(&["start 1", "end 1"]));
        assert_eq!(once("claiming"), simply);
        assert_eq!(five_times("claiming"), simply);
    }

    #[test]
    fn between_a_claim_and_its_start() {
        let given_back = ("succeeded 2, released".to_owned(), lines(&["start 2", "end 2"]));
        assert_eq!(once("claimed"), given_back, "no slot says that it began: it did not");
        assert_eq!(five_times("claimed"), given_back);
    }

    #[test]
    fn between_the_end_of_a_command_and_its_record() {
        assert_eq!(once("ended"), ("dead 1, lost".to_owned(), lines(&["start 1", "end 1"])), "it has started once");
        let twice = lines(&["start 1", "end 1", "start 2", "end 2"]);
        assert_eq!(five_times("ended"), ("succeeded 2, lost".to_owned(), twice));
    }

    #[test]
    fn after_the_record_nothing_is_done_again() {
        let simply = ("succeeded 1".to_owned(), lines(&["start 1", "end 1"]));
        assert_eq!(once("settled"), simply);
        assert_eq!(five_times("settled"), simply);
    }

    /// The command lives on, and nothing but its input tells of it: the next attempt waits for it.
    #[test]
    fn between_the_start_of_a_command_and_the_record_of_its_process() {
        for (at_most_once, ends) in [(true, "dead 1, lost"), (false, "succeeded 2, lost")] {
            let db = TestDb::new();
            let mut gate = Gate::new(&db, "gate");
            let home = db.home().display();
            let line = format!(
                "echo start $DULY_ATTEMPT >>{home}/log; read line <{home}/gate; echo end $DULY_ATTEMPT >>{home}/log"
            );
            let task = soon(shell("probe", &line));
            let client = db.client();
            client.add(if at_most_once { task.at_most_once() } else { task }).unwrap();
            let mut first = doomed(&db, "spawned", &["--lease", "10m"]);
            assert_eq!(first.end().signal(), KILL, "{}", first.log());
            assert_eq!(told(&db, "log"), "start 1");
            assert_eq!(db.ask("SELECT process IS NULL FROM task_runs"), "1");
            let mut second = Sidecar::start(&db, &["--lease", "10m"]);
            eventually("it waits", || second.log().contains("its command is still running; the run waits for it"));
            assert_eq!((stand(&db).as_str(), said(&db)), ("running 1", lines(&["start 1"])));
            gate.open();
            if at_most_once {
                stands(&client, "probe", RunStatus::Dead);
            } else {
                eventually("it is begun again", || said(&db).contains(&"start 2".to_owned()));
                gate.open();
                stands(&client, "probe", RunStatus::Succeeded);
            }
            let all = lines(&["start 1", "end 1", "start 2", "end 2"]);
            assert_eq!((stand(&db).as_str(), said(&db)), (ends, all[..if at_most_once { 2 } else { 4 }].to_vec()));
            second.leave();
            db.assert_sound();
        }
    }

    #[test]
    fn an_owner_that_dies_before_it_is_registered_leaves_no_lock_file_behind_for_ever() {
        let db = TestDb::new();
        drop(db.client());
        let mut first = doomed(&db, "locked", &[]);
        assert_eq!(first.end().signal(), KILL);
        let files = || std::fs::read_dir(db.home().join("agent.db-owners")).unwrap().count();
        assert_eq!((files(), db.ask("SELECT count(*) FROM scheduler_instances").as_str()), (1, "0"));
        // One that is at work is left alone by those that come after it.
        let mut other = Sidecar::start(&db, &[]);
        assert_eq!(files(), 1, "its own");
        let mut third = Sidecar::start(&db, &[]);
        assert_eq!(files(), 2);
        third.leave();
        other.leave();
        assert_eq!(files(), 0);
    }
}

/// In other builds the environment says what it likes.
#[cfg(not(feature = "faults"))]
#[test]
fn no_other_build_has_such_points() {
    for point in ["locked", "claiming", "claimed", "spawned", "ended", "settled"] {
        let db = TestDb::new();
        db.client().add(probe(&db).at_most_once()).unwrap();
        let mut sidecar = doomed(&db, point, &["--until-idle"]);
        assert_eq!(sidecar.end().code(), Some(0), "{point}: {}", sidecar.log());
        assert_eq!((stand(&db).as_str(), said(&db).join(" ")), ("succeeded 1", "start 1 end 1".to_owned()));
    }
}
