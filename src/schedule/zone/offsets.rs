//! The offset of a zone over time, as a table of its changes.
//!
//! The table is complete from 1970 to the year 4000 for every source: a permanent rule is expanded year by year, once,
//! so that every query is a search in one sorted list. This module knows no files and no names.

use std::ops::Range;

use chrono::{NaiveDate, NaiveTime};
use tz::timezone::{AlternateTime, RuleDay};

use crate::clock::Timestamp;
use crate::host::attempt_slots::hash;

/// The first second of the table. Earlier changes are not needed: they were before 1970 in every zone.
pub(super) const FIRST: i64 = -40 * 24 * 3600;

/// Rules are expanded up to the end of this year; occurrences end at its start.
const LAST_YEAR: i32 = 4000;

/// The changes that a digest covers, in seconds: from 2025 to the end of 2099. Releases correct older ones, which decide about no plan, and
/// repeat the rule of 2099 afterwards.
const COMPARED: Range<i64> = 1_735_689_600..4_102_444_800;

/// The largest offset, east or west. Since 1970 offsets are between -12 h and +14 h; formats and libraries accept up to
/// a day.
pub(super) const LARGEST: i32 = 24 * 3600;

/// Seconds east of UTC, at every second from 1970 to 4000.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// The offset before the first change.
    first: i32,
    /// The seconds at which the offset changes, ascending, each with the new offset, which always differs from the
    /// previous one.
    changes: Vec<(i64, i32)>,
}

impl Offsets {
    /// Builds the table from `changes` in ascending order. The error is a reason.
    ///
    /// Changes to the current offset are omitted; of two changes in one second, the later one counts.
    pub(super) fn new(first: i32, changes: impl IntoIterator<Item = (i64, i32)>) -> Result<Self, String> {
        let mut offsets = Offsets { first, changes: Vec::new() };
        for (at, offset) in changes {
            match offsets.changes.last() {
                Some((last, _)) if at < *last => return Err(format!("its changes are out of order at second {at}")),
                Some((last, _)) if at == *last => drop(offsets.changes.pop()),
                _ => {}
            }
            if offsets.newest() != offset {
                offsets.changes.push((at, offset));
            }
        }
        let all = offsets.changes.iter().map(|(_, offset)| *offset).chain([offsets.first]);
        match all.into_iter().find(|offset| offset.abs() > LARGEST) {
            Some(offset) => Err(format!("an offset of {offset} s is more than a day")),
            None => Ok(offsets),
        }
    }

    /// Builds the table of an offset that never changes.
    pub(super) fn constant(offset: i32) -> Self {
        Offsets { first: offset, changes: Vec::new() }
    }

    /// Returns a digest of the offsets by which tasks are planned. Other versions of duly compute the same.
    pub(super) fn digest(&self) -> u64 {
        let first = self.at(Timestamp::from_millis(COMPARED.start * 1000));
        let changes = self.changes.iter().filter(|(at, _)| COMPARED.contains(at));
        hash(&changes.fold(first.to_string(), |text, (at, offset)| format!("{text} {at} {offset}")))
    }

    fn newest(&self) -> i32 {
        self.changes.last().map_or(self.first, |(_, offset)| *offset)
    }

    /// Returns the number of changes at or before `at`.
    fn until(&self, at: Timestamp) -> usize {
        let second = at.as_millis().div_euclid(1000);
        self.changes.partition_point(|(change, _)| *change <= second)
    }

    /// Returns the offset at an instant in seconds east of UTC.
    pub(super) fn at(&self, at: Timestamp) -> i32 {
        self.until(at).checked_sub(1).map_or(self.first, |last| self.changes[last].1)
    }

    /// Returns the first change in `(after, until]`.
    pub(super) fn next_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let (change, _) = self.changes.get(self.until(after))?;
        Some(Timestamp::from_millis(change * 1000)).filter(|change| *change <= until)
    }

    /// Returns the last change in `(after, until]`.
    pub(super) fn last_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let (change, _) = self.changes.get(self.until(until).checked_sub(1)?)?;
        Some(Timestamp::from_millis(change * 1000)).filter(|change| after < *change)
    }

    /// Returns the first instant in `[from, until]` at which two tables have different offsets.
    pub(super) fn first_difference(&self, other: &Offsets, from: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut at = from;
        while self.at(at) == other.at(at) {
            at = [self, other].iter().filter_map(|one| one.next_change(at, until)).min()?;
        }
        Some(at)
    }
}

/// Returns the changes of a yearly rule after a second, ascending, to the end of the table.
pub(super) fn yearly(rule: &AlternateTime, after: i64) -> Vec<(i64, i32)> {
    let (standard, summer) = (rule.std().ut_offset(), rule.dst().ut_offset());
    let year_of = |second: i64| 1970 + i32::try_from(second.div_euclid(366 * 24 * 3600)).unwrap_or(LAST_YEAR);
    let mut changes: Vec<_> = (year_of(after).max(1969) - 1..=LAST_YEAR)
        .flat_map(|year| {
            // A rule gives each second in the offset that ends there.
            let start = second_of(year, rule.dst_start(), rule.dst_start_time(), standard).map(|at| (at, summer));
            let end = second_of(year, rule.dst_end(), rule.dst_end_time(), summer).map(|at| (at, standard));
            [start, end]
        })
        .flatten()
        .filter(|(at, _)| *at > after)
        .collect();
    // The sort is stable: if summer time ends in the second in which the next one begins, the begin comes last.
    changes.sort_by_key(|(at, _)| *at);
    changes
}

fn second_of(year: i32, day: &RuleDay, time: i32, offset: i32) -> Option<i64> {
    let first = NaiveDate::from_yo_opt(year, 1)?;
    let date = match day {
        // Counted from 1, without the 29th of February.
        RuleDay::Julian1WithoutLeap(day) => {
            let leap = first.leap_year() && day.get() >= 60;
            NaiveDate::from_yo_opt(year, u32::from(day.get()) + u32::from(leap))?
        }
        // Counted from 0; in a common year the last one is the first day of the next year.
        RuleDay::Julian0WithLeap(day) => first.checked_add_days(chrono::Days::new(u64::from(day.get())))?,
        RuleDay::MonthWeekDay(day) => {
            let weekday = chrono::Weekday::try_from((day.week_day() + 6) % 7).ok()?;
            let nth = |nth| NaiveDate::from_weekday_of_month_opt(year, u32::from(day.month()), weekday, nth);
            // Week 5 means the last one.
            nth(day.week()).or_else(|| nth(4))?
        }
    };
    Some(date.and_time(NaiveTime::MIN).and_utc().timestamp() + i64::from(time) - i64::from(offset))
}

#[cfg(test)]
mod tests {
    use super::{FIRST, Offsets, yearly};
    use crate::clock::Timestamp;
    use tz::timezone::{
        AlternateTime, Julian0WithLeap, Julian1WithoutLeap, LocalTimeType, MonthWeekDay, RuleDay, TimeZone,
        TransitionRule,
    };

    const HOUR: i32 = 3600;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    #[test]
    fn unchanged_offsets_are_omitted_and_the_later_of_two_counts() {
        let offsets = Offsets::new(8, [(10, 8), (20, 5), (30, 6), (30, 5), (40, 1), (40, 9)]).unwrap();
        assert_eq!(offsets, Offsets { first: 8, changes: vec![(20, 5), (40, 9)] });
        assert_eq!(Offsets::new(0, [(20, 1), (19, 2)]).unwrap_err(), "its changes are out of order at second 19");
        assert_eq!(Offsets::new(0, [(20, 86_401)]).unwrap_err(), "an offset of 86401 s is more than a day");
        assert_eq!(Offsets::new(-86_401, []).unwrap_err(), "an offset of -86401 s is more than a day");
    }

    #[test]
    fn a_digest_differs_where_a_plan_may_differ() {
        // Summer times of 2024 and 2027, and one of 2101.
        let all = [(1_711_846_800, 2), (1_729_990_800, 1), (1_806_109_200, 2), (1_824_858_000, 1), (4_140_000_000, 2)];
        let digest = |first, changes: &[(i64, i32)]| Offsets::new(first, changes.iter().copied()).unwrap().digest();
        let [right, without_the_past, of_another_second, without_2027, elsewhere] = [
            digest(1, &all),
            digest(1, &all[2..4]),
            digest(1, &[(1_806_109_201, 2), all[3]]),
            digest(1, &[]),
            digest(2, &[all[2], all[3]]),
        ];
        assert_eq!(right, without_the_past);
        assert!([of_another_second, without_2027, elsewhere].iter().all(|digest| *digest != right));
        assert_eq!(digest(0, &[]), 0xaf63_ad4c_8601_9caf, "of \"0\", in every version");
    }

    #[test]
    fn a_range_is_open_below_and_closed_above() {
        let offsets = Offsets::new(1, [(20, 5), (40, 9)]).unwrap();
        let just_before = Timestamp::from_millis(19_999);
        assert_eq!([just_before, second(20), second(39), second(40)].map(|at| offsets.at(at)), [1, 5, 5, 9]);
        assert_eq!(offsets.at(Timestamp::from_millis(i64::MIN)), 1);
        for (after, until, next, last) in [
            (0, 100, Some(20), Some(40)),
            (0, 20, Some(20), Some(20)),
            (0, 19, None, None),
            (20, 39, None, None),
            (20, 40, Some(40), Some(40)),
            (40, 100, None, None),
        ] {
            let found =
                [offsets.next_change(second(after), second(until)), offsets.last_change(second(after), second(until))];
            assert_eq!(found, [next.map(second), last.map(second)], "({after}, {until}]");
        }
        assert_eq!(offsets.next_change(just_before, just_before), None);
    }

    #[test]
    fn the_first_difference_is_at_a_change_of_either_or_at_the_start() {
        let one = Offsets::new(1, [(20, 5), (40, 9), (60, 1)]).unwrap();
        let other = Offsets::new(1, [(20, 5), (45, 9), (50, 1)]).unwrap();
        for (from, until, first) in [
            (0, 100, Some(40)),
            (0, 39, None),
            (0, 40, Some(40)),
            (42, 100, Some(42)),
            (45, 100, Some(50)),
            (60, 100, None),
        ] {
            for (one, other) in [(&one, &other), (&other, &one)] {
                assert_eq!(
                    one.first_difference(other, second(from), second(until)),
                    first.map(second),
                    "[{from}, {until}]"
                );
            }
        }
    }

    /// A cross-check of the expanded rules against tz-rs, once a day for four hundred years.
    #[test]
    fn a_rule_is_expanded_correctly() {
        let month = |month, week, day| RuleDay::MonthWeekDay(MonthWeekDay::new(month, week, day).unwrap());
        let counted = |day| RuleDay::Julian1WithoutLeap(Julian1WithoutLeap::new(day).unwrap());
        let from_zero = |day| RuleDay::Julian0WithLeap(Julian0WithLeap::new(day).unwrap());
        for (name, standard, summer, start, start_time, end, end_time) in [
            ("New York", -5, -4, month(3, 2, 0), 2, month(11, 1, 0), 2),
            ("Sydney", 10, 11, month(10, 1, 0), 2, month(4, 1, 0), 3),
            ("Nuuk", -2, -1, month(3, 5, 0), -1, month(10, 5, 0), 0),
            ("Gaza", 2, 3, month(3, 4, 4), 50, month(10, 4, 4), 50),
            ("Dublin", 1, 0, month(10, 5, 0), 2, month(3, 5, 0), 1),
            ("days of common years", 3, 4, counted(59), 2, counted(60), 2),
            ("days of all years", 3, 4, from_zero(59), 0, from_zero(365), 0),
            ("summer all year", -4, -3, counted(1), 0, counted(365), 25),
        ] {
            let kind = |hours, summer| LocalTimeType::new(hours * HOUR, summer, Some(b"XXX")).unwrap();
            let (standard, summer) = (kind(standard, false), kind(summer, true));
            let rule = AlternateTime::new(standard, summer, start, start_time * HOUR, end, end_time * HOUR);
            let rule = rule.unwrap_or_else(|error| panic!("{name}: {error}"));
            let theirs = TimeZone::new(vec![], vec![standard], vec![], Some(TransitionRule::Alternate(rule))).unwrap();
            let their = |at: i64| theirs.find_local_time_type(at).unwrap().ut_offset();
            let ours = Offsets::new(their(FIRST), yearly(&rule, FIRST)).unwrap();
            for day in 0..400 * 365 {
                let at = day * 24 * 3600 + 1;
                assert_eq!(ours.at(second(at)), their(at), "{name} at {}", second(at));
            }
            for (at, offset) in ours.changes.iter().filter(|(at, _)| second(*at) <= Timestamp::MAX) {
                assert_eq!((their(at - 1) != *offset, their(*at)), (true, *offset), "{name} at {}", second(*at));
            }
        }
    }
}
