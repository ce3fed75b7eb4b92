//! JSON that SQLite accepts and `jsonb` refuses. It is refused in the tables in memory, as a fault of the item that it belongs to: the
//! server would refuse a whole turn.

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;

use crate::model::json_value::members;
use crate::store::postgres::tables::JSON;

/// Longest payload, as PostgreSQL writes it, in bytes: `schema.sql` refuses a longer one when it is read.
const MAX_PAYLOAD: usize = 256 * 1024;
/// Longest other JSON, in bytes. `1e100000` is short here, and has 100001 digits there.
const MAX_JSON: usize = 1024 * 1024;
/// Most digits of a number before and after its point.
const MAX_DIGITS: i64 = 131_072;
const MAX_DECIMALS: i64 = 16_383;

/// Makes the tables in memory refuse JSON that the server cannot store.
pub(crate) fn refuse_unstorable(tables: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    tables.create_scalar_function("duly_json_fault", 2, flags, |context| {
        let (ValueRef::Text(column), ValueRef::Text(text)) = (context.get_raw(0), context.get_raw(1)) else {
            return Ok(None);
        };
        let column = String::from_utf8_lossy(column);
        Ok(fault_of(&column, text).map(|fault| format!("the {column} {fault}")))
    })?;
    for (table, column) in JSON {
        for (event, name) in [("INSERT", "inserted"), (&*format!("UPDATE OF {column}"), "updated")] {
            tables.execute_batch(&format!(
                "CREATE TRIGGER {table}_{column}_{name} BEFORE {event} ON {table}
                 WHEN duly_refuses() AND duly_json_fault('{column}', NEW.{column}) IS NOT NULL
                 BEGIN SELECT RAISE(ABORT, duly_json_fault('{column}', NEW.{column})); END"
            ))?;
        }
    }
    Ok(())
}

/// Returns why a column of `jsonb` does not store a text that is JSON.
pub(super) fn fault_of(column: &str, text: &[u8]) -> Option<String> {
    fault(text, if column == "payload" { MAX_PAYLOAD } else { MAX_JSON })
}

fn fault(text: &[u8], max: usize) -> Option<String> {
    let mut length: usize = 0;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let begin = at;
        match byte {
            b'"' => {
                at = match string_end(text, at + 1) {
                    Ok(end) => end,
                    Err(fault) => return Some(fault),
                };
                length += at - begin;
            }
            b'-' | b'0'..=b'9' => {
                at += text[at..]
                    .iter()
                    .take_while(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                    .count();
                let (digits, decimals) = digits(&text[begin..at]);
                if digits > MAX_DIGITS || decimals > MAX_DECIMALS {
                    return Some(format!(
                        "holds a number that PostgreSQL cannot store: expected at most {MAX_DIGITS} digits and {MAX_DECIMALS} decimals"
                    ));
                }
                let marks = usize::from(*byte == b'-') + usize::from(decimals > 0);
                length += usize::try_from(digits + decimals).unwrap_or(usize::MAX) + marks;
            }
            // A space follows.
            b',' | b':' => (at, length) = (at + 1, length + 2),
            b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            _ => (at, length) = (at + 1, length + 1),
        }
    }
    (length > max)
        .then(|| format!("is too long for PostgreSQL: expected at most {max} bytes with its spaces, found {length}"))
}

/// Returns the position after the end of a string.
fn string_end(text: &[u8], mut at: usize) -> Result<usize, String> {
    loop {
        match text.get(at) {
            None => return Ok(at),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => {
                at += match unit(text, at) {
                    Some(0) => return Err(r"holds \u0000, which PostgreSQL cannot store in JSON".to_owned()),
                    Some(0xD800..=0xDBFF) if matches!(unit(text, at + 6), Some(0xDC00..=0xDFFF)) => 12,
                    Some(half @ 0xD800..=0xDFFF) => {
                        return Err(format!(
                            r"holds \u{half:04x}, half of a surrogate pair, which PostgreSQL cannot store in JSON"
                        ));
                    }
                    Some(_) => 6,
                    None => 2,
                }
            }
            Some(_) => at += 1,
        }
    }
}

/// Returns a text of JSON as the server can store it: with U+FFFD in place of `\u0000`, and of halves of surrogate pairs. `None`: two keys
/// of one object would become equal, or the text nests too deep to find that out.
pub(super) fn storable(text: &str) -> Option<String> {
    let stored = replaced(text, |_| '\u{FFFD}');
    if stored == text {
        return Some(stored);
    }
    // Each unit keeps a character of its own here, of those for private use.
    let apart = members(&replaced(text, |unit| char::from_u32(0xF_0000 + unit).unwrap_or('\u{FFFD}')))?;
    (members(&stored)? == apart).then_some(stored)
}

/// Returns a text of JSON with a character in place of each code unit that the server cannot store.
fn replaced(text: &str, with: impl Fn(u32) -> char) -> String {
    let mut stored = String::with_capacity(text.len());
    let mut rest = text;
    // Outside of strings there is no backslash.
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        stored.push_str(before);
        let length = match unit(escape.as_bytes(), 0) {
            Some(0xD800..=0xDBFF) if matches!(unit(escape.as_bytes(), 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(unit @ (0 | 0xD800..=0xDFFF)) => {
                stored.push(with(unit));
                rest = &escape[6..];
                continue;
            }
            Some(_) => 6,
            None => 2,
        };
        let (escape, after) = escape.split_at_checked(length).unwrap_or((escape, ""));
        stored.push_str(escape);
        rest = after;
    }
    stored + rest
}

/// Returns the code unit of an escape `\u....` at this place.
fn unit(text: &[u8], at: usize) -> Option<u32> {
    let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns how many digits a number has before and after its point when it is written without an exponent.
fn digits(number: &[u8]) -> (i64, i64) {
    let number = std::str::from_utf8(number).unwrap_or_default().trim_start_matches('-');
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let exponent = exponent.parse::<i64>().unwrap_or(if exponent.starts_with('-') { -1 << 40 } else { 1 << 40 });
    let exponent = exponent.clamp(-1 << 40, 1 << 40);
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX / 2);
    ((length(whole) + exponent).max(1), (length(decimals) - exponent).max(0))
}

#[cfg(test)]
mod tests {
    use super::{MAX_PAYLOAD, fault, storable};

    fn of(text: &str) -> String {
        fault(text.as_bytes(), MAX_PAYLOAD).unwrap_or_default()
    }

    #[test]
    fn json_that_the_server_refuses_is_known() {
        for stored in [
            "null",
            r#""\\u0000""#,
            r#"{"a\"b": "\u0001\u00e9\ud83d\ude00\\", "n": [-1.5e-3, 1E+10, 0.0]}"#,
            r#"{"1e999999": "1e999999 \" 1e999999"}"#,
            "1e131071",
            "1e-16383",
        ] {
            assert_eq!(of(stored), "", "{stored}");
        }
        for (refused, says) in [
            (r#""\u0000""#, r"\u0000"),
            (r#"{"a\u0000": 1}"#, r"\u0000"),
            (r#"["\\\u0000"]"#, r"\u0000"),
            (r#""\ud83d""#, r"\ud83d, half"),
            (r#""\uD83D\u0041""#, r"\ud83d, half"),
            (r#""\ude00\ud83d""#, r"\ude00, half"),
            (r#""\ud83d\ud83d\ude00""#, r"\ud83d, half"),
            ("1e131072", "a number"),
            ("[1, -1.5e-16383]", "a number"),
            ("1e99999999999999999999", "a number"),
            ("1e-99999999999999999999", "a number"),
            ("[1e100000, 1e100000, 1e100000]", "too long"),
        ] {
            assert!(of(refused).contains(says), "{refused}: {}", of(refused));
        }
    }

    #[test]
    fn what_the_server_cannot_hold_in_a_string_is_replaced() {
        for (text, expected) in [
            (
                r#"{"a\u0000b": ["\\u0000", "\ud83d\ude00", "\n\u00e9\\"]}"#,
                r#"{"a?b": ["\\u0000", "\ud83d\ude00", "\n\u00e9\\"]}"#,
            ),
            (r#""\ud83d\ud83d\ude00\ude00""#, r#""?\ud83d\ude00?""#),
            ("[1e6]", "[1e6]"),
        ] {
            let stored = storable(text).unwrap();
            assert_eq!(stored.replace('\u{FFFD}', "?"), expected);
            assert_eq!(of(&stored), "");
        }
        // A member would be lost.
        assert_eq!(storable(r#"{"a": [{"\ud800": 1, "\ud801": 2}]}"#), None);
        assert_eq!(storable("{\"\\u0000\": 1, \"\u{fffd}\": 2}"), None);
        assert!(storable(r#"{"\ud800": {"a": 1}, "a\ud801": {"a": 2, "a": "\u0000"}}"#).is_some());
    }

    #[test]
    fn the_length_counts_the_spaces_that_the_server_writes() {
        let list = |items: usize| format!("[{}]", vec!["1"; items].join(","));
        // `[1, 1]`: three bytes for each item.
        assert_eq!(of(&list(MAX_PAYLOAD / 3)), "");
        assert!(of(&list(MAX_PAYLOAD / 3 + 1)).contains("too long"));
        let text = |bytes: usize| format!("  \"{}\"\n", "x".repeat(bytes));
        assert_eq!(of(&text(MAX_PAYLOAD - 2)), "");
        assert!(of(&text(MAX_PAYLOAD - 1)).contains("too long"));
    }
}
