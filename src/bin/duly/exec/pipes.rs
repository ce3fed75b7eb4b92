//! What a command prints: drained as fast as it comes, the beginning and the end of it kept.

use std::io::{self, Read};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// How much of the beginning of a stream is kept, in bytes.
const HEAD: usize = 16 * 1024;
/// How much of its end.
const TAIL: usize = 48 * 1024;
/// Longest text that may come of either, in bytes: whatever is no UTF-8 grows threefold when it is replaced.
const HEAD_TEXT: usize = 2 * HEAD;
const TAIL_TEXT: usize = 90 * 1024;
/// How much is read at once.
const CHUNK: usize = 32 * 1024;
/// The thread that reads needs little more than that.
const STACK: usize = 128 * 1024;

/// A stream that is being read.
#[derive(Debug)]
pub(crate) struct Drain {
    kept: Arc<Mutex<Kept>>,
}

/// What is kept of it.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    /// What followed, up to twice [`TAIL`] of the newest.
    tail: Vec<u8>,
    total: u64,
    has_ended: bool,
    /// Nobody will ask any more.
    is_abandoned: bool,
}

impl Drain {
    /// Reads until the end, on a thread of its own; `told` hears of the end.
    pub(crate) fn start(name: &str, mut stream: impl Read + Send + 'static, told: Sender<()>) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = kept.clone();
        let read = move || {
            let mut chunk = vec![0; CHUNK];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(count) => lock(&shared).take(&chunk[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            lock(&shared).has_ended = true;
            let _ = told.send(());
        };
        thread::Builder::new().name(format!("duly-{name}")).stack_size(STACK).spawn(read)?;
        Ok(Drain { kept })
    }

    /// Whether all has been read.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.kept).has_ended
    }

    /// What was printed so far, as text. Whatever still comes is read and thrown away, for as long as somebody holds the
    /// other end: a process that left the command's group must not be stopped by a pipe that nobody reads.
    pub(crate) fn text(self) -> String {
        let mut kept = lock(&self.kept);
        kept.is_abandoned = true;
        kept.head_and_tail()
    }
}

impl Kept {
    fn take(&mut self, mut chunk: &[u8]) {
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

    /// The text: all of it, or its beginning and end with a line between that tells how much there was.
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
        // A character that was cut in two is no fault of the command's.
        let begin = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        self.joined(&String::from_utf8_lossy(whole(&head)), &String::from_utf8_lossy(&tail[begin..]))
    }

    fn joined(&self, head: &str, tail: &str) -> String {
        let head = &head[..boundary(head, HEAD_TEXT)];
        let tail = &tail[boundary(tail, tail.len().saturating_sub(TAIL_TEXT))..];
        format!("{head}\n[... {} bytes in all; only the beginning and the end are kept ...]\n{tail}", self.total)
    }
}

/// Where a character begins, at or shortly before `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Without the first bytes of a character that goes on behind the end.
fn whole(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        // There may be other faults before a last one of this kind: then they are all replaced alike.
        _ => bytes,
    }
}

/// Both streams as one text: what was printed, and under a heading the complaints.
pub(crate) fn join(stdout: String, stderr: &str) -> String {
    if stderr.is_empty() {
        return stdout;
    }
    let line = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    format!("{stdout}{line}--- stderr ---\n{stderr}")
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{HEAD, Kept, TAIL, join};

    fn kept(printed: &[u8], chunk: usize) -> String {
        let mut kept = Kept::default();
        printed.chunks(chunk).for_each(|chunk| kept.take(chunk));
        kept.head_and_tail()
    }

    #[test]
    fn what_fits_is_kept_whole_and_of_the_rest_the_beginning_and_the_end() {
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
    fn what_is_no_text_is_replaced_and_never_more_than_can_be_stored() {
        assert_eq!(kept(b"a\xff\0\x1b[2Jb", 3), "a\u{fffd}\0\u{1b}[2Jb", "control characters stay");
        for size in [HEAD + TAIL, 10 * (HEAD + TAIL)] {
            let noise = kept(&vec![0xff; size], 999);
            assert!(noise.contains(&format!("{size} bytes in all")));
            let both = join(noise.clone(), &noise);
            assert!(both.len() <= duly::MAX_OUTPUT_BYTES, "{}", both.len());
        }
        // A character across each cut is left out, not broken.
        let text = kept("aé€".repeat(100_000).as_bytes(), 4096);
        assert!(!text.contains('\u{fffd}'));
    }

    #[test]
    fn complaints_stand_under_a_heading() {
        assert_eq!(join("out\n".into(), ""), "out\n");
        assert_eq!(join("out".into(), "err\n"), "out\n--- stderr ---\nerr\n");
        assert_eq!(join(String::new(), "err"), "--- stderr ---\nerr");
    }
}
