//! Where a database is: in a file, or in a schema on a server. Opens the store of either.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::Clock;
#[cfg(feature = "postgres")]
use crate::clock::server::ServerClock;
#[cfg(feature = "postgres")]
use crate::clock::{Now, Timestamp};
#[cfg(feature = "postgres")]
use crate::error::BoxError;
use crate::error::{Error, Result};
#[cfg(feature = "postgres")]
use crate::host::state_folder;
use crate::host::{folder, platform};
#[cfg(feature = "postgres")]
use crate::model::finished::{Finished, Recorded};
use crate::model::progress_meter::Progress;
use crate::model::report::Migrated;
#[cfg(feature = "postgres")]
use crate::model::request::{Added, Existing};
#[cfg(feature = "postgres")]
use crate::model::run::Claim;
#[cfg(feature = "postgres")]
use crate::model::server_report::ServerReport;
#[cfg(feature = "postgres")]
use crate::model::task::Definition;
#[cfg(feature = "postgres")]
use crate::store::postgres::address::Address;
#[cfg(feature = "postgres")]
use crate::store::postgres::migrate::{self as migration, Direction};
#[cfg(feature = "postgres")]
use crate::store::postgres::{PostgresStore, Time};
use crate::store::sqlite::connection::{Prepare, SqliteStore};
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::{Open, Store};
use crate::text::database_name::is_address;
#[cfg(not(feature = "postgres"))]
use crate::text::database_name::shown;

/// A database that is named by a path, or by an address as in `postgres://user@host/database`.
#[derive(Clone)]
#[cfg_attr(windows, allow(clippy::large_enum_variant, reason = "few, and paths are larger there"))]
pub(crate) enum Place {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Server(Server),
}

/// A schema on a server, and what all connections to it share.
#[cfg(feature = "postgres")]
#[derive(Clone)]
pub(crate) struct Server {
    address: Address,
    /// Follows the server's time; `None` if the caller gives the time.
    clock: Option<Arc<ServerClock>>,
    /// The folder of local files; `None`: that of the user.
    state: Option<PathBuf>,
    /// Whether no connection may be served by a standby.
    needs_primary: bool,
}

impl Place {
    /// Returns the place that a text names: any text that does not begin as an address is a path.
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] for an address that cannot be read, or that this build cannot use.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let Some(address) = path.to_str().filter(|_| is_address(path)) else {
            return Ok(Place::File(path.to_owned()));
        };
        #[cfg(feature = "postgres")]
        {
            let address = Address::parse(address)?;
            Ok(Place::Server(Server { address, clock: None, state: None, needs_primary: false }))
        }
        #[cfg(not(feature = "postgres"))]
        {
            let _ = address;
            let reason = "it is an address of PostgreSQL, and this build of duly has no feature postgres: build it with that feature";
            Err(Error::UnusableDatabase { path: shown(path).into(), reason: reason.to_owned() })
        }
    }

    /// Lets all connections that are opened from now on use the server's time. Returns it as a clock, or `local` if there is no server.
    pub(crate) fn keep_time(&mut self, local: Arc<dyn Clock>) -> Arc<dyn Clock> {
        match self {
            Place::File(_) => local,
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let clock = Arc::new(ServerClock::new(local));
                server.clock = Some(clock.clone());
                clock
            }
        }
    }

    /// Gives a connection that was opened before the clock that new ones use.
    #[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "a file has the time of the machine"))]
    pub(crate) fn set_time_of(&self, store: &mut dyn Store) -> Result<()> {
        match self {
            Place::File(_) => Ok(()),
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let store = store.as_any().downcast_mut::<PostgresStore>();
                store.map_or(Ok(()), |store| store.keep_time(server.clock.clone()))
            }
        }
    }

    /// Sets the folder of the local files of schedulers on a server. `None`: that of tests.
    #[cfg(feature = "postgres")]
    pub(crate) fn keep_state_in(&mut self, folder: Option<PathBuf>) {
        if let Place::Server(server) = self {
            server.state = Some(folder.unwrap_or_else(state_folder::for_tests));
        }
    }

    /// Fails if this process must not, or cannot, run the tasks of the database. Creates nothing.
    pub(crate) fn check_owner(&self) -> Result<()> {
        match self {
            Place::File(path) => folder::foreign(path)
                .map_or(Ok(()), |fault| Err(Error::UnusableDatabase { path: path.clone(), reason: fault.to_string() })),
            #[cfg(feature = "postgres")]
            Place::Server(server) => PostgresStore::check_for_scheduler(&server.address),
        }
    }

    /// Opens a connection. Makes the tables if `missing` says so.
    pub(crate) fn open(&self, missing: Missing, durability: Durability) -> Result<Box<dyn Store>> {
        match self {
            Place::File(path) => Ok(Box::new(SqliteStore::open(path, missing, durability)?)),
            #[cfg(feature = "postgres")]
            Place::Server(server) => Ok(Box::new(server.open(missing)?)),
        }
    }

    /// Returns a function that opens a connection for each worker, which the application prepares. `anchor`: [`Place::anchor`]. The path
    /// of a file may have been relative to a folder that the process has left since.
    pub(crate) fn opener(
        &self,
        anchor: Arc<Path>,
        durability: Durability,
        prepare: Option<Arc<Prepare>>,
    ) -> Result<Arc<Open>> {
        match self {
            Place::File(_) => Ok(SqliteStore::opener(anchor, durability, prepare)),
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                if prepare.is_some() {
                    let reason = "it prepares connections of SQLite, and the database is on a server".to_owned();
                    return Err(Error::InvalidConfig { field: "on_connect", reason });
                }
                let server = server.clone();
                Ok(Arc::new(move || Ok(Box::new(server.open(Missing::Refuse)?))))
            }
        }
    }

    /// Returns the path beside which the local files of schedulers are: the file that `store` has open, or an anchor in a local folder,
    /// which is created.
    pub(crate) fn anchor(&self, store: &mut dyn Store) -> Result<PathBuf> {
        match self {
            Place::File(path) => Ok(store.as_file().map_or_else(|| path.clone(), |file| file.path().to_owned())),
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let doing = "make the folder of the local files";
                let store = store.as_any().downcast_mut::<PostgresStore>();
                let store = store.ok_or_else(|| Error::store(doing, "not a store on a server"))?;
                let anchor = server.anchor(store)?;
                state_folder::prepare(&anchor).map_err(|error| Error::store(doing, error))?;
                Ok(anchor)
            }
        }
    }

    /// Returns whether `store` is a connection to this database.
    pub(crate) fn holds(&self, store: &mut dyn Store) -> bool {
        match self {
            Place::File(path) => {
                let open = store.as_file().map(|file| file.path().to_owned());
                open.is_some_and(|open| platform::real_path(path).is_ok_and(|path| path == open))
            }
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let store = store.as_any().downcast_mut::<PostgresStore>();
                store.is_some_and(|store| store.address().to_string() == server.address.to_string())
            }
        }
    }
}

/// Returns the path beside which the local files of schedulers of this host are, if that is known.
pub(crate) fn beside(store: &mut dyn Store) -> Option<PathBuf> {
    if let Some(file) = store.as_file() {
        return Some(file.path().to_owned());
    }
    #[cfg(feature = "postgres")]
    return store.as_any().downcast_mut::<PostgresStore>().and_then(|store| store.beside());
    #[cfg(not(feature = "postgres"))]
    None
}

/// Returns the command that copies the database of a connection to a server. `None`: it is a file.
pub(crate) fn dump(store: &mut dyn Store) -> Option<String> {
    #[cfg(feature = "postgres")]
    return store.as_any().downcast_mut::<PostgresStore>().map(|store| {
        let (address, schema) = (store.address().to_string(), store.address().schema());
        // The schema is no parameter that pg_dump knows.
        let server = address.split('?').next().unwrap_or_default();
        format!("pg_dump --schema={schema} --format=custom --file=FILE {server}")
    });
    #[cfg(not(feature = "postgres"))]
    {
        let _ = store;
        None
    }
}

/// Copies all rows of a database into another one, which is new.
pub(crate) fn migrate(from: &Place, to: &Place, progress: &Progress) -> Result<Migrated> {
    #[cfg(feature = "postgres")]
    {
        let file = |path: &Path, missing| SqliteStore::open(path, missing, Durability::Full);
        match (from, to) {
            (Place::File(path), Place::Server(server)) => {
                let (mut file, mut server) = (file(path, Missing::Refuse)?, server.open(Missing::Create)?);
                return migration::migrate(&mut file, &mut server, Direction::ToServer, progress);
            }
            (Place::Server(server), Place::File(path)) => {
                let (mut server, mut file) = (server.open(Missing::Refuse)?, file(path, Missing::CreateAlone)?);
                return migration::migrate(&mut file, &mut server, Direction::ToFile, progress);
            }
            _ => {}
        }
    }
    let _ = progress;
    let reason = format!(
        "expected a file and an address of a server, found {from} and {to}: `duly backup` and pg_dump copy one to its like"
    );
    Err(Error::Refused { request: "migrate".to_owned(), reason })
}

/// Adds a task inside a transaction of the application on the server of `store`. `None`: that is a file.
#[cfg(feature = "postgres")]
pub(crate) fn add_in(
    store: &mut dyn Store,
    tx: &mut postgres::Transaction<'_>,
    task: &Definition,
    existing: Existing,
    now: Timestamp,
) -> Option<Result<Added>> {
    store.as_any().downcast_mut::<PostgresStore>().map(|store| store.add_in(tx, task, existing, now))
}

/// Settles a run in one transaction of the server of `store` with what `work` writes. `None`: that is a file.
#[cfg(feature = "postgres")]
pub(crate) fn finish(
    store: &mut dyn Store,
    owner: &str,
    claim: &Claim,
    work: impl FnOnce(&mut postgres::Transaction<'_>) -> Result<Finished, BoxError>,
) -> Option<Result<Recorded, BoxError>> {
    store.as_any().downcast_mut::<PostgresStore>().map(|store| store.finish(owner, claim, work))
}

/// Examines the session of a connection to a server. `now`: the clocks of this host. `None`: it is a file.
#[cfg(feature = "postgres")]
pub(crate) fn examine(store: &mut dyn Store, now: &dyn Fn() -> Now) -> Option<Result<ServerReport>> {
    store.as_any().downcast_mut::<PostgresStore>().map(|store| store.examine(now))
}

#[cfg(feature = "postgres")]
impl Server {
    /// Lets no standby serve the connections that are opened from now on, as a scheduler needs it: what a standby shows may be old.
    pub(crate) fn require_primary(&mut self) {
        self.needs_primary = true;
    }

    fn open(&self, missing: Missing) -> Result<PostgresStore> {
        let mut store = PostgresStore::open(&self.address, missing, Time::Given)?;
        if self.needs_primary {
            store.require_primary();
        }
        store.keep_time(self.clock.clone())?;
        // A client of a user without such a folder only learns less of the schedulers of this host.
        if let Ok(anchor) = self.anchor(&mut store) {
            store.stand_beside(anchor);
        }
        Ok(store)
    }

    fn anchor(&self, store: &mut PostgresStore) -> Result<PathBuf> {
        let (system, database) = store.identity()?;
        let parts = [system.as_str(), database.as_str(), self.address.schema()];
        let anchor = state_folder::anchor(self.state.as_deref(), &parts);
        anchor.map_err(|error| Error::store("find the folder of the local files", error))
    }
}

/// The name of the database, without a password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            #[cfg(feature = "postgres")]
            Place::Server(server) => server.address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;
    use std::path::Path;

    #[test]
    fn a_text_names_a_file_unless_it_begins_as_an_address() {
        for path in ["agent.db", "postgres", "postgres:/x", "/srv/postgres://x", "POSTGRES://h/d", "http://h/d"] {
            assert!(matches!(Place::of(Path::new(path)), Ok(Place::File(found)) if found == Path::new(path)), "{path}");
        }
        for address in ["postgres://h/d", "postgresql://h/d"] {
            let place = Place::of(Path::new(address));
            assert_eq!(place.is_ok(), cfg!(feature = "postgres"), "{address}");
            #[cfg(not(feature = "postgres"))]
            assert!(place.is_err_and(|error| error.to_string().contains("feature postgres")));
        }
    }
}
