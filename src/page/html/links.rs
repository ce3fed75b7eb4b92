//! Links to the pages: the only code that writes the path of a task or a run, or a value of a query.

use std::fmt::Write;

/// Returns the path of the page of a task. The name is one encoded segment, so that `/`, `:` and `@` reach the route as they are in
/// the name. Actions append to the path: `/trigger`.
pub(in crate::page) fn task(name: &str) -> String {
    format!("/tasks/{}", encoded(name))
}

/// Returns the path of the page of a run. Actions append to the path: `/cancel`.
pub(in crate::page) fn run(id: i64) -> String {
    format!("/runs/{id}")
}

/// Returns a path with a query of the names whose values are not empty.
pub(in crate::page) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let pairs = query.iter().filter(|(_, value)| !value.is_empty());
    let text: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if text.is_empty() { path.to_owned() } else { format!("{path}?{}", text.join("&")) }
}

/// Returns text as a segment of a path, or as a value of a query: all bytes except letters, digits, `-`, `_` and `.` are
/// percent-encoded.
pub(in crate::page) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::{run, task};

    #[test]
    fn a_name_is_one_segment() {
        assert_eq!(task("nightly-report"), "/tasks/nightly-report");
        assert_eq!(task("mail:anna@example.org/../x"), "/tasks/mail%3Aanna%40example.org%2F..%2Fx");
        assert_eq!(task("é%2f?&#+ "), "/tasks/%C3%A9%252f%3F%26%23%2B%20");
        assert_eq!(run(81), "/runs/81");
    }
}
