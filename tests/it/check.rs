//! `check` finds each problem in a file made to have it, and none in one that is well.

use duly::testing::Stepper;
use duly::{Client, Limits, NewTask, Outcome, Problem, ProblemKind};

use crate::fixtures::{TestDb, at, claim, minutes, step, succeed, work_off};

const NOON: &str = "2027-03-14T12:00:00Z";

fn look(client: &Client) -> Vec<Problem> {
    client.check(&Limits::default()).expect("a look")
}

/// What is wrong: of what kind, with which task and run.
fn wrong(client: &Client) -> Vec<(&'static str, Option<String>, Option<i64>)> {
    let found = look(client);
    for problem in &found {
        let line = problem.to_string();
        assert!(line.lines().count() == 1 && !problem.advice.is_empty() && !line.ends_with('.'), "{line}");
    }
    found.into_iter().map(|problem| (problem.kind.as_str(), problem.task, problem.run)).collect()
}

fn of(kind: &'static str, task: &str, run: Option<i64>) -> (&'static str, Option<String>, Option<i64>) {
    (kind, Some(task.to_owned()), run)
}

/// A scheduler at work on tasks of all kinds.
fn healthy(db: &TestDb) -> Stepper {
    let stepper = db.stepper(NOON);
    let client = stepper.client();
    client.add(NewTask::cron("cron", "*/10 * * * *").handler("work").on_dead("paused")).expect("a task");
    client.add(NewTask::delay("delay", minutes(15)).handler("work").concurrency_key("key")).expect("a task");
    client.add(NewTask::interval("interval", minutes(7)).handler("work").concurrency_key("key")).expect("a task");
    client.add(NewTask::once("once", at("2027-03-14T12:30:00Z")).handler("work")).expect("a task");
    client.add(NewTask::cron("paused", "@hourly").handler("work")).expect("a task");
    client.add(NewTask::manual("manual").handler("work")).expect("a task");
    client.pause("paused").expect("a pause");
    stepper
}

#[test]
fn a_file_that_is_well_has_none() {
    let db = TestDb::new();
    let mut stepper = healthy(&db);
    let client = stepper.client().clone();
    for _ in 0..120 {
        let claims = stepper.step().expect("a turn");
        assert_eq!(wrong(&client), [], "at work");
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        work_off(&mut stepper);
        assert_eq!(wrong(&client), []);
        stepper.clock().advance(minutes(1));
        assert_eq!(wrong(&client), [], "due, and not yet begun");
    }
    // Nobody is at work, and there is nothing to do.
    work_off(&mut stepper);
    let clock = stepper.clock().clone();
    stepper.stop().expect("an end");
    let again = db.builder("2000-01-01T00:00:00Z").clock(&clock).start().expect("a stepper");
    let client = again.client().clone();
    again.stop().expect("an end");
    assert_eq!(wrong(&client), []);
}

#[test]
fn work_without_a_scheduler() {
    let db = TestDb::new();
    let mut stepper = healthy(&db);
    step(&mut stepper, 0);
    let (clock, client) = (stepper.clock().clone(), stepper.client().clone());
    stepper.crash();
    assert_eq!(wrong(&client), [], "nothing is due");
    clock.advance(minutes(8));
    assert_eq!(wrong(&client), [("no_scheduler", None, None)]);
    clock.advance(minutes(5));
    assert_eq!(wrong(&client), [("no_scheduler", None, None), of("overdue", "interval", None)]);
    let patient = Limits { overdue: minutes(60), ..Limits::default() };
    assert_eq!(client.check(&patient).expect("a look").len(), 1);
    // A row that no scheduler has looked at is due as well; runs that were asked for wait.
    client.trigger("cron").expect("a run");
    clock.advance(minutes(6));
    let found = look(&client);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(
        lines.iter().any(|line| line.starts_with("overdue: runs of handler work that may start: 1, for 6m: start"))
    );
    assert_eq!(found.iter().filter(|one| one.kind == ProblemKind::Overdue).count(), 3, "{lines:#?}");
}

#[test]
fn a_completed_task_that_is_to_run_again_is_work() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    stepper.client().add(NewTask::once("subject", at(NOON)).handler("work")).expect("a task");
    work_off(&mut stepper);
    let (clock, client) = (stepper.clock().clone(), stepper.client().clone());
    stepper.stop().expect("an end");
    let next = at("2027-03-14T12:10:00Z").as_millis();
    db.plain().execute_batch(&format!("UPDATE scheduled_tasks SET next_run = {next}")).expect("an update");
    assert_eq!(wrong(&client), []);
    clock.advance(minutes(10));
    assert_eq!(wrong(&client), [("no_scheduler", None, None)]);
    clock.advance(minutes(6));
    assert_eq!(wrong(&client), [("no_scheduler", None, None), of("overdue", "subject", None)]);
    // Not one that must be told that no occurrence of it is left.
    client.resume("subject").expect("nothing to do");
    client.pause("subject").expect("a pause");
    db.assert_history("subject", &["2027-03-14 12:00:00 schedule succeeded", "2027-03-14 12:10:00 catch_up queued"]);
    assert_eq!((db.next("subject").as_str(), wrong(&client)), ("- paused", vec![]));
    db.assert_sound();
}

#[test]
fn runs_of_a_handler_that_nobody_has() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::once("odd", at(NOON)).handler("nobody's")).expect("a task");
    client.add(NewTask::once("known", at(NOON)).handler("work")).expect("a task");
    let busy = claim(&mut stepper);
    for _ in 0..6 {
        stepper.clock().advance(minutes(1));
        stepper.step().expect("a sign of life");
    }
    // As long as nobody has a worker to spare, nobody can tell.
    let found = look(&client);
    assert_eq!((found.len(), found[0].kind), (1, ProblemKind::Overdue), "{found:?}");
    assert!(found[0].advice.starts_with("schedulers with all workers busy: 1 of 1"), "{found:?}");
    succeed(&mut stepper, &busy);
    stepper.step().expect("a turn");
    let found = look(&client);
    assert_eq!((found.len(), found[0].kind), (1, ProblemKind::UnknownHandler), "{found:?}");
    assert!(found[0].found.starts_with("runs of handler nobody's that may start: 1, for 6m"), "{found:?}");
}

#[test]
fn failures_and_what_was_written_wrongly() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::once("once", at(NOON)).handler("work").at_most_once()).expect("a task");
    client.add(NewTask::cron("often", "* * * * *").handler("work").at_most_once()).expect("a task");
    let fail = |stepper: &mut Stepper| {
        let claim = claim(stepper);
        stepper.finish(&claim, Outcome::failed("no route\nto host"));
        stepper.step().expect("a turn");
    };
    fail(&mut stepper);
    assert_eq!(wrong(&client), [of("dead", "once", Some(1))]);
    assert!(look(&client)[0].to_string().starts_with("dead: run 1 of once is dead: no route to host: see"));
    stepper.clock().advance(minutes(1));
    fail(&mut stepper);
    assert_eq!(wrong(&client), [of("dead", "often", Some(2)), of("dead", "once", Some(1))]);
    stepper.clock().advance(minutes(1));
    fail(&mut stepper);
    assert_eq!(wrong(&client), [of("failing", "often", None), of("dead", "once", Some(1))]);
    let patient = Limits { failures: 3, ..Limits::default() };
    let kinds: Vec<_> = client.check(&patient).expect("a look").into_iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ProblemKind::Dead, ProblemKind::Dead]);
    // Whoever succeeds is well again; what died a day ago is history.
    stepper.clock().advance(minutes(1));
    let good = claim(&mut stepper);
    succeed(&mut stepper, &good);
    stepper.step().expect("a turn");
    assert_eq!(wrong(&client), [of("dead", "once", Some(1))]);
    client.pause("often").expect("a pause");
    stepper.clock().advance(minutes(24 * 60));
    assert_eq!(wrong(&client), []);

    let row = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, created_at, active_since)
               VALUES ('broken', 'work', 'cron', 'every day', 1805025600000, 1805025600000)";
    db.plain().execute(row, []).expect("a row");
    stepper.step().expect("a turn");
    assert_eq!(wrong(&client), [of("invalid", "broken", None)]);
}

#[test]
fn deaths_that_would_be_told_to_nobody() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add(NewTask::cron("alarm", "@yearly").handler("work")).expect("a task");
    let task = |name: &str| NewTask::once(name, at(NOON)).handler("work").on_dead("alarm");
    client.add_all([task("over"), task("waits").concurrency_key("held")]).expect("tasks");
    client.add(NewTask::cron("quiet", "@yearly").handler("work")).expect("a task");
    let claims = step(&mut stepper, 2);
    let over = claims.iter().find(|claim| claim.task == "over").expect("its claim");
    stepper.finish(over, Outcome::succeeded());
    stepper.step().expect("a turn");
    assert_eq!(wrong(&client), [], "it is there");
    db.plain().execute("UPDATE scheduled_tasks SET schedule_value = 'soon' WHERE name = 'alarm'", []).expect("a slip");
    stepper.step().expect("a turn");
    // Of the one that is over nothing is to be told any more.
    assert_eq!(wrong(&client), [of("invalid", "alarm", None), of("on_dead", "waits", None)]);
    assert!(
        look(&client)[1].found.contains("are to be reported to alarm, and that is invalid: "),
        "{}",
        look(&client)[1]
    );
    client.remove("alarm").expect("gone");
    let command = |payload: &str| NewTask::manual("alarm").handler("command").payload([payload]);
    client.add(command("no argv")).expect("a task");
    assert_eq!(wrong(&client), [of("on_dead", "waits", None)]);
    assert!(
        look(&client)[0].found.ends_with("and that is no command: its payload has no argv"),
        "{}",
        look(&client)[0]
    );
    client.replace(command("").payload(serde_json::json!({ "argv": ["true"] }))).expect("mended");
    assert_eq!(wrong(&client), []);
    client.remove("alarm").expect("gone");
    assert_eq!(wrong(&client), [of("on_dead", "waits", None)]);
    let found = "dead runs of waits are to be reported to alarm, and there is no such task";
    assert_eq!(look(&client)[0].found, found);
}

#[test]
fn runs_that_do_not_end() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(NewTask::once("slow", at(NOON)).handler("work").timeout(minutes(3))).expect("a task");
    claim(&mut stepper);
    for _ in 0..4 {
        clock.advance(minutes(1));
        stepper.step().expect("a sign of life");
    }
    assert_eq!(wrong(&client), [of("stuck", "slow", Some(1))]);
    assert!(look(&client)[0].found.ends_with("for 4m, longer than its timeout"), "{:?}", look(&client));
    // Its owner says nothing any more, and then is dead.
    clock.advance(minutes(2));
    assert!(look(&client)[0].found.contains("is past its lease"), "{:?}", look(&client));
    stepper.crash();
    assert_eq!(wrong(&client), [("no_scheduler", None, None), of("stuck", "slow", Some(1))]);
    assert!(look(&client)[1].found.ends_with("was lost with its scheduler"), "{:?}", look(&client));
}

/// A scheduler was killed, and its command goes on: the process is this one, which certainly lives.
#[cfg(target_os = "linux")]
#[test]
fn commands_that_outlive_their_scheduler() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(NewTask::once("orphaned", at(NOON)).handler("work")).expect("a task");
    client.add(NewTask::once("lost", at(NOON)).handler("work")).expect("a task");
    assert_eq!(step(&mut stepper, 2)[0].task, "orphaned");
    // Without a record, whoever holds the input of the command is the command.
    let input = db.home().join("agent.db-owners").join("run-1-1");
    let held = std::fs::File::create_new(input).expect("an input");
    held.lock().expect("a lock");
    assert_eq!(wrong(&client), []);
    stepper.crash();
    assert_eq!(wrong(&client), [("no_scheduler", None, None)], "the next one may see to it at once");
    clock.advance(minutes(2));
    let all = [("no_scheduler", None, None), of("orphan", "orphaned", Some(1)), of("stuck", "lost", Some(2))];
    assert_eq!(wrong(&client), all);
    let found = look(&client);
    let (holder, said) = (std::process::id(), &found[1]);
    let expected = format!(
        "run 1 of orphaned waits: its scheduler is dead, and its input is held by pid {holder}; no scheduler ends it, since \
         its process is not recorded"
    );
    assert_eq!(said.found, expected);
    let advice = format!("end it: kill {holder}; or, if that is not the command: duly cancel 1 --gone");
    assert_eq!(said.advice, advice);
    drop(held);
    assert_eq!(wrong(&client)[1], of("stuck", "orphaned", Some(1)));
}

#[test]
fn runs_that_wait_for_nothing() {
    for (reason, of_key) in [("paused", "NULL"), ("order", "NULL"), ("key", "'#1'")] {
        let db = TestDb::new();
        let mut stepper = db.stepper(NOON);
        let client = stepper.client().clone();
        client.add(NewTask::cron("task", "@yearly").handler("work")).expect("a task");
        step(&mut stepper, 0);
        client.trigger("task").expect("a run");
        let harm = format!("UPDATE task_runs SET blocked = '{reason}', concurrency_key = {of_key}");
        db.plain().execute(&harm, []).expect("harm");
        assert_eq!(wrong(&client), [], "it may be a moment's");
        stepper.clock().advance(minutes(6));
        assert_eq!(wrong(&client), [of("blocked", "task", Some(1))], "{reason}");
    }
}

#[cfg(unix)]
#[test]
fn files_that_others_may_write_and_a_log_without_end() {
    use std::os::unix::fs::PermissionsExt;
    let db = TestDb::new();
    let stepper = healthy(&db);
    let client = stepper.client();
    let as_you = "and so run commands as you";
    for (name, was, mode, so) in [
        ("agent.db", 0o600, 0o660, as_you),
        ("agent.db-wal", 0o600, 0o606, as_you),
        ("agent.db-owners", 0o700, 0o770, "and so decide which scheduler counts as dead"),
    ] {
        let path = db.home().join(name);
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        set(mode);
        assert_eq!(wrong(client), [("file_mode", None, None)], "{name}");
        assert!(look(client)[0].found.contains(&format!("{name}, {so}")));
        set(was);
    }
    assert_eq!(wrong(client), []);
    let log = std::fs::File::options().write(true).open(db.home().join("agent.db-wal")).expect("the log");
    log.set_len(65 << 20).expect("a long log");
    assert_eq!(wrong(client), [("log", None, None)]);
    assert_eq!(look(client)[0].found, "the write-ahead log has 65 MiB");
}
