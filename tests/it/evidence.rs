//! A run is recovered only on evidence that its command is gone, and a command is signalled only if it is certainly that of
//! this run. Real schedulers, killed with SIGKILL, in front of an observer that cannot see everything, or sees another's.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use duly::{Clock, NewTask, RetryPolicy, RunStatus, SystemClock};

use crate::disk::tools::without;
use crate::house::{House, eventually, seconds};
use crate::sidecar::{Gate, Sidecar, group_size, shell, signal, stands, told};

/// Whether a tool is there and may do this here.
pub(crate) fn can(tool: &str, arguments: &[&str]) -> bool {
    let done = Command::new(tool).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let can = done.is_ok_and(|status| status.success());
    if !can {
        without(tool, "this is not tested");
    }
    can
}

/// Tried again at once.
fn soon(task: NewTask) -> NewTask {
    task.retry(RetryPolicy { backoff: Duration::from_millis(50), cap: Duration::from_millis(50), max_attempts: 5 })
}

/// A line for the shell that writes `alone` or, if another attempt is at work, `together` into `said`, says in
/// `group-ATTEMPT` which process it is, and waits at the gate. It ignores SIGTERM.
fn alone(house: &House) -> String {
    let home = house.home().display();
    format!(
        "trap '' TERM
         exec 9>>{home}/lock; if flock -n 9; then echo alone >>{home}/said; else echo together >>{home}/said; fi
         echo $$ >{home}/group-$DULY_ATTEMPT
         read line <{home}/gate; echo passed"
    )
}

fn said(house: &House) -> String {
    std::fs::read_to_string(house.home().join("said")).unwrap_or_default().replace('\n', " ")
}

/// A group of processes that does not outlive the test.
struct Ends(String);

impl Drop for Ends {
    fn drop(&mut self) {
        let group = format!("-{}", self.0);
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status();
    }
}

/// Status and attempt of the one run.
fn stand(house: &House) -> String {
    house.ask("SELECT status || ' ' || attempt FROM task_runs WHERE id = 1")
}

fn is_recorded(house: &House) {
    eventually("its process is recorded", || house.ask("SELECT process IS NOT NULL FROM task_runs") == "1");
}

/// The program, with the words of a command line: what it printed, and what it exited with.
fn duly(house: &House, words: &[&str]) -> (String, Option<i32>) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_duly"));
    let done = program.arg("--db").arg(house.file()).args(words).output().expect("duly");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (text, done.status.code())
}

/// The processes of which a line of `/proc/PID/stat` says so: pid, parent, name.
fn processes(mut which: impl FnMut(u32, u32, &str) -> bool) -> Vec<u32> {
    let pids =
        std::fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let (begin, end) = (stat.find('(').expect("a name"), stat.rfind(')').expect("a name"));
        let parent = stat[end + 2..].split(' ').nth(1).expect("a parent").parse().expect("a number");
        !stat[end..].starts_with(") Z") && which(*pid, parent, &stat[begin + 1..end])
    };
    pids.filter(is_it).collect()
}

/// How a program is started in a PID namespace of its own, which is killed with `unshare`.
pub(crate) const UNSHARE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// The first process of the PID namespace that `unshare` has made, by its number here.
pub(crate) fn first_in(unshare: u32) -> Option<u32> {
    processes(|_, parent, _| parent == unshare).pop()
}

/// The scheduler in it.
pub(crate) fn scheduler_in(unshare: u32) -> Option<u32> {
    let first = first_in(unshare)?;
    processes(|_, parent, name| parent == first && name == "duly").pop()
}

/// A scheduler in a PID namespace of its own, which lives on without it.
fn apart(house: &House, options: &[&str]) -> Sidecar {
    let registered = || house.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL");
    let before = registered();
    let script = "\"$@\" & wait; exec sleep 1000";
    let arguments = [&UNSHARE[..], &["sh", "-c", script, "sh"]].concat();
    let sidecar = Sidecar::spawn_within(house, options, "unshare", &arguments);
    eventually("the scheduler apart is registered", || registered() != before);
    sidecar
}

// ------------------------------------------------------------------------------------------------ what cannot be seen --

#[test]
fn an_observer_without_a_file_descriptor_to_spare_waits_and_says_so() {
    if !can("prlimit", &["--version"]) {
        return;
    }
    let house = House::new();
    let client = house.client();
    let mut gate = Gate::new(&house, "gate");
    client.add(soon(shell("post", &alone(&house)))).unwrap();
    let mut first = Sidecar::start(&house, &[]);
    let group = told(&house, "group-1");
    is_recorded(&house);
    let mut second = Sidecar::start(&house, &[]);
    first.signal("KILL");
    let _ = first.end();
    eventually("the second ends it", || second.log().contains("ending the command that a dead scheduler left"));
    let limit = |files: &str| {
        let pid = second.pid().to_string();
        assert!(can("prlimit", &["--pid", &pid, &format!("--nofile={files}:")]));
    };
    limit("3");
    let doubts = "cannot be known: ";
    eventually("it has looked in vain", || second.log().contains(doubts) || stand(&house) != "running 1");
    limit("1024");
    assert_eq!((stand(&house).as_str(), said(&house).as_str()), ("running 1", "alone "));
    let events =
        "SELECT count(*), max(detail LIKE '%Too many open files%') FROM scheduler_events WHERE kind = 'orphan_unknown'";
    assert_eq!(house.rows(events), ["1|1"], "it is recorded once");
    signal("KILL", &format!("-{group}"));
    told(&house, "group-2");
    gate.open();
    assert_eq!(stands(&client, "post", RunStatus::Succeeded).attempt, 2);
    assert_eq!(said(&house), "alone alone ");
    assert_eq!(second.log().matches(doubts).count(), 1, "it is reported once: {}", second.log());
    second.leave();
    house.assert_sound();
}

#[test]
fn a_command_in_another_pid_namespace_is_waited_for_until_that_is_killed_whole() {
    if !can("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let house = House::new();
    let client = house.client();
    let mut gate = Gate::new(&house, "gate");
    client.add(soon(shell("post", &alone(&house)))).unwrap();
    let mut first = apart(&house, &[]);
    told(&house, "group-1");
    is_recorded(&house);
    let second = apart(&house, &[]);
    let scheduler = scheduler_in(first.pid()).expect("the first scheduler");
    signal("KILL", &scheduler.to_string());
    let waits = "its command is still at work; the run waits for it";
    eventually("the second has looked", || second.log().contains(waits) || stand(&house) != "running 1");
    assert_eq!((stand(&house).as_str(), said(&house).as_str()), ("running 1", "alone "));
    // Neither sees the other's processes; so no scheduler must keep the lock from one that does.
    let (status, _) = duly(&house, &["status", "--json"]);
    assert!(status.contains(r#""alive": false"#), "{status}");
    house.plain().execute("UPDATE task_runs SET locked_until = started_at", []).expect("an edit");
    let (check, code) = duly(&house, &["check"]);
    let holder = processes(|pid, _, _| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        files.any(|file| file.ends_with(house.home().join("agent.db-owners/run-1-1").strip_prefix("/").unwrap()))
    });
    let expected = format!("end it: kill {}; or, if that is not the command: duly cancel 1 --gone", holder[0]);
    assert!(code == Some(1) && check.contains("is in another PID namespace") && check.contains(&expected), "{check}");

    // All processes of the namespace are killed with its first.
    first.signal("KILL");
    let _ = first.end();
    told(&house, "group-2");
    gate.open();
    assert_eq!(stands(&client, "post", RunStatus::Succeeded).attempt, 2);
    assert_eq!(said(&house), "alone alone ");
    house.assert_sound();
}

#[test]
fn a_command_that_proc_hides_is_waited_for() {
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    if !can("unshare", &["--mount", "sh", "-c", hide]) || !can("setpriv", &[&other[..], &["true"]].concat()) {
        return;
    }
    let house = House::new();
    let home = house.home().display().to_string();
    let napper = house.home().join("napper");
    std::fs::copy("/bin/sleep", &napper).expect("a copy");
    std::fs::set_permissions(&napper, PermissionsExt::from_mode(0o4755)).expect("a mode");
    assert!(can("chown", &["65534:65534", &home]));
    let as_other = |words: &[&str]| {
        let program =
            [&other[..], &[env!("CARGO_BIN_EXE_duly"), "--db", house.file().to_str().unwrap()], words].concat();
        assert!(can("setpriv", &program), "{words:?}");
    };
    // It starts as the user of the scheduler, and becomes another's.
    let line = format!("echo $$ >{home}/group-$DULY_ATTEMPT; read line <{home}/gate; exec {home}/napper 1000");
    let mut gate = Gate::new(&house, "gate");
    std::fs::set_permissions(house.home().join("gate"), PermissionsExt::from_mode(0o666)).expect("a mode");
    as_other(&["add", "nap", "--at", "2020-01-01T00:00:00Z", "--backoff", "50ms", "--shell", &line]);
    let script = format!("{hide} && exec setpriv {} \"$@\"", other.join(" "));
    let start = || Sidecar::spawn_within(&house, &[], "unshare", &["--mount", "sh", "-c", &script, "sh"]);
    let mut first = start();
    let napping = told(&house, "group-1");
    let _ends = Ends(napping.clone());
    is_recorded(&house);
    gate.open();
    let nappers = || processes(|_, _, name| name == "napper");
    eventually("the command is another user's", || nappers().iter().any(|pid| pid.to_string() == napping));
    let second = start();
    eventually("the second is registered", || house.ask("SELECT count(*) FROM scheduler_instances") == "2");
    first.signal("KILL");
    let _ = first.end();
    let waits = "its command is still at work; the run waits for it";
    eventually("the second has looked", || second.log().contains(waits) || stand(&house) != "running 1");
    assert_eq!(stand(&house), "running 1");
    signal("KILL", &napping);
    eventually("the run is recovered", || stand(&house) == "running 2");
    let _shell = Ends(told(&house, "group-2"));
    assert!(nappers().is_empty());
}

// ------------------------------------------------------------------------------------------------------------- copies --

/// A scheduler on a copy of the file: it takes the run for lost, and does nothing to the original's command.
fn a_copy_leaves_the_original_alone(copy: impl Fn(&House, &House)) {
    let (house, other) = (House::new(), House::new());
    let client = house.client();
    let mut gate = Gate::new(&house, "gate");
    let home = house.home().display();
    let line = format!(
        "trap 'echo signalled >>{home}/said; exit 9' TERM
         echo $$ >{home}/group-1; read line <{home}/gate; echo passed"
    );
    client.add(shell("post", &line).at_most_once()).unwrap();
    let mut first = Sidecar::start(&house, &["--lease", "1s"]);
    let group = told(&house, "group-1");
    is_recorded(&house);
    copy(&house, &other);
    let mut second = Sidecar::start(&other, &["--lease", "1s"]);
    let ended = || stand(&other) != "running 1" || !said(&house).is_empty();
    eventually("the copy's run is recovered", ended);
    assert_eq!((said(&house).as_str(), stand(&other).as_str()), ("", "dead 1"));
    assert!(group_size(&group) > 0);
    second.leave();
    gate.open();
    let run = stands(&client, "post", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref()), (1, Some("passed\n")));
    first.leave();
    house.assert_sound();
    other.assert_sound();
}

#[test]
fn a_copy_of_the_folder_touches_no_process_of_the_original() {
    a_copy_leaves_the_original_alone(|house, other| {
        for name in ["agent.db", "agent.db-wal", "agent.db-owners"] {
            let (from, to) = (house.home().join(name), other.home().join(name));
            assert!(can("cp", &["-a", from.to_str().unwrap(), to.to_str().unwrap()]), "{name}");
        }
        assert!(other.home().join("agent.db-owners/run-1-1").exists());
    });
}

#[test]
fn a_raw_copy_of_the_database_touches_no_process_of_the_original() {
    if !can("sqlite3", &["--version"]) {
        return;
    }
    a_copy_leaves_the_original_alone(|house, other| {
        let order = format!(".backup {}", other.file().display());
        assert!(can("sqlite3", &[house.file().to_str().unwrap(), &order]));
    });
}

// ------------------------------------------------------------------------------------- groups that have lost their leader --

#[test]
fn a_group_whose_leader_is_gone_is_ended_by_what_its_members_were_started_with() {
    let house = House::new();
    let client = house.client();
    let home = house.home().display();
    let line = format!(
        "echo $$ >{home}/group-$DULY_ATTEMPT; if [ $DULY_ATTEMPT = 1 ]; then sleep 1000 & sleep 1000; fi; echo passed"
    );
    client.add(soon(shell("post", &line))).unwrap();
    let mut first = Sidecar::start(&house, &[]);
    let group = told(&house, "group-1");
    is_recorded(&house);
    let _ends = Ends(group.clone());
    eventually("both are at work", || group_size(&group) == 3);
    first.signal("KILL");
    let _ = first.end();
    signal("KILL", &group);
    eventually("its leader is gone", || group_size(&group) == 2);
    let mut second = Sidecar::start(&house, &[]);
    let run = stands(&client, "post", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref(), group_size(&group)), (2, Some("passed\n"), 0));
    second.leave();
    house.assert_sound();
}

#[test]
fn a_group_that_cannot_be_identified_is_named_and_left_to_the_user() {
    let house = House::new();
    let client = house.client();
    let home = house.home().display();
    let line = format!("echo $$ >{home}/group-1; env -i sleep 1000 & env -i sleep 1000; true");
    client.add(shell("post", &line)).unwrap();
    let lease = ["--lease", "1s"];
    let mut first = Sidecar::start(&house, &lease);
    let group = told(&house, "group-1");
    is_recorded(&house);
    let sleepers = || {
        processes(|pid, _, name| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            name == "sleep" && stat[stat.rfind(')').unwrap_or_default()..].split(' ').nth(3) == Some(&group)
        })
    };
    let _ends = Ends(group.clone());
    eventually("both are at work", || sleepers().len() == 2);
    first.signal("KILL");
    let _ = first.end();
    signal("KILL", &group);
    eventually("its leader is gone", || group_size(&group) == 2);
    let mut second = Sidecar::start(&house, &lease);
    eventually("the second has looked", || second.log().contains("its command is still at work"));
    let mut check = (String::new(), None);
    eventually("check reports it", || {
        check = duly(&house, &["check"]);
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
    let (status, _) = duly(&house, &["status"]);
    assert!(status.contains("dead, not yet recovered: pid ") && status.contains("alive: pid "), "{status}");
    assert_eq!((stand(&house).as_str(), sleepers().len()), ("running 1", 2), "nothing is signalled");

    let (said, code) = duly(&house, &["cancel", "1", "--gone"]);
    assert!(code == Some(0) && said.contains("the command of run 1 is declared gone"), "{said}");
    let run = stands(&client, "post", RunStatus::Cancelled);
    assert_eq!((run.attempt, sleepers().len()), (1, 2));
    eventually("the dead one is no more to be seen", || !duly(&house, &["status"]).0.contains("dead, "));
    second.leave();
    house.assert_sound();
}

// -------------------------------------------------------------------------------------------------------------- the heir --

#[test]
fn a_scheduler_without_the_handler_leaves_the_lock_to_one_that_has_it() {
    let house = House::new();
    let client = house.client();
    let mut gate = Gate::new(&house, "gate");
    client.add(soon(shell("post", &alone(&house).replace("trap '' TERM", "")))).unwrap();
    let mut first = Sidecar::start(&house, &[]);
    let group = told(&house, "group-1");
    is_recorded(&house);
    first.signal("KILL");
    let _ = first.end();
    let now = SystemClock::new().now().wall.to_string();
    let mut heir = house.stepper(&now);
    for _ in 0..3 {
        assert!(heir.step().unwrap().is_empty());
        heir.clock().advance(seconds(1));
    }
    let mut second = Sidecar::start(&house, &[]);
    told(&house, "group-2");
    assert_eq!((group_size(&group), said(&house).as_str()), (0, "alone alone "));
    gate.open();
    assert_eq!(stands(&client, "post", RunStatus::Succeeded).attempt, 2);
    // What the one without the handler still believes of the dead one does no harm.
    heir.clock().advance(seconds(60));
    assert!(heir.step().unwrap().is_empty());
    second.leave();
    house.assert_sound();
}

#[test]
fn a_cleared_input_is_no_evidence_where_the_group_cannot_be_read() {
    if !can("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let house = House::new();
    let client = house.client();
    let _gate = Gate::new(&house, "gate");
    client.add(soon(shell("post", &alone(&house)))).unwrap();
    let first = apart(&house, &[]);
    told(&house, "group-1");
    is_recorded(&house);
    let mut second = Sidecar::start(&house, &["--lease", "1s"]);
    signal("KILL", &scheduler_in(first.pid()).expect("the first scheduler").to_string());
    eventually("the second has looked", || second.log().contains("its command is still at work"));
    // A cleaner has been there.
    std::fs::remove_file(house.home().join("agent.db-owners/run-1-1")).unwrap();
    eventually("it doubts", || second.log().contains("cannot be known: ") || stand(&house) != "running 1");
    assert_eq!((stand(&house).as_str(), said(&house).as_str()), ("running 1", "alone "));
    house.plain().execute("UPDATE task_runs SET locked_until = started_at", []).expect("an edit");
    let (check, _) = duly(&house, &["check"]);
    let expected = "the file of its input is missing, and its process is in another PID namespace: \
                    remove the cause; or, if the command is gone: duly cancel 1 --gone";
    assert!(check.contains(expected), "{check}");
    assert_eq!(duly(&house, &["cancel", "post", "--gone"]).0, "1 run of post: its command is declared gone\n");
    stands(&client, "post", RunStatus::Cancelled);
    second.leave();
    house.assert_sound();
}
