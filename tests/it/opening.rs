//! Opening a file: which files are accepted, which are left unchanged, and the errors. Nothing is written to a file before
//! it is known to be duly's or empty.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use duly::testing::Stepper;
use duly::{Client, Error, NewTask, Outcome, Scheduler};
use rusqlite::Connection;

use crate::fixtures::{NOON, TestDb, at, once, receive, seconds};
#[cfg(unix)]
use crate::fixtures::{set_mode, skip};

/// Returns all files of a folder with their contents; folders end with a slash.
fn folder_contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap_or_default())).collect()
}

/// Opens the file through every interface. Each returns the same error, and leaves the folder unchanged.
pub(crate) fn refusal_of_each_interface(db: &TestDb, file: &Path) -> String {
    let before = folder_contents(db.home());
    let interfaces = [
        ("open", Client::open(file).err()),
        ("open_existing", Client::open_existing(file).err()),
        ("a scheduler", Scheduler::builder(file).start().err()),
        ("a stepper", Stepper::builder(file, at(NOON)).start().err()),
    ];
    let mut reasons = interfaces.map(|(interface, error)| match error {
        Some(Error::UnusableDatabase { path, reason }) if path == file => reason,
        other => panic!("{interface}: {other:?}"),
    });
    assert!(
        folder_contents(db.home()) == before,
        "something was written, or left behind: {:?}",
        folder_contents(db.home()).keys()
    );
    reasons.iter().for_each(|reason| assert!(reason.lines().count() == 1 && !reason.ends_with('.'), "{reason}"));
    reasons.sort();
    let [reason, .., last] = reasons;
    assert_eq!(reason, last);
    reason
}

/// A file of another program.
fn foreign_database(db: &TestDb, sql: &str) -> Connection {
    let other = db.plain();
    other.execute_batch(sql).unwrap();
    other
}

const NANOCLAW: &str = "
    CREATE TABLE scheduled_tasks (
        id TEXT PRIMARY KEY, group_folder TEXT NOT NULL, chat_jid TEXT NOT NULL, prompt TEXT NOT NULL,
        schedule_type TEXT NOT NULL, schedule_value TEXT NOT NULL, next_run TEXT, last_run TEXT, last_result TEXT,
        status TEXT DEFAULT 'active', created_at TEXT NOT NULL);
    INSERT INTO scheduled_tasks VALUES ('t1', 'main', 'a@b', 'hi', 'cron', '0 9 * * *', NULL, NULL, NULL, 'active', 'now');";

#[test]
fn a_foreign_table_with_a_name_of_duly_is_refused() {
    for (sql, kind, name) in [
        (NANOCLAW, "table", "scheduled_tasks"),
        (
            "CREATE TABLE Scheduler_Meta (key, value); INSERT INTO Scheduler_Meta VALUES ('program', 'cron')",
            "table",
            "Scheduler_Meta",
        ),
        ("CREATE VIEW overdue_tasks AS SELECT 1", "view", "overdue_tasks"),
        ("CREATE TABLE a (b); CREATE INDEX task_runs_running ON a (b)", "index", "task_runs_running"),
        (
            "CREATE TABLE a (b); CREATE TRIGGER task_runs_removed AFTER DELETE ON a BEGIN SELECT 1; END",
            "trigger",
            "task_runs_removed",
        ),
    ] {
        for mode in ["DELETE", "WAL"] {
            let db = TestDb::new();
            drop(foreign_database(&db, &format!("PRAGMA journal_mode = {mode}; {sql}")));
            let says = format!(
                "it holds a {kind} {name} that is not duly's: give duly a file of its own, or rename that {kind}"
            );
            assert_eq!(refusal_of_each_interface(&db, db.file()), says);
        }
    }
}

#[test]
fn the_log_of_another_program_is_not_checkpointed() {
    let db = TestDb::new();
    let other = foreign_database(&db, &format!("PRAGMA journal_mode = WAL; {NANOCLAW}"));
    // As after a crash: the rows are in the log alone.
    let crashed = TestDb::new();
    for suffix in ["", "-wal"] {
        let name = format!("agent.db{suffix}");
        std::fs::copy(db.home().join(&name), crashed.home().join(&name)).unwrap();
    }
    drop(other);
    let before = folder_contents(crashed.home());
    let error = Client::open(crashed.file()).unwrap_err();
    assert!(error.to_string().contains("a table scheduled_tasks that is not duly's"), "{error}");
    let after = folder_contents(crashed.home());
    assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)), "{:?}", after.keys());
    // The log of duly's own file is checkpointed.
    let client = new_database(&crashed.home().join("ours.db"));
    drop(client);
    assert!(!crashed.home().join("ours.db-wal").exists());
}

fn new_database(file: &Path) -> Client {
    let client = Client::open(file).unwrap();
    client.add(NewTask::cron("digest", "@daily").handler("work")).unwrap();
    client
}

#[test]
fn tables_of_the_application_are_not_changed() {
    let db = TestDb::new();
    drop(foreign_database(
        &db,
        "PRAGMA user_version = 7; PRAGMA application_id = 42;
         CREATE TABLE notes (id INTEGER PRIMARY KEY, text); INSERT INTO notes VALUES (1, 'mine');
         CREATE VIEW loud AS SELECT upper(text) FROM notes;
         CREATE TRIGGER kept AFTER DELETE ON notes BEGIN INSERT INTO notes VALUES (OLD.id, OLD.text); END;",
    ));
    let theirs = "SELECT type, name, sql FROM sqlite_master WHERE name IN ('notes', 'loud', 'kept')";
    let before = db.rows(theirs);
    for _ in 0..2 {
        drop(new_database(db.file()));
        assert_eq!((db.rows(theirs), db.rows("SELECT * FROM notes")), (before.clone(), vec!["1|mine".to_owned()]));
        assert_eq!((db.ask("PRAGMA user_version"), db.ask("PRAGMA application_id")), ("7".into(), "42".into()));
        assert_eq!(
            (db.ask("SELECT count(*) FROM scheduled_tasks"), db.ask("PRAGMA journal_mode")),
            ("1".into(), "wal".into())
        );
    }
    let files: Vec<_> = folder_contents(db.home()).into_keys().collect();
    assert_eq!(files, [db.file()], "a client leaves nothing else behind");
    db.assert_sound();
}

#[test]
fn a_path_that_is_no_database_is_refused_with_its_kind() {
    let db = TestDb::new();
    for (content, says) in [
        ("remember the milk\n".to_owned(), "it is not an SQLite database"),
        ("remember the milk\n".repeat(1000), "it is not an SQLite database"),
        (format!("SQLite format 3\0{}", "x".repeat(5000)), "it is not an SQLite database"),
    ] {
        std::fs::write(db.file(), content).unwrap();
        assert_eq!(refusal_of_each_interface(&db, db.file()), says);
    }
    for path in ["", ":memory:"] {
        let says = "expected the name of a file: what is not on the disk is not durable";
        assert_eq!(refusal_of_each_interface(&db, Path::new(path)), says);
    }
    assert_eq!(refusal_of_each_interface(&db, db.home()), "it is a folder: expected a file");
    if cfg!(unix) {
        let says = "it is a pipe, a socket or a device: expected a file";
        assert_eq!(refusal_of_each_interface(&db, Path::new("/dev/null")), says);
    }
    let nowhere = db.home().join("missing").join("agent.db");
    let error = Client::open(&nowhere).unwrap_err().to_string();
    assert!(error.contains("cannot be made") && error.contains("missing"), "{error}");
    let missing = db.home().join("other.db");
    let error = Client::open_existing(&missing).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use {}: there is no such file", missing.display()));
    assert!(!missing.exists() && !db.home().join("missing").exists());
    // An empty file is a database without tables: tables may be created in it.
    std::fs::write(&missing, "").unwrap();
    let error = Client::open_existing(&missing).unwrap_err();
    assert!(error.to_string().ends_with("it holds no tables of duly"), "{error}");
    assert_eq!(std::fs::read(&missing).unwrap(), b"");
    drop(new_database(&missing));
}

#[test]
fn newer_or_incomplete_tables_are_refused() {
    for (damage, says) in [
        (
            "UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'",
            "its tables are of version 2, written by a newer duly",
        ),
        ("DROP INDEX task_runs_running", "its index task_runs_running is missing"),
        ("DROP TRIGGER scheduled_tasks_removed", "its trigger scheduled_tasks_removed is missing"),
        ("DROP TABLE task_effects", "its table task_effects is missing"),
        ("DROP VIEW stuck_runs", "its view stuck_runs is missing"),
        ("DROP TABLE scheduler_meta", "its table scheduler_meta is damaged"),
    ] {
        let db = TestDb::new();
        drop(new_database(db.file()));
        db.plain().execute_batch(damage).unwrap();
        let reason = refusal_of_each_interface(&db, db.file());
        assert!(reason.starts_with(says), "{damage}: {reason}");
    }
}

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

#[cfg(unix)]
#[test]
fn new_files_are_readable_by_their_owner_alone() {
    let (db, stepper) = TestDb::with_stepper();
    let owners = db.lock_folder();
    let files = ["agent.db", "agent.db-wal", "agent.db-shm"].map(|name| mode(&db.home().join(name)));
    assert_eq!((files, mode(&owners), mode(&owners.join(stepper.owner()))), ([0o600; 3], 0o700, 0o600));
    drop(stepper);

    for allowed in [0o600, 0o640, 0o644, 0o660] {
        set_mode(db.file(), allowed);
        drop(db.client());
        assert_eq!(mode(db.file()), allowed, "an existing mode is kept");
    }
    for open in [0o602, 0o666, 0o777] {
        set_mode(db.file(), open);
        let says = "anyone may write it, and so run commands as you: take that right away (chmod o-w)";
        assert_eq!(refusal_of_each_interface(&db, db.file()), says);
    }
}

/// Opens `$DULY_TEST_OPEN` in a process of its own, and prints the result.
#[test]
#[ignore = "started by other tests"]
fn in_another_process() {
    let Ok(file) = std::env::var("DULY_TEST_OPEN") else { return };
    match Client::open(&file) {
        Ok(client) => {
            println!("opened, {:?}", client.add(NewTask::cron("digest", "@daily").handler("work")).map(|_| ()))
        }
        Err(error) => println!("{error}"),
    }
}

fn another_process(mut program: Command, folder: &Path, file: &str) -> String {
    program.args(["--exact", "opening::in_another_process", "--ignored", "--nocapture"]);
    let output = program.current_dir(folder).env("DULY_TEST_OPEN", file).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_written_is_refused() {
    use std::os::unix::fs::{MetadataExt, chown};
    let db = TestDb::new();
    drop(new_database(db.file()));
    set_mode(db.file(), 0o444);
    let program = std::env::current_exe().unwrap();
    let output = if std::fs::metadata(db.file()).unwrap().uid() == 0 {
        // Root may write any file.
        let other_user = 65_534;
        for path in [db.home(), db.file()] {
            chown(path, Some(other_user), Some(other_user)).unwrap();
        }
        let mut dropped = Command::new("setpriv");
        dropped.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        if dropped.get_program() != "setpriv" || Command::new("setpriv").arg("--version").output().is_err() {
            return skip("no setpriv");
        }
        another_process(dropped, db.home(), "agent.db")
    } else {
        another_process(Command::new(program), db.home(), "agent.db")
    };
    assert!(output.contains("agent.db: it is read-only: make the file and its folder writable"), "{output}");
    set_mode(db.file(), 0o600);
    db.assert_sound();
}

#[test]
fn a_file_name_is_never_a_uri() {
    let db = TestDb::new();
    for name in ["file:agent.db?mode=memory", "file:agent.db"] {
        let output = another_process(Command::new(std::env::current_exe().unwrap()), db.home(), name);
        assert!(output.contains("opened, Ok(())"), "{output}");
        assert!(!db.file().exists(), "{name}");
        let there = Connection::open(db.home().join(name)).unwrap();
        let tasks: i64 = there.query_row("SELECT count(*) FROM scheduled_tasks", [], |row| row.get(0)).unwrap();
        assert_eq!(tasks, 1, "{name}");
    }
}

/// Removes the file while it is open.
fn remove_file(db: &TestDb) -> &'static str {
    std::fs::remove_file(db.file()).unwrap();
    "it was removed or moved while it was open"
}

/// Replaces the file by a copy, like a restored backup.
fn replace(db: &TestDb) -> &'static str {
    let copy = db.home().join("copy.db");
    std::fs::copy(db.file(), &copy).unwrap();
    std::fs::rename(copy, db.file()).unwrap();
    "it was replaced by another file while it was open"
}

#[test]
fn a_scheduler_stops_when_its_file_is_gone() {
    for (harm, stays) in [(remove_file as fn(&TestDb) -> &'static str, false), (replace, true)] {
        let db = TestDb::new();
        let scheduler = Scheduler::builder(db.file()).lease(seconds(1)).start().unwrap();
        let says = harm(&db);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(scheduler.wait()));
        let end = receive(&receiver, "it stops by itself");
        let error = end.expect_err("an error");
        assert!(matches!(&error, Error::UnusableDatabase { path, .. } if path == db.file()), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(db.file().exists(), stays, "no file is created");
    }
}

#[test]
fn a_client_refuses_to_write_to_a_removed_file() {
    for harm in [remove_file as fn(&TestDb) -> &'static str, replace] {
        let (db, mut stepper) = TestDb::with_stepper();
        stepper.client().add(once("now")).unwrap();
        let claims = stepper.step().unwrap();
        let says = harm(&db);
        // A client reports it at once; the loop at its next heartbeat.
        let error = stepper.client().add(NewTask::cron("digest", "@daily").handler("work")).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        stepper.finish(&claims[0], Outcome::succeeded());
        stepper.clock().advance(seconds(20));
        let error = stepper.step().unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_client_reports_a_removed_or_replaced_file_on_read() {
    for harm in [remove_file as fn(&TestDb) -> &'static str, replace] {
        let (db, client) = TestDb::with_client();
        client.add(NewTask::cron("digest", "0 7 * * *").handler("digest")).unwrap();
        let run = client.trigger("digest").unwrap();
        let reason = harm(&db);
        let output = client.run(run).unwrap_err().to_string();
        assert!(output.contains(reason), "{output}");
    }
}

#[test]
fn open_own_refuses_a_file_with_foreign_tables_only() {
    let db = TestDb::new();
    drop(foreign_database(&db, "CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('buy milk')"));
    let before = std::fs::read(db.file()).unwrap();
    let output = Client::open_own(db.file()).unwrap_err().to_string();
    assert!(output.contains("it holds tables of another program and none of duly"), "{output}");
    assert!(std::fs::read(db.file()).unwrap() == before);
    // Once duly's tables are beside them, every command works.
    drop(Client::open(db.file()).unwrap());
    drop(Client::open_own(db.file()).unwrap());
    assert_eq!(db.ask("SELECT text FROM notes"), "buy milk");
    let new = db.home().join("new.db");
    drop(Client::open_own(&new).unwrap());
    assert!(new.exists());
}

#[test]
fn a_database_whose_text_is_not_utf_8_is_refused() {
    for encoding in ["UTF-16le", "UTF-16be"] {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("app.db");
        let own = Connection::open(&file).unwrap();
        own.execute_batch(&format!("PRAGMA encoding = '{encoding}'; CREATE TABLE notes (text TEXT)")).unwrap();
        drop(own);
        let before = std::fs::read(&file).unwrap();
        let refused =
            [Client::open(&file).map(drop).unwrap_err(), Scheduler::builder(&file).start().map(drop).unwrap_err()];
        for error in refused {
            let error = error.to_string();
            assert!(error.contains("app.db") && error.contains(encoding) && error.contains("UTF-8"), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), before, "it was not touched");
    }
}
