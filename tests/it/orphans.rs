//! Orphan processes: commands that outlive their scheduler. Which scheduler waits for them or ends them, and when their run
//! continues.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::command::{CommandContext, Orphan};
use duly::testing::Stepper;
use duly::{BoxError, Clock, Context, Event, Handler, NewTask, RetryPolicy, RunStatus, Scheduler, SystemClock};
use serde_json::json;

use crate::fixtures::{
    NOON, TestDb, advance_and_step, end, eventually, minutes, once, overdue, patience, reap, receive, seconds,
    wait_for_status,
};
use crate::sidecar::{
    ProcessStat, Sidecar, command, group_size, kill_group, shell, wait_for_line, wait_for_process_record, with_gate,
};

// ------------------------------------------------------------------------------------------ in one process, by steps --

/// A process that leads a group, and the record that a scheduler would keep of it.
struct Leader {
    child: Child,
}

impl Leader {
    fn start(line: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        Leader { child: command.spawn().expect("a process") }
    }

    fn record(&self) -> String {
        let pid = self.child.id();
        let started: u64 = ProcessStat::read(pid).expect("its state").fields[19].parse().unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot's id");
        let namespace = std::fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
        json!({ "pid": pid, "started": started, "boot": boot.trim(), "pid_ns": namespace }).to_string()
    }

    fn kill(&mut self) {
        end(&mut self.child);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        kill_group(self.child.id());
        reap(&mut self.child);
    }
}

/// Returns a database in which a scheduler has claimed a run, recorded `process` as that of its command, and died.
fn with_dead_owner(task: NewTask, process: Option<&str>) -> TestDb {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(task).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    db.plain().execute("UPDATE task_runs SET process = ?1", [process]).unwrap();
    first.crash();
    db
}

/// Returns the status of run 1, whether a process is recorded, and the outcomes of its attempts.
fn run_state(db: &TestDb) -> String {
    db.ask(
        "SELECT status || iif(process IS NULL, '', ' with process')
                || ifnull(' ' || (SELECT group_concat(outcome) FROM task_attempts), '') FROM task_runs WHERE id = 1",
    )
}

/// The locked input file of the command of attempt 1 of run 1, as if the command were running.
struct LockedInput(File);

impl LockedInput {
    fn new(db: &TestDb) -> Self {
        let file = File::create_new(db.input_file()).expect("an input");
        file.lock().expect("a lock");
        LockedInput(file)
    }
}

impl Drop for LockedInput {
    /// Closing the file is not sufficient: a process that another test has forked holds the lock until it executes its program.
    fn drop(&mut self) {
        self.0.unlock().expect("an unlocked file");
    }
}

fn has_input_file(db: &TestDb) -> bool {
    db.input_file().exists()
}

#[test]
fn a_run_waits_with_its_key_until_the_group_of_its_command_is_empty() {
    let mut leader = Leader::start("sleep 1000; true");
    let db = with_dead_owner(once("post").concurrency_key("chat"), Some(&leader.record()));
    let _input = LockedInput::new(&db);
    let (mut next, events) = db.stepper_with_events(NOON);
    next.client().add(once("other").concurrency_key("chat")).unwrap();
    for _ in 0..12 {
        assert!(next.step().unwrap().is_empty(), "the key is held");
        next.clock().advance(minutes(5));
    }
    assert_eq!(run_state(&db), "running with process");
    // The leader has exited, its child has not.
    leader.kill();
    assert_eq!(group_size(&leader.child.id().to_string()), 1);
    assert!(next.step().unwrap().is_empty());
    assert_eq!(run_state(&db), "running with process");
    crate::sidecar::signal("KILL", &format!("-{}", leader.child.id()));
    eventually("the group is empty", || group_size(&leader.child.id().to_string()) == 0);
    // The input is still locked by a process that left the group: that delays nothing.
    advance_and_step(&mut next, seconds(1));
    assert_eq!(run_state(&db), "failed lost");
    assert!(!has_input_file(&db), "the file goes with the recovery");
    let gone = Event::LeftGroup { run: 1, task: "post".into(), attempt: 1 };
    let is_of_orphan = |event: &Event| {
        *event == gone || matches!(event, Event::Orphaned { .. } | Event::Lost { .. } | Event::OwnerLost { .. })
    };
    let begin = |event: Event| event.to_string().split([';', '(']).next().unwrap().to_owned();
    let events: Vec<_> = events.try_iter().filter(is_of_orphan).map(begin).collect();
    let waits = r#"run 1 of "post": the owner of attempt 1 died, and its command is still running"#;
    let left = r#"run 1 of "post": the command of attempt 1 is gone"#;
    assert_eq!(events[..3], [waits, left, r#"run 1 of "post": the owner of attempt 1 died"#], "each is reported once");
    assert_eq!(events.len(), 4, "the fourth reports the dead owner: {events:?}");
    assert_eq!(db.rows("SELECT kind, task_id, run_id FROM scheduler_events LIMIT 1"), ["left_group|1|1"]);
    db.assert_sound();
}

#[test]
fn a_process_with_another_identity_is_not_waited_for() {
    let leader = Leader::start("sleep 1000; true");
    let record = leader.record();
    let another_start = record.replace("\"started\":", "\"started\":1");
    let another_boot = record.replace("\"boot\":\"", "\"boot\":\"f");
    assert!(another_start != record && another_boot != record);
    let gone = r#"{"pid": 2000000000, "started": 1, "boot": "x"}"#;
    for process in [None, Some("{}"), Some("[]"), Some(&*another_start), Some(&*another_boot), Some(gone)] {
        let db = with_dead_owner(once("post"), process);
        let mut next = db.stepper(NOON);
        next.step().unwrap();
        assert_eq!(run_state(&db), "failed lost", "{process:?}");
    }
    assert!(group_size(&leader.child.id().to_string()) > 0, "it was not signalled");
}

#[test]
fn without_a_process_record_the_input_lock_decides() {
    for process in [None, Some("{}")] {
        let db = with_dead_owner(once("pay").at_most_once(), process);
        let input = LockedInput::new(&db);
        let mut next = db.stepper(NOON);
        for _ in 0..3 {
            assert!(next.step().unwrap().is_empty());
            next.clock().advance(minutes(5));
        }
        assert!(run_state(&db).starts_with("running"), "{process:?}");
        drop(input);
        next.step().unwrap();
        assert_eq!(run_state(&db), "dead lost", "it may start only once");
        assert!(!has_input_file(&db));
    }
}

/// The group cannot be read, its guard cannot be asked, and nothing holds the input.
#[test]
fn what_ended_with_the_first_process_of_its_namespace_is_gone_two_seconds_later() {
    let guard = json!({ "owner": "a-1", "group": "1" });
    for (record, recovered_after) in [
        (json!({ "init": true }), Some(0)),
        (json!({ "guard": guard, "init": true }), Some(3)),
        (json!({ "guard": guard }), None),
    ] {
        let db = with_dead_owner(once("post"), Some(&record.to_string()));
        File::create_new(db.input_file()).expect("an input");
        let mut next = db.stepper(NOON);
        for second in 0..100 {
            next.step().unwrap();
            let is_over = recovered_after.is_some_and(|after| second >= after);
            assert_eq!(run_state(&db) == "failed lost", is_over, "{record}, after {second} s");
            if is_over {
                break;
            }
            next.clock().advance(seconds(1));
        }
    }
}

#[test]
fn an_unknown_process_is_checked_with_backoff_and_reported_once() {
    let db = with_dead_owner(once("post"), None);
    // Only the error "no such file" proves that there is none.
    let input = db.input_file();
    symlink(&input, &input).unwrap();
    let (mut next, events) = db.stepper_with_events(NOON);
    for _ in 0..170 {
        assert!(next.step().unwrap().is_empty());
        next.clock().advance(seconds(1));
    }
    assert_eq!(run_state(&db), "running");
    let is_of_orphan =
        |event: &Event| matches!(event, Event::OrphanUnknown { .. } | Event::Orphaned { .. } | Event::Lost { .. });
    let reports = || events.try_iter().filter(is_of_orphan).map(|event| event.to_string()).collect::<Vec<_>>();
    let first_reports = reports();
    let [doubt] = &first_reports[..] else { panic!("{first_reports:#?}") };
    assert!(
        doubt.starts_with(r#"run 1 of "post": the owner of attempt 1 died, and whether its command is gone cannot"#)
    );
    assert!(doubt.ends_with("; the run waits; if it is gone: duly cancel 1 --gone"), "{doubt}");
    let recorded = "SELECT kind, task_id, run_id FROM scheduler_events";
    assert_eq!(db.rows(recorded), ["orphan_unknown|1|1"]);
    let problems = next.client().check(&duly::Limits::default()).unwrap();
    let [problem] = &problems[..] else { panic!("{problems:#?}") };
    assert!(problem.found.contains("whether its command is gone cannot be known: "), "{problem}");
    assert!(problem.advice.ends_with("if the command is gone: duly cancel 1 --gone"), "{problem}");
    // Checked after 1, 3, 7, 15, 31, 61, .. 151 s; the check after 181 s finds the answer.
    std::fs::remove_file(&input).unwrap();
    let mut waited = 0;
    while run_state(&db) == "running" {
        advance_and_step(&mut next, seconds(1));
        waited += 1;
    }
    assert_eq!((run_state(&db).as_str(), reports().len(), waited), ("failed lost", 1, 11));
    db.assert_sound();
}

#[test]
fn a_user_declares_an_unobservable_command_gone() {
    let db = with_dead_owner(once("post"), None);
    let input = LockedInput::new(&db);
    let mut next = db.stepper(NOON);
    let client = next.client().clone();
    client.add(once("other")).unwrap();
    assert_eq!(next.step().unwrap().len(), 1, "the other");
    let refused = |run: i64| client.declare_gone(run).unwrap_err().to_string();
    assert_eq!(
        refused(2),
        "cannot declare the command of run 2 gone: its scheduler is alive: duly cancel 2 asks the command to stop"
    );
    assert_eq!(client.declare_all_gone("other").unwrap(), 0);
    assert_eq!(refused(3), "there is no run 3");
    let before = next.transactions();
    advance_and_step(&mut next, seconds(1));
    assert_eq!((run_state(&db).as_str(), next.transactions()), ("running", before), "it waits, and costs nothing");
    client.declare_gone(1).unwrap();
    advance_and_step(&mut next, seconds(1));
    assert_eq!(run_state(&db), "cancelled lost");
    assert_eq!(refused(1), "cannot declare the command of run 1 gone: it is not running: cancelled");
    let events = "SELECT kind, task_id, run_id FROM scheduler_events ORDER BY id";
    assert_eq!(db.rows(events), ["declared_gone|1|1", "owner_lost|-|-"]);
    assert_eq!(db.run(2).status, RunStatus::Running);
    drop(input);
    db.assert_sound();
}

#[test]
fn a_dead_owner_is_shown_as_dead_while_its_command_runs() {
    let mut leader = Leader::start("exec sleep 1000");
    let db = with_dead_owner(once("post"), Some(&leader.record()));
    let input = LockedInput::new(&db);
    // Its input is the recorded one: the next scheduler may end it, and keeps the lock.
    let found = input.0.metadata().unwrap();
    let recorded =
        format!("UPDATE task_runs SET process = json_set(process, '$.dev', {}, '$.ino', {})", found.dev(), found.ino());
    db.plain().execute(&recorded, []).unwrap();
    let mut next = db.stepper(NOON);
    next.step().unwrap();
    let alive: Vec<Option<bool>> = next.client().status().unwrap().instances.iter().map(|one| one.alive).collect();
    assert_eq!(alive.iter().filter(|alive| **alive == Some(true)).count(), 1, "{alive:?}");
    assert_eq!(alive.iter().filter(|alive| **alive == Some(false)).count(), 1, "{alive:?}");
    advance_and_step(&mut next, minutes(2));
    let problems = next.client().check(&duly::Limits::default()).unwrap();
    let pid = leader.child.id();
    let found = format!("run 1 of post waits: its scheduler is dead, and its command is alive (pid {pid})");
    let advice = format!("a scheduler that has handler work ends it, or end it: kill -- -{pid}");
    assert_eq!((&problems[0].found, &problems[0].advice), (&found, &advice));
    leader.kill();
    drop(input);
    next.step().unwrap();
    assert_eq!(run_state(&db), "failed lost");
    assert_eq!(next.client().status().unwrap().instances.len(), 1);
}

/// Ends no process the first time.
struct EndsSecondTime {
    input: Mutex<Option<LockedInput>>,
    calls: Arc<AtomicUsize>,
}

impl Handler for EndsSecondTime {
    fn run(&self, _: &Context) -> Result<Option<String>, BoxError> {
        Ok(None)
    }

    fn end_orphan(&self, _: &Orphan) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 1 {
            self.input.lock().unwrap().take();
        }
    }
}

#[test]
fn an_orphan_that_is_still_running_is_ended_again_at_the_next_heartbeat() {
    let db = with_dead_owner(once("post").at_most_once(), None);
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = EndsSecondTime { input: Mutex::new(Some(LockedInput::new(&db))), calls: calls.clone() };
    let builder = Scheduler::builder(db.file()).handler_type("work", handler).poll(Duration::from_millis(20));
    let scheduler = builder.lease(seconds(1)).start().unwrap();
    wait_for_status(&scheduler, "post", RunStatus::Dead);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "not a third time");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

/// An observer that cannot see the process group has no other evidence.
#[test]
fn the_input_file_is_kept_until_the_outcome_is_recorded() {
    let db = TestDb::new();
    let (sender, receiver) = std::sync::mpsc::channel();
    let observer = move |event: &Event| {
        if matches!(event, Event::SetAside { .. } | Event::Finished { .. }) {
            let _ = sender.send(event.to_string());
        }
    };
    let scheduler = Scheduler::builder(db.file())
        .handler("work", |run: &Context| CommandContext::of(run).input(b"hello").map(|_| ()))
        .observe(observer)
        .lease(seconds(1))
        .start()
        .unwrap();
    let refuse = "CREATE TRIGGER not_now BEFORE UPDATE OF status ON task_runs WHEN new.status <> 'running'
                  BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.plain().execute_batch(refuse).unwrap();
    scheduler.add(overdue("post")).unwrap();
    let next = || receive(&receiver, "an event");
    let aside = next();
    assert!(aside.starts_with("set aside the outcome of run 1: not now"), "{aside}");
    assert!(has_input_file(&db));
    db.plain().execute_batch("DROP TRIGGER not_now").unwrap();
    let finished = next();
    assert!(finished.starts_with(r#"run 1 of "post" succeeded"#), "{finished}");
    eventually("the input is removed", || !has_input_file(&db));
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    // Killed before it could remove the file: the next scheduler removes it, unless it is locked.
    let input = LockedInput::new(&db);
    Sidecar::start(&db, &[]).terminate();
    assert!(has_input_file(&db));
    drop(input);
    Sidecar::start(&db, &[]).terminate();
    assert!(!has_input_file(&db));
}

#[test]
fn a_cancelled_orphan_run_is_cancelled_when_its_command_has_ended() {
    let db = with_dead_owner(once("post"), None);
    let input = LockedInput::new(&db);
    let mut next = db.stepper(NOON);
    next.step().unwrap();
    assert_eq!(next.client().cancel(1).unwrap(), duly::Cancel::Asked);
    advance_and_step(&mut next, seconds(1));
    assert_eq!(run_state(&db), "running");
    drop(input);
    advance_and_step(&mut next, seconds(1));
    assert_eq!(run_state(&db), "cancelled lost");
}

#[test]
fn the_next_scheduler_continues_the_wait_for_an_orphan() {
    let mut leader = Leader::start("exec sleep 1000");
    let db = with_dead_owner(once("post"), Some(&leader.record()));
    let mut second = db.stepper(NOON);
    second.step().unwrap();
    second.crash();
    let mut third = db.stepper(NOON);
    third.step().unwrap();
    assert_eq!(run_state(&db), "running with process");
    leader.kill();
    advance_and_step(&mut third, seconds(1));
    assert_eq!(run_state(&db), "failed lost");
}

// --------------------------------------------------------------------------------------- real processes, SIGKILL --

/// A shell line that records its process in `group-ATTEMPT`, and whether the attempt before was running; then it waits at
/// the gate. SIGTERM ends it after a second.
fn ignores_sigterm_for_a_second(db: &TestDb) -> String {
    let home = db.home().display();
    format!(
        "trap 'sleep 1; exit 9' TERM
         before={home}/group-$((DULY_ATTEMPT - 1))
         if test -e $before && grep -qs '^State:.[^ZX]' /proc/$(cat $before)/status; then echo together; else echo alone; fi
         echo $$ >{home}/group-$DULY_ATTEMPT
         read line <{home}/gate"
    )
}

#[test]
fn a_second_scheduler_ends_the_orphan_before_the_next_attempt() {
    let (db, client, mut gate) = with_gate();
    let mut sidecars = [Sidecar::start(&db, &[]), Sidecar::start(&db, &[])];
    // Six occurrences in all.
    let begin = SystemClock::new().now().wall.plus(seconds(1));
    let policy = RetryPolicy { backoff: Duration::from_millis(100), ..RetryPolicy::default() };
    let task = NewTask::interval("every-second", seconds(1))
        .starts_at(begin)
        .ends_at(begin.plus(seconds(5)))
        .handler("command")
        .payload(json!({ "argv": ["sh", "-c", ignores_sigterm_for_a_second(&db)] }))
        .retry(policy);
    client.add(task).unwrap();
    let rows = "SELECT origin, status, occurrences FROM task_runs ORDER BY id";
    eventually("all have fallen due", || db.ask("SELECT sum(occurrences) FROM task_runs") == "6");
    assert_eq!(db.rows(rows), ["schedule|running|1", "schedule|skipped|5"]);
    let group = wait_for_line(&db, "group-1");
    let first = "SELECT i.pid FROM task_runs r JOIN scheduler_instances i ON i.id = r.locked_by";
    if db.ask(first) != sidecars[0].pid().to_string() {
        sidecars.swap(0, 1);
    }
    assert_eq!(db.ask(first), sidecars[0].pid().to_string());
    sidecars[0].kill_with_guard();

    wait_for_line(&db, "group-2");
    assert_eq!(group_size(&group), 0);
    assert!(sidecars[1].log().contains("its command is still running"), "{}", sidecars[1].log());
    gate.open();
    let run = wait_for_status(&client, "every-second", RunStatus::Skipped);
    assert_eq!(run.occurrences, 5);
    let first_run = run.id - 1;
    eventually("the second attempt has succeeded", || db.run(first_run).status == RunStatus::Succeeded);
    let run = db.run(first_run);
    assert_eq!((run.attempt, run.output.as_deref()), (2, Some("alone\n")));
    let attempts = "SELECT attempt, outcome FROM task_attempts";
    assert_eq!(db.rows(attempts), ["1|lost"]);
    sidecars[1].terminate();
    assert_eq!(db.lock_files(), [""; 0], "no lock file is left");
    db.assert_sound();
}

#[test]
fn an_orphan_that_ignores_sigterm_is_killed_with_its_group() {
    let (db, client) = TestDb::with_client();
    // The leader exits; its child ignores the signal.
    let group = db.home().join("group");
    let line =
        format!("sh -c 'trap \"\" TERM; echo $PPID >{}; sleep 1000; sleep 1000' </dev/null; true", group.display());
    client.add(shell("stubborn", &line).at_most_once()).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group");
    wait_for_process_record(&db);
    first.kill_with_guard();
    let mut second = Sidecar::start(&db, &[]);
    wait_for_status(&client, "stubborn", RunStatus::Dead);
    assert_eq!(group_size(&group), 0);
    second.terminate();
}

#[test]
fn an_orphan_without_a_scheduler_for_its_handler_is_left_to_end() {
    let (db, client, mut gate) = with_gate();
    client.add(command("lone", json!({ "argv": ["sh", "-c", ignores_sigterm_for_a_second(&db)] }))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group-1");
    wait_for_process_record(&db);
    sidecar.kill_with_guard();

    let now = SystemClock::new().now().wall.to_string();
    let mut next: Stepper = db.stepper(&now);
    for _ in 0..12 {
        assert!(next.step().unwrap().is_empty());
        next.clock().advance(minutes(5));
    }
    assert_eq!(wait_for_status(&client, "lone", RunStatus::Running).attempt, 1);
    assert!(group_size(&group) > 0, "it was not ended");
    gate.open();
    eventually("it has ended", || group_size(&group) == 0);
    next.step().unwrap();
    wait_for_status(&client, "lone", RunStatus::Failed);
}
