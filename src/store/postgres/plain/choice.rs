//! What a plain turn starts: the same runs, in the same order, as every other turn.

use std::collections::HashSet;
use std::time::Duration;

use postgres::Row;

use crate::clock::Timestamp;
use crate::model::retry::RetryPolicy;
use crate::model::run::{Claim, Origin};
use crate::model::task::{Overlap, WhenLimited};
use crate::rules::resolve::Plan;
use crate::schedule::{Schedule, ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::postgres::plain::version::Version;
use crate::store::postgres::server::Server;
use crate::store::postgres::text;
use crate::store::sqlite::claim::{ByPriority, by_urgency};
use crate::store::sqlite::due::Due;
use crate::store::sqlite::first_claim::{self, Only};
use crate::store::sqlite::memory::Memory;
use crate::store::sqlite::migration::Tables;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::turn::QUICK;
use crate::store::turn_io::{Slots, Work};

const DUE: &str = sql!(file "due.sql");
const WAITING: &str = sql!(file "waiting.sql");

/// What a plain turn opens and claims.
#[derive(Default)]
pub(super) struct Choice {
    /// In the order in which they are claimed. A claim of a run that is opened has no id yet.
    pub(super) claims: Vec<Claim>,
    /// In the order in which their runs are opened.
    pub(super) opened: Vec<Opened>,
    pub(super) waited: Vec<Waited>,
    /// How many tasks this scheduler has resolved, and how many runs it has claimed.
    pub(super) counted: (u64, u64),
    /// Whether more is due.
    pub(super) more: bool,
}

/// A due task, whose run is opened.
pub(super) struct Opened {
    pub(super) task: i64,
    pub(super) handler: String,
    pub(super) due: Timestamp,
    pub(super) origin: Origin,
    pub(super) priority: i64,
    /// Whether no other run of the task may run beside it.
    pub(super) has_key: bool,
    /// When the task is due next; `None`: it is completed.
    pub(super) next: Option<Timestamp>,
    /// The version of the task.
    pub(super) version: Version,
    /// The index of its claim.
    pub(super) claim: Option<usize>,
    /// Its claim, if it may be claimed later.
    unclaimed: Option<Claim>,
}

/// A waiting run, which is claimed.
pub(super) struct Waited {
    pub(super) version: Version,
    pub(super) claim: usize,
}

/// A run that may be claimed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Candidate {
    /// The id of the run, and the index of its row.
    Waiting(i64, usize),
    /// The index of its task in [`Choice::opened`]. The id of its run will be larger.
    Opened(usize),
}

/// Chooses what the turn starts, if it does nothing else.
pub(super) fn choose(
    server: &mut Server,
    schedules: &mut Schedules,
    work: &Work<'_>,
    memory: &Memory,
) -> Result<Option<Choice>, Fault> {
    let budget = work.budget();
    let slots = Slots { room: work.slots.room.min(budget), ..work.slots };
    let (now, handlers) = (work.now.as_millis(), text::findable(work.handlers));
    let rows = {
        let most = count(work.ahead.min(budget) + slots.room.max(work.ahead).min(budget) + 1);
        let runs: Vec<i64> = work.finished.iter().map(|finished| finished.claim.run_id).collect();
        server.query(DUE, &[&now, &handlers, &runs, &most, &Tables::CURRENT.version.to_string()])?
    };
    let Some(first) = rows.first().filter(|row| row.try_get(0).unwrap_or(false)) else { return Ok(None) };
    let waiting = if first.try_get(11)? && slots.room > 0 {
        Some(server.query(WAITING, &[&now, &handlers, &count(slots.room)])?)
    } else {
        None
    };
    let is_first = slots.room > 0 && waiting.is_none();
    let mut due: ByPriority<(i64, usize)> = Default::default();
    // Without a task if nothing is due.
    for (place, row) in rows.iter().enumerate() {
        let Some(task) = row.try_get::<_, Option<i64>>(1)? else { continue };
        let Some(list) = list(&mut due, row, 8)? else { return Ok(None) };
        list.push((Timestamp::from_millis(row.try_get(5)?), (task, place)));
    }
    let counted = (memory.resolved, memory.claimed);
    let choice = Choice { counted, ..Choice::default() };
    let mut choosing = Choosing { work, schedules, rows: &rows, due, slots, budget, choice };
    Ok(choosing.run(is_first, &waiting.unwrap_or_default())?.then_some(choosing.choice))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the list of the priority of a row.
fn list<'l, T>(
    lists: &'l mut ByPriority<T>,
    row: &Row,
    column: usize,
) -> Result<Option<&'l mut Vec<(Timestamp, T)>>, Fault> {
    let priority: i64 = row.try_get(column)?;
    Ok(usize::try_from(priority).ok().and_then(|priority| lists.get_mut(priority)))
}

struct Choosing<'a> {
    work: &'a Work<'a>,
    schedules: &'a mut Schedules,
    /// The due tasks.
    rows: &'a [Row],
    due: ByPriority<(i64, usize)>,
    slots: Slots,
    /// Items that may still be written.
    budget: usize,
    choice: Choice,
}

impl Choosing<'_> {
    /// Returns whether all that the turn does is plain. `is_first`: no waiting run comes before what is due.
    fn run(&mut self, is_first: bool, waiting: &[Row]) -> Result<bool, Fault> {
        if !is_first {
            if !self.resolve(self.work.ahead, false)? || !self.claim(waiting)? {
                return Ok(false);
            }
            // Every run that may start is claimed, unless the slots were too few.
            if self.slots.room == 0 {
                return Ok(true);
            }
        }
        let room = self.slots.room;
        self.resolve(if room >= QUICK { room } else { room.max(self.work.ahead) }, true)
    }

    /// Opens the runs of up to `limit` due tasks, and claims them if `starts` and slots are free.
    fn resolve(&mut self, limit: usize, starts: bool) -> Result<bool, Fault> {
        let limit = limit.min(self.budget);
        self.choice.more = self.due.iter().map(Vec::len).sum::<usize>() > limit;
        let mut chosen = HashSet::new();
        let (mut in_time, mut late) = (Vec::new(), Vec::new());
        for (task, place) in by_urgency(self.due.clone(), &mut self.choice.counted.0).take(limit) {
            let row = &self.rows[place];
            let Some(due) = due(row, task, self.schedules)? else { return Ok(false) };
            let Some(Only { claim, next }) = first_claim::only_run(&due, self.work.now) else { return Ok(false) };
            let (priority, has_key) = (i64::from(due.priority), due.key.is_some());
            let (origin, version, is_once) = (claim.origin, Version::read(row, 9, 26)?, due.kind == ScheduleKind::Once);
            let Due { handler, plan: Plan { next_run: due, .. }, .. } = due;
            let unclaimed = None;
            let mut opened =
                Opened { task, handler, due, origin, priority, has_key, next, version, claim: None, unclaimed };
            if starts && self.slots.admits(&claim.retry) {
                opened.claim = Some(self.choice.claims.len());
                self.choice.claims.push(Claim { read_ahead: self.slots.take(), ..claim });
                match origin {
                    _ if !is_once => self.choice.opened.push(opened),
                    Origin::CatchUp => late.push(opened),
                    _ => in_time.push(opened),
                }
            } else {
                opened.unclaimed = Some(claim);
                self.choice.opened.push(opened);
            }
            chosen.insert(task);
        }
        // Those of `once` tasks that start are opened together, after the others.
        self.choice.opened.extend(in_time.into_iter().chain(late));
        self.budget -= chosen.len();
        self.due.iter_mut().for_each(|list| list.retain(|(_, (task, _))| !chosen.contains(task)));
        Ok(true)
    }

    /// Claims as many runs as there are slots, of those that wait and those that were opened.
    fn claim(&mut self, waiting: &[Row]) -> Result<bool, Fault> {
        let mut lists: ByPriority<Candidate> = Default::default();
        for (place, row) in waiting.iter().enumerate() {
            let Some(list) = list(&mut lists, row, 3)? else { return Ok(false) };
            list.push((Timestamp::from_millis(row.try_get(2)?), Candidate::Waiting(row.try_get(0)?, place)));
        }
        for (place, opened) in self.choice.opened.iter().enumerate() {
            let priority = usize::try_from(opened.priority).unwrap_or_default();
            lists[priority].push((opened.due, Candidate::Opened(place)));
        }
        lists.iter_mut().for_each(|list| list.sort_unstable());
        let mut counted = self.choice.counted.1;
        let room = self.slots.room;
        for candidate in by_urgency(lists, &mut counted).take(room) {
            let at = self.choice.claims.len();
            let claim = match candidate {
                Candidate::Waiting(run, place) => {
                    let row = &waiting[place];
                    let Some(claim) = waiting_claim(row, run, self.work.now)? else { return Ok(false) };
                    self.choice.waited.push(Waited { version: Version::read(row, 7, 17)?, claim: at });
                    claim
                }
                Candidate::Opened(place) => {
                    let opened = &mut self.choice.opened[place];
                    opened.claim = Some(at);
                    let Some(claim) = opened.unclaimed.take() else { return Ok(false) };
                    claim
                }
            };
            if !self.slots.admits(&claim.retry) {
                return Ok(false);
            }
            self.choice.claims.push(Claim { read_ahead: self.slots.take(), ..claim });
            self.budget = self.budget.saturating_sub(1);
        }
        self.choice.counted.1 = counted;
        Ok(true)
    }
}

/// Reads a due task; `None` if it is not plain, or another turn finds out what is wrong with it.
fn due(row: &Row, id: i64, schedules: &mut Schedules) -> Result<Option<Due>, Fault> {
    if !row.try_get::<_, bool>(10)? {
        return Ok(None);
    }
    let time = |column: usize| -> Result<Option<Timestamp>, Fault> {
        Ok(row.try_get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
    };
    let (next_run, starts_at) = (Timestamp::from_millis(row.try_get(5)?), time(15)?);
    let (kind, schedule) = match row.try_get(12)? {
        "once" => (ScheduleKind::Once, Ok(Schedule::Once(next_run))),
        other => {
            let kind: ScheduleKind = other.parse()?;
            let anchor = starts_at.map_or_else(|| row.try_get(25).map(Timestamp::from_millis), Ok)?;
            (kind, schedules.get(kind, row.try_get(13)?, row.try_get(14)?, anchor))
        }
    };
    let (overlap, misfire): (&str, &str) = (row.try_get(18)?, row.try_get(19)?);
    let (limit, priority): (i64, i64) = (row.try_get(7)?, row.try_get(8)?);
    let (Ok(schedule), Ok(overlap), Ok(misfire), Ok(limit), Ok(priority), Some(retry)) =
        (schedule, overlap.parse(), misfire.parse(), limit.try_into(), priority.try_into(), retry(row, 21)?)
    else {
        return Ok(None);
    };
    Ok(Some(Due {
        id,
        name: row.try_get(2)?,
        handler: row.try_get(3)?,
        payload: row.try_get(4)?,
        kind,
        plan: Plan {
            schedule,
            next_run,
            resolved_until: time(17)?,
            active_since: Timestamp::from_millis(row.try_get(6)?),
            starts_at,
            ends_at: time(16)?,
            windows: None,
            starts_left: None,
            overlap,
            misfire,
            grace: length(row, 20)?.unwrap_or_default(),
            catch_up_limit: limit,
        },
        expires: None,
        retry,
        timeout: length(row, 24)?,
        jitter: Duration::ZERO,
        priority,
        key: (overlap != Overlap::Allow).then(|| format!("#{id}")),
        rate: None,
        when_limited: WhenLimited::Wait,
        any_unfinished: false,
    }))
}

fn length(row: &Row, column: usize) -> Result<Option<Duration>, Fault> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or_default())))
}

/// Reads the policy whose three columns begin here; `None` if the number of attempts is none.
fn retry(row: &Row, first: usize) -> Result<Option<RetryPolicy>, Fault> {
    let attempts: i64 = row.try_get(first)?;
    let (backoff, max_backoff) =
        (length(row, first + 1)?.unwrap_or_default(), length(row, first + 2)?.unwrap_or_default());
    Ok(attempts.try_into().ok().map(|max_attempts| RetryPolicy { max_attempts, backoff, max_backoff }))
}

/// Reads the claim of the first attempt of a waiting run; `None` if the run is not plain.
fn waiting_claim(row: &Row, run_id: i64, now: Timestamp) -> Result<Option<Claim>, Fault> {
    let origin: &str = row.try_get(5)?;
    let (true, Some(origin), Some(retry)) = (row.try_get(16)?, Origin::parse(origin), retry(row, 12)?) else {
        return Ok(None);
    };
    Ok(Some(Claim {
        run_id,
        attempt: 1,
        task: row.try_get(9)?,
        handler: row.try_get(1)?,
        payload: row.try_get(10)?,
        task_payload: None,
        scheduled_for: Timestamp::from_millis(row.try_get(4)?),
        origin,
        claimed_at: now,
        timeout: length(row, 15)?,
        task_id: row.try_get(8)?,
        forgiven: 0,
        interrupted: 0,
        retry,
        concurrency_key: row.try_get(6)?,
        first: None,
        recurring: row.try_get(11)?,
        read_ahead: false,
        begins_by: None,
        owner: None,
    }))
}
