//! Equality of JSON by value, as two values of `jsonb` are equal: a payload, a result or the value of an effect is the same document
//! on a server as in a file, where it is the text that was written.

use std::collections::BTreeMap;

/// Returns whether two texts of JSON hold the same value, whatever their spaces, escapes and the order of their keys are. Of equal keys
/// the last one counts. Numbers are compared exactly, with all of their digits.
pub(crate) fn same_value(one: &str, other: &str) -> bool {
    one == other || normal(one).is_some_and(|one| normal(other) == Some(one))
}

/// A list or an object of which a part was read, as texts in the normal form.
enum Open {
    List(Vec<String>),
    /// The members, and the key whose value follows.
    Object(BTreeMap<String, String>, Option<String>),
}

/// Returns the text that all texts of a value share; `None` for a text that is no JSON.
fn normal(text: &str) -> Option<String> {
    let (mut rest, mut open) = (text, Vec::new());
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let (token, after) = rest.split_at_checked(length_of_token(rest)?)?;
        rest = after;
        let done = match token.as_bytes()[0] {
            b'[' => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            b'{' => {
                open.push(Open::Object(BTreeMap::new(), None));
                continue;
            }
            b',' | b':' => continue,
            b']' | b'}' => closed(open.pop()?),
            b'"' => serde_json::to_string(&serde_json::from_str::<String>(token).ok()?).ok()?,
            b'-' | b'0'..=b'9' => number(token),
            _ => token.to_owned(),
        };
        match open.last_mut() {
            None => return rest.trim_ascii().is_empty().then_some(done),
            Some(Open::List(items)) => items.push(done),
            Some(Open::Object(members, key)) => match key.take() {
                None => *key = Some(done),
                Some(key) => _ = members.insert(key, done),
            },
        }
    }
}

fn closed(open: Open) -> String {
    match open {
        Open::List(items) => format!("[{}]", items.join(",")),
        Open::Object(members, _) => {
            let members: Vec<String> = members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", members.join(","))
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

#[cfg(test)]
mod tests {
    use super::same_value;

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
}
