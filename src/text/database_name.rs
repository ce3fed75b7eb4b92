//! The text that names a database: the path of a file, or the address of a server, which may hold a password.

use std::path::Path;

/// Returns whether a text is an address of PostgreSQL. Any other text is a path.
pub fn is_address(text: &Path) -> bool {
    text.to_str().is_some_and(|text| text.starts_with("postgres://") || text.starts_with("postgresql://"))
}

/// Returns the name as a message may show it: an address without its user, password and parameters.
pub fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let Some((scheme, rest)) = text.split_once("://").filter(|_| is_address(path)) else { return text.into_owned() };
    let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    // A password may hold any character that its writer forgot to escape.
    let server = if parameters.contains('@') { ".." } else { rest.rsplit('@').next().unwrap_or_default() };
    format!("{scheme}://{server}")
}

/// Returns whether an address holds a password, or may hold one.
pub fn has_password(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let Some((_, rest)) = text.split_once("://").filter(|_| is_address(path)) else { return false };
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || rest.split_once('?').is_some_and(|(_, parameters)| parameters.contains("password"))
}

/// Returns whether there may be a database of this name: whether a file exists; of a server, only the server knows.
pub fn may_exist(path: &Path) -> bool {
    is_address(path) || path.exists()
}

#[cfg(test)]
mod tests {
    use super::{has_password, shown};
    use std::path::Path;

    #[test]
    fn no_password_is_shown() {
        let name = |address| shown(Path::new(address));
        assert_eq!(name("postgres://me:s3/c@r?t@h:7/d?schema=x"), "postgres://..");
        assert_eq!(name("postgres://me:s3cret@h:7/d?schema=x&password=s3"), "postgres://h:7/d");
        assert_eq!(name("postgresql:///d"), "postgresql:///d");
        assert_eq!(name("a@b?c"), "a@b?c");
        let has_one = |address| has_password(Path::new(address));
        assert!(has_one("postgres://me:s3/c@r?t@h:7/d") && has_one("postgresql:///d?user=me&password=s3"));
        assert!(!has_one("postgres://me@h:7/d?schema=x") && !has_one("/a:b@c?password=d"));
    }
}
