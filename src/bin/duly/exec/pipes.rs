//! Output of a command: it is read without delay, and its beginning and end are kept.

use std::io::{self, Read};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Bytes that are kept of the beginning of a stream.
const HEAD: usize = 16 * 1024;
/// Bytes that are kept of its end.
const TAIL: usize = 48 * 1024;
/// Longest text of either, in bytes: a byte of invalid UTF-8 becomes three when it is replaced.
const HEAD_TEXT: usize = 2 * HEAD;
const TAIL_TEXT: usize = 90 * 1024;
/// Size of the read buffer.
const CHUNK: usize = 32 * 1024;
/// Stack of the reading thread.
const STACK: usize = 128 * 1024;

/// A stream that is being read.
#[derive(Debug)]
pub(crate) struct Drain {
    captured: Arc<Mutex<Captured>>,
}

/// The captured part of a stream.
#[derive(Debug, Default)]
struct Captured {
    head: Vec<u8>,
    /// The newest bytes after the head, up to twice [`TAIL`].
    tail: Vec<u8>,
    total: u64,
    has_ended: bool,
    /// Further output is discarded.
    is_abandoned: bool,
}

impl Drain {
    /// Starts a thread that reads until the end of the stream, and then sends a message to `closed`.
    pub(crate) fn start(name: &str, mut stream: impl Read + Send + 'static, closed: Sender<()>) -> io::Result<Self> {
        let captured = Arc::new(Mutex::new(Captured::default()));
        let shared = captured.clone();
        let read = move || {
            let mut chunk = vec![0; CHUNK];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(count) => lock(&shared).push(&chunk[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            lock(&shared).has_ended = true;
            let _ = closed.send(());
        };
        thread::Builder::new().name(format!("duly-{name}")).stack_size(STACK).spawn(read)?;
        Ok(Drain { captured })
    }

    /// Whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.captured).has_ended
    }

    /// Returns the output so far as text. Later output is read and discarded: a process that left the group of the command and
    /// holds the pipe must not block on it.
    pub(crate) fn text(self) -> String {
        let mut captured = lock(&self.captured);
        captured.is_abandoned = true;
        captured.head_and_tail()
    }
}

impl Captured {
    fn push(&mut self, mut chunk: &[u8]) {
        if self.is_abandoned {
            return;
        }
        self.total += chunk.len() as u64;
        let to_head = chunk.len().min(HEAD - self.head.len());
        self.head.extend_from_slice(&chunk[..to_head]);
        chunk = &chunk[to_head..];
        self.tail.extend_from_slice(chunk);
        if self.tail.len() > 2 * TAIL {
            self.tail.drain(..self.tail.len() - TAIL);
        }
    }

    /// Returns the whole text, or its beginning and end with the total size between them.
    fn head_and_tail(&mut self) -> String {
        let (mut head, mut tail) = (std::mem::take(&mut self.head), std::mem::take(&mut self.tail));
        if self.total <= (HEAD + TAIL) as u64 {
            head.append(&mut tail);
            let text = String::from_utf8_lossy(&head);
            if text.len() <= HEAD_TEXT + TAIL_TEXT {
                return text.into_owned();
            }
            let split = boundary(&text, HEAD_TEXT);
            return self.joined(&text[..split], &text[split..]);
        }
        let tail = &tail[tail.len() - TAIL..];
        // A character that is cut in two is left out, not replaced.
        let begin = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        self.joined(&String::from_utf8_lossy(whole(&head)), &String::from_utf8_lossy(&tail[begin..]))
    }

    fn joined(&self, head: &str, tail: &str) -> String {
        let head = &head[..boundary(head, HEAD_TEXT)];
        let tail = &tail[boundary(tail, tail.len().saturating_sub(TAIL_TEXT))..];
        format!("{head}\n[... {} bytes in all; only the beginning and the end are kept ...]\n{tail}", self.total)
    }
}

/// Returns the last character boundary at or before `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the bytes without an incomplete character at the end.
fn whole(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        // Invalid bytes before it: then all are replaced.
        _ => bytes,
    }
}

/// Joins both streams, with a heading before stderr.
pub(crate) fn join(stdout: String, stderr: &str) -> String {
    if stderr.is_empty() {
        return stdout;
    }
    let line = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    format!("{stdout}{line}--- stderr ---\n{stderr}")
}

fn lock(captured: &Mutex<Captured>) -> MutexGuard<'_, Captured> {
    captured.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Captured, HEAD, TAIL, join};

    fn kept(printed: &[u8], chunk: usize) -> String {
        let mut captured = Captured::default();
        printed.chunks(chunk).for_each(|chunk| captured.push(chunk));
        captured.head_and_tail()
    }

    #[test]
    fn short_output_is_kept_whole_and_of_long_output_the_beginning_and_the_end() {
        for chunk in [1, 7, 1000, 32_768] {
            let fits: Vec<u8> = (0..HEAD + TAIL).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
            assert_eq!(kept(&fits, chunk).as_bytes(), fits);
            let mut long = fits.clone();
            long.splice(HEAD..HEAD, vec![b'-'; 300_000]);
            let text = kept(&long, chunk);
            let (head, rest) = text.split_once('\n').unwrap();
            let (mark, tail) = rest.split_once('\n').unwrap();
            assert_eq!((head.as_bytes(), tail.as_bytes()), (&fits[..HEAD], &fits[HEAD..]));
            assert!(mark.contains(&format!("{} bytes in all", HEAD + TAIL + 300_000)), "{mark}");
        }
    }

    #[test]
    fn invalid_utf8_is_replaced_within_the_size_limit() {
        assert_eq!(kept(b"a\xff\0\x1b[2Jb", 3), "a\u{fffd}\0\u{1b}[2Jb", "control characters stay");
        for size in [HEAD + TAIL, 10 * (HEAD + TAIL)] {
            let noise = kept(&vec![0xff; size], 999);
            assert!(noise.contains(&format!("{size} bytes in all")));
            let both = join(noise.clone(), &noise);
            assert!(both.len() <= duly::command::MAX_OUTPUT_BYTES, "{}", both.len());
        }
        // A character across each cut is left out, not broken.
        let text = kept("aé€".repeat(100_000).as_bytes(), 4096);
        assert!(!text.contains('\u{fffd}'));
    }

    #[test]
    fn stderr_has_a_heading() {
        assert_eq!(join("out\n".into(), ""), "out\n");
        assert_eq!(join("out".into(), "err\n"), "out\n--- stderr ---\nerr\n");
        assert_eq!(join(String::new(), "err"), "--- stderr ---\nerr");
    }
}
