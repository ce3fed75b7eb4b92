//! Roles have precisely the rights that docs/postgres.md grants, and each of a scheduler's is looked at when one starts.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use duly::{Client, Error, Limit, NewTask, Scheduler};

use crate::fixtures::on_server::session;
use crate::fixtures::{eventually, exited, once, patience, receive};
use crate::postgres::database;

const GUIDE: &str = include_str!("../../../docs/postgres.md");

/// The blocks of GRANTs of the guide, for schedulers, clients and monitors.
const ROLES: [&str; 3] = ["duly_scheduler", "duly_client", "duly_monitor"];

/// A database whose tables another role has made, and the addresses of the roles of the guide.
struct Shared {
    address: String,
    schema: String,
}

impl Shared {
    fn new() -> Option<Self> {
        let address = database()?;
        let schema = address.split_once("schema=").expect("a schema").1.to_owned();
        drop(Client::open(&address).expect("tables"));
        let shared = Shared { address, schema };
        for role in ROLES {
            let block = GUIDE.split("```sql\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(sql, _)| sql);
            let block = block.into_iter().find(|sql| sql.contains(&format!("CREATE ROLE {role} "))).expect(role);
            let block =
                block.replace(role, &shared.role(role)).replace("SCHEMA duly", &format!("SCHEMA {}", shared.schema));
            shared.execute(&block.replace(" duly.", &format!(" {}.", shared.schema)));
        }
        Some(shared)
    }

    fn role(&self, role: &str) -> String {
        format!("{}_{}", self.schema, role.trim_start_matches("duly_"))
    }

    fn of(&self, role: &str) -> String {
        self.address.replacen("postgres@", &format!("{}@", self.role(role)), 1)
    }

    fn execute(&self, sql: &str) {
        session(&self.address).batch_execute(sql).expect(sql);
    }

    /// What a role was granted: the object as a GRANT names it, and the right.
    fn granted(&self, role: &str) -> Vec<(String, String)> {
        let granted = "
            SELECT format('%s%I.%I', CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END, n.nspname, c.relname), a.privilege_type
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN aclexplode(c.relacl) a
             WHERE n.nspname = $1 AND a.grantee = $2::text::regrole AND c.relkind IN ('r', 'S')
             UNION ALL
            SELECT format('SCHEMA %I', n.nspname), a.privilege_type
              FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a WHERE n.nspname = $1 AND a.grantee = $2::text::regrole
             ORDER BY 1, 2";
        let rows = session(&self.address).query(granted, &[&self.schema, &self.role(role)]).expect("rights");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    fn program(&self, role: &str, home: &Path, words: &[&str]) -> Command {
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
        duly.args(words).env("DULY_DB", self.of(role)).env("DULY_STATE_DIR", home.join("state")).current_dir(home);
        duly
    }

    fn output(&self, role: &str, home: &Path, words: &[&str]) -> Output {
        self.program(role, home, words).output().expect("duly")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut session = session(&self.address);
        for role in ROLES.map(|role| self.role(role)) {
            let _ = session.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        }
    }
}

#[test]
fn each_right_of_a_scheduler_is_looked_at_when_one_starts() {
    let Some(shared) = Shared::new() else { return };
    let (address, home) = (shared.of("duly_scheduler"), tempfile::tempdir().expect("a folder"));
    let start = || {
        Scheduler::builder(&address)
            .state_folder(home.path())
            .handler("work", |_: &duly::Context| Ok::<_, Error>(()))
            .start()
    };
    let rights = shared.granted("duly_scheduler");
    assert!(rights.len() > 60, "{rights:?}");
    let role = shared.role("duly_scheduler");
    for (object, right) in &rights {
        shared.execute(&format!("REVOKE {right} ON {object} FROM {role}"));
        let error = start().map(drop).expect_err(object);
        assert!(matches!(error, Error::UnusableDatabase { .. }), "{right} on {object}: {error:?}");
        let grant = format!("GRANT {right} ON {object} TO {role}");
        let error = error.to_string();
        assert!(
            error.contains(&grant) && error.contains("its role lacks") && !error.contains("damaged"),
            "{right} on {object}: {error}"
        );
        shared.execute(&grant);
    }
    // These suffice.
    let (sender, receiver) = std::sync::mpsc::channel();
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .handler("work", move |run: &duly::Context| {
            run.effect("k", || Ok(1)).map(|_| sender.send(run.run_id()).expect("a test"))
        })
        .start()
        .expect("a scheduler");
    scheduler.add(NewTask::once("job", scheduler.now()).handler("work")).expect("a task");
    receive(&receiver, "a run");
    scheduler.set_limit(Limit::key("mail", 2)).expect("a limit");
    scheduler.prune(duly::Retention::default()).expect("a pass");
    scheduler.shutdown(patience()).expect("an end");
}

#[test]
fn a_run_without_a_right_exits_4_before_a_command_runs() {
    let Some(shared) = Shared::new() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let output = |words: &[&str]| shared.output("duly_scheduler", home.path(), words);
    assert!(output(&["add", "mark", "--now", "--", "touch", "ran"]).status.success());
    let role = shared.role("duly_scheduler");
    for (revoked, object) in
        [("DELETE", format!("{}.task_attempts", shared.schema)), ("USAGE", format!("SCHEMA {}", shared.schema))]
    {
        shared.execute(&format!("REVOKE {revoked} ON {object} FROM {role}"));
        let Output { status, stderr, .. } = output(&["run", "--until-idle"]);
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        let grant = format!("GRANT {revoked} ON {object} TO {role}");
        assert!(status.code() == Some(4) && stderr.contains(&grant), "{status}: {stderr}");
        assert!(!home.path().join("ran").exists() && !stderr.contains("damaged"), "{stderr}");
        // A look-up needs a right on the schema, too.
        let listed = output(&["list"]);
        assert_eq!(listed.status.code(), Some(if revoked == "USAGE" { 4 } else { 0 }), "{listed:?}");
        shared.execute(&grant);
    }
    let run = output(&["run", "--until-idle"]);
    assert!(run.status.success() && home.path().join("ran").exists(), "{run:?}");
}

#[test]
fn clients_and_monitors_do_what_the_guide_grants_them_and_nothing_else() {
    let Some(shared) = Shared::new() else { return };
    let client = Client::open(shared.of("duly_client")).expect("a client");
    client.add_all((0..3).map(|i| once(&format!("task-{i}")))).expect("tasks");
    client.add(NewTask::manual("job").handler("work").payload(1)).expect("a task");
    client.replace(NewTask::manual("job").handler("work").payload(2)).expect("another payload");
    client.apply("tasks.toml", [once("declared")], duly::Apply::default()).expect("a manifest");
    let run = client.trigger("job").expect("a run");
    client.cancel(run).expect("a cancel");
    client.retry(run).expect("a retry");
    client.pause("job").expect("a pause");
    client.resume("job").expect("a resume");
    client.set_limit(Limit::key("mail", 2)).expect("a limit");
    client.set_limit(Limit::rate("work", 9, Duration::from_secs(1))).expect("a limit");
    client.cancel_all("job").expect("a cancel");
    client.remove("job").expect("a removal");
    let error = Scheduler::builder(shared.of("duly_client")).start().map(drop).expect_err("no scheduler");
    assert!(error.to_string().contains("its role lacks INSERT, UPDATE, DELETE on scheduler_alarm_channels"), "{error}");

    let home = tempfile::tempdir().expect("a folder");
    for words in [&["list"][..], &["status"], &["show", "task-1"], &["history"], &["check"], &["doctor"], &["limit"]] {
        let output = shared.output("duly_monitor", home.path(), words);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // What `check` finds is no matter here.
        let is_answered = output.status.success() || words == ["check"] && output.status.code() == Some(1);
        assert!(is_answered, "{words:?}: {stdout}{stderr}");
        assert!(!stderr.contains("permission") && !stdout.contains("file"), "{words:?}: {stdout}{stderr}");
    }
    let refused = shared.output("duly_monitor", home.path(), &["pause", "task-1"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(4) && stderr.contains("GRANT INSERT, UPDATE, DELETE ON"), "{stderr}");
}

/// Longer than a file may be unusable before `run` gives up.
const UNUSABLE: Duration = Duration::from_secs(4);

#[test]
fn a_right_that_is_revoked_for_a_while_does_not_end_a_run_until_idle() {
    let Some(shared) = Shared::new() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let waits = "touch began; while ! test -e go; do sleep 0.1; done";
    let added = shared.output("duly_scheduler", home.path(), &["add", "wait", "--now", "--", "sh", "-c", waits]);
    assert!(added.status.success(), "{added:?}");
    let mut run = shared.program("duly_scheduler", home.path(), &["run", "--until-idle"]);
    let mut run = run.stderr(Stdio::null()).spawn().expect("duly");
    eventually("a command runs", || home.path().join("began").exists());
    let role = shared.role("duly_scheduler");
    shared.execute(&format!("REVOKE SELECT ON {}.task_runs FROM {role}", shared.schema));
    let until = Instant::now() + UNUSABLE;
    let mut ended = None;
    eventually("the run ends, or has lasted", || {
        ended = run.try_wait().expect("duly");
        ended.is_some() || Instant::now() >= until
    });
    shared.execute(&format!("GRANT SELECT ON {}.task_runs TO {role}", shared.schema));
    std::fs::write(home.path().join("go"), "").expect("a file");
    assert!(ended.is_none(), "{ended:?}");
    assert!(exited(&mut run, "the run").success());
}

#[test]
fn tables_of_another_program_are_named_as_such() {
    let Some(address) = database() else { return };
    let schema = address.split_once("schema=").expect("a schema").1;
    let role = format!("{schema}_guest");
    let mut owner = session(&address);
    let tables = format!("CREATE SCHEMA IF NOT EXISTS {schema}; CREATE TABLE {schema}.task_runs_id_seq (n bigint)");
    owner.batch_execute(&format!("{tables}; CREATE ROLE {role} LOGIN")).expect("a table");
    let error = Client::open(&address).map(drop).expect_err("foreign").to_string();
    assert!(error.contains("a table task_runs_id_seq that is not duly's"), "{error}");
    let guest = address.replacen("postgres@", &format!("{role}@"), 1);
    let error = Client::open(guest).map(drop).expect_err("foreign").to_string();
    owner.batch_execute(&format!("DROP ROLE {role}")).expect("a role");
    assert!(error.contains("GRANT USAGE ON SCHEMA") && error.contains("is another program's"), "{error}");
}
