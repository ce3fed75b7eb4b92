//! Each answer of the server has a deadline: a connection that goes silent is made again, a server that never answers is named, and SIGTERM
//! ends the program meanwhile.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duly::{BoxError, Client, Context, EventFilter, Limits, NewTask, RunStatus, Scheduler};
use tempfile::TempDir;

use crate::fixtures::{end, eventually, exited, patience, retry_soon, seconds};
use crate::postgres::own_server::OwnServer;
use crate::postgres::server::address;
use crate::postgres::{database, server};
use crate::sidecar::{at_once, shell, signal};

const DULY: &str = env!("CARGO_BIN_EXE_duly");

/// An answer may take three seconds, and the start of a session, too.
const SHORT: &str = "statement_timeout=2000&tcp_user_timeout=1000&connect_timeout=3";

/// A proxy whose connections go silent: nothing is passed on any more, and nothing is closed.
struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections with a number below this one are silent.
    silent: AtomicUsize,
    accepted: AtomicUsize,
    /// Whether those that come are silent from the start.
    is_closed: AtomicBool,
    /// What keeps silent connections open.
    kept: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// `None` if the server of the tests has no socket.
    fn start() -> Option<Self> {
        let folder = server()?.split_once('@')?.1.split_once('/')?.0.replace("%2F", "/");
        let socket = Path::new(&folder).join(".s.PGSQL.5432");
        if !socket.exists() {
            return None;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
                if shared.is_closed.load(Ordering::SeqCst) {
                    shared.kept.lock().unwrap().push(client);
                    continue;
                }
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back) = (shared.clone(), shared.clone());
                std::thread::spawn(move || there.pass(number, from_client, to_server));
                std::thread::spawn(move || back.pass(number, server, client));
            }
        });
        Some(Proxy { port, state })
    }

    /// The address of a database that this proxy is before.
    fn address(&self, direct: &str) -> String {
        let (user, rest) = direct.split_once('@').unwrap();
        let (_, rest) = rest.split_once('/').unwrap();
        format!("{user}@127.0.0.1:{}/{rest}&{SHORT}", self.port)
    }

    /// Has all connections go silent that exist. New ones pass.
    fn silence(&self) {
        self.state.silent.store(self.state.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Has those that come be silent from the start.
    fn close(&self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
    }

    fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

impl State {
    fn pass(&self, number: usize, mut from: impl Read, mut to: impl Write) {
        let mut bytes = [0; 65536];
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            while number < self.silent.load(Ordering::SeqCst) {
                // For ever: both ends stay open.
                std::thread::park();
            }
            if count == 0 || to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    }
}

/// A process of the program, whose log is in a file.
struct Program {
    process: std::process::Child,
    home: TempDir,
}

impl Program {
    fn spawn(database: &str, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        let process = Command::new(DULY)
            .args(["--db", database])
            .args(arguments)
            .env("DULY_STATE_DIR", home.path().join("state"))
            .env_remove("DULY_LOG")
            .current_dir(home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Program { process, home }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    fn has_logged(&self, text: &str) {
        eventually(&format!("it has logged {text:?}"), || self.log().contains(text));
    }

    /// Waits for its end, which must come within this time. Returns its exit code.
    fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let begin = Instant::now();
        let status = exited(&mut self.process, "the program");
        assert!(begin.elapsed() < limit, "{:?}: {}", begin.elapsed(), self.log());
        status.code()
    }

    fn terminate(&self) {
        signal("TERM", &self.process.id().to_string());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end(&mut self.process);
        if std::thread::panicking() {
            eprintln!("--- the log\n{}", self.log());
        }
    }
}

/// A schema, and a proxy before its server.
fn database_behind_proxy() -> Option<(String, Proxy)> {
    let direct = database()?;
    let proxy = Proxy::start()?;
    drop(Client::open(&direct).unwrap());
    Some((direct, proxy))
}

/// Adds a task that runs now, and waits until it has run.
fn runs(client: &Client, name: &str) {
    client
        .add(NewTask::once(name, client.now()).handler("command").payload(serde_json::json!({ "argv": ["true"] })))
        .unwrap();
    eventually(&format!("{name} has run"), || {
        client.newest_runs(50).unwrap().iter().any(|run| run.task == name && run.status == RunStatus::Succeeded)
    });
}

#[test]
fn a_connection_that_goes_silent_is_made_again_and_work_goes_on() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    let mut program = Program::spawn(&proxy.address(&direct), &["run", "--drain", "1s"]);
    program.has_logged("scheduler started");
    // The time limit for the start of the sessions is over.
    let begin = Instant::now();
    for number in 0.. {
        runs(&client, &format!("before-{number}"));
        if begin.elapsed() > seconds(4) {
            break;
        }
    }
    proxy.silence();
    let begin = Instant::now();
    runs(&client, "after");
    assert!(begin.elapsed() < seconds(3 + 10), "{:?}", begin.elapsed());
    program.has_logged("again");
    let log = program.log();
    for text in ["lost the connection to ", "connected to "] {
        assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    }
    assert!(log.contains("no answer within 3s: look whether the server"), "{log}");
    // The proof of life is there again, too: the scheduler is alive for others.
    eventually("it is alive", || client.check(&Limits::default()).unwrap().is_empty());
    program.terminate();
    assert_eq!(program.ends_within(seconds(1 + 10)), Some(0), "{}", program.log());
    let events = client.events(&EventFilter::newest(50)).unwrap();
    assert!(!events.iter().any(|event| event.kind.contains("recovered")), "{events:?}");
}

#[test]
fn a_server_that_never_answers_is_named_by_every_command() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    proxy.close();
    let silent = proxy.address(&direct);
    let file = tempfile::tempdir().unwrap();
    let target = file.path().join("new.db").display().to_string();
    let commands: [&[&str]; 6] = [
        &["list"],
        &["check"],
        &["add", "task", "--now", "--", "true"],
        &["run"],
        &["doctor"],
        &["migrate", "--from", &silent, "--to", &target],
    ];
    at_once(commands, |words| {
        let mut program = Program::spawn(&silent, words);
        let code = program.ends_within(seconds(3 + 10));
        let log = program.log();
        assert_eq!(code, Some(1), "{words:?}: {log}");
        let says =
            format!("127.0.0.1:{}: the server accepts connections and has not begun a session within 3s", proxy.port);
        assert!(log.contains(&says) && log.contains("(connect_timeout)"), "{words:?}: {log}");
    });
}

#[test]
fn a_host_that_never_answers_is_left_for_the_next_one() {
    let Some((direct, good)) = database_behind_proxy() else { return };
    let silent = Proxy::start().unwrap();
    silent.close();
    let both = good.address(&direct).replacen("127.0.0.1:", &format!("127.0.0.1:{},127.0.0.1:", silent.port), 1);
    let begin = Instant::now();
    assert!(Client::open(&both).unwrap().tasks().unwrap().is_empty());
    assert!((seconds(3)..seconds(3 + 10)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let mut program = Program::spawn(&both, &["list"]);
    assert_eq!(program.ends_within(seconds(3 + 10)), Some(0), "{}", program.log());
}

#[test]
fn sigterm_ends_a_program_that_waits_for_its_server_while_it_starts() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    proxy.close();
    let patient = proxy.address(&direct).replace("connect_timeout=3", "connect_timeout=300");
    let mut program = Program::spawn(&patient, &["run"]);
    eventually("it connects", || proxy.accepted() > 0);
    program.terminate();
    assert_eq!(program.ends_within(seconds(10)), Some(1));
    assert!(program.log().contains("asked to stop while the server does not answer"), "{}", program.log());
}

#[test]
fn sigterm_ends_a_program_whose_server_is_frozen() {
    let Some(server) = OwnServer::start() else { return };
    let database = address(&server.folder) + "?schema=frozen";
    let client = Client::open(&database).unwrap();
    let mut program = Program::spawn(&database, &["run", "--drain", "1s", "--poll", "50ms"]);
    program.has_logged("scheduler started");
    runs(&client, "before");
    let home = program.home.path().display().to_string();
    client.add(shell("long", &format!("trap '' TERM; echo up >{home}/up; sleep 300")).at_most_once()).unwrap();
    eventually("a command runs that ignores SIGTERM", || program.home.path().join("up").exists());
    let frozen = Frozen::of(&server.folder);
    program.terminate();
    let code = program.ends_within(seconds(1 + 10));
    assert_eq!(code, Some(3), "{}", program.log());
    drop(frozen);
    // What was not recorded is recovered: the next one goes on.
    let mut next = Program::spawn(&database, &["run", "--drain", "1s", "--poll", "50ms"]);
    next.has_logged("scheduler started");
    runs(&client, "after");
    next.terminate();
    assert_eq!(next.ends_within(seconds(1 + 10)), Some(0), "{}", next.log());
}

#[test]
fn a_command_says_that_a_server_is_frozen_over_its_socket_too() {
    let Some(server) = OwnServer::start() else { return };
    let database = format!("{}?schema=frozen&{SHORT}", address(&server.folder));
    let client = Client::open(&database).unwrap();
    let _frozen = Frozen::of(&server.folder);
    let begin = Instant::now();
    let error = client.tasks().unwrap_err().to_string();
    // An answer that does not come, and a new session that does not begin.
    assert!(begin.elapsed() < seconds(3 + 3 + 10), "{:?}", begin.elapsed());
    assert!(error.contains("has not begun a session within 3s"), "{error}");
}

#[test]
fn a_handler_whose_connection_goes_silent_is_told_and_its_run_is_retried() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    // The application's limit for its own statements.
    let address = proxy.address(&direct) + "&options=-c%20statement_timeout%3D2000";
    let proxy = Arc::new(proxy);
    let home = tempfile::tempdir().unwrap();
    let (silences, tries) = (proxy.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .poll(Duration::from_millis(50))
        .handler("work", move |run: &Context| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            run.finish_in_postgres(|tx| -> Result<(), BoxError> {
                tx.batch_execute("SELECT 1")?;
                if first {
                    silences.silence();
                }
                Ok(tx.batch_execute("SELECT 2")?)
            })
        })
        .start()
        .unwrap();
    let client = Client::open(&direct).unwrap();
    client.add(retry_soon(NewTask::once("retried", client.now()).handler("work"), 3)).unwrap();
    eventually("it has run", || {
        client.newest_runs(1).unwrap().first().is_some_and(|run| run.status == RunStatus::Succeeded)
    });
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    scheduler.shutdown(patience()).unwrap();
}

#[test]
fn nothing_is_asked_past_the_deadline() {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with("tests.rs") || name == "testing.rs" || !name.ends_with(".rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            let ways = ["NoTls", "postgres::Client", "tokio_postgres::", "config.connect("];
            let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.into_iter().any(|line| ways.iter().any(|way| line.contains(way))) {
                found.push(relative(&path));
            }
        }
    }
    // `connect_plainly` is for a process that may open no TCP connection to itself.
    assert_eq!(found, ["store/postgres/client.rs"], "connections are made in store/postgres/client.rs only");
}

fn relative(path: &Path) -> String {
    path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap().display().to_string()
}

/// A server whose processes are stopped, until this is dropped.
struct Frozen(Vec<String>);

impl Frozen {
    fn of(folder: &Path) -> Self {
        // Below /proc, since the data folder is another user's.
        let of_server = |process: &PathBuf| {
            let read = |name: &str| std::fs::read(process.join(name)).unwrap_or_default();
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ");
            let parent = text(read("stat"))
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned));
            (text(read("cmdline")), parent.unwrap_or_default())
        };
        let all = || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
            entries.filter(|path| path.join("cmdline").exists()).collect::<Vec<_>>()
        };
        let id = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let data = format!("-D {}/data", folder.display());
        let main = all().into_iter().find(|path| {
            let (line, _) = of_server(path);
            line.contains(&data) && line.contains("postgres") && !line.contains("guard")
        });
        let main = id(&main.expect("the server"));
        signal("STOP", &main);
        let mut frozen = Frozen(vec![main.clone()]);
        for path in all().into_iter().filter(|path| of_server(path).1 == main) {
            signal("STOP", &id(&path));
            frozen.0.push(id(&path));
        }
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in self.0.iter().rev() {
            signal("CONT", process);
        }
    }
}
