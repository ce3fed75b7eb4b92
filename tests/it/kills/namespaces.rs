//! Schedulers in two PID namespaces, and one in a third that has no `/proc`: none sees the processes of another. Schedulers and guards are
//! killed alone, together, and with their namespace, while commands replace their input, ignore SIGTERM, fork, and leave their group.
//! Nothing starts beside an attempt that runs, nothing is lost, and no run waits for ever. `DULY_ROUNDS` sets the number of faults.

use duly::AttemptOutcome;

use crate::evidence::{UNSHARE, tool_works};
use crate::fixtures::{eventually, retry_soon, seconds};
use crate::kills::journal::{OF_TASK, probe};
use crate::kills::process::{Kind, Setup};
use crate::kills::soak::Soak;
use crate::kills::soaks::rounds;
use crate::sidecar::shell;

/// What the commands do, each for less than the ten seconds after which a guard kills it. What leaves the group gives up the lock by which the
/// journal knows that an attempt runs: it is no part of the run any more.
const WORK: [(&str, &str); 5] = [
    ("replaces", "exec </dev/null; sleep 0.2"),
    ("ignores", "trap '' TERM; exec </dev/null; sleep 0.9"),
    ("forks", "(sleep 0.4; true) </dev/null & (sleep 0.2; true) & wait"),
    ("orphans", "(trap '' TERM; (sleep 0.8; true) & exit 0) </dev/null; sleep 0.1"),
    ("leaves", "setsid sleep 1.5 </dev/null >/dev/null 2>&1 9>&- & sleep 0.2"),
];

#[test]
fn torture_of_namespaces_starts_nothing_beside_a_running_attempt() {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return;
    }
    let mut soak = Soak::new();
    soak.rules.outcomes = Some(&[AttemptOutcome::Lost, AttemptOutcome::Released]);
    let setup = Setup { options: vec!["--drain".to_owned(), "10s".to_owned()], ..Setup::LONG };
    let kinds = [Kind::Namespaced, Kind::Namespaced, Kind::NoProc];
    kinds.into_iter().for_each(|kind| soak.start(kind, &setup));
    for round in 0..rounds(4) {
        for (name, work) in WORK {
            let line = probe(soak.db.home(), OF_TASK, work);
            let task = |name: &str| retry_soon(shell(name, &line), 1000).timeout(seconds(60));
            soak.add(&format!("{name}-{round}"), 2, task);
            soak.add_mortal(&format!("{name}-once-{round}"), 1, true, task);
        }
        soak.after_lines(20);
        let index = soak.random.usize(..soak.schedulers.len());
        eventually("its scheduler runs", || soak.schedulers[index].is_running());
        let fault = soak.random.u8(..4);
        if fault == 0 {
            let process = soak.take_out(index);
            let kind = process.kind;
            process.kill();
            soak.start(kind, &setup);
            continue;
        }
        if fault != 1 {
            soak.record_kill(soak.schedulers[index].number);
        }
        match fault {
            1 => soak.schedulers[index].kill_guard(),
            2 => soak.schedulers[index].kill_scheduler(),
            _ => {
                soak.schedulers[index].signal("STOP");
                soak.schedulers[index].kill_guard();
                soak.schedulers[index].kill_scheduler();
            }
        }
    }
    let counts = soak.end();
    assert!(counts.starts > 0);
}
