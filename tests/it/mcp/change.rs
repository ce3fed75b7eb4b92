//! The tools that change: what they do, what they refuse, and the trail that they leave.

use duly::{Client, EventFilter, NewTask, RunStatus, TaskStatus};
use serde_json::{Value, json};

use crate::fixtures::TestDb;
use crate::mcp::agent::Agent;

/// A manifest with a handler that has a schema, one without, and a template.
pub(crate) const MANIFEST: &str = r#"
[handler.remind]
payload_schema = { type = "object", required = ["text"], additionalProperties = false, properties.text = { type = "string", maxLength = 200 } }

[[template]]
name = "post"
description = "Appends a post to the file posted"
command = ["sh", "post.sh", "--to={to}", "--", "{text}"]
max_attempts = 2
parameters.to = { pattern = "[a-z]+" }
parameters.text = { max_length = 200, multiline = true }
"#;

/// All that `--allow` admits, in the scope `agent:anna/`.
pub(crate) const ALL: [&str; 8] = [
    "--allow",
    "add,trigger,pause,cancel,remove",
    "--scope",
    "agent:anna/",
    "--handlers",
    "remind,note",
    "--manifest",
    "tasks.toml",
];

/// A database, and the files of [`MANIFEST`].
pub(crate) fn home() -> (TestDb, Client) {
    let (db, client) = TestDb::with_client();
    std::fs::write(db.home().join("tasks.toml"), MANIFEST).unwrap();
    std::fs::write(db.home().join("post.sh"), "printf '%s|%s|%s\\n' \"$1\" \"$2\" \"$3\" >> posted\n").unwrap();
    (db, client)
}

fn reminder(name: &str, schedule: &str) -> Value {
    json!({"name": name, "schedule": schedule, "handler": "remind", "payload": {"text": "water"}})
}

#[test]
fn a_task_is_added_once_and_carries_who_added_it() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &[&ALL[..], &["--tz", "Europe/Rome"]].concat());
    let water = || reminder("agent:anna/water", "every day at 9");
    let dry = agent.done(
        "schedule_task",
        json!({"name": "agent:anna/water", "schedule": "every day at 9", "handler": "note", "dry_run": true}),
    );
    assert_eq!((&dry["dry_run"], client.tasks().unwrap().len()), (&json!(true), 0));
    let added = agent.done("schedule_task", water());
    assert_eq!((&added["change"], &added["task"]["next_run"]["zone"]), (&json!("added"), &json!("Europe/Rome")));
    assert_eq!(agent.done("schedule_task", water())["change"], "unchanged");
    let other = agent.refused("schedule_task", reminder("agent:anna/water", "every day at 10"));
    assert!(
        other.starts_with("a task of this name exists with another schedule_value: replace true changes it"),
        "{other}"
    );
    let mut replaced = reminder("agent:anna/water", "every day at 10");
    replaced["replace"] = json!(true);
    assert_eq!(agent.done("schedule_task", replaced)["change"], "replaced");
    let task = client.task("agent:anna/water").unwrap().unwrap();
    assert_eq!(task.definition.managed_by.as_deref(), Some("mcp:tester"));
    // Another client of the scope goes on with it, and the trail names both.
    drop(agent);
    let mut other = Agent::start(&db, &[&ALL[..], &["--as", "second", "--tz", "Europe/Rome"]].concat());
    other.done("pause_task", json!({"name": "agent:anna/water"}));
    let events = client.events(&EventFilter::newest(9).of("agent:anna/water")).unwrap();
    let trail: Vec<String> = events
        .iter()
        .filter(|event| event.kind == "action")
        .map(|event| event.detail.clone().unwrap_or_default())
        .map(|detail| detail.split_whitespace().filter(|word| !word.ends_with(':')).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(trail, ["mcp:second session pause", "mcp:tester session replace", "mcp:tester session add"]);
    assert!(task.paused_by.is_none());
    let by = client.task("agent:anna/water").unwrap().unwrap().paused_by.unwrap();
    assert!(by.starts_with("mcp:second session "), "{by}");
    db.assert_sound();
}

#[test]
fn what_agents_added_is_listed_checked_and_removed_by_its_origin() {
    let (db, client) = home();
    client.add(NewTask::manual("by-hand").handler("work")).unwrap();
    let mut agent = Agent::start(&db, &ALL);
    for name in ["agent:anna/a", "agent:anna/b"] {
        agent.done("schedule_task", reminder(name, "manual"));
    }
    let listed: Value = serde_json::from_str(&db.printed(&["list", "--added-by", "mcp:tester", "--json"])).unwrap();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["agent:anna/a", "agent:anna/b"]);
    assert!(db.printed(&["list", "--added-by", "mcp:*", "--wide"]).contains("ADDED BY"));
    assert!(db.printed(&["show", "agent:anna/a"]).contains("mcp:tester"));
    db.execute(
        "UPDATE scheduled_tasks SET schedule_type = 'cron', schedule_value = '99 * * * *' WHERE name = 'agent:anna/a'",
    );
    db.printed(&["run", "--until-idle"]);
    let check = db.duly(&["check"]).output().unwrap();
    let problems = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(problems.contains("agent:anna/a is invalid") && problems.contains("(added by mcp:tester)"), "{problems}");
    // A manifest does not take over what an agent added, and pruning leaves it.
    std::fs::write(
        db.home().join("other.toml"),
        "[[task]]\nname = \"agent:anna/b\"\nevery = \"1h\"\nshell = \"true\"\n",
    )
    .unwrap();
    let refused = db.duly(&["apply", "other.toml"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("mcp:tester added it: remove it, or use --adopt"),
        "{refused:?}"
    );
    std::fs::write(db.home().join("other.toml"), "").unwrap();
    db.printed(&["apply", "other.toml", "--prune", "--allow-empty"]);
    assert_eq!(client.tasks().unwrap().len(), 3);
    let dry = db.printed(&["remove", "--added-by", "mcp:tester", "--dry-run"]);
    assert!(dry.contains("would remove 2 tasks"), "{dry}");
    db.printed(&["remove", "--added-by", "mcp:tester", "--yes"]);
    assert_eq!(client.names().unwrap(), ["by-hand"]);
}

#[test]
fn a_template_runs_its_program_with_the_parameters_as_arguments() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let text = "-rf $(id) `id`; 'quoted'\n\"twice\" {to}";
    let post = json!({"name": "agent:anna/post", "schedule": "in 0 s", "template": "post", "parameters": {"to": "anna", "text": text}});
    assert!(agent.refused("schedule_task", post.clone()).starts_with("schedule: expected"), "0 s");
    let mut post = post;
    post["schedule"] = json!("in 2 hours");
    post["dry_run"] = json!(true);
    agent.done("schedule_task", post.clone());
    post["dry_run"] = json!(false);
    post["schedule"] = json!("manual");
    agent.done("schedule_task", post);
    let run = agent.done("trigger_task", json!({"name": "agent:anna/post", "key": "once"}))["run"].clone();
    assert_eq!(agent.done("trigger_task", json!({"name": "agent:anna/post", "key": "once"}))["run"], run);
    db.printed(&["run", "--until-idle"]);
    let posted = std::fs::read_to_string(db.home().join("posted")).unwrap();
    assert_eq!(posted, format!("--to=anna|--|{text}\n"));
    let ended = agent.done("run_output", json!({"run": run, "wait_seconds": 60}));
    assert_eq!(ended["run"]["status"], "succeeded");
    assert_eq!(client.task("agent:anna/post").unwrap().unwrap().definition.retry.max_attempts, 2);
}

#[test]
fn runs_are_triggered_cancelled_and_retried_and_tasks_paused_and_removed() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    agent.done("schedule_task", reminder("agent:anna/a", "every hour"));
    let run = agent.done("trigger_task", json!({"name": "agent:anna/a", "payload": {"text": "now"}}))["run"]
        .as_i64()
        .unwrap();
    let payload: Value = serde_json::from_str(&client.run(run).unwrap().unwrap().payload.unwrap()).unwrap();
    assert_eq!(payload, json!({"text": "now"}));
    let wrong = agent.refused("trigger_task", json!({"name": "agent:anna/a", "payload": {"texts": "now"}}));
    assert_eq!(wrong, "payload.text: expected a value, found none");
    agent.done("cancel_run", json!({"run": run, "dry_run": true}));
    assert_eq!(client.run(run).unwrap().unwrap().status, RunStatus::Queued);
    agent.done("cancel_run", json!({"run": run}));
    let retry = agent.done("retry_run", json!({"run": run}))["run"].as_i64().unwrap();
    assert_eq!(client.run(retry).unwrap().unwrap().retry_of, Some(run));
    agent.done("pause_task", json!({"name": "agent:anna/a"}));
    assert_eq!(client.task("agent:anna/a").unwrap().unwrap().status, TaskStatus::Paused);
    agent.done("resume_task", json!({"name": "agent:anna/a"}));
    // What the user paused, the user resumes.
    client.pause("agent:anna/a").unwrap();
    let reason = agent.refused("resume_task", json!({"name": "agent:anna/a"}));
    assert!(reason.ends_with("user paused it: the user decides"), "{reason}");
    client.resume("agent:anna/a").unwrap();
    agent.done("cancel_task", json!({"name": "agent:anna/a", "dry_run": true}));
    agent.done("cancel_task", json!({"name": "agent:anna/a"}));
    assert!(client.tasks().unwrap().is_empty());
    let trail = client.events(&EventFilter::newest(1).kind("action")).unwrap()[0].detail.clone().unwrap();
    assert!(
        trail.starts_with("mcp:tester session ")
            && trail.ends_with(", 2 starts of 24 hours removed: remove agent:anna/a"),
        "{trail}"
    );
    client.add(NewTask::manual("agent:anna/hand").handler("work")).unwrap();
    let reason = agent.refused("cancel_task", json!({"name": "agent:anna/hand"}));
    assert!(reason.ends_with("it was added by hand"), "{reason}");
    db.assert_sound();
}

#[test]
fn what_is_not_allowed_is_not_offered_and_not_done() {
    let (db, client) = home();
    client.add(NewTask::manual("agent:anna/a").handler("work")).unwrap();
    let mut agent = Agent::start(&db, &["--allow", "pause", "--scope", "agent:anna/"]);
    let tools = agent.request("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names[6..], ["pause_task", "resume_task"]);
    for tool in ["schedule_task", "trigger_task", "cancel_task", "cancel_run", "retry_run"] {
        let reason = agent.refused(tool, json!({"name": "agent:anna/a", "run": 1}));
        assert_eq!(reason, format!("there is no tool {tool:?}"));
    }
    agent.done("pause_task", json!({"name": "agent:anna/a"}));
    assert_eq!(client.task("agent:anna/a").unwrap().unwrap().status, TaskStatus::Paused);
}

#[test]
fn a_completed_task_of_an_agent_is_deleted_in_time_as_one_that_was_added_by_hand() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    agent.done("schedule_task", reminder("agent:anna/old", "in 2 hours"));
    let old = "status = 'completed', next_run = NULL, updated_at = 1000000000000, created_at = 1000000000000";
    db.execute(&format!("UPDATE scheduled_tasks SET {old}"));
    client.prune(duly::Retention::default()).unwrap();
    assert!(client.tasks().unwrap().is_empty());
}

#[test]
fn a_task_ends_at_a_local_time_and_a_time_that_is_none_is_named() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &[&ALL[..], &["--tz", "Europe/Rome"]].concat());
    let until = |text: &str| {
        let mut water = reminder("agent:anna/water", "every day at 9");
        water["ends_at"] = json!(text);
        water
    };
    for (text, says) in [("soon", "ends_at: "), ("2097-03-31T02:30", "ends_at: "), ("2097-02-29", "ends_at: ")] {
        let reason = agent.refused("schedule_task", until(text));
        assert!(reason.starts_with(says) && reason.contains(text), "{reason}");
    }
    agent.done("schedule_task", until("2097-07-01T18:00"));
    let ends_at = client.task("agent:anna/water").unwrap().unwrap().definition.ends_at;
    assert_eq!(ends_at, Some("2097-07-01T16:00:00Z".parse().unwrap()));
    let shown = agent.done("show_task", json!({"name": "agent:anna/water"}));
    assert_eq!(shown["task"]["ends_at"]["local"], "2097-07-01T18:00:00+02:00", "{shown}");
    assert_eq!(shown["task"]["max_attempts"], 5, "{shown}");
    for schedule in ["manual", "every day at 9"] {
        let mut ended = reminder("agent:anna/ended", schedule);
        ended["ends_at"] = json!("2026-01-01");
        let reason = agent.refused("schedule_task", ended);
        assert!(reason.starts_with("ends_at: expected a time that is not before the first occurrence, "), "{reason}");
    }
}

/// The payload of a run was checked for the handler that its task had.
#[test]
fn a_payload_of_a_run_reaches_no_other_handler_and_no_command() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let name = json!({"name": "agent:anna/a"});
    let task = |handler: &str, payload: Value| json!({"name": "agent:anna/a", "schedule": "manual", "handler": handler, "payload": payload, "replace": true});
    let template = json!({"name": "agent:anna/a", "schedule": "manual", "template": "post", "parameters": {"to": "x", "text": "y"}, "replace": true});
    agent.done("schedule_task", task("note", json!(null)));
    let run = agent.done("trigger_task", json!({"name": "agent:anna/a", "payload": {"free": "text"}}))["run"].clone();
    for other in [task("remind", json!({"text": "water"})), template.clone()] {
        for dry_run in [true, false] {
            let mut other = other.clone();
            other["dry_run"] = json!(dry_run);
            let reason = agent.refused("schedule_task", other);
            assert!(
                reason.contains(&format!("run {run} has a payload of its own, for \"note\": cancel_run")),
                "{reason}"
            );
        }
    }
    // The same handler stays its own.
    let kept = agent.done("schedule_task", task("note", json!("other")));
    assert!(kept["remarks"][0].as_str().unwrap().starts_with(&format!("run {run} of ")), "{kept}");
    agent.done("cancel_run", json!({"run": run}));
    for (other, now) in [(task("remind", json!({"text": "water"})), "remind"), (template, "command")] {
        agent.done("schedule_task", other);
        let reason = agent.refused("retry_run", json!({"run": run}));
        assert!(reason.contains(&format!("its payload was for \"note\", and its task has \"{now}\" now")), "{reason}");
    }
    assert_eq!(client.newest_runs(9).unwrap().len(), 1);
    agent.done("cancel_task", name);
}

#[test]
fn what_waits_or_is_due_when_a_task_is_replaced_is_told() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let note = |schedule: &str, dry_run: bool| json!({"name": "agent:anna/n", "schedule": schedule, "handler": "note", "replace": true, "dry_run": dry_run});
    agent.done("schedule_task", note("in 1 hour", false));
    db.execute("UPDATE scheduled_tasks SET next_run = next_run - 7200000");
    client.task("agent:anna/n").unwrap();
    for dry_run in [true, false] {
        let said = agent.done("schedule_task", note("in 3 hours", dry_run));
        let remark = said["remarks"][0].as_str().unwrap_or_default();
        assert!(remark.contains("was due before, and runs with what is given now"), "{said}");
    }
    let said = agent.done("schedule_task", note("in 4 hours", false));
    assert!(said["remarks"][0].as_str().unwrap().contains("waits, and runs with what is given now"), "{said}");
    (0..4).for_each(|_| drop(agent.done("trigger_task", json!({"name": "agent:anna/n"}))));
    let said = agent.done("schedule_task", note("in 5 hours", false));
    assert_eq!(said["remarks"][3], "so do 2 others: history names them", "{said}");
}

#[test]
fn a_one_time_task_runs_when_it_is_resumed_and_that_is_said() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let name = json!({"name": "agent:anna/once"});
    agent.done("schedule_task", json!({"name": "agent:anna/once", "schedule": "in 1 hour", "handler": "note"}));
    let told = agent.told("pause_task", name.clone());
    assert!(told.contains("if its time has come by then, it runs at once"), "{told}");
    agent.done("resume_task", name);
    let events = client.events(&EventFilter::newest(9).kind("resumed")).unwrap();
    assert_eq!(events[0].detail, None);
}
