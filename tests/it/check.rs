//! `check` finds each problem in a file that has it, and none in a sound file.

use duly::testing::Stepper;
use duly::{Client, Limit, Limits, NewTask, Outcome, Problem, ProblemKind};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, is_of_sqlite, minutes, once, step, succeed, work_off,
};

fn check(client: &Client) -> Vec<Problem> {
    client.check(&Limits::default()).expect("a check")
}

/// The kind, task and run of each problem.
fn kinds(client: &Client) -> Vec<(&'static str, Option<String>, Option<i64>)> {
    let found = check(client);
    for problem in &found {
        let line = problem.to_string();
        assert!(line.lines().count() == 1 && !problem.advice.is_empty() && !line.ends_with('.'), "{line}");
    }
    found.into_iter().map(|problem| (problem.kind.as_str(), problem.task, problem.run)).collect()
}

/// Without that the scheduler sends no heartbeat, which no turn has sent meanwhile: on a server that is a problem.
fn but_silence(client: &Client) -> Vec<(&'static str, Option<String>, Option<i64>)> {
    kinds(client).into_iter().filter(|(kind, ..)| *kind != "degraded").collect()
}

fn about(kind: &'static str, task: &str, run: Option<i64>) -> (&'static str, Option<String>, Option<i64>) {
    (kind, Some(task.to_owned()), run)
}

/// Returns a scheduler that runs tasks of all kinds.
fn healthy(db: &TestDb) -> Stepper {
    let stepper = db.stepper(NOON);
    let client = stepper.client();
    client.add(NewTask::cron("cron", "*/10 * * * *").handler("work").on_dead("manual")).expect("a task");
    client.add(NewTask::delay("delay", minutes(15)).handler("work").concurrency_key("key")).expect("a task");
    client.add(NewTask::interval("interval", minutes(7)).handler("work").concurrency_key("key")).expect("a task");
    client.add(NewTask::once("once", at("2027-03-14T12:30:00Z")).handler("work")).expect("a task");
    client.add(NewTask::cron("paused", "@hourly").handler("work")).expect("a task");
    client.add(NewTask::manual("manual").handler("work")).expect("a task");
    client.pause("paused").expect("a pause");
    stepper
}

#[test]
fn a_sound_file_has_no_problem() {
    let db = TestDb::new();
    let mut stepper = healthy(&db);
    let client = stepper.client().clone();
    for _ in 0..120 {
        let claims = stepper.step().expect("a turn");
        assert_eq!(kinds(&client), [], "while runs are running");
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        work_off(&mut stepper);
        assert_eq!(kinds(&client), []);
        stepper.clock().advance(minutes(1));
        assert_eq!(kinds(&client), [], "due, and not yet begun");
    }
    // No scheduler runs, and nothing is due.
    work_off(&mut stepper);
    let clock = stepper.clock().clone();
    stepper.stop().expect("an end");
    let again = db.builder("2000-01-01T00:00:00Z").clock(&clock).start().expect("a stepper");
    let client = again.client().clone();
    again.stop().expect("an end");
    assert_eq!(kinds(&client), []);
}

#[test]
fn due_work_without_a_scheduler_is_a_problem() {
    let db = TestDb::new();
    let mut stepper = healthy(&db);
    step(&mut stepper, 0);
    let (clock, client) = (stepper.clock().clone(), stepper.client().clone());
    stepper.crash();
    assert_eq!(kinds(&client), [], "nothing is due");
    clock.advance(minutes(8));
    assert_eq!(kinds(&client), [("no_scheduler", None, None)]);
    clock.advance(minutes(5));
    assert_eq!(kinds(&client), [("no_scheduler", None, None), about("overdue", "interval", None)]);
    let patient = Limits { overdue: minutes(60), ..Limits::default() };
    assert_eq!(client.check(&patient).expect("a check").len(), 1);
    // A row that no scheduler has planned is due as well; manual runs wait.
    client.trigger("cron").expect("a run");
    clock.advance(minutes(6));
    let found = check(&client);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(
        lines.iter().any(|line| line.starts_with("overdue: runs of handler work that may start: 1, for 6m: start"))
    );
    assert_eq!(found.iter().filter(|one| one.kind == ProblemKind::Overdue).count(), 3, "{lines:#?}");
}

#[test]
fn a_scheduler_of_which_nothing_is_known_counts_as_alive_for_five_minutes() {
    if is_of_sqlite("on a server, the end of its session and its lease show that it is dead") {
        return;
    }
    let (db, stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::once("subject", at("2027-03-14T12:04:00Z")).handler("work")).expect("a task");
    db.hide(&stepper);
    let clock = stepper.clock();
    clock.set_wall(at("2027-03-14T12:04:59.999Z"));
    assert_eq!(kinds(&client), [], "its last heartbeat was at noon");
    clock.set_wall(at("2027-03-14T12:05:00Z"));
    assert_eq!(kinds(&client), [("no_scheduler", None, None)]);
}

#[test]
fn a_completed_task_with_a_next_run_is_due_work() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(once("subject")).expect("a task");
    work_off(&mut stepper);
    let (clock, client) = (stepper.clock().clone(), stepper.client().clone());
    stepper.stop().expect("an end");
    let next = at("2027-03-14T12:10:00Z").as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {next}"));
    assert_eq!(kinds(&client), []);
    clock.advance(minutes(10));
    assert_eq!(kinds(&client), [("no_scheduler", None, None)]);
    clock.advance(minutes(6));
    assert_eq!(kinds(&client), [("no_scheduler", None, None), about("overdue", "subject", None)]);
    // A completed task without an occurrence is no problem.
    client.resume("subject").expect("nothing to do");
    client.pause("subject").expect("a pause");
    db.assert_history("subject", &["2027-03-14 12:00:00 schedule succeeded", "2027-03-14 12:10:00 catch_up queued"]);
    assert_eq!((db.next("subject").as_str(), kinds(&client)), ("- paused", vec![]));
    db.assert_sound();
}

#[test]
fn runs_of_an_unknown_handler_are_a_problem() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::once("odd", at(NOON)).handler("missing")).expect("a task");
    client.add(once("known")).expect("a task");
    let busy = claim(&mut stepper);
    for _ in 0..6 {
        advance_and_step(&mut stepper, minutes(1));
    }
    // While all workers are busy, it is unknown whether the handler exists.
    let found = check(&client);
    assert_eq!((found.len(), found[0].kind), (1, ProblemKind::Overdue), "{found:?}");
    assert!(found[0].advice.starts_with("schedulers with all workers busy: 1 of 1"), "{found:?}");
    succeed(&mut stepper, &busy);
    stepper.step().expect("a turn");
    let found = check(&client);
    assert_eq!((found.len(), found[0].kind), (1, ProblemKind::UnknownHandler), "{found:?}");
    assert!(found[0].found.starts_with("runs of handler missing that may start: 1, for 6m"), "{found:?}");
}

/// A scheduler with a free worker starts what it can within its poll interval: after a minute it is known that none has the handler.
#[test]
fn a_handler_that_no_scheduler_has_is_named_before_its_runs_are_overdue() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::once("odd", at(NOON)).handler("missing")).expect("a task");
    advance_and_step(&mut stepper, minutes(1));
    assert_eq!(check(&client), []);
    advance_and_step(&mut stepper, minutes(1));
    let found = check(&client);
    assert_eq!((found.len(), found[0].kind), (1, ProblemKind::UnknownHandler), "{found:?}");
    assert!(found[0].found.starts_with("runs of handler missing that may start: 1, for 2m"), "{found:?}");
    // While all workers are busy, it is unknown whether the handler exists.
    client.add(once("known")).expect("a task");
    let busy = claim(&mut stepper);
    assert_eq!(check(&client), []);
    succeed(&mut stepper, &busy);
    stepper.step().expect("a turn");
    assert_eq!(check(&client).len(), 1);
}

#[test]
fn runs_that_wait_for_the_rate_of_their_handler_are_no_problem() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(4).start().expect("a stepper");
    let client = stepper.client().clone();
    for handler in ["work", "missing"] {
        client.set_limit(Limit::rate(handler, 1, minutes(60))).expect("a limit");
    }
    client.add_all(["one", "two", "three"].map(once)).expect("tasks");
    client.add(NewTask::once("odd", at(NOON)).handler("missing")).expect("a task");
    let first = claim(&mut stepper);
    succeed(&mut stepper, &first);
    for _ in 0..30 {
        advance_and_step(&mut stepper, minutes(1));
    }
    let found = check(&client);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].found.starts_with("runs of handler missing that may start: 1, for 30m"), "{found:?}");
    // The rate has allowed a start for ten minutes, and no scheduler was there to see it.
    let clock = stepper.clock().clone();
    stepper.crash();
    clock.advance(minutes(40));
    let found: Vec<String> = check(&client).iter().map(ToString::to_string).collect();
    assert!(
        found.iter().any(|one| one.starts_with("overdue: runs of handler work that may start: 2, for 10m: start")),
        "{found:#?}"
    );
}

#[test]
fn dead_runs_failing_tasks_and_invalid_rows_are_problems() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("once").at_most_once()).expect("a task");
    client.add(NewTask::cron("often", "* * * * *").handler("work").at_most_once()).expect("a task");
    let fail = |stepper: &mut Stepper| {
        let claim = claim(stepper);
        stepper.finish(&claim, Outcome::failed("no route\nto host"));
        stepper.step().expect("a turn");
    };
    fail(&mut stepper);
    assert_eq!(kinds(&client), [about("dead", "once", Some(1))]);
    assert!(check(&client)[0].to_string().starts_with("dead: run 1 of once is dead: no route to host: see"));
    stepper.clock().advance(minutes(1));
    fail(&mut stepper);
    assert_eq!(kinds(&client), [about("dead", "often", Some(2)), about("dead", "once", Some(1))]);
    stepper.clock().advance(minutes(1));
    fail(&mut stepper);
    assert_eq!(kinds(&client), [about("failing", "often", None), about("dead", "once", Some(1))]);
    let patient = Limits { failures: 3, ..Limits::default() };
    let patient: Vec<_> = client.check(&patient).expect("a check").into_iter().map(|one| one.kind).collect();
    assert_eq!(patient, [ProblemKind::Dead, ProblemKind::Dead]);
    // A success ends the streak; a dead run is reported for a day.
    let good = claim_after(&mut stepper, minutes(1));
    succeed(&mut stepper, &good);
    stepper.step().expect("a turn");
    assert_eq!(kinds(&client), [about("dead", "once", Some(1))]);
    client.pause("often").expect("a pause");
    stepper.clock().advance(minutes(24 * 60));
    assert_eq!(but_silence(&client), []);

    let row = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, created_at, active_since)
               VALUES ('broken', 'work', 'cron', 'every day', 1805025600000, 1805025600000)";
    db.execute(row);
    stepper.step().expect("a turn");
    assert_eq!(kinds(&client), [about("invalid", "broken", None)]);
}

#[test]
fn an_on_dead_task_that_cannot_run_is_a_problem() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::cron("alarm", "@yearly").handler("work")).expect("a task");
    let task = |name: &str| once(name).on_dead("alarm");
    client.add_all([task("over"), task("waits").concurrency_key("held")]).expect("tasks");
    client.add(NewTask::cron("quiet", "@yearly").handler("work")).expect("a task");
    let claims = step(&mut stepper, 2);
    let over = claims.iter().find(|claim| claim.task == "over").expect("its claim");
    stepper.finish(over, Outcome::succeeded());
    stepper.step().expect("a turn");
    assert_eq!(kinds(&client), [], "the on_dead task exists");
    db.execute("UPDATE scheduled_tasks SET schedule_value = 'soon' WHERE name = 'alarm'");
    stepper.step().expect("a turn");
    // A completed task no longer needs its on_dead task.
    assert_eq!(kinds(&client), [about("invalid", "alarm", None), about("on_dead", "waits", None)]);
    assert!(
        check(&client)[1].found.contains("are to be reported to alarm, and that is invalid: "),
        "{}",
        check(&client)[1]
    );
    client.remove("alarm").expect("gone");
    let command = |payload: &str| NewTask::manual("alarm").handler("command").payload([payload]);
    client.add(command("no argv")).expect("a task");
    assert_eq!(kinds(&client), [about("on_dead", "waits", None)]);
    assert!(
        check(&client)[0].found.ends_with("and that is no command: its payload has no argv"),
        "{}",
        check(&client)[0]
    );
    client.replace(command("").payload(serde_json::json!({ "argv": ["true"] }))).expect("mended");
    assert_eq!(kinds(&client), []);
    client.remove("alarm").expect("gone");
    assert_eq!(kinds(&client), [about("on_dead", "waits", None)]);
    let found = "dead runs of waits are to be reported to alarm, and there is no such task";
    assert_eq!(check(&client)[0].found, found);
}

#[test]
fn each_task_that_cannot_follow_is_a_problem_of_the_column_that_names_it() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(NewTask::manual("sound").handler("work")).expect("a task");
    let after = |name: &str| NewTask::cron(name, "@yearly").handler("work");
    client.add(after("fetch").on_success("sound, post, count").on_end("sound")).expect("a task");
    client.add(after("backup").on_end("post").on_missed("tell").on_dead("tell")).expect("a task");
    let over = once("over").on_success("sound");
    client.add_all([over, once("waits").concurrency_key("held").on_success("gone")]).expect("tasks");
    db.execute("UPDATE scheduled_tasks SET on_success = 'gone' WHERE name = 'over'");
    let claims = step(&mut stepper, 2);
    let over = claims.iter().find(|claim| claim.task == "over").expect("its claim");
    stepper.finish(over, Outcome::failed("no follower is run"));
    client.cancel(over.run_id).expect("an end");
    stepper.step().expect("a turn");
    let found = |client: &Client| -> Vec<String> {
        let lines = check(client).into_iter().filter(|one| one.kind == ProblemKind::OnDead);
        lines.map(|one| format!("{}: {}", one.found, one.advice)).collect()
    };
    let advice =
        |column: &str| format!("there is no such task: add or repair the task that {column} names, or name another");
    let by = |target: &str, column: &str, task: &str| {
        format!("{target} is to run by {column} of {task}, and {}", advice(column))
    };
    assert_eq!(
        found(&client),
        [
            format!("dead runs of backup are to be reported to tell, and {}", advice("on_dead")),
            by("post", "on_end", "backup"),
            by("tell", "on_missed", "backup"),
            by("post", "on_success", "fetch"),
            by("count", "on_success", "fetch"),
            by("gone", "on_success", "waits"),
        ],
        "a completed task has no more runs that others follow"
    );
    client.add_all(["post", "count", "tell"].map(|name| NewTask::manual(name).handler("work"))).expect("tasks");
    assert_eq!(found(&client), [by("gone", "on_success", "waits")]);
    client.pause("post").expect("a pause");
    let paused = |column: &str, task: &str| {
        let waits = "its runs wait until it is resumed: duly resume post";
        format!("post is to run by {column} of {task}, and that is paused: {waits}")
    };
    assert_eq!(
        found(&client),
        [paused("on_end", "backup"), paused("on_success", "fetch"), by("gone", "on_success", "waits")]
    );
}

#[test]
fn stuck_and_lost_runs_are_problems() {
    let (_db, mut stepper) = TestDb::with_stepper();
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(once("slow").timeout(minutes(3))).expect("a task");
    claim(&mut stepper);
    for _ in 0..4 {
        clock.advance(minutes(1));
        stepper.step().expect("a turn");
    }
    assert_eq!(kinds(&client), [about("stuck", "slow", Some(1))]);
    assert!(check(&client)[0].found.ends_with("for 4m, longer than its timeout"), "{:?}", check(&client));
    // Its owner sends no heartbeat, then dies.
    clock.advance(minutes(2));
    assert!(check(&client)[0].found.contains("is past its lease"), "{:?}", check(&client));
    stepper.crash();
    assert_eq!(kinds(&client), [("no_scheduler", None, None), about("stuck", "slow", Some(1))]);
    assert!(check(&client)[1].found.ends_with("was lost with its scheduler"), "{:?}", check(&client));
}

/// A scheduler was killed and its command continues; this process takes the place of the command.
#[cfg(target_os = "linux")]
#[test]
fn an_orphan_process_is_a_problem() {
    let (db, mut stepper) = TestDb::with_stepper();
    let (client, clock) = (stepper.client().clone(), stepper.clock().clone());
    client.add(once("orphaned")).expect("a task");
    client.add(once("lost")).expect("a task");
    assert_eq!(step(&mut stepper, 2)[0].task, "orphaned");
    // Without a record, the process that holds the input file is the command.
    let input = db.lock_folder().join("run-1-1");
    let held = std::fs::File::create_new(input).expect("an input");
    held.lock().expect("a lock");
    assert_eq!(kinds(&client), []);
    stepper.crash();
    assert_eq!(kinds(&client), [("no_scheduler", None, None)], "the next scheduler may recover it at once");
    clock.advance(minutes(2));
    let all = [("no_scheduler", None, None), about("orphan", "orphaned", Some(1)), about("stuck", "lost", Some(2))];
    assert_eq!(kinds(&client), all);
    let found = check(&client);
    let (holder, orphan) = (std::process::id(), &found[1]);
    let expected = format!(
        "run 1 of orphaned waits: its scheduler is dead, and its input is held by pid {holder}; no scheduler ends it, since \
         its process is not recorded"
    );
    assert_eq!(orphan.found, expected);
    let advice = format!("end it: kill {holder}; or, if that is not the command: duly cancel 1 --gone");
    assert_eq!(orphan.advice, advice);
    drop(held);
    assert_eq!(kinds(&client)[1], about("stuck", "orphaned", Some(1)));
}

#[test]
fn blocked_runs_that_nothing_blocks_are_problems() {
    for (reason, of_key) in [("paused", "NULL"), ("order", "NULL"), ("key", "'#1'")] {
        let (db, mut stepper, client) = TestDb::with_stepper_and_client();
        client.add(NewTask::cron("task", "@yearly").handler("work")).expect("a task");
        step(&mut stepper, 0);
        client.trigger("task").expect("a run");
        let harm = format!("UPDATE task_runs SET blocked = '{reason}', concurrency_key = {of_key}");
        db.execute(&harm);
        assert_eq!(kinds(&client), [], "it may be temporary");
        stepper.clock().advance(minutes(6));
        assert_eq!(but_silence(&client), [about("blocked", "task", Some(1))], "{reason}");
    }
}

#[cfg(unix)]
#[test]
fn files_that_others_may_write_and_a_long_log_are_problems() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    use crate::fixtures::set_mode;
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
        set_mode(&path, mode);
        assert_eq!(kinds(client), [("file_mode", None, None)], "{name}");
        assert!(check(client)[0].found.contains(&format!("{name}, {so}")));
        set_mode(&path, was);
    }
    assert_eq!(kinds(client), []);
    // A file that another program made first has the mode that its umask leaves. A folder may hide it all the same.
    set_mode(&db.home().join("agent.db"), 0o644);
    set_mode(db.home(), 0o700);
    assert_eq!(kinds(client), []);
    set_mode(db.home(), 0o711);
    assert_eq!(kinds(client), [("file_mode", None, None)]);
    assert!(check(client)[0].found.starts_with("anyone may read "), "{:?}", check(client));
    set_mode(&db.home().join("agent.db"), 0o640);
    assert_eq!(kinds(client), []);
    let log = std::fs::File::options().write(true).open(db.home().join("agent.db-wal")).expect("the log");
    log.set_len(65 << 20).expect("a long log");
    assert_eq!(kinds(client), [("log", None, None)]);
    assert_eq!(check(client)[0].found, "the write-ahead log has 65 MiB");
}
