//! Settles the outcomes of finished attempts, as many as the items of the turn allow with what follows from them.

use crate::error::excerpt;
use crate::model::finished::Finished;
use crate::model::run::Outcome;
use crate::store::fault::Fault;
use crate::store::sqlite::open::Change;
use crate::store::sqlite::runs::Success;
use crate::store::sqlite::turn::{Mode, Turning};
use crate::store::sqlite::{effects, settle};
use crate::store::turn_io::{Item, MAX_OUTCOMES};

/// Fewest outcomes that are settled by one statement. Two cost as much as one by one.
const SPAN: usize = 3;

/// Most of them if runs may follow: after each span the turn looks at what these have spent.
const FOLLOWED_SPAN: usize = 8;

impl Turning<'_> {
    /// Settles what has finished. Consecutive runs of short handlers have the same times: one statement settles all of them. When outcomes
    /// and the runs that follow have spent half of the items of the turn, the other outcomes are left to the next one.
    pub(super) fn settle_all(&mut self) -> Result<(), Fault> {
        let mut success = Success::new(self.tx)?;
        let (owner, together) = (self.work.owner, self.mode == Mode::Together);
        let (half, mut settled) = ((self.work.most / 2).max(1), 0);
        let (mut plain, others): (Vec<_>, Vec<_>) =
            self.work.finished.iter().enumerate().partition(|(_, finished)| {
                together && settle::is_plain(finished) && !finished.claim.is_of_other(owner)
            });
        plain.sort_unstable_by_key(|(_, finished)| finished.claim.run_id);
        let most = if self.written.followed { FOLLOWED_SPAN } else { MAX_OUTCOMES };
        let spans = plain.chunk_by(|(_, before), (_, next)| settle::continues(before, next));
        let spans = spans.flat_map(|span| span.chunks(most)).chain(others.chunks(1));
        for span in spans {
            if settled > 0 && self.follower_items > 0 && settled + self.follower_items >= half {
                self.done.deferred.extend(span.iter().map(|(place, _)| *place));
            } else if span.len() < SPAN {
                span.iter().try_for_each(|(_, finished)| self.settle(&mut success, finished))?;
            } else {
                self.budget = self.budget.saturating_sub(span.len());
                let span: Vec<&Finished> = span.iter().map(|(_, finished)| *finished).collect();
                settle::settle_span(&mut self.change(), owner, &span)?;
                self.spend_on_followers();
            }
            settled += span.len();
        }
        self.slots = self.slots.less(self.done.deferred.len());
        self.follow_passed()
    }

    /// Settles an outcome. If its text cannot be stored, the end of the attempt is stored without it.
    fn settle(&mut self, success: &mut Success<'_>, finished: &Finished) -> Result<(), Fault> {
        let (tx, owner, now) = (self.tx, self.work.owner, self.work.now);
        if !finished.effects.is_empty()
            && let Some(fault) = self.attempt(|_| Ok(effects::end(tx, owner, finished, now)?))?
        {
            if self.is_transient(&fault) {
                self.done.unwritten.push(finished.clone());
                return self.set_aside(Item::Outcome(finished.claim.run_id), &fault);
            }
            log::warn!("the effects of run {} stay in doubt: {fault}", finished.claim.run_id);
        }
        let mut store = |turn: &mut Self, finished: &Finished| {
            let mut cx = Change { tx, now, schedules: turn.schedules, written: &mut turn.written };
            settle::settle(&mut cx, success, owner, finished, &mut turn.memory.random)
        };
        let Some(fault) = self.attempt_end(|turn| store(turn, finished))? else { return Ok(()) };
        if self.is_transient(&fault) {
            self.done.unwritten.push(finished.clone());
            return self.set_aside(Item::Outcome(finished.claim.run_id), &fault);
        }
        let outcome = match &finished.outcome {
            Outcome::Failed { how, retry, .. } => {
                let error = format!("its error could not be stored: {}", excerpt(&fault.to_string(), 500));
                Outcome::Failed { how: *how, error, retry: *retry }
            }
            Outcome::Succeeded { .. } => Outcome::succeeded(),
            Outcome::Released => Outcome::Released,
        };
        let plain = Finished { outcome, output: None, exit_code: None, progress: None, ..finished.clone() };
        let again = self.attempt(|turn| store(turn, &plain))?;
        if again.is_some() {
            self.done.unwritten.push(finished.clone());
        }
        self.set_aside(Item::Outcome(finished.claim.run_id), &again.unwrap_or(fault))
    }
}
