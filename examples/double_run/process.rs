//! A polling process, as the author of the loop wrote it: due tasks enter a queue in memory, the queue starts as many
//! as it may, and each run takes its time.
//!
//! The order within a minute is fixed, and favours the loops: first ending runs end, and their end is stored; then the
//! queue starts pending tasks; then the loop polls. So a run of five minutes is over before the poll of its last
//! minute.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use duly::Timestamp;
use rusqlite::{Connection, named_params};

use super::day::{CRON, Day, Result, Schedule, Trouble, clock, due};
use super::journal::{Journal, What};
use super::loops::{DueTask, Loop, TABLES, Take, due_tasks, stored_next_run};

/// Runs a loop through a day, on a file of its own.
pub(crate) fn live(day: &Day, naive: &dyn Loop) -> Result<Journal> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("bot.db");
    set_up(&file, day, naive)?;

    let mut world = World { journal: Journal::default(), next_run: Some(due()), naive, takes: day.takes };
    let mut processes = Vec::new();
    for name in ('A'..).take(day.processes()) {
        processes.push(Process::start(name, &file)?);
    }
    for now in day.minutes() {
        match day.trouble {
            Trouble::Killed { at, .. } if at == now => {
                // The memory of the process is lost; only the file remains.
                processes.clear();
                world.journal.write(now, 'A', What::Killed);
            }
            Trouble::Killed { back, .. } if back == now => {
                world.journal.write(now, 'A', What::Back);
                processes.push(Process::start('A', &file)?);
            }
            _ => {}
        }
        for (position, process) in processes.iter_mut().enumerate() {
            let stalls_until = match day.trouble {
                Trouble::Stalled { until } if position == 0 => Some(until),
                _ => None,
            };
            process.minute(&mut world, now, stalls_until)?;
        }
    }
    Ok(world.journal)
}

fn set_up(file: &Path, day: &Day, naive: &dyn Loop) -> Result<()> {
    let db = Connection::open(file)?;
    db.execute_batch(TABLES)?;
    db.execute_batch(naive.tables())?;
    let (schedule_type, schedule_value) = match day.schedule {
        Schedule::Cron => ("cron", CRON.to_owned()),
        Schedule::Once => ("once", due().to_string()),
    };
    db.execute(
        "INSERT INTO scheduled_tasks (id, chat_jid, prompt, schedule_type, schedule_value, next_run)
         VALUES ('carousel', 'marketing', 'make five slides and send them', :type, :value, :next)",
        named_params! {":type": schedule_type, ":value": schedule_value, ":next": due().to_string()},
    )?;
    Ok(())
}

/// The state shared by all processes of a day.
struct World<'a> {
    journal: Journal,
    /// The last value read from the file, to detect changes.
    next_run: Option<Timestamp>,
    naive: &'a dyn Loop,
    takes: Duration,
}

struct Process {
    name: char,
    db: Connection,
    pending: VecDeque<DueTask>,
    under_way: Vec<UnderWay>,
    /// The tasks that the query found before the process stalled, and when it continues.
    stalled: Option<(Vec<DueTask>, Timestamp)>,
}

struct UnderWay {
    start: usize,
    task: DueTask,
    ends: Timestamp,
}

impl Process {
    fn start(name: char, file: &Path) -> Result<Self> {
        let db = Connection::open(file)?;
        Ok(Process { name, db, pending: VecDeque::new(), under_way: Vec::new(), stalled: None })
    }

    fn minute(&mut self, world: &mut World<'_>, now: Timestamp, stalls_until: Option<Timestamp>) -> Result<()> {
        match self.stalled.take() {
            Some((due, until)) if until <= now => {
                world.journal.note(now, self.name, "continues with the task that it had found due");
                return self.deal_with(world, due, now);
            }
            stalled @ Some(_) => {
                self.stalled = stalled;
                return Ok(());
            }
            None => {}
        }
        self.end_what_ends(world, now)?;
        self.start_pending(world, now);
        let freed = world.naive.clean_up(&self.db, now)?;
        if freed > 0 {
            world.journal.note(now, self.name, "its clean-up takes the run for dead");
        }
        let due = due_tasks(&self.db, now)?;
        match stalls_until {
            Some(until) if now < until && !due.is_empty() => {
                world.journal.note(now, self.name, "finds the task due, and stalls");
                self.stalled = Some((due, until));
                Ok(())
            }
            _ => self.deal_with(world, due, now),
        }
    }

    /// `for (const task of dueTasks)`.
    fn deal_with(&mut self, world: &mut World<'_>, due: Vec<DueTask>, now: Timestamp) -> Result<()> {
        for task in due {
            match world.naive.before(&self.db, &task, now)? {
                Take::Leave(why) => world.journal.note(now, self.name, format!("finds the task due; {why}")),
                Take::Enqueue => {
                    self.note_if_moved(world, now)?;
                    self.enqueue(world, task, now);
                }
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, world: &mut World<'_>, task: DueTask, now: Timestamp) {
        if world.naive.queue().looks_at_pending && self.pending.iter().any(|pending| pending.id == task.id) {
            world.journal.note(now, self.name, "finds the task due; already queued, skipping");
            return;
        }
        self.pending.push_back(task);
        self.start_pending(world, now);
        if !self.pending.is_empty() {
            world.journal.note(now, self.name, "finds the task due; queued behind the run");
        }
    }

    /// A task that starts is no longer pending: the queue does not know it any more.
    fn start_pending(&mut self, world: &mut World<'_>, now: Timestamp) {
        while self.under_way.len() < world.naive.queue().at_once {
            let Some(task) = self.pending.pop_front() else { return };
            let start = world.journal.start(now, self.name);
            self.under_way.push(UnderWay { start, task, ends: now.plus(world.takes) });
        }
    }

    fn end_what_ends(&mut self, world: &mut World<'_>, now: Timestamp) -> Result<()> {
        let (ended, under_way) = std::mem::take(&mut self.under_way).into_iter().partition(|run| run.ends <= now);
        self.under_way = under_way;
        for UnderWay { start, task, .. } in ended {
            world.journal.write(now, self.name, What::Ended(start));
            world.naive.after(&self.db, &task, now)?;
            self.note_if_moved(world, now)?;
        }
        Ok(())
    }

    fn note_if_moved(&self, world: &mut World<'_>, now: Timestamp) -> Result<()> {
        let next_run = stored_next_run(&self.db)?;
        if next_run != world.next_run {
            world.next_run = next_run;
            let text = match next_run {
                Some(at) => format!("next_run moves to tomorrow, {}", clock(at)),
                None => "next_run becomes NULL".to_owned(),
            };
            world.journal.note(now, self.name, text);
        }
        Ok(())
    }
}
