//! The wall clock as one scheduler sees it: whether it is set, its steps, and its events that are not recorded yet. Pure.

use crate::clock::{Now, Timestamp};
use crate::model::event::Event;
use crate::rules::clock_monitor::{ClockMonitor, Step};
use crate::store::turn_io::ClockEvent;

/// Most clock events that wait to be recorded: a clock may step more often than the database can be written.
const MAX_CLOCK_EVENTS: usize = 100;

/// The wall clock as one scheduler sees it.
#[derive(Debug)]
pub(crate) struct WallClock {
    pub(crate) monitor: ClockMonitor,
    /// Whether the machine's clock was set at the last check.
    pub(crate) is_set: bool,
    /// By how many milliseconds it has stepped since that was last written.
    pub(crate) stepped: i64,
    /// Events that are not recorded yet.
    pub(crate) unrecorded: Vec<ClockEvent>,
}

impl WallClock {
    /// `newest_seen`: the newest heartbeat that is recorded.
    pub(crate) fn new(now: Now, newest_seen: Option<Timestamp>) -> Self {
        WallClock { monitor: ClockMonitor::new(now, newest_seen), is_set: true, stepped: 0, unrecorded: Vec::new() }
    }

    /// Looks at the clock. Returns the events to emit, and keeps them for a turn to record.
    pub(crate) fn check(&mut self, now: Now) -> Vec<Event> {
        let was_set = std::mem::replace(&mut self.is_set, ClockMonitor::is_set(now));
        let mut events = Vec::new();
        if !self.is_set {
            if was_set {
                let detail = format!("{}; it shows {}", Event::ClockNotSet, now.wall);
                self.keep("clock_not_set", self.monitor.estimate(now), detail);
                events.push(Event::ClockNotSet);
            }
            return events;
        }
        if !was_set {
            let event = Event::ClockSet { found: now.wall };
            self.keep("clock_set", now.wall, event.to_string());
            events.push(event);
        }
        if let Some(Step { expected, found }) = self.monitor.look(now) {
            self.stepped += found.as_millis() - expected.as_millis();
            if expected >= Timestamp::MIN {
                let kind = if found > expected { "clock_forward" } else { "clock_back" };
                let event = Event::ClockStepped { expected, found };
                self.keep(kind, found, event.to_string());
                events.push(event);
            } else {
                events.extend(self.behind(Some(self.monitor.newest()), now));
            }
        }
        events
    }

    /// Returns the event to emit if the clock is behind a recorded time, and not so far behind that the recorded time must be wrong.
    pub(crate) fn behind(&mut self, newest: Option<Timestamp>, now: Now) -> Option<Event> {
        let newest = ClockMonitor::behind(newest, now).filter(|_| !self.monitor.was_wrong(now))?;
        let event = Event::ClockBehind { newest, found: now.wall };
        self.keep("clock_behind", now.wall, event.to_string());
        Some(event)
    }

    /// Forgets what a turn has recorded.
    pub(crate) fn recorded(&mut self) {
        self.stepped = 0;
        self.unrecorded.clear();
    }

    /// Keeps an event for a turn to record.
    pub(crate) fn keep(&mut self, kind: &'static str, at: Timestamp, detail: String) {
        if self.unrecorded.len() < MAX_CLOCK_EVENTS {
            self.unrecorded.push(ClockEvent { at, kind, detail });
        }
    }
}
