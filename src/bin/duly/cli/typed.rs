//! Errors of the library in the words of the command line: they name fields of tasks and settings, and a user has typed options.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};
use duly::Error;

use crate::cli::failure::Failure;
use crate::cli::values::truncated;

/// Fields whose option has another name. All others are the name of an argument, without the unit.
const OTHER: [(&str, &str); 7] = [
    ("request_key", "key"),
    ("time_zone", "tz"),
    ("concurrency_key", "key"),
    ("max_running", "running"),
    ("max_starts", "rate"),
    ("per", "rate"),
    ("page", "http"),
];

/// The field of a zone, which a stored task may have, too.
const ZONE: &str = "time_zone";

/// The options that are a schedule.
const SCHEDULE: &str = "when";

/// The command that was given, and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    command: Command,
    matches: ArgMatches,
}

impl Typed {
    /// The arguments of the innermost command.
    pub(crate) fn new(program: &Command, matches: &ArgMatches) -> Self {
        let (mut command, mut matches) = (program, matches);
        while let Some((name, below)) = matches.subcommand()
            && let Some(found) = command.find_subcommand(name)
        {
            (command, matches) = (found, below);
        }
        Typed { command: command.clone(), matches: matches.clone() }
    }

    /// Names the argument that an error is about, with the value that was typed. Such a failure is wrong usage. An error about anything
    /// else stays as it is.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        match error {
            Error::InvalidTask { field, found, expected } => match self.argument(field) {
                Some(arg) if field != ZONE || self.is_typed(&found) => {
                    Failure::Usage(self.refused(arg, Some(&found), &format!("expected {expected}")))
                }
                _ => Failure::Duly(Error::InvalidTask { field, found, expected }),
            },
            Error::InvalidConfig { field, reason } => match self.argument(field) {
                Some(arg) => {
                    // What was found is what was typed.
                    let ends = reason.rsplit_once(", found ").filter(|(_, found)| !found.contains(": "));
                    Failure::Usage(self.refused(arg, None, ends.map_or(&*reason, |(expected, _)| expected)))
                }
                None => Failure::Usage(Error::InvalidConfig { field, reason }.to_string()),
            },
            Error::ZoneUnavailable { zone, expected } => match self.argument(ZONE) {
                Some(arg) if self.is_typed(&zone) => {
                    Failure::Usage(self.refused(arg, Some(&zone), &format!("expected {expected}")))
                }
                _ => Failure::Duly(Error::ZoneUnavailable { zone, expected }),
            },
            Error::InvalidSchedule { text, reason } => match self.schedule() {
                Some(arg) => Failure::Usage(self.refused(arg, Some(&text), &reason)),
                None if self.is_typed(&text) => {
                    Failure::Usage(self.in_options(&Error::InvalidSchedule { text, reason }.to_string()))
                }
                None => Failure::Duly(Error::InvalidSchedule { text, reason }),
            },
            other => Failure::Duly(other),
        }
    }

    /// Replaces the names of fields in a text by options.
    pub(crate) fn in_options(&self, text: &str) -> String {
        let (mut whole, mut rest) = (String::new(), text);
        let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        while let Some(begin) = rest.find(is_in_name) {
            let end = rest[begin..].find(|letter| !is_in_name(letter)).map_or(rest.len(), |length| begin + length);
            let word = &rest[begin..end];
            whole.push_str(&rest[..begin]);
            match self.argument(word).filter(|_| word.contains('_')) {
                Some(arg) => whole.push_str(&option(arg)),
                None => whole.push_str(word),
            }
            rest = &rest[end..];
        }
        whole + rest
    }

    /// `invalid --backoff "0s": expected ..`. `found`: the value if it was not typed, such as a default.
    fn refused(&self, arg: &Arg, found: Option<&str>, expected: &str) -> String {
        let expected = self.in_options(expected);
        match (self.typed(arg), found) {
            (Some(typed), _) => format!("invalid {} {:?}: {expected}", option(arg), truncated(&typed)),
            (None, Some(found)) => format!("invalid {}: {expected}, found {found:?}", option(arg)),
            (None, None) => format!("invalid {}: {expected}", option(arg)),
        }
    }

    /// The argument that sets a field.
    pub(crate) fn argument(&self, field: &str) -> Option<&Arg> {
        if field == "schedule_value" {
            return self.schedule();
        }
        let field = field.strip_suffix("_ms").unwrap_or(field);
        let of_id = |id: &str| self.command.get_arguments().find(|arg| arg.get_id() == id);
        of_id(field).or_else(|| OTHER.iter().find(|(other, _)| *other == field).and_then(|(_, id)| of_id(id)))
    }

    /// The option that is the schedule.
    pub(crate) fn schedule(&self) -> Option<&Arg> {
        self.command.get_groups().find(|group| group.get_id() == SCHEDULE)?;
        let id = self.matches.get_one::<Id>(SCHEDULE)?;
        self.command.get_arguments().find(|arg| arg.get_id() == id)
    }

    /// Whether a text was typed as the value of an argument, and not read from a file or from the database.
    fn is_typed(&self, text: &str) -> bool {
        // An error has the beginning of a long one.
        let begins = |typed: &str| text.strip_suffix("...").is_some_and(|begin| typed.starts_with(begin));
        let is_it = |typed: String| typed == text || begins(&typed);
        self.command.get_arguments().any(|arg| self.typed(arg).is_some_and(is_it))
    }

    /// The value of an argument as it was typed.
    pub(crate) fn typed(&self, arg: &Arg) -> Option<String> {
        let id = arg.get_id().as_str();
        let is_typed = arg.get_action().takes_values()
            && self.matches.value_source(id).is_some_and(|source| source == ValueSource::CommandLine);
        let values = self.matches.get_raw(id).filter(|_| is_typed)?;
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        Some(values.join(","))
    }
}

/// The name of an option, or of what stands at its place.
pub(crate) fn option(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => arg.get_id().as_str().to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::Typed;
    use crate::cli::args::Args;
    use crate::cli::failure::Failure;
    use duly::Error;

    fn typed(line: &[&str]) -> Typed {
        let words = ["duly"].into_iter().chain(line.iter().copied()).map(Into::into);
        Args::parse_words(words).unwrap_or_else(|error| panic!("{line:?}: {error}")).1
    }

    fn add(options: &[&str]) -> Typed {
        typed(&[&["add", "t"], options, &["--", "true"]].concat())
    }

    fn of_task(field: &'static str) -> Error {
        Error::InvalidTask { field, found: "0ms".into(), expected: "at most its cap (backoff_cap_ms)".into() }
    }

    #[test]
    fn an_error_names_the_option_and_the_value_as_they_were_typed() {
        let backoff = add(&["--every", "1h", "--backoff", "0s"]);
        let usage = |typed: &Typed, error| match typed.failure(error) {
            failure @ Failure::Usage(_) => failure.to_string(),
            other => panic!("{other:?}"),
        };
        let expected = "expected at most its cap (--backoff-cap)";
        assert_eq!(usage(&backoff, of_task("backoff_ms")), format!("invalid --backoff \"0s\": {expected}"));
        assert_eq!(
            usage(&backoff, of_task("backoff_cap_ms")),
            format!("invalid --backoff-cap: {expected}, found \"0ms\""),
            "not typed: its default"
        );
        for (field, option) in [("name", "NAME \"t\""), ("except_on", "--except"), ("concurrency_key", "--key")] {
            assert!(usage(&backoff, of_task(field)).starts_with(&format!("invalid {option}: ")), "{field}");
        }
        let schedule = || Error::InvalidSchedule { text: "61".into(), reason: "expected 5 fields".into() };
        assert_eq!(usage(&add(&["--cron", "61"]), schedule()), "invalid --cron \"61\": expected 5 fields");
        assert_eq!(usage(&typed(&["next", "61"]), schedule()), "invalid schedule \"61\": expected 5 fields");
        let zone = || Error::ZoneUnavailable { zone: "Rome".into(), expected: "an IANA name".into() };
        let next = typed(&["next", "@daily", "--tz", "Rome"]);
        assert_eq!(usage(&next, zone()), "invalid --tz \"Rome\": expected an IANA name");
        let config = Error::InvalidConfig { field: "poll", reason: "expected 10 ms to an hour, found 0ms".into() };
        assert_eq!(usage(&typed(&["run", "--poll", "0"]), config), "invalid --poll \"0\": expected 10 ms to an hour");
        let of_limit = Error::InvalidTask { field: "per_ms", found: "0ms".into(), expected: "1ms".into() };
        assert_eq!(
            usage(&typed(&["limit", "set", "--handler", "mail", "--rate", "1/0"]), of_limit),
            "invalid --rate \"1/0\": expected 1ms"
        );
    }

    #[test]
    fn an_error_about_what_was_not_typed_stays_as_it_is() {
        let apply = typed(&["apply", "tasks.toml"]);
        assert!(matches!(apply.failure(of_task("backoff_ms")), Failure::Duly(_)));
        let schedule = Error::InvalidSchedule { text: "61".into(), reason: "expected 5 fields".into() };
        assert!(matches!(apply.failure(schedule), Failure::Duly(_)));
        // Of a stored task.
        let next = typed(&["next", "nightly"]);
        let schedule = Error::InvalidSchedule { text: "61".into(), reason: "expected 5 fields".into() };
        assert!(matches!(next.failure(schedule), Failure::Duly(_)));
        let zone = Error::ZoneUnavailable { zone: "Mars/Olympus".into(), expected: "an IANA name".into() };
        assert!(matches!(next.failure(zone), Failure::Duly(_)));
        let unknown = Error::UnknownTask { name: "t".into() };
        assert!(matches!(add(&["--now"]).failure(unknown), Failure::Duly(_)));
    }
}
