//! The sidecar program. It uses public items of the library only.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod alarms;
mod cli;
mod commands;
mod exec;
mod import;
mod manifest;
#[cfg(feature = "mcp")]
mod mcp;
#[cfg(test)]
mod mutations;
mod output;
mod selftest;
mod service;
mod workers;

// Waits of the unit tests, shared with the integration tests.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../../tests/it/fixtures/waits.rs"]
mod waits;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::panic;
use std::path::Path;
use std::process::{self, ExitCode};

use duly::text::database_name::is_address;
use duly::text::local_zone;
use duly::{Client, Clock, Error, Limits, NewRun, SystemClock};
use log::{Level, LevelFilter};

use crate::cli::args::{Args, Command};
use crate::cli::failure::Failure;
use crate::cli::last_resort::End;
use crate::cli::nearest;
use crate::cli::typed::Typed;
use crate::cli::values::LogFormat;
use crate::commands::next::{self, Query};
use crate::commands::run::{self, Exit};
use crate::commands::{
    add, apply, backup, check, control, difference, doctor, follow, history, list, logs, prune, shell, show, status,
};
use crate::exec::{guard, user};
use crate::output::escape;
use crate::output::forward::Forward;
use crate::output::log_queue::LogQueue;
use crate::output::logger;
use crate::output::printer::Printer;
use crate::output::progress_bar::Bars;
use crate::output::sparkline::Heights;
use crate::output::table::Layout;
use crate::output::times::{Times, shown_zone};
use crate::selftest::child::Role;

fn main() -> ExitCode {
    // An application that starts this program may end at any time.
    exec::system::first_parent();
    cli::signals::unblock();
    if let Some((error, code)) = user::become_user(std::env::args_os()) {
        print_error(&format!("duly: {}", escape::one_line(&error)));
        return ExitCode::from(code);
    }
    if guard::process::is_guard(std::env::args_os()) {
        return ExitCode::SUCCESS;
    }
    if let Some(locked) = workers::lock_input(std::env::args_os()) {
        return locked.map_or_else(
            |error| {
                print_error(&format!("duly: cannot lock standard input: {error}"));
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let (args, typed) = match Args::parse_words(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return print_usage(&error),
    };
    let log = if writes_log(&args) {
        match log_to_stderr(&args) {
            Ok(log) => Some(log),
            Err(failure) => {
                print_error(&format!("error: {failure}"));
                return ExitCode::from(failure.exit_code());
            }
        }
    } else {
        None
    };
    let forward = log.as_ref().and_then(Log::forward);
    let failure = match run(&args, forward, log.as_ref().map(Log::end)) {
        Ok(code) => return code,
        Err(failure) => advised(failure, &args, &typed),
    };
    if failure.exit_code() != 0 {
        let line = format!("error: {}", escape::one_line(&failure.to_string()));
        match &log {
            Some(log) => log.finish(Some(&log.format.last(SystemClock::new().now().wall, &line))),
            None => print_error(&line),
        }
    }
    ExitCode::from(failure.exit_code())
}

/// Names in a failure what the user has typed, and adds what can be done: the name of a similar task, or how to create the database.
fn advised(failure: Failure, args: &Args, typed: &Typed) -> Failure {
    match failure {
        Failure::Duly(error @ Error::TaskDiffers { .. }) => {
            let task = match (&error, &args.command) {
                (Error::TaskDiffers { name, .. }, Command::Add(_)) => {
                    Client::open_existing(&args.db).and_then(|client| client.task(name)).ok().flatten()
                }
                _ => return Failure::Duly(error),
            };
            difference::in_words(&error, typed, task.as_ref()).map_or(Failure::Duly(error), Failure::Refused)
        }
        Failure::Duly(error) => match advice(&error, args) {
            Some(advice) => Failure::Advised(error, advice),
            None => typed.failure(error),
        },
        Failure::Usage(text) if !text.starts_with("--payload") => Failure::Usage(typed.in_options(&text)),
        other => other,
    }
}

fn advice(error: &Error, args: &Args) -> Option<String> {
    match (error, &args.command) {
        (Error::UnknownTask { name }, _) => {
            let names = Client::open_existing(&args.db).and_then(|client| client.names()).ok()?;
            Some(nearest::hint(name, names.iter().map(String::as_str)))
        }
        (Error::UnusableDatabase { .. }, Command::Run(_))
            if !is_address(&args.db) && args.db.try_exists().is_ok_and(|exists| !exists) =>
        {
            Some("; --create creates it, and --tasks FILE also adds the tasks of a manifest".to_owned())
        }
        _ => None,
    }
}

/// The log. Dropping it, also by a panic, writes the lines that are still queued.
struct Log {
    queue: LogQueue,
    /// The queue of standard output, if the output of commands is forwarded.
    output: Option<LogQueue>,
    format: LogFormat,
}

impl Log {
    /// Where the output of commands is forwarded to.
    fn forward(&self) -> Option<Forward> {
        let (stdout, stderr) = (self.output.as_ref()?.blocks("standard output"), self.queue.blocks("standard error"));
        Some(Forward { stdout, stderr, json: self.format == LogFormat::Json })
    }

    /// Returns what writes a last line, and ends the process on another thread than that of `main`.
    fn end(&self) -> End {
        let (queue, format) = (self.queue.clone(), self.format);
        Box::new(move |line, code| {
            queue.finish(Some(&format.last(SystemClock::new().now().wall, line)));
            process::exit(code);
        })
    }

    /// Writes what is queued, and then `last`.
    fn finish(&self, last: Option<&str>) {
        if let Some(output) = &self.output {
            output.finish(None);
            // Its writer does not report them while it blocks.
            match output.lost() {
                0 => {}
                count => drop(log_dropped_output(count)),
            }
        }
        self.queue.finish(last);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.finish(None);
    }
}

/// Whether the command writes a log.
fn writes_log(args: &Args) -> bool {
    match &args.command {
        Command::Run(_) => true,
        Command::Selftest { .. } => Role::from_env().is_some(),
        _ => false,
    }
}

/// Prints the help, or the usage error.
fn print_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        print_error(escape::lines(&error.render().to_string()).trim_end());
    } else {
        // A closed output is no failure.
        let _ = error.print();
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Prints a line on standard error, if it is open.
fn print_error(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn run(args: &Args, forward: Option<Forward>, end: Option<End>) -> Result<ExitCode, Failure> {
    if let Command::Run(options) = &args.command {
        let end = end.unwrap_or_else(|| Box::new(|_, code| process::exit(code)));
        return Ok(match run::run(&args.db, options, forward, end)? {
            Exit::Clean => ExitCode::SUCCESS,
            Exit::CutShort => ExitCode::from(3),
        });
    }
    #[cfg(feature = "mcp")]
    if let Command::Mcp(options) = &args.command {
        // It writes to standard output itself.
        return mcp::mcp(&args.db, options, io::stdin(), io::stdout(), io::stderr()).map(|()| ExitCode::SUCCESS);
    }
    if let (Command::Selftest { .. }, Some(role)) = (&args.command, Role::from_env()) {
        role.run().map_err(|error| Failure::Unsuccessful(error.to_string()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let terminal = io::stdout().is_terminal();
    if !args.json && !matches!(&args.command, Command::List(list) if list.only_names) {
        warn_of_unknown_zone();
    }
    let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let bars = io::stderr().is_terminal() && !dumb && !args.json && !args.quiet;
    let zone = local_zone::of_machine_or_utc()?;
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut printer = Printer {
        out: &mut out,
        err: &mut io::stderr(),
        json: args.json,
        quiet: args.quiet,
        layout: Layout {
            width: if args.wide { None } else { line_width(terminal) },
            wraps: terminal,
            // A program that shows the output on a terminal, as watch does, sets COLUMNS.
            is_for_programs: !terminal && !args.wide && columns().is_none(),
            colour: terminal && !no_colour && !dumb,
            ellipsis: if terminal && unicode() { "\u{2026}" } else { "..." },
        },
        heights: if terminal && unicode() { Heights::Blocks } else { Heights::Points },
        bars: bars.then(|| Bars { terminal: || Box::new(io::stderr()), width: terminal_width() }),
        times: Times { now: SystemClock::new().now().wall, zone },
        end: |error| {
            print_error(&format!("error: {error}"));
            process::exit(1)
        },
    };
    execute(args, &mut printer)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The width of a line: that of the terminal, else of `COLUMNS`; else it is unlimited.
fn line_width(terminal: bool) -> Option<u16> {
    terminal_width().filter(|_| terminal).or_else(columns)
}

/// Warns if `TZ` names no time zone: a program of the C library would take it for UTC without a word.
fn warn_of_unknown_zone() {
    let Some(name) = std::env::var("TZ").ok().filter(|name| local_zone::from_variable(name).is_none()) else { return };
    let shown = local_zone::of_machine_or_utc().map(|zone| shown_zone(zone.name()).to_owned());
    let shown = shown.as_deref().unwrap_or("UTC");
    let name = escape::one_line(&name);
    print_error(&format!(
        "warning: TZ={name:?} is not the name of a time zone, such as Europe/Rome: times are shown in {shown}"
    ));
}

/// The width of the terminal. One that reports a width of 0 does not know its width.
fn terminal_width() -> Option<u16> {
    terminal_size::terminal_size().map(|(width, _)| width.0).filter(|width| *width > 0)
}

/// The value of `COLUMNS`.
fn columns() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0)
}

/// Whether the terminal shows Unicode, by the first locale variable that is set and not empty.
fn unicode() -> bool {
    let values = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = values.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Starts the log on standard error, with an event or a panic on each line.
fn log_to_stderr(args: &Args) -> Result<Log, Failure> {
    let level = log_level(args).map_err(Failure::Usage)?;
    let format = log_format(args);
    let dropped = move |count: u64| {
        let text = format!("{count} lines were dropped: standard error took no more");
        format.line(SystemClock::new().now().wall, Level::Warn, &text)
    };
    let queue = LogQueue::start("duly-log", io::stderr(), dropped);
    let queue = queue.map_err(|error| Failure::Refused(format!("cannot start a thread for the log: {error}")))?;
    let forwards = matches!(&args.command, Command::Run(options) if options.forward_output);
    let output = forwards.then(|| LogQueue::start("duly-output", io::stdout(), log_dropped_output)).transpose();
    let output = output
        .map_err(|error| Failure::Refused(format!("cannot start a thread for the output of commands: {error}")))?;
    logger::install(format, level, queue.lines());
    panic::set_hook(Box::new(|panicked| {
        log::error!("{}", escape::one_line(&panicked.to_string()));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            log::error!("{trace}");
        }
    }));
    Ok(Log { queue, output, format })
}

/// Returns nothing to write to standard output.
fn log_dropped_output(count: u64) -> String {
    log::warn!("{count} lines that commands printed were dropped: standard output took no more");
    String::new()
}

/// The level of the log: of the options, else of `DULY_LOG`, else `info`.
fn log_level(args: &Args) -> Result<LevelFilter, String> {
    match (args.quiet, args.verbose) {
        (true, _) => return Ok(LevelFilter::Warn),
        (false, 0) => {}
        (false, 1) => return Ok(LevelFilter::Debug),
        (false, _) => return Ok(LevelFilter::Trace),
    }
    match std::env::var("DULY_LOG") {
        Ok(word) if !word.is_empty() => word.parse().map_err(|_| {
            let word = escape::one_line(&word);
            format!("invalid DULY_LOG: expected off, error, warn, info, debug or trace, found {word:?}")
        }),
        _ => Ok(LevelFilter::Info),
    }
}

/// The form of the log: of `--log-format`, JSON with `--json`, else that of the reader of standard error.
fn log_format(args: &Args) -> LogFormat {
    let requested = match &args.command {
        Command::Run(options) => options.log_format,
        _ => None,
    };
    match requested {
        Some(format) => format,
        None if args.json => LogFormat::Json,
        None if stderr_is_journal() => LogFormat::Journald,
        None => LogFormat::Text,
    }
}

/// Whether standard error is the stream to the systemd journal that `JOURNAL_STREAM` names, by its device and inode.
#[cfg(unix)]
fn stderr_is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let stderr = rustix::fs::fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    stream.is_some_and(|stream| stderr.is_ok_and(|stderr| stderr == stream))
}

#[cfg(not(unix))]
fn stderr_is_journal() -> bool {
    false
}

fn execute(args: &Args, printer: &mut Printer<'_>) -> Result<(), Failure> {
    // Only commands that add tasks create a database.
    let existing = |printer: &mut Printer<'_>| -> Result<Client, Failure> {
        let client = Client::open_existing(&args.db)?;
        // That of the server, if there is one.
        printer.times.now = client.now();
        Ok(client)
    };
    match &args.command {
        // Handled by `run`.
        Command::Run(_) => Ok(()),
        #[cfg(feature = "mcp")]
        Command::Mcp(_) => Ok(()),
        Command::Add(add) => add::add(&args.db, add, printer),
        Command::Apply(apply) => apply::apply(&args.db, apply, printer),
        Command::Import(import) => commands::import::import(&args.db, import, printer),
        Command::List(list) if list.only_names => list::names(&args.db, printer),
        Command::List(list) => list::list(&existing(printer)?, list, printer),
        Command::Show { name } => show::show(&existing(printer)?, name, printer),
        Command::Status => status::status(&existing(printer)?, printer),
        Command::Next { what, tz, from, number, if_down } => {
            let (zone, from) = (tz.as_deref(), from.as_deref());
            next::next(&args.db, &Query { what, zone, from, number: *number, if_down: *if_down }, printer)
        }
        Command::History { name, status, since, number } => {
            history::history(&existing(printer)?, name.as_deref(), *status, since.as_deref(), *number, printer)
        }
        Command::Logs { which, follow: false } => logs::logs(&existing(printer)?, which, printer),
        Command::Logs { which, follow: true } => follow::follow(&existing(printer)?, which, printer),
        Command::Trigger { name, payload, key, wait } => {
            let run = payload.iter().fold(NewRun::of(name), NewRun::payload);
            let run = key.iter().fold(run, NewRun::key);
            control::trigger(&existing(printer)?, name, run, *wait, printer)
        }
        Command::Retry(change) => control::retry(&existing(printer)?, change, printer),
        Command::Pause(change) => control::pause(&existing(printer)?, change, printer),
        Command::Resume(change) => control::resume(&existing(printer)?, change, printer),
        Command::Cancel(change) => control::cancel(&existing(printer)?, change, printer),
        Command::Remove(change) => control::remove(&existing(printer)?, change, printer),
        Command::Limit(limits) => commands::limit::limit(&existing(printer)?, limits, printer),
        Command::Check { overdue, failures, all_missed } => {
            let limits = Limits { overdue: *overdue, failures: *failures, caught_up: *all_missed };
            check::check(&existing(printer)?, &limits, printer)
        }
        Command::Prune { dry_run, keep } => prune::prune(&existing(printer)?, keep.retention(), *dry_run, printer),
        Command::Doctor => doctor::doctor(&args.db, &existing(printer)?, printer),
        #[cfg(feature = "postgres")]
        Command::Selftest { dir: None, .. } if is_address(&args.db) => {
            commands::selftest_server::selftest_server(&args.db, printer)
        }
        Command::Selftest { length, dir, seed } => {
            // The parent of a bare file name is empty.
            let parent = args.db.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = dir.as_deref().unwrap_or(parent);
            commands::selftest::selftest(folder, *length, *seed, printer)
        }
        Command::Backup { file } => backup::backup(&existing(printer)?, file, printer),
        Command::Migrate { from, to } => commands::migrate::migrate(from, to, printer),
        Command::Service(command) => commands::service::service(&args.db, command, printer),
        Command::Completions { shell } => shell::completions(*shell, printer),
        Command::Man { command } => shell::man(command.as_deref(), printer),
    }
}
