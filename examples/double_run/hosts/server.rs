//! The server: a database for each day, the sessions of the hosts, and a pool in front of them.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::BufRead;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duly::Timestamp;
use postgres::config::{Config, Host};
use postgres::{Client, NoTls, SimpleQueryMessage};

use super::Result;
use super::test_server::{Guard, address, folders, programs, start, start_script};

/// The time of the server is that of the bench: `now()` of this schema comes before that of `pg_catalog`.
const CLOCK: &str = "
    CREATE TABLE clock (at timestamptz NOT NULL);
    INSERT INTO clock VALUES ('-infinity');
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM public.clock'";

/// Starts pgbouncer, `$1`, and waits for the end of its input, which is the end of this process, however it ends.
const POOLER: &str = r#"
    umask 077
    folder=$(mktemp -d /tmp/duly-pool.XXXXXX) || exit 1
    echo "$folder"
    { echo "$DULY_SERVER_SETTINGS"; echo "unix_socket_dir = $folder"; } >"$folder/ini"
    "$1" "$folder/ini" 2>&1 </dev/null &
    read -r line
    kill $!
    rm -rf "$folder"
"#;

/// Limit for the end of a session, which takes a millisecond.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on which databases can be made.
pub(crate) struct Server {
    address: String,
    /// Ends with this value.
    _own: Option<Guard>,
}

impl Server {
    /// Uses the server of this address, or starts one. `None` if PostgreSQL is not installed.
    pub(crate) fn find(given: Option<String>) -> Option<Self> {
        if let Some(address) = given {
            return Some(Server { address, _own: None });
        }
        let (folder, own) = start(&programs()?, "-c autovacuum=off -c checkpoint_timeout=1h")?;
        Some(Server { address: address(&folder), _own: Some(own) })
    }

    fn config(&self) -> Result<Config> {
        self.address.parse().map_err(|error| format!("{error} in the address of the server").into())
    }

    fn administrator(&self) -> Result<Client> {
        self.config()?.connect(NoTls).map_err(|error| message(&error).into())
    }

    /// Makes an empty database, whose name no other one has.
    pub(crate) fn database(&self) -> Result<Database<'_>> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("duly_double_run_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut administrator = self.administrator()?;
        administrator.batch_execute(&format!("CREATE DATABASE {name}")).map_err(|error| message(&error))?;
        let database = Database { server: self, name, administrator: Mutex::new(administrator) };
        database.administer(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name))?;
        Ok(database)
    }
}

/// The database of a day. It is dropped with this value.
pub(crate) struct Database<'a> {
    server: &'a Server,
    name: String,
    administrator: Mutex<Client>,
}

impl Database<'_> {
    /// Returns the address for duly.
    pub(crate) fn address(&self) -> String {
        let (place, parameters) = self.server.address.split_once('?').unwrap_or((&self.server.address, ""));
        let authority = place.split("//").nth(1).unwrap_or_default().split('/').next().unwrap_or_default();
        format!("postgres://{authority}/{}?{parameters}", self.name)
    }

    fn config(&self) -> Result<Config> {
        let mut config = self.server.config()?;
        config.dbname(&self.name);
        Ok(config)
    }

    /// Opens a session without a pool.
    pub(crate) fn session(&self) -> Result<Session> {
        Session::open(Link::Own(self.config()?.connect(NoTls)?))
    }

    /// Makes the bench's clock, and these tables.
    pub(crate) fn prepare(&self, tables: &str) -> Result<Clock> {
        let mut client = self.config()?.connect(NoTls)?;
        client.batch_execute(CLOCK).and_then(|()| client.batch_execute(tables)).map_err(|error| message(&error))?;
        Ok(Clock(client))
    }

    fn administer(&self, sql: &str) -> Result<()> {
        Ok(self.administrator.lock().unwrap_or_else(PoisonError::into_inner).batch_execute(sql)?)
    }

    /// Ends a session as the kernel does, which closes the connections of a process that ends. Returns when the server has noticed.
    pub(crate) fn close(&self, session: Session) -> Result<()> {
        let backend = session.backend;
        drop(session);
        self.wait_for_end(backend)
    }

    /// Waits until the server has noticed that a session has ended.
    pub(crate) fn wait_for_end(&self, backend: i32) -> Result<()> {
        let begun = Instant::now();
        let mut administrator = self.administrator.lock().unwrap_or_else(PoisonError::into_inner);
        while administrator.query_opt("SELECT FROM pg_stat_activity WHERE pid = $1", &[&backend])?.is_some() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("session {backend} has not ended").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the sessions of these clients in this database, as an administrator or a failover does.
    pub(crate) fn end_sessions(&self, backends: &[i32]) -> Result<()> {
        let end = "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS backends (pid)";
        self.administrator.lock().unwrap_or_else(PoisonError::into_inner).query(end, &[&backends])?;
        backends.iter().try_for_each(|backend| self.wait_for_end(*backend))
    }

    /// Returns the sessions of this database.
    pub(crate) fn backends(&self) -> Result<Vec<i32>> {
        let all = "SELECT pid FROM pg_stat_activity WHERE datname = $1 ORDER BY pid";
        let rows = self.administrator.lock().unwrap_or_else(PoisonError::into_inner).query(all, &[&self.name])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Puts a pool in transaction mode in front of the database.
    pub(crate) fn pool(&self) -> Result<Pool> {
        let program = folders().into_iter().chain(["/usr/sbin".into()]).map(|folder| folder.join("pgbouncer"));
        match program.into_iter().find(|program| program.is_file()) {
            Some(program) if cfg!(unix) => Ok(Pool::Bouncer(Box::new(Bouncer::start(&program, self)?))),
            _ => {
                let sessions = (0..3).map(|_| self.config()?.connect(NoTls).map_err(Into::into));
                Ok(Pool::Own(Arc::new(Mutex::new(sessions.collect::<Result<_>>()?))))
            }
        }
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        let _ = self.administer(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// The clock that `now()` shows.
pub(crate) struct Clock(Client);

impl Clock {
    pub(crate) fn set(&mut self, now: Timestamp) -> Result<()> {
        Ok(self.0.batch_execute(&format!("UPDATE clock SET at = '{now}'"))?)
    }
}

/// A session of a host: with a session of the server of its own, or with a different one for each transaction.
pub(crate) struct Session {
    link: Link,
    /// The process of the server, if it is one.
    pub(crate) backend: i32,
}

enum Link {
    Own(Client),
    Pooled {
        idle: Arc<Mutex<Vec<Client>>>,
        /// The session of the transaction that is open.
        held: Option<Client>,
    },
}

impl Session {
    fn open(link: Link) -> Result<Self> {
        let mut session = Session { link, backend: 0 };
        let backend = session.ask("SELECT pg_backend_pid()")?.ok_or("a session without a process")?;
        session.backend = backend.parse()?;
        Ok(session)
    }

    /// Executes statements. Returns the first value of the last row.
    pub(crate) fn ask(&mut self, sql: &str) -> Result<Option<String>> {
        match &mut self.link {
            Link::Own(client) => last_value(client, sql),
            Link::Pooled { idle, held } => {
                // The session that was used last, as in pgbouncer.
                let mut client = held
                    .take()
                    .or_else(|| idle.lock().unwrap_or_else(PoisonError::into_inner).pop())
                    .ok_or("no session is free")?;
                let answer = last_value(&mut client, sql);
                if sql.starts_with("BEGIN") {
                    *held = Some(client);
                } else {
                    idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
                }
                answer
            }
        }
    }

    /// Returns whether the server has ended the session.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.link, Link::Own(client) if client.is_closed())
    }
}

fn last_value(client: &mut Client, sql: &str) -> Result<Option<String>> {
    let messages = client.simple_query(sql).map_err(|error| format!("{} in {sql}", message(&error)))?;
    Ok(messages.into_iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// A pool that hands out the sessions of the server for one transaction each.
pub(crate) enum Pool {
    Bouncer(Box<Bouncer>),
    /// Where pgbouncer is not installed.
    Own(Arc<Mutex<Vec<Client>>>),
}

impl Pool {
    pub(crate) fn session(&self) -> Result<Session> {
        Session::open(match self {
            Pool::Bouncer(bouncer) => Link::Own(bouncer.config.connect(NoTls)?),
            Pool::Own(idle) => Link::Pooled { idle: idle.clone(), held: None },
        })
    }
}

/// A process of pgbouncer. It ends with this value.
pub(crate) struct Bouncer {
    /// With its log, which it must be able to go on writing.
    guard: Guard,
    config: Config,
    /// The address for duly.
    pub(crate) address: String,
}

impl Bouncer {
    fn start(program: &Path, database: &Database<'_>) -> Result<Self> {
        let server = database.config()?;
        let mut to = match server.get_hosts().first() {
            Some(Host::Tcp(host)) => format!("host={host}"),
            #[cfg(unix)]
            Some(Host::Unix(folder)) => format!("host={}", folder.display()),
            _ => return Err("the address of the server names no host".into()),
        };
        let user = server.get_user().ok_or("the address of the server names no user")?;
        let _ = write!(to, " port={} user={user}", server.get_ports().first().copied().unwrap_or(5432));
        if let Some(password) = server.get_password() {
            let _ = write!(to, " password='{}'", String::from_utf8_lossy(password).replace('\'', "''"));
        }
        let settings = format!(
            "[databases]\n* = {to}\n[pgbouncer]\nlisten_port = 6432\nauth_type = any\npool_mode = transaction\n\
             ignore_startup_parameters = extra_float_digits\n"
        );
        let started = start_script(Command::new("sh"), program, POOLER, &settings);
        let (folder, mut guard) = started.ok_or("pgbouncer cannot be started here")?;
        let mut line = String::new();
        while !line.contains("process up") {
            line.clear();
            if guard.answers.read_line(&mut line)? == 0 || line.contains("FATAL") {
                return Err(format!("pgbouncer does not start: {line}").into());
            }
        }
        let mut config = Config::new();
        #[cfg(unix)]
        config.host_path(&folder);
        config.port(6432).user(user).dbname(&database.name);
        let host = folder.display().to_string().replace('/', "%2F");
        let address = format!("postgres://{user}@{host}:6432/{}", database.name);
        Ok(Bouncer { guard, config, address })
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.guard.process.stdin.take());
        let _ = self.guard.process.wait();
    }
}

/// The error of the server, or of the connection to it, in a sentence.
fn message(error: &postgres::Error) -> String {
    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    format!("the server: {}", error.as_db_error().map_or(&*cause, |error| error.message()))
}
