//! What is known of a worker before it is started.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cli::command_line::words;

/// Most processes of a worker.
pub(crate) const MAX_COPIES: u32 = 64;
/// Longest name, in bytes.
const MAX_NAME: usize = 100;

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
}

impl WorkerOptions {
    /// Parses `NAME=ARGV..`: one process, in the current directory.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, command) =
            named.ok_or_else(|| format!("expected NAME=COMMAND, as in 'mail=node mail.mjs', found {text:?}"))?;
        let argv = words(command).map_err(|reason| format!("{name}: {reason}"))?;
        Ok(WorkerOptions { name: name.to_owned(), argv, cwd: None, env: BTreeMap::new(), copies: 1 })
    }
}

/// Whether a text can be the name of a worker.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(is_plain)
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
