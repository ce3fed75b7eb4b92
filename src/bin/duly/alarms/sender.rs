//! Delivers the alarms of one channel, on a thread of its own: a receiver that hangs delays no other channel.

use std::sync::Arc;
use std::time::Duration;

use duly::{AlarmKind, AlarmMessage, AlarmPace, AlarmTurn, Client};

use crate::alarms::command;
use crate::alarms::message::{self, Origin};
use crate::alarms::outage::Outages;
use crate::alarms::stop::Stop;
use crate::alarms::url::Url;
use crate::exec::guard::Guard;
use crate::output::escape;

/// Longest delay between two attempts.
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);
/// Longest time between two looks for messages to deliver.
const POLL: Duration = Duration::from_secs(1);

/// What receives the messages.
pub(crate) enum Receiver {
    Command(Vec<String>, Guard),
    Url(Url),
}

/// Delivers the messages of one channel.
pub(crate) struct Sender {
    pub(crate) client: Client,
    pub(crate) channel: &'static str,
    pub(crate) receiver: Receiver,
    pub(crate) origin: Origin,
    pub(crate) outages: Arc<Outages>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) pace: AlarmPace,
    /// Delay after the first failure, and shortest poll interval.
    pub(crate) retry: Duration,
    pub(crate) state: State,
}

/// What the thread remembers.
#[derive(Default)]
pub(crate) struct State {
    /// A delivered message that could not be recorded as delivered.
    unrecorded: Option<Box<AlarmMessage>>,
    /// The delay after the last failure, and its text.
    failing: Option<(Duration, String)>,
    /// Not before this monotonic time.
    retry_at: Duration,
    /// The kind of the last message, if it was not delivered.
    refused: Option<AlarmKind>,
    /// Whether the last request to the database failed.
    is_database_failing: bool,
}

impl Sender {
    /// Delivers until it must stop, and once more then what is left.
    pub(crate) fn run(mut self) {
        while self.stop.deadline().is_none() {
            let wait = match self.state.retry_at.saturating_sub(self.stop.now().monotonic) {
                Duration::ZERO => self.turn(self.pace).1,
                left => left,
            };
            if self.stop.wait(wait) {
                break;
            }
        }
        self.stop.wait_for_last_look();
        let at_once = AlarmPace { gather: Duration::ZERO, interval: Duration::ZERO, ..self.pace };
        while self.stop.deadline().is_some_and(|deadline| self.stop.now().monotonic < deadline) {
            if !self.turn(at_once).0 {
                break;
            }
        }
    }

    /// Delivers the next message. Returns whether one was delivered, and how long to wait for the next.
    fn turn(&mut self, pace: AlarmPace) -> (bool, Duration) {
        if let Some(message) = self.outages.claim(self.channel) {
            let delivered = self.deliver(&message);
            self.outages.settle(self.channel, delivered);
            return (delivered, Duration::ZERO);
        }
        if self.outages.holds(self.channel) {
            return (false, POLL.min(self.retry));
        }
        if let Some(message) = self.state.unrecorded.take()
            && self.ask(|client| client.alarm_delivered(&message)).is_none()
        {
            self.state.unrecorded = Some(message);
            return (false, POLL.min(self.pace.lease / 4));
        }
        let (channel, refused) = (self.channel, self.state.refused);
        let mut failure = None;
        let claimed = self.ask(|client| {
            client
                .claim_alarm(channel, &pace, refused)
                .inspect_err(|error| failure = Some(escape::one_line(&error.to_string())))
        });
        let now = self.stop.now();
        self.outages.claimed(failure.as_deref(), now.wall, now.monotonic);
        match claimed {
            None | Some(AlarmTurn::Idle) => (false, POLL.min(self.retry)),
            Some(AlarmTurn::Wait(wait)) => (false, wait.min(POLL.min(self.retry))),
            Some(AlarmTurn::Deliver(message)) => {
                let delivered = self.deliver(&message);
                self.state.refused = (!delivered).then_some(message.kind);
                if delivered {
                    if self.ask(|client| client.alarm_delivered(&message)).is_none() {
                        self.state.unrecorded = Some(message);
                    }
                } else {
                    // Otherwise its lease ends it.
                    let _ = self.ask(|client| client.alarm_not_delivered(&message));
                }
                (delivered, Duration::ZERO)
            }
        }
    }

    /// Makes a request to the database. `None`: it failed, which is logged once.
    fn ask<T>(&mut self, request: impl FnOnce(&Client) -> duly::Result<T>) -> Option<T> {
        match request(&self.client) {
            Ok(answer) => {
                self.state.is_database_failing = false;
                Some(answer)
            }
            Err(error) => {
                if !self.state.is_database_failing {
                    let error = escape::one_line(&error.to_string());
                    log::warn!("alarms of {} wait for the database: {error}; they are retried", self.shown());
                }
                self.state.is_database_failing = true;
                None
            }
        }
    }

    /// Makes one attempt. Returns whether it was delivered.
    fn deliver(&mut self, message: &AlarmMessage) -> bool {
        let json = message::json(message, &self.origin);
        let result = match &self.receiver {
            Receiver::Command(argv, guard) => command::run((argv, guard), message, json, &self.stop),
            Receiver::Url(url) => url.post(&json),
        };
        let text = message::text(message);
        let state = &mut self.state;
        match result {
            Ok(()) => {
                log::info!("alarm {} is delivered: {text}", message.id);
                (state.failing, state.retry_at) = (None, Duration::ZERO);
                true
            }
            Err(error) => {
                let delay = state.failing.as_ref().map_or(self.retry, |(last, _)| (*last * 2).min(MAX_DELAY));
                let is_new = state.failing.as_ref().is_none_or(|(_, last)| *last != error);
                state.retry_at = self.stop.now().monotonic + delay;
                state.failing = Some((delay, error.clone()));
                if is_new {
                    let (to, next) = (self.shown(), duly::duration_text(delay));
                    log::warn!(
                        "alarm {} cannot be delivered to {to}: {error}; next attempt in {next}: {text}",
                        message.id
                    );
                }
                false
            }
        }
    }

    /// Returns what a log may show of the receiver.
    fn shown(&self) -> String {
        match &self.receiver {
            Receiver::Command(argv, _) => format!("the command {:?}", escape::one_line(&argv[0])),
            Receiver::Url(url) => url.shown().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use duly::{AlarmItem, AlarmKind, AlarmMessage, AlarmPace, AlarmState, Client, Timestamp};

    use super::{Receiver, Sender, State};
    use crate::alarms::message::Origin;
    use crate::alarms::outage::Outages;
    use crate::exec::guard::Guard;

    #[test]
    fn the_delay_doubles_with_each_failure_up_to_five_minutes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sender = Sender {
            client: Client::open(folder.path().join("agent.db")).expect("a client"),
            channel: "command",
            receiver: Receiver::Command(vec![folder.path().join("missing").display().to_string()], Guard::default()),
            origin: Origin { host: "here".to_owned(), database: "agent.db".to_owned() },
            outages: Arc::new(Outages::new(vec!["command"], Duration::ZERO)),
            stop: Arc::default(),
            pace: AlarmPace::default(),
            retry: Duration::from_secs(1),
            state: State::default(),
        };
        let item = AlarmItem::new(Timestamp::MIN, "the disk is full", "free some space");
        let message = AlarmMessage::unstored("1".to_owned(), "command", AlarmKind::Degraded, AlarmState::Began, item);
        // The threads run for a while before the first failure.
        sender.stop.wait(Duration::from_millis(50));
        let mut delays = Vec::new();
        for _ in 0..11 {
            let before = sender.stop.now().monotonic;
            assert!(!sender.deliver(&message));
            let delay = sender.state.failing.as_ref().expect("a failure").0;
            assert!(sender.state.retry_at >= before + delay);
            delays.push(delay.as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }
}
