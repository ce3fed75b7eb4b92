//! Which runs a turn claims, where a scheduler has async handlers: they and the worker threads have limits of their own. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::turn_io::Slots;

/// The names of all handlers, by what runs them.
#[derive(Debug)]
pub(crate) struct Lanes {
    all: Arc<BTreeSet<String>>,
    threads: Arc<BTreeSet<String>>,
    futures: Arc<BTreeSet<String>>,
    /// Whether the last turn read ahead for the workers, and claimed nothing for the runtime.
    read_ahead: bool,
}

/// What a turn claims.
#[derive(Debug)]
pub(crate) struct Choice {
    /// For which handlers. `None`: for those of the turn before, since nothing may be claimed.
    pub(crate) handlers: Option<Arc<BTreeSet<String>>>,
    pub(crate) slots: Slots,
    /// With this number of claims another turn follows at once: it may claim more.
    pub(crate) again_with: Option<usize>,
}

impl Lanes {
    pub(crate) fn new(all: BTreeSet<String>, futures: BTreeSet<String>) -> Self {
        let threads = all.difference(&futures).cloned().collect();
        Lanes { all: Arc::new(all), threads: Arc::new(threads), futures: Arc::new(futures), read_ahead: false }
    }

    /// Chooses what the next turn claims. `threads`: for the workers; `free`: for the runtime. A turn has one number of slots,
    /// which must exceed neither limit.
    pub(crate) fn choose(&mut self, threads: Slots, free: usize) -> Choice {
        let threads = if self.threads.is_empty() { Slots::default() } else { threads };
        let is_turn_of_others = std::mem::take(&mut self.read_ahead);
        let choice = |handlers: &Arc<BTreeSet<String>>, slots, again_with| Choice {
            handlers: Some(handlers.clone()),
            slots,
            again_with,
        };
        match (threads.room, free) {
            (0, 0) => Choice { handlers: None, slots: threads, again_with: None },
            (_, 0) => choice(&self.threads, threads, None),
            (room, free) if room > threads.idle && !is_turn_of_others => {
                self.read_ahead = free > 0;
                choice(&self.threads, threads, Some(0))
            }
            (_, free) if threads.idle == 0 => choice(&self.futures, Slots { room: free, idle: free }, None),
            (_, free) => {
                let both = free.min(threads.idle);
                choice(&self.all, Slots { room: both, idle: both }, Some(both))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Choice, Lanes};
    use crate::store::turn_io::Slots;

    fn names(text: &str) -> std::collections::BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the handlers, the slots and the number of claims after which another turn follows.
    fn chosen(lanes: &mut Lanes, room: usize, idle: usize, free: usize) -> (String, usize, usize, Option<usize>) {
        let Choice { handlers, slots, again_with } = lanes.choose(Slots { room, idle }, free);
        let handlers = handlers.iter().flat_map(|names| names.iter().cloned()).collect::<Vec<_>>().join(" ");
        (handlers, slots.room, slots.idle, again_with)
    }

    #[test]
    fn a_turn_exceeds_no_limit_and_each_kind_gets_its_turn() {
        let mut lanes = Lanes::new(names("mail work"), names("mail"));
        let all = |slots| ("mail work".to_owned(), slots, slots, Some(slots));
        assert_eq!(chosen(&mut lanes, 4, 4, 1000), all(4));
        assert_eq!(chosen(&mut lanes, 4, 4, 2), all(2));
        assert_eq!(chosen(&mut lanes, 0, 0, 996), ("mail".to_owned(), 996, 996, None));
        assert_eq!(chosen(&mut lanes, 3, 3, 0), ("work".to_owned(), 3, 3, None));
        assert_eq!(chosen(&mut lanes, 0, 0, 0), (String::new(), 0, 0, None));
        // Short runs are read ahead in every second turn.
        assert_eq!(chosen(&mut lanes, 20, 0, 7), ("work".to_owned(), 20, 0, Some(0)));
        assert_eq!(chosen(&mut lanes, 20, 0, 7), ("mail".to_owned(), 7, 7, None));
        assert_eq!(chosen(&mut lanes, 20, 4, 7), ("work".to_owned(), 20, 4, Some(0)));
        assert_eq!(chosen(&mut lanes, 20, 4, 7), all(4));
    }

    #[test]
    fn workers_without_a_handler_limit_nothing() {
        let mut lanes = Lanes::new(names("mail"), names("mail"));
        assert_eq!(chosen(&mut lanes, 4, 4, 1000), ("mail".to_owned(), 1000, 1000, None));
        assert_eq!(chosen(&mut lanes, 40, 4, 1000), ("mail".to_owned(), 1000, 1000, None));
    }
}
