//! Child mode, `duly run --worker -`: the application that starts duly serves its handlers. Its lock is the evidence that it lives: while it
//! holds it, no other scheduler starts the runs that it has, whether duly was killed, drained or has lost its pipe.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use duly::{Client, NewTask, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{Process, TestDb, end, eventually, exited, overdue, receive_until, retry_soon, wait_for_status};
use crate::sidecar::{Sidecar, signal};
use crate::workers_run::{handles, is_alive, pids, worker};

/// Short times, so that a test does not wait for a limit.
const TIMES: &str = "hello=20s,cancel=300ms,ping=200ms,silence=600ms";

/// This process as an application, and duly as its child.
struct Application {
    duly: Child,
    /// Its end is the end of the messages.
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Closing it releases the lock, as the end of a process does.
    lock: Option<File>,
    log: PathBuf,
}

/// When an application begins to read what duly writes.
#[derive(PartialEq, Eq)]
enum Reads {
    Now,
    Later,
}

impl Application {
    /// Starts duly, and says hello with one handler, `work`.
    fn start(db: &TestDb, options: &[&str]) -> Self {
        let mut application = Self::spawn(db, Reads::Now, options);
        application.say(json!({"type": "hello", "protocol": 1, "handlers": ["work"], "concurrency": 4}));
        application.next("welcome");
        application
    }

    fn spawn(db: &TestDb, reads: Reads, options: &[&str]) -> Self {
        let path = db.home().join(format!("lock-{}", fastrand::u64(..)));
        let lock = File::create_new(&path).expect("a file");
        lock.lock().expect("its lock");
        let log = db.home().join(format!("log-{}", fastrand::u64(..)));
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"))
            .arg("--db")
            .arg(db.file())
            .args(["run", "--create", "--poll", "50ms", "--worker", "-"])
            .args(if options.contains(&"--worker-times") { &[][..] } else { &["--worker-times", TIMES] })
            .args(options)
            .env("DULY_WORKER_FILE", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create_new(&log).expect("a log file"))
            .spawn()
            .expect("duly");
        let input = duly.stdin.take();
        let mut application = Application { input, duly, messages: channel().1, lock: Some(lock), log };
        if reads == Reads::Now {
            application.listen();
        }
        application
    }

    /// Reads what duly writes, from now on.
    fn listen(&mut self) {
        let (sender, messages) = channel();
        let lines = BufReader::new(self.duly.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        std::thread::spawn(move || {
            for line in lines {
                let message: Value = serde_json::from_str(&line).expect("a message");
                if message["type"] != "ping" && sender.send(message).is_err() {
                    return;
                }
            }
        });
        self.messages = messages;
    }

    fn say(&mut self, message: Value) {
        let input = self.input.as_mut().expect("a pipe");
        writeln!(input, "{message}").expect("duly reads");
    }

    /// Waits for a message of a type.
    fn next(&self, kind: &str) -> Value {
        receive_until(&self.messages, kind, |message| message["type"] == kind)
    }

    /// Waits for a run, and begins it.
    fn begin(&mut self) -> Value {
        let run = self.next("run");
        self.answer(&run, "begin", json!({}));
        run
    }

    fn answer(&mut self, run: &Value, kind: &str, mut rest: Value) {
        rest["type"] = kind.into();
        rest["run"] = run["run"].clone();
        rest["attempt"] = run["attempt"].clone();
        self.say(rest);
    }

    fn kill(&mut self) {
        self.duly.kill().expect("it is alive");
        self.end();
    }

    fn end(&mut self) -> ExitStatus {
        exited(&mut self.duly, "duly")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        end(&mut self.duly);
        if std::thread::panicking() {
            eprintln!("--- the log of duly\n{}", self.log());
        }
    }
}

fn task(name: &str) -> NewTask {
    retry_soon(overdue(name).handler("work"), 3)
}

/// A scheduler with another worker for the handler, which succeeds at once.
fn another(db: &TestDb) -> Sidecar {
    let say = r#"*'"type":"run"'*) begin; succeed ',"result":"elsewhere"';;"#;
    Sidecar::start(db, &["--worker", &worker(db, "other", &handles("work", 1), say)])
}

fn attempts(client: &Client, task: &str) -> (RunStatus, u32, Option<String>) {
    let run = client.history(task, 1).expect("a history").pop().expect("a run");
    (run.status, run.attempt, run.result)
}

#[test]
fn handlers_of_the_application_are_served_and_the_end_of_its_input_is_the_end_of_duly() {
    let (db, client) = TestDb::with_client();
    client.add(task("t").payload(7)).unwrap();
    let mut application = Application::start(&db, &[]);
    let run = application.begin();
    assert_eq!((&run["task"], &run["payload"]), (&json!("t"), &json!(7)));
    application.answer(&run, "done", json!({"result": "served"}));
    let run = wait_for_status(&client, "t", RunStatus::Succeeded);
    assert_eq!(run.result.as_deref(), Some("\"served\""));
    application.input = None;
    assert_eq!(application.end().code(), Some(0), "{}", application.log());
    assert!(application.log().contains("application: it has closed its pipe"), "{}", application.log());
}

#[test]
fn an_application_that_has_ended_leaves_failed_attempts() {
    let (db, client) = TestDb::with_client();
    client.add(task("t")).unwrap();
    let mut application = Application::start(&db, &[]);
    application.begin();
    application.lock = None;
    application.input = None;
    assert_eq!(application.end().code(), Some(0), "{}", application.log());
    let run = client.history("t", 1).unwrap().pop().unwrap();
    assert_eq!((run.status, run.attempt, run.forgiven), (RunStatus::Failed, 1, 0));
    assert_eq!(run.error.as_deref(), Some("the application ended"));
    let mut other = another(&db);
    wait_for_status(&client, "t", RunStatus::Succeeded);
    other.terminate();
}

#[test]
fn no_other_scheduler_starts_the_runs_of_an_application_that_outlives_duly() {
    let (db, client) = TestDb::with_client();
    client.add(task("t")).unwrap();
    let mut application = Application::start(&db, &[]);
    application.begin();
    application.kill();
    let mut other = another(&db);
    // It has seen that the owner is dead, and serves other runs of the handler.
    eventually("the owner is known to be dead", || other.log().contains("the owner of attempt 1 died"));
    for name in ["second", "third"] {
        client.add(task(name)).unwrap();
        wait_for_status(&client, name, RunStatus::Succeeded);
    }
    assert_eq!(attempts(&client, "t"), (RunStatus::Running, 1, None), "{}", other.log());
    // Its handlers have returned.
    application.lock = None;
    wait_for_status(&client, "t", RunStatus::Succeeded);
    assert_eq!(attempts(&client, "t"), (RunStatus::Succeeded, 2, Some("\"elsewhere\"".to_owned())));
    other.terminate();
}

#[test]
fn a_duly_that_loses_its_pipe_or_its_patience_leaves_the_runs_to_the_application() {
    for how in ["pipe", "signal"] {
        let (db, client) = TestDb::with_client();
        client.add(task("t")).unwrap();
        let mut application = Application::start(&db, &["--drain", "100ms"]);
        application.begin();
        match how {
            "pipe" => application.input = None,
            _ => signal("TERM", &application.duly.id().to_string()),
        }
        if how == "signal" {
            application.next("stop");
            assert_eq!(application.next("cancel")["reason"], "shutdown");
        }
        assert_eq!(application.end().code(), Some(3), "{how}: {}", application.log());
        assert_eq!(attempts(&client, "t"), (RunStatus::Running, 1, None), "{how}: {}", application.log());
        let log = application.log();
        assert!(
            log.contains("the application is asked to end its runs") && !log.contains("retried later"),
            "{how}: {log}"
        );
        assert!(
            log.contains("1 run left to it: they start nowhere else") && !log.contains("could not be recorded"),
            "{how}: {log}"
        );
        let mut other = another(&db);
        client.add(task("second")).unwrap();
        wait_for_status(&client, "second", RunStatus::Succeeded);
        assert_eq!(attempts(&client, "t").0, RunStatus::Running, "{how}");
        application.lock = None;
        wait_for_status(&client, "t", RunStatus::Succeeded);
        other.terminate();
    }
}

#[test]
fn an_application_that_neglects_its_duties_is_a_problem_and_is_not_ended() {
    let (db, client) = TestDb::with_client();
    client.add(task("t")).unwrap();
    let mut application = Application::start(&db, &[]);
    let run = application.begin();
    client.cancel_all("t").unwrap();
    assert_eq!(application.next("cancel")["reason"], "asked");
    let check = || String::from_utf8(db.duly(&["check"]).output().expect("check").stdout).expect("text");
    eventually("check reports it", || {
        check().contains("has not ended after its cancel") || check().contains("silent for")
    });
    application.answer(&run, "failed", json!({"error": "at last"}));
    wait_for_status(&client, "t", RunStatus::Cancelled);
    application.say(json!({"type": "begin", "run": 99, "attempt": 1}));
    let error = application.next("error");
    assert!(error["error"].as_str().is_some_and(|text| text.contains("does not have attempt 1 of run 99")), "{error}");
    application.input = None;
    assert_eq!(application.end().code(), Some(1), "{}", application.log());
}

#[test]
fn an_application_without_a_lock_is_refused() {
    let db = TestDb::new();
    let duly = |options: &[&str], file: Option<&str>| {
        let mut command = db.duly(&[&["run", "--create", "--worker", "-"], options].concat());
        command.stdin(Stdio::null()).env_remove("DULY_WORKER_FILE");
        if let Some(file) = file {
            command.env("DULY_WORKER_FILE", file);
        }
        let found = command.output().expect("duly");
        (found.status.code(), String::from_utf8(found.stderr).expect("text"))
    };
    let (code, log) = duly(&[], None);
    assert!(code == Some(2) && log.contains("DULY_WORKER_FILE does not name the file"), "{log}");
    let (code, log) = duly(&["--forward-output"], Some("x"));
    assert!(code == Some(2) && log.contains("standard output carries messages"), "{log}");
    let file = db.home().join("free");
    File::create_new(&file).unwrap();
    let (code, log) = duly(&[], file.to_str());
    assert!(code == Some(1) && log.contains("no process has locked"), "{log}");
    assert!(pids(&db, "none").is_empty());
}

#[test]
fn a_run_that_an_application_has_read_and_not_begun_is_taken_back_when_it_answers_so() {
    let (db, client) = TestDb::with_client();
    client.add(task("t").at_most_once()).unwrap();
    let mut application = Application::spawn(&db, Reads::Now, &["--worker-times", "hello=20s,begin=300ms"]);
    application.say(json!({"type": "hello", "protocol": 1, "handlers": ["work"], "concurrency": 1}));
    let late = application.next("run");
    client.add(task("second").at_most_once()).unwrap();
    let cancel = application.next("cancel");
    assert_eq!((&cancel["run"], &cancel["attempt"], &cancel["reason"]), (&late["run"], &json!(1), &json!("asked")));
    let check = || String::from_utf8(db.duly(&["check"]).output().expect("check").stdout).expect("text");
    let problem = "run 1 of the application has not begun 300ms after it was given to it; it is waited for";
    eventually("check reports it", || check().contains(problem));
    // It was blocked, and begins the run after all: its slot was kept, and nothing else was started.
    application.answer(&late, "begin", json!({}));
    application.answer(&late, "done", json!({"result": "late"}));
    wait_for_status(&client, "t", RunStatus::Succeeded);
    assert_eq!(attempts(&client, "t"), (RunStatus::Succeeded, 1, Some("\"late\"".to_owned())));
    let lost = application.next("run");
    assert_eq!((&lost["task"], &lost["attempt"]), (&json!("second"), &json!(1)));
    application.next("cancel");
    application.answer(&lost, "failed", json!({"error": "cancelled before it began"}));
    let again = application.begin();
    assert_eq!((&again["run"], &again["attempt"]), (&lost["run"], &json!(2)));
    application.answer(&again, "done", json!({"result": "again"}));
    let run = wait_for_status(&client, "second", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.forgiven, run.result.as_deref()), (2, 1, Some("\"again\"")));
    assert!(application.log().contains(problem), "{}", application.log());
    application.input = None;
    assert_eq!(application.end().code(), Some(0), "{}", application.log());
}

#[test]
fn what_the_application_wrote_before_its_end_counts_although_the_database_is_busy() {
    let (db, client) = TestDb::with_client();
    for name in ["a", "b"] {
        client.add(task(name).at_most_once()).unwrap();
    }
    let mut application = Application::start(&db, &[]);
    let runs = [application.begin(), application.begin()];
    application.answer(&runs[0], "effect_begin", json!({"key": "k"}));
    application.next("effect");
    let other = db.plain();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    application.answer(&runs[0], "effect_done", json!({"key": "k", "value": 1}));
    runs.iter().for_each(|run| application.answer(run, "done", json!({})));
    application.lock = None;
    application.input = None;
    // The database is waited for in vain, for longer than a pipe is.
    assert_eq!(application.next("effect")["state"], "refused");
    other.execute_batch("ROLLBACK").expect("the lock is free");
    assert_eq!(application.end().code(), Some(0), "{}", application.log());
    for name in ["a", "b"] {
        assert_eq!(attempts(&client, name), (RunStatus::Succeeded, 1, None), "{}", application.log());
    }
}

#[test]
fn a_run_that_a_busy_application_has_not_read_stays_with_it() {
    let (db, client) = TestDb::with_client();
    client.add(task("t").max_attempts(1)).unwrap();
    let mut application =
        Application::spawn(&db, Reads::Later, &["--worker-times", "hello=20s,begin=300ms,ping=100ms,silence=2s"]);
    application.say(json!({"type": "hello", "protocol": 1, "handlers": ["work"], "concurrency": 4}));
    eventually("it is silent for long", || application.log().contains("the application has been silent for"));
    assert_eq!(attempts(&client, "t"), (RunStatus::Running, 1, None), "{}", application.log());
    application.listen();
    let run = application.begin();
    application.answer(&run, "done", json!({"result": "first"}));
    wait_for_status(&client, "t", RunStatus::Succeeded);
    assert_eq!(attempts(&client, "t"), (RunStatus::Succeeded, 1, Some("\"first\"".to_owned())));
    // It was not asked for its return.
    signal("TERM", &application.duly.id().to_string());
    let next = receive_until(&application.messages, "stop", |message| {
        message["type"] == "stop" || message["type"] == "cancel"
    });
    assert_eq!(next["type"], "stop");
}

/// An application that has forked a process, which holds its pipe and its lock. The process waits for a line of this test, writes the end of
/// run 1, and waits for the end of its input.
const FORKS: &str = r#"
cd "$1" && mkfifo to from && exec 5<&0 9<>lock && "$2" duly-lock-input <&9 || exit 1
DULY_WORKER_FILE=$PWD/lock "$2" --db "$3" run --poll 50ms --drain 2s --worker - <to >from 2>log 5<&- 9>&- &
echo $! >pid
exec 3>to 4<from
await() { while read -r line <&4; do case $line in *"\"type\":\"$1\""*) return;; esac; done; }
echo '{"type":"hello","protocol":1,"handlers":["work"],"concurrency":1}' >&3
[ "$4" = early ] || await welcome
[ "$4" != busy ] || { await run; echo '{"type":"begin","run":1,"attempt":1}' >&3; }
(trap '' PIPE; read -r go <&5; echo '{"type":"done","run":1,"attempt":1}' >&3; read -r go <&5) 2>/dev/null &
touch ready
wait
"#;

#[test]
fn the_end_of_the_application_is_the_end_of_duly_although_its_fork_holds_pipe_and_lock() {
    for what in ["idle", "busy"] {
        let (db, client) = TestDb::with_client();
        if what == "busy" {
            client.add(task("t")).unwrap();
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", FORKS, "sh"]).arg(db.home()).arg(env!("CARGO_BIN_EXE_duly")).arg(db.file()).arg(what);
        let mut application = Process::spawn(shell.stdin(Stdio::piped()));
        let mut fork = application.0.stdin.take().expect("a pipe");
        eventually("it has forked", || db.home().join("ready").exists());
        let read = |name: &str| std::fs::read_to_string(db.home().join(name)).expect("a file");
        let duly: u32 = read("pid").trim().parse().expect("a pid");
        application.kill();
        eventually("duly has seen its end", || read("log").contains("application: it has ended"));
        writeln!(fork, "go").expect("the fork lives");
        eventually("duly has ended", || !is_alive(duly));
        if what == "idle" {
            continue;
        }
        // duly ignores what the forked process has written, and nothing starts while it holds the lock.
        let mut other = another(&db);
        client.add(task("second")).unwrap();
        wait_for_status(&client, "second", RunStatus::Succeeded);
        assert_eq!(attempts(&client, "t"), (RunStatus::Running, 1, None), "{}", read("log"));
        drop(fork);
        wait_for_status(&client, "t", RunStatus::Succeeded);
        assert_eq!(attempts(&client, "t"), (RunStatus::Succeeded, 2, Some("\"elsewhere\"".to_owned())));
        other.terminate();
    }
}

#[test]
fn an_application_that_ends_before_duly_serves_it_is_the_end_of_duly() {
    let (db, client) = TestDb::with_client();
    drop(client);
    // duly waits for the database.
    let other = db.plain();
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE other(x)").expect("the lock");
    let mut shell = Command::new("sh");
    shell.args(["-c", FORKS, "sh"]).arg(db.home()).arg(env!("CARGO_BIN_EXE_duly")).arg(db.file()).arg("early");
    let mut application = Process::spawn(shell.stdin(Stdio::piped()));
    let _fork = application.0.stdin.take().expect("a pipe");
    eventually("it has forked", || db.home().join("ready").exists());
    let read = |name: &str| std::fs::read_to_string(db.home().join(name)).expect("a file");
    let duly: u32 = read("pid").trim().parse().expect("a pid");
    let opened = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let files = || std::fs::read_dir(format!("/proc/{duly}/fd")).expect("its files").filter_map(opened);
    eventually("duly opens the database", || files().any(|file| file == db.file()));
    application.kill();
    drop(other);
    eventually("duly has ended", || !is_alive(duly));
    assert!(read("log").contains("application: it has ended"), "{}", read("log"));
}
