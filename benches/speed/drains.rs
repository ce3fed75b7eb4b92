//! Draining: overdue `once` tasks with a handler that does nothing, until every outcome is stored.

use std::path::PathBuf;

use duly::Client;

use crate::Options;
use crate::bare::Bare;
use crate::measure::{Round, exponent, median, wall_nanos};
use crate::report::{self, Goal, Report};
use crate::workloads::{DURABILITIES, Home, LONG_AGO, drain, fill_with_history, overdue};

/// The rounds of one workload, of the bare loop and of duly.
#[derive(Default)]
struct Beside {
    tasks: usize,
    bare: Vec<Round>,
    duly: Vec<Round>,
}

impl Beside {
    fn of(tasks: usize) -> Self {
        Beside { tasks, ..Beside::default() }
    }

    fn rates(&self) -> (f64, f64) {
        let rate = |rounds: &[Round]| self.tasks as f64 / median(rounds.iter().map(|round| round.time.as_secs_f64()));
        (rate(&self.bare), rate(&self.duly))
    }

    /// Microseconds per run.
    fn cpu(&self) -> (f64, f64) {
        let cpu = |rounds: &[Round]| {
            median(rounds.iter().map(|round| round.cpu.unwrap_or(f64::NAN))) * 1e6 / self.tasks as f64
        };
        (cpu(&self.bare), cpu(&self.duly))
    }

    /// Commits per hundred runs.
    fn commits(&self) -> (f64, f64) {
        let commits = |rounds: &[Round]| {
            let each = |round: &Round| round.commits.map_or(f64::NAN, |commits| commits as f64);
            median(rounds.iter().map(each)) * 100.0 / self.tasks as f64
        };
        (commits(&self.bare), commits(&self.duly))
    }

    fn bytes(&self) -> f64 {
        median(self.duly.iter().map(|round| round.bytes as f64)) / self.tasks as f64
    }
}

/// Drains of ten thousand, of a hundred thousand, and of ten thousand in a file with a long history; a round of each in
/// turn.
pub(crate) fn run(options: &Options, report: &mut Report) {
    let (few, many, rows) = (10_000, options.scaled(100_000, 30_000), options.scaled(1_000_000, 50_000));
    let templates = Home::new();
    let template = |tasks: usize| -> PathBuf {
        let file = templates.file(&format!("{tasks}.db"));
        Client::open(&file).and_then(|client| client.add_all(overdue("task", tasks))).expect("new tasks");
        file
    };
    let (few_template, many_template) = (template(few), template(many));
    for ((name, durability, synchronous), least) in DURABILITIES.into_iter().zip(report::DRAIN) {
        let (mut tens, mut hundreds, mut old) = (Beside::of(few), Beside::of(many), Beside::of(few));
        // One file for all rounds: copying it in each would keep the disk busy during the measurement.
        let past = Home::new();
        let (past_bare, past_duly) = (past.file("bare.db"), past.file("duly.db"));
        let mut bare_with_past = Bare::open(&past_bare, synchronous);
        bare_with_past.add_history(rows);
        fill_with_history(&past_duly, rows, wall_nanos() / 1_000_000);
        for round in 0..options.rounds {
            // The short drains and those with history run twice, before and after the long ones, since all others are
            // compared with them.
            for part in 0..3 {
                let (beside, template) =
                    if part == 1 { (&mut hundreds, &many_template) } else { (&mut tens, &few_template) };
                let home = Home::new();
                let (bare, duly) = (home.file("bare.db"), home.file("duly.db"));
                let mut loop_of_it = Bare::open(&bare, synchronous);
                loop_of_it.add(beside.tasks, LONG_AGO);
                std::fs::copy(template, &duly).expect("a copy");
                beside.bare.push(loop_of_it.drain(&bare, beside.tasks));
                beside.duly.push(drain(&duly, beside.tasks, durability));
                if part == 1 {
                    continue;
                }
                bare_with_past.add(few, LONG_AGO);
                let prefix = format!("r{round}-{part}");
                let added = Client::open(&past_duly).and_then(|client| client.add_all(overdue(&prefix, few)));
                added.expect("new tasks");
                old.bare.push(bare_with_past.drain(&past_bare, few));
                old.duly.push(drain(&past_duly, few, durability));
            }
        }
        let (drained, drained_many, drained_old) = (tens.rates(), hundreds.rates(), old.rates());
        let at_least = Goal::AtLeast;
        report.ratio((format!("drain {few}"), name), drained, "/s", &at_least(least));
        report.ratio(("  .. processor time a run", name), tens.cpu(), "us", &Goal::AtMost(report::CPU));
        report.figure(("  .. commits for 100 runs", name), tens.commits(), "", &Goal::AtMost(report::COMMITS));
        let pairs = [
            (format!("drain {many}, to its own {few}"), drained_many, report::DRAIN_MANY),
            (format!("drain with {rows} rows of past"), drained_old, report::DRAIN_OLD),
        ];
        for (workload, rates, goal) in pairs {
            report.share((workload, name), rates, "/s", (drained.1, &at_least(goal)));
        }
        let time = |tasks: usize, rate: f64| (tasks as f64, tasks as f64 / rate);
        let grown = |few_rate, many_rate| exponent(&[time(few, few_rate), time(many, many_rate)]);
        let powers = (grown(drained.0, drained_many.0), grown(drained.1, drained_many.1));
        report.figure(("  .. growth with what is due", name), powers, "", &Goal::AtMost(report::DRAIN_GROWTH));
        report.detail(format!(
            "drain, {name}: {:.0} bytes in the file for each of {few} tasks with its run; processor time a run at {many}: \
             {:.1} us, {:.1} times the bare loop's; with history {:.1} us; commits for 100 runs at {many}: {:.2}",
            tens.bytes(),
            hundreds.cpu().1,
            hundreds.cpu().1 / hundreds.cpu().0,
            old.cpu().1,
            hundreds.commits().1,
        ));
    }
}
