//! The time zone of the machine, and local times on the command line.

use duly::{Error, Timestamp, Zone};

use crate::cli::failure::Failure;
use crate::cli::values::reason;

/// Returns the zone that `$TZ` names, else the zone of the system; `None` if neither names one. A rule such as `CET-1CEST` is no name.
pub(crate) fn local() -> Option<Zone> {
    let value = std::env::var("TZ").ok();
    value.as_deref().and_then(from_variable).or_else(|| Zone::named(&iana_time_zone::get_timezone().ok()?).ok())
}

/// Parses the value of `--tz`: an IANA name, or `local`.
pub(crate) fn from_option(name: &str) -> Result<Zone, Failure> {
    if name == "local" {
        // The zone of the system would contradict the user's TZ.
        if let Some(value) = std::env::var("TZ").ok().filter(|value| from_variable(value).is_none()) {
            let reason = "is not the name of a time zone; give the name, for example --tz America/New_York";
            return Err(Failure::Refused(format!("--tz local: TZ={value:?} {reason}")));
        }
        let unknown =
            "--tz local: the time zone of this machine is unknown; give its name, for example --tz Europe/Rome";
        return local().ok_or_else(|| Failure::Refused(unknown.into()));
    }
    Zone::named(name).map_err(|error| match error {
        Error::InvalidTask { found, expected, .. } | Error::ZoneUnavailable { zone: found, expected } => {
            Failure::Refused(format!("invalid --tz: expected {expected}, found {found:?}"))
        }
        other => other.into(),
    })
}

/// Parses a date, as its midnight in `zone`, or an instant; a local time is read in `zone`.
pub(crate) fn day_or_instant(text: &str, zone: &Zone) -> Result<Timestamp, String> {
    let midnight = format!("{}T00:00", text.trim());
    zone.instant(&midnight).or_else(|_| zone.instant(text)).map_err(|error| {
        let reason = reason(error);
        let or = if reason.starts_with("expected") { ", or a date" } else { "" };
        format!("{reason}{or}")
    })
}

/// Returns the zone that a value of `$TZ` names, as the C library reads it.
pub(crate) fn from_variable(value: &str) -> Option<Zone> {
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
