//! Occurrences that got no run.

use crate::client::check::{Check, MAX_ERROR, ProblemKind};
use crate::error::excerpt;

impl Check<'_> {
    /// Adds tasks for whose occurrences nothing ran, and those that were skipped again and again, or had no start left.
    pub(super) fn passed_over(&mut self) {
        for (run, passed) in self.health.missed.iter().chain(&self.health.caught_up) {
            let (text, advice) = passed.as_missed();
            self.of_run(
                ProblemKind::Missed,
                *run,
                &passed.task,
                excerpt(&text, MAX_ERROR + passed.task.len()),
                &advice,
            );
        }
        for (run, passed) in &self.health.skipped {
            let (text, advice) = passed.as_skipped();
            self.of_run(
                ProblemKind::Skipped,
                *run,
                &passed.task,
                excerpt(&text, MAX_ERROR + passed.task.len()),
                &advice,
            );
        }
        for (run, passed) in &self.health.limited {
            let (text, advice) = passed.as_limited();
            let text = excerpt(&text, MAX_ERROR + passed.task.len());
            self.of_run(ProblemKind::Limited, *run, &passed.task, text, &advice);
        }
    }
}
