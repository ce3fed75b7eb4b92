//! Detects other names of a database file. SQLite names the write-ahead log after the path: under another name of the
//! same file, SQLite uses another log, two programs do not see each other's transactions, and a run starts twice. (A
//! symbolic link is harmless: SQLite opens its target.)

use std::fs::Metadata;
use std::path::Path;

use crate::host::platform;

/// Returns why a file with hard links cannot be used; `None` if it has one name.
pub(crate) fn hard_links(path: &Path, metadata: &Metadata) -> Option<String> {
    let names = platform::names(metadata, path);
    (names > 1).then(|| {
        format!(
            "it has {names} names (hard links), and a log of its own under each: remove all names but one \
             (find / -xdev -samefile {} lists them)",
            path.display()
        )
    })
}

/// Returns why a file that is a mount point of its own cannot be used. `path` is its real path. `None` if it is none,
/// or where the system does not report mounts.
pub(crate) fn mounted_alone(path: &Path) -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    is_mount_point(&mounts, path.as_os_str().as_encoded_bytes()).then(|| {
        "it is a mount point of its own, and its log is not that of the file it shows: mount the folder that holds the file"
            .to_owned()
    })
}

/// Returns whether a line of `/proc/self/mountinfo` names this path in its fifth word, in which a space, a tab, a
/// newline and a backslash are written as a backslash and three octal digits.
fn is_mount_point(mounts: &[u8], path: &[u8]) -> bool {
    let mut word = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => word.extend(format!("\\{byte:03o}").into_bytes()),
            _ => word.push(*byte),
        }
    }
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&*word))
}

#[cfg(test)]
mod tests {
    use super::is_mount_point;

    #[test]
    fn a_mount_point_matches_the_whole_fifth_word() {
        let mounts = b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
28 27 0:33 /a.db /data/a.db rw - ext4 /data/c.db rw
29 27 0:34 /b.db /data/my\\040bot\\134b.db rw - ext4 /dev/sdb1 rw
broken";
        let is = |path: &str| is_mount_point(mounts, path.as_bytes());
        assert!(is("/") && is("/data/a.db") && is("/data/my bot\\b.db"));
        assert!(
            !is("/data") && !is("/data/a.db2") && !is("/a.db") && !is("/data/c.db") && !is("/data/my\\040bot\\134b.db")
        );
    }
}
