//! The rows that look-ups need: each finds on the server what it returns, and reads only that.

use std::collections::BTreeSet;

use crate::clock::Timestamp;
use crate::model::recorded::EventFilter;
use crate::model::run::RunFilter;
#[cfg(feature = "page")]
use crate::model::views::Window;
use crate::rules::clock_monitor::NOTICED;
use crate::store::fault::Fault;
use crate::store::postgres::reach::around;
#[cfg(feature = "page")]
use crate::store::postgres::reach::timeline;
use crate::store::postgres::sheets::Sheets;
use crate::store::postgres::text::findable;
use crate::store::sqlite::sql::sql;

/// A look-up, with what it names.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// A task, with its last run.
    Task(String),
    /// Tasks of these names.
    Named(Vec<String>),
    /// Tasks by name after one, at most a number, with their last runs.
    Tasks {
        after: String,
        limit: i64,
    },
    Run(i64),
    Runs(RunFilter),
    Attempts(i64),
    Effects(i64),
    /// What follows a run.
    Followers(i64),
    /// What a scheduler with these handlers could do now.
    Idle(BTreeSet<String>),
    /// What the status lists. Its counts are not read.
    Status {
        now: Timestamp,
    },
    /// What a look for problems reads: living tasks, unfinished runs, and what has happened since an instant.
    Health {
        recent: Timestamp,
        now: Timestamp,
    },
    /// Limits and the next starts. Their use is counted on the server.
    Limits,
    Events(EventFilter),
    /// What counts from beyond an instant.
    Beyond(Timestamp),
    /// The schedulers, and all running runs.
    Owners,
    /// The running runs of a scheduler.
    ClaimedBy(String),
    /// Alarms of channels; a new one examines what was recorded since an instant.
    Alarms {
        channels: Vec<String>,
        since: Timestamp,
    },
    /// What the page of a run shows.
    #[cfg(feature = "page")]
    RunPage {
        run: i64,
        now: Timestamp,
    },
    /// Runs of a task, by id.
    #[cfg(feature = "page")]
    RunLines(Vec<i64>),
    /// Tasks by id, with at most a number of last runs.
    #[cfg(feature = "page")]
    TaskLines {
        tasks: Vec<i64>,
        marks: i64,
    },
    /// What the timeline shows.
    #[cfg(feature = "page")]
    Timeline {
        window: Window,
        now: Timestamp,
        /// Whether all tasks that a page examines are read, and not only until its lanes seem to be full.
        whole: bool,
    },
}

impl View {
    /// Returns the texts that are looked for, with their columns.
    pub(crate) fn names(&self) -> Vec<(&'static str, &str)> {
        match self {
            View::Task(name) => vec![("name", name)],
            View::Runs(RunFilter { task: Some(task), .. }) | View::Events(EventFilter { task: Some(task), .. }) => {
                vec![("name", task)]
            }
            View::Alarms { channels, .. } => channels.iter().map(|channel| ("channel", channel.as_str())).collect(),
            _ => Vec::new(),
        }
    }

    /// Reads the rows.
    pub(crate) fn read(&self, bench: &mut Sheets) -> Result<(), Fault> {
        around::version(bench)?;
        match self {
            View::Task(name) => {
                around::tasks_named(bench, &[name])?;
                around::last_runs(bench)
            }
            View::Named(names) => around::tasks_named(bench, names),
            View::Tasks { after, limit } => {
                let next = "WHERE t.id = ANY (ARRAY(
                    SELECT s.id FROM scheduled_tasks s WHERE s.name > $1 ORDER BY s.name LIMIT $2))";
                bench.read("scheduled_tasks", next, &[after, limit])?;
                around::last_runs(bench)
            }
            View::Run(run) => {
                around::runs(bench, &[*run])?;
                around::tasks_of_runs(bench)
            }
            View::Runs(filter) => runs(bench, filter),
            View::Attempts(run) => bench.read("task_attempts", "WHERE t.run_id = $1", &[run]).map(|_| ()),
            View::Effects(run) => {
                around::chain(bench, *run)?;
                around::tasks_of_runs(bench)?;
                let runs = around::numbers(bench, "task_runs", "id");
                bench.read("task_effects", "WHERE t.run_id = ANY ($1)", &[&runs]).map(|_| ())
            }
            View::Followers(run) => {
                around::runs(bench, &[*run])?;
                around::following(bench, *run)
            }
            View::Idle(handlers) => idle(bench, handlers),
            View::Status { now } => status(bench, *now),
            View::Health { recent, now } => health(bench, *recent, *now),
            View::Limits => limits(bench),
            View::Events(filter) => events(bench, filter),
            View::Beyond(after) => beyond(bench, *after),
            View::Owners => {
                bench.read("scheduler_instances", "", &[])?;
                bench.read("task_runs", "WHERE t.status = 'running'", &[]).map(|_| ())
            }
            View::ClaimedBy(owner) => {
                bench.read("task_runs", "WHERE t.status = 'running' AND t.locked_by = $1", &[owner]).map(|_| ())
            }
            View::Alarms { channels, since } => alarms(bench, channels, *since),
            #[cfg(feature = "page")]
            View::RunPage { run, now } => run_page(bench, *run, *now),
            #[cfg(feature = "page")]
            View::RunLines(runs) => {
                around::runs(bench, runs)?;
                around::tasks_of_runs(bench)
            }
            #[cfg(feature = "page")]
            View::TaskLines { tasks, marks } => task_lines(bench, tasks, *marks),
            #[cfg(feature = "page")]
            View::Timeline { window, now, whole } => timeline::read(bench, window, *now, *whole),
        }
    }
}

const NEWEST: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT r.id FROM task_runs r
         WHERE r.id < $1 AND ($2::text IS NULL OR r.status = $2)
           AND ($3::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= $3)
         ORDER BY r.id DESC LIMIT $4))";

/// + 0: the server would read the newest runs of all tasks to find those of one, or the index of all of them.
const NEWEST_OF_TASK: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT r.id FROM task_runs r
         WHERE r.id + 0 < $1 AND ($2::text IS NULL OR r.status = $2)
           AND ($3::bigint IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= $3)
           AND r.task_id = ANY ($5)
         ORDER BY r.id + 0 DESC LIMIT $4))";

fn runs(bench: &mut Sheets, filter: &RunFilter) -> Result<(), Fault> {
    let (before, since) = (filter.before.unwrap_or(i64::MAX), filter.since.map(Timestamp::as_millis));
    let (status, limit) = (filter.status.map(|status| status.as_str()), around::bound(filter.limit));
    if let Some(task) = &filter.task {
        around::tasks_named(bench, &[task])?;
        let tasks = around::numbers(bench, "scheduled_tasks", "id");
        return bench.read("task_runs", NEWEST_OF_TASK, &[&before, &status, &since, &limit, &tasks]).map(|_| ());
    }
    bench.read("task_runs", NEWEST, &[&before, &status, &since, &limit])?;
    around::tasks_of_runs(bench)
}

/// A running run, and one run of each handler that may start. In the orders of their indexes: the server would expect to find one
/// soon in the table.
const ANY_WORK: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        (SELECT r.id FROM task_runs r WHERE r.status = 'running' ORDER BY r.concurrency_key, r.slot LIMIT 1)
         UNION ALL
        SELECT x.id FROM unnest($1::text[]) one (handler) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE {claimable:r} AND r.handler = one.handler
             ORDER BY r.priority, r.run_at LIMIT 1) x
         UNION ALL
        SELECT x.id FROM (VALUES ('key'), ('starts')) AS b(reason) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE {waiting:r} AND r.blocked = b.reason
             ORDER BY r.blocked, r.concurrency_key, r.handler, r.priority, r.run_at LIMIT 1) x))"};

/// A task that is not planned, and the first due of each priority.
const NEXT_TASKS: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        (SELECT s.id FROM scheduled_tasks s WHERE s.planned = 0 LIMIT 1)
         UNION ALL
        SELECT x.id FROM generate_series(0, 3) p (priority) CROSS JOIN LATERAL (
            SELECT s.id FROM scheduled_tasks s
             WHERE {active_planned:s} AND s.priority = p.priority AND s.next_run IS NOT NULL
             ORDER BY s.next_run, s.id LIMIT 1) x))"};

fn idle(bench: &mut Sheets, handlers: &BTreeSet<String>) -> Result<(), Fault> {
    let handlers = findable(handlers);
    bench.read("task_runs", ANY_WORK, &[&handlers])?;
    bench.read("rate_limit_openings", "WHERE t.opens_at = (SELECT min(opens_at) FROM rate_limit_openings)", &[])?;
    bench.read("scheduled_tasks", NEXT_TASKS, &[]).map(|_| ())
}

const FAILING: &str = "
    WHERE t.id = ANY (ARRAY(SELECT s.id FROM scheduled_tasks s WHERE s.failure_count >= 2
                             ORDER BY s.failure_count DESC, s.name LIMIT 100))";

fn status(bench: &mut Sheets, now: Timestamp) -> Result<(), Fault> {
    bench.read("scheduler_instances", "", &[])?;
    bench.read("scheduled_tasks", FAILING, &[])?;
    bench.read("scheduled_tasks", NEXT_TASKS, &[])?;
    beyond(bench, now.plus(NOTICED))?;
    limits(bench)
}

/// A completed task only matters if it has an unfinished run or a dead one, or another task names it.
const LIVING: &str = "WHERE t.status <> 'completed' OR t.planned = 0";

/// Most waiting runs of a kind that a look for problems reads.
const MOST: i64 = 10_000;

/// Running runs, and of waiting ones: the first that are blocked for each reason; those that have had an attempt or an end; and of each
/// handler and priority the first that may start, of no marked task: all of these are counted. `$1` most.
const UNFINISHED: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        WITH RECURSIVE handler (name) AS (
            (SELECT r.handler FROM task_runs r WHERE {claimable:r} ORDER BY r.handler, r.priority, r.run_at LIMIT 1)
             UNION ALL
            SELECT (SELECT r.handler FROM task_runs r WHERE {claimable:r} AND r.handler > h.name
                     ORDER BY r.handler, r.priority, r.run_at LIMIT 1)
              FROM handler h WHERE h.name IS NOT NULL)
        SELECT r.id FROM task_runs r WHERE r.status = 'running'
         UNION ALL
        SELECT x.id FROM (VALUES ('key'), ('order'), ('paused'), ('starts')) AS b(reason) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE {waiting:r} AND r.blocked = b.reason
             ORDER BY r.blocked, r.concurrency_key, r.handler, r.priority, r.run_at LIMIT $1) x
         UNION ALL
        (SELECT r.id FROM task_runs r
          WHERE {waiting:r} AND (r.attempt > 0 OR r.error IS NOT NULL OR r.duration_ms IS NOT NULL OR r.result IS NOT NULL)
          LIMIT $1)
         UNION ALL
        SELECT x.id FROM handler h CROSS JOIN generate_series(0, 3) p (priority) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r
             WHERE {claimable:r} AND r.handler = h.name AND r.priority = p.priority
               AND r.task_id <> ALL (ARRAY(SELECT s.id FROM scheduled_tasks s WHERE s.marked IS NOT NULL))
             ORDER BY r.run_at LIMIT 1) x))"};

/// What the blocked runs that were read may wait for: the oldest run of their tasks, and those that may start with their keys. One
/// unfinished run of each completed task that names another for its dead runs.
const WAITED_FOR: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::bigint[]) one (task) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r
             WHERE r.task_id = one.task AND {unfinished:r} AND {unscheduled_case:r} = 0
             ORDER BY r.task_id, {unscheduled_case:r}, r.scheduled_for LIMIT 1) x
         UNION ALL
        SELECT x.id FROM unnest($2::text[]) one (key) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE {claimable:r} AND r.concurrency_key = one.key
             ORDER BY r.blocked, r.concurrency_key, r.handler, r.priority, r.run_at LIMIT 1000) x
         UNION ALL
        SELECT x.id FROM scheduled_tasks s CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE r.task_id = s.id AND {unfinished:r} LIMIT 1) x
         WHERE s.status = 'completed' AND (s.on_dead IS NOT NULL OR {followed:s})))"};

/// The dead runs since an instant, and of each the first successes after it.
const DEAD: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM task_runs d CROSS JOIN LATERAL (SELECT d.id UNION ALL {successes:d}) x
         WHERE d.status = 'dead' AND d.finished_at >= $1))"};

/// Workers that ended since an instant, and of each kind the newest events about occurrences without a run. The numbers are those of
/// `health`.
const RECENT_EVENTS: &str = "
    WHERE t.at >= $1
      AND (t.kind = 'worker_ended'
           OR t.id = ANY (ARRAY(
               SELECT x.id FROM (VALUES ('missed'), ('caught_up'), ('skipped'), ('limited')) AS told (kind) CROSS JOIN LATERAL (
                   SELECT e.id FROM scheduler_events e WHERE e.kind = told.kind ORDER BY e.kind DESC, e.id DESC LIMIT 2000) x)))";

/// The row that the newest of these events of each kind and task names, and the first successes after it.
const PASSED_OVER: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id
          FROM (SELECT DISTINCT ON (n.kind, n.task_id) n.task_id, n.run_id AS id,
                       (SELECT scheduled_for FROM task_runs WHERE id = n.run_id) AS scheduled_for
                  FROM scheduler_events n WHERE n.id = ANY ($1) AND n.kind <> 'worker_ended'
                 ORDER BY n.kind, n.task_id, n.id DESC) e
         CROSS JOIN LATERAL (SELECT e.id UNION ALL {successes:e} UNION ALL {late_success:e} UNION ALL {later_starts:e}) x))"};

fn health(bench: &mut Sheets, recent: Timestamp, now: Timestamp) -> Result<(), Fault> {
    let (recent, long) = (recent.as_millis(), ["output", "payload"]);
    bench.read("scheduler_instances", "", &[])?;
    bench.read("scheduler_events", RECENT_EVENTS, &[&recent])?;
    bench.read("scheduled_tasks", LIVING, &[])?;
    bench.read_without(&long, "task_runs", UNFINISHED, &[&MOST])?;
    let tasks = around::numbers(bench, "task_runs", "task_id");
    let mut keys = around::texts(bench, "task_runs", "concurrency_key");
    keys.sort_unstable();
    keys.dedup();
    bench.read_without(&long, "task_runs", WAITED_FOR, &[&tasks, &keys])?;
    beyond(bench, now.plus(NOTICED))?;
    let unfinished = around::numbers(bench, "task_runs", "id");
    bench.read_without(&long[..1], "task_attempts", "WHERE t.run_id = ANY ($1)", &[&unfinished])?;
    bench.read_without(&long, "task_runs", DEAD, &[&recent])?;
    let events = around::numbers(bench, "scheduler_events", "id");
    bench.read_without(&long, "task_runs", PASSED_OVER, &[&events])?;
    let tasks = around::numbers(bench, "scheduler_events", "task_id");
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[&tasks])?;
    around::tasks_of_runs(bench)?;
    around::followers(bench)?;
    limits(bench)
}

/// The tasks and retries that count from a later time, as `COUNTED_BEYOND` in `health`.
const TASKS_BEYOND: &str = "
    WHERE t.status = 'active' AND t.schedule_type <> 'once' AND t.schedule_type <> 'manual'
      AND greatest(t.active_since, t.resolved_until,
                   CASE WHEN t.schedule_type = 'delay' AND t.next_run >= t.last_finished THEN t.last_finished END) > $1";

/// As for [`UNFINISHED`], not those that are unfinished.
const RUNS_BEYOND: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT r.id FROM task_runs r
         WHERE {waiting:r} AND r.status = 'failed' AND r.run_at >= r.finished_at AND r.finished_at > $1 LIMIT $2))"};

fn beyond(bench: &mut Sheets, after: Timestamp) -> Result<(), Fault> {
    let after = after.as_millis();
    bench.read("scheduled_tasks", TASKS_BEYOND, &[&after])?;
    bench.read("task_runs", RUNS_BEYOND, &[&after, &MOST]).map(|_| ())
}

/// Of each rate of a handler, the start by which the next one is judged, and the newest.
const STARTS: &str = sql! {"
    WHERE (t.subject, t.number) IN (
        SELECT l.subject, x.number
          FROM (SELECT 'handler:' || handler AS subject, max_starts FROM rate_limits) l CROSS JOIN LATERAL (
            (SELECT s.number FROM rate_limit_starts s
              WHERE s.subject = l.subject AND s.number < {most_starts} ORDER BY s.number DESC LIMIT 1)
             UNION ALL
            (SELECT s.number FROM rate_limit_starts s
              WHERE s.subject = l.subject
                AND s.number <= (SELECT max(n.number) FROM rate_limit_starts n
                                  WHERE n.subject = l.subject AND n.number < {most_starts}) + 1 - l.max_starts
              ORDER BY s.number DESC LIMIT 1)) x)"};

/// Of the limits of keys, those that leave no start.
const CLOSED_KEYS: &str = "WHERE starts_with(t.subject, 'key:')";

fn limits(bench: &mut Sheets) -> Result<(), Fault> {
    bench.read("concurrency_limits", "", &[])?;
    bench.read("rate_limits", "", &[])?;
    bench.read("rate_limit_openings", CLOSED_KEYS, &[])?;
    bench.read("rate_limit_starts", STARTS, &[]).map(|_| ())
}

const EVENTS: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT e.id FROM scheduler_events e WHERE e.id < $1 AND ($2::text IS NULL OR e.kind = $2)
         ORDER BY e.id DESC LIMIT $3))";

const EVENTS_OF_TASK: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT e.id FROM scheduler_events e
         WHERE e.id + 0 < $1 AND ($2::text IS NULL OR e.kind = $2) AND e.task_id = ANY ($4)
         ORDER BY e.id + 0 DESC LIMIT $3))";

fn events(bench: &mut Sheets, filter: &EventFilter) -> Result<(), Fault> {
    let (before, limit) = (filter.before.unwrap_or(i64::MAX), around::bound(filter.limit));
    if let Some(task) = &filter.task {
        around::tasks_named(bench, &[task])?;
        let tasks = around::numbers(bench, "scheduled_tasks", "id");
        return bench.read("scheduler_events", EVENTS_OF_TASK, &[&before, &filter.kind, &limit, &tasks]).map(|_| ());
    }
    bench.read("scheduler_events", EVENTS, &[&before, &filter.kind, &limit])?;
    let tasks = around::numbers(bench, "scheduler_events", "task_id");
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[&tasks]).map(|_| ())
}

/// For each channel the attempts that ended dead runs since it looked, the last that it examines, and for a new one the last before
/// an instant. The numbers are those of `alarms`.
const ALARM_ATTEMPTS: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT x.id
          FROM unnest($1::text[]) one (channel)
         CROSS JOIN LATERAL (
               SELECT coalesce((SELECT c.seen_id FROM scheduler_alarm_channels c
                                 WHERE c.channel = one.channel AND c.kind = 'dead'),
                               (SELECT max(a.id) FROM task_attempts a WHERE a.finished_at < $2), 0) AS id) seen
         CROSS JOIN LATERAL (
               SELECT max(n.id) AS id
                 FROM (SELECT a.id FROM task_attempts a WHERE a.id > seen.id ORDER BY a.id LIMIT 10000) n) until
         CROSS JOIN LATERAL (
               SELECT seen.id UNION ALL SELECT until.id UNION ALL
               (SELECT a.id FROM task_attempts a JOIN task_runs r ON r.id = a.run_id
                 WHERE a.id > seen.id AND a.id <= until.id AND a.final = 1 AND r.status = 'dead'
                 ORDER BY a.id LIMIT 500)) x))";

/// The dead runs of these attempts, the rows that these events name, and a success after each open alarm, which ends it.
const ALARM_RUNS: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT one.id FROM unnest($1::bigint[]) one (id)
         UNION ALL
        SELECT x.id FROM scheduler_alarms a JOIN scheduled_tasks s ON s.name = a.subject CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE r.task_id = s.id AND r.status = 'succeeded' AND r.id > a.run_id LIMIT 1) x
         WHERE a.channel = ANY ($2) AND a.kind = 'dead' AND a.ended_at IS NULL AND s.failure_count = 0
         UNION ALL
        SELECT x.id
          FROM (SELECT s.id AS task_id, a.run_id AS id, (SELECT scheduled_for FROM task_runs WHERE id = a.run_id) AS scheduled_for
                  FROM scheduler_alarms a JOIN scheduled_tasks s ON s.name = a.subject
                 WHERE a.channel = ANY ($2) AND (a.kind = 'missed' OR a.kind = 'skipped' OR a.kind = 'limited') AND a.ended_at IS NULL) o
         CROSS JOIN LATERAL (SELECT o.id UNION ALL {successes:o} UNION ALL {late_success:o} UNION ALL {later_starts:o}) x))"};

/// For each channel, the first events of each kind since it looked, and the last that it has examined.
const ALARM_EVENTS: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT max(e.id) FROM scheduler_events e
         UNION ALL
        SELECT x.id
          FROM unnest($1::text[]) one (channel)
         CROSS JOIN (VALUES ('scheduler_lost', 'owner_lost'), ('missed', 'missed'), ('missed', 'caught_up'),
                            ('skipped', 'skipped'), ('limited', 'limited')) AS alarm (kind, event)
         CROSS JOIN LATERAL (
               SELECT coalesce((SELECT c.seen_id FROM scheduler_alarm_channels c
                                 WHERE c.channel = one.channel AND c.kind = alarm.kind),
                               (SELECT max(e.id) FROM scheduler_events e WHERE e.at < $2), 0) AS id) seen
         CROSS JOIN LATERAL (
               SELECT seen.id UNION ALL
               (SELECT e.id FROM scheduler_events e
                 WHERE e.id > seen.id AND e.kind = alarm.event
                   AND (e.kind = 'owner_lost'
                        OR EXISTS (SELECT 1 FROM scheduled_tasks s
                                    WHERE s.id = e.task_id
                                      AND NOT EXISTS (SELECT 1 FROM scheduler_alarms a
                                                       WHERE a.channel = one.channel AND a.kind = alarm.kind
                                                         AND a.subject = s.name AND a.ended_at IS NULL AND a.run_id = e.run_id)))
                 ORDER BY e.id LIMIT 500)) x))";

fn alarms(bench: &mut Sheets, channels: &Vec<String>, since: Timestamp) -> Result<(), Fault> {
    let since = since.as_millis();
    bench.read("scheduler_alarms", "WHERE t.channel = ANY ($1)", &[channels])?;
    bench.read("scheduler_alarm_channels", "WHERE t.channel = ANY ($1)", &[channels])?;
    bench.read("scheduler_instances", "", &[])?;
    bench.read("scheduler_events", ALARM_EVENTS, &[channels, &since])?;
    bench.read("task_attempts", ALARM_ATTEMPTS, &[channels, &since])?;
    let mut runs = around::numbers(bench, "task_attempts", "run_id");
    runs.extend(around::numbers(bench, "scheduler_events", "run_id"));
    bench.read("task_runs", ALARM_RUNS, &[&runs, channels])?;
    let tasks = around::numbers(bench, "scheduler_events", "task_id");
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[&tasks])?;
    around::tasks_named(bench, &around::texts(bench, "scheduler_alarms", "subject"))?;
    around::tasks_of_runs(bench)
}

/// The newest attempts of a run, one more than the page lists.
#[cfg(feature = "page")]
const NEWEST_ATTEMPTS: &str = "
    WHERE t.id = ANY (ARRAY(SELECT a.id FROM task_attempts a WHERE a.run_id = $1
                             ORDER BY a.attempt DESC, a.id DESC LIMIT $2))";

/// The first retries of a run, the oldest unfinished scheduled run of its task, and all running runs.
#[cfg(feature = "page")]
const AROUND_RUN: &str = sql! {"
    WHERE t.status = 'running' OR t.id = ANY (ARRAY(
        SELECT x.id FROM task_runs o CROSS JOIN LATERAL (
            (SELECT r.id FROM task_runs r WHERE r.task_id = o.task_id AND r.retry_of = o.id ORDER BY r.id LIMIT $2)
             UNION ALL
            (SELECT r.id FROM task_runs r
              WHERE r.task_id = o.task_id AND {unfinished:r} AND {unscheduled_case:r} = 0 AND r.id <> o.id
              ORDER BY r.scheduled_for LIMIT 1)) x
         WHERE o.id = $1))"};

#[cfg(feature = "page")]
fn run_page(bench: &mut Sheets, run: i64, now: Timestamp) -> Result<(), Fault> {
    let listed = around::bound(crate::model::views::RunView::MAX_LISTED);
    around::chain(bench, run)?;
    let chain = around::numbers(bench, "task_runs", "id");
    around::following(bench, run)?;
    bench.read("task_effects", "WHERE t.run_id = ANY ($1)", &[&chain])?;
    bench.read("task_attempts", NEWEST_ATTEMPTS, &[&run, &(listed + 1)])?;
    around::behind_keys(bench)?;
    bench.read("task_runs", AROUND_RUN, &[&run, &listed])?;
    around::tasks_of_runs(bench)?;
    bench.read("scheduler_instances", "", &[])?;
    // A clock that is not set delays every run until all times have passed.
    if now < Timestamp::MIN {
        beyond(bench, now.plus(NOTICED))?;
    }
    bench.read("rate_limits", "", &[])?;
    around::openings(bench)?;
    bench.read("rate_limit_starts", STARTS, &[]).map(|_| ())
}

/// The newest scheduled runs and the newest others of each task, and its newest run.
#[cfg(feature = "page")]
const MARKS: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::bigint[]) one (task) CROSS JOIN LATERAL (
            (SELECT n.id FROM task_runs n WHERE n.task_id = one.task AND {unscheduled_case:n} = 0
              ORDER BY n.scheduled_for DESC LIMIT $2)
             UNION ALL
            (SELECT n.id FROM task_runs n WHERE n.task_id = one.task AND {unscheduled_case:n} > 0
              ORDER BY {unscheduled_case:n} DESC LIMIT $2)
             UNION ALL
            SELECT max(n.id) FROM task_runs n WHERE n.task_id = one.task) x))"};

#[cfg(feature = "page")]
fn task_lines(bench: &mut Sheets, tasks: &Vec<i64>, marks: i64) -> Result<(), Fault> {
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[tasks])?;
    bench.read("task_runs", MARKS, &[tasks, &marks])?;
    around::last_runs(bench)
}
