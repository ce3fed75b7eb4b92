//! `duly run` with a full, unread pipe as its standard error: runs start, heartbeats continue, signals work; and once the
//! pipe is read, no queued line is missing.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use duly::RunStatus;

use crate::fixtures::{Process, TestDb, eventually};
use crate::sidecar::{shell, signal};

const O_NONBLOCK: i32 = 0o4000;

/// A line that is repeated until the pipe is full.
const FILLING: &str = "filling\n";

/// A full pipe.
struct FullPipe {
    reader: File,
    writer: File,
}

impl FullPipe {
    fn new(db: &TestDb) -> Self {
        let path = db.home().join("stderr");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let open = |options: &mut OpenOptions| options.open(&path).expect("the pipe");
        let reader = open(OpenOptions::new().read(true).custom_flags(O_NONBLOCK));
        let mut filler = open(OpenOptions::new().write(true).custom_flags(O_NONBLOCK));
        let mut fill = |piece: &str| {
            let error = loop {
                if let Err(error) = filler.write_all(piece.as_bytes()) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        };
        // A pipe accepts a short piece completely or not at all.
        fill(FILLING);
        fill("\n");
        // The program blocks when it writes, as at any other pipe.
        FullPipe { reader, writer: open(OpenOptions::new().write(true)) }
    }

    fn spawn(&self, db: &TestDb, options: &[&str]) -> Process {
        let stderr = self.writer.try_clone().expect("the pipe");
        let mut command = db.duly(&[&["run"], options].concat());
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr))
    }

    /// Appends the available output to a text.
    fn read_available(&mut self, text: &mut String) {
        let mut bytes = Vec::new();
        if let Err(error) = self.reader.read_to_end(&mut bytes) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
        text.push_str(std::str::from_utf8(&bytes).expect("text").trim_start_matches(FILLING));
    }
}

#[test]
fn runs_and_heartbeats_continue_and_a_signal_ends_the_program() {
    let (db, client) = TestDb::with_client();
    client.add(shell("t", "true")).expect("a task");
    let pipe = FullPipe::new(&db);
    let mut running = pipe.spawn(&db, &["-v", "--poll", "20ms", "--lease", "1s"]);
    eventually("its run has succeeded", || db.count(RunStatus::Succeeded) == 1);
    let seen = || db.ask("SELECT max(seen_at) FROM scheduler_instances");
    let before = seen();
    eventually("a heartbeat comes", || seen() != before);
    signal("TERM", &running.0.id().to_string());
    assert_eq!(running.exit_code(), Some(0));
    assert_eq!(db.registered_schedulers(), 0);
}

/// The line that reports a failure does not wait for a reader either.
#[test]
fn the_program_exits_when_it_cannot_start() {
    let db = TestDb::new();
    let pipe = FullPipe::new(&db);
    assert_eq!(pipe.spawn(&db, &[]).exit_code(), Some(4), "there is no database");
}

/// Output that is read before the program ends is complete and in order.
#[test]
fn queued_lines_are_written_once_the_pipe_is_read() {
    let (db, client) = TestDb::with_client();
    client.add(shell("t", "true")).expect("a task");
    let mut pipe = FullPipe::new(&db);
    let mut running = pipe.spawn(&db, &["--poll", "20ms"]);
    eventually("its run has succeeded", || db.count(RunStatus::Succeeded) == 1);
    let mut text = String::new();
    eventually("the log is read", || {
        pipe.read_available(&mut text);
        text.contains("succeeded")
    });
    signal("TERM", &running.0.id().to_string());
    assert_eq!(running.exit_code(), Some(0));
    pipe.read_available(&mut text);
    let lines: Vec<&str> = text.lines().collect();
    let line_number =
        |what: &str| lines.iter().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(
        line_number("with 4 workers") < line_number("succeeded") && line_number("succeeded") < line_number("SIGTERM"),
        "{text}"
    );
    assert!(lines.last().is_some_and(|line| line.ends_with("scheduler stopped")), "{text}");
    assert!(!text.contains("dropped"), "{text}");
}

/// Standard output that is not read delays neither a command whose output is forwarded nor its scheduler, and needs little memory.
#[test]
fn forwarded_lines_are_dropped_and_counted_when_nothing_reads_them() {
    let (db, client) = TestDb::with_client();
    client.add(shell("flood", "yes 'a line of the flood' | head -c 20000000")).expect("a task");
    let pipe = FullPipe::new(&db);
    let log = db.home().join("log");
    let mut command = db.duly(&["run", "--poll", "20ms", "--forward-output"]);
    command.stdin(Stdio::null()).stdout(pipe.writer.try_clone().expect("the pipe"));
    let mut running = Process::spawn(command.stderr(File::create_new(&log).expect("a log")));
    eventually("its run has succeeded", || db.count(RunStatus::Succeeded) == 1);
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id())).expect("its status");
    // All of the lines would be 20 MB more.
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak").trim();
    assert!(peak.trim_end_matches(" kB").parse::<u64>().is_ok_and(|kilobytes| kilobytes < 46_000), "{peak}");
    signal("TERM", &running.0.id().to_string());
    assert_eq!(running.exit_code(), Some(0));
    let log = std::fs::read_to_string(&log).expect("the log");
    assert!(log.contains("standard output takes no more: lines that commands print are dropped"), "{log}");
    let dropped =
        log.lines().find_map(|line| line.split_once(" lines that commands printed were dropped")).expect("a number");
    let dropped: usize = dropped.0.rsplit(' ').next().expect("a word").parse().expect("a number");
    let all = 20_000_000 / "a line of the flood\n".len();
    assert_eq!(dropped, all, "{log}");
}

/// The reader of standard output has ended: the scheduler continues, and the log says what is lost.
#[test]
fn forwarded_lines_without_a_reader_are_counted() {
    let (db, client) = TestDb::with_client();
    client.add(shell("t", "seq 7")).expect("a task");
    let mut command = db.duly(&["run", "--until-idle", "--forward-output"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Process::spawn(command);
    drop(running.0.stdout.take());
    let log = std::io::read_to_string(running.0.stderr.take().expect("a pipe")).expect("the log");
    assert_eq!(running.exit_code(), Some(0), "{log}");
    assert!(log.contains("7 lines that commands printed were dropped: standard output took no more"), "{log}");
    assert_eq!(db.count(RunStatus::Succeeded), 1);
}
