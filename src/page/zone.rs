//! The time zone in which the pages show times: that of the machine.

use std::sync::OnceLock;

use crate::error::Result;
use crate::schedule::Zone;

/// Returns the zone that `$TZ` names, else that of the system, else UTC.
///
/// # Errors
/// If the zone data of this machine has none of them.
pub(super) fn local() -> Result<Zone> {
    static LOCAL: OnceLock<Option<Zone>> = OnceLock::new();
    let local = LOCAL.get_or_init(|| {
        let variable = std::env::var("TZ").ok();
        let variable = variable.as_deref().map(|value| value.trim_start_matches(':'));
        let variable = variable.map(|value| value.rsplit_once("zoneinfo/").map_or(value, |(_, name)| name));
        let named = variable.and_then(|name| Zone::named(name).ok());
        named.or_else(|| Zone::named(&iana_time_zone::get_timezone().ok()?).ok())
    });
    local.clone().map_or_else(|| Zone::named("UTC"), Ok)
}
