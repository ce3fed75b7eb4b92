//! Shared helpers: a database in a temporary folder or on a server, steppers and clients on it, its rows as text, common tasks,
//! child processes, waits with a deadline.

#[cfg(feature = "postgres")]
pub(crate) mod on_server;
mod process;
mod stores;
mod waits;
mod watchdog;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use duly::testing::{Stepper, StepperBuilder};
use duly::{
    AttemptOutcome, Claim, Client, Event, Limits, NewTask, Outcome, RetryPolicy, Run, RunFilter, RunStatus, Scheduler,
    Timestamp,
};
use rusqlite::Connection;
use tempfile::TempDir;

#[cfg(feature = "postgres")]
use crate::fixtures::on_server::OnServer;
pub(crate) use crate::fixtures::process::{Process, example, test_process};
#[cfg(feature = "tokio")]
pub(crate) use crate::fixtures::stores::finish_async;
pub(crate) use crate::fixtures::stores::{finish, is_of_sqlite, shell};
#[cfg(any(feature = "tokio", feature = "postgres"))]
pub(crate) use crate::fixtures::waits::Arrivals;
#[cfg(feature = "tokio")]
pub(crate) use crate::fixtures::waits::eventually_async;
pub(crate) use crate::fixtures::waits::{
    end, eventually, eventually_counts, exited, held, joined, patience, reap, receive, receive_until,
};
pub(crate) use crate::fixtures::watchdog::{LIMIT, Watched};

/// The time at which most steppers start; a Sunday.
pub(crate) const NOON: &str = "2027-03-14T12:00:00Z";

/// A temporary folder and a database: a file in it or, for the shared modules with `DULY_STORE=postgres`, a schema on a server. See
/// `on_postgres`.
pub(crate) struct TestDb {
    home: TempDir,
    file: PathBuf,
    #[cfg(feature = "postgres")]
    server: Option<OnServer>,
    _watched: Watched,
}

impl TestDb {
    pub(crate) fn new() -> Self {
        Self::of(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A new database and a client with the machine's clock.
    pub(crate) fn with_client() -> (Self, Client) {
        let db = Self::new();
        let client = db.client();
        (db, client)
    }

    /// A new database and a stepper that starts at [`NOON`] and accepts runs of the handler `work`.
    pub(crate) fn with_stepper() -> (Self, Stepper) {
        let db = Self::new();
        let stepper = db.stepper(NOON);
        (db, stepper)
    }

    /// As [`TestDb::with_stepper`], and the stepper's client.
    pub(crate) fn with_stepper_and_client() -> (Self, Stepper, Client) {
        let (db, stepper) = Self::with_stepper();
        let client = stepper.client().clone();
        (db, stepper, client)
    }

    /// Uses a folder in memory where the system has one: a loop over many databases would otherwise mostly wait for the disk.
    pub(crate) fn brief() -> Self {
        Self::of(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder"))
    }

    /// A schema on a server, whatever the variable says. `None`: there is no server here.
    #[cfg(feature = "postgres")]
    pub(crate) fn on_server() -> Option<Self> {
        let server = Some(OnServer::at(crate::postgres::database()?));
        Some(TestDb { server, ..Self::of(tempfile::tempdir().expect("a temporary folder")) })
    }

    fn of(home: TempDir) -> Self {
        TestDb {
            file: home.path().join("agent.db"),
            home,
            #[cfg(feature = "postgres")]
            server: crate::on_postgres::database().map(OnServer::at),
            _watched: Watched::test(),
        }
    }

    /// Puts the database into a subfolder, on which another file system can be mounted.
    pub(crate) fn with_folder(folder: &str) -> Self {
        let mut db = TestDb::new();
        std::fs::create_dir(db.home().join(folder)).expect("a folder");
        db.file = db.home().join(folder).join("agent.db");
        db
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The path of the file, for tests that are about files.
    pub(crate) fn file(&self) -> &Path {
        assert!(!self.is_on_server(), "a test of a file runs with DULY_STORE=sqlite");
        &self.file
    }

    /// What a client or a scheduler opens: the path of the file, or the address of the server.
    pub(crate) fn address(&self) -> &Path {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            return Path::new(server.address());
        }
        &self.file
    }

    pub(crate) fn is_on_server(&self) -> bool {
        #[cfg(feature = "postgres")]
        return self.server.is_some();
        #[cfg(not(feature = "postgres"))]
        false
    }

    /// The folder of the lock files, of steppers if it is on a server.
    pub(crate) fn lock_folder(&self) -> PathBuf {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            return server.lock_folder();
        }
        self.file.with_file_name("agent.db-owners")
    }

    pub(crate) fn lock_file(&self, stepper: &Stepper) -> PathBuf {
        self.lock_folder().join(stepper.owner())
    }

    /// Has others know nothing of an owner that goes on: its lock file is gone, and on a server its session too.
    pub(crate) fn hide(&self, stepper: &Stepper) {
        std::fs::remove_file(self.lock_file(stepper)).expect("its lock file");
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            server.cut_session(stepper.owner());
        }
    }

    /// The input file of the first attempt of run 1.
    #[cfg(target_os = "linux")]
    pub(crate) fn input_file(&self) -> PathBuf {
        self.lock_folder().join("run-1-1")
    }

    /// The names of all files in the folder of the lock files, but for the record of the history, which stays.
    pub(crate) fn lock_files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.lock_folder()).expect("the folder of the lock files");
        let names = files.map(|file| file.expect("a lock file").file_name().to_string_lossy().into_owned());
        names.filter(|name| name != "history.json").collect()
    }

    /// The lines of a text file in the folder; none if there is no such file.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.home().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The program `duly` on this database, started in the folder, with UTC as its local zone.
    pub(crate) fn duly(&self, arguments: &[&str]) -> Command {
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
        duly.arg("--db").arg(self.address()).args(arguments).current_dir(self.home()).env("TZ", "UTC");
        duly
    }

    /// Runs `duly`, which must succeed, and returns what it prints.
    #[track_caller]
    pub(crate) fn printed(&self, arguments: &[&str]) -> String {
        let output = self.duly(arguments).output().expect("the program");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// A stepper that accepts runs of the handler `work`.
    pub(crate) fn stepper(&self, now: &str) -> Stepper {
        self.builder(now).accept("work").start().expect("a stepper")
    }

    /// As [`TestDb::stepper`], and the stepper's events.
    pub(crate) fn stepper_with_events(&self, now: &str) -> (Stepper, Receiver<Event>) {
        let (observer, events) = listen();
        (self.builder(now).accept("work").observe(observer).start().expect("a stepper"), events)
    }

    /// A stepper to be configured.
    pub(crate) fn builder(&self, now: &str) -> StepperBuilder {
        Stepper::builder(self.address(), at(now))
    }

    /// A client with the machine's clock.
    pub(crate) fn client(&self) -> Client {
        Client::open(self.address()).expect("a client")
    }

    /// A connection to the file as another program opens it, with SQLite's default settings.
    pub(crate) fn plain(&self) -> Connection {
        let plain = Connection::open(self.file()).expect("a plain connection");
        plain.busy_timeout(Duration::from_secs(5)).expect("a busy timeout");
        plain
    }

    /// Executes statements as another program does. Returns the number of rows that the last of them wrote.
    pub(crate) fn try_execute(&self, sql: &str) -> Result<usize, String> {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            return server.execute(sql);
        }
        let plain = self.plain();
        plain.execute_batch(sql).map_err(|error| error.to_string())?;
        Ok(plain.changes() as usize)
    }

    /// As [`TestDb::try_execute`], of statements that must be accepted.
    #[track_caller]
    pub(crate) fn execute(&self, sql: &str) -> usize {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Calls `look` with a connection that reads the rows of a query: to the file, or to a copy of the tables of the server.
    fn read<T>(&self, query: &str, look: impl FnOnce(&Connection) -> T) -> T {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            return look(&server.copy_for(query));
        }
        #[cfg(not(feature = "postgres"))]
        let _ = query;
        look(&self.plain())
    }

    /// Returns the one value of a query as text; `NULL` for none.
    pub(crate) fn ask(&self, query: &str) -> String {
        use rusqlite::types::ValueRef;
        let answer = self.read(query, |tables| {
            tables.query_row(query, [], |row| {
                Ok(match row.get_ref(0)? {
                    ValueRef::Null => "NULL".to_owned(),
                    ValueRef::Integer(number) => number.to_string(),
                    ValueRef::Real(number) => number.to_string(),
                    ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into_owned(),
                })
            })
        });
        answer.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// Returns the one value of a query, which must be a number.
    pub(crate) fn number<T: FromStr>(&self, query: &str) -> T {
        let text = self.ask(query);
        text.parse().unwrap_or_else(|_| panic!("{query}: expected a number, found {text}"))
    }

    /// Counts rows, `FROM` these, where they are: a copy of very many takes long.
    pub(crate) fn count_rows(&self, rows: &str) -> usize {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            return server.count_rows(rows);
        }
        self.number(&format!("SELECT count(*) FROM {rows}"))
    }

    /// Returns every row of a query, its columns joined by a bar.
    pub(crate) fn rows(&self, query: &str) -> Vec<String> {
        use rusqlite::types::Value;
        let rows = self.read(query, |tables| {
            let mut statement = tables.prepare(query)?;
            let columns = statement.column_count();
            let rows = statement.query_map([], |row| {
                let cells = (0..columns).map(|column| {
                    row.get::<_, Value>(column).map(|value| match value {
                        Value::Null => "-".to_owned(),
                        Value::Integer(number) => number.to_string(),
                        Value::Real(number) => number.to_string(),
                        Value::Text(text) => text,
                        Value::Blob(blob) => format!("{blob:?}"),
                    })
                });
                Ok(cells.collect::<Result<Vec<_>, _>>()?.join("|"))
            })?;
            rows.collect::<rusqlite::Result<_>>()
        });
        rows.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// Asserts that `doctor` finds nothing and that no run has more forgiven attempts than attempts.
    pub(crate) fn assert_sound(&self) {
        assert_eq!(findings(&self.reader()), [""; 0]);
        assert_eq!(self.ask("SELECT count(*) FROM task_runs WHERE attempt < forgiven"), "0");
    }

    /// A client on the existing database.
    fn reader(&self) -> Client {
        Client::open_existing(self.address()).expect("a client")
    }

    /// Returns every row of the tasks' table.
    pub(crate) fn tasks(&self) -> Vec<String> {
        self.rows("SELECT * FROM scheduled_tasks ORDER BY id")
    }

    pub(crate) fn run(&self, id: i64) -> Run {
        self.reader().run(id).expect("a look-up").expect("a run")
    }

    /// Returns every run, oldest id first.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs = self.reader().newest_runs(100_000).expect("the runs");
        runs.sort_by_key(|run| run.id);
        runs
    }

    /// Returns `task|status|attempt` of every run, oldest id first.
    pub(crate) fn states(&self) -> Vec<String> {
        self.runs().iter().map(|run| format!("{}|{}|{}", run.task, run.status, run.attempt)).collect()
    }

    /// Returns `attempt|outcome` of every recorded attempt, by run. Without released ones: how many claims no worker begins in time
    /// depends on the load.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        let client = self.reader();
        let attempts = self.runs().into_iter().flat_map(|run| client.attempts(run.id).expect("the attempts"));
        let attempts = attempts.filter(|attempt| attempt.outcome != AttemptOutcome::Released);
        attempts.map(|attempt| format!("{}|{}", attempt.attempt, attempt.outcome)).collect()
    }

    /// The number of schedulers that have registered and not stopped.
    pub(crate) fn registered_schedulers(&self) -> usize {
        self.number("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL")
    }

    /// The number of runs with a status.
    pub(crate) fn count(&self, status: RunStatus) -> usize {
        self.reader().runs(&RunFilter::newest(100_000).status(status)).expect("the runs").len()
    }
}

/// A task of the handler `work` that is due once, at [`NOON`].
pub(crate) fn once(name: &str) -> NewTask {
    NewTask::once(name, at(NOON)).handler("work")
}

/// While it exists, no success can be recorded.
pub(crate) const REFUSE: &str = "CREATE TRIGGER refuse BEFORE UPDATE ON task_runs WHEN NEW.status = 'succeeded'
                                 BEGIN SELECT RAISE(ABORT, 'not today'); END";

/// A task of the handler `work` that has been due for years by the machine's clock.
pub(crate) fn overdue(name: &str) -> NewTask {
    NewTask::once(name, at("2020-01-01T00:00:00Z")).handler("work")
}

/// A task of the handler `work` that is not due during any test.
pub(crate) fn far_future(name: &str) -> NewTask {
    NewTask::once(name, at("3999-01-01T00:00:00Z")).handler("work")
}

/// Retries the task after milliseconds.
pub(crate) fn retry_soon(task: NewTask, max_attempts: u32) -> NewTask {
    let (backoff, max_backoff) = (Duration::from_millis(10), Duration::from_millis(50));
    task.retry(RetryPolicy { max_attempts, backoff, max_backoff })
}

/// A database with one task of the handler `work`, added at [`NOON`].
pub(crate) fn with_task(task: NewTask) -> (TestDb, Stepper) {
    let (db, stepper) = TestDb::with_stepper();
    stepper.client().add(task.handler("work")).expect("a task");
    (db, stepper)
}

/// The lines of `check` with its default limits.
pub(crate) fn problems(client: &Client) -> Vec<String> {
    client.check(&Limits::default()).expect("a check").iter().map(ToString::to_string).collect()
}

/// The lines of `doctor`.
pub(crate) fn findings(client: &Client) -> Vec<String> {
    client.doctor().expect("an examination").iter().map(ToString::to_string).collect()
}

/// Returns an observer and the events that it receives.
pub(crate) fn listen() -> (impl Fn(&Event) + Send + Sync + 'static, Receiver<Event>) {
    let (sender, events) = channel();
    (move |event: &Event| drop(sender.send(event.clone())), events)
}

/// Reports that a test cannot run here. In CI that is a failure.
pub(crate) fn skip(why: &str) {
    assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "{why}");
    println!("skipped: {why}");
}

#[cfg(unix)]
pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the number in this environment variable, or the default.
pub(crate) fn number<T: FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).map_or(default, |text| text.parse().ok().expect("a number"))
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Waits for the end of some turns, instead of a time in which nothing must happen.
pub(crate) fn turns_pass(scheduler: &Scheduler, turns: u64) {
    let before = scheduler.turns();
    eventually("more turns end", || scheduler.turns() > before + turns);
}

/// Waits until the newest run of a task has a status, and returns the run.
pub(crate) fn wait_for_status(client: &Client, task: &str, status: RunStatus) -> Run {
    let mut newest = None;
    eventually(&format!("the run of {task} is {status}"), || {
        newest = client.history(task, 1).expect("a history").pop();
        newest.as_ref().is_some_and(|run| run.status == status)
    });
    newest.expect("a run")
}

impl TestDb {
    /// Every run of a task, oldest occurrence first: the occurrence, origin and status; for a row of several occurrences also
    /// their number and the last one. Milliseconds are shown unless they are zero.
    pub(crate) fn history(&self, task: &str) -> Vec<String> {
        let mut runs = self.reader().history(task, 100_000).expect("a history");
        runs.sort_by_key(|run| (run.scheduled_for, run.id));
        let line = |run: &Run| {
            let mut line = format!("{} {} {}", time(run.scheduled_for), run.origin, run.status);
            if let Some(last) = run.last_scheduled_for {
                line += &format!(" x{} to {}", run.occurrences, time(last));
            }
            let at_least = run.error.as_ref().is_some_and(|error| error.starts_with("at least "));
            line + if at_least { " at least" } else { "" }
        };
        runs.iter().map(line).collect()
    }

    /// Returns the next run of a task and its status.
    pub(crate) fn next(&self, task: &str) -> String {
        let task = self.reader().task(task).expect("a look-up").expect("a task");
        format!("{} {}", task.next_run.map_or("-".to_owned(), time), task.status)
    }

    /// Adds a task that no test touches, and a waiting run of it; see [`TestDb::assert_bystander`].
    pub(crate) fn add_bystander(&self, stepper: &Stepper) -> Vec<String> {
        let never = far_future("bystander").handler("missing").priority(3);
        stepper.client().add(never).expect("a bystander");
        stepper.client().trigger("bystander").expect("a run of the bystander");
        self.rows_of("bystander")
    }

    /// Returns the row of a task and the rows of its runs.
    pub(crate) fn rows_of(&self, task: &str) -> Vec<String> {
        let row = format!("SELECT * FROM scheduled_tasks WHERE name = '{task}'");
        let runs = "SELECT r.* FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name";
        [self.rows(&row), self.rows(&format!("{runs} = '{task}'"))].concat()
    }

    /// Asserts that neither the bystander's row nor that of its run has changed.
    #[track_caller]
    pub(crate) fn assert_bystander(&self, before: &[String]) {
        assert_eq!(self.rows_of("bystander"), before, "the bystander has changed");
    }

    /// Asserts the whole history of a task.
    #[track_caller]
    pub(crate) fn assert_history(&self, task: &str, expected: &[&str]) {
        let found = self.history(task);
        assert!(found == expected, "{task}:\n  found    {found:#?}\n  expected {expected:#?}");
    }
}

/// A timestamp with a space between date and time, and no zone.
fn time(at: Timestamp) -> String {
    let text = at.to_string().replace('T', " ");
    text.trim_end_matches('Z').trim_end_matches(".000").to_owned()
}

/// Takes one step, which must claim `claims` runs.
#[track_caller]
pub(crate) fn step(stepper: &mut Stepper, claims: usize) -> Vec<Arc<Claim>> {
    let claimed = stepper.step().expect("a step");
    assert_eq!(claimed.len(), claims, "claimed {claimed:#?}");
    claimed
}

/// Advances the clock and takes one step. Returns its claims.
#[track_caller]
pub(crate) fn advance_and_step(stepper: &mut Stepper, time: Duration) -> Vec<Arc<Claim>> {
    stepper.clock().advance(time);
    stepper.step().expect("a step")
}

/// Advances the clock and takes one step, which must claim `claims` runs.
#[track_caller]
pub(crate) fn step_after(stepper: &mut Stepper, time: Duration, claims: usize) -> Vec<Arc<Claim>> {
    stepper.clock().advance(time);
    step(stepper, claims)
}

/// Advances the clock and takes one step, which must claim one run.
#[track_caller]
pub(crate) fn claim_after(stepper: &mut Stepper, time: Duration) -> Arc<Claim> {
    step_after(stepper, time, 1).remove(0)
}

/// Takes one step, which must claim one run.
#[track_caller]
pub(crate) fn claim(stepper: &mut Stepper) -> Arc<Claim> {
    step(stepper, 1).remove(0)
}

/// Finishes an attempt with success and takes the step that settles it. Returns the claims of that step.
pub(crate) fn succeed(stepper: &mut Stepper, claim: &Arc<Claim>) -> Vec<Arc<Claim>> {
    stepper.finish(claim, Outcome::succeeded());
    stepper.step().expect("a step")
}

/// Finishes every running attempt with an outcome.
pub(crate) fn finish_all(stepper: &mut Stepper, outcome: &Outcome) {
    stepper.running().to_vec().iter().for_each(|claim| stepper.finish(claim, outcome.clone()));
}

/// Steps and finishes every claim with success until nothing is due. Returns the claims in order.
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

/// Waits until nothing listens at an address. A process that another test is starting has the sockets of this one until its program runs.
#[cfg(feature = "page")]
#[track_caller]
pub(crate) fn eventually_refused(address: std::net::SocketAddr) {
    eventually("nothing listens", || {
        let connected = std::net::TcpStream::connect(address);
        connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
}
