//! The journal: what handlers, commands and workers do, in the order in which they do it. Each line is appended by one write.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::selftest::checker::{self, AttemptId, Fault, Line};

/// The file in the folder of the database.
const JOURNAL: &str = "journal";

/// The variable with the number that identifies a scheduler in the journal.
pub(crate) const NUMBER: &str = "DULY_TEST_SCHEDULER";

/// The lock that [`probe`] takes: of its task, or of its run if runs of the task may overlap.
pub(crate) const OF_TASK: &str = "$DULY_TASK";
pub(crate) const OF_RUN: &str = "$DULY_RUN_ID";

/// What an attempt notes beside its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// It began while another attempt had its lock.
    Overlap(AttemptId),
    /// It began, and all slots of its concurrency key were taken.
    Over(AttemptId),
    /// It performed its effect.
    Paid(AttemptId),
    /// An attempt began at this time, in milliseconds.
    At(i64),
}

impl Note {
    fn parse(line: &str) -> Option<Note> {
        let words: Vec<&str> = line.split(' ').collect();
        let id = || Some((words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?));
        match (words[0], words.len()) {
            ("overlap", 3) => id().map(Note::Overlap),
            ("over", 3) => id().map(Note::Over),
            ("paid", 3) => id().map(Note::Paid),
            ("at", 2) => words[1].parse().ok().map(Note::At),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    pub(crate) lines: Vec<Line>,
    pub(crate) notes: Vec<Note>,
    /// Lines that nothing writes.
    pub(crate) torn: Vec<Fault>,
}

impl Journal {
    pub(crate) fn read(folder: &Path) -> Journal {
        Self::parse(&std::fs::read_to_string(folder.join(JOURNAL)).expect("the journal"))
    }

    pub(crate) fn parse(text: &str) -> Journal {
        // The process that wrote the last line may have been killed within it.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let (mut notes, mut others) = (Vec::new(), String::new());
        for line in complete.lines() {
            match Note::parse(line) {
                Some(note) => notes.push(note),
                None => others.extend([line, "\n"]),
            }
        }
        let (lines, torn) = checker::parse(&others);
        Journal { lines, notes, torn }
    }

    /// The number of starts of a task.
    pub(crate) fn starts(&self, name: &str) -> usize {
        self.lines.iter().filter(|line| matches!(line, Line::Began { task, .. } if task == name)).count()
    }
}

/// The number of lines so far.
pub(crate) fn length(folder: &Path) -> usize {
    std::fs::read(folder.join(JOURNAL)).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}

/// Opens the journal of a folder, to append to it.
pub(crate) fn open(folder: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(folder.join(JOURNAL)).expect("the journal")
}

pub(crate) fn write(mut journal: &File, line: &Line) -> std::io::Result<()> {
    journal.write_all(line.to_string().as_bytes())
}

/// A shell line that does `work` between its two lines of the journal, and notes an overlap: it takes `lock` as long as the shell or a
/// child of it lives. `$me` is its attempt, and `$journal` the file.
pub(crate) fn probe(folder: &Path, lock: &str, work: &str) -> String {
    let folder = folder.display();
    format!(
        "me=\"$DULY_RUN_ID $DULY_ATTEMPT\" journal={folder}/{JOURNAL}
         exec 9>>{folder}/lock-{lock}; flock -n 9 || echo \"overlap $me\" >>$journal
         echo \"began $me ${NUMBER} $DULY_SCHEDULED_FOR $DULY_TASK\" >>$journal
         trap 'echo \"ended $me\" >>$journal; exit 1' TERM
         {work}; trap '' TERM; echo \"ended $me\" >>$journal"
    )
}

/// `work` of [`probe`]: takes its time.
pub(crate) fn sleep(millis: u64) -> String {
    format!("sleep {}.{:03}", millis / 1000, millis % 1000)
}
