//! The sidecar: duly as a program. It uses public items of the library only.

mod args;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use duly::{Client, Error, Run, Task};

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has read enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => fail(&error, 1),
        Err(Failure::Duly(error @ Error::UnusableDatabase { .. })) => fail(&error, 4),
        Err(Failure::Duly(error)) => fail(&error, 1),
    }
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// Why a command failed.
enum Failure {
    Duly(Error),
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Duly(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let client = Client::open_existing(&args.db)?;
    let mut out = io::stdout().lock();
    match &args.command {
        Command::List => {
            print(&mut out, ["NAME", "SCHEDULE", "STATUS", "NEXT"], client.tasks()?.iter().map(task_line))?
        }
        Command::History { name, number } => {
            let runs = match name {
                Some(name) => client.history(name, *number)?,
                None => client.newest_runs(*number)?,
            };
            print(&mut out, ["RUN", "TASK", "SCHEDULED FOR", "STATUS"], runs.iter().map(run_line))?;
        }
        Command::Trigger { name } => {
            let run = client.trigger(name)?;
            writeln!(out, "run {run} of {name} is queued")?;
        }
        Command::Pause { name } => client.pause(name)?,
        Command::Resume { name } => client.resume(name)?,
        Command::Cancel { run } => match client.cancel(*run)? {
            duly::Cancel::Asked => writeln!(out, "run {run} is running: it has been asked to stop")?,
            _ => writeln!(out, "run {run} is cancelled")?,
        },
        Command::Remove { name } => client.remove(name)?,
    }
    Ok(())
}

fn task_line(task: &Task) -> [String; 4] {
    let schedule = format!("{} {}", task.definition.schedule_type, task.definition.schedule_value);
    let next = task.next_run.map_or_else(|| "-".to_owned(), |at| at.to_string());
    [task.name().to_owned(), schedule, task.status.to_string(), next]
}

fn run_line(run: &Run) -> [String; 4] {
    let status = match run.occurrences {
        1 => run.status.to_string(),
        several => format!("{} ({several} occurrences)", run.status),
    };
    [run.id.to_string(), run.task.clone(), run.scheduled_for.to_string(), status]
}

/// Prints lines in columns as wide as they must be, with control characters escaped.
fn print(out: &mut impl Write, head: [&str; 4], lines: impl Iterator<Item = [String; 4]>) -> io::Result<()> {
    let escaped = |cell: String| -> String {
        cell.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
    };
    let lines: Vec<[String; 4]> =
        std::iter::once(head.map(str::to_owned)).chain(lines.map(|line| line.map(escaped))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    for [first, second, third, last] in &lines {
        writeln!(out, "{first:<0$}  {second:<1$}  {third:<2$}  {last}", widths[0], widths[1], widths[2])?;
    }
    Ok(())
}
