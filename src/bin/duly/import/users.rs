//! Who runs this, and where people are at home: what cron reads in the table of users.

use std::collections::BTreeSet;

/// The table of users.
const USERS: &str = "/etc/passwd";

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) name: String,
    /// The home folder, if anything tells.
    pub(crate) home: Option<String>,
}

/// Whoever runs this.
pub(crate) fn me() -> Person {
    let told = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let found = my_number().and_then(|number| find(&users(), |fields| fields.get(2) == Some(&number.as_str())));
    found.unwrap_or_else(|| Person {
        name: told("LOGNAME").or_else(|| told("USERNAME")).unwrap_or_else(|| "nobody".to_owned()),
        home: told("HOME").or_else(|| told("USERPROFILE")),
    })
}

/// A user by name, who need not be known here.
pub(crate) fn named(name: &str) -> Person {
    let myself = me();
    if myself.name == name {
        return myself;
    }
    let found = find(&users(), |fields| fields.first() == Some(&name));
    found.unwrap_or_else(|| Person { name: name.to_owned(), home: None })
}

/// The names of all who are known here.
pub(crate) fn all() -> BTreeSet<String> {
    users().lines().filter_map(|line| line.split(':').next()).map(str::to_owned).collect()
}

fn users() -> String {
    std::fs::read_to_string(USERS).unwrap_or_default()
}

fn find(users: &str, is_it: impl Fn(&[&str]) -> bool) -> Option<Person> {
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| is_it(fields))?;
    let home = fields.get(5).filter(|home| home.starts_with('/')).map(|home| (*home).to_owned());
    Some(Person { name: fields.first()?.to_string(), home })
}

#[cfg(unix)]
fn my_number() -> Option<String> {
    Some(rustix::process::getuid().as_raw().to_string())
}

#[cfg(not(unix))]
fn my_number() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::{Person, find};

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:1000:1000::/home/anna:/bin/bash\nnone:x:7:7:::\n";
        let anna = Person { name: "anna".into(), home: Some("/home/anna".into()) };
        assert_eq!(find(users, |fields| fields.first() == Some(&"anna")), Some(anna.clone()));
        assert_eq!(find(users, |fields| fields.get(2) == Some(&"1000")), Some(anna));
        assert_eq!(find(users, |fields| fields.get(2) == Some(&"7")), Some(Person { name: "none".into(), home: None }));
        assert_eq!(find(users, |fields| fields.first() == Some(&"eve")), None);
    }
}
