//! The integration tests, in one binary: one module per topic, with shared helpers in `fixtures`.
#![warn(clippy::disallowed_methods)]

/// Actors: changes that are recorded with who makes them.
mod actors;
/// Alarms of `duly run`, by a URL and by a command.
mod alarm_messages;
mod alerts;
/// Manifests and imports: many tasks in one transaction.
mod apply;
/// Async handlers and faults beside them: dropped effects, kills, panics, a lost database, a crowd.
#[cfg(feature = "tokio")]
mod async_faults;
/// Async handlers on a tokio runtime.
#[cfg(feature = "tokio")]
mod async_handlers;
/// Attempt slots: which claimed attempts of a dead scheduler had begun.
mod attempt_slots;
/// Backups of a file in use: complete, private, without owners of runs.
mod backup;
/// The example `carousel_agent`, killed in the middle of its posts.
mod calendar_tasks;
mod carousel;
/// The misfire policy `run_all`: order, limit and reasons.
mod catch_up;
/// `check` finds each problem, and none in a sound file.
mod check;
/// Child mode: the application that starts duly serves its handlers, and its lock is the evidence that it lives.
mod child_mode;
/// Applications in child mode that are killed, with duly or without.
mod child_mode_kills;
/// A wall clock that steps in either direction or is not set.
mod clock;
/// Clock trouble in events, `status`, `check` and warnings; retries survive it.
mod clock_trouble;
/// The handler `command` of `duly run`: stored outcomes, and no process of its group is left.
mod command;
/// Completed tasks that SQL gives a `next_run`.
mod completed_by_sql;
/// The next run behind a concurrency key when the first is paused, deleted or replaced.
mod concurrency_keys;
/// Crashed schedulers: no run is lost or started twice.
mod crash;
/// An imported crontab in the weeks of a clock change, compared with cron.
mod crontab_weeks;
/// Damage that bypasses SQLite stops the scheduler; changes by SQLite are no damage.
mod damage;
/// Workers that a manifest declares.
mod declared_workers;
/// A scheduler that cannot write its database for ten seconds is reported.
mod degraded;
/// Delay tasks count from the end of their last run.
mod delay_tasks;
/// Faults of the disk, the database file, memory and locks, with real processes.
mod disk;
/// The documents match the source tree: layout, imports, file lengths, clock reads, examples, variables.
mod docs;
/// `doctor` finds each broken rule, and none in a sound file.
mod doctor;
/// The loops of `examples/double_run` double or lose runs by exact counts; duly does not.
mod double_run;
/// A draining scheduler claims nothing.
mod draining;
/// Effects that are dropped at random moments, with a runtime that shuts down.
#[cfg(feature = "tokio")]
mod dropped_effects;
/// The program on the nights of a clock change, by libfaketime.
mod dst_nights;
/// Durations of attempts by the monotonic clock.
mod durations;
/// Processes killed around effects and outcomes.
mod effect_kills;
/// Effects are done once or reported as in doubt.
mod effects;
/// Look-ups of recorded events.
mod events;
/// A run is recovered only on evidence that its command is gone.
mod evidence;
/// The day of the bot of `examples/day`, by libfaketime.
mod example_day;
/// Executors: attempts outside of the scheduler's threads.
mod executor;
/// `duly run` killed at named points between a commitment and its execution.
mod fault_points;
/// Other names of a database file: hard links, bind mounts, a moved file.
mod file_aliases;
/// Outcomes that a handler commits together with rows of the application.
mod finish;
/// A run with a short expiry starts at the first turn after it was written.
mod first_look;
/// Files of older schema versions open, run on, and end with the current tables.
mod fixture;
/// Shared helpers; no tests.
mod fixtures;
/// Folders that other users may write or own.
mod folders;
/// Runs that follow others: on_success, on_end, on_missed.
mod follower_turns;
mod followers;
/// Text that is not UTF-8 or holds NUL.
mod garbled;
/// Gates and exit codes of commands.
mod gates;
/// The guard process of `duly run` ends the commands of a scheduler that was killed, and no other process.
#[cfg(feature = "cli")]
mod guard;
/// Commands whose group cannot be read: the lock that they inherit, and the word of their guard.
#[cfg(feature = "cli")]
mod guard_evidence;
/// The process of the guard by itself.
#[cfg(feature = "cli")]
mod guard_lines;
/// The snippets of the guides in `docs/`, and the examples in the help of each command.
#[cfg(feature = "cli")]
mod guides;
/// Failures that say what follows, custom backoff, and payloads that cannot be read.
mod handler_failures;
/// Look-ups of runs, of the next occurrences and of the scheduler's state.
mod history;
/// Three hosts in network namespaces, and a server with a standby: killed, frozen, cut off, promoted.
#[cfg(all(feature = "postgres", target_os = "linux"))]
mod host_faults;
/// Repeated requests, one after another and from twenty processes at once.
mod idempotency;
/// Reserved ids of tasks that one client adds one by one.
mod ids;
/// Imported crontabs.
mod import;
/// Invalid input is refused where it is entered.
mod input_errors;
/// What a shutdown interrupts is forgiven, and not for ever.
mod interruptions;
/// A healthy task beside tasks that panic, hang or kill their scheduler.
mod isolation;
/// The serde form of the library's values.
mod json;
/// Real processes under random kills and all other faults: the driver, the journal and the checker of what they do.
mod kills;
/// Large batches of new tasks, which are added without CHECKs and triggers.
mod large_batches;
mod limits;
/// The links of the documents.
mod links;
/// Lock files that are removed, replaced or overwritten, and unsafe folders.
mod lock_files;
/// The loop of a scheduler, step by step.
mod loop_steps;
/// Long manifests: killed while they are applied, and edited in one line.
mod manifests;
/// Manual tasks: only a request opens a run.
mod manual;
/// Operations on all runs or tasks that a filter selects.
mod marks;
mod matching;
/// `duly mcp`: tools for agents, confined to what they were given.
#[cfg(feature = "mcp")]
mod mcp;
/// Messages about the past: reasons of cancellations and pauses, leftover processes, stalled owners.
mod messages;
/// Occurrences during an outage: misfire policies, graces and limits.
mod misfire;
/// Mutated text, rows, files and command lines.
mod mutations;
/// The table of a task's columns, which the statements that `store_sql` reads list.
#[path = "../../src/model"]
mod model {
    pub(crate) mod task_columns;
}
/// NanoClaw's table, imported from a database in use.
mod nanoclaw;
/// Attempts that cannot be started for want of resources.
mod not_started;
/// Changes by a client are reported to the observers of its scheduler.
mod observers;
/// Consequences of a dead run: on_dead tasks, pauses, manual retries.
mod on_dead;
/// The shared modules on PostgreSQL.
#[cfg(feature = "postgres")]
mod on_postgres;
/// Opening a file: which files are refused, and nothing is written before that is known.
mod opening;
/// Orphan processes: commands that outlive their scheduler.
mod orphans;
/// Tasks added inside a transaction of the application.
mod outbox;
/// Output of commands: while they run, followed, forwarded.
mod output;
/// Overdue tasks in `status`, `check` and the view.
mod overdue;
/// Overlap policies, and the order in which waiting runs start.
mod overlap;
/// The unit of systemd and the image for containers.
mod packaging;
/// `/api`: the JSON of the commands, and its description.
#[cfg(feature = "page")]
mod page_api;
/// The status page: requests with a body that no browser sends.
#[cfg(feature = "page")]
mod page_bodies;
/// The status page in a real browser.
#[cfg(all(feature = "page", target_os = "linux"))]
mod page_browser;
/// The status page: rows that no version of duly writes.
#[cfg(feature = "page")]
mod page_damage;
/// The status page: recorded events.
#[cfg(feature = "page")]
mod page_events;
/// Metrics, health and liveness over HTTP; the dashboard and the alert rules.
#[cfg(feature = "page")]
mod page_metrics;
/// The proxy before the status page that the guide shows.
#[cfg(feature = "page")]
mod page_proxy;
/// The status page: one run, and what it waits for.
#[cfg(feature = "page")]
mod page_run;
/// The status page: the runs of all tasks.
#[cfg(feature = "page")]
mod page_runs;
/// The server of the status page: refused requests, limits, actions, live changes.
#[cfg(feature = "page")]
mod page_server;
/// `duly run --http`: its log, refused addresses, its end.
#[cfg(feature = "page")]
mod page_sidecar;
/// The pages of the tasks and of one task: pages, filters, marks, text of the database.
#[cfg(feature = "page")]
mod page_tasks;
/// The status page: the timeline.
#[cfg(feature = "page")]
mod page_timeline;
/// Panics in code of the application: no worker is lost.
mod panics;
/// The process of `duly run`: inherited state, signals, foreign children, a terminal.
mod passed_over;
/// A PostgreSQL server for the tests, and the tables there.
#[cfg(feature = "postgres")]
mod postgres;
mod process;
/// Progress, results and output of runs.
mod progress;
/// Every statement fits the schema; hot statements use their index.
mod query_plans;
/// Faults that the simulation has found, each as a small test.
mod regressions;
/// `duly run --tasks` applies the manifest again at SIGHUP.
mod reload;
/// Final runs that another program reopened, and attempts that it changed.
mod reopened;
/// A day with restarts: each occurrence runs once.
mod restarts;
/// A copy is restored while schedulers run: nothing of the history before is mistaken for the rows of the copy.
mod restores;
/// Retention deletes expired history, and nothing else.
mod retention;
/// Retention under load, and the rows of a crash loop.
mod retention_load;
mod rewinds;
/// Every transition of a run's status, with the right claim and with a stale one.
mod run_transitions;
/// Pauses, resumptions, edits and jitter: no occurrence is lost or doubled.
mod schedule_changes;
/// `duly selftest` on trustworthy and on faulty disks.
mod selftest;
/// Messages of `duly run` to the service manager: ready, stopping, and the watchdog.
mod service_manager;
/// `duly service`: the files of services, and what the service manager is given.
#[cfg(feature = "cli")]
mod services;
/// `duly run` as a process: signals, exit codes, log and cost; the helpers to run it.
mod sidecar;
/// Days of virtual time from a seed, with crashes and clock steps, and a checker of every row.
// A proxy waits for a thread whose connection it has closed.
#[allow(clippy::disallowed_methods)]
mod simulation;
/// The spans of attempts, with the feature `tracing`.
#[cfg(feature = "tracing")]
mod spans;
/// The tables as an interface, by a plain connection and by the `sqlite3` shell.
mod sql;
/// Changes by SQL to tasks and runs that are due, waiting or running.
mod sql_edits;
/// Limits of starts of a key and of a task.
mod start_limits;
/// The SQL constants of the store: read from its source for other tests, and the texts that they share.
mod store_sql;
/// Handlers that exceed their time limit: their workers are replaced, up to a limit.
mod stuck_workers;
/// Crontabs of supercronic, imported by its rules; `import crontab` refuses them.
mod supercronic;
/// Schedulers that are alive but stalled, or whose state is unknown.
mod suspended;
/// What is promised on every system, with commands that run on each: trees of processes, killed schedulers, arguments.
#[cfg(feature = "cli")]
mod systems;
/// Runs that another owner takes over, and outcomes that arrive too late.
mod takeover;
/// The testing kit: skipped quiet time, until helpers, restarts, outages, local times, async handlers.
mod testing_kit;
/// The real scheduler with its threads, and its shutdown.
mod threads;
/// Time limits are judged by how and when the work ended.
mod time_limits;
/// The cost of a turn, and its order of claims.
mod turns;
/// Running runs whose owner is not registered.
mod unknown_owner;
/// `duly run` with a full and unread standard error.
mod unread_log;
/// Commands of another user, and the environment of commands.
mod users;
/// Two schema versions on one file.
mod versions;
/// The watchdog of this binary names a test that hangs.
mod waits;
/// Requests of its own client wake a sleeping scheduler.
mod wake;
/// Times and dates at which occurrences are skipped.
mod windows;
/// Workers in other languages: the conformance kit of docs/workers.md.
mod workers;
/// Workers of `duly run`: outcomes, broken rules, ends of processes, shutdown.
mod workers_run;
/// Zone data: which source answers, and which zones are refused.
mod zones;
