//! A call of an attempt that is at an effect, and its write of the intent.

use std::sync::MutexGuard;

use crate::error::{Error, excerpt};
use crate::worker::attempt::{OwnEnd, Reported};
use crate::worker::effect_steps::Step;
use crate::worker::failure::Failure;
use crate::worker::handler::Context;

/// Longest key of an effect.
pub const MAX_EFFECT_KEY_BYTES: usize = 200;

/// Why a copy of the context records nothing more.
pub(crate) const OVER: &str = "its attempt has ended";

/// A write of an intent. When it is dropped, the effect is at the step `then`.
pub(super) struct Beginning<'a> {
    context: &'a Context,
    key: &'a str,
    pub(super) then: Step,
}

impl<'a> Beginning<'a> {
    /// Refuses if the attempt is over: it may have been dropped while this call waited for the database.
    pub(super) fn new(context: &'a Context, key: &'a str) -> Result<Self, Error> {
        let mut reported = context.reported();
        if matches!(reported.end, OwnEnd::Over | OwnEnd::Ending) {
            return Err(over(context, key));
        }
        let then = reported.effects.step(key);
        reported.effects.set(key, Step::Beginning);
        Ok(Beginning { context, key, then })
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let mut reported = self.context.reported();
        reported.effects.set(self.key, std::mem::take(&mut self.then));
        wrote(reported);
    }
}

/// A write has ended, for which the end of the attempt may wait.
pub(super) fn wrote(mut reported: MutexGuard<'_, Reported>) {
    let then = if reported.is_writing() { None } else { reported.effects.then.take() };
    drop(reported);
    if let Some(then) = then {
        then();
    }
}

fn over(context: &Context, key: &str) -> Error {
    let request = format!("do effect {:?} of run {}", excerpt(key, 80), context.run_id());
    Error::Refused { request, reason: OVER.to_owned() }
}

/// An effect that a call of an attempt is at.
pub(super) struct AtWork<'a> {
    context: &'a Context,
    key: &'a str,
}

impl<'a> AtWork<'a> {
    pub(super) fn begin(context: &'a Context, key: &'a str) -> Result<Self, Failure> {
        let refused = |reason: String| {
            let request = format!("do effect {:?} of run {}", excerpt(key, 80), context.run_id());
            Failure::give_up(Error::Refused { request, reason })
        };
        if key.is_empty() || key.len() > MAX_EFFECT_KEY_BYTES {
            return Err(refused(format!("expected a key of 1 to {MAX_EFFECT_KEY_BYTES} bytes, found {}", key.len())));
        }
        let mut reported = context.reported();
        match reported.end {
            OwnEnd::NotYet => {}
            OwnEnd::Writing => return Err(refused("its run is being finished: do it before `finish`".to_owned())),
            OwnEnd::Written(_) => return Err(refused("its run is finished: do it before `finish`".to_owned())),
            OwnEnd::Over | OwnEnd::Ending => return Err(refused(OVER.to_owned())),
        }
        if !reported.effects.take_up(key) {
            return Err(refused("this attempt is at it already".to_owned()));
        }
        Ok(AtWork { context, key })
    }

    /// The effect is about to be performed. Refuses if the attempt has ended meanwhile, whose end deletes the intent.
    pub(super) fn performs(&self) -> Result<(), Failure> {
        let mut reported = self.context.reported();
        if matches!(reported.end, OwnEnd::Over | OwnEnd::Ending) {
            return Err(Failure::give_up(over(self.context, self.key)));
        }
        reported.effects.set(self.key, Step::Open);
        Ok(())
    }

    /// Leaves the effect at work.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }

    /// Returns an effect that was left at work. Its attempt may end it once.
    pub(super) fn resume(context: &'a Context, key: &'a str) -> Result<Self, Failure> {
        if context.reported().effects.is_busy(key) {
            return Ok(AtWork { context, key });
        }
        let request = format!("end effect {:?} of run {}", excerpt(key, 80), context.run_id());
        let reason = "this attempt has not begun it".to_owned();
        Err(Failure::give_up(Error::Refused { request, reason }))
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.context.reported().effects.leave(self.key);
    }
}
