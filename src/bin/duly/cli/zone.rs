//! The machine's time zone: the one in which people here read the time.

use duly::{Error, Timestamp, Zone};

use crate::cli::failure::Failure;
use crate::cli::values::reason;

/// The zone that `$TZ` names, else the system's; `None` if neither names one. A rule such as `CET-1CEST` is no name.
pub(crate) fn local() -> Option<Zone> {
    let told = std::env::var("TZ").ok();
    told.as_deref().and_then(named).or_else(|| Zone::named(&iana_time_zone::get_timezone().ok()?).ok())
}

/// The zone of `--tz`: an IANA name, or `local`.
pub(crate) fn typed(name: &str) -> Result<Zone, Failure> {
    if name == "local" {
        // What the machine would say otherwise is not where the user reads the time.
        if let Some(told) = std::env::var("TZ").ok().filter(|told| named(told).is_none()) {
            let reason = "names no zone that could be stored; name one, as in --tz America/New_York";
            return Err(Failure::Refused(format!("--tz local: TZ={told:?} {reason}")));
        }
        let nameless = "--tz local: this machine does not say its zone; name it, as in --tz Europe/Rome";
        return local().ok_or_else(|| Failure::Refused(nameless.into()));
    }
    Zone::named(name).map_err(|error| match error {
        Error::InvalidTask { found, expected, .. } | Error::ZoneUnavailable { zone: found, expected } => {
            Failure::Refused(format!("invalid --tz: expected {expected}, found {found:?}"))
        }
        other => other.into(),
    })
}

/// A date, which begins at midnight in the zone, or an instant as the zone reads it.
pub(crate) fn day_or_instant(text: &str, zone: &Zone) -> Result<Timestamp, String> {
    let midnight = format!("{}T00:00", text.trim());
    zone.instant(&midnight).or_else(|_| zone.instant(text)).map_err(|error| {
        let reason = reason(error);
        let or = if reason.starts_with("expected") { ", or a date" } else { "" };
        format!("{reason}{or}")
    })
}

/// The zone that a value of `$TZ` names, as the C library reads it.
pub(crate) fn named(told: &str) -> Option<Zone> {
    let told = told.strip_prefix(':').unwrap_or(told);
    let name = told.rsplit_once("zoneinfo/").map_or(told, |(_, name)| name);
    Zone::named(if name.is_empty() { "UTC" } else { name }).ok()
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_value_of_tz_is_read_as_the_c_library_does() {
        for (told, zone) in [
            ("Europe/Rome", Some("Europe/Rome")),
            (":Europe/Rome", Some("Europe/Rome")),
            ("/usr/share/zoneinfo/Asia/Tokyo", Some("Asia/Tokyo")),
            ("", Some("UTC")),
            ("CET-1CEST,M3.5.0,M10.5.0/3", None),
        ] {
            assert_eq!(named(told).as_ref().map(|zone| zone.name()), zone, "{told}");
        }
    }
}
