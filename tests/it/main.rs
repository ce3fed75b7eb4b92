//! The one test binary. Each module asks one kind of question; what it needs of the world is in `db`.

/// The alarm of the README: a task that dies has a mail sent, as typed there.
mod alarm;
mod apply;
/// Manifests: many tasks in one transaction.
mod apply_idempotent;
/// The tables as an interface, through a plain connection and through Debian's sqlite3 shell: rows written and refused.
/// Claimed does not mean begun: what the slots of a dead scheduler's lock file tell.
mod attempt_slots;
/// Copies of a file that is in use: whole, private, and nobody's.
mod backup;
/// The example `carousel_agent` as a program, killed in the middle of its posts.
mod carousel;
mod catch_up;
/// `check` finds each problem in a file made to have it, and none in one that is well.
mod check;
/// A wall clock that steps, either way, or is not set at all.
mod clock;
/// Trouble with the clock is visible: events, `status`, `check`, a warning at start; and retries survive a glitch.
mod clock_trouble;
/// The handler `command`, carried out by `duly run`: what is stored of each end, and that nothing is left of a group.
mod command;
/// Who goes next behind a concurrency key when the first is paused, deleted or replaced.
mod concurrency_keys;
/// Processes killed with SIGKILL, two on one file, and steppers that crash: nothing lost, nothing started twice.
mod crash;
/// An imported crontab over the weeks in which the clock is changed, beside what cron does in them.
mod crontab_weeks;
/// Damage that bypasses SQLite: the scheduler stops. What SQLite does to its file is none.
mod damage;
/// A scheduler that has not been able to write its database for ten seconds, and what `check` reports of it.
mod degraded;
/// Delay tasks count from the end of their last run, whatever the end was.
mod delay_tasks;
/// A disk that fails, is full, or is not what it was; a heap that is full; a file that others lock: nothing lost, no hang.
mod disk;
/// What is written about the tree is true: rooms and imports, lengths of files, who reads a clock, examples.
mod docs;
/// `doctor` finds each broken rule, and none in a file that is sound.
mod doctor;
/// The loops that double a run or lose it, held to exact counts, and duly on the same days. Shares `examples/double_run/`.
mod double_run;
/// A scheduler that drains takes nothing on.
mod draining;
/// The program on the nights on which the clock is changed, by libfaketime.
mod dst_nights;
/// How long attempts took, whatever the clock did meanwhile.
mod durations;
/// Processes killed around their deeds: an effect is done once or in doubt, rows and outcomes never disagree.
mod effect_kills;
/// Effects are done once, or in doubt and said so; whoever lost its claim begins none.
mod effects;
/// A run is recovered only on evidence that its command is gone; copies, namespaces, hidden processes, groups without leader.
mod evidence;
/// `duly run` killed between a promise and its keeping: what may start only once does, everything else is recovered.
mod fault_points;
/// Other names of a database file: hard links, a file that is mounted by itself, a file that is moved while it is open.
mod file_aliases;
/// Ends that a handler commits together with rows of its own: both, or neither; and the connection it does so on.
mod finish;
/// What may have waited for the first look after it was written is not expired.
mod first_look;
/// Files of older versions open, answer, run on, and end up with the tables of a new one.
mod fixture;
/// The harness: a folder that goes away, a stepper, a plain connection, a wait with a deadline. No test of its own.
mod fixtures;
/// Folders that other users may write, or that are another user's: where the lock files are, and where the database is.
mod folders;
/// Text that is not UTF-8, or holds NUL: refused where SQLite can tell, and otherwise harmful to its own row only.
mod garbled;
/// What was, as those who ask narrow it, and what lies ahead.
mod help_examples;
mod history;
/// The same request again: a task that counts from when it is added, a run under a key; one after another, and twenty at once.
mod idempotency;
/// The ids of tasks that are added one by one.
mod ids;
/// Crontabs, brought over by the program: what comes, what cannot, and that a second time changes nothing.
mod import;
/// `duly run --tasks`: the manifest is applied again at SIGHUP, and a broken one changes nothing.
mod input_errors;
/// A healthy task beside some that panic, hang and kill; handlers that share a key and not a process.
mod isolation;
/// Two real schedulers and their commands, killed at random for as many rounds as are asked for.
mod kill_soak;
/// Manifests at length: killed in the middle, and edited in one line.
mod lock_files;
mod manifests;
/// Manual tasks: only a request opens a run; they are never due, overdue or completed.
mod manual;
/// What is said afterwards: why a run was cancelled, who paused a task, what a command left, which owner is stalled.
mod messages;
/// Occurrences that nobody was there for: misfire policies, graces and limits after outages.
mod misfire;
/// Input as nobody would write it, to every door: text with a few changes, odd rows, files with bytes exchanged.
mod mutations;
/// NanoClaw's table, brought over likewise, from a database that may be in use.
mod nanoclaw;
/// What a client does is reported to the observers of its scheduler.
mod observers;
/// What follows from the end of a run: another task is told, its own rests, a person retries it.
mod on_dead;
/// Opening: whose file it is, what is left alone, what is said, and what happens when the file goes.
mod opening;
/// Commands that outlive their scheduler: who waits for them, who ends them, and when their run goes on.
mod orphans;
/// Tasks added inside a transaction of the application's own.
mod outbox;
/// Which tasks are overdue, as `status`, `check` and the tables say it.
mod overdue;
/// Occurrences that fall due while a run is unfinished: overlap policies, and the order in which what waits may start.
mod overlap;
/// Code of the application that panics, wherever that is: no worker is lost, and one that ends all the same is replaced.
mod panics;
/// Twenty programs at once that change the same tasks, while a scheduler carries them out.
mod parallel_clients;
/// The process around `duly run`: how it was started, signals, children that it did not start, a terminal.
mod process;
/// What a run says of itself: how far it has come, and what came of it.
mod progress;
/// Statements fit the schema, hot ones use their index, pragmas hold.
mod query_plans;
/// What the simulation has found, each told in small.
mod regressions;
mod reload;
/// Final runs that another program reopened, and attempts that it changed: `doctor` and `check` name the run.
mod reopened;
/// A day with restarts: each occurrence once, and what a crash cut is taken up again.
mod restarts;
/// What is long over goes; what is not, and what somebody may still need, stays.
mod retention;
/// Retention beside much that is new; the rows that a crash loop leaves.
mod retention_load;
/// Every arrow of a run's life, with the right claim and with a stale one, beside a row that must not change.
mod run_transitions;
/// A pause, a resumption, an edit of the schedule, a step of the clock: nothing twice, nothing swallowed; jitter.
mod schedule_changes;
/// `duly selftest`: a disk that can be trusted, one that cannot, and that nothing is left. Shares its checker.
mod selftest;
/// `duly run` as a process: signals, exit codes, what it logs, what it costs; the harness for other tests of it.
mod sidecar;
/// Days of virtual time from a seed: owners that die, clocks that step, and a checker that knows what may come of it.
mod simulation;
mod sql;
/// The same doors: what a change by SQL does to work that is due, that waits, or that is at work.
mod sql_edits;
/// Handlers that do not return when their time is up: their workers are replaced, and no more than so many.
mod stuck_workers;
/// Schedulers that are alive and stand still, or that nobody can ask the kernel about.
mod suspended;
/// Runs that another owner takes over, and the outcomes that come too late for them.
mod takeover;
/// The real scheduler with its threads, and how it leaves.
mod threads;
/// Time limits: judged by how and when the work ended.
mod time_limits;
/// Everything at once, for as long as is asked: schedulers killed, stopped, locked out and lied to by their clocks, and edits.
mod torture;
/// What a turn costs and whom it serves first.
mod turns;
/// Running runs whose owner is not registered: named, and recovered when the lease is over.
mod unknown_owner;
/// Two versions on one file: an older duly that finds the tables of a newer one.
mod unread_log;
mod versions;
/// A scheduler that sleeps, and what its own client asks of it.
mod wake;
/// Which zone data answers, and what is refused as a zone.
mod zones;
