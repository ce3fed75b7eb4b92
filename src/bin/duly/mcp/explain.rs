//! Why a task did, or did not, run at a time: from its runs, its events and its schedule.

use std::time::Duration;

use duly::text::times::Times;
use duly::{EventFilter, RecordedEvent, Run, RunFilter, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp, Zone};

use crate::cli::mcp_args::Allow;
use crate::cli::values::reason;
use crate::mcp::answer::{Answer, ToolError, quoted};
use crate::mcp::desk::{Desk, instant};
use crate::mcp::grant::{CLIENTS, Sight, shown};
use crate::mcp::shapes;

/// How far around a time its occurrences are searched.
const AROUND: Duration = Duration::from_secs(5 * 60);
/// How many runs and events are looked through.
const SEARCHED: usize = 500;

/// Answers what became of a task at a time.
pub(crate) fn around(desk: &Desk, task: &Task, text: &str, times: &Times) -> Result<Answer, ToolError> {
    let zone = shapes::zone_of(task, times);
    let at = time_around(text, &zone, times)?;
    let (from, until) = (at.minus(AROUND), at.plus(AROUND));
    let runs = desk.client.runs(&RunFilter::newest(SEARCHED).of(task.name()).since(from))?;
    let covers = |run: &&Run| run.scheduled_for <= until && run.last_scheduled_for.unwrap_or(run.scheduled_for) >= from;
    let mut runs: Vec<&Run> = runs.iter().filter(covers).collect();
    let sight = desk.grant.sight(task.name());
    let events = sight.of(Some(EventFilter::newest(SEARCHED).of(task.name())));
    let events = events.map_or(Ok(Vec::new()), |filter| desk.client.events(&filter))?;
    let occurrence = nearest(task, at);
    let is_of_it = |run: &&Run| {
        let (first, last) = (run.scheduled_for, run.last_scheduled_for.unwrap_or(run.scheduled_for));
        occurrence.is_some_and(|occurrence| first <= occurrence && occurrence <= last)
    };
    // Runs of other occurrences say nothing of one that has its own run, or that fell into a pause.
    if runs.iter().any(is_of_it) || occurrence.is_some_and(|at| pause_at(&events, at).is_some()) {
        runs.retain(|run| is_of_it(run) || !run.origin.is_scheduled());
    }
    let mut answer = Answer::new();
    let reasons = if runs.is_empty() {
        without_a_run(desk, task, &events, (at, from, until), &zone, times)
    } else {
        runs.iter().map(|run| of_a_run(run, sight, &zone, times)).collect()
    };
    answer.line(format!("{} at {}:", task.name(), shapes::time_text(at, &zone, times)));
    reasons.iter().for_each(|reason| answer.line(reason));
    let near = |event: &&RecordedEvent| event.at >= from.minus(Duration::from_secs(24 * 3600)) && event.at <= until;
    let near: Vec<&RecordedEvent> = events.iter().filter(near).take(20).collect();
    near.iter().for_each(|event| answer.line(shapes::event_line(event, &zone, times)));
    answer.field("around", shapes::time(at, &zone, times));
    answer.field("reasons", reasons);
    answer.field("runs", runs.iter().map(|run| shapes::run(run, sight, &zone, times)).collect::<Vec<_>>());
    answer.field("events", near.iter().map(|event| shapes::event(event, &zone, times)).collect::<Vec<_>>());
    answer.has_untrusted();
    answer.next("tell the user this reason; check says whether anything is wrong now");
    Ok(answer)
}

/// Reads a time: an instant, a local time, or a time of today.
fn time_around(text: &str, zone: &Zone, times: &Times) -> Result<Timestamp, ToolError> {
    if text.contains('-') {
        return instant("around", text, zone);
    }
    let today = zone.local_at(times.now).map(|local| format!("{}T{text}", local.date())).unwrap_or_default();
    zone.instant(&today).map_err(|error| match reason(error) {
        // The library does not know that a time of today is expected.
        reason if reason.starts_with("expected") => {
            let expected = "expected a time of today as in 13:00, or a local time as in 2027-03-14T13:00";
            ToolError::Refused(format!("around: {expected}, found {:?}", shown(text)))
        }
        reason => ToolError::Refused(format!("around: {reason}")),
    })
}

fn of_a_run(run: &Run, sight: Sight, zone: &Zone, times: &Times) -> String {
    let error = sight.of(run.error.as_deref()).map(|error| format!(": {}", quoted(error))).unwrap_or_default();
    let scheduled = zone.text_at(run.scheduled_for);
    match run.status {
        RunStatus::Skipped => format!("the occurrence of {scheduled} was skipped (run {}){error}", run.id),
        RunStatus::Missed => {
            format!("the occurrence of {scheduled} was missed (run {}): nothing started it in time{error}", run.id)
        }
        RunStatus::Succeeded => {
            let ended = run.finished_at.map(|at| shapes::time_text(at, zone, times)).unwrap_or_default();
            format!("it ran: run {} succeeded, ended {ended}", run.id)
        }
        RunStatus::Queued => format!("run {} of {scheduled} waits, and has not started", run.id),
        status => format!("run {} of {scheduled} is {status}{error}", run.id),
    }
}

/// Why there is no run at a time, most certain first.
fn without_a_run(
    desk: &Desk,
    task: &Task,
    events: &[RecordedEvent],
    (at, from, until): (Timestamp, Timestamp, Timestamp),
    zone: &Zone,
    times: &Times,
) -> Vec<String> {
    let text = |at: Timestamp| shapes::time_text(at, zone, times);
    if task.created_at > until {
        return vec![format!("the task did not exist: it was added at {}", text(task.created_at))];
    }
    let planned =
        task.upcoming(from.minus(Duration::from_millis(1)), 1).ok().and_then(|ahead| ahead.first().map(|one| one.at));
    let occurrence = nearest(task, at).unwrap_or(at);
    if let Some(pause) = pause_at(events, occurrence).filter(|_| planned.is_none_or(|planned| planned <= until)) {
        let by = pause.detail.as_deref().unwrap_or("a user");
        if occurrence > times.now {
            let since = text(pause.at);
            return vec![format!(
                "that time has not come, and nothing runs while the task is paused, since {since} by {by}"
            )];
        }
        let is_once = task.definition.schedule_type == ScheduleKind::Once;
        let now = match task.status {
            TaskStatus::Paused if may_resume(desk, task) => "it is still paused: resume_task lets it go on".to_owned(),
            TaskStatus::Paused => "it is still paused: the user lets it go on".to_owned(),
            status if is_once => format!("it is {status} now: a one-time task runs at once when it goes on"),
            status => format!("it is {status} now; what was due in a pause is not made up for"),
        };
        return vec![format!("nothing ran because the task was paused at {} by {by}; {now}", text(pause.at))];
    }
    let edited = events.iter().find(|event| event.kind == "edited" && event.at > from);
    match planned {
        Some(planned) if planned > until => {
            let mut reasons = vec![format!(
                "the schedule ({}) has no occurrence then; the next one after that time is {}",
                shapes::schedule_text(task),
                text(planned)
            )];
            reasons.extend(edited.map(|event| format!("the task was changed since, at {}", text(event.at))));
            reasons
        }
        None => vec![format!("the schedule ({}) has no occurrence after that time", shapes::schedule_text(task))],
        Some(planned) if planned > times.now => {
            vec![format!("that time has not come: the next run is due {}", text(planned))]
        }
        Some(planned) if task.next_run.is_some_and(|next| next <= times.now) => {
            vec![format!("it has been due since {}, and no scheduler has started it: see check", text(planned))]
        }
        Some(planned) => {
            let changed = edited.map(|event| format!("the task was changed at {}", text(event.at)));
            // The events of a task outside of the scope are not read.
            let is_seen = desk.grant.sight(task.name()) == Sight::Whole;
            let reason = changed.unwrap_or_else(|| match task.status {
                TaskStatus::Active | TaskStatus::Completed if is_seen => {
                    "the history may have been deleted since".to_owned()
                }
                TaskStatus::Active | TaskStatus::Completed => "what happened to it is outside of the scope".to_owned(),
                status => format!("it is {status} now"),
            });
            vec![format!("an occurrence was due at {}, and there is no record of it: {reason}", text(planned))]
        }
    }
}

/// Returns the occurrence around a time that is nearest to it.
fn nearest(task: &Task, at: Timestamp) -> Option<Timestamp> {
    let (from, until) = (at.minus(AROUND), at.plus(AROUND));
    let ahead = task.upcoming(from.minus(Duration::from_millis(1)), SEARCHED).unwrap_or_default();
    let distance = |other: &Timestamp| if *other > at { other.since(at) } else { at.since(*other) };
    ahead.into_iter().map(|one| one.at).filter(|other| *other <= until).min_by_key(distance)
}

/// Returns whether this server may resume a paused task.
fn may_resume(desk: &Desk, task: &Task) -> bool {
    let is_own = task.paused_by.as_deref().is_some_and(|by| by.starts_with(CLIENTS));
    is_own && desk.grant.contains(task.name()) && desk.grant.allows(Allow::Pause)
}

/// Returns the pause that held at a time.
fn pause_at(events: &[RecordedEvent], at: Timestamp) -> Option<&RecordedEvent> {
    let mut before = events.iter().filter(|event| event.at <= at);
    before.find(|event| event.kind == "paused" || event.kind == "resumed").filter(|event| event.kind == "paused")
}
