//! The `[[worker]]` sections of a manifest.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use crate::cli::values::truncated;
use crate::manifest::entry::{Entry, check_keys, wrong_value};
use crate::workers::WorkerOptions;
use crate::workers::options::{EXPECTED_NAME, MAX_COPIES, MAX_WORKERS, is_name};

/// Keys of a worker.
pub(super) const KEYS: &[&str] = &["name", "command", "cwd", "env", "copies"];

/// Reads each `[[worker]]` of a file, in the order of their names. `[defaults]` is for tasks and does not apply. `folder`: of the manifest, the directory of the
/// workers.
pub(super) fn workers(file: &Table, folder: &Path) -> Result<Vec<WorkerOptions>, String> {
    let given = match file.get("worker") {
        None => return Ok(Vec::new()),
        Some(Value::Array(given)) => given,
        Some(other) => return Err(wrong_value("worker", "tables, [[worker]]", other)),
    };
    if given.len() > MAX_WORKERS {
        return Err(format!("worker: expected at most {MAX_WORKERS} workers, found {}", given.len()));
    }
    let mut workers = BTreeMap::new();
    for (place, value) in given.iter().enumerate() {
        let Value::Table(table) = value else { return Err(wrong_value("worker", "tables, [[worker]]", value)) };
        let place = match table.get("name") {
            Some(Value::String(name)) => format!("worker {:?}: ", truncated(name)),
            _ => format!("worker {}: ", place + 1),
        };
        check_keys(table, &place, &[KEYS])?;
        let entry = Entry { folder, ..Entry::alone(table) };
        let worker = worker(&entry).map_err(|reason| format!("{place}{reason}"))?;
        if workers.insert(worker.name.clone(), worker).is_some() {
            return Err(format!("{place}expected one worker of this name, found two"));
        }
    }
    Ok(workers.into_values().collect())
}

fn worker(entry: &Entry<'_>) -> Result<WorkerOptions, String> {
    let name = entry.text("name")?.ok_or("name: expected a string, found none")?;
    if !is_name(&name) {
        return Err(format!("name: expected {EXPECTED_NAME}, found {:?}", truncated(&name)));
    }
    let argv = entry.list("command")?.unwrap_or_default();
    if argv.first().is_none_or(String::is_empty) {
        return Err("command: expected a program and its arguments, found none".to_owned());
    }
    let env = entry.env()?;
    if let Some(variable) = env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(format!("env: expected the name of a variable, found {:?}", truncated(variable)));
    }
    let cwd = entry.text("cwd")?;
    // A text with NUL can be neither an argument, nor a variable, nor a path.
    let nul = |key: &str, text: &String| match text.contains('\0') {
        true => Err(format!("{key}: a NUL character cannot be passed, found {:?}", truncated(text))),
        false => Ok(()),
    };
    argv.iter().try_for_each(|text| nul("command", text))?;
    env.iter().try_for_each(|(name, value)| nul("env", name).and_then(|()| nul("env", value)))?;
    cwd.iter().try_for_each(|text| nul("cwd", text))?;
    let cwd = match cwd {
        Some(cwd) if cwd.is_empty() => return Err("cwd: expected a folder, found an empty string".to_owned()),
        Some(cwd) => entry.folder.join(cwd),
        None => entry.folder.to_owned(),
    };
    let copies = entry.number::<i64>("copies")?.unwrap_or(1);
    let copies = u32::try_from(copies).ok().filter(|copies| (1..=MAX_COPIES).contains(copies));
    let copies = copies.ok_or_else(|| {
        wrong_value("copies", &format!("1 to {MAX_COPIES}"), entry.table.get("copies").unwrap_or(&Value::Integer(1)))
    })?;
    Ok(WorkerOptions { name, argv, cwd: Some(cwd), env, copies, is_application: false })
}

#[cfg(test)]
mod tests {
    use crate::manifest::parse;
    use crate::workers::WorkerOptions;
    use std::collections::BTreeMap;
    use std::path::Path;

    const MAIL: &str = "[[worker]]\nname = \"mail\"\ncommand = [\"node\", \"mail.mjs\"]\n";

    fn workers(text: &str) -> Result<Vec<WorkerOptions>, String> {
        parse(text, Path::new("/etc/duly")).map(|declared| declared.workers)
    }

    #[track_caller]
    fn assert_refused(text: &str, says: &str) {
        let error = workers(text).unwrap_err();
        assert!(error.starts_with(says) && error.lines().count() == 1, "{text}\n{error}");
    }

    #[test]
    fn workers_are_read_with_their_defaults() {
        let all = format!("{MAIL}cwd = \"/srv/mail\"\nenv = {{ LOG = \"debug\" }}\ncopies = 64\n");
        let one = |cwd: &str, env: &[(&str, &str)], copies| WorkerOptions {
            name: "mail".into(),
            argv: vec!["node".into(), "mail.mjs".into()],
            cwd: Some(cwd.into()),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>(),
            copies,
            is_application: false,
        };
        assert_eq!(workers(&all), Ok(vec![one("/srv/mail", &[("LOG", "debug")], 64)]));
        assert_eq!(workers(MAIL), Ok(vec![one("/etc/duly", &[], 1)]));
        assert_eq!(workers(&format!("{MAIL}cwd = \"mail\"")), Ok(vec![one("/etc/duly/mail", &[], 1)]));
        assert_eq!(workers(""), Ok(Vec::new()));
        // The defaults of tasks do not apply to workers.
        let defaults = "[defaults]\ncwd = \"/tmp\"\nenv = { A = \"1\" }\n";
        assert_eq!(workers(&format!("{defaults}{MAIL}")), Ok(vec![one("/etc/duly", &[], 1)]));
    }

    #[test]
    fn workers_are_read_before_and_after_the_tasks() {
        let task = "[[task]]\nname = \"t\"\nevery = \"1m\"\nhandler = \"digest\"\n";
        let other = task.replace("\"t\"", "\"u\"");
        for text in [format!("{MAIL}{task}"), format!("{task}{MAIL}"), format!("{task}{MAIL}{other}")] {
            assert_eq!(workers(&text).map(|found| found.len()), Ok(1), "{text}");
        }
    }

    #[test]
    fn errors_name_the_worker_and_what_is_expected() {
        let many =
            |count: usize| -> String { (0..count).map(|at| MAIL.replace("mail\"", &format!("m{at}\""))).collect() };
        assert_eq!(workers(&many(64)).unwrap().len(), 64);
        assert_refused(&many(65), "worker: expected at most 64 workers, found 65");
        assert_refused(&format!("[[worker]]\nname = \"{}\"", "n".repeat(201)), "worker \"nnn");
        let name = "a letter, then up to 199 letters, digits or . _ : / @ -";
        assert_refused("[[worker]]\nname = \"7\"", &format!("worker \"7\": name: expected {name}, found \"7\""));
        for (text, says) in [
            ("worker = 7", "worker: expected tables, [[worker]], found 7"),
            ("worker = [7]", "worker: expected tables, [[worker]], found 7"),
            ("[worker]\nname = \"a\"", "worker: expected tables, [[worker]], found a table"),
            ("[[workers]]", "unknown key \"workers\": did you mean \"worker\"?"),
            ("[[worker]]\ncommand = [\"a\"]", "worker 1: name: expected a string, found none"),
            ("[[worker]]\nname = 7", "worker 1: name: expected a string, found 7"),
        ] {
            assert_refused(text, says);
        }
        for (command, says) in [
            ("", "expected a program and its arguments, found none"),
            ("command = []", "expected a program and its arguments, found none"),
            ("command = [\"\", \"a\"]", "expected a program and its arguments, found none"),
            ("command = \"node mail.mjs\"", "expected an array of strings, found \"node mail.mjs\""),
            ("command = [\"a\", \"b\\u0000\"]", "a NUL character cannot be passed, found \"b\\0\""),
        ] {
            let text = format!("[[worker]]\nname = \"mail\"\n{command}");
            assert_refused(&text, &format!("worker \"mail\": command: {says}"));
        }
        for (rest, says) in [
            ("comand = []", "unknown key \"comand\": did you mean \"command\"?"),
            ("timeout = \"1m\"", "unknown key \"timeout\": expected one of name, command, cwd, env, copies"),
            ("env = { \"A=B\" = \"\" }", "env: expected the name of a variable, found \"A=B\""),
            ("env = { A = 1 }", "env: expected a table of strings, found a table"),
            ("env = [\"A\"]", "env: expected a table of strings, found an array"),
            ("cwd = \"\"", "cwd: expected a folder, found an empty string"),
            ("cwd = 1", "cwd: expected a string, found 1"),
            ("copies = 0", "copies: expected 1 to 64, found 0"),
            ("copies = -1", "copies: expected 1 to 64, found -1"),
            ("copies = 65", "copies: expected 1 to 64, found 65"),
            ("copies = \"2\"", "copies: expected a whole number, found \"2\""),
            (MAIL, "expected one worker of this name, found two"),
        ] {
            assert_refused(&format!("{MAIL}{rest}"), &format!("worker \"mail\": {says}"));
        }
    }
}
