//! What follows from the end of a run: which tasks a run is opened of, how long such a chain may get, and which chains are refused. Pure.

use std::collections::{HashMap, HashSet};

use crate::model::run::{Origin, RunStatus};

/// Most runs that follow one after another: the next one is not opened. A circle can be written by SQL, by an
/// application in a transaction of its own on PostgreSQL, and with `on_dead` and `on_missed`.
pub(crate) const MAX_LENGTH: u32 = 100;

/// Most tasks that the search for a circle looks at, beside those from which it begins. A longer circle counts as one when it runs:
/// [`MAX_LENGTH`].
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

/// Returns the names in a column such as `on_success`, without empty ones, which only SQL writes.
pub(crate) fn names(column: &str) -> impl Iterator<Item = &str> {
    column.split(',').map(|name| name.trim_matches(' ')).filter(|name| !name.is_empty())
}

/// A run that follows another: its request key says which one, and how many runs led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) parent: i64,
    /// 1 for a run that follows one which follows none.
    pub(crate) length: u32,
}

impl Link {
    /// Returns the link of a run that follows `parent`, to which `length` runs have led. `None`: the chain is too long.
    pub(crate) fn after(parent: i64, length: u32) -> Option<Link> {
        (length < MAX_LENGTH).then_some(Link { parent, length: length + 1 })
    }

    /// Returns how many runs have led to a run with this request key, one after another.
    pub(crate) fn length_of(key: Option<&str>) -> u32 {
        key.and_then(Link::parse).map_or(0, |link| link.length)
    }

    /// Reads a request key. Those that users give do not begin with `#`.
    pub(crate) fn parse(key: &str) -> Option<Link> {
        let (parent, length) = key.strip_prefix('#')?.split_once('/')?;
        Some(Link { parent: parent.parse().ok()?, length: length.parse().ok()? })
    }

    /// Returns the request key.
    pub(crate) fn key(self) -> String {
        format!("#{}/{}", self.parent, self.length)
    }
}

/// Returns a way from one of these tasks back to it, if there is one. `next`: the tasks that follow a task, which is looked up once.
pub(crate) fn circle<E>(
    tasks: &[&str],
    mut next: impl FnMut(&str) -> Result<Vec<String>, E>,
) -> Result<Option<Vec<String>>, E> {
    let given: HashSet<&str> = tasks.iter().copied().collect();
    // Each task that was looked at, with its place on the way. `None`: all that follows from it was searched.
    let mut seen: HashMap<String, Option<usize>> = HashMap::new();
    let (mut looked_at, mut is_complete) = (0, true);
    for task in tasks {
        if !std::mem::replace(&mut is_complete, true) {
            seen.clear();
        }
        let mut way: Vec<String> = Vec::new();
        let mut left = vec![vec![(*task).to_owned()]];
        while let Some(followers) = left.last_mut() {
            let Some(follower) = followers.pop() else {
                left.pop();
                if let Some(searched) = way.pop() {
                    seen.insert(searched, None);
                }
                continue;
            };
            let known = seen.get(&follower).copied();
            if let Some(Some(at)) = known {
                // A circle to which these tasks only lead is not theirs, and hides what else follows from its tasks.
                is_complete = false;
                if let Some(first) = way[at..].iter().position(|on_way| given.contains(on_way.as_str())) {
                    let mut circle = way.split_off(at);
                    circle.rotate_left(first);
                    circle.push(circle[0].clone());
                    return Ok(Some(circle));
                }
            } else if known.is_none() && looked_at < tasks.len() + MAX_LOOKED_AT {
                looked_at += 1;
                seen.insert(follower.clone(), Some(way.len()));
                let mut followers = next(&follower)?;
                followers.reverse();
                left.push(followers);
                way.push(follower);
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
            (RunStatus::Skipped, Schedule, true, &[]),
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
        let after = |parent, key| Link::after(parent, Link::length_of(key));
        let first = after(7, None).unwrap();
        assert_eq!((first, first.key().as_str()), (Link { parent: 7, length: 1 }, "#7/1"));
        assert_eq!(after(8, Some("#7/1")), Some(Link { parent: 8, length: 2 }));
        assert_eq!(after(8, Some("order-17")), Some(Link { parent: 8, length: 1 }), "the key of a user");
        assert_eq!(after(200, Some("#199/99")).map(|link| link.length), Some(MAX_LENGTH));
        assert_eq!(after(201, Some("#200/100")), None);
        for key in ["", "#", "#7", "7/1", "#x/1", "#7/-1"] {
            assert_eq!(Link::parse(key), None, "{key}");
        }
    }

    #[test]
    fn a_search_from_many_tasks_looks_each_of_them_up_once() {
        let name = |n: usize| format!("t{n}");
        let names: Vec<String> = (0..300).rev().map(name).collect();
        let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
        let search = |last: Option<usize>| {
            let mut looked_up = 0;
            let next = |from: &str| {
                looked_up += 1;
                let n: usize = from[1..].parse().unwrap();
                let follower = if n < 299 { Some(n + 1) } else { last };
                Ok::<_, Infallible>(follower.map(name).into_iter().collect())
            };
            let found = circle(&tasks, next).unwrap().map(|way| way.join(" "));
            (found, looked_up)
        };
        assert_eq!(search(None), (None, 300));
        assert_eq!(search(Some(298)).0.as_deref(), Some("t299 t298 t299"), "it begins at the first given task");
    }

    #[test]
    fn a_circle_is_found_whatever_leads_to_it() {
        let ways = |tasks: &[&str], edges: &[(&str, &str)]| {
            let next = |from: &str| {
                let to = edges.iter().filter(|(task, _)| *task == from);
                Ok::<_, Infallible>(to.flat_map(|(_, to)| names(to).map(str::to_owned)).collect())
            };
            circle(tasks, next).unwrap().map(|way| way.join(" "))
        };
        let way = |task: &str, edges: &[(&str, &str)]| ways(&[task], edges);
        let found = |way: &str| Some(way.to_owned());
        assert_eq!(way("a", &[("a", "a")]), found("a a"));
        assert_eq!(way("a", &[("a", "b, c"), ("c", "d"), ("d", "x,a")]), found("a c d a"));
        assert_eq!(way("a", &[("a", "b"), ("b", "c"), ("c", "b")]), None, "a circle that it only leads to");
        assert_eq!(way("a", &[("a", "b,c"), ("b", "d"), ("c", "d")]), None, "two ways to one task");
        assert_eq!(way("a", &[]), None);
        assert_eq!(way("a", &[("a", "b"), ("b", "c"), ("c", "b,a")]), found("a b c a"), "one circle within another");
        let written_by_sql = [("v", "u,g2"), ("u", "v"), ("g1", "v"), ("g2", "u")];
        assert_eq!(
            ways(&["g1", "g2"], &written_by_sql),
            found("g2 u v g2"),
            "the search from g1 has met another circle"
        );
    }
}
