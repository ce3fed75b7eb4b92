//! Each fenced block of the documents is run: by this file, page by page in a folder of its own, by a doc test, or by a test that
//! `ELSEWHERE` names. A block that nothing runs fails [`every_block_is_run`], unless `NEVER` says why.
#![cfg(target_os = "linux")]

/// Commands that the prose names.
mod commands;
mod desk;
/// The examples in the help of each command.
mod help;
/// Pages about a server.
#[cfg(feature = "postgres")]
mod on_server;
mod stand_ins;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::docs::{self, sources, tree};
use crate::fixtures::skip;
use crate::guides::desk::{Desk, Setting, matches};
use crate::links::documents;

/// Its snippets take longest.
const OPERATING: &str = "docs/operating.md";
/// Their snippets are for a server.
const ON_SERVER: [&str; 2] = ["docs/guards.md", "docs/postgres.md"];

/// Blocks that another test runs: the page, the first words of the block, and the function or script. No words: each block of the page.
const ELSEWHERE: [(&str, &str, &str); 13] = [
    ("docs/agents.md", "{\n", "the_configurations_of_the_guides_start_the_tools"),
    ("docs/nanoclaw.md", "{\n", "the_configurations_of_the_guides_start_the_tools"),
    ("docs/nanoclaw.md", "schedule_task: added", ".ci/clients"),
    // The usage and the examples of each command; a test of the program compares the page with its help.
    ("docs/reference/commands.md", "", "every_example_of_every_help_text_runs"),
    ("docs/alarms.md", "{\n", "the_message_of_an_alarm_has_the_keys_of_the_page"),
    ("docs/concepts.md", "stateDiagram", "the_diagram_has_the_states_of_the_table"),
    ("docs/guards.md", "  guard ", "on_several_hosts_each_guard_has_its_day_and_duly_starts_once_on_all"),
    ("docs/installing.md", "", ".ci/packages"),
    ("docs/linking.md", "cannot use agent.db", "an_old_library_is_refused_with_both_versions"),
    ("docs/page.md", "server {", "the_proxy_of_the_page_lets_users_in"),
    ("clients/node/README.md", "npm install", ".ci/packages"),
    ("clients/python/README.md", "pip install", ".ci/packages"),
    ("clients/python/README.md", "python3 -m unittest", ".ci/clients"),
];

/// Blocks that nothing can run, with the reason.
const NEVER: [(&str, &str, &str); 2] = [
    ("ARCHITECTURE.md", " application, program", "a drawing"),
    ("packaging/README.md", "cargo publish\n", "it publishes"),
];

struct Snippet {
    language: String,
    text: String,
    line: usize,
}

fn read(page: &str) -> String {
    docs::read(&tree().join(page))
}

/// Returns every document, as a path below the tree.
fn pages() -> Vec<String> {
    let name = |path: &Path| path.strip_prefix(tree()).expect("a path below").display().to_string();
    documents().iter().map(|path| name(path)).collect()
}

/// Returns the fenced blocks of a page, in order.
fn snippets(page: &str) -> Vec<Snippet> {
    snippets_of(&read(page), page)
}

fn snippets_of(text: &str, page: &str) -> Vec<Snippet> {
    let mut found: Vec<Snippet> = Vec::new();
    let mut is_open = false;
    for (line, text) in text.lines().enumerate() {
        assert!(
            !text.starts_with(' ') || !text.trim().starts_with("```"),
            "{page}, line {}: an indented block",
            line + 1
        );
        match (text.strip_prefix("```"), is_open) {
            (Some(language), false) => {
                found.push(Snippet { language: language.to_owned(), text: String::new(), line: line + 1 });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => found.last_mut().expect("a snippet").text.extend([text, "\n"]),
            (None, false) => {}
        }
    }
    assert!(!is_open, "{page}: a snippet has no end");
    found
}

/// What runs a block.
#[derive(Debug, PartialEq)]
enum RunBy {
    /// This file, in the folder of the page.
    Page,
    /// `cargo test --doc`.
    DocTest,
    /// A test function, or a script.
    Other(&'static str),
    /// Nothing, with the reason.
    Nothing(&'static str),
}

/// Returns what runs a block, or why nothing does.
fn run_by(page: &str, snippet: &Snippet) -> Result<RunBy, String> {
    let is_it = |entry: &&(&str, &str, &'static str)| entry.0 == page && snippet.text.starts_with(entry.1);
    if let Some((.., test)) = ELSEWHERE.iter().find(is_it) {
        return Ok(RunBy::Other(test));
    }
    if let Some((.., reason)) = NEVER.iter().find(is_it) {
        return Ok(RunBy::Nothing(reason));
    }
    match snippet.language.as_str() {
        "rust" | "rust,no_run" if doc_tests().contains(page) => Ok(RunBy::DocTest),
        "sh" | "console" | "sql" | "python" | "js" | "toml" | "json" | "ini" | "yaml" => Ok(RunBy::Page),
        other => Err(format!("{page}, line {}: no test runs this block of {other:?}", snippet.line)),
    }
}

/// Returns the pages whose Rust blocks are doc tests.
fn doc_tests() -> BTreeSet<String> {
    let files = ["src/lib.rs", "src/testing.rs", "src/page/mod.rs"].map(read);
    let named = files.iter().flat_map(|source| source.split("include_str!(\"").skip(1));
    named.filter_map(|rest| rest.split('"').next()).map(|path| path.trim_start_matches("../").to_owned()).collect()
}

fn run_page(page: &str) {
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("no bash");
    }
    let snippets = snippets(page);
    if !snippets.iter().any(|snippet| run_by(page, snippet) == Ok(RunBy::Page)) {
        return;
    }
    let setting = Setting::of(page);
    let mut desk = Desk::new(page, setting.clone());
    let of_shell = |snippet: &Snippet| snippet.language == "sql" || snippet.text.contains("sqlite3 ");
    // What follows depends on what the shell has written.
    if (setting.before.contains("sqlite3 ") || snippets.iter().any(of_shell)) && desk.lacks("sqlite3", "all of it") {
        return;
    }
    desk.begin();
    for snippet in snippets.iter().filter(|snippet| run_by(page, snippet) == Ok(RunBy::Page)) {
        desk.run(snippet);
    }
    desk.end();
}

#[test]
fn the_snippets_of_the_guides_run() {
    let pages: Vec<String> =
        pages().into_iter().filter(|page| page != OPERATING && !ON_SERVER.contains(&&**page)).collect();
    let failed: Vec<&String> = std::thread::scope(|scope| {
        let threads: Vec<_> = pages.iter().map(|page| (page, scope.spawn(move || run_page(page)))).collect();
        threads.into_iter().filter_map(|(page, thread)| thread.join().is_err().then_some(page)).collect()
    });
    assert!(failed.is_empty(), "{failed:?}: see above");
}

#[test]
fn the_snippets_for_operating_run() {
    run_page(OPERATING);
}

/// `--nocapture` prints the inventory.
#[test]
fn every_block_is_run() {
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    let mut count = 0;
    for page in pages() {
        for snippet in snippets(&page) {
            count += 1;
            let by = run_by(&page, &snippet);
            println!("{page}:{} {} {by:?}", snippet.line, snippet.language);
            match by {
                Ok(RunBy::Other(name) | RunBy::Nothing(name)) => drop(used.insert((page.clone(), name))),
                Ok(_) => {}
                Err(error) => wrong.push(error),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 150, "only {count} blocks were found");
    let tests: Vec<String> = ["src", "tests"]
        .iter()
        .flat_map(|folder| sources(folder).into_iter().map(move |file| read(&format!("{folder}/{file}"))))
        .collect();
    for (page, start, name) in ELSEWHERE.iter().chain(&NEVER) {
        assert!(used.contains(&((*page).to_owned(), *name)), "{page} has no block {start:?}");
    }
    for (.., name) in ELSEWHERE {
        let exists = tree().join(name).is_file() || tests.iter().any(|source| source.contains(&format!("fn {name}()")));
        assert!(exists, "there is no test {name}");
    }
}

#[test]
fn a_block_that_nothing_runs_is_found() {
    let check =
        |text: &str| snippets_of(text, "docs/page.md").iter().map(|s| run_by("docs/page.md", s)).collect::<Vec<_>>();
    let error = |line, language| Err(format!("docs/page.md, line {line}: no test runs this block of {language:?}"));
    assert_eq!(check("```\nduly\n```\n\n```rust,ignore\n```\n"), [error(1, ""), error(5, "rust,ignore")]);
    assert_eq!(check("```sh\nduly\n```\n```rust\n```\n"), [Ok(RunBy::Page), Ok(RunBy::DocTest)]);
    let elsewhere = snippets_of("```rust\n```\n", "docs/faq.md");
    assert!(run_by("docs/faq.md", &elsewhere[0]).is_err(), "no doc test has this page");
}

/// The index leads to every page, and that of the reference to each of its pages.
#[test]
fn the_index_names_every_page() {
    let index = read("docs/README.md");
    let mut count = 0;
    let reference = read("docs/reference/README.md");
    for page in pages().iter().filter_map(|page| page.strip_prefix("docs/")).filter(|page| *page != "README.md") {
        assert!(index.contains(&format!("({page}")), "docs/README.md does not name {page}");
        let of_reference = page.strip_prefix("reference/").filter(|page| *page != "README.md");
        assert!(of_reference.is_none_or(|page| reference.contains(&format!("]({page})"))), "nor does that of {page}");
        count += 1;
    }
    assert!(count > 25, "only {count} pages were found");
}

/// From the index, the answer to a question is two links away: the page of questions, and the page that the answer names.
#[test]
fn every_question_leads_to_a_page_and_to_a_thread() {
    let (index, page) = (read("docs/README.md"), read("docs/faq.md"));
    assert!(index.contains("(faq.md)"), "docs/README.md names the questions");
    let questions: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert!(questions.len() > 10, "only {} questions were found", questions.len());
    let mut threads: BTreeSet<String> = BTreeSet::new();
    for question in questions {
        let links: Vec<&str> = question.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        let title = question.lines().next().unwrap_or_default();
        let page = links
            .iter()
            .find(|link| link.contains(".md") && index.contains(&format!("({}", link.split('#').next().unwrap())));
        assert!(page.is_some(), "{title}: no page of the index");
        let own: Vec<&&str> =
            links.iter().filter(|link| link.starts_with("https://github.com/") && link.contains("/issues/")).collect();
        assert!(!own.is_empty(), "{title}: no thread");
        threads.extend(own.into_iter().map(|link| (*link).to_owned()));
    }
    assert!(threads.len() > 30, "only {} threads were found", threads.len());
}

#[test]
fn the_diagram_has_the_states_of_the_table() {
    let page = read("docs/concepts.md");
    let diagram = snippets(OPERATING.replace("operating", "concepts").as_str()).remove(0);
    assert_eq!(diagram.language, "mermaid");
    let words = diagram.text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_state = |word: &&str| duly::RunStatus::parse(word).is_some();
    let drawn: BTreeSet<&str> = words.filter(is_state).collect();
    let table = page.split_once("| state | meaning | final |").expect("the table").1;
    let table = table.split("\n\n").next().expect("its end");
    let rows: Vec<&str> = table.lines().filter(|row| row.starts_with("| `")).collect();
    let named: BTreeSet<&str> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(drawn, named);
    let statuses: BTreeSet<&str> = duly::RunStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(named, statuses);
    for row in rows {
        let name = row.split('`').nth(1).expect("a name");
        let status: duly::RunStatus = name.parse().expect("a status");
        assert_eq!(status.is_final(), row.ends_with("| yes |"), "{name}");
    }
}

/// The exchange of the page has the messages and keys of its tables.
#[test]
fn the_exchange_with_a_worker_has_the_keys_of_the_tables() {
    let page = read("docs/workers.md");
    let (_, tables) = page.split_once("### From the worker").expect("the messages");
    let (of_the_worker, of_duly) = tables.split_once("### From duly").expect("the messages of duly");
    let keys_of = |table: &str, name: &str| -> BTreeSet<String> {
        let is_row = |row: &&str| row.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{name}`")));
        let row = table.lines().filter(|line| line.starts_with("| `")).find(is_row);
        let cell = row.and_then(|row| row.split('|').nth(2)).unwrap_or_else(|| panic!("no message {name:?}"));
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let exchange =
        snippets("docs/workers.md").into_iter().find(|snippet| snippet.language == "json").expect("the exchange");
    for line in exchange.text.lines() {
        let message: serde_json::Value = serde_json::from_str(&line[1..]).expect("JSON");
        let name = message["type"].as_str().expect("a type");
        let known = keys_of(if line.starts_with('<') { of_the_worker } else { of_duly }, name);
        for key in message.as_object().expect("an object").keys().filter(|key| *key != "type") {
            assert!(known.contains(key), "{name}: {key:?} is not in the table");
        }
    }
}

#[test]
fn the_message_of_an_alarm_has_the_keys_of_the_page() {
    fn keys(value: &serde_json::Value) -> BTreeSet<String> {
        let object = value.as_object().expect("an object").iter();
        object
            .flat_map(|(key, value)| {
                let below = value.as_object().map(|_| keys(value)).unwrap_or_default();
                below.into_iter().map(move |name| format!("{key}.{name}")).chain([key.clone()])
            })
            .collect()
    }
    let page = "docs/alarms.md";
    let documented = snippets(page).into_iter().find(|snippet| snippet.language == "json").expect("the message");
    let documented: serde_json::Value = serde_json::from_str(&documented.text).expect("JSON");
    let desk = Desk::new(page, Setting::default());
    desk.prepare(
        "duly -q add backup --manual --max-attempts 1 -- false; duly -q trigger backup
         duly -q run --until-idle --alert-command 'cp /dev/stdin message' 2>&1",
    );
    let message = std::fs::read_to_string(desk.file("message")).expect("a message");
    let message: serde_json::Value = serde_json::from_str(&message).expect("JSON");
    assert_eq!(keys(&message), keys(&documented));
}

/// The page for operating explains every kind of problem, and names no other.
#[test]
fn every_kind_of_problem_is_explained() {
    let kinds: BTreeSet<&str> = duly::ProblemKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let page = read(OPERATING);
    let table = page.split_once("| kind | means | do |").expect("the table").1.split("\n\n").next().expect("its end");
    let cells = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let explained: BTreeSet<&str> = cells.flat_map(|cell| cell.trim_end_matches('`').split("`, `")).collect();
    assert_eq!(explained, kinds);
}

#[test]
fn transcripts_are_compared() {
    assert!(matches("run .. of backup\n", "run 17 of backup\n"));
    assert!(matches("a..b..c\n", "a1b2bc\n"));
    assert!(!matches("run .. of backup\n", "run 17 of other\n"));
    assert!(!matches("one\n", "one\ntwo\n"));
    assert!(!matches("one\n", "one more\n"));
}
