//! What the pages `tasks` and `task` read.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::filter::NamePattern;
use crate::model::run::{Origin, RunStatus};
use crate::model::task::{Task, TaskStatus};

/// Selects a page of tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskQuery {
    pub(crate) pattern: Option<NamePattern>,
    pub(crate) handler: Option<String>,
    pub(crate) status: Option<TaskStatus>,
    /// Also completed one-time tasks whose newest run is final and not dead.
    pub(crate) with_completed: bool,
    pub(crate) order: TaskOrder,
    /// Only tasks after this one, in the order of names.
    pub(crate) after: Option<After>,
    pub(crate) skip: usize,
    pub(crate) limit: usize,
    /// Most runs of each task.
    pub(crate) marks: usize,
}

/// The order of tasks. Those that are equal in it are in the order of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TaskOrder {
    #[default]
    Name,
    /// Invalid tasks, then those with dead runs since their last success or resume, most of them first, then those that are retried.
    Failing,
    /// By the next run.
    Next,
    /// By the end of the last run, the newest first.
    Last,
}

impl TaskOrder {
    /// Returns the terms of ORDER BY, for the table `t`, which both stores read alike.
    pub(crate) fn terms(self) -> &'static str {
        match self {
            TaskOrder::Name => "t.name",
            TaskOrder::Failing => {
                "CASE WHEN t.status = 'invalid' THEN 0 WHEN t.failure_count > 0 THEN 1 WHEN t.last_status = 'failed' THEN 2 ELSE 3 END,
                 t.failure_count DESC, t.name"
            }
            TaskOrder::Next => "CASE WHEN t.next_run IS NULL THEN 1 ELSE 0 END, t.next_run, t.name",
            TaskOrder::Last => "CASE WHEN t.last_finished IS NULL THEN 1 ELSE 0 END, t.last_finished DESC, t.name",
        }
    }
}

/// The last task of the page before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Name(String),
    /// The id of a task whose name cannot be shown as it is stored.
    Id(i64),
}

/// A page of tasks.
#[derive(Debug)]
pub(crate) struct TaskPage {
    /// Each with its last runs, oldest first.
    pub(crate) tasks: Vec<(Task, Vec<Mark>)>,
    /// Whether there are tasks after these.
    pub(crate) has_more: bool,
}

/// A run in the strip of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) run: i64,
    pub(crate) status: RunStatus,
    /// When it began; its occurrence, if it did not.
    pub(crate) at: Timestamp,
    pub(crate) duration: Option<Duration>,
}

/// Selects a page of runs, newest first. A run matches all conditions.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunQuery {
    /// Only those of this task.
    pub(crate) task: Option<i64>,
    /// Only those of tasks with such a name.
    pub(crate) pattern: Option<NamePattern>,
    pub(crate) handler: Option<String>,
    pub(crate) status: Option<RunStatus>,
    /// Only queued, running and failed runs.
    pub(crate) is_unfinished: bool,
    /// Only those whose occurrence, or newest occurrence, is not before this instant, and not after the other.
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    /// Only those whose error contains this text, whatever the case of its ASCII letters.
    pub(crate) error: Option<String>,
    /// Only those that were opened before the run with this id.
    pub(crate) before: Option<i64>,
    pub(crate) limit: usize,
    /// Most runs that are looked at to find them.
    pub(crate) most: usize,
}

impl RunQuery {
    /// Most runs that one page looks at.
    pub(crate) const MOST: usize = 50_000;

    /// Returns the newest runs of a task.
    pub(crate) fn of_task(task: i64, limit: usize) -> Self {
        RunQuery { task: Some(task), limit, most: Self::MOST, ..RunQuery::default() }
    }

    /// Returns how many runs it looks at: no more than it returns, if all match.
    pub(crate) fn looks_at(&self) -> usize {
        let selects = self.pattern.is_some()
            || self.handler.is_some()
            || self.status.is_some()
            || self.is_unfinished
            || self.since.is_some()
            || self.until.is_some()
            || self.error.is_some();
        if selects { self.most } else { self.limit.saturating_add(1).min(self.most) }
    }

    /// Returns whether an index has all runs that match, or a few more: the dead ones, or the unfinished ones.
    pub(crate) fn few(&self) -> Option<Few> {
        match self.status {
            Some(RunStatus::Dead) => Some(Few::Dead),
            Some(RunStatus::Queued | RunStatus::Running | RunStatus::Failed) => Some(Few::Unfinished),
            Some(_) => None,
            None => self.is_unfinished.then_some(Few::Unfinished),
        }
    }

    /// Makes a page of the runs that were found, of which the first one too many is not shown. `end`: the last one that was looked at if
    /// there may be older ones, and when it began or ended.
    pub(crate) fn page(&self, mut runs: Vec<RunLine>, end: Option<(i64, Option<Timestamp>)>) -> RunPage {
        let is_full = runs.len() > self.limit;
        runs.truncate(self.limit);
        // What was opened before a run that began before `since` was due before it.
        let is_late = |at: Option<Timestamp>| self.since.is_some_and(|since| at.is_some_and(|at| at < since));
        let end = end.filter(|(_, at)| !is_full && !is_late(*at)).map(|(run, _)| run);
        let next = if is_full { runs.last().map(|run| run.id) } else { end };
        RunPage { runs, next, is_cut: end.is_some() }
    }
}

#[cfg(all(test, feature = "postgres"))]
impl TaskQuery {
    /// Selects some of the tasks that the tests of the server's reach write. `name`: one of them.
    pub(crate) fn random(random: &mut fastrand::Rng, name: &str) -> Self {
        let after = match random.u8(..3) {
            0 => None,
            1 => Some(After::Name(name.to_owned())),
            _ => Some(After::Id(random.i64(1..14))),
        };
        let orders = [TaskOrder::Name, TaskOrder::Failing, TaskOrder::Next, TaskOrder::Last];
        TaskQuery {
            pattern: random.bool().then(|| "task-?".into()),
            handler: random.bool().then(|| "beta".to_owned()),
            status: None,
            with_completed: random.bool(),
            order: if after.is_some() { TaskOrder::Name } else { orders[random.usize(..4)] },
            after,
            skip: random.usize(..3),
            limit: random.usize(1..6),
            marks: random.usize(1..6),
        }
    }
}

#[cfg(all(test, feature = "postgres"))]
impl RunQuery {
    /// Selects some of the runs that the tests of the server's reach write.
    pub(crate) fn random(random: &mut fastrand::Rng, now: Timestamp) -> Self {
        let mut occurrence = || random.bool().then(|| now.minus(Duration::from_secs(random.u64(..1200))));
        let (since, until) = (occurrence(), occurrence());
        RunQuery {
            task: random.bool().then(|| random.i64(1..13)),
            pattern: random.bool().then(|| "task-?".into()),
            handler: random.bool().then(|| "beta".to_owned()),
            status: [None, Some(RunStatus::Queued), Some(RunStatus::Dead)][random.usize(..3)],
            is_unfinished: random.bool(),
            since,
            until,
            error: (random.u8(..4) == 0).then(|| "TEx".to_owned()),
            before: random.bool().then(|| random.i64(1..170)),
            limit: random.usize(1..6),
            most: random.usize(1..200),
        }
    }
}

/// Runs that an index holds, of which there are few in most databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Few {
    Dead,
    Unfinished,
}

/// A page of runs, newest first.
#[derive(Clone, Debug)]
pub(crate) struct RunPage {
    pub(crate) runs: Vec<RunLine>,
    /// The next page has runs that were opened before the run with this id. `None`: there are none.
    pub(crate) next: Option<i64>,
    /// Whether the page ends because it has looked at as many runs as it may.
    pub(crate) is_cut: bool,
}

/// A run without its payload, result and output.
#[derive(Clone, Debug)]
pub(crate) struct RunLine {
    pub(crate) id: i64,
    pub(crate) task: String,
    pub(crate) handler: String,
    pub(crate) scheduled_for: Timestamp,
    pub(crate) origin: Option<Origin>,
    /// `None`: no version of duly stores such a status.
    pub(crate) status: Option<RunStatus>,
    pub(crate) run_at: Timestamp,
    pub(crate) blocked: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) duration: Option<Duration>,
    /// The first [`RunLine::MAX_ERROR`] characters of its error; of several lines the last characters.
    pub(crate) error: Option<String>,
    pub(crate) occurrences: u64,
}

impl RunLine {
    pub(crate) const MAX_ERROR: usize = 1000;
}

#[cfg(test)]
mod tests {
    use super::{Few, RunLine, RunQuery};
    use crate::clock::Timestamp;
    use crate::model::run::RunStatus;

    fn line(id: i64) -> RunLine {
        let (task, handler, scheduled_for) = (String::new(), String::new(), Timestamp::MIN);
        let (origin, status, blocked, started_at, duration, error) = Default::default();
        let (run_at, attempt, occurrences) = (Timestamp::MIN, 1, 1);
        RunLine {
            id,
            task,
            handler,
            scheduled_for,
            origin,
            status,
            run_at,
            blocked,
            attempt,
            started_at,
            duration,
            error,
            occurrences,
        }
    }

    #[test]
    fn a_page_ends_where_it_is_full_or_has_looked_at_enough() {
        let at = Timestamp::from_millis;
        let query = RunQuery { limit: 2, most: 9, since: Some(at(1000)), ..RunQuery::default() };
        for (found, end, shown, next, is_cut) in [
            (&[7, 6][..], None, 2, None, false),
            (&[7, 6, 5], None, 2, Some(6), false),
            (&[7, 6, 5], Some((3, None)), 2, Some(6), false),
            (&[7], Some((3, None)), 1, Some(3), true),
            (&[], Some((3, Some(at(1000)))), 0, Some(3), true),
            // All older runs were opened, and so were due, before the first instant that matters.
            (&[], Some((3, Some(at(999)))), 0, None, false),
        ] {
            let page = query.page(found.iter().map(|id| line(*id)).collect(), end);
            assert_eq!((page.runs.len(), page.next, page.is_cut), (shown, next, is_cut), "{found:?}, {end:?}");
        }
    }

    #[test]
    fn a_page_without_a_condition_looks_at_no_more_than_it_shows() {
        let query = RunQuery::of_task(1, 50);
        assert_eq!((query.looks_at(), query.few()), (51, None));
        let query = RunQuery { status: Some(RunStatus::Dead), ..query };
        assert_eq!((query.looks_at(), query.few()), (RunQuery::MOST, Some(Few::Dead)));
        assert_eq!(RunQuery { status: None, is_unfinished: true, ..query }.few(), Some(Few::Unfinished));
    }
}
