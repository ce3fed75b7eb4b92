//! The tables on a server: which schemas are accepted, the README's lines in `psql`, JSON that PostgreSQL cannot store.

use std::process::Command;

use duly::testing::Stepper;
use duly::{Apply, Client, Error, Filter, NewTask, Outcome, RunFilter};
use postgres::NoTls;

use crate::fixtures::on_server::session;
use crate::fixtures::{NOON, advance_and_step, at, claim, finish_all, joined, minutes, number, once, skip};
use crate::sql::{present_time, turn};

const POSTGRES: &str = include_str!("../../../schema.postgres.sql");

/// Returns the address of the server and the name of the schema.
fn parts(address: &str) -> (&str, &str) {
    let (server, schema) = address.split_once("schema=").expect("a schema");
    (server.trim_end_matches(['?', '&']), schema)
}

/// Executes statements beside duly's schema.
fn execute(address: &str, sql: &str) {
    let mut session = postgres::Client::connect(parts(address).0, NoTls).expect("a session");
    session.batch_execute(sql).expect(sql);
}

fn refused(opened: duly::Result<Client>) -> String {
    match opened {
        Err(error @ Error::UnusableDatabase { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the schema is accepted"),
    }
}

#[test]
fn the_tables_are_created_once_and_examined() {
    let Some(address) = super::database() else { return };
    let schema = parts(&address).1;
    assert!(refused(Client::open_existing(&address)).contains("it holds no tables of duly"));

    // Twenty at once: one creates them.
    let threads: Vec<_> = (0..20)
        .map(|number| {
            let address = address.clone();
            std::thread::spawn(move || Client::open(address)?.add(once(&format!("task-{number}"))))
        })
        .collect();
    for thread in threads {
        joined(thread, "a client").expect("a thread").expect("a task");
    }
    let client = Client::open_existing(&address).expect("the tables");
    assert_eq!(client.tasks().expect("the tasks").len(), 20);

    for (change, says, undo) in [
        (
            "UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'",
            "its tables are of version 2, written by a newer duly; this one knows version 1",
            "UPDATE scheduler_meta SET value = '1' WHERE key = 'schema_version'",
        ),
        (
            "ALTER INDEX task_runs_claimable RENAME TO slow",
            "its index task_runs_claimable is missing",
            "ALTER INDEX slow RENAME TO task_runs_claimable",
        ),
        (
            "ALTER TABLE task_effects RENAME TO effects",
            "its table task_effects is missing",
            "ALTER TABLE effects RENAME TO task_effects",
        ),
        (
            "ALTER TRIGGER scheduled_tasks_edited ON scheduled_tasks RENAME TO mine",
            "its trigger scheduled_tasks_edited is missing",
            "ALTER TRIGGER mine ON scheduled_tasks RENAME TO scheduled_tasks_edited",
        ),
        (
            "ALTER SEQUENCE task_runs_id_seq RENAME TO numbers",
            "its sequence task_runs_id_seq is missing",
            "ALTER SEQUENCE numbers RENAME TO task_runs_id_seq",
        ),
        (
            "UPDATE scheduler_meta SET value = 'other' WHERE key = 'program'",
            "its table scheduler_meta is damaged",
            "UPDATE scheduler_meta SET value = 'duly' WHERE key = 'program'",
        ),
    ] {
        let mut shell = session(&address);
        shell.batch_execute(change).expect(change);
        let error = refused(Client::open(&address));
        assert!(error.contains(says) && error.contains(schema), "{change}: {error}");
        shell.batch_execute(undo).expect(undo);
        Client::open(&address).expect("the tables");
    }
}

#[test]
fn a_schema_of_another_program_is_left_alone() {
    let Some(address) = super::database() else { return };
    let schema = parts(&address).1;
    execute(&address, &format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (id bigint)"));
    assert!(refused(Client::open_own(&address)).contains("holds tables of another program and none of duly"));
    execute(&address, &format!("CREATE VIEW {schema}.failing_tasks AS SELECT 1 AS one"));
    let error = refused(Client::open(&address));
    assert!(error.contains(&format!("its schema {schema} holds a view failing_tasks that is not duly's")), "{error}");
    execute(&address, &format!("CREATE TABLE {schema}.scheduler_meta (id bigint)"));
    let error = refused(Client::open(&address));
    assert!(error.contains("holds a view failing_tasks that is not duly's"), "{error}");
    execute(&address, &format!("DROP VIEW {schema}.failing_tasks; DROP TABLE {schema}.scheduler_meta"));
    Client::open(&address).expect("its tables beside those");
    Client::open_own(&address).expect("its tables are there");
    execute(&address, &format!("INSERT INTO {schema}.orders VALUES (1)"));
}

/// `schema.postgres.sql` and the README's lines, by `psql`.
#[test]
fn the_lines_of_the_readme_work_in_psql() {
    let Some(address) = super::database() else { return };
    let Some(psql) = super::psql() else { return skip("no psql") };
    let (server, schema) = parts(&address);
    let psql = |lines: &str| {
        let mut psql = Command::new(&psql);
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            server,
            "-c",
            &format!("SET search_path = {schema}"),
        ]);
        let output = psql.arg("-c").arg(lines).output().expect("psql");
        assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    psql(&format!("CREATE SCHEMA {schema}"));
    psql(POSTGRES);

    let readme = include_str!("../../../README.md");
    let lines: Vec<&str> =
        readme.split("```sql\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(sql, _)| sql).collect();
    assert!(!lines.is_empty());
    for sql in &lines {
        psql(sql);
    }
    let (first, rest) = lines[0].split_once(';').expect("a statement");
    assert_eq!(psql(&format!("{first} ON CONFLICT DO NOTHING;{rest}")), "", "enqueued once");
    assert_eq!(psql("SELECT name, payload, planned FROM scheduled_tasks"), "digest:bob|\"bob@example.org\"|0");

    // Enqueue, pause, resume, run now, remove: with duly between them.
    let mut stepper = Stepper::builder(&address, present_time()).accept("digest").start().expect("a stepper");
    assert_eq!(turn(&mut stepper).len(), 0);
    let state = "SELECT status, planned, next_run IS NOT NULL, paused_by FROM scheduled_tasks";
    assert_eq!(psql(state), "active|1|t|");
    psql("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'digest:bob'");
    assert_eq!(psql(state), "paused|0|f|sql");
    psql("UPDATE scheduled_tasks SET status = 'active', next_run = duly_now() WHERE name = 'digest:bob'");
    // One turn plans it, and it may start in the next.
    assert_eq!(turn(&mut stepper).len() + turn(&mut stepper).len(), 1);
    psql("UPDATE task_runs SET cancel_requested = 1 WHERE status = 'running'");
    assert_eq!(psql("SELECT name, status, next_run IS NOT NULL FROM task_overview"), "digest:bob|active|t");
    finish_all(&mut stepper, &Outcome::succeeded());
    turn(&mut stepper);
    psql("DELETE FROM scheduled_tasks WHERE name = 'digest:bob'");
    assert_eq!(psql("SELECT (SELECT count(*) FROM scheduled_tasks), (SELECT count(*) FROM task_runs)"), "0|0");
}

/// A role that may write the tasks, and has no rights on the other tables: the triggers write there for it.
#[test]
fn a_role_needs_rights_on_the_tasks_alone() {
    let Some(address) = super::database() else { return };
    let (_, schema) = parts(&address);
    Client::open(&address).expect("the tables").add(once("job").payload(1)).expect("a task");
    let mut shell = session(&address);
    let role = format!("{schema}_web");
    shell
        .batch_execute(&format!(
            "CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON scheduled_tasks TO {role};
             SET ROLE {role}; SET search_path = public;
             INSERT INTO {schema}.scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'work', 'manual', '');
             UPDATE {schema}.scheduled_tasks SET status = 'paused' WHERE name = 'job';
             UPDATE {schema}.scheduled_tasks SET handler = 'other' WHERE name = 'job';
             DELETE FROM {schema}.scheduled_tasks WHERE name = 'job'"
        ))
        .expect("its rights");
    shell.batch_execute(&format!("SELECT 1 FROM {schema}.task_runs")).expect_err("it has no right");
    shell.batch_execute(&format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")).expect("an end");
}

#[test]
fn json_that_postgres_cannot_store_is_a_fault_of_its_item() {
    let Some(address) = super::database() else { return };
    let mut stepper = Stepper::builder(&address, at(NOON)).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    let task = |name: &str, payload: &str| {
        let json: Box<serde_json::value::RawValue> = serde_json::from_str(payload).expect("JSON");
        NewTask::once(name, at(NOON)).handler("work").payload(&json)
    };
    for (payload, says) in [
        (r#"{"a": "\u0000"}"#, r"the payload holds \u0000, which PostgreSQL cannot store"),
        // These no handler can read, whatever stores them.
        (r#""\ud83d""#, "invalid payload"),
        ("1e200000", "invalid payload"),
    ] {
        let error = client.add(task("refused", payload)).expect_err(payload).to_string();
        let source = format!("{error} {:?}", client.add(task("refused", payload)).expect_err(payload));
        assert!(source.contains(says), "{payload}: {source}");
    }
    let most = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    client.add(task("deepest", &most)).expect("a task");
    client.add(task("fits", r#""\\u0000 \ud83d\ude00""#)).expect("a task");

    // Its effects have happened: the end of the attempt is stored without the result.
    for claim in stepper.step().expect("a step") {
        let result = if claim.task == "fits" { r#""\u0000""# } else { "7" };
        stepper.finish(&claim, Outcome::Succeeded { result: Some(result.to_owned()) });
    }
    client.add(once("other")).expect("a task");
    let next = claim(&mut stepper);
    assert_eq!(next.task, "other", "the turn goes on");
    let runs = client.runs(&RunFilter::newest(10)).expect("the runs");
    let ended: Vec<String> = runs.iter().map(|run| format!("{} {:?} {:?}", run.task, run.status, run.result)).collect();
    assert!(ended.contains(&"deepest Succeeded Some(\"7\")".to_owned()), "{ended:?}");
    assert!(
        ended.iter().any(|run| run.starts_with("fits") && run.ends_with("None") && !run.contains("Running")),
        "{ended:?}"
    );
}

#[test]
fn a_sequence_that_is_behind_its_rows_is_a_finding() {
    let Some(address) = super::database() else { return };
    let client = Client::open(&address).expect("the tables");
    client.add_all((0..4).map(|i| once(&format!("task-{i}")))).expect("tasks");
    assert!(client.doctor().expect("findings").is_empty());
    session(&address).batch_execute("SELECT setval('scheduled_tasks_id_seq', 2)").expect("a sequence");
    let findings: Vec<String> =
        client.doctor().expect("findings").iter().map(|finding| finding.found.clone()).collect();
    let (schema, expected) =
        (parts(&address).1, "the sequence of scheduled_tasks is at 2, and a row has the number 4: SELECT setval('");
    assert!(findings.len() == 1 && findings[0].starts_with(expected), "{findings:?}");
    let set = findings[0].rsplit_once(": ").expect("a statement").1;
    assert!(set.contains(schema), "{set}");
    session(&address).batch_execute(set).expect("it is what to do");
    assert!(client.doctor().expect("findings").is_empty());
}

/// A `delay` task waits for the end of its run: one that was deleted never ends.
#[test]
fn a_delay_task_whose_runs_were_truncated_runs_again() {
    let Some(address) = super::database() else { return };
    let mut stepper = Stepper::builder(&address, at(NOON)).accept("work").start().expect("a stepper");
    stepper.client().add(NewTask::delay("each", minutes(1)).handler("work")).expect("a task");
    let held = advance_and_step(&mut stepper, minutes(2)).remove(0);
    session(&address).batch_execute("TRUNCATE task_runs CASCADE").expect("no runs");
    stepper.finish(&held, Outcome::succeeded());
    let mut claims = Vec::new();
    for _ in 0..6 {
        claims.extend(advance_and_step(&mut stepper, minutes(1)));
    }
    assert!(!claims.is_empty() && claims[0].task == "each", "{claims:?}");
}

#[test]
fn a_schema_that_is_dropped_under_a_scheduler_is_named_by_its_address() {
    let Some(address) = super::database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let scheduler = duly::Scheduler::builder(&address).state_folder(home.path()).start().expect("a scheduler");
    // In a deadlock with a turn, the turn is undone: it looks for one first.
    execute(&address, &format!("SET deadlock_timeout = '1h'; DROP SCHEMA {} CASCADE", parts(&address).1));
    let error = scheduler.shutdown(crate::fixtures::seconds(5)).expect_err("its tables are gone").to_string();
    let folder = home.path().display().to_string();
    assert!(error.contains(parts(&address).1) && !error.contains(&folder), "{error}");
}

/// The largest number of rows of a table that one transaction has written last.
fn most_written(address: &str, table: &str) -> i64 {
    let most =
        format!("SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM {table} GROUP BY xmin::text) AS written");
    session(address).query_one(&most, &[]).expect("a number").get(0)
}

#[test]
fn a_request_that_concerns_many_rows_writes_few_in_each_transaction() {
    let Some(address) = super::database() else { return };
    let client = Client::open(&address).expect("the tables");
    let tasks = number("DULY_TASKS", 3_000);
    let many =
        |priority: u8| (0..tasks).map(move |n| NewTask::manual(format!("t:{n:06}")).handler("work").priority(priority));
    let apply = Apply { prune: true, dry_run: false, adopt: false };
    client.apply("m", many(1), apply).expect("many tasks");
    assert_eq!(most_written(&address, "scheduled_tasks"), 500);
    client.apply("m", many(2), apply).expect("changes");
    assert_eq!(most_written(&address, "scheduled_tasks"), 500);

    let runs = number("DULY_WAITING", 20_000) / 4;
    let waiting = format!(
        "SET duly.store = 'on';
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
         SELECT (SELECT min(id) FROM scheduled_tasks), 'work', {noon} + n, 'manual', 'queued', {noon} FROM generate_series(1, {runs}) n",
        noon = at(NOON).as_millis()
    );
    session(&address).batch_execute(&waiting).expect("runs");
    assert_eq!(client.cancel_all("t:000000").expect("a cancellation"), runs);
    let most = most_written(&address, "task_runs");
    assert!((1..=500).contains(&most), "{most} runs in one transaction");
    // Their removal is in parts too: what is left when it is interrupted, is less than one.
    session(&address)
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
             CREATE TRIGGER refuse BEFORE DELETE ON scheduled_tasks FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .expect("a trigger");
    client.remove("t:000000").expect_err("it is interrupted");
    let left: i64 = session(&address).query_one("SELECT count(*) FROM task_runs", &[]).expect("a number").get(0);
    assert!((1..=500).contains(&left), "{left} runs are left");
}

#[test]
fn tasks_with_many_runs_are_removed_with_few_runs_in_each_transaction() {
    let Some(address) = super::database() else { return };
    let client = Client::open(&address).expect("the tables");
    let mut session = session(&address);
    session
        .batch_execute(
            "CREATE TABLE deleted (tx xid8 NOT NULL);
             CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO deleted VALUES (pg_current_xact_id()); RETURN NULL; END $$;
             CREATE TRIGGER count_deleted AFTER DELETE ON task_runs FOR EACH ROW EXECUTE FUNCTION count_deleted()",
        )
        .expect("a trigger");
    let prune = Apply { prune: true, dry_run: false, adopt: false };
    for by_filter in [true, false] {
        let tasks = (0..8).map(|n| NewTask::manual(format!("t:{n}")).handler("work"));
        client.apply("m", tasks, prune).expect("tasks");
        session
            .batch_execute(&format!(
                "SET duly.store = 'on'; TRUNCATE deleted;
                 INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, finished_at)
                 SELECT t.id, 'work', {noon} + n, 'manual', CASE WHEN n % 2 = 0 THEN 'queued' ELSE 'succeeded' END, {noon}, n % 2,
                        CASE WHEN n % 2 = 1 THEN {noon} END
                   FROM scheduled_tasks t CROSS JOIN generate_series(1, 1500) n WHERE n <= 300 OR t.name = 't:3';
                 SET duly.store = 'off'",
                noon = at(NOON).as_millis()
            ))
            .expect("runs");
        let removed = match by_filter {
            true => client.remove_matching(&Filter::new().handler("work")).expect("a removal").changed,
            false => client.apply("m", [], prune).expect("a removal").len(),
        };
        assert_eq!((removed, client.names().expect("names").len()), (8, 0));
        let counted = "SELECT sum(n)::bigint, max(n) FROM (SELECT count(*) AS n FROM deleted GROUP BY tx::text) x";
        let row = session.query_one(counted, &[]).expect("numbers");
        let (all, most): (i64, i64) = (row.get(0), row.get(1));
        assert!(all == 7 * 300 + 1500 && most <= 500, "{most} of {all} runs in one transaction");
    }
}
