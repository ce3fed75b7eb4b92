//! The command line and the output that the peers in Rust share, see README.md.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The exit code for a workload or a setting that the peer does not have.
const UNAVAILABLE: i32 = 3;

/// The due time of overdue jobs: the start of 2025, in seconds.
pub const LONG_AGO: u64 = 1_735_689_600;
/// How far in the future the jobs are due that are only added, in seconds.
pub const DAY: u64 = 86_400;
/// The maximum time of a drain.
pub const PATIENCE: Duration = Duration::from_secs(900);

pub enum Workload {
    Drain,
    AddOne,
    AddBatch,
}

/// The arguments `drain|add-one|add-batch COUNT normal|full|shipped FILE`.
pub struct Arguments {
    pub workload: Workload,
    pub count: usize,
    /// The value of `PRAGMA synchronous` to set; `None`: the peer's own.
    pub synchronous: Option<&'static str>,
    pub file: PathBuf,
}

impl Arguments {
    pub fn read() -> Self {
        let all: Vec<String> = std::env::args().skip(1).collect();
        let [workload, count, level, file] = all.as_slice() else {
            panic!("expected drain|add-one|add-batch COUNT normal|full|shipped FILE, found {all:?}");
        };
        let workload = match workload.as_str() {
            "drain" => Workload::Drain,
            "add-one" => Workload::AddOne,
            "add-batch" => Workload::AddBatch,
            other => panic!("expected drain, add-one or add-batch, found {other:?}"),
        };
        let synchronous = match level.as_str() {
            "normal" => Some("NORMAL"),
            "full" => Some("FULL"),
            "shipped" => None,
            other => panic!("expected normal, full or shipped, found {other:?}"),
        };
        Arguments { workload, count: count.parse().expect("a number of jobs"), synchronous, file: file.into() }
    }
}

/// Ends the program: the peer lacks what was asked for.
#[allow(dead_code, reason = "not every peer lacks something")]
pub fn unavailable(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(UNAVAILABLE)
}

/// Counts the handler's calls.
#[derive(Debug, Default)]
pub struct Calls(AtomicUsize);

impl Calls {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A running measurement.
pub struct Watch {
    begin: Instant,
    cpu: f64,
}

/// The cost of a workload: seconds of time, and of processor time of the whole process.
pub struct Cost {
    seconds: f64,
    cpu: f64,
}

impl Watch {
    pub fn begin() -> Self {
        Watch { cpu: own_cpu(), begin: Instant::now() }
    }

    pub fn end(self) -> Cost {
        Cost { seconds: self.begin.elapsed().as_secs_f64(), cpu: own_cpu() - self.cpu }
    }
}

impl Cost {
    /// Prints the result; `synchronous` is `None` if it cannot be read from the peer's connection.
    pub fn print(&self, jobs: usize, journal_mode: &str, synchronous: Option<i64>, sqlite: &str) {
        let synchronous = synchronous.map_or("null".to_owned(), |level| level.to_string());
        println!(
            "{{\"seconds\":{},\"cpu_seconds\":{},\"jobs\":{jobs},\"journal_mode\":\"{journal_mode}\",\
             \"synchronous\":{synchronous},\"sqlite\":\"{sqlite}\"}}",
            self.seconds, self.cpu,
        );
    }
}

fn own_cpu() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
