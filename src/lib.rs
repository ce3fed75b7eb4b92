#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod adding;
mod advance;
mod apply;
mod backup;
mod check;
mod client;
mod clock;
mod doctor;
mod error;
mod event;
mod faults;
mod handler;
mod horizon;
mod new_task;
mod orphan;
mod outlook;
mod owner;
mod platform;
mod poller;
mod pool;
mod pruning;
mod recent;
mod resolve;
mod retry;
mod retrying;
mod run;
mod schedule;
mod scheduler;
mod settings;
mod status;
mod steps;
mod store;
mod task;
pub mod testing;
mod turning;
mod watch;

pub use adding::{Added, Change};
pub use advance::Advance;
pub use apply::{Applied, Apply, Brought, Done};
pub use backup::Backup;
pub use check::{Limits, Problem, ProblemKind};
pub use client::{Cancel, Client};
pub use clock::{Clock, Now, SystemClock, Timestamp};
pub use doctor::Finding;
pub use error::{Error, Result};
pub use event::{Event, Observer};
pub use handler::{BoxError, Context, Failure, Handler, MAX_OUTPUT_BYTES, StopReason};
pub use new_task::NewTask;
pub use orphan::Orphan;
pub use outlook::{Fate, Outage, Upcoming};
pub use pruning::Pruned;
pub use recent::Recent;
pub use retry::{Retry, RetryPolicy};
pub use run::{Attempt, AttemptOutcome, Claim, Finished, Origin, Outcome, Run, RunFilter, RunStatus};
pub use schedule::{ClockNote, ScheduleKind, Zone, ZoneData, duration_text, parse_duration, zone_data};
pub use scheduler::{Builder, Scheduler, Shutdown};
pub use settings::Retention;
pub use status::{Instance, Status};
pub use store::Durability;
pub use task::{
    Definition, MAX_CATCH_UP, MAX_DURATION, MAX_JITTER, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Misfire, Overlap, Task,
    TaskStatus,
};
