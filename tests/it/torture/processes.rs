//! The processes: schedulers of both kinds, one of them with a wrong clock, one that holds the write lock, and one that
//! keeps the disk busy.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use duly::{BoxError, Context, Scheduler};
use rusqlite::Connection;
use serde::Deserialize;

use crate::evidence::{UNSHARE, first_process_in, scheduler_in};
use crate::fixtures::{TestDb, eventually};
use crate::selftest::checker::Line;
use crate::sidecar::{kill, signal};
use crate::torture::tasks::{CLOSURE, FINISH, JOURNAL, NUMBER};

/// The working folder of a process, and its kind.
const FOLDER: &str = "DULY_TORTURE_FOLDER";
const KIND: &str = "DULY_TORTURE_KIND";

/// Shorter than the time for which a process is stopped.
const LEASE: &str = "1s";
const SIGTERM: i32 = 15;

/// What a burst writes, and in what pieces.
const BURST: usize = 24 << 20;
const PIECE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `duly run`.
    Program,
    /// `duly run` with a clock that is set from a file.
    WrongClock,
    /// `duly run` in a PID namespace of its own, where it is restarted when it is killed.
    Namespaced,
    /// Closures, in a child of the test.
    Closures,
    /// Takes the write lock, and holds it.
    Holder,
    /// Writes and syncs a large file.
    Burst,
}

pub(crate) struct Process {
    pub(crate) kind: Kind,
    child: Child,
    log: PathBuf,
    /// Until when it is stopped.
    pub(crate) stopped_until: Option<Instant>,
    /// The number that identifies its scheduler in the journal.
    number: u32,
}

/// Restarts a killed scheduler in the same namespace, with the next number.
const RESTART: &str = "while :; do
    echo '--- it starts' >&2; \"$@\"; code=$?
    [ $code = 137 ] || exit $code
    DULY_TORTURE_NUMBER=$((DULY_TORTURE_NUMBER + 1))
done";
/// The smallest number of a scheduler in a namespace of its own: above all process ids.
const FIRST_NUMBER: u32 = 1 << 30;

/// Returns the file that sets the wrong clock.
fn clock(db: &TestDb) -> PathBuf {
    db.home().join("clock")
}

/// Sets that clock to `millis` from the true time.
pub(crate) fn set_clock(db: &TestDb, millis: i64) {
    let sign = if millis < 0 { '-' } else { '+' };
    let text = format!("{sign}{}.{:03}\n", millis.abs() / 1000, millis.abs() % 1000);
    // Renamed into place: a reader must not find half of it.
    let next = db.home().join("clock.new");
    std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, clock(db))).expect("a clock");
}

impl Process {
    pub(crate) fn start(db: &TestDb, kind: Kind, faketime: Option<&Path>) -> Process {
        let log = db.home().join(format!("log-{kind:?}-{:08x}", fastrand::u32(..)));
        let number = fastrand::u32(FIRST_NUMBER..) & !0xff;
        let mut command = match kind {
            Kind::Program | Kind::WrongClock | Kind::Namespaced => {
                let duly = env!("CARGO_BIN_EXE_duly");
                let mut program = Command::new(if kind == Kind::Namespaced { "unshare" } else { duly });
                if kind == Kind::Namespaced {
                    program.args(UNSHARE).args(["sh", "-c", RESTART, "sh", duly]).env(NUMBER, number.to_string());
                }
                program.arg("--db").arg(db.file());
                program.args(["run", "--poll", "50ms", "--drain", "200ms", "--lease", LEASE]);
                if kind == Kind::WrongClock {
                    program.env("LD_PRELOAD", faketime.expect("the library"));
                    program.env("FAKETIME_TIMESTAMP_FILE", clock(db)).env("FAKETIME_NO_CACHE", "1");
                    program.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                }
                program
            }
            _ => {
                let mut program = Command::new(std::env::current_exe().expect("the test program"));
                program.args(["--exact", "torture::processes::process_entry", "--nocapture"]);
                program.env(FOLDER, db.home()).env(KIND, format!("{kind:?}"));
                program
            }
        };
        let stderr = File::create_new(&log).expect("a log");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().expect("a process");
        let number = if kind == Kind::Namespaced { number } else { child.id() };
        Process { kind, child, log, stopped_until: None, number }
    }

    /// Returns the number that identifies its scheduler in the journal.
    pub(crate) fn id(&self) -> u32 {
        self.number
    }

    /// Returns the process id of its scheduler; `None` while that is restarted.
    fn scheduler(&self) -> Option<u32> {
        if self.kind == Kind::Namespaced { scheduler_in(self.child.id()) } else { Some(self.child.id()) }
    }

    /// Whether its scheduler exists, so that it can be sent a signal.
    pub(crate) fn is_running(&self) -> bool {
        self.scheduler().is_some()
    }

    pub(crate) fn signal(&self, name: &str) {
        if let Some(scheduler) = self.scheduler() {
            signal(name, &scheduler.to_string());
        }
    }

    /// Kills the scheduler alone. Its commands continue, and another scheduler starts beside them.
    pub(crate) fn kill_scheduler(&mut self) {
        let killed = self.scheduler().expect("a scheduler");
        signal("KILL", &killed.to_string());
        eventually("the scheduler is dead", || self.scheduler() != Some(killed));
        self.number += 1;
    }

    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("its status")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn kill(mut self) {
        self.kill_all().expect("its end");
    }

    /// Kills the process, or the namespace with all its processes.
    fn kill_all(&mut self) -> std::io::Result<ExitStatus> {
        if self.kind == Kind::Namespaced {
            // Until `unshare` has requested it, its child is not killed with it.
            eventually("the namespace exists, or has ended", || {
                let first = first_process_in(self.child.id());
                if let Some(first) = first {
                    let _ = kill(&["-s", "KILL", &first.to_string()]).status();
                }
                first.is_some() || self.child.try_wait().is_ok_and(|status| status.is_some())
            });
        }
        self.child.kill().and_then(|()| self.child.wait())
    }

    pub(crate) fn request_stop(&mut self) {
        match self.kind {
            Kind::Program | Kind::WrongClock => self.signal("TERM"),
            Kind::Namespaced => {
                eventually("its scheduler is running, or has exited", || {
                    self.is_running() || self.exit_status().is_some()
                });
                self.signal("TERM");
            }
            _ => drop(self.child.stdin.take()),
        }
    }

    /// Whether it has exited, which must be in order: every attempt has ended, or was interrupted and is reported.
    pub(crate) fn has_exited(&mut self) -> bool {
        let Some(status) = self.exit_status() else { return false };
        // A signal before it listens ends it at once, and nothing had begun.
        let ended_before_start =
            status.signal().or(status.code().map(|code| code - 128)) == Some(SIGTERM) && !self.has_started();
        let orderly = ended_before_start || self.was_locked_out() || matches!(status.code(), Some(0 | 3));
        assert!(orderly, "{:?}, process {}, exited with {status}: {}", self.kind, self.id(), self.log());
        true
    }

    fn has_started(&self) -> bool {
        self.newest_log().contains(" started, with ")
    }

    /// Returns its scheduler's log since the last restart.
    fn newest_log(&self) -> String {
        let log = self.log();
        log.rsplit("--- it starts").next().unwrap_or_default().to_owned()
    }

    /// Whether it exited because another process held the write lock when it started.
    pub(crate) fn was_locked_out(&self) -> bool {
        self.newest_log().contains("locked") && !self.has_started()
    }

    pub(crate) fn wait_for_exit(mut self) {
        let begin = Instant::now();
        while !self.has_exited() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?} does not exit: {}", self.kind, self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill_all();
        if std::thread::panicking() {
            let (kind, log) = (self.kind, self.log());
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {kind:?}, process {}\n{}", self.id(), lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// Not a test of its own: the entry point of the processes above. Each ends with its standard input.
#[test]
fn process_entry() {
    let (Some(folder), Ok(kind)) = (std::env::var_os(FOLDER), std::env::var(KIND)) else { return };
    let folder = PathBuf::from(folder);
    match kind.as_str() {
        "Closures" => closures(&folder),
        "Holder" => {
            let connection = Connection::open(folder.join("agent.db")).expect("a connection");
            connection.busy_timeout(Duration::from_secs(30)).expect("patience");
            connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
            wait_for_stdin_end();
            connection.execute_batch("ROLLBACK").expect("an end");
        }
        "Burst" => {
            let path = folder.join(format!("burst-{}", std::process::id()));
            let mut file = File::create_new(&path).expect("a file");
            let piece = vec![7; PIECE];
            for _ in 0..BURST / PIECE {
                file.write_all(&piece).and_then(|()| file.sync_data()).expect("room");
            }
            std::fs::remove_file(path).expect("a file");
            wait_for_stdin_end();
        }
        other => panic!("no kind {other:?}"),
    }
}

fn wait_for_stdin_end() {
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of stdin");
}

/// The payload of a closure.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Payload {
    millis: u64,
    fails_first: bool,
}

fn closures(folder: &Path) {
    let journal = OpenOptions::new().append(true).open(folder.join(JOURNAL)).expect("the journal");
    let other = journal.try_clone().expect("the journal");
    let scheduler = Scheduler::builder(folder.join("agent.db"))
        .workers(4)
        .poll(Duration::from_millis(50))
        .lease(Duration::from_secs(1))
        .handler(CLOSURE, move |run: &Context| {
            let (id, attempt, payload) = record_begin(run, &journal)?;
            let stopped = run.wait_cancelled(Duration::from_millis(payload.millis));
            record_end(id, attempt, &journal)?;
            outcome(stopped, attempt, &payload)
        })
        .handler(FINISH, move |run: &Context| {
            let (id, attempt, payload) = record_begin(run, &other)?;
            let stopped = run.wait_cancelled(Duration::from_millis(payload.millis));
            record_end(id, attempt, &other)?;
            outcome(stopped, attempt, &payload)?;
            run.finish(|tx| {
                tx.execute("INSERT INTO kept (run, attempt) VALUES (?1, ?2)", (id, attempt))?;
                Ok(())
            })
        })
        .start();
    match scheduler {
        Ok(scheduler) => {
            eprintln!("scheduler started, with closures");
            wait_for_stdin_end();
            assert_eq!(scheduler.shutdown(Duration::from_secs(30)).expect("a shutdown").unfinished, 0);
        }
        Err(error) => panic!("error: {error}"),
    }
}

fn record_begin(run: &Context, mut journal: &File) -> Result<(i64, u32, Payload), BoxError> {
    let (id, attempt, scheduled_for, task) = (run.run_id(), run.attempt(), run.scheduled_for(), run.task().to_owned());
    let line = Line::Began { run: id, attempt, process: std::process::id(), scheduled_for, task };
    journal.write_all(line.to_string().as_bytes())?;
    // An `on_dead` run has the dead run as its payload.
    Ok((id, attempt, run.payload().unwrap_or_default()))
}

fn record_end(run: i64, attempt: u32, mut journal: &File) -> Result<(), BoxError> {
    Ok(journal.write_all(Line::Ended { run, attempt }.to_string().as_bytes())?)
}

fn outcome(stopped: bool, attempt: u32, payload: &Payload) -> Result<(), BoxError> {
    match attempt {
        _ if stopped => Err("asked to stop".into()),
        1 if payload.fails_first => Err("the first attempt fails".into()),
        _ => Ok(()),
    }
}
