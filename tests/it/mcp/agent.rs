//! A client of `duly mcp`: the program as a child process, and messages with a deadline.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::fixtures::{Process, TestDb, exited, receive};
use crate::mcp::schema::mismatch;

/// `duly mcp` and its streams.
pub(crate) struct Agent {
    process: Process,
    input: Option<ChildStdin>,
    answers: Receiver<Value>,
    /// Answers that came before the one that was waited for.
    early: Vec<Value>,
    pub(crate) last_id: i64,
    /// The schemas of the answers, by tool: each answer is compared with that of its tool.
    schemas: BTreeMap<String, Value>,
    /// The tools of the requests that are not answered yet, by id.
    asked: BTreeMap<i64, String>,
}

impl Agent {
    /// Starts the program with these options, and shakes hands as the client `tester`.
    pub(crate) fn start(db: &TestDb, options: &[&str]) -> Self {
        Self::shaken(&mut db.duly(&[&["mcp"], options].concat()))
    }

    /// The same with a command that starts the program.
    pub(crate) fn shaken(command: &mut Command) -> Self {
        let mut agent = Self::silent(command);
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}});
        let answer = agent.request("initialize", hello);
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        let listed = agent.request("tools/list", json!({}));
        for tool in listed["result"]["tools"].as_array().expect("tools") {
            agent.schemas.insert(tool["name"].as_str().expect("a name").to_owned(), tool["outputSchema"].clone());
        }
        agent
    }

    /// Starts a command, and says nothing.
    pub(crate) fn silent(command: &mut Command) -> Self {
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (input, output) = (process.0.stdin.take(), process.0.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let answer = serde_json::from_str(&line)
                    .unwrap_or_else(|error| json!({"no_json": line, "error": error.to_string()}));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Agent {
            process,
            input,
            answers,
            early: Vec::new(),
            last_id: 0,
            schemas: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    pub(crate) fn send_line(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("an open stream");
        input.write_all(line).and_then(|()| input.write_all(b"\n")).expect("the program reads");
    }

    /// Sends a request, and returns its id.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    /// Sends a call of a tool, and returns the id of the request.
    pub(crate) fn ask_tool(&mut self, tool: &str, arguments: Value) -> i64 {
        let id = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        self.asked.insert(id, tool.to_owned());
        id
    }

    /// Waits for the answer to a request. That of a tool must be what its schema says.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: i64) -> Value {
        let answer = self.awaited(id);
        if let (Some(tool), false) = (self.asked.remove(&id), answer["result"]["isError"] != false) {
            let found = mismatch(&self.schemas[&tool], &answer["result"]["structuredContent"], &tool);
            assert_eq!(found, None, "{answer}");
        }
        answer
    }

    fn awaited(&mut self, id: i64) -> Value {
        if let Some(place) = self.early.iter().position(|answer| answer["id"] == id) {
            return self.early.remove(place);
        }
        loop {
            let answer = self.next();
            if answer["id"] == id {
                return answer;
            }
            self.early.push(answer);
        }
    }

    /// Waits for the next message.
    pub(crate) fn next(&mut self) -> Value {
        let answer = receive(&self.answers, "an answer of duly mcp");
        assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
        answer
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answer(id)
    }

    /// Calls a tool, and returns its result.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.ask_tool(tool, arguments);
        let answer = self.answer(id);
        assert!(answer["error"].is_null(), "{tool}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool that must do what it is asked, and returns the structured answer.
    #[track_caller]
    pub(crate) fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool that must do what it is asked, and returns the lines of the answer.
    #[track_caller]
    pub(crate) fn told(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        result["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Calls a tool that must refuse, and returns the reason.
    #[track_caller]
    pub(crate) fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        if let Some(message) = answer["error"]["message"].as_str() {
            return message.to_owned();
        }
        assert_eq!(answer["result"]["isError"], true, "{tool}: {answer}");
        answer["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Closes the input, and returns the exit code.
    pub(crate) fn leave(mut self) -> Option<i32> {
        self.input = None;
        exited(&mut self.process.0, "duly mcp").code()
    }

    /// Kills the program.
    #[cfg(target_os = "linux")]
    pub(crate) fn kill(self) {
        self.process.kill();
    }
}
