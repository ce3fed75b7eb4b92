//! `duly migrate` with many rows, `DULY_ROWS` runs: every row arrives, at both ends, in bounded memory, and a migration that is
//! killed changes nothing.
#![cfg(target_os = "linux")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postgres::fallible_iterator::FallibleIterator;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::fixtures::on_server::session;
use crate::fixtures::{Arrivals, NOON, TestDb, eventually, exited, number, patience, receive};
use crate::postgres::database;
use crate::postgres::migrate::TABLES;

/// Runs without `DULY_ROWS`.
const ROWS: u64 = 2_000;
/// Killed migrations in each direction without `DULY_ROUNDS`.
const ROUNDS: usize = 1;
/// Runs with as much output as a run keeps, and their bytes.
const LONG: u64 = 300;
const OUTPUT: u64 = 256 * 1024;
/// Most memory of the program, in KiB: all long outputs together are larger.
const MEMORY: u64 = 64 * 1024;

/// JSON is written as PostgreSQL writes it, so that rows are equal by their text.
const ROWS_OF: &str = include_str!("moving/rows.sql");

/// A file with this many runs.
fn source(runs: u64) -> TestDb {
    let db = TestDb::new();
    db.stepper(NOON).stop().expect("an end");
    let text = ROWS_OF.replace(":runs", &runs.to_string()).replace(":long", &LONG.to_string());
    db.plain().execute_batch(&text.replace(":output", &OUTPUT.to_string())).expect("rows");
    db
}

/// The columns of a table in the file, in the order of their names.
fn columns(file: &Connection, table: &str) -> Vec<String> {
    let mut statement = file.prepare("SELECT name FROM pragma_table_info(?1) ORDER BY name").expect("columns");
    let names = statement.query_map([table], |row| row.get(0)).expect("columns");
    names.collect::<Result<_, _>>().expect("columns")
}

/// Calls `each` with every row of a table in the file, in the order of its key, as texts.
fn rows_of_file(file: &Connection, (table, key): (&str, &str), mut each: impl FnMut(&[Option<&str>])) {
    let texts: Vec<String> = columns(file, table).iter().map(|name| format!("CAST({name} AS TEXT)")).collect();
    let text = format!("SELECT {} FROM {table} ORDER BY {key}", texts.join(", "));
    let mut statement = file.prepare(&text).expect("rows");
    let mut rows = statement.query([]).expect("rows");
    while let Some(row) = rows.next().expect("a row") {
        let cell = |at: usize| match row.get_ref(at).expect("a cell") {
            ValueRef::Null => None,
            cell => Some(cell.as_str().expect("a text")),
        };
        each(&(0..texts.len()).map(cell).collect::<Vec<_>>());
    }
}

/// Calls `each` with every row of a table on the server, as [`rows_of_file`] does.
fn rows_of_server(
    address: &str,
    columns: &[String],
    (table, key): (&str, &str),
    mut each: impl FnMut(&[Option<&str>]),
) {
    let texts: Vec<String> = columns.iter().map(|name| format!("{name}::text")).collect();
    let mut session = session(address);
    // By the columns of the table: those of the answer are texts.
    let key = key.split(", ").map(|name| format!("t.{name}")).collect::<Vec<_>>().join(", ");
    let text = format!("SELECT {} FROM {table} t ORDER BY {key}", texts.join(", "));
    let mut rows = session.query_raw(&text, std::iter::empty::<i64>()).expect("rows");
    while let Some(row) = rows.next().expect("a row") {
        each(&(0..texts.len()).map(|at| row.get::<_, Option<&str>>(at)).collect::<Vec<_>>());
    }
}

/// The number of rows of each table, and a digest of them all.
type Digest = Vec<(u64, u64)>;

fn digest(mut rows: impl FnMut((&'static str, &'static str), &mut dyn FnMut(&[Option<&str>]))) -> Digest {
    let of = |table| {
        let (mut count, mut hasher) = (0, DefaultHasher::new());
        rows(table, &mut |row| {
            count += 1;
            row.hash(&mut hasher);
        });
        (count, hasher.finish())
    };
    TABLES.into_iter().map(of).collect()
}

fn digest_of_file(path: &Path) -> Digest {
    let file = Connection::open(path).expect("a file");
    digest(|table, each| rows_of_file(&file, table, each))
}

fn digest_of_server(address: &str, file: &Path) -> Digest {
    let file = Connection::open(file).expect("a file");
    digest(|table, each| rows_of_server(address, &columns(&file, table.0), table, each))
}

/// Fails unless each row of the file is on the server, and no other. Both are read side by side.
fn assert_equal(path: &Path, address: &str) {
    let file = Connection::open(path).expect("a file");
    for table in TABLES {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<Option<String>>>(1000);
        let names = columns(&file, table.0);
        let mut compared = 0_u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                rows_of_server(address, &names, table, |row| {
                    // The other side has failed, and says so.
                    let _ = sender.send(row.iter().map(|cell| cell.map(str::to_owned)).collect());
                });
            });
            rows_of_file(&file, table, |row| {
                let other = receive(&receiver, &format!("{} as in {row:?}", table.0));
                assert!(row.iter().copied().eq(other.iter().map(Option::as_deref)), "{}: {row:?}, {other:?}", table.0);
                compared += 1;
            });
            assert_eq!(receiver.within(patience()), Err(false), "{} has more rows on the server", table.0);
        });
        assert!(compared > 0, "no row in {}", table.0);
    }
}

/// Fails unless two files have the same rows.
fn assert_equal_files(one: &Path, other: &Path) {
    let file = Connection::open(one).expect("a file");
    file.execute("ATTACH ?1 AS other", [other.to_str()]).expect("the other file");
    for (table, _) in TABLES {
        for (from, without) in [("main", "other"), ("other", "main")] {
            let text =
                format!("SELECT count(*) FROM (SELECT * FROM {from}.{table} EXCEPT SELECT * FROM {without}.{table})");
            let differing: i64 = file.query_row(&text, [], |row| row.get(0)).expect("a number");
            assert_eq!(differing, 0, "rows of {table} in {from} only");
        }
    }
}

fn program(from: &str, to: &str) -> Child {
    let mut command = Command::new(std::env::var_os("DULY_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_duly").into()));
    command.args(["migrate", "--from", from, "--to", to]).stdout(Stdio::null());
    command.spawn().expect("the program")
}

/// Waits for the end of the program. Returns its time and the most memory that it used, in KiB.
fn measured(mut program: Child, what: &str) -> u64 {
    let (begin, mut most) = (Instant::now(), 0);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap_or_default();
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|line| line.split_whitespace().next());
        most = most.max(peak.and_then(|peak| peak.parse().ok()).unwrap_or(0));
        if let Some(status) = program.try_wait().expect("its end") {
            assert!(status.success(), "{what}: {status}");
            println!("{what}: {:.1} s, at most {} MiB", begin.elapsed().as_secs_f64(), most / 1024);
            return most;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Kills the program when `reached` holds, if it has not ended before.
fn killed(mut program: Child, mut reached: impl FnMut() -> bool) {
    let ended = loop {
        match program.try_wait().expect("its end") {
            None if reached() => break None,
            None => std::thread::park_timeout(Duration::from_millis(1)),
            ended => break ended,
        }
    };
    assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
    let _ = program.kill();
    exited(&mut program, "the migration");
}

/// Waits until the server has undone what a killed migration did.
fn wait_for_the_end_of(address: &str) {
    let mut other = session(address);
    eventually("the killed session ends", || {
        let text = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'mover'";
        other.query(text, &[]).expect("sessions").is_empty()
    });
}

/// Whether `migrate` reads `scheduler_events`, one of the last tables: nearly all rows are written then.
const LATE: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mover' AND query LIKE 'SELECT%scheduler_events%'";

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn many_rows_move_to_a_server_and_back_and_a_migration_that_is_killed_changes_nothing() {
    let Some(address) = database() else { return };
    let mover = address.replace("schema=", "application_name=mover&schema=");
    let (runs, rounds) = (number("DULY_ROWS", ROWS), number("DULY_ROUNDS", ROUNDS));
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("{runs} runs, {rounds} kills in each direction, DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let db = source(runs);
    let (file, home) = (db.file().to_str().expect("a path"), db.home());
    let original = digest_of_file(db.file());
    drop(duly::Client::open(&address).expect("tables"));
    let empty: Digest = digest_of_server(&address, db.file());
    assert!(empty.iter().all(|(rows, _)| *rows == 0));

    // Killed on the way to the server: at a size of its tables, or while they are read again.
    let mut other = session(&address);
    let mut sizes = session(&address);
    let mut size = move || {
        let text = "SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint FROM pg_class c
                     WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND c.relkind = 'r'";
        sizes.query_one(text, &[]).expect("a size").get::<_, i64>(0)
    };
    let mut late = session(&address);
    let mut is_late = move || late.query_one(LATE, &[]).expect("sessions").get::<_, i64>(0) > 0;
    let begin = size();
    let expected = i64::try_from(runs * 400).expect("a size");
    let mut undone = 0;
    while undone < rounds {
        let (grown, at_end) = (random.i64(..=expected), random.u8(..3) == 0);
        killed(program(file, &mover), || if at_end { is_late() } else { size() - begin >= grown });
        wait_for_the_end_of(&address);
        assert_eq!(digest_of_file(db.file()), original, "after a kill");
        match digest_of_server(&address, db.file()) {
            left if left == empty => {
                undone += 1;
                other.batch_execute("VACUUM").expect("the size of empty tables");
            }
            // The kill came after the commit.
            left => {
                assert_eq!(left, original, "after a kill");
                let tables = TABLES.map(|(table, _)| table).join(", ");
                other
                    .batch_execute(&format!("TRUNCATE {tables}; DELETE FROM scheduler_meta WHERE key = 'zone_data'"))
                    .expect("empty tables");
            }
        }
    }

    let most = measured(program(file, &mover), "to the server");
    assert!(most < MEMORY, "{most} KiB");
    assert_equal(db.file(), &address);
    let on_server = digest_of_server(&address, db.file());
    assert_eq!(on_server, original);

    // Killed on the way back, at a size of the new file.
    let back = home.join("back.db");
    let size = |path: &Path| {
        let sizes =
            ["", "-wal"].map(|end| std::fs::metadata(format!("{}{end}", path.display())).map_or(0, |file| file.len()));
        sizes.iter().sum::<u64>()
    };
    let expected = size(db.file()) / 2;
    undone = 0;
    while undone < rounds {
        let (grown, at_end) = (random.u64(..=expected), random.u8(..3) == 0);
        killed(
            program(&mover, back.to_str().expect("a path")),
            || if at_end { is_late() } else { size(&back) >= grown },
        );
        wait_for_the_end_of(&address);
        assert_eq!(digest_of_server(&address, db.file()), on_server, "after a kill");
        // The file may not exist yet.
        let left = if size(&back) == 0 { empty.clone() } else { digest_of_file(&back) };
        if left == empty {
            undone += 1;
        } else {
            assert_eq!(left, original, "after a kill");
            ["", "-wal", "-shm"].iter().for_each(|end| _ = std::fs::remove_file(format!("{}{end}", back.display())));
        }
    }

    let most = measured(program(&mover, back.to_str().expect("a path")), "back to a file");
    assert!(most < MEMORY, "{most} KiB");
    assert_equal_files(db.file(), &back);
    assert_equal(&back, &address);
    // What is not in a row: the next number of each table.
    let numbers = |path: &Path| -> Vec<(String, i64)> {
        let file = Connection::open(path).expect("a file");
        let mut statement = file.prepare("SELECT name, seq FROM sqlite_sequence ORDER BY name").expect("numbers");
        let numbers = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("numbers");
        numbers.collect::<Result<_, _>>().expect("numbers")
    };
    assert_eq!(numbers(&back), numbers(db.file()));
}
