//! Processes killed with SIGKILL before, within and after an effect, and around an outcome that is committed together with rows
//! of the application. `kills::soaks` does the same at random.
#![cfg(target_os = "linux")]

use duly::NewTask;
use serde_json::json;

use crate::fixtures::{eventually, overdue, retry_soon};
use crate::kills::handlers::{FINISH, PAY, STOPPED};
use crate::kills::journal::{Journal, Note};
use crate::kills::process::{Kind, Setup};
use crate::kills::soak::Soak;

/// Kills a scheduler when the handler of its only task is at a place, then runs another until the run is final.
fn kill_at(place: &str, task: NewTask) -> Soak {
    let mut soak = Soak::new();
    soak.client.add(retry_soon(task, 100)).unwrap();
    let setup = Setup { handlers: "pay,finish", ..Setup::LONG };
    soak.start(Kind::Closures, &setup);
    eventually(&format!("the handler is {place}"), || soak.db.home().join(STOPPED).exists());
    soak.take_out(0).kill();
    soak.start(Kind::Closures, &setup);
    soak.finish();
    soak
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
        let task = overdue("subject").handler(PAY).payload(json!({ "stops": place, "looks": looks }));
        let soak = kill_at(place, task);
        let notes = Journal::read(soak.db.home()).notes;
        assert_eq!(notes.iter().filter(|note| matches!(note, Note::Paid(_))).count(), effects, "{place}, {looks}");
        let row = soak.db.rows("SELECT status, attempt, result, error FROM task_runs").concat();
        assert!(row.starts_with(end), "{place}, {looks}: {row}");
        soak.end();
    }
}

#[test]
fn a_run_whose_process_is_killed_around_its_end_is_finished_once() {
    for (place, end) in
        [("before", "subject|succeeded|2"), ("within", "subject|succeeded|2"), ("after", "subject|succeeded|1")]
    {
        let soak = kill_at(place, overdue("subject").handler(FINISH).payload(json!({ "stops": place })));
        assert_eq!(soak.db.states(), [end], "{place}");
        let rows = if place == "after" { ["1|1|1", "1|1|2"] } else { ["1|2|1", "1|2|2"] };
        assert_eq!(soak.db.rows("SELECT run, attempt, part FROM kept"), rows, "{place}");
        soak.end();
    }
}
