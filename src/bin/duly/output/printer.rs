//! The output of commands: lines, tables and JSON documents, in the requested form.

use std::fmt;
use std::io::{self, Write};

use duly::Progress;
use serde::Serialize;

use crate::output::escape::{self, is_control};
use crate::output::progress_bar::Bars;
use crate::output::sparkline::Heights;
use crate::output::table::Table;
use crate::output::times::Times;

/// The output of a command.
pub(crate) struct Printer<'a> {
    pub(crate) out: &'a mut dyn Write,
    /// Output for warnings.
    pub(crate) err: &'a mut dyn Write,
    /// Print one JSON document instead of text.
    pub(crate) json: bool,
    /// Print results only.
    pub(crate) quiet: bool,
    pub(crate) colour: bool,
    /// Width of the terminal, if the output is one.
    pub(crate) width: Option<u16>,
    /// Characters of sparklines.
    pub(crate) heights: Heights,
    /// The terminal for progress bars, if they are shown.
    pub(crate) bars: Option<Bars>,
    pub(crate) times: Times,
}

impl Printer<'_> {
    /// Prints a line of the result.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{}", escape::one_line(&text.to_string()))
    }

    /// Prints a message about what was done, unless `quiet` or `json` is set.
    pub(crate) fn say(&mut self, text: impl fmt::Display) -> io::Result<()> {
        if self.quiet || self.json { Ok(()) } else { self.line(text) }
    }

    /// Prints a warning on standard error. An error while printing it is ignored.
    pub(crate) fn warn(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.err, "warning: {}", escape::one_line(&text.to_string()));
    }

    /// Prints foreign text, such as output of a command, with its line ends.
    pub(crate) fn block(&mut self, text: &str) -> io::Result<()> {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        write!(self.out, "{}{end}", escape::lines(text))
    }

    /// Prints a table; if it is empty, the message `empty`.
    pub(crate) fn table(&mut self, table: Table, empty: &str) -> io::Result<()> {
        if table.is_empty() {
            return self.say(empty);
        }
        table.lines(self.width, self.colour).iter().try_for_each(|line| writeln!(self.out, "{line}"))
    }

    /// Prints a JSON document.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> io::Result<()> {
        self.json_text(&serde_json::to_string_pretty(document)?)?;
        writeln!(self.out)
    }

    /// Begins a JSON array that is printed item by item. It looks as if it were printed as a whole.
    pub(crate) fn list_begins(&mut self) -> io::Result<()> {
        write!(self.out, "[")
    }

    /// Prints the next item of the array.
    pub(crate) fn item(&mut self, item: &impl Serialize, is_first: bool) -> io::Result<()> {
        write!(self.out, "{}\n  ", if is_first { "" } else { "," })?;
        self.json_text(&serde_json::to_string_pretty(item)?.replace('\n', "\n  "))
    }

    /// Ends the array. `is_empty`: it has no items.
    pub(crate) fn list_ends(&mut self, is_empty: bool) -> io::Result<()> {
        writeln!(self.out, "{}]", if is_empty { "" } else { "\n" })
    }

    fn json_text(&mut self, text: &str) -> io::Result<()> {
        // Outside of strings, a document contains no control characters other than line ends.
        let mut rest = text;
        while let Some(at) = rest.find(|letter| is_control(letter) && !"\n\t\r".contains(letter)) {
            let (before, from) = rest.split_at(at);
            let mut letters = from.chars();
            let letter = letters.next().map_or(0, u32::from);
            write!(self.out, "{before}\\u{letter:04x}")?;
            rest = letters.as_str();
        }
        write!(self.out, "{rest}")
    }

    /// Does work that may take long, and shows its progress.
    pub(crate) fn watched<T>(&self, doing: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
        match self.bars {
            Some(bars) => bars.watch(doing, work),
            None => work(&Progress::default()),
        }
    }

    /// Writes buffered output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::Printer;
    use crate::output::sparkline::Heights;
    use crate::output::times::Times;
    use duly::{Timestamp, Zone};

    fn printed(json: bool, quiet: bool, print: impl FnOnce(&mut Printer<'_>)) -> String {
        let mut out = Vec::new();
        let times = Times { now: Timestamp::MIN, zone: Zone::named("UTC").unwrap() };
        let heights = Heights::Digits;
        let err = &mut std::io::sink();
        print(&mut Printer { out: &mut out, err, json, quiet, colour: false, width: None, heights, bars: None, times });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_document_escapes_control_characters_and_stays_json() {
        let hostile = "\u{1b}[2J\u{9b}\u{202e}\n\"";
        let text = printed(true, false, |printer| printer.document(&[hostile]).unwrap());
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [hostile]);
    }

    #[test]
    fn a_block_ends_with_a_line_end() {
        let twice = |text: &str| {
            printed(false, true, |printer| {
                printer.block(text).unwrap();
                printer.say("not printed").unwrap();
                printer.line("end").unwrap();
            })
        };
        assert_eq!([twice(""), twice("a"), twice("a\n\u{7}")], ["end\n", "a\nend\n", "a\n\\u{7}\nend\n"]);
    }
}
