//! The rows of the tables, and how they differ from those before.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use duly::{Misfire, Origin, Overlap, RunStatus, WhenLimited};
use rusqlite::Row;
use rusqlite::types::FromSql;

/// A row of `scheduled_tasks`, as far as the checker compares it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) handler: String,
    pub(crate) kind: String,
    pub(crate) value: String,
    pub(crate) zone: String,
    pub(crate) starts: Option<i64>,
    pub(crate) ends: Option<i64>,
    pub(crate) status: String,
    pub(crate) next_run: Option<i64>,
    pub(crate) planned: bool,
    pub(crate) active_since: i64,
    pub(crate) overlap: Overlap,
    pub(crate) misfire: Misfire,
    pub(crate) grace: i64,
    pub(crate) limit: usize,
    pub(crate) expires: Option<i64>,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: i64,
    pub(crate) cap: i64,
    pub(crate) on_dead: Option<String>,
    pub(crate) on_success: Option<String>,
    pub(crate) on_end: Option<String>,
    pub(crate) on_missed: Option<String>,
    pub(crate) only_between: Option<String>,
    pub(crate) except_on: Option<String>,
    pub(crate) pause_after: Option<u32>,
    pub(crate) failures: u32,
    pub(crate) jitter: i64,
    pub(crate) priority: u8,
    pub(crate) key: Option<String>,
    pub(crate) max_starts: Option<String>,
    pub(crate) when_limited: WhenLimited,
}

impl TaskRow {
    pub(crate) fn is_active(&self) -> bool {
        self.status == "active"
    }

    /// Returns whether its occurrences are local times.
    pub(crate) fn is_local(&self) -> bool {
        self.kind == "cron" || self.kind == "calendar"
    }

    /// Returns the names of the tasks that follow it.
    pub(crate) fn followers(&self, origin: Origin) -> impl Iterator<Item = &str> {
        let names = match origin {
            Origin::OnDead => &self.on_dead,
            Origin::OnSuccess => &self.on_success,
            Origin::OnEnd => &self.on_end,
            _ => &self.on_missed,
        };
        names.iter().flat_map(|names| names.split(',').map(str::trim))
    }

    /// Whether only its manual runs may start.
    pub(crate) fn is_halted(&self) -> bool {
        self.status == "paused" || self.status == "invalid"
    }

    /// Returns the columns from which its occurrences follow.
    pub(crate) fn schedule(&self) -> (&str, &str, &str, Option<i64>, Option<i64>) {
        (&self.kind, &self.value, &self.zone, self.starts, self.ends)
    }
}

/// A row of `task_runs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRow {
    pub(crate) id: i64,
    pub(crate) task: i64,
    pub(crate) handler: String,
    pub(crate) scheduled_for: i64,
    pub(crate) origin: Origin,
    pub(crate) retry_of: Option<i64>,
    pub(crate) status: RunStatus,
    pub(crate) run_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) blocked: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) forgiven: u32,
    pub(crate) interrupted: u32,
    pub(crate) priority: u8,
    pub(crate) key: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) lease: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) cancel_requested: bool,
    pub(crate) occurrences: i64,
    pub(crate) last: Option<i64>,
    pub(crate) duration: Option<i64>,
    /// Whether the row shows that the attempt began.
    pub(crate) is_announced: bool,
}

impl RunRow {
    /// Whether it follows the end of another run, or missed occurrences.
    pub(crate) fn follows(&self) -> bool {
        matches!(self.origin, Origin::OnDead | Origin::OnSuccess | Origin::OnEnd | Origin::OnMissed)
    }

    pub(crate) fn is_scheduled(&self) -> bool {
        matches!(self.origin, Origin::Schedule | Origin::CatchUp)
    }

    /// Returns the newest occurrence in this row.
    pub(crate) fn newest(&self) -> i64 {
        self.last.unwrap_or(self.scheduled_for)
    }

    /// Describes what it waits for.
    pub(crate) fn brief(&self) -> String {
        let (blocked, key) = (self.blocked.as_deref().unwrap_or("-"), self.key.as_deref().unwrap_or("-"));
        let Self { id, task, handler, origin, status, run_at, priority, .. } = self;
        let cancel = if self.cancel_requested { " cancel requested" } else { "" };
        let (attempt, forgiven) = (self.attempt, self.forgiven);
        let expires = self.expires_at.map_or_else(String::new, |at| format!(" expires {at}"));
        format!(
            "{id} of {task} {handler} {origin} {status} #{attempt}-{forgiven} at {run_at} p{priority} key {key} blocked \
             {blocked}{cancel}{expires}"
        )
    }

    /// Returns the number of attempts that count.
    pub(crate) fn counted(&self) -> u32 {
        self.attempt - self.forgiven
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) tasks: BTreeMap<i64, Rc<TaskRow>>,
    pub(crate) runs: BTreeMap<i64, Rc<RunRow>>,
    pub(crate) unfinished: BTreeMap<i64, Rc<RunRow>>,
    /// The newest heartbeat of any owner.
    pub(crate) seen_at: Option<i64>,
}

impl Tables {
    pub(crate) fn named(&self, name: &str) -> Option<&TaskRow> {
        self.tasks.values().map(Rc::as_ref).find(|task| task.name == name)
    }

    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &RunRow> {
        self.unfinished.values().map(Rc::as_ref)
    }
}

/// A run before and after, as far as it existed.
pub(crate) type Changed = (Option<Rc<RunRow>>, Option<Rc<RunRow>>);

/// The difference between two reads.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) tasks: BTreeMap<i64, Option<Rc<TaskRow>>>,
    pub(crate) runs: Vec<Changed>,
}

impl Tables {
    pub(crate) fn apply(&mut self, changes: &Changes, after: &Tables) {
        for (id, task) in &changes.tasks {
            match task {
                Some(task) => self.tasks.insert(*id, task.clone()),
                None => self.tasks.remove(id),
            };
        }
        for (before, after) in &changes.runs {
            self.put(before.as_deref().map(|run| run.id), after.clone());
        }
        self.seen_at = after.seen_at;
    }

    pub(crate) fn put(&mut self, gone: Option<i64>, run: Option<Rc<RunRow>>) {
        match (gone, run) {
            (_, Some(run)) => {
                if run.status.is_final() {
                    self.unfinished.remove(&run.id);
                } else {
                    self.unfinished.insert(run.id, run.clone());
                }
                self.runs.insert(run.id, run);
            }
            (Some(id), None) => {
                self.unfinished.remove(&id);
                self.runs.remove(&id);
            }
            (None, None) => {}
        }
    }
}

pub(crate) fn at<T: FromSql>(row: &Row<'_>, column: usize) -> T {
    row.get(column).expect("a column")
}

/// Returns a column that is text or NULL. Bytes that are not UTF-8 are replaced.
fn text<'r>(row: &'r Row<'_>, column: usize) -> Option<Cow<'r, str>> {
    row.get_ref(column).expect("a column").as_bytes_or_null().expect("text").map(String::from_utf8_lossy)
}

fn words(row: &Row<'_>, column: usize) -> Option<String> {
    text(row, column).map(Cow::into_owned)
}

impl RunRow {
    /// Whether the row is unchanged. Few of thousands of rows change: none is copied to compare it.
    pub(crate) fn is(&self, row: &Row<'_>) -> bool {
        at::<i64>(row, 0) == self.id
            && at::<i64>(row, 1) == self.task
            && text(row, 2).as_deref() == Some(&self.handler)
            && at::<i64>(row, 3) == self.scheduled_for
            && text(row, 4).as_deref() == Some(self.origin.as_str())
            && at::<Option<i64>>(row, 5) == self.retry_of
            && text(row, 6).as_deref() == Some(self.status.as_str())
            && at::<i64>(row, 7) == self.run_at
            && at::<Option<i64>>(row, 8) == self.expires_at
            && text(row, 9).as_deref() == self.blocked.as_deref()
            && at::<u32>(row, 10) == self.attempt
            && at::<u32>(row, 11) == self.forgiven
            && at::<u8>(row, 12) == self.priority
            && text(row, 13).as_deref() == self.key.as_deref()
            && text(row, 14).as_deref() == self.owner.as_deref()
            && at::<Option<i64>>(row, 15) == self.lease
            && at::<Option<i64>>(row, 16) == self.started_at
            && at::<Option<i64>>(row, 17) == self.finished_at
            && text(row, 18).as_deref() == self.error.as_deref()
            && text(row, 19).as_deref() == self.result.as_deref()
            && at::<bool>(row, 20) == self.cancel_requested
            && at::<i64>(row, 21) == self.occurrences
            && at::<Option<i64>>(row, 22) == self.last
            && at::<Option<i64>>(row, 23) == self.duration
            && at::<u32>(row, 24) == self.interrupted
            && at::<bool>(row, 25) == self.is_announced
    }
}

impl TaskRow {
    /// As [`RunRow::is`].
    fn is(&self, row: &Row<'_>) -> bool {
        at::<i64>(row, 0) == self.id
            && text(row, 1).as_deref() == Some(&self.name)
            && text(row, 2).as_deref() == Some(&self.handler)
            && text(row, 3).as_deref() == Some(&self.kind)
            && text(row, 4).as_deref() == Some(&self.value)
            && text(row, 5).as_deref() == Some(&self.zone)
            && at::<Option<i64>>(row, 6) == self.starts
            && at::<Option<i64>>(row, 7) == self.ends
            && text(row, 8).as_deref() == Some(&self.status)
            && at::<Option<i64>>(row, 9) == self.next_run
            && at::<bool>(row, 10) == self.planned
            && at::<i64>(row, 11) == self.active_since
            && text(row, 12).as_deref() == Some(self.overlap.as_str())
            && text(row, 13).as_deref() == Some(self.misfire.as_str())
            && at::<i64>(row, 14) == self.grace
            && at::<u32>(row, 15) as usize == self.limit
            && at::<u32>(row, 16) == self.max_attempts
            && at::<i64>(row, 17) == self.backoff
            && at::<i64>(row, 18) == self.cap
            && text(row, 19).as_deref() == self.on_dead.as_deref()
            && at::<Option<u32>>(row, 20) == self.pause_after
            && at::<u32>(row, 21) == self.failures
            && at::<Option<i64>>(row, 22) == self.expires
            && at::<i64>(row, 23) == self.jitter
            && at::<u8>(row, 24) == self.priority
            && text(row, 25).as_deref() == self.key.as_deref()
            && text(row, 26).as_deref() == self.on_success.as_deref()
            && text(row, 27).as_deref() == self.on_end.as_deref()
            && text(row, 28).as_deref() == self.on_missed.as_deref()
            && text(row, 29).as_deref() == self.only_between.as_deref()
            && text(row, 30).as_deref() == self.except_on.as_deref()
            && text(row, 31).as_deref() == self.max_starts.as_deref()
            && text(row, 32).as_deref() == Some(self.when_limited.as_str())
    }
}

fn word<T>(row: &Row<'_>, column: usize, parse: impl Fn(&str) -> Option<T>) -> T {
    parse(row.get_ref(column).expect("a column").as_str().expect("text")).expect("a known word")
}

/// Returns the row's task: the known one if it is unchanged.
pub(crate) fn task_of(row: &Row<'_>, known: &Tables) -> Rc<TaskRow> {
    let known = known.tasks.get(&at(row, 0)).filter(|known| known.is(row));
    known.cloned().unwrap_or_else(|| Rc::new(task(row)))
}

fn task(row: &Row<'_>) -> TaskRow {
    TaskRow {
        id: at(row, 0),
        name: words(row, 1).expect("text"),
        handler: words(row, 2).expect("text"),
        kind: words(row, 3).expect("text"),
        value: words(row, 4).expect("text"),
        zone: words(row, 5).expect("text"),
        starts: at(row, 6),
        ends: at(row, 7),
        status: words(row, 8).expect("text"),
        next_run: at(row, 9),
        planned: at(row, 10),
        active_since: at(row, 11),
        overlap: word(row, 12, Overlap::parse),
        misfire: word(row, 13, Misfire::parse),
        grace: at(row, 14),
        limit: at::<u32>(row, 15) as usize,
        max_attempts: at(row, 16),
        backoff: at(row, 17),
        cap: at(row, 18),
        on_dead: words(row, 19),
        pause_after: at(row, 20),
        failures: at(row, 21),
        expires: at(row, 22),
        jitter: at(row, 23),
        priority: at(row, 24),
        key: words(row, 25),
        on_success: words(row, 26),
        on_end: words(row, 27),
        on_missed: words(row, 28),
        only_between: words(row, 29),
        except_on: words(row, 30),
        max_starts: words(row, 31),
        when_limited: word(row, 32, WhenLimited::parse),
    }
}

pub(crate) fn run(row: &Row<'_>) -> RunRow {
    RunRow {
        id: at(row, 0),
        task: at(row, 1),
        handler: words(row, 2).expect("text"),
        scheduled_for: at(row, 3),
        origin: word(row, 4, Origin::parse),
        retry_of: at(row, 5),
        status: word(row, 6, RunStatus::parse),
        run_at: at(row, 7),
        expires_at: at(row, 8),
        blocked: words(row, 9),
        attempt: at(row, 10),
        forgiven: at(row, 11),
        priority: at(row, 12),
        key: words(row, 13),
        owner: words(row, 14),
        lease: at(row, 15),
        started_at: at(row, 16),
        finished_at: at(row, 17),
        error: words(row, 18),
        result: words(row, 19),
        cancel_requested: at(row, 20),
        occurrences: at(row, 21),
        last: at(row, 22),
        duration: at(row, 23),
        interrupted: at(row, 24),
        is_announced: at(row, 25),
    }
}
