//! The snippets of the guides in `docs/` run: each page in a folder of its own, one snippet after another, with the program.
//! Rust is run by `cargo test --doc`.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use duly::Client;

use crate::fixtures::{TestDb, eventually, set_mode, skip};
use crate::sidecar::signal;

/// The documents whose snippets run here.
const GUIDES: [&str; 10] = [
    "README.md",
    "docs/README.md",
    "docs/concepts.md",
    "docs/embedding.md",
    "docs/faq.md",
    "docs/from-apscheduler.md",
    "docs/repeatable-tasks.md",
    "docs/tables.md",
    "docs/time.md",
    "docs/workers.md",
];
/// Its snippets take longest.
const OPERATING: &str = "docs/operating.md";
/// Pages without snippets, or whose snippets other tests run, or none can (systemd, containers, other hosts).
const OTHERS: [&str; 15] = [
    "docs/alarms.md",
    "docs/async.md",
    "docs/comparison.md",
    "docs/deployment.md",
    "docs/guards.md",
    "docs/importing.md",
    "docs/linking.md",
    "docs/metrics.md",
    "docs/nanoclaw.md",
    "docs/page.md",
    "docs/performance.md",
    "docs/postgres.md",
    "docs/sizes.md",
    "docs/testing-your-tasks.md",
    "docs/testing.md",
];
/// Files that the snippets name.
const FILES: [(&str, &str); 2] =
    [("backup.sh", "#!/bin/sh\n"), ("tasks.toml", "[[task]]\nname = \"t\"\nevery = \"1h\"\ncommand = [\"true\"]\n")];

struct Snippet {
    language: String,
    text: String,
    line: usize,
}

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    let path = tree().join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the fenced blocks of a page, in order.
fn snippets(page: &str) -> Vec<Snippet> {
    let mut found: Vec<Snippet> = Vec::new();
    let mut is_open = false;
    for (line, text) in read(page).lines().enumerate() {
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

/// The folder in which the snippets of one page run.
struct Desk {
    db: TestDb,
    page: String,
    schedulers: Vec<Child>,
}

impl Desk {
    fn new(page: &str) -> Self {
        let db = TestDb::new();
        std::fs::create_dir(db.home().join("bin")).expect("a folder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_duly"), db.home().join("bin/duly")).expect("the program");
        std::fs::create_dir(db.home().join("node_modules")).expect("a folder");
        let client = tree().join("clients/node");
        std::os::unix::fs::symlink(client, db.home().join("node_modules/duly")).expect("the client for Node.js");
        for (name, text) in FILES {
            std::fs::write(db.home().join(name), text).expect("a file");
            set_mode(&db.home().join(name), 0o755);
        }
        Desk { db, page: page.to_owned(), schedulers: Vec::new() }
    }

    fn command(&self, program: &Path) -> Command {
        let home = self.db.home();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.current_dir(home).env("HOME", home).env("PATH", path).env("TZ", "UTC").env("DULY_DB", "agent.db");
        command.env("PYTHONPATH", tree().join("clients/python/src")).env("NODE_NO_WARNINGS", "1");
        command.env_remove("COLUMNS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&mut self, snippet: &Snippet) {
        let place = format!("{}, line {}", self.page, snippet.line);
        if let Some(name) = file_name(&snippet.text) {
            return std::fs::write(self.db.home().join(name), &snippet.text).expect("a file");
        }
        match snippet.language.as_str() {
            "sh" => self.shell(snippet, &place),
            "console" => self.transcript(snippet, &place),
            "sql" => self.file(snippet, "sqlite3", &["-bail", "-cmd", ".timeout 5000", "agent.db"], &place),
            "python" => self.file(snippet, "python3", &["-"], &place),
            "js" => self.node(snippet, &place),
            "toml" if snippet.text.contains("[dependencies]") => check_features(&snippet.text, &place),
            "toml" => {
                std::fs::write(self.db.home().join("tasks.toml"), &snippet.text).expect("a file");
                let mut apply = self.command(Path::new("duly"));
                check(&apply.args(["apply", "--dry-run", "tasks.toml"]).output().expect("the program"), &place);
            }
            "json" => check_json(&snippet.text, &place),
            "text" | "mermaid" => {}
            language if language.starts_with("rust") => {
                let doctests = std::fs::read_to_string(tree().join("src/lib.rs")).expect("the library");
                assert!(doctests.contains(&format!("../{}", self.page)), "{place}: no doctest of src/lib.rs");
            }
            other => panic!("{place}: no test runs a snippet of {other:?}"),
        }
    }

    fn file(&self, snippet: &Snippet, program: &str, arguments: &[&str], place: &str) {
        let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            return skip(&format!("no {program}"));
        }
        let mut command = self.command(Path::new(program));
        let input = self.db.home().join("snippet");
        std::fs::write(&input, &snippet.text).expect("a file");
        command.args(arguments).stdin(std::fs::File::open(&input).expect("the file"));
        check(&command.output().expect("its output"), place);
    }

    fn node(&self, snippet: &Snippet, place: &str) {
        let built =
            Path::new(env!("CARGO_BIN_EXE_duly")).parent().and_then(Path::parent).expect("the folder of builds");
        // `.ci/clients` installs one.
        let candidates = [PathBuf::from("node"), built.join("clients/node22/node_modules/.bin/node")];
        let is_new = |node: &&PathBuf| {
            let found = Command::new(node).args(["-e", "require('node:sqlite')"]).output();
            found.is_ok_and(|output| output.status.success())
        };
        let Some(node) = candidates.iter().find(is_new) else { return skip("no Node.js with node:sqlite") };
        let script = self.db.home().join("snippet.mjs");
        std::fs::write(&script, &snippet.text).expect("a file");
        check(&self.command(node).arg(&script).output().expect("its output"), place);
    }

    /// Runs a snippet. A scheduler runs until the end of the page, and the lines around it one by one.
    fn shell(&mut self, snippet: &Snippet, place: &str) {
        if !snippet.text.lines().any(|line| is_scheduler(line) || line.contains("cargo ")) {
            let mut shell = self.command(Path::new("bash"));
            return check(&shell.args(["-euo", "pipefail", "-c", &snippet.text]).output().expect("bash"), place);
        }
        for line in snippet.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if line.contains("cargo ") {
                // Other steps of the pipeline build and test; the files must exist.
                let files = line.split(' ').filter(|word| word.starts_with("examples/"));
                files.for_each(|file| assert!(tree().join(file).exists(), "{place}: no {file}"));
            } else if is_scheduler(line) {
                self.start(line, place);
            } else {
                let output = self.command(Path::new("bash")).args(["-c", line]).output().expect("bash");
                // There may be no run whose output could be shown.
                if !line.contains(" logs ") {
                    check(&output, place);
                }
            }
        }
    }

    /// Starts a scheduler, with a free port for its page, and waits until it is registered.
    fn start(&mut self, line: &str, place: &str) {
        let programs = ["node", "python3"].into_iter().filter(|program| line.contains(&format!("={program} ")));
        for program in programs {
            if Command::new(program).arg("--version").output().is_err() {
                return skip(&format!("no {program}"));
            }
        }
        let log = std::fs::File::create(self.db.home().join("log")).expect("a log");
        let line = format!("exec {}", line.replace(":8629", ":0"));
        let mut shell = self.command(Path::new("bash"));
        let file = self.db.home().join("agent.db");
        if !line.contains("--create") {
            drop(Client::open(&file).expect("a database"));
        }
        self.schedulers.push(shell.args(["-c", &line]).stdout(Stdio::null()).stderr(log).spawn().expect("bash"));
        let (child, log) = (self.schedulers.last_mut().expect("a scheduler"), self.db.home().join("log"));
        let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", child.id());
        eventually(&format!("{place}: the scheduler is registered"), || {
            let ended = child.try_wait().expect("its status");
            assert!(ended.is_none(), "{place}: {}", std::fs::read_to_string(&log).expect("a log"));
            let found = rusqlite::Connection::open_with_flags(&file, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY);
            found.and_then(|reader| reader.query_row(&registered, [], |row| row.get(0))) == Ok(1)
        });
    }

    /// Runs each command of a transcript and compares what it prints. `..` stands for any text.
    fn transcript(&self, snippet: &Snippet, place: &str) {
        let (mut found, mut expected) = (String::new(), String::new());
        for line in snippet.text.lines() {
            expected.extend([line, "\n"]);
            let Some(typed) = line.strip_prefix("$ ") else { continue };
            found.extend([line, "\n"]);
            let line = format!("exec 2>&1; {typed}");
            let output = self.command(Path::new("bash")).args(["-c", &line]).output().expect("bash");
            found.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        assert!(matches(&expected, &found), "{place}: expected\n{expected}found\n{found}");
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for scheduler in &mut self.schedulers {
            if scheduler.try_wait().is_ok_and(|ended| ended.is_none()) {
                signal("TERM", &scheduler.id().to_string());
                let _ = scheduler.wait();
            }
        }
    }
}

fn check(output: &Output, place: &str) {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{place}: {}\n{out}{error}", output.status);
}

/// Whether a line starts a scheduler that does not end by itself.
fn is_scheduler(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or_default().trim_end();
    line.starts_with("duly ") && !line.contains("--until-idle") && (line.ends_with(" run") || line.contains(" run --"))
}

/// Returns the name of the file that a snippet is: its first line is a comment with the name.
fn file_name(snippet: &str) -> Option<&str> {
    let line = snippet.lines().next()?;
    let name = line.strip_prefix("// ").or_else(|| line.strip_prefix("# "))?;
    [".mjs", ".py"].iter().any(|end| name.ends_with(end) && !name.contains(' ')).then_some(name)
}

/// Checks a document, or the messages of an exchange: one in each line, after its direction.
fn check_json(text: &str, place: &str) {
    let is_exchange = text.starts_with(['<', '>']);
    let documents = if is_exchange { text.lines().map(|line| &line[1..]).collect() } else { vec![text] };
    for document in documents {
        let read = serde_json::from_str::<serde_json::Value>(document);
        read.unwrap_or_else(|error| panic!("{place}: {error}: {document}"));
    }
}

/// Each feature that a dependency on duly names exists.
fn check_features(manifest: &str, place: &str) {
    let own = std::fs::read_to_string(tree().join("Cargo.toml")).expect("the manifest");
    let line = manifest.lines().find(|line| line.starts_with("duly = ")).expect(place);
    let (_, features) = line.split_once("features = [").expect(place);
    for feature in features.split('"').skip(1).step_by(2) {
        assert!(own.contains(&format!("\n{feature} = [")), "{place}: Cargo.toml has no feature {feature:?}");
    }
}

/// Whether a text has the form of a pattern in which `..` stands for any text within a line.
fn matches(pattern: &str, text: &str) -> bool {
    let line_matches = |pattern: &str, line: &str| {
        let mut parts = pattern.split("..");
        let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let at = if parts.peek().is_none() { rest.len().checked_sub(part.len()) } else { rest.find(part) };
            let Some(at) = at.filter(|at| rest.is_char_boundary(*at) && rest[*at..].starts_with(part)) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.is_empty()
    };
    let (patterns, lines): (Vec<&str>, Vec<&str>) = (pattern.lines().collect(), text.lines().collect());
    patterns.len() == lines.len()
        && patterns.iter().zip(lines).all(|(pattern, line)| line_matches(pattern.trim_end(), line.trim_end()))
}

fn run_page(page: &str) {
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("no bash");
    }
    let mut desk = Desk::new(page);
    for snippet in snippets(page) {
        desk.run(&snippet);
    }
}

#[test]
fn the_snippets_of_the_guides_run() {
    std::thread::scope(|scope| {
        for page in GUIDES {
            scope.spawn(move || run_page(page));
        }
    });
}

#[test]
fn the_snippets_for_operating_run() {
    run_page(OPERATING);
}

/// The index leads to every page, and every page is known to a test.
#[test]
fn the_index_names_every_page() {
    let index = read("docs/README.md");
    let folder = std::fs::read_dir(tree().join("docs")).expect("the folder");
    let files = folder.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    for file in files.filter(|file| file.ends_with(".md")) {
        let page = format!("docs/{file}");
        let is_known = GUIDES.contains(&&*page) || OTHERS.contains(&&*page) || page == OPERATING;
        assert!(is_known, "{page}: add it to the lists of this test");
        assert!(file == "README.md" || index.contains(&format!("({file}")), "docs/README.md does not name {file}");
    }
    for entry in std::fs::read_dir(tree().join("docs/reference")).expect("the folder") {
        let file = entry.expect("an entry").file_name().into_string().expect("a name");
        assert!(index.contains(&format!("(reference/{file})")), "docs/README.md does not name reference/{file}");
    }
}

/// The page for operating explains every kind of problem, and names no other.
#[test]
fn every_kind_of_problem_is_explained() {
    let source = std::fs::read_to_string(tree().join("src/client/check.rs")).expect("the source");
    let (_, kinds) = source.split_once("ProblemKind, \"kind\" {").expect("the kinds");
    let kinds = kinds.split_once("\n    }\n").expect("their end").0;
    let named = kinds.lines().filter_map(|line| line.trim().strip_suffix("\",")?.split_once(" = \""));
    let kinds: BTreeSet<&str> = named.map(|(_, kind)| kind).collect();
    assert!(kinds.len() > 15, "{kinds:?}");
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
