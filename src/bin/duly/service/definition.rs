//! What a service runs, the line of its file that records it, and what the files of two managers have in common.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::service::steps::{State, Step};

/// Begins the record in the file of a service: only a file that holds one is replaced or removed.
const MARK: &str = "duly service: ";

/// The name by which a service manager knows a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceName {
    /// `duly`, or `duly-NAME`.
    pub(crate) name: String,
    /// A service of the machine. Else: of the user.
    pub(crate) system: bool,
}

/// What a service runs. The file of the service follows from it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub(crate) service: ServiceName,
    /// Absolute path of the program.
    pub(crate) program: String,
    /// Absolute path of the database, or the address of a server.
    pub(crate) database: String,
    /// The folder in which relative paths of the options are looked up.
    pub(crate) directory: String,
    /// Options of `duly run`.
    pub(crate) options: Vec<String>,
    /// Seconds from the request to stop until the manager kills what is left.
    pub(crate) stop_seconds: u64,
    /// File of the log, where the manager keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<String>,
    /// User at whose logon the service starts, where the manager has no users of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
}

impl Definition {
    /// Returns the arguments of the program.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        ["run", "--db", &self.database].into_iter().chain(self.options.iter().map(String::as_str))
    }

    /// Returns the record: one line of text that is valid in a comment of XML, too, which may not hold two hyphens.
    pub(crate) fn record(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{MARK}{}", json.replace("--", r"-\u002d"))
    }

    /// Reads the record in the text of a file; `None`: duly did not write the file.
    pub(crate) fn recorded(text: &str) -> Option<Self> {
        let (_, rest) = text.lines().find_map(|line| line.split_once(MARK))?;
        serde_json::from_str(&rest[..=rest.rfind('}')?]).ok()
    }
}

/// A service manager. What is decided here is pure, except for [`Manages::state`] and [`Manages::taken`].
pub(crate) trait Manages {
    /// Returns the file of a service. `folder`: the value of an environment variable that is an absolute path.
    ///
    /// # Errors
    /// If the variable that names the folder is not set.
    fn file(&self, service: &ServiceName, folder: &dyn Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, String>;

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If the form of the file cannot express a path or an option.
    fn render(&self, definition: &Definition) -> Result<String, String>;

    /// Returns the commands that make the file known, enable the service and start it. `replaced`: it may be running, by another file.
    fn start(&self, definition: &Definition, file: &str, replaced: bool) -> Vec<Step>;

    /// Returns the commands that stop and disable the service, before its file is removed.
    fn stop(&self, service: &ServiceName, seconds: u64) -> Vec<Step>;

    /// Returns the commands that make known that the file was removed.
    fn forget(&self, _service: &ServiceName) -> Vec<Step> {
        Vec::new()
    }

    /// Returns what else has the name of the service.
    fn taken(&self, service: &ServiceName) -> Option<String>;

    /// Asks whether the service is enabled and running.
    fn state(&self, service: &ServiceName) -> State;

    /// Says in words when the service runs, and what to type for more.
    fn advice(&self, service: &ServiceName) -> &'static str;
}

/// Replaces `@NAME@` in a template by the value of this name. Values are not looked into.
pub(crate) fn fill(template: &str, values: &[(&str, String)]) -> String {
    let value = |name: &str| values.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value);
    let parts = template.split('@').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part } else { value(part) }).collect()
}

/// Returns a text as the content of an element of XML 1.0.
///
/// # Errors
/// If it has a character that XML cannot express.
pub(crate) fn xml(text: &str) -> Result<String, String> {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(letter))),
            '\0'..=' ' if letter != ' ' => return Err(format!("XML cannot express the control character in {text:?}")),
            '\u{fffe}' | '\u{ffff}' => return Err(format!("XML cannot express a character of {text:?}")),
            other => escaped.push(other),
        }
    }
    Ok(escaped)
}

#[cfg(test)]
mod tests {
    use super::{Definition, fill};
    use crate::service::tests::{HOSTILE, definition};

    #[test]
    fn a_record_is_read_from_any_text_that_holds_it() {
        for path in HOSTILE.into_iter().chain(["--", "---->", "} -->"]) {
            let written = definition(path);
            let record = written.record();
            assert!(!record.contains("--") && record.lines().count() == 1, "{record}");
            for text in [format!("# {record}\n[Unit]\n"), format!("<?xml?>\r\n<!-- {record} -->\r\n<Task/>")] {
                assert_eq!(Definition::recorded(&text).as_ref(), Some(&written));
            }
        }
        for foreign in ["", "[Unit]\nDescription=duly", "# duly service: ", "# duly service: {}", "# duly service: }{"]
        {
            assert_eq!(Definition::recorded(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn values_are_not_looked_into() {
        let values = [("A", "@B@".to_owned()), ("B", "b@".to_owned())];
        assert_eq!(fill("x @A@ y\n@B@@A@", &values), "x @B@ y\nb@@B@");
    }
}
