//! Who takes part: schedulers of both kinds, one of them with a clock that lies, somebody who keeps the write lock, and
//! somebody who keeps the disk busy. Each is a process of its own.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use duly::{BoxError, Context, Scheduler};
use rusqlite::Connection;
use serde::Deserialize;

use crate::evidence::{UNSHARE, first_in, scheduler_in};
use crate::fixtures::{TestDb, eventually};
use crate::selftest::checker::Line;
use crate::sidecar::signal;
use crate::torture::tasks::{CLOSURE, FINISH, JOURNAL, NUMBER};

/// The folder in which a part is played, and which.
const FOLDER: &str = "DULY_TORTURE_FOLDER";
const PART: &str = "DULY_TORTURE_PART";
/// So short that a process which stands still for a while outlives it.
const LEASE: &str = "1s";
const SIGTERM: i32 = 15;
/// What a burst writes, and in what pieces.
const BURST: usize = 24 << 20;
const PIECE: usize = 1 << 20;

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// `duly run`.
    Program,
    /// The same, by a clock that is set from a file.
    Liar,
    /// `duly run` in a PID namespace of its own, where it is started again when it is killed.
    Apart,
    /// Closures, in a child of the test.
    Closures,
    /// Takes the write lock, and keeps it.
    Holder,
    /// Writes and syncs a large file.
    Burst,
}

/// One of them, at work.
pub(crate) struct Actor {
    pub(crate) part: Part,
    child: Child,
    log: PathBuf,
    /// Until when it stands still.
    pub(crate) stopped_until: Option<Instant>,
    /// By which number its scheduler is known in the journal.
    number: u32,
}

/// Starts the scheduler again in the same namespace when it is killed, under the next number.
const AGAIN: &str = "while :; do
    echo '--- it starts' >&2; \"$@\"; code=$?
    [ $code = 137 ] || exit $code
    DULY_TORTURE_NUMBER=$((DULY_TORTURE_NUMBER + 1))
done";
/// From where on schedulers in namespaces of their own are numbered: above the numbers of processes.
const FIRST: u32 = 1 << 30;

/// The file that sets the clock of the liar.
fn clock(db: &TestDb) -> PathBuf {
    db.home().join("clock")
}

/// Sets that clock, by so many milliseconds from the true time.
pub(crate) fn set_clock(db: &TestDb, millis: i64) {
    let sign = if millis < 0 { '-' } else { '+' };
    let text = format!("{sign}{}.{:03}\n", millis.abs() / 1000, millis.abs() % 1000);
    // Under another name first: a reader must not find half of it.
    let next = db.home().join("clock.new");
    std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, clock(db))).expect("a clock");
}

impl Actor {
    pub(crate) fn start(db: &TestDb, part: Part, library: Option<&Path>) -> Actor {
        let log = db.home().join(format!("log-{part:?}-{:08x}", fastrand::u32(..)));
        let number = fastrand::u32(FIRST..) & !0xff;
        let mut command = match part {
            Part::Program | Part::Liar | Part::Apart => {
                let duly = env!("CARGO_BIN_EXE_duly");
                let mut program = Command::new(if part == Part::Apart { "unshare" } else { duly });
                if part == Part::Apart {
                    program.args(UNSHARE).args(["sh", "-c", AGAIN, "sh", duly]).env(NUMBER, number.to_string());
                }
                program.arg("--db").arg(db.file());
                program.args(["run", "--poll", "50ms", "--drain", "200ms", "--lease", LEASE]);
                if part == Part::Liar {
                    program.env("LD_PRELOAD", library.expect("the library"));
                    program.env("FAKETIME_TIMESTAMP_FILE", clock(db)).env("FAKETIME_NO_CACHE", "1");
                    program.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                }
                program
            }
            _ => {
                let mut program = Command::new(std::env::current_exe().expect("the test program"));
                program.args(["--exact", "torture::processes::as_a_part", "--nocapture"]);
                program.env(FOLDER, db.home()).env(PART, format!("{part:?}"));
                program
            }
        };
        let said = File::create_new(&log).expect("a log");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().expect("a process");
        let number = if part == Part::Apart { number } else { child.id() };
        Actor { part, child, log, stopped_until: None, number }
    }

    /// The number by which its scheduler is known in the journal.
    pub(crate) fn id(&self) -> u32 {
        self.number
    }

    /// The process of its scheduler; `None` while it is about to be started again.
    fn scheduler(&self) -> Option<u32> {
        if self.part == Part::Apart { scheduler_in(self.child.id()) } else { Some(self.child.id()) }
    }

    /// Whether its scheduler is there, and so can be sent a signal.
    pub(crate) fn is_there(&self) -> bool {
        self.scheduler().is_some()
    }

    pub(crate) fn signal(&self, name: &str) {
        if let Some(scheduler) = self.scheduler() {
            signal(name, &scheduler.to_string());
        }
    }

    /// Kills the scheduler alone. What it has at work lives on, and another scheduler is started beside that.
    pub(crate) fn kill_scheduler(&mut self) {
        let killed = self.scheduler().expect("a scheduler");
        signal("KILL", &killed.to_string());
        eventually("the scheduler is dead", || self.scheduler() != Some(killed));
        self.number += 1;
    }

    /// How it ended, if it has by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("its status")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it without a word.
    pub(crate) fn kill(mut self) {
        self.kill_all().expect("its end");
    }

    /// Kills the process, or the namespace with all that is in it.
    fn kill_all(&mut self) -> std::io::Result<ExitStatus> {
        if self.part == Part::Apart {
            // Before `unshare` has asked for it, its child does not end with it.
            eventually("the namespace is there, or gone", || {
                let first = first_in(self.child.id());
                if let Some(first) = first {
                    let _ = Command::new("kill").args(["-s", "KILL", &first.to_string()]).status();
                }
                first.is_some() || self.child.try_wait().is_ok_and(|status| status.is_some())
            });
        }
        self.child.kill().and_then(|()| self.child.wait())
    }

    /// Asks it to leave.
    pub(crate) fn ask(&mut self) {
        match self.part {
            Part::Program | Part::Liar => self.signal("TERM"),
            Part::Apart => {
                eventually("its scheduler is there, or has left", || self.is_there() || self.ended().is_some());
                self.signal("TERM");
            }
            _ => drop(self.child.stdin.take()),
        }
    }

    /// Whether it has come to its end, which must be in order: all that was begun has ended, or was cut short and is told so.
    pub(crate) fn has_left(&mut self) -> bool {
        let Some(status) = self.ended() else { return false };
        // Who is told before it listens goes at once, and had not begun anything.
        let unheard = status.signal().or(status.code().map(|code| code - 128)) == Some(SIGTERM) && !self.has_begun();
        let orderly = unheard || self.was_locked_out() || matches!(status.code(), Some(0 | 3));
        assert!(orderly, "{:?}, process {}, left with {status}: {}", self.part, self.id(), self.log());
        true
    }

    /// Whether its scheduler has started.
    fn has_begun(&self) -> bool {
        self.newest_log().contains(" started, with ")
    }

    /// What its scheduler has said since it was last started.
    fn newest_log(&self) -> String {
        let log = self.log();
        log.rsplit("--- it starts").next().unwrap_or_default().to_owned()
    }

    /// Whether it ended since somebody else had kept the file locked when it was to start.
    pub(crate) fn was_locked_out(&self) -> bool {
        self.newest_log().contains("locked") && !self.has_begun()
    }

    /// Waits for its end.
    pub(crate) fn see_out(mut self) {
        let begin = Instant::now();
        while !self.has_left() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?} does not leave: {}", self.part, self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.kill_all();
        if std::thread::panicking() {
            let (part, log) = (self.part, self.log());
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {part:?}, process {}\n{}", self.id(), lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// Not a test of its own: where the processes above begin. Each part ends with its standard input.
#[test]
fn as_a_part() {
    let (Some(folder), Ok(part)) = (std::env::var_os(FOLDER), std::env::var(PART)) else { return };
    let folder = PathBuf::from(folder);
    match part.as_str() {
        "Closures" => closures(&folder),
        "Holder" => {
            let connection = Connection::open(folder.join("agent.db")).expect("a connection");
            connection.busy_timeout(Duration::from_secs(30)).expect("patience");
            connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
            until_left();
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
            until_left();
        }
        other => panic!("no part {other:?}"),
    }
}

fn until_left() {
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
}

/// What a closure is to do.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Work {
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
            let (id, attempt, work) = begin(run, &journal)?;
            let stopped = run.wait_cancelled(Duration::from_millis(work.millis));
            end(id, attempt, &journal)?;
            judged(stopped, attempt, &work)
        })
        .handler(FINISH, move |run: &Context| {
            let (id, attempt, work) = begin(run, &other)?;
            let stopped = run.wait_cancelled(Duration::from_millis(work.millis));
            end(id, attempt, &other)?;
            judged(stopped, attempt, &work)?;
            run.finish(|tx| {
                tx.execute("INSERT INTO kept (run, attempt) VALUES (?1, ?2)", (id, attempt))?;
                Ok(())
            })
        })
        .start();
    match scheduler {
        Ok(scheduler) => {
            eprintln!("scheduler started, with closures");
            until_left();
            assert_eq!(scheduler.shutdown(Duration::from_secs(30)).expect("a shutdown in order").unfinished, 0);
        }
        Err(error) => panic!("error: {error}"),
    }
}

fn begin(run: &Context, mut journal: &File) -> Result<(i64, u32, Work), BoxError> {
    let (id, attempt, scheduled_for, task) = (run.run_id(), run.attempt(), run.scheduled_for(), run.task().to_owned());
    let line = Line::Began { run: id, attempt, process: std::process::id(), scheduled_for, task };
    journal.write_all(line.to_string().as_bytes())?;
    // Whoever is told of a dead run is given that run.
    Ok((id, attempt, run.payload().unwrap_or_default()))
}

fn end(run: i64, attempt: u32, mut journal: &File) -> Result<(), BoxError> {
    Ok(journal.write_all(Line::Ended { run, attempt }.to_string().as_bytes())?)
}

fn judged(stopped: bool, attempt: u32, work: &Work) -> Result<(), BoxError> {
    match attempt {
        _ if stopped => Err("asked to stop".into()),
        1 if work.fails_first => Err("the first attempt is to fail".into()),
        _ => Ok(()),
    }
}
