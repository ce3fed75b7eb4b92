//! The results of checks.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Good,
    /// Passed, with a note.
    Odd,
    /// Failed.
    Bad,
    /// Could not be completed.
    Undecided,
}

/// A check with its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    /// What was found, with figures.
    pub(crate) found: String,
    /// What to do, unless the check is good.
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

    pub(crate) fn undecided(check: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Check { check, verdict: Verdict::Undecided, found: found.into(), advice: Some(advice) }
    }
}
