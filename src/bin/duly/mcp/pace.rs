//! Limits of what clients of `duly mcp` may add and start: tasks, runs in 24 hours, the time between two occurrences, changes a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use duly::{
    EventFilter, NewTask, Origin, Run, RunFilter, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp, parse_duration,
};

use crate::mcp::answer::ToolError;
use crate::mcp::desk::Desk;
use crate::mcp::grant::{CLIENTS, is_of_a_client};

/// Most changes within a minute, whatever they change: each is an event that is stored.
const MAX_CHANGES: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Occurrences of a new task that are looked at for the time between two.
const LOOKED_AT: usize = 500;
/// Most changes of a day that are looked through, of whatever scope.
const MAX_EVENTS: usize = 200_000;
/// Runs of a task, and changes, that are read at once: at first, and then.
const PAGE: usize = 200;
const EVENTS: usize = 5_000;
/// How a removal records the starts of the task, whose runs go with it.
const STARTS: &str = " starts of 24 hours removed";

/// A stored schedule as the limits see it.
#[derive(Debug)]
struct Pace<'t> {
    schedule: (ScheduleKind, &'t str, &'t str),
    /// The most occurrences within 24 hours, of any day. Those of one-time tasks are counted by their time.
    a_day: usize,
    /// The instant of a one-time task.
    once: Option<Timestamp>,
}

impl<'t> Pace<'t> {
    fn of(desk: &Desk, task: &'t Task) -> Self {
        let (kind, value) = (task.definition.schedule_type, task.definition.schedule_value.as_str());
        let schedule = (kind, value, task.definition.time_zone.as_str());
        if task.status == TaskStatus::Completed {
            return Pace { schedule, a_day: 0, once: None };
        }
        let once = (kind == ScheduleKind::Once).then(|| task.next_run.unwrap_or(desk.client.now()));
        Pace { schedule, a_day: a_day(desk, kind, value), once }
    }

    /// Whether a task that had the pace `old` starts no more runs in any 24 hours than before. Of two times of day that is not known:
    /// the runs of the morning were, and those of the afternoon come.
    fn is_within(&self, old: &Pace<'_>) -> bool {
        let is_even = |pace: &Pace<'_>| matches!(pace.schedule.0, ScheduleKind::Interval | ScheduleKind::Delay);
        let is_alike = self.schedule == old.schedule || (is_even(self) && is_even(old));
        is_alike && self.a_day <= old.a_day && self.once == old.once
    }
}

/// The most occurrences of a schedule within 24 hours, whichever days it has. An hour that a clock repeats is not counted twice.
fn a_day(desk: &Desk, kind: ScheduleKind, value: &str) -> usize {
    let most = desk.max_starts + 1;
    match kind {
        ScheduleKind::Manual | ScheduleKind::Once => 0,
        ScheduleKind::Interval | ScheduleKind::Delay => {
            let every = parse_duration(value).unwrap_or(MINUTE).as_millis().max(1);
            usize::try_from(DAY.as_millis().div_ceil(every)).unwrap_or(most)
        }
        ScheduleKind::Calendar => value.rsplit(" at ").next().unwrap_or_default().split(',').count(),
        _ => times_of_day(value, most),
    }
}

/// How many times of day a cron expression has: each of its days has the same.
fn times_of_day(line: &str, most: usize) -> usize {
    let mut fields: Vec<&str> = line.split_whitespace().collect();
    if let Some(days) = fields.len().checked_sub(3).filter(|_| !line.starts_with('@')) {
        fields[days..].fill("*");
    }
    let daily = NewTask::cron("daily", fields.join(" ")).time_zone("UTC").handler("daily");
    let times = daily.occurrences("2027-01-01T00:00:00Z".parse().unwrap_or(Timestamp::MIN), most).unwrap_or_default();
    times.iter().filter(|at| at.since(times[0]) < DAY).count()
}

/// Refuses a change beyond those of a minute.
pub(crate) fn check_changes(changes: &mut Vec<Timestamp>, now: Timestamp) -> Result<(), ToolError> {
    changes.retain(|at| now.since(*at) < MINUTE && *at <= now);
    if changes.len() >= MAX_CHANGES {
        let reason = format!("expected at most {MAX_CHANGES} changes a minute: wait for a minute");
        return Err(ToolError::Refused(reason));
    }
    Ok(())
}

/// Refuses a task that exceeds a limit as it would be stored. `old`: the task that it replaces. Returns what is to be said of its times.
pub(crate) fn check_task(desk: &Desk, task: &Task, old: Option<&Task>) -> Result<Vec<String>, ToolError> {
    let (now, pace) = (desk.client.now(), Pace::of(desk, task));
    if let Some(at) = pace.once.filter(|at| at.plus(MINUTE) < now) {
        let (zone, times) = (&desk.zone, desk.times());
        let reason = format!("expected a time to come, found {} ({})", zone.text_at(at), times.relative(at));
        return Err(ToolError::Refused(format!("schedule: {reason}")));
    }
    if let Some(shortest) = shortest(task, now).filter(|shortest| *shortest < desk.min_interval) {
        let least = duly::duration_text(desk.min_interval);
        let found = duly::duration_text(shortest);
        return Err(limit(
            "--min-interval",
            &format!("expected at least {least} between two occurrences, found {found}"),
        ));
    }
    let tasks = desk.grant.own_tasks(&desk.client)?;
    let is_counted = |task: &&Task| is_of_a_client(task) && task.status != TaskStatus::Completed;
    let count = tasks.iter().filter(is_counted).filter(|task| old.is_none_or(|old| old.id != task.id)).count();
    if count >= desk.max_tasks && old.is_none_or(|old| old.status == TaskStatus::Completed) {
        let reason = format!("there are {count} tasks that are not completed, expected at most {}", desk.max_tasks);
        return Err(limit("--max-tasks", &reason));
    }
    let is_manual = task.definition.schedule_type == ScheduleKind::Manual;
    if !is_manual && !old.is_some_and(|old| pace.is_within(&Pace::of(desk, old))) {
        check_starts(desk, &tasks, old, Some(task))?;
    }
    Ok(remarks(desk, task))
}

/// The shortest time between two occurrences. That of a delay is between the end of a run and the next one.
fn shortest(task: &Task, now: Timestamp) -> Option<Duration> {
    match task.definition.schedule_type {
        ScheduleKind::Interval | ScheduleKind::Delay => parse_duration(&task.definition.schedule_value).ok(),
        _ => {
            let ahead = task.occurrences(now, LOOKED_AT).unwrap_or_default();
            ahead.windows(2).map(|pair| pair[1].since(pair[0])).min()
        }
    }
}

/// Refuses more runs than may start within 24 hours: those that started or wait, the most that is planned for a day, and one more, or
/// those of a new task. What `old` has started counts beside the task that replaces it.
pub(crate) fn check_starts(
    desk: &Desk,
    tasks: &[Task],
    old: Option<&Task>,
    new: Option<&Task>,
) -> Result<(), ToolError> {
    let (since, new) = (desk.client.now().minus(DAY), new.map(|new| Pace::of(desk, new)));
    let trail = Trail::read(desk, since)?;
    let mut once: Vec<Timestamp> = new.iter().filter_map(|new| new.once).collect();
    let mut count = trail.removed + new.map_or(1, |new| new.a_day);
    for task in tasks {
        let is_old = task.status == TaskStatus::Completed && task.last_finished.is_some_and(|at| at < since);
        let triggered = trail.triggered.get(task.name()).copied().unwrap_or_default();
        if is_old || !is_of_a_client(task) {
            count += triggered;
            continue;
        }
        let (scheduled, others) = starts_of(desk, task.name(), since)?;
        let (is_replaced, pace) = (old.is_some_and(|old| old.id == task.id), Pace::of(desk, task));
        // Runs may have been deleted since.
        count += others.max(triggered) + if is_replaced { scheduled } else { scheduled.max(pace.a_day) };
        once.extend(pace.once.filter(|_| !is_replaced));
        if count > desk.max_starts {
            break;
        }
    }
    count += busiest_day(&mut once);
    if count > desk.max_starts {
        let found = format!("found {count}: those that started, wait or are planned, with this one");
        let reason = format!("expected at most {} runs within 24 hours, {found}", desk.max_starts);
        return Err(limit("--max-starts-per-day", &reason));
    }
    Ok(())
}

/// What a removal of a task is to record behind the session, so that adding and removing it again and again counts.
pub(crate) fn note_of_removal(desk: &Desk, name: &str) -> Result<Option<String>, ToolError> {
    let (scheduled, others) = starts_of(desk, name, desk.client.now().minus(DAY))?;
    let starts = scheduled + others;
    Ok((starts > 0).then(|| format!("{starts}{STARTS}")))
}

/// How many runs of a task have started since then, or wait: those of its schedule, and all others.
fn starts_of(desk: &Desk, name: &str, since: Timestamp) -> Result<(usize, usize), ToolError> {
    let counts = |run: &&Run| {
        let times = [Some(run.scheduled_for), run.started_at, run.finished_at];
        let is_start = !matches!(run.status, RunStatus::Skipped | RunStatus::Missed);
        is_start && (!run.status.is_final() || times.into_iter().flatten().any(|at| at >= since))
    };
    let (mut scheduled, mut others, mut filter) = (0, 0, RunFilter::newest(PAGE).of(name));
    loop {
        let runs = desk.client.runs(&filter)?;
        let counted: Vec<&Run> = runs.iter().filter(counts).collect();
        let of_schedule = counted.iter().filter(|run| Origin::is_scheduled(run.origin)).count();
        scheduled += of_schedule;
        others += counted.len() - of_schedule;
        // Runs are opened in the order of their ids: before a page of old ones there are only older ones.
        match runs.last().filter(|_| runs.len() == PAGE && !counted.is_empty()) {
            Some(last) if scheduled + others <= desk.max_starts => filter = filter.before(last.id),
            _ => return Ok((scheduled, others)),
        }
    }
}

/// What clients did within the last 24 hours, by the events.
#[derive(Debug, Default)]
struct Trail {
    /// The starts of tasks that clients removed, whose runs went with them.
    removed: usize,
    /// The runs that clients triggered and retried, by task.
    triggered: BTreeMap<String, usize>,
}

impl Trail {
    /// Reads what concerns the scope, which ends where that is as much as the limit.
    fn read(desk: &Desk, since: Timestamp) -> Result<Trail, ToolError> {
        let (mut trail, mut own, mut looked_at) = (Trail::default(), 0, 0);
        let (mut page, mut filter) = (PAGE, EventFilter::newest(PAGE));
        loop {
            let events = desk.client.events(&filter.kind("action"))?;
            for event in events.iter().filter(|event| event.at >= since) {
                let detail = event.detail.as_deref().unwrap_or_default();
                let removed = removed_by(detail, desk.grant.scope().unwrap_or_default());
                let is_start = detail.ends_with(": trigger") || detail.ends_with(": retry");
                let task = event.task.as_ref().filter(|task| desk.grant.contains(task));
                trail.removed += removed;
                if let Some(task) = task.filter(|_| is_start && detail.starts_with(CLIENTS)) {
                    *trail.triggered.entry(task.clone()).or_default() += 1;
                    own += 1;
                }
            }
            looked_at += events.len();
            match events.last().filter(|last| events.len() == page && last.at >= since) {
                Some(last) if trail.removed + own < desk.max_starts && looked_at < MAX_EVENTS => {
                    (page, filter) = (EVENTS, EventFilter::newest(EVENTS).before(last.id));
                }
                // What is further back is not known, and could be as much as the limit.
                Some(_) if looked_at >= MAX_EVENTS => {
                    let reason = format!("clients of this database made more than {MAX_EVENTS} changes in 24 hours");
                    let advice = "the user ends the server that makes them (duly list --added-by 'mcp:*')";
                    return Err(limit("--max-starts-per-day", &format!("{reason}: {advice}")));
                }
                _ => return Ok(trail),
            }
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

/// The most instants within 24 hours.
fn busiest_day(planned: &mut [Timestamp]) -> usize {
    planned.sort_unstable();
    let within = |first: usize| planned[first..].iter().take_while(|at| at.since(planned[first]) < DAY).count();
    (0..planned.len()).map(within).max().unwrap_or_default()
}

/// What a model may not have meant by a task as it is stored: it says so to its user.
pub(crate) fn remarks(desk: &Desk, task: &Task) -> Vec<String> {
    let (now, mut remarks) = (desk.client.now(), Vec::new());
    let next = task.ahead(1).unwrap_or_default().first().map(|next| next.at);
    if let Some(next) = next.filter(|next| next.since(now) <= MINUTE) {
        let when = if next <= now { "now".to_owned() } else { format!("in {}s", next.since(now).as_secs()) };
        remarks.push(format!("it runs within a minute: {when}"));
    }
    if shortest(task, now).is_some_and(|shortest| shortest < MINUTE) {
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

    use super::{busiest_day, check_changes, removed_by, times_of_day};
    use duly::Timestamp;

    fn at(hours: u64) -> Timestamp {
        "2027-03-14T00:00:00Z".parse::<Timestamp>().unwrap().plus(Duration::from_secs(hours * 3600))
    }

    #[test]
    fn the_busiest_day_is_any_24_hours() {
        let mut planned: Vec<Timestamp> = [0, 10, 20, 30, 31, 32, 54].map(at).to_vec();
        assert_eq!(busiest_day(&mut planned), 5);
        assert_eq!(busiest_day(&mut []), 0);
    }

    #[test]
    fn a_cron_expression_is_bounded_by_the_times_of_any_of_its_days() {
        for (line, times) in [
            ("*/3 * * 12,6 *", 480),
            ("*/20 * 1 1 *", 72),
            ("0 7,19 * * 1-5", 2),
            ("0 0 9 * * MON", 1),
            ("* * * 29 2 *", 501),
            ("@weekly", 1),
            ("@hourly", 24),
        ] {
            assert_eq!(times_of_day(line, 501), times, "{line}");
        }
    }

    #[test]
    fn changes_are_counted_for_a_minute() {
        let mut changes = Vec::new();
        let now = at(1);
        (0..59).for_each(|_| changes.push(now));
        assert!(check_changes(&mut changes, now).is_ok());
        changes.push(now);
        assert!(check_changes(&mut changes, now.plus(Duration::from_secs(59))).is_err());
        assert!(check_changes(&mut changes, now.plus(Duration::from_secs(60))).is_ok() && changes.is_empty());
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
