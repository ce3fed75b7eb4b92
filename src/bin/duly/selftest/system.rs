//! What differs between systems: which file system a folder is on, the room that is left there, and a process that the
//! terminal does not reach. Where the system does not tell, nothing is said.

use std::path::Path;
use std::process::Command;

/// Has a process lead a group of its own: Ctrl-C is for the one that started it.
pub(crate) fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// How many bytes may still be written in a folder.
#[cfg(unix)]
pub(crate) fn room_left(folder: &Path) -> Option<u64> {
    let told = rustix::fs::statvfs(folder).ok()?;
    told.f_bavail.checked_mul(told.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn room_left(_folder: &Path) -> Option<u64> {
    None
}

/// A file system, as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// `ext4`, `nfs4`, `tmpfs`.
    pub(crate) kind: String,
    /// The device, or the server.
    pub(crate) source: String,
}

/// The file system that a folder is on, given by its one name.
pub(crate) fn mount_of(folder: &Path) -> Option<Mount> {
    mount_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, folder)
}

/// The same, from the lines of `/proc/self/mountinfo`. Of two on one path the later hides the earlier.
fn mount_in(lines: &str, folder: &Path) -> Option<Mount> {
    let mounts = lines.lines().filter_map(|line| {
        // Where it is mounted is the fifth word; a few more, then a dash, the kind, the source.
        let (place, rest) = line.split_once(" - ")?;
        let point = unescaped(place.split(' ').nth(4)?);
        let mut words = rest.split(' ');
        let mount = Mount { kind: words.next()?.to_owned(), source: unescaped(words.next()?) };
        folder.starts_with(&point).then(|| (Path::new(&point).components().count(), mount))
    });
    mounts.max_by_key(|(length, _)| *length).map(|(_, mount)| mount)
}

/// Blanks and the like stand as three octal digits after a backslash.
fn unescaped(word: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Mount, mount_in};
    use std::path::Path;

    const LINES: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
28 27 0:33 / /home/anna/My\\040files rw - nfs4 server:/anna\\040b rw,vers=4.2
29 27 0:34 / /home/anna rw master:3 propagate_from:2 - xfs /dev/sdb1 rw
30 27 0:35 / /home/anna rw - tmpfs none rw
broken";

    #[test]
    fn the_deepest_mount_counts_and_of_two_the_later() {
        let of = |folder: &str| mount_in(LINES, Path::new(folder));
        let mount = |kind: &str, source: &str| Some(Mount { kind: kind.into(), source: source.into() });
        assert_eq!(of("/var/lib"), mount("ext4", "/dev/root"));
        assert_eq!(of("/home/annabel"), mount("ext4", "/dev/root"), "a name that only begins alike");
        assert_eq!(of("/home/anna/bot"), mount("tmpfs", "none"));
        assert_eq!(of("/home/anna/My files/bot"), mount("nfs4", "server:/anna b"));
        assert_eq!(mount_in("", Path::new("/")), None);
    }
}
