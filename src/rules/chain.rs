//! What follows from the end of a run: which tasks a run is opened of, how long such a chain may get, and which chains are refused. Pure.

use std::collections::{BTreeSet, VecDeque};

use crate::model::run::{Origin, RunStatus};

/// Most runs that follow one after another: the next one is not opened. Only tasks that SQL wrote, or a mixture with `on_dead` and
/// `on_missed`, can follow in a circle.
pub(crate) const MAX_LENGTH: u32 = 100;

/// Most tasks that the search for a circle looks at.
const MAX_LOOKED_AT: usize = 10_000;

/// The end of a run, as far as it matters what follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) status: RunStatus,
    pub(crate) origin: Origin,
    /// Whether an attempt of it has begun.
    pub(crate) began: bool,
}

impl Ending {
    /// Returns the columns whose tasks are run, the most specific one first. A run that reports a dead run is itself not reported, nor is
    /// one that reports what was missed. What never began has no end that another task could wait for.
    pub(crate) fn opens(self) -> &'static [Origin] {
        match self.status {
            RunStatus::Succeeded => &[Origin::OnSuccess, Origin::OnEnd],
            RunStatus::Dead if self.origin == Origin::OnDead => &[Origin::OnEnd],
            RunStatus::Dead => &[Origin::OnDead, Origin::OnEnd],
            RunStatus::Cancelled if self.began => &[Origin::OnEnd],
            RunStatus::Missed if self.origin != Origin::OnMissed => &[Origin::OnMissed],
            _ => &[],
        }
    }
}

/// Returns the names in a column such as `on_success`.
pub(crate) fn names(column: &str) -> impl Iterator<Item = &str> {
    column.split(',').map(|name| name.trim_matches(' '))
}

/// A run that follows another: its idempotency key says which one, and how many runs led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) parent: i64,
    /// 1 for a run that follows one which follows none.
    pub(crate) length: u32,
}

impl Link {
    /// Returns the link of a run that follows `parent`, whose own idempotency key is `key`. `None`: the chain is too long.
    pub(crate) fn after(parent: i64, key: Option<&str>) -> Option<Link> {
        let length = key.and_then(Link::parse).map_or(0, |link| link.length) + 1;
        (length <= MAX_LENGTH).then_some(Link { parent, length })
    }

    /// Reads an idempotency key. Those that users give do not begin with `#`.
    pub(crate) fn parse(key: &str) -> Option<Link> {
        let (parent, length) = key.strip_prefix('#')?.split_once('/')?;
        Some(Link { parent: parent.parse().ok()?, length: length.parse().ok()? })
    }

    /// Returns the idempotency key.
    pub(crate) fn key(self) -> String {
        format!("#{}/{}", self.parent, self.length)
    }
}

/// Returns a way from a task back to it, if there is one. `next`: the tasks that follow a task.
pub(crate) fn circle<E>(
    task: &str,
    mut next: impl FnMut(&str) -> Result<Vec<String>, E>,
) -> Result<Option<Vec<String>>, E> {
    let mut seen = BTreeSet::new();
    let mut ways = VecDeque::from([vec![task.to_owned()]]);
    while let Some(way) = ways.pop_front().filter(|_| seen.len() < MAX_LOOKED_AT) {
        for follower in next(way.last().map_or(task, String::as_str))? {
            let longer = way.iter().cloned().chain([follower.clone()]).collect();
            if follower == task {
                return Ok(Some(longer));
            }
            if seen.insert(follower) {
                ways.push_back(longer);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn each_end_opens_what_waits_for_it() {
        use Origin::{Manual, OnDead, OnEnd, OnMissed, OnSuccess, Schedule};
        let table: &[(RunStatus, Origin, bool, &[Origin])] = &[
            (RunStatus::Succeeded, Schedule, true, &[OnSuccess, OnEnd]),
            (RunStatus::Succeeded, OnDead, true, &[OnSuccess, OnEnd]),
            (RunStatus::Dead, Manual, true, &[OnDead, OnEnd]),
            (RunStatus::Dead, OnSuccess, true, &[OnDead, OnEnd]),
            (RunStatus::Dead, OnDead, true, &[OnEnd]),
            (RunStatus::Cancelled, Schedule, true, &[OnEnd]),
            (RunStatus::Cancelled, Schedule, false, &[]),
            (RunStatus::Missed, Schedule, false, &[OnMissed]),
            (RunStatus::Missed, OnEnd, false, &[OnMissed]),
            (RunStatus::Missed, OnMissed, false, &[]),
            (RunStatus::Skipped, Schedule, false, &[]),
            (RunStatus::Failed, Schedule, true, &[]),
            (RunStatus::Queued, Schedule, true, &[]),
        ];
        for (status, origin, began, opens) in table {
            let ending = Ending { status: *status, origin: *origin, began: *began };
            assert_eq!(ending.opens(), *opens, "{ending:?}");
        }
    }

    #[test]
    fn a_key_says_what_a_run_follows_and_a_chain_ends_at_its_limit() {
        let first = Link::after(7, None).unwrap();
        assert_eq!((first, first.key().as_str()), (Link { parent: 7, length: 1 }, "#7/1"));
        assert_eq!(Link::after(8, Some("#7/1")), Some(Link { parent: 8, length: 2 }));
        assert_eq!(Link::after(8, Some("order-17")), Some(Link { parent: 8, length: 1 }), "the key of a user");
        assert_eq!(Link::after(200, Some("#199/99")).map(|link| link.length), Some(MAX_LENGTH));
        assert_eq!(Link::after(201, Some("#200/100")), None);
        for key in ["", "#", "#7", "7/1", "#x/1", "#7/-1"] {
            assert_eq!(Link::parse(key), None, "{key}");
        }
    }

    #[test]
    fn a_circle_is_found_whatever_leads_to_it() {
        let way = |task: &str, edges: &[(&str, &str)]| {
            let next = |from: &str| {
                let to = edges.iter().filter(|(task, _)| *task == from);
                Ok::<_, Infallible>(to.flat_map(|(_, to)| names(to).map(str::to_owned)).collect())
            };
            circle(task, next).unwrap().map(|way| way.join(" "))
        };
        let found = |way: &str| Some(way.to_owned());
        assert_eq!(way("a", &[("a", "a")]), found("a a"));
        assert_eq!(way("a", &[("a", "b, c"), ("c", "d"), ("d", "x,a")]), found("a c d a"));
        assert_eq!(way("a", &[("a", "b"), ("b", "c"), ("c", "b")]), None, "a circle that it only leads to");
        assert_eq!(way("a", &[("a", "b,c"), ("b", "d"), ("c", "d")]), None, "two ways to one task");
        assert_eq!(way("a", &[]), None);
    }
}
