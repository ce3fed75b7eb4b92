//! What a worker is to read: the scheduler's loop adds to it and never waits, one thread writes it.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::workers::protocol::AttemptId;

/// Bytes above which a worker gets no further runs, and its own requests are no longer read.
const FULL: usize = 1024 * 1024;

/// A part of what is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The message that hands over this attempt.
    Run(AttemptId),
    /// A line.
    Line(Vec<u8>),
}

/// The queue of the thread that writes.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// The writer waits for items.
    filled: Condvar,
    /// Others wait until there is room, or it is closed.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    items: Vec<Item>,
    /// The size of the items, and of those that are being written.
    bytes: usize,
    taken: usize,
    /// The writer waits.
    is_awaited: bool,
    is_closed: bool,
}

impl Outbox {
    /// Adds an item of about this size. Does nothing if the outbox is closed.
    pub(crate) fn push(&self, item: Item, bytes: usize) {
        let mut queue = self.queue();
        if !queue.is_closed {
            queue.items.push(item);
            queue.bytes += bytes;
            // A call to the kernel for each item would cost more than the item.
            if mem::take(&mut queue.is_awaited) {
                self.filled.notify_one();
            }
        }
    }

    pub(crate) fn push_line(&self, line: Vec<u8>) {
        let bytes = line.len();
        self.push(Item::Line(line), bytes);
    }

    /// Whether so much is queued that nothing should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.queue().bytes > FULL
    }

    /// Waits until it is not full, or closed.
    pub(crate) fn wait_for_room(&self) {
        let queue = self.queue();
        drop(self.emptied.wait_while(queue, |queue| queue.bytes > FULL && !queue.is_closed));
    }

    /// Closes it: what is queued is still written.
    pub(crate) fn close(&self, last: Option<Vec<u8>>) {
        let mut queue = self.queue();
        if !queue.is_closed {
            queue.items.extend(last.map(Item::Line));
            queue.is_closed = true;
        }
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Waits until it is closed, up to `limit`. Returns whether it is.
    pub(crate) fn wait_closed(&self, limit: Duration) -> bool {
        let waited = self.emptied.wait_timeout_while(self.queue(), limit, |queue| !queue.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// Waits for items, and takes all of them. `false`: it is closed and empty.
    pub(crate) fn take(&self, into: &mut Vec<Item>) -> bool {
        let waited = self.filled.wait_while(self.queue(), |queue| {
            queue.is_awaited = queue.items.is_empty() && !queue.is_closed;
            queue.is_awaited
        });
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        into.clear();
        mem::swap(&mut queue.items, into);
        queue.taken = queue.bytes;
        !into.is_empty()
    }

    /// What was taken is written. Returns whether it was full, and no longer is.
    pub(crate) fn written(&self) -> bool {
        let mut queue = self.queue();
        let was_full = queue.bytes > FULL;
        queue.bytes -= mem::take(&mut queue.taken);
        self.emptied.notify_all();
        was_full && queue.bytes <= FULL
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL, Item, Outbox};
    use crate::workers::protocol::AttemptId;

    #[test]
    fn all_items_are_taken_at_once_and_count_until_they_are_written() {
        let (outbox, mut items) = (Outbox::default(), Vec::new());
        let run = AttemptId { run: 7, attempt: 1 };
        outbox.push(Item::Run(run), FULL);
        assert!(!outbox.is_full());
        outbox.push_line(b"a\n".to_vec());
        assert!(outbox.is_full());
        assert!(outbox.take(&mut items));
        assert_eq!(items, [Item::Run(run), Item::Line(b"a\n".to_vec())]);
        assert!(outbox.is_full() && outbox.written() && !outbox.is_full());
        outbox.close(Some(b"end\n".to_vec()));
        outbox.push_line(b"late\n".to_vec());
        outbox.wait_for_room();
        assert!(outbox.take(&mut items) && !outbox.written());
        assert_eq!(items, [Item::Line(b"end\n".to_vec())]);
        assert!(!outbox.take(&mut items));
    }
}
