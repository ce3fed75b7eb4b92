//! How fast duly is, as ratios to a bare loop that does the least a durable scheduler can, in interleaved rounds on the same
//! machine; and what it costs when nothing is to be done.
//!
//! `cargo bench --bench speed [-- NAMES] [--rounds N] [--quick]`. It measures and judges nothing but order: a goal that is
//! missed is told, a run that is early, lost or repeated ends it. docs/performance.md says how to read it.

mod adding;
mod bare;
mod drains;
mod growth;
mod idle;
mod measure;
mod ours;
mod report;
mod times;

use std::time::Instant;

use report::Report;

/// Measures, and adds what it found.
type Workload = fn(&Options, &mut Report);

/// Workloads by name, in the order in which they run.
const WORKLOADS: [(&str, Workload); 7] = [
    ("drain", drains::run),
    ("add", adding::run),
    ("second", times::one_second),
    ("lateness", times::lateness),
    ("idle", idle::run),
    ("growth", growth::run),
    ("key", growth::behind_a_key),
];

const USAGE: &str = "cargo bench --bench speed [-- NAMES] [--rounds N] [--quick]";

/// How much is measured.
pub(crate) struct Options {
    pub(crate) rounds: usize,
    /// Smaller and fewer: to see that it works, not to quote.
    pub(crate) quick: bool,
    names: Vec<String>,
}

impl Options {
    pub(crate) fn scaled(&self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }

    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut rounds, mut quick, mut names) = (None, false, Vec::new());
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo says so.
                "--bench" => {}
                "--quick" => quick = true,
                "--rounds" => {
                    let number = arguments.next().unwrap_or_default();
                    let read = number.parse().ok().filter(|rounds| *rounds > 0);
                    rounds = Some(read.ok_or(format!("--rounds: expected a number from 1, found {number:?}"))?);
                }
                name if WORKLOADS.iter().any(|(known, _)| *known == name) => names.push(argument),
                _ => {
                    let known = WORKLOADS.map(|(name, _)| name).join(", ");
                    return Err(format!("expected one of {known}, found {argument:?}; usage: {USAGE}"));
                }
            }
        }
        Ok(Options { rounds: rounds.unwrap_or(if quick { 3 } else { 7 }), quick, names })
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, file] = arguments.as_slice()
        && first == idle::WAIT
    {
        idle::wait(file.as_ref());
    }
    let options = Options::read(arguments.into_iter()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let mut report = Report::default();
    for (name, run) in WORKLOADS {
        if options.names.is_empty() || options.names.iter().any(|asked| asked == name) {
            let begin = Instant::now();
            run(&options, &mut report);
            eprintln!("{name}: measured in {:.0} s", begin.elapsed().as_secs_f64());
        }
    }
    let quick = if options.quick { ", quick: not to be quoted" } else { "" };
    println!("median of {} interleaved rounds, {} workers{quick}", options.rounds, ours::WORKERS);
    report.print();
}
