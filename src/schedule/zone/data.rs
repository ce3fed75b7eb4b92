//! Where zone data comes from: the system's zone files where there are any, else the rules that chrono-tz was built with.
//!
//! Governments change their clocks at a few weeks' notice, and a system is brought up to date sooner than a program. So
//! the files come first, and the built-in rules answer where there are none, or not for this name. A name is looked at
//! before any path is made of it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;

use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::{IANA_TZDB_VERSION, TZ_VARIANTS, Tz};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::zone::offsets::{FIRST, Offsets};
use crate::schedule::zone::tzif;

/// Where systems keep their zone files, if `TZDIR` names no other folder.
const FOLDERS: [&str; 4] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// IANA names have at most 32 bytes; a longer text is not looked up.
const LONGEST_NAME: usize = 64;

/// The largest zone file of today has 4 KiB.
const LARGEST_FILE: u64 = 256 * 1024;

/// Built-in rules end with the year 2099.
const BUILT_IN_END: i64 = 131 * 366 * 24 * 3600;

/// Two looks at the built-in rules so far apart that see the same offset have no change between them.
///
/// A pair of changes that cancel out would hide, so this must be shorter than the shortest pair. Since 1970 that is 167
/// hours: Recife, Noronha and Boa Vista in October 2000, and Gaza's Ramadans from 2040 on.
const PROBE: i64 = 2 * 24 * 3600;

/// Which zone data answers: what a task's `time_zone` means.
///
/// ```
/// let data = duly::zone_data();
/// match &data.folder {
///     Some(folder) => println!("{} from {}", data.version, folder.display()),
///     None => assert_eq!(data.version, data.built_in),
/// }
/// // One line that differs whenever the data may.
/// assert!(data.to_string().starts_with(&data.version));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZoneData {
    /// The system's zone files; none if there are none, and then the built-in rules answer alone.
    pub folder: Option<PathBuf>,
    /// The release of the IANA database that answers, such as `2026b`; for files that do not say it, when they changed.
    pub version: String,
    /// The release of the built-in rules: they answer for names that have no file.
    pub built_in: &'static str,
}

impl fmt::Display for ZoneData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.folder {
            Some(folder) => {
                write!(
                    f,
                    "{} from {}, what is missing there from {} built in",
                    self.version,
                    folder.display(),
                    self.built_in
                )
            }
            None => write!(f, "{} built in", self.version),
        }
    }
}

/// Which zone data this process uses: found when it is first needed, and kept until the process ends.
pub fn zone_data() -> &'static ZoneData {
    static DATA: LazyLock<ZoneData> = LazyLock::new(|| match std::env::var_os("TZDIR").filter(|dir| !dir.is_empty()) {
        Some(folder) => ZoneData::of([PathBuf::from(folder)]),
        None => ZoneData::of(FOLDERS.map(PathBuf::from)),
    });
    &DATA
}

impl ZoneData {
    /// The first of the folders that holds zone files, else none.
    fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let built_in = IANA_TZDB_VERSION;
        // Images of containers have the folder and leave out what should be in it.
        let folder = folders.into_iter().find(|folder| ["UTC", "Etc/UTC"].iter().any(|utc| folder.join(utc).is_file()));
        let version = folder.as_deref().map_or_else(|| built_in.to_owned(), version);
        ZoneData { folder, version, built_in }
    }

    /// The offsets of the zone of exactly this name, as in `Europe/Rome`. `Local` is none, nor is `europe/rome`, though
    /// the error then says the right spelling: whether a task runs must not depend on which file system holds the data.
    ///
    /// [`Error::ZoneUnavailable`] says nothing about the name: it could be that of a zone, and this data does not answer for it.
    pub(super) fn offsets(&self, name: &str) -> Result<Offsets> {
        let known = Tz::from_str(name).ok();
        if !plausible(name) || known.is_none() && similar(name).is_some() {
            return Err(unknown(name));
        }
        if let Some(folder) = &self.folder {
            let path = folder.join(name);
            let unusable = |reason: String| {
                let expected = format!("a zone whose file can be read, and {} cannot ({reason})", path.display());
                Error::ZoneUnavailable { zone: name.to_owned(), expected }
            };
            let bytes = read(&path).map_err(|error| unusable(error.to_string()))?;
            if let Some(bytes) = bytes
                && (known.is_some() || spelt_so(folder, name).map_err(|error| unusable(error.to_string()))?)
            {
                return tzif::parse(&bytes).map_err(unusable);
            }
        }
        let zone = known.ok_or_else(|| {
            let expected = NAMES.to_owned();
            Error::ZoneUnavailable { zone: name.to_owned(), expected }
        })?;
        from_rules(zone).map_err(|reason| Error::invalid_task("time_zone", name, format!("usable rules: {reason}")))
    }
}

/// What a zone is called.
const NAMES: &str = "an IANA name such as Europe/Rome or UTC";

fn unknown(name: &str) -> Error {
    let expected = match similar(name) {
        Some(right) => format!("an exact IANA name (did you mean {right}?)"),
        None => NAMES.to_owned(),
    };
    Error::invalid_task("time_zone", name, expected)
}

/// Whether a name could be one of a zone: parts that begin with a capital, of letters, digits, `_`, `+` and `-`.
///
/// So no path that leaves the folder can be made of it, nor one to what lies there and is no zone of its own:
/// `posixrules`, `localtime`, `right/UTC`, `zone.tab`.
fn plausible(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_uppercase())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    name.len() <= LONGEST_NAME && name.split('/').all(part)
}

/// The name that was probably meant: in another case, or with a blank for the underscore.
fn similar(name: &str) -> Option<&'static str> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let name = name.trim().replace(' ', "_");
    TZ_VARIANTS.iter().map(|tz| tz.name()).find(|known| known.eq_ignore_ascii_case(&name))
}

/// Whether the folder spells the name in just these letters: there are file systems that would open it in others.
fn spelt_so(folder: &Path, name: &str) -> io::Result<bool> {
    let mut at = folder.to_owned();
    for part in name.split('/') {
        let names = fs::read_dir(&at)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        if !names.iter().any(|name| name == part) {
            return Ok(false);
        }
        at.push(part);
    }
    Ok(true)
}

/// What is in a file; none if there is none.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(io::Error::other(format!("it has more than {LARGEST_FILE} bytes")));
    }
    Ok(Some(bytes))
}

/// The release that a folder says it holds, else when it last changed.
fn version(folder: &Path) -> String {
    let first_line = |file: &str| {
        let mut head = String::new();
        File::open(folder.join(file)).ok()?.take(64).read_to_string(&mut head).ok()?;
        Some(head.lines().next()?.trim_start_matches("# version ").trim().to_owned())
    };
    let named = |version: &String| {
        !version.is_empty() && version.len() <= 32 && version.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let told = ["tzdata.zi", "+VERSION", "version"].iter().find_map(|file| first_line(file).filter(named));
    told.unwrap_or_else(|| match fs::metadata(folder).and_then(|metadata| metadata.modified()) {
        Ok(changed) => format!("unknown, changed {}", Timestamp::from(changed)),
        Err(_) => "unknown".to_owned(),
    })
}

/// Finds out the changes of a built-in zone, for chrono-tz answers for one instant at a time.
fn from_rules(zone: Tz) -> Result<Offsets, String> {
    let offset = |second: i64| {
        DateTime::from_timestamp(second, 0)
            .map_or(0, |at| zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc())
    };
    let mut changes = Vec::new();
    let (mut from, mut before) = (FIRST, offset(FIRST));
    while from < BUILT_IN_END {
        let after = offset(from + PROBE);
        if before != after {
            let (mut low, mut high) = (from, from + PROBE);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if offset(middle) == before { low = middle } else { high = middle }
            }
            changes.push((high, after));
        }
        (from, before) = (from + PROBE, after);
    }
    Offsets::new(offset(FIRST), changes)
}

#[cfg(test)]
impl ZoneData {
    /// The built-in rules alone, whatever the machine has.
    pub(super) fn built_in() -> Self {
        ZoneData::of([])
    }
}

#[cfg(test)]
mod tests {
    use super::{BUILT_IN_END, LARGEST_FILE, Offsets, PROBE, ZoneData, from_rules, plausible};
    use crate::clock::Timestamp;
    use crate::schedule::zone::tzif::sample as file;
    use chrono::{DateTime, Offset, TimeZone};
    use chrono_tz::{TZ_VARIANTS, Tz};
    use std::fs;

    fn at(offsets: &Offsets, second: i64) -> i32 {
        offsets.at(Timestamp::from_millis(second * 1000))
    }

    /// A folder with a zone file or two, and what there should be beside them.
    fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, ZoneData) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let data = ZoneData::of([folder.path().to_owned()]);
        (folder, data)
    }

    fn refusal(data: &ZoneData, name: &str) -> String {
        let error = data.offsets(name).unwrap_err().to_string();
        assert!(error.starts_with("invalid time_zone: expected ") && error.len() < 300, "{name}: {error}");
        error
    }

    #[test]
    fn every_iana_name_is_plausible_and_no_path_is() {
        TZ_VARIANTS.iter().for_each(|tz| assert!(plausible(tz.name()), "{tz}"));
        for name in [
            "",
            "/",
            "UTC/",
            "/UTC",
            "Europe//Rome",
            "Europe/./Rome",
            "../UTC",
            "Europe/../UTC",
            "Europe/Rome\0",
            "UTC ",
            "Europe\\Rome",
            "C:UTC",
            "zone.tab",
            "posixrules",
            "localtime",
            "right/UTC",
            "posix/UTC",
            "+VERSION",
            "Ünique",
        ] {
            assert!(!plausible(name), "{name}");
        }
    }

    #[test]
    fn the_files_come_first_and_the_built_in_rules_fill_in() {
        let east = file(5 * 3600, "XXX-5");
        let (home, data) = folder(&[
            ("UTC", &file(0, "UTC0")),
            ("tzdata.zi", b"# version 2031a\n# This is no zone\n"),
            ("Europe/Rome", &east),
            ("Mars/Olympus_Mons", &east),
        ]);
        let five = Offsets::new(5 * 3600, []).unwrap();
        // Named by no release that this program knows, or known to have other rules: the file says.
        assert_eq!(
            (data.offsets("Mars/Olympus_Mons").unwrap(), &data.offsets("Europe/Rome").unwrap()),
            (five, &data.offsets("Mars/Olympus_Mons").unwrap())
        );
        assert_eq!(data.offsets("Europe/Paris").unwrap(), ZoneData::built_in().offsets("Europe/Paris").unwrap());
        assert_eq!(data.version, "2031a");
        let told = data.to_string();
        assert!(told.starts_with("2031a from ") && told.ends_with(&format!("{} built in", data.built_in)), "{told}");
        for (name, hint) in [
            ("Europe", "an IANA name such as"),
            ("europe/rome", "did you mean Europe/Rome?"),
            ("Mars/olympus_mons", "an IANA name such as"),
            ("MARS/Olympus_Mons", "an IANA name such as"),
            ("Mars/Olympus_Mons/UTC", "an IANA name such as"),
            ("tzdata.zi", "an IANA name such as"),
        ] {
            assert!(refusal(&data, name).contains(hint), "{name}");
        }
        // A version told as on a Mac, told badly, and not at all.
        for (file, text, version) in [
            ("+VERSION", "2032b\n", "2032b"),
            ("version", "2033c", "2033c"),
            ("tzdata.zi", "# a file of two words\n", "unknown, changed 20"),
            ("tzdata.zi", "", "unknown, changed 20"),
        ] {
            ["tzdata.zi", "+VERSION", "version"].iter().for_each(|file| drop(fs::remove_file(home.path().join(file))));
            fs::write(home.path().join(file), text).unwrap();
            let data = ZoneData::of([home.path().to_owned()]);
            assert!(data.version.starts_with(version), "{file}: {}", data.version);
        }
    }

    #[test]
    fn without_files_the_built_in_rules_answer() {
        let empty = tempfile::tempdir().unwrap();
        for folder in [empty.path().to_owned(), "/nowhere".into()] {
            assert_eq!(ZoneData::of([folder]), ZoneData::built_in());
        }
        let data = ZoneData::built_in();
        assert_eq!((data.folder.as_deref(), data.to_string()), (None, format!("{} built in", data.built_in)));
        let (home, _) = folder(&[("Etc/UTC", &file(0, "UTC0"))]);
        let found = ZoneData::of(["/nowhere".into(), home.path().to_owned()]);
        assert_eq!(found.folder.as_deref(), Some(home.path()));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let broken = file(0, "XXX0");
        let large = vec![0; LARGEST_FILE as usize + 1];
        let (home, data) = folder(&[
            ("UTC", &broken[..30]),
            ("Europe/Rome", b"# not a zone file"),
            ("Europe/Paris", b""),
            ("Europe/Oslo", &large),
            ("Europe/Riga", &file(90_000, "")),
        ]);
        for (name, reason) in [
            ("UTC", "(invalid TZ file:"),
            ("Europe/Rome", "(invalid TZ file: invalid magic number)"),
            ("Europe/Paris", "(invalid TZ file:"),
            ("Europe/Oslo", "(it has more than 262144 bytes)"),
            ("Europe/Riga", "(an offset of 90000 s is more than a day)"),
        ] {
            let error = refusal(&data, name);
            assert!(error.contains(home.path().join(name).to_str().unwrap()) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn no_built_in_change_is_missed() {
        for tz in
            [Tz::America__Recife, Tz::Asia__Gaza, Tz::Africa__El_Aaiun, Tz::Antarctica__Casey, Tz::Africa__Monrovia]
        {
            misses_nothing(tz);
        }
    }

    #[test]
    #[ignore = "half a minute in a release build"]
    fn no_built_in_change_is_missed_in_any_zone() {
        TZ_VARIANTS.iter().for_each(|tz| misses_nothing(*tz));
    }

    /// Eight looks to a probe see what one may miss.
    fn misses_nothing(tz: Tz) {
        let ours = from_rules(tz).unwrap();
        for second in (0..BUILT_IN_END + 100 * PROBE).step_by(PROBE as usize / 8) {
            let their = tz.offset_from_utc_datetime(&DateTime::from_timestamp(second, 0).unwrap().naive_utc());
            assert_eq!(at(&ours, second), their.fix().local_minus_utc(), "{tz} at {second}");
        }
    }
}
