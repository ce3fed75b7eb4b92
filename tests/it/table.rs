//! What the tables hold, as small tables of text that a test compares whole; and ways to let a stepper work.

use std::sync::Arc;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Claim, NewTask, Outcome};

use crate::house::{House, at};

impl House {
    /// Every run of a task, oldest occurrence first: the occurrence, origin, status, and for a row that stands for several
    /// how many and the last of them. Milliseconds are shown where there are some.
    pub(crate) fn history(&self, task: &str) -> Vec<String> {
        let time = |column: &str| {
            format!(
                "strftime('%Y-%m-%d %H:%M:%S', {column} / 1000, 'unixepoch')
                 || iif({column} % 1000 = 0, '', printf('.%03d', {column} % 1000))"
            )
        };
        self.rows(&format!(
            "SELECT {} || ' ' || origin || ' ' || status
                    || iif(last_scheduled_for IS NULL AND occurrences = 1, '', ' x' || occurrences || ' to ' || {})
                    || iif(error GLOB 'at least *', ' at least', '')
               FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = '{task}')
              ORDER BY scheduled_for, id",
            time("scheduled_for"),
            time("last_scheduled_for"),
        ))
    }

    /// `next_run` of a task and its status.
    pub(crate) fn next(&self, task: &str) -> String {
        self.ask(&format!(
            "SELECT ifnull(strftime('%Y-%m-%d %H:%M:%S', next_run / 1000, 'unixepoch'), '-') || ' ' || status
               FROM scheduled_tasks WHERE name = '{task}'"
        ))
    }

    /// Adds a task that nothing happens to, and a waiting run of it; see [`House::assert_bystander`].
    pub(crate) fn add_bystander(&self, stepper: &Stepper) -> Vec<String> {
        let never = NewTask::once("bystander", at("3999-01-01T00:00:00Z")).handler("nobody").priority(3);
        stepper.client().add(never).expect("a bystander");
        stepper.client().trigger("bystander").expect("a run of the bystander");
        self.bystander()
    }

    fn bystander(&self) -> Vec<String> {
        let mut rows = self.rows("SELECT * FROM scheduled_tasks WHERE name = 'bystander'");
        rows.extend(self.rows(
            "SELECT r.* FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                                WHERE t.name = 'bystander'",
        ));
        rows
    }

    /// Neither the bystander's row nor that of its run has changed.
    #[track_caller]
    pub(crate) fn assert_bystander(&self, before: &[String]) {
        assert_eq!(self.bystander(), before, "the bystander has changed");
    }

    /// A task has these rows and no others.
    #[track_caller]
    pub(crate) fn assert_history(&self, task: &str, expected: &[&str]) {
        let found = self.history(task);
        assert!(found == expected, "{task}:\n  found    {found:#?}\n  expected {expected:#?}");
    }
}

/// Takes one step that must claim as many runs.
#[track_caller]
pub(crate) fn step(stepper: &mut Stepper, claims: usize) -> Vec<Arc<Claim>> {
    let claimed = stepper.step().expect("a step");
    assert_eq!(claimed.len(), claims, "claimed {claimed:#?}");
    claimed
}

/// Takes one step that must claim one run.
#[track_caller]
pub(crate) fn claim(stepper: &mut Stepper) -> Arc<Claim> {
    step(stepper, 1).remove(0)
}

/// Ends an attempt well, and takes the step that settles it. Answers with what that step claimed.
pub(crate) fn succeed(stepper: &mut Stepper, claim: &Arc<Claim>) -> Vec<Arc<Claim>> {
    stepper.finish(claim, Outcome::succeeded());
    stepper.step().expect("a step")
}

/// Steps, and ends whatever is claimed at once, until there is no more to do now. Answers with the claims, in order.
pub(crate) fn work_off(stepper: &mut Stepper) -> Vec<Arc<Claim>> {
    let mut done = Vec::new();
    loop {
        let claims = stepper.step().expect("a step");
        if claims.is_empty() && stepper.sleeps() > Duration::ZERO {
            return done;
        }
        for claim in claims {
            stepper.finish(&claim, Outcome::succeeded());
            done.push(claim);
        }
    }
}
