//! `duly run` killed at a named point, and started again: an at-most-once run starts once or never, every other run is recovered.
//! The points exist in builds with the feature `faults`.
#![cfg(target_os = "linux")]

use duly::NewTask;

use crate::fixtures::{TestDb, retry_soon};
use crate::sidecar::{Sidecar, shell};

/// A task whose command appends a line for its start and one for its end to the file `log`.
fn probe(db: &TestDb) -> NewTask {
    let log = db.home().join("log");
    let log = log.display();
    let line = format!("echo start $DULY_ATTEMPT >>{log}; echo end $DULY_ATTEMPT >>{log}");
    retry_soon(shell("probe", &line), 5)
}

/// The status and attempt of the run, and the outcomes of its unsuccessful attempts.
fn state(db: &TestDb) -> String {
    db.ask("SELECT status || ' ' || attempt || ifnull((SELECT ', ' || group_concat(outcome) FROM task_attempts), '') FROM task_runs")
}

/// Starts the program, which is killed at this point.
fn killed_program(db: &TestDb, point: &str, options: &[&str]) -> Sidecar {
    spawn(db, options, &format!("{point}=kill"))
}

fn spawn(db: &TestDb, options: &[&str], faults: &str) -> Sidecar {
    let state = db.home().join("state").display().to_string();
    Sidecar::spawn_with(db, options, &[("DULY_FAULTS", faults), ("DULY_STATE_DIR", &state)])
}

#[cfg(feature = "faults")]
mod with_faults {
    use std::os::unix::process::ExitStatusExt;

    use duly::{Limits, Misfire, NewTask, RunStatus, Timestamp};
    use serde_json::json;

    use super::{TestDb, killed_program, probe, retry_soon, spawn, state};
    use crate::evidence::tool_works;
    use crate::fixtures::{eventually, seconds, wait_for_status};
    use crate::restores::{back_up, can_restore, restore};
    use crate::sidecar::{Gate, Sidecar, group_size, guard_of, kill_group, shell, signal, wait_for_line};

    const KILL: Option<i32> = Some(9);

    /// A database on which the program was killed at this point with a probe to run, and another then finished. The lease is ten
    /// minutes, longer than any test waits.
    fn killed_at(point: &str, at_most_once: bool) -> TestDb {
        let db = TestDb::new();
        let task = probe(&db);
        db.client().add(if at_most_once { task.at_most_once() } else { task }).unwrap();
        let lease = ["--until-idle", "--lease", "10m"];
        let mut first = killed_program(&db, point, &lease);
        assert_eq!(first.end().signal(), KILL, "{point}: {}", first.log());
        let mut second = Sidecar::spawn(&db, &lease);
        assert_eq!(second.end().code(), Some(0), "{point}: {}", second.log());
        assert_eq!(db.lock_files(), [""; 0], "{point}");
        db.assert_sound();
        db
    }

    /// A program that nothing kills.
    fn program(db: &TestDb, options: &[&str]) -> Sidecar {
        spawn(db, options, "")
    }

    fn at_most_once(point: &str) -> (String, Vec<String>) {
        let db = killed_at(point, true);
        (state(&db), db.lines("log"))
    }

    fn retried(point: &str) -> (String, Vec<String>) {
        let db = killed_at(point, false);
        (state(&db), db.lines("log"))
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    /// Where a scheduler that executes commands is killed.
    const POINTS: [&str; 6] = ["claiming", "claimed", "started", "spawned", "ended", "settled"];

    /// A task missed an hour of occurrences, and the next one is due in the turn that records them.
    fn each_alarm_comes_once(new: fn() -> Option<TestDb>) {
        for point in POINTS {
            let Some(db) = new() else { return };
            let task = NewTask::interval("beat", seconds(1)).misfire(Misfire::Skip, seconds(1));
            db.client().add(task.handler("command").payload(json!({ "argv": ["true"] }))).unwrap();
            let hour_ago = Timestamp::now().as_millis() - 3_600_000;
            db.execute(&format!("UPDATE scheduled_tasks SET created_at = {hour_ago}, active_since = {hour_ago}"));
            db.execute(&format!("UPDATE scheduled_tasks SET next_run = {hour_ago}, planned = 1"));
            // The channel is known: it examines all that follows.
            db.client().update_alarms(&["command"], &Limits::default(), Timestamp::now(), None).unwrap();
            let told = db.home().join("told");
            let alert = format!("sh -c '{{ cat; echo; }} >>\"$0\"' {}", told.display());
            let options =
                ["--alarm-look", "50ms", "--alarm-gather", "0s", "--alarm-interval", "0s", "--alert-command", &alert];
            let mut first = killed_program(&db, point, &options);
            assert_eq!(first.end().signal(), KILL, "{point}: {}", first.log());
            let mut second = program(&db, &options);
            let told = |state: &str| {
                let about = format!("\"kind\":\"missed\",\"state\":\"{state}\"");
                db.lines("told").iter().filter(|line| line.contains(&about)).count()
            };
            eventually("the end was reported", || told("ended") > 0);
            second.terminate();
            let recorded = db.number::<usize>("SELECT count(*) FROM scheduler_events WHERE kind = 'missed'");
            let rows = db.number::<usize>("SELECT count(*) FROM task_runs WHERE status = 'missed'");
            let of_rows = "SELECT count(DISTINCT run_id) FROM scheduler_events WHERE kind = 'missed'";
            assert_eq!((recorded, db.number(of_rows)), (rows, rows), "{point}: each row has its event");
            let (began, ended) = (told("began"), told("ended"));
            assert!(began == ended && began <= rows, "{point}: {:?}", db.lines("told"));
            db.assert_sound();
        }
    }

    #[test]
    fn missed_occurrences_are_reported_once_whatever_kills_the_scheduler() {
        each_alarm_comes_once(|| Some(TestDb::new()));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn missed_occurrences_are_reported_once_whatever_kills_a_scheduler_of_a_server() {
        each_alarm_comes_once(TestDb::on_server);
    }

    /// Two schedulers are killed one after the other: the second one executes what follows, or begins the task again.
    fn each_follower_is_opened_once(new: fn() -> Option<TestDb>) {
        for (point, at_most_once) in POINTS.into_iter().flat_map(|point| [(point, false), (point, true)]) {
            let Some(db) = new() else { return };
            for name in ["post", "tell", "clean"] {
                let task = NewTask::manual(name).handler("command").payload(json!({ "argv": ["true"] }));
                db.client().add(retry_soon(task, 5)).unwrap();
            }
            let task = probe(&db).on_success("post").on_dead("tell").on_end("clean");
            db.client().add(if at_most_once { task.at_most_once() } else { task }).unwrap();
            let lease = ["--until-idle", "--lease", "10m"];
            for number in ["first", "second"] {
                let mut killed = killed_program(&db, point, &lease);
                assert_eq!(killed.end().signal(), KILL, "{number}, {point}: {}", killed.log());
            }
            let mut last = program(&db, &lease);
            assert_eq!(last.end().code(), Some(0), "{point}: {}", last.log());
            let follow = "SELECT t.name, r.origin, r.status, count(*) FROM task_runs r
                            JOIN scheduled_tasks t ON t.id = r.task_id
                           WHERE r.origin LIKE 'on%' GROUP BY t.name, r.origin, r.status ORDER BY 1";
            // An attempt that began and was not recorded is lost, and was the only one.
            let is_dead = at_most_once && ["started", "spawned", "ended"].contains(&point);
            let other = if is_dead { "tell|on_dead|succeeded|1" } else { "post|on_success|succeeded|1" };
            assert_eq!(db.rows(follow), ["clean|on_end|succeeded|1", other], "{point}, {at_most_once}");
            db.assert_sound();
        }
    }

    #[test]
    fn a_run_that_follows_is_opened_once_wherever_schedulers_are_killed() {
        each_follower_is_opened_once(|| Some(TestDb::new()));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_run_that_follows_is_opened_once_wherever_schedulers_of_a_server_are_killed() {
        each_follower_is_opened_once(TestDb::on_server);
    }

    #[test]
    fn a_kill_before_the_claim_is_committed_changes_nothing() {
        let undisturbed = ("succeeded 1".to_owned(), lines(&["start 1", "end 1"]));
        assert_eq!(at_most_once("claiming"), undisturbed);
        assert_eq!(retried("claiming"), undisturbed);
    }

    #[test]
    fn a_kill_between_claim_and_start_releases_the_run() {
        let released = ("succeeded 2, released".to_owned(), lines(&["start 2", "end 2"]));
        assert_eq!(at_most_once("claimed"), released, "its slot shows that it did not begin");
        assert_eq!(retried("claimed"), released);
    }

    #[test]
    fn a_kill_between_end_and_record_loses_the_attempt() {
        assert_eq!(
            at_most_once("ended"),
            ("dead 1, lost".to_owned(), lines(&["start 1", "end 1"])),
            "it has started once"
        );
        let twice = lines(&["start 1", "end 1", "start 2", "end 2"]);
        assert_eq!(retried("ended"), ("succeeded 2, lost".to_owned(), twice));
    }

    #[test]
    fn a_kill_after_the_record_repeats_nothing() {
        let undisturbed = ("succeeded 1".to_owned(), lines(&["start 1", "end 1"]));
        assert_eq!(at_most_once("settled"), undisturbed);
        assert_eq!(retried("settled"), undisturbed);
    }

    /// Stops the guard of a scheduler, and returns its pid.
    fn stopped_guard(scheduler: &Sidecar) -> String {
        let mut guard = None;
        eventually("it has a guard", || {
            guard = guard_of(scheduler.pid());
            guard.is_some()
        });
        let guard = guard.expect("a guard").to_string();
        signal("STOP", &guard);
        guard
    }

    /// The guard knows of the command, and nothing else does.
    #[test]
    fn a_command_that_is_not_recorded_and_gave_up_its_lock_is_waited_for() {
        // Of the usual shells, only this one can close the descriptor.
        if !tool_works("bash", &["--version"]) {
            return;
        }
        // After a restore, the scheduler goes on under another id.
        for (point, restores) in [("started", false), ("spawned", false), ("spawned", can_restore())] {
            let (db, client) = TestDb::with_client();
            let home = db.home().display();
            let closes = "exec 41>&- </dev/null; echo $$ >closed; exec sleep 1000";
            let line = format!("cd {home}; [ $DULY_ATTEMPT = 2 ] || exec bash -c '{closes}'");
            let mut first = killed_program(&db, point, &["--lease", "10m"]);
            let guard = stopped_guard(&first);
            if restores {
                let copy = back_up(&db, "copy");
                client.add(NewTask::manual("lost").handler("command")).unwrap();
                restore(&db, &copy);
            }
            client.add(retry_soon(shell("closes", &line), 5)).unwrap();
            assert_eq!(first.end().signal(), KILL, "{point}: {}", first.log());
            let guards = db.lock_files().iter().filter(|name| name.ends_with(".guard")).count();
            assert_eq!(guards, 1 + usize::from(restores));
            let group = wait_for_line(&db, "closed");
            assert_eq!(db.ask("SELECT process IS NULL FROM task_runs"), "1");
            let mut second = Sidecar::start(&db, &["--lease", "10m"]);
            let says = "its command is still running; the run waits for it";
            eventually("it has looked", || second.log().contains(says) || state(&db) != "running 1");
            assert_eq!((state(&db).as_str(), group_size(&group)), ("running 1", 1), "{point}");
            signal("CONT", &guard);
            // It was not told which process it is, and only waits for it.
            if point == "started" {
                let name = || std::fs::read_to_string(format!("/proc/{guard}/comm")).expect("the guard waits");
                eventually("the guard sees the death", || name() == "duly-guard-ends\n");
                eventually("it goes on waiting after its last signals", || name() == "duly-guard\n");
                assert_eq!(group_size(&group), 1);
                kill_group(&group);
            }
            assert_eq!(wait_for_status(&client, "closes", RunStatus::Succeeded).attempt, 2);
            assert_eq!(group_size(&group), 0, "{point}");
            second.terminate();
            db.assert_sound();
        }
    }

    /// The command survives, as the guard does nothing, and only its input file shows that: the next attempt waits for it.
    #[test]
    fn a_kill_before_the_process_is_recorded_makes_the_next_attempt_wait() {
        for (at_most_once, ends) in [(true, "dead 1, lost"), (false, "succeeded 2, lost")] {
            let db = TestDb::new();
            let mut gate = Gate::new(&db, "gate");
            let home = db.home().display();
            let line = format!(
                "echo start $DULY_ATTEMPT >>{home}/log; read line <{home}/gate; echo end $DULY_ATTEMPT >>{home}/log"
            );
            let task = retry_soon(shell("probe", &line), 5);
            let client = db.client();
            let mut first = killed_program(&db, "spawned", &["--lease", "10m"]);
            let guard = stopped_guard(&first);
            client.add(if at_most_once { task.at_most_once() } else { task }).unwrap();
            assert_eq!(first.end().signal(), KILL, "{}", first.log());
            signal("KILL", &guard);
            assert_eq!(wait_for_line(&db, "log"), "start 1");
            assert_eq!(db.ask("SELECT process IS NULL FROM task_runs"), "1");
            let mut second = Sidecar::start(&db, &["--lease", "10m"]);
            eventually("it waits", || second.log().contains("its command is still running; the run waits for it"));
            assert_eq!((state(&db).as_str(), db.lines("log")), ("running 1", lines(&["start 1"])));
            gate.open();
            if at_most_once {
                wait_for_status(&client, "probe", RunStatus::Dead);
            } else {
                eventually("it is begun again", || db.lines("log").contains(&"start 2".to_owned()));
                gate.open();
                wait_for_status(&client, "probe", RunStatus::Succeeded);
            }
            let all = lines(&["start 1", "end 1", "start 2", "end 2"]);
            assert_eq!(
                (state(&db).as_str(), db.lines("log")),
                (ends, all[..if at_most_once { 2 } else { 4 }].to_vec())
            );
            second.terminate();
            db.assert_sound();
        }
    }

    #[test]
    fn the_lock_file_of_an_unregistered_dead_owner_is_removed() {
        let db = TestDb::new();
        drop(db.client());
        let mut first = killed_program(&db, "locked", &[]);
        assert_eq!(first.end().signal(), KILL);
        let files = || db.lock_files().len();
        assert_eq!((files(), db.ask("SELECT count(*) FROM scheduler_instances").as_str()), (1, "0"));
        // The lock file of a live scheduler is kept.
        let mut other = Sidecar::start(&db, &[]);
        assert_eq!(files(), 2, "its own, and that of its guard");
        let mut third = Sidecar::start(&db, &[]);
        assert_eq!(files(), 4);
        third.terminate();
        other.terminate();
        assert_eq!(files(), 0);
    }
}

/// Other builds ignore the variable.
#[cfg(not(feature = "faults"))]
#[test]
fn builds_without_the_feature_have_no_fault_points() {
    for point in ["locked", "claiming", "claimed", "spawned", "ended", "settled"] {
        let db = TestDb::new();
        db.client().add(probe(&db).at_most_once()).unwrap();
        let mut sidecar = killed_program(&db, point, &["--until-idle"]);
        assert_eq!(sidecar.end().code(), Some(0), "{point}: {}", sidecar.log());
        assert_eq!((state(&db).as_str(), db.lines("log").join(" ")), ("succeeded 1", "start 1 end 1".to_owned()));
    }
}
