//! A PostgreSQL server for tests, shared by this process: that of `DULY_POSTGRES`, or one in a temporary folder that ends with the
//! process.

/// Hosts whose clocks differ.
mod hosts;
/// Deaths, lost sessions and wake-ups of schedulers.
mod liveness;
/// From a file to a server and back.
mod migrate;
/// Tasks that an application adds in a transaction of its own.
mod outbox;
/// Every command of the program on a server.
mod program;
/// Locks of rows that an application holds.
mod row_locks;
/// The tables, made and examined.
mod tables;
/// What other programs write.
mod triggers;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use postgres::{Client, NoTls};

use crate::fixtures::skip;

/// Takes `$1`, the folder of the programs, and `$2`, the next script. PostgreSQL refuses to run as root.
const AS_USER: &str = r#"
    cd /
    [ "$(id -u)" = 0 ] || exec sh -c "$2" guard "$1"
    user=postgres
    id "$user" >/dev/null 2>&1 || user=nobody
    if command -v setpriv >/dev/null; then
        exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups sh -c "$2" guard "$1"
    fi
    exec runuser -u "$user" -- sh -c "$2" guard "$1"
"#;

/// Starts the server, prints its folder and waits for the end of its input, which is the end of the test process, however it ends.
/// Each line of its input is a crash of the server, which starts again. The folder is below /tmp: the path of a socket has at most 107
/// bytes.
const GUARD: &str = r#"
    umask 077
    folder=$(mktemp -d /tmp/duly-pg.XXXXXX) || exit 1
    data=$folder/data log=$folder/log
    if "$1/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C -N >"$log" 2>&1 </dev/null &&
        "$1/pg_ctl" -D "$data" -w -t 60 -l "$log" start >>"$log" 2>&1 </dev/null -o "-k $folder -c listen_addresses='' \
            -c fsync=off -c full_page_writes=off -c max_connections=300 -c max_locks_per_transaction=256 -c max_wal_size=256MB"
    then
        echo "$folder"
    else
        echo "failed: $(tail -n 5 "$log")"
    fi
    while read -r line; do
        "$1/pg_ctl" -D "$data" -w -t 60 -l "$log" -m immediate restart >>"$log" 2>&1 </dev/null
        echo "up again: $?"
    done
    "$1/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1
    rm -rf "$folder"
"#;

/// Schemas that tests have left on a server of `DULY_POSTGRES` are dropped after this time.
const SECONDS_KEPT: u64 = 3600;

/// Returns the address of a new schema, whose tables do not exist yet. Without a server, the test is skipped.
pub(crate) fn database() -> Option<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let Some(server) = server() else {
        skip("no PostgreSQL");
        return None;
    };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mark = if server.contains('?') { '&' } else { '?' };
    Some(format!("{server}{mark}schema=t_{}_{}_{number}", seconds(), std::process::id()))
}

/// Returns the address of the server, without a schema.
pub(crate) fn server() -> Option<&'static str> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(find).as_ref().map(|server| server.address.as_str())
}

/// Returns the program psql, if it is installed.
pub(crate) fn psql() -> Option<PathBuf> {
    folders().into_iter().map(|folder| folder.join("psql")).find(|program| program.is_file())
}

struct Server {
    address: String,
    _guard: Option<Guard>,
}

/// A server for one test, which may crash it.
pub(crate) struct OwnServer {
    /// The folder of its socket.
    pub(crate) folder: PathBuf,
    guard: Guard,
}

/// The process that stops the server when its input ends: with this process.
struct Guard {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl OwnServer {
    /// `None` where PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let (folder, guard) = start(&programs()?)?;
        Some(OwnServer { folder, guard })
    }

    /// Ends all processes of the server as a crash does, and starts it again. What it has committed stays: the machine goes on.
    pub(crate) fn crash(&mut self) {
        writeln!(self.guard.process.stdin.as_mut().expect("its input"), "crash").expect("a guard");
        let mut answer = String::new();
        self.guard.answers.read_line(&mut answer).expect("its answer");
        assert_eq!(answer, "up again: 0\n", "the server in {} does not start again", self.folder.display());
    }
}

/// Returns the address of a server whose socket is in this folder.
pub(crate) fn address(folder: &Path) -> String {
    format!("postgres://postgres@{}/postgres", folder.display().to_string().replace('/', "%2F"))
}

fn find() -> Option<Server> {
    if let Ok(address) = std::env::var("DULY_POSTGRES") {
        drop_old_schemas(&address);
        return Some(Server { address, _guard: None });
    }
    let (folder, guard) = start(&programs()?)?;
    Some(Server { address: address(&folder), _guard: Some(guard) })
}

/// Returns whether a server can be started here.
pub(crate) fn is_installed() -> bool {
    cfg!(unix) && programs().is_some()
}

/// Returns the folder of the programs that make and start a server.
fn programs() -> Option<PathBuf> {
    folders().into_iter().find(|folder| folder.join("initdb").is_file() && folder.join("pg_ctl").is_file())
}

/// Returns the folders that may hold PostgreSQL's programs, the newest release first after those of `PATH`.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let release = |folder: &Path| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let mut releases: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path()).collect();
    releases.sort_by_key(|folder| std::cmp::Reverse(release(folder)));
    folders.extend(releases.into_iter().map(|folder| folder.join("bin")));
    folders
}

#[cfg(unix)]
fn start(programs: &Path) -> Option<(PathBuf, Guard)> {
    use std::os::unix::process::CommandExt;

    // In a process group of its own: an interrupt at the terminal ends the tests, and by that the guard's input.
    let mut guard = Command::new("sh")
        .args(["-c", AS_USER, "guard"])
        .arg(programs)
        .arg(GUARD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("a shell");
    let mut answers = BufReader::new(guard.stdout.take().expect("its output"));
    let mut folder = String::new();
    answers.read_line(&mut folder).expect("its output");
    if !folder.starts_with('/') {
        drop(guard.stdin.take());
        let mut errors = String::new();
        let _ = guard.stderr.take().expect("its errors").read_to_string(&mut errors);
        panic!("the PostgreSQL server of {} does not start: {folder}{errors}", programs.display());
    }
    Some((PathBuf::from(folder.trim_end()), Guard { process: guard, answers }))
}

#[cfg(not(unix))]
fn start(_programs: &Path) -> Option<(PathBuf, Guard)> {
    None
}

fn drop_old_schemas(address: &str) {
    let mut session = Client::connect(address, NoTls).expect("the server of DULY_POSTGRES");
    let schemas =
        session.query("SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^t_[0-9]+_[0-9]+_[0-9]+$'", &[]);
    for schema in schemas.expect("its schemas") {
        let schema: String = schema.get(0);
        let created: u64 = schema.split('_').nth(1).and_then(|seconds| seconds.parse().ok()).expect("a time");
        if created + SECONDS_KEPT < seconds() {
            // Another test process may be dropping it.
            let _ = session.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"));
        }
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs()
}

#[test]
fn the_server_of_the_tests_ends_with_their_process() {
    let Some(address) = database() else { return };
    let folder =
        address.split_once('@').and_then(|(_, rest)| rest.split_once('/')).expect("a host").0.replace("%2F", "/");
    if std::env::var("DULY_SERVER_USER").is_ok() {
        // The other process: it prints where its server is, and waits until it is killed.
        println!("\nserver in {folder}");
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    if std::env::var("DULY_POSTGRES").is_ok() {
        return;
    }
    let mut other = crate::fixtures::test_process("postgres::the_server_of_the_tests_ends_with_their_process")
        .env("DULY_SERVER_USER", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(other.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let theirs =
        lines.into_iter().find_map(|line| line.strip_prefix("server in ").map(PathBuf::from)).expect("a server");
    assert_ne!(theirs, PathBuf::from(&folder));
    let pid = std::fs::read_to_string(theirs.join("data/postmaster.pid")).expect("a server");
    let pid = pid.lines().next().expect("a pid").to_owned();
    other.kill().expect("its end");
    other.wait().expect("its end");
    crate::fixtures::eventually("the server of a killed process ends", || !theirs.exists());
    crate::fixtures::eventually("its process ends", || !Path::new("/proc").join(&pid).join("exe").exists());
    assert!(Path::new(&folder).join("data/postmaster.pid").exists(), "the server of this process");
}
