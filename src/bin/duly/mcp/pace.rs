//! Limits of what clients of `duly mcp` may add and start: tasks, runs in 24 hours, the time between two occurrences, changes a minute.

use std::time::Duration;

use duly::{EventFilter, NewTask, RunFilter, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp, parse_duration};

use crate::mcp::answer::ToolError;
use crate::mcp::desk::Desk;
use crate::mcp::grant::{CLIENTS, is_of_a_client};
use crate::mcp::look::refused_schedule;

/// Most changes within a minute, whatever they change: each is an event that is stored.
const MAX_CHANGES: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Occurrences of a task that are looked at, at least; so many that one task alone can exceed the limit.
const LOOKED_AT: usize = 500;
/// Most events of a day that are looked through.
const MAX_EVENTS: usize = 5_000;
/// How a removal records the starts of the task, whose runs go with it.
const STARTS: &str = " starts of 24 hours removed";

/// Counts a change, unless there were too many within the last minute.
pub(crate) fn count_change(changes: &mut Vec<Timestamp>, now: Timestamp) -> Result<(), ToolError> {
    changes.retain(|at| now.since(*at) < MINUTE && *at <= now);
    if changes.len() >= MAX_CHANGES {
        let reason = format!("expected at most {MAX_CHANGES} changes a minute: wait for a minute");
        return Err(ToolError::Refused(reason));
    }
    changes.push(now);
    Ok(())
}

/// Refuses a task that would exceed a limit. `old`: the task of its name. Returns what is to be said of its times.
pub(crate) fn check_task(desk: &Desk, task: &NewTask, old: Option<&Task>) -> Result<Vec<String>, ToolError> {
    let now = desk.client.now();
    let ahead: Vec<Timestamp> = task.occurrences(now, looked_at(desk)).map_err(|error| refused_schedule(&error))?;
    let shortest = ahead.windows(2).map(|pair| pair[1].since(pair[0])).min();
    if let Some(shortest) = shortest.filter(|shortest| *shortest < desk.min_interval) {
        let least = duly::duration_text(desk.min_interval);
        let found = duly::duration_text(shortest);
        return Err(limit(
            "--min-interval",
            &format!("expected at least {least} between two occurrences, found {found}"),
        ));
    }
    let tasks = desk.grant.own_tasks(&desk.client)?;
    let is_other = |task: &&Task| old.is_none_or(|old| old.id != task.id);
    let others: Vec<&Task> = tasks.iter().filter(|task| is_of_a_client(task)).filter(is_other).collect();
    let count = others.iter().filter(|task| task.status != TaskStatus::Completed).count();
    if count >= desk.max_tasks {
        let reason = format!("there are {count} tasks that are not completed, expected at most {}", desk.max_tasks);
        return Err(limit("--max-tasks", &reason));
    }
    let soon = ahead.iter().filter(|at| at.since(now) < DAY).count();
    check_starts(desk, &tasks, soon)?;
    let mut planned = ahead.clone();
    for other in others.iter().filter(|task| task.status == TaskStatus::Active) {
        planned.extend(planned_of(other, now, looked_at(desk)));
    }
    if let Some((most, from)) = busiest_day(&mut planned).filter(|(most, _)| *most > desk.max_starts) {
        let max = desk.max_starts;
        return Err(limit(
            "--max-starts-per-day",
            &format!("{most} runs would start within 24 hours from {from}, expected at most {max}"),
        ));
    }
    Ok(remarks(&ahead, shortest, now))
}

/// Refuses more runs than may start within 24 hours. `more`: the number of runs that are about to be added to those of the last day.
pub(crate) fn check_starts(desk: &Desk, tasks: &[Task], more: usize) -> Result<(), ToolError> {
    let since = desk.client.now().minus(DAY);
    let mut count = removed_starts(desk, since)?;
    for task in tasks.iter().filter(|task| task.updated_at >= since || task.last_finished.is_none_or(|at| at >= since))
    {
        count += starts_of(desk, task, since)?;
        if count + more > desk.max_starts {
            break;
        }
    }
    if count + more > desk.max_starts {
        let reason = format!(
            "{count} runs started in the last 24 hours or wait; with {more} more there would be more than {}",
            desk.max_starts
        );
        return Err(limit("--max-starts-per-day", &reason));
    }
    Ok(())
}

/// What a removal of a task is to record beside the session, so that adding and removing it again and again counts.
pub(crate) fn note_of_removal(desk: &Desk, task: &Task) -> Result<String, ToolError> {
    let starts = starts_of(desk, task, desk.client.now().minus(DAY))?;
    Ok(if starts == 0 { String::new() } else { format!(", {starts}{STARTS}") })
}

/// How many runs of a task have started since then, or wait: those of the tasks of clients, and those that clients triggered.
fn starts_of(desk: &Desk, task: &Task, since: Timestamp) -> Result<usize, ToolError> {
    let is_all = is_of_a_client(task);
    let runs = desk.client.runs(&RunFilter::newest(desk.max_starts + 1).of(task.name()).since(since))?;
    let counts = |run: &&duly::Run| {
        let is_start = !matches!(run.status, RunStatus::Skipped | RunStatus::Missed);
        is_start && (is_all || run.origin == duly::Origin::Manual)
    };
    Ok(runs.iter().filter(counts).count())
}

/// How many runs since then went with the tasks that clients removed, by the events of the removals.
fn removed_starts(desk: &Desk, since: Timestamp) -> Result<usize, ToolError> {
    let (mut before, mut count, mut looked_at) = (None, 0, 0);
    loop {
        let filter = EventFilter::newest(200).kind("action");
        let events = desk.client.events(&before.map_or(filter.clone(), |id| filter.before(id)))?;
        let Some(last) = events.last() else { return Ok(count) };
        before = Some(last.id);
        for event in events.iter().filter(|event| event.at >= since) {
            count += removed_by(event.detail.as_deref().unwrap_or_default(), desk.grant.scope().unwrap_or_default());
        }
        looked_at += events.len();
        if last.at < since || looked_at >= MAX_EVENTS {
            return Ok(count);
        }
    }
}

/// The starts in the detail of an event of a removal: `mcp:NAME session 7f3a, 3 starts of 24 hours removed: remove agent:anna/x`.
fn removed_by(detail: &str, scope: &str) -> usize {
    let starts = || {
        let (actor, task) = detail.strip_prefix(CLIENTS)?.split_once(": remove ")?;
        let (_, starts) = actor.strip_suffix(STARTS)?.rsplit_once(", ")?;
        task.starts_with(scope).then(|| starts.parse::<usize>().ok())?
    };
    starts().unwrap_or_default()
}

/// The next occurrences of a task. Those of a delay follow its runs: as many as there can be.
fn planned_of(task: &Task, now: Timestamp, most: usize) -> Vec<Timestamp> {
    if task.definition.schedule_type == ScheduleKind::Delay {
        let after = parse_duration(&task.definition.schedule_value).unwrap_or(MINUTE);
        let times = 1..=u32::try_from(most).unwrap_or(u32::MAX);
        return times.map(|times| now.plus(after.saturating_mul(times))).collect();
    }
    let ahead = task.upcoming(now, most).unwrap_or_default();
    ahead.into_iter().map(|upcoming| upcoming.at).collect()
}

fn looked_at(desk: &Desk) -> usize {
    LOOKED_AT.max(desk.max_starts + 1)
}

/// The most occurrences within 24 hours, and when these begin.
fn busiest_day(planned: &mut [Timestamp]) -> Option<(usize, Timestamp)> {
    planned.sort_unstable();
    let mut first = 0;
    let mut most = None;
    for (last, at) in planned.iter().enumerate() {
        while at.since(planned[first]) >= DAY {
            first += 1;
        }
        let count = last - first + 1;
        if most.is_none_or(|(other, _)| count > other) {
            most = Some((count, planned[first]));
        }
    }
    most
}

/// What a model may not have meant: it says so to its user.
fn remarks(ahead: &[Timestamp], shortest: Option<Duration>, now: Timestamp) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(first) = ahead.first().filter(|first| first.since(now) <= MINUTE) {
        let when = if *first <= now { "now".to_owned() } else { format!("in {}s", first.since(now).as_secs()) };
        remarks.push(format!("it runs within a minute: {when}"));
    }
    if shortest.is_some_and(|shortest| shortest < MINUTE) {
        remarks.push("it runs more often than every minute".to_owned());
    }
    remarks
}

fn limit(option: &str, reason: &str) -> ToolError {
    ToolError::Refused(format!("limit {option}: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{busiest_day, count_change, removed_by};
    use duly::Timestamp;

    fn at(hours: u64) -> Timestamp {
        "2027-03-14T00:00:00Z".parse::<Timestamp>().unwrap().plus(Duration::from_secs(hours * 3600))
    }

    #[test]
    fn the_busiest_day_is_any_24_hours() {
        let mut planned: Vec<Timestamp> = [0, 10, 20, 30, 31, 32, 54].map(at).to_vec();
        assert_eq!(busiest_day(&mut planned), Some((5, at(10))));
        assert_eq!(busiest_day(&mut []), None);
    }

    #[test]
    fn changes_are_counted_for_a_minute() {
        let mut changes = Vec::new();
        let now = at(1);
        (0..60).for_each(|_| count_change(&mut changes, now).unwrap());
        assert!(count_change(&mut changes, now.plus(Duration::from_secs(59))).is_err());
        assert!(count_change(&mut changes, now.plus(Duration::from_secs(60))).is_ok());
        assert_eq!(changes.len(), 1);
    }

    #[test]
    fn starts_of_removed_tasks_are_read_from_the_trail() {
        let scope = "agent:anna/";
        for (detail, starts) in [
            ("mcp:a session 7f, 3 starts of 24 hours removed: remove agent:anna/x", 3),
            ("mcp:a session 7f, 3 starts of 24 hours removed: remove agent:bob/x", 0),
            ("mcp:a session 7f: remove agent:anna/x", 0),
            ("mcp:a session 7f: pause", 0),
            ("page: 3 starts of 24 hours removed: remove agent:anna/x", 0),
        ] {
            assert_eq!(removed_by(detail, scope), starts, "{detail}");
        }
    }
}
