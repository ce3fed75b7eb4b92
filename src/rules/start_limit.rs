//! Limits of starts: when the next start is free, and how many are. Pure.
//!
//! A limit counts in an exact sliding window. The starts of a subject are numbered; the next one may follow when the start `starts`
//! numbers before it is `per` ago.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::start_rate::StartRate;

/// At most `starts` starts in any `per` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) starts: i64,
    pub(crate) per: i64,
}

impl Rate {
    /// Parses the text of a task's column `max_starts`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let StartRate { starts, per } = text.parse()?;
        Ok(Rate { starts: starts.into(), per: i64::try_from(per.as_millis()).unwrap_or(i64::MAX) })
    }

    /// Returns when the next start is free: an instant that may have passed. `compared`: the time of the start `starts` numbers before it;
    /// without one, the next start is free at once.
    ///
    /// `Rate { starts: 2, per: 60 }`, after starts at 10 and 30: the next is free at 70, and the one after that at 90.
    pub(crate) fn opens_at(&self, compared: Option<i64>) -> Option<Timestamp> {
        compared.map(|start| {
            let at = start.saturating_add(self.per);
            Timestamp::from_millis(at.clamp(Timestamp::MIN.as_millis(), Timestamp::MAX.as_millis()))
        })
    }

    /// Returns how many starts are free at once, at most `most`.
    ///
    /// `compared`: the starts that the next ones are compared with, in the order of their numbers: for the first of them place 1, for the
    /// second place 2. A place that is missing compares with no start.
    pub(crate) fn left(&self, compared: &[(i64, i64)], most: i64, now: Timestamp) -> i64 {
        let is_closed = |start: i64| self.opens_at(Some(start)).is_some_and(|at| at > now);
        let first_closed = compared.iter().find(|(_, start)| is_closed(*start));
        first_closed.map_or(i64::MAX, |(place, _)| place - 1).min(self.starts).min(most).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;
    use crate::clock::Timestamp;

    #[test]
    fn the_next_start_is_free_when_the_one_so_many_before_it_is_long_enough_ago() {
        let rate = Rate::parse("2/1m").expect("a rate");
        assert_eq!(rate, Rate { starts: 2, per: 60_000 });
        assert_eq!(rate.opens_at(None), None, "there were fewer starts than the limit allows");
        assert_eq!(rate.opens_at(Some(1_805_025_600_000)), Some(Timestamp::from_millis(1_805_025_660_000)));
        assert_eq!(rate.opens_at(Some(i64::MAX)), Some(Timestamp::MAX));
        assert!(Rate::parse("2 a minute").is_err());
    }

    #[test]
    fn as_many_starts_are_free_as_are_compared_with_none_or_with_old_ones() {
        const AT: i64 = 1_805_025_600_000;
        let rate = Rate { starts: 4, per: 60 };
        let left = |compared: &[(i64, i64)], most| rate.left(compared, most, Timestamp::from_millis(AT + 60));
        for (compared, most, free) in [
            (&[] as &[(i64, i64)], 9, 4),
            (&[], 3, 3),
            // Three starts so far: the first of the next four compares with none.
            (&[(2, AT), (3, AT + 1), (4, AT + 1)], 9, 2),
            (&[(1, AT), (2, AT), (3, AT), (4, AT)], 9, 4),
            (&[(1, AT), (2, AT + 1), (3, AT + 1), (4, AT + 1)], 9, 1),
            (&[(1, AT + 1), (2, AT + 1)], 9, 0),
            // One that was read ahead counts as a later start than the one after it.
            (&[(1, AT), (2, AT + 7), (3, AT)], 9, 1),
        ] {
            assert_eq!(left(compared, most), free, "{compared:?} {most}");
        }
    }
}
