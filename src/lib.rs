#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod adding;
mod advance;
mod aliases;
mod apply;
mod backup;
mod cancelling;
mod check;
mod client;
mod clock;
mod complaints;
mod desk;
mod doctor;
mod effects;
mod error;
mod event;
mod faults;
mod finished;
mod folder;
mod handler;
mod horizon;
mod housekeeping;
mod new_task;
mod orphan;
mod outbox;
mod outlook;
mod owner;
mod platform;
mod poller;
mod pool;
mod process;
mod progress;
mod pruning;
mod recent;
mod resolve;
mod retry;
mod retrying;
mod run;
mod schedule;
mod scheduler;
mod settings;
mod slots;
mod status;
mod steps;
mod store;
mod task;
pub mod testing;
mod tools;
mod triggering;
mod turn;
mod turning;
mod unwind;
mod wake;
mod watch;

pub use adding::{Added, Change};
pub use advance::Advance;
pub use apply::{Applied, Apply, Brought, Done};
pub use backup::Backup;
pub use cancelling::Cancel;
pub use check::{Limits, Problem, ProblemKind};
pub use client::Client;
pub use clock::{Clock, Now, SystemClock, Timestamp};
pub use doctor::Finding;
pub use effects::{MAX_EFFECT_KEY_BYTES, MAX_EFFECT_VALUE_BYTES};
pub use error::{BoxError, Error, Result};
pub use event::{Event, Observer};
pub use finished::Finished;
pub use handler::{Context, Failure, Handler, MAX_OUTPUT_BYTES, MAX_PROGRESS_BYTES};
pub use new_task::NewTask;
pub use orphan::Orphan;
pub use outlook::{Fate, Outage, Upcoming};
pub use process::{Process, processes};
pub use pruning::Pruned;
pub use recent::Recent;
pub use retry::{Retry, RetryPolicy};
pub use run::{
    Attempt, AttemptOutcome, Claim, Effect, EffectState, FailureKind, Origin, Outcome, Run, RunFilter, RunStatus,
};
/// The SQLite of [`Context::finish`] and [`Client::add_in`], so that an application has the same version of it.
pub use rusqlite;
pub use schedule::{ClockNote, ScheduleKind, Zone, ZoneData, duration_text, parse_duration, zone_data};
pub use scheduler::{Builder, Scheduler, Shutdown};
pub use settings::Retention;
pub use status::{ClockWait, Instance, Status};
pub use store::{Durability, MAX_RESULT_BYTES};
pub use task::{
    Definition, MAX_CATCH_UP, MAX_DURATION, MAX_JITTER, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Misfire, Overlap, Task,
    TaskStatus,
};
pub use tools::StopReason;
pub use triggering::{NewRun, Triggered};
