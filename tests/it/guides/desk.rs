//! A folder in which the snippets of one page run, one after another.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use duly::Client;
use serde::Deserialize;

use crate::docs::tree;
use crate::fixtures::{TestDb, eventually, set_mode, skip};
use crate::guides::{Snippet, stand_ins};
use crate::sidecar::signal;

/// Stops the service of the page.
const STOP: &str = "systemctl stop duly";

/// What a page needs beside the folder that each page has: see `settings.toml`.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Setting {
    page: String,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) replaced: Vec<(String, String)>,
    pub(super) preludes: Vec<(String, String)>,
}

impl Setting {
    pub(super) fn of(page: &str) -> Self {
        #[derive(Deserialize)]
        struct All {
            page: Vec<Setting>,
        }
        let all: All = toml::from_str(include_str!("settings.toml")).expect("the settings");
        all.page.into_iter().find(|setting| setting.page == page).unwrap_or_default()
    }
}

/// The folder of a page.
pub(super) struct Desk {
    db: TestDb,
    setting: Setting,
    page: String,
    schedulers: Vec<Child>,
    /// Lines of earlier snippets that concern later ones, as each is run by a shell of its own.
    kept: String,
    /// The port of the status page that was started last.
    port: Option<String>,
    /// The address of a database on a server, if the page is about one.
    pub(super) server: Option<String>,
    /// Whether a scheduler of the page was not started, for lack of a program: the snippets after it would wait for it.
    lacks_scheduler: bool,
}

impl Desk {
    pub(super) fn new(page: &str, setting: Setting) -> Self {
        let db = TestDb::new();
        stand_ins::furnish(db.home());
        stand_ins::copy(&tree().join("examples"), &db.home().join("examples"));
        if page.starts_with("examples/") {
            stand_ins::copy(tree().join(page).parent().expect("a folder"), db.home());
        }
        Desk {
            db,
            setting,
            page: page.to_owned(),
            schedulers: Vec::new(),
            kept: String::new(),
            port: None,
            server: None,
            lacks_scheduler: false,
        }
    }

    /// Runs what comes before the first snippet.
    pub(super) fn begin(&self) {
        self.prepare(&self.setting.before);
    }

    /// Runs lines of shell in which `TREE` is the source tree.
    pub(super) fn prepare(&self, lines: &str) {
        self.expect_success("before", &self.shell(&lines.replace("TREE", &tree().display().to_string())));
    }

    /// Runs what follows the last snippet, and ends the schedulers of the page.
    pub(super) fn end(mut self) {
        if !self.lacks_scheduler {
            self.expect_success("after", &self.shell(&self.setting.after));
        }
        self.stop_schedulers();
    }

    /// Runs one line of shell.
    pub(super) fn run_example(&mut self, line: &str, number: usize) {
        self.run(&Snippet { language: "sh".to_owned(), text: format!("{line}\n"), line: number });
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.db.home().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let home = self.db.home();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let python = format!("{}:{}", tree().join("clients/python/src").display(), home.join("python").display());
        let mut command = Command::new(program);
        command.current_dir(home).env("HOME", home).env("PATH", path).env("TZ", "UTC").env("DULY_DB", "agent.db");
        command.env("PYTHONPATH", python).env("NODE_NO_WARNINGS", "1");
        command.env("NODE_OPTIONS", format!("--import {}", home.join("stand_ins.mjs").display()));
        command
            .env("COLUMNS", "80")
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs lines of bash after those that are kept, until the first that fails.
    fn shell(&self, lines: &str) -> Output {
        let script = format!("set -euo pipefail\n{}{lines}", self.kept);
        self.command(Path::new("bash")).args(["-c", &script]).output().expect("bash")
    }

    fn expect_success(&self, place: &str, output: &Output) {
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}, {place}: {}\n{out}{error}", self.page, output.status);
    }

    /// Returns the text of a snippet, with what stands in place of parts of it.
    fn text(&self, snippet: &Snippet) -> String {
        let replace = |text: String, (from, to): &(String, String)| text.replace(&**from, to);
        let text = self.setting.replaced.iter().fold(snippet.text.clone(), replace);
        let prelude = self.setting.preludes.iter().find(|(start, _)| text.starts_with(&**start));
        let text = format!("{}{text}", prelude.map_or("", |(_, prelude)| prelude));
        text.replace("cargo run --release -- ", "duly ")
    }

    pub(super) fn run(&mut self, snippet: &Snippet) {
        if self.lacks_scheduler {
            return;
        }
        let place = format!("line {}", snippet.line);
        let text = self.text(snippet);
        if let Some(name) = file_name(&text) {
            std::fs::write(self.file(name), &text).expect("a file");
            set_mode(&self.file(name), 0o755);
            let compile = match name.rsplit('.').next() {
                Some("py") => "python3 -m py_compile",
                Some("mjs") => "node --check",
                _ => "sh -n",
            };
            if !self.lacks(compile, &place) {
                self.expect_success(&place, &self.shell(&format!("{compile} {name}")));
            }
            return;
        }
        match snippet.language.as_str() {
            "sh" => self.run_lines(&text, &place),
            "console" => self.compare_transcript(&text, &place),
            "sql" => self.pipe(&text, "sqlite3", &["-bail", "-cmd", ".timeout 5000", "agent.db"], &place),
            "python" => self.pipe(&text, "python3", &["-"], &place),
            "js" => {
                if self.lacks("node", &place) {
                    return;
                }
                std::fs::write(self.file("snippet.mjs"), &text).expect("a file");
                let output = self.command(&self.file("bin/node")).arg("snippet.mjs").output().expect("Node.js");
                self.expect_success(&place, &output);
            }
            "toml" if text.contains("duly = ") => self.check_dependency(&text, &place),
            "toml" => {
                std::fs::write(self.file("tasks.toml"), &text).expect("a file");
                drop(Client::open(self.file("agent.db")).expect("a database"));
                self.expect_success(&place, &self.shell("duly apply --dry-run tasks.toml"));
            }
            "json" => self.check_json(&text, &place),
            "ini" => self.verify_unit(&text, &place),
            "yaml" => {
                std::fs::write(self.file("prometheus.yml"), &text).expect("a file");
                match self.lacks("promtool", &place) {
                    true => {}
                    false => self.expect_success(&place, &self.shell("promtool check config prometheus.yml")),
                }
            }
            other => panic!("{}, {place}: no test runs a snippet of {other:?}", self.page),
        }
    }

    /// Whether a program that a line starts is not installed: the line is skipped.
    pub(super) fn lacks(&self, line: &str, place: &str) -> bool {
        let found = |program: &str| match program {
            "node" => self.file("bin/node").exists(),
            _ => Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()),
        };
        let is_word =
            |program: &str| line.split(|c: char| !c.is_alphanumeric() && !"_-".contains(c)).any(|word| word == program);
        let programs = ["node", "python3", "sqlite3", "curl", "jq", "promtool", "pg_dump", "systemd-analyze"];
        let starts = |program: &&str| is_word(program) || (*program == "node" && line.contains("nanoclaw.toml"));
        let missing = programs.iter().find(|program| starts(program) && !found(program));
        if let Some(program) = missing {
            skip(&format!(
                "{}, {place}: no {program}{}",
                self.page,
                if *program == "node" { " 22.18 or newer" } else { "" }
            ));
        }
        missing.is_some()
    }

    fn pipe(&self, text: &str, program: &str, arguments: &[&str], place: &str) {
        if self.lacks(program, place) {
            return;
        }
        let mut command = self.command(Path::new(program));
        let input = self.file("snippet");
        std::fs::write(&input, text).expect("a file");
        command.args(arguments).stdin(std::fs::File::open(&input).expect("the file"));
        self.expect_success(place, &command.output().expect("its output"));
    }

    /// Runs a snippet. A scheduler runs until the end of the page, and the lines around it one by one.
    pub(super) fn run_lines(&mut self, text: &str, place: &str) {
        let is_alone = |line: &str| is_scheduler(line) || is_kept(line) || line.starts_with(STOP);
        if !text.lines().any(is_alone) {
            match self.lacks(text, place) {
                true => return,
                false => return self.expect_success(place, &self.shell(&self.with_port(text))),
            }
        }
        let joined = text.replace("\\\n", "");
        for line in joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // The lines after it need it.
            if self.lacks_scheduler {
                return;
            } else if is_kept(line) {
                self.kept.extend([line, "\n"]);
            } else if line.starts_with(STOP) {
                self.stop_schedulers();
            } else if self.lacks(line, place) {
                self.lacks_scheduler |= is_scheduler(line);
            } else if is_scheduler(line) {
                self.start(line, place);
            } else {
                let output = self.shell(&self.with_port(line));
                // There may be no run whose output could be shown.
                if !line.contains(" logs ") {
                    self.expect_success(place, &output);
                }
            }
        }
    }

    fn with_port(&self, text: &str) -> String {
        self.port.as_ref().map_or(text.to_owned(), |port| text.replace(":8629", &format!(":{port}")))
    }

    /// Starts a scheduler, with a free port for its page and no address of another machine, and waits until it is registered.
    fn start(&mut self, line: &str, place: &str) {
        let log = std::fs::File::create(self.file("log")).expect("a log");
        let command = line.replace(":8629", ":0").replace("https://", "http://127.0.0.1:9/");
        let script = format!("{}exec {command}", self.kept);
        let named = line.split_once("--db ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("$DULY_DB");
        let place_of_db = self.shell(&format!("realpath -m -- \"{named}\""));
        let file = PathBuf::from(String::from_utf8_lossy(&place_of_db.stdout).trim());
        let on_server = self.server.clone();
        if on_server.is_none() && !line.contains("--create") {
            drop(Client::open(&file).expect("a database"));
        }
        let mut shell = self.command(Path::new("bash"));
        self.schedulers.push(shell.args(["-c", &script]).stdout(Stdio::null()).stderr(log).spawn().expect("bash"));
        let (child, log) = (self.schedulers.last_mut().expect("a scheduler"), self.db.home().join("log"));
        let pid = child.id();
        eventually(&format!("{}, {place}: the scheduler is registered", self.page), || {
            let ended = child.try_wait().expect("its status");
            assert!(ended.is_none(), "{}, {place}: {}", self.page, std::fs::read_to_string(&log).expect("a log"));
            let client = match &on_server {
                Some(address) => Client::open(address),
                None if file.exists() => Client::open(&file),
                None => return false,
            };
            let status = client.and_then(|client| client.status());
            status.is_ok_and(|status| status.instances.iter().any(|scheduler| scheduler.pid == pid))
        });
        // A worker adds its tasks before it is ready.
        let workers = line.matches("--worker ").count() + line.matches("--tasks nanoclaw.toml").count();
        if workers > 0 {
            eventually(&format!("{}, {place}: the workers are ready", self.page), || {
                std::fs::read_to_string(&log).expect("a log").matches("): ready, ").count() >= workers
            });
        }
        if line.contains("--http ") {
            let mut port = None;
            eventually("the log names the address of the page", || {
                let log = std::fs::read_to_string(&log).expect("a log");
                let rest = log.split_once("status page on http://127.0.0.1:");
                port = rest.and_then(|(_, rest)| rest.split_once('/')).map(|(port, _)| port.to_owned());
                port.is_some()
            });
            self.port = port;
        }
    }

    fn stop_schedulers(&mut self) {
        for mut scheduler in self.schedulers.drain(..) {
            if scheduler.try_wait().is_ok_and(|ended| ended.is_none()) {
                signal("TERM", &scheduler.id().to_string());
                let ended = crate::fixtures::exited(&mut scheduler, "a scheduler");
                assert!(ended.success() || std::thread::panicking(), "{}: a scheduler ended with {ended}", self.page);
            }
        }
    }

    /// Runs each command of a transcript and compares what it prints. `..` stands for any text.
    fn compare_transcript(&self, text: &str, place: &str) {
        let (mut found, mut expected) = (String::new(), String::new());
        for line in text.lines() {
            expected.extend([line, "\n"]);
            let Some(typed) = line.strip_prefix("$ ") else { continue };
            found.extend([line, "\n"]);
            let line = format!("exec 2>&1; {typed}");
            let output = self.command(Path::new("bash")).args(["-c", &line]).output().expect("bash");
            found.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        assert!(matches(&expected, &found), "{}, {place}: expected\n{expected}found\n{found}", self.page);
    }

    /// Checks a document, or the messages of an exchange: one in each line, after its direction.
    fn check_json(&self, text: &str, place: &str) {
        let is_exchange = text.starts_with(['<', '>']);
        let documents = if is_exchange { text.lines().map(|line| &line[1..]).collect() } else { vec![text] };
        for document in documents {
            let read = serde_json::from_str::<serde_json::Value>(document);
            read.unwrap_or_else(|error| panic!("{}, {place}: {error}: {document}", self.page));
        }
    }

    /// Checks that each feature which a dependency on duly names exists, and that its version is this one.
    fn check_dependency(&self, manifest: &str, place: &str) {
        let own = std::fs::read_to_string(tree().join("Cargo.toml")).expect("the manifest");
        let line = manifest.lines().find(|line| line.starts_with("duly = ")).expect(place);
        let (_, features) = line.split_once("features = [").expect(place);
        for feature in features.split('"').skip(1).step_by(2) {
            assert!(own.contains(&format!("\n{feature} = [")), "{}, {place}: no feature {feature:?}", self.page);
        }
        let version = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("a version").0;
        assert!(line.contains(&format!("version = \"{version}\"")), "{}, {place}: expected {version}", self.page);
    }

    /// Checks a drop-in of the unit: systemd accepts both together, and the program the command line.
    fn verify_unit(&self, text: &str, place: &str) {
        let folder = self.file("units/duly.service.d");
        std::fs::create_dir_all(&folder).expect("a folder");
        let program = |text: &str| text.replace("/usr/local/bin/duly", env!("CARGO_BIN_EXE_duly"));
        let unit = std::fs::read_to_string(tree().join("packaging/duly.service")).expect("the unit");
        std::fs::write(self.file("units/duly.service"), program(&unit)).expect("the unit");
        std::fs::write(folder.join("override.conf"), program(text)).expect("a drop-in");
        let line =
            text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/")).expect("a command line");
        let line = line.replace(" /etc/", " etc/");
        self.expect_success(place, &self.shell(&format!("{line} --until-idle")));
        if !self.lacks("systemd-analyze", place) {
            let output = self.shell("systemd-analyze verify units/duly.service 2>&1");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !said.contains("duly.service"), "{}, {place}: {said}", self.page);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop_schedulers();
    }
}

/// Whether a line starts a scheduler that does not end by itself.
fn is_scheduler(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or_default().trim_end();
    line.starts_with("duly ") && !line.contains("--until-idle") && (line.ends_with(" run") || line.contains(" run --"))
}

/// Whether a line concerns the lines after it.
fn is_kept(line: &str) -> bool {
    line.starts_with("export ") || line.starts_with("cd ")
}

/// Returns the name of the file that a snippet is: its first line, or the one after `#!`, is a comment with the name.
fn file_name(snippet: &str) -> Option<&str> {
    let line = snippet.lines().find(|line| !line.starts_with("#!"))?;
    let name = line.strip_prefix("// ").or_else(|| line.strip_prefix("# "))?;
    [".mjs", ".py", ".sh"].iter().any(|end| name.ends_with(end) && !name.contains(' ')).then_some(name)
}

/// Whether a text has the form of a pattern in which `..` stands for any text within a line.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let line_matches = |pattern: &str, line: &str| {
        let mut parts = pattern.split("..");
        let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let at = if parts.peek().is_none() { rest.len().checked_sub(part.len()) } else { rest.find(part) };
            let Some(at) = at.filter(|at| rest.is_char_boundary(*at) && rest[*at..].starts_with(part)) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.is_empty()
    };
    // The width of a column depends on the time of day.
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (patterns, lines): (Vec<String>, Vec<String>) =
        (pattern.lines().map(words).collect(), text.lines().map(words).collect());
    patterns.len() == lines.len() && patterns.iter().zip(&lines).all(|(pattern, line)| line_matches(pattern, line))
}
