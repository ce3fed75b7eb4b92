#![doc = include_str!("../README.md")]
#![cfg_attr(feature = "tokio", doc = include_str!("../docs/async.md"))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

/// The snippets of the guides, which `cargo test --doc` runs.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../docs/embedding.md")]
    mod embedding {}
    #[doc = include_str!("../docs/repeatable-tasks.md")]
    mod repeatable_tasks {}
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../docs/postgres.md")]
    mod postgres {}
}

mod client;
mod clock;
mod engine;
mod error;
mod host;
mod model;
#[cfg(feature = "page")]
pub mod page;
mod rules;
mod schedule;
mod scheduler;
mod store;
pub mod testing;
#[doc(hidden)]
pub mod text;
mod worker;

pub use client::Client;
#[cfg(feature = "tokio")]
pub use client::async_client::AsyncClient;
pub use client::backup::Backup;
pub use client::check::{Problem, ProblemKind};
pub use client::details::{ListedTask, RunDetails, TaskDetails};
pub use client::migrate::migrate;
pub use client::runs::NewRun;
pub use clock::{Clock, Now, SystemClock, Timestamp};
pub use error::{BoxError, Error, Result};
pub use model::alarm::{AlarmItem, AlarmKind, AlarmMessage, AlarmOutage, AlarmPace, AlarmState, AlarmTurn};
pub use model::bulk::{BulkAction, BulkItem, BulkLeft, BulkReport};
pub use model::event::{Event, Observer};
pub use model::filter::{Filter, NamePattern};
pub use model::finished::Finished;
pub use model::health::Limits;
pub use model::limit::{Limit, LimitOn, LimitState};
pub use model::new_task::NewTask;
pub use model::progress_meter::Progress;
pub use model::recorded::{EventFilter, RecordedEvent};
pub use model::report::{ClockWait, Finding, Instance, Migrated, Pruned, Recent, Status};
pub use model::request::{Added, Applied, Apply, Cancel, Change, Done, ImportItem, Triggered};
pub use model::retry::{Retry, RetryPolicy};
pub use model::run::{
    Attempt, AttemptOutcome, Claim, Effect, EffectState, FailureKind, Origin, Outcome, Run, RunFilter, RunStatus,
};
#[cfg(feature = "postgres")]
pub use model::server_report::ServerReport;
pub use model::settings::Retention;
pub use model::task::{
    Definition, MAX_CATCH_UP, MAX_DURATION, MAX_JITTER, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Misfire, Overlap, Task,
    TaskStatus,
};
/// The client of [`Client::add_in_postgres`], so that an application uses the same version.
#[cfg(feature = "postgres")]
pub use postgres;
pub use rules::forecast::{Outage, Projection, Upcoming};
/// The SQLite of [`Context::finish`] and [`Client::add_in`], so that an application uses the same version.
pub use rusqlite;
pub use schedule::{ClockNote, ScheduleKind, Zone, ZoneData, duration_text, parse_duration, zone_data};
pub use scheduler::{Builder, Scheduler, Shutdown};
pub use store::sqlite::file::Durability;
pub use store::sqlite::settle::MAX_RESULT_BYTES;
pub use worker::attempt::StopReason;
pub use worker::backoff::FailedAttempt;
pub use worker::command;
pub use worker::effects::{MAX_EFFECT_KEY_BYTES, MAX_EFFECT_VALUE_BYTES};
pub use worker::executor;
pub use worker::failure::Failure;
pub use worker::handler::{Context, Handler, MAX_PROGRESS_BYTES};
#[cfg(feature = "tokio")]
pub use worker::job::AsyncJob;
pub use worker::job::{Job, JobKind};
