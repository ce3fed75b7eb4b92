//! What limits of starts leave for the occurrences of a task that skips those beyond them; the record of a run that waits.

use std::time::Duration;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::rules::notice::Notice;
use crate::schedule::duration_text;
use crate::store::sqlite::due::Due;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::owners;
use crate::store::sqlite::sql::number;
use crate::store::sqlite::starts::{self, Of, Subject};

/// Most starts that are counted. Occurrences that fall due together with more than these open waiting runs.
const MOST: i64 = number("window");

/// The limit that leaves the fewest starts of a task.
pub(crate) struct Limited {
    /// `None`: more than one resolution opens.
    pub(crate) left: Option<usize>,
    /// Why an occurrence is skipped when none is left.
    pub(crate) reason: String,
}

/// Returns how many starts the limits of a task leave.
pub(crate) fn limited(tx: &Transaction<'_>, limits: &InForce, due: &Due, now: Timestamp) -> rusqlite::Result<Limited> {
    let (mut fewest, mut of_fewest) = (MOST, None);
    for (subject, rate) in limits.subjects(tx, &due.starting())? {
        let left = starts::left(tx, &subject, &rate, MOST, now)?;
        if left < fewest {
            (fewest, of_fewest) = (left, Some((subject, rate)));
        }
    }
    let Some((subject, rate)) = of_fewest else { return Ok(Limited { left: None, reason: String::new() }) };
    let of = match subject.of() {
        Some(Of::Task(_)) => "the task".to_owned(),
        Some(Of::Key(key)) => format!("the key {key}"),
        None => format!("the handler {}", due.handler),
    };
    let per = duration_text(Duration::from_millis(rate.per.unsigned_abs()));
    let reason = format!("no start was left: at most {} of {of} in {per} (when_limited)", rate.starts);
    Ok(Limited { left: usize::try_from(fewest).ok(), reason })
}

const AWAIT: &str = "
    SELECT count(*) FROM (SELECT 1 FROM task_runs INDEXED BY task_runs_limited WHERE blocked = 'starts' AND task_id = :task LIMIT 2)";

/// Records that a run waits for a start of its task, if it is the only one: there is one event for each time in which runs wait.
pub(crate) fn record_wait(tx: &Transaction<'_>, task: i64, run: i64, now: Timestamp) -> rusqlite::Result<()> {
    let waiting: i64 = tx.prepare_cached(AWAIT)?.query_row(named_params! { ":task": task }, |row| row.get(0))?;
    if waiting > 1 {
        return Ok(());
    }
    let until = starts::closed_until(tx, &Subject::task(task))?.map(|at| format!(" until {at}")).unwrap_or_default();
    let detail = format!("run {run} waits for a start{until} (max_starts)");
    owners::record(tx, now, Notice::Limited.kind(), Some(task), Some(run), Some(&detail))
}
