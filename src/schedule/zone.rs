//! A time zone as one question: its offset at an instant.
//!
//! From that question alone follows what a clock on the wall there shows, when it was changed, and when it first shows
//! a given local time. Nothing else in the house knows zone data, and this room knows no schedule.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, FixedOffset, NaiveDateTime, Offset, SecondsFormat, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::clock::Timestamp;
use crate::error::{Error, Result};

/// Two local clocks never differ by more, for no offset is larger than a day, east or west.
pub(crate) const SWING: Duration = Duration::from_secs(2 * 24 * 3600);

/// No offset is larger, east or west. Since 1970 they lie between -12 h and +14 h; formats and libraries end here.
const LARGEST_OFFSET: Duration = Duration::from_secs(24 * 3600);

/// Two probes this far apart that see the same offset have no change between them.
///
/// A pair of changes that cancel out would hide between probes, so this must be shorter than the shortest pair. Over
/// all zones since 1970, in chrono-tz and in Debian's zoneinfo alike, that is 167 hours: Recife, Noronha and Boa Vista
/// in October 2000, and Gaza's Ramadans from 2040 on. A third of it leaves room for data not yet written.
const PROBE: Duration = Duration::from_secs(2 * 24 * 3600);

/// IANA names have at most 32 bytes; a longer text is not looked up.
const LONGEST_NAME: usize = 64;

const SECOND: Duration = Duration::from_secs(1);

/// A time zone of the IANA database. Cheap to clone.
///
/// ```
/// let error = duly::Zone::named("Europe/paris").unwrap_err();
/// assert_eq!(error.to_string(), r#"invalid time_zone: expected Europe/Paris (spelt exactly so), found "Europe/paris""#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    tz: Tz,
}

impl Zone {
    /// The zone of exactly this name, as in `Europe/Rome`. `Local` is none, nor is `europe/rome`, though the error
    /// then says the right spelling: whether a task runs must not depend on which file system holds the zone data.
    ///
    /// # Errors
    /// [`Error::InvalidTask`], which says what would do.
    pub fn named(name: &str) -> Result<Self> {
        let unknown = |expected: &str| Error::invalid_task("time_zone", name, expected);
        if name.len() > LONGEST_NAME {
            return Err(unknown("an IANA name such as Europe/Rome or UTC"));
        }
        Tz::from_str(name).map(|tz| Zone { tz }).map_err(|_| match similar(name) {
            Some(right) => unknown(&format!("{right} (spelt exactly so)")),
            None => unknown("an IANA name such as Europe/Rome or UTC"),
        })
    }

    /// Its IANA name.
    pub fn name(&self) -> &str {
        self.tz.name()
    }

    /// Seconds east of UTC at an instant: -18000 in New York in winter.
    pub(crate) fn offset_at(&self, at: Timestamp) -> i32 {
        let Some(at) = at.to_datetime() else { return 0 };
        self.tz.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
    }

    /// What a clock there shows; none only where the calendar ends.
    pub fn local_at(&self, at: Timestamp) -> Option<NaiveDateTime> {
        let shifted = at.as_millis().checked_add(1000 * i64::from(self.offset_at(at)))?;
        Some(DateTime::from_timestamp_millis(shifted)?.naive_utc())
    }

    /// An instant as people there write it, with the offset: `2027-03-14T03:00:00-04:00`.
    pub(crate) fn text_at(&self, at: Timestamp) -> String {
        match (at.to_datetime(), FixedOffset::east_opt(self.offset_at(at))) {
            (Some(at), Some(offset)) => at.with_timezone(&offset).to_rfc3339_opts(SecondsFormat::AutoSi, false),
            _ => at.to_string(),
        }
    }

    /// The first change of the offset in `(after, until]`, as the first instant with the new one.
    pub(crate) fn next_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut from = after;
        while from < until {
            let to = from.plus(PROBE).min(until);
            if self.offset_at(from) != self.offset_at(to) {
                return Some(self.change_between(from, to));
            }
            from = to;
        }
        None
    }

    /// The last change of the offset in `(after, until]`, as the first instant with the new one.
    pub(crate) fn last_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut to = until;
        while after < to {
            let from = to.minus(PROBE).max(after);
            if self.offset_at(from) != self.offset_at(to) {
                return Some(self.change_between(from, to));
            }
            to = from;
        }
        None
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

    /// Bisects to the one change in `(from, to]`, whose offsets differ.
    fn change_between(&self, from: Timestamp, to: Timestamp) -> Timestamp {
        let before = self.offset_at(from);
        let (mut from, mut to) = (from.as_millis(), to.as_millis());
        while to - from > 1 {
            let middle = from + (to - from) / 2;
            if self.offset_at(Timestamp::from_millis(middle)) == before {
                from = middle;
            } else {
                to = middle;
            }
        }
        Timestamp::from_millis(to)
    }
}

/// The name that was probably meant: in another case, or with a blank for the underscore.
fn similar(name: &str) -> Option<&'static str> {
    let name = name.trim().replace(' ', "_");
    TZ_VARIANTS.iter().map(|tz| tz.name()).find(|known| known.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::{PROBE, Zone};
    use crate::clock::Timestamp;
    use chrono_tz::TZ_VARIANTS;
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_is_exact_and_a_near_miss_gets_a_hint() {
        assert_eq!(Zone::named("America/New_York").unwrap().name(), "America/New_York");
        assert_eq!(Zone::named("UTC").unwrap().name(), "UTC");
        for (name, hint) in [
            ("america/new_york", "expected America/New_York"),
            ("America/New York", "expected America/New_York"),
            ("utc", "expected UTC"),
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
            assert_eq!(apia.offset_at(Timestamp::from_millis(extreme)), 0);
            assert_eq!(apia.local_at(Timestamp::from_millis(extreme)), None);
        }
    }

    #[test]
    fn no_two_changes_hide_between_probes() {
        for name in ["America/Recife", "Asia/Gaza", "Africa/El_Aaiun", "Antarctica/Casey", "America/Scoresbysund"] {
            hides_nothing(&Zone::named(name).unwrap());
        }
    }

    #[test]
    #[ignore = "half a minute in a release build"]
    fn no_two_changes_hide_between_probes_in_any_zone() {
        TZ_VARIANTS.iter().for_each(|tz| hides_nothing(&Zone { tz: *tz }));
    }

    /// Holds what this room assumes about zone data against a zone: eight looks to a probe see what one may miss.
    fn hides_nothing(zone: &Zone) {
        let mut last = None;
        let mut from = Timestamp::from_millis(0);
        while from < at("2101-01-01T00:00:00Z") {
            let to = from.plus(PROBE / 8);
            assert!(zone.offset_at(to).unsigned_abs() <= 24 * 3600, "{} at {to}", zone.name());
            if zone.offset_at(from) != zone.offset_at(to) {
                let change = zone.change_between(from, to);
                assert!(last.is_none_or(|last| change.since(last) > 2 * PROBE), "{} at {change}", zone.name());
                last = Some(change);
            }
            from = to;
        }
    }
}
