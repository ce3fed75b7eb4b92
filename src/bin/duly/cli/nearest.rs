//! Suggestions for unknown names. Pure.

/// Most bytes of a name that are compared, which takes quadratic time.
const MAX_NAME: usize = 200;

/// Returns the known name that is most similar to `unknown`, if one is similar.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if unknown.len() > MAX_NAME {
        return None;
    }
    let limit = 1 + unknown.len() / 4;
    let near = known.filter(|name| name.len().abs_diff(unknown.len()) <= 4 * limit);
    let near = near.map(|name| (strsim::damerau_levenshtein(name, unknown), name)).min();
    near.filter(|(distance, _)| *distance <= limit).map(|(_, name)| name)
}

/// Returns the end of an error message: `: did you mean "nightly"?`, or nothing.
pub(crate) fn hint<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(unknown, known).map(|name| format!(": did you mean {name:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{hint, nearest};

    #[test]
    fn a_similar_name_is_suggested() {
        let known = ["nightly", "hourly", "digest:anna"];
        for (unknown, name) in [
            ("nigthly", Some("nightly")),
            ("nightl", Some("nightly")),
            ("digest:ann", Some("digest:anna")),
            ("Hourly", Some("hourly")),
            ("weekly", None),
            ("", None),
        ] {
            assert_eq!(nearest(unknown, known.into_iter()), name, "{unknown}");
        }
        assert_eq!(hint("houry", known.into_iter()), ": did you mean \"hourly\"?");
        assert_eq!(hint(&"x".repeat(100_000), known.into_iter()), "");
    }
}
