//! The commands and options that the prose and the tables of the documents name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::docs::{sources, tree};
use crate::guides::{pages, read};

/// Pages about what was, or what other programs have.
const OTHERS: [&str; 1] = ["CHANGELOG.md"];

fn help(words: &[&str]) -> String {
    let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
    let output = duly.args(words).arg("--help").env("COLUMNS", "200").output().expect("the program");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the names of the commands below the heading of a help text.
fn commands(help: &str) -> Vec<String> {
    let Some((_, rest)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = rest.lines().take_while(|line| line.starts_with("  "));
    lines.filter_map(|line| line[2..].split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the long options that a help text names.
fn options(help: &str) -> BTreeSet<String> {
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

/// Returns the options of each command, and of those below it.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let mut known = BTreeMap::from([(String::new(), options(&help(&[])))]);
    for command in commands(&help(&[])) {
        let text = help(&[&command]);
        let mut found = options(&text);
        for below in commands(&text).iter().filter(|name| *name != "help") {
            found.extend(options(&help(&[&command, below])));
        }
        known.insert(command, found);
    }
    known
}

/// Returns the code spans of a text, without its fenced blocks.
fn spans(text: &str) -> Vec<String> {
    let prose: Vec<&str> = text.split("\n```").step_by(2).collect();
    let spans = prose.iter().flat_map(|prose| prose.split('`').skip(1).step_by(2));
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the name of the first command that a span runs, and its options: of `duly --db FILE run --http ..`, `run` and `--http`.
pub(super) fn command_of(span: &str) -> Option<(String, Vec<String>)> {
    let line = span.split(['|', ';', '>', '&']).map(str::trim).find_map(|part| part.strip_prefix("duly "))?;
    // What follows is the command line of another program.
    let own = line.split(" -- ").next().unwrap_or_default();
    let mut words = own.split(' ').peekable();
    let mut name = String::new();
    let mut options = Vec::new();
    while let Some(word) = words.next() {
        if matches!(word, "--db") && name.is_empty() {
            words.next();
        } else if word.starts_with("--") && word.len() > 2 {
            options.push(word.split(['=', ',', ')', '\'', '"']).next().unwrap_or_default().to_owned());
        } else if name.is_empty() && !word.starts_with('-') && !word.starts_with('.') {
            name = word.trim_end_matches([',', '.', ':']).to_owned();
        }
    }
    Some((name, options))
}

#[test]
fn the_commands_that_the_prose_names_exist() {
    let known = known();
    assert!(known.len() > 25, "{:?}", known.keys());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages().iter().filter(|page| !OTHERS.contains(&&***page)) {
        for span in spans(&read(page)) {
            let Some((name, options)) = command_of(&span) else { continue };
            // A word that stands for any command.
            if name == "COMMAND" || name == "[OPTIONS]" {
                continue;
            }
            count += 1;
            match known.get(&name) {
                None => wrong.push(format!("{page}: `{span}`: no command {name:?}")),
                Some(own) => wrong.extend(
                    options
                        .iter()
                        .filter(|option| !own.contains(*option) && !known[""].contains(*option))
                        .map(|option| format!("{page}: `{span}`: no option {option}")),
                ),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 200, "only {count} commands were found");
}

/// Returns what a span with `cargo` names: features, examples, benches, and the filters of tests.
fn named_by_cargo(span: &str) -> Vec<(&'static str, String)> {
    let mut named = Vec::new();
    let Some((_, line)) = span.split_once("cargo ") else { return named };
    let mut words = line.split(' ');
    let is_test = words.next() == Some("test");
    let mut is_of_skip = false;
    while let Some(word) = words.next() {
        match word {
            "--features" => {
                let features = words.next().unwrap_or_default().split(',');
                named.extend(features.map(|feature| ("feature", feature.to_owned())));
            }
            "--example" => named.extend(words.next().map(|name| ("example", name.to_owned()))),
            "--bench" => named.extend(words.next().map(|name| ("bench", name.to_owned()))),
            "--test" | "--bin" | "--profile" | "--target" => drop(words.next()),
            "--skip" => is_of_skip = true,
            "--" if !is_test => break,
            filter if is_test && !filter.starts_with('-') && !filter.is_empty() => {
                named.extend(filter.split("::").filter(|part| !part.is_empty()).map(|part| ("test", part.to_owned())));
            }
            _ => {}
        }
    }
    // What a test skips may be a part of a name.
    named.retain(|(kind, _)| !is_of_skip || *kind != "test");
    named
}

/// A command that docs/testing.md abbreviates: `DULY_DISK=all .. disk`.
fn in_full(span: &str) -> String {
    match span.split_once(".. ") {
        Some((variables, rest)) if variables.starts_with("DULY_") => {
            format!("{variables}cargo test --all-features --test it {rest}")
        }
        _ => span.to_owned(),
    }
}

#[test]
fn what_commands_of_cargo_name_exists() {
    let manifest = read("Cargo.toml");
    let source = |folder: &str| -> String {
        sources(folder).into_iter().map(|file| read(&format!("{folder}/{file}"))).collect()
    };
    let tests = source("tests") + &source("src");
    let exists = |kind: &str, name: &str| match kind {
        "feature" => manifest.contains(&format!("\n{name} = [")),
        "example" => tree().join("examples").join(format!("{name}.rs")).exists(),
        "bench" => manifest.contains(&format!("\nname = \"{name}\"\n")),
        // A filter may be the beginning of a name.
        _ => ["mod ", "fn "].iter().any(|word| tests.contains(&format!("{word}{name}"))),
    };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages().iter().filter(|page| !OTHERS.contains(&&***page)) {
        for span in spans(&read(page)) {
            // As the page on testing abbreviates it.
            for (kind, name) in named_by_cargo(&in_full(&span)) {
                count += 1;
                if !exists(kind, &name) {
                    wrong.push(format!("{page}: `{span}`: no {kind} {name:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 40, "only {count} names were found");
}

#[test]
fn commands_are_read() {
    let named: Vec<String> =
        named_by_cargo("DULY_SEED=7 cargo test --features a,b --test it on_postgres::x -- --ignored")
            .into_iter()
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect();
    assert_eq!(named, ["feature a", "feature b", "test on_postgres", "test x"]);
    let read = |span: &str| command_of(span).map(|(name, options)| format!("{name} {}", options.join(" ")));
    assert_eq!(read("duly --db a.db run --http 127.0.0.1:1").as_deref(), Some("run --http"));
    assert_eq!(read("crontab -l | duly import crontab -").as_deref(), Some("import "));
    assert_eq!(read("duly add x -- ./a.sh --full").as_deref(), Some("add "));
    assert_eq!(read("cargo run"), None);
    assert_eq!(spans("a `b`\n```sh\n`c`\n```\nd `e\nf`"), ["b", "e f"]);
}
