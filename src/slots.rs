//! The slots of an owner's lock file: the attempts that its workers have begun.
//!
//! Runs are claimed before a worker is free for them. A worker writes the run and the attempt into a slot before it begins,
//! so that the claims of a scheduler that was killed can be told apart: an attempt that is in no slot never began, and does
//! not count. The kernel keeps what a killed process wrote; nothing is synced. After a crash of the machine the slots prove
//! nothing, which the boot id in the header shows.
//!
//! A slot is reused only when the end of its attempt is recorded, so it needs no clearing: no row that is still running
//! matches it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::{platform, process};

/// Length of the header: `A` (alive) or `D` (found dead by another owner), the format, the boot id; padded.
const HEADER: usize = 64;
/// Length of a slot: run, attempt, and the end of the line.
const SLOT: usize = 32;
/// What a header begins with, after its first byte.
const FORMAT: &str = " duly-owner-1 ";

/// The place of a slot in the file.
pub(crate) type Place = usize;

/// The slots as their owner knows them.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The attempt in each slot, from when it begins until its end is recorded.
    begun: Vec<Option<(i64, u32)>>,
    free: Vec<Place>,
}

impl Slots {
    /// Chooses a slot for an attempt that is about to begin. [`write`] puts it there.
    pub(crate) fn take(&mut self, run: i64, attempt: u32) -> Place {
        let place = self.free.pop().unwrap_or_else(|| {
            self.begun.push(None);
            self.begun.len() - 1
        });
        self.begun[place] = Some((run, attempt));
        place
    }

    /// Leaves a slot to another attempt.
    pub(crate) fn free(&mut self, place: Place) {
        if self.begun.get_mut(place).and_then(Option::take).is_some() {
            self.free.push(place);
        }
    }

    /// Writes the header and every slot into a new file.
    pub(crate) fn write_all(&self, file: &File) -> io::Result<()> {
        let boot = process::boot_id().unwrap_or_default();
        let header = format!("A{FORMAT}{boot:<width$}\n", width = HEADER - FORMAT.len() - 2);
        platform::write_at(file, header.as_bytes(), 0)?;
        let mut slots = self.begun.iter().enumerate();
        slots.try_for_each(|(place, begun)| begun.map_or(Ok(()), |(run, attempt)| write(file, place, run, attempt)))
    }
}

/// Writes an attempt into its slot.
pub(crate) fn write(file: &File, place: Place, run: i64, attempt: u32) -> io::Result<()> {
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
    if boot.is_empty() || process::boot_id().ok()? != boot {
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

    use super::{HEADER, SLOT, Slots, read, write};
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
        let begin = |slots: &mut Slots, run, attempt| {
            let place = slots.take(run, attempt);
            write(&old, place, run, attempt).unwrap();
            place
        };
        let first = begin(&mut slots, 7, 1);
        begin(&mut slots, i64::MAX, u32::MAX);
        assert_eq!(read(&old), Some(HashSet::from([(7, 1), (i64::MAX, u32::MAX)])));
        slots.free(first);
        slots.free(first);
        assert!(read(&old).unwrap().contains(&(7, 1)), "no row that is running matches it any more");
        assert_eq!(begin(&mut slots, 9, 2), first);
        assert_eq!(read(&old), Some(HashSet::from([(9, 2), (i64::MAX, u32::MAX)])));
        assert_eq!(begin(&mut slots, 10, 1), 2, "a slot is free once, however often that is said");
        // A file that is made again has what the old one had.
        assert_eq!(read(&file(&slots)), read(&old));
    }

    #[test]
    fn what_cannot_be_read_is_not_an_empty_list() {
        for damage in [
            |file: &File| file.set_len(0),
            |file: &File| file.set_len((HEADER + SLOT - 1) as u64),
            |file: &File| platform::write_at(file, b"x", (HEADER + 3) as u64),
            |file: &File| platform::write_at(file, b"A duly-owner-9", 0),
            |file: &File| platform::write_at(file, b"00000000", 20),
        ] {
            let damaged = file(&Slots::default());
            write(&damaged, 0, 7, 1).unwrap();
            damage(&damaged).unwrap();
            assert_eq!(read(&damaged), None);
        }
    }
}
