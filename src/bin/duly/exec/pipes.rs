//! Output of a command: it is read without delay, and its beginning and end are kept.

use std::io::{self, Read};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::exec::text;
use crate::output::forward::{ForwardedLines, Stream};

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

/// A thread that waits for the stream that it is to read.
pub(crate) struct Prepared<R> {
    drain: Drain,
    stream: Sender<R>,
}

impl<R> Prepared<R> {
    /// Begins to read a stream.
    pub(crate) fn read(self, stream: R) -> Drain {
        // The thread waits for it.
        let _ = self.stream.send(stream);
        self.drain
    }
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
    /// Where each line is copied to, until the stream has ended or is abandoned.
    forward: Option<ForwardedLines>,
}

impl Drain {
    /// Starts a thread that reads the stream that it is sent until its end, and then sends a message to `closed`.
    /// `forward`: where each of its lines is copied to.
    pub(crate) fn start<R: Read + Send + 'static>(
        name: Stream,
        forward: Option<ForwardedLines>,
        closed: Sender<()>,
    ) -> io::Result<Prepared<R>> {
        let captured = Arc::new(Mutex::new(Captured { forward, ..Captured::default() }));
        let shared = captured.clone();
        let (sender, streams) = channel::<R>();
        let read = move || {
            // The command may not have been started.
            let Ok(mut stream) = streams.recv() else { return };
            let mut chunk = vec![0; CHUNK];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(count) => {
                        let mut captured = lock(&shared);
                        if !captured.is_abandoned {
                            captured.push(&chunk[..count]);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            let mut captured = lock(&shared);
            captured.forward_end();
            captured.has_ended = true;
            drop(captured);
            let _ = closed.send(());
        };
        thread::Builder::new().name(format!("duly-{}", name.as_str())).stack_size(STACK).spawn(read)?;
        Ok(Prepared { drain: Drain { captured }, stream: sender })
    }

    /// Whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.captured).has_ended
    }

    /// Returns how many bytes were read.
    pub(crate) fn total(&self) -> u64 {
        lock(&self.captured).total
    }

    /// Returns the output so far as text.
    pub(crate) fn so_far(&self) -> String {
        lock(&self.captured).text()
    }

    /// Returns the output as text. Later output is read and discarded: a process that left the group of the command and holds
    /// the pipe must not block on it.
    pub(crate) fn into_text(self) -> String {
        let mut captured = lock(&self.captured);
        captured.is_abandoned = true;
        captured.forward_end();
        captured.text()
    }
}

impl Captured {
    /// Keeps what belongs to the beginning and the end of the stream, and copies its lines.
    fn push(&mut self, mut chunk: &[u8]) {
        self.forward.iter_mut().for_each(|lines| lines.push(chunk));
        self.total += chunk.len() as u64;
        let to_head = chunk.len().min(HEAD - self.head.len());
        self.head.extend_from_slice(&chunk[..to_head]);
        chunk = &chunk[to_head..];
        self.tail.extend_from_slice(chunk);
        if self.tail.len() > 2 * TAIL {
            self.tail.drain(..self.tail.len() - TAIL);
        }
    }

    /// Queues the last line, also one without a line end, before the run can end: the log line about its end follows.
    fn forward_end(&mut self) {
        self.forward = None;
    }

    /// Returns the whole text, or its beginning and end with the total size between them. While the stream has not ended, without
    /// the beginning of a character whose other bytes follow.
    fn text(&self) -> String {
        let is_over = self.has_ended || self.is_abandoned;
        if self.total <= (HEAD + TAIL) as u64 {
            let all = [&*self.head, &*self.tail].concat();
            let text = String::from_utf8_lossy(if is_over { &all } else { complete(&all) });
            if text.len() <= HEAD_TEXT + TAIL_TEXT {
                return text.into_owned();
            }
            let split = boundary(&text, HEAD_TEXT);
            return joined(self.total, &text[..split], &text[split..]);
        }
        let tail = &self.tail[self.tail.len() - TAIL..];
        // A character that is cut in two is left out, not replaced.
        let begin = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        let end = if is_over { tail.len() } else { complete(tail).len() };
        let total = self.total - (tail.len() - end) as u64;
        let head = String::from_utf8_lossy(complete(&self.head));
        joined(total, &head, &String::from_utf8_lossy(&tail[begin..end]))
    }
}

fn joined(total: u64, head: &str, tail: &str) -> String {
    let head = &head[..boundary(head, HEAD_TEXT)];
    let tail = &tail[boundary(tail, tail.len().saturating_sub(TAIL_TEXT))..];
    text::cut(head, total, tail)
}

/// Returns the last character boundary at or before `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the bytes without an incomplete character at the end.
pub(crate) fn complete(bytes: &[u8]) -> &[u8] {
    let length = |first: u8| match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let last = bytes.iter().rev().take(3).position(|byte| byte & 0xC0 != 0x80);
    match last {
        Some(after) if length(bytes[bytes.len() - after - 1]) > after + 1 => &bytes[..bytes.len() - after - 1],
        _ => bytes,
    }
}

fn lock(captured: &Mutex<Captured>) -> MutexGuard<'_, Captured> {
    captured.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Captured, HEAD, TAIL};
    use crate::exec::text::{Place, join, parse};

    fn kept(printed: &[u8], chunk: usize) -> String {
        let mut captured = Captured { has_ended: true, ..Captured::default() };
        printed.chunks(chunk).for_each(|chunk| captured.push(chunk));
        captured.text()
    }

    /// What a reader prints that looks at a stream after each of these pieces.
    fn followed(pieces: &[&[u8]]) -> String {
        let (mut captured, mut place, mut printed) = (Captured::default(), Place::default(), String::new());
        for (at, piece) in pieces.iter().enumerate() {
            captured.push(piece);
            captured.has_ended = at + 1 == pieces.len();
            let text = captured.text();
            let news = place.next(&parse(&text)[0]);
            printed += news.before;
            if news.omitted > 0 {
                printed += &format!("<{}>", news.omitted);
            }
            printed += news.after;
        }
        printed
    }

    #[test]
    fn a_stream_that_is_followed_is_printed_once_and_its_gaps_are_counted() {
        assert_eq!(followed(&[b"a\n", b"", b"b", b"c\n"]), "a\nbc\n");
        // A character in two pieces, and one that never ends.
        assert_eq!(followed(&[b"\xe2\x82", b"\xac\xf0\x9f", b"\x98"]), "\u{20ac}\u{fffd}");
        let line = |n: usize| format!("{n:07}\n").into_bytes();
        let lines = |from: usize, to: usize| (from..to).flat_map(line).collect::<Vec<u8>>();
        // Looked at often enough, long output is printed whole.
        let pieces: Vec<Vec<u8>> = (0..40).map(|n| lines(n * 1000, (n + 1) * 1000)).collect();
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        assert!(followed(&slices).as_bytes() == pieces.concat());
        // Of a piece that is longer than what is kept, the beginning and the end are printed, and the size of the gap.
        let all = lines(0, 20_000);
        let expected = |from: usize, gap: usize| {
            let beginning = String::from_utf8(lines(0, from)).unwrap();
            let end = String::from_utf8(all[all.len() - TAIL..].to_vec()).unwrap();
            format!("{beginning}<{gap}>{end}")
        };
        let cut = all.len() - TAIL;
        assert!(followed(&[&all[..800], &all[800..]]) == expected(HEAD / 8, cut - HEAD));
        assert!(followed(&[&all[..40_000], &all[40_000..]]) == expected(5000, cut - 40_000));
        // The end of the text is not that of a line, and characters are several bytes long.
        let letters = "\u{e9}\u{20ac}".repeat(40_000);
        let text = followed(&[&letters.as_bytes()[..70_000], &letters.as_bytes()[70_000..]]);
        assert!(text.contains('<') && !text.contains('\u{fffd}'));
        assert_eq!(followed(&[&all[..70_000], &all[70_000..100_000]]).as_bytes()[..HEAD], all[..HEAD]);
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
}
