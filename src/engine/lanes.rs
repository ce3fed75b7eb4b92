//! Which runs a turn claims: async handlers and the worker threads have limits of their own. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::turn_io::Slots;

/// The names of all handlers, by what runs them.
#[derive(Debug)]
pub(crate) struct Lanes {
    all: Arc<BTreeSet<String>>,
    threads: Arc<BTreeSet<String>>,
    futures: Arc<BTreeSet<String>>,
    last: Last,
}

/// What the last turn claimed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// For all that could start.
    All,
    /// For both, this number. More may be waiting.
    Both(usize),
    /// For both, as many as it had slots.
    BothFull,
    /// For one of two that had slots: for the workers, read ahead, or for the one with more slots.
    One { is_ahead: bool },
}

/// What a turn claims.
#[derive(Debug)]
pub(crate) struct Choice {
    /// For which handlers. `None`: for those of the turn before, since nothing may be claimed.
    pub(crate) handlers: Option<Arc<BTreeSet<String>>>,
    pub(crate) slots: Slots,
}

impl Lanes {
    pub(crate) fn new(all: BTreeSet<String>, futures: BTreeSet<String>) -> Self {
        let threads = all.difference(&futures).cloned().collect();
        Lanes { all: Arc::new(all), threads: Arc::new(threads), futures: Arc::new(futures), last: Last::All }
    }

    /// Chooses what the next turn claims. `threads`: for the workers; `free`: for the runtime. A turn has one number of slots,
    /// which must exceed neither limit. Where both have slots and more runs wait than the smaller limit, the larger limit gets a
    /// turn of its own: a few idle workers do not hold up a thousand async runs.
    pub(crate) fn choose(&mut self, threads: Slots, free: usize) -> Choice {
        let is_for_none = self.threads.is_empty() && !self.futures.is_empty();
        let threads = if is_for_none { Slots::default() } else { threads };
        let futures = Slots { room: free, idle: free };
        let before = std::mem::replace(&mut self.last, Last::All);
        let (handlers, slots) = match (threads.room, free) {
            (0, 0) => return Choice { handlers: None, slots: threads },
            (_, 0) => (&self.threads, threads),
            (room, _) if room > threads.idle && before != (Last::One { is_ahead: true }) => {
                self.last = Last::One { is_ahead: true };
                (&self.threads, threads)
            }
            _ if threads.idle == 0 => (&self.futures, futures),
            _ if before == Last::BothFull && free != threads.idle => {
                self.last = Last::One { is_ahead: false };
                if free > threads.idle { (&self.futures, futures) } else { (&self.threads, threads) }
            }
            _ => {
                let both = free.min(threads.idle);
                self.last = Last::Both(both);
                (&self.all, Slots { room: both, idle: both })
            }
        };
        Choice { handlers: Some(handlers.clone()), slots }
    }

    /// Records how many runs the turn has claimed. Returns whether another turn follows at once: it may claim more. A turn after
    /// which the loop waits has claimed for all handlers whose runs could start, so that its wake time counts for all of them.
    pub(crate) fn claimed(&mut self, claims: usize) -> bool {
        if matches!(self.last, Last::Both(slots) if claims >= slots) {
            self.last = Last::BothFull;
        }
        matches!(self.last, Last::BothFull | Last::One { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::{Choice, Lanes};
    use crate::store::turn_io::Slots;

    fn names(text: &str) -> std::collections::BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the handlers and the slots.
    fn chosen(lanes: &mut Lanes, room: usize, idle: usize, free: usize) -> (String, usize, usize) {
        let Choice { handlers, slots } = lanes.choose(Slots { room, idle }, free);
        let handlers = handlers.iter().flat_map(|names| names.iter().cloned()).collect::<Vec<_>>().join(" ");
        (handlers, slots.room, slots.idle)
    }

    #[test]
    fn a_turn_exceeds_no_limit_and_each_kind_gets_its_turn() {
        let mut lanes = Lanes::new(names("mail work"), names("mail"));
        let of = |names: &str, room, idle| (names.to_owned(), room, idle);
        assert_eq!(chosen(&mut lanes, 4, 4, 1000), of("mail work", 4, 4));
        assert!(!lanes.claimed(3));
        assert_eq!(chosen(&mut lanes, 4, 4, 2), of("mail work", 2, 2));
        assert!(lanes.claimed(2), "more may be waiting");
        assert_eq!(chosen(&mut lanes, 0, 0, 996), of("mail", 996, 996));
        assert!(!lanes.claimed(996), "it had all slots that are left");
        assert_eq!(chosen(&mut lanes, 3, 3, 0), of("work", 3, 3));
        assert_eq!(chosen(&mut lanes, 0, 0, 0), of("", 0, 0));
        // Short runs are read ahead in every second turn.
        assert_eq!(chosen(&mut lanes, 20, 0, 7), of("work", 20, 0));
        assert!(lanes.claimed(0), "the runtime has slots too");
        assert_eq!(chosen(&mut lanes, 20, 0, 7), of("mail", 7, 7));
        assert_eq!(chosen(&mut lanes, 20, 4, 7), of("work", 20, 4));
        assert_eq!(chosen(&mut lanes, 20, 4, 7), of("mail work", 4, 4));
    }

    #[test]
    fn handlers_of_one_kind_are_limited_by_their_own_slots() {
        let mut mails = Lanes::new(names("mail"), names("mail"));
        assert_eq!(chosen(&mut mails, 4, 4, 1000), ("mail".to_owned(), 1000, 1000));
        assert_eq!(chosen(&mut mails, 40, 4, 1000), ("mail".to_owned(), 1000, 1000));
        let mut closures = Lanes::new(names("work"), names(""));
        assert_eq!(chosen(&mut closures, 40, 4, 0), ("work".to_owned(), 40, 4));
        assert!(!closures.claimed(40));
        let mut none = Lanes::new(names(""), names(""));
        assert_eq!(chosen(&mut none, 4, 4, 0), (String::new(), 4, 4));
    }

    /// Claims until the loop would wait. Returns the number of turns, and what is left of (waiting, slots) of both kinds.
    fn claim_all(mut waiting: [usize; 2], mut slots: [usize; 2]) -> (usize, [usize; 2], [usize; 2]) {
        let mut lanes = Lanes::new(names("mail work"), names("mail"));
        for turn in 1.. {
            let Choice { handlers, slots: of_turn } = lanes.choose(Slots { room: slots[0], idle: slots[0] }, slots[1]);
            let (handlers, mut left) = (handlers.unwrap_or_default(), of_turn.room);
            for (kind, name) in ["work", "mail"].into_iter().enumerate() {
                let claims = if handlers.contains(name) { left.min(waiting[kind]) } else { 0 };
                waiting[kind] -= claims;
                slots[kind] = slots[kind].checked_sub(claims).expect("no claim beyond a limit");
                left -= claims;
            }
            if !lanes.claimed(of_turn.room - left) {
                let startable = ["work", "mail"].into_iter().zip(slots).filter(|(_, slots)| *slots > 0);
                assert!(startable.into_iter().all(|(name, _)| handlers.contains(name)), "the wake time counts for all");
                return (turn, waiting, slots);
            }
        }
        unreachable!("turns without end")
    }

    #[test]
    fn idle_workers_do_not_hold_up_async_runs_nor_the_other_way_round() {
        assert_eq!(claim_all([0, 1000], [1, 1000]), (3, [0, 0], [1, 0]));
        assert_eq!(claim_all([1000, 0], [100, 1]), (3, [900, 0], [0, 1]));
        assert_eq!(claim_all([3, 10], [4, 1000]), (3, [0, 0], [1, 990]));
        assert_eq!(claim_all([0, 3], [4, 1000]), (1, [0, 0], [4, 997]));
        assert_eq!(claim_all([0, 0], [4, 1000]), (1, [0, 0], [4, 1000]));
        assert_eq!(claim_all([9, 9], [4, 4]), (2, [5, 5], [0, 0]));
    }
}
