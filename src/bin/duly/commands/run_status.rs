//! The status of a run as text and colour, with its next attempt.

use std::collections::HashMap;

use duly::{Client, Run, RunFilter, RunStatus, Timestamp};

use crate::cli::failure::Failure;
use crate::output::table::Tone;
use crate::output::units::until;

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

fn blocked(reason: &str) -> String {
    match reason {
        "paused" => "its task is paused".to_owned(),
        "order" => "waits for an older run".to_owned(),
        "key" => "its key is in use".to_owned(),
        other => other.to_owned(),
    }
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
