//! What is known of a worker before it is started.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cli::command_line::words;

/// Most processes of a worker.
pub(crate) const MAX_COPIES: u32 = 64;
/// Most workers that `duly run` starts.
pub(crate) const MAX_WORKERS: usize = 64;
/// Longest name, in bytes.
const MAX_NAME: usize = 200;
/// What the name of a worker must be, for messages.
pub(crate) const EXPECTED_NAME: &str = "a letter, then up to 199 letters, digits or . _ : / @ -";

/// The variable that names the file by whose lock an application is known to live.
pub(crate) const FILE: &str = "DULY_WORKER_FILE";

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerOptions {
    pub(crate) name: String,
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// `None`: the current directory.
    pub(crate) cwd: Option<PathBuf>,
    /// Added to what it inherits.
    pub(crate) env: BTreeMap<String, String>,
    /// How many processes are started.
    pub(crate) copies: u32,
    /// It is the application that has started this program: no process is started.
    pub(crate) is_application: bool,
}

impl WorkerOptions {
    /// Parses `NAME=ARGV..`: one process, in the current directory; or `-`: the application.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "-" {
            if std::env::var_os(FILE).is_none_or(|path| path.is_empty()) {
                return Err(format!(
                    "-: {FILE} does not name the file that the application has locked, as docs/workers.md describes"
                ));
            }
            let (name, argv) = ("application".to_owned(), Vec::new());
            return Ok(WorkerOptions { name, argv, cwd: None, env: BTreeMap::new(), copies: 1, is_application: true });
        }
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, command) =
            named.ok_or_else(|| format!("expected NAME=COMMAND, as in 'mail=node mail.mjs', found {text:?}"))?;
        let argv = words(command).map_err(|reason| format!("{name}: {reason}"))?;
        Ok(WorkerOptions {
            name: name.to_owned(),
            argv,
            cwd: None,
            env: BTreeMap::new(),
            copies: 1,
            is_application: false,
        })
    }
}

/// Whether a text can be the name of a worker. The rule is that of the names of tasks.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._:/@-".contains(letter);
    text.len() <= MAX_NAME && text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::WorkerOptions;

    #[test]
    fn a_worker_is_parsed() {
        let worker = WorkerOptions::parse("mail=node 'a b.mjs' --x=1").unwrap();
        assert_eq!((worker.name.as_str(), worker.copies), ("mail", 1));
        assert_eq!(worker.argv, ["node", "a b.mjs", "--x=1"]);
        for wrong in ["", "mail", "=node", "a b=node", "mail=", "mail='node"] {
            assert!(WorkerOptions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
