//! The configurations that the guides show start `duly mcp`, with the tools that they name.

use serde_json::{Value, json};

use crate::docs::{read, tree};
use crate::fixtures::TestDb;
use crate::mcp::agent::Agent;

/// The arguments of the server in the JSON of a page, with the folder of the test in place of those of the page.
fn arguments(page: &str, db: &TestDb, folder: &str) -> Vec<String> {
    let text = read(&tree().join(page));
    let json = text.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("a block of JSON");
    let config: Value = serde_json::from_str(json).expect("JSON");
    let server = &config["mcpServers"]["duly"];
    assert_eq!(server["command"], "duly", "{page}");
    let home = db.home().display().to_string();
    let words = server["args"].as_array().expect("arguments").iter().map(|word| word.as_str().expect("a text"));
    words.map(|word| word.replace(folder, &home)).collect()
}

#[test]
fn the_configurations_of_the_guides_start_the_tools() {
    let examples = tree().join("examples/nanoclaw/family.toml");
    for (page, folder, changes) in [("docs/agents.md", "/srv/bot", 7), ("docs/nanoclaw.md", "/workspace/duly", 6)] {
        let (db, _) = TestDb::with_client();
        std::fs::copy(&examples, db.home().join("family.toml")).expect("a copy");
        std::fs::copy(&examples, db.home().join("tasks.toml")).expect("a copy");
        let words = arguments(page, &db, folder);
        let mut duly = std::process::Command::new(env!("CARGO_BIN_EXE_duly"));
        let mut agent = Agent::shaken(duly.args(&words).current_dir(db.home()).env("TZ", "UTC"));
        let tools = agent.request("tools/list", json!({}))["result"]["tools"].clone();
        assert_eq!(tools.as_array().expect("tools").len(), 6 + changes, "{page}: {words:?}");
        assert_eq!(agent.leave(), Some(0));
    }
}

/// The table of tools in the guide names each tool, and no other.
#[test]
fn the_guide_names_each_tool() {
    let (db, _) = TestDb::with_client();
    let mut agent = Agent::start(&db, &["--scope", "a/", "--allow", "add,trigger,pause,cancel,remove"]);
    let tools = agent.request("tools/list", json!({}))["result"]["tools"].clone();
    let mut offered: Vec<&str> =
        tools.as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    let page = read(&tree().join("docs/agents.md"));
    let table = page.split_once("| tool | allowed by | what it does |").expect("the table").1;
    let rows = table.split("\n\n").next().expect("its end").lines();
    let cells = rows.filter(|row| row.starts_with("| `")).filter_map(|row| row.split('|').nth(1));
    let mut named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    offered.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, offered);
}
