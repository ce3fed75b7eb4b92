//! The log of `duly run`: lines pass through a bounded queue to a thread that writes them, so that standard error that is not
//! read delays no other thread. When the queue is full, lines are dropped and counted, and the count is logged.

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded, select};

/// Capacity of the queue, in lines.
const LINES: usize = 1024;
/// Longest time for which [`LogQueue::finish`] waits for the writer.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
/// Wait of the thread before it writes again to an output that would block.
const RETRY: Duration = Duration::from_millis(20);

enum Message {
    Line(Vec<u8>),
    /// Dropped when all lines before it are written.
    Mark {
        _written: Sender<()>,
    },
}

/// The queue of lines.
pub(crate) struct LogQueue {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
}

/// Adds lines to the queue, without blocking.
pub(crate) struct Lines {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
}

impl LogQueue {
    /// Starts the thread that writes to `output`.
    ///
    /// `warning`: formats the line that reports dropped lines.
    pub(crate) fn start(
        output: impl Write + Send + 'static,
        warning: impl Fn(&str) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, queue) = bounded(LINES);
        let dropped = Arc::default();
        let writer = Writer { output, warning, dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("duly-log".into()).spawn(move || writer.run(&queue))?;
        Ok(LogQueue { messages, dropped })
    }

    /// The queue as an output, for a logger.
    pub(crate) fn lines(&self) -> Lines {
        Lines { messages: self.messages.clone(), dropped: Arc::clone(&self.dropped), partial: Vec::new() }
    }

    /// Writes all queued lines and then `last`. Lines that are not written within [`FINISH_LIMIT`] are lost.
    pub(crate) fn finish(&self, last: Option<&str>) {
        let (mark, written) = bounded(0);
        let line = last.map(|text| Message::Line(format!("{text}\n").into_bytes()));
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
            if self.messages.try_send(Message::Line(mem::replace(&mut self.partial, rest))).is_err() {
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
    warning: F,
    dropped: Arc<AtomicU64>,
}

impl<W: Write, F: Fn(&str) -> String> Writer<W, F> {
    fn run(mut self, queue: &Receiver<Message>) {
        let mut unreported = 0;
        while let Ok(message) = queue.recv() {
            match &message {
                Message::Line(line) => self.write(line, 1),
                Message::Mark { .. } => self.report(),
            }
            unreported += 1;
            // Dropped lines are newer than the queued ones. If the queue is never empty, the count is reported regularly.
            if queue.is_empty() || unreported >= LINES {
                self.report();
                unreported = 0;
            }
        }
    }

    /// Logs how many lines were dropped since the last report.
    fn report(&mut self) {
        let count = self.dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            let text = format!("{count} lines of the log were dropped: standard error took no more");
            let notice = (self.warning)(&text);
            self.write(notice.as_bytes(), count);
        }
    }

    /// Writes a text. If that fails, `lines` are counted as dropped.
    fn write(&mut self, mut text: &[u8], lines: u64) {
        while !text.is_empty() {
            match self.output.write(text) {
                Ok(0) => break,
                Ok(written) => text = &text[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        if !text.is_empty() {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINES, LogQueue};
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
            let _ = self.gate.recv();
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
        let queue = LogQueue::start(Gated { begun, gate, taken }, |text| format!("[WARN] {text}\n")).unwrap();
        let mut log = queue.lines();
        // The first line is being written until the gate opens; the others wait, and seven exceed the capacity.
        write!(log, "line {}", 0).unwrap();
        writeln!(log, ".").unwrap();
        begins.recv().unwrap();
        for number in 1..=LINES + 7 {
            writeln!(log, "line {number}.").unwrap();
        }
        queue.finish(None);
        assert!(lines.is_empty(), "nothing was taken, and the end did not wait for it");
        drop(open);
        queue.finish(Some("the end"));
        let lines: Vec<String> = lines.try_iter().collect();
        let (notices, lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.contains("dropped"));
        let expected = (0..=LINES).map(|number| format!("line {number}.")).chain(["the end".to_owned()]);
        assert_eq!(lines, expected.collect::<Vec<_>>());
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(
            notices[0].ends_with("[WARN] 7 lines of the log were dropped: standard error took no more"),
            "{notices:?}"
        );
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
        let queue = LogQueue::start(Stubborn(taken, 0), str::to_owned).unwrap();
        queue.lines().write_all(b"one line\nand another\n").unwrap();
        queue.finish(Some("the end"));
        assert_eq!(bytes.try_iter().collect::<Vec<u8>>(), b"one line\nand another\nthe end\n");
    }
}
