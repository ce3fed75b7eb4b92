//! A time in which the database cannot be written: its alarm is in memory, and is stored when the database can be written again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duly::{AlarmItem, AlarmKind, AlarmMessage, AlarmOutage, AlarmState, Timestamp};

/// What to do about it.
const ADVICE: &str = "see the log for the cause, such as a full disk; nothing starts until it can be written again";

/// How far the delivery of a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Waiting,
    InFlight,
    Done,
}

#[derive(Debug)]
struct State {
    /// When the first of the failed looks or claims in a row was.
    failing_since: Option<(Duration, Timestamp)>,
    /// Whether the last claim of a channel failed: a look that has nothing to write does not show that the database can be written.
    claims_fail: bool,
    /// What was found, since the failures have lasted long enough.
    found: Option<String>,
    /// The channels that have not stored it.
    channels: Vec<(&'static str, Delivery)>,
}

/// Shared by the look and the channels.
#[derive(Debug)]
pub(crate) struct Outages {
    channels: Vec<&'static str>,
    /// How long writing must have failed.
    after: Duration,
    state: Mutex<State>,
}

impl Outages {
    pub(crate) fn new(channels: Vec<&'static str>, after: Duration) -> Self {
        let state = State { failing_since: None, claims_fail: false, found: None, channels: Vec::new() };
        Outages { channels, after, state: Mutex::new(state) }
    }

    /// Calls `store` with the channels that may be stored now, and the outage that is over if it succeeds. Meanwhile no delivery
    /// begins: what is stored as not delivered is not in flight.
    pub(crate) fn store<T, E>(
        &self,
        store: impl FnOnce(&[&'static str], Option<&AlarmOutage>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.state();
        let (Some(found), Some((_, since))) = (&state.found, state.failing_since) else {
            let answer = store(&self.channels, None)?;
            if !state.claims_fail {
                state.failing_since = None;
            }
            return Ok(answer);
        };
        let storable = |channel: &&'static str| !state.channels.contains(&(channel, Delivery::InFlight));
        let channels: Vec<&'static str> = self.channels.iter().copied().filter(storable).collect();
        let is_done = |channel: &&&'static str| state.channels.contains(&(channel, Delivery::Done));
        let delivered = channels.iter().filter(is_done).map(|channel| (*channel).to_owned()).collect();
        let outage = AlarmOutage { since, found: found.clone(), advice: ADVICE.to_owned(), delivered };
        // Channels that have stored it before take part, without it.
        let with: Vec<&'static str> =
            channels.into_iter().filter(|channel| state.channels.iter().any(|(one, _)| one == channel)).collect();
        let answer = store(&with, Some(&outage))?;
        state.channels.retain(|(channel, _)| !with.contains(channel));
        if state.channels.is_empty() {
            (state.found, state.failing_since) = (None, None);
        }
        Ok(answer)
    }

    /// Records whether a channel could claim what it delivers.
    pub(crate) fn claimed(&self, failure: Option<&str>, wall: Timestamp, now: Duration) {
        self.state().claims_fail = failure.is_some();
        failure.into_iter().for_each(|error| self.failed(error, wall, now));
    }

    /// Records that a look failed.
    pub(crate) fn failed(&self, error: &str, wall: Timestamp, now: Duration) {
        let mut state = self.state();
        let (since, _) = *state.failing_since.get_or_insert((now, wall));
        if state.found.is_none() && now.saturating_sub(since) >= self.after {
            state.found = Some(format!("the database cannot be written: {error}"));
            state.channels = self.channels.iter().map(|channel| (*channel, Delivery::Waiting)).collect();
        }
    }

    /// Returns the message of a channel that has not delivered it, which is then in flight.
    pub(crate) fn claim(&self, channel: &'static str) -> Option<AlarmMessage> {
        let mut state = self.state();
        let (found, (_, since)) = (state.found.clone()?, state.failing_since?);
        let (_, delivery) =
            state.channels.iter_mut().find(|(one, delivery)| *one == channel && *delivery == Delivery::Waiting)?;
        *delivery = Delivery::InFlight;
        let id = format!("{channel}-degraded-began-at-{}", since.as_millis());
        let item = AlarmItem::new(since, &found, ADVICE);
        Some(AlarmMessage::unstored(id, channel, AlarmKind::Degraded, AlarmState::Began, item))
    }

    /// Whether this channel has delivered the message, and that is not stored: the database may have the same alarm as not delivered.
    pub(crate) fn holds(&self, channel: &'static str) -> bool {
        self.state().channels.contains(&(channel, Delivery::Done))
    }

    /// Records whether the message was delivered.
    pub(crate) fn settle(&self, channel: &str, delivered: bool) {
        let delivery = if delivered { Delivery::Done } else { Delivery::Waiting };
        self.state().channels.iter_mut().filter(|(one, _)| *one == channel).for_each(|(_, one)| *one = delivery);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
