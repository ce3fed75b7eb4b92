//! The lines of the pipe: one JSON object each, in which the scheduler tells its guard what to end.

use std::time::Duration;

use duly::command::Leader;
use serde::{Deserialize, Serialize};

/// A process group that is about to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Starting {
    pub(super) name: String,
    /// Since the boot: its leader will have begun later.
    #[serde(with = "millis")]
    pub(super) at: Duration,
    /// From SIGTERM to SIGKILL.
    #[serde(with = "millis")]
    pub(super) kill_after: Duration,
    /// Its processes will have these variables.
    pub(super) variables: Vec<String>,
}

/// A process group of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) pid: u32,
    /// `None` where its leader cannot be distinguished from other processes.
    pub(super) leader: Option<Leader>,
    /// From SIGTERM to SIGKILL.
    #[serde(with = "millis")]
    pub(super) kill_after: Duration,
    /// A process of the group that was started with all of these variables is one of the command's. Empty: none is known.
    pub(super) variables: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Starting(Starting),
    Start(Group),
    /// The group with this name is gone.
    End(String),
    /// When the groups are ended although the pipe is open, in milliseconds since the boot.
    Deadline {
        #[serde(with = "millis")]
        term: Duration,
        #[serde(with = "millis")]
        kill: Duration,
    },
}

impl Line {
    pub(super) fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// `None` if it is not a line of the pipe.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}
