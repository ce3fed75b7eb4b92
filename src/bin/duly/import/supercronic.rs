//! Converts a crontab of supercronic to tasks that behave as under it: one attempt, no catch-up, no overlap, no timeout.

use std::collections::BTreeMap;

use duly::text::local_zone;
use duly::{ImportItem, Misfire, NewTask, Overlap, RetryPolicy, ScheduleKind, Zone};

use crate::cli::values::truncated;
use crate::exec::payload::Payload;
use crate::import::cronexpr::{self, Entry};
use crate::import::crontab::{GRACE, shortened};
use crate::import::name::Names;
use crate::import::source::{Note, Parsed, ParsedTask, Place};

/// Options of the import.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// The zone of the schedules, unless the file has a `CRON_TZ`.
    pub(crate) zone: &'a Zone,
    pub(crate) prefix: &'a str,
    /// What happens to an occurrence while the previous run is unfinished.
    pub(crate) overlap: Overlap,
}

/// A line that is neither blank nor a comment.
struct Line<'a> {
    place: Place,
    text: &'a str,
}

/// The variables of the file: the last value of each applies to all entries, also to those above it.
struct Variables {
    env: BTreeMap<String, String>,
    /// The zone of the schedules, or why it is invalid.
    zone: Result<Zone, String>,
}

/// Parses a crontab. A line that cannot be imported is refused; the others are not affected.
pub(crate) fn parse<'a>(bytes: &'a [u8], options: &'a Options<'_>) -> Parsed<'a> {
    let mut parsed = Parsed::default();
    let mut entries = Vec::new();
    let mut variables = Variables { env: BTreeMap::new(), zone: Ok(options.zone.clone()) };
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let place = Place::line(number + 1);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let begin = line.iter().position(|byte| ![b' ', b'\t'].contains(byte)).unwrap_or(line.len());
        let line = &line[begin..];
        // A comment may be in any encoding.
        if line.first().is_none_or(|first| *first == b'#') {
            continue;
        }
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(error) => {
                let reason = format!("expected UTF-8, found an invalid byte at offset {}", begin + error.valid_up_to());
                let text = shortened(&String::from_utf8_lossy(line)).into_owned();
                parsed.refused.push(Note { place, text, reason });
                continue;
            }
        };
        let line = Line { place, text };
        match variable(text) {
            Some((name, value)) => variables.set(name, value, options.zone, &line, &mut parsed),
            None => entries.push(line),
        }
    }
    if variables.env.contains_key("TZ")
        && let Ok(zone) = &variables.zone
    {
        let reason =
            format!("TZ: passed to the commands only, as under supercronic; their schedules are in {}", zone.name());
        parsed.remarks.push(Note { place: Place::default(), text: String::new(), reason });
    }
    let variables = std::rc::Rc::new(variables);
    let mut names = Names::new(options.prefix);
    for line in entries {
        match variables.name(line.text, &mut names) {
            Ok(name) => {
                let (variables, text) = (std::rc::Rc::clone(&variables), line.text);
                let item = Box::new(move |name: &str| match variables.task(name, text, options.overlap) {
                    Ok(task) => task.into(),
                    Err(reason) => ImportItem::refused(name, reason),
                });
                parsed.tasks.push(ParsedTask { place: line.place, text: shortened(text), name, item });
            }
            Err(reason) => parsed.refused.push(line.note(reason)),
        }
    }
    parsed
}

/// Parses `NAME = value` by the rules of supercronic: blanks at the end of the value are part of it, and quotes are removed if
/// the first and the last character are the same quote.
fn variable(line: &str) -> Option<(&str, &str)> {
    let is_blank = |c: char| c.is_ascii_whitespace();
    let (name, rest) = line.split_at(line.find(|c: char| c == '=' || is_blank(c))?);
    let value = rest.trim_start_matches(is_blank).strip_prefix('=')?.trim_start_matches(is_blank);
    let quote = value.chars().next().filter(|c| ['"', '\''].contains(c) && value.len() > 1);
    let inner = quote.and_then(|quote| value[1..].strip_suffix(quote));
    (!name.is_empty()).then_some((name, inner.unwrap_or(value)))
}

impl Line<'_> {
    fn note(&self, reason: String) -> Note {
        Note { place: self.place.clone(), text: shortened(self.text).into_owned(), reason }
    }
}

impl Variables {
    fn set(&mut self, name: &str, value: &str, local: &Zone, line: &Line<'_>, parsed: &mut Parsed<'_>) {
        // Only this line is refused: the commands can run without the variable.
        if name.contains('\0') || value.contains('\0') {
            return parsed.refused.push(line.note("a NUL character cannot be passed to a command".into()));
        }
        if self.env.get(name).is_some_and(|before| before != value) {
            let remark = format!("the last {} applies to all entries, as under supercronic", truncated(name));
            parsed.remarks.push(line.note(remark));
        }
        match name {
            "CRON_TZ" => {
                let zone = if value == "Local" { Some(local.clone()) } else { local_zone::from_variable(value) };
                self.zone = zone.ok_or_else(|| format!("CRON_TZ is not a time zone: {:?}", truncated(value)));
                if let Err(reason) = &self.zone {
                    parsed.refused.push(line.note(format!("{reason}; it applies to all entries")));
                }
            }
            "USER" => {
                let remark = "passed to the commands only, as under supercronic: they run as the user of the scheduler";
                parsed.remarks.push(line.note(remark.into()));
            }
            _ => {}
        }
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// Returns a name for an entry that can be imported.
    fn name(&self, line: &str, names: &mut Names<'_>) -> Result<String, String> {
        let Entry { times, command } = cronexpr::entry(line)?;
        let zone = self.zone.as_ref().map_err(String::clone)?;
        let cron_tz = if self.env.contains_key("CRON_TZ") { zone.name() } else { "" };
        // The name depends on the entry and on CRON_TZ, not on its line number or on other variables.
        let name = names.for_command(command, &[&times, command, "", cron_tz]);
        self.payload(command).checked()?;
        Ok(name)
    }

    /// Returns the task of an entry.
    fn task(&self, name: &str, line: &str, overlap: Overlap) -> Result<NewTask, String> {
        let Entry { times, command } = cronexpr::entry(line)?;
        let zone = self.zone.as_ref().map_err(String::clone)?;
        Ok(NewTask::scheduled(name, ScheduleKind::Cron, times)
            .time_zone(zone.name())
            .handler("command")
            .payload(self.payload(command))
            .misfire(Misfire::Skip, GRACE)
            .overlap(overlap)
            .retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })
            .timeout(std::time::Duration::ZERO))
    }

    /// The command starts in the working directory of the scheduler, as under supercronic. A `%` is not special.
    fn payload(&self, command: &str) -> Payload {
        let shell = self.env.get("SHELL").map_or("/bin/sh", String::as_str);
        Payload {
            argv: vec![shell.to_owned(), "-c".to_owned(), command.to_owned()],
            env: self.env.clone(),
            ..Payload::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn a_variable_is_parsed_as_by_supercronic() {
        for (line, name, value) in [
            ("FOO=bar", "FOO", "bar"),
            ("FOO  =  bar baz ", "FOO", "bar baz "),
            ("FOO=\"bar\"", "FOO", "bar"),
            ("FOO='it's'", "FOO", "it's"),
            ("FOO='", "FOO", "'"),
            ("FOO=''", "FOO", ""),
            ("FOO=\"bar' ", "FOO", "\"bar' "),
            ("FOO=", "FOO", ""),
            ("A=b=c", "A", "b=c"),
            ("\"A=b", "\"A", "b"),
        ] {
            assert_eq!(variable(line), Some((name, value)), "{line}");
        }
        for line in ["* * * * * A=b c", "@daily A=b", "=x", "FOO", "FOO BAR=1"] {
            assert_eq!(variable(line), None, "{line}");
        }
    }
}
