//! What a task does, in sentences.

use crate::model::task::{Definition, Misfire, Overlap, Task, TaskStatus, WhenLimited};
use crate::page::html::parts::plural;
use crate::schedule::{ScheduleKind, duration_text};

/// Returns the schedule in short: `cron 0 7 * * * (Europe/Rome)`, `interval 15m`, as the command `list` prints it.
pub(super) fn schedule(definition: &Definition) -> String {
    if definition.schedule_type == ScheduleKind::Manual {
        return definition.schedule_type.to_string();
    }
    let zone = if definition.time_zone == "UTC" { String::new() } else { format!(" ({})", definition.time_zone) };
    format!("{} {}{zone}", definition.schedule_type, definition.schedule_value)
}

/// The first parts of the names of zones whose second part is a town or an island.
const CONTINENTS: [&str; 8] = ["Africa", "America", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific"];

/// Returns the schedule in a few words: `daily at 03:30, Rome`, `every 15m`; else as [`schedule`].
pub(super) fn schedule_in_short(task: &Task) -> String {
    let Definition { schedule_type, schedule_value: value, time_zone: zone, .. } = &task.definition;
    let place = match zone.split_once('/') {
        Some((continent, town)) if CONTINENTS.contains(&continent) && !town.contains('/') => town.replace('_', " "),
        _ => zone.clone(),
    };
    match (schedule_type, task.schedule_words()) {
        (_, Some(words)) => format!("{words}, {place}"),
        (ScheduleKind::Interval, _) => format!("every {value}"),
        (ScheduleKind::Delay, _) => format!("{value} after each run"),
        _ => schedule(&task.definition),
    }
}

/// Returns why a task has no next run; empty if its status says it.
pub(super) fn no_next(task: &Task) -> &'static str {
    match (task.status, task.definition.schedule_type) {
        (TaskStatus::Active, ScheduleKind::Manual) => "when triggered",
        (TaskStatus::Active, _) if !task.planned => "not computed yet",
        (TaskStatus::Active, _) => "after the current run",
        _ => "",
    }
}

/// Returns the schedule as a sentence.
pub(super) fn schedule_sentence(task: &Task) -> String {
    let Definition { schedule_value: value, time_zone: zone, .. } = &task.definition;
    if let Some(words) = task.understood() {
        return format!("Runs {words}.");
    }
    match task.definition.schedule_type {
        ScheduleKind::Cron => format!("Runs at the times of the cron line {value}, read in the time zone {zone}."),
        ScheduleKind::Calendar => format!("Runs {value}, in the time zone {zone}."),
        ScheduleKind::Interval => format!("Runs every {value}, on a fixed grid that daylight saving does not move."),
        ScheduleKind::Delay => format!("Runs again {value} after the end of its last run."),
        ScheduleKind::Once => format!("Runs once, at {value}."),
        ScheduleKind::Manual => {
            "Has no schedule: it runs when it is triggered, or when a task dies that names it.".to_owned()
        }
    }
}

/// Returns the policies of a task: a topic, and a sentence about it.
pub(super) fn policies(task: &Definition) -> Vec<(&'static str, String)> {
    let mut found = vec![
        ("Overlap", overlap(task)),
        ("Late starts", misfire(task)),
        ("Retries", retries(task)),
        ("Time limit", timeout(task)),
        ("Concurrency", concurrency(task)),
        ("Priority", priority(task.priority)),
    ];
    if let Some(expires) = task.expires {
        let expires = duration_text(expires);
        found.push((
            "Expiry",
            format!("A run that has not begun within {expires} is not started any more: it is recorded as missed."),
        ));
    }
    if !task.jitter.is_zero() {
        let jitter = duration_text(task.jitter);
        found.push((
            "Jitter",
            format!("Starts later than it is due, by a fixed part of {jitter} that depends on its name."),
        ));
    }
    if let Some(rate) = &task.max_starts {
        let when = match task.when_limited {
            WhenLimited::Wait => "wait",
            WhenLimited::Skip => "are skipped",
        };
        found.push(("Starts", format!("At most {rate}, retries included; occurrences beyond them {when}.")));
    } else if task.when_limited == WhenLimited::Skip {
        found.push(("Starts", "Occurrences for which a limit leaves no start are skipped.".to_owned()));
    }
    found.push(("After failure", on_dead(task)));
    for (topic, when, names) in [
        ("After success", "When a run has succeeded", &task.on_success),
        ("After each end", "When a run has succeeded, is dead, or was cancelled after an attempt began", &task.on_end),
        ("If nothing ran", "When occurrences are missed and nothing runs for them", &task.on_missed),
    ] {
        found.extend(
            names.iter().map(|names| (topic, format!("{when}, a run of each of these tasks is opened: {names}."))),
        );
    }
    found
}

fn overlap(task: &Definition) -> String {
    let text = match task.overlap {
        Overlap::Skip => "an occurrence that falls due while a run is unfinished is skipped.",
        Overlap::BufferOne => "while a run is unfinished, one further occurrence waits and the others are skipped.",
        Overlap::BufferAll => {
            let limit = plural(task.catch_up_limit, "run");
            &format!("occurrences that fall due while a run is unfinished wait in order, at most {limit}.")
        }
        Overlap::Allow => {
            return "Several runs may run at the same time; an occurrence never waits for an earlier run.".to_owned();
        }
        Overlap::CancelRunning => {
            "an occurrence that falls due cancels older occurrences that wait, asks a running run to stop, and starts when that has ended."
        }
    };
    // A limit on a key may allow several, and triggered runs wait for the key alone.
    let most = if task.concurrency_key.is_some() {
        "Its occurrences run one at a time"
    } else {
        "Runs at most once at a time"
    };
    format!("{most}; {text}")
}

fn misfire(task: &Definition) -> String {
    let grace = duration_text(task.misfire_grace);
    match task.misfire {
        Misfire::RunOnce => format!(
            "Occurrences that are more than {grace} late, for example because no scheduler was running, are run once: the newest runs, \
             the others are recorded as missed."
        ),
        Misfire::Skip => {
            format!("Occurrences that are more than {grace} late are not run: they are recorded as missed.")
        }
        Misfire::RunAll => format!(
            "Occurrences that are more than {grace} late are all run, oldest first, at most the newest {}; older ones are recorded as \
             missed.",
            task.catch_up_limit
        ),
    }
}

fn retries(task: &Definition) -> String {
    let retry = &task.retry;
    let (first, most) = (duration_text(retry.backoff), duration_text(retry.max_backoff));
    match retry.max_attempts {
        0 | 1 => {
            "Started at most once: a run whose attempt fails or is lost is dead, and is not tried again.".to_owned()
        }
        several => format!(
            "A failed run is tried up to {several} times in all. The wait before the next attempt begins at {first} and doubles up to \
             {most}, each shortened at random by up to half. After the last attempt the run is dead."
        ),
    }
}

fn timeout(task: &Definition) -> String {
    match task.timeout {
        None => "The default of the handler: an hour for commands, none for functions of an application.".to_owned(),
        Some(limit) if limit.is_zero() => "An attempt may take any time.".to_owned(),
        Some(limit) => {
            let limit = duration_text(limit);
            // A function cannot be ended, and has succeeded if it returns so, however late.
            let end = if task.handler == "command" {
                "is ended and counts as failed"
            } else {
                "is asked to stop, and counts as failed unless it still succeeds"
            };
            format!("An attempt that takes longer than {limit} {end}.")
        }
    }
}

fn concurrency(task: &Definition) -> String {
    match &task.concurrency_key {
        Some(key) => format!(
            "Shares the concurrency key {key}: of all tasks with this key one run runs at a time, or as many as a limit on the key allows."
        ),
        None if task.overlap == Overlap::Allow => {
            "Waits for no other run; a limit on its handler may apply.".to_owned()
        }
        None => "Waits for no other task; a limit on its handler may apply.".to_owned(),
    }
}

fn priority(priority: u8) -> String {
    let meaning = match priority {
        0 => "started before all others when workers are busy",
        1 => "the default",
        2 => "started after those of priority 0 and 1 when workers are busy",
        _ => "started last when workers are busy",
    };
    format!("{priority} of 0 to 3: {meaning}.")
}

fn on_dead(task: &Definition) -> String {
    let mut text = match &task.on_dead {
        Some(target) => format!("When a run is dead, the task {target} is run with the dead run as its payload."),
        None => "When a run is dead, no other task is run.".to_owned(),
    };
    text.push_str(&match task.pause_after_failures {
        Some(1) => " The task is paused after one dead run.".to_owned(),
        Some(count) => format!(" The task is paused after {count} dead runs in a row."),
        None => " The task is not paused by dead runs.".to_owned(),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::policies;
    use crate::model::task::{Definition, Misfire, Overlap};
    use crate::schedule::ScheduleKind;
    use std::time::Duration;

    /// A policy is changed, and its sentence has these words.
    #[test]
    fn each_policy_has_a_sentence() {
        type Change = fn(&mut Definition);
        let table: &[(Change, &str, &str)] = &[
            (
                |_| {},
                "Overlap",
                "Runs at most once at a time; an occurrence that falls due while a run is unfinished is skipped.",
            ),
            (|task| task.overlap = Overlap::BufferOne, "Overlap", "one further occurrence waits"),
            (|task| task.overlap = Overlap::BufferAll, "Overlap", "wait in order, at most 100 runs"),
            (|task| task.overlap = Overlap::Allow, "Overlap", "Several runs may run at the same time"),
            (
                |task| task.overlap = Overlap::CancelRunning,
                "Overlap",
                "asks a running run to stop, and starts when that has ended",
            ),
            (|_| {}, "Late starts", "more than 1m late, for example because no scheduler was running, are run once"),
            (|task| task.misfire = Misfire::Skip, "Late starts", "are not run: they are recorded as missed"),
            (|task| task.misfire = Misfire::RunAll, "Late starts", "at most the newest 100"),
            (
                |_| {},
                "Retries",
                "up to 5 times in all. The wait before the next attempt begins at 10s and doubles up to 1h",
            ),
            (|task| task.retry.max_attempts = 1, "Retries", "Started at most once"),
            (|_| {}, "Time limit", "The default of the handler"),
            (|task| task.timeout = Some(Duration::ZERO), "Time limit", "may take any time"),
            (|task| task.timeout = Some(Duration::from_secs(90)), "Time limit", "longer than 1m 30s is asked to stop"),
            (
                |task| (task.timeout, task.handler) = (Some(Duration::from_secs(90)), "command".into()),
                "Time limit",
                "longer than 1m 30s is ended and counts as failed",
            ),
            (
                |task| task.concurrency_key = Some("disk".into()),
                "Overlap",
                "Its occurrences run one at a time; an occurrence",
            ),
            (|_| {}, "Retries", "shortened at random by up to half. After the last attempt the run is dead"),
            (|_| {}, "Concurrency", "Waits for no other task"),
            (|task| task.concurrency_key = Some("disk".into()), "Concurrency", "Shares the concurrency key disk"),
            (|_| {}, "Priority", "1 of 0 to 3: the default."),
            (|task| task.priority = 0, "Priority", "started before all others"),
            (|task| task.priority = 3, "Priority", "started last"),
            (|task| task.expires = Some(Duration::from_secs(3600)), "Expiry", "not begun within 1h"),
            (|task| task.jitter = Duration::from_secs(60), "Jitter", "a fixed part of 1m"),
            (|_| {}, "After failure", "no other task is run. The task is not paused by dead runs."),
            (
                |task| task.on_dead = Some("alarm".into()),
                "After failure",
                "the task alarm is run with the dead run as its payload",
            ),
            (|task| task.pause_after_failures = Some(3), "After failure", "paused after 3 dead runs in a row"),
            (
                |task| task.on_success = Some("post".into()),
                "After success",
                "succeeded, a run of each of these tasks is opened: post",
            ),
            (|task| task.on_end = Some("a,b".into()), "After each end", "opened: a,b"),
            (|task| task.on_missed = Some("tell".into()), "If nothing ran", "missed and nothing runs for them, a run"),
        ];
        for (change, topic, words) in table {
            let mut task = Definition::new(ScheduleKind::Cron, "0 7 * * *".into());
            change(&mut task);
            let found = policies(&task);
            let (_, sentence) = found.iter().find(|(one, _)| one == topic).expect("the topic");
            assert!(sentence.contains(words) && sentence.ends_with('.'), "{topic}: {sentence}");
        }
        let plain = policies(&Definition::new(ScheduleKind::Manual, String::new()));
        assert!(!plain.iter().any(|(topic, _)| ["Expiry", "Jitter"].contains(topic)), "{plain:?}");
    }
}
