//! A second opinion: a walker that looks at each minute near a change of the clock, and knows neither croner nor the map
//! of `cron.rs`. Random lines, zones and changes; every occurrence is compared.

use std::collections::HashSet;

use chrono::{DateTime, Datelike, Offset, TimeZone, Timelike};
use chrono_tz::{TZ_VARIANTS, Tz};

use super::{Schedule, ScheduleKind};
use crate::clock::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

#[test]
fn the_map_finds_what_a_walker_finds() {
    compare(0x5eed_0001, 300);
}

#[test]
#[ignore = "a minute in a release build"]
fn the_map_finds_what_a_walker_finds_at_length() {
    compare(0x5eed_0002, 20_000);
}

fn compare(seed: u64, cases: usize) {
    let mut random = Random(seed);
    let mut compared = 0;
    for case in 0..cases {
        let tz = TZ_VARIANTS[random.below(TZ_VARIANTS.len())];
        let change = change_of(tz, &mut random);
        let line = Line::random(&mut random, change + i64::from(offset(tz, change)));
        let (start, end) = (change - 2 * DAY, change + 2 * DAY);
        let expected = line.walk(tz, start, end);
        let told = format!("seed {seed:#x}, case {case}: {} in {tz} near {}", line.text, show(change));
        let schedule = Schedule::parse(ScheduleKind::Cron, &line.text, tz.name(), Timestamp::MIN);
        let Ok(schedule) = schedule else {
            assert!(expected.is_empty(), "{told}: refused {schedule:?}");
            continue;
        };
        let within = |at: &Timestamp| (start * 1000..end * 1000).contains(&at.as_millis());
        let next = |at: &Timestamp| schedule.next_after(*at).filter(within);
        let forth: Vec<_> = std::iter::successors(next(&Timestamp::from_millis(start * 1000 - 1)), next)
            .map(|at| at.as_millis() / 1000)
            .collect();
        let differs = forth.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert_eq!(forth.len(), expected.len(), "{told}: first difference {differs:?}");
        assert_eq!(differs, None, "{told}");
        // And from instants that are no occurrences, to both sides.
        for _ in 0..20 {
            let at = start * 1000 + random.below(4 * DAY as usize * 1000) as i64;
            let after = expected.iter().copied().find(|second| second * 1000 > at);
            let before = expected.iter().copied().rfind(|second| second * 1000 < at);
            let at = Timestamp::from_millis(at);
            let second = |found: Timestamp| found.as_millis() / 1000;
            assert_eq!(schedule.next_after(at).filter(within).map(second), after, "{told} after {at}");
            assert_eq!(schedule.previous_before(at).filter(within).map(second), before, "{told} before {at}");
        }
        // And from years around, where no walker goes: a leap over many changes misses nothing that the other
        // direction finds.
        for _ in 0..5 {
            let years = 5 * 365 * DAY * 1000;
            let at = Timestamp::from_millis(start * 1000 - years + random.below(2 * years as usize) as i64);
            if let Some(next) = schedule.next_after(at) {
                assert!(schedule.previous_before(next) <= Some(at), "{told}: {next} is not the first after {at}");
            }
            if let Some(previous) = schedule.previous_before(at) {
                let next = schedule.next_after(previous);
                assert!(next.is_none_or(|next| next >= at), "{told}: {previous} is not the last before {at}");
            }
        }
        compared += expected.len();
    }
    println!("{cases} cases, {compared} occurrences, seed {seed:#x}");
}

/// A cron line, and what it names as plain sets.
struct Line {
    text: String,
    seconds: Vec<u32>,
    minutes: Vec<u32>,
    hours: Vec<u32>,
    days: Vec<u32>,
    months: Vec<u32>,
    weekdays: Vec<u32>,
    either_day: bool,
    wildcard: bool,
}

impl Line {
    /// Half of the hours lie near `local`, the others anywhere.
    fn random(random: &mut Random, local: i64) -> Line {
        let (second, seconds) = match random.below(4) {
            0 => random.field(0, 59),
            _ => (String::new(), vec![0]),
        };
        let (minute, minutes) = random.field(0, 59);
        let (hour, hours) = match random.below(2) {
            0 => random.field(0, 23),
            _ => {
                let hour = (local.rem_euclid(DAY) / HOUR) as usize;
                let (first, second) = ((hour + 20 + random.below(5)) % 24, (hour + 22 + random.below(3)) % 24);
                (format!("{first},{second}"), vec![first as u32, second as u32])
            }
        };
        let mut rarely = |low, high| match random.below(3) {
            0 => random.field(low, high),
            _ => ("*".to_owned(), (low..=high).collect()),
        };
        let (day, days) = rarely(1, 31);
        let (month, months) = rarely(1, 12);
        let (weekday, weekdays) = rarely(0, 7);
        Line {
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            wildcard: [&second, &minute, &hour].iter().any(|field| field.starts_with('*')),
            text: format!("{second} {minute} {hour} {day} {month} {weekday}"),
            weekdays: weekdays.iter().map(|day| day % 7).collect(),
            seconds,
            minutes,
            hours,
            days,
            months,
        }
    }

    /// Whether the line names any second of the local minute.
    fn names(&self, local: i64) -> bool {
        let at = DateTime::from_timestamp(local, 0).unwrap();
        let day = self.days.contains(&at.day());
        let weekday = self.weekdays.contains(&at.weekday().num_days_from_sunday());
        let date = if self.either_day { day || weekday } else { day && weekday };
        date && self.months.contains(&at.month())
            && self.hours.contains(&at.hour())
            && self.minutes.contains(&at.minute())
    }

    /// Every occurrence in `[start, end)`, found by looking at each minute, and for three days before at the clock.
    fn walk(&self, tz: Tz, start: i64, end: i64) -> Vec<i64> {
        let mut found = Vec::new();
        let mut shown = HashSet::new();
        let mut from = start - 3 * DAY;
        let mut expected = from + i64::from(offset(tz, from));
        while from < end {
            let local = from + i64::from(offset(tz, from));
            let skipped = (expected..local).step_by(MINUTE as usize).any(|skipped| self.names(skipped));
            if skipped && !self.wildcard {
                found.push(from);
            }
            let first_pass = shown.insert(local);
            if self.names(local) && (self.wildcard || first_pass) {
                found.extend(self.seconds.iter().map(|second| from + i64::from(*second)));
            }
            expected = local + MINUTE;
            from += MINUTE;
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|at| (start..end).contains(at));
        found
    }
}

/// An instant at which the clock of a zone is changed, in a random year when all offsets were whole minutes; or, where
/// it never is, any midnight.
fn change_of(tz: Tz, random: &mut Random) -> i64 {
    let new_year = (3 + random.below(118) as i64) * 365 * DAY;
    let changes: Vec<i64> = (1..=365)
        .map(|day| new_year + day * DAY)
        .filter(|at| offset(tz, *at) != offset(tz, at - DAY))
        .flat_map(|day| (0..24 * 60).map(move |minute| day - minute * MINUTE))
        .filter(|at| offset(tz, *at) != offset(tz, at - MINUTE))
        .collect();
    match changes.len() {
        0 => new_year,
        changed => changes[random.below(changed)],
    }
}

fn offset(tz: Tz, second: i64) -> i32 {
    let at = DateTime::from_timestamp(second, 0).unwrap().naive_utc();
    tz.offset_from_utc_datetime(&at).fix().local_minus_utc()
}

fn show(second: i64) -> String {
    DateTime::from_timestamp(second, 0).unwrap().to_rfc3339()
}

/// Knuth's linear congruential generator; its high bits are good enough to choose cases.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    /// A field in one of six forms, and the values it names.
    fn field(&mut self, low: u32, high: u32) -> (String, Vec<u32>) {
        let mut value = || low + self.below((high - low + 1) as usize) as u32;
        let (one, other) = (value(), value());
        let (first, last) = (one.min(other), one.max(other));
        let step = 1 + self.below((high - low) as usize);
        match self.below(6) {
            0 => ("*".to_owned(), (low..=high).collect()),
            1 => (format!("*/{step}"), (low..=high).step_by(step).collect()),
            2 => (format!("{one}"), vec![one]),
            3 => (format!("{one},{other}"), vec![one, other]),
            4 => (format!("{first}-{last}"), (first..=last).collect()),
            _ => (format!("{first}-{last}/{step}"), (first..=last).step_by(step).collect()),
        }
    }
}
