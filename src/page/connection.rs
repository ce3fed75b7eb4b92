//! Connections: a bounded number, each with a deadline for a slow reader.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};

/// Time for the client to close a connection that the server has closed for writing.
const LINGER: Duration = Duration::from_millis(500);
/// Bytes that are read and discarded meanwhile.
const MAX_LINGER_BYTES: usize = 64 * 1024;

/// A connection that fails if the client does not take a whole answer within a time limit.
pub(super) struct Connection {
    io: TokioIo<TcpStream>,
    write_limit: Duration,
    /// Set while an answer waits for the client; cleared when all of the answer is written.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes discarded after the shutdown; `None` before.
    discarded: Option<usize>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, write_limit: Duration) -> Self {
        Connection { io: TokioIo::new(stream), write_limit, deadline: None, discarded: None }
    }

    /// Replaces a wait by an error once the deadline has passed. Progress does not move the deadline: a client that takes a byte now
    /// and then has no more time.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            return progress;
        }
        let limit = self.write_limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Reads and discards what the client still sends. A connection that is closed with unread data is reset, and the client may
    /// lose the answer that it has not read.
    fn discard(&mut self, cx: &mut Context<'_>, mut discarded: usize) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        while discarded < MAX_LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut self.io).poll_read(cx, buffer.unfilled());
            self.discarded = Some(discarded);
            match ready!(self.in_time(cx, read)) {
                Ok(()) if !buffer.filled().is_empty() => discarded += buffer.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Read for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper flushes when it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_ready() {
            self.deadline = None;
        }
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let discarded = match self.discarded {
            Some(discarded) => discarded,
            None => {
                ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
                self.deadline = Some(Box::pin(sleep(LINGER)));
                0
            }
        };
        self.discard(cx, discarded)
    }
}

/// The open connections of a server, oldest first.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Slot>,
}

struct Slot {
    answering: Answering,
    /// `None` until the task of the connection has started.
    task: Option<AbortHandle>,
}

/// Whether an answer to a request of this connection is being made. It is in the extensions of each request.
#[derive(Clone, Default)]
pub(super) struct Answering(Arc<AtomicBool>);

impl Answering {
    /// Marks the connection until the returned value is dropped.
    pub(super) fn begin(&self) -> impl Drop + use<> {
        self.0.store(true, Ordering::Relaxed);
        Answered(self.clone())
    }
}

struct Answered(Answering);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// Removes a connection from the table when it ends.
pub(super) struct Place {
    connections: Connections,
    id: u64,
    pub(super) answering: Answering,
}

impl Connections {
    /// Adds a connection. If there were `limit`, the oldest one is closed of those that wait for their client, or the oldest of all
    /// if each makes an answer: new connections are always served.
    pub(super) fn add(&self, limit: usize) -> Place {
        let mut table = self.lock();
        if table.open.len() >= limit {
            let idle = table.open.iter().find(|(_, slot)| !slot.answering.0.load(Ordering::Relaxed));
            if let Some(id) = idle.or(table.open.first_key_value()).map(|(id, _)| *id)
                && let Some(task) = table.open.remove(&id).and_then(|slot| slot.task)
            {
                task.abort();
            }
        }
        let (id, answering) = (table.next, Answering::default());
        table.next += 1;
        table.open.insert(id, Slot { answering: answering.clone(), task: None });
        Place { connections: self.clone(), id, answering }
    }

    /// Records the task of a connection.
    pub(super) fn started(&self, id: u64, task: AbortHandle) {
        if let Some(slot) = self.lock().open.get_mut(&id) {
            slot.task = Some(task);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.id);
    }
}
