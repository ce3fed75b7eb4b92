//! The SQL constants of the store, read from its source.

use std::collections::BTreeMap;
use std::path::Path;

/// What the store's statements share. Only the compiler of the store needs its macro.
#[path = "../../src/store/sqlite/sql.rs"]
#[allow(unused_macros, unused_imports, reason = "only the store's sources call the macro")]
mod sql;

/// Returns every SQL text of the store that is a constant, as `file::NAME`.
pub(crate) fn statements() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (module, source) in sources() {
        for (name, text) in constants(&source) {
            let first = text.split_whitespace().next().unwrap_or_default();
            if ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&first) {
                found.insert(format!("{module}::{name}"), text);
            }
        }
    }
    found
}

/// Returns the store's modules and their source, without those of unit tests.
fn sources() -> BTreeMap<String, String> {
    let (mut folders, mut found) =
        (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sqlite")], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).expect("a folder of the store") {
            let path = file.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let module = path.file_stem().expect("a name").to_string_lossy().into_owned();
            found.insert(module, std::fs::read_to_string(&path).expect("a source file"));
        }
    }
    found.remove("cost");
    found
}

/// Returns the string constants of a source file, as the program has them: `const NAME: &str = "text";`, or
/// `const NAME: &str = sql! {"text"};`.
pub(crate) fn constants(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(begin) = rest.find("const ") {
        rest = &rest[begin + "const ".len()..];
        let Some((name, after)) = rest.split_once(": &str =") else { break };
        if !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_') {
            continue;
        }
        let after = after.trim_start();
        let shares = after.strip_prefix("sql! {");
        let Some(literal) = shares.unwrap_or(after).strip_prefix('"') else {
            assert!(!after.starts_with("sql!"), "{name}: only sql! {{\"text\"}} is read");
            continue;
        };
        let mut text = String::new();
        let mut letters = literal.chars();
        while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
            match letter {
                '\\' => match letters.next() {
                    // A continued line begins where its text does.
                    Some('\n') => letters = letters.as_str().trim_start().chars(),
                    Some('n') => text.push('\n'),
                    Some(other) => text.push(other),
                    None => {}
                },
                letter => text.push(letter),
            }
        }
        found.push((name.to_owned(), if shares.is_some() { expanded(&text) } else { text }));
    }
    found
}

/// Returns a statement without its placeholders. Panics at an unknown one.
fn expanded(text: &str) -> String {
    let mut bytes = vec![0; sql::expand(text, &mut [])];
    sql::expand(text, &mut bytes);
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_extracted_text_equals_the_compiled_text() {
    let source = r#"
const ONE: &str = "SELECT 1";
pub(crate) const TWO: &str = "
    SELECT 'it''s' \
        \"two\"";
const LENGTH: usize = 3;
const fn not_a_text(of: &str) -> bool { of.is_empty() }
const THREE: &str = sql! {"UPDATE t SET a = {unscheduled_id} WHERE {claimable:t}"};
"#;
    let found = constants(source);
    let texts: Vec<(&str, &str)> = found.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let three = "UPDATE t SET a = (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)) \
                 WHERE t.locked_by IS NULL AND (t.status = 'queued' OR t.status = 'failed') AND t.blocked IS NULL";
    let expected = [("ONE", "SELECT 1"), ("TWO", "\n    SELECT 'it''s' \"two\""), ("THREE", three)];
    assert_eq!(texts, expected);
}

#[test]
fn an_unknown_placeholder_fails() {
    for statement in ["SELECT {unfinish}", "SELECT {unfinished", "SELECT {}", "SELECT {:r}"] {
        let source = format!("const ONE: &str = sql! {{\"{statement}\"}};");
        std::panic::catch_unwind(|| constants(&source)).expect_err(statement);
    }
}

/// Else a statement would not use the index for which it repeats the condition.
#[test]
fn the_indexes_of_the_schema_have_the_shared_texts() {
    let schema = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.sql")).expect("the schema");
    let index = |name: &str| {
        let made = schema.split(';').find(|made| made.contains(&format!("INDEX {name} ON"))).expect(name);
        made.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let conditions = [
        ("unfinished", "task_runs_unfinished"),
        ("waiting", "task_runs_waiting"),
        ("claimable", "task_runs_claimable"),
        ("active_planned", "scheduled_tasks_due"),
        ("zoned", "scheduled_tasks_zoned"),
        ("followed", "scheduled_tasks_followed"),
    ];
    for (shared, name) in conditions {
        let text = expanded(&format!("{{{shared}}}"));
        let alone = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(&text);
        let made = index(name);
        let condition = made.split_once(" WHERE ").expect("a partial index").1;
        assert!(condition == text || condition == alone, "{name}: {condition}");
    }
    let columns = format!("(task_id, {}, scheduled_for)", expanded("{unscheduled_id}"));
    for name in ["task_runs_one_per_occurrence", "task_runs_unfinished"] {
        assert!(index(name).contains(&columns), "{name}");
    }
    let known = [
        &conditions.map(|(shared, _)| shared)[..],
        &[
            "unscheduled_id",
            "unscheduled_case",
            "zones_in_use",
            "clock_mark",
            "local_time",
            "fenced",
            "undeclared",
            "followers",
        ],
        &["paused_by_an_actor"],
        &["successes", "late_success", "later_starts", "max_starts"],
    ]
    .concat();
    // That is a search of an index, too.
    assert_eq!(expanded("{successes}").matches(&expanded("{unscheduled_case}")).count(), 3);
    assert_eq!(expanded("{later_starts}").matches(&expanded("{unscheduled_case}")).count(), 3);
    assert_eq!(expanded("{late_success}").matches(&expanded("{unscheduled_case}")).count(), 1);
    // Both stores look at as many runs.
    assert!(expanded("{late_success}").contains(&expanded("LIMIT {most_waiting}) w")));
    for (shared, text) in sql::SHARED {
        let is_of_none = shared.ends_with("_columns") || is_number(text);
        assert!(known.contains(&shared) || is_of_none, "{{{shared}}} is compared with no index");
    }
}

/// A limit, which other statements may share by chance.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A condition that a statement writes out is not found when its index changes.
#[test]
fn no_statement_writes_a_shared_text_out() {
    let aliases: Vec<String> = ('a'..='z').map(|letter| format!("{letter}.")).chain([String::new()]).collect();
    for (name, source) in sources() {
        let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for (shared, text) in sql::SHARED.into_iter().filter(|(_, text)| !is_number(text)) {
            for alias in aliases.iter().filter(|_| name != "sql") {
                assert!(!source.contains(&text.replace('.', alias)), "{name}.rs: write {{{shared}}}");
            }
        }
    }
}
