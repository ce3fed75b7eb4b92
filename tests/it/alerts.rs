//! Alarms: each condition is reported once when it begins and once when it is over, to a real HTTP server and to a real command,
//! through kills, failing and hanging receivers, and a full disk.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{Client, NewTask, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, at, eventually, problems, seconds, wait_for_status};
use crate::sidecar::{Sidecar, group_size, shell};
use crate::sql::insert;

/// What a server answers.
#[derive(Clone, Copy)]
enum Answer {
    Status(u16),
    /// Nothing; the connection stays open.
    Hang,
    /// A header that never ends, byte by byte.
    Drip,
}

/// An HTTP server on the loopback interface.
struct Hook {
    url: String,
    bodies: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<Vec<Answer>>>,
}

impl Hook {
    /// Answers with these in turn; the last is repeated.
    fn start(answers: &[Answer]) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/hook?secret=7", listener.local_addr().expect("an address"));
        let hook = Hook { url, bodies: Arc::default(), answer: Arc::new(Mutex::new(answers.to_vec())) };
        let (bodies, answer) = (hook.bodies.clone(), hook.answer.clone());
        std::thread::spawn(move || {
            let mut hanging = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let Some(body) = read_request(&stream) else { continue };
                bodies.lock().unwrap().push(body);
                let next = {
                    let mut answers = answer.lock().unwrap();
                    if answers.len() > 1 { answers.remove(0) } else { answers[0] }
                };
                match next {
                    Answer::Status(status) => {
                        let _ = (&stream).write_all(
                            format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").as_bytes(),
                        );
                    }
                    Answer::Hang => hanging.push(stream),
                    Answer::Drip => drop(std::thread::spawn(move || {
                        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nx: ");
                        while (&stream).write_all(b"y").is_ok() {
                            // The pace of a server that drips: the limit of the whole answer must end it, not that of one read.
                            #[allow(clippy::disallowed_methods)]
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    })),
                }
            }
        });
        hook
    }

    fn requests(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }

    /// Returns `state count` of the requests about a kind.
    fn of(&self, kind: &str) -> Vec<String> {
        states(&self.requests(), kind)
    }

    fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap() = vec![answer];
    }
}

/// Returns the body of a request.
fn read_request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(String::from_utf8(body).expect("text"))
}

fn states(messages: &[String], kind: &str) -> Vec<String> {
    let parsed = messages.iter().map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
    parsed
        .filter(|message| message["kind"] == kind)
        .map(|message| format!("{} {}", message["state"].as_str().expect("a state"), message["count"]))
        .collect()
}

/// A command that appends each alarm to a file.
struct Script {
    line: String,
    file: PathBuf,
}

impl Script {
    fn new(db: &TestDb) -> Script {
        let file = db.home().join("alarms");
        Script { line: format!("sh -c '{{ cat; echo; }} >>\"$0\"' {}", file.display()), file }
    }

    fn messages(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // The command of a sidecar that was killed before it wrote the message leaves an empty line.
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    fn of(&self, kind: &str) -> Vec<String> {
        states(&self.messages(), kind)
    }
}

/// Options that find and deliver alarms at once.
const FAST: [&str; 8] =
    ["--alarm-look", "50ms", "--alarm-gather", "0s", "--alarm-interval", "0s", "--alarm-retry", "10ms"];

fn fast<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&FAST[..], more].concat()
}

/// A manual task that dies at its first attempt, until [`repair`].
fn fragile(client: &Client, db: &TestDb, name: &str) {
    let argv = ["test".to_owned(), "-e".to_owned(), db.home().join("repaired").display().to_string()];
    let task = NewTask::manual(name).handler("command").payload(json!({ "argv": argv })).at_most_once();
    client.add(task).expect("a task");
}

fn repair(db: &TestDb) {
    std::fs::write(db.home().join("repaired"), "").expect("a file");
}

/// Triggers a task and waits until the run has this status.
fn run(client: &Client, task: &str, status: RunStatus) {
    client.trigger(task).expect("a run");
    wait_for_status(client, task, status);
}

#[test]
fn a_dead_run_is_reported_once_and_its_end_once_on_each_channel() {
    let (db, client) = TestDb::with_client();
    let (hook, script) = (Hook::start(&[Answer::Status(204)]), Script::new(&db));
    fragile(&client, &db, "digest");
    client.add(NewTask::manual("healthy").handler("command").payload(json!({ "argv": ["true"] }))).expect("a task");
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url, "--alert-command", &script.line]));
    run(&client, "healthy", RunStatus::Succeeded);
    run(&client, "digest", RunStatus::Dead);
    eventually("both have received it", || hook.requests().len() == 1 && script.messages().len() == 1);
    for text in [&hook.requests()[0], &script.messages()[0]] {
        let message: Value = serde_json::from_str(text).expect("JSON");
        let run = client.history("digest", 1).expect("a history")[0].id;
        assert_eq!(message["version"], 1);
        assert_eq!(
            (&message["kind"], &message["state"], &message["count"]),
            (&json!("dead"), &json!("began"), &json!(1))
        );
        assert_eq!((&message["first"]["task"], &message["first"]["run"]), (&json!("digest"), &json!(run)));
        assert_eq!(message["first"]["found"], format!("run {run} of digest is dead: exit code 1"));
        assert_eq!(message["first"], message["items"][0]);
        assert!(message["database"].as_str().is_some_and(|path| path.ends_with(".db")), "{message}");
        assert!(
            ["id", "since", "text", "host"]
                .iter()
                .all(|key| message[key].as_str().is_some_and(|text| !text.is_empty()))
        );
    }
    repair(&db);
    run(&client, "digest", RunStatus::Succeeded);
    let both = ["began 1", "ended 1"];
    eventually("both know that it is over", || hook.of("dead") == both && script.of("dead") == both);
    run(&client, "digest", RunStatus::Succeeded);
    sidecar.terminate();
    assert_eq!((hook.requests().len(), script.messages().len()), (2, 2), "{}", sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarms"), "0", "what is over and delivered is not kept");
    assert!(!sidecar.log().contains("secret"), "{}", sidecar.log());
    db.assert_sound();
}

/// A run that dies and a success of its task between two looks.
#[test]
fn a_death_between_two_looks_is_reported() {
    let (db, client) = TestDb::with_client();
    let script = Script::new(&db);
    fragile(&client, &db, "digest");
    let slow = ["--alarm-look", "1h", "--alert-command", &script.line];
    let mut sidecar = Sidecar::start(&db, &slow);
    eventually("the first look is over", || db.ask("SELECT count(*) FROM scheduler_alarm_channels") != "0");
    run(&client, "digest", RunStatus::Dead);
    repair(&db);
    run(&client, "digest", RunStatus::Succeeded);
    assert!(problems(&client).is_empty());
    // The last look finds it, and the last attempt delivers it.
    sidecar.terminate();
    assert_eq!(script.of("dead"), ["began 1", "ended 1"], "{}", sidecar.log());
}

#[test]
fn until_idle_delivers_before_it_ends() {
    let (db, client) = TestDb::with_client();
    let script = Script::new(&db);
    fragile(&client, &db, "digest");
    client.trigger("digest").expect("a run");
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle", "--alert-command", &script.line]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(script.of("dead"), ["began 1"], "{}", sidecar.log());
}

#[test]
fn overdue_work_and_invalid_tasks_are_reported_while_they_last() {
    let (db, client) = TestDb::with_client();
    let hook = Hook::start(&[Answer::Status(200)]);
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url]));
    client.add(NewTask::once("orphaned", at("2020-01-01T00:00:00Z")).handler("missing")).expect("a task");
    db.execute(&insert("broken", "cron", "every day"));
    let began = ["began 1"];
    // A look before the first turn sees the due task, a later one the run that no scheduler starts.
    let overdue = |last: &str| hook.of("overdue").last().is_some_and(|state| state == last);
    eventually("both are reported", || overdue("began 1") && hook.of("invalid") == began);
    client.remove("broken").expect("a removal");
    client.remove("orphaned").expect("a removal");
    let both = ["began 1", "ended 1"];
    eventually("both are over", || overdue("ended 1") && hook.of("invalid") == both);
    sidecar.terminate();
    let all = hook.of("overdue");
    assert_eq!(all.len(), 2 * all.iter().filter(|state| *state == "began 1").count(), "{all:?}");
}

/// Other users of the machine see the arguments of a process.
#[test]
fn urls_are_read_from_variables_that_no_command_gets() {
    let (db, client) = TestDb::with_client();
    let (hook, pinged) = (Hook::start(&[Answer::Status(200)]), Hook::start(&[Answer::Status(200)]));
    let variables = [("DULY_ALERT_URL", &*hook.url), ("DULY_PING", &*pinged.url)];
    let line = format!("env >{}/env; exit 1", db.home().display());
    let mut sidecar = Sidecar::spawn_with(&db, &fast(&[]), &variables);
    eventually("it pings while there is no problem", || !pinged.requests().is_empty());
    client.add(shell("digest", &line).at_most_once()).expect("a task");
    eventually("the dead run is reported", || hook.of("dead") == ["began 1"]);
    sidecar.terminate();
    let seen = std::fs::read_to_string(db.home().join("env")).expect("the environment of the command");
    assert!(
        seen.contains("DULY_TASK=digest") && !seen.contains("DULY_ALERT_URL") && !seen.contains("DULY_PING"),
        "{seen}"
    );
}

#[test]
fn a_lost_scheduler_is_reported_until_another_one_starts() {
    let (db, client) = TestDb::with_client();
    let hook = Hook::start(&[Answer::Status(200)]);
    let mut watcher = Sidecar::start(&db, &fast(&["--alert-url", &hook.url, "--lease", "3s"]));
    let mut victim = Sidecar::start(&db, &[]);
    let mut polite = Sidecar::start(&db, &[]);
    polite.terminate();
    victim.kill();
    eventually("the loss is reported", || hook.of("scheduler_lost") == ["began 1"]);
    let message: Value = serde_json::from_str(&hook.requests()[0]).expect("JSON");
    let found = message["first"]["found"].as_str().expect("a text");
    assert!(found.starts_with(&format!("the scheduler with pid {} on ", victim.pid())), "{found}");
    let mut heir = Sidecar::start(&db, &[]);
    eventually("it is over", || hook.of("scheduler_lost") == ["began 1", "ended 1"]);
    heir.terminate();
    watcher.terminate();
    assert_eq!(hook.requests().len(), 2);
    drop(client);
}

#[test]
fn a_failing_receiver_gets_an_alarm_once_it_accepts_it() {
    let (db, client) = TestDb::with_client();
    let refuse = Answer::Status(500);
    let hook = Hook::start(&[refuse, refuse, Answer::Status(302), Answer::Status(200)]);
    fragile(&client, &db, "digest");
    // Libraries log the whole URL at these levels.
    let pinged = Hook::start(&[Answer::Status(200)]);
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url, "--ping", &pinged.url, "-vv"]));
    run(&client, "digest", RunStatus::Dead);
    eventually("it is delivered", || sidecar.log().contains("is delivered"));
    sidecar.terminate();
    let requests = hook.requests();
    assert_eq!(requests.len(), 4, "{requests:?}");
    assert!(requests.iter().all(|one| *one == requests[0]), "each attempt is the same message: {requests:?}");
    let log = sidecar.log();
    assert_eq!(log.matches("the answer was 500").count(), 1, "a failure that repeats is logged once: {log}");
    assert_eq!(log.matches("the answer was 302").count(), 1, "{log}");
    assert!(!log.contains("secret"), "{log}");
}

/// Killed while alarms are gathered, and while they are being delivered.
#[test]
fn a_kill_between_failure_and_delivery_loses_nothing() {
    let (db, client) = TestDb::with_client();
    let (hook, script) = (Hook::start(&[Answer::Hang]), Script::new(&db));
    fragile(&client, &db, "digest");
    let receivers = ["--alert-url", hook.url.as_str(), "--alert-command", &script.line];
    let mut first = Sidecar::start(&db, &[&["--alarm-look", "50ms", "--alarm-gather", "1h"][..], &receivers].concat());
    run(&client, "digest", RunStatus::Dead);
    eventually("both rows are written", || db.ask("SELECT count(*) FROM scheduler_alarms") == "2");
    first.kill();
    assert_eq!((hook.requests().len(), script.messages().len()), (0, 0));

    // The command gets it; the server accepts it and does not answer.
    let mut second = Sidecar::start(&db, &fast(&receivers));
    eventually("the command has it", || script.of("dead") == ["began 1"] && hook.of("dead") == ["began 1"]);
    eventually("that is recorded", || {
        db.ask("SELECT delivered FROM scheduler_alarms WHERE channel = 'command' AND kind = 'dead'") == "1"
    });
    second.kill();
    hook.answer(Answer::Status(200));
    // The killed process still holds its claim.
    let mut third = Sidecar::start(&db, &fast(&[&receivers[..], &["--alarm-lease", "1s"]].concat()));
    eventually("the server has answered", || {
        db.ask("SELECT delivered FROM scheduler_alarms WHERE channel = 'url' AND kind = 'dead'") == "1"
    });
    third.terminate();
    assert_eq!(script.of("dead"), ["began 1"], "once");
    let dead: Vec<Value> = hook.requests().iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
    let dead: Vec<&Value> = dead.iter().filter(|message| message["kind"] == "dead").collect();
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert_eq!(dead[0]["id"], dead[1]["id"], "a receiver recognizes the repetition");
}

/// Its command ignores SIGTERM, and would sleep for much longer than a scheduler may take to end. It gets its input when the guard has been
/// told which process it is.
#[test]
fn a_running_alarm_command_does_not_outlive_its_scheduler() {
    let line = "sh -c 'trap \"\" TERM; cat >/dev/null; echo $$ >>\"$0\"; exec sleep 1000'";
    for signal in ["TERM", "KILL"] {
        let (db, client) = TestDb::with_client();
        fragile(&client, &db, "digest");
        let pids = db.home().join("pids");
        let mut sidecar = Sidecar::start(&db, &fast(&["--alert-command", &format!("{line} {}", pids.display())]));
        run(&client, "digest", RunStatus::Dead);
        let group = || std::fs::read_to_string(&pids).ok().and_then(|text| Some(text.lines().next()?.to_owned()));
        eventually("the command runs", || group().is_some_and(|group| group_size(&group) > 0));
        sidecar.signal(signal);
        sidecar.end();
        let group = group().expect("a group");
        // After a kill, by the guard.
        eventually(&format!("{signal} ends the command"), || group_size(&group) == 0);
    }
}

#[test]
fn two_schedulers_deliver_each_alarm_once() {
    let (db, client) = TestDb::with_client();
    let (hook, script) = (Hook::start(&[Answer::Status(200)]), Script::new(&db));
    let options = fast(&["--alert-url", &hook.url, "--alert-command", &script.line]);
    let mut both = [Sidecar::start(&db, &options), Sidecar::start(&db, &options)];
    for number in 1..=10 {
        let name = format!("digest-{number}");
        fragile(&client, &db, &name);
        run(&client, &name, RunStatus::Dead);
    }
    let total = |states: Vec<String>| {
        states
            .iter()
            .map(|state| state.strip_prefix("began ").expect("a begin").parse::<u32>().expect("a count"))
            .sum::<u32>()
    };
    eventually("all are delivered", || {
        db.ask("SELECT count(*) FROM scheduler_alarms WHERE delivered < count") == "0"
            && total(hook.of("dead")) >= 10
            && total(script.of("dead")) >= 10
    });
    both.iter_mut().for_each(Sidecar::terminate);
    assert_eq!((total(hook.of("dead")), total(script.of("dead"))), (10, 10));
}

#[test]
fn a_receiver_that_hangs_delays_neither_runs_nor_the_other_channel() {
    let (db, client) = TestDb::with_client();
    let hook = Hook::start(&[Answer::Status(200)]);
    fragile(&client, &db, "digest");
    client.add(NewTask::manual("healthy").handler("command").payload(json!({ "argv": ["true"] }))).expect("a task");
    let pids = db.home().join("pids");
    let hanging = format!("sh -c 'trap \"\" TERM; echo $$ >>\"$0\"; sleep 1000 & wait; sleep 1000' {}", pids.display());
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url, "--alert-command", &hanging]));
    run(&client, "digest", RunStatus::Dead);
    eventually("the command hangs", || pids.exists());
    run(&client, "healthy", RunStatus::Succeeded);
    eventually("the server has it", || hook.of("dead") == ["began 1"]);
    sidecar.terminate();
    let group = std::fs::read_to_string(&pids).expect("a pid");
    let leader = group.lines().next().expect("a pid");
    eventually("no process of the command is left", || group_size(leader) == 0);

    // The other way round; and the alarm waits for the command.
    let (stuck, script) = (Hook::start(&[Answer::Hang]), Script::new(&db));
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &stuck.url, "--alert-command", &script.line]));
    eventually("the command has the old one", || script.of("dead") == ["began 1"]);
    run(&client, "digest", RunStatus::Dead);
    eventually("the server hangs", || stuck.of("dead") == ["began 1"]);
    eventually("the command has the new one", || script.of("dead") == ["began 1", "began 1"]);
    run(&client, "healthy", RunStatus::Succeeded);
    sidecar.terminate();
}

/// A receiver that answers a byte now and then is not an answer: each byte would otherwise prolong the wait.
#[test]
fn a_receiver_that_drips_is_ended_and_retried() {
    let (db, client) = TestDb::with_client();
    let hook = Hook::start(&[Answer::Drip, Answer::Status(200)]);
    fragile(&client, &db, "digest");
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url, "--alarm-request", "300ms"]));
    run(&client, "digest", RunStatus::Dead);
    eventually("it is delivered", || sidecar.log().contains("is delivered"));
    sidecar.terminate();
    assert_eq!(hook.of("dead"), ["began 1", "began 1"]);
    assert!(sidecar.log().contains("no answer in time"), "{}", sidecar.log());
}

/// A reason that another program wrote may be longer than the variables of a process.
#[test]
fn a_command_receives_an_alarm_about_a_long_text() {
    let (db, client) = TestDb::with_client();
    let script = Script::new(&db);
    client.add(NewTask::manual("digest").handler("digest")).expect("a task");
    db.execute("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = hex(zeroblob(200000))");
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-command", &script.line]));
    eventually("it is delivered", || script.of("invalid") == ["began 1"] || sidecar.log().contains("cannot be"));
    sidecar.terminate();
    assert_eq!(script.of("invalid"), ["began 1"], "{:.2000}", sidecar.log());
}

#[test]
fn the_ping_stops_while_check_finds_a_problem() {
    let (db, client) = TestDb::with_client();
    let hook = Hook::start(&[Answer::Status(200)]);
    let mut sidecar = Sidecar::start(&db, &["--ping", &hook.url, "--ping-interval", "20ms"]);
    let pings = || hook.requests().len();
    eventually("it pings", || pings() >= 2);
    db.execute(&insert("broken", "cron", "every day"));
    eventually("check finds it", || problems(&client).iter().any(|line| line.starts_with("invalid")));
    // A ping that was judged before may still arrive.
    let mut quiet = (pings(), std::time::Instant::now());
    eventually("the pings end", || {
        if pings() != quiet.0 {
            quiet = (pings(), std::time::Instant::now());
        }
        quiet.1.elapsed() > Duration::from_millis(500)
    });
    let before = pings();
    client.remove("broken").expect("a removal");
    eventually("it pings again", || pings() > before);
    hook.answer(Answer::Status(503));
    eventually("the failure is logged", || sidecar.log().contains("the answer was 503"));
    hook.answer(Answer::Status(200));
    eventually("the end of the failure is logged", || sidecar.log().contains("answered again"));
    sidecar.terminate();
    assert_eq!(sidecar.log().matches("the answer was 503").count(), 1, "{}", sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarm_channels"), "0", "a ping writes nothing");
}

#[test]
fn unusable_options_are_refused_and_no_secret_is_shown() {
    let db = TestDb::new();
    for (options, expected) in [
        (["--alert-command", ""], "--alert-command: expected a program and its arguments"),
        (["--alert-command", "mail 'root"], "--alert-command: expected a closing '"),
        (["--alert-url", "hooks.example.org/s3cret"], "--alert-url: expected a URL such as"),
        (["--ping", "ftp://anna:s3cret@example.org/"], "--ping: expected a URL such as"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
        let output = command.arg("--db").arg(db.file()).args(["run", "--create"]).args(options).output().expect("duly");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
    }
    assert!(!db.file().exists());
}

/// On a full disk the alarm cannot be stored in the database.
#[test]
fn a_full_disk_is_reported_once_and_its_end_once() {
    use crate::disk::tools::{SmallDisk, may_mount};

    if !may_mount("alerts::a_full_disk_is_reported_once_and_its_end_once", "the other alarms are tried, in other tests")
    {
        return;
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    let client = db.client();
    let hook = Hook::start(&[Answer::Status(200)]);
    let tick = json!({ "argv": ["true"] });
    client.add(NewTask::interval("tick", seconds(1)).handler("command").payload(tick)).expect("a task");
    let mut sidecar = Sidecar::start(&db, &fast(&["--alert-url", &hook.url]));
    eventually("it ticks", || db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'") != "0");
    disk.fill(&db);
    eventually("it is reported", || hook.of("degraded") == ["began 1"]);
    eventually("check reports it too", || problems(&client).iter().any(|line| line.starts_with("degraded")));
    disk.clear();
    eventually("it is over", || hook.of("degraded") == ["began 1", "ended 1"]);
    client.pause("tick").expect("a pause");
    sidecar.terminate();
    assert_eq!(hook.of("degraded").len(), 2, "{:?}\n{}", hook.requests(), sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_alarms"), "0");
}
