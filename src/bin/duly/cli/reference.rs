//! The pages of `docs/reference` that are made from the source: that of the commands from the definition of the command line, and in
//! those of tables, events and the manifest the cells that are no prose.
//!
//! `DULY_WRITE_REFERENCE=1 cargo test --bin duly reference` writes the pages. Without the variable, the tests compare them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};
use serde_json::json;

use crate::cli::args::Args;

const INTRODUCTION: &str = "\
<!-- Made from the definition of the command line: DULY_WRITE_REFERENCE=1 cargo test --bin duly reference -->

# Commands

`duly [OPTIONS] COMMAND`. `duly COMMAND --help` prints the same text as this page, `duly man COMMAND` a manual page.

A duration (`DUR`) has a unit: `90s`, `15m`, `1h 30m`, `2d`. A time (`TIME`) is in RFC 3339, or a local date and time, as each option
says.

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | failed: one line on standard error begins with `error:`. Each command below says when |
| 2 | wrong usage: an argument is missing, unknown or has an invalid value |
| 3 | `duly run` ended commands before they had finished, because the time of `--drain` was over, or because of a second signal |
| 4 | no usable database: it is missing, damaged, replaced, read-only, not of duly, or of a newer version |
| 5 | `duly selftest` decided nothing: no check failed, and one could not be completed |

";

/// When a command exits with 1, and whether it opens the database and so may exit with 4.
const FAILURES: [(&str, &str, bool); 33] = [
    ("run", "the manifest was refused, or the scheduler did not start or was stopped by an error", true),
    ("add", "a task of this name has another definition", true),
    (
        "apply",
        "the manifest was refused, and nothing has changed; or a part of more than 500 tasks was not applied",
        true,
    ),
    ("import crontab", "an entry was not imported, unless `--partial` is given; or the crontab cannot be read", true),
    (
        "import supercronic",
        "an entry was not imported, unless `--partial` is given; or the crontab cannot be read",
        true,
    ),
    (
        "import nanoclaw",
        "a task was not imported, unless `--partial` is given; or the database of NanoClaw cannot be read",
        true,
    ),
    ("list", "no task has the handler of `--handler`", true),
    ("show", "no task has this name", true),
    ("status", "the database cannot be read", true),
    ("next", "no task has this name", true),
    ("history", "no task has this name", true),
    ("logs", "there is no such run; with `--follow`: the run did not succeed", true),
    ("trigger", "no task has this name, or it refuses the run; with `--wait`: the run did not succeed", true),
    (
        "retry",
        "there is no such run, it is neither dead nor cancelled, or another run retries it; or a filter is not confirmed",
        true,
    ),
    ("pause", "no task has this name, or its status does not allow it; or a filter is not confirmed", true),
    ("resume", "no task has this name, or it is still invalid; or a filter is not confirmed", true),
    ("cancel", "there is no such run or task, or the run is over; or a filter is not confirmed", true),
    ("remove", "no task has this name, or a run of it is running; or a filter is not confirmed", true),
    ("limit", "the limits cannot be read", true),
    ("limit set", "the limit cannot be stored", true),
    ("limit remove", "there is no such limit", true),
    ("check", "there is at least one problem: one line for each on standard output", true),
    ("prune", "the history cannot be deleted", true),
    ("doctor", "at least one check failed; 5 if none failed, and one could not be completed", true),
    ("selftest", "at least one check failed", false),
    ("backup", "the file exists, or cannot be written", true),
    ("migrate", "the target is not empty, or both differ after the copy", true),
    (
        "service install",
        "a file or a unit of this name is not of duly, the file cannot be written, or the service manager does not start the service",
        true,
    ),
    ("service uninstall", "duly did not write the file, or the service manager does not stop the service", false),
    ("service status", "the service is not installed or not running, or that is unknown", false),
    ("mcp", "the manifest cannot be read, or standard input cannot", true),
    ("completions", "the script cannot be printed", false),
    ("man", "the page cannot be printed", false),
];

/// Returns every command that does something by itself, with the words that name it.
fn commands(program: &Command) -> Vec<(String, &Command)> {
    let mut found = Vec::new();
    for command in program.get_subcommands().filter(|command| is_listed(command)) {
        let name = command.get_name().to_owned();
        let below: Vec<&Command> = command.get_subcommands().filter(|command| is_listed(command)).collect();
        if !command.is_subcommand_required_set() {
            found.push((name.clone(), command));
        }
        found.extend(below.into_iter().map(|below| (format!("{name} {}", below.get_name()), below)));
    }
    found
}

fn is_listed(command: &Command) -> bool {
    command.get_name() != "help" && !command.is_hide_set()
}

fn page() -> String {
    let mut program = Args::command();
    program.build();
    let commands = commands(&program);
    let mut page = INTRODUCTION.to_owned();
    page.push_str("## Options of every command\n\n");
    options(&mut page, "option", program.get_arguments().filter(|arg| arg.is_global_set()));
    page.push_str("`duly --version` prints the version.\n\n## All commands\n\n| command | what it does |\n|---|---|\n");
    for (name, command) in &commands {
        let about = sentence(&command.get_about().map(ToString::to_string).unwrap_or_default());
        let _ = writeln!(page, "| [`{name}`](#duly-{}) | {} |", name.replace(' ', "-"), cell(&about));
    }
    for (name, command) in &commands {
        one(&mut page, name, command);
    }
    page
}

/// The section of one command.
fn one(page: &mut String, name: &str, command: &Command) {
    let about = sentence(&command.get_about().map(ToString::to_string).unwrap_or_default());
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect();
    let _ = write!(page, "\n## duly {name}\n\n{}\n\n```text\n{}\n```\n\n", text(&about), usage.join("\n"));

    let own = || command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    options(page, "argument", own().filter(|arg| arg.is_positional()));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for heading in own().filter(|arg| !arg.is_positional() && !is_help(arg)).map(Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let several = headings.len() > 1;
    for heading in headings {
        if several {
            let _ = write!(page, "{}:\n\n", heading.unwrap_or("Options"));
        }
        let of_heading = |arg: &&Arg| arg.get_help_heading() == heading && !arg.is_positional() && !is_help(arg);
        options(page, "option", own().filter(of_heading));
    }

    let (_, when, opens) = FAILURES.iter().find(|(of, ..)| *of == name).expect("an entry");
    let (cut, four) = (if name == "run" { ", 3" } else { "" }, if *opens { ", 4" } else { "" });
    let _ = write!(page, "Exit codes: 0; 1 if {}; 2{cut}{four}.\n\n", when.replace("; with", ", or with"));

    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = after.split_once("Examples:\n").unwrap_or((&after, ""));
    for paragraph in notes.split('\n').filter(|line| !line.trim().is_empty()) {
        match paragraph.strip_prefix("  ") {
            // A word and its meaning, in columns.
            Some(row) => {
                let (word, meaning) = row.split_once("  ").unwrap_or((row, ""));
                let _ = writeln!(page, "- `{}`: {}", word.trim(), text(meaning.trim()));
            }
            None => {
                let gap = if page.ends_with("\n\n") { "" } else { "\n" };
                let _ = write!(page, "{gap}{}\n\n", text(paragraph));
            }
        }
    }
    if !examples.is_empty() {
        let gap = if page.ends_with("\n\n") { "" } else { "\n" };
        let lines: Vec<&str> = examples.lines().map(str::trim).collect();
        let _ = writeln!(page, "{gap}```sh\n{}\n```", lines.join("\n"));
    }
    let end = page.trim_end().len();
    page.truncate(end);
    page.push('\n');
}

fn is_help(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
}

/// A table of arguments; nothing if there is none.
fn options<'a>(page: &mut String, kind: &str, args: impl Iterator<Item = &'a Arg>) {
    let mut rows = args.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(page, "| {kind} | meaning |\n|---|---|");
    for arg in rows {
        let _ = writeln!(page, "| `{}` | {} |", spelling(arg).replace('|', "\\|"), cell(&meaning(arg)));
    }
    page.push('\n');
}

/// The argument as it is typed: `-n, --number N`, `[NAME]`.
fn spelling(arg: &Arg) -> String {
    let values: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value = if values.is_empty() { arg.get_id().to_string().to_uppercase() } else { values.join(" ") };
    if arg.is_positional() {
        let many = matches!(arg.get_action(), ArgAction::Append);
        let value = if arg.is_last_set() { format!("-- {value}") } else { value };
        let value = if many { format!("{value}..") } else { value };
        return if arg.is_required_set() { value } else { format!("[{value}]") };
    }
    let names: Vec<String> = arg
        .get_short()
        .map(|short| format!("-{short}"))
        .into_iter()
        .chain(arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let value = if arg.get_action().takes_values() { format!(" {value}") } else { String::new() };
    names.join(", ") + &value
}

/// The help of an argument, with its values, its default and its variable.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut meaning = sentence(&help.replace('\n', " "));
    let repeats = matches!(arg.get_action(), ArgAction::Append) && !arg.is_positional();
    if repeats && !meaning.contains("repeated") && !meaning.contains("several times") {
        meaning.push_str(" May be repeated.");
    }
    if arg.get_action().takes_values() {
        let words: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if !words.is_empty() {
            let _ = write!(meaning, " One of: {}.", words.join(", "));
        }
        let defaults = arg.get_default_values().iter().filter(|_| !arg.is_hide_default_value_set());
        let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() {
            let _ = write!(meaning, " Default: {}.", defaults.join(" "));
        }
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(meaning, " Variable: {}.", variable.to_string_lossy());
    }
    meaning
}

/// Ends a text with a full stop: clap removes that of a single paragraph.
fn sentence(help: &str) -> String {
    let help = help.trim();
    let ends = help.is_empty() || help.ends_with(['.', '?', '-', ')']);
    if ends { help.to_owned() } else { format!("{help}.") }
}

/// Text, without the characters that have a meaning in Markdown.
fn text(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "\\<").replace("[[", "\\[\\[")
}

fn cell(content: &str) -> String {
    text(content).replace('|', "\\|")
}

/// Compares a page with what is made from it, or writes that.
#[track_caller]
pub(crate) fn assert_current(name: &str, make: impl Fn(&str) -> String) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
    let found = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    let page = make(&found);
    if std::env::var_os("DULY_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let differs = page.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    let how = "DULY_WRITE_REFERENCE=1 cargo test --bin duly reference";
    assert!(page == found, "docs/reference/{name} is not current; {how} writes it. First difference: {differs:?}");
}

/// A table of a page, by its heading: the cells of its rows, of which those that are `None` are prose, and stay in the page.
pub(crate) type TableRows = (String, Vec<Vec<Option<String>>>);

pub(crate) fn quoted(name: &str) -> Option<String> {
    Some(format!("`{name}`"))
}

/// Returns the page with the rows of these tables anew. It has no other section, except below `others`.
pub(crate) fn renewed(page: &str, tables: Vec<TableRows>, others: &[&str]) -> String {
    let sections = page.lines().filter_map(|line| line.strip_prefix("## ")).filter(|name| !others.contains(name));
    let headings: BTreeSet<&str> = tables.iter().map(|(heading, _)| &**heading).collect();
    assert_eq!(sections.collect::<BTreeSet<_>>(), headings);
    let mut page = page.to_owned();
    for (heading, rows) in &tables {
        let section = page.find(&format!("\n## {heading}\n")).expect("a section");
        let begin = section + page[section..].find("|---").expect("a table");
        let begin = begin + page[begin..].find('\n').expect("rows") + 1;
        let end = page[begin..].find("\n\n").map_or(page.len(), |end| begin + end + 1);
        let cells = |row: &str| row.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let former: BTreeMap<_, _> = page[begin..end].lines().map(cells).map(|row| (row[0].clone(), row)).collect();
        let mut text = String::new();
        for row in rows {
            let prose = row[0].as_ref().and_then(|first| former.get(first));
            for (at, cell) in row.iter().enumerate() {
                let cell = cell.as_ref().or(prose.map(|former| &former[at])).filter(|cell| !cell.is_empty());
                let _ = write!(text, "| {}", cell.map(|cell| format!("{cell} ")).unwrap_or_default());
            }
            text.push_str("|\n");
        }
        page.replace_range(begin..end, &text);
    }
    page
}

#[test]
fn the_reference_of_the_commands_is_current() {
    // Without the page, `duly run` has fewer options.
    if cfg!(feature = "page") {
        assert_current("commands.md", |_| page());
    }
}

/// The type of a column as the page writes it.
fn column_type(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<String>> {
    let kind = row.get::<_, String>("type")?.to_lowercase();
    let is_set = row.get("notnull")? || row.get::<_, i64>("pk")? > 0;
    Ok(Some(match row.get::<_, Option<String>>("dflt_value")? {
        Some(default) if default.contains('(') => format!("{kind}, default now"),
        Some(default) => format!("{kind}, default `{}`", default.trim_matches('\'')),
        None if is_set => kind,
        None => format!("{kind} or NULL"),
    }))
}

#[test]
fn the_reference_of_the_tables_is_current() {
    let schema = rusqlite::Connection::open_in_memory().unwrap();
    schema.execute_batch(include_str!("../../../../schema.sql")).unwrap();
    let names =
        "SELECT name, type = 'view' FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'";
    let mut names = schema.prepare(names).unwrap();
    let names = names.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap);
    let tables = names.map(|(name, is_view): (String, bool)| {
        let mut columns = schema.prepare(&format!("PRAGMA table_info({name})")).unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            let column = quoted(&row.get::<_, String>("name")?);
            Ok(if is_view { vec![column, None] } else { vec![column, column_type(row)?, None, None] })
        };
        let rows = columns.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap();
        (name, rows)
    });
    let tables: Vec<_> = tables.collect();
    assert_current("tables.md", |page| renewed(page, tables.clone(), &[]));
}

/// The JSON of an event of this kind: with the fields that serde asks for, each with the first value that it accepts.
fn event(kind: &str) -> String {
    let mut json = json!({ "event": kind });
    let refusal = |json: &serde_json::Value| {
        serde_json::from_value::<duly::Event>(json.clone()).map_err(|error| error.to_string())
    };
    loop {
        let missing = match refusal(&json) {
            Ok(event) => return serde_json::to_string(&event).unwrap(),
            Err(error) => error,
        };
        let field = missing.strip_prefix("missing field `").unwrap_or_else(|| panic!("{kind}: {missing}"));
        let field = field.trim_end_matches('`').to_owned();
        let values = [json!(1), json!("2027-03-14T12:00:00Z"), json!(true), json!("dead"), json!("on_end")];
        let accepted = values.into_iter().any(|value| {
            json[&field] = value;
            refusal(&json).map_or_else(|error| error.starts_with("missing field") && error != missing, |_| true)
        });
        assert!(accepted, "{kind}: {field}: {:?}", refusal(&json));
    }
}

#[test]
fn the_reference_of_the_events_is_current() {
    // The names of serde: of the kinds in the answer to a wrong one, of the fields in what it writes.
    let kinds = serde_json::from_value::<duly::Event>(json!({ "event": "?" })).unwrap_err().to_string();
    let (_, kinds) = kinds.split_once("expected one of ").unwrap();
    let row = |kind: &str| {
        let json = event(kind);
        let fields: Vec<_> = json.split(",\"").skip(1).filter_map(|rest| quoted(rest.split('"').next()?)).collect();
        let fields = if fields.is_empty() { "none".to_owned() } else { fields.join(", ") };
        let attempt = "`run`, `task`, `attempt`, `handler`, `scheduled_for`";
        vec![quoted(kind), None, Some(fields.replace(attempt, "an attempt")), None]
    };
    let rows: Vec<_> = kinds.split(", ").map(|kind| row(kind.trim_matches('`'))).collect();
    assert!(rows.len() > 20, "{kinds}");
    let tables = vec![("Event".to_owned(), rows)];
    assert_current("events.md", |page| renewed(page, tables.clone(), &["Recorded events"]));
}

#[test]
fn every_command_has_its_exit_codes() {
    let mut program = Args::command();
    program.build();
    let names: Vec<String> = commands(&program).into_iter().map(|(name, _)| name).collect();
    let listed: Vec<&str> = FAILURES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, listed);
}
