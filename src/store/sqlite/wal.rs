//! SQLite's write-ahead log, read as a file: its generation, and the schema cookies in it.
//!
//! The format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>. SQLite locks the database and the index of the log, never the
//! log itself: closing it here drops no lock.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What distinguishes a log from the one before. SQLite begins the next generation only when it has written back all pages of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Generation {
    page_size: u32,
    salts: [u8; 8],
}

/// Returns the generation of the log; `None` if the log is empty or cannot be read.
pub(crate) fn generation(log: &Path) -> Option<Generation> {
    header(&mut File::open(log).ok()?).ok()
}

/// Returns the highest schema cookie in the log, which is on page 1, also if its transaction was not committed. `Ok(None)`: the log
/// holds no page 1. Fails if the log is of another generation.
pub(crate) fn highest_cookie(log: &Path, expected: Generation) -> io::Result<Option<i64>> {
    let mut file = File::open(log)?;
    let other = || io::Error::other("another generation of the log has begun");
    if header(&mut file)? != expected {
        return Err(other());
    }
    let mut highest = None;
    let mut frame = [0; FRAME_HEADER];
    while reads_all(&mut file, &mut frame)? && frame[8..16] == expected.salts {
        let mut rest = i64::from(expected.page_size);
        if number(&frame, 0) == 1 {
            let mut page_start = [0; 44];
            if !reads_all(&mut file, &mut page_start)? {
                break;
            }
            rest -= page_start.len() as i64;
            // `PRAGMA schema_version` returns the cookie with a sign.
            highest = highest.max(Some(i64::from(number(&page_start, 40).cast_signed())));
        }
        file.seek(SeekFrom::Current(rest))?;
    }
    // If a new generation had overwritten frames meanwhile, the header would show it: SQLite writes it first.
    file.seek(SeekFrom::Start(0))?;
    if header(&mut file)? == expected { Ok(highest) } else { Err(other()) }
}

fn header(log: &mut File) -> io::Result<Generation> {
    let mut header = [0; HEADER];
    log.read_exact(&mut header)?;
    Ok(Generation { page_size: number(&header, 8), salts: std::array::from_fn(|at| header[16 + at]) })
}

/// Returns whether all bytes could be read. The last frame may be incomplete.
fn reads_all(file: &mut File, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|place| bytes[at + place]))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::{generation, highest_cookie};

    #[test]
    fn the_cookie_of_a_log_is_the_one_that_sqlite_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let log = folder.path().join("a.db-wal");
        let connection = Connection::open(&path).unwrap();
        let cookie = || connection.pragma_query_value(None, "schema_version", |row| row.get::<_, i64>(0)).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA page_size = 4096; CREATE TABLE a (b)").unwrap();
        let first = generation(&log).unwrap();
        assert_eq!(highest_cookie(&log, first).unwrap(), Some(cookie()));
        connection.execute_batch("CREATE TABLE c (d); INSERT INTO c VALUES (1)").unwrap();
        assert_eq!((generation(&log), highest_cookie(&log, first).unwrap()), (Some(first), Some(cookie())));
        // The next write begins another generation, over the frames of the first.
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        assert_eq!(generation(&log), Some(first));
        connection.execute_batch("UPDATE c SET d = 2").unwrap();
        let second = generation(&log).unwrap();
        assert!(second != first && highest_cookie(&log, first).is_err());
        assert_eq!(highest_cookie(&log, second).unwrap(), None);
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        assert_eq!(generation(&log), None);
        assert!(highest_cookie(&log, second).is_err());
    }
}
