//! The cost of a turn depending on the number of stored rows, and with many runs behind one key. Turn by turn on a
//! clock that does not move in between, at normal durability: one run is claimed, the next turn stores its outcome.

use std::path::Path;
use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{Limit, NewTask, Outcome, Timestamp};

use crate::Options;
use crate::measure::{exponent, median};
use crate::report::{Goal, KEY_RATE, KEY_TURN, Report, TURN_GROWTH};
use crate::workloads::{Home, LONG_AGO, fill_with_future, fill_with_history, fill_with_waiting};

/// The number of turns in a round.
const TURNS: usize = 100;
/// Writes this number of rows into a file, at this time.
type Fill = fn(&Path, usize, i64);

/// The number of runs that wait behind one key.
const WAITING: usize = 100_000;

/// Growth with the number of future tasks, and of final runs.
pub(crate) fn run(options: &Options, report: &mut Report) {
    let sizes = if options.quick { [1_000, 10_000, 100_000] } else { [10_000, 100_000, 1_000_000] };
    let fills: [(&str, Fill); 2] = [("future tasks", fill_with_future), ("rows of history", fill_with_history)];
    for (what, fill) in fills {
        let home = Home::new();
        let mut steppers = sizes.map(|size| {
            let file = home.file(&format!("{size}.db"));
            fill(&file, size, LONG_AGO);
            let mut stepper = stepper(&file, 1);
            let tick = NewTask::interval("tick", Duration::from_secs(1)).handler("none");
            stepper.client().add(tick).expect("a new task");
            assert!(stepper.step().expect("a turn").is_empty(), "not due yet");
            (size, stepper, Vec::new())
        });
        for _ in 0..options.rounds {
            for (_, stepper, times) in &mut steppers {
                for _ in 0..TURNS {
                    stepper.clock().advance(Duration::from_secs(1));
                    times.push(claim_and_settle(stepper));
                }
            }
        }
        let points = steppers.map(|(size, _, times)| (size as f64, median(times)));
        let workload = format!("growth of a turn, {what}");
        report.figure((workload, "normal"), (f64::NAN, exponent(&points)), "", &Goal::AtMost(TURN_GROWTH));
        let figures = points.map(|(size, seconds)| format!("{size:.0}: {:.0}", seconds * 1e6)).join(", ");
        report.detail(format!("a run's two turns, in us, against {what}: {figures}"));
    }
}

/// A hundred thousand runs behind one key, compared with as many free ones; one at a time.
pub(crate) fn behind_a_key(options: &Options, report: &mut Report) {
    let home = Home::new();
    let mut both = [("free", None), ("key", Some("one"))].map(|(name, key)| {
        let file = home.file(name);
        fill_with_waiting(&file, WAITING, LONG_AGO, key);
        let mut stepper = stepper(&file, 1);
        let claims = stepper.step().expect("a turn");
        assert_eq!(claims.len(), 1, "{name}");
        stepper.finish(&claims[0], Outcome::succeeded());
        (stepper, Vec::new())
    });
    for _ in 0..options.rounds {
        for (stepper, times) in &mut both {
            for _ in 0..TURNS * 5 {
                let begin = Instant::now();
                let claims = stepper.step().expect("a turn");
                times.push(begin.elapsed().as_secs_f64());
                assert_eq!(claims.len(), 1, "one at a time");
                stepper.finish(&claims[0], Outcome::succeeded());
            }
        }
    }
    let [free, keyed] = both.map(|(_, times)| median(times));
    report.figure(
        (format!("turn, {WAITING} behind one key"), "normal"),
        (f64::NAN, keyed * 1e3),
        "ms",
        &Goal::AtMost(KEY_TURN),
    );
    report.figure(("  .. drained, to free ones", "normal"), (f64::NAN, free / keyed), "", &Goal::AtLeast(KEY_RATE));
    report.detail(format!(
        "one at a time, a turn settles a run and claims the next: {:.0} us behind a key ({:.0} runs/s), {:.0} us free ({:.0} \
         runs/s)",
        keyed * 1e6,
        1.0 / keyed,
        free * 1e6,
        1.0 / free,
    ));
}

/// A turn of another task beside a hundred thousand runs that wait for a limit.
pub(crate) fn behind_a_limit(options: &Options, report: &mut Report) {
    let home = Home::new();
    let day = Duration::from_secs(86_400);
    let limits = [
        ("the limit of a key", Some("one"), Limit::key("one", 2), "none"),
        ("the rate of a handler", None, Limit::rate("none", 2, day), "other"),
    ];
    for (what, key, limit, handler) in limits {
        let file = home.file(what);
        fill_with_waiting(&file, WAITING, LONG_AGO, key);
        let mut stepper = stepper(&file, 3);
        stepper.client().set_limit(limit).expect("a limit");
        assert_eq!(stepper.step().expect("a turn").len(), 2, "{what}");
        let tick = NewTask::interval("tick", Duration::from_secs(1)).handler(handler);
        stepper.client().add(tick).expect("a new task");
        assert!(stepper.step().expect("a turn").is_empty(), "not due yet");
        let mut times = Vec::new();
        for _ in 0..options.rounds * TURNS {
            stepper.clock().advance(Duration::from_secs(1));
            times.push(claim_and_settle(&mut stepper) / 2.0);
        }
        let workload = format!("turn, {WAITING} behind {what}");
        report.figure((workload, "normal"), (f64::NAN, median(times) * 1e3), "ms", &Goal::AtMost(KEY_TURN));
    }
}

fn stepper(file: &Path, workers: usize) -> Stepper {
    let now = Timestamp::from_millis(LONG_AGO + 1000);
    Stepper::builder(file, now).accept("none").accept("other").workers(workers).start().expect("a stepper")
}

/// The duration, in seconds, of the two turns of a run.
fn claim_and_settle(stepper: &mut Stepper) -> f64 {
    let begin = Instant::now();
    let claims = stepper.step().expect("a turn");
    assert_eq!(claims.len(), 1, "due on every second");
    stepper.finish(&claims[0], Outcome::succeeded());
    let more = stepper.step().expect("a turn");
    assert!(more.is_empty(), "nothing else is due");
    begin.elapsed().as_secs_f64()
}
