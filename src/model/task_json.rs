//! The JSON form of a task: its columns, those of its definition first.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::clock::millis;
use crate::model::column::{Column, ColumnValue};
use crate::model::json;
use crate::model::task::{Definition, Task};

/// Text that is JSON.
#[derive(Serialize)]
struct Json<'a>(#[serde(with = "json::text")] &'a str);

impl Serialize for Task {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut row = to.serialize_map(None)?;
        row.serialize_entry("id", &self.id)?;
        for (column, value) in Definition::COLUMNS.iter().zip(self.definition.values()) {
            match (*column, value) {
                ("payload", ColumnValue::Text(payload)) => row.serialize_entry(column, &Json(payload))?,
                _ => row.serialize_entry(column, &value)?,
            }
        }
        row.serialize_entry("status", self.status.as_str())?;
        row.serialize_entry("next_run", &self.next_run.value())?;
        row.serialize_entry("planned", &self.planned)?;
        row.serialize_entry("resolved_until", &self.resolved_until.value())?;
        row.serialize_entry("active_since", &self.active_since.value())?;
        row.serialize_entry("last_run", &self.last_run.value())?;
        row.serialize_entry("last_finished", &self.last_finished.value())?;
        row.serialize_entry("last_status", &self.last_status)?;
        row.serialize_entry("last_duration_ms", &self.last_duration.map(millis))?;
        row.serialize_entry("last_error", &self.last_error)?;
        row.serialize_entry("failure_count", &self.failure_count)?;
        row.serialize_entry("invalid_reason", &self.invalid_reason)?;
        row.serialize_entry("paused_by", &self.paused_by)?;
        row.serialize_entry("created_at", &self.created_at.value())?;
        row.serialize_entry("updated_at", &self.updated_at.value())?;
        row.end()
    }
}
