//! Parser of the lines of a crontab, as in crontab(5). The times are not interpreted. Pure.

use crate::cli::values::truncated;

/// A line of a crontab.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A comment or a blank line.
    Blank,
    /// `NAME = value`, without quotes. As in cron, nothing is expanded.
    Variable { name: String, value: String },
    /// Any other line: times and a command.
    Entry(&'a str),
}

/// The parts of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Five fields, separated by single blanks, or one word such as `@daily`.
    pub(crate) times: String,
    /// The user, in a system crontab.
    pub(crate) user: Option<&'a str>,
    /// The command line for the shell.
    pub(crate) command: String,
    /// The standard input of the command.
    pub(crate) input: String,
}

pub(crate) fn parse(line: &str) -> Line<'_> {
    let line = line.trim_start_matches(BLANKS);
    if line.trim().is_empty() || line.starts_with('#') {
        return Line::Blank;
    }
    match variable(line) {
        Some((name, value)) => Line::Variable { name, value },
        None => Line::Entry(line),
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

/// Parses `NAME = value`, each optionally in quotes. As in cron, any other line is an entry.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, rest) = match quoted(line) {
        Some(parts) => parts,
        None => line.split_at(line.find(|c| c == '=' || BLANKS.contains(&c))?),
    };
    let value = rest.trim_start_matches(BLANKS).strip_prefix('=')?.trim_start_matches(BLANKS);
    if name.is_empty() {
        return None;
    }
    let value = match quoted(value) {
        Some((value, rest)) if rest.trim().is_empty() => value,
        // A quote that is not closed, or followed by text.
        _ if value.starts_with(['"', '\'']) => return None,
        _ => value.trim_end(),
    };
    Some((name.to_owned(), value.to_owned()))
}

/// Splits a text into the quoted part at its beginning and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| ['"', '\''].contains(c))?;
    text[1..].split_once(quote)
}

/// Parses an entry. `system`: a user precedes the command.
pub(crate) fn parse_entry(line: &str, system: bool) -> Result<Entry<'_>, String> {
    // Debian, SUSE and others: "do not log this command".
    let line = line.strip_prefix('-').unwrap_or(line);
    let count = if line.starts_with('@') { 1 } else { 5 };
    let mut rest = line;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let (word, after) = split_word(rest);
        times.push(word);
        rest = after;
    }
    let (first, _) = split_word(rest);
    if count == 5 && is_field_of_times(rest) {
        return Err(format!(
            "{:?} after the five fields looks like a sixth one: import a crontab of six or seven fields with duly import \
             supercronic, or write the path of the program if that is its name",
            truncated(first)
        ));
    }
    let user = if system {
        let (word, after) = split_word(rest);
        rest = after;
        Some(word)
    } else {
        None
    };
    if rest.is_empty() {
        let user = if system { ", a user" } else { "" };
        return Err(format!("expected five fields of times, or one such as @daily{user}, and a command"));
    }
    if let Some(random) = times.iter().find(|field| field.contains('~')) {
        return Err(format!(
            "{:?} is a random time: write a fixed time, or spread starts with --jitter",
            truncated(random)
        ));
    }
    if let [nickname @ ("@every_minute" | "@every_second")] = times[..] {
        let instead = if nickname == "@every_minute" { "* * * * *" } else { "* * * * * *" };
        times[0] = instead;
    }
    let (command, input) = percent(rest);
    if command.trim().is_empty() {
        return Err("the command is empty".to_owned());
    }
    Ok(Entry { times: times.join(" "), user, command, input })
}

/// Returns the command of an entry that can be parsed, as it is written.
pub(crate) fn whole_command(line: &str, system: bool) -> &str {
    let line = line.strip_prefix('-').unwrap_or(line);
    let times = if line.starts_with('@') { 1 } else { 5 };
    (0..times + usize::from(system)).fold(line, |rest, _| split_word(rest).1)
}

/// Whether a command begins with the flags that crons of the BSDs have: `-n`, `-q`, `-s`.
pub(crate) fn has_flags(command: &str) -> bool {
    let (word, rest) = split_word(command);
    let flags = word.strip_prefix('-').unwrap_or_default();
    !rest.is_empty() && !flags.is_empty() && flags.bytes().all(|flag| b"nqs".contains(&flag))
}

const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Whether a command begins with a word that is more likely a further field of times than a program: `*`, `*/5`, `2030`,
/// `MON-FRI`. A path and a word such as `7z` are programs. The name of one weekday is a program if it stands alone or an option
/// follows, as in `mon -f`.
pub(crate) fn is_field_of_times(command: &str) -> bool {
    let (word, rest) = split_word(command);
    let is_day = |name: &str| WEEKDAYS.iter().any(|day| day.eq_ignore_ascii_case(name));
    if is_day(word) {
        return !rest.is_empty() && !rest.starts_with('-');
    }
    let value = |text: &str| {
        let digits = text.strip_suffix(['L', 'l']).filter(|text| !text.is_empty()).unwrap_or(text);
        let day = text.strip_suffix(['L', 'l']).unwrap_or(text);
        (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())) || is_day(day)
    };
    let range = |text: &str| match text.split_once(['-', '#']) {
        Some((first, last)) => value(first) && value(last),
        None => text == "*" || text == "?" || value(text),
    };
    word.split(',').all(|item| match item.split_once('/') {
        Some((first, step)) => range(first) && value(step),
        None => range(item),
    })
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_at(text.find(BLANKS).unwrap_or(text.len()));
    (word, rest.trim_start_matches(BLANKS))
}

/// Splits a command from its input: the first `%` begins the input, each further one is a line end, and `\%` is a percent sign.
/// The input ends with a line end.
fn percent(text: &str) -> (String, String) {
    let (mut command, mut input) = (String::new(), String::new());
    let mut begun = false;
    let mut escaped = false;
    for letter in text.chars() {
        let into = if begun { &mut input } else { &mut command };
        match letter {
            '%' if escaped => {
                into.pop();
                into.push('%');
            }
            '%' if !begun => begun = true,
            '%' => into.push('\n'),
            other => into.push(other),
        }
        // In the command a backslash escapes a backslash; in the input each backslash escapes the next character.
        escaped = letter == '\\' && (begun || !escaped);
    }
    if !input.is_empty() && !input.ends_with('\n') {
        input.push('\n');
    }
    (command, input)
}

/// Whether a command line leaves a process in the background: it has an `&` outside of quotes that is neither one of `&&` nor part of a
/// redirection, and does not wait.
pub(crate) fn leaves_process(command: &str) -> bool {
    let (mut quote, mut before, mut leaves) = (None, ' ', false);
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None | Some('"'), '\\') => drop(letters.next()),
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#') if BLANKS.contains(&before) => break,
            (None, '&') if ['>', '<'].contains(&before) || letters.peek() == Some(&'>') => {}
            (None, '&') => leaves |= letters.next_if_eq(&'&').is_none(),
            _ => {}
        }
        before = letter;
    }
    leaves && !command.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "wait")
}

#[cfg(test)]
mod tests {
    use super::{Entry, Line, is_field_of_times, leaves_process, parse, parse_entry};

    #[test]
    fn a_command_that_leaves_a_process_is_recognized() {
        for leaves in ["prog &", "nohup prog >/dev/null 2>&1 &", "(sleep 9 && prog) & echo", "a & b", "echo '&' &"] {
            assert!(leaves_process(leaves), "{leaves}");
        }
        for waits in [
            "prog",
            "a && b",
            "prog >/dev/null 2>&1",
            "prog &> log",
            "curl 'x?a=1&b=2'",
            r"echo \&",
            "a & b & wait",
            "a # &",
        ] {
            assert!(!leaves_process(waits), "{waits}");
        }
    }

    #[test]
    fn names_of_other_crons_are_times() {
        let times = |line| parse_entry(line, false).map(|entry| (entry.times, entry.command));
        assert_eq!(times("@every_minute a"), Ok(("* * * * *".into(), "a".into())));
        assert_eq!(times("@every_second a"), Ok(("* * * * * *".into(), "a".into())));
    }

    #[test]
    fn a_field_of_times_is_distinguished_from_a_program() {
        for field in [
            "* echo",
            "*",
            "*/5 echo",
            "? x",
            "2030 x",
            "0 12 * x",
            "1-5 x",
            "1,15 x",
            "0-59/2 x",
            "MON x",
            "mon /bin/x",
            "MON-FRI x",
            "mon,wed",
            "5L x",
            "friL x",
            "FRI#2 x",
            "5#3 x",
            "2030-2035",
        ] {
            assert!(is_field_of_times(field), "{field}");
        }
        for program in [
            "7z a b",
            "2to3 x",
            "4store",
            "./7",
            "/usr/bin/7",
            "mon",
            "mon -f",
            "monit",
            "*.sh x",
            "*/bin/x",
            "-5 x",
            "[ -x a ]",
            "1a",
            "2>/dev/null x",
            ": x",
            "L x",
            "1,a",
            "",
            "A=1 x",
            "at now",
        ] {
            assert!(!is_field_of_times(program), "{program}");
        }
        // A nickname has no further field.
        assert_eq!(parse_entry("@daily 7 x", false).unwrap().command, "7 x");
    }

    #[test]
    fn a_line_is_blank_a_variable_or_an_entry() {
        for blank in ["", "  \t", "# 0 5 * * * true", "   # A=1", "\r"] {
            assert_eq!(parse(blank), Line::Blank, "{blank:?}");
        }
        for (line, name, value) in [
            ("SHELL=/bin/bash", "SHELL", "/bin/bash"),
            ("  PATH = /usr/bin:$HOME/bin  ", "PATH", "/usr/bin:$HOME/bin"),
            ("A=\"  kept  \"  ", "A", "  kept  "),
            ("A='it\"s'", "A", "it\"s"),
            ("\"B C\" = d", "B C", "d"),
            ("MAILTO=\"\"", "MAILTO", ""),
            ("MAILTO=", "MAILTO", ""),
            ("A=b # no comment", "A", "b # no comment"),
            ("A=b=c", "A", "b=c"),
            ("A=in\"side\"", "A", "in\"side\""),
        ] {
            assert_eq!(parse(line), Line::Variable { name: name.into(), value: value.into() }, "{line:?}");
        }
        for line in ["*/5 * * * * A=1 true", "@daily A=1", "0 5 * * 1 x=y", "A B=1", "A='open", "A=\"x\"y", "=1"] {
            assert_eq!(parse(line), Line::Entry(line), "{line:?}");
        }
    }

    #[test]
    fn an_entry_is_split_into_times_user_command_and_input() {
        let read = |line: &'static str, system| parse_entry(line, system).unwrap();
        let parts = |times: &str, user, command: &str, input: &str| Entry {
            times: times.into(),
            user,
            command: command.into(),
            input: input.into(),
        };
        assert_eq!(read("0  5\t* * 1-5   a  b ", false), parts("0 5 * * 1-5", None, "a  b ", ""));
        assert_eq!(read("-0 5 * * * a", false), parts("0 5 * * *", None, "a", ""));
        assert_eq!(read("@daily a b", false), parts("@daily", None, "a b", ""));
        assert_eq!(read("@daily root a b", true), parts("@daily", Some("root"), "a b", ""));
        assert_eq!(read("17 * * * *\troot    cd /", true), parts("17 * * * *", Some("root"), "cd /", ""));
        assert_eq!(read("@daily mail -s hi%Dear%all,%", false).input, "Dear\nall,\n");
        assert_eq!(read("@daily cat%one%two", false), parts("@daily", None, "cat", "one\ntwo\n"));
        assert_eq!(read("@daily cat%", false), parts("@daily", None, "cat", ""));
        assert_eq!(read(r"@daily date +\%F%50\% of\it", false), parts("@daily", None, "date +%F", "50% of\\it\n"));
        // Any other backslash is passed to the shell.
        assert_eq!(read(r"@daily a\ b \\%c", false), parts("@daily", None, r"a\ b \\", "c\n"));
        assert_eq!(read(r"@daily a%b\\%c", false), parts("@daily", None, "a", "b\\%c\n"));
        for (line, system, says) in [
            ("0 5 * * *", false, "expected five fields of times, or one such as @daily, and a command"),
            ("0 5 * * * root", true, "or one such as @daily, a user, and a command"),
            ("@daily", false, "and a command"),
            ("nonsense", false, "and a command"),
            ("@daily %input alone", false, "the command is empty"),
            ("0~30 5 * * * a", false, "\"0~30\" is a random time"),
            ("* * * * * * * echo 1", false, "\"*\" after the five fields looks like a sixth one"),
            ("* * * * * * root echo 1", true, "\"*\" after the five fields looks like a sixth one"),
        ] {
            let error = parse_entry(line, system).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
