//! Tasks that are to run after others, and cannot.

use crate::client::check::{Check, ProblemKind};
use crate::model::health::CannotFollow;
use crate::model::run::Origin;

/// The reason for which a paused task cannot follow now.
const PAUSED: &str = "that is paused";

impl Check<'_> {
    /// Adds each name in `on_dead`, `on_success`, `on_end` and `on_missed` of a task that cannot run.
    pub(super) fn cannot_follow(&mut self) {
        for CannotFollow { task, column, target, reason } in &self.health.cannot_follow {
            let text = match column {
                Origin::OnDead => format!("dead runs of {task} are to be reported to {target}, and {reason}"),
                _ => format!("{target} is to run by {column} of {task}, and {reason}"),
            };
            let advice = match reason.as_str() {
                PAUSED => format!("its runs wait until it is resumed: duly resume {target}"),
                _ => format!("add or repair the task that {column} names, or name another"),
            };
            self.of_task(ProblemKind::OnDead, task, text, &advice);
        }
    }
}
