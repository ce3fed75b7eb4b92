//! Time zones and local times on the command line.

use duly::text::local_zone;
use duly::{Timestamp, Zone};

use crate::cli::failure::Failure;
use crate::cli::values::reason;

/// Parses the value of `--tz`: an IANA name, or `local`.
pub(crate) fn from_option(name: &str) -> Result<Zone, Failure> {
    if name == "local" {
        // The zone of the system would contradict the user's TZ.
        if let Some(value) = std::env::var("TZ").ok().filter(|value| local_zone::from_variable(value).is_none()) {
            let reason = "is not the name of a time zone; give the name, for example --tz America/New_York";
            return Err(Failure::Usage(format!("--tz local: TZ={value:?} {reason}")));
        }
        let refused = |what: &str| {
            let advice = "give its name, for example --tz Europe/Rome";
            Failure::Refused(format!("--tz local: the time zone of this machine is {what}; {advice}"))
        };
        return match local_zone::in_force(Timestamp::now()) {
            Ok(zone) => zone.ok_or_else(|| refused("unknown")),
            Err(reason) => Err(refused(&format!("not certain: {reason}"))),
        };
    }
    Ok(Zone::named(name)?)
}

/// Parses a date, as its midnight in `zone`, or an instant; a local time is read in `zone`.
pub(crate) fn day_or_instant(text: &str, zone: &Zone) -> Result<Timestamp, String> {
    let midnight = format!("{}T00:00", text.trim());
    let is_day = text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let at = zone.instant(&midnight);
    let at = at.or_else(|no_day| zone.instant(text).map_err(|no_instant| if is_day { no_day } else { no_instant }));
    at.map_err(|error| {
        let reason = reason(error);
        let or = if reason.starts_with("expected") { ", or a date" } else { "" };
        format!("{reason}{or}")
    })
}
