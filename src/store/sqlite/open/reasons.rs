//! The words of the history for occurrences that have no run.

use crate::clock::Timestamp;
use crate::model::task::{Misfire, Overlap};
use crate::rules::resolve::{Plan, Span};
use crate::store::sqlite::due::Due;

/// Why an occurrence has no run.
const UNFINISHED_BEFORE: &str = "an earlier run of the task was unfinished (overlap policy)";
const WAITED_BEFORE: &str = "an earlier run of the task had not started yet (overlap policy): with a more urgent priority it starts before others";
pub(super) const AWAITS_START: &str =
    "an earlier run of the task was waiting for a start, of which its limits had left none (overlap policy)";
const LATE: &str = "resolved later than the grace of the task (misfire policy)";
const NOT_NOW: &str = "nothing catches up at a time that the task excludes (only_between, only_on, except_on)";
const NONE_LEFT: &str = "nothing catches up while no start is left (when_limited)";
pub(super) const CUT: &str = "too many were due to be looked at one by one when the task was changed";

pub(super) fn skip_reason(due: &Due, none_has_begun: bool) -> String {
    match due.plan.overlap {
        Overlap::BufferAll => {
            let limit = due.plan.catch_up_limit;
            format!("{limit} runs of the task were waiting, as many as catch_up_limit allows (overlap policy)")
        }
        _ if none_has_begun => WAITED_BEFORE.into(),
        _ => UNFINISHED_BEFORE.into(),
    }
}

pub(super) fn miss_reason(due: &Due, plan: &Plan, now: Timestamp) -> String {
    match plan.misfire_at(now) {
        Misfire::Skip if plan.misfire != Misfire::Skip && plan.closed(now).is_none() => format!("{LATE}: {NONE_LEFT}"),
        Misfire::Skip if plan.misfire != Misfire::Skip => format!("{LATE}: {NOT_NOW}"),
        Misfire::RunAll => {
            let limit = due.plan.catch_up_limit;
            format!("{LATE}: catch_up_limit {limit} keeps only the newest")
        }
        _ => LATE.into(),
    }
}

/// `the occurrence of 2027-03-14T03:30:00Z`, `at least 5 occurrences from .. to ..`.
pub(super) fn described(span: &Span) -> String {
    let Span { first, last, count, exact } = span;
    let least = if *exact { "" } else { "at least " };
    if *count == 1 {
        format!("the occurrence of {first}")
    } else {
        format!("{least}{count} occurrences from {first} to {last}")
    }
}
