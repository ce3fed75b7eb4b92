//! `run --forward-output`: the lines that commands print, copied to standard output and standard error of the program. Lines of
//! several commands do not mix within a line. They pass through the bounded queues of [`log_queue`](crate::output::log_queue): if a
//! reader is slow, lines are dropped and counted, and no command waits.

use std::io::Write;
use std::mem;

use serde::Serialize;

use crate::output::escape;
use crate::output::log_queue::Blocks;
use crate::output::printer::JsonText;

/// Longest line, in bytes as the command printed them. A longer one is copied in pieces.
const MAX_LINE: usize = 8 * 1024;
/// Size from which lines are queued as one block, in bytes.
const BLOCK: usize = 32 * 1024;

/// A stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Where the lines of commands are copied to.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    pub(crate) stdout: Blocks,
    pub(crate) stderr: Blocks,
    /// Each line is a JSON object.
    pub(crate) json: bool,
}

impl Forward {
    /// Returns the copy of a stream of a run's command.
    pub(crate) fn lines(&self, stream: Stream, task: &str, run: i64) -> ForwardedLines {
        let blocks = match stream {
            Stream::Stdout => self.stdout.clone(),
            Stream::Stderr => self.stderr.clone(),
        };
        let form = if self.json {
            Form::Json { task: task.to_owned(), run, stream }
        } else {
            Form::Text { prefix: format!("{}: ", escape::one_line(task)) }
        };
        ForwardedLines { blocks, form, partial: Vec::new(), block: Vec::new(), count: 0 }
    }
}

/// The copy of one stream. When it is dropped, its last line is queued, also one without a line end.
#[derive(Debug)]
pub(crate) struct ForwardedLines {
    blocks: Blocks,
    form: Form,
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
    /// Lines that are not queued yet, and their number.
    block: Vec<u8>,
    count: u64,
}

#[derive(Debug)]
enum Form {
    Text { prefix: String },
    Json { task: String, run: i64, stream: Stream },
}

#[derive(Serialize)]
struct JsonLine<'a> {
    task: &'a str,
    run: i64,
    stream: &'a str,
    line: &'a str,
}

impl ForwardedLines {
    /// Queues the lines that this piece of the stream completes.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, has_ended) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.partial.extend_from_slice(text);
            while self.partial.len() > MAX_LINE {
                let end = (1..=MAX_LINE).rev().find(|at| self.partial[*at] & 0xC0 != 0x80).unwrap_or(MAX_LINE);
                let rest = self.partial.split_off(end);
                self.line();
                self.partial = rest;
            }
            if has_ended {
                self.line();
            }
        }
        self.send();
    }

    /// Adds the partial line to the block.
    fn line(&mut self) {
        let line = mem::take(&mut self.partial);
        let line = String::from_utf8_lossy(&line);
        match &self.form {
            Form::Text { prefix } => {
                self.block.extend_from_slice(prefix.as_bytes());
                self.block.extend_from_slice(escape::one_line(&line).as_bytes());
            }
            Form::Json { task, run, stream } => {
                let line = JsonLine { task, run: *run, stream: stream.as_str(), line: &line };
                // Neither strings nor a vector can fail.
                let json = serde_json::to_string(&line).unwrap_or_default();
                let _ = JsonText(&mut self.block).write_all(json.as_bytes());
            }
        }
        self.block.push(b'\n');
        self.count += 1;
        if self.block.len() >= BLOCK {
            self.send();
        }
    }

    fn send(&mut self) {
        if self.count > 0 {
            self.blocks.send(mem::take(&mut self.block), mem::take(&mut self.count));
        }
    }
}

impl Drop for ForwardedLines {
    fn drop(&mut self) {
        if !self.partial.is_empty() {
            self.line();
        }
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::{Forward, MAX_LINE, Stream};
    use crate::output::log_queue::LogQueue;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what is written of the pieces of one stream.
    fn forwarded(json: bool, pieces: &[&[u8]]) -> String {
        let out = Shared::default();
        let queue = LogQueue::start("test", out.clone(), |_| String::new()).unwrap();
        let mut lines =
            Forward { stdout: queue.blocks("it"), stderr: queue.blocks("it"), json }.lines(Stream::Stderr, "t", 7);
        pieces.iter().for_each(|piece| lines.push(piece));
        drop(lines);
        queue.finish(None);
        let bytes = out.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_have_the_name_of_the_task_and_no_control_characters() {
        assert_eq!(
            forwarded(false, &[b"a\nb", b"c\n\n", b"\x1b[2J\xff\xe2\x82", b"\xac"]),
            "t: a\nt: bc\nt: \nt: \\u{1b}[2J\u{fffd}\u{20ac}\n"
        );
        let json = forwarded(true, &[b"a \"b\"\x1b\xc2\x9b\n"]);
        assert_eq!(json, "{\"task\":\"t\",\"run\":7,\"stream\":\"stderr\",\"line\":\"a \\\"b\\\"\\u001b\\u009b\"}\n");
    }

    #[test]
    fn a_long_line_is_copied_in_pieces() {
        let long = "é".repeat(3 * MAX_LINE);
        let text = forwarded(false, &[long.as_bytes(), b"\nend\n"]);
        assert!(text.lines().all(|line| line.len() <= MAX_LINE + 3) && !text.contains('\u{fffd}'));
        assert_eq!(text.lines().map(|line| &line[3..]).collect::<String>(), long + "end");
    }
}
