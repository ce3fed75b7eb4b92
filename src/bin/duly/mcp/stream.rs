//! The two streams: lines of a bounded length from the client, and whole lines to it.

use std::io::{self, BufRead, Write};
use std::sync::{Mutex, PoisonError};

/// Longest line that is read, in bytes. What is too large for a tool is refused by its schema, as long as it is read.
pub(crate) const MAX_LINE: usize = 2 * 1024 * 1024;

/// What is kept of a longer line, to find its id.
const BEGINNING: usize = 4096;

/// A line of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Whole(Vec<u8>),
    /// It was longer than [`MAX_LINE`], and is dropped but for its beginning.
    TooLong(Vec<u8>),
}

/// Reads a line without its end. `None`: the stream has ended; what is left without an end of line is dropped.
pub(crate) fn read_line(stream: &mut impl BufRead) -> io::Result<Option<Line>> {
    let (mut line, mut is_too_long) = (Vec::new(), false);
    loop {
        let available = match stream.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(None);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        is_too_long = is_too_long || line.len() + part.len() > MAX_LINE;
        if is_too_long {
            line.truncate(BEGINNING);
        } else {
            line.extend_from_slice(part);
        }
        let read = part.len() + usize::from(end.is_some());
        stream.consume(read);
        if end.is_some() {
            return Ok(Some(if is_too_long { Line::TooLong(line) } else { Line::Whole(line) }));
        }
    }
}

/// Where the answers of all threads are written.
pub(crate) struct Output<W>(Mutex<W>);

impl<W: Write> Output<W> {
    pub(crate) fn new(stream: W) -> Self {
        Output(Mutex::new(stream))
    }

    /// Writes a line. A client that has closed the stream reads nothing, and the end of its own stream follows.
    pub(crate) fn write(&self, line: &str) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.write_all(line.as_bytes()).and_then(|()| stream.write_all(b"\n")).and_then(|()| stream.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, MAX_LINE, read_line};
    use std::io::BufReader;

    #[test]
    fn a_line_that_is_too_long_is_dropped_and_the_next_one_is_read() {
        let mut bytes = vec![b'x'; 3 * MAX_LINE];
        bytes.extend_from_slice(b"\n{}\n");
        bytes.extend(vec![b'y'; MAX_LINE]);
        bytes.extend_from_slice(b"\nrest");
        let mut stream = BufReader::with_capacity(1000, bytes.as_slice());
        assert_eq!(read_line(&mut stream).unwrap(), Some(Line::TooLong(vec![b'x'; 4096])));
        assert_eq!(read_line(&mut stream).unwrap(), Some(Line::Whole(b"{}".to_vec())));
        assert_eq!(read_line(&mut stream).unwrap(), Some(Line::Whole(vec![b'y'; MAX_LINE])));
        assert_eq!(read_line(&mut stream).unwrap(), None);
    }
}
