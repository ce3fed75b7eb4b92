//! What the program does when the selftest has started it: one part beside others, in the folder of one check, until its
//! standard input ends. So nothing is left of it when whoever started it is gone, however that ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use duly::{BoxError, Context, Retention, Scheduler};
use serde::{Deserialize, Serialize};

use crate::selftest::checker::Line;
use crate::selftest::probe::{self, Found, Held};

/// The variable that names the part.
pub(crate) const PART: &str = "DULY_SELFTEST_PART";

/// The files of a check, in its folder.
pub(crate) const DATABASE: &str = "agent.db";
pub(crate) const JOURNAL: &str = "journal";
/// What a part that looks at locks found, and that one which holds them does.
pub(crate) const FOUND: &str = "found";
pub(crate) const HOLDING: &str = "holding";

/// The handler of the tasks.
pub(crate) const HANDLER: &str = "selftest";
/// How many handlers a scheduler runs at once.
const WORKERS: usize = 4;
/// How often it looks for what others wrote.
const POLL: Duration = Duration::from_millis(50);
/// So long that nothing may wait for it.
const LEASE: Duration = Duration::from_secs(600);
/// How long handlers may take when it leaves.
const DRAIN: Duration = Duration::from_secs(30);

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Tries both locks, and writes down what it found.
    Try,
    /// Takes both locks, and keeps them.
    Hold,
    /// Counts in a database in which another counts too.
    Count,
    /// A scheduler.
    Schedule,
}

impl Part {
    const ALL: [Part; 4] = [Part::Try, Part::Hold, Part::Count, Part::Schedule];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Try => "try",
            Part::Hold => "hold",
            Part::Count => "count",
            Part::Schedule => "schedule",
        }
    }

    /// The part that this process is to play, if it is one of a selftest's.
    pub(crate) fn asked() -> Option<Part> {
        let name = std::env::var(PART).ok()?;
        Part::ALL.into_iter().find(|part| part.name() == name)
    }

    /// Plays it, in the present folder.
    pub(crate) fn play(self) -> Result<(), BoxError> {
        let here = Path::new(".");
        match self {
            Part::Try => {
                let found = [Found::of_file(here), Found::of_database(here)];
                std::fs::write(FOUND, found.map(|found| format!("{found}\n")).concat())?;
            }
            Part::Hold => {
                let _held = Held::take(here)?;
                File::create(HOLDING)?;
                until_left()?;
            }
            Part::Count => probe::count(here)?,
            Part::Schedule => schedule()?,
        }
        Ok(())
    }
}

/// Waits until whoever started this process is gone, or has closed its end.
fn until_left() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(|_| ())
}

/// What a task of the selftest is to do.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Work {
    /// How long it takes.
    pub(crate) millis: u64,
    /// The first attempt of each run fails.
    pub(crate) fails_first: bool,
}

fn schedule() -> Result<(), BoxError> {
    let journal = OpenOptions::new().append(true).open(JOURNAL)?;
    // All is held against all in the end.
    let (long, all) = (Duration::from_secs(10 * 365 * 86_400), u32::MAX);
    let keep = Retention { once: long, runs: long, least_runs: 0, most_runs: all, events: long };
    let scheduler = Scheduler::builder(DATABASE)
        .existing()
        .workers(WORKERS)
        .poll(POLL)
        .lease(LEASE)
        .retention(keep)
        .handler(HANDLER, move |run: &Context| work(run, &journal))
        .start()?;
    until_left()?;
    match scheduler.shutdown(DRAIN)?.unfinished {
        0 => Ok(()),
        count => Err(format!("{count} runs had not ended").into()),
    }
}

fn work(run: &Context, mut journal: &File) -> Result<(), BoxError> {
    let (id, attempt, scheduled_for) = (run.run_id(), run.attempt(), run.scheduled_for());
    let mut write = |line: Line| journal.write_all(line.to_string().as_bytes());
    let task = run.task().to_owned();
    write(Line::Began { run: id, attempt, process: std::process::id(), scheduled_for, task })?;
    let Work { millis, fails_first } = run.payload()?;
    let stopped = run.wait_cancelled(Duration::from_millis(millis));
    write(Line::Ended { run: id, attempt })?;
    match attempt {
        _ if stopped => Err("asked to stop".into()),
        1 if fails_first => Err("the first attempt is to fail".into()),
        _ => Ok(()),
    }
}
