//! A browser without a window: Chromium, driven by chromedriver through the protocol WebDriver.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{Process, eventually, skip};
use crate::sidecar::kill;

/// The key of an element's id, a constant of the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The keys Tab and Enter of the protocol.
pub(crate) const TAB: char = '\u{E004}';
pub(crate) const ENTER: char = '\u{E007}';

const OPTIONS: [&str; 8] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    Desk,
    Phone,
    /// The narrowest that pages support: 320 pixels, or 1280 enlarged four times.
    Narrow,
}

impl Screen {
    pub(crate) fn width(self) -> u32 {
        match self {
            Screen::Desk => 1280,
            Screen::Phone => 390,
            Screen::Narrow => 320,
        }
    }

    fn height(self) -> u32 {
        match self {
            Screen::Desk => 900,
            Screen::Phone | Screen::Narrow => 844,
        }
    }
}

/// A browser with an empty profile. It ends when it is dropped.
pub(crate) struct Browser {
    agent: ureq::Agent,
    /// The address of the session.
    session: String,
    _driver: Process,
    profile: TempDir,
}

impl Browser {
    /// Starts one. `None`: this machine has no chromedriver.
    pub(crate) fn start() -> Option<Self> {
        let mut command = Command::new("chromedriver");
        let Ok(driver) = command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
            skip("no chromedriver");
            return None;
        };
        let mut driver = Process::of(driver);
        let mut lines = BufReader::new(driver.0.stdout.take().expect("a pipe")).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("a line of chromedriver");
            line.split_once("started successfully on port ").map(|(_, port)| port.trim_end_matches('.').to_owned())
        });
        // The rest of its output is dropped, but the pipe must not break.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let limit = Some(Duration::from_secs(60));
        let agent = ureq::Agent::config_builder().timeout_global(limit).http_status_as_error(false).build().into();
        let session = format!("http://127.0.0.1:{}/session", port.expect("a port"));
        let mut browser = Browser { agent, session, _driver: driver, profile };

        let mut arguments = OPTIONS.map(str::to_owned).to_vec();
        arguments.push(format!("--user-data-dir={}", browser.profile.path().display()));
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let opened = browser.post("", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("{}/{}", browser.session, opened["sessionId"].as_str().expect("a session"));
        // A new window has loaded a page of the browser itself.
        browser.open("about:blank");
        browser.console();
        browser.requests();
        Some(browser)
    }

    /// Makes a request of the protocol, and returns its value. Fails if the browser reports an error.
    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        self.try_post(path, body).unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }

    fn try_post(&self, path: &str, body: &Value) -> Result<Value, Value> {
        let address = format!("{}{path}", self.session);
        let mut answer = self.agent.post(&address).send_json(body).expect("an answer of chromedriver");
        let status = answer.status();
        let mut answer: Value =
            answer.body_mut().with_config().limit(100 << 20).read_json().expect("JSON of chromedriver");
        let value = answer["value"].take();
        if status.is_success() { Ok(value) } else { Err(value) }
    }

    /// Sets the colour scheme that the system prefers, and the size of the screen. Nothing moves smoothly: a click or a measurement
    /// during a scroll would miss.
    pub(crate) fn show(&self, scheme: Scheme, screen: Screen) {
        let media = json!([
            { "name": "prefers-color-scheme", "value": scheme.name() },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": media }));
        let is_phone = screen == Screen::Phone;
        let size = json!({
            "width": screen.width(),
            "height": screen.height(),
            "deviceScaleFactor": if is_phone { 2 } else { 1 },
            "mobile": is_phone,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Opens an address, and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&self, address: &str) {
        self.post("/url", &json!({ "url": address }));
    }

    /// Runs the body of a function, and returns its result.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs the body of a function whose last argument is a callback, and returns the value that it is called with.
    #[track_caller]
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Sends a command of the DevTools protocol.
    #[track_caller]
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Presses a key a number of times.
    #[track_caller]
    pub(crate) fn press(&self, key: char, times: usize) {
        let key = key.to_string();
        let press = [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })];
        let presses: Vec<_> = (0..times).flat_map(|_| press.clone()).collect();
        self.post("/actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": presses }] }));
    }

    /// Clicks on the element of a CSS selector, as soon as there is one. Looks it up again if the page replaces it before the click.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        eventually(selector, || {
            let found = self.try_post("/element", &json!({ "using": "css selector", "value": selector }));
            let clicked = found.and_then(|element| {
                let id = element[ELEMENT].as_str().expect("an element");
                self.try_post(&format!("/element/{id}/click"), &json!({}))
            });
            match clicked {
                Ok(_) => true,
                Err(error) if error["error"] == "no such element" || error["error"] == "stale element reference" => {
                    false
                }
                Err(error) => panic!("{selector}: {error:#}"),
            }
        });
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait_until(&self, expression: &str) {
        let script = format!("return !!({expression})");
        eventually(expression, || self.run(&script) == true);
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, text: &str) {
        self.wait_until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns what the console has printed since the last call.
    pub(crate) fn console(&self) -> Vec<String> {
        let entry = |entry: &Value| format!("{}: {}", text(&entry["level"]), text(&entry["message"]));
        self.log("browser").iter().map(entry).collect()
    }

    /// Returns the requests since the last call: the status and the address of each answer, and `sent` for each request.
    pub(crate) fn requests(&self) -> Vec<(String, String)> {
        let request = |entry: &Value| {
            let message: Value = serde_json::from_str(text(&entry["message"])).expect("JSON of the log");
            let (method, parameters) = (&message["message"]["method"], &message["message"]["params"]);
            match text(method) {
                "Network.requestWillBeSent" => {
                    Some(("sent".to_owned(), text(&parameters["request"]["url"]).to_owned()))
                }
                "Network.responseReceived" => {
                    let response = &parameters["response"];
                    Some((response["status"].to_string(), text(&response["url"]).to_owned()))
                }
                _ => None,
            }
        };
        self.log("performance").iter().filter_map(request).collect()
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.post("/se/log", &json!({ "type": kind }));
        entries.as_array().expect("entries of a log").clone()
    }

    /// Writes a picture of the screen, or of the whole page with one pixel for each pixel of CSS, as PNG.
    pub(crate) fn save_picture(&self, file: &Path, screen: Option<Screen>) {
        let mut parameters = json!({ "format": "png", "captureBeyondViewport": screen.is_none() });
        if screen.is_none() {
            let script = "const e = document.documentElement; return [e.clientWidth, Math.min(e.scrollHeight, 3000), 1 / devicePixelRatio]";
            let size = self.run(script);
            parameters["clip"] = json!({ "x": 0, "y": 0, "width": size[0], "height": size[1], "scale": size[2] });
        }
        let picture = self.devtools("Page.captureScreenshot", &parameters);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder for pictures");
        std::fs::write(file, from_base64(text(&picture["data"]))).expect("a picture");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium; then the driver is killed.
        let _ = self.agent.delete(&self.session).call();
        end_processes_of(self.profile.path());
    }
}

/// Kills what is left of a browser with this profile, a folder that no other program uses.
fn end_processes_of(profile: &Path) {
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    let wanted = format!("--user-data-dir={}", profile.display());
    for process in processes.flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|argument| argument == wanted.as_bytes()) {
            let _ = kill(&["-s", "KILL", "--"]).arg(process.file_name()).status();
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Decodes standard base64.
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).map(u32::from).collect();
    let group = |group: &[u32]| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
