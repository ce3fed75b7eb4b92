//! The row and the first claim of a run that is opened, as they follow from its task.

use crate::clock::Timestamp;
use crate::model::run::{Claim, Origin};
#[cfg(feature = "postgres")]
use crate::rules::resolve::{self, Next, Rest, Step};
use crate::schedule::ScheduleKind;
use crate::store::sqlite::due::{self, Due};
use crate::store::sqlite::runs::Opening;

/// The run id of a claim whose run is not opened yet.
pub(crate) const UNNUMBERED: i64 = 0;

/// The only run that the rules open for a due task, if they open it now and do nothing else.
#[cfg(feature = "postgres")]
pub(crate) struct Only {
    /// Its claim, without its id.
    pub(crate) claim: Claim,
    /// When the task is due next, after now; `None`: it is completed.
    pub(crate) next: Option<Timestamp>,
}

/// Decides about a task that has no unfinished run.
#[cfg(feature = "postgres")]
pub(crate) fn only_run(due: &Due, now: Timestamp) -> Option<Only> {
    if due.plan.schedule.contradicting_zone(due.plan.next_run).is_some() {
        return None;
    }
    let resolution = resolve::resolve(&due.plan, &[], now, Rest::Later);
    let [Step::Open { scheduled_for, origin }] = resolution.steps[..] else { return None };
    let next = match resolution.next {
        Next::Never => None,
        Next::At(at) if at > now => Some(at),
        _ => return None,
    };
    let run = opening(due, scheduled_for, origin);
    let as_planned = run.run_at == due.plan.next_run && resolution.resolved_until == Some(due.plan.next_run);
    (as_planned && run.expires_at.is_none())
        .then(|| Only { claim: first_claim(due, UNNUMBERED, scheduled_for, origin, now), next })
}

/// Returns the row of a new run of a due task.
pub(crate) fn opening(due: &Due, scheduled_for: Timestamp, origin: Origin) -> Opening<'_> {
    Opening {
        task: due.id,
        handler: &due.handler,
        scheduled_for,
        origin,
        run_at: scheduled_for.plus(due::part_of(due.jitter, &due.name)).min(Timestamp::MAX),
        expires_at: due.expires_at(scheduled_for),
        priority: due.priority,
        key: due.key.as_deref(),
        payload: None,
        retry_of: None,
        request_key: None,
    }
}

/// Returns whether the row of the run follows from the `once` task alone.
pub(crate) fn is_plain(due: &Due, run: &Opening<'_>) -> bool {
    due.kind == ScheduleKind::Once
        && run.run_at == due.plan.next_run
        && run.expires_at.is_none()
        && run.key.is_none_or(|key| key.starts_with('#'))
}

/// Returns the claim of the first attempt of a run.
pub(crate) fn first_claim(due: &Due, run_id: i64, scheduled_for: Timestamp, origin: Origin, now: Timestamp) -> Claim {
    Claim {
        run_id,
        attempt: 1,
        task: due.name.clone(),
        handler: due.handler.clone(),
        payload: due.payload.clone(),
        task_payload: None,
        scheduled_for,
        origin,
        claimed_at: now,
        timeout: due.timeout,
        task_id: due.id,
        forgiven: 0,
        interrupted: 0,
        retry: due.retry,
        concurrency_key: due.key.clone(),
        first: None,
        recurring: due.kind != ScheduleKind::Once,
        read_ahead: false,
        begins_by: None,
        owner: None,
    }
}
