//! The processes: schedulers of several kinds, one that holds the write lock, and one that keeps the disk busy.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::dst_nights;
use crate::evidence::{UNSHARE, first_process_in, scheduler_in};
use crate::fixtures::{TestDb, eventually, reap, test_process};
use crate::kills::handlers::{FOLDER, HANDLERS, LEASE, WORKERS};
use crate::kills::journal::NUMBER;
use crate::sidecar::{guard_of, kill, processes, signal};

/// The variable with the kind of a process that is no scheduler.
const KIND: &str = "DULY_TEST_KIND";
const SIGTERM: i32 = 15;

/// What a burst writes, and in what pieces.
const BURST: usize = 24 << 20;
const PIECE: usize = 1 << 20;

/// Restarts a killed scheduler in the same namespace, with the next number: at once, or after others have looked at what it left.
const RESTART: &str = "while :; do
    echo '--- it starts' >&2; \"$@\"; code=$?
    [ $code = 137 ] || exit $code
    DULY_TEST_SCHEDULER=$((DULY_TEST_SCHEDULER + 1))
    sleep 0.$((DULY_TEST_SCHEDULER % 5))
done";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `duly run`.
    Program,
    /// `duly run` with a clock that is set from a file.
    WrongClock,
    /// `duly run` in a PID namespace of its own, where it is restarted when it is killed.
    Namespaced,
    /// The same without `/proc`, and so without a guard.
    NoProc,
    /// Closures, in a child of the test.
    Closures,
    /// Takes the write lock, and holds it.
    Holder,
    /// Writes and syncs a large file.
    Burst,
}

impl Kind {
    /// Whether it is in a PID namespace of its own.
    fn is_namespaced(self) -> bool {
        matches!(self, Kind::Namespaced | Kind::NoProc)
    }
}

/// How a scheduler is started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) lease: &'static str,
    pub(crate) workers: usize,
    /// Further options of `duly run`.
    pub(crate) options: Vec<String>,
    /// The handlers of closures, separated by commas.
    pub(crate) handlers: &'static str,
}

impl Setup {
    /// A lease that is longer than any test waits.
    pub(crate) const LONG: Setup = Setup { lease: "10m", workers: 4, options: Vec::new(), handlers: "closure" };

    fn command(&self, db: &TestDb, kind: Kind) -> Command {
        if matches!(kind, Kind::Closures | Kind::Holder | Kind::Burst) {
            let entry = if kind == Kind::Closures { "handlers::scheduler_entry" } else { "process::process_entry" };
            let mut child = test_process(&format!("kills::{entry}"));
            child.env(FOLDER, db.home()).env(LEASE, self.lease).env(HANDLERS, self.handlers);
            child.env(WORKERS, self.workers.to_string()).env(KIND, format!("{kind:?}"));
            return child;
        }
        let duly = env!("CARGO_BIN_EXE_duly");
        let mut program = Command::new(if kind.is_namespaced() { "unshare" } else { duly });
        if kind == Kind::Namespaced {
            program.args(UNSHARE).args(["sh", "-c", RESTART, "sh", duly]);
        } else if kind == Kind::NoProc {
            let script = format!("mount -t tmpfs none /proc || exit 1; {RESTART}");
            program.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", &script, "sh", duly]);
        }
        program.arg("--db").arg(db.file()).args(["run", "--poll", "50ms", "--lease", self.lease]);
        program.args(["--workers", &self.workers.to_string()]).args(&self.options);
        if kind == Kind::WrongClock {
            program.env("LD_PRELOAD", dst_nights::library().expect("the library"));
            program.env("FAKETIME_TIMESTAMP_FILE", db.home().join("clock")).env("FAKETIME_NO_CACHE", "1");
            program.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        program.stdin(Stdio::null()).stdout(Stdio::null());
        program
    }
}

/// A process. It is killed on drop.
pub(crate) struct Process {
    pub(crate) kind: Kind,
    pub(crate) setup: Setup,
    child: Child,
    log: PathBuf,
    /// Until when it is stopped.
    pub(crate) stopped_until: Option<Instant>,
    /// The number that identifies its scheduler in the journal.
    pub(crate) number: u32,
}

/// Sets the clock of [`Kind::WrongClock`] to `millis` from the true time, in a file of this folder.
pub(crate) fn set_clock(folder: &Path, name: &str, millis: i64) {
    let sign = if millis < 0 { '-' } else { '+' };
    let text = format!("{sign}{}.{:03}\n", millis.abs() / 1000, millis.abs() % 1000);
    // Renamed into place: a reader must not find half of it.
    let next = folder.join("clock.new");
    std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, folder.join(name))).expect("a clock");
}

impl Process {
    pub(crate) fn start(db: &TestDb, kind: Kind, setup: &Setup) -> Process {
        let log = db.home().join(format!("log-{kind:?}-{:08x}", fastrand::u32(..)));
        let stderr = File::create_new(&log).expect("a log");
        // In a namespace, the restarts have the numbers that follow.
        let number = fastrand::u32(..) & !0xff;
        let mut command = setup.command(db, kind);
        let child = command.env(NUMBER, number.to_string()).stderr(stderr).spawn().expect("a process");
        Process { kind, setup: setup.clone(), child, log, stopped_until: None, number }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process id of its scheduler; `None` while that is restarted.
    fn scheduler(&self) -> Option<u32> {
        if self.kind.is_namespaced() { scheduler_in(self.pid()) } else { Some(self.pid()) }
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

    /// Kills the worker process of its scheduler, if it has one now.
    pub(crate) fn kill_worker(&self) {
        if let Some(worker) = processes().find(|process| process.is_child_of(self.pid()) && !process.is_guard()) {
            let _ = kill(&["-s", "KILL", &worker.pid.to_string()]).stderr(Stdio::null()).status();
        }
    }

    /// Kills the guard of its scheduler, if it has one now.
    pub(crate) fn kill_guard(&self) {
        if let Some(guard) = self.scheduler().and_then(guard_of) {
            let _ = kill(&["-s", "KILL", &guard.to_string()]).stderr(Stdio::null()).status();
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

    pub(crate) fn has_ended(&mut self) -> bool {
        self.exit_status().is_some()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn kill(mut self) {
        self.kill_all();
        eventually("it has ended", || self.has_ended());
    }

    /// Kills the process, or the namespace with all its processes.
    fn kill_all(&mut self) {
        if self.kind.is_namespaced() {
            // Until `unshare` has requested it, its child is not killed with it.
            eventually("the namespace exists, or has ended", || {
                let first = first_process_in(self.pid());
                if let Some(first) = first {
                    let _ = kill(&["-s", "KILL", &first.to_string()]).stderr(Stdio::null()).status();
                }
                first.is_some() || self.child.try_wait().is_ok_and(|status| status.is_some())
            });
        }
        let _ = self.child.kill();
    }

    pub(crate) fn request_stop(&mut self) {
        match self.kind {
            Kind::Program | Kind::WrongClock => self.signal("TERM"),
            Kind::Namespaced | Kind::NoProc => {
                eventually("its scheduler is running, or has exited", || self.is_running() || self.has_ended());
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
        assert!(orderly, "{:?}, scheduler {}, exited with {status}: {}", self.kind, self.number, self.log());
        true
    }

    fn has_started(&self) -> bool {
        let log = self.newest_log();
        log.contains("scheduler started") || log.contains(" started, with ")
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
        eventually("it exits", || self.has_exited());
    }

    /// Waits until it listens, asks it to stop, and waits for its end with exit code 0.
    pub(crate) fn end(mut self) {
        eventually("it has started", || self.has_started() || self.has_ended());
        self.request_stop();
        eventually("it exits", || self.has_ended());
        let code = self.exit_status().and_then(|status| status.code());
        assert_eq!(code, Some(0), "{:?}, scheduler {}: {}", self.kind, self.number, self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.child.try_wait().is_ok_and(|status| status.is_some()) {
            self.kill_all();
            reap(&mut self.child);
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("--- {:?}, scheduler {}\n{last}", self.kind, self.number);
        }
    }
}

/// Not a test of its own: the processes that are no schedulers. Each ends with its standard input.
#[test]
fn process_entry() {
    let (Some(folder), Ok(kind)) = (std::env::var_os(FOLDER), std::env::var(KIND)) else { return };
    let folder = PathBuf::from(folder);
    let wait_for_end = || std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
    if kind == format!("{:?}", Kind::Holder) {
        let connection = Connection::open(folder.join("agent.db")).expect("a connection");
        connection.busy_timeout(Duration::from_secs(30)).expect("patience");
        connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
        wait_for_end();
        connection.execute_batch("ROLLBACK").expect("an end");
    } else {
        let path = folder.join(format!("burst-{}", std::process::id()));
        let mut file = File::create_new(&path).expect("a file");
        let piece = vec![7; PIECE];
        for _ in 0..BURST / PIECE {
            file.write_all(&piece).and_then(|()| file.sync_data()).expect("room");
        }
        std::fs::remove_file(path).expect("a file");
        wait_for_end();
    }
}
