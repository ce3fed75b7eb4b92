//! One live process of a worker: its attempts, and what it says about them.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duly::command::CommandContext;
use duly::executor::{Delegated, EffectState, SharedInput};
use duly::{BoxError, Failure, MAX_RESULT_BYTES, StopReason, Timestamp};
use log::Level;
use serde_json::value::RawValue;

use crate::workers::attempts::{Attempt, Attempts, Hub, Stage};
use crate::workers::bell::Bell;
use crate::workers::lines::Lines;
use crate::workers::log_lines::WorkerLog;
use crate::workers::outbox::{Item, Outbox};
use crate::workers::protocol::{
    self, AttemptId, EffectAnswer, FromWorker, Hello, MAX_LINE, PROTOCOL, Step, ToWorker, WorkerRetry,
};

/// Most bytes that are written at once, unless a message is longer.
const BATCH: usize = 128 * 1024;
/// What a message that hands over a run has beside its payload, about.
const RUN_BYTES: usize = 400;
/// Deepest JSON that the database accepts.
const MAX_DEPTH: usize = 1000;
/// Delay after an attempt that could not be handed over, so that the scheduler does not claim it again and again.
const PAUSE: Duration = Duration::from_secs(1);

/// Most reads of its output after its process group is empty. They empty a full pipe; then, only a process that left the group still
/// writes.
const LATE_READS: u32 = 128;

/// A live process.
pub(crate) struct Worker {
    pub(crate) log: WorkerLog,
    pub(crate) copy: u32,
    pub(crate) name: Arc<str>,
    pub(crate) database: String,
    pub(crate) hub: Arc<dyn Hub>,
    /// Rung when the supervisor has to look.
    pub(crate) bell: Arc<Bell>,
    pub(crate) outbox: Outbox,
    pub(crate) attempts: Attempts,
    /// A message came since the last look.
    was_heard: AtomicBool,
    /// The reading thread waits for the worker.
    is_reading: AtomicBool,
    output_ended: AtomicBool,
    /// It does not read its standard input any more.
    input_closed: AtomicBool,
    /// Its process group is empty.
    is_gone: AtomicBool,
    /// The file that shows that it is alive was removed.
    lost_file: AtomicBool,
    has_ended_a_run: AtomicBool,
}

impl Worker {
    pub(crate) fn new(
        (name, copy): (Arc<str>, u32),
        log: WorkerLog,
        database: String,
        hub: Arc<dyn Hub>,
        bell: Arc<Bell>,
    ) -> Self {
        Worker {
            log,
            copy,
            name,
            database,
            attempts: Attempts::new(hub.clone()),
            hub,
            bell,
            outbox: Outbox::default(),
            was_heard: AtomicBool::new(false),
            is_reading: AtomicBool::new(true),
            output_ended: AtomicBool::new(false),
            input_closed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            lost_file: AtomicBool::new(false),
            has_ended_a_run: AtomicBool::new(false),
        }
    }

    /// Returns how many more attempts it takes now.
    pub(crate) fn free(&self) -> usize {
        let free = self.attempts.free();
        if free > 0 && self.outbox.is_full() { 0 } else { free }
    }

    /// Takes an attempt, or gives it back if it has no room.
    pub(crate) fn hand(&self, delegated: Box<Delegated>) -> Result<(), Box<Delegated>> {
        let context = delegated.context();
        let id = AttemptId { run: context.run_id(), attempt: context.attempt() };
        let bytes = context.payload_json().len() + RUN_BYTES;
        self.attempts.add(id, delegated)?;
        self.outbox.push(Item::Run(id), bytes);
        Ok(())
    }

    /// Asks for the end of an attempt, if the worker has it.
    pub(crate) fn stop(&self, id: AttemptId, reason: StopReason) -> bool {
        let has_it = self.attempts.stop(id, reason);
        if has_it {
            self.outbox.push_line(ToWorker::cancel(id, reason).line());
        }
        has_it
    }

    /// Asks for the return of an attempt that the worker has not begun. Until it answers, it may begin it.
    pub(crate) fn recall(&self, id: AttemptId) {
        if self.attempts.recall(id) {
            self.outbox.push_line(ToWorker::cancel(id, StopReason::Asked).line());
        }
    }

    /// Whether a message came since the last call, or is being processed.
    pub(crate) fn take_heard(&self) -> bool {
        self.was_heard.swap(false, Ordering::SeqCst) || !self.is_reading.load(Ordering::SeqCst)
    }

    /// Whether the reading thread waits for the worker.
    pub(crate) fn is_reading(&self) -> bool {
        self.is_reading.load(Ordering::SeqCst)
    }

    /// Whether its standard output has ended.
    pub(crate) fn output_ended(&self) -> bool {
        self.output_ended.load(Ordering::SeqCst)
    }

    /// Whether it has closed its standard input, or has ended.
    pub(crate) fn input_closed(&self) -> bool {
        self.input_closed.load(Ordering::SeqCst)
    }

    /// Whether it can get no run any more, and has none: the file that shows that it is alive was removed.
    pub(crate) fn is_useless(&self) -> bool {
        self.lost_file.load(Ordering::SeqCst) && self.attempts.count() == 0
    }

    /// Its process group is empty: what is left of its output is read, and no more.
    pub(crate) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }

    /// Whether it has ended a run.
    pub(crate) fn has_ended_a_run(&self) -> bool {
        self.has_ended_a_run.load(Ordering::SeqCst)
    }

    /// Asks it to end when it has no run.
    pub(crate) fn send_stop(&self, deadline: Timestamp) {
        self.attempts.leave();
        self.outbox.push_line(ToWorker::stop(deadline).line());
    }
}

/// What the reading thread does.
impl Worker {
    /// Reads messages until the output ends. After a message that breaks a rule, what follows only shows which attempts have begun.
    pub(crate) fn read(&self, stdout: impl Read) {
        // Also after a panic, which is a bug: the supervisor waits for the end.
        let _reading = Reading(self);
        let mut lines = Lines::new(stdout, MAX_LINE);
        let mut late_reads = 0;
        while late_reads < LATE_READS {
            late_reads += u32::from(self.is_gone.load(Ordering::SeqCst));
            self.is_reading.store(true, Ordering::SeqCst);
            let read = lines.read(|line| {
                self.is_reading.store(false, Ordering::Relaxed);
                if let Err(rule) = self.receive(line) {
                    self.break_off(&rule);
                }
            });
            let too_long = |error: &io::Error| error.kind() == io::ErrorKind::FileTooLarge;
            let has_more = match read {
                Ok(has_more) => has_more,
                Err(error) if too_long(&error) => {
                    self.break_off(&format!("a line is longer than {MAX_LINE} bytes"));
                    true
                }
                Err(_) => false,
            };
            self.was_heard.store(true, Ordering::SeqCst);
            if !has_more {
                break;
            }
        }
    }

    /// Queues an answer. If the worker does not read, its further messages are not read either, and it counts as silent.
    fn answer(&self, message: &ToWorker<'_>) {
        self.is_reading.store(true, Ordering::SeqCst);
        self.outbox.wait_for_room();
        self.is_reading.store(false, Ordering::SeqCst);
        self.outbox.push_line(message.line());
    }

    /// Records which rule the worker has broken, and sends it as an `error`.
    fn break_off(&self, rule: &str) {
        if self.attempts.break_off(rule) {
            self.outbox.close(Some(ToWorker::Error { error: rule }.line()));
            self.bell.ring();
        }
    }

    fn receive(&self, line: &[u8]) -> Result<(), String> {
        if self.attempts.is_broken() {
            // Only what has begun counts of what follows.
            if let Ok(Some(FromWorker::Of(id, _))) = protocol::parse(line) {
                self.attempts.begin(id);
            }
            return Ok(());
        }
        if !self.attempts.said_hello() && !protocol::may_be_message(line) {
            // Programs greet, and modules warn, before the worker has taken its standard output from them.
            self.log.line(Level::Info, None, &String::from_utf8_lossy(line));
            return Ok(());
        }
        let Some(message) = protocol::parse(line)? else { return Ok(()) };
        match message {
            FromWorker::Of(id, step) => self.step(id, step),
            FromWorker::Log { level, text, run } => {
                self.log.line(level, run, &text);
                Ok(())
            }
            FromWorker::Hello(hello) => self.hello(&hello),
            FromWorker::Ping if !self.attempts.said_hello() => {
                Err("expected hello as the first message, found a ping".to_owned())
            }
            FromWorker::Ping => {
                self.answer(&ToWorker::Pong);
                Ok(())
            }
            FromWorker::Pong => Ok(()),
        }
    }

    fn hello(&self, hello: &Hello) -> Result<(), String> {
        if self.attempts.said_hello() {
            return Err("a second hello".to_owned());
        }
        self.hub.register(self.copy, hello)?;
        let database = (&*self.database).into();
        let welcome = ToWorker::Welcome { protocol: PROTOCOL, worker: &self.name, copy: self.copy, database };
        // Before it is ready: runs follow it.
        self.outbox.push_line(welcome.line());
        self.attempts.accept(hello.concurrency);
        self.bell.ring();
        self.hub.wake();
        Ok(())
    }

    fn step(&self, id: AttemptId, step: Step<'_>) -> Result<(), String> {
        if self.attempts.is_over(id) {
            self.late(id, &step);
            return Ok(());
        }
        let unknown = || {
            let AttemptId { run, attempt } = id;
            if self.attempts.said_hello() {
                format!("the worker does not have attempt {attempt} of run {run}")
            } else {
                "expected hello as the first message".to_owned()
            }
        };
        match step {
            Step::Begin if self.attempts.begin(id) => Ok(()),
            Step::Begin => Err(unknown()),
            Step::Progress(text) => {
                self.attempts.with(id, Stage::Begun, |delegated| delegated.context().progress(text)).ok_or_else(unknown)
            }
            Step::Done(result) => {
                let attempt = self.attempts.take(id).ok_or_else(unknown)?;
                self.done(attempt, result);
                Ok(())
            }
            Step::Failed { error, retry } => {
                let attempt = self.attempts.take(id).ok_or_else(unknown)?;
                self.failed(attempt, error, retry);
                Ok(())
            }
            Step::EffectBegin(key) => {
                self.effect(id, &key, |delegated| Ok(Answer::Begun(delegated.begin_effect(&key)?)))
            }
            Step::EffectDone(key, value) => self.effect(id, &key, |delegated| {
                delegated.record_effect(&key, value)?;
                Ok(Answer::Stored)
            }),
            Step::EffectFailed(key) => self.effect(id, &key, |delegated| {
                delegated.undo_effect(&key)?;
                Ok(Answer::Undone)
            }),
        }
        .map_err(|error| if error.is_empty() { unknown() } else { error })
    }

    /// A message about an attempt that the worker has ended changes nothing, and costs none of its other attempts.
    fn late(&self, id: AttemptId, step: &Step<'_>) {
        let AttemptId { run, attempt } = id;
        let error = format!("attempt {attempt} of run {run} has ended");
        match step {
            Step::EffectBegin(key) | Step::EffectDone(key, _) | Step::EffectFailed(key) => {
                self.answer(&ToWorker::Effect { run, attempt, key, answer: EffectAnswer::Refused { error } });
            }
            Step::Begin | Step::Progress(_) | Step::Done(_) | Step::Failed { .. } => {
                self.log.line(Level::Warn, Some(run), &format!("a late message is ignored: {error}"));
            }
        }
    }

    fn done(&self, attempt: Attempt, result: Option<&str>) {
        let Some(delegated) = attempt.delegated else { return };
        let refused = result.and_then(|json| {
            if json.len() > MAX_RESULT_BYTES {
                let found = json.len();
                return Some(format!("its result is not stored: {found} bytes, more than {MAX_RESULT_BYTES}"));
            }
            (depth(json) > MAX_DEPTH).then(|| format!("its result is not stored: it is nested deeper than {MAX_DEPTH}"))
        });
        if let Some(remark) = &refused {
            CommandContext::of(delegated.context()).record_remark(remark);
        }
        self.has_ended_a_run.store(true, Ordering::SeqCst);
        delegated.end(Ok(result.filter(|_| refused.is_none()).map(str::to_owned)));
    }

    fn failed(&self, attempt: Attempt, error: String, retry: WorkerRetry) {
        let is_decided = matches!(retry, WorkerRetry::No | WorkerRetry::Skip);
        let returned = if is_decided { Some(attempt) } else { self.attempts.take_back(attempt, &error) };
        let Some(attempt) = returned else { return };
        let Some(delegated) = attempt.delegated else { return };
        if attempt.stop == Some(StopReason::Shutdown) && !is_decided {
            self.hub.cut_short();
        }
        let failure: BoxError = match retry {
            WorkerRetry::No => Failure::give_up(error).into(),
            WorkerRetry::Skip => Failure::skip(error).into(),
            WorkerRetry::After(wait) => Failure::retry_after(wait, error).into(),
            WorkerRetry::Yes => error.into(),
        };
        self.has_ended_a_run.store(true, Ordering::SeqCst);
        delegated.end(Err(failure));
    }

    /// Answers a message about an effect. The error is empty if the worker does not have the attempt.
    fn effect(
        &self,
        id: AttemptId,
        key: &str,
        ask: impl FnOnce(&Delegated) -> Result<Answer, BoxError>,
    ) -> Result<(), String> {
        let answer = self.attempts.with(id, Stage::Begun, ask).ok_or_else(String::new)?;
        let refused = |error: &dyn std::fmt::Display| EffectAnswer::Refused { error: error.to_string() };
        let answer = match &answer {
            Ok(Answer::Stored) => EffectAnswer::Stored,
            Ok(Answer::Undone) => EffectAnswer::Undone,
            Ok(Answer::Begun(EffectState::Begin)) => EffectAnswer::Begin,
            Ok(Answer::Begun(EffectState::InDoubt)) => EffectAnswer::InDoubt,
            Ok(Answer::Begun(EffectState::Done(value))) => match serde_json::from_str::<&RawValue>(value) {
                Ok(value) => EffectAnswer::Done { value },
                Err(error) => refused(&error),
            },
            Err(error) => refused(error),
        };
        self.answer(&ToWorker::Effect { run: id.run, attempt: id.attempt, key, answer });
        Ok(())
    }
}

/// Ends the reading when it is dropped.
struct Reading<'a>(&'a Worker);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.is_reading.store(true, Ordering::SeqCst);
        self.0.output_ended.store(true, Ordering::SeqCst);
        self.0.bell.ring();
    }
}

/// What was done about an effect.
enum Answer {
    Begun(EffectState),
    Stored,
    Undone,
}

/// What the writing thread does.
impl Worker {
    /// Writes what the outbox holds, until it is closed; then closes the input of the worker.
    pub(crate) fn write(&self, mut stdin: impl Write, input: &SharedInput) {
        let (mut items, mut bytes) = (Vec::new(), Vec::new());
        while self.outbox.take(&mut items) {
            let (mut is_open, mut is_linkable) = (true, true);
            for item in items.drain(..) {
                match item {
                    _ if !is_open => {}
                    Item::Run(id) if is_linkable => is_linkable = self.write_run(id, input, &mut bytes),
                    Item::Run(id) => self.release(id),
                    Item::Line(line) => bytes.extend_from_slice(&line),
                }
                if bytes.len() >= BATCH {
                    is_open &= flush(&mut stdin, &mut bytes);
                }
            }
            if !is_open || !flush(&mut stdin, &mut bytes) {
                // It has closed its input, or it has ended, which the supervisor finds out. What it has written is still read: it may
                // have begun attempts.
                self.attempts.leave();
                self.outbox.close(None);
                self.input_closed.store(true, Ordering::SeqCst);
                self.bell.ring();
                return;
            }
            if self.outbox.written() {
                self.hub.wake();
            }
            if !is_linkable {
                // Once for all runs that were taken: pings, cancels and answers must not wait long.
                self.outbox.wait_closed(PAUSE);
            }
        }
    }

    /// Returns a run that was not written to the queue.
    fn release(&self, id: AttemptId) {
        if let Some(Attempt { delegated: Some(delegated), .. }) = self.attempts.take(id) {
            delegated.release();
        }
    }

    /// Appends the message that hands over an attempt. Returns `false` if no run can be handed over at the moment.
    fn write_run(&self, id: AttemptId, input: &SharedInput, bytes: &mut Vec<u8>) -> bool {
        let begin = bytes.len();
        let written = self.attempts.with(id, Stage::Sent, |delegated| {
            delegated.use_input(input).map_err(Unsent::NoInput)?;
            let context = delegated.context();
            let message = ToWorker::run(context, context.handler())
                .map_err(|error| Unsent::Payload(format!("its payload is no JSON: {error}")))?;
            message.write(bytes);
            let found = bytes.len() - begin;
            if found <= MAX_LINE {
                return Ok(());
            }
            Err(Unsent::Payload(format!("its message has {found} bytes, more than {MAX_LINE}")))
        });
        let Some(Err(unsent)) = written else { return true };
        bytes.truncate(begin);
        let Some(Attempt { delegated: Some(delegated), .. }) = self.attempts.take(id) else { return true };
        match unsent {
            Unsent::Payload(reason) => {
                let reason = format!("the run cannot be given to a worker: {reason}");
                delegated.end(Err(Failure::give_up(reason).into()));
                true
            }
            Unsent::NoInput(error) => {
                let (run, task) = (id.run, delegated.context().task().to_owned());
                let is_lost = error.kind() == io::ErrorKind::NotFound;
                log::error!(
                    "run {run} of {task:?} was not given to worker {:?}: cannot link the file that shows that the worker is alive: {error}; \
                     it returns to the queue",
                    self.name
                );
                if is_lost {
                    self.attempts.leave();
                    self.lost_file.store(true, Ordering::SeqCst);
                    delegated.release();
                } else {
                    let reason = format!("cannot link the file that shows that a worker is alive: {error}");
                    // The folder of the link is duly's: the task is not at fault.
                    delegated.end(Err(Failure::not_started(reason).into()));
                }
                self.bell.ring();
                false
            }
        }
    }
}

/// Why an attempt was not handed over.
enum Unsent {
    NoInput(io::Error),
    Payload(String),
}

/// Writes the bytes, and clears them.
fn flush(stdin: &mut impl Write, bytes: &mut Vec<u8>) -> bool {
    let written = bytes.is_empty() || stdin.write_all(bytes).and_then(|()| stdin.flush()).is_ok();
    bytes.clear();
    if bytes.capacity() > 2 * MAX_LINE {
        *bytes = Vec::new();
    }
    written
}

/// Returns how deep a JSON text is nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn the_depth_of_json_is_counted_outside_of_texts() {
        for (json, expected) in [("1", 0), ("[]", 1), (r#"{"a":[1,{"b":"]]]"}],"c\"[[[[":[]}"#, 3)] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }
}
