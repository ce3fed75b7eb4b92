//! duly on the same days: a scheduler on each host, which keeps its files in a folder of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duly::testing::{ManualClock, Stepper};
use duly::{Claim, Client, Clock, Context, NewTask, Now, Outcome, Scheduler, SystemClock, Timestamp};
use tempfile::TempDir;

use super::Result;
use super::day::{BACK_AFTER, BEHIND, Day, FROZEN, OCCURRENCES, TROUBLED, moments, time_of};
use super::server::{Database, Pool, Server};
use crate::bench::day::minutes;
use crate::bench::journal::{Journal, What};

const CRON: &str = "0 6-17 * * *";
/// Limit for the day in real time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A journal for each occurrence, and the number of attempts that are recorded as lost.
pub(crate) struct Lived {
    pub(crate) journals: Vec<Journal>,
    pub(crate) recorded_as_lost: usize,
}

/// Runs schedulers through a day.
pub(crate) fn live(server: &Server, day: Day) -> Result<Lived> {
    let (database, home) = (server.database()?, tempfile::tempdir()?);
    if day == Day::Skew { in_real_time(&database, &home) } else { stepped(&database, &home, day) }
}

/// Tries to start a scheduler behind pgbouncer. Returns why it does not start; `None` where pgbouncer is not installed.
pub(crate) fn behind_a_pool(server: &Server) -> Result<Option<String>> {
    let (database, home) = (server.database()?, tempfile::tempdir()?);
    let Pool::Bouncer(bouncer) = database.pool()? else { return Ok(None) };
    match Scheduler::builder(&bouncer.address).state_folder(home.path()).handler("work", work).start() {
        Ok(_) => Err("a scheduler starts behind a pool in transaction mode".into()),
        Err(error) => Ok(Some(error.to_string())),
    }
}

fn work(_: &Context) -> std::result::Result<(), duly::Error> {
    Ok(())
}

struct Host {
    name: char,
    /// `None`: it is down.
    stepper: Option<Stepper>,
    /// The sessions of the server that it has.
    backends: Vec<i32>,
    back_at: Option<Timestamp>,
    frozen_until: Option<Timestamp>,
    under_way: Option<(Arc<Claim>, usize, Timestamp)>,
}

impl Host {
    fn start(&mut self, database: &Database<'_>, home: &TempDir, clock: &ManualClock) -> Result<()> {
        let before = database.backends()?;
        let stepper = Stepper::builder(database.address(), clock.now().wall).clock(clock);
        let stepper = stepper.state_folder(home.path().join(self.name.to_string())).workers(1).poll(minutes(1));
        self.stepper = Some(stepper.accept("work").start()?);
        self.backends = database.backends()?.into_iter().filter(|backend| !before.contains(backend)).collect();
        Ok(())
    }
}

/// Steps schedulers through the day on a clock that the bench moves, minute by minute.
fn stepped(database: &Database<'_>, home: &TempDir, day: Day) -> Result<Lived> {
    let clock = ManualClock::new(time_of(0).minus(minutes(1)));
    let mut hosts = Vec::new();
    for name in ('A'..).take(day.hosts()) {
        let mut host =
            Host { name, stepper: None, backends: Vec::new(), back_at: None, frozen_until: None, under_way: None };
        host.start(database, home, &clock)?;
        hosts.push(host);
    }
    let client = hosts[0].stepper.as_ref().map(|stepper| stepper.client().clone()).ok_or("no scheduler")?;
    client.add(NewTask::cron("report", CRON).handler("work"))?;
    let mut journals: Vec<Journal> = (0..OCCURRENCES).map(|_| Journal::default()).collect();
    for now in moments() {
        clock.advance(now.since(clock.now().wall));
        for host in &mut hosts {
            if host.back_at.is_some_and(|at| at <= now) {
                host.back_at = None;
                host.start(database, home, &clock)?;
            }
            trouble(host, &mut journals, day, now, database)?;
            if host.frozen_until.is_some_and(|until| now < until) {
                continue;
            }
            turn(host, &mut journals, day, now)?;
        }
    }
    recorded(&client, journals)
}

fn occurrence_of(claim: &Claim) -> Result<usize> {
    let occurrence = (0..OCCURRENCES).find(|occurrence| time_of(*occurrence) == claim.scheduled_for);
    occurrence.ok_or_else(|| format!("no occurrence at {}", claim.scheduled_for).into())
}

/// Ends the work that ends, and begins what the scheduler claims.
fn turn(host: &mut Host, journals: &mut [Journal], day: Day, now: Timestamp) -> Result<()> {
    let Some(stepper) = &mut host.stepper else { return Ok(()) };
    if let Some((claim, start, ends)) = host.under_way.take() {
        if now < ends {
            host.under_way = Some((claim, start, ends));
        } else {
            journals[occurrence_of(&claim)?].write(now, host.name, What::Ended(start));
            stepper.finish(&claim, Outcome::succeeded());
        }
    }
    for claim in stepper.claim(0)? {
        let occurrence = occurrence_of(&claim)?;
        if day == Day::KilledBefore && now == time_of(TROUBLED) {
            drop(host.stepper.take().map(Stepper::crash));
            host.back_at = Some(now.plus(BACK_AFTER));
            return Ok(());
        }
        stepper.begin(&claim);
        let start = journals[occurrence].start(now, host.name);
        host.under_way = Some((claim, start, now.plus(day.takes(occurrence))));
    }
    Ok(())
}

/// Injects the fault of the day into a host, a minute after the work of 09:00 began.
fn trouble(host: &mut Host, journals: &mut [Journal], day: Day, now: Timestamp, database: &Database<'_>) -> Result<()> {
    let Some((claim, _, ends)) = &mut host.under_way else { return Ok(()) };
    if now != time_of(TROUBLED).plus(minutes(1)) {
        return Ok(());
    }
    match day {
        Day::KilledDuring => {
            journals[occurrence_of(claim)?].write(now, host.name, What::Killed);
            host.under_way = None;
            host.back_at = Some(now.plus(BACK_AFTER));
            drop(host.stepper.take().map(Stepper::crash));
        }
        Day::Frozen => {
            host.frozen_until = Some(now.plus(FROZEN));
            *ends = ends.plus(FROZEN);
        }
        Day::SessionsEnded if host.backends.is_empty() => return Err("a scheduler without a session".into()),
        Day::SessionsEnded => database.end_sessions(&host.backends)?,
        _ => {}
    }
    Ok(())
}

/// Compares the history with the journal.
fn recorded(client: &Client, journals: Vec<Journal>) -> Result<Lived> {
    let (mut recorded_as_lost, mut succeeded) = (0, 0);
    for run in client.newest_runs(100)? {
        succeeded += usize::from(run.status == duly::RunStatus::Succeeded);
        let attempts = client.attempts(run.id)?;
        recorded_as_lost += attempts.iter().filter(|attempt| attempt.outcome.to_string() == "lost").count();
    }
    if succeeded != OCCURRENCES {
        return Err(format!("{succeeded} runs of duly are recorded as succeeded").into());
    }
    Ok(Lived { journals, recorded_as_lost })
}

/// The clock of a host that is behind.
struct Behind(SystemClock, Duration);

impl Clock for Behind {
    fn now(&self) -> Now {
        let Now { wall, monotonic } = self.0.now();
        Now { wall: wall.minus(self.1), monotonic }
    }

    fn until(&self, at: Duration) -> Duration {
        self.0.until(at)
    }
}

/// Runs schedulers with threads, in real time: the clock of a stepper is that of the test, and a scheduler's is the server's. The
/// occurrences are a tenth of a second apart.
fn in_real_time(database: &Database<'_>, home: &TempDir) -> Result<Lived> {
    type Starts = Arc<Mutex<Vec<(char, String)>>>;
    let starts = Starts::default();
    let client = Client::open(database.address())?;
    let start = |name: char| {
        let behind = if name == 'C' { BEHIND } else { Duration::ZERO };
        let starts = starts.clone();
        Scheduler::builder(database.address())
            .state_folder(home.path().join(name.to_string()))
            .clock(Behind(SystemClock::new(), behind))
            .workers(1)
            .poll(Duration::from_millis(50))
            .handler("work", move |run: &Context| {
                starts.lock().unwrap_or_else(PoisonError::into_inner).push((name, run.task().to_owned()));
                Ok::<_, duly::Error>(())
            })
            .start()
    };
    let hosts = ['A', 'B', 'C'].map(start);
    let first = client.now().plus(Duration::from_millis(200));
    let at = |occurrence: usize| (0..occurrence).fold(first, |at, _| at.plus(Duration::from_millis(100)));
    client.add_all((0..OCCURRENCES).map(|n| NewTask::once(format!("report-{n}"), at(n)).handler("work")))?;
    let begun = Instant::now();
    while client.newest_runs(100)?.iter().filter(|run| run.status.is_final()).count() < OCCURRENCES {
        if begun.elapsed() > PATIENCE {
            return Err("the schedulers do not run what is due".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for host in hosts {
        host?.shutdown(Duration::from_secs(10))?;
    }
    let mut journals: Vec<Journal> = (0..OCCURRENCES).map(|_| Journal::default()).collect();
    for (name, task) in starts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let occurrence: usize = task.trim_start_matches("report-").parse()?;
        let start = journals[occurrence].start(at(occurrence), *name);
        journals[occurrence].write(at(occurrence), *name, What::Ended(start));
    }
    recorded(&client, journals)
}
