//! Servers and connections that go silent: a proxy, a program behind it, and a server whose processes are stopped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duly::{Client, NewTask, RunStatus};
use tempfile::TempDir;

use crate::fixtures::{end, eventually, exited};
use crate::postgres::{database, server};
use crate::sidecar::{kill, signal};

pub(crate) const DULY: &str = env!("CARGO_BIN_EXE_duly");

/// An answer may take three seconds, and the start of a session, too.
pub(crate) const SHORT: &str = "statement_timeout=2000&tcp_user_timeout=1000&connect_timeout=3";

/// A proxy whose connections go silent: nothing is passed on any more, and nothing is closed.
pub(crate) struct Proxy {
    pub(crate) port: u16,
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
    /// A connection over which a client sends one of these goes silent before.
    hushed: Mutex<Vec<&'static str>>,
    /// How many have.
    hushes: AtomicUsize,
}

impl Proxy {
    /// `None` if the server of the tests has no socket.
    pub(crate) fn start() -> Option<Self> {
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
                let (there, back, is_hushed) = (shared.clone(), shared.clone(), Arc::new(AtomicBool::new(false)));
                let seen = is_hushed.clone();
                std::thread::spawn(move || there.pass((number, true), from_client, to_server, &seen));
                std::thread::spawn(move || back.pass((number, false), server, client, &is_hushed));
            }
        });
        Some(Proxy { port, state })
    }

    /// The address of a database that this proxy is before.
    pub(crate) fn address(&self, direct: &str) -> String {
        let (user, rest) = direct.split_once('@').unwrap();
        let (_, rest) = rest.split_once('/').unwrap();
        format!("{user}@127.0.0.1:{}/{rest}&{SHORT}", self.port)
    }

    /// Has all connections go silent that exist. New ones pass.
    pub(crate) fn silence(&self) {
        self.state.silent.store(self.state.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Has those that come be silent from the start.
    pub(crate) fn close(&self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
    }

    /// Has those that come pass again.
    pub(crate) fn open(&self) {
        self.state.is_closed.store(false, Ordering::SeqCst);
    }

    /// Has each connection go silent over which a client is about to send one of these texts.
    pub(crate) fn hush(&self, texts: &[&'static str]) {
        *self.state.hushed.lock().unwrap() = texts.to_vec();
    }

    /// Waits until a connection has gone silent by [`Proxy::hush`].
    pub(crate) fn has_hushed(&self, what: &str) {
        eventually(what, || self.state.hushes.load(Ordering::SeqCst) > 0);
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

impl State {
    fn pass(
        &self,
        (number, is_client): (usize, bool),
        mut from: impl Read,
        mut to: impl Write,
        is_hushed: &AtomicBool,
    ) {
        let mut bytes = [0; 65536];
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            let has = |text: &&str| bytes[..count].windows(text.len()).any(|part| part == text.as_bytes());
            if is_client && self.hushed.lock().unwrap().iter().any(has) {
                is_hushed.store(true, Ordering::SeqCst);
                self.hushes.fetch_add(1, Ordering::SeqCst);
            }
            while number < self.silent.load(Ordering::SeqCst) || is_hushed.load(Ordering::SeqCst) {
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
pub(crate) struct Program {
    pub(crate) process: std::process::Child,
    pub(crate) home: TempDir,
}

impl Program {
    pub(crate) fn spawn(database: &str, arguments: &[&str]) -> Self {
        Self::spawn_by(Command::new(DULY), database, arguments)
    }

    /// As [`Program::spawn`], by a program that calls it.
    pub(crate) fn spawn_by(mut program: Command, database: &str, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        let process = program
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

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    pub(crate) fn has_logged(&self, text: &str) {
        eventually(&format!("it has logged {text:?}"), || self.log().contains(text));
    }

    /// Waits for its end, which must come within this time. Returns its exit code.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let begin = Instant::now();
        let status = exited(&mut self.process, "the program");
        assert!(begin.elapsed() < limit, "{:?}: {}", begin.elapsed(), self.log());
        status.code()
    }

    pub(crate) fn terminate(&self) {
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
pub(crate) fn database_behind_proxy() -> Option<(String, Proxy)> {
    let direct = database()?;
    let proxy = Proxy::start()?;
    drop(Client::open(&direct).unwrap());
    Some((direct, proxy))
}

/// Adds a task that runs now, and waits until it has run.
pub(crate) fn runs(client: &Client, name: &str) {
    client
        .add(NewTask::once(name, client.now()).handler("command").payload(serde_json::json!({ "argv": ["true"] })))
        .unwrap();
    eventually(&format!("{name} has run"), || {
        client.newest_runs(50).unwrap().iter().any(|run| run.task == name && run.status == RunStatus::Succeeded)
    });
}

/// A server whose processes are stopped, until this is dropped.
pub(crate) struct Frozen(Vec<String>);

impl Frozen {
    pub(crate) fn of(folder: &Path) -> Self {
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
        // A panic during a panic would abort all tests: a process may have ended meanwhile.
        for process in self.0.iter().rev() {
            let _ = kill(&["-s", "CONT", "--", process]).status();
        }
    }
}
