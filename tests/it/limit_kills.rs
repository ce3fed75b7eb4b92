//! Four real schedulers, one of them killed with SIGKILL at random in each of `DULY_ROUNDS` rounds, under a limit on a key and a rate
//! of the handler of commands. Counted by what the commands do themselves.
#![cfg(target_os = "linux")]

use std::time::Duration;

use duly::Limit;

use crate::fixtures::{TestDb, eventually, number, retry_soon};
use crate::sidecar::{Sidecar, shell};

const SCHEDULERS: usize = 4;
/// Rounds without `DULY_ROUNDS`.
const ROUNDS: usize = 5;
/// The limit on the key: the number of files that its commands can lock.
const RUNNING: u32 = 3;
const STARTS: u32 = 10;
const PER: Duration = Duration::from_secs(2);
/// Commands begin later than they are claimed, by different times: any window shorter by this much must obey the rate.
const LATENESS: i64 = 1_200;

fn start(db: &TestDb) -> Sidecar {
    Sidecar::spawn(db, &["--lease", "10m", "--poll", "100ms"])
}

#[test]
fn four_schedulers_that_are_killed_exceed_no_limit() {
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let rounds = number("DULY_ROUNDS", ROUNDS);
    let tasks = 7 + rounds;
    let (db, client) = TestDb::with_client();
    client.set_limit(Limit::key("smtp", RUNNING)).expect("a limit");
    client.set_limit(Limit::rate("command", STARTS, PER)).expect("a limit");
    let home = db.home().display();
    let begin = format!("date +%s%3N >>{home}/starts");
    // A lock lasts as long as the command or any child of it.
    let limited = format!(
        "taken=; for slot in 1 2 {RUNNING}; do exec 9>>{home}/slot-$slot; if flock -n 9; then taken=1; break; fi; done
         [ \"$taken\" ] || echo over >>{home}/over
         {begin}; sleep 0.3; echo end >>{home}/ends"
    );
    for number in 0..tasks {
        let name = format!("limited-{number}");
        client.add(retry_soon(shell(&name, &limited), 1000).concurrency_key("smtp")).expect("a task");
        client.add(retry_soon(shell(&format!("free-{number}"), &begin), 1000)).expect("a task");
    }
    let mut sidecars: Vec<Sidecar> = (0..SCHEDULERS).map(|_| start(&db)).collect();
    let unfinished = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    let planned = "SELECT count(*) FROM scheduled_tasks WHERE status <> 'completed'";
    let is_over = || db.ask(unfinished) == "0" && db.ask(planned) == "0";
    for _ in 0..rounds {
        let before = db.lines("starts").len();
        let moment = random.usize(0..4);
        eventually("more has started", || db.lines("starts").len() >= before + moment || is_over());
        let one = random.usize(..SCHEDULERS);
        sidecars[one].kill();
        sidecars[one] = start(&db);
    }
    eventually("nothing is left to do", is_over);
    sidecars.iter_mut().for_each(Sidecar::terminate);
    db.assert_sound();
    assert_eq!(db.lines("over"), [""; 0], "more than {RUNNING} ran at once");
    let mut starts: Vec<i64> = db.lines("starts").iter().map(|line| line.parse().expect("milliseconds")).collect();
    assert!(starts.len() >= 2 * tasks && db.lines("ends").len() >= tasks, "{} starts", starts.len());
    starts.sort_unstable();
    let window = i64::try_from(PER.as_millis()).expect("a time") - LATENESS;
    let too_many = starts.windows(STARTS as usize + 1).find(|starts| starts[STARTS as usize] - starts[0] < window);
    assert_eq!(too_many, None, "more than {STARTS} starts within {window} ms");
}
