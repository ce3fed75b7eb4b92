//! Processes killed with SIGKILL before, within and after an effect, and around an outcome that is committed together with rows
//! of the application.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::{BoxError, Context, NewTask, Scheduler};

use crate::fixtures::{Process, TestDb, eventually, overdue, retry_soon, seconds, test_process};

/// The variable that holds the database of another process.
const FILE: &str = "DULY_TEST_DEEDS_FILE";
/// The variable that holds the place at which its handlers block.
const STOP: &str = "DULY_TEST_DEEDS_STOP";

/// The outside world: a file to which each effect adds a line.
fn effects_file(file: &Path) -> PathBuf {
    file.with_extension("world")
}

/// Created when a handler blocks.
fn marker(file: &Path) -> PathBuf {
    file.with_extension("here")
}

/// Not a test by itself: the scheduler in the processes of the tests below. It drains when its standard input ends.
#[test]
fn scheduler_entry() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let stop = std::env::var(STOP).unwrap_or_default();
    let database = file.clone();
    let block_at = move |place: &str| {
        if place == stop {
            File::create(marker(&file)).expect("a marker");
            loop {
                std::thread::park();
            }
        }
    };
    let (outside, pause) = (effects_file(&database), block_at.clone());
    let pay = move |run: &Context| -> Result<String, BoxError> {
        pause("before");
        let act = || {
            pause("within");
            OpenOptions::new().append(true).open(&outside)?.write_all(b"paid\n")?;
            pause("done");
            Ok("receipt".to_owned())
        };
        let found = || Ok((!std::fs::read(&outside)?.is_empty()).then(|| "found".to_owned()));
        let value = if run.payload::<bool>()? { run.effect_or("pay", found, act)? } else { run.effect("pay", act)? };
        pause("after");
        Ok(value)
    };
    let import = move |run: &Context| -> Result<(), BoxError> {
        block_at("before");
        run.finish(|tx| {
            // Two rows, so that half of them would show.
            for part in 1..=2 {
                tx.execute("INSERT INTO imported (run, part) VALUES (?1, ?2)", [run.run_id(), part])?;
                block_at("within");
            }
            Ok(())
        })?;
        block_at("after");
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

fn start(db: &TestDb, stop: &str) -> Process {
    Process::spawn(test_process("effect_kills::scheduler_entry").env(FILE, db.file()).env(STOP, stop))
}

fn due(name: &str, handler: &str) -> NewTask {
    retry_soon(overdue(name).handler(handler), 100)
}

fn database() -> TestDb {
    let db = TestDb::new();
    drop(db.client());
    let table = "CREATE TABLE imported (run INTEGER, part INTEGER) STRICT; CREATE INDEX imported_run ON imported (run)";
    db.plain().execute_batch(table).unwrap();
    File::create_new(effects_file(db.file())).expect("the outside world");
    db
}

/// Kills a scheduler when its handler is at a place, then runs another until the run is final.
fn kill_at(db: &TestDb, place: &str) {
    let killed = start(db, place);
    eventually("the handler is there", || marker(db.file()).exists());
    killed.kill();
    let next = start(db, "nowhere");
    eventually("the run is over", || {
        db.ask("SELECT count(*) FROM task_runs WHERE status = 'queued' OR status = 'running' OR status = 'failed'")
            == "0"
    });
    next.end();
    db.assert_sound();
}

#[test]
fn an_effect_whose_process_is_killed_is_done_once_or_in_doubt() {
    for (place, looks, effects, end) in [
        ("before", false, 1, "succeeded|2|\"receipt\"|-"),
        ("within", false, 0, "dead|2|-|effect \"pay\" of run 1 of \"subject\" is in doubt"),
        ("done", false, 1, "dead|2|-|effect \"pay\" of run 1 of \"subject\" is in doubt"),
        ("after", false, 1, "succeeded|2|\"receipt\"|-"),
        ("before", true, 1, "succeeded|2|\"receipt\"|-"),
        ("within", true, 1, "succeeded|2|\"receipt\"|-"),
        ("done", true, 1, "succeeded|2|\"found\"|-"),
        ("after", true, 1, "succeeded|2|\"receipt\"|-"),
    ] {
        let db = database();
        db.client().add(due("subject", "pay").payload(looks)).unwrap();
        kill_at(&db, place);
        let done = std::fs::read_to_string(effects_file(db.file())).unwrap().lines().count();
        assert_eq!(done, effects, "{place}, {looks}");
        let row = db.rows("SELECT status, attempt, result, error FROM task_runs").concat();
        assert!(row.starts_with(end), "{place}, {looks}: {row}");
    }
}

#[test]
fn a_run_whose_process_is_killed_around_its_end_is_finished_once() {
    for (place, end) in
        [("before", "subject|succeeded|2"), ("within", "subject|succeeded|2"), ("after", "subject|succeeded|1")]
    {
        let db = database();
        db.client().add(due("subject", "import")).unwrap();
        kill_at(&db, place);
        assert_eq!(db.states(), [end], "{place}");
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
    let db = database();
    let client = db.client();
    // One statement reads both tables from one snapshot.
    let disagree = "
        SELECT 'imported', run FROM imported WHERE run NOT IN (SELECT id FROM task_runs WHERE status = 'succeeded')
         UNION ALL
        SELECT 'succeeded', id FROM task_runs r
         WHERE status = 'succeeded' AND (SELECT group_concat(part) FROM imported WHERE run = r.id) IS NOT '1,2'";
    let imported = || db.number::<usize>("SELECT count(*) FROM imported") / 2;
    for round in 0..ROUNDS {
        let tasks = (0..TASKS).map(|n| due(&format!("round-{round}/{n}"), "import"));
        client.add_all(tasks).unwrap();
        // Unfinished runs remain for the next round.
        let until = (imported() + random.usize(0..TASKS)).min((round + 1) * TASKS);
        let other = start(&db, "nowhere");
        eventually("enough are imported", || imported() >= until);
        assert_eq!(db.rows(disagree), Vec::<String>::new(), "round {round}, while it runs");
        other.kill();
        assert_eq!(db.rows(disagree), Vec::<String>::new(), "round {round}");
    }
    let last = start(&db, "nowhere");
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
