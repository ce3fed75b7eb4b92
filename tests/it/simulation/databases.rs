//! The database that seeds use one after the other: a file, and connections that outlive schedulers. A seed starts with
//! empty tables, as in a new file; preparing all statements again would be a quarter of the time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::testing::{Crashed, ManualClock, Stepper};
use duly::{Client, Clock};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use tempfile::TempDir;

use crate::simulation::effects;
use crate::simulation::observer::Observer;
use crate::simulation::snapshot_reader::Reader;
use crate::simulation::unusable_rows;

/// Connections of dead schedulers that are kept.
const KEPT: usize = 4;
/// Deletes all that a seed has written, except `scheduler_meta`.
const CLEAR: &str = "
    BEGIN IMMEDIATE;
    DELETE FROM unwritable;
    DELETE FROM concurrency_limits;
    DELETE FROM rate_limits;
    DELETE FROM ledger;
    DELETE FROM task_effects;
    DELETE FROM task_attempts;
    DELETE FROM task_runs;
    DELETE FROM scheduled_tasks;
    DELETE FROM scheduler_events;
    DELETE FROM scheduler_instances;
    DELETE FROM sqlite_sequence;
    COMMIT";

pub(crate) struct Database {
    pub(crate) clock: ManualClock,
    pub(crate) client: Client,
    /// Connections of dead schedulers: most schedulers reuse one.
    pub(crate) connections: Vec<Crashed>,
    /// The checker's connection, between two seeds.
    pub(crate) observer: Option<Observer>,
    /// A connection of another program.
    pub(crate) shell: Connection,
    pub(crate) reader: Reader,
    pub(crate) file: PathBuf,
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

/// Opens a connection without any setting of duly's. SQLite's clock in it is the scenario's clock plus a tenth of a
/// millisecond, so that rounding does not hide what is due now.
fn shell(file: &PathBuf, clock: &ManualClock) -> Connection {
    let shell = Connection::open(file).expect("a shell");
    shell.busy_timeout(Duration::ZERO).expect("no patience");
    shell.pragma_update(None, "synchronous", 0).expect("a pragma");
    // Closing the last connection would run a checkpoint on a file that is removed next.
    shell.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("a setting");
    let (clock, flags) = (clock.clone(), FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS);
    let now = move || {
        let millis = clock.now().wall.as_millis() as f64 + 0.1;
        millis / 86_400_000.0 + 2_440_587.5
    };
    shell.create_scalar_function("julianday", 1, flags, move |_| Ok(now())).expect("a clock");
    shell
}

/// Creates the tables, and a client that outlives every scheduler.
fn client(file: &Path, clock: &ManualClock) -> (Client, Crashed) {
    let builder = Stepper::builder(file, clock.now().wall).clock(clock).busy_timeout(Duration::ZERO);
    let mut first = builder.start().expect("a stepper");
    first.step().expect("a first step");
    let client = first.client().clone();
    (client, first.crash())
}

impl Database {
    pub(crate) fn new() -> Self {
        let home = home();
        let file = home.path().join("simulation.db");
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().expect("an instant"));
        // A seed begins at any value of the monotonic clock, and none at 0.
        clock.advance(Duration::from_secs(100 * 86_400));
        let (client, connection) = client(&file, &clock);
        let connections = vec![connection];
        let (reader, shell) = (Reader::new(shell(&file, &clock)), shell(&file, &clock));
        shell.execute_batch(effects::TABLE).expect("a table of the application's own");
        shell.execute_batch(unusable_rows::GUARD).expect("a trigger of the application's own");
        let meta = {
            let mut rows = shell.prepare(META).expect("a query");
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("the rows of scheduler_meta");
            rows.collect::<Result<_, _>>().expect("the rows of scheduler_meta")
        };
        Database { clock, client, connections, observer: None, shell, reader, file, meta, _home: home }
    }

    /// Empties the tables for the next seed.
    pub(crate) fn clear(&mut self) {
        self.reader.close();
        // A client reserves ids: those of another seed must not affect this one.
        self.client = client(&self.file, &self.clock).0;
        self.shell.execute_batch(CLEAR).expect("empty tables");
        for row in &self.meta {
            let text = "UPDATE scheduler_meta SET value = ?2 WHERE key = ?1";
            self.shell
                .prepare_cached(text)
                .and_then(|mut it| it.execute((&row.0, &row.1)))
                .expect("a row of scheduler_meta");
        }
        let locks = std::fs::read_dir(format!("{}-owners", self.file.display())).expect("the folder of the owners");
        locks.flatten().for_each(|lock| std::fs::remove_file(lock.path()).expect("a lock file"));
        self.connections.truncate(KEPT);
    }
}
