//! The time zone in which times are shown to people: that of the machine.

use crate::error::Result;
use crate::schedule::Zone;

/// Returns the zone that `$TZ` names, else the zone of the system; `None` if neither names one. A rule such as `CET-1CEST` is no name.
pub fn of_machine() -> Option<Zone> {
    let value = std::env::var("TZ").ok();
    value.as_deref().and_then(from_variable).or_else(|| Zone::named(&iana_time_zone::get_timezone().ok()?).ok())
}

/// As [`of_machine`], and UTC if there is none.
///
/// # Errors
/// If this machine has no zone data.
pub fn of_machine_or_utc() -> Result<Zone> {
    of_machine().map_or_else(|| Zone::named("UTC"), Ok)
}

/// Returns the zone that a value of `$TZ` names, as the C library reads it.
pub fn from_variable(value: &str) -> Option<Zone> {
    let value = value.strip_prefix(':').unwrap_or(value);
    let name = value.rsplit_once("zoneinfo/").map_or(value, |(_, name)| name);
    Zone::named(if name.is_empty() { "UTC" } else { name }).ok()
}

#[cfg(test)]
mod tests {
    use super::from_variable;

    #[test]
    fn a_value_of_tz_is_read_as_the_c_library_does() {
        for (value, zone) in [
            ("Europe/Rome", Some("Europe/Rome")),
            (":Europe/Rome", Some("Europe/Rome")),
            ("/usr/share/zoneinfo/Asia/Tokyo", Some("Asia/Tokyo")),
            ("", Some("UTC")),
            ("CET-1CEST,M3.5.0,M10.5.0/3", None),
        ] {
            assert_eq!(from_variable(value).as_ref().map(|zone| zone.name()), zone, "{value}");
        }
    }
}
