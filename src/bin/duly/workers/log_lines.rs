//! Log lines of a worker: those of its standard error and its messages `log`. They are escaped, and limited in length and number.

use std::io::Read;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duly::{Clock, SystemClock};
use log::Level;

use crate::output::escape;

/// Longest line, in bytes. A longer one of standard error is logged in pieces.
const MAX_LINE: usize = 1024;
/// Bytes of standard error that are read at once.
const CHUNK: usize = 8 * 1024;
/// Most lines that are logged in a second.
const MAX_RATE: u32 = 500;
/// Most characters of the last line that an error quotes.
const QUOTED: usize = 200;

/// The log of one process.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLog {
    /// `worker mail`.
    label: Arc<str>,
    written: Arc<Mutex<Written>>,
    clock: SystemClock,
}

#[derive(Debug, Default)]
struct Written {
    /// The newest line of standard error that is not empty.
    last: String,
    /// The begin of the current second, the lines in it, and those that were dropped.
    second: Duration,
    count: u32,
    dropped: u64,
    has_ended: bool,
}

impl WorkerLog {
    pub(crate) fn new(label: &str) -> Self {
        WorkerLog { label: label.into(), written: Arc::default(), clock: SystemClock::new() }
    }

    /// Logs a line, unless there are too many. `run`: the run that it is about.
    pub(crate) fn line(&self, level: Level, run: Option<i64>, text: &str) {
        let (is_allowed, dropped) = self.written().admit(self.clock.now().monotonic);
        if dropped > 0 {
            log::warn!("{}: {dropped} lines were dropped: it logs more than {MAX_RATE} in a second", self.label);
        }
        if !is_allowed {
            return;
        }
        let end = (0..=MAX_LINE.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let (text, more) = (escape::one_line(&text[..end]), if end < text.len() { " ..." } else { "" });
        match run {
            Some(run) => log::log!(level, "{}: run {run}: {text}{more}", self.label),
            None => log::log!(level, "{}: {text}{more}", self.label),
        }
    }

    /// Logs each line of standard error until the stream ends.
    pub(crate) fn drain(&self, mut stderr: impl Read) {
        let (mut chunk, mut partial) = (vec![0; CHUNK], Vec::new());
        loop {
            match stderr.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => self.push(&mut partial, &chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if !partial.is_empty() {
            self.stderr_line(&partial);
        }
        self.written().has_ended = true;
    }

    /// Whether standard error has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.written().has_ended
    }

    /// Returns the last line of standard error, escaped. `None`: it was empty.
    pub(crate) fn last(&self) -> Option<String> {
        let last: String = self.written().last.chars().take(QUOTED).collect();
        (!last.is_empty()).then(|| escape::one_line(&last))
    }

    fn push(&self, partial: &mut Vec<u8>, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, has_ended) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            partial.extend_from_slice(text);
            while partial.len() > MAX_LINE {
                let end = (1..=MAX_LINE).rev().find(|at| partial[*at] & 0xC0 != 0x80).unwrap_or(MAX_LINE);
                let rest = partial.split_off(end);
                self.stderr_line(&mem::replace(partial, rest));
            }
            if has_ended {
                self.stderr_line(&mem::take(partial));
            }
        }
    }

    fn stderr_line(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        if !line.is_empty() {
            let last = line.char_indices().nth(QUOTED).map_or(line, |(end, _)| &line[..end]);
            last.clone_into(&mut self.written().last);
            self.line(Level::Info, None, line);
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// Returns whether a line may be logged, and how many were dropped in an earlier second.
    fn admit(&mut self, now: Duration) -> (bool, u64) {
        if now.saturating_sub(self.second) >= Duration::from_secs(1) {
            (self.second, self.count) = (now, 1);
            return (true, mem::take(&mut self.dropped));
        }
        self.count += 1;
        if self.count > MAX_RATE {
            self.dropped += 1;
        }
        (self.count <= MAX_RATE, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MAX_RATE, WorkerLog, Written};

    #[test]
    fn the_last_line_is_kept() {
        let log = WorkerLog::new("worker mail");
        assert_eq!(log.last(), None);
        log.drain(&b"first\n\x1b[2J of \xff\r\n\n  \n"[..]);
        assert_eq!(log.last().as_deref(), Some("\\u{1b}[2J of \u{fffd}"));
        log.drain(&b"without an end"[..]);
        assert_eq!((log.last().as_deref(), log.has_ended()), (Some("without an end"), true));
        log.drain("é".repeat(20_200).as_bytes());
        assert_eq!(log.last().unwrap(), "é".repeat(200));
    }

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let (mut written, at) = (Written::default(), Duration::from_secs(100));
        let allowed = (0..MAX_RATE + 7).filter(|_| written.admit(at).0).count();
        assert_eq!(allowed, MAX_RATE as usize);
        assert_eq!(written.admit(at + Duration::from_millis(999)), (false, 0));
        assert_eq!(written.admit(at + Duration::from_secs(1)), (true, 8));
        assert_eq!(written.admit(at + Duration::from_secs(2)), (true, 0));
    }
}
