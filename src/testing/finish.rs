//! The ends of attempts of a [`Stepper`].

use std::sync::Arc;

use crate::clock::Now;
use crate::host::attempt_slots::Place;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome};
use crate::testing::Stepper;
use crate::worker::attempt::Tools;
use crate::worker::handed;

impl Stepper {
    /// Ends an attempt now. The next step settles it.
    ///
    /// An attempt that had not begun begins now, unless the outcome is [`Outcome::Released`]. After more than its time limit, a
    /// success is late and an error is a timeout, as with a worker.
    pub fn finish(&mut self, claim: &Arc<Claim>, outcome: Outcome) {
        if outcome != Outcome::Released {
            self.begin(claim);
        }
        let (begun, now) = (self.forget(claim), self.now());
        let (slot, began) = (begun.map(|(slot, _)| slot), begun.map_or(now, |(_, began)| began));
        let limit = self.handlers.get(&claim.handler).and_then(|handler| handed::limit(&**handler, claim));
        let exceeded = limit.filter(|limit| now.monotonic.saturating_sub(began.monotonic) >= *limit);
        let finished = Finished::new(claim.clone(), outcome, began, now).exceeding(exceeded);
        self.finished.push(Finished { slot, ..self.handlers.with_backoff(finished) });
    }

    /// Runs an attempt with its registered handler, at once and on this thread, and returns how it ended; the next step settles
    /// it. What the handler [finished](crate::Context::finish) together with its own rows is committed already. `None`: no such
    /// handler is registered.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).handler("pay", |run: &Context| run.finish(|_| Ok(5))).start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::once("rent", noon).handler("pay"))?;
    /// let claims = stepper.step()?;
    /// stepper.carry_out(&claims[0]);
    /// // Killed before the end is reported: what it finished is committed.
    /// stepper.crash();
    /// assert_eq!(client.history("rent", 1)?[0].status, RunStatus::Succeeded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn carry_out(&mut self, claim: &Arc<Claim>) -> Option<Finished> {
        let handler = self.handlers.get(&claim.handler).cloned()?;
        self.begin(claim);
        let tools = Tools { manual: Some(self.clock.clone()), ..Tools::new(self.connection.clone(), None) };
        let began = self.now();
        let finished = handed::attempt(&*handler, claim, began, self.time.0.clone(), Arc::default(), tools, |_| {});
        let mut finished = self.handlers.with_backoff(finished);
        finished.slot = self.forget(claim).map(|(slot, _)| slot);
        self.finished.push(finished.clone());
        Some(finished)
    }

    /// Frees the worker of an attempt. Returns the slot of an attempt that had begun, and when it began.
    pub(super) fn forget(&mut self, claim: &Claim) -> Option<(Place, Now)> {
        self.running.retain(|running| running.run_id != claim.run_id || running.attempt != claim.attempt);
        self.begun.remove(&(claim.run_id, claim.attempt))
    }
}
