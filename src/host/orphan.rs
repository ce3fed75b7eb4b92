//! Orphan processes: a command outlives the scheduler that started it.
//!
//! A command inherits a file that its scheduler locked and of which it kept no copy: the lock lives as long as the command, or
//! any child that inherited it. The run records the identity of that file, the command's process group, and the guard that knows of
//! it. The run is recovered only on evidence that the command is gone (`evidence.rs`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use crate::host::evidence::Presence;
use crate::host::evidence::{OwnerEnd, judge};
use crate::host::guard_lock::{self, GuardSeen, GuardedGroup};
use crate::host::platform::{self, Hold};
use crate::host::process::{self, Group, Leader};
use crate::host::{folder, owner_lock};

/// The command of a run whose scheduler is dead.
///
/// ```
/// use duly::command::Orphan;
/// /// Ends the process group of an orphan, as the `end_orphan` of a handler does.
/// fn end(orphan: &Orphan) {
///     match orphan.group() {
///         Some(group) => println!("kill -- -{group}"),
///         // Its pid may belong to another process by now.
///         None => println!("run {} waits until process {:?} is gone", orphan.run_id(), orphan.pid()),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Orphan {
    run: i64,
    attempt: u32,
    task: String,
    handler: String,
    record: Option<Record>,
    database: PathBuf,
    input: PathBuf,
    /// The scheduler that started it, if that is known.
    owner: Option<String>,
}

/// What a run records of its command, as JSON. A field is absent where the system does not report it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    #[serde(flatten)]
    leader: Option<Leader>,
    /// Device and inode of its input file.
    #[serde(skip_serializing_if = "Option::is_none")]
    dev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ino: Option<u64>,
    /// Device and inode of the database. A copy of the database has others.
    #[serde(skip_serializing_if = "Option::is_none")]
    db_dev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    db_ino: Option<u64>,
    /// What the guard of its scheduler knows it as, if a guard held its lock when the command started.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<GuardedGroup>,
    /// Its scheduler was process 1 of its PID namespace.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    init: bool,
    /// A user has declared that the command is gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gone: bool,
}

/// How long the kernel may take to end the processes of a PID namespace with its first one.
const NAMESPACE_END: Duration = Duration::from_secs(2);
/// How long after the death of a scheduler its guard is expected to end its commands: longer than from SIGTERM to SIGKILL.
const GUARD_AT_WORK: Duration = Duration::from_secs(12);

/// The record of a run whose command a user has declared gone.
pub(crate) const DECLARED_GONE: &str = r#"{"gone":true}"#;

/// The database whose command a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedFor {
    /// This database: the input file is in its folder.
    ThisDatabase,
    /// Most likely this database, since the record was written into it. The run waits for the command, and no process
    /// is signalled.
    Presumed,
    /// Another database, of which this one is a copy.
    OtherDatabase,
}

/// An observation of a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) presence: Presence,
    /// `None`: no process is recorded.
    pub(crate) group: Option<Group>,
    /// The process group id, if the group may be signalled.
    pub(crate) signal_group: Option<u32>,
}

impl Orphan {
    /// Returns a command of which only these values are known, for an event that is read from JSON.
    pub(crate) fn described(run: i64, attempt: u32, task: String, handler: String) -> Self {
        let (database, input) = (PathBuf::new(), PathBuf::new());
        Orphan { run, attempt, task, handler, record: None, database, input, owner: None }
    }

    /// Names the scheduler that started it, whose guard counts where nothing is recorded of the command.
    pub(crate) fn started_by(self, owner: Option<&str>) -> Self {
        Orphan { owner: owner.map(str::to_owned), ..self }
    }

    /// Returns the command that an attempt may have left. `process`: its record.
    pub(crate) fn new(
        database: &Path,
        run: i64,
        attempt: u32,
        task: String,
        handler: String,
        process: Option<&str>,
    ) -> Self {
        let record = process.and_then(parsed);
        let input = input_path(&owner_lock::folder(database), run, attempt);
        let worker = worker_path(&input);
        let is_of_worker = worker.symlink_metadata().is_ok();
        let input = if is_of_worker { worker } else { input };
        // The row of an attempt at a worker has no record: the worker's file has it.
        let record = record.or_else(|| is_of_worker.then(|| recorded_in(&input)).flatten());
        let database = database.to_owned();
        Orphan { record, database, input, ..Orphan::described(run, attempt, task, handler) }
    }

    /// Returns a worker process that holds this file. It has no run; the number distinguishes it from others.
    pub(crate) fn of_worker(database: &Path, input: PathBuf, number: u32) -> Self {
        let record = recorded_in(&input);
        Orphan {
            record,
            database: database.to_owned(),
            input,
            ..Orphan::described(0, number, String::new(), String::new())
        }
    }

    /// Returns its input file, or the file of the worker.
    pub(crate) fn input(&self) -> &Path {
        &self.input
    }

    /// Returns the id of the run.
    pub fn run_id(&self) -> i64 {
        self.run
    }

    /// Returns the number of the lost attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the name of the task.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Returns the handler that started it.
    pub fn handler(&self) -> &str {
        &self.handler
    }

    /// Returns the pid of its process, if recorded. Another process may have the same pid by now.
    pub fn pid(&self) -> Option<u32> {
        self.record.as_ref()?.leader.as_ref().map(|leader| leader.pid)
    }

    /// Returns its process group, if the group may be signalled: the input file is in the folder of this database, and
    /// the group is certainly the recorded one. That is certain if its leader is alive and has the recorded pid, start
    /// time, boot and PID namespace; or if a member of the group was started with the `DULY_RUN_ID` and `DULY_ATTEMPT`
    /// of this attempt. `None`: no process may be signalled.
    pub fn group(&self) -> Option<u32> {
        self.observe().signal_group
    }

    /// Returns whether it is gone. That requires positive evidence: its process group has no member, or, where the group cannot be
    /// read, the lock of its input was acquired, and no guard may still wait for it. A process that left the group counts as gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence(), Presence::Gone | Presence::NoTrace | Presence::LeftGroup)
    }

    /// Returns whether a user has declared it gone.
    pub(crate) fn is_declared_gone(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.gone)
    }

    /// Records that a user has declared it gone.
    pub(crate) fn declare_gone(&mut self) {
        self.record.get_or_insert_default().gone = true;
    }

    pub(crate) fn presence(&self) -> Presence {
        self.observe().presence
    }

    /// As [`Orphan::presence`]. `dead_for`: how long its scheduler has been known to be dead.
    pub(crate) fn presence_after_death(&self, dead_for: Duration) -> Presence {
        self.observe_after_death(Some(dead_for)).presence
    }

    /// Returns the visible processes that hold its input file.
    pub(crate) fn holders(&self) -> Vec<u32> {
        let own = self.input.file_name().and_then(OsStr::to_str).unwrap_or_default();
        // A worker opened its file under another name than that of the link.
        let is_named = |name: &str| if self.is_of_worker() { name.starts_with(WORKER) } else { name == own };
        process::holders(&self.input, is_named)
    }

    /// Returns whether its input is the file of a worker.
    fn is_of_worker(&self) -> bool {
        let name = self.input.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(WORKER) || name.ends_with(".worker")
    }

    /// Observes its process group, the lock of its input, and the guard of its scheduler.
    pub(crate) fn observe(&self) -> Observation {
        self.observe_after_death(None)
    }

    fn observe_after_death(&self, dead_for: Option<Duration>) -> Observation {
        let (group, signal_group) = (None, None);
        if self.is_declared_gone() {
            return Observation { presence: Presence::Gone, group, signal_group };
        }
        // The group first: if it is empty and the input is held afterwards, the holder is no member.
        let group = self.record.as_ref().map(|record| match &record.leader {
            Some(leader) => leader.group(),
            None => Group::Unreadable("its process is not recorded".to_owned()),
        });
        let (hold, found) = platform::held(&self.input);
        let recorded_for =
            self.record.as_ref().map_or(RecordedFor::Presumed, |record| self.recorded_for(record, found));
        let is_ours = recorded_for == RecordedFor::ThisDatabase;
        let signal_group = match &group {
            Some(Group::Led) if is_ours => self.pid(),
            Some(Group::Leaderless(members)) if is_ours && self.started_any_of(members) => self.pid(),
            _ => None,
        };
        // The record of another database's command is no evidence about this run.
        let counting = group.as_ref().filter(|_| recorded_for != RecordedFor::OtherDatabase);
        let guard = match (counting, &self.record) {
            (Some(Group::Unreadable(_)), _) => self.guard(),
            // The scheduler died before it had recorded the command, and may have told its guard.
            (None, None) if hold == Hold::Free => self.guard(),
            _ => GuardSeen::NoGuard,
        };
        let was_init = self.record.as_ref().is_some_and(|record| record.init);
        let end = match dead_for {
            Some(dead_for) if was_init && dead_for >= NAMESPACE_END => OwnerEnd::EndedNamespace,
            Some(dead_for) if dead_for < GUARD_AT_WORK => OwnerEnd::Recent,
            _ => OwnerEnd::Plain,
        };
        let presence = judge(counting, hold, guard, end);
        Observation { presence, group, signal_group }
    }

    fn guard(&self) -> GuardSeen {
        let folder = owner_lock::folder(&self.database);
        match &self.record {
            Some(record) => guard_lock::seen(&folder, record.guard.as_ref()),
            // Only the guard that knows of this attempt is one.
            None => {
                let of_attempt = |owner: &String| GuardedGroup::of_attempt(owner, self.run, self.attempt);
                match guard_lock::seen(&folder, self.owner.as_ref().map(of_attempt).as_ref()) {
                    GuardSeen::Missing => GuardSeen::NoGuard,
                    seen => seen,
                }
            }
        }
    }

    /// `found`: the identity of the input file in this folder.
    fn recorded_for(&self, record: &Record, found: Option<(u64, u64)>) -> RecordedFor {
        let input = record.dev.zip(record.ino);
        if input.is_some() && input == found {
            return RecordedFor::ThisDatabase;
        }
        let database = platform::identity_at(&self.database);
        match (record.db_dev.zip(record.db_ino), database) {
            (Some(recorded), Some(now)) if recorded == now => RecordedFor::Presumed,
            (Some(_), Some(_)) => RecordedFor::OtherDatabase,
            _ if input.is_some() && found.is_some() => RecordedFor::OtherDatabase,
            _ => RecordedFor::Presumed,
        }
    }

    /// Returns whether one of these processes certainly belongs to this attempt, or holds the file of its worker. The kernel does not
    /// reuse the id of a group while a member lives.
    fn started_any_of(&self, members: &[u32]) -> bool {
        if self.is_of_worker() {
            return self.holders().iter().any(|holder| members.contains(holder));
        }
        let variables = [format!("DULY_RUN_ID={}", self.run), format!("DULY_ATTEMPT={}", self.attempt)];
        members.iter().any(|member| process::was_started_with(*member, &variables).unwrap_or(false))
    }

    /// Removes its input and payload files, when its run is recovered.
    pub(crate) fn remove_files(&self) {
        let input = input_path(&owner_lock::folder(&self.database), self.run, self.attempt);
        for path in [payload_path(&input), worker_path(&input), input] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How the name of a worker's file begins.
pub(crate) const WORKER: &str = "worker-";

/// Most bytes of the record in a worker's file.
const MAX_RECORD: u64 = 4096;

/// Returns the record that a worker's file holds, if it can be read.
fn recorded_in(file: &Path) -> Option<Record> {
    let mut text = String::new();
    platform::open_regular(file, File::options().read(true))
        .ok()?
        .take(MAX_RECORD + 1)
        .read_to_string(&mut text)
        .ok()?;
    Some(text).filter(|text| text.len() as u64 <= MAX_RECORD).as_deref().and_then(parsed)
}

/// Returns a record that says something.
fn parsed(text: &str) -> Option<Record> {
    serde_json::from_str(text).ok().filter(|record| *record != Record::default())
}

/// Returns whether a record is a user's declaration that the command is gone.
pub(crate) fn is_declaration(process: &str) -> bool {
    serde_json::from_str(process).is_ok_and(|record: Record| record.gone)
}

/// Returns the record, as the tables store it, of a process that has just started and leads a group. `input`: device and
/// inode of its input file. `guard`: what the guard of this scheduler knows it as. `None` where the system reports nothing.
pub(crate) fn record_of(
    pid: u32,
    input: Option<(u64, u64)>,
    database: &Path,
    guard: Option<GuardedGroup>,
) -> Option<String> {
    let database = platform::identity_at(database);
    let (dev, ino) = input.unzip();
    let (db_dev, db_ino) = database.unzip();
    let init = std::process::id() == 1;
    let record = Record { leader: Leader::identify(pid), dev, ino, db_dev, db_ino, guard, init, gone: false };
    (record != Record::default()).then(|| serde_json::to_string(&record).ok()).flatten()
}

/// The file that an attempt's command reads, and holds while it lives. It is kept until the end of the attempt is
/// stored: a free lock is the evidence for an observer that cannot see the command's process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

impl Input {
    /// Creates and locks the standard input file of a command and writes its content. The caller must pass the returned
    /// file to the command and keep no copy.
    pub(crate) fn create(folder: &Path, run: i64, attempt: u32, content: &[u8]) -> io::Result<(Self, File)> {
        folder::make_private(folder)?;
        let path = input_path(folder, run, attempt);
        let mut file = create_anew(&path, platform::create_held)?;
        let input = Input { path, identity: platform::identity_of(&file) };
        file.write_all(content)?;
        file.rewind()?;
        Ok((input, file))
    }

    /// Links the file of a worker beside it, as the input of an attempt.
    pub(crate) fn link(file: &Path, identity: Option<(u64, u64)>, run: i64, attempt: u32) -> io::Result<Self> {
        let path = worker_path(&file.with_file_name(format!("run-{run}-{attempt}")));
        create_anew(&path, |path| std::fs::hard_link(file, path))?;
        Ok(Input { path, identity })
    }

    /// Returns device and inode.
    pub(crate) fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Removes the file, after the end of the attempt is stored.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file from which an attempt's command reads the payload of its run. It is not locked. Removed on drop.
#[derive(Debug)]
pub(crate) struct PayloadFile {
    path: PathBuf,
}

impl PayloadFile {
    pub(crate) fn create(folder: &Path, run: i64, attempt: u32, content: &[u8]) -> io::Result<Self> {
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

/// Creates a file, replacing an existing one. Attempt numbers are unique within a database: an older file of this name
/// belonged to an earlier database at this path.
fn create_anew<T>(path: &Path, create: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            create(path)
        }
        made => made,
    }
}

/// Returns the attempts of which an input, a link to a worker's file or a payload file is in the folder of a database.
pub(crate) fn inputs(database: &Path) -> Vec<(i64, u32)> {
    let files = std::fs::read_dir(owner_lock::folder(database)).into_iter().flatten().flatten();
    let attempt = |name: &str| {
        let name = name.strip_suffix(".payload").or_else(|| name.strip_suffix(".worker")).unwrap_or(name);
        let (run, attempt) = name.strip_prefix("run-")?.split_once('-')?;
        Some((run.parse().ok()?, attempt.parse().ok()?))
    };
    files.filter_map(|file| attempt(file.file_name().to_str()?)).collect()
}

/// Removes the input and payload files of an ended attempt, unless a process holds the input; and its link to the file of a
/// worker in any case.
pub(crate) fn remove_free_input(database: &Path, (run, attempt): (i64, u32)) {
    let path = input_path(&owner_lock::folder(database), run, attempt);
    let is_free = |path: &Path| matches!(platform::held(path).0, Hold::Free | Hold::Missing);
    if is_free(&path) {
        let _ = std::fs::remove_file(payload_path(&path));
        let _ = std::fs::remove_file(&path);
    }
    // A worker that lives has ended the attempt: nothing waits for it.
    let _ = std::fs::remove_file(worker_path(&path));
}

fn input_path(folder: &Path, run: i64, attempt: u32) -> PathBuf {
    folder.join(format!("run-{run}-{attempt}"))
}

/// Returns the name of the link to the file of a worker that runs the attempt.
fn worker_path(input: &Path) -> PathBuf {
    input.with_extension("worker")
}

fn payload_path(input: &Path) -> PathBuf {
    input.with_extension("payload")
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use crate::host::orphan::{DECLARED_GONE, Input, Orphan, Presence, inputs, is_declaration, record_of};
    use crate::host::owner_lock;
    use crate::waits::exited;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    // A single test: a child that starts in another test would briefly hold this input.
    #[test]
    fn a_command_lives_while_its_group_lives_or_without_a_record_while_its_input_is_held() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let orphan = |process: Option<&str>| Orphan::new(&database, 7, 2, "t".into(), "command".into(), process);
        assert!(orphan(None).is_gone(), "no command ran");

        let (input, mut file) = Input::create(&owner_lock::folder(&database), 7, 2, b"hello").unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "hello");
        let (reader, writer) = std::io::pipe().unwrap();
        let mut cat = Command::new("cat").stdin(reader).stdout(Stdio::null()).process_group(0).spawn().unwrap();
        let record = record_of(cat.id(), input.identity(), &database, None).unwrap();
        assert_eq!(orphan(Some(&record)).group(), Some(cat.id()));
        assert_eq!(orphan(Some(&record)).presence(), Presence::Alive);
        // A process with that pid and another start time is another process, and its group is not the recorded one.
        let another = record.replace("\"started\":", "\"started\":1");
        assert_ne!(another, record);
        assert_eq!((orphan(Some(&another)).group(), orphan(Some(&another)).presence()), (None, Presence::LeftGroup));
        // Where its group cannot be read, its input decides, and no process is signalled.
        for (recorded, other) in
            [("\"boot\":\"", "\"boot\":\"0"), ("\"pid_ns\":", "\"pid_ns\":1"), ("\"pid_ns\"", "\"x\"")]
        {
            let elsewhere = record.replace(recorded, other);
            assert_ne!(elsewhere, record);
            let elsewhere = orphan(Some(&elsewhere));
            assert_eq!((elsewhere.group(), elsewhere.presence()), (None, Presence::Alive), "{other}");
        }
        // The input file in the folder is another one. The record is of this database: the run waits, and nothing is
        // signalled.
        let another_input = record.replace("\"ino\":", "\"ino\":1");
        let presumed = orphan(Some(&another_input));
        assert_eq!((presumed.group(), presumed.presence()), (None, Presence::Alive));
        // The record is of another database, and so is the process, unless a process holds the input in the folder.
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
        exited(&mut cat, "cat");
        assert_eq!((orphan(Some(&record)).group(), presence(&record)), (None, Presence::Gone));
        assert!(orphan(None).is_gone());
        assert_eq!(inputs(&database), [(7, 2)]);
        input.remove();
        assert!(orphan(None).is_gone() && presence(&record) == Presence::Gone);
        assert_eq!(std::fs::read_dir(home.path().join("t.db-owners")).unwrap().count(), 0);
    }
}
