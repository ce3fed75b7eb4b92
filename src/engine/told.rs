//! Calls the observers of an application on a thread of their own, so that no observer holds up the scheduler.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::instant;
use crate::error::{Error, Result};
use crate::model::event::{Event, Observer};
use crate::model::observers::Observers;

/// Events that wait for the observers, at most.
const QUEUE: usize = 10_000;
/// Events that follow within this time are taken together: to wake the thread of the observers costs the loop more than an event.
const GATHER: Duration = Duration::from_micros(500);
/// The longest wait for them.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The observers of an application, as one observer that only queues.
#[derive(Clone)]
pub(crate) struct Told {
    queue: Sender<Message>,
    /// Events that were dropped since the last delivery.
    dropped: Arc<AtomicU64>,
    thread: ThreadId,
}

enum Message {
    Event(Box<Event>),
    /// All events before it were delivered.
    Delivered(Sender<()>),
}

impl Told {
    /// Starts the thread, which ends when the scheduler and all its clients are gone.
    pub(crate) fn start(observers: Vec<Arc<dyn Observer>>) -> Result<Self> {
        let (queue, messages) = bounded(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let of_thread = dropped.clone();
        let observers = Observers(observers);
        let thread = thread::Builder::new()
            .name("duly-observer".into())
            .spawn(move || deliver(&observers, &messages, &of_thread))
            .map_err(|error| Error::store("start the thread of the observers", error))?;
        Ok(Told { queue, dropped, thread: thread.thread().id() })
    }

    /// Waits until the observers have all events so far. Not for longer than this, nor on their own thread.
    pub(crate) fn flush(&self, limit: Duration) {
        if thread::current().id() == self.thread {
            return;
        }
        let until = instant() + limit.min(LONGEST);
        let (done, is_done) = bounded(1);
        if self.queue.send_deadline(Message::Delivered(done), until).is_ok() {
            let _ = is_done.recv_deadline(until);
        }
    }
}

impl Observer for Told {
    fn observe(&self, event: &Event) {
        if self.queue.try_send(Message::Event(Box::new(event.clone()))).is_err()
            && self.dropped.fetch_add(1, Ordering::Relaxed) == 0
        {
            log::warn!(
                "the observers of the application do not keep up: {QUEUE} events wait; further ones are dropped"
            );
        }
    }
}

fn deliver(observers: &Observers, messages: &Receiver<Message>, dropped: &AtomicU64) {
    while let Ok(first) = messages.recv() {
        for message in iter::once(first).chain(messages.try_iter()) {
            match dropped.swap(0, Ordering::Relaxed) {
                0 => {}
                count => log::warn!("{count} events were dropped: the observers of the application did not keep up"),
            }
            match message {
                Message::Event(event) => observers.notify(&event),
                Message::Delivered(done) => _ = done.send(()),
            }
        }
        thread::park_timeout(GATHER);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
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
        assert_eq!(told.dropped.load(Ordering::Relaxed), 7);
        told.flush(Duration::from_millis(1));
        assert!(received.is_empty(), "a flush does not wait for longer");
        drop(open);
        let all: Vec<Event> = (0..=QUEUE).map(|_| received.recv_timeout(PATIENCE).expect("an event")).collect();
        assert!(all.iter().enumerate().all(|(run, found)| *found == event(run)));
        told.flush(PATIENCE);
        assert!(received.is_empty() && told.dropped.load(Ordering::Relaxed) == 0);
    }
}
