//! One connection to the file, and the only place where transactions begin.
//!
//! Never writes to a file that is not duly's, that the path no longer names, or whose tables are of a newer version.

mod copy;
mod history_record;
pub(crate) mod known;
mod looks;
mod write_queue;

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::{BoxError, Error, Result};
use crate::host::{file_aliases, panics, platform};
use crate::schedule::Schedules;
use crate::store::Open;
use crate::store::fault::{Class, Fault};
use crate::store::sqlite::connection::known::{Beginning, Begun, KnownHistory, Purpose};
use crate::store::sqlite::connection::write_queue::WriterPlace;
use crate::store::sqlite::damage::Files;
use crate::store::sqlite::file::{self, Durability, Missing, Opened};
use crate::store::sqlite::ids::Ids;
use crate::store::sqlite::memory::Memory;
use crate::store::sqlite::migration::Tables;
use crate::store::sqlite::restore::Claims;
use crate::store::sqlite::restore::seen::{self, HighestIds};
use crate::store::sqlite::{invariants, schema};

/// A write-ahead log larger than this is truncated when the scheduler is idle.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// What may hold the lock of SQLite: no program can look that up.
const HOLDER: &str =
    "another connection has an open transaction that writes (if it is one of this thread, add tasks within it)";

/// The application's function that prepares each connection on which its handlers write.
pub(crate) type Prepare = dyn Fn(&Connection) -> Result<(), BoxError> + Send + Sync;

/// Logs a panic of the application's closure when it is dropped.
struct Disposed(Option<Arc<Prepare>>);

impl Drop for Disposed {
    fn drop(&mut self) {
        panics::dispose("the closure given to on_connect", self.0.take());
    }
}

/// Where the rows of a store in memory come from, and where they go.
pub(crate) trait Backing: Send + std::fmt::Debug {
    /// Writes the rows that a transaction needs into its tables, which are empty.
    fn fill(&mut self, tables: &Transaction<'_>) -> Result<(), Fault>;

    /// Commits what the transaction changed in its tables, elsewhere. The tables are emptied then.
    fn commit(&mut self, tables: &Transaction<'_>) -> Result<(), Fault>;

    /// Writes what the transaction has changed in its tables until now, without a commit. If it fails with a fault of the item, nothing
    /// of it is written, and the transaction can go on.
    fn write(&mut self, tables: &Transaction<'_>, whose: Whose) -> Result<(), Fault>;

    /// Goes on after the changes of a failed item were undone in the tables.
    fn undone(&mut self, tables: &Transaction<'_>) -> Result<(), Fault>;
}

/// What changed rows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One item, which can be left out.
    OfItem,
    /// What no item can be blamed for.
    OfAll,
}

/// An open database, with the state that is kept between transactions.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    identity: Option<(u64, u64)>,
    files: Files,
    schedules: Schedules,
    /// Whether the task that was added last was new.
    adds_new: bool,
    transactions: u64,
    /// The version of the tables that all statements are written for.
    version: i64,
    /// Whether newer tables are accepted: the owner then writes nothing but outcomes and its lease.
    accepts_newer: bool,
    history: KnownHistory,
    /// The state that turns keep; `None` before the first turn.
    memory: Option<Memory>,
    /// The time that a write waits for another connection's.
    busy_timeout: Duration,
    /// How long the last transaction held the lock of the file before its commit, which takes as long for few rows on a slow disk.
    held: Duration,
    /// Of a database in memory: its transactions work on copies of rows that are stored elsewhere.
    backing: Option<Box<dyn Backing>>,
}

impl SqliteStore {
    /// Opens a database in memory, whose rows are stored elsewhere. `name`: of that place, for messages.
    #[cfg(feature = "postgres")]
    pub(crate) fn in_memory(
        name: PathBuf,
        backing: impl FnOnce(&mut Connection) -> Result<Box<dyn Backing>, Fault>,
    ) -> Result<Self, Fault> {
        let mut connection = file::in_memory()?;
        let backing = backing(&mut connection)?;
        let mut store = SqliteStore::on(connection, name, None);
        store.backing = Some(backing);
        Ok(store)
    }

    /// Sets the path beside which lock files are.
    #[cfg(feature = "postgres")]
    pub(crate) fn stand_beside(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// Opens the database, creates its tables if `missing` says so, and migrates those of an older version.
    pub(crate) fn open(path: &Path, missing: Missing, durability: Durability) -> Result<Self> {
        Self::open_as(path, missing, durability, &Tables::CURRENT)
    }

    /// As [`SqliteStore::open`], for tables of another version.
    pub(crate) fn open_as(path: &Path, missing: Missing, durability: Durability, tables: &Tables) -> Result<Self> {
        let Opened { connection, path, identity } =
            file::open(path, missing, durability, tables).map_err(|fault| file::open_error(path, fault))?;
        let mut store = SqliteStore::on(connection, path, identity);
        store.version = tables.version;
        Ok(store)
    }

    fn on(connection: Connection, path: PathBuf, identity: Option<(u64, u64)>) -> Self {
        SqliteStore {
            connection,
            files: Files::of(&path, identity),
            path,
            identity,
            schedules: Schedules::default(),
            adds_new: false,
            transactions: 0,
            version: Tables::CURRENT.version,
            accepts_newer: false,
            history: KnownHistory::new(identity),
            memory: None,
            busy_timeout: file::BUSY_TIMEOUT,
            held: Duration::ZERO,
            backing: None,
        }
    }

    /// Returns a function that opens a connection for each worker, which the application prepares.
    pub(crate) fn opener(file: Arc<Path>, durability: Durability, prepare: Option<Arc<Prepare>>) -> Arc<Open> {
        let prepare = Disposed(prepare);
        Arc::new(move || {
            let mut store = SqliteStore::open(&file, Missing::Refuse, durability)?;
            store.claims();
            let Disposed(prepare) = &prepare;
            prepare.as_deref().map_or(Ok(()), |prepare| store.prepare(durability, prepare))?;
            Ok(Box::new(store))
        })
    }

    /// Has the application prepare this connection. Sets the settings that duly relies on again afterwards.
    fn prepare(&self, durability: Durability, f: &Prepare) -> Result<()> {
        let doing = "prepare a worker's connection (on_connect)";
        f(&self.connection).map_err(|error| Error::store(doing, error))?;
        if !self.connection.is_autocommit() {
            return Err(Error::store(doing, "it was left within a transaction: commit what it begins"));
        }
        file::configure(&self.connection, &self.path, durability).map_err(|fault| fault.into_error(doing))
    }

    /// Runs `f` in a transaction that holds the write lock from its beginning, and commits if it succeeds. A deferred
    /// transaction that became a writer would fail immediately where this one waits. Fails if the path no longer names the file, or
    /// the file has a second name.
    pub(crate) fn write<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.check_writable().and_then(|()| self.try_write(f)).map_err(|fault| self.error(fault, doing))
    }

    /// Returns the error for the caller of an operation that failed.
    pub(crate) fn error(&self, fault: Fault, doing: &'static str) -> Error {
        match fault {
            Fault::Store(Class::Busy, source) if self.backing.is_none() => {
                Error::store(doing, format!("{source}: {HOLDER}"))
            }
            fault => file::error(&self.path, fault, doing),
        }
    }

    /// As [`SqliteStore::write`], for a caller that handles faults and checks the file itself.
    pub(crate) fn try_write<T>(
        &mut self,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.try_write_items(None, |tx, schedules, _, _| f(tx, schedules))
    }

    /// As [`SqliteStore::try_write`], for a caller that writes item by item. `expected`: the attempts of the owner that takes its turn.
    /// The last argument of `f` is what is known of the file.
    pub(crate) fn try_write_items<T>(
        &mut self,
        expected: Option<(&str, &Claims)>,
        f: impl FnOnce(
            &Transaction<'_>,
            &mut Schedules,
            Option<&mut (dyn Backing + 'static)>,
            Option<Beginning>,
        ) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Some(backing) = &mut self.backing {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            self.transactions += 1;
            backing.fill(&transaction)?;
            if !self.accepts_newer {
                schema::check_version(&transaction, &self.path, self.version)?;
            }
            let answer = f(&transaction, &mut self.schedules, Some(backing.as_mut()), None)?;
            backing.commit(&transaction)?;
            return Ok(answer);
        }
        let place = self.writer_place()?;
        let begun = place.lock(&self.connection, Begun::new)?;
        self.transactions += 1;
        if !self.accepts_newer {
            schema::compare_version(begun.seen.version.as_deref(), &self.path, self.version)?;
        }
        let (transaction, beginning) = self.history.compare(begun, &self.path, expected)?;
        // Rows of other programs may break an invariant; a transaction breaks none that held.
        let held_before = cfg!(debug_assertions) && invariants::hold(&transaction);
        let began = place.now();
        let answer = f(&transaction, &mut self.schedules, None, Some(beginning))?;
        self.held = place.now().saturating_sub(began);
        debug_assert!(
            !held_before || !invariants::are_broken(&transaction),
            "{:?}",
            invariants::broken(&transaction, 1)
        );
        let ids = HighestIds::read(&transaction)?;
        transaction.commit()?;
        self.history.committed(ids, expected.is_some());
        Ok(answer)
    }

    /// Runs `f`, which is one statement that writes: a separate transaction, for which SQLite takes the write lock before it
    /// reads anything, as for `BEGIN IMMEDIATE`. The statement adds a task, and checks the version of the tables, an argument of `f`, itself.
    pub(crate) fn write_alone<T>(
        &mut self,
        f: impl FnOnce(&Connection, &mut Schedules, &mut Ids, i64) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let place = self.backing.is_none().then(|| self.writer_place()).transpose()?;
        // A restore in the moment between this and the statement is found by the next transaction.
        if self.backing.is_none() {
            let cookie = seen::cookie(&self.connection)?;
            if !self.history.is_at(cookie) {
                return Err(Error::store("add a task by one statement", "the schema has changed").into());
            }
        }
        let before = cfg!(debug_assertions).then(|| self.found(invariants::hold)).transpose()?;
        self.transactions += 1;
        let (schedules, ids, version) = (&mut self.schedules, &mut self.history.ids, self.version);
        let answer = match &place {
            Some(place) => place.lock(&self.connection, |connection| f(connection, schedules, ids, version)),
            None => f(&self.connection, schedules, ids, version),
        }?;
        self.history.gave_out(HighestIds { tasks: self.connection.last_insert_rowid(), runs: 0 });
        // Neither check is reliable if a table has become too large to check.
        let broken = |(others, held)| held && self.found(invariants::are_broken).is_ok_and(|now| now == (others, true));
        debug_assert!(!before.is_some_and(broken), "one statement broke a rule that held");
        Ok(answer)
    }

    /// Returns whether the rows are stored elsewhere.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.backing.is_some()
    }

    /// Returns the schedules that are parsed already.
    #[cfg(feature = "postgres")]
    pub(crate) fn schedules(&mut self) -> &mut Schedules {
        &mut self.schedules
    }

    /// Returns whether the next task to be added is likely to be new, as the last one was.
    pub(crate) fn adds_new(&self) -> bool {
        self.adds_new && self.backing.is_none()
    }

    /// Records whether the task that was added was new.
    pub(crate) fn added(&mut self, new: bool) {
        self.adds_new = new;
    }

    /// Returns the data version, and whether the invariants hold.
    fn found(&mut self, of_the_rules: fn(&Transaction<'_>) -> bool) -> rusqlite::Result<(i64, bool)> {
        let transaction = self.connection.transaction()?;
        Ok((data_version(&transaction)?, of_the_rules(&transaction)))
    }

    /// Frees the pages that SQLite keeps in memory, after a look at many rows that are not needed soon.
    pub(crate) fn release_memory(&self) {
        // Without it, SQLite only keeps more.
        let _ = self.connection.release_memory();
    }

    /// Accepts newer tables from now on, for an owner that has outcomes to write before it shuts down.
    pub(crate) fn accept_newer(&mut self) {
        self.accepts_newer = true;
    }

    /// Resets the state that is kept between transactions, except prepared statements: a new owner uses the connection.
    pub(crate) fn reset(&mut self, random: fastrand::Rng) {
        (self.schedules, self.history.ids) = (Schedules::default(), Ids::default());
        self.memory = Some(Memory::new(random));
        (self.adds_new, self.transactions, self.accepts_newer) = (false, 0, false);
        self.history.purpose = Purpose::Requests;
        // The copies of pages that a statement may undo, beyond 64 KiB a file each time. Only speed depends on it.
        let _ = self.connection.pragma_update(None, "temp_store", "memory");
    }

    /// Takes the state of the last turn, which the caller puts back.
    pub(crate) fn take_memory(&mut self) -> Memory {
        self.memory.take().unwrap_or_default()
    }

    pub(crate) fn put_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Runs `f` as [`SqliteStore::write`] does, and rolls back.
    pub(crate) fn rehearse<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        let place = self.backing.is_none().then(|| self.writer_place()).transpose();
        let rehearsed = place.and_then(|place| self.without_commit(place.as_ref(), f));
        rehearsed.map_err(|fault| self.error(fault, doing))
    }

    /// Runs `f` over one snapshot, without a lock that a writer would wait for. Fails if the path no longer names the file: a
    /// reader that waits for a change would wait forever.
    pub(crate) fn read<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.without_commit(None, f).map_err(|fault| self.error(fault, doing))
    }

    /// `place`: of one that writes before it is rolled back.
    fn without_commit<T>(
        &mut self,
        place: Option<&WriterPlace>,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.check_in_place()?;
        let begin = |behavior| move |connection| Transaction::new_unchecked(connection, behavior);
        let transaction = match place {
            Some(place) => place.lock(&self.connection, begin(TransactionBehavior::Immediate)),
            None => begin(TransactionBehavior::Deferred)(&self.connection),
        }?;
        self.backing.as_mut().map_or(Ok(()), |backing| backing.fill(&transaction))?;
        schema::check_version(&transaction, &self.path, self.version)?;
        f(&transaction, &mut self.schedules)
    }

    /// Disables the checkpoint when this connection is closed, even if it is the last: a reader changes no byte of the file.
    pub(crate) fn leave_log(&self) -> Result<()> {
        let left = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        left.map(|_| ()).map_err(|error| Error::store("leave the log as it is", error))
    }

    /// Makes SQLite refuse every write on this connection from now on.
    #[cfg(feature = "page")]
    pub(crate) fn refuse_writes(&self) -> Result<()> {
        let doing = "make a connection read-only";
        let set = self.connection.pragma_update(None, "query_only", 1);
        let read = || self.connection.pragma_query_value(None, "query_only", |row| row.get::<_, i64>(0));
        match set.and_then(|()| read()).map_err(|error| Error::store(doing, error))? {
            1 => Ok(()),
            value => Err(Error::store(doing, format!("SQLite keeps query_only at {value}, expected 1"))),
        }
    }

    /// Returns 128 random bits as hexadecimal digits. SQLite seeds its generator, ChaCha20, from the operating system.
    #[cfg(feature = "page")]
    pub(crate) fn random_token(&self) -> Result<String> {
        let token = self.connection.query_row("SELECT lower(hex(randomblob(16)))", [], |row| row.get(0));
        token.map_err(|error| Error::store("make a random token", error))
    }

    /// Returns a number that changes whenever another connection has committed.
    pub(crate) fn data_version(&self) -> Result<i64> {
        data_version(&self.connection).map_err(|error| Error::store("look for changes", error))
    }

    /// Truncates the log if it has grown beyond what a busy hour needs. Call it when the scheduler is idle.
    pub(crate) fn shrink_log(&self) -> Result<()> {
        if std::fs::metadata(file::log(&self.path)).is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
            // If a reader prevents it, the next idle moment is soon enough. With a busy timeout, SQLite would wait for that reader
            // while it holds the write lock: no run would start.
            let shrunk = self
                .connection
                .busy_timeout(Duration::ZERO)
                .and_then(|()| self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
            let restored = self.connection.busy_timeout(self.busy_timeout);
            return shrunk.and(restored).map_err(|error| Error::store("shrink the log", error));
        }
        Ok(())
    }

    /// Sets how long a write waits for another connection's.
    pub(crate) fn set_busy_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.busy_timeout = timeout;
        self.connection.busy_timeout(timeout).map_err(|error| Error::store("set the busy timeout", error))
    }

    /// Returns how long the last transaction held the lock of the file before its commit.
    pub(crate) fn held(&self) -> Duration {
        self.held
    }

    /// Waits until it is this connection's turn to write, among those of this process to the file. A connection that has waited for as
    /// long as it would for others fails as if SQLite had refused the lock.
    fn writer_place(&self) -> Result<WriterPlace, Fault> {
        self.history.queue().wait(self.busy_timeout).map_err(Fault::from)
    }

    /// Returns the number of write transactions begun; for tests of the cost of an idle loop.
    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Returns the sizes of the file and its write-ahead log in bytes; 0 for a missing file.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        (size(&self.path), size(&file::log(&self.path)))
    }

    /// Writes the tasks and the history of the bench of the page, as another program would: no rule is checked.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, tasks: usize, runs: usize, now: i64) {
        let size = format!("CREATE TEMP TABLE size AS SELECT {tasks} AS tasks, {runs} AS runs, {now} AS now;");
        let rows = include_str!("../../../benches/page/rows.sql");
        self.connection.execute_batch(&format!("BEGIN; {size} {rows} COMMIT;")).expect("rows");
    }

    /// Returns the queue in which the connections of this process to the file write.
    #[cfg(test)]
    fn queue(&self) -> Arc<write_queue::WriteQueue> {
        self.history.queue()
    }

    /// Measures the use of the lock by another clock.
    #[cfg(test)]
    pub(crate) fn measure_by(&self, clock: Arc<dyn crate::clock::Clock>) {
        self.queue().measure_by(clock);
    }

    /// Counts the steps of SQLite's virtual machine from now on.
    #[cfg(test)]
    pub(crate) fn count_steps(&mut self) -> Arc<std::sync::atomic::AtomicU64> {
        let steps = Arc::<std::sync::atomic::AtomicU64>::default();
        let counter = steps.clone();
        let count = move || {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            false
        };
        self.connection.progress_handler(1, Some(count)).expect("a handler");
        steps
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if the path no longer names the file that is open: no other program would see what SQLite writes. Also fails if
    /// the file or its log was damaged.
    pub(crate) fn check_in_place(&self) -> Result<(), Fault> {
        if self.backing.is_some() {
            return Ok(());
        }
        self.in_place()?;
        self.check_files()
    }

    /// As [`SqliteStore::check_in_place`], and fails while the file has a second name. That may be temporary, so the error is no
    /// [`Error::UnusableDatabase`].
    pub(crate) fn check_writable(&self) -> Result<(), Fault> {
        if self.backing.is_some() {
            return Ok(());
        }
        let metadata = self.in_place()?;
        self.check_files()?;
        match file_aliases::hard_links(&self.path, &metadata) {
            Some(reason) => Err(Error::store("share one log with every program that opens the file", reason).into()),
            None => Ok(()),
        }
    }

    /// Compares the content of the file in all checks from now on.
    pub(crate) fn watch(&self) {
        if self.backing.is_some() {
            return;
        }
        self.files.watch(&self.connection);
        let _ = self.check_in_place();
    }

    /// Renames the log of a damaged file, so that no program applies it to the file that is at the path now.
    pub(crate) fn set_log_aside(&self) {
        _ = self.files.set_log_aside();
    }

    /// Compares the file and its log with what they were.
    fn check_files(&self) -> Result<(), Fault> {
        looks::looked_twice(|| self.files.check(&self.connection), || self.in_place().map(drop).map_err(Fault::from))
    }

    fn in_place(&self) -> Result<Metadata> {
        // A real path ends in no symbolic link: a link that is found leads to where the file was moved.
        let found = if cfg!(unix) { self.path.symlink_metadata() } else { self.path.metadata() };
        match found {
            Ok(metadata) if platform::may_be(platform::identity(&metadata, &self.path), self.identity) => Ok(metadata),
            // The log would be applied to the file that is there now.
            Ok(_) => {
                let aside = self.files.set_log_aside();
                let renamed = aside
                    .as_deref()
                    .and_then(Path::file_name)
                    .map(|name| format!(", and its log was renamed {}", name.display()));
                let renamed = renamed.unwrap_or_default();
                let reason = format!("it was replaced by another file while it was open{renamed}: start again");
                Err(file::unusable(&self.path, reason))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(file::unusable(&self.path, format!("it was removed or moved while it was open ({error})")))
            }
            // The disk or the folder does not respond: an error, not evidence that the file was moved.
            Err(error) => Err(Error::store("look whether the database is in its place", error)),
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if self.backing.is_some() {
            return;
        }
        // A file that was moved keeps its log. If another one is there, a log of this name is that one's.
        let is_there = self.path.symlink_metadata().is_ok();
        if is_there && (self.in_place().is_err() || !self.files.may_write_back(&self.connection)) {
            let _ = self.leave_log();
        }
    }
}

/// Runs `f` inside a transaction of the application on this file. If `f` fails, only its own changes are rolled back.
pub(crate) fn within<T>(
    tx: &Transaction<'_>,
    path: &Path,
    doing: &'static str,
    f: impl FnOnce(&mut Schedules) -> Result<T, Fault>,
) -> Result<T> {
    let mark = |sql| tx.execute_batch(sql).map_err(|error| Error::store(doing, error));
    mark("SAVEPOINT duly_within")?;
    let answer = schema::check_version(tx, path, Tables::CURRENT.version)
        .and_then(|()| f(&mut Schedules::default()))
        .map_err(|fault| fault.into_error(doing));
    if answer.is_err() {
        // An error that ended the whole transaction has also ended the savepoint.
        let _ = mark("ROLLBACK TO duly_within");
    }
    match (answer, mark("RELEASE duly_within")) {
        (Ok(answer), released) => released.map(|()| answer),
        (Err(error), _) => Err(error),
    }
}

/// Returns the version of SQLite.
pub(crate) fn sqlite_version() -> &'static str {
    rusqlite::version()
}

pub(crate) fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
