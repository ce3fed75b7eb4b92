//! Actions of users and programs on tasks and runs, through the client and by SQL. A refused action changes nothing.

use std::time::Duration;

use duly::{Change, Misfire, NewRun, NewTask, Origin, Overlap, RetryPolicy, RunStatus, Timestamp};

use crate::simulation::effects::LEDGER;
use crate::simulation::history::{Action, Check};
use crate::simulation::limits::{KEYS, limited};
use crate::simulation::rows::TaskRow;
use crate::simulation::scenario::{HANDLERS, Scenario};

const LINES: [&str; 8] = [
    "*/10 * * * *",
    "7,37 * * * *",
    "0 * * * *",
    "30 */2 * * *",
    "0 2,3 * * *",
    "15 1 * * *",
    "0 9 * * *",
    "0 0 29 2 *",
];
const CALENDARS: [&str; 4] = [
    "every day at 00:20, 02:30, 03:10, 09:00, 17:45",
    "every 2 days at 01:15, 02:30, 13:45",
    "every 2 weeks on mon, sat, sun at 02:05, 21:30",
    "every month on 14, last sun at 02:30, 08:00",
];
const ZONES: [&str; 5] = ["UTC", "Europe/Rome", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"];
/// Times of the day, over midnight too, and a date, of which many seeds see the bounds.
const WINDOWS: &str = "22:15-04:30, 09:00-13:30";
const EXCEPTED: &str = "2027-03-14, 2027-10-31";
pub(crate) const EXCEPTED_DATES: [(i32, u32, u32); 2] = [(2027, 3, 14), (2027, 10, 31)];
const MAX_TASKS: usize = 9;

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Scenario {
    /// Draws a task with a schedule and policies of any kind.
    pub(crate) fn draw_task(&mut self, name: &str) -> NewTask {
        let now = self.wall();
        let kind = self.rng.u32(..100);
        let mut task = match kind {
            0..34 => {
                let (line, zone) = (self.pick(&LINES), self.pick(&ZONES));
                NewTask::cron(name, line).time_zone(zone)
            }
            34..40 => {
                let (calendar, zone) = (self.pick(&CALENDARS), self.pick(&ZONES));
                NewTask::calendar(name, calendar).time_zone(zone)
            }
            40..70 => NewTask::interval(name, seconds(self.pick(&[60, 90, 420, 3600, 18_000]))),
            70..82 => NewTask::delay(name, seconds(self.pick(&[30, 600, 3600]))),
            82..89 => NewTask::manual(name),
            _ => NewTask::once(name, Timestamp::from_millis(now + self.rng.i64(-3_600_000..6 * 3_600_000))),
        };
        let handler = self.pick(&["work", "work", "work", "post", "rare", LEDGER]);
        // Its transaction is one of SQLite.
        let handler = if handler == LEDGER && self.database.shell.is_on_server() { "work" } else { handler };
        let overlap = self.pick(Overlap::ALL);
        let all = matches!(overlap, Overlap::BufferAll | Overlap::Allow) && self.once_in(2);
        let misfire = if all { Misfire::RunAll } else { self.pick(&[Misfire::RunOnce, Misfire::Skip]) };
        // If each occurrence becomes a run of its own, a key that is held for hours makes thousands of them.
        let many = matches!(overlap, Overlap::BufferAll | Overlap::Allow) && !self.once_in(8);
        let grace = seconds(if many { self.pick(&[0, 60]) } else { self.pick(&[0, 60, 60, 3600]) });
        let retry = RetryPolicy {
            max_attempts: self.pick(&[1, 2, 3, 5]),
            backoff: seconds(self.pick(&[1, 10, 60])),
            max_backoff: seconds(300),
        };
        task = task.handler(handler).overlap(overlap).misfire(misfire, grace).retry(retry);
        task = task.catch_up_limit(self.rng.u32(1..=5)).priority(self.rng.u8(..=3));
        if self.once_in(3) {
            task = task.concurrency_key(self.pick(&KEYS));
        }
        if self.once_in(5) {
            task = task.expires(seconds(self.pick(&[1, 20, 600])));
        }
        if self.once_in(4) {
            task = task.jitter(seconds(self.pick(&[5, 60])));
        }
        if self.once_in(3) {
            task = task.timeout(seconds(self.pick(&[0, 5, 120])));
        }
        if self.once_in(4) {
            task = task.on_dead(self.rng.choice(self.names()).unwrap_or_else(|| "no-such-task".to_owned()));
        }
        // Without a draw, by its number: a task leads to older ones only, so never back to itself.
        let number: i64 = name.strip_prefix("task-").and_then(|number| number.parse().ok()).unwrap_or_default();
        let older = |by: i64| format!("task-{}", number - by);
        task = match number % 6 {
            1 => task.on_success(format!("{}, {}", older(1), older(3))),
            2 => task.on_end(older(2)),
            3 => task.on_missed(older(1)),
            4 => task.on_success(older(3)).on_end(older(3)).on_missed(older(2)),
            _ => task,
        };
        let has_occurrences = !matches!(kind, 70..100);
        task = match number % 5 {
            1 if has_occurrences => task.only_between(WINDOWS),
            3 if has_occurrences => task.only_between(WINDOWS).except_on(EXCEPTED),
            _ => task,
        };
        task = limited(task, number);
        if self.once_in(4) {
            task = task.pause_after_failures(self.rng.u32(1..=3));
        }
        if self.once_in(8) {
            task = task.starts_at(Timestamp::from_millis(now + self.rng.i64(0..4 * 3_600_000)));
        }
        if self.once_in(12) {
            task = task.ends_at(Timestamp::from_millis(now + self.rng.i64(5 * 3_600_000..30 * 3_600_000)));
        }
        task
    }

    fn names(&self) -> Vec<String> {
        self.history.tables.tasks.values().map(|task| task.name.clone()).collect()
    }

    pub(crate) fn any_task(&mut self, holds: impl Fn(&TaskRow) -> bool) -> Option<String> {
        let tasks = self.history.tables.tasks.values().filter(|task| holds(task));
        let names: Vec<String> = tasks.map(|task| task.name.clone()).collect();
        self.rng.choice(names)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.history.tables.tasks.len() < MAX_TASKS
    }

    pub(crate) fn new_name(&mut self) -> String {
        self.named += 1;
        format!("task-{}", self.named)
    }

    pub(crate) fn add(&mut self) -> Check {
        if !self.has_room() {
            return Ok(());
        }
        let name = self.new_name();
        if self.once_in(4) {
            return self.insert(&name);
        }
        let task = self.draw_task(&name);
        match self.database.client.add(task) {
            Ok(_) => self.record(&Action::Added(name.clone()), &format!("{name} is added")),
            Err(error) => self.record(&Action::Nothing, &format!("{name} is not added: {error}")),
        }
    }

    fn insert(&mut self, name: &str) -> Check {
        let (kind, value) = match self.rng.u32(..5) {
            0 => ("cron", self.pick(&LINES).to_owned()),
            1 => ("interval", "7m".to_owned()),
            2 => ("delay", "10m".to_owned()),
            3 => ("manual", String::new()),
            _ => ("once", Timestamp::from_millis(self.wall() + self.rng.i64(-60_000..600_000)).to_string()),
        };
        let (zone, overlap) = (self.pick(&ZONES), self.pick(Overlap::ALL));
        // With the column's default limit, a seed could consist of one task's backlog.
        let limit = if self.once_in(20) { 100 } else { 4 };
        let text = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, time_zone, overlap,
                                                 catch_up_limit)
                    VALUES (?1, 'work', ?2, ?3, ?4, ?5, ?6)";
        let by_sql = self.execute(text, (name, kind, &value, zone, overlap.as_str(), limit));
        self.record_sql(by_sql, Action::Added(name.to_owned()), &format!("{name} is fresh"))
    }

    /// Records what a statement of the shell has changed. It is refused while the shell holds the write lock.
    pub(crate) fn record_sql(&mut self, done: Result<usize, String>, action: Action, what: &str) -> Check {
        match done {
            Ok(1) => self.record(&action, what),
            Ok(_) => self.record(&Action::Nothing, &format!("{what}, in vain")),
            Err(error) => self.record(&Action::Nothing, &format!("{what}, refused: {error}")),
        }
    }

    /// Takes one action of a user. By SQL only while the shell does not hold the write lock.
    pub(crate) fn random_action(&mut self) -> Check {
        let sql = !self.write_locked && self.once_in(2);
        match self.rng.u32(..100) {
            0..17 => self.add(),
            17..22 => self.change_limit(),
            22..34 => self.edit(sql),
            34..44 => self.pause(sql),
            44..58 => self.resume(sql),
            58..69 => self.trigger(),
            69..72 => self.trigger_many(),
            72..79 => self.retry(),
            79..88 => self.cancel(sql),
            88..91 => self.remove(),
            91..93 => self.prune(),
            93..95 if !self.write_locked => self.corrupt_row(),
            _ if !self.write_locked => self.set_next_run(),
            _ => Ok(()),
        }
    }

    /// Takes one action of a user that is one transaction, through the client.
    #[cfg(feature = "postgres")]
    pub(crate) fn random_request(&mut self) -> Check {
        match self.rng.u32(..100) {
            0..20 => self.add(),
            20..35 => self.edit(false),
            35..50 => self.pause(false),
            50..65 => self.resume(false),
            65..80 => self.trigger(),
            80..87 => self.retry(),
            87..95 => self.cancel(false),
            _ => self.remove(),
        }
    }

    fn edit(&mut self, sql: bool) -> Check {
        let Some(name) = self.any_task(|task| task.status != "completed" || task.kind != "once") else { return Ok(()) };
        if sql {
            return self.update(name);
        }
        let task = self.draw_task(&name);
        match self.database.client.replace(task) {
            Ok(added) if added.change == Change::Replaced => {
                self.corrupt_texts.remove(&name);
                let action = Action::Edited { task: name.clone(), by_sql: false };
                self.record(&action, &format!("{name} is replaced"))
            }
            Ok(_) => self.record(&Action::Nothing, &format!("{name} is unchanged")),
            Err(error) => self.record(&Action::Nothing, &format!("{name} is not replaced: {error}")),
        }
    }

    fn update(&mut self, name: String) -> Check {
        if self.corrupt_texts.contains_key(&name) {
            let value = self.valid_schedule(&name);
            return self.rewrite(name, value);
        }
        let row = self.history.tables.named(&name).expect("a task").clone();
        let (column, value) = match self.rng.u32(..7) {
            0 => ("max_attempts", self.rng.u32(1..=4).to_string()),
            1 => ("priority", self.rng.u32(..=3).to_string()),
            2 if self.database.shell.is_on_server() => ("handler", self.pick(&HANDLERS[..3]).to_owned()),
            2 => ("handler", self.pick(&HANDLERS).to_owned()),
            3 if row.misfire != Misfire::RunAll => ("overlap", self.pick(Overlap::ALL).to_string()),
            4 => ("concurrency_key", self.pick(&KEYS).to_owned()),
            5 if row.is_local() => ("time_zone", self.pick(&ZONES).to_owned()),
            _ if row.kind == "cron" => ("schedule_value", self.pick(&LINES).to_owned()),
            _ if row.kind == "calendar" => ("schedule_value", self.pick(&CALENDARS).to_owned()),
            _ if row.kind == "once" || row.kind == "manual" => ("catch_up_limit", "2".to_owned()),
            _ => ("schedule_value", self.pick(&["90s", "11m", "3600000"]).to_owned()),
        };
        let text = format!("UPDATE scheduled_tasks SET {column} = ?2 WHERE name = ?1");
        let done = self.execute(&text, (&name, &value));
        let what = format!("{column} of {name} is set to {value} by SQL");
        self.record_sql(done, Action::Edited { task: name, by_sql: true }, &what)
    }

    fn pause(&mut self, sql: bool) -> Check {
        let Some(name) = self.any_task(TaskRow::is_active) else { return Ok(()) };
        let action = Action::Paused { task: name.clone(), by_sql: sql };
        if sql {
            let text = "UPDATE scheduled_tasks SET status = 'paused' WHERE name = ?1";
            let done = self.execute(text, [&name]);
            return self.record_sql(done, action, &format!("{name} is paused by SQL"));
        }
        let done = self.database.client.pause(&name);
        self.record_client(done, action, &format!("{name} is paused"))
    }

    fn resume(&mut self, sql: bool) -> Check {
        let Some(name) = self.any_task(|task| task.status == "paused") else { return Ok(()) };
        let action = Action::Resumed { task: name.clone(), by_sql: sql };
        if sql {
            let text = "UPDATE scheduled_tasks SET status = 'active' WHERE name = ?1";
            let done = self.execute(text, [&name]);
            return self.record_sql(done, action, &format!("{name} is resumed by SQL"));
        }
        let done = self.database.client.resume(&name);
        self.record_client(done, action, &format!("{name} is resumed"))
    }

    fn record_client<T>(&mut self, done: duly::Result<T>, action: Action, what: &str) -> Check {
        match done {
            Ok(_) => self.record(&action, what),
            Err(error) => self.record(&Action::Nothing, &format!("{what}, refused: {error}")),
        }
    }

    pub(crate) fn trigger(&mut self) -> Check {
        let Some(name) = self.any_task(|_| true) else { return Ok(()) };
        let task = self.history.tables.named(&name).expect("a task").id;
        let key = self.once_in(3).then(|| self.pick(&["today", "tomorrow"]));
        let request = key.into_iter().fold(NewRun::of(&name), NewRun::key);
        // A key is valid until its run is deleted.
        let earlier = key.and_then(|key| self.history.requested.get(&(task, key)).copied());
        let earlier = earlier.filter(|run| self.history.tables.runs.contains_key(run));
        let done = self.database.client.trigger_run(request);
        let (opened, found) = match &done {
            Ok(run) if run.is_new => (Some(run.run_id), None),
            Ok(run) => (None, Some(run.run_id)),
            Err(_) => (None, earlier),
        };
        if found != earlier {
            return Err(format!("{name} was requested as {key:?}: answered with {done:?}, expected run {earlier:?}"));
        }
        self.history.requested.extend(key.zip(opened).map(|(key, run)| ((task, key), run)));
        let action = if opened.is_some() { Action::Triggered(name.clone()) } else { Action::Nothing };
        self.record_client(done, action, &format!("{name} is triggered, as {key:?}"))?;
        self.check_opened_run(opened, None)
    }

    /// Checks that a run exists after the client has returned its id.
    fn check_opened_run(&self, opened: Option<i64>, retry_of: Option<i64>) -> Check {
        let Some(id) = opened else { return Ok(()) };
        let run = self.history.tables.runs.get(&id);
        match run.filter(|run| run.origin == Origin::Manual && run.retry_of == retry_of) {
            Some(_) => Ok(()),
            None => Err(format!("the client returned run {id}, a retry of {retry_of:?}; the row is {run:?}")),
        }
    }

    fn task_of(&self, run: i64) -> String {
        let tables = &self.history.tables;
        tables.tasks[&tables.runs[&run].task].name.clone()
    }

    fn retry(&mut self) -> Check {
        let runs = self.history.tables.runs.values();
        let over = runs.filter(|run| matches!(run.status, RunStatus::Dead | RunStatus::Cancelled));
        let runs: Vec<i64> = over.map(|run| run.id).collect();
        let Some(run) = self.rng.choice(runs) else { return Ok(()) };
        let name = self.task_of(run);
        let done = self.database.client.retry(run);
        let opened = done.as_ref().ok().copied();
        self.record_client(done, Action::Triggered(name), &format!("run {run} is retried"))?;
        self.check_opened_run(opened, Some(run))
    }

    fn cancel(&mut self, sql: bool) -> Check {
        let runs: Vec<i64> = self.history.tables.unfinished().map(|run| run.id).collect();
        let Some(run) = self.rng.choice(runs) else { return Ok(()) };
        let name = self.task_of(run);
        let action = Action::Cancelled(name.clone());
        if sql {
            let text = "UPDATE task_runs SET cancel_requested = 1 WHERE id = ?1";
            let done = self.execute(text, [run]);
            return self.record_sql(done, action, &format!("run {run} is cancelled by SQL"));
        }
        if self.once_in(2) {
            let task = self.history.tables.runs[&run].task;
            let all = self.history.tables.unfinished().filter(|run| run.task == task).map(|run| run.id).collect();
            let done = self.database.client.cancel_all(&name);
            let cancelled = if done.is_ok() { all } else { Vec::new() };
            self.record_client(done, action, &format!("all runs of {name} are cancelled"))?;
            return self.check_cancelled(&cancelled);
        }
        let done = self.database.client.cancel(run);
        let cancelled = if done.is_ok() { vec![run] } else { Vec::new() };
        self.record_client(done, action, &format!("run {run} is cancelled"))?;
        self.check_cancelled(&cancelled)
    }

    /// Checks that waiting runs are cancelled, and running ones asked to stop.
    fn check_cancelled(&self, cancelled: &[i64]) -> Check {
        let goes_on = |id: &&i64| {
            let run = &self.history.tables.runs[*id];
            run.status != RunStatus::Cancelled && !(run.status == RunStatus::Running && run.cancel_requested)
        };
        match cancelled.iter().find(goes_on) {
            Some(id) => Err(format!("the client cancelled run {id}, which goes on")),
            None => Ok(()),
        }
    }

    fn remove(&mut self) -> Check {
        let Some(name) = self.any_task(|_| true) else { return Ok(()) };
        let done = self.database.client.remove(&name);
        let is_gone = done.is_ok();
        self.record_client(done, Action::Removed(name.clone()), &format!("{name} is removed"))?;
        match self.history.tables.named(&name).filter(|_| is_gone) {
            Some(_) => Err(format!("the client removed {name}, which is still there")),
            None => Ok(()),
        }
    }

    fn set_next_run(&mut self) -> Check {
        let Some(name) = self.any_task(|task| !task.is_halted()) else { return Ok(()) };
        let text = "UPDATE scheduled_tasks SET next_run = ?2 WHERE name = ?1";
        let done = self.execute(text, (&name, self.wall()));
        self.record_sql(done, Action::NextRunSet(name.clone()), &format!("{name} is to run now"))
    }
}
