//! Users of the machine and their home directories, from the table that cron reads.

use std::collections::BTreeSet;

/// The table of users.
const USERS: &str = "/etc/passwd";

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    /// The home directory, if it is known.
    pub(crate) home: Option<String>,
}

/// Returns the current user.
pub(crate) fn current() -> User {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let found = current_uid().and_then(|uid| find(&users(), |fields| fields.get(2) == Some(&uid.as_str())));
    found.unwrap_or_else(|| User {
        name: variable("LOGNAME").or_else(|| variable("USERNAME")).unwrap_or_else(|| "nobody".to_owned()),
        home: variable("HOME").or_else(|| variable("USERPROFILE")),
    })
}

/// Returns a user by name. An unknown user has no home directory.
pub(crate) fn by_name(name: &str) -> User {
    let current = current();
    if current.name == name {
        return current;
    }
    let found = find(&users(), |fields| fields.first() == Some(&name));
    found.unwrap_or_else(|| User { name: name.to_owned(), home: None })
}

/// Returns the names of all users.
pub(crate) fn names() -> BTreeSet<String> {
    users().lines().filter_map(|line| line.split(':').next()).map(str::to_owned).collect()
}

fn users() -> String {
    std::fs::read_to_string(USERS).unwrap_or_default()
}

fn find(users: &str, is_it: impl Fn(&[&str]) -> bool) -> Option<User> {
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| is_it(fields))?;
    let home = fields.get(5).filter(|home| home.starts_with('/')).map(|home| (*home).to_owned());
    Some(User { name: fields.first()?.to_string(), home })
}

/// Whether this process is root, who may start commands of other users.
pub(crate) fn is_root() -> bool {
    current_uid().as_deref() == Some("0")
}

/// Returns the number of the current user, where users have numbers.
#[cfg(unix)]
pub(crate) fn current_uid() -> Option<String> {
    Some(rustix::process::getuid().as_raw().to_string())
}

#[cfg(not(unix))]
pub(crate) fn current_uid() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::{User, find};

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:1000:1000::/home/anna:/bin/bash\nnone:x:7:7:::\n";
        let anna = User { name: "anna".into(), home: Some("/home/anna".into()) };
        assert_eq!(find(users, |fields| fields.first() == Some(&"anna")), Some(anna.clone()));
        assert_eq!(find(users, |fields| fields.get(2) == Some(&"1000")), Some(anna));
        assert_eq!(find(users, |fields| fields.get(2) == Some(&"7")), Some(User { name: "none".into(), home: None }));
        assert_eq!(find(users, |fields| fields.first() == Some(&"eve")), None);
    }
}
