//! The sidecar: duly as a program. It uses public items of the library only.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod cli;
mod commands;
mod exec;
mod import;
mod manifest;
#[cfg(test)]
mod mutations;
mod output;
mod selftest;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::panic;
use std::path::Path;
use std::process::ExitCode;

use duly::{Client, Clock, Limits, NewRun, SystemClock, Zone};
use simplelog::{ConfigBuilder, LevelFilter, WriteLogger};

use crate::cli::args::{Args, Command};
use crate::cli::failure::Failure;
use crate::cli::zone;
use crate::commands::next::{self, Asked};
use crate::commands::run::{self, Ended};
use crate::commands::{add, apply, backup, check, control, doctor, history, list, logs, prune, shell, show, status};
use crate::output::escape;
use crate::output::log_queue::LogQueue;
use crate::output::printer::Printer;
use crate::output::progress_bar::Bars;
use crate::output::sparkline::Heights;
use crate::output::times::Times;
use crate::selftest::child::Part;

fn main() -> ExitCode {
    let args = match Args::typed(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return not_understood(&error),
    };
    let log = if logs(&args) {
        match log_to_stderr(&args) {
            Ok(queue) => Some(Log(queue)),
            Err(error) => {
                complain(&format!("error: cannot start a thread for the log: {error}"));
                return ExitCode::FAILURE;
            }
        }
    } else {
        None
    };
    let failure = match run(&args) {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    if failure.exit_code() != 0 {
        let line = format!("error: {}", escape::one_line(&failure.to_string()));
        match &log {
            Some(Log(queue)) => queue.finish(Some(&line)),
            None => complain(&line),
        }
    }
    ExitCode::from(failure.exit_code())
}

/// The log, which is written to its end when this is dropped, also by a panic.
struct Log(LogQueue);

impl Drop for Log {
    fn drop(&mut self) {
        self.0.finish(None);
    }
}

/// Whether the command logs what happens, until it ends.
fn logs(args: &Args) -> bool {
    match &args.command {
        Command::Run(_) => true,
        Command::Selftest { .. } => Part::asked().is_some(),
        _ => false,
    }
}

/// Help that was asked for, or what is wrong with the line that was typed.
fn not_understood(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        complain(escape::lines(&error.render().to_string()).trim_end());
    } else {
        // Whoever closed the output has read enough.
        let _ = error.print();
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Where nobody hears it, there is nobody to tell.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Command::Run(options) = &args.command {
        return Ok(match run::run(&args.db, options)? {
            Ended::InOrder => ExitCode::SUCCESS,
            Ended::CutShort => ExitCode::from(3),
        });
    }
    if let (Command::Selftest { .. }, Some(part)) = (&args.command, Part::asked()) {
        part.play().map_err(|error| Failure::Unsuccessful(error.to_string()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let terminal = io::stdout().is_terminal();
    let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    // A terminal of no columns is one that does not tell.
    let columns = || comfy_table::Table::new().width().filter(|width| *width > 0);
    let width = if terminal { columns() } else { None };
    let bars = io::stderr().is_terminal() && !dumb && !args.json && !args.quiet;
    let zone = match zone::local() {
        Some(zone) => zone,
        None => Zone::named("UTC")?,
    };
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut printer = Printer {
        out: &mut out,
        err: &mut io::stderr(),
        json: args.json,
        quiet: args.quiet,
        colour: terminal && !no_colour && !dumb,
        width,
        heights: if terminal && unicode() { Heights::Blocks } else { Heights::Digits },
        bars: bars.then(|| Bars { terminal: || Box::new(io::stderr()), width: columns() }),
        times: Times { now: SystemClock::new().now().wall, zone },
    };
    carry_out(args, &mut printer)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the terminal shows Unicode, as the first of these variables that says anything says.
fn unicode() -> bool {
    let said = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = said.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Has every event logged as one line on standard error: when, how grave, what. Panics too.
fn log_to_stderr(args: &Args) -> io::Result<LogQueue> {
    let level = match (args.quiet, args.verbose) {
        (true, _) => LevelFilter::Warn,
        (false, 0) => LevelFilter::Info,
        (false, _) => LevelFilter::Debug,
    };
    let format = ConfigBuilder::new()
        .set_time_format_rfc3339()
        .set_time_level(LevelFilter::Error)
        .set_thread_level(LevelFilter::Off)
        .set_target_level(LevelFilter::Off)
        .set_location_level(LevelFilter::Off)
        .build();
    let queue = LogQueue::start(io::stderr())?;
    // Fails only where there is a logger already.
    let _ = WriteLogger::init(level, format, queue.lines());
    panic::set_hook(Box::new(|panicked| {
        log::error!("{}", escape::one_line(&panicked.to_string()));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            log::error!("{trace}");
        }
    }));
    Ok(queue)
}

fn carry_out(args: &Args, printer: &mut Printer<'_>) -> Result<(), Failure> {
    // Only what adds tasks makes a file where there is none.
    let there = || Client::open_existing(&args.db);
    match &args.command {
        // It prints nothing, and was carried out before.
        Command::Run(_) => Ok(()),
        Command::Add(add) => add::add(&args.db, add, printer),
        Command::Apply(asked) => apply::apply(&args.db, asked, printer),
        Command::Import(what) => commands::import::import(&args.db, what, printer),
        Command::List { names: true } => list::names(&args.db, printer),
        Command::List { names: false } => list::list(&there()?, printer),
        Command::Show { name } => show::show(&there()?, name, printer),
        Command::Status => status::status(&there()?, printer),
        Command::Next { what, tz, from, number, if_down } => {
            let (zone, from) = (tz.as_deref(), from.as_deref());
            next::next(&args.db, &Asked { what, zone, from, number: *number, if_down: *if_down }, printer)
        }
        Command::History { name, status, since, number } => {
            history::history(&there()?, name.as_deref(), *status, since.as_deref(), *number, printer)
        }
        Command::Logs { run } => logs::logs(&there()?, *run, printer),
        Command::Trigger { name, payload, key, wait } => {
            let run = payload.iter().fold(NewRun::of(name), NewRun::payload);
            let run = key.iter().fold(run, NewRun::key);
            control::trigger(&there()?, name, run, *wait, printer)
        }
        Command::Retry { run } => control::retry(&there()?, *run, printer),
        Command::Pause { name } => control::pause(&there()?, name, printer),
        Command::Resume { name } => control::resume(&there()?, name, printer),
        Command::Cancel { which, gone: false } => control::cancel(&there()?, which, printer),
        Command::Cancel { which, gone: true } => control::declare_gone(&there()?, which, printer),
        Command::Remove { name } => control::remove(&there()?, name, printer),
        Command::Check { overdue, failures } => {
            check::check(&there()?, &Limits { overdue: *overdue, failures: *failures }, printer)
        }
        Command::Prune { dry_run, keep } => prune::prune(&there()?, keep.retention(), *dry_run, printer),
        Command::Doctor => doctor::doctor(&there()?, printer),
        Command::Selftest { length, dir, seed } => {
            // A name alone is of a file here.
            let beside = args.db.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = dir.as_deref().unwrap_or(beside);
            commands::selftest::selftest(&commands::selftest::Asked { folder, length: *length, seed: *seed }, printer)
        }
        Command::Backup { file } => backup::backup(&there()?, file, printer),
        Command::Completions { shell } => shell::completions(*shell, printer),
        Command::Man { command } => shell::man(command.as_deref(), printer),
    }
}
