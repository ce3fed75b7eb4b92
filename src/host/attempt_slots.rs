//! The slots of an owner's lock file: the attempts that its workers have begun.
//!
//! Runs are claimed before a worker is free for them. A worker writes the run and the attempt into a slot before it
//! begins, so that the claims of a killed scheduler can be distinguished: an attempt that is in no slot never began,
//! and does not count. The kernel keeps what a killed process wrote; nothing is synced. After a crash of the machine
//! the slots prove nothing, which the boot id in the header shows.
//!
//! The header also records the identity of the locked file and of the database. A file with another identity beside the
//! same database is a copy: its lock proves nothing about the owner.
//!
//! A byte of the header halts the owner: the history of its claims has ended, and it begins none of them any more. The owner writes the
//! slot of an attempt first and looks for the byte then; a program that begins a new history sets the byte first and reads the slots
//! then. So either the attempt does not begin, or its slot is seen. An owner that makes no progress and may have claims of an earlier
//! history is halted, too; it resumes when it has compared its claims with the rows.
//!
//! A slot is reused only when the end of its attempt is recorded, so it needs no clearing: no row that is still running
//! matches it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::{platform, process};

/// Length of the header in bytes. First line: [`ALIVE`], [`DEGRADED`] or [`DEAD`], the format, the boot id, device and
/// inode of this file and of the database. Second line: the id of the owner that took over; the schema cookie for which the owner has
/// compared its claims with the rows; whether it is halted. All are padded with spaces.
const HEADER: usize = 256;
/// Length of the first line.
const IDENTITY: usize = 192;
/// The first byte for a living owner.
const ALIVE: u8 = b'A';
/// The first byte for a living owner that cannot write the database.
const DEGRADED: u8 = b'F';
/// The first byte for a dead owner whose lock another owner holds.
const DEAD: u8 = b'D';
/// Length of the id in the second line.
const SUCCESSOR: usize = 40;
/// The place and the length of the schema cookie in the second line.
const COOKIE: std::ops::Range<usize> = IDENTITY + SUCCESSOR..IDENTITY + SUCCESSOR + 20;
/// The place of the byte that halts the owner: the last of the second line.
const HALT: usize = HEADER - 2;
/// That byte of a halted owner. Otherwise it is a space.
const HALTED: u8 = b'E';
/// Length of a slot in bytes: run, attempt, task, hash of the key, in hexadecimal digits; newline.
const SLOT: usize = 60;
/// Longest file that is read, in bytes: some hundred thousand slots.
const MAX_FILE: u64 = 16 * 1024 * 1024;
/// The identity of a file that the system does not say.
const UNKNOWN: &str = "-";
/// The start of the header, after its first byte.
const FORMAT: &str = " duly-owner-4 ";

/// A slot in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    index: usize,
    /// The number of files of earlier ids of this owner.
    file: usize,
}

/// An attempt that its owner has claimed: it has begun, or may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ClaimedAttempt {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) task: i64,
    /// The [`hash`] of its concurrency key, if it has one.
    pub(crate) key: Option<u64>,
}

impl ClaimedAttempt {
    /// Returns the run and the number of the attempt.
    pub(crate) fn id(self) -> (i64, u32) {
        (self.run, self.attempt)
    }
}

/// The attempts in the slots of a file, by run and number.
pub(crate) type BegunAttempts = HashMap<(i64, u32), ClaimedAttempt>;

/// Returns the FNV-1a hash of a text. Other versions of duly compute the same.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The owner's own copy of its slots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The attempt in each slot, from when it begins until its end is recorded.
    begun: Vec<Option<ClaimedAttempt>>,
    free: Vec<usize>,
    /// The number of files of earlier ids, whose slots are not those of this one.
    file: usize,
    /// The slots at the last [`Slots::repair`]. A slot that is unchanged since then is certainly written to the file.
    previous: Vec<Option<ClaimedAttempt>>,
    /// Whether the file says that the owner is degraded.
    degraded: bool,
    /// The schema cookie in the file.
    cookie: Option<i64>,
    /// Whether the owner was halted when the file was last replaced.
    halted: bool,
}

impl Slots {
    /// Reserves a slot for an attempt that is about to begin. [`write`] writes it to the file.
    pub(crate) fn take(&mut self, attempt: ClaimedAttempt) -> Place {
        let index = self.free.pop().unwrap_or_else(|| {
            self.begun.push(None);
            self.begun.len() - 1
        });
        self.begun[index] = Some(attempt);
        Place { index, file: self.file }
    }

    /// Returns the slots of a new file, under the next id of the owner.
    pub(crate) fn of_next_file(&self) -> Self {
        Slots { file: self.file + 1, ..Slots::default() }
    }

    /// Releases a slot for reuse. Repeating it changes nothing. The slot of an earlier file stays.
    pub(crate) fn free(&mut self, place: Place) {
        if place.file == self.file && self.begun.get_mut(place.index).and_then(Option::take).is_some() {
            self.free.push(place.index);
        }
    }

    /// The file is to be replaced by a new one: the owner stays halted if it is.
    pub(crate) fn keep_halted(&mut self, file: &File) -> io::Result<()> {
        self.halted |= is_halted(file)?;
        Ok(())
    }

    /// The owner begins claims again.
    pub(crate) fn resume(&mut self, file: &File) -> io::Result<()> {
        platform::write_at(file, b" ", HALT as u64)?;
        self.halted = false;
        Ok(())
    }

    /// Writes the header and every slot into a new file.
    pub(crate) fn write_all(&self, file: &File, database: &Path) -> io::Result<()> {
        platform::write_at(file, &self.content(file, database)?, 0)
    }

    /// Rewrites the header and the slots if the file does not hold them: another program wrote into it, for example
    /// restored an older copy. Returns whether it rewrote them.
    pub(crate) fn repair(&mut self, file: &File, path: &Path, database: &Path) -> io::Result<bool> {
        // There a locked file cannot be read, and no other program can write into it.
        if cfg!(windows) {
            return Ok(false);
        }
        let opened = platform::open_regular(path, File::options().read(true));
        let mut found = Vec::new();
        if opened.and_then(|opened| opened.take(MAX_FILE).read_to_end(&mut found)).is_err() {
            return Ok(false);
        }
        let content = self.content(file, database)?;
        let previous = std::mem::replace(&mut self.previous, self.begun.clone());
        // The content of a free slot is irrelevant, and a newly reserved slot may not be written yet. Other owners halt this one.
        let counts = |place: usize| {
            if place == HALT {
                return false;
            }
            let slot = place.checked_sub(HEADER).map(|place| place / SLOT);
            slot.is_none_or(|slot| self.begun[slot].is_some() && previous.get(slot) == Some(&self.begun[slot]))
        };
        if content.iter().enumerate().all(|(place, byte)| !counts(place) || found.get(place) == Some(byte)) {
            return Ok(false);
        }
        platform::write_at(file, &content[..HALT], 0)?;
        platform::write_at(file, &content[HALT + 1..], HALT as u64 + 1).map(|()| true)
    }

    /// Changes the first byte of a living owner's file to degraded or alive, if it differs.
    pub(crate) fn mark(&mut self, file: &File, degraded: bool) -> io::Result<()> {
        if self.degraded != degraded {
            self.degraded = degraded;
            platform::write_at(file, &[self.first_byte()], 0).inspect_err(|_| self.degraded = !degraded)?;
        }
        Ok(())
    }

    /// Writes the schema cookie for which the owner has compared its claims with the rows, if it differs.
    pub(crate) fn compared(&mut self, file: &File, cookie: i64) -> io::Result<()> {
        if self.cookie != Some(cookie) {
            platform::write_at(file, padded_cookie(Some(cookie)).as_bytes(), COOKIE.start as u64)?;
            self.cookie = Some(cookie);
        }
        Ok(())
    }

    fn first_byte(&self) -> u8 {
        if self.degraded { DEGRADED } else { ALIVE }
    }

    fn content(&self, file: &File, database: &Path) -> io::Result<Vec<u8>> {
        let boot = process::boot_id().unwrap_or_default();
        let (own, database) =
            (shown(platform::identity_of(file)), shown(platform::identity(&database.metadata()?, database)));
        let line = format!("{}{FORMAT}{boot} {own} {database}", char::from(self.first_byte()));
        let second = format!("{:SUCCESSOR$}{}", "", padded_cookie(self.cookie));
        let widths = (IDENTITY - 1, HEADER - IDENTITY - 1);
        let mut content =
            format!("{line:<first$}\n{second:<second_width$}\n", first = widths.0, second_width = widths.1)
                .into_bytes();
        if self.halted {
            content[HALT] = HALTED;
        }
        for begun in &self.begun {
            content.extend(begun.map_or([0; SLOT], slot));
        }
        Ok(content)
    }
}

/// Writes an attempt into its slot in the file.
pub(crate) fn write(file: &File, place: Place, attempt: ClaimedAttempt) -> io::Result<()> {
    platform::write_at(file, &slot(attempt), (HEADER + place.index * SLOT) as u64)
}

fn padded_cookie(cookie: Option<i64>) -> String {
    format!("{:<1$}", cookie.map(|cookie| cookie.to_string()).unwrap_or_default(), COOKIE.len())
}

/// Returns whether an owner has not compared its claims with rows whose schema has this cookie.
pub(crate) fn is_behind(mut file: &File, cookie: i64) -> io::Result<bool> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    Ok(header[COOKIE] != *padded_cookie(Some(cookie)).as_bytes())
}

/// Halts the owner of a file.
pub(crate) fn halt(file: &File) -> io::Result<()> {
    platform::write_at(file, &[HALTED], HALT as u64)
}

/// Returns whether the owner of a file is halted.
pub(crate) fn is_halted(file: &File) -> io::Result<bool> {
    platform::byte_at(file, HALT as u64).map(|byte| byte == Some(HALTED))
}

/// Returns `{run:016x} {attempt:08x} {task:016x} {key:016x}\n`, without the cost of `format!`: it is written before every attempt.
fn slot(attempt: ClaimedAttempt) -> [u8; SLOT] {
    let ClaimedAttempt { run, attempt, task, key } = attempt;
    let mut slot = [b' '; SLOT];
    digits(&mut slot[..16], run.unsigned_abs());
    digits(&mut slot[17..25], attempt.into());
    digits(&mut slot[26..42], task.unsigned_abs());
    digits(&mut slot[43..59], key.unwrap_or_default());
    slot[59] = b'\n';
    slot
}

fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number % 16) as usize];
        number /= 16;
    }
}

/// Returns device and inode in the form of the header.
fn shown(identity: Option<(u64, u64)>) -> String {
    identity.map_or_else(|| UNKNOWN.to_owned(), |(device, inode)| format!("{device}:{inode}"))
}

/// Returns whether a file is certainly another one than the header names.
fn is_another(found: Option<(u64, u64)>, named: &str) -> bool {
    found.is_some() && named != UNKNOWN && shown(found) != named
}

/// Marks the file of a dead owner with the id of the recovering owner, so that other observers do not mistake the
/// holder of the lock for a living owner.
pub(crate) fn mark_dead(file: &File, taken_over_by: &str) -> io::Result<()> {
    platform::write_at(file, taken_over_by.as_bytes(), IDENTITY as u64)?;
    platform::write_at(file, &[DEAD], 0)
}

/// The state that a locked lock file records of its owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Alive,
    /// Alive, and unable to write the database.
    Degraded,
    Dead {
        taken_over_by: String,
    },
}

/// Reads the state that a lock file records of its owner. On Windows a locked file cannot be read, and the result is
/// `Alive`.
pub(crate) fn read_mark(mut file: &File) -> Mark {
    let mut header = [0; HEADER];
    match file.read_exact(&mut header).map(|()| header[0]) {
        Ok(DEAD) => {
            Mark::Dead { taken_over_by: String::from_utf8_lossy(&header[IDENTITY..COOKIE.start]).trim_end().to_owned() }
        }
        Ok(DEGRADED) => Mark::Degraded,
        _ => Mark::Alive,
    }
}

/// The content of a lock file whose lock was acquired.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The attempts in the slots: all that the workers had begun and whose end was not recorded, and some whose end
    /// was. `None` if unknown: the file is from another boot of the machine or another version of duly, is damaged,
    /// unreadable, or a copy beside a copy of the database. And whether the file is the one that its owner created, in this boot.
    Slots { begun: Option<BegunAttempts>, is_of_this_boot: bool },
    /// A copy of the owner's file beside the owner's database: the lock proves nothing.
    Copy,
}

/// Reads the lock file of an owner of this database.
pub(crate) fn read(mut file: &File, database: &Path) -> Content {
    let mut content = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(MAX_FILE + 1).read_to_end(&mut content));
    let identified =
        read.ok().filter(|length| *length as u64 <= MAX_FILE).and_then(|_| content.split_at_checked(HEADER)).and_then(
            |(header, slots)| {
                let line = std::str::from_utf8(&header[..IDENTITY]).ok()?.get(1..)?.strip_prefix(FORMAT)?.trim_end();
                let [boot, own, original] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
                // The machine has rebooted: the owner is dead, whatever the file is.
                if boot.is_empty() || process::boot_id().ok()? != boot {
                    return None;
                }
                if !is_another(platform::identity_of(file), own) {
                    return Some(Content::Slots { begun: attempts_in(slots), is_of_this_boot: true });
                }
                // Copies of the lock files beside a copy of the database belong to owners that never work there.
                let is_copied = is_another(platform::identity_at(database), original);
                (!is_copied).then_some(Content::Copy)
            },
        );
    identified.unwrap_or(Content::Slots { begun: None, is_of_this_boot: false })
}

fn attempts_in(slots: &[u8]) -> Option<BegunAttempts> {
    // A slot that was never written holds zeros if a later slot was written.
    let written = slots.chunks(SLOT).filter(|slot| slot.iter().any(|byte| *byte != 0));
    written.map(attempt_in).collect()
}

fn attempt_in(slot: &[u8]) -> Option<((i64, u32), ClaimedAttempt)> {
    let slot = std::str::from_utf8(slot).ok().filter(|slot| slot.len() == SLOT)?.strip_suffix('\n')?;
    let [run, attempt, task, key] = slot.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let id = |digits| i64::try_from(number(digits)?).ok();
    let (run, attempt, task) = (id(run)?, u32::try_from(number(attempt)?).ok()?, id(task)?);
    let key = Some(number(key)?).filter(|hash| *hash != 0);
    Some(((run, attempt), ClaimedAttempt { run, attempt, task, key }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::File;

    use std::path::Path;

    use super::{
        BegunAttempts, ClaimedAttempt, Content, HEADER, Mark, Place, SLOT, Slots, halt, is_halted, mark_dead,
        read_mark, write,
    };
    use crate::host::platform;

    /// Takes the role of the database.
    const DATABASE: &str = "Cargo.toml";

    fn of(run: i64, attempt: u32) -> ClaimedAttempt {
        ClaimedAttempt { run, attempt, task: 3, key: (run == 7).then_some(u64::MAX) }
    }

    fn begun(attempts: &[(i64, u32)]) -> Option<BegunAttempts> {
        Some(attempts.iter().map(|(run, attempt)| ((*run, *attempt), of(*run, *attempt))).collect())
    }

    fn file(slots: &Slots) -> File {
        let file = tempfile::tempfile().unwrap();
        slots.write_all(&file, Path::new(DATABASE)).unwrap();
        file
    }

    fn read(file: &File) -> Option<BegunAttempts> {
        let Content::Slots { begun, .. } = super::read(file, Path::new(DATABASE)) else { panic!("not a copy") };
        begun
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_slot_holds_its_attempt_until_the_slot_is_reused() {
        let mut slots = Slots::default();
        let old = file(&slots);
        assert_eq!(read(&old), Some(HashMap::new()));
        let begin = |slots: &mut Slots, run, attempt| {
            let place = slots.take(of(run, attempt));
            write(&old, place, of(run, attempt)).unwrap();
            place
        };
        let first = begin(&mut slots, 7, 1);
        begin(&mut slots, i64::MAX, u32::MAX);
        assert_eq!(read(&old), begun(&[(7, 1), (i64::MAX, u32::MAX)]));
        slots.free(first);
        slots.free(first);
        assert!(read(&old).unwrap().contains_key(&(7, 1)), "no running row matches it");
        assert_eq!(begin(&mut slots, 9, 2), first);
        assert_eq!(read(&old), begun(&[(9, 2), (i64::MAX, u32::MAX)]));
        assert_eq!(begin(&mut slots, 10, 1).index, 2, "freeing a slot twice adds it once");
        // A recreated file holds the same attempts.
        assert_eq!(read(&file(&slots)), read(&old));
        let mut next = slots.of_next_file();
        let place = next.take(of(11, 1));
        next.free(first);
        assert_eq!(read(&file(&next)), begun(&[(11, 1)]), "the slot of the earlier file is not freed");
        next.free(place);
        assert_eq!(read(&file(&next)), Some(HashMap::new()));
    }

    #[test]
    #[cfg(unix)]
    fn an_owner_stays_halted_whatever_it_writes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a-1");
        let mut slots = Slots::default();
        let own = File::create_new(&path).and_then(|_| File::options().read(true).write(true).open(&path)).unwrap();
        slots.write_all(&own, Path::new(DATABASE)).unwrap();
        assert!(!is_halted(&own).unwrap());
        halt(&own).unwrap();
        assert!(!slots.repair(&own, &path, Path::new(DATABASE)).unwrap(), "nothing is damaged");
        platform::write_at(&own, b"x", 3).unwrap();
        assert!(slots.repair(&own, &path, Path::new(DATABASE)).unwrap() && is_halted(&own).unwrap());
        mark_dead(&own, "the-successor").unwrap();
        std::io::Seek::rewind(&mut &own).unwrap();
        assert_eq!(read_mark(&own), Mark::Dead { taken_over_by: "the-successor".to_owned() });
        slots.keep_halted(&own).unwrap();
        assert!(is_halted(&file(&slots)).unwrap() && !is_halted(&file(&slots.of_next_file())).unwrap());
    }

    #[test]
    fn a_damaged_file_is_unknown_not_empty() {
        for damage in [
            |file: &File| file.set_len(0),
            |file: &File| file.set_len((HEADER + SLOT - 1) as u64),
            |file: &File| platform::write_at(file, b"x", (HEADER + 3) as u64),
            |file: &File| platform::write_at(file, b"A duly-owner-9", 0),
            |file: &File| platform::write_at(file, b"00000000", 20),
            |file: &File| platform::write_at(file, b" ", 60),
        ] {
            let damaged = file(&Slots::default());
            write(&damaged, Place::default(), of(7, 1)).unwrap();
            damage(&damaged).unwrap();
            assert_eq!(read(&damaged), None);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_copied_lock_file_proves_nothing() {
        use std::io::Read;
        let mut slots = Slots::default();
        slots.take(of(7, 1));
        let mut own = file(&slots);
        let mut content = Vec::new();
        std::io::Seek::rewind(&mut own).and_then(|()| own.read_to_end(&mut content)).unwrap();
        let copy = tempfile::tempfile().unwrap();
        platform::write_at(&copy, &content, 0).unwrap();
        assert_eq!(super::read(&copy, Path::new(DATABASE)), Content::Copy);
        assert_eq!(super::read(&copy, Path::new("missing")), Content::Copy, "an error is no evidence");
        let beside_copy = Content::Slots { begun: None, is_of_this_boot: false };
        assert_eq!(super::read(&copy, Path::new("Cargo.lock")), beside_copy, "a copy of the database");
        let of_owner = Content::Slots { begun: begun(&[(7, 1)]), is_of_this_boot: true };
        assert_eq!(super::read(&own, Path::new("Cargo.lock")), of_owner);
        for degraded in [true, false] {
            slots.mark(&copy, degraded).unwrap();
            std::io::Seek::rewind(&mut &copy).unwrap();
            assert_eq!(read_mark(&copy), if degraded { Mark::Degraded } else { Mark::Alive });
        }
        mark_dead(&copy, "the-successor").unwrap();
        std::io::Seek::rewind(&mut &copy).unwrap();
        assert_eq!(read_mark(&copy), Mark::Dead { taken_over_by: "the-successor".to_owned() });
        assert_eq!(super::read(&copy, Path::new(DATABASE)), Content::Copy);
    }
}
