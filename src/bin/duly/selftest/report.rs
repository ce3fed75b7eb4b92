//! What was looked at, and what was found.

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Good,
    /// As duly needs it, with something that one should know.
    Odd,
    /// Not to be trusted.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    /// What was done, with its figures.
    pub(crate) found: String,
    /// What to do about it; nothing where all is well.
    pub(crate) advice: Option<&'static str>,
}

impl Check {
    pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Self {
        Check { check, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    pub(crate) fn odd(check: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Check { check, verdict: Verdict::Odd, found: found.into(), advice: Some(advice) }
    }

    pub(crate) fn bad(check: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Check { check, verdict: Verdict::Bad, found: found.into(), advice: Some(advice) }
    }
}

/// So many of a thing: `1 start`, `2 starts`.
pub(crate) fn so_many(count: impl TryInto<u64>, one: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}
