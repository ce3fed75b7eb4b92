//! The goals, and the table of the measured values beside them.

use std::fmt::Display;

/// Draining ten thousand, beside the bare loop: at normal, and at full durability.
pub(crate) const DRAIN: [f64; 2] = [0.50, 0.55];
/// Draining a hundred thousand, beside draining ten thousand.
pub(crate) const DRAIN_MANY: f64 = 0.85;
/// Draining with a million rows of history in the file, beside draining without.
pub(crate) const DRAIN_OLD: f64 = 0.9;
/// Processor time of a run, as a multiple of the bare loop's.
pub(crate) const CPU: f64 = 2.4;
/// Commits for a hundred runs.
pub(crate) const COMMITS: f64 = 3.0;
/// Ten thousand tasks on one second: seconds until the last outcome is stored.
pub(crate) const ONE_SECOND: f64 = 0.5;
/// How much later than the bare loop a run may begin, in milliseconds.
pub(crate) const LATER_P50: f64 = 0.3;
/// The same at p99.
pub(crate) const LATER_P99: f64 = 1.0;
/// Processor seconds of a minute of idling.
pub(crate) const IDLE_CPU: f64 = 0.02;
/// MiB of memory while idling.
pub(crate) const IDLE_MEMORY: f64 = 15.0;
/// The maximum exponent of growth of a turn with the stored rows.
pub(crate) const TURN_GROWTH: f64 = 0.1;
/// The maximum exponent of growth of a drain with the due tasks.
pub(crate) const DRAIN_GROWTH: f64 = 1.1;
/// Milliseconds of a turn with a hundred thousand runs behind one key.
pub(crate) const KEY_TURN: f64 = 1.0;
/// Draining runs behind one key, compared with as many free runs, one at a time.
pub(crate) const KEY_RATE: f64 = 0.5;

/// The goal of a figure.
pub(crate) enum Goal {
    /// No goal; it is only shown.
    None,
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(&self, found: f64) -> bool {
        match *self {
            Goal::None => true,
            Goal::AtLeast(least) => found >= least,
            Goal::AtMost(most) => found <= most,
        }
    }
}

struct Line {
    workload: String,
    durability: &'static str,
    bare: String,
    duly: String,
    ratio: String,
    goal: String,
    verdict: &'static str,
}

/// All results.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
    details: Vec<String>,
}

impl Report {
    /// Adds a figure whose ratio to the bare loop has a goal.
    pub(crate) fn ratio(
        &mut self,
        (workload, durability): (impl Into<String>, &'static str),
        (bare, duly): (f64, f64),
        unit: &str,
        goal: &Goal,
    ) {
        self.line(workload.into(), durability, (bare, duly), unit, duly / bare, ("", goal));
    }

    /// Adds a rate whose share of another rate of duly has a goal; the ratio to the bare loop is shown.
    pub(crate) fn share(
        &mut self,
        (workload, durability): (impl Into<String>, &'static str),
        (bare, duly): (f64, f64),
        unit: &str,
        (own, goal): (f64, &Goal),
    ) {
        let share = duly / own;
        self.line(workload.into(), durability, (bare, duly), unit, share, (&format!("of own, {share:.2}"), goal));
    }

    /// Adds a figure that has a goal itself; that of the bare loop is shown, and may be unknown.
    pub(crate) fn figure(
        &mut self,
        (workload, durability): (impl Into<String>, &'static str),
        (bare, duly): (f64, f64),
        unit: &str,
        goal: &Goal,
    ) {
        self.line(workload.into(), durability, (bare, duly), unit, duly, (unit, goal));
    }

    /// Adds a figure whose difference from the bare loop has a goal.
    pub(crate) fn distance(
        &mut self,
        (workload, durability): (impl Into<String>, &'static str),
        (bare, duly): (f64, f64),
        unit: &str,
        goal: &Goal,
    ) {
        self.line(workload.into(), durability, (bare, duly), unit, duly - bare, (&format!("{unit} later"), goal));
    }

    fn line(
        &mut self,
        workload: String,
        durability: &'static str,
        (bare, duly): (f64, f64),
        unit: &str,
        judged: f64,
        (of, goal): (&str, &Goal),
    ) {
        let wanted = match *goal {
            Goal::None => String::new(),
            Goal::AtLeast(least) => format!(">= {least} {of}"),
            Goal::AtMost(most) => format!("<= {most} {of}"),
        };
        let verdict = match (judged.is_finite(), goal.is_met(judged)) {
            _ if wanted.is_empty() => "",
            (false, _) => "-",
            (true, true) => "yes",
            (true, false) => "MISSED",
        };
        let (bare_text, duly_text) = (with_unit(bare, unit), with_unit(duly, unit));
        let ratio = duly / bare;
        let ratio = if ratio.is_finite() { format!("{ratio:.2}") } else { "-".to_owned() };
        let goal = wanted.trim_end().to_owned();
        self.lines.push(Line { workload, durability, bare: bare_text, duly: duly_text, ratio, goal, verdict });
    }

    /// Adds a note below the table.
    pub(crate) fn detail(&mut self, text: impl Display) {
        self.details.push(text.to_string());
    }

    pub(crate) fn print(&self) {
        let row = |columns: [&str; 7]| {
            let [workload, durability, bare, duly, ratio, goal, verdict] = columns;
            println!("{workload:<34} {durability:<10} {bare:>16} {duly:>16} {ratio:>7}  {goal:<18} {verdict}");
        };
        row(["workload", "durability", "bare", "duly", "ratio", "goal", "met"]);
        for line in &self.lines {
            let Line { workload, durability, bare, duly, ratio, goal, verdict } = line;
            row([workload, durability, bare, duly, ratio, goal, verdict]);
        }
        if !self.details.is_empty() {
            println!();
            self.details.iter().for_each(|detail| println!("{detail}"));
        }
        let missed: Vec<&Line> = self.lines.iter().filter(|line| line.verdict == "MISSED").collect();
        println!();
        if missed.is_empty() {
            println!("no goal is missed");
        }
        for line in missed {
            let Line { workload, durability, bare, duly, ratio, goal, .. } = line;
            let workload = workload.trim_start_matches("  .. ");
            println!("missed: {workload} ({durability}): {duly}, bare {bare}, ratio {ratio}, wanted {goal}");
        }
    }
}

fn with_unit(figure: f64, unit: &str) -> String {
    let digits = match figure.abs() {
        1000.0.. => 0,
        10.0.. => 1,
        0.1.. => 2,
        _ => 4,
    };
    if figure.is_finite() { format!("{figure:.digits$} {unit}").trim_end().to_owned() } else { "-".to_owned() }
}
