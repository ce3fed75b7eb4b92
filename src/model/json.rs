//! The JSON form of columns: durations in milliseconds, and texts that hold JSON as values.

use std::time::Duration;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::millis;

/// A duration in milliseconds, for `#[serde(with)]`.
pub(crate) mod duration {
    use crate::model::json::{Deserialize, Deserializer, Duration, Serializer, millis};

    pub(crate) fn serialize<S: Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(millis(*length))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// An optional duration in milliseconds.
pub(crate) mod optional_duration {
    use crate::model::json::{Deserialize, Deserializer, Duration, Serialize, Serializer, millis};

    pub(crate) fn serialize<S: Serializer>(length: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        length.map(millis).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

/// A text that holds JSON: written as its value, or as a string if it is not valid JSON, and read as the text of the value.
pub(crate) mod text {
    use crate::model::json::{Deserialize, Deserializer, RawValue, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(text) {
            Ok(value) => value.serialize(to),
            Err(_) => to.serialize_str(text),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        Ok(Box::<RawValue>::deserialize(from)?.get().to_owned())
    }
}

/// An optional text that holds JSON. The value `null` is read as `None`.
pub(crate) mod optional_text {
    use crate::model::json::{Deserialize, Deserializer, RawValue, Serializer, text};

    pub(crate) fn serialize<S: Serializer>(value: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => text::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
        Ok(Option::<Box<RawValue>>::deserialize(from)?.map(|value| value.get().to_owned()))
    }
}
