//! The driver: schedulers on one database, the faults that they meet in each round, and the comparison at the end.

use std::fs::File;

use duly::NewTask;
use rusqlite::Connection;

use crate::fixtures::{TestDb, eventually, number};
use crate::kills::checker::{Facts, Rules, processes_of};
use crate::kills::handlers::FINISH;
use crate::kills::journal;
use crate::kills::process::{Kind, Process, Setup};
use crate::selftest::checker::{Counts, Expectation, Line};

/// What a round does, to one scheduler that is chosen at random unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Kill,
    KillAll,
    /// It ends its attempts and exits.
    Drain,
    /// SIGKILL for its worker process.
    KillWorker,
    KillWorkerAndScheduler,
}

pub(crate) struct Soak {
    // Dropped before the database: processes end while its files exist.
    pub(crate) schedulers: Vec<Process>,
    pub(crate) random: fastrand::Rng,
    pub(crate) client: duly::Client,
    pub(crate) rules: Rules,
    journal: File,
    pub(crate) db: TestDb,
}

/// Work that is neither done nor given up.
const UNFINISHED: &str = "
    SELECT 'run ' || r.id || ' of ' || name || ' is ' || r.status || ', ' || coalesce(blocked, 'not blocked')
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE r.status IN ('queued', 'running', 'failed')
     UNION ALL
    SELECT name || ' is due at ' || coalesce(next_run, 'some time') FROM scheduled_tasks
     WHERE status IN ('active', 'invalid') AND coalesce(next_run, 0) < 1893456000000";

/// What `schema.sql` allows another program to change in a task named `?1`. Beside these, a schedule can be changed.
const EDITS: [&str; 5] = [
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = ?1 AND status = 'active'",
    "UPDATE scheduled_tasks SET status = 'active' WHERE name = ?1 AND status = 'paused'",
    "UPDATE scheduled_tasks SET next_run = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
      WHERE name = ?1 AND status IN ('active', 'paused')",
    "UPDATE task_runs SET cancel_requested = 1 WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = ?1)
        AND (status = 'queued' OR status = 'running' OR status = 'failed')",
    "UPDATE scheduled_tasks SET priority = (priority + 1) % 4,
        schedule_value = CASE schedule_value WHEN '700ms' THEN '500ms' WHEN '500ms' THEN '700ms' ELSE '2s' END WHERE name = ?1",
];

/// Makes one of these changes. Returns the number of changed rows.
pub(crate) fn edit(plain: &Connection, random: &mut fastrand::Rng, task: &str) -> rusqlite::Result<usize> {
    plain.execute(EDITS[random.usize(..EDITS.len())], [task])
}

impl Soak {
    /// Nothing is started yet. `DULY_SEED` repeats the choices; their timing depends on the machine.
    pub(crate) fn new() -> Soak {
        let seed = number("DULY_SEED", fastrand::u64(..));
        println!("DULY_SEED={seed}");
        let (db, client) = TestDb::with_client();
        let tables = "CREATE TABLE kept (run INTEGER NOT NULL, attempt INTEGER NOT NULL, part INTEGER NOT NULL);
                      CREATE INDEX kept_run ON kept (run)";
        db.plain().execute_batch(tables).expect("a table");
        let journal = journal::open(db.home());
        let random = fastrand::Rng::with_seed(seed);
        Soak { schedulers: Vec::new(), random, client, rules: Rules::default(), journal, db }
    }

    pub(crate) fn start(&mut self, kind: Kind, setup: &Setup) {
        self.schedulers.push(Process::start(&self.db, kind, setup));
    }

    /// Adds tasks that each have one run, which succeeds. Their names are `NAME:number`.
    pub(crate) fn add(&mut self, name: &str, count: usize, task: impl Fn(&str) -> NewTask) {
        let names: Vec<String> = (0..count).map(|number| format!("{name}:{number}")).collect();
        self.client.add_all(names.iter().map(|name| task(name))).expect("new tasks");
        self.rules.once.extend(names.into_iter().map(|name| (name, false)));
    }

    /// The same of tasks that start at most once, or not again in doubt: their run may be dead.
    pub(crate) fn add_mortal(&mut self, name: &str, count: usize, at_most_once: bool, task: impl Fn(&str) -> NewTask) {
        self.add(name, count, |name| if at_most_once { task(name).at_most_once() } else { task(name) });
        for number in 0..count {
            let task = format!("{name}:{number}");
            self.rules.once.insert(task.clone(), true);
            self.rules.tasks.push(Expectation { task, at_most_once, ..Expectation::default() });
        }
    }

    /// Waits for further lines of the journal, a random number below `at_most`, unless no work is left.
    pub(crate) fn after_lines(&mut self, at_most: usize) {
        let enough = journal::length(self.db.home()) + self.random.usize(..at_most);
        eventually("enough is done", || journal::length(self.db.home()) >= enough || self.is_over());
    }

    pub(crate) fn is_over(&self) -> bool {
        self.db.rows(UNFINISHED).is_empty()
    }

    /// What a scheduler has begun may begin again from now on.
    pub(crate) fn record_kill(&self, number: u32) {
        journal::write(&self.journal, &Line::Killed { process: number }).expect("a line");
    }

    /// Removes a scheduler, to be killed or drained.
    pub(crate) fn take_out(&mut self, index: usize) -> Process {
        let process = self.schedulers.swap_remove(index);
        self.record_kill(process.number);
        process
    }

    /// Lets one of these faults happen, starts what it ended, and waits until no dead scheduler has a run.
    pub(crate) fn meet(&mut self, faults: &[Fault]) {
        let fault = faults[self.random.usize(..faults.len())];
        let index = self.random.usize(..self.schedulers.len());
        if matches!(fault, Fault::KillWorker | Fault::KillWorkerAndScheduler) {
            self.record_kill(self.schedulers[index].number);
            self.schedulers[index].kill_worker();
        }
        let ended: Vec<Process> = match fault {
            Fault::KillAll => (0..self.schedulers.len()).map(|_| self.take_out(0)).collect(),
            Fault::KillWorker => Vec::new(),
            _ => vec![self.take_out(index)],
        };
        let mut again = Vec::new();
        for process in ended {
            again.push((process.kind, process.setup.clone(), process.pid()));
            if matches!(fault, Fault::Drain) { process.end() } else { process.kill() }
        }
        again.iter().for_each(|(kind, setup, _)| self.start(*kind, setup));
        for (_, _, pid) in again {
            // Its successor recovers them in its first turn, or another scheduler in its next.
            let left = format!(
                "SELECT count(*) FROM task_runs r JOIN scheduler_instances i ON i.id = r.locked_by WHERE i.pid = {pid}"
            );
            eventually("the dead owner has no run", || self.db.ask(&left) == "0");
        }
    }

    /// Requires that the rows of handlers and the outcomes of their runs agree, also while schedulers run: one statement reads both.
    pub(crate) fn assert_rows_agree(&self) {
        let disagree = format!(
            "SELECT 'kept', run FROM kept WHERE run NOT IN (SELECT id FROM task_runs WHERE status = 'succeeded')
              UNION ALL
             SELECT 'succeeded', id FROM task_runs r WHERE status = 'succeeded' AND handler = '{FINISH}'
                AND (SELECT group_concat(part) FROM kept WHERE run = r.id AND kept.attempt = r.attempt) IS NOT '1,2'"
        );
        assert_eq!(self.db.rows(&disagree), [""; 0]);
    }

    /// Waits until no work is left.
    pub(crate) fn finish(&self) {
        eventually("nothing is left to do", || self.is_over());
    }

    /// Finishes all work, ends the schedulers, and compares the journal with the tables.
    pub(crate) fn end(mut self) -> Counts {
        self.finish();
        self.schedulers.drain(..).for_each(Process::end);
        eventually("no process is left", || processes_of(&self.db).is_empty());
        // A guard ends a moment after the last process that it waited for.
        let is_held = |name: &String| {
            let file = File::open(self.db.lock_folder().join(name));
            name.ends_with(".guard") && file.is_ok_and(|file| file.try_lock_shared().is_err())
        };
        eventually("no guard is left", || !self.db.lock_files().iter().any(is_held));
        // One more removes the files of those that were killed at their start.
        Process::start(&self.db, Kind::Program, &Setup::LONG).end();
        let counts = Facts::read(&self.db).assert(&self.rules);
        self.db.assert_sound();
        counts
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic during a panic would abort all tests.
            let rows = Connection::open(self.db.file()).and_then(|plain| {
                plain.prepare(UNFINISHED)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()
            });
            eprintln!("--- not done: {rows:#?}");
        }
    }
}
