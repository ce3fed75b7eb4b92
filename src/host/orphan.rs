//! What a scheduler that died has left at work: a command outlives the scheduler that started it.
//!
//! A command's standard input is a file that its scheduler locked and kept no copy of: the lock lives as long as the
//! command, or any child that inherited it. The run records which file that is, and the command's process group. The run is
//! recovered only on evidence that the command is gone. An error while looking is no evidence, either way.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::platform::{self, Hold};
use crate::host::process::{self, Group, Leader};
use crate::host::{folder, owner_lock};

/// A command of a run whose scheduler is dead.
#[derive(Clone, Debug, PartialEq)]
pub struct Orphan {
    run: i64,
    attempt: u32,
    task: String,
    handler: String,
    record: Option<Record>,
    database: PathBuf,
    input: PathBuf,
}

/// What a run records of its command, as JSON. A field is absent where the system does not tell it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    #[serde(flatten)]
    leader: Option<Leader>,
    /// Device and inode of the file of its input.
    #[serde(skip_serializing_if = "Option::is_none")]
    dev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ino: Option<u64>,
    /// Device and inode of the database: in a copy of the file they are others.
    #[serde(skip_serializing_if = "Option::is_none")]
    db_dev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    db_ino: Option<u64>,
    /// A user has declared that the command is gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gone: bool,
}

/// What the record of a run says whose command a user has declared gone.
pub(crate) const DECLARED_GONE: &str = r#"{"gone":true}"#;

/// Whether a command is still at work, as far as can be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Alive,
    /// Nothing of it is left, or a user says so, or it is the command of another database.
    Gone,
    /// As [`Presence::Gone`], and nothing shows that it ever was: no record, and no input.
    NoTrace,
    /// Its process group is empty. A process that has left the group holds its input, and is no part of the run any more.
    LeftGroup,
    /// It cannot be known. Why.
    Unknown(String),
}

/// Whose command a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// That of this run: the file of its input lies in the folder of this database.
    Ours,
    /// Most likely that of this run: the record was written into this file. It is waited for, and not signalled.
    Presumed,
    /// That of the database that this one is a copy of.
    AnothersCopy,
}

/// What is seen of a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sight {
    pub(crate) presence: Presence,
    /// `None`: no process is recorded.
    pub(crate) group: Option<Group>,
    /// The number of the group, if it may be signalled.
    pub(crate) signalled: Option<u32>,
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
        let record: Option<Record> = process.and_then(|text| serde_json::from_str(text).ok());
        let record = record.filter(|record| *record != Record::default());
        let input = input_path(&owner_lock::folder(database), run, attempt);
        Orphan { run, attempt, task, handler, record, database: database.to_owned(), input }
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

    /// The number of its process, if one was recorded. Another process may have it by now.
    pub fn pid(&self) -> Option<u32> {
        self.record.as_ref()?.leader.as_ref().map(|leader| leader.pid)
    }

    /// Its process group, if that may be signalled: the file of its input lies in the folder of this database, and the group
    /// is certainly the recorded one. That is so if its leader lives and has the recorded number, start time, boot and PID
    /// namespace; or if a member of the group was started with the `DULY_RUN_ID` and `DULY_ATTEMPT` of this attempt.
    /// `None`: no process may be signalled.
    pub fn group(&self) -> Option<u32> {
        self.look().signalled
    }

    /// Whether nothing of it is left. That is so only on positive evidence: its process group has no member, or, where that
    /// cannot be read, the lock of its input was acquired. A process that has left the group counts as gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence(), Presence::Gone | Presence::NoTrace | Presence::LeftGroup)
    }

    /// Whether a user has declared it gone.
    pub(crate) fn is_declared_gone(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.gone)
    }

    /// Takes note that a user has.
    pub(crate) fn declare_gone(&mut self) {
        self.record.get_or_insert_default().gone = true;
    }

    pub(crate) fn presence(&self) -> Presence {
        self.look().presence
    }

    /// The processes that hold its input, as far as they can be seen.
    pub(crate) fn holders(&self) -> Vec<u32> {
        process::holders(&self.input)
    }

    /// Looks at its group, and asks for its input.
    pub(crate) fn look(&self) -> Sight {
        let (group, signalled) = (None, None);
        if self.is_declared_gone() {
            return Sight { presence: Presence::Gone, group, signalled };
        }
        // The group first: if it is empty and the input is held after that, the holder is no member.
        let group = self.record.as_ref().map(|record| match &record.leader {
            Some(leader) => leader.group(),
            None => Group::Unreadable("its process is not recorded".to_owned()),
        });
        let (hold, found) = platform::held(&self.input);
        let whose = self.record.as_ref().map_or(Whose::Presumed, |record| self.whose(record, found));
        let signalled = match &group {
            Some(Group::Led) if whose == Whose::Ours => self.pid(),
            Some(Group::Leaderless(members)) if whose == Whose::Ours && self.knows_one_of(members) => self.pid(),
            _ => None,
        };
        // What is recorded of another database's command says nothing about this run.
        let presence = judge(group.as_ref().filter(|_| whose != Whose::AnothersCopy), hold);
        Sight { presence, group, signalled }
    }

    /// `found`: the file of the input, as it is in this folder.
    fn whose(&self, record: &Record, found: Option<(u64, u64)>) -> Whose {
        let input = record.dev.zip(record.ino);
        if input.is_some() && input == found {
            return Whose::Ours;
        }
        let database = std::fs::metadata(&self.database).ok().as_ref().and_then(platform::identity);
        match (record.db_dev.zip(record.db_ino), database) {
            (Some(recorded), Some(now)) if recorded == now => Whose::Presumed,
            (Some(_), Some(_)) => Whose::AnothersCopy,
            _ if input.is_some() && found.is_some() => Whose::AnothersCopy,
            _ => Whose::Presumed,
        }
    }

    /// Whether one of these is certainly of this attempt. The number of a group is not given out again while one lives.
    fn knows_one_of(&self, members: &[u32]) -> bool {
        let variables = [format!("DULY_RUN_ID={}", self.run), format!("DULY_ATTEMPT={}", self.attempt)];
        members.iter().any(|member| process::was_started_with(*member, &variables))
    }

    /// Removes the files of its input and its payload; for when its run is recovered.
    pub(crate) fn bury(&self) {
        let _ = std::fs::remove_file(&self.input);
        let _ = std::fs::remove_file(payload_path(&self.input));
    }
}

/// Weighs the evidence. `group`: `None` if nothing was recorded; then the input alone decides, and without an input there
/// never was a command.
fn judge(group: Option<&Group>, input: Hold) -> Presence {
    match (group, input) {
        (Some(Group::Led | Group::Leaderless(_)), _) => Presence::Alive,
        (Some(Group::Empty), Hold::Held) => Presence::LeftGroup,
        (_, Hold::Held) => Presence::Alive,
        (_, Hold::Free) => Presence::Gone,
        (_, Hold::Unknown(reason)) => Presence::Unknown(reason),
        // The file of the input may not have reached the disk before the machine lost its power.
        (Some(Group::Empty | Group::OtherBoot), Hold::Missing) => Presence::Gone,
        (None, Hold::Missing) => Presence::NoTrace,
        (Some(Group::Unreadable(reason)), Hold::Missing) => {
            Presence::Unknown(format!("the file of its input is missing, and {reason}"))
        }
    }
}

/// Whether a record says that a user has declared the command gone.
pub(crate) fn is_declaration(process: &str) -> bool {
    serde_json::from_str(process).is_ok_and(|record: Record| record.gone)
}

/// The record of a process that was started just now and leads a group, as the tables keep it. `input`: the file that it was
/// given. `None` where the system tells nothing.
pub(crate) fn record_of(pid: u32, input: Option<&Input>, database: &Path) -> Option<String> {
    let database = std::fs::metadata(database).ok().as_ref().and_then(platform::identity);
    let (dev, ino) = input.and_then(|input| input.identity).unzip();
    let (db_dev, db_ino) = database.unzip();
    let record = Record { leader: Leader::identify(pid), dev, ino, db_dev, db_ino, gone: false };
    (record != Record::default()).then(|| serde_json::to_string(&record).ok()).flatten()
}

/// The file that an attempt's command reads, and holds while it lives. It lies there until the end of the attempt is written
/// down: that it can be locked is the evidence for every observer that does not see the command's process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    path: PathBuf,
    /// Which file it is.
    identity: Option<(u64, u64)>,
}

impl Input {
    /// Makes the standard input of the command, holds it, and writes into it what the command is to read. What is returned is to be given to the
    /// command, and kept nowhere else.
    pub(crate) fn make(folder: &Path, run: i64, attempt: u32, content: &[u8]) -> io::Result<(Self, File)> {
        folder::make_private(folder)?;
        let path = input_path(folder, run, attempt);
        let mut file = create_anew(&path, platform::create_held)?;
        let input = Input { path, identity: platform::identity(&file.metadata()?) };
        file.write_all(content)?;
        file.rewind()?;
        Ok((input, file))
    }

    /// Removes the file; for when the end of the attempt is written down.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file in which an attempt's command finds the payload of its run. It is not held. Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct PayloadFile {
    path: PathBuf,
}

impl PayloadFile {
    pub(crate) fn make(folder: &Path, run: i64, attempt: u32, content: &[u8]) -> io::Result<Self> {
        folder::make_private(folder)?;
        let path = payload_path(&input_path(folder, run, attempt));
        let mut file = create_anew(&path, platform::create_private)?;
        let payload = PayloadFile { path };
        file.write_all(content)?;
        Ok(payload)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PayloadFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An attempt's number is given once: an older file of this name belonged to another database that was here before.
fn create_anew(path: &Path, create: fn(&Path) -> io::Result<File>) -> io::Result<File> {
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            create(path)
        }
        made => made,
    }
}

/// The attempts of which an input or a payload lies in the folder of a database.
pub(crate) fn inputs(database: &Path) -> Vec<(i64, u32)> {
    let files = std::fs::read_dir(owner_lock::folder(database)).into_iter().flatten().flatten();
    let attempt = |name: &str| {
        let name = name.strip_suffix(".payload").unwrap_or(name);
        let (run, attempt) = name.strip_prefix("run-")?.split_once('-')?;
        Some((run.parse().ok()?, attempt.parse().ok()?))
    };
    files.filter_map(|file| attempt(file.file_name().to_str()?)).collect()
}

/// Removes the input and the payload of an attempt that is over, unless a process holds the input.
pub(crate) fn remove_free_input(database: &Path, (run, attempt): (i64, u32)) {
    let path = input_path(&owner_lock::folder(database), run, attempt);
    if matches!(platform::held(&path).0, Hold::Free | Hold::Missing) {
        let _ = std::fs::remove_file(payload_path(&path));
        let _ = std::fs::remove_file(path);
    }
}

fn input_path(folder: &Path, run: i64, attempt: u32) -> PathBuf {
    folder.join(format!("run-{run}-{attempt}"))
}

fn payload_path(input: &Path) -> PathBuf {
    input.with_extension("payload")
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use crate::host::orphan::{DECLARED_GONE, Input, Orphan, Presence, inputs, is_declaration, judge, record_of};
    use crate::host::owner_lock;
    use crate::host::platform::Hold;
    use crate::host::process::Group;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn only_evidence_makes_a_command_gone() {
        let (error, hidden) = (|| "no descriptor is left".to_owned(), || Group::Unreadable("it is hidden".to_owned()));
        let unknown = |reason: &str| Presence::Unknown(reason.to_owned());
        let members = || Group::Leaderless(vec![7]);
        use Presence::{Alive, Gone, LeftGroup, NoTrace};
        for (group, held, free, missing, unasked) in [
            (None, Alive, Gone, NoTrace, unknown(&error())),
            (Some(Group::Led), Alive, Alive, Alive, Alive),
            (Some(members()), Alive, Alive, Alive, Alive),
            (Some(Group::Empty), LeftGroup, Gone, Gone, unknown(&error())),
            (Some(Group::OtherBoot), Alive, Gone, Gone, unknown(&error())),
            (
                Some(hidden()),
                Alive,
                Gone,
                unknown("the file of its input is missing, and it is hidden"),
                unknown(&error()),
            ),
        ] {
            for (input, presence) in
                [(Hold::Held, held), (Hold::Free, free), (Hold::Missing, missing), (Hold::Unknown(error()), unasked)]
            {
                assert_eq!(judge(group.as_ref(), input.clone()), presence, "{group:?}, {input:?}");
            }
        }
    }

    // One test: a child that is being started in another would hold this one's input for a moment.
    #[test]
    fn a_command_is_at_work_as_long_as_its_group_and_without_a_record_as_its_input_is_held() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let orphan = |process: Option<&str>| Orphan::new(&database, 7, 2, "t".into(), "command".into(), process);
        assert!(orphan(None).is_gone(), "there never was one");

        let (input, mut file) = Input::make(&owner_lock::folder(&database), 7, 2, b"hello").unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "hello");
        let (reader, writer) = std::io::pipe().unwrap();
        let mut cat = Command::new("cat").stdin(reader).stdout(Stdio::null()).process_group(0).spawn().unwrap();
        let record = record_of(cat.id(), Some(&input), &database).unwrap();
        assert_eq!(orphan(Some(&record)).group(), Some(cat.id()));
        assert_eq!(orphan(Some(&record)).presence(), Presence::Alive);
        // A process of that number with another start is another process, and its group is not the recorded one.
        let another = record.replace("\"started\":", "\"started\":1");
        assert_ne!(another, record);
        assert_eq!((orphan(Some(&another)).group(), orphan(Some(&another)).presence()), (None, Presence::LeftGroup));
        // Where its group cannot be read, its input decides, and no process is signalled.
        for (told, other) in [("\"boot\":\"", "\"boot\":\"0"), ("\"pid_ns\":", "\"pid_ns\":1"), ("\"pid_ns\"", "\"x\"")]
        {
            let elsewhere = record.replace(told, other);
            assert_ne!(elsewhere, record);
            let elsewhere = orphan(Some(&elsewhere));
            assert_eq!((elsewhere.group(), elsewhere.presence()), (None, Presence::Alive), "{other}");
        }
        // The input that lies here is another file. The record is of this database: it is waited for, and not signalled.
        let another_input = record.replace("\"ino\":", "\"ino\":1");
        let presumed = orphan(Some(&another_input));
        assert_eq!((presumed.group(), presumed.presence()), (None, Presence::Alive));
        // And here it is of another, and so is the process, as long as no process holds the input that lies here.
        let copied = another_input.replace("\"db_ino\":", "\"db_ino\":1");
        assert_eq!((orphan(Some(&copied)).group(), orphan(Some(&copied)).presence()), (None, Presence::Alive));
        let presence = |record: &str| orphan(Some(record)).presence();
        assert_eq!(
            (presence(DECLARED_GONE), presence("no record"), presence("{}")),
            (Presence::Gone, Presence::Alive, Presence::Alive)
        );
        assert!(is_declaration(DECLARED_GONE) && !is_declaration(&record) && !is_declaration("no record"));

        drop(file);
        assert_eq!((presence(&record), presence(&copied)), (Presence::Alive, Presence::Gone));
        drop(writer);
        cat.wait().unwrap();
        assert_eq!((orphan(Some(&record)).group(), presence(&record)), (None, Presence::Gone));
        assert!(orphan(None).is_gone());
        assert_eq!(inputs(&database), [(7, 2)]);
        input.remove();
        assert!(orphan(None).is_gone() && presence(&record) == Presence::Gone);
        assert_eq!(std::fs::read_dir(home.path().join("t.db-owners")).unwrap().count(), 0);
    }
}
