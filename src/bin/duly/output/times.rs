//! Times as text: local time, and distance from now.

use std::time::Duration;

use duly::{Timestamp, Zone};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY + DAY / 4;

/// The current time, and the zone in which times are printed.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) now: Timestamp,
    pub(crate) zone: Zone,
}

impl Times {
    /// Local time: `2027-03-14 12:00`, with seconds unless they are 0.
    pub(crate) fn local(&self, at: Timestamp) -> String {
        local_in(&self.zone, at)
    }

    /// Distance from now: `in 4 min`, `2 h ago`, `now`.
    pub(crate) fn relative(&self, at: Timestamp) -> String {
        let (ahead, behind) = (at.since(self.now), self.now.since(at));
        match (distance(ahead), distance(behind)) {
            (Some(ahead), _) => format!("in {ahead}"),
            (None, Some(behind)) => format!("{behind} ago"),
            (None, None) => "now".to_owned(),
        }
    }

    /// Local time and distance: `2027-03-14 12:00 (in 4 min)`.
    pub(crate) fn both(&self, at: Timestamp) -> String {
        format!("{} ({})", self.local(at), self.relative(at))
    }

    /// The time in another zone, if it differs from the local time: `2027-03-14 07:00 in America/New_York`.
    pub(crate) fn elsewhere(&self, zone: &Zone, at: Timestamp) -> Option<String> {
        (zone.local_at(at) != self.zone.local_at(at)).then(|| format!("{} in {}", local_in(zone, at), zone.name()))
    }
}

fn local_in(zone: &Zone, at: Timestamp) -> String {
    let whole_minute = at.as_millis().rem_euclid(60_000) == 0;
    let form = if whole_minute { "%Y-%m-%d %H:%M" } else { "%Y-%m-%d %H:%M:%S" };
    zone.local_at(at).map_or_else(|| at.to_string(), |local| local.format(form).to_string())
}

/// A distance in one unit; hours up to two days, days up to two years. `None`: less than a second.
fn distance(length: Duration) -> Option<String> {
    let seconds = length.as_secs();
    Some(match seconds {
        0 => return None,
        1..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => format!("{} min", seconds / MINUTE),
        _ if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        _ if seconds < 2 * YEAR => format!("{} days", seconds / DAY),
        _ => format!("{} years", seconds / YEAR),
    })
}

#[cfg(test)]
mod tests {
    use super::Times;
    use duly::{Timestamp, Zone};
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn rome() -> Times {
        Times { now: at("2027-03-14T12:00:00Z"), zone: Zone::named("Europe/Rome").unwrap() }
    }

    #[test]
    fn distances_have_one_unit() {
        let times = rome();
        for (seconds, ahead, behind) in [
            (0, "now", "now"),
            (1, "in 1 s", "1 s ago"),
            (59, "in 59 s", "59 s ago"),
            (60, "in 1 min", "1 min ago"),
            (299, "in 4 min", "4 min ago"),
            (3_600, "in 1 h", "1 h ago"),
            (172_799, "in 47 h", "47 h ago"),
            (172_800, "in 2 days", "2 days ago"),
            (63_115_199, "in 730 days", "730 days ago"),
            (63_115_200, "in 2 years", "2 years ago"),
            (31_557_600_000, "in 1000 years", "1000 years ago"),
        ] {
            let length = Duration::from_secs(seconds);
            assert_eq!(times.relative(times.now.plus(length)), ahead);
            assert_eq!(times.relative(times.now.minus(length)), behind);
        }
        assert_eq!(times.relative(times.now.plus(Duration::from_millis(999))), "now");
        // Any value in the file can be printed.
        for extreme in [i64::MIN, i64::MAX] {
            assert!(times.both(Timestamp::from_millis(extreme)).contains("years"));
        }
    }

    #[test]
    fn times_are_local_and_in_the_zone_of_the_task_where_they_differ() {
        let times = rome();
        assert_eq!(times.both(at("2027-03-14T12:04:00Z")), "2027-03-14 13:04 (in 4 min)");
        assert_eq!(times.local(at("2027-07-14T12:00:07Z")), "2027-07-14 14:00:07");
        let (new_york, berlin) = (Zone::named("America/New_York").unwrap(), Zone::named("Europe/Berlin").unwrap());
        let noon = at("2027-03-14T12:00:00Z");
        assert_eq!(times.elsewhere(&new_york, noon).as_deref(), Some("2027-03-14 08:00 in America/New_York"));
        assert_eq!(times.elsewhere(&berlin, noon), None, "the same local time");
    }
}
