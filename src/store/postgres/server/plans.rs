//! The plans of prepared statements. The server keeps the plan that it made for a statement until it has new statistics, and the one that
//! it made for empty tables reads large ones from end to end.

use std::time::Duration;

/// Of a transaction that writes: its statements go along indexes, whatever the statistics say. They sort to find distinct rows: for a
/// hash table of as many rows as it expects the server allocates megabytes, also in a turn that finds nothing.
pub(super) const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
                                   SET LOCAL enable_mergejoin = off; SET LOCAL enable_hashagg = off";

/// A statement that takes longer than this has all plans made again, but not more often than every [`KEPT`].
const SLOW: Duration = Duration::from_millis(50);
const KEPT: Duration = Duration::from_secs(2);

/// Whether the plans of a session are made again when its next transaction begins.
#[derive(Debug)]
pub(super) struct Plans {
    stale: bool,
    /// When they were last found stale.
    since: Option<Duration>,
}

impl Plans {
    pub(super) fn new() -> Self {
        Plans { stale: false, since: None }
    }

    /// Notes that a statement which was prepared before has been answered.
    pub(super) fn note(&mut self, begun: Duration, ended: Duration) {
        let is_old = self.since.is_none_or(|since| ended.saturating_sub(since) > KEPT);
        if ended.saturating_sub(begun) > SLOW && is_old {
            *self = Plans { stale: true, since: Some(ended) };
        }
    }

    /// Returns what the message that begins a transaction begins with.
    pub(super) fn renew(&mut self) -> &'static str {
        if std::mem::take(&mut self.stale) { "DISCARD PLANS; " } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Plans, SLOW};

    #[test]
    fn a_slow_statement_has_the_plans_made_again_from_time_to_time() {
        let (mut plans, at) = (Plans::new(), KEPT);
        plans.note(at, at + SLOW);
        assert_eq!(plans.renew(), "", "it was not slow");
        plans.note(at, at + SLOW * 2);
        assert_eq!((plans.renew(), plans.renew()), ("DISCARD PLANS; ", ""), "once");
        plans.note(at + SLOW * 2, at + SLOW * 4);
        assert_eq!(plans.renew(), "", "soon after");
        plans.note(at + KEPT * 2, at + KEPT * 3);
        assert_eq!(plans.renew(), "DISCARD PLANS; ");
    }
}
