//! The time zone of the machine: in which times are shown to people, and which `--tz local` means.

use std::path::Path;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::schedule::Zone;

/// The rules in force on a system that has this file.
const IN_FORCE: &str = "/etc/localtime";

/// Rules that agree in the year before and after now are the same to a schedule.
const AROUND: Duration = Duration::from_secs(366 * 24 * 3600);

/// Returns the zone that `$TZ` names, else the zone of the system; `None` if neither names one. A rule such as `CET-1CEST` is no name.
pub fn of_machine() -> Option<Zone> {
    let value = std::env::var("TZ").ok();
    value.as_deref().and_then(from_variable).or_else(of_system)
}

fn of_system() -> Option<Zone> {
    Zone::named(&iana_time_zone::get_timezone().ok()?).ok()
}

/// As [`of_machine`], if its rules are those in force: the name of the system may be that of another zone than
/// `/etc/localtime` has. `$TZ` is in force where it is set. The error is a reason.
pub fn in_force(now: Timestamp) -> std::result::Result<Option<Zone>, String> {
    if std::env::var_os("TZ").is_some() {
        return Ok(of_machine());
    }
    let Some(zone) = of_system() else { return Ok(None) };
    match contradiction(&zone, Path::new(IN_FORCE), now) {
        None => Ok(Some(zone)),
        Some(reason) => Err(reason),
    }
}

/// Returns how a zone file contradicts a zone around an instant, if it does. No file contradicts nothing.
fn contradiction(zone: &Zone, file: &Path, now: Timestamp) -> Option<String> {
    let name = zone.name();
    let in_force = match Zone::of_file(file) {
        Ok(in_force) => in_force?,
        Err(reason) => return Some(format!("its name is {name}, and {} cannot be read: {reason}", file.display())),
    };
    let now = Timestamp::from_millis(now.as_millis() / 1000 * 1000);
    let ahead = zone.first_difference(&in_force, now, now.plus(AROUND));
    let at = ahead.or_else(|| zone.first_difference(&in_force, now.minus(AROUND), now))?;
    let (named, found) = (zone.text_at(at), in_force.text_at(at));
    Some(format!("its name is {name}, and {} has other rules: {found} instead of {named}", in_force.name()))
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
    use super::{contradiction, from_variable};
    use crate::clock::Timestamp;
    use crate::schedule::Zone;
    use crate::schedule::zone_file;

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

    #[test]
    fn a_name_is_compared_with_the_rules_in_force() {
        let home = tempfile::tempdir().unwrap();
        let now: Timestamp = "2027-07-01T12:00:00Z".parse().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = home.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let (berlin, utc) = (Zone::named("Europe/Berlin").unwrap(), Zone::named("Etc/UTC").unwrap());
        let new_york = write("new_york", zone_file("America/New_York").unwrap());
        let copy = write("copy", zone_file("Europe/Berlin").unwrap());
        // The rules of Paris are the same since long before.
        let paris = write("paris", zone_file("Europe/Paris").unwrap());
        for same in [&copy, &paris, &home.path().join("none")] {
            assert_eq!(contradiction(&berlin, same, now), None, "{}", same.display());
        }
        let path = new_york.display();
        let says = |name, found, named| {
            Some(format!("its name is {name}, and {path} has other rules: {found} instead of {named}"))
        };
        let expected = says("Europe/Berlin", "2027-07-01T08:00:00-04:00", "2027-07-01T14:00:00+02:00");
        assert_eq!(contradiction(&berlin, &new_york, now), expected);
        // The link is named UTC, and another file is mounted where it leads to.
        assert!(contradiction(&utc, &copy, now).unwrap().starts_with("its name is Etc/UTC, and "));
        let damaged = write("damaged", b"TZif");
        let reason = contradiction(&berlin, &damaged, now).unwrap();
        assert!(
            reason.starts_with("its name is Europe/Berlin, and ") && reason.contains("damaged cannot be read: "),
            "{reason}"
        );
    }
}
