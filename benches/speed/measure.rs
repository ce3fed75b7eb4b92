//! Measurements: medians, slopes, processor time, the commits of a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The median; for an even number the upper of the two middle values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 50)
}

/// The percentile; NaN if there are no values.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// The exponent of growth with `x`, by least squares over the logarithms.
pub(crate) fn exponent(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let logs = || points.iter().map(|(x, y)| (x.ln(), y.ln()));
    let (x, y) = (logs().map(|(x, _)| x).sum::<f64>() / count, logs().map(|(_, y)| y).sum::<f64>() / count);
    logs().map(|(a, b)| (a - x) * (b - y)).sum::<f64>() / logs().map(|(a, _)| (a - x).powi(2)).sum::<f64>()
}

/// The current time in nanoseconds since the Unix epoch, finer than the stored times.
pub(crate) fn wall_nanos() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set");
    i64::try_from(since.as_nanos()).expect("a date before 2262")
}

/// The cost of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) time: Duration,
    /// Seconds of processor time of this whole process.
    pub(crate) cpu: Option<f64>,
    pub(crate) commits: Option<u64>,
    /// The size of the file after a checkpoint.
    pub(crate) bytes: u64,
}

/// An instant, and the processor time used until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Instant,
    cpu: Option<f64>,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Moment { at: Instant::now(), cpu: own_cpu() }
    }

    pub(crate) fn earlier(self, other: Moment) -> Self {
        if other.at < self.at { other } else { self }
    }
}

/// A running measurement.
pub(crate) struct Watch {
    commits: Commits,
    before: Option<u64>,
}

impl Watch {
    /// Starts. Another connection must have the database open until the watch is dropped.
    pub(crate) fn begin(file: &Path) -> Self {
        let commits = Commits::of(file);
        let before = commits.count();
        Watch { commits, before }
    }

    /// Ends; the caller recorded both instants.
    pub(crate) fn end(&self, begin: Moment, end: Moment) -> Round {
        Round {
            time: end.at.duration_since(begin.at),
            cpu: end.cpu.zip(begin.cpu).map(|(after, before)| after - before),
            commits: self.commits.count().zip(self.before).map(|(after, before)| after - before),
            bytes: 0,
        }
    }
}

/// The number of commits of a database in WAL mode, which SQLite counts in the header of the `-shm` file, in its third
/// word.
struct Commits(Option<File>);

impl Commits {
    /// The file stays open until this value is dropped: closing it drops the locks that this process holds on it.
    fn of(database: &Path) -> Self {
        let mut name = database.as_os_str().to_owned();
        name.push("-shm");
        Commits(File::open(PathBuf::from(name)).ok())
    }

    #[cfg(unix)]
    fn count(&self) -> Option<u64> {
        use std::os::unix::fs::FileExt;
        let mut word = [0; 4];
        self.0.as_ref()?.read_exact_at(&mut word, 8).ok()?;
        Some(u64::from(u32::from_ne_bytes(word)))
    }

    #[cfg(not(unix))]
    fn count(&self) -> Option<u64> {
        self.0.as_ref().and(None)
    }
}

/// Seconds of processor time of this process, including ended threads.
#[cfg(unix)]
fn own_cpu() -> Option<f64> {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
}

#[cfg(not(unix))]
fn own_cpu() -> Option<f64> {
    None
}

/// Seconds of processor time of the live threads of another process, to a nanosecond.
pub(crate) fn cpu_of(process: u32) -> Option<f64> {
    let mut nanos = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanos += text.split(' ').next()?.parse::<f64>().ok()?;
    }
    Some(nanos / 1e9)
}

/// MiB of memory of another process.
pub(crate) fn memory_of(process: u32) -> Option<f64> {
    memory(&process.to_string(), "VmRSS:")
}

/// Forgets the most memory that this process has had.
pub(crate) fn forget_memory() {
    // Where this is refused, what was measured before counts, too.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

/// The most memory that this process has had since then, in MiB.
pub(crate) fn most_memory() -> f64 {
    memory("self", "VmHWM:").unwrap_or(f64::NAN)
}

fn memory(process: &str, name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}
