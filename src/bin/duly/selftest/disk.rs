//! Checks of the disk: locks exclude other processes and are released when a process dies, processes share memory, and a sync
//! waits for the disk.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::exec::machine::{self, Mount};
use crate::output::units::bytes;
use crate::selftest::child::{FOUND, HOLDING, Role};
use crate::selftest::probe::{self, LockState, Locks, Reader};
use crate::selftest::process::Process;
use crate::selftest::report::Check;
use crate::selftest::wait::{CheckError, Timer, failed};

/// Free space below which a note is printed.
const MIN_FREE: u64 = 256 << 20;
/// Time limit for the release of the locks of a dead process.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for the start of a child.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The size of a WAL frame: what a commit of one page writes.
const PAGE: [u8; 4120] = [0x64; 4120];
/// Number of syncs that are measured, and their time limit.
const SYNCS: usize = 200;
const SYNC_LIMIT: Duration = Duration::from_millis(1500);
/// Bounds of a plausible sync.
const FASTEST: Duration = Duration::from_micros(50);
const SLOWEST: Duration = Duration::from_millis(100);

/// Network file systems: other machines do not see the locks.
const NETWORK: [&str; 12] =
    ["nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "ncpfs"];
/// File systems that are shared with another operating system.
const SHARED: [&str; 5] = ["9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs"];
/// File systems in memory.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

const MOVE: &str = "keep the database on a local disk; duly does not support network file systems";

/// Checks the file system of a folder.
pub(crate) fn file_system(folder: &Path) -> Check {
    let free = machine::free_space(folder);
    let free_text = free.map_or_else(String::new, |free| format!("; {} free", bytes(free)));
    match machine::mount_of(folder) {
        Some(mount) => check_mount(&mount, &free_text, free),
        None => Check::good("file system", format!("unknown on this system{free_text}")),
    }
}

/// Checks a file system by its type and its free space.
pub(crate) fn check_mount(mount: &Mount, free_text: &str, free: Option<u64>) -> Check {
    let Mount { kind, source } = mount;
    let name = "file system";
    let is = |kinds: &[&str]| kinds.iter().any(|one| kind == one || kind.strip_prefix("fuse.") == Some(one));
    if is(&NETWORK) || is(&["sshfs", "rclone", "s3fs"]) {
        return Check::bad(name, format!("{kind} of {source}, over a network{free_text}"), MOVE);
    }
    if is(&SHARED) || kind.starts_with("fuse") {
        let found = format!("{kind} of {source}, provided by another program or system{free_text}");
        return Check::odd(name, found, "use the database from this system only: others may not see its locks");
    }
    if is(&MEMORY) {
        let found = format!("{kind}, in memory{free_text}");
        return Check::odd(
            name,
            found,
            "a restart of the machine deletes this file system: keep the database on a disk",
        );
    }
    let found = format!("{kind} on {source}{free_text}");
    if free.is_some_and(|free| free < MIN_FREE) {
        return Check::odd(
            name,
            found,
            "free some space: on a full disk no run is started, because none can be recorded",
        );
    }
    Check::good(name, found)
}

const NO_LOCKS: &str = "without locks two schedulers run every task twice: keep the database on another file system";

/// Checks that locks exclude another process, in both directions, and are released when it dies.
pub(crate) fn locks(folder: &Path, timer: &Timer) -> Result<Check, CheckError> {
    probe::create(folder).map_err(failed("cannot create a database"))?;
    let locks = Locks::take(folder).map_err(failed("cannot take a lock"))?;
    let while_held = states_in_child(folder, timer)?;
    drop(locks);
    let while_free = states_in_child(folder, timer)?;
    let holder = Process::start(Role::HoldLocks, folder)?;
    let holding = folder.join(HOLDING);
    timer.wait_until("another process held the locks", START_LIMIT, || Ok(holding.exists()))?;
    let held_by_child = LockState::both(folder);
    holder.kill()?;
    let free = [LockState::Free, LockState::Free];
    let what = "the locks of a killed process were released";
    match timer.wait_until(what, RELEASE_LIMIT, || Ok(LockState::both(folder) == free)) {
        Err(CheckError::Failed(error)) => Ok(Check::bad("locks", error, NO_LOCKS)),
        Err(interrupted) => Err(interrupted),
        Ok(released) => Ok(check_locks(&while_held, &while_free, &held_by_child, released)),
    }
}

/// Checks lock states. Each pair is the file lock and the SQLite lock: seen by a child while this process held them and while
/// they were free, and seen by this process while a child held them.
pub(crate) fn check_locks(
    while_held: &[LockState],
    while_free: &[LockState],
    held_by_child: &[LockState],
    released: Duration,
) -> Check {
    let expected = [
        (while_held, LockState::Held, "they were held"),
        (while_free, LockState::Free, "they were free"),
        (held_by_child, LockState::Held, "another process held them"),
    ];
    for (found, expected, when) in expected {
        for (found, lock) in found.iter().zip(["file", "SQLite"]) {
            if *found != expected {
                let found = format!("the {lock} lock was found {found} while {when}: expected {expected}");
                return Check::bad("locks", found, NO_LOCKS);
            }
        }
    }
    let millis = released.as_millis();
    Check::good("locks", format!("file and SQLite locks exclude another process; released {millis} ms after its death"))
}

/// Returns the states of both locks as a child sees them.
fn states_in_child(folder: &Path, timer: &Timer) -> Result<Vec<LockState>, CheckError> {
    Process::start(Role::TryLocks, folder)?.end(timer)?;
    let text = std::fs::read_to_string(folder.join(FOUND)).map_err(failed("cannot read the result of a child"))?;
    let found = text.lines().map(|line| match line {
        "free" => LockState::Free,
        "held" => LockState::Held,
        error => LockState::Broken(error.to_owned()),
    });
    Ok(found.collect())
}

/// Checks that two processes that write at the same time, and a third one that reads, see each other's commits.
pub(crate) fn shared_memory(folder: &Path, timer: &Timer) -> Result<Check, CheckError> {
    let reader = Reader::open(folder).map_err(failed("cannot read a database"))?;
    let counters = [Process::start(Role::Count, folder)?, Process::start(Role::Count, folder)?];
    for counter in counters {
        counter.end(timer)?;
    }
    Ok(check_count(reader.count().map_err(failed("cannot read a database"))?))
}

/// Checks the final value of the counter.
pub(crate) fn check_count(count: u32) -> Check {
    let all = 2 * probe::TIMES;
    let found = format!("two processes counted to {count} of {all} at the same time");
    if count == all {
        return Check::good("shared memory", found);
    }
    let advice = "a process does not see the commits of another: keep the database on another file system";
    Check::bad("shared memory", found, advice)
}

/// Measures how long a sync takes.
pub(crate) fn syncs(folder: &Path, timer: &Timer) -> Result<Check, CheckError> {
    let cannot = failed("cannot write and sync a file");
    let mut file = OpenOptions::new().append(true).create_new(true).open(folder.join("synced")).map_err(&cannot)?;
    let begin = timer.elapsed();
    let mut lengths = Vec::with_capacity(SYNCS);
    while lengths.len() < SYNCS && (lengths.is_empty() || timer.elapsed() - begin < SYNC_LIMIT) {
        timer.sleep(Duration::ZERO)?;
        let before = timer.elapsed();
        file.write_all(&PAGE).and_then(|()| file.sync_data()).map_err(&cannot)?;
        lengths.push(timer.elapsed() - before);
    }
    Ok(check_syncs(lengths))
}

/// Checks the durations of syncs.
pub(crate) fn check_syncs(mut lengths: Vec<Duration>) -> Check {
    lengths.sort_unstable();
    let at = |share: usize| lengths.get(lengths.len() * share / 100).copied().unwrap_or_default();
    let (median, most) = (at(50), at(99));
    let found = format!("{} of a page: median {}, 99 of 100 within {}", lengths.len(), short(median), short(most));
    if median < FASTEST {
        let advice =
            "faster than a disk: this is memory, or syncs do not wait; a power failure may lose the last commits";
        return Check::odd("syncs", found, advice);
    }
    if median > SLOWEST {
        return Check::odd("syncs", found, "each start waits for a sync: expect at most a few starts per second");
    }
    Check::good("syncs", found)
}

/// A short duration: `24 us`, `1.7 ms`, `240 ms`.
fn short(length: Duration) -> String {
    match length.as_micros() {
        micros @ ..1_000 => format!("{micros} us"),
        micros @ ..10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        micros => format!("{} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_FREE, check_count, check_locks, check_mount, check_syncs};
    use crate::exec::machine::Mount;
    use crate::selftest::probe::{LockState, TIMES};
    use crate::selftest::report::{Check, Verdict};
    use std::time::Duration;

    fn verdict(kind: &str, free: u64) -> Verdict {
        check_mount(&Mount { kind: kind.into(), source: "source".into() }, "", Some(free)).verdict
    }

    #[test]
    fn a_network_file_system_fails_and_a_shared_volatile_or_full_one_is_noted() {
        for (name, expected) in [
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
            assert_eq!(verdict(name, MIN_FREE), expected, "{name}");
        }
        assert_eq!(verdict("ext4", MIN_FREE - 1), Verdict::Odd);
    }

    #[test]
    fn locks_that_do_not_exclude_or_are_not_released_fail() {
        use LockState::{Broken, Free, Held};
        let check = |while_held: [LockState; 2], while_free: [LockState; 2], held_by_child: [LockState; 2]| {
            check_locks(&while_held, &while_free, &held_by_child, Duration::from_millis(3))
        };
        let (free, held) = (|| [Free, Free], || [Held, Held]);
        let result = |check: Check| (check.verdict, check.found);
        let good = "file and SQLite locks exclude another process; released 3 ms after its death";
        assert_eq!(result(check(held(), free(), held())), (Verdict::Good, good.into()));
        for (check, found) in [
            (check([Free, Held], free(), held()), "file lock was found free while they were held"),
            (check([Held, Free], free(), held()), "SQLite lock was found free while they were held"),
            (check(held(), [Free, Held], held()), "SQLite lock was found held while they were free"),
            (check(held(), free(), free()), "file lock was found free while another process held them"),
            (
                check(held(), [Broken("no locks available".into()), Free], held()),
                "file lock was found no locks available while they were free",
            ),
        ] {
            assert!(check.verdict == Verdict::Bad && check.found.contains(found), "{check:?}");
        }
    }

    #[test]
    fn a_count_that_is_too_small_is_a_lost_update() {
        assert_eq!(check_count(2 * TIMES).verdict, Verdict::Good);
        let small = check_count(2 * TIMES - 1);
        let found = "two processes counted to 399 of 400 at the same time";
        assert_eq!((small.verdict, small.found.as_str()), (Verdict::Bad, found));
    }

    #[test]
    fn syncs_that_are_too_fast_or_slow_are_noted() {
        let of =
            |micros: u64| check_syncs((0..100).map(|more| Duration::from_micros(micros + more / 10)).rev().collect());
        assert_eq!(of(1_700).found, "100 of a page: median 1.7 ms, 99 of 100 within 1.7 ms");
        let verdicts = [0, 1_700, 240_000].map(|micros| of(micros).verdict);
        assert_eq!(verdicts, [Verdict::Odd, Verdict::Good, Verdict::Odd]);
        assert_eq!(check_syncs(vec![Duration::from_millis(9)]).verdict, Verdict::Good, "one is enough");
    }
}
