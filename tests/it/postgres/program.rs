//! Every command of the program on a server, beside the same commands on a file: the JSON is equal but for what only a file or a server
//! has, and for times.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::postgres::database;

const DULY: &str = env!("CARGO_BIN_EXE_duly");

/// A database that the program works on, in a folder with the files of the test.
struct Place {
    home: TempDir,
    database: String,
}

/// What a command printed.
struct Told {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new(database: String) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("tasks.toml"), TASKS).unwrap();
        std::fs::write(home.path().join("crontab"), "MAILTO=me\n*/5 * * * * true\n").unwrap();
        Place { home, database }
    }

    fn told(&self, words: &[&str]) -> Told {
        self.told_by(Command::new(DULY).args(words))
    }

    /// What duly prints with arguments as a shell reads them.
    fn told_in_shell(&self, arguments: &str) -> Told {
        self.told_by(Command::new("sh").args(["-c", &format!("exec \"$0\" {arguments}"), DULY]))
    }

    fn told_by(&self, command: &mut Command) -> Told {
        command.env("DULY_DB", &self.database).env("DULY_STATE_DIR", self.home.path().join("state"));
        command.env("TZ", "UTC").env_remove("DULY_LOG").current_dir(self.home.path());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Told { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

const TASKS: &str = r#"
[[limit]]
key = "mail"
concurrency = 2

[[task]]
name = "declared"
cron = "0 6 * * *"
time_zone = "Europe/Rome"
command = ["true"]
concurrency_key = "mail"
"#;

/// Keys whose value differs between any two databases: times, processes, and what names the database.
const OWN: &str = "
    created_at updated_at queued_at run_at due_at scheduled_for last_scheduled_for started_at finished_at next_run
    last_run last_run_at starts_at at seen_at pid owner locked_by process duration file began_at source managed_by
    clock_shows heartbeat_at kept seed occurrences trace host schedule_value active_since cwd last_duration_ms
    duration_ms";

/// Keys that only a file has, or only a server.
const OF_ONE: [&str; 3] = ["file_bytes", "wal_bytes", "server"];

/// Returns a document without what differs between any two databases.
fn common(value: Value) -> Value {
    match value {
        Value::String(text) if text.parse::<duly::Timestamp>().is_ok() => "(a time)".into(),
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(key, _)| !OF_ONE.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| {
                let own = OWN.split_whitespace().any(|own| own == key) && !value.is_null();
                (key, if own { "(its own)".into() } else { common(value) })
            });
            Value::Object(kept.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(common).collect(),
        other => other,
    }
}

#[test]
fn every_command_prints_the_same_on_a_server_as_on_a_file() {
    let Some(address) = database() else { return };
    let (file, server) = (Place::new("agent.db".to_owned()), Place::new(address));
    for step in include_str!("program/steps.sh").lines().skip(1) {
        let arguments = format!("--json {step}");
        let (one, other) = (file.told_in_shell(&arguments), server.told_in_shell(&arguments));
        // Times and durations differ.
        let without_numbers = |told: &Told| told.stderr.replace(|c: char| c.is_ascii_digit(), "");
        assert_eq!((one.code, without_numbers(&one)), (other.code, without_numbers(&other)), "{step}");
        let read = |told: &Told| common(serde_json::from_str(&told.stdout).unwrap_or(Value::Null));
        let (one_read, other_read) = (read(&one), read(&other));
        let lines = |read: &Value| format!("{read:#}").lines().map(str::to_owned).collect::<Vec<_>>();
        let (one_lines, other_lines) = (lines(&one_read), lines(&other_read));
        let differing: Vec<_> = one_lines.iter().zip(&other_lines).filter(|(one, other)| one != other).collect();
        assert!(one_read == other_read, "{step}: {differing:#?}");
        // Without JSON it is told in other words, but it is told.
        assert_eq!(one.stdout.is_empty(), other.stdout.is_empty(), "{step}");
    }
    let status: Value = serde_json::from_str(&server.told(&["status", "--json"]).stdout).unwrap();
    assert!(status["server"].as_str().is_some_and(|server| server.starts_with("PostgreSQL ")), "{status}");
    assert!(OF_ONE[..2].iter().all(|key| status.get(*key).is_none()), "{status}");

    let backup = server.told(&["backup", "copy.db"]);
    assert!(backup.code == Some(1) && backup.stderr.contains("pg_dump --schema="), "{}", backup.stderr);
    assert!(!server.home.path().join("copy.db").exists());

    // Its server may run without fsync, which is a finding.
    let selftest = server.told(&["selftest", "--json"]);
    let report: Value = serde_json::from_str(&selftest.stdout).unwrap();
    let verdict = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["check"] == name).map(|check| check["verdict"].clone())
    };
    for name in ["server", "session", "locks", "permissions"] {
        assert_eq!(verdict(name), Some("good".into()), "{name}: {report}");
    }
    assert_eq!(report["round_trips"], 20);
    assert!(report["round_trip_us"].as_u64().is_some_and(|length| length > 0), "{report}");
}

#[test]
fn no_password_is_printed() {
    let Some(address) = database() else { return };
    // The server trusts every user of its socket: it asks for no password.
    let address = address.replacen("postgres@", "postgres:s3cret%21@", 1);
    if !address.contains("s3cret") {
        return;
    }
    let place = Place::new(address.clone());
    let unknown = |text: &str| address.replacen("/postgres?", text, 1);
    let steps: [&[&str]; 9] = [
        &["add", "hello", "--now", "--", "echo", "hello"],
        &["run", "--until-idle", "-vv"],
        &["run", "--until-idle", "-vv", "--json"],
        &["status"],
        &["status", "--json"],
        &["check"],
        &["selftest"],
        &["backup", "copy.db"],
        &["doctor"],
    ];
    for words in steps {
        let Told { stdout, stderr, .. } = place.told(words);
        assert!(!format!("{stdout}{stderr}").contains("s3cret"), "{words:?}: {stdout}{stderr}");
    }
    for broken in
        [unknown("/no_such_database?"), unknown("/postgres?unknown=1&"), address.replacen("%2F", "%2Fmissing", 1)]
    {
        for words in [["status"], ["list"], ["run"], ["selftest"]] {
            let Told { code, stdout, stderr } = Place::new(broken.clone()).told(&words);
            assert!(code != Some(0) && !stderr.is_empty(), "{words:?}");
            assert!(!format!("{stdout}{stderr}").contains("s3cret"), "{words:?}: {stdout}{stderr}");
        }
    }
    assert!(!Path::new(&address).exists());
}
