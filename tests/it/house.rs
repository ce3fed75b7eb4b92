//! The harness. Every test works on a real file in a folder of its own, which goes away with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use duly::testing::{Stepper, StepperBuilder};
use duly::{Client, Timestamp};
use rusqlite::Connection;
use tempfile::TempDir;

/// Longest that a test waits for something outside itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder and the name of a database in it.
pub(crate) struct House {
    home: TempDir,
    file: PathBuf,
}

impl House {
    pub(crate) fn new() -> Self {
        Self::of(tempfile::tempdir().expect("a temporary folder"))
    }

    /// One in the memory of the machine, where the system has a folder there: for the many houses of a loop, which would
    /// wait for the disk most of the time.
    pub(crate) fn brief() -> Self {
        Self::of(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder"))
    }

    fn of(home: TempDir) -> Self {
        let file = home.path().join("agent.db");
        House { home, file }
    }

    /// The same, with the database in a folder of its own below: another disk may be there.
    pub(crate) fn with_folder(folder: &str) -> Self {
        let House { home, .. } = House::new();
        let file = home.path().join(folder).join("agent.db");
        std::fs::create_dir(home.path().join(folder)).expect("a folder");
        House { home, file }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// A stepper on the house's file, which accepts runs of the handler `work`.
    pub(crate) fn stepper(&self, now: &str) -> Stepper {
        self.builder(now).accept("work").start().expect("a stepper")
    }

    /// The same, to be put together.
    pub(crate) fn builder(&self, now: &str) -> StepperBuilder {
        Stepper::builder(&self.file, at(now))
    }

    /// A client with the machine's clock.
    pub(crate) fn client(&self) -> Client {
        Client::open(&self.file).expect("a client")
    }

    /// A connection such as another program would open: nothing set, nothing known of duly.
    pub(crate) fn plain(&self) -> Connection {
        let plain = Connection::open(&self.file).expect("a plain connection");
        plain.busy_timeout(Duration::from_secs(5)).expect("a busy timeout");
        plain
    }

    /// The one value that a query answers with, as text; `NULL` for none.
    pub(crate) fn ask(&self, query: &str) -> String {
        use rusqlite::types::ValueRef;
        let answer = self.plain().query_row(query, [], |row| {
            Ok(match row.get_ref(0)? {
                ValueRef::Null => "NULL".to_owned(),
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Real(number) => number.to_string(),
                ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into_owned(),
            })
        });
        answer.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// Every row of a query, its columns joined by a bar: small tables to compare whole.
    pub(crate) fn rows(&self, query: &str) -> Vec<String> {
        let plain = self.plain();
        let mut statement = plain.prepare(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let cells = (0..columns).map(|column| {
                row.get::<_, rusqlite::types::Value>(column).map(|value| match value {
                    rusqlite::types::Value::Null => "-".to_owned(),
                    rusqlite::types::Value::Integer(number) => number.to_string(),
                    rusqlite::types::Value::Real(number) => number.to_string(),
                    rusqlite::types::Value::Text(text) => text,
                    rusqlite::types::Value::Blob(blob) => format!("{blob:?}"),
                })
            });
            Ok(cells.collect::<Result<Vec<_>, _>>()?.join("|"))
        });
        rows.and_then(Iterator::collect).unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// SQLite's own checks find nothing, and nothing is half-made.
    pub(crate) fn assert_sound(&self) {
        let findings = Client::open_existing(&self.file).expect("a client").doctor().expect("a look");
        assert!(findings.is_empty(), "{findings:#?}");
        assert_eq!(self.ask("SELECT count(*) FROM task_runs WHERE attempt < forgiven"), "0");
    }
}

/// An instant.
pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Waits until something outside the test has come about. Fails, naming it, when patience ends.
pub(crate) fn eventually(what: &str, mut come_about: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !come_about() {
        assert!(begin.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
