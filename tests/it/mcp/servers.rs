//! Several servers of one scope on one database: the limits hold for all of them together.

use serde_json::{Value, json};

use crate::fixtures::TestDb;
use crate::mcp::agent::Agent;
use crate::mcp::change::{ALL, home};

/// How many servers ask at once.
const SERVERS: usize = 6;

fn servers(db: &TestDb, limits: &[&str]) -> Vec<Agent> {
    (0..SERVERS).map(|_| Agent::start(db, &[&ALL[..], limits].concat())).collect()
}

/// Has each server call a tool, all at once, and returns the reasons of those that refuse.
fn at_once(agents: &mut [Agent], tool: &str, arguments: impl Fn(usize) -> Value) -> Vec<String> {
    let asked: Vec<i64> =
        agents.iter_mut().enumerate().map(|(at, agent)| agent.ask_tool(tool, arguments(at))).collect();
    let answers = agents.iter_mut().zip(asked).map(|(agent, id)| agent.answer(id)["result"].clone());
    let refused = answers.filter(|result| result["isError"] == true);
    refused.map(|result| result["content"][0]["text"].as_str().expect("a reason").to_owned()).collect()
}

fn reminder(name: &str) -> Value {
    json!({"name": name, "schedule": "manual", "handler": "remind", "payload": {"text": "water"}})
}

#[test]
fn servers_that_add_at_once_leave_as_many_tasks_as_the_limit() {
    let (db, client) = home();
    let mut agents = servers(&db, &["--max-tasks", "7"]);
    let mut refused = Vec::new();
    for round in 0..3 {
        refused.extend(at_once(&mut agents, "schedule_task", |at| reminder(&format!("agent:anna/{round}-{at}"))));
    }
    assert_eq!((client.tasks().unwrap().len(), refused.len()), (7, 3 * SERVERS - 7), "{refused:?}");
    for reason in refused {
        assert!(reason.starts_with("limit --max-tasks: there are 7 tasks"), "{reason}");
    }
    db.assert_sound();
}

#[test]
fn servers_that_start_at_once_start_as_many_runs_as_the_limit() {
    let (db, client) = home();
    let mut agents = servers(&db, &["--max-starts-per-day", "8"]);
    agents[0].done("schedule_task", reminder("agent:anna/x"));
    let mut refused = Vec::new();
    for _ in 0..3 {
        refused.extend(at_once(&mut agents, "trigger_task", |_| json!({"name": "agent:anna/x"})));
    }
    assert_eq!((client.newest_runs(99).unwrap().len(), refused.len()), (8, 3 * SERVERS - 8), "{refused:?}");
    for reason in refused {
        assert!(reason.starts_with("limit --max-starts-per-day: expected at most 8"), "{reason}");
    }
    db.assert_sound();
}

#[test]
fn a_dry_run_says_what_would_be_added_or_changed() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let dry = |agent: &mut Agent, mut task: Value| {
        task["dry_run"] = json!(true);
        let (said, told) = (agent.done("schedule_task", task.clone()), agent.told("schedule_task", task));
        assert_eq!((&said["change"], &said["dry_run"]), (&json!("none"), &json!(true)));
        (said, told)
    };
    let (said, told) = dry(&mut agent, reminder("agent:anna/x"));
    assert_eq!((&said["would"], &said["differences"]), (&json!("add"), &json!([])));
    assert!(told.contains("would add agent:anna/x"), "{told}");
    agent.done("schedule_task", reminder("agent:anna/x"));
    let before = db.tasks();
    let (said, told) = dry(&mut agent, reminder("agent:anna/x"));
    assert!(
        said["would"] == "unchanged" && told.contains("unchanged: agent:anna/x is stored as it is given"),
        "{told}"
    );
    let mut other = reminder("agent:anna/x");
    other["payload"]["text"] = json!("fire");
    other["max_attempts"] = json!(2);
    let (said, told) = dry(&mut agent, other.clone());
    assert!(said["would"] == "refuse" && told.contains("exists and differs: would be refused"), "{told}");
    other["replace"] = json!(true);
    let (said, told) = dry(&mut agent, other.clone());
    assert!(said["would"] == "change" && told.contains("would change agent:anna/x"), "{told}");
    let line = r#"payload: untrusted "{\"text\":\"water\"}" → untrusted "{\"text\":\"fire\"}""#;
    // A server writes JSON with spaces.
    assert!(told.lines().any(|told| told.replace("\\\": ", "\\\":") == line), "{told}");
    let fields: Vec<&Value> = said["differences"].as_array().unwrap().iter().map(|one| &one["field"]).collect();
    assert_eq!(fields.len(), 2, "{said}");
    assert_eq!(db.tasks(), before);
    // As it said.
    assert_eq!(agent.done("schedule_task", other)["change"], "replaced");
    assert_eq!(client.task("agent:anna/x").unwrap().unwrap().definition.retry.max_attempts, 2);
    db.assert_sound();
}

#[test]
fn a_dry_run_is_refused_as_the_change_is() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let name = json!({"name": "agent:anna/x"});
    agent.done("schedule_task", reminder("agent:anna/x"));
    let run = agent.done("trigger_task", name.clone())["run"].clone();
    agent.done("cancel_run", json!({"run": run}));
    agent.done("retry_run", json!({"run": run}));
    for (broken, status) in
        [("invalid", "invalid', invalid_reason = 'x"), ("over", "completed', next_run = NULL, planned = '1")]
    {
        let mut hourly = reminder(&format!("agent:anna/{broken}"));
        hourly["schedule"] = json!("every hour");
        agent.done("schedule_task", hourly);
        db.execute(&format!("UPDATE scheduled_tasks SET status = '{status}' WHERE name = 'agent:anna/{broken}'"));
    }
    let before = (db.tasks(), client.newest_runs(99).unwrap());
    for (tool, arguments, says) in [
        (
            "trigger_task",
            json!({"name": "agent:anna/x", "key": "#1/1"}),
            "key: expected a key that does not begin with #",
        ),
        ("trigger_task", json!({"name": "agent:anna/x", "key": "k".repeat(201)}), "key: expected 1 to 200 bytes"),
        ("trigger_task", json!({"name": "agent:anna/x", "key": ""}), "key: expected 1 to 200 bytes"),
        (
            "trigger_task",
            json!({"name": "agent:anna/invalid"}),
            "cannot trigger task \"agent:anna/invalid\": it is invalid",
        ),
        ("retry_run", json!({"run": run}), "cannot retry run 1: run 2 retries it already"),
        ("cancel_run", json!({"run": run}), "cannot cancel run 1: it is over"),
        ("resume_task", json!({"name": "agent:anna/over"}), "cannot resume task \"agent:anna/over\": it is completed"),
        ("pause_task", json!({"name": "agent:anna/over"}), "cannot pause task \"agent:anna/over\": it is completed"),
    ] {
        let mut dry = arguments.clone();
        dry["dry_run"] = json!(true);
        let reason = agent.refused(tool, dry);
        assert!(reason.starts_with(says), "{tool} {arguments}: {reason}");
        assert_eq!(agent.refused(tool, arguments), reason);
    }
    // What is done is said in the same words, and nothing is changed.
    for (tool, arguments) in
        [("trigger_task", name.clone()), ("pause_task", name.clone()), ("cancel_task", name.clone())]
    {
        let mut dry = arguments;
        dry["dry_run"] = json!(true);
        let said = agent.done(tool, dry.clone());
        assert_eq!((&said["change"], &said["dry_run"]), (&json!("none"), &json!(true)), "{tool}");
        assert_eq!(tool == "trigger_task", said["remarks"][0] == "it runs within a minute: now", "{said}");
        assert!(agent.told(tool, dry).starts_with("dry run, nothing was changed: would be "));
    }
    assert_eq!((db.tasks(), client.newest_runs(99).unwrap()), before);
    assert_eq!(agent.done("resume_task", name)["change"], "unchanged");
    db.assert_sound();
}

#[test]
fn a_task_that_stays_as_it_is_says_when_it_runs_or_that_it_ran() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    let tea = |schedule: &str, more: Value| {
        let mut tea = reminder("agent:anna/tea");
        tea["schedule"] = json!(schedule);
        more.as_object().unwrap().iter().for_each(|(key, value)| tea[key] = value.clone());
        tea
    };
    let stored = agent.done("schedule_task", tea("in 2 hours", json!({})))["task"]["next_run"]["utc"].clone();
    for dry_run in [false, true] {
        let again = agent.done("schedule_task", tea("in 3 hours", json!({"dry_run": dry_run})));
        let remark = again["remarks"][0].as_str().unwrap();
        assert!(remark.starts_with("it was added before, and runs at ") && remark.contains("(in 1h 59m)"), "{again}");
        let next = if dry_run { &again["next_runs"][0]["utc"] } else { &again["task"]["next_run"]["utc"] };
        assert_eq!(*next, stored);
    }
    // What is said of the time is said of the stored plan.
    agent.done("pause_task", json!({"name": "agent:anna/tea"}));
    let paused = agent.done("schedule_task", tea("in 10s", json!({"replace": true, "dry_run": true})));
    assert_eq!((&paused["remarks"], &paused["next_runs"]), (&json!([]), &json!([])), "{paused}");
    agent.done("resume_task", json!({"name": "agent:anna/tea"}));
    // A task that has run does not run again in silence.
    let old = client.now().minus(std::time::Duration::from_secs(7200));
    let ran = "status = 'completed', next_run = NULL, planned = 1";
    db.execute(&format!("UPDATE scheduled_tasks SET {ran}"));
    let (handler, run) = ("'remind'", "'schedule', 'succeeded', 1");
    let at = old.as_millis();
    db.execute(&format!(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, run_at, started_at, finished_at, origin, status, attempt)
         SELECT id, {handler}, {at}, {at}, {at}, {at}, {run} FROM scheduled_tasks"
    ));
    for dry_run in [false, true] {
        let reason = agent.refused("schedule_task", tea("in 10m", json!({"dry_run": dry_run})));
        let says = "task \"agent:anna/tea\" is completed: it ran at ";
        assert!(reason.starts_with(says) && reason.contains("(2h ago): replace true"), "{reason}");
    }
    let again = agent.done("schedule_task", tea("in 30s", json!({"replace": true})));
    assert!(again["remarks"][0].as_str().unwrap().starts_with("it runs within a minute: in "), "{again}");
    db.assert_sound();
}

#[test]
fn a_dry_run_shows_nothing_of_the_environment_of_a_template() {
    let (db, _) = home();
    let manifest =
        |secret: &str| format!("[[template]]\nname = \"p\"\ncommand = [\"true\"]\nenv = {{ TOKEN = \"{secret}\" }}\n");
    let start = |db: &TestDb, secret: &str| {
        std::fs::write(db.home().join("tasks.toml"), manifest(secret)).unwrap();
        Agent::start(db, &ALL)
    };
    let task = json!({"name": "agent:anna/p", "schedule": "manual", "template": "p", "replace": true});
    start(&db, "old-secret").done("schedule_task", task.clone());
    let mut dry = task;
    dry["dry_run"] = json!(true);
    let answer = start(&db, "new-secret").call("schedule_task", dry);
    assert_eq!(answer["structuredContent"]["would"], "change", "{answer}");
    assert!(answer.to_string().contains("payload") && !answer.to_string().contains("secret"), "{answer}");
}

#[test]
fn a_task_that_another_one_leads_to_is_not_removed() {
    let (db, client) = home();
    let mut agent = Agent::start(&db, &ALL);
    for (at, option) in ["--on-dead", "--on-success", "--on-end", "--on-missed"].into_iter().enumerate() {
        let name = format!("agent:anna/{at}");
        agent.done("schedule_task", reminder(&name));
        let names = format!("other,{name}");
        db.printed(&["-q", "add", &format!("payroll-{at}"), "--manual", option, &names, "--shell", "true"]);
        agent.done("trigger_task", json!({"name": name}));
        let before = (db.tasks(), db.rows("SELECT id, status, cancel_requested FROM task_runs ORDER BY id"));
        for dry_run in [true, false] {
            let reason = agent.refused("cancel_task", json!({"name": name, "dry_run": dry_run}));
            let says = "another task names it in on_dead, on_success, on_end or on_missed";
            assert!(reason.contains(says) && !reason.contains("payroll"), "{reason}");
        }
        assert_eq!((db.tasks(), db.rows("SELECT id, status, cancel_requested FROM task_runs ORDER BY id")), before);
        client.remove(&format!("payroll-{at}")).unwrap();
        assert_eq!(agent.done("cancel_task", json!({"name": name}))["change"], "removed");
    }
    db.assert_sound();
}
