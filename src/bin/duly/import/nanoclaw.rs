//! NanoClaw's scheduled tasks, each carried out by one command, which is told the task on its standard input.

use std::time::Duration;

use duly::{ImportItem, NewTask, ScheduleKind, Timestamp, Zone};
use serde_json::json;

use crate::exec::payload::Payload;
use crate::import::foreign_rows::Row;
pub(crate) use crate::import::foreign_rows::read as rows;
use crate::import::name::Names;
use crate::import::source::{Coming, Found, Place, Said};

/// How the rows are to be read.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    /// The one zone in which NanoClaw reads times.
    pub(crate) zone: &'a Zone,
    pub(crate) prefix: &'a str,
    /// What carries a task out.
    pub(crate) argv: &'a [String],
    /// The folder to run it in.
    pub(crate) cwd: &'a str,
    pub(crate) now: Timestamp,
}

/// What the command is told: these columns, as NanoClaw has them.
const TOLD: [&str; 8] =
    ["id", "group_folder", "chat_jid", "prompt", "context_mode", "script", "schedule_type", "schedule_value"];

/// What becomes of the rows. What cannot come is told, and keeps nothing else back.
pub(crate) fn read(rows: &[Row], how: &Reading<'_>) -> Found {
    let mut found = Found::default();
    let mut names = Names::new(how.prefix);
    for row in rows {
        let place = Place::id(row.text("id").unwrap_or_default());
        let part = |column| row.text(column).unwrap_or("nothing");
        let text = format!("{} {}", part("schedule_type"), part("schedule_value"));
        let said = |reason: String| Said { place: place.clone(), text: text.clone(), reason };
        let Some(name) = row.text("id").map(|id| names.of_id(id)) else {
            found.refused.push(said("its id is missing".into()));
            continue;
        };
        match task(row, &name, how) {
            Ok((brought, remark)) => {
                found.remarks.extend(remark.map(said));
                found.tasks.push(Coming { place: place.clone(), text: text.clone(), name, brought });
            }
            Err(Not::Over(reason)) => found.refused.push(said(reason)),
            Err(Not::Read(reason)) => {
                found.refused.push(said(reason));
                found.staying.push(name);
            }
        }
    }
    found
}

/// Why a row cannot come.
enum Not {
    /// Nothing of it is left to run.
    Over(String),
    /// It says what has no meaning here.
    Read(String),
}

impl From<String> for Not {
    fn from(reason: String) -> Self {
        Not::Read(reason)
    }
}

fn task(row: &Row, name: &str, how: &Reading<'_>) -> Result<(ImportItem, Option<String>), Not> {
    let column = |name: &'static str| row.text(name).ok_or_else(|| format!("its {name} is missing"));
    let paused = match column("status")? {
        "active" => false,
        "paused" => true,
        "completed" => return Err(Not::Over("it is completed: nothing is left to run".into())),
        other => return Err(format!("expected the status active, paused or completed, found {other:?}").into()),
    };
    let value = column("schedule_value")?;
    let scheduled = |kind, value: &str| NewTask::scheduled(name, kind, value).time_zone(how.zone.name());
    let (task, remark) = match column("schedule_type")? {
        "cron" => (scheduled(ScheduleKind::Cron, value), None),
        "interval" => (interval(row, name, value)?, None),
        "once" => {
            let (value, remark) = once(row, value, paused, how)?;
            (scheduled(ScheduleKind::Once, &value), remark)
        }
        other => return Err(format!("expected the type cron, interval or once, found {other:?}").into()),
    };
    let told: serde_json::Map<_, _> = TOLD.iter().map(|name| (name.to_string(), json!(row.text(name)))).collect();
    let payload = Payload {
        argv: how.argv.to_vec(),
        cwd: Some(how.cwd.to_owned()),
        env: Default::default(),
        env_from: Vec::new(),
        stdin: format!("{}\n", serde_json::Value::Object(told)),
    };
    let payload = payload.checked()?;
    let key = format!("chat:{}", column("chat_jid")?);
    let task = task.handler("command").payload(payload).concurrency_key(key);
    Ok((ImportItem { paused, ..task.into() }, remark))
}

/// Every so many milliseconds, on the grid that NanoClaw was on: reckoned from its beginning, so that the task is the same
/// whenever it is imported.
fn interval(row: &Row, name: &str, value: &str) -> Result<NewTask, String> {
    let every = value.trim().parse().ok().filter(|every| *every > 0);
    let every: u64 = every.ok_or_else(|| format!("expected milliseconds, as in 300000, found {value:?}"))?;
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

/// The instant of a task that runs once, and what is to be known of it. NanoClaw goes by `next_run`, which does not change when
/// the time is edited or the zone is another.
fn once(row: &Row, value: &str, paused: bool, how: &Reading<'_>) -> Result<(String, Option<String>), Not> {
    let told = how.zone.instant(value);
    let next = row.text("next_run").and_then(|text| text.parse::<Timestamp>().ok());
    let at = match (next, &told) {
        (Some(next), _) => next,
        (None, Ok(told)) => *told,
        (None, Err(error)) => {
            let what = match error {
                duly::Error::InvalidSchedule { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            return Err(format!("it has no next_run, and its time cannot be read: {what}").into());
        }
    };
    let past = at <= how.now;
    if let Some(last) = row.text("last_run").filter(|_| past) {
        return Err(Not::Over(format!("it has run, at {last}")));
    }
    if past && next.is_none() {
        return Err(Not::Over(format!(
            "its time has passed ({at}), and NanoClaw has no run of it to come: its next_run is empty"
        )));
    }
    let differs = told.as_ref().map_or(true, |told| *told != at);
    let remark = match (past, differs) {
        (true, _) if paused => {
            Some(format!("its time has passed ({at}), and it never ran: it runs when it is resumed"))
        }
        (true, _) => Some(format!("its time has passed ({at}), and it never ran: it runs as soon as a scheduler does")),
        (false, true) => Some(format!(
            "it runs at {at}, which is when NanoClaw would run it; its time reads otherwise in {}: another --tz?",
            how.zone.name()
        )),
        (false, false) => None,
    };
    Ok((if differs { at.to_string() } else { value.to_owned() }, remark))
}
