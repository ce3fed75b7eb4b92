//! A durable scheduler on SQLite or PostgreSQL: each occurrence gets one run, and none is lost without a record.
//!
//! duly runs functions of an application at the times of cron expressions, intervals, delays and dates. Tasks and runs are rows of one
//! SQLite file, which may be the application's own. A run is recorded before it starts. If the process is killed, the next scheduler
//! on the file recovers the run; other processes may share the file, and each run is started by one of them.
//!
//! * [First program](#first-program), [concepts](#concepts), [what is promised](#what-is-promised)
//! * [Failures and retries](#failures-and-retries), [effects](#once-effects-and-finish), [testing](#testing)
//! * [Async](#async), [other processes](#other-processes), [PostgreSQL](#postgresql), [features](#features), [guides](#guides)
//!
//! # First program
//!
//! ```toml
//! [dependencies]
//! duly = { version = "0.1", default-features = false, features = ["bundled"] }
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use duly::{BoxError, Context, NewTask, Scheduler};
//!
//! fn digest(run: &Context) -> Result<String, BoxError> {
//!     let address: String = run.payload()?;
//!     Ok(format!("to {address}, for {}", run.scheduled_for()))
//! }
//!
//! fn main() -> Result<(), BoxError> {
//!     let scheduler = Scheduler::builder("agent.db").handler("digest", digest).start()?;
//!
//!     // A name is unique: adding the same task at every start stores it once.
//!     let daily = NewTask::cron("digest:anna", "0 7 * * *").time_zone("Europe/Paris");
//!     scheduler.add(daily.handler("digest").payload("anna@example.org"))?;
//!
//!     std::thread::park_timeout(Duration::from_secs(3600)); // your application runs here
//!     scheduler.shutdown(Duration::from_secs(30))?;
//!     Ok(())
//! }
//! ```
//!
//! The scheduler has threads of its own, and no runtime. Dropping it shuts it down, too. A process with a scheduler must not `fork`
//! without `exec`.
//!
//! # Concepts
//!
//! | term | meaning | type |
//! |---|---|---|
//! | task | a name, a handler and a schedule, stored until it is removed | [`NewTask`], [`Task`] |
//! | occurrence | an instant at which a task is due | [`Upcoming`] |
//! | run | the record of one occurrence, or of one request: queued, running, succeeded, failed (will be retried), dead, cancelled, skipped or missed | [`Run`], [`RunStatus`] |
//! | attempt | one execution of a run by a handler | [`Attempt`] |
//! | handler | a closure, or a type: [`Job`] declares its name and its payload once | [`Handler`], [`Job`], [`Context`] |
//! | scheduler | resolves what is due and hands runs to workers | [`Scheduler`], [`Builder`] |
//! | client | adds, changes and looks up; a [`Scheduler`] dereferences to one | [`Client`] |
//!
//! Policies of a task say what happens to an occurrence while an earlier run is unfinished ([`Overlap`]), to one that is late
//! ([`Misfire`]), to a run that fails ([`RetryPolicy`]), and to one that dies ([`NewTask::on_dead`]). [`Limit`] limits the runs of a
//! concurrency key or the starts of a handler, across all schedulers. [`Retention`] deletes old history.
//!
//! ```
//! use duly::NewTask;
//! // What a task would do is known without a database. 02:30 is skipped in this night:
//! // the task is due at the first instant after the gap.
//! let nightly = NewTask::cron("backup", "30 2 * * *").handler("backup").time_zone("Europe/Rome");
//! let next = nightly.occurrences("2027-03-27T12:00:00Z".parse()?, 1)?;
//! assert_eq!(next, ["2027-03-28T01:00:00Z".parse()?]);
//! # Ok::<(), duly::Error>(())
//! ```
//!
//! # What is promised
//!
//! * A task has at most one run for one instant, however many processes share the database.
//! * **At least once**: a run gets attempts, five by default, until it succeeds, is cancelled, or has spent them. An attempt that was lost
//!   with its process counts. [`NewTask::at_most_once`] starts the handler once or never.
//! * **Exactly once, in the same database**: rows that a handler writes in [`Context::finish`] commit with the outcome of its run. A step
//!   outside is done once with [`Context::effect`], or reported as in doubt.
//! * Every occurrence ends as a row, also one that was skipped or missed.
//!
//! Not promised: real-time precision, order between tasks, network file systems, several hosts on one file.
//!
//! # Failures and retries
//!
//! An error or a panic of a handler fails the attempt; the run is retried after a backoff. A [`Failure`] says what follows instead.
//! A request that is impossible, such as a bad schedule, is an [`Error`] at once.
//!
//! ```
//! use duly::testing::Stepper;
//! use duly::{BoxError, Context, Failure, NewTask, RunStatus};
//! # let home = tempfile::tempdir()?;
//! # let file = home.path().join("agent.db");
//! # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
//!
//! fn send(run: &Context) -> Result<(), BoxError> {
//!     let address: String = run.payload()?;
//!     match address.contains('@') {
//!         true => Err("no route to host".into()), // retried
//!         false => Err(Failure::give_up("no address").into()), // dead at once
//!     }
//! }
//!
//! let mut stepper = Stepper::builder(&file, noon).handler("send", send).start()?;
//! let client = stepper.client().clone();
//! let mail = |name: &str| NewTask::once(name, noon).handler("send").max_attempts(3);
//! client.add(mail("anna").payload("anna@example.org"))?;
//! client.add(mail("bob").payload("bob"))?;
//! stepper.run_until_idle(std::time::Duration::from_secs(3600))?;
//! let (anna, bob) = (&client.history("anna", 1)?[0], &client.history("bob", 1)?[0]);
//! assert_eq!((anna.status, anna.attempt), (RunStatus::Dead, 3));
//! assert_eq!((bob.status, bob.attempt), (RunStatus::Dead, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Once: effects and finish
//!
//! At least once means that a handler may be called again after it did its work. [`Context::effect`] stores the intent before a step and
//! its value after it, so a retry does not repeat it. [`Context::finish`] commits rows of the application together with the outcome.
//! [`Client::add_in`] adds a task in a transaction of the application: an outbox.
//!
//! ```
//! use duly::{BoxError, Context};
//! # fn charge(_: &str) -> Result<String, BoxError> { Ok(String::new()) }
//! fn invoice(run: &Context) -> Result<(), BoxError> {
//!     // A retry finds the receipt, and charges nothing. The service knows repetitions by the key.
//!     let receipt = run.effect("charge", || charge(&run.idempotency_key()))?;
//!     run.finish(|tx| {
//!         tx.execute("INSERT INTO receipts (receipt) VALUES (?1)", [&receipt])?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! # Testing
//!
//! [`testing::Stepper`] runs the scheduler by hand, on a clock that only the test moves: no threads, no sleeps, a year in a second, with
//! retries, crashes, outages and daylight saving. The module [`testing`] is the guide.
//!
//! # Async
//!
//! With the feature `tokio`, handlers may be async functions on the runtime of the application: [`Builder::async_handler`],
//! [`AsyncJob`], [`Context::effect_async`]. [`AsyncClient`] can be awaited. With the feature `tracing`, each attempt runs within a span.
//! See [async applications](_guide::asynchronous).
//!
//! # Other processes
//!
//! Several schedulers may share one file on one machine. A program that only adds or looks needs no scheduler, but a [`Client`].
//! The program `duly` (`cargo install duly`) is a scheduler as a sidecar: it runs commands, and handlers in Node.js, Python and other
//! languages, with the same tables. [`executor`] and [`command`] are for applications that do that themselves.
//!
//! # PostgreSQL
//!
//! With the feature `postgres`, an address takes the place of the path, and schedulers on several hosts share the work.
//! [`Context::finish_in_postgres`] and [`Client::add_in_postgres`] are for transactions there; [`migrate`] copies a file to a server,
//! and back. See [PostgreSQL](_guide::postgresql).
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! let scheduler = duly::Scheduler::builder("postgres://duly@db.example/app?sslmode=verify-full").start()?;
//! # Ok::<(), duly::Error>(())
//! ```
//!
//! # Features
//!
//! `bundled` alone is the library, with 48 crates. Crates are counted on Linux, with `bundled`; an application may have some of them already.
//!
//! | feature | default | adds | costs |
//! |---|---|---|---|
//! | `bundled` | yes | SQLite, compiled in. Without it, the SQLite of the application or the system is linked ([linking]) | a C compiler |
//! | `page` | yes | the status page, metrics and JSON over HTTP: [`Builder::page`] | 42 crates; a thread, if a page is served |
//! | `cli` | yes | the program `duly`. A library does not need it | 58 crates |
//! | `mcp` | yes | `duly mcp`, a command of the program: tools for agents. A library does not need it | nothing beside `cli` |
//! | `chrono-tz` | yes | a `chrono_tz::Tz` names the time zone of a task: [`ZoneName`] | 4 crates |
//! | `tokio` | | async handlers, [`AsyncClient`] | 2 crates, in the version of the application |
//! | `tracing` | | a span of [`tracing`](https://docs.rs/tracing) for each attempt | 3 crates, in the version of the application |
//! | `postgres` | | a database on a server instead of a file | 69 crates, with rustls |
//!
//! # Guides
//!
//! | to | read |
//! |---|---|
//! | put duly into an application: threads, errors, events, upgrades | [embedding](_guide::embedding) |
//! | learn the words and the policies | [concepts](_guide::concepts) |
//! | write handlers that may be repeated | [tasks that are safe to repeat](_guide::repeatable_tasks) |
//! | write a cron expression; know what daylight saving or a wrong clock does | [time](_guide::time) |
//! | test tasks | [`testing`] |
//! | use async handlers, or tracing | [async](_guide::asynchronous) |
//! | use several hosts | [PostgreSQL](_guide::postgresql) |
//! | operate it, read the tables by SQL, compare it with others | [all documents](https://docs.rs/crate/duly/latest/source/docs/README.md) |
//!
//! [linking]: https://docs.rs/crate/duly/latest/source/docs/linking.md
// Without the feature of an item, its link leads to docs.rs.
#![cfg_attr(
    not(feature = "tokio"),
    doc = "[`Builder::async_handler`]: https://docs.rs/duly/latest/duly/struct.Builder.html#method.async_handler"
)]
#![cfg_attr(not(feature = "tokio"), doc = "[`AsyncJob`]: https://docs.rs/duly/latest/duly/trait.AsyncJob.html")]
#![cfg_attr(
    not(feature = "tokio"),
    doc = "[`Context::effect_async`]: https://docs.rs/duly/latest/duly/struct.Context.html#method.effect_async"
)]
#![cfg_attr(not(feature = "tokio"), doc = "[`AsyncClient`]: https://docs.rs/duly/latest/duly/struct.AsyncClient.html")]
#![cfg_attr(
    not(feature = "postgres"),
    doc = "[`Context::finish_in_postgres`]: https://docs.rs/duly/latest/duly/struct.Context.html#method.finish_in_postgres"
)]
#![cfg_attr(
    not(feature = "postgres"),
    doc = "[`Client::add_in_postgres`]: https://docs.rs/duly/latest/duly/struct.Client.html#method.add_in_postgres"
)]
#![cfg_attr(
    not(feature = "page"),
    doc = "[`Builder::page`]: https://docs.rs/duly/latest/duly/struct.Builder.html#method.page"
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

/// Where the links of the guides lead to in this documentation. Of two definitions in a text the first counts, and those of the files
/// are last: so the same files have other links on other pages.
#[cfg(any(doc, doctest))]
macro_rules! links {
    () => {
        "\
[README.md]: crate
[README.md#rust]: crate#first-program
[async.md]: asynchronous
[async.md#spans]: asynchronous#spans
[concepts.md#misfire-an-occurrence-is-late]: concepts#misfire-an-occurrence-is-late
[postgres.md]: postgresql
[postgres.md#in-the-applications-transaction]: postgresql#in-the-applications-transaction
[repeatable-tasks.md]: repeatable_tasks
[repeatable-tasks.md#rows-in-the-same-database-finish]: repeatable_tasks#rows-in-the-same-database-finish
[testing-your-tasks.md]: crate::testing
[time.md]: time
[ARCHITECTURE.md#invariants]: https://docs.rs/crate/duly/latest/source/ARCHITECTURE.md
[STABILITY.md]: https://docs.rs/crate/duly/latest/source/STABILITY.md
[examples/carousel-python/README.md]: https://docs.rs/crate/duly/latest/source/docs/workers.md
[guards.md]: https://docs.rs/crate/duly/latest/source/docs/guards.md
[linking.md]: https://docs.rs/crate/duly/latest/source/docs/linking.md
[operating.md#check]: https://docs.rs/crate/duly/latest/source/docs/operating.md
[operating.md#upgrade]: https://docs.rs/crate/duly/latest/source/docs/operating.md
[page.md]: https://docs.rs/crate/duly/latest/source/docs/page.md
[performance.md#on-postgresql]: https://docs.rs/crate/duly/latest/source/docs/performance.md
[schema.sql]: https://docs.rs/crate/duly/latest/source/schema.sql
[workers.md#effects]: https://docs.rs/crate/duly/latest/source/docs/workers.md

"
    };
}

/// Guides: documentation, without code.
#[cfg(any(doc, doctest))]
pub mod _guide {
    #[doc = concat!(links!(), include_str!("../docs/concepts.md"))]
    pub mod concepts {}
    #[doc = concat!(links!(), include_str!("../docs/embedding.md"))]
    pub mod embedding {}
    #[doc = concat!(links!(), include_str!("../docs/repeatable-tasks.md"))]
    pub mod repeatable_tasks {}
    #[doc = concat!(links!(), include_str!("../docs/time.md"))]
    pub mod time {}
    // The snippets of these two need their features.
    #[cfg_attr(any(feature = "tokio", not(doctest)), doc = concat!(links!(), include_str!("../docs/async.md")))]
    pub mod asynchronous {}
    #[cfg_attr(any(feature = "postgres", not(doctest)), doc = concat!(links!(), include_str!("../docs/postgres.md")))]
    pub mod postgresql {}
}

/// Snippets of other documents, which `cargo test --doc` runs.
#[cfg(doctest)]
mod snippets {
    // It shows these features.
    #[cfg(all(feature = "tokio", feature = "postgres"))]
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[cfg(feature = "page")]
    #[doc = include_str!("../docs/page.md")]
    mod page {}
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

// Waits of the unit tests, shared with the integration tests.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/it/fixtures/waits.rs"]
mod waits;

pub use client::Client;
pub use client::actions::Actor;
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
pub use model::ended::{Ending, Shutdown};
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
    Attempt, AttemptOutcome, Claim, Effect, EffectState, FailureKind, Follower, Origin, Outcome, Run, RunFilter,
    RunStatus,
};
#[cfg(feature = "postgres")]
pub use model::server_report::ServerReport;
pub use model::settings::Retention;
pub use model::start_rate::StartRate;
pub use model::task::{
    Definition, MAX_CATCH_UP, MAX_DURATION, MAX_JITTER, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Misfire, Overlap, Task,
    TaskStatus, WhenLimited,
};
/// The client of [`Client::add_in_postgres`], so that an application uses the same version.
///
/// ```no_run
/// let mut shop = duly::postgres::Client::connect("host=db.example user=shop", duly::postgres::NoTls)?;
/// assert!(shop.query("SELECT name FROM scheduled_tasks", &[])?.is_empty());
/// # Ok::<(), duly::postgres::Error>(())
/// ```
#[cfg(feature = "postgres")]
pub use postgres;
pub use rules::forecast::{Outage, Projection, Upcoming};
/// The SQLite of [`Context::finish`] and [`Client::add_in`], so that an application uses the same version.
///
/// ```
/// // Older versions of SQLite can lose commits while two connections write: duly refuses them.
/// assert!(duly::rusqlite::version_number() >= 3_051_003);
/// ```
pub use rusqlite;
pub use schedule::{ClockNote, ScheduleKind, Zone, ZoneData, ZoneName, duration_text, parse_duration, zone_data};
pub use scheduler::{Builder, Scheduler};
pub use store::sqlite::file::Durability;
pub use store::sqlite::settle::MAX_RESULT_BYTES;
pub use worker::at_work::MAX_EFFECT_KEY_BYTES;
pub use worker::attempt::StopReason;
pub use worker::backoff::FailedAttempt;
pub use worker::command;
pub use worker::effects::MAX_EFFECT_VALUE_BYTES;
pub use worker::executor;
pub use worker::failure::Failure;
pub use worker::handler::{Context, Handler, MAX_PROGRESS_BYTES};
#[cfg(feature = "tokio")]
pub use worker::job::AsyncJob;
pub use worker::job::{Job, JobKind};
