//! Decides how many items one transaction writes, from the time for which those before it held the lock until
//! their commit. Pure.

use std::time::Duration;

/// Most items of a transaction.
pub(crate) const MAX_ITEMS: usize = 500;
/// How long a transaction holds the lock at most, as far as its size decides that. A debug build also checks all rules in each.
const LIMIT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 200 } else { 50 });
/// Fewest items: the commit costs as much as these.
const FEWEST: usize = 50;
/// How much larger the next one is after one that was short.
const STEP: usize = 25;

/// Bytes of a payload that a transaction writes in the time of an item.
const ITEM_BYTES: usize = 4096;

/// Returns how many items a new run counts as, whose payload has this many bytes.
pub(crate) fn items_of(bytes: usize) -> usize {
    1 + bytes / ITEM_BYTES
}

/// The size of the next transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnSize {
    items: usize,
    most: usize,
}

impl Default for TurnSize {
    fn default() -> Self {
        TurnSize::at_most(MAX_ITEMS)
    }
}

impl TurnSize {
    /// Returns the size of transactions that never write more than this.
    pub(crate) fn at_most(most: usize) -> Self {
        TurnSize { items: most, most }
    }

    /// Returns how many items the next one writes at most.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// A transaction on a server failed by a time limit: the next one writes half of its items, and at last a single one.
    pub(crate) fn took_too_long(&mut self) {
        self.items = (self.items / 2).max(1);
    }

    /// A transaction on a server was committed.
    #[cfg(feature = "postgres")]
    pub(crate) fn committed(&mut self) {
        self.items = (self.items + STEP).min(self.most);
    }

    /// A transaction wrote this many items, and held the lock for this long.
    pub(crate) fn wrote(&mut self, items: usize, held: Duration) {
        if held > LIMIT {
            self.items = (self.items / 2).max(FEWEST).min(self.most);
        } else if held < LIMIT / 2 && items >= self.items / 2 {
            // One with fewer items shows nothing about the time of as many.
            self.items = (self.items + STEP).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FEWEST, LIMIT, TurnSize};
    use std::time::Duration;

    #[test]
    fn it_is_halved_when_the_lock_was_held_for_too_long_and_grows_slowly() {
        let mut size = TurnSize::default();
        let sizes = |size: &mut TurnSize, held: Duration, times: usize| {
            (0..times).for_each(|_| size.wrote(size.items(), held));
            size.items()
        };
        assert_eq!(sizes(&mut size, LIMIT, 10), 500, "not too long");
        assert_eq!(sizes(&mut size, LIMIT * 2, 1), 250);
        assert_eq!(sizes(&mut size, LIMIT * 2, 10), FEWEST);
        assert_eq!(sizes(&mut size, LIMIT * 3 / 4, 10), FEWEST, "neither long nor short");
        assert_eq!(sizes(&mut size, LIMIT / 4, 2), 100);
        assert_eq!(sizes(&mut size, Duration::ZERO, 100), 500);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn it_is_halved_down_to_one_item_by_time_limits_of_a_server() {
        let mut size = TurnSize::default();
        let sizes: Vec<usize> = (0..10)
            .map(|_| {
                size.took_too_long();
                size.items()
            })
            .collect();
        assert_eq!(sizes, [250, 125, 62, 31, 15, 7, 3, 1, 1, 1]);
        size.committed();
        assert_eq!(size.items(), 26);
        (0..20).for_each(|_| size.committed());
        assert_eq!(size.items(), 500);
    }

    #[test]
    fn a_transaction_of_few_items_shows_nothing() {
        let mut size = TurnSize::default();
        size.wrote(500, LIMIT * 2);
        (0..100).for_each(|_| size.wrote(124, Duration::ZERO));
        assert_eq!(size.items(), 250);
        size.wrote(125, Duration::ZERO);
        assert_eq!(size.items(), 275);
    }

    /// As many items as fit into the time, whatever one costs.
    #[test]
    fn it_settles_below_the_limit() {
        for cost in [20, 100, 400, 900] {
            let (mut size, cost) = (TurnSize::default(), LIMIT / 50_000 * cost);
            let held = |size: &TurnSize| cost * u32::try_from(size.items()).unwrap();
            (0..4).for_each(|_| size.wrote(size.items(), held(&size)));
            for _ in 0..100 {
                assert!(held(&size) <= LIMIT, "{cost:?}");
                size.wrote(size.items(), held(&size));
            }
        }
    }
}
