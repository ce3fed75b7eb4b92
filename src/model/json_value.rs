//! Equality of JSON by value, as two values of `jsonb` are equal: a payload, a result or the value of an effect is the same document
//! on a server as in a file, where it is the text that was written.

use serde::de::IgnoredAny;

/// Most lists and objects within each other that are compared. A deeper text is the same as an equal text only.
const MAX_DEPTH: usize = 1_000;

/// Returns whether two texts of JSON hold the same value, whatever their spaces, escapes and the order of their keys are. Of equal keys
/// the last one counts. Numbers are compared exactly, with all of their digits.
pub(crate) fn same_value(one: &str, other: &str) -> bool {
    let same = |one: &str, other: &str| number(one) == number(other);
    one == other || read(one).zip(read(other)).is_some_and(|(one, other)| one.root.equals(&other.root, same))
}

/// Returns whether a stored text is what a store would have if it stored `given`, but for spaces, escapes and the order of keys. A file
/// keeps each number as it was written, and equal keys. A column of `jsonb` keeps the last of equal keys, and of a number its digits
/// without an exponent.
pub(crate) fn is_stored_as(stored: &str, given: &str) -> bool {
    let same = |stored: &str, given: &str| {
        let is_plain = !stored.contains(['e', 'E']) && (number(stored) != "0" || !stored.starts_with('-'));
        let is_printed = || number(stored) == number(given) && decimals(stored) == decimals(given);
        stored == given || is_plain && is_printed()
    };
    let equals = |(one, other): (Document, Document)| !one.has_equal_keys && one.root.equals(&other.root, same);
    stored == given || read(stored).zip(read(given)).is_some_and(equals)
}

/// Returns how many members the objects of a text have, of equal keys one; `None` for a text that cannot be compared.
#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a migration counts them"))]
pub(crate) fn members(text: &str) -> Option<usize> {
    read(text).map(|document| document.members)
}

struct Document {
    root: Node,
    members: usize,
    has_equal_keys: bool,
}

enum Node {
    /// As it was written.
    Number(String),
    /// A string, `true`, `false` or `null`, without needless escapes.
    Word(String),
    List(Vec<Node>),
    /// In the order of the keys, each of them once.
    Object(Vec<(String, Node)>),
}

impl Node {
    fn equals(&self, other: &Node, same_number: fn(&str, &str) -> bool) -> bool {
        match (self, other) {
            (Node::Number(one), Node::Number(other)) => same_number(one, other),
            (Node::Word(one), Node::Word(other)) => one == other,
            (Node::List(one), Node::List(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.equals(other, same_number))
            }
            (Node::Object(one), Node::Object(other)) => {
                let same = |((key, one), (other_key, other)): (&(String, Node), &(String, Node))| {
                    key == other_key && one.equals(other, same_number)
                };
                one.len() == other.len() && one.iter().zip(other).all(same)
            }
            _ => false,
        }
    }
}

/// A list or an object of which a part was read.
enum Open {
    List(Vec<Node>),
    /// The members, and the key whose value follows.
    Object(Vec<(String, Node)>, Option<String>),
}

/// Returns `None` for a text that is no JSON, that nests too deep, or that holds half of a surrogate pair.
fn read(text: &str) -> Option<Document> {
    // It checks the syntax, at any depth without recursion.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let (mut rest, mut open) = (text, Vec::new());
    let (mut members, mut has_equal_keys) = (0, false);
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let (token, after) = rest.split_at_checked(length_of_token(rest)?)?;
        rest = after;
        let node = match token.as_bytes()[0] {
            b'[' | b'{' if open.len() == MAX_DEPTH => return None,
            b'[' => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            b'{' => {
                open.push(Open::Object(Vec::new(), None));
                continue;
            }
            b',' | b':' => continue,
            b']' | b'}' => match open.pop()? {
                Open::List(items) => Node::List(items),
                Open::Object(mut all, _) => {
                    let written = all.len();
                    // Stable: the last of equal keys comes first.
                    all.reverse();
                    all.sort_by(|(one, _), (other, _)| one.cmp(other));
                    all.dedup_by(|(one, _), (other, _)| one == other);
                    members += all.len();
                    has_equal_keys |= all.len() < written;
                    Node::Object(all)
                }
            },
            b'"' => Node::Word(serde_json::to_string(&serde_json::from_str::<String>(token).ok()?).ok()?),
            b'-' | b'0'..=b'9' => Node::Number(token.to_owned()),
            _ => Node::Word(token.to_owned()),
        };
        match (open.last_mut(), node) {
            (None, root) => return Some(Document { root, members, has_equal_keys }),
            (Some(Open::List(items)), node) => items.push(node),
            (Some(Open::Object(_, key @ None)), Node::Word(name)) => *key = Some(name),
            (Some(Open::Object(members, key)), node) => members.push((key.take()?, node)),
        }
    }
}

/// Returns the bytes of the token with which a text begins; `None` at the end of the text or within a string.
fn length_of_token(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    match bytes.first()? {
        b'[' | b']' | b'{' | b'}' | b',' | b':' => Some(1),
        b'"' => {
            let mut at = 1;
            loop {
                match bytes.get(at)? {
                    b'"' => return Some(at + 1),
                    b'\\' => at += 2,
                    _ => at += 1,
                }
            }
        }
        _ => Some(text.find([',', ':', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(text.len())),
    }
}

/// Returns a number without leading and trailing zeros, as digits and an exponent. Zero has no sign.
fn number(text: &str) -> String {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text), |unsigned| ("-", unsigned));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{decimals}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return "0".to_owned();
    }
    let moved = i64::try_from(digits.len() - significant.len())
        .ok()
        .zip(i64::try_from(decimals.len()).ok())
        .map(|(zeros, decimals)| zeros - decimals);
    // An exponent of more digits is beyond every store: such a number is equal to one that is written in the same way.
    match exponent.parse::<i64>().ok().zip(moved).and_then(|(exponent, moved)| exponent.checked_add(moved)) {
        Some(exponent) => format!("{sign}{significant}e{exponent}"),
        None => text.to_owned(),
    }
}

/// Returns how many decimals a number has when it is written without an exponent.
fn decimals(text: &str) -> i64 {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let written = mantissa.split_once('.').map_or(0, |(_, decimals)| i64::try_from(decimals.len()).unwrap_or(i64::MAX));
    written.saturating_sub(exponent.parse().unwrap_or_default()).max(0)
}

#[cfg(test)]
mod tests {
    use super::{MAX_DEPTH, is_stored_as, same_value};

    #[test]
    fn json_is_the_same_by_value() {
        for (one, other) in [
            (r#"{"a":1,"b":"x \" 2"}"#, r#"{"b": "x \" 2", "a": 1}"#),
            ("1e6", "1000000"),
            ("[-0.0, 0e9]", "[0,0.000]"),
            ("12.500e-3", "0.0125"),
            (r#"{"a":1,"a":2}"#, r#" { "a" : 2 } "#),
            (r#""\u00e9\/\ud83d\ude00""#, "\"\u{e9}/\u{1f600}\""),
            (r#"{"\u0061":[{}, [], null, true]}"#, r#"{"a":[{},[],null,true]}"#),
            ("1e131071", "10e131070"),
        ] {
            assert!(same_value(one, other) && same_value(other, one), "{one} {other}");
        }
        for (one, other) in [
            (r#"{"id":12345678901234567890123}"#, r#"{"id":12345678901234567890132}"#),
            (
                "[12345678901234567890123, 12345678901234567890132]",
                "[12345678901234567890132, 12345678901234567890123]",
            ),
            ("[1, 2]", "[2, 1]"),
            ("1", "\"1\""),
            ("1", "-1"),
            ("1e1", "1"),
            (r#"{"a":1,"a":2}"#, r#"{"a":1}"#),
            (r#"{"a":[1]}"#, r#"{"a":[1],"b":null}"#),
            ("[[1],2]", "[[1,2]]"),
            ("null", "false"),
        ] {
            assert!(!same_value(one, other), "{one} {other}");
        }
    }
    #[test]
    fn a_text_that_is_no_json_is_no_value() {
        for (one, other) in
            [("[1,,2]", "[1,2]"), ("[1 2]", "[1,2]"), (r#"{"a":1,}"#, r#"{"a":1}"#), (r#"{"a" 1}"#, r#"{"a":1}"#)]
        {
            assert!(!same_value(one, other) && !is_stored_as(one, other) && !is_stored_as(other, one), "{one} {other}");
        }
    }

    #[test]
    fn deep_texts_are_read_in_one_pass() {
        let lists = |depth: usize, space: &str| format!("{}{space}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(same_value(&lists(MAX_DEPTH, ""), &lists(MAX_DEPTH, " ")));
        assert!(!same_value(&lists(MAX_DEPTH + 1, ""), &lists(MAX_DEPTH + 1, " ")));
        // Within the size of a result.
        assert!(!same_value(&lists(500_000, ""), &lists(500_000, " ")));
    }

    #[test]
    fn another_form_of_a_payload_is_stored_where_the_store_keeps_it() {
        for (stored, given) in [
            // In a file.
            (r#"{"n":5.0}"#, r#"{ "n": 5.0 }"#),
            (r#"{"a":1,"b":"\u00e9"}"#, "{\"b\": \"\u{e9}\", \"a\": 1}"),
            (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#),
            ("1e6", "1e6"),
            // On a server.
            ("1000000", "1e6"),
            ("0.0", "-0.0"),
            ("0", "0e5"),
            ("15.0", "1.50e1"),
            ("-0.0010", "-1.0E-3"),
            (r#"{"a": 2}"#, r#"{"a":1,"a":2}"#),
        ] {
            assert!(is_stored_as(stored, given), "{stored} {given}");
        }
        for (stored, given) in [
            (r#"{"n":5.0}"#, r#"{"n":5}"#),
            (r#"{"n":5}"#, r#"{"n":5.0}"#),
            ("1e6", "1000000"),
            ("1e6", "1E6"),
            ("-0", "0"),
            ("-0.0", "0.0"),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            ("15", "1.50e1"),
        ] {
            assert!(!is_stored_as(stored, given) && same_value(stored, given), "{stored} {given}");
        }
    }
}
