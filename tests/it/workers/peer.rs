//! duly's side of the protocol: starts a worker, writes messages to it, and checks each message that it writes.

// Each wait has a deadline of the case; a thread waits for the process, and is waited for in this way.
#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::workers::rules::{Checked, Id, MAX_MESSAGE, Message, ensure};

/// How long a worker is watched that must write nothing.
const PAUSE: Duration = Duration::from_millis(300);

/// How a worker is started.
pub(crate) struct Program {
    pub(crate) argv: Vec<String>,
    /// How long it may take until its `hello`.
    pub(crate) hello: Duration,
    /// How long each other answer may take.
    pub(crate) patience: Duration,
}

/// What is written to the worker.
enum Piece {
    Bytes(Vec<u8>),
    /// Answered when the worker has read all that was written before.
    UntilRead(Sender<()>),
}

/// The state of an attempt that the worker has.
#[derive(Default)]
struct Attempt {
    /// The worker has sent a message about it.
    begun: bool,
    /// The keys of its effects that have begun.
    effects: BTreeSet<String>,
}

/// A running worker. Its process group is killed on drop.
pub(crate) struct Peer {
    group: Pid,
    exits: Receiver<ExitStatus>,
    input: Option<Sender<Piece>>,
    /// At most one line is read ahead: a peer that reads nothing lets the pipe become full.
    lines: Receiver<Checked<Vec<u8>>>,
    log: Arc<Mutex<String>>,
    hello: Duration,
    patience: Duration,
    /// The number of pings that it has not answered.
    pings: usize,
    has_exited: bool,
    welcomed: bool,
    pub(crate) handlers: Vec<String>,
    pub(crate) concurrency: usize,
    open: BTreeMap<Id, Attempt>,
    ended: BTreeMap<Id, Message>,
    /// The texts of `progress`, in order.
    pub(crate) progress: Vec<(Id, String)>,
}

impl Peer {
    pub(crate) fn start(program: &Program) -> Self {
        let mut child = Command::new(&program.argv[0])
            .args(&program.argv[1..])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .envs([("DULY_DB", "/nonexistent/agent.db"), ("DULY_WORKER", "kit"), ("DULY_WORKER_COPY", "1")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", program.argv));
        let group = Pid::from_child(&child);
        let (input, pieces) = channel();
        let (sender, lines) = sync_channel(0);
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        let mut stderr = child.stderr.take().expect("a pipe");
        std::thread::spawn(move || write(stdin, &pieces));
        std::thread::spawn(move || read(stdout, |line| sender.send(line).is_ok()));
        let log = Arc::new(Mutex::new(String::new()));
        let collected = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut bytes) {
                collected.lock().expect("the log").push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        let (exit, exits) = channel();
        std::thread::spawn(move || exit.send(child.wait().expect("an exit status")));
        Peer {
            group,
            exits,
            input: Some(input),
            lines,
            log,
            hello: program.hello,
            patience: program.patience,
            pings: 0,
            has_exited: false,
            welcomed: false,
            handlers: Vec::new(),
            concurrency: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            progress: Vec::new(),
        }
    }

    /// Returns its standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    // ----------------------------------------------------------------------------------------------------- writing --

    pub(crate) fn send(&self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        // A worker that has ended reads nothing.
        let _ = self.input.as_ref().map(|input| input.send(Piece::Bytes(bytes.to_vec())));
    }

    /// Waits until the worker has read everything.
    pub(crate) fn until_read(&self) -> Checked<()> {
        let (sender, read) = channel();
        let _ = self.input.as_ref().map(|input| input.send(Piece::UntilRead(sender)));
        read.recv_timeout(self.patience).map_err(|_| "it does not read its input".to_owned())
    }

    /// Closes its standard input.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Sends `welcome` after its `hello`, which must be its first message.
    pub(crate) fn greet(&mut self) -> Checked<()> {
        self.hello()?;
        self.welcome(&welcome());
        Ok(())
    }

    /// Sends a form of `welcome`.
    pub(crate) fn welcome(&mut self, message: &Value) {
        self.welcomed_with(&format!("{message}\n"));
    }

    /// Sends a text that begins with `welcome`.
    pub(crate) fn welcomed_with(&mut self, text: &str) {
        self.welcomed = true;
        self.send_bytes(text.as_bytes());
    }

    /// Waits for `hello`.
    pub(crate) fn hello(&mut self) -> Checked<()> {
        let patience = std::mem::replace(&mut self.patience, self.hello);
        let said = self.next();
        self.patience = patience;
        let said = said.map_err(|error| format!("until hello: {error}"))?;
        ensure(said.kind == "hello", || format!("the first message is {:?}", said.kind))
    }

    /// Hands over an attempt.
    pub(crate) fn run(&mut self, id: Id, handler: &str, payload: Value) {
        let message = self.handed(id, handler, payload);
        self.send(&message);
    }

    /// Records an attempt as handed over, and returns the message for it.
    pub(crate) fn handed(&mut self, id: Id, handler: &str, payload: Value) -> Value {
        self.open.insert(id, Attempt::default());
        run_message(id, handler, payload)
    }

    /// Sends a form of `ping`.
    pub(crate) fn ping(&mut self, message: &Value) {
        self.pings += 1;
        self.send(message);
    }

    pub(crate) fn cancel(&self, id: Id, reason: &str) {
        self.send(&cancel_message(id, reason));
    }

    /// Answers a message about an effect.
    pub(crate) fn answer(&self, asked: &Message, state: &str, more: (&str, Value)) {
        let (run, attempt) = asked.id.expect("an attempt");
        let mut answer =
            json!({"type": "effect", "run": run, "attempt": attempt, "key": asked.text("key"), "state": state});
        if !more.0.is_empty() {
            answer[more.0] = more.1;
        }
        self.send(&answer);
    }

    /// Sends a signal to its process group.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    // ----------------------------------------------------------------------------------------------------- reading --

    /// Returns its next message, which must obey the rules. Answers `ping`, and skips `log`.
    pub(crate) fn next(&mut self) -> Checked<Message> {
        let deadline = Instant::now() + self.patience;
        loop {
            let line = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line?,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no message within {:?}; it has {:?}", self.patience, self.open.keys()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("its output has ended; it has {:?}", self.open.keys()));
                }
            };
            let said = Message::read(&line)?;
            self.track(&said)?;
            match &*said.kind {
                "log" => {}
                "ping" => self.send(&json!({"type": "pong"})),
                _ => return Ok(said),
            }
        }
    }

    /// Checks a message against those before it.
    fn track(&mut self, said: &Message) -> Checked<()> {
        let kind = &*said.kind;
        if kind == "hello" {
            ensure(self.handlers.is_empty(), || "a second hello".to_owned())?;
            let names = said.body["handlers"].as_array().expect("a list");
            self.handlers = names.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            self.concurrency =
                said.body["concurrency"].as_u64().and_then(|number| number.try_into().ok()).expect("a number");
            return Ok(());
        }
        ensure(self.welcomed || kind == "log", || format!("{kind:?} before welcome"))?;
        if kind == "pong" {
            self.pings = self.pings.checked_sub(1).ok_or("a pong without a ping")?;
        }
        let Some(id) = said.id else { return Ok(()) };
        let (run, attempt) = id;
        let Some(state) = self.open.get_mut(&id) else {
            let why = if self.ended.contains_key(&id) { "has ended" } else { "does not have" };
            return Err(format!("{kind:?} about attempt {attempt} of run {run}, which it {why}"));
        };
        ensure(kind != "begin" || !state.begun, || format!("{kind:?} after another message about the attempt"))?;
        state.begun = true;
        match kind {
            "progress" => self.progress.push((id, said.text("text").to_owned())),
            "effect_begin" => drop(state.effects.insert(said.text("key").to_owned())),
            "effect_done" | "effect_failed" => {
                ensure(state.effects.contains(said.text("key")), || format!("{kind:?} without effect_begin"))?;
            }
            "done" | "failed" => {
                self.open.remove(&id);
                self.ended.insert(id, said.clone());
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until an attempt has begun.
    pub(crate) fn begun(&mut self, id: Id) -> Checked<()> {
        while !self.open.get(&id).is_some_and(|state| state.begun) {
            ensure(self.open.contains_key(&id), || format!("{id:?} has ended: {:?}", self.ended.get(&id)))?;
            self.next()?;
        }
        Ok(())
    }

    /// Waits for the end of an attempt, and returns its last message.
    pub(crate) fn end_of(&mut self, id: Id) -> Checked<Message> {
        while !self.ended.contains_key(&id) {
            self.next()?;
        }
        Ok(self.ended[&id].clone())
    }

    /// Waits for the end of an attempt, which must be `done`, and returns its result.
    pub(crate) fn result_of(&mut self, id: Id) -> Checked<Value> {
        let end = self.end_of(id)?;
        ensure(end.kind == "done", || format!("{id:?} has failed: {}", end.body))?;
        Ok(end.body["result"].clone())
    }

    /// Waits for the end of an attempt, which must be `failed` with a text in its error.
    pub(crate) fn failure_of(&mut self, id: Id, text: &str) -> Checked<Message> {
        let end = self.end_of(id)?;
        let shown: String = end.body.to_string().chars().take(200).collect();
        ensure(end.kind == "failed", || format!("{id:?} has succeeded: {shown}"))?;
        ensure(end.text("error").contains(text), || format!("expected an error with {text:?}, found {shown}"))?;
        Ok(end)
    }

    /// Forgets the end of an attempt, so that it can be handed over again.
    pub(crate) fn forget(&mut self, id: Id) {
        self.ended.remove(&id);
    }

    /// Sends `ping`. The next message must be its answer: it has read its input so far, and has nothing else to say.
    pub(crate) fn quiet(&mut self) -> Checked<()> {
        self.ping(&json!({"type": "ping"}));
        let said = self.next().map_err(|error| format!("after a ping: {error}"))?;
        ensure(said.kind == "pong", || format!("expected a pong, found {}", said.body))
    }

    /// Requires that it writes nothing for a short time.
    pub(crate) fn silent(&mut self) -> Checked<()> {
        match self.lines.recv_timeout(PAUSE) {
            Ok(line) => Err(format!("unexpected: {}", String::from_utf8_lossy(&line?))),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err("its output has ended".to_owned()),
        }
    }

    /// Sends `stop`. It must end its attempts, and then itself with exit code 0.
    pub(crate) fn stop(&mut self) -> Checked<()> {
        self.send(&stop_message());
        self.stopped()
    }

    /// Waits for its end after `stop`.
    pub(crate) fn stopped(&mut self) -> Checked<()> {
        let status = self.exit().map_err(|error| format!("after stop: {error}"))?;
        ensure(self.open.is_empty(), || format!("it has ended without {:?}", self.open.keys()))?;
        ensure(status.code() == Some(0), || format!("after stop it has ended with {status}"))
    }

    /// Waits for its end. What it still writes must obey the rules.
    pub(crate) fn exit(&mut self) -> Checked<ExitStatus> {
        let deadline = Instant::now() + self.patience;
        let late = format!("it has not ended within {:?}", self.patience);
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                // Its last line may be cut off if it was not asked to stop.
                Ok(line) if self.input.is_some() => self.track(&Message::read(&line?)?)?,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(late),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let status = self.exits.recv_timeout(left).map_err(|_| late)?;
        self.has_exited = true;
        Ok(status)
    }

    /// Whether it runs for a short time, in which nothing that it writes is read.
    pub(crate) fn still_runs(&self) -> bool {
        self.exits.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout)
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.has_exited
    }

    /// Closes its input and its output, as a killed duly does.
    pub(crate) fn vanish(&mut self) {
        self.close_input();
        self.lines = sync_channel(0).1;
    }

    /// Waits for its end with an exit code other than 0 and a message on its standard error.
    pub(crate) fn gives_up(&mut self) -> Checked<()> {
        let status = self.exit()?;
        ensure(status.code() != Some(0), || "it has ended with exit code 0".to_owned())?;
        // Another thread reads it.
        let deadline = Instant::now() + PAUSE;
        while self.log().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        ensure(!self.log().is_empty(), || format!("it has ended with {status}, without a message on stderr"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.has_exited {
            self.signal(Signal::KILL);
        }
    }
}

fn write(mut stdin: ChildStdin, pieces: &Receiver<Piece>) {
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => {
                if stdin.write_all(&bytes).is_err() {
                    return;
                }
            }
            Piece::UntilRead(read) => {
                while rustix::io::ioctl_fionread(&stdin).is_ok_and(|left| left > 0) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let _ = read.send(());
            }
        }
    }
}

/// Reads lines, and hands each over without its line end, until `take` refuses one.
fn read(stdout: ChildStdout, mut take: impl FnMut(Checked<Vec<u8>>) -> bool) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let Ok(1..) = reader.by_ref().take(MAX_MESSAGE as u64 + 1).read_until(b'\n', &mut line) else { return };
        let checked = match line.pop() {
            _ if line.len() >= MAX_MESSAGE => Err("a line of more than 1 MiB".to_owned()),
            Some(b'\n') if line.iter().all(u8::is_ascii_whitespace) => continue,
            Some(b'\n') => Ok(line),
            _ => Err(format!(
                "its output ends within a line: {:?}",
                String::from_utf8_lossy(&line[..line.len().min(80)])
            )),
        };
        if !take(checked) {
            return;
        }
    }
}

pub(crate) fn welcome() -> Value {
    json!({"type": "welcome", "protocol": 1, "worker": "kit", "copy": 1, "database": "/nonexistent/agent.db"})
}

pub(crate) fn run_message((run, attempt): Id, handler: &str, payload: Value) -> Value {
    json!({
        "type": "run", "run": run, "attempt": attempt, "task": "a task", "handler": handler, "payload": payload,
        "scheduled_for": "2027-03-14T06:00:00.000Z", "origin": "schedule",
        "idempotency_key": format!("a task/{run}"), "deadline": null
    })
}

pub(crate) fn cancel_message((run, attempt): Id, reason: &str) -> Value {
    json!({"type": "cancel", "run": run, "attempt": attempt, "reason": reason})
}

pub(crate) fn stop_message() -> Value {
    json!({"type": "stop", "deadline": "2027-03-14T18:00:30.000Z"})
}
