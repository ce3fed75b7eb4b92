//! A PostgreSQL server for tests, shared by this process: that of `DULY_POSTGRES`, or one in a temporary folder that ends with the
//! process.

/// The size of the tables while tasks come and go.
mod bloat;
/// Connections that go silent, and servers that never answer.
mod deadline;
/// Hosts that are killed in a drain.
mod drains;
/// Rows of a handler, committed with the end of its run.
mod finish;
/// Hosts whose clocks differ.
mod hosts;
/// Deaths, lost sessions and wake-ups of schedulers.
mod liveness;
/// From a file to a server and back.
mod migrate;
/// The same with many rows, and killed.
mod moving;
/// Tasks that an application adds in a transaction of its own.
mod outbox;
/// A server for one test.
mod own_server;
/// Which plans the statements have with many rows.
mod plans;
/// Every command of the program on a server.
mod program;
/// What each role may do.
mod rights;
/// Locks of rows that an application holds.
mod row_locks;
/// A client within an async runtime.
#[cfg(feature = "tokio")]
mod runtime;
pub(crate) mod server;
/// The tables, made and examined.
mod tables;
/// What other programs write.
mod triggers;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use postgres::{Client, NoTls};

use crate::fixtures::{end, skip};
pub(crate) use crate::postgres::own_server::{OwnServer, is_installed};
pub(crate) use crate::postgres::server::address;
use crate::postgres::server::{Guard, folders, programs, start};

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

fn find() -> Option<Server> {
    if let Ok(address) = std::env::var("DULY_POSTGRES") {
        drop_old_schemas(&address);
        return Some(Server { address, _guard: None });
    }
    let (folder, guard) = start(&programs()?, "")?;
    Some(Server { address: address(&folder), _guard: Some(guard) })
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
    end(&mut other);
    crate::fixtures::eventually("the server of a killed process ends", || !theirs.exists());
    crate::fixtures::eventually("its process ends", || !Path::new("/proc").join(&pid).join("exe").exists());
    assert!(Path::new(&folder).join("data/postmaster.pid").exists(), "the server of this process");
}
