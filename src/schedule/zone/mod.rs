//! A time zone, reduced to one function: its offset at an instant.
//!
//! From it follow the local time at an instant, the changes of the clock, and the first instant of a given local time.
//! No other module uses zone data, and this one knows no schedule.

#[cfg(test)]
mod agreement;
pub(crate) mod data;
pub(crate) mod fixed;
pub(crate) mod name;
mod offsets;
pub(crate) mod trust;
mod tzif;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, FixedOffset, NaiveDateTime, SecondsFormat};
use serde::{Serialize, Serializer};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::schedule::zone::data::zone_data;
use crate::schedule::zone::offsets::{LARGEST, Offsets};

/// The largest possible difference between two local clocks, since no offset is larger than a day, east or west.
pub(crate) const SWING: Duration = LARGEST_OFFSET.saturating_mul(2);

const LARGEST_OFFSET: Duration = Duration::from_secs(LARGEST as u64);

const SECOND: Duration = Duration::from_secs(1);

/// A time zone of the IANA database. Cheap to clone; zones with the same name are equal.
///
/// ```
/// let error = duly::Zone::named("Europe/paris").unwrap_err();
/// assert!(error.to_string().contains("did you mean Europe/Paris?"));
/// ```
#[derive(Clone)]
pub struct Zone {
    name: Arc<str>,
    offsets: Arc<Offsets>,
    /// A digest of the offsets.
    rules: u64,
}

/// A cache of zones, so that each file is read once. Its size is bounded by the number of zone names.
static LOADED: Mutex<BTreeMap<Arc<str>, Zone>> = Mutex::new(BTreeMap::new());

/// How a change of the clock affects an instant.
///
/// ```
/// use duly::{ClockNote, NewTask};
/// // 02:30 occurs twice in this night. A line for one time of day runs in the first pass.
/// let nightly = NewTask::cron("nightly", "30 2 * * *").time_zone("Europe/Rome").handler("work");
/// let upcoming = nightly.upcoming("2027-10-30T23:00:00Z".parse()?, 2)?;
/// assert_eq!((upcoming[0].note, upcoming[1].note), (Some(ClockNote::FirstPass), None));
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockNote {
    /// The intended local time is in a gap: this is the first instant after it.
    AfterGap,
    /// The local time occurs twice: this is the first pass.
    FirstPass,
    /// The local time occurs twice: this is the second pass.
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

/// As `Display`.
impl Serialize for ClockNote {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Zone {
    /// Returns the zone with exactly this name, such as `Europe/Rome`. `Local` and `europe/rome` are refused, the
    /// latter with the correct spelling: whether a task runs must not depend on the file system that holds the zone
    /// data.
    ///
    /// A zone is loaded once per process and then unchanged: it must not change during a plan. After a restart, the
    /// version of the [zone data](crate::zone_data) shows whether it has changed.
    ///
    /// [`Error::InvalidTask`](crate::Error::InvalidTask), which says what is expected, or which file is damaged.
    pub fn named(name: &str) -> Result<Self> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = loaded.get(name) {
            return Ok(zone.clone());
        }
        let zone = Zone::new(name, zone_data().offsets(name)?);
        loaded.insert(zone.name.clone(), zone.clone());
        Ok(zone)
    }

    fn new(name: &str, offsets: Offsets) -> Self {
        Zone { name: name.into(), rules: offsets.digest(), offsets: Arc::new(offsets) }
    }

    /// Returns the zone that a zone file such as `/etc/localtime` defines, with the path as its name; `None` if there is no
    /// file. The error is a reason.
    pub(crate) fn of_file(path: &Path) -> Result<Option<Self>, String> {
        let offsets = data::offsets_of_path(path)?;
        Ok(offsets.map(|offsets| Zone::new(&path.display().to_string(), offsets)))
    }

    /// Returns the zone of this name by the built-in rules, whatever files there are.
    pub(crate) fn built_in_if_any(name: &str) -> Option<Self> {
        let offsets = tzif::parse(data::built_in(name)?).ok()?;
        Some(Zone::new(name, offsets))
    }

    /// Returns the first instant in `[from, until]` at which two zones have different offsets.
    pub(crate) fn first_difference(&self, other: &Zone, from: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.offsets.first_difference(&other.offsets, from, until)
    }

    /// Returns its IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offset at an instant in seconds east of UTC: -18000 in New York in winter.
    pub(crate) fn offset_at(&self, at: Timestamp) -> i32 {
        self.offsets.at(at)
    }

    /// Returns the local time at an instant; `None` only at the end of the calendar.
    pub fn local_at(&self, at: Timestamp) -> Option<NaiveDateTime> {
        let shifted = at.as_millis().checked_add(1000 * i64::from(self.offset_at(at)))?;
        Some(DateTime::from_timestamp_millis(shifted)?.naive_utc())
    }

    /// Formats an instant as a local time with the offset: `2027-03-14T03:00:00-04:00`.
    ///
    /// ```
    /// let rome = duly::Zone::named("Europe/Rome")?;
    /// assert_eq!(rome.text_at("2027-03-28T01:00:00Z".parse()?), "2027-03-28T03:00:00+02:00", "02:00 is skipped");
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn text_at(&self, at: Timestamp) -> String {
        match (at.to_datetime(), FixedOffset::east_opt(self.offset_at(at))) {
            (Some(at), Some(offset)) => at.with_timezone(&offset).to_rfc3339_opts(SecondsFormat::AutoSi, false),
            _ => at.to_string(),
        }
    }

    /// Returns the first change of the offset in `(after, until]`, as the first instant with the new offset.
    pub(crate) fn next_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.offsets.next_change(after, until)
    }

    /// Returns the last change of the offset in `(after, until]`, as the first instant with the new offset.
    pub(crate) fn last_change(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.offsets.last_change(after, until)
    }

    /// Returns the latest local time that a clock in the zone has shown by an instant: the current local time, except
    /// after the clock was set back.
    pub(crate) fn furthest_shown(&self, by: Timestamp) -> Option<NaiveDateTime> {
        let mut furthest = self.local_at(by)?;
        let mut from = by.minus(SWING);
        while let Some(change) = self.next_change(from, by) {
            furthest = furthest.max(self.local_at(change.minus(SECOND))?);
            from = change;
        }
        Some(furthest)
    }

    /// Returns whether the local time of an instant occurs twice, and which pass the instant is.
    pub(crate) fn pass(&self, at: Timestamp) -> Option<ClockNote> {
        let local = self.local_at(at)?;
        if self.first_showing(local) < at {
            return Some(ClockNote::SecondPass);
        }
        let again = self.next_change(at, at.plus(SWING)).and_then(|change| self.local_at(change))?;
        (again <= local).then_some(ClockNote::FirstPass)
    }

    /// Returns the first instant at which a clock in the zone shows `local` or a later time. For a repeated local time
    /// that is the first pass, for a skipped one the first instant after the gap.
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

/// Returns a digest of the rules by which this process plans local times in a zone; `None`: it needs no zone data, or its rules are unknown.
pub(crate) fn rules_of(name: &str) -> Option<String> {
    let zone = if fixed::is_fixed(name) { None } else { Zone::named(name).ok() };
    zone.map(|zone| format!("{:016x}", zone.rules))
}

/// Shows the name only: the table of offsets is long.
impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

#[cfg(test)]
impl Zone {
    /// Returns a zone by the built-in rules, independent of the files of the machine.
    pub(crate) fn built_in(name: &str) -> Zone {
        Zone::built_in_if_any(name).expect(name)
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
    fn a_name_must_be_exact_and_a_similar_name_is_suggested() {
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
    fn changes_are_found_in_both_directions() {
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
    fn the_latest_shown_time_survives_a_clock_that_is_set_back() {
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
    fn extreme_instants_have_no_local_time() {
        let apia = Zone::named("Pacific/Apia").unwrap();
        for extreme in [i64::MIN, i64::MAX] {
            assert_eq!(apia.local_at(Timestamp::from_millis(extreme)), None);
        }
    }
}
