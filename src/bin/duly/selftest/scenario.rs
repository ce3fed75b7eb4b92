//! Two schedulers in separate processes on one file, with tasks and the expectations that are checked at the end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::{Client, NewTask, TaskStatus, Timestamp};

use crate::output::units::count_of;
use crate::selftest::checker::{self, Counts, Expectation, Fault, Line, Tables};
use crate::selftest::child::{DATABASE, JOURNAL, Role};
use crate::selftest::process::Process;
use crate::selftest::report::Check;
use crate::selftest::tasks::MANUAL;
use crate::selftest::wait::{CheckError, Timer, failed};

/// Time limit for the remaining work at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(60);
/// File that lists all faults.
const FAULTS: &str = "faults";
/// Most faults in a message.
const MAX_FAULTS: usize = 3;

pub(crate) const REPORT: &str =
    "do not use this disk for work that must not run twice or be lost, and report this with the kept folder";

/// A database with its tasks, and two schedulers.
pub(crate) struct Scenario {
    folder: PathBuf,
    pub(crate) client: Client,
    journal: File,
    expectations: Vec<Expectation>,
    schedulers: Vec<Process>,
}

impl Scenario {
    /// Creates the database, which can take seconds on a busy machine: the times of the tasks are chosen afterwards.
    pub(crate) fn create(folder: &Path) -> Result<Self, CheckError> {
        let journal = OpenOptions::new().append(true).create_new(true).open(folder.join(JOURNAL));
        let journal = journal.map_err(failed("cannot create a file"))?;
        let client = Client::open(folder.join(DATABASE)).map_err(failed("cannot create a database"))?;
        Ok(Scenario { folder: folder.to_owned(), client, journal, expectations: Vec::new(), schedulers: Vec::new() })
    }

    /// Adds the tasks, and starts two schedulers.
    pub(crate) fn start(&mut self, tasks: Vec<(NewTask, Expectation)>) -> Result<(), CheckError> {
        let (tasks, mut expectations): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        self.client.add_all(tasks).map_err(failed("cannot add tasks"))?;
        for Expectation { task, due, .. } in &mut expectations {
            // Occurrences before the task was added do not count.
            let added = self.client.task(task).map_err(failed("cannot read the database"))?;
            let since = added.map_or(Timestamp::MIN, |task| task.active_since);
            due.iter_mut().for_each(|due| due.retain(|at| *at > since));
        }
        self.expectations = expectations;
        for _ in 0..2 {
            self.schedulers.push(Process::start(Role::Schedule, &self.folder)?);
        }
        Ok(())
    }

    /// Kills one or both schedulers, which must be alive, and starts them again after `pause`.
    pub(crate) fn kill(&mut self, which: &[usize], pause: Duration, timer: &Timer) -> Result<(), CheckError> {
        for index in which {
            let victim =
                self.schedulers.get_mut(*index).ok_or_else(|| CheckError::Failed("there is no such process".into()))?;
            victim.check_alive()?;
            // Written before the kill: from now on its runs may start again.
            let line = Line::Killed { process: victim.id() }.to_string();
            self.journal.write_all(line.as_bytes()).map_err(failed("cannot write a file"))?;
        }
        let mut kept = Vec::new();
        for (index, scheduler) in std::mem::take(&mut self.schedulers).into_iter().enumerate() {
            if which.contains(&index) { scheduler.kill()? } else { kept.push(scheduler) }
        }
        self.schedulers = kept;
        timer.sleep(pause)?;
        for _ in which {
            self.schedulers.push(Process::start(Role::Schedule, &self.folder)?);
        }
        Ok(())
    }

    /// Fails if a scheduler has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), CheckError> {
        self.schedulers.iter_mut().try_for_each(Process::check_alive)
    }

    /// Waits until all work is done, and stops the schedulers.
    pub(crate) fn finish(&mut self, timer: &Timer) -> Result<(), CheckError> {
        timer.wait_until("all work was done", FINISH_LIMIT, || {
            self.schedulers.iter_mut().try_for_each(Process::check_alive)?;
            let status = self.client.status().map_err(failed("cannot read the database"))?;
            let unfinished: u64 = status.runs.iter().map(|(_, count)| count).sum();
            // The manual task remains active.
            let waiting = self.expectations.iter().any(|expectation| expectation.task == MANUAL);
            let active: u64 =
                status.tasks.iter().filter(|(status, _)| *status == TaskStatus::Active).map(|(_, count)| count).sum();
            Ok(unfinished == 0 && active == u64::from(waiting))
        })?;
        std::mem::take(&mut self.schedulers).into_iter().try_for_each(|scheduler| scheduler.end(timer))
    }

    /// Checks the journal against the tables.
    pub(crate) fn check(&self) -> Result<(Vec<Fault>, Counts), CheckError> {
        let text = std::fs::read_to_string(self.folder.join(JOURNAL)).map_err(failed("cannot read a file"))?;
        let tables = Tables::read(&self.client).map_err(failed("cannot read the database"))?;
        let (lines, mut faults) = checker::parse(&text);
        faults.extend(checker::check(&lines, &tables, &self.expectations));
        let list: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
        std::fs::write(self.folder.join(FAULTS), list).map_err(failed("cannot write a file"))?;
        Ok((faults, Counts::of(&lines, &tables)))
    }
}

/// The result of a check that found these faults.
pub(crate) fn verdict(check: &'static str, faults: &[Fault], found: String) -> Check {
    if faults.is_empty() {
        return Check::good(check, found);
    }
    let first: Vec<String> = faults.iter().take(MAX_FAULTS).map(ToString::to_string).collect();
    let more = if faults.len() > MAX_FAULTS { "; and more" } else { "" };
    let found = format!("{found}; {}: {}{more}", count_of(faults.len(), "fault"), first.join("; "));
    Check::bad(check, found, REPORT)
}
