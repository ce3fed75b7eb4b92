//! Which runs a turn claims: the worker threads, the async handlers and each executor have handlers and a limit of their own. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::turn_io::Slots;

/// The names of the handlers, by what runs them: the worker threads first, then the lanes beside them.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// What was given; names may be in more than one.
    given: Vec<Arc<BTreeSet<String>>>,
    /// Each name is in one of them: the first that has it.
    handlers: Vec<Arc<BTreeSet<String>>>,
    /// What the last joint turn was for, and their handlers.
    joint: (Vec<usize>, Arc<BTreeSet<String>>),
    last: Last,
}

/// What the last turn claimed for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Last {
    /// For all that could start.
    All,
    /// For all that could start, this number. More may be waiting.
    Joint(usize),
    /// For all that could start, as many as it had slots; since then, for each of these alone.
    Full(Vec<usize>),
    /// For the workers, read ahead.
    Ahead,
}

/// What a turn claims.
#[derive(Debug)]
pub(crate) struct Choice {
    /// For which handlers. `None`: for those of the turn before, since nothing may be claimed.
    pub(crate) handlers: Option<Arc<BTreeSet<String>>>,
    pub(crate) slots: Slots,
}

impl Lanes {
    /// `threads`: the handlers that the worker threads run.
    pub(crate) fn new(threads: BTreeSet<String>) -> Self {
        let threads = Arc::new(threads);
        let (given, handlers) = (vec![threads.clone()], vec![threads.clone()]);
        Lanes { given, handlers, joint: (vec![0], threads), last: Last::All }
    }

    /// Sets the handlers of the lanes beside the workers, in the order in which they take precedence. Returns whether they have changed.
    pub(crate) fn update(&mut self, lanes: Vec<Arc<BTreeSet<String>>>) -> bool {
        if self.given[1..] == lanes[..] {
            return false;
        }
        self.given.truncate(1);
        self.given.extend(lanes);
        self.handlers.clear();
        for names in &self.given {
            let is_taken = |name: &&String| self.handlers.iter().any(|before| before.contains(*name));
            let own = names.iter().filter(|name| !is_taken(name)).cloned().collect();
            self.handlers.push(Arc::new(own));
        }
        self.joint = (Vec::new(), Arc::default());
        true
    }

    /// Returns the names of all handlers.
    pub(crate) fn all(&self) -> BTreeSet<String> {
        self.handlers.iter().flat_map(|names| names.iter().cloned()).collect()
    }

    /// Returns the lane beside the workers that has a handler; `None`: the workers.
    pub(crate) fn beside(&self, handler: &str) -> Option<usize> {
        self.handlers[1..].iter().position(|names| names.contains(handler))
    }

    /// Chooses what the next turn claims. `threads`: for the workers; `free`: for each lane beside them. A turn has one number of slots,
    /// which must exceed no limit, and is for all that have slots. Where more runs wait than the smallest limit, each larger limit
    /// gets a turn of its own, the largest first: a few idle workers do not hold up a thousand async runs.
    pub(crate) fn choose(&mut self, threads: Slots, free: &[usize]) -> Choice {
        let has_none = self.handlers[0].is_empty() && self.handlers.iter().any(|names| !names.is_empty());
        let threads = if has_none { Slots::default() } else { threads };
        let beside = self.handlers[1..].iter().zip(free).map(|(names, free)| if names.is_empty() { 0 } else { *free });
        let limits: Vec<usize> = std::iter::once(threads.idle).chain(beside).collect();
        let open: Vec<usize> = (0..limits.len()).filter(|lane| limits[*lane] > 0).collect();
        let before = std::mem::replace(&mut self.last, Last::All);
        let is_beside_open = limits[1..].iter().any(|free| *free > 0);
        if !is_beside_open {
            let handlers = (threads.room > 0).then(|| self.handlers[0].clone());
            return Choice { handlers, slots: threads };
        }
        if threads.room > threads.idle && before != Last::Ahead {
            self.last = Last::Ahead;
            return Choice { handlers: Some(self.handlers[0].clone()), slots: threads };
        }
        let smallest = open.iter().map(|lane| limits[*lane]).min().unwrap_or_default();
        if let Last::Full(mut served) = before {
            let larger = open.iter().filter(|lane| limits[**lane] > smallest && !served.contains(lane));
            if let Some(lane) = larger.max_by_key(|lane| limits[**lane]).copied() {
                let slots = if lane == 0 { threads } else { Slots { room: limits[lane], idle: limits[lane] } };
                served.push(lane);
                self.last = Last::Full(served);
                return Choice { handlers: Some(self.handlers[lane].clone()), slots };
            }
        }
        if open.len() > 1 {
            self.last = Last::Joint(smallest);
        }
        Choice { handlers: Some(self.joint(open)), slots: Slots { room: smallest, idle: smallest } }
    }

    /// Returns the handlers of these lanes: the same set while the lanes are the same.
    fn joint(&mut self, lanes: Vec<usize>) -> Arc<BTreeSet<String>> {
        if self.joint.0 != lanes {
            let names = match lanes[..] {
                [lane] => self.handlers[lane].clone(),
                _ => Arc::new(lanes.iter().flat_map(|lane| self.handlers[*lane].iter().cloned()).collect()),
            };
            self.joint = (lanes, names);
        }
        self.joint.1.clone()
    }

    /// Records how many runs the turn has claimed. Returns whether another turn follows at once: it may claim more. A turn after
    /// which the loop waits has claimed for all handlers whose runs could start, so that its wake time counts for all of them.
    pub(crate) fn claimed(&mut self, claims: usize) -> bool {
        if matches!(self.last, Last::Joint(slots) if claims >= slots) {
            self.last = Last::Full(Vec::new());
        }
        matches!(self.last, Last::Full(_) | Last::Ahead)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Choice, Lanes};
    use crate::store::turn_io::Slots;

    fn names(text: &str) -> std::collections::BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn lanes<const N: usize>(threads: &str, beside: [&str; N]) -> Lanes {
        let mut lanes = Lanes::new(names(threads));
        assert!(lanes.update(beside.map(|one| Arc::new(names(one))).to_vec()));
        lanes
    }

    /// Returns the handlers and the slots.
    fn chosen<const N: usize>(lanes: &mut Lanes, room: usize, idle: usize, free: [usize; N]) -> (String, usize, usize) {
        let Choice { handlers, slots } = lanes.choose(Slots { room, idle }, &free);
        let handlers = handlers.iter().flat_map(|names| names.iter().cloned()).collect::<Vec<_>>().join(" ");
        (handlers, slots.room, slots.idle)
    }

    #[test]
    fn a_turn_exceeds_no_limit_and_each_kind_gets_its_turn() {
        let mut lanes = lanes("work", ["mail"]);
        let of = |names: &str, room, idle| (names.to_owned(), room, idle);
        assert_eq!(chosen(&mut lanes, 4, 4, [1000]), of("mail work", 4, 4));
        assert!(!lanes.claimed(3));
        assert_eq!(chosen(&mut lanes, 4, 4, [2]), of("mail work", 2, 2));
        assert!(lanes.claimed(2), "more may be waiting");
        assert_eq!(chosen(&mut lanes, 0, 0, [996]), of("mail", 996, 996));
        assert!(!lanes.claimed(996), "it had all slots that are left");
        assert_eq!(chosen(&mut lanes, 3, 3, [0]), of("work", 3, 3));
        assert_eq!(chosen(&mut lanes, 0, 0, [0]), of("", 0, 0));
        // Short runs are read ahead in every second turn.
        assert_eq!(chosen(&mut lanes, 20, 0, [7]), of("work", 20, 0));
        assert!(lanes.claimed(0), "the runtime has slots too");
        assert_eq!(chosen(&mut lanes, 20, 0, [7]), of("mail", 7, 7));
        assert_eq!(chosen(&mut lanes, 20, 4, [7]), of("work", 20, 4));
        assert_eq!(chosen(&mut lanes, 20, 4, [7]), of("mail work", 4, 4));
    }

    #[test]
    fn handlers_of_one_kind_are_limited_by_their_own_slots() {
        let mut mails = lanes("", ["mail"]);
        assert_eq!(chosen(&mut mails, 4, 4, [1000]), ("mail".to_owned(), 1000, 1000));
        assert_eq!(chosen(&mut mails, 40, 4, [1000]), ("mail".to_owned(), 1000, 1000));
        let mut closures = lanes("work", [""]);
        assert_eq!(
            chosen(&mut closures, 40, 4, [9]),
            ("work".to_owned(), 40, 4),
            "a lane without handlers has no slots"
        );
        assert!(!closures.claimed(40));
        let mut none = Lanes::new(names(""));
        assert_eq!(chosen(&mut none, 4, 4, []), (String::new(), 4, 4));
    }

    #[test]
    fn each_name_belongs_to_the_first_that_has_it_and_sets_may_change() {
        let mut lanes = lanes("work", ["mail work", "mail chat"]);
        assert_eq!(["work", "mail", "chat", "other"].map(|name| lanes.beside(name)), [None, Some(0), Some(1), None]);
        assert_eq!(lanes.all(), names("chat mail work"));
        assert_eq!(chosen(&mut lanes, 2, 2, [0, 5]).0, "chat work");
        let same = ["mail work", "mail chat"].map(|one| Arc::new(names(one)));
        assert!(!lanes.update(same.to_vec()), "the same names in other sets");
        assert!(lanes.update(["", "mail chat"].map(|one| Arc::new(names(one))).to_vec()));
        assert_eq!((lanes.beside("mail"), chosen(&mut lanes, 2, 2, [7, 5]).0), (Some(1), "chat mail work".to_owned()));
    }

    #[test]
    fn turns_for_the_same_lanes_claim_for_the_same_set() {
        let mut lanes = lanes("work", ["mail", "chat"]);
        let mut turn = |free: [usize; 2]| lanes.choose(Slots { room: 4, idle: 4 }, &free).handlers.unwrap();
        let (first, second, third) = (turn([5, 6]), turn([6, 5]), turn([6, 0]));
        assert!(Arc::ptr_eq(&first, &second), "the poller reads everything again for another set");
        assert_eq!(*third, names("mail work"));
    }

    /// Claims until the loop would wait. Returns the number of turns, and what is left of (waiting, slots) of each lane.
    fn claim_all<const N: usize>(mut waiting: [usize; N], mut slots: [usize; N]) -> (usize, [usize; N], [usize; N]) {
        let kinds = &["work", "mail", "chat", "post"][..N];
        let mut lanes = Lanes::new(names(kinds[0]));
        lanes.update(kinds[1..].iter().map(|name| Arc::new(names(name))).collect());
        for turn in 1.. {
            let threads = Slots { room: slots[0], idle: slots[0] };
            let Choice { handlers, slots: of_turn } = lanes.choose(threads, &slots[1..]);
            let (handlers, mut left) = (handlers.unwrap_or_default(), of_turn.room);
            for (kind, name) in kinds.iter().enumerate() {
                let claims = if handlers.contains(*name) { left.min(waiting[kind]) } else { 0 };
                waiting[kind] -= claims;
                slots[kind] = slots[kind].checked_sub(claims).expect("no claim beyond a limit");
                left -= claims;
            }
            if !lanes.claimed(of_turn.room - left) {
                let startable = kinds.iter().zip(slots).filter(|(_, slots)| *slots > 0);
                assert!(
                    startable.into_iter().all(|(name, _)| handlers.contains(*name)),
                    "the wake time counts for all"
                );
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

    #[test]
    fn all_that_can_start_is_claimed_in_few_turns() {
        assert_eq!(claim_all([0, 0, 400, 0], [4, 1000, 500, 1]), (5, [0; 4], [4, 1000, 100, 1]));
        assert_eq!(claim_all([0, 900, 900, 900], [4, 10, 20, 30]), (5, [0, 890, 880, 870], [4, 0, 0, 0]));
        // Whatever waits: what can start has started, after few turns.
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let waiting: [usize; 4] = std::array::from_fn(|_| random.usize(0..30));
            let limits: [usize; 4] = std::array::from_fn(|_| random.usize(0..20));
            let (turns, left, slots) = claim_all(waiting, limits);
            for lane in 0..4 {
                assert!(left[lane] == 0 || slots[lane] == 0, "{waiting:?} {limits:?}: {left:?} {slots:?}");
            }
            assert!(turns <= 12, "{waiting:?} {limits:?}: {turns} turns");
        }
    }
}
