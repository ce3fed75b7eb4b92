//! A manifest: the tasks of one TOML file.
//!
//! ```toml
//! [defaults]
//! time_zone = "Europe/Rome"
//! [[task]]
//! name = "nightly-report"
//! cron = "0 6 * * *"
//! command = ["./report.sh", "--yesterday"]
//! timeout = "10m"
//! ```

mod entry;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use duly::NewTask;
use toml::{Table, Value};

use crate::cli::values::brief;
use crate::manifest::entry::{Entry, wrong};

/// Keys that say what a task is, and cannot have a default.
const OF_A_TASK: &[&str] = &[
    "name",
    "cron",
    "every",
    "after",
    "at",
    "manual",
    "command",
    "shell",
    "handler",
    "payload",
    "stdin",
    "starts_at",
    "ends_at",
];
/// Keys that `[defaults]` may give too.
const OF_ALL: &[&str] = &[
    "time_zone",
    "cwd",
    "env",
    "env_from",
    "overlap",
    "misfire",
    "misfire_grace",
    "catch_up_limit",
    "expires",
    "max_attempts",
    "at_most_once",
    "backoff",
    "backoff_cap",
    "timeout",
    "jitter",
    "priority",
    "concurrency_key",
    "on_dead",
    "pause_after_failures",
];
/// Largest file that is read.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Most letters of a key that are looked at if it means nothing.
const LONGEST_KEY: usize = 80;

/// Tasks, and the file that they are from.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The one path of the file: what its tasks are kept by.
    pub(crate) name: String,
    pub(crate) tasks: Vec<NewTask>,
}

/// Reads a manifest. An error is one line that names the file, the task and the key, what was found, and what would do.
pub(crate) fn read(path: &Path) -> Result<Manifest, String> {
    let in_file = |reason: String| format!("{}: {reason}", path.display());
    let failed = |error: io::Error| in_file(error.to_string());
    // Nothing else is opened: a scheduler that reads its manifest anew would wait for somebody to write into a pipe.
    let kind = std::fs::metadata(path).map_err(failed)?;
    if !kind.is_file() && !kind.is_dir() {
        let expected = "expected a file whose path lasts, which its tasks are kept by";
        return Err(in_file(format!("{expected}, found a pipe, a socket or a device")));
    }
    let text = text_of(path).map_err(failed)?;
    let file = std::fs::canonicalize(path).map_err(failed)?;
    let folder = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    let tasks = parse(&text, &folder).map_err(in_file)?;
    Ok(Manifest { name: file.display().to_string(), tasks })
}

/// No more is read than is allowed, however long the file is by then.
fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it is too long: expected at most {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("expected text in UTF-8"))
}

pub(crate) fn parse(text: &str, folder: &Path) -> Result<Vec<NewTask>, String> {
    let file: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().replace('\n', ", "))
    })?;
    known(&file, "", &[&["defaults", "task"]])?;
    let nothing = Table::new();
    let defaults = match file.get("defaults") {
        None => &nothing,
        Some(Value::Table(defaults)) => defaults,
        Some(other) => return Err(wrong("defaults", "a table, [defaults]", other)),
    };
    known(defaults, "defaults: ", &[OF_ALL])?;
    let tasks = match file.get("task") {
        None => &Vec::new(),
        Some(Value::Array(tasks)) => tasks,
        Some(other) => return Err(wrong("task", "tables, [[task]]", other)),
    };
    let read = |(number, task): (usize, &Value)| {
        let Value::Table(table) = task else { return Err(wrong("task", "tables, [[task]]", task)) };
        let place = match table.get("name") {
            Some(Value::String(name)) => format!("task {:?}: ", brief(name)),
            _ => format!("task {}: ", number + 1),
        };
        known(table, &place, &[OF_A_TASK, OF_ALL])?;
        Entry { table, defaults, folder }.task().map_err(|reason| format!("{place}{reason}"))
    };
    tasks.iter().enumerate().map(read).collect()
}

/// Refuses a key that means nothing, and names the one that may have been meant.
fn known(table: &Table, place: &str, keys: &[&[&str]]) -> Result<(), String> {
    let keys = || keys.iter().flat_map(|keys| keys.iter());
    let Some(unknown) = table.keys().find(|key| !keys().any(|known| known == key)) else { return Ok(()) };
    // None is as long: it is not shown whole, nor compared letter by letter.
    let unknown: String = unknown.chars().take(LONGEST_KEY).collect();
    let near = keys().map(|known| (strsim::damerau_levenshtein(known, &unknown), known)).min();
    let hint = match near {
        Some((distance, known)) if distance <= 1 + unknown.len() / 4 => format!("did you mean {known:?}?"),
        _ => format!("expected one of {}", keys().copied().collect::<Vec<_>>().join(", ")),
    };
    Err(format!("{place}unknown key {unknown:?}: {hint}"))
}

#[cfg(test)]
mod tests {
    use crate::manifest::parse;
    use std::path::Path;

    fn refused(text: &str) -> String {
        parse(text, Path::new("/etc")).unwrap_err()
    }

    fn task(rest: &str) -> String {
        format!("[[task]]\nname = \"t\"\n{rest}")
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_would_do() {
        let command = "command = [\"true\"]\n";
        let every = format!("every = \"1m\"\n{command}");
        let handler = "every = \"1m\"\nhandler = \"h\"\n";
        for (text, says) in [
            ("[[task]\nname = 1".to_owned(), "line 1: "),
            ("a = 1\nb = = 2".to_owned(), "line 2: "),
            ("[[tasks]]\nname = \"t\"".to_owned(), "unknown key \"tasks\": did you mean \"task\"?"),
            ("[default]\npriority = 1".to_owned(), "unknown key \"default\": did you mean \"defaults\"?"),
            (
                "[defaults]\ncron = \"@daily\"".to_owned(),
                "defaults: unknown key \"cron\": expected one of time_zone, cwd",
            ),
            ("task = 7".to_owned(), "task: expected tables, [[task]], found 7"),
            (format!("[[task]]\n{every}"), "task 1: name: expected a string, found none"),
            (
                task(&format!("{every}tiemout = \"1m\"")),
                "task \"t\": unknown key \"tiemout\": did you mean \"timeout\"?",
            ),
            (task(command), "task \"t\": expected one of cron, every, after, at or manual"),
            (
                task(&format!("{command}\nmanual = false")),
                "task \"t\": expected one of cron, every, after, at or manual",
            ),
            (task(&format!("{every}manual = true")), "task \"t\": every and manual: expected one of them"),
            (task(&format!("{command}\nmanual = \"\"")), "task \"t\": manual: expected true or false, found \"\""),
            (task(&format!("{every}cron = \"@daily\"")), "task \"t\": cron and every: expected one of them"),
            (task("every = \"1m\""), "task \"t\": expected one of command, shell or handler"),
            (task(&format!("{every}shell = \"true\"")), "task \"t\": command and shell: expected one of them"),
            (task("every = \"1m\"\ncommand = []"), "task \"t\": command: expected a program, found none"),
            (
                task("every = \"1m\"\ncommand = [1]"),
                "task \"t\": command: expected an array of strings, found an array",
            ),
            (task("every = \"1m\"\ncommand = [\"\"]"), "task \"t\": argv: expected a program"),
            (task("every = \"1m\"\ncommand = [\"a\", \"\\u0000\"]"), "task \"t\": argv[1]: no system can pass on"),
            (task(&format!("{every}env = {{ \"A=B\" = \"\" }}")), "task \"t\": env: expected the name of a variable"),
            (task(&format!("{every}env_from = [\"\"]")), "task \"t\": env_from: expected the name of a variable"),
            (task(&format!("{every}payload = 1")), "task \"t\": payload: means nothing beside a command"),
            (task(&format!("{handler}stdin = \"\"")), "task \"t\": stdin: means nothing beside a handler"),
            (task(&format!("{handler}payload = [nan]")), "task \"t\": payload: expected what JSON can say, found NaN"),
            (task("every = \"1m\"\nhandler = \"command\""), "task \"t\": the payload of a command: expected an object"),
            (
                task(&format!("{every}max_attempts = 3\nat_most_once = true")),
                "task \"t\": at_most_once and max_attempts: expected one of them",
            ),
            (task(&format!("{every}timeout = 10")), "task \"t\": timeout: expected a string, found 10"),
            (
                task(&format!("{every}timeout = \"ten\"")),
                "task \"t\": timeout: expected a duration such as 15m or 1h 30m, found \"ten\"",
            ),
            (
                task(&format!("{every}expires = \"1us\"")),
                "task \"t\": expires: expected whole milliseconds, found \"1us\"",
            ),
            (
                task(&format!("{every}expires = \"200ms\"")),
                "task \"t\": expires: expected at least 1s: a scheduler looks for new tasks about once a second, found \"200ms\"",
            ),
            (
                task("every = \"15\"\nshell = \"true\""),
                "task \"t\": every: expected a unit, as in 15s or 15m, found \"15\"",
            ),
            (
                task("after = \"0s\"\nshell = \"true\""),
                "task \"t\": after: expected a duration of 1ms to 10years, found \"0s\"",
            ),
            (
                task(&format!("{every}timeout = \"10\"")),
                "task \"t\": timeout: expected a unit, as in 10s or 10m, found \"10\"",
            ),
            (task(&format!("{every}priority = -1")), "task \"t\": priority: expected a smaller whole number"),
            (
                task(&format!("{every}overlap = \"skp\"")),
                "task \"t\": overlap: expected skip, buffer_one, buffer_all, cancel_running or allow, found \"skp\"",
            ),
            (task(&format!("{every}env = {{ A = 1 }}")), "task \"t\": env: expected a table of strings, found a table"),
            (
                task(&format!("{every}starts_at = 2027-03-14T07:00:00")),
                "task \"t\": starts_at: expected a date and time with its offset",
            ),
        ] {
            let error = refused(&text);
            assert!(error.starts_with(says) && error.lines().count() == 1, "{text}\n{error}");
        }
    }

    #[test]
    fn defaults_stand_behind_each_task_and_a_folder_counts_from_the_file() {
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
    fn a_duration_is_read_as_on_the_command_line() {
        let text = task("every = \"90s\"\nshell = \"true\"\ntimeout = \"0\"\njitter = \"90s\"");
        let tasks = format!("{:?}", parse(&text, Path::new("/etc")).unwrap());
        assert!(tasks.contains("timeout: Some(0ns)") && tasks.contains("jitter: 90s"), "{tasks}");
    }

    #[test]
    fn how_often_a_run_is_tried_is_said_by_the_task_before_the_defaults() {
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
    fn a_key_without_an_end_is_told_in_a_line_that_can_be_read() {
        let error = refused(&task(&format!("{} = 1", "k".repeat(1_000_000))));
        assert!(error.starts_with("task \"t\": unknown key \"kkk") && error.len() < 1000, "{error:.300}");
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("tasks.toml");
        std::fs::File::create(&path).unwrap().set_len(16 * 1024 * 1024 + 1).unwrap();
        let error = super::read(&path).unwrap_err();
        assert!(error.ends_with("tasks.toml: it is too long: expected at most 16777216 bytes"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused_unopened() {
        let error = super::read(Path::new("/dev/zero")).unwrap_err();
        let expected =
            "expected a file whose path lasts, which its tasks are kept by, found a pipe, a socket or a device";
        assert_eq!(error, format!("/dev/zero: {expected}"));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_no_payload_can_name_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let folder = Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff"));
        let text = task("every = \"1m\"\nshell = \"true\"\n");
        assert!(
            parse(&text, folder).unwrap_err().starts_with("task \"t\": cwd: expected a folder with a name in UTF-8")
        );
        assert!(parse(&format!("{text}cwd = \"/tmp\""), folder).is_ok());
    }
}
