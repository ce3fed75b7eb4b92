//! A zone file (TZif, RFC 9636) as a table of offsets: the changes that it lists, and the rule of its last line written out.
//!
//! The crate tz-rs reads the format and checks it: it needs no other crate and panics at no input. Pure: bytes in.

use tz::timezone::TransitionRule;

use crate::schedule::zone::offsets::{FIRST, Offsets, yearly};

/// Reads the bytes of a zone file. What is wrong with them comes back as a reason.
pub(super) fn parse(bytes: &[u8]) -> Result<Offsets, String> {
    let zone = tz::TimeZone::from_tz_data(bytes).map_err(|error| error.to_string())?;
    let zone = zone.as_ref();
    // Those of `right/`: the clock of the machine, and with it all that is stored, does not count them.
    if !zone.leap_seconds().is_empty() {
        return Err("it counts leap seconds, which clocks do not".to_owned());
    }
    let told = zone
        .transitions()
        .iter()
        .map(|change| (change.unix_leap_time(), zone.local_time_types()[change.local_time_type_index()].ut_offset()));
    let told: Vec<_> = told.collect();
    let (last, newest) = told.last().copied().unwrap_or((FIRST, zone.local_time_types()[0].ut_offset()));
    // Asked for a time after its last change, a file without a rule has no answer: then that change holds on.
    let first = zone.find_local_time_type(FIRST).map_or(newest, |kind| kind.ut_offset());
    let forever = match zone.extra_rule() {
        Some(TransitionRule::Alternate(rule)) => yearly(rule, last.max(FIRST)),
        Some(TransitionRule::Fixed(_)) | None => Vec::new(),
    };
    Offsets::new(first, told.into_iter().filter(|(at, _)| *at > FIRST).chain(forever))
}

/// A zone file of version 2, as small as they come: one offset, and a last line.
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
    use chrono_tz::TZ_VARIANTS;
    use std::fs;
    use std::path::Path;

    /// Cut short, or with a byte changed: an answer or an error.
    #[test]
    fn a_damaged_file_is_refused_or_read_and_nothing_panics() {
        let rule = "EST5EDT,M3.2.0,M11.1.0";
        let mut whole = sample(-18_000, rule);
        assert_eq!(parse(&whole).unwrap().at(Timestamp::from_millis(1_800_000_000_000)), -18_000);
        for length in 0..whole.len() {
            // But for the whole of it with an empty last line: that is a zone without a rule.
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

    /// Every file of this machine says what the crate that parsed it says; those that count leap seconds are refused.
    #[test]
    fn the_files_of_this_machine_are_read_to_the_year_4000() {
        let data = zone_data();
        let Some(folder) = &data.folder else { return println!("skipped: no zoneinfo") };
        let mut read = 0;
        for name in TZ_VARIANTS.iter().map(|tz| tz.name()) {
            let Ok(bytes) = fs::read(folder.join(name)) else { continue };
            let (ours, theirs) = (data.offsets(name).unwrap(), tz::TimeZone::from_tz_data(&bytes).unwrap());
            // Thirty-odd looks a year, at ever other times of the day.
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
