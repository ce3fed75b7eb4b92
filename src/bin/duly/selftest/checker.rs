//! What handlers wrote down themselves when they began and ended, held against what the tables tell. The one cannot be made
//! of the other: a scheduler that started something twice would tell of it once. Pure, but for the reading of the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use duly::{AttemptOutcome, Client, Run, RunFilter, RunStatus, Timestamp};

/// A run, and the number of an attempt of it.
pub(crate) type Try = (i64, u32);

/// One line of a journal. Each is written at once to the end of the file, so that it is there whole or not at all, and lines
/// stand in the order in which things happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The handler's first deed.
    Began { run: i64, attempt: u32, process: u32, scheduled_for: Timestamp, task: String },
    /// Its last.
    Ended { run: i64, attempt: u32 },
    /// From here on the process may be dead. It is written before it is killed.
    Doomed { process: u32 },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Began { run, attempt, process, scheduled_for, task } => {
                writeln!(f, "began {run} {attempt} {process} {scheduled_for} {task}")
            }
            Line::Ended { run, attempt } => writeln!(f, "ended {run} {attempt}"),
            Line::Doomed { process } => writeln!(f, "doomed {process}"),
        }
    }
}

impl Line {
    /// A line, without its end; `None` if it is none of ours.
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
            ["doomed", process] => Some(Line::Doomed { process: process.parse().ok()? }),
            _ => None,
        }
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What is broken.
    pub(crate) rule: &'static str,
    /// Where.
    pub(crate) found: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}

/// What was to happen to one task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promise {
    pub(crate) task: String,
    /// Every instant that its schedule named, where that can be told beforehand.
    pub(crate) due: Option<BTreeSet<Timestamp>>,
    /// No run of it starts a second time.
    pub(crate) at_most_once: bool,
    /// No two runs of it are at work at once.
    pub(crate) alone: bool,
}

/// What the tables tell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) runs: Vec<Run>,
    /// Each attempt that did not simply succeed.
    pub(crate) attempts: Vec<(Try, AttemptOutcome)>,
}

impl Told {
    /// All there is.
    pub(crate) fn read(client: &Client) -> duly::Result<Told> {
        let runs = client.runs(&RunFilter::newest(usize::MAX))?;
        let mut attempts = Vec::new();
        // One that succeeded at the first attempt has no other.
        for run in runs.iter().filter(|run| run.attempt > 1 || run.status != RunStatus::Succeeded) {
            attempts.extend(client.attempts(run.id)?.into_iter().map(|one| ((run.id, one.attempt), one.outcome)));
        }
        Ok(Told { runs, attempts })
    }
}

/// What was counted, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Instants that schedules named, and requests by hand.
    pub(crate) occurrences: u64,
    pub(crate) starts: usize,
    /// Attempts that ended with their process.
    pub(crate) lost: usize,
    pub(crate) skipped: u64,
}

impl Sums {
    pub(crate) fn of(lines: &[Line], told: &Told) -> Sums {
        let skipped = told.runs.iter().filter(|run| matches!(run.status, RunStatus::Skipped | RunStatus::Missed));
        Sums {
            occurrences: told.runs.iter().map(|run| run.occurrences).sum(),
            starts: lines.iter().filter(|line| matches!(line, Line::Began { .. })).count(),
            lost: told.attempts.iter().filter(|(_, outcome)| *outcome == AttemptOutcome::Lost).count(),
            skipped: skipped.map(|run| run.occurrences).sum(),
        }
    }
}

/// The lines of a journal, and those that are torn.
pub(crate) fn read(text: &str) -> (Vec<Line>, Vec<Fault>) {
    let (mut lines, mut torn) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        match Line::parse(line) {
            Some(line) => lines.push(line),
            None => torn.push(Fault { rule: "torn", found: format!("line {} of the journal: {line:?}", number + 1) }),
        }
    }
    (lines, torn)
}

/// Every fault: of the journal in itself, of the tables in themselves, and of the one against the other. To be asked when
/// all is quiet.
pub(crate) fn judge(lines: &[Line], told: &Told, promises: &[Promise]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |rule, found| faults.push(Fault { rule, found });
    at_work(lines, promises, &mut fault);
    recorded(lines, told, &mut fault);
    counted(lines, told, &mut fault);
    kept(told, promises, &mut fault);
    faults
}

/// The journal in itself: what began twice, again, or beside another.
fn at_work(lines: &[Line], promises: &[Promise], fault: &mut impl FnMut(&'static str, String)) {
    let promise = |task: &str| promises.iter().find(|promise| promise.task == task);
    let mut newest: BTreeMap<i64, u32> = BTreeMap::new();
    // What has begun and not ended, with its process and its task.
    let mut open: BTreeMap<Try, (u32, &str)> = BTreeMap::new();
    // They may begin something still, and die with it.
    let mut doomed = BTreeSet::new();
    for line in lines {
        match line {
            Line::Doomed { process } => {
                open.retain(|_, (of, _)| of != process);
                doomed.insert(*process);
            }
            Line::Ended { run, attempt } => {
                open.remove(&(*run, *attempt));
            }
            Line::Began { run, attempt, process, task, .. } => {
                match newest.insert(*run, *attempt) {
                    Some(last) if last >= *attempt => {
                        fault("double", format!("attempt {attempt} of run {run} ({task}) began after attempt {last}"));
                    }
                    Some(last) if promise(task).is_some_and(|promise| promise.at_most_once) => {
                        let found =
                            format!("run {run} ({task}) may start once: it did as attempt {last} and {attempt}");
                        fault("at most once", found);
                    }
                    _ => {}
                }
                let alone = promise(task).is_some_and(|promise| promise.alone);
                for ((other, its), (by, of)) in &open {
                    if other == run || (alone && of == task) {
                        let beside = format!("attempt {its} of run {other}, at work in process {by}");
                        fault("at once", format!("attempt {attempt} of run {run} ({task}) began beside {beside}"));
                    }
                }
                if !doomed.contains(process) {
                    open.insert((*run, *attempt), (*process, task));
                }
            }
        }
    }
}

/// The journal against the tables: what began and is told nowhere, what is told otherwise, what succeeded without an end.
fn recorded(lines: &[Line], told: &Told, fault: &mut impl FnMut(&'static str, String)) {
    let runs: BTreeMap<i64, &Run> = told.runs.iter().map(|run| (run.id, run)).collect();
    let outcomes: BTreeMap<Try, AttemptOutcome> = told.attempts.iter().copied().collect();
    let mut ended = BTreeSet::new();
    for line in lines {
        match line {
            Line::Doomed { .. } => {}
            Line::Ended { run, attempt } => {
                ended.insert((*run, *attempt));
            }
            Line::Began { run, attempt, scheduled_for, task, .. } => {
                let what = format!("attempt {attempt} of run {run} ({task}, {scheduled_for}) began");
                let Some(row) = runs.get(run) else {
                    fault("unrecorded", format!("{what}, and there is no such run"));
                    continue;
                };
                if row.task != *task || row.scheduled_for != *scheduled_for {
                    fault("unrecorded", format!("{what}, and the run is of {}, {}", row.task, row.scheduled_for));
                }
                match outcomes.get(&(*run, *attempt)) {
                    Some(AttemptOutcome::Released) => fault("released", format!("{what}, and is told to have not")),
                    Some(_) => {}
                    None if row.attempt == *attempt && row.status == RunStatus::Succeeded => {}
                    None => fault("unrecorded", format!("{what}, and is told nowhere: the run is {}", row.status)),
                }
            }
        }
    }
    for run in told.runs.iter().filter(|run| run.status == RunStatus::Succeeded) {
        if !ended.contains(&(run.id, run.attempt)) {
            let (id, attempt, task) = (run.id, run.attempt, &run.task);
            fault("not done", format!("run {id} ({task}) succeeded at attempt {attempt}, which wrote down no end"));
        }
    }
}

/// The tables in themselves: every attempt that was claimed is told once, and nothing is left to do.
fn counted(lines: &[Line], told: &Told, fault: &mut impl FnMut(&'static str, String)) {
    let begun = lines.iter().filter(|line| matches!(line, Line::Began { .. })).count();
    let mut outcomes: BTreeMap<i64, BTreeSet<u32>> = BTreeMap::new();
    for ((run, attempt), _) in &told.attempts {
        outcomes.entry(*run).or_default().insert(*attempt);
    }
    for run in &told.runs {
        let (id, task, status) = (run.id, &run.task, run.status);
        if !run.status.is_final() {
            fault("unfinished", format!("run {id} ({task}, {}) is {status}", run.scheduled_for));
            continue;
        }
        let ended = run.attempt - u32::from(status == RunStatus::Succeeded && run.attempt > 0);
        let found = outcomes.remove(&id).unwrap_or_default();
        if !found.iter().copied().eq(1..=ended) {
            let found = format!("run {id} ({task}) is {status} after {} attempts: told are {found:?}", run.attempt);
            fault("attempts", found);
        }
    }
    if begun == 0 && !told.runs.is_empty() {
        fault("unrecorded", format!("{} runs, and no handler wrote down that it began", told.runs.len()));
    }
}

/// The promises against the tables: each instant once, and none that the schedule does not name.
fn kept(told: &Told, promises: &[Promise], fault: &mut impl FnMut(&'static str, String)) {
    for Promise { task, due, .. } in promises {
        let rows = told.runs.iter().filter(|run| run.task == *task && run.origin.is_scheduled());
        let mut spans: Vec<_> = rows.map(|run| (run.scheduled_for, run.last_scheduled_for, run.id)).collect();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            let ((first, last, one), (next, _, other)) = (pair[0], pair[1]);
            if last.unwrap_or(first) >= next {
                fault("twice", format!("runs {one} and {other} both keep {next} of {task}"));
            }
        }
        let Some(due) = due else { continue };
        let mut named = due.clone();
        for (first, last, run) in spans {
            let of_it: Vec<Timestamp> = due.range(first..=last.unwrap_or(first)).copied().collect();
            if of_it.is_empty() {
                fault("unasked", format!("run {run} keeps {first} of {task}, which its schedule does not name"));
            }
            for at in of_it {
                named.remove(&at);
            }
        }
        let lost: Vec<String> = named.iter().map(ToString::to_string).collect();
        if let Some(first) = lost.first() {
            fault("lost", format!("{} occurrences of {task}, the first of them {first}", lost.len()));
        }
    }
}
