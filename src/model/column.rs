//! The values of the columns of a task, and the types of the fields that they hold.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::clock::{Timestamp, millis};
use crate::schedule::ScheduleKind;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColumnValue<'a> {
    Null,
    Number(i64),
    Time(Timestamp),
    Text(&'a str),
}

impl ColumnValue<'_> {
    /// Returns the value as the message about two definitions that differ shows it.
    pub(crate) fn shown(self) -> String {
        match self {
            ColumnValue::Null => String::new(),
            ColumnValue::Number(number) => number.to_string(),
            ColumnValue::Time(at) => at.to_string(),
            ColumnValue::Text(text) => text.to_owned(),
        }
    }
}

impl Serialize for ColumnValue<'_> {
    /// Unlike the serde form of a [`Timestamp`], a time can be any that another program may have written.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            ColumnValue::Null => to.serialize_none(),
            ColumnValue::Number(number) => to.serialize_i64(*number),
            ColumnValue::Time(at) => to.collect_str(at),
            ColumnValue::Text(text) => to.serialize_str(text),
        }
    }
}

/// The type of a field that a column holds.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only the statements of that store ask for the kind"))]
pub(crate) trait Column {
    const IS_TEXT: bool;
    const IS_OPTIONAL: bool = false;

    fn value(&self) -> ColumnValue<'_>;
}

impl<T: Column> Column for Option<T> {
    const IS_TEXT: bool = T::IS_TEXT;
    const IS_OPTIONAL: bool = true;

    fn value(&self) -> ColumnValue<'_> {
        self.as_ref().map_or(ColumnValue::Null, T::value)
    }
}

/// Defines the value of fields of these types, and whether it is text.
macro_rules! columns_of {
    ($($type:ty, $is_text:literal, |$value:ident| $found:expr;)+) => { $(
        impl $crate::model::column::Column for $type {
            const IS_TEXT: bool = $is_text;

            fn value(&self) -> $crate::model::column::ColumnValue<'_> {
                let $value = self;
                $found
            }
        }
    )+ };
}
pub(crate) use columns_of;

columns_of! {
    String, true, |text| ColumnValue::Text(text);
    ScheduleKind, true, |kind| ColumnValue::Text(kind.as_str());
    u8, false, |number| ColumnValue::Number((*number).into());
    u32, false, |number| ColumnValue::Number((*number).into());
    Duration, false, |length| ColumnValue::Number(millis(*length));
    Timestamp, false, |at| ColumnValue::Time(*at);
}
