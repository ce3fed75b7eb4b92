//! The pages of the tasks and of one task, over HTTP: what is on a page, in which order, and that text of the database is text.

use duly::NewTask;
use rusqlite::named_params;

use crate::fixtures::{TestDb, at};
use crate::page_run::Served;
use crate::page_runs;

const HOSTILE: &str = "<script>alert(1)</script>\"'&\u{202e}\u{1b}[31m";

/// The page of a database, none of whose tasks runs.
fn served(prepare: impl FnOnce(&TestDb)) -> Served {
    let (db, _) = TestDb::with_client();
    prepare(&db);
    Served::new(db, false)
}

/// Adds runs of a task by SQL, oldest first, with these statuses.
fn add_runs(db: &TestDb, task: &str, statuses: &[&str], error: &str) {
    let connection = db.plain();
    for (place, status) in statuses.iter().enumerate() {
        let began = !["skipped", "missed"].contains(status);
        let occurrence = at("2026-03-14T12:00:00Z").as_millis() + 60_000 * i64::try_from(place).expect("a number");
        connection
            .execute(
                "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at,
                                        duration_ms, error)
                 SELECT id, handler, :at, 'schedule', :status, :at, :began, iif(:began, :at + 250, NULL), :at + 1250,
                        iif(:began, 1000, NULL), :error
                   FROM scheduled_tasks WHERE name = :task",
                named_params! { ":at": occurrence, ":status": status, ":began": began, ":error": error, ":task": task },
            )
            .expect("a run");
    }
}

fn names(page: &str) -> Vec<&str> {
    let links = page.split("<a class=\"text\" href=\"/tasks/").skip(1);
    links.map(|rest| rest.split_once('"').expect("the end of the link").0).collect()
}

#[test]
fn tasks_are_in_pages_of_fifty_and_can_be_filtered() {
    let served = served(|db| {
        let client = db.client();
        for number in 0..60 {
            let handler = if number % 2 == 0 { "even" } else { "odd" };
            client.add(NewTask::manual(format!("task-{number:02}")).handler(handler)).expect("a task");
        }
        client.add(NewTask::cron("zeta", "0 7 * * *").handler("even")).expect("a task");
        client.pause("zeta").expect("a pause");
    });
    let first = served.text("/");
    assert_eq!((names(&first).len(), names(&first)[49]), (50, "task-49"));
    assert!(first.contains("href=\"/?page=2\""), "{first}");
    let second = served.text("/?page=2");
    assert_eq!((names(&second).len(), names(&second)[0], names(&second)[10]), (11, "task-50", "zeta"));
    assert!(!second.contains("page=3") && second.contains("rel=\"prev\" href=\"/\""), "{second}");
    assert_eq!(names(&served.text("/?status=paused")), ["zeta"]);
    assert_eq!(
        names(&served.text("/?name=task-0%3F&handler=odd")),
        ["task-01", "task-03", "task-05", "task-07", "task-09"]
    );
    assert_eq!(names(&served.text("/?name=ask-5&handler=even")).len(), 5, "a part of a name");
    // `[` is no set, whatever GLOB makes of it.
    assert!(served.text("/?name=%5Bz%5Deta").contains("No such tasks"));
    assert!(served.text("/?handler=even&page=9").contains("No such tasks"));
}

#[test]
fn tasks_are_in_groups_by_name_or_in_another_order() {
    let served = served(|db| {
        let client = db.client();
        for name in ["alone/one", "backup/home", "backup/mail", "zeta"] {
            client.add(NewTask::cron(name, "30 3 * * *").time_zone("Europe/Rome").handler("work")).expect("a task");
        }
        client.add(NewTask::interval("tick", crate::fixtures::minutes(5)).handler("work")).expect("a task");
        db.plain()
            .execute_batch(
                "UPDATE scheduled_tasks SET failure_count = 3, last_status = 'dead' WHERE name = 'zeta';
                 UPDATE scheduled_tasks SET last_status = 'failed', last_finished = 1800000001000 WHERE name = 'backup/mail';
                 UPDATE scheduled_tasks SET last_status = 'succeeded', last_finished = 1800000002000 WHERE name = 'tick'",
            )
            .expect("updates");
    });
    let all = ["alone%2Fone", "backup%2Fhome", "backup%2Fmail", "tick", "zeta"];
    let page = served.text("/");
    assert_eq!(names(&page), all);
    let groups: Vec<&str> = page.split("<tr class=\"group\">").skip(1).collect();
    assert_eq!(groups.len(), 1, "one task is no group: {page}");
    assert!(groups[0].contains("href=\"/?name=backup%2F%2A\">backup/</a>"), "{page}");
    let group = served.text("/?name=backup%2F%2A");
    assert_eq!((names(&group).len(), group.contains("class=\"group\"")), (2, false), "it is the whole page");

    // An active task whose runs died is not green.
    for badge in ["<span class=\"badge bad\">failing</span>", "<span class=\"badge warn\">retrying</span>"] {
        assert_eq!(page.matches(badge).count(), 1, "{badge}: {page}");
    }
    assert!(page.contains("daily at 03:30, Rome · work") && page.contains("every 5m · work"), "{page}");

    for (order, names_of_order) in [
        ("failing", ["zeta", "backup%2Fmail", "alone%2Fone", "backup%2Fhome", "tick"]),
        ("last", ["tick", "backup%2Fmail", "alone%2Fone", "backup%2Fhome", "zeta"]),
        ("no such order", all),
    ] {
        let page = served.text(&format!("/?order={}", order.replace(' ', "+")));
        assert_eq!(names(&page), names_of_order, "{order}");
        assert_eq!(page.contains("class=\"group\""), order == "no such order", "{order}");
        assert_eq!(page.matches("aria-sort").count(), 1, "{order}");
    }
    assert_eq!(names(&served.text("/?order=next"))[0], "tick");
    // Its links keep the filter.
    let filtered = served.text("/?handler=work&order=failing");
    assert!(
        filtered.contains("href=\"/?handler=work&amp;order=next\"") && filtered.contains("href=\"/?handler=work\""),
        "{filtered}"
    );
}

#[test]
fn the_run_of_a_problem_can_be_retried_beside_it() {
    let db = TestDb::with_client().0;
    db.client().add(NewTask::manual("digest").handler("work")).expect("a task");
    db.execute(
        "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, error)
         SELECT 1, 'work', now, 'manual', 'dead', now, 1, now, now, 'no disk'
           FROM (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - 60000 AS now)",
    );
    let served = Served::acting(db);
    let form = "<form class=\"action\" method=\"post\" action=\"/runs/1/retry\">";
    for path in ["/", "/tasks/digest"] {
        let page = served.text(path);
        let problems =
            page.split_once("<ul class=\"problems\">").expect("problems").1.split_once("</ul>").expect("an end").0;
        assert!(problems.contains(form) && problems.contains("Retry run 1</button>"), "{path}: {page}");
    }
}

#[test]
fn completed_one_time_tasks_are_hidden_unless_they_need_attention() {
    let served = served(|db| {
        let client = db.client();
        for name in ["done", "died", "never"] {
            client.add(NewTask::once(name, at("2026-01-01T00:00:00Z")).handler("work")).expect("a task");
        }
        db.plain()
            .execute("UPDATE scheduled_tasks SET status = 'completed', next_run = NULL, planned = 1", ())
            .expect("an update");
        add_runs(db, "done", &["dead", "succeeded"], "");
        add_runs(db, "died", &["succeeded", "dead"], "");
    });
    assert_eq!(names(&served.text("/")), ["died"]);
    assert_eq!(names(&served.text("/?completed=1")), ["died", "done", "never"]);
    assert_eq!(names(&served.text("/?status=completed")), ["died", "done", "never"]);
}

#[test]
fn the_marks_of_a_task_are_its_last_twenty_runs_oldest_first() {
    let served = served(|db| {
        db.client().add(NewTask::manual("digest").handler("work")).expect("a task");
        let statuses = [["missed"; 5].as_slice(), &["succeeded"; 17], &["dead", "skipped", "cancelled"]].concat();
        add_runs(db, "digest", &statuses, "");
    });
    let page = served.text("/");
    let strip = page.split_once("<span class=\"marks\">").expect("marks").1.split_once("</span>").expect("an end").0;
    let runs: Vec<&str> =
        strip.split("href=\"/runs/").skip(1).map(|rest| rest.split_once('"').expect("an id").0).collect();
    assert_eq!(runs, (6..=25).map(|id| id.to_string()).collect::<Vec<_>>());
    let classes: Vec<&str> =
        strip.split("<a class=\"").skip(1).map(|rest| rest.split([' ', '"']).next().expect("a class")).collect();
    assert_eq!((classes[16], &classes[17..]), ("succeeded", &["dead", "skipped", "cancelled"][..]));
    assert!(strip.contains("title=\"succeeded, ") && strip.contains(", 1.0s\""), "{strip}");
    assert!(!strip.contains("missed"), "{strip}");
}

#[test]
fn a_task_has_sentences_occurrences_and_a_history() {
    let served = served(|db| {
        let client = db.client();
        let night = NewTask::cron("night", "30 2 * * *").time_zone("Europe/Rome").handler("command");
        let night =
            night.starts_at(at("2031-03-28T00:00:00Z")).payload(serde_json::json!({"argv": ["./a.sh", "two words"]}));
        client.add(night).expect("a task");
        add_runs(db, "night", &[["succeeded"; 70].as_slice(), &["dead"; 3]].concat(), "broken pipe");
    });
    let page = served.text("/tasks/night");
    for words in [
        "an occurrence that falls due while a run is unfinished is skipped.",
        "./a.sh &#39;two words&#39;",
        "2031-03-28 02:30:00 +01:00",
        "2031-03-28 01:30 UTC",
        "the clock skips the time: first instant after the gap",
        "Duration of the last 50 runs",
        "broken pipe",
    ] {
        assert!(page.contains(words) || page.contains(&words.replace("&#39;", "'")), "{words}: {page}");
    }
    assert_eq!(page_runs::ids(&page).len(), 50);
    let second = served.text("/runs?task=night&before=24");
    assert_eq!(page_runs::ids(&second).len(), 23);
    let dead = served.text("/runs?task=night&status=dead");
    assert_eq!(page_runs::ids(&dead).len(), 3);
    assert!(!page.contains("method=\"post\""), "the page only reads");
}

#[test]
fn an_unknown_task_is_a_page_with_status_404() {
    let served = served(|_| {});
    let (status, text) = served.get("/tasks/%3Cscript%3E");
    assert_eq!(status, 404);
    assert!(
        text.contains("No such task") && text.contains("aria-label=\"Pages\"") && !text.contains("<script>"),
        "{text}"
    );
    assert!(served.text("/").contains("No tasks yet"));
}

#[test]
fn text_of_the_database_is_text_on_every_page() {
    let served = served(|db| {
        db.plain()
            .execute(
                "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, time_zone, concurrency_key)
                 VALUES ('hostile', :text, json_quote(:long), 'cron', :text, :text, :text)",
                named_params! { ":text": HOSTILE, ":long": HOSTILE.repeat(6_000) },
            )
            .expect("a task");
        add_runs(db, "hostile", &["dead"; 60], &HOSTILE.repeat(2_000));
    });
    for path in [
        "/",
        "/tasks/hostile",
        "/runs",
        "/runs?status=dead&error=%3Cscript%3E%22",
        "/?name=%3Cscript%3E%22&handler=%3Cscript%3E",
    ] {
        let page = served.text(path);
        assert!(!page.contains("<script>alert") && !page.contains("<script>\""), "{path}: {page}");
        assert!(!page.contains(['\u{202e}', '\u{1b}']), "{path}: a control character: {page}");
        assert!(page.contains("&lt;script&gt;"), "{path}: {page}");
        assert!(!page.contains(" style=\""), "{path}: the policy refuses it");
    }
}

#[test]
fn the_longest_rows_fit_the_size_of_a_page() {
    let served = served(|db| {
        let connection = db.plain();
        for number in 0..50 {
            let name = format!("n{number:02}{}", "/".repeat(197));
            let text = "\"".repeat(200);
            connection
                .execute(
                    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES (:name, :text, 'manual', '')",
                    named_params! { ":name": name, ":text": text },
                )
                .expect("a task");
            add_runs(db, &name, &["succeeded"; 20], &"\"".repeat(20_000));
        }
    });
    assert_eq!(names(&served.text("/")).len(), 50);
    assert_eq!(page_runs::ids(&served.text("/runs")).len(), 50);
}

#[test]
fn a_task_that_is_being_marked_says_so() {
    let served = served(|db| {
        let client = db.client();
        client.add(NewTask::manual("crowd").handler("work")).expect("a task");
        client.add(NewTask::manual("calm").handler("work")).expect("a task");
        (0..20).for_each(|_| _ = client.trigger("crowd").expect("a run"));
        client.trigger("calm").expect("a run");
        // A request derives the first ten runs by itself.
        for name in ["crowd", "calm"] {
            client.replace(NewTask::manual(name).handler("other")).expect("a change");
        }
        let shown = db.printed(&["show", "crowd"]);
        assert!(shown.contains("active; 10 waiting runs are being marked\n"), "{shown}");
        assert!(db.printed(&["show", "crowd", "--json"]).contains("\"marked_runs\": 10"));
        assert!(!db.printed(&["show", "calm"]).contains("marked"));
        // The mark stays: one of the runs cannot be written.
        db.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON task_runs WHEN NEW.id = 15 BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        );
    });
    let page = served.text("/tasks/crowd");
    assert!(page.contains("0 waiting runs are being marked"), "{page}");
    assert!(!served.text("/tasks/calm").contains("being marked"));
}

#[test]
fn the_page_of_a_task_says_which_client_added_and_changed_it() {
    let served = served(|db| {
        let client = db.client();
        client.add(NewTask::manual("by-hand").handler("work")).expect("a task");
        let agent = client.actor("mcp:claude-code", "7f3a").expect("an actor");
        agent.add(NewTask::cron("added", "0 7 * * *").handler("work")).expect("a task");
        agent.pause("added").expect("a pause");
    });
    let page = served.text("/tasks/added");
    assert!(page.contains("<dt>Added by</dt>") && page.contains("mcp:claude-code session 7f3a"), "{page}");
    assert!(!served.text("/tasks/by-hand").contains("Added by"));
    assert!(served.text("/events").contains("mcp:claude-code session 7f3a: add"));
}

#[test]
fn the_agenda_shows_what_is_due_over_all_tasks() {
    let served = served(|db| {
        let client = db.client();
        client.add(NewTask::interval("tick", crate::fixtures::minutes(5)).handler("work")).expect("a task");
        client.add(NewTask::interval("daily", crate::fixtures::minutes(24 * 60)).handler("work")).expect("a task");
        client
            .add(NewTask::interval("monthly", crate::fixtures::minutes(30 * 24 * 60)).handler("work"))
            .expect("a task");
        client.add(NewTask::interval("paused", crate::fixtures::minutes(7)).handler("work")).expect("a task");
        client.pause("paused").expect("a pause");
        client
            .add(
                NewTask::interval("closed", crate::fixtures::minutes(600))
                    .except_on("2000-01-01..2031-12-31")
                    .handler("work"),
            )
            .expect("a task");
        client.add(NewTask::manual("manual").handler("work")).expect("a task");
    });
    served.await_plans();
    let day = served.text("/agenda");
    assert_eq!(names(&day), ["tick", "closed", "closed", "daily"], "many occurrences are one row");
    assert!(day.contains("further ones: more than 8 in this time") && day.contains("skipped: "), "{day}");
    let week = served.text("/agenda?span=week");
    assert_eq!(names(&week).iter().filter(|name| **name == "daily").count(), 7, "{week}");
    assert!(!week.contains("/tasks/monthly") && !week.contains("/tasks/paused"), "{week}");
    assert!(served.text("/").contains("<a href=\"/agenda\">Next</a>"));
}

#[test]
fn a_reader_chooses_the_zone_of_the_times() {
    let served =
        served(|db| _ = db.client().add(NewTask::cron("digest", "0 7 * * *").time_zone("Asia/Tokyo").handler("work")));
    let page = served.text("/tasks/digest");
    assert!(page.contains("<a href=\"/zone?name=Asia%2FTokyo\">Show all times in the zone of this task</a>"), "{page}");
    let chosen = served.answer("/zone?name=Asia%2FTokyo", &[("referer", "http://127.0.0.1:1/tasks/digest?x=1")]);
    assert_eq!((chosen.code, chosen.location.as_deref()), (303, Some("/tasks/digest?x=1")));
    let cookie = chosen.cookie.expect("a cookie");
    assert_eq!(cookie, "zone=Asia/Tokyo; Path=/; Max-Age=31536000; SameSite=Strict; HttpOnly");
    let page = served.answer("/tasks/digest", &[("cookie", "other=1; zone=Asia/Tokyo")]).text;
    assert!(
        page.contains("<option value=\"Asia/Tokyo\" selected>") && page.contains("</time> Asia/Tokyo</span>"),
        "{page}"
    );
    assert!(!page.contains("in the zone of this task"), "{page}");
    // Elsewhere it does not lead, and what is no zone is not kept.
    for (path, from, to, cookie) in [
        ("/zone?name=", "/", "/", Some("zone=; Path=/; Max-Age=0; SameSite=Strict; HttpOnly")),
        (
            "/zone?name=",
            "http://127.0.0.1:1//elsewhere.example/",
            "/",
            Some("zone=; Path=/; Max-Age=0; SameSite=Strict; HttpOnly"),
        ),
        ("/zone?name=no/such%0d%0azone", "http://127.0.0.1:1/runs", "/runs", None),
        (
            "/zone?name=UTC",
            "https://elsewhere.example",
            "/",
            Some("zone=UTC; Path=/; Max-Age=31536000; SameSite=Strict; HttpOnly"),
        ),
    ] {
        let answer = served.answer(path, &[("referer", from)]);
        assert_eq!(
            (answer.code, answer.location.as_deref(), answer.cookie.as_deref()),
            (303, Some(to), cookie),
            "{path}"
        );
    }
    assert_eq!(served.answer("/", &[("cookie", "zone=Nowhere/Land")]).code, 200, "an unknown zone is none");
}
