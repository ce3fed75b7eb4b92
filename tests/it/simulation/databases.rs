//! The database that seeds use one after the other: a file, or a schema on a server of its own, and connections that outlive
//! schedulers. A seed starts with empty tables, as in a new database; preparing all statements again would be a quarter of the time.

use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "postgres")]
use duly::Clock;
use duly::testing::{Crashed, ManualClock, Stepper, StepperBuilder};
use duly::{Client, Timestamp};
use tempfile::TempDir;

#[cfg(feature = "postgres")]
use crate::postgres::OwnServer;
use crate::simulation::effects;
#[cfg(feature = "postgres")]
use crate::simulation::network::Network;
use crate::simulation::observer::Observer;
#[cfg(feature = "postgres")]
use crate::simulation::on_server::OnServer;
#[cfg(feature = "postgres")]
use crate::simulation::server_time::ServerTime;
use crate::simulation::shell::Shell;
use crate::simulation::snapshot_reader::Reader;
use crate::simulation::unusable_rows;

/// Connections of dead schedulers that are kept.
const KEPT: usize = 4;
/// Machines beside a server.
#[cfg(feature = "postgres")]
const HOSTS: usize = 2;
/// Deletes all that a seed has written. Rows of `scheduler_meta` that a new database has are written anew.
const CLEAR: &str = "
    BEGIN;
    DELETE FROM unwritable;
    DELETE FROM concurrency_limits;
    DELETE FROM rate_limits;
    DELETE FROM rate_limit_starts;
    DELETE FROM rate_limit_openings;
    DELETE FROM ledger;
    DELETE FROM task_effects;
    DELETE FROM task_attempts;
    DELETE FROM task_runs;
    DELETE FROM scheduled_tasks;
    DELETE FROM scheduler_events;
    DELETE FROM scheduler_instances;
    DELETE FROM scheduler_meta WHERE key <> 'stamp'";
/// As `CLEAR`, and the server assigns numbers from 1 again.
const FIRST_NUMBERS: &str = "
    DELETE FROM scheduler_alarms;
    DELETE FROM scheduler_alarm_channels;
    ALTER SEQUENCE scheduled_tasks_id_seq RESTART; ALTER SEQUENCE task_runs_id_seq RESTART;
    ALTER SEQUENCE task_attempts_id_seq RESTART; ALTER SEQUENCE scheduler_events_id_seq RESTART;
    ALTER SEQUENCE scheduler_alarms_id_seq RESTART";

/// Which store a simulation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    #[cfg(feature = "postgres")]
    Server,
}

/// A machine on which schedulers run.
pub(crate) struct Host {
    /// The folder of their local files, if the database is on a server.
    #[cfg(feature = "postgres")]
    pub(crate) state: PathBuf,
    /// The folder of their lock files.
    pub(crate) locks: PathBuf,
    /// Its own clock, which may be off by hours where the server's counts.
    pub(crate) clock: ManualClock,
}

pub(crate) struct Database {
    /// The clock that counts. It is set and advanced by [`Database::set_wall`] and [`Database::advance`].
    pub(crate) clock: ManualClock,
    /// Whether schedulers use the server's time, and the clocks of their machines are off.
    pub(crate) follows_server: bool,
    pub(crate) client: Client,
    /// Connections of dead schedulers, each with its host: most schedulers reuse one.
    pub(crate) connections: Vec<(usize, Crashed)>,
    /// The checker's connection, between two seeds.
    pub(crate) observer: Option<Observer>,
    /// A connection of another program.
    pub(crate) shell: Shell,
    pub(crate) reader: Reader,
    /// The path of the file, or the address of the server over the network that is cut.
    pub(crate) address: PathBuf,
    /// As `address`, without that network.
    near: PathBuf,
    /// One for a file, several for a server.
    pub(crate) hosts: Vec<Host>,
    /// The rows of `scheduler_meta` that each seed starts with.
    meta: Vec<(String, String)>,
    _home: TempDir,
    #[cfg(feature = "postgres")]
    pub(crate) server: Option<(OwnServer, Network)>,
    #[cfg(feature = "postgres")]
    pub(crate) server_time: Option<ServerTime>,
}

impl Host {
    fn new(locks: PathBuf) -> Self {
        Host {
            #[cfg(feature = "postgres")]
            state: locks.clone(),
            locks,
            clock: clock(),
        }
    }

    /// Has a scheduler run on this machine. `clock`: the one that counts; `None` if that is the server's.
    pub(crate) fn builder(&self, builder: StepperBuilder, clock: Option<&ManualClock>) -> StepperBuilder {
        #[cfg(feature = "postgres")]
        let builder = builder.state_folder(&self.state);
        match clock {
            Some(clock) => builder.clock(clock),
            #[cfg(feature = "postgres")]
            None => builder.clock(&self.clock).server_time(),
            #[cfg(not(feature = "postgres"))]
            None => builder.clock(&self.clock),
        }
    }
}

fn clock() -> ManualClock {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().expect("an instant"));
    // A seed begins at any value of the monotonic clock, and none at 0.
    clock.advance(Duration::from_secs(100 * 86_400));
    clock
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

/// Opens a connection of another program.
fn open(address: &Path, clock: &ManualClock) -> Shell {
    #[cfg(feature = "postgres")]
    if let Some(address) = address.to_str().filter(|address| address.starts_with("postgres")) {
        return Shell::Server(Box::new(OnServer::at(address, clock)));
    }
    Shell::of_file(address, clock)
}

/// Creates the tables, and a client that outlives every scheduler.
fn client(address: &Path, host: &Host, clock: Option<&ManualClock>, after: Option<Crashed>) -> (Client, Crashed) {
    let mut builder = Stepper::builder(address, Timestamp::MIN).busy_timeout(Duration::ZERO);
    if let Some(crashed) = after {
        builder = builder.after(crashed);
    }
    let mut first = host.builder(builder, clock).start().expect("a stepper");
    first.step().expect("a first step");
    let client = first.client().clone();
    (client, first.crash())
}

impl Database {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::File => {
                let home = home();
                let file = home.path().join("simulation.db");
                let locks = home.path().join("simulation.db-owners");
                Database::at(file.clone(), file, vec![Host::new(locks)], home, clock())
            }
            #[cfg(feature = "postgres")]
            Kind::Server => {
                let (home, server) = (home(), OwnServer::start().expect("a PostgreSQL server"));
                let network = Network::before(&server.folder, home.path());
                let address = |folder| PathBuf::from(format!("{}?schema=simulation", crate::postgres::address(folder)));
                let (near, far) = (address(&server.folder), address(home.path()));
                let states = (0..HOSTS).map(|number| home.path().join(format!("host-{number}")));
                let hosts = states.map(Host::new).collect();
                let clock = clock();
                let near_text = near.to_str().expect("an address");
                let time = ServerTime::of(near_text, &server.folder, clock.now().wall);
                let mut database = Database::at(far, near, hosts, home, clock);
                (database.server, database.server_time) = (Some((server, network)), Some(time));
                database
            }
        }
    }

    fn at(address: PathBuf, near: PathBuf, hosts: Vec<Host>, home: TempDir, clock: ManualClock) -> Self {
        #[cfg(feature = "postgres")]
        let mut hosts = hosts;
        let (client, connection) = client(&address, &hosts[0], Some(&clock), None);
        let connections = vec![(0, connection)];
        let (reader, shell) = (Reader::new(open(&near, &clock)), open(&near, &clock));
        match &shell {
            Shell::File(_) => {
                let of_application = format!("{}; {}", effects::TABLE, unusable_rows::GUARD);
                shell.execute_batch(&of_application).expect("tables of the application's own");
            }
            #[cfg(feature = "postgres")]
            Shell::Server(server) => {
                server.prepare(effects::TABLE);
                let folder = server.folder_of_locks();
                hosts.iter_mut().for_each(|host| host.locks = host.state.join(&folder));
            }
        }
        let meta = shell.read(|tables| {
            let mut rows = tables.prepare(META).expect("a query");
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("the rows of scheduler_meta");
            rows.collect::<Result<_, _>>().expect("the rows of scheduler_meta")
        });
        Database {
            clock,
            follows_server: false,
            client,
            connections,
            observer: None,
            shell,
            reader,
            address,
            near,
            hosts,
            meta,
            _home: home,
            #[cfg(feature = "postgres")]
            server: None,
            #[cfg(feature = "postgres")]
            server_time: None,
        }
    }

    /// Advances all clocks.
    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.hosts.iter().for_each(|host| host.clock.advance(by));
        self.tell_server();
    }

    /// Sets the time of day of the clock that counts.
    pub(crate) fn set_wall(&self, to: Timestamp) {
        self.clock.set_wall(to);
        self.tell_server();
    }

    fn tell_server(&self) {
        #[cfg(feature = "postgres")]
        if let Some(time) = &self.server_time {
            time.set(self.clock.now().wall);
        }
    }

    /// Returns by how much the time that a scheduler knows may differ from that of the clock that counts: a server tells whole
    /// milliseconds.
    pub(crate) fn uncertainty(&self) -> Duration {
        Duration::from_millis(self.follows_server.into())
    }

    /// Returns the clock that counts, unless that is the server's.
    pub(crate) fn given_clock(&self) -> Option<&ManualClock> {
        (!self.follows_server).then_some(&self.clock)
    }

    /// A connection for the checker.
    pub(crate) fn new_observer(&self) -> Observer {
        Observer::new(open(&self.near, &self.clock))
    }

    /// Returns a connection of a scheduler that died on this host.
    pub(crate) fn take_connection(&mut self, host: usize) -> Option<Crashed> {
        let at = self.connections.iter().rposition(|(of, _)| *of == host)?;
        Some(self.connections.remove(at).1)
    }

    /// Empties the tables for the next seed.
    pub(crate) fn clear(&mut self) {
        self.reader.close();
        // A client reserves ids: those of another seed must not affect this one.
        let crashed = self.take_connection(0);
        let (client, crashed) = client(&self.address, &self.hosts[0], self.given_clock(), crashed);
        self.client = client;
        self.connections.push((0, crashed));
        let numbers = if self.shell.is_on_server() { FIRST_NUMBERS } else { "DELETE FROM sqlite_sequence" };
        self.shell.execute_batch(&format!("{CLEAR}; {numbers}")).expect("empty tables");
        for row in &self.meta {
            let text = "INSERT INTO scheduler_meta (key, value) VALUES (?1, ?2)";
            self.shell.execute(text, (&row.0, &row.1)).expect("a row of scheduler_meta");
        }
        self.shell.execute_batch("COMMIT").expect("a commit");
        if !self.shell.is_on_server() {
            // Connections of this process know the highest ids of a history: those of another seed would be missing.
            let another = "UPDATE scheduler_meta SET value = lower(hex(randomblob(16))) WHERE key = 'history'";
            self.shell.execute(another, ()).expect("another history");
        }
        for host in &self.hosts {
            let locks = std::fs::read_dir(&host.locks).into_iter().flatten().flatten();
            locks.for_each(|lock| std::fs::remove_file(lock.path()).expect("a lock file"));
        }
        self.connections.truncate(KEPT);
    }
}
