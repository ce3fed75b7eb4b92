//! Tables of text, no wider than the terminal.

use std::io::{self, Write};

use comfy_table::{Cell as Laid, Color, ContentArrangement, Table as Layout, presets};
use unicode_width::UnicodeWidthStr;

use crate::output::escape::one_line;

/// Blanks between two columns.
const GAP: usize = 2;

/// Longest text that a cell shows in one line.
const MAX_COLUMN: usize = u16::MAX as usize - GAP;

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
    header: Vec<&'static str>,
    text: String,
    /// The end of each cell in the text, and its tone.
    cells: Vec<(usize, Tone)>,
    /// The end of each row in the cells.
    rows: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), ..Table::default() }
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

    /// Writes the lines. `width`: of the terminal, if the output is one; `colour`: whether colours are used.
    pub(crate) fn write(&self, out: &mut dyn Write, width: Option<u16>, colour: bool) -> io::Result<()> {
        let widths = self.widths();
        let wide = widths.iter().map(|column| column + GAP).sum::<usize>() > width.map_or(usize::MAX, usize::from);
        if wide || widths.iter().any(|column| *column > MAX_COLUMN) {
            return self.layout(width, colour).lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()));
        }
        self.write_rows(out, &widths, colour)
    }

    /// Returns the texts and tones of each row, beginning with the header.
    fn all_rows(&self) -> impl Iterator<Item = Vec<(&str, Tone)>> {
        let header: Vec<_> = self.header.iter().map(|title| (*title, Tone::Faint)).collect();
        let (mut cell, mut begin) = (0, 0);
        let rows = self.rows.iter().map(move |end| {
            let cells = self.cells[cell..*end].iter();
            cell = *end;
            cells.map(|(end, tone)| (&self.text[std::mem::replace(&mut begin, *end)..*end], *tone)).collect()
        });
        (!header.is_empty()).then_some(header).into_iter().chain(rows)
    }

    /// Returns the width of each column.
    fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for row in self.all_rows() {
            widths.resize(widths.len().max(row.len()), 1);
            for (column, (text, _)) in widths.iter_mut().zip(row) {
                *column = width_of(text).max(*column);
            }
        }
        widths
    }

    /// Writes each row as one line.
    fn write_rows(&self, out: &mut dyn Write, widths: &[usize], colour: bool) -> io::Result<()> {
        let mut line = String::new();
        for row in self.all_rows() {
            line.clear();
            for ((text, tone), width) in row.into_iter().zip(widths) {
                match tone.code().filter(|_| colour) {
                    Some(code) => line.extend(["\u{1b}[38;5;", code, "m", text, "\u{1b}[39m"]),
                    None => line.push_str(text),
                }
                let blanks = width + GAP - width_of(text);
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            line.truncate(line.trim_end().len());
            line.push('\n');
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    /// Lays the table out in the width of a terminal: long cells are wrapped.
    fn layout(&self, width: Option<u16>, colour: bool) -> Layout {
        let mut layout = Layout::new();
        layout.load_style(presets::NOTHING).force_no_tty();
        if colour {
            layout.enforce_styling().style_text_only();
        }
        if let Some(width) = width {
            layout.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        let mut rows = self.all_rows().map(|row| row.into_iter().map(laid).collect::<Vec<_>>());
        if !self.header.is_empty() {
            layout.set_header(rows.next().unwrap_or_default());
        }
        rows.for_each(|row| {
            layout.add_row(row);
        });
        for column in layout.column_iter_mut() {
            column.set_padding((0, GAP as u16));
        }
        layout
    }
}

/// The number of columns that a text takes on a terminal.
fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

impl Tone {
    fn colour(self) -> Option<Color> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some(Color::Green),
            Tone::Bad => Some(Color::Red),
            Tone::Odd => Some(Color::Yellow),
            Tone::Faint => Some(Color::DarkGrey),
        }
    }

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

fn laid((text, tone): (&str, Tone)) -> Laid {
    let cell = Laid::new(text);
    match tone.colour() {
        Some(colour) => cell.fg(colour),
        None => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Table, Tone};

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "STATUS"]);
        table.row([Cell::from("a\nb"), Cell::new("dead", Tone::Bad)]);
        table.row([Cell::from("a name of some length"), Cell::from("queued")]);
        table
    }

    fn lines(table: &Table, width: Option<u16>, colour: bool) -> Vec<String> {
        let mut out = Vec::new();
        table.write(&mut out, width, colour).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        assert_eq!(
            lines(&table(), None, false),
            ["NAME                   STATUS", "a\\nb                   dead", "a name of some length  queued"]
        );
    }

    #[test]
    fn a_narrow_terminal_wraps_cells() {
        let lines = lines(&table(), Some(20), false);
        assert!(lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= 20), "{lines:?}");
    }

    #[test]
    fn colours_are_used_only_when_requested() {
        assert!(lines(&table(), None, true)[1].contains("\u{1b}["));
        assert!(!lines(&table(), Some(80), false).concat().contains('\u{1b}'));
    }

    #[test]
    fn a_table_that_need_not_be_wrapped_is_written_as_the_layout_would_be() {
        let texts = [
            "",
            "a",
            "two words",
            " b ",
            "\u{e9}\u{301}",
            "\u{2581}\u{2588}",
            "\u{65e5}\u{672c}",
            "c\u{7}",
            "\u{1f600}",
        ];
        let tones = [Tone::Plain, Tone::Good, Tone::Bad, Tone::Odd, Tone::Faint];
        let mut random = 7_usize;
        let mut next = |count: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % count
        };
        for _ in 0..300 {
            let columns = 1 + next(4);
            let mut table =
                if next(2) == 0 { Table::default() } else { Table::new(&["NAME", "B", "", "LAST"][..columns]) };
            for _ in 0..1 + next(5) {
                let cells = if next(9) == 0 { 1 } else { columns };
                table.row(
                    (0..cells)
                        .map(|_| Cell::new(texts[next(texts.len())], tones[next(tones.len())]))
                        .collect::<Vec<_>>(),
                );
            }
            let whole = table.widths().iter().map(|width| width + super::GAP).sum::<usize>() as u16;
            for (width, colour) in [(None, false), (None, true), (Some(whole), false), (Some(whole + 9), true)] {
                let laid: Vec<_> = table.layout(width, colour).lines().map(|line| line.trim_end().to_owned()).collect();
                assert_eq!(lines(&table, width, colour), laid, "{width:?} {table:?}");
            }
        }
    }

    #[test]
    fn a_cell_that_is_wider_than_a_layout_is_wrapped() {
        let mut table = Table::default();
        table.row([Cell::from("x".repeat(70_000))]);
        assert_eq!(lines(&table, None, false).len(), 2);
    }
}
