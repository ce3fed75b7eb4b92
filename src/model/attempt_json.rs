//! The JSON of an attempt, and of its command, within that of an event.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::host::orphan::Orphan;
use crate::model::run::Claim;

/// The JSON form of an attempt, of which the rest is not written.
#[derive(Serialize, Deserialize)]
struct Attempt<'a> {
    run: i64,
    task: Cow<'a, str>,
    attempt: u32,
    handler: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_for: Option<Timestamp>,
    /// How many attempts before did not count, and how many may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgiven: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
}

/// The claim of an attempt, for `#[serde(with)]`.
pub(crate) mod attempt {
    use crate::model::attempt_json::{Arc, Attempt, Claim, Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(claim: &Arc<Claim>, to: S) -> Result<S::Ok, S::Error> {
        let Claim { run_id, attempt, task, handler, scheduled_for, forgiven, retry, .. } = &**claim;
        let attempt = Attempt {
            run: *run_id,
            task: task.into(),
            attempt: *attempt,
            handler: handler.into(),
            scheduled_for: Some(*scheduled_for),
            forgiven: Some(*forgiven),
            max_attempts: Some(retry.max_attempts),
        };
        attempt.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Claim>, D::Error> {
        let Attempt { run, task, attempt, handler, scheduled_for, forgiven, max_attempts } =
            Attempt::deserialize(from)?;
        let missing = serde::de::Error::missing_field;
        let at = scheduled_for.ok_or_else(|| missing("scheduled_for"))?;
        let mut claim = Claim::described(run, attempt, task.into_owned(), handler.into_owned(), at);
        claim.forgiven = forgiven.ok_or_else(|| missing("forgiven"))?;
        claim.retry.max_attempts = max_attempts.ok_or_else(|| missing("max_attempts"))?;
        Ok(Arc::new(claim))
    }
}

/// The command of an attempt, for `#[serde(with)]`.
pub(crate) mod orphan {
    use crate::model::attempt_json::{Attempt, Deserialize, Deserializer, Orphan, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(orphan: &Orphan, to: S) -> Result<S::Ok, S::Error> {
        let (task, handler) = (orphan.task().into(), orphan.handler().into());
        let (scheduled_for, forgiven, max_attempts) = (None, None, None);
        let attempt = orphan.attempt();
        Attempt { run: orphan.run_id(), task, attempt, handler, scheduled_for, forgiven, max_attempts }.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Orphan, D::Error> {
        let Attempt { run, task, attempt, handler, .. } = Attempt::deserialize(from)?;
        Ok(Orphan::described(run, attempt, task.into_owned(), handler.into_owned()))
    }
}
