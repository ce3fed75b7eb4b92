//! libpq's password file, `~/.pgpass`: lines of `host:port:database:user:password`.

use std::path::{Path, PathBuf};

/// A login for which a password is looked up.
pub(crate) struct Entry<'a> {
    /// A name, an IP address, or the folder of a Unix socket.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

/// Returns the path of the user's password file.
pub(crate) fn usual(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let of_home = |home: String| PathBuf::from(home).join(".pgpass");
    let of_windows = |folder: String| PathBuf::from(folder).join("postgresql").join("pgpass.conf");
    environment("PGPASSFILE")
        .map(PathBuf::from)
        .or_else(|| environment("HOME").map(of_home))
        .or_else(|| environment("APPDATA").map(of_windows))
}

/// Returns the password of the first line that fits. A file that others may read is ignored, as by libpq.
pub(crate) fn look_up(file: &Path, entry: &Entry<'_>) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    if !is_private(file) {
        log::warn!("{} is ignored: others may read it; chmod 600 makes it private", file.display());
        return None;
    }
    text.lines().find_map(|line| password(line, entry))
}

#[cfg(unix)]
fn is_private(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o077 == 0)
}

#[cfg(not(unix))]
fn is_private(_: &Path) -> bool {
    true
}

fn password(line: &str, entry: &Entry<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let fields = fields(line);
    let [host, port, database, user, password] = fields.as_slice() else { return None };
    let fits = |pattern: &String, value: &str| pattern == "*" || pattern == value;
    let of_this_machine = entry.host.starts_with('/') && host == "localhost";
    let fits = (fits(host, entry.host) || of_this_machine)
        && fits(port, &entry.port.to_string())
        && fits(database, entry.database)
        && fits(user, entry.user);
    fits.then(|| password.clone())
}

/// Splits a line at its colons. A backslash makes the next character an ordinary one.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 4 => fields.push(std::mem::take(&mut field)),
            '\\' => field.extend(characters.next()),
            _ => field.push(character),
        }
    }
    fields.push(field);
    fields
}
