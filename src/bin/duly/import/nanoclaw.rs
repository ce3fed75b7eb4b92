//! The scheduled tasks of NanoClaw 1. Each runs one command, which reads the task from its standard input, or one handler, whose payload
//! is the task.

use std::time::Duration;

use duly::{ImportItem, NewTask, ScheduleKind, Timestamp, Zone};
use serde_json::{Value, json};

use crate::exec::payload::Payload;
use crate::import::cronexpr::either_day;
use crate::import::foreign_rows::Row;
use crate::import::name::Names;
use crate::import::source::{Note, Parsed, ParsedTask, Place};

/// Options of the import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    /// The zone in which NanoClaw reads all times.
    pub(crate) zone: &'a Zone,
    pub(crate) prefix: &'a str,
    pub(crate) target: Target<'a>,
    pub(crate) now: Timestamp,
}

/// What runs the tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// A command, in its working directory.
    Command { argv: &'a [String], cwd: &'a str },
    /// A handler, for example of a worker.
    Handler(&'a str),
}

/// Columns that the command or the handler reads.
const INPUT_COLUMNS: [&str; 8] =
    ["id", "group_folder", "chat_jid", "prompt", "context_mode", "script", "schedule_type", "schedule_value"];

/// Converts the rows to tasks. A row that cannot be converted is refused; the others are not affected.
pub(crate) fn convert(rows: &[Row], options: &Options<'_>) -> Parsed<'static> {
    let mut parsed = Parsed::default();
    let mut names = Names::new(options.prefix);
    for row in rows {
        let place = Place::id(row.text("id").unwrap_or_default());
        let part = |column| row.text(column).unwrap_or("nothing");
        let text = format!("{} {}", part("schedule_type"), part("schedule_value"));
        let note = |reason: String| Note { place: place.clone(), text: text.clone(), reason };
        let Some(name) = row.text("id").map(|id| names.for_id(id)) else {
            parsed.refused.push(note("its id is missing".into()));
            continue;
        };
        let task = task(row, &name, options);
        record(&mut parsed, place, text, name, task.map(|(item, remark)| (item, remark.into_iter().collect())));
    }
    parsed
}

/// Adds a task with its remarks, or its refusal.
pub(super) fn record(
    parsed: &mut Parsed<'static>,
    place: Place,
    text: String,
    name: String,
    task: Result<(ImportItem, Vec<String>), Refusal>,
) {
    let note = |reason: String| Note { place: place.clone(), text: text.clone(), reason };
    match task {
        Ok((item, remarks)) => {
            parsed.remarks.extend(remarks.into_iter().map(note));
            parsed.tasks.push(ParsedTask { place, text: text.into(), name, item: Box::new(move |_| item.clone()) });
        }
        Err(Refusal::Finished(reason)) => parsed.refused.push(note(reason)),
        Err(Refusal::Invalid(reason)) => {
            parsed.refused.push(note(reason));
            parsed.retained.push(name);
        }
    }
}

/// Why a row cannot be imported.
pub(super) enum Refusal {
    /// It has no occurrence left.
    Finished(String),
    /// A column has an unknown or invalid value.
    Invalid(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Refusal::Invalid(reason)
    }
}

fn task(row: &Row, name: &str, options: &Options<'_>) -> Result<(ImportItem, Option<String>), Refusal> {
    let column = |name: &'static str| row.text(name).ok_or_else(|| format!("its {name} is missing"));
    let paused = match column("status")? {
        "active" => false,
        "paused" => true,
        "completed" => return Err(Refusal::Finished("it is completed".into())),
        other => return Err(format!("expected the status active, paused or completed, found {other:?}").into()),
    };
    let value = column("schedule_value")?;
    let scheduled = |kind, value: &str| NewTask::scheduled(name, kind, value).time_zone(options.zone.name());
    let (task, remark) = match column("schedule_type")? {
        "cron" => (scheduled(ScheduleKind::Cron, &cron(value)), None),
        "interval" => (interval(row, name, value)?, None),
        // The program itself writes once; its migration to version 2 accepts at, too.
        "once" | "at" => {
            let (value, remark) = once(row, value, paused, options)?;
            (scheduled(ScheduleKind::Once, &value), remark)
        }
        other => return Err(format!("expected the type cron, interval, once or at, found {other:?}").into()),
    };
    let input: serde_json::Map<_, _> =
        INPUT_COLUMNS.iter().map(|name| (name.to_string(), json!(row.text(name)))).collect();
    let key = format!("chat:{}", column("chat_jid")?);
    let task = options.target.set(task, input)?.concurrency_key(key);
    Ok((ImportItem { paused, ..task.into() }, remark))
}

/// Returns a cron expression for duly. In NanoClaw (npm's `cron-parser`), too, `*/2` restricts the days.
pub(super) fn cron(value: &str) -> String {
    let mut fields: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
    if [5, 6].contains(&fields.len()) {
        either_day(&mut fields);
    }
    fields.join(" ")
}

impl Target<'_> {
    /// Sets the handler and its payload. A command reads the input as one line of JSON.
    pub(super) fn set(&self, task: NewTask, input: serde_json::Map<String, Value>) -> Result<NewTask, String> {
        match self {
            Target::Command { argv, cwd } => {
                let payload = Payload {
                    argv: argv.to_vec(),
                    cwd: Some((*cwd).to_owned()),
                    stdin: format!("{}\n", Value::Object(input)),
                    ..Payload::default()
                };
                Ok(task.handler("command").payload(payload.checked()?))
            }
            Target::Handler(name) => Ok(task.handler(*name).payload(Value::Object(input))),
        }
    }
}

/// An interval in milliseconds, or with a unit as its migration to version 2 accepts it, on the grid of NanoClaw. It starts near the creation of the row, so that each import gives the
/// same task.
fn interval(row: &Row, name: &str, value: &str) -> Result<NewTask, String> {
    let expected = || format!("expected milliseconds, as in 300000, or one unit, as in 30m, found {value:?}");
    let (number, unit) = match value.trim().char_indices().last() {
        Some((at, 's')) => (&value.trim()[..at], 1000),
        Some((at, 'm')) => (&value.trim()[..at], 60_000),
        Some((at, 'h')) => (&value.trim()[..at], 3_600_000),
        Some((at, 'd')) => (&value.trim()[..at], 86_400_000),
        _ => (value.trim(), 1),
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0).ok_or_else(expected)?;
    let every = number.checked_mul(unit).ok_or_else(expected)?;
    let width = i64::try_from(every).map_err(|_| format!("expected fewer milliseconds, found {value:?}"))?;
    let task = NewTask::interval(name, Duration::from_millis(every));
    let instant = |column| row.text(column).and_then(|text| text.parse::<Timestamp>().ok());
    Ok(match (instant("next_run"), instant("created_at")) {
        (Some(next), Some(created)) => {
            let off = (next.as_millis() - created.as_millis()).rem_euclid(width);
            task.starts_at(created.plus(Duration::from_millis(off.unsigned_abs())))
        }
        (Some(at), None) | (None, Some(at)) => task.starts_at(at),
        (None, None) => task,
    })
}

/// Returns the instant of a one-time task, and a remark. NanoClaw uses `next_run`, which does not follow an edited time or a
/// changed zone.
fn once(row: &Row, value: &str, paused: bool, options: &Options<'_>) -> Result<(String, Option<String>), Refusal> {
    let written = options.zone.instant(value);
    let next = row.text("next_run").and_then(|text| text.parse::<Timestamp>().ok());
    let at = match (next, &written) {
        (Some(next), _) => next,
        (None, Ok(written)) => *written,
        (None, Err(error)) => {
            let reason = match error {
                duly::Error::InvalidSchedule { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            return Err(format!("it has no next_run, and its time is invalid: {reason}").into());
        }
    };
    let past = at <= options.now;
    if let Some(last) = row.text("last_run").filter(|_| past) {
        return Err(Refusal::Finished(format!("it has run at {last}")));
    }
    if past && next.is_none() {
        return Err(Refusal::Finished(format!(
            "its time has passed ({at}), and NanoClaw plans no further run: its next_run is empty"
        )));
    }
    let differs = written.as_ref().map_or(true, |written| *written != at);
    let remark = match (past, differs) {
        (true, _) if paused => {
            Some(format!("its time has passed ({at}) without a run: it will run when it is resumed"))
        }
        (true, _) => Some(format!("its time has passed ({at}) without a run: it will run when a scheduler starts")),
        (false, true) => Some(format!(
            "it will run at {at}, as planned by NanoClaw; its time in {} differs: check --tz",
            options.zone.name()
        )),
        (false, false) => None,
    };
    Ok((if differs { at.to_string() } else { value.to_owned() }, remark))
}
