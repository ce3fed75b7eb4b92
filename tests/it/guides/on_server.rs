//! The snippets of the pages about PostgreSQL run on a server.

use crate::fixtures::on_server::session;
use crate::fixtures::skip;
use crate::guides::desk::{Desk, Setting};
use crate::guides::{RunBy, Snippet, run_by, snippets};
use crate::postgres;

/// Replaces a word that is no part of a longer one.
fn replace_word(text: &str, from: &str, to: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
        replaced.extend([before, if is_word { to } else { from }]);
        rest = after;
    }
    replaced + rest
}

fn run_sql(session: &mut ::postgres::Client, sql: &str, place: &str) {
    // A role is one of the whole server.
    let script = format!("BEGIN; {sql}; ROLLBACK");
    session.batch_execute(&script).unwrap_or_else(|error| panic!("{place}: {error:?}: {sql}"));
}

#[test]
fn the_snippets_about_postgres_run() {
    let page = "docs/postgres.md";
    let (Some(address), Some(server), Some(target)) = (postgres::database(), postgres::server(), postgres::database())
    else {
        return;
    };
    let schema = address.rsplit_once("schema=").expect("a schema").1.to_owned();
    drop(duly::Client::open(&address).expect("the tables"));
    let mut session = session(server);
    let setting = Setting::default();
    let mut desk = Desk::new(page, setting);
    desk.prepare("duly -q --db duly.db add job --manual -- true");
    desk.server = Some(address.clone());
    // The copy is another database of the server.
    let copy = format!("copy_{schema}");
    session.batch_execute(&format!("CREATE DATABASE {copy}")).expect("a database");
    let (path, parameters) = server.split_once('?').unwrap_or((server, ""));
    let copied = format!("{}/{copy}?{parameters}", path.rsplit_once('/').expect("a name of a database").0);
    for snippet in snippets(page).iter().filter(|snippet| run_by(page, snippet) == Ok(RunBy::Page)) {
        let place = format!("{page}, line {}", snippet.line);
        let text = match snippet.language.as_str() {
            "sql" if snippet.text.contains("CREATE SCHEMA") => {
                replace_word(&snippet.text, "duly", &format!("{schema}_role"))
            }
            "sql" => replace_word(&snippet.text, "duly", &schema),
            _ => snippet
                .text
                .replace("postgres://duly@db.example/app?schema=duly&sslmode=verify-full", &address)
                .replace("--to postgres://duly@db.example/app", &format!("--to '{target}'"))
                .replace("postgres://duly@db.example/app", &format!("'{server}'"))
                .replace("postgres://duly@db.example/copy", &format!("'{copied}'"))
                .replace("--schema=duly", &format!("--schema={schema}")),
        };
        match snippet.language.as_str() {
            "sql" => run_sql(&mut session, &text, &place),
            language => desk.run(&Snippet { language: language.to_owned(), text, line: snippet.line }),
        }
    }
    let tasks = |address: &str| -> Vec<String> {
        let client = duly::Client::open(address).expect("a client");
        client.tasks().expect("tasks").into_iter().map(|task| task.name().to_owned()).collect()
    };
    assert_eq!(tasks(&target), ["job"]);
    if std::process::Command::new("pg_dump").arg("--version").output().is_ok() {
        let restored = format!("{copied}{}schema={schema}", if copied.ends_with('?') { "" } else { "&" });
        assert_eq!(tasks(&restored), ["digest"]);
    }
    drop(desk);
    session.batch_execute(&format!("DROP DATABASE {copy} WITH (FORCE)")).expect("no database");
}

/// The statements of the usual guards, with their tables.
#[test]
fn the_statements_of_the_guards_run() {
    let page = "docs/guards.md";
    let Some(server) = postgres::server() else { return skip("no PostgreSQL") };
    let mut session = session(server);
    let tables = "CREATE TEMP TABLE cron_jobs (name text, locked_until timestamptz);
                  CREATE TEMP TABLE jobs (id bigint, status text, run_at timestamptz, locked_by text, locked_until timestamptz)";
    session.batch_execute(tables).expect("the tables");
    let mut count = 0;
    for snippet in snippets(page).iter().filter(|snippet| snippet.language == "sql") {
        let sql = snippet.text.replace(":clock", "now()").replace(":host", "'a'");
        session.batch_execute(&sql).unwrap_or_else(|error| panic!("{page}, line {}: {error:?}", snippet.line));
        count += 1;
    }
    assert!(count >= 4, "only {count} snippets were found");
}
