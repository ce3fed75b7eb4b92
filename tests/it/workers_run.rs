//! `duly run --worker`: what workers report is recorded, those that break a rule are ended, and no worker outlives its scheduler.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Duration;

use duly::{Client, Limits, NewTask, Problem, ProblemKind, RunStatus};

use crate::fixtures::{TestDb, eventually, overdue, retry_soon, wait_for_status};
use crate::sidecar::{ProcessStat, Sidecar, signal};

/// Short times, so that a test does not wait for a limit.
const TIMES: &str = "hello=20s,backoff=10ms,term=300ms,cancel=300ms";

/// Writes a worker for a shell, and returns the option that starts it. `hello`: the rest of its hello. `arms`: what it does with
/// lines; `$id` holds the keys of an attempt.
pub(crate) fn worker(db: &TestDb, name: &str, hello: &str, arms: &str) -> String {
    let script = format!(
        r#"
say() {{ printf '%s\n' "$1"; }}
begin() {{ say "{{\"type\":\"begin\",$id}}"; }}
progress() {{ say "{{\"type\":\"progress\",$id,\"text\":\"$1\"}}"; }}
succeed() {{ say "{{\"type\":\"done\",$id$1}}"; }}
fail() {{ say "{{\"type\":\"failed\",$id,\"error\":\"$1\"$2}}"; }}
effect() {{ say "{{\"type\":\"effect_$1\",$id,\"key\":\"send\"$2}}"; }}
hello() {{ say '{{"type":"hello","protocol":1,{hello}}}'; }}
echo $$ >>{home}/pids-{name}
hello
while IFS= read -r line; do
  run=${{line#*\"run\":}}; run=${{run%%,*}}
  attempt=${{line#*\"attempt\":}}; attempt=${{attempt%%,*}}
  id="\"run\":$run,\"attempt\":$attempt"
  printf '%s\n' "$line" >>{home}/lines-{name}
  case $line in
  {arms}
  *'"type":"stop"'*) exit 0;;
  *'"type":"ping"'*) say '{{"type":"pong"}}';;
  esac
done
"#,
        home = db.home().display()
    );
    let path = db.home().join(format!("{name}.sh"));
    std::fs::write(&path, script).expect("a script");
    format!("{name}=sh {}", path.display())
}

/// The hello of a worker with one handler.
pub(crate) fn handles(handler: &str, concurrency: u32) -> String {
    format!(r#""handlers":["{handler}"],"concurrency":{concurrency}"#)
}

/// A task that is due, retried soon.
pub(crate) fn task(name: &str, handler: &str) -> NewTask {
    retry_soon(overdue(name).handler(handler), 3)
}

pub(crate) fn start(db: &TestDb, workers: &[&str], options: &[&str]) -> Sidecar {
    let workers = workers.iter().flat_map(|worker| ["--worker", worker]);
    Sidecar::start(db, &workers.chain(["--worker-times", TIMES]).chain(options.iter().copied()).collect::<Vec<_>>())
}

/// Runs until idle, and returns the exit code.
fn until_idle(db: &TestDb, workers: &[&str]) -> Option<i32> {
    start(db, workers, &["--until-idle"]).end().code()
}

/// The processes of a worker that were started.
pub(crate) fn pids(db: &TestDb, name: &str) -> Vec<u32> {
    let pids = std::fs::read_to_string(db.home().join(format!("pids-{name}"))).unwrap_or_default();
    pids.lines().map(|pid| pid.parse().expect("a pid")).collect()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    ProcessStat::read(pid).is_some_and(|stat| stat.fields[0] != "Z")
}

/// What duly has sent to a worker.
pub(crate) fn sent(db: &TestDb, name: &str) -> String {
    std::fs::read_to_string(db.home().join(format!("lines-{name}"))).unwrap_or_default()
}

/// Waits until the worker was sent something.
fn wait_for_line(db: &TestDb, name: &str, part: &str) {
    eventually(&format!("the worker {name} has read {part}"), || sent(db, name).contains(part));
}

pub(crate) fn check(db: &TestDb) -> String {
    let found = db.duly(&["check"]).output().expect("check");
    String::from_utf8(found.stdout).expect("text")
}

#[test]
fn outcomes_are_recorded() {
    let (db, client) = TestDb::with_client();
    for name in ["ok", "flaky", "hopeless", "later", "large", "null"] {
        client.add(task(name, name).payload(name)).unwrap();
    }
    let hello = r#""handlers":["ok","flaky","hopeless","later","large","null"],"concurrency":3"#;
    let arms = r#"
  *'"handler":"ok"'*) begin; progress 'half way'; echo "to the log" >&2
    say "{\"type\":\"log\",\"level\":\"warn\",\"run\":$run,\"text\":\"of the run\"}"
    say '{"type":"log","level":"info","run":-99,"text":"of another"}'
    say "{\"type\":\"log\",\"level\":\"info\",\"text\":\"$(head -c 2000 /dev/zero | tr '\0' x)\"}"; succeed ',"result":{"n":[1, 2]}';;
  *'"handler":"flaky"'*) if [ $attempt = 3 ]; then succeed; else fail "no $attempt"; fi;;
  *'"handler":"hopeless"'*) fail 'never' ',"retry":false';;
  *'"handler":"later"'*) if [ $attempt = 1 ]; then fail 'wait' ',"retry":"1ms"'; else succeed ',"result":7'; fi;;
  *'"handler":"large"'*) succeed ",\"result\":\"$(head -c 300000 /dev/zero | tr '\0' x)\"";;
  *'"handler":"null"'*) succeed ',"result":null';;"#;
    let option = worker(&db, "all", hello, arms);
    let mut sidecar = start(&db, &[&option], &["--until-idle"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let row = |task: &str| {
        db.ask(&format!(
            "SELECT status || '|' || attempt || '|' || coalesce(result, '-') || '|' || coalesce(error, '-') || '|' \
             || coalesce(progress, '-') FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = '{task}')"
        ))
    };
    assert_eq!(row("ok"), r#"succeeded|1|{"n":[1, 2]}|-|half way"#);
    assert_eq!(row("flaky"), "succeeded|3|-|-|-");
    assert_eq!(row("hopeless"), "dead|1|-|never|-");
    assert_eq!(row("later"), "succeeded|2|7|-|-");
    let remark = "its result is not stored: 300002 bytes, more than 262144";
    assert_eq!(row("large"), format!("succeeded|1|-|{remark}|-"));
    assert_eq!(row("null"), "succeeded|1|-|-|-");
    let log = sidecar.log();
    assert!(log.contains("worker all: to the log") && log.contains("[WARN] worker all: run 1: of the run"), "{log}");
    // The run is a label.
    assert!(log.contains("worker all: run -99: of another"), "{log}");
    assert!(log.contains(&format!("worker all: {} ...\n", "x".repeat(1024))), "{log}");
    let first = sent(&db, "all");
    let first = first.lines().nth(1).unwrap();
    let expected =
        r#""attempt":1,"task":"ok","handler":"ok","payload":"ok","scheduled_for":"2020-01-01T00:00:00.000Z","origin":"#;
    assert!(first.contains(expected) && first.contains(r#""deadline":null"#), "{first}");
    db.assert_sound();
}

#[test]
fn effects_are_done_once_and_in_doubt_after_a_kill() {
    let (db, client) = TestDb::with_client();
    client.add(task("paid", "pay")).unwrap();
    client.add(task("lost", "lose")).unwrap();
    let hello = r#""handlers":["pay","lose"],"concurrency":1"#;
    let arms = r#"
  *'"type":"run"'*) effect begin; case $line in *lose*) lose=1;; *) lose=;; esac;;
  *'"state":"begin"'*) if [ $lose ]; then kill -9 $$; fi; effect done ',"value":{"id": 7}';;
  *'"state":"stored"'*) fail 'after the effect';;
  *'"state":"done"'*) succeed ',"result":"done before"';;
  *'"state":"in_doubt"'*) fail 'in doubt' ',"retry":false';;"#;
    assert_eq!(until_idle(&db, &[&worker(&db, "w", hello, arms)]), Some(0));
    // Where both are due in one turn, the run that waits is written before the one that starts.
    let mut states = db.states();
    states.sort();
    assert_eq!(states, ["lost|dead|2", "paid|succeeded|2"]);
    let lines = sent(&db, "w");
    assert!(lines.contains(r#""key":"send","state":"done","value":{"id": 7}}"#), "{lines}");
    assert_eq!(db.ask("SELECT error FROM task_runs WHERE status = 'dead'"), "in doubt");
    db.assert_sound();
}

#[test]
fn attempts_are_cancelled_and_timed_out() {
    let (db, client) = TestDb::with_client();
    client.add(task("cancelled", "h").payload("cancelled")).unwrap();
    client.add(task("late", "h").payload("late").timeout(Duration::from_millis(50))).unwrap();
    let arms = r#"
  *'"type":"run"'*) begin;;
  *'"reason":"asked"'*) fail 'it was cancelled';;
  *'"reason":"timeout"'*) if [ $attempt = 1 ]; then fail 'too late'; else succeed; fi;;"#;
    let option = worker(&db, "w", &handles("h", 5), arms);
    let mut sidecar = start(&db, &[&option], &[]);
    wait_for_line(&db, "w", "\"cancelled\"");
    client.cancel(client.history("cancelled", 1).unwrap()[0].id).unwrap();
    let cancelled = wait_for_status(&client, "cancelled", RunStatus::Cancelled);
    assert_eq!(cancelled.attempt, 1);
    let late = wait_for_status(&client, "late", RunStatus::Succeeded);
    assert_eq!(late.attempt, 2);
    sidecar.terminate();
    assert_eq!(pids(&db, "w").len(), 1, "{}", sidecar.log());
}

#[test]
fn a_worker_that_ignores_a_cancel_is_ended_with_all_processes_of_its_group() {
    let (db, client) = TestDb::with_client();
    client.add(task("stuck", "h").timeout(Duration::from_millis(50))).unwrap();
    let arms = r#"*'"attempt":1,"task"'*) begin; trap '' TERM; sleep 1000 & echo $! >>child;;
  *'"type":"run"'*) succeed;;"#;
    let option =
        worker(&db, "w", &handles("h", 1), &arms.replace(">>child", &format!(">>{}/child", db.home().display())));
    let mut sidecar = start(&db, &[&option], &[]);
    let run = wait_for_status(&client, "stuck", RunStatus::Succeeded);
    assert_eq!(run.attempt, 2);
    let child: u32 = db.lines("child")[0].parse().unwrap();
    assert!(!is_alive(child) && !is_alive(pids(&db, "w")[0]));
    let log = sidecar.log();
    assert!(log.contains("run 1 had not ended 300ms after its cancel"), "{log}");
    sidecar.terminate();
}

#[test]
fn what_a_killed_worker_had_begun_counts_and_what_it_was_handed_does_not() {
    let (db, client) = TestDb::with_client();
    client.add(task("begun", "h").payload("begun")).unwrap();
    client.add(task("handed", "h").payload("handed")).unwrap();
    let arms = r#"
  *'"payload":"begun"'*) begin; if [ $attempt = 1 ]; then begun=$id; [ $handed ] && { echo 'the end' >&2; kill -9 $$; }; else succeed; fi;;
  *'"payload":"handed"'*) handed=$id; if [ $attempt = 1 ]; then [ "$begun" ] && { echo 'the end' >&2; kill -9 $$; }; else succeed; fi;;"#;
    let option = worker(&db, "mail", &handles("h", 2), arms);
    assert_eq!(until_idle(&db, &[&option]), Some(0));
    assert_eq!(db.states(), ["begun|succeeded|2", "handed|succeeded|2"]);
    let forgiven = db.rows("SELECT id, forgiven FROM task_runs ORDER BY id");
    assert_eq!(forgiven, ["1|0", "2|1"]);
    let errors = db.ask("SELECT group_concat(error) FROM task_attempts WHERE error LIKE '%worker%'");
    assert_eq!(errors, "the worker \"mail\" ended: killed by SIGKILL: the end");
    assert_eq!(pids(&db, "mail").len(), 2);
    db.assert_sound();
}

#[test]
fn a_worker_that_breaks_a_rule_gets_an_error_and_is_given_up() {
    let (db, client) = TestDb::with_client();
    client.add(task("known", "unknown_run")).unwrap();
    let arm = |line: &str| format!("*welcome*) say '{line}';; *'\"type\":\"error\"'*) exit 3;;");
    let long = "*welcome*) head -c 1100000 /dev/zero | tr '\\0' x; echo;;";
    let mut workers = Vec::new();
    let mut add = |name: &str, hello: &str, arms: &str| workers.push(worker(&db, name, hello, arms));
    for (name, line) in [
        ("garbage", "hello world"),
        ("unknown_type", r#"{"type":"dane"}"#),
        ("wrong_key", r#"{"type":"begin","run":"1","attempt":1}"#),
        ("second_hello", r#"{"type":"hello","protocol":1,"handlers":["second_hello"],"concurrency":1}"#),
    ] {
        add(name, &handles(name, 1), &arm(line));
    }
    add(
        "unknown_run",
        &handles("unknown_run", 1),
        r#"*'"type":"run"'*) say "{\"type\":\"done\",\"run\":99,\"attempt\":1}";;"#,
    );
    add("long", &handles("long", 1), long);
    add("no_hello", "\"x", "");
    add("own", &handles("command", 1), "");
    add("silent", &handles("silent", 1), r#"*'"type":"ping"'*) ;;"#);
    add("mute", &handles("mute", 1), "*welcome*) exec sleep 1000;;");
    add("gone", &handles("gone", 1), "*welcome*) echo 'no such module' >&2; exit 7;;");
    workers.push("missing=/nonexistent/worker".to_owned());
    workers.push("quiet=sleep 1000".to_owned());
    let times = "hello=4s,ping=300ms,silence=900ms,term=300ms,cancel=1s,backoff=1ms,starts=2";
    let mut options = vec!["--worker-times", times];
    workers.iter().for_each(|worker| options.extend(["--worker", worker]));
    let mut sidecar = Sidecar::start(&db, &options);
    let count = workers.len();
    eventually("all are given up", || sidecar.log().matches("was given up after 2 starts").count() == count);
    eventually("check reports them", || check(&db).matches("given up").count() == count);
    let log = sidecar.log();
    for (name, reason) in [
        ("garbage", "standard output carries messages only"),
        ("unknown_type", "unknown type \\\"dane\\\""),
        ("wrong_key", "begin: run: expected an integer"),
        ("second_hello", "a second hello"),
        ("unknown_run", "the worker does not have attempt 1 of run 99"),
        ("long", "longer than 1048576 bytes"),
        ("no_hello", "expected a message"),
        ("own", "is a handler of duly itself"),
        ("silent", "it was silent for 900ms"),
        ("mute", "it was silent for 900ms"),
        ("gone", "ended: exit code 7: no such module"),
        ("missing", "cannot start"),
        ("quiet", "it had not said hello 4s after its start"),
    ] {
        let reason = reason.replace('\\', "");
        let given_up = format!("the worker \"{name}\" was given up after 2 starts in a row: ");
        let line = log.lines().find(|line| line.contains(&given_up));
        assert!(line.is_some_and(|line| line.contains(&reason)), "{name}: {reason}\n{log}");
    }
    assert!(sent(&db, "second_hello").contains(r#"{"type":"error","error":"a second hello"}"#));
    // What it had only been handed returned to the queue.
    let known = client.history("known", 1).unwrap().remove(0);
    assert_eq!((known.status, known.attempt - known.forgiven), (RunStatus::Queued, 0));
    sidecar.terminate();
}

#[test]
fn handlers_belong_to_one_worker_and_copies_share_them() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    let arms = r#"*'"type":"run"'*) succeed ",\"result\":$$";;"#;
    let first = worker(&db, "first", &handles("h", 1), arms);
    let mut sidecar = start(&db, &[&first], &[]);
    wait_for_status(&client, "a", RunStatus::Succeeded);
    sidecar.terminate();
    let second = worker(&db, "second", &handles("h", 1), arms);
    let mut sidecar = start(&db, &[&first, &second], &[]);
    let refused = "\"h\" is a handler of the worker";
    eventually("one of them is refused", || sidecar.log().contains(refused));
    client.add(task("b", "h")).unwrap();
    wait_for_status(&client, "b", RunStatus::Succeeded);
    sidecar.terminate();
}

#[test]
fn a_worker_that_ends_after_each_run_is_started_again() {
    let (db, client) = TestDb::with_client();
    for n in 0..5 {
        client.add(task(&format!("t{n}"), "h")).unwrap();
    }
    let option = worker(&db, "w", &handles("h", 1), r#"*'"type":"run"'*) succeed; exit 1;;"#);
    let times = format!("{TIMES},starts=3");
    let options = ["--worker", &option, "--worker-times", &times, "--until-idle"];
    assert_eq!(Sidecar::spawn(&db, &options).end().code(), Some(0));
    assert_eq!(db.count(RunStatus::Succeeded), 5);
    assert!(pids(&db, "w").len() >= 5);
}

#[test]
fn until_idle_waits_for_the_first_hello_and_not_for_a_worker_that_is_given_up() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    client.add(task("b", "other")).unwrap();
    let slow = worker(&db, "slow", &handles("h", 1), r#"*'"type":"run"'*) succeed;;"#);
    let path = db.home().join("slow.sh");
    let script = std::fs::read_to_string(&path).unwrap();
    let later = "\nsleep 0.5\nsay '{\"type\":\"pong\"}'\nhello\n";
    std::fs::write(&path, script.replace("\nhello\n", later)).unwrap();
    let times = format!("{TIMES},starts=2");
    let options = ["--worker", &slow, "--worker", "bad=false", "--worker-times", &times, "--until-idle"];
    let mut sidecar = Sidecar::spawn(&db, &options);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(db.states(), ["a|succeeded|1", "b|queued|0"]);
}

#[test]
fn at_the_first_signal_workers_finish_their_runs_and_end() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    let option = worker(
        &db,
        "w",
        &handles("h", 2),
        r#"*'"type":"run"'*) begin; kept=$id;; *'"type":"stop"'*) id=$kept; succeed; exit 0;;"#,
    );
    let mut sidecar = start(&db, &[&option], &[]);
    wait_for_line(&db, "w", "\"type\":\"run\"");
    sidecar.terminate();
    assert_eq!(db.states(), ["a|succeeded|1"]);
    assert!(sent(&db, "w").contains(r#"{"type":"stop","deadline":""#));
    assert!(sidecar.log().contains("worker w: ended: exit code 0"), "{}", sidecar.log());
    assert!(!is_alive(pids(&db, "w")[0]));
}

#[test]
fn a_shutdown_interrupts_runs_and_the_next_start_runs_them() {
    let (db, client) = TestDb::with_client();
    client.add_all(["asked", "deaf", "later"].map(|name| retry_soon(overdue(name).handler("h"), 2))).unwrap();
    let arms = r#"*'"type":"run"'*) begin;; *'"type":"stop"'*) ;;
  *cancel*'"run":1,'*) fail 'shut down';; *cancel*'"run":3,'*) fail 'not now' ',"retry":"1h"';;"#;
    let option = worker(&db, "w", &handles("h", 3), arms);
    let mut sidecar = start(&db, &[&option], &["--drain", "50ms"]);
    eventually("all are running", || {
        db.count(RunStatus::Running) == 3 && sent(&db, "w").matches("\"task\"").count() == 3
    });
    sidecar.signal("TERM");
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert!(!is_alive(pids(&db, "w")[0]));
    // An interruption waits the backoff of the task, whatever the worker chose.
    let rows = "SELECT status, forgiven, interrupted, run_at > finished_at + 60000 FROM task_runs ORDER BY id";
    assert_eq!(db.rows(rows), ["failed|1|1|0"; 3]);
    let option = worker(&db, "w", &handles("h", 2), r#"*'"type":"run"'*) succeed;;"#);
    assert_eq!(until_idle(&db, &[&option]), Some(0));
    assert_eq!(db.states(), ["asked|succeeded|2", "deaf|succeeded|2", "later|succeeded|2"]);
    db.assert_sound();
}

/// Exit code 3, unless the worker says that the run is over.
#[test]
fn a_run_that_a_worker_fails_after_a_shutdown_has_asked_it_was_cut_short() {
    for (retry, code) in [("", 3), (r#","retry":"1h""#, 3), (r#","retry":false"#, 0)] {
        let (db, client) = TestDb::with_client();
        client.add(retry_soon(overdue("asked").handler("h"), 2)).unwrap();
        let arms = format!(
            r#"*'"type":"run"'*) begin;; *'"type":"stop"'*) ;;
  *cancel*) fail 'shut down' '{retry}';;"#
        );
        let option = worker(&db, "w", &handles("h", 1), &arms);
        let mut sidecar = start(&db, &[&option], &["--drain", "0s"]);
        eventually("it runs", || db.count(RunStatus::Running) == 1 && sent(&db, "w").contains("\"task\""));
        sidecar.signal("TERM");
        assert_eq!(sidecar.end().code(), Some(code), "{retry}: {}", sidecar.log());
    }
}

#[test]
fn a_run_of_a_worker_is_dead_when_shutdowns_have_interrupted_it_too_often() {
    let (db, client) = TestDb::with_client();
    client.add(retry_soon(overdue("asked").handler("h"), 2)).unwrap();
    let option = worker(
        &db,
        "w",
        &handles("h", 1),
        r#"*'"type":"run"'*) begin;; *'"type":"stop"'*) ;;
  *cancel*) fail 'shut down';;"#,
    );
    let mut seen = Vec::new();
    for attempt in 1..=5 {
        let mut sidecar = start(&db, &[&option], &["--drain", "0s"]);
        eventually("it runs", || sent(&db, "w").matches("\"task\"").count() == attempt);
        sidecar.signal("TERM");
        sidecar.end();
        seen.extend(db.rows("SELECT status, attempt, forgiven, interrupted FROM task_runs"));
    }
    assert_eq!(seen, ["failed|1|1|1", "failed|2|2|2", "failed|3|3|3", "failed|4|3|4", "dead|5|3|5"]);
    db.assert_sound();
}

#[test]
fn the_next_scheduler_ends_a_worker_that_ignores_the_death_of_the_first() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    let deaf = worker(&db, "deaf", &handles("h", 1), r#"*'"type":"run"'*) begin; exec sleep 1000;;"#);
    let mut first = start(&db, &[&deaf], &[]);
    wait_for_line(&db, "deaf", "\"type\":\"run\"");
    eventually("it sleeps", || ProcessStat::read(pids(&db, "deaf")[0]).is_some_and(|stat| stat.name == "sleep"));
    first.kill_with_guard();
    let orphan = pids(&db, "deaf")[0];
    assert!(is_alive(orphan));
    let next = worker(&db, "next", &handles("h", 1), r#"*'"type":"run"'*) succeed;;"#);
    let mut second = start(&db, &[&next], &["--lease", "1s"]);
    let run = wait_for_status(&client, "a", RunStatus::Succeeded);
    assert_eq!(run.attempt, 2);
    assert!(!is_alive(orphan));
    assert!(second.log().contains("ending the orphan worker of a dead scheduler"), "{}", second.log());
    second.terminate();
}

/// The links to the file of the worker are gone, and so is the proof that they are. The row of a run that lasts names its process.
#[test]
fn a_run_waits_for_a_worker_whose_files_were_removed() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    let deaf = worker(&db, "deaf", &handles("h", 1), r#"*'"type":"run"'*) begin; exec sleep 1000;;"#);
    let mut first = start(&db, &[&deaf], &["--lease", "1s"]);
    wait_for_line(&db, "deaf", "\"type\":\"run\"");
    eventually("its process is recorded", || db.ask("SELECT count(*) FROM task_runs WHERE process IS NOT NULL") == "1");
    for file in db.lock_files().iter().filter(|name| name.starts_with("worker-") || name.starts_with("run-")) {
        std::fs::remove_file(db.lock_folder().join(file)).unwrap();
    }
    first.kill_with_guard();
    let orphan = pids(&db, "deaf")[0];
    let next = worker(&db, "next", &handles("h", 1), r#"*'"type":"run"'*) succeed;;"#);
    let mut second = start(&db, &[&next], &["--lease", "1s"]);
    eventually("the orphan is reported", || {
        client.check(&Limits::default()).unwrap().iter().any(|problem: &Problem| problem.kind == ProblemKind::Orphan)
    });
    assert!(is_alive(orphan), "it is not certain that it belongs to this database");
    signal("KILL", &orphan.to_string());
    assert_eq!(wait_for_status(&client, "a", RunStatus::Succeeded).attempt, 2);
    second.terminate();
}

#[test]
fn a_worker_whose_file_was_removed_is_started_again() {
    let (db, client) = TestDb::with_client();
    let option = worker(&db, "w", &handles("h", 1), r#"*'"type":"run"'*) succeed;;"#);
    let mut sidecar = start(&db, &[&option], &[]);
    client.add(task("a", "h")).unwrap();
    wait_for_status(&client, "a", RunStatus::Succeeded);
    let files = db.lock_files();
    let file = files.iter().find(|name| name.starts_with("worker-")).unwrap();
    std::fs::remove_file(db.lock_folder().join(file)).unwrap();
    client.add(task("b", "h")).unwrap();
    assert_eq!(wait_for_status(&client, "b", RunStatus::Succeeded).forgiven, 1, "it was not handed over");
    assert_eq!(pids(&db, "w").len(), 2);
    sidecar.terminate();
}

#[test]
fn no_worker_outlives_a_scheduler_that_stops_by_itself() {
    let (db, client) = TestDb::with_client();
    client.add(task("a", "h")).unwrap();
    let option = worker(&db, "w", &handles("h", 1), r#"*'"type":"run"'*) begin;;"#);
    let mut sidecar = start(&db, &[&option], &[]);
    wait_for_line(&db, "w", "\"type\":\"run\"");
    drop(client);
    std::fs::remove_file(db.file()).unwrap();
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    assert!(!is_alive(pids(&db, "w")[0]));
}

#[test]
fn options_that_cannot_be_used_are_refused() {
    let (db, _) = TestDb::with_client();
    for (options, expected) in [
        (&["--worker", "mail"][..], "--worker: expected NAME=COMMAND"),
        (&["--worker", "mail='x"], "mail: expected a closing '"),
        (&["--worker", "a=true", "--worker", "a=true"], "two workers have the name \"a\""),
    ] {
        let mut command: Command = db.duly(&["run"]);
        let output = command.args(options).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{options:?}: {error}");
    }
    let _: Client = db.client();
}

#[test]
fn the_end_of_the_process_of_a_worker_is_its_end_whatever_a_child_says() {
    let (db, client) = TestDb::with_client();
    // The child writes once its parent is a zombie, which has no more command line.
    let arms = r#"*'"type":"run"'*) begin
    (while [ -n "$(tr -d '\0' </proc/$$/cmdline)" ]; do sleep 0.01; done; sleep 0.2; succeed '') & exit 9;;"#;
    let option = worker(&db, "forks", &handles("forks", 1), arms);
    client.add(task("forks", "forks").max_attempts(1)).unwrap();
    let mut sidecar = start(&db, &[&option], &[]);
    let run = wait_for_status(&client, "forks", RunStatus::Dead);
    assert!(run.error.as_deref().is_some_and(|error| error.contains("exit code 9")), "{run:?}");
    sidecar.terminate();
}

#[test]
fn a_run_that_a_worker_never_begins_is_given_back() {
    let (db, client) = TestDb::with_client();
    // The first process loses it: as if a child had read it.
    let arms = format!(
        r#"*'"type":"run"'*) if [ -e {0}/lost ]; then begin; succeed ''; else touch {0}/lost; fi;;"#,
        db.home().display()
    );
    let option = worker(&db, "loses", &handles("loses", 1), &arms);
    client.add(task("loses", "loses").max_attempts(1)).unwrap();
    let times = "hello=20s,backoff=10ms,term=300ms,begin=300ms";
    let mut sidecar = Sidecar::start(&db, &["--worker", &option, "--worker-times", times]);
    let run = wait_for_status(&client, "loses", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.forgiven), (2, 1));
    assert!(
        sidecar.log().contains("was ended: it had not begun run 1 300ms after it was given to it"),
        "{}",
        sidecar.log()
    );
    sidecar.terminate();
}

#[test]
fn a_worker_may_begin_its_runs_one_after_another() {
    let (db, client) = TestDb::with_client();
    // Each takes longer than the limit from the message of a run to its begin.
    let arms = r#"*'"type":"run"'*) begin; sleep 0.5; succeed '';;"#;
    let option = worker(&db, "slow", &handles("slow", 3), arms);
    for name in ["first", "second", "third"] {
        client.add(task(name, "slow").max_attempts(1)).unwrap();
    }
    let times = "hello=20s,backoff=10ms,term=300ms,begin=300ms";
    let mut sidecar = Sidecar::start(&db, &["--worker", &option, "--worker-times", times]);
    for name in ["first", "second", "third"] {
        wait_for_status(&client, name, RunStatus::Succeeded);
    }
    assert_eq!(db.ask("SELECT max(attempt) FROM task_runs"), "1");
    assert_eq!(pids(&db, "slow").len(), 1, "{}", sidecar.log());
    sidecar.terminate();
}
