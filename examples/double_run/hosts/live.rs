//! A day of hosts with a guard: cron on each of them, one clock, and real sessions.

use std::sync::Barrier;

use duly::Timestamp;

use super::Result;
use super::day::{BACK_AFTER, BEHIND, Day, FROZEN, IDLE_TIMEOUT, KEEPALIVE, OCCURRENCES, TROUBLED, moments, time_of};
use super::guards::{Guard, Host};
use super::server::{Database, Pool, Server, Session};
use crate::bench::day::minutes;
use crate::bench::journal::{Journal, What};

/// Runs hosts with this guard through a day. Returns a journal for each occurrence.
pub(crate) fn live(server: &Server, guard: &dyn Guard, day: Day) -> Result<Vec<Journal>> {
    let database = server.database()?;
    let mut clock = database.prepare(guard.tables())?;
    let pool = if day == Day::Pool { Some(database.pool()?) } else { None };
    let machines = ('A'..).take(day.hosts()).map(|name| Machine::start(name, day, &database, pool.as_ref()));
    let mut world = World {
        guard,
        day,
        database: &database,
        pool: pool.as_ref(),
        machines: machines.collect::<Result<_>>()?,
        powerless: None,
        journals: (0..OCCURRENCES).map(|_| Journal::default()).collect(),
    };
    for now in moments() {
        clock.set(now)?;
        world.minute(now)?;
    }
    Ok(world.journals)
}

struct World<'a> {
    guard: &'a dyn Guard,
    day: Day,
    database: &'a Database<'a>,
    pool: Option<&'a Pool>,
    machines: Vec<Machine>,
    /// The session of a host without power, and when the server notices.
    powerless: Option<(Session, Timestamp)>,
    journals: Vec<Journal>,
}

/// A host with a process that does the work.
struct Machine {
    name: char,
    is_behind: bool,
    /// `None`: it is down.
    session: Option<Session>,
    away_until: Option<Timestamp>,
    frozen_until: Option<Timestamp>,
    /// The work that is under way; each process does one at a time.
    work: Option<Work>,
}

struct Work {
    occurrence: usize,
    /// Its number in the journal; `None`: claimed, and not begun.
    start: Option<usize>,
    begun: Timestamp,
    ends: Timestamp,
}

impl Machine {
    fn start(name: char, day: Day, database: &Database<'_>, pool: Option<&Pool>) -> Result<Self> {
        let session = Some(session(database, pool)?);
        let is_behind = day == Day::Skew && name == 'C';
        Ok(Machine { name, is_behind, session, away_until: None, frozen_until: None, work: None })
    }

    fn is_frozen(&self, now: Timestamp) -> bool {
        self.frozen_until.is_some_and(|until| now < until)
    }

    /// The host as the guard sees it; `None`: it is down.
    fn as_host(&mut self, now: Timestamp) -> Option<Host<'_>> {
        let clock = if self.is_behind { now.minus(BEHIND) } else { now };
        let name = self.name;
        self.session.as_mut().map(|session| Host { name, clock, session })
    }
}

fn session(database: &Database<'_>, pool: Option<&Pool>) -> Result<Session> {
    pool.map_or_else(|| database.session(), Pool::session)
}

impl World<'_> {
    fn minute(&mut self, now: Timestamp) -> Result<()> {
        self.trouble(now)?;
        for machine in self.machines.iter_mut().filter(|machine| !machine.is_frozen(now)) {
            let Some(work) = machine.work.take() else { continue };
            let Some(mut host) = machine.as_host(now) else { continue };
            if now < work.ends {
                self.guard.beat(&mut host, work.occurrence)?;
                machine.work = Some(work);
                continue;
            }
            let start = work.start.ok_or("work that has not begun cannot end")?;
            let what = match self.guard.done(&mut host, work.occurrence) {
                // What it wrote is rolled back, as if it had been killed.
                Err(_) if self.guard.holds_transaction() && host.session.has_ended() => What::Killed,
                done => done.map(|()| What::Ended(start))?,
            };
            self.journals[work.occurrence].write(now, machine.name, what);
            if machine.session.as_ref().is_some_and(Session::has_ended) {
                machine.session = Some(session(self.database, self.pool)?);
            }
        }
        let guard = self.guard;
        let begun = self.on_each(now, &|host| {
            let Some(occurrence) = (0..OCCURRENCES).find(|occurrence| time_of(*occurrence) == host.clock) else {
                return Ok(None);
            };
            Ok(guard.tick(host, occurrence)?.then_some(occurrence))
        })?;
        self.begin(now, begun);
        let begun = self.on_each(now, &|host| guard.poll(host))?;
        self.begin(now, begun);
        Ok(())
    }

    /// Calls the guard on all hosts at once that are not working; behind a pool, on one after another within the same minute.
    /// Returns what begins where.
    fn on_each(
        &mut self,
        now: Timestamp,
        call: &(dyn Fn(&mut Host<'_>) -> Result<Option<usize>> + Sync),
    ) -> Result<Vec<(char, usize)>> {
        let hosts = self.machines.iter_mut().filter(|machine| machine.work.is_none() && !machine.is_frozen(now));
        let mut hosts: Vec<Host<'_>> = hosts.filter_map(|machine| machine.as_host(now)).collect();
        let begun: Vec<Result<Option<(char, usize)>>> = if self.day == Day::Pool {
            hosts.iter_mut().map(|host| Ok(call(host)?.map(|occurrence| (host.name, occurrence)))).collect()
        } else {
            let barrier = Barrier::new(hosts.len());
            let one = |host: &mut Host<'_>| {
                barrier.wait();
                Ok(call(host)?.map(|occurrence| (host.name, occurrence)))
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = hosts.iter_mut().map(|host| scope.spawn(|| one(host))).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|_| Err("a host panicked".into())))
                    .collect()
            })
        };
        Ok(begun.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn begin(&mut self, now: Timestamp, begun: Vec<(char, usize)>) {
        for (name, occurrence) in begun {
            let dies = self.day == Day::KilledBefore && now == time_of(TROUBLED);
            let start = (!dies).then(|| self.journals[occurrence].start(now, name));
            let work = Work { occurrence, start, begun: now, ends: now.plus(self.day.takes(occurrence)) };
            if let Some(machine) = self.machines.iter_mut().find(|machine| machine.name == name) {
                machine.work = Some(work);
            }
        }
    }

    /// Injects the fault of the day, and ends what has passed.
    fn trouble(&mut self, now: Timestamp) -> Result<()> {
        if let Some((session, _)) = self.powerless.take_if(|(_, until)| *until <= now) {
            self.database.close(session)?;
        }
        let a_minute_later = now == time_of(TROUBLED).plus(minutes(1));
        let (database, pool) = (self.database, self.pool);
        for machine in &mut self.machines {
            if machine.away_until.is_some_and(|until| until <= now) {
                machine.away_until = None;
                machine.session = Some(session(database, pool)?);
            }
            if self.day == Day::Deploy && now == time_of(TROUBLED) {
                machine.session = None;
                machine.away_until = Some(now.plus(minutes(1)));
            }
            let Some(work) = &mut machine.work else { continue };
            let idle = now.since(work.begun) >= IDLE_TIMEOUT && self.guard.holds_transaction();
            match self.day {
                Day::KilledBefore | Day::KilledDuring | Day::PowerLost if a_minute_later => {
                    if work.start.is_some() {
                        self.journals[work.occurrence].write(now, machine.name, What::Killed);
                    }
                    machine.work = None;
                    machine.away_until = Some(now.plus(BACK_AFTER));
                    let Some(session) = machine.session.take() else { continue };
                    if self.day == Day::PowerLost {
                        self.powerless = Some((session, now.plus(KEEPALIVE)));
                    } else {
                        database.close(session)?;
                    }
                }
                Day::Frozen if a_minute_later => {
                    machine.frozen_until = Some(now.plus(FROZEN));
                    work.ends = work.ends.plus(FROZEN);
                }
                Day::Long if idle => {
                    let Some(session) = &mut machine.session else { continue };
                    // The ten minutes are the bench's, the timeout is the server's. It may pass before the answer is read.
                    let _ = session.ask("SET LOCAL idle_in_transaction_session_timeout = '1ms'");
                    database.wait_for_end(session.backend)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
