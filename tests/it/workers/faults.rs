//! Faulty workers of `duly run --worker`: each is ended with a reason, its attempts end as docs/workers.md says, and the scheduler
//! and a healthy worker beside it go on.
#![cfg(target_os = "linux")]

use duly::{Client, RunStatus};

use crate::fixtures::{TestDb, eventually, wait_for_status};
use crate::sidecar::{Sidecar, processes};
use crate::workers_run::{handles, is_alive, pids, task, worker};

const TIMES: &str = "hello=20s,ping=500ms,silence=3s,cancel=1s,term=300ms,backoff=10ms,starts=1000";

/// What a worker does with the first attempt of its run; the second one succeeds. In each line: its name; how the run ends, the number of
/// its attempts, how many of them are forgiven; a part of the error of the first; and a line for the shell.
const FAULTS: &str = r##"# It dies at each point.
dies_handed | 2 1 |  | kill -9 $$
dies_after_log | 2 1 |  | say "{\"type\":\"log\",\"level\":\"info\",\"text\":\"x\",$id}"; kill -9 $$
dies_begun | 2 0 | ended: killed by SIGKILL | begin; kill -9 $$
dies_after_progress | 2 0 | ended: exit code 4: why | progress half; echo why >&2; exit 4
dies_in_effect | 2 0 | ended: killed by SIGKILL | effect begin; kill -9 $$
dies_in_first_line | 2 1 |  | printf '{"type":"begin",%s' "$id"; kill -9 $$
dies_in_done | 2 0 | ended: killed by SIGKILL | begin; printf '{"type":"done",%s' "$id"; kill -9 $$
dies_after_done | 1 0 |  | begin; succeed; kill -9 $$
ends_begun | 2 0 | ended: exit code 0 | begin; exit 0
# It breaks a rule.
garbage | 2 0 | was ended:  | begin; say nonsense; sleep 100
garbage_handed | 2 1 |  | say nonsense; sleep 100
garbage_first | 2 0 | was ended:  | say nonsense; begin; sleep 100
binary | 2 0 | was ended:  | begin; printf '\377\376\000\n'; sleep 100
list | 2 0 | was ended:  | begin; say '[1]'; sleep 100
huge_line | 2 0 | longer than 1048576 bytes | begin; yes | tr -d '\n' | head -c 50000000; sleep 100
deep | 2 0 | was ended:  | begin; printf '%s\n' "$(yes '[' | head -n 100000 | tr -d '\n')"; sleep 100
begins_foreign | 2 0 | does not have | begin; id='"run":987654,"attempt":1'; begin; sleep 100
wrong_attempt | 2 0 | does not have | begin; id="\"run\":$run,\"attempt\":9"; succeed; sleep 100
ends_twice | 1 0 |  | begin; succeed; succeed; sleep 100
no_permission | 2 0 | it was refused | begin; effect done ',"value":1'; while IFS= read -r line; do case $line in *refused*) fail 'it was refused'; break;; esac; done
# It is silent, or holds on to something.
sleeps | 2 0 | it was silent for 3s | begin; exec sleep 100
stopped | 2 0 | it was silent for 3s | begin; kill -STOP $$
ignores_term | 2 0 | was ended:  | begin; trap '' TERM; say nonsense; while :; do sleep 1; done
closes_output | 2 0 | closed its standard output | begin; exec 1>&-; sleep 100
closes_input | 2 0 | was ended:  | begin; exec 0<&-; sleep 100
ends_a_run_without_input | 1 0 |  | begin; exec 0<&-; trap 'succeed; exit 0' TERM; while :; do sleep 0.1; done
child_in_group | 2 0 | ended: exit code 3 | begin; sleep 1000 & exit 3
flood_left_group | 2 0 | ended:  | begin; setsid yes & exit 3
child_left_group | 2 0 | ended: exit code 3 | begin; setsid sleep 8 & exit 3"##;

/// A line of [`FAULTS`].
struct Fault {
    name: &'static str,
    ends: (u32, u32, &'static str),
    act: &'static str,
}

fn faults() -> Vec<Fault> {
    let fault = |line: &'static str| {
        let parts: Vec<&str> = line.splitn(4, " | ").collect();
        let (attempts, forgiven) = parts[1].split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse().expect("a number");
        Fault { name: parts[0], ends: (number(attempts), number(forgiven), parts[2]), act: parts[3] }
    };
    FAULTS.lines().filter(|line| !line.starts_with('#')).map(fault).collect()
}

fn start(db: &TestDb, workers: &[String]) -> Sidecar {
    let mut options = vec!["--worker-times", TIMES];
    workers.iter().for_each(|worker| options.extend(["--worker", worker]));
    Sidecar::start(db, &options)
}

/// Returns a worker that does no harm.
fn healthy(db: &TestDb) -> String {
    worker(db, "healthy", &handles("healthy", 4), r#"*'"type":"run"'*) succeed;;"#)
}

/// Requires that a run of the healthy worker succeeds.
fn assert_works(client: &Client, name: &str) {
    client.add(task(name, "healthy")).unwrap();
    wait_for_status(client, name, RunStatus::Succeeded);
}

#[test]
fn faulty_workers_are_ended_with_a_reason_and_their_attempts_end() {
    let (db, client) = TestDb::with_client();
    let mut workers = vec![healthy(&db)];
    let faults = faults();
    for Fault { name, act, .. } in &faults {
        client.add(task(name, name)).unwrap();
        let arms = format!("*'\"type\":\"run\"'*) if [ $attempt = 1 ]; then {act}; else succeed; fi;;");
        workers.push(worker(&db, name, &handles(name, 1), &arms));
    }
    let mut sidecar = start(&db, &workers);
    let ended = "SELECT count(*) FROM task_runs WHERE status IN ('succeeded', 'dead')";
    eventually("each run is final", || db.number::<usize>(ended) == faults.len());
    assert_works(&client, "after");
    let mut wrong = Vec::new();
    for Fault { name, ends: (attempts, forgiven, error), .. } in &faults {
        let run = client.history(name, 1).unwrap().remove(0);
        let first = client.attempts(run.id).unwrap().into_iter().find(|attempt| attempt.attempt == 1);
        let found = first.and_then(|attempt| attempt.error).unwrap_or_default();
        if (run.status, run.attempt, run.forgiven) != (RunStatus::Succeeded, *attempts, *forgiven)
            || !found.contains(error)
        {
            wrong.push(format!("{name}: {} {} {} {found:?}", run.status, run.attempt, run.forgiven));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), sidecar.log());
    sidecar.terminate();
    for name in faults.iter().map(|fault| fault.name) {
        assert!(!pids(&db, name).into_iter().any(is_alive), "a process of {name} is left");
    }
    // Only the child that left its group may live.
    assert_eq!(processes().filter(|process| process.name == "sleep" && process.is_child_of(sidecar.pid())).count(), 0);
    assert_eq!(db.lock_files(), [""; 0]);
    db.assert_sound();
}

/// Returns the greatest size that a process has had, in KiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A worker that writes without end, and reads nothing, must neither fill the memory of the scheduler nor hold up another worker.
#[test]
fn floods_are_bounded() {
    let (db, client) = TestDb::with_client();
    let mut workers = vec![healthy(&db)];
    for (name, act) in [
        ("pings", "begin; yes '{\"type\":\"ping\"}'"),
        ("progress", "begin; yes \"{\\\"type\\\":\\\"progress\\\",$id,\\\"text\\\":\\\"half way\\\"}\""),
        ("logs", "begin; yes \"{\\\"type\\\":\\\"log\\\",\\\"level\\\":\\\"trace\\\",\\\"text\\\":\\\"again\\\"}\""),
        ("effects", "begin; yes \"{\\\"type\\\":\\\"effect_begin\\\",$id,\\\"key\\\":\\\"send\\\"}\""),
        ("empty", "begin; yes ''"),
        ("stderr", "begin; yes 'an error' >&2"),
    ] {
        client.add(task(name, name)).unwrap();
        workers.push(worker(&db, name, &handles(name, 1), &format!("*'\"type\":\"run\"'*) {act};;")));
    }
    let mut sidecar = start(&db, &workers);
    let begun = "SELECT count(*) FROM task_runs WHERE status = 'running' OR attempt > 0";
    eventually("all have begun", || db.ask(begun) == "6");
    for number in 0..20 {
        assert_works(&client, &format!("beside-{number}"));
    }
    // Longer than the limits of silence.
    eventually("those that cannot be answered are ended", || sidecar.log().matches("was ended: ").count() >= 2);
    let peak = peak(sidecar.pid());
    assert!(peak < 200 * 1024, "{peak} KiB");
    println!("peak: {} MiB", peak / 1024);
    sidecar.signal("KILL");
    sidecar.end();
    let left = |name: &str| pids(&db, name).into_iter().any(is_alive);
    eventually("they end", || !["pings", "progress", "logs", "effects", "empty"].into_iter().any(left));
}

/// Payloads that fill the pipe of a worker that never reads them.
#[test]
fn a_full_pipe_holds_up_no_other_worker() {
    let (db, client) = TestDb::with_client();
    let text = "x".repeat(60_000);
    for number in 0..40 {
        client.add(task(&format!("full-{number}"), "full").payload(text.as_str())).unwrap();
    }
    // It answers nothing, and then is silent.
    let full = worker(&db, "full", &handles("full", 40), "*welcome*) exec sleep 100;;");
    let mut sidecar = start(&db, &[healthy(&db), full]);
    eventually("runs are handed over", || db.ask("SELECT count(*) FROM task_runs WHERE status = 'running'") != "0");
    assert_works(&client, "beside");
    eventually("it is ended", || sidecar.log().contains("it was silent for 3s"));
    let counted = "SELECT count(*) FROM task_runs WHERE attempt > forgiven AND status <> 'running'
        AND task_id IN (SELECT id FROM scheduled_tasks WHERE handler = 'full')";
    assert_eq!(db.ask(counted), "0", "none had begun");
    assert_works(&client, "after");
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn a_worker_to_which_no_run_can_be_given_is_still_asked_whether_it_lives() {
    let (db, client) = TestDb::with_client();
    let option = worker(&db, "w", &handles("h", 20), r#"*'"type":"run"'*) succeed;;"#);
    let times = "ping=300ms,silence=2s,term=300ms,backoff=10ms";
    let mut sidecar = Sidecar::start(&db, &["--worker", &option, "--worker-times", times]);
    eventually("it is ready", || sidecar.log().contains("worker w (copy 1): ready"));
    // In the place of the links.
    for (run, attempt) in (1..=60).flat_map(|run| (1..=10).map(move |attempt| (run, attempt))) {
        std::fs::create_dir(db.lock_folder().join(format!("run-{run}-{attempt}.worker"))).expect("a folder");
    }
    for n in 0..20 {
        client.add(task(&format!("t{n}"), "h")).unwrap();
    }
    eventually("they are returned", || sidecar.log().contains("cannot link the file"));
    let pings = || db.lines("lines-w").iter().filter(|line| line.contains("\"ping\"")).count();
    let before = pings();
    eventually("it is asked several times", || pings() >= before + 5);
    assert_eq!(pids(&db, "w").len(), 1, "{}", sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE attempt > forgiven + 1"), "0");
    sidecar.terminate();
}
