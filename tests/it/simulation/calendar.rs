//! What a schedule names, as the checker knows it. Grids are counted here; of cron lines the public face is asked, since how
//! a line maps to instants has a proof of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use duly::{NewTask, Timestamp, parse_duration};

use crate::simulation::rows::TaskRow;
use crate::simulation::unusable_rows::{NONSENSE, UNKNOWN_ZONE};

/// Before every instant that a simulation asks about.
const DAWN: i64 = 1_798_761_600_000;
/// Occurrences that are looked up at once.
const CHUNK: usize = 256;

type Line = Arc<Mutex<Vec<i64>>>;

/// Occurrences of cron lines, by line and zone, as far as anybody has asked. Shared by all seeds.
static LINES: Mutex<BTreeMap<(String, String), Line>> = Mutex::new(BTreeMap::new());

#[derive(Clone)]
pub(crate) enum Calendar {
    Cron {
        line: Line,
        text: String,
        zone: String,
    },
    Grid {
        every: i64,
        anchor: i64,
    },
    Delay(i64),
    Once(i64),
    /// No occurrence at all.
    Manual,
    /// Of a row that cannot be used.
    Nonsense,
    /// Of a row whose time zone is not known here: it stays as it is, and nothing of it comes due.
    Unknown,
}

impl Calendar {
    /// The calendar of a task as its row describes it. `created`: where its grid begins, unless the row says.
    pub(crate) fn of(row: &TaskRow, created: i64) -> Self {
        let length = || i64::try_from(parse_duration(&row.value).expect("a duration").as_millis()).expect("a length");
        match row.kind.as_str() {
            _ if row.zone == UNKNOWN_ZONE => Calendar::Unknown,
            _ if row.value.starts_with(NONSENSE) => Calendar::Nonsense,
            "interval" => Calendar::Grid { every: length(), anchor: row.starts.unwrap_or(created) },
            "delay" => Calendar::Delay(length()),
            "manual" => Calendar::Manual,
            "once" => Calendar::Once(row.value.parse::<Timestamp>().expect("an instant").as_millis()),
            _ => {
                let (text, zone) = (row.value.clone(), row.zone.clone());
                let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
                let line = lines.entry((text.clone(), zone.clone())).or_default().clone();
                Calendar::Cron { line, text, zone }
            }
        }
    }

    /// The first occurrence after `at`.
    pub(crate) fn after(&self, at: i64) -> Option<i64> {
        match self {
            Calendar::Cron { line, text, zone } => {
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                assert!(at >= DAWN, "the simulation has left its calendar");
                while line.last().is_none_or(|last| *last <= at) {
                    let from = line.last().copied().unwrap_or(DAWN);
                    let task = NewTask::cron("line", text).time_zone(zone).handler("work");
                    let more = task.occurrences(Timestamp::from_millis(from), CHUNK).expect("occurrences");
                    line.extend(more.iter().map(|at| at.as_millis()));
                }
                Some(line[line.partition_point(|occurrence| *occurrence <= at)])
            }
            Calendar::Grid { anchor, .. } if at < *anchor => Some(*anchor),
            Calendar::Grid { every, anchor } => Some(at - (at - anchor).rem_euclid(*every) + every),
            Calendar::Delay(_) | Calendar::Manual | Calendar::Nonsense | Calendar::Unknown => None,
            Calendar::Once(instant) => Some(*instant).filter(|instant| *instant > at),
        }
    }
}
