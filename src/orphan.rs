//! What a scheduler that died has left at work: a command outlives whoever started it.
//!
//! A command's standard input is a file that its scheduler locked and kept no copy of: the lock lives as long as the
//! command, or any child that inherited it. Beside it the run records the command's process group. A run whose command is
//! still at work is not begun again.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use crate::platform::{self, Group, Leader};
use crate::{folder, owner};

/// A command that is still at work, of a run whose scheduler is dead.
#[derive(Clone, Debug, PartialEq)]
pub struct Orphan {
    run: i64,
    attempt: u32,
    task: String,
    handler: String,
    leader: Option<Leader>,
    input: PathBuf,
}

impl Orphan {
    /// What an attempt may have left. `process`: what was recorded of it.
    pub(crate) fn new(
        database: &Path,
        run: i64,
        attempt: u32,
        task: String,
        handler: String,
        process: Option<&str>,
    ) -> Self {
        let leader = process.and_then(|text| serde_json::from_str(text).ok());
        Orphan { run, attempt, task, handler, leader, input: input_path(&owner::folder(database), run, attempt) }
    }

    /// The run.
    pub fn run_id(&self) -> i64 {
        self.run
    }

    /// The attempt that was lost.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The name of the task.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The handler that had begun it.
    pub fn handler(&self) -> &str {
        &self.handler
    }

    /// Its process group, if that is certainly the one that was recorded: its leader lives, and has the same number, start
    /// time and boot of the machine. `None`: no process may be touched.
    pub fn group(&self) -> Option<u32> {
        self.leader.as_ref().filter(|leader| leader.group() == Group::Led).map(|leader| leader.pid)
    }

    /// Whether nothing of it is left: its group has no member; or, where no group is known of, nobody holds its input. A
    /// process that holds the input but has left the group counts as gone.
    pub fn is_gone(&self) -> bool {
        match self.leader.as_ref().map_or(Group::Unknown, Leader::group) {
            // Without a leader the number may be another group's by now: too little to signal it, enough to wait. What a
            // shell sends to the background does not hold the input, and is at work all the same.
            Group::Led | Group::Leaderless => false,
            Group::Gone => true,
            Group::Unknown => !platform::is_held(&self.input),
        }
    }

    /// Removes the file of its input; for when its run is recovered.
    pub(crate) fn bury(&self) {
        let _ = std::fs::remove_file(&self.input);
    }
}

/// The record of a process that was started just now and leads a group, as the tables keep it.
pub(crate) fn record_of(pid: u32) -> Option<String> {
    serde_json::to_string(&Leader::identify(pid)?).ok()
}

/// The file that an attempt's command reads, and holds while it lives.
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
}

impl Input {
    /// Makes the file, holds it, and writes into it what the command is to read. What is returned is to be given to the
    /// command, and kept nowhere else.
    pub(crate) fn make(folder: &Path, run: i64, attempt: u32, content: &[u8]) -> io::Result<(Self, File)> {
        folder::make_private(folder)?;
        let path = input_path(folder, run, attempt);
        let mut file = match platform::create_held(&path) {
            // An attempt's number is given once: an older file of this name is of another database that was here before.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&path)?;
                platform::create_held(&path)?
            }
            made => made?,
        };
        let input = Input { path };
        file.write_all(content)?;
        file.rewind()?;
        Ok((input, file))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn input_path(folder: &Path, run: i64, attempt: u32) -> PathBuf {
    folder.join(format!("run-{run}-{attempt}"))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use crate::orphan::{Input, Orphan, record_of};
    use crate::owner;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    // One test: a child that is being started in another would hold this one's input for a moment.
    #[test]
    fn a_command_is_at_work_as_long_as_its_group_and_without_a_record_as_its_input_is_held() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let orphan = |process: Option<&str>| Orphan::new(&database, 7, 2, "t".into(), "command".into(), process);
        assert!(orphan(None).is_gone(), "there never was one");

        let (input, mut file) = Input::make(&owner::folder(&database), 7, 2, b"hello").unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "hello");
        let (reader, writer) = std::io::pipe().unwrap();
        let mut cat = Command::new("cat").stdin(reader).stdout(Stdio::null()).process_group(0).spawn().unwrap();
        let record = record_of(cat.id()).unwrap();
        assert_eq!(orphan(Some(&record)).group(), Some(cat.id()));
        assert!(!orphan(Some(&record)).is_gone());
        // Another process of that number, or of another day, is not ours to touch.
        for (told, other) in [("\"started\":", "\"started\":1"), ("\"boot\":\"", "\"boot\":\"0")] {
            let another = record.replace(told, other);
            assert_ne!(another, record);
            assert!(orphan(Some(&another)).group().is_none() && orphan(Some(&another)).is_gone(), "{another}");
        }
        drop(writer);
        cat.wait().unwrap();
        // Whoever left the group and holds the input counts as gone; without a record it is all that can be asked.
        assert!(orphan(Some(&record)).group().is_none() && orphan(Some(&record)).is_gone());
        assert!(!orphan(None).is_gone() && !orphan(Some("no record")).is_gone());
        drop(file);
        assert!(orphan(None).is_gone());
        drop(input);
        assert_eq!(std::fs::read_dir(home.path().join("t.db-owners")).unwrap().count(), 0);
    }
}
