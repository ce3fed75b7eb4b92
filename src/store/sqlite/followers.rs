//! Opens the runs that follow from the end of a run (`on_dead`, `on_success`, `on_end`, `on_missed`), in the transaction in which it ends,
//! and applies `pause_after_failures`.
//!
//! Nothing of that can prevent that the run ends: if a run that follows cannot be opened, an event records why. Each is opened once: its
//! request key names the run that it follows.
//!
//! A delay task that follows is resolved before its run is opened. What that passes over, other runs may follow in turn: it waits in a queue
//! ([`Written::passed`]) that the transaction works off at its end.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result as Answer};
use crate::model::event::Event;
use crate::model::run::{Claim, Follower, Origin, RunStatus};
use crate::model::task::{Definition, MAX_FOLLOWERS, Task, TaskStatus};
use crate::rules::chain::{self, Ending, Link};
use crate::rules::description::{self, Missed};
use crate::rules::resolve::{Rest, Span};
use crate::rules::{streak, turn_size};
use crate::schedule::{ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::open::{self, Change, Passed, PassedBy, Written};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{clock_mark, due, history, once, owners, replan, row, runs, tasks};

const ANY: &str = sql! {"SELECT EXISTS (SELECT 1 FROM scheduled_tasks WHERE {followed})"};

/// Returns whether another task than that of `on_dead` follows any task. If not, the end of a run looks up none.
pub(crate) fn any(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY)?.query_row([], |row| row.get(0))
}

/// The failure count of a `once` task is always 0.
const POLICY: &str = "
    SELECT on_dead, on_success, on_end, on_missed, status, failure_count, pause_after_failures
      FROM scheduled_tasks WHERE id = :task";

/// The columns of [`POLICY`] that name tasks, in its order.
const COLUMNS: [Origin; 4] = [Origin::OnDead, Origin::OnSuccess, Origin::OnEnd, Origin::OnMissed];

/// What follows from the ends of the runs of a task.
#[derive(Default)]
struct Policy {
    /// The names in each of [`COLUMNS`].
    names: [Option<String>; 4],
    /// The streak of dead runs, if it pauses the task.
    pauses: Option<u32>,
}

impl Policy {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let mut names: [Option<String>; 4] = Default::default();
        for (at, held) in names.iter_mut().enumerate() {
            *held = row::shown_if_any(row, at)?;
        }
        // A value that only another program writes pauses nothing, and must not keep the outcome from being stored.
        let (status, failures) = (row.get(4).unwrap_or(TaskStatus::Completed), row::saturating(row, 5)?);
        let pauses = streak::pauses(status, failures, row.get(6).unwrap_or_default()).then_some(failures);
        Ok(Policy { names, pauses })
    }

    /// Returns the columns whose tasks follow, each with its names.
    fn columns(&self, opens: &'static [Origin]) -> impl Iterator<Item = (Origin, &str)> {
        opens.iter().filter_map(move |origin| {
            let at = COLUMNS.iter().position(|of| of == origin)?;
            Some((*origin, self.names[at].as_deref()?))
        })
    }

    /// Returns each task that follows, once, with the first of these columns that names it.
    fn targets(&self, opens: &'static [Origin]) -> Vec<(Origin, &str)> {
        let mut targets: Vec<(Origin, &str)> = Vec::new();
        for (origin, column) in self.columns(opens) {
            for name in chain::names(column).take(MAX_FOLLOWERS) {
                if !targets.iter().any(|(_, known)| *known == name) {
                    targets.push((origin, name));
                }
            }
        }
        targets
    }
}

/// Opens what follows from the end of a run, and applies `pause_after_failures` if it is dead. Returns the events, and whether the task was
/// paused.
pub(crate) fn follow(cx: &mut Change<'_>, ended: &Claim, ending: Ending) -> Result<(Vec<Event>, bool), Fault> {
    let mut events = Vec::new();
    if ending.status != RunStatus::Dead && !cx.written.followed {
        return Ok((events, false));
    }
    let policy = follow_run(cx, ended, ending, 0, &mut events)?;
    let mut paused = false;
    if let Some(failures) = policy.pauses.filter(|_| ending.status == RunStatus::Dead)
        && let Some(task) = tasks::by_id(cx.tx, ended.task_id)?
    {
        let task = resolve(cx, task, 0)?;
        if task.status == TaskStatus::Active {
            let runs = if failures == 1 { "run" } else { "runs" };
            let reason = format!("pause_after_failures: {failures} dead {runs} in a row");
            tasks::rest(cx.tx, &task, &reason, cx.now)?;
            (cx.written.blocked, paused) = (true, true);
            events.push(Event::Paused { task: ended.task.clone(), failures });
        }
    }
    Ok((events, paused))
}

/// Opens what follows from the end of a run, to which at least `length` runs have led.
fn follow_run(
    cx: &mut Change<'_>,
    ended: &Claim,
    ending: Ending,
    length: u32,
    events: &mut Vec<Event>,
) -> Result<Policy, Fault> {
    let policy = policy(cx.tx, ended.task_id)?;
    if policy.columns(ending.opens()).next().is_some()
        && let Some(run) = history::run(cx.tx, ended.run_id)?
    {
        let length = length.max(Link::length_of(run.request_key.as_deref()));
        let parent = Parent { run: run.id, length, task: (ended.task_id, &ended.task) };
        let payload = if ending.status == RunStatus::Missed {
            let (first, count) = (run.scheduled_for, run.occurrences);
            description::of_missed(&Missed {
                id: run.id,
                task: &ended.task,
                handler: &run.handler,
                origin: run.origin,
                span: Span { first, last: first, count, exact: true },
                error: run.error.as_deref(),
                payload: Some(&ended.payload),
            })
        } else {
            description::of_run(&run, &ended.payload)
        };
        open_all(cx, &parent, (&policy, ending.opens()), &payload, events)?;
    }
    Ok(policy)
}

fn policy(tx: &Transaction<'_>, task: i64) -> Result<Policy, Fault> {
    let policy = tx.prepare_cached(POLICY)?.query_row(named_params! { ":task": task }, Policy::read);
    Ok(policy.optional()?.unwrap_or_default())
}

/// Opens what follows from all that was passed over, and from what is passed over meanwhile. For transactions outside of turns.
pub(crate) fn follow_all(cx: &mut Change<'_>) -> Result<(), Fault> {
    while let Some(passed) = cx.written.passed.pop_front() {
        follow_one(cx, &passed)?;
    }
    Ok(())
}

/// Opens what follows from what the resolution of a task has passed over or cancelled.
pub(crate) fn follow_one(cx: &mut Change<'_>, passed: &Passed) -> Result<(), Fault> {
    let mut events = Vec::new();
    match &passed.what {
        PassedBy::Missed { row, task, name, handler, span, reason } => {
            let (status, origin) = (RunStatus::Missed, Origin::Schedule);
            let parent = Parent { run: *row, length: passed.length, task: (*task, name) };
            let (span, error, payload) = (*span, Some(&**reason), None);
            let payload =
                description::of_missed(&Missed { id: *row, task: name, handler, origin, span, error, payload });
            let (policy, missed) = (policy(cx.tx, *task)?, Ending { status, origin, began: false });
            open_all(cx, &parent, (&policy, missed.opens()), &payload, &mut events)?;
        }
        PassedBy::Cancelled { run } => {
            let Some(claim) = runs::ending(cx.tx, *run, cx.now)? else { return Ok(()) };
            let cancelled = Ending { status: RunStatus::Cancelled, origin: claim.origin, began: true };
            follow_run(cx, &claim, cancelled, passed.length, &mut events)?;
        }
    }
    cx.written.events.append(&mut events);
    Ok(())
}

/// The run that another one follows.
struct Parent<'a> {
    run: i64,
    /// How many runs have led to it, one after another.
    length: u32,
    /// The id and the name of its task.
    task: (i64, &'a str),
}

/// Opens a run of each task that follows, and records which are left out.
fn open_all(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (policy, opens): (&Policy, &'static [Origin]),
    payload: &str,
    events: &mut Vec<Event>,
) -> Result<(), Fault> {
    for target in policy.targets(opens) {
        events.extend(try_open(cx, parent, target, payload)?);
    }
    for (origin, column) in policy.columns(opens) {
        // `add` refuses so many names.
        if let Some(name) = chain::names(column).nth(MAX_FOLLOWERS) {
            let reason =
                format!("{origin} names more than {MAX_FOLLOWERS} tasks: this one and those behind it are left out");
            events.push(refuse(cx, parent, (origin, name), reason)?);
        }
    }
    Ok(())
}

/// Opens a run that follows, or records why it cannot and returns the event. A failure undoes only what this function wrote.
fn try_open(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (origin, target): (Origin, &str),
    payload: &str,
) -> Result<Option<Event>, Fault> {
    let tx = cx.tx;
    let refused = if let Some(reason) = &cx.written.follower_refused {
        Some(reason.clone())
    } else {
        cx.written.tried_follower = true;
        let (events, passed) = (cx.written.events.len(), cx.written.passed.len());
        tx.prepare_cached("SAVEPOINT follower")?.execute([])?;
        let refused = match open(cx, parent, (origin, target), payload) {
            Ok(None) => {
                // A run that ends later in this transaction may hold the key of the new run.
                cx.written.blocked = true;
                None
            }
            Ok(refused) => refused,
            Err(fault) if fault.is_about_the_item() => {
                tx.prepare_cached("ROLLBACK TO follower")?.execute([])?;
                cx.written.events.truncate(events);
                cx.written.passed.truncate(passed);
                Some(fault.to_string())
            }
            Err(fault) => return Err(fault),
        };
        tx.prepare_cached("RELEASE follower")?.execute([])?;
        refused
    };
    refused.map(|reason| refuse(cx, parent, (origin, target), reason)).transpose()
}

/// Records why a task does not follow.
fn refuse(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (origin, target): (Origin, &str),
    reason: String,
) -> Result<Event, Fault> {
    let (run, task, target) = (parent.run, parent.task.1.to_owned(), target.to_owned());
    let detail = format!("the {origin} task {target:?} cannot run: {reason}");
    let kind = if origin == Origin::OnDead { "on_dead" } else { "not_followed" };
    owners::record(cx.tx, cx.now, kind, Some(parent.task.0), Some(run), Some(&detail))?;
    Ok(match origin {
        Origin::OnDead => Event::OnDeadFailed { run, task, on_dead: target, reason },
        _ => Event::NotFollowed { run, task, origin, target, reason },
    })
}

const IS_OPENED: &str = "SELECT 1 FROM task_runs WHERE task_id = :task AND request_key = :key";

/// Returns why no run is opened, if none is and none was.
fn open(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (origin, target): (Origin, &str),
    payload: &str,
) -> Result<Option<String>, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(link) = Link::after(parent.run, parent.length) else {
        return Ok(Some(format!("{} runs have followed one after another, the most", chain::MAX_LENGTH)));
    };
    let Some(mut target) = tasks::by_name(tx, target)? else { return Ok(Some("there is no such task".to_owned())) };
    let key = link.key();
    if tx.prepare_cached(IS_OPENED)?.exists(named_params! { ":task": target.id, ":key": key })? {
        return Ok(None);
    }
    if target.definition.schedule_type == ScheduleKind::Delay {
        // Its schedule will wait for this run, so what is due is resolved first.
        target = resolve(cx, target, link.length)?;
    }
    if target.status == TaskStatus::Invalid {
        let reason = target.invalid_reason.unwrap_or_default();
        return Ok(Some(format!("it is invalid: {reason}")));
    }
    let request = Request { origin, payload: Some(payload), retry_of: None, key: Some(&key) };
    manual::open(tx, &target, request, now)?;
    cx.written.followers += turn_size::items_of(payload.len());
    Ok(None)
}

const TASK_OF: &str = "SELECT task_id FROM task_runs WHERE id = :run";

/// The run of a task that follows a run. Its request key begins with the id of that, whatever the length of the chain.
const FOLLOWING: &str = "
    SELECT r.id, t.name, r.origin, r.status FROM scheduled_tasks t CROSS JOIN task_runs r INDEXED BY task_runs_requested
     WHERE t.name = :name AND r.task_id = t.id
       AND r.request_key > '#' || :run || '/' AND r.request_key < '#' || :run || '0'";

/// Returns the runs that follow a run, oldest first: of the tasks that its task names now.
pub(super) fn of_run(store: &mut SqliteStore, run: i64) -> Answer<Vec<Follower>> {
    store.read("look up what follows a run", |tx, _| {
        let task = tx.prepare_cached(TASK_OF)?.query_row(named_params! { ":run": run }, |row| row.get(0)).optional()?;
        task.map_or_else(|| Ok(Vec::new()), |task| following(tx, (run, task)))
    })
}

/// As [`of_run`], of a run and its task.
pub(super) fn following(tx: &Transaction<'_>, (run, task): (i64, i64)) -> Result<Vec<Follower>, Fault> {
    let policy = policy(tx, task)?;
    let columns = policy.names.iter().flatten();
    let names: BTreeSet<&str> = columns.flat_map(|column| chain::names(column).take(MAX_FOLLOWERS)).collect();
    let (mut statement, mut following) = (tx.prepare_cached(FOLLOWING)?, Vec::new());
    for name in names {
        let read = |row: &Row<'_>| {
            Ok(Follower { id: row.get(0)?, task: row::shown(row, 1)?, origin: row.get(2)?, status: row.get(3)? })
        };
        let found = statement.query_map(named_params! { ":name": name, ":run": run }, read)?;
        following.extend(found.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    following.sort_unstable_by_key(|follower| follower.id);
    Ok(following)
}

/// Resolves the due occurrences of a task that is about to be changed, under its old state, and opens what follows. Returns the task after
/// that.
pub(crate) fn resolve_before_a_change(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Task,
    now: Timestamp,
) -> Result<Task, Fault> {
    let (id, mut written) = (task.id, Written { followed: any(tx)?, ..Written::default() });
    let mut cx = Change { tx, now, schedules, written: &mut written };
    let task = resolve(&mut cx, task, 0)?;
    if cx.written.passed.is_empty() {
        return Ok(task);
    }
    follow_all(&mut cx)?;
    // What follows may be a run of this task.
    Ok(tasks::by_id(tx, id)?.unwrap_or(task))
}

/// Resolves the due occurrences of a task that is about to be changed. What it passes over waits in the queue. `length`: how many runs have
/// led to that.
fn resolve(cx: &mut Change<'_>, task: Task, length: u32) -> Result<Task, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let task = planned_again(tx, task, now)?;
    if task.status != TaskStatus::Active && !runs_again(&task) {
        return Ok(task);
    }
    if !task.planned {
        match tasks::settle_plan(tx, cx.schedules, task.id, now) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(tasks::by_id(tx, task.id)?.unwrap_or(task)),
            // Its zone is unknown here, so when it is due is too. The change may correct the zone, so it must not fail.
            Err(fault) if fault.is_about_this_machine() => return Ok(task),
            Err(fault) => return Err(fault),
        }
    }
    replan::plan_again(tx, cx.schedules, &replan::zone_marks(tx)?, &[task.id])?;
    let mut aside = Written { followed: cx.written.followed, ..Written::default() };
    let due = due::due(tx, cx.schedules, &[task.id], now)?;
    let mut inner = Change { tx, now, schedules: cx.schedules, written: &mut aside };
    for (_, due) in due {
        open::resolve_due(&mut inner, &due?, None, Rest::Cut, None)?;
    }
    once::finish(&mut inner, None)?;
    cx.written.include(aside, length);
    tasks::recall(tx, task.id)?;
    Ok(tasks::by_id(tx, task.id)?.unwrap_or(task))
}

/// Plans a task again first, if a wrong clock has planned it and turns have not come to it yet. Returns the task as it is then.
pub(crate) fn planned_again(tx: &Transaction<'_>, task: Task, now: Timestamp) -> Result<Task, Fault> {
    let Some(mark) = clock_mark::read(tx)?.filter(|mark| mark.awaits(task.id)) else { return Ok(task) };
    replan::rewind_tasks(tx, &[task.id], mark.since, now)?;
    Ok(tasks::by_id(tx, task.id)?.unwrap_or(task))
}

/// Returns whether SQL set the next_run of a completed task. Planning makes such a task active.
pub(crate) fn runs_again(task: &Task) -> bool {
    task.status == TaskStatus::Completed && task.next_run.is_some()
}

const LEADS_TO: &str = "SELECT on_success, on_end FROM scheduled_tasks WHERE name = :name";

/// Refuses tasks that `on_success` and `on_end` lead back to. `written`: tasks that this transaction has written.
pub(crate) fn refuse_circles<'d>(
    tx: &Transaction<'_>,
    written: impl IntoIterator<Item = &'d Definition>,
) -> Result<(), Fault> {
    find_circle(tx, written)?.map_or(Ok(()), |(_, error)| Err(error.into()))
}

/// Returns one of these tasks that `on_success` and `on_end` lead back to, and why it is refused.
pub(crate) fn find_circle<'d>(
    tx: &Transaction<'_>,
    written: impl IntoIterator<Item = &'d Definition>,
) -> Result<Option<(&'d Definition, Error)>, Fault> {
    let leading: Vec<&Definition> = written.into_iter().filter(|task| task.leads_on()).collect();
    let names: Vec<&str> = leading.iter().map(|task| task.name.as_str()).collect();
    let next = |name: &str| -> rusqlite::Result<Vec<String>> {
        let read = |row: &Row<'_>| Ok([row::shown_if_any(row, 0)?, row::shown_if_any(row, 1)?]);
        let found = tx.prepare_cached(LEADS_TO)?.query_row(named_params! { ":name": name }, read).optional()?;
        let found = found.into_iter().flatten().flatten();
        Ok(found.flat_map(|names| chain::names(&names).map(str::to_owned).collect::<Vec<_>>()).collect())
    };
    let Some(circle) = chain::circle(&names, next)? else { return Ok(None) };
    let Some(task) = leading.into_iter().find(|task| task.name == circle[0]) else { return Ok(None) };
    let leads = |names: &Option<String>| {
        names.as_deref().is_some_and(|names| chain::names(names).any(|name| name == circle[1]))
    };
    let field = if leads(&task.on_success) { "on_success" } else { "on_end" };
    let expected = "tasks whose on_success and on_end do not lead back to this one";
    Ok(Some((task, Error::invalid_task(field, circle.join(" -> "), expected))))
}
