//! Processes killed with SIGKILL around their deeds: before, within and after an effect, and anywhere around an end that is
//! committed together with rows of the application's.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duly::{BoxError, Context, NewTask, RetryPolicy, Scheduler};

use crate::fixtures::{TestDb, at, eventually, seconds};

/// The file on which another process of this test program is to run a scheduler.
const FILE: &str = "DULY_TEST_DEEDS_FILE";
/// Where its handlers stop for ever, and say that they are there.
const STOP: &str = "DULY_TEST_DEEDS_STOP";

/// The outside world: a file to which each deed adds a line.
fn world(file: &Path) -> PathBuf {
    file.with_extension("world")
}

/// Written where a handler stands still.
fn marker(file: &Path) -> PathBuf {
    file.with_extension("here")
}

/// Not a test of its own: where the processes of the tests below begin. Ends, in order, with its standard input.
#[test]
fn as_a_scheduler() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let stop = std::env::var(STOP).unwrap_or_default();
    let database = file.clone();
    let stand = move |place: &str| {
        if place == stop {
            File::create(marker(&file)).expect("a marker");
            loop {
                std::thread::park();
            }
        }
    };
    let (outside, pause) = (world(&database), stand.clone());
    let pay = move |run: &Context| -> Result<String, BoxError> {
        pause("before");
        let deed = || {
            pause("within");
            OpenOptions::new().append(true).open(&outside)?.write_all(b"paid\n")?;
            pause("done");
            Ok("receipt".to_owned())
        };
        let found = || Ok((!std::fs::read(&outside)?.is_empty()).then(|| "found".to_owned()));
        let came = if run.payload::<bool>()? { run.effect_or("pay", found, deed)? } else { run.effect("pay", deed)? };
        pause("after");
        Ok(came)
    };
    let import = move |run: &Context| -> Result<(), BoxError> {
        stand("before");
        run.finish(|tx| {
            // Two rows, so that half of them would show.
            for part in 1..=2 {
                tx.execute("INSERT INTO imported (run, part) VALUES (?1, ?2)", [run.run_id(), part])?;
                stand("within");
            }
            Ok(())
        })?;
        stand("after");
        Ok(())
    };
    let scheduler = Scheduler::builder(database)
        .handler("pay", pay)
        .handler("import", import)
        .poll(Duration::from_millis(20))
        .start()
        .expect("a scheduler");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
    assert_eq!(scheduler.shutdown(seconds(30)).expect("a shutdown in order").unfinished, 0);
}

/// A scheduler in a process of its own, which a test that fails leaves no trace of.
struct Other(Child);

impl Other {
    fn start(db: &TestDb, stop: &str) -> Self {
        let program = std::env::current_exe().expect("the test program");
        let child = Command::new(program)
            .args(["--exact", "effect_kills::as_a_scheduler", "--nocapture"])
            .env(FILE, db.file())
            .env(STOP, stop)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a second process");
        Other(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("a process that can be killed");
        self.0.wait().expect("its end");
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("its end").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn due(name: &str, handler: &str) -> NewTask {
    let retry =
        RetryPolicy { max_attempts: 100, backoff: Duration::from_millis(10), max_backoff: Duration::from_millis(20) };
    NewTask::once(name, at("2025-01-01T00:00:00Z")).handler(handler).retry(retry)
}

fn db() -> TestDb {
    let db = TestDb::new();
    drop(db.client());
    let table = "CREATE TABLE imported (run INTEGER, part INTEGER) STRICT; CREATE INDEX imported_run ON imported (run)";
    db.plain().execute_batch(table).unwrap();
    File::create_new(world(db.file())).expect("the outside world");
    db
}

/// Kills a scheduler when its handler stands at a place, and lets another one go on until the run is over.
fn killed_at(db: &TestDb, place: &str) {
    let killed = Other::start(db, place);
    eventually("the handler stands there", || marker(db.file()).exists());
    killed.kill();
    let next = Other::start(db, "nowhere");
    eventually("the run is over", || {
        db.ask("SELECT count(*) FROM task_runs WHERE status = 'queued' OR status = 'running' OR status = 'failed'")
            == "0"
    });
    next.end();
    db.assert_sound();
}

#[test]
fn an_effect_whose_process_is_killed_is_done_once_or_in_doubt() {
    for (place, looks, deeds, end) in [
        ("before", false, 1, "succeeded|2|\"receipt\"|-"),
        ("within", false, 0, "dead|2|-|effect \"pay\" of run 1 of \"subject\" is in doubt"),
        ("done", false, 1, "dead|2|-|effect \"pay\" of run 1 of \"subject\" is in doubt"),
        ("after", false, 1, "succeeded|2|\"receipt\"|-"),
        ("before", true, 1, "succeeded|2|\"receipt\"|-"),
        ("within", true, 1, "succeeded|2|\"receipt\"|-"),
        ("done", true, 1, "succeeded|2|\"found\"|-"),
        ("after", true, 1, "succeeded|2|\"receipt\"|-"),
    ] {
        let db = db();
        db.client().add(due("subject", "pay").payload(looks)).unwrap();
        killed_at(&db, place);
        let done = std::fs::read_to_string(world(db.file())).unwrap().lines().count();
        assert_eq!(done, deeds, "{place}, {looks}");
        let row = db.rows("SELECT status, attempt, result, error FROM task_runs").concat();
        assert!(row.starts_with(end), "{place}, {looks}: {row}");
    }
}

#[test]
fn a_run_whose_process_is_killed_around_its_end_is_over_once() {
    for (place, end) in [("before", "succeeded|2"), ("within", "succeeded|2"), ("after", "succeeded|1")] {
        let db = db();
        db.client().add(due("subject", "import")).unwrap();
        killed_at(&db, place);
        assert_eq!(db.rows("SELECT status, attempt FROM task_runs"), [end], "{place}");
        assert_eq!(db.rows("SELECT run, part FROM imported"), ["1|1", "1|2"], "{place}");
    }
}

#[test]
fn rows_and_outcomes_never_disagree_however_often_the_process_is_killed() {
    const ROUNDS: usize = 100;
    const TASKS: usize = 40;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let db = db();
    let client = db.client();
    // One look, one moment: the run ids of either side.
    let disagree = "
        SELECT 'imported', run FROM imported WHERE run NOT IN (SELECT id FROM task_runs WHERE status = 'succeeded')
         UNION ALL
        SELECT 'succeeded', id FROM task_runs r
         WHERE status = 'succeeded' AND (SELECT group_concat(part) FROM imported WHERE run = r.id) IS NOT '1,2'";
    let imported = || db.ask("SELECT count(*) FROM imported").parse::<usize>().unwrap() / 2;
    for round in 0..ROUNDS {
        let tasks = (0..TASKS).map(|n| due(&format!("round-{round}/{n}"), "import"));
        client.add_all(tasks).unwrap();
        // Some are left over, and the next round has them too.
        let until = (imported() + random.usize(0..TASKS)).min((round + 1) * TASKS);
        let other = Other::start(&db, "nowhere");
        eventually("so many are imported", || imported() >= until);
        assert_eq!(db.rows(disagree), Vec::<String>::new(), "round {round}, at work");
        other.kill();
        assert_eq!(db.rows(disagree), Vec::<String>::new(), "round {round}");
    }
    let last = Other::start(&db, "nowhere");
    eventually("all are imported", || imported() == ROUNDS * TASKS);
    last.end();
    assert_eq!(db.rows(disagree), Vec::<String>::new());
    assert_eq!(
        db.rows("SELECT status, count(*) FROM task_runs GROUP BY status"),
        [format!("succeeded|{}", ROUNDS * TASKS)]
    );
    let lost = db.ask("SELECT count(*) FROM task_attempts WHERE outcome = 'lost'");
    println!("{} runs, {lost} lost attempts", ROUNDS * TASKS);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'lost' AND outcome <> 'released'"), "0");
    db.assert_sound();
}
