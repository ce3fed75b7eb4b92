//! Tables of text that fit the width of the output. A cell that does not fit is shortened with an ellipsis; only the last cell
//! of a row may be wrapped.

use std::borrow::Cow;
use std::io::{self, Write};
use std::mem;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::escape::one_line;

/// Blanks between two columns.
const GAP: usize = 2;

/// Widths to which columns are shortened first: the last one, and the elastic ones.
const LAST_FLOOR: usize = 20;
const ELASTIC_FLOOR: usize = 8;

/// How tables are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Maximum width of a line; `None`: unlimited.
    pub(crate) width: Option<u16>,
    /// Whether long last cells are wrapped, as on a terminal. Else they are written as one line, also if it is wider than `width`.
    pub(crate) wraps: bool,
    /// Whether a program reads the table: in a list each cell has a text, and no text has two blanks, which are between columns.
    pub(crate) is_for_programs: bool,
    pub(crate) colour: bool,
    /// Written at the end of a shortened cell.
    pub(crate) ellipsis: &'static str,
}

impl Layout {
    /// Whether columns of lesser importance have space.
    pub(crate) fn is_roomy(&self) -> bool {
        self.width.is_none_or(|width| width >= 100)
    }
}

/// The meaning of a cell, shown as a colour if colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Odd,
    Faint,
}

/// One cell: one line of escaped text.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: &str, tone: Tone) -> Self {
        Cell { text: one_line(text), tone }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::new(text, Tone::Plain)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::new(&text, Tone::Plain)
    }
}

/// Rows of cells, with an optional header. The texts of all cells are in one string: there may be a million cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    /// Columns that are shortened if the table is too wide.
    elastic: Vec<usize>,
    /// Whether long last cells are shortened, so that each row is one line.
    one_line: bool,
    text: String,
    /// The end of each cell in the text, and its tone.
    cells: Vec<(usize, Tone)>,
    /// The end of each row in the cells.
    rows: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Table { header: header.iter().map(|title| one_line(title)).collect(), ..Table::default() }
    }

    /// A table that is written as one line for each row. `elastic`: the columns that are shortened if it is too wide.
    pub(crate) fn list(header: &[&str], elastic: &[usize]) -> Self {
        Table { elastic: elastic.to_vec(), one_line: true, ..Table::new(header) }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        for Cell { text, tone } in cells {
            self.text.push_str(&text);
            self.cells.push((self.text.len(), tone));
        }
        self.rows.push(self.cells.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes each row as one line, or as several if its last cell is wrapped.
    pub(crate) fn write(&self, out: &mut dyn Write, layout: &Layout) -> io::Result<()> {
        if self.one_line && layout.is_for_programs {
            return self.write_for_programs(out);
        }
        let mut widths = self.widths();
        if let Some(width) = layout.width {
            self.fit(&mut widths, width.into());
        }
        let mut line = String::new();
        for row in self.all_rows() {
            let mut indent = 0;
            for (place, (text, tone)) in row.iter().enumerate() {
                if place + 1 < row.len() {
                    let text = shortened(text, widths[place], layout.ellipsis);
                    push(&mut line, &text, *tone, layout);
                    line.extend(std::iter::repeat_n(' ', widths[place] + GAP - width_of(&text)));
                    indent += widths[place] + GAP;
                    continue;
                }
                // The last cell, also that of a short row, extends to the end of the line.
                let room = layout.width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(indent).max(1));
                if self.one_line {
                    push(&mut line, &shortened(text, room, layout.ellipsis), *tone, layout);
                } else if layout.wraps {
                    for (number, part) in wrapped(text, room).into_iter().enumerate() {
                        if number > 0 {
                            end_line(out, &mut line)?;
                            line.extend(std::iter::repeat_n(' ', indent));
                        }
                        push(&mut line, part, *tone, layout);
                    }
                } else {
                    push(&mut line, text, *tone, layout);
                }
            }
            end_line(out, &mut line)?;
        }
        Ok(())
    }

    /// Writes a list whose columns a program finds by two blanks: no cell is empty, or has two blanks.
    fn write_for_programs(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = |text: &str| match text.split_whitespace().collect::<Vec<_>>().join(" ") {
            empty if empty.is_empty() => "-".to_owned(),
            words => words,
        };
        let rows: Vec<Vec<String>> =
            self.all_rows().map(|row| row.iter().map(|(cell, _)| text(cell)).collect()).collect();
        let mut widths = self.widths();
        widths.iter_mut().enumerate().for_each(|(column, width)| {
            *width = rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max().unwrap_or(*width);
        });
        let mut line = String::new();
        for row in rows {
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + GAP - width_of(cell)));
            }
            end_line(out, &mut line)?;
        }
        Ok(())
    }

    /// Returns the texts and tones of each row, beginning with the header.
    fn all_rows(&self) -> impl Iterator<Item = Vec<(&str, Tone)>> {
        let header: Vec<_> = self.header.iter().map(|title| (title.as_str(), Tone::Faint)).collect();
        let (mut cell, mut begin) = (0, 0);
        let rows = self.rows.iter().map(move |end| {
            let cells = self.cells[cell..*end].iter();
            cell = *end;
            cells.map(|(end, tone)| (&self.text[mem::replace(&mut begin, *end)..*end], *tone)).collect()
        });
        (!header.is_empty()).then_some(header).into_iter().chain(rows)
    }

    /// Returns the width of each column. The last cell of a short row widens no column.
    fn widths(&self) -> Vec<usize> {
        let begins = std::iter::once(&0).chain(&self.rows);
        let columns = begins.zip(&self.rows).map(|(begin, end)| end - begin).max().unwrap_or(0).max(self.header.len());
        let mut widths = vec![1; columns];
        for row in self.all_rows() {
            let counted = if row.len() < columns { row.len().saturating_sub(1) } else { columns };
            for (column, (text, _)) in widths.iter_mut().zip(&row[..counted]) {
                *column = width_of(text).max(*column);
            }
        }
        widths
    }

    /// Narrows columns, the widest first, until a line has `limit` columns: the last one, then the elastic ones, then all.
    fn fit(&self, widths: &mut [usize], limit: usize) {
        widths.iter_mut().for_each(|width| *width = limit.min(*width));
        let Some(last) = widths.len().checked_sub(1) else { return };
        let all: Vec<usize> = (0..widths.len()).collect();
        let mut excess = (widths.iter().sum::<usize>() + GAP * last).saturating_sub(limit);
        for (columns, floor) in [(&[last][..], LAST_FLOOR), (&self.elastic, ELASTIC_FLOOR), (&all, 1)] {
            while excess > 0 {
                let widest = columns.iter().copied().max_by_key(|column| widths[*column]);
                let Some(widest) = widest.filter(|column| widths[*column] > floor) else { break };
                widths[widest] -= 1;
                excess -= 1;
            }
        }
    }
}

/// Appends a text, with its colour.
fn push(line: &mut String, text: &str, tone: Tone, layout: &Layout) {
    match tone.code().filter(|_| layout.colour) {
        Some(code) => line.extend(["\u{1b}[38;5;", code, "m", text, "\u{1b}[39m"]),
        None => line.push_str(text),
    }
}

/// Writes the line without trailing blanks, and empties it.
fn end_line(out: &mut dyn Write, line: &mut String) -> io::Result<()> {
    line.truncate(line.trim_end().len());
    line.push('\n');
    out.write_all(line.as_bytes())?;
    line.clear();
    Ok(())
}

/// Returns the beginning of a text and an ellipsis, if the text is wider than `room`.
fn shortened<'a>(text: &'a str, room: usize, ellipsis: &str) -> Cow<'a, str> {
    if width_of(text) <= room {
        return Cow::Borrowed(text);
    }
    match room.checked_sub(width_of(ellipsis)).filter(|left| *left > 0) {
        Some(left) => Cow::Owned(format!("{}{ellipsis}", text[..end_of(text, left)].trim_end())),
        None => Cow::Borrowed(&text[..end_of(text, room)]),
    }
}

/// Breaks a text into lines of at most `room` columns: at blanks, or inside a word that is wider.
fn wrapped(text: &str, room: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while width_of(rest) > room {
        let end = end_of(rest, room);
        // A line that is not full may end before a blank.
        let blank = match rest[end..].starts_with(' ') {
            true => Some(end),
            false => rest[..end].rfind(' ').filter(|blank| !rest[..*blank].trim().is_empty()),
        };
        // At least one character, so that the loop ends.
        let one = rest.chars().next().map_or(rest.len(), char::len_utf8);
        let (line, after) = rest.split_at(blank.unwrap_or(end).max(one));
        lines.push(line.trim_end());
        rest = after.trim_start();
    }
    if !rest.is_empty() || lines.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Returns the end of the longest beginning of a text that takes at most `room` columns.
fn end_of(text: &str, room: usize) -> usize {
    let mut width = 0;
    let over = text.char_indices().find(|(_, letter)| {
        width += letter.width().unwrap_or(0);
        width > room
    });
    let mut end = over.map_or(text.len(), |(place, _)| place);
    // A sequence of characters may be wider than the sum of its characters.
    while width_of(&text[..end]) > room {
        end = text[..end].char_indices().next_back().map_or(0, |(place, _)| place);
    }
    end
}

/// The number of columns that a text takes on a terminal.
fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

impl Tone {
    /// The number of the colour among the 256 of a terminal.
    fn code(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some("10"),
            Tone::Bad => Some("9"),
            Tone::Odd => Some("11"),
            Tone::Faint => Some("8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Layout, Table, Tone, shortened, width_of, wrapped};

    const WHOLE: Layout = Layout { width: None, wraps: true, is_for_programs: false, colour: false, ellipsis: "..." };

    fn table() -> Table {
        let mut table = Table::list(&["NAME", "STATUS", "NOTE"], &[0]);
        table.row([Cell::from("a\nb"), Cell::new("dead", Tone::Bad), Cell::from("no route to host, and no other way")]);
        table.row([Cell::from("a name of some length"), Cell::from("queued"), Cell::from("")]);
        table
    }

    fn lines(table: &Table, layout: Layout) -> Vec<String> {
        let mut out = Vec::new();
        table.write(&mut out, &layout).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        assert_eq!(
            lines(&table(), WHOLE),
            [
                "NAME                   STATUS  NOTE",
                "a\\nb                   dead    no route to host, and no other way",
                "a name of some length  queued",
            ]
        );
    }

    #[test]
    fn a_narrow_list_shortens_the_last_cell_and_then_the_elastic_ones() {
        let at = |width| lines(&table(), Layout { width: Some(width), ..WHOLE });
        assert_eq!(at(65), lines(&table(), WHOLE));
        assert_eq!(
            at(55),
            [
                "NAME                   STATUS  NOTE",
                "a\\nb                   dead    no route to host, and...",
                "a name of some length  queued",
            ]
        );
        assert_eq!(
            at(40),
            ["NAME        STATUS  NOTE", "a\\nb        dead    no route to host,...", "a name...   queued",]
        );
        for width in 8..70 {
            assert!(at(width).iter().all(|line| width_of(line) <= width.into()), "{width}: {:?}", at(width));
            assert_eq!(at(width).len(), 3);
        }
    }

    #[test]
    fn a_program_finds_each_column_by_two_blanks() {
        let mut table = table();
        table.row([Cell::from("b"), Cell::from(""), Cell::from("two  blanks")]);
        let lines = lines(&table, Layout { width: None, wraps: false, is_for_programs: true, ..WHOLE });
        let columns: Vec<Vec<&str>> = lines
            .iter()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(
            columns,
            [
                ["NAME", "STATUS", "NOTE"],
                ["a\\nb", "dead", "no route to host, and no other way"],
                ["a name of some length", "queued", "-"],
                ["b", "-", "two blanks"],
            ]
        );
        assert!(lines.iter().all(|line| line.find("STATUS").or(line.find("dead")).is_none_or(|at| at == 23)));
    }

    #[test]
    fn only_the_last_cell_of_a_row_is_wrapped() {
        let mut table = Table::default();
        table.row([Cell::from("cwd"), Cell::from("two words/and/a/long/path and words")]);
        table.row([Cell::from("a wide name"), Cell::from("b"), Cell::from("c")]);
        table.row([Cell::from("")]);
        let narrow = Layout { width: Some(24), ..WHOLE };
        assert_eq!(
            lines(&table, narrow),
            [
                "cwd          two",
                "             words/and/a",
                "             /long/path",
                "             and words",
                "a wide name  b  c",
                ""
            ]
        );
        assert_eq!(
            lines(&table, Layout { wraps: false, ..narrow })[0],
            "cwd          two words/and/a/long/path and words"
        );
    }

    #[test]
    fn colours_are_used_only_when_requested() {
        assert!(lines(&table(), Layout { colour: true, ..WHOLE })[1].contains("\u{1b}[38;5;9mdead\u{1b}[39m"));
        assert!(!lines(&table(), Layout { width: Some(80), ..WHOLE }).concat().contains('\u{1b}'));
    }

    #[test]
    fn texts_of_any_width_fit() {
        let texts = [
            "",
            "a",
            "two words",
            " b ",
            "e\u{301}e\u{301}",
            "\u{65e5}\u{672c}\u{8a9e}",
            "\u{2764}\u{fe0f}\u{1f600} x",
            "xxxxxxxxx",
        ];
        for text in texts {
            for room in 2..12 {
                for ellipsis in ["...", "\u{2026}"] {
                    assert!(width_of(&shortened(text, room, ellipsis)) <= room, "{text:?} {room}");
                }
                let lines = wrapped(text, room);
                assert!(lines.iter().all(|line| width_of(line) <= room), "{text:?} {room} {lines:?}");
                let letters = |text: &str| text.chars().filter(|letter| *letter != ' ').collect::<String>();
                assert_eq!(letters(&lines.concat()), letters(text));
            }
        }
        assert_eq!(wrapped(&"x".repeat(70_000), 7_000).len(), 10);
    }
}
