//! The database that seeds use one after the other: a file, and connections that outlive schedulers. A seed starts with
//! empty tables, as in a new file; preparing all statements again would be a quarter of the time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::testing::{Crashed, ManualClock, Stepper};
use duly::{Client, Clock};
use tempfile::TempDir;

use crate::simulation::effects;
use crate::simulation::observer::Observer;
#[cfg(feature = "postgres")]
use crate::simulation::on_server::OnServer;
use crate::simulation::shell::Shell;
use crate::simulation::snapshot_reader::Reader;
use crate::simulation::unusable_rows;

/// Connections of dead schedulers that are kept.
const KEPT: usize = 4;
/// Deletes all that a seed has written, except `scheduler_meta`.
const CLEAR: &str = "
    BEGIN;
    DELETE FROM unwritable;
    DELETE FROM concurrency_limits;
    DELETE FROM rate_limits;
    DELETE FROM ledger;
    DELETE FROM task_effects;
    DELETE FROM task_attempts;
    DELETE FROM task_runs;
    DELETE FROM scheduled_tasks;
    DELETE FROM scheduler_events;
    DELETE FROM scheduler_instances";
/// The server assigns numbers from 1 again.
const FIRST_NUMBERS: &str = "
    ALTER SEQUENCE scheduled_tasks_id_seq RESTART; ALTER SEQUENCE task_runs_id_seq RESTART;
    ALTER SEQUENCE task_attempts_id_seq RESTART; ALTER SEQUENCE scheduler_events_id_seq RESTART;
    ALTER SEQUENCE scheduler_alarms_id_seq RESTART";

pub(crate) struct Database {
    pub(crate) clock: ManualClock,
    pub(crate) client: Client,
    /// Connections of dead schedulers: most schedulers reuse one.
    pub(crate) connections: Vec<Crashed>,
    /// The checker's connection, between two seeds.
    pub(crate) observer: Option<Observer>,
    /// A connection of another program.
    pub(crate) shell: Shell,
    pub(crate) reader: Reader,
    /// The path of the file, or the address of the server.
    pub(crate) address: PathBuf,
    pub(crate) lock_folder: PathBuf,
    /// The rows of `scheduler_meta` that each seed starts with.
    meta: Vec<(String, String)>,
    _home: TempDir,
}

/// The stamp only ever grows, and a smaller one is damage: it is not reset.
const META: &str = "SELECT key, value FROM scheduler_meta WHERE key <> 'stamp'";

/// Creates a folder in memory if the system has one, else on the disk.
fn home() -> TempDir {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let in_memory = mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"]));
    let place = if in_memory { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("duly-simulation-").tempdir_in(place).expect("a temporary folder")
}

/// Returns the address of a new schema on a server, if the simulation is to run there.
fn on_server() -> Option<PathBuf> {
    #[cfg(feature = "postgres")]
    return crate::on_postgres::database().map(PathBuf::from);
    #[cfg(not(feature = "postgres"))]
    None
}

/// Opens a connection of another program.
fn open(address: &Path, clock: &ManualClock) -> Shell {
    #[cfg(feature = "postgres")]
    if let Some(address) = address.to_str().filter(|address| address.starts_with("postgres")) {
        return Shell::Server(OnServer::at(address, clock));
    }
    Shell::of_file(address, clock)
}

/// Creates the tables, and a client that outlives every scheduler.
fn client(address: &Path, clock: &ManualClock) -> (Client, Crashed) {
    let builder = Stepper::builder(address, clock.now().wall).clock(clock).busy_timeout(Duration::ZERO);
    let mut first = builder.start().expect("a stepper");
    first.step().expect("a first step");
    let client = first.client().clone();
    (client, first.crash())
}

impl Database {
    pub(crate) fn new() -> Self {
        let home = home();
        let address = on_server().unwrap_or_else(|| home.path().join("simulation.db"));
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().expect("an instant"));
        // A seed begins at any value of the monotonic clock, and none at 0.
        clock.advance(Duration::from_secs(100 * 86_400));
        let (client, connection) = client(&address, &clock);
        let connections = vec![connection];
        let (reader, shell) = (Reader::new(open(&address, &clock)), open(&address, &clock));
        let of_application = format!("{}; {}", effects::TABLE, unusable_rows::GUARD);
        let lock_folder = match &shell {
            Shell::File(_) => {
                shell.execute_batch(&of_application).expect("tables of the application's own");
                PathBuf::from(format!("{}-owners", address.display()))
            }
            #[cfg(feature = "postgres")]
            Shell::Server(server) => {
                server.prepare(&of_application);
                server.lock_folder()
            }
        };
        let meta = shell.read(|tables| {
            let mut rows = tables.prepare(META).expect("a query");
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("the rows of scheduler_meta");
            rows.collect::<Result<_, _>>().expect("the rows of scheduler_meta")
        });
        Database { clock, client, connections, observer: None, shell, reader, address, lock_folder, meta, _home: home }
    }

    /// A connection for the checker.
    pub(crate) fn new_observer(&self) -> Observer {
        Observer::new(open(&self.address, &self.clock))
    }

    /// Empties the tables for the next seed.
    pub(crate) fn clear(&mut self) {
        self.reader.close();
        // A client reserves ids: those of another seed must not affect this one.
        self.client = client(&self.address, &self.clock).0;
        let numbers = if self.shell.is_on_server() { FIRST_NUMBERS } else { "DELETE FROM sqlite_sequence" };
        self.shell.execute_batch(&format!("{CLEAR}; {numbers}; COMMIT")).expect("empty tables");
        for row in &self.meta {
            let text = "UPDATE scheduler_meta SET value = ?2 WHERE key = ?1";
            self.shell.execute(text, (&row.0, &row.1)).expect("a row of scheduler_meta");
        }
        let locks = std::fs::read_dir(&self.lock_folder).expect("the folder of the owners");
        locks.flatten().for_each(|lock| std::fs::remove_file(lock.path()).expect("a lock file"));
        self.connections.truncate(KEPT);
    }
}
