//! A turn, and the look before it. Neither the number of statements nor their plan depends on how much a turn does.

use std::collections::{BTreeSet, HashSet};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::report::Pruned;
use crate::rules::retention::Limits;
use crate::rules::retention_timer::Part;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::postgres::look_ahead::{LookAhead, Seen};
use crate::store::postgres::plain::may_be_plain;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::reach::{Reach, TurnReach};
use crate::store::postgres::server::Access;
use crate::store::postgres::{PostgresStore, TRIES, Time, owners, prune, text};
use crate::store::sqlite::memory::Memory;
use crate::store::sqlite::migration::Tables;
use crate::store::sqlite::turn::{PRESSING, SPARE, SWEEP};
use crate::store::turn_io::{Done, Item, MAX_ITEMS, MAX_OUTCOMES, Other, Work};

/// Expiring runs that one turn looks at, at most: half of its items, then half of the rest, and so on.
const EXPIRING: usize = 450;

/// Returns whether turns are rehearsed: tests ask for it by the environment.
pub(super) fn rehearses() -> bool {
    cfg!(debug_assertions) && std::env::var_os("DULY_REHEARSE_TURNS").is_some()
}

/// Returns how many of the first outcomes a plain turn takes: as many as it may write, and those among them that are stored already.
fn taken(finished: &[Finished]) -> usize {
    let mut unstored = finished.iter().enumerate().filter(|(_, finished)| !finished.stored);
    unstored.nth(MAX_OUTCOMES).map_or(finished.len(), |(place, _)| place)
}

impl PostgresStore {
    /// Takes a turn, and retention's part in a transaction of its own: before a busy turn, or after an idle one. A fault there keeps
    /// nothing else from being written, and does not discard what the turn has committed.
    pub(super) fn take_turn(&mut self, work: &Work<'_>) -> Result<Done, Fault> {
        let part = work.prune.as_ref().filter(|_| !work.newer && !work.draining);
        let before = part.filter(|part| !part.if_idle).and_then(|part| self.prune_part(work, part, PRESSING));
        let mut done = match work.rewind {
            Some(believed) => self.rewind_and_work(work, believed)?,
            None => self.work(work)?,
        };
        let is_idle = done.claims.is_empty() && !done.more_due;
        let after = part.filter(|part| part.if_idle && is_idle).and_then(|part| self.prune_part(work, part, MAX_ITEMS));
        if let Some(pruned) = before.or(after) {
            done.pruned = pruned.more;
            done.events.extend(pruned.event);
        }
        Ok(done)
    }

    /// Plans again what a clock that showed `believed` had planned, in a transaction of its own, and takes the turn.
    fn rewind_and_work(&mut self, work: &Work<'_>, believed: Timestamp) -> Result<Done, Fault> {
        let mut events = Vec::new();
        // If the turn fails, the next one begins here.
        let recorded = match self.rewound.filter(|(of, _)| *of == believed) {
            Some((_, recorded)) => recorded,
            None => {
                let alone =
                    Work { finished: &[], reports: &[], ended: &[], dead: &[], stalled: &[], full: false, ..*work };
                events = self.work(&alone)?.events;
                work.clock_events.len()
            }
        };
        self.rewound = Some((believed, recorded));
        let clock_events = work.clock_events.get(recorded..).unwrap_or_default();
        let mut done = self.work(&Work { rewind: None, clock_events, ..*work })?;
        self.rewound = None;
        done.events.splice(..0, events);
        Ok(done)
    }

    /// Deletes a batch of expired history. If that fails for one row, it is set aside until the next full turn.
    fn prune_part(&mut self, work: &Work<'_>, part: &Part, limit: usize) -> Option<Batch> {
        let mut memory = self.memory.take_memory();
        let pruned = self.try_prune(work, part, limit, &mut memory);
        self.memory.put_memory(memory);
        // It is tried again after a minute, or at the next idle heartbeat.
        pruned.inspect_err(|fault| log::warn!("expired history is not deleted now: {fault}")).ok()
    }

    fn try_prune(&mut self, work: &Work<'_>, part: &Part, limit: usize, memory: &mut Memory) -> Result<Batch, Fault> {
        if memory.aside.contains(&Item::Prune) && !work.full {
            return Ok(Batch::default());
        }
        let now = self.try_begin(Access::Write, work.now, Reach::Everything)?;
        let (limits, mut pass) = (Limits::new(&part.keep, now), memory.pruned);
        let mut bench = self.bench.lock();
        let deleted = prune::batch(&mut bench.rows.server, &limits, &mut pass, limit, &mut Pruned::default());
        let deleted = deleted.and_then(|more| bench.rows.server.commit().map(|()| more));
        bench.end();
        let repeat = std::mem::take(&mut bench.collided);
        match deleted {
            Ok(more) => {
                memory.pruned = pass;
                memory.aside.remove(&Item::Prune);
                Ok(Batch { more: Some(more), event: None })
            }
            // The next turn tries again.
            Err(_) if repeat => Ok(Batch { more: Some(true), event: None }),
            Err(fault) if fault.is_about_the_item() => {
                let event = memory
                    .aside
                    .insert(Item::Prune)
                    .then(|| Event::SetAside { item: Item::Prune.to_string(), reason: fault.to_string() });
                Ok(Batch { more: None, event })
            }
            Err(fault) => Err(fault),
        }
    }

    fn work(&mut self, work: &Work<'_>) -> Result<Done, Fault> {
        let (mut reach, mut tries, given) = (None, 1, self.given(work.now));
        // What was refused before is likely to be refused again.
        let memory = self.copy_memory();
        let mut apart = (work.full && memory.aside.len() > memory.zoneless.len()) || work.most == 1;
        if work.full
            && let Some(session) = &mut self.session
        {
            // Without an answer nothing is known: the next full turn tries again.
            let _ = session.hold();
        }
        loop {
            let before = self.copy_memory();
            let is_plain =
                tries == 1 && !apart && self.takes_plain_turns() && may_be_plain(work, &before) && self.plain.next();
            let begun = if is_plain { self.begin_or_end(work)? } else { None };
            let all = self.with_ended(work.finished);
            let mut finished = &all[..taken(&all)];
            if !finished.is_empty() {
                self.ends_beside = is_plain && finished.iter().any(|finished| finished.stored);
            }
            // Of all owners that may be dead: another try may find more of them so.
            reach.get_or_insert_with(|| self.reach_of(&Work { finished, ..*work }));
            let now = match begun {
                Some(now) => now,
                None => self.try_begin(Access::Write, work.now, Reach::Everything)?,
            };
            let lease = work.until.since(work.now);
            let dead = owners::still_dead(&mut self.bench.lock().rows.server, work.dead, given);
            let dead = dead.inspect_err(|_| _ = self.end())?;
            let work = Work { now, until: now + lease, prune: None, dead: &dead, finished, ..*work };
            if is_plain {
                match self.take_plain_turn(&work) {
                    Ok(Some(mut done)) => {
                        self.end();
                        self.plain.succeeded();
                        self.forget_ended(finished, &done);
                        done.deferred = (finished.len()..all.len()).collect();
                        owners::annotate_done(&mut self.bench.lock().rows.server, &mut done, given);
                        return Ok(done);
                    }
                    Ok(None) => {
                        self.plain.failed();
                        self.ends_beside = false;
                    }
                    Err(fault) => {
                        if !self.end() && !fault.is_about_the_item() {
                            return Err(fault);
                        }
                        tries += 1;
                        continue;
                    }
                }
            }
            // What follows from an end that is stored is an item of such a turn.
            finished = &finished[..finished.len().min(MAX_OUTCOMES)];
            let work = Work { finished, ..work };
            let rehearsal = self.rehearses.then(|| self.rehearse(&work, &before));
            if apart {
                self.memory.put_memory(Memory { apart, ..before.clone() });
            }
            {
                let mut aim = reach.take().unwrap_or(Reach::Everything);
                let mut bench = self.bench.lock();
                match &mut aim {
                    Reach::Turn(turn) => turn.now = now.as_millis(),
                    Reach::Client(Request::Rewind { now: from }, _) => *from = now.as_millis(),
                    _ => {}
                }
                bench.aim(aim);
                bench.record = self.rehearses.then(Vec::new);
                if !work.draining && !work.newer && work.rewind.is_none() {
                    bench.ask = Some(LookAhead::new(work.owner, work.handlers, Some(now)));
                }
            }
            let done = Store::turn(&mut self.memory, &work);
            let (seen, record) = {
                let mut bench = self.bench.lock();
                reach = Some(bench.reach.take().unwrap_or(Reach::Everything));
                (bench.seen.take(), bench.record.take())
            };
            let collides = self.end();
            if collides && tries < TRIES {
                self.memory.put_memory(before);
                tries += 1;
                continue;
            }
            // What cannot be written together is written one by one: only what the server refuses is set aside.
            if !apart && (collides || done.as_ref().is_err_and(Fault::is_about_the_item)) {
                self.memory.put_memory(before);
                (apart, tries) = (true, 1);
                continue;
            }
            let memory = self.memory.take_memory();
            self.memory.put_memory(Memory { apart: false, ..memory });
            let mut done = match seen {
                Some(seen) => done.map(|done| seen.into_done(done)),
                None => done,
            };
            if let Some(rehearsal) = rehearsal {
                rehearsal.check(&done, record.unwrap_or_default());
            }
            if let Ok(done) = &mut done {
                self.plain.saw(done.more_unplanned);
                self.forget_ended(finished, done);
                done.deferred.extend(finished.len()..all.len());
                owners::annotate_done(&mut self.bench.lock().rows.server, done, given);
            }
            return done;
        }
    }

    /// Returns whether a plain turn need not be taken as every other: tests compare the two.
    fn takes_plain_turns(&self) -> bool {
        #[cfg(test)]
        let reads_all = self.reads_all;
        #[cfg(not(test))]
        let reads_all = false;
        !self.rehearses && !reads_all
    }

    fn copy_memory(&mut self) -> Memory {
        let memory = self.memory.take_memory();
        self.memory.put_memory(memory.clone());
        memory
    }

    fn reach_of(&mut self, work: &Work<'_>) -> Reach {
        if work.rewind.is_some() {
            return Reach::from(Request::Rewind { now: 0 });
        }
        let memory = self.memory.take_memory();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let aside = memory.aside.len() + memory.retried.len();
        let (swept_key, swept_task) = memory.round.reached();
        let works = !work.draining && !work.newer;
        let (room, full) = (work.slots.room.min(work.most), work.full && works);
        let if_it_works = |number: usize| if works { count(number) } else { 0 };
        let due = work.ahead.saturating_add(room.max(work.ahead)).saturating_add(2 * aside);
        let due = due.min(work.budget()) + 1 + aside;
        let runs = work.finished.iter().map(|finished| finished.claim.run_id);
        let runs =
            runs.chain(work.reports.iter().map(|report| report.run)).chain(memory.clock.planned.runs.keys().copied());
        let runs: BTreeSet<i64> = runs.collect();
        let reach = TurnReach {
            now: 0,
            owner: work.owner.to_owned(),
            handlers: if works { text::findable(work.handlers) } else { Vec::new() },
            runs: runs.into_iter().collect(),
            effects: work.finished.iter().filter(|of| !of.effects.is_empty()).map(|of| of.claim.first_id()).collect(),
            dead: if works { work.dead.iter().map(|dead| dead.owner.clone()).collect() } else { Vec::new() },
            stalled: if works {
                work.stalled.iter().map(|stalled| stalled.owner.clone()).collect()
            } else {
                Vec::new()
            },
            own: work.full || work.stepped != 0,
            full,
            due: if_it_works(due),
            unplanned: if_it_works(work.most + aside + 1),
            expiring: if_it_works(EXPIRING + aside),
            claimable: if room > 0 { if_it_works(room + aside + SPARE) } else { 0 },
            sweep: count(SWEEP + work.finished.len()),
            swept_key,
            swept_task,
            planless: count(SWEEP),
            planless_after: memory.planless,
            room: count(room),
            misplanned: memory.clock.planned.tasks.keys().copied().collect(),
            derived: if_it_works(work.derived + 1),
            keys: HashSet::new(),
            outputs: false,
            attempts: false,
            more_keys: Vec::new(),
        };
        self.memory.put_memory(memory);
        Reach::Turn(Box::new(reach))
    }

    /// Reads what a turn would see, by one statement.
    pub(super) fn look_around(
        &mut self,
        owner: &str,
        handlers: &BTreeSet<String>,
        since: Option<i64>,
        now: Timestamp,
    ) -> Result<Option<Done>> {
        let given = (self.time == Time::Given).then_some(now);
        let before = self.clock.as_ref().map(|clock| clock.before());
        let asked = LookAhead::new(owner, handlers, given).ask(&mut self.bench.lock().rows.server);
        let seen: Seen = asked.map_err(|fault| fault.into_error("look for changes"))?;
        if let (Some(clock), Some(before)) = (&self.clock, before) {
            clock.learn(seen.now, before);
        }
        self.plain.saw(seen.more_unplanned);
        if since == Some(seen.data_version) {
            return Ok(None);
        }
        let version = seen.tables.as_deref().and_then(|version| version.parse::<i64>().ok());
        if version.is_some_and(|version| version > Tables::CURRENT.version) || self.rehearses {
            let all = Reach::Everything;
            let all = self.look_up(now, all, |memory, now| Store::look(memory, owner, handlers, None, now))?;
            if self.rehearses && seen.data_version == self.data_version()? {
                let more_unplanned = seen.more_unplanned;
                let mut done = seen.into_done(Done { more_due: more_unplanned, more_unplanned, ..Done::default() });
                let all = all.unwrap_or_default();
                assert_eq!(shown(&done), shown(&all), "a look by the server, and one at all rows");
                owners::annotate_done(&mut self.bench.lock().rows.server, &mut done, given);
                return Ok(Some(done));
            }
        }
        let more_unplanned = seen.more_unplanned;
        let mut done = seen.into_done(Done { more_due: more_unplanned, more_unplanned, ..Done::default() });
        owners::annotate_done(&mut self.bench.lock().rows.server, &mut done, given);
        Ok(Some(done))
    }

    /// Takes the turn with all rows, and writes nothing.
    fn rehearse(&mut self, work: &Work<'_>, before: &Memory) -> Rehearsal {
        {
            let mut bench = self.bench.lock();
            (bench.dry, bench.record) = (true, Some(Vec::new()));
        }
        let done = Store::turn(&mut self.memory, work);
        let mut bench = self.bench.lock();
        bench.dry = false;
        let record = bench.record.take().unwrap_or_default();
        drop(bench);
        self.memory.put_memory(before.clone());
        Rehearsal { done: done.as_ref().map_or_else(ToString::to_string, shown), record }
    }
}

/// What retention did.
#[derive(Default)]
struct Batch {
    /// Whether there is more to delete; `None` if it did not work.
    more: Option<bool>,
    event: Option<Event>,
}

/// What a turn with all rows returned and would have written.
struct Rehearsal {
    done: String,
    record: Vec<String>,
}

impl Rehearsal {
    fn check(&self, done: &Result<Done, Fault>, record: Vec<String>) {
        let done = done.as_ref().map_or_else(ToString::to_string, shown);
        let only = |these: &[String], others: &[String]| {
            these.iter().filter(|one| !others.contains(one)).cloned().collect::<Vec<_>>().join("\n")
        };
        assert!(
            self.record == record,
            "a turn with all rows also wrote:\n{}\nwith those of its reach:\n{}",
            only(&self.record, &record),
            only(&record, &self.record)
        );
        assert_eq!(self.done, done, "a turn with all rows, and one with those of its reach");
    }
}

/// Returns all that a turn or a look returned, except the version of the data, and what the sessions of owners show: that is asked
/// separately.
fn shown(done: &Done) -> String {
    let resting: BTreeSet<&String> = done.resting.iter().collect();
    let owners = |others: &[Other]| -> Vec<String> {
        others.iter().map(|other| format!("{} until {} for {:?}", other.owner, other.until, other.lease)).collect()
    };
    let (others, not_stopped) = (owners(&done.others), owners(&done.not_stopped));
    let Done { claims, events, stop, declared_gone, orphaned, unwritten, more_lost, .. } = done;
    let Done { recovered, extended, more_due, more_unplanned, next_due, next_claimable, next_expiry, .. } = done;
    let next_opening = done.next_opening;
    format!(
        "{claims:#?} {events:#?} {stop:?} {others:?} {declared_gone:?} {not_stopped:?} {orphaned:?} {unwritten:?} {resting:?} \
         {more_lost} {recovered:?} {extended:?} {more_due} {more_unplanned} due {next_due:?} \
         claimable {next_claimable:?} expiry {next_expiry:?} opening {next_opening:?}"
    )
}
