//! `/api/..`: each answer is the JSON of a command and has the form that `openapi.json` documents; bad requests are refused with a reason.

mod schema;

use std::collections::BTreeSet;

use duly::page::Page;
use duly::{AttemptOutcome, Misfire, Origin, Overlap, ProblemKind, RunStatus, Scheduler, TaskStatus};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, eventually};
use crate::json::{NAME, full};
use crate::page_api::schema::Description;
use crate::page_run::request;

/// [`NAME`] in a path.
const ENCODED: &str = "mail%3Aanna%40example.org%2F..%2Fx";

/// A database, and a scheduler without handlers that serves it.
struct Served {
    db: TestDb,
    scheduler: Scheduler,
}

struct Answer {
    code: u16,
    body: Value,
    /// The target of the link to the next page.
    next: Option<String>,
}

impl Served {
    fn start(db: TestDb) -> Self {
        let scheduler = Scheduler::builder(db.file()).page(Page::on("127.0.0.1:0")).start().expect("a scheduler");
        // The clock of the machine is behind that of the test: the first turns plan the tasks anew.
        eventually("the tasks are planned", || scheduler.turns() >= 3);
        Served { db, scheduler }
    }

    /// Requests a path, whose answer must be JSON.
    #[track_caller]
    fn get(&self, path: &str) -> Answer {
        let answer = request(self.scheduler.page_address().expect("an address"), path, "*/*");
        assert_eq!(answer.kind, "application/json", "{path}");
        let next = answer.link.map(|link| {
            let target = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
            format!("{}{}", path.split('?').next().unwrap_or_default(), target.expect("a link"))
        });
        Answer { code: answer.code, body: serde_json::from_str(&answer.text).expect("JSON"), next }
    }

    #[track_caller]
    fn found(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// What a command prints as JSON. `check` fails while there is a problem.
    fn printed(&self, arguments: &[&str]) -> Value {
        let output = self.db.duly(arguments).arg("--json").output().expect("the program");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }
}

/// Every documented path, with each task and each run of the database in its place.
fn paths(served: &Served, description: &Description) -> Vec<(String, String)> {
    let names = served.scheduler.client().names().unwrap().into_iter();
    let names: Vec<String> = names.map(|name| if name == NAME { ENCODED.to_owned() } else { name }).collect();
    let ids: Vec<String> = served.db.runs().iter().map(|run| run.id.to_string()).collect();
    let mut paths = Vec::new();
    for path in description.paths() {
        if path.contains("{name}") {
            paths.extend(names.iter().map(|name| (path.to_owned(), path.replace("{name}", name))));
        } else if path.contains("{id}") {
            paths.extend(ids.iter().map(|id| (path.to_owned(), path.replace("{id}", id))));
        } else {
            paths.push((path.to_owned(), path.to_owned()));
        }
    }
    paths
}

#[test]
fn every_answer_has_the_documented_form() {
    let description = Description::read();
    for db in [TestDb::new(), full()] {
        let served = Served::start(db);
        let mut codes = BTreeSet::new();
        for (documented, path) in paths(&served, &description) {
            let answer = served.get(&path);
            description.check(&documented, answer.code, &answer.body);
            codes.insert(answer.code);
        }
        // The invalid task has no occurrences.
        assert!(codes.iter().all(|code| [200, 409].contains(code)), "{codes:?}");
    }
}

#[test]
fn the_full_database_has_the_extremes() {
    let served = Served::start(full());
    let runs = served.found("/api/runs?limit=200");
    let runs = runs.as_array().unwrap();
    for status in ["queued", "succeeded", "dead", "cancelled", "missed"] {
        assert!(runs.iter().any(|run| run["status"] == status), "{status}");
    }
    let dead = runs.iter().find(|run| run["status"] == "dead").unwrap();
    let dead = served.found(&format!("/api/runs/{}", dead["id"]));
    assert_eq!(
        (dead["attempts"][0]["error"].as_str(), &dead["effects"][0]["value"]),
        (Some("no\nway"), &json!([1, 2]))
    );
    let task = served.found(&format!("/api/tasks/{ENCODED}"));
    assert_eq!((&task["name"], task["limits"].as_array().unwrap().len()), (&json!(NAME), 2));
    assert!(served.found("/api/tasks?status=invalid").as_array().unwrap().len() == 1);
    assert!(!served.found("/api/events").as_array().unwrap().is_empty());
    assert!(!served.found("/api/check").as_array().unwrap().is_empty());
}

#[test]
fn every_route_is_documented() {
    let source = include_str!("../../src/page/api.rs");
    let routes = source.split(".route(\"").skip(1).map(|rest| format!("/api{}", rest.split('"').next().unwrap()));
    let description = Description::read();
    assert_eq!(routes.collect::<BTreeSet<_>>(), description.paths().map(str::to_owned).collect::<BTreeSet<_>>());
}

#[test]
fn the_description_is_complete_and_of_this_version() {
    let description = Description::read();
    description.check_itself();
    assert_eq!(description.value("/info/version"), env!("CARGO_PKG_VERSION"));
    let texts = |name: &str| description.value(&format!("/components/schemas/{name}/enum")).clone();
    assert_eq!(texts("TaskStatus"), json!(TaskStatus::ALL));
    assert_eq!(texts("RunStatus"), json!(RunStatus::ALL));
    assert_eq!(texts("Origin"), json!(Origin::ALL));
    assert_eq!(texts("AttemptOutcome"), json!(AttemptOutcome::ALL));
    assert_eq!(texts("Problem/properties/kind"), json!(ProblemKind::ALL));
    assert_eq!(texts("Task/properties/overlap"), json!(Overlap::ALL));
    assert_eq!(texts("Task/properties/misfire"), json!(Misfire::ALL));
}

#[test]
fn an_answer_is_the_json_of_a_command() {
    let served = Served::start(full());
    // The log, the heartbeats and the time change in between.
    let still = |mut status: Value| {
        for key in ["file_bytes", "wal_bytes", "clock_shows"] {
            status[key] = Value::Null;
        }
        status["schedulers"].as_array_mut().unwrap().iter_mut().for_each(|one| one["seen_at"] = Value::Null);
        status
    };
    assert_eq!(still(served.found("/api/status")), still(served.printed(&["status"])));
    assert_eq!(served.found("/api/tasks"), served.printed(&["list"]));
    assert_eq!(served.found("/api/tasks?status=paused"), served.printed(&["list", "--status", "paused"]));
    assert_eq!(served.found("/api/tasks?name=*%3A*%2F?"), served.printed(&["list", "*:*/?"]));
    assert_eq!(
        served.found("/api/tasks?handler=work&limit=3"),
        served.printed(&["list", "--handler", "work", "-n", "3"])
    );
    for name in served.scheduler.client().names().unwrap() {
        let path = format!("/api/tasks/{}", if name == NAME { ENCODED } else { &name });
        assert_eq!(served.found(&path), served.printed(&["show", &name]), "{name}");
        if name != "broken" {
            assert_eq!(served.found(&format!("{path}/next")), served.printed(&["next", &name]), "{name}");
            assert_eq!(served.found(&format!("{path}/next?n=400")), served.printed(&["next", &name, "-n", "400"]));
        }
    }
    assert_eq!(served.found("/api/runs"), served.printed(&["history"]));
    let (path, of) = (format!("/api/runs?task={ENCODED}&status=dead&limit=200"), ["history", NAME, "--status", "dead"]);
    assert_eq!(served.found(&path), served.printed(&of));
    assert_ne!(served.found(&path), json!([]));
    let since = served.found("/api/runs?since=2027-03-14T12:00:20Z&limit=200");
    assert_eq!(since, served.printed(&["history", "--since", "2027-03-14T12:00:20Z", "-n", "200"]));
    assert!(since != json!([]) && since != served.found("/api/runs?limit=200"));
    assert_eq!(served.found("/api/runs?since=2h&limit=1"), served.printed(&["history", "--since", "2h", "-n", "1"]));
    for run in served.db.runs() {
        let id = run.id.to_string();
        assert_eq!(served.found(&format!("/api/runs/{id}")), served.printed(&["logs", &id]), "run {id}");
    }
    assert_eq!(served.found("/api/limits"), served.printed(&["limit"]));
    // The text of a problem may name the time of the look-up.
    let kinds = |problems: Value| -> Vec<Value> {
        problems
            .as_array()
            .unwrap()
            .iter()
            .map(|one| json!([one["kind"], one["task"], one["run"], one["advice"]]))
            .collect()
    };
    assert_eq!(kinds(served.found("/api/check")), kinds(served.printed(&["check"])));
    let failing = ["check", "--overdue", "1h", "--failures", "9"];
    assert_eq!(kinds(served.found("/api/check?overdue=1h&failures=9")), kinds(served.printed(&failing)));
    let events = served.scheduler.client().events(&duly::EventFilter::newest(500)).unwrap();
    assert_eq!(served.found("/api/events?limit=500"), serde_json::to_value(events).unwrap());
}

/// Follows the links from a page of a list to the last, and returns all items.
fn followed(served: &Served, path: &str) -> Vec<Value> {
    let (mut items, mut next) = (Vec::new(), Some(path.to_owned()));
    while let Some(path) = next {
        let answer = served.get(&path);
        items.extend(answer.body.as_array().unwrap_or_else(|| panic!("{path}: {}", answer.body)).clone());
        assert!(items.len() < 1000, "{path}: its pages have no end");
        next = answer.next;
    }
    items
}

#[test]
fn the_pages_of_a_list_have_each_item_once() {
    let served = Served::start(full());
    for (small, whole) in [
        ("/api/tasks?limit=2", "/api/tasks".to_owned()),
        ("/api/tasks?handler=work&limit=1&name=*%2Fx", "/api/tasks?name=*x".to_owned()),
        ("/api/runs?limit=7", "/api/runs?limit=200".to_owned()),
        ("/api/runs?task=mail%3Aanna%40example.org%2F..%2Fx&limit=1", format!("/api/runs?limit=200&task={ENCODED}")),
        ("/api/events?limit=1", "/api/events?limit=500".to_owned()),
    ] {
        let items = followed(&served, small);
        assert!(!items.is_empty(), "{small}");
        let whole = served.get(&whole);
        assert!(whole.next.is_none());
        assert_eq!(Value::from(items), whole.body, "{small}");
    }
}

#[test]
fn the_pages_of_tasks_end_although_names_are_no_names() {
    let db = full();
    db.plain()
        .execute_batch(
            "PRAGMA ignore_check_constraints = ON;
             UPDATE scheduled_tasks SET name = CAST(x'ff' AS TEXT) WHERE name = 'late';
             UPDATE scheduled_tasks SET name = CAST(x'fe' AS TEXT) WHERE name = 'once';
             UPDATE scheduled_tasks SET name = '#1' WHERE name = 'paused'",
        )
        .unwrap();
    let served = Served::start(db);
    let ids = |items: &[Value]| items.iter().map(|task| task["id"].as_i64().unwrap()).collect::<Vec<_>>();
    let (single, whole) = (ids(&followed(&served, "/api/tasks?limit=1")), served.found("/api/tasks"));
    assert_eq!(single, ids(whole.as_array().unwrap()));
    assert_eq!(single.len(), 7);
}

#[test]
fn a_bad_request_names_the_parameter_and_what_would_do() {
    let served = Served::start(full());
    let description = Description::read();
    for (documented, path, code, says) in [
        ("/api/tasks", "/api/tasks?limit=0", 400, "invalid limit: expected a number from 1 to 500, found \"0\""),
        ("/api/tasks", "/api/tasks?limit=501", 400, "invalid limit: expected a number from 1 to 500, found \"501\""),
        ("/api/tasks", "/api/tasks?limit=", 400, "invalid limit: expected a number from 1 to 500, found \"\""),
        ("/api/tasks", "/api/tasks?limit=1&limit=2", 400, "parameter limit is given twice: expected one value"),
        (
            "/api/tasks",
            "/api/tasks?status=dead",
            400,
            "invalid status: expected active, paused, completed, invalid, found \"dead\"",
        ),
        ("/api/runs", "/api/runs?status=Dead", 400, "invalid status: expected queued, running, "),
        ("/api/runs", "/api/runs?limit=201", 400, "invalid limit: expected a number from 1 to 200"),
        (
            "/api/runs",
            "/api/runs?since=yesterday",
            400,
            "invalid since: expected an instant such as 2027-03-14T12:00:00Z, or a duration",
        ),
        ("/api/runs", "/api/runs?before=x", 400, "invalid before: expected the number at which"),
        ("/api/runs", "/api/runs?task=none", 404, "no task is named \"none\""),
        ("/api/runs/{id}", "/api/runs/99999", 404, "there is no run 99999"),
        ("/api/runs/{id}", "/api/runs/latest", 400, "invalid id: expected the number of a run, found \"latest\""),
        ("/api/runs/{id}", "/api/runs/%FF", 400, "invalid path: expected text in UTF-8"),
        ("/api/tasks/{name}", "/api/tasks/none", 404, "no task is named \"none\""),
        ("/api/tasks/{name}", "/api/tasks/alarm?n=1", 400, "unknown parameter: expected no parameter, found \"n\""),
        ("/api/tasks/{name}/next", "/api/tasks/none/next", 404, "no task is named \"none\""),
        ("/api/tasks/{name}/next", "/api/tasks/late/next?n=1001", 400, "invalid n: expected a number from 1 to 1000"),
        ("/api/tasks/{name}/next", "/api/tasks/broken/next", 409, "invalid schedule \"nonsense\""),
        ("/api/check", "/api/check?overdue=5", 400, "invalid overdue: expected a duration such as 5m, found \"5\""),
        ("/api/check", "/api/check?failures=0", 400, "invalid failures: expected a number from 1"),
        ("/api/events", "/api/events?limit=501", 400, "invalid limit: expected a number from 1 to 500"),
        ("/api/events", "/api/events?task=none", 404, "no task is named \"none\""),
        ("/api/openapi.json", "/api/openapi.json?x", 400, "unknown parameter: expected no parameter, found \"x\""),
    ] {
        let answer = served.get(path);
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        let error = answer.body["error"].as_str().unwrap();
        assert!(error.contains(says), "{path}: {error}");
        description.check(documented, code, &answer.body);
    }
    let nowhere = served.get("/api/nowhere");
    assert_eq!(
        (nowhere.code, &nowhere.body["error"]),
        (404, &json!("there is no such path: /api/openapi.json lists all"))
    );
}

#[test]
fn each_documented_parameter_is_known_and_no_other() {
    let served = Served::start(full());
    let description = Description::read();
    for (documented, path) in paths(&served, &description) {
        let known = description.query(&documented);
        let known = if known.is_empty() { "no parameter".to_owned() } else { known.join(", ") };
        let answer = served.get(&format!("{path}?bogus=1"));
        let says = format!("unknown parameter: expected {known}, found \"bogus\"");
        assert_eq!((answer.code, answer.body["error"].as_str()), (400, Some(says.as_str())), "{path}");
    }
}

#[test]
fn a_documented_bound_is_the_one_that_holds() {
    let served = Served::start(full());
    let description = Description::read();
    for path in description.paths().filter(|path| !path.contains("{id}")) {
        for (name, schema) in description.bounded(path) {
            let path = path.replace("{name}", "late");
            let code = |value: u64| served.get(&format!("{path}?{name}={value}")).code;
            let most = schema["maximum"].as_u64().unwrap();
            assert_eq!([code(0), code(1), code(most), code(most + 1)], [400, 200, 200, 400], "{path} {name}");
            let default = schema["default"].as_u64().unwrap();
            assert_eq!(served.found(&format!("{path}?{name}={default}")), served.found(&path), "{path} {name}");
        }
    }
    let default = served.found("/api/runs").as_array().unwrap().len();
    assert_eq!((default, served.found("/api/tasks/late/next").as_array().unwrap().len()), (20, 5));
}

#[test]
fn a_database_that_cannot_be_read_is_an_error_in_json() {
    let served = Served::start(TestDb::new());
    served.db.plain().execute_batch("DROP TABLE scheduler_events").unwrap();
    let answer = served.get("/api/events");
    Description::read().check("/api/events", answer.code, &answer.body);
    assert_eq!(answer.code, 503, "{}", answer.body);
    assert!(answer.body["error"].as_str().unwrap().contains("no such table: scheduler_events"), "{}", answer.body);
    assert_eq!(served.get("/api/tasks").code, 200);
}
