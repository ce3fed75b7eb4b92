//! The rows that the requests of clients and the effects and outcomes of workers need.

use crate::model::bulk::BulkAction;
use crate::model::limit::LimitOn;
use crate::store::fault::Fault;
use crate::store::postgres::reach::around;
use crate::store::postgres::sheets::Sheets;
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::MAX_ITEMS;

/// A request, with what it names.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Tasks to add. `leading`: the names to which they lead by `on_success` and `on_end`.
    Add { names: Vec<String>, leading: Vec<String>, replaces: bool },
    /// Tasks that a source declares or has declared, and its limits, if they are applied. `removes_one`: it is one task, to be removed.
    Apply { source: String, names: Vec<String>, leading: Vec<String>, limits: Option<Vec<LimitOn>>, removes_one: bool },
    /// A run of a task, with the key of the request.
    Trigger { task: String, key: Option<String> },
    /// A run that retries another.
    Retry { run: i64 },
    /// The end of a run that waits.
    Cancel { run: i64 },
    /// A run whose command is gone.
    Gone { run: i64 },
    /// All running runs of a task.
    GoneAll { task: String },
    /// A pause or a resumption.
    Change { task: String },
    /// Runs or tasks that a filter has selected.
    Matching { action: BulkAction, ids: Vec<i64> },
    /// The removal of a task. Its history is not read.
    Remove { task: String },
    /// A limit that is set or removed.
    Limit { on: LimitOn },
    /// An effect of a run, which is stored under the first run of its chain.
    Effect { run: i64, first: i64, key: String },
    /// The claim of a run.
    Claim { run: i64 },
    /// The end of a running run that succeeded.
    Finish { run: i64, key: Option<String> },
    /// The start of a scheduler.
    Register,
    /// All that a wrong clock has planned beyond this time.
    Rewind { now: i64 },
    /// The end of a scheduler.
    Stop { owner: String },
    /// Events that are only written.
    Record,
    /// The alarms of a channel.
    Alarm { channel: String },
    /// The addition or the removal of a task by an actor, and the name of the task.
    OfAnActor(Box<Request>, String),
}

impl Request {
    pub(crate) fn of_an_actor(self, task: &str) -> Self {
        Request::OfAnActor(Box::new(self), task.to_owned())
    }

    /// Returns the texts that are looked for, with their columns.
    pub(crate) fn names(&self) -> Vec<(&'static str, &str)> {
        let limit = |on: &'_ LimitOn| match on {
            LimitOn::Key(_) => "concurrency_key",
            LimitOn::Handler(_) => "handler",
        };
        match self {
            Request::Add { names, .. } => names.iter().map(|name| ("name", name.as_str())).collect(),
            Request::Apply { source, names, limits, .. } => {
                let names = names.iter().map(|name| ("name", name.as_str()));
                let limits = limits.iter().flatten().map(|on| (limit(on), text(on)));
                names.chain(limits).chain([("managed_by", source.as_str())]).collect()
            }
            Request::Trigger { task, key } => {
                let key = key.iter().map(|key| ("request_key", key.as_str()));
                key.chain([("name", task.as_str())]).collect()
            }
            Request::GoneAll { task } | Request::Change { task } | Request::Remove { task } => vec![("name", task)],
            Request::Limit { on } => vec![(limit(on), text(on))],
            Request::Effect { key, .. } => vec![("key", key)],
            Request::Finish { key: Some(key), .. } => vec![("concurrency_key", key)],
            Request::Alarm { channel } => vec![("channel", channel)],
            Request::OfAnActor(request, _) => request.names(),
            Request::Retry { .. }
            | Request::Cancel { .. }
            | Request::Gone { .. }
            | Request::Matching { .. }
            | Request::Claim { .. }
            | Request::Finish { .. }
            | Request::Register
            | Request::Rewind { .. }
            | Request::Stop { .. }
            | Request::Record => Vec::new(),
        }
    }

    /// Returns the names of the tasks that it begins with.
    fn tasks(&self) -> Option<&[String]> {
        match self {
            Request::Add { names, .. } => Some(names),
            Request::Trigger { task, .. }
            | Request::GoneAll { task }
            | Request::Change { task }
            | Request::Remove { task } => Some(std::slice::from_ref(task)),
            _ => None,
        }
    }

    /// Reads the rows.
    pub(crate) fn read(&self, bench: &mut Sheets) -> Result<(), Fault> {
        if let Request::OfAnActor(request, task) = self {
            request.read(bench)?;
            return bench.read("scheduled_tasks", NAMING, &[task]).map(|_| ());
        }
        if let Some(names) = self.tasks() {
            around::tasks_at_first(bench, names)?;
        } else {
            bench.read_numbers()?;
            around::version(bench)?;
        }
        match self {
            Request::Add { replaces, leading, .. } => {
                add(bench, *replaces)?;
                if leading.is_empty() { Ok(()) } else { around::led_to(bench, leading) }
            }
            Request::Apply { source, names, leading, limits, removes_one } => {
                apply(bench, source, names, limits.as_deref())?;
                if !leading.is_empty() {
                    around::led_to(bench, leading)?;
                }
                if *removes_one { remove_one(bench) } else { Ok(()) }
            }
            Request::Trigger { key, .. } => trigger(bench, key.as_deref()),
            Request::Retry { run } => retry(bench, &[*run]),
            Request::Cancel { run } => cancel(bench, &[*run]),
            Request::Gone { run } => gone(bench, "WHERE t.id = $1", run),
            Request::GoneAll { .. } => gone_all(bench),
            Request::Change { .. } => change(bench),
            Request::Matching { action, ids } => matching(bench, *action, ids),
            Request::Remove { .. } => remove_one(bench),
            Request::Limit { on } => limit(bench, on),
            Request::Effect { run, first, key } => {
                around::runs(bench, &[*run])?;
                bench.read("task_effects", "WHERE t.run_id = $1 AND t.key = $2", &[first, key]).map(|_| ())
            }
            Request::Claim { run } => around::runs(bench, &[*run]),
            Request::Finish { run, key } => finish(bench, *run, key.as_deref()),
            Request::Register => register(bench),
            Request::Rewind { now } => rewind(bench, *now),
            Request::Stop { owner } => bench.read("scheduler_instances", "WHERE t.id = $1", &[owner]).map(|_| ()),
            Request::Record | Request::OfAnActor(..) => Ok(()),
            Request::Alarm { channel } => {
                bench.read("scheduler_alarms", "WHERE t.channel = $1", &[channel])?;
                bench.read("scheduler_alarm_channels", "WHERE t.channel = $1", &[channel]).map(|_| ())
            }
        }
    }
}

/// As `actions::NAMING` of the SQLite store.
const NAMING: &str = sql! {"
WHERE (t.managed_by IS NULL OR t.managed_by NOT LIKE 'mcp:%') AND {followers:t} LIKE '%' || $1::text || '%'"};

fn rewind(bench: &mut Sheets, now: i64) -> Result<(), Fault> {
    // What a wrong clock has planned is committed then, and what is added later is planned by the clock as it is now.
    bench.server.await_additions()?;
    bench.read("scheduler_meta", "WHERE t.key = 'misplanned' OR t.key LIKE 'clock%'", &[])?;
    bench.read("scheduler_instances", "WHERE t.seen_at > $1 OR t.stopped_at > $1", &[&now]).map(|_| ())
}

fn text(on: &LimitOn) -> &str {
    let (LimitOn::Key(text) | LimitOn::Handler(text)) = on;
    text
}

/// Only a replacement, or a task that must be examined again, looks further than at the tasks that have the names.
fn add(bench: &mut Sheets, replaces: bool) -> Result<(), Fault> {
    let mut changed = around::numbers(bench, "scheduled_tasks", "id");
    if !replaces {
        changed = around::tasks_with(bench, "status", "invalid");
    }
    if changed.is_empty() {
        return Ok(());
    }
    around::before_a_change(bench, &changed)?;
    around::followers(bench)?;
    around::behind_keys(bench)
}

/// As [`Request::Add`], with what the source declared before, which is removed or paused.
fn apply(bench: &mut Sheets, source: &String, names: &[String], limits: Option<&[LimitOn]>) -> Result<(), Fault> {
    around::tasks_named(bench, names)?;
    let tasks = around::numbers(bench, "scheduled_tasks", "id");
    around::before_a_change(bench, &tasks)?;
    around::followers(bench)?;
    around::behind_keys(bench)?;
    around::tasks_of_runs(bench)?;
    let Some(limits) = limits else { return Ok(()) };
    bench.read("concurrency_limits", "WHERE t.managed_by = $1", &[source])?;
    bench.read("rate_limits", "WHERE t.managed_by = $1", &[source])?;
    let mut changed = limits.to_vec();
    changed.extend(around::texts(bench, "concurrency_limits", "concurrency_key").into_iter().map(LimitOn::Key));
    changed.extend(around::texts(bench, "rate_limits", "handler").into_iter().map(LimitOn::Handler));
    around::limits(bench, &changed)
}

fn trigger(bench: &mut Sheets, key: Option<&str>) -> Result<(), Fault> {
    let tasks = around::numbers(bench, "scheduled_tasks", "id");
    if let (Some(key), [_, ..]) = (key, &tasks[..]) {
        bench.read("task_runs", "WHERE t.task_id = ANY ($1) AND t.request_key = $2", &[&tasks, &key])?;
    }
    requested(bench)
}

/// Reads what a run that is requested of the tasks that were read waits for.
fn requested(bench: &mut Sheets) -> Result<(), Fault> {
    let delay = around::tasks_with(bench, "schedule_type", "delay");
    around::before_a_change(bench, &delay)?;
    if !delay.is_empty() {
        around::followers(bench)?;
    }
    around::behind_keys(bench)
}

/// The run, and the runs that retry it.
const RETRIED: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT one.id FROM unnest($1::bigint[]) one (id)
         UNION ALL
        SELECT n.id FROM task_runs r JOIN task_runs n ON n.task_id = r.task_id AND n.retry_of = r.id
         WHERE r.id = ANY ($1)))";

fn retry(bench: &mut Sheets, runs: &[i64]) -> Result<(), Fault> {
    bench.read("task_runs", RETRIED, &[&runs])?;
    around::tasks_of_runs(bench)?;
    requested(bench)
}

fn matching(bench: &mut Sheets, action: BulkAction, ids: &[i64]) -> Result<(), Fault> {
    match action {
        BulkAction::Cancel => return cancel(bench, ids),
        BulkAction::Retry => return retry(bench, ids),
        BulkAction::Remove | BulkAction::Pause | BulkAction::Resume => {}
    }
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[&ids])?;
    match (action, ids) {
        (BulkAction::Remove, [_]) => remove_one(bench),
        (BulkAction::Remove, _) => remove(bench),
        _ => change(bench),
    }
}

/// One blocked run: if there is none, the end of a run frees none.
const ANY_BLOCKED: &str = sql! {"
WHERE t.id = ANY (ARRAY(SELECT r.id FROM task_runs r WHERE {waiting:r} AND r.blocked > ''
                             ORDER BY r.blocked LIMIT 1))"};

fn finish(bench: &mut Sheets, run: i64, key: Option<&str>) -> Result<(), Fault> {
    around::runs_with_front(bench, &[run])?;
    around::tasks_of_runs(bench)?;
    around::followers(bench)?;
    around::behind_keys_and(bench, key)?;
    bench.read("task_runs", ANY_BLOCKED, &[]).map(|_| ())
}

/// Reads runs that are cancelled, and what waits for their ends.
fn cancel(bench: &mut Sheets, runs: &[i64]) -> Result<(), Fault> {
    around::runs_with_front(bench, runs)?;
    around::tasks_of_runs(bench)?;
    around::attempts_that_began(bench)?;
    around::followers(bench)?;
    around::behind_keys(bench)
}

fn gone(bench: &mut Sheets, runs: &str, of: &(dyn postgres::types::ToSql + Sync)) -> Result<(), Fault> {
    bench.read("task_runs", runs, &[of])?;
    around::tasks_of_runs(bench)?;
    let owners = around::texts(bench, "task_runs", "locked_by");
    bench.read("scheduler_instances", "WHERE t.id = ANY ($1)", &[&owners]).map(|_| ())
}

/// The running runs of a task, by the index of those of all tasks: it may have very many that wait.
const RUNNING: &str = "WHERE t.status = 'running' AND t.task_id = ANY ($1)";

fn gone_all(bench: &mut Sheets) -> Result<(), Fault> {
    let tasks = around::numbers(bench, "scheduled_tasks", "id");
    gone(bench, RUNNING, &tasks)
}

/// Reads what a pause or a resumption of the tasks that were read changes.
fn change(bench: &mut Sheets) -> Result<(), Fault> {
    let tasks = around::numbers(bench, "scheduled_tasks", "id");
    around::before_a_change(bench, &tasks)?;
    around::followers(bench)?;
    around::behind_keys(bench)
}

/// Reads the unfinished runs of the tasks that were read, and what waits behind them: the server deletes the rest.
fn remove(bench: &mut Sheets) -> Result<(), Fault> {
    around::unfinished_of_tasks(bench)?;
    around::behind_keys(bench)?;
    around::tasks_of_runs(bench)
}

/// The first runs of a task.
const FIRST_RUNS: &str = sql! {"
    SELECT r.id FROM task_runs r WHERE r.task_id = ANY ($1)
     ORDER BY r.task_id, {unscheduled_case:r}, r.scheduled_for LIMIT $2"};

/// As [`remove`]. Of a task with very many runs, reads those that are deleted first, and one more.
fn remove_one(bench: &mut Sheets) -> Result<(), Fault> {
    let (tasks, most) = (around::numbers(bench, "scheduled_tasks", "id"), around::bound(MAX_ITEMS + 1));
    let found = bench.server.query(FIRST_RUNS, &[&tasks, &most])?;
    if found.len() <= MAX_ITEMS {
        return remove(bench);
    }
    let runs = found.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    around::runs(bench, &runs)?;
    bench.read("task_runs", RUNNING, &[&tasks])?;
    around::behind_keys(bench)?;
    around::tasks_of_runs(bench)
}

fn limit(bench: &mut Sheets, on: &LimitOn) -> Result<(), Fault> {
    around::limits(bench, std::slice::from_ref(on))
}

/// The first task of each time zone in use, whose rules are compared.
const ZONES_IN_USE: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        WITH RECURSIVE used (zone) AS ({zones_in_use})
        SELECT (SELECT min(id) FROM scheduled_tasks WHERE {zoned} AND time_zone = zone) FROM used
         WHERE zone IS NOT NULL LIMIT {zones}))"};

fn register(bench: &mut Sheets) -> Result<(), Fault> {
    bench.read("scheduler_meta", "", &[])?;
    bench.read("scheduler_instances", "", &[])?;
    bench.read("task_runs", "WHERE t.status = 'running'", &[])?;
    bench.read("scheduled_tasks", ZONES_IN_USE, &[]).map(|_| ())
}
