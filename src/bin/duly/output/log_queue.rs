//! The log of `duly run`, and the output of commands that it copies: lines pass through a bounded queue to a thread that writes
//! them, so that an output that is not read delays no other thread. When the queue is full, lines are dropped and counted, and
//! the count is logged.

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded, select};
use duly::{Clock, SystemClock};

/// Capacity of the queue, in lines of the log and blocks of lines.
const LINES: usize = 1024;
/// Largest size of all queued blocks, in bytes.
const BLOCKS: usize = 4 * 1024 * 1024;
/// Longest time for which [`LogQueue::finish`] waits for the writer.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
/// Wait of the thread before it writes again to an output that would block.
const RETRY: Duration = Duration::from_millis(20);
/// Shortest time between two reports of dropped lines, unless the queue ends.
const REPORT: Duration = Duration::from_secs(10);

enum Message {
    /// Whole lines, and their number.
    Lines { text: Vec<u8>, count: u64, _reserved: Option<Reserved> },
    /// Dropped when all lines before it are written.
    Mark { _written: Sender<()> },
}

impl Message {
    fn line(text: Vec<u8>) -> Self {
        Message::Lines { text, count: 1, _reserved: None }
    }
}

/// The size of all queued blocks.
#[derive(Debug, Default)]
struct Queued {
    bytes: AtomicUsize,
    lines: AtomicU64,
}

/// The size of a queued block. Released when it is dropped.
struct Reserved {
    queued: Arc<Queued>,
    bytes: usize,
    lines: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.queued.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.queued.lines.fetch_sub(self.lines, Ordering::Relaxed);
    }
}

/// The queue of lines.
#[derive(Clone)]
pub(crate) struct LogQueue {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
    queued: Arc<Queued>,
}

/// Adds lines to the queue, without blocking.
pub(crate) struct Lines {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
}

/// Adds blocks of whole lines to the queue, without blocking. All of them share [`BLOCKS`] bytes: the rest of the queue is left
/// to the log.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
    queued: Arc<Queued>,
    output: &'static str,
}

impl Blocks {
    /// Queues a block of `count` lines. Logs the first ones that are dropped: the writer, which reports their number, may block.
    pub(crate) fn send(&self, text: Vec<u8>, count: u64) {
        let bytes = text.len();
        let before = self.queued.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.queued.lines.fetch_add(count, Ordering::Relaxed);
        let reserved = Reserved { queued: Arc::clone(&self.queued), bytes, lines: count };
        let is_full = before + bytes > BLOCKS;
        if is_full || self.messages.try_send(Message::Lines { text, count, _reserved: Some(reserved) }).is_err() {
            let before = self.dropped.fetch_add(count, Ordering::Relaxed);
            if before == 0 {
                log::warn!("{} takes no more: lines that commands print are dropped", self.output);
            }
        }
    }
}

impl LogQueue {
    /// Starts the thread that writes to `output`. `name`: that of the thread.
    ///
    /// `report`: reports the number of dropped lines. What it returns is written to `output`.
    pub(crate) fn start(
        name: &str,
        output: impl Write + Send + 'static,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, queue) = bounded(LINES);
        let dropped = Arc::default();
        let writer =
            Writer { output, report, dropped: Arc::clone(&dropped), clock: SystemClock::new(), reported: None };
        thread::Builder::new().name(name.to_owned()).spawn(move || writer.run(&queue))?;
        Ok(LogQueue { messages, dropped, queued: Arc::default() })
    }

    /// The queue as an output, for blocks of lines.
    ///
    /// `output`: its name, for the warning that lines are being dropped.
    pub(crate) fn blocks(&self, output: &'static str) -> Blocks {
        let (dropped, queued) = (Arc::clone(&self.dropped), Arc::clone(&self.queued));
        Blocks { messages: self.messages.clone(), dropped, queued, output }
    }

    /// Returns how many lines are lost if the program ends now: those dropped since the last report, and those of queued blocks.
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed) + self.queued.lines.load(Ordering::Relaxed)
    }

    /// The queue as an output, for a logger.
    pub(crate) fn lines(&self) -> Lines {
        Lines { messages: self.messages.clone(), dropped: Arc::clone(&self.dropped), partial: Vec::new() }
    }

    /// Writes all queued lines and then `last`. Lines that are not written within [`FINISH_LIMIT`] are lost.
    pub(crate) fn finish(&self, last: Option<&str>) {
        let (mark, written) = bounded(0);
        let line = last.map(|text| Message::line(format!("{text}\n").into_bytes()));
        let limit = after(FINISH_LIMIT);
        for message in line.into_iter().chain([Message::Mark { _written: mark }]) {
            select! {
                send(self.messages, message) -> _ => {}
                recv(limit) -> _ => return,
            }
        }
        select! {
            recv(written) -> _ => {}
            recv(limit) -> _ => {}
        }
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let rest = self.partial.split_off(end + 1);
            if self.messages.try_send(Message::line(mem::replace(&mut self.partial, rest))).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Writer<W, F> {
    output: W,
    report: F,
    dropped: Arc<AtomicU64>,
    clock: SystemClock,
    /// When dropped lines were last reported, by the monotonic clock.
    reported: Option<Duration>,
}

impl<W: Write, F: Fn(u64) -> String> Writer<W, F> {
    fn run(mut self, queue: &Receiver<Message>) {
        let mut unreported = 0;
        while let Ok(message) = queue.recv() {
            match &message {
                Message::Lines { text, count, .. } => self.write(text, *count),
                Message::Mark { .. } => self.report(Duration::ZERO),
            }
            unreported += 1;
            // Dropped lines are newer than the queued ones. If the queue is never empty, the count is reported regularly.
            if queue.is_empty() || unreported >= LINES {
                self.report(REPORT);
                unreported = 0;
            }
        }
    }

    /// Reports how many lines were dropped since the last report, unless that was less than `pace` ago.
    fn report(&mut self, pace: Duration) {
        if self.dropped.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = self.clock.now().monotonic;
        if self.reported.is_some_and(|reported| now < reported + pace) {
            return;
        }
        self.reported = Some(now);
        let count = self.dropped.swap(0, Ordering::Relaxed);
        let notice = (self.report)(count);
        self.write(notice.as_bytes(), count);
    }

    /// Writes a text. If that fails, `lines` are counted as dropped.
    fn write(&mut self, mut text: &[u8], lines: u64) {
        let written = loop {
            // Standard output buffers a part of what it took.
            let result = match text {
                [] => self.output.flush().map(|()| 0),
                _ => self.output.write(text),
            };
            match result {
                Ok(0) => break text.is_empty(),
                Ok(written) => text = &text[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(_) => break false,
            }
        };
        if !written {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINES, LogQueue};
    use crate::waits::{held, receive};
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    use std::io::{self, Write};

    /// An output that takes a line when the test opens its gate.
    struct Gated {
        begun: Sender<()>,
        gate: Receiver<()>,
        taken: Sender<String>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let _ = held(&self.gate);
            let _ = self.taken.send(String::from_utf8_lossy(bytes).trim_end().to_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_lines_and_logs_their_number() {
        let (begun, begins) = unbounded();
        let (open, gate) = bounded(0);
        let (taken, lines) = unbounded();
        let queue =
            LogQueue::start("test", Gated { begun, gate, taken }, |count| format!("[WARN] {count} lines\n")).unwrap();
        let mut log = queue.lines();
        // The first line is being written until the gate opens; the others wait, and seven exceed the capacity.
        write!(log, "line {}", 0).unwrap();
        writeln!(log, ".").unwrap();
        receive(&begins, "the first line");
        for number in 1..=LINES + 7 {
            writeln!(log, "line {number}.").unwrap();
        }
        queue.finish(None);
        assert!(lines.is_empty(), "nothing was taken, and the end did not wait for it");
        drop(open);
        queue.finish(Some("the end"));
        let lines: Vec<String> = lines.try_iter().collect();
        let (notices, lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.contains("[WARN]"));
        let expected = (0..=LINES).map(|number| format!("line {number}.")).chain(["the end".to_owned()]);
        assert_eq!(lines, expected.collect::<Vec<_>>());
        assert_eq!(notices, ["[WARN] 7 lines"]);
    }

    #[test]
    fn blocks_that_are_not_written_at_the_end_are_lost_lines() {
        let (begun, begins) = unbounded();
        let (open, gate) = bounded(0);
        let (taken, lines) = unbounded();
        let queue = LogQueue::start("test", Gated { begun, gate, taken }, |_| String::new()).unwrap();
        let blocks = queue.blocks("it");
        blocks.send(b"1\n2\n".to_vec(), 2);
        blocks.send(b"3\n".to_vec(), 1);
        receive(&begins, "the first line");
        queue.finish(None);
        assert_eq!((queue.lost(), lines.len()), (3, 0));
        drop(open);
        queue.finish(None);
        assert_eq!((queue.lost(), lines.len()), (0, 2));
    }

    /// Takes small pieces, and refuses each piece twice.
    struct Stubborn(Sender<u8>, usize);

    impl Write for Stubborn {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 % 3 {
                1 => Err(io::ErrorKind::Interrupted.into()),
                2 => Err(io::ErrorKind::WouldBlock.into()),
                _ => {
                    let piece = &bytes[..bytes.len().min(4)];
                    piece.iter().for_each(|byte| self.0.send(*byte).unwrap());
                    Ok(piece.len())
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_would_block_loses_nothing() {
        let (taken, bytes) = unbounded();
        let queue = LogQueue::start("test", Stubborn(taken, 0), |count| count.to_string()).unwrap();
        queue.lines().write_all(b"one line\nand another\n").unwrap();
        queue.finish(Some("the end"));
        assert_eq!(bytes.try_iter().collect::<Vec<u8>>(), b"one line\nand another\nthe end\n");
    }
}
