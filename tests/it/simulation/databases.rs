//! Where seeds are lived through, one after the other: a file, and the connections to it that outlive owners. A seed finds empty
//! tables, as a new file has them; but no statement has to be prepared again, which would be a quarter of all work.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::testing::{Crashed, ManualClock, Stepper};
use duly::{Client, Clock};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use tempfile::TempDir;

use crate::simulation::effects;
use crate::simulation::observer::Look;
use crate::simulation::snapshot_reader::Reader;
use crate::simulation::unusable_rows;

/// Connections of dead owners that are kept.
const KEPT: usize = 4;
/// Everything that a seed has written, but for what the file says of itself.
const CLEAR: &str = "
    BEGIN IMMEDIATE;
    DELETE FROM stuck;
    DELETE FROM ledger;
    DELETE FROM task_effects;
    DELETE FROM task_attempts;
    DELETE FROM task_runs;
    DELETE FROM scheduled_tasks;
    DELETE FROM scheduler_events;
    DELETE FROM scheduler_instances;
    DELETE FROM sqlite_sequence;
    COMMIT";

pub(crate) struct Stage {
    pub(crate) clock: ManualClock,
    pub(crate) client: Client,
    /// Of owners that are dead: most that come after them go on with one.
    pub(crate) connections: Vec<Crashed>,
    /// The checker's, while nobody lives here.
    pub(crate) look: Option<Look>,
    /// What another program would open.
    pub(crate) shell: Connection,
    pub(crate) reader: Reader,
    pub(crate) file: PathBuf,
    /// What the file says of itself.
    meta: Vec<(String, String)>,
    _home: TempDir,
}

/// What is put back for each seed. The stamp only ever grows: one that goes back is damage.
const META: &str = "SELECT key, value FROM scheduler_meta WHERE key <> 'stamp'";

/// A folder in memory where the system has one, else on the disk.
fn home() -> TempDir {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let in_memory = mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"]));
    let place = if in_memory { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("duly-simulation-").tempdir_in(place).expect("a temporary folder")
}

/// A connection without anything of ours; SQLite's clock in it is the world's. Both instants of a comparison are of one
/// kind then: a tenth of a millisecond past, so that rounding does not hide what is due now.
fn shell(file: &PathBuf, clock: &ManualClock) -> Connection {
    let shell = Connection::open(file).expect("a shell");
    shell.busy_timeout(Duration::ZERO).expect("no patience");
    shell.pragma_update(None, "synchronous", 0).expect("a pragma");
    // The last that is closed would tidy up a file that is removed next.
    shell.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("a setting");
    let (clock, flags) = (clock.clone(), FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS);
    let now = move |_: &rusqlite::functions::Context<'_>| {
        let millis = clock.now().wall.as_millis() as f64 + 0.1;
        Ok(millis / 86_400_000.0 + 2_440_587.5)
    };
    shell.create_scalar_function("julianday", 1, flags, now).expect("a clock");
    shell
}

/// The tables, and a client that outlives every owner.
fn client(file: &Path, clock: &ManualClock) -> (Client, Crashed) {
    let builder = Stepper::builder(file, clock.now().wall).clock(clock).busy_timeout(Duration::ZERO);
    let mut first = builder.start().expect("a stepper");
    first.step().expect("a first step");
    let client = first.client().clone();
    (client, first.crash())
}

impl Stage {
    pub(crate) fn new() -> Self {
        let home = home();
        let file = home.path().join("agent.db");
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().expect("an instant"));
        // Seeds begin at any time of this clock: none shall begin with it.
        clock.advance(Duration::from_secs(100 * 86_400));
        let (client, connection) = client(&file, &clock);
        let connections = vec![connection];
        let (reader, shell) = (Reader::new(shell(&file, &clock)), shell(&file, &clock));
        shell.execute_batch(effects::TABLE).expect("a table of the application's own");
        shell.execute_batch(unusable_rows::GUARD).expect("a trigger of the application's own");
        let meta = {
            let mut rows = shell.prepare(META).expect("a query");
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("what the file says of itself");
            rows.collect::<Result<_, _>>().expect("what the file says of itself")
        };
        Stage { clock, client, connections, look: None, shell, reader, file, meta, _home: home }
    }

    /// Makes it as new.
    pub(crate) fn clear(&mut self) {
        self.reader.let_go();
        // A client keeps ids in reserve: what it added in another seed must not show in this one.
        self.client = client(&self.file, &self.clock).0;
        self.shell.execute_batch(CLEAR).expect("empty tables");
        for row in &self.meta {
            let text = "UPDATE scheduler_meta SET value = ?2 WHERE key = ?1";
            self.shell
                .prepare_cached(text)
                .and_then(|mut it| it.execute((&row.0, &row.1)))
                .expect("what the file says");
        }
        let locks = std::fs::read_dir(format!("{}-owners", self.file.display())).expect("the folder of the owners");
        locks.flatten().for_each(|lock| std::fs::remove_file(lock.path()).expect("a lock file"));
        self.connections.truncate(KEPT);
    }
}
