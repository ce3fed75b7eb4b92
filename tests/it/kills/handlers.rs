//! A scheduler with closures in a process of its own: this test binary, restricted to `scheduler_entry`. What a handler does is in the
//! payload of its task.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::{BoxError, Context, Scheduler};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixtures::number;
use crate::kills::journal::{self, Journal, NUMBER, Note};
use crate::selftest::checker::Line;
use crate::sidecar::signal;

/// The folder of the database of another process.
pub(crate) const FOLDER: &str = "DULY_TEST_FOLDER";
/// Its lease, the number of its worker threads, and its handlers, separated by commas.
pub(crate) const LEASE: &str = "DULY_TEST_LEASE";
pub(crate) const WORKERS: &str = "DULY_TEST_WORKERS";
pub(crate) const HANDLERS: &str = "DULY_TEST_HANDLERS";

/// The handlers that end with rows of their own, in the table `kept`, and with an effect. Others only do what the payload says.
pub(crate) const FINISH: &str = "finish";
pub(crate) const PAY: &str = "pay";

/// The file that exists when a handler has stopped at its place.
pub(crate) const STOPPED: &str = "stopped";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Work {
    millis: u64,
    fails_first: bool,
    /// `panic`, `hang`, or `kill` for its own process.
    does: String,
    /// The place at which the first attempt stops for ever.
    stops: String,
    /// Whether it looks for an effect that is in doubt.
    looks: bool,
}

/// Not a test by itself: the scheduler. It drains when its standard input ends.
#[test]
fn scheduler_entry() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let lease = duly::parse_duration(&std::env::var(LEASE).expect("a lease")).expect("a lease");
    let mut builder = Scheduler::builder(folder.join("agent.db"))
        .workers(number(WORKERS, 4))
        .poll(Duration::from_millis(20))
        .lease(lease);
    for name in std::env::var(HANDLERS).expect("handlers").split(',') {
        let (folder, journal, process) = (folder.clone(), journal::open(&folder), number(NUMBER, 0));
        builder = builder.handler(name, move |run: &Context| act(run, &folder, &journal, process));
    }
    match builder.start() {
        Ok(scheduler) => {
            eprintln!("scheduler started, with closures");
            std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
            assert_eq!(scheduler.shutdown(Duration::from_secs(30)).expect("a shutdown").unfinished, 0);
        }
        Err(error) => panic!("error: {error}"),
    }
}

fn act(run: &Context, folder: &Path, journal: &File, process: u32) -> Result<Value, BoxError> {
    let (id, attempt, scheduled_for, task) = (run.run_id(), run.attempt(), run.scheduled_for(), run.task().to_owned());
    journal::write(journal, &Line::Began { run: id, attempt, process, scheduled_for, task })?;
    // An `on_dead` run has the dead run as its payload.
    let work: Work = run.payload().unwrap_or_default();
    let stop_at = |place: &str| {
        if attempt == 1 && work.stops == place {
            File::create(folder.join(STOPPED)).expect("a file");
            park();
        }
    };
    match &*work.does {
        "panic" => panic!("as it always does"),
        "hang" => park(),
        "kill" => {
            signal("KILL", &std::process::id().to_string());
            park()
        }
        _ => {}
    }
    stop_at("before");
    let stopped = run.wait_cancelled(Duration::from_millis(work.millis));
    let mut answer = json!(null);
    if run.handler() == PAY {
        let pay = || {
            stop_at("within");
            std::io::Write::write_all(&mut &*journal, format!("paid {id} {attempt}\n").as_bytes())?;
            stop_at("done");
            Ok(json!("receipt"))
        };
        let paid = |note: &Note| matches!(note, Note::Paid((run, _)) if *run == id);
        let found = || Ok(Journal::read(folder).notes.iter().any(paid).then(|| json!("found")));
        answer = if work.looks { run.effect_or("pay", found, pay)? } else { run.effect("pay", pay)? };
        stop_at("after");
    }
    journal::write(journal, &Line::Ended { run: id, attempt })?;
    if stopped {
        return Err("asked to stop".into());
    }
    if attempt == 1 && work.fails_first {
        return Err("the first attempt fails".into());
    }
    if run.handler() == FINISH {
        run.finish(|tx| {
            // Two rows, so that half of them would show.
            for part in 1..=2 {
                tx.execute("INSERT INTO kept (run, attempt, part) VALUES (?1, ?2, ?3)", (id, attempt, part))?;
                stop_at("within");
            }
            Ok(())
        })?;
        stop_at("after");
    }
    Ok(answer)
}

fn park() -> ! {
    loop {
        std::thread::park();
    }
}
