//! What the tests share: a database file in a temporary folder, steppers and clients on it, its tables as text, waits with a deadline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use duly::testing::{Stepper, StepperBuilder};
use duly::{Claim, Client, NewTask, Outcome, Timestamp};
use rusqlite::Connection;
use tempfile::TempDir;

/// Longest that a test waits for something outside itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder and the name of a database in it.
pub(crate) struct TestDb {
    home: TempDir,
    file: PathBuf,
}

impl TestDb {
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
        TestDb { home, file }
    }

    /// The same, with the database in a folder of its own below: another disk may be there.
    pub(crate) fn with_folder(folder: &str) -> Self {
        let TestDb { home, .. } = TestDb::new();
        let file = home.path().join(folder).join("agent.db");
        std::fs::create_dir(home.path().join(folder)).expect("a folder");
        TestDb { home, file }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// A stepper on the db's file, which accepts runs of the handler `work`.
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

impl TestDb {
    /// Every run of a task, oldest occurrence first: the occurrence, origin, status, and for a row that stands for several
    /// how many and the last of them. Milliseconds are shown where there are some.
    pub(crate) fn history(&self, task: &str) -> Vec<String> {
        let time = |column: &str| {
            format!(
                "strftime('%Y-%m-%d %H:%M:%S', {column} / 1000, 'unixepoch')
                 || iif({column} % 1000 = 0, '', printf('.%03d', {column} % 1000))"
            )
        };
        self.rows(&format!(
            "SELECT {} || ' ' || origin || ' ' || status
                    || iif(last_scheduled_for IS NULL AND occurrences = 1, '', ' x' || occurrences || ' to ' || {})
                    || iif(error GLOB 'at least *', ' at least', '')
               FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = '{task}')
              ORDER BY scheduled_for, id",
            time("scheduled_for"),
            time("last_scheduled_for"),
        ))
    }

    /// `next_run` of a task and its status.
    pub(crate) fn next(&self, task: &str) -> String {
        self.ask(&format!(
            "SELECT ifnull(strftime('%Y-%m-%d %H:%M:%S', next_run / 1000, 'unixepoch'), '-') || ' ' || status
               FROM scheduled_tasks WHERE name = '{task}'"
        ))
    }

    /// Adds a task that nothing happens to, and a waiting run of it; see [`TestDb::assert_bystander`].
    pub(crate) fn add_bystander(&self, stepper: &Stepper) -> Vec<String> {
        let never = NewTask::once("bystander", at("3999-01-01T00:00:00Z")).handler("nobody").priority(3);
        stepper.client().add(never).expect("a bystander");
        stepper.client().trigger("bystander").expect("a run of the bystander");
        self.bystander()
    }

    fn bystander(&self) -> Vec<String> {
        let mut rows = self.rows("SELECT * FROM scheduled_tasks WHERE name = 'bystander'");
        rows.extend(self.rows(
            "SELECT r.* FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                                WHERE t.name = 'bystander'",
        ));
        rows
    }

    /// Neither the bystander's row nor that of its run has changed.
    #[track_caller]
    pub(crate) fn assert_bystander(&self, before: &[String]) {
        assert_eq!(self.bystander(), before, "the bystander has changed");
    }

    /// A task has these rows and no others.
    #[track_caller]
    pub(crate) fn assert_history(&self, task: &str, expected: &[&str]) {
        let found = self.history(task);
        assert!(found == expected, "{task}:\n  found    {found:#?}\n  expected {expected:#?}");
    }
}

/// Takes one step that must claim as many runs.
#[track_caller]
pub(crate) fn step(stepper: &mut Stepper, claims: usize) -> Vec<Arc<Claim>> {
    let claimed = stepper.step().expect("a step");
    assert_eq!(claimed.len(), claims, "claimed {claimed:#?}");
    claimed
}

/// Takes one step that must claim one run.
#[track_caller]
pub(crate) fn claim(stepper: &mut Stepper) -> Arc<Claim> {
    step(stepper, 1).remove(0)
}

/// Ends an attempt well, and takes the step that settles it. Answers with what that step claimed.
pub(crate) fn succeed(stepper: &mut Stepper, claim: &Arc<Claim>) -> Vec<Arc<Claim>> {
    stepper.finish(claim, Outcome::succeeded());
    stepper.step().expect("a step")
}

/// Steps, and ends whatever is claimed at once, until there is no more to do now. Answers with the claims, in order.
pub(crate) fn work_off(stepper: &mut Stepper) -> Vec<Arc<Claim>> {
    let mut done = Vec::new();
    loop {
        let claims = stepper.step().expect("a step");
        if claims.is_empty() && stepper.sleeps() > Duration::ZERO {
            return done;
        }
        for claim in claims {
            stepper.finish(&claim, Outcome::succeeded());
            done.push(claim);
        }
    }
}
