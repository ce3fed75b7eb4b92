//! Measures the speed of duly as ratios to a bare loop, a minimal durable scheduler, in interleaved rounds on the same
//! machine; and its idle cost.
//!
//! `cargo bench --bench speed [-- NAMES] [--rounds N] [--quick]`. A missed goal is reported; a run that is early, lost
//! or repeated ends the bench with a panic. docs/performance.md explains the results. `benches/peers` compares duly with other
//! schedulers.

mod adding;
mod bare;
mod drains;
mod growth;
mod idle;
mod measure;
mod others;
mod report;
mod single;
mod times;
mod workloads;

use std::time::Instant;

use report::Report;

/// Measures a workload, and adds its results.
type Workload = fn(&Options, &mut Report);

/// Workloads by name, in the order in which they run.
const WORKLOADS: [(&str, Workload); 9] = [
    ("drain", drains::run),
    ("add", adding::run),
    ("second", times::one_second),
    ("lateness", times::lateness),
    ("idle", idle::run),
    ("growth", growth::run),
    ("key", growth::behind_a_key),
    ("limit", growth::behind_a_limit),
    ("others", others::run),
];

const USAGE: &str = "cargo bench --bench speed [-- NAMES] [--rounds N] [--quick]";

/// The amount to measure.
pub(crate) struct Options {
    pub(crate) rounds: usize,
    /// Fewer and smaller workloads: a smoke test, not a measurement.
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
                // Cargo passes it.
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
    if let Some(first) = arguments.iter().position(|argument| argument == "single") {
        if let Err(error) = single::run(&arguments[first + 1..]) {
            eprintln!("{error}");
            std::process::exit(2);
        }
        return;
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
    println!("median of {} interleaved rounds, {} workers{quick}", options.rounds, workloads::WORKERS);
    report.print();
}
