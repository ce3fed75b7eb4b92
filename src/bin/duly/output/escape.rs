//! Text that may hold anything, made fit for a terminal: control characters, and those that turn text around, are written
//! as escapes. Whoever may write the file decides what is in it.

/// One line, whatever the text holds.
pub(crate) fn one_line(text: &str) -> String {
    escape(text, "")
}

/// The text with its lines and tabs, and no other control character.
pub(crate) fn lines(text: &str) -> String {
    escape(text, "\n\t")
}

fn escape(text: &str, kept: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if acts(letter) && !kept.contains(letter) {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// Whether a terminal does something else with a character than to show it. U+2028 and its like break lines or turn text
/// around as control characters do; the marks of direction and of byte order do so without being seen.
pub(crate) fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// One word as a shell reads it: in quotes if need be.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=@%+,".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{lines, one_line, shell_word};

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        assert_eq!(one_line("a\nb\u{1b}[2J\u{9b}31m\u{7f}"), r"a\nb\u{1b}[2J\u{9b}31m\u{7f}");
        assert_eq!(one_line("moc.elpmaxe\u{202e}"), r"moc.elpmaxe\u{202e}");
        assert_eq!(one_line("a\u{200e}b\u{200f}c\u{61c}d\u{feff}"), r"a\u{200e}b\u{200f}c\u{61c}d\u{feff}");
        assert_eq!(one_line("è già \u{1f600}"), "è già \u{1f600}");
        assert_eq!(lines("a\tb\r\nc\u{8}\n"), "a\tb\\r\nc\\u{8}\n");
    }

    #[test]
    fn a_word_is_quoted_only_if_a_shell_would_split_it() {
        for (word, written) in
            [("./a-b.sh", "./a-b.sh"), ("", "''"), ("two words", "'two words'"), ("it's", r"'it'\''s'")]
        {
            assert_eq!(shell_word(word), written);
        }
    }
}
