//! The n-th write or sync fails while handlers write: effects, and outcomes committed with rows of the application.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use duly::{BoxError, Context, Scheduler};

use crate::disk::injected::each;
use crate::disk::soon;
use crate::disk::tools::{arguments, has_strace, injected, skip_without};
use crate::fixtures::{TestDb, eventually, overdue, patience};

/// The file on which a scheduler in another process runs.
const FILE: &str = "DULY_TEST_DISK_FILE";

/// Returns a file outside of the database, to which each effect adds a line.
fn effect_file(file: &Path, name: &str) -> PathBuf {
    file.with_extension(name)
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

/// Not a test of its own: runs a scheduler until nothing is left to do. If it cannot start, the process exits.
#[test]
fn scheduler_entry() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let pay = move |run: &Context| -> Result<String, BoxError> {
        let outside = effect_file(&file, run.task());
        let effect = || {
            OpenOptions::new().append(true).create(true).open(&outside)?.write_all(b"paid\n")?;
            Ok("receipt".to_owned())
        };
        let found = || Ok((lines(&outside) > 0).then(|| "receipt".to_owned()));
        Ok(if run.task() == "looks" { run.effect_or("pay", found, effect)? } else { run.effect("pay", effect)? })
    };
    let import = |run: &Context| -> Result<(), BoxError> {
        run.finish(|tx| {
            // Two rows, so that half of them would show.
            for part in 1..=2 {
                tx.execute("INSERT INTO imported (run, part) VALUES (?1, ?2)", [run.run_id(), part])?;
            }
            Ok(())
        })?;
        Ok(())
    };
    let file = std::env::var_os(FILE).expect("a file");
    let builder = Scheduler::builder(file).workers(1).poll(Duration::from_millis(20)).handler("pay", pay);
    let Ok(scheduler) = builder.handler("import", import).start() else { return };
    eventually("nothing is left to do", || scheduler.is_idle().unwrap_or_default());
    assert_eq!(scheduler.shutdown(patience()).expect("a shutdown in order").unfinished, 0);
}

/// The effect is done once, with and without a check; its rows are committed with the outcome, and as often.
#[test]
fn after_any_failed_write_of_a_handler_its_effect_is_done_once() {
    if !has_strace() {
        return skip_without("strace", "not tried");
    }
    for (calls, error, some) in [("pwrite64", "EIO", [2, 5, 10, 14]), ("fsync", "EIO", [1, 2, 3, 4])] {
        let failed = each(calls, error, &some, |what, when| {
            let (db, client) = TestDb::with_client();
            let due = |name: &str, handler: &str| soon(overdue(name).handler(handler));
            client.add_all([due("looks", "pay"), due("plain", "pay"), due("rows", "import")]).unwrap();
            db.plain().execute_batch("CREATE TABLE imported (run, part, PRIMARY KEY (run, part))").unwrap();
            let log = db.home().join("strace");
            let this = std::env::current_exe().expect("the test program");
            let run = |program: &mut Command| {
                let program = program.args(["--exact", "disk::effects::scheduler_entry", "--nocapture"]);
                let exit = program.env(FILE, db.file()).stdout(Stdio::null()).status().expect("a process");
                assert!(exit.success(), "{what}: {exit}");
            };
            let arguments = arguments(&db, &log, calls, error, when);
            run(Command::new("strace").args(arguments).arg(&this));
            run(&mut Command::new(&this));
            let status = |name: &str| {
                db.ask(&format!(
                    "SELECT r.status || coalesce(': ' || r.error, '') FROM task_runs r
                       JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = '{name}'"
                ))
            };
            assert_eq!((status("looks").as_str(), lines(&effect_file(db.file(), "looks"))), ("succeeded", 1), "{what}");
            // That an effect is done is recorded again and again: one fault leaves none in doubt.
            assert_eq!((status("plain").as_str(), lines(&effect_file(db.file(), "plain"))), ("succeeded", 1), "{what}");
            assert_eq!(status("rows"), "succeeded", "{what}");
            assert_eq!(db.ask("SELECT count(*) FROM imported"), "2", "{what}");
            db.assert_sound();
            injected(&log) > 0
        });
        println!("{calls}, {error}: {failed} places");
        assert!(failed > 1, "nothing was tried");
    }
}
