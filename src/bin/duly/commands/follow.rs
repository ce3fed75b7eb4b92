//! `logs --follow`: prints the output of a run as it comes, until the run has ended.

use std::thread;
use std::time::Duration;

use duly::{Attempt, AttemptOutcome, Client, Clock, Run, RunStatus, SystemClock};

use crate::cli::failure::Failure;
use crate::commands::control::{find_run, no_scheduler};
use crate::commands::logs::{find, print_run};
use crate::commands::run_status::{ended, retry, status};
use crate::exec::text::{Place, parse};
use crate::output::forward::Stream;
use crate::output::printer::Printer;
use crate::output::units::short_duration;

/// Interval at which the database is asked whether it has changed. Its tables are read only then.
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn follow(client: &Client, which: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let id = find(client, which)?;
    let run = find_run(client, id)?;
    if !run.status.is_final() {
        printer.say(format!("run {id} of {} is {}", run.task, status(&run, printer.times.now)))?;
        if no_scheduler(client)? {
            printer.flush()?;
            printer.warn(format!("no scheduler is alive: run {id} waits until one is started with duly run"));
        }
    }
    let run = Follower { client, printer, shown: Shown::default(), ended: 0, read: None }.follow(id)?;
    if printer.json {
        print_run(client, id, printer)?;
    }
    match ended(&run) {
        Ok(succeeded) => Ok(printer.say(succeeded)?),
        Err(reason) => {
            printer.flush()?;
            Err(Failure::Unsuccessful(reason))
        }
    }
}

struct Follower<'a, 'p> {
    client: &'a Client,
    printer: &'a mut Printer<'p>,
    shown: Shown,
    /// The newest attempt whose end is printed.
    ended: u32,
    /// The state of the run when its attempts were last read.
    read: Option<(RunStatus, u32)>,
}

/// What is printed of the attempt that runs.
#[derive(Debug, Default)]
struct Shown {
    attempt: u32,
    /// How far stdout and stderr are printed.
    places: [Place; 2],
    /// Whether a line of the stream was ended for a heading in its middle.
    is_cut: [bool; 2],
    /// The stream that was printed last.
    last: usize,
    /// Whether the last line that was printed has no end yet.
    is_open: bool,
}

impl Follower<'_, '_> {
    /// Prints what the run's attempts print. Returns the run when it has ended.
    fn follow(mut self, id: i64) -> Result<Run, Failure> {
        let mut seen = None;
        loop {
            // Before the rows are read: a change in between is seen in the next round.
            let version = self.client.data_version()?;
            if seen.replace(version) != Some(version) {
                let run = find_run(self.client, id)?;
                self.printer.times.now = SystemClock::new().now().wall;
                self.print(&run)?;
                self.printer.flush()?;
                if run.status.is_final() {
                    return Ok(run);
                }
            }
            thread::sleep(POLL);
        }
    }

    fn print(&mut self, run: &Run) -> Result<(), Failure> {
        // The end of an attempt changes the run: until then there is no need to read all attempts.
        let state = Some((run.status, run.attempt));
        if self.read != state {
            for attempt in self.client.attempts(run.id)? {
                // One that has ended since the run was read is printed in the next round.
                let is_over = attempt.attempt < run.attempt || run.status != RunStatus::Running;
                if attempt.attempt > self.ended && is_over {
                    self.attempt_ended(run, &attempt)?;
                }
            }
            self.read = state;
        }
        if run.attempt > self.ended {
            self.output(run, run.attempt, run.output.as_deref())?;
            if run.status == RunStatus::Succeeded {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn attempt_ended(&mut self, run: &Run, attempt: &Attempt) -> Result<(), Failure> {
        self.ended = attempt.attempt;
        if attempt.outcome == AttemptOutcome::Released {
            return Ok(());
        }
        self.output(run, attempt.attempt, attempt.output.as_deref())?;
        self.end_line()?;
        let Attempt { attempt: number, outcome, duration, error, .. } = attempt;
        if run.status.is_final() && *number == run.attempt {
            // The end of the run says the same.
            return Ok(());
        }
        let took = duration.map(|duration| format!(" after {}", short_duration(duration))).unwrap_or_default();
        let error = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let waits = run.status == RunStatus::Failed && *number == run.attempt;
        let next = if waits { format!("; {}", retry(run.run_at, self.printer.times.now)) } else { String::new() };
        let end = format!("attempt {number} of run {} of {}: {outcome}{took}{error}{next}", run.id, run.task);
        Ok(self.printer.say(end)?)
    }

    /// Prints what is new in the output of an attempt.
    fn output(&mut self, run: &Run, attempt: u32, output: Option<&str>) -> Result<(), Failure> {
        if self.shown.attempt != attempt {
            self.end_line()?;
            self.shown = Shown { attempt, ..Shown::default() };
            if attempt > 1 {
                self.printer.say(format!("attempt {attempt} of run {} of {}", run.id, run.task))?;
            }
        }
        if self.printer.json {
            return Ok(());
        }
        for (at, stream) in parse(output.unwrap_or_default()).iter().enumerate() {
            let news = self.shown.places[at].next(stream);
            self.text(at, news.before)?;
            if news.omitted > 0 {
                self.heading(at)?;
                self.end_line()?;
                self.printer.line(format!("... {} bytes omitted ...", news.omitted))?;
                self.shown.is_cut[at] = false;
            }
            self.text(at, news.after)?;
        }
        Ok(())
    }

    /// Prints text of a stream, after a heading if another one was printed before.
    fn text(&mut self, stream: usize, mut text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        self.heading(stream)?;
        // The end of the line is printed already.
        if std::mem::take(&mut self.shown.is_cut[stream]) {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        self.shown.is_open = !text.is_empty() && !text.ends_with('\n');
        Ok(self.printer.part(text)?)
    }

    /// Prints the heading of a stream if another one was printed last.
    fn heading(&mut self, stream: usize) -> Result<(), Failure> {
        let last = std::mem::replace(&mut self.shown.last, stream);
        if last != stream {
            self.shown.is_cut[last] = self.shown.is_open;
            self.end_line()?;
            self.printer.line(format!("--- {} ---", [Stream::Stdout, Stream::Stderr][stream].as_str()))?;
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.shown.is_open) {
            self.printer.part("\n")?;
        }
        Ok(())
    }
}
