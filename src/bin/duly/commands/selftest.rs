//! `selftest`: tests whether this disk and this machine are safe for duly.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use duly::Progress;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::signals;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::output::units::count_of;
use crate::selftest::folder::Folder;
use crate::selftest::report::{Check, Verdict};
use crate::selftest::wait::{CheckError, Timer};
use crate::selftest::{bench, disk, kills};

/// Bound of random seeds: a short number is easy to enter.
const SEEDS: u64 = 1_000_000;
/// Fraction of the length that the benchmark takes, and its limits.
const BENCH: (u32, Duration, Duration) = (5, Duration::from_secs(1), Duration::from_secs(5));
/// Minimum time for which schedulers are killed.
const KILLS: Duration = Duration::from_secs(1);
/// Capacity of the channel of signals.
const REQUESTS: usize = 8;

const NOT_POSSIBLE: &str =
    "this says nothing about the disk: correct the cause above, or wait until the machine is less busy, and repeat it";

#[derive(Serialize)]
struct Document<'a> {
    seed: u64,
    trusted: bool,
    /// The folder, if it is kept.
    kept: Option<String>,
    checks: &'a [Check],
}

/// Runs all checks for about `length`, in a new folder inside `parent`.
pub(crate) fn selftest(
    parent: &Path,
    length: Duration,
    seed: Option<u64>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::Refused(format!("{}: {error}", parent.display()));
    let (sender, requests) = sync_channel(REQUESTS);
    // Before the folder is created: a signal must not leave it behind.
    signals::forward(move |request| sender.send(request).is_ok())
        .map_err(|error| Failure::Refused(error.to_string()))?;
    let folder = Folder::create(parent).map_err(refused)?;
    let seed = seed.unwrap_or_else(|| fastrand::u64(..SEEDS));
    let checks = printer.watched("testing", |progress: &Progress| {
        let timer = Timer::start(requests, progress.clone(), length);
        checks(&folder, length, seed, &timer)
    });
    let checks = match checks {
        Ok(checks) => checks,
        Err(signal) => {
            folder.remove().map_err(refused)?;
            return Err(Failure::Unsuccessful(format!(
                "{signal}: stopped without a result; the temporary folder is removed"
            )));
        }
    };
    let bad: Vec<&Check> = checks.iter().filter(|check| check.verdict == Verdict::Bad).collect();
    let undecided = checks.iter().filter(|check| check.verdict == Verdict::Undecided).count();
    let kept = if bad.is_empty() && undecided == 0 {
        folder.remove().map_err(refused)?;
        None
    } else {
        Some(folder.keep())
    };
    print(&checks, seed, kept.as_deref(), printer)?;
    let Some(kept) = kept else { return Ok(printer.say(passed(&checks))?) };
    let (kept, all) = (kept.display(), checks.len());
    Err(match bad.first() {
        Some(first) => {
            let (count, advice) = (bad.len(), first.advice.unwrap_or(NOT_POSSIBLE));
            Failure::Unsuccessful(format!(
                "this disk is not safe for duly, {count} of {all} checks failed: {advice}; files kept in {kept}"
            ))
        }
        None => Failure::Undecided(format!(
            "not decided whether this disk is safe for duly, {undecided} of {all} checks could not be completed: \
             {NOT_POSSIBLE}; files kept in {kept}"
        )),
    })
}

/// Runs all checks. An error is the name of the signal that interrupted them.
fn checks(folder: &Folder, length: Duration, seed: u64, timer: &Timer) -> Result<Vec<Check>, &'static str> {
    let mut all = vec![disk::file_system(folder.path())];
    let mut add = |name: &'static str, checks: Result<Vec<Check>, CheckError>| match checks {
        Ok(checks) => {
            all.extend(checks);
            Ok(())
        }
        Err(CheckError::Failed(error)) => {
            all.push(Check::undecided(name, error, NOT_POSSIBLE));
            Ok(())
        }
        Err(CheckError::Interrupted(signal)) => Err(signal),
    };
    let one = |check: Result<Check, CheckError>| check.map(|check| vec![check]);
    let subfolder = |name: &str| -> Result<PathBuf, CheckError> {
        folder.subfolder(name).map_err(|error| CheckError::Failed(format!("cannot create a folder: {error}")))
    };
    let disk = subfolder("disk");
    add("locks", one(disk.clone().and_then(|disk| disk::locks(&disk, timer))))?;
    add("shared memory", one(disk.clone().and_then(|disk| disk::shared_memory(&disk, timer))))?;
    add("syncs", one(disk.and_then(|disk| disk::syncs(&disk, timer))))?;
    let bench = (length / BENCH.0).clamp(BENCH.1, BENCH.2);
    add("duly", subfolder("bench").and_then(|folder| bench::bench(&folder, bench, timer)))?;
    let rest = length.saturating_sub(timer.elapsed()).max(KILLS);
    add("kills", subfolder("kills").and_then(|folder| kills::kills(&folder, seed, rest, timer)))?;
    Ok(all)
}

/// Prints one line for each check; with `--quiet` only those that failed or could not be completed.
fn print(checks: &[Check], seed: u64, kept: Option<&Path>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.json {
        let kept = kept.map(|path| path.display().to_string());
        return Ok(printer.document(&Document { seed, trusted: kept.is_none(), kept, checks })?);
    }
    print_checks(checks, printer)?;
    Ok(printer.say(format!("seed {seed}: repeat these random choices with --seed {seed}"))?)
}

/// Prints a table of checks.
pub(crate) fn print_checks(checks: &[Check], printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut table = Table::default();
    let is_trouble = |check: &&Check| matches!(check.verdict, Verdict::Bad | Verdict::Undecided);
    for check in checks.iter().filter(|check| !printer.quiet || is_trouble(check)) {
        let (word, tone) = match check.verdict {
            Verdict::Good => ("good", Tone::Good),
            Verdict::Odd => ("note", Tone::Odd),
            Verdict::Bad => ("BAD", Tone::Bad),
            Verdict::Undecided => ("OPEN", Tone::Bad),
        };
        table.row([Cell::new(word, tone), Cell::from(check.check), Cell::from(check.found.as_str())]);
        if let Some(advice) = check.advice {
            table.row([Cell::from(""), Cell::from(""), Cell::new(advice, Tone::Faint)]);
        }
    }
    if !table.is_empty() {
        printer.table(table, "")?;
    }
    Ok(())
}

/// The result of a selftest without failed checks.
fn passed(checks: &[Check]) -> String {
    let notes = match checks.iter().filter(|check| check.verdict == Verdict::Odd).count() {
        0 => String::new(),
        notes => format!("; read the {} above", count_of(notes, "note")),
    };
    format!("This disk is safe for duly: no occurrence ran twice, and none was lost{notes}.")
}
