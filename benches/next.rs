//! Measures finding the next occurrence of a cron expression, beside croner, which has other rules for clock changes
//! and so is a reference for the cost, not for correctness.
//!
//! `cargo bench --bench next [-- ROUNDS]`. Each figure is the median of interleaved rounds; a round computes a thousand
//! consecutive occurrences, and the cost of one is the difference to computing only the first: parsing is not counted,
//! and has its own column. Then a thousand random expressions, and the slowest of them.

use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use chrono::DateTime;
use chrono_tz::Tz;
use croner::Cron;
use duly::{NewTask, Timestamp};

const FROM: &str = "2026-12-01T00:00:00Z";
const USUAL: [&str; 9] = [
    "* * * * *",
    "*/5 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "0 9 * * MON-FRI",
    "0 0 1 1 *",
    "0 0 L * *",
    "0 0 29 2 *",
    "*/10 * * * * *",
];
/// Occurrences computed per usual expression, and per random one.
const MANY: usize = 1000;
const SOME: usize = 20;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(15);
    println!("{}, median of {rounds} interleaved rounds, nanoseconds", duly::zone_data());
    println!(
        "{:<18} {:<18} {:>10} {:>10} {:>8} {:>12} {:>12}",
        "line", "zone", "duly", "croner", "ratio", "duly reads", "croner reads"
    );
    for zone in ["UTC", "America/New_York"] {
        for line in USUAL {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                ours.push(duly(line, zone, MANY).expect("a good line"));
                theirs.push(croner(line, zone, MANY));
            }
            let median = |costs: &[Cost], of: fn(&Cost) -> f64| middle(costs.iter().map(of).collect());
            let (one, other) = (median(&ours, |cost| cost.next), median(&theirs, |cost| cost.next));
            let (read, their_read) = (median(&ours, |cost| cost.first), median(&theirs, |cost| cost.first));
            let ratio = one / other;
            println!("{line:<18} {zone:<18} {one:>10.0} {other:>10.0} {ratio:>8.2} {read:>12.0} {their_read:>12.0}");
        }
    }
    slowest();
}

/// The most expensive of a thousand random expressions, by the best of three rounds each: the worst round would measure
/// the machine.
fn slowest() {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let (mut ours, mut theirs, mut refused) = (Vec::new(), Vec::new(), 0);
    while ours.len() < 1000 {
        let line = random_line(&mut random);
        if duly(&line, "America/New_York", 1).is_none() {
            refused += 1;
            continue;
        }
        let best = |cost: &dyn Fn() -> Cost| (0..3).map(|_| cost().next).fold(f64::INFINITY, f64::min);
        ours.push((best(&|| duly(&line, "America/New_York", SOME).expect("read before")), line.clone()));
        theirs.push((best(&|| croner(&line, "America/New_York", SOME)), line));
    }
    for (who, mut costs) in [("duly", ours), ("croner", theirs)] {
        costs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (slowest, line) = &costs[costs.len() - 1];
        let middle = costs[costs.len() / 2].0;
        println!("{who:<8} 1000 random lines: median {middle:.0}, slowest {slowest:.0} ({line})");
    }
    println!("{refused} more name no moment at all, and were refused");
}

/// The cost, in nanoseconds, of parsing an expression and finding its first occurrence, and of finding another one.
struct Cost {
    first: f64,
    next: f64,
}

fn duly(line: &str, zone: &str, count: usize) -> Option<Cost> {
    let from: Timestamp = FROM.parse().expect("an instant");
    let task = NewTask::cron("bench", line).time_zone(zone).handler("none");
    let ask = |count| timed(|| task.occurrences(from, count).map_or(0, |found| found.len()));
    let (first, found) = ask(1);
    if found == 0 {
        return None;
    }
    let (all, found) = ask(count + 1);
    Some(cost(first, all, found))
}

fn croner(line: &str, zone: &str, count: usize) -> Cost {
    let zone = Tz::from_str(zone).expect("a zone");
    let from = DateTime::parse_from_rfc3339(FROM).expect("an instant").with_timezone(&zone);
    let ask = |count: usize| {
        timed(|| {
            let cron = Cron::from_str(line).expect("a good line");
            let mut at = from;
            let found = (0..count).take_while(|_| match cron.find_next_occurrence(&at, false) {
                Ok(next) => {
                    at = next;
                    true
                }
                Err(_) => false,
            });
            found.count()
        })
    };
    let (first, _) = ask(1);
    let (all, found) = ask(count + 1);
    cost(first, all, found)
}

fn cost(first: Duration, all: Duration, found: usize) -> Cost {
    let more = found.saturating_sub(1).max(1) as f64;
    Cost { first: first.as_nanos() as f64, next: all.saturating_sub(first).as_nanos() as f64 / more }
}

fn timed(f: impl FnOnce() -> usize) -> (Duration, usize) {
    let begin = Instant::now();
    let found = black_box(f());
    (begin.elapsed(), found)
}

fn middle(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

fn random_line(random: &mut fastrand::Rng) -> String {
    let mut field = |low: u32, high: u32, stars: u32| {
        let (one, other) = (random.u32(low..=high), random.u32(low..=high));
        let (first, last) = (one.min(other), one.max(other));
        match random.u32(0..4 + stars) {
            0 => format!("*/{}", 1 + one % (high - low)),
            1 => one.to_string(),
            2 => format!("{first},{last}"),
            3 => format!("{first}-{last}"),
            _ => "*".to_owned(),
        }
    };
    let (minute, hour, day) = (field(0, 59, 1), field(0, 23, 2), field(1, 31, 3));
    format!("{minute} {hour} {day} {} {}", field(1, 12, 3), field(0, 6, 3))
}
