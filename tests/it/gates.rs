//! Gates and exit codes of commands: what is not worth starting is skipped, and says why.
#![cfg(target_os = "linux")]

use duly::{AttemptOutcome, Client, NewTask, Origin, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, eventually, retry_soon, seconds, wait_for_status};
use crate::sidecar::{Gate, Sidecar, command, group_size, wait_for_line};

/// A task whose gate and command are these lines of a shell.
fn gated(name: &str, gate: &str, line: &str) -> NewTask {
    command(name, json!({ "argv": ["sh", "-c", line], "only_if": ["sh", "-c", gate] }))
}

/// The lines of a file in the folder of the database.
fn lines(db: &TestDb, name: &str) -> usize {
    std::fs::read_to_string(db.home().join(name)).map_or(0, |text| text.lines().count())
}

/// A line of a shell that adds a line to this file.
fn note(db: &TestDb, name: &str) -> String {
    format!("echo $DULY_ATTEMPT >> '{}'", db.home().join(name).display())
}

fn outcomes(client: &Client, run: i64) -> Vec<AttemptOutcome> {
    client.attempts(run).unwrap().iter().map(|attempt| attempt.outcome).collect()
}

#[test]
fn a_gate_says_yes_or_no_or_fails() {
    let (db, client) = TestDb::with_client();
    client.add(gated("yes", "echo asked", "echo done")).unwrap();
    let no = "echo looked; echo 'no new mail'; echo; exit 1";
    client.add(gated("no", no, &note(&db, "started")).at_most_once().on_dead("after").on_end("after")).unwrap();
    client.add(gated("broken", "echo what >&2; exit 2", &note(&db, "started")).at_most_once().on_end("after")).unwrap();
    client.add(NewTask::manual("after").handler("command").payload(json!({ "argv": ["true"] }))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);

    let yes = wait_for_status(&client, "yes", RunStatus::Succeeded);
    assert_eq!(
        (yes.output.as_deref(), yes.attempt, yes.forgiven),
        (Some("done\n"), 1, 0),
        "only what the command printed"
    );
    let no = wait_for_status(&client, "no", RunStatus::Skipped);
    assert_eq!(
        (no.error.as_deref(), no.exit_code, no.attempt, no.forgiven),
        (Some("gate: no new mail"), Some(1), 1, 1)
    );
    assert_eq!(no.output.as_deref(), Some("looked\nno new mail\n\n"));
    assert_eq!(outcomes(&client, no.id), [AttemptOutcome::Skipped]);
    let broken = wait_for_status(&client, "broken", RunStatus::Dead);
    assert_eq!((broken.error.as_deref(), broken.exit_code), (Some("the gate failed: exit code 2: what"), Some(2)));
    assert_eq!(lines(&db, "started"), 0, "no command was started");
    // A death is followed; a skip is not.
    eventually("the follower", || !client.history("after", 9).unwrap().is_empty());
    let after = client.history("after", 9).unwrap();
    assert_eq!((after.len(), after[0].origin), (1, Origin::OnEnd));
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn a_gate_is_asked_once_for_a_run_and_not_by_a_person() {
    let (db, client) = TestDb::with_client();
    let line = format!("{}; [ $DULY_ATTEMPT -ge 3 ]", note(&db, "started"));
    client.add(retry_soon(gated("report", &note(&db, "asked"), &line), 5)).unwrap();
    // Its gate fails once: it has said nothing, and is asked again.
    let unsure = format!("{}; [ $DULY_ATTEMPT = 1 ] && exit 7; exit 0", note(&db, "unsure"));
    client.add(retry_soon(gated("unsure", &unsure, &note(&db, "sure")), 5)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "report", RunStatus::Succeeded);
    assert_eq!((run.attempt, lines(&db, "asked"), lines(&db, "started")), (3, 1, 3));
    let run = wait_for_status(&client, "unsure", RunStatus::Succeeded);
    assert_eq!((run.attempt, lines(&db, "unsure"), lines(&db, "sure")), (2, 2, 1));
    assert_eq!(client.attempts(run.id).unwrap()[0].error.as_deref(), Some("the gate failed: exit code 7"));

    client.add(gated("closed", "exit 1", "echo by hand").at_most_once()).unwrap();
    assert_eq!(wait_for_status(&client, "closed", RunStatus::Skipped).error.as_deref(), Some("gate"));
    client.trigger("closed").unwrap();
    let by_hand = wait_for_status(&client, "closed", RunStatus::Succeeded);
    assert_eq!((by_hand.origin, by_hand.output.as_deref()), (Origin::Manual, Some("by hand\n")));
    sidecar.terminate();
}

/// The gate of an attempt whose scheduler is killed ends with it, and is asked again. The command starts once.
#[test]
fn a_gate_does_not_outlive_its_scheduler() {
    let (db, client) = TestDb::with_client();
    let mut gate = Gate::new(&db, "gate");
    let (home, asked) = (db.home().display().to_string(), note(&db, "asked"));
    let asked = format!("echo $$ > {home}/gate.group; echo looking; read line < {home}/gate; {asked}");
    client.add(retry_soon(gated("report", &asked, &note(&db, "started")), 3)).unwrap();
    let printed = format!("exec \"$@\" > {home}/printed");
    let sidecar = Sidecar::spawn_within(&db, &["--forward-output"], "sh", &["-c", &printed, "sh"]);
    let mut sidecar = sidecar.until_guarded(&db);
    let group = wait_for_line(&db, "gate.group");
    let state = db.ask("SELECT status || ', ' || (process IS NULL) FROM task_runs");
    assert_eq!(state, "running, 1", "the overlap policy sees it");
    // duly tells the guard of the group first, and then reads its output.
    eventually("it is looking", || lines(&db, "printed") > 0);
    sidecar.kill();
    eventually("the guard has ended the gate", || group_size(&group) == 0);
    let mut next = Sidecar::start(&db, &[]);
    eventually("it is asked again", || {
        std::fs::read_to_string(db.home().join("gate.group"))
            .is_ok_and(|again| !again.is_empty() && again.trim() != group)
    });
    gate.open();
    let run = wait_for_status(&client, "report", RunStatus::Succeeded);
    assert_eq!((run.attempt, lines(&db, "asked"), lines(&db, "started")), (2, 1, 1));
    assert_eq!(outcomes(&client, run.id), [AttemptOutcome::Lost]);
    next.terminate();
}

#[test]
fn the_time_limit_of_an_attempt_ends_its_gate() {
    let (db, client) = TestDb::with_client();
    client.add(gated("slow", "sleep 1000", &note(&db, "started")).timeout(seconds(1)).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "slow", RunStatus::Dead);
    assert_eq!(outcomes(&client, run.id), [AttemptOutcome::TimedOut]);
    assert!(run.error.as_deref().is_some_and(|error| error.contains("gate")), "{:?}", run.error);
    assert_eq!(lines(&db, "started"), 0);
    sidecar.terminate();
}

/// The gate says yes in time, and what it has left keeps the attempt until its time is up.
#[test]
fn no_command_starts_after_the_time_of_its_attempt() {
    let (db, client) = TestDb::with_client();
    let gate = "(trap '' TERM; sleep 3) & exit 0";
    client.add(gated("slow", gate, &note(&db, "started")).timeout(seconds(1)).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "slow", RunStatus::Dead);
    assert_eq!(outcomes(&client, run.id), [AttemptOutcome::TimedOut]);
    let error = run.error.unwrap_or_default();
    assert!(error.contains("it was not started; ended remaining processes of the gate: s"), "{error}");
    assert_eq!(lines(&db, "started"), 0);
    sidecar.terminate();
}

#[test]
#[ignore = "takes the 30 seconds that a gate may take"]
fn a_gate_may_take_30_seconds() {
    let (db, client) = TestDb::with_client();
    client.add(gated("slow", "sleep 1000", &note(&db, "started")).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    eventually("it has ended", || client.history("slow", 1).unwrap().iter().any(|run| run.status.is_final()));
    let run = &client.history("slow", 1).unwrap()[0];
    assert_eq!(run.status, RunStatus::Dead);
    assert_eq!(run.error.as_deref(), Some("the gate took longer than 30s: killed by SIGTERM"));
    let took = run.finished_at.unwrap().since(run.started_at.unwrap());
    assert!(took >= seconds(30), "{took:?}");
    assert_eq!(lines(&db, "started"), 0);
    sidecar.terminate();
}

#[test]
fn exit_codes_say_what_follows() {
    let (db, client) = TestDb::with_client();
    let cases = [
        ("config", 78, RunStatus::Dead, "exit code 78"),
        ("listed", 3, RunStatus::Dead, "exit code 3"),
        ("idle", 4, RunStatus::Skipped, "exit code 4: nothing here"),
        ("busy", 75, RunStatus::Failed, "exit code 75"),
        ("other", 1, RunStatus::Failed, "exit code 1"),
    ];
    for (name, code, ..) in cases {
        let line = format!("echo nothing here; exit {code}");
        let payload = json!({ "argv": ["sh", "-c", line], "give_up_exit_codes": [3, 9], "skip_exit_codes": [4] });
        client.add(command(name, payload)).unwrap();
    }
    let mut sidecar = Sidecar::start(&db, &[]);
    for (name, code, status, error) in cases {
        let run = wait_for_status(&client, name, status);
        assert_eq!((run.error.as_deref(), run.exit_code, run.attempt), (Some(error), Some(code), 1), "{name}");
    }
    sidecar.terminate();
    let shown: Value =
        serde_json::from_str(&db.ask("SELECT json_group_array(failure_count) FROM scheduled_tasks")).unwrap();
    assert_eq!(shown, json!([0, 0, 0, 0, 0]), "one-time tasks keep no streak, and a skip is no failure");
    db.assert_sound();
}
