//! What schedulers report of themselves, and their applications of them.

use crate::client::check::{Check, ProblemKind, pid_of, problem};
use crate::error::excerpt;
use crate::model::health::{CANNOT_START, RUNTIME_BLOCKED, RUNTIME_GONE};

/// Longest problem that an application reports, in bytes: 300 characters.
const MAX_REPORTED: usize = 1200;

impl Check<'_> {
    /// Adds what the applications of living schedulers report.
    pub(super) fn reported(&mut self) {
        for (one, _) in self.living() {
            let (pid, host) = (pid_of(one), &one.host);
            let texts = self.health.problems.iter().filter(|(owner, _)| *owner == one.id);
            for (_, text) in texts {
                if let Some(reason) = text.strip_prefix(CANNOT_START) {
                    let text = format!(
                        "the scheduler with {pid} on {host} cannot start anything: {}",
                        excerpt(reason, MAX_REPORTED)
                    );
                    let advice = "free what is used up, such as inodes, descriptors, memory or processes; it retries by itself, and no \
                                  attempt is lost";
                    self.found.push(problem(ProblemKind::Degraded, text, advice));
                    continue;
                }
                let text = format!("the scheduler with {pid} on {host} reports: {}", excerpt(text, MAX_REPORTED));
                let advice = "see the log of this scheduler; restart it when the cause is removed";
                self.found.push(problem(ProblemKind::Worker, text, advice));
            }
        }
    }

    /// Returns whether a living scheduler reports that it cannot start some or all runs.
    pub(super) fn is_hindered(&self) -> bool {
        let starts_nothing =
            |text: &str| text.starts_with(CANNOT_START) || [RUNTIME_GONE, RUNTIME_BLOCKED].contains(&text);
        let mut hindered = self.health.problems.iter().filter(|(_, text)| starts_nothing(text));
        hindered.any(|(owner, _)| self.living().any(|(one, _)| one.id == *owner))
    }
}
