//! Stored text of any length and content within a budget of bytes: outputs, errors, values.

use maud::{Markup, PreEscaped, html};

use crate::text::escape;
use crate::text::units::{bytes, count_of};

/// The bytes that stored text may still fill.
#[derive(Debug)]
pub(in crate::page) struct Budget {
    left: usize,
}

impl Budget {
    pub(in crate::page) fn new(bytes: usize) -> Self {
        Budget { left: bytes }
    }

    /// Returns the start of a text, as far as it fits into `limit` bytes of the page and into the budget.
    pub(in crate::page) fn start_of(&mut self, text: &str, limit: usize) -> Markup {
        let text = without_colours(text);
        let mut room = limit.min(self.left);
        let mut end = 0;
        for letter in text.chars() {
            let Some(left) = room.checked_sub(cost(letter)) else { break };
            (room, end) = (left, end + letter.len_utf8());
        }
        let part = &text[..end];
        self.printed(part, (end < text.len()).then(|| format!("Cut after {} of {}.", size(end), size(text.len()))))
    }

    /// As [`Budget::start_of`], with the end of the text.
    pub(in crate::page) fn end_of(&mut self, text: &str, limit: usize) -> Markup {
        let text = without_colours(text);
        let mut room = limit.min(self.left);
        let mut start = text.len();
        for letter in text.chars().rev() {
            let Some(left) = room.checked_sub(cost(letter)) else { break };
            (room, start) = (left, start - letter.len_utf8());
        }
        let length = text.len() - start;
        let note = format!("Cut: the last {} of {}. The command duly logs prints all.", size(length), size(text.len()));
        self.printed(&text[start..], (start > 0).then_some(note))
    }

    /// Returns the lines that contain a text, whatever the case of its ASCII letters, each with its number; the last of them that fit.
    pub(in crate::page) fn lines_with(&mut self, text: &str, wanted: &str, limit: usize) -> Markup {
        let text = without_colours(text);
        let is_wanted = |line: &str| line.to_ascii_lowercase().contains(&wanted.to_ascii_lowercase());
        let lines = text.lines().enumerate().filter(|(_, line)| is_wanted(line));
        let mut found: Vec<String> = lines.map(|(place, line)| format!("{:>5}  {line}\n", place + 1)).collect();
        let count = found.len();
        let mut room = limit.min(self.left);
        let fits = |line: &&String| {
            let left = room.checked_sub(line.chars().map(cost).sum());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let shown = found.iter().rev().take_while(fits).count();
        let shown = found.split_off(count - shown);
        let all = count_of(text.lines().count(), "line");
        let mut note = format!("Lines with this text: {count} of {all}.");
        if shown.len() < count {
            note += &format!(" These are the last {}.", shown.len());
        }
        if shown.is_empty() {
            html! { p.note { (note) } }
        } else {
            self.printed(&shown.concat(), Some(note))
        }
    }

    fn printed(&mut self, part: &str, note: Option<String>) -> Markup {
        let shown = html! { (escape::lines(part)) };
        self.left = self.left.saturating_sub(shown.0.len());
        html! {
            pre tabindex="0" { (PreEscaped(shown.0)) }
            @if let Some(note) = note { p.note { (note) } }
        }
    }
}

fn size(length: usize) -> String {
    bytes(u64::try_from(length).unwrap_or(u64::MAX))
}

/// Returns how many bytes of a page a character fills, escaped for display and for HTML.
fn cost(letter: char) -> usize {
    match letter {
        '&' | '<' | '>' | '"' => 6,
        '\n' | '\t' => 1,
        _ if escape::is_control(letter) => letter.escape_default().count(),
        _ => letter.len_utf8(),
    }
}

/// Returns text without the sequences that set colours on a terminal. Other escape sequences stay, and are shown escaped.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        let (before, sequence) = rest.split_at(at);
        plain.push_str(before);
        let body = &sequence[2..];
        let end = body.find(|letter: char| !letter.is_ascii_digit() && letter != ';' && letter != ':');
        match end {
            Some(end) if body[end..].starts_with('m') => rest = &body[end + 1..],
            _ => {
                plain.push_str(&sequence[..2]);
                rest = body;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn markup_and_control_characters_appear_as_text() {
        let shown =
            Budget::new(1000).end_of("<b>\u{1b}[1;31mred\u{1b}[0m\u{1b}[2J\u{202e}\r\n&amp;", 1000).into_string();
        let text = "&lt;b&gt;red\\u{1b}[2J\\u{202e}\\r\n&amp;amp;";
        assert_eq!(shown, format!("<pre tabindex=\"0\">{text}</pre>"));
    }

    #[test]
    fn text_is_cut_at_the_limit_and_at_the_budget_whatever_its_characters() {
        for text in ["<".repeat(100_000), "\u{202e}".repeat(100_000), "é".repeat(100_000), "\u{1b}".repeat(100_000)] {
            let mut budget = Budget::new(5_000);
            for limit in [3_000, 3_000] {
                let (start, end) =
                    (budget.start_of(&text, limit).into_string(), budget.end_of(&text, limit).into_string());
                assert!(start.len() < limit + 200 && end.len() < limit + 200, "{} {}", start.len(), end.len());
                assert!(start.contains("Cut after") && end.contains("Cut: the last"));
            }
        }
        let mut budget = Budget::new(5_000);
        assert!(budget.end_of("one\ntwo", 4).into_string().starts_with("<pre tabindex=\"0\">\ntwo</pre>"));
        assert!(!budget.start_of("whole", 5).into_string().contains("Cut"));
    }

    #[test]
    fn lines_that_contain_a_text_have_their_numbers() {
        let text = "one\n\u{1b}[31mERROR\u{1b}[0m: <no>\nthree\nerror again\n";
        let shown = Budget::new(1000).lines_with(text, "Error", 1000).into_string();
        assert!(shown.contains(">    2  ERROR: &lt;no&gt;\n    4  error again\n</pre>"), "{shown}");
        assert!(shown.ends_with("<p class=\"note\">Lines with this text: 2 of 4 lines.</p>"), "{shown}");
        let none = Budget::new(1000).lines_with(text, "absent", 1000).into_string();
        assert_eq!(none, "<p class=\"note\">Lines with this text: 0 of 4 lines.</p>");
        let cut = Budget::new(1000).lines_with(&"error\n".repeat(1000), "error", 100).into_string();
        assert!(cut.contains(">  994  error\n") && cut.contains(" 1000  error\n</pre>"), "{cut}");
        assert!(cut.contains("Lines with this text: 1000 of 1000 lines. These are the last 7."), "{cut}");
    }
}
