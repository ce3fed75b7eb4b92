//! `selftest`: whether duly can be trusted on this disk, and this machine.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use duly::Progress;
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::signals;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::selftest::folder::Folder;
use crate::selftest::report::{Check, Verdict, so_many};
use crate::selftest::wait::{Halt, Patience};
use crate::selftest::{bench, disk, kills};

/// Seeds are numbers that can be typed.
const SEEDS: u64 = 1_000_000;
/// The part of the time that the bench may have, and its bounds.
const BENCH: (u32, Duration, Duration) = (5, Duration::from_secs(1), Duration::from_secs(5));
/// The schedulers are killed for so long at least.
const KILLS: Duration = Duration::from_secs(1);
/// Messages that may wait to be read.
const REQUESTS: usize = 8;

const GIVE_UP: &str = "what duly needs could not be had there: see what stands beside it";

#[derive(Serialize)]
struct Document<'a> {
    seed: u64,
    trusted: bool,
    /// Where what was found is kept.
    kept: Option<String>,
    checks: &'a [Check],
}

/// What is asked.
pub(crate) struct Asked<'a> {
    /// Beside what the files are made.
    pub(crate) folder: &'a Path,
    pub(crate) length: Duration,
    pub(crate) seed: Option<u64>,
}

pub(crate) fn selftest(asked: &Asked<'_>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::Refused(format!("{}: {error}", asked.folder.display()));
    let (tell, requests) = sync_channel(REQUESTS);
    // Before there is anything to be left behind.
    signals::send(tell, |request| request).map_err(|error| Failure::Refused(error.to_string()))?;
    let folder = Folder::make(asked.folder).map_err(refused)?;
    let seed = asked.seed.unwrap_or_else(|| fastrand::u64(..SEEDS));
    let checks = printer.watched("testing", |advance: &Progress| {
        let patience = Patience::new(requests, advance.clone(), asked.length);
        checks(&folder, asked.length, seed, &patience)
    });
    let checks = match checks {
        Ok(checks) => checks,
        Err(signal) => {
            folder.remove().map_err(refused)?;
            return Err(Failure::Unsuccessful(format!(
                "{signal}: stopped before anything could be said; nothing is left"
            )));
        }
    };
    let bad: Vec<&Check> = checks.iter().filter(|check| check.verdict == Verdict::Bad).collect();
    let kept = if bad.is_empty() {
        folder.remove().map_err(refused)?;
        None
    } else {
        Some(folder.keep())
    };
    tell_all(&checks, seed, kept.as_deref(), printer)?;
    match (bad.first(), kept) {
        (Some(worst), Some(kept)) => {
            let (count, all) = (bad.len(), checks.len());
            let advice = worst.advice.unwrap_or(GIVE_UP);
            let kept = kept.display();
            Err(Failure::Unsuccessful(format!(
                "not to be trusted, {count} of {all} checks failed: {advice}; kept in {kept}"
            )))
        }
        _ => Ok(printer.say(trusted(&checks))?),
    }
}

/// Every check, one after the other; an error is the signal that ended it.
fn checks(folder: &Folder, length: Duration, seed: u64, patience: &Patience) -> Result<Vec<Check>, &'static str> {
    let mut all = vec![disk::file_system(folder.path())];
    let mut add = |name: &'static str, checks: Result<Vec<Check>, Halt>| match checks {
        Ok(checks) => {
            all.extend(checks);
            Ok(())
        }
        Err(Halt::Failed(error)) => {
            all.push(Check::bad(name, error, GIVE_UP));
            Ok(())
        }
        Err(Halt::Told(signal)) => Err(signal),
    };
    let one = |check: Result<Check, Halt>| check.map(|check| vec![check]);
    let room = |name: &str| -> Result<PathBuf, Halt> {
        folder.room(name).map_err(|error| Halt::Failed(format!("cannot make a folder: {error}")))
    };
    let disk = room("disk");
    add("locks", one(disk.clone().and_then(|disk| disk::locks(&disk, patience))))?;
    add("shared memory", one(disk.clone().and_then(|disk| disk::shared_memory(&disk, patience))))?;
    add("syncs", one(disk.and_then(|disk| disk::syncs(&disk, patience))))?;
    let bench = (length / BENCH.0).clamp(BENCH.1, BENCH.2);
    add("duly", room("bench").and_then(|room| bench::bench(&room, bench, patience)))?;
    let rest = length.saturating_sub(patience.passed()).max(KILLS);
    add("kills", room("kills").and_then(|room| kills::kills(&room, seed, rest, patience)))?;
    Ok(all)
}

/// One line for each; whoever wants quiet hears of what is wrong.
fn tell_all(checks: &[Check], seed: u64, kept: Option<&Path>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.json {
        let kept = kept.map(|path| path.display().to_string());
        return Ok(printer.document(&Document { seed, trusted: kept.is_none(), kept, checks })?);
    }
    let mut table = Table::default();
    for check in checks.iter().filter(|check| !printer.quiet || check.verdict == Verdict::Bad) {
        let (word, tone) = match check.verdict {
            Verdict::Good => ("good", Tone::Good),
            Verdict::Odd => ("note", Tone::Odd),
            Verdict::Bad => ("BAD", Tone::Bad),
        };
        table.row([Cell::new(word, tone), Cell::from(check.check), Cell::from(check.found.as_str())]);
        if let Some(advice) = check.advice {
            table.row([Cell::from(""), Cell::from(""), Cell::new(advice, Tone::Faint)]);
        }
    }
    if !table.is_empty() {
        printer.table(table, "")?;
    }
    Ok(printer.say(format!("seed {seed}: --seed {seed} makes the same choices again"))?)
}

/// The sentence that somebody wants to hear.
fn trusted(checks: &[Check]) -> String {
    let but = match checks.iter().filter(|check| check.verdict == Verdict::Odd).count() {
        0 => String::new(),
        notes => format!("; but read the {} above", so_many(notes, "note")),
    };
    format!("This disk can be trusted: no occurrence ran twice, and none was lost{but}.")
}
