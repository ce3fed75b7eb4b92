//! Calls the observers of an application on a thread of their own, so that no observer holds up the scheduler.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::event::{Event, Observer};
use crate::model::observers::Observers;

/// Events that wait for the observers, at most.
const QUEUE: usize = 10_000;
/// Delivered events that wait to be freed, at most.
const SPENT: usize = 1_000;
/// Events that follow within this time are taken together: to wake the thread of the observers costs the loop more than an event.
const GATHER: Duration = Duration::from_millis(1);
/// The longest wait for them.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The observers of an application, as one observer that only queues.
#[derive(Clone)]
pub(crate) struct Told(Arc<Teller>);

/// Ends the thread when it is dropped.
struct Teller {
    queue: Arc<Queue>,
    thread: ThreadId,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Something to deliver, or the end.
    arrived: Condvar,
    /// All that was taken is delivered.
    delivered: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Event>,
    /// Delivered events, at most [`SPENT`]. The loop frees them, since it allocated what they hold: two threads that allocate and
    /// free in one arena of malloc wait for each other at every event.
    spent: Vec<Event>,
    /// Events that were dropped since the last delivery.
    dropped: u64,
    /// How many events were queued and delivered so far.
    queued: u64,
    done: u64,
    is_idle: bool,
    has_ended: bool,
}

impl Told {
    /// Starts the thread, which ends when the scheduler and all its clients are gone.
    pub(crate) fn start(observers: Vec<Arc<dyn Observer>>) -> Result<Self> {
        let queue = Arc::<Queue>::default();
        let of_thread = queue.clone();
        let observers = Observers(observers);
        let thread = thread::Builder::new()
            .name("duly-observer".into())
            .spawn(move || of_thread.deliver(&observers))
            .map_err(|error| Error::store("start the thread of the observers", error))?;
        Ok(Told(Arc::new(Teller { queue, thread: thread.thread().id() })))
    }

    /// Waits until the observers have all events so far. Not for longer than this, nor on their own thread.
    pub(crate) fn flush(&self, limit: Duration) {
        if thread::current().id() == self.0.thread {
            return;
        }
        let queue = &self.0.queue;
        let state = queue.state();
        let all = state.queued;
        drop(queue.delivered.wait_timeout_while(state, limit.min(LONGEST), |state| state.done < all));
    }
}

impl Observer for Told {
    fn observe(&self, event: &Event) {
        let (queue, event) = (&self.0.queue, event.clone());
        let is_start = matches!(event, Event::Started { .. });
        let mut state = queue.state();
        if state.waiting.len() >= QUEUE {
            state.dropped += 1;
            let is_first = state.dropped == 1;
            drop(state);
            if is_first {
                log::warn!(
                    "the observers of the application do not keep up: {QUEUE} events wait; further ones are dropped"
                );
            }
            return;
        }
        state.waiting.push(event);
        state.queued += 1;
        let wakes = mem::take(&mut state.is_idle);
        // A worker emits the start alone.
        let spent = if is_start { Vec::new() } else { mem::take(&mut state.spent) };
        drop(state);
        if wakes {
            queue.arrived.notify_one();
        }
        drop(spent);
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, observers: &Observers) {
        // Changes places with the queue: a list that grew from nothing each time would be a part of the loop's time.
        let mut events = Vec::new();
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() && !state.has_ended {
                state.is_idle = true;
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.waiting.is_empty() {
                return;
            }
            mem::swap(&mut state.waiting, &mut events);
            let dropped = mem::take(&mut state.dropped);
            drop(state);
            if dropped > 0 {
                log::warn!("{dropped} events were dropped: the observers of the application did not keep up");
            }
            events.iter().for_each(|event| observers.notify(event));
            let mut state = self.state();
            state.done += events.len() as u64;
            let rest = events.split_off(events.len().min(SPENT.saturating_sub(state.spent.len())));
            state.spent.append(&mut events);
            drop(state);
            drop(rest);
            events.shrink_to(SPENT);
            self.delivered.notify_all();
            thread::park_timeout(GATHER);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.queue.state().has_ended = true;
        self.queue.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use crate::engine::told::{QUEUE, Told};
    use crate::model::event::{Event, Observer};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn events_arrive_in_order_and_what_finds_no_place_is_counted() {
        let ((open, gate), (begin, begun), (sender, received)) = (bounded::<()>(0), bounded(1), bounded(2 * QUEUE));
        let observer = move |event: &Event| {
            let _ = begin.try_send(());
            // Until the gate is dropped.
            let _ = gate.recv_timeout(PATIENCE);
            sender.send(event.clone()).expect("a receiver");
        };
        let told = Told::start(vec![Arc::new(observer)]).expect("a thread");
        let event = |run: usize| Event::Expired { run: run as i64, task: "t".into(), handler: "h".into() };
        told.observe(&event(0));
        begun.recv_timeout(PATIENCE).expect("the thread has taken the first");
        (1..QUEUE + 8).for_each(|run| told.observe(&event(run)));
        assert_eq!(told.0.queue.state().dropped, 7);
        told.flush(Duration::from_millis(1));
        assert!(received.is_empty(), "a flush does not wait for longer");
        drop(open);
        let all: Vec<Event> = (0..=QUEUE).map(|_| received.recv_timeout(PATIENCE).expect("an event")).collect();
        assert!(all.iter().enumerate().all(|(run, found)| *found == event(run)));
        told.flush(PATIENCE);
        assert!(received.is_empty() && told.0.queue.state().dropped == 0);
    }
}
