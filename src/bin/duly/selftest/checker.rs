//! Compares the journal that handlers write when they start and end with the tables. The journal is independent evidence: a
//! scheduler that started a run twice might record it once. Pure, except for reading the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use duly::{AttemptOutcome, Client, Run, RunFilter, RunStatus, Timestamp};

/// The ID of a run, and the number of an attempt.
pub(crate) type AttemptId = (i64, u32);

/// One line of the journal. Each is appended by one write, so that it is complete or absent, and lines are in the order of the
/// events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A handler starts; its first action.
    Began { run: i64, attempt: u32, process: u32, scheduled_for: Timestamp, task: String },
    /// A handler ends; its last action.
    Ended { run: i64, attempt: u32 },
    /// A process is about to be killed.
    Killed { process: u32 },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Began { run, attempt, process, scheduled_for, task } => {
                writeln!(f, "began {run} {attempt} {process} {scheduled_for} {task}")
            }
            Line::Ended { run, attempt } => writeln!(f, "ended {run} {attempt}"),
            Line::Killed { process } => writeln!(f, "killed {process}"),
        }
    }
}

impl Line {
    /// Parses a line without its line end; `None` if it is not valid.
    fn parse(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["began", run, attempt, process, at, task] => Some(Line::Began {
                run: run.parse().ok()?,
                attempt: attempt.parse().ok()?,
                process: process.parse().ok()?,
                scheduled_for: at.parse().ok()?,
                task: task.to_owned(),
            }),
            ["ended", run, attempt] => Some(Line::Ended { run: run.parse().ok()?, attempt: attempt.parse().ok()? }),
            ["killed", process] => Some(Line::Killed { process: process.parse().ok()? }),
            _ => None,
        }
    }
}

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) rule: &'static str,
    pub(crate) found: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}

/// What is expected of one task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expectation {
    pub(crate) task: String,
    /// All occurrences of its schedule, if they are known in advance.
    pub(crate) due: Option<BTreeSet<Timestamp>>,
    /// No run starts twice.
    pub(crate) at_most_once: bool,
    /// No two runs are running at the same time.
    pub(crate) alone: bool,
}

/// The content of the tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) runs: Vec<Run>,
    /// Each attempt that did not simply succeed.
    pub(crate) attempts: Vec<(AttemptId, AttemptOutcome)>,
}

impl Tables {
    /// Reads all runs and attempts.
    pub(crate) fn read(client: &Client) -> duly::Result<Tables> {
        let runs = client.runs(&RunFilter::newest(usize::MAX))?;
        let mut attempts = Vec::new();
        // A run that succeeded at the first attempt has no rows in this table.
        for run in runs.iter().filter(|run| run.attempt > 1 || run.status != RunStatus::Succeeded) {
            attempts.extend(client.attempts(run.id)?.into_iter().map(|one| ((run.id, one.attempt), one.outcome)));
        }
        Ok(Tables { runs, attempts })
    }
}

/// Counts for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Occurrences of schedules, and manual runs.
    pub(crate) occurrences: u64,
    pub(crate) starts: usize,
    /// Attempts whose process was killed.
    pub(crate) lost: usize,
    pub(crate) skipped: u64,
}

impl Counts {
    pub(crate) fn of(lines: &[Line], tables: &Tables) -> Counts {
        let skipped = tables.runs.iter().filter(|run| matches!(run.status, RunStatus::Skipped | RunStatus::Missed));
        Counts {
            occurrences: tables.runs.iter().map(|run| run.occurrences).sum(),
            starts: lines.iter().filter(|line| matches!(line, Line::Began { .. })).count(),
            lost: tables.attempts.iter().filter(|(_, outcome)| *outcome == AttemptOutcome::Lost).count(),
            skipped: skipped.map(|run| run.occurrences).sum(),
        }
    }
}

/// Parses a journal. Invalid lines are faults.
pub(crate) fn parse(text: &str) -> (Vec<Line>, Vec<Fault>) {
    let (mut lines, mut torn) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        match Line::parse(line) {
            Some(line) => lines.push(line),
            None => torn.push(Fault { rule: "torn", found: format!("line {} of the journal: {line:?}", number + 1) }),
        }
    }
    (lines, torn)
}

/// Returns all faults of the journal, of the tables, and between them. All schedulers must have stopped.
pub(crate) fn check(lines: &[Line], tables: &Tables, expectations: &[Expectation]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |rule, found| faults.push(Fault { rule, found });
    check_starts(lines, expectations, &mut fault);
    check_records(lines, tables, &mut fault);
    check_attempts(lines, tables, &mut fault);
    check_schedules(tables, expectations, &mut fault);
    faults
}

/// Checks the journal: no attempt starts twice, again, or while another one is running.
fn check_starts(lines: &[Line], expectations: &[Expectation], fault: &mut impl FnMut(&'static str, String)) {
    let expectation = |task: &str| expectations.iter().find(|expectation| expectation.task == task);
    let mut newest: BTreeMap<i64, u32> = BTreeMap::new();
    // Attempts that have started and not ended, with their process and task.
    let mut open: BTreeMap<AttemptId, (u32, &str)> = BTreeMap::new();
    // Until they die, these processes may start further attempts, which die with them.
    let mut killed = BTreeSet::new();
    for line in lines {
        match line {
            Line::Killed { process } => {
                open.retain(|_, (of, _)| of != process);
                killed.insert(*process);
            }
            Line::Ended { run, attempt } => {
                open.remove(&(*run, *attempt));
            }
            Line::Began { run, attempt, process, task, .. } => {
                match newest.insert(*run, *attempt) {
                    Some(last) if last >= *attempt => {
                        fault("double", format!("attempt {attempt} of run {run} ({task}) began after attempt {last}"));
                    }
                    Some(last) if expectation(task).is_some_and(|expectation| expectation.at_most_once) => {
                        let found =
                            format!("run {run} ({task}) may start once, but started as attempts {last} and {attempt}");
                        fault("at most once", found);
                    }
                    _ => {}
                }
                let alone = expectation(task).is_some_and(|expectation| expectation.alone);
                for ((other, its), (by, of)) in &open {
                    if other == run || (alone && of == task) {
                        let running = format!("attempt {its} of run {other} was running in process {by}");
                        fault("at once", format!("attempt {attempt} of run {run} ({task}) began while {running}"));
                    }
                }
                if !killed.contains(process) {
                    open.insert((*run, *attempt), (*process, task));
                }
            }
        }
    }
}

/// Checks the journal against the tables: each start is recorded correctly, and each run that succeeded has ended.
fn check_records(lines: &[Line], tables: &Tables, fault: &mut impl FnMut(&'static str, String)) {
    let runs: BTreeMap<i64, &Run> = tables.runs.iter().map(|run| (run.id, run)).collect();
    let outcomes: BTreeMap<AttemptId, AttemptOutcome> = tables.attempts.iter().copied().collect();
    let mut ended = BTreeSet::new();
    for line in lines {
        match line {
            Line::Killed { .. } => {}
            Line::Ended { run, attempt } => {
                ended.insert((*run, *attempt));
            }
            Line::Began { run, attempt, scheduled_for, task, .. } => {
                let what = format!("attempt {attempt} of run {run} ({task}, {scheduled_for}) began");
                let Some(row) = runs.get(run) else {
                    fault("unrecorded", format!("{what}, but there is no such run"));
                    continue;
                };
                if row.task != *task || row.scheduled_for != *scheduled_for {
                    fault("unrecorded", format!("{what}, but the run is of {}, {}", row.task, row.scheduled_for));
                }
                match outcomes.get(&(*run, *attempt)) {
                    Some(AttemptOutcome::Released) => {
                        fault("released", format!("{what}, but is recorded as not started"))
                    }
                    Some(_) => {}
                    None if row.attempt == *attempt && row.status == RunStatus::Succeeded => {}
                    None => fault("unrecorded", format!("{what}, but is not recorded: the run is {}", row.status)),
                }
            }
        }
    }
    for run in tables.runs.iter().filter(|run| run.status == RunStatus::Succeeded) {
        if !ended.contains(&(run.id, run.attempt)) {
            let (id, attempt, task) = (run.id, run.attempt, &run.task);
            fault("not done", format!("run {id} ({task}) succeeded at attempt {attempt}, which wrote no end"));
        }
    }
}

/// Checks the tables: each claimed attempt is recorded once, and no run is unfinished.
fn check_attempts(lines: &[Line], tables: &Tables, fault: &mut impl FnMut(&'static str, String)) {
    let begun = lines.iter().filter(|line| matches!(line, Line::Began { .. })).count();
    let mut outcomes: BTreeMap<i64, BTreeSet<u32>> = BTreeMap::new();
    for ((run, attempt), _) in &tables.attempts {
        outcomes.entry(*run).or_default().insert(*attempt);
    }
    for run in &tables.runs {
        let (id, task, status) = (run.id, &run.task, run.status);
        if !run.status.is_final() {
            fault("unfinished", format!("run {id} ({task}, {}) is {status}", run.scheduled_for));
            continue;
        }
        let ended = run.attempt - u32::from(status == RunStatus::Succeeded && run.attempt > 0);
        let found = outcomes.remove(&id).unwrap_or_default();
        if !found.iter().copied().eq(1..=ended) {
            let found =
                format!("run {id} ({task}) is {status} after {} attempts, but recorded are {found:?}", run.attempt);
            fault("attempts", found);
        }
    }
    if begun == 0 && !tables.runs.is_empty() {
        fault("unrecorded", format!("{} runs, but the journal has no start", tables.runs.len()));
    }
}

/// Checks the tables against the schedules: each occurrence has exactly one row, and each row has an occurrence.
fn check_schedules(tables: &Tables, expectations: &[Expectation], fault: &mut impl FnMut(&'static str, String)) {
    for Expectation { task, due, .. } in expectations {
        let rows = tables.runs.iter().filter(|run| run.task == *task && run.origin.is_scheduled());
        let mut spans: Vec<_> = rows.map(|run| (run.scheduled_for, run.last_scheduled_for, run.id)).collect();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            let ((first, last, one), (next, _, other)) = (pair[0], pair[1]);
            if last.unwrap_or(first) >= next {
                fault("twice", format!("runs {one} and {other} are both for {next} of {task}"));
            }
        }
        let Some(due) = due else { continue };
        let mut missing = due.clone();
        for (first, last, run) in spans {
            let covered: Vec<Timestamp> = due.range(first..=last.unwrap_or(first)).copied().collect();
            if covered.is_empty() {
                fault("unasked", format!("run {run} is for {first} of {task}, which is no occurrence of its schedule"));
            }
            for at in covered {
                missing.remove(&at);
            }
        }
        if let Some(first) = missing.first() {
            fault("lost", format!("{} occurrences of {task} have no row, the first is {first}", missing.len()));
        }
    }
}
