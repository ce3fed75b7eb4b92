//! Times as text: local time, and distance from now.

use crate::clock::Timestamp;
use crate::schedule::Zone;
use crate::text::units::{Parts, distance};
use chrono::{Datelike, NaiveDateTime};

/// The current time, and the zone in which times are printed.
#[derive(Clone, Debug)]
pub struct Times {
    /// The current time.
    pub now: Timestamp,
    /// The zone.
    pub zone: Zone,
}

impl Times {
    /// Local time: `2027-03-14 12:00`, with seconds unless they are 0; with the offset where the clock shows it twice: `2027-11-07 01:30 -05:00`.
    pub fn local(&self, at: Timestamp) -> String {
        local_in(&self.zone, at)
    }

    /// Local time, as short as it is clear: `13:00` today, `Mar 14 12:00` this year, else with the year.
    pub fn brief(&self, at: Timestamp) -> String {
        let (Some(local), Some(now)) = (self.zone.local_at(at), self.zone.local_at(self.now)) else {
            return self.local(at);
        };
        let is_today = local.date() == now.date();
        let form = match at.as_millis().rem_euclid(60_000) {
            0 if is_today => "%H:%M",
            _ if is_today => "%H:%M:%S",
            _ if local.year() == now.year() => "%b %d %H:%M",
            _ => "%Y-%m-%d %H:%M",
        };
        with_offset(&self.zone, at, local.format(form).to_string())
    }

    /// Distance from now: `in 8s`, `in 1h 30m`, `2d 4h ago`, `now`.
    pub fn relative(&self, at: Timestamp) -> String {
        self.distance_to(at, Parts::Two)
    }

    /// Distance from now in one unit: `in 1h`, `2d ago`.
    pub fn roughly(&self, at: Timestamp) -> String {
        self.distance_to(at, Parts::One)
    }

    fn distance_to(&self, at: Timestamp, parts: Parts) -> String {
        let (ahead, behind) = (at.since(self.now), self.now.since(at));
        match (distance(ahead, parts), distance(behind, parts)) {
            (Some(ahead), _) => format!("in {ahead}"),
            (None, Some(behind)) => format!("{behind} ago"),
            (None, None) => "now".to_owned(),
        }
    }

    /// Local time and its zone: `2027-03-14 12:00 Europe/Rome`.
    pub fn zoned(&self, at: Timestamp) -> String {
        format!("{} {}", self.local(at), self.zone_name())
    }

    /// The name of the zone.
    pub fn zone_name(&self) -> &str {
        shown_zone(self.zone.name())
    }

    /// Local time with its zone, and distance: `2027-03-14 12:00 Europe/Rome (in 4m)`.
    pub fn both(&self, at: Timestamp) -> String {
        format!("{} ({})", self.zoned(at), self.relative(at))
    }

    /// The same with a short time: `12:00 (in 4m)`.
    pub fn brief_both(&self, at: Timestamp) -> String {
        format!("{} ({})", self.brief(at), self.relative(at))
    }

    /// The time in another zone, if it differs from the local time: `2027-03-14 07:00 in America/New_York`.
    pub fn elsewhere(&self, zone: &Zone, at: Timestamp) -> Option<String> {
        (zone.local_at(at) != self.zone.local_at(at))
            .then(|| format!("{} in {}", local_in(zone, at), shown_zone(zone.name())))
    }
}

/// The name of a zone as it is shown: the two names of UTC look alike.
pub fn shown_zone(name: &str) -> &str {
    if name == "Etc/UTC" { "UTC" } else { name }
}

fn local_in(zone: &Zone, at: Timestamp) -> String {
    let whole_minute = at.as_millis().rem_euclid(60_000) == 0;
    let form = if whole_minute { "%Y-%m-%d %H:%M" } else { "%Y-%m-%d %H:%M:%S" };
    let text = |local: NaiveDateTime| with_offset(zone, at, local.format(form).to_string());
    zone.local_at(at).map_or_else(|| at.to_string(), text)
}

/// Adds the offset to a local time that occurs twice.
fn with_offset(zone: &Zone, at: Timestamp, local: String) -> String {
    if zone.pass(at).is_none() {
        return local;
    }
    let text = zone.text_at(at);
    format!("{local} {}", text.get(text.len().saturating_sub(6)..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::Times;
    use crate::clock::Timestamp;
    use crate::schedule::Zone;
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn rome() -> Times {
        Times { now: at("2027-03-14T12:00:00Z"), zone: Zone::named("Europe/Rome").unwrap() }
    }

    #[test]
    fn distances_have_a_direction() {
        let times = rome();
        for (seconds, ahead, behind, roughly) in [
            (0, "now", "now", "now"),
            (8, "in 8s", "8s ago", "in 8s"),
            (5_430, "in 1h 30m", "1h 30m ago", "in 1h"),
            (31_557_600_000, "in 1000y", "1000y ago", "in 1000y"),
        ] {
            let length = Duration::from_secs(seconds);
            assert_eq!(times.relative(times.now.plus(length)), ahead);
            assert_eq!(times.relative(times.now.minus(length)), behind);
            assert_eq!(times.roughly(times.now.plus(length)), roughly);
        }
        assert_eq!(times.relative(times.now.plus(Duration::from_millis(999))), "now");
        // Any value in the file can be printed.
        for extreme in [i64::MIN, i64::MAX] {
            assert!(times.both(Timestamp::from_millis(extreme)).contains('y'));
            assert!(times.brief_both(Timestamp::from_millis(extreme)).contains('y'));
        }
    }

    #[test]
    fn a_time_of_today_has_no_date_and_one_of_this_year_no_year() {
        // It is 13:00 in Rome.
        for (at_utc, brief) in [
            ("2027-03-14T12:04:00Z", "13:04"),
            ("2027-03-14T12:04:05Z", "13:04:05"),
            ("2027-03-13T23:00:00Z", "00:00"),
            ("2027-03-13T22:59:59Z", "Mar 13 23:59"),
            ("2027-03-14T23:00:00Z", "Mar 15 00:00"),
            ("2026-12-31T23:00:00Z", "Jan 01 00:00"),
            ("2026-12-31T22:59:00Z", "2026-12-31 23:59"),
            ("2027-12-31T23:00:00Z", "2028-01-01 00:00"),
        ] {
            assert_eq!(rome().brief(at(at_utc)), brief);
        }
        assert_eq!(rome().brief_both(at("2027-03-14T12:04:00Z")), "13:04 (in 4m)");
    }

    #[test]
    fn a_time_that_the_clock_shows_twice_has_its_offset() {
        let new_york = Times { now: at("2027-11-07T03:00:00Z"), zone: Zone::named("America/New_York").unwrap() };
        for (at_utc, local, brief) in [
            ("2027-11-07T04:59:00Z", "2027-11-07 00:59", "Nov 07 00:59"),
            ("2027-11-07T05:30:00Z", "2027-11-07 01:30 -04:00", "Nov 07 01:30 -04:00"),
            ("2027-11-07T06:30:07Z", "2027-11-07 01:30:07 -05:00", "Nov 07 01:30 -05:00"),
            ("2027-11-07T07:00:00Z", "2027-11-07 02:00", "Nov 07 02:00"),
        ] {
            assert_eq!((&*new_york.local(at(at_utc)), &*new_york.brief(at(at_utc))), (local, brief));
        }
    }

    #[test]
    fn times_are_local_and_in_the_zone_of_the_task_where_they_differ() {
        let times = rome();
        assert_eq!(times.both(at("2027-03-14T12:04:00Z")), "2027-03-14 13:04 Europe/Rome (in 4m)");
        let utc = Times { zone: Zone::named("Etc/UTC").unwrap(), ..rome() };
        assert_eq!(utc.zoned(at("2027-03-14T12:04:00Z")), "2027-03-14 12:04 UTC");
        assert_eq!(times.local(at("2027-07-14T12:00:07Z")), "2027-07-14 14:00:07");
        let (new_york, berlin) = (Zone::named("America/New_York").unwrap(), Zone::named("Europe/Berlin").unwrap());
        let noon = at("2027-03-14T12:00:00Z");
        assert_eq!(times.elsewhere(&new_york, noon).as_deref(), Some("2027-03-14 08:00 in America/New_York"));
        assert_eq!(times.elsewhere(&berlin, noon), None, "the same local time");
    }
}
