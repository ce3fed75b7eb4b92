//! The status of a run as text and colour, with its next attempt.

use std::borrow::Cow;
use std::collections::HashMap;

use duly::{Client, Run, RunFilter, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::output::table::Tone;
use crate::output::units::{short_duration, until};

/// Most runs that [`next_retries`] reads.
pub(crate) const MAX_RETRIES: usize = 1000;

/// The status of a run, with the reason why it is blocked, its next attempt, or the number of its occurrences.
pub(crate) fn status(run: &Run, now: Timestamp) -> String {
    match (&run.blocked, run.occurrences) {
        (Some(reason), _) => format!("{} ({})", run.status, blocked(reason)),
        (None, _) if run.status == RunStatus::Failed => format!("failed, {}", retry(run.run_at, now)),
        (None, 1) => run.status.to_string(),
        (None, several) => format!("{} ({several} occurrences)", run.status),
    }
}

/// How a final run ended: `run 7 of backup succeeded after 3s`. An error if it did not succeed, with its reason.
pub(crate) fn ended(run: &Run) -> Result<String, String> {
    let Run { id, task, status, .. } = run;
    let duration = run.duration.map(|duration| format!(" after {}", short_duration(duration))).unwrap_or_default();
    if *status == RunStatus::Succeeded {
        return Ok(format!("run {id} of {task} succeeded{duration}"));
    }
    let reason = run.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    Err(format!("run {id} of {task} is {status}{duration}{reason}"))
}

/// The next attempt of a failed run: `retry in 8s`.
pub(crate) fn retry(run_at: Timestamp, now: Timestamp) -> String {
    until(run_at.since(now)).map_or_else(|| "retry is due".to_owned(), |length| format!("retry in {length}"))
}

/// Returns the next attempt of each task that has a failed run, from the newest [`MAX_RETRIES`] of them. Blocked runs are left
/// out: they do not wait for a time.
pub(crate) fn next_retries(client: &Client) -> Result<HashMap<String, Timestamp>, Failure> {
    let mut retries = HashMap::new();
    for run in client.runs(&RunFilter::newest(MAX_RETRIES).status(RunStatus::Failed))? {
        if run.blocked.is_none() {
            let next = retries.entry(run.task).or_insert(run.run_at);
            *next = run.run_at.min(*next);
        }
    }
    Ok(retries)
}

/// Returns short words for the reason that blocks a run.
pub(crate) fn blocked(reason: &str) -> &str {
    match reason {
        "paused" => "task paused",
        "order" => "order: older run first",
        "starts" => "starts: none left",
        "key" => "key: in use",
        other => other,
    }
}

/// Returns short words for an error that the scheduler records itself, and the first line of any other error.
pub(crate) fn short_error(error: &str) -> Cow<'_, str> {
    const SHORT: [(&str, &str); 5] = [
        ("an earlier run of the task was unfinished (overlap policy)", "overlap: still running"),
        (
            "an earlier run of the task had not started yet (overlap policy): with a more urgent priority it starts before others",
            "overlap: not started",
        ),
        ("resolved later than the grace of the task (misfire policy)", "misfire: too late"),
        ("expired before an attempt began", "expired"),
        ("too many were due to be looked at one by one when the task was changed", "too many to list"),
    ];
    if let Some((_, short)) = SHORT.iter().find(|(long, _)| *long == error) {
        return Cow::Borrowed(short);
    }
    let line = error.lines().next().unwrap_or_default();
    if line.len() < error.trim_end().len() { Cow::Owned(format!("{line} ...")) } else { Cow::Borrowed(line) }
}

/// The colour of a run's status.
pub(crate) fn run_tone(status: RunStatus) -> Tone {
    match status {
        RunStatus::Succeeded => Tone::Good,
        RunStatus::Dead => Tone::Bad,
        RunStatus::Failed | RunStatus::Missed | RunStatus::Skipped => Tone::Odd,
        RunStatus::Cancelled => Tone::Faint,
        _ => Tone::Plain,
    }
}
