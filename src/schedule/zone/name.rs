//! The name of a zone, in the forms in which a task takes it.

use crate::schedule::zone::Zone;

/// The name of a time zone, as [`NewTask::time_zone`](crate::NewTask::time_zone) takes it: a text, a [`Zone`], or a
/// `chrono_tz::Tz`, with the feature `chrono-tz`, which is on by default. Only the name of that counts: the rules are
/// those of duly's own [zone data](crate::zone_data), which is newer.
///
/// ```
/// # #[cfg(feature = "chrono-tz")] {
/// use duly::NewTask;
/// let digest = NewTask::cron("digest", "0 7 * * *").time_zone(chrono_tz::America::Vancouver).handler("digest");
/// // British Columbia stays on summer time since 2026, which chrono-tz 0.10.4 does not know.
/// let noon = "2027-12-10T12:00:00Z".parse()?;
/// assert_eq!(digest.upcoming(noon, 1)?[0].local, "2027-12-10T07:00:00-07:00");
/// # }
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneName(String);

impl From<&str> for ZoneName {
    fn from(name: &str) -> Self {
        ZoneName(name.to_owned())
    }
}

impl From<String> for ZoneName {
    fn from(name: String) -> Self {
        ZoneName(name)
    }
}

impl From<&String> for ZoneName {
    fn from(name: &String) -> Self {
        ZoneName(name.clone())
    }
}

impl From<&Zone> for ZoneName {
    fn from(zone: &Zone) -> Self {
        ZoneName(zone.name().to_owned())
    }
}

#[cfg(feature = "chrono-tz")]
impl From<chrono_tz::Tz> for ZoneName {
    fn from(zone: chrono_tz::Tz) -> Self {
        ZoneName(zone.name().to_owned())
    }
}

impl From<ZoneName> for String {
    fn from(name: ZoneName) -> Self {
        name.0
    }
}

/// The zone of the same name. An error only if the zone data of this process lacks it, or its file cannot be read.
#[cfg(feature = "chrono-tz")]
impl TryFrom<chrono_tz::Tz> for Zone {
    type Error = crate::error::Error;

    fn try_from(zone: chrono_tz::Tz) -> Result<Self, Self::Error> {
        Zone::named(zone.name())
    }
}
