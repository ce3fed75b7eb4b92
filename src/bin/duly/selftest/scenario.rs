//! Schedulers on one file, each in a process of its own: their tasks, their end, and what they are held against.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::{Client, NewTask, TaskStatus, Timestamp};

use crate::selftest::checker::{self, Fault, Line, Promise, Sums, Told};
use crate::selftest::child::{DATABASE, JOURNAL, Part};
use crate::selftest::process::Process;
use crate::selftest::report::{Check, so_many};
use crate::selftest::tasks::ASKED;
use crate::selftest::wait::{Halt, Patience, failed};

/// How long what is due may take to be done when nothing disturbs it any more.
const QUIET: Duration = Duration::from_secs(60);
/// Every fault that was found stands in a file of this name.
const FAULTS: &str = "faults";
/// Most faults that are told in a line.
const MOST: usize = 3;

pub(crate) const REPORT: &str =
    "do not keep work there that may not run twice or be lost; report it with the folder that is kept";

/// A file, and the two at work on it.
pub(crate) struct Stage {
    folder: PathBuf,
    pub(crate) client: Client,
    journal: File,
    promises: Vec<Promise>,
    schedulers: Vec<Process>,
}

impl Stage {
    /// Makes the file with its tasks, and starts two schedulers on it.
    pub(crate) fn set(folder: &Path, tasks: Vec<(NewTask, Promise)>) -> Result<Self, Halt> {
        let journal = OpenOptions::new().append(true).create_new(true).open(folder.join(JOURNAL));
        let journal = journal.map_err(failed("cannot make a file"))?;
        let client = Client::open(folder.join(DATABASE)).map_err(failed("cannot make a database"))?;
        let (tasks, mut promises): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        client.add_all(tasks).map_err(failed("cannot add tasks"))?;
        for Promise { task, due, .. } in &mut promises {
            // What had passed before the task was there was not promised.
            let added = client.task(task).map_err(failed("cannot read the database"))?;
            let since = added.map_or(Timestamp::MIN, |task| task.active_since);
            due.iter_mut().for_each(|due| due.retain(|at| *at > since));
        }
        let schedulers = vec![Process::start(Part::Schedule, folder)?, Process::start(Part::Schedule, folder)?];
        Ok(Stage { folder: folder.to_owned(), client, journal, promises, schedulers })
    }

    /// Kills one of them, or both; they must have been alive. A pause later there are two again.
    pub(crate) fn kill(&mut self, which: &[usize], pause: Duration, patience: &Patience) -> Result<(), Halt> {
        for index in which {
            let victim =
                self.schedulers.get_mut(*index).ok_or_else(|| Halt::Failed("there is no such process".into()))?;
            victim.lives()?;
            // Before it dies: what it had begun may be begun again from now on.
            let line = Line::Doomed { process: victim.id() }.to_string();
            self.journal.write_all(line.as_bytes()).map_err(failed("cannot write a file"))?;
        }
        let mut kept = Vec::new();
        for (index, scheduler) in std::mem::take(&mut self.schedulers).into_iter().enumerate() {
            if which.contains(&index) { scheduler.kill()? } else { kept.push(scheduler) }
        }
        self.schedulers = kept;
        patience.rest(pause)?;
        for _ in which {
            self.schedulers.push(Process::start(Part::Schedule, &self.folder)?);
        }
        Ok(())
    }

    /// Both are alive.
    pub(crate) fn live(&mut self) -> Result<(), Halt> {
        self.schedulers.iter_mut().try_for_each(Process::lives)
    }

    /// Waits until all that was due is done, and lets the schedulers leave.
    pub(crate) fn quiet(&mut self, patience: &Patience) -> Result<(), Halt> {
        patience.until("all that was due was done", QUIET, || {
            self.schedulers.iter_mut().try_for_each(Process::lives)?;
            let status = self.client.status().map_err(failed("cannot read the database"))?;
            let unfinished: u64 = status.runs.iter().map(|(_, count)| count).sum();
            // The one that is never due stays as it is.
            let waiting = self.promises.iter().any(|promise| promise.task == ASKED);
            let active: u64 =
                status.tasks.iter().filter(|(status, _)| *status == TaskStatus::Active).map(|(_, count)| count).sum();
            Ok(unfinished == 0 && active == u64::from(waiting))
        })?;
        std::mem::take(&mut self.schedulers).into_iter().try_for_each(|scheduler| scheduler.end(patience))
    }

    /// Holds what the handlers wrote down against the tables.
    pub(crate) fn judged(&self) -> Result<(Vec<Fault>, Sums), Halt> {
        let text = std::fs::read_to_string(self.folder.join(JOURNAL)).map_err(failed("cannot read a file"))?;
        let told = Told::read(&self.client).map_err(failed("cannot read the database"))?;
        let (lines, mut faults) = checker::read(&text);
        faults.extend(checker::judge(&lines, &told, &self.promises));
        let list: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
        std::fs::write(self.folder.join(FAULTS), list).map_err(failed("cannot write a file"))?;
        Ok((faults, Sums::of(&lines, &told)))
    }
}

/// What it means that so many faults were found.
pub(crate) fn verdict(check: &'static str, faults: &[Fault], found: String) -> Check {
    if faults.is_empty() {
        return Check::good(check, found);
    }
    let first: Vec<String> = faults.iter().take(MOST).map(ToString::to_string).collect();
    let more = if faults.len() > MOST { "; and more" } else { "" };
    let found = format!("{found}; {}: {}{more}", so_many(faults.len(), "fault"), first.join("; "));
    Check::bad(check, found, REPORT)
}
