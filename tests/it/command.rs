//! The handler `command`: its recorded outcomes, and that its process group does not outlive it.
#![cfg(target_os = "linux")]

use std::time::Duration;

use duly::{AttemptOutcome, Cancel, NewTask, RetryPolicy, RunStatus};
use serde_json::json;

use crate::fixtures::{TestDb, eventually, seconds, skip, wait_for_status};
use crate::sidecar::{Sidecar, command, group_size, shell, signal, wait_for_line};

#[test]
fn a_command_gets_its_payload_and_the_variables_of_its_run() {
    let (db, client) = TestDb::with_client();
    let folder = db.home().join("its own");
    std::fs::create_dir(&folder).unwrap();
    let line = r#"pwd; cat; echo "$GREETING $1"; echo "$DULY_TASK $DULY_RUN_ID $DULY_ATTEMPT $DULY_SCHEDULED_FOR $DULY_ORIGIN";
        echo $DULY_IDEMPOTENCY_KEY; printf 'odd: \000\033[2J\377' >&2"#;
    let payload = json!({
        "argv": ["sh", "-c", line, "sh", "$HOME; no shell reads this"],
        "cwd": folder, "env": { "GREETING": "hello" }, "env_from": ["PATH"], "stdin": "from stdin\n",
    });
    client.add(command("whole", payload)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "whole", RunStatus::Succeeded);
    let expected = format!(
        "{}\nfrom stdin\nhello $HOME; no shell reads this\nwhole {} 1 2020-01-01T00:00:00.000Z schedule\n\
         whole/2020-01-01T00:00:00.000Z\n--- stderr ---\nodd: \0\u{1b}[2J\u{fffd}",
        folder.display(),
        run.id
    );
    assert_eq!(run.output.as_deref(), Some(&*expected));
    assert_eq!((run.exit_code, run.error, run.attempt), (Some(0), None, 1));
    sidecar.terminate();
}

#[test]
fn the_failure_of_a_command_is_recorded() {
    let (db, client) = TestDb::with_client();
    let script = db.home().join("script");
    std::fs::write(&script, "not executable").unwrap();
    let argv = |argv: &[&str]| json!({ "argv": argv });
    let cases = [
        ("code", json!({ "argv": ["sh", "-c", "echo no; exit 3"] }), "exit code 3"),
        ("segv", json!({ "argv": ["sh", "-c", "kill -s SEGV $$"] }), "killed by SIGSEGV"),
        ("absent", argv(&["duly-no-such-program"]), "no such program on the PATH"),
        ("path", argv(&["/no/such/program"]), "cannot start \"/no/such/program\": the program, or the interpreter"),
        ("mode", argv(&[script.to_str().unwrap()]), "it is not executable for this user"),
        ("cwd", json!({ "argv": ["true"], "cwd": "/no/such/folder" }), "its cwd \"/no/such/folder\" is not a folder"),
        ("payload", json!({ "argv": "true" }), "argv: expected an array of strings, found a string"),
        ("variable", json!({ "argv": ["true"], "env_from": ["DULY_NOT_SET"] }), "no variable \"DULY_NOT_SET\""),
    ];
    for (name, payload, _) in &cases {
        client.add(command(name, payload.clone())).unwrap();
    }
    let mut sidecar = Sidecar::start(&db, &[]);
    for (name, _, expected) in cases {
        // A retry cannot repair a payload or the environment.
        let hopeless = ["payload", "variable"].contains(&name);
        let run = wait_for_status(&client, name, if hopeless { RunStatus::Dead } else { RunStatus::Failed });
        let error = run.error.unwrap();
        assert!(error.contains(expected), "{name}: {error}");
        let printed = (name == "code").then_some(("no\n".to_owned(), 3)).unzip();
        assert_eq!((run.output, run.exit_code), printed, "{name}");
        assert_eq!(client.attempts(run.id).unwrap()[0].outcome, AttemptOutcome::Failed);
    }
    sidecar.terminate();
}

#[test]
fn two_hundred_megabytes_on_both_pipes_need_little_memory() {
    let (db, client) = TestDb::with_client();
    let line =
        "echo first; yes out | head -c 209715200 & yes err | head -c 209715200 >&2; wait; echo last; echo end >&2";
    client.add(shell("loud", line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let output = wait_for_status(&client, "loud", RunStatus::Succeeded).output.unwrap();
    let peak = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    println!("VmHWM {peak}");
    let kilobytes: u64 = peak.split(' ').next().unwrap().parse().unwrap();
    assert!(kilobytes < 48 * 1024, "{peak}");
    assert!(output.len() < 132 * 1024 && output.starts_with("first\nout\n") && output.ends_with("err\nend\n"));
    let (out, err) = output.split_once("--- stderr ---\n").unwrap();
    assert!(out.contains(&format!("[... {} bytes in all", 209_715_200 + 11)) && out.ends_with("out\nlast\n"));
    assert!(err.contains(&format!("[... {} bytes in all", 209_715_200 + 4)) && err.starts_with("err\n"));
    sidecar.terminate();
}

#[test]
fn a_process_that_left_the_group_and_holds_the_pipe_is_not_waited_for() {
    let (db, client) = TestDb::with_client();
    let pid_file = db.home().join("daemon");
    let line = format!("setsid sh -c 'echo $$ >{}; exec sleep 1000' & echo started", pid_file.display());
    // It shares the standard input of the command.
    client.add(shell("daemon", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "daemon", RunStatus::Succeeded);
    let daemon = wait_for_line(&db, "daemon");
    assert_eq!(run.output.as_deref(), Some("started\n"));
    let took = run.finished_at.unwrap().since(run.started_at.unwrap());
    assert!(took < seconds(30), "{took:?}");
    assert_eq!(group_size(&daemon), 1, "it is still running");
    sidecar.terminate();
    assert_eq!(group_size(&daemon), 1, "and outlives the sidecar");
    signal("KILL", &daemon);
}

#[test]
fn a_command_cannot_join_another_group() {
    if std::process::Command::new("perl").arg("-v").output().is_err() {
        return skip("no perl");
    }
    let (db, client) = TestDb::with_client();
    // The group of the sidecar.
    let line = "$| = 1; print setpgrp(0, getpgrp(getppid())) ? 'moved' : \"stays: $!\"; sleep 1000";
    let task = command("mover", json!({ "argv": ["perl", "-e", line] }));
    client.add(task.timeout(seconds(1)).at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "mover", RunStatus::Dead);
    assert_eq!(run.output.as_deref(), Some("stays: Operation not permitted"));
    assert_eq!(run.error.as_deref(), Some("it took longer than 1s: killed by SIGTERM"));
    sidecar.terminate();
}

#[test]
fn remaining_processes_of_the_group_are_ended_after_the_command() {
    let (db, client) = TestDb::with_client();
    let group_file = db.home().join("group");
    client.add(shell("leftover", &format!("sleep 1000 & echo $$ >{}", group_file.display()))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let run = wait_for_status(&client, "leftover", RunStatus::Succeeded);
    assert_eq!(group_size(&wait_for_line(&db, "group")), 0);
    let took = run.finished_at.unwrap().since(run.started_at.unwrap());
    assert!(took >= Duration::from_secs(2), "it had two seconds: {took:?}");
    sidecar.terminate();
}

#[test]
fn a_group_that_ignores_sigterm_is_killed() {
    let (db, client) = TestDb::with_client();
    let stubborn = |name: &str| {
        let group_file = db.home().join(name);
        format!("trap '' TERM; sh -c 'sleep 1000; sleep 1000' & echo $$ >{}; wait; sleep 1000", group_file.display())
    };
    // Together, because each takes the full ten seconds.
    client.add(shell("slow", &stubborn("slow")).timeout(seconds(2)).at_most_once()).unwrap();
    client.add(shell("cancelled", &stubborn("cancelled"))).unwrap();
    // The leader ends, its child does not.
    let path = db.home().join("child-ignores").display().to_string();
    let line = format!("sh -c 'trap \"\" TERM; echo $PPID >{path}; sleep 1000; sleep 1000'; true");
    client.add(shell("child-ignores", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let groups = ["slow", "cancelled", "child-ignores"].map(|name| wait_for_line(&db, name));
    for name in ["cancelled", "child-ignores"] {
        let run = wait_for_status(&client, name, RunStatus::Running);
        assert_eq!(client.cancel(run.id).unwrap(), Cancel::Asked);
    }
    let slow = wait_for_status(&client, "slow", RunStatus::Dead);
    let attempt = &client.attempts(slow.id).unwrap()[0];
    assert_eq!(
        (attempt.outcome, attempt.error.as_deref()),
        (AttemptOutcome::TimedOut, Some("it took longer than 2s: killed by SIGKILL"))
    );
    let cancelled = wait_for_status(&client, "cancelled", RunStatus::Cancelled);
    assert_eq!(cancelled.error.as_deref(), Some("it was asked to stop: killed by SIGKILL"));
    let took = cancelled.finished_at.unwrap().since(cancelled.started_at.unwrap());
    assert!(took >= seconds(10), "it had ten seconds: {took:?}");
    let child_ignores = wait_for_status(&client, "child-ignores", RunStatus::Cancelled);
    assert_eq!(child_ignores.error.as_deref(), Some("it was asked to stop: killed by SIGTERM"));
    assert_eq!(groups.map(|group| group_size(&group)), [0, 0, 0]);
    sidecar.terminate();
}

/// A manual task that prints its input and the variables of its payload.
fn printing_task(name: &str, stdin: Option<&str>) -> NewTask {
    let line = r#"cat; echo; echo "$DULY_DEAD_TASK, $DULY_DEAD_RUN_ID, $DULY_DEAD_STATUS,${DULY_DEAD_ERROR:+ $DULY_DEAD_ERROR}"
        if [ -n "$DULY_PAYLOAD_FILE" ]; then stat -c %a "$DULY_PAYLOAD_FILE"; cat "$DULY_PAYLOAD_FILE"; fi"#;
    NewTask::manual(name).handler("command").payload(json!({ "argv": ["sh", "-c", line], "stdin": stdin }))
}

/// Returns the names of the files of runs in the folder of the lock files.
fn files_of_runs(db: &TestDb) -> Vec<String> {
    db.lock_files().into_iter().filter(|name| name.starts_with("run-")).collect()
}

#[test]
fn a_payload_of_the_run_reaches_the_command_which_keeps_its_own_argv() {
    let (db, client) = TestDb::with_client();
    client.add_all([printing_task("plain", None), printing_task("own", Some("its own"))]).unwrap();
    // Variables of the run that started the scheduler are not inherited.
    let inherited = [("DULY_PAYLOAD_FILE", "/etc/passwd"), ("DULY_DEAD_TASK", "another"), ("DULY_DEAD_ERROR", "old")];
    let mut sidecar = Sidecar::spawn_with(&db, &[], &inherited);
    let payload = json!({ "argv": ["false"], "to": "anna" });
    let with = |name: &str| client.trigger_with(name, &payload).unwrap();
    let dead = json!({ "id": 7, "task": "job", "status": "dead", "error": "no\0 luck" });
    let runs = [
        (with("plain"), format!("{payload}\n, , ,\n600\n{payload}")),
        (with("own"), format!("its own\n, , ,\n600\n{payload}")),
        (client.trigger("plain").unwrap(), "\n, , ,".to_owned()),
        (client.trigger_with("plain", &dead).unwrap(), format!("{dead}\njob, 7, dead, no\u{fffd} luck\n600\n{dead}")),
    ];
    for (run, expected) in runs {
        eventually("the run is over", || db.run(run).status.is_final());
        let run = db.run(run);
        assert_eq!(
            (run.status, run.error, run.output.as_deref().map(str::trim_end)),
            (RunStatus::Succeeded, None, Some(&*expected))
        );
    }
    assert_eq!(files_of_runs(&db), Vec::<String>::new(), "they end with the attempt");
    sidecar.terminate();
}

#[test]
fn a_dead_run_reaches_a_command_and_so_does_a_retry_of_its_alarm() {
    let (db, client) = TestDb::with_client();
    let alarm = r#"cat >/dev/null; echo "$DULY_DEAD_TASK, $DULY_DEAD_RUN_ID, $DULY_DEAD_STATUS, $DULY_DEAD_ERROR"; test -e mended"#;
    let alarm = json!({ "argv": ["sh", "-c", alarm], "cwd": db.home() });
    client.add(NewTask::manual("alarm").handler("command").at_most_once().payload(alarm)).unwrap();
    client.add(shell("job", "echo 'disk full' >&2; exit 28").at_most_once().on_dead("alarm")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let job = wait_for_status(&client, "job", RunStatus::Dead);
    let expected = format!("job, {}, dead, exit code 28: disk full\n", job.id);
    let alarm = wait_for_status(&client, "alarm", RunStatus::Dead);
    assert_eq!((alarm.output.as_deref(), alarm.error.as_deref()), (Some(&*expected), Some("exit code 1")));
    std::fs::write(db.home().join("mended"), "").unwrap();
    let retry = client.retry(alarm.id).unwrap();
    eventually("the retry is over", || db.run(retry).status == RunStatus::Succeeded);
    assert_eq!(db.run(retry).output.as_deref(), Some(&*expected));
    sidecar.terminate();
}

#[test]
fn the_file_of_a_payload_goes_when_its_lost_run_is_recovered() {
    let (db, client) = TestDb::with_client();
    let line = "echo $$ >pid; cat \"$DULY_PAYLOAD_FILE\" >seen; test -e again || { touch again; sleep 1000; }; true";
    let payload = json!({ "argv": ["sh", "-c", line], "cwd": db.home() });
    let retry = RetryPolicy { backoff: Duration::from_millis(1), ..RetryPolicy::default() };
    client.add(NewTask::manual("post").handler("command").payload(payload).retry(retry)).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let run = client.trigger_with("post", "anna").unwrap();
    let recorded = "SELECT count(*) FROM task_runs WHERE process IS NOT NULL";
    eventually("its command is running", || db.home().join("again").exists() && db.ask(recorded) == "1");
    assert_eq!(files_of_runs(&db).len(), 2);
    first.kill();
    assert!(files_of_runs(&db).contains(&format!("run-{run}-1.payload")), "it is not removed yet");
    let mut second = Sidecar::start(&db, &[]);
    eventually("it has run again", || db.run(run).status == RunStatus::Succeeded);
    assert_eq!(std::fs::read_to_string(db.home().join("seen")).unwrap(), "\"anna\"");
    assert_eq!(files_of_runs(&db), Vec::<String>::new());
    second.terminate();
}
