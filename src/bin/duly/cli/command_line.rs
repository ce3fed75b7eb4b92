//! Command lines as a user types them in one argument.

/// Splits a command line into words as a shell does: at spaces, with quotes and backslashes. There are no variables, patterns,
/// pipes and redirections.
pub(crate) fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, letter) if letter.is_ascii_whitespace() => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (Some(open), letter) if letter == open => quote = None,
            (None | Some('"'), '\\') => {
                let next = letters.next().ok_or("a backslash at the end")?;
                let word = word.get_or_insert_default();
                if quote.is_some() && !"\"\\$`".contains(next) {
                    word.push('\\');
                }
                word.push(next);
            }
            (_, '\0') => return Err("a NUL character".to_owned()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(format!("expected a closing {open}"));
    }
    words.extend(word);
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err("expected a program and its arguments, as in 'notify-send Alarm'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_command_is_split_as_a_shell_does() {
        let split = |line: &str| words(line).unwrap();
        assert_eq!(split(r#"mail -s "duly alarm"  root"#), ["mail", "-s", "duly alarm", "root"]);
        assert_eq!(split(r#"a 'b "c" $d' "" e\ f "\"\$\x""#), ["a", r#"b "c" $d"#, "", "e f", r#""$\x"#]);
        for refused in ["", "  ", "''", "a 'b", "a \\"] {
            assert!(words(refused).is_err(), "{refused:?}");
        }
    }
}
