//! Lines of a stream: those that are complete are read in batches, and their length is limited.

use std::io::{self, Read};

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// A stream that is read line by line.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    stream: R,
    buffer: Vec<u8>,
    /// The part of the buffer that is filled, and the part of it that has been searched for a line end.
    filled: usize,
    searched: usize,
    limit: usize,
}

impl<R: Read> Lines<R> {
    /// Reads lines of at most `limit` bytes with their line end.
    pub(crate) fn new(stream: R, limit: usize) -> Self {
        Lines { stream, buffer: vec![0; CHUNK.min(limit)], filled: 0, searched: 0, limit }
    }

    /// Reads once, and calls `each` with each line that is complete now, without its line end. `Ok(false)`: the stream has ended;
    /// the beginning of a line that it left is dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] if a line is too long; its beginning is dropped. Else an error of the stream.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let count = match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        self.filled += count;
        let mut begin = 0;
        while let Some(at) = self.buffer[self.searched..self.filled].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + at;
            each(&self.buffer[begin..end]);
            begin = end + 1;
            self.searched = begin;
        }
        self.buffer.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        self.searched = self.filled;
        if self.filled >= self.limit {
            self.filled = 0;
            self.searched = 0;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.filled == self.buffer.len() {
            self.buffer.resize((2 * self.filled).min(self.limit), 0);
        } else if self.filled == 0 && self.buffer.len() > CHUNK {
            // A long line is rare.
            self.buffer = vec![0; CHUNK.min(self.limit)];
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::Lines;

    /// Returns its bytes in pieces of a size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(self.1).min(to.len());
            to[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(bytes: &[u8], piece: usize, limit: usize) -> (Vec<String>, bool) {
        let (mut lines, mut found) = (Lines::new(Pieces(bytes, piece), limit), Vec::new());
        loop {
            match lines.read(|line| found.push(String::from_utf8(line.to_vec()).unwrap())) {
                Ok(true) => {}
                Ok(false) => return (found, false),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
                    return (found, true);
                }
            }
        }
    }

    #[test]
    fn lines_of_any_length_up_to_the_limit_are_read() {
        let long = "x".repeat(300_000);
        let text = format!("a\n\nb c\n{long}\nend\nno line");
        for piece in [1, 7, 65_536, 1_000_000] {
            let (found, too_long) = lines(text.as_bytes(), piece, 1 << 20);
            assert!(!too_long && found == ["a", "", "b c", &long, "end"], "{piece}");
        }
        for piece in [1, 3, 100] {
            // Ten bytes with the line end.
            assert_eq!(lines(b"123456789\n1\n", piece, 10), (vec!["123456789".to_owned(), "1".to_owned()], false));
            assert_eq!(lines(b"1\n1234567890\n", piece, 10), (vec!["1".to_owned()], true));
        }
    }
}
