//! A run is recovered only on evidence that its command is gone, and a process is signalled only if it certainly belongs to the
//! run. Real schedulers, killed with SIGKILL, and an observer that cannot see everything or sees other processes.
#![cfg(target_os = "linux")]

use duly::{Clock, RunStatus, SystemClock};

use crate::disk::tools::{skip_without, succeeds};
use crate::fixtures::{TestDb, advance_and_step, eventually, retry_soon, seconds, set_mode, wait_for_status};
use crate::sidecar::{
    Gate, ProcessStat, Sidecar, group_size, kill_group, kill_guard_of, live_processes, shell, signal, wait_for_line,
    wait_for_process_record, with_gate,
};

/// Returns whether a tool exists and succeeds here. Prints `skipped` if not.
pub(crate) fn tool_works(tool: &str, arguments: &[&str]) -> bool {
    let works = succeeds(tool, arguments);
    if !works {
        skip_without(tool, "this is not tested");
    }
    works
}

/// A shell line that appends `alone`, or `together` if another attempt is running, to the file `overlap`, writes its process
/// group to `group-ATTEMPT`, and waits at the gate. It ignores SIGTERM.
fn overlap_probe(db: &TestDb) -> String {
    let home = db.home().display();
    format!(
        "trap '' TERM
         exec 9>>{home}/lock; if flock -n 9; then echo alone >>{home}/overlap; else echo together >>{home}/overlap; fi
         echo $$ >{home}/group-$DULY_ATTEMPT
         read line <{home}/gate; echo passed"
    )
}

/// Returns the lines that the probe has written.
fn overlap_lines(db: &TestDb) -> String {
    db.lines("overlap").join(" ")
}

/// A process group that is killed at the end of the test.
struct KilledAtEnd(String);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        kill_group(&self.0);
    }
}

/// Status and attempt of the one run.
fn state(db: &TestDb) -> String {
    db.ask("SELECT status || ' ' || attempt FROM task_runs WHERE id = 1")
}

/// Runs the program, and returns what it prints and its exit code.
fn duly(db: &TestDb, words: &[&str]) -> (String, Option<i32>) {
    let done = db.duly(words).output().expect("duly");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (text, done.status.code())
}

/// Options of `unshare` for a PID namespace that is killed with it.
pub(crate) const UNSHARE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// The first process of the PID namespace of an `unshare`, by its pid in the namespace of the test.
pub(crate) fn first_process_in(unshare: u32) -> Option<u32> {
    live_processes().filter(|process| process.is_child_of(unshare)).last().map(|process| process.pid)
}

/// The scheduler in the PID namespace of an `unshare`.
pub(crate) fn scheduler_in(unshare: u32) -> Option<u32> {
    let first = first_process_in(unshare)?;
    live_processes().find(|process| process.is_child_of(first) && process.name == "duly").map(|process| process.pid)
}

/// Kills the scheduler in the PID namespace of an `unshare`, and its guard before.
fn kill_scheduler_in(unshare: &Sidecar) {
    let scheduler = scheduler_in(unshare.pid()).expect("a scheduler");
    signal("STOP", &scheduler.to_string());
    kill_guard_of(scheduler);
    signal("KILL", &scheduler.to_string());
}

/// Starts a scheduler in a PID namespace of its own, which survives it.
fn start_in_namespace(db: &TestDb, options: &[&str]) -> Sidecar {
    let before = db.registered_schedulers();
    let script = "\"$@\" & wait; exec sleep 1000";
    let arguments = [&UNSHARE[..], &["sh", "-c", script, "sh"]].concat();
    let sidecar = Sidecar::spawn_within(db, options, "unshare", &arguments);
    eventually("the scheduler in the namespace is registered", || db.registered_schedulers() != before);
    sidecar
}

// ------------------------------------------------------------------------------------------------ hidden processes --

#[test]
fn an_observer_without_free_file_descriptors_waits_and_reports_it() {
    if !tool_works("prlimit", &["--version"]) {
        return;
    }
    let (db, client, mut gate) = with_gate();
    client.add(retry_soon(shell("post", &overlap_probe(&db)), 5)).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    let mut second = Sidecar::start(&db, &[]);
    first.kill_with_guard();
    eventually("the second ends it", || second.log().contains("ending the orphan command of a dead scheduler"));
    let limit = |files: &str| {
        let pid = second.pid().to_string();
        assert!(tool_works("prlimit", &["--pid", &pid, &format!("--nofile={files}:")]));
    };
    limit("3");
    let doubts = "cannot be known: ";
    eventually("it has examined the orphan", || second.log().contains(doubts) || state(&db) != "running 1");
    limit("1024");
    assert_eq!((state(&db).as_str(), overlap_lines(&db).as_str()), ("running 1", "alone"));
    let events =
        "SELECT count(*), max(detail LIKE '%Too many open files%') FROM scheduler_events WHERE kind = 'orphan_unknown'";
    assert_eq!(db.rows(events), ["1|1"], "it is recorded once");
    signal("KILL", &format!("-{group}"));
    wait_for_line(&db, "group-2");
    gate.open();
    assert_eq!(wait_for_status(&client, "post", RunStatus::Succeeded).attempt, 2);
    assert_eq!(overlap_lines(&db), "alone alone");
    assert_eq!(second.log().matches(doubts).count(), 1, "it is reported once: {}", second.log());
    second.terminate();
    db.assert_sound();
}

#[test]
fn check_says_of_the_number_of_a_scheduler_that_it_is_of_another_pid_namespace() {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let reports = |db: &TestDb, mut sidecar: Sidecar, of: &str| {
        eventually("it is registered", || db.registered_schedulers() == 1);
        let line = format!("worker: the scheduler with pid {}{of} on ", db.ask("SELECT pid FROM scheduler_instances"));
        eventually(&format!("check reports {line}"), || duly(db, &["check"]).0.contains(&line));
        sidecar.kill();
    };
    let missing = ["--worker", "missing=/nonexistent/worker"];
    let [(here, _), (elsewhere, _)] = [TestDb::with_client(), TestDb::with_client()];
    let sidecar = Sidecar::start(&here, &missing);
    reports(&here, sidecar, "");
    let sidecar = start_in_namespace(&elsewhere, &missing);
    reports(&elsewhere, sidecar, " of another PID namespace");
}

#[test]
fn a_command_in_another_pid_namespace_is_waited_for_until_the_namespace_is_killed() {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let (db, client, mut gate) = with_gate();
    client.add(retry_soon(shell("post", &overlap_probe(&db)), 5)).unwrap();
    let mut first = start_in_namespace(&db, &[]);
    wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    let second = start_in_namespace(&db, &[]);
    kill_scheduler_in(&first);
    let waits = "its command is still running; the run waits for it";
    eventually("the second has examined it", || second.log().contains(waits) || state(&db) != "running 1");
    assert_eq!((state(&db).as_str(), overlap_lines(&db).as_str()), ("running 1", "alone"));
    // Neither sees the other's processes, so neither may keep the lock from a scheduler that does.
    let (status, _) = duly(&db, &["status", "--json"]);
    assert!(status.contains(r#""alive": false"#), "{status}");
    db.plain().execute("UPDATE task_runs SET locked_until = started_at", []).expect("an edit");
    let (check, code) = duly(&db, &["check"]);
    let holds_input = |process: &ProcessStat| {
        let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        files.any(|file| file.ends_with(db.input_file().strip_prefix("/").unwrap()))
    };
    let holder = live_processes().find(holds_input).expect("a process that holds the input file").pid;
    let expected = format!("end it: kill {}; or, if that is not the command: duly cancel 1 --gone", holder);
    assert!(code == Some(1) && check.contains("is in another PID namespace") && check.contains(&expected), "{check}");

    // All processes of a namespace die with its first.
    first.kill();
    wait_for_line(&db, "group-2");
    gate.open();
    assert_eq!(wait_for_status(&client, "post", RunStatus::Succeeded).attempt, 2);
    assert_eq!(overlap_lines(&db), "alone alone");
    db.assert_sound();
}

#[test]
fn a_command_hidden_in_proc_is_waited_for() {
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    if !tool_works("unshare", &["--mount", "sh", "-c", hide])
        || !tool_works("setpriv", &[&other[..], &["true"]].concat())
    {
        return;
    }
    let db = TestDb::new();
    let home = db.home().display().to_string();
    let napper = db.home().join("napper");
    std::fs::copy("/bin/sleep", &napper).expect("a copy");
    set_mode(&napper, 0o4755);
    assert!(tool_works("chown", &["65534:65534", &home]));
    let as_other = |words: &[&str]| {
        let program = [&other[..], &[env!("CARGO_BIN_EXE_duly"), "--db", db.file().to_str().unwrap()], words].concat();
        assert!(tool_works("setpriv", &program), "{words:?}");
    };
    // It starts as the user of the scheduler, and becomes another user's.
    let line = format!("echo $$ >{home}/group-$DULY_ATTEMPT; read line <{home}/gate; exec {home}/napper 1000");
    let mut gate = Gate::new(&db, "gate");
    set_mode(&db.home().join("gate"), 0o666);
    as_other(&["add", "nap", "--at", "2020-01-01T00:00:00Z", "--backoff", "50ms", "--shell", &line]);
    let script = format!("{hide} && exec setpriv {} \"$@\"", other.join(" "));
    let start = || Sidecar::spawn_within(&db, &[], "unshare", &["--mount", "sh", "-c", &script, "sh"]);
    let mut first = start();
    let napping = wait_for_line(&db, "group-1");
    let _ends = KilledAtEnd(napping.clone());
    wait_for_process_record(&db);
    gate.open();
    let is_napper = |process: &ProcessStat| process.name == "napper";
    eventually("the command is another user's", || {
        live_processes().any(|p| is_napper(&p) && p.pid.to_string() == napping)
    });
    let second = start();
    eventually("the second is registered", || db.ask("SELECT count(*) FROM scheduler_instances") == "2");
    first.kill_with_guard();
    let waits = "its command is still running; the run waits for it";
    eventually("the second has examined it", || second.log().contains(waits) || state(&db) != "running 1");
    assert_eq!(state(&db), "running 1");
    signal("KILL", &napping);
    eventually("the run is recovered", || state(&db) == "running 2");
    let _shell = KilledAtEnd(wait_for_line(&db, "group-2"));
    assert!(!live_processes().any(|process| is_napper(&process)));
}

// ------------------------------------------------------------------------------------------------------------- copies --

/// A scheduler on a copy of the file records the run as lost and leaves the original's command alone.
fn a_copy_leaves_the_original_alone(copy: impl Fn(&TestDb, &TestDb)) {
    let (db, other) = (TestDb::new(), TestDb::new());
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    let line = format!(
        "trap 'echo signalled >>{home}/overlap; exit 9' TERM
         echo $$ >{home}/group-1; read line <{home}/gate; echo passed"
    );
    client.add(shell("post", &line).at_most_once()).unwrap();
    let mut first = Sidecar::start(&db, &["--lease", "1s"]);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    copy(&db, &other);
    let mut second = Sidecar::start(&other, &["--lease", "1s"]);
    let ended = || state(&other) != "running 1" || !overlap_lines(&db).is_empty();
    eventually("the copy's run is recovered", ended);
    assert_eq!((overlap_lines(&db).as_str(), state(&other).as_str()), ("", "dead 1"));
    assert!(group_size(&group) > 0);
    second.terminate();
    gate.open();
    let run = wait_for_status(&client, "post", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref()), (1, Some("passed\n")));
    first.terminate();
    db.assert_sound();
    other.assert_sound();
}

#[test]
fn a_copy_of_the_folder_touches_no_process_of_the_original() {
    a_copy_leaves_the_original_alone(|db, other| {
        for name in ["agent.db", "agent.db-wal", "agent.db-owners"] {
            let (from, to) = (db.home().join(name), other.home().join(name));
            assert!(tool_works("cp", &["-a", from.to_str().unwrap(), to.to_str().unwrap()]), "{name}");
        }
        assert!(other.input_file().exists());
    });
}

#[test]
fn a_raw_copy_of_the_database_touches_no_process_of_the_original() {
    if !tool_works("sqlite3", &["--version"]) {
        return;
    }
    a_copy_leaves_the_original_alone(|db, other| {
        let order = format!(".backup {}", other.file().display());
        assert!(tool_works("sqlite3", &[db.file().to_str().unwrap(), &order]));
    });
}

// ------------------------------------------------------------------------------------- groups that have lost their leader --

#[test]
fn a_group_without_leader_is_identified_by_the_environment_of_its_members() {
    let (db, client) = TestDb::with_client();
    let home = db.home().display();
    let line = format!(
        "echo $$ >{home}/group-$DULY_ATTEMPT; if [ $DULY_ATTEMPT = 1 ]; then sleep 1000 & sleep 1000; fi; echo passed"
    );
    client.add(retry_soon(shell("post", &line), 5)).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    let _ends = KilledAtEnd(group.clone());
    eventually("both are running", || group_size(&group) == 3);
    first.kill_with_guard();
    signal("KILL", &group);
    eventually("its leader is gone", || group_size(&group) == 2);
    let mut second = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "post", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref(), group_size(&group)), (2, Some("passed\n"), 0));
    second.terminate();
    db.assert_sound();
}

#[test]
fn a_group_that_cannot_be_identified_is_named_and_left_to_the_user() {
    let (db, client) = TestDb::with_client();
    let home = db.home().display();
    let line = format!("echo $$ >{home}/group-1; env -i sleep 1000 & env -i sleep 1000; true");
    client.add(shell("post", &line)).unwrap();
    let lease = ["--lease", "1s"];
    let mut first = Sidecar::start(&db, &lease);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    let sleepers = || {
        let sleepers = live_processes().filter(|process| process.name == "sleep" && process.is_in_group(&group));
        sleepers.map(|process| process.pid).collect::<Vec<_>>()
    };
    let _ends = KilledAtEnd(group.clone());
    eventually("both are running", || sleepers().len() == 2);
    first.kill_with_guard();
    signal("KILL", &group);
    eventually("its leader is gone", || group_size(&group) == 2);
    let mut second = Sidecar::start(&db, &lease);
    eventually("the second has examined it", || second.log().contains("its command is still running"));
    let mut check = (String::new(), None);
    eventually("check reports it", || {
        check = duly(&db, &["check"]);
        check.0.contains("orphan: ")
    });
    let mut pids = sleepers();
    pids.sort_unstable();
    let [one, two] = pids[..] else { panic!("{pids:?}") };
    let expected = format!(
        "orphan: run 1 of post waits: its scheduler is dead, and pids {one}, {two} are in the process group of its command, \
         and cannot be identified: end them: kill {one} {two}; or, if they are not of this run: duly cancel 1 --gone\nerror: 1 problem\n"
    );
    assert_eq!(check, (expected, Some(1)));
    let (status, _) = duly(&db, &["status"]);
    assert!(
        status.contains("dead, its runs are not yet recovered: pid ") && status.contains("alive: pid "),
        "{status}"
    );
    assert_eq!((state(&db).as_str(), sleepers().len()), ("running 1", 2), "nothing is signalled");

    let (text, code) = duly(&db, &["cancel", "1", "--gone"]);
    assert!(code == Some(0) && text.contains("the command of run 1 is declared gone"), "{text}");
    let run = wait_for_status(&client, "post", RunStatus::Cancelled);
    assert_eq!((run.attempt, sleepers().len()), (1, 2));
    eventually("the dead scheduler is no longer shown", || !duly(&db, &["status"]).0.contains("dead, "));
    second.terminate();
    db.assert_sound();
}

// ---------------------------------------------------------------------------------------------------- missing handlers --

#[test]
fn a_scheduler_without_the_handler_leaves_the_lock_to_one_that_has_it() {
    let (db, client, mut gate) = with_gate();
    client.add(retry_soon(shell("post", &overlap_probe(&db).replace("trap '' TERM", "")), 5)).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    first.kill_with_guard();
    let now = SystemClock::new().now().wall.to_string();
    let mut observer = db.stepper(&now);
    for _ in 0..3 {
        assert!(observer.step().unwrap().is_empty());
        observer.clock().advance(seconds(1));
    }
    let mut second = Sidecar::start(&db, &[]);
    wait_for_line(&db, "group-2");
    assert_eq!((group_size(&group), overlap_lines(&db).as_str()), (0, "alone alone"));
    gate.open();
    assert_eq!(wait_for_status(&client, "post", RunStatus::Succeeded).attempt, 2);
    // The outdated view of the scheduler without the handler does no harm.
    assert!(advance_and_step(&mut observer, seconds(60)).is_empty());
    second.terminate();
    db.assert_sound();
}

#[test]
fn a_removed_input_file_is_no_evidence_where_the_group_cannot_be_read() {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let (db, client, _gate) = with_gate();
    client.add(retry_soon(shell("post", &overlap_probe(&db)), 5)).unwrap();
    let first = start_in_namespace(&db, &[]);
    wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    let mut second = Sidecar::start(&db, &["--lease", "1s"]);
    kill_scheduler_in(&first);
    eventually("the second has examined it", || second.log().contains("its command is still running"));
    // As a cleaner does.
    std::fs::remove_file(db.input_file()).unwrap();
    eventually("it doubts", || second.log().contains("cannot be known: ") || state(&db) != "running 1");
    assert_eq!((state(&db).as_str(), overlap_lines(&db).as_str()), ("running 1", "alone"));
    db.plain().execute("UPDATE task_runs SET locked_until = started_at", []).expect("an edit");
    let (check, _) = duly(&db, &["check"]);
    let expected = "its input file is missing, and its process is in another PID namespace: \
                    remove the cause; or, if the command is gone: duly cancel 1 --gone";
    assert!(check.contains(expected), "{check}");
    assert_eq!(duly(&db, &["cancel", "post", "--gone"]).0, "1 run of post: its command is declared gone\n");
    wait_for_status(&client, "post", RunStatus::Cancelled);
    second.terminate();
    db.assert_sound();
}
