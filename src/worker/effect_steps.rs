//! The effects that an attempt is at. What is not stored of them when it ends, its end stores: a clean-up that came after it could meet the
//! next attempt at the same effect.

use std::collections::BTreeMap;

use crate::model::finished::EffectEnd;

/// The effects of an attempt, by key.
#[derive(Default)]
pub(crate) struct Effects {
    by_key: BTreeMap<String, Effect>,
    /// Called when no write of the attempt is under way.
    pub(crate) then: Option<Box<dyn FnOnce() + Send>>,
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
    /// A call begins to be at an effect. Returns false if another one is.
    pub(crate) fn take_up(&mut self, key: &str) -> bool {
        !std::mem::replace(&mut self.by_key.entry(key.to_owned()).or_default().is_busy, true)
    }

    pub(crate) fn is_busy(&self, key: &str) -> bool {
        self.by_key.get(key).is_some_and(|effect| effect.is_busy)
    }

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

    pub(crate) fn leave(&mut self, key: &str) {
        if let Some(effect) = self.by_key.get_mut(key) {
            effect.is_busy = false;
            let step = effect.step.clone();
            self.set(key, step);
        }
    }

    pub(crate) fn is_beginning(&self) -> bool {
        self.by_key.values().any(|effect| effect.step == Step::Beginning)
    }

    /// Takes what the end of the attempt has to store.
    pub(crate) fn take_left(&mut self) -> Vec<EffectEnd> {
        let ends = std::mem::take(&mut self.by_key).into_iter().filter_map(|(key, effect)| match effect.step {
            Step::Intended | Step::NotPerformed => Some(EffectEnd { key, value: None }),
            Step::Performed(value) => Some(EffectEnd { key, value: Some(value) }),
            Step::Open | Step::Beginning => None,
        });
        ends.collect()
    }
}
