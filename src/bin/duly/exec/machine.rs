//! Platform differences: the name of this machine, private folders, the file system of a folder, its free space, and processes in their own group.
//! What the system does not provide is `None`.

use std::io;
use std::path::Path;
use std::process::Command;

/// Starts a process in its own group, so that Ctrl-C reaches only its parent.
pub(crate) fn own_group(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Returns the name of this machine.
pub(crate) fn host() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Creates a folder that only its owner may enter. Fails if it exists.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(path);
    #[cfg(not(unix))]
    std::fs::create_dir(path)
}

/// Returns the free space of the file system of a folder, in bytes.
#[cfg(unix)]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_space(_folder: &Path) -> Option<u64> {
    None
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// `ext4`, `nfs4`, `tmpfs`.
    pub(crate) kind: String,
    /// The device, or the server.
    pub(crate) source: String,
}

/// Returns the file system of a folder, which is given by its canonical path.
pub(crate) fn mount_of(folder: &Path) -> Option<Mount> {
    #[cfg(windows)]
    return share_of(folder);
    #[cfg(not(windows))]
    mount_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, folder)
}

/// Windows: a folder of another machine, also if a drive letter leads to it. `None` for a disk of this machine.
#[cfg(windows)]
fn share_of(folder: &Path) -> Option<Mount> {
    use std::path::{Component, Prefix};
    let Some(Component::Prefix(prefix)) = folder.components().next() else { return None };
    let (Prefix::UNC(server, share) | Prefix::VerbatimUNC(server, share)) = prefix.kind() else { return None };
    Some(Mount { kind: "smb".to_owned(), source: format!(r"\\{}\{}", server.display(), share.display()) })
}

/// Finds the file system in the text of `/proc/self/mountinfo`. Of two mounts on one path, the later hides the earlier.
#[cfg_attr(windows, allow(dead_code, reason = "Windows has no such file"))]
fn mount_in(lines: &str, folder: &Path) -> Option<Mount> {
    let mounts = lines.lines().filter_map(|line| {
        // The fifth word is the mount point; after " - " follow the type and the source.
        let (place, rest) = line.split_once(" - ")?;
        let point = unescaped(place.split(' ').nth(4)?);
        let mut words = rest.split(' ');
        let mount = Mount { kind: words.next()?.to_owned(), source: unescaped(words.next()?) };
        folder.starts_with(&point).then(|| (Path::new(&point).components().count(), mount))
    });
    mounts.max_by_key(|(length, _)| *length).map(|(_, mount)| mount)
}

/// Decodes octal escapes of blanks and other characters.
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

    #[cfg(windows)]
    #[test]
    fn a_folder_of_another_machine_is_known_by_its_path() {
        let share = Some(Mount { kind: "smb".into(), source: r"\\server\anna".into() });
        assert_eq!(super::mount_of(Path::new(r"\\server\anna\bot")), share);
        assert_eq!(super::mount_of(Path::new(r"\\?\UNC\server\anna\bot")), share);
        assert_eq!([r"C:\bot", r"\\?\C:\bot", "bot"].map(|path| super::mount_of(Path::new(path))), [None, None, None]);
    }

    #[test]
    fn the_deepest_and_latest_mount_is_found() {
        let of = |folder: &str| mount_in(LINES, Path::new(folder));
        let mount = |kind: &str, source: &str| Some(Mount { kind: kind.into(), source: source.into() });
        assert_eq!(of("/var/lib"), mount("ext4", "/dev/root"));
        assert_eq!(of("/home/annabel"), mount("ext4", "/dev/root"), "the same prefix");
        assert_eq!(of("/home/anna/bot"), mount("tmpfs", "none"));
        assert_eq!(of("/home/anna/My files/bot"), mount("nfs4", "server:/anna b"));
        assert_eq!(mount_in("", Path::new("/")), None);
    }
}
