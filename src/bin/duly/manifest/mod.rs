//! Manifests: tasks in a TOML file.
//!
//! ```toml
//! [defaults]
//! time_zone = "Europe/Rome"
//! [[task]]
//! name = "nightly-report"
//! cron = "0 6 * * *"
//! command = ["./report.sh", "--yesterday"]
//! timeout = "10m"
//! [[limit]]
//! concurrency_key = "smtp"
//! running = 3
//! [[limit]]
//! handler = "mail"
//! rate = "100/1m"
//! [[worker]]
//! name = "mail"
//! command = ["node", "mail.mjs"]
//! [handler.mail]
//! payload_schema = { type = "object", required = ["to"], properties = { to = { type = "string" } } }
//! [[template]]
//! name = "post"
//! command = ["./post.sh", "--", "{text}"]
//! parameters.text = { max_length = 280 }
//! ```

mod calendar;
mod entry;
#[cfg_attr(not(feature = "mcp"), allow(dead_code))]
pub(crate) mod payload_schema;
#[cfg(test)]
mod reference;
#[cfg_attr(not(feature = "mcp"), allow(dead_code))]
mod scripts;
#[cfg_attr(not(feature = "mcp"), allow(dead_code))]
pub(crate) mod template;
mod worker;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use duly::{Limit, NewTask};
use toml::{Table, Value};

use crate::cli::values::truncated;
use crate::manifest::calendar::calendars;
use crate::manifest::entry::{Entry, POLICIES, SHARED_KEYS, check_keys, wrong_value};
use crate::manifest::template::{HandlerReference, Template, handlers, templates};
use crate::manifest::worker::workers;
use crate::workers::WorkerOptions;

/// Keys of a task that cannot have a default.
const TASK_KEYS: &[&str] = &[
    "name",
    "cron",
    "on",
    "every",
    "after",
    "at",
    "manual",
    "command",
    "shell",
    "handler",
    "payload",
    "stdin",
    "only_if",
    "give_up_exit_codes",
    "skip_exit_codes",
    "starts_at",
    "ends_at",
];
/// Keys of a limit.
const LIMIT_KEYS: &[&str] = &["concurrency_key", "running", "handler", "rate"];
/// Largest file that is read.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The tasks, limits and workers of a file.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The canonical path of the file. It is stored with its tasks, as `managed_by`.
    pub(crate) name: String,
    pub(crate) tasks: Vec<NewTask>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) workers: Vec<WorkerOptions>,
    /// Commands with parameters, for agents.
    #[cfg_attr(not(feature = "mcp"), allow(dead_code))]
    pub(crate) templates: Vec<Template>,
    /// Handlers that the manifest describes, by name.
    #[cfg_attr(not(feature = "mcp"), allow(dead_code))]
    pub(crate) handlers: BTreeMap<String, HandlerReference>,
}

/// What the text of a manifest declares.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    pub(crate) tasks: Vec<NewTask>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) workers: Vec<WorkerOptions>,
    pub(crate) templates: Vec<Template>,
    pub(crate) handlers: BTreeMap<String, HandlerReference>,
}

/// Reads a manifest. An error is one line that names the file, the task and the key, and what is expected and found.
pub(crate) fn read(path: &Path) -> Result<Manifest, String> {
    let in_file = |reason: String| format!("{}: {reason}", path.display());
    let failed = |error: io::Error| in_file(error.to_string());
    // Only regular files are opened: opening a pipe would block until another process writes to it.
    let kind = std::fs::metadata(path).map_err(failed)?;
    if !kind.is_file() && !kind.is_dir() {
        let expected = "expected a regular file, because its path is stored with its tasks";
        return Err(in_file(format!("{expected}, found a pipe, a socket or a device")));
    }
    let text = read_text(path).map_err(failed)?;
    let file = std::fs::canonicalize(path).map_err(failed)?;
    let folder = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    let Declared { tasks, limits, workers, templates, handlers } = parse(&text, &folder).map_err(in_file)?;
    Ok(Manifest { name: file.display().to_string(), tasks, limits, workers, templates, handlers })
}

/// Reads at most [`MAX_BYTES`], also if the file grows.
fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("the file is too large: expected at most {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("expected text in UTF-8"))
}

/// Parses a manifest task by task, because the tree of a whole file takes fifty times its size. Only a file in another order is
/// parsed as a whole, and one with an error, for the message about it. Limits and workers are read in parts if they are before the
/// tasks.
pub(crate) fn parse(text: &str, folder: &Path) -> Result<Declared, String> {
    parse_in_parts(text, folder).map_or_else(|| parse_whole(text, folder), Ok)
}

/// Parses each `[[task]]` by itself. `None`: the file has an error, or `[defaults]`, a limit or a worker are not at its beginning.
///
/// A part that ends within a string, an array or a table is no TOML. So if all parts before it can be parsed, a line `[[task]]`
/// begins a task in the whole file, too.
fn parse_in_parts(text: &str, folder: &Path) -> Option<Declared> {
    let mut rest = text;
    let mut parts = std::iter::from_fn(|| {
        let line_end = rest.find('\n').unwrap_or(rest.len());
        let end = rest[line_end..].find("\n[[task]]").map_or(rest.len(), |at| line_end + at + 1);
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    });
    let nothing = Table::new();
    let first: Table = if text.starts_with("[[task]]") { Table::new() } else { parts.next()?.parse().ok()? };
    let defaults = match first.get("defaults") {
        None => &nothing,
        Some(Value::Table(defaults)) => defaults,
        Some(_) => return None,
    };
    check_keys(&first, "", &[&["defaults", "calendar", "limit", "worker", "template", "handler"]]).ok()?;
    check_keys(defaults, "", &[SHARED_KEYS, POLICIES]).ok()?;
    let calendars = calendars(&first).ok()?;
    let shared = Entry { table: &nothing, defaults, folder, calendars: &calendars };
    let read = |part: &str| {
        let file: Table = part.parse().ok()?;
        match file.get("task")?.as_array()?.as_slice() {
            [Value::Table(table)] if file.len() == 1 => task(0, Entry { table, ..shared }).ok(),
            _ => None,
        }
    };
    let mut tasks = Vec::with_capacity(text.matches("\n[[task]]").count() + 1);
    for part in parts {
        tasks.push(read(part)?);
    }
    let (limits, workers) = (limits(&first).ok()?, workers(&first, folder).ok()?);
    let (templates, handlers) = (templates(&first, &shared).ok()?, handlers(&first).ok()?);
    Some(Declared { tasks, limits, workers, templates, handlers })
}

fn parse_whole(text: &str, folder: &Path) -> Result<Declared, String> {
    let file: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().replace('\n', ", "))
    })?;
    check_keys(&file, "", &[&["defaults", "task", "calendar", "limit", "worker", "template", "handler"]])?;
    let nothing = Table::new();
    let defaults = match file.get("defaults") {
        None => &nothing,
        Some(Value::Table(defaults)) => defaults,
        Some(other) => return Err(wrong_value("defaults", "a table, [defaults]", other)),
    };
    check_keys(defaults, "defaults: ", &[SHARED_KEYS, POLICIES])?;
    let calendars = calendars(&file)?;
    let shared = Entry { table: &nothing, defaults, folder, calendars: &calendars };
    let tasks = match file.get("task") {
        None => &Vec::new(),
        Some(Value::Array(tasks)) => tasks,
        Some(other) => return Err(wrong_value("task", "tables, [[task]]", other)),
    };
    let read = |(place, value): (usize, &Value)| match value {
        Value::Table(table) => task(place, Entry { table, ..shared }),
        other => Err(wrong_value("task", "tables, [[task]]", other)),
    };
    let tasks = tasks.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let (limits, workers) = (limits(&file)?, workers(&file, folder)?);
    let (templates, handlers) = (templates(&file, &shared)?, handlers(&file)?);
    Ok(Declared { tasks, limits, workers, templates, handlers })
}

/// Reads each `[[limit]]` of a file.
fn limits(file: &Table) -> Result<Vec<Limit>, String> {
    let limits = match file.get("limit") {
        None => &Vec::new(),
        Some(Value::Array(limits)) => limits,
        Some(other) => return Err(wrong_value("limit", "tables, [[limit]]", other)),
    };
    let read = |(place, value): (usize, &Value)| {
        let Value::Table(table) = value else { return Err(wrong_value("limit", "tables, [[limit]]", value)) };
        let place = format!("limit {}: ", place + 1);
        check_keys(table, &place, &[LIMIT_KEYS])?;
        Entry::alone(table).limit().map_err(|reason| format!("{place}{reason}"))
    };
    limits.iter().enumerate().map(read).collect()
}

/// Reads the task at `place`, counted from 0.
fn task(place: usize, entry: Entry<'_>) -> Result<NewTask, String> {
    let place = match entry.table.get("name") {
        Some(Value::String(name)) => format!("task {:?}: ", truncated(name)),
        _ => format!("task {}: ", place + 1),
    };
    check_keys(entry.table, &place, &[TASK_KEYS, SHARED_KEYS, POLICIES])?;
    entry.task().map_err(|reason| format!("{place}{reason}"))
}

#[cfg(test)]
mod tests {
    use crate::manifest::{parse, parse_in_parts, parse_whole};
    use duly::Limit;
    use std::path::Path;
    use std::time::Duration;

    fn refused(text: &str) -> String {
        parse(text, Path::new("/etc")).unwrap_err()
    }

    #[track_caller]
    fn assert_refused(text: &str, says: &str) {
        let error = refused(text);
        assert!(error.starts_with(says) && error.lines().count() == 1, "{text}\n{error}");
    }

    fn task(rest: &str) -> String {
        format!("[[task]]\nname = \"t\"\n{rest}")
    }

    #[test]
    fn errors_name_the_place_and_what_is_expected() {
        for (text, says) in [
            ("[[task]\nname = 1", "line 1: "),
            ("a = 1\nb = = 2", "line 2: "),
            ("[[tasks]]\nname = \"t\"", "unknown key \"tasks\": did you mean \"task\"?"),
            ("[default]\npriority = 1", "unknown key \"default\": did you mean \"defaults\"?"),
            ("[defaults]\ncron = \"@daily\"", "defaults: unknown key \"cron\": expected one of time_zone, cwd"),
            ("task = 7", "task: expected tables, [[task]], found 7"),
            ("[[task]]\nevery = \"1m\"\nshell = \"true\"", "task 1: name: expected a string, found none"),
            ("limit = 7", "limit: expected tables, [[limit]], found 7"),
            ("[[limit]]\nrunning = 3", "limit 1: expected concurrency_key with running, rate or both"),
            ("[[limit]]\nconcurrency_key = \"a\"", "limit 1: expected concurrency_key with running, rate or both"),
            ("[[limit]]\nrunnig = 3", "limit 1: unknown key \"runnig\": did you mean \"running\"?"),
            (
                "[[limit]]\nhandler = \"mail\"\nrate = \"100\"",
                "limit 1: rate: expected a number of starts and a time, as in 100/1m",
            ),
        ] {
            assert_refused(text, says);
        }
        // Of a task: `SHELL` is a command that is due every minute, `HANDLER` a handler.
        for (text, says) in [
            ("SHELL tiemout = \"1m\"", "unknown key \"tiemout\": did you mean \"timeout\"?"),
            ("shell = \"true\"", "expected one of cron, on, every, after, at or manual"),
            ("shell = \"true\"\nmanual = false", "expected one of cron, on, every, after, at or manual"),
            ("SHELL manual = true", "every and manual: expected one of them"),
            ("shell = \"true\"\nmanual = \"\"", "manual: expected true or false, found \"\""),
            ("SHELL cron = \"@daily\"", "cron and every: expected one of them"),
            ("every = \"1m\"", "expected one of command, shell or handler"),
            ("SHELL command = [\"true\"]", "command and shell: expected one of them"),
            ("every = \"1m\"\ncommand = []", "command: expected a program, found none"),
            ("every = \"1m\"\ncommand = [1]", "command: expected an array of strings, found 1 in it"),
            ("every = \"1m\"\ncommand = [\"\"]", "argv: expected a program"),
            ("every = \"1m\"\ncommand = [\"a\", \"\\u0000\"]", "argv[1]: a NUL character cannot be passed"),
            ("SHELL env = { \"A=B\" = \"\" }", "env: expected the name of a variable"),
            ("SHELL env = { A = 1 }", "env: expected a table of strings, found a table"),
            ("SHELL env_from = [\"\"]", "env_from: expected the name of a variable"),
            ("SHELL payload = 1", "payload: not allowed for a command"),
            ("HANDLER stdin = \"\"", "stdin: not allowed for a handler"),
            ("HANDLER payload = [nan]", "payload: expected a value that JSON can represent, found NaN"),
            ("every = \"1m\"\nhandler = \"command\"", "the payload of a command: expected an object"),
            ("SHELL max_attempts = 3\nat_most_once = true", "at_most_once and max_attempts: expected one of them"),
            ("SHELL timeout = 10", "timeout: expected a string, found 10"),
            (
                "SHELL timeout = \"ten\"",
                "timeout: expected a duration such as 15m or 1h 30m (units: ms, s, m, h, d, w, y), found \"ten\"",
            ),
            ("SHELL timeout = \"10\"", "timeout: expected a unit, as in 10s or 10m, found \"10\""),
            ("SHELL expires = \"1us\"", "expires: expected whole milliseconds, found \"1us\""),
            (
                "SHELL expires = \"200ms\"",
                "expires: expected at least 1s: a scheduler looks for new tasks about once a second, found",
            ),
            ("every = \"15\"\nshell = \"true\"", "every: expected a unit, as in 15s or 15m, found \"15\""),
            ("after = \"0s\"\nshell = \"true\"", "after: expected a duration of 1ms to 10years, found \"0s\""),
            ("SHELL priority = -1", "priority: expected a smaller whole number"),
            (
                "SHELL overlap = \"skp\"",
                "overlap: expected skip, buffer_one, buffer_all, cancel_running or allow, found \"skp\"",
            ),
            ("SHELL starts_at = 2027-03-14T07:00:00", "starts_at: expected a date and time with its offset"),
        ] {
            let text = text.replace("SHELL ", "every = \"1m\"\nshell = \"true\"\n");
            let text = text.replace("HANDLER ", "every = \"1m\"\nhandler = \"h\"\n");
            assert_refused(&task(&text), &format!("task \"t\": {says}"));
        }
    }

    #[test]
    fn defaults_apply_to_each_task_and_cwd_is_relative_to_the_file() {
        let text = "[defaults]\ntime_zone = \"Europe/Rome\"\npriority = 0\ncwd = \"bin\"\n
                    [[task]]\nname = \"a\"\ncron = \"@daily\"\nshell = \"echo $HOME\"\nenv = { A = \"1\" }\n
                    [[task]]\nname = \"b\"\nat = 2027-03-14T07:00:00\nhandler = \"h\"\npayload = { to = [1, \"x\"] }\npriority = 2";
        let tasks = format!("{:?}", parse(text, Path::new("/etc")).unwrap());
        for part in [
            r#"{\"argv\":[\"/bin/sh\",\"-c\",\"echo $HOME\"],\"cwd\":\"/etc/bin\",\"env\":{\"A\":\"1\"}}"#,
            r#"{\"to\":[1,\"x\"]}"#,
            "2027-03-14T07:00:00",
            "priority: 0",
            "priority: 2",
        ] {
            assert!(tasks.contains(part), "{part}: {tasks}");
        }
        assert_eq!(tasks.matches("Europe/Rome").count(), 2);
    }

    #[test]
    fn a_file_is_parsed_in_parts_only_if_that_is_the_same() {
        let folder = Path::new("/etc");
        let defaults = "# Tasks\n[defaults]\npriority = 0\nenv = { A = \"[[task]]\" }\n";
        let some = task("every = \"1m\"\nshell = \"true\"\n");
        let env = "[task.env]\nB = \"\"\"\n[ [task]]\n\"\"\"\n";
        for text in [
            format!("{some}{some}"),
            format!("{some}\n\n# The last one\n{some}{env}").replace('\n', "\r\n"),
            format!("{defaults}{some}{some}{env}\n{some}"),
            format!("[defaults]\n{some}"),
            some.trim_end().to_owned(),
            format!("{}{some}", some.replace("[[task]]", "[[task]] # One")),
        ] {
            let parts = parse_in_parts(&text, folder).map(|tasks| format!("{tasks:?}"));
            assert_eq!(parts, Some(format!("{:?}", parse_whole(&text, folder).unwrap())), "{text}");
        }
        for (text, tasks) in [
            (String::new(), 0),
            (format!("{some}{defaults}{some}"), 2),
            (format!("[defaults.env]\nA = \"1\"\n{some}[defaults]\npriority = 0\n{some}"), 2),
            (format!("{some}  {some}"), 2),
            (format!("{some}description = \"\"\"\n{some}\"\"\"\n").replace("description", "stdin"), 1),
            (format!("{some}env_from = [\n[[task]]\n]\n"), 0),
            ("task = []\n".to_owned(), 0),
            (format!("task = []\n{some}"), 0),
            (format!("[task]\n{some}"), 0),
            (format!("{some}[[other]]\n"), 0),
            (format!("{some}[[task.env]]\n{some}"), 0),
        ] {
            assert!(parse_in_parts(&text, folder).is_none_or(|parts| parts.tasks.is_empty()), "{text}");
            assert_eq!(parse(&text, folder).map_or(0, |parsed| parsed.tasks.len()), tasks, "{text}");
        }
    }

    #[test]
    fn limits_are_read_before_and_after_the_tasks() {
        let limits = "[[limit]]\nconcurrency_key = \"smtp\"\nrunning = 3\n
                      [[limit]]\nhandler = \"mail\"\nrate = \"100/1m\"\n";
        let some = task("every = \"1m\"\nshell = \"true\"\n");
        for text in [limits.to_owned(), format!("{limits}{some}"), format!("{some}{limits}")] {
            let declared = parse(&text, Path::new("/etc")).unwrap();
            let expected = [Limit::key("smtp", 3), Limit::rate("mail", 100, Duration::from_secs(60))];
            assert_eq!(declared.limits, expected, "{text}");
        }
    }

    #[test]
    fn durations_are_parsed_as_on_the_command_line() {
        let text = task("every = \"90s\"\nshell = \"true\"\ntimeout = \"0\"\njitter = \"90s\"");
        let tasks = format!("{:?}", parse(&text, Path::new("/etc")).unwrap());
        assert!(tasks.contains("timeout: Some(0ns)") && tasks.contains("jitter: 90s"), "{tasks}");
    }

    #[test]
    fn attempts_of_the_task_take_precedence_over_the_defaults() {
        for (default, own, attempts) in [
            ("at_most_once = true", "", 1),
            ("at_most_once = true", "max_attempts = 3", 3),
            ("at_most_once = true", "at_most_once = false", 5),
            ("max_attempts = 3", "at_most_once = true", 1),
            ("max_attempts = 3", "at_most_once = false", 3),
        ] {
            let text = format!("[defaults]\n{default}\n{}shell = \"true\"\n{own}", task("every = \"1m\"\n"));
            let tasks = format!("{:?}", parse(&text, Path::new("/etc")).unwrap());
            assert!(tasks.contains(&format!("max_attempts: {attempts},")), "{text}\n{tasks}");
        }
    }

    #[test]
    fn a_very_long_key_is_shortened_in_the_error() {
        let error = refused(&task(&format!("{} = 1", "k".repeat(1_000_000))));
        assert!(error.starts_with("task \"t\": unknown key \"kkk") && error.len() < 1000, "{error:.300}");
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("tasks.toml");
        std::fs::File::create(&path).unwrap().set_len(16 * 1024 * 1024 + 1).unwrap();
        let error = super::read(&path).unwrap_err();
        assert!(error.ends_with("tasks.toml: the file is too large: expected at most 16777216 bytes"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_refused_without_opening_it() {
        let error = super::read(Path::new("/dev/zero")).unwrap_err();
        let expected =
            "expected a regular file, because its path is stored with its tasks, found a pipe, a socket or a device";
        assert_eq!(error, format!("/dev/zero: {expected}"));
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_whose_name_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let folder = Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff"));
        let text = task("every = \"1m\"\nshell = \"true\"\n");
        assert!(
            parse(&text, folder).unwrap_err().starts_with("task \"t\": cwd: expected a directory with a name in UTF-8")
        );
        assert!(parse(&format!("{text}cwd = \"/tmp\""), folder).is_ok());
    }
}
