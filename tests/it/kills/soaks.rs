//! The scenarios. Each takes `DULY_ROUNDS` rounds.

use std::time::Duration;

use duly::{AttemptOutcome, Limit, NewTask, Overlap, RetryPolicy, RunStatus};
use serde_json::json;

use crate::disk::tools::succeeds;
use crate::fixtures::{TestDb, eventually, number, overdue, retry_soon, seconds, skip};
use crate::kills::handlers::{FINISH, PAY};
use crate::kills::journal::{self, Journal, OF_TASK, probe};
use crate::kills::process::{Kind, Setup};
use crate::kills::soak::{Fault, Soak, edit};
use crate::selftest::checker::{Expectation, Line};
use crate::sidecar::shell;

/// Ends of attempts whose scheduler died.
const DIED: &[AttemptOutcome] = &[AttemptOutcome::Lost, AttemptOutcome::Released];

pub(crate) fn rounds(default: usize) -> usize {
    let rounds = number("DULY_ROUNDS", default);
    println!("{rounds} rounds");
    rounds
}

/// A command that does `work` between its lines of the journal, and is retried soon.
fn command(db: &TestDb, work: &str) -> impl Fn(&str) -> NewTask + use<> {
    let line = probe(db.home(), OF_TASK, work);
    move |name| retry_soon(shell(name, &line), 1000)
}

/// Two `duly run`. Some commands take a moment, in which the guard ends them if their scheduler is killed; others end before its next
/// turn. The lease is too long to wait for.
#[test]
fn kill_soak_of_commands_starts_each_run_once_or_again_after_a_lost_attempt() {
    let mut soak = Soak::new();
    // The last tick is cancelled below.
    soak.rules.outcomes = Some(&[AttemptOutcome::Lost, AttemptOutcome::Released, AttemptOutcome::Cancelled]);
    soak.rules.workers = Some(Setup::LONG.workers);
    soak.rules.tasks.push(Expectation { task: "tick".to_owned(), alone: true, ..Expectation::default() });
    let payload = json!({ "argv": ["sh", "-c", probe(soak.db.home(), OF_TASK, "sleep 0.01")] });
    let tick = NewTask::interval("tick", seconds(1)).handler("command").overlap(Overlap::BufferAll);
    soak.client.add(retry_soon(tick.payload(payload), 1000)).expect("a task");
    (0..2).for_each(|_| soak.start(Kind::Program, &Setup::LONG));
    for round in 0..rounds(5) {
        for (kind, work) in ["true", "sleep 0.02", "sleep 0.1"].into_iter().enumerate() {
            let task = command(&soak.db, work);
            soak.add(&format!("task-{round}-{kind}"), 3, &task);
            soak.add_mortal(&format!("once-{round}-{kind}"), 1, true, &task);
        }
        soak.after_lines(24);
        soak.meet(&[Fault::Kill, Fault::Kill, Fault::Kill, Fault::KillAll]);
    }
    soak.client.pause("tick").expect("a pause");
    soak.client.cancel_all("tick").expect("what waits is cancelled");
    let db = &soak.db;
    let cancelled = "SELECT count(*) FROM task_attempts WHERE outcome = 'cancelled'";
    eventually("the ticks have ended", || db.ask("SELECT count(*) FROM task_runs WHERE status = 'running'") == "0");
    assert!(db.number::<u32>(cancelled) <= 1);
    assert_eq!(db.count(RunStatus::Missed), 0);
    soak.end();
}

/// Two schedulers with closures, killed and drained. Some commit rows with their outcome.
#[test]
fn kill_soak_of_closures_loses_nothing_and_keeps_rows_and_outcomes_together() {
    const TASKS: usize = 80;
    // Runs that wait from the beginning: ten thousand behind the kills of a night.
    const BACKLOG: usize = 50;
    let mut soak = Soak::new();
    soak.rules.outcomes = Some(DIED);
    soak.rules.workers = Some(Setup::LONG.workers);
    let setup = Setup { handlers: "closure,finish", ..Setup::LONG };
    (0..2).for_each(|_| soak.start(Kind::Closures, &setup));
    let rounds = rounds(5);
    soak.add("backlog", rounds * BACKLOG, |name| retry_soon(overdue(name).handler("closure"), 1000));
    for round in 0..rounds {
        for (kind, handler, millis) in [("task", "closure", 0), ("slow", "closure", 2), ("rows", FINISH, 0)] {
            let task =
                |name: &str| retry_soon(overdue(name).handler(handler).payload(json!({ "millis": millis })), 1000);
            soak.add(&format!("{kind}-{round}"), if kind == "slow" { TASKS / 8 } else { TASKS }, task);
        }
        soak.after_lines(TASKS * 4);
        soak.assert_rows_agree();
        soak.meet(&[Fault::Kill, Fault::KillAll, Fault::Drain]);
        soak.assert_rows_agree();
    }
    let counts = soak.end();
    assert_eq!(counts.occurrences as usize, rounds * (BACKLOG + 2 * TASKS + TASKS / 8));
}

/// Two schedulers with workers in Node.js and Python.
#[test]
fn worker_kills_lose_nothing_and_start_no_attempt_twice() {
    let mut soak = Soak::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kills");
    let known = [("node", "kill_worker.mjs"), ("python3", "kill_worker.py")];
    let installed = known.into_iter().filter(|(program, _)| succeeds(program, &["--version"]));
    let home = soak.db.home().display().to_string();
    let workers: Vec<String> = installed.map(|(name, file)| format!("{name}={name} {folder}/{file} {home}")).collect();
    if workers.len() < 2 {
        skip(&format!("not both of node and python3: {workers:?}"));
    }
    let (Some(first), Some(last)) = (workers.first(), workers.last()) else { return };
    for worker in [first, last] {
        let options = ["--worker", worker, "--worker-times", "backoff=10ms,term=300ms,starts=1000"];
        soak.start(Kind::Program, &Setup { options: options.map(str::to_owned).to_vec(), ..Setup::LONG });
    }
    // A worker that was killed, or an effect in doubt.
    soak.rules.outcomes = Some(&[AttemptOutcome::Lost, AttemptOutcome::Released, AttemptOutcome::Failed]);
    for round in 0..rounds(4) {
        let task = |handler: &'static str, millis: u64| {
            move |name: &str| retry_soon(overdue(name).handler(handler).payload(millis), 1000)
        };
        for wait in [0, 20, 100] {
            soak.add(&format!("task-{round}-{wait}"), 2, task("work", wait));
            soak.add_mortal(&format!("once-{round}-{wait}"), 1, true, task("work", wait));
            soak.add_mortal(&format!("pay-{round}-{wait}"), 1, false, task(PAY, wait));
        }
        soak.after_lines(24);
        soak.meet(&[Fault::KillWorker, Fault::Kill, Fault::KillWorkerAndScheduler]);
    }
    soak.finish();
    let errors = "SELECT DISTINCT error FROM task_attempts WHERE outcome = 'failed'
        AND error NOT LIKE 'the worker \"%\" ended: killed by SIGKILL%' AND error NOT LIKE '%effect%in doubt%'";
    assert_eq!(soak.db.rows(errors), [""; 0]);
    soak.end();
}

/// Four `duly run` under a limit on a key and a rate of the handler of commands, counted by what the commands do themselves.
#[test]
fn limit_kills_exceed_no_limit() {
    const STARTS: u32 = 10;
    const PER: Duration = Duration::from_secs(2);
    // Commands begin later than they are claimed, by different times: any window shorter by this much must obey the rate.
    const LATENESS: i64 = 1_200;
    let mut soak = Soak::new();
    soak.rules.outcomes = Some(DIED);
    soak.rules.workers = Some(Setup::LONG.workers);
    soak.rules.rate = Some((STARTS as usize, 2_000 - LATENESS));
    soak.client.set_limit(Limit::key("smtp", 3)).expect("a limit");
    soak.client.set_limit(Limit::rate("command", STARTS, PER)).expect("a limit");
    let begin = "echo \"at $(date +%s%3N)\" >>$journal";
    // A lock lasts as long as the command or any child of it.
    let slot = format!(
        "taken=; for slot in 1 2 3; do exec 8>>{}/slot-$slot; if flock -n 8; then taken=1; break; fi; done
         [ \"$taken\" ] || echo \"over $me\" >>$journal; {begin}; sleep 0.3",
        soak.db.home().display()
    );
    let rounds = rounds(4);
    let (limited, free) = (command(&soak.db, &slot), command(&soak.db, begin));
    soak.add("limited", 7 + rounds, |name| limited(name).concurrency_key("smtp"));
    soak.add("free", 7 + rounds, free);
    (0..4).for_each(|_| soak.start(Kind::Program, &Setup::LONG));
    for _ in 0..rounds {
        soak.after_lines(8);
        soak.meet(&[Fault::Kill]);
    }
    soak.end();
}

/// Regression: with default settings, commands that kill their scheduler used up the attempts of other runs.
#[test]
fn kill_soak_of_commands_that_kill_their_scheduler_uses_up_no_attempt_of_other_runs() {
    let restarts = rounds(6);
    let mut soak = Soak::new();
    soak.rules.workers = Some(Setup::LONG.workers);
    let due = |line: String| {
        let retry = RetryPolicy { backoff: Duration::from_millis(100), ..RetryPolicy::default() };
        move |name: &str| shell(name, &line).retry(retry)
    };
    let ordinary = due(probe(soak.db.home(), OF_TASK, "true"));
    let kill = format!("echo \"killed ${}\" >>$journal; kill -s KILL $PPID; exec sleep 2", journal::NUMBER);
    let kill = due(probe(soak.db.home(), OF_TASK, &kill));
    for number in 0..restarts {
        soak.add(&format!("ordinary-{number}"), 8, &ordinary);
        soak.client.add(kill(&format!("killer-{number}"))).expect("a task");
    }
    let setup = Setup { lease: "1m", ..Setup::LONG };
    let mut deaths = 0;
    while deaths < restarts {
        soak.start(Kind::Program, &setup);
        let mut one = soak.schedulers.remove(0);
        eventually("it is killed", || one.has_ended());
        deaths += 1;
    }
    for number in 0..restarts {
        soak.client.cancel_all(&format!("killer-{number}")).expect("a cancellation");
    }
    soak.start(Kind::Program, &setup);
    let counts = soak.end();
    assert!(counts.lost >= deaths, "each death has cost at least the attempt of its killer: {counts:?}");
}

/// Documented errors of a request that comes at the wrong moment.
const DOCUMENTED: [&str; 2] = [": it is over: ", "there is no run "];

/// The tasks of [`parallel_clients_break_no_rule_and_start_no_attempt_twice`].
const TASKS: usize = 4;

/// Makes one change with the program. Returns its error unless it is documented.
fn change_by_program(db: &TestDb, random: &mut fastrand::Rng) -> Option<String> {
    let name = format!("task-{}", random.usize(..TASKS));
    let every = ["1s", "2s", "3s"][random.usize(..3)];
    let line = probe(db.home(), OF_TASK, "sleep 0.01");
    let edit = ["add", &name, "--replace", "--every", every, "--max-attempts", "3", "--", "sh", "-c", &line];
    let run = random.u8(1..40).to_string();
    let words: &[&str] = match random.u8(..6) {
        0 => &["trigger", &name],
        1 => &["cancel", &name],
        2 => &["pause", &name],
        3 => &["resume", &name],
        4 => &["cancel", &run],
        _ => &edit,
    };
    let done = db.duly(words).output().expect("duly");
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    let expected = match done.status.code() {
        Some(0) => output.is_empty(),
        Some(1) => DOCUMENTED.iter().any(|words| output.contains(words)),
        _ => false,
    };
    (!expected).then(|| format!("{words:?}: {}: {output}", done.status))
}

/// Twenty programs at once that trigger, cancel, pause, resume and edit the same few tasks, while a scheduler runs them: sixteen use the
/// program, four SQL. No scheduler is killed.
#[test]
fn parallel_clients_break_no_rule_and_start_no_attempt_twice() {
    const PROGRAMS: usize = 16;
    const WRITERS: usize = 4;
    let mut soak = Soak::new();
    soak.rules.outcomes = Some(&[AttemptOutcome::Cancelled, AttemptOutcome::Released]);
    for task in 0..TASKS {
        let payload = json!({ "argv": ["sh", "-c", probe(soak.db.home(), OF_TASK, "sleep 0.01")] });
        let task = NewTask::interval(format!("task-{task}"), seconds(1)).handler("command").payload(payload);
        soak.client.add(task.retry(RetryPolicy { max_attempts: 3, ..RetryPolicy::default() })).expect("a task");
    }
    let alone = |task| Expectation { task: format!("task-{task}"), alone: true, ..Expectation::default() };
    soak.rules.tasks = (0..TASKS).map(alone).collect();
    soak.start(Kind::Program, &Setup { workers: 8, ..Setup::LONG });
    let (changes, seed) = (rounds(5), soak.random.u64(..));
    let errors: Vec<String> = std::thread::scope(|scope| {
        let db = &soak.db;
        let changers = (0..PROGRAMS + WRITERS).map(|number| {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
                let plain = db.plain();
                plain.busy_timeout(seconds(30)).expect("patience");
                let by_sql = |random: &mut fastrand::Rng| {
                    let task = format!("task-{}", random.usize(..TASKS));
                    edit(&plain, random, &task).err().map(|error| error.to_string())
                };
                let one = |random: &mut fastrand::Rng| {
                    if number < PROGRAMS { change_by_program(db, random) } else { by_sql(random) }
                };
                (0..changes).filter_map(|_| one(&mut random)).collect::<Vec<_>>()
            })
        });
        let changers: Vec<_> = changers.collect();
        changers.into_iter().flat_map(|changer| changer.join().expect("no panic")).collect()
    });
    // SQLite admits writers in no order: on a slow or busy machine some wait the whole five seconds and fail, and have changed nothing.
    let (locked, others): (Vec<_>, Vec<_>) = errors.iter().partition(|text| text.contains("database is locked"));
    assert!(others.is_empty(), "{others:#?}");
    assert!(locked.len() <= 4 + changes * PROGRAMS / 50, "{locked:#?}");

    // On a slow machine the changes may have ended before a run began.
    (0..TASKS).for_each(|task| assert!(soak.client.resume(&format!("task-{task}")).is_ok()));
    let begun = || Journal::read(soak.db.home()).lines.iter().filter(|line| matches!(line, Line::Began { .. })).count();
    eventually("more runs than tasks have begun", || begun() > TASKS);
    for task in (0..TASKS).map(|task| format!("task-{task}")) {
        soak.client.pause(&task).expect("a pause");
        // Runs of paused tasks would wait.
        soak.client.cancel_all(&task).expect("a cancellation");
    }
    soak.finish();
    assert_eq!(soak.db.ask("SELECT count(*) FROM scheduled_tasks WHERE status <> 'paused'"), "0");
    // The scheduler may wait in vain, too.
    let log = soak.schedulers[0].log();
    let refused = log.lines().filter(|line| line.contains("cannot be written"));
    let (locked, others): (Vec<_>, Vec<_>) = refused.partition(|line| line.contains(": database is locked;"));
    assert!(others.is_empty() && locked.len() <= 1 + changes / 20, "{log}");
    soak.end();
}
