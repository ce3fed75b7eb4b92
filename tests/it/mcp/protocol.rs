//! The protocol: both kinds of versions, junk, cancellation, several requests at once, the end.

use duly::NewTask;
use serde_json::{Value, json};

use crate::fixtures::TestDb;
use crate::mcp::agent::Agent;

const CURRENT: &str = "2026-07-28";

fn meta(version: &str) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// A database with a run that no scheduler starts.
fn with_waiting_run() -> (TestDb, i64) {
    let (db, client) = TestDb::with_client();
    client.add(NewTask::manual("agent:anna/wait").handler("work")).unwrap();
    let run = client.trigger("agent:anna/wait").unwrap();
    (db, run)
}

#[test]
fn the_current_version_needs_no_handshake() {
    let (db, _) = with_waiting_run();
    let mut agent = Agent::silent(&mut db.duly(&["mcp"]));
    assert_eq!(agent.request("ping", json!({"_meta": {"progressToken": 1}}))["result"], json!({}));
    let found = agent.request("server/discover", json!({"_meta": meta(CURRENT)}))["result"].clone();
    assert_eq!(found["supportedVersions"], json!([CURRENT, "2025-11-25", "2025-06-18"]));
    assert_eq!((&found["resultType"], &found["cacheScope"]), (&json!("complete"), &json!("private")));
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "duly");
    let tools = agent.request("tools/list", json!({"_meta": meta(CURRENT)}))["result"].clone();
    let names: Vec<&str> =
        tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["list_tasks", "show_task", "preview", "history", "run_output", "check"]);
    let call = json!({"_meta": meta(CURRENT), "name": "list_tasks"});
    let listed = agent.request("tools/call", call)["result"].clone();
    assert_eq!((&listed["resultType"], &listed["isError"]), (&json!("complete"), &json!(false)));
    let wrong = agent.request("tools/list", json!({"_meta": meta("1900-01-01")}))["error"].clone();
    assert_eq!((&wrong["code"], &wrong["data"]["requested"]), (&json!(-32022), &json!("1900-01-01")));
    for (method, code) in [("ping", -32600), ("resources/subscribe", -32601), ("tools/lists", -32601)] {
        let error = agent.request(method, json!({"_meta": meta(CURRENT)}))["error"].clone();
        assert_eq!(error["code"], code, "{method}: {error}");
    }
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn versions_with_a_handshake_are_answered_in_their_own_form() {
    for version in ["2025-11-25", "2025-06-18"] {
        let (db, _) = with_waiting_run();
        let mut agent = Agent::silent(&mut db.duly(&["mcp"]));
        assert_eq!(agent.request("ping", json!({}))["result"], json!({}));
        assert_eq!(agent.request("tools/list", json!({}))["error"]["code"], -32602, "before the handshake");
        let hello =
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}});
        let hello = agent.request("initialize", hello)["result"].clone();
        assert_eq!(hello["protocolVersion"], version);
        assert!(hello["capabilities"]["tools"].is_object() && hello["capabilities"]["resources"].is_object());
        let tools = agent.request("tools/list", json!({}))["result"].clone();
        assert!(tools["resultType"].is_null() && tools["tools"].as_array().unwrap().len() == 6, "{tools}");
        // A client may change its mind: each request of the current version names it.
        let current = agent.request("tools/list", json!({"_meta": meta(CURRENT)}))["result"].clone();
        assert_eq!(current["resultType"], "complete");
        assert_eq!(agent.leave(), Some(0));
    }
}

#[test]
fn junk_is_answered_and_the_server_goes_on() {
    let (db, _) = with_waiting_run();
    let mut agent = Agent::start(&db, &[]);
    for (length, says) in
        [(1_000_000, "expected one JSON object a line: "), (3_000_000, "expected a line of at most 2097152 bytes")]
    {
        agent.send_line(&vec![b'x'; length]);
        let error = agent.next()["error"].clone();
        assert!(error["code"] == -32700 && error["message"].as_str().unwrap().starts_with(says), "{error}");
    }
    let large = agent.refused("preview", json!({"schedule": "x".repeat(1_000_000)}));
    assert_eq!(large, "arguments.schedule: expected at most 300 characters, found 1000000");
    for (line, code) in [
        (&b"nonsense"[..], -32700),
        (b"\xff\xfe\x00", -32700),
        (b"[{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}]", -32600),
        (b"{\"id\": 1, \"method\": \"ping\"}", -32600),
        (b"{\"jsonrpc\": \"2.0\", \"id\": {}, \"method\": \"ping\"}", -32600),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": [1]}", -32600),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {}}", -32602),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"rm\"}}", -32602),
    ] {
        agent.send_line(line);
        let error = agent.next()["error"].clone();
        assert_eq!(error["code"], code, "{}: {error}", String::from_utf8_lossy(line));
    }
    let deep = format!("{{\"jsonrpc\": \"2.0\", \"id\": 2, \"method\": \"a\", \"params\": {}", "[".repeat(100_000));
    agent.send_line(deep.as_bytes());
    assert_eq!(agent.next()["error"]["code"], -32700);
    // Notifications, answers and empty lines are never answered.
    for line in
        ["", "  ", "{\"jsonrpc\": \"2.0\", \"method\": \"x\"}", "{\"jsonrpc\": \"2.0\", \"id\": 5, \"result\": {}}"]
    {
        agent.send_line(line.as_bytes());
    }
    agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}}));
    assert_eq!(agent.request("ping", json!({}))["result"], json!({}));
    assert_eq!(agent.leave(), Some(0));
}

/// `DULY_SEED` repeats the choices.
#[test]
fn mutated_requests_are_answered_or_ignored_and_the_server_goes_on() {
    let (db, _) = with_waiting_run();
    let seed = std::env::var("DULY_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().expect("a number"));
    println!("DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let options = ["--scope", "agent:anna/", "--allow", "add,trigger,pause,cancel", "--handlers", "h"];
    let mut agent = Agent::start(&db, &options);
    let seeds = [
        json!({"jsonrpc": "2.0", "id": "m", "method": "tools/call", "params": {"name": "schedule_task", "arguments":
            {"name": "agent:anna/x", "schedule": "every day at 9", "handler": "h", "payload": {"a": [1, 2.5, null]}, "time_zone": "Europe/Rome"}}}),
        json!({"jsonrpc": "2.0", "id": "m", "method": "tools/call", "params": {"name": "preview", "arguments":
            {"schedule": "on the 1st of every month at 9:30 pm", "count": 3}, "_meta": meta(CURRENT)}}),
        json!({"jsonrpc": "2.0", "id": "m", "method": "tools/call", "params": {"name": "history", "arguments":
            {"name": "agent:anna/wait", "around": "2027-03-14T13:00", "since": "2026-03-14", "limit": 3}}}),
        json!({"jsonrpc": "2.0", "id": "m", "method": "initialize", "params": {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x"}}}),
    ];
    for _ in 0..400 {
        let mut line = seeds[random.usize(..seeds.len())].to_string().into_bytes();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..line.len());
            match random.u8(..4) {
                0 => line[at] = random.u8(..),
                1 => drop(line.remove(at)),
                2 => line.insert(at, *random.choice(b"{}[]\"\\:,-.0 9eT").expect("one")),
                _ => line.truncate(at.max(9)),
            }
        }
        line.retain(|byte| *byte != b'\n');
        agent.send_line(&line);
    }
    // Three changes make no id of four digits.
    agent.last_id = 1_000;
    let answer = agent.request("ping", json!({}));
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(agent.leave(), Some(0));
    db.assert_sound();
}

#[test]
fn requests_are_at_work_beside_each_other_and_one_is_cancelled() {
    let (db, run) = with_waiting_run();
    let mut agent = Agent::start(&db, &[]);
    let first = agent.ask_tool("run_output", json!({"run": run, "wait_seconds": 60}));
    let second = agent.ask_tool("run_output", json!({"run": run, "wait_seconds": 60}));
    assert_eq!(agent.done("list_tasks", json!({}))["tasks"].as_array().unwrap().len(), 1, "while two wait");
    agent.send(&json!({"jsonrpc": "2.0", "id": first, "method": "tools/call", "params": {"name": "list_tasks"}}));
    let error = agent.answer(first);
    assert_eq!(error["error"]["message"], "id: a request with this id is at work");
    agent.send(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first, "reason": "x"}}),
    );
    db.client().cancel(run).unwrap();
    let ended = agent.answer(second)["result"]["structuredContent"]["run"].clone();
    assert_eq!(ended["status"], "cancelled");
    // The cancelled request is not answered: the answer to a later one comes first.
    let last = agent.ask("ping", json!({}));
    assert_eq!(agent.next()["id"], last);
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn only_some_requests_are_at_work_at_once() {
    let (db, run) = with_waiting_run();
    let mut agent = Agent::start(&db, &["--scope", "agent:anna/", "--allow", "pause,cancel"]);
    let waiting: Vec<i64> =
        (0..16).map(|_| agent.ask_tool("run_output", json!({"run": run, "wait_seconds": 60}))).collect();
    let error = agent.request("tools/call", json!({"name": "list_tasks"}))["error"].clone();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(1), &json!("expected at most 16 requests at work: wait for an answer"))
    );
    assert_eq!(agent.request("ping", json!({}))["result"], json!({}));
    // To stop is always possible.
    let stopped = agent.done("pause_task", json!({"name": "agent:anna/wait"}));
    assert_eq!(stopped["change"], "paused");
    assert_eq!(agent.done("cancel_run", json!({"run": run}))["change"], "cancelled");
    waiting.into_iter().for_each(|id| assert!(agent.answer(id)["error"].is_null()));
    assert!(agent.request("tools/call", json!({"name": "list_tasks"}))["error"].is_null());
}

#[test]
fn the_end_of_the_input_ends_what_waits() {
    let (db, run) = with_waiting_run();
    let mut agent = Agent::start(&db, &[]);
    agent.ask_tool("run_output", json!({"run": run, "wait_seconds": 60}));
    agent.done("list_tasks", json!({}));
    assert_eq!(agent.leave(), Some(0));
}

#[test]
fn a_server_without_its_database_or_with_wrong_options_does_not_start() {
    let db = TestDb::new();
    let absent = if db.is_on_server() { "it holds no tables of duly" } else { "no such file" };
    for (options, says) in [
        (&["mcp"][..], absent),
        (&["mcp", "--allow", "add"], "--scope <PREFIX>"),
        (&["mcp", "--allow", "everything", "--scope", "a/"], "invalid value 'everything'"),
        (&["mcp", "--scope", "agent:anna"], "with / or : at its end"),
        (&["mcp", "--handlers", "command"], "declare a [[template]]"),
        (&["mcp", "--manifest", "none.toml"], "none.toml"),
        (&["mcp", "--tz", "Europe/Roma"], "Europe/Rome"),
    ] {
        let output = db.duly(options).output().expect("the program");
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!output.status.success() && said.contains(&says.to_lowercase()), "{options:?}: {said}");
        assert!(output.stdout.is_empty(), "{options:?}");
    }
}

#[test]
fn a_handler_that_cannot_be_used_or_takes_anything_is_a_warning() {
    let (db, _) = crate::mcp::change::home();
    let options = ["mcp", "--scope", "a/", "--allow", "add", "--handlers", "note", "--manifest", "tasks.toml"];
    let output = db.duly(&options).output().expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    let warnings: Vec<&str> = said.lines().collect();
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(
        warnings,
        [
            "warning: [handler.remind]: no task has it, since --handlers does not name it",
            "warning: --handlers note: without a payload_schema it takes any payload"
        ]
    );
}
