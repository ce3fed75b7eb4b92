//! The n-th write or sync fails while handlers write themselves: effects, and ends that are committed with rows of their own.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use duly::{BoxError, Context, NewTask, Scheduler};

use crate::disk::injected::each;
use crate::disk::soon;
use crate::disk::tools::{has_strace, injected, orders, without};
use crate::fixtures::{TestDb, at, eventually, seconds};

/// The file on which another process of this test program is to run a scheduler.
const FILE: &str = "DULY_TEST_DISK_FILE";

/// The outside world: a file to which each deed adds a line.
fn world(file: &Path, name: &str) -> PathBuf {
    file.with_extension(name)
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

/// Not a test of its own: a scheduler in a process of its own, until nothing is left to do. One that cannot start ends at once.
#[test]
fn as_a_scheduler() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let pay = move |run: &Context| -> Result<String, BoxError> {
        let outside = world(&file, run.task());
        let deed = || {
            OpenOptions::new().append(true).create(true).open(&outside)?.write_all(b"paid\n")?;
            Ok("receipt".to_owned())
        };
        let found = || Ok((lines(&outside) > 0).then(|| "receipt".to_owned()));
        Ok(if run.task() == "looks" { run.effect_or("pay", found, deed)? } else { run.effect("pay", deed)? })
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
    assert_eq!(scheduler.shutdown(seconds(30)).expect("a shutdown in order").unfinished, 0);
}

/// It is done once, looked for or not; its rows are there with the end of its run, and as often.
#[test]
fn whichever_write_of_a_handler_fails_its_deed_is_done_once() {
    if !has_strace() {
        return without("strace", "not tried");
    }
    for (calls, error, some) in [("pwrite64", "EIO", [2, 5, 10, 14]), ("fsync", "EIO", [1, 2, 3, 4])] {
        let failed = each(calls, error, &some, |what, when| {
            let db = TestDb::new();
            let client = db.client();
            let due =
                |name: &str, handler: &str| soon(NewTask::once(name, at("2020-01-01T00:00:00Z")).handler(handler));
            client.add_all([due("looks", "pay"), due("plain", "pay"), due("rows", "import")]).unwrap();
            db.plain().execute_batch("CREATE TABLE imported (run, part, PRIMARY KEY (run, part))").unwrap();
            let log = db.home().join("strace");
            let this = std::env::current_exe().expect("the test program");
            let run = |program: &mut Command| {
                let program = program.args(["--exact", "disk::effects::as_a_scheduler", "--nocapture"]);
                let status = program.env(FILE, db.file()).stdout(Stdio::null()).status().expect("a process");
                assert!(status.success(), "{what}: {status}");
            };
            let orders = orders(&db, &log, calls, error, when);
            run(Command::new("strace").args(orders).arg(&this));
            run(&mut Command::new(&this));
            let stand = |name: &str| {
                db.ask(&format!(
                    "SELECT r.status || coalesce(': ' || r.error, '') FROM task_runs r
                       JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = '{name}'"
                ))
            };
            assert_eq!((stand("looks").as_str(), lines(&world(db.file(), "looks"))), ("succeeded", 1), "{what}");
            // That a deed is done is said again and again: one fault leaves none in doubt.
            assert_eq!((stand("plain").as_str(), lines(&world(db.file(), "plain"))), ("succeeded", 1), "{what}");
            assert_eq!(stand("rows"), "succeeded", "{what}");
            assert_eq!(db.ask("SELECT count(*) FROM imported"), "2", "{what}");
            db.assert_sound();
            injected(&log) > 0
        });
        println!("{calls}, {error}: {failed} places");
        assert!(failed > 1, "nothing was tried");
    }
}
