//! Local times in a time zone, and the instants at which they occur.
//!
//! A cron expression or a calendar interval names local times; this module determines the instants at which they occur when a clock
//! is set forward or back. *Fixed* times occur once each, *wildcard* times follow the clock; those of a calendar interval are fixed. That
//! holds for gaps and folds of any size, and `next_after` and `previous_before` enumerate the same set of instants.
//! Pure: it reads no clock.

use std::iter;
use std::time::Duration;

use chrono::{NaiveDateTime, TimeDelta};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::calendar::Calendar;
use crate::schedule::dialect::{self, Rule};
use crate::schedule::pattern::{Pattern, step};
use crate::schedule::zone::fixed::is_fixed as has_fixed_meaning;
use crate::schedule::zone::{ClockNote, SWING, Zone};

/// Local times in a zone. Equivalent expressions are equal: `@weekly` is `0 0 * * SUN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalTimes {
    times: Times,
    rule: Rule,
    zone: Zone,
}

/// What names the local times.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Times {
    Cron(Pattern),
    Calendar(Calendar),
}

impl Times {
    fn first_from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        match self {
            Times::Cron(pattern) => pattern.first_from(from),
            Times::Calendar(calendar) => calendar.first_from(from),
        }
    }

    fn last_until(&self, until: NaiveDateTime) -> Option<NaiveDateTime> {
        match self {
            Times::Cron(pattern) => pattern.last_until(until),
            Times::Calendar(calendar) => calendar.last_until(until),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// The first occurrence is not earlier; the last is not later than the tables accept.
const FIRST: Timestamp = Timestamp::from_millis(0);
const LAST: Timestamp = Timestamp::MAX;

impl LocalTimes {
    /// Parses a cron expression: 5 fields, or 6 with leading seconds, or a nickname such as `@daily`.
    ///
    /// Refuses an expression without any occurrence (`0 0 30 2 *`), and everything outside the dialect.
    pub(crate) fn cron(text: &str, zone: Zone) -> Result<Self> {
        let invalid = |reason: String| Error::InvalidSchedule { text: text.to_owned(), reason };
        let line = dialect::check(text).map_err(invalid)?;
        let pattern = Pattern::read(&line.fields).map_err(|error| invalid(error.to_string()))?;
        let cron = LocalTimes { times: Times::Cron(pattern), rule: line.rule, zone };
        match cron.next_after(Timestamp::MIN) {
            Some(_) => Ok(cron),
            None => Err(invalid("no moment before the year 4000 matches it".to_owned())),
        }
    }

    /// Parses a calendar interval, such as `every 2 weeks on mon at 09:00`. Its days, weeks or months are counted from those of `anchor` in
    /// this zone.
    pub(crate) fn calendar(text: &str, zone: Zone, anchor: Timestamp) -> Result<Self> {
        let invalid = |reason: String| Error::InvalidSchedule { text: text.to_owned(), reason };
        let date = zone.local_at(anchor).map(|local| local.date());
        let date = date.ok_or_else(|| invalid("the day from which it counts is outside of the calendar".to_owned()))?;
        let calendar = Calendar::parse(text, date).map_err(invalid)?;
        Ok(LocalTimes { times: Times::Calendar(calendar), rule: Rule::Fixed, zone })
    }

    /// Returns the times in words, without the zone, unless a few words cannot say those of a cron expression.
    pub(super) fn words(&self) -> Option<String> {
        match &self.times {
            Times::Calendar(calendar) => Some(calendar.to_string()),
            Times::Cron(pattern) => pattern.words(),
        }
    }

    /// Returns the first occurrence after `at`, never `at` itself.
    ///
    /// ```text
    /// 0,30 2 * * * in New York    2027-03-14 goes from 02:00 to 03:00: once, at 03:00
    /// 0,30 1 * * * in New York    2027-11-07 has 01:00 to 02:00 twice: at the first 01:00 and 01:30 only
    /// 30 * * * *   in New York    2027-11-07: at both 01:30
    /// ```
    pub(crate) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let at = at.clamp(FIRST.minus(SECOND), LAST.plus(SECOND));
        let from = whole_second(at).plus(SECOND);
        if from > LAST {
            return None;
        }
        let next = match self.rule {
            Rule::Fixed => self.next_fixed(from),
            Rule::Wildcard => self.next_wildcard(from),
        }?;
        debug_assert!(next > at, "{next} is not after {at}");
        (at < next && next <= LAST).then_some(next)
    }

    /// Returns the last occurrence before `at`, never `at` itself.
    pub(crate) fn previous_before(&self, at: Timestamp) -> Option<Timestamp> {
        let at = at.clamp(FIRST.minus(SECOND), LAST.plus(SECOND));
        let until = whole_second(at.minus(Duration::from_millis(1)));
        if until < FIRST {
            return None;
        }
        let previous = match self.rule {
            Rule::Fixed => self.last_fixed(until),
            Rule::Wildcard => self.last_wildcard(until),
        }?;
        debug_assert!(previous < at, "{previous} is not before {at}");
        (FIRST <= previous && previous < at).then_some(previous)
    }

    pub(crate) fn zone_name(&self) -> &str {
        self.zone.name()
    }

    /// Returns whether the zone is one whose meaning is fixed, such as UTC.
    pub(crate) fn is_in_fixed_zone(&self) -> bool {
        has_fixed_meaning(self.zone.name())
    }

    /// Returns how a change of the clock affects an occurrence.
    pub(crate) fn note(&self, at: Timestamp) -> Option<ClockNote> {
        let local = self.zone.local_at(at)?;
        if self.times.first_from(local)? == local {
            return self.zone.pass(at);
        }
        // Not an instant of the expression: after a gap, if it names a time there; else a `next_run` that SQL or a program
        // with other zone data has written.
        self.behind_gap(at).next().map(|_| ClockNote::AfterGap)
    }

    /// Returns the times that occur together at an instant because the clock skips one of them or more. Wildcard times do not occur then.
    pub(crate) fn gathered(&self, at: Timestamp) -> impl Iterator<Item = NaiveDateTime> {
        self.behind_gap(at).take(if self.rule == Rule::Fixed { usize::MAX } else { 0 })
    }

    /// Returns the times in the gap that ends at an instant, and that of its end.
    fn behind_gap(&self, at: Timestamp) -> impl Iterator<Item = NaiveDateTime> {
        let end = self.zone.local_at(at);
        let next = |from: NaiveDateTime| self.times.first_from(from.checked_add_signed(TimeDelta::seconds(1))?);
        let first = self.zone.local_at(at.minus(SECOND)).and_then(next).filter(|first| Some(*first) < end);
        iter::successors(first, move |time| next(*time)).take_while(move |time| Some(*time) <= end)
    }

    /// Fixed: a local time occurs when a clock first shows it or a later time. So everything shown up to the second
    /// before `from` has occurred, even if the clock was set back since; and all times in a gap occur at its end.
    fn next_fixed(&self, from: Timestamp) -> Option<Timestamp> {
        let done = self.zone.furthest_shown(from.minus(SECOND))?;
        let next = self.times.first_from(done.checked_add_signed(TimeDelta::seconds(1))?)?;
        Some(self.zone.first_showing(next))
    }

    fn last_fixed(&self, until: Timestamp) -> Option<Timestamp> {
        let last = self.times.last_until(self.zone.furthest_shown(until)?)?;
        Some(self.zone.first_showing(last))
    }

    /// Wildcard: a local time occurs whenever a clock shows it. While the clock is not changed, the next match is as
    /// far away as the clock indicates; at a change, the search restarts.
    fn next_wildcard(&self, from: Timestamp) -> Option<Timestamp> {
        let mut from = from;
        while from <= LAST {
            step();
            let shown = self.zone.local_at(from)?;
            let wait = (self.times.first_from(shown)? - shown).to_std().ok()?;
            let near = wait.min(SWING);
            match self.zone.next_change(from, from.plus(near)) {
                Some(change) => from = change,
                None if wait <= SWING => return Some(from.plus(wait)),
                // After `SWING` a clock shows only times after `shown`, so the next match is this one, earlier by at
                // most `SWING`. The changes before that need not be examined, which keeps sparse expressions cheap.
                None => from = from.plus(near.max(wait - SWING)),
            }
        }
        None
    }

    fn last_wildcard(&self, until: Timestamp) -> Option<Timestamp> {
        let mut until = until;
        while until >= FIRST {
            step();
            let shown = self.zone.local_at(until)?;
            let ago = (shown - self.times.last_until(shown)?).to_std().ok()?;
            let near = ago.min(SWING);
            match self.zone.last_change(until.minus(near), until) {
                Some(change) => until = change.minus(SECOND),
                None if ago <= SWING => return Some(until.minus(ago)),
                None => until = until.minus(near.max(ago - SWING)),
            }
        }
        None
    }
}

/// Returns the start of the second that contains `at`.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis().div_euclid(1000) * 1000)
}
