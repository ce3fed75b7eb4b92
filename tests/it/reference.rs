//! The pages of docs/reference name what the source has, and nothing else. Those of commands and the manifest have tests in the program.

use std::collections::BTreeSet;

use crate::docs::{code, for_tests, read, sources, tree};

fn page(name: &str) -> String {
    read(&tree().join("docs/reference").join(name)).replace("\r\n", "\n")
}

/// The section of a page below the heading, up to the next one of any level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}"));
    rest.split("\n#").next().unwrap_or_default()
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let (first, rest) = line.strip_prefix("| `")?.strip_suffix('|')?.split_once('`')?;
    Some([first].into_iter().chain(rest.split('|').skip(1).map(str::trim)).collect())
}

/// The cells of each row of a table whose first cell is quoted: it is without its backticks.
fn rows(section: &str) -> Vec<Vec<&str>> {
    section.lines().filter_map(cells).collect()
}

fn headings(page: &str) -> Vec<&str> {
    page.split("\n## ").skip(1).filter_map(|rest| rest.lines().next()).collect()
}

fn first_cells(section: &str) -> Vec<&str> {
    rows(section).into_iter().map(|row| row[0]).collect()
}

/// The columns of a table of schema.sql, with their types as the page writes them.
fn columns(body: &str) -> Vec<(String, String)> {
    let mut columns: Vec<(String, String, String)> = Vec::new();
    let mut inside = false;
    for line in body.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end()) {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if line.starts_with("     ") {
            // The rest of a definition.
            if inside && let Some((.., rest)) = columns.last_mut() {
                rest.push_str(line);
            }
        } else if line.starts_with("    ") {
            let kind = second.trim_end_matches(',').to_lowercase();
            inside = kind == "text" || kind == "integer";
            if inside {
                columns.push((first.to_owned(), kind, words.collect::<Vec<_>>().join(" ")));
            }
        }
    }
    let kind = |(name, kind, rest): (String, String, String)| {
        let default = rest.split_once("DEFAULT ").and_then(|(_, rest)| rest.split([' ', ',']).next());
        let kind = match default {
            Some(default) if default.starts_with('(') => format!("{kind}, default now"),
            Some(default) => format!("{kind}, default `{}`", default.trim_matches('\'')),
            None if rest.contains("NOT NULL") || rest.contains("PRIMARY KEY") => kind,
            None => format!("{kind} or NULL"),
        };
        (name, kind)
    };
    columns.into_iter().map(kind).collect()
}

#[test]
fn tables_are_those_of_the_schema() {
    let (schema, page) = (read(&tree().join("schema.sql")).replace("\r\n", "\n"), page("tables.md"));
    let mut expected = Vec::new();
    for part in schema.split("\nCREATE TABLE ").skip(1) {
        let (name, rest) = part.split_once(" (\n").expect("a name");
        expected.push((name, columns(rest.split("\n) STRICT").next().expect("its columns"))));
    }
    let (tables, views) = page.split_once("\n# Views\n").expect("the views");
    assert_eq!(headings(tables), expected.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, columns) in expected {
        let rows = rows(section(tables, &format!("## {name}")));
        let found: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
        assert_eq!(found, columns, "{name}");
        assert!(rows.iter().all(|row| row.len() == 4), "{name}: four cells in each row");
    }
    let db = duly_tables();
    let mut statement = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name").unwrap();
    let names: BTreeSet<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(headings(views).into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), names);
    for name in names {
        let view = db.prepare(&format!("SELECT * FROM {name}")).unwrap();
        let columns = Vec::from_iter(view.column_names());
        assert_eq!(first_cells(section(views, &format!("## {name}"))), columns, "{name}");
    }
}

/// A database in memory with the tables.
fn duly_tables() -> rusqlite::Connection {
    let db = rusqlite::Connection::open_in_memory().expect("a database");
    db.execute_batch(&read(&tree().join("schema.sql"))).expect("the tables");
    db
}

/// The variants of the enumeration, in snake case, each with its fields by their names in JSON.
fn variants(source: &str) -> Vec<(String, BTreeSet<String>)> {
    let (_, body) = source.split_once("pub enum Event {\n").expect("the enumeration");
    let body = body.split("\n}\n").next().expect("its end");
    let (mut variants, mut renamed, mut flattened): (Vec<(String, BTreeSet<String>)>, _, _) = (Vec::new(), None, false);
    for line in body.lines() {
        if let Some(name) = line.strip_prefix("    ").filter(|name| name.starts_with(char::is_uppercase)) {
            let name = name.trim_end_matches([' ', '{', ',']);
            let mut snake = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            variants.push((snake, BTreeSet::new()));
        } else if let Some(rest) = line.trim().strip_prefix("#[serde(") {
            flattened = rest.starts_with("flatten");
            renamed = rest.split_once("rename = \"").and_then(|(_, name)| name.split('"').next());
        } else if let Some((field, _)) = line.trim().split_once(": ").filter(|_| !line.trim().starts_with("///")) {
            let fields = &mut variants.last_mut().expect("a variant").1;
            match (flattened, field) {
                (true, "orphan") => fields.extend(["run", "task", "attempt", "handler"].map(str::to_owned)),
                (true, _) => drop(fields.insert("an attempt".to_owned())),
                _ => drop(fields.insert(renamed.unwrap_or(field).to_owned())),
            }
            (flattened, renamed) = (false, None);
        }
    }
    variants
}

#[test]
fn events_are_those_of_the_enumeration() {
    let page = page("events.md");
    let expected = variants(&code("model/event.rs"));
    assert!(expected.len() > 20, "{expected:?}");
    let rows = rows(section(&page, "## Event"));
    let fields = |cell: &str| -> BTreeSet<String> {
        let fields = cell.split(", ").filter(|field| *field != "none");
        fields.map(|field| field.trim_matches('`').to_owned()).collect()
    };
    let found: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), fields(row[2]))).collect();
    assert_eq!(found, expected);
}

#[test]
fn recorded_events_are_those_of_the_source() {
    let page = page("events.md");
    let documented = first_cells(section(&page, "## Recorded events"));
    // The page of events has each kind in words.
    let source = code("page/html/events.rs");
    let (_, list) = source.split_once("const KINDS").expect("the kinds");
    let list = list.split("\n};").next().expect("their end");
    let shown: Vec<&str> = list.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect();
    assert_eq!(documented, shown);
    let recording: Vec<String> = sources("src")
        .iter()
        .filter(|file| (file.starts_with("store/sqlite/") || file.starts_with("engine/")) && !for_tests(file))
        .map(|file| code(file))
        .collect();
    for kind in &documented {
        let literal = format!("\"{kind}\"");
        assert!(recording.iter().any(|code| code.contains(&literal)), "nothing records {kind}");
    }
    // `record(tx, now, "kind", ..)`, in one line or in several.
    for code in &recording {
        for (at, _) in code.match_indices("record(") {
            let call: Vec<&str> = code[at..].splitn(4, ',').collect();
            if let Some(kind) = call.get(2).and_then(|word| word.trim().strip_prefix('"')?.strip_suffix('"')) {
                assert!(documented.contains(&kind), "{kind} is recorded, and not documented");
            }
        }
    }
}

/// Names of variables in string literals: after `start`, a quote or a bracket, of capitals and `_`.
fn variables(code: &str, start: &str) -> BTreeSet<String> {
    let found = code.match_indices(start).filter_map(|(at, _)| {
        let name = code[at..].trim_start_matches('"');
        let end = name.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_').unwrap_or(name.len());
        Some(name[..end].to_owned()).filter(|name| name.len() > 2)
    });
    found.collect()
}

#[test]
fn environment_variables_are_those_of_the_source() {
    let page = page("environment.md");
    let documented: BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).flat_map(quoted).collect();
    let (own, of_system): (BTreeSet<String>, BTreeSet<String>) =
        documented.into_iter().partition(|name| name.starts_with("DULY_"));
    let (mut found, mut read) = (BTreeSet::new(), BTreeSet::new());
    for file in sources("src").iter().filter(|file| !for_tests(file) && !file.ends_with("tests.rs")) {
        let code = code(file).replace("env!(\"CARGO", "");
        found.extend(variables(&code, "\"DULY_"));
        for call in ["var(\"", "var_os(\"", "variable(\"", "environment(\"", "list(\"PG", "path(self", "(\"PG"] {
            for (at, _) in code.match_indices(call) {
                let line = code[at..].lines().next().unwrap_or_default();
                read.extend(line.split('"').nth(1).map(str::to_owned));
            }
        }
    }
    assert_eq!(own, found, "those of duly");
    read.retain(|name| {
        !name.starts_with("DULY_") && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    });
    let missing: Vec<&String> = read.difference(&of_system).collect();
    assert!(missing.is_empty(), "these are read, and not documented: {missing:?}");
    assert!(read.len() > 15, "only {read:?} were found");
}

fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_index_names_every_page() {
    let index = page("README.md");
    let folder = std::fs::read_dir(tree().join("docs/reference")).expect("the folder");
    for file in folder.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")) {
        assert!(file == "README.md" || index.contains(&format!("]({file})")), "{file}");
    }
}
