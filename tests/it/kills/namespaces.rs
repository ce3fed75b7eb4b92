//! Schedulers in two PID namespaces, and one in a third that has no `/proc`: none sees the processes of another. Schedulers and guards are
//! killed alone, together, and with their namespace, while commands replace their input, close the other copy of it, ignore SIGTERM, fork,
//! and leave their group. Nothing starts beside an attempt that runs, nothing is lost, and no run waits for ever. `DULY_ROUNDS` sets the
//! number of faults.

use std::fs::File;
use std::time::{Duration, Instant};

use duly::AttemptOutcome;

use crate::evidence::{UNSHARE, tool_works};
use crate::fixtures::{eventually, retry_soon, seconds};
use crate::kills::journal::{NUMBER, OF_TASK, probe};
use crate::kills::process::{Kind, Process, Setup};
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

/// How many commands run, or wait to run, that replace their input.
const REPLACING: usize = 6;
/// For how many tenths of a second such a command is at work at most, unless its gate is opened before: shorter than the ten seconds after
/// which a guard kills it.
const AT_WORK: u32 = 80;
/// The age of such a command, at most, when its scheduler is killed.
const FRESH: Duration = Duration::from_secs(2);

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

impl Killed {
    /// Whether commands go on without their scheduler.
    fn leaves_commands(self) -> bool {
        matches!(self, Killed::Scheduler | Killed::Both)
    }

    fn may_meet(self, scheduler: &Process) -> bool {
        match self {
            Killed::Both | Killed::Guard => !keeps_guard(scheduler.number),
            Killed::Scheduler | Killed::Namespace => true,
        }
    }
}

/// Commands that replace their input, lock a file of their scheduler meanwhile, and wait for its gate.
#[derive(Default)]
struct Replacing {
    added: usize,
}

/// What such a command does with its input and its copies.
const REPLACES: &str = "replaces";
/// It closes each descriptor that duly gave it, too.
const CLOSES: &str = "closes";

impl Replacing {
    /// The file that the commands of a scheduler lock.
    fn path(soak: &Soak, what: &str, number: &str) -> String {
        format!("{}/{what}-{number}", soak.db.home().display())
    }

    /// Adds as many as have ended. Every third one closes each descriptor that duly gave it, if its guard cannot be killed before it ends.
    fn supply(&mut self, soak: &mut Soak) {
        let ended = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                      WHERE t.name LIKE 'replaces-%' AND r.status IN ('succeeded', 'dead', 'cancelled')";
        let ended = soak.db.number::<usize>(ended);
        let path = |what| Self::path(soak, what, &format!("${NUMBER}"));
        let locks = |what| format!("exec 8>>{}; flock -s 8; echo $DULY_RUN_ID >&8", path(what));
        let waits = format!("for i in $(seq {AT_WORK}); do [ -e {} ] && break; sleep 0.1; done", path("gate"));
        let replaces = format!("{}; trap '' TERM; exec </dev/null; {waits}", locks(REPLACES));
        let closes = format!(
            "if [ -e /proc/self ] && [ $((${NUMBER} % 2)) = 1 ]; then export me journal; {}
             exec bash -c 'trap \"\" TERM; exec 41>&- </dev/null; {waits}; echo \"ended $me\" >>$journal'
             fi; {replaces}",
            locks(CLOSES)
        );
        for number in self.added..ended + REPLACING {
            let line = probe(soak.db.home(), OF_TASK, if number % 3 == 2 { &closes } else { &replaces });
            let task = |name: &str| retry_soon(shell(name, &line), 1000).priority(0).timeout(seconds(60));
            soak.add(&format!("replaces-{number}"), 1, task);
        }
        self.added = self.added.max(ended + REPLACING);
    }

    /// Returns the run of the newest command of this scheduler, and its age, if one is at work.
    fn at_work(soak: &Soak, what: &str, number: u32) -> Option<(String, Duration)> {
        let path = Self::path(soak, what, &number.to_string());
        let file = File::open(&path).ok()?;
        let at = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
        let is_locked = file.try_lock().is_err();
        let runs = std::fs::read_to_string(path).expect("runs");
        is_locked.then(|| runs.lines().last().map(|run| (run.to_owned(), at.elapsed().unwrap_or_default()))).flatten()
    }

    /// Chooses a scheduler with a command that began a moment ago: one that has closed its descriptors, where that matters.
    fn choose(soak: &mut Soak, killed: Killed) -> Option<usize> {
        let is_fresh = |index: &usize, what: &str| {
            let work = Self::at_work(soak, what, soak.schedulers[*index].number);
            work.is_some_and(|(_, age)| age <= FRESH)
        };
        let may_meet = |index: &usize| {
            let scheduler = &soak.schedulers[*index];
            scheduler.is_running() && killed.may_meet(scheduler)
        };
        let all = || (0..soak.schedulers.len()).filter(may_meet);
        let closed = all().find(|index| killed == Killed::Scheduler && is_fresh(index, CLOSES));
        let fresh: Vec<usize> = all().filter(|index| is_fresh(index, REPLACES)).collect();
        closed.or_else(|| soak.random.choice(fresh))
    }
}

/// What was seen of the kills of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    kills: usize,
    /// A command was at work after another scheduler had taken over what the killed one left.
    outlived: usize,
    /// One of these had closed each descriptor that duly gave it.
    closed: usize,
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
    let (mut replacing, mut tallies) = (Replacing::default(), [Tally::default(); KILLED.len()]);
    for round in 0..rounds(KILLED.len()) {
        for (name, work) in WORK {
            let line = probe(soak.db.home(), OF_TASK, work);
            let task = |name: &str| retry_soon(shell(name, &line), 1000).timeout(seconds(60));
            soak.add(&format!("{name}-{round}"), 2, task);
            soak.add_mortal(&format!("{name}-once-{round}"), 1, true, task);
        }
        soak.after_lines(20);
        let mut killed = KILLED.get(round).copied().unwrap_or_else(|| KILLED[soak.random.usize(..KILLED.len())]);
        // The restart of a scheduler has the next number.
        if !soak.schedulers.iter().any(|scheduler| killed.may_meet(scheduler)) {
            killed = Killed::Scheduler;
        }
        let mut chosen = None;
        eventually("a scheduler runs a command that replaced its input", || {
            replacing.supply(&mut soak);
            chosen = Replacing::choose(&mut soak, killed);
            chosen.is_some()
        });
        let index = chosen.expect("a scheduler");
        let number = soak.schedulers[index].number;
        let work = [REPLACES, CLOSES].into_iter().find_map(|what| Replacing::at_work(&soak, what, number));
        let owner = work
            .as_ref()
            .map(|(run, _)| soak.db.ask(&format!("SELECT ifnull(locked_by, '') FROM task_runs WHERE id = {run}")));
        let (killed_at, age) = (Instant::now(), work.map_or(Duration::MAX, |(_, age)| age));
        tallies[killed as usize].kills += 1;
        if killed.leaves_commands() {
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
        if let Some(owner) = owner.filter(|owner| killed.leaves_commands() && !owner.is_empty()) {
            // A scheduler that takes over marks the lock file, and removes it when nothing is left to recover.
            let lock_file = soak.db.lock_folder().join(owner);
            let is_taken_over = || std::fs::read(&lock_file).map_or(true, |bytes| bytes.first() == Some(&b'D'));
            eventually("another scheduler has taken over", is_taken_over);
            // It would begin what is not known to be at work within these lines.
            soak.after_lines(20);
            let [replaces, closes] = [REPLACES, CLOSES].map(|what| Replacing::at_work(&soak, what, number).is_some());
            // On a busy machine it may have ended by itself.
            let must_be = age.saturating_add(killed_at.elapsed()) < Duration::from_millis(100) * AT_WORK;
            assert!(replaces || closes || !must_be, "{killed:?}: its command has ended with it");
            tallies[killed as usize].outlived += usize::from(replaces || closes);
            tallies[killed as usize].closed += usize::from(closes);
            std::fs::write(Replacing::path(&soak, "gate", &number.to_string()), "").expect("a gate");
        }
    }
    for killed in KILLED {
        let Tally { kills, outlived, closed } = tallies[killed as usize];
        println!("{killed:?}: {kills} kills; commands outlived {outlived}, and {closed} with all descriptors closed");
        let is_much = outlived * 2 >= kills || kills < 4;
        assert!(!killed.leaves_commands() || is_much, "{killed:?}: little was shown of commands at work");
        assert!(killed != Killed::Scheduler || kills < 20 || closed > 0, "nothing was shown of closed descriptors");
    }
    let counts = soak.end();
    assert!(counts.starts > 0);
}
