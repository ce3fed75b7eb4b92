//! Where commands print: lines, tables and documents, in the form that was asked for.

use std::fmt;
use std::io::{self, Write};

use duly::Progress;
use serde::Serialize;

use crate::output::escape::{self, acts};
use crate::output::progress_bar::Bars;
use crate::output::sparkline::Heights;
use crate::output::table::Table;
use crate::output::times::Times;

/// What commands print on.
pub(crate) struct Printer<'a> {
    pub(crate) out: &'a mut dyn Write,
    /// Where warnings go.
    pub(crate) err: &'a mut dyn Write,
    /// One JSON document instead of text.
    pub(crate) json: bool,
    /// Nothing but what was asked for.
    pub(crate) quiet: bool,
    pub(crate) colour: bool,
    /// Of the terminal, if the output is one.
    pub(crate) width: Option<u16>,
    /// How lines of runs are drawn.
    pub(crate) heights: Heights,
    /// The terminal on which long work may show how far it has come, if there is one, and somebody wants to see it.
    pub(crate) bars: Option<Bars>,
    pub(crate) times: Times,
}

impl Printer<'_> {
    /// A line of what was asked for.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{}", escape::one_line(&text.to_string()))
    }

    /// A line that says what was done. Whoever wants quiet does without, and a document says it otherwise.
    pub(crate) fn say(&mut self, text: impl fmt::Display) -> io::Result<()> {
        if self.quiet || self.json { Ok(()) } else { self.line(text) }
    }

    /// A line about something that was done and may not work. It goes to standard error, beside whatever was asked for. Where nobody
    /// can read that, the command goes on.
    pub(crate) fn warn(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.err, "warning: {}", escape::one_line(&text.to_string()));
    }

    /// Text of somebody else's, with its lines.
    pub(crate) fn block(&mut self, text: &str) -> io::Result<()> {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        write!(self.out, "{}{end}", escape::lines(text))
    }

    /// A table, or what there is to say if it is empty.
    pub(crate) fn table(&mut self, table: Table, empty: &str) -> io::Result<()> {
        if table.is_empty() {
            return self.say(empty);
        }
        table.lines(self.width, self.colour).iter().try_for_each(|line| writeln!(self.out, "{line}"))
    }

    /// A JSON document.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> io::Result<()> {
        self.json_text(&serde_json::to_string_pretty(document)?)?;
        writeln!(self.out)
    }

    /// A JSON document that is an array, item by item: it begins, and looks at its end as if it had been printed whole.
    pub(crate) fn list_begins(&mut self) -> io::Result<()> {
        write!(self.out, "[")
    }

    /// An item of it, behind those before.
    pub(crate) fn item(&mut self, item: &impl Serialize, is_first: bool) -> io::Result<()> {
        write!(self.out, "{}\n  ", if is_first { "" } else { "," })?;
        self.json_text(&serde_json::to_string_pretty(item)?.replace('\n', "\n  "))
    }

    /// Its end. `is_empty`: it had no item.
    pub(crate) fn list_ends(&mut self, is_empty: bool) -> io::Result<()> {
        writeln!(self.out, "{}]", if is_empty { "" } else { "\n" })
    }

    fn json_text(&mut self, text: &str) -> io::Result<()> {
        // Outside its texts a document holds no such character, but for the ends of its lines.
        let mut rest = text;
        while let Some(at) = rest.find(|letter| acts(letter) && !"\n\t\r".contains(letter)) {
            let (before, acting) = rest.split_at(at);
            let mut letters = acting.chars();
            let letter = letters.next().map_or(0, u32::from);
            write!(self.out, "{before}\\u{letter:04x}")?;
            rest = letters.as_str();
        }
        write!(self.out, "{rest}")
    }

    /// Does a piece of work that may take long, and shows how far it has come.
    pub(crate) fn watched<T>(&self, doing: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
        match self.bars {
            Some(bars) => bars.watch(doing, work),
            None => work(&Progress::default()),
        }
    }

    /// What was printed is to be seen now.
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
    fn a_document_stays_json_and_obeys_nobody() {
        let hostile = "\u{1b}[2J\u{9b}\u{202e}\n\"";
        let text = printed(true, false, |printer| printer.document(&[hostile]).unwrap());
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [hostile]);
    }

    #[test]
    fn a_block_ends_with_its_line() {
        let twice = |text: &str| {
            printed(false, true, |printer| {
                printer.block(text).unwrap();
                printer.say("unheard").unwrap();
                printer.line("end").unwrap();
            })
        };
        assert_eq!([twice(""), twice("a"), twice("a\n\u{7}")], ["end\n", "a\nend\n", "a\n\\u{7}\nend\n"]);
    }
}
