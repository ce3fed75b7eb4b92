//! What schedulers report of themselves, and their applications of them.

use std::collections::BTreeSet;

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

    /// Returns whether a living scheduler reports that it cannot start some or all runs, which may be why runs of a handler wait, unless
    /// another one without such a report runs others of them. `running`: the schedulers that do.
    pub(super) fn is_hindered(&self, running: &BTreeSet<String>) -> bool {
        let starts_nothing =
            |text: &str| text.starts_with(CANNOT_START) || [RUNTIME_GONE, RUNTIME_BLOCKED].contains(&text);
        let problems = &self.health.problems;
        let reports = |id: &str| problems.iter().any(|(owner, text)| owner == id && starts_nothing(text));
        let (hindered, others): (Vec<_>, Vec<_>) = self.living().map(|(one, _)| &one.id).partition(|id| reports(id));
        !hindered.is_empty() && !others.into_iter().any(|id| running.contains(id))
    }
}
