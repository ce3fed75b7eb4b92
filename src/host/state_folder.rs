//! The local folder of a scheduler whose database is on a server: what stands beside a database in a file stands there, beside an
//! anchor, an empty file.

use std::env::{self, VarError};
use std::io;
use std::path::{Path, PathBuf};

use crate::host::folder;

/// Returns the anchor of a database in `state`, or in the folder of this user. `parts`: what identifies the database.
pub(crate) fn anchor(state: Option<&Path>, parts: &[&str]) -> io::Result<PathBuf> {
    let state = match state {
        Some(state) => state.to_owned(),
        None => of_user(env::var("DULY_STATE_DIR"), env::var("XDG_STATE_HOME"), env::var("HOME"), folder::this_user())?,
    };
    let name: Vec<String> = parts.iter().map(|part| file_name(part)).collect();
    Ok(std::path::absolute(&state)?.join(name.join("-")))
}

/// Creates the folder of an anchor, which is private.
pub(crate) fn prepare(anchor: &Path) -> io::Result<()> {
    let Some(state) = anchor.parent() else { return Ok(()) };
    if let Some(parent) = state.parent() {
        std::fs::create_dir_all(parent)?;
    }
    folder::make_private(state)?;
    // The lock files record which file this is.
    std::fs::OpenOptions::new().create(true).append(true).open(anchor).map(|_| ())
}

/// Returns the folder for tests: that of a user holds what must outlive them.
pub(crate) fn for_tests() -> PathBuf {
    let user = folder::this_user().map_or_else(String::new, |user| format!("-{user}"));
    env::temp_dir().join(format!("duly-testing{user}"))
}

type Variable = Result<String, VarError>;

fn of_user(own: Variable, xdg: Variable, home: Variable, user: Option<u32>) -> io::Result<PathBuf> {
    let absolute = |text: Variable| text.ok().map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(own) = own.ok().filter(|own| !own.is_empty()) {
        return Ok(own.into());
    }
    if let Some(xdg) = absolute(xdg) {
        return Ok(xdg.join("duly"));
    }
    if user == Some(0) {
        return Ok("/var/lib/duly".into());
    }
    let none = "no folder for the state of schedulers: set DULY_STATE_DIR";
    absolute(home).map(|home| home.join(".local/state/duly")).ok_or_else(|| io::Error::other(none))
}

/// Returns a part of a file name for any text: other characters than letters, digits and `_` are written as their bytes.
fn file_name(text: &str) -> String {
    let mut name = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{anchor, file_name, of_user, prepare};
    use std::env::VarError;
    use std::path::Path;

    // These paths are absolute on Unix.
    #[cfg(unix)]
    #[test]
    fn the_folder_is_that_of_the_variable_else_of_the_user() {
        let set = |text: &str| Ok(text.to_owned());
        let none = || Err(VarError::NotPresent);
        let found = |own, xdg, home, user| of_user(own, xdg, home, Some(user)).ok();
        assert_eq!(found(set("/a"), set("/b"), set("/c"), 0).as_deref(), Some(Path::new("/a")));
        assert_eq!(found(none(), set("/b"), set("/c"), 0).as_deref(), Some(Path::new("/b/duly")));
        assert_eq!(found(set(""), set("b"), set("/c"), 7).as_deref(), Some(Path::new("/c/.local/state/duly")));
        assert_eq!(found(none(), none(), set("/root"), 0).as_deref(), Some(Path::new("/var/lib/duly")));
        assert_eq!(found(none(), none(), none(), 7), None);
    }

    #[test]
    fn the_anchor_is_in_a_private_folder_and_its_name_is_one_of_a_file() {
        assert_eq!(file_name("a/b-ü"), "a%2fb%2d%c3%bc");
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("new/state");
        let anchor = anchor(Some(&state), &["7", "..", "duly"]).unwrap();
        assert_eq!(anchor, std::path::absolute(&state).unwrap().join("7-%2e%2e-duly"));
        prepare(&anchor).unwrap();
        prepare(&anchor).unwrap();
        assert!(state.is_dir() && anchor.is_file());
    }
}
