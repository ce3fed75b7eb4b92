//! Plain turns: runs that end are of `once` tasks and succeed; each task that is due opens one run and does nothing else, because it has no
//! unfinished run, and a `once` task no run at all. Most turns are such: those of a queue of jobs, and those that start recurring tasks in
//! time.
//!
//! A plain turn writes what any other turn would, and the same rules decide. Its rows depend on no others, so they are read and written
//! by one statement each, without the tables in memory. Whether a turn is plain is found under the lock; one that is not goes on as
//! any other.

mod choice;
mod version;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use postgres::Row;

use crate::clock::{Timestamp, millis};
use crate::host::fault_points;
use crate::model::finished::Finished;
use crate::model::run::Outcome;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::look_ahead::LookAhead;
use crate::store::postgres::outcome::Proof;
use crate::store::postgres::plain::choice::{Choice, Opened, choose};
use crate::store::postgres::server::Server;
use crate::store::postgres::{PostgresStore, json};
use crate::store::sqlite::memory::Memory;
use crate::store::sqlite::migration::Tables;
use crate::store::sqlite::settle;
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::{Done, Work};

pub(super) const WRITE: &str = sql!(file "plain/write.sql");

/// Ends runs without the lock. It waits for no row that is locked, so no two transactions wait for each other.
///
/// A row is written where it was locked: to look for it by its id again is a tenth of the statement. One that was changed since the
/// statement began is not written.
pub(super) const END: &str = sql! {"
    UPDATE task_runs t
       SET status = 'succeeded', started_at = o.started, finished_at = o.finished, duration_ms = o.duration,
           result = o.result::jsonb, locked_by = NULL, locked_until = NULL, process = NULL
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
           AS o(id, attempt, started, finished, duration, result)
     CROSS JOIN LATERAL (
         SELECT ctid AS place, attempt, locked_by FROM task_runs WHERE id = o.id FOR NO KEY UPDATE SKIP LOCKED
     ) locked
     WHERE (SELECT value FROM scheduler_meta WHERE key = 'schema_version') IS NOT DISTINCT FROM $8::text
       AND locked.attempt = o.attempt AND locked.locked_by IS NOT DISTINCT FROM $7::text AND t.ctid = locked.place
       -- No other run follows: no task is followed, or not the task of this run.
       AND ((SELECT id FROM scheduled_tasks WHERE {followed} ORDER BY id LIMIT 1) IS NULL
            OR NOT EXISTS (SELECT 1 FROM scheduled_tasks s WHERE s.id = t.task_id AND {followed:s}))
    RETURNING t.id, t.attempt"};

/// Most turns in a row that are not tried as plain.
const MOST_SKIPPED: u32 = 8;

/// Which turns are tried as plain. A try that fails costs a round trip, before which nothing that is due starts: after each failure in a row,
/// twice as many turns are not tried. None is while marks, expired runs or unplanned rows are left, and that is no failure.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// How many turns the last failure has left untried, and how many of them are to come.
    skipped: u32,
    left: u32,
    was_plain: bool,
    /// Whether such marks, runs or rows are left.
    more_unplanned: bool,
}

impl Tries {
    /// Returns whether the next turn, which may be plain, is tried.
    pub(super) fn next(&mut self) -> bool {
        let skips = self.left > 0 || self.more_unplanned;
        self.left = self.left.saturating_sub(1);
        !skips
    }

    pub(super) fn succeeded(&mut self) {
        *self = Tries { was_plain: true, ..Tries::default() };
    }

    pub(super) fn failed(&mut self) {
        let skipped = (self.skipped * 2).clamp(1, MOST_SKIPPED);
        *self = Tries { skipped, left: skipped, ..Tries::default() };
    }

    /// A turn or a look has seen what is left. `more_unplanned`: as in [`Done`].
    pub(super) fn saw(&mut self, more_unplanned: bool) {
        self.more_unplanned = more_unplanned;
    }
}

/// Returns whether a turn does nothing but end runs that simply succeeded, and start what is due, as far as its input shows.
pub(super) fn may_be_plain(work: &Work<'_>, memory: &Memory) -> bool {
    let Work { finished, reports, ended, dead, stalled, clock_events, .. } = work;
    let is_alone =
        reports.is_empty() && ended.is_empty() && dead.is_empty() && stalled.is_empty() && clock_events.is_empty();
    let is_usual = !work.full && !work.newer && !work.draining && work.rewind.is_none() && work.stepped == 0;
    let none_rests = memory.aside.is_empty() && memory.retried.is_empty() && !memory.apart;
    is_alone && is_usual && none_rests && finished.iter().all(|finished| is_success_alone(finished, work.owner))
}

fn is_success_alone(finished: &Finished, owner: &str) -> bool {
    settle::is_success_alone(finished)
        && finished.recorded.is_none()
        && !finished.claim.is_of_other(owner)
        && result(finished).is_none_or(|result| json::fault_of("result", result.as_bytes()).is_none())
}

fn result(finished: &Finished) -> Option<&str> {
    let Outcome::Succeeded { result } = &finished.outcome else { return None };
    result.as_deref()
}

impl PostgresStore {
    /// Takes a plain turn in the open transaction, and commits it. `None`: it is no plain turn, and nothing was written.
    pub(super) fn take_plain_turn(&mut self, work: &Work<'_>) -> Result<Option<Done>, Fault> {
        let mut memory = self.memory.take_memory();
        let done = self.try_plain(work, &mut memory);
        self.memory.put_memory(memory);
        done
    }

    /// Begins the transaction of the turn if the lock is free. Otherwise ends the runs that succeeded: their ends start no run, so they
    /// need not wait for the lock. The turn that follows writes what follows from them. If its process dies before that, the check of
    /// waiting runs does, in a full turn of another scheduler.
    pub(super) fn begin_or_end(&mut self, work: &Work<'_>) -> Result<Option<Timestamp>, Fault> {
        let finished: Vec<&Finished> =
            work.finished.iter().filter(|finished| !self.ended.contains(&finished.claim.attempt_id())).collect();
        // A turn that is found not to be plain takes more round trips.
        if finished.is_empty() || !self.plain.was_plain {
            return Ok(None);
        }
        if let Some(now) = self.begin_if_free(work.now) {
            return Ok(Some(now));
        }
        let mut bench = self.bench.lock();
        let server = &mut bench.rows.server;
        if !server.is_open() {
            return Ok(None);
        }
        let ended = end(server, work.owner, &finished);
        server.roll_back();
        server.take_repeat();
        match ended {
            Ok(ended) => self.ended.extend(ended),
            // Whether they are stored is unknown: a later turn finds the stored ones.
            Err(fault @ Fault::Store(Class::Lost, _)) => return Err(fault),
            // The turn stores them.
            Err(_) => {}
        }
        Ok(None)
    }

    /// Returns the outcomes, with those marked whose ends are stored.
    pub(super) fn with_ended<'f>(&self, finished: &'f [Finished]) -> Cow<'f, [Finished]> {
        let is_ended = |finished: &Finished| self.ended.contains(&finished.claim.attempt_id());
        if finished.iter().all(|finished| finished.stored == is_ended(finished)) {
            return Cow::Borrowed(finished);
        }
        finished.iter().map(|finished| Finished { stored: is_ended(finished), ..finished.clone() }).collect()
    }

    /// Forgets the outcomes of a turn that was taken, except those that it has not written.
    pub(super) fn forget_ended(&mut self, finished: &[Finished], done: &Done) {
        let is_unwritten = |id| done.unwritten.iter().any(|finished| finished.claim.attempt_id() == id);
        for (place, finished) in finished.iter().enumerate() {
            let id = finished.claim.attempt_id();
            if !done.deferred.contains(&place) && !is_unwritten(id) {
                self.ended.remove(&id);
            }
        }
    }

    fn try_plain(&mut self, work: &Work<'_>, memory: &mut Memory) -> Result<Option<Done>, Fault> {
        let mut bench = self.bench.lock();
        let bench = &mut *bench;
        let server = &mut bench.rows.server;
        let Some(mut choice) = choose(server, self.memory.schedules(), work, memory)? else { return Ok(None) };
        // As every turn does: those that a statement may end together come first, by their ids.
        let (mut finished, others): (Vec<_>, Vec<_>) =
            work.finished.iter().partition(|finished| settle::is_plain(finished));
        finished.sort_unstable_by_key(|finished| finished.claim.run_id);
        finished.extend(others);
        if !write(server, work, &finished, &mut choice)? {
            bench.collided = true;
            let text = "another program changed rows of the turn at the same time";
            return Err(Fault::Store(Class::Busy, text.into()));
        }
        if !choice.claims.is_empty() {
            fault_points::reach("claiming");
        }
        server.commit()?;
        (memory.resolved, memory.claimed) = choice.counted;
        let done = Done {
            look_follows: !choice.claims.is_empty() && !self.owes_look,
            claims: choice.claims.into_iter().map(Arc::new).collect(),
            events: finished.into_iter().map(settle::success).collect(),
            more_due: choice.more,
            damaged: memory.damaged,
            ..Done::default()
        };
        // Claims do not wait for a look. Of two turns in a row one looks: under load, the poller does not look between them.
        if done.look_follows {
            return Ok(Some(done));
        }
        match LookAhead::new(work.owner, work.handlers, Some(work.now)).ask(server) {
            // What another program has written since the turn read.
            Ok(seen) => {
                let more_unplanned = seen.more_unplanned;
                self.plain.saw(more_unplanned);
                // Added since the turn read: the poller would take it for what the turn left due, and put it off.
                let appeared = seen.next_due.is_some_and(|at| at <= work.now);
                let more_due = choice.more || more_unplanned || appeared;
                Ok(Some(Done { more_due, more_unplanned, ..seen.into_done(done) }))
            }
            Err(fault) if done.events.is_empty() && done.claims.is_empty() => Err(fault),
            // What is committed must not be lost: the poller looks again.
            Err(fault) => {
                log::warn!("cannot look for what is due next: {fault}");
                Ok(Some(Done { look_follows: true, ..done }))
            }
        }
    }
}

/// Ends runs in the open transaction, and commits it. Returns the attempts whose claims held and whose rows were free.
fn end(server: &mut Server, owner: &str, finished: &[&Finished]) -> Result<Vec<(i64, u32)>, Fault> {
    let Successes { runs, attempts, started, ended, durations, results } = Successes::of(finished);
    let version = Tables::CURRENT.version.to_string();
    let rows = server.query(END, &[&runs, &attempts, &started, &ended, &durations, &results, &owner, &version])?;
    let attempt = |row: &Row| Ok((row.try_get(0)?, u32::try_from(row.try_get::<_, i64>(1)?).unwrap_or_default()));
    let attempts = rows.iter().map(attempt).collect::<Result<HashSet<(i64, u32)>, Fault>>()?;
    let ended: Vec<&Finished> =
        finished.iter().copied().filter(|finished| attempts.contains(&finished.claim.attempt_id())).collect();
    if let Some(proof) = proof(owner, &ended, &Choice::default()) {
        server.note_proof(proof);
    }
    server.commit()?;
    Ok(ended.into_iter().map(|finished| finished.claim.attempt_id()).collect())
}

/// Successes as columns.
struct Successes<'a> {
    runs: Vec<i64>,
    attempts: Vec<i64>,
    started: Vec<i64>,
    ended: Vec<i64>,
    durations: Vec<Option<i64>>,
    results: Vec<Option<&'a str>>,
}

impl<'a> Successes<'a> {
    fn of(finished: &[&'a Finished]) -> Self {
        let numbers = |of: fn(&Finished) -> i64| finished.iter().map(|finished| of(finished)).collect();
        Successes {
            runs: numbers(|finished| finished.claim.run_id),
            attempts: numbers(|finished| i64::from(finished.claim.attempt)),
            started: numbers(|finished| finished.started_at.as_millis()),
            ended: numbers(|finished| finished.finished_at.as_millis()),
            durations: finished.iter().map(|finished| finished.duration.map(millis)).collect(),
            results: finished.iter().map(|finished| result(finished)).collect(),
        }
    }
}

/// Writes the turn, and completes the claims. Returns whether each row was as it was read.
fn write(server: &mut Server, work: &Work<'_>, finished: &[&Finished], choice: &mut Choice) -> Result<bool, Fault> {
    let Choice { claims, opened, waited, .. } = &mut *choice;
    if finished.is_empty() && opened.is_empty() && waited.is_empty() {
        return Ok(true);
    }
    let finished: Vec<&Finished> = finished.iter().filter(|finished| !finished.stored).copied().collect();
    let ended = Successes::of(&finished);
    let open = |of: fn(&Opened) -> i64| opened.iter().map(of).collect::<Vec<i64>>();
    let handlers: Vec<&str> = opened.iter().map(|opened| &*opened.handler).collect();
    let origins: Vec<&str> = opened.iter().map(|opened| opened.origin.as_str()).collect();
    let are_claimed: Vec<bool> = opened.iter().map(|opened| opened.claim.is_some()).collect();
    let have_keys: Vec<bool> = opened.iter().map(|opened| opened.has_key).collect();
    let next: Vec<Option<i64>> = opened.iter().map(|opened| opened.next.map(Timestamp::as_millis)).collect();
    let now = work.now.as_millis();
    let started = |claim: usize| (!claims[claim].read_ahead).then_some(now);
    let opened_at: Vec<Option<i64>> = opened.iter().map(|opened| opened.claim.and_then(started)).collect();
    let task_places: Vec<_> = opened.iter().map(|opened| opened.version.place).collect();
    let tasks_written_by: Vec<_> = opened.iter().map(|opened| opened.version.written_by).collect();
    let run_places: Vec<_> = waited.iter().map(|waited| waited.version.place).collect();
    let runs_written_by: Vec<_> = waited.iter().map(|waited| waited.version.written_by).collect();
    let begun_at: Vec<Option<i64>> = waited.iter().map(|waited| started(waited.claim)).collect();
    let rows = server.query(
        WRITE,
        &[
            &ended.runs,
            &ended.attempts,
            &ended.started,
            &ended.ended,
            &ended.durations,
            &ended.results,
            &work.owner,
            &now,
            &open(|opened| opened.task),
            &tasks_written_by,
            &work.until.as_millis(),
            &handlers,
            &open(|opened| opened.due.as_millis()),
            &origins,
            &are_claimed,
            &opened_at,
            &run_places,
            &runs_written_by,
            &begun_at,
            &open(|opened| opened.priority),
            &have_keys,
            &next,
            &task_places,
        ],
    )?;
    let row = &rows[0];
    let counts: [i64; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
    let (tasks, ids): (Vec<i64>, Vec<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let expected = [opened.len(), finished.len(), waited.len()];
    if counts.iter().zip(expected).any(|(rows, expected)| usize::try_from(*rows) != Ok(expected))
        || ids.len() != opened.len()
    {
        return Ok(false);
    }
    let runs: HashMap<i64, i64> = tasks.into_iter().zip(ids).collect();
    for Opened { task, claim, .. } in opened {
        let Some(run) = runs.get(task) else { return Ok(false) };
        if let Some(claim) = claim {
            claims[*claim].run_id = *run;
        }
    }
    if let Some(proof) = proof(work.owner, &finished, choice) {
        server.note_proof(proof);
    }
    Ok(true)
}

/// Returns a run as the transaction has written it.
fn proof(owner: &str, finished: &[&Finished], choice: &Choice) -> Option<Proof> {
    let condition = if let Some(claim) = choice.claims.first() {
        let (run, owner) = (claim.run_id, owner.replace('\'', "''"));
        format!("t.id = {run} AND t.attempt = 1 AND t.status = 'running' AND t.locked_by = '{owner}'")
    } else if let Some(finished) = finished.first() {
        let (run, attempt, at) = (finished.claim.run_id, finished.claim.attempt, finished.finished_at.as_millis());
        format!("t.id = {run} AND t.attempt = {attempt} AND t.status = 'succeeded' AND t.finished_at = {at}")
    } else {
        let Opened { task, due, .. } = choice.opened.first()?;
        format!("t.task_id = {task} AND t.scheduled_for = {} AND t.attempt = 0", due.as_millis())
    };
    Some(Proof { table: "task_runs", condition })
}
