//! Servers for the tests of the session: each test that stops or changes a server starts one of its own.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tempfile::TempDir;

/// Where Debian puts the programs of the server; elsewhere they are in the path.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    let in_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    versions.into_iter().rev().chain(in_path).find(|folder| folder.join("initdb").exists())
}

/// Returns whether a tool is missing. Then the test passes with a word, except in CI.
pub(crate) fn skipped(missing: bool, tool: &str) -> bool {
    assert!(!missing || std::env::var_os("DULY_CI").is_none(), "no {tool}");
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
        let mut initdb = unprivileged(&programs.join("initdb"));
        initdb.args(["--no-sync", "-A", "trust", "-U", "postgres", "-D"]).arg(home.path().join("data"));
        done(&initdb.output().unwrap());
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

    fn configure(&self, settings: &str) {
        let file = self.home.path().join("data/postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(file).unwrap();
        writeln!(file, "{settings}").unwrap();
    }

    /// Starts the server. It ends with this process: a shell waits for the end of its input.
    pub(crate) fn up(&mut self) {
        let script = r#""$0" -D "$1" >>"$2" 2>&1 </dev/null & server=$!; read -r mode; kill -"${mode:-QUIT}" $server; wait $server"#;
        let (data, log) = (self.home.path().join("data"), self.home.path().join("log"));
        let mut command = unprivileged(Path::new("sh"));
        command.arg("-c").arg(script).arg(self.programs.join("postgres")).arg(data).arg(log).stdin(Stdio::piped());
        self.guard = Some(command.spawn().unwrap());
        let ready = || {
            let mut ready = Command::new(self.programs.join("pg_isready"));
            ready.arg("-h").arg(self.home.path()).arg("-p").arg(self.port.to_string()).arg("-U").arg("postgres");
            ready.output().unwrap().status.success()
        };
        let up = (0..600).any(|_| ready() || self.guard.as_mut().is_some_and(|_| std::thread::park_timeout(SHORT) != ()));
        let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        assert!(up, "the server does not start: {log}");
    }

    /// Stops the server: `INT` ends its sessions, `QUIT` is a crash.
    pub(crate) fn down(&mut self, signal: &str) {
        let Some(mut guard) = self.guard.take() else { return };
        let _ = writeln!(guard.stdin.take().unwrap(), "{signal}");
        let _ = guard.wait();
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

const SHORT: std::time::Duration = std::time::Duration::from_millis(20);

impl Drop for TestServer {
    fn drop(&mut self) {
        self.down("QUIT");
    }
}
