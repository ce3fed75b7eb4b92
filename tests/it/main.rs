//! The one test binary. Each module asks one kind of question; what it needs of the world is in `house`.

/// Manifests: many tasks in one transaction.
mod again;
/// The alarm of the README: a task that dies has a mail sent, as typed there.
mod alarm;
/// Other names of a database file: hard links, a file that is mounted by itself, a file that is moved while it is open.
mod aliases;
mod apply;
/// Copies of a file that is in use: whole, private, and nobody's.
mod backup;
/// The example `carousel_agent` as a program, killed in the middle of its posts.
mod carousel;
mod catch_up;
/// A pause, a resumption, an edit of the schedule, a step of the clock: nothing twice, nothing swallowed; jitter.
mod changes;
/// `check` finds each problem in a file made to have it, and none in one that is well.
mod check;
/// A wall clock that steps, either way, or is not set at all.
mod clock;
/// Trouble with the clock is visible: events, `status`, `check`, a warning at start; and retries survive a glitch.
mod clock_trouble;
/// The handler `command`, carried out by `duly run`: what is stored of each end, and that nothing is left of a group.
mod command;
/// Code of the application that panics, wherever that is: no worker is lost, and one that ends all the same is replaced.
mod contained;
/// Processes killed with SIGKILL, two on one file, and steppers that crash: nothing lost, nothing started twice.
mod crash;
/// Twenty programs at once that change the same tasks, while a scheduler carries them out.
mod crowd;
/// Damage that bypasses SQLite: the scheduler stops. What SQLite does to its file is none.
mod damage;
/// Processes killed around their deeds: an effect is done once or in doubt, rows and outcomes never disagree.
mod deeds;
/// A scheduler that has not been able to write its database for ten seconds, and what `check` reports of it.
mod degraded;
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
/// How long attempts took, whatever the clock did meanwhile.
mod durations;
/// The same doors: what a change by SQL does to work that is due, that waits, or that is at work.
mod edits;
/// Effects are done once, or in doubt and said so; whoever lost its claim begins none.
mod effects;
/// Delay tasks count from the end of their last run, whatever the end was.
mod ends;
/// A run is recovered only on evidence that its command is gone; copies, namespaces, hidden processes, groups without leader.
mod evidence;
/// `duly run` killed between a promise and its keeping: what may start only once does, everything else is recovered.
mod faults;
/// Opening: whose file it is, what is left alone, what is said, and what happens when the file goes.
mod files;
/// Ends that a handler commits together with rows of its own: both, or neither; and the connection it does so on.
mod finish;
/// What may have waited for the first look after it was written is not expired.
mod first_look;
/// Files of older versions open, answer, run on, and end up with the tables of a new one.
mod fixture;
/// Folders that other users may write, or that are another user's: where the lock files are, and where the database is.
mod folders;
/// What the simulation has found, each told in small.
mod found;
/// Text that is not UTF-8, or holds NUL: refused where SQLite can tell, and otherwise harmful to its own row only.
mod garbled;
/// Handlers that do not return when their time is up: their workers are replaced, and no more than so many.
mod held;
/// What was, as those who ask narrow it, and what lies ahead.
mod help_examples;
mod history;
/// The harness: a folder that goes away, a stepper, a plain connection, a wait with a deadline. No test of its own.
mod house;
/// The same request again: a task that counts from when it is added, a run under a key; one after another, and twenty at once.
mod idempotent;
/// The ids of tasks that are added one by one.
mod ids;
/// Crontabs, brought over by the program: what comes, what cannot, and that a second time changes nothing.
mod import;
/// Who goes next behind a concurrency key when the first is paused, deleted or replaced.
mod keys;
/// Time limits: judged by how and when the work ended.
mod late;
/// What follows from the end of a run: another task is told, its own rests, a person retries it.
mod life;
/// Manifests at length: killed in the middle, and edited in one line.
mod lock_files;
mod manifests;
/// Manual tasks: only a request opens a run; they are never due, overdue or completed.
mod manual;
/// Occurrences that nobody was there for: misfire policies, graces and limits after outages.
mod misfire;
/// Input as nobody would write it, to every door: text with a few changes, odd rows, files with bytes exchanged.
mod mutations;
/// NanoClaw's table, brought over likewise, from a database that may be in use.
mod nanoclaw;
/// A healthy task beside some that panic, hang and kill; handlers that share a key and not a process.
mod neighbours;
/// What a client does is reported to the observers of its scheduler.
mod observed;
/// Commands that outlive their scheduler: who waits for them, who ends them, and when their run goes on.
mod orphans;
/// Tasks added inside a transaction of the application's own.
mod outbox;
/// Which tasks are overdue, as `status`, `check` and the tables say it.
mod overdue;
/// Occurrences that fall due while a run is unfinished: overlap policies, and the order in which what waits may start.
mod overlap;
/// Statements fit the schema, hot ones use their index, pragmas hold.
mod plan;
/// The process around `duly run`: how it was started, signals, children that it did not start, a terminal.
mod process;
/// `duly run --tasks`: the manifest is applied again at SIGHUP, and a broken one changes nothing.
mod refused;
mod reload;
/// Final runs that another program reopened, and attempts that it changed: `doctor` and `check` name the run.
mod reopened;
/// A day with restarts: each occurrence once, and what a crash cut is taken up again.
mod restart;
/// What is long over goes; what is not, and what somebody may still need, stays.
mod retention;
/// Two real schedulers and their commands, killed at random for as many rounds as are asked for.
mod rounds;
/// Every arrow of a run's life, with the right claim and with a stale one, beside a row that must not change.
mod runs;
/// `duly selftest`: a disk that can be trusted, one that cannot, and that nothing is left. Shares its checker.
mod selftest;
/// `duly run` as a process: signals, exit codes, what it logs, what it costs; the harness for other tests of it.
mod sidecar;
/// Days of virtual time from a seed: owners that die, clocks that step, and a checker that knows what may come of it.
mod simulation;
/// The tables as an interface, through a plain connection and through Debian's sqlite3 shell: rows written and refused.
/// Claimed does not mean begun: what the slots of a dead scheduler's lock file tell.
mod slots;
mod sql;
/// Schedulers that are alive and stand still, or that nobody can ask the kernel about.
mod stopped;
/// Rows as small tables of text, compared whole; ways to let a stepper work. No test of its own.
mod table;
/// Runs that another owner takes over, and the outcomes that come too late for them.
mod takeover;
/// The real scheduler with its threads, and how it leaves.
mod threads;
/// What a run says of itself: how far it has come, and what came of it.
mod told;
/// Everything at once, for as long as is asked: schedulers killed, stopped, locked out and lied to by their clocks, and edits.
mod torture;
/// What a turn costs and whom it serves first.
mod turns;
/// Running runs whose owner is not registered: named, and recovered when the lease is over.
mod unknown_owner;
/// Two versions on one file: an older duly that finds the tables of a newer one.
mod unread_log;
/// Retention beside much that is new; the rows that a crash loop leaves.
mod upkeep;
mod versions;
/// An imported crontab over the weeks in which the clock is changed, beside what cron does in them.
mod week;
/// A scheduler that sleeps, and what its own client asks of it.
mod woken;
/// What is said afterwards: why a run was cancelled, who paused a task, what a command left, which owner is stalled.
mod words;
/// The program on the nights on which the clock is changed, by libfaketime.
mod year;
/// Which zone data answers, and what is refused as a zone.
mod zones;
