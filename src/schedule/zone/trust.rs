//! What shows that the rules of a zone may be wrong: they are old, or a file contradicts the past.

use std::time::Duration;

use chrono::NaiveDate;

use crate::clock::Timestamp;
use crate::schedule::zone::Zone;
use crate::schedule::zone::data::{ZoneData, built_in};
use crate::schedule::zone::fixed;

/// Two releases may differ about the hour of a change, and agree again afterwards.
const LASTING: Duration = Duration::from_secs(24 * 3600);

/// How far back a file is compared with the built-in rules. Releases correct what is older now and then.
const COMPARED: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl ZoneData {
    /// Returns whether the rules of a zone are the built-in ones, and older than a year.
    ///
    /// A release has the year in its name, and no date: it counts as old when the year after that has passed.
    pub(crate) fn is_old(&self, name: &str, now: Timestamp) -> bool {
        let is_used = !fixed::is_fixed(name) && self.path_of(name).is_none() && built_in(name).is_some();
        is_used && year(self.built_in).and_then(|year| start_of(year + 2)).is_some_and(|old| now >= old)
    }

    /// Returns how the file of a zone contradicts the built-in rules in the ten years before the older of the two releases, of
    /// which nothing was unknown to either. Nothing is known of files without a release, or that cannot be read.
    pub(crate) fn contradiction(&self, name: &str) -> Option<String> {
        let path = self.path_of(name).filter(|_| !fixed::is_fixed(name))?;
        let until = start_of(year(&self.version)?.min(year(self.built_in)?))?.minus(Duration::from_secs(1));
        let (found, expected) = (Zone::of_file(&path).ok()??, Zone::built_in_if_any(name)?);
        let mut from = until.minus(COMPARED);
        let at = loop {
            let at = found.first_difference(&expected, from, until)?;
            from = at.plus(LASTING);
            if found.offset_at(from) != expected.offset_at(from) {
                break at;
            }
        };
        let (found, expected) = (found.text_at(at), expected.text_at(at));
        Some(format!("{} has {found} where the rules of {} have {expected}", path.display(), self.built_in))
    }
}

/// Returns the year of a release such as `2026f`.
fn year(release: &str) -> Option<i32> {
    let (year, letters) = release.split_at_checked(4)?;
    let is_release = !letters.is_empty() && letters.bytes().all(|letter| letter.is_ascii_lowercase());
    year.parse().ok().filter(|_| is_release)
}

fn start_of(year: i32) -> Option<Timestamp> {
    Some(Timestamp::from(NaiveDate::from_yo_opt(year, 1)?.and_hms_opt(0, 0, 0)?.and_utc()))
}

#[cfg(test)]
mod tests {
    use super::year;
    use crate::clock::Timestamp;
    use crate::schedule::zone::data::{ZoneData, built_in};
    use std::fs;

    #[test]
    fn a_release_has_its_year() {
        let years = ["2026f", "1999z", "2026", "unknown, changed 2026-01-01", "2026f ", "20€6f", ""].map(year);
        assert_eq!(years, [Some(2026), Some(1999), None, None, None, None, None]);
    }

    #[test]
    fn built_in_rules_are_old_when_they_are_used_and_the_next_year_has_passed() {
        let data = ZoneData::built_in();
        let after = |years| -> Timestamp {
            format!("{}-01-01T00:00:00Z", year(data.built_in).unwrap() + years).parse().unwrap()
        };
        assert!(data.is_old("Europe/Rome", after(2)) && !data.is_old("Europe/Rome", after(1)));
        assert!(
            !data.is_old("UTC", after(9))
                && !data.is_old("Etc/GMT+5", after(9))
                && !data.is_old("Mars/Olympus_Mons", after(9))
        );
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("Europe")).unwrap();
        for file in ["UTC", "Europe/Rome"] {
            fs::write(home.path().join(file), built_in("Europe/Rome").unwrap()).unwrap();
        }
        let files = ZoneData::of([home.path().to_owned()]);
        assert!(!files.is_old("Europe/Rome", after(2)) && files.is_old("Europe/Oslo", after(2)), "it has no file");
    }

    #[test]
    fn a_file_of_another_zone_contradicts_the_past_and_one_of_an_older_release_does_not() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write("UTC", built_in("Europe/Berlin").unwrap());
        write("Europe/Berlin", built_in("Europe/Paris").unwrap());
        write("America/New_York", built_in("Europe/Berlin").unwrap());
        // As before 2026, when Vancouver still changed its clocks.
        write("America/Vancouver", built_in("America/Los_Angeles").unwrap());
        write("Europe/Oslo", b"damaged");
        let found = |release: &str| {
            write("tzdata.zi", format!("# version {release}\n").as_bytes());
            let data = ZoneData::of([home.path().to_owned()]);
            ["UTC", "Europe/Berlin", "America/New_York", "America/Vancouver", "Europe/Oslo", "Europe/Rome"]
                .map(|name| data.contradiction(name))
        };
        let [utc, berlin, new_york, vancouver, oslo, rome] = found("2025b");
        assert_eq!([utc, berlin, vancouver, oslo, rome], [None, None, None, None, None]);
        let says = new_york.unwrap();
        let expected = format!(
            "America/New_York has 2014-12-25T00:59:59+01:00 where the rules of {}",
            ZoneData::built_in().built_in
        );
        assert!(says.contains(&expected) && says.ends_with(" have 2014-12-24T18:59:59-05:00"), "{says}");
        assert!(found("unreleased").iter().all(Option::is_none), "the files may be of any age");
    }
}
