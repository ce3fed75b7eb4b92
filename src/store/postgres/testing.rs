//! Servers for the tests of the session: each test that stops or changes a server starts one of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use tempfile::TempDir;

/// Where Debian puts the programs of the server; elsewhere they are in the path.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    versions.sort();
    let in_path =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    versions.into_iter().rev().chain(in_path).find(|folder| folder.join("initdb").exists())
}

/// Returns whether a tool is missing. Then the test passes with a word, except in CI.
pub(crate) fn skipped(missing: bool, tool: &str) -> bool {
    assert!(!missing || std::env::var("DULY_CI").as_deref() != Ok("1"), "no {tool}");
    if missing {
        eprintln!("skipped: no {tool}");
    }
    missing
}

/// A command that runs as a user whom `initdb` accepts.
fn unprivileged(program: &Path) -> Command {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

pub(crate) fn done(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// The server of the tests that change nothing for others.
pub(crate) fn shared() -> Option<&'static TestServer> {
    static SHARED: LazyLock<Option<TestServer>> = LazyLock::new(|| TestServer::start(""));
    SHARED.as_ref()
}

/// The data of a new server, of which each server gets a copy: `initdb` takes a second of a processor. A shell makes them, and removes
/// them at the end of its input, which is that of this process.
fn new_data(programs: &Path) -> &'static Path {
    static MADE: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (data, _) = MADE.get_or_init(|| {
        let script = r#"
            folder=$(mktemp -d /tmp/duly-pg-data.XXXXXX) || exit 1
            "$0/initdb" --no-sync -A trust -U postgres -E UTF8 --locale=C -D "$folder/data" </dev/null >"$folder/log" 2>&1 &&
                echo "$folder/data" || tail -n 5 "$folder/log"
            read -r line
            rm -rf "$folder""#;
        let mut shell = unprivileged(Path::new("sh"));
        shell.arg("-c").arg(script).arg(programs).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut answer = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut answer).unwrap();
        let data = PathBuf::from(answer.trim_end());
        assert!(data.is_absolute(), "initdb: {answer}");
        (data, shell)
    });
    data
}

/// A server in a temporary folder.
pub(crate) struct TestServer {
    home: TempDir,
    programs: PathBuf,
    pub(crate) port: u16,
    guard: Option<Child>,
}

impl TestServer {
    /// Starts a server with these settings. `None` where PostgreSQL is not installed.
    pub(crate) fn start(settings: &str) -> Option<Self> {
        let programs = programs();
        if skipped(programs.is_none(), "PostgreSQL") {
            return None;
        }
        let programs = programs?;
        let home = tempfile::tempdir().unwrap();
        done(&Command::new("chmod").arg("777").arg(home.path()).output().unwrap());
        let mut copy = unprivileged(Path::new("cp"));
        done(&copy.arg("-Rp").arg(new_data(&programs)).arg(home.path().join("data")).output().unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = TestServer { home, programs, port, guard: None };
        let folder = server.home.path().display();
        server.configure(&format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{folder}'\nfsync = off\n{settings}"
        ));
        server.up();
        Some(server)
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn configure(&self, settings: &str) {
        let file = self.home.path().join("data/postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(file).unwrap();
        writeln!(file, "{settings}").unwrap();
    }

    /// Starts the server. It ends with this process: a shell waits for the end of its input, and removes the folder.
    pub(crate) fn up(&mut self) {
        let script = r#"
            PATH="$0:$PATH"
            pg_ctl -w -s -D "$1/data" -l "$1/log" start </dev/null >/dev/null 2>&1 && echo up || { echo down; exit; }
            read -r mode
            pg_ctl -w -s -D "$1/data" -m "${mode:-immediate}" stop </dev/null >/dev/null 2>&1
            [ -n "$mode" ] || rm -rf "$1"/*"#;
        let mut command = unprivileged(Path::new("sh"));
        command
            .arg("-c")
            .arg(script)
            .arg(&self.programs)
            .arg(self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut guard = command.spawn().unwrap();
        let mut answer = String::new();
        BufReader::new(guard.stdout.take().unwrap()).read_line(&mut answer).unwrap();
        let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        assert_eq!(answer, "up\n", "the server does not start: {log}");
        self.guard = Some(guard);
    }

    /// Stops the server: `fast` ends its sessions, `immediate` is a crash.
    pub(crate) fn down(&mut self, mode: &str) {
        let Some(mut guard) = self.guard.take() else { return };
        writeln!(guard.stdin.take().unwrap(), "{mode}").unwrap();
        crate::waits::exited(&mut guard, "the server");
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    /// A session of another program.
    pub(crate) fn other(&self) -> postgres::Client {
        postgres::Client::connect(&self.url(), postgres::NoTls).unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.down("immediate");
    }
}

/// What a proxy does with the next `COMMIT` of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtCommit {
    Pass,
    /// Closes the connections without passing it on.
    CutBefore,
    /// Passes it on, and closes the connections instead of passing the answer.
    CutAfter,
    /// Passes it on, and closes the connections at once.
    CutAtOnce,
}

/// A proxy before a server, which cuts a connection at a commit, once.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    at_commit: Arc<Mutex<AtCommit>>,
}

impl Proxy {
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy =
            Proxy { port: listener.local_addr().unwrap().port(), at_commit: Arc::new(Mutex::new(AtCommit::Pass)) };
        let at_commit = proxy.at_commit.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Without a server the client is refused.
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let at_commit = at_commit.clone();
                std::thread::spawn(move || forward(client, server, &at_commit));
            }
        });
        proxy
    }

    pub(crate) fn at_next_commit(&self, at_commit: AtCommit) {
        *self.at_commit.lock().unwrap() = at_commit;
    }
}

fn forward(mut client: TcpStream, mut server: TcpStream, at_commit: &Mutex<AtCommit>) {
    let silent = Arc::new(AtomicBool::new(false));
    let (mut from, mut to, mute) = (server.try_clone().unwrap(), client.try_clone().unwrap(), silent.clone());
    let answers = std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if mute.load(Ordering::SeqCst) || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = client.read(&mut buffer) {
        let commits = buffer[..length].windows(7).any(|bytes| bytes == b"COMMIT\0");
        let then =
            if commits { std::mem::replace(&mut *at_commit.lock().unwrap(), AtCommit::Pass) } else { AtCommit::Pass };
        silent.store(then == AtCommit::CutAfter, Ordering::SeqCst);
        if then == AtCommit::CutBefore || server.write_all(&buffer[..length]).is_err() || then == AtCommit::CutAtOnce {
            break;
        }
        if then == AtCommit::CutAfter {
            let _ = answers.join();
            return;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// A pgbouncer before a server, in transaction mode unless said otherwise.
pub(crate) struct Pooler {
    home: TempDir,
    process: Child,
    pub(crate) port: u16,
}

impl Pooler {
    /// `None` where pgbouncer is not installed.
    pub(crate) fn start(server: &TestServer) -> Option<Self> {
        Self::start_in(server, "transaction")
    }

    /// As [`Pooler::start`], in another mode.
    pub(crate) fn start_in(server: &TestServer, mode: &str) -> Option<Self> {
        let program =
            ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(Path::new).into_iter().find(|path| path.exists())?;
        let home = tempfile::tempdir().unwrap();
        done(&Command::new("chmod").arg("777").arg(home.path()).output().unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (file, users) = (home.path().join("ini"), home.path().join("users"));
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = 2\n",
            server.port,
            users.display()
        );
        std::fs::write(&file, settings).unwrap();
        let mut command = unprivileged(program);
        let mut process = command.arg(&file).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // It is ready when it says so.
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut told = Vec::new();
        let ready = lines.map_while(Result::ok).any(|line| {
            told.push(line);
            told.last().is_some_and(|line| line.contains("process up"))
        });
        assert!(ready, "pgbouncer does not start: {told:?}");
        Some(Pooler { home, process, port })
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        crate::waits::end(&mut self.process);
        let _ = self.home.path();
    }
}
