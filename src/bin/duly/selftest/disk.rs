//! What duly needs of a disk, tried one by one: that locks exclude other processes and are free when one dies, that processes
//! share memory, and that what was written is waited for.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::output::sizes::bytes;
use crate::selftest::child::{FOUND, HOLDING, Part};
use crate::selftest::probe::{self, Found, Held, Watcher};
use crate::selftest::process::Process;
use crate::selftest::report::Check;
use crate::selftest::system::{self, Mount};
use crate::selftest::wait::{Halt, Patience, failed};

/// Less is soon full.
const LITTLE: u64 = 256 << 20;
/// How long it may take until a lock of a dead process is free.
const FREED: Duration = Duration::from_secs(5);
/// How long a part may take to begin.
const BEGIN: Duration = Duration::from_secs(60);
/// As much as a commit of one page writes into the log.
const PAGE: [u8; 4120] = [0x64; 4120];
/// How often, and how long at most, it is tried how long a sync takes.
const SYNCS: usize = 200;
const SYNCING: Duration = Duration::from_millis(1500);
/// Few disks are faster, and few that wait are slower.
const FASTEST: Duration = Duration::from_micros(50);
const SLOWEST: Duration = Duration::from_millis(100);

/// What other machines may hold, who know nothing of our locks.
const NETWORK: [&str; 12] =
    ["nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "ncpfs"];
/// What another system shares with this one.
const SHARED: [&str; 5] = ["9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs"];
/// What is gone when the machine is.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

const MOVE: &str = "keep the database on a disk of this machine; duly promises nothing on a network file system";

/// Which file system it is.
pub(crate) fn file_system(folder: &Path) -> Check {
    let left = system::room_left(folder);
    let room = left.map_or_else(String::new, |left| format!("; {} left", bytes(left)));
    match system::mount_of(folder) {
        Some(mount) => kind(&mount, &room, left),
        None => Check::good("file system", format!("this system does not tell which{room}")),
    }
}

/// What is to be said of a file system of this kind.
pub(crate) fn kind(mount: &Mount, room: &str, left: Option<u64>) -> Check {
    let Mount { kind, source } = mount;
    let name = "file system";
    let is = |kinds: &[&str]| kinds.iter().any(|one| kind == one || kind.strip_prefix("fuse.") == Some(one));
    if is(&NETWORK) || is(&["sshfs", "rclone", "s3fs"]) {
        return Check::bad(name, format!("{kind} of {source}, over a network{room}"), MOVE);
    }
    if is(&SHARED) || kind.starts_with("fuse") {
        let found = format!("{kind} of {source}, kept by another program or system{room}");
        return Check::odd(name, found, "open the database from this system alone: others may not see its locks");
    }
    if is(&MEMORY) {
        let found = format!("{kind}, in memory{room}");
        return Check::odd(
            name,
            found,
            "what is in memory is gone when the machine stops: keep the database on a disk",
        );
    }
    let found = format!("{kind} on {source}{room}");
    if left.is_some_and(|left| left < LITTLE) {
        return Check::odd(name, found, "make room: on a full disk nothing starts, since nothing could be recorded");
    }
    Check::good(name, found)
}

const NO_LOCKS: &str = "without locks two schedulers run everything twice: keep the database on another file system";

/// Whether locks exclude another process, both ways, and are free when it dies.
pub(crate) fn locks(folder: &Path, patience: &Patience) -> Result<Check, Halt> {
    probe::make(folder).map_err(failed("cannot make a database"))?;
    let take = || Held::take(folder).map_err(failed("cannot take a lock"));
    let held = take()?;
    let refused = tried(folder, patience)?;
    drop(held);
    let given = tried(folder, patience)?;
    let holder = Process::start(Part::Hold, folder)?;
    let holding = folder.join(HOLDING);
    patience.until("another process held the locks", BEGIN, || Ok(holding.exists()))?;
    let seen = [Found::of_file(folder), Found::of_database(folder)];
    holder.kill()?;
    let free = patience.until("the locks of a process that was killed were free", FREED, || {
        Ok([Found::of_file(folder), Found::of_database(folder)] == [Found::Free, Found::Free])
    });
    match free {
        Err(Halt::Failed(error)) => Ok(Check::bad("locks", error, NO_LOCKS)),
        Err(told) => Err(told),
        Ok(free) => Ok(exclusion(&refused, &given, &seen, free)),
    }
}

/// What locks are worth. Each pair is of the lock of a file, and of SQLite's: while we held them, when we did not, and while
/// another did.
pub(crate) fn exclusion(refused: &[Found], given: &[Found], seen: &[Found], free: Duration) -> Check {
    let expected = [(refused, Found::Held, "they were held"), (given, Found::Free, "they were free")];
    for (found, right, when) in expected.into_iter().chain([(seen, Found::Held, "another process held them")]) {
        for (found, whose) in found.iter().zip(["of a file", "of SQLite"]) {
            if *found != right {
                let found = format!("the lock {whose} was found {found} while {when}: expected {right}");
                return Check::bad("locks", found, NO_LOCKS);
            }
        }
    }
    let millis = free.as_millis();
    Check::good("locks", format!("exclude another process, of files and of SQLite; free {millis} ms after its death"))
}

/// What another process finds of both locks.
fn tried(folder: &Path, patience: &Patience) -> Result<Vec<Found>, Halt> {
    Process::start(Part::Try, folder)?.end(patience)?;
    let told = std::fs::read_to_string(folder.join(FOUND)).map_err(failed("cannot read what another process found"))?;
    let found = told.lines().map(|line| match line {
        "free" => Found::Free,
        "held" => Found::Held,
        error => Found::Broken(error.to_owned()),
    });
    Ok(found.collect())
}

/// Whether two processes that write at once, and one that looks on, see each other's commits.
pub(crate) fn shared_memory(folder: &Path, patience: &Patience) -> Result<Check, Halt> {
    let watcher = Watcher::open(folder).map_err(failed("cannot read a database"))?;
    let counters = [Process::start(Part::Count, folder)?, Process::start(Part::Count, folder)?];
    for counter in counters {
        counter.end(patience)?;
    }
    Ok(counted(watcher.count().map_err(failed("cannot read a database"))?))
}

/// What it means that the two came to this number.
pub(crate) fn counted(found: u32) -> Check {
    let all = 2 * probe::TIMES;
    let found_of = format!("two processes counted to {found} of {all}, at once");
    if found == all {
        return Check::good("shared memory", found_of);
    }
    let advice = "what one process commits, another does not see: keep the database on another file system";
    Check::bad("shared memory", found_of, advice)
}

/// How long it takes until the disk says that it has what was written.
pub(crate) fn syncs(folder: &Path, patience: &Patience) -> Result<Check, Halt> {
    let cannot = failed("cannot write and sync a file");
    let mut file = OpenOptions::new().append(true).create_new(true).open(folder.join("synced")).map_err(&cannot)?;
    let begin = patience.passed();
    let mut lengths = Vec::with_capacity(SYNCS);
    while lengths.len() < SYNCS && (lengths.is_empty() || patience.passed() - begin < SYNCING) {
        patience.rest(Duration::ZERO)?;
        let before = patience.passed();
        file.write_all(&PAGE).and_then(|()| file.sync_data()).map_err(&cannot)?;
        lengths.push(patience.passed() - before);
    }
    Ok(synced(lengths))
}

/// What it means that syncs took so long.
pub(crate) fn synced(mut lengths: Vec<Duration>) -> Check {
    lengths.sort_unstable();
    let at = |share: usize| lengths.get(lengths.len() * share / 100).copied().unwrap_or_default();
    let (median, most) = (at(50), at(99));
    let found = format!("{} of a page: median {}, 99 of 100 within {}", lengths.len(), short(median), short(most));
    if median < FASTEST {
        let advice = "no disk is so fast: this is memory, or one that does not wait; after a power cut the last commits may be gone";
        return Check::odd("syncs", found, advice);
    }
    if median > SLOWEST {
        return Check::odd("syncs", found, "every start waits for one: expect no more than a few starts a second");
    }
    Check::good("syncs", found)
}

/// A short time: `24 us`, `1.7 ms`, `240 ms`.
fn short(length: Duration) -> String {
    match length.as_micros() {
        micros @ ..1_000 => format!("{micros} us"),
        micros @ ..10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        micros => format!("{} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::{LITTLE, counted, exclusion, kind, synced};
    use crate::selftest::probe::{Found, TIMES};
    use crate::selftest::report::{Check, Verdict};
    use crate::selftest::system::Mount;
    use std::time::Duration;

    fn of(kind_of: &str, left: u64) -> Verdict {
        kind(&Mount { kind: kind_of.into(), source: "there".into() }, "", Some(left)).verdict
    }

    #[test]
    fn a_network_is_refused_and_what_is_shared_or_in_memory_or_full_is_told() {
        for (name, verdict) in [
            ("ext4", Verdict::Good),
            ("btrfs", Verdict::Good),
            ("overlay", Verdict::Good),
            ("nfs4", Verdict::Bad),
            ("cifs", Verdict::Bad),
            ("fuse.sshfs", Verdict::Bad),
            ("fuse.glusterfs", Verdict::Bad),
            ("fuseblk", Verdict::Odd),
            ("9p", Verdict::Odd),
            ("tmpfs", Verdict::Odd),
        ] {
            assert_eq!(of(name, LITTLE), verdict, "{name}");
        }
        assert_eq!(of("ext4", LITTLE - 1), Verdict::Odd);
    }

    #[test]
    fn locks_that_exclude_nobody_or_never_end_are_no_locks() {
        let verdict = |refused: [Found; 2], given: [Found; 2], seen: [Found; 2]| {
            exclusion(&refused, &given, &seen, Duration::from_millis(3))
        };
        let (free, held) = (|| [Found::Free, Found::Free], || [Found::Held, Found::Held]);
        let said = |check: Check| (check.verdict, check.found);
        let good = "exclude another process, of files and of SQLite; free 3 ms after its death";
        assert_eq!(said(verdict(held(), free(), held())), (Verdict::Good, good.into()));
        for (check, found) in [
            (verdict([Found::Free, Found::Held], free(), held()), "of a file was found free while they were held"),
            (verdict([Found::Held, Found::Free], free(), held()), "of SQLite was found free while they were held"),
            (verdict(held(), [Found::Free, Found::Held], held()), "of SQLite was found held while they were free"),
            (verdict(held(), free(), free()), "of a file was found free while another process held them"),
            (
                verdict(held(), [Found::Broken("no locks available".into()), Found::Free], held()),
                "of a file was found no locks available while they were free",
            ),
        ] {
            assert!(check.verdict == Verdict::Bad && check.found.contains(found), "{check:?}");
        }
    }

    #[test]
    fn a_count_that_is_short_is_a_lost_update() {
        assert_eq!(counted(2 * TIMES).verdict, Verdict::Good);
        let short = counted(2 * TIMES - 1);
        assert_eq!(
            (short.verdict, short.found.as_str()),
            (Verdict::Bad, "two processes counted to 399 of 400, at once")
        );
    }

    #[test]
    fn syncs_that_no_disk_makes_are_told_and_so_are_slow_ones() {
        let of = |micros: u64| synced((0..100).map(|more| Duration::from_micros(micros + more / 10)).rev().collect());
        assert_eq!(of(1_700).found, "100 of a page: median 1.7 ms, 99 of 100 within 1.7 ms");
        let verdicts = [0, 1_700, 240_000].map(|micros| of(micros).verdict);
        assert_eq!(verdicts, [Verdict::Odd, Verdict::Good, Verdict::Odd]);
        assert_eq!(synced(vec![Duration::from_millis(9)]).verdict, Verdict::Good, "one is enough to tell of");
    }
}
