//! What a user may have meant by a command line that cannot be parsed.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words that other programs use for a command.
const OTHER_WORDS: [(&str, &[&str]); 8] = [
    ("run", &["serve", "server", "start", "daemon", "scheduler", "worker", "up"]),
    ("add", &["create", "new", "schedule", "at", "every", "cron"]),
    ("list", &["ls", "tasks", "jobs", "ps"]),
    ("remove", &["rm", "delete", "del", "unschedule"]),
    ("trigger", &["exec", "fire", "start-task", "enqueue"]),
    ("show", &["info", "describe", "get", "inspect"]),
    ("history", &["runs", "log"]),
    ("apply", &["sync", "load"]),
];

/// Adds to an error what was probably meant: the command of another word, or the `--` before a program.
pub(crate) fn hinted(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            if let Some(command) = given(&error, ContextKind::InvalidSubcommand).and_then(command_of) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command.to_owned()]));
            }
        }
        ErrorKind::UnknownArgument => {
            let takes_program = words.get(1..).unwrap_or_default().iter().any(|word| word == "add");
            let program = given(&error, ContextKind::InvalidArg).filter(|word| !word.starts_with('-'));
            if let Some(program) = program.filter(|_| takes_program && !words.iter().any(|word| word == "--")) {
                let tip = format!("to run a program, write it and its arguments last, after '--': -- {program}");
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
        }
        _ => {}
    }
    error
}

fn given(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

fn command_of(word: &str) -> Option<&'static str> {
    OTHER_WORDS.iter().find(|(_, words)| words.contains(&word)).map(|(command, _)| *command)
}

#[cfg(test)]
mod tests {
    use super::{OTHER_WORDS, command_of};
    use crate::cli::args::Args;
    use clap::CommandFactory;

    #[test]
    fn each_other_word_leads_to_a_command_and_is_none_itself() {
        let program = Args::command();
        for (command, words) in OTHER_WORDS {
            assert!(program.find_subcommand(command).is_some(), "{command}");
            assert!(words.iter().all(|word| program.find_subcommand(word).is_none()), "{words:?}");
        }
        assert_eq!((command_of("serve"), command_of("bake")), (Some("run"), None));
    }
}
