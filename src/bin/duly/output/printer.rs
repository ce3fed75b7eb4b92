//! The output of commands: lines, tables and JSON documents, in the requested form.

use std::fmt;
use std::io::{self, Write};

use duly::{Progress, Timestamp};
use serde::{Serialize, Serializer};

use crate::output::escape::{self, is_control, is_printable};
use crate::output::progress_bar::Bars;
use crate::output::sparkline::Heights;
use crate::output::table::{Layout, Table};
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
    pub(crate) layout: Layout,
    /// Characters of sparklines.
    pub(crate) heights: Heights,
    /// The terminal for progress bars, if they are shown.
    pub(crate) bars: Option<Bars>,
    pub(crate) times: Times,
    /// Prints an error, and ends the process: for a signal, on another thread than that of `main`.
    pub(crate) end: fn(&str),
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

    /// Prints a part of foreign text, without adding a line end.
    pub(crate) fn part(&mut self, text: &str) -> io::Result<()> {
        write!(self.out, "{}", escape::lines(text))
    }

    /// Prints a table; if it is empty, the message `empty`.
    pub(crate) fn table(&mut self, table: Table, empty: &str) -> io::Result<()> {
        if table.is_empty() {
            return self.say(empty);
        }
        table.write(self.out, &self.layout)
    }

    /// The title of a column of times, with their zone: `NEXT (Europe/Rome)`, or `NEXT (Rome)` if the table is narrow.
    pub(crate) fn title(&self, word: &str) -> String {
        let name = self.times.zone_name();
        let city = name.rsplit('/').next().unwrap_or(name);
        format!("{word} ({})", if self.layout.is_roomy() { name } else { city })
    }

    /// A time in a table: short, and with its distance from now where the table has space; for programs in RFC 3339.
    pub(crate) fn when(&self, at: Timestamp) -> String {
        if self.layout.is_for_programs {
            return self.times.zone.text_at(at);
        }
        if self.layout.is_roomy() { self.times.brief_both(at) } else { self.times.brief(at) }
    }

    /// Prints a JSON document. A part of it is written as soon as it is serialized.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(JsonText(self.out), document)?;
        writeln!(self.out)
    }

    /// Begins a JSON array that is printed item by item. It looks as if it were printed as a whole.
    pub(crate) fn list_begins(&mut self) -> io::Result<()> {
        write!(self.out, "[")
    }

    /// Prints the next item of the array.
    pub(crate) fn item(&mut self, item: &impl Serialize, is_first: bool) -> io::Result<()> {
        write!(self.out, "{}\n  ", if is_first { "" } else { "," })?;
        JsonText(self.out).write_all(serde_json::to_string_pretty(item)?.replace('\n', "\n  ").as_bytes())
    }

    /// Ends the array. `is_empty`: it has no items.
    pub(crate) fn list_ends(&mut self, is_empty: bool) -> io::Result<()> {
        writeln!(self.out, "{}]", if is_empty { "" } else { "\n" })
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

/// Writes serialized JSON, and escapes control characters. Each call of `write` is given whole characters.
pub(crate) struct JsonText<'a>(pub(crate) &'a mut dyn Write);

impl Write for JsonText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_printable(bytes) {
            return self.0.write_all(bytes).map(|()| bytes.len());
        }
        let mut rest = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        // Outside of strings, a document contains no control characters other than line ends.
        while let Some(at) = rest.find(|letter| is_control(letter) && !"\n\t\r".contains(letter)) {
            let (before, from) = rest.split_at(at);
            let mut letters = from.chars();
            let letter = letters.next().map_or(0, u32::from);
            write!(self.0, "{before}\\u{letter:04x}")?;
            rest = letters.as_str();
        }
        self.0.write_all(rest.as_bytes()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The items of an iterator as a JSON array. Each is made when it is serialized, and dropped then.
pub(crate) struct Each<I>(pub(crate) I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Each<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::Printer;
    use crate::output::sparkline::Heights;
    use crate::output::table::Layout;
    use crate::output::times::Times;
    use duly::{Timestamp, Zone};

    fn printed(json: bool, quiet: bool, print: impl FnOnce(&mut Printer<'_>)) -> String {
        let mut out = Vec::new();
        let times = Times { now: Timestamp::MIN, zone: Zone::named("UTC").unwrap() };
        let heights = Heights::Points;
        let err = &mut std::io::sink();
        let layout = Layout { width: None, wraps: false, is_for_programs: false, colour: false, ellipsis: "..." };
        print(&mut Printer { out: &mut out, err, json, quiet, layout, heights, bars: None, times, end: |_| () });
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
