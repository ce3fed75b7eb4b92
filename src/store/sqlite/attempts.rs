//! What is stored of attempts: output, exit code, progress, process, and a row for each attempt that did not simply succeed.

use rusqlite::{ToSql, Transaction, named_params};

use crate::clock::millis;
use crate::model::finished::ReportKind;
use crate::model::run::AttemptOutcome;
use crate::store::sqlite::runs::{End, Fence, Wrote, judged};
use crate::store::sqlite::sql::sql;

const KEEP_PRINTED: &str = sql! {"
    UPDATE task_runs SET output = :output, exit_code = :exit_code
     WHERE {fenced}"};

/// Stores the output and the exit code of a command before its attempt is settled.
pub(crate) fn keep_printed(
    tx: &Transaction<'_>,
    fence: &Fence<'_>,
    output: Option<&str>,
    exit_code: Option<i32>,
) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(KEEP_PRINTED)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt,
            ":output": output, ":exit_code": exit_code,
        })
        .map(judged)
}

/// What identifies the process of an attempt's command, until the attempt ends.
const KEEP_PROCESS: &str = sql! {"
    UPDATE task_runs SET process = :value
     WHERE {fenced}"};

/// Stores a report of a running attempt.
pub(crate) fn keep(tx: &Transaction<'_>, fence: &Fence<'_>, report: &ReportKind) -> rusqlite::Result<Wrote> {
    match report {
        ReportKind::Process(process) => keep_value(tx, KEEP_PROCESS, fence, process),
        ReportKind::Progress(progress) => keep_progress(tx, fence, progress),
        ReportKind::Output(output) => keep_value(tx, KEEP_OUTPUT, fence, output),
        ReportKind::Began(at) => keep_value(tx, KEEP_BEGAN, fence, at),
    }
}

fn keep_value(tx: &Transaction<'_>, statement: &str, fence: &Fence<'_>, value: &dyn ToSql) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(statement)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt, ":value": value,
        })
        .map(judged)
}

/// The start of an attempt that was read ahead.
const KEEP_BEGAN: &str = sql! {"
    UPDATE task_runs SET started_at = :value
     WHERE {fenced}"};

/// What the command of a running attempt has printed.
const KEEP_OUTPUT: &str = sql! {"
    UPDATE task_runs SET output = :value
     WHERE {fenced}"};

const KEEP_PROGRESS: &str = sql! {"
    UPDATE task_runs SET progress = :value
     WHERE {fenced}"};

/// Stores the progress that an attempt reports.
pub(crate) fn keep_progress(tx: &Transaction<'_>, fence: &Fence<'_>, progress: &str) -> rusqlite::Result<Wrote> {
    keep_value(tx, KEEP_PROGRESS, fence, &progress)
}

const KEEP_REMARK: &str = sql! {"
    UPDATE task_runs SET error = :value
     WHERE {fenced}"};

/// Stores a remark about an attempt that succeeds.
pub(crate) fn keep_remark(tx: &Transaction<'_>, fence: &Fence<'_>, remark: &str) -> rusqlite::Result<Wrote> {
    keep_value(tx, KEEP_REMARK, fence, &remark)
}

const KEEP_ATTEMPT: &str = sql! {"
    INSERT INTO task_attempts ({attempt_columns}, final)
    SELECT id, :attempt, :outcome, :error, ifnull(:output, iif(attempt = :attempt, output, NULL)),
           iif(attempt = :attempt, exit_code, NULL), :owner, ifnull(:started, started_at), :finished, :duration,
           (status = 'dead' OR status = 'cancelled' OR status = 'skipped') AND :outcome <> 'superseded'
      FROM task_runs WHERE id = :run"};

/// Stores an attempt that did not simply succeed, with the output and exit code that its run stores. `output`: that of an
/// attempt that ended after it was superseded, which its run does not store. Returns `false` if the run was deleted.
pub(crate) fn keep_attempt(
    tx: &Transaction<'_>,
    fence: &Fence<'_>,
    outcome: AttemptOutcome,
    end: &End<'_>,
    output: Option<&str>,
) -> rusqlite::Result<bool> {
    let rows = tx.prepare_cached(KEEP_ATTEMPT)?.execute(named_params! {
        ":run": fence.run, ":attempt": fence.attempt, ":outcome": outcome, ":error": end.error, ":output": output,
        ":owner": fence.owner, ":started": end.started, ":finished": end.finished, ":duration": end.duration.map(millis),
    })?;
    Ok(rows == 1)
}
