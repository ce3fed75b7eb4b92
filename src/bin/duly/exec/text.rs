//! The column `output` of a command: both streams as one text, and what a reader of it has not seen yet.

/// The line before the text of stderr.
const STDERR: &str = "--- stderr ---\n";
/// The line in place of the middle of a long stream, around its size.
const CUT: (&str, &str) = ("\n[... ", " bytes in all; only the beginning and the end are kept ...]\n");
/// Fewest bytes of text before that line: the same words in less output are the command's own.
const LEAST_BEFORE: usize = 16_000;

/// Joins both streams, with a heading before stderr.
pub(crate) fn join(stdout: String, stderr: &str) -> String {
    if stderr.is_empty() {
        return stdout;
    }
    let line = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    format!("{stdout}{line}{STDERR}{stderr}")
}

/// Longest part of a line that [`with_last_line`] adds, in characters.
const MAX_LINE: usize = 500;

/// `how: the last line` of the first of the streams that has one. Of a line that was printed over, the end counts; what Node.js and Rust
/// print after the message of an error is passed over: frames of a stack, which are indented, and a line about the program itself.
pub(crate) fn with_last_line(how: &str, streams: &[&str]) -> String {
    let is_version = |line: &str| {
        let number = line.strip_prefix("Node.js v");
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    };
    let text = |line: &'_ str| -> Option<String> {
        let is_frame = line.starts_with([' ', '\t']) && line.trim_start().starts_with("at ");
        let line = line.trim().rsplit('\r').next().unwrap_or_default().trim();
        let says_nothing = line.is_empty() || is_version(line) || line.starts_with("note: run with `RUST_BACKTRACE");
        (!is_frame && !says_nothing).then(|| line.chars().take(MAX_LINE).collect())
    };
    let last = |stream: &&str| stream.lines().rev().find_map(text);
    streams.iter().find_map(last).map_or_else(|| how.to_owned(), |line| format!("{how}: {line}"))
}

/// Joins the beginning and the end of a stream of `total` bytes.
pub(crate) fn cut(head: &str, total: u64, tail: &str) -> String {
    let (begin, end) = CUT;
    format!("{head}{begin}{total}{end}{tail}")
}

/// A stream as its text shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept<'a> {
    /// The whole stream, or its beginning.
    head: &'a str,
    /// If it is cut: its size in bytes, and its end.
    cut: Option<(u64, &'a str)>,
}

/// Splits a text into stdout and stderr. A line end before the heading of stderr is left out: it may not be stdout's own.
pub(crate) fn parse(output: &str) -> [Kept<'_>; 2] {
    let heading = if output.starts_with(STDERR) {
        Some(0)
    } else {
        output.find(&format!("\n{STDERR}")).map(|line_end| line_end + 1)
    };
    let (stdout, stderr) = match heading {
        Some(at) => (&output[..at.saturating_sub(1)], &output[at + STDERR.len()..]),
        None => (output, ""),
    };
    [stdout, stderr].map(parse_stream)
}

fn parse_stream(text: &str) -> Kept<'_> {
    let whole = Kept { head: text, cut: None };
    for (at, _) in text.match_indices(CUT.0).filter(|(at, _)| *at >= LEAST_BEFORE) {
        let Some((total, tail)) = text[at + CUT.0.len()..].split_once(CUT.1) else { return whole };
        if let Ok(total) = total.parse() {
            return Kept { head: &text[..at], cut: Some((total, tail)) };
        }
    }
    whole
}

/// How far a reader has printed a stream, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place(u64);

/// What a reader has not printed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News<'a> {
    pub(crate) before: &'a str,
    /// Bytes between the two texts that are not kept.
    pub(crate) omitted: u64,
    pub(crate) after: &'a str,
}

impl Place {
    /// Returns what follows this place, and moves it to the end. Exact, unless bytes of a cut stream are invalid UTF-8.
    pub(crate) fn next<'a>(&mut self, stream: &Kept<'a>) -> News<'a> {
        let from = self.0;
        let Some((total, tail)) = stream.cut else {
            let size = size(stream.head);
            // A heading of stderr has appeared: the line end before it is left out, and is printed already.
            if size + 1 == from {
                return News::default();
            }
            self.0 = size;
            // Shorter than before: another text.
            let before = if size < from { stream.head } else { skip(stream.head, from) };
            return News { before, ..News::default() };
        };
        self.0 = total;
        let tail_at = total.saturating_sub(size(tail));
        if from >= tail_at {
            return News { after: skip(tail, from - tail_at), ..News::default() };
        }
        let omitted = tail_at.saturating_sub(from.max(size(stream.head)));
        News { before: skip(stream.head, from), omitted, after: tail }
    }
}

/// The bytes of the stream that a character stands for: mostly one, if it replaces invalid ones.
fn width(letter: char) -> u64 {
    if letter == char::REPLACEMENT_CHARACTER { 1 } else { letter.len_utf8() as u64 }
}

fn size(text: &str) -> u64 {
    text.chars().map(width).sum()
}

/// Returns the text without its first `bytes` bytes.
fn skip(text: &str, bytes: u64) -> &str {
    let mut left = bytes;
    let mut letters = text.chars();
    while left > 0 {
        let Some(letter) = letters.next() else { break };
        left = left.saturating_sub(width(letter));
    }
    letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::{News, Place, join, parse, with_last_line};

    #[test]
    fn stderr_has_a_heading() {
        assert_eq!(join("out\n".into(), ""), "out\n");
        assert_eq!(join("out".into(), "err\n"), "out\n--- stderr ---\nerr\n");
        assert_eq!(join(String::new(), "err"), "--- stderr ---\nerr");
    }

    #[test]
    fn each_stream_is_followed_by_itself() {
        let mut places = [Place::default(); 2];
        let next = |places: &mut [Place; 2], stdout: &str, stderr: &str| {
            let text = join(stdout.to_owned(), stderr);
            let [out, err] = parse(&text);
            [places[0].next(&out), places[1].next(&err)].map(|News { before, .. }| before.to_owned())
        };
        assert_eq!(next(&mut places, "a", ""), ["a", ""]);
        // The line end before the heading is not that of stdout.
        assert_eq!(next(&mut places, "ab", "x\n"), ["b", "x\n"]);
        assert_eq!(next(&mut places, "abc\nd\n", "x\n"), ["c\nd", ""]);
        assert_eq!(next(&mut places, "abc\nd\ne\n", "x\ny"), ["\ne", "y"]);
        // The heading appears after the line end was printed.
        places = [Place::default(); 2];
        assert_eq!(next(&mut places, "a\n", ""), ["a\n", ""]);
        assert_eq!(next(&mut places, "a\n", "x\n"), ["", "x\n"]);
        assert_eq!(next(&mut places, "a\n", "x\ny\n"), ["", "y\n"]);
        assert_eq!(next(&mut places, "a\nb\n", "x\ny\n"), ["b", ""]);
    }

    #[test]
    fn the_last_line_says_why() {
        assert_eq!(with_last_line("gate", &["one\n two \n\n", "warning"]), "gate: two");
        assert_eq!(with_last_line("gate", &["", " \nno battery"]), "gate: no battery");
        assert_eq!(with_last_line("gate", &["\n", "\n"]), "gate");
        assert_eq!(with_last_line("gate", &["checking\nat capacity, 5 of 5 busy\n"]), "gate: at capacity, 5 of 5 busy");
        assert_eq!(with_last_line("gate", &["Node.js v12 is too old"]), "gate: Node.js v12 is too old");
        assert_eq!(with_last_line("gate", &[" 0%\r 50%\rno space left\r\n"]), "gate: no space left");
        let node =
            "x.js:1\nthrow new Error('no')\n^\n\nError: no\n    at Object (x.js:1:7)\n    at x\n\nNode.js v20.20.2\n";
        assert_eq!(with_last_line("exit code 1", &[node]), "exit code 1: Error: no");
        let rust = "thread 'main' panicked at a.rs:1:1:\nno\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        assert_eq!(with_last_line("exit code 101", &[rust]), "exit code 101: no");
        assert_eq!(with_last_line("x", &[&"ä".repeat(600)]).chars().count(), "x: ".len() + 500);
    }

    #[test]
    fn words_of_the_command_are_no_cut() {
        let own = "a\n[... 99999 bytes in all; only the beginning and the end are kept ...]\nb";
        assert_eq!(Place::default().next(&parse(own)[0]).before, own);
    }
}
