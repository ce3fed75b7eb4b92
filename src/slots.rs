//! The slots of an owner's lock file: the attempts that its workers have begun.
//!
//! Runs are claimed before a worker is free for them. A worker writes the run and the attempt into a slot before it begins,
//! so that the claims of a scheduler that was killed can be told apart: an attempt that is in no slot never began, and does
//! not count. The kernel keeps what a killed process wrote; nothing is synced. After a crash of the machine the slots prove
//! nothing, which the boot id in the header shows.
//!
//! A slot is reused only when the end of its attempt is recorded, so it needs no clearing: no row that is still running
//! matches it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::platform;

/// Length of the header: `A` (alive) or `D` (found dead by another owner), the format, the boot id; padded.
const HEADER: usize = 64;
/// Length of a slot: run, attempt, and the end of the line.
const SLOT: usize = 32;
/// What a header begins with, after its first byte.
const FORMAT: &str = " duly-owner-1 ";

/// The slots as their owner knows them.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The place of each attempt that has begun and whose end is not recorded.
    begun: HashMap<(i64, u32), usize>,
    free: Vec<usize>,
}

impl Slots {
    /// Writes the attempt into a free slot. On an error the attempt is in no slot.
    pub(crate) fn begin(&mut self, file: &File, run: i64, attempt: u32) -> io::Result<()> {
        let places = self.begun.len();
        let Entry::Vacant(entry) = self.begun.entry((run, attempt)) else { return Ok(()) };
        let place = self.free.pop().unwrap_or(places);
        let written = write_slot(file, place, run, attempt);
        match &written {
            Ok(()) => _ = entry.insert(place),
            Err(_) => self.free.push(place),
        }
        written
    }

    /// Leaves the attempt's slot to another.
    pub(crate) fn free(&mut self, run: i64, attempt: u32) {
        self.free.extend(self.begun.remove(&(run, attempt)));
    }

    /// Writes the header and every slot into a new file.
    pub(crate) fn write_all(&self, file: &File) -> io::Result<()> {
        let boot = platform::boot().unwrap_or_default();
        let header = format!("A{FORMAT}{boot:<width$}\n", width = HEADER - FORMAT.len() - 2);
        platform::write_at(file, header.as_bytes(), 0)?;
        self.begun.iter().try_for_each(|((run, attempt), place)| write_slot(file, *place, *run, *attempt))
    }
}

fn write_slot(file: &File, place: usize, run: i64, attempt: u32) -> io::Result<()> {
    let mut slot = [0; SLOT];
    writeln!(&mut slot[..], "{run:020} {attempt:010}")?;
    platform::write_at(file, &slot, (HEADER + place * SLOT) as u64)
}

/// The attempts in the slots of a dead owner's file: all that its workers had begun and whose end was not recorded, and some
/// whose end was. `None` if that cannot be known: the file is of another boot of the machine, of another version of duly, or
/// damaged; or it cannot be read.
pub(crate) fn read(mut file: &File) -> Option<HashSet<(i64, u32)>> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut content)).ok()?;
    let (header, slots) = content.split_at_checked(HEADER)?;
    let boot = std::str::from_utf8(header).ok()?.get(1..)?.strip_prefix(FORMAT)?.trim_end();
    if boot.is_empty() || platform::boot()? != boot {
        return None;
    }
    // A slot that was never written, below one that was, holds zeros.
    let written = slots.chunks(SLOT).filter(|slot| slot.iter().any(|byte| *byte != 0));
    written.map(attempt_in).collect()
}

fn attempt_in(slot: &[u8]) -> Option<(i64, u32)> {
    let (run, attempt) = std::str::from_utf8(slot).ok()?.strip_suffix('\n')?.split_once(' ')?;
    if slot.len() == SLOT { Some((run.parse().ok()?, attempt.parse().ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::File;

    use super::{HEADER, SLOT, Slots, read};
    use crate::platform;

    fn file(slots: &Slots) -> File {
        let file = tempfile::tempfile().unwrap();
        slots.write_all(&file).unwrap();
        file
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_attempt_is_in_a_slot_until_its_end_is_recorded_and_the_slot_is_used_again() {
        let mut slots = Slots::default();
        let old = file(&slots);
        assert_eq!(read(&old), Some(HashSet::new()));
        slots.begin(&old, 7, 1).unwrap();
        slots.begin(&old, i64::MAX, u32::MAX).unwrap();
        assert_eq!(read(&old), Some(HashSet::from([(7, 1), (i64::MAX, u32::MAX)])));
        slots.free(7, 1);
        assert!(read(&old).unwrap().contains(&(7, 1)), "no row that is running matches it any more");
        slots.begin(&old, 9, 2).unwrap();
        assert_eq!(read(&old), Some(HashSet::from([(9, 2), (i64::MAX, u32::MAX)])));
        assert_eq!(old.metadata().unwrap().len(), (HEADER + 2 * SLOT) as u64);
        // A file that is made again has what the old one had.
        assert_eq!(read(&file(&slots)), read(&old));
    }

    #[test]
    fn what_cannot_be_read_is_not_an_empty_list() {
        let mut slots = Slots::default();
        for damage in [
            |file: &File| file.set_len(0),
            |file: &File| file.set_len((HEADER + SLOT - 1) as u64),
            |file: &File| platform::write_at(file, b"x", (HEADER + 3) as u64),
            |file: &File| platform::write_at(file, b"A duly-owner-9", 0),
            |file: &File| platform::write_at(file, b"00000000", 20),
        ] {
            let damaged = file(&slots);
            slots.begin(&damaged, 7, 1).unwrap();
            slots.free(7, 1);
            damage(&damaged).unwrap();
            assert_eq!(read(&damaged), None);
        }
    }
}
