//! What limits of starts leave for the occurrences of a task that skips those beyond them.

use std::time::Duration;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::schedule::duration_text;
use crate::store::sqlite::due::Due;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::sql::number;
use crate::store::sqlite::starts::{self, Of};

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
        let is_closed = limits.any_closed() && starts::is_closed(tx, &subject)?;
        let left = if is_closed { 0 } else { starts::left(tx, &subject, &rate, MOST, now)? };
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
