//! duly on the same days: a real file, the poller of the scheduler, and a manual clock.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use duly::testing::{ManualClock, Stepper};
use duly::{Claim, Client, Event, NewTask, Outcome, Timestamp};

use super::day::{CRON, Day, POLL, Result, Schedule, Trouble, clock, due};
use super::journal::{Journal, What};

const TASK: &str = "carousel";

/// Runs duly through a day, on a file of its own.
pub(crate) fn live(day: &Day) -> Result<Journal> {
    let home = tempfile::tempdir()?;
    live_in(day, &home.path().join("bot.db"))
}

/// As [`live`], on a file that a test can inspect afterwards.
pub(crate) fn live_in(day: &Day, file: &Path) -> Result<Journal> {
    let time = ManualClock::new(day.begin());
    let mut journal = Journal::default();
    let mut processes = Vec::new();
    for name in ('A'..).take(day.processes()) {
        processes.push(Process::start(name, file, &time)?);
    }
    let task = match day.schedule {
        Schedule::Cron => NewTask::cron(TASK, CRON),
        Schedule::Once => NewTask::once(TASK, due()),
    };
    processes[0].stepper.client().add(task.handler("work"))?;

    let mut now = day.begin();
    while now <= day.end() {
        match day.trouble {
            Trouble::Killed { at, .. } if at == now => {
                processes.drain(..).for_each(|process| drop(process.stepper.crash()));
                journal.write(now, 'A', What::Killed);
            }
            Trouble::Killed { back, .. } if back == now => {
                journal.write(now, 'A', What::Back);
                processes.push(Process::start('A', file, &time)?);
            }
            _ => {}
        }
        for (position, process) in processes.iter_mut().enumerate() {
            // Finding a task due and claiming it are one transaction: a process can stall before or after it, not in
            // between.
            match day.trouble {
                Trouble::Stalled { until } if position == 0 && due() <= now && now < until => {
                    if now == due() {
                        journal.note(now, process.name, "stalls before it looks");
                    }
                }
                Trouble::Stalled { until } if position == 0 && now == until => {
                    if process.turn(&mut journal, day, now)? == 0 {
                        journal.note(now, process.name, "continues, and finds nothing due");
                    }
                }
                _ => drop(process.turn(&mut journal, day, now)?),
            }
        }
        let next = next_moment(&processes, day, now);
        time.advance(next.since(now));
        now = next;
    }
    journal.on_record = Some(on_record(processes[0].stepper.client())?);
    Ok(journal)
}

/// Returns the next whole minute, or the earlier time at which a run ends or a process would wake.
fn next_moment(processes: &[Process], day: &Day, now: Timestamp) -> Timestamp {
    let into_the_minute = now.as_millis().rem_euclid(60_000);
    let whole = Timestamp::from_millis(now.as_millis() - into_the_minute + 60_000);
    let wakes = processes.iter().map(|process| now.plus(process.stepper.sleeps()));
    let ends =
        processes.iter().flat_map(|process| &process.under_way).map(|(_, claim)| claim.claimed_at.plus(day.takes));
    // A stalled process may wait for a time that has passed; the clock advances anyway.
    wakes.chain(ends).filter(|at| *at > now).fold(whole, Ord::min)
}

/// Returns what the file records of the task.
fn on_record(client: &Client) -> Result<String> {
    let mut lines = Vec::new();
    for run in client.history(TASK, 10)? {
        let lost: String = client
            .attempts(run.id)?
            .iter()
            .map(|attempt| {
                let error = attempt.error.as_deref().unwrap_or("no reason given");
                format!("; attempt {} {}: {error}", attempt.attempt, attempt.outcome)
            })
            .collect();
        lines.push(format!("{}, {} at attempt {}{lost}", clock(run.scheduled_for), run.status, run.attempt));
    }
    Ok(lines.join("; "))
}

struct Process {
    name: char,
    stepper: Stepper,
    under_way: Vec<(usize, Arc<Claim>)>,
    /// The events of lost attempts since the last turn.
    events: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn start(name: char, file: &Path, time: &ManualClock) -> Result<Self> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let observer = move |event: &Event| {
            if let Event::Lost { attempt, next_attempt, .. } = event {
                let next = next_attempt.map_or("none is left".to_owned(), |at| format!("the next is at {}", clock(at)));
                let text = format!("attempt {attempt} is recorded as lost; {next}");
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            }
        };
        // The poll interval of the loops. The lease only sets the heartbeat to the same minute: death is detected by
        // the lock, and no lease has to end.
        let stepper = Stepper::builder(file, due())
            .clock(time)
            .poll(POLL)
            .lease(3 * POLL)
            .accept("work")
            .observe(observer)
            .start()?;
        Ok(Process { name, stepper, under_way: Vec::new(), events })
    }

    /// As in the loops, ending runs end before the poll; here both are one transaction. Returns the number of started
    /// runs.
    fn turn(&mut self, journal: &mut Journal, day: &Day, now: Timestamp) -> Result<usize> {
        let (ended, under_way) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(_, claim)| claim.claimed_at.plus(day.takes) <= now);
        self.under_way = under_way;
        for (start, claim) in ended {
            journal.write(now, self.name, What::Ended(start));
            self.stepper.finish(&claim, Outcome::succeeded());
        }
        let claims = self.stepper.step()?;
        for text in self.events.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            journal.note(now, self.name, text);
        }
        let started = claims.len();
        self.under_way.extend(claims.into_iter().map(|claim| (journal.start(now, self.name), claim)));
        Ok(started)
    }
}
