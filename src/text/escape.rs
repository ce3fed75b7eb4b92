//! Escaping of text for a terminal: control characters and bidirectional controls are printed as escapes. Any user who may
//! write the database chooses such text.

/// Escapes a text to one line.
pub fn one_line(text: &str) -> String {
    escape(text, "")
}

/// Escapes a text, except for line ends and tabs.
pub fn lines(text: &str) -> String {
    escape(text, "\n\t")
}

fn escape(text: &str, kept: &str) -> String {
    if is_printable(text.as_bytes()) {
        return text.to_owned();
    }
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_control(letter) && !kept.contains(letter) {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// Whether all bytes are printable ASCII: most texts need no closer look.
pub fn is_printable(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// Whether a terminal acts on a character instead of showing it: control characters, line separators, bidirectional controls
/// and the byte order mark.
pub fn is_control(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Quotes a word for a shell, if necessary.
pub fn shell_word(word: &str) -> String {
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
    fn control_characters_are_escaped() {
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
