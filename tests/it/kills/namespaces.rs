//! Schedulers in two PID namespaces, and one in a third that has no `/proc`: none sees the processes of another. Schedulers and guards are
//! killed alone, together, and with their namespace, while commands replace their input, close the other copy of it, ignore SIGTERM, fork,
//! and leave their group. Nothing starts beside an attempt that runs, nothing is lost, and no run waits for ever. `DULY_ROUNDS` sets the
//! number of faults.

use std::fs::File;
use std::time::Duration;

use duly::AttemptOutcome;

use crate::evidence::{UNSHARE, tool_works};
use crate::fixtures::{eventually, retry_soon, seconds};
use crate::kills::journal::{NUMBER, OF_TASK, probe};
use crate::kills::process::{Kind, Setup};
use crate::kills::soak::Soak;
use crate::kills::soaks::rounds;
use crate::sidecar::shell;

/// What short commands do. What leaves the group gives up the lock by which the journal knows that an attempt runs: it is no part of the run
/// any more.
const WORK: [(&str, &str); 4] = [
    ("ignores", "trap '' TERM; exec </dev/null; sleep 0.9"),
    ("forks", "(sleep 0.4; true) </dev/null & (sleep 0.2; true) & wait"),
    ("orphans", "(trap '' TERM; (sleep 0.8; true) & exit 0) </dev/null; sleep 0.1"),
    ("leaves", "setsid sleep 1.5 </dev/null >/dev/null 2>&1 9>&- & sleep 0.2"),
];

/// How many commands run, or wait to run, whose input is replaced for [`AT_WORK`].
const REPLACING: usize = 6;
/// How long such a command is at work: longer than another scheduler needs to find the death of its own, and shorter than the ten seconds
/// after which a guard kills it.
const AT_WORK: Duration = Duration::from_millis(2500);
/// The age of such a command, at most, when its scheduler is killed.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Namespace,
    Guard,
    Scheduler,
    Both,
}

const KILLED: [Killed; 4] = [Killed::Both, Killed::Scheduler, Killed::Guard, Killed::Namespace];

/// Whether the guard of the scheduler with this number is never killed alone: its commands may close the lock that they inherit.
fn keeps_guard(number: u32) -> bool {
    number % 2 == 1
}

/// Commands that replace their input, and lock a file of their scheduler meanwhile.
#[derive(Default)]
struct Replacing {
    added: usize,
}

impl Replacing {
    fn path(soak: &Soak, number: &str) -> String {
        format!("{}/replaced-{number}", soak.db.home().display())
    }

    /// Adds as many as have ended. Every third one closes each descriptor that duly gave it, if its guard cannot be killed before it ends.
    fn supply(&mut self, soak: &mut Soak) {
        let ended = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                      WHERE t.name LIKE 'replaces-%' AND r.status IN ('succeeded', 'dead', 'cancelled')";
        let (ended, seconds_at_work) = (soak.db.number::<usize>(ended), AT_WORK.as_secs_f64());
        let path = Self::path(soak, &format!("${NUMBER}"));
        let replaces =
            format!("exec 8>>{path}; flock -s 8; trap '' TERM; exec </dev/null; echo >&8; sleep {seconds_at_work}");
        let closes = format!(
            "if [ -e /proc/self ] && [ $((${NUMBER} % 2)) = 1 ]; then export me journal
             exec bash -c 'trap \"\" TERM; exec 41>&- </dev/null; sleep {seconds_at_work}; echo \"ended $me\" >>$journal'
             fi; {replaces}"
        );
        for number in self.added..ended + REPLACING {
            let line = probe(soak.db.home(), OF_TASK, if number % 3 == 2 { &closes } else { &replaces });
            let task = |name: &str| retry_soon(shell(name, &line), 1000).priority(0).timeout(seconds(60));
            soak.add(&format!("replaces-{number}"), 1, task);
        }
        self.added = self.added.max(ended + REPLACING);
    }

    /// Returns whether one of this scheduler is at work, which began at most this time ago.
    fn is_at_work(soak: &Soak, number: u32, began: Duration) -> bool {
        let Ok(file) = File::open(Self::path(soak, &number.to_string())) else { return false };
        let at = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
        file.try_lock().is_err() && at.elapsed().is_ok_and(|age| age <= began)
    }
}

#[test]
fn torture_of_namespaces_starts_nothing_beside_a_running_attempt() {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) || !tool_works("bash", &["--version"]) {
        return;
    }
    let mut soak = Soak::new();
    soak.rules.outcomes = Some(&[AttemptOutcome::Lost, AttemptOutcome::Released]);
    let setup = Setup { options: vec!["--drain".to_owned(), "10s".to_owned()], ..Setup::LONG };
    let kinds = [Kind::Namespaced, Kind::Namespaced, Kind::NoProc];
    kinds.into_iter().for_each(|kind| soak.start(kind, &setup));
    let (mut replacing, mut at_work) = (Replacing::default(), 0);
    for round in 0..rounds(KILLED.len()) {
        for (name, work) in WORK {
            let line = probe(soak.db.home(), OF_TASK, work);
            let task = |name: &str| retry_soon(shell(name, &line), 1000).timeout(seconds(60));
            soak.add(&format!("{name}-{round}"), 2, task);
            soak.add_mortal(&format!("{name}-once-{round}"), 1, true, task);
        }
        soak.after_lines(20);
        let index = soak.random.usize(..soak.schedulers.len());
        eventually("its scheduler runs a command that replaced its input", || {
            replacing.supply(&mut soak);
            let scheduler = &soak.schedulers[index];
            scheduler.is_running() && Replacing::is_at_work(&soak, scheduler.number, FRESH)
        });
        let number = soak.schedulers[index].number;
        let killed = KILLED.get(round).copied().unwrap_or_else(|| KILLED[soak.random.usize(..KILLED.len())]);
        let killed = match killed {
            Killed::Both | Killed::Guard if keeps_guard(number) => Killed::Scheduler,
            killed => killed,
        };
        if matches!(killed, Killed::Scheduler | Killed::Both) {
            soak.record_kill(number);
        }
        match killed {
            Killed::Namespace => {
                let process = soak.take_out(index);
                let kind = process.kind;
                process.kill();
                soak.start(kind, &setup);
            }
            Killed::Guard => soak.schedulers[index].kill_guard(),
            Killed::Scheduler => soak.schedulers[index].kill_scheduler(),
            Killed::Both => {
                soak.schedulers[index].signal("STOP");
                soak.schedulers[index].kill_guard();
                soak.schedulers[index].kill_scheduler();
            }
        }
        // The commands of a killed scheduler go on.
        if matches!(killed, Killed::Scheduler | Killed::Both) {
            at_work += usize::from(Replacing::is_at_work(&soak, number, AT_WORK));
        }
    }
    println!("in {at_work} rounds a command that had replaced its input outlived its scheduler");
    assert!(at_work > 0, "nothing was shown of commands that replace their input");
    let counts = soak.end();
    assert!(counts.starts > 0);
}
