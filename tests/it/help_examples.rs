//! Every example in the help of every command runs without an error, in a folder with the files that it names.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use duly::{Client, Limit, NewTask};

use crate::fixtures::{NOON, TestDb, at, eventually, skip};
use crate::nanoclaw::nanoclaw;
use crate::sidecar::signal;

/// Stand-ins for other programs in the examples.
const PROGRAMS: [(&str, &str); 4] = [
    ("crontab", "#!/bin/sh\necho '0 3 * * * true'\n"),
    ("man", "#!/bin/sh\ncat >/dev/null\n"),
    ("backup.sh", "#!/bin/sh\n"),
    ("node", NODE),
];

/// A worker.
const NODE: &str = r#"#!/bin/sh
echo '{"type":"hello","protocol":1,"handlers":["mail"],"concurrency":1}'
while IFS= read -r line; do case $line in *'"type":"stop"'*) exit 0;; esac; done
"#;

/// Returns the indented lines below `heading`, without their indentation.
fn lines_below<'a>(help: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, rest) = help.split_once(heading).unwrap_or_else(|| panic!("no {heading:?} in {help}"));
    rest.lines().skip(1).take_while(|line| line.starts_with("  ")).map(|line| &line[2..]).collect()
}

fn help(words: &[&str]) -> String {
    let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
    let output = duly.args(words).arg("--help").env("COLUMNS", "200").output().expect("the program");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The address of a server in the examples.
const SERVER: &str = "postgres://duly@db.example/app";

/// Returns a database on a server, with duly's tables.
fn database() -> Option<String> {
    #[cfg(feature = "postgres")]
    return crate::postgres::database().inspect(|address| drop(Client::open(address).expect("a client")));
    #[cfg(not(feature = "postgres"))]
    None
}

/// Returns each example with its command.
fn examples() -> Vec<(String, String)> {
    let names = |help: &str| -> Vec<String> {
        let name = |line: &&str| line.split(' ').next().map(str::to_owned).filter(|name| !name.is_empty());
        // A continued line is indented further.
        lines_below(help, "Commands:").iter().filter_map(name).filter(|name| name != "help").collect()
    };
    let mut found = Vec::new();
    for command in names(&help(&[])) {
        let text = help(&[&command]);
        found.extend(lines_below(&text, "Examples:").iter().map(|example| (command.clone(), (*example).to_owned())));
        if command == "import" {
            for source in names(&text) {
                let text = help(&["import", &source]);
                found.extend(
                    lines_below(&text, "Examples:").iter().map(|example| (command.clone(), (*example).to_owned())),
                );
            }
        }
    }
    found
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a program");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("its mode");
}

/// Creates a folder with the files that the examples name.
fn create_files(command: &str) -> (TestDb, PathBuf) {
    let db = TestDb::new();
    let home = db.home().to_owned();
    for folder in
        ["bin", "store", "zsh", "etc/cron.d", ".local/share/bash-completion/completions", ".config/fish/completions"]
    {
        std::fs::create_dir_all(home.join(folder)).expect("a folder");
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_duly"), home.join("bin/duly")).expect("the program");
    PROGRAMS.iter().for_each(|(name, text)| write_program(&home.join("bin").join(name), text));
    write_program(&home.join("backup.sh"), PROGRAMS[2].1);
    std::fs::write(home.join("tasks.toml"), "[[task]]\nname = \"t\"\nevery = \"1h\"\ncommand = [\"true\"]\n")
        .expect("a file");
    for file in ["crontab", "etc/crontab", "etc/cron.d/certbot"] {
        std::fs::write(home.join(file), "0 3 * * * true\n").expect("a file");
    }
    drop(nanoclaw(&home.join("store/messages.db")));
    let session = "v2-sessions/ag-1/sess-1";
    std::fs::create_dir_all(home.join("data").join(session)).expect("a folder");
    let inbound = Path::new("tests/cli/import-nanoclaw.in").join(session).join("inbound.db");
    let copy = home.join("data").join(session).join("inbound.db");
    std::fs::copy(inbound, &copy).expect("a database of NanoClaw 2");
    let cancelled = "DELETE FROM messages_in WHERE status = 'cancelled'";
    rusqlite::Connection::open(copy).expect("a connection").execute(cancelled, []).expect("no cancelled task");
    // Commands that add tasks start without a database.
    if command == "add" || command == "import" {
        return (db, home);
    }
    let client = Client::open(home.join("agent.db")).expect("a client");
    let yearly = |name: &str, handler: &str| NewTask::cron(name, "0 0 1 1 *").handler(handler);
    client.add(yearly("nightly", "command").payload(serde_json::json!({ "argv": ["true"] }))).expect("a task");
    client.add(yearly("digest", "digest")).expect("a task");
    client.set_limit(Limit::key("smtp", 2)).expect("a limit");
    let status = if command == "cancel" { "'queued', NULL, 0" } else { "'dead', 1805000001000, 1" };
    let sql = format!(
        "INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, run_at, status, finished_at, attempt, concurrency_key)
         SELECT 42, id, handler, 1805000000000, 'schedule', {}, {status}, '#' || id FROM scheduled_tasks WHERE name = 'nightly'",
        at(NOON).as_millis()
    );
    // A dead run with its last attempt.
    let attempt = "INSERT INTO task_attempts (run_id, attempt, outcome, locked_by, finished_at, final)
                   SELECT id, 1, 'failed', 'dead', finished_at, 1 FROM task_runs WHERE status = 'dead'";
    let sql = format!("{sql}; {attempt}");
    rusqlite::Connection::open(home.join("agent.db")).expect("a connection").execute_batch(&sql).expect("a run");
    (db, home)
}

fn start(home: &Path, line: &str) -> Child {
    // `fpath` is a variable of zsh.
    let script = format!("fpath=(- {}); exec 3>&-; {line}", home.join("zsh").display());
    let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(home).env("HOME", home).env("PATH", path).env("DULY_DB", "agent.db");
    shell.env("TZ", "Europe/Rome").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().expect("bash")
}

/// Waits until the scheduler is registered, and stops it.
fn stop_scheduler(home: &Path, child: Child) -> Output {
    let file = home.join("agent.db");
    let mut pid = 0;
    eventually("the scheduler is registered", || {
        let reader = rusqlite::Connection::open(&file).expect("a connection");
        let found =
            reader.query_row("SELECT max(pid) FROM scheduler_instances", [], |row| row.get::<_, Option<u32>>(0));
        pid = found.unwrap_or_default().unwrap_or_default();
        pid > 0
    });
    signal("TERM", &pid.to_string());
    child.wait_with_output().expect("its output")
}

fn run_example(command: &str, example: &str) -> Output {
    let (_db, home) = create_files(command);
    let line = match command {
        // Shortened.
        "selftest" => example.replace("--for 10m", "").replace("/var/lib/agent", ".") + " --for 1s",
        // Not the files of this machine.
        _ => example.replace("/etc/", "etc/"),
    };
    if command == "run" && !example.contains("--until-idle") {
        let child = start(&home, &format!("exec {line}"));
        return stop_scheduler(&home, child);
    }
    if example.contains("--gone") {
        // Its scheduler is dead: it has no lock file, and its lease has expired.
        let running = "UPDATE task_runs SET status = 'running', finished_at = NULL, attempt = 1, locked_by = 'dead',
                              locked_until = 1700000000000";
        rusqlite::Connection::open(home.join("agent.db")).expect("a connection").execute(running, []).expect("a run");
    }
    let helper = example.contains("--wait").then(|| start(&home, "exec duly run"));
    let output = start(&home, &line).wait_with_output().expect("its output");
    helper.into_iter().for_each(|helper| assert!(stop_scheduler(&home, helper).status.success()));
    output
}

#[test]
fn every_example_of_every_help_text_runs() {
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("no bash");
    }
    let examples = examples();
    assert!(examples.len() >= 45, "only {} examples were found", examples.len());
    let mut failed = Vec::new();
    for (command, example) in &examples {
        let mut example = example.clone();
        if example.contains(SERVER) {
            let Some(address) = database() else { continue };
            example = example.replace(SERVER, &format!("'{address}'"));
        }
        let example = &example;
        let output = run_example(command, example);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_well = match command.as_str() {
            // They report that no scheduler is alive, and that a run is dead.
            "check" | "logs" => output.status.code().is_some_and(|code| code < 2),
            _ => output.status.success(),
        };
        if !is_well {
            failed.push(format!("{example}: {}: {error}", output.status));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
