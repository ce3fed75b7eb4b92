//! `docs/reference/commands.md`, which is made from the definition of the command line.
//!
//! `DULY_WRITE_REFERENCE=1 cargo test --bin duly reference` writes the page. Without the variable, the test compares it.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};

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

";

/// When a command exits with 1, and whether it opens the database and so may exit with 4.
const FAILURES: [(&str, &str, bool); 29] = [
    ("run", "the manifest was refused, or the scheduler did not start or was stopped by an error", true),
    ("add", "the definition is invalid, or a task of this name has another definition", true),
    ("apply", "the manifest was refused; nothing has changed", true),
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
    ("next", "no task has this name, or the cron expression is invalid", true),
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
    ("limit set", "the limit is invalid", true),
    ("limit remove", "there is no such limit", true),
    ("check", "there is at least one problem: one line for each on standard output", true),
    ("prune", "the history cannot be deleted", true),
    ("doctor", "at least one check failed", true),
    ("selftest", "at least one check failed", false),
    ("backup", "the file exists, or cannot be written", true),
    ("migrate", "the target is not empty, or both differ after the copy", true),
    ("completions", "the script cannot be printed", false),
    ("man", "there is no such command", false),
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
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
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

#[test]
fn the_reference_of_the_commands_is_current() {
    // Without the page, `duly run` has fewer options.
    if cfg!(not(feature = "page")) {
        return;
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/commands.md");
    let page = page();
    if std::env::var_os("DULY_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    let differs = page.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    let how = "DULY_WRITE_REFERENCE=1 cargo test --bin duly reference";
    assert!(page == found, "docs/reference/commands.md is not current; {how} writes it. First difference: {differs:?}");
}

#[test]
fn every_command_has_its_exit_codes() {
    let mut program = Args::command();
    program.build();
    let names: Vec<String> = commands(&program).into_iter().map(|(name, _)| name).collect();
    let listed: Vec<&str> = FAILURES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, listed);
}
