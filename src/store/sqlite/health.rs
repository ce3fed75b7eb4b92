//! The facts that show what is wrong with a file and its schedulers, and the rules that its rows break.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::host::halting;
use crate::host::owner_lock::Standing;
use crate::model::health::{
    CannotFollow, DeadRun, EndedWorkers, Failing, Health, HeldTask, Limits, Liveness, Ownerless, PassedOver, Stuck,
    Waiting,
};
use crate::model::report::{ClockWait, Finding, Instance};
use crate::model::run::Origin;
use crate::rules::chain;
use crate::rules::clock_monitor::NOTICED;
use crate::rules::notice::Notice;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::restore::held::{Goes, HeldBack};
use crate::store::sqlite::restore::seen;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{history, invariants, marks, owners, row};
use crate::store::turn_io::Session;

/// Longest list of facts of one kind.
const MAX_LISTED: usize = 100;
const MAX_LISTED_ROWS: i64 = MAX_LISTED as i64;
/// Dead runs and ended workers that are older than this are history.
pub(crate) const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

/// Time within which a living scheduler that has a free worker starts a run, at any load, if it has the handler.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Returns the facts of one snapshot.
pub(super) fn health(store: &mut SqliteStore, limits: &Limits, now: Timestamp) -> Result<Health> {
    let path = store.path().to_owned();
    let (before, recent, is_file) = (now.minus(limits.overdue), now.minus(RECENT), !store.is_in_memory());
    store.read("look for problems", |tx, _| {
        let with_runs = |one: Instance| at_work(tx, &one.id).map(|runs| (one, runs));
        let instances = instances(tx, &path)?;
        let any_alive = instances.iter().any(|one| one.alive == Some(true));
        let blocked = invariants::held_for_nothing(tx, before, MAX_LISTED)?.into_iter();
        let mut invalid = invalid(tx)?;
        invalid.extend(invariants::unreadable_tasks(tx, MAX_LISTED)?);
        Ok(Health {
            instances: instances.into_iter().map(with_runs).collect::<rusqlite::Result<_>>()?,
            clock: clock_wait(tx, now)?,
            newest_seen: owners::newest_seen(tx)?,
            // It reads all tasks, and only matters if no scheduler is alive.
            any_work: !any_alive && any_work(tx, now)?,
            any_marked: marks::any(tx)?,
            overdue: overdue(tx, before)?,
            waiting: waiting(tx, before)?,
            unhandled: waiting(tx, before.max(now.minus(STARTS_WITHIN)))?,
            ownerless: ownerless(tx, &path)?,
            stuck: stuck(tx, &path, now)?,
            held: held_back(tx, &path)?,
            laggards: if is_file { laggards(tx, &path)? } else { Vec::new() },
            ended_workers: ended_workers(tx, recent)?,
            problems: problems(tx)?,
            blocked: blocked.map(|run| (run.run, run.task, run.reason.unwrap_or_default())).collect(),
            reopened: invariants::reopened(tx, MAX_LISTED)?,
            interrupted: interrupted(tx)?,
            failing: failing(tx, limits.failures)?,
            dead: dead(tx, recent, limits.failures)?,
            missed: passed_over(tx, recent, Notice::Missed)?,
            caught_up: if limits.caught_up { passed_over(tx, recent, Notice::CaughtUp)? } else { Vec::new() },
            skipped: passed_over(tx, recent, Notice::Skipped)?,
            limited: passed_over(tx, recent, Notice::Limited)?,
            invalid,
            zones: zones(tx)?,
            zone_data: zone_data(tx)?,
            zone_rules: zone_rules(tx)?,
            cannot_follow: cannot_follow(tx)?,
        })
    })
}

/// Finds the rules that the stored rows break.
pub(super) fn doctor(store: &mut SqliteStore) -> Result<Vec<Finding>> {
    // The newest rows of a scheduler that died are in the log: it stays as it is.
    store.leave_log()?;
    store.read("look whether the file is sound", |tx, _| {
        let mut found = invariants::damaged(tx, MAX_LISTED)?;
        let rules = [invariants::broken, invariants::unowned, invariants::unreadable_text];
        match rules.iter().map(|rule| rule(tx, MAX_LISTED)).collect::<rusqlite::Result<Vec<_>>>() {
            Ok(broken) => found.extend(broken.into_iter().flatten()),
            // A damaged file may not be readable: that has been found already.
            Err(_) if !found.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
        // Names may hold any text: a finding stays one line.
        let finding = |(rule, found): (_, String)| Finding { rule, found: found.replace(char::is_control, " ") };
        Ok(found.into_iter().map(finding).collect())
    })
}

/// Returns until when schedules wait for the clock, if they do.
pub(super) fn clock_wait(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<Option<ClockWait>> {
    let (count, counted) = counted_beyond(tx, now.plus(NOTICED))?;
    if now < Timestamp::MIN {
        let until = counted.max(owners::newest_seen(tx)?).unwrap_or(Timestamp::MIN);
        return Ok(Some(ClockWait { shows: now, until, waiting: None }));
    }
    Ok(counted.map(|until| ClockWait { shows: now, until, waiting: Some(count) }))
}

/// Asks the kernel whether an owner is alive. A lock that is free is not kept.
pub(super) fn liveness(tx: &Transaction<'_>, file: &Path, owner: &str) -> rusqlite::Result<Liveness> {
    let session = owners::session(tx, owner)?;
    Ok(match session.standing(file, owner) {
        Standing::Alive { degraded } => Liveness::Alive { degraded },
        Standing::Dead(_) if session.is_held() => Liveness::Alive { degraded: false },
        Standing::Dead(_) => Liveness::Dead { heir: None },
        Standing::TakenOver(heir) => Liveness::Dead { heir: Some(heir) },
        Standing::Missing => match session {
            Session::None => Liveness::NoLock,
            Session::Held { .. } => Liveness::Alive { degraded: false },
            Session::Free { passed, .. } => Liveness::NoSession { passed },
        },
        Standing::Unknown(reason) => Liveness::Unknown(reason),
    })
}

const INSTANCES: &str = "
    SELECT id, host, pid, version, workers, started_at, seen_at, boot_id, lease_ms FROM scheduler_instances
     WHERE stopped_at IS NULL ORDER BY started_at, id";

/// Returns the schedulers that have not stopped in order, and whether each is alive.
pub(super) fn instances(tx: &Transaction<'_>, file: &Path) -> rusqlite::Result<Vec<Instance>> {
    let read = |row: &Row<'_>| {
        let id = row::shown(row, 0)?;
        let liveness = liveness(tx, file, &id)?;
        let degraded = liveness == (Liveness::Alive { degraded: true });
        let (alive, doubt) = match liveness {
            Liveness::Alive { .. } => (Some(true), None),
            Liveness::Dead { .. } | Liveness::NoSession { passed: true } => (Some(false), None),
            Liveness::NoSession { passed: false } => {
                (None, Some("its session has ended, and its lease has not passed".to_owned()))
            }
            Liveness::NoLock => (None, Some("it has no lock file, or a copy in its place".to_owned())),
            Liveness::Unknown(reason) => (None, Some(reason)),
        };
        Ok(Instance {
            id,
            host: row::shown(row, 1)?,
            boot_id: row::shown_if_any(row, 7)?,
            pid: row::saturating(row, 2)?,
            version: row::shown(row, 3)?,
            workers: row::saturating(row, 4)?,
            lease: row::millis_at(row, 8)?.unwrap_or_default(),
            started_at: row.get(5)?,
            seen_at: row.get(6)?,
            alive,
            doubt,
            degraded,
        })
    };
    tx.prepare_cached(INSTANCES)?.query_map([], read)?.collect()
}

/// Returns the running runs whose owner is not registered.
fn ownerless(tx: &Transaction<'_>, file: &Path) -> rusqlite::Result<Vec<Ownerless>> {
    let runs = invariants::ownerless(tx, MAX_LISTED)?.into_iter();
    let ownerless =
        |(run, task, owner): (_, _, String)| Ok(Ownerless { run, task, liveness: liveness(tx, file, &owner)?, owner });
    runs.map(ownerless).collect()
}

const OVERDUE: &str = sql! {"
    SELECT name, coalesce(next_run, updated_at) FROM scheduled_tasks
     WHERE ({active_planned} AND next_run < :before)
        OR (planned = 0 AND ((status = 'active' AND (schedule_type <> 'manual' OR next_run IS NOT NULL)
                              AND coalesce(next_run, updated_at) < :before)
                             OR (status = 'completed' AND next_run < :before)))
     ORDER BY 2, name LIMIT :limit"};

/// Returns the tasks that have been due, or have not been examined, since before an instant, and since when.
fn overdue(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<Vec<(String, Timestamp)>> {
    tx.prepare_cached(OVERDUE)?
        .query_map(named_params! { ":before": before, ":limit": MAX_LISTED_ROWS }, |row| {
            Ok((row::shown(row, 0)?, row.get(1)?))
        })?
        .collect()
}

const INTERRUPTED: &str = sql! {"
    SELECT r.id, t.name, r.interrupted
      FROM task_runs r INDEXED BY task_runs_unfinished JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE {unfinished:r} AND r.interrupted > 1
     ORDER BY r.id LIMIT :limit"};

/// Returns the unfinished runs with more than one interruption, and how many each has.
fn interrupted(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(i64, String, u32)>> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row::shown(row, 1)?, row::saturating(row, 2)?));
    tx.prepare_cached(INTERRUPTED)?.query_map(named_params! { ":limit": MAX_LISTED_ROWS }, read)?.collect()
}

const FAILING: &str = "
    SELECT name, failure_count, ifnull(last_error, ''), status = 'paused' FROM scheduled_tasks
     WHERE failure_count >= :failures AND status <> 'completed'
     ORDER BY failure_count DESC, name LIMIT :limit";

/// Returns the tasks with at least `failures` dead runs in a row.
fn failing(tx: &Transaction<'_>, failures: u32) -> rusqlite::Result<Vec<Failing>> {
    let read = |row: &Row<'_>| {
        let (task, count, error) = (row::shown(row, 0)?, row::saturating(row, 1)?, row::shown(row, 2)?);
        Ok(Failing { task, count, error, is_paused: row.get(3)?, marked: None })
    };
    tx.prepare_cached(FAILING)?
        .query_map(named_params! { ":failures": failures, ":limit": MAX_LISTED_ROWS }, read)?
        .collect()
}

/// Bookkeeping of the task spares the search of its history where its newest run has succeeded since. Elsewhere the runs after the
/// dead one are searched: scheduled runs by their occurrence, the others by their id. Older history is not read.
// t.id, not r.task_id: SQLite would search before it reads the task. +: an index of an expression serves no comparison with a column.
const DEAD: &str = sql! {"
    SELECT max(r.id), t.name, count(*), ifnull(r.error, '')
      FROM task_runs r INDEXED BY task_runs_dead JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'dead' AND r.finished_at >= :since
       AND (t.failure_count < :failures OR t.status = 'completed')
       AND (t.last_status IS NOT 'succeeded' OR t.last_finished < r.finished_at)
       AND NOT EXISTS (SELECT 1 FROM task_runs s
                        WHERE s.task_id = t.id AND {unscheduled_id:s} = 0 AND s.scheduled_for > r.scheduled_for
                          AND s.status = 'succeeded' AND s.id > r.id)
       AND NOT EXISTS (SELECT 1 FROM task_runs s
                        WHERE s.task_id = t.id AND {unscheduled_id:s} > +r.id AND s.status = 'succeeded')
     GROUP BY r.task_id ORDER BY 1 DESC LIMIT :limit"};

/// Returns the newest dead run since an instant of each task that is not failing and has not succeeded since.
fn dead(tx: &Transaction<'_>, since: Timestamp, failures: u32) -> rusqlite::Result<Vec<DeadRun>> {
    let read = |row: &Row<'_>| {
        Ok(DeadRun { run: row.get(0)?, task: row::shown(row, 1)?, count: row.get(2)?, error: row::shown(row, 3)? })
    };
    tx.prepare_cached(DEAD)?
        .query_map(named_params! { ":since": since, ":failures": failures, ":limit": MAX_LISTED_ROWS }, read)?
        .collect()
}

/// Most events of a kind that a look examines: the newest.
const MAX_NOTICES: i64 = 2_000;

/// The newest event of each task.
const PASSED_OVER: &str = "
    SELECT e.run_id, t.name, e.detail, t.id, r.scheduled_for
      FROM (SELECT max(id) AS newest
              FROM (SELECT id, at, task_id FROM scheduler_events INDEXED BY scheduler_events_of_kind
                     WHERE kind = :kind ORDER BY id DESC LIMIT :most)
             WHERE at >= :since GROUP BY task_id) n
     CROSS JOIN scheduler_events e ON e.id = n.newest
     CROSS JOIN scheduled_tasks t ON t.id = e.task_id
      LEFT JOIN task_runs r ON r.id = e.run_id
     ORDER BY e.id DESC";

/// Returns the tasks of which events of this kind told since an instant, and of which that has not ended since.
fn passed_over(tx: &Transaction<'_>, since: Timestamp, notice: Notice) -> rusqlite::Result<Vec<(i64, PassedOver)>> {
    let mut statement = tx.prepare_cached(PASSED_OVER)?;
    let mut rows = statement.query(named_params! { ":kind": notice.kind(), ":most": MAX_NOTICES, ":since": since })?;
    let mut passed = Vec::new();
    while let Some(row) = rows.next()?.filter(|_| passed.len() < MAX_LISTED) {
        let (run, scheduled_for) = (row.get(0)?, row.get(4)?);
        if history::lasts(tx, notice, row.get(3)?, (run, scheduled_for))? {
            let detail = row::shown_if_any(row, 2)?.unwrap_or_default();
            passed.push((run, PassedOver { task: row::shown(row, 1)?, detail }));
        }
    }
    Ok(passed)
}

/// As the view `stuck_runs`, which reads SQLite's clock.
const STUCK: &str = "
    SELECT r.id, r.attempt, t.name, r.handler, ifnull(r.locked_by, ''), r.process, r.started_at, r.locked_until < :now
      FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running'
       AND (r.locked_until < :now
            OR (ifnull(t.timeout_ms, iif(r.handler = 'command', 3600000, 0)) > 0
                AND r.started_at + ifnull(t.timeout_ms, 3600000) < :now))
     ORDER BY r.id LIMIT :limit";

/// Returns the runs that have been running past their lease or their timeout.
fn stuck(tx: &Transaction<'_>, file: &Path, now: Timestamp) -> rusqlite::Result<Vec<Stuck>> {
    let read = |row: &Row<'_>| {
        let (run, attempt, task, handler) = (row.get(0)?, row.get(1)?, row::shown(row, 2)?, row::shown(row, 3)?);
        let (owner, process, started_at, past_lease) =
            (row::shown(row, 4)?, row::shown_if_any(row, 5)?, row.get(6)?, row.get(7)?);
        let heir = match liveness(tx, file, &owner)? {
            Liveness::Dead { heir } => heir,
            Liveness::Alive { .. } | Liveness::NoLock | Liveness::NoSession { .. } | Liveness::Unknown(_) => None,
        };
        Ok(Stuck { run, attempt, task, handler, owner, process, started_at, past_lease, heir })
    };
    tx.prepare_cached(STUCK)?.query_map(named_params! { ":now": now, ":limit": MAX_LISTED_ROWS }, read)?.collect()
}

const NAME: &str = "SELECT name FROM scheduled_tasks WHERE id = :task";

/// Returns what was begun before the file was restored, and may still run.
fn held_back(tx: &Transaction<'_>, file: &Path) -> rusqlite::Result<Vec<HeldTask>> {
    let mut found = Vec::new();
    let held = HeldBack::read(tx)?;
    if held == HeldBack::Damaged {
        found.push(HeldTask { run: None, task: None, owner: None, goes_on: false, liveness: Liveness::NoLock });
    }
    for (owner, goes, attempts) in held.former() {
        let (liveness, goes_on) = (liveness(tx, file, owner)?, goes == Goes::On);
        let owner = Some(owner.to_owned());
        let held = |run, task| HeldTask { run, task, owner: owner.clone(), goes_on, liveness: liveness.clone() };
        let Some(attempts) = attempts else {
            found.push(held(None, None));
            continue;
        };
        for claimed in attempts {
            let params = named_params! { ":task": claimed.task };
            let name = tx.prepare_cached(NAME)?.query_row(params, |row| row::shown(row, 0)).optional()?;
            found.push(held(Some(claimed.run), name));
        }
    }
    found.truncate(MAX_LISTED);
    Ok(found)
}

/// Returns the owners that others wait for after a change of the schema.
fn laggards(tx: &Transaction<'_>, file: &Path) -> rusqlite::Result<Vec<String>> {
    // Where this process cannot look, there is nothing to report.
    let behind = halting::behind(file, "", seen::cookie(tx)?).unwrap_or_default();
    Ok(behind.into_iter().filter(|laggard| !laggard.is_halted).map(|laggard| laggard.owner).collect())
}

const INVALID: &str = "
    SELECT name, ifnull(invalid_reason, 'no reason is given') FROM scheduled_tasks WHERE status = 'invalid'
     ORDER BY name LIMIT :limit";

/// Returns the tasks that cannot be scheduled, and why.
fn invalid(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, String)>> {
    tx.prepare_cached(INVALID)?
        .query_map(named_params! { ":limit": MAX_LISTED_ROWS }, |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?)))?
        .collect()
}

const ZONES: &str = "
    SELECT time_zone, min(name), count(*) FROM scheduled_tasks WHERE status = 'active' GROUP BY time_zone ORDER BY 1";

/// Returns the time zones of active tasks, with the first task and the number of tasks of each.
fn zones(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, String, u32)>> {
    tx.prepare_cached(ZONES)?
        .query_map([], |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?, row::saturating(row, 2)?)))?
        .collect()
}

const ZONE_DATA: &str = "
    SELECT id, zone_data FROM scheduler_instances
     WHERE stopped_at IS NULL AND zone_data IS NOT NULL ORDER BY started_at, id LIMIT :limit";

/// Returns the zone data of each scheduler that has not stopped.
fn zone_data(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, String)>> {
    tx.prepare_cached(ZONE_DATA)?
        .query_map(named_params! { ":limit": MAX_LISTED_ROWS }, |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?)))?
        .collect()
}

const ZONE_RULES: &str = "
    SELECT substr(key, 12), value FROM scheduler_meta WHERE key > 'zone_rules:' AND key < 'zone_rules;'";

/// Returns by which rules the tasks of each time zone are planned.
fn zone_rules(tx: &Transaction<'_>) -> rusqlite::Result<BTreeMap<String, String>> {
    tx.prepare_cached(ZONE_RULES)?.query_map([], |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?)))?.collect()
}

const FOLLOWED: &str = sql! {"
    SELECT t.name, t.on_dead, t.on_success, t.on_end, t.on_missed FROM scheduled_tasks t
     WHERE (t.on_dead IS NOT NULL OR {followed:t})
       AND (t.status <> 'completed'
            OR EXISTS (SELECT 1 FROM task_runs r
                        WHERE r.task_id = t.id AND {unfinished:r}))
     ORDER BY t.name"};
/// The columns of [`FOLLOWED`].
const COLUMNS: [Origin; 4] = [Origin::OnDead, Origin::OnSuccess, Origin::OnEnd, Origin::OnMissed];

/// Why a task cannot follow; NULL if it can.
const CANNOT_FOLLOW: &str = "
    SELECT CASE WHEN status = 'invalid' THEN 'that is invalid: ' || ifnull(invalid_reason, 'no reason is given')
                WHEN handler = 'command'
                     AND iif(json_valid(payload), ifnull(json_type(payload, '$.argv'), '') <> 'array', 1)
                THEN 'that is no command: its payload has no argv'
                WHEN status = 'paused' THEN 'that is paused' END
      FROM scheduled_tasks WHERE name = :name";

/// Returns the tasks that could not run after the tasks that name them.
fn cannot_follow(tx: &Transaction<'_>) -> rusqlite::Result<Vec<CannotFollow>> {
    let (mut followed, mut why) = (tx.prepare_cached(FOLLOWED)?, tx.prepare_cached(CANNOT_FOLLOW)?);
    let (mut found, mut known) = (Vec::new(), BTreeMap::<String, Option<String>>::new());
    let mut rows = followed.query([])?;
    while let Some(row) = rows.next()?.filter(|_| found.len() < MAX_LISTED) {
        let task = row::shown(row, 0)?;
        for (at, column) in COLUMNS.into_iter().enumerate() {
            let names = row::shown_if_any(row, at + 1)?;
            for target in names.iter().flat_map(|names| chain::names(names)) {
                if !known.contains_key(target) {
                    let reason =
                        why.query_row(named_params! { ":name": target }, |row| row::shown_if_any(row, 0)).optional()?;
                    let reason = reason.unwrap_or_else(|| Some("there is no such task".to_owned()));
                    known.insert(target.to_owned(), reason);
                }
                let Some(Some(reason)) = known.get(target) else { continue };
                found.push(CannotFollow {
                    task: task.clone(),
                    column,
                    target: target.to_owned(),
                    reason: reason.clone(),
                });
            }
        }
    }
    found.truncate(MAX_LISTED);
    Ok(found)
}

const WAITING: &str = sql! {"
    SELECT handler, count(*), min(run_at) FROM task_runs INDEXED BY task_runs_claimable
     WHERE {claimable} AND run_at < :before
     GROUP BY handler ORDER BY handler LIMIT :limit"};

/// The runs that [`WAITING`] counts, and the replacement without those of marked tasks, which may not start as it seems.
const BEFORE: &str = "AND run_at < :before";
const UNMARKED: &str =
    "AND run_at < :before AND task_id NOT IN (SELECT id FROM scheduled_tasks WHERE marked IS NOT NULL)";

/// Returns the runs that could have started before an instant, by handler: since then, the rate of the handler has allowed it.
fn waiting(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<Vec<Waiting>> {
    let read = |row: &Row<'_>| {
        let count: i64 = row.get(1)?;
        let (handler, since) = (row::shown(row, 0)?, row.get(2)?);
        Ok(Waiting { handler, count: count.unsigned_abs(), since, running: BTreeSet::new() })
    };
    let limits = InForce::read(tx)?;
    let mut found = Vec::new();
    let counted = if marks::any(tx)? { &WAITING.replace(BEFORE, UNMARKED) } else { WAITING };
    let mut statement = tx.prepare_cached(counted)?;
    for waiting in statement.query_map(named_params! { ":before": before, ":limit": MAX_LISTED_ROWS }, read)? {
        let waiting = waiting?;
        let since = waiting.since.max(limits.opens_at(tx, &waiting.handler)?.unwrap_or(waiting.since));
        if since < before {
            let running = owners_running(tx, &waiting.handler)?;
            found.push(Waiting { since, running, ..waiting });
        }
    }
    Ok(found)
}

const OWNERS_RUNNING: &str = "
    SELECT locked_by FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND handler = :handler AND locked_by IS NOT NULL";

/// Returns the owners that have running runs of a handler.
fn owners_running(tx: &Transaction<'_>, handler: &str) -> rusqlite::Result<BTreeSet<String>> {
    tx.prepare_cached(OWNERS_RUNNING)?
        .query_map(named_params! { ":handler": handler }, |row| row::shown(row, 0))?
        .collect()
}

const AT_WORK: &str = "
    SELECT count(*) FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

/// Counts the running runs of an owner.
pub(super) fn at_work(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<u32> {
    tx.prepare_cached(AT_WORK)?.query_row(named_params! { ":owner": owner }, |row| row.get(0))
}

const ANY_WORK: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM scheduled_tasks
                    WHERE ({active_planned} AND next_run <= :now)
                       OR (planned = 0 AND (status = 'active' OR (status = 'completed' AND next_run <= :now))))
        OR EXISTS (SELECT 1 FROM task_runs WHERE status = 'running')
        OR EXISTS (SELECT 1 FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                    WHERE {claimable:r} AND r.run_at <= :now
                      AND (r.origin = 'manual' OR (t.status <> 'paused' AND t.status <> 'invalid')))"};

/// Reports whether a scheduler would find work now.
fn any_work(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_WORK)?.query_row(named_params! { ":now": now }, |row| row.get(0))
}

const ENDED_WORKERS: &str = "
    SELECT i.id, i.pid, max(e.at), e.detail, count(*)
      FROM scheduler_events e JOIN scheduler_instances i ON e.detail GLOB i.id || ': *'
     WHERE e.kind = 'worker_ended' AND e.at >= :since AND i.stopped_at IS NULL
     GROUP BY i.id ORDER BY i.id LIMIT :limit";

/// Returns the schedulers that have not stopped, and whose workers ended since an instant.
fn ended_workers(tx: &Transaction<'_>, since: Timestamp) -> rusqlite::Result<Vec<EndedWorkers>> {
    let read = |row: &Row<'_>| {
        let (owner, detail) = (row::shown(row, 0)?, row::shown(row, 3)?);
        let error = detail.strip_prefix(&format!("{owner}: ")).unwrap_or(&detail).to_owned();
        Ok(EndedWorkers {
            owner,
            pid: row::saturating(row, 1)?,
            at: row.get(2)?,
            error,
            count: row::saturating(row, 4)?,
        })
    };
    tx.prepare_cached(ENDED_WORKERS)?
        .query_map(named_params! { ":since": since, ":limit": MAX_LISTED_ROWS }, read)?
        .collect()
}

const PROBLEMS: &str = "
    SELECT id, problems FROM scheduler_instances WHERE stopped_at IS NULL AND problems IS NOT NULL";

/// Returns what the applications of schedulers report as wrong. Another program may have written any text.
fn problems(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, String)>> {
    let read = |row: &Row<'_>| {
        let (owner, json) = (row::shown(row, 0)?, row::shown(row, 1)?);
        let texts: Vec<String> = serde_json::from_str(&json).unwrap_or_default();
        Ok(texts.into_iter().map(move |text| (owner.clone(), text)))
    };
    let found: Vec<_> = tx.prepare_cached(PROBLEMS)?.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
    Ok(found.into_iter().flatten().take(MAX_LISTED).collect())
}

/// A schedule counts from the newest of these; a retry from the end of its attempt, unless it was planned anew since.
const COUNTED_BEYOND: &str = sql! {"
    SELECT count(*), max(until)
      FROM (SELECT max(active_since, ifnull(resolved_until, 0),
                       iif(schedule_type = 'delay' AND next_run >= last_finished, last_finished, 0)) AS until
              FROM scheduled_tasks
             WHERE status = 'active' AND schedule_type <> 'once' AND schedule_type <> 'manual'
            UNION ALL
            SELECT finished_at FROM task_runs
             WHERE {unfinished} AND status = 'failed'
               AND run_at >= finished_at)
     WHERE until > :after"};

/// Schedules and retries that count from a time after an instant: how many, and the newest of these times.
pub(crate) fn counted_beyond(tx: &Transaction<'_>, after: Timestamp) -> rusqlite::Result<(u64, Option<Timestamp>)> {
    tx.prepare_cached(COUNTED_BEYOND)?
        .query_row(named_params! { ":after": after }, |row| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?)))
}
