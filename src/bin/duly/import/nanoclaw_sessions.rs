//! The scheduled tasks of NanoClaw 2: messages of kind `task` in the databases of its sessions. Each occurrence of a task is a row of
//! its own; the rows of a task have the same `series_id`. Each task runs one command or one handler, as in [`nanoclaw`](super::nanoclaw).

use std::collections::HashMap;
use std::time::Duration;

use duly::{ImportItem, Misfire, NewTask, Overlap, ScheduleKind, Timestamp, Zone};
use serde_json::{Map, Value, json};

use crate::import::foreign_rows::{Row, Session};
use crate::import::name::Names;
use crate::import::nanoclaw::{self, Options, Refusal, record};
use crate::import::source::{Note, Parsed, Place};

/// Most missed occurrences that NanoClaw runs with the policy `catch-up-all`.
const CATCH_UP_LIMIT: u32 = 24;
/// How late NanoClaw runs an occurrence with the policy `skip-if-missed` and no grace of its own.
const GRACE: Duration = Duration::from_secs(600);

/// The rows of a task, oldest first.
struct Series<'a> {
    id: &'a str,
    session: &'a Session,
    rows: Vec<&'a Row>,
}

/// Converts the rows to tasks. A task that cannot be converted is refused; the others are not affected.
pub(crate) fn convert(sessions: &[Session], options: &Options<'_>) -> Parsed<'static> {
    let mut parsed = Parsed::default();
    let mut names = Names::new(options.prefix);
    for session in sessions {
        // As in NanoClaw, a zone that does not exist counts for nothing.
        let own = session.zone.as_ref().and_then(|name| Zone::named(name).ok());
        let options = &Options { zone: own.as_ref().unwrap_or(options.zone), ..*options };
        let mut all: Vec<Series<'_>> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for row in &session.rows {
            let Some(id) = row.text("series_id").filter(|id| !id.is_empty()).or_else(|| row.text("id")) else {
                let (place, text) = (Place::default(), row.text("recurrence").unwrap_or_default().to_owned());
                parsed.refused.push(Note { place, text, reason: "its id is missing".into() });
                continue;
            };
            let at = *places.entry(id).or_insert_with(|| {
                all.push(Series { id, session, rows: Vec::new() });
                all.len() - 1
            });
            all[at].rows.push(row);
        }
        for series in all {
            let row = series.current();
            let text = match recurrence(row) {
                Some(cron) => format!("cron {cron}"),
                None => format!("once {}", row.text("process_after").unwrap_or("nothing")),
            };
            let name = names.for_id(series.id);
            let task = series.task(row, &name, options);
            record(&mut parsed, Place::id(series.id), text, name, task);
        }
    }
    parsed
}

fn recurrence(row: &Row) -> Option<&str> {
    row.text("recurrence").map(str::trim).filter(|cron| !cron.is_empty())
}

fn instant(row: &Row, column: &str) -> Option<Timestamp> {
    row.text(column)?.parse().ok()
}

/// Whether NanoClaw has still to run the row, or is running it.
fn is_live(row: &Row) -> bool {
    ["pending", "paused", "processing"].map(Some).contains(&row.text("status"))
}

impl Series<'_> {
    /// Returns the row that stands for the task: the newest that is live, else the newest with a recurrence, from which NanoClaw
    /// has still to make the next one, else the newest.
    fn current(&self) -> &Row {
        let newest = |is_it: fn(&Row) -> bool| self.rows.iter().rev().find(|row| is_it(row)).copied();
        newest(is_live).or_else(|| newest(|row| recurrence(row).is_some())).unwrap_or(self.rows[self.rows.len() - 1])
    }

    fn task(&self, row: &Row, name: &str, options: &Options<'_>) -> Result<(ImportItem, Vec<String>), Refusal> {
        let cron = recurrence(row);
        let mut remarks = Vec::new();
        let paused = match row.text("status").unwrap_or("nothing") {
            "pending" | "processing" => false,
            "paused" => true,
            "cancelled" => return Err(Refusal::Finished("it is cancelled".into())),
            "completed" if cron.is_none() => return Err(Refusal::Finished("it is completed".into())),
            "failed" if cron.is_none() => {
                return Err(Refusal::Finished("it has failed, and NanoClaw plans no further run".into()));
            }
            "completed" => false,
            "failed" => {
                remarks.push("its last run failed: duly runs it at its next time".to_owned());
                false
            }
            other => {
                let expected = "expected the status pending, paused, processing, completed, failed or cancelled";
                return Err(format!("{expected}, found {other:?}").into());
            }
        };
        let live = self.rows.iter().filter(|row| is_live(row)).count();
        if live > 1 {
            remarks.push(format!("NanoClaw plans {live} runs of it side by side: it is imported once"));
        }
        let content = Content::parse(row.text("content").unwrap_or_default());
        let (task, value) = match cron {
            Some(cron) => {
                let task =
                    NewTask::scheduled(name, ScheduleKind::Cron, nanoclaw::cron(cron)).time_zone(options.zone.name());
                // Only a task with a handler can be planned; it gets its own below.
                let task = task.handler("command");
                let task = if is_live(row) { first_run(task, row, paused, options, &mut remarks) } else { task };
                (content.with_policy(task), cron.to_owned())
            }
            None => {
                let at = once(row, paused, options, &mut remarks)?.to_string();
                (NewTask::scheduled(name, ScheduleKind::Once, &at), at)
            }
        };
        let mut input: Map<String, Value> = ["channel_type", "platform_id", "thread_id"]
            .map(|name| (name.to_owned(), json!(row.text(name))))
            .into_iter()
            .collect();
        let (agent_group, session) = self.session.folders.clone().unzip();
        let kind = if cron.is_some() { "cron" } else { "once" };
        for (key, value) in [
            ("id", json!(self.id)),
            ("agent_group", json!(agent_group)),
            ("session", json!(session)),
            ("prompt", json!(content.prompt)),
            ("script", content.script),
            ("content", content.value),
            ("schedule_type", json!(kind)),
            ("schedule_value", json!(value)),
        ] {
            input.insert(key.to_owned(), value);
        }
        let task = options.target.set(task, input)?;
        // As in NanoClaw, a session has one container.
        let task = match agent_group.zip(session) {
            Some((group, session)) => task.concurrency_key(format!("session:{group}/{session}")),
            None => task,
        };
        Ok((ImportItem { paused, ..task.into() }, remarks))
    }
}

/// Compares the planned run of a task with its schedule, which decides in duly. No occurrence is earlier than a planned run.
fn first_run(task: NewTask, row: &Row, paused: bool, options: &Options<'_>, remarks: &mut Vec<String>) -> NewTask {
    let first_after = |at: Timestamp| task.upcoming(at, 1).ok()?.first().map(|first| first.at);
    let Some(planned) = instant(row, "process_after") else { return task };
    if planned <= options.now {
        if !paused {
            remarks.push(format!(
                "its run of {planned} is overdue: duly runs it at its next time, or now by duly trigger"
            ));
        }
        return task;
    }
    // An invalid schedule is refused later.
    let Some((next, first)) = first_after(options.now).zip(first_after(planned.minus(Duration::from_millis(1)))) else {
        return task;
    };
    if first != planned {
        remarks.push(format!(
            "NanoClaw plans a run at {planned}, which is not a time of its schedule in {}: duly runs it at {first} first; check --tz",
            options.zone.name()
        ));
    }
    // The bound is set only where it matters: each import gives the same task.
    if planned > next { task.starts_at(planned) } else { task }
}

/// Returns the instant of a one-time task.
fn once(row: &Row, paused: bool, options: &Options<'_>, remarks: &mut Vec<String>) -> Result<Timestamp, Refusal> {
    // A row without a time is due at once.
    let at = instant(row, "process_after").or_else(|| instant(row, "timestamp"));
    let at = at.ok_or_else(|| "expected a time in process_after or timestamp, found none".to_owned())?;
    if at <= options.now {
        let when = if paused { "when it is resumed" } else { "when a scheduler starts" };
        remarks.push(format!("its time has passed ({at}) without a run: it will run {when}"));
    }
    Ok(at)
}

/// The content of a message of kind `task`.
struct Content {
    prompt: String,
    script: Value,
    /// All of it; text that is not JSON is a prompt.
    value: Value,
}

impl Content {
    fn parse(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => {
                let script = if value["script"].is_string() { value["script"].clone() } else { Value::Null };
                Content { prompt: value["prompt"].as_str().unwrap_or_default().to_owned(), script, value }
            }
            _ => Content { prompt: text.to_owned(), script: Value::Null, value: json!(text) },
        }
    }

    /// Sets the misfire policy. Without a known one, the newest of the missed occurrences runs, as in duly.
    fn with_policy(&self, task: NewTask) -> NewTask {
        match self.value["recurrencePolicy"].as_str() {
            Some("catch-up-all") => task
                .misfire(Misfire::RunAll, Duration::from_secs(60))
                .overlap(Overlap::BufferAll)
                .catch_up_limit(CATCH_UP_LIMIT),
            Some("skip-if-missed") => {
                let grace = self.value["graceWindowSeconds"].as_f64().filter(|seconds| *seconds > 0.0);
                let grace = grace.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(GRACE);
                task.misfire(Misfire::Skip, grace)
            }
            _ => task,
        }
    }
}
