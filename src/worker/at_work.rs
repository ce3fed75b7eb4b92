//! The effects that an attempt is at, and what is not stored of them when it ends. The end of the attempt stores that: a clean-up that came
//! after it could meet the next attempt at the same effect.

use std::collections::BTreeMap;

use crate::error::{Error, excerpt};
use crate::model::finished::EffectEnd;
use crate::worker::attempt::{OwnEnd, Tools};
use crate::worker::effects::MAX_EFFECT_KEY_BYTES;
use crate::worker::failure::Failure;
use crate::worker::handler::Context;

/// Why a copy of the context records nothing more.
pub(crate) const OVER: &str = "its attempt has ended";

/// The effects of an attempt, by key.
#[derive(Default)]
pub(crate) struct Effects {
    by_key: BTreeMap<String, Effect>,
    /// Called when no intent is being written.
    then: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Default)]
struct Effect {
    /// Whether a call is at it: another thread of the attempt must not take its intent for one in doubt.
    is_busy: bool,
    step: Step,
}

/// What this attempt knows of an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is to be stored: it is not begun, or is being performed, or all is stored.
    #[default]
    Open,
    /// Its intent is being written.
    Beginning,
    /// Its intent is written, and a call is about to perform it.
    Intended,
    /// Its intent is to be deleted: it was not performed.
    NotPerformed,
    /// Its value, JSON, is to be stored.
    Performed(String),
}

impl Effects {
    pub(crate) fn step(&self, key: &str) -> Step {
        self.by_key.get(key).map(|effect| effect.step.clone()).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, key: &str, step: Step) {
        let effect = self.by_key.entry(key.to_owned()).or_default();
        effect.step = match step {
            Step::Intended if !effect.is_busy => Step::NotPerformed,
            step => step,
        };
        if effect.step == Step::Open && !effect.is_busy {
            self.by_key.remove(key);
        }
    }

    fn leave(&mut self, key: &str) {
        if let Some(effect) = self.by_key.get_mut(key) {
            effect.is_busy = false;
            let step = effect.step.clone();
            self.set(key, step);
        }
    }

    fn is_beginning(&self) -> bool {
        self.by_key.values().any(|effect| effect.step == Step::Beginning)
    }

    /// Takes what the end of the attempt has to store.
    fn take_left(&mut self) -> Vec<EffectEnd> {
        let ends = std::mem::take(&mut self.by_key).into_iter().filter_map(|(key, effect)| match effect.step {
            Step::Intended | Step::NotPerformed => Some(EffectEnd { key, value: None }),
            Step::Performed(value) => Some(EffectEnd { key, value: Some(value) }),
            Step::Open | Step::Beginning => None,
        });
        ends.collect()
    }
}

impl Tools {
    /// Calls `f` with what the end of the attempt has to store of its effects: at once, or when the intent is written that is being
    /// written. The attempt is over, and begins none any more.
    pub(crate) fn with_effects_left(&self, f: impl FnOnce(Vec<EffectEnd>) + Send + 'static) {
        let reported = self.reported.clone();
        let take = move || reported.lock().unwrap_or_else(std::sync::PoisonError::into_inner).effects.take_left();
        let mut held = self.reported();
        if held.effects.is_beginning() {
            held.effects.then = Some(Box::new(move || f(take())));
            return;
        }
        drop(held);
        f(take());
    }

    /// As [`Tools::with_effects_left`], and waits.
    pub(crate) fn effects_left(&self) -> Vec<EffectEnd> {
        let (send, left) = crossbeam_channel::bounded(1);
        self.with_effects_left(move |effects| drop(send.send(effects)));
        left.recv().unwrap_or_default()
    }
}

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
        if matches!(reported.end, OwnEnd::Over) {
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
        let then = if reported.effects.is_beginning() { None } else { reported.effects.then.take() };
        drop(reported);
        if let Some(then) = then {
            then();
        }
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
            OwnEnd::Over => return Err(refused(OVER.to_owned())),
        }
        let effect = reported.effects.by_key.entry(key.to_owned()).or_default();
        if std::mem::replace(&mut effect.is_busy, true) {
            return Err(refused("this attempt is at it already".to_owned()));
        }
        Ok(AtWork { context, key })
    }

    /// The effect is about to be performed. Refuses if the attempt has ended meanwhile, whose end deletes the intent.
    pub(super) fn performs(&self) -> Result<(), Failure> {
        let mut reported = self.context.reported();
        if matches!(reported.end, OwnEnd::Over) {
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
        if context.reported().effects.by_key.get(key).is_some_and(|effect| effect.is_busy) {
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
