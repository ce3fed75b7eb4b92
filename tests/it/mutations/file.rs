//! A database with changed bytes: turned bits, truncated ends, exchanged pages, a log of another file. Every interface
//! answers in time; what SQLite finds corrupt is reported as an unusable file, not as a failed action.

use std::path::{Path, PathBuf};

use duly::Error;

use crate::fixtures::TestDb;
use crate::mutations::mutator::{Mutator, each_in_time};
use crate::mutations::rows::{filled_database, one_line, read_all, run_scheduler};

const PAGE: usize = 4096;

/// A file, and its log.
pub(crate) struct Bytes {
    file: Vec<u8>,
    log: Vec<u8>,
}

fn log_of(file: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", file.display()))
}

impl Bytes {
    /// Returns a file as after a crash: most of it is in the log alone.
    pub(crate) fn of_a_crash() -> Self {
        let db = filled_database();
        let plain = db.plain();
        plain.execute_batch("PRAGMA wal_autocheckpoint = 0").expect("no checkpoint");
        for _ in 0..10 {
            plain.execute_batch("UPDATE scheduled_tasks SET priority = (priority + 1) % 4").expect("a change");
        }
        plain.execute_batch("UPDATE task_runs SET cancel_requested = 1 WHERE status = 'failed'").expect("a change");
        let read = |path: &Path| std::fs::read(path).expect("a file");
        Bytes { file: read(db.file()), log: read(&log_of(db.file())) }
    }

    /// Returns copies of both, with a change that a disk, a crash or a mistake may make.
    pub(crate) fn changed(&self, mutator: &mut Mutator) -> Bytes {
        let mut copy = Bytes { file: self.file.clone(), log: self.log.clone() };
        let random = &mut mutator.random;
        let of_log = random.u8(..4) == 0;
        // With a log that holds every page, hardly a page of the file is read.
        if !of_log && random.u8(..4) > 0 {
            copy.log.clear();
        }
        let bytes = if of_log { &mut copy.log } else { &mut copy.file };
        // A frame of the log is a page with a header of 24 bytes, and 32 bytes precede the first.
        let (first, width) = if of_log { (32, PAGE + 24) } else { (0, PAGE) };
        let pages = (bytes.len() - first) / width;
        let page = |random: &mut fastrand::Rng| first + random.usize(..pages) * width;
        let kind = random.u8(..10);
        match kind {
            0..=2 => {
                for _ in 0..random.usize(1..=30) {
                    let at = random.usize(..bytes.len());
                    bytes[at] ^= 1 << random.u8(..8);
                }
            }
            // The header of the file, or the schema behind it.
            3 | 4 => {
                let to = if kind == 3 { 100 } else { PAGE };
                for _ in 0..random.usize(1..=4) {
                    let at = random.usize(..to.min(bytes.len()));
                    bytes[at] = random.u8(..);
                }
            }
            // The header of a page, and where its cells begin.
            5 => {
                let page = page(random);
                for _ in 0..random.usize(1..=3) {
                    bytes[page + random.usize(..24)] = random.u8(..);
                }
            }
            6 => {
                let (one, other) = (page(random), page(random));
                let kept = bytes[one..one + width].to_vec();
                let moved = bytes[other..other + width].to_vec();
                bytes[other..other + width].copy_from_slice(&kept);
                if random.bool() {
                    bytes[one..one + width].copy_from_slice(&moved);
                }
            }
            7 => {
                let (page, with) = (page(random), if random.bool() { 0 } else { 0xff });
                bytes[page..page + width].fill(with);
            }
            8 => bytes.truncate(if random.bool() { page(random) } else { random.usize(..bytes.len()) }),
            _ => bytes.extend((0..random.usize(1..=2 * PAGE)).map(|_| 0x0d)),
        }
        mutator.note((of_log, kind));
        copy
    }

    /// Writes both into a database folder of its own.
    pub(crate) fn written(&self) -> TestDb {
        let db = TestDb::brief();
        std::fs::write(db.file(), &self.file).expect("a file");
        if !self.log.is_empty() {
            std::fs::write(log_of(db.file()), &self.log).expect("a log");
        }
        db
    }
}

#[test]
fn every_interface_answers_on_a_damaged_file() {
    let whole = Bytes::of_a_crash();
    each_in_time(40, move |mutator| {
        let db = whole.changed(mutator).written();
        for seed in 1..3 {
            let work = run_scheduler(db.file(), seed).map(|begun| begun.len());
            for (interface, answer) in [read_all(db.file()), vec![("work", work)]].into_iter().flatten() {
                let Err(error) = answer else { continue };
                one_line(interface, &error);
                let message = error.to_string();
                let broken = ["malformed", "not a database", "corrupt"].iter().any(|word| message.contains(word));
                assert!(!broken || matches!(error, Error::UnusableDatabase { .. }), "{interface}: {error:?}");
            }
        }
    });
}

/// The same bytes without a change: everything works, and the rows in the log are found.
#[test]
fn the_undamaged_file_is_sound() {
    let db = Bytes::of_a_crash().written();
    for (interface, answer) in read_all(db.file()) {
        assert!(answer.is_ok(), "{interface}: {answer:?}");
    }
    assert_eq!(db.ask("SELECT count(*) > 0 FROM task_runs WHERE cancel_requested = 1"), "1");
    assert!(run_scheduler(db.file(), 1).expect("some minutes").contains(&"bystander".to_owned()));
    db.assert_sound();
}
