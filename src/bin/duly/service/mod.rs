//! Services of the operating system that run `duly run`: the file for each service manager, and the commands that it is given.

pub(crate) mod definition;
pub(crate) mod launchd;
pub(crate) mod steps;
pub(crate) mod systemd;
pub(crate) mod windows;

#[cfg(test)]
pub(crate) mod tests {
    use crate::service::definition::{Definition, ServiceName};

    /// Paths and options with what is special to systemd, XML and Windows.
    pub(crate) const HOSTILE: [&str; 14] = [
        "/plain/app.db",
        "/with blank/ app.db ",
        "/it's \"quoted\"",
        "/100%/%h/%%n",
        "/$HOME/${PATH}/$$/$",
        "/back\\slash\\\\\"\\",
        "/a&b<c>d]]>/&amp;",
        "/@NAME@/@",
        "/na\u{ef}ve/\u{65e5}\u{672c}/\u{1f600}",
        "/tab\tline\nreturn\r",
        "/bell\u{7}/delete\u{7f}",
        "; #",
        "",
        "--<!-- -->",
    ];

    /// Whether XML cannot express a text.
    pub(crate) fn is_refused(text: &str) -> bool {
        text.contains('\u{7}')
    }

    /// A service of a user with this database, and an option of this value.
    pub(crate) fn definition(path: &str) -> Definition {
        Definition {
            service: ServiceName { name: "duly".into(), system: false },
            program: "/usr/bin/duly".into(),
            database: path.into(),
            directory: "/".into(),
            options: vec!["--alert-command".into(), path.into()],
            stop_seconds: 90,
            log: None,
            user: None,
        }
    }
}
