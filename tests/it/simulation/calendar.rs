//! The occurrences of a schedule, as the checker computes them. Intervals are computed here; cron lines and calendars are expanded by
//! the public API, which has tests of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use duly::{NewTask, Timestamp, parse_duration};

use crate::simulation::rows::TaskRow;
use crate::simulation::unusable_rows::{INVALID_SCHEDULE, UNKNOWN_ZONE};

/// Earlier than every instant in a simulation.
const EARLIEST: i64 = 1_798_761_600_000;
/// Occurrences that are looked up at once.
const CHUNK: usize = 256;

type Line = Arc<Mutex<Vec<i64>>>;

/// Occurrences of cron lines and calendars, as far as they were needed. Shared by all seeds.
static LINES: Mutex<BTreeMap<Local, Line>> = Mutex::new(BTreeMap::new());

/// A schedule in local time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Local {
    text: String,
    zone: String,
    /// From when a calendar counts. `None`: a cron line.
    anchor: Option<i64>,
}

#[derive(Clone)]
pub(crate) enum Calendar {
    Local(Local, Line),
    Grid {
        every: i64,
        anchor: i64,
    },
    Delay(i64),
    Once(i64),
    /// No occurrence at all.
    Manual,
    /// A row that cannot be used.
    Invalid,
    /// The time zone is not known here: the row stays as it is, and is never due.
    Unknown,
}

impl Calendar {
    /// Returns the calendar of a task's row. An interval and a calendar count from `created` if the row has no `starts`.
    pub(crate) fn of(row: &TaskRow, created: i64) -> Self {
        let length = || i64::try_from(parse_duration(&row.value).expect("a duration").as_millis()).expect("a length");
        match row.kind.as_str() {
            _ if row.zone == UNKNOWN_ZONE => Calendar::Unknown,
            _ if row.value.starts_with(INVALID_SCHEDULE) => Calendar::Invalid,
            "interval" => Calendar::Grid { every: length(), anchor: row.starts.unwrap_or(created) },
            "delay" => Calendar::Delay(length()),
            "manual" => Calendar::Manual,
            "once" => Calendar::Once(row.value.parse::<Timestamp>().expect("an instant").as_millis()),
            kind => {
                let anchor = (kind == "calendar").then(|| row.starts.unwrap_or(created));
                let local = Local { text: row.value.clone(), zone: row.zone.clone(), anchor };
                let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
                let line = lines.entry(local.clone()).or_default().clone();
                Calendar::Local(local, line)
            }
        }
    }

    /// Returns the first occurrence after `at`.
    pub(crate) fn after(&self, at: i64) -> Option<i64> {
        match self {
            Calendar::Local(Local { text, zone, anchor }, line) => {
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                assert!(at >= EARLIEST, "an instant before the simulation");
                while line.last().is_none_or(|last| *last <= at) {
                    let from = line.last().copied().unwrap_or(EARLIEST);
                    let task = match anchor {
                        Some(anchor) => NewTask::calendar("line", text).starts_at(Timestamp::from_millis(*anchor)),
                        None => NewTask::cron("line", text),
                    };
                    let task = task.time_zone(zone).handler("work");
                    let more = task.occurrences(Timestamp::from_millis(from), CHUNK).expect("occurrences");
                    line.extend(more.iter().map(|at| at.as_millis()));
                }
                Some(line[line.partition_point(|occurrence| *occurrence <= at)])
            }
            Calendar::Grid { anchor, .. } if at < *anchor => Some(*anchor),
            Calendar::Grid { every, anchor } => Some(at - (at - anchor).rem_euclid(*every) + every),
            Calendar::Delay(_) | Calendar::Manual | Calendar::Invalid | Calendar::Unknown => None,
            Calendar::Once(instant) => Some(*instant).filter(|instant| *instant > at),
        }
    }
}
