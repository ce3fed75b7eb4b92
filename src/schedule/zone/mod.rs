//! A time zone as one question: its offset at an instant.
//!
//! From that question alone follows what a clock on the wall there shows, when it was changed, and when it first shows
//! a given local time. Nothing else in the house knows zone data, and this room knows no schedule.

pub(crate) mod data;
mod offsets;
mod tzif;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, FixedOffset, NaiveDateTime, SecondsFormat};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::schedule::zone::data::zone_data;
use crate::schedule::zone::offsets::{LARGEST, Offsets};

/// Two local clocks never differ by more, for no offset is larger than a day, east or west.
pub(crate) const SWING: Duration = LARGEST_OFFSET.saturating_mul(2);

const LARGEST_OFFSET: Duration = Duration::from_secs(LARGEST as u64);

const SECOND: Duration = Duration::from_secs(1);

/// A time zone of the IANA database. Cheap to clone; zones of one name are equal.
///
/// ```
/// let error = duly::Zone::named("Europe/paris").unwrap_err();
/// assert!(error.to_string().contains("did you mean Europe/Paris?"));
/// ```
#[derive(Clone)]
pub struct Zone {
    name: Arc<str>,
    offsets: Arc<Offsets>,
}

/// Zones that were asked for, so that the files of each are read once. There are only so many names.
static LOADED: Mutex<BTreeMap<Arc<str>, Zone>> = Mutex::new(BTreeMap::new());

/// What a clock's being set forward or back has to do with an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockNote {
    /// The local time that was meant is skipped: this is the first instant after the gap.
    AfterGap,
    /// The local time comes twice: this is the first.
    FirstPass,
    /// The local time comes twice: this is the second.
    SecondPass,
}

impl fmt::Display for ClockNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockNote::AfterGap => "the clock skips the time: first instant after the gap",
            ClockNote::FirstPass => "the clock shows it twice: first pass",
            ClockNote::SecondPass => "the clock shows it twice: second pass",
        })
    }
}

impl Zone {
    /// The zone of exactly this name, as in `Europe/Rome`. `Local` is none, nor is `europe/rome`, though the error
    /// then says the right spelling: whether a task runs must not depend on which file system holds the zone data.
    ///
    /// What it was first found to be it is for as long as the process lives: its answers must not change in the middle
    /// of a plan, and at the next start the version of the [zone data](crate::zone_data) tells that they did.
    ///
    /// # Errors
    /// [`Error::InvalidTask`](crate::Error::InvalidTask), which says what would do, or which file is damaged.
    pub fn named(name: &str) -> Result<Self> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = loaded.get(name) {
            return Ok(zone.clone());
        }
        let zone = Zone { name: name.into(), offsets: Arc::new(zone_data().offsets(name)?) };
        loaded.insert(zone.name.clone(), zone.clone());
        Ok(zone)
    }

    /// Its IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Seconds east of UTC at an instant: -18000 in New York in winter.
    pub(crate) fn offset_at(&self, at: Timestamp) -> i32 {
        self.offsets.at(at)
    }

    /// What a clock there shows; none only where the calendar ends.
    pub fn local_at(&self, at: Timestamp) -> Option<NaiveDateTime> {
        let shifted = at.as_millis().checked_add(1000 * i64::from(self.offset_at(at)))?;
        Some(DateTime::from_timestamp_millis(shifted)?.naive_utc())
    }

    /// An instant as people there write it, with the offset: `2027-03-14T03:00:00-04:00`.
    pub fn text_at(&self, at: Timestamp) -> String {
        match (at.to_datetime(), FixedOffset::east_opt(self.offset_at(at))) {
            (Some(at), Some(offset)) => at.with_timezone(&offset).to_rfc3339_opts(SecondsFormat::AutoSi, false),
            _ => at.to_string(),
        }
    }

    /// The first change of the offset in `(after, until]`, as the first instant with the new one.
    pub(crate) fn next_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.offsets.next_change(after, until)
    }

    /// The last change of the offset in `(after, until]`, as the first instant with the new one.
    pub(crate) fn last_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.offsets.last_change(after, until)
    }

    /// The furthest local time that a clock there has shown by now: what it shows, but for a while after it was set
    /// back, when it was further before.
    pub(crate) fn furthest_shown(&self, by: Timestamp) -> Option<NaiveDateTime> {
        let mut furthest = self.local_at(by)?;
        let mut from = by.minus(SWING);
        while let Some(change) = self.next_change(from, by) {
            furthest = furthest.max(self.local_at(change.minus(SECOND))?);
            from = change;
        }
        Some(furthest)
    }

    /// Whether a clock there shows the same time twice, and which of the two an instant is.
    pub(crate) fn pass(&self, at: Timestamp) -> Option<ClockNote> {
        let local = self.local_at(at)?;
        if self.first_showing(local) < at {
            return Some(ClockNote::SecondPass);
        }
        let again = self.next_change(at, at.plus(SWING)).and_then(|change| self.local_at(change))?;
        (again <= local).then_some(ClockNote::FirstPass)
    }

    /// The first instant at which a clock there shows `local` or more. Of a repeated local time that is the first
    /// pass, of a skipped one the first instant after the gap.
    pub(crate) fn first_showing(&self, local: NaiveDateTime) -> Timestamp {
        let in_utc = Timestamp::from(local.and_utc());
        let mut from = in_utc.minus(LARGEST_OFFSET);
        loop {
            let east = 1000 * i64::from(self.offset_at(from));
            let here = Timestamp::from_millis(in_utc.as_millis() - east).max(from);
            match self.next_change(from, here) {
                Some(change) => from = change,
                None => return here,
            }
        }
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

/// By name: a table of two thousand years helps nobody.
impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

#[cfg(test)]
impl Zone {
    /// A zone by the built-in rules, whatever the machine has.
    pub(crate) fn built_in(name: &str) -> Zone {
        let data = data::ZoneData::built_in();
        Zone { name: name.into(), offsets: Arc::new(data.offsets(name).expect(name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::Zone;
    use crate::clock::Timestamp;
    use std::sync::Arc;
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_is_exact_and_a_near_miss_gets_a_hint() {
        assert_eq!(Zone::named("America/New_York").unwrap().name(), "America/New_York");
        assert_eq!(Zone::named("UTC").unwrap().name(), "UTC");
        for (name, hint) in [
            ("america/new_york", "expected an exact IANA name (did you mean America/New_York?)"),
            ("America/New York", "did you mean America/New_York?"),
            ("utc", "did you mean UTC?"),
            ("../../etc/passwd", "expected an IANA name"),
            ("/usr/share/zoneinfo/UTC", "expected an IANA name"),
            ("", "expected an IANA name"),
            ("Local", "expected an IANA name"),
            ("Europe/Rome\0", "expected an IANA name"),
            (&"Europe/Rome".repeat(1000), "expected an IANA name"),
        ] {
            let error = Zone::named(name).unwrap_err().to_string();
            assert!(error.starts_with("invalid time_zone") && error.contains(hint), "{name}: {error}");
            assert!(error.len() < 200, "{error}");
        }
    }

    #[test]
    fn a_zone_is_read_once() {
        let [one, other] = [Zone::named("Europe/Rome"), Zone::named("Europe/Rome")].map(Result::unwrap);
        assert!(Arc::ptr_eq(&one.offsets, &other.offsets));
        assert_eq!(format!("{one:?}"), "Europe/Rome");
    }

    #[test]
    fn changes_are_found_from_both_sides() {
        let rome = Zone::named("Europe/Rome").unwrap();
        let spring = at("2027-03-28T01:00:00Z");
        let autumn = at("2027-10-31T01:00:00Z");
        let (new_year, year_end) = (at("2027-01-01T00:00:00Z"), at("2027-12-31T00:00:00Z"));
        assert_eq!(rome.next_change(new_year, year_end), Some(spring));
        assert_eq!(rome.last_change(new_year, year_end), Some(autumn));
        // The interval is open below and closed above.
        assert_eq!(rome.next_change(new_year, spring), Some(spring));
        assert_eq!(rome.next_change(spring, autumn.minus(Duration::from_millis(1))), None);
        assert_eq!(rome.last_change(spring, spring), None);
        assert_eq!((rome.offset_at(spring.minus(Duration::from_millis(1))), rome.offset_at(spring)), (3600, 7200));
    }

    #[test]
    fn a_local_time_has_one_first_showing() {
        let new_york = Zone::named("America/New_York").unwrap();
        for (local, first) in [
            ("2027-03-14T01:59:59", "2027-03-14T06:59:59Z"),
            ("2027-03-14T02:30:00", "2027-03-14T07:00:00Z"),
            ("2027-03-14T03:00:00", "2027-03-14T07:00:00Z"),
            ("2027-11-07T01:30:00", "2027-11-07T05:30:00Z"),
            ("2027-11-07T02:00:00", "2027-11-07T07:00:00Z"),
        ] {
            assert_eq!(new_york.first_showing(local.parse().unwrap()), at(first), "{local}");
        }
    }

    #[test]
    fn what_was_shown_is_not_forgotten_when_the_clock_is_set_back() {
        let new_york = Zone::named("America/New_York").unwrap();
        for (by, furthest) in [
            ("2027-11-07T05:59:59Z", "2027-11-07T01:59:59"),
            ("2027-11-07T06:30:00Z", "2027-11-07T01:59:59"),
            ("2027-11-07T07:00:00Z", "2027-11-07T02:00:00"),
            ("2027-03-14T07:00:00Z", "2027-03-14T03:00:00"),
        ] {
            assert_eq!(new_york.furthest_shown(at(by)), Some(furthest.parse().unwrap()), "{by}");
        }
    }

    #[test]
    fn the_end_of_time_is_survived() {
        let apia = Zone::named("Pacific/Apia").unwrap();
        for extreme in [i64::MIN, i64::MAX] {
            assert_eq!(apia.local_at(Timestamp::from_millis(extreme)), None);
        }
    }
}
