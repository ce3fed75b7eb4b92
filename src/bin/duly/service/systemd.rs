//! Units of systemd.

use std::path::{Path, PathBuf};

use crate::service::definition::{Definition, Manages, ServiceName, fill};
use crate::service::steps::{State, Step, Wanted, output};

const TEMPLATE: &str = include_str!("templates/systemd.service");

/// Folders whose units one in `/etc/systemd/system` would hide.
const OF_SYSTEM: [&str; 4] =
    ["/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
/// The same for units of a user.
const OF_USERS: [&str; 4] =
    ["/etc/systemd/user", "/run/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user"];

pub(crate) struct Systemd;

impl Manages for Systemd {
    fn file(&self, service: &ServiceName, folder: &dyn Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, String> {
        let units = if service.system {
            PathBuf::from("/etc/systemd/system")
        } else {
            let settings = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
            settings.ok_or("HOME names no folder")?.join("systemd/user")
        };
        Ok(units.join(unit(service)))
    }

    fn render(&self, definition: &Definition) -> Result<String, String> {
        let service = &definition.service;
        let order = "# A clock that is corrected after the start looks like an outage.\n\
                     After=local-fs.target time-sync.target\nWants=time-sync.target\n";
        let (order, target) = if service.system { (order, "multi-user.target") } else { ("", "default.target") };
        let mut command = program(&definition.program)?;
        definition.arguments().for_each(|word| command.extend([" ", &quoted(word, "$$")]));
        let edit = controlled(service, &["edit", &unit(service)])[1..].join(" ");
        Ok(fill(
            TEMPLATE,
            &[
                ("RECORD", definition.record()),
                ("EDIT", edit),
                ("NAME", service.name.clone()),
                ("ORDER", order.to_owned()),
                ("COMMAND", command),
                ("DIRECTORY", directory(&definition.directory)?),
                ("STOP", format!("{}s", definition.stop_seconds)),
                ("TARGET", target.to_owned()),
            ],
        ))
    }

    fn start(&self, definition: &Definition, _file: &str, replaced: bool) -> Vec<Step> {
        let service = &definition.service;
        let unit = unit(service);
        let mut steps = vec![step(service, &["daemon-reload"]), step(service, &["enable", "--now", &unit])];
        if replaced {
            steps[1] = step(service, &["enable", &unit]);
            steps.push(step(service, &["restart", &unit]));
        }
        steps
    }

    fn stop(&self, service: &ServiceName, _seconds: u64) -> Vec<Step> {
        vec![step(service, &["disable", "--now", &unit(service)])]
    }

    fn forget(&self, service: &ServiceName) -> Vec<Step> {
        // Fails if systemd has already forgotten the unit.
        let failed = Step { wanted: Wanted::Exit, ..step(service, &["reset-failed", &unit(service)]) };
        vec![step(service, &["daemon-reload"]), failed]
    }

    fn taken(&self, service: &ServiceName) -> Option<String> {
        let folders = if service.system { OF_SYSTEM } else { OF_USERS };
        let found = folders.iter().map(|folder| Path::new(folder).join(unit(service))).find(|unit| unit.exists());
        found.map(|unit| format!("there is a unit {}", unit.display()))
    }

    fn state(&self, service: &ServiceName) -> State {
        let words = controlled(service, &["show", "--property=ActiveState,UnitFileState", &unit(service)]);
        let text = match output(&words) {
            Ok(text) => text,
            Err(error) => return State::unknown(error.text()),
        };
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let (Some(active), Some(file)) = (value("ActiveState"), value("UnitFileState")) else {
            return State::unknown("systemctl shows no ActiveState".to_owned());
        };
        State {
            enabled: Some(file.starts_with("enabled")),
            running: Some(["active", "reloading", "deactivating"].contains(&active)),
            said: active.to_owned(),
        }
    }

    fn advice(&self, service: &ServiceName) -> &'static str {
        if service.system {
            "it starts at boot, and runs as root"
        } else {
            "it starts with your first session and ends with the last; after loginctl enable-linger, it starts at boot and stays"
        }
    }
}

fn unit(service: &ServiceName) -> String {
    format!("{}.service", service.name)
}

/// Returns the words of a command for the manager of the system, or of the user.
fn controlled(service: &ServiceName, words: &[&str]) -> Vec<String> {
    let user = (!service.system).then_some("--user");
    ["systemctl"].into_iter().chain(user).chain(words.iter().copied()).map(str::to_owned).collect()
}

fn step(service: &ServiceName, words: &[&str]) -> Step {
    Step { words: controlled(service, words), wanted: Wanted::Success(0) }
}

/// Returns the first word of a command line. Variables are not replaced in it, and systemd refuses quotes and backslashes.
fn program(path: &str) -> Result<String, String> {
    if path.contains(|letter: char| letter.is_ascii_control() || "\"'\\".contains(letter)) {
        return Err(format!(
            "systemd starts no program at a path with quotes, backslashes or control characters: {path:?}"
        ));
    }
    Ok(quoted(path, "$"))
}

/// Quotes a word of a command line. `dollar`: what stands for a dollar sign.
fn quoted(word: &str, dollar: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.,:=@+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for letter in word.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '%' => quoted.push_str("%%"),
            '$' => quoted.push_str(dollar),
            '\n' => quoted.push_str("\\n"),
            control if control.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// Returns the value of `WorkingDirectory=`, which systemd reads without quotes.
fn directory(path: &str) -> Result<String, String> {
    if path.contains(|letter: char| letter.is_ascii_control()) {
        return Err(format!("systemd enters no folder with control characters in its path: {path:?}"));
    }
    // A backslash at the end would continue the line, and a space would be dropped.
    let end = if path.ends_with(['\\', ' ']) { "/" } else { "" };
    Ok(path.replace('%', "%%") + end)
}

#[cfg(test)]
mod tests {
    use super::Systemd;
    use crate::service::definition::{Definition, Manages};
    use crate::service::tests::{HOSTILE, definition};

    /// Reads a word as systemd.syntax(7) and systemd.service(5) say.
    fn word(text: &str) -> String {
        let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
            return text.to_owned();
        };
        let (mut read, mut letters) = (String::new(), inner.chars());
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => match letters.next().unwrap() {
                    'n' => read.push('\n'),
                    'x' => {
                        let digits: String = letters.by_ref().take(2).collect();
                        read.push(char::from(u8::from_str_radix(&digits, 16).unwrap()));
                    }
                    other => read.push(other),
                },
                '%' | '$' => {
                    assert_eq!(letters.next(), Some(letter), "{text}");
                    read.push(letter);
                }
                '"' => panic!("{text}"),
                other => read.push(other),
            }
        }
        read
    }

    fn value<'a>(unit: &'a str, name: &str) -> &'a str {
        let mut found = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let value = found.next().unwrap_or_else(|| panic!("no {name} in {unit}"));
        assert_eq!(found.next(), None);
        value
    }

    #[test]
    fn each_word_is_read_as_it_was_given() {
        for path in HOSTILE {
            let unit = Systemd.render(&Definition { program: "/bin/duly".into(), ..definition(path) }).unwrap();
            let prefix = "/bin/duly run --db ";
            let line = value(&unit, "ExecStart").strip_prefix(prefix).unwrap();
            let (database, option) = line.split_once(" --alert-command ").unwrap();
            assert_eq!((word(database).as_str(), word(option).as_str()), (path, path));
        }
    }

    #[test]
    fn paths_that_systemd_reads_without_quotes_are_plain_or_refused() {
        for (path, written) in [
            ("/a b/100%", Some("/a b/100%%")),
            ("/a\\", Some("/a\\/")),
            ("/a ", Some("/a /")),
            ("/it's \"$HOME\"", Some("/it's \"$HOME\"")),
            ("/a\nb", None),
        ] {
            let unit = Systemd.render(&Definition { directory: path.into(), ..definition("/db") });
            assert_eq!(unit.ok().map(|unit| value(&unit, "WorkingDirectory").to_owned()).as_deref(), written);
        }
        for (path, written) in [
            ("/opt/a b/du%ly", Some("\"/opt/a b/du%%ly\"")),
            ("/opt/$HOME/duly", Some("\"/opt/$HOME/duly\"")),
            ("/opt/it's/duly", None),
            ("/opt/a\\b", None),
        ] {
            let unit = Systemd.render(&Definition { program: path.into(), ..definition("/db") });
            let first = unit.map(|unit| value(&unit, "ExecStart").split(" run --db").next().unwrap().to_owned());
            assert_eq!(first.ok().as_deref(), written);
        }
    }
}
