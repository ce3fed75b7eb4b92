//! Alarms: which conditions began and ended, and which messages about them are due. A look that finds no change writes nothing.

mod passed_over;

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Result, excerpt};
use crate::model::alarm::{AlarmItem, AlarmKind, AlarmMessage, AlarmPace, AlarmState, AlarmTurn, Condition, Look};
use crate::rules::alarm_pace::{self, Slot};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row;
use crate::text::escape;

/// Most recorded facts that one look examines.
const MAX_FACTS: usize = 500;
/// A cursor that lags behind by more is stored even if nothing was found, so that a look stays short.
const MAX_LAG: i64 = 1000;
/// Most attempts that one look examines: it may hold the write lock.
const MAX_ATTEMPTS: i64 = 10_000;
/// Overdue work that begins and ends within this time is not reported: the first turn after a pause starts it.
const BRIEF: Duration = Duration::from_secs(30);
/// A time later than the clock by more was written before the clock was set back.
const AHEAD: Duration = Duration::from_secs(60);
/// Longest error that an alarm quotes.
const MAX_ERROR: usize = 300;
/// The value of `claimed` of a row whose end is being delivered.
const CLAIMED_END: i64 = -1;

/// What a look changes for one channel.
#[derive(Debug, Default)]
struct Changes {
    /// New values of the cursors.
    seen: Vec<(AlarmKind, i64)>,
    /// Conditions that began, and how often.
    begun: Vec<(Condition, i64)>,
    /// Rows of conditions that ended.
    ended: Vec<i64>,
    /// There are more facts.
    more: bool,
}

/// Records which alarms began and ended.
pub(super) fn update(store: &mut SqliteStore, look: &Look<'_>, now: Timestamp) -> Result<bool> {
    let found = |tx: &Transaction<'_>| -> Result<bool, Fault> {
        let mut any = look.outage.is_some();
        for channel in look.channels {
            let changes = changes(tx, channel, look)?;
            any |= !changes.seen.is_empty() || !changes.begun.is_empty() || !changes.ended.is_empty();
        }
        Ok(any)
    };
    if !store.read("look for alarms", |tx, _| found(tx))? {
        return Ok(false);
    }
    store.write("record alarms", |tx, _| {
        let mut more = false;
        for channel in look.channels {
            if let Some(outage) = look.outage {
                let is_delivered = outage.delivered.iter().any(|one| one == channel);
                let (since, found, advice) = (outage.since, outage.found.clone(), outage.advice.clone());
                let condition =
                    Condition { kind: AlarmKind::Degraded, subject: String::new(), run: None, since, found, advice };
                if open(tx, channel, &condition)?.is_none() {
                    begin(tx, channel, &condition, 1, now)?;
                }
                if is_delivered {
                    tx.prepare_cached(IS_DELIVERED)?
                        .execute(named_params! { ":channel": channel, ":kind": AlarmKind::Degraded.as_str() })?;
                }
            }
            let changes = changes(tx, channel, look)?;
            for (kind, id) in &changes.seen {
                tx.prepare_cached(SEEN)?
                    .execute(named_params! { ":channel": channel, ":kind": kind.as_str(), ":id": id })?;
            }
            for (condition, count) in &changes.begun {
                begin(tx, channel, condition, *count, now)?;
            }
            for id in &changes.ended {
                tx.prepare_cached(DROP_BRIEF)?.execute(named_params! { ":id": id, ":recent": now.minus(BRIEF) })?;
                tx.prepare_cached(END)?.execute(named_params! { ":id": id, ":now": now })?;
            }
            // What began may have ended before this look.
            more |= changes.more || !changes.begun.is_empty();
        }
        Ok(more)
    })
}

const IS_DELIVERED: &str = "
    UPDATE scheduler_alarms SET delivered = count
     WHERE channel = :channel AND kind = :kind AND subject = '' AND ended_at IS NULL";

const SEEN: &str = "
    INSERT INTO scheduler_alarm_channels (channel, kind, seen_id) VALUES (:channel, :kind, :id)
    ON CONFLICT (channel, kind) DO UPDATE SET seen_id = excluded.seen_id";

const REOPEN: &str = "
    UPDATE scheduler_alarms SET ended_at = NULL, since = iif(delivered = count, :since, since)
     WHERE id = (SELECT max(id) FROM scheduler_alarms
                  WHERE channel = :channel AND kind = :kind AND subject = :subject AND ended_at IS NOT NULL)";

const BEGIN: &str = "
    INSERT INTO scheduler_alarms (channel, kind, subject, run_id, since, count, changed_at, found, advice)
    VALUES (:channel, :kind, :subject, :run, :since, :count, :now, :found, :advice)
    ON CONFLICT (channel, kind, subject) WHERE ended_at IS NULL DO UPDATE
       SET count = count + excluded.count, run_id = excluded.run_id, found = excluded.found,
           advice = excluded.advice, changed_at = iif(delivered = count, excluded.changed_at, changed_at)";

/// A condition that goes on: it has not begun again.
const GO_ON: &str = "
    UPDATE scheduler_alarms SET run_id = :run WHERE id = :id";

/// Records that a condition began. An end that is not delivered is withdrawn: the last message about it would be wrong. A task that is
/// skipped again is one condition; only a success after the newest skip ends it.
fn begin(
    tx: &Transaction<'_>,
    channel: &str,
    condition: &Condition,
    count: i64,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let open = open(tx, channel, condition)?;
    if let Some(id) = open.filter(|_| matches!(condition.kind, AlarmKind::Skipped | AlarmKind::Limited)) {
        tx.prepare_cached(GO_ON)?.execute(named_params! { ":id": id, ":run": condition.run })?;
        return Ok(());
    }
    if open.is_none() {
        tx.prepare_cached(REOPEN)?.execute(named_params! {
            ":channel": channel, ":kind": condition.kind.as_str(), ":subject": condition.subject, ":since": condition.since,
        })?;
    }
    tx.prepare_cached(BEGIN)?.execute(named_params! {
        ":channel": channel, ":kind": condition.kind.as_str(), ":subject": condition.subject, ":run": condition.run,
        ":since": condition.since, ":count": count, ":now": now, ":found": condition.found, ":advice": condition.advice,
    })?;
    Ok(())
}

const DROP_BRIEF: &str = "
    DELETE FROM scheduler_alarms
     WHERE id = :id AND kind = 'overdue' AND ended_at IS NULL AND delivered = 0 AND claimed = 0 AND changed_at > :recent";

const END: &str = "
    UPDATE scheduler_alarms SET ended_at = :now, changed_at = iif(delivered = count, :now, changed_at)
     WHERE id = :id AND ended_at IS NULL";

const OPEN: &str = "
    SELECT id FROM scheduler_alarms
     WHERE channel = :channel AND kind = :kind AND subject = :subject AND ended_at IS NULL";

/// Returns the open row of a condition.
fn open(tx: &Transaction<'_>, channel: &str, condition: &Condition) -> rusqlite::Result<Option<i64>> {
    let named = named_params! { ":channel": channel, ":kind": condition.kind.as_str(), ":subject": condition.subject };
    tx.prepare_cached(OPEN)?.query_row(named, |row| row.get(0)).optional()
}

const ENDED_SINCE: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_alarms
                    WHERE channel = :channel AND kind = :kind AND subject = :subject
                      AND ended_at BETWEEN :at AND :ahead)";

const LISTED: &str = "
    SELECT id, subject, changed_at FROM scheduler_alarms
     WHERE channel = :channel AND kind = :kind AND ended_at IS NULL";

fn changes(tx: &Transaction<'_>, channel: &str, look: &Look<'_>) -> Result<Changes, Fault> {
    let mut changes = Changes::default();
    dead_runs(tx, channel, look, &mut changes)?;
    passed_over::find(tx, channel, look, AlarmKind::Missed, &mut changes)?;
    passed_over::find(tx, channel, look, AlarmKind::Skipped, &mut changes)?;
    passed_over::find(tx, channel, look, AlarmKind::Limited, &mut changes)?;
    lost_schedulers(tx, channel, look, &mut changes)?;
    for condition in &look.conditions {
        let named = named_params! {
            ":channel": channel, ":kind": condition.kind.as_str(), ":subject": condition.subject,
            ":at": look.at, ":ahead": look.at.plus(AHEAD),
        };
        // Another scheduler may have seen its end after this look.
        if open(tx, channel, condition)?.is_none()
            && !tx.prepare_cached(ENDED_SINCE)?.query_row(named, |row| row.get(0))?
        {
            changes.begun.push((condition.clone(), 1));
        }
    }
    for kind in &look.complete {
        let mut statement = tx.prepare_cached(LISTED)?;
        let mut rows = statement.query(named_params! { ":channel": channel, ":kind": kind.as_str() })?;
        while let Some(row) = rows.next()? {
            let (subject, found_at): (String, Timestamp) = (row::shown(row, 1)?, row.get(2)?);
            let lasts = look.conditions.iter().any(|one| one.kind == *kind && one.subject == subject);
            // Another scheduler may have seen its begin after this look.
            if !lasts && (found_at <= look.at || found_at.since(look.at) > AHEAD) {
                changes.ended.push(row.get(0)?);
            }
        }
    }
    Ok(changes)
}

const CURSOR: &str = "SELECT seen_id FROM scheduler_alarm_channels WHERE channel = :channel AND kind = :kind";

const NEW_ATTEMPTS: &str = "
    SELECT ifnull(max(id), 0) FROM task_attempts WHERE finished_at < :since";

const LAST_ATTEMPT: &str = "
    SELECT ifnull(max(id), :after) FROM (SELECT id FROM task_attempts WHERE id > :after ORDER BY id LIMIT :limit)";

/// Its order is fixed, and + excludes the index of dead runs: statistics of an empty file would make SQLite read all of them.
const DEAD: &str = "
    SELECT a.id, a.run_id, t.name, a.error, a.finished_at
      FROM task_attempts a CROSS JOIN task_runs r ON r.id = a.run_id CROSS JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE a.id > :after AND a.id <= :until AND a.final = 1 AND +r.status = 'dead' ORDER BY a.id LIMIT :limit";

/// A task that is gone needs no success. The history is searched only if the newest outcome is not a dead run.
const OVER: &str = "
    SELECT a.id FROM scheduler_alarms a
     WHERE a.channel = :channel AND a.kind = 'dead' AND a.ended_at IS NULL
       AND (NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE name = a.subject)
            OR EXISTS (SELECT 1 FROM scheduled_tasks t CROSS JOIN task_runs r INDEXED BY task_runs_one_per_occurrence
                        WHERE t.name = a.subject AND t.failure_count = 0 AND r.task_id = t.id
                          AND r.status = 'succeeded' AND r.id > a.run_id))";

/// Finds the runs that became dead since the last look: each has an attempt that ended it.
fn dead_runs(tx: &Transaction<'_>, channel: &str, look: &Look<'_>, changes: &mut Changes) -> Result<(), Fault> {
    let after = cursor(tx, channel, AlarmKind::Dead, (NEW_ATTEMPTS, look.since), changes)?;
    let read = |row: &Row<'_>| {
        let (id, run, task): (i64, i64, String) = (row.get(0)?, row.get(1)?, row::shown(row, 2)?);
        let error = row::shown_if_any(row, 3)?.unwrap_or_default();
        let found = escape::one_line(&format!("run {run} of {task} is dead: {}", excerpt(&error, MAX_ERROR)));
        let advice = format!("see duly logs {run}; duly retry {run} starts a new run");
        let kind = AlarmKind::Dead;
        Ok((id, Condition { kind, subject: task, run: Some(run), since: row.get(4)?, found, advice }))
    };
    let until = tx
        .prepare_cached(LAST_ATTEMPT)?
        .query_row(named_params! { ":after": after, ":limit": MAX_ATTEMPTS }, |row| row.get::<_, i64>(0))?;
    let limit = i64::try_from(MAX_FACTS).unwrap_or(i64::MAX);
    let dead: Vec<(i64, Condition)> = tx
        .prepare_cached(DEAD)?
        .query_map(named_params! { ":after": after, ":until": until, ":limit": limit }, read)?
        .collect::<rusqlite::Result<_>>()?;
    changes.more |= until.saturating_sub(after) >= MAX_ATTEMPTS;
    move_on(AlarmKind::Dead, (after, until), &dead, changes);
    for (_, condition) in dead {
        changes.begun.push((condition, 1));
    }
    let mut statement = tx.prepare_cached(OVER)?;
    for id in statement.query_map(named_params! { ":channel": channel }, |row| row.get(0))? {
        changes.ended.push(id?);
    }
    Ok(())
}

const NEW_EVENTS: &str = "
    SELECT ifnull(max(id), 0) FROM scheduler_events WHERE at < :since";

const NEWEST_EVENT: &str = "SELECT ifnull(max(id), 0) FROM scheduler_events";

const LOST: &str = "
    SELECT e.id, e.detail, ifnull(i.seen_at, e.at), i.pid, i.host
      FROM scheduler_events e LEFT JOIN scheduler_instances i ON i.id = e.detail
     WHERE e.id > :after AND e.kind = 'owner_lost' ORDER BY e.id LIMIT :limit";

const REPLACED: &str = "
    SELECT a.id FROM scheduler_alarms a
     WHERE a.channel = :channel AND a.kind = 'scheduler_lost' AND a.ended_at IS NULL
       AND EXISTS (SELECT 1 FROM scheduler_instances i
                    WHERE i.stopped_at IS NULL AND (i.id = a.subject OR i.started_at > a.since))";

/// Finds the schedulers that died since the last look, and those after which another one has started.
fn lost_schedulers(tx: &Transaction<'_>, channel: &str, look: &Look<'_>, changes: &mut Changes) -> Result<(), Fault> {
    let after = cursor(tx, channel, AlarmKind::SchedulerLost, (NEW_EVENTS, look.since), changes)?;
    let read = |row: &Row<'_>| {
        let (id, owner) = (row.get(0)?, row::shown_if_any(row, 1)?.unwrap_or_default());
        let (pid, host): (Option<i64>, _) = (row.get(3)?, row::shown_if_any(row, 4)?);
        let which = match (pid, host) {
            (Some(pid), Some(host)) => format!("with pid {pid} on {host}"),
            _ => owner.clone(),
        };
        let found = escape::one_line(&format!("the scheduler {which} died"));
        let advice = "see its log for the cause; its runs were recovered".to_owned();
        let (kind, since) = (AlarmKind::SchedulerLost, row.get(2)?);
        Ok((id, Condition { kind, subject: owner, run: None, since, found, advice }))
    };
    let lost: Vec<(i64, Condition)> = tx
        .prepare_cached(LOST)?
        .query_map(named_params! { ":after": after, ":limit": i64::try_from(MAX_FACTS).unwrap_or(i64::MAX) }, read)?
        .collect::<rusqlite::Result<_>>()?;
    let newest = tx.prepare_cached(NEWEST_EVENT)?.query_row([], |row| row.get::<_, i64>(0))?;
    move_on(AlarmKind::SchedulerLost, (after, newest), &lost, changes);
    for (_, condition) in lost {
        changes.begun.push((condition, 1));
    }
    let mut statement = tx.prepare_cached(REPLACED)?;
    for id in statement.query_map(named_params! { ":channel": channel }, |row| row.get(0))? {
        changes.ended.push(id?);
    }
    Ok(())
}

/// Returns the last fact that a channel has examined; for a new channel, the last before `since`, by the query `start`.
fn cursor(
    tx: &Transaction<'_>,
    channel: &str,
    kind: AlarmKind,
    (start, since): (&str, Timestamp),
    changes: &mut Changes,
) -> rusqlite::Result<i64> {
    let named = named_params! { ":channel": channel, ":kind": kind.as_str() };
    if let Some(seen) = tx.prepare_cached(CURSOR)?.query_row(named, |row| row.get(0)).optional()? {
        return Ok(seen);
    }
    let seen = tx.prepare_cached(start)?.query_row(named_params! { ":since": since }, |row| row.get(0))?;
    changes.seen.push((kind, seen));
    Ok(seen)
}

/// Moves a cursor behind what was examined: at most to `until`.
fn move_on<F>(kind: AlarmKind, (after, until): (i64, i64), facts: &[(i64, F)], changes: &mut Changes) {
    let seen = match facts.last() {
        Some((last, _)) if facts.len() == MAX_FACTS => {
            changes.more = true;
            *last
        }
        _ => until.max(after),
    };
    if !facts.is_empty() || seen.saturating_sub(after) > MAX_LAG {
        changes.seen.push((kind, seen));
    }
}

/// What a channel may deliver next.
struct Due {
    kind: AlarmKind,
    state: AlarmState,
}

const PENDING: &str = "
    SELECT a.kind, a.delivered < a.count, min(a.changed_at), c.sent_at, c.claimed_until
      FROM scheduler_alarms a LEFT JOIN scheduler_alarm_channels c ON c.channel = a.channel AND c.kind = a.kind
     WHERE a.channel = :channel AND (a.delivered < a.count OR a.ended_at IS NOT NULL)
     GROUP BY 1, 2 ORDER BY 3";

/// Returns the message that is due first, and how long it must wait. Messages of one kind are delivered in order.
fn due(
    tx: &Transaction<'_>,
    channel: &str,
    pace: &AlarmPace,
    refused: Option<AlarmKind>,
    now: Timestamp,
) -> rusqlite::Result<Option<(Duration, Due)>> {
    let mut statement = tx.prepare_cached(PENDING)?;
    let mut rows = statement.query(named_params! { ":channel": channel })?;
    let (mut next, mut kinds) = (None, Vec::new());
    while let Some(row) = rows.next()? {
        let Some(kind) = AlarmKind::parse(&row::shown(row, 0)?) else { continue };
        if kinds.contains(&kind) {
            continue;
        }
        kinds.push(kind);
        let state = if row.get(1)? { AlarmState::Began } else { AlarmState::Ended };
        let slot = Slot { sent_at: row.get(3)?, claimed_until: row.get(4)? };
        let wait = alarm_pace::wait(row.get(2)?, slot, pace, now);
        // Kinds after the refused one, then those from the first on: no kind that is refused for ever holds back another.
        let turn = refused.map(|refused| (kind as usize <= refused as usize, kind as usize));
        if next.as_ref().is_none_or(|(shortest, _)| (wait, turn) < *shortest) {
            next = Some(((wait, turn), Due { kind, state }));
        }
    }
    Ok(next.map(|((wait, _), due)| (wait, due)))
}

const UNCLAIM: &str = "
    UPDATE scheduler_alarms SET claimed = 0 WHERE channel = :channel AND kind = :kind AND claimed <> 0";

const CLAIM_BEGAN: &str = "
    UPDATE scheduler_alarms SET claimed = count WHERE channel = :channel AND kind = :kind AND delivered < count";

const CLAIM_ENDED: &str = "
    UPDATE scheduler_alarms SET claimed = :end
     WHERE channel = :channel AND kind = :kind AND delivered = count AND ended_at IS NOT NULL";

const CLAIM: &str = "
    INSERT INTO scheduler_alarm_channels (channel, kind, claimed_by, claimed_until)
    VALUES (:channel, :kind, :token, :until)
    ON CONFLICT (channel, kind) DO UPDATE
       SET claimed_by = excluded.claimed_by, claimed_until = excluded.claimed_until";

/// Claims the next message of a channel.
pub(super) fn claim(
    store: &mut SqliteStore,
    channel: &str,
    token: &str,
    pace: &AlarmPace,
    refused: Option<AlarmKind>,
    now: Timestamp,
) -> Result<AlarmTurn> {
    match store.read("look for alarms to deliver", |tx, _| Ok(due(tx, channel, pace, refused, now)?))? {
        None => return Ok(AlarmTurn::Idle),
        Some((wait, _)) if !wait.is_zero() => return Ok(AlarmTurn::Wait(wait)),
        Some(_) => {}
    }
    store.write("claim an alarm", |tx, _| {
        // Another scheduler may have claimed it.
        let due = match due(tx, channel, pace, refused, now)? {
            None => return Ok(AlarmTurn::Idle),
            Some((wait, _)) if !wait.is_zero() => return Ok(AlarmTurn::Wait(wait)),
            Some((_, due)) => due,
        };
        let named = named_params! { ":channel": channel, ":kind": due.kind.as_str() };
        tx.prepare_cached(UNCLAIM)?.execute(named)?;
        match due.state {
            AlarmState::Began => tx.prepare_cached(CLAIM_BEGAN)?.execute(named)?,
            AlarmState::Ended => tx
                .prepare_cached(CLAIM_ENDED)?
                .execute(named_params! { ":channel": channel, ":kind": due.kind.as_str(), ":end": CLAIMED_END })?,
        };
        tx.prepare_cached(CLAIM)?.execute(named_params! {
            ":channel": channel, ":kind": due.kind.as_str(), ":token": token, ":until": now.plus(pace.lease),
        })?;
        Ok(AlarmTurn::Deliver(Box::new(message(tx, channel, token, &due)?)))
    })
}

const TOTAL: &str = "
    SELECT sum(iif(claimed = :end, 1, claimed - delivered)), min(since)
      FROM scheduler_alarms WHERE channel = :channel AND kind = :kind AND claimed <> 0";

const ITEMS: &str = "
    SELECT id, subject, run_id, since, found, advice, iif(claimed = :end, 1, claimed - delivered), delivered
      FROM scheduler_alarms WHERE channel = :channel AND kind = :kind AND claimed <> 0 ORDER BY id LIMIT :limit";

/// Returns the message of the rows that are claimed.
fn message(tx: &Transaction<'_>, channel: &str, token: &str, due: &Due) -> rusqlite::Result<AlarmMessage> {
    let (kind, state) = (due.kind, due.state);
    let named = named_params! { ":channel": channel, ":kind": kind.as_str(), ":end": CLAIMED_END };
    let (count, since): (i64, Timestamp) =
        tx.prepare_cached(TOTAL)?.query_row(named, |row| Ok((row.get(0)?, row.get(1)?)))?;
    // It must not depend on rows that joined the message before it was delivered again.
    let mut id = String::new();
    let read = |row: &Row<'_>| {
        let subject = Some(row::shown(row, 1)?);
        let item = AlarmItem {
            task: subject.filter(|name| kind != AlarmKind::SchedulerLost && !name.is_empty()),
            run: row.get(2)?,
            since: row.get(3)?,
            found: row::shown(row, 4)?,
            advice: row::shown(row, 5)?,
            count: row.get::<_, i64>(6)?.unsigned_abs(),
        };
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(7)?, item))
    };
    let limit = i64::try_from(AlarmMessage::MAX_ITEMS).unwrap_or(i64::MAX);
    let named = named_params! { ":channel": channel, ":kind": kind.as_str(), ":end": CLAIMED_END, ":limit": limit };
    let mut items = Vec::new();
    for row in tx.prepare_cached(ITEMS)?.query_map(named, read)? {
        let (row, delivered, item) = row?;
        if id.is_empty() {
            id = format!("{channel}-{kind}-{state}-{row}-{delivered}");
        }
        items.push(item);
    }
    let (channel, token) = (channel.to_owned(), token.to_owned());
    Ok(AlarmMessage { id, channel, kind, state, count: count.unsigned_abs(), since, items, token })
}

const HOLDS: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_alarm_channels
                    WHERE channel = :channel AND kind = :kind AND claimed_by = :token)";

/// A condition that began again meanwhile stays.
const DELIVERED_END: &str = "
    DELETE FROM scheduler_alarms
     WHERE channel = :channel AND kind = :kind AND claimed = :end AND ended_at IS NOT NULL AND delivered = count";

const DELIVERED: &str = "
    UPDATE scheduler_alarms SET delivered = claimed
     WHERE channel = :channel AND kind = :kind AND claimed > delivered";

const RELEASE: &str = "
    UPDATE scheduler_alarm_channels SET claimed_by = NULL, claimed_until = NULL, sent_at = ifnull(:sent, sent_at)
     WHERE channel = :channel AND kind = :kind";

/// Ends the claim of a message.
pub(super) fn settle(store: &mut SqliteStore, message: &AlarmMessage, delivered: bool, now: Timestamp) -> Result<bool> {
    let AlarmMessage { channel, kind, token, .. } = message;
    store.write("record that an alarm was delivered", |tx, _| {
        let named = named_params! { ":channel": channel, ":kind": kind.as_str() };
        let holds = named_params! { ":channel": channel, ":kind": kind.as_str(), ":token": token };
        if !tx.prepare_cached(HOLDS)?.query_row(holds, |row| row.get(0))? {
            return Ok(false);
        }
        if delivered {
            let end = named_params! { ":channel": channel, ":kind": kind.as_str(), ":end": CLAIMED_END };
            tx.prepare_cached(DELIVERED_END)?.execute(end)?;
            tx.prepare_cached(DELIVERED)?.execute(named)?;
        }
        tx.prepare_cached(UNCLAIM)?.execute(named)?;
        let sent = delivered.then_some(now);
        tx.prepare_cached(RELEASE)?
            .execute(named_params! { ":channel": channel, ":kind": kind.as_str(), ":sent": sent })?;
        Ok(true)
    })
}

const FORGET_ALARMS: &str = "DELETE FROM scheduler_alarms";
const FORGET_CHANNELS: &str = "DELETE FROM scheduler_alarm_channels";

/// Removes all alarms from a copy: those of the original are delivered by its schedulers.
pub(super) fn forget(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.prepare_cached(FORGET_ALARMS)?.execute([])?;
    tx.prepare_cached(FORGET_CHANNELS)?.execute([])?;
    Ok(())
}
