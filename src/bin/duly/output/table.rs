//! Tables of text, no wider than the terminal.

use comfy_table::{Cell as Laid, Color, ContentArrangement, Table as Layout, presets};

use crate::output::escape::one_line;

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

/// Rows of cells, with an optional header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines to print. `width`: of the terminal, if the output is one; `colour`: whether colours are used.
    pub(crate) fn lines(self, width: Option<u16>, colour: bool) -> Vec<String> {
        let mut layout = Layout::new();
        layout.load_style(presets::NOTHING).force_no_tty();
        if colour {
            layout.enforce_styling().style_text_only();
        }
        if let Some(width) = width {
            layout.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        if !self.header.is_empty() {
            layout.set_header(self.header.iter().map(|title| laid(title.to_string(), Tone::Faint)).collect::<Vec<_>>());
        }
        for row in self.rows {
            layout.add_row(row.into_iter().map(|cell| laid(cell.text, cell.tone)).collect::<Vec<_>>());
        }
        for column in layout.column_iter_mut() {
            column.set_padding((0, 2));
        }
        layout.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

fn laid(text: String, tone: Tone) -> Laid {
    let cell = Laid::new(text);
    match tone {
        Tone::Plain => cell,
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red),
        Tone::Odd => cell.fg(Color::Yellow),
        Tone::Faint => cell.fg(Color::DarkGrey),
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

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let lines = table().lines(None, false);
        assert_eq!(
            lines,
            ["NAME                   STATUS", "a\\nb                   dead", "a name of some length  queued"]
        );
    }

    #[test]
    fn a_narrow_terminal_wraps_cells() {
        let lines = table().lines(Some(20), false);
        assert!(lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= 20), "{lines:?}");
    }

    #[test]
    fn colours_are_used_only_when_requested() {
        assert!(table().lines(None, true)[1].contains("\u{1b}["));
        assert!(!table().lines(Some(80), false).concat().contains('\u{1b}'));
    }
}
